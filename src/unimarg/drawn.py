"""Marginals under many evidence sets that differ little, by samples: for networks that are too large for exact inference.

Sets that have a finding more than the evidence share the samples drawn for that: P(x_t | e, x_c = k) is the mean over those with
x_c = k, by weight. Sets that lack a finding are asked one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from unimarg import query
from unimarg.counter import key_from_seed
from unimarg.diagnostics import kish, scaled
from unimarg.errors import ImpossibleEvidenceError, SamplingError
from unimarg.estimates import ENOUGH
from unimarg.evidence import Evidence
from unimarg.importance import chunk_size, first_sample, side_by_side
from unimarg.many import go_on
from unimarg.network import Floats, Network
from unimarg.posterior import Posterior
from unimarg.query import Asked, Options

SAMPLES, MOST_STATES = 1 << 15, 1 << 28  # drawn at first; of all variables, kept at most
WORTH = 1 << 12  # effective samples that are enough
BLOCK = 1 << 13  # samples that are counted at once
PRECISE, RELATIVE = 0.002, 0.1  # standard error of a marginal that is compared with others, and that over p (1 - p), of its log odds
LEAST = 1e-5  # standard error that is asked for
ENTRIES_A_NODE, EXACT_SETS = 1000, 1e8  # what a query costs beside its cliques; entries that many of them may have: some ten seconds


@dataclass(frozen=True)
class Drawn:
    """Weighted samples of P(x | e)."""

    net: Network
    given: Evidence
    states: np.ndarray  # whole numbers [nodes, n]
    weights: Floats  # [n]

    def part(self, which: int, of: int) -> Drawn:
        """Every so many-th sample."""
        return Drawn(self.net, self.given, self.states[:, which::of], self.weights[which::of])

    @property
    def ess(self) -> float:
        return kish(self.weights)

    def answers(self, evidence: Sequence[Evidence], nodes: Sequence[int]) -> tuple[Floats, np.ndarray]:
        """As ``many.Answers``; the sets have all of the evidence, and hard findings beside it."""
        more = [{i: k for i, k in e.hard.items() if i not in self.given.hard} for e in evidence]
        columns = [(i, k) for i in nodes for k in range(int(self.net.cards[i]))]
        total = np.zeros((len(evidence), len(columns)))
        for first in range(0, len(self.weights), BLOCK):
            states, weights = (a[..., first : first + BLOCK] for a in (self.states, self.weights))
            fits = np.stack([_fit(states, extra) * weights for extra in more]).astype(np.float32)
            total += fits @ np.stack([states[i] == k for i, k in columns]).astype(np.float32).T
        card = int(self.net.cards[nodes[0]])
        weight = total[:, :card].sum(axis=1)
        return total / np.where(weight > 0, weight, 1)[:, None], np.where(weight > 0, -1, 0)


def _fit(states: np.ndarray, findings: Mapping[int, int]) -> np.ndarray:
    """Which samples have them all."""
    out = np.ones(states.shape[1], bool)
    for i, k in findings.items():
        out &= states[i] == k
    return out


def draw(net: Network, evidence: Mapping[str, object] | None, seed: int, before_each: Callable[[], None] = go_on) -> tuple[Drawn, str]:
    """Samples of all variables by the proposal that ``auto`` finds, and its name; more of them where they are worth little."""
    asked = Asked(net, None, evidence, None, Options(seed=seed), every=True, nets=False)  # parts of them are samples too
    method, estimator, _ = asked.proposal("auto")
    size, key = chunk_size(estimator.frame), key_from_seed(asked.options.seed)
    parts: list[tuple[np.ndarray, np.ndarray]] = []

    def chunk(first: int) -> tuple[np.ndarray, np.ndarray]:
        states, log_w, _ = estimator.draw(key, first_sample(first), size)
        return np.asarray(states), np.asarray(log_w, np.float64)

    count, most = SAMPLES, max(MOST_STATES // len(net), SAMPLES)
    while True:
        before_each()
        with ThreadPoolExecutor(side_by_side()) as pool:
            parts += pool.map(chunk, range(len(parts) * size, count, size))
        states, log_w = (np.concatenate(part, axis=-1)[..., :count] for part in zip(*parts, strict=True))
        drawn = Drawn(net, asked.query.evidence, states, scaled(log_w)[1])
        if drawn.ess >= WORTH or 2 * count > most:
            break
        count *= 2
    if drawn.ess < ENOUGH:
        raise SamplingError(f"{count} samples are worth {drawn.ess:.0f}: too few to tell ({ENOUGH:.0f} needed)", count, drawn.ess)
    return drawn, method


class OneByOne:
    """``many.Answers`` by ``auto``, set after set; keeps their standard errors and what was used."""

    def __init__(self, net: Network, seed: int, before_each: Callable[[], None] = go_on):
        self.net, self.seed, self.before_each = net, seed, before_each
        self.errors: list[Floats] = []  # of each set, [states of the nodes]; of an impossible one 0
        self.methods = set[str]()

    def __call__(self, evidence: Sequence[Evidence], nodes: Sequence[int]) -> tuple[Floats, np.ndarray]:
        out = np.zeros((len(evidence), int(self.net.cards[list(nodes)].sum())))
        contradiction = np.full(len(evidence), -1)
        for row, e in enumerate(evidence):
            self.errors.append(np.zeros(out.shape[1]))
            self.before_each()
            try:
                found = self._one(e, nodes)
                out[row], self.errors[-1] = np.concatenate(found.probabilities), np.concatenate(found.std_errors)
            except ImpossibleEvidenceError:
                contradiction[row] = 0
        return out, contradiction

    def _one(self, evidence: Evidence, nodes: Sequence[int]) -> Posterior:
        """Once more where a probability is small, whose odds would be lost in an error that is small for others."""
        variables = self.net.variables
        given = {variables[i].name: variables[i].states[k] for i, k in evidence.hard.items()}
        given |= {variables[i].name: likelihood.tolist() for i, likelihood in evidence.virtual.items()}
        names = [variables[i].name for i in nodes]

        def to(error: float) -> Posterior:
            found = Asked(self.net, None, given, names, Options(seed=self.seed, target_error=error)).by("auto")
            if found.status == "failed":
                raise SamplingError(f"{found.samples} samples are worth {found.ess:.0f}: too few to tell", found.samples, found.ess)
            return found

        found = to(PRECISE)
        p, error = np.concatenate(found.probabilities), np.concatenate(found.std_errors)
        unclear = (p > 0) & (p < 1) & (error > RELATIVE * p * (1 - p))
        if found.status == "ok" and unclear.any():  # else more samples are not to be had
            found = to(float(max(RELATIVE / 2 * (p * (1 - p))[unclear].min(), LEAST)))
        self.methods.add(found.method)
        return found


def exact_is_quick(net: Network, evidence: Mapping[str, object] | None, sets: int) -> bool:
    """Whether so many evidence sets like this one, all variables of each, are soon answered exactly."""
    asked = Asked(net, None, evidence, None, Options())
    left = EXACT_SETS / sets - ENTRIES_A_NODE * len(net)
    return left > 0 and asked.small(min(left / max(query.EXACT_ENTRIES, 1), 1.0))
