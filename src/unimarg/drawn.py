"""Marginals under many evidence sets that differ little, by samples: for networks that are too large for exact inference.

Sets that have a finding more than the evidence share the samples drawn for that: P(x_t | e, x_c = k) is the mean over those with
x_c = k, by weight. Sets that lack a finding are asked one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from unimarg.counter import key_from_seed
from unimarg.errors import ImpossibleEvidenceError, SamplingError
from unimarg.evidence import Evidence
from unimarg.importance import ENOUGH, chunk_size, first_sample, side_by_side
from unimarg.network import Floats, Network
from unimarg.query import Asked, Options

SAMPLES = 1 << 15
BLOCK = 1 << 13  # samples that are counted at once
PRECISE = 0.002  # standard error of a marginal that is compared with others


@dataclass(frozen=True)
class Drawn:
    """Weighted samples of P(x | e)."""

    net: Network
    given: Evidence
    states: np.ndarray  # whole numbers [nodes, n]
    weights: Floats  # [n]

    def half(self, which: int) -> Drawn:
        """Every other sample."""
        return Drawn(self.net, self.given, self.states[:, which::2], self.weights[which::2])

    @property
    def ess(self) -> float:
        squares = float((self.weights**2).sum())
        return float(self.weights.sum()) ** 2 / squares if squares > 0 else 0.0

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


def draw(net: Network, evidence: Mapping[str, object] | None, seed: int) -> tuple[Drawn, str]:
    """Samples of all variables by the proposal that ``auto`` finds, and its name."""
    asked = Asked(net, None, evidence, None, Options(seed=seed), every=True, nets=False)  # halves of them are samples too
    asked.rule_out()
    method, estimator, _ = asked.best()
    size, key = chunk_size(estimator.frame), key_from_seed(asked.options.seed)

    def chunk(first: int) -> tuple[np.ndarray, np.ndarray]:
        states, log_w, _ = estimator.draw(key, first_sample(first), size)
        return np.asarray(states), np.asarray(log_w, np.float64)

    with ThreadPoolExecutor(side_by_side()) as pool:
        parts = [*pool.map(chunk, range(0, SAMPLES, size))]
    states, log_w = (np.concatenate(part, axis=-1)[..., :SAMPLES] for part in zip(*parts, strict=True))
    top = log_w.max()
    drawn = Drawn(net, asked.query.evidence, states, np.exp(log_w - top) if top > -np.inf else np.zeros_like(log_w))
    if drawn.ess < ENOUGH:
        raise SamplingError(f"{SAMPLES} samples are worth {drawn.ess:.0f}: too few to tell ({ENOUGH:.0f} needed)", SAMPLES, drawn.ess)
    return drawn, method


class OneByOne:
    """``many.Answers`` by ``auto``, set after set; keeps the largest standard error and what was used."""

    def __init__(self, net: Network, seed: int):
        self.net, self.seed = net, seed
        self.std_error, self.methods = 0.0, set[str]()

    def __call__(self, evidence: Sequence[Evidence], nodes: Sequence[int]) -> tuple[Floats, np.ndarray]:
        out = np.zeros((len(evidence), int(self.net.cards[list(nodes)].sum())))
        contradiction = np.full(len(evidence), -1)
        for row, e in enumerate(evidence):
            try:
                out[row] = self._one(e, nodes)
            except ImpossibleEvidenceError:
                contradiction[row] = 0
        return out, contradiction

    def _one(self, evidence: Evidence, nodes: Sequence[int]) -> Floats:
        variables = self.net.variables
        given = {variables[i].name: variables[i].states[k] for i, k in evidence.hard.items()}
        given |= {variables[i].name: likelihood.tolist() for i, likelihood in evidence.virtual.items()}
        options = Options(seed=self.seed, target_error=PRECISE)
        found = Asked(self.net, None, given, [variables[i].name for i in nodes], options).by("auto")
        if found.status == "failed":
            raise SamplingError(f"{found.samples} samples are worth {found.ess:.0f}: too few to tell", found.samples, found.ess)
        self.methods.add(found.method)
        self.std_error = max(self.std_error, *(float(np.max(e)) for e in found.std_errors))
        return np.concatenate(found.probabilities)


def exact_is_quick(net: Network, evidence: Mapping[str, object] | None) -> bool:
    """Whether all variables together can be answered exactly, as ``auto`` judges it."""
    return Asked(net, None, evidence, None, Options()).small()
