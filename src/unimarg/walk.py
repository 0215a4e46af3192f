"""Draw the nodes one after another, each from a conditional that a proposal decides, and keep the weights.

The order, the conditionals and the evidence are data (``conditionals.Conditionals``), so that one compiled program serves
every query of a network. With t_i = P(x_i | pa_i) l_i(x_i), l_i the likelihood of a finding at node i (one where there is none),

    log w = sum over i of [ log t_i(x_i) - log q_i(x_i | what was drawn before) ]

is summed node by node, and is exactly 0 where q = P. A node's conditional is one of

    TABLE         a table over some nodes drawn before, inverted by integers as in ``compiled``
    TILTED        the same, times D
    NOISY         a noisy-max too large for a table: q = (1 - beta) t f exp(lambda) D / Z + beta u, with f a table or 1
    PLAIN_*       P(x_i | pa_i) itself: nothing to weigh

D is what hidden noisy-max children say, no less than exp(LEAST) of what they say of the likeliest state. For each such child c the
differences of log P(X_c <= k | parents) are summed up over the parents drawn so far, and those still to come are taken as expected;
D(s) = prod_c sum_k b_ck P(X_c = k | x_i = s, drawn, expected), b_c what lies below c.

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

from unimarg.compiled import FEW_STATES, ONE_CORE, add_precisely, log_p_of_steps, noisy_steps
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
from unimarg.counter import Key
from unimarg.frame import CONTEXTS, Shape
from unimarg.layout import TURN, NoisyBlocks
from unimarg.nets import Numbers, leading_bits

assert (PLAIN_TABLE, TABLE, PLAIN_NOISY, NOISY, TILTED) == (0, 1, 2, 3, 4)  # the order of the branches below
LEAST = -60.0  # of log D, relative to the largest


class Origin(NamedTuple):
    """What each node was drawn from."""

    rows: jax.Array  # [nodes, n]: where the row of its table begins, if it has one
    formula: jax.Array  # [formulas, n]: q of all states but the first where it was drawn by formula, at its ``Step.formula``


def walk(
    shape: Shape, given: Conditionals, key: Key, first: jax.Array, n: int, forced: jax.Array | None = None, nets: bool = False
) -> tuple[jax.Array, jax.Array, Origin]:
    """States ``[nodes, n]`` and log weights ``[n]`` of the samples from number ``first`` (lower and upper word) on.

    They are independent, or with ``nets`` so spread that each NET of them, counted from number 0, fill space (``nets``). With ``forced``
    states ``[steps, n]`` nothing is drawn: these states' weights are given.
    """
    states, log_w, _, _, origin = _walk(shape, given, key, first, n, leading_bits(nets), forced)
    return states, log_w, origin


def trace(shape: Shape, given: Conditionals, key: Key, first: jax.Array, n: int, nets: bool = False) -> tuple[jax.Array, jax.Array]:
    """What every step drew, ``[most steps, n]``, and the log weights: links keep their states here."""
    _, log_w, kept, _, _ = _walk(shape, given, key, first, n, leading_bits(nets), keep=True)
    return kept, log_w


def steps_of_walk(
    shape: Shape,
    given: Conditionals,
    key: Key,
    first: jax.Array,
    n: int,
    leading: jax.Array,
    forced: jax.Array | None = None,
    keep: bool = False,
    turns: jax.Array | None = None,
) -> Any:
    """``walk`` as a part of a program; with ``turns``, the most steps of several walks side by side, those beyond its own do nothing."""
    numbers = Numbers.make(key, first, n, leading)

    def body(t: jax.Array, carry: Any) -> Any:
        states, log_w, lost, kept, sums, origin = carry
        now: Step = jax.tree.map(lambda a: lax.dynamic_index_in_dim(a, t, 0, keepdims=False), given.steps)
        columns = lax.dynamic_index_in_dim(given.columns, now.points, 0, keepdims=False)
        here = Here(given, now, states, table_entries(now, states), sums, numbers.words(now.number, columns))
        if forced is not None:
            here = here._replace(fixed=lax.dynamic_index_in_dim(forced, t, 0, keepdims=False).astype(jnp.int32))
        new, gain, q = _step(here, shape.formula_states)
        row = here.row
        if turns is not None:
            own, rows = t < given.drawn, origin.rows
            before = (lax.dynamic_index_in_dim(a, now.node, 0, keepdims=False) for a in (states, rows))
            new, row = (jnp.where(own, a, b.astype(a.dtype)) for a, b in zip((new, row), before, strict=True))
            gain = jnp.where(own, gain, 0)
        states = lax.dynamic_update_slice(states, new.astype(shape.dtype)[None], (now.node, 0))
        if kept is not None:
            kept = lax.dynamic_update_slice(kept, new.astype(shape.dtype)[None], (t, 0))
        else:
            origin = Origin(lax.dynamic_update_slice(origin.rows, row[None], (now.node, 0)), _kept(now, q, origin.formula))
        log_w, lost = add_precisely(log_w, lost, gain)
        return states, log_w, lost, kept, None if sums is None else _settle(given.edges, now, new, sums), origin

    sums = None if given.edges is None else jnp.broadcast_to(given.edges.start[:, None], (len(given.edges.start), n))
    kept = jnp.zeros((len(given.steps.node), n), shape.dtype) if keep else None
    origin = None
    if not keep:
        origin = Origin(jnp.zeros((shape.nodes, n), jnp.int32), jnp.zeros((shape.formulas, n)))
    begin = (jnp.zeros((shape.nodes, n), shape.dtype), jnp.zeros(n), jnp.zeros(n), kept, sums, origin)
    states, log_w, _, *rest = lax.fori_loop(0, given.drawn if turns is None else turns, body, begin)
    return states, log_w, *rest


_walk = jax.jit(steps_of_walk, static_argnames=("shape", "n", "keep"), compiler_options=ONE_CORE)


class Here(NamedTuple):
    """A step of the walk."""

    given: Conditionals
    now: Step
    states: jax.Array
    row: jax.Array  # [n]: where that of its table begins
    sums: jax.Array | None  # [steps of large noisy-max nodes, n]
    words: tuple[jax.Array, jax.Array]  # random, high and low, [n] each
    fixed: jax.Array | None = None


# --- one node: each gives the states, what they add to the log weight, and q of every state if they were drawn by formula

Drawing = tuple[jax.Array, jax.Array, list[jax.Array]]


def _step(here: Here, kept: int) -> tuple[jax.Array, ...]:
    """By its mode and number of states: binary nodes have programs of their own, and those of noisy-max nodes also such with three."""
    mode, card = here.now.mode, here.now.card
    branches = [partial(draw, here, binary) for binary in (False, True) for draw in (_plain_table, _table)]
    which = mode + jnp.where(card == 2, 2, 0)
    if here.given.noisy is not None:
        sizes = few_sizes(here.given.noisy.leak.shape[-1] + 1)
        which = jnp.where(mode == PLAIN_NOISY, len(branches) + size_of(card, sizes), which)
        branches += [partial(_plain_noisy, here, size) for size in sizes]
        which = jnp.where(mode > PLAIN_NOISY, len(branches), which)
    drawings = [lambda b=b: _same_shape(b(), kept) for b in branches]
    return lax.switch(which, drawings if here.given.noisy is None else [*drawings, partial(_by_formula, here, kept)])


def few_sizes(most: int) -> list[int]:
    """Numbers of states that have programs of their own: most nodes have two or three."""
    return sorted({2, min(3, max(most, 2)), max(most, 2)})


def size_of(card: jax.Array, sizes: list[int]) -> jax.Array:
    """Which of ``few_sizes`` is for a node of so many states; one of a single state lacks the second."""
    return jnp.clip(card - 2, 0, len(sizes) - 1)


def _by_formula(here: Here, kept: int) -> tuple[jax.Array, ...]:
    """What hidden noisy-max children say is one program, for either mode."""
    card, noisy, edges = here.now.card, here.given.noisy, here.given.edges
    assert noisy is not None
    sizes, say = few_sizes(noisy.leak.shape[-1] + 1), None
    which, branches = size_of(card, sizes), [partial(_noisy, here, size) for size in sizes]
    if edges is not None:
        parents = few_sizes(edges.effect.shape[1])
        most = max(sizes[-1], parents[-1])
        say = lax.switch(size_of(card, parents), [lambda s=s: _padded(_children_say(here, s), most) for s in parents])
        which = jnp.where(here.now.mode == TILTED, len(branches) + size_of(card, parents), which)
        branches += [partial(_tilted, here, size) for size in parents]
    return lax.switch(which, [lambda b=b: _same_shape(b(say), kept) for b in branches])


def _padded(parts: list[jax.Array], most: int) -> jax.Array:
    return jnp.stack([*parts, *[jnp.zeros(parts[0].shape)] * (most - len(parts))])


def _same_shape(drawing: Drawing, states: int) -> tuple[jax.Array, ...]:
    state, gain, q = drawing
    never = jnp.zeros(state.shape)
    by_state = jnp.stack([*q[1:], *[never] * states][:states]) if states else jnp.zeros((0, *state.shape))
    return state, gain, by_state


def _kept(now: Step, q: jax.Array, formula: jax.Array) -> jax.Array:
    """``Origin.formula`` with q of the step's states but the first."""

    def put(k: jax.Array, formula: jax.Array) -> jax.Array:
        return lax.dynamic_update_slice(formula, lax.dynamic_index_in_dim(q, k), (now.formula[0] + k, 0))

    return lax.fori_loop(0, now.formula[1] - now.formula[0], put, formula) if len(q) else formula


def _plain_table(here: Here, binary: bool) -> Drawing:
    return _invert(here, binary), jnp.zeros(here.row.shape), []


def _table(here: Here, binary: bool) -> Drawing:
    state = lax.optimization_barrier(_invert(here, binary))  # or it is computed again for the gain
    return state, here.given.log_ratio.at[here.row + state].get(mode="promise_in_bounds"), []


def _plain_noisy(here: Here, card: int) -> Drawing:
    log_p = _log_p_noisy(here.given, here.now, here.states, card)
    state = _draw(here, [jnp.exp(p) for p in log_p])
    return state, jnp.zeros(state.shape), []


def _noisy(here: Here, card: int, say: jax.Array | None) -> Drawing:
    now = here.now
    target = [p + now.log_likelihood[k] for k, p in enumerate(_log_p_noisy(here.given, now, here.states, card))]
    log_a = [t + now.tilt[k] for k, t in enumerate(target)]
    if say is not None:
        table = _row(here, card)
        log_a = [a + jnp.where(now.half > 0, t, 0) + say[k] for k, (a, t) in enumerate(zip(log_a, table, strict=True))]
    total = _logsumexp(log_a)
    log_q = [a - total for a in log_a]
    if now.log_other is not None:
        log_q = _mixed(now, target, log_q)
    impossible = total == -jnp.inf  # nothing fits what was drawn before: any state will do, the weight is 0
    anything = jnp.where(jnp.arange(card) < now.card, -jnp.log(now.card.astype(jnp.float32)), -jnp.inf)
    log_q = [jnp.where(impossible, anything[k], q) for k, q in enumerate(log_q)]
    q = [jnp.exp(a) for a in log_q]
    state = lax.optimization_barrier(_draw(here, q))
    log_t = _pick(target, state)
    return state, jnp.where(log_t > -jnp.inf, log_t - _pick(log_q, state), -jnp.inf), q


def _mixed(now: Step, target: list[jax.Array], log_q: list[jax.Array]) -> list[jax.Array]:
    """(1 - beta) q + beta u, with u renormalised, on the target's support where asked."""
    assert now.log_other is not None
    other = [jnp.where((t > -jnp.inf) | ~now.on_support, now.log_other[k], -jnp.inf) for k, t in enumerate(target)]
    scale = _logsumexp(other)
    other = [u - jnp.where(scale > -jnp.inf, scale, 0) for u in other]
    mixed = [jnp.logaddexp(jnp.log1p(-now.beta) + q, jnp.log(now.beta) + u) for q, u in zip(log_q, other, strict=True)]
    return [jnp.where(now.beta > 0, m, q) for m, q in zip(mixed, log_q, strict=True)]


def _tilted(here: Here, card: int, say: jax.Array | None) -> Drawing:
    assert say is not None
    top = _largest(list(say[:card]))
    relative = [jnp.maximum(say[k] - top, LEAST) for k in range(card)]
    log_a = [p + d for p, d in zip(_row(here, card), relative, strict=True)]
    total = _logsumexp(log_a)
    q = [jnp.exp(a - total) for a in log_a]
    state = lax.optimization_barrier(_draw(here, q))
    gain = here.given.log_ratio.at[here.row + state].get(mode="promise_in_bounds") + total - _pick(relative, state)
    return state, gain, q


# --- parts of a node's step


def table_entries(now: Step | Mean, states: jax.Array) -> jax.Array:
    """Where the row of the node's table begins that the states select, ``[n]``."""

    def add(turn: jax.Array, index: jax.Array) -> jax.Array:
        for c in range(CONTEXTS):
            row = lax.dynamic_index_in_dim(states, now.context[CONTEXTS * turn + c], 0, keepdims=False)
            index = index + now.strides[CONTEXTS * turn + c] * row.astype(jnp.int32)
        return index

    return lax.fori_loop(0, (now.contexts + CONTEXTS - 1) // CONTEXTS, add, jnp.broadcast_to(now.offset, states.shape[1:]))


def _invert(here: Here, binary: bool) -> jax.Array:
    """The number of k with u < 2^32 P(X > k), by bisection; an even word never reaches the all-ones threshold."""
    if here.fixed is not None:
        return here.fixed
    even = here.words[0] & np.uint32(0xFFFFFFFE)

    def halve(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        step, state = carry
        above = even < here.given.high.at[here.row + state + (step - 1)].get(mode="promise_in_bounds")
        return step // 2, state + jnp.where(above, step, 0)

    begin = here.now.half, jnp.zeros_like(here.row)
    return halve((jnp.int32(1), begin[1]))[1] if binary else lax.while_loop(lambda c: c[0] > 0, halve, begin)[1]


def _draw(here: Here, q: list[jax.Array]) -> jax.Array:
    """A state from its probabilities; the random number is precise near 0 and near 1."""
    if here.fixed is not None:
        return here.fixed
    high, low = here.words
    below = high.astype(jnp.float32) * np.float32(2.0**-32) + low.astype(jnp.float32) * np.float32(2.0**-64)
    above = (~high).astype(jnp.float32) * np.float32(2.0**-32) + (~low).astype(jnp.float32) * np.float32(2.0**-64)
    state, head = jnp.zeros(high.shape, jnp.int32), jnp.zeros(high.shape)
    tails = [jnp.zeros(high.shape)]
    for p in reversed(q[1:]):
        tails.append(tails[-1] + p)
    for p, tail in zip(q[:-1], reversed(tails[1:]), strict=True):
        head = head + p
        state = state + jnp.where(tail <= head, below < tail, above >= head)
    return state


def _largest(parts: list[jax.Array]) -> jax.Array:
    top = parts[0]
    for p in parts[1:]:
        top = jnp.maximum(top, p)
    return top


def _logsumexp(parts: list[jax.Array]) -> jax.Array:
    top = _largest(parts)
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
    return [
        d[0] for d in noisy_steps(block, states, 1 if jax.default_backend() == "cpu" else TURN)
    ]  # compiled in three quarters of the time


def _row(here: Here, card: int) -> list[jax.Array]:
    """The logarithms in the row of a step by formula, -inf for states that the node lacks, ``[n]`` for each."""
    width = 2 * here.now.half
    rows = [here.given.prob.at[here.row + jnp.minimum(k, jnp.maximum(width - 1, 0))].get(mode="promise_in_bounds") for k in range(card)]
    return [jnp.where(k < width, r, -jnp.inf) for k, r in enumerate(rows)]


# --- what hidden noisy-max children say


def _children_say(here: Here, card: int) -> list[jax.Array]:
    """log D(s) - log D(0) for each state s of the node, ``[n]`` each."""
    edges, sums, now = here.given.edges, here.sums, here.now
    assert edges is not None
    assert sums is not None

    def add(e: jax.Array, say: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        change, below = edges.effect[e] + edges.ahead[e], edges.below[edges.child[e]]
        begin, end = edges.rows[edges.child[e]]

        def of(steps: int) -> tuple[jax.Array, ...]:
            rest = [lax.dynamic_index_in_dim(sums, begin + k, 0, keepdims=False) for k in range(steps)]
            if steps > len(sizes):  # it may have fewer
                rest = [jnp.where(begin + k < end, r, 0) for k, r in enumerate(rest)]
            z = [_z(rest, change[s], below) for s in range(card)]
            return tuple(d + jnp.log(z[s] / z[0]) for s, d in enumerate(say, 1))

        sizes = few_sizes(change.shape[-1] + 1)
        return lax.switch(size_of(end - begin + 1, sizes), [partial(of, size - 1) for size in sizes])

    nothing = jnp.zeros(sums.shape[-1])
    return [nothing, *lax.fori_loop(now.edges[0], now.edges[1], add, (nothing,) * (card - 1))]


def _z(sums: list[jax.Array], change: jax.Array, below: jax.Array) -> jax.Array:
    """sum_k b_k P(X = k), from differences D_k of log cumulative probabilities, ``[n]`` each; those of states X lacks are 0."""
    cdf, z = jnp.ones(sums[0].shape), jnp.zeros(sums[0].shape)
    for k in reversed(range(len(sums))):
        share = -jnp.expm1(sums[k] + change[k])  # of k in what is left: it may be far below the rounding of 1
        z = z + below[k + 1] * cdf * share
        cdf = cdf * (1 - share)
    return jnp.maximum(z + below[0] * cdf, np.float32(1e-37))


def _settle(edges: Edges | None, now: Step, state: jax.Array, sums: jax.Array) -> jax.Array:
    """The node's effect on its children joins those of the parents drawn before."""
    assert edges is not None

    def one(e: jax.Array, sums: jax.Array) -> jax.Array:
        begin, end = edges.rows[edges.child[e]]

        def step(k: jax.Array, sums: jax.Array) -> jax.Array:
            row = lax.dynamic_index_in_dim(sums, begin + k) + _chosen(edges.effect[e, :, k], state)
            return lax.dynamic_update_slice(sums, row, (begin + k, 0))

        return lax.fori_loop(0, end - begin, step, sums)

    return lax.fori_loop(now.edges[0], now.edges[1], one, sums)


def _chosen(values: jax.Array, state: jax.Array) -> jax.Array:
    """values[state]; comparisons vectorise, look-ups do not."""
    if len(values) > FEW_STATES:
        return values[state]
    return _pick([jnp.broadcast_to(v, state.shape) for v in values], state)
