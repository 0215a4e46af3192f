"""What the network adds to its start is believed as far as samples that it has not learnt from bear it out."""

import itertools

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import unimarg as um
from unimarg import trainer
from unimarg.evaluation import errors
from unimarg.presets import recipe
from unimarg.ragged import Ragged, log_normalised
from unimarg.shares import judged, later, shared, shares
from unimarg.trunk import Trunk

CARDS = Ragged((3, 2, 1, 2))  # in the order of its nodes: one state, two, two, three
SAMPLES = 200_000


def sums(start, added, truth, counted=None):
    """Of samples whose states come from the logits ``truth``; ``start`` and ``added`` are of the same slots."""
    rng = np.random.default_rng(0)
    logits = jnp.broadcast_to(jnp.asarray(start + added, jnp.float32), (SAMPLES, CARDS.slots))
    labels = []
    for part in CARDS.with_reference(jnp.asarray(truth, jnp.float32)):
        p = np.exp(part) / np.exp(part).sum(axis=-1, keepdims=True)
        drawn = [rng.choice(len(q), SAMPLES, p=q / q.sum()) for q in np.asarray(p, np.float64)]
        labels.append(jnp.asarray(np.stack([np.eye(p.shape[1], dtype=bool)[d] for d in drawn], axis=1)))
    counted = np.ones((SAMPLES, 4), bool) if counted is None else counted
    return judged(CARDS, jnp.asarray(start), logits, [log_normalised(s) for s in CARDS.by_states(logits)], labels, jnp.asarray(counted))


START = np.array([0.5, -1.0, 0.3, 1.2], np.float32)
ADDED = np.array([0.2, 0.15, 0.3, -0.2], np.float32)


def test_noise_is_not_believed_and_what_is_right_is():
    nothing = np.asarray(shares(sums(START, ADDED, START)))
    everything = np.asarray(shares(sums(START, ADDED, START + ADDED)))
    half = np.asarray(shares(sums(START, ADDED, START + ADDED / 2)))
    # their standard errors are 1 / sqrt of the information, .02 to .04
    assert nothing[1:].max() < 0.15
    assert everything.min() > 0.85
    np.testing.assert_allclose(half[1:], 0.5, atol=0.15)


@pytest.mark.parametrize("rate", [2e-4, 1e-3, 1e-2, 0.2])
def test_what_is_too_sure_is_not_thrown_away(rate):
    """A start of one half, and a network that says 1e-4: whatever is true, the share is no worse than all of it."""
    true, said = np.log(rate / (1 - rate)), np.log(1e-4 / (1 - 1e-4))
    zeros = np.zeros(4, np.float32)
    share = float(shares(sums(zeros, zeros + np.float32(said), zeros + true))[1])

    def loss(a):
        p = 1 / (1 + np.exp(-a * said))
        return -rate * np.log(p) - (1 - rate) * np.log(1 - p)

    assert loss(share) <= loss(1) + 1e-6
    assert (share < 0.9) == (rate == 0.2)


def test_what_is_no_number_is_not_heard():
    logits = jnp.asarray(np.array([[0.1, jnp.inf, 0.2, 0.3]], np.float32))
    labels = [jnp.zeros((1, n, k)) for k, n in CARDS.groups]
    log_p = [log_normalised(s) for s in CARDS.by_states(logits)]
    found = np.asarray(judged(CARDS, jnp.zeros(4), logits, log_p, labels, jnp.ones((1, 4), bool)))
    assert np.isnan(np.asarray(log_p[1][1])).any()
    assert (found[:, 2] == 0).all()
    assert (found[1, [1, 3]] > 0).all()


def test_information_is_the_variance_of_the_gain_and_only_counted_samples_count():
    gain, information = np.asarray(sums(START, ADDED, START + ADDED))
    assert gain[0] == information[0] == 0  # a node of one state
    assert (abs(gain[1:]) < 4 * np.sqrt(information[1:])).all()
    counted = np.zeros((SAMPLES, 4), bool)
    counted[: SAMPLES // 2, :3] = True
    fewer = np.asarray(sums(START, ADDED, START + ADDED, counted)[1])
    np.testing.assert_allclose(fewer[1:3] / information[1:3], 0.5, rtol=1e-3)
    assert fewer[3] == 0


def test_a_node_of_which_little_is_known_has_the_share_of_all():
    found = shares(jnp.array([[-1e4 / 2, -0.5, 0.0, 40.0, -900.0], [1e4, 1e-3, 0.0, 50.0, 800.0]]))
    together = (-1e4 / 2 - 0.5 + 40 - 900) / (1e4 + 850)
    expected = [0.5, 1 + together, 1 + together, 1.0, 0.0]
    np.testing.assert_allclose(found, expected, atol=0.02)
    np.testing.assert_array_equal(shares(jnp.zeros((2, 3))), np.ones(3))


def test_the_last_steps_count():
    total = jnp.zeros(())
    for n in range(800):
        total = later(total, jnp.float32(1 if n < 400 else 3), jnp.int32(800))
    assert float(total) == pytest.approx(300, rel=0.03)  # a hundred steps of 3
    assert float(later(jnp.float32(5), jnp.float32(2), jnp.int32(3))) == 2


@pytest.mark.parametrize("gated", [False, True])
def test_shares_scale_what_the_marginal_head_adds(gated):
    rng = np.random.default_rng(2)
    net = um.example("asia")
    made = recipe(net, "default", hidden=(8,), gated=gated).architecture
    ragged = Ragged(tuple(net.cards.tolist()))
    trunk = Trunk.make(0, made, 5, ragged.slots)
    weight = jnp.asarray(rng.standard_normal(trunk.head.weight.shape), jnp.float32)
    trunk = eqx.tree_at(lambda t: t.head.weight, trunk, weight)
    told = jnp.asarray(np.stack([rng.uniform(-900, 0, len(net)), np.full(len(net), 1000.0)]), jnp.float32)
    x, start = rng.standard_normal((4, 5)).astype(np.float32), {h: jnp.full((4, ragged.slots), 0.7) for h in made.heads}
    before, after = trunk(x, start), shared(trunk, told, ragged)(x, start)
    share = np.asarray(shares(told))
    assert 0 < share.min() < 0.5 < share.max() < 1
    np.testing.assert_allclose(after["marginal"], 0.7 + share * (np.asarray(before["marginal"]) - 0.7), atol=2e-5)
    np.testing.assert_array_equal(after["message"], before["message"])


def test_a_start_that_is_exact_is_hardly_left(monkeypatch):
    """On a chain beliefs are exact: a short training on outcomes adds noise alone."""
    names = [f"c{n}" for n in range(8)]
    parents = {b: [a] for a, b in itertools.pairwise(names)}
    net = um.Network(
        [um.Variable(n, ("x", "y", "z")) for n in names],
        parents,
        {n: [[0.7, 0.2, 0.1], [0.2, 0.6, 0.2], [0.1, 0.3, 0.6]] if n in parents else [0.3, 0.3, 0.4] for n in names},
    )
    drawn = um.sample(net, 60, seed=5).astype(np.int64)
    evidence = np.where(np.random.default_rng(1).random(drawn.shape) < 0.3, drawn, -1)
    truth = [
        um.exact(net, {n: net.variables[i].states[k] for i, (n, k) in enumerate(zip(names, row, strict=True)) if k >= 0})
        for row in evidence
    ]
    exact = np.stack([np.concatenate(t.probabilities) for t in truth])
    found = []
    for scale in (shared, lambda trunk, told, ragged: trunk):
        monkeypatch.setattr(trainer, "shared", scale)
        model = um.train(net, "small", "150 steps", seed=0, hidden=(32, 32), batch=128, labels="sample")
        found.append(errors(model.marginals_of_states(evidence), exact, evidence, net)[0].mean())
    assert found[1] > 1e-3
    assert found[0] < found[1] / 3
