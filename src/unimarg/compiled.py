"""Draw samples from a network on the device, and give log P(x_i = k | parents) for every state.

A program scans over blocks of nodes, parents first, and switches between the few kinds there are, so that
it compiles in seconds whatever the size or depth of the network; evidence, being data, never compiles it
again. States lie as ``[nodes, samples]``.

Tables are inverted by integers: with u a random 32-bit word and T_k = 2^32 P(X > k | pa), the state is
the number of k with u < T_k, found by bisection. Nodes with probabilities below 1e-6 use 64 bits. A
noisy-max keeps D_k = log P(X <= k-1 | pa) - log P(X <= k | pa), a sum over parents of differences taken
in float64, so that P(X = k) = exp(S_k) (-expm1(D_k)) with S_k = sum over k' > k of D_k' loses no digits.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from unimarg.counter import Key, key_from_seed, words
from unimarg.errors import whole_number
from unimarg.formats.interop import AnyNetwork, as_network
from unimarg.layout import (
    MAX_NODES,
    TURN,
    Arrays,
    CompiledNetwork,
    Kind,
    Layout,
    NoisyBlocks,
    Schedule,
    TableBlocks,
    Tables,
    compile_network,
    power_of_two,
)
from unimarg.network import Network

MAX_SAMPLES = 1 << 42
ONE_CORE = {"xla_disable_hlo_passes": "cpu-parallel-task-assigner"}  # for programs of many small steps, several of which run side by side
FEW_STATES = 7  # of a noisy-max parent, the neutral one not counted: beyond, they are looked up


def take_states(states: jax.Array, rows: jax.Array) -> jax.Array:
    """states[rows]: on a CPU a handful of slices, which it copies much faster than it gathers."""

    def slices(states: jax.Array, rows: jax.Array) -> jax.Array:
        return jnp.stack([lax.dynamic_index_in_dim(states, rows[w], 0, keepdims=False) for w in range(rows.shape[0])])

    return lax.platform_dependent(states, rows, cpu=slices, default=lambda states, rows: states[rows])


def table_rows(block: TableBlocks, states: jax.Array) -> jax.Array:
    """The row of each node's table that the parents' states select, ``[width, samples]``."""
    index = jnp.broadcast_to(block.offset[:, None], (block.offset.shape[0], states.shape[1]))
    for p in range(block.parents.shape[-1]):
        index = index + block.strides[:, p, None] * take_states(states, block.parents[:, p]).astype(jnp.int32)
    return index


def noisy_steps(block: NoisyBlocks, states: jax.Array, together: int = TURN) -> list[jax.Array]:
    """D_1 .. D_{card-1}, each ``[width, samples]``; with fewer parents ``together`` the program is smaller."""
    width, _, _, card_steps = block.steps.shape
    turns, wide = (TURN // together * a for a in (block.turns, block.wide))
    start = tuple(jnp.broadcast_to(block.leak[:, k, None], (width, states.shape[1])) for k in range(card_steps))

    def add_parents(turn: jax.Array, sums: tuple[jax.Array, ...], most: int) -> tuple[jax.Array, ...]:
        for j in range(together):
            state = take_states(states, block.parents[:, turn * together + j])
            sums = with_parent(sums, block.steps[:, turn * together + j, :most], state)
        return sums

    most = block.steps.shape[2]
    if most > 1:
        start = lax.fori_loop(0, wide, partial(add_parents, most=most), start)
    return list(lax.fori_loop(wide if most > 1 else 0, turns, partial(add_parents, most=1), start))


def with_parent(sums: tuple[jax.Array, ...], step: jax.Array, state: jax.Array) -> tuple[jax.Array, ...]:
    """Add what a parent in ``state`` contributes, ``step[:, state - 1]``; nothing in state 0."""
    if step.shape[1] <= FEW_STATES:  # comparisons vectorise, but the program grows with every state
        for s in range(step.shape[1]):
            present = state == s + 1
            sums = tuple(d + jnp.where(present, step[:, s, k, None], 0) for k, d in enumerate(sums))
        return sums
    padded = jnp.pad(step, ((0, 0), (1, 0), (0, 0)))
    index = state.astype(jnp.int32)
    return tuple(d + jnp.take_along_axis(padded[:, :, k], index, axis=1) for k, d in enumerate(sums))


def _draw_table(kind: Kind, tables: Tables, block: TableBlocks, states: jax.Array, high: jax.Array, low: jax.Array) -> jax.Array:
    base = table_rows(block, states) * (kind.card - 1)
    # an even word never reaches the all-ones threshold: what is certain always happens
    even = np.uint32(0xFFFFFFFE)
    high, low = (high, low & even) if kind.fine else (high & even, low)
    state = jnp.zeros_like(base)
    step = kind.card // 2
    while step:
        at = base + state + (step - 1)
        threshold = tables.high.at[at].get(mode="promise_in_bounds")
        above = high < threshold
        if kind.fine:
            above |= (high == threshold) & (low < tables.low.at[at].get(mode="promise_in_bounds"))
        state = state + jnp.where(above, step, 0)
        step //= 2
    return state


def _uniform(kind: Kind, high: jax.Array, low: jax.Array) -> jax.Array:
    """In [0, 1], with full precision near 0."""
    uniform = high.astype(jnp.float32) * np.float32(2.0**-32)
    return uniform + low.astype(jnp.float32) * np.float32(2.0**-64) if kind.fine else uniform


def _draw_noisy(kind: Kind, block: NoisyBlocks, states: jax.Array, high: jax.Array, low: jax.Array) -> jax.Array:
    below, above = _uniform(kind, high, low), _uniform(kind, ~high, ~low)  # u and 1 - u, each precise near 0
    state = jnp.zeros(high.shape, jnp.int32)
    log_cdf = jnp.zeros(high.shape, jnp.float32)
    for step in reversed(noisy_steps(block, states)):
        log_cdf = log_cdf + step
        exceeds = jnp.where(log_cdf > -0.5, below < -jnp.expm1(log_cdf), above >= jnp.exp(log_cdf))
        state = state + exceeds
    return state


def _log_p_table(kind: Kind, tables: Tables, block: TableBlocks, states: jax.Array) -> list[jax.Array]:
    base = table_rows(block, states) * kind.card
    return [tables.log_p.at[base + k].get(mode="promise_in_bounds") for k in range(kind.card)]


def log_p_noisy(block: NoisyBlocks, states: jax.Array) -> list[jax.Array]:
    return log_p_of_steps(noisy_steps(block, states))


def log_p_of_steps(steps: list[jax.Array]) -> list[jax.Array]:
    """log P(X = k) for each k from D_1, D_2, ..."""
    log_cdf = jnp.zeros_like(steps[0])
    log_p: list[jax.Array] = []
    for step in reversed(steps):
        log_p.append(log_cdf + jnp.log(-jnp.expm1(step)))
        log_cdf = log_cdf + step
    return [log_cdf, *reversed(log_p)]


def p_of_steps(steps: list[jax.Array]) -> list[jax.Array]:
    """P(X = k) for each k from D_1, D_2, ..."""
    cdf = jnp.ones_like(steps[0])
    p: list[jax.Array] = []
    for step in reversed(steps):
        change = jnp.expm1(step)
        p.append(-change * cdf)
        cdf = cdf * (1 + change)
    return [cdf, *reversed(p)]


def block_at(blocks: Any, position: jax.Array) -> Any:
    return jax.tree.map(lambda a: lax.dynamic_index_in_dim(a, position, 0, False), blocks)


def by_row(layout: Layout, arrays: Arrays, by_node: jax.Array) -> jax.Array:
    """``[nodes, ...]`` as ``[rows, ...]``, 0 where there is only padding."""
    if layout.width == 1:
        return by_node
    return jnp.zeros((layout.rows, *by_node.shape[1:]), by_node.dtype).at[arrays.row].set(by_node)


@partial(jax.jit, static_argnames=("layout", "n"))
def draw_states(layout: Layout, arrays: Arrays, key: Key, first: jax.Array, n: int) -> jax.Array:
    """``draw`` for use inside a program; ``first`` is the lower word of the index and the node offset of the upper."""
    samples = first[0] + lax.iota(jnp.uint32, n)

    def branch(k: int, kind: Kind) -> Any:
        def draw_block(position: jax.Array, states: jax.Array, nodes: jax.Array) -> jax.Array:
            block = block_at(arrays.blocks[k], position)
            high, low = words(key, samples, nodes.astype(jnp.uint32) + first[1])
            if kind.noisy:
                state = _draw_noisy(kind, block, states, high, low)
            else:
                state = _draw_table(kind, arrays.tables[layout.table_index[k]], block, states, high, low)
            return state.astype(layout.dtype)

        return draw_block

    branches = [branch(k, kind) for k, kind in enumerate(layout.kinds)]

    def body(states: jax.Array, now: Schedule) -> tuple[jax.Array, None]:
        new = lax.switch(now.kind, branches, now.position, states, now.nodes)
        return lax.dynamic_update_slice(states, new, (now.start, 0)), None

    states, _ = lax.scan(body, jnp.zeros((layout.rows, n), layout.dtype), arrays.schedule)
    return states if layout.width == 1 else states[arrays.row]  # rows of width 1 lie in the nodes' order


def draw(net: CompiledNetwork, key: Key, n: int, first: int = 0) -> jax.Array:
    """States ``[nodes, n]`` of the samples ``first .. first + n - 1`` of this key.

    ``n`` must be a power of two that divides ``first``, so that the index's upper bits are the chunk's.
    """
    assert n & (n - 1) == 0
    assert first % n == 0
    assert first + n <= MAX_SAMPLES
    at = jnp.array([first & 0xFFFFFFFF, (first >> 32) * MAX_NODES], dtype=jnp.uint32)
    return draw_states(net.layout, net.arrays, key, at, n)


def log_p_of_block(layout: Layout, arrays: Arrays, k: int, position: jax.Array, rows: jax.Array) -> list[jax.Array]:
    """log P(x_i = state | parents) of a block of kind ``k``, one ``[width, samples]`` for each state, from rows of states."""
    kind, block = layout.kinds[k], block_at(arrays.blocks[k], position)
    if kind.noisy:
        return log_p_noisy(block, rows)
    return _log_p_table(kind, arrays.tables[layout.table_index[k]], block, rows)


@partial(jax.jit, static_argnames=("layout",))
def log_conditionals_of(layout: Layout, arrays: Arrays, states: jax.Array) -> jax.Array:
    """``log_conditionals`` for use inside a program."""
    n = states.shape[1]
    rows = by_row(layout, arrays, states.astype(layout.dtype))

    def branch(k: int, kind: Kind) -> Any:
        def log_p_block(position: jax.Array) -> jax.Array:
            full = jnp.stack(log_p_of_block(layout, arrays, k, position, rows), axis=1)
            return jnp.pad(full, ((0, 0), (0, layout.card - kind.card), (0, 0)), constant_values=-jnp.inf)

        return log_p_block

    branches = [branch(k, kind) for k, kind in enumerate(layout.kinds)]
    blocks = lax.map(lambda now: lax.switch(now.kind, branches, now.position), arrays.schedule)
    blocks = blocks.reshape(layout.rows, layout.card, n)
    return blocks if layout.width == 1 else blocks[arrays.row]


def log_conditionals(net: CompiledNetwork, states: jax.Array) -> jax.Array:
    """log P(x_i = k | parents' states) for every state k: ``[nodes, card, n]`` from states ``[nodes, n]``.

    ``card`` is the largest number of states, rounded up to a power of two; states a node lacks get -inf.
    """
    return log_conditionals_of(net.layout, net.arrays, states)


def sample_chunks(net: Network, n: int, seed: int = 0, chunk: int | None = None) -> Iterator[np.ndarray]:
    """``sample`` in pieces of bounded memory: arrays ``[up to chunk, nodes]`` that add up to n samples."""
    n = whole_number(n, "the number of samples", 0, MAX_SAMPLES)
    key = key_from_seed(seed)
    compiled = compile_network(net)
    size = compiled.chunk if chunk is None else power_of_two(whole_number(chunk, "the chunk size", 1, MAX_SAMPLES))
    size = min(size, power_of_two(max(n, 1024)))
    return (np.asarray(draw(compiled, key, size, first)).T[: n - first] for first in range(0, n, size))


def sample(net: AnyNetwork, n: int, seed: int = 0, chunk: int | None = None) -> np.ndarray:
    """n samples from the network: integers ``[n, nodes]``, columns in the order of ``net.names``.

    The same seed gives the same samples on the same kind of device, whatever ``chunk`` is. The array lies
    column by column, so that one variable's samples are contiguous.
    """
    net = as_network(net)
    pieces = sample_chunks(net, n, seed, chunk)
    out: np.ndarray | None = None
    done = 0
    for piece in pieces:
        if out is None:
            out = np.empty((len(net), n), dtype=piece.dtype)
        out[:, done : done + len(piece)] = piece.T
        done += len(piece)
    return (np.empty((len(net), 0), dtype=np.int8) if out is None else out).T


def add_precisely(total: jax.Array, lost: jax.Array, gain: jax.Array) -> tuple[jax.Array, jax.Array]:
    """total + gain, and what rounding added to it, to be taken off next time (Kahan 1965): thousands of findings add up to thousands."""
    gain = gain - lost
    now = total + gain
    return now, jnp.where(now > -jnp.inf, (now - total) - gain, 0)
