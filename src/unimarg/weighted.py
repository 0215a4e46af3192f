"""What weighted samples add up to so far: float64 sums over chunks, weights scaled by the largest, and the largest of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from unimarg.diagnostics import k_hat, tail_size
from unimarg.network import Floats

RELIABLE, DECISIVE = 0.7, 0.3  # k-hat above which a tail is heavy; share of sum w^2 from which it matters
HEAVIEST = 10  # samples: the mean of their weights is that of a heavy one


@dataclass
class Weighted:
    """Sums over the samples so far."""

    nodes: int
    card: int
    samples: int = 0
    top: float = -math.inf  # log of the scale
    w: float = 0.0
    w2: float = 0.0
    sums: Floats = field(init=False)  # [nodes, card, (w g, w^2 g, w^2 g^2)], g = f - centre
    control: Floats = field(init=False)  # [nodes, card, (D, D^2, w D, w g D)]
    centre: Floats = field(init=False)  # [nodes, card]
    largest: Floats = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        self.sums, self.control = (np.zeros((self.nodes, self.card, k)) for k in (3, 4))
        self.centre = np.zeros((self.nodes, self.card))

    def add(self, top: float, w: float, w2: float, sums: np.ndarray, log_w: np.ndarray, count: int) -> None:
        """``sums`` are those of ``weighted_sums``, about a centre of their own."""
        if self.samples == 0:
            self.centre = sums[..., 3].astype(np.float64)
        self.samples += count
        scale = max(self.top, top)
        old, new = (math.exp(t - scale) if t > -math.inf else 0.0 for t in (self.top, top))
        self.w, self.w2 = self.w * old + w * new, self.w2 * old**2 + w2 * new**2
        powers, weights = np.array([1, 2, 2]), np.array([0, 0, 1, 1])  # of w
        moved, control = _moved(sums.astype(np.float64), self.centre, w, w2)
        self.sums = self.sums * old**powers + moved * new**powers
        self.control = self.control * old**weights + control * new**weights
        self.top = scale
        keep = tail_size(self.samples) + 1
        together = np.concatenate([self.largest, log_w])
        self.largest = np.partition(together, len(together) - keep)[-keep:] if len(together) > keep else together

    @property
    def ess(self) -> float:
        return self.w**2 / self.w2 if self.w2 > 0 else 0.0

    @property
    def heaviest(self) -> float:
        """The share of a heavy sample in the sum of all weights: the mean of the HEAVIEST."""
        return float(np.exp(np.sort(self.largest)[-HEAVIEST:] - self.top).mean()) / self.w

    @property
    def log_evidence(self) -> float:
        return self.top + math.log(self.w / self.samples) if self.w > 0 else -math.inf

    @property
    def k_hat(self) -> float:
        return k_hat(self.largest, self.samples)

    @property
    def heavy(self) -> bool:
        """Whether the largest weights decide: their tail is heavy, and holds much of what makes the variance.

        k-hat alone would also reject weights that take few values, of which the largest is rare and harmless.
        """
        tail = np.exp(2 * (self.largest - self.top)).sum() if self.w2 > 0 else 0.0
        return self.k_hat >= RELIABLE and tail > DECISIVE * self.w2


def _moved(sums: Floats, centre: Floats, w: float, w2: float) -> tuple[Floats, Floats]:
    """Sums of w g, w^2 g, w^2 g^2, and of D, D^2, w D, w g D, about another centre than their own."""
    wg, w2g, w2g2, own, d, d2, wd, wgd = np.moveaxis(sums, -1, 0)
    by = own - centre
    return np.stack([wg + by * w, w2g + by * w2, w2g2 + by * (2 * w2g + by * w2)], axis=-1), np.stack([d, d2, wd, wgd + by * wd], axis=-1)
