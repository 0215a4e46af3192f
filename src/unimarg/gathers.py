"""Rows of arrays chosen, summed by target, and taken in parts: sums are gathers and not scatters, in the same order on every device."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from unimarg.network import Ints

WASTE = 160  # rows of padding that cost less than another operation


class Sums:
    """Sums of rows by target. Rows of no target have -1."""

    def __init__(self, targets: Ints, count: int):
        rows = np.argsort(targets, kind="stable")[(targets < 0).sum() :]
        degree = np.bincount(targets[rows], minlength=count)
        start = np.concatenate([[0], np.cumsum(degree)])
        self.classes = []  # of targets with about as many rows: [targets, padded degree], and 1 where there is one, 0 where not
        order = []
        padded = padded_degrees(degree)
        for w in np.unique(padded):
            members = np.flatnonzero(padded == w)
            there = np.arange(w) < degree[members][:, None]
            at = np.where(there, start[members][:, None] + np.arange(w), 0)
            chosen = rows[at] if len(rows) else at
            self.classes.append((chosen, None if there.all() else there.astype(np.float32)))
            order.append(members)
        self.place = np.argsort(np.concatenate(order))

    def __call__(self, rows: jax.Array, combine: Callable[[jax.Array, jax.Array], jax.Array] = operator.add) -> jax.Array:
        """Or what another function of two makes of them, to which a row of zeros adds nothing."""
        sums = []
        for at, there in self.classes:
            if not at.size:
                sums.append(jnp.zeros((len(at), *rows.shape[1:]), rows.dtype))
                continue
            taken = gathered(rows, at.ravel()).reshape(*at.shape, *rows.shape[1:])
            sums.append(sum_of_second(taken if there is None else taken * there.reshape(*at.shape, *[1] * (rows.ndim - 1)), combine))
        return gathered(jnp.concatenate(sums), self.place)


def sum_of_second(a: jax.Array, combine: Callable[[jax.Array, jax.Array], jax.Array] = operator.add) -> jax.Array:
    """Over the second axis, by halves: a CPU is slow to add along other axes than the last."""
    while a.shape[1] > 1:
        half = a.shape[1] // 2
        odd = a[:, 2 * half :]
        a = combine(a[:, :half], a[:, half : 2 * half])
        a = a.at[:, :1].set(combine(a[:, :1], odd)) if odd.shape[1] else a
    return a[:, 0]


def gathered(array: jax.Array, rows: Ints) -> jax.Array:
    """array[rows], which are all there: a device need not look. Faster than ``take_rows`` in belief propagation, slower in batches."""
    if len(rows) == len(array) and (rows == np.arange(len(rows))).all():
        return array
    return array.at[jnp.asarray(rows)].get(mode="promise_in_bounds")


def rounded_up(n: Ints) -> Ints:
    """To powers of two and what lies half-way between them.

    >>> rounded_up(np.array([1, 2, 3, 4, 5, 7, 9, 13])).tolist()
    [1, 2, 3, 4, 6, 8, 12, 16]
    """
    power = 2 ** np.ceil(np.log2(np.maximum(n, 1))).astype(int)
    return np.where((power > 3) & (n <= power // 4 * 3), power // 4 * 3, power)


def padded_degrees(degree: Ints) -> Ints:
    """Each rounded up so that there are few different ones, as long as the padding of a class stays below ``WASTE`` in all."""
    padded = np.where(degree > 0, rounded_up(degree), 0)
    levels = np.unique(padded)
    for level, above in itertools.pairwise(levels.tolist()):
        members = padded == level
        if (above - degree[members]).sum() <= WASTE:
            padded[members] = above
    return padded


def by_blocks(function: Any, rows: Any, most: float) -> Any:
    """function(rows), arrays with a first axis of rows, for at most so many rows at once."""
    n = jax.tree.leaves(rows)[0].shape[0]
    size = 1 << int(np.log2(max(most, 1)))
    if n <= size:
        return function(rows)
    while n % size:
        size //= 2
    blocks = jax.tree.map(lambda a: a.reshape(-1, size, *a.shape[1:]), rows)
    return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), lax.map(function, blocks))
