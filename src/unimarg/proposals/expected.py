"""What to expect of a node before anything is drawn: the weights where a message is averaged over a variable.

P(x_i), parents taken as independent, goes down the network; lambda_i(x_i), what the findings below say of node i with all other
causes at that prior, comes up once, as in Pearl's propagation (1988). An average with the prior alone forgets the other findings,
and one with P lambda counts twice what the averaged message itself says: a power of lambda does best. A share of the prior keeps what
is possible from vanishing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unimarg.conditionals import Query
from unimarg.frame import Causes, Frame
from unimarg.mechanism import pmf_from_steps, steps_of
from unimarg.network import Floats, Ints

TINY = 1e-300
POWER = 0.4  # of lambda
SHARE = 0.1  # of the prior


def expected(frame: Frame, query: Query) -> Floats:
    """``[nodes, card]``: a distribution for each node above a finding; for the others their likelihoods, ones if nothing is known."""
    prior = forward_priors(frame, query)
    heard = from_below(frame, query, prior)
    weighted = prior * heard**POWER
    total = weighted.sum(axis=1, keepdims=True)
    weighted = np.where(total > 0, weighted / np.maximum(total, TINY), prior)  # a message may have underflown in every state
    return np.where((query.below & ~query.known)[:, None], (1 - SHARE) * weighted + SHARE * prior, prior)


def forward_priors(frame: Frame, query: Query) -> Floats:
    """P(x_i) with observed nodes at their states, parents taken as independent, ``[nodes, card]``."""
    out = query.likelihood.copy()
    for i in np.flatnonzero(query.below & ~query.known).tolist():
        if frame.large[i]:
            causes = frame.causes[i]
            p_i = pmf_from_steps(causes.leak + _expected_steps(causes, out).sum(axis=0))
        else:
            p_i = frame.expanded[i]
            for p in frame.net.parents[i]:
                p_i = (out[p, : len(p_i)] @ p_i.reshape(len(p_i), -1)).reshape(p_i.shape[1:])
        product = p_i * out[i, : len(p_i)]
        out[i, : len(p_i)] = product / product.sum() if product.sum() > 0 else p_i
    return out


def from_below(frame: Frame, query: Query, prior: Floats) -> Floats:
    """lambda, ``[nodes, card]``, the largest entry of a node 1."""
    said = np.ones_like(prior)
    for i in np.flatnonzero(query.below | query.known).tolist()[::-1]:
        k = frame.net.cards[i]
        heard = query.likelihood[i, :k] * (1 if query.known[i] else said[i, :k])
        if heard.min() == heard.max() or query.known[frame.parents_of(np.array([i]))].all():
            continue
        parents, messages = (to_causes if frame.large[i] else to_parents)(frame, i, heard, prior)
        product = said[parents, : messages.shape[1]] * messages
        said[parents, : messages.shape[1]] = product / np.maximum(product.max(axis=1, keepdims=True), TINY)
    return said


def to_causes(frame: Frame, i: int, heard: Floats, prior: Floats) -> tuple[Ints, Floats]:
    """What a large noisy-max says of each of its parents, the others at their prior: these, and ``[parents, the largest card]``.

    It is 0 of states that a parent lacks.
    """
    causes = frame.causes[i]
    before, behind = sums_beside(_expected_steps(causes, prior))
    others = causes.leak + before + behind
    others[:, heard.nonzero()[0].max(initial=0) :] = 0  # that they go no further is a factor, and may be less than a number can be
    messages = pmf_from_steps(others[:, None] + causes.effect) @ heard
    return causes.parents, np.where(np.arange(messages.shape[1]) < frame.net.cards[causes.parents, None], messages, 0)


def to_parents(frame: Frame, i: int, heard: Floats, prior: Floats) -> tuple[Ints, Floats]:
    """The same of a table."""
    parents, table = frame.parents_of(np.array([i])), frame.expanded[i] @ heard
    messages = np.zeros((len(parents), max(table.shape)))
    for row, message in zip(messages, axis_by_axis(table, [prior[p, :k] for p, k in zip(parents, table.shape, strict=True)]), strict=True):
        row[: len(message)] = message
    return parents, messages


def axis_by_axis(values: Floats, weights: Sequence[Floats]) -> list[Floats]:
    """Along each axis, the weighted sums over all the others.

    >>> [a.tolist() for a in axis_by_axis(np.array([[1.0, 2.0], [3.0, 4.0]]), [np.array([0.5, 0.5]), np.array([1.0, 0.0])])]
    [[1.0, 3.0], [2.0, 3.0]]
    """
    behind = [np.ones(1)]  # the joint weights of the axes behind each
    for p in weights[:0:-1]:
        behind.append((p[:, None] * behind[-1]).ravel())
    left, out = values, []  # the axes before it summed out
    for p in weights:
        left = left.reshape(len(p), -1)
        out.append(left @ behind.pop())
        left = p @ left
    return out


def sums_beside(each: Floats) -> tuple[Floats, Floats]:
    """The sums of what lies before each entry along the last axis but one, and of what lies behind it.

    Taken off from the sum of all, an entry would leave nothing of what is rare.
    """
    none = np.zeros_like(each[..., :1, :])
    before, behind = (np.concatenate([none, a], axis=-2).cumsum(axis=-2) for a in (each[..., :-1, :], each[..., :0:-1, :]))
    return before, behind[..., ::-1, :]


def _expected_steps(causes: Causes, prior: Floats) -> Floats:
    """Of the expected effect of each cause, ``[parents, card - 1]``."""
    return steps_of((prior[causes.parents, None, : causes.pmf.shape[1]] @ causes.pmf)[:, 0])
