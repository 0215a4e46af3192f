"""How sure a mean or a median over evidence sets is: the percentile bootstrap.

The sets are drawn again with replacement, as many as there are; of the statistic over such draws the 2.5% and 97.5% quantiles are
the ends of the 95% interval. The sets are what was sampled: the interval says what other sets of the same family would have given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

RESAMPLES, SEED = 2000, 0
LEVEL = 0.95


def interval(values: Sequence[float] | np.ndarray, statistic: Callable[..., np.ndarray] = np.mean) -> tuple[float, float]:
    """The ends of the 95% interval of a statistic (``np.mean``, ``np.median``) of values, those that are no number left out.

    >>> interval([1.0, 1.0, 1.0])
    (1.0, 1.0)
    >>> low, high = interval(np.arange(100.0))
    >>> bool(42 < low < 45), bool(54 < high < 57)
    (True, True)
    """
    kept = np.asarray(values, dtype=float)
    kept = kept[~np.isnan(kept)]
    if not len(kept):
        return np.nan, np.nan
    drawn = kept[np.random.default_rng(SEED).integers(len(kept), size=(RESAMPLES, len(kept)))]
    low, high = np.quantile(statistic(drawn, axis=1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="nearest")
    return float(low), float(high)
