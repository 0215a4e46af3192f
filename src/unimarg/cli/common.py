"""What the verbs share: the application, options, and how arguments become networks, models and evidence."""

from __future__ import annotations

import glob
import json
import math
import warnings
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from unimarg.errors import EvidenceError, UsageError, closest

if TYPE_CHECKING:
    from unimarg.marginalizer import Marginalizer
    from unimarg.network import Network


class _Verbs(typer.core.TyperGroup):
    """``-e a=x b=y`` reads like two findings, ``--option a=1 b=2`` like two options: the second one is then told where it belongs."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as e:
            message = getattr(e, "message", "")
            if "unexpected extra argument" in message and "=" in message:
                e.message = message.rstrip(".") + _where_it_belongs(e)  # pyright: ignore[reportAttributeAccessIssue]
            raise


def _where_it_belongs(e: Any) -> str:
    """By the options of the verb that are given as NAME=VALUE."""
    named = [p for p in e.ctx.command.params if (p.metavar or "").startswith("NAME=")]
    if any("-e" not in p.opts for p in named):
        return "; give the option for each"
    return "; give -e for each finding, as in -e NAME=STATE -e NAME=STATE" if named else ""


app = typer.Typer(
    cls=_Verbs,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

NetworkArgument = Annotated[
    str,
    typer.Argument(metavar="NETWORK", help="A network file, a trained model (.um) for its network, or an example: asia, alarm, clinic."),
]
ModelArgument = Annotated[str, typer.Argument(metavar="NETWORK", help="A trained model (.um), a network file, or the name of an example.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]
EvidenceOption = Annotated[
    list[str] | None,
    typer.Option(
        "-e",
        "--evidence",
        metavar="NAME=STATE",
        help="A finding: a state, or its number from 0 where no state is called a number; "
        "or a likelihood: NAME=yes:0.9,no:0.2 (two states or more, 0 for others). Repeatable.",
    ),
]
TargetOption = Annotated[
    list[str] | None, typer.Option("-t", "--target", help="A variable to report, or a group of them; all if not given. Repeatable.")
]
CaseOption = Annotated[Path | None, typer.Option("--case", help="A file with evidence: a JSON object, or UAI evidence (.evid).")]
SeedOption = Annotated[int, typer.Option(help="The same seed gives the same answer.")]


def model_of(source: str) -> Marginalizer | None:
    """The trained model in a .um file, else None."""
    if not source.lower().endswith(".um"):
        return None
    from unimarg.checkpoint import load_model

    return load_model(source)


def network_of(source: str) -> Network:
    """Of a file, of an example, or that of a trained model."""
    from unimarg.examples import example, example_names
    from unimarg.formats import load

    if source in example_names() and not Path(source).exists():
        return example(source)
    if source and Path(source).is_dir():
        raise UsageError(f"{source} is a folder, not a network file")
    if not source or not (Path(source).suffix or Path(source).exists()):
        folder, name = Path(source).parent, glob.escape(Path(source).name)
        there = [str(p) for p in sorted(folder.glob(f"{name}.*"))] if source else []
        raise UsageError(f"there is neither a file nor an example {source!r}; {closest(source, [*there, *example_names()])}")
    model = model_of(source)
    return load(source) if model is None else model.net


def source_of(source: str, method: str | None = None) -> tuple[Network, Marginalizer | None]:
    """The network, and the trained model where it is one, which the method ``um`` needs."""
    model = model_of(source)
    net = network_of(source) if model is None else model.net
    if method == "um" and model is None:
        raise UsageError(f"method 'um' needs a trained model, which {source} is not; make one with: unimarg train {source} -o model.um")
    return net, model


def variables_of(net: Network, given: Iterable[str]) -> list[str]:
    """Names of variables; the name of a group stands for all in it."""
    groups: dict[str, list[str]] = {}
    for v in net.variables:
        groups.setdefault(v.group, []).append(v.name)
    groups.pop("", None)
    out: list[str] = []
    for name in given:
        if name not in net.index and name not in groups:
            several = all(part in net.index or part in groups for part in name.split(","))
            advice = "give the option for each" if several else closest(name, [*net.names, *groups])
            raise UsageError(f"there is neither a variable nor a group {name!r}; {advice}")
        out += [name] if name in net.index else groups[name]
    return list(dict.fromkeys(out))


def findings_of(net: Network, case: Path | None, evidence: Sequence[str]) -> dict[str, Any]:
    """What the case file and the options say; two different findings on one variable are a mistake."""
    from unimarg.evidence import numbered, parse_evidence

    given, by_number = _case(net, case), []
    for text in evidence:
        name, value = _finding(net, text)
        if isinstance(value, str) and not text.rstrip().endswith(value.rstrip()) and not numbered(net.variables[net.index[name]]):
            by_number.append(f"{text} is {value!r}")
        before = given.setdefault(name, value)
        states = [parse_evidence(net, {name: v}).hard for v in (before, value)]  # a case may have a state's number
        if before != value and not states[0] == states[1] != {}:
            raise EvidenceError(f"two findings on {name!r}: {given[name]!r} and {value!r}")
    if by_number:
        warnings.warn(f"states by number, from 0: {', '.join(by_number)}", stacklevel=2)
    return given


def _case(net: Network, path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    if path.name.lower().endswith((".evid", ".evid.gz")):
        from unimarg.formats.uai import read_uai_evidence

        return dict(read_uai_evidence(path, net))
    from unimarg.evidence import no_name_twice

    try:
        case = json.loads(path.read_bytes(), object_pairs_hook=no_name_twice)
    except EvidenceError as e:
        raise EvidenceError(f"{path}: {e}") from None
    except (ValueError, RecursionError) as e:
        raise EvidenceError(f"{path} is not JSON: {e}") from None
    if not isinstance(case, dict):
        raise EvidenceError(f"{path} must hold one JSON object, from variable to state")
    return case


def _finding(net: Network, text: str) -> tuple[str, Any]:
    """NAME=STATE or NAME=state:likelihood,...; a name or a label may hold '=', ':' or ',' itself."""
    cuts = [i for i, c in enumerate(text) if c == "="]
    if not cuts:
        raise EvidenceError(f"evidence is given as -e NAME=STATE, not {text!r}")
    cut = next((i for i in cuts if text[:i] in net.index), next((i for i in cuts if text[:i].strip() in net.index), cuts[0]))
    name = _stripped(text[:cut], net.index)
    states = net.variables[net.index[name]].states if name in net.index else ()
    value = _stripped(text[cut + 1 :], states)
    if value in states:
        return name, value
    if ":" not in value:
        if any(part.partition("=")[0].strip() in net.index for part in value.split(",")[1:]):
            raise EvidenceError(f"{text!r} holds several findings: give -e for each, as in -e NAME=STATE -e NAME=STATE")
        return name, state_named(net, name, value.strip())
    likelihood: dict[str, float] = {}
    for part in value.split(","):
        state, _, number = part.rpartition(":")
        state = _stripped(state, states)
        if state in likelihood:
            raise EvidenceError(f"the likelihood of {name!r} has {state!r} twice: {value!r}")
        try:
            likelihood[state] = float(number)
        except ValueError:
            raise EvidenceError(f"the likelihood of {name!r} is given as state:number,state:number, not {value!r}") from None
    return name, likelihood


def _stripped(text: str, known: Container[str]) -> str:
    """Without blanks around it where that is known and the text itself is not: a name may have blanks of its own."""
    return text.strip() if text not in known and text.strip() in known else text


def state_named(net: Network, name: str, text: str) -> str:
    """The label of a state that may be given by its number; what a variable that is not there could be is left as it is."""
    from unimarg.evidence import state_from_text

    if name not in net.index:
        return text
    variable = net.variables[net.index[name]]
    return variable.states[state_from_text(variable, text)]


def finite(record: Mapping[Any, Any]) -> dict[str, Any]:
    """Ready for JSON, which has no infinite or undefined numbers."""
    return {str(k): None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
