"""Points that fill space: random numbers for 256 samples at a time, spread more evenly than independent ones.

The leading bits of what 256 successive samples draw a node with are those of a digital net in base 2 (Niederreiter 1987): every node's
cover [0, 1) evenly, and so do those of nodes near each other together. A random shift of each node's bits, anew for every net, makes
each number uniform and nets independent (L'Ecuyer and Lemieux 2002), so that sums over nets have honest errors. The other bits are
independent.

A node's points are one of CANDIDATES, the index's bits multiplied by a triangular matrix. They are chosen node by node in the order of
drawing (component by component, Nuyens and Cools 2006), so that the error

    sum over the points of  omega(x_i) * product over nodes j drawn before of (1 + gamma_ij omega(x_j))

is least, with omega the sum of Walsh functions that decay as an indicator's do, and gamma_ij the less the farther apart i and j are in
the graph: what a node is drawn from depends on its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from unimarg.counter import Key, mixed, threefry
from unimarg.network import Floats, Ints

BITS = 8
NET = 1 << BITS  # samples of a net
CANDIDATES = 1 << 10
GAMMA, GAMMA_FAR = (0.2, 0.1, 0.02, 0.005), 0.002  # of nodes at a distance of 1, 2, 3, 4 in the graph, and of the others
NEAR = 100  # nodes at most whose distance is looked at
LEADING = np.uint32(0xFF000000)
_SHIFTS = np.uint32(0x5B1F7)  # their stream of random numbers


def leading_bits(nets: bool) -> np.uint32:
    """Those that samples take from nets, or none: then they are independent."""
    return LEADING if nets else np.uint32(0)


class Numbers(NamedTuple):
    """Of n samples: what their random numbers depend on, whatever the node."""

    key: Key
    first: jax.Array  # the first sample's number, as for ``walk``
    nets: jax.Array  # uint32 [n]: a random word of each one's net
    leading: jax.Array | np.uint32  # see ``leading_bits``

    @classmethod
    def make(cls, key: Key, first: jax.Array, n: int, leading: jax.Array | np.uint32) -> Numbers:
        nets = threefry(key ^ _SHIFTS, (first[0] + lax.iota(jnp.uint32, n)) >> np.uint32(BITS), first[1])[0]
        return cls(key, first, lax.optimization_barrier(nets), leading)

    def words(self, number: jax.Array, columns: jax.Array) -> tuple[jax.Array, jax.Array]:
        """A high and a low word for a node of each sample, ``[n]``; ``columns`` are those of its points."""
        sample, node = self.first[0] + lax.iota(jnp.uint32, len(self.nets)), number.astype(jnp.uint32) + self.first[1]
        high, low = threefry(self.key, sample, node)
        of_node = threefry(self.key ^ _SHIFTS, jnp.uint32(0xFFFFFFFF), node)
        point = mixed(mixed(self.nets + of_node[0]) ^ of_node[1])  # the shift
        for k in range(BITS):  # bit by bit: a CPU has vectors for this, and none for a look-up
            bit = lax.bitcast_convert_type(sample << np.uint32(31 - k), jnp.int32) >> np.int32(31)
            point = point ^ (lax.bitcast_convert_type(bit, jnp.uint32) & columns[k])
        return (point & self.leading) | (high & ~self.leading), low


@cache
def candidates() -> np.ndarray:
    """Point sets, uint8 ``[CANDIDATES, NET]``: the bits of the index, the lowest first, times unit upper triangular matrices."""
    words = np.random.PCG64(3).random_raw(CANDIDATES)  # which no version of NumPy changes
    entries = (words[:, None] >> np.arange(BITS * BITS, dtype=np.uint64)) & np.uint64(1)
    matrices = np.triu(entries.reshape(-1, BITS, BITS).astype(int), 1) + np.eye(BITS, dtype=int)
    index = (np.arange(NET)[:, None] >> np.arange(BITS)) & 1
    bits = np.einsum("ckj,mj->cmk", matrices, index) & 1
    return (bits << (BITS - 1 - np.arange(BITS))).sum(axis=-1).astype(np.uint8)


@cache
def columns() -> np.ndarray:
    """What each bit of the index, the lowest first, adds to a point's leading bits: uint32 ``[CANDIDATES, BITS]``."""
    return candidates()[:, 1 << np.arange(BITS)].astype(np.uint32) << np.uint32(32 - BITS)


@cache
def omega() -> Floats:
    """Of every candidate's points, scaled to 1 at 0: sum over w of 4^-w times all Walsh functions of w leading bits."""
    zeros = BITS - np.array([int(x).bit_length() for x in range(NET)])
    parts = [4.0**-w * (2.0**w * (zeros >= w) - 2.0 ** (w - 1) * (zeros >= w - 1)) for w in range(1, BITS + 1)]
    total = np.sum(parts, axis=0)
    return (total / total[0])[candidates()]


def choose(order: Sequence[int], neighbours: Sequence[Sequence[int]]) -> Ints:
    """Which candidate each node takes, ``[nodes]``; the first node's is any."""
    of = omega()
    chosen = np.full(len(order), -1)
    everything = np.ones(NET)  # the product over all nodes so far, as if all were far
    for i in order:
        near = {j: gamma for j, gamma in _near(i, neighbours) if chosen[j] >= 0}
        theirs, gammas = of[chosen[list(near)]], np.array(list(near.values()))[:, None]
        chosen[i] = np.argmin(of @ (everything * np.prod((1 + gammas * theirs) / (1 + GAMMA_FAR * theirs), axis=0)))
        everything *= 1 + GAMMA_FAR * of[chosen[i]]
        everything /= everything.mean()
    return chosen


def _near(node: int, neighbours: Sequence[Sequence[int]]) -> list[tuple[int, float]]:
    """Other nodes and their gamma, the nearest first."""
    found, ring = {node: 0.0}, [node]
    for gamma in GAMMA:
        new: dict[int, float] = {}
        for b in (b for a in ring for b in neighbours[a] if b not in found):
            new[b] = gamma
            if len(found) + len(new) > NEAR:
                return list((found | new).items())[1:]
        found, ring = found | new, list(new)
    return list(found.items())[1:]
