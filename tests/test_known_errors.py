"""What is known of an error before anything is drawn: which answers cannot vary, and how far others can."""

import numpy as np
import pytest
from scipy.stats import kstest

import unimarg as um
from models import ASIA, ILL
from networks import random_network
from unimarg import Network, NoisyOr, Variable
from unimarg.conditionals import Query
from unimarg.counter import key_from_seed
from unimarg.estimates import ROUNDING, UNSEEN
from unimarg.evidence import parse_evidence
from unimarg.frame import frame_of
from unimarg.importance import first_sample
from unimarg.proposals.adaptive import adapt
from unimarg.proposals.lookahead import lookahead
from unimarg.walk import walk

ALARM = um.example("alarm")


def test_what_a_virtual_finding_rules_out_or_leaves_alone_has_no_error():
    found = um.infer(ASIA, {"smoke": [0.0, 0.5], "xray": "yes"}, method="prior", samples=8192, target_error=None)
    assert found["smoke"] == {"yes": 0.0, "no": 1.0}
    assert max(found.error("smoke").values()) <= 1e-6
    assert min(found.error("lung").values()) > 1e-5


def test_a_mean_that_findings_leave_constant_has_no_error():
    """P(c | a, b) does not depend on a where b is yes, and only as far as b may still be either where it is not known."""
    tables = {"a": [0.6, 0.4], "b": [0.5, 0.5], "c": [[[0.9, 0.1], [0.7, 0.3]], [[0.2, 0.8], [0.7, 0.3]]]}
    net = Network([Variable(v) for v in "abc"], {"c": ["a", "b"]}, tables)
    for certain in ("yes", [0.0, 1.0]):
        found = um.infer(net, {"b": certain}, method="prior", samples=4096, target_error=None)
        assert found["c"]["yes"] == pytest.approx(0.3, abs=1e-6)
        assert max(found.error("c").values()) <= 1e-6
    assert min(um.infer(net, {"b": "no"}, method="prior", samples=4096, target_error=None).error("c").values()) > 1e-4
    assert min(um.infer(net, {"b": [0.1, 1.0]}, method="prior", samples=4096, target_error=None).error("c").values()) > 1e-4


@pytest.mark.parametrize("rare", [1e-5, 1e-7, 1e-12])
@pytest.mark.parametrize("state", [0, 1])
def test_a_constant_answer_is_off_by_no_more_than_rounding(rare, state):
    row = [rare, 1 - rare] if state == 0 else [1 - rare, rare]
    tables = {"a": [0.6, 0.4], "b": [0.5, 0.5], "c": [[[0.9, 0.1], row], [[0.2, 0.8], row]]}
    net = Network([Variable(v) for v in "abc"], {"c": ["a", "b"]}, tables)
    found = um.infer(net, {"b": "yes"}, method="prior", samples=4096, target_error=None)
    p, error = (getattr(found, part)[2] for part in ("probabilities", "std_errors"))
    assert (np.abs(p - row) <= error).all()
    assert error.max() <= 1.1e-6


def plan(net, evidence, largest=None):
    query = Query.make(net, parse_evidence(net, evidence), tuple(range(len(net))))
    return lookahead(frame_of(net), query, **({} if largest is None else {"largest": largest}))


def weights_of(net, draft):
    return np.asarray(walk(frame_of(net).shape, draft.finish(), key_from_seed(1), first_sample(0), 1024)[1])


def test_what_was_not_averaged_is_known_to_be_the_posterior():
    given = {"HRBP": 2, "EXPCO2": 0, "BP": 0}
    assert plan(ALARM, given).ranges is not None
    assert plan(ALARM, given, largest=16).ranges is None


@pytest.mark.parametrize(("given", "known"), [({"effect": "yes"}, True), ({"effect": "no"}, True), ({"sign": "yes"}, False)])
def test_a_large_noisy_or_is_averaged_where_it_is_hidden(given, known):
    causes = [f"cause {j}" for j in range(12)]
    names = [*causes, "effect", "sign"]
    tables = {c: [0.9, 0.1] for c in causes} | {"effect": NoisyOr(0.01, [0.3] * 12), "sign": [[0.95, 0.05], [0.2, 0.8]]}
    net = Network([Variable(n) for n in names], {"effect": causes, "sign": ["effect"]}, tables)
    assert frame_of(net).large[12]
    draft = plan(net, given)
    assert (draft.ranges is not None) == known
    assert (np.ptp(weights_of(net, draft)) < 1e-4) == known


def test_a_refit_is_not_the_posterior_any_more(monkeypatch):
    monkeypatch.setattr("unimarg.proposals.adaptive.ROUND", 1024)
    draft = plan(ASIA, ILL)
    adapt(draft, 0)
    assert draft.ranges is not None  # one round, after which nothing was to be gained
    poor = plan(ALARM, {"HRBP": 2, "EXPCO2": 0, "BP": 0}, largest=4)
    poor.ranges = {}
    adapt(poor, 0)
    assert poor.ranges is None


@pytest.mark.parametrize("seed", range(8))
def test_where_weights_are_known_to_be_equal_they_are_and_errors_hold(seed):
    rng = np.random.default_rng(seed)
    net = random_network(rng, 9, zeros=0.2)
    states = um.sample(net, 1, seed=seed)[0]
    given: dict[str, object] = {net.names[i]: int(states[i]) for i in np.flatnonzero(rng.random(9) < 0.3)}
    given |= {net.names[i]: (rng.random(net.cards[i]) + 0.1).tolist() for i in np.flatnonzero(rng.random(9) < 0.2)}
    exact = um.exact(net, given)
    draft = plan(net, given)
    assert draft.ranges is not None
    np.testing.assert_allclose(weights_of(net, draft), exact.log_evidence, atol=1e-4)
    found = um.infer(net, given, method="lookahead", samples=8192, target_error=None, seed=seed)
    for p, q, e in zip(found.probabilities, exact.probabilities, found.std_errors, strict=True):
        assert (np.abs(p - q) <= 4.5 * e + 1e-12).all()


@pytest.mark.parametrize("samples", [100, 4096])
def test_a_constant_conditional_is_the_answer_also_where_the_state_was_not_drawn(samples):
    net = Network([Variable("a"), Variable("c")], {"c": ["a"]}, {"a": [1 - 2e-5, 2e-5], "c": [[0.9, 0.1], [0.4, 0.6]]})
    exact = um.exact(net, {"c": "yes"})["a"]["yes"]
    found = um.infer(net, {"c": "yes"}, ["a"], method="lookahead", samples=samples, target_error=None)
    assert found["a"]["yes"] == pytest.approx(exact, abs=1e-6)
    assert max(found.error("a").values()) <= 1.1e-6 + exact / samples**0.5  # sampled, it would be the root of exact / samples
    unaided = um.infer(net, {"c": "yes"}, ["a"], method="lookahead", samples=samples, target_error=None, structure=False)
    assert abs(unaided["a"]["yes"] - exact) < 4 * unaided.error("a")["yes"]


def test_a_rare_context_that_was_not_drawn_leaves_the_error_of_some():
    """Of 1,024 samples one should have a = yes, on which b depends: without one the variance of b is 0, and nothing is known."""
    tables = {"a": [0.999, 0.001], "b": [[0.98, 0.02], [0.05, 0.95]], "c": [[0.9, 0.1], [0.9, 0.1]], "d": [[0.6, 0.4], [0.3, 0.7]]}
    net = Network([Variable(v) for v in "abcd"], {"b": ["a"], "c": ["a"], "d": ["b"]}, tables)
    exact = um.exact(net, {"d": "yes"})["b"]["yes"]
    spread = abs(np.subtract(*(um.exact(net, {"d": "yes", "a": a})["b"]["yes"] for a in ("yes", "no"))))
    found = [um.infer(net, {"d": "yes"}, ["b"], method="lookahead", samples=1024, target_error=None, seed=seed) for seed in range(20)]
    error = np.array([f.error("b")["yes"] for f in found])
    assert error.min() == pytest.approx(UNSEEN * spread / 1024, rel=1e-3)
    assert (error > 1.05 * error.min()).any()  # where there was one
    assert (np.abs([f["b"]["yes"] - exact for f in found]) < 4 * error).all()


def test_many_states_that_are_ruled_out_take_nothing_from_the_one_that_is_left():
    cause = np.zeros((1000, 2))
    cause[0, 1], cause[1:, 0] = 1, 1
    net = Network([Variable("a", tuple(map(str, range(1000)))), Variable("b")], {"b": ["a"]}, {"a": np.full(1000, 1e-3), "b": cause})
    found = um.infer(net, {"b": "yes"}, ["a"], method="lookahead", samples=8192, target_error=None)
    assert found["a"]["0"] == pytest.approx(1, abs=1e-6)


def test_what_is_drawn_first_from_an_exact_plan_is_known():
    found = um.infer(ALARM, {"HRBP": 2}, method="lookahead", samples=4096, target_error=None)
    exact = um.exact(ALARM, {"HRBP": 2})
    known = [v.name for v, e in zip(found.variables, found.std_errors, strict=True) if 0 < e.max() <= ROUNDING]
    assert "HYPOVOLEMIA" in known
    for name in known:
        for state, p in exact[name].items():
            assert found[name][state] == pytest.approx(p, abs=3 * ROUNDING)


@pytest.mark.parametrize(
    ("net", "evidence", "name"), [(ASIA, ILL, "bronc"), (ALARM, {"HRBP": 2, "EXPCO2": 0}, "CO")], ids=["asia", "alarm"]
)
def test_scores_over_seeds_are_standard_normal(net, evidence, name):
    exact = um.exact(net, evidence)[name]
    state = min(exact, key=lambda s: abs(exact[s] - 0.5))
    z = []
    for seed in range(150):
        found = um.infer(net, evidence, [name], method="lookahead", samples=8192, target_error=None, seed=seed)
        z.append((found[name][state] - exact[state]) / found.error(name)[state])
    assert kstest(z, "norm").pvalue > 1e-3
