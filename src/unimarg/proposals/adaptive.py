"""Conditionals refitted to weighted samples, round after round (as AIS-BN does, Cheng and Druzdzel 2000).

In each round the samples drawn so far from the current q, with weights w, give for every table

    q'(x | c) = [ n_c p(x | c) + alpha q(x | c) ] / (n_c + alpha),    p(x | c) = sum w [x, c] / sum w [c]

with n_c = (sum w)^2 / sum w^2 over the samples in context c, no less than LEAST q before it is scaled to 1, and only where p differs
from q by more than its error: the noise of hundreds of tables would multiply. Where q is a table times something else (``TILTED``), q here
is the frequency of what was drawn, and the table is changed by q' / q. A large noisy-max gets lambda_i(k) += log of the weighted over the
unweighted frequency of x_i = k, shrunk and limited likewise. Weights are clipped: one lucky sample must not become the proposal. The
samples of these rounds are not used again.
"""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from unimarg.conditionals import TABLE, TILTED, Conditionals, Draft, normalised
from unimarg.counter import Key, key_of_stream
from unimarg.diagnostics import kish, scaled
from unimarg.frame import Frame
from unimarg.importance import chunk_size, first_sample, side_by_side
from unimarg.network import Floats
from unimarg.walk import trace

ROUNDS, ROUND = 5, 1 << 13  # samples of a round
ALPHA = 8.0  # samples that the conditional of the round before counts for
SURE = 3.0  # standard errors by which p must differ
LEAST = 0.8  # of what a state had: samples that miss a part of the posterior must not take it away
CLIP = 0.5  # weights are clipped at n^CLIP times their mean
STREAM = 0xADA9  # apart from the samples that are used


def adapt(draft: Draft, seed: int, seconds: float = math.inf) -> tuple[Conditionals, int]:
    """Conditionals after some rounds, the best by effective samples, and how many samples that took; no round begins after ``seconds``."""
    given = best = draft.finish()
    best_ess, taken, began = 0.0, 0, time.perf_counter()
    for number in range(ROUNDS):
        if time.perf_counter() - began > seconds:
            break
        states, log_w = traced(draft.frame, given, key_of_stream(seed, STREAM * (number + 1)))
        taken += ROUND
        w = clipped(log_w)
        if not w.any():
            break
        ess = kish(w)
        if ess > best_ess:
            best, best_ess = given, ess
        if ess > 0.95 * ROUND or number == ROUNDS - 1:
            break
        refit(draft, given, states, w)
        given = draft.finish()
    return best, taken


def traced(frame: Frame, given: Conditionals, key: Key) -> tuple[np.ndarray, Floats]:
    """What every step of a round drew, ``[most steps, ROUND]``, and the log weights."""
    size = min(chunk_size(frame), ROUND)

    def draw(first: int) -> list[np.ndarray]:
        return [np.asarray(a) for a in trace(frame.shape, given, key, first_sample(first), size, nets=True)]

    with ThreadPoolExecutor(side_by_side()) as pool:
        states, log_w = zip(*pool.map(draw, range(0, ROUND, size)), strict=True)
    return np.concatenate(states, axis=1), np.concatenate(log_w).astype(np.float64)


def clipped(log_w: Floats) -> Floats:
    _, w = scaled(log_w)
    return np.minimum(w, w.mean() * len(w) ** CLIP)


def refit(draft: Draft, given: Conditionals, states: np.ndarray, w: Floats) -> None:
    """One round; ``states`` are what each step drew."""
    draft.ranges = None
    steps = {name: np.asarray(a) for name, a in given.steps._asdict().items()}
    rows = np.zeros((len(draft.frame.order), states.shape[1]), dtype=np.int64)
    for t in range(int(given.drawn)):
        i, drawn = int(steps["node"][t]), states[t].astype(np.int64)
        if steps["mode"][t] in (TABLE, TILTED):
            row = np.zeros(states.shape[1], dtype=np.int64)
            for c in range(steps["contexts"][t]):
                row += int(steps["strides"][t, c]) * rows[steps["context"][t, c]]
            width = 2 * int(steps["half"][t])
            _refit_table(draft, int(steps["offset"][t]), row // width, drawn, width, w, steps["mode"][t] == TILTED)
        elif draft.frame.large[i] and not draft.query.known[i] and not draft.plain[i]:
            _refit_tilt(draft, i, drawn, w)
        rows[i] = drawn


def _refit_table(draft: Draft, offset: int, row: np.ndarray, drawn: np.ndarray, width: int, w: Floats, tilted: bool) -> None:
    size = (int(row.max()) + 1) * width
    counts, plain = (np.bincount(row * width + drawn, a, minlength=size).reshape(-1, width) for a in (w, None))
    total, squares = counts.sum(axis=1), np.bincount(row, w * w)
    seen = np.flatnonzero(total > 0)
    effective = total[seen] ** 2 / squares[seen]
    at = offset + seen[:, None] * width + np.arange(width)
    table, found = draft.prob[at], counts[seen] / total[seen, None]
    old = normalised(plain[seen].astype(float)) if tilted else table
    telling = np.abs(found - old) > SURE * np.sqrt(np.maximum(old * (1 - old), 1e-12) / effective[:, None])
    share = np.where(telling.any(axis=1), effective / (effective + ALPHA), 0.0)[:, None]
    new = np.maximum(share * found + (1 - share) * old, LEAST * old)
    draft.prob[at] = normalised(np.where(old > 0, table * new / np.where(old > 0, old, 1), table) if tilted else new)


def _refit_tilt(draft: Draft, i: int, drawn: np.ndarray, w: Floats) -> None:
    k = int(draft.frame.net.cards[i])
    effective = w.sum() ** 2 / (w * w).sum()
    plain = np.bincount(drawn, minlength=k) / len(drawn)
    wanted = (effective * np.bincount(drawn, w, minlength=k) / w.sum() + ALPHA * plain) / (effective + ALPHA)
    change = np.log(np.maximum(wanted, 1e-12) / np.maximum(plain, 1e-12))
    telling = np.abs(wanted - plain) > SURE * np.sqrt(plain * (1 - plain) / effective)
    draft.tilt[i, :k] += np.where((plain > 0) & telling.any(), np.maximum(change, np.log(LEAST)), 0.0)
