"""Training a Universal Marginalizer (paper, section 2.1), as one compiled program on the device.

A call draws a chunk of fresh samples, masks them, and takes many optimiser steps:

    x ~ P,  m ~ masks,  loss = - sum over i of log UM_i(x_i | x_m)          the marginal head
                              - sum over i of log q_i(x_i | pa_i, x_m)     the message head, where

q_i(k | pa_i, e) is proportional to P(x_i = k | pa_i) exp(lambda_i(k)). In place of x_i may stand its distribution (``batches``).
A student for SUM-IS (``student.py``) learns beside the trunk from the same samples, without a say in its gradient. Nothing is stored.
"""

from __future__ import annotations

from functools import partial, reduce
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jax import lax

from unimarg.batches import Batch, Given, Plan, batches
from unimarg.channels import interleaved
from unimarg.encoding import inputs, one_hot
from unimarg.presets import Recipe
from unimarg.ragged import Parts, Ragged, States, by_node, by_state, log_normalised
from unimarg.shares import judged, judged_rows, later
from unimarg.student import Student
from unimarg.trunk import Trunk, halved

ROWS_AS_FLOATS = 1024  # of the matrix of descendants


class Learner(NamedTuple):
    """Weights that are being learned: a trunk's or a student's."""

    weights: Any
    average: Any  # None where the recipe has none
    optimizer: Any

    @property
    def best(self) -> Any:
        """The weights to answer with."""
        return self.weights if self.average is None else self.average


class State(NamedTuple):
    step: jax.Array  # int32
    trunk: Learner
    student: Learner | None
    told: jax.Array | None  # [2, nodes]: what the last steps told of the node's shares (``shares``), where there is a start


class View(NamedTuple):
    """What the trunk saw of some samples and made of it; nodes in the order of ``ragged``."""

    features: jax.Array  # [samples, width]
    messages: jax.Array | None  # lambda, [samples, slots], if there is such a head
    known: jax.Array  # bool [samples, nodes]
    certain: jax.Array  # bool, likewise: known, and not through a channel
    values: Parts
    tables: Parts  # as in Batch


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
    told = jnp.zeros((2, nodes)) if made.architecture.from_prior else None
    return State(jnp.int32(0), trunk, None if student is None else learner(student), told)


@partial(jax.jit, static_argnames=("plan",))
def run_steps(plan: Plan, given: Given, state: State) -> tuple[State, jax.Array]:
    """``steps_per_call`` steps, fewer at the end of the run; also the loss of each, 0 for those not taken."""
    learnt_from = batches(plan, given, state.step)
    count = jnp.clip(given.steps - state.step, 0, plan.steps_per_call)

    def step(carried: tuple[Learner, Any, Any], i: jax.Array) -> tuple[tuple[Learner, Any, Any], Any]:
        """One of the trunk; also its loss, and of some rows what the student is to see."""
        trunk, told, halves = carried
        batch = jax.tree.map(lambda a: lax.dynamic_index_in_dim(a, i, 0, keepdims=False), learnt_from)
        weights = halves if plan.half else trunk.weights
        (value, (made, new)), gradient = jax.value_and_grad(loss, has_aux=True)(weights, plan, given, batch)
        gradient = jax.tree.map(lambda g: g.astype(jnp.float32), gradient)
        trunk = learn(plan.recipe, given, state.step + i, trunk, gradient)
        told = None if new is None else later(told, new, given.steps)
        seen = None if state.student is None else jax.tree.map(lambda a: a[: plan.student_rows], made)
        if not plan.half:  # every turn is taken
            return (trunk, told, None), (value, seen)
        return taken(i < count, (trunk, told, halved(trunk.weights)), carried), (value, seen)

    def turn(
        n: jax.Array, carried: tuple[Learner, Any, Learner | None, jax.Array, Any]
    ) -> tuple[Learner, Any, Learner | None, jax.Array, Any]:
        """Some steps of the trunk, one of the student from what they saw, and of the averages."""
        trunk, told, student, losses, halves = carried
        first = n * plan.together
        (trunk, told, halves), (values, seen) = lax.scan(step, (trunk, told, halves), first + jnp.arange(plan.together))
        steps, now = jnp.clip(count - first, 0, plan.together), state.step + first
        if student is not None:
            own, gradient = jax.value_and_grad(student_loss)(student.weights, plan, given, *student_view(plan, learnt_from, first, *seen))
            learnt = learn(plan.recipe, given, now, student, gradient)
            values = values.at[steps - 1].add(own * steps)  # not of those before, which may be good where this is no number
            student = averaged(plan.recipe, now, steps, taken(steps > 0, learnt, student))
        losses = lax.dynamic_update_slice_in_dim(losses, jnp.where(jnp.arange(plan.together) < steps, values, 0), first, 0)
        return averaged(plan.recipe, now, steps, trunk), told, student, losses, halves

    # A fixed number of turns, of which those beyond the run's end change nothing: a GPU would stop at each to ask whether it is the last.
    # The weights' halves are written by the update, which has them at hand, and not made by every product.
    halves = halved(state.trunk.weights) if plan.half else None
    begin = state.trunk, state.told, state.student, jnp.zeros(plan.steps_per_call), halves
    turns = plan.steps_per_call // plan.together if plan.half else count
    trunk, told, student, losses, _ = lax.fori_loop(0, turns, turn, begin)
    return State(state.step + count, trunk, student, told), losses


def taken(truly: jax.Array, now: Any, before: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(truly, a, b), now, before)


def learn(recipe: Recipe, given: Given, step: jax.Array, learner: Learner, gradient: Any) -> Learner:
    """One step of the optimiser."""
    updates, state = optimizer(recipe).update(gradient, learner.optimizer, learner.weights)
    rate = learning_rate(recipe, step, given.steps)
    return learner._replace(weights=jax.tree.map(lambda w, u: w + rate * u, learner.weights, updates), optimizer=state)


def averaged(recipe: Recipe, step: jax.Array, steps: jax.Array, learner: Learner) -> Learner:
    """The running average brought up to date after so many steps, by the weights after the last and the decay of the first."""
    if learner.average is None:
        return learner
    decay = jnp.minimum(recipe.average, (step + 1) / (step + 10)) ** steps
    return learner._replace(average=jax.tree.map(lambda a, w: a * decay + w * (1 - decay), learner.average, learner.weights))


def student_view(
    plan: Plan, learnt_from: Batch, first: jax.Array, features: jax.Array, messages: jax.Array | None
) -> tuple[View, jax.Array]:
    """The share of several batches that trains the student, the ``first`` of them first, and its states.

    At the end of a run there may be batches among them that the trunk does not learn from any more.
    """

    def joined(a: jax.Array) -> jax.Array:
        return a.reshape(a.shape[0] * a.shape[1], *a.shape[2:])

    batch: Batch = jax.tree.map(lambda a: lax.dynamic_slice_in_dim(a, first, plan.together), learnt_from)
    parts = batch.known, batch.certain, batch.values, batch.tables, jnp.swapaxes(batch.states, 1, 2)
    known, certain, values, tables, states = jax.tree.map(lambda a: joined(a[:, : plan.student_rows]), parts)
    return View(joined(features), None if messages is None else joined(messages), known, certain, values, tables), states.T


Made: TypeAlias = tuple[jax.Array, jax.Array | None]  # features and messages


def loss(trunk: Trunk, plan: Plan, given: Given, batch: Batch) -> tuple[jax.Array, tuple[Made, jax.Array | None]]:
    """Mean over samples and counted nodes of the negative log probability, summed over the heads; what was made and judged too."""
    ragged, recipe = plan.ragged, plan.recipe
    features = trunk.features(batch.inputs, plan.half, batch.noise)
    start = starting(plan, given, batch)
    logits = trunk.logits(features, start, plan.half)
    outcomes = one_hot(ragged.rows(batch.states), ragged, bool)
    counted = jnp.ones_like(batch.certain) if recipe.observed_loss else ~batch.certain
    marginals = [log_normalised(states) for states in ragged.by_states(logits["marginal"])]
    total = _cross_entropy(marginals, batch.labels or outcomes, counted, ragged)
    new = None
    if recipe.architecture.from_prior:
        every = logits["marginal"], marginals, batch.labels or outcomes, ~batch.certain
        some = judged_rows(len(batch.inputs))
        before = start["marginal"][some] if start["marginal"].ndim > 1 else start["marginal"]
        new = judged(ragged, before, *jax.tree.map(lambda a: a[some], every))
    if "message" in logits:
        messages = message_log_q(ragged, logits["message"], batch.tables)
        total = total + recipe.message_weight * _cross_entropy(messages, batch.softened or outcomes, ~batch.certain, ragged)
    return total, ((features, logits.get("message")), new)


def starting(plan: Plan, given: Given, batch: Batch) -> dict[str, jax.Array]:
    """Logits ``[samples, slots]`` that the heads start from."""
    others = {"marginal": given.prior_logits, "message": jnp.zeros_like(given.prior_logits)}
    if plan.propagation or not batch.starts:
        return batch.starts or {"marginal": given.prior_logits}
    shape = len(batch.inputs), plan.ragged.slots
    return {head: interleaved(part, jnp.broadcast_to(others[head], shape), plan.few) for head, part in batch.starts.items()}


def _cross_entropy(log_p: list[States], labels: Parts, counted: jax.Array, ragged: Ragged) -> jax.Array:
    """Mean over the counted (sample, node) pairs."""
    total = jnp.zeros(len(counted))
    for states, label, count in zip(log_p, labels, ragged.nodes(counted), strict=True):
        # where, not a product: a state that cannot be has label 0 and log probability -inf
        terms = [jnp.where(label[..., k] > 0, label[..., k] * part, 0) for k, part in enumerate(states)]
        total = total - jnp.where(count, reduce(jnp.add, terms), 0).sum(axis=1)
    return total.sum() / jnp.maximum(counted.sum(), 1)


def message_log_q(ragged: Ragged, messages: jax.Array, tables: Parts) -> list[States]:
    """log q_i(k | pa_i, e), with the samples' own parents."""
    tilts = zip(tables, ragged.by_states(messages), strict=True)
    return [log_normalised([table[..., k] + part for k, part in enumerate(states)]) for table, states in tilts]


def student_loss(student: Student, plan: Plan, given: Given, view: View, states: jax.Array) -> jax.Array:
    """Mean of -log q_i(x_i | pa_i, e, x_j for all j < i) over the unobserved nodes above a finding."""
    known, certain = by_node(view.known, plan.ragged), by_node(view.certain, plan.ragged)
    log_q = student_log_q(student, plan, view, states)
    counted = ~certain
    if given.descendants is not None:
        observed = known.astype(jnp.float32)
        # in blocks: as floats, the whole would be 400 MB for 10,000 nodes
        above = lax.map(lambda below: jnp.dot(below.astype(jnp.float32), observed) > 0, given.descendants, batch_size=ROWS_AS_FLOATS)
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
