"""``unimarg train``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from unimarg.cli.common import JsonOption, NetworkArgument, SeedOption, app, network_of
from unimarg.cli.inspect import model_facts
from unimarg.errors import UsageError, closest


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
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="NAME=VALUE", help="A change to the preset, such as rounds=6 or hidden=[512,512]. Repeatable."),
    ] = None,
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
    net = network_of(network)
    mask = masking.observable(net, observable) if observable else None
    options = dict(map(_option, option or []))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite kill is a Ctrl-C
    with terminal.training_bar() as progress:
        options |= {"mask": mask, "checkpoint": output, "resume": resume, "progress": progress, "held_out": held_out}
        model = train(net, preset, budget, seed, **options)
    facts = model_facts(model)
    if as_json:
        print(json.dumps({"file": str(output), **facts}, indent=2))
    else:
        print(f"{output}: {facts['weights']:,} weights, {facts['steps']:,} steps in {facts['training_seconds']:.0f} s")
    if not facts["finished"]:
        print(f"unimarg: stopped early; go on with --resume -o {output}", file=sys.stderr)
        sys.exit(130)


def _option(text: str) -> tuple[str, Any]:
    """NAME=VALUE, the value in JSON, or a word."""
    from unimarg.presets import OPTIONS

    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"an option is given as NAME=VALUE, not {text!r}")
    if name not in OPTIONS:
        raise UsageError(f"there is no training option {name!r}; {closest(name, OPTIONS)}")
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return name, value
    return name, tuple(found) if isinstance(found, list) else found
