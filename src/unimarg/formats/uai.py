"""UAI, the format of the inference competitions, with its evidence (.evid) and marginals (.MAR) files.

    BAYES|MARKOV   n   card_1 .. card_n   m   (k v_1 .. v_k) for each factor   (size p_1 .. p_size) for each factor

- Everything is a word between white space; a comment runs from ``#`` to the end of the line (aGrUM writes them).
- A table runs over its scope with the last variable fastest. (aGrUM 3.3 writes and reads the parents the other way
  round, with the first one fastest: its files with two or more parents are not what they say.)
- In BAYES the last variable of a scope is the child. A MARKOV file is taken if it is a Bayesian network in
  disguise: every factor a table of one child. The children follow from the scopes: in an acyclic graph some
  variable has no children, so it is in one factor only, its own; take that factor away and repeat.
- There are no names: variables are called x0, x1, ... and states 0, 1, ... A network of such names keeps its own
  numbers when written; any other is numbered in the order of ``net.names``, and its names and groups are lost.
- A noisy-max is written as its full table.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from unimarg.errors import FormatError
from unimarg.evidence import parse_evidence
from unimarg.formats import files
from unimarg.formats.assemble import MAX_AXES, Node, build, floats, full_table, needed, number_fault, shown, size_of
from unimarg.formats.source import Source, integer
from unimarg.network import ROW_SUM_TOLERANCE, Floats, Network, Table

_OWN_NAME = re.compile(r"x(0|[1-9][0-9]{0,15})")
Path = str | os.PathLike[str]


class _Words:
    """The words of a file, taken one after the other."""

    def __init__(self, data: bytes, path: str):
        self.source = Source(data, path)
        self.text = re.sub(r"#[^\n]*+", lambda m: " " * len(m.group()), self.source.text)
        self.words = self.text.split()
        self.at = 0

    @property
    def left(self) -> int:
        return len(self.words) - self.at

    def error(self, message: str, at: int | None = None) -> FormatError:
        """An error at the line of the word ``at``, the last one taken unless told."""
        return self.source.error(message, self.offset_of(max(0, self.at - 1) if at is None else at))

    def offset_of(self, at: int) -> int:
        found = next(itertools.islice(re.finditer(r"\S+", self.text), at, None), None)
        return len(self.text) if found is None else found.start()

    def word(self, what: str) -> str:
        if not self.left:
            raise self.error(f"the file ends before {what}", len(self.words))
        self.at += 1
        return self.words[self.at - 1]

    def integer(self, what: str, limit: int) -> int:
        """A number from 0 to ``limit``."""
        word = self.word(what)
        value = integer(word, limit)
        if value is None:
            raise self.error(f"{what} must be a whole number from 0 to {limit}, not {shown(word)}")
        return value

    def integers(self, count: int, what: str, limit: int) -> list[int]:
        if count > self.left:
            raise self.error(f"{count} numbers are announced, {self.left} words are left: {what}")
        return [self.integer(what, limit) for _ in range(count)]

    def numbers(self, count: int, what: str) -> Floats:
        if count > self.left:
            raise self.error(f"{count} numbers are announced, {self.left} words are left: {what}")
        words = self.words[self.at : self.at + count]
        self.at += count
        try:
            return floats(words)
        except ValueError:
            bad, fault = number_fault(words)
            raise self.error(f"{what}: {fault}", self.at - count + bad) from None

    def end(self) -> None:
        if self.left:
            raise self.error(f"expected the end of the file, not {shown(self.words[self.at])}", self.at)


def read(data: bytes, path: str) -> Network:
    words = _Words(data, path)
    kind = words.word("BAYES or MARKOV").upper()
    if kind not in ("BAYES", "MARKOV"):
        raise words.error(f"a UAI file starts with BAYES or MARKOV, not {shown(kind)}")
    # a variable needs a factor of at least its own size, so no count can exceed the words of the file
    limit = len(words.words)
    cards = words.integers(words.integer("the number of variables", limit), "the number of states", limit)
    if not cards:
        raise words.error("a network needs at least one variable")
    if 0 in cards:
        raise words.error(f"variable {cards.index(0)} has no states")
    scopes, starts = _scopes(words, len(cards))
    if len(scopes) != len(cards):
        raise words.error(f"{len(cards)} variables and {len(scopes)} factors; a Bayesian network has one factor for each variable", 0)
    axes = _last_axes(words, scopes, starts) if kind == "BAYES" else _child_axes(words, scopes, starts, len(cards))
    tables, positions = [], []
    for f, (scope, axis) in enumerate(zip(scopes, axes, strict=True)):
        positions.append(words.at)
        table = _factor(words, f, [cards[v] for v in scope])
        tables.append(table if axis == table.ndim - 1 else np.moveaxis(table, axis, -1))
    words.end()
    states = [str(s) for s in range(max(cards))]
    children = [scope[axis] for scope, axis in zip(scopes, axes, strict=True)]
    nodes: list[Node] = []
    for f in sorted(range(len(cards)), key=children.__getitem__):
        child = children[f]
        variable = words.source.variable(f"x{child}", states[: cards[child]], "", 0)
        nodes.append(Node(variable, [f"x{v}" for v in scopes[f] if v != child], Table(tables[f]), positions[f]))
    try:
        return build(nodes, "network", words.error)
    except FormatError:
        if kind == "MARKOV":
            _check_are_tables(words, scopes, tables, children, positions)
        raise


def _scopes(words: _Words, n: int) -> tuple[list[list[int]], list[int]]:
    """The scope of every factor, and the position of its first word."""
    scopes, starts = [], []
    for f in range(words.integer("the number of factors", len(words.words))):
        starts.append(words.at)
        size = words.integer(f"the scope size of factor {f}", n)
        scope = words.integers(size, f"the scope of factor {f}", n - 1)
        if not scope or len(set(scope)) != size:
            raise words.error(f"factor {f} is over no variable, or over one twice")
        if size > MAX_AXES:
            raise words.error(f"factor {f} is over {size} variables; a table can have {MAX_AXES}")
        scopes.append(scope)
    return scopes, starts


def _last_axes(words: _Words, scopes: list[list[int]], starts: list[int]) -> list[int]:
    """BAYES: the child is the last variable of its factor."""
    owner: dict[int, int] = {}
    for f, scope in enumerate(scopes):
        other = owner.setdefault(scope[-1], f)
        if other != f:
            raise words.error(f"factors {other} and {f} are both tables of variable {scope[-1]}, the last of their scope", starts[f])
    return [len(scope) - 1 for scope in scopes]


def _child_axes(words: _Words, scopes: list[list[int]], starts: list[int], n: int) -> list[int]:
    """MARKOV: the child of every factor, found from the leaves upwards; there is never a choice."""
    factors: list[set[int]] = [set() for _ in range(n)]  # the factors left for each variable
    for f, scope in enumerate(scopes):
        for v in scope:
            factors[v].add(f)
    axes = [-1] * len(scopes)
    leaves = [v for v in range(n) if len(factors[v]) == 1]
    while leaves:
        leaf = leaves.pop()
        if not factors[leaf]:
            raise words.error(f"this is no Bayesian network: no factor is left to be the table of variable {leaf}", 0)
        f = factors[leaf].pop()
        axes[f] = scopes[f].index(leaf)
        for v in scopes[f]:
            if v != leaf:
                factors[v].discard(f)
                if len(factors[v]) <= 1:
                    leaves.append(v)
    if -1 in axes:
        f = axes.index(-1)
        raise words.error(
            f"this is no Bayesian network: factor {f} over {_listed(scopes[f])} is on a cycle, or has no child left", starts[f]
        )
    return axes


def _factor(words: _Words, f: int, cards: list[int]) -> Floats:
    claimed = words.integer(f"the table size of factor {f}", 10**15)
    if claimed != size_of(cards, claimed):
        raise words.error(f"the table of factor {f} has {claimed} entries; its variables need {needed(cards)}")
    return words.numbers(claimed, f"the table of factor {f}").reshape(cards)


def _check_are_tables(words: _Words, scopes: list[list[int]], tables: list[Floats], children: list[int], positions: list[int]) -> None:
    """Name the factor that keeps a MARKOV file from being a Bayesian network."""
    for f, table in enumerate(tables):
        with np.errstate(all="ignore"):
            fits = (table >= 0).all() and (abs(table.sum(axis=-1) - 1) <= ROW_SUM_TOLERANCE).all()
        if not fits:
            message = f"factor {f} over {_listed(scopes[f])} is not a table of x{children[f]}, whose factor it must be"
            raise words.error(f"this is no Bayesian network: {message}", positions[f])


def _listed(scope: list[int]) -> str:
    return f"({', '.join(map(str, scope[:10]))}{', ...' if len(scope) > 10 else ''})"


def write(net: Network) -> str:
    numbers = _numbering(net)
    order = sorted(range(len(net)), key=numbers.__getitem__)  # node of each UAI number
    lines = ["BAYES", str(len(net)), " ".join(str(net.variables[i].card) for i in order), str(len(net))]
    for i in order:
        scope = [*(numbers[p] for p in net.parents[i]), numbers[i]]
        lines.append(f"{len(scope)} {' '.join(map(str, scope))}")
    for i in order:
        table = full_table(net, i)
        rows = table.reshape(-1, table.shape[-1]).tolist()
        lines += ["", str(table.size), *(" ".join(map(repr, row)) for row in rows)]
    return "\n".join(lines) + "\n"


def _numbering(net: Network) -> list[int]:
    """The UAI number of every node: the one in its name if all names are x0, x1, ..., else its place."""
    found = [_OWN_NAME.fullmatch(n) for n in net.names]
    numbers = [int(m[1]) for m in found if m]
    return numbers if sorted(numbers) == list(range(len(net))) else list(range(len(net)))


def has_names(net: Network) -> bool:
    """Whether the file would lose names of variables or states."""
    numbers = _numbering(net)
    return any(v.name != f"x{k}" or v.states != tuple(map(str, range(v.card))) for v, k in zip(net.variables, numbers, strict=True))


def _nodes(net: Network) -> list[int]:
    """The node of every UAI number."""
    numbers = _numbering(net)
    return sorted(range(len(net)), key=numbers.__getitem__)


def read_uai_evidence(path: Path, net: Network) -> dict[str, str]:
    """Evidence ``n var value var value ...``, or the same after a line that says 1 for one evidence set."""
    path = os.fspath(path)
    words = _Words(files.read_bytes(path), path)
    if words.left and len(words.words) % 2 == 0:  # 1 + 2n words alone, 2 + 2n with the number of sets
        sets = words.integer("the number of evidence sets", 10**9)
        if sets != 1:
            raise words.error(f"the file holds {sets} evidence sets; one is expected")
    count = words.integer("the number of observed variables", 10**9)
    if words.left != 2 * count:
        raise words.error(f"{count} observed variables need {2 * count} numbers; {words.left} follow")
    nodes = _nodes(net)
    evidence: dict[str, str] = {}
    for _ in range(count):
        variable = net.variables[nodes[words.integer("an observed variable", len(net) - 1)]]
        state = variable.states[words.integer(f"the state of {variable.name!r}", variable.card - 1)]
        if evidence.setdefault(variable.name, state) != state:
            raise words.error(f"{variable.name!r} is observed twice, in different states")
    return evidence


def read_uai_marginals(path: Path, net: Network) -> dict[str, Floats]:
    """Marginals ``MAR n card p p ... card p p ...``, with or without a line that says 1 before n."""
    path = os.fspath(path)
    words = _Words(files.read_bytes(path), path)
    if words.word("MAR").upper() != "MAR":
        raise words.error(f"a file of marginals starts with MAR, not {shown(words.words[0])}")
    expected = 1 + sum(1 + v.card for v in net.variables)
    if words.left == expected + 1:
        sets = words.integer("the number of answers", 10**9)
        if sets != 1:
            raise words.error(f"the file holds {sets} answers; one is expected")
    if words.integer("the number of variables", 10**9) != len(net):
        raise words.error(f"the file is about {shown(words.words[words.at - 1])} variables; the network has {len(net)}")
    marginals: dict[str, Floats] = {}
    for i in _nodes(net):
        variable = net.variables[i]
        if words.integer("a number of states", 10**9) != variable.card:
            raise words.error(f"{variable.name!r} has {variable.card} states, not {shown(words.words[words.at - 1])}")
        values = words.numbers(variable.card, f"the marginal of {variable.name!r}")
        if not ((values >= 0).all() and abs(values.sum() - 1) <= ROW_SUM_TOLERANCE):
            raise words.error(f"the marginal of {variable.name!r} is no distribution: {values[:6].tolist()}")
        marginals[variable.name] = values
    words.end()
    return {n: marginals[n] for n in net.names}


def write_uai_evidence(path: Path, net: Network, evidence: Mapping[str, object]) -> None:
    """Write hard evidence in the one-line form that every reader takes."""
    path = os.fspath(path)
    found = parse_evidence(net, evidence)
    if found.virtual:
        name = net.names[min(found.virtual)]
        raise FormatError(f"the finding on {name!r} is a likelihood; a UAI evidence file holds states only", path)
    numbers = _numbering(net)
    pairs = sorted((numbers[i], state) for i, state in found.hard.items())
    files.write_bytes(path, (" ".join([str(len(pairs)), *(f"{v} {s}" for v, s in pairs)]) + "\n").encode())


def write_uai_marginals(path: Path, net: Network, marginals: Mapping[str, ArrayLike | Sequence[float]]) -> None:
    """Write the marginals of every variable, probabilities in the order of its states."""
    path = os.fspath(path)
    words = [str(len(net))]
    for i in _nodes(net):
        variable = net.variables[i]
        if variable.name not in marginals:
            raise FormatError(f"the marginal of {variable.name!r} is missing; a MAR file holds every variable", path)
        values = np.asarray(marginals[variable.name], dtype=np.float64)
        if values.shape != (variable.card,) or not np.isfinite(values).all() or (values < 0).any():
            raise FormatError(f"the marginal of {variable.name!r} must be {variable.card} probabilities", path)
        words += [str(variable.card), *map(repr, values.tolist())]
    files.write_bytes(path, ("MAR\n" + " ".join(words) + "\n").encode())
