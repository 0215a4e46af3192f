"""``um.score``: the posteriors of every row of a table, of any size, in flat memory.

Rows are taken in batches, and every batch becomes a part (``parts.py``): a run that was killed goes on at the first part that is missing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from unimarg.bulk.parts import SUFFIXES, Columns, Parts, rows_of_a_part
from unimarg.bulk.source import CSV, Batch, Source, open_source, states_of
from unimarg.errors import EvidenceError, TooExpensiveError, UnimargError, UsageError, closest
from unimarg.evidence import parse_evidence
from unimarg.exact import advised
from unimarg.formats.files import check_output
from unimarg.formats.interop import AnyNetwork, as_network
from unimarg.network import Network
from unimarg.tables import given, no_column

if TYPE_CHECKING:
    from unimarg.exact_together import ExactTable
    from unimarg.marginalizer import Marginalizer

METHODS = ("um", "auto", "exact")  # the first needs a trained model
BATCH_STATES = 1 << 23  # probabilities of a batch: some tens of megabytes
FEWEST, MOST = 4096, 16384  # rows of a batch
OF_A_ROW = 256  # numbers that remembering an answer takes beside its probabilities
ONE_BY_ONE = 64  # at least, where each row takes its time; and a thousandth of a large table

Progress = Callable[[int, float], None]  # rows so far, share of the input


@dataclass(frozen=True)
class Scored:
    """What was done: rows read, those set aside as bad, those that an earlier run had done, seconds of this run.

    ``doubtful`` are the rows of this run with findings that training never showed, of which a warning tells, too.
    """

    rows: int
    bad: int
    resumed: int
    seconds: float
    doubtful: int = 0


def score(
    source: AnyNetwork | Marginalizer,
    rows: str | os.PathLike[str],
    output: str | os.PathLike[str],
    targets: Sequence[str] | None = None,
    *,
    method: str | None = None,
    keep: Sequence[str] = (),
    errors: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Scored:
    """Write P(state | row) for every row of a CSV or Parquet file, and every state of the targets (all variables if None).

    ``source`` is a trained model, whose ``method`` is ``um`` (one pass for many rows) if not given, or a network, whose is ``auto``; either
    may be asked by ``auto`` or ``exact``: many rows at once where exact inference is quick, else row by row. A cell is a state's label or
    number, an empty one is unobserved, so every row has its own evidence. The output, CSV or Parquet, has the number of the row (from 0),
    the columns to ``keep`` (the only ones that need not be variables) and a column ``name=state`` for each probability; by ``auto`` and
    ``exact`` also method, status and largest standard error. Rows that make no sense, or are too expensive for ``exact``, end the run with
    an error that names the line, unless there is a file for ``errors``, which they then go to with the reason. The same call after a run
    was killed goes on where it stopped.
    """
    from unimarg.checkpoint import digest

    start = time.perf_counter()
    net, model = _network_and_model(source)
    method = _method(method, model)
    table = open_source(Path(rows))
    nodes = _check(net, table.columns, targets, keep)
    answers = _Answers(net, model, table, nodes, method, list(keep))
    size = min(max(BATCH_STATES // int(net.cards.sum()), FEWEST), MOST)
    if method != "um" and not answers.together(size):
        size = min(max(answers.expected // 1000, ONE_BY_ONE), size)
    _check_files(table.path, Path(output), None if errors is None else Path(errors))
    job = {"input": _stamp(table.path), "model": digest(net, model), "columns": table.columns, "targets": [net.names[i] for i in nodes]}
    job |= {"method": method, "keep": list(keep)}
    size = rows_of_a_part(Path(output), job, MOST) or size
    parts = Parts(Path(output), None if errors is None else Path(errors), job | {"rows": size})
    done = resumed = max(parts.done - 1, 0)  # the last part may be shorter than the others: it is made again
    total = resumed * size
    try:
        for batch in table.batches(size, resumed):
            columns, bad = answers.of(batch, total)
            if bad and errors is None:
                raise EvidenceError(
                    f"{table.path}: {_where(bad[0])}: {bad[0][2]}; give a file for errors (--errors) to set such rows aside"
                )
            parts.write(done, columns, bad, answers.types)
            done, total = done + 1, total + len(batch.columns[0])
            if progress:
                progress(total, batch.share)
    except UnimargError:
        parts.discard()
        raise
    if not done:
        parts.write(0, answers.of(Batch([[] for _ in table.columns], []), 0)[0], [], answers.types)
    count = parts.join(answers.header, ["row", "line", "reason", *table.columns])
    if model is not None:
        model.warn(answers.doubtful, answers.unseen)
    return Scored(total, count, min(resumed * size, total), time.perf_counter() - start, answers.doubtful)


class Answer(NamedTuple):
    """Of a row."""

    probabilities: np.ndarray  # float32, states of the targets side by side
    method: str
    status: str
    largest_error: float


class _Answers:
    """From a batch of rows to the columns of the output, and the rows that have no answer."""

    def __init__(self, net: Network, model: Marginalizer | None, table: Source, nodes: list[int], method: str, keep: list[str]):
        self.net, self.model, self.table, self.nodes, self.method, self.keep = net, model, table, nodes, method, keep
        self.types = {name: getattr(table, "types", {}).get(name, "string") for name in keep}
        self.names = [f"{net.names[i]}={state}" for i in nodes for state in net.variables[i].states]
        self.exact: ExactTable | None = None  # the program for all rows, if there is one
        self.expected = 0  # rows, about
        self.known: dict[bytes, Answer | str] = {}  # answers row by row, by the row
        self.doubtful, self.unseen = 0, set[int]()  # rows with findings that training never showed, and the nodes of these
        extra = [] if method == "um" else ["method", "status", "largest_error"]
        self.header = ["row", *keep, *self.names, *extra]
        if len(set(self.header)) < len(self.header):
            twice = next(name for name in self.header if self.header.count(name) > 1)
            raise UsageError(f"the output would have two columns {twice!r}: do not keep that one")

    def of(self, batch: Batch, first: int) -> tuple[Columns, list[list[object]]]:
        """The answers, and for each bad row its number, line, reason and cells."""
        states, wrong = states_of(self.net, self.table.columns, batch)
        found, more = self._by_model(states, wrong) if self.method == "um" else self._with_errors(states, wrong)
        good = np.array([r for r in range(len(states)) if r not in wrong], dtype=np.int64)
        columns: Columns = {"row": good + first}
        for name in self.keep:
            cells = batch.columns[self.table.columns.index(name)]
            columns[name] = [cells[r] for r in good] if wrong else cells
        columns |= {name: found[good, j] for j, name in enumerate(self.names)}
        columns |= {name: [values[r] for r in good] for name, values in more.items()}
        line = (lambda r: batch.lines[r]) if batch.lines else (lambda r: "")
        bad = [[r + first, line(r), wrong[r], *(column[r] for column in batch.columns)] for r in sorted(wrong)]
        return columns, bad

    def _by_model(self, states: np.ndarray, wrong: dict[int, str]) -> tuple[np.ndarray, dict[str, list[Any]]]:
        assert self.model is not None
        found, contradiction = self.model.answers_of_states(states)
        for r in np.flatnonzero(contradiction >= 0).tolist():
            wrong[r] = str(self.model.impossible(parse_evidence(self.net, given(self.net, states[r]))))
        unseen = self.model.unseen(np.delete(states, list(wrong), axis=0))
        self.doubtful += int(unseen.any(axis=1).sum())
        self.unseen.update(np.flatnonzero(unseen.any(axis=0)).tolist())
        return (found if self.nodes == list(range(len(self.net))) else found[:, self.model.slots(self.nodes)]), {}

    def together(self, rows: int) -> bool:
        """Whether one program answers all rows, judged by so many: a run that is resumed decides the same."""
        from unimarg.exact_together import worthwhile

        first = next(self.table.batches(rows, 0), None)
        if first is not None:
            states, wrong = states_of(self.net, self.table.columns, first)
            self.expected = int(len(states) / first.share) if first.share > 0 else 0
            observed = [self.net.index[name] for name in self.table.columns if name in self.net.index]
            self.exact = worthwhile(self.net, np.delete(states, list(wrong), axis=0), observed, self.nodes, first.share)
        return self.exact is not None

    def _with_errors(self, states: np.ndarray, wrong: dict[int, str]) -> tuple[np.ndarray, dict[str, list[Any]]]:
        """All rows together if that is quicker; what is left row by row."""
        n, reached = len(states), np.zeros(len(states), dtype=bool)
        found = np.zeros((n, len(self.names)), dtype=np.float32)
        more: dict[str, list[Any]] = {"method": [""] * n, "status": [""] * n, "largest_error": [0.0] * n}
        if self.exact:
            found[:], _, reached = self.exact.answers(states)
        for r in range(n):
            if r in wrong:
                continue
            if reached[r]:
                more["method"][r], more["status"][r] = "exact", "ok"
                continue
            answered = self._one(states[r])
            if isinstance(answered, str):
                wrong[r] = answered
                continue
            found[r], more["method"][r], more["status"][r], more["largest_error"][r] = answered
        return found, more

    def _one(self, row: np.ndarray) -> Answer | str:
        """Its posterior, or why there is none; the same as that of an equal row before."""
        from unimarg.inference import answer

        if (known := self.known.get(row.tobytes())) is not None:
            return known
        try:
            post = answer(self.net, self.model, given(self.net, row), [self.net.names[i] for i in self.nodes], self.method)
            error = max(float(e.max()) for e in post.std_errors)
            found = Answer(np.concatenate(post.probabilities, dtype=np.float32), post.method, post.status, error)
        except TooExpensiveError as e:
            found = str(advised(e, "use the method auto"))
        except UnimargError as e:
            found = str(e)
        if len(self.known) * (len(self.names) + len(self.net) + OF_A_ROW) < BATCH_STATES:
            self.known[row.tobytes()] = found
        return found


def _network_and_model(source: AnyNetwork | Marginalizer) -> tuple[Network, Marginalizer | None]:
    from unimarg.marginalizer import Marginalizer

    if isinstance(source, str | os.PathLike):
        raise UsageError(f"score needs a trained model or a network, not a name; unimarg.load_model or unimarg.load reads {source!r}")
    return (source.net, source) if isinstance(source, Marginalizer) else (as_network(source), None)


def _method(method: str | None, model: Marginalizer | None) -> str:
    """The one asked for, or the first that there is."""
    allowed = METHODS[1:] if model is None else METHODS
    if method is not None and method not in allowed:
        without = "without a trained model " if model is None else ""
        raise UsageError(f"{without}a table is scored by one of the methods {', '.join(allowed)}, not {method!r}")
    return method or allowed[0]


def _check(net: Network, columns: Sequence[str], targets: Sequence[str] | None, keep: Sequence[str]) -> list[int]:
    """The nodes of the targets, if all names make sense."""
    for name in (targets, keep):
        if isinstance(name, str):
            raise UsageError(f"give a list of names, not the string {name!r}")
    if targets is not None and not len(targets):
        raise UsageError("there is no target to score: name one at least, or leave targets out for all variables")
    for name in columns:
        if columns.count(name) > 1:
            raise UsageError(f"column {name!r} is there twice")
        if name not in net.index and name not in keep:
            raise UsageError(no_column(net, name, " (keep, or --keep, passes a column on)"))
    for name in keep:
        if name not in columns:
            raise UsageError(f"there is no column {name!r} to keep; {closest(name, columns)}")
    return list(range(len(net))) if targets is None else list(dict.fromkeys(net.find(name) for name in targets))


def _check_files(rows: Path, output: Path, errors: Path | None) -> None:
    """Three different files, in folders that exist."""
    check_output(output, "a table", SUFFIXES)
    if errors:
        check_output(errors, "a table of errors", CSV, stream=True)
    files = [rows, output, *([errors] if errors else [])]
    if len({file.resolve() for file in files}) < len(files):
        raise UsageError(f"input, output and errors must be different files: {', '.join(map(str, files))}")


def _where(bad: Sequence[object]) -> str:
    return f"row {bad[0]}" if bad[1] == "" else f"line {bad[1]}"


def _stamp(path: Path) -> list[int]:
    """By which an input is known again."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]
