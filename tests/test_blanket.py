"""Labels given the rest of the sample, against the joint distribution itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unimarg as um
from networks import random_network
from unimarg.blanket import blanket_log_p
from unimarg.compiled import log_conditionals
from unimarg.layout import compile_network

ROWS = 24


def soft(net, states, observed, width):
    """``[nodes, card, rows]``, normalised."""
    compiled = compile_network(net, width)
    args = compiled.layout, compiled.arrays, jnp.asarray(states), jnp.asarray(observed)
    return np.asarray(jax.nn.softmax(blanket_log_p(*args, log_conditionals(compiled, jnp.asarray(states))), axis=1))


def matters(net, observed) -> np.ndarray:
    """Nodes with something observed at or below them; a cause without effect is none."""
    out = observed.copy()
    for c in reversed(range(len(net))):
        for j, p in enumerate(net.parents[c]):
            if isinstance(net.mechanisms[c], um.Table) or (net.mechanisms[c].contributions[j][:, 0] < 1).any():
                out[p] |= out[c]
    return out


def by_hand(net, states, observed, i) -> np.ndarray:
    """P(x_i = k | the other nodes that matter): the joint probability of those, for every k."""
    kept = matters(net, observed)
    out = np.zeros((int(net.cards[i]), states.shape[1]))
    for k in range(len(out)):
        x = states.astype(int)
        x[i] = k
        for c in (i, *net.children[i]):
            with np.errstate(divide="ignore"):
                log_p = np.log(
                    net.mechanisms[c].rows(x[list(net.parents[c])].T.reshape(states.shape[1], -1))[np.arange(states.shape[1]), x[c]]
                )
            out[k] += log_p if c == i else np.where(kept[c], log_p, 0)
    p = np.exp(out - out.max(axis=0))
    return p / p.sum(axis=0)


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("name", ["random", "medical", "asia"])
def test_equals_the_joint(name, width):
    net = {"random": lambda: random_network(3, 12), "medical": lambda: um.medical(4, 9, 15, seed=2), "asia": lambda: um.example("asia")}[
        name
    ]()
    states = um.sample(net, ROWS, seed=5).T
    observed = np.random.default_rng(2).random(states.shape) < 0.3
    found = soft(net, states, observed, width)
    for i, k in enumerate(net.cards):
        np.testing.assert_allclose(found[i, :k], by_hand(net, states, observed, i), atol=2e-4)
        assert (found[i, k:] == 0).all()


def test_without_evidence_it_is_the_table():
    net = random_network(4, 10)
    states = um.sample(net, ROWS, seed=1).T
    found = soft(net, states, np.zeros(states.shape, bool), 4)
    for i, k in enumerate(net.cards):
        np.testing.assert_allclose(found[i, :k], net.mechanisms[i].rows(states[list(net.parents[i])].T.reshape(ROWS, -1)).T, atol=1e-5)


def test_certain_causes():
    """A noisy-or that a cause always switches on: no NaN, and present where nothing else explains the finding."""
    names = ["a", "b", "x"]
    variables = [um.Variable(n) for n in names]
    net = um.Network(variables, {"x": ["a", "b"]}, {"a": [0.9, 0.1], "b": [0.8, 0.2], "x": um.NoisyOr(0.0, [1.0, 0.5])})
    states = np.array([[1, 0, 1], [1, 1, 1], [0, 1, 1], [0, 0, 0]]).T
    found = soft(net, states, np.array([[0], [0], [1]]) * np.ones((1, 4)) > 0, 1)
    np.testing.assert_allclose(found[0, 1], [1, 0.1 / (0.1 + 0.9 * 0.5), 0.1 / (0.1 + 0.9 * 0.5), 0], atol=1e-5)
    np.testing.assert_allclose(found[1, 1], [0.2, 0.2, 1, 0.2 * 0.5 / (0.2 * 0.5 + 0.8)], atol=1e-5)
