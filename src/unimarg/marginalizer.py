"""The Universal Marginalizer: one network that gives every posterior marginal under any evidence.

UM(e)_i(k) ~ P(X_i = k | e)        for all i at once, in one forward pass (paper, section 2)
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any, overload

import jax
import jax.numpy as jnp
import numpy as np

from unimarg.conflict import impossible
from unimarg.encoding import one_hot
from unimarg.errors import EvidenceError, ImpossibleEvidenceError, UsageError
from unimarg.evidence import Evidence, one_set, parse_evidence
from unimarg.masking import can_show
from unimarg.network import Floats, Network
from unimarg.passes import TINY, Passes
from unimarg.posterior import Posterior
from unimarg.presets import Recipe
from unimarg.ragged import Ragged
from unimarg.student import Student
from unimarg.trunk import Trunk

if TYPE_CHECKING:
    import pandas as pd

    from unimarg.explanation import Explanation


@dataclass(frozen=True, eq=False)
class Marginalizer:
    """A trained network together with the Bayesian network it answers for, ``net``; made by ``unimarg.train``."""

    net: Network
    recipe: Recipe
    trunk: Trunk
    priors: tuple[Floats, ...]  # P(X_i = k), estimated, one [card] for each node
    history: Mapping[str, Any] = field(default_factory=dict)  # how it was trained: seed, steps, seconds, loss
    student: Student | None = None  # for SUM-IS, where the recipe has one

    @cached_property
    def passes(self) -> Passes:
        return Passes(self.net, self.recipe, self.trunk, self.priors)

    @property
    def ragged(self) -> Ragged:
        return self.passes.ragged

    def __repr__(self) -> str:
        size = sum(a.size for a in jax.tree.leaves((self.trunk, self.student)))
        return f"Marginalizer({self.net.name!r}, preset {self.recipe.preset!r}, {size:,} weights, {self.history.get('steps', 0):,} steps)"

    def save(self, path: str | PathLike[str]) -> None:
        """Write one ``.um`` file with the network inside; ``unimarg.load_model`` reads it."""
        from unimarg.checkpoint import save_model

        save_model(self, path)

    @overload
    def query(
        self, evidence: Mapping[str, object] | None = None, targets: Sequence[str] | None = None, method: str = "auto", **options: Any
    ) -> Posterior: ...

    @overload
    def query(
        self,
        evidence: Iterable[Mapping[str, object]] | pd.DataFrame,
        targets: Sequence[str] | None = None,
        method: str = "auto",
        **options: Any,
    ) -> list[Posterior]: ...

    def query(
        self,
        evidence: Mapping[str, object] | Iterable[Mapping[str, object]] | pd.DataFrame | None = None,
        targets: Sequence[str] | None = None,
        method: str = "auto",
        **options: Any,
    ) -> Any:
        """Posterior marginals of the targets (all variables if None).

        ``um`` is one forward pass: fast, approximate, without an error of its own. The other methods have one: auto, exact, prior,
        independent, hybrid, message, lookahead, adaptive, sequential. ``options``: ``samples``, ``target_error`` (the largest
        standard error over the targets; None: draw all samples), ``seconds``, ``beta`` (of hybrid: a number, one for each variable, a
        mapping by name, a function of states and evidence, "fit"), ``structure``, ``seed``, ``memory`` (of exact: bytes).
        An option that has no effect on the method is an error. For a list of evidence sets, or a table of them, there is a list of answers.
        """
        from unimarg.inference import answer

        return answer(self.net, self, evidence, targets, method, **options)

    def sample_posterior(
        self,
        evidence: Mapping[str, object] | None = None,
        n: int = 1000,
        method: str = "auto",
        weighted: bool | None = None,
        seed: int = 0,
        *,
        targets: Sequence[str] | None = None,
        **options: Any,
    ) -> Any:
        """Samples of the joint posterior, as ``unimarg.sample_posterior``; any proposal of ``query`` may draw them.

        ``method="sequential", weighted=False, structure=False`` gives the paper's raw samples by the chain of conditionals.
        """
        from unimarg.joint_posterior import posterior_samples

        return posterior_samples(self.net, self, evidence, n, targets, method, weighted, seed=seed, **options)

    def joint(self, evidence: Mapping[str, object] | None, names: Sequence[str], method: str = "auto", **options: Any) -> pd.DataFrame:
        """P(names | evidence) for every combination of states, as ``unimarg.joint``."""
        from unimarg.joint_marginals import joint_table

        return joint_table(self.net, self, evidence, names, method, **options)

    def most_probable(self, evidence: Mapping[str, object] | None = None, seed: int = 0, *, largest: int | None = None) -> Explanation:
        """The most probable state of all variables together, as ``unimarg.most_probable``."""
        from unimarg.explanation import LARGEST, explain_all

        return explain_all(self.net, self, evidence, seed, LARGEST if largest is None else largest)

    @property
    def sequential(self) -> bool:
        """Whether there is a network of one hidden layer, which sequential importance sampling needs."""
        plain = not self.recipe.architecture.residual and len(self.recipe.architecture.hidden) == 1 and not self.recipe.rounds
        return plain or self.student is not None

    def one_shot(self, evidence: Evidence, nodes: Sequence[int]) -> Posterior:
        """``query`` by one forward pass."""
        start = time.perf_counter()
        return self._without_error(evidence, self.marginals([evidence])[0], nodes, time.perf_counter() - start)

    def one_shots(self, evidence: Sequence[Evidence], nodes: Sequence[int]) -> list[Posterior]:
        """Many queries by one forward pass; an impossible one fails alone."""
        start = time.perf_counter()
        rows, contradiction = self.answers(evidence)
        seconds = (time.perf_counter() - start) / max(len(rows), 1)
        variables = [self.net.variables[i] for i in nodes]
        return [
            self._without_error(e, row, nodes, seconds) if c < 0 else Posterior.failed(variables, "um", str(self.impossible(e)), seconds)
            for e, row, c in zip(evidence, rows, contradiction.tolist(), strict=True)
        ]

    @cached_property
    def observable(self) -> np.ndarray:
        """bool ``[nodes]``, False where training never showed a finding."""
        return can_show(self.recipe.mask, len(self.net))

    def about_one_shot(self, evidence: Evidence) -> str:
        """What an answer by one forward pass says of itself."""
        unseen = [i for i in evidence.telling if not self.observable[i]]
        told = ["one forward pass, without an error of its own"]
        told += [f"not to be trusted: {self._never_shown(unseen)}"] if unseen else []
        if any(i in evidence.virtual for i in evidence.telling):
            share = f"{100 * self.recipe.virtual:.3g}% of the findings" if self.recipe.virtual else "none of the findings"
            told.append(
                f"uncertain findings may move it too far or too little, {share} in training were: method 'auto' has an error for them"
            )
        return "; ".join(told)

    def _never_shown(self, nodes: Iterable[int]) -> str:
        names = [repr(self.net.names[i]) for i in sorted(nodes)]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return f"training never showed a finding on {', '.join(names[:3])}{more}, use another method"

    def unseen(self, states: np.ndarray) -> np.ndarray:
        """bool ``[rows, nodes]``, True where training never showed a finding such as here."""
        return (states >= 0) & ~self.observable

    def warn(self, rows: int, nodes: Iterable[int], stacklevel: int = 2) -> None:
        """Of so many rows of a table with findings on nodes that training never showed."""
        if rows:
            which = f"{rows:,} rows are" if rows > 1 else "1 row is"
            warnings.warn(f"{which} not to be trusted: {self._never_shown(nodes)}", stacklevel=stacklevel + 1)

    def _without_error(self, evidence: Evidence, row: Floats, nodes: Sequence[int], seconds: float) -> Posterior:
        edges = np.cumsum([0, *self.net.cards])
        probabilities = [row[edges[i] : edges[i + 1]] for i in nodes]
        return Posterior.one_pass([self.net.variables[i] for i in nodes], probabilities, seconds, self.about_one_shot(evidence))

    def next_questions(
        self,
        evidence: Mapping[str, object] | None,
        targets: Sequence[str],
        candidates: Sequence[str] | None = None,
        costs: Mapping[str, float] | None = None,
    ) -> pd.DataFrame:
        """What to ask next, best first, as ``unimarg.next_questions``: every answer to every question in one batched pass.

        Unless there are ``candidates``, about variables that training showed findings on.
        """
        from unimarg.questions import Asking

        asking = Asking.make(self.net, evidence, targets, candidates, costs, np.flatnonzero(self.observable).tolist())
        return asking.table(*asking.judge(self.answers), "um", math.nan)

    def explain(self, evidence: Mapping[str, object] | None, target: str, state: str | None = None) -> pd.DataFrame:
        """Which findings moved a target most, as ``unimarg.explain``: the evidence less each finding, in one batched pass."""
        from unimarg.influence import influence

        table = influence(self.net, self.answers, evidence, target, state)
        table.attrs |= {"method": "um", "std_error": math.nan}
        return table

    def marginals(self, evidence: Sequence[Evidence]) -> Floats:
        """``[rows, states]``: the states of all nodes side by side, one row for each evidence."""
        out, contradiction = self.answers(evidence)
        self._refuse(contradiction, lambda row: evidence[row])
        return out

    def answers(self, evidence: Sequence[Evidence], nodes: Sequence[int] | None = None) -> tuple[Floats, np.ndarray]:
        """``marginals`` of some nodes (all if None), and for each row the node that its evidence leaves no state, -1 if there is none."""
        out, contradiction = self.passes.marginals(*self.arrays(evidence))
        return (out if nodes is None else out[:, self.slots(nodes)]), contradiction

    def impossible(self, evidence: Evidence) -> ImpossibleEvidenceError:
        """That it is, by which findings."""
        return impossible(self.net, evidence, self.passes.support)

    def _refuse(self, contradiction: np.ndarray, evidence: Callable[[int], Evidence]) -> None:
        """Impossible evidence is an error."""
        if (contradiction >= 0).any():
            row = int(np.argmax(contradiction >= 0))
            where = f"row {row}: " if len(contradiction) > 1 else ""
            raise ImpossibleEvidenceError(f"{where}{self.impossible(evidence(row))}")

    def messages(self, evidence: Evidence) -> Floats:
        """lambda_i(k), ``[nodes, card]``, 0 for the first states."""
        if "message" not in self.recipe.architecture.heads:
            advice = "train with the preset 'default', or with heads=('marginal', 'message') (--option)"
            raise UsageError(f"the model has no message head; {advice}")
        parts = self.passes.forward(*self.arrays([evidence]), "message")
        out = np.zeros((len(self.net), int(self.net.cards.max())))
        for i, (group, j) in enumerate(self.ragged.member):
            out[i, : self.net.cards[i]] = parts[group][0, j]
        return out

    def predict_proba(self, frame: pd.DataFrame, targets: Sequence[str] | None = None, *, rule_out: bool = True) -> pd.DataFrame:
        """Marginals for every row of a table; an empty cell is unobserved, so every row has its own evidence.

        Columns are variables, cells are state labels or indices. The result's columns are (variable, state), of the targets (all if None).
        ``rule_out=False`` skips the proof of which states the evidence makes impossible: on networks full of zeros it
        takes longer than the answer, and the states then get a small probability in place of zero.
        """
        import pandas as pd

        nodes = self.net.find_all(targets)
        found = self._marginals_of_frame(frame, rule_out)
        columns = [(self.net.names[i], s) for i in nodes for s in self.net.variables[i].states]
        index = pd.MultiIndex.from_tuples(columns, names=["variable", "state"])
        return pd.DataFrame(found if targets is None else found[:, self.slots(nodes)], index=frame.index, columns=index)

    def predict(self, frame: pd.DataFrame, targets: Sequence[str] | None = None) -> pd.DataFrame:
        """The most probable state of every variable on its own, row by row: labels, a column for each target (all if None)."""
        import pandas as pd

        nodes = self.net.find_all(targets)
        found = self._marginals_of_frame(frame)
        best = {
            self.net.names[i]: np.array(self.net.variables[i].states, dtype=object)[found[:, self.slots([i])].argmax(axis=1)] for i in nodes
        }
        return pd.DataFrame(best, index=frame.index)

    def _marginals_of_frame(self, frame: pd.DataFrame, rule_out: bool = True) -> np.ndarray:
        """With a warning where training never showed such findings."""
        from unimarg.tables import states_from_frame

        states = states_from_frame(self.net, frame)
        unseen = self.unseen(states)
        self.warn(int(unseen.any(axis=1).sum()), np.flatnonzero(unseen.any(axis=0)), stacklevel=3)
        return self.marginals_of_states(states, rule_out)

    def slots(self, nodes: Sequence[int]) -> np.ndarray:
        """Where the states of some nodes are, when those of all lie side by side."""
        edges = np.cumsum([0, *self.net.cards])
        return np.concatenate([np.arange(edges[i], edges[i + 1]) for i in nodes]) if len(nodes) else np.zeros(0, dtype=int)

    def marginals_of_states(self, states: np.ndarray, rule_out: bool = True) -> np.ndarray:
        """As ``marginals``, float32, from states ``[rows, nodes]`` with -1 where unobserved."""
        if states.ndim != 2 or states.shape[1] != len(self.net):
            raise UsageError(f"states must be [rows, {len(self.net)} nodes], not {list(states.shape)}")
        if (states >= self.net.cards).any():
            row, node = np.argwhere(states >= self.net.cards)[0]
            raise EvidenceError(f"row {row}: {self.net.names[node]!r} has no state number {states[row, node]}")
        out, contradiction = self.answers_of_states(states, rule_out)
        self._refuse(contradiction, lambda row: Evidence({i: k for i, k in enumerate(states[row].tolist()) if k >= 0}, {}))
        return out

    def answers_of_states(self, states: np.ndarray, rule_out: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """As ``answers``, from states ``[rows, nodes]`` with -1 where unobserved."""
        ordered = jnp.asarray(states[:, self.ragged.order])
        return self.passes.marginals(np.asarray(ordered >= 0), [np.asarray(part) for part in one_hot(ordered, self.ragged)], rule_out)

    def features(self, evidence: Evidence) -> np.ndarray:
        """The trunk's last hidden layer, ``[width]``."""
        return self.passes.forward(*self.arrays([evidence]), "features")[0][0]

    def embed(self, evidence: Mapping[str, object] | Iterable[Mapping[str, object]] | None) -> np.ndarray:
        """The trunk's last hidden layer, ``[width]`` or ``[rows, width]``: features for learning downstream."""
        single = one_set(evidence)
        rows: list[Any] = [evidence] if single else list(evidence)  # pyright: ignore[reportArgumentType]
        (out,) = self.passes.forward(*self.arrays([parse_evidence(self.net, e) for e in rows]), "features")
        return out[0] if single else out

    def arrays(self, evidence: Sequence[Evidence]) -> tuple[np.ndarray, list[np.ndarray]]:
        """Flags ``[rows, nodes]`` and values ``[rows, nodes, K]`` for each group, in the order of ``ragged``."""
        known = np.zeros((len(evidence), len(self.net)), dtype=bool)
        values = [np.zeros((len(evidence), n, k), dtype=np.float32) for k, n in self.ragged.groups]
        for row, e in enumerate(evidence):
            for i, value in e.telling.items():
                known[row, self.ragged.place[i]] = True
                group, j = self.ragged.member[i]
                if isinstance(value, np.ndarray):
                    values[group][row, j] = np.where(value > 0, np.maximum(value / value.sum(), TINY), 0)
                else:
                    values[group][row, j, value] = 1
        return known, values
