"""Samples of the joint posterior.

P(x | e) is what the weighted samples of any proposal stand for (paper, section 3: the chain of conditionals approximates the
joint; the weights make it exact in the limit). Resampling in proportion to the weights gives samples that need none: systematic
resampling, in which a sample of weight w appears n w / sum w times, rounded up or down. A sample is a function of (seed, its number), so
that those chosen are drawn a second time in place of keeping all. Only the ancestors of evidence and targets are drawn (appendix A).
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from unimarg.counter import key_from_seed
from unimarg.diagnostics import scaled
from unimarg.errors import SamplingError, UsageError, whole_number
from unimarg.estimates import ENOUGH
from unimarg.formats.interop import AnyNetwork, as_network
from unimarg.importance import DEFAULT_SAMPLES, MISSES, Drawn, Estimator, chunk_size, first_sample, side_by_side
from unimarg.network import Floats, Ints, Network
from unimarg.query import DRAW_NONE, Asked, Options, check, is_default
from unimarg.sums import SUMS
from unimarg.weighted import Weighted, spreads_of

if TYPE_CHECKING:
    import pandas as pd

    from unimarg.marginalizer import Marginalizer

ALMOST = 1 - 1e-6  # rounding of effective samples
RESAMPLED = 1 << 30  # cells, rows times columns, that sample_posterior gives


def sample_posterior(
    net: AnyNetwork,
    evidence: Mapping[str, object] | None = None,
    n: int = 1000,
    method: str = "auto",
    weighted: bool | None = None,
    seed: int = 0,
    *,
    targets: Sequence[str] | None = None,
    **options: Any,
) -> Any:
    """n samples of the joint posterior: a DataFrame of state labels, a column for each target (all variables if None).

    They are resampled from weighted draws worth at least n; where that cannot be had a warning says so, and below 400 effective
    draws there is a ``SamplingError``. ``weighted=True`` gives (frame, weights) of n draws, the weights with sum 1; ``weighted=False``
    the n draws of a method that is named, without their weights, which only approximate the posterior. ``frame.attrs`` has method, status,
    message, ess, k_hat, draws and log_evidence. ``options`` are those of ``infer`` but for ``target_error``; ``samples`` and ``seconds``
    bound the draws to resample from.
    """
    return posterior_samples(as_network(net), None, evidence, n, targets, method, weighted, seed=seed, **options)


def posterior_samples(
    net: Network, model: Marginalizer | None, evidence: Any, n: int, targets: Any, method: str, weighted: bool | None, **options: Any
) -> Any:
    """``sample_posterior`` of networks and models."""
    if method in DRAW_NONE:
        raise UsageError(f"samples come from a sampling method or auto, not from {method!r}")
    check(method, model, options)
    if weighted is False and method == "auto":
        raise UsageError("weighted=False gives the raw draws of a proposal: name it, e.g. method='sequential'")
    if weighted not in (None, True, False):
        raise UsageError(f"weighted must be True, False or None, not {weighted!r}")
    if not is_default("target_error", options.get("target_error")):
        raise UsageError("samples have no standard error, and so no target_error: choose how many, n")
    asked = Asked(net, model, evidence, targets, Options(**options), every=True, nets=False)  # samples are expected to be independent
    n = whole_number(n, "the number of samples", 0, RESAMPLED // max(len(asked.query.targets), 1))
    name, estimator, tried = asked.proposal(method)
    stream = _Stream(estimator, asked)
    if weighted is not None:
        stream.extend(n, lambda: False)
        frame = stream.frame(np.arange(n), name, tried)
        if not weighted:
            return frame
        if n and not stream.total.w > 0:
            raise SamplingError(f"no draw of {n} was compatible with the evidence", n, 0.0)
        return frame, stream.weights()[:n]
    limit = max(DEFAULT_SAMPLES, 4 * n) if asked.options.samples is None else asked.limits.samples
    stream.until(max(n * ALMOST, ENOUGH), limit)
    return stream.frame(stream.resampled(n, asked.options.seed), name, tried, resampled=True)


class _Stream:
    """Draws by number and their weights; states are drawn again where they are wanted."""

    def __init__(self, estimator: Estimator, asked: Asked):
        self.estimator, self.asked, self.seed = estimator, asked, asked.options.seed
        self.size = chunk_size(estimator.frame)
        self.total = estimator.estimates.total = Weighted(0, 0)  # of the weights alone, so that no moments can be asked for
        self.log_w: list[np.ndarray] = []

    def _chunk(self, number: int) -> Drawn:
        return self.estimator.draw(key_from_seed(self.seed), first_sample(number * self.size), self.size)

    def extend(self, count: int, late: Callable[[], bool]) -> None:
        """The log weights of the draws up to ``count``, or of fewer if it gets late."""
        with ThreadPoolExecutor(side_by_side()) as pool:
            while self.total.samples < count and not (self.log_w and late()):
                numbers = range(len(self.log_w), -(-count // self.size))[: side_by_side()]
                for log_w in pool.map(lambda number: np.asarray(self._chunk(number)[1]), numbers):
                    self.log_w.append(log_w[: count - self.total.samples])
                    _add(self.total, self.log_w[-1].astype(np.float64))
        if count:
            self.estimator.hear(self.seed, self.size, self.total.samples, to_the_last=True)

    @property
    def ess(self) -> float:
        return self.estimator.ess

    def until(self, ess: float, limit: int) -> None:
        """Draws until they are worth ``ess``, asked at doublings so that stopping does not depend on the last few.

        Those that are chosen are drawn again, which takes as long once more at most: time is left for that.
        """
        began, count = time.perf_counter(), min(self.size, limit)

        def late() -> bool:
            drawing = time.perf_counter() - began
            return self.asked.told(self.total.samples, drawing) or self.asked.seconds() + drawing > self.asked.limits.seconds

        self.extend(count, late)
        while self.ess < ess and count < limit and self.total.samples == count:
            count = min(2 * count, limit)
            self.extend(count, late)

    def weights(self) -> Floats:
        _, w = scaled(np.concatenate(self.log_w) if self.log_w else np.zeros(0))
        return w / w.sum() if w.any() else w

    def resampled(self, n: int, seed: int) -> Ints:
        """Numbers of n draws by systematic resampling, in random order."""
        total = self.total
        worth = f"{total.samples} draws are worth {self.ess:.0f}"
        if not self.ess >= ENOUGH:
            found = f"no draw of {total.samples} was compatible with the evidence" if not total.w > 0 else worth
            advice = MISSES if self.ess < total.ess else "try another method, more samples=, or weighted=True"
            raise SamplingError(
                f"{found}: too few to resample from ({ENOUGH:.0f} needed); {advice}",
                total.samples,
                self.ess,
            )
        rng = np.random.default_rng(seed)
        edges = np.cumsum(self.weights())
        points = (rng.random() + np.arange(n)) / max(n, 1) * edges[-1]
        return rng.permutation(np.minimum(np.searchsorted(edges, points, side="right"), total.samples - 1))

    def states(self, numbers: Ints) -> Ints:
        """``[targets, len(numbers)]``."""
        targets = list(self.estimator.query.targets)
        out = np.zeros((len(targets), len(numbers)), dtype=self.estimator.frame.shape.dtype)
        chunk = numbers // self.size

        def draw_again(c: int) -> None:
            here = np.flatnonzero(chunk == c)
            drawn = np.asarray(self._chunk(c)[0])
            out[:, here] = drawn[targets][:, numbers[here] % self.size]

        with ThreadPoolExecutor(side_by_side()) as pool:
            list(pool.map(draw_again, np.unique(chunk).tolist()))
        return out

    def frame(self, numbers: Ints, method: str, tried: str, resampled: bool = False) -> pd.DataFrame:
        import pandas as pd

        net, total = self.estimator.frame.net, self.total
        status, message = self._status(len(numbers), resampled)
        if resampled and status != "ok":
            warnings.warn(message, UserWarning, stacklevel=4)
        variables = [net.variables[t] for t in self.estimator.query.targets]
        columns = {
            v.name: np.array(v.states, dtype=object)[codes] for v, codes in zip(variables, self.states(numbers).astype(int), strict=True)
        }
        frame = pd.DataFrame(columns, columns=[v.name for v in variables])
        frame.attrs |= {
            "method": method,
            "status": status,
            "message": "; ".join(m for m in (message, tried) if m),
            "ess": self.ess,
            "k_hat": total.k_hat,
            "draws": total.samples,
            "log_evidence": total.log_evidence if total.samples else math.nan,
        }
        return frame

    def _status(self, rows: int, resampled: bool) -> tuple[str, str]:
        total, why = self.total, f"; {MISSES}" if self.ess < self.total.ess else ""
        if resampled and self.ess < rows * ALMOST:
            return "low_ess", f"{total.samples} draws are worth {self.ess:.0f}, fewer than the {rows} samples asked for: rows repeat{why}"
        if self.ess < ENOUGH:
            return "low_ess", f"{total.samples} draws are worth {self.ess:.0f}, fewer than {ENOUGH:.0f}{why}"
        if total.heavy:
            return "low_ess", f"the largest weights have a heavy tail (k-hat {total.k_hat:.2f}){why}"
        return "ok", ""


def _add(total: Weighted, log_w: Floats) -> None:
    """A chunk's weights alone."""
    top, w = scaled(log_w)
    total.add(top, float(w.sum()), spreads_of(w), np.zeros((0, 0, SUMS)), log_w, len(log_w))
