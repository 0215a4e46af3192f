"""What evidence rules out: which states are still possible, by boolean propagation through tables.

A state of a variable stays possible in a table if some entry above zero has it, with a possible state of every
other variable of the table. Repeated until nothing changes this is sound: what it rules out has probability zero.
It is not complete: what it leaves may still be impossible. Noisy-max nodes and very large tables rule nothing out.

Rows of evidence lie side by side as the bits of words, 64 at a time: "some entry" is OR, "with a possible state" is AND.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from unimarg.network import Network, Table

Possible = list[NDArray[np.bool_]]  # [rows, K] for each node
Words = NDArray[np.uint64]  # [K, words]: bit r of a word, for its row r, says whether the state is possible

LARGEST = 1 << 14  # entries of a table that is propagated through
ROWS = 4096  # at a time: the largest table then takes 8 MB
ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


class Support:
    """The tables of a network that hold zeros."""

    def __init__(self, net: Network):
        self.cards = net.cards
        self.tables: list[tuple[tuple[int, ...], Words]] = []
        for i, (pa, m) in enumerate(zip(net.parents, net.mechanisms, strict=True)):
            if isinstance(m, Table) and m.probabilities.size <= LARGEST and (m.probabilities == 0).any():
                self.tables.append(((*pa, i), np.where(m.probabilities > 0, ALL, np.uint64(0))))
        self.touching: dict[int, list[int]] = {}
        for t, (scope, _) in enumerate(self.tables):
            for v in scope:
                self.touching.setdefault(v, []).append(t)

    @cached_property
    def unconditional(self) -> list[Words]:
        """Without evidence, one word: ALL or 0."""
        return self._propagate([np.full((k, 1), ALL) for k in self.cards], range(len(self.tables)))

    def narrow(self, possible: Possible) -> Possible:
        """What remains of what the evidence itself allows; a row without any state left is impossible evidence.

        Where nothing was ruled out, the very array that was given is returned.
        """
        if not self.tables:
            return possible
        pieces = [self._narrow([p[first : first + ROWS] for p in possible]) for first in range(0, len(possible[0]), ROWS)]
        out = []
        for given, *parts in zip(possible, *pieces, strict=True):
            same = all(part is None for part in parts)
            fill = [given[n * ROWS : (n + 1) * ROWS] if part is None else part for n, part in enumerate(parts)]
            out.append(given if same else np.concatenate(fill))
        return out

    def _narrow(self, possible: Possible) -> list[NDArray[np.bool_] | None]:
        """For each node what remains, None if that is what was given."""
        given = [_pack(p) for p in possible]
        merged = [p & u for p, u in zip(given, self.unconditional, strict=True)]
        news = [i for i, (m, u) in enumerate(zip(merged, self.unconditional, strict=True)) if i in self.touching and (m != u).any()]
        left = self._propagate(merged, sorted({t for i in news for t in self.touching[i]}))
        rows = len(possible[0])
        return [None if (a == b).all() else _unpack(b, rows) for a, b in zip(given, left, strict=True)]

    def _propagate(self, possible: list[Words], todo: Sequence[int]) -> list[Words]:
        waiting = dict.fromkeys(todo)
        while waiting:
            t = next(iter(waiting))
            del waiting[t]
            scope, _ = self.tables[t]
            for v, supported in zip(scope, self._supported(t, possible), strict=True):
                narrower = possible[v] & supported
                if (narrower != possible[v]).any():
                    possible[v] = narrower
                    waiting.update(dict.fromkeys(other for other in self.touching[v] if other != t))
        return possible

    def _supported(self, t: int, possible: list[Words]) -> list[Words]:
        """For each variable of the table, the states that some entry supports."""
        scope, allowed = self.tables[t]
        out = []
        for j in range(len(scope)):
            left = allowed[..., None]  # the table's axes, then words
            for k in reversed(range(len(scope))):
                if k != j:
                    shape = [1] * left.ndim
                    shape[k], shape[-1] = possible[scope[k]].shape
                    left = np.bitwise_or.reduce(left & possible[scope[k]].reshape(shape), axis=k)
            out.append(left)
        return out


def _pack(possible: NDArray[np.bool_]) -> Words:
    """``[rows, K]`` as bits; rows that fill up the last word allow everything."""
    rows, k = possible.shape
    padded = np.ones((k, -(-rows // 64) * 64), dtype=bool)
    padded[:, :rows] = possible.T
    return np.packbits(padded, axis=1).view(np.uint64)


def _unpack(words: Words, rows: int) -> NDArray[np.bool_]:
    return np.unpackbits(words.view(np.uint8), axis=1, count=rows).astype(bool).T
