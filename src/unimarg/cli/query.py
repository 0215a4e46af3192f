"""``unimarg query``: marginals, combinations, the most probable state."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unimarg.cli.common import (
    CaseOption,
    EvidenceOption,
    JsonOption,
    ModelArgument,
    TargetOption,
    app,
    findings_of,
    finite,
    source_of,
    state_named,
    variables_of,
)
from unimarg.cli.interrupt import INTERRUPTED, keeping
from unimarg.errors import UsageError
from unimarg.exact import DEFAULT_MEMORY

if TYPE_CHECKING:
    from unimarg.marginalizer import Marginalizer
    from unimarg.network import Network


METHODS = "auto, exact, prior, lookahead, adaptive; of a trained model also um (one pass), independent, hybrid, message, sequential."
MethodOption = Annotated[str, typer.Option(help=METHODS)]
SamplesOption = Annotated[int | None, typer.Option(help="Draw so many, whatever the error, unless a target error is given too.")]
TargetErrorOption = Annotated[
    float | None, typer.Option(help="Stop when the largest standard error is below; 0.005 if neither this nor --samples is given.")
]
SecondsOption = Annotated[float | None, typer.Option(help="Stop drawing after this time.")]
SeedOption = Annotated[int | None, typer.Option(help="Of what is drawn: the same seed gives the same answer. 0 if not given.")]
BetaOption = Annotated[str | None, typer.Option(help="Of hybrid: how much of the network, 0 to 1, or 'fit' to try a few.")]
StructureOption = Annotated[
    bool, typer.Option("--structure/--no-structure", help="Whether nodes without findings below keep their tables; the paper: no.")
]
MemoryOption = Annotated[float | None, typer.Option(help="GiB that --method exact may use; 4 if not given.")]
JointOption = Annotated[
    list[str] | None, typer.Option("--joint", metavar="NAME", help="Report combinations of the variables named so. Repeatable.")
]
MostProbableOption = Annotated[bool, typer.Option("--most-probable", help="Report the most probable state of all variables.")]
ExplainOption = Annotated[
    str | None,
    typer.Option(
        "--explain",
        metavar="NAME[=STATE]",
        help="Report which findings moved this variable, or this state of it, else the one moved most: one pass of a model, or auto.",
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
    seed: SeedOption = None,
    memory: MemoryOption = None,
    joint: JointOption = None,
    most_probable: MostProbableOption = False,
    explain: ExplainOption = None,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Posterior marginals given evidence, with their errors and how far to trust them. Exit code 1 where they are not to be trusted.

    Ctrl-C ends the sampling: the answer is that of the samples so far, and the exit code 130.

    Example: unimarg query asia -e dysp=yes -e smoke=no -t lung
    """
    net, model = source_of(network, method)
    if memory is not None and not memory > 0:
        raise UsageError(f"memory must be a positive number of GiB, not {memory}")
    if sum(map(bool, (joint, most_probable, explain))) > 1:
        raise UsageError("--joint, --most-probable and --explain are different questions: ask one at a time")
    if target and (joint or most_probable or explain):
        raise UsageError("-t asks for marginals: it does not go with --joint, --most-probable or --explain")
    if plot is not None:
        _check_plot(plot, alone=not (joint or most_probable or explain))
    given = {"samples": samples, "target_error": target_error, "seconds": seconds, "beta": _beta(beta), "seed": seed}
    given |= {"structure": None if structure else False, "memory": None if memory is None else memory * 2**30}
    options = {name: value for name, value in given.items() if value is not None}
    findings = findings_of(net, case, evidence or [])
    if explain:
        if method not in ("auto", "um" if model else "exact"):
            raise UsageError(f"--explain goes by one pass of a model; where a network is given by auto, or exact: not by --method {method}")
        _only("--explain", options, ("seed",) if model else ("seed", "memory"))
        if method == "exact":
            options.setdefault("memory", DEFAULT_MEMORY)
        return _query_explain(model or net, findings, explain, options, as_json)
    if method == "auto":
        from unimarg.query import only_question

        only_question(net, model)
    if most_probable:
        _only("--most-probable", options | ({} if method == "auto" else {"method": method}), ("seed",))
        return _query_most_probable(model or net, findings, seed or 0, as_json)
    if samples is not None:
        options["target_error"] = target_error  # all of them are drawn unless there is one
    if joint:
        return _query_joint(model or net, findings, joint, method, options, as_json)
    return _query_marginals(model or net, findings, variables_of(net, target or []), method, options, plot, as_json)


def _only(question: str, options: Mapping[str, Any], used: Collection[str]) -> None:
    from unimarg.query import Options, is_default

    for name, value in options.items():
        if name not in used and not (name in Options.__dataclass_fields__ and is_default(name, value)):
            raise UsageError(f"--{name.replace('_', '-')} has no effect on {question}: leave it out")


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
    targets: list[str],
    method: str,
    options: dict[str, Any],
    plot: Path | None,
    as_json: bool,
) -> None:
    from unimarg import terminal
    from unimarg.inference import infer
    from unimarg.marginalizer import Marginalizer

    ask: Any = source.query if isinstance(source, Marginalizer) else partial(infer, source)
    with terminal.sampling_bar(options.get("samples"), options.get("seconds")) as show, keeping(stop := _Stop(show)):
        post = ask(findings, targets or None, method=method, progress=stop.progress, **options)
    post = replace(post, message=stop.say(post.samples, post.message))
    shown = [name for name in post if targets or name not in findings] or list(post)
    if plot is not None:
        from unimarg.plots import save_posterior

        save_posterior(post, shown, plot)
    if as_json:
        print(json.dumps(post.to_dict() | {"evidence": findings, "seed": options.get("seed", 0)}, indent=2, allow_nan=False))
    else:
        terminal.console().print(terminal.bars(post, shown), terminal.trust(post), sep="\n")
    stop.exit(post.status)


class _Stop:
    """Ctrl-C ends the sampling with what there is, if there are samples."""

    def __init__(self, show: Callable[[int, float], object] | None):
        self.show, self.drawn, self.stopped = show, 0, False

    def __call__(self) -> bool:
        self.stopped = self.drawn > 0
        return self.stopped

    def progress(self, samples: int, seconds: float) -> bool:
        self.drawn = samples
        if self.show is not None:
            self.show(samples, seconds)
        return self.stopped

    def say(self, samples: int, message: str) -> str:
        told = f"stopped by Ctrl-C after {samples:,} samples" if self.stopped else ""
        return "; ".join(m for m in (told, message) if m)

    def exit(self, status: str) -> None:
        if self.stopped or status == "failed":
            raise typer.Exit(INTERRUPTED if self.stopped else 1)


def _query_joint(
    source: Network | Marginalizer, findings: dict[str, Any], names: list[str], method: str, options: dict[str, Any], as_json: bool
) -> None:
    from unimarg import terminal
    from unimarg.joint_marginals import joint
    from unimarg.marginalizer import Marginalizer

    ask: Any = source.joint if isinstance(source, Marginalizer) else partial(joint, source)
    with terminal.sampling_bar(options.get("samples"), options.get("seconds")) as show, keeping(stop := _Stop(show)):
        frame = ask(findings, names, method=method, progress=stop.progress, **options)
    frame.attrs["message"] = stop.say(frame.attrs["samples"], frame.attrs["message"])
    if as_json:
        combinations = [finite(row) for row in frame.to_dict("records")]
        print(json.dumps({**finite(frame.attrs), "combinations": combinations, "evidence": findings}, indent=2, allow_nan=False))
    else:
        terminal.console().print(terminal.combinations(frame), terminal.trust_line(frame.attrs), sep="\n")
    stop.exit(str(frame.attrs["status"]))


def _query_most_probable(source: Network | Marginalizer, findings: dict[str, Any], seed: int, as_json: bool) -> None:
    from unimarg import terminal
    from unimarg.explanation import most_probable
    from unimarg.marginalizer import Marginalizer

    with terminal.waiting("looking for the most probable state"):
        found = source.most_probable(findings, seed) if isinstance(source, Marginalizer) else most_probable(source, findings, seed)
    if as_json:
        answer = {"assignment": found.assignment, "log_probability": found.log_probability, "exact": found.exact, "seconds": found.seconds}
        return print(json.dumps(answer | {"message": found.message, "evidence": findings}, indent=2))
    rows = ((name, state) for name, state in found.assignment.items() if name not in findings)
    terminal.console().print(terminal.columns(rows))
    trust = f"{found.message}, log P(state, evidence) = {found.log_probability:.6g}, {found.seconds * 1000:.0f} ms"
    return terminal.console().print(f"[dim]{trust}[/dim]")


def _query_explain(source: Network | Marginalizer, findings: dict[str, Any], name: str, options: dict[str, Any], as_json: bool) -> None:
    from unimarg import terminal
    from unimarg.evidence import parse_evidence
    from unimarg.influence import explain
    from unimarg.marginalizer import Marginalizer

    by_model = isinstance(source, Marginalizer)
    net = source.net if by_model else source
    target, _, state = (name, "", "") if name in net.index else name.partition("=")
    ask: Any = source.explain if by_model else partial(explain, source, **options)
    chosen = state_named(net, target, state) if state else None
    with terminal.waiting("leaving out each finding in turn"):
        table = ask(findings, target, chosen)
    message = source.about_one_shot(parse_evidence(source.net, findings)) if by_model else ""
    if as_json:
        rows = [finite(row) for row in table.to_dict("records")]
        return print(json.dumps({**finite(table.attrs), "message": message, "findings": rows, "evidence": findings}, indent=2))
    terminal.console().print(terminal.influence(table))
    error = table.attrs["std_error"]
    how = f"{table.attrs['method']}, standard errors up to {error:.2g}" if error > 0 else table.attrs["method"]
    return terminal.console().print(message or how, style="dim", markup=False)
