"""BIF 0.15, the Bayesian interchange format, as bnlearn, pgmpy, aGrUM and JavaBayes write it.

    network NAME { property ...; }
    variable NAME { type discrete [ n ] { s1, s2 }; property ...; }
    probability ( CHILD | P1, P2 ) { (s1, s2) 0.1, 0.9; default 0.5, 0.5; }   or   { table 0.1, 0.9; }

- ``,`` is white space; ``//`` and ``/* */`` are comments; a name is a bare word or a string in double quotes.
- A row is matched by the parents' states that it names, never by its place. ``default`` fills the rows not given.
- ``table`` with parents runs over (child, P1, P2, ...) with the last one fastest, so the child is slowest: as
  JavaBayes defines it, and as aGrUM and pgmpy read it.
- Properties are ignored but for two. ``property group = symptoms;`` in a variable is its group. ``property function
  max;`` with rows missing is a noisy-max: the row of all first states is the leak, a row with one other state is
  that parent's contribution, net of the leak. Where every row is given, the rows are the table.
- A variable without a probability block and without arcs is uniform, with a warning, if it is one of few.
- A noisy-max is written as its full table, which every reader understands.
"""

from __future__ import annotations

import itertools
import re
import warnings
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from unimarg.errors import FormatError, closest
from unimarg.formats.assemble import MAX_AXES, Node, build, floats, full_table, needed, number_fault, shown, size_of
from unimarg.formats.source import Source, integer
from unimarg.network import Floats, Mechanism, Network, NoisyMax, Table, Variable

# Possessive quantifiers (*+) throughout: no pattern can backtrack, so none is slow on a hostile file.
_STRING = r'"[^"\n]*+"'
_NAME = rf'(?:{_STRING}|[^\s{{}}()\[\];,|"]++)'
_COMMENT = re.compile(rf"{_STRING}|//|/\*")
_HEAD = re.compile(
    rf"\s*+(?:(?P<kind>network|variable)\b\s*+(?P<name>{_NAME})?+|(?P<prob>probability)\s*+\((?P<scope>(?:[^(){{}}\"]++|{_STRING})*+)\))\s*+\{{"
)
_BODY = re.compile(rf'[^{{}}"]*+(?:(?:{_STRING}|\{{(?:[^{{}}"]++|{_STRING})*+\}})[^{{}}"]*+)*+\}}')
_TYPE = re.compile(rf"\s*+type\s++discrete\s*+\[([^\]{{}}\n]*+)\]\s*+\{{((?:[^{{}}\"]++|{_STRING})*+)\}}\s*+;?+")
_PROPERTY = re.compile(rf'\s*+property\b((?:[^;{{}}"]++|{_STRING})*+);')
_GROUP = re.compile(rf"\s*+group\s*+=\s*+({_NAME})\s*+")
_NAMES = re.compile(rf"[\s,]*+(?:{_NAME}[\s,]*+)*+")
_SCOPE = re.compile(rf"[\s,]*+(?:(?:{_NAME}|\|)[\s,]*+)*+")
_WORD = re.compile(_NAME)
_SCOPE_WORD = re.compile(rf"{_NAME}|\|")
_TOKEN = re.compile(rf'{_STRING}|[();]|[^\s();,"]++|"')
_BARE = re.compile(r'[^\s{}()\[\];,|"\'=/\\][^\s{}()\[\];,|"\'\\]*')

_MAX_ISOLATED = 0.1  # share of the variables that may lack numbers, if nothing depends on them


@dataclass(frozen=True)
class _Family:
    """A child, its parents, and where in the file its numbers are."""

    child: Variable
    parents: list[Variable]
    body: str
    offset: int

    @property
    def cards(self) -> list[int]:
        return [p.card for p in self.parents]


def read(data: bytes, path: str) -> Network:
    source = Source(data, path)
    text = _without_comments(source)
    name, variables, scopes = _blocks(source, text)
    if not variables:
        raise source.error("there is no variable block")
    nodes: dict[str, Node] = {}
    for scope, offset, body, body_offset in scopes:
        child, *given = _scope(source, scope, offset, variables)
        if child in nodes:
            raise source.error(f"a second probability block for {shown(child)}", offset)
        family = _Family(variables[child][0], [variables[p][0] for p in given], body, body_offset)
        nodes[child] = Node(family.child, given, _mechanism(source, family, offset), offset)
    _fill_in_isolated(source, variables, nodes)
    return build([nodes[n] for n in variables], name, source.error)


def _fill_in_isolated(source: Source, variables: dict[str, tuple[Variable, int]], nodes: dict[str, Node]) -> None:
    """Give a variable that no probability block mentions a uniform distribution, with a warning.

    Real files have such leftovers. A file cut short has them too, so more than a few are an error.
    """
    silent = {n: found for n, found in variables.items() if n not in nodes}
    used = {p for node in nodes.values() for p in node.parents}
    for n, (variable, offset) in silent.items():
        if n in used or len(silent) > _MAX_ISOLATED * len(variables):
            raise source.error(f"variable {shown(n)} has no probability block", offset)
        warnings.warn(f"{source.path}: {shown(n)} has no probability block and no arc; taken as uniform", stacklevel=4)
        nodes[n] = Node(variable, (), Table(np.full(variable.card, 1 / variable.card)), offset)


def _without_comments(source: Source) -> str:
    """The text with comments blanked, every other character at its place."""
    text = source.text
    if "//" not in text and "/*" not in text:
        return text
    pieces, at, start = [], 0, 0
    while found := _COMMENT.search(text, at):
        at = found.end()
        if text[found.start()] == '"':
            continue
        end = text.find("\n" if found.group() == "//" else "*/", at)
        if end < 0 and found.group() == "/*":
            raise source.error("a comment /* is never closed", found.start())
        at = len(text) if end < 0 else end if found.group() == "//" else end + 2
        blank = "\n".join(" " * len(line) for line in text[found.start() : at].split("\n"))
        pieces += [text[start : found.start()], blank]
        start = at
    return "".join([*pieces, text[start:]])


def _blocks(source: Source, text: str) -> tuple[str, dict[str, tuple[Variable, int]], list[tuple[str, int, str, int]]]:
    """The network's name, variables with their offsets, and probability blocks as (scope, offset, body, offset)."""
    name, at = "network", 0
    variables: dict[str, tuple[Variable, int]] = {}
    scopes: list[tuple[str, int, str, int]] = []
    while head := _HEAD.match(text, at):
        offset = head.start(head.lastgroup or 0)
        body = _BODY.match(text, head.end())
        if body is None:
            raise source.error(f"the block {shown(head.group().strip())} is never closed, or not nested as it should be", offset)
        at = body.end()
        if head["prob"]:
            scopes.append((head["scope"], offset, body.group()[:-1], body.start()))
        elif head["kind"] == "network":
            name = _unquoted(head["name"] or "network")
        else:
            if head["name"] is None:
                raise source.error("a variable block without a name", offset)
            variable = _variable(source, _unquoted(head["name"]), body.group()[:-1], body.start())
            if variable.name in variables:
                raise source.error(f"two variables are called {shown(variable.name)}", offset)
            variables[variable.name] = (variable, offset)
    rest = text[at:].lstrip()
    if rest:
        word = shown(rest.split(maxsplit=1)[0])
        raise source.error(f"expected a network, variable or probability block, not {word}", len(text) - len(rest))
    return name, variables, scopes


def _variable(source: Source, name: str, body: str, offset: int) -> Variable:
    states: list[str] | None = None
    group, at = "", 0
    while found := _TYPE.match(body, at) or _PROPERTY.match(body, at):
        here = offset + found.end()
        at = found.end()
        if found.re is _PROPERTY:
            label = _GROUP.fullmatch(found[1])
            group = _unquoted(label[1]) if label else group
            continue
        if states is not None:
            raise source.error(f"variable {shown(name)} has two types", here)
        if not _NAMES.fullmatch(found[2]):
            raise source.error(f"the states of {shown(name)} are not a list of names: {shown(found[2])}", here)
        states = [_unquoted(s) for s in _WORD.findall(found[2])]
        if integer(found[1].strip()) != len(states):
            raise source.error(f"variable {shown(name)} claims {shown(found[1].strip())} states and lists {len(states)}", here)
    rest = body[at:].lstrip()
    if rest:
        raise source.error(f"in variable {shown(name)}: expected a type or a property, not {shown(rest)}", offset + len(body) - len(rest))
    if states is None:
        raise source.error(f"variable {shown(name)} has no type", offset)
    return source.variable(name, states, group, offset)


def _scope(source: Source, scope: str, offset: int, variables: dict[str, tuple[Variable, int]]) -> list[str]:
    """The child and its parents."""
    if not _SCOPE.fullmatch(scope):
        raise source.error(f"expected (child | parent parent), not {shown('(' + scope + ')')}", offset)
    return source.family(_SCOPE_WORD.findall(scope), variables, offset, _unquoted)


def _mechanism(source: Source, family: _Family, offset: int) -> Mechanism:
    regular = _regular_rows(family)
    return _Rows(source, family).mechanism(offset) if regular is None else Table(regular)


def _regular_rows(family: _Family) -> Floats | None:
    """The table of a block that is all rows, or one ``table``, and nothing else; None for any other.

    Nearly every block is of this kind, and its tokens come with a fixed period: ( s1 s2 ) p1 p2 ; . So each
    column is a slice of the token list, and no Python code runs for a single row. Whatever does not fit, and so
    every mistake, is left to the careful reader below.
    """
    cards, card, body = family.cards, family.child.card, family.body
    if '"' in body or len(cards) >= MAX_AXES:
        return None
    words = body.replace(",", " ").replace("(", " ( ").replace(")", " ) ").replace(";", " ; ").split()
    rows = size_of(cards, len(words))
    try:
        if words[:1] == ["table"] and len(words) == rows * card + 2 and words[-1] == ";":
            return _child_last(floats(words[1:-1]), card, cards)
        k = len(cards)
        period = k + card + 3
        if not k or len(words) != rows * period:
            return None
        for place, mark in ((0, "("), (k + 1, ")"), (period - 1, ";")):
            if words[place::period].count(mark) != rows:
                return None
        row = np.zeros(rows, dtype=np.int64)
        for j, parent in enumerate(family.parents):
            number = {s: i for i, s in enumerate(parent.states)}
            row = row * parent.card + np.array([number[s] for s in words[j + 1 :: period]])
        table = np.full((rows, card), np.nan)
        for c in range(card):
            table[row, c] = floats(words[k + 2 + c :: period])
    except (KeyError, ValueError):
        return None
    # a row that comes twice leaves another one out
    return table.reshape(*cards, card) if np.bincount(row, minlength=rows).max() == 1 else None


def _child_last(values: Floats, card: int, cards: list[int]) -> Floats:
    """A ``table``, whose child is slowest, as ``[*parent_cards, card]``."""
    return np.moveaxis(values.reshape(card, *cards), 0, -1)


class _Rows:
    """The careful reader of a probability block: takes all that BIF allows, and knows the line of what is wrong."""

    def __init__(self, source: Source, family: _Family):
        self.source, self.family = source, family
        self.words: list[str] = _TOKEN.findall(family.body)
        self.at = 0
        self.numbering = [{s: i for i, s in enumerate(p.states)} for p in family.parents]
        self.rows: dict[tuple[int, ...], Floats] = {}
        self.table: Floats | None = None
        self.default: Floats | None = None
        self.noisy_max = False
        self.parse()

    def parse(self) -> None:
        while self.at < len(self.words):
            word, start = self.words[self.at], self.at
            self.at += 1
            if word == "(":
                key = self.parent_states()
                if key in self.rows:
                    self.fail_at(start, f"the row ({self.named(key)}) of {shown(self.family.child.name)} comes twice")
                self.rows[key] = self.numbers(self.family.child.card)
            elif word == "table" and self.table is None:
                self.table = self.numbers(None)
            elif word == "default" and self.default is None:
                self.default = self.numbers(self.family.child.card)
            elif word == "property":
                words = self.until(";")
                self.noisy_max |= [w for w in words if w != "="] == ["function", "max"]
            else:
                self.fail_at(start, f"expected a row '(state, ...)', table, default or property, not {shown(word)}")

    def until(self, mark: str) -> list[str]:
        """The words before the next ``mark``, which is passed over."""
        start = self.at
        try:
            end = self.words.index(mark, start)
        except ValueError:
            self.fail_at(start - 1, f"a {mark!r} is missing")
        self.at = end + 1
        return self.words[start:end]

    def parent_states(self) -> tuple[int, ...]:
        start = self.at
        states = self.until(")")
        if len(states) != len(self.family.parents):
            self.fail_at(start, f"a row names {len(states)} parent states; {shown(self.family.child.name)} has {len(self.family.parents)}")
        key = []
        for j, (parent, word) in enumerate(zip(self.family.parents, states, strict=True)):
            state = _unquoted(word)
            if state not in self.numbering[j]:
                self.fail_at(start + j, f"{shown(parent.name)} has no state {shown(state)}; {closest(state, parent.states)}")
            key.append(self.numbering[j][state])
        return tuple(key)

    def numbers(self, count: int | None) -> Floats:
        start = self.at
        words = self.until(";")
        try:
            values = floats(words)
        except ValueError:
            bad, fault = number_fault(words)
            self.fail_at(start + bad, fault)
        if count is not None and len(values) != count:
            self.fail_at(start - 1, f"{shown(self.family.child.name)} has {count} states; {len(values)} numbers are given")
        return values

    def fail_at(self, at: int, message: str) -> NoReturn:
        """Find the line of a word only now that it is needed."""
        found = next(itertools.islice(_TOKEN.finditer(self.family.body), max(at, 0), None))
        self.fail(message, self.family.offset + found.start())

    def mechanism(self, offset: int) -> Mechanism:
        cards, card, child = self.family.cards, self.family.child.card, shown(self.family.child.name)
        if self.table is not None:
            if self.rows or self.default is not None:
                self.fail(f"{child} has both a table and rows", offset)
            if len(cards) >= MAX_AXES or size_of(cards, len(self.table)) * card != len(self.table):
                self.fail(
                    f"the table of {child} has {len(self.table)} numbers, its states and parents need {needed((*cards, card))}", offset
                )
            return Table(_child_last(self.table, card, cards))
        count = size_of(cards, len(self.rows))
        if self.noisy_max and self.default is None and count > len(self.rows):
            return self.as_noisy_max(offset)
        if len(cards) >= MAX_AXES:
            self.fail(f"{child} has {len(cards)} parents; a table can have {MAX_AXES - 1}", offset)
        if self.default is None and count > len(self.rows):
            missing = next(k for k in itertools.product(*(range(c) for c in cards)) if k not in self.rows)
            given = f" for ({self.named(missing)})" if cards else ""
            self.fail(f"{child} has no row{given}, no default and no table", offset)
        if self.default is not None:
            self.source.claim(size_of((*cards, card), 10**15), f"the default of {child}", offset)
        table = np.empty((*cards, card))
        table[...] = np.nan if self.default is None else self.default
        for key, values in self.rows.items():
            table[key] = values
        return Table(table)

    def as_noisy_max(self, offset: int) -> NoisyMax:
        child = shown(self.family.child.name)
        effects: dict[tuple[int, int], Floats] = {}  # by parent and its state, the others in their first
        leak = None
        for key, values in self.rows.items():
            active = [(j, s) for j, s in enumerate(key) if s]
            if len(active) > 1:
                self.fail(f"{child} is a noisy-max; its row ({self.named(key)}) has more than one parent out of its first state", offset)
            if active:
                effects[active[0]] = values
            else:
                leak = values
        if leak is None:
            self.fail(f"{child} is a noisy-max; the row of all first states, the leak, is missing", offset)
        contributions = []
        for j, parent in enumerate(self.family.parents):
            rows = [np.eye(1, len(leak))[0]]
            for s in range(1, parent.card):
                if (j, s) not in effects:
                    state = shown(parent.states[s])
                    self.fail(f"{child} is a noisy-max; the row where only {shown(parent.name)} is {state} is missing", offset)
                rows.append(effects[j, s])
            contributions.append(rows)
        return NoisyMax(leak, contributions)

    def named(self, key: tuple[int, ...]) -> str:
        names = [p.states[s] for p, s in zip(self.family.parents[:8], key, strict=False)]
        return ", ".join(names + ["..."] * (len(key) > 8))

    def fail(self, message: str, offset: int) -> NoReturn:
        raise self.source.error(message, offset)


def _unquoted(word: str) -> str:
    return word[1:-1] if word[:1] == '"' and len(word) > 1 else word


def write(net: Network) -> str:
    lines = [f"network {_quoted(net.name, 'the network')} {{", "}"]
    labels = []
    for v in net.variables:
        what = f"variable {v.name!r}"
        labels.append([_quoted(s, f"a state of {what}") for s in v.states])
        lines += [f"variable {_quoted(v.name, what)} {{", f"  type discrete [ {v.card} ] {{ {', '.join(labels[-1])} }};"]
        lines += [f"  property group = {_quoted(v.group, f'the group of {what}')};"] * bool(v.group)
        lines.append("}")
    names = [_quoted(n, "a variable") for n in net.names]
    for i, pa in enumerate(net.parents):
        given = f" | {', '.join(names[p] for p in pa)}" if pa else ""
        lines.append(f"probability ( {names[i]}{given} ) {{")
        rows = full_table(net, i).reshape(-1, net.variables[i].card).tolist()
        if pa:
            states = itertools.product(*(labels[p] for p in pa))
            lines += [f"  ({', '.join(s)}) {', '.join(map(repr, row))};" for s, row in zip(states, rows, strict=True)]
        else:
            lines.append(f"  table {', '.join(map(repr, rows[0]))};")
        lines.append("}")
    return "\n".join(lines) + "\n"


def _quoted(name: str, what: str) -> str:
    if '"' in name or any(ord(c) < 32 or ord(c) == 127 for c in name):
        raise FormatError(f"{what} has a name that BIF cannot hold, as it contains a double quote or a control character: {name!r}")
    bare = _BARE.fullmatch(name) and "//" not in name and "/*" not in name
    return name if bare else f'"{name}"'
