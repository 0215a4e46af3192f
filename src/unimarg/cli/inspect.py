"""``unimarg info`` and ``unimarg convert``."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unimarg.cli.common import JsonOption, ModelArgument, NetworkArgument, app, network_of, source_of
from unimarg.errors import UsageError

if TYPE_CHECKING:
    from unimarg.marginalizer import Marginalizer
    from unimarg.network import Network

NEAR = 1  # arcs


@app.command()
def info(
    network: ModelArgument,
    variables: Annotated[bool, typer.Option("--variables", help="List the variables too, with their states and parents.")] = False,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw the graph too: .png, .svg or .pdf.")] = None,
    around: Annotated[str | None, typer.Option(help="Draw only what is near this variable.")] = None,
    distance: Annotated[int, typer.Option(help="How many arcs are near.")] = NEAR,
    as_json: JsonOption = False,
) -> None:
    """Describe a network or a trained model.

    Example: unimarg info alarm --variables --plot alarm.png
    """
    net, model = source_of(network)
    if plot is None and (around is not None or distance != NEAR):
        raise UsageError("--around and --distance say what of the graph to draw: give --plot, a file for the picture, too")
    if plot is not None:
        from unimarg.drawing import network_figure
        from unimarg.plots import check_path, save

        check_path(plot)
        save(network_figure(net, around, distance), plot)
    facts = network_facts(net) | ({} if model is None else model_facts(model))
    states = {v.name: list(v.states) for v in net.variables}
    parents = {v.name: [net.names[p] for p in pa] for v, pa in zip(net.variables, net.parents, strict=True)}
    if as_json:
        return print(json.dumps(facts | ({"states": states, "parents": parents} if variables else {}), indent=2))
    from unimarg import terminal

    shown = {name: value for name, value in facts.items() if name != "recipe" and value not in ({}, [])}
    terminal.console().print(terminal.columns((name.replace("_", " "), _fact(value)) for name, value in shown.items()))
    if variables:
        listed = ((name, ", ".join(labels), f"from {', '.join(parents[name])}" if parents[name] else "") for name, labels in states.items())
        terminal.console().print("", terminal.columns(listed), sep="\n")
    return None


def _fact(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} ({v})" for k, v in value.items())
    if isinstance(value, list):
        return ", ".join(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}" if isinstance(value, float) else str(value)


def network_facts(net: Network) -> dict[str, Any]:
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


def model_facts(model: Marginalizer) -> dict[str, Any]:
    import jax
    import numpy as np

    from unimarg.checkpoint import differing, recipe_to_json
    from unimarg.presets import recipe

    made, preset = recipe_to_json(model.recipe), recipe_to_json(recipe(model.net, model.recipe.preset))
    architecture, history = model.recipe.architecture, model.history
    return {
        "preset": model.recipe.preset,
        "changed": differing(made, preset),
        "hidden": " x ".join(map(str, architecture.hidden)) + (" (residual)" if architecture.residual else ""),
        "heads": ", ".join(architecture.heads) + (" (gated)" if architecture.gated else ""),
        "student_units": model.recipe.student,
        "weights": sum(a.size for a in jax.tree.leaves((model.trunk, model.student))),
        "encoding": model.recipe.encoding,
        **({} if model.observable.all() else {"observable": [model.net.names[i] for i in np.flatnonzero(model.observable)]}),
        "steps": history.get("steps"),
        "training_samples": history.get("samples"),
        "training_seconds": history.get("seconds"),
        "loss": history.get("loss"),
        **(_held_out(history) if history.get("held_out") else {}),
        "seed": history.get("seed"),
        "finished": history.get("steps") == history.get("planned_steps"),
        "recipe": made,
    }


def _held_out(history: Mapping[str, Any]) -> dict[str, Any]:
    """The last error, and that of the references it was measured by where they are sampled."""
    error = history.get("held_out_reference_error")
    return {"held_out_error": history["held_out"][-1][1]} | ({"held_out_reference_error": error} if error else {})


@app.command()
def convert(
    source: NetworkArgument,
    target: Annotated[Path, typer.Argument(help="The file to write: .bif .xmlbif .bifxml .xml .net .uai .xdsl, each also with .gz.")],
    as_json: JsonOption = False,
) -> None:
    """Read a network in one format and write it in another.

    Example: unimarg convert alarm.bif alarm.xdsl
    """
    from unimarg.formats import save, uai

    net = network_of(source)
    if target.exists() and Path(source).exists() and target.samefile(source):
        raise UsageError(f"{target} is the file to read: write another one")
    save(net, target)
    if target.name.lower().removesuffix(".gz").endswith(".uai") and uai.has_names(net):
        told = "UAI has no names: variables become x0, x1, ... in the order of 'unimarg info --variables', and states 0, 1, ..."
        print(f"unimarg: note: {told}", file=sys.stderr)
    print(
        json.dumps({"file": str(target), **network_facts(net)}, indent=2)
        if as_json
        else f"{target}: {len(net)} variables, {net.arc_count} arcs"
    )
