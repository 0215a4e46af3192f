"""What two noisy-ors with common parents say of each other, which belief propagation forgets.

A noisy-or s is absent with the probability P(s = 0) = q_0 E[prod over its parents d of q_d^x_d]. Belief propagation takes the parents as
independent; but what is known of another child f of theirs ties them together, for of its causes one will do. With l(0), l(1) what is
known of f, p_d the probability of a common parent without f, b_d with it, r_d the q_d of f, and C = P(f = 0) before l is heard,

    E[prod q_d^x_d | f] / prod (1 - b_d + b_d q_d)  =  R  =  (l(1) A + (l(0) - l(1)) C B) / (l(1) + (l(0) - l(1)) C)
    A = prod over common d of (1 - p_d + p_d q_d) / (1 - b_d + b_d q_d)
    B = prod over common d of (1 - p_d + p_d q_d r_d) / ((1 - p_d + p_d r_d) (1 - b_d + b_d q_d))

and P(s = 0) is multiplied by the R of that f which says most: several that share their causes say the same thing again. With fewer than
two common parents R is 1, and so it is where f is known to be absent.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.sparse import csr_array

from unimarg.network import Floats, Ints

MOST = 1 << 14  # pairs, those that are tied most
LARGEST = 2.0  # |log R|: what is beyond is rounding
TINY = 1e-30


class Pairs(NamedTuple):
    """Ordered pairs of noisy-ors (s, f), by their numbers, and their common parents, one after the other."""

    of: Ints  # [pairs]: s
    by: Ints  # [pairs]: f
    pair: Ints  # [common]: of which pair
    arcs: tuple[Ints, Ints]  # [common]: to s, and to f
    quiet: tuple[np.ndarray, np.ndarray]  # float32 [common]: q, and r


def make_pairs(child: Ints, parent: Ints, quiet: Floats, apart: set[tuple[int, int]]) -> Pairs | None:
    """From all arcs into noisy-ors, ``[arcs]``, by the numbers of both ends; those ``apart`` are no pairs. None where there is none."""
    size = (int(child.max(initial=-1)) + 1, int(parent.max(initial=-1)) + 1)

    def matrix(values: np.ndarray) -> csr_array:
        return csr_array((values, (child, parent)), shape=size)

    loud, number = matrix(1 - quiet), matrix(np.arange(len(child)) + 1.0)
    there, squares = matrix(np.ones(len(child))), matrix((1 - quiet) ** 2)
    common = (there @ there.T).tocoo()
    chosen = (common.data > 1) & (common.row != common.col)
    pairs = [p for p in zip(common.row[chosen].tolist(), common.col[chosen].tolist(), strict=True) if p not in apart]
    if not pairs:
        return None
    of, by = np.array(pairs, np.int64).T
    # sum over any two common parents of the products of their (1 - q) (1 - r)
    tied = (loud @ loud.T).tocsr()[of, by] ** 2 - (squares @ squares.T).tocsr()[of, by]
    best = np.sort(np.argsort(-np.asarray(tied).ravel(), kind="stable")[:MOST])
    of, by = of[best], by[best]
    # where both rows of the matrix of arcs have an entry
    mine, theirs = number[of], number[by]
    both = mine.astype(bool).multiply(theirs.astype(bool)).tocoo()
    pair, d = both.row.astype(np.int64), both.col
    arcs = tuple(np.asarray(a[pair, d]).ravel().astype(np.int64) - 1 for a in (mine.tocsr(), theirs.tocsr()))
    order = np.argsort(pair, kind="stable")
    arcs = arcs[0][order], arcs[1][order]
    return Pairs(of, by, pair[order], arcs, (quiet[arcs[0]].astype(np.float32), quiet[arcs[1]].astype(np.float32)))


def log_parts(given: jax.Array, alone: jax.Array, quiet: tuple[np.ndarray, np.ndarray]) -> tuple[jax.Array, jax.Array]:
    """What common parents add to log A and log B, ``[common, n]``, from their logits with f and without."""
    q, r = (jnp.asarray(a)[:, None] for a in quiet)
    b, p = jax.nn.sigmoid(given), jax.nn.sigmoid(alone)
    plain = 1 - b + b * q
    a = 1 - p + p * q
    return jnp.log(a / plain), jnp.log((1 - p + p * q * r) / ((1 - p + p * r) * plain))


def log_r(log_a: jax.Array, log_b: jax.Array, log_c: jax.Array, known: jax.Array) -> jax.Array:
    """log R ``[pairs, n]``; ``known`` is l, ``[pairs, 2, n]``. Of differences from 1, since all are near it."""
    absent, present = known[:, 0], known[:, 1]
    a, b, c, rest = jnp.expm1(log_a), jnp.expm1(log_b), jnp.exp(log_c), -jnp.expm1(log_c)
    ratio = (present * (a - c * b) + absent * c * b) / jnp.maximum(present * rest + absent * c, TINY)
    bound = float(np.expm1(-LARGEST))
    return jnp.minimum(jnp.log1p(jnp.maximum(ratio, bound)), LARGEST)
