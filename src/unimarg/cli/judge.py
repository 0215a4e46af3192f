"""``unimarg evaluate`` and ``unimarg reproduce``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unimarg.cli.common import JsonOption, ModelArgument, SeedOption, app, finite, model_of, network_of
from unimarg.cli.query import StructureOption
from unimarg.errors import UsageError, closest

if TYPE_CHECKING:
    import pandas as pd

FamilyOption = Annotated[
    list[str] | None, typer.Option("-f", "--family", help="Evidence: random (if not given), uniform, leaves, clinical. Repeatable.")
]


@app.command()
def evaluate(
    network: ModelArgument,
    method: Annotated[
        list[str] | None,
        typer.Option("-m", "--method", help="As of query, and hybrid:BETA; all that there are but exact if not given. Repeatable."),
    ] = None,
    family: FamilyOption = None,
    sets: Annotated[int, typer.Option(help="Evidence sets of each family.")] = 50,
    seed: Annotated[int, typer.Option(help="The same seed gives the same evidence sets and answers.")] = 4242,
    samples: Annotated[int, typer.Option(help="Samples of each answer.")] = 1 << 16,
    target_error: Annotated[float | None, typer.Option(help="Stop an answer when its largest standard error is below.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Stop an answer after this time.")] = None,
    structure: StructureOption = True,
    reference_samples: Annotated[int, typer.Option(help="Samples of a reference where exact inference is not quick.")] = 1 << 22,
    reference_error: Annotated[float | None, typer.Option(help="Stop a reference when its largest standard error is below.")] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="A CSV file, a row for each answer; those in it already are not computed again.")
    ] = None,
    markdown: Annotated[Path | None, typer.Option("--markdown", help="Write the summary as a Markdown table too: .md.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw the errors of every set too: .png, .svg or .pdf.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Judge methods side by side on evidence sets, against references whose own error is shown.

    Of every metric the mean over the sets, its 95% interval, the median and the worst set.

    Example: unimarg evaluate alarm -f random -f leaves --sets 50 -o alarm.csv
    """
    from unimarg import comparison, terminal
    from unimarg.formats.files import check_output, write_bytes
    from unimarg.plots import check_path, save_comparison

    if plot is not None:
        check_path(plot)
    if output is not None:
        check_output(output, "a table of answers", (".csv",))
    if markdown is not None:
        check_output(markdown, "a summary", (".md", ".markdown", ".txt"), stream=True)
    source = model_of(network) or network_of(network)
    with terminal.rows_bar() as progress:
        table = comparison.evaluate(
            source,
            method or None,
            family or ("random",),
            sets,
            seed,
            file=output,
            reference_samples=reference_samples,
            reference_error=reference_error,
            progress=progress,
            samples=samples,
            target_error=target_error,
            seconds=seconds,
            structure=structure,
        )
    if markdown is not None:
        write_bytes(str(markdown), comparison.markdown(table).encode())
    if plot is not None:
        save_comparison(table, plot)
    _show_comparison(table, as_json)


def _show_comparison(table: pd.DataFrame, as_json: bool) -> None:
    from unimarg import comparison, terminal

    found, remarks = comparison.summary(table), list(comparison.remarks(table))
    if not as_json:
        terminal.console().print(terminal.summary(found))
        return terminal.console().print(*remarks, sep="\n", markup=False)
    rows = [finite(row) for row in found.to_dict("records")]
    return print(json.dumps({"summary": rows, "remarks": remarks}, indent=2))


EXPERIMENTS = ("table1", "figure1", "table2", "appendix-b")


@app.command()
def reproduce(
    experiment: Annotated[str, typer.Argument(metavar="EXPERIMENT", help="table1, figure1, table2 or appendix-b.")],
    quick: Annotated[bool, typer.Option("--quick", help="The same on a small network: two cores, less than two minutes.")] = False,
    out: Annotated[Path, typer.Option("--out", help="Folder for tables, pictures, models and references; what is there is used.")] = Path(
        "reproduced"
    ),
    references: Annotated[
        Path | None, typer.Option("--references", help="An .npz with evidence, truth and std_error, instead of references made here.")
    ] = None,
    reference_samples: Annotated[int, typer.Option(help="Samples of a reference where exact inference is not quick.")] = 1 << 22,
    without: Annotated[
        list[str] | None, typer.Option("--without", help="A proposal to leave out of figure1 and table2, such as SUM-IS. Repeatable.")
    ] = None,
    seed: SeedOption = 0,
) -> None:
    """Run an experiment of the paper (Douglas et al. 2017) and put its figures beside ours. In full, this wants a GPU.

    Example: unimarg reproduce table2 --quick
    """
    if experiment not in EXPERIMENTS:
        raise UsageError(f"there is no experiment {experiment!r}; {closest(experiment, EXPERIMENTS)}")
    from importlib import import_module

    from unimarg import terminal
    from unimarg.reproduce.setting import Setting

    with terminal.status() as say:
        setting = Setting(out, quick, seed, references, reference_samples, tuple(without or ()), say)
        text = import_module(f"unimarg.reproduce.{experiment.replace('-', '_')}").reproduce(setting)
    print(text)
