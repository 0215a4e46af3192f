"""``unimarg score``: the posteriors of every row of a table."""

from __future__ import annotations

import dataclasses
import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unimarg.cli.common import JsonOption, ModelArgument, TargetOption, app, source_of, variables_of
from unimarg.cli.interrupt import keeping

if TYPE_CHECKING:
    from unimarg.bulk.scoring import Scored
    from unimarg.network import Network

FIRST = 1000  # rows
SHOWN = 3  # columns


@app.command()
def score(
    network: ModelArgument,
    rows: Annotated[Path, typer.Argument(help="The table: .csv, .csv.gz or .parquet; a cell names a state, or is empty if unobserved.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write: .csv, .csv.gz or .parquet.")],
    target: TargetOption = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="um: one pass of a trained model for many rows, its default. auto: exact, many rows at once, where that is quick, "
            "else row by row, by sampling with an error; that of a network. exact: what is too expensive is a bad row."
        ),
    ] = None,
    keep: Annotated[list[str] | None, typer.Option("--keep", help="A column to pass on, which need not be a variable. Repeatable.")] = None,
    errors: Annotated[
        Path | None, typer.Option("--errors", help="A CSV file for rows without an answer, and why; without it the first one ends the run.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Posteriors of every row of a table, of any size. After Ctrl-C, or a kill, the same command goes on where it stopped.

    Exit code 1 where every row is bad.

    Examples: unimarg score alarm.um rows.csv -o posteriors.parquet -t HYPOVOLEMIA --errors bad.csv
    unimarg score alarm rows.csv -o posteriors.csv
    """
    from unimarg import terminal
    from unimarg.bulk.parts import any_parts
    from unimarg.bulk.scoring import score

    net, model = source_of(network, method)
    targets = variables_of(net, target) if target else None
    _tell_of_numbers(net, rows)

    def lost() -> str:
        return "interrupted; the same command goes on from here" if any_parts(output) else "interrupted before the first rows were stored"

    with keeping(None, lost, terminated=True), terminal.scoring_bar() as progress:
        done = score(model or net, rows, output, targets, method=method, keep=keep or [], errors=errors, progress=progress)
    if as_json:
        print(json.dumps({"file": str(output), **dataclasses.asdict(done)}, indent=2))
    else:
        _tell(done, output, errors)
    if done.bad and done.bad == done.rows:
        raise typer.Exit(1)


def _tell_of_numbers(net: Network, rows: Path) -> None:
    """As ``query`` does; by the first rows."""
    from unimarg.bulk.source import by_number, open_source

    table = open_source(rows)
    batch = next(table.batches(FIRST, 0), None)
    told = [f"in column {name!r} {number}" for name, number in by_number(net, table.columns, batch).items()] if batch else []
    if told:
        more = f" and {len(told) - SHOWN} more" if len(told) > SHOWN else ""
        warnings.warn(f"states by number, from 0: {', '.join(told[:SHOWN])}{more}", stacklevel=2)


def _tell(done: Scored, output: Path, errors: Path | None) -> None:
    resumed = f", {done.resumed:,} of them before" if done.resumed else ""
    bad = f", {done.bad:,} of them bad, see {errors}" if done.bad else ""
    print(f"{output}: {done.rows:,} row{'s' * (done.rows != 1)}{resumed}{bad}, {done.seconds:.1f} s")
