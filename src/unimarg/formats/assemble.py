"""From what a file says to a Network, with every complaint tied to a line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from unimarg.errors import FormatError, NetworkError, closest
from unimarg.network import Floats, Mechanism, Network, Table, Variable

MAX_TABLE_PARENTS = 63  # a NumPy array has at most 64 axes
_NUMBER_LIKE = re.compile(r"[\s0-9.eE+-]*")


@dataclass(slots=True)
class Node:
    """One variable as read; ``parents`` are names."""

    variable: Variable
    parents: tuple[str, ...]
    mechanism: Mechanism
    line: int


def make_variable(name: str, states: Sequence[str], group: str, path: str, line: int) -> Variable:
    try:
        return Variable(name, tuple(states), group)
    except NetworkError as e:
        raise FormatError(str(e), path, line) from None


def check_parents(name: str, parents: Sequence[str], known: dict[str, int], path: str, line: int) -> None:
    """Parents must exist and differ: checked before any table is sized by them. ``known`` has lines as values."""
    seen: set[str] = set()
    for parent in parents:
        if parent not in known:
            raise FormatError(f"variable {name!r} has an unknown parent {parent!r}; {hint(parent, known)}", path, line)
        if parent in seen or parent == name:
            raise FormatError(f"variable {name!r} has the parent {parent!r} twice, or is its own parent", path, line)
        seen.add(parent)


def hint(name: str, known: Iterable[str]) -> str:
    """The closest known name. Matching is quadratic in length, so a hostile file's endless names are left out."""
    return closest(name[:200], [k for k in known if len(k) <= 200])


def read_numbers(text: str, count: int, what: str, path: str, line: int) -> Floats:
    """Exactly ``count`` finite numbers; what comes after them is not even split."""
    tokens = text.split(None, count)
    if len(tokens) != count:
        many = f"more than {len(tokens) - 1}" if len(tokens) > count else str(len(tokens))
        raise FormatError(f"{what} needs {count} numbers, and the file has {many}", path, line)
    if not _NUMBER_LIKE.fullmatch(text) or not text.isascii():
        bad = next((t for t in tokens if not _NUMBER_LIKE.fullmatch(t) or not t.isascii()), "an odd kind of space")
        raise FormatError(f"{what} holds {bad[:40]!r}, which is no number", path, line)
    try:
        values = np.array(list(map(float, tokens)), dtype=np.float64)
    except ValueError as e:
        raise FormatError(f"{what} holds something that is no number: {str(e)[:80]}", path, line) from None
    if not np.isfinite(values).all():
        raise FormatError(f"{what} holds a number that is too large", path, line)
    return values


def read_table(text: str, cards: Sequence[int], name: str, path: str, line: int) -> Floats:
    """A table ``[*parent_cards, card]`` listed with the child innermost and the first parent slowest."""
    if len(cards) > MAX_TABLE_PARENTS + 1:
        raise FormatError(f"the table of {name!r} has {len(cards) - 1} parents; at most {MAX_TABLE_PARENTS} are possible", path, line)
    count = bounded_product(cards, len(text))
    if count > len(text):
        raise FormatError(f"the table of {name!r} has fewer numbers than its parents and states need", path, line)
    return read_numbers(text, count, f"the table of {name!r}", path, line).reshape(cards)


def bounded_product(cards: Sequence[int], bound: int) -> int:
    """The product, or some number above ``bound`` as soon as it is passed (claims may have thousands of digits)."""
    product = 1
    for card in cards:
        product *= card
        if product > bound:
            return bound + 1
    return product


def assemble(nodes: Sequence[Node], name: str, path: str) -> Network:
    """The network, or a FormatError on the line of the variable that spoils it."""
    try:
        return _network(nodes, name)
    except NetworkError as e:
        by_name = {n.variable.name: n for n in nodes}
        for node in (n for n in nodes if repr(n.variable.name) in str(e)):
            message = _own_fault(node, by_name)
            if message:
                raise FormatError(message, path, node.line) from None
        raise FormatError(str(e), path) from None


def _network(nodes: Sequence[Node], name: str) -> Network:
    parents = {n.variable.name: n.parents for n in nodes}
    return Network([n.variable for n in nodes], parents, {n.variable.name: n.mechanism for n in nodes}, name)


def _own_fault(node: Node, by_name: dict[str, Node]) -> str | None:
    """What is wrong with a variable by itself: judged under uniform parents, where only it can be at fault."""
    uniform = [Node(v, (), Table(np.full(v.card, 1 / v.card)), 0) for v in (by_name[p].variable for p in node.parents if p in by_name)]
    try:
        _network([*uniform, node], "")
    except NetworkError as e:
        return str(e)
    return None
