"""Which order the states of an XDSL variable get, so that as many noisy-max nodes as possible stay what they are.

A noisy-max child needs its listed states turned round (strongest first becomes neutral first). A parent of a
noisy-max only needs its neutral state first; the other rows of a contribution may stand in any order. Where two
nodes want different things of a variable, the one whose table would be larger wins and the other becomes a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from typing import TypeAlias

import numpy as np

from unimarg.errors import FormatError
from unimarg.formats.assemble import MAX_AXES, Node, size_of
from unimarg.network import Floats, Mechanism, NoisyMax, Table, Variable

MAX_EXPANDED_ENTRIES = 2**20  # of all conflicting noisy-max nodes of a file together


@dataclass(slots=True)
class ListedMax:
    """A noisy-max with child and parent states as listed in the file; ``strengths[j]`` ends in parent j's neutral state."""

    leak: Floats  # [card]
    contributions: list[Floats]  # each [parent_card, card]
    strengths: list[tuple[int, ...]]


Listed: TypeAlias = Table | ListedMax


@dataclass(slots=True)
class Raw:
    """A node as listed; ``parents`` and ``state_ids`` are ids, ``variable`` has the names."""

    id: str
    variable: Variable
    state_ids: tuple[str, ...]
    parents: tuple[str, ...]
    line: int
    mechanism: Listed | None = None

    @property
    def card(self) -> int:
        return self.variable.card


def ordered_nodes(raws: Mapping[str, Raw], path: str) -> list[Node]:
    """The nodes with their states in the chosen order and every table permuted to fit."""
    orders, kept = _choose(raws)
    budget = MAX_EXPANDED_ENTRIES
    nodes = []
    for raw in raws.values():
        own, of_parents = orders[raw.id], [orders[p] for p in raw.parents]
        listed = raw.mechanism
        assert listed is not None
        if isinstance(listed, ListedMax) and raw.id not in kept:
            budget -= size_of([raw.card, *(raws[p].card for p in raw.parents)], MAX_EXPANDED_ENTRIES)
            if budget < 0 or len(raw.parents) >= MAX_AXES:
                message = f"the noisy-max {raw.id!r} has a parent whose neutral state differs from what another noisy-max node needs"
                raise FormatError(f"{message}, and is too large to become a table", path, raw.line)
        mechanism = _permuted(listed, raw.id in kept, own, of_parents)
        variable = Variable(raw.variable.name, tuple(raw.variable.states[k] for k in own), raw.variable.group)
        nodes.append(Node(variable, tuple(raws[p].variable.name for p in raw.parents), mechanism, raw.line))
    return nodes


def _choose(raws: Mapping[str, Raw]) -> tuple[dict[str, list[int]], set[str]]:
    """For every id the listed states in our order, and the ids of the noisy-max nodes that stay."""
    orders: dict[str, list[int]] = {}
    kept: set[str] = set()
    largest_first = sorted((r for r in raws.values() if isinstance(r.mechanism, ListedMax)), key=lambda r: -_log_size(r, raws))
    for raw in largest_first:
        assert isinstance(raw.mechanism, ListedMax)
        wishes = {raw.id: list(range(raw.card))[::-1]}
        fits = raw.id not in orders or orders[raw.id] == wishes[raw.id]
        for parent, strengths in zip(raw.parents, raw.mechanism.strengths, strict=True):
            neutral = strengths[-1]
            if parent in orders:
                fits = fits and orders[parent][0] == neutral
            else:
                wishes[parent] = _with_first(neutral, strengths, isinstance(raws[parent].mechanism, ListedMax))
        if fits:
            kept.add(raw.id)
            orders.update(wishes)
    return {i: orders.get(i, list(range(raw.card))) for i, raw in raws.items()}, kept


def _with_first(neutral: int, strengths: tuple[int, ...], is_max: bool) -> list[int]:
    """An order that starts with the neutral state: the one the parent needs itself, the listed one, or by strength."""
    listed = list(range(len(strengths)))
    preferred = listed[::-1] if is_max else listed
    return preferred if preferred[0] == neutral else list(strengths[::-1])


def _log_size(raw: Raw, raws: Mapping[str, Raw]) -> float:
    return log(raw.card) + sum(log(raws[p].card) for p in raw.parents)


def _permuted(listed: Listed, keep: bool, own: list[int], of_parents: list[list[int]]) -> Mechanism:
    if isinstance(listed, Table):
        table = listed.probabilities
        for axis, order in enumerate([*of_parents, own]):
            if order != sorted(order):
                table = table.take(order, axis)
        return Table(table)
    ascending = list(range(len(own)))[::-1]
    rows = [c[np.ix_(order, ascending)] for c, order in zip(listed.contributions, of_parents, strict=True)]
    mechanism = NoisyMax(listed.leak[ascending], rows)
    if keep:
        assert own == ascending
        return mechanism
    return Table(np.ascontiguousarray(mechanism.expand()[..., [ascending.index(k) for k in own]]))
