"""The exceptions a user can meet.

UnimargError
├── NetworkError        a network that is not one: cycle, wrong shape, row that does not sum to 1
├── FormatError         a file that cannot be read or written; carries path and line
├── EvidenceError       unknown variable or state, contradictory or malformed evidence
│   └── ImpossibleEvidenceError   the evidence has probability zero, and that is proven
├── TrainingError       the loss is no longer a number; carries the last good model
├── SamplingError       the samples are worth too little to be what was asked for; carries their number and effective number
├── TooExpensiveError   exact inference would need more memory than allowed; carries the figure
└── UsageError          an argument out of range, an unknown name

All of them are ``ValueError`` too: the mistake is in what was given, and the sentence says what.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from itertools import accumulate
from numbers import Integral
from os import PathLike

EFFORT = 4_000_000  # pairs of characters that a suggestion may compare: some tenths of a second at worst


class UnimargError(ValueError):
    """Base of every error this package raises on purpose."""


class NetworkError(UnimargError):
    """The network is not a valid Bayesian network; ``variable`` is the name of the one that spoils it, where it is one."""

    def __init__(self, message: str, variable: str | None = None):
        super().__init__(message)
        self.variable = variable


class FormatError(UnimargError):
    """A file cannot be read or written.

    ``path`` and ``line`` say where; either may be None when it is not known.
    """

    def __init__(self, message: str, path: str | PathLike[str] | None = None, line: int | None = None):
        self.message, self.path, self.line = message, path, line
        where = "" if path is None else f"{path}: " if line is None else f"{path}:{line}: "
        if path is None and line is not None:
            where = f"line {line}: "
        super().__init__(where + message)


class EvidenceError(UnimargError):
    """The evidence does not fit the network."""


class ImpossibleEvidenceError(EvidenceError):
    """The evidence has probability zero under the network."""


def no_state_left(name: str) -> str:
    """The sentence for evidence that is proven impossible at a variable."""
    return f"the evidence is impossible: the findings together leave no state for {name!r}"


class TooExpensiveError(UnimargError):
    """Exact inference was declined; ``predicted_bytes`` is what it would have needed."""

    def __init__(self, message: str, predicted_bytes: float):
        super().__init__(message)
        self.predicted_bytes = predicted_bytes


class TrainingError(UnimargError):
    """Training diverged, or its result could not be written; ``model`` has the last good weights."""

    def __init__(self, message: str, model: object):
        super().__init__(message)
        self.model = model


class SamplingError(UnimargError):
    """``samples`` draws were worth only ``ess``."""

    def __init__(self, message: str, samples: int, ess: float):
        super().__init__(message)
        self.samples, self.ess = samples, ess


class UsageError(UnimargError):
    """An argument is out of range or names something that does not exist."""


def closest(name: object, allowed: Iterable[str], limit: int = 8) -> str:
    """A hint for an unknown name: the closest allowed one, else the first few.

    >>> closest("smok", ["smoke", "lung"])
    "did you mean 'smoke'?"
    >>> closest("LUNG", ["smoke", "lung"])
    "did you mean 'lung'?"
    """
    allowed = list(allowed)
    name = str(name)
    # comparing two names takes as long as the product of their lengths: a hostile file's endless ones get no search
    reach = EFFORT // max(len(name), 1)
    lengths = accumulate(len(a) for a in allowed)
    by_lower = {a.lower(): a for a, total in zip(allowed, lengths, strict=True) if total <= reach}
    match = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    if match:
        return f"did you mean {by_lower[match[0]]!r}?"
    return listed(allowed, limit)


def listed(allowed: Sequence[str], limit: int = 8) -> str:
    """What is allowed, the first few of it.

    >>> listed(["1", "2", "3"], 2)
    "allowed: '1', '2' and 1 more"
    """
    shown = ", ".join(repr(a[:100]) for a in allowed[:limit])
    return f"allowed: {shown}" + (f" and {len(allowed) - limit} more" if len(allowed) > limit else "")


def whole_number(value: object, what: str, least: int, most: int) -> int:
    """The value as an int, or an error that says what it must be."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) <= most:
        raise UsageError(f"{what} must be a whole number from {least} to {most}, not {value!r}")
    return int(value)
