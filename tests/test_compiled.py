import time

import numpy as np
import pytest
from scipy import stats

from networks import all_states, random_network
from unimarg import Network, NoisyMax, NoisyOr, Table, Variable
from unimarg.compiled import draw, log_conditionals, sample, sample_chunks
from unimarg.counter import key_from_seed
from unimarg.errors import UsageError
from unimarg.inference import infer
from unimarg.layout import _best_width, _kind, compile_network


def chi_square_p(counts: np.ndarray, expected: np.ndarray) -> float:
    """p-value over cells with enough expected counts, the rest pooled; impossible cells must be empty."""
    assert counts[expected == 0].sum() == 0
    big = expected >= 5
    observed = np.append(counts[big], counts[~big].sum())
    wanted = np.append(expected[big], expected[~big].sum())
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    return float(stats.chi2.sf(((observed - wanted) ** 2 / wanted).sum(), len(wanted) - 1))


@pytest.mark.parametrize("seed", range(4))
def test_joint_frequencies_are_right(seed):
    net = random_network(seed, 6, zeros=0.2)
    n = 400_000
    x = sample(net, n, seed=seed + 100)
    counts = np.bincount(np.ravel_multi_index(x.astype(np.int64).T, net.cards), minlength=int(net.cards.prod()))
    assert chi_square_p(counts, n * np.exp(net.log_probability(all_states(net)))) > 1e-4


def test_a_wrong_network_fails_the_frequency_test():
    net = Network([Variable("a")], {}, {"a": [0.5, 0.5]})
    counts = np.bincount(sample(net, 400_000, seed=1)[:, 0])
    assert chi_square_p(counts, 400_000 * np.array([0.495, 0.505])) < 1e-6


@pytest.mark.parametrize(("parents", "width"), [(0, 64), (1, 2)])
def test_blocks_are_as_wide_as_the_network(parents, width):
    """On a GPU: nodes that do not depend on each other together, a chain without much padding."""
    names = [f"x{i}" for i in range(100)]
    above = {names[i]: [names[i - 1]] for i in range(1, 100)} if parents else {}
    net = Network([Variable(n) for n in names], above, {n: np.full((2,) * (1 + len(above.get(n, []))), 0.5) for n in names})
    assert _best_width(net, [_kind(m) for m in net.mechanisms]) == width


@pytest.mark.parametrize(("seed", "width"), [(0, 1), (1, 1), (2, 4)])
def test_log_conditionals_equal_the_float64_reference(seed, width):
    net = random_network(seed, 30, max_parents=4)
    compiled = compile_network(net, width)
    x = np.random.default_rng(seed).integers(0, net.cards, size=(64, len(net)))
    got = np.asarray(log_conditionals(compiled, x.T))
    for i, (pa, mechanism) in enumerate(zip(net.parents, net.mechanisms, strict=True)):
        with np.errstate(divide="ignore"):
            want = np.log(mechanism.rows(x[:, list(pa)])).T
        np.testing.assert_allclose(got[i, : net.cards[i]], want, rtol=2e-5, atol=2e-6)
        assert np.isneginf(got[i, net.cards[i] :]).all()


def test_wide_blocks_draw_the_same_samples():
    net = random_network(3, 40, max_parents=2)
    one, wide = (np.asarray(draw(compile_network(net, w), key_from_seed(5), 2048)) for w in (1, 4))
    assert (one == wide).all()


def test_rare_root_and_rare_leak():
    """A probability of 1e-7 is drawn as often as it should be, from a table and from a noisy-or."""
    net = Network([Variable("a"), Variable("b")], {"b": ["a"]}, {"a": [1 - 1e-7, 1e-7], "b": NoisyOr(2e-7, [0.5])})
    n, hits = 1 << 27, np.zeros(2)
    for piece in sample_chunks(net, n, seed=11):
        hits += piece.sum(axis=0)
    expected = n * np.array([1e-7, 2e-7 + 0.5e-7])
    assert (np.abs(hits - expected) / np.sqrt(expected) < 4).all()
    assert (hits > 0).all()


def test_certain_and_impossible_never_fail():
    net = Network(
        [Variable("a", ("x", "y", "z")), Variable("b"), Variable("c")],
        {"b": ["a"], "c": ["a"]},
        {"a": [0, 1, 0], "b": [[0.5, 0.5], [0, 1], [1, 0]], "c": NoisyMax([1, 0], [[[1, 0], [0, 1], [0.5, 0.5]]])},
    )
    x = sample(net, 1_000_000, seed=2)
    assert (x == [1, 1, 1]).all()


def test_a_noisy_max_without_parents():
    """All of its kind lack parents, and one state only is drawn too."""
    net = Network(
        [Variable("a", ("x", "y", "z")), Variable("b", ("only",))], {}, {"a": NoisyMax([0.2, 0.3, 0.5], []), "b": NoisyMax([1], [])}
    )
    x = sample(net, 100_000, seed=1)
    assert chi_square_p(np.bincount(x[:, 0]), 100_000 * np.array([0.2, 0.3, 0.5])) > 1e-4
    assert not x[:, 1].any()


@pytest.mark.parametrize(("parent", "child"), [(9, 3), (300, 4), (40, 30)])
def test_a_noisy_max_of_many_states_compiles_and_is_right(parent, child):
    rng = np.random.default_rng(parent)
    rows = rng.dirichlet(np.ones(child), parent)
    rows[0] = np.eye(child)[0]
    variables = [Variable(name, tuple(map(str, range(n)))) for name, n in (("a", parent), ("b", child))]
    prior = rng.dirichlet(np.ones(parent))
    net = Network(variables, {"b": ["a"]}, {"a": prior, "b": NoisyMax(rng.dirichlet(np.ones(child)), [rows])})
    start = time.perf_counter()
    x = sample(net, 200_000, seed=3)
    assert time.perf_counter() - start < 20
    joint = prior[:, None] * net.mechanisms[1].expand()
    counts = np.bincount(x[:, 0].astype(int) * child + x[:, 1], minlength=joint.size)
    assert chi_square_p(counts, 200_000 * joint.ravel()) > 1e-4


def test_165_parents():
    rng = np.random.default_rng(0)
    names = [f"d{i}" for i in range(165)]
    prior, contribution = rng.uniform(0.001, 0.05, 165), rng.uniform(0.05, 0.9, 165)
    mechanisms = {d: Table([1 - p, p]) for d, p in zip(names, prior, strict=True)} | {"s": NoisyOr(0.01, contribution)}
    net = Network([*map(Variable, names), Variable("s")], {"s": names}, mechanisms)
    n = 300_000
    x = sample(net, n, seed=4)
    expected = 1 - 0.99 * np.prod(1 - prior * contribution)
    assert abs(x[:, -1].mean() - expected) < 4 * np.sqrt(expected * (1 - expected) / n)
    # and conditionally, for those with exactly one present parent
    one = x[x[:, :-1].sum(axis=1) == 1]
    p = 1 - 0.99 * (1 - contribution[one[:, :-1].argmax(axis=1)])
    assert abs((one[:, -1] - p).sum() / np.sqrt((p * (1 - p)).sum())) < 4


def test_same_seed_same_samples_for_any_chunk_size():
    net = random_network(8, 25, max_parents=2)
    whole = sample(net, 10_000, seed=9)
    assert whole.shape == (10_000, 25)
    for chunk in (64, 1000, 4096, 1 << 20):
        assert (sample(net, 10_000, seed=9, chunk=chunk) == whole).all()
    assert (sample(net, 1_000, seed=9) == whole[:1_000]).all()
    assert (sample(net, 10_000, seed=10) != whole).any()


def test_samples_beyond_32_bits_differ():
    compiled = compile_network(random_network(1, 10))
    key = key_from_seed(0)
    low, high = (np.asarray(draw(compiled, key, 1024, first)) for first in (0, 1 << 32))
    assert (low != high).any()


def test_deep_and_large_networks_compile_in_seconds():
    chain = Network(
        [Variable(f"n{i}") for i in range(1000)],
        {f"n{i}": [f"n{i - 1}"] for i in range(1, 1000)},
        {f"n{i}": [[0.9, 0.1], [0.2, 0.8]] if i else [0.5, 0.5] for i in range(1000)},
    )
    large = random_network(0, 10_000, max_parents=4)
    for net in (chain, large):
        start = time.perf_counter()
        x = sample(net, 2_000, seed=1)
        assert time.perf_counter() - start < 20
        assert x.shape == (2_000, len(net))
    stationary = 0.1 / 0.3
    z = (sample(chain, 20_000, seed=1)[:, -1].mean() - stationary) / np.sqrt(stationary * (1 - stationary) / 20_000)
    assert abs(z) < 4


def test_chunks_are_bounded_and_add_up():
    net = random_network(2, 12)
    pieces = list(sample_chunks(net, 5_000, seed=3, chunk=1024))
    assert [len(p) for p in pieces] == [1024] * 4 + [904]
    assert (np.concatenate(pieces) == sample(net, 5_000, seed=3)).all()
    assert sample(net, 0).shape == (0, 12)


@pytest.mark.parametrize("n", [-1, 1.5, "10", None, True])
def test_bad_sample_count(n):
    with pytest.raises(UsageError, match="number of samples"):
        sample(random_network(0, 2), n)


def test_parents_of_one_state_do_not_displace_those_of_many():
    """A noisy-max too large for a table: four parents without a choice, one of three states that alone has an effect, nine of two."""
    cards = [1] * 4 + [3] + [2] * 9
    effects = {1: [[1.0, 0.0]], 2: [[1.0, 0.0]] * 2, 3: [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]}
    names = [f"c{j}" for j in range(len(cards))]
    variables = [Variable(n, tuple(map(str, range(k)))) for n, k in zip(names, cards, strict=True)] + [Variable("x")]
    tables = {n: np.full(k, 1 / k) for n, k in zip(names, cards, strict=True)}
    net = Network(variables, {"x": names}, tables | {"x": NoisyMax([1.0, 0.0], [effects[k] for k in cards])})
    states = sample(net, 20_000, seed=0)
    np.testing.assert_array_equal(states[:, -1], states[:, 4] == 2)
    assert infer(net, {}, ["x"], method="prior")["x"]["yes"] == pytest.approx(1 / 3, abs=0.02)
    assert infer(net, {"x": "yes"}, ["c4"], method="lookahead")["c4"]["2"] == pytest.approx(1, abs=1e-6)
