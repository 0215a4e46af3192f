"""Hugin NET, the language of HUGIN, also written by GeNIe, SamIam, OpenMarkov and aGrUM.

    net { attribute = value; ... }                         or, newer,  class NAME { attributes, nodes and potentials }
    [discrete] node NAME { states = ("a" "b"); ... }
    potential (CHILD | P1 P2) { data = ((( 0.1 0.9 ) ...) ...); }

- ``%`` starts a comment; strings are in double quotes with ``\\"`` and ``\\\\`` escaped; other attributes are ignored.
- ``data`` is nested with P1 outermost, the child innermost; one flat list in the same order is taken too.
- A potential without ``data`` is uniform: HUGIN's own rule. A node without a potential is an error, as in a file cut short.
- Continuous, decision, utility, function and instance nodes are an error.
- A name that is no identifier is written under a made-up one, with the true name as ``unimarg_name`` (and ``label``,
  which is what HUGIN shows); the group is ``unimarg_group``. Labels of other programs are not taken for names.
- A noisy-max is written as its full table.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from unimarg.errors import FormatError
from unimarg.formats.assemble import MAX_AXES, Node, build, floats, full_table, identifiers, needed, number_fault, shown, size_of
from unimarg.formats.source import Source
from unimarg.network import Floats, Network, Table, Variable

# Possessive quantifiers (*+) throughout: no pattern can backtrack, so none is slow on a hostile file.
_STRING = r'"(?:[^"\\]++|\\.)*+"'
_WORD = r'[^\s(){}|=;,"%]++'
_COMMENT = re.compile(rf"{_STRING}|%[^\n]*+", re.DOTALL)
_NET = re.compile(rf"\s*+(?:net\s*+|class\s++(?P<name>{_WORD})\s*+)(?P<open>\{{)")
_NODE = re.compile(
    rf"\s*+(?P<kind>(?:(?:discrete|continuous)\s++)?+(?:node|decision|utility|function|instance))\s++(?P<name>{_WORD})(?P<rest>[^{{}};]*+[{{;])"
)
_POTENTIAL = re.compile(r"\s*+(?P<kind>potential)\s*+\((?P<scope>[^(){}]*+)\)\s*+\{")
_ATTRIBUTE = re.compile(rf"\s*+(?P<key>{_WORD})\s*+=(?P<value>(?:[^;{{}}\"]++|{_STRING})*+);", re.DOTALL)
_CLOSE = re.compile(r"\s*+\}")
_LABEL = re.compile(rf"{_STRING}|{_WORD}", re.DOTALL)
_LABELS = re.compile(rf"\s*+\(\s*+(?:(?:{_STRING}|{_WORD})\s*+,?+\s*+)*+\)\s*+", re.DOTALL)
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# words of the language, which a node had better not be called
_RESERVED = re.compile("net|class|node|discrete|continuous|decision|utility|function|instance|potential|data|normal|inputs|outputs|states")


@dataclass(frozen=True)
class _Block:
    """A node or potential: its attributes with the offsets of their values."""

    offset: int
    attributes: dict[str, tuple[str, int]]

    def get(self, key: str) -> tuple[str, int] | None:
        return self.attributes.get(key)


def read(data: bytes, path: str) -> Network:
    source = Source(data, path)
    text = _COMMENT.sub(lambda m: m.group() if m.group()[0] == '"' else " " * len(m.group()), source.text)
    name, nodes, potentials = _Reader(source, text).document()
    if not nodes:
        raise source.error("there is no node")
    variables: dict[str, Variable] = {}
    for identifier, block in nodes.items():
        name_given = _attribute_string(source, block, "unimarg_name")
        group = _attribute_string(source, block, "unimarg_group") or ""
        states = _states(source, identifier, block)
        variables[identifier] = source.variable(identifier if name_given is None else name_given, states, group, block.offset)
    found: dict[str, Node] = {}
    for scope, block in potentials:
        child, *given = _scope(source, scope, block.offset, nodes)
        if child in found:
            raise source.error(f"a second potential for {shown(child)}", block.offset)
        table = Table(_table(source, child, [variables[p].card for p in given], variables[child].card, block))
        found[child] = Node(variables[child], [variables[p].name for p in given], table, block.offset)
    for identifier, block in nodes.items():
        if identifier not in found:
            raise source.error(f"the node {shown(identifier)} has no potential", block.offset)
    return build([found[n] for n in nodes], name, source.error)


class _Reader:
    """A walk through the file that finds the blocks."""

    def __init__(self, source: Source, text: str):
        self.source, self.text = source, text.rstrip()
        self.at = 0

    def document(self) -> tuple[str, dict[str, _Block], list[tuple[str, _Block]]]:
        name, inside = "network", False
        nodes: dict[str, _Block] = {}
        potentials: list[tuple[str, _Block]] = []
        while self.at < len(self.text):
            if found := self.take(_NET):
                if inside:
                    raise self.source.error("a class inside a class", found.start("open"))
                inside = found["name"] is not None
                block = self.attributes(found.start("open"), closed=not inside)
                name = _attribute_string(self.source, block, "name") or found["name"] or name
            elif found := self.take(_NODE):
                if found["kind"].split() not in (["node"], ["discrete", "node"]):
                    kind = shown(" ".join(found["kind"].split()))
                    raise self.source.error(f"{kind} {shown(found['name'])}: only discrete nodes can be read", found.start("kind"))
                if found["rest"].strip() != "{" or found["name"] in nodes:
                    raise self.source.error(f"the node {shown(found['name'])} has no block, or a second one", found.start("kind"))
                nodes[found["name"]] = self.attributes(found.start("kind"))
            elif found := self.take(_POTENTIAL):
                potentials.append((found["scope"], self.attributes(found.start("kind"))))
            elif inside and (found := self.take(_CLOSE)):
                inside = False
            elif not (inside and self.take(_ATTRIBUTE)):
                self.unexpected("a net, node or potential block")
        if inside:
            raise self.source.error("the class is never closed", len(self.text))
        return name, nodes, potentials

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self.text, self.at)
        if found:
            self.at = found.end()
        return found

    def attributes(self, offset: int, closed: bool = True) -> _Block:
        """What follows a '{'; a class (not ``closed``) goes on with its nodes."""
        values: dict[str, tuple[str, int]] = {}
        while found := self.take(_ATTRIBUTE):
            values[found["key"]] = (found["value"], found.start("value"))
        if closed and not self.take(_CLOSE):
            self.unexpected("'attribute = value;' or '}'")
        return _Block(offset, values)

    def unexpected(self, wanted: str) -> None:
        rest = self.text[self.at : self.at + 10_000].lstrip()
        offset = self.at + len(self.text[self.at : self.at + 10_000]) - len(rest)
        found = shown(rest.split("\n", 1)[0], 40) if rest else "the end of the file"
        raise self.source.error(f"expected {wanted}, not {found}", offset)


def _attribute_string(source: Source, block: _Block, key: str) -> str | None:
    found = block.get(key)
    if found is None:
        return None
    value = found[0].strip()
    if not _LABEL.fullmatch(value):
        raise source.error(f"{key} must be one label, not {shown(value)}", found[1])
    return _unescaped(value)


def _states(source: Source, name: str, block: _Block) -> list[str]:
    """The labels; numbered nodes may have empty labels, and then their values serve."""
    found = block.get("states")
    labels: list[str] = []
    if found is not None:
        if not _LABELS.fullmatch(found[0]):
            raise source.error(f"the states of {shown(name)} must be a list of labels, not {shown(found[0].strip())}", found[1])
        labels = [_unescaped(s) for s in _LABEL.findall(found[0])]
    values = block.get("state_values")
    if values is not None and not any(labels):
        numbers = values[0].replace("(", " ").replace(")", " ").split()
        subtype = block.get("subtype")
        if subtype is not None and subtype[0].strip() == "interval":
            return [f"{a} - {b}" for a, b in pairwise(numbers)]
        return numbers
    if not labels:
        raise source.error(f"the node {shown(name)} has no states", block.offset)
    return labels


def _scope(source: Source, scope: str, offset: int, nodes: Collection[str]) -> list[str]:
    """The child and its parents."""
    names = source.family(scope.replace("|", " | ").replace(",", " ").split(), nodes, offset)
    if len(names) > MAX_AXES:
        raise source.error(f"{shown(names[0])} has {len(names) - 1} parents; a table can have {MAX_AXES - 1}", offset)
    return names


def _table(source: Source, child: str, cards: list[int], card: int, block: _Block) -> Floats:
    found = block.get("data")
    if found is None:
        if block.get("model_data") or block.get("model_nodes"):
            raise source.error(f"{shown(child)} is given by a model expression; only tables can be read", block.offset)
        size = size_of((*cards, card), 10**15)
        source.claim(size, f"the potential of {shown(child)} without data", block.offset)
        return np.full((*cards, card), 1 / card)
    text, offset = found
    # each run of numbers is closed by one ';', so that in a nested list every card-th number is followed by one
    words = re.sub(r"\)[\s()]*+", " ; ", text.replace(",", " ")).replace("(", " ").split()
    numbers = [w for w in words if w != ";"]
    size = size_of((*cards, card), len(numbers))
    if size != len(numbers):
        raise source.error(
            f"the data of {shown(child)} have {len(numbers)} numbers; its states and parents need {needed((*cards, card))}", offset
        )
    brackets = re.sub(r"[^()]", "", text)
    nested = brackets == _brackets(cards) and words[card :: card + 1].count(";") == size // card
    if not nested and (brackets != "()" or words[-1] != ";"):
        raise source.error(f"the data of {shown(child)} are not nested by its parents and states", offset)
    try:
        return floats(numbers).reshape(*cards, card)
    except ValueError:
        raise source.error(number_fault(numbers)[1], offset) from None


def _brackets(cards: list[int]) -> str:
    """The brackets of nested data, without the numbers."""
    text = "()"
    for c in reversed(cards):
        text = f"({text * c})"
    return text


def _unescaped(word: str) -> str:
    """What a string means; a bare word, which aGrUM writes for a state or a name, means itself."""
    return re.sub(r"\\(.)", r"\1", word[1:-1], flags=re.DOTALL) if word[0] == '"' else word


def write(net: Network) -> str:
    ids = [*identifiers(net.names, _is_identifier).values()]
    lines = ["net", "{", f"    name = {_quoted(net.name, 'the network')};", "}"]
    for v, identifier in zip(net.variables, ids, strict=True):
        what = f"variable {v.name!r}"
        lines += ["", f"node {identifier}", "{"]
        lines.append(f"    states = ({' '.join(_quoted(s, f'a state of {what}') for s in v.states)});")
        if identifier != v.name:
            true_name = _quoted(v.name, what)
            lines += [f"    label = {true_name};", f"    unimarg_name = {true_name};"]
        lines += [f"    unimarg_group = {_quoted(v.group, f'the group of {what}')};"] * bool(v.group)
        lines.append("}")
    for i, pa in enumerate(net.parents):
        given = f" | {' '.join(ids[p] for p in pa)}" if pa else ""
        table = full_table(net, i)
        lines += ["", f"potential ({ids[i]}{given})", "{", f"    data = {_nested(table)};", "}"]
    return "\n".join(lines) + "\n"


def _nested(table: Floats) -> str:
    """The table as nested lists, built from the innermost outwards."""
    pieces = [f"({' '.join(map(repr, row))})" for row in table.reshape(-1, table.shape[-1]).tolist()]
    for card in table.shape[-2::-1]:
        pieces = ["(" + "\n     ".join(pieces[k : k + card]) + ")" for k in range(0, len(pieces), card)]
    return pieces[0]


def _is_identifier(name: str) -> bool:
    return bool(_IDENTIFIER.fullmatch(name)) and not _RESERVED.fullmatch(name)


def _quoted(text: str, what: str) -> str:
    if any(ord(c) < 32 or ord(c) == 127 for c in text):
        raise FormatError(f"{what} has a name with a control character, which Hugin's format cannot hold: {text!r}")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
