"""Importance sampling: the one weight rule, samples in chunks, and when to stop.

    P(x_i = k | e) ~ sum_s w_s f_s / sum_s w_s,    w = P(x) l(x) / Q(x),    P(e) ~ mean of w

What is averaged is in ``averages``, errors in ``estimates``. Samples are drawn in nets that fill space (``nets``), which are independent of
each other; where a proposal may miss what no weight shows, witnesses are heard (``witness``).

Samples come in chunks, several at a time; their sums are kept in float64, weights scaled by the largest so far. Whether to go on is
asked at FIRST_CHECK samples, and then at as many as the target error should take by what is known, twice those so far at most: seldom,
so that stopping early does not spoil the errors, and whatever the chunks.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from unimarg.averages import Averaged, Marginals
from unimarg.conditionals import Conditionals, Query
from unimarg.counter import Key, key_from_seed, key_of_stream
from unimarg.estimates import ENOUGH, Estimates
from unimarg.frame import Frame
from unimarg.layout import MAX_NODES
from unimarg.nets import NET
from unimarg.network import Floats
from unimarg.posterior import Posterior
from unimarg.walk import Origin, walk
from unimarg.weighted import RELIABLE, Weighted

CHUNK, CHUNK_ACCELERATED = 5 << 10, 1 << 19  # a GPU takes about as long for a hundred thousand samples as for half a million
FIRST_CHECK = 10 << 10  # samples after which errors are looked at first: 10,000 tosses of a coin have an error of 0.005
CHUNK_BYTES = 1 << 32  # of states and sums of a chunk on an accelerator
MAX_SAMPLES = 1 << 40
DEFAULT_SAMPLES = 1 << 20
HOPELESS = 10.0  # effective samples below which an answer failed
SAMPLES_PER_WITNESS, LEAST_WITNESSES = 4, 5 << 10
WITNESSES = 0x517E55  # their stream of random numbers
MISSES = "the proposal misses a part of the posterior, which samples of lookahead show: use auto or lookahead"


@dataclass(frozen=True)
class Limits:
    """When to stop: whichever comes first."""

    samples: int = DEFAULT_SAMPLES
    seconds: float = math.inf
    target_error: float | None = None  # the largest standard error over the targets


Drawn = tuple[jax.Array, jax.Array, Origin | None]  # states, log weights (of witnesses two), and what the states were drawn from if known
Draw = Callable[[Key, jax.Array, int], Drawn]  # (key, first sample, n)
Weigh = Callable[[jax.Array], tuple[jax.Array, Origin | None]]  # of states [nodes, n] that another drew: the proposal's log weights


def sampler(frame: Frame, given: Conditionals, control: bool = True, nets: bool = True) -> Draw:
    """Draws by a walk through the nodes, with or without what control variates need, in nets or independent."""

    def draw(key: Key, first: jax.Array, n: int) -> Drawn:
        states, log_w, origin = walk(frame.shape, given, key, first, n, nets=nets)
        return states, log_w, origin if control else None

    return draw


def chunk_size(frame: Frame) -> int:
    if jax.default_backend() == "cpu":
        return CHUNK
    return min(CHUNK_ACCELERATED, 1 << int(math.log2(max(samples_that_fit(frame), 1 << 10))))


def samples_that_fit(frame: Frame) -> int:
    """Into ``CHUNK_BYTES``."""
    shape = frame.shape
    a_sample = shape.nodes * (np.dtype(shape.dtype).itemsize + 4) + 4 * int(np.diff(frame.noisy_rows).sum())
    a_sample += 4 * (shape.formulas + shape.formula_states)
    return CHUNK_BYTES // a_sample


def first_sample(number: int) -> jax.Array:
    """A sample's number as the two words that ``walk`` counts with."""
    return jnp.array([number & 0xFFFFFFFF, (number >> 32) * MAX_NODES], dtype=jnp.uint32)


def side_by_side() -> int:
    """How many chunks are drawn at once: each keeps one core busy."""
    if jax.default_backend() != "cpu":
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Estimator:
    """One query's samples: draws them in chunks, adds them up, and turns the sums into a posterior."""

    def __init__(
        self,
        frame: Frame,
        query: Query,
        given: Conditionals,
        draw: Draw | None = None,
        witness: Draw | None = None,
        ranges: dict[int, Floats] | None = None,
        nets: bool = True,
        averaged: Averaged | None = None,
    ):
        """``ranges`` are those of q_i, where q is known to be the posterior; ``averaged`` are marginals if nothing else is asked for."""
        self.frame, self.query, self.given = frame, query, given
        self.draw, self.witness = draw or sampler(frame, given), witness
        self.nets = nets  # whether ``draw`` draws in nets
        may_vary = ranges is None and bool((query.below & ~query.known).any())
        self.estimates = Estimates(averaged or Marginals(frame, query, given, ranges or {}), may_vary, nets)
        self.next_look = 0  # samples at which errors are looked at again

    @property
    def total(self) -> Weighted:
        """The samples so far."""
        return self.estimates.total

    @property
    def ess(self) -> float:
        return self.estimates.ess

    def counting(self, averaged: Averaged) -> Estimator:
        """The same proposal with nothing drawn, for other averages."""
        return Estimator(self.frame, self.query, self.given, self.draw, self.witness, None, self.nets, averaged)

    def run(self, limits: Limits, seed: int = 0, chunk: int | None = None, progress: Callable[[int, float], object] | None = None) -> None:
        """Samples until one of the limits, or until ``progress`` answers True."""
        key, size, began = key_from_seed(seed), -(-(chunk or chunk_size(self.frame)) // NET) * NET, time.perf_counter()
        with ThreadPoolExecutor(side_by_side()) as pool, ThreadPoolExecutor(1) as beside:
            while goal := self.look(limits):
                while self.total.samples < goal:
                    hearing = beside.submit(self.hear, seed, size, self.total.samples) if self.witness else None
                    self._advance(pool, self.draw, self.total, key, size, goal)
                    spent = time.perf_counter() - began
                    late = bool(progress and progress(self.total.samples, spent)) or spent > limits.seconds
                    if hearing:
                        hearing.result()
                        if late or self.total.samples >= goal:
                            self.hear(seed, size, self.total.samples, to_the_last=True)
                    if late:
                        return

    def look(self, limits: Limits, least: int | None = None) -> int:
        """The number of samples up to which to draw before errors are looked at again; 0 if no more are needed."""
        drawn, target = self.total.samples, limits.target_error
        if drawn >= limits.samples:
            return 0
        if target is None:
            return limits.samples
        if drawn >= self.next_look:
            if self.reached(target):
                return 0
            self.next_look = self.next_check(target, least)
        self.next_look = min(self.next_look, limits.samples)
        return self.next_look

    def next_check(self, target_error: float, least: int | None = None) -> int:
        """The number of samples at which to ask whether the target is reached, ``least`` or more; it does not depend on the chunks."""
        least, so_far = least or max(FIRST_CHECK, chunk_size(self.frame)), self.total.samples
        if so_far == 0:
            return least
        wanted = 2.0
        if self.ess >= ENOUGH and not self.total.heavy:
            wanted = min(wanted, (self.estimates.largest_error() / target_error) ** 2)
        step = max(least // 2, 1)
        return max(math.ceil(so_far * wanted / step), so_far // step + 1) * step

    def _advance(self, pool: ThreadPoolExecutor, draw: Draw, total: Weighted, key: Key, size: int, goal: int) -> None:
        """Draws some chunks side by side and adds them in the order of their numbers."""
        if self.nets and total.samples % NET:
            raise ValueError("a net that was cut short must be the last")

        def chunk(first: int) -> tuple[Any, ...]:
            count = min(size, goal - first)
            states, log_w, origin = draw(key, first_sample(first), size)
            one = log_w if log_w.ndim == 1 else log_w.mean(axis=0)
            top, w, squares, sums = self.estimates.averaged.sums(self.given, states, one, origin, count)
            return float(top), float(w), np.asarray(squares), np.asarray(sums), np.asarray(log_w)[..., :count], count

        for found in pool.map(chunk, range(total.samples, goal, size)[: side_by_side()]):
            total.add(*found)

    def hear(self, seed: int, size: int, samples: int, to_the_last: bool = False) -> None:
        """Witnesses for so many samples, if there are any; in whole chunks of them until ``to_the_last``."""
        if self.witness is None:
            return
        due = max(-(-samples // SAMPLES_PER_WITNESS), LEAST_WITNESSES)
        due = -(-due // NET) * NET if to_the_last else due // size * size
        key = key_of_stream(seed, WITNESSES)
        with ThreadPoolExecutor(side_by_side()) as pool:
            while self.estimates.heard.samples < due:
                self._advance(pool, self.witness, self.estimates.heard, key, size, due)

    def reached(self, target_error: float) -> bool:
        return self.ess >= ENOUGH and not self.total.heavy and self.estimates.largest_error() <= target_error

    def posterior(self, method: str, limits: Limits, seconds: float) -> Posterior:
        total, net = self.total, self.frame.net
        mean, error = (a.copy() for a in self.estimates.moments())
        targets = self.query.targets
        for i, k in self.query.evidence.hard.items():
            mean[i], error[i] = np.arange(mean.shape[1]) == k, 0.0
        status, message = self.status(limits)
        return Posterior(
            variables=tuple(net.variables[i] for i in targets),
            probabilities=tuple(_unit(mean[i, : net.cards[i]]) for i in targets),
            std_errors=tuple(error[i, : net.cards[i]] for i in targets),
            log_evidence=total.log_evidence,
            log_evidence_error=self.estimates.log_evidence_error,
            ess=self.ess,
            k_hat=total.k_hat,
            samples=total.samples,
            method=method,
            status=status,
            seconds=seconds,
            message=message,
        )

    def status(self, limits: Limits) -> tuple[str, str]:
        """How far to trust the samples so far, and a sentence where that is not far."""
        if self.total.w <= 0:
            return "failed", f"no sample of {self.total.samples} was compatible with the evidence"
        status, why = self._judged(limits)
        return status, f"{why}; {MISSES}" if status != "ok" and self.estimates.doubted else why

    def _judged(self, limits: Limits) -> tuple[str, str]:
        total = self.total
        if self.ess < HOPELESS:
            return "failed", f"{total.samples} samples are worth {self.ess:.1f}: the answer is not to be trusted"
        if self.ess < ENOUGH:
            return "low_ess", f"{total.samples} samples are worth {self.ess:.0f}, fewer than {ENOUGH:.0f}"
        if total.heavy:
            return "low_ess", f"the largest weights have a heavy tail (k-hat {total.k_hat:.2f}, reliable below {RELIABLE})"
        largest = self.estimates.largest_error()
        if limits.target_error is not None and largest > limits.target_error:
            return "low_ess", f"the largest standard error is {largest:.2g}, the target was {limits.target_error:.2g}"
        return "ok", ""


def _unit(p: Floats) -> Floats:
    total = p.sum()
    return p / total if total > 0 else p
