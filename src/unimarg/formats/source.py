"""A text file being read: decoding, errors that name the line, numbers, and the network at the end.

What a file says is never believed before the file is long enough to say it: nothing is allocated from a
claimed size, and what a file implies without stating it (default rows) is bounded by ``Source.claim``.
"""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from unimarg.errors import FormatError, NetworkError, closest
from unimarg.mechanism import MAX_EXPANDED
from unimarg.network import Floats, Mechanism, Network, NoisyMax, Table, Variable

MAX_AXES = 64  # numpy's limit; a table has one axis for each parent and one for the child
_NOT_TEXT = re.compile(r"[\0-\x08\x0e-\x1b\x7f]")


class Source:
    """The text of a file and where it came from; offsets count characters of the text."""

    def __init__(self, data: bytes, path: str):
        self.path = path
        self.text = decode(data, path)
        self._spare = MAX_EXPANDED

    def error(self, message: str, offset: int | None = None) -> FormatError:
        line = None if offset is None else self.text.count("\n", 0, offset) + 1
        return FormatError(message, self.path, line)

    def claim(self, size: int, what: str, offset: int) -> None:
        """Allow for ``size`` table entries that the file implies without stating them."""
        if size > self._spare:
            raise self.error(f"{what} would fill in {size:.3g} table entries; the limit for one file is {MAX_EXPANDED}", offset)
        self._spare -= size

    def variable(self, name: str, states: Sequence[str], group: str, offset: int) -> Variable:
        if len(set(states)) != len(states):
            seen: set[str] = set()
            twice = next(s for s in states if s in seen or seen.add(s))
            raise self.error(f"variable {shown(name)} has the state {shown(twice)} twice", offset)
        try:
            return Variable(name, tuple(states), group)
        except NetworkError as e:
            raise self.error(str(e), offset) from e

    def network(
        self,
        variables: Sequence[Variable],
        parents: Mapping[str, Sequence[str]],
        mechanisms: Mapping[str, Mechanism],
        name: str,
        places: Mapping[str, int],
        offset_of: Callable[[int], int] = int,
    ) -> Network:
        """The network, or an error at the line of the block that is wrong.

        ``places`` says where the block of each variable is, ``offset_of`` which offset such a place has.
        """
        with np.errstate(all="ignore"):  # sums of absurd numbers overflow; the check that follows reports them
            try:
                return Network(variables, parents, mechanisms, name)
            except NetworkError as e:
                culprit, message = self._culprit(variables, parents, mechanisms), str(e)
                raise self.error(message, offset_of(places[culprit]) if culprit is not None and culprit in places else None) from e

    def _culprit(
        self, variables: Sequence[Variable], parents: Mapping[str, Sequence[str]], mechanisms: Mapping[str, Mechanism]
    ) -> str | None:
        """The first variable that is wrong by itself, tried alone with its parents as plain roots."""
        by_name = {v.name: v for v in variables}
        for v in variables:
            family = [by_name[p] for p in parents.get(v.name, ()) if p in by_name]
            roots = {p.name: Table(np.full(p.card, 1 / p.card)) for p in family}
            try:
                Network([*family, v], {v.name: [p.name for p in family]}, {**roots, v.name: mechanisms[v.name]})
            except (NetworkError, KeyError):
                return v.name
        return None


def decode(data: bytes, path: str) -> str:
    """UTF-8, or UTF-16 with its mark, or else the Western encodings that older programs write."""
    text = None
    for mark, encoding in ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16")):
        if data.startswith(mark):
            try:
                text = data.decode(encoding)
            except UnicodeDecodeError as e:
                raise FormatError(f"is not valid {e.encoding}: {e.reason}", path, data.count(b"\n", 0, e.start) + 1) from e
    for encoding in ("utf-8", "cp1252", "latin-1"):
        if text is None:
            try:
                text = data.decode(encoding)
            except UnicodeDecodeError:
                continue
    assert text is not None  # latin-1 takes any bytes
    strange = _NOT_TEXT.search(text)
    if strange:
        where = text.count("\n", 0, strange.start()) + 1
        raise FormatError(f"is not a text file: it holds the control character {strange.group()!r}", path, where)
    return text


def shown(text: str, length: int = 60) -> str:
    """A piece of the file for an error message: quoted, and short even if the file is hostile."""
    return repr(text if len(text) <= length else text[:length] + "...")


def suggest(name: str, allowed: Iterable[str]) -> str:
    """The end of a sentence, by ``closest`` where that is quick: comparing a thousand long names takes seconds."""
    allowed = [a for a in allowed if len(a) <= 40][:1000]
    return "; " + closest(name, allowed) if allowed and len(name) <= 40 else ""


def floats(words: list[str]) -> list[float]:
    """Numbers as files write them: ``float`` also takes ``1_0`` and digits of other scripts."""
    joined = "".join(words)
    if "_" in joined or not joined.isascii():
        raise ValueError
    return list(map(float, words))


def first_bad_number(words: Iterable[str]) -> int:
    """The position of the word that ``floats`` did not take."""
    for i, word in enumerate(words):
        try:
            floats([word])
        except ValueError:
            return i
    raise AssertionError("every word is a number")


def integer(word: str, limit: int = 10**15) -> int | None:
    """A plain decimal number up to ``limit``, else None."""
    if not (word.isascii() and word.isdigit() and len(word) <= 16):
        return None
    value = int(word)
    return value if value <= limit else None


def size_of(cards: Iterable[int], limit: int) -> int:
    """The product, or ``limit + 1`` as soon as it is more than that: a million parents are cheap."""
    size = 1
    for card in cards:
        size *= card
        if size > limit:
            return limit + 1
    return size


def full_table(net: Network, i: int) -> Floats:
    """The mechanism of node ``i`` as a table ``[*parent_cards, card]``, for formats that hold nothing else."""
    mechanism = net.mechanisms[i]
    if isinstance(mechanism, NoisyMax) and len(net.parents[i]) < MAX_AXES:
        try:
            return mechanism.expand()
        except NetworkError:
            pass
    elif isinstance(mechanism, Table):
        return mechanism.probabilities
    digits = sum(math.log10(c) for c in (*mechanism.parent_cards, mechanism.card))
    raise FormatError(
        f"{net.names[i]!r} is a noisy-max of {len(net.parents[i])} parents, which this format can only hold as a table; "
        f"that would have about 10^{digits:.1f} entries, the limit is {MAX_EXPANDED}. Save as .xdsl, which keeps it as it is"
    )
