"""``unimarg query``: marginals, combinations, the most probable state."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unimarg.cli.common import (
    CaseOption,
    EvidenceOption,
    JsonOption,
    ModelArgument,
    SeedOption,
    app,
    findings_of,
    finite,
    model_of,
    network_of,
)
from unimarg.errors import UsageError

if TYPE_CHECKING:
    from unimarg.marginalizer import Marginalizer
    from unimarg.network import Network


METHODS = "auto, exact, prior, lookahead, adaptive; of a trained model also um (one pass), independent, hybrid, message, sequential."
TargetOption = Annotated[list[str] | None, typer.Option("-t", "--target", help="A variable to report; all if not given. Repeatable.")]
MethodOption = Annotated[str, typer.Option(help=METHODS)]
SamplesOption = Annotated[int | None, typer.Option(help="Draw so many, whatever the error, unless a target error is given too.")]
TargetErrorOption = Annotated[
    float | None, typer.Option(help="Stop when the largest standard error is below; 0.005 if neither this nor --samples is given.")
]
SecondsOption = Annotated[float | None, typer.Option(help="Stop drawing after this time.")]
BetaOption = Annotated[str | None, typer.Option(help="Of hybrid: how much of the network, 0 to 1, or 'fit' to try a few.")]
StructureOption = Annotated[
    bool, typer.Option("--structure/--no-structure", help="Whether nodes without findings below keep their tables; the paper: no.")
]
MemoryOption = Annotated[float, typer.Option(help="GiB that --method exact, and --explain without a model, may use.")]
JointOption = Annotated[
    list[str] | None, typer.Option("--joint", metavar="NAME", help="Report combinations of the variables named so. Repeatable.")
]
MostProbableOption = Annotated[bool, typer.Option("--most-probable", help="Report the most probable state of all variables.")]
ExplainOption = Annotated[
    str | None,
    typer.Option(
        "--explain",
        metavar="NAME[=STATE]",
        help="Report which findings moved this variable, or this state of it, else the one moved most: one pass of a model, or exactly.",
    ),
]
PlotOption = Annotated[Path | None, typer.Option("--plot", help="Draw the marginals too: .png, .svg or .pdf.")]


@app.command()
def query(
    network: ModelArgument,
    evidence: EvidenceOption = None,
    case: CaseOption = None,
    target: TargetOption = None,
    method: MethodOption = "auto",
    samples: SamplesOption = None,
    target_error: TargetErrorOption = None,
    seconds: SecondsOption = None,
    beta: BetaOption = None,
    structure: StructureOption = True,
    seed: SeedOption = 0,
    memory: MemoryOption = 4.0,
    joint: JointOption = None,
    most_probable: MostProbableOption = False,
    explain: ExplainOption = None,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Posterior marginals given evidence, with their errors and how far to trust them. Exit code 1 where they are not to be trusted.

    Example: unimarg query asia -e dysp=yes -e smoke=no -t lung
    """
    model = model_of(network)
    net = network_of(network) if model is None else model.net
    if method == "um" and model is None:
        raise UsageError(f"method 'um' needs a trained model, which {network} is not; make one with: unimarg train {network} -o model.um")
    if not memory > 0:
        raise UsageError(f"memory must be a positive number of GiB, not {memory}")
    if sum(map(bool, (joint, most_probable, explain))) > 1:
        raise UsageError("--joint, --most-probable and --explain are different questions: ask one at a time")
    if target and (joint or most_probable or explain):
        raise UsageError("-t asks for marginals: it does not go with --joint, --most-probable or --explain")
    if plot is not None:
        _check_plot(plot, alone=not (joint or most_probable or explain))
    findings = findings_of(net, case, evidence or [])
    if explain:
        if method not in ("auto", "um" if model else "exact"):
            raise UsageError(f"--explain goes by one pass of a model, or exactly where a network is given: not by --method {method}")
        return _query_explain(model or net, findings, explain, memory, as_json)
    if method == "auto":
        from unimarg.query import only_question

        only_question(net, model)
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
        "memory": memory * 2**30 if method == "exact" else None,
    }
    if joint:
        return _query_joint(model or net, findings, joint, method, options, as_json)
    return _query_marginals(model or net, findings, target, method, options, plot, as_json)


def _check_plot(path: Path, alone: bool) -> None:
    from unimarg.plots import check_path

    if not alone:
        raise UsageError("--plot draws marginals: it does not go with --joint, --most-probable or --explain")
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
    plot: Path | None,
    as_json: bool,
) -> None:
    from unimarg import terminal
    from unimarg.marginalizer import Marginalizer

    if method == "exact":
        from unimarg.exact import exact

        net = source.net if isinstance(source, Marginalizer) else source
        post = exact(net, findings, target or None, memory=options["memory"])
    else:
        from unimarg.inference import infer

        ask: Any = source.query if isinstance(source, Marginalizer) else partial(infer, source)
        with terminal.sampling_bar(options["samples"], options["seconds"]) as progress:
            post = ask(findings, target or None, method=method, progress=progress, **options)
    shown = [name for name in post if target or name not in findings] or list(post)
    if plot is not None:
        from unimarg.plots import save_posterior

        save_posterior(post, shown, plot)
    if as_json:
        print(json.dumps(post.to_dict() | {"evidence": findings, "seed": options["seed"]}, indent=2, allow_nan=False))
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
    if as_json:
        combinations = [finite(row) for row in frame.to_dict("records")]
        print(json.dumps({**finite(frame.attrs), "combinations": combinations, "evidence": findings}, indent=2, allow_nan=False))
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


def _query_explain(source: Network | Marginalizer, findings: dict[str, Any], name: str, memory: float, as_json: bool) -> None:
    from unimarg import terminal
    from unimarg.influence import explain
    from unimarg.marginalizer import Marginalizer

    by_model = isinstance(source, Marginalizer)
    names = source.net.names if by_model else source.names
    target, _, state = (name, "", "") if name in names else name.partition("=")
    table = (
        source.explain(findings, target, state or None)
        if by_model
        else explain(source, findings, target, state or None, memory=memory * 2**30)
    )
    if as_json:
        rows = [finite(row) for row in table.to_dict("records")]
        how = "um" if by_model else "exact"
        return print(json.dumps({**table.attrs, "method": how, "findings": rows, "evidence": findings}, indent=2))
    terminal.console().print(terminal.influence(table))
    return terminal.console().print(f"[dim]{'one pass of the model: approximate' if by_model else 'exact'}[/dim]")
