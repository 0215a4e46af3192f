"""The service's limits: who may ask, how much, how many at once; and how it ends."""

import asyncio
import http.client
import json
import os
import pkgutil
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import unimarg as um
from models import ASIA, random_model
from serving import clinic_like, serving, wait_for
from unimarg.cli import main
from unimarg.cli.serve import serve
from unimarg.service import app, served
from unimarg.service.app import make_app
from unimarg.service.batching import Batcher
from unimarg.service.limits import Limits
from unimarg.service.served import Served
from unimarg.service.work import StoppedError

CLINIC = random_model(clinic_like())


@pytest.fixture(scope="module")
def client():
    with serving({"clinic": CLINIC, "asia": ASIA}) as running:
        yield running


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


def test_exact_beyond_its_budget_says_what_can_be_done_here(client, monkeypatch):
    monkeypatch.setattr(served, "EXACT_MEMORY", 100.0)
    asked = {"evidence": {"symptom_0": "yes"}, "method": "exact"}
    reply = client.post("/v1/models/clinic/query", asked)
    assert reply.status == 422
    assert reply.error.startswith("the exact answer needs about ")
    assert reply.error.endswith('the budget is 100 B; ask for fewer targets, or with "method": "auto"')
    last = json.loads(client.post("/v1/models/clinic/stream", asked).body.splitlines()[-1])
    assert last == {"stage": "error", "error": reply.error}
    assert client.post("/v1/models/clinic/query", asked | {"method": "auto"}).status == 200


def test_the_budget_of_exact_is_told(client):
    told = f"{served.EXACT_MEMORY / 2**20:.0f} MiB"
    method = client.get("/openapi.json").json["components"]["schemas"]["QueryBody"]["properties"]["method"]
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    assert all(told in text for text in (method["description"], serve.__doc__ or "", readme.split("\n## Serve\n")[1].split("\n## ")[0]))


def test_an_answer_has_a_size(client, monkeypatch):
    monkeypatch.setattr(app, "NUMBERS", 100)
    assert client.post("/v1/models/clinic/batch", {"evidence": [{}] * 3}).status == 200
    assert client.post("/v1/models/clinic/batch", {"evidence": [{}] * 4, "targets": ["fever"]}).status == 200
    assert client.post("/v1/models/clinic/batch", {"evidence": [{}] * 4}).error.startswith("4 cases with 33 states each are too many")


def test_warming_up_compiles_and_ends():
    with serving({"asia": ASIA}, warm=True) as warmed:
        assert warmed.get("/health").json["status"] == "ok"
        assert warmed.get("/ready").status == 200
        assert 'unimarg_work{kind="sampling"} 0.0' in warmed.get("/metrics").body.decode()


def test_it_listens_while_it_is_prepared():
    """It lives but is not ready, which can be asked without the token; answers by one pass and exact ones do not wait for sampling."""
    compiled = threading.Event()
    models = {"clinic": CLINIC, "asia": ASIA}
    with serving(models, token="secret", warm=lambda: compiled.wait(30), wait=False) as client, ThreadPoolExecutor(4) as pool:
        for _ in range(2):
            reply = client.get("/ready")
            assert (reply.status, reply.headers["retry-after"]) == (503, "2")
            assert "warming up" in reply.error
        health = client.get("/health")
        assert (health.status, health.json["status"]) == (200, "warming up")
        asked = {"evidence": {"fever": "high"}, "targets": ["disease_0"]}
        given: dict[str, str] = {"authorization": "Bearer secret"}
        assert client.get("/v1/models/asia", **given).status == 200
        assert client.post("/v1/models/clinic/query", asked, **given).json["method"] == "um"
        assert client.post("/v1/models/clinic/query", asked | {"method": "exact"}, **given).json["method"] == "exact"
        waiting = [
            pool.submit(client.post, f"/v1/models/clinic/{what}", body, **given)
            for what, body in (
                ("query", asked | {"method": "auto"}),
                ("stream", asked),
                ("questions", {"targets": ["disease_0"]}),
                ("explain", {"evidence": asked["evidence"], "target": "disease_0"}),
            )
        ]
        time.sleep(0.5)
        assert not any(w.done() for w in waiting)
        assert client.service.passes.busy == 0  # nothing is compiled by who waits
        compiled.set()
        assert [w.result(30).status for w in waiting] == [200] * 4
        last = json.loads(waiting[1].result().body.splitlines()[-1])
        assert (last["stage"], last["method"]) == ("final", "exact")
        wait_for(lambda: client.get("/ready").status == 200)
        assert client.get("/ready").json == client.get("/health").json


def test_questions_that_come_before_the_first_pass_wait_for_it(monkeypatch):
    compiled, warm_up = threading.Event(), Batcher._warm_up
    monkeypatch.setattr(Batcher, "_warm_up", lambda self: compiled.wait(30) and warm_up(self))
    with serving({"clinic": CLINIC}, wait=False) as client, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.post, "/v1/models/clinic/query", {"evidence": {"fever": "high"}})
        time.sleep(0.3)
        assert not waiting.done()
        assert client.get("/health").status == 200
        compiled.set()
        assert waiting.result(30).json["marginals"]["fever"]["high"] == 1


def test_passes_are_as_large_as_a_batch_needs():
    model = random_model(clinic_like())
    with serving({"clinic": model}, Limits(batch=3)):
        assert model.passes.sizes == [1]
    with serving({"clinic": model}, Limits(batch=100)) as client:
        assert model.passes.sizes == [1, 64]
        answers = client.post("/v1/models/clinic/batch", {"evidence": [{"fever": "high"}] * 130}).json["answers"]
    assert all(a["marginals"] == answers[0]["marginals"] for a in answers)


def test_what_could_not_be_prepared_is_logged_and_never_ready(capsys):
    def fail():
        raise ZeroDivisionError("secret")

    with serving({"clinic": CLINIC}, warm=fail, wait=False) as client:
        wait_for(client.service.prepared.is_set)
        assert (client.get("/health").status, client.get("/ready").status) == (200, 503)
        assert client.post("/v1/models/clinic/query", {"method": "auto"}).status == 200
    said = capsys.readouterr().err
    assert "the service could not be prepared" in said
    assert "secret" in said


def test_it_ends_at_once_while_it_is_prepared():
    """What waits for that is told so, and not waited for."""
    compiled = threading.Event()
    with serving({"clinic": CLINIC}, warm=lambda: compiled.wait(30), wait=False) as client, ThreadPoolExecutor(3) as pool:
        asked = (("questions", {"targets": ["disease_0"]}), ("query", {"method": "auto"}), ("stream", {}))
        waiting = [pool.submit(client.post, f"/v1/models/clinic/{what}", body) for what, body in asked]
        time.sleep(0.5)
        began = time.monotonic()
        client.server.should_exit = True
        replies = [w.result(30) for w in waiting]
        assert time.monotonic() - began < 5
        compiled.set()
    for reply in replies[:2]:
        assert (reply.status, reply.headers["retry-after"]) == (503, "2")
        assert "ends before it was ready" in reply.error
    assert json.loads(replies[2].body.splitlines()[-1]) == {"stage": "error", "error": replies[0].error}


@pytest.fixture
def endless(monkeypatch):
    """Answers by sampling that go on until they are stopped; says how many began and how many were stopped."""
    tally = {"began": 0, "stopped": 0, "finished": 0}
    done = threading.Event()

    def answer(*_, progress=None, **__):
        if progress is None:  # priors
            return um.exact(CLINIC.net, {})
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


@pytest.mark.parametrize(
    ("what", "more", "answer"),
    [
        ("questions", {"targets": ["lung"]}, "unimarg.many.exact_marginals"),
        ("explain", {"target": "lung"}, "unimarg.query.Asked.by"),
    ],
)
def test_a_list_of_answers_ends_when_the_client_leaves(client, monkeypatch, what, more, answer):
    began, gone = [], threading.Event()
    once = pkgutil.resolve_name(answer)

    def slow(*given):
        began.append(given)
        return gone.wait(30) and once(*given)

    monkeypatch.setattr(answer, slow)
    before = client.service.metrics.left._value.get()
    connection = open_request(client, f"/v1/models/asia/{what}", {"evidence": {"dysp": "yes", "smoke": "no"}} | more)
    wait_for(lambda: len(began) == 1)
    connection.close()
    wait_for(lambda: client.service.metrics.left._value.get() == before + 1)
    gone.set()
    wait_for(lambda: client.service.sampling.busy == 0)
    assert len(began) == 1  # the first of several


def test_work_ends_when_the_client_has_left_before_the_first_line(client, endless):
    async def leave():
        response = app._Refinement(client.service, client.service.find("asia"), app.schemas.QueryBody(method="auto"), None)
        await response({"type": "http"}, left, slow)

    async def left():
        wait_for(lambda: endless["began"] == 1)
        return {"type": "http.disconnect"}

    async def slow(_):
        await asyncio.sleep(60)

    before = client.service.metrics.left._value.get()
    asyncio.run_coroutine_threadsafe(leave(), client.server.servers[0].get_loop()).result(30)
    wait_for(lambda: endless["stopped"] == 1)
    assert client.service.metrics.left._value.get() == before + 1


def test_when_the_queue_is_full_there_is_a_503(client, endless):
    """Two work, eight wait; one-shot questions are answered all the same."""
    waiting = [open_request(client, "/v1/models/clinic/query", {"method": "auto"}) for _ in range(10)]
    wait_for(lambda: client.service.sampling.busy == 10)
    for path in ("query", "stream"):
        refused = client.post(f"/v1/models/asia/{path}", {"method": "auto"})
        assert (refused.status, refused.headers["retry-after"]) == (503, "2")
        assert "no more fit" in refused.error
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


SLOW = """
import time
from unimarg.cli import run
from unimarg.service.served import Served
Served.warm_up = lambda self, stop: time.sleep(30)
run()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_says_at_once_where_it_is_and_ends_at_once(number):
    with subprocess.Popen([sys.executable, "-c", SLOW, "serve", "asia", "--port", "0"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert re.fullmatch(r"asia at http://127\.0\.0\.1:\d+ \(Ctrl-C stops\); being prepared\n", process.stdout.readline())
        began = time.monotonic()
        process.send_signal(number)
        assert (process.wait(20), process.stdout.read()) == (0, "")
        assert time.monotonic() - began < 10


def test_the_command_serves_until_it_is_told_to_stop():
    command = [sys.executable, "-c", "from unimarg.cli import run; run()", "serve", "asia", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        port = int(re.findall(r"^asia at http://127\.0\.0\.1:(\d+) ", line)[0])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("POST", "/v1/models/asia/query", '{"evidence": {"dysp": "yes"}}', {"content-type": "application/json"})
        assert json.load(connection.getresponse())["marginals"]["lung"]["yes"] == pytest.approx(0.1028, abs=1e-4)
        connection.close()
        assert re.fullmatch(r"ready after \d+ s\n", process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
        assert (process.returncode, said) == (0, "")


DEMO = """
from models import random_model
from serving import clinic_like
from unimarg import demo
from unimarg.cli import run
demo.run = lambda: random_model(clinic_like())
run()
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
            (["asia", "--queue", "-1"], "limit 'queue'"),
            (["asia", "--port", port], "Address already in use"),
            (["asia", "--host", "no.such.host.invalid"], "cannot listen on no.such.host.invalid"),
        ):
            with pytest.raises(SystemExit) as e:
                main(["serve", *arguments])
            assert e.value.code == 2
            assert sentence in capsys.readouterr().err
