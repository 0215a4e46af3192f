"""A table of evidence in a file, CSV or Parquet, read a batch of rows at a time.

A batch has the cells as they stand in the file; ``states_of`` says what they mean. Only an empty cell (or a null) is unobserved: ``None``
and ``NA`` are states of real networks.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from numbers import Real
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from unimarg.errors import EvidenceError, FormatError
from unimarg.evidence import numbered, state_from_text, state_index
from unimarg.formats.interop import import_quietly
from unimarg.network import Network, Variable

CSV, PARQUET = (".csv", ".csv.gz"), (".parquet", ".pq")
EMPTY, BAD = -1, -2
NOT_UTF8 = "not UTF-8 text: save the file in that encoding"


@dataclass(frozen=True)
class Batch:
    """Some rows of the file, column by column."""

    columns: Sequence[Sequence[Any]]
    lines: Sequence[int]  # the line where each row begins; for Parquet none
    wrong: Mapping[int, str] = field(default_factory=dict)  # rows that do not fit the columns, by their number in the batch; empty above
    share: float = 1.0  # of the file that has been read


class Source(Protocol):
    """A file with named columns."""

    path: Path
    columns: list[str]

    def batches(self, rows: int, skip: int) -> Iterator[Batch]:
        """So many rows at a time, without the first ``skip`` batches."""
        ...


def open_source(path: Path) -> Source:
    name = path.name.lower()
    if name.endswith(PARQUET):
        return ParquetSource(path)
    if name.endswith(CSV):
        return CsvSource(path)
    raise FormatError(f"a table is read from a file with one of the suffixes {' '.join(CSV + PARQUET)}", path)


class CsvSource:
    """Fields by commas, quotes doubled, the first line the names; a line without anything is no row where there are several columns."""

    def __init__(self, path: Path):
        self.path = path
        with open(path, "rb") as raw, self._text(raw) as text:
            try:
                self.columns = next(csv.reader(text), [])
            except (csv.Error, EOFError, OSError) as e:
                raise FormatError(f"not a CSV file: {e}", path, 1) from None
        if not self.columns:
            raise FormatError("is empty: the first line must name the columns", path)
        if not _decoded(self.columns):
            raise FormatError(f"the names of the columns are {NOT_UTF8}", path, 1)

    def _text(self, raw: IO[bytes]) -> IO[str]:
        unpacked: Any = gzip.GzipFile(fileobj=raw) if self.path.name.lower().endswith(".gz") else raw
        return io.TextIOWrapper(unpacked, encoding="utf-8-sig", errors="surrogateescape", newline="")

    def batches(self, rows: int, skip: int) -> Iterator[Batch]:
        with open(self.path, "rb") as raw, self._text(raw) as text:
            size = max(os.fstat(raw.fileno()).st_size, 1)
            reader = self._rows(text)
            next(reader)
            for _ in islice(reader, skip * rows):
                pass
            while batch := list(islice(reader, rows)):
                yield self._batch(batch, raw.tell() / size)

    def _rows(self, text: IO[str]) -> Iterator[tuple[int, list[str]]]:
        """The line where a row begins, and its cells."""
        reader = csv.reader(text)
        line = 1
        try:
            for cells in reader:
                if cells or len(self.columns) == 1:
                    yield line, cells or [""]
                line = reader.line_num + 1
        except (csv.Error, EOFError, OSError) as e:  # a quote that is never closed, a broken archive
            raise FormatError(f"cannot be read on: {e}", self.path, line) from None

    def _batch(self, rows: list[tuple[int, list[str]]], share: float) -> Batch:
        width = len(self.columns)
        wrong: dict[int, str] = {}
        cells = [row for _, row in rows]
        for r, row in enumerate(cells):
            if not _decoded(row):
                wrong[r] = f"is {NOT_UTF8}"
                row = cells[r] = [cell.encode(errors="surrogateescape").decode(errors="backslashreplace") for cell in row]
            if len(row) != width:
                more = f"; beyond them: {','.join(row[width:])[:200]!r}" if len(row) > width else ""
                wrong[r] = f"has {len(row)} cell{'s' * (len(row) != 1)}, the first line {width}{more}"
                cells[r] = (row + [""] * width)[:width]
        return Batch(list(zip(*cells, strict=True)), [line for line, _ in rows], wrong, share)


def _decoded(cells: Sequence[str]) -> bool:
    """Whether their bytes were text."""
    text = ",".join(cells)
    return text.isascii() or re.search("[\udc80-\udcff]", text) is None


class ParquetSource:
    """By pyarrow."""

    def __init__(self, path: Path):
        self.path = path
        self._arrow = import_quietly("pyarrow", "pyarrow (the extra 'parquet')")
        parquet = import_quietly("pyarrow.parquet", "pyarrow (the extra 'parquet')")
        try:
            self._file = parquet.ParquetFile(path)
        except self._arrow.ArrowException as e:
            raise FormatError(f"not a Parquet file: {e}", path) from None
        schema = self._file.schema_arrow
        for column in schema:
            if self._arrow.types.is_nested(column.type):
                raise FormatError(f"the column {column.name!r} holds {column.type}; a cell is a state's label or number", path)
        self.columns, self.types = list(schema.names), dict(zip(schema.names, schema.types, strict=True))

    def batches(self, rows: int, skip: int) -> Iterator[Batch]:
        """Pieces come as the file has them and are cut anew: a batch holds the same rows however often a run was stopped."""
        total, to_skip, done = max(self._file.metadata.num_rows, 1), skip * rows, skip * rows
        waiting: list[Any] = []
        try:
            for piece in self._file.iter_batches(batch_size=rows):
                cut = min(to_skip, len(piece))
                to_skip -= cut
                waiting.append(piece.slice(cut))
                if sum(map(len, waiting)) >= rows:
                    table = self._arrow.Table.from_batches(waiting)
                    waiting = table.slice(rows).to_batches()
                    done += rows
                    yield self._batch(table.slice(0, rows), done / total)
            if any(map(len, waiting)):
                yield self._batch(self._arrow.Table.from_batches(waiting), 1.0)
        except UnicodeDecodeError:
            raise FormatError(f"has a cell that is {NOT_UTF8}", self.path) from None
        except (self._arrow.ArrowException, OSError) as e:
            raise FormatError(f"cannot be read on: {e}", self.path) from None

    def _batch(self, table: Any, share: float) -> Batch:
        return Batch([column.to_pylist() for column in table.columns], [], share=share)


class States(dict[Any, int]):
    """Cells of one column as states: EMPTY where nothing is known, BAD for what is no state."""

    def __init__(self, variable: Variable):
        super().__init__({label: k for k, label in enumerate(variable.states)} | {"": EMPTY, None: EMPTY})
        self.variable = variable

    def __missing__(self, cell: Any) -> int:
        if cell != cell:  # not a number: an empty cell of a column of numbers
            return EMPTY
        key = cell if isinstance(cell, str) else (type(cell), cell)  # 1 and True would be the same key
        if key not in self:
            try:
                self[key] = self._index(cell)
            except EvidenceError:
                self[key] = BAD
        return self[key]

    def _index(self, cell: Any) -> int:
        return state_from_text(self.variable, cell) if isinstance(cell, str) else state_index(self.variable, cell)

    def complaint(self, cell: Any) -> str:
        try:
            self._index(cell)
        except EvidenceError as e:
            return str(e)
        raise AssertionError("a good cell")


def by_number(net: Network, names: Sequence[str], batch: Batch) -> dict[str, str]:
    """Columns with a state's number for its label: the first such number, and the label.

    >>> from unimarg.network import Variable
    >>> by_number(Network([Variable("rain")], {}, {"rain": [0.8, 0.2]}), ["rain"], Batch([["", "yes", "1"]], [2, 3, 4]))
    {'rain': "1 is 'yes'"}
    """
    found: dict[str, str] = {}
    for name, cells in zip(names, batch.columns, strict=True):
        variable = net.variables[net.index[name]] if name in net.index else None
        if variable is None or numbered(variable):
            continue
        look_up = States(variable)
        written = (cell for cell in dict.fromkeys(cells) if isinstance(cell, str | Real) and not isinstance(cell, bool))
        numbers = (cell for cell in written if cell not in variable.states and look_up[cell] >= 0)
        if (number := next(numbers, None)) is not None:
            found[name] = f"{number} is {variable.states[look_up[number]]!r}"
    return found


def states_of(net: Network, names: Sequence[str], batch: Batch) -> tuple[np.ndarray, dict[int, str]]:
    """States ``[rows, nodes]``, EMPTY where unobserved, and what is wrong with which row (it then counts as empty)."""
    states = np.full((len(batch.columns[0]), len(net)), EMPTY, dtype=np.int8 if net.cards.max() < 127 else np.int32)
    wrong = dict(batch.wrong)
    for name, cells in zip(names, batch.columns, strict=True):
        if name in net.index:
            look_up = States(net.variables[net.index[name]])
            column = np.fromiter(map(look_up.__getitem__, cells), dtype=states.dtype, count=len(cells))
            for r in np.flatnonzero(column == BAD).tolist():
                wrong.setdefault(r, look_up.complaint(cells[r]))
            states[:, net.index[name]] = column
    states[list(wrong)] = EMPTY
    return states, wrong
