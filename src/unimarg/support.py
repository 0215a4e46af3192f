"""What evidence rules out: which states are still possible, by boolean propagation through tables.

A state of a variable stays possible in a table if some entry above zero has it, with a possible state of every
other variable of the table. Repeated until nothing changes this is sound: what it rules out has probability zero.
It is not complete: what it leaves may still be impossible. Noisy-max nodes and very large tables rule nothing out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from unimarg.network import Network, Table

Possible = list[NDArray[np.bool_]]  # [rows, K] for each node

LARGEST = 1 << 14  # entries of a table that is propagated through


class Support:
    """The tables of a network that hold zeros."""

    def __init__(self, net: Network):
        self.cards = net.cards
        self.tables: list[tuple[tuple[int, ...], np.ndarray]] = []
        for i, (pa, m) in enumerate(zip(net.parents, net.mechanisms, strict=True)):
            if isinstance(m, Table) and m.probabilities.size <= LARGEST and (m.probabilities == 0).any():
                self.tables.append(((*pa, i), (m.probabilities > 0).astype(np.float32)))
        self.touching: dict[int, list[int]] = {}
        for t, (scope, _) in enumerate(self.tables):
            for v in scope:
                self.touching.setdefault(v, []).append(t)

    @cached_property
    def unconditional(self) -> Possible:
        """Without evidence, one row."""
        return self._propagate([np.ones((1, k), dtype=bool) for k in self.cards], range(len(self.tables)))

    def narrow(self, possible: Possible) -> Possible:
        """What remains of what the evidence itself allows; a row without any state left is impossible evidence."""
        if not self.tables:
            return possible
        merged = [p & u for p, u in zip(possible, self.unconditional, strict=True)]
        news = [i for i, (m, u) in enumerate(zip(merged, self.unconditional, strict=True)) if i in self.touching and (m != u).any()]
        return self._propagate(merged, sorted({t for i in news for t in self.touching[i]}))

    def _propagate(self, possible: Possible, todo: Sequence[int]) -> Possible:
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

    def _supported(self, t: int, possible: Possible) -> list[np.ndarray]:
        """For each variable of the table, the states that some entry supports, ``[rows, K]``."""
        scope, allowed = self.tables[t]
        rows = len(scope)  # einsum's number for the axis of rows
        given = [possible[v].astype(np.float32) for v in scope]
        out = []
        for j in range(len(scope)):
            others = [x for k in range(len(scope)) if k != j for x in (given[k], [rows, k])]
            counts = np.einsum(
                allowed, list(range(len(scope))), *others, np.ones(len(given[0]), np.float32), [rows], [rows, j], optimize=True
            )
            out.append(counts > 0)
        return out
