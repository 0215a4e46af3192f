"""P(x_i | the rest of the sample): a label with the expectation of the outcome x_i and less of its noise.

In a sample x of which x_m was shown, x_i is an outcome of P(x_i | x_m). So is, in expectation, the distribution

    P(x_i = k | the other x_j)  ~  P(k | pa_i) * prod over children c that matter of P(x_c | pa_c with x_i = k),

where the product leaves out the children that are neither shown nor have a shown descendant: they sum to 1.
What remains of the Markov blanket says less about x_i than the whole of it would, and a label that knows less is less noisy.

The logarithms are summed as whole numbers, which add up to the same in whatever order a device takes them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from unimarg.compiled import block_at, by_row, log_p_of_steps, noisy_steps, table_rows, take_states, with_parent
from unimarg.layout import TURN, Arrays, Kind, Layout, NoisyBlocks, Schedule, TableBlocks, Tables

SCALE = 1 << 14  # of the whole numbers
NEVER = -100.0  # the logarithm of a probability that float32 takes for 0: a thousand of these still fit
CERTAIN = -32.0  # log P(X <= k) where a noisy-max never is: small, but a difference from it keeps its digits


@partial(jax.jit, static_argnames=("layout",))
def blanket_log_p(layout: Layout, arrays: Arrays, states: jax.Array, observed: jax.Array, log_p: jax.Array) -> jax.Array:
    """Unnormalised log P(x_i = k | rest), ``[nodes, card, n]``, from states and observed ``[nodes, n]`` and ``log_conditionals``."""
    n = states.shape[1]
    states = by_row(layout, arrays, states.astype(layout.dtype))

    def branch(k: int, kind: Kind) -> Any:
        def speak(now: Schedule, sums: jax.Array, matters: jax.Array) -> tuple[jax.Array, jax.Array]:
            block = block_at(arrays.blocks[k], now.position)
            own = lax.dynamic_slice_in_dim(states, now.start, layout.width)
            heard = lax.dynamic_slice_in_dim(matters, now.start, layout.width) & (now.nodes[:, None] >= 0)

            def to(parents: jax.Array, message: jax.Array, there: jax.Array, sums: jax.Array, matters: jax.Array) -> Any:
                """Add the message ``[width, card, n]`` of every node to one of its parents, if ``there`` is one."""
                sent = heard & there
                whole = jnp.round(jnp.maximum(message, NEVER) * SCALE).astype(jnp.int32)
                return sums.at[parents].add(jnp.where(sent[:, None], whole, 0)), matters.at[parents].max(sent)

            if kind.noisy:
                return _noisy_messages(layout, block, states, own, to, sums, matters)
            table = arrays.tables[layout.table_index[k]]
            return _table_messages(layout, kind, table, block, states, own, to, sums, matters)

        return speak

    branches = [branch(k, kind) for k, kind in enumerate(layout.kinds)]

    def body(carry: tuple[jax.Array, jax.Array], now: Schedule) -> tuple[tuple[jax.Array, jax.Array], None]:
        return lax.switch(now.kind, branches, now, *carry), None

    start = jnp.zeros((layout.rows, layout.card, n), jnp.int32), by_row(layout, arrays, observed.astype(bool))
    (sums, _), _ = lax.scan(body, start, arrays.schedule, reverse=True)  # children first
    return log_p + sums[arrays.row].astype(jnp.float32) / SCALE


def _table_messages(
    layout: Layout, kind: Kind, table: Tables, block: TableBlocks, states: jax.Array, own: jax.Array, to: Any, *carry: jax.Array
) -> Any:
    base = table_rows(block, states)
    for p in range(kind.parents):
        parent = take_states(states, block.parents[:, p]).astype(jnp.int32)
        other = jnp.arange(layout.card)[:, None] - parent[:, None]  # states the parent lacks read nonsense, and have log P = -inf
        at = (base[:, None] + block.strides[:, p, None, None] * other) * kind.card + own[:, None].astype(jnp.int32)
        carry = to(block.parents[:, p], table.log_p.at[at].get(mode="clip"), jnp.bool_(True), *carry)
    return carry


def _noisy_messages(layout: Layout, block: NoisyBlocks, states: jax.Array, own: jax.Array, to: Any, *carry: jax.Array) -> Any:
    block = block._replace(leak=jnp.maximum(block.leak, CERTAIN), steps=jnp.maximum(block.steps, CERTAIN))
    steps = noisy_steps(block, states)

    def speak(turn: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        for j in range(TURN):
            slot = turn * TURN + j
            mine, parents = block.steps[:, slot], block.parents[:, slot]  # [width, parent_card - 1, card - 1]
            without = with_parent(tuple(steps), -mine, take_states(states, parents))
            each = jnp.pad(mine, ((0, 0), (1, 0), (0, 0)))[..., None]
            # rounding may leave less than the leak alone
            given = [jnp.minimum(w, block.leak[:, k, None])[:, None] + each[:, :, k] for k, w in enumerate(without)]
            log_p = log_p_of_steps(given)
            message = sum(jnp.where(own[:, None] == k, p, 0) for k, p in enumerate(log_p))
            pad = layout.card - each.shape[1]
            carry = to(parents, jnp.pad(message, ((0, 0), (0, pad), (0, 0))), (mine != 0).any((1, 2))[:, None], *carry)
        return carry

    return lax.fori_loop(0, block.turns, speak, carry)
