"""The neural network against a few lines of NumPy."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from networks import random_network
from unimarg.counter import key_from_seed
from unimarg.encoding import prior_slots
from unimarg.marginalizer import Marginalizer
from unimarg.presets import recipe
from unimarg.ragged import Ragged
from unimarg.trunk import Architecture, Linear, Trunk, dropout_noise, dropped_relu, half_relu

INPUTS, SLOTS, ROWS = 7, 5, 11
X = np.random.default_rng(0).standard_normal((ROWS, INPUTS)).astype(np.float32)
LOGITS = np.linspace(-2, 2, SLOTS).astype(np.float32)
START = {"marginal": LOGITS}


def weights(layer) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(layer.weight, np.float64), np.asarray(layer.bias, np.float64)


def shaken(trunk: Trunk) -> Trunk:
    """With biases, scales and shifts that are not those of the start."""
    rng = np.random.default_rng(3)
    return jax.tree.map(lambda a: a + jnp.asarray(0.3 * rng.standard_normal(a.shape), jnp.float32), trunk)


def test_plain_is_relu_of_linear():
    trunk = shaken(Trunk.make(0, Architecture((6, 4)), INPUTS, SLOTS))
    h = X.astype(np.float64)
    for layer in trunk.layers:
        w, b = weights(layer)
        h = np.maximum(h @ w + b, 0)
    w, b = weights(trunk.head)
    assert [a.shape for a, _ in map(weights, trunk.layers)] == [(7, 6), (6, 4)]
    np.testing.assert_allclose(trunk.features(X), h, atol=1e-5)
    np.testing.assert_allclose(trunk(X, START)["marginal"], h @ w + b, atol=1e-5)  # not a residual on the prior


def test_residual_blocks_and_heads():
    trunk = shaken(Trunk.make(0, Architecture((6, 6), residual=True, heads=("marginal", "message"), from_prior=True), INPUTS, SLOTS))

    def norm(h):
        return (h - h.mean(-1, keepdims=True)) / np.sqrt(h.var(-1, keepdims=True) + 1e-6)

    layers = [weights(layer) for layer in trunk.layers]
    h = X @ layers[0][0] + layers[0][1]
    for i in range(2):
        (u, a), (v, b) = layers[2 * i + 1 : 2 * i + 3]
        h = h + np.maximum(norm(h) @ u + a, 0) @ v + b
    w, b = weights(trunk.head)
    both = norm(h) @ w + b
    out = trunk(X, START)
    np.testing.assert_allclose(out["marginal"], both[:, :SLOTS] + LOGITS, atol=1e-5)
    np.testing.assert_allclose(out["message"], both[:, SLOTS:], atol=1e-5)  # lambda itself


@pytest.mark.parametrize("heads", [("marginal",), ("marginal", "message")])
def test_a_gate_weighs_the_start_of_each_head(heads):
    made = Architecture((6, 6), residual=True, heads=heads, from_prior=True, gated=True)
    fresh = Trunk.make(0, made, INPUTS, SLOTS)
    start = {head: np.outer(np.arange(ROWS) - 3.0, LOGITS).astype(np.float32) for head in heads}  # of each row another, as beliefs are
    for head in heads:
        np.testing.assert_array_equal(fresh(X, start)[head], start[head])
    trunk = shaken(fresh)
    w, b = weights(trunk.head)
    own = np.split(np.asarray(trunk.features(X)) @ w + b, 2 * len(heads), axis=1)
    for out, given in ((trunk(X, start), start), (trunk(X, START), START)):  # messages need not have a start
        for n, head in enumerate(heads):
            expected = own[n] + (1 + own[len(heads) + n]) * given[head] if head in given else own[n]
            np.testing.assert_allclose(out[head], expected, rtol=1e-5, atol=1e-4)


def test_a_residual_trunk_starts_at_the_prior():
    net = random_network(5, 6, zeros=0)
    made = recipe(net, "small", hidden=(8,), rounds=0)
    priors = tuple(np.random.default_rng(1).dirichlet(np.ones(k)) for k in net.cards)
    ragged = Ragged(tuple(net.cards.tolist()))
    trunk = Trunk.make(1, made.architecture, len(net) + ragged.slots, ragged.slots)
    logits = prior_slots(priors, ragged)[1]
    x = np.random.default_rng(2).standard_normal((3, len(net) + ragged.slots)).astype(np.float32)
    assert (np.asarray(trunk(x, {"marginal": logits})["marginal"]) == np.asarray(logits)).all()
    observed = next(i for i, k in enumerate(net.cards) if k > 1)
    post = Marginalizer(net, made, trunk, priors).query({net.names[observed]: 0}, method="um")
    for i, (p, prior) in enumerate(zip(post.probabilities, priors, strict=True)):
        np.testing.assert_allclose(p, np.eye(len(prior))[0] if i == observed else prior, atol=1e-6)


@pytest.mark.parametrize("dropout", [0.5, 0.25, 0.0625, 0.3, 0.9, 1e-9])
def test_units_of_every_layer_are_dropped_at_the_rate_asked_for(dropout):
    """Whatever bits a unit takes, and with widths that no number of words divides: rate, scale, and no two units alike."""
    rows, widths = 2000, (37, 5, 70)
    architecture = Architecture(widths, dropout=dropout)
    assert architecture.dropped / 256 == pytest.approx(dropout, abs=1 / 256)
    rate = architecture.dropped / 256
    layers = [Linear(jnp.zeros((a, b)), jnp.ones(b)) for a, b in itertools.pairwise((1, *widths))]
    noise = dropout_noise(key_from_seed(4), jnp.arange(rows, dtype=jnp.uint32), architecture)
    for n in range(len(widths)):  # behind zero weights, so that each layer shows its own noise alone
        trunk = Trunk(layers[: n + 1], layers[0], architecture)
        dropped = np.asarray(trunk.features(jnp.ones((rows, 1)), noise=noise)) == 0
        z = (dropped.mean(axis=0) - rate) / np.sqrt(rate * (1 - rate) / rows)
        assert np.abs(z).max() < 4.5
        assert len(np.unique(np.packbits(dropped, axis=0).T, axis=0)) == widths[n] or rate < 1 / 64
        scaled = np.asarray(trunk.features(jnp.ones((rows, 1)), noise=noise))[~dropped]
        np.testing.assert_allclose(scaled, 1 / (1 - rate), rtol=1e-6)


def test_the_gradient_of_a_layer_with_dropped_units_is_the_functions():
    rng = np.random.default_rng(0)
    x, towards = (jnp.asarray(rng.standard_normal((8, 5)), jnp.float32) for _ in range(2))
    kept = jnp.asarray(rng.random((8, 5)) < 0.5)
    found = jax.grad(lambda x: (dropped_relu(x, kept) * towards).sum())(x)
    expected = jax.grad(lambda x: (jnp.where(kept, jax.nn.relu(x), 0) * towards).sum())(x)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("residual", [False, True])
def test_dropout_only_in_training(residual):
    width, rows = 64, 400
    trunk = Trunk.make(0, Architecture((width,), residual=residual, dropout=0.5), INPUTS, SLOTS)
    x = np.abs(np.broadcast_to(X[:1], (rows, INPUTS)))
    answer = np.asarray(trunk(x, START)["marginal"])
    assert (answer == answer[0]).all()  # the same rows, the same answers
    assert (answer == np.asarray(trunk(x, START)["marginal"])).all()
    samples = jnp.arange(rows, dtype=jnp.uint32)
    noise = (dropout_noise(key_from_seed(k), samples, trunk.architecture) for k in (1, 1, 2))
    one, again, other = (np.asarray(trunk.features(x, noise=n)) for n in noise)
    assert (one == again).all()
    assert (one != other).any()
    if not residual:  # dropped to exactly 0 half of the time, else doubled
        full = np.asarray(trunk.features(x))[0]
        live = np.flatnonzero(full > 0)
        kept = one[:, live] > 0
        np.testing.assert_allclose(one[:, live][kept], np.broadcast_to(2 * full[live], kept.shape)[kept], rtol=1e-6)
        assert abs(kept.mean() - 0.5) / np.sqrt(0.25 / kept.size) < 4
        together = np.corrcoef(kept.T)[np.triu_indices(len(live), 1)] * np.sqrt(rows)  # no two units share their fate
        assert np.abs(together).max() < 5


def test_the_seed_decides_the_weights():
    one, again, other = (Trunk.make(s, Architecture((8,)), INPUTS, SLOTS) for s in (1, 1, 2**64 - 1))
    assert all((a == b).all() for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(again), strict=True))
    assert (one.head.weight != other.head.weight).all()
    scale = np.asarray(Trunk.make(0, Architecture((256,)), 256, 1).layers[0].weight).std() * 16
    assert abs(scale / np.sqrt(2) - 1) < 4 / np.sqrt(2 * 256 * 256)  # He's: variance 2 / inputs


def test_bfloat16_products_are_close_and_float32_at_the_end():
    trunk = Trunk.make(0, Architecture((16,)), INPUTS, SLOTS)
    exact, half = trunk(X, START)["marginal"], trunk(X, START, half=True)["marginal"]
    assert half.dtype == jnp.float32
    assert 0 < np.abs(exact - half).max() < 0.1


def test_gradients_of_bfloat16_products_are_close():
    trunk = Trunk.make(0, Architecture((16,) * 2, residual=True), INPUTS, SLOTS)

    def loss(trunk, half):
        return jnp.square(trunk(X, START, half)["marginal"] - 1).mean()

    exact, half = (jax.tree.leaves(jax.grad(loss)(trunk, flag)) for flag in (False, True))
    assert all(g.dtype == jnp.float32 for g in half)
    scale = max(float(jnp.abs(g).max()) for g in exact)
    off = max(float(jnp.abs(a - b).max()) for a, b in zip(exact, half, strict=True))
    assert 0 < off < 0.03 * scale
    text = str(jax.make_jaxpr(jax.grad(loss), static_argnums=1)(trunk, True))
    kinds = dict(re.findall(r"(\w+):(\w+)\[", text))
    products = re.findall(r"dot_general\[.*?\] (\w+) (\w+)", text, re.DOTALL)
    assert len(products) == 3 * 6  # forward, for the weights, for the inputs
    assert {kinds[operand] for pair in products for operand in pair} == {"bf16"}


def test_a_hidden_layer_of_bfloat16_has_the_gradients_of_the_function():
    """On numbers that bfloat16 has exactly, those of float32; a unit that is off passes nothing on."""
    rng = np.random.default_rng(0)
    x, weight, bias = (jnp.asarray(rng.integers(-4, 5, shape) / 4, jnp.float32) for shape in ((8, 6), (6, 5), 5))
    towards = jnp.asarray(rng.integers(-2, 3, (8, 5)), jnp.float32)

    def plain(*given):
        return (jax.nn.relu(given[0] @ given[1] + given[2]) * towards).sum()

    def half(*given):
        return (half_relu(*given) * towards).sum()

    assert half_relu(x, weight, bias).dtype == jnp.bfloat16
    assert float((half_relu(x, weight, bias) == 0).mean()) > 0.2
    for expected, found in zip(*(jax.grad(f, argnums=(0, 1, 2))(x, weight, bias) for f in (plain, half)), strict=True):
        assert found.dtype == jnp.float32
        np.testing.assert_allclose(found, expected, atol=1e-6)
