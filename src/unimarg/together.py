"""Several evidence sets in one call: their walks and sums side by side, along an axis of their own.

On a GPU a walk of few samples takes as long as one of many, and several sets take little longer than one. Each has its own
conditionals, the random numbers that it would have alone, and its own stopping: who is done leaves, and the last few go on one by one.
A CPU gains nothing, since one set's samples keep its cores busy.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from unimarg.conditionals import Conditionals
from unimarg.counter import Key, key_from_seed
from unimarg.frame import Frame, Shape
from unimarg.importance import Estimator, Limits, chunk_size, first_sample
from unimarg.layout import NoisyBlocks
from unimarg.nets import leading_bits
from unimarg.sums import sums_of_samples
from unimarg.walk import steps_of_walk

SAMPLES = 1 << 13  # of each set in a call
MOST, FEWEST = 64, 8  # sets in a call; fewer are as quick one by one


def sets_together(frame: Frame) -> int:
    """How many sets a call holds; 0 where they are better off one by one."""
    if jax.default_backend() == "cpu":
        return 0
    fit = min(MOST, chunk_size(frame) // SAMPLES)
    return fit if fit >= FEWEST else 0


def run_together(estimators: Sequence[Estimator], sets: int, limits: Limits, seed: int, poor: float = 0.0, samples: int = SAMPLES) -> None:
    """Draws until each set is done, or few are left; one whose ESS is less than ``poor`` of its samples is left as well.

    The estimators, ``sets`` at most, are of one network and draw by a walk, from conditionals that lie on the host.
    """
    left = [(e, samples) for e in estimators]  # each with the number of samples at which to look at its errors
    while len(left) >= FEWEST:
        _draw([e for e, _ in left], sets, seed, limits, samples)
        goals = [(e, _next_goal(e, goal, limits, poor, samples)) for e, goal in left]
        left = [(e, goal) for e, goal in goals if goal]


def _next_goal(estimator: Estimator, goal: int, limits: Limits, poor: float, least: int) -> int:
    """The number of samples at which to look at the errors next; 0 if no more are to be drawn."""
    drawn, target = estimator.total.samples, limits.target_error
    if drawn >= limits.samples or estimator.ess < poor * drawn:
        return 0
    if target is None or drawn < goal:
        return goal
    return 0 if estimator.reached(target) else estimator.next_check(target, least)


def _draw(estimators: Sequence[Estimator], sets: int, seed: int, limits: Limits, samples: int) -> None:
    """One call: so many more samples of each; the last stands in for those that are missing."""
    padded = [*estimators, *[estimators[-1]] * (sets - len(estimators))]
    counts = np.array([min(samples, limits.samples - e.total.samples) for e in padded], dtype=np.int32)
    firsts = np.stack([np.asarray(first_sample(e.total.samples)) for e in padded])
    common = padded[0].given
    each = jax.tree.map(lambda *parts: np.stack(parts), *[e.given._replace(noisy=None, columns=None) for e in padded])
    leading = leading_bits(padded[0].nets)
    drawn = _side_by_side(common.noisy, common.columns, each, key_from_seed(seed), firsts, counts, leading, padded[0].frame.shape, samples)
    log_w, top, w, spreads, sums = jax.device_get(drawn)
    for n, e in enumerate(estimators):
        e.total.add(float(top[n]), float(w[n]), spreads[n], sums[n], log_w[n, : counts[n]], int(counts[n]))


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
