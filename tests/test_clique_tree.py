"""Exact answers for many evidence sets at once, as labels too, against enumeration."""

import itertools

import jax
import numpy as np
import pytest

import unimarg as um
from networks import enumerate_all, random_evidence, random_network
from unimarg import Network, Variable
from unimarg.clique_tree import clique_tree

SETS = 12


def likelihoods(net, sets) -> list[np.ndarray]:
    """``[K, sets]`` for each node."""
    out = [np.ones((int(k), len(sets)), np.float32) for k in net.cards]
    for s, evidence in enumerate(sets):
        for i, k in evidence.hard.items():
            out[i][:, s] = np.arange(net.cards[i]) == k
        for i, likelihood in evidence.virtual.items():
            out[i][:, s] = likelihood
    return out


def possible(net, rng, count) -> list:
    found = []
    while len(found) < count:
        evidence = random_evidence(rng, net, 0.3, 0.2)
        if np.isfinite(enumerate_all(net, evidence)[0]):
            found.append(evidence)
    return found


@pytest.mark.parametrize("seed", range(3))
def test_equals_enumeration(seed):
    net = random_network(seed, 8, most=20_000)
    tree = clique_tree(net, 1 << 20)
    sets = possible(net, np.random.default_rng(seed), SETS)
    given = likelihoods(net, sets)
    found, log_evidence, _ = jax.jit(tree.answers)(given)
    for s, evidence in enumerate(sets):
        log_p, marginals = enumerate_all(net, evidence)
        assert log_evidence[s] == pytest.approx(log_p, abs=2e-5)
        for i, p in enumerate(marginals):
            np.testing.assert_allclose(found[i][:, s], p, atol=3e-6)
            assert (np.asarray(found[i][:, s])[p == 0] == 0).all()


def test_compiled_on_asia_with_no_evidence_and_all():
    net = um.example("asia")
    tree = clique_tree(net, 1 << 20)
    states = um.sample(net, 5, seed=1)
    given = [np.concatenate([np.ones((2, 1)), np.eye(2)[states[:, i]].T], axis=1).astype(np.float32) for i in range(8)]
    marginals, log_evidence, _ = jax.jit(tree.answers)(given)
    prior = um.exact(net)
    for i, p in enumerate(marginals):
        np.testing.assert_allclose(p[:, 0], prior.probabilities[i], atol=2e-6)
        np.testing.assert_allclose(p[:, 1:], np.eye(2)[states[:, i]].T, atol=2e-6)
    np.testing.assert_allclose(log_evidence[1:], net.log_probability(states), atol=1e-5)


def test_small_probabilities_do_not_underflow():
    # a chain of 60 findings of probability 1e-3 each: P(e) = 1e-180, far below float32
    names = [f"x{i}" for i in range(60)]
    variables = [Variable(n, ("no", "yes")) for n in names]
    parents = {b: [a] for a, b in itertools.pairwise(names)}
    table = np.array([[0.999, 0.001], [0.999, 0.001]])
    net = Network(variables, parents, {n: table if n in parents else table[0] for n in names})
    tree = clique_tree(net, 1 << 20)
    given = [np.array([[0.0], [1.0]], np.float32)] * 59 + [np.ones((2, 1), np.float32)]
    marginals, log_evidence, _ = jax.jit(tree.answers)(given)
    assert float(log_evidence[0]) == pytest.approx(59 * np.log(0.001), rel=1e-5)
    np.testing.assert_allclose(marginals[-1][:, 0], [0.999, 0.001], atol=1e-6)


def test_large_cliques_have_no_tree():
    net = um.example("asia")
    tree = clique_tree(net, 1 << 20)
    assert clique_tree(net, tree.entries).entries == tree.entries
    assert clique_tree(net, tree.entries - 1) is None
    assert clique_tree(um.example("clinic"), 1 << 14) is None
    assert clique_tree(um.medical(5, 60, 10, seed=0), 1 << 14) is None


@pytest.mark.parametrize("seed", range(8))
def test_cliques_form_a_junction_tree(seed):
    net = random_network(seed, 14, most=1 << 30)
    tree = clique_tree(net, 1 << 20)
    above = {k: n for n, clique in enumerate(tree.cliques) for k in clique.below}
    assert sorted(v for clique in tree.cliques for v in clique.scope[: clique.going]) == list(range(len(net)))
    for n, clique in enumerate(tree.cliques):
        assert (n in above) == bool(clique.shared)
        if clique.shared:
            assert above[n] > n
            assert {*clique.shared} <= {*tree.cliques[above[n]].scope}
    for i, pa in enumerate(net.parents):
        assert any({*pa, i} <= {*clique.scope} for clique in tree.cliques)


def test_parts_that_nothing_connects_and_a_node_without_a_choice():
    variables = [Variable("a", ("no", "yes")), Variable("b", ("only",)), Variable("c", ("no", "yes")), Variable("d", ("x", "y", "z"))]
    net = Network(variables, {"d": ["b", "a"]}, {"a": [0.25, 0.75], "b": [1.0], "c": [0.9, 0.1], "d": [[[1, 0, 0], [0.2, 0.3, 0.5]]]})
    given = [np.ones((k, 2), np.float32) for k in net.cards.tolist()]
    given[net.names.index("d")][:, 0] = [0, 1, 1]
    marginals = dict(zip(net.names, jax.jit(clique_tree(net, 1 << 20).marginals)(given), strict=True))
    np.testing.assert_allclose(marginals["a"], [[0, 0.25], [1, 0.75]], atol=1e-6)
    np.testing.assert_allclose(marginals["b"], [[1, 1]], atol=1e-6)
    np.testing.assert_allclose(marginals["c"], [[0.9, 0.9], [0.1, 0.1]], atol=1e-6)
    np.testing.assert_allclose(marginals["d"], [[0, 0.4], [0.375, 0.225], [0.625, 0.375]], atol=1e-6)


def wrong(net, given, sets) -> float:
    """The largest error against exact inference."""
    found = jax.jit(clique_tree(net, 1 << 20).marginals)(given)
    exact = [um.exact(net, e) for e in sets]
    return max(float(np.abs(np.asarray(found[i])[:, s] - p).max()) for s, e in enumerate(exact) for i, p in enumerate(e.probabilities))


def test_variables_that_hear_much_do_not_go_together():
    """Hubs that are connected, and a hundred leaves of each: one product of all of it would be below any number."""
    rng = np.random.default_rng(0)
    hubs, leaves = ["a", "b", "c"], [(h, f"{h}{n}") for h in "abc" for n in range(100)]
    variables = [Variable(h, tuple("01234567")) for h in hubs] + [Variable(n, ("x", "y", "z")) for _, n in leaves]
    parents = {"b": ["a"], "c": ["a", "b"], **{n: [h] for h, n in leaves}}
    cards = {v.name: v.card for v in variables}
    tables = {n: rng.dirichlet(np.ones(k), size=[cards[p] for p in parents.get(n, ())]) for n, k in cards.items()}
    net = Network(variables, parents, tables)
    states = um.sample(net, 6, seed=2)
    states[:, [net.index[h] for h in hubs]] = -1
    given = [np.where(states[:, i] < 0, 1.0, np.arange(k)[:, None] == states[:, i]).astype(np.float32) for i, k in enumerate(net.cards)]
    sets = [{net.names[i]: net.variables[i].states[k] for i, k in enumerate(row) if k >= 0} for row in states]
    assert wrong(net, given, sets) < 1e-5


def test_causes_that_are_all_rare_and_likelihoods_of_any_size():
    causes = [f"c{n}" for n in range(10)]
    variables, rate = [Variable(n) for n in (*causes, "effect")], [1 - 1e-4, 1e-4]
    net = Network(variables, {"effect": causes}, {**dict.fromkeys(causes, rate), "effect": um.NoisyOr(0.01, [0.3] * 10)})
    for scale in (1e-7, 1.0, 1e7):
        given = [np.array([[0.0], [1.0]]) if n in causes else np.array([[1.0], [0.3]]) for n in net.names]
        sets = [dict.fromkeys(causes, "yes") | {"effect": [1.0, 0.3]}]
        assert wrong(net, [(scale * g).astype(np.float32) for g in given], sets) < 1e-5
    given = [np.array([[1e-7], [3e-8]], np.float32) if n in causes else np.array([[0.0], [1.0]], np.float32) for n in net.names]
    assert wrong(net, given, [{n: [1.0, 0.3] for n in causes} | {"effect": "yes"}]) < 1e-5
