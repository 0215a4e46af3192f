"""How a variable arises from its parents: a table of probabilities, or a noisy-max,

    P(X <= k | pa) = L(k) * prod_j F_j(k | pa_j),

with L the cumulative sum of ``leak`` and F_j that of ``contributions[j]`` (net of the leak: Diez 1993).
States ascend from the neutral ("absent") one. A NoisyMax is never expanded to a table unless asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unimarg.errors import NetworkError

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]

LEAST_PRODUCT = 1e-299  # of the numbers of a NoisyMax whose table has no false zeros; above what ``reduction`` raises faint ones to
MAX_EXPANDED = 2**22  # entries of the largest table that a NoisyMax is expanded to
MAX_AXES = 64  # numpy's limit; a table has one axis for each parent and one for the child


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
    def entries(self) -> float:
        """Of the table."""
        return float(self.probabilities.size)

    @property
    def parameter_count(self) -> int:
        """Free parameters: one less than the states, for every parent configuration."""
        return self.probabilities.size - self.probabilities.size // self.card

    def rows(self, parent_states: Ints) -> Floats:
        """P(X = . | pa) for parent states ``[n, parents]``, as ``[n, card]``."""
        chosen = self.probabilities[tuple(np.asarray(parent_states).T)]
        return np.broadcast_to(chosen, (len(parent_states), self.card))  # a root has one row for all

    def log_rows(self, parent_states: Ints) -> Floats:
        """Their logarithms."""
        with np.errstate(divide="ignore"):
            return np.log(self.rows(parent_states))

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
        if not isinstance(contributions, Iterable):
            raise NetworkError(f"contributions must be a list of arrays, one for each parent, not {contributions!r}")
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
    def entries(self) -> float:
        """Of its table; infinite where there can be none, since parents of a single state take an axis too."""
        return math.inf if len(self.contributions) >= MAX_AXES else self._combinations

    @property
    def _combinations(self) -> float:
        return math.prod(map(float, (*self.parent_cards, self.card)))  # inf beyond 1e308, without a warning

    @property
    def parameter_count(self) -> int:
        """Free parameters: the leak's, and one row for each state of a parent but the neutral one."""
        return (self.card - 1) * (1 + sum(c.shape[0] - 1 for c in self.contributions))

    @cached_property
    def steps(self) -> tuple[Floats, tuple[Floats, ...]]:
        """``steps_of`` the leak ``[card - 1]`` and of each contribution ``[parent_card, card - 1]``; given pa, those of X are their sum."""
        return self._of_each(steps_of)

    @cached_property
    def log_cdfs(self) -> tuple[Floats, tuple[Floats, ...]]:
        """log L(k) ``[card]`` and log F_j(k | pa_j) ``[parent_card, card]``, exactly 0 at the last state."""
        return self._of_each(_log_cdf)

    def _of_each(self, of: Callable[[Floats], Floats]) -> tuple[Floats, tuple[Floats, ...]]:
        """Of the leak and of each contribution, all rows at once."""
        leak, *effects = np.split(of(np.concatenate([self.leak[None], *self.contributions])), np.cumsum([1, *self.parent_cards[:-1]]))
        return leak[0], tuple(effects) if self.contributions else ()

    @cached_property
    def has_table(self) -> bool:
        """Whether all products of its numbers are numbers, so that a zero in its table is one."""
        return math.fsum(math.log(a[a > 0].min()) for a in (self.leak, *self.contributions)) > math.log(LEAST_PRODUCT)

    def rows(self, parent_states: Ints) -> Floats:
        """P(X = . | pa) for parent states ``[n, parents]``, as ``[n, card]``."""
        return pmf_from_steps(self._steps_given(parent_states))

    def log_rows(self, parent_states: Ints) -> Floats:
        """Their logarithms, also where a probability is below 1e-308."""
        return log_pmf_from_steps(self._steps_given(parent_states))

    def _steps_given(self, parent_states: Ints) -> Floats:
        parent_states = np.asarray(parent_states).reshape(len(parent_states), len(self.contributions))
        leak, effects = self.steps
        sums = np.tile(leak, (len(parent_states), 1))
        for j, effect in enumerate(effects):
            sums += effect[parent_states[:, j]]
        return sums

    def expand(self, limit: int = MAX_EXPANDED) -> Floats:
        """The full table ``[*parent_cards, card]``, if it has no more than ``limit`` entries."""
        if self.entries > limit:
            parents, size = len(self.contributions), self._combinations
            needed = (
                f"of {size:.3g} entries; the limit is {limit}"
                if size > limit
                else f"with an axis for each; the limit is {MAX_AXES - 1} parents"
            )
            raise NetworkError(f"a noisy-max with {parents} parents would need a table {needed}")
        sums, effects = self.steps
        for j, effect in enumerate(effects):
            sums = sums[..., None, :] + effect
            assert sums.ndim == j + 2
        return pmf_from_steps(sums)

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

    State 0 of the node and of each parent is "absent", as in ``Variable(name)`` with its states no and yes; with the states yes and no, in
    this order, the same numbers would mean the opposite, of which ``Network`` warns.

    >>> NoisyOr(0.1, [0.8]).rows(np.array([[0], [1]])).round(3).tolist()
    [[0.9, 0.1], [0.18, 0.82]]
    """
    try:
        return NoisyMax([1 - leak, leak], [[[1.0, 0.0], [1 - c, c]] for c in contributions])
    except TypeError:
        given = f"{leak!r} and {contributions!r}"
        raise NetworkError(f"a NoisyOr takes a number, the leak, and a list of numbers, one for each parent, not {given}") from None


def steps_of(pmf: Floats) -> Floats:
    """log P(X < k) - log P(X <= k) = log(1 - P(X = k | X <= k)) for k = 1 .. card-1 along the last axis; 0 where both are impossible.

    From the shares themselves: as a difference of cumulative probabilities, a state that is rare beside those before it would be lost.

    >>> steps_of(np.array([0.5, 1e-20, 0.5])).tolist()
    [-2e-20, -0.6931471805599453]
    """
    cdf = np.cumsum(pmf, axis=-1)
    before, upto = cdf[..., :-1], cdf[..., 1:]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.divide(pmf[..., 1:], upto, out=np.zeros_like(upto), where=upto > 0)
        return np.where(share < 0.5, np.log1p(-share), np.log(before / upto))


def pmf_from_steps(steps: Floats) -> Floats:
    """P(X = k) from sums of ``steps_of``, which have one sign, so that nothing cancels."""
    out = np.empty((*steps.shape[:-1], steps.shape[-1] + 1))
    out[..., -1] = 1.0
    for k in range(steps.shape[-1], 0, -1):  # out[..., k] is P(X <= k) so far
        np.multiply(out[..., k], np.exp(steps[..., k - 1]), out=out[..., k - 1])
        out[..., k] *= 0.0 - np.expm1(steps[..., k - 1])  # not -0.0 where there is no step
    return out


def log_pmf_from_steps(steps: Floats) -> Floats:
    """Its logarithm: causes that leave X little each leave it less together than a number can be.

    >>> log_pmf_from_steps(np.array([-800.0])).tolist()
    [-800.0, 0.0]
    """
    log = np.zeros((*steps.shape[:-1], steps.shape[-1] + 1))
    log[..., :-1] = np.cumsum(steps[..., ::-1], axis=-1)[..., ::-1]  # log P(X <= k)
    with np.errstate(divide="ignore"):
        log[..., 1:] += np.log(-np.expm1(steps))
    return log


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
