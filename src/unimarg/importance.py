"""Importance sampling: the one weight rule, streaming estimates, and when to stop.

    P(x_i = k | e) ~ sum_s w_s f_s / sum_s w_s,    w = P(x) l(x) / Q(x),    P(e) ~ mean of w

f is the indicator of x_i = k, or P(x_i = k | pa_i) where no finding lies below node i (Rao-Blackwell). Samples are drawn in nets that
fill space (``nets``), which are independent of each other; the standard error is sqrt(sum over nets of (sum w (f - mu))^2) / sum w, a
little more where nets are few; less where the proposal's own q_i serves as a control variate, and no less than the share of a FEW heavy
samples, unless counting the state would have less. To the variance of a rare state the square of that share is added: few samples, or
none, show how its weights vary. Where look-ahead averaged nothing all weights are equal, and a sample counts for no more than q_i can
vary. Where a proposal may miss what no weight shows, witnesses are heard (``witness``).

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
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from unimarg.conditionals import BY_ROW, TABLE_MEAN, Conditionals, Query
from unimarg.counter import Key, key_from_seed, key_of_stream
from unimarg.frame import Frame, range_over_rows
from unimarg.layout import MAX_NODES
from unimarg.nets import NET
from unimarg.network import Floats
from unimarg.posterior import Posterior
from unimarg.sums import weighted_sums
from unimarg.walk import Origin, walk
from unimarg.weighted import RELIABLE, Moments, Weighted, Witnesses

CHUNK, CHUNK_ACCELERATED = 5 << 10, 1 << 19  # a GPU takes about as long for a hundred thousand samples as for half a million
FIRST_CHECK = 10 << 10  # samples after which errors are looked at first: 10,000 tosses of a coin have an error of 0.005
CHUNK_BYTES = 1 << 32  # of states and sums of a chunk on an accelerator
MAX_SAMPLES = 1 << 40
DEFAULT_SAMPLES = 1 << 20
ENOUGH, HOPELESS = 400.0, 10.0  # effective samples: ok from, failed below
FEW = 2.0  # heavy samples, whose share in all weights is an error's least where means of probabilities or control variates leave less
RARE = 50.0  # heavy samples: to the variance of a state that fewer of them could show, the square of that share is added
UNSEEN = 2.6  # likewise where weights are known to be equal: of 4.5 times as many expected none come as seldom as a score beyond 4.5
SCORE = 3.0  # a z-score that should be as seldom as a normal one
EVENTS = 100  # sum of D^2 from which a factor is fitted freely
TINY = 1e-300
ALIKE = 1e-5  # relative spread of weights that are all the same
ROUNDING = 1e-6  # of probabilities in float32, summed, relative to them
OF_LOGARITHMS = 2.0**-23  # of log weights in float32, and of the tables' logarithms that they are sums of, relative to log P(e)
SAMPLES_PER_WITNESS, LEAST_WITNESSES = 4, 5 << 10
DOUBT = 2.0  # times the variance that the samples show: what witnesses tell is believed from here on, below it is mostly noise,
CLEARLY = 1.05  # or from here on where nets and control variates leave so little of it that what is beyond is DOUBT times as much
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
        spent: int = 0,
        witness: Draw | None = None,
        ranges: dict[int, Floats] | None = None,
        nets: bool = True,
    ):
        self.frame, self.query, self.given = frame, query, given
        self.ranges = ranges or {}  # of q_i, where q is known to be the posterior
        self.may_vary = ranges is None and bool((query.below & ~query.known).any())  # whether samples of other weights may exist
        self.spent = spent  # samples that went into the proposal
        self.draw, self.witness = draw or sampler(frame, given), witness
        self.nets = nets  # whether ``draw`` draws in nets
        self.total, self.heard = Weighted(frame.shape.nodes, frame.shape.card), Witnesses(frame.shape.nodes, frame.shape.card)
        self.next_look = 0  # samples at which errors are looked at again
        self._known: tuple[tuple[int, int], tuple[Floats, Floats]] | None = None  # samples and witnesses, and the moments of so many
        self._beyond = 0.0  # the most that witnesses add to a variance

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
            wanted = min(wanted, (self.largest_error() / target_error) ** 2)
        step = max(least // 2, 1)
        return max(math.ceil(so_far * wanted / step), so_far // step + 1) * step

    def _advance(self, pool: ThreadPoolExecutor, draw: Draw, total: Weighted, key: Key, size: int, goal: int) -> None:
        """Draws some chunks side by side and adds them in the order of their numbers."""
        if self.nets and total.samples % NET:
            raise ValueError("a net that was cut short must be the last")

        def chunk(first: int) -> tuple[Any, ...]:
            count = min(size, goal - first)
            states, log_w, origin = draw(key, first_sample(first), size)
            top, w, squares, sums = self._sums(states, log_w if log_w.ndim == 1 else log_w.mean(axis=0), origin, count)
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
            while self.heard.samples < due:
                self._advance(pool, self.witness, self.heard, key, size, due)

    def _sums(self, states: jax.Array, log_w: jax.Array, origin: Origin | None, count: int) -> Any:
        return weighted_sums(self.frame.shape, self.given, states, log_w, origin, count)

    def reached(self, target_error: float) -> bool:
        return self.ess >= ENOUGH and not self.total.heavy and self.largest_error() <= target_error

    @property
    def ess(self) -> float:
        """What the samples are worth, or less if the witnesses say much less."""
        told = self._told
        return max(1 / told, 1.0) if told * self.total.ess > DOUBT else self.total.ess

    @property
    def log_evidence_error(self) -> float:
        """Of the witnesses likewise; infinite where they leave no digit."""
        if self.ess < self.total.ess:
            return math.sqrt(self._told) if self._told < 1 else math.inf
        total, (moments, factor) = self.total, self._independent
        if total.w <= 0:
            return math.inf
        square, apart = (m.weights.about(total.w / total.samples) / total.w**2 for m in (moments, total.by_sample))
        few = FEW * max(total.heaviest - 1 / total.samples, 1 / total.samples - total.lightest)
        alike = self.may_vary and few * total.samples < ALIKE
        unseen = 1 / (self.heard.samples or total.samples) if alike else 0.0  # of another weight one sample, or what no witness came from
        square = max(square * factor, min(apart, few**2))
        possible = apart - total.zeros / total.samples**2  # witnesses are
        square += float(told_beyond(self.heard.variance(total.log_evidence) / total.samples, possible, square))
        return max(math.sqrt(square), unseen, self._rounding)

    @property
    def _rounding(self) -> float:
        """Of weights, relative to them; what is summed may be more than the sum."""
        log = abs(self.total.log_evidence)
        return OF_LOGARITHMS * max(log, 1.0) if log else 0.0

    @property
    def _independent(self) -> tuple[Moments, float]:
        """Sums over what is independent, nets or samples, and what to multiply variances from so many of them by.

        A variance from few nets has an error of its own, and z-scores are Student's: the factor makes those beyond SCORE as seldom as
        normal ones (z^2 is about v log(1 + t^2 / v) with v degrees of freedom, Wallace 1959).
        """
        total = self.total
        nets = total.samples**2 / max(total.by_net.weights.counts2, 1)
        if not self.nets or nets < 2:
            return total.by_sample, 1.0
        free = nets - 1
        return total.by_net, nets * math.expm1(SCORE**2 / free) / SCORE**2

    @property
    def _told(self) -> float:
        """The variance of P(e), relative to its square, that the witnesses tell of."""
        return self.heard.w2 * self._scale

    @property
    def doubted(self) -> bool:
        """Whether witnesses decide what is said of the samples' worth, or of the largest error."""
        error = self.moments()[1]
        return self.ess < self.total.ess or bool(self._beyond > error.max(initial=0) ** 2 / 2)

    @property
    def _scale(self) -> float:
        """From the witnesses' sums to variances."""
        if self.heard.w2 == 0 or self.total.w == 0:
            return 0.0
        log = 2 * (self.heard.top - self.total.log_evidence) - math.log(self.total.samples * self.heard.samples)
        return math.exp(min(log, 600.0))

    def moments(self) -> tuple[Floats, Floats]:
        """Marginals and standard errors, ``[nodes, card]`` in the network's order."""
        so_far = self.total.samples, self.heard.samples
        if self._known is None or self._known[0] != so_far:
            self._known = so_far, self._moments()
        return self._known[1]

    def _moments(self) -> tuple[Floats, Floats]:
        total, centre = self.total, self.total.centre
        n, card = centre.shape
        if total.w <= 0:
            return np.full((n, card), np.nan), np.full((n, card), np.nan)
        delta = total.sums[..., 0] / total.w
        told, shown = self._told_of(centre + delta), total.by_sample.about(delta) / total.w**2
        delta, square, apart = self._controlled(delta)
        mean, spread = np.clip(centre + delta, 0, 1), self._spread
        # What was not drawn may weigh as much as the heaviest samples that were. Where few of those would make the state, or all of a
        # variance, the samples say little of it; elsewhere a mean varies no more than the indicator of the state.
        heavy, even = total.heaviest * spread, np.isin(np.arange(n), self._even)[:, None]
        few, counted = (np.where(even, UNSEEN, FEW) * heavy) ** 2, mean * (1 - mean) / total.ess
        rare = np.where(even, apart < RARE * heavy**2, np.minimum(mean, 1 - mean) < RARE * heavy)
        square = np.where(rare, np.maximum(square, 0) + few, np.maximum(square, np.minimum(counted, few)))
        beyond = told_beyond(told, shown, square)
        least = max(ROUNDING, self._rounding) * np.maximum(mean, self._open)
        self._beyond = float(beyond.max(initial=0))
        return mean, np.clip(np.sqrt(square + beyond), least, 1)

    def _told_of(self, mean: Floats) -> Floats:
        """The variances of independent samples that the witnesses tell of."""
        return np.clip(self.heard.by_sample.about(mean - self.heard.centre) * self._scale, 0, 1)

    def _controlled(self, delta: Floats) -> tuple[Floats, Floats, Floats]:
        """Better means than ``delta``, both relative to the centre, their variances, and what those of independent samples would be.

        D = 1(x_i = k) - q_i(k | drawn before) has the mean 0, and goes along with w (f - mu): a times its average is subtracted,
        with a for each node such that the variance is smallest. Where all weights are equal that is 1, and leaves the mean of q_i.
        """
        total, n, (moments, factor) = self.total, self.total.samples, self._independent
        along = moments.along(delta) * n / total.w  # with a mean of w of 1
        varies, events = (m.control.sum(axis=1, keepdims=True) for m in (moments, total.by_sample))
        most = np.where(events > EVENTS, math.inf, 1.0)  # rare events not seen leave D all but constant, and a large for no reason
        a = np.clip(along.sum(axis=1, keepdims=True) / np.maximum(varies, TINY), 0, most if total.ess >= ENOUGH else 0)
        a[self._even] = 1
        delta = delta - a * total.sums[..., 1] / n

        def variance(m: Moments) -> Floats:
            return m.about(delta) / total.w**2 - (2 * a * m.along(delta) * n / total.w - a**2 * m.control) / n**2

        return delta, variance(moments) * factor, variance(total.by_sample)

    @cached_property
    def _open(self) -> np.ndarray:
        """States that the evidence on the node itself leaves undecided, bool ``[nodes, card]``."""
        possible = self.query.likelihood > 0
        return possible & (possible.sum(axis=1, keepdims=True) > 1)

    @cached_property
    def _even(self) -> list[int]:
        """Nodes whose q_i is known, and to be the posterior."""
        node, kind = self._means
        return sorted(self.ranges.keys() & node[kind == BY_ROW].tolist())

    @cached_property
    def _means(self) -> tuple[np.ndarray, np.ndarray]:
        """The nodes that are estimated, and what is averaged for each."""
        means, count = self.given.means, int(self.given.estimated)
        return np.asarray(means.node)[:count], np.asarray(means.kind)[:count]

    @cached_property
    def _spread(self) -> Floats:
        """How far f can vary; 0 where nothing is to be estimated.

        That is 1 for an indicator, for a mean the range of P(x_i = k | pa_i) given the findings, and where weights are known to be all the
        same that of q_i(k | drawn before), which control variates leave of the indicator.
        """
        frame, likelihood, (node, kind) = self.frame, self.query.likelihood, self._means
        spread = np.zeros((frame.shape.nodes, frame.shape.card))
        spread[node] = np.where((kind == TABLE_MEAN)[:, None], frame.ranges[node], 1.0)
        narrowed = np.flatnonzero((likelihood > 0).sum(axis=1) < frame.net.cards)
        below = {c for p in narrowed for c in frame.net.children[p]}
        for i in below.intersection(node[kind == TABLE_MEAN].tolist()):
            states = [np.flatnonzero(likelihood[p]) for p in frame.net.parents[i]]
            spread[i, : frame.net.cards[i]] = range_over_rows(frame.expanded[i][np.ix_(*states)])
        for i in self._even:
            spread[i, : frame.net.cards[i]] = self.ranges[i]
        return np.where(self._open, spread, 0.0)

    def largest_error(self) -> float:
        targets = [t for t in self.query.targets if not self.query.known[t]]
        return float(self.moments()[1][targets].max()) if targets and self.total.w > 0 else 0.0 if not targets else math.inf

    def posterior(self, method: str, limits: Limits, seconds: float) -> Posterior:
        total, net = self.total, self.frame.net
        mean, error = (a.copy() for a in self.moments())
        targets = self.query.targets
        for i, k in self.query.evidence.hard.items():
            mean[i], error[i] = np.arange(mean.shape[1]) == k, 0.0
        status, message = self.status(limits)
        return Posterior(
            variables=tuple(net.variables[i] for i in targets),
            probabilities=tuple(_unit(mean[i, : net.cards[i]]) for i in targets),
            std_errors=tuple(error[i, : net.cards[i]] for i in targets),
            log_evidence=total.log_evidence,
            log_evidence_error=self.log_evidence_error,
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
        return status, f"{why}; {MISSES}" if status != "ok" and self.doubted else why

    def _judged(self, limits: Limits) -> tuple[str, str]:
        total = self.total
        if self.ess < HOPELESS:
            return "failed", f"{total.samples} samples are worth {self.ess:.1f}: the answer is not to be trusted"
        if self.ess < ENOUGH:
            return "low_ess", f"{total.samples} samples are worth {self.ess:.0f}, fewer than {ENOUGH:.0f}"
        if total.heavy:
            return "low_ess", f"the largest weights have a heavy tail (k-hat {total.k_hat:.2f}, reliable below {RELIABLE})"
        largest = self.largest_error()
        if limits.target_error is not None and largest > limits.target_error:
            return "low_ess", f"the largest standard error is {largest:.2g}, the target was {limits.target_error:.2g}"
        return "ok", ""


def told_beyond(told: Floats | float, shown: Floats | float, least: Floats | float) -> Floats:
    """What to add to the variances ``least``, of those that witnesses tell of and those that the samples show, both without nets."""
    believed = np.greater(told, np.multiply(DOUBT, shown))
    believed |= np.greater(told, np.multiply(CLEARLY, shown)) & (np.subtract(told, shown) > np.multiply(DOUBT, least))
    return np.where(believed, told - np.maximum(shown, 0), 0)


def _unit(p: Floats) -> Floats:
    total = p.sum()
    return p / total if total > 0 else p
