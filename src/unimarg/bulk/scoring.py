"""``um.score``: the posteriors of every row of a table, of any size, in flat memory.

Rows are taken in batches, and every batch becomes a part (``parts.py``): a run that was killed goes on at the first part that is missing.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unimarg.bulk.parts import SUFFIXES, Columns, Parts
from unimarg.bulk.source import CSV, Batch, Source, open_source, states_of
from unimarg.errors import EvidenceError, UnimargError, UsageError, closest, no_state_left
from unimarg.formats.files import check_output
from unimarg.network import Network

if TYPE_CHECKING:
    from unimarg.marginalizer import Marginalizer

METHODS = ("um", "auto")
BATCH_STATES = 1 << 23  # probabilities of a batch: some tens of megabytes
FEWEST, MOST = 4096, 16384  # rows of a batch
ONE_BY_ONE = 256  # where each row takes its time

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
    model: Marginalizer,
    rows: str | os.PathLike[str],
    output: str | os.PathLike[str],
    targets: Sequence[str] | None = None,
    *,
    method: str = "um",
    keep: Sequence[str] = (),
    errors: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Scored:
    """Write P(state | row) for every row of a CSV or Parquet file, and every state of the targets (all variables if None).

    A cell is a state's label or number, an empty one is unobserved, so every row has its own evidence. The output, CSV or Parquet, has the
    number of the row (from 0), the columns to ``keep`` (the only ones that need not be variables) and a column ``name=state`` for each
    probability; by the method ``auto`` also method, status and largest standard error. Rows that make no sense end the run with an error
    that names the line, unless there is a file for ``errors``, which they then go to with the reason. The same call after a run was
    killed goes on where it stopped.
    """
    from unimarg.marginalizer import Marginalizer

    if not isinstance(model, Marginalizer):
        raise UsageError(f"score needs a trained model, not {model!r}; unimarg.load_model reads one, unimarg.train makes one")
    start = time.perf_counter()
    source = open_source(Path(rows))
    nodes = _check(model.net, source.columns, targets, method, keep)
    answers = _Answers(model, source, nodes, method, list(keep))
    size = min(max(BATCH_STATES // int(model.net.cards.sum()), FEWEST), MOST) if method == "um" else ONE_BY_ONE
    _check_files(source.path, Path(output), None if errors is None else Path(errors))
    job = {"input": _stamp(source.path), "model": _digest(model), "columns": source.columns, "targets": [model.net.names[i] for i in nodes]}
    job |= {"method": method, "keep": list(keep), "rows": size}
    parts = Parts(Path(output), None if errors is None else Path(errors), job)
    done = resumed = max(parts.done - 1, 0)  # the last part may be shorter than the others: it is made again
    total = resumed * size
    try:
        for batch in source.batches(size, resumed):
            columns, bad = answers.of(batch, total)
            if bad and errors is None:
                raise EvidenceError(
                    f"{source.path}: {_where(bad[0])}: {bad[0][2]}; give a file for errors (--errors) to set such rows aside"
                )
            parts.write(done, columns, bad, answers.types)
            done, total = done + 1, total + len(batch.columns[0])
            if progress:
                progress(total, batch.share)
    except UnimargError:
        parts.discard()
        raise
    if not done:
        parts.write(0, answers.of(Batch([[] for _ in source.columns], []), 0)[0], [], answers.types)
    count = parts.join(answers.header, ["row", "line", "reason", *source.columns])
    model.warn(answers.doubtful, answers.unseen)
    return Scored(total, count, min(resumed * size, total), time.perf_counter() - start, answers.doubtful)


class _Answers:
    """From a batch of rows to the columns of the output, and the rows that have no answer."""

    def __init__(self, model: Marginalizer, source: Source, nodes: list[int], method: str, keep: list[str]):
        self.model, self.source, self.nodes, self.method, self.keep = model, source, nodes, method, keep
        self.types = {name: getattr(source, "types", {}).get(name, "string") for name in keep}
        self.names = [f"{model.net.names[i]}={state}" for i in nodes for state in model.net.variables[i].states]
        self.doubtful, self.unseen = 0, set[int]()  # rows with findings that training never showed, and the nodes of these
        extra = ["method", "status", "largest_error"] if method == "auto" else []
        self.header = ["row", *keep, *self.names, *extra]
        if len(set(self.header)) < len(self.header):
            twice = next(name for name in self.header if self.header.count(name) > 1)
            raise UsageError(f"the output would have two columns {twice!r}: do not keep that one")

    def of(self, batch: Batch, first: int) -> tuple[Columns, list[list[object]]]:
        """The answers, and for each bad row its number, line, reason and cells."""
        states, wrong = states_of(self.model.net, self.source.columns, batch)
        found, more = self._by_model(states, wrong) if self.method == "um" else self._one_by_one(states, wrong)
        good = np.array([r for r in range(len(states)) if r not in wrong], dtype=np.int64)
        columns: Columns = {"row": good + first}
        for name in self.keep:
            cells = batch.columns[self.source.columns.index(name)]
            columns[name] = [cells[r] for r in good] if wrong else cells
        columns |= {name: found[good, j] for j, name in enumerate(self.names)}
        columns |= {name: [values[r] for r in good] for name, values in more.items()}
        line = (lambda r: batch.lines[r]) if batch.lines else (lambda r: "")
        bad = [[r + first, line(r), wrong[r], *(column[r] for column in batch.columns)] for r in sorted(wrong)]
        return columns, bad

    def _by_model(self, states: np.ndarray, wrong: dict[int, str]) -> tuple[np.ndarray, dict[str, list[Any]]]:
        found, contradiction = self.model.answers_of_states(states)
        for r in np.flatnonzero(contradiction >= 0).tolist():
            wrong[r] = no_state_left(self.model.net.names[contradiction[r]])
        unseen = self.model.unseen(np.delete(states, list(wrong), axis=0))
        self.doubtful += int(unseen.any(axis=1).sum())
        self.unseen.update(np.flatnonzero(unseen.any(axis=0)).tolist())
        return (found if self.nodes == list(range(len(self.model.net))) else found[:, self.model.slots(self.nodes)]), {}

    def _one_by_one(self, states: np.ndarray, wrong: dict[int, str]) -> tuple[np.ndarray, dict[str, list[Any]]]:
        net = self.model.net
        targets = [net.names[i] for i in self.nodes]
        found = np.zeros((len(states), len(self.names)), dtype=np.float32)
        more: dict[str, list[Any]] = {"method": [""] * len(states), "status": [""] * len(states), "largest_error": [0.0] * len(states)}
        for r in range(len(states)):
            if r in wrong:
                continue
            evidence = {net.names[i]: net.variables[i].states[states[r, i]] for i in np.flatnonzero(states[r] >= 0)}
            try:
                post = self.model.query(evidence, targets)
            except UnimargError as e:
                wrong[r] = str(e)
                continue
            found[r] = np.concatenate(post.probabilities)
            more["method"][r], more["status"][r] = post.method, post.status
            more["largest_error"][r] = max(float(e.max()) for e in post.std_errors)
        return found, more


def _check(net: Network, columns: Sequence[str], targets: Sequence[str] | None, method: str, keep: Sequence[str]) -> list[int]:
    """The nodes of the targets, if all names make sense."""
    if method not in METHODS:
        raise UsageError(f"a table is scored by one of the methods {', '.join(METHODS)}, not {method!r}")
    for name in (targets, keep):
        if isinstance(name, str):
            raise UsageError(f"give a list of names, not the string {name!r}")
    for name in columns:
        if columns.count(name) > 1:
            raise UsageError(f"column {name!r} is there twice")
        if name not in net.index and name not in keep:
            raise UsageError(
                f"column {name!r} is no variable of the network; {closest(name, net.names)} (keep, or --keep, passes a column on)"
            )
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


def _digest(model: Marginalizer) -> str:
    import jax

    total = hashlib.sha256(repr((model.net.names, model.recipe)).encode())
    for array in jax.tree.leaves((model.trunk, model.priors)):
        total.update(np.asarray(array).tobytes())
    return total.hexdigest()
