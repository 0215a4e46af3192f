"""One ``.um`` file: weights, recipe and network together, loaded without executing anything.

A safetensors file. The tensors are the trunk's weights and the student's if there is one, the priors and all of the network's
numbers as float64, and in the checkpoint of an unfinished run the optimiser's state; the metadata entry ``unimarg`` is a
JSON object with the rest. Nothing in it is believed before it has been checked against the network.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from unimarg import masking
from unimarg.counter import check_32_bits
from unimarg.encoding import inputs
from unimarg.errors import FormatError, UnimargError, UsageError
from unimarg.formats.files import path_of, read_bytes, write_bytes
from unimarg.marginalizer import Marginalizer
from unimarg.network import Mechanism, Network, NoisyMax, Table, Variable
from unimarg.presets import Recipe
from unimarg.ragged import Ragged
from unimarg.student import Student
from unimarg.training import State
from unimarg.trunk import Architecture, Trunk

Module = TypeVar("Module", Trunk, Student)

# 1: messages did not start from belief propagation; up to 2: norms had weights; up to 3: no gates; 4: none for messages; up to 5: no pairs;
# up to 7: a round of belief propagation was one step of every message
VERSION, READABLE = 8, (1, 2, 3, 4, 5, 6, 7, 8)
MAX_BYTES = 2**34  # the largest model that is written or read: the default preset on 10,000 nodes takes a hundredth in training
TRIED = 1 << 12  # bytes that are written to see whether a folder takes files
LONG = 40  # characters of an option that an error does not show
MASKS = {c.__name__: c for c in (masking.UniformRate, masking.LogUniformRate, masking.Fixed, masking.Rates)} | {
    c.__name__: c for c in (masking.Among, masking.Prefix, masking.Mixture)
}


def save_model(model: Marginalizer, path: str | PathLike[str], state: State | None = None) -> None:
    """Write a model atomically; with ``state`` it is a checkpoint from which training can go on."""
    check_name(path)
    tensors = {f"trunk.{i}": np.asarray(a) for i, a in enumerate(jax.tree.leaves(model.trunk))}
    tensors |= {f"student.{i}": np.asarray(a) for i, a in enumerate(jax.tree.leaves(model.student))}
    structure, tensors["network"] = network_to_arrays(model.net)
    tensors["priors"] = np.concatenate(model.priors)
    if state is not None:
        tensors |= {f"state.{i}": np.asarray(a) for i, a in enumerate(jax.tree.leaves(state))}
    about = {
        "version": VERSION,
        "network": structure,
        "recipe": recipe_to_json(model.recipe),
        "history": dict(model.history),
    }
    size = sum(a.nbytes for a in tensors.values())
    if size > MAX_BYTES:
        raise FormatError(f"cannot be written: the model has {size} bytes; the limit is {MAX_BYTES}", path)
    write_bytes(os.fspath(path), save_tensors(tensors, metadata={"unimarg": json.dumps(about)}))


def load_model(path: str | PathLike[str]) -> Marginalizer:
    """Read a model that ``Marginalizer.save`` or ``train`` wrote."""
    check_32_bits()
    return _load(path)[0]


def unfinished(path: str | PathLike[str]) -> tuple[int, int] | None:
    """The steps taken and planned of the run in a file, if there is one that can go on."""
    try:
        model, tensors = _load(path)
    except FormatError:
        return None
    return (model.history.get("steps", 0), model.history.get("planned_steps", 0)) if "state.0" in tensors else None


def load_state(path: str | PathLike[str], expected: Marginalizer, like: State) -> tuple[State, Mapping[str, Any]]:
    """The state and the history of an unfinished run, which must be the one expected."""
    model, tensors = _load(path)
    options = differing(recipe_to_json(model.recipe), recipe_to_json(expected.recipe))
    differs = ""
    if model.net != expected.net:
        differs = "network"
    elif options:
        differs = f"recipe ({', '.join(options)})"
    elif model.history.get("seed") != expected.history["seed"]:
        differs = "seed"
    if differs:
        raise FormatError(f"this run has another {differs} than the one to resume", path)
    leaves, tree = jax.tree.flatten(like)
    found = [tensors.get(f"state.{i}") for i in range(len(leaves))]
    if all(f is None for f in found):
        raise FormatError(_why_not_resumed(model.history), path)
    if any(f is None or f.shape != a.shape or f.dtype != a.dtype for f, a in zip(found, leaves, strict=True)):
        raise FormatError("the state of the run does not fit its recipe, or another version began it", path)
    state, steps = jax.tree.unflatten(tree, [jnp.asarray(f) for f in found]), model.history.get("planned_steps")
    if not isinstance(steps, int) or not 0 <= int(state.step) <= steps < 2**31:
        raise FormatError(f"the run's number of steps is damaged: {int(state.step)} of {steps!r}", path)
    return state, model.history


def _why_not_resumed(history: Mapping[str, Any]) -> str:
    """Of a file without a state."""
    step, planned = history.get("steps", 0), history.get("planned_steps", 0)
    if step < planned:
        why = f"it holds the last good weights of a run that stopped at step {step} of {planned}"
        return f"{why}, and not its state: there is nothing to go on with, begin anew"
    return "this run is finished; there is nothing to resume: to train for longer, begin anew with a larger budget"


def differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Options of two recipes that are not the same, with their values in the first unless those are long."""
    flat = [{k: v for k, v in r.items() if k != "architecture"} | r["architecture"] for r in (a, b)]
    values = {name: repr(value) for name, value in flat[0].items() if value != flat[1][name]}
    return [f"{name}={value}" if len(value) <= LONG else name for name, value in values.items()]


def check_name(path: object) -> None:
    """A slip must not replace a network or a table."""
    if not isinstance(path, str | PathLike) or Path(path).suffix.lower() != ".um":
        raise UsageError(f"a model is written to a .um file, not to {Path(path).name if isinstance(path, str | PathLike) else path!r}")


def check_writable(path: str | PathLike[str]) -> None:
    """Fail before the training, not after it."""
    check_name(path)
    target = os.path.realpath(os.fspath(path))
    folder = os.path.dirname(target)
    reason = None
    if os.path.isdir(target):
        reason = "is a directory"
    elif not os.path.isdir(folder):
        reason = f"there is no folder {folder}"
    elif os.path.exists(target) and not os.access(target, os.W_OK):
        reason = "permission denied"
    elif not os.path.exists(target) or os.path.isfile(target):
        try:  # as it will be written, in a file beside it: not every folder that may be written to takes files
            with tempfile.TemporaryFile(dir=folder) as f:
                f.write(bytes(TRIED))
        except OSError as e:
            reason = (e.strerror or str(e)).lower()
    if reason:
        raise FormatError(f"cannot be written: {reason}", path)


def _load(path: str | PathLike[str]) -> tuple[Marginalizer, Mapping[str, np.ndarray]]:
    data = read_bytes(path_of(path), MAX_BYTES)
    try:
        tensors = load_tensors(data)
        about = _about(data)
        if about.get("version") not in READABLE or isinstance(about["version"], bool):
            raise FormatError(f"has the format version {about.get('version')!r}; this program reads {READABLE}", path)
        net = _network_from_arrays(about["network"], tensors["network"])
        made, ragged = _recipe_from_json(about["recipe"]), Ragged(tuple(net.cards.tolist()))
        if about["version"] < 8 and made.rounds:
            raise FormatError("was trained by an older version, which started from other beliefs: train it again", path)
        if about["version"] < 3 and made.architecture.residual:
            tensors = _without_norms(tensors, len(made.architecture.hidden), bool(made.student))
        if about["version"] == 4 and made.architecture.gated:
            tensors = _with_gates(tensors, made.architecture, ragged.slots)
        priors = tuple(np.split(tensors["priors"], np.cumsum(net.cards)[:-1]))
        trunk = _fill(lambda: Trunk.make(None, made.architecture, inputs(ragged, made.rounds > 0), ragged.slots), "trunk", tensors)
        student = None
        if made.student:
            width = made.architecture.hidden[-1]
            student = _fill(lambda: Student.make(None, made.student, width, len(net), ragged.largest), "student", tensors)
    except FormatError:
        raise
    except (SafetensorError, UnimargError, KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError) as e:
        other = "" if path_of(path).lower().endswith(".um") else " (a network is read by unimarg.load)"
        raise FormatError(f"is not a unimarg model{other}, or a damaged one: {_short(e)}", path) from e
    if tuple(map(len, priors)) != tuple(net.cards) or not all((p > 0).all() and abs(p.sum() - 1) < 1e-6 for p in priors):
        raise FormatError("the priors do not fit the network", path)
    return Marginalizer(net, made, trunk, priors, _checked_history(about.get("history"), path), student), tensors


def _checked_history(history: object, path: str | PathLike[str]) -> dict[str, Any]:
    """What is said of the training, each thing that others count on as what it must be; older versions said less."""
    if not isinstance(history, dict):
        raise FormatError("does not say how it was trained", path)
    for name, is_one in HISTORY.items():
        if name in history and not is_one(history[name]):
            raise FormatError(f"is not a unimarg model, or a damaged one: {name} in its history is {history[name]!r:.100}", path)
    return history


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**64


def _is_number(value: Any) -> bool:
    """NaN too: a reference for held-out errors that failed has no error."""
    return isinstance(value, float) or _is_count(value)


def _are_errors(value: Any) -> bool:
    """(step, error), one after the other."""
    return isinstance(value, list) and all(isinstance(e, list) and len(e) == 2 and _is_count(e[0]) and _is_number(e[1]) for e in value)


HISTORY: dict[str, Callable[[Any], bool]] = dict.fromkeys(("seed", "steps", "planned_steps", "samples", "held_out_sets"), _is_count) | {
    "seconds": _is_number,
    "loss": lambda value: value is None or _is_number(value),
    "held_out": _are_errors,
    "held_out_reference_error": _is_number,
}


def _short(e: Exception) -> str:
    """Another library's complaint without the names of its classes and functions."""
    return f"{e} is missing"[:200] if isinstance(e, KeyError) else str(e).removeprefix("Error while deserializing: ")[:200]


def _about(data: bytes) -> dict[str, Any]:
    """The metadata: safetensors begins with the length of a JSON header, then the header."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    about = json.loads(header["__metadata__"]["unimarg"])
    if not isinstance(about, dict):
        raise ValueError("no metadata")
    return about


def _fill(make: Callable[[], Module], name: str, tensors: Mapping[str, np.ndarray]) -> Module:
    """What ``make`` makes, with the file's weights in place of its own; every shape must be the expected one."""
    leaves, tree = jax.tree.flatten(jax.eval_shape(make))
    found = [tensors[f"{name}.{i}"] for i in range(len(leaves))]
    for i, (f, leaf) in enumerate(zip(found, leaves, strict=True)):
        if f.shape != leaf.shape or f.dtype != leaf.dtype or not np.isfinite(f).all():
            raise ValueError(
                f"weight {name}.{i} has shape {f.shape} and type {f.dtype}, not {leaf.shape} and {leaf.dtype}, or is not finite"
            )
    return jax.tree.unflatten(tree, [jnp.asarray(f) for f in found])


def _without_norms(tensors: Mapping[str, np.ndarray], blocks: int, student: bool) -> Mapping[str, np.ndarray]:
    """Scale and shift of each norm, which files up to version 2 have between layers and head, taken up by the layers behind it."""
    first, head = 2 * (2 * blocks + 1), 2 * (2 * blocks + 1) + 2 * (blocks + 1)
    names = [f"trunk.{2 * (2 * n + 1)}" for n in range(blocks)] + [f"trunk.{head}"]
    behind = [*enumerate(names), *[(blocks, "student.0")] * student]
    out = dict(tensors)
    for n, weight in behind:
        group, number = weight.split(".")
        bias = f"{group}.{int(number) + 1}"
        scale, shift = (tensors[f"trunk.{first + 2 * n + k}"].astype(np.float64) for k in range(2))
        if not scale.shape == shift.shape == tensors[weight].shape[:1]:  # or a small file could ask for a large product
            raise ValueError(f"the norm before {weight} does not fit it")
        out[weight] = (scale[:, None] * tensors[weight]).astype(np.float32)
        out[bias] = (tensors[bias] + shift @ tensors[weight]).astype(np.float32)
    return out | {f"trunk.{first + k}": out[f"trunk.{head + k}"] for k in range(2)}


def _with_gates(tensors: Mapping[str, np.ndarray], made: Architecture, slots: int) -> Mapping[str, np.ndarray]:
    """Gates of 0 for the heads that had none in version 4: all but the first."""
    head = 2 * (2 * len(made.hidden) + 1 if made.residual else len(made.hidden))
    names, columns, added = [f"trunk.{head + k}" for k in range(2)], (len(made.heads) + 1) * slots, (len(made.heads) - 1) * slots
    if any(tensors[name].shape[-1:] != (columns,) for name in names):
        raise ValueError("the head does not fit the network")
    return {**tensors, **{name: np.pad(tensors[name], [(0, 0)] * (tensors[name].ndim - 1) + [(0, added)]) for name in names}}


def digest(net: Network, model: Marginalizer | None) -> str:
    """By which a network, and a model of it, is known again: all that answers depend on."""
    structure, numbers = network_to_arrays(net)
    total = hashlib.sha256(json.dumps(structure).encode() + numbers.tobytes())
    if model is not None:
        total.update(json.dumps(recipe_to_json(model.recipe)).encode())
        for array in jax.tree.leaves((model.trunk, model.student, model.priors)):
            total.update(np.asarray(array).tobytes())
    return total.hexdigest()


# --- the network


def network_to_arrays(net: Network) -> tuple[dict[str, Any], np.ndarray]:
    """Structure as JSON, and all numbers one after the other."""
    numbers: list[np.ndarray] = []
    nodes = []
    for v, pa, m in zip(net.variables, net.parents, net.mechanisms, strict=True):
        noisy = isinstance(m, NoisyMax)
        numbers += [a.ravel() for a in ((m.leak, *m.contributions) if noisy else (m.probabilities,))]
        nodes.append({"name": v.name, "states": v.states, "group": v.group, "parents": pa, "noisy": noisy})
    return {"name": net.name, "nodes": nodes}, np.concatenate(numbers)


def _network_from_arrays(structure: Mapping[str, Any], numbers: np.ndarray) -> Network:
    nodes = structure["nodes"]
    variables = [Variable(n["name"], tuple(n["states"]), n["group"]) for n in nodes]
    at = 0

    def take(*shape: int) -> np.ndarray:
        nonlocal at
        size = int(np.prod(shape, dtype=object))
        if at + size > numbers.size:
            raise ValueError("the network's numbers are too few")
        part = numbers[at : at + size].reshape(shape)
        at += size
        return part

    mechanisms: dict[str, Mechanism] = {}
    for v, n in zip(variables, nodes, strict=True):
        cards = [variables[p].card for p in n["parents"]]
        mechanisms[v.name] = NoisyMax(take(v.card), [take(c, v.card) for c in cards]) if n["noisy"] else Table(take(*cards, v.card))
    if at != numbers.size:
        raise ValueError("the network's numbers are too many")
    parents = {v.name: [variables[p].name for p in n["parents"]] for v, n in zip(variables, nodes, strict=True)}
    return Network.as_given(variables, parents, mechanisms, str(structure["name"]))


# --- the recipe


def recipe_to_json(made: Recipe) -> dict[str, Any]:
    fields = {f.name: getattr(made, f.name) for f in dataclasses.fields(made)}
    return json.loads(json.dumps(fields | {"mask": _mask_to_json(made.mask), "architecture": dataclasses.asdict(made.architecture)}))


def _recipe_from_json(given: dict[str, Any]) -> Recipe:
    architecture = dict(given["architecture"])
    architecture |= {name: tuple(architecture[name]) for name in ("hidden", "heads")}
    return Recipe(**(given | {"architecture": Architecture(**architecture), "mask": _mask_from_json(given["mask"])}))


def _mask_to_json(mask: Any) -> dict[str, Any]:
    if type(mask) not in MASKS.values():
        return {"kind": type(mask).__name__}  # the user's own: the model can be used, but not trained further
    out: dict[str, Any] = {"kind": type(mask).__name__}
    for f in dataclasses.fields(mask):
        value = getattr(mask, f.name)
        if f.name == "base":
            value = _mask_to_json(value)
        elif f.name == "masks":
            value = [_mask_to_json(m) for m in value]
        out[f.name] = value
    return out


def _mask_from_json(given: dict[str, Any]) -> Any:
    fields = {k: v for k, v in given.items() if k != "kind"}
    kind = MASKS.get(given["kind"])
    if kind is None:
        return masking.UniformRate()
    if "base" in fields:
        fields["base"] = _mask_from_json(fields["base"])
    if "masks" in fields:
        fields["masks"] = tuple(_mask_from_json(m) for m in fields["masks"])
    return cast(Any, kind)(**{k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()})
