"""The command line: thin functions over the library, one for each verb.

A user's mistake ends with one sentence on standard error and exit code 2, never with a traceback.
"""

from __future__ import annotations

import io
import json
import math
import sys
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unimarg.errors import EvidenceError, UnimargError, UsageError, closest

if TYPE_CHECKING:
    import pandas as pd

    from unimarg.marginalizer import Marginalizer
    from unimarg.network import Network

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]}
)

NetworkArgument = Annotated[str, typer.Argument(metavar="NETWORK", help="A network file, or the name of an example: asia, alarm, clinic.")]
ModelArgument = Annotated[str, typer.Argument(metavar="NETWORK", help="A trained model (.um), a network file, or the name of an example.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]
EvidenceOption = Annotated[
    list[str] | None,
    typer.Option(
        "-e",
        "--evidence",
        metavar="NAME=STATE",
        help="A finding, or a likelihood: NAME=yes:0.9,no:0.2 (0 if left out). Repeatable.",
    ),
]
CaseOption = Annotated[Path | None, typer.Option("--case", help="A JSON file with evidence as an object.")]
SeedOption = Annotated[int, typer.Option(help="The same seed gives the same answer.")]


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point of ``unimarg``."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show is no reason to fail
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default", UserWarning)
            warnings.showwarning = _warn
            app(arguments)
    except UnimargError as e:
        _fail(str(e))
    except BrokenPipeError:
        sys.stderr.close()  # the reader of a pipe has gone: nothing to say
        sys.exit(1)
    except OSError as e:
        _fail(f"{e.filename}: {e.strerror}" if e.filename else str(e))


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    print(f"unimarg: note: {message}", file=sys.stderr)


def _fail(message: str) -> None:
    print(f"unimarg: {message}", file=sys.stderr)
    sys.exit(2)


@app.callback()
def _root() -> None:
    """Inference in large Bayesian networks: fast, and with a number that says how far to trust it."""


@app.command()
def info(network: ModelArgument, as_json: JsonOption = False) -> None:
    """Describe a network or a trained model.

    Example: unimarg info alarm
    """
    model = _model(network)
    facts = _facts(_network(network)) if model is None else _facts(model.net) | _model_facts(model)
    if as_json:
        return print(json.dumps(facts, indent=2))
    from unimarg import terminal

    terminal.console().print(terminal.columns((name.replace("_", " "), _fact(value)) for name, value in facts.items() if value != {}))
    return None


def _fact(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} ({v})" for k, v in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)


def _facts(net: Network) -> dict[str, Any]:
    from unimarg.network import NoisyMax

    groups: dict[str, int] = {}
    for v in net.variables:
        if v.group:
            groups[v.group] = groups.get(v.group, 0) + 1
    return {
        "name": net.name,
        "variables": len(net),
        "arcs": net.arc_count,
        "parameters": net.parameter_count,
        "noisy_max_nodes": sum(isinstance(m, NoisyMax) for m in net.mechanisms),
        "most_parents": max(len(pa) for pa in net.parents),
        "most_states": int(net.cards.max()),
        "levels": int(net.levels.max()) + 1,
        "groups": groups,
    }


def _model_facts(model: Marginalizer) -> dict[str, Any]:
    import jax

    architecture, history = model.recipe.architecture, model.history
    return {
        "preset": model.recipe.preset,
        "hidden": " x ".join(map(str, architecture.hidden)) + (" (residual)" if architecture.residual else ""),
        "heads": ", ".join(architecture.heads),
        "student_units": model.recipe.student,
        "weights": sum(a.size for a in jax.tree.leaves((model.trunk, model.student))),
        "encoding": model.recipe.encoding,
        "steps": history.get("steps"),
        "training_samples": history.get("samples"),
        "training_seconds": history.get("seconds"),
        "loss": history.get("loss"),
        **({"held_out_error": history["held_out"][-1][1]} if history.get("held_out") else {}),
        "seed": history.get("seed"),
        "finished": history.get("steps") == history.get("planned_steps"),
    }


@app.command()
def convert(
    source: NetworkArgument,
    target: Annotated[Path, typer.Argument(help="The file to write: .bif .xmlbif .net .uai .xdsl, each also with .gz.")],
    as_json: JsonOption = False,
) -> None:
    """Read a network in one format and write it in another.

    Example: unimarg convert alarm.bif alarm.xdsl
    """
    from unimarg.formats import save

    net = _network(source)
    save(net, target)
    print(
        json.dumps({"file": str(target), **_facts(net)}, indent=2) if as_json else f"{target}: {len(net)} variables, {net.arc_count} arcs"
    )


@app.command()
def sample(
    network: NetworkArgument,
    n: Annotated[int, typer.Option("-n", "--samples", help="How many samples.")] = 1000,
    seed: SeedOption = 0,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="A CSV file, also .csv.gz; standard output if not given.")] = None,
    indices: Annotated[bool, typer.Option("--indices", help="Write state numbers instead of labels.")] = False,
    evidence: EvidenceOption = None,
    case: CaseOption = None,
) -> None:
    """Draw samples as CSV, one column for each variable: of the network, or of the posterior given evidence.

    Without evidence, memory does not grow with their number.

    Example: unimarg sample asia -n 1000000 -o asia.csv
    """
    import contextlib

    from unimarg.compiled import sample_chunks
    from unimarg.formats.files import replacing

    net = _network(network)
    findings = _findings(net, case, evidence or [])
    chunks = _posterior_chunks(net, findings, n, seed) if findings else sample_chunks(net, n, seed)
    with contextlib.ExitStack() as stack:
        out = sys.stdout.buffer if output is None else stack.enter_context(replacing(str(output)))
        advance = stack.enter_context(_progress(n, "sampling", show=output is not None))
        out.write(_csv_line(net.names).encode())
        for piece in chunks:
            for text in _csv_rows(net, piece, indices):
                out.write(text.encode())
            advance(len(piece))


def _posterior_chunks(net: Network, findings: dict[str, Any], n: int, seed: int) -> list[Any]:
    """The one piece that samples of a posterior come in."""
    import numpy as np

    from unimarg.joint_posterior import sample_posterior

    frame = sample_posterior(net, findings, n, seed=seed)
    print(f"unimarg: {frame.attrs['draws']} draws, worth {frame.attrs['ess']:.0f}, by {frame.attrs['method']}", file=sys.stderr)
    numbers = [{state: k for k, state in enumerate(v.states)} for v in net.variables]
    return [np.array([frame[v.name].map(of).to_numpy() for v, of in zip(net.variables, numbers, strict=True)], dtype=int).T]


def _csv_line(cells: Sequence[str]) -> str:
    import csv

    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()


def _csv_rows(net: Network, states: Any, indices: bool) -> Iterator[str]:
    import numpy as np

    labels = [[str(k) for k in range(v.card)] if indices else [_csv_line([s])[:-1] for s in v.states] for v in net.variables]
    columns = [np.array(names, dtype=object) for names in labels]
    for part in np.array_split(states, max(1, states.size // 1_000_000)):
        cells = [names[part[:, i]] for i, names in enumerate(columns)]
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


@app.command()
def train(
    network: NetworkArgument,
    output: Annotated[Path, typer.Option("-o", "--output", help="The model to write, a .um file.")],
    preset: Annotated[str, typer.Option(help="default, small (for high query rates) or paper.")] = "default",
    budget: Annotated[str, typer.Option(help="A time, everything included, or a number of steps: 60s, 10min, '20000 steps'.")] = "60s",
    seed: SeedOption = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the unfinished run in the output file.")] = False,
    observable: Annotated[
        list[str] | None, typer.Option("--observable", help="A variable that can be observed; any if not given. Repeatable.")
    ] = None,
    held_out: Annotated[
        int, typer.Option("--held-out", metavar="SETS", help="Evidence sets with exact answers on which progress shows the error.")
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Train a Universal Marginalizer. Ctrl-C saves and stops; --resume goes on.

    Example: unimarg train alarm -o alarm.um --budget 2min
    """
    import signal

    from unimarg import masking, terminal
    from unimarg.trainer import train

    if output.suffix.lower() != ".um":
        raise UsageError(f"a model is written to a .um file, not to {output.name!r}")
    net = _network(network)
    mask = masking.observable(net, observable) if observable else None
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite kill is a Ctrl-C
    with terminal.training_bar() as progress:
        model = train(net, preset, budget, seed, mask=mask, checkpoint=output, resume=resume, progress=progress, held_out=held_out)
    facts = _model_facts(model)
    if as_json:
        print(json.dumps({"file": str(output), **facts}, indent=2))
    else:
        print(f"{output}: {facts['weights']:,} weights, {facts['steps']:,} steps in {facts['training_seconds']:.0f} s")
    if not facts["finished"]:
        print(f"unimarg: stopped early; go on with --resume -o {output}", file=sys.stderr)
        sys.exit(130)


@app.command()
def query(
    network: ModelArgument,
    evidence: EvidenceOption = None,
    case: CaseOption = None,
    target: Annotated[list[str] | None, typer.Option("-t", "--target", help="A variable to report; all if not given. Repeatable.")] = None,
    method: Annotated[
        str,
        typer.Option(
            help="auto, exact, prior, lookahead, adaptive; of a trained model also um (one pass), independent, hybrid, message, sequential."
        ),
    ] = "auto",
    samples: Annotated[int | None, typer.Option(help="Draw so many, whatever the error, unless a target error is given too.")] = None,
    target_error: Annotated[
        float | None, typer.Option(help="Stop when the largest standard error is below; 0.005 if neither this nor --samples is given.")
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="Stop drawing after this time.")] = None,
    beta: Annotated[str | None, typer.Option(help="Of hybrid: how much of the network, 0 to 1, or 'fit' to try a few.")] = None,
    structure: Annotated[
        bool, typer.Option("--structure/--no-structure", help="Whether nodes without findings below keep their tables; the paper: no.")
    ] = True,
    seed: SeedOption = 0,
    memory: Annotated[float, typer.Option(help="GiB that --method exact may use.")] = 4.0,
    joint: Annotated[
        list[str] | None, typer.Option("--joint", metavar="NAME", help="Report combinations of the variables named so. Repeatable.")
    ] = None,
    most_probable: Annotated[bool, typer.Option("--most-probable", help="Report the most probable state of all variables.")] = False,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw the marginals too: .png, .svg or .pdf.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Posterior marginals given evidence, with their errors and how far to trust them. Exit code 1 where they are not to be trusted.

    Example: unimarg query asia -e dysp=yes -e smoke=no -t lung
    """
    model = _model(network)
    net = _network(network) if model is None else model.net
    if method == "um" and model is None:
        raise UsageError(f"method 'um' needs a trained model, which {network} is not; make one with: unimarg train {network} -o model.um")
    if not memory > 0:
        raise UsageError(f"memory must be a positive number of GiB, not {memory}")
    if plot is not None:
        _check_plot(plot, alone=not (joint or most_probable))
    findings = _findings(net, case, evidence or [])
    if most_probable:
        return _query_most_probable(model or net, findings, seed, as_json)
    if target_error is None and samples is None:
        target_error = 0.005
    options = {
        "samples": samples,
        "target_error": target_error,
        "seconds": seconds,
        "beta": _beta(beta),
        "structure": structure,
        "seed": seed,
    }
    if joint:
        return _query_joint(model or net, findings, joint, method, options, as_json)
    return _query_marginals(model or net, findings, target, method, options, memory, plot, as_json)


def _check_plot(path: Path, alone: bool) -> None:
    from unimarg.plots import check_path

    if not alone:
        raise UsageError("--plot draws marginals: it does not go with --joint or --most-probable")
    check_path(path)


def _beta(text: str | None) -> str | float | None:
    if text is None or text == "fit":
        return text
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"beta must be a number or 'fit', not {text!r}") from None


def _query_marginals(
    source: Network | Marginalizer,
    findings: dict[str, Any],
    target: list[str] | None,
    method: str,
    options: dict[str, Any],
    memory: float,
    plot: Path | None,
    as_json: bool,
) -> None:
    from unimarg import terminal
    from unimarg.marginalizer import Marginalizer

    if method == "exact":
        from unimarg.exact import exact

        net = source.net if isinstance(source, Marginalizer) else source
        post = exact(net, findings, target or None, memory=memory * 2**30)
    else:
        from unimarg.query import infer

        ask: Any = source.query if isinstance(source, Marginalizer) else partial(infer, source)
        with terminal.sampling_bar(options["samples"], options["seconds"]) as progress:
            post = ask(findings, target or None, method=method, progress=progress, **options)
    shown = [name for name in post if target or name not in findings] or list(post)
    if plot is not None:
        from unimarg.plots import save_posterior

        save_posterior(post, shown, plot)
    if as_json:
        print(json.dumps(post.to_dict() | {"evidence": findings, "seed": options["seed"]}, indent=2))
    else:
        terminal.console().print(terminal.bars(post, shown), terminal.trust(post), sep="\n")
    _distrust(post.status)


def _distrust(status: str) -> None:
    if status == "failed":
        raise typer.Exit(1)


def _query_joint(
    source: Network | Marginalizer, findings: dict[str, Any], names: list[str], method: str, options: dict[str, Any], as_json: bool
) -> None:
    from unimarg import terminal
    from unimarg.joint_posterior import joint
    from unimarg.marginalizer import Marginalizer

    ask: Any = source.joint if isinstance(source, Marginalizer) else partial(joint, source)
    with terminal.sampling_bar(options["samples"], options["seconds"]) as progress:
        frame = ask(findings, names, method=method, progress=progress, **options)
    facts = {str(k): v if not isinstance(v, float) or math.isfinite(v) else None for k, v in frame.attrs.items()}
    if as_json:
        print(json.dumps({**facts, "combinations": frame.to_dict("records"), "evidence": findings}, indent=2, allow_nan=False))
    else:
        terminal.console().print(terminal.combinations(frame), terminal.trust_line(frame.attrs), sep="\n")
    _distrust(str(frame.attrs["status"]))


def _query_most_probable(source: Network | Marginalizer, findings: dict[str, Any], seed: int, as_json: bool) -> None:
    from unimarg import terminal
    from unimarg.explanation import most_probable
    from unimarg.marginalizer import Marginalizer

    found = source.most_probable(findings, seed) if isinstance(source, Marginalizer) else most_probable(source, findings, seed)
    if as_json:
        answer = {"assignment": found.assignment, "log_probability": found.log_probability, "exact": found.exact, "seconds": found.seconds}
        return print(json.dumps(answer | {"message": found.message, "evidence": findings}, indent=2))
    rows = ((name, state) for name, state in found.assignment.items() if name not in findings)
    terminal.console().print(terminal.columns(rows))
    trust = f"{found.message}, log P(state, evidence) = {found.log_probability:.6g}, {found.seconds * 1000:.0f} ms"
    return terminal.console().print(f"[dim]{trust}[/dim]")


def _findings(net: Network, case: Path | None, evidence: Sequence[str]) -> dict[str, Any]:
    """What the case file and the options say; a case may be amended, but two options on one variable are a mistake."""
    given: dict[str, Any] = {}
    for name, value in (_finding(net, text) for text in evidence):
        if given.setdefault(name, value) != value:
            raise EvidenceError(f"two findings on {name!r}: {given[name]!r} and {value!r}")
    return _case(case) | given


def _case(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        case = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as e:
        raise EvidenceError(f"{path} is not JSON: {e}") from None
    if not isinstance(case, dict):
        raise EvidenceError(f"{path} must hold one JSON object, from variable to state")
    return case


def _finding(net: Network, text: str) -> tuple[str, Any]:
    """NAME=STATE or NAME=state:likelihood,...; a name or a label may hold '=', ':' or ',' itself."""
    cuts = [i for i, c in enumerate(text) if c == "="]
    if not cuts:
        raise EvidenceError(f"evidence is given as NAME=STATE, not {text!r}")
    cut = next((i for i in cuts if text[:i] in net.index), cuts[0])
    name, value = text[:cut], text[cut + 1 :]
    if name in net.index and value in net.variables[net.index[name]].states:
        return name, value
    if ":" not in value:
        return name, int(value) if value.isdecimal() and len(value) < 10 else value
    likelihood: dict[str, float] = {}
    for part in value.split(","):
        state, _, number = part.rpartition(":")
        try:
            likelihood[state] = float(number)
        except ValueError:
            raise EvidenceError(f"the likelihood of {name!r} is given as state:number,state:number, not {value!r}") from None
    return name, likelihood


@app.command()
def evaluate(
    network: ModelArgument,
    method: Annotated[
        list[str] | None,
        typer.Option("-m", "--method", help="As of query, and hybrid:BETA; all that there are but exact if not given. Repeatable."),
    ] = None,
    family: Annotated[
        list[str] | None, typer.Option("-f", "--family", help="Evidence: random (if not given), uniform, leaves, clinical. Repeatable.")
    ] = None,
    sets: Annotated[int, typer.Option(help="Evidence sets of each family.")] = 50,
    seed: Annotated[int, typer.Option(help="The same seed gives the same evidence sets and answers.")] = 4242,
    samples: Annotated[int, typer.Option(help="Samples of each answer.")] = 1 << 16,
    target_error: Annotated[float | None, typer.Option(help="Stop an answer when its largest standard error is below.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Stop an answer after this time.")] = None,
    structure: Annotated[
        bool, typer.Option("--structure/--no-structure", help="Whether nodes without findings below keep their tables; the paper: no.")
    ] = True,
    reference_samples: Annotated[int, typer.Option(help="Samples of a reference where exact inference is not quick.")] = 1 << 22,
    reference_error: Annotated[float | None, typer.Option(help="Stop a reference when its largest standard error is below.")] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="A CSV file, a row for each answer; those in it already are not computed again.")
    ] = None,
    markdown: Annotated[Path | None, typer.Option("--markdown", help="Write the summary as a Markdown table too.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw the errors of every set too: .png, .svg or .pdf.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Judge methods side by side on evidence sets, against references whose own error is shown: mean, median and worst set.

    Example: unimarg evaluate alarm -f random -f leaves --sets 50 -o alarm.csv
    """
    from unimarg import comparison, terminal
    from unimarg.formats.files import write_bytes
    from unimarg.plots import check_path, save_comparison

    if plot is not None:
        check_path(plot)
    source = _model(network) or _network(network)
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
    finite = [{k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()} for row in found.to_dict("records")]
    return print(json.dumps({"summary": finite, "remarks": remarks}, indent=2))


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
        setting = Setting(out, quick, seed, references, reference_samples, say)
        text = import_module(f"unimarg.reproduce.{experiment.replace('-', '_')}").reproduce(setting)
    print(text)


@app.command()
def demo() -> None:
    """A minute with unimarg, on the networks that come with it."""
    from unimarg.demo import run

    run()


def _model(source: str) -> Marginalizer | None:
    """The trained model in a .um file, else None."""
    if not source.lower().endswith(".um"):
        return None
    from unimarg.checkpoint import load_model

    return load_model(source)


def _network(source: str) -> Network:
    from unimarg.examples import example, example_names
    from unimarg.formats import load

    if source in example_names() and not Path(source).exists():
        return example(source)
    if source and Path(source).is_dir():
        raise UsageError(f"{source} is a folder, not a network file")
    if not source or not (Path(source).suffix or Path(source).exists()):
        raise UsageError(f"there is neither a file nor an example {source!r}; {closest(source, example_names())}")
    return load(source)
