"""A CSV that grows row by row, so that an interrupted run can go on: what is in it is not computed again."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from unimarg.errors import FormatError
from unimarg.formats.files import explained, write_bytes


def read_rows(file: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Rows written before; a last line that was cut off is taken away, of no other file."""
    if not file.exists():
        return []
    with explained(str(file), "read"):
        data = file.read_bytes()
    if _line(columns).encode().startswith(data):  # no more than a header, which may be cut off
        file.unlink()
        return []
    whole = data[: data.rfind(b"\n") + 1]
    try:
        head, *lines = csv.reader(io.StringIO(whole.decode()))
        if head != list(columns):
            raise ValueError
        rows = [dict(zip(columns, cells, strict=True)) for cells in lines]
    except (ValueError, csv.Error):
        raise FormatError("not a table that this command wrote; give another place", file) from None
    if len(whole) < len(data):
        file.write_bytes(whole)
    return rows


def append_row(file: Path, columns: Sequence[str], row: Mapping[str, Any]) -> None:
    new = not file.exists()
    with explained(str(file), "written"), file.open("a", newline="") as out:
        out.write((_line(columns) if new else "") + _line([row[c] for c in columns]))


def write_rows(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """A whole table at once, in place of what was there."""
    rows = list(rows)
    write_bytes(str(file), "".join([_line(list(rows[0])), *(_line(list(row.values())) for row in rows)]).encode())


def _line(cells: Iterable[object]) -> str:
    """Floats with all their digits; what is not a number is empty."""
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(["" if isinstance(c, float) and math.isnan(c) else c for c in cells])
    return line.getvalue()


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """As a table in Markdown."""
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    return "\n".join([*lines, *("| " + " | ".join(cell(row[n]) for n in names) + " |" for row in rows), ""])


def cell(value: object) -> str:
    """Three digits, six where a share or a correlation is nearly 1, a dash for what is not there.

    >>> cell(0.00123456), cell(0.99912345), cell(float("nan")), cell("um"), cell(15458.0)
    ('0.00123', '0.999123', '-', 'um', '15,458')
    """
    if not isinstance(value, float):
        return str(value).replace("|", "\\|")
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if 1000 <= abs(value) < math.inf else f"{value:.6f}" if 0.99 < value < 1 else f"{value:.3g}"
