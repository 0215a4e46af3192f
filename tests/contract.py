"""What every proposal must keep, checked by enumeration on tiny networks.

A walk's steps have as many outcomes as all their states together; of each the target prod t_i is computed here from the network's own
definition, and log w by the walk. Q = target / w must then sum to 1, be above 0 wherever the target is, and be what the draws follow.
"""

from typing import NamedTuple

import numpy as np
import pytest
from scipy.stats import chi2

from networks import enumerate_all
from unimarg import conditionals
from unimarg.conditionals import Conditionals, Query
from unimarg.counter import key_from_seed
from unimarg.frame import Frame
from unimarg.importance import first_sample
from unimarg.walk import trace, walk

DRAWS, OUTCOMES = 1 << 14, 1 << 12  # drawn; enumerated at a time
TIGHT = 3e-5  # float32 over some ten steps
SURE = 1e-5  # the p-value below which draws are rejected


class Case(NamedTuple):
    frame: Frame
    query: Query
    rng: np.random.Generator


class Outcomes(NamedTuple):
    """Every sequence of states that a walk's steps can have."""

    states: np.ndarray  # [outcomes, steps]
    log_target: np.ndarray


def outcomes(case: Case, given: Conditionals) -> Outcomes:
    """Steps are nodes, and links of an observed noisy-max, each right after its parent."""
    net, hard = case.frame.net, case.query.evidence.hard
    count = int(given.drawn)
    nodes, numbers = (np.asarray(a)[:count].tolist() for a in (given.steps.node, given.steps.number))
    link = [number >= len(net) for number in numbers]
    choices = [
        np.arange(hard[i] + 1) if is_link else np.array([hard[i]]) if i in hard else np.arange(net.cards[i])
        for i, is_link in zip(nodes, link, strict=True)
    ]
    states = np.stack(np.meshgrid(*choices, indexing="ij"), axis=-1).reshape(-1, count)
    at = {i: t for t, i in enumerate(nodes)}  # of a chain the last link, which is the node
    log_target, log_likelihood = np.zeros(len(states)), np.log(np.maximum(case.query.likelihood, 1e-320))
    log_likelihood[case.query.likelihood == 0] = -np.inf

    def state(i: int) -> np.ndarray:
        return states[:, at[i]] if i in at else np.full(len(states), hard.get(i, 0))

    with np.errstate(divide="ignore"):
        for t, i in enumerate(nodes):
            m, pa = net.mechanisms[i], net.parents[i]
            if not link[t]:
                rows = m.rows(np.stack([state(p) for p in pa], axis=1) if pa else np.zeros((len(states), 0), dtype=int))
                log_target += np.log(rows[np.arange(len(states)), states[:, t]])
            else:
                log_target += np.log(one_link(net, hard, i, nodes, link, states, t))
            if t == at[i]:
                log_target += log_likelihood[i, states[:, t]]
    return Outcomes(states, log_target)


def one_link(net, hard, i: int, nodes: list[int], link: list[bool], states: np.ndarray, t: int) -> np.ndarray:
    """P(y_j | y_{j-1}, parent j): the maximum of the one before, or of leak and observed parents, and this parent's effect."""
    m = net.mechanisms[i]
    here = max(s for s in range(t) if not link[s] and nodes[s] in net.parents[i])
    cdf = m.contributions[net.parents[i].index(nodes[here])].cumsum(-1)[states[:, here]]
    before = [s for s in range(t) if nodes[s] == i]
    if before:
        start = (np.arange(m.card) >= states[:, before[-1], None]).astype(float)
    else:
        start = np.cumsum(m.leak) * np.ones((len(states), 1))
        for j, p in enumerate(net.parents[i]):
            if p in hard:
                start = start * m.contributions[j].cumsum(-1)[hard[p]]
    total = np.pad(cdf * start, ((0, 0), (1, 0)))
    y = states[:, t]
    return np.maximum(total[np.arange(len(y)), y + 1] - total[np.arange(len(y)), y], 0) * (y >= 0)


def log_weights(case: Case, given: Conditionals, states: np.ndarray) -> np.ndarray:
    steps = len(given.steps.node)
    out = []
    for first in range(0, len(states), OUTCOMES):
        part = states[first : first + OUTCOMES]
        forced = np.zeros((steps, OUTCOMES), dtype=np.int8)
        forced[: part.shape[1], : len(part)] = part.T
        out.append(np.asarray(walk(case.frame.shape, given, key_from_seed(0), first_sample(0), OUTCOMES, forced)[1])[: len(part)])
    return np.concatenate(out).astype(np.float64)


def assert_contract(case: Case, given: Conditionals) -> tuple[Outcomes, np.ndarray]:
    """The outcomes and their log weights, if all is well."""
    every = outcomes(case, given)
    log_t, log_w = every.log_target, log_weights(case, given, every.states)
    possible = log_t > -30  # log of differences of cumulative probabilities: below lies rounding
    assert np.isfinite(log_w[possible]).all()
    assert (log_w < np.inf).all()
    assert np.log(np.exp(log_t).sum()) == pytest.approx(enumerate_all(case.frame.net, case.query.evidence)[0], abs=1e-9)
    q = np.where(possible, np.exp(log_t - np.where(possible, log_w, 0)), 0)
    drawn, drawn_w = (np.asarray(a) for a in trace(case.frame.shape, given, key_from_seed(1), first_sample(0), DRAWS))
    assert_follows(every.states, q, log_w, drawn[: int(given.drawn)].T, drawn_w)
    assert_thresholds(given)
    return every, log_w


def assert_follows(
    states: np.ndarray, q: np.ndarray, log_w: np.ndarray, drawn: np.ndarray, drawn_w: np.ndarray, missing: float = TIGHT
) -> None:
    """Draws with a weight follow q, have the weights of their states, and the others make up what q lacks."""
    assert not np.isnan(drawn_w).any()
    dead = np.isneginf(drawn_w)
    lost = dead.mean()
    assert abs(q.sum() + lost - 1) < missing + 4.5 * np.sqrt(lost * (1 - lost) / DRAWS)
    place = {row.tobytes(): n for n, row in enumerate(states.astype(np.int8))}
    found = np.array([place[row.tobytes()] for row in np.ascontiguousarray(drawn[~dead], dtype=np.int8)], dtype=int)
    assert (q[found] > 0).all()
    np.testing.assert_allclose(drawn_w[~dead], log_w[found], atol=TIGHT)
    expected, seen = q * DRAWS, np.bincount(found, minlength=len(q))
    often = expected >= 5
    cells = [(seen[often], expected[often]), (seen[~often].sum(), expected[~often].sum()), (dead.sum(), DRAWS - expected.sum())]
    o, e = (np.concatenate([np.atleast_1d(c[k]) for c in cells]) for k in (0, 1))
    kept = e > 5
    assert chi2.sf(((o - e)[kept] ** 2 / e[kept]).sum(), max(kept.sum() - 1, 1)) > SURE


def assert_thresholds(given: Conditionals) -> None:
    """What tables are inverted by are their probabilities' tails: more digits than draws can show."""
    tails = np.asarray(given.prob, dtype=np.float64)
    high = np.asarray(given.high) / 2.0**32
    steps = {name: np.asarray(getattr(given.steps, name))[: int(given.drawn)] for name in ("mode", "half", "offset")}
    for t in np.flatnonzero(np.isin(steps["mode"], (conditionals.PLAIN_TABLE, conditionals.TABLE))):
        width, begin = 2 * int(steps["half"][t]), int(steps["offset"][t])
        row = tails[begin : begin + width]
        tail = row[::-1].cumsum()[::-1][1:]
        np.testing.assert_allclose(high[begin : begin + width - 1], np.minimum(tail, 1), atol=2e-7)
