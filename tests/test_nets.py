"""Points that fill space: what every net promises, what shifts make of it, and what it gains."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chi2, kstest

import unimarg as um
from models import ASIA
from unimarg.counter import key_from_seed, threefry
from unimarg.frame import frame_of
from unimarg.importance import first_sample
from unimarg.nets import BITS, CANDIDATES, LEADING, NET, Numbers, candidates, choose, columns, omega
from unimarg.query import Asked, Options

ALARM = um.example("alarm")


def drawn(n, number, candidate=5, seed=0, first=0, leading=LEADING):
    made = Numbers.make(key_from_seed(seed), first_sample(first), n, leading)
    return [np.asarray(w) for w in made.words(jnp.int32(number), jnp.asarray(columns()[candidate]))]


def test_every_candidate_has_each_point_once():
    assert candidates().shape == (CANDIDATES, NET)
    assert (np.sort(candidates(), axis=1) == np.arange(NET)).all()
    assert len(np.unique(candidates(), axis=0)) > 0.99 * CANDIDATES


def test_the_columns_make_the_candidates():
    made = np.zeros((CANDIDATES, NET), dtype=np.uint32)
    for k in range(BITS):
        made ^= ((np.arange(NET) >> k) & 1).astype(np.uint32) * columns()[:, k, None]
    np.testing.assert_array_equal(made >> 24, candidates())


@pytest.mark.parametrize("first", [0, 7 * NET, 1 << 40])
def test_each_net_covers_the_unit_interval_evenly(first):
    for number in (0, 3, 1000):
        high, _ = drawn(8 * NET, number, candidate=number, first=first)
        assert (np.sort((high >> 24).reshape(8, NET), axis=1) == np.arange(NET)).all()


def test_a_net_is_the_candidate_shifted():
    high, _ = drawn(4 * NET, 9, candidate=77)
    shift = (high >> 24).reshape(4, NET) ^ candidates()[77]
    assert (shift == shift[:, :1]).all()
    assert len(np.unique(shift[:, 0])) > 1


def test_numbers_do_not_depend_on_where_a_chunk_begins():
    whole = drawn(2048, 4)
    for first, n in ((0, 100), (512, 1000), (100, 700)):
        for part, all_of_it in zip(drawn(n, 4, first=first), whole, strict=True):
            np.testing.assert_array_equal(part, all_of_it[first : first + n])


def test_without_nets_numbers_are_those_of_the_counter():
    samples = jnp.arange(1000, dtype=jnp.uint32)
    for found, expected in zip(drawn(1000, 4, leading=np.uint32(0)), threefry(key_from_seed(0), samples, jnp.uint32(4)), strict=True):
        np.testing.assert_array_equal(found, np.asarray(expected))


def test_a_sample_of_a_net_is_uniform_and_nets_are_independent():
    nets, cells = 1 << 14, 16
    for place in (0, 1, 200):
        one, other = (drawn(nets * NET, number)[0][place::NET] for number in (2, 3))
        assert kstest(one / 2.0**32, "uniform").pvalue > 1e-3
        rows = one >> 28, other >> 28, np.roll(one, 1) >> 28
        for a, b in ((rows[0], rows[1]), (rows[0], rows[2])):  # two nodes, and a node in two nets
            counts = np.bincount((a * cells + b).astype(int), minlength=cells**2)
            statistic = ((counts - nets / cells**2) ** 2).sum() / (nets / cells**2)
            assert 1e-3 < chi2.sf(statistic, cells**2 - 1) < 1 - 1e-3


def test_the_shifts_of_many_nodes_are_independent():
    """Of all pairs of 64 nodes: the first bit of their shifts agrees in about half of the nets."""
    nets = 1 << 12
    bits = np.stack([(drawn(nets * NET, number)[0][::NET] >> 31) for number in range(64)]) * 2.0 - 1
    agree = (bits @ bits.T)[np.triu_indices(64, 1)] / np.sqrt(nets)
    assert np.abs(agree).max() < 5
    assert kstest(agree, "norm").pvalue > 1e-3


def merit(i, j):
    """What two nodes' points leave of an error, relative to independent ones: the mean of the product of omega over the points."""
    return float((omega()[i] * omega()[j]).mean()) * NET


def test_neighbours_get_points_that_fit_together():
    points = frame_of(ALARM).points
    arcs = [(p, c) for c, pa in enumerate(ALARM.parents) for p in pa]
    chosen = np.mean([merit(points[a], points[b]) for a, b in arcs])
    rng = np.random.default_rng(0)
    at_random = np.mean([merit(*rng.choice(CANDIDATES, 2, replace=False)) for _ in range(500)])
    assert chosen < 0.3 * at_random


def test_points_are_chosen_for_any_graph():
    assert choose([0], [()]).shape == (1,)
    star = choose(range(300), [range(1, 300), *[(0,)] * 299])
    assert len({*star.tolist()}) > 100
    assert (choose([2, 1, 0], [()] * 3) >= 0).all()


def squared_errors(net, evidence, nets, samples, seeds=24):
    exact, found, told = um.exact(net, evidence), [], []
    for seed in range(seeds):
        asked = Asked(net, None, evidence, None, Options(samples=samples, target_error=None, seed=seed), nets=nets)
        answer = asked.by("lookahead")
        found.append([((p - q) ** 2).sum() for p, q in zip(answer.probabilities, exact.probabilities, strict=True)])
        told.append([(e**2).sum() for e in answer.std_errors])
    return np.sum(found) / seeds, np.sum(told) / seeds


@pytest.mark.parametrize(("net", "evidence"), [(ASIA, {"dysp": "yes"}), (ALARM, {"HRBP": 2, "EXPCO2": 0})], ids=["asia", "alarm"])
def test_errors_are_lower_than_those_of_independent_samples_and_so_are_those_told(net, evidence):
    even, apart = (squared_errors(net, evidence, nets, 10240) for nets in (True, False))
    assert even[0] < apart[0] / 3
    assert even[1] < apart[1] / 3
    assert 0.5 < even[0] / even[1] < 1.5


@pytest.mark.parametrize("samples", [5000, 10_000, 10_240])
def test_the_error_of_the_evidence_holds_whether_or_not_the_last_net_is_whole(samples):
    exact = um.exact(ASIA, {"dysp": "yes"}).log_evidence
    found = [um.infer(ASIA, {"dysp": "yes"}, method="prior", samples=samples, target_error=None, seed=seed) for seed in range(150)]
    assert min(f.log_evidence_error for f in found) > 0
    assert kstest([(f.log_evidence - exact) / f.log_evidence_error for f in found], "norm").pvalue > 1e-3


def test_a_weak_finding_leaves_an_error_of_the_evidence():
    """Weights differ by a hundredth, their sums over nets by a hundredth of that."""
    net = um.Network([um.Variable("a"), um.Variable("b")], {"b": ["a"]}, {"a": [0.7, 0.3], "b": [[0.5, 0.5], [0.485, 0.515]]})
    exact = um.exact(net, {"b": "yes"}).log_evidence
    found = [um.infer(net, {"b": "yes"}, method="prior", samples=10_240, target_error=None, seed=seed) for seed in range(60)]
    z = [(f.log_evidence - exact) / f.log_evidence_error for f in found]
    assert min(f.log_evidence_error for f in found) > 1e-6
    assert np.abs(z).max() < 4.5
    assert np.std(z) > 0.3


def test_equal_weights_leave_none():
    found = um.infer(ALARM, {"HRBP": 2, "EXPCO2": 0}, method="lookahead", samples=20_000, target_error=None)
    assert found.ess == pytest.approx(20_000, rel=1e-6)
    assert found.log_evidence_error < 2e-6


def parities(coins, length):
    """A chain of sums modulo two, each of the one before and one of some fair coins in turn."""
    names = [f"c{i}" for i in range(coins)] + [f"y{i}" for i in range(length)]
    parents = {f"y{i}": [f"y{i - 1}" if i else "c0", f"c{(i + 1) % coins}"] for i in range(length)}
    odd = np.array([[[0.98, 0.02], [0.02, 0.98]], [[0.02, 0.98], [0.98, 0.02]]])
    tables = {name: [0.5, 0.5] if name.startswith("c") else odd for name in names}
    return um.Network([um.Variable(name) for name in names], parents, tables)


@pytest.mark.parametrize("samples", [2048, 4095, 4096, 10_240])
def test_errors_hold_where_the_points_fit_together_badly(samples):
    """Of so many parities some are all but constant in each net. Nets are then worse than independent samples; few of them are not used."""
    net = parities(40, 60)
    z = []
    for seed in range(10):
        found = um.infer(net, {}, method="prior", samples=samples, target_error=None, seed=seed)
        z += [(found[f"y{i}"]["yes"] - 0.5) / found.error(f"y{i}")["yes"] for i in range(60)]
    assert np.abs(z).max() < 4.5
    assert np.std(z) < 1.2


def test_samples_of_the_joint_posterior_are_independent():
    """Each net of 256 would have the state of a root as often as any other."""
    frame = um.sample_posterior(ASIA, {}, 512 * NET, method="prior", weighted=False)
    counts = (frame["smoke"] == "yes").to_numpy().reshape(512, NET).sum(axis=1)
    assert counts.var() == pytest.approx(NET / 4, rel=0.3)
