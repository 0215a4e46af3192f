"""What a query returns: marginals, their errors, and how far to trust them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from unimarg.errors import UsageError, closest
from unimarg.names import visible
from unimarg.network import Floats, Variable

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

SHOWN = 6  # variables, and states of each, in a repr


@dataclass(frozen=True, eq=False)
class Posterior(Mapping[str, dict[str, float]]):
    """Posterior marginals of some variables given evidence.

    ``post["lung"]`` is ``{"yes": 0.10, "no": 0.90}``. Exact answers have zero errors, infinite ESS and
    method ``exact``.
    """

    variables: tuple[Variable, ...]
    probabilities: tuple[Floats, ...]  # one [card] for each variable
    std_errors: tuple[Floats, ...]  # likewise
    log_evidence: float  # of uncertain findings: of their mean likelihood, which may be above 1
    log_evidence_error: float
    ess: float
    k_hat: float
    samples: int
    method: str
    status: str  # ok, low_ess or failed
    seconds: float
    message: str = ""  # what there is to say, where the status is not ok in any case

    @classmethod
    def exact(
        cls,
        variables: Sequence[Variable],
        probabilities: Sequence[Floats],
        log_evidence: float,
        seconds: float,
        zeros: tuple[Floats, ...] | None = None,
    ) -> Posterior:
        """An answer without sampling error; many may share their ``zeros``."""
        zeros = tuple(np.zeros(len(p)) for p in probabilities) if zeros is None else zeros
        return cls(tuple(variables), tuple(probabilities), zeros, log_evidence, 0.0, np.inf, -np.inf, 0, "exact", "ok", seconds)

    @classmethod
    def one_pass(cls, variables: Sequence[Variable], probabilities: Sequence[Floats], seconds: float, message: str) -> Posterior:
        """By a trained network alone, which has no error of its own."""
        unknown = tuple(np.full(v.card, np.nan) for v in variables)
        return cls(tuple(variables), tuple(probabilities), unknown, np.nan, np.nan, np.nan, np.nan, 0, "um", "ok", seconds, message)

    @classmethod
    def failed(cls, variables: Sequence[Variable], method: str, message: str, seconds: float) -> Posterior:
        """No answer, and why: nothing but NaN."""
        unknown = tuple(np.full(v.card, np.nan) for v in variables)
        return cls(tuple(variables), unknown, unknown, np.nan, np.nan, 0.0, np.inf, 0, method, "failed", seconds, message)

    @cached_property
    def _positions(self) -> Mapping[str, int]:
        return {v.name: i for i, v in enumerate(self.variables)}

    def _position(self, name: str) -> int:
        if name not in self._positions:
            raise UsageError(f"{name!r} is not among the targets; {closest(name, self._positions)}")
        return self._positions[name]

    def __getitem__(self, name: str) -> dict[str, float]:
        i = self._position(name)
        return dict(zip(self.variables[i].states, self.probabilities[i].tolist(), strict=True))

    def __contains__(self, name: object) -> bool:
        return name in self._positions

    def __iter__(self) -> Iterator[str]:
        return (v.name for v in self.variables)

    def __len__(self) -> int:
        return len(self.variables)

    def get(self, name: str, default: Any = None) -> Any:
        """As a dictionary's; the inherited one waits for a KeyError."""
        if name not in self:
            return default
        return self[name]

    def error(self, name: str) -> dict[str, float]:
        """The standard error of each state's probability."""
        i = self._position(name)
        return dict(zip(self.variables[i].states, self.std_errors[i].tolist(), strict=True))

    def rows(self) -> Iterator[tuple[str, str, float, float]]:
        """(variable, state, probability, standard error) for every state, in order."""
        for v, p, e in zip(self.variables, self.probabilities, self.std_errors, strict=True):
            yield from zip([v.name] * v.card, v.states, p.tolist(), e.tolist(), strict=True)

    def table(self) -> pd.DataFrame:
        """A DataFrame with columns variable, state, probability, std_error."""
        import pandas as pd

        return pd.DataFrame(list(self.rows()), columns=["variable", "state", "probability", "std_error"])

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, ready for JSON (infinite and undefined become None)."""

        def number(x: float) -> float | None:
            return float(x) if np.isfinite(x) else None

        return {
            "method": self.method,
            "status": self.status,
            "message": self.message,
            "log_evidence": number(self.log_evidence),
            "log_evidence_error": number(self.log_evidence_error),
            "ess": number(self.ess),
            "k_hat": number(self.k_hat),
            "samples": self.samples,
            "seconds": self.seconds,
            "marginals": {n: {s: number(p) for s, p in self[n].items()} for n in self},
            "std_errors": {n: {s: number(e) for s, e in self.error(n).items()} for n in self},
        }

    def __repr__(self) -> str:
        """The method, and the first few marginals with their errors."""
        trust = f"Posterior of {len(self)} variable{'s' * (len(self) != 1)} by {self.method}"
        trust += f", {self.status}" if self.samples or self.status != "ok" else ""
        trust += f", {self.samples:,} samples worth {self.ess:,.0f}" if self.samples else ""
        trust += f", log P(e) {self.log_evidence:.4f}" if np.isfinite(self.log_evidence) else ""
        lines = []
        for v, p, error in zip(self.variables[:SHOWN], self.probabilities, self.std_errors, strict=False):
            states = ", ".join(f"{visible(s)} {x:.4f}" for s, x in list(zip(v.states, p, strict=True))[:SHOWN])
            rest = ", ..." if v.card > SHOWN else ""
            lines.append(f"  {visible(v.name)}: {states}{rest}" + (f" (± {error.max():.1g})" if error.max() > 0 else ""))
        return "\n".join([trust, *lines] + ([f"  and {len(self) - SHOWN} more"] if len(self) > SHOWN else []))

    def _repr_html_(self) -> str:
        from unimarg.display import posterior_html

        return posterior_html(self)

    def plot(self, names: Sequence[str] | None = None) -> Figure:
        """Bars of some variables (all if None) with whiskers of two standard errors: a Matplotlib figure, which a notebook shows."""
        from unimarg.plots import posterior_figure

        return posterior_figure(self, names)
