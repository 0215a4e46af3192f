"""Labels from weighted samples of the posterior: as right as the outcome itself, with less of its noise.

A training sample x of which the evidence e was shown is a draw from P(x | e). Beside it others are drawn, node by node, parents first,

    q_i(k | pa_i)  ~  P(k | pa_i) exp(lambda_i(k)),          lambda from belief propagation, or 0,

and all are weighted by P(x, e) / q(x). Choosing one of them by weight gives a draw from P(x | e) again, because one of them was such a
draw before (iterated sampling importance resampling; Andrieu, Lee and Vihola 2018). So the mean of all by weight has
P(x_i | e) as its expectation, for any number of them and any lambda, without the bias of weights that are scaled by their own sum (but
for states less probable than 2^-24, which the random numbers do not tell apart).
A poor lambda leaves all the weight to x: the label is then the outcome.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from unimarg.compiled import by_row, log_p_of_block
from unimarg.counter import Key, threefry
from unimarg.gathers import by_blocks
from unimarg.layout import MAX_NODES, Arrays, Layout, Schedule
from unimarg.ragged import Parts, Ragged, by_node, by_state, grouped

BYTES, BYTES_ACCELERATED = 1 << 26, 1 << 32  # of the rows taken at once
LEAST = -1e30  # of a logarithm that differences are taken of


def weighted_labels(
    layout: Layout,
    arrays: Arrays,
    ragged: Ragged,
    key: Key,
    samples: tuple[jax.Array, jax.Array],
    evidence: tuple[jax.Array, Parts, jax.Array],
    messages: jax.Array | None,
    states: jax.Array,
    count: int,
    accelerated: bool,
) -> Parts:
    """``[n, nodes, K]`` for each group, from ``count`` particles of each sample, itself among them.

    ``samples`` are the lower words of the samples' numbers ``[n]`` and their upper one; ``evidence`` is what is known, its likelihoods
    and which of it is certain; ``messages`` lambda ``[n, slots]``; ``states`` ``[nodes, n]``.
    """
    numbers, upper = samples

    def labels(rows: Any) -> Parts:
        numbers, (known, values, certain), messages, states = rows
        weigh, correct = proposal(ragged, known, values, certain, messages)
        drawn, log_weights = draw_particles(layout, arrays, key, (numbers, upper), weigh, correct, states.T, count)
        weights = jax.nn.softmax(log_weights, axis=-1)
        means = [jnp.where(drawn == k, weights, 0).sum(axis=-1) for k in range(ragged.largest)]
        return grouped(jnp.stack(means, axis=1), ragged)

    # states of all particles and half a dozen arrays for those of a block, and as many of the samples themselves
    a_row = count * (layout.rows * np.dtype(layout.dtype).itemsize + 24 * layout.width * layout.card) + 24 * layout.rows * layout.card
    most = (BYTES_ACCELERATED if accelerated else BYTES) / a_row
    return by_blocks(labels, (numbers, evidence, messages, states.T), most)


def proposal(
    ragged: Ragged, known: jax.Array, values: Parts, certain: jax.Array, messages: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """What is added to log P(k | pa_i) to draw, and what a drawn k adds to the log weight beside its normaliser, ``[nodes, K, n]`` each."""
    likelihoods = jnp.log(by_state([v.astype(jnp.float32) for v in values], ragged))
    uncertain = jnp.where(by_node(known, ragged)[:, None], likelihoods, 0)
    heard = uncertain if messages is None else by_state(ragged.with_reference(messages), ragged)
    hard = by_node(certain, ragged)[:, None]
    return jnp.where(hard, likelihoods, heard), jnp.where(hard | (uncertain == heard), 0, uncertain - heard)


def draw_particles(
    layout: Layout,
    arrays: Arrays,
    key: Key,
    samples: tuple[jax.Array, jax.Array],
    weigh: jax.Array,
    correct: jax.Array,
    states: jax.Array,
    count: int,
) -> tuple[jax.Array, jax.Array]:
    """States ``[nodes, n, count]`` and log weights ``[n, count]``; the first of each ``count`` is the sample itself."""
    n = states.shape[1]
    numbers = np.arange(count, dtype=np.uint32) + samples[1] * np.uint32(count)  # of particles, above the bits of a node's number
    weigh, correct, own = (by_row(layout, arrays, a) for a in (weigh, correct, states.astype(layout.dtype)))

    def branch(k: int) -> Any:
        def draw_block(now: Schedule, drawn: jax.Array) -> tuple[jax.Array, jax.Array]:
            add, beside, first = (lax.dynamic_slice_in_dim(a, now.start, layout.width)[..., None] for a in (weigh, correct, own))
            log_p = log_p_of_block(layout, arrays, k, now.position, drawn)[: weigh.shape[1]]
            logits = [p.reshape(-1, n, count) + add[:, s] for s, p in enumerate(log_p)]
            top = jnp.maximum(jnp.stack(logits).max(axis=0), LEAST)
            sums = [jnp.exp(logits[0] - top)]
            for logit in logits[1:]:
                sums.append(sums[-1] + jnp.exp(logit - top))
            nodes = now.nodes.astype(jnp.uint32)[:, None, None] + numbers * np.uint32(MAX_NODES)
            word, _ = threefry(key, samples[0][:, None], nodes)
            uniform = (word >> np.uint32(8)).astype(jnp.float32) * np.float32(2.0**-24)  # in [0, 1): never a state of probability 0
            state = sum((uniform * sums[-1] >= s).astype(jnp.int32) for s in sums[:-1])
            # the sample itself, and where nothing is possible some state that the node has
            state = jnp.where((np.arange(count) == 0) | (sums[-1] == 0), first.astype(jnp.int32), state)
            weight = top + jnp.log(sums[-1]) + sum(jnp.where(state == s, beside[:, s], 0) for s in range(len(sums)))
            weight = jnp.where(now.nodes[:, None, None] >= 0, weight, 0).sum(axis=0)
            return state.astype(layout.dtype).reshape(-1, n * count), weight

        return draw_block

    branches = [branch(k) for k in range(len(layout.kinds))]

    def body(carry: tuple[jax.Array, jax.Array], now: Schedule) -> tuple[tuple[jax.Array, jax.Array], None]:
        drawn, weights = carry
        new, weight = lax.switch(now.kind, branches, now, drawn)
        return (lax.dynamic_update_slice(drawn, new, (now.start, 0)), weights + weight), None

    start = jnp.zeros((layout.rows, n * count), layout.dtype), jnp.zeros((n, count))
    (drawn, weights), _ = lax.scan(body, start, arrays.schedule)
    weights = weights.at[:, 0].max(LEAST)  # one has to count
    return (drawn if layout.width == 1 else drawn[arrays.row]).reshape(-1, n, count), weights
