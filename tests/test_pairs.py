"""What noisy-ors with common parents say of each other: against enumeration where one of them knows something, and better than nothing."""

import time

import jax.numpy as jnp
import numpy as np
import pytest

import unimarg as um
from networks import enumerate_all
from test_propagation import as_states, logits
from unimarg import Network, NoisyOr, Variable
from unimarg.encoding import one_hot
from unimarg.evaluation import evidence_sets
from unimarg.evidence import Evidence
from unimarg.pairs import MOST, make_pairs
from unimarg.propagation import Propagation
from unimarg.tables import given


def two_children(seed: int, common: int, own: int = 2) -> Network:
    """f and s with causes in common and of their own."""
    rng = np.random.default_rng(seed)
    shared, of_f, of_s = ([f"{kind}{i}" for i in range(n)] for kind, n in (("d", common), ("a", own), ("b", own)))
    causes = [*shared, *of_f, *of_s]
    mechanisms = {name: [1 - p, p] for name, p in zip(causes, rng.uniform(0.02, 0.6, len(causes)), strict=True)}
    for name in "fs":
        mechanisms[name] = NoisyOr(rng.uniform(0.001, 0.1), rng.uniform(0.05, 0.95, common + own))
    return Network([Variable(n) for n in (*causes, "f", "s")], {"f": [*shared, *of_f], "s": [*of_s, *shared[::-1]]}, mechanisms)


def corrected(net: Network, states: np.ndarray, pairs: bool, likelihoods=None, rounds: int = 4) -> np.ndarray:
    return as_states(*logits(net, states, rounds, likelihoods, pairs))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("common", [2, 4])
@pytest.mark.parametrize("finding", [[0.0, 1.0], [1.0, 0.0], [0.2, 0.9], [1.0, 0.3]])
def test_one_finding_is_exact(seed, common, finding):
    """And without the correction it is not, unless f is absent."""
    net = two_children(seed, common)
    f, s = net.index["f"], net.index["s"]
    _, truth = enumerate_all(net, Evidence({}, {f: np.array(finding)}))
    with_pairs, without = (corrected(net, np.full((1, len(net)), -1), on, {f: finding})[0].reshape(-1, 2) for on in (True, False))
    assert with_pairs[s] == pytest.approx(truth[s], abs=2e-6)
    others = [i for i in range(len(net)) if i not in (f, s)]
    np.testing.assert_array_equal(with_pairs[others], without[others])
    assert (abs(without[s] - truth[s]).max() > 1e-5) == (finding != [1.0, 0.0])


def test_what_is_observed_stays():
    net = two_children(0, 3)
    states = um.sample(net, 6, seed=0).astype(int)
    beliefs = corrected(net, states, True).reshape(6, len(net), 2)
    np.testing.assert_allclose(beliefs, np.eye(2)[states], atol=1e-8)


def test_many_findings_come_closer():
    """The largest error of clinical cases against exact answers, in the mean."""
    net = um.medical(1, 100, 150, seed=5)
    evidence = evidence_sets(net, "clinical", 24, 5)
    truth = [um.exact(net, given(net, row)) for row in evidence]
    exact = np.stack([np.concatenate(t.probabilities) for t in truth])
    with_pairs, without = (abs(corrected(net, evidence, on, rounds=8) - exact).max(axis=1) for on in (True, False))
    assert with_pairs.mean() < 0.8 * without.mean()


def test_pairs_by_hand():
    """Three nodes; 0 and 1 have the parents 5 and 7 in common, 2 shares one of them only."""
    child, parent = np.array([0, 0, 0, 1, 1, 2, 2]), np.array([7, 5, 3, 5, 7, 7, 1])
    quiet = np.linspace(0.1, 0.7, 7)
    found = make_pairs(child, parent, quiet, set())
    assert found is not None
    assert sorted(zip(found.of.tolist(), found.by.tolist(), strict=True)) == [(0, 1), (1, 0)]
    arcs = {(s, f): set() for s, f in ((0, 1), (1, 0))}
    for pair, s, f, q, r in zip(found.pair, *found.arcs, *found.quiet, strict=True):
        assert parent[s] == parent[f]
        assert (q, r) == (pytest.approx(quiet[s]), pytest.approx(quiet[f]))
        arcs[found.of[pair], found.by[pair]].add((int(s), int(f)))
    assert arcs == {(0, 1): {(0, 4), (1, 3)}, (1, 0): {(4, 0), (3, 1)}}
    assert make_pairs(child, parent, quiet, {(0, 1), (1, 0)}) is None


def test_pairs_have_so_many_common_parents_in_all(monkeypatch):
    """Else networks whose noisy-ors share hundreds of parents would take twenty times as long."""
    net = um.medical(1, 30, 40, seed=3)
    every = Propagation(net, 2, True).pairs
    monkeypatch.setattr("unimarg.pairs.MOST_COMMON", 100)
    few = Propagation(net, 2, True).pairs
    assert every is not None
    assert few is not None
    assert 80 < len(few.pair) <= 100 < len(every.pair)
    assert {*zip(few.of, few.by, strict=True)} < {*zip(every.of, every.by, strict=True)}


def test_the_pairs_that_are_tied_most_are_kept(monkeypatch):
    net = um.medical(4, 10, 30, seed=2)
    every = Propagation(net, 2, True).pairs
    monkeypatch.setattr("unimarg.pairs.MOST", 5)
    few = Propagation(net, 2, True).pairs
    assert every is not None
    assert few is not None
    assert len(few.of) == 5 < len(every.of)

    def ties(pairs):
        loud = (1 - pairs.quiet[0]) * (1 - pairs.quiet[1])
        once, squares = (np.bincount(pairs.pair, x) for x in (loud, loud**2))
        return sorted(once**2 - squares)

    assert ties(few) == pytest.approx(ties(every)[-5:])


def test_a_child_is_no_pair_with_its_parent_and_others_have_none():
    variables = [Variable(n) for n in ("a", "b", "c", "d")]
    effects = {"c": NoisyOr(0.1, [0.5, 0.5]), "d": NoisyOr(0.1, [0.5, 0.5, 0.5])}
    net = Network(variables, {"c": ["a", "b"], "d": ["a", "b", "c"]}, {"a": [0.5, 0.5], "b": [0.5, 0.5], **effects})
    assert Propagation(net, 2, True).pairs is None
    assert Propagation(um.example("asia"), 2, True).pairs is None


def test_programs_with_and_without_are_told_apart():
    net = two_children(0, 2)
    assert Propagation(net, 2, True) == Propagation(two_children(0, 2), 2, True) != Propagation(net, 2)


def test_rare_nodes_leave_numbers():
    """Causes and effects that are all but impossible, and one finding after the other of them."""
    names = [f"d{i}" for i in range(3)]
    leak = 1e-9
    effects = {n: NoisyOr(leak, [0.999999, 0.5, 1e-9]) for n in ("f", "g", "s")}
    net = Network([Variable(n) for n in (*names, *effects)], dict.fromkeys(effects, names), {n: [1 - 1e-8, 1e-8] for n in names} | effects)
    states = np.full((3, 6), -1)
    states[0, 3], states[1, 3:5], states[2, :3] = 1, 1, [0, 0, 1]
    ragged, said = logits(net, states, 6, None, True)
    assert np.isfinite(said["marginal"]).all()
    known, values = jnp.asarray(states >= 0)[:, ragged.order], one_hot(jnp.asarray(states)[:, ragged.order], ragged)
    assert np.isfinite(Propagation(net, 6, True).logits(known, values, True)["message"]).all()


@pytest.mark.parametrize("evidence", [{"d0": 1}, {"d0": 1, "f": 1}, {"d0": 1, "d1": 1}, {"f": 1}, {}])
def test_causes_that_never_fail(evidence):
    """Contributions of 1, and a parent that is always there: plain propagation's answers, or better ones."""
    effects = {"f": NoisyOr(0.01, [1.0, 0.8, 0.5]), "s": NoisyOr(0.02, [1.0, 0.7, 1.0])}
    priors = {"d0": [0.7, 0.3], "d1": [0.6, 0.4], "d2": [0.0, 1.0]}
    net = Network([Variable(n) for n in (*priors, *effects)], {n: [*priors] for n in effects}, priors | effects)
    states = np.array([[evidence.get(n, -1) for n in net.names]])
    _, truth = enumerate_all(net, Evidence({net.index[n]: k for n, k in evidence.items()}, {}))
    with_pairs, without = (abs(corrected(net, states, on)[0] - np.concatenate(truth)).max() for on in (True, False))
    assert with_pairs <= without + 1e-6


def test_training_starts_from_numbers_where_causes_never_fail():
    effects, priors = {"f": NoisyOr(0.01, [1.0, 0.8]), "s": NoisyOr(0.02, [1.0, 0.7])}, {"a": [0.7, 0.3], "b": [0.6, 0.4]}
    net = Network([Variable(n) for n in ("a", "b", *effects)], {n: ["a", "b"] for n in effects}, priors | effects)
    model = um.train(net, "default", "2 steps", hidden=(4,), batch=64, student=0)
    assert np.isfinite(model.history["loss"])


def test_a_hub_with_many_children_is_soon_prepared():
    """Two causes of everything: millions of pairs, of which the best are kept."""
    count = 2500
    start = time.perf_counter()
    quiet = np.random.default_rng(0).uniform(0.1, 0.9, 2 * count)
    found = make_pairs(np.repeat(np.arange(count), 2), np.tile([0, 1], count), quiet, {(0, 1)})
    assert found is not None
    assert len(found.of) == MOST
    assert time.perf_counter() - start < 60
    assert (0, 1) not in zip(found.of.tolist(), found.by.tolist(), strict=True)
