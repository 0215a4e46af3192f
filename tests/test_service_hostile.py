"""What bad input gets: a 4xx with a sentence, and the service lives."""

import json
import logging
import socket
import time

import pytest

from models import random_model
from serving import clinic_like, serving, wait_for
from unimarg import Network, Variable
from unimarg.service import app
from unimarg.service.guard import HEADERS
from unimarg.service.limits import Limits

CLINIC = random_model(clinic_like())
QUERY = "/v1/models/clinic/query"
MEGA = 1 << 20


@pytest.fixture(scope="module")
def client():
    with serving({"clinic": CLINIC}, Limits(patience=1.0)) as running:
        yield running


@pytest.fixture(autouse=True)
def lives(client):
    yield
    assert client.post(QUERY, {"evidence": {"fever": "high"}}).json["marginals"]["fever"]["high"] == 1


DEEP = b'{"evidence": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "field required"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'{"evidence": "\xff"}', "the body is not JSON in UTF-8"),
        (b"[]", "valid dictionary"),
        (b'"query"', ""),
        (b"null", "valid dictionary"),
        (DEEP, "the body is nested too deeply"),
        (b'{"evidence": {"fever": ' + b"9" * 5_000 + b"}}", "a number in the body is too long: at most 4,300 digits"),
        (b'{"evidence": {"fever": ' + b"9" * 4_000 + b"}}", "'fever' has no state '9999"),
        (b'{"evidence": {"fever": 1e999}}', "'fever' has no state 'inf'"),
        (b'{"evidence": {"fever": NaN}}', "'fever' cannot be nan"),
        (b'{"evidence": {"fever": [NaN, 1, 1]}}', "must be finite"),
        (b'{"evidence": {"fever": [1, -1, 1]}}', "must be finite and not negative"),
        (b'{"evidence": {"fever": [0, 0, 0]}}', "zero for every state"),
        (b'{"evidence": {"fever": [1, 1]}}', "needs 3 numbers"),
        (b'{"evidence": {"fever": [[1], [2], [3]]}}', "needs 3 numbers"),
        (b'{"evidence": {"fever": {"hot": 1}}}', "'fever' has no state 'hot'"),
        (
            b'{"evidence": {"fever": {"high": 0.8}}}',
            "names one state alone, which would be certain: give 'high' itself, or name the others too",
        ),
        (b'{"evidence": {"fever": {"high": "much"}}}', "must be numbers"),
        (b'{"evidence": {"fever": null}}', "'fever' cannot be null; give a state (none, low, high)"),
        (b'{"evidence": {"fever": [null, 1, 1]}}', "the likelihood of 'fever' must be numbers, not [null, 1, 1]"),
        (b'{"evidence": {"fever": {"high": null}}}', "the likelihood of 'fever' must be numbers, not {'high': null}"),
        (b'{"evidence": {"fever": "hot"}}', "'fever' has no state 'hot'; allowed: 'none', 'low', 'high'"),
        (b'{"evidence": {"fever": 3}}', "has no state '3'"),
        (b'{"evidence": {"fevr": "high"}}', "there is no variable 'fevr'; did you mean 'fever'?"),
        (b'{"evidence": {"\\ud800": "high"}}', "there is no variable '\\ud800'"),
        (b'{"evidence": {"fever": "\\u0000<script>"}}', "has no state"),
        (b'{"evidence": ["fever"]}', "evidence: input should be a valid dictionary"),
        (b'{"evidence": {}, "targets": "fever"}', "targets: input should be a valid list"),
        (b'{"evidence": {}, "targets": ["fevr"]}', "did you mean 'fever'?"),
        (b'{"evidence": {}, "targets": [1]}', "targets.0: input should be a valid string"),
        (b'{"evidence": {}, "method": "magic"}', "method: input should be 'um', 'auto' or 'exact'"),
        (b'{"method": "auto", "samples": "many"}', "samples: input should be a valid integer"),
        (b'{"method": "auto", "samples": -1}', "samples: input should be greater than or equal to 1"),
        (b'{"method": "auto", "seconds": NaN}', "seconds: input should be"),
        (b'{"method": "auto", "seconds": 1e999}', "seconds: input should be"),
        (b'{"method": "auto", "seed": 1e10}', "seed: input should be a valid integer"),
        (b'{"method": "auto", "target_error": 0}', "target_error: input should be greater than 0"),
        (b'{"evidence": {"fever": "high", "fever": "low"}}', "'fever' is there twice: 'high' and 'low'"),
        (b'{"evidence": {"fever": null, "fever": 1}}', "'fever' is there twice: null and 1"),
        (b'{"evidence": {"fever": "high"}, "evidence": {}}', "'evidence' is there twice"),
        (b'{"evidnce": {}}', "evidnce: extra inputs are not permitted"),
        (
            b'{"method": "magic", "seed": -1, "evidnce": {}}',
            "method: input should be 'um', 'auto' or 'exact'; seed: input should be greater than or equal to 0; "
            "evidnce: extra inputs are not permitted",
        ),
        (b'{"targets": [1, 2, 3, 4, 5, 6, 7]}', "targets.4: input should be a valid string (and 2 more)"),
    ],
    ids=lambda x: x[:40].decode(errors="replace") if isinstance(x, bytes) else None,
)
def test_a_body_that_is_wrong(client, body, sentence):
    reply = client.post(QUERY, body)
    assert 400 <= reply.status < 500
    assert sentence in reply.error
    assert len(reply.error) <= 500


@pytest.mark.parametrize("what", ["query", "batch", "stream", "questions", "explain"])
@pytest.mark.parametrize(
    "kind", ["", "application/x-www-form-urlencoded", "text/json", "multipart/form-data; boundary=x", "application/a/json"]
)
def test_a_body_that_is_not_sent_as_json(client, what, kind):
    reply = client.post(f"/v1/models/clinic/{what}", b'{"evidence": {"fever": "high"}}', **{"content-type": kind})
    assert reply.status == 415
    assert "send content-type: application/json" in reply.error
    assert kind in reply.error
    assert "415" in client.get("/openapi.json").json["paths"][f"/v1/models/{{model}}/{what}"]["post"]["responses"]


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON", "application/vnd.api+json;x=y"])
def test_other_names_of_json(client, kind):
    assert client.post(QUERY, b'{"evidence": {"fever": "high"}}', **{"content-type": kind}).status == 200


def test_what_has_no_body_needs_no_type(client):
    assert client.post(QUERY, b"", **{"content-type": ""}).status == 422
    assert client.get("/v1/models/clinic", **{"content-type": "text/plain"}).status == 200


@pytest.mark.parametrize("what", ["batch", "stream", "questions", "explain"])
@pytest.mark.parametrize(
    "body", [b"", b"[1]", DEEP, b'{"evidence": 7}', b'{"evidence": [7], "targets": {}}', b'{"target": [], "costs": NaN}']
)
def test_the_other_addresses(client, what, body):
    assert client.post(f"/v1/models/clinic/{what}", body).error


@pytest.mark.parametrize(
    ("what", "body", "sentence"),
    [
        ("questions", {"targets": []}, "targets: list should have at least 1 item"),
        ("questions", {"targets": ["fevr"]}, "did you mean 'fever'?"),
        ("questions", {"targets": ["fever"], "costs": {"risk_0": -1}}, "cost"),
        ("questions", {"targets": ["fever"], "costs": {"nobody": 1.5}}, "there is no variable 'nobody'"),
        ("questions", {"targets": ["fever"], "limit": 0}, "limit"),
        ("explain", {"target": "fevr"}, "did you mean 'fever'?"),
        ("explain", {"target": "fever", "state": "hot", "evidence": {"risk_0": "yes"}}, "no state 'hot'"),
        ("explain", {"target": "fever", "evidence": {"fever": "high"}}, "itself a finding"),
    ],
)
def test_mistakes_in_questions_and_explanations(client, what, body, sentence):
    reply = client.post(f"/v1/models/clinic/{what}", body)
    assert (reply.status, sentence in reply.error) == (422, True)


def test_impossible_evidence_hits_only_its_own_row():
    sure = Network([Variable("a"), Variable("b")], {"b": ["a"]}, {"a": [0.5, 0.5], "b": [[1, 0], [0, 1]]})
    with serving({"sure": random_model(sure)}) as client:
        bad = {"a": "yes", "b": "no"}
        reply = client.post("/v1/models/sure/query", {"evidence": bad})
        said = "the evidence is impossible: 'a'='yes' and 'b'='no' do not go together"
        assert (reply.status, reply.error) == (422, said)
        for method in ("auto", "exact"):
            assert said == client.post("/v1/models/sure/query", {"evidence": bad, "method": method}).error
        answers = client.post("/v1/models/sure/batch", {"evidence": [{"a": "yes"}, bad, {"a": "no"}]}).json["answers"]
        assert [a.get("error") for a in answers] == [None, said, None]
        assert answers[2]["marginals"]["b"]["no"] == 1
        assert client.post("/v1/models/sure/questions", {"evidence": bad, "targets": ["a"]}).error == said
        assert client.post("/v1/models/sure/explain", {"evidence": bad, "target": "a"}).status == 422


def send(client, *parts, pause=0.0):
    """Raw bytes; what comes back until the connection is closed or two seconds pass in silence."""
    connection = socket.create_connection(("127.0.0.1", client.port))
    connection.settimeout(5)
    try:
        for part in parts:
            connection.sendall(part)
            time.sleep(pause)
        got = b""
        while b"\r\n\r\n" not in got and (more := connection.recv(65536)):
            got += more
        return got
    finally:
        connection.close()


HEAD = f"POST {QUERY} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n".encode()


def test_a_hundred_megabytes(client):
    """Whether the size is declared or not, little of it is kept."""
    declared = send(client, HEAD + b"content-length: %d\r\n\r\n" % (100 * MEGA), *[b" " * MEGA] * 100)
    assert declared.startswith(b"HTTP/1.1 413")
    chunk = b"%x\r\n%b\r\n" % (MEGA, b" " * MEGA)
    assert send(client, HEAD + b"transfer-encoding: chunked\r\n\r\n", *[chunk] * 100, b"0\r\n\r\n").startswith(b"HTTP/1.1 413")
    reply = client.post(QUERY, b" " * (MEGA + 1))
    assert (reply.status, reply.error) == (413, "the body may have at most 1,048,576 bytes")
    assert client.post(QUERY, b" " * (MEGA - 2) + b"{}").status == 200


def test_a_million_findings():
    """Where the operator allows such bodies, the first that does not fit is named."""
    body = json.dumps({"evidence": {f"x{i}": "yes" for i in range(1_000_000)}}).encode()
    with serving({"clinic": CLINIC}, Limits(body=64 * MEGA)) as client:
        began = time.monotonic()
        assert "there is no variable 'x0'" in client.post(QUERY, body).error
        assert client.post("/v1/models/clinic/batch", b'{"evidence": [' + b"{}," * 999_999 + b"{}]}").status == 422
        assert time.monotonic() - began < 30


def test_slow_clients_are_not_waited_for(client):
    body = send(client, HEAD + b"content-length: 50\r\n\r\n", b'{"evidence"')
    assert body.startswith(b"HTTP/1.1 408")
    assert b"did not arrive within 1 seconds" in body or b"connection: close" in body.lower()
    assert send(client, b"POST /v1/mod") == b""  # closed without an answer: there was no request yet
    assert send(client, b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 100) == b""


def test_many_slow_clients_do_not_take_the_place_of_others(client):
    slow = [socket.create_connection(("127.0.0.1", client.port)) for _ in range(300)]
    for connection in slow:
        connection.sendall(HEAD + b"content-length: 50\r\n\r\n{")
    assert client.post(QUERY, {}).status == 200
    for connection in slow:
        connection.close()
    wait_for(lambda: len(client.server.server_state.connections) < 50)


@pytest.mark.parametrize(
    "line", [b"NONSENSE\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /\xff HTTP/1.1\r\nhost: localhost\r\n\r\n", b"\x16\x03\x01\x02\r\n\r\n"]
)
def test_what_is_not_http(client, line):
    assert send(client, line + b"\r\n\r\n")[9:10] == b"4"


@pytest.mark.parametrize(
    "path",
    [
        "/../../../../etc/passwd",
        "/..%2f..%2f..%2fetc/passwd",
        "/%2e%2e/%2e%2e/app.py",
        "/page/../app.py",
        "//etc/passwd",
        "/app.js/../../app.py",
        "/..\\..\\app.py",
        "/static/app.js",
        "/app.py",
        "/__init__.py",
        "/v1/models/..%2f..%2fetc%2fpasswd",
        "/v1/models/%00",
        "/app.js%00.html",
    ],
)
def test_no_path_leads_to_other_files(client, path):
    reply = client.get(path)
    assert reply.status == 404
    assert reply.error
    assert b"root:" not in reply.body
    assert b"import" not in reply.body


def test_every_answer_has_the_headers_of_safety(client):
    replies = [client.get(p) for p in ("/", "/app.js", "/health", "/nothing", "/v1/models")]
    replies += [client.post(QUERY, {}), client.post(QUERY, b"{"), client.get("/health", host="evil.example")]
    for reply in replies:
        for name, value in HEADERS:
            assert reply.headers[name.decode()] == value.decode()
    policy = dict(HEADERS)[b"content-security-policy"]
    assert b"unsafe" not in policy
    assert b"default-src 'none'" in policy
    assert b"<script>" not in client.get("/").body  # none inline


def test_names_that_are_markup_stay_data():
    """They travel as JSON that no browser takes for a page; tests of the page see to the rest."""
    evil = '<img src=x onerror="alert(1)">\u2028</script>'
    with serving({"evil": random_model(clinic_like(evil))}) as client:
        for reply in (client.get("/v1/models/evil"), client.post("/v1/models/evil/query", {})):
            assert (reply.headers["content-type"], reply.headers["x-content-type-options"]) == ("application/json", "nosniff")
            assert evil in json.dumps(reply.json, ensure_ascii=False).replace('\\"', '"')
        assert evil.encode() not in client.get("/").body


def test_our_own_mistake_is_no_traceback(client, monkeypatch, caplog):
    def broken(*_):
        raise ZeroDivisionError("secret")

    log = logging.getLogger("uvicorn.error")
    log.addHandler(caplog.handler)
    monkeypatch.setattr(app.Service, "one_shot", broken)
    reply = client.post(QUERY, {})
    monkeypatch.undo()
    assert (reply.status, reply.error) == (500, "something went wrong in the service; its log has more")
    wait_for(lambda: "secret" in caplog.text)
    assert 'status="500"' in client.get("/metrics").body.decode()
    log.removeHandler(caplog.handler)
