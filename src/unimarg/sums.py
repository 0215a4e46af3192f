"""Sums over weighted samples, from which means and errors are made (see ``importance``).

For each node and state k, with weights w scaled by the largest and g = f - c:

    w g, D                       f is the indicator of the state, or P(x_i = k | pa_i) where the node has no finding below it;
                                 D = f - q_i(k | drawn before), of mean 0, where f is an indicator and q_i is known; 0 elsewhere
    c, over samples (w g)^2,     c is near the mean of f, since digits are lost otherwise where f hardly varies
    w g w, D^2, w D, w g D
    c', over nets the same       with another c', and w, w g and D first summed over the samples of each net (``nets``): nets are
                                 independent of each other, and the samples of one are not
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from unimarg.compiled import ONE_CORE, p_of_steps
from unimarg.conditionals import BY_FORMULA, BY_ROW, DRAWN, NOISY_MEAN, TABLE_MEAN, Conditionals, Mean
from unimarg.frame import Shape
from unimarg.layout import NoisyBlocks
from unimarg.nets import NET
from unimarg.walk import Origin, few_sizes, noisy_steps_of, size_of, table_entries

SECOND = 6  # a centre, and five second moments about it
SUMS = 2 + 2 * SECOND  # of a node's state
FIRST, CENTRES = 64, 2.0**20  # samples whose mean the centre c is, rounded; its fractions, so that 1 - c is exact too
assert (DRAWN, BY_ROW, BY_FORMULA, TABLE_MEAN, NOISY_MEAN) == (0, 1, 2, 3, 4)  # the order of the branches below


class Samples(NamedTuple):
    """A chunk, and what its means are looked up in."""

    prob: jax.Array
    noisy: NoisyBlocks | None
    states: jax.Array  # [nodes, n]
    origin: Origin | None
    counts: jax.Array  # bool [n]: the others are padding
    w: jax.Array  # [n]
    by_net: jax.Array  # [nets]: w summed over each


def weighted_sums(
    shape: Shape, given: Conditionals, states: jax.Array, log_w: jax.Array, origin: Origin | None, count: int
) -> tuple[jax.Array, ...]:
    """Over the first ``count`` samples, n a multiple of NET: the largest log w; the sum of w, its spreads, and ``[nodes, card, SUMS]``."""
    return _weighted_sums(shape, given.means, given.estimated, given.prob, given.noisy, states, log_w, origin, np.int32(count))


def sums_of_samples(
    shape: Shape,
    means: Mean,
    estimated: jax.Array,
    prob: jax.Array,
    noisy: NoisyBlocks | None,
    states: jax.Array,
    log_w: jax.Array,
    origin: Origin | None,
    count: jax.Array,
    turns: jax.Array | None = None,
) -> tuple[jax.Array, ...]:
    """``weighted_sums`` as a part of a program; with ``turns``, the most means of several queries, those beyond its own do nothing."""
    counts = lax.iota(jnp.int32, len(log_w)) < count
    log_w = jnp.where(counts, log_w, -jnp.inf)
    top = log_w.max()
    w = jnp.where(log_w > -jnp.inf, jnp.exp(log_w - jnp.where(top > -jnp.inf, top, 0)), 0)
    samples = Samples(prob, noisy, states, origin, counts, w, over_nets(w))

    def node(at: jax.Array, out: jax.Array) -> jax.Array:
        mean: Mean = jax.tree.map(lambda a: lax.dynamic_index_in_dim(a, at, 0, keepdims=False), means)
        kinds = [_drawn] * 3 if origin is None else [_drawn, _by_row, _by_formula if shape.formulas else _drawn]
        tables = [partial(kind, samples, mean, shape.card, by) for by in (_by_state, _of_two) for kind in (*kinds, _table_mean)]
        which = mean.kind + jnp.where(mean.card == 2, len(tables) // 2, 0)
        branches = tables
        if noisy is not None:
            sizes = few_sizes(noisy.leak.shape[-1] + 1)
            branches = tables + [partial(_noisy_mean, samples, mean, shape.card, of=size) for size in sizes]
            which = jnp.where(mean.kind == NOISY_MEAN, len(tables) + size_of(mean.card, sizes), which)
        new = lax.switch(which, branches)
        if turns is not None:
            new = jnp.where(at < estimated, new, lax.dynamic_index_in_dim(out, mean.node, 0, keepdims=False))
        return lax.dynamic_update_index_in_dim(out, new, mean.node, 0)

    begin = jnp.zeros((shape.nodes, shape.card, SUMS))
    return top, w.sum(), _spreads(samples), lax.fori_loop(0, estimated if turns is None else turns, node, begin)


_weighted_sums = jax.jit(sums_of_samples, static_argnames=("shape",), compiler_options=ONE_CORE)


def _spreads(samples: Samples) -> jax.Array:
    """``weighted.Spread`` of samples and of nets but for their numbers: the mean of w, and about it squares and what goes along with n."""
    counts, total = samples.counts.astype(jnp.float32), samples.by_net.sum()
    mean = total / jnp.maximum(counts.sum(), 1)
    apart, of_nets = (samples.w - mean) * counts, over_nets(counts)
    even = over_nets(apart)
    return jnp.stack([jnp.stack([mean, (apart**2).sum(), apart.sum()]), jnp.stack([mean, (even**2).sum(), (of_nets * even).sum()])])


def over_nets(a: jax.Array) -> jax.Array:
    """Sums over the samples of each net, ``[nets]``."""
    return a.reshape(-1, NET).sum(axis=1)


# --- one node, ``[card, SUMS]``

ByState = Callable[[Mean, int, Callable[[jax.Array], jax.Array]], jax.Array]


def _drawn(samples: Samples, mean: Mean, card: int, by: ByState) -> jax.Array:
    return by(mean, card, lambda k: _of_indicator(samples, _is(samples, mean, k)))


def _by_row(samples: Samples, mean: Mean, card: int, by: ByState) -> jax.Array:
    assert samples.origin is not None
    row = lax.dynamic_index_in_dim(samples.origin.rows, mean.node, 0, keepdims=False)
    return by(mean, card, lambda k: _controlled(samples, mean, k, samples.prob.at[row + k].get(mode="promise_in_bounds")))


def _by_formula(samples: Samples, mean: Mean, card: int, by: ByState) -> jax.Array:
    assert samples.origin is not None
    formula = samples.origin.formula

    def q(k: jax.Array) -> jax.Array:
        return lax.dynamic_index_in_dim(formula, mean.formula + k - 1, 0, keepdims=False)

    def sums(k: jax.Array) -> jax.Array:
        first, last = jnp.where(k == 0, 1, k), jnp.where(k == 0, mean.card - 1, k)
        others = lax.fori_loop(first + 1, last + 1, lambda j, total: total + q(j), q(first))
        return _controlled(samples, mean, k, jnp.where(k == 0, 1 - others, others))

    return by(mean, card, sums)


def _is(samples: Samples, mean: Mean, k: jax.Array) -> jax.Array:
    state = lax.dynamic_index_in_dim(samples.states, mean.node, 0, keepdims=False)
    return (state == k.astype(state.dtype)).astype(jnp.float32)


def _controlled(samples: Samples, mean: Mean, k: jax.Array, q: jax.Array) -> jax.Array:
    f = _is(samples, mean, k)
    return _of_indicator(samples, f, jnp.where(samples.counts, f - q, 0))


def _table_mean(samples: Samples, mean: Mean, card: int, by: ByState) -> jax.Array:
    base = lax.optimization_barrier(table_entries(mean, samples.states))
    return by(mean, card, lambda k: _sums_of(samples, samples.prob.at[base + k].get(mode="promise_in_bounds")))


def _noisy_mean(samples: Samples, mean: Mean, card: int, of: int) -> jax.Array:
    """Of a noisy-max with at most ``of`` states."""
    p = p_of_steps(noisy_steps_of(samples.noisy, mean, samples.states, of))[:card]
    if of == 2:
        return _both(_sums_of(samples, p[1]), card)
    sums = jnp.stack([_sums_of(samples, f) for f in p])
    return jnp.pad(sums, ((0, card - len(sums)), (0, 0)))


def _by_state(mean: Mean, card: int, sums: Callable[[jax.Array], jax.Array]) -> jax.Array:
    return lax.fori_loop(0, mean.card, lambda k, out: out.at[k].set(sums(k)), jnp.zeros((card, SUMS)))


def _of_two(_mean: Mean, card: int, sums: Callable[[jax.Array], jax.Array]) -> jax.Array:
    return _both(sums(jnp.int32(1)), card)


def _sums_of(samples: Samples, f: jax.Array) -> jax.Array:
    """``[SUMS]`` of one state."""
    c = jnp.round(f[:FIRST].mean() * CENTRES) / CENTRES
    wg = samples.w * (f - c)
    return _assembled(samples, c, wg, (wg * wg).sum(), (samples.w * wg).sum(), None)


def _of_indicator(samples: Samples, f: jax.Array, control: jax.Array | None = None) -> jax.Array:
    """``[SUMS]`` of one state, f 0 or 1; ``control`` is D. With c one of these, whichever is more frequent, g^2 is g or -g."""
    c = jnp.round(f[:FIRST].mean())
    wg = samples.w * (f - c)
    along = (samples.w * wg).sum()
    return _assembled(samples, c, wg, along * (1 - 2 * c), along, control)


def _assembled(samples: Samples, c: jax.Array, wg: jax.Array, wg2: jax.Array, w2g: jax.Array, d: jax.Array | None) -> jax.Array:
    nets, wg_nets = samples.by_net, over_nets(wg)
    own = jnp.where(nets.sum() > 0, wg_nets.sum() / nets.sum(), 0)  # the mean of g
    about = wg_nets - own * nets
    by_net = [c + own, (about * about).sum(), (about * nets).sum()]
    if d is None:
        never = [jnp.zeros(())] * 3
        return jnp.stack([wg_nets.sum(), never[0], c, wg2, w2g, *never, *by_net, *never])
    d_nets = over_nets(d)
    by_sample = [c, wg2, w2g, (d * d).sum(), (samples.w * d).sum(), (wg * d).sum()]
    by_net += [(d_nets * d_nets).sum(), (nets * d_nets).sum(), (about * d_nets).sum()]
    return jnp.stack([wg_nets.sum(), d_nets.sum(), *by_sample, *by_net])


def _both(sums: jax.Array, card: int) -> jax.Array:
    """The sums of both states of a binary node from those of the second: the first's g and D are minus those."""
    second = [-1.0, 1.0, -1.0, 1.0, -1.0, 1.0]
    other = sums * jnp.array([-1.0, -1.0, *second, *second]) + jnp.zeros(SUMS).at[jnp.array([2, 2 + SECOND])].set(1.0)
    return jnp.pad(jnp.stack([other, sums]), ((0, max(card - 2, 0)), (0, 0)))[:card]
