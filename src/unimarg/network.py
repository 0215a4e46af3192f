"""Discrete Bayesian networks: variables, the graph, and a mechanism for each variable.

P(x) = prod_i P(x_i | pa_i), where ``mechanism`` says what P(x_i | pa_i) can be.

Everything here is frozen and validated once; variables are kept in topological order, so a parent's
index is always smaller than its child's.
"""

from __future__ import annotations

import heapq
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unimarg.errors import NetworkError, UsageError, closest
from unimarg.mechanism import Floats, Ints, Mechanism, NoisyMax, NoisyOr, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Floats", "Ints", "Mechanism", "Network", "NoisyMax", "NoisyOr", "Table", "Variable"]

ROW_SUM_TOLERANCE = 1e-3  # a row this close to 1 is renormalised, beyond it is an error
PRESENT = ("yes", "true", "present")  # names of a first state that can hardly mean "absent"
ROW_SUM_EXACT = 1e-12  # a row this close to 1 is left alone, so that reading what we wrote changes nothing


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
        try:
            states = tuple(self.states)
        except TypeError:
            raise NetworkError(f"variable {self.name!r}: states must be a list of labels, not {self.states!r}") from None
        object.__setattr__(self, "states", states)
        if not states:
            raise NetworkError(f"variable {self.name!r} has no states")
        for state in states:
            if not isinstance(state, str) or not state:
                raise NetworkError(f"variable {self.name!r}: a state must be a non-empty string, not {state!r}")
        if len(set(states)) != len(states):
            seen: set[str] = set()
            twice = next(s for s in states if s in seen or seen.add(s))
            raise NetworkError(f"variable {self.name!r} has the state {twice!r} twice")
        if not isinstance(self.group, str):
            raise NetworkError(f"variable {self.name!r}: a group must be a string, not {self.group!r}")

    @property
    def card(self) -> int:
        return len(self.states)


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
        self._fill(variables, parents, mechanisms, name)
        _warn_of_inverted(self)

    @classmethod
    def as_given(
        cls, variables: Sequence[Variable], parents: Mapping[str, Sequence[str]], mechanisms: Mapping[str, Mechanism], name: str
    ) -> Network:
        """A network that no user wrote: of a file, or a part of another. Its states may be called anything."""
        net = cls.__new__(cls)
        net._fill(variables, parents, mechanisms, name)
        return net

    def _fill(
        self,
        variables: Sequence[Variable],
        parents: Mapping[str, Sequence[str]],
        mechanisms: Mapping[str, Mechanism | ArrayLike],
        name: str,
    ) -> None:
        _check_kinds(variables, parents, mechanisms, name)
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

    def _repr_html_(self) -> str:
        from unimarg.display import network_html

        return network_html(self)

    def plot(self, around: str | None = None, distance: int = 1) -> Figure:
        """The graph as a Matplotlib figure, which a notebook shows: all of it, or what is at most ``distance`` arcs from a variable."""
        from unimarg.drawing import network_figure

        return network_figure(self, around, distance)

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
        if not isinstance(name, str) or name not in self.index:
            raise UsageError(f"there is no variable {name!r}; {closest(name, self.names)}")
        return self.index[name]

    def find_all(self, names: Iterable[str] | None, what: str = "targets") -> list[int]:
        """The indices of some variables, of all if None; ``what`` they are to the user. A target that is named twice is one target."""
        if names is None:
            return list(range(len(self)))
        if isinstance(names, str) or not isinstance(names, Iterable):
            raise UsageError(f"{what} must be a list of names, not {'the string ' if isinstance(names, str) else ''}{names!r}")
        found = [self.find(name) for name in names]
        return list(dict.fromkeys(found)) if what == "targets" else found

    def log_probability(self, states: Ints) -> Floats:
        """log P(x) in float64 for complete states ``[n, nodes]``: the slow reference."""
        states = np.asarray(states)
        if states.ndim != 2 or states.shape[1] != len(self) or states.dtype.kind not in "iu":
            raise UsageError(f"states must be whole numbers [rows, {len(self)} variables], not {states.dtype} {list(states.shape)}")
        wrong = np.argwhere((states < 0) | (states >= self.cards))
        if len(wrong):
            row, i = wrong[0].tolist()
            raise UsageError(f"row {row}: {self.names[i]!r} has no state number {states[row, i]}; they go from 0 to {self.cards[i] - 1}")
        total = np.zeros(len(states))
        for i, (pa, mechanism) in enumerate(zip(self.parents, self.mechanisms, strict=True)):
            total += mechanism.log_rows(states[:, list(pa)])[np.arange(len(states)), states[:, i]]
        return total


def _check_kinds(variables: object, parents: object, mechanisms: object, name: object) -> None:
    if isinstance(variables, str) or not isinstance(variables, Sequence):
        raise NetworkError(f"variables must be a list of Variable, not {variables!r}")
    for v in variables:
        if not isinstance(v, Variable):
            raise NetworkError(f"variables must be a list of Variable, and {v!r} is none; Variable('name', ('no', 'yes')) makes one")
    for given, what, of in ((parents, "parents", "the names of its parents"), (mechanisms, "mechanisms", "its probabilities")):
        if not isinstance(given, Mapping):
            raise NetworkError(f"{what} must be a mapping from a variable's name to {of}, not {given!r}")
    if not isinstance(name, str):
        raise NetworkError(f"a network's name must be a string, not {name!r}")


def _check_names(names: list[str], parents: Mapping[str, Sequence[str]], mechanisms: Mapping[str, object]) -> None:
    known = set(names)
    if not names:
        raise NetworkError("a network needs at least one variable")
    if len(known) != len(names):
        seen: set[str] = set()
        twice = next(n for n in names if n in seen or seen.add(n))
        raise NetworkError(f"two variables are called {twice!r}", twice)
    for given, what in ((parents, "parents"), (mechanisms, "mechanisms")):
        for n in given:
            if n not in known:
                raise NetworkError(f"{what} are given for {n!r}, which is no variable; {closest(n, names)}")
    for n in names:
        if n not in mechanisms:
            raise NetworkError(f"variable {n!r} has no probabilities", n)
        pa = parents.get(n, ())
        if isinstance(pa, str) or not isinstance(pa, Collection):
            raise NetworkError(f"the parents of {n!r} must be a list of names, not {'the string ' * isinstance(pa, str)}{pa!r}", n)
        for p in pa:
            if not isinstance(p, str) or p not in known:
                raise NetworkError(f"variable {n!r} has an unknown parent {p!r}; {closest(p, names)}", n)
        if len(set(pa)) != len(pa):
            raise NetworkError(f"variable {n!r} has the same parent twice: {', '.join(pa)}", n)


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
        raise NetworkError("the arcs form a cycle: " + " -> ".join(names[i] for i in cycle), names[min(cycle)])
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
        named = ", ".join(p.name for p in parents) or "none"
        told = f"the probabilities of {variable.name!r} have shape {[*mechanism.parent_cards, mechanism.card]}; "
        told += f"its parents ({named}) and states need {list(expected)}"
        if isinstance(mechanism, NoisyMax) and mechanism.card != variable.card:
            told = (
                f"{variable.name!r} has {variable.card} states and its leak {mechanism.card}; NoisyOr is for two, NoisyMax for any number"
            )
        elif isinstance(mechanism, NoisyMax) and len(mechanism.contributions) != len(parents):
            told = f"{variable.name!r} has {len(mechanism.contributions)} contributions, and needs one for each parent ({named})"
        raise NetworkError(told, variable.name)
    if isinstance(mechanism, Table):
        checked = _checked_rows(mechanism.probabilities, variable, parents)
        return mechanism if checked is mechanism.probabilities else Table(checked)
    return _checked_noisy_max(mechanism, variable, parents)


def _checked_noisy_max(mechanism: NoisyMax, variable: Variable, parents: list[Variable]) -> NoisyMax:
    leak = _checked_rows(mechanism.leak, variable, [], "the numbers in the leak of")
    contributions = []
    for parent, given in zip(parents, mechanism.contributions, strict=True):
        rows = _checked_rows(given, variable, [parent], f"the numbers in the contribution of {parent.name!r} to")
        if not (rows[0, 0] == 1 and not rows[0, 1:].any()):
            raise NetworkError(
                f"{variable.name!r}: the contribution of {parent.name!r} in its first (neutral) state "
                f"{parent.states[0]!r} must be [1, 0, ...], not {rows[0].tolist()}",
                variable.name,
            )
        contributions.append(rows)
    if leak is mechanism.leak and all(a is b for a, b in zip(contributions, mechanism.contributions, strict=True)):
        return mechanism
    return NoisyMax(leak, contributions)


def _warn_of_inverted(net: Network) -> None:
    """Numbers for "present" that stand at "absent" give answers, wrong ones."""
    noisy = [i for i, m in enumerate(net.mechanisms) if isinstance(m, NoisyMax)]
    first = [net.variables[j] for j in sorted({j for i in noisy for j in (i, *net.parents[i])})]
    wrong = [f"{v.name!r} ({v.states[0]!r})" for v in first if v.card > 1 and v.states[0].lower() in PRESENT]
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        message = f'a noisy-OR or noisy-max takes the first state of a node and of its parents for "absent": {", ".join(wrong[:5])}{more}'
        warnings.warn(f"{message}; is the order of the states right?", stacklevel=3)


def _checked_rows(array: Floats, variable: Variable, parents: list[Variable], what: str = "the probabilities of") -> Floats:
    """The same array, or a renormalised copy; an error names the first bad row by its parent states."""

    def fail(bad: NDArray[np.bool_], message: str) -> NetworkError:
        where = np.argwhere(bad)[0]
        given = ", ".join(f"{p.name}={p.states[s]}" for p, s in zip(parents, where, strict=True))
        row = array[tuple(where)].tolist()
        shown = f"{row[:6]}{'...' if len(row) > 6 else ''}"
        return NetworkError(f"{what} {variable.name!r}{' given ' + given if given else ''} {message}: {shown}", variable.name)

    infinite = np.asarray(~np.isfinite(array).all(axis=-1))
    if infinite.any():
        raise fail(infinite, "are not all finite numbers")
    negative = np.asarray((array < 0).any(axis=-1))
    if negative.any():
        raise fail(negative, "include a negative one")
    with np.errstate(over="ignore"):  # a sum of absurd numbers is infinite, and reported
        sums = array.sum(axis=-1)
    off = np.abs(sums - 1)
    if (off > ROW_SUM_TOLERANCE).any():
        bad = off > ROW_SUM_TOLERANCE
        raise fail(bad, f"sum to {sums[bad][0]:.6g}, not 1")
    if (off > ROW_SUM_EXACT).any():
        return np.where((off > ROW_SUM_EXACT)[..., None], array / sums[..., None], array)
    return array
