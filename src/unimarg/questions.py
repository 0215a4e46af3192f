"""What to ask next: the expected information gain about the targets.

    gain(c) = sum over targets t of I(X_c; X_t | e)
            = sum_t sum_k P(x_c = k | e) KL( P(x_t | e, x_c = k) || sum_j P(x_c = j | e) P(x_t | e, x_c = j) )

in nats. The mixture on the right is that of the answers themselves, not P(x_t | e) from another pass: so the gain of answers that
contradict each other a little, as a network's do, is never negative. From n samples it is too large by about 1 / n. With g the gain from
all of them and g_j that from each of J parts, (J g - mean of g_j) / (J - 1) is not, and how far the parts differ tells its error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING

import numpy as np

from unimarg.conflict import impossible
from unimarg.errors import SamplingError, UsageError, closest
from unimarg.evidence import Evidence, parse_evidence
from unimarg.exact import DEFAULT_MEMORY
from unimarg.formats.interop import AnyNetwork, as_network
from unimarg.many import Answers, exact_answers, go_on, split
from unimarg.network import Floats, Network

if TYPE_CHECKING:
    import pandas as pd

PARTS = 8  # of the samples


def next_questions(
    net: AnyNetwork,
    evidence: Mapping[str, object] | None,
    targets: Sequence[str],
    candidates: Sequence[str] | None = None,
    costs: Mapping[str, float] | None = None,
    *,
    seed: int = 0,
) -> pd.DataFrame:
    """What to ask next, best first: by exact inference where that is quick, else by samples of the posterior, of which ``seed`` is.

    A model's ``next_questions`` needs one pass for all of it. Candidates are all variables without a finding that are no targets, unless
    given. The table has the expected information gain about the targets in nats, the cost of each question (1 unless given) and gain per
    cost, by which it is ordered. ``table.attrs["entropy"]`` is what is still unknown of the targets, in nats too. Both are sums over the
    targets, each taken for itself: what targets tell of each other counts twice. ``attrs["method"]`` says how they were found, and the
    column ``gain_error`` has the standard error of each gain, 0 where exact.

    >>> from unimarg.network import NoisyOr, Variable
    >>> net = Network([Variable("rain"), Variable("wet")], {"wet": ["rain"]}, {"rain": [0.8, 0.2], "wet": NoisyOr(0.1, [0.8])})
    >>> next_questions(net, {}, ["rain"]).round(4).to_dict("records")
    [{'variable': 'wet', 'gain': 0.2013, 'cost': 1.0, 'gain_per_cost': 0.2013, 'gain_error': 0.0}]
    """
    net = as_network(net)
    asking = Asking.make(net, evidence, targets, candidates, costs, range(len(net)))
    return asking.without_model(evidence, seed)


@dataclass(frozen=True)
class Asking:
    """What may be asked about which targets, as numbers."""

    net: Network
    given: Evidence
    targets: list[int]
    candidates: list[int]
    costs: dict[int, float]

    @classmethod
    def make(
        cls,
        net: Network,
        evidence: Mapping[str, object] | None,
        targets: Sequence[str],
        candidates: Sequence[str] | None,
        costs: Mapping[str, float] | None,
        askable: Sequence[int],
    ) -> Asking:
        """Unless there are candidates, about nodes that are ``askable``."""
        given = parse_evidence(net, evidence)
        wanted = _nodes(net, targets, "targets")
        if not wanted:
            raise UsageError("next_questions needs at least one target")
        asked = [i for i in askable if i not in wanted] if candidates is None else _nodes(net, candidates, "candidates")
        return cls(net, given, wanted, [i for i in asked if i not in given.nodes], _prices(net, costs))

    def without_model(
        self, evidence: Mapping[str, object] | None, seed: int, before_each: Callable[[], None] = go_on, memory: float = DEFAULT_MEMORY
    ) -> pd.DataFrame:
        """Exactly where that is quick, else by samples."""
        from unimarg.drawn import draw, exact_is_quick

        sets = 1 + sum(int(self.net.cards[c]) for c in self.candidates)
        try:
            found = None if exact_is_quick(self.net, evidence, sets) else draw(self.net, evidence, seed, before_each)
        except SamplingError:
            found = None  # or else exact inference says why it cannot either
        if found is None:
            return self.table(*self.judge(exact_answers(self.net, memory, before_each)), "exact")
        drawn, method = found
        gains, entropy = self.judge(drawn.answers)
        parts = np.stack([self.judge(drawn.part(j, PARTS).answers)[0] for j in range(PARTS)])
        error = parts.std(axis=0, ddof=1) / math.sqrt(PARTS)
        return self.table(np.maximum((PARTS * gains - parts.mean(axis=0)) / (PARTS - 1), 0.0), entropy, method, error)

    def judge(self, answers: Answers) -> tuple[Floats, float]:
        """The gain of each candidate, and the entropy of the targets."""
        known = [*self.candidates, *(t for t in self.targets if t not in self.candidates)]
        now, contradiction = answers([self.given], known)
        if contradiction[0] >= 0:
            raise impossible(self.net, self.given)
        marginals = {i: p[0].astype(np.float64) for i, p in split(now, self.net, known).items()}
        gains = _gains(self.net, answers, self.given, self.targets, {c: marginals[c] for c in self.candidates})
        return gains, sum(float(_entropy(marginals[t])) for t in self.targets)

    def table(self, gains: Floats, entropy: float, method: str, error: Floats | float = 0.0) -> pd.DataFrame:
        """As ``next_questions`` gives it."""
        import pandas as pd

        costs = [self.costs.get(c, 1.0) for c in self.candidates]
        table = pd.DataFrame({"variable": [self.net.names[c] for c in self.candidates], "gain": gains, "cost": costs})
        table["gain_per_cost"] = table["gain"] / table["cost"]
        table["gain_error"] = error
        table = table.sort_values("gain_per_cost", ascending=False, kind="stable", ignore_index=True)
        table.attrs |= {"entropy": entropy, "method": method}
        return table


def _gains(net: Network, answers: Answers, given: Evidence, targets: Sequence[int], candidates: Mapping[int, Floats]) -> Floats:
    """Of each candidate, whose marginal is given: all its answers, and those of the others, in one batch.

    Entropies add up over the targets, so their states may stay side by side.
    """
    if not candidates:
        return np.zeros(0)
    pairs = [(c, k) for c, p in candidates.items() for k in np.flatnonzero(p > 0).tolist()]
    counts = np.array([np.count_nonzero(p > 0) for p in candidates.values()])
    starts = np.cumsum(counts) - counts
    states, contradiction = answers([Evidence({**given.hard, c: k}, given.virtual) for c, k in pairs], targets)
    weights = np.where(contradiction < 0, [candidates[c][k] for c, k in pairs], 0.0)
    totals = np.add.reduceat(weights, starts)
    if not totals.all():
        raise impossible(net, given)  # no answer to some question is possible
    weights /= np.repeat(totals, counts)
    after = states.astype(np.float64)
    mixture = np.add.reduceat(weights[:, None] * after, starts)
    return np.maximum(_entropy(mixture) - np.add.reduceat(weights * _entropy(after), starts), 0.0)  # rounding may leave -1e-16


def _entropy(p: Floats) -> Floats:
    return -(p * np.log(np.where(p > 0, p, 1.0))).sum(axis=-1)


def _nodes(net: Network, names: Sequence[str], what: str) -> list[int]:
    return list(dict.fromkeys(net.find_all(names, what)))


def _prices(net: Network, costs: Mapping[str, float] | None) -> dict[int, float]:
    for name, cost in (costs or {}).items():
        if name not in net.index:
            raise UsageError(f"costs: there is no variable {name!r}; {closest(name, net.names)}")
        if isinstance(cost, bool) or not isinstance(cost, Real) or not 0 < float(cost) < math.inf:
            raise UsageError(f"the cost of asking for {name!r} must be a number above 0, not {cost!r}")
    return {net.index[name]: float(cost) for name, cost in (costs or {}).items()}
