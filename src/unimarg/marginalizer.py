"""The Universal Marginalizer: one network that gives every posterior marginal under any evidence.

UM(e)_i(k) ~ P(X_i = k | e)        for all i at once, in one forward pass (paper, section 2)
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from os import PathLike
from typing import TYPE_CHECKING, Any, overload

import jax
import jax.numpy as jnp
import numpy as np

from unimarg.conflict import impossible
from unimarg.encoding import encode, one_hot, starts
from unimarg.errors import EvidenceError, ImpossibleEvidenceError, UsageError
from unimarg.evidence import Evidence, one_set, parse_evidence
from unimarg.masking import can_show
from unimarg.network import Floats, Network
from unimarg.posterior import Posterior
from unimarg.presets import Recipe
from unimarg.propagation import Propagation
from unimarg.ragged import Parts, Ragged
from unimarg.student import Student
from unimarg.support import Support
from unimarg.trunk import Trunk

if TYPE_CHECKING:
    import pandas as pd

    from unimarg.explanation import Explanation

TINY = 1e-30  # so that a row whose possible states all underflowed can still be scaled, and what a likelihood leaves possible is above 0
BATCHES = (1, 64, 512, 4096)  # rows of a compiled forward pass; a batch is padded to one of these
OVERHEAD = 16  # rows that a pass could have answered in the time that it takes to start


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
    def ragged(self) -> Ragged:
        return Ragged(tuple(self.net.cards.tolist()))

    @cached_property
    def sizes(self) -> list[int]:
        """Rows of the passes that are used; a service adds the larger ones as they are compiled."""
        return list(BATCHES)

    @cached_property
    def prior_slots(self) -> tuple[jax.Array, jax.Array]:
        return prior_slots(self.priors, self.ragged)

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
        out, contradiction = self._marginals(*self.arrays(evidence))
        return (out if nodes is None else out[:, self.slots(nodes)]), contradiction

    def impossible(self, evidence: Evidence) -> ImpossibleEvidenceError:
        """That it is, by which findings."""
        return impossible(self.net, evidence, self._support)

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
        parts = self._forward(*self.arrays([evidence]), output="message")
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
        return self._marginals(np.asarray(ordered >= 0), [np.asarray(part) for part in one_hot(ordered, self.ragged)], rule_out)

    def features(self, evidence: Evidence) -> np.ndarray:
        """The trunk's last hidden layer, ``[width]``."""
        return self._forward(*self.arrays([evidence]), output="features")[0][0]

    def embed(self, evidence: Mapping[str, object] | Iterable[Mapping[str, object]] | None) -> np.ndarray:
        """The trunk's last hidden layer, ``[width]`` or ``[rows, width]``: features for learning downstream."""
        single = one_set(evidence)
        rows: list[Any] = [evidence] if single else list(evidence)  # pyright: ignore[reportArgumentType]
        (out,) = self._forward(*self.arrays([parse_evidence(self.net, e) for e in rows]), output="features")
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

    def _marginals(self, known: np.ndarray, values: list[np.ndarray], rule_out: bool = True) -> tuple[np.ndarray, np.ndarray]:
        parts = self._forward(known, values)
        contradiction = np.full(len(known), -1)
        if rule_out and self._support.tables:
            contradiction = self._zero_impossible(parts, known, values)
        side_by_side = np.concatenate([part.reshape(len(part), np.prod(part.shape[1:])) for part in parts], axis=1)
        return np.take(side_by_side, self._columns, axis=1), contradiction

    @cached_property
    def _columns(self) -> np.ndarray:
        """For each state of each node of the network, its place in the groups of ``ragged`` side by side."""
        starts = dict(zip(self.ragged.order.tolist(), np.cumsum([0, *self.net.cards[self.ragged.order]]).tolist(), strict=False))
        return np.concatenate([starts[i] + np.arange(k) for i, k in enumerate(self.net.cards)])

    @cached_property
    def _propagation(self) -> Propagation | None:
        return Propagation(self.net, self.recipe.rounds, self.recipe.pairs) if self.recipe.rounds else None

    @cached_property
    def _support(self) -> Support:
        return Support(self.net)

    def _zero_impossible(self, parts: list[np.ndarray], known: np.ndarray, values: list[np.ndarray]) -> np.ndarray:
        """Zero where the evidence proves a state impossible; the rest is scaled up. For each row a node without states, or -1."""
        contradiction = np.full(len(known), -1)
        member, place = self.ragged.member, self.ragged.place
        allowed = {i: (values[member[i][0]][:, member[i][1]] > 0) | ~known[:, [place[i]]] for i in self._support.touching}
        for i, possible in self._support.narrow(allowed).items():  # of the rest the network's own answer has the zeros of the evidence
            group, j = member[i]
            contradiction[(contradiction < 0) & ~possible.any(axis=1)] = i
            kept = np.where(possible, np.maximum(parts[group][:, j], TINY), 0)
            parts[group][:, j] = kept / np.maximum(kept.sum(axis=1, keepdims=True), TINY)
        return contradiction

    def _forward(self, known: np.ndarray, values: list[np.ndarray], output: str = "marginal") -> list[np.ndarray]:
        """The network's answer for any number of rows, by batches of few sizes so that little is compiled."""
        given = (self.ragged, self.recipe.encoding, output, self.trunk, *self.prior_slots)
        pieces: list[list[np.ndarray]] = []
        first = 0
        while first < len(known) or not pieces:
            batch = batch_size(len(known) - first, self.sizes)
            part = slice(first, first + batch)
            rows = len(known[part])
            first, pad = first + batch, batch - rows
            padded = [np.pad(a[part], [(0, pad)] + [(0, 0)] * (a.ndim - 1)) for a in (known, *values)]
            pieces.append([np.asarray(a)[:rows] for a in _answer(*given, padded[0], padded[1:], self._propagation)])
        return [np.concatenate(same) for same in zip(*pieces, strict=True)]  # also makes them writable

    def compile(self, size: int) -> None:
        """The pass of so many rows, one of ``BATCHES``, which is used from then on."""
        known, values = self.arrays([Evidence({}, {})] * size)
        jax.block_until_ready(
            _answer(self.ragged, self.recipe.encoding, "marginal", self.trunk, *self.prior_slots, known, values, self._propagation)
        )
        if size not in self.sizes:
            self.sizes.append(size)


def batch_size(rows: int, sizes: Sequence[int] = BATCHES) -> int:
    """Of some sizes of a pass, the one that answers so many rows soonest, what fills up the last pass included.

    >>> [batch_size(n) for n in (1, 5, 300, 2000, 4000)]
    [1, 64, 64, 512, 4096]
    """
    return min(sizes, key=lambda size: -(-rows // size) * (size + OVERHEAD))


@partial(jax.jit, static_argnames=("ragged", "encoding", "output", "propagation"))
def _answer(
    ragged: Ragged,
    encoding: Any,
    output: str,
    trunk: Trunk,
    priors: Any,
    prior_logits: Any,
    known: Any,
    values: Any,
    propagation: Propagation | None = None,
) -> Parts:
    """Marginals or messages ``[rows, nodes, K]`` for each group, or the trunk's last layer."""
    beliefs = {} if propagation is None else propagation.logits(known, values, jax.default_backend() != "cpu")
    x = encode(encoding, known, values, ragged, priors, beliefs.get("marginal"))
    start = beliefs or starts(encoding, known, values, ragged, prior_logits) or {"marginal": prior_logits}
    if output == "features":
        return [trunk.features(x)]
    if output == "message":
        return ragged.with_reference(trunk(x, start)["message"])
    out = []
    for logits, value, flag in zip(ragged.with_reference(trunk(x, start)["marginal"]), values, ragged.nodes(known), strict=True):
        # what a finding or a likelihood rules out is exactly 0, so that what is certain is exactly 1
        ruled_out = flag[..., None] & (value == 0)
        out.append(jax.nn.softmax(jnp.where(ruled_out, -jnp.inf, logits), axis=-1))
    return out


def prior_slots(priors: Sequence[Floats], ragged: Ragged) -> tuple[jax.Array, jax.Array]:
    """Prior probabilities and logits against state 0, ``[slots]`` each."""
    ordered = [priors[i] for i in ragged.order]
    probabilities = np.concatenate([p[1:] for p in ordered])
    logits = np.concatenate([np.log(p[1:] / p[0]) for p in ordered])
    return jnp.asarray(probabilities, jnp.float32), jnp.asarray(logits, jnp.float32)
