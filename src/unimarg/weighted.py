"""What weighted samples add up to so far: float64 sums over chunks, weights scaled by the largest, and the largest of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from unimarg.diagnostics import k_hat, tail_size
from unimarg.nets import NET
from unimarg.network import Floats
from unimarg.sums import SECOND

RELIABLE, DECISIVE = 0.7, 0.3  # k-hat above which a tail is heavy; share of sum w^2 from which it matters
HEAVIEST = 10  # samples: the mean of their weights is that of a heavy one


@dataclass
class Spread:
    """How the weights of nets vary, or of samples: about a centre, or digits are lost where they hardly do."""

    centre: float = 0.0  # c, a sample's weight
    squares: float = 0.0  # sum of (w - n c)^2, n the number of samples of each
    along: float = 0.0  # sum of n (w - n c)
    counts2: float = 0.0  # sum of n^2

    def add(self, other: Spread, old: float, new: float) -> None:
        """``old`` and ``new`` scale the weights."""
        self.centre, self.squares, self.along = self.centre * old, self.squares * old**2, self.along * old
        if self.counts2 == 0:
            self.centre = other.centre * new
        by = other.centre * new - self.centre
        self.squares += other.squares * new**2 + by * (2 * other.along * new + by * other.counts2)
        self.along += other.along * new + by * other.counts2
        self.counts2 += other.counts2

    def about(self, centre: float) -> float:
        by = self.centre - centre
        return self.squares + by * (2 * self.along + by * self.counts2)


@dataclass
class Moments:
    """Sums of products of w, w g and D, over samples or over nets (each the sum over its samples)."""

    products: Floats  # [nodes, card, ((w g)^2, w g w, D^2, w D, w g D)]
    weights: Spread = field(default_factory=Spread)

    def add(self, old: float, new: float, weights: Spread, sums: Floats, centre: Floats) -> None:
        """``sums`` are about a centre that comes first; ``old`` and ``new`` scale the weights."""
        own, g2, gw, d2, wd, gd = np.moveaxis(sums, -1, 0)
        by, powers, w2 = own - centre, np.array([2, 2, 0, 1, 1]), weights.about(0.0)
        moved = np.stack([g2 + by * (2 * gw + by * w2), gw + by * w2, d2, wd, gd + by * wd], axis=-1)
        self.products = self.products * old**powers + moved * new**powers  # powers of w
        self.weights.add(weights, old, new)

    @property
    def w2(self) -> float:
        return self.weights.about(0.0)

    def about(self, delta: Floats) -> Floats:
        """Sum of (w (g - delta))^2."""
        g2, gw = self.products[..., 0], self.products[..., 1]
        return g2 - 2 * delta * gw + delta**2 * self.w2

    def along(self, delta: Floats) -> Floats:
        """Sum of w (g - delta) D."""
        wd, gd = self.products[..., 3], self.products[..., 4]
        return gd - delta * wd

    @property
    def control(self) -> Floats:
        """Sum of D^2."""
        return self.products[..., 2]


@dataclass
class Weighted:
    """Sums over the samples so far."""

    nodes: int
    card: int
    samples: int = 0
    top: float = -math.inf  # log of the scale
    w: float = 0.0
    sums: Floats = field(init=False)  # [nodes, card, (w g, D)], g = f - centre
    by_sample: Moments = field(init=False)
    by_net: Moments = field(init=False)
    centre: Floats = field(init=False)  # [nodes, card]
    largest: Floats = field(default_factory=lambda: np.zeros(0))  # log weights
    smallest: float = math.inf  # likewise
    zeros: int = 0  # samples of no weight

    def __post_init__(self) -> None:
        self.centre, self.sums = np.zeros((self.nodes, self.card)), np.zeros((self.nodes, self.card, 2))
        self.by_sample, self.by_net = (Moments(np.zeros((self.nodes, self.card, SECOND - 1))) for _ in range(2))

    def add(self, top: float, w: float, spreads: np.ndarray, sums: np.ndarray, log_w: np.ndarray, count: int) -> None:
        """``spreads`` and ``sums`` are those of ``weighted_sums``, about centres of their own."""
        sums = sums.astype(np.float64)
        if self.samples == 0:
            self.centre = sums[..., 2]
        self.samples += count
        self.zeros += int(np.isneginf(log_w).sum())
        scale = max(self.top, top)
        old, new = (math.exp(t - scale) if t > -math.inf else 0.0 for t in (self.top, top))
        moved = sums[..., :2] + np.stack([(sums[..., 2] - self.centre) * w, np.zeros_like(self.centre)], axis=-1)
        self.w, self.sums = self.w * old + w * new, self.sums * [old, 1] + moved * [new, 1]
        whole, rest = divmod(count, NET)
        of_samples, of_nets = np.asarray(spreads, dtype=np.float64).tolist()
        samples, nets = Spread(*of_samples, counts2=count), Spread(*of_nets, counts2=whole * NET**2 + rest**2)
        self.by_sample.add(old, new, samples, sums[..., 2 : 2 + SECOND], self.centre)
        self.by_net.add(old, new, nets, sums[..., 2 + SECOND :], self.centre)
        self.top = scale
        keep = tail_size(self.samples) + 1
        self.smallest = min(self.smallest, float(log_w.min(initial=math.inf)))
        together = np.concatenate([self.largest, log_w])
        self.largest = np.partition(together, len(together) - keep)[-keep:] if len(together) > keep else together

    @property
    def w2(self) -> float:
        return self.by_sample.w2

    @property
    def ess(self) -> float:
        return self.w**2 / self.w2 if self.w2 > 0 else 0.0

    @property
    def heaviest(self) -> float:
        """The share of a heavy sample in the sum of all weights: the mean of the HEAVIEST."""
        return float(np.exp(np.sort(self.largest)[-HEAVIEST:] - self.top).mean()) / self.w

    @property
    def lightest(self) -> float:
        """Likewise of the lightest sample."""
        return math.exp(self.smallest - self.top) / self.w

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


@dataclass
class Witnesses(Weighted):
    """Sums over samples that another drew, with the weights v there and w here (``witness``): to all other sums of the weight sqrt(v w)."""

    logs: Floats = field(default_factory=lambda: np.full(3, -math.inf))  # of the sums of v w, v and v / w, in all digits: they cancel

    def add(self, top: float, w: float, spreads: np.ndarray, sums: np.ndarray, log_w: np.ndarray, count: int) -> None:
        """``log_w`` are log v and log w, ``[2, count]``."""
        log_v, own = log_w.astype(np.float64)
        now = np.logaddexp.reduce(np.stack([log_v + own, log_v, log_v - own]), axis=1)
        self.logs = np.logaddexp(self.logs, now)
        super().add(top, w, spreads, sums, (log_v + own) / 2, count)

    def variance(self, log_p: float) -> float:
        """Of w / P over what the proposal may draw and the evidence allows: E[(w / P - 1)^2 P / w | e], of which no term is negative."""
        if self.w2 <= 0 or log_p == -math.inf:
            return 0.0
        product, once, ratio = np.exp(np.minimum(self.logs - log_p * np.array([2, 1, 0]), 600.0)).tolist()
        return max(product - 2 * once + ratio, 0.0) / self.samples


def spreads_of(w: Floats) -> Floats:
    """As ``weighted_sums`` has them, of weights on the host."""
    net = np.arange(len(w)) // NET
    mean = w.mean() if len(w) else 0.0
    even, counts = np.bincount(net, w - mean), np.bincount(net)
    return np.array([[mean, ((w - mean) ** 2).sum(), (w - mean).sum()], [mean, (even**2).sum(), (counts * even).sum()]])
