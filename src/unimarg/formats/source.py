"""A text file being read: decoding, and errors that name the line.

What a file says is never believed before the file is long enough to say it: nothing is allocated from a
claimed size, and what a file implies without stating it (default rows) is bounded by ``Source.claim``.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Collection, Sequence

from unimarg.errors import FormatError, closest
from unimarg.formats.assemble import check_parents, make_variable, shown
from unimarg.mechanism import MAX_EXPANDED
from unimarg.network import Variable

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
        return make_variable(name, states, group, self.error, offset)

    def family(self, words: Sequence[str], known: Collection[str], offset: int, unquoted: Callable[[str], str] = str) -> list[str]:
        """The child and its parents from the words of ``child | parent parent``."""
        if not words or words[0] == "|" or (len(words) > 1 and words[1] != "|") or "|" in words[2:]:
            raise self.error(f"expected (child | parent parent), not {shown('(' + ' '.join(words) + ')')}", offset)
        child, *parents = (unquoted(w) for w in words if w != "|")
        if child not in known:
            raise self.error(f"there is no variable {shown(child)}; {closest(child, known)}", offset)
        check_parents(child, parents, known, self.error, offset)
        return [child, *parents]


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


def integer(word: str, limit: int = 10**15) -> int | None:
    """A plain decimal number up to ``limit``, else None."""
    if not (word.isascii() and word.isdigit() and len(word) <= 16):
        return None
    value = int(word)
    return value if value <= limit else None
