"""XML, read without trusting it: expat with entities refused, bounds on depth and size, and line numbers kept.

An internal DTD may declare elements and attributes (XMLBIF files carry one), but no entity: those are what
"billion laughs" and file disclosure are made of, and no network needs them. Nothing is ever fetched.

Bytes are decoded here (UTF-8, UTF-16, Latin-1, Windows-1252, ASCII) and handed to expat as UTF-8.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.parsers import expat

from unimarg.errors import FormatError
from unimarg.formats.assemble import MAX_AXES, Complaint, floats, number_fault, size_of
from unimarg.network import Floats

MAX_BYTES = 2**28
MAX_ELEMENTS = 300_000
MAX_DEPTH = 200
MAX_DECLARED_ATTRIBUTES = 200

SPACE = " \t\r\n"  # what XML calls white space; str.strip() alone would also eat a no-break space
_NO_ATTRIBUTES: dict[str, str] = {}  # shared: most elements have none
_ENCODINGS = {
    "utf-8": "utf-8",
    "utf8": "utf-8",
    "utf-16": "utf-16",
    "iso-8859-1": "latin-1",
    "iso8859-1": "latin-1",
    "latin-1": "latin-1",
    "latin1": "latin-1",
    "iso-8859-15": "iso-8859-15",
    "windows-1252": "cp1252",
    "cp1252": "cp1252",
    "us-ascii": "ascii",
    "ascii": "ascii",
}
_BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_DECLARED = re.compile(rb"""\s*<\?xml[^>]{0,200}?encoding\s*=\s*["']([^"'>]{0,60})["']""")
# What old aGrUM wrote for a comment, "<!- ... ->". Well-formed XML cannot hold it outside comments and CDATA.
_HALF_COMMENT = re.compile(r"<!-(?!-)[^<>]*(?<!-)->")
_UNWRITABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(slots=True)
class Element:
    """One element: its own text joined (without that of its children), and the line it starts on."""

    tag: str
    attributes: dict[str, str]
    line: int
    text: str = ""
    children: list[Element] | tuple[()] = ()

    def all(self, tag: str) -> list[Element]:
        return [c for c in self.children if c.tag == tag]

    def first(self, tag: str) -> Element | None:
        return next((c for c in self.children if c.tag == tag), None)

    @property
    def content(self) -> str:
        """The text without surrounding white space, unless the element asks to keep it."""
        return self.text if self.attributes.get("xml:space") == "preserve" else self.text.strip(SPACE)


def parse(data: bytes, path: str, root: str) -> Element:
    """The root element of a document, which must be called ``root``."""
    if len(data) > MAX_BYTES:
        raise FormatError(f"the file is larger than {MAX_BYTES >> 20} MiB", path)
    text = _decode(data, path)
    try:
        document = _Tree(path).build(text)
    except expat.ExpatError as broken:
        cleaned, count = _HALF_COMMENT.subn(lambda m: "\n" * m.group().count("\n"), text)
        try:
            if not count:
                raise broken
            document = _Tree(path).build(cleaned)
        except expat.ExpatError as e:
            raise FormatError(f"this is not well-formed XML: {expat.ErrorString(e.code)}", path, e.lineno) from None
    if document.tag != root:
        raise FormatError(f"the document is a <{document.tag[:60]}>, not a <{root}>", path, document.line)
    return document


def _decode(data: bytes, path: str) -> str:
    encoding = next((name for bom, name in _BOMS if data.startswith(bom)), None)
    if encoding is None and data[:4] in (b"<\0?\0", b"\0<\0?"):
        encoding = "utf-16-le" if data[:1] == b"<" else "utf-16-be"
    if encoding is None:
        declared = _DECLARED.match(data)
        given = declared.group(1).decode("ascii", "replace") if declared else "utf-8"
        encoding = _ENCODINGS.get(given.lower().replace("_", "-"))
        if encoding is None:
            raise FormatError(f"the encoding {given!r} is not supported; save the file as UTF-8", path, 1)
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as e:
        line = data.count(b"\n", 0, e.start) + 1
        raise FormatError(f"the bytes are not valid {encoding}: {e.reason}", path, line) from None


class _Tree:
    """Expat's events made into elements. Handlers may raise: expat stops and passes the exception on."""

    def __init__(self, path: str):
        self.path = path
        self.count = 0
        self.open: list[Element] = []
        self.texts: list[list[str] | None] = []  # of the open elements
        self.declared = 0
        self.root: Element | None = None
        self.parser = expat.ParserCreate(encoding="utf-8")
        self.parser.buffer_text = True
        # defaults declared in a DTD multiply: a hundred kilobytes of them made a gigabyte of attributes
        self.parser.specified_attributes = True
        self.parser.AttlistDeclHandler = self.declare_attribute
        self.parser.StartElementHandler = self.start
        self.parser.EndElementHandler = self.end
        self.parser.CharacterDataHandler = self.characters
        self.parser.EntityDeclHandler = self.refuse("an entity declaration")
        self.parser.ExternalEntityRefHandler = self.refuse("an external entity")  # pyright: ignore[reportAttributeAccessIssue]
        self.parser.SkippedEntityHandler = self.refuse("an undeclared entity")

    def build(self, text: str) -> Element:
        # in one piece: feeding a long token bit by bit costs expat quadratic time
        self.parser.Parse(text.encode("utf-8"), True)
        assert self.root is not None
        return self.root

    def fail(self, message: str) -> FormatError:
        return FormatError(message, self.path, self.parser.CurrentLineNumber)

    def refuse(self, what: str) -> Callable[..., None]:
        def handler(*_: object) -> None:
            raise self.fail(f"the file holds {what}, which is refused")

        return handler

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self.count += 1
        if self.count > MAX_ELEMENTS:
            raise self.fail(f"the file holds more than {MAX_ELEMENTS} elements")
        if len(self.open) >= MAX_DEPTH:
            raise self.fail(f"elements are nested deeper than {MAX_DEPTH} levels")
        element = Element(tag, attributes or _NO_ATTRIBUTES, self.parser.CurrentLineNumber)
        if self.open:
            parent = self.open[-1]
            if isinstance(parent.children, tuple):
                parent.children = []
            parent.children.append(element)
        else:
            self.root = element
        self.open.append(element)
        self.texts.append(None)

    def end(self, tag: str) -> None:
        element, text = self.open.pop(), self.texts.pop()
        if text:
            element.text = "".join(text)

    def characters(self, text: str) -> None:
        pieces = self.texts[-1]
        if pieces is None:
            self.texts[-1] = [text]
        else:
            pieces.append(text)

    def declare_attribute(self, *_: object) -> None:
        self.declared += 1
        if self.declared > MAX_DECLARED_ATTRIBUTES:
            raise self.fail(f"the DTD declares more than {MAX_DECLARED_ATTRIBUTES} attributes")


def complaints(path: str) -> Complaint:
    """Errors about this file; an element's line is its place."""
    return lambda message, line: FormatError(message, path, line)


def read_numbers(element: Element, count: int, what: str, path: str) -> Floats:
    """Exactly ``count`` numbers; what comes after them is not even split."""
    words = element.text.split(None, count)
    if len(words) != count:
        many = f"more than {len(words) - 1}" if len(words) > count else str(len(words))
        raise FormatError(f"{what} needs {count} numbers, and the file has {many}", path, element.line)
    try:
        return floats(words)
    except ValueError:
        raise FormatError(f"{what}: {number_fault(words)[1]}", path, element.line) from None


def read_table(element: Element, cards: Sequence[int], name: str, path: str) -> Floats:
    """A table ``[*parent_cards, card]`` listed with the child innermost and the first parent slowest."""
    if len(cards) > MAX_AXES:
        raise FormatError(f"the table of {name!r} has {len(cards) - 1} parents; at most {MAX_AXES - 1} are possible", path, element.line)
    count = size_of(cards, len(element.text))
    if count > len(element.text):
        raise FormatError(f"the table of {name!r} has fewer numbers than its parents and states need", path, element.line)
    return read_numbers(element, count, f"the table of {name!r}", path).reshape(cards)


def escape(text: str) -> str:
    """Text as it stands in XML, in an attribute or between tags."""
    bad = _UNWRITABLE.search(text)
    if bad:
        raise FormatError(f"{text!r} holds {bad.group()!r}, which XML cannot express")
    for raw, escaped in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("\t", "&#9;"), ("\n", "&#10;"), ("\r", "&#13;")):
        text = text.replace(raw, escaped)
    return text


def leaf(tag: str, text: str, attributes: str = "") -> str:
    """``<tag>text</tag>``, marked so that white space around the text survives reading."""
    keep = ' xml:space="preserve"' if text != text.strip(SPACE) else ""
    return f"<{tag}{attributes}{keep}>{escape(text)}</{tag}>"
