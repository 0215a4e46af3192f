"""Labels from weighted samples of the posterior: their weights by hand, and their means against exact answers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unimarg as um
from networks import random_network
from unimarg.counter import key_from_seed
from unimarg.layout import compile_network
from unimarg.particles import draw_particles, proposal, weighted_labels
from unimarg.ragged import Ragged

COUNT = 8


def network(name):
    return {"random": lambda: random_network(3, 9), "medical": lambda: um.medical(3, 5, 7, seed=2), "asia": lambda: um.example("asia")}[
        name
    ]()


def shown(net, evidence, n):
    """The same evidence for n samples, as training has it: known, values, certain."""
    ragged = Ragged(tuple(net.cards.tolist()))
    known, certain = (np.array([i in evidence and kind(evidence[i]) for i in ragged.order]) for kind in (lambda _: True, np.isscalar))
    values, at = [], 0
    for k, count in ragged.groups:
        part = np.zeros((count, k), np.float32)
        for j, i in enumerate(ragged.order[at : at + count]):
            part[j] = np.eye(k)[evidence[i]] if np.isscalar(evidence.get(i)) else evidence.get(i, 0)
        values.append(jnp.broadcast_to(part, (n, *part.shape)))
        at += count
    return ragged, tuple(jnp.broadcast_to(a, (n, len(net))) for a in (known, certain)), values


def posterior_samples(net, evidence, n, seed):
    """By rejection, and for likelihoods by chance."""
    drawn = um.sample(net, 400_000, seed)
    kept = np.ones(len(drawn), bool)
    chance = np.random.default_rng(seed)
    for i, found in evidence.items():
        kept &= (drawn[:, i] == found) if np.isscalar(found) else chance.random(len(drawn)) < np.asarray(found)[drawn[:, i]]
    assert kept.sum() >= n
    return drawn[kept][:n].T


def evidence_of(net):
    """Two findings that go together, and an uncertain one."""
    x = um.sample(net, 1, seed=11)[0]
    last = len(net) - 1
    return {last: int(x[last]), last - 2: int(x[last - 2]), 1: np.linspace(0.2, 0.9, int(net.cards[1]))}


def messages_of(ragged, n, seed):
    return jnp.broadcast_to(np.random.default_rng(seed).normal(size=ragged.slots).astype(np.float32), (n, ragged.slots))


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("name", ["random", "medical", "asia"])
def test_weights_are_those_of_the_joint_against_the_proposal(name, width):
    net, n = network(name), 16
    evidence = evidence_of(net)
    ragged, (known, certain), values = shown(net, evidence, n)
    messages = messages_of(ragged, n, 1)
    compiled = compile_network(net, width)
    weigh, correct = proposal(ragged, known, values, certain, messages)
    states = posterior_samples(net, evidence, n, 3)
    samples = jnp.arange(n, dtype=jnp.uint32), jnp.uint32(0)
    drawn, found = draw_particles(compiled.layout, compiled.arrays, key_from_seed(1), samples, weigh, correct, jnp.asarray(states), COUNT)
    drawn = np.asarray(drawn).reshape(len(net), -1)
    np.testing.assert_array_equal(drawn[:, ::COUNT], states)  # the first of each is the sample
    parts = ragged.with_reference(messages)
    expected = np.zeros(drawn.shape[1])
    each = np.arange(drawn.shape[1])
    for i in range(len(net)):
        with np.errstate(divide="ignore"):
            log_p = np.log(net.mechanisms[i].rows(drawn[list(net.parents[i])].T.reshape(drawn.shape[1], -1)))
        g, j = ragged.member[i]
        logits = log_p + np.asarray(parts[g])[0, j]
        log_q = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        if np.isscalar(evidence.get(i)):
            assert (drawn[i] == evidence[i]).all()
            expected += log_p[each, drawn[i]]
            continue
        expected += log_p[each, drawn[i]] - log_q[each, drawn[i]]
        if i in evidence:
            expected += np.log(evidence[i])[drawn[i]]
    np.testing.assert_allclose(np.asarray(found).ravel(), expected, atol=2e-4)


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("lead", ["messages", "none"])
@pytest.mark.parametrize("name", ["random", "medical", "asia"])
def test_the_mean_of_labels_is_the_posterior(name, lead, width):
    """However few particles, and whatever the messages: no bias."""
    net, n = network(name), 8192
    evidence = evidence_of(net)
    ragged, (known, certain), values = shown(net, evidence, n)
    messages = messages_of(ragged, n, 2) if lead == "messages" else None
    compiled = compile_network(net, width)
    states = posterior_samples(net, evidence, n, 5)
    samples = jnp.arange(n, dtype=jnp.uint32), jnp.uint32(0)
    parts = jax.jit(weighted_labels, static_argnums=(0, 2, 8, 9))(
        compiled.layout,
        compiled.arrays,
        ragged,
        key_from_seed(1),
        samples,
        (known, values, certain),
        messages,
        jnp.asarray(states),
        4,
        False,
    )
    posterior = um.exact(net, {net.names[i]: found if np.isscalar(found) else list(found) for i, found in evidence.items()})
    for i, truth in enumerate(posterior.probabilities):
        g, j = ragged.member[i]
        labels = np.asarray(parts[g])[:, j]
        np.testing.assert_allclose(labels.sum(axis=1), 1, atol=1e-5)
        error = labels.std(axis=0) / np.sqrt(n)
        assert (np.abs(labels.mean(axis=0) - truth) <= 4.5 * error + 1e-6).all()
        outcomes = np.eye(len(truth))[states[i]].std(axis=0)
        assert (labels.std(axis=0) <= 1.02 * outcomes + 1e-6).all()


def test_more_particles_are_less_noise_and_other_samples_other_numbers():
    net, n = network("asia"), 2048
    evidence = evidence_of(net)
    ragged, (known, certain), values = shown(net, evidence, n)
    compiled = compile_network(net, 1)
    states = jnp.asarray(posterior_samples(net, evidence, n, 5))

    def labels(count, upper=0):
        samples = jnp.arange(n, dtype=jnp.uint32), jnp.uint32(upper)
        args = compiled.layout, compiled.arrays, ragged, key_from_seed(1), samples, (known, values, certain), None, states, count, False
        return np.asarray(weighted_labels(*args)[0])

    noise = [labels(count).var(axis=0).sum() for count in (1, 4, 16, 64)]
    assert noise[1] < 0.7 * noise[0]
    assert noise[2] < 0.5 * noise[1]
    assert noise[3] < 0.5 * noise[2]
    np.testing.assert_array_equal(labels(4), labels(4))
    assert (labels(4) != labels(4, upper=1)).any()


def test_a_sample_that_no_particle_can_follow_keeps_its_outcome():
    """Where rounding or a message leaves nothing, the label is the sample."""
    net, n = network("asia"), 4
    ragged, (known, certain), values = shown(net, {}, n)
    compiled = compile_network(net, 1)
    weigh, correct = proposal(ragged, known, values, certain, None)
    correct = jnp.full_like(correct, -jnp.inf)
    states = jnp.asarray(um.sample(net, n, 1).T)
    samples = jnp.arange(n, dtype=jnp.uint32), jnp.uint32(0)
    _, log_weights = draw_particles(compiled.layout, compiled.arrays, key_from_seed(1), samples, weigh, correct, states, 4)
    np.testing.assert_array_equal(jax.nn.softmax(log_weights, axis=-1), np.eye(4)[[0] * n])
