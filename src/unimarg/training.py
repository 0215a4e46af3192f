"""Training a Universal Marginalizer (paper, section 2.1), as one compiled program on the device.

A call draws a chunk of fresh samples, masks them, and takes many optimiser steps:

    x ~ P,  m ~ masks,  loss = - sum over i of log UM_i(x_i | x_m)          the marginal head
                              - sum over i of log q_i(x_i | pa_i, x_m)     the message head, where

q_i(k | pa_i, e) is proportional to P(x_i = k | pa_i) exp(lambda_i(k)). In place of the outcome x_i stands, where asked, its
distribution given more than x_m, which has the same expectation and less noise: P(x_i | x_m) itself (``teacher``), or
P(x_i | the rest of the sample) (``blanket``). A student for SUM-IS (``student.py``) learns beside the
trunk from the same batches, without a say in the trunk's gradient. Nothing is stored. Step t uses the samples
t * batch up to (t + 1) * batch of the run's key, so that a run that was interrupted goes on to the same weights.
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
from unimarg.channels import through_channels
from unimarg.compiled import draw_states, log_conditionals_of
from unimarg.counter import Key, threefry
from unimarg.encoding import encode, inputs, one_hot
from unimarg.layout import MAX_NODES, Arrays, Layout
from unimarg.presets import Recipe
from unimarg.propagation import Propagation
from unimarg.ragged import Parts, Ragged, by_group, by_node, by_state, grouped
from unimarg.student import Student, batch_rows
from unimarg.teacher import Teacher
from unimarg.trunk import Trunk, dropout_noise, halved

LABEL_ENTRIES = 1 << 31  # of all cliques and rows that a GPU labels at once: 8 GB, several times
TAUGHT = 32  # samples, a power of two
MASKS, CHANNELS, DROPOUT = range(1, 4)  # streams of random numbers beside the samples' own


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

    @property
    def samples_per_call(self) -> int:
        return self.steps_per_call * self.recipe.batch

    @property
    def rows(self) -> int:
        """Samples that are labelled at once: a batch, and on a GPU, which wants wide work, as many as fit."""
        if not self.half:
            return self.recipe.batch
        fits = LABEL_ENTRIES / (self.teacher.entries if self.teacher else 1)
        return min(self.samples_per_call, max(self.recipe.batch, 1 << int(np.log2(max(fits, 1)))))

    @property
    def taught(self) -> int:
        """Samples that the teacher answers at once: on a CPU so few that what it computes stays near."""
        return self.rows if self.half else min(self.rows, TAUGHT)

    @property
    def tabled(self) -> bool:
        """Whether anything is learnt beside the tables."""
        return self.recipe.student > 0 or "message" in self.recipe.architecture.heads

    @property
    def soft(self) -> bool:
        """Labels given the rest of the sample."""
        return self.recipe.labels == "soft" or (self.recipe.labels == "auto" and self.half and self.teacher is None)


class Given(NamedTuple):
    """Constants of a run."""

    arrays: Arrays
    key: Key
    priors: jax.Array  # [slots]
    prior_logits: jax.Array  # [slots]
    steps: jax.Array  # int32: of the whole run, for the learning rate
    descendants: jax.Array | None = None  # bool [nodes, nodes], for a student


class Learner(NamedTuple):
    """Weights that are being learned: a trunk's or a student's."""

    weights: Any
    average: Any  # None where the recipe has none
    optimizer: Any

    @property
    def best(self) -> Any:
        """The weights to answer with."""
        return self.weights if self.average is None else self.average


class Batch(NamedTuple):
    """What a step learns from; nodes lie in the order of ``ragged`` but for ``states``."""

    inputs: jax.Array  # [samples, nodes + slots]: the encoded evidence
    labels: Parts  # [samples, nodes, K]: what the marginal head should say
    known: jax.Array  # bool [samples, nodes]
    values: Parts  # [samples, nodes, K]: the evidence
    certain: jax.Array  # bool [samples, nodes]: hard evidence
    states: jax.Array  # [nodes, samples]
    noise: jax.Array | None  # uint32 [samples, words], for dropout; drawn for all steps of a call at once
    beliefs: dict[str, jax.Array]  # [samples, slots]: logits for each head to start from, if not the prior's
    tables: Parts  # [samples, nodes, K]: log P(x_i = k | pa_i), for a message head or a student; else empty


class State(NamedTuple):
    step: jax.Array  # int32
    trunk: Learner
    student: Learner | None


class View(NamedTuple):
    """What the trunk saw of a batch and made of it; nodes in the order of ``ragged``."""

    features: jax.Array  # [samples, width]
    messages: jax.Array | None  # lambda, [samples, slots], if there is such a head
    known: jax.Array  # bool [samples, nodes]
    certain: jax.Array  # bool, likewise: known, and not through a channel
    values: Parts
    tables: Parts  # as in Batch


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
    made, nodes = plan.recipe, len(plan.ragged.cards)

    def learner(weights: Any) -> Learner:
        return Learner(weights, weights if made.average else None, optimizer(made).init(weights))

    trunk = learner(Trunk.make(seed, made.architecture, inputs(plan.ragged, made.rounds > 0), plan.ragged.slots))
    student = Student.make(seed, made.student, made.architecture.hidden[-1], nodes, plan.ragged.largest) if made.student else None
    return State(jnp.int32(0), trunk, None if student is None else learner(student))


@partial(jax.jit, static_argnames=("plan",))
def run_steps(plan: Plan, given: Given, state: State) -> tuple[State, jax.Array]:
    """``steps_per_call`` steps, fewer at the end of the run; also the loss of each, 0 for those not taken."""
    n = plan.samples_per_call
    first = state.step.astype(jnp.uint32) * np.uint32(plan.recipe.batch)
    upper = state.step.astype(jnp.uint32) >> np.uint32(33 - plan.recipe.batch.bit_length())  # beyond 2^32 samples
    samples = first + lax.iota(jnp.uint32, n)
    states = draw_states(plan.layout, given.arrays, given.key, jnp.stack([first, upper * np.uint32(MAX_NODES)]), n)
    observed = plan.recipe.mask.draw(stream(given.key, MASKS), samples, states.shape[0])

    def parts_of(a: jax.Array, size: int) -> jax.Array:
        return jnp.moveaxis(a.reshape(*a.shape[:-1], n // size, size), -2, 0)

    # Loop after loop in place of one: XLA computes cheap-looking things again wherever they are used, barrier or not, and only
    # what a loop leaves behind is safe. With random numbers and transpositions inside the teacher a step took twice the time.
    parts = tuple(parts_of(a, plan.rows) for a in (states, observed, samples))
    evidence = lax.map(lambda part: shown(plan, given, *part), parts)
    exact = None
    if plan.teacher:
        few = jax.tree.map(lambda a: a.reshape(-1, plan.taught, *a.shape[2:]), evidence[:2])
        marginals = lax.map(plan.teacher.marginals, lax.map(lambda part: likelihoods(plan.ragged, *part), few))
        exact = lax.map(lambda part: by_group(plan.ragged, part), marginals)
        exact = jax.tree.map(lambda a: a.reshape(-1, plan.rows, *a.shape[2:]), exact)
    learnt_from = lax.map(lambda part: labelled(plan, given, *part), (*evidence, exact, *parts[:2]))
    if plan.rows != plan.recipe.batch:
        learnt_from = jax.tree.map(lambda a: a.reshape(-1, plan.recipe.batch, *a.shape[2:]), learnt_from._replace(states=None))
        learnt_from = learnt_from._replace(states=parts_of(states, plan.recipe.batch))
    noise = dropout_noise(stream(given.key, DROPOUT), samples, plan.recipe.architecture)
    if noise is not None:
        learnt_from = learnt_from._replace(noise=noise.reshape(-1, plan.recipe.batch, noise.shape[-1]))

    count = jnp.clip(given.steps - state.step, 0, plan.steps_per_call)

    def step(i: jax.Array, carried: tuple[State, jax.Array, Any]) -> tuple[State, jax.Array, Any]:
        state, losses, halves = carried
        batch = jax.tree.map(lambda a: lax.dynamic_index_in_dim(a, i, 0, keepdims=False), learnt_from)
        weights = halves if plan.half else state.trunk.weights
        (value, view), gradient = jax.value_and_grad(loss, has_aux=True)(weights, plan, given, batch)
        gradient = jax.tree.map(lambda g: g.astype(jnp.float32), gradient)
        trunk, student = learn(plan.recipe, given, state.step, state.trunk, gradient), state.student
        if student is not None:
            own, gradient = jax.value_and_grad(student_loss)(student.weights, plan, given, view, batch.states)
            value, student = value + own, learn(plan.recipe, given, state.step, student, gradient)
        new = State(state.step + 1, trunk, student), losses.at[i].set(value), halved(trunk.weights) if plan.half else None
        return jax.tree.map(lambda now, before: jnp.where(i < count, now, before), new, carried)

    # A fixed number of turns, of which those beyond the run's end change nothing: a GPU would stop at each to ask whether it is the last.
    # The weights' halves are written by the update, which has them at hand, and not made by every product.
    begin = state, jnp.zeros(plan.steps_per_call), halved(state.trunk.weights) if plan.half else None
    return lax.fori_loop(0, plan.steps_per_call if plan.half else count, step, begin)[:2]


def learn(recipe: Recipe, given: Given, step: jax.Array, learner: Learner, gradient: Any) -> Learner:
    """One step of the optimiser, and of the running average."""
    updates, state = optimizer(recipe).update(gradient, learner.optimizer, learner.weights)
    rate = learning_rate(recipe, step, given.steps)
    weights = jax.tree.map(lambda w, u: w + rate * u, learner.weights, updates)
    average = learner.average
    if average is not None:
        decay = jnp.minimum(recipe.average, (step + 1) / (step + 10))
        average = jax.tree.map(lambda a, w: a * decay + w * (1 - decay), average, weights)
    return Learner(weights, average, state)


def shown(plan: Plan, given: Given, states: jax.Array, observed: jax.Array, samples: jax.Array) -> tuple[jax.Array, Parts, jax.Array]:
    """The evidence of a batch: which nodes are known, their values, and which of them are certain."""
    known, rows = plan.ragged.rows(observed), plan.ragged.rows(states)
    if not plan.recipe.virtual:
        return known, one_hot(rows, plan.ragged, bool), known  # a byte each: they are kept for many steps
    values = one_hot(rows, plan.ragged)
    seen, certain = through_channels(stream(given.key, CHANNELS), plan.recipe.virtual, known, values, plan.ragged, samples)
    return known, seen, certain


def labelled(
    plan: Plan,
    given: Given,
    known: jax.Array,
    values: Parts,
    certain: jax.Array,
    exact: Parts | None,
    states: jax.Array,
    observed: jax.Array,
) -> Batch:
    """The evidence encoded, and what it implies: the exact marginals, or the samples themselves, softened where asked.

    The tables' rows are looked up here, for many batches at once, because a GPU takes as long for few samples as for many.
    """
    ragged = plan.ragged
    log_p = log_conditionals_of(plan.layout, given.arrays, states)  # left out by the compiler where nothing needs it
    beliefs = {} if plan.propagation is None else plan.propagation.logits(known, values, plan.half)
    beliefs = {head: part for head, part in beliefs.items() if head in plan.recipe.architecture.heads}
    kind = jnp.bfloat16 if plan.half else jnp.float32  # as the first product takes it
    encoded = encode(plan.recipe.encoding, known, values, ragged, given.priors, beliefs.get("marginal"), kind)
    if exact is not None:
        labels = exact
    elif plan.soft:
        labels = soft_labels(plan, given, known, values, states, observed, log_p)
    else:
        labels = one_hot(ragged.rows(states), ragged, bool)
    tables = grouped(log_p, ragged) if plan.tabled else []
    return Batch(encoded, labels, known, values, certain, states, None, beliefs, tables)


def soft_labels(
    plan: Plan, given: Given, known: jax.Array, values: Parts, states: jax.Array, observed: jax.Array, log_p: jax.Array
) -> Parts:
    """P(x_i = k | the rest of the sample), ``[samples, nodes, K]`` for each group."""
    logits = grouped(blanket_log_p(plan.layout, given.arrays, states, observed, log_p), plan.ragged)
    return [
        jax.nn.softmax(jnp.where(flag[..., None], jnp.log(value), 0) + part, axis=-1)
        for part, flag, value in zip(logits, plan.ragged.nodes(known), values, strict=True)
    ]


def loss(trunk: Trunk, plan: Plan, given: Given, batch: Batch) -> tuple[jax.Array, View]:
    """Mean over samples and counted nodes of the negative log probability, summed over the heads; and what was seen."""
    ragged, recipe = plan.ragged, plan.recipe
    features = trunk.features(batch.inputs, plan.half, batch.noise)
    logits = trunk.logits(features, batch.beliefs or {"marginal": given.prior_logits}, plan.half)
    counted = jnp.ones_like(batch.certain) if recipe.observed_loss else ~batch.certain
    total = _cross_entropy(ragged.log_softmax(logits["marginal"]), batch.labels, counted, ragged)
    if "message" in logits:
        messages = message_log_q(ragged, logits["message"], batch.tables)
        drawn = batch.labels if plan.soft else one_hot(ragged.rows(batch.states), ragged)
        total = total + recipe.message_weight * _cross_entropy(messages, drawn, ~batch.certain, ragged)
    return total, View(features, logits.get("message"), batch.known, batch.certain, batch.values, batch.tables)


def _cross_entropy(log_p: Parts, labels: Parts, counted: jax.Array, ragged: Ragged) -> jax.Array:
    """Mean over the counted (sample, node) pairs."""
    total = jnp.float32(0)
    for part, label, count in zip(log_p, labels, ragged.nodes(counted), strict=True):
        # where, not a product: a state that cannot be has label 0 and log probability -inf
        total = total - jnp.where((label > 0) & count[..., None], label * part, 0).sum()
    return total / jnp.maximum(counted.sum(), 1)


def likelihoods(ragged: Ragged, known: jax.Array, values: Parts) -> list[jax.Array]:
    """The evidence as the teacher takes it: ``[K, samples]`` for each node, ones where nothing is known."""
    grouped = [
        jnp.where(flag[:, j], value[:, j].T, 1.0)
        for flag, value in zip(ragged.nodes(known), values, strict=True)
        for j in range(value.shape[1])
    ]
    return [grouped[p] for p in ragged.place]


def message_log_q(ragged: Ragged, messages: jax.Array, tables: Parts) -> Parts:
    """log q_i(k | pa_i, e), ``[samples, nodes, K]`` for each group, with the samples' own parents."""
    return [jax.nn.log_softmax(table + part, axis=-1) for table, part in zip(tables, ragged.with_reference(messages), strict=True)]


def student_loss(student: Student, plan: Plan, given: Given, view: View, states: jax.Array) -> jax.Array:
    """Mean of -log q_i(x_i | pa_i, e, x_j for all j < i) over the unobserved nodes above a finding, for a share of the batch."""
    rows = batch_rows(states.shape[1])
    view, states = cast(View, jax.tree.map(lambda a: a[:rows], view)), states[:, :rows]
    known, certain = by_node(view.known, plan.ragged), by_node(view.certain, plan.ragged)
    log_q = student_log_q(student, plan, view, states)
    counted = ~certain
    if given.descendants is not None:
        above = jnp.dot(given.descendants.astype(jnp.float32), known.astype(jnp.float32)) > 0
        counted &= above | known  # a virtual finding counts as an observed child
    drawn = (states[:, None] == jnp.arange(log_q.shape[1], dtype=states.dtype)[:, None]) & counted[:, None]
    return -jnp.where(drawn, log_q, 0).sum() / jnp.maximum(counted.sum(), 1)


def student_log_q(student: Student, plan: Plan, view: View, states: jax.Array) -> jax.Array:
    """log q_i(k | pa_i, e, x_j for all j < i), ``[nodes, K, samples]``, with the samples' own x."""
    ragged = plan.ragged
    certain, known = by_node(view.certain, ragged), by_node(view.known, ragged)
    logits = by_state(view.tables, ragged, -jnp.inf) + student.messages(view.features, states, ~certain, plan.half)
    if view.messages is not None:
        logits = logits + jnp.where(known[:, None], 0, by_state(ragged.with_reference(view.messages), ragged))
    if plan.recipe.virtual:
        logits = logits + jnp.where((known & ~certain)[:, None], jnp.log(by_state(view.values, ragged)), 0)
    return jax.nn.log_softmax(logits, axis=1)
