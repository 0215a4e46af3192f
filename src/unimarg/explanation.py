"""The most probable joint state given evidence: argmax over x of P(x) l(x).

Exact by elimination with a maximum in place of the sum (Dechter 1999), in log space, while its tables stay small:

    m_v(rest) = max over x_v of the sum of the log factors that mention v,     x_v found again from its argmax, last variable first

Else the best of many samples, improved one variable at a time, and then whole neighbourhoods at a time: some variables are freed, the
others stay as they are, and elimination finds the best states of those. It is the best found, and says so.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from unimarg.conflict import impossible
from unimarg.counter import key_from_seed
from unimarg.errors import SamplingError, UsageError
from unimarg.formats.interop import AnyNetwork, as_network
from unimarg.importance import chunk_size, first_sample
from unimarg.mechanism import NoisyMax, log_pmf_from_steps
from unimarg.names import visible
from unimarg.network import Floats, Ints, Network
from unimarg.query import Asked, Options
from unimarg.triangulation import Graph, eliminate, moral_graph, quick_entries

if TYPE_CHECKING:
    from unimarg.marginalizer import Marginalizer

LARGEST = 1 << 23  # entries of all tables together up to which the answer is exact
QUICK = 8  # times as many by a quick order, above which no better one is sought
SCORED, STARTS, SWEEPS = 2048, 8, 100  # samples looked at; improved; times through all variables
NEIGHBOURHOODS, IN_VAIN = 200, 40  # that are freed in turn; how many may pass without improvement
NEIGHBOURHOOD = 1 << 16  # entries of the tables of one
SHOWN = 12  # variables in a repr


@dataclass(frozen=True)
class Explanation:
    """A joint state of all variables; ``log_probability`` is that of the state together with the evidence, log P(x, e)."""

    assignment: dict[str, str]
    log_probability: float
    exact: bool
    seconds: float

    def __repr__(self) -> str:
        """How sure it is, and the first few states."""
        found = list(self.assignment.items())
        lines = [f"  {visible(name)}: {visible(state)}" for name, state in found[:SHOWN]]
        head = f"Explanation of {len(found)} variable{'s' * (len(found) != 1)}, {self.message}, log P(x, e) {self.log_probability:.4f}"
        return "\n".join([head, *lines] + ([f"  and {len(found) - SHOWN} more"] if len(found) > SHOWN else []))

    @property
    def message(self) -> str:
        return "the most probable of all" if self.exact else "the best found; others may be more probable"


def most_probable(net: AnyNetwork, evidence: Mapping[str, object] | None = None, seed: int = 0, *, largest: int = LARGEST) -> Explanation:
    """The most probable state of all variables together: exact while its tables have at most ``largest`` entries, else the best found.

    >>> from unimarg.network import NoisyOr, Variable
    >>> net = Network([Variable("rain"), Variable("wet")], {"wet": ["rain"]}, {"rain": [0.8, 0.2], "wet": NoisyOr(0.1, [0.8])})
    >>> most_probable(net, {"wet": "yes"}).assignment
    {'rain': 'yes', 'wet': 'yes'}
    """
    return explain_all(as_network(net), None, evidence, seed, largest)


def explain_all(net: Network, model: Marginalizer | None, evidence: Mapping[str, object] | None, seed: int, largest: int) -> Explanation:
    """``most_probable`` of networks and models."""
    if isinstance(largest, bool) or not isinstance(largest, int) or largest < 0:
        raise UsageError(f"largest must be a whole number of entries, not {largest!r}")
    began = time.perf_counter()
    asked = Asked(net, model, evidence, None, Options(seed=seed), every=True)
    with np.errstate(divide="ignore"):
        log_l = np.log(asked.query.likelihood)
    fixed = dict(asked.query.evidence.hard) | {i: 0 for i, k in enumerate(net.cards) if k == 1}
    states = _by_elimination(net, fixed, log_l, largest)
    exact = states is not None
    if states is None:
        asked.rule_out()
        states = _by_ascent(asked, fixed, log_l)
    value = float(_score(net, log_l, states[None])[0])
    if value == -math.inf:
        raise impossible(net, asked.query.evidence, asked.frame.support)
    assignment = {v.name: v.states[k] for v, k in zip(net.variables, states.tolist(), strict=True)}
    return Explanation(assignment, value, exact, time.perf_counter() - began)


def _score(net: Network, log_l: Floats, states: Ints) -> Floats:
    """log P(x) l(x) of states ``[n, nodes]``."""
    return net.log_probability(states) + log_l[np.arange(len(net)), states].sum(axis=1)


# --- elimination


class Factor(NamedTuple):
    scope: tuple[int, ...]
    values: Floats  # logs, an axis for each


def _by_elimination(net: Network, fixed: Mapping[int, int], log_l: Floats, largest: int) -> Ints | None:
    """States ``[nodes]``, or None where the tables would be too large."""
    scopes = [s for i in range(len(net)) for s in _scopes(net, i, fixed)]
    logs = np.log(net.cards.astype(float)).tolist()
    if any(math.fsum(logs[v] for v in s) > math.log(largest + 1) for s in scopes):
        return None
    graph = moral_graph(scopes)
    if quick_entries(graph, logs, QUICK * largest) > QUICK * largest:
        return None  # hopeless: the search for a good order would take long to say the same
    order, entries = eliminate(graph, logs, largest)
    if entries > largest:
        return None
    when = {v: t for t, v in enumerate(order)}
    waiting: dict[int, list[Factor]] = {v: [] for v in order}
    for i in range(len(net)):
        for f in _factors(net, i, fixed, log_l):
            if f.scope:
                waiting[min(f.scope, key=when.__getitem__)].append(f)
    choice: list[tuple[int, tuple[int, ...], np.ndarray]] = []
    for v in order:
        rest = tuple(sorted({u for f in waiting[v] for u in f.scope} - {v}))
        total = np.zeros([net.cards[u] for u in (*rest, v)])
        for f in waiting.pop(v):
            total += _align(f, (*rest, v))
        choice.append((v, rest, total.argmax(axis=-1)))
        if rest:
            waiting[min(rest, key=when.__getitem__)].append(Factor(rest, total.max(axis=-1)))
    states = np.zeros(len(net), dtype=np.int64)
    states[list(fixed)] = list(fixed.values())
    for v, rest, best in reversed(choice):
        states[v] = best[tuple(states[u] for u in rest)]
    return states


def _scopes(net: Network, i: int, fixed: Mapping[int, int]) -> list[tuple[int, ...]]:
    """Of the factors of P(x_i | pa_i): a noisy-max in its lowest state falls apart, since all its causes must be absent."""
    scope = tuple(v for v in (*net.parents[i], i) if v not in fixed)
    if isinstance(net.mechanisms[i], NoisyMax) and fixed.get(i) == 0:
        return [(v,) for v in scope]
    return [scope] if scope else []


def _factors(net: Network, i: int, fixed: Mapping[int, int], log_l: Floats) -> list[Factor]:
    """log P(x_i | pa_i) l_i(x_i) as a function of what is not fixed."""
    mechanism, scope = net.mechanisms[i], (*net.parents[i], i)
    kept = tuple(v for v in scope if v not in fixed)
    own = [] if i in fixed else [Factor((i,), log_l[i, : net.cards[i]])]
    with np.errstate(divide="ignore"):
        if not isinstance(mechanism, NoisyMax):
            return [Factor(kept, np.log(mechanism.probabilities[tuple(fixed.get(v, slice(None)) for v in scope)])), *own]
        if fixed.get(i) == 0:
            return [Factor((p,), e[:, 0]) for p, e in zip(net.parents[i], mechanism.log_cdfs[1], strict=True) if p not in fixed]
        sums, effects = mechanism.steps
        for p, e in zip(net.parents[i], effects, strict=True):
            sums = sums + e[fixed[p]] if p in fixed else sums[..., None, :] + e
        values = log_pmf_from_steps(sums)
    return [Factor(kept, values[..., fixed[i]] if i in fixed else values), *own]


def _align(f: Factor, scope: tuple[int, ...]) -> Floats:
    """With its axes in the order of ``scope``, of length 1 where it lacks one."""
    where = {v: a for a, v in enumerate(scope)}
    axes = sorted(range(len(f.scope)), key=lambda a: where[f.scope[a]])
    shape = [1] * len(scope)
    for v, size in zip(f.scope, f.values.shape, strict=True):
        shape[where[v]] = size
    return np.transpose(f.values, axes).reshape(shape)


# --- samples, improved


def _by_ascent(asked: Asked, fixed: Mapping[int, int], log_l: Floats) -> Ints:
    """The best of the samples of a chunk after coordinate ascent."""
    net = asked.net
    estimator = asked.best()[1]
    n = chunk_size(estimator.frame)
    drawn, log_w, _ = estimator.draw(key_from_seed(asked.options.seed), first_sample(0), n)
    possible = np.flatnonzero(np.asarray(log_w) > -np.inf)[:SCORED]
    states = np.unique(np.asarray(drawn)[:, possible].T.astype(np.int64), axis=0)
    if not len(states):
        raise SamplingError(f"no sample of {n} was compatible with the evidence", n, 0.0)
    states = states[np.argsort(-_score(net, log_l, states))[:STARTS]]
    for _ in range(SWEEPS):
        before = states.copy()
        for i in range(len(net)):
            if i not in fixed:
                states[:, i] = _conditional(net, log_l, states, i).argmax(axis=1)
        if (states == before).all():
            break
    return _by_neighbourhoods(net, states[_score(net, log_l, states).argmax()], fixed, log_l, asked.options.seed)


def _by_neighbourhoods(net: Network, states: Ints, fixed: Mapping[int, int], log_l: Floats, seed: int) -> Ints:
    """Never worse than ``states``: the variables around one drawn at random are set to their best, given all others."""
    free = [i for i in range(len(net)) if i not in fixed]
    near = moral_graph((*net.parents[i], i) for i in range(len(net)))
    rng = np.random.default_rng(seed)
    best, size, in_vain = _score(net, log_l, states[None])[0], len(free), 0
    for _ in range(NEIGHBOURHOODS if free else 0):
        released = _around(near, int(rng.choice(free)), fixed, size)
        others = {i: int(states[i]) for i in range(len(net)) if i not in released}
        found = _by_elimination(net, others, log_l, NEIGHBOURHOOD)
        if found is None:
            size = max(size // 2, 1)
            continue
        size = min(size + size // 4 + 1, len(free))  # as large as it may be
        value = best if (found == states).all() else _score(net, log_l, found[None])[0]
        in_vain = 0 if value > best + 1e-9 else in_vain + 1
        if value > best:
            states, best = found, value
        if in_vain >= IN_VAIN:
            break
    return states


def _around(near: Graph, centre: int, fixed: Mapping[int, int], size: int) -> set[int]:
    """The variables nearest to one, those that are not fixed."""
    seen, out, waiting = {centre}, set(), deque([centre])
    while waiting and len(out) < size:
        i = waiting.popleft()
        if i not in fixed:
            out.add(i)
        for j in sorted(near[i] - seen):
            seen.add(j)
            waiting.append(j)
    return out


def _conditional(net: Network, log_l: Floats, states: Ints, i: int) -> Floats:
    """log P(x_i = k, everything else) up to a constant, ``[samples, card]``: the factors of i and of its children."""
    card = int(net.cards[i])
    tiled = np.repeat(states, card, axis=0)
    tiled[:, i] = np.tile(np.arange(card), len(states))
    total = log_l[i, tiled[:, i]]
    with np.errstate(divide="ignore"):
        for c in (i, *net.children[i]):
            total = total + np.log(net.mechanisms[c].rows(tiled[:, list(net.parents[c])])[np.arange(len(tiled)), tiled[:, c]])
    return total.reshape(len(states), card)
