"""Means of weighted samples and their errors.

The standard error of a marginal is sqrt(sum over nets of (sum w (f - mu))^2) / sum w, with f of ``averages``: a little more where nets
are few; less where the proposal's own q_i serves as a control variate, and no less than the share of a FEW heavy samples, unless
counting the state would have less. To the variance of a rare state the square of that share is added: few samples, or none, show how
its weights vary. Where look-ahead averaged nothing all weights are equal, and a sample counts for no more than q_i can vary. Where a
proposal may miss what no weight shows, witnesses are heard (``witness``).
"""

from __future__ import annotations

import math

import numpy as np

from unimarg.averages import Averaged
from unimarg.network import Floats
from unimarg.weighted import Moments, Weighted, Witnesses

ENOUGH = 400.0  # effective samples from which an answer is ok
FEW = 2.0  # heavy samples, whose share in all weights is an error's least where means of probabilities or control variates leave less
RARE = 50.0  # heavy samples: to the variance of a state that fewer of them could show, the square of that share is added
UNSEEN = 2.6  # likewise where weights are known to be equal: of 4.5 times as many expected none come as seldom as a score beyond 4.5
SCORE = 3.0  # a z-score that should be as seldom as a normal one
EVENTS = 100  # sum of D^2 from which a factor is fitted freely
TINY = 1e-300
ALIKE = 1e-5  # relative spread of weights that are all the same
ROUNDING = 1e-6  # of probabilities in float32, summed, relative to them
OF_LOGARITHMS = 2.0**-23  # of log weights in float32, and of the tables' logarithms that they are sums of, relative to log P(e)
DOUBT = 2.0  # times the variance that the samples show: what witnesses tell is believed from here on, below it is mostly noise,
CLEARLY = 1.05  # or from here on where nets and control variates leave so little of it that what is beyond is DOUBT times as much


class Estimates:
    """What samples say so far, and witnesses of them."""

    def __init__(self, averaged: Averaged, may_vary: bool, nets: bool):
        self.averaged = averaged
        self.may_vary = may_vary  # whether samples of other weights may exist
        self.nets = nets  # whether samples come in nets
        self.total, self.heard = Weighted(*averaged.open.shape), Witnesses(*averaged.open.shape)
        self._known: tuple[tuple[int, int], tuple[Floats, Floats]] | None = None  # samples and witnesses, and the moments of so many
        self._beyond = 0.0  # the most that witnesses add to a variance

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
        return self.heard.w2 * self.scale

    @property
    def doubted(self) -> bool:
        """Whether witnesses decide what is said of the samples' worth, or of the largest error."""
        error = self.moments()[1]
        return self.ess < self.total.ess or bool(self._beyond > error.max(initial=0) ** 2 / 2)

    @property
    def scale(self) -> float:
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
        told, shown = self.told_of(centre + delta), total.by_sample.about(delta) / total.w**2
        delta, square, apart = self._controlled(delta)
        mean, spread = np.clip(centre + delta, 0, 1), self.averaged.spread
        # What was not drawn may weigh as much as the heaviest samples that were. Where few of those would make the state, or all of a
        # variance, the samples say little of it; elsewhere a mean varies no more than the indicator of the state.
        heavy, even = total.heaviest * spread, np.isin(np.arange(n), self.averaged.even)[:, None]
        few, counted = (np.where(even, UNSEEN, FEW) * heavy) ** 2, mean * (1 - mean) / total.ess
        rare = np.where(even, apart < RARE * heavy**2, np.minimum(mean, 1 - mean) < RARE * heavy)
        square = np.where(rare, np.maximum(square, 0) + few, np.maximum(square, np.minimum(counted, few)))
        beyond = told_beyond(told, shown, square)
        least = max(ROUNDING, self._rounding) * np.maximum(mean, self.averaged.open)
        self._beyond = float(beyond.max(initial=0))
        return mean, np.clip(np.sqrt(square + beyond), least, 1)

    def told_of(self, mean: Floats) -> Floats:
        """The variances of independent samples that the witnesses tell of."""
        return np.clip(self.heard.by_sample.about(mean - self.heard.centre) * self.scale, 0, 1)

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
        a[self.averaged.even] = 1
        delta = delta - a * total.sums[..., 1] / n

        def variance(m: Moments) -> Floats:
            return m.about(delta) / total.w**2 - (2 * a * m.along(delta) * n / total.w - a**2 * m.control) / n**2

        return delta, variance(moments) * factor, variance(total.by_sample)

    def largest_error(self) -> float:
        """Of what was asked for; infinite where no sample is possible."""
        return self.averaged.largest(self.moments()[1]) if self.total.w > 0 else math.inf


def told_beyond(told: Floats | float, shown: Floats | float, least: Floats | float) -> Floats:
    """What to add to the variances ``least``, of those that witnesses tell of and those that the samples show, both without nets."""
    believed = np.greater(told, np.multiply(DOUBT, shown))
    believed |= np.greater(told, np.multiply(CLEARLY, shown)) & (np.subtract(told, shown) > np.multiply(DOUBT, least))
    return np.where(believed, told - np.maximum(shown, 0), 0)
