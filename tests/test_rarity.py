"""Rarer evidence: what is shown is out of the ordinary, what is hidden a draw from the posterior all the same."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unimarg as um
from networks import random_network
from unimarg.batches import Given, Plan, batches
from unimarg.clique_tree import clique_tree
from unimarg.counter import key_from_seed
from unimarg.encoding import one_hot, prior_slots
from unimarg.layout import compile_network
from unimarg.masking import UniformRate
from unimarg.presets import recipe
from unimarg.propagation import Propagation
from unimarg.ragged import Ragged
from unimarg.rarity import rarer
from unimarg.trainer import estimate_priors

ASIA = um.example("asia")
ROWS = 1 << 13


def chosen(net, share, together, shown=(2, 6, 7), seed=0):
    """States before and after, and the mask; ``[nodes, rows]``."""
    ragged = Ragged(tuple(net.cards.tolist()))
    priors, _ = prior_slots(estimate_priors(net, 0), ragged)
    states = jnp.asarray(um.sample(net, ROWS, seed).T)
    mask = np.zeros(states.shape, bool)
    mask[list(shown)] = True
    samples = jnp.arange(ROWS, dtype=jnp.uint32)
    after = rarer(ragged, priors, key_from_seed(seed), samples, share, states, jnp.asarray(mask), together)
    return np.asarray(states), np.asarray(after), mask


@pytest.mark.parametrize(("share", "together"), [(0.0, 64), (1.0, 1)])
def test_without_a_choice_samples_stay(share, together):
    before, after, _ = chosen(ASIA, share, together)
    np.testing.assert_array_equal(before, after)


def test_what_is_shown_is_rarer_and_what_is_hidden_a_posterior():
    shown = (2, 6, 7)
    before, after, _ = chosen(ASIA, 1.0, 64, shown)
    prior = um.exact(ASIA).probabilities

    def surprise(states):
        return np.mean([sum(-np.log(prior[i][x[i]]) for i in shown) for x in states.T])

    assert surprise(after) > 1.3 * surprise(before)
    scores = []
    for found in np.unique(after[list(shown)], axis=1).T:
        rows = (after[list(shown)] == found[:, None]).all(axis=0)
        posterior = um.exact(ASIA, {ASIA.names[i]: int(k) for i, k in zip(shown, found, strict=True)})
        for i, p in enumerate(posterior.probabilities):
            off = np.where(rows, after[i] - p[1], 0.0).reshape(-1, 64).sum(axis=1)  # of samples that were candidates for each other
            if np.count_nonzero(off) >= 30 and p[0] * p[1] > 0.01:
                scores.append(off.sum() / np.sqrt((off**2).sum()))
    assert len(scores) >= 8
    assert np.abs(scores).max() < 4.5


def setting(net, **options):
    made = recipe(net, "default", UniformRate(), student=0, batch=64, rare=1.0, **options)
    compiled, ragged = compile_network(net), Ragged(tuple(net.cards.tolist()))
    propagation = Propagation(net, made.rounds) if made.rounds else None
    teacher = clique_tree(net, 1 << 14) if made.labels == "exact" else None
    plan = Plan(compiled.layout, ragged, made, ROWS // 64, False, teacher, propagation)
    priors = prior_slots(estimate_priors(net, 0), ragged)
    return plan, Given(compiled.arrays, key_from_seed(3), *priors, jnp.int32(1))


def made_by(plan, given, step=0):
    return jax.jit(lambda: batches(plan, given, jnp.int32(step)))()


def outcomes(plan, made):
    return one_hot(jnp.swapaxes(made.states, 1, 2)[..., plan.ragged.order], plan.ragged)


@pytest.mark.parametrize(
    ("net", "labels"), [(ASIA, "sample"), (ASIA, "soft"), (ASIA, "weighted"), (random_network(3, 5), "weighted")], ids=str
)
def test_every_label_has_the_posterior_as_its_mean(net, labels):
    """With rare and with uncertain findings, whose choice must not look at what lies behind them."""
    options = {"virtual": 0.5, "rounds": 2}
    exact, given = setting(net, labels="exact", **options)
    plan, _ = setting(net, labels=labels, **options)
    halves = [replace(plan, half=half) for half in (False, True)]
    truth = made_by(exact, given)
    for one in halves[: 2 if labels == "weighted" else 1]:
        found = made_by(one, given)
        np.testing.assert_array_equal(found.states, truth.states)
        for part, true, certain in zip(found.labels or outcomes(one, found), truth.labels, one.ragged.nodes(truth.certain), strict=True):
            off = np.where(np.asarray(certain)[..., None], 0.0, np.asarray(part, np.float64) - np.asarray(true))
            batch = off.mean(axis=1)  # of the samples that were candidates for each other
            error = batch.std(axis=0) / np.sqrt(len(batch))
            assert (np.abs(batch.mean(axis=0)) <= 4.5 * error + 1e-6).all()


@pytest.mark.parametrize("rounds", [0, 2])
@pytest.mark.parametrize("labels", ["sample", "soft", "exact"])
def test_wider_parts_make_the_same_batches(labels, rounds, monkeypatch):
    """A GPU labels many batches at once, and as many as fit beside a teacher."""
    plan, given = setting(ASIA, labels=labels, rounds=rounds, virtual=0.25, dropout=0.5)
    plan = replace(plan, steps_per_call=8)
    narrow = made_by(plan, given, 16)
    for rows in (64, 128, 512):
        monkeypatch.setattr("unimarg.batches.LABEL_ENTRIES", rows * plan.row_entries)
        wide = replace(plan, half=True)
        assert wide.rows == rows
        # what only wider parts make is left out: messages learn from softened labels there
        for name, part in made_by(wide, given, 16)._asdict().items():
            if name != "softened" or labels == "soft":
                for found, expected in zip(jax.tree.leaves(part), jax.tree.leaves(getattr(narrow, name)), strict=True):
                    assert found.shape == expected.shape
                    np.testing.assert_allclose(found.astype(jnp.float32), expected.astype(jnp.float32), rtol=2e-2, atol=2e-2)


def test_a_choice_that_looks_behind_a_channel_would_be_found(monkeypatch):
    monkeypatch.setattr("unimarg.batches.through", lambda drawn, share: jnp.zeros(drawn[0].shape, bool))
    exact, given = setting(ASIA, labels="exact", virtual=0.5, rounds=0)
    made = made_by(exact, given)
    drawn = outcomes(exact, made)
    off = np.where(np.asarray(made.certain)[..., None], 0.0, np.asarray(drawn[0]) - np.asarray(made.labels[0])).mean(axis=1)
    assert (np.abs(off.mean(axis=0)) > 4.5 * off.std(axis=0) / np.sqrt(len(off))).any()


def test_a_run_does_not_depend_on_how_many_steps_a_call_has():
    plan, given = setting(ASIA, labels="sample", virtual=0.1, rounds=0)
    whole = made_by(replace(plan, steps_per_call=4), given)
    half = made_by(replace(plan, steps_per_call=2), given, 2)
    np.testing.assert_array_equal(whole.states[2:], half.states)
    np.testing.assert_array_equal(whole.known[2:], half.known)
