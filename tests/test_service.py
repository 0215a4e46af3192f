"""Every address of the service answers as the library does."""

import asyncio
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import unimarg as um
from models import ASIA, random_model
from serving import clinic_like, serving
from unimarg import query
from unimarg.evidence import parse_evidence
from unimarg.masking import observable
from unimarg.service import served
from unimarg.service.batching import Batcher
from unimarg.service.metrics import Metrics
from unimarg.service.served import Served

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
        "prior": pytest.approx(um.exact(CLINIC.net)["disease_1"], abs=1e-7),
        "observable": True,
    }
    asia = {v["name"]: v["prior"] for v in client.get("/v1/models/asia").json["variables"]}
    assert asia["lung"] == pytest.approx(um.exact(ASIA)["lung"], abs=1e-7)


def test_priors_are_those_of_the_training_where_exact_ones_take_long(monkeypatch):
    monkeypatch.setattr(query, "EXACT_ENTRIES", 0)
    assert Served("clinic", CLINIC).priors is CLINIC.priors


def test_what_training_never_showed_is_told():
    model = random_model(ASIA, mask=observable(ASIA, ["dysp", "smoke"]))
    for source, names in ((model, ["smoke", "dysp"]), (ASIA, list(ASIA.names))):
        assert [v["name"] for v in Served("asia", source).describe()["variables"] if v["observable"]] == names


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


def test_an_option_without_effect_is_refused(client):
    for body in ({"samples": 1000}, {"method": "um", "target_error": 0.1}, {"method": "exact", "seconds": 1.0}):
        reply = client.post("/v1/models/clinic/query", {"evidence": CASE} | body)
        assert reply.status == 422
        assert "is for methods that draw samples" in reply.error
    assert client.post("/v1/models/clinic/query", {"evidence": CASE, "samples": None, "seed": 0, "target_error": 0.005}).status == 200
    assert "draws none" in client.post("/v1/models/clinic/stream", {"evidence": CASE, "method": "exact", "samples": 9}).error


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


def test_numbers_that_there_are_none_of_are_null(client, monkeypatch):
    failed = um.Posterior.failed(ASIA.variables, "auto", "no sample was compatible", 0.1)
    monkeypatch.setattr(served, "answer", lambda *_, **__: failed)
    given = client.post("/v1/models/asia/query", {"method": "auto"}).json
    assert (given["status"], given["log_evidence"], given["marginals"]["lung"]) == ("failed", None, {"yes": None, "no": None})


def test_a_stream_tells_of_trouble(client, monkeypatch):
    def fail(*_, **__):
        raise um.SamplingError("no draw was compatible", 5, 0.0)

    monkeypatch.setattr(served, "answer", fail)
    first, error = lines(client, "/v1/models/clinic/stream", {"evidence": CASE})
    assert (first["stage"], error) == ("first", {"stage": "error", "error": "no draw was compatible"})
    assert "fver" in client.post("/v1/models/clinic/stream", {"evidence": {"fver": 1}}).error


def test_a_batch_answers_row_by_row(client, monkeypatch):
    cases = [CASE, {"fever": "hot"}, {}, *[{"risk_0": "yes"}] * 130]
    given = client.post("/v1/models/clinic/batch", {"evidence": cases}).json["answers"]
    assert len(given) == 133
    assert close(given[0]["marginals"], CLINIC.query(CASE, method="um"), 1e-5)
    assert given[1] == {"error": "'fever' has no state 'hot'; allowed: 'none', 'low', 'high'"}
    assert close(given[132]["marginals"], CLINIC.query({"risk_0": "yes"}, method="um"), 1e-5)
    only = client.post("/v1/models/clinic/batch", {"evidence": cases[:1], "targets": ["fever"]}).json["answers"]
    assert list(only[0]["marginals"]) == ["fever"]
    assert only[0]["message"] == "one forward pass, without an error of its own"
    monkeypatch.setitem(CLINIC.__dict__, "observable", np.array([name != "fever" for name in CLINIC.net.names]))
    seen, unseen = client.post("/v1/models/clinic/batch", {"evidence": [{}, {"fever": "high"}]}).json["answers"]
    assert "never showed" not in seen["message"]
    assert "training never showed a finding on 'fever'" in unseen["message"]


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


def test_without_a_model_questions_are_answered_by_samples_where_exact_takes_long(client, monkeypatch):
    given = {"evidence": {"dysp": "yes"}}
    exactly, right = (
        client.post(f"/v1/models/asia/{what}", given | {target: ["lung"] if target == "targets" else "lung"}).json
        for what, target in (("questions", "targets"), ("explain", "target"))
    )
    assert (exactly["method"], right["method"]) == ("exact", "exact")
    monkeypatch.setattr(query, "EXACT_ENTRIES", 0)
    asked = client.post("/v1/models/asia/questions", given | {"targets": ["lung"]}).json
    assert asked["method"] == "lookahead"
    gains = {row["variable"]: row["gain"] for row in exactly["questions"]}
    assert all(abs(row["gain"] - gains[row["variable"]]) < 5 * row["gain_error"] + 1e-4 for row in asked["questions"])
    explained = client.post("/v1/models/asia/explain", given | {"target": "lung", "state": right["state"]}).json
    assert explained["method"] == "lookahead"
    assert abs(explained["probability"] - right["probability"]) < 5 * explained["std_error"]


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
    names = set(described["components"]["schemas"])  # other things than the library's of the same names
    assert {"QueryBody", "QuestionRow"} <= names
    assert not names & {"Asked", "Query", "Batch", "Explanation", "Answers"}
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


def test_the_default_method_is_described(client):
    """It is not that of the library."""
    method = client.get("/openapi.json").json["components"]["schemas"]["QueryBody"]["properties"]["method"]
    assert "the default here if there is one, where the library and the command line have auto" in method["description"]
    assert client.post("/v1/models/clinic/query", {"evidence": CASE}).json["method"] == "um"
    assert client.post("/v1/models/asia/query", {"evidence": {"dysp": "yes"}}).json["method"] == "exact"
