"""Belief propagation: exact on trees, whatever the mechanism; evidence that is uncertain; sums by target."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unimarg as um
from networks import states_order
from unimarg.encoding import one_hot
from unimarg.propagation import Propagation, Sums, by_blocks

ROWS = 8


def tree(seed: int, nodes: int = 10) -> um.Network:
    """A polytree: every new node takes as parents one node from each of some components, and joins them."""
    rng = np.random.default_rng(seed)
    variables = [um.Variable(f"v{i}", tuple(f"s{k}" for k in range(rng.integers(2, 7)))) for i in range(nodes)]
    component, parents, mechanisms = list(range(nodes)), {}, {}
    for i, v in enumerate(variables):
        roots = sorted(set(component[:i]))
        chosen = rng.permutation(roots)[: rng.integers(1, 4)] if roots and i > 3 else []
        pa = [int(rng.choice([j for j in range(i) if component[j] == c])) for c in chosen]
        for j in range(i):
            if component[j] in chosen:
                component[j] = i
        cards = [variables[p].card for p in pa]
        if pa and rng.random() < 0.5:
            contributions = [np.vstack([np.eye(v.card)[0], rng.dirichlet(np.ones(v.card), size=k - 1)]) for k in cards]
            mechanisms[v.name] = um.NoisyMax(rng.dirichlet(np.ones(v.card)), contributions)
        else:
            mechanisms[v.name] = rng.dirichlet(np.ones(v.card), size=cards) if cards else rng.dirichlet(np.ones(v.card))
        parents[v.name] = [variables[p].name for p in pa]
    return um.Network(variables, parents, mechanisms)


def beliefs(net, states, rounds, likelihoods=None):
    """``[rows, states]``"""
    propagation = Propagation(net, rounds)
    ragged = propagation.ragged
    known, values = jnp.asarray(states >= 0)[:, ragged.order], one_hot(jnp.asarray(states)[:, ragged.order], ragged)
    for i, likelihood in (likelihoods or {}).items():
        group, j = ragged.member[i]
        known, values[group] = known.at[:, ragged.place[i]].set(True), values[group].at[:, j].set(likelihood)
    logits = jax.jit(lambda k, v: propagation.logits(k, v, accelerated=False))(known, values)
    parts = [np.exp(p).reshape(len(states), -1) for p in ragged.log_softmax(logits)]
    return np.concatenate(parts, axis=1)[:, states_order(ragged)]


@pytest.mark.parametrize("seed", range(2))
def test_exact_on_polytrees(seed):
    net = tree(seed)
    assert sum(map(len, net.parents)) < len(net)
    assert {type(m) for m in net.mechanisms} == {um.Table, um.NoisyMax}
    drawn = um.sample(net, ROWS, seed=seed).astype(np.int64)
    states = np.where(np.random.default_rng(seed).random(drawn.shape) < 0.3, drawn, -1)
    states[:, 0] = -1
    likelihood = np.linspace(0.2, 0.9, int(net.cards[0]))
    found = beliefs(net, states, 2 * len(net), {0: likelihood})
    for row in range(ROWS):
        evidence: dict[str, object] = {net.names[i]: int(k) for i, k in enumerate(states[row]) if k >= 0}
        evidence[net.names[0]] = dict(zip(net.variables[0].states, likelihood.tolist(), strict=True))
        np.testing.assert_allclose(found[row], np.concatenate(um.exact(net, evidence).probabilities), atol=2e-5)


def test_loops_are_close_and_rounds_help():
    net = um.medical(10, 30, 60, seed=3)
    drawn = um.sample(net, ROWS, seed=5).astype(np.int64)
    states = np.where(np.random.default_rng(1).random(drawn.shape) < 0.05, drawn, -1)
    truth = np.stack(
        [np.concatenate(um.exact(net, {net.names[i]: int(k) for i, k in enumerate(r) if k >= 0}).probabilities) for r in states]
    )
    few, many = (np.abs(beliefs(net, states, n) - truth).mean() for n in (1, 8))
    assert many < few / 5
    assert many < 2e-3


def test_sums_by_target():
    rng = np.random.default_rng(0)
    targets, rows = rng.integers(9, size=50), rng.standard_normal((50, 3)).astype(np.float32)
    targets[targets == 4] = 5  # one without any
    expected = np.zeros((9, 3))
    np.add.at(expected, targets, rows)
    np.testing.assert_allclose(Sums(targets, 9)(jnp.asarray(rows)), expected, atol=1e-5)
    assert (np.asarray(Sums(np.zeros(0, int), 2)(jnp.zeros((0, 3)))) == 0).all()


@pytest.mark.parametrize("most", [0.5, 5, 100])
def test_blocks_of_rows_are_the_same(most):
    x = jnp.arange(24.0).reshape(12, 2)
    np.testing.assert_array_equal(by_blocks(lambda a: a[0] * a[1], (x, x), most), x * x)
