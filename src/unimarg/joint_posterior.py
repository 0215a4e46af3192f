"""The joint posterior: whole samples of it, and the distribution of a few variables together.

P(x | e) is what the weighted samples of any proposal stand for (paper, section 3: the chain of conditionals approximates the
joint; the weights make it exact in the limit). Resampling in proportion to the weights gives samples that need none: systematic
resampling, in which a sample of weight w appears n w / sum w times, rounded up or down. A sample is a function of (seed, its number), so
that those chosen are drawn a second time in place of keeping all. Only the ancestors of evidence and targets are drawn (appendix A).
"""

from __future__ import annotations

import itertools
import math
import time
import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from unimarg.counter import key_from_seed
from unimarg.errors import ImpossibleEvidenceError, SamplingError, TooExpensiveError, UsageError, whole_number
from unimarg.exact import exact
from unimarg.formats.interop import AnyNetwork, as_network
from unimarg.importance import DEFAULT_SAMPLES, ENOUGH, MISSES, Drawn, Estimator, chunk_size, first_sample
from unimarg.nets import NET
from unimarg.network import Floats, Ints, Network
from unimarg.query import DRAW_NONE, EXACT_MEMORY, Asked, Options, check
from unimarg.sums import SUMS
from unimarg.walk import Origin
from unimarg.weighted import Weighted, Witnesses, spreads_of

if TYPE_CHECKING:
    import pandas as pd

    from unimarg.marginalizer import Marginalizer

MOST_COMBINATIONS = 1 << 16  # of the states of the variables of a joint marginal
QUICK_CALLS = 256  # of exact inference, one for each combination of all variables but one, that auto makes
ALMOST = 1 - 1e-6  # rounding of effective samples
RESAMPLED = 1 << 30  # cells, rows times columns, that sample_posterior gives


# --- samples


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
    message, ess, k_hat, draws and log_evidence. ``options`` are those of ``infer``; ``samples`` and ``seconds`` bound the draws to
    resample from.
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
    asked = Asked(net, model, evidence, targets, Options(**options), every=True, nets=False)  # samples are expected to be independent
    n = whole_number(n, "the number of samples", 0, RESAMPLED // max(len(asked.query.targets), 1))
    name, estimator, tried = _proposal(asked, method)
    stream = _Stream(estimator, asked.options.seed)
    if weighted is not None:
        stream.extend(n)
        frame = stream.frame(np.arange(n), name, tried)
        if not weighted:
            return frame
        if n and not stream.total.w > 0:
            raise SamplingError(f"no draw of {n} was compatible with the evidence", n, 0.0)
        return frame, stream.weights()[:n]
    limit = max(DEFAULT_SAMPLES, 4 * n) if asked.options.samples is None else asked.limits.samples
    stream.until(max(n * ALMOST, ENOUGH), limit, asked.limits.seconds)
    return stream.frame(stream.resampled(n, asked.options.seed), name, tried, resampled=True)


def _proposal(asked: Asked, method: str) -> tuple[str, Estimator, str]:
    asked.rule_out()
    return asked.best() if method == "auto" else (method, asked.estimator(method), asked.note)


class _Stream:
    """Draws by number and their weights; states are drawn again where they are wanted."""

    def __init__(self, estimator: Estimator, seed: int):
        self.estimator, self.seed, self.size = estimator, seed, chunk_size(estimator.frame)
        self.total = estimator.total = Weighted(0, 0)  # of the weights alone, so that no moments can be asked for
        self.log_w: list[np.ndarray] = []

    def _chunk(self, number: int) -> Drawn:
        return self.estimator.draw(key_from_seed(self.seed), first_sample(number * self.size), self.size)

    def extend(self, count: int) -> None:
        """The log weights of the draws up to ``count``."""
        while self.total.samples < count:
            now = np.asarray(self._chunk(len(self.log_w))[1])[: count - self.total.samples]
            self.log_w.append(now)
            _add(self.total, now.astype(np.float64))
        if count:
            self.estimator.hear(self.seed, self.size, count, to_the_last=True)

    @property
    def ess(self) -> float:
        return self.estimator.ess

    def until(self, ess: float, limit: int, seconds: float) -> None:
        """Draws until they are worth ``ess``, asked at doublings so that stopping does not depend on the last few."""
        began, count = time.perf_counter(), min(self.size, limit)
        self.extend(count)
        while self.ess < ess and count < limit and time.perf_counter() - began < seconds:
            count = min(2 * count, limit)
            self.extend(count)

    def weights(self) -> Floats:
        log_w = np.concatenate(self.log_w).astype(np.float64) if self.log_w else np.zeros(0)
        w = np.exp(log_w - self.total.top) if self.total.w > 0 else np.zeros_like(log_w)
        return w / w.sum() if self.total.w > 0 else w

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
        for c in np.unique(chunk).tolist():
            here = np.flatnonzero(chunk == c)
            drawn = np.asarray(self._chunk(c)[0])
            out[:, here] = drawn[targets][:, numbers[here] % self.size]
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
    top = float(log_w.max(initial=-math.inf))
    w = np.exp(log_w - top) if top > -math.inf else np.zeros(1)
    total.add(top, float(w.sum()), spreads_of(w), np.zeros((0, 0, SUMS)), log_w, len(log_w))


# --- a few variables together


def joint(
    net: AnyNetwork, evidence: Mapping[str, object] | None, names: Sequence[str], method: str = "auto", **options: Any
) -> pd.DataFrame:
    """P(names | evidence): a DataFrame with a row for every combination of states, and the columns probability and std_error.

    Exact, with errors of zero, where ``auto`` finds that quick or ``method="exact"`` asks for it; else from weighted samples.
    ``options`` are those of ``infer``; ``frame.attrs`` has method, status, message, ess, k_hat, samples,
    log_evidence, log_evidence_error and seconds.
    """
    return joint_table(as_network(net), None, evidence, names, method, **options)


def joint_table(net: Network, model: Marginalizer | None, evidence: Any, names: Sequence[str], method: str, **options: Any) -> pd.DataFrame:
    """``joint`` of networks and models."""
    check(method, model, options)
    if method == "um":
        raise UsageError("one pass of the network gives marginals of single variables: choose another method")
    names = [net.names[i] for i in net.find_all([] if names is None else names, "the variables of a joint marginal")]
    if not names or len(set(names)) < len(names):
        raise UsageError(f"a joint marginal needs a list of different names, not {names!r}")
    if taken := {"probability", "std_error"} & set(names):
        raise UsageError(f"the table of a joint marginal has a column {min(taken)} of its own: give the variable of that name another")
    cards = [net.variables[net.index[name]].card for name in names]
    if math.prod(cards) > MOST_COMBINATIONS:
        raise UsageError(
            f"the states of {len(names)} variables have {math.prod(cards)} combinations; at most {MOST_COMBINATIONS} are given"
        )
    asked = Asked(net, model, evidence, names, Options(**options), every=True)
    quick = method == "auto" and math.prod(cards) // max(cards) <= QUICK_CALLS and asked.small()
    if method == "exact" or quick:
        memory, patience = (EXACT_MEMORY, asked.limits.seconds / 2) if quick else (asked.memory, math.inf)
        try:
            found = _exact_joint(asked, names, memory, patience)
        except TooExpensiveError:
            if not quick:
                raise
            found = None
        if found is not None:
            return found
    name, estimator, tried = _proposal(asked, method)
    counting = Combinations(estimator, cards)
    asked.run(counting)
    status, message = counting.status(asked.limits)
    mean, error = counting.moments()
    total = counting.total
    facts = {
        "method": name,
        "status": status,
        "message": "; ".join(m for m in (message, tried) if m),
        "ess": counting.ess,
        "k_hat": total.k_hat,
        "samples": total.samples,
        "log_evidence": total.log_evidence,
        "log_evidence_error": counting.log_evidence_error,
    }
    return _table(asked, names, mean[0], error[0], facts)


def _exact_joint(asked: Asked, names: Sequence[str], memory: float, patience: float) -> pd.DataFrame | None:
    """By the chain rule: P(x_1 .. x_m, e) = P(x_1 .. x_{m-1}, e) P(x_m | x_1 .. x_{m-1}, e), m the one with the most states.

    What is known of the variables themselves is a factor that multiplies each combination. None if it takes more than ``patience`` seconds.
    """
    net, query = asked.net, asked.query
    rest = {name: value for name, value in (asked.given or {}).items() if name not in names}
    last = max(names, key=lambda name: net.variables[net.index[name]].card)
    others = [name for name in names if name != last]
    variables = {name: net.variables[net.index[name]] for name in names}
    log_l = {}
    with np.errstate(divide="ignore"):
        for name, v in variables.items():
            log_l[name] = np.log(query.likelihood[net.index[name], : v.card])
    log_p = np.full([variables[name].card for name in (*others, last)], -np.inf)
    for states in itertools.product(*(range(variables[name].card) for name in others)):
        likelihood = sum(log_l[name][k] for name, k in zip(others, states, strict=True))
        if likelihood == -np.inf:
            continue
        if asked.seconds() > patience:
            return None
        try:
            found = exact(net, rest | {n: variables[n].states[k] for n, k in zip(others, states, strict=True)}, [last], memory=memory)
        except ImpossibleEvidenceError:
            continue
        with np.errstate(divide="ignore"):
            log_p[states] = likelihood + found.log_evidence + np.log(found.probabilities[0]) + log_l[last]
    top = log_p.max()
    if top == -np.inf:
        raise ImpossibleEvidenceError("the evidence is impossible")
    p = np.moveaxis(np.exp(log_p - top), -1, names.index(last)).ravel()
    facts = {"method": "exact", "status": "ok", "message": "", "ess": math.inf, "k_hat": -math.inf, "samples": 0}
    # without evidence the sum is 1, and only rounding would say otherwise
    facts |= {"log_evidence": float(top + np.log(p.sum())) if len(query.evidence) else 0.0, "log_evidence_error": 0.0}
    return _table(asked, names, p / p.sum(), np.zeros(len(p)), facts)


def _table(asked: Asked, names: Sequence[str], p: Floats, error: Floats, facts: dict[str, Any]) -> pd.DataFrame:
    import pandas as pd

    states = [asked.net.variables[asked.net.index[name]].states for name in names]
    frame = pd.DataFrame(list(itertools.product(*states)), columns=list(names))
    frame["probability"], frame["std_error"] = p, error
    frame.attrs.update(facts | {"seconds": time.perf_counter() - asked.began})
    return frame


class Combinations(Estimator):
    """Counts the combinations of the query's targets in place of the states of each."""

    def __init__(self, proposal: Estimator, cards: Sequence[int]):
        super().__init__(proposal.frame, proposal.query, proposal.given, proposal.draw, witness=proposal.witness, nets=proposal.nets)
        self.cards = cards
        self.total, self.heard = (kind(1, math.prod(cards)) for kind in (Weighted, Witnesses))

    def _sums(self, states: jax.Array, log_w: jax.Array, origin: Origin | None, count: int) -> Any:
        codes = np.ravel_multi_index(tuple(np.asarray(states)[t, :count].astype(np.int64) for t in self.query.targets), self.cards)
        weight = np.asarray(log_w, dtype=np.float64)[:count]
        top = weight.max()
        w = np.exp(weight - top) if top > -np.inf else np.zeros(count)
        net, all_codes = np.arange(count) // NET, math.prod(self.cards)
        cells, cell = np.unique(net * all_codes + codes, return_inverse=True)  # a combination in a net
        of_net, of_cell = np.bincount(net, w), np.bincount(cell, w)
        parts = (codes, w), (codes, w * w), (cells % all_codes, of_cell**2), (cells % all_codes, of_cell * of_net[cells // all_codes])
        once, twice, square, along = (np.bincount(at, a, minlength=all_codes) for at, a in parts)
        zero = np.zeros(all_codes)
        sums = [once, zero, zero, twice, twice, *[zero] * 4, square, along, *[zero] * 3]
        return top, w.sum(), spreads_of(w), np.stack(sums, axis=-1)[None]

    @cached_property
    def _open(self) -> np.ndarray:
        """Combinations that the evidence rules out are known to be impossible."""
        possible = np.ones(self.cards, dtype=bool)
        for axis, t in enumerate(self.query.targets):
            allowed = self.query.likelihood[t, : self.cards[axis]] > 0
            possible &= allowed.reshape([-1 if a == axis else 1 for a in range(len(self.cards))])
        return possible.reshape(1, -1)

    @cached_property
    def _spread(self) -> Floats:
        return self._open.astype(float)

    def largest_error(self) -> float:
        return float(self.moments()[1].max()) if self.total.w > 0 else math.inf
