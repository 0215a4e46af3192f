"""Which findings moved a marginal: each is left out in turn.

    shift(f)    = P(x_t = k | e) - P(x_t = k | e without f)
    log odds(f) = logit P(x_t = k | e) - logit P(x_t = k | e without f)

Two findings that say the same each look weak: without one, the other still says it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from unimarg.conflict import impossible
from unimarg.errors import UsageError
from unimarg.evidence import Evidence, parse_evidence, state_index
from unimarg.formats.interop import AnyNetwork, as_network
from unimarg.many import Answers, exact_answers, go_on
from unimarg.network import Floats, Network

if TYPE_CHECKING:
    import pandas as pd


def explain(
    net: AnyNetwork,
    evidence: Mapping[str, object] | None,
    target: str,
    state: str | None = None,
    *,
    memory: float | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """How each finding moved the target, strongest first: by ``auto``, to some tenth of the odds where it samples; or exactly, in so many
    bytes of ``memory``, where these are given.

    ``state`` is the one of the target's states that is explained: unless given, the one whose odds all findings together raised most.
    The table has its probability without each finding, the shift that the finding made and the change of log odds; ``table.attrs`` has
    the state, its probability and what it would be without any finding (``prior``), the method, and the largest standard error of these
    probabilities (``std_error``), 0 where exact; a printed table has the state at its head.

    >>> from unimarg.network import NoisyOr, Variable
    >>> net = Network([Variable("rain"), Variable("wet")], {"wet": ["rain"]}, {"rain": [0.8, 0.2], "wet": NoisyOr(0.1, [0.8])})
    >>> explain(net, {"wet": "yes"}, "rain").round(4).to_dict("records")
    [{'variable': 'wet', 'finding': 'yes', 'without': 0.2, 'shift': 0.4721, 'log_odds': 2.1041}]
    """
    net = as_network(net)
    if memory is None:
        return influence_by_auto(net, evidence, target, state, seed)
    table = influence(net, exact_answers(net, memory), evidence, target, state)
    table.attrs |= {"method": "exact", "std_error": 0.0}
    return table


def influence_by_auto(
    net: Network,
    evidence: Mapping[str, object] | None,
    target: str,
    state: str | None,
    seed: int,
    before_each: Callable[[], None] = go_on,
) -> pd.DataFrame:
    """``explain`` by the method that ``auto`` finds for each set."""
    from unimarg.drawn import OneByOne

    answers = OneByOne(net, seed, before_each)
    table = influence(net, answers, evidence, target, state)
    table.attrs |= {"method": ", ".join(sorted(answers.methods)), "std_error": float(np.max(answers.errors))}
    return table


def influence(net: Network, answers: Answers, evidence: Mapping[str, object] | None, target: str, state: str | None) -> pd.DataFrame:
    """``explain`` by any way to answer."""
    import pandas as pd

    given = parse_evidence(net, evidence)
    t = net.find(target)
    if t in given.hard:
        raise UsageError(f"{target!r} is itself a finding: there is nothing to explain")
    names = list(evidence or {})
    less = [_without(given, net.index[name]) for name in names]
    found, contradiction = answers([given, Evidence({}, {}), *less], [t])
    if contradiction[0] >= 0:
        raise impossible(net, given)
    odds = _log_odds(found.astype(np.float64))
    k = int(np.argmax(_change(odds[0], odds[1]))) if state is None else state_index(net.variables[t], state)
    now, prior, without = float(found[0, k]), float(found[1, k]), found[2:, k].astype(np.float64)
    table = pd.DataFrame({"variable": names, "finding": [_shown(net, given, net.index[name]) for name in names], "without": without})
    table["shift"] = now - without
    table["log_odds"] = _change(odds[0, k], odds[2:, k])
    table = table.sort_values("log_odds", key=np.abs, ascending=False, kind="stable", ignore_index=True)
    table.attrs |= {"target": target, "state": net.variables[t].states[k], "probability": now, "prior": prior}
    table.columns.name = f"{target} = {net.variables[t].states[k]}"
    return table


def _without(given: Evidence, node: int) -> Evidence:
    return Evidence({i: k for i, k in given.hard.items() if i != node}, {i: v for i, v in given.virtual.items() if i != node})


def _shown(net: Network, given: Evidence, node: int) -> str:
    """A state, or the likelihood of each."""
    states = net.variables[node].states
    if node in given.hard:
        return states[given.hard[node]]
    return ", ".join(f"{s}: {x:g}" for s, x in zip(states, given.virtual[node], strict=True))


def _log_odds(p: Floats) -> Floats:
    """Of each state against all others."""
    others = p.sum(axis=-1, keepdims=True) - p
    with np.errstate(divide="ignore"):
        return np.log(p) - np.log(np.maximum(others, 0.0))


def _change(now: Floats, before: Floats) -> Floats:
    """The difference; none between what was certain and still is."""
    now, before = np.broadcast_arrays(now, before)
    out = np.zeros(now.shape)
    np.subtract(now, before, out=out, where=now != before)
    return out
