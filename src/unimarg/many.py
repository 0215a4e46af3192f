"""Marginals of some nodes under many evidence sets that differ little: by a model in one batched pass, or exactly, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from unimarg.errors import ImpossibleEvidenceError
from unimarg.evidence import Evidence
from unimarg.exact import DEFAULT_MEMORY, check_memory, exact_marginals
from unimarg.network import Floats, Network

# evidence sets and nodes -> [sets, states of the nodes side by side], and for each set -1 unless it is impossible
Answers = Callable[[Sequence[Evidence], Sequence[int]], tuple[Floats, np.ndarray]]


def go_on() -> None:
    """What is called before each piece of long work, unless there is something that may raise to end it."""


def exact_answers(net: Network, memory: float = DEFAULT_MEMORY, before_each: Callable[[], None] = go_on) -> Answers:
    """By exact inference, or a ``TooExpensiveError``."""
    check_memory(memory)

    def answers(evidence: Sequence[Evidence], nodes: Sequence[int]) -> tuple[Floats, np.ndarray]:
        out = np.zeros((len(evidence), int(net.cards[list(nodes)].sum())))
        contradiction = np.full(len(evidence), -1)
        for row, e in enumerate(evidence):
            before_each()
            try:
                _, found = exact_marginals(net, e, nodes, memory)
                out[row] = np.concatenate([found[i] for i in nodes])
            except ImpossibleEvidenceError:
                contradiction[row] = 0
        return out, contradiction

    return answers


def split(states: Floats, net: Network, nodes: Sequence[int]) -> dict[int, Floats]:
    """``[sets, card]`` for each node, from its states side by side."""
    return dict(zip(nodes, np.split(states, np.cumsum(net.cards[list(nodes)])[:-1], axis=1), strict=True))
