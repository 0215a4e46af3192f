"""Training a Universal Marginalizer (paper, section 2.1), as one compiled program on the device.

A call draws a chunk of fresh samples, masks them, labels them, and takes many optimiser steps:

    x ~ P,  m ~ masks,  loss = - sum over i of log UM_i(x_i | x_m)          the marginal head
                              - sum over i of log q_i(x_i | pa_i, x_m)     the message head, where

q_i(k | pa_i, e) is proportional to P(x_i = k | pa_i) exp(lambda_i(k)). In place of the outcome x_i stands, where
asked, its distribution given more than x_m, which has the same expectation and less noise: P(x_i | x_m) itself
(``teacher``), or P(x_i | the rest of the sample) (``blanket``).

Nothing is stored. A call that begins at step t uses the samples from t * batch / passes on of the run's key, so that a
run that was interrupted goes on to the same weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from unimarg.blanket import blanket_log_p
from unimarg.compiled import draw_states, log_conditionals_of
from unimarg.counter import Key, threefry, words
from unimarg.encoding import encode, inputs, one_hot
from unimarg.layout import MAX_NODES, Arrays, Layout
from unimarg.presets import Recipe
from unimarg.propagation import Propagation, by_blocks
from unimarg.ragged import Parts, Ragged, take_rows
from unimarg.teacher import Teacher
from unimarg.trunk import Trunk

MASKS, CHANNELS, DROPOUT, ORDER = range(1, 5)  # streams of random numbers beside the samples' own


LABEL_ENTRIES, LABEL_ENTRIES_ACCELERATED = 1 << 24, 1 << 31  # of all cliques together, for the rows labelled at once


@dataclass(frozen=True)
class Plan:
    """What the compiled program depends on."""

    layout: Layout
    ragged: Ragged
    recipe: Recipe
    steps_per_call: int
    half: bool  # bfloat16 products
    teacher: Teacher | None = None  # exact labels
    propagation: Propagation | None = None  # beliefs to start from
    passes: int = 1  # over the examples of a call; divides ``steps_per_call``

    @property
    def samples_per_call(self) -> int:
        return self.steps_per_call * self.recipe.batch // self.passes


class Given(NamedTuple):
    """Constants of a run."""

    arrays: Arrays
    key: Key
    priors: jax.Array  # [slots]
    prior_logits: jax.Array  # [slots]
    steps: jax.Array  # int32: of the whole run, for the learning rate


class Examples(NamedTuple):
    """Evidence with its labels, sample by sample; nodes lie in the order of ``Ragged``."""

    samples: jax.Array  # uint32 [n]
    drawn: jax.Array  # [n, nodes]: the states
    known: jax.Array  # bool [n, nodes]: shown
    certain: jax.Array  # bool [n, nodes]: shown as it is, not through a channel
    values: Parts | None  # [n, nodes, K]: what is shown; None: the states
    labels: Parts | None  # [n, nodes, K]: of the marginal head; None: the states
    rest: Parts | None  # [n, nodes, K]: P(x_i | the rest of the sample), which labels both heads
    log_p: Parts | None  # [n, nodes, K]: log P(x_i = k | pa_i), for the message head
    beliefs: jax.Array | None  # [n, slots]: logits by belief propagation


class State(NamedTuple):
    step: jax.Array  # int32
    trunk: Trunk
    average: Trunk | None
    optimizer: Any


def stream(key: Key, number: int) -> Key:
    """A key of its own for each purpose."""
    return jnp.stack(threefry(key, jnp.uint32(0xFFFFFFFF), jnp.uint32(number)))


def optimizer(recipe: Recipe) -> optax.GradientTransformation:
    """Adam with a rate of 1; ``learning_rate`` is applied apart, because it depends on the run's length."""
    adam = optax.adam(1.0)
    return optax.chain(optax.clip_by_global_norm(recipe.clip), adam) if recipe.clip else adam


def learning_rate(recipe: Recipe, step: jax.Array, steps: jax.Array) -> jax.Array:
    """Constant, or warm-up and then a cosine down to zero at the end of the run."""
    if not recipe.warm_up:
        return jnp.float32(recipe.learning_rate)
    warm_up = jnp.minimum(recipe.warm_up, jnp.maximum(1, steps // 10))
    rising = (step + 1) / warm_up
    falling = 0.5 * (1 + jnp.cos(jnp.pi * jnp.clip((step - warm_up) / jnp.maximum(steps - warm_up, 1), 0, 1)))
    return recipe.learning_rate * jnp.minimum(rising, falling).astype(jnp.float32)


def initial_state(plan: Plan, seed: int) -> State:
    trunk = Trunk.make(seed, plan.recipe.architecture, inputs(plan.ragged, plan.recipe.rounds > 0), plan.ragged.slots)
    return State(jnp.int32(0), trunk, trunk if plan.recipe.average else None, optimizer(plan.recipe).init(cast(Any, trunk)))


@partial(jax.jit, static_argnames=("plan",))
def run_steps(plan: Plan, given: Given, state: State) -> tuple[State, jax.Array]:
    """``steps_per_call`` steps; also the loss of each."""
    n, batch = plan.samples_per_call, plan.recipe.batch
    number = state.step.astype(jnp.uint32) // np.uint32(plan.passes)  # of the first fresh batch
    first = number * np.uint32(batch)
    upper = number >> np.uint32(33 - batch.bit_length())  # beyond 2^32 samples
    samples = first + lax.iota(jnp.uint32, n)
    states = draw_states(plan.layout, given.arrays, given.key, jnp.stack([first, upper * np.uint32(MAX_NODES)]), n)
    observed = plan.recipe.mask.draw(stream(given.key, MASKS), samples, states.shape[0])
    examples = lax.optimization_barrier(make_examples(plan, given, states, observed, samples))

    def step(state: State, batch: Examples) -> tuple[State, jax.Array]:
        value, gradient = jax.value_and_grad(loss)(state.trunk, plan, given, batch)
        updates, optimizer_state = optimizer(plan.recipe).update(gradient, state.optimizer, cast(Any, state.trunk))
        rate = learning_rate(plan.recipe, state.step, given.steps)
        trunk = jax.tree.map(lambda w, u: w + rate * u, state.trunk, updates)
        average = state.average
        if average is not None:
            decay = jnp.minimum(plan.recipe.average, (state.step + 1) / (state.step + 10))
            average = jax.tree.map(lambda a, t: a * decay + t * (1 - decay), average, trunk)
        return State(state.step + 1, trunk, average, optimizer_state), value

    def one_pass(state: State, number: jax.Array) -> tuple[State, jax.Array]:
        shuffled = examples
        if plan.passes > 1:  # each pass in an order of its own
            order = jnp.argsort(words(stream(given.key, ORDER), samples, number[None])[0][0])
            shuffled = jax.tree.map(lambda a: a[order], examples)
        return lax.scan(step, state, jax.tree.map(lambda a: a.reshape(-1, batch, *a.shape[1:]), shuffled))

    state, losses = lax.scan(one_pass, state, lax.iota(jnp.uint32, plan.passes))
    return state, losses.reshape(-1)


def make_examples(plan: Plan, given: Given, states: jax.Array, observed: jax.Array, samples: jax.Array) -> Examples:
    """From states and what is observed of them, ``[nodes, n]`` each in the network's order."""
    ragged, recipe = plan.ragged, plan.recipe
    drawn, known = ragged.rows(states), ragged.rows(observed)
    shown, certain, values = one_hot(drawn, ragged), known, None
    if recipe.virtual:
        shown, certain = through_channels(stream(given.key, CHANNELS), recipe.virtual, known, shown, ragged, samples)
        values = shown
    labels, rest, log_p = None, None, None
    if plan.teacher is not None:
        most = (LABEL_ENTRIES_ACCELERATED if plan.half else LABEL_ENTRIES) / plan.teacher.entries
        label = partial(exact_labels, plan.teacher, ragged)
        labels = by_blocks(lambda block: label(*block), (known, shown), most)
    messages = "message" in recipe.architecture.heads
    softly = labels is None and recipe.labels in ("soft", "auto")
    if messages or softly:
        tables = log_conditionals_of(plan.layout, given.arrays, states)  # [nodes, card, n]
        log_p = _as_parts(tables, ragged) if messages else None
        if softly:
            logits = _as_parts(blanket_log_p(plan.layout, given.arrays, states, observed, tables), ragged)
            rest = [jax.nn.softmax(jnp.where(k[..., None], jnp.log(v), 0) + part) for part, k, v in zip(logits, ragged.nodes(known), shown, strict=True)]
    beliefs = None if plan.propagation is None else plan.propagation.logits(known, shown, plan.half)
    return Examples(samples, drawn, known, certain, values, labels, rest, log_p, beliefs)


def _as_parts(by_node: jax.Array, ragged: Ragged) -> Parts:
    """``[nodes, card, n]`` in the network's order as ``[n, nodes, K]`` for each group."""
    out, at = [], 0
    for k, n in ragged.groups:
        nodes = jnp.asarray(ragged.order[at : at + n])
        out.append(jnp.moveaxis(take_rows(by_node, nodes)[:, :k], -1, 0))
        at += n
    return out


def loss(trunk: Trunk, plan: Plan, given: Given, batch: Examples) -> jax.Array:
    """Mean over samples and counted nodes of the negative log probability, summed over the heads."""
    ragged, recipe = plan.ragged, plan.recipe
    drawn = one_hot(batch.drawn, ragged)
    values = drawn if batch.values is None else batch.values
    key = None
    if recipe.architecture.dropout:
        data = jnp.stack(threefry(stream(given.key, DROPOUT), batch.samples[0], jnp.uint32(0)))
        key = jax.random.wrap_key_data(data, impl="threefry2x32")
    x = encode(recipe.encoding, batch.known, values, ragged, given.priors, batch.beliefs)
    logits = trunk(x, given.prior_logits if batch.beliefs is None else batch.beliefs, plan.half, key)
    counted = jnp.ones_like(batch.certain) if recipe.observed_loss else ~batch.certain
    outcome = drawn if batch.rest is None else batch.rest
    total = _cross_entropy(ragged.log_softmax(logits["marginal"]), outcome if batch.labels is None else batch.labels, counted, ragged)
    if "message" in logits:
        assert batch.log_p is not None
        messages = message_log_q(ragged, batch.log_p, logits["message"])
        total = total + recipe.message_weight * _cross_entropy(messages, outcome, ~batch.certain, ragged)
    return total


def _cross_entropy(log_p: Parts, labels: Parts, counted: jax.Array, ragged: Ragged) -> jax.Array:
    """Mean over the counted (sample, node) pairs."""
    total = jnp.float32(0)
    for part, label, count in zip(log_p, labels, ragged.nodes(counted), strict=True):
        # where, not a product: a state that cannot be has label 0 and log probability -inf
        total = total - jnp.where((label > 0) & count[..., None], label * part, 0).sum()
    return total / jnp.maximum(counted.sum(), 1)


def exact_labels(teacher: Teacher, ragged: Ragged, known: jax.Array, values: Parts) -> Parts:
    """P(X_i = k | e) for every node, ``[samples, nodes, K]`` for each group."""
    likelihoods = [
        jnp.where(flag[:, j], value[:, j].T, 1.0)
        for flag, value in zip(ragged.nodes(known), values, strict=True)
        for j in range(value.shape[1])
    ]
    marginals = teacher.marginals([likelihoods[p] for p in ragged.place])
    out, at = [], 0
    for _, n in ragged.groups:
        out.append(jnp.moveaxis(jnp.stack([marginals[i] for i in ragged.order[at : at + n]]), -1, 0))
        at += n
    return lax.stop_gradient(lax.optimization_barrier(out))


def message_log_q(ragged: Ragged, log_p: Parts, messages: jax.Array) -> Parts:
    """log q_i(k | pa_i, e), ``[samples, nodes, K]`` for each group, with the samples' own parents."""
    return [jax.nn.log_softmax(table + part, axis=-1) for table, part in zip(log_p, ragged.with_reference(messages), strict=True)]


def through_channels(
    key: Key, share: float, known: jax.Array, values: Parts, ragged: Ragged, samples: jax.Array
) -> tuple[Parts, jax.Array]:
    """Some of the known nodes seen through a random channel: their likelihoods, and which stay certain.

    The channel splits the states at random in two and reports the half that holds the state, wrongly with
    probability noise / 2; noise ~ U[0, 1]. The likelihood of the report is (1 - noise) [same half] + noise / 2.
    """
    nodes = jnp.arange(known.shape[-1], dtype=jnp.uint32)
    high, low = words(key, samples, nodes)
    uncertain = known & (share > _fraction(high).T)
    noise = _fraction(words(key, samples, nodes.size + nodes)[0]).T
    wrong = noise / 2 > _fraction(low).T
    halves = words(key, samples, 2 * nodes.size + nodes)[0].T  # bit k: the half that state k is in
    seen = []
    for value, unsure, e, flip, bits in zip(values, *(ragged.nodes(a) for a in (uncertain, noise, wrong, halves)), strict=True):
        half = (bits[..., None] >> (jnp.arange(value.shape[-1], dtype=jnp.uint32) % 32)) & 1
        own = (half * value.astype(jnp.uint32)).sum(axis=-1)
        report = jnp.where(flip, 1 - own, own)[..., None]
        likelihood = jnp.where(half == report, 1 - e[..., None] / 2, e[..., None] / 2)
        seen.append(jnp.where(unsure[..., None], likelihood / likelihood.sum(axis=-1, keepdims=True), value))
    return lax.optimization_barrier((seen, known & ~uncertain))


def _fraction(word: jax.Array) -> jax.Array:
    return (word >> np.uint32(8)).astype(jnp.float32) * np.float32(2.0**-24)
