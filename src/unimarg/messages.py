"""What factors P(x_c | pa_c) tell their variables, for many evidence sets at once; factors of one shape lie side by side.

With b_u what parent u has heard from all others, and lambda what c's children and its evidence say of c, a factor tells

    c:         sum over pa_c of P(x_c | pa_c) prod over u of b_u
    parent v:  sum over x_c and the others u of lambda(x_c) P(x_c | pa_c) prod over u of b_u

A table is contracted as it is. With P(X <= k | pa) = L(k) prod_j F_j(k | pa_j) a noisy-max of independent parents needs no table:

    P(X <= k) = L(k) prod_j E[F_j(k | pa_j)],    to parent j in state s:  sum over k of lambda(k) P(X = k | pa_j = s)

Messages are logarithms against the first state, so that a binary node has one number: ``[messages, K - 1, n]``.
"""

from __future__ import annotations

import functools
import math
import operator
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from unimarg.gathers import Sums, gathered, padded_degrees, sum_of_second
from unimarg.network import Ints, NoisyMax, Table
from unimarg.ragged import over_states

NEVER = -30.0  # the logarithm of what is impossible
TINY = 1e-13  # about exp(NEVER)
LEAST = 1e-37  # of a likelihood, and of a message before it is scaled
NEGLIGIBLE = -69.0  # the logarithm of a probability that need not be told from smaller ones, but from 0
UNROLLED = 8  # terms of a sum that are written out: a CPU is slow to add along other axes than the last

Arcs = list[
    tuple[int, Ints]
]  # for each array of messages to parents: their width, and which factor's which parent, [messages, 2]; -1: none


@dataclass(frozen=True, eq=False)
class Tables:
    """Factors that are tables, padded with impossible states; axes are the parents, by ascending width, and the node itself."""

    table: np.ndarray  # float32 [factors, *parents, width]
    arcs: Arcs

    @staticmethod
    def make(tables: list[Table], shape: tuple[int, ...]) -> Tables:
        table, parents = np.zeros((len(tables), *shape), np.float32), []
        for at, m in enumerate(tables):
            axes = np.argsort(m.probabilities.shape[:-1], kind="stable")
            p = m.probabilities.transpose(*axes, len(axes))
            table[(at, *map(slice, p.shape))] = p
            parents.append(axes)
        numbered = np.array(parents, np.int64).reshape(len(tables), -1).T
        return Tables(table, [(w, np.stack([np.arange(len(tables)), axis], axis=1)) for w, axis in zip(shape, numbered, strict=False)])

    @property
    def entries(self) -> int:
        return self.table.size

    def heard(self, logits: list[jax.Array]) -> list[jax.Array]:
        """What both messages are made of, from what each array of parents has heard."""
        return [probabilities(part) for part in logits]

    def down(self, given: list[jax.Array]) -> jax.Array:
        """To the nodes; parents of most states first."""
        out = jnp.asarray(self.table)[..., None]
        for axis in reversed(range(len(given))):
            out = _contracted(out, axis + 1, given[axis])
        return log_ratios(out)

    def up(self, given: list[jax.Array], own: jax.Array) -> list[jax.Array]:
        """To the parents, from what is known of the nodes, ``[factors, K - 1, n]``."""
        if not given:
            return []
        table = jnp.asarray(self.table)[..., None]
        told = _but_one(_contracted(table, table.ndim - 2, probabilities(own)), given)
        return [log_ratios(part) for part in told]


def _but_one(table: jax.Array, given: list[jax.Array]) -> list[jax.Array]:
    """Summed over all axes but one, for each: by halves, whose sums have most of the work in common."""
    if len(given) == 1:
        return [table]
    half = len(given) // 2
    left, right = given[:half], given[half:]
    to_left, to_right = table, table
    for part in reversed(right):
        to_left = _contracted(to_left, to_left.ndim - 2, part)
    for part in left:
        to_right = _contracted(to_right, 1, part)
    return _but_one(to_left, left) + _but_one(to_right, right)


def _contracted(table: jax.Array, axis: int, given: jax.Array) -> jax.Array:
    """Summed over an axis with weights ``[tables, K, n]``; few and long axes are what compilers like."""
    shape = table.shape
    wide = table.reshape(shape[0], math.prod(shape[1:axis]), shape[axis], math.prod(shape[axis + 1 : -1]), shape[-1])
    if jax.default_backend() != "cpu":  # which adds along any axis; tries for the best product of matrices would take longer than they save
        out = (wide * given[:, None, :, None]).sum(axis=2)
    elif shape[-1] == 1:  # the same for all rows: a product of matrices
        out = jnp.einsum("tbka,tkn->tban", wide[..., 0], given, precision=lax.Precision.HIGHEST)
    else:
        out = functools.reduce(operator.add, (wide[:, :, k] * given[:, None, k, None] for k in range(shape[axis])))
    return out.reshape(*shape[:axis], *shape[axis + 1 : -1], -1)


class Effects(NamedTuple):
    """Of parents of one width on nodes that have about as many of them: as many for each, some of no effect."""

    child: Ints  # [nodes], among the factors
    number: Ints  # [nodes, each]: which of the node's parents; -1: none
    factors: np.ndarray  # float32 [nodes, each, width of the parents, width - 1]: F by the parent's state


class Causes(NamedTuple):
    """What the messages of noisy-max nodes are made of."""

    logs: list[jax.Array]  # [nodes, each, width - 1, n]: log E[F] of each parent
    log_cdf: jax.Array  # [factors, width - 1, n]: log P(X <= k)


@dataclass(frozen=True, eq=False)
class NoisyMaxes:
    """Factors that are noisy-max, of one width; the last state's cumulative probability is 1 and left out."""

    leak: np.ndarray  # float32 [factors, width - 1]: log L
    effects: list[Effects]
    sums: Sums  # over the children of all effects
    arcs: Arcs

    @staticmethod
    def make(nodes: list[NoisyMax], width: int, parent_widths: list[Ints]) -> NoisyMaxes:
        leak = np.zeros((len(nodes), width - 1), np.float32)
        for at, m in enumerate(nodes):
            leak[at, : m.card - 1] = np.maximum(m.log_cdfs[0][:-1], NEVER)
        effects: list[Effects] = []
        arcs: Arcs = []
        for w in sorted({int(w) for each in parent_widths for w in each}):
            members = [np.flatnonzero(each == w) for each in parent_widths]
            degree = np.array(list(map(len, members)))
            padded = padded_degrees(degree)
            for d in np.unique(padded[degree > 0]).tolist():
                child = np.flatnonzero((padded == d) & (degree > 0))
                effects.append(_effects([nodes[i] for i in child], [members[i] for i in child], child, (d, w, width - 1)))
                arcs.append((w, np.stack([np.repeat(child, d), effects[-1].number.ravel()], axis=1)))
        return NoisyMaxes(leak, effects, Sums(np.concatenate([np.zeros(0, int), *(e.child for e in effects)]), len(nodes)), arcs)

    @property
    def entries(self) -> int:
        return sum(e.factors.size for e in self.effects)

    def heard(self, logits: list[jax.Array]) -> Causes:
        logs, leak = [], jnp.asarray(self.leak)[..., None]
        for effects, parents in zip(self.effects, logits, strict=True):
            given = probabilities(parents).reshape(*effects.number.shape, -1, parents.shape[-1])
            logs.append(lax.optimization_barrier(_log_expected(given, effects.factors)))
        return Causes(logs, leak + self.sums(jnp.concatenate([sum_of_second(part) for part in logs])) if logs else leak)

    def down(self, causes: Causes) -> jax.Array:
        pads = (((1, 0), 4 * NEVER), ((0, 1), 0))
        lower, upper = (jnp.pad(causes.log_cdf, ((0, 0), side, (0, 0)), constant_values=v) for side, v in pads)
        return log_ratios(-jnp.expm1(jnp.minimum(lower - upper, 0)) * jnp.exp(upper))

    def up(self, causes: Causes, own: jax.Array) -> list[jax.Array]:
        known, told = probabilities(own), []
        last, falls, log_cdf = lax.optimization_barrier((known[:, -1:], known[:, :-1] - known[:, 1:], causes.log_cdf))
        for effects, log in zip(self.effects, causes.logs, strict=True):
            # sum over k of lambda(k) P(X = k) = lambda(last) + sum over k < last of P(X <= k) (lambda(k) - lambda(k + 1))
            cdf, fall, least = (gathered(a, effects.child)[:, None] for a in (log_cdf, falls, last))
            others = jnp.exp(jnp.maximum(cdf - log, NEGLIGIBLE))
            up = least + _sum_products(fall * others, jnp.asarray(effects.factors.swapaxes(2, 3)))
            told.append(log_ratios(jnp.maximum(up, 0).reshape(-1, *up.shape[2:])))
        return told


def _effects(nodes: list[NoisyMax], members: list[Ints], child: Ints, shape: tuple[int, int, int]) -> Effects:
    number, factors = np.full((len(nodes), shape[0]), -1), np.ones((len(nodes), *shape), np.float32)
    for at, (m, parents) in enumerate(zip(nodes, members, strict=True)):
        number[at, : len(parents)] = parents
        for n, j in enumerate(parents.tolist()):
            factors[at, n, : m.parent_cards[j], : m.card - 1] = np.exp(m.log_cdfs[1][j][:, :-1])
    return Effects(child, number, factors)


def probabilities(logits: jax.Array) -> jax.Array:
    """``[..., width, n]`` from ``[..., width - 1, n]``."""
    if logits.shape[-2] == 1:
        less = jnp.exp(-jnp.abs(logits))  # one exponential for both states
        more = 1 / (1 + less)
        less = less * more
        return jnp.concatenate([jnp.where(logits > 0, less, more), jnp.where(logits > 0, more, less)], axis=-2)
    top = jnp.maximum(over_states(jnp.maximum, logits, -2), 0)[..., None, :]
    scaled = jnp.exp(jnp.pad(logits, [(0, 0)] * (logits.ndim - 2) + [(1, 0), (0, 0)]) - top)
    scaled = lax.optimization_barrier(scaled)  # else each term of the sum makes it anew
    return scaled / over_states(jnp.add, scaled, -2)[..., None, :]


def log_ratios(message: jax.Array) -> jax.Array:
    """The inverse, ``[messages, width - 1, n]``, for numbers that need not add up to 1."""
    if message.shape[1] == 2:  # one logarithm
        first, second = message[:, :1], message[:, 1:]
        scale = 1 / jnp.maximum(jnp.maximum(first, second), LEAST)
        return jnp.log(jnp.maximum(second * scale, TINY) / jnp.maximum(first * scale, TINY))
    largest = jnp.maximum(over_states(jnp.maximum, message, 1)[:, None], LEAST)
    log = jnp.log(jnp.maximum(message / largest, TINY))
    return log[:, 1:] - log[:, :1]


def _log_expected(given: jax.Array, factors: np.ndarray) -> jax.Array:
    """log E[F], ``[..., K, n]``, with F ``[..., J, K]`` and the parents' probabilities ``[..., J, n]``."""
    if given.shape[-2] > 2:
        return jnp.log(jnp.maximum(_sum_products(given, jnp.asarray(factors)), TINY))
    quiet = jnp.asarray(factors[..., 1, :, None])  # F = 1 for the first state
    absent, there = given[..., :1, :], given[..., 1:, :]
    return _log_one_less(there * (1 - quiet), jnp.maximum(absent + there * quiet, TINY))


def _log_one_less(x: jax.Array, rest: jax.Array) -> jax.Array:
    """log(1 - x) with all its digits, from x and ``rest``, which is 1 - x where that is small; one logarithm (Kahan 1987)."""
    near = jnp.where(x < 0.5, 1 - x, rest)
    log = jnp.log(near)
    return jnp.where(x < 0.5, jnp.where(near == 1, -x, log * (x / (1 - near))), log)


def _sum_products(a: jax.Array, b: jax.Array) -> jax.Array:
    """sum over j of a[j] b[j], ``[..., K, n]`` from ``[..., J, n]`` and ``[..., J, K]``, term by term where these are few."""
    if a.shape[-2] > UNROLLED:
        return (a[..., None, :] * b[..., None]).sum(axis=-3)
    terms = (a[..., j, None, :] * b[..., j, :, None] for j in range(a.shape[-2]))
    return functools.reduce(operator.add, terms)
