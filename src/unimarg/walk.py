"""Draw the nodes one after another, each from a conditional that a proposal decides, and keep the weights.

The order, the conditionals and the evidence are data (``conditionals.Conditionals``), so that one compiled program serves
every query of a network. With t_i = P(x_i | pa_i) l_i(x_i), l_i the likelihood of a finding at node i (one where there is none),

    log w = sum over i of [ log t_i(x_i) - log q_i(x_i | what was drawn before) ]

is summed node by node, and is exactly 0 where q = P. A node's conditional is one of

    TABLE         a table over some nodes drawn before, inverted by integers as in ``compiled``
    TILTED        the same, times D
    NOISY         a noisy-max too large for a table: q = (1 - beta) t f exp(lambda) D / Z + beta u, with f a table or 1
    PLAIN_*       P(x_i | pa_i) itself: nothing to weigh

D is what hidden noisy-max children say. For each such child c the sums of log P(X_c <= k | parents) are kept, with what parents not
yet drawn contribute in expectation; D(s) = prod_c sum_k b_ck P(X_c = k | x_i = s, drawn, expected), b_c what lies below c.

A step may also draw a part of a node: an observed noisy-max as a chain of maxima over its parents (see ``proposals.lookahead``),
each link overwriting the one before.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from unimarg.compiled import FEW_STATES, ONE_CORE, log_p_of_steps, noisy_steps
from unimarg.conditionals import (
    NOISY,
    PLAIN_NOISY,
    PLAIN_TABLE,
    TABLE,
    TILTED,
    Conditionals,
    Edges,
    Mean,
    Step,
)
from unimarg.counter import Key, words
from unimarg.frame import Shape
from unimarg.layout import NoisyBlocks

assert (PLAIN_TABLE, TABLE, PLAIN_NOISY, NOISY, TILTED) == (0, 1, 2, 3, 4)  # the order of the branches below
BINARY = 3  # branches further on, those of noisy-max nodes are repeated for two states


class Origin(NamedTuple):
    """What each node was drawn from."""

    rows: jax.Array  # [nodes, n]: where the row of its table begins; -1 where it was not from a table's row alone
    formula: jax.Array  # [formulas + 1, states, n]: then q of all states but the first; the last is scrap


def walk(
    shape: Shape, given: Conditionals, key: Key, first: jax.Array, n: int, forced: jax.Array | None = None
) -> tuple[jax.Array, jax.Array, Origin]:
    """States ``[nodes, n]`` and log weights ``[n]`` of the samples from number ``first`` (lower and upper word) on.

    With ``forced`` states ``[steps, n]`` nothing is drawn: these states' weights are given.
    """
    states, log_w, _, _, origin = _walk(shape, given, key, first, n, forced, False)
    return states, log_w, origin


def trace(shape: Shape, given: Conditionals, key: Key, first: jax.Array, n: int) -> tuple[jax.Array, jax.Array]:
    """What every step drew, ``[most steps, n]``, and the log weights: links keep their states here."""
    _, log_w, kept, _, _ = _walk(shape, given, key, first, n, None, True)
    return kept, log_w


@partial(jax.jit, static_argnames=("shape", "n", "keep"), compiler_options=ONE_CORE)
def _walk(shape: Shape, given: Conditionals, key: Key, first: jax.Array, n: int, forced: jax.Array | None, keep: bool) -> Any:
    samples = first[0] + lax.iota(jnp.uint32, n)

    def body(t: jax.Array, carry: Any) -> Any:
        states, log_w, kept, sums, origin = carry
        now: Step = jax.tree.map(lambda a: lax.dynamic_index_in_dim(a, t, 0, keepdims=False), given.steps)
        here = Here(given, now, states, sums, *words(key, samples, (now.number.astype(jnp.uint32) + first[1])[None]))
        if forced is not None:
            here = here._replace(fixed=lax.dynamic_index_in_dim(forced, t, 0, keepdims=False).astype(jnp.int32))
        branches = [_plain_table, _table]
        if given.noisy is not None:
            card = given.noisy.leak.shape[-1] + 1
            parent_card = card if given.edges is None else given.edges.effect.shape[1]
            for own, parent in ((card, parent_card), (2, 2)):
                branches += [partial(_plain_noisy, card=own), partial(_noisy, card=own), partial(_tilted, card=parent)]
        which = now.mode + jnp.where((now.mode >= PLAIN_NOISY) & (now.card == 2), BINARY, 0)
        new, gain, row, log_q = lax.switch(which, [lambda b=b: _same_shape(b(here), shape.formula_states) for b in branches])
        states = lax.dynamic_update_slice(states, new.astype(shape.dtype)[None], (now.node, 0))
        if kept is not None:
            kept = lax.dynamic_update_slice(kept, new.astype(shape.dtype)[None], (t, 0))
        else:
            rows = lax.dynamic_update_slice(origin.rows, row[None], (now.node, 0))
            origin = Origin(rows, lax.dynamic_update_slice(origin.formula, jnp.exp(log_q)[None], (now.formula, 0, 0)))
        return states, log_w + gain, kept, None if sums is None else _settle(given.edges, now, new, sums), origin

    sums = None if given.edges is None else jnp.broadcast_to(given.edges.start[..., None], (*given.edges.start.shape, n))
    kept = jnp.zeros((len(given.steps.node), n), shape.dtype) if keep else None
    origin = None
    if not keep:
        origin = Origin(jnp.full((shape.nodes, n), -1, jnp.int32), jnp.zeros((shape.formulas + 1, shape.formula_states, n)))
    begin = (jnp.zeros((shape.nodes, n), shape.dtype), jnp.zeros(n), kept, sums, origin)
    return lax.fori_loop(0, given.drawn, body, begin)


Drawing = tuple[jax.Array, jax.Array, jax.Array | None, list[jax.Array]]


class Here(NamedTuple):
    """A step of the walk."""

    given: Conditionals
    now: Step
    states: jax.Array
    sums: jax.Array | None  # [large noisy-max nodes, card - 1, n]
    high: jax.Array  # random words [1, n]
    low: jax.Array
    fixed: jax.Array | None = None


# --- one node: each gives the states, what they add to the log weight, the row of the table they are from, or log q of every state


def _same_shape(drawing: Drawing, states: int) -> tuple[jax.Array, ...]:
    state, gain, row, log_q = drawing
    never = jnp.full(state.shape, -jnp.inf)
    by_state = jnp.stack([*log_q[1:], *[never] * states][:states]) if states else jnp.zeros((0, *state.shape))
    return state, gain, jnp.full(state.shape, -1) if row is None else row, by_state


def _plain_table(here: Here) -> Drawing:
    row = table_entries(here.now, here.states)
    return _invert(here, row), jnp.zeros(row.shape), row, []


def _table(here: Here) -> Drawing:
    row = table_entries(here.now, here.states)
    state = _invert(here, row)
    return state, here.given.log_ratio.at[row + state].get(mode="promise_in_bounds"), row, []


def _plain_noisy(here: Here, card: int) -> Drawing:
    state = _draw(here, _log_p_noisy(here.given, here.now, here.states, card))
    return state, jnp.zeros(state.shape), None, []


def _noisy(here: Here, card: int) -> Drawing:
    now = here.now
    target = [p + now.log_likelihood[k] for k, p in enumerate(_log_p_noisy(here.given, now, here.states, card))]
    log_a = [t + now.tilt[k] for k, t in enumerate(target)]
    if here.sums is not None:
        table, say = _log_table(here, card), _children_say(here, card)
        log_a = [a + jnp.where(now.half > 0, t, 0) + d for a, t, d in zip(log_a, table, say, strict=True)]
    total = _logsumexp(log_a)
    log_q = [a - total for a in log_a]
    if now.log_other is not None:
        log_q = _mixed(now, target, log_q)
    impossible = total == -jnp.inf  # nothing fits what was drawn before: any state will do, the weight is 0
    anything = jnp.where(jnp.arange(card) < now.card, -jnp.log(now.card.astype(jnp.float32)), -jnp.inf)
    log_q = [jnp.where(impossible, anything[k], q) for k, q in enumerate(log_q)]
    state = _draw(here, log_q)
    log_t = _pick(target, state)
    return state, jnp.where(log_t > -jnp.inf, log_t - _pick(log_q, state), -jnp.inf), None, log_q


def _mixed(now: Step, target: list[jax.Array], log_q: list[jax.Array]) -> list[jax.Array]:
    """(1 - beta) q + beta u, with u renormalised, on the target's support where asked."""
    assert now.log_other is not None
    other = [jnp.where((t > -jnp.inf) | ~now.on_support, now.log_other[k], -jnp.inf) for k, t in enumerate(target)]
    scale = _logsumexp(other)
    other = [u - jnp.where(scale > -jnp.inf, scale, 0) for u in other]
    mixed = [jnp.logaddexp(jnp.log1p(-now.beta) + q, jnp.log(now.beta) + u) for q, u in zip(log_q, other, strict=True)]
    return [jnp.where(now.beta > 0, m, q) for m, q in zip(mixed, log_q, strict=True)]


def _tilted(here: Here, card: int) -> Drawing:
    if here.sums is None:
        return _table(here)
    base = table_entries(here.now, here.states)
    say = _children_say(here, card)
    log_q = [q + d for q, d in zip(_log_table(here, card), say, strict=True)]
    total = _logsumexp(log_q)
    log_q = [q - total for q in log_q]
    state = _draw(here, log_q)
    gain = here.given.log_ratio.at[base + state].get(mode="promise_in_bounds") + total - _pick(say, state)
    return state, gain, None, log_q


# --- parts of a node's step


def table_entries(now: Step | Mean, states: jax.Array) -> jax.Array:
    """Where the row of the node's table begins that the states select, ``[n]``."""

    def add(c: jax.Array, index: jax.Array) -> jax.Array:
        row = lax.dynamic_index_in_dim(states, now.context[c], 0, keepdims=False)
        return index + now.strides[c] * row.astype(jnp.int32)

    return lax.fori_loop(0, now.contexts, add, jnp.broadcast_to(now.offset, states.shape[1:]))


def _invert(here: Here, base: jax.Array) -> jax.Array:
    """The number of k with u < 2^32 P(X > k), by bisection; an even word never reaches the all-ones threshold."""
    if here.fixed is not None:
        return here.fixed
    even = here.high[0] & np.uint32(0xFFFFFFFE)

    def halve(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        step, state = carry
        above = even < here.given.high.at[base + state + (step - 1)].get(mode="promise_in_bounds")
        return step // 2, state + jnp.where(above, step, 0)

    return lax.while_loop(lambda c: c[0] > 0, halve, (here.now.half, jnp.zeros_like(base)))[1]


def _draw(here: Here, log_q: list[jax.Array]) -> jax.Array:
    """A state from its log probabilities; the random number is precise near 0 and near 1."""
    if here.fixed is not None:
        return here.fixed
    high, low = here.high[0], here.low[0]
    below = high.astype(jnp.float32) * np.float32(2.0**-32) + low.astype(jnp.float32) * np.float32(2.0**-64)
    above = (~high).astype(jnp.float32) * np.float32(2.0**-32) + (~low).astype(jnp.float32) * np.float32(2.0**-64)
    q = [jnp.exp(a) for a in log_q]
    state, head = jnp.zeros(high.shape, jnp.int32), jnp.zeros(high.shape)
    tails = [jnp.zeros(high.shape)]
    for p in reversed(q[1:]):
        tails.append(tails[-1] + p)
    for p, tail in zip(q[:-1], reversed(tails[1:]), strict=True):
        head = head + p
        state = state + jnp.where(tail <= head, below < tail, above >= head)
    return state


def _logsumexp(parts: list[jax.Array]) -> jax.Array:
    top = parts[0]
    for p in parts[1:]:
        top = jnp.maximum(top, p)
    safe = jnp.where(top > -jnp.inf, top, 0)
    total = jnp.exp(parts[0] - safe)
    for p in parts[1:]:
        total = total + jnp.exp(p - safe)
    return jnp.log(total) + safe


def _pick(parts: list[jax.Array], state: jax.Array) -> jax.Array:
    out = parts[0]
    for k, p in enumerate(parts[1:], 1):
        out = jnp.where(state == k, p, out)
    return out


def _log_p_noisy(given: Conditionals, now: Step, states: jax.Array, card: int) -> list[jax.Array]:
    """log P(x_i = k | pa_i) of a noisy-max node of at most ``card`` states, ``[n]`` for each."""
    return log_p_of_steps(noisy_steps_of(given.noisy, now, states, card))


def noisy_steps_of(noisy: NoisyBlocks | None, now: Step | Mean, states: jax.Array, card: int) -> list[jax.Array]:
    assert noisy is not None
    block = jax.tree.map(lambda a: lax.dynamic_index_in_dim(a, now.noisy, 0, keepdims=False), noisy)
    block = block._replace(leak=block.leak[..., : card - 1], steps=block.steps[..., : card - 1])
    return [d[0] for d in noisy_steps(block, states)]


def _log_table(here: Here, card: int) -> list[jax.Array]:
    """log of the row of the step's table, -inf for states that the node lacks, ``[n]`` for each."""
    base = table_entries(here.now, here.states)
    width = 2 * here.now.half
    rows = [here.given.prob.at[base + jnp.minimum(k, jnp.maximum(width - 1, 0))].get(mode="promise_in_bounds") for k in range(card)]
    return [jnp.where(k < width, jnp.log(r), -jnp.inf) for k, r in enumerate(rows)]


# --- what hidden noisy-max children say


def _children_say(here: Here, card: int) -> list[jax.Array]:
    """log D(s) - log D(0) for each state s of the node, ``[n]`` each."""
    edges, sums, now = here.given.edges, here.sums, here.now
    assert edges is not None
    assert sums is not None

    def add(e: jax.Array, say: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        child = edges.child[e]
        rest = lax.dynamic_index_in_dim(sums, child, 0, keepdims=False)
        change, below = edges.effect[e] - edges.expected[e], edges.below[child]

        def of(steps: int) -> tuple[jax.Array, ...]:
            z = [_z(rest[:steps], change[s], below) for s in range(card)]
            return tuple(d + jnp.log(z[s] / z[0]) for s, d in enumerate(say, 1))

        sizes = sorted({1, min(2, len(rest)), len(rest)})  # most children have two or three states
        return lax.switch(jnp.minimum(edges.steps[child], len(sizes)) - 1, [partial(of, size) for size in sizes])

    nothing = jnp.zeros(sums.shape[-1])
    return [nothing, *lax.fori_loop(now.edges[0], now.edges[1], add, (nothing,) * (card - 1))]


def _z(sums: jax.Array, change: jax.Array, below: jax.Array) -> jax.Array:
    """sum_k b_k P(X = k), from differences D_k of log cumulative probabilities, ``[steps, n]``; those of states X lacks are 0."""
    cdf, z = jnp.ones(sums.shape[1]), jnp.zeros(sums.shape[1])
    for k in reversed(range(len(sums))):
        factor = jnp.exp(jnp.minimum(sums[k] + change[k], 0))
        z = z + below[k + 1] * cdf * (1 - factor)
        cdf = cdf * factor
    return jnp.maximum(z + below[0] * cdf, np.float32(1e-30))


def _settle(edges: Edges | None, now: Step, state: jax.Array, sums: jax.Array) -> jax.Array:
    """The expected effect of the node on its children gives way to that of its state."""
    assert edges is not None

    def one(e: jax.Array, sums: jax.Array) -> jax.Array:
        child = edges.child[e]

        def step(k: jax.Array, sums: jax.Array) -> jax.Array:
            row = sums[child, k] - edges.expected[e, k] + _chosen(edges.effect[e, :, k], state)
            return lax.dynamic_update_slice(sums, row[None, None], (child, k, 0))

        return lax.fori_loop(0, edges.steps[child], step, sums)

    return lax.fori_loop(now.edges[0], now.edges[1], one, sums)


def _chosen(values: jax.Array, state: jax.Array) -> jax.Array:
    """values[state]; comparisons vectorise, look-ups do not."""
    if len(values) > FEW_STATES:
        return values[state]
    return _pick([jnp.broadcast_to(v, state.shape) for v in values], state)
