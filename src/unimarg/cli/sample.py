"""``unimarg sample``: samples as CSV."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unimarg.cli.common import (
    CaseOption,
    EvidenceOption,
    NetworkArgument,
    SeedOption,
    TargetOption,
    app,
    findings_of,
    network_of,
    variables_of,
)

if TYPE_CHECKING:
    from unimarg.network import Network


@app.command()
def sample(
    network: NetworkArgument,
    n: Annotated[int, typer.Option("-n", "--samples", help="How many samples.")] = 1000,
    seed: SeedOption = 0,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="A CSV file, also .csv.gz; standard output if not given.")] = None,
    indices: Annotated[bool, typer.Option("--indices", help="Write state numbers instead of labels.")] = False,
    evidence: EvidenceOption = None,
    case: CaseOption = None,
    target: TargetOption = None,
) -> None:
    """Draw samples as CSV, one column for each variable: of the network, or of the posterior given evidence.

    Without evidence, memory does not grow with their number.

    Example: unimarg sample asia -n 1000000 -o asia.csv
    """
    import contextlib

    from unimarg.compiled import sample_chunks
    from unimarg.formats.files import check_output, replacing

    if output is not None:
        check_output(output, "a table of samples", (".csv", ".csv.gz"), stream=True)
    net = network_of(network)
    findings = findings_of(net, case, evidence or [])
    columns = net.find_all(variables_of(net, target or []) or None)
    chunks = _posterior_chunks(net, findings, n, seed) if findings else sample_chunks(net, n, seed)
    with contextlib.ExitStack() as stack:
        out = sys.stdout.buffer if output is None else stack.enter_context(replacing(str(output)))
        advance = stack.enter_context(_progress(n, "sampling", show=output is not None))
        out.write(_csv_line([net.names[i] for i in columns]).encode())
        for piece in chunks:
            for text in _csv_rows(net, columns, piece, indices):
                out.write(text.encode())
            advance(len(piece))


def _posterior_chunks(net: Network, findings: dict[str, Any], n: int, seed: int) -> list[Any]:
    """The one piece that samples of a posterior come in."""
    import numpy as np

    from unimarg import terminal
    from unimarg.joint_posterior import sample_posterior
    from unimarg.query import only_question

    only_question(net, None)
    with terminal.waiting(terminal.PREPARING):
        frame = sample_posterior(net, findings, n, seed=seed)
    print(f"unimarg: {frame.attrs['draws']} draws, worth {frame.attrs['ess']:.0f}, by {frame.attrs['method']}", file=sys.stderr)
    numbers = [{state: k for k, state in enumerate(v.states)} for v in net.variables]
    return [np.array([frame[v.name].map(of).to_numpy() for v, of in zip(net.variables, numbers, strict=True)], dtype=int).T]


def _csv_line(cells: Sequence[str]) -> str:
    import csv

    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()


def _csv_rows(net: Network, columns: Sequence[int], states: Any, indices: bool) -> Iterator[str]:
    import numpy as np

    labels = [[str(k) for k in range(v.card)] if indices else [_csv_line([s])[:-1] for s in v.states] for v in net.variables]
    written = [(i, np.array(labels[i], dtype=object)) for i in columns]
    for part in np.array_split(states, max(1, states.size // 1_000_000)):
        cells = [names[part[:, i]] for i, names in written]
        yield "".join(",".join(row) + "\n" for row in zip(*cells, strict=True))


def _progress(total: int, what: str, show: bool) -> Any:
    """A context whose value takes steps; a bar on a terminal only."""
    import contextlib

    @contextlib.contextmanager
    def bar() -> Any:
        if not (show and sys.stderr.isatty()):
            yield lambda steps: None
            return
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True)) as progress:
            task = progress.add_task(what, total=total)
            yield lambda steps: progress.advance(task, steps)

    return bar()
