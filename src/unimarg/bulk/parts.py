"""A large file written part by part, so that a run that was killed goes on where it stopped.

Beside the output lies a folder of parts, each written in one step: a part is there as a whole or not at all. When all are
there they are joined into the output, in one step again, and the folder goes. ``job.json`` says what the parts belong to: those of
another input, model or option are never mixed in.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unimarg.errors import UsageError
from unimarg.formats.files import check_output, explained, replacing, write_bytes
from unimarg.formats.interop import import_quietly

SUFFIXES = (".csv", ".csv.gz", ".parquet", ".pq")
LABEL = "job.json"
Columns = dict[str, np.ndarray | Sequence[Any]]


def folder_of(output: Path) -> Path:
    return output.with_name(output.name + ".parts")


def any_parts(output: Path) -> bool:
    """Whether a run has left some."""
    return any(folder_of(output).glob("0*"))


def rows_of_a_part(output: Path, job: Mapping[str, Any], most: int) -> int | None:
    """As they are in what there is of the same job, which goes on with as many."""
    try:
        found = json.loads((folder_of(output) / LABEL).read_bytes())
        same = all(found[name] == value for name, value in job.items())
        return found["rows"] if same and isinstance(found["rows"], int) and 0 < found["rows"] <= most else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


class Parts:
    """The parts of one output, and of the errors beside it."""

    def __init__(self, output: Path, errors: Path | None, job: dict[str, Any]):
        self.output, self.errors = output, errors
        check_output(output, "a table", SUFFIXES)
        self.parquet = output.name.lower().endswith((".parquet", ".pq"))
        if self.parquet:
            _arrow("parquet")  # an error now rather than after the first part
        self.folder = folder_of(output)
        self._claim(job | {"errors": errors is not None})

    def _claim(self, job: dict[str, Any]) -> None:
        """The folder is new, or that of the same job, or no part in it is finished."""
        with explained(str(self.folder), "written"):
            self.folder.mkdir(exist_ok=True)
        label = self.folder / LABEL
        # parts of a run without a file for errors hold none: with one it goes on
        wanted, fitting = (json.dumps(j, indent=1, sort_keys=True) for j in (job, job | {"errors": False}))
        found = label.read_text() if label.exists() else None
        if found is None and any(not file.name.startswith(".") for file in self.folder.iterdir()):  # what a kill left does not count
            raise UsageError(f"{self.folder} is in the way: it is no folder of parts")
        if found not in (wanted, fitting) and self.done:
            raise UsageError(f"{self.folder} holds parts of a run with another input, model or option; delete it to begin anew")
        if found != wanted:
            write_bytes(str(label), wanted.encode())

    def discard(self) -> None:
        """After an error: the folder goes, unless finished parts are in it."""
        if not self.done:
            shutil.rmtree(self.folder)

    @property
    def done(self) -> int:
        """Parts that are there."""
        n = 0
        while self._answers(n).exists():
            n += 1
        return n

    def _answers(self, n: int) -> Path:
        return self.folder / f"{n:06}{'.parquet' if self.parquet else '.csv'}"

    def _errors(self, n: int) -> Path:
        return self.folder / f"{n:06}.errors.csv"

    def write(self, n: int, answers: Columns, errors: Iterable[Sequence[object]], types: Mapping[str, Any]) -> None:
        """The errors first, if there are any: where the answers are, the part is complete."""
        if text := _csv(errors):
            write_bytes(str(self._errors(n)), text.encode())
        else:
            self._errors(n).unlink(missing_ok=True)  # of a run that was killed before the answers, with another input
        with replacing(str(self._answers(n))) as out:
            if self.parquet:
                _arrow("parquet").write_table(_table(answers, types), out, use_dictionary=False, compression="none")
            else:
                out.write(_csv_columns(answers).encode())

    def join(self, header: Sequence[str], error_header: Sequence[str]) -> int:
        """All parts as one file; how many errors there are."""
        parts = range(self.done)
        count = 0
        with replacing(str(self.errors)) if self.errors else io.BytesIO() as out:
            out.write(_csv([error_header]).encode())
            for n in parts:
                data = self._errors(n).read_bytes() if self._errors(n).exists() else b""
                count += sum(1 for _ in csv.reader(io.StringIO(data.decode(), newline="")))
                out.write(data)
        with replacing(str(self.output)) as out:
            if self.parquet:
                self._join_parquet(out)
            else:
                out.write(_csv([header]).encode())
                for n in parts:
                    with self._answers(n).open("rb") as part:
                        shutil.copyfileobj(part, out)
        shutil.rmtree(self.folder)
        return count

    def _join_parquet(self, out: Any) -> None:
        parquet = _arrow("parquet")
        with parquet.ParquetWriter(out, parquet.read_schema(self._answers(0)), use_dictionary=False) as writer:
            for n in range(self.done):
                writer.write_table(parquet.read_table(self._answers(n)))


def _arrow(module: str) -> Any:
    return import_quietly(f"pyarrow.{module}", "pyarrow (the extra 'parquet')")


def _table(columns: Columns, types: Mapping[str, Any]) -> Any:
    arrow = import_quietly("pyarrow", "pyarrow (the extra 'parquet')")
    return arrow.table({name: arrow.array(values, type=types.get(name)) for name, values in columns.items()})


def _csv(rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _csv_columns(columns: Columns) -> str:
    """Probabilities with six digits."""
    import pandas as pd

    return pd.DataFrame(columns).to_csv(header=False, index=False, float_format="%.6g", lineterminator="\n")
