"""The loss and what goes into it by hand, and that two thousand small steps learn asia."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unimarg as um
from models import ASIA, random_model
from networks import random_network
from unimarg.batches import Given, Plan, labelled, likelihoods, shown
from unimarg.channels import channel_words, through_channels
from unimarg.clique_tree import clique_tree
from unimarg.compiled import log_conditionals, sample
from unimarg.counter import key_from_seed
from unimarg.encoding import one_hot, prior_slots
from unimarg.evaluation import errors, evidence_sets
from unimarg.layout import compile_network
from unimarg.network import Network
from unimarg.presets import recipe
from unimarg.ragged import Ragged, by_group, grouped
from unimarg.student import descendants
from unimarg.training import initial_state, learning_rate, loss, message_log_q, run_steps
from unimarg.trunk import dropout_noise

ROWS = 32


def setting(net: Network, **options):
    """A random model, its plan and constants, and samples ``[nodes, rows]`` with a mask."""
    model = random_model(net, **options)
    compiled = compile_network(net)
    plan = Plan(compiled.layout, model.ragged, model.recipe, 1, False)
    given = Given(compiled.arrays, key_from_seed(0), *prior_slots(model.priors, model.ragged), jnp.int32(100))
    states = jnp.asarray(sample(net, ROWS, seed=1).T)
    observed = jnp.asarray(np.random.default_rng(0).random((len(net), ROWS)) < 0.4)
    return model, plan, given, states, observed, jnp.arange(ROWS, dtype=jnp.uint32)


def value(trunk, plan, given, states, observed, samples) -> float:
    """The loss of samples under a mask."""
    batch = labelled(plan, given, jnp.uint32(0), *shown(plan, states, observed, None), None, states, observed, samples)
    batch = batch._replace(noise=dropout_noise(given.key, samples, plan.recipe.architecture))
    return float(loss(trunk, plan, given, batch)[0])


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@pytest.mark.parametrize("encoding", ["two_bit", "prior"])
@pytest.mark.parametrize("everything", [True, False])
def test_the_papers_loss_by_hand(encoding, everything):
    model, plan, given, states, observed, samples = setting(ASIA, encoding=encoding, dropout=0, observed_loss=everything)
    x, m = np.asarray(states).T, np.asarray(observed).T
    hidden = np.array([p[1] for p in model.priors]) if encoding == "prior" else 0.0
    inputs = np.concatenate([m, np.where(m, x, hidden)], axis=1)
    (layer,), head = model.trunk.layers, model.trunk.head
    h = np.maximum(inputs @ np.asarray(layer.weight, np.float64) + layer.bias, 0)
    p = 1 / (1 + np.exp(-(h @ np.asarray(head.weight, np.float64) + head.bias)))  # a sigmoid for each node
    each = -np.where(x == 1, np.log(p), np.log(1 - p))
    expected = each.mean() if everything else each[~m].mean()
    assert value(model.trunk, plan, given, states, observed, samples) == pytest.approx(expected, rel=1e-5)


def test_dropout_in_the_loss_depends_on_the_samples_only():
    model, plan, given, states, observed, samples = setting(ASIA)
    assert model.recipe.architecture.dropout == 0.5
    one, again, other = (value(model.trunk, plan, given, states, observed, s) for s in (samples, samples, samples + ROWS))
    assert one == again
    assert one != other


def test_a_run_drops_units():
    """In every step: without dropout the same samples have other losses."""
    losses = []
    for dropout in (0.0, 0.5):
        _, plan, given, *_ = setting(ASIA, batch=16, dropout=dropout, learning_rate=0.0)
        losses.append(run_steps(replace(plan, steps_per_call=4), given, initial_state(plan, 0))[1])
    assert (abs(losses[0] - losses[1]) > 1e-3).all()


def test_messages_are_tables_times_exp_lambda():
    net = random_network(11, 9)
    ragged, states = Ragged(tuple(net.cards.tolist())), jnp.asarray(sample(net, ROWS, seed=1).T)
    messages = np.random.default_rng(4).standard_normal((ROWS, ragged.slots)).astype(np.float32)
    tables = grouped(log_conditionals(compile_network(net), states), ragged)
    parts = message_log_q(ragged, jnp.asarray(messages), tables)
    x, at = np.asarray(states), 0
    for i in ragged.order:
        g, j = ragged.member[i]
        k = int(net.cards[i])
        lam = np.concatenate([np.zeros((ROWS, 1)), messages[:, at : at + k - 1]], axis=1)
        at += k - 1
        table = net.mechanisms[i].expand()[tuple(x[p] for p in net.parents[i])]
        q = np.broadcast_to(table, (ROWS, k)) * np.exp(lam)
        np.testing.assert_allclose(np.exp(np.stack(parts[g], axis=-1)[:, j]), q / q.sum(axis=1, keepdims=True), atol=3e-6)


def test_both_heads_share_the_loss_by_weight():
    net = random_network(11, 9)
    model, plan, given, states, observed, samples = setting(net, heads=("marginal", "message"), dropout=0, observed_loss=False)
    values = [
        value(model.trunk, replace(plan, recipe=replace(plan.recipe, message_weight=w)), given, states, observed, samples)
        for w in (0, 0.5, 2)
    ]
    assert np.isfinite(values).all()
    assert values[2] - values[0] == pytest.approx(4 * (values[1] - values[0]), rel=1e-3)
    assert values[1] > values[0]


def test_exact_labels_are_the_posteriors_in_the_layouts_order():
    net = random_network(6, 7)
    ragged, compiled = Ragged(tuple(net.cards.tolist())), compile_network(net)
    states = sample(net, 4, seed=2)
    known = np.random.default_rng(1).random(states.shape) < 0.4
    plan = Plan(compiled.layout, ragged, recipe(net, "small"), 1, False, clique_tree(net, 1 << 20))

    @jax.jit
    def exact_labels(states, known):
        return by_group(ragged, plan.teacher.marginals(likelihoods(plan, states, known, None)))

    labels = exact_labels(jnp.asarray(states.T), jnp.asarray(known[:, ragged.order]))
    for r in range(4):
        post = um.exact(net, {net.names[i]: int(states[r, i]) for i in np.flatnonzero(known[r])})
        for i, p in enumerate(post.probabilities):
            g, j = ragged.member[i]
            np.testing.assert_allclose(labels[g][r, j], p, atol=3e-6)


def test_what_a_channel_feeds_is_honest():
    """Given what is fed, the states are distributed as the prior times it: calibration, bin by bin."""
    cards, n = (2, 3, 5, 40), 1 << 15
    ragged, rng = Ragged(cards), np.random.default_rng(5)
    priors = [np.array([0.8, 0.2]), np.array([0.5, 0.3, 0.2]), np.array([0.4, 0.3, 0.15, 0.1, 0.05]), np.array([0.3] + [0.7 / 39] * 39)]
    states = np.stack([rng.choice(k, p=p, size=n) for k, p in zip(cards, priors, strict=True)], axis=1).astype(np.int32)
    drawn, known = channel_words(key_from_seed(3), jnp.arange(n, dtype=jnp.uint32), len(cards)), jnp.ones(states.shape, bool)
    fed, certain = through_channels(drawn, 1.0, known, jnp.asarray(states), ragged)
    assert not certain.any()
    z = []
    for i, prior in enumerate(priors):
        likelihood = np.asarray(fed[i][:, 0], np.float64)
        np.testing.assert_allclose(likelihood.sum(axis=1), 1, atol=1e-6)
        posterior = likelihood * prior
        posterior /= posterior.sum(axis=1, keepdims=True)
        for k in range(cards[i]):
            p, hit = posterior[:, k], states[:, i] == k
            for low in np.arange(0, 1, 0.1):
                here = (p >= low) & (p < low + 0.1)
                if (variance := (p * (1 - p))[here].sum()) > 20:
                    z.append((hit - p)[here].sum() / np.sqrt(variance))
        assert posterior[:, 0].std() > 0.05  # it does tell something
    assert len(z) > 30
    assert np.abs(z).max() < 4.5
    assert np.mean(np.square(z)) < 1.6


def test_channels_touch_only_a_share_of_the_known():
    ragged, n = Ragged((2, 3)), 1 << 14
    states = jnp.asarray(np.random.default_rng(0).integers(2, size=(n, 2)).astype(np.int32))
    known = jnp.asarray(np.random.default_rng(1).random((n, 2)) < 0.5)
    values = one_hot(states, ragged)
    fed, certain = through_channels(channel_words(key_from_seed(3), jnp.arange(n, dtype=jnp.uint32), 2), 0.1, known, states, ragged)
    lost = np.asarray(known & ~certain)
    assert not np.asarray(certain & ~known).any()
    total = int(known.sum())
    assert abs(lost.sum() - 0.1 * total) / np.sqrt(0.09 * total) < 4
    for i, (a, b) in enumerate(zip(fed, values, strict=True)):
        same = np.asarray((a == b).all(axis=(1, 2)))
        assert same[~lost[:, i]].all()
        assert not same[lost[:, i]].any()


def test_learning_rate():
    made = random_model(ASIA, learning_rate=0.5).recipe
    assert float(learning_rate(made, jnp.int32(7), jnp.int32(10))) == 0.5
    warm = replace(made, warm_up=20)
    rates = np.array([float(learning_rate(warm, jnp.int32(t), jnp.int32(1000))) for t in (0, 9, 19, 20, 510, 1000, 2000)])
    np.testing.assert_allclose(rates, [0.025, 0.25, 0.5, 0.5, 0.25, 0, 0], atol=1e-6)
    short = np.array([float(learning_rate(warm, jnp.int32(t), jnp.int32(10))) for t in range(10)])
    assert short[0] == 0.5  # a tenth of a short run at most
    assert (np.diff(short[1:]) < 0).all()


@pytest.fixture(scope="module")
def judged():
    """Evidence on asia and the exact answers, and what the prior alone would err."""
    sets = evidence_sets(ASIA, "random", 60, seed=4)
    rows = [um.exact(ASIA, {ASIA.names[i]: int(k) for i, k in enumerate(row) if k >= 0}) for row in sets]
    truth = np.stack([np.concatenate(r.probabilities) for r in rows])
    prior = np.concatenate(um.exact(ASIA).probabilities)
    return sets, truth, errors(prior, truth, sets, ASIA)[0].mean()


@pytest.mark.parametrize(("labels", "bound"), [("sample", 0.02), ("soft", 0.015), ("weighted", 0.013), ("exact", 0.012)])
def test_two_thousand_small_steps_learn_asia(judged, labels, bound):
    sets, truth, without = judged
    model = um.train(ASIA, "paper", "2048 steps", 3, hidden=(64,), dropout=0, batch=128, learning_rate=3e-3, warm_up=50, labels=labels)
    mean, largest = errors(model.marginals_of_states(sets), truth, sets, ASIA)
    assert mean.mean() < bound < without / 2
    assert largest.mean() < 0.05


def test_uncertain_findings_are_better_than_none_after_a_short_training():
    # one finding of three is a likelihood; two_bit shows that the comparison can fail
    rng = np.random.default_rng(3)
    rows = []
    for states in um.sample(ASIA, 60, seed=11):
        shown = rng.permutation(len(ASIA))[:3]
        certain = {ASIA.names[i]: int(states[i]) for i in shown[1:]}
        right = rng.uniform(0.55, 0.95)
        rows.append((certain, {ASIA.names[shown[0]]: [right, 1 - right] if states[shown[0]] == 0 else [1 - right, right]}))
    truth = [um.exact(ASIA, certain | uncertain) for certain, uncertain in rows]

    def error(model, evidence):
        found = (model.query(e, method="um") for e in evidence)
        return np.mean([[abs(f[n][s] - t[n][s]) for n in ASIA.names for s in t[n]] for f, t in zip(found, truth, strict=True)])

    told, untold = [certain | uncertain for certain, uncertain in rows], [certain for certain, _ in rows]
    graded, two_bit = (um.train(ASIA, "small", "200 steps", seed=0, encoding=e, rounds=0) for e in ("graded", "two_bit"))
    assert error(graded, told) < 0.4 * error(graded, untold)
    assert error(graded, told) < 0.5 * error(two_bit, told)


def test_turns_beyond_the_end_of_a_run_change_nothing():
    """On a GPU every call has as many turns as any other."""
    _, plan, given, *_ = setting(ASIA, batch=16)
    given = given._replace(steps=jnp.int32(5))
    ends = []
    for turns in (4, 8):
        several = replace(plan, steps_per_call=turns, half=True)
        state, losses = initial_state(several, 0), []
        for _ in range(12 // turns):
            state, found = run_steps(several, given, state)
            losses += np.asarray(found).tolist()
        assert int(state.step) == 5
        assert all(np.array(losses[:5]) > 0)
        assert not any(losses[5:])
        ends.append(jax.tree.leaves(state.trunk))
    for one, other in zip(*ends, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_losses_before_the_student_diverges_are_numbers():
    """A GPU takes four steps of the trunk first: which of them was still good must be told from the loss."""
    _, plan, given, *_ = setting(ASIA, batch=32, student=6)
    given = given._replace(descendants=jnp.asarray(descendants(ASIA)))
    plan = replace(plan, steps_per_call=4, half=True)
    state = initial_state(plan, 0)
    assert state.student is not None
    broken = eqx.tree_at(lambda s: s.bias, state.student.weights, jnp.full_like(state.student.weights.bias, jnp.nan))
    _, losses = run_steps(plan, given, state._replace(student=state.student._replace(weights=broken)))
    assert np.isfinite(losses[:3]).all()
    assert np.isnan(losses[3])


def test_the_mean_loss_of_a_call_is_that_of_trunk_and_student(monkeypatch):
    """Also where a run ends within a turn: the student's counts once for each step."""
    monkeypatch.setattr("unimarg.training.student_loss", lambda student, *_: 0 * student.bias.sum() + 3.0)
    _, plan, given, *_ = setting(ASIA, batch=64, student=5)  # a plan of its own, so that nothing compiled is found
    given = given._replace(descendants=jnp.asarray(descendants(ASIA)))
    plan = replace(plan, steps_per_call=8, half=True)
    state = initial_state(plan, 0)
    for steps in (4, 5, 7):
        given = given._replace(steps=jnp.int32(steps))
        both = run_steps(plan, given, state)[1]
        alone = run_steps(replace(plan, recipe=replace(plan.recipe, student=0)), given, state._replace(student=None))[1]
        assert float(both[:steps].mean()) == pytest.approx(float(alone[:steps].mean()) + 3.0, abs=1e-2)
