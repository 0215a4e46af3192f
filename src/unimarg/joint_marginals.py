"""The distribution of a few variables together: exactly by the chain rule, or by counting combinations in weighted samples."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from unimarg.conditionals import Conditionals, Query
from unimarg.conflict import impossible
from unimarg.diagnostics import scaled
from unimarg.errors import ImpossibleEvidenceError, TooExpensiveError, UsageError
from unimarg.exact import exact
from unimarg.formats.interop import AnyNetwork, as_network
from unimarg.nets import NET
from unimarg.network import Floats, Network
from unimarg.query import EXACT_MEMORY, Asked, Options, check
from unimarg.walk import Origin
from unimarg.weighted import spreads_of

if TYPE_CHECKING:
    import pandas as pd

    from unimarg.marginalizer import Marginalizer

MOST_COMBINATIONS = 1 << 16  # of the states of the variables of a joint marginal
QUICK_CALLS = 256  # of exact inference, one for each combination of all variables but one, that auto makes


def joint(
    net: AnyNetwork, evidence: Mapping[str, object] | None, names: Sequence[str], method: str = "auto", **options: Any
) -> pd.DataFrame:
    """P(names | evidence): a DataFrame with a row for every combination of states, and the columns probability and std_error.

    Exact, with errors of zero, where ``auto`` finds that quick or ``method="exact"`` asks for it; else from weighted samples.
    ``options`` are those of ``infer``; ``frame.attrs`` has method, status, message, ess, k_hat, samples,
    log_evidence, log_evidence_error and seconds.
    """
    return joint_table(as_network(net), None, evidence, names, method, **options)


def joint_table(net: Network, model: Marginalizer | None, evidence: Any, names: Sequence[str], method: str, **options: Any) -> pd.DataFrame:
    """``joint`` of networks and models."""
    check(method, model, options)
    if method == "um":
        raise UsageError("one pass of the network gives marginals of single variables: choose another method")
    names = [net.names[i] for i in net.find_all([] if names is None else names, "the variables of a joint marginal")]
    if not names or len(set(names)) < len(names):
        raise UsageError(f"a joint marginal needs a list of different names, not {names!r}")
    if taken := {"probability", "std_error"} & set(names):
        raise UsageError(f"the table of a joint marginal has a column {min(taken)} of its own: give the variable of that name another")
    cards = [net.variables[net.index[name]].card for name in names]
    if math.prod(cards) > MOST_COMBINATIONS:
        raise UsageError(
            f"the states of {len(names)} variables have {math.prod(cards)} combinations; at most {MOST_COMBINATIONS} are given"
        )
    asked = Asked(net, model, evidence, names, Options(**options), every=True)
    quick = method == "auto" and math.prod(cards) // max(cards) <= QUICK_CALLS and asked.small()
    if method == "exact" or quick:
        memory, patience = (EXACT_MEMORY, asked.limits.seconds / 2) if quick else (asked.memory, math.inf)
        try:
            found = _exact_joint(asked, names, memory, patience)
        except TooExpensiveError:
            if not quick:
                raise
            found = None
        if found is not None:
            return found
    name, estimator, tried = asked.proposal(method)
    counting = estimator.counting(Combinations(asked.query, cards))
    asked.run(counting)
    status, message = counting.status(asked.limits)
    mean, error = counting.estimates.moments()
    total = counting.total
    facts = {
        "method": name,
        "status": status,
        "message": "; ".join(m for m in (message, tried) if m),
        "ess": counting.ess,
        "k_hat": total.k_hat,
        "samples": total.samples,
        "log_evidence": total.log_evidence,
        "log_evidence_error": counting.estimates.log_evidence_error,
    }
    return _table(asked, names, mean[0], error[0], facts)


def _exact_joint(asked: Asked, names: Sequence[str], memory: float, patience: float) -> pd.DataFrame | None:
    """By the chain rule: P(x_1 .. x_m, e) = P(x_1 .. x_{m-1}, e) P(x_m | x_1 .. x_{m-1}, e), m the one with the most states.

    What is known of the variables themselves is a factor that multiplies each combination. None if it takes more than ``patience`` seconds.
    """
    net, query = asked.net, asked.query
    rest = {name: value for name, value in (asked.given or {}).items() if name not in names}
    last = max(names, key=lambda name: net.variables[net.index[name]].card)
    others = [name for name in names if name != last]
    variables = {name: net.variables[net.index[name]] for name in names}
    log_l = {}
    with np.errstate(divide="ignore"):
        for name, v in variables.items():
            log_l[name] = np.log(query.likelihood[net.index[name], : v.card])
    log_p = np.full([variables[name].card for name in (*others, last)], -np.inf)
    for states in itertools.product(*(range(variables[name].card) for name in others)):
        likelihood = sum(log_l[name][k] for name, k in zip(others, states, strict=True))
        if likelihood == -np.inf:
            continue
        if asked.seconds() > patience:
            return None
        try:
            found = exact(net, rest | {n: variables[n].states[k] for n, k in zip(others, states, strict=True)}, [last], memory=memory)
        except ImpossibleEvidenceError:
            continue
        with np.errstate(divide="ignore"):
            log_p[states] = likelihood + found.log_evidence + np.log(found.probabilities[0]) + log_l[last]
    top = log_p.max()
    if top == -np.inf:
        raise impossible(net, query.evidence, asked.frame.support)
    p = np.moveaxis(np.exp(log_p - top), -1, names.index(last)).ravel()
    facts = {"method": "exact", "status": "ok", "message": "", "ess": math.inf, "k_hat": -math.inf, "samples": 0}
    # without evidence the sum is 1, and only rounding would say otherwise
    facts |= {"log_evidence": float(top + np.log(p.sum())) if len(query.evidence) else 0.0, "log_evidence_error": 0.0}
    return _table(asked, names, p / p.sum(), np.zeros(len(p)), facts)


def _table(asked: Asked, names: Sequence[str], p: Floats, error: Floats, facts: dict[str, Any]) -> pd.DataFrame:
    import pandas as pd

    states = [asked.net.variables[asked.net.index[name]].states for name in names]
    frame = pd.DataFrame(list(itertools.product(*states)), columns=list(names))
    frame["probability"], frame["std_error"] = p, error
    frame.attrs.update(facts | {"seconds": time.perf_counter() - asked.began})
    return frame


class Combinations:
    """Counts of the combinations of the query's targets, ``[1, combinations]``."""

    def __init__(self, query: Query, cards: Sequence[int]):
        self.query, self.cards = query, cards
        possible = np.ones(cards, dtype=bool)  # the evidence rules others out
        for axis, t in enumerate(query.targets):
            allowed = query.likelihood[t, : cards[axis]] > 0
            possible &= allowed.reshape([-1 if a == axis else 1 for a in range(len(cards))])
        self.open, self.even = possible.reshape(1, -1), list[int]()
        self.spread = self.open.astype(float)

    def sums(self, given: Conditionals, states: jax.Array, log_w: jax.Array, origin: Origin | None, count: int) -> Any:
        codes = np.ravel_multi_index(tuple(np.asarray(states)[t, :count].astype(np.int64) for t in self.query.targets), self.cards)
        weight = np.asarray(log_w, dtype=np.float64)[:count]
        top, w = scaled(weight)
        net, all_codes = np.arange(count) // NET, math.prod(self.cards)
        cells, cell = np.unique(net * all_codes + codes, return_inverse=True)  # a combination in a net
        of_net, of_cell = np.bincount(net, w), np.bincount(cell, w)
        parts = (codes, w), (codes, w * w), (cells % all_codes, of_cell**2), (cells % all_codes, of_cell * of_net[cells // all_codes])
        once, twice, square, along = (np.bincount(at, a, minlength=all_codes) for at, a in parts)
        zero = np.zeros(all_codes)
        sums = [once, zero, zero, twice, twice, *[zero] * 4, square, along, *[zero] * 3]
        return top, w.sum(), spreads_of(w), np.stack(sums, axis=-1)[None]

    def largest(self, error: Floats) -> float:
        return float(error.max())
