"""What evidence rules out: which states are still possible, by boolean propagation through tables and noisy-max nodes.

A state of a variable stays possible in a table if some entry above zero has it, with a possible state of every
other variable of the table. A noisy-max can be k if no cause must take it beyond k, and some cause, or the leak, may bring it to
k. Repeated until nothing changes this is sound: what it rules out has probability zero. It is not complete: what it leaves may still be
impossible. Very large tables rule nothing out.

Rows of evidence lie side by side as the bits of words, 64 at a time: "some entry" is OR, "with a possible state" is AND.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from unimarg.network import Network, NoisyMax

Possible = Mapping[int, NDArray[np.bool_]]  # node -> [rows, K]
Words = NDArray[np.uint64]  # [K, words]: bit r of a word, for its row r, says whether the state is possible

LARGEST = 1 << 14  # entries of a table that is propagated through
ROWS = 4096  # at a time: the largest table then takes 8 MB
ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


@dataclass(frozen=True, eq=False)
class Sources:
    """What a noisy-max may be brought to by its causes and its leak, the last of them: ``[parent card, card, 1]`` each, ALL or 0."""

    exactly: list[Words]  # to k
    at_most: list[Words]  # no further than k

    @classmethod
    def make(cls, m: NoisyMax) -> Sources:
        effects = [*m.contributions, m.leak[None]]
        return cls([_words(e > 0) for e in effects], [_words(np.cumsum(e, axis=1) > 0) for e in effects])


class Support:
    """The tables and noisy-max nodes of a network that hold zeros."""

    def __init__(self, net: Network):
        self.cards = net.cards
        self.tables: list[tuple[tuple[int, ...], Words | Sources]] = []
        for i, (pa, m) in enumerate(zip(net.parents, net.mechanisms, strict=True)):
            if isinstance(m, NoisyMax):
                if (m.leak == 0).any() or any((c[1:] == 0).any() for c in m.contributions):
                    self.tables.append(((*pa, i), Sources.make(m)))
            elif m.probabilities.size <= LARGEST and (m.probabilities == 0).any():
                self.tables.append(((*pa, i), _words(m.probabilities > 0)))
        self.touching: dict[int, list[int]] = {}
        for t, (scope, _) in enumerate(self.tables):
            for v in scope:
                self.touching.setdefault(v, []).append(t)
        self.touching = dict(sorted(self.touching.items()))

    @cached_property
    def unconditional(self) -> dict[int, Words]:
        """Without evidence, one word: ALL or 0."""
        return self._propagate({i: np.full((self.cards[i], 1), ALL) for i in self.touching}, range(len(self.tables)))

    def narrow(self, possible: Possible) -> Possible:
        """What remains of what the evidence itself allows, for the nodes that lose something by it.

        Only nodes of the tables (``touching``) need to be given. A row without any state left is impossible evidence.
        """
        if not self.tables:
            return {}
        rows = len(possible[next(iter(self.touching))])
        starts = range(0, rows, ROWS)
        pieces = [self._narrow({i: possible[i][first : first + ROWS] for i in self.touching}) for first in starts]
        lost = [i for i in self.touching if any(i in piece for piece in pieces)]
        return {i: np.concatenate([piece.get(i, possible[i][n : n + ROWS]) for n, piece in zip(starts, pieces, strict=True)]) for i in lost}

    def _narrow(self, possible: Possible) -> Possible:
        given = {i: pack(p.T) for i, p in possible.items()}
        left = self.propagate(given)
        return {i: unpack(left[i], len(p)).T for i, p in possible.items() if (given[i] != left[i]).any()}

    def propagate(self, given: Mapping[int, Words]) -> dict[int, Words]:
        """What remains of what the evidence itself allows, for all nodes of the tables."""
        merged = {i: p & self.unconditional[i] for i, p in given.items()}
        news = [i for i, m in merged.items() if (m != self.unconditional[i]).any()]
        return self._propagate(merged, sorted({t for i in news for t in self.touching[i]}))

    def _propagate(self, possible: dict[int, Words], todo: Sequence[int]) -> dict[int, Words]:
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

    def _supported(self, t: int, possible: Mapping[int, Words]) -> list[Words]:
        """For each variable of the table, the states that some entry supports."""
        scope, allowed = self.tables[t]
        if isinstance(allowed, Sources):
            return _of_noisy_max(allowed, [possible[v] for v in scope])
        out = []
        for j in range(len(scope)):
            left = allowed  # the table's axes, then words
            for k in reversed(range(len(scope))):
                if k != j:
                    shape = [1] * left.ndim
                    shape[k], shape[-1] = possible[scope[k]].shape
                    left = np.bitwise_or.reduce(left & possible[scope[k]].reshape(shape), axis=k)
            out.append(left)
        return out


def _of_noisy_max(sources: Sources, possible: list[Words]) -> list[Words]:
    """For each parent, and the node itself, the states that are supported."""
    *parents, own = possible
    states = [*parents, np.full((1, own.shape[1]), ALL)]  # the leak is always there
    exactly, at_most = (
        [np.bitwise_or.reduce(s[:, None] & allowed, axis=0) for s, allowed in zip(states, many, strict=True)]
        for many in (sources.exactly, sources.at_most)
    )  # [card, words] for each source
    some, all_of_them = _without_each(np.bitwise_or, exactly), _without_each(np.bitwise_and, at_most)
    out = []
    for j in range(len(parents)):
        reached = sources.at_most[j] & (sources.exactly[j] | some[j])  # [parent card, card, words]
        out.append(np.bitwise_or.reduce(reached & own & all_of_them[j], axis=1))
    return [*out, (some[-1] | exactly[-1]) & all_of_them[-1] & at_most[-1]]


def _without_each(operation: np.ufunc, parts: list[Words]) -> list[Words]:
    """All parts but one, taken together, for each of them."""
    nothing = np.full_like(parts[0], ALL if operation is np.bitwise_and else 0)
    before, after = [nothing], [nothing]
    for part in parts[:-1]:
        before.append(operation(before[-1], part))
    for part in parts[:0:-1]:
        after.append(operation(after[-1], part))
    return [operation(b, a) for b, a in zip(before, reversed(after), strict=True)]


def _words(allowed: NDArray[np.bool_]) -> Words:
    """The same for every row: ALL or 0, with an axis of words."""
    return np.where(allowed, ALL, np.uint64(0))[..., None]


def pack(possible: NDArray[np.bool_]) -> Words:
    """``[..., rows]`` as bits; rows that fill up the last word allow everything."""
    padded = np.ones((*possible.shape[:-1], -(-possible.shape[-1] // 64) * 64), dtype=bool)
    padded[..., : possible.shape[-1]] = possible
    return np.packbits(padded, axis=-1).view(np.uint64)


def unpack(words: Words, rows: int) -> NDArray[np.bool_]:
    """The inverse."""
    return np.unpackbits(words.view(np.uint8), axis=-1, count=rows).view(bool)
