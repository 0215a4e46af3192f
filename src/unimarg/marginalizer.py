"""The Universal Marginalizer: one network that gives every posterior marginal under any evidence.

UM(e)_i(k) ~ P(X_i = k | e)        for all i at once, in one forward pass (paper, section 2)
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from os import PathLike
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from unimarg.encoding import encode, one_hot
from unimarg.errors import UsageError, closest
from unimarg.evidence import Evidence, parse_evidence
from unimarg.network import Floats, Network
from unimarg.posterior import Posterior
from unimarg.presets import Recipe
from unimarg.ragged import Ragged
from unimarg.trunk import Trunk

if TYPE_CHECKING:
    import pandas as pd

METHODS = ("um", "exact")
BATCHES = (1, 64, 4096)  # rows of a compiled forward pass; a batch is padded to one of these


@dataclass(frozen=True, eq=False)
class Marginalizer:
    """A trained network together with the Bayesian network it answers for; made by ``unimarg.train``."""

    net: Network
    recipe: Recipe
    trunk: Trunk
    priors: tuple[Floats, ...]  # P(X_i = k), estimated, one [card] for each node
    history: Mapping[str, Any] = field(default_factory=dict)  # how it was trained: seed, steps, seconds, loss

    @cached_property
    def ragged(self) -> Ragged:
        return Ragged(tuple(self.net.cards.tolist()))

    @cached_property
    def _prior_slots(self) -> tuple[jax.Array, jax.Array]:
        return prior_slots(self.priors, self.ragged)

    def __repr__(self) -> str:
        size = sum(a.size for a in jax.tree.leaves(self.trunk))
        return f"Marginalizer({self.net.name!r}, preset {self.recipe.preset!r}, {size:,} weights, {self.history.get('steps', 0):,} steps)"

    def save(self, path: str | PathLike[str]) -> None:
        """Write one ``.um`` file with the network inside; ``unimarg.load_model`` reads it."""
        from unimarg.checkpoint import save_model

        save_model(self, path)

    def query(
        self, evidence: Mapping[str, object] | None = None, targets: Sequence[str] | None = None, method: str = "um", **options: Any
    ) -> Posterior:
        """Posterior marginals of the targets (all variables if None).

        ``um`` is one forward pass: fast, approximate, without an error of its own. ``exact`` is ``unimarg.exact``.
        """
        if method == "exact":
            from unimarg.exact import exact

            return exact(self.net, evidence, targets, **options)
        if method != "um":
            raise UsageError(f"there is no method {method!r}; {closest(method, METHODS)}")
        start = time.perf_counter()
        nodes = range(len(self.net)) if targets is None else [self.net.find(name) for name in targets]
        row = self.marginals([parse_evidence(self.net, evidence)])[0]
        edges = np.cumsum([0, *self.net.cards])
        unknown = float("nan")
        return Posterior(
            variables=tuple(self.net.variables[i] for i in nodes),
            probabilities=tuple(row[edges[i] : edges[i + 1]] for i in nodes),
            std_errors=tuple(np.full(self.net.cards[i], unknown) for i in nodes),
            log_evidence=unknown,
            log_evidence_error=unknown,
            ess=unknown,
            k_hat=unknown,
            samples=0,
            method="um",
            status="ok",
            seconds=time.perf_counter() - start,
            message="one forward pass, without an error of its own",
        )

    def marginals(self, evidence: Sequence[Evidence]) -> Floats:
        """``[rows, states]``: the states of all nodes side by side, one row for each evidence."""
        return self._marginals(*self._arrays(evidence))

    def predict_proba(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Marginals for every row of a table; an empty cell is unobserved, so every row has its own evidence.

        Columns are variables, cells are state labels or indices. The result's columns are (variable, state).
        """
        import pandas as pd

        from unimarg.tables import states_from_frame

        states = states_from_frame(self.net, frame)
        columns = pd.MultiIndex.from_tuples([(v.name, s) for v in self.net.variables for s in v.states], names=["variable", "state"])
        return pd.DataFrame(self.marginals_of_states(states), index=frame.index, columns=columns)

    def marginals_of_states(self, states: np.ndarray) -> np.ndarray:
        """As ``marginals``, float32, from states ``[rows, nodes]`` with -1 where unobserved."""
        ordered = states[:, self.ragged.order]
        values = np.asarray(one_hot(jnp.asarray(ordered), self.ragged))
        return self._marginals(ordered >= 0, values)

    def embed(self, evidence: Mapping[str, object] | Iterable[Mapping[str, object]] | None) -> np.ndarray:
        """The trunk's last hidden layer, ``[width]`` or ``[rows, width]``: features for learning downstream."""
        single = evidence is None or isinstance(evidence, Mapping)
        given = [evidence] if single else list(evidence)
        known, values = self._arrays([parse_evidence(self.net, e) for e in given])  # pyright: ignore[reportArgumentType]
        out = self._forward(known, values, features=True)
        return out[0] if single else out

    def _arrays(self, evidence: Sequence[Evidence]) -> tuple[np.ndarray, np.ndarray]:
        """Flags ``[rows, nodes]`` and values ``[rows, slots]`` in the order of ``ragged``."""
        ragged = self.ragged
        known = np.zeros((len(evidence), len(self.net)), dtype=bool)
        values = np.zeros((len(evidence), ragged.slots), dtype=np.float32)
        for row, e in enumerate(evidence):
            for i, k in e.hard.items():
                known[row, ragged.place[i]] = True
                if k:
                    values[row, ragged.slot[i] + k - 1] = 1
            for i, likelihood in e.virtual.items():
                known[row, ragged.place[i]] = True
                values[row, ragged.slot[i] : ragged.slot[i] + self.net.cards[i] - 1] = (likelihood / likelihood.sum())[1:]
        return known, values

    def _marginals(self, known: np.ndarray, values: np.ndarray) -> np.ndarray:
        return self._forward(known, values, features=False)[:, self.ragged.states_order]

    def _forward(self, known: np.ndarray, values: np.ndarray, features: bool) -> np.ndarray:
        priors, logits = self._prior_slots
        pieces = []
        for first in range(0, len(known), BATCHES[-1]):
            part = slice(first, first + BATCHES[-1])
            rows = len(known[part])
            pad = next(b for b in BATCHES if b >= rows) - rows
            k, v = (np.pad(a[part], ((0, pad), (0, 0))) for a in (known, values))
            pieces.append(np.asarray(_answer(self.ragged, self.recipe.encoding, features, self.trunk, priors, logits, k, v))[:rows])
        return np.concatenate(pieces) if pieces else np.zeros((0, 0), np.float32)


@partial(jax.jit, static_argnames=("ragged", "encoding", "features"))
def _answer(ragged: Ragged, encoding: Any, features: bool, trunk: Trunk, priors: Any, prior_logits: Any, known: Any, values: Any) -> Any:
    x = encode(encoding, known, values, ragged, priors)
    if features:
        return trunk.features(x)
    estimates = [jnp.exp(p) for p in ragged.log_softmax(trunk(x, prior_logits)["marginal"])]
    # what is certain is returned as given; a likelihood is not certain
    out, at = [], 0
    for estimate, value in zip(estimates, ragged.split(values), strict=True):
        n = estimate.shape[-2]
        given = jnp.concatenate([1 - value.sum(axis=-1, keepdims=True), value], axis=-1)
        certain = known[:, at : at + n, None] & (given.max(axis=-1, keepdims=True) == 1)
        out.append(jnp.where(certain, given, estimate))
        at += n
    return ragged.join(out)


def prior_slots(priors: Sequence[Floats], ragged: Ragged) -> tuple[jax.Array, jax.Array]:
    """Prior probabilities and logits against state 0, ``[slots]`` each."""
    ordered = [priors[i] for i in ragged.order]
    probabilities = np.concatenate([p[1:] for p in ordered])
    logits = np.concatenate([np.log(p[1:] / p[0]) for p in ordered])
    return jnp.asarray(probabilities, jnp.float32), jnp.asarray(logits, jnp.float32)
