"""What weighted samples are averaged for: f of P(x_i = k | e) ~ sum_s w_s f_s / sum_s w_s, and what is known of it beforehand.

f is the indicator of x_i = k, or P(x_i = k | pa_i) where no finding lies below node i (Rao-Blackwell).
"""

from __future__ import annotations

from typing import Any, Protocol

import jax
import numpy as np

from unimarg.conditionals import BY_ROW, TABLE_MEAN, Conditionals, Query
from unimarg.frame import Frame, range_over_rows
from unimarg.network import Floats
from unimarg.sums import weighted_sums
from unimarg.walk import Origin


class Averaged(Protocol):
    """The f of several probabilities side by side, ``[rows, columns]``."""

    open: np.ndarray  # those that the evidence leaves undecided
    even: list[int]  # rows whose q is known, and to be the posterior
    spread: Floats  # how far each f can vary; 0 where nothing is to be estimated

    def sums(self, given: Conditionals, states: jax.Array, log_w: jax.Array, origin: Origin | None, count: int) -> Any:
        """Of the first ``count`` samples: what ``Weighted.add`` takes."""
        ...

    def largest(self, error: Floats) -> float:
        """Of the errors of what was asked for."""
        ...


class Marginals:
    """Of every node, ``[nodes, card]`` in the network's order."""

    def __init__(self, frame: Frame, query: Query, given: Conditionals, ranges: dict[int, Floats]):
        """``ranges`` are those of q_i, where q is known to be the posterior."""
        self.frame, self.query, count = frame, query, int(given.estimated)
        node, kind = (np.asarray(a)[:count] for a in (given.means.node, given.means.kind))  # what is averaged for each
        possible = query.likelihood > 0
        self.open = possible & (possible.sum(axis=1, keepdims=True) > 1)
        self.even = sorted(ranges.keys() & node[kind == BY_ROW].tolist())
        spread = _spread(frame, query.likelihood, node, kind)
        for i in self.even:  # all weights are the same, and control variates leave q_i of the indicator
            spread[i, : frame.net.cards[i]] = ranges[i]
        self.spread = np.where(self.open, spread, 0.0)

    def sums(self, given: Conditionals, states: jax.Array, log_w: jax.Array, origin: Origin | None, count: int) -> Any:
        return weighted_sums(self.frame.shape, given, states, log_w, origin, count)

    def largest(self, error: Floats) -> float:
        return float(error[[t for t in self.query.targets if not self.query.known[t]]].max(initial=0.0))


def _spread(frame: Frame, likelihood: Floats, node: np.ndarray, kind: np.ndarray) -> Floats:
    """How far f can vary: 1 for an indicator, for a mean the range of P(x_i = k | pa_i) given the findings."""
    spread = np.zeros((frame.shape.nodes, frame.shape.card))
    spread[node] = np.where((kind == TABLE_MEAN)[:, None], frame.ranges[node], 1.0)
    narrowed = np.flatnonzero((likelihood > 0).sum(axis=1) < frame.net.cards)
    below = {c for p in narrowed for c in frame.net.children[p]}
    for i in below.intersection(node[kind == TABLE_MEAN].tolist()):
        states = [np.flatnonzero(likelihood[p]) for p in frame.net.parents[i]]
        spread[i, : frame.net.cards[i]] = range_over_rows(frame.expanded[i][np.ix_(*states)])
    return spread
