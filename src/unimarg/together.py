"""Several evidence sets in one call: their walks and sums side by side, along an axis of their own.

On a GPU a walk of few samples takes as long as one of many, and several sets take little longer than one. Each has its own
conditionals, the random numbers that it would have alone, and its own stopping: who is done draws no more. Who needs more than a few
calls more goes on alone, by calls of many more samples, and so do the last sets. A CPU gains nothing, since one set's samples keep its
cores busy.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from unimarg.conditionals import Conditionals
from unimarg.counter import Key, key_from_seed
from unimarg.frame import Frame, Shape
from unimarg.importance import FIRST_CHECK, Estimator, Limits, first_sample, samples_that_fit
from unimarg.layout import NoisyBlocks, power_of_two
from unimarg.nets import leading_bits
from unimarg.sums import sums_of_samples
from unimarg.walk import steps_of_walk

SAMPLES, CALLS = FIRST_CHECK, 2  # of each set in a call, and how many calls more it may need
MOST, FEWEST = 64, 16  # sets in a call; fewer are as quick one by one
TABLE_BYTES = 1 << 32  # of the tables of all sets


def sets_together(frame: Frame) -> int:
    """How many sets a call holds; 0 where they are better off one by one."""
    if jax.default_backend() == "cpu":
        return 0
    fit = min(MOST, samples_that_fit(frame) // SAMPLES, TABLE_BYTES // (3 * 4 * frame.capacity))
    return fit if fit >= FEWEST else 0


def better_off(estimators: Sequence[Estimator], limits: Limits, samples: int = SAMPLES) -> list[Estimator]:
    """Those that need more, and not so much more that it takes less time alone."""
    return [e for e in estimators if 0 < e.look(limits, samples) - e.total.samples <= CALLS * samples]


class Group:
    """Estimators of one network that draw by walks, ``sets`` at most; their conditionals, on the host, are put on the device once."""

    def __init__(self, estimators: Sequence[Estimator], sets: int, used: int, samples: int = SAMPLES):
        """``used`` are the entries that any of them has in its tables; the program depends on ``sets`` and ``samples`` alone."""
        self.estimators, self.samples = list(estimators), samples
        padded = [*estimators, *[estimators[-1]] * (sets - len(estimators))]
        frame, common = padded[0].frame, padded[0].given
        span = min(power_of_two(used), frame.capacity)
        self.each = _stacked([e.given for e in padded], span, frame.capacity)
        self.common = jax.device_put((common.noisy, common.columns))
        self.sets, self.shape, self.leading = sets, frame.shape, leading_bits(padded[0].nets)

    def run(self, limits: Limits, seed: int, among: Sequence[Estimator] | None = None) -> list[Estimator]:
        """Draws until each is done or better off alone; those that are not done."""
        left = self.estimators if among is None else among
        while len(near := better_off(left, limits, self.samples)) >= FEWEST:
            self._draw(near, limits, seed)
        return [e for e in left if e.look(limits, self.samples)]

    def _draw(self, among: Sequence[Estimator], limits: Limits, seed: int) -> None:
        counts, firsts = np.zeros(self.sets, np.int32), np.zeros((self.sets, 2), np.uint32)
        drawing = [(n, e) for n, e in enumerate(self.estimators) if e in among]
        for n, e in drawing:
            counts[n] = min(self.samples, limits.samples - e.total.samples)
            firsts[n] = np.asarray(first_sample(e.total.samples))
        drawn = _side_by_side(*self.common, self.each, key_from_seed(seed), firsts, counts, self.leading, self.shape, self.samples)
        log_w, top, w, spreads, sums = jax.device_get(drawn)
        for n, e in drawing:
            e.total.add(float(top[n]), float(w[n]), spreads[n], sums[n], log_w[n, : counts[n]], int(counts[n]))


def _stacked(given: Sequence[Conditionals], span: int, capacity: int) -> Conditionals:
    """On the device; of the tables, which are mostly room, only a span is copied."""
    tables = ("high", "prob", "log_ratio")
    cut = [g._replace(noisy=None, columns=None, **{name: getattr(g, name)[:span] for name in tables}) for g in given]
    each: Conditionals = jax.device_put(jax.tree.map(lambda *parts: np.stack(parts), *cut))
    return each._replace(**{name: _widened(getattr(each, name), capacity) for name in tables})


@partial(jax.jit, static_argnames=("width",))
def _widened(tables: jax.Array, width: int) -> jax.Array:
    return jnp.pad(tables, ((0, 0), (0, width - tables.shape[1])))


@partial(jax.jit, static_argnames=("shape", "n"))
def _side_by_side(
    noisy: NoisyBlocks | None,
    columns: jax.Array,
    each: Conditionals,
    key: Key,
    firsts: jax.Array,
    counts: jax.Array,
    leading: jax.Array,
    shape: Shape,
    n: int,
) -> Any:
    """Log weights and ``weighted_sums`` of n samples of each set, ``[sets, ...]``."""
    steps, means = each.drawn.max(), each.estimated.max()

    def one(own: Conditionals, first: jax.Array, count: jax.Array) -> tuple[jax.Array, ...]:
        given = own._replace(noisy=noisy, columns=columns)
        states, log_w, _, _, origin = steps_of_walk(shape, given, key, first, n, leading, turns=steps)
        arrays = given.means, given.estimated, given.prob, given.noisy, states, log_w, origin
        return log_w, *sums_of_samples(shape, *arrays, count, turns=means)

    return jax.vmap(one)(each, firsts, counts)
