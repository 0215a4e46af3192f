"""How far weighted samples can be trusted.

ESS = (sum w)^2 / sum w^2          the number of draws from the posterior they are worth (Kish 1965)
k-hat                              shape of the generalised Pareto distribution fitted to the largest weights: below 0.5 the
                                   weights have a variance, above 0.7 estimates and errors are unreliable (Vehtari et al. 2024)
"""

from __future__ import annotations

import math

import numpy as np

from unimarg.network import Floats

FEW = 5  # tail weights below which nothing can be fitted


def scaled(log_w: np.ndarray) -> tuple[float, Floats]:
    """The largest log weight, and the weights relative to it; all 0 where none is possible."""
    log_w = np.asarray(log_w, dtype=np.float64)
    top = float(log_w.max(initial=-math.inf))
    return top, np.exp(log_w - top) if top > -math.inf else np.zeros_like(log_w)


def kish(w: Floats) -> float:
    """The ESS of weights.

    >>> kish(np.array([1.0, 1.0, 0.0]))
    2.0
    """
    squares = float(np.square(w).sum())
    return float(w.sum()) ** 2 / squares if squares > 0 else 0.0


def tail_size(samples: int) -> int:
    """How many of the largest weights k-hat is fitted to."""
    return int(min(0.2 * samples, 3 * math.sqrt(samples)))


def k_hat(log_weights: Floats, samples: int) -> float:
    """From the largest log weights, at least ``tail_size(samples) + 1`` of them unless there are fewer; -inf where all are equal.

    >>> k_hat(np.zeros(1000), 1000)
    -inf
    """
    size = tail_size(samples)
    ordered = np.sort(np.asarray(log_weights, dtype=np.float64))[::-1]
    ordered = ordered[ordered > -np.inf]
    if len(ordered) <= FEW or size < FEW:
        return math.inf
    size = min(size, len(ordered) - 1)
    top, cut = ordered[0], ordered[size]
    if top - cut < 1e-5:
        return -math.inf
    excess = np.exp(ordered[:size] - top) - np.exp(cut - top)
    excess = excess[excess > 0]
    return pareto_shape(excess[::-1]) if len(excess) > FEW else -math.inf


def pareto_shape(excess: Floats) -> float:
    """Shape of a generalised Pareto distribution for ascending values above 0: Zhang and Stephens (2009), weakly drawn to 0.5."""
    n = len(excess)
    grid = 30 + int(math.sqrt(n))
    quartile = excess[int(n / 4 + 0.5) - 1]
    b = 1 / excess[-1] + (1 - np.sqrt(grid / (np.arange(1, grid + 1) - 0.5))) / (3 * quartile)
    shape = np.log1p(-b[:, None] * excess).mean(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        profile = n * (np.log(-b / shape) - shape - 1)
    profile = np.where(np.isfinite(profile), profile, -np.inf)
    weight = np.exp(profile - profile.max())
    best = (b * weight).sum() / weight.sum()
    k = float(np.log1p(-best * excess).mean())
    return (n * k + 10 * 0.5) / (n + 10)
