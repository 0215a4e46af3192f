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

MOST, MOST_COMMON = 1 << 14, 1 << 17  # pairs, those that are tied most, and their common parents in all
BLOCK = 1 << 22  # entries of a matrix of pairs at a time
LARGEST = 2.0  # |log R|: what is beyond is rounding
MOST_OF_A_PARENT, MOST_IN_ALL = 20.0, 60.0  # of log A and log B: their exponentials are numbers
TINY, ROUNDING = 1e-30, 1e-7
FAINT = 1e-6  # a probability of what is known of f that float32 tells from 0


class Pairs(NamedTuple):
    """Ordered pairs of noisy-ors (s, f), by their numbers, and their common parents, one after the other."""

    of: Ints  # [pairs]: s
    by: Ints  # [pairs]: f
    pair: Ints  # [common]: of which pair
    arcs: tuple[Ints, Ints]  # [common]: to s, and to f
    quiet: tuple[np.ndarray, np.ndarray]  # float32 [common]: q, and r


def make_pairs(child: Ints, parent: Ints, quiet: Floats, apart: set[tuple[int, int]]) -> Pairs | None:
    """From all arcs into noisy-ors, ``[arcs]``, by the numbers of both ends; those ``apart`` are no pairs. None where there is none."""
    nodes, size = int(child.max(initial=-1)) + 1, (int(child.max(initial=-1)) + 1, int(parent.max(initial=-1)) + 1)
    there, loud, squares, number = (
        csr_array((values, (child, parent)), shape=size)
        for values in (np.ones(len(child)), 1 - quiet, (1 - quiet) ** 2, np.arange(len(child)) + 1.0)
    )
    not_these = np.array(sorted(apart), np.int64).reshape(-1, 2)
    of, by, tied, common = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), np.zeros(0)
    block = max(BLOCK // max(nodes, 1), 1)
    for first in range(0, nodes, block):  # a hub of thousands of children has millions of pairs
        rows = slice(first, first + block)
        shared = (there[rows] @ there.T).toarray()
        chosen = shared > 1
        chosen[np.arange(len(chosen)), first + np.arange(len(chosen))] = False
        here = not_these[(not_these[:, 0] >= first) & (not_these[:, 0] < first + block)]
        chosen[here[:, 0] - first, here[:, 1]] = False
        s, f = np.nonzero(chosen)
        # sum over any two common parents of the products of their (1 - q) (1 - r)
        more = ((loud[rows] @ loud.T).toarray() ** 2 - (squares[rows] @ squares.T).toarray())[s, f]
        of, by = np.concatenate([of, s + first]), np.concatenate([by, f])
        tied, common = np.concatenate([tied, more]), np.concatenate([common, shared[s, f]])
        best = np.argsort(-tied, kind="stable")[:MOST]
        best = np.sort(best[np.cumsum(common[best]) <= MOST_COMMON])
        of, by, tied, common = of[best], by[best], tied[best], common[best]
    return _with_common(of, by, number.tocsr(), quiet) if len(of) else None


def _with_common(of: Ints, by: Ints, number: csr_array, quiet: Floats) -> Pairs:
    """From the number of each arc plus 1, ``[nodes, parents]``."""
    mine, theirs = number[of], number[by]
    both = mine.astype(bool).multiply(theirs.astype(bool)).tocoo()
    order = np.lexsort((both.col, both.row))
    pair, d = both.row[order].astype(np.int64), both.col[order]
    to_s, to_f = (np.asarray(a.tocsr()[pair, d]).ravel().astype(np.int64) - 1 for a in (mine, theirs))
    return Pairs(of, by, pair, (to_s, to_f), (quiet[to_s].astype(np.float32), quiet[to_f].astype(np.float32)))


def log_parts(given: jax.Array, alone: jax.Array, quiet: tuple[np.ndarray, np.ndarray]) -> tuple[jax.Array, jax.Array]:
    """What common parents add to log A and log B, ``[common, n]``, from their logits with f and without.

    1 - p + p q r over 1 - p + p r is 1 - p' + p' q with odds of p' r times those of p; and (1 - p + p q) / (1 - b + b q) differs from 1 by
    (b - p) (1 - q) / (1 - b + b q), of which no digit cancels.
    """
    q, r = (jnp.asarray(a)[:, None] for a in quiet)
    plain = jnp.maximum(jax.nn.sigmoid(-given) + jax.nn.sigmoid(given) * q, TINY)

    def log_part(logit: jax.Array) -> jax.Array:
        differs = _difference(given, logit) * (1 - q) / plain
        return jnp.minimum(jnp.log1p(jnp.maximum(differs, -1 + ROUNDING)), MOST_OF_A_PARENT)

    return log_part(alone), log_part(alone + jnp.log(jnp.maximum(r, TINY)))


def _difference(x: jax.Array, y: jax.Array) -> jax.Array:
    """sigmoid(x) - sigmoid(y)"""
    more, less = jnp.maximum(x, y), jnp.minimum(x, y)
    return jnp.sign(x - y) * jax.nn.sigmoid(more) * jax.nn.sigmoid(-less) * -jnp.expm1(less - more)


def log_r(log_a: jax.Array, log_b: jax.Array, log_c: jax.Array, known: jax.Array) -> jax.Array:
    """log R ``[pairs, n]``; ``known`` is l, ``[pairs, 2, n]``. Of differences from 1, since all are near it.

    Where what is known of f is all but impossible, rounding is all that there is, and R is 1.
    """
    absent, present = known[:, 0], known[:, 1]
    a, b = (jnp.expm1(jnp.minimum(log, MOST_IN_ALL)) for log in (log_a, log_b))
    c, rest = jnp.exp(log_c), -jnp.expm1(log_c)
    possible = present * rest + absent * c
    ratio = (present * (a - c * b) + absent * c * b) / jnp.maximum(possible, TINY)
    log = jnp.minimum(jnp.log1p(jnp.maximum(ratio, float(np.expm1(-LARGEST)))), LARGEST)
    return log * (possible / (possible + FAINT))
