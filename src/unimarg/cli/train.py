"""``unimarg train``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unimarg.cli.common import JsonOption, NetworkArgument, SeedOption, app, network_of, variables_of
from unimarg.cli.inspect import model_facts
from unimarg.cli.interrupt import INTERRUPTED, keeping
from unimarg.errors import UsageError, closest

if TYPE_CHECKING:
    from unimarg.trainer import Progress

FEW_STEPS = 100
# as presets.OPTIONS has them, which takes long to import
NAMES = (
    "average, batch, clip, dropout, encoding, from_prior, gated, heads, hidden, labels, learning_rate, message_weight, observed_loss, "
    "pairs, rare, residual, rounds, student, virtual, warm_up"
)
ChangeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        help=f"A change to the preset, such as rounds=6 or hidden=[512,512]. Repeatable. Names: {NAMES}.",
    ),
]


class _Stop:
    """Ctrl-C saves a training that has taken a step."""

    def __init__(self, show: Callable[[Progress], object], output: Path):
        self.show, self.output = show, output
        self.begun = self.stopped = False

    def __call__(self) -> bool:
        self.stopped = self.begun
        return self.stopped

    def progress(self, now: Progress) -> bool:
        self.begun = True
        self.show(now)
        return self.stopped

    def lost(self) -> str:
        return "stopped without saving" + (f"; {self.output} is as it was last saved" if self.output.exists() else "")


@app.command()
def train(
    network: NetworkArgument,
    output: Annotated[Path, typer.Option("-o", "--output", help="The model to write, a .um file.")],
    preset: Annotated[str, typer.Option(help="default, small (for high query rates) or paper.")] = "default",
    budget: Annotated[str, typer.Option(help="A time, everything included, or a number of steps: 60s, 10min, '20000 steps'.")] = "60s",
    seed: SeedOption = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the unfinished run in the output file.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over a model in the output file.")] = False,
    observable: Annotated[
        list[str] | None,
        typer.Option("--observable", help="A variable, or a group of them, that can be observed; any if not given. Repeatable."),
    ] = None,
    held_out: Annotated[
        int,
        typer.Option("--held-out", metavar="SETS", help="Evidence sets, exactly answered or by a long run, for the error in progress."),
    ] = 0,
    option: ChangeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train a Universal Marginalizer. Ctrl-C saves and stops; --resume goes on. A model that is there is not written over without --force.

    Example: unimarg train alarm -o alarm.um --budget 2min
    """
    from unimarg import masking, terminal
    from unimarg.checkpoint import check_name, unfinished
    from unimarg.trainer import parse_budget, train

    check_name(output)
    net = network_of(network)
    mask = masking.observable(net, variables_of(net, observable)) if observable else None
    options = dict(map(_option, option or []))
    if resume and (run := unfinished(output)):
        print(f"unimarg: note: going on from step {run[0]} of {run[1]}, which is what the run's first --budget came to", file=sys.stderr)
    with terminal.training_bar() as show:
        stop = _Stop(show, output)
        options |= {"mask": mask, "checkpoint": output, "resume": resume, "force": force, "progress": stop.progress, "held_out": held_out}
        with keeping(stop, stop.lost, terminated=True):
            model = train(net, preset, budget, seed, **options)
    facts = model_facts(model)
    if as_json:
        print(json.dumps({"file": str(output), **facts}, indent=2))
    else:
        error = f", held-out error {facts['held_out_error']:.4f}" if "held_out_error" in facts else ""
        steps = f"{facts['steps']:,} step{'s' * (facts['steps'] != 1)}"
        print(f"{output}: {facts['weights']:,} weights, {steps} in {facts['training_seconds']:.0f} s{error}")
    if not facts["finished"]:
        instead = " in place of --force" if force else ""
        print(f"unimarg: stopped early; the same command with --resume{instead} goes on", file=sys.stderr)
        sys.exit(INTERRUPTED)
    if facts["steps"] < FEW_STEPS and parse_budget(budget).seconds is not None:
        advice = "a larger --budget" + " or --preset small" * (preset != "small")
        print(f"unimarg: note: too few steps to have learnt much, most of the time was preparation; {advice} would help", file=sys.stderr)


def _option(text: str) -> tuple[str, Any]:
    """NAME=VALUE, the value in JSON, or a tuple as Python writes it, or a word."""
    from unimarg.presets import OPTIONS

    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"an option is given as NAME=VALUE, not {text!r}")
    if name not in OPTIONS:
        raise UsageError(f"there is no training option {name!r}; {closest(name, OPTIONS, len(OPTIONS))}")
    if value.startswith("(") and value.endswith(")"):
        value = "[" + value[1:-1].strip().rstrip(",").replace("'", '"') + "]"
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return name, value
    return name, tuple(found) if isinstance(found, list) else found
