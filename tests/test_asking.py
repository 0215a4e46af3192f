"""What may be asked: evidence of every kind, several sets at once, and misuse."""

import math
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest

import unimarg as um
from models import ASIA, ILL, METHODS, random_model
from unimarg import Network, NoisyOr, Variable
from unimarg.errors import EvidenceError, ImpossibleEvidenceError, UsageError
from unimarg.query import DRAW_NONE, Asked, Options

MODEL = random_model(ASIA, heads=("marginal", "message"))


@pytest.mark.parametrize("method", METHODS)
def test_evidence_on_every_node(method):
    states = dict.fromkeys(ASIA.names, 1)
    found = MODEL.query(states, method=method, samples=1000)
    exact = float(ASIA.log_probability(np.ones((1, len(ASIA)), dtype=int))[0])
    assert found.status == "ok"
    assert abs(found.log_evidence - exact) < 5 * found.log_evidence_error < 1e-5  # that of rounding
    for p, e in zip(found.probabilities, found.std_errors, strict=True):
        assert (p.tolist(), e.tolist()) == ([0.0, 1.0], [0.0, 0.0])


def test_impossible_evidence_is_an_error_where_proven_and_failed_where_not():
    for method in ["auto", *METHODS]:
        with pytest.raises(ImpossibleEvidenceError, match="impossible"):
            MODEL.query({"either": "no", "lung": "yes"}, method=method)
    # b is a, and c says that they differ: every state is possible by itself
    copy, differ = np.eye(2), np.array([[[1, 0], [0, 1]], [[0, 1], [1, 0]]], dtype=float)
    net = Network([Variable(v) for v in "abc"], {"b": ["a"], "c": ["a", "b"]}, {"a": [0.5, 0.5], "b": copy, "c": differ})
    found = um.infer(net, {"c": "yes"}, method="prior", samples=5000)
    assert (found.status, found.message) == ("failed", "no sample of 5000 was compatible with the evidence")
    assert found.log_evidence == -math.inf
    assert np.isnan(found.probabilities[0]).all()


def test_auto_is_exact_for_noisy_ors_of_many_independent_causes():
    """A table of one finding alone would have 2^165 entries; with causes of causes, or too many findings, it is sampled."""
    rng = np.random.default_rng(0)
    causes = [f"d{i}" for i in range(165)]
    mechanisms = {d: [0.98, 0.02] for d in causes} | {s: NoisyOr(0.01, rng.uniform(0.1, 0.9, 165)) for s in "st"}
    net = Network([Variable(n) for n in (*causes, "s", "t")], dict.fromkeys("st", causes), mechanisms)
    found, other = um.infer(net, {"s": "yes"}, ["d0", "t"]), um.exact(net, {"s": "yes"}, ["d0", "t"])
    assert (found.method, found.log_evidence) == ("exact", other.log_evidence)
    for evidence, targets in (({}, ["s"]), ({"s": "no"}, ["d0"]), ({"s": [0.5, 0.6]}, None)):
        assert um.infer(net, evidence, targets).method == "exact"
    asked = Asked(net, None, {"s": "yes", "t": "yes"}, None, Options())
    assert asked.small()
    with pytest.MonkeyPatch.context() as m:
        m.setattr("unimarg.query.EXACT_SECONDS", 1e-9)
        assert not asked.small()
    above = Network([*net.variables, Variable("r")], {**net_parents(net), "d0": ["r"], "d1": ["r"]}, mechanisms | ABOVE)
    assert not Asked(above, None, {"s": "yes", "t": "yes"}, None, Options()).small()


ABOVE = {"r": [0.5, 0.5], "d0": [[0.9, 0.1], [0.2, 0.8]], "d1": [[0.9, 0.1], [0.2, 0.8]]}


def net_parents(net):
    return {name: [net.names[p] for p in pa] for name, pa in zip(net.names, net.parents, strict=True)}


def test_where_samples_do_not_do_auto_is_exact_after_all(monkeypatch):
    monkeypatch.setattr("unimarg.query.EXACT_ENTRIES", 1)  # asia has more
    monkeypatch.setattr("unimarg.query.DEFAULT_SAMPLES", 300)  # below what is ok, whatever they are worth
    found = um.infer(ASIA, ILL)
    assert (found.method, found.status) == ("exact", "ok")
    assert found.message.startswith("auto tried lookahead")
    assert found.message.endswith("then exact")
    for p, q in zip(found.probabilities, um.exact(ASIA, ILL).probabilities, strict=True):
        np.testing.assert_allclose(p, q, atol=1e-12)
    assert um.infer(ASIA, ILL, seconds=100).method == "lookahead"  # exact inference does not stop in time
    assert um.infer(ASIA, ILL, samples=300).method == "lookahead"  # nor is it what was asked for
    with monkeypatch.context() as m:
        m.setattr("unimarg.query.Asked._exact_at_once", Mock(side_effect=um.TooExpensiveError("no", 1e30)))
        assert um.infer(ASIA, ILL).method == "lookahead"
    monkeypatch.setattr("unimarg.query.LAST_RESORT", 1)
    assert um.infer(ASIA, ILL).status == "low_ess"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"samples": 0}, "the number of samples must be a whole number from 1"),
        ({"samples": 2.5}, "the number of samples must be a whole number from 1"),
        ({"target_error": 0}, "target_error must be a number above 0, not 0"),
        ({"target_error": math.nan}, "target_error must be a number above 0, not nan"),
        ({"seconds": -1}, "seconds must be a number above 0, not -1"),
        ({"seed": -1}, "a seed must be a whole number from 0"),
        ({"method": "hybrid", "beta": 1.5}, "beta must lie between 0 and 1, not 1.5"),
        ({"method": "hybrid", "beta": math.nan}, "beta must lie between 0 and 1, not nan"),
        ({"method": "hybrid", "beta": [0.1, 0.2]}, r"beta must be a number or one for each of the 8 variables, not an array \[2\]"),
        ({"method": "hybrid", "beta": "much"}, "beta must be a number, one for each variable, a function, or 'fit', not 'much'"),
        ({"method": "looka"}, "there is no method 'looka'; did you mean 'lookahead'"),
        ({"sample": 5}, "there is no option 'sample'; did you mean 'samples'"),
        ({"targets": "lung"}, "targets must be a list of names"),
        ({"targets": ["lungs"]}, "there is no variable 'lungs'; did you mean 'lung'"),
        ({"targets": 5}, "targets must be a list of names, not 5"),
        ({"targets": [["lung"]]}, r"there is no variable \['lung'\]"),
        ({"structure": "no"}, "structure must be True or False, not 'no'"),
        ({"beta": 0.3}, "beta is for the method 'hybrid', and this is 'prior'"),
    ],
)
def test_misuse_is_a_sentence(options, sentence):
    with pytest.raises(UsageError, match=sentence):
        MODEL.query(ILL, **({"method": "prior"} | options))


@pytest.mark.parametrize("method", ["exact", "um"])
@pytest.mark.parametrize(
    "option", [{"samples": 10}, {"samples": np.array([1, 2])}, {"seconds": 1.0}, {"target_error": 0.1}, {"structure": False}]
)
def test_an_option_without_effect_is_refused(method, option):
    (name,) = option
    with pytest.raises(UsageError, match=f"{name} is for methods that draw samples, and '{method}' draws none"):
        MODEL.query(ILL, method=method, **option)
    if np.isscalar(option[name]):
        assert MODEL.query(ILL, ["lung"], method="auto", **option).method == "exact"  # which might have drawn some
    defaults = {"samples": None, "target_error": 0.005, "seconds": None, "beta": None, "structure": True}
    assert MODEL.query(ILL, ["lung"], method=method, **defaults, seed=3).status == "ok"  # which say nothing, whoever wrote them out


def test_methods_that_need_a_model_say_so():
    for method in ("independent", "hybrid", "message", "sequential", "um"):
        with pytest.raises(UsageError, match=f"the method '{method}' needs a trained model"):
            um.infer(ASIA, ILL, method=method)
    with pytest.raises(UsageError, match="no message head"):
        random_model(ASIA).query(ILL, method="message")
    with pytest.raises(UsageError, match="sequential needs a network of one hidden layer or a student"):
        random_model(ASIA, hidden=(16, 16)).query(ILL, method="sequential")


@pytest.mark.parametrize(
    ("evidence", "sentence"),
    [
        ({"lung": [0, 0]}, "is zero for every state"),
        ({"lung": [math.nan, 1]}, "must be finite"),
        ({"lung": [-1, 1]}, "not negative"),
        ({"lungs": "yes"}, "did you mean 'lung'"),
        (5, "evidence must be a mapping"),
        ([5], "evidence must be a mapping"),
        ("lung=yes", "^evidence must be a mapping from variable to state, not str"),
        (pd.Series({"dysp": "yes", "lung": None}), r"^evidence must be .*not Series; .*row\.dropna\(\)\.to_dict\(\)"),
        (pd.DataFrame({"dysp": ["yes", "maybe"]}), "^row 1: 'dysp' has no state 'maybe'"),
    ],
)
def test_bad_evidence_is_a_sentence(evidence, sentence):
    with pytest.raises(EvidenceError, match=sentence):
        um.infer(ASIA, evidence, method="prior")


@pytest.mark.parametrize("method", ["exact", "auto", "prior", "um"])
def test_names_may_come_from_a_generator(method):
    found = MODEL.query([ILL, {}], (name for name in ("lung", "tub")), method)
    assert [list(f) for f in found] == [["lung", "tub"]] * 2
    assert list(MODEL.query(ILL, (name for name in ("lung",)), method)) == ["lung"]


def test_several_evidence_sets_are_answered_as_one_by_one():
    sets = [{}, ILL, {"either": "yes"}]
    together = um.infer(ASIA, sets, method="prior", samples=8192)
    assert isinstance(together, list)
    for evidence, found in zip(sets, together, strict=True):
        alone = um.infer(ASIA, evidence, method="prior", samples=8192)
        np.testing.assert_array_equal(np.concatenate(found.probabilities), np.concatenate(alone.probabilities))
    assert um.infer(ASIA, [], method="prior") == []


@pytest.mark.parametrize("method", ["auto", "exact", "um"])
def test_a_table_is_a_list_of_evidence_sets(method):
    """An empty cell is unobserved, a state may be given by its number."""
    rows = pd.DataFrame(
        {"dysp": ["yes", None, "no"], "smoke": [1, float("nan"), 0], "either": [None, "no", None], "lung": [None, "yes", None]}
    )
    sets = [{"dysp": "yes", "smoke": "no"}, {"either": "no", "lung": "yes"}, {"dysp": "no", "smoke": "yes"}]
    found = MODEL.query(rows, ["tub", "lung"], method) if method == "um" else um.infer(ASIA, rows, ["tub", "lung"], method)
    assert [p.status for p in found] == ["ok", "failed", "ok"]
    assert "impossible" in found[1].message
    for evidence, post in ((sets[0], found[0]), (sets[2], found[2])):
        truth = MODEL.query(evidence, ["tub", "lung"], "um") if method == "um" else um.exact(ASIA, evidence, ["tub", "lung"])
        assert {name: post[name] for name in post} == {name: pytest.approx(truth[name], abs=1e-6) for name in ("tub", "lung")}
    assert um.infer(ASIA, rows[:0]) == []


@pytest.mark.parametrize("method", ["auto", "exact", "prior", "lookahead", "um"])
def test_of_several_sets_the_impossible_one_fails_alone(method):
    sets = [ILL, {"either": "no", "lung": "yes"}, {"either": "yes"}]
    good, impossible, other = MODEL.query(sets, ["lung"], method=method, **({} if method in DRAW_NONE else {"target_error": 0.02}))
    assert (good.status, impossible.status, other.status) == ("ok", "failed", "ok")
    assert "impossible" in impossible.message
    assert np.isnan(impossible.probabilities[0]).all()
    assert impossible.ess == 0
    with pytest.raises(ImpossibleEvidenceError, match="impossible"):
        MODEL.query(sets[1], ["lung"], method=method)
    with pytest.raises(EvidenceError, match=r"evidence set 2: .*did you mean 'lung'"):
        MODEL.query([{}, ILL, {"lungs": "yes"}], method=method)
