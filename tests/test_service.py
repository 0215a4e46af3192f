"""Every address of the service, its limits, and its ends."""

import asyncio
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import unimarg as um
from models import ASIA, random_model
from serving import clinic_like, serving, wait_for
from unimarg import query
from unimarg.cli import main
from unimarg.evidence import parse_evidence
from unimarg.service import app, served
from unimarg.service.app import make_app
from unimarg.service.batching import Batcher
from unimarg.service.limits import Limits
from unimarg.service.metrics import Metrics
from unimarg.service.served import Served
from unimarg.service.work import StoppedError

CLINIC = random_model(clinic_like())
CASE = {"symptom_0": "yes", "fever": "high"}


@pytest.fixture(scope="module")
def client():
    with serving({"clinic": CLINIC, "asia": ASIA}) as running:
        yield running


def close(given, post, tolerance=2e-7):
    """JSON marginals against a posterior; they are rounded to seven digits."""
    assert set(given) == set(post)
    for name, states in given.items():
        assert states == pytest.approx(post[name], abs=tolerance)
    return True


# --- answers


def test_health_and_what_is_served(client):
    health = client.get("/health").json
    assert health["status"] == "ok"
    assert health["models"] == client.get("/v1/models").json
    assert [(m["name"], m["variables"], m["trained"]) for m in health["models"]] == [("clinic", 16, True), ("asia", 8, False)]


def test_the_network_is_described(client):
    told = client.get("/v1/models/clinic").json
    assert told["groups"] == ["risks", "diseases", "symptoms"]
    by_name = {v["name"]: v for v in told["variables"]}
    assert by_name["disease_1"] == {
        "name": "disease_1",
        "group": "diseases",
        "states": ["no", "yes"],
        "parents": ["risk_0", "risk_1"],
        "prior": pytest.approx(dict(zip(["no", "yes"], CLINIC.priors[CLINIC.net.index["disease_1"]], strict=True)), abs=1e-7),
    }
    asia = {v["name"]: v["prior"] for v in client.get("/v1/models/asia").json["variables"]}
    assert asia["lung"] == pytest.approx(um.exact(ASIA)["lung"], abs=1e-7)


@pytest.mark.parametrize("evidence", [{}, CASE, {"fever": {"low": 0.5, "high": 1.0}}, {"fever": [0, 1, 1]}, {"fever": 2}])
def test_one_shot_is_the_models_own_answer(client, evidence):
    given = client.post("/v1/models/clinic/query", {"evidence": evidence}).json
    assert (given["method"], given["status"], given["std_errors"]) == ("um", "ok", None)
    assert close(given["marginals"], CLINIC.query(evidence, method="um"))


def test_targets_are_those_asked_for_in_their_order(client):
    for targets in (["fever", "risk_1"], ["disease_0"], []):
        given = client.post("/v1/models/clinic/query", {"evidence": CASE, "targets": targets}).json
        assert list(given["marginals"]) == targets
        assert close(given["marginals"], CLINIC.query(CASE, targets, method="um")) if targets else given["marginals"] == {}


def test_everybody_gets_their_own_answer(client):
    """Many at once, each with other evidence, on batches that mix them."""
    states = um.sample(CLINIC.net, 60, seed=3)
    names = CLINIC.net.names
    cases = [{names[i]: int(row[i]) for i in np.random.default_rng(k).choice(16, 3)} for k, row in enumerate(states)]
    with ThreadPoolExecutor(20) as pool:
        replies = list(pool.map(lambda c: client.post("/v1/models/clinic/query", {"evidence": c}), cases))
    assert [r.status for r in replies] == [200] * 60
    assert all(close(r.json["marginals"], CLINIC.query(c, method="um"), 1e-5) for r, c in zip(replies, cases, strict=True))


def test_questions_that_wait_are_answered_together(monkeypatch):
    """While the device is busy with one, five more arrive: they make the next batch."""
    sizes, free = [], threading.Event()
    answers = type(CLINIC).answers

    def slow(self, evidence, nodes=None):
        sizes.append(len(evidence))
        assert free.wait(10)
        return answers(self, evidence, nodes)

    async def ask():
        batcher = Batcher(CLINIC, 4, Metrics())
        monkeypatch.setattr(batcher, "_warm_up", lambda: None)
        monkeypatch.setattr(type(CLINIC), "answers", slow)
        await batcher.start()
        one = parse_evidence(CLINIC.net, CASE)
        first = asyncio.ensure_future(batcher.ask([one]))
        while not sizes:
            await asyncio.sleep(0.01)
        rest = [asyncio.ensure_future(batcher.ask([one] * n)) for n in (1, 2, 1, 3)]
        left = asyncio.ensure_future(batcher.ask([one]))
        await asyncio.sleep(0.05)
        left.cancel()
        free.set()
        found = await asyncio.gather(first, *rest)
        await batcher.stop()
        return found

    found = asyncio.run(ask())
    assert sizes == [1, 4, 3]  # at most four together, in order; the one that left is not computed
    assert [len(rows) for rows, _ in found] == [1, 1, 2, 1, 3]


def test_auto_is_exact_where_that_is_quick(client):
    given = client.post("/v1/models/asia/query", {"evidence": {"dysp": "yes"}}).json
    truth = um.exact(ASIA, {"dysp": "yes"})
    assert (given["method"], given["log_evidence"]) == ("exact", pytest.approx(truth.log_evidence))
    assert close(given["marginals"], truth)
    again = client.post("/v1/models/asia/query", {"evidence": {"dysp": "yes"}, "method": "exact"}).json
    assert close(again["marginals"], truth)


def test_sampled_answers_have_errors_and_obey_their_limits(client, monkeypatch):
    monkeypatch.setattr(query, "EXACT_ENTRIES", 0)
    CLINIC.query(CASE, method="lookahead", samples=1)  # compiles, which would count as time
    asked = {"evidence": CASE, "method": "auto", "samples": 20_000, "target_error": 0.0001, "seed": 5}
    given = client.post("/v1/models/clinic/query", asked).json
    assert (given["method"], given["samples"], given["status"]) == ("lookahead", 20_000, "low_ess")
    truth = um.exact(CLINIC.net, CASE)
    z = [
        (p - truth[name][s]) / given["std_errors"][name][s]
        for name, marginal in given["marginals"].items()
        for s, p in marginal.items()
        if given["std_errors"][name][s] > 0
    ]
    assert len(z) > 20
    assert max(map(abs, z)) < 4


def lines(client, path, body):
    reply = client.post(path, body)
    assert reply.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in reply.body.splitlines()]


def test_a_stream_begins_at_once_and_ends_with_the_better_answer(client, monkeypatch):
    first, final = lines(client, "/v1/models/clinic/stream", {"evidence": CASE})
    assert (first["stage"], first["method"], final["stage"], final["method"]) == ("first", "um", "final", "exact")
    assert close(first["marginals"], CLINIC.query(CASE, method="um"))
    assert close(final["marginals"], um.exact(CLINIC.net, CASE))
    monkeypatch.setattr(query, "EXACT_ENTRIES", 0)
    sampled = lines(client, "/v1/models/clinic/stream", {"evidence": CASE, "samples": 30_000, "target_error": 0.0001})
    assert [x["stage"] for x in sampled] == ["first", *["progress"] * (len(sampled) - 2), "final"]
    counts = [x["samples"] for x in sampled[1:]]
    assert counts == sorted(counts)
    assert (counts[-1], sampled[-1]["method"]) == (30_000, "lookahead")
    (only,) = lines(client, "/v1/models/asia/stream", {"evidence": {"dysp": "yes"}, "method": "exact"})
    assert only["stage"] == "final"


def test_a_stream_tells_of_trouble(client, monkeypatch):
    def fail(*_, **__):
        raise um.SamplingError("no draw was compatible", 5, 0.0)

    monkeypatch.setattr(served, "answer", fail)
    first, error = lines(client, "/v1/models/clinic/stream", {"evidence": CASE})
    assert (first["stage"], error) == ("first", {"stage": "error", "error": "no draw was compatible"})
    assert "fver" in client.post("/v1/models/clinic/stream", {"evidence": {"fver": 1}}).error


def test_a_batch_answers_row_by_row(client):
    cases = [CASE, {"fever": "hot"}, {}, *[{"risk_0": "yes"}] * 130]
    given = client.post("/v1/models/clinic/batch", {"evidence": cases}).json["answers"]
    assert len(given) == 133
    assert close(given[0]["marginals"], CLINIC.query(CASE, method="um"), 1e-5)
    assert given[1] == {"error": "'fever' has no state 'hot'; allowed: 'none', 'low', 'high'"}
    assert close(given[132]["marginals"], CLINIC.query({"risk_0": "yes"}, method="um"), 1e-5)
    only = client.post("/v1/models/clinic/batch", {"evidence": cases[:1], "targets": ["fever"]}).json["answers"]
    assert list(only[0]["marginals"]) == ["fever"]


def test_next_questions(client):
    asked = {"evidence": CASE, "targets": ["disease_0", "disease_1"], "costs": {"symptom_4": 5.0}, "limit": 3}
    given = client.post("/v1/models/clinic/questions", asked).json
    table = CLINIC.next_questions(CASE, asked["targets"], None, asked["costs"])
    assert [q["variable"] for q in given["questions"]] == table["variable"].tolist()[:3]
    assert [q["gain"] for q in given["questions"]] == pytest.approx(table["gain"].tolist()[:3], abs=1e-5)
    exactly = client.post("/v1/models/asia/questions", {"evidence": {"dysp": "yes"}, "targets": ["lung"]}).json
    assert exactly["questions"][0]["gain"] == pytest.approx(um.next_questions(ASIA, {"dysp": "yes"}, ["lung"])["gain"][0])


def test_explain(client):
    given = client.post("/v1/models/clinic/explain", {"evidence": CASE, "target": "disease_0", "state": "yes"}).json
    table = CLINIC.explain(CASE, "disease_0", "yes")
    assert {f["variable"]: f["shift"] for f in given["findings"]} == pytest.approx(
        dict(zip(table["variable"], table["shift"], strict=True)), abs=1e-5
    )
    assert (given["target"], given["state"]) == ("disease_0", "yes")
    exactly = client.post("/v1/models/asia/explain", {"evidence": {"dysp": "yes"}, "target": "bronc"}).json
    assert exactly["probability"] == pytest.approx(um.exact(ASIA, {"dysp": "yes"})["bronc"]["yes"])


def test_a_network_without_a_model_says_what_it_can(client):
    assert "auto and exact" in client.post("/v1/models/asia/query", {"method": "um"}).error
    assert "without a trained model" in client.post("/v1/models/asia/batch", {"evidence": [{}]}).error


def test_without_a_model_questions_that_take_long_are_declined(client, monkeypatch):
    monkeypatch.setattr(query, "EXACT_ENTRIES", 0)
    for what, more in (("questions", {"targets": ["lung"]}), ("explain", {"target": "lung"})):
        assert "needs a trained model" in client.post(f"/v1/models/asia/{what}", {"evidence": {"dysp": "yes"}} | more).error


def test_what_is_not_there(client):
    assert client.get("/v1/models/clinc").error == "there is no model 'clinc'; did you mean 'clinic'?"
    assert client.post("/v1/models/nothing/query", {}).status == 404
    assert client.get("/nothing").status == 404
    assert client.ask("DELETE", "/v1/models").status == 405


def test_the_interface_is_described(client):
    described = client.get("/openapi.json").json
    assert {p for p in described["paths"] if p.startswith("/v1/models/{model}/")} == {
        f"/v1/models/{{model}}/{what}" for what in ("query", "batch", "stream", "questions", "explain")
    }
    page = client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert not re.findall(rb"https?://", page.body + client.get("/").body)


def test_metrics_count(client):
    def answered():
        text = client.get("/metrics").body.decode()
        return float((re.findall(r'unimarg_requests_total\{endpoint="query",status="200"\} (\S+)', text) or ["0"])[0])

    before = answered()
    client.post("/v1/models/clinic/query", {})
    assert answered() == before + 1
    text = client.get("/metrics").body.decode()
    assert "unimarg_batch_rows_count" in text
    assert 'status="404"' in text


# --- limits


def test_a_token_keeps_others_out():
    with serving({"clinic": CLINIC}, token="ümlaut-secret") as client:
        for path in ("/", "/app.js", "/health", "/docs"):
            assert client.get(path).status == 200
        good = "Bearer ümlaut-secret".encode().decode("latin-1")
        for path in ("/v1/models", "/metrics", "/openapi.json", "/v1/models/clinic"):
            assert client.get(path).headers["www-authenticate"] == "Bearer"
            for wrong in ("", "Bearer", "Bearer wrong", "Basic " + good[7:], good + "x"):
                assert client.get(path, authorization=wrong).status == 401
            assert client.get(path, authorization=good).status == 200
            assert client.get(path, authorization=good.replace("Bearer", "bearer")).status == 200
        assert client.post("/v1/models/clinic/query", {}).status == 401


def test_on_the_loopback_only_its_own_names_are_answered(client):
    for host in ("localhost", "127.0.0.1:1234", "[::1]:80", "LOCALHOST:8000"):
        assert client.get("/v1/models", host=host).status == 200
    for host in ("evil.example", "127.0.0.1.evil.example:80", ""):
        assert client.get("/v1/models", host=host).status == 403


def test_requests_that_ask_for_too_much(client):
    ask = "/v1/models/clinic/query"
    assert client.post(ask, {"method": "auto", "samples": 10**9}).error == "samples may be at most 1,048,576 here, not 1,000,000,000"
    assert "seconds may be at most 30" in client.post(ask, {"method": "auto", "seconds": 31}).error
    reply = client.post("/v1/models/clinic/batch", {"evidence": [{}] * 1025})
    assert (reply.status, reply.error) == (422, "a batch may have at most 1024 evidence sets, not 1025")


def test_an_answer_has_a_size(client, monkeypatch):
    monkeypatch.setattr(app, "NUMBERS", 100)
    assert client.post("/v1/models/clinic/batch", {"evidence": [{}] * 3}).status == 200
    assert client.post("/v1/models/clinic/batch", {"evidence": [{}] * 4, "targets": ["fever"]}).status == 200
    assert client.post("/v1/models/clinic/batch", {"evidence": [{}] * 4}).error.startswith("4 cases with 33 states each are too many")


def test_warming_up_compiles_and_ends():
    with serving({"asia": ASIA}, warm=True) as warmed:
        assert warmed.get("/health").json["status"] == "ok"
        assert 'unimarg_work{kind="sampling"} 0.0' in warmed.get("/metrics").body.decode()


@pytest.fixture
def endless(monkeypatch):
    """Answers by sampling that go on until they are stopped; says how many began and how many were stopped."""
    tally = {"began": 0, "stopped": 0, "finished": 0}
    done = threading.Event()

    def answer(*_, progress, **__):
        tally["began"] += 1
        try:
            while not done.wait(0.01):
                progress(tally["began"], 0.0)
        except StoppedError:
            tally["stopped"] += 1
            raise
        tally["finished"] += 1
        return um.exact(CLINIC.net, {})

    monkeypatch.setattr(served, "answer", answer)
    tally["finish"] = done.set
    yield tally
    done.set()


def open_request(client, path, body):
    """A connection on which a request has been sent and nothing read."""
    data = json.dumps(body).encode()
    connection = socket.create_connection(("127.0.0.1", client.port))
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    return connection


@pytest.mark.parametrize("path", ["/v1/models/clinic/query", "/v1/models/clinic/stream"])
def test_work_ends_when_the_client_leaves(client, endless, path):
    before = client.service.metrics.left._value.get()
    connection = open_request(client, path, {"method": "auto"})
    wait_for(lambda: endless["began"] == 1)
    assert client.service.sampling.busy == 1
    connection.close()
    wait_for(lambda: endless["stopped"] == 1)
    wait_for(lambda: client.service.sampling.busy == 0)
    assert client.service.metrics.left._value.get() == before + 1
    assert client.post("/v1/models/clinic/query", {}).status == 200


def test_when_the_queue_is_full_there_is_a_503(client, endless):
    """Two work, eight wait; one-shot questions are answered all the same."""
    waiting = [open_request(client, "/v1/models/clinic/query", {"method": "auto"}) for _ in range(10)]
    wait_for(lambda: client.service.sampling.busy == 10)
    for path in ("query", "stream"):
        refused = client.post(f"/v1/models/asia/{path}", {"method": "auto"})
        if path == "query":
            assert (refused.status, refused.headers["retry-after"]) == (503, "2")
        assert "no more fit" in refused.body.decode()
    assert client.post("/v1/models/clinic/query", {}).status == 200
    assert endless["began"] == 2
    for connection in waiting[:9]:
        connection.close()
    wait_for(lambda: client.service.sampling.busy == 1)
    endless["finish"]()
    assert waiting[9].recv(12) == b"HTTP/1.1 200"
    waiting[9].close()


def test_when_too_many_ask_at_once_there_is_a_503(monkeypatch):
    free = threading.Event()
    answers = type(CLINIC).answers
    with serving({"clinic": CLINIC}, Limits(concurrency=3)) as client:
        monkeypatch.setattr(type(CLINIC), "answers", lambda *given: free.wait(10) and answers(*given))
        waiting = [open_request(client, "/v1/models/clinic/query", {}) for _ in range(3)]
        wait_for(lambda: "unimarg_in_flight 3.0" in client.get("/metrics").body.decode())
        refused = client.post("/v1/models/clinic/query", {})
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert "please try again" in refused.error
        assert client.get("/health").status == 200
        free.set()
        for connection in waiting:
            assert connection.recv(12) == b"HTTP/1.1 200"
            connection.close()
        assert client.post("/v1/models/clinic/query", {}).status == 200


def test_limits_make_sense():
    for wrong in ({"body": 0}, {"concurrency": -1}, {"batch": 5000}, {"seconds": 0}, {"seconds": float("nan")}, {"samples": 1.5}):
        with pytest.raises(um.UsageError, match="limit"):
            Limits(**wrong)


def test_two_models_need_two_names():
    with pytest.raises(um.UsageError, match="the same name"):
        make_app([Served("a", ASIA), Served("a", ASIA)])


# --- the end


def test_who_is_being_answered_at_the_end_is_answered(endless):
    with serving({"clinic": CLINIC}) as client:
        connection = open_request(client, "/v1/models/clinic/query", {"method": "auto"})
        wait_for(lambda: endless["began"] == 1)
        client.server.should_exit = True
        time.sleep(0.3)
        with pytest.raises(ConnectionRefusedError):  # nobody new
            socket.create_connection(("127.0.0.1", client.port), timeout=1).close()
        endless["finish"]()
        connection.settimeout(10)
        assert connection.recv(12) == b"HTTP/1.1 200"
        connection.close()


def test_the_command_serves_until_it_is_told_to_stop():
    command = [sys.executable, "-c", "from unimarg.cli import main; main()", "serve", "asia", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        port = int(re.findall(r"^asia at http://127\.0\.0\.1:(\d+) ", line)[0])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("POST", "/v1/models/asia/query", '{"evidence": {"dysp": "yes"}}', {"content-type": "application/json"})
        assert json.load(connection.getresponse())["marginals"]["lung"]["yes"] == pytest.approx(0.1028, abs=1e-4)
        connection.close()
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
        assert (process.returncode, said) == (0, "")


DEMO = """
import sys
from models import random_model
from serving import clinic_like
from unimarg import demo
from unimarg.cli import main
demo.run = lambda: random_model(clinic_like())
main(sys.argv[1:])
"""


def test_the_demo_ends_with_a_page_or_by_itself():
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", DEMO, "demo"]
    assert subprocess.run([*command, "--no-serve"], env=env, timeout=60, check=True, capture_output=True).stdout == b""
    with subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        said = "".join(process.stdout.readline() for _ in range(3))
        port = int(re.findall(r"clinic at http://127\.0\.0\.1:(\d+) ", said)[0])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/")
        assert b"<title>unimarg</title>" in connection.getresponse().read()
        connection.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def test_the_command_says_what_is_wrong(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for arguments, sentence in (
            (["nothing"], "neither a file nor an example"),
            (["asia", "asia"], "the same name"),
            (["asia", "--token", ""], "protects nothing"),
            (["asia", "--seconds", "0"], "limit 'seconds'"),
            (["asia", "--port", port], "Address already in use"),
            (["asia", "--host", "no.such.host.invalid"], "cannot listen on no.such.host.invalid"),
        ):
            with pytest.raises(SystemExit) as e:
                main(["serve", *arguments])
            assert e.value.code == 2
            assert sentence in capsys.readouterr().err
