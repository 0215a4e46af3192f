"""Which finding moved a marginal: against answers without it, one by one."""

import numpy as np
import pytest

import unimarg as um
from models import ASIA, random_model
from unimarg.passes import Passes

EVIDENCE = {"dysp": "yes", "smoke": "no", "xray": {"yes": 0.9, "no": 0.2}}


def logit(p: float) -> float:
    return np.log(p / (1 - p))


def test_each_finding_against_the_answer_without_it():
    table = um.explain(ASIA, EVIDENCE, "lung", "yes")
    now = um.exact(ASIA, EVIDENCE)["lung"]["yes"]
    assert set(table["variable"]) == set(EVIDENCE)
    for row in table.itertuples():
        without = um.exact(ASIA, {n: v for n, v in EVIDENCE.items() if n != row.variable})["lung"]["yes"]
        assert row.without == pytest.approx(without)
        assert row.shift == pytest.approx(now - without)
        assert row.log_odds == pytest.approx(logit(now) - logit(without))
    assert table["log_odds"].abs().is_monotonic_decreasing
    assert table.set_index("variable")["finding"].to_dict() == {"dysp": "yes", "smoke": "no", "xray": "yes: 0.9, no: 0.2"}
    prior = um.exact(ASIA)["lung"]["yes"]
    known = {"target": "lung", "state": "yes", "probability": now, "prior": prior, "method": "exact", "std_error": 0}
    assert table.attrs == pytest.approx(known)
    assert "lung = yes" in str(table)


def test_samples_where_exact_inference_is_out_of_reach(monkeypatch):
    exact = um.explain(ASIA, EVIDENCE, "lung", "yes").set_index("variable")
    monkeypatch.setattr("unimarg.query.EXACT_ENTRIES", -1)
    table = um.explain(ASIA, EVIDENCE, "lung", "yes", seed=1).set_index("variable")
    error = table.attrs["std_error"]
    assert (table.attrs["method"], error > 0) == ("lookahead", True)
    assert 0 < (table["without"] - exact["without"]).abs().max() < 4.5 * error
    assert abs(table.attrs["probability"] - exact.attrs["probability"]) < 4.5 * error
    by_memory = um.explain(ASIA, EVIDENCE, "lung", "yes", memory=2**20)
    assert (by_memory.attrs["method"], by_memory["shift"].iloc[0]) == ("exact", pytest.approx(exact["shift"].iloc[0]))


def test_samples_that_say_little_are_taken_as_they_are(monkeypatch):
    monkeypatch.setattr("unimarg.query.EXACT_ENTRIES", -1)
    monkeypatch.setattr("unimarg.query.DEFAULT_SAMPLES", 20)
    table = um.explain(ASIA, {"smoke": "no"}, "bronc", "yes")
    exact = um.exact(ASIA, {"smoke": "no"})["bronc"]["yes"]
    assert table.attrs["std_error"] > 0.1 * exact * (1 - exact)  # not what the odds would need
    assert abs(table.attrs["probability"] - exact) < 4.5 * table.attrs["std_error"]


def test_a_model_does_it_in_one_batch(monkeypatch):
    model = random_model(ASIA)
    calls = []
    one_pass = Passes.marginals
    monkeypatch.setattr(Passes, "marginals", lambda self, known, *rest: calls.append(len(known)) or one_pass(self, known, *rest))
    table = model.explain(EVIDENCE, "lung", "yes")
    assert calls == [5]  # all findings, none, and three times all but one
    now = model.query(EVIDENCE, method="um")["lung"]["yes"]
    for name, without, shift in zip(table["variable"], table["without"], table["shift"], strict=True):
        expected = model.query({n: v for n, v in EVIDENCE.items() if n != name}, method="um")["lung"]["yes"]
        assert without == pytest.approx(expected, abs=1e-6)
        assert shift == pytest.approx(now - expected, abs=1e-6)


def test_the_state_explained_is_the_one_that_rose():
    assert um.explain(ASIA, {"smoke": "no"}, "lung").attrs["state"] == "no"
    assert um.explain(ASIA, {"smoke": "yes"}, "lung").attrs["state"] == "yes"


def test_what_is_certain():
    """lung = yes makes either certain; smoke then has nothing to add."""
    table = um.explain(ASIA, {"lung": "yes", "smoke": "no"}, "either").set_index("variable")
    assert table.loc["lung", "log_odds"] == np.inf
    assert table.loc["smoke", "log_odds"] == 0


def test_no_evidence_no_rows():
    assert len(um.explain(ASIA, {}, "lung")) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (({"lung": "yes"}, "lung"), "'lung' is itself a finding"),
        (({"dysp": "yes"}, "lunge"), "did you mean 'lung'"),
        (({"dysp": "yes"}, "lung", "maybe"), "'lung' has no state 'maybe'"),
        (({"lung": "yes", "either": "no"}, "dysp"), "impossible"),
    ],
)
def test_what_is_refused(arguments, message):
    for ask in (lambda *a: um.explain(ASIA, *a), random_model(ASIA).explain):
        with pytest.raises(um.UnimargError, match=message):
            ask(*arguments)
