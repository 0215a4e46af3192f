"""From what a file says to a Network, whatever the format: numbers, families, sizes, and every complaint tied to its place.

A reader hands over a ``Complaint``, which turns a sentence and a place into an error. What a place is (a line, an offset, the
number of a word) is the reader's own business, so that lines are counted only where an error needs one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from unimarg.errors import FormatError, NetworkError, closest
from unimarg.mechanism import MAX_AXES, MAX_EXPANDED
from unimarg.network import Floats, Mechanism, Network, Table, Variable

Complaint: TypeAlias = Callable[[str, int | None], FormatError]


@dataclass(slots=True)
class Node:
    """One variable as read; ``parents`` are names, ``place`` is where its numbers are."""

    variable: Variable
    parents: Sequence[str]
    mechanism: Mechanism
    place: int


def build(nodes: Sequence[Node], name: str, complain: Complaint) -> Network:
    """The network, or an error at the place of the variable that spoils it."""
    parents = {n.variable.name: n.parents for n in nodes}
    try:
        return Network.as_given([n.variable for n in nodes], parents, {n.variable.name: n.mechanism for n in nodes}, name)
    except NetworkError as e:
        place = next((n.place for n in reversed(nodes) if n.variable.name == e.variable), None)
        raise complain(str(e), place) from None


def make_variable(name: str, states: Sequence[str], group: str, complain: Complaint, place: int) -> Variable:
    try:
        return Variable(name, tuple(states), group)
    except NetworkError as e:
        raise complain(str(e), place) from None


def check_parents(child: str, parents: Sequence[str], known: Collection[str], complain: Complaint, place: int) -> None:
    """Parents must exist and differ: checked before any table is sized by them."""
    seen = {child}
    for parent in parents:
        if parent not in known:
            raise complain(f"there is no variable {shown(parent)}, a parent of {shown(child)}; {closest(parent, known)}", place)
        if parent in seen:
            raise complain(f"the parent {shown(parent)} of {shown(child)} comes twice, or is its own parent", place)
        seen.add(parent)


def floats(words: Sequence[str]) -> Floats:
    """Finite numbers as files write them (``float`` also takes ``1_0`` and digits of other scripts), else ValueError."""
    joined = "".join(words)
    if "_" in joined or not joined.isascii():
        raise ValueError
    values = np.array(list(map(float, words)), dtype=np.float64)
    if not np.isfinite(values).all():
        raise ValueError
    return values


def number_fault(words: Iterable[str]) -> tuple[int, str]:
    """The position of the first word that ``floats`` did not take, and a sentence about it."""
    for i, word in enumerate(words):
        try:
            floats([word])
        except ValueError:
            large = re.fullmatch(r"[-+]?[0-9.]+([eE][-+]?[0-9]+)?", word) and word.count(".") <= 1
            return i, f"the number {shown(word)} is too large" if large else f"expected a number, not {shown(word)}"
    raise AssertionError("every word is a number")


def size_of(cards: Iterable[int], limit: int) -> int:
    """The product, or ``limit + 1`` as soon as it is more than that: a million parents are cheap."""
    size = 1
    for card in cards:
        size *= card
        if size > limit:
            return limit + 1
    return size


def needed(cards: Iterable[int]) -> str:
    """The product for an error message, if it is a number to be read."""
    size = size_of(cards, 10**9)
    return str(size) if size <= 10**9 else "more than a thousand million"


def shown(text: str, length: int = 60) -> str:
    """A piece of the file for an error message: quoted, and short even if the file is hostile."""
    return repr(text if len(text) <= length else text[:length] + "...")


def full_table(net: Network, i: int) -> Floats:
    """The mechanism of node ``i`` as a table ``[*parent_cards, card]``, for formats that hold nothing else."""
    mechanism = net.mechanisms[i]
    if isinstance(mechanism, Table) or mechanism.entries <= MAX_EXPANDED:
        return mechanism.expand()
    digits = sum(math.log10(c) for c in (*mechanism.parent_cards, mechanism.card))
    large = f"have about 10^{digits:.1f} entries, the limit is {MAX_EXPANDED}"
    too = large if digits > math.log10(MAX_EXPANDED) else f"have as many parents, the limit is {MAX_AXES - 1}"
    raise FormatError(
        f"{net.names[i]!r} is a noisy-max of {len(net.parents[i])} parents, which this format can only hold as a table; "
        f"that would {too}. Save as .xdsl, which keeps it as it is"
    )


def identifiers(names: Iterable[str], is_one: Callable[[str], object]) -> dict[str, str]:
    """An identifier for each name that nothing else is called: itself where it is one, else made of what may stay.

    >>> identifiers(["a_b", "a b", "1"], str.isidentifier)
    {'a_b': 'a_b', 'a b': 'a_b_2', '1': 'x1'}
    """
    names = list(names)
    taken = {name for name in names if is_one(name)}
    following: dict[str, int] = {}
    made: dict[str, str] = {}
    for name in names:
        base = candidate = name
        if not is_one(name):
            base = re.sub(r"[^A-Za-z0-9_]", "_", name)
            base = candidate = base if is_one(base) else "x" + base
            while candidate in taken:
                following[base] = following.get(base, 1) + 1
                candidate = f"{base}_{following[base]}"
            taken.add(candidate)
        made[name] = candidate
    return made
