"""Names as a person may see them: they come from files, and may hold anything."""

from __future__ import annotations


def visible(name: str, most: int | None = None) -> str:
    """Control characters spelled out, a long name cut short.

    >>> visible("a\\x1b[31mb"), visible("abcdef", 4)
    ('a\\\\x1b[31mb', 'abc…')
    """
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)
    return text if most is None or len(text) <= most else text[: most - 1] + "…"
