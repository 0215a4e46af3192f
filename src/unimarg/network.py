"""Discrete Bayesian networks: variables, the mechanisms that make them, and the graph.

P(x) = prod_i P(x_i | pa_i). A mechanism is either a ``Table`` of probabilities or a ``NoisyMax``,

    P(X <= k | pa) = L(k) * prod_j F_j(k | pa_j),

with L the cumulative sum of ``leak`` and F_j that of ``contributions[j]`` (net of the leak: Diez 1993).
States ascend from the neutral ("absent") one. A NoisyMax is never expanded to a table unless asked.

Everything here is frozen and validated once; variables are kept in topological order, so a parent's
index is always smaller than its child's.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unimarg.errors import NetworkError, UsageError, closest

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]

ROW_SUM_TOLERANCE = 1e-3  # a row this close to 1 is renormalised, beyond it is an error
ROW_SUM_EXACT = 1e-12  # a row this close to 1 is left alone, so that reading what we wrote changes nothing
MAX_EXPANDED = 2**22  # entries of the largest table that a NoisyMax is expanded to


@dataclass(frozen=True)
class Variable:
    """A named discrete variable. ``group`` is a heading to show it under, such as "symptoms"."""

    name: str
    states: tuple[str, ...] = ("no", "yes")
    group: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise NetworkError(f"a variable's name must be a non-empty string, not {self.name!r}")
        if isinstance(self.states, str):
            raise NetworkError(f"variable {self.name!r}: states must be a list of labels, not the string {self.states!r}")
        states = tuple(self.states)
        object.__setattr__(self, "states", states)
        if not states:
            raise NetworkError(f"variable {self.name!r} has no states")
        for state in states:
            if not isinstance(state, str) or not state:
                raise NetworkError(f"variable {self.name!r}: a state must be a non-empty string, not {state!r}")
        if len(set(states)) != len(states):
            twice = next(s for s in states if states.count(s) > 1)
            raise NetworkError(f"variable {self.name!r} has the state {twice!r} twice")

    @property
    def card(self) -> int:
        return len(self.states)


@dataclass(frozen=True, eq=False)
class Table:
    """P(X = k | pa) as an array ``[*parent_cards, card]``."""

    probabilities: Floats

    def __init__(self, probabilities: ArrayLike):
        object.__setattr__(self, "probabilities", _frozen_array(probabilities, "a table"))

    @property
    def card(self) -> int:
        return self.probabilities.shape[-1]

    @property
    def parent_cards(self) -> tuple[int, ...]:
        return self.probabilities.shape[:-1]

    @property
    def parameter_count(self) -> int:
        """Free parameters: one less than the states, for every parent configuration."""
        return self.probabilities.size - self.probabilities.size // self.card

    def rows(self, parent_states: Ints) -> Floats:
        """P(X = . | pa) for parent states ``[n, parents]``, as ``[n, card]``."""
        return np.broadcast_to(self.probabilities[tuple(np.asarray(parent_states).T)], (len(parent_states), self.card))

    def expand(self, limit: int = MAX_EXPANDED) -> Floats:
        """The full table, which this already is."""
        return self.probabilities

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and np.array_equal(self.probabilities, other.probabilities)


@dataclass(frozen=True, eq=False)
class NoisyMax:
    """Independent causes whose effects combine by the maximum; see the module docstring.

    ``leak`` is a pmf ``[card]`` over the child's states; ``contributions[j]`` is ``[parent_card, card]``,
    the effect of parent j alone. A parent's neutral row puts all mass on the child's first state.
    """

    leak: Floats
    contributions: tuple[Floats, ...]

    def __init__(self, leak: ArrayLike, contributions: Sequence[ArrayLike]):
        object.__setattr__(self, "leak", _frozen_array(leak, "a leak"))
        arrays = tuple(_frozen_array(c, f"contribution {j}") for j, c in enumerate(contributions))
        object.__setattr__(self, "contributions", arrays)
        if self.leak.ndim != 1:
            raise NetworkError(f"a leak must have one dimension, not {self.leak.ndim}")
        for j, c in enumerate(arrays):
            if c.ndim != 2 or c.shape[1] != self.card:
                raise NetworkError(f"contribution {j} must have shape [parent states, {self.card}], not {list(c.shape)}")

    @property
    def card(self) -> int:
        return self.leak.shape[0]

    @property
    def parent_cards(self) -> tuple[int, ...]:
        return tuple(c.shape[0] for c in self.contributions)

    @property
    def parameter_count(self) -> int:
        """Free parameters: the leak's, and one row for each state of a parent but the neutral one."""
        return (self.card - 1) * (1 + sum(c.shape[0] - 1 for c in self.contributions))

    @cached_property
    def log_cdfs(self) -> tuple[Floats, tuple[Floats, ...]]:
        """log L(k) ``[card]`` and log F_j(k | pa_j) ``[parent_card, card]``, exactly 0 at the last state."""
        return _log_cdf(self.leak), tuple(_log_cdf(c) for c in self.contributions)

    def rows(self, parent_states: Ints) -> Floats:
        """P(X = . | pa) for parent states ``[n, parents]``, as ``[n, card]``.

        P(X = k) = exp(S_k) - exp(S_{k-1}), taken as -exp(S_k) expm1(S_{k-1} - S_k) so that small
        differences keep their digits.
        """
        parent_states = np.asarray(parent_states).reshape(len(parent_states), len(self.contributions))
        leak, factors = self.log_cdfs
        sums = np.tile(leak, (len(parent_states), 1))
        for j, factor in enumerate(factors):
            sums += factor[parent_states[:, j]]
        return pmf_from_log_cdf(sums)

    def expand(self, limit: int = MAX_EXPANDED) -> Floats:
        """The full table ``[*parent_cards, card]``, if it has no more than ``limit`` entries."""
        size = float(np.prod([float(c) for c in (*self.parent_cards, self.card)]))
        if size > limit:
            raise NetworkError(
                f"a noisy-max with {len(self.contributions)} parents would need a table of {size:.3g} entries; the limit is {limit}"
            )
        leak, factors = self.log_cdfs
        sums = leak
        for j, factor in enumerate(factors):
            sums = sums[..., None, :] + factor
            assert sums.ndim == j + 2
        return pmf_from_log_cdf(sums)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, NoisyMax)
            and np.array_equal(self.leak, other.leak)
            and len(self.contributions) == len(other.contributions)
            and all(np.array_equal(a, b) for a, b in zip(self.contributions, other.contributions, strict=True))
        )


Mechanism: TypeAlias = Table | NoisyMax


def NoisyOr(leak: float, contributions: Sequence[float]) -> NoisyMax:  # noqa: N802 (reads as a constructor)
    """The binary noisy-max: P(X = 0 | pa) = (1 - leak) * prod over present parents of (1 - contribution).

    >>> NoisyOr(0.1, [0.8]).rows(np.array([[0], [1]])).round(3).tolist()
    [[0.9, 0.1], [0.18, 0.82]]
    """
    return NoisyMax([1 - leak, leak], [[[1.0, 0.0], [1 - c, c]] for c in contributions])


def pmf_from_log_cdf(sums: Floats) -> Floats:
    """P(X = k) from S_k = log P(X <= k) along the last axis; -inf minus -inf counts as no mass."""
    before, here = sums[..., :-1], sums[..., 1:]
    with np.errstate(invalid="ignore"):
        gap = np.where(np.isneginf(here), 0.0, before - here)
    return np.concatenate([np.exp(sums[..., :1]), -np.exp(here) * np.expm1(gap)], axis=-1)


@dataclass(frozen=True, eq=False)
class Network:
    """A Bayesian network, validated, its variables in topological order.

    >>> rain = Variable("rain"); wet = Variable("wet")
    >>> net = Network([rain, wet], {"wet": ["rain"]}, {"rain": [0.8, 0.2], "wet": NoisyOr(0.1, [0.8])})
    >>> net
    Network('network', 2 variables, 1 arc)

    ``parents`` may leave out variables without parents; a mechanism may be given as a plain nested list,
    which is taken as a table.
    """

    variables: tuple[Variable, ...]
    parents: tuple[tuple[int, ...], ...]  # indices, each smaller than the child's
    mechanisms: tuple[Mechanism, ...]
    name: str = field(default="network")

    def __init__(
        self,
        variables: Sequence[Variable],
        parents: Mapping[str, Sequence[str]],
        mechanisms: Mapping[str, Mechanism | ArrayLike],
        name: str = "network",
    ):
        names = [v.name for v in variables]
        _check_names(names, parents, mechanisms)
        position = {n: i for i, n in enumerate(names)}
        by_name = {n: [position[p] for p in parents.get(n, ())] for n in names}
        order = _topological_order(names, [by_name[n] for n in names])
        new = {old: i for i, old in enumerate(order)}
        ordered = tuple(variables[i] for i in order)
        arcs = tuple(tuple(new[p] for p in by_name[v.name]) for v in ordered)
        checked = tuple(_checked_mechanism(v, [ordered[p] for p in pa], mechanisms[v.name]) for v, pa in zip(ordered, arcs, strict=True))
        object.__setattr__(self, "variables", ordered)
        object.__setattr__(self, "parents", arcs)
        object.__setattr__(self, "mechanisms", checked)
        object.__setattr__(self, "name", name)

    def __repr__(self) -> str:
        n, arcs = len(self.variables), self.arc_count
        return f"Network({self.name!r}, {n} variable{'s' * (n != 1)}, {arcs} arc{'s' * (arcs != 1)})"

    def __len__(self) -> int:
        return len(self.variables)

    def __eq__(self, other: object) -> bool:
        """Same variables, arcs and numbers, bit for bit; the network's own name does not count."""
        return (
            isinstance(other, Network)
            and self.variables == other.variables
            and self.parents == other.parents
            and self.mechanisms == other.mechanisms
        )

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(v.name for v in self.variables)

    @cached_property
    def cards(self) -> Ints:
        return np.array([v.card for v in self.variables], dtype=np.int64)

    @cached_property
    def index(self) -> Mapping[str, int]:
        return {n: i for i, n in enumerate(self.names)}

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        lists: list[list[int]] = [[] for _ in self.variables]
        for i, pa in enumerate(self.parents):
            for p in pa:
                lists[p].append(i)
        return tuple(tuple(c) for c in lists)

    @cached_property
    def levels(self) -> Ints:
        """The longest path from a root to each node: parents always lie on a lower level."""
        level = np.zeros(len(self), dtype=np.int64)
        for i, pa in enumerate(self.parents):
            level[i] = 1 + max((level[p] for p in pa), default=-1)
        return level

    @property
    def arc_count(self) -> int:
        return sum(len(pa) for pa in self.parents)

    @property
    def parameter_count(self) -> int:
        return sum(m.parameter_count for m in self.mechanisms)

    def find(self, name: str) -> int:
        """The index of a variable, or an error that suggests the closest name."""
        if name not in self.index:
            raise UsageError(f"there is no variable {name!r}; {closest(name, self.names)}")
        return self.index[name]

    def log_probability(self, states: Ints) -> Floats:
        """log P(x) in float64 for complete states ``[n, nodes]``: the slow reference."""
        states = np.asarray(states)
        total = np.zeros(len(states))
        with np.errstate(divide="ignore"):
            for i, (pa, mechanism) in enumerate(zip(self.parents, self.mechanisms, strict=True)):
                rows = mechanism.rows(states[:, list(pa)])
                total += np.log(rows[np.arange(len(states)), states[:, i]])
        return total


def _frozen_array(values: ArrayLike, what: str) -> Floats:
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as e:
        raise NetworkError(f"{what} must be a regular array of numbers") from e
    if array.ndim == 0 or array.shape[-1] == 0:
        raise NetworkError(f"{what} must have at least one dimension and one state, not the shape {list(array.shape)}")
    array.flags.writeable = False
    return array


def _log_cdf(pmf: Floats) -> Floats:
    cdf = np.cumsum(pmf, axis=-1)
    # 1 - tail keeps the digits where the tail is small, and makes the last entry exactly 1
    tail = np.cumsum(pmf[..., :0:-1], axis=-1)[..., ::-1]
    with np.errstate(divide="ignore"):
        log = np.where(cdf[..., :-1] < 0.5, np.log(cdf[..., :-1]), np.log1p(-np.minimum(tail, 1.0)))
    return np.concatenate([log, np.zeros((*pmf.shape[:-1], 1))], axis=-1)


def _check_names(names: list[str], parents: Mapping[str, Sequence[str]], mechanisms: Mapping[str, object]) -> None:
    known = set(names)
    if not names:
        raise NetworkError("a network needs at least one variable")
    if len(known) != len(names):
        seen: set[str] = set()
        twice = next(n for n in names if n in seen or seen.add(n))
        raise NetworkError(f"two variables are called {twice!r}")
    for given, what in ((parents, "parents"), (mechanisms, "mechanisms")):
        for n in given:
            if n not in known:
                raise NetworkError(f"{what} are given for {n!r}, which is no variable; {closest(n, names)}")
    for n in names:
        if n not in mechanisms:
            raise NetworkError(f"variable {n!r} has no probabilities")
        pa = parents.get(n, ())
        if isinstance(pa, str):
            raise NetworkError(f"the parents of {n!r} must be a list of names, not the string {pa!r}")
        for p in pa:
            if p not in known:
                raise NetworkError(f"variable {n!r} has an unknown parent {p!r}; {closest(p, names)}")
        if len(set(pa)) != len(pa):
            raise NetworkError(f"variable {n!r} has the same parent twice: {', '.join(pa)}")


def _topological_order(names: list[str], parents: list[list[int]]) -> list[int]:
    """Kahn's algorithm that keeps the given order wherever it can."""
    children: list[list[int]] = [[] for _ in names]
    waiting = [len(pa) for pa in parents]
    for i, pa in enumerate(parents):
        for p in pa:
            children[p].append(i)
    ready = [i for i, w in enumerate(waiting) if w == 0]
    order: list[int] = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for c in children[i]:
            waiting[c] -= 1
            if waiting[c] == 0:
                heapq.heappush(ready, c)
    if len(order) < len(names):
        cycle = _find_cycle(parents, {i for i, w in enumerate(waiting) if w > 0})
        raise NetworkError("the arcs form a cycle: " + " -> ".join(names[i] for i in cycle))
    return order


def _find_cycle(parents: list[list[int]], left: set[int]) -> list[int]:
    """Walk up parents among the nodes that never became ready until one comes again."""
    path: list[int] = []
    seen: dict[int, int] = {}
    i = min(left)
    while i not in seen:
        seen[i] = len(path)
        path.append(i)
        i = next(p for p in parents[i] if p in left)
    cycle = [*path[seen[i] :], i][::-1]
    assert all(a in parents[b] for a, b in pairwise(cycle))
    return cycle


def _checked_mechanism(variable: Variable, parents: list[Variable], given: Mechanism | ArrayLike) -> Mechanism:
    mechanism = given if isinstance(given, Table | NoisyMax) else Table(given)
    expected = (*(p.card for p in parents), variable.card)
    if (*mechanism.parent_cards, mechanism.card) != expected:
        raise NetworkError(
            f"the probabilities of {variable.name!r} have shape {[*mechanism.parent_cards, mechanism.card]}; "
            f"its parents ({', '.join(p.name for p in parents) or 'none'}) and states need {list(expected)}"
        )
    if isinstance(mechanism, Table):
        checked = _checked_rows(mechanism.probabilities, variable, parents)
        return mechanism if checked is mechanism.probabilities else Table(checked)
    return _checked_noisy_max(mechanism, variable, parents)


def _checked_noisy_max(mechanism: NoisyMax, variable: Variable, parents: list[Variable]) -> NoisyMax:
    leak = _checked_rows(mechanism.leak, variable, [], "the leak")
    contributions = []
    for parent, given in zip(parents, mechanism.contributions, strict=True):
        rows = _checked_rows(given, variable, [parent], f"the contribution of {parent.name!r}")
        if not (rows[0, 0] == 1 and not rows[0, 1:].any()):
            raise NetworkError(
                f"{variable.name!r}: the contribution of {parent.name!r} in its first (neutral) state "
                f"{parent.states[0]!r} must be [1, 0, ...], not {rows[0].tolist()}"
            )
        contributions.append(rows)
    if leak is mechanism.leak and all(a is b for a, b in zip(contributions, mechanism.contributions, strict=True)):
        return mechanism
    return NoisyMax(leak, contributions)


def _checked_rows(array: Floats, variable: Variable, parents: list[Variable], what: str = "the probabilities") -> Floats:
    """The same array, or a renormalised copy; an error names the first bad row by its parent states."""

    def fail(bad: NDArray[np.bool_], message: str) -> NetworkError:
        where = np.argwhere(bad)[0]
        given = ", ".join(f"{p.name}={p.states[s]}" for p, s in zip(parents, where, strict=True))
        row = array[tuple(where)].tolist()
        shown = f"{row[:6]}{'...' if len(row) > 6 else ''}"
        return NetworkError(f"{what} of {variable.name!r}{' given ' + given if given else ''} {message}: {shown}")

    if not np.isfinite(array).all():
        raise fail(~np.isfinite(array).all(axis=-1), "are not all finite numbers")
    if (array < 0).any():
        raise fail((array < 0).any(axis=-1), "hold a negative number")
    sums = array.sum(axis=-1)
    off = np.abs(sums - 1)
    if (off > ROW_SUM_TOLERANCE).any():
        bad = off > ROW_SUM_TOLERANCE
        raise fail(bad, f"sum to {sums[bad][0]:.6g}, not 1")
    if (off > ROW_SUM_EXACT).any():
        return np.where((off > ROW_SUM_EXACT)[..., None], array / sums[..., None], array)
    return array
