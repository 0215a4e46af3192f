"""The clinic: an invented model of a visit to a family doctor, built from ``clinic.toml``, and patients to try it on.

The file's header explains how it is written. In short, every node is either a table,

    probability = ...   with  given = [parents]  where it has any,

or a noisy-max of independent causes (noisy-OR where everything is no/yes),

    leak = ...   and   causes = [{ parent = strength, ... }, ...],

and wherever numbers stand, they are the probabilities of all states but the first, which gets the rest.

An illustration made for demonstrating software. Not medical advice, not for clinical use.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np

from unimarg.errors import FormatError, NetworkError, closest
from unimarg.network import Floats, Mechanism, Network, NoisyMax, Table, Variable

_KEYS = ("states", "given", "probability", "leak", "causes")


@dataclass(frozen=True)
class Case:
    """A patient: a name, a story in a sentence or two, and what is known, as evidence for a query."""

    name: str
    story: str
    evidence: Mapping[str, str]


def clinic_cases() -> list[Case]:
    """Patients to try the clinic on.

    >>> clinic_cases()[0].name
    'Fever and a cough'
    """
    text = (files("unimarg.examples") / "vignettes.toml").read_text(encoding="utf-8")
    return [Case(case["name"], case["story"], case["evidence"]) for case in tomllib.loads(text)["case"]]


def read_clinic(data: bytes, path: str = "clinic.toml") -> Network:
    """A network from a file written like ``clinic.toml``; a mistake in it is an error that names the node."""
    try:
        source = tomllib.loads(data.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as e:
        raise FormatError(f"not a TOML file: {e}", path) from e
    try:
        return _network(source)
    except NetworkError as e:
        raise FormatError(str(e), path) from e


def _network(source: Mapping[str, Any]) -> Network:
    nodes: dict[str, dict[str, Any]] = {}
    variables: dict[str, Variable] = {}
    for group, members in source.items():
        if group == "name":
            continue
        if not isinstance(members, dict):
            raise NetworkError(f"{group!r} should be a group of nodes, written [{group}.node]")
        for name, node in members.items():
            if name in nodes:
                raise NetworkError(f"node {name!r} is there twice, in {variables[name].group!r} and in {group!r}")
            _check_keys(name, node)
            nodes[name] = node
            variables[name] = Variable(name, node.get("states", ("no", "yes")), group.replace("_", " "))
    parents: dict[str, list[str]] = {}
    mechanisms: dict[str, Mechanism] = {}
    for name, node in nodes.items():
        parents[name], mechanisms[name] = (_table if "probability" in node else _noisy_max)(variables[name], node, variables)
    return Network(list(variables.values()), parents, mechanisms, name=str(source.get("name", "clinic")))


def _check_keys(name: str, node: object) -> None:
    if not isinstance(node, dict):
        raise NetworkError(f"node {name!r} should be a table of {', '.join(_KEYS)}, not {node!r}")
    for key in node:
        if key not in _KEYS:
            raise NetworkError(f"node {name!r}: unknown entry {key!r}; {closest(key, _KEYS)}")
    if not isinstance(node.get("states", []), list):
        raise NetworkError(f"node {name!r}: 'states' should be a list of labels, not {node['states']!r}")
    given = node.keys() - {"states"}
    if given not in ({"probability"}, {"probability", "given"}, {"leak", "causes"}):
        raise NetworkError(f"node {name!r} needs either 'probability' (and 'given', where it has parents) or both 'leak' and 'causes'")


def _table(variable: Variable, node: Mapping[str, Any], variables: Mapping[str, Variable]) -> tuple[list[str], Mechanism]:
    given = node.get("given", [])
    if not isinstance(given, list):
        raise NetworkError(f"node {variable.name!r}: 'given' should be a list of nodes, not {given!r}")
    cards = [_parent(variable, p, variables).card for p in given]
    return given, Table(_pmf(node["probability"], cards, variable, "'probability'"))


def _noisy_max(variable: Variable, node: Mapping[str, Any], variables: Mapping[str, Variable]) -> tuple[list[str], Mechanism]:
    lines = node["causes"]
    if not isinstance(lines, list) or not all(isinstance(line, dict) for line in lines):
        raise NetworkError(f"node {variable.name!r}: 'causes' should be a list of {{ cause = strength, ... }}")
    strengths: dict[str, Any] = {}
    for line in lines:
        for cause, strength in line.items():
            if cause in strengths:
                raise NetworkError(f"node {variable.name!r} has the cause {cause!r} twice")
            strengths[cause] = strength
    contributions = []
    for cause, strength in strengths.items():
        present = _parent(variable, cause, variables).card - 1  # a cause in its first state does nothing
        rows = [present] if present > 1 else []
        effect = _pmf(strength, rows, variable, f"the strength of {cause!r}").reshape(present, variable.card)
        contributions.append(np.concatenate([np.eye(1, variable.card), effect]))
    return list(strengths), NoisyMax(_pmf(node["leak"], [], variable, "'leak'"), contributions)


def _parent(variable: Variable, name: object, variables: Mapping[str, Variable]) -> Variable:
    if not isinstance(name, str) or name not in variables:
        raise NetworkError(f"node {variable.name!r} has an unknown cause {name!r}; {closest(name, variables)}")
    return variables[name]


def _pmf(given: object, rows: list[int], variable: Variable, what: str) -> Floats:
    """``[*rows, card]`` from the probabilities of all states but the first, a bare number where there is only one."""
    shape = [*rows, variable.card - 1] if variable.card > 2 else rows
    try:
        rest = np.array(given, dtype=np.float64)
    except (TypeError, ValueError):
        rest = np.array(np.nan)
    if not np.isfinite(rest).all() or list(rest.shape) != shape:
        wanted = " by ".join(str(n) for n in shape) + " numbers" if shape else "one number"
        raise NetworkError(f"node {variable.name!r}: {what} should be {wanted}, not {given!r}")
    rest = rest.reshape(*rows, variable.card - 1)
    if (rest < 0).any() or (rest.sum(axis=-1) > 1 + 1e-9).any():
        raise NetworkError(f"node {variable.name!r}: {what} should be probabilities that sum to at most 1, not {given!r}")
    return np.concatenate([1 - rest.sum(axis=-1, keepdims=True), rest], axis=-1).clip(0, 1)
