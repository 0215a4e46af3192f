"""A query with its evidence worked into the network: independent parts, each as small as it can be made.

A node that can have one state only is as good as observed. Observed parents are sliced away, so that an observed node keeps
its unobserved parents only. What it then says of them is a factor over their states, and many factors are simpler than they look:

- no parent left: a number, kept as its logarithm; one parent left: a likelihood of that parent, and a root's prior takes it up;
- a noisy-max seen at state k splits, with r_j = p_j(k) / F_j(k) and everything as in ``network.py``:

    P(X = k | pa) = L(k) prod_j F_j(k | pa_j) * [1 - (1 - r_0) prod_j (1 - r_j(pa_j))],

  one likelihood F_j(k | .) for each parent and a binary noisy-or seen at "yes" (nothing at all for k = 0).

Likelihoods and findings are scaled to a maximum of 1 and the logarithm of the scale is kept, so that
log P(e) = log_scale + sum over components of log P(component's findings).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from unimarg.errors import ImpossibleEvidenceError, no_state_left
from unimarg.evidence import Evidence
from unimarg.mechanism import log_pmf_from_steps
from unimarg.network import Floats, Mechanism, Network, NoisyMax, Table, Variable
from unimarg.relevance import ancestors, connected

FLOOR = -690.0  # log of the smallest likelihood kept, relative to the largest
SMALLEST = 1e-200  # a sum of products of numbers up to 1 that is above this has lost nothing to underflow, nor won by FLOOR
PASSES = 8  # that look for nodes whose state is certain; most queries need one or two
NOISY_OR_TOLERANCE = 1e-13  # relative; a table this close to a noisy-or is one
ROUNDING = 4 * np.finfo(np.float64).eps  # of a small probability that was written as 1 minus a large one, a multiple of 2^-53


@dataclass(frozen=True, eq=False)
class Component:
    """A part that shares nothing with the others.

    Its hard findings are sinks with states (other, seen), all seen, and have two parents or more; roots have no findings.
    All its numbers are at most 1. What is below e^FLOOR is raised to it, which changes sums above e^FLOOR only; ``faint`` has it.
    """

    net: Network
    evidence: Evidence  # by index in ``net``
    nodes: tuple[int, ...]  # the index in the whole network of each of net's variables
    faint: Mapping[int, Floats]  # logarithms of a root's prior, or another node's likelihood, where it has numbers below e^FLOOR
    faint_leaks: Mapping[int, Floats]  # likewise of a noisy-max


@dataclass(frozen=True, eq=False)
class Reduction:
    """``known`` holds the hard findings and what they, and the network's zeros, make certain."""

    log_scale: float
    known: Mapping[int, int]
    components: tuple[Component, ...]


def reduce(net: Network, evidence: Evidence, needed: Iterable[int]) -> Reduction:
    """Split the query for the nodes ``needed`` into components; every finding is in one, or in ``log_scale``."""
    speaking = {i for i, likelihood in evidence.virtual.items() if (likelihood != likelihood[0]).any()}
    kept = sorted(ancestors(net, {*needed, *evidence.hard, *speaking}), reverse=True)
    work = _Work(net, evidence, dict(evidence.hard))
    for left in range(PASSES, -1, -1):
        before = len(work.known)
        work = _Work(net, evidence, work.known)
        # children first: all that findings say of a node is then gathered before its own turn
        for i in kept:
            work.visit(i, deduce=left > 0)
        if len(work.known) == before:
            break
    known = work.known
    scopes = [[i, *pa] if i not in known else list(pa) for i, pa, _ in work.factors]
    return Reduction(work.log_scale, known, tuple(work.component([work.factors[f] for f in group]) for group in connected(scopes)))


@dataclass(eq=False)
class _Work:
    """What has been gathered on one pass over the nodes. A pass that adds to ``known`` only serves to find it."""

    net: Network
    evidence: Evidence
    known: dict[int, int]
    log_scale: float = 0.0
    log_likelihoods: dict[int, Floats] = field(default_factory=dict)  # exactly -inf where a finding rules a state out
    factors: list[tuple[int, tuple[int, ...], Mechanism]] = field(default_factory=list)
    log_priors: dict[int, Floats] = field(default_factory=dict)  # of the roots that findings speak of, these included
    log_leaks: dict[int, Floats] = field(default_factory=dict)  # of the hidden noisy-max nodes

    def __post_init__(self) -> None:
        for i, likelihood in self.evidence.virtual.items():
            if i in self.known:
                self.scale(_log(likelihood[self.known[i]]), f"what is known of {self.net.names[i]}")
            else:
                self.likelihood(i, _log(likelihood), f"what is known of {self.net.names[i]}")

    def visit(self, i: int, *, deduce: bool) -> None:
        free, mechanism, log_leak = _sliced(self.net, self.known, i)
        if i not in self.known:
            log = self.log_likelihoods.get(i, np.zeros(mechanism.card))
            if not free:
                log = log + (_log(mechanism.expand()) if log_leak is None else log_leak)
            possible = np.flatnonzero(log > -np.inf)
            if len(possible) == 0:
                raise ImpossibleEvidenceError(no_state_left(self.net.names[i]))
            if len(possible) == 1 and deduce:
                self.known[i] = int(possible[0])
            elif not free and (i in self.log_likelihoods or log_leak is not None):
                mechanism, log_leak = self.posterior(i, log), None
                self.log_likelihoods.pop(i, None)
        if i in self.known:
            self.finding(i, free, mechanism, log_leak, self.known[i])
        else:
            self.factors.append((i, free, mechanism))
            if log_leak is not None:
                self.log_leaks[i] = log_leak

    def posterior(self, i: int, log: Floats) -> Table:
        """A root with all that findings say of it alone."""
        weights = _floored(log - log.max())
        total = float(np.log(weights.sum()) + log.max())
        self.log_scale += total
        self.log_priors[i] = log - total
        return Table(weights / weights.sum())

    def scale(self, log: float | Floats, culprit: str) -> None:
        if log == -np.inf:
            raise ImpossibleEvidenceError(f"the evidence is impossible: {culprit} has probability zero given the rest")
        self.log_scale += float(log)

    def likelihood(self, i: int, log: Floats, culprit: str) -> None:
        log = self.log_likelihoods.get(i, 0.0) + log
        if log.max() == -np.inf:
            raise ImpossibleEvidenceError(f"{no_state_left(self.net.names[i])}: {culprit} does not go with the rest")
        self.log_scale += float(log.max())
        self.log_likelihoods[i] = log - log.max()

    def finding(self, i: int, parents: tuple[int, ...], mechanism: Mechanism, log_leak: Floats | None, state: int) -> None:
        """Node i was seen in ``state``; its mechanism has only unobserved parents left."""
        culprit = f"{self.net.names[i]}={self.net.variables[i].states[state]}"
        if isinstance(mechanism, Table) and len(parents) > 1:
            mechanism = as_noisy_or(mechanism) or mechanism
        if isinstance(mechanism, NoisyMax):
            leak = (_log(mechanism.leak) if log_leak is None else log_leak)[: state + 1]
            self.scale(leak.max(), culprit)
            for p, f in zip(parents, mechanism.log_cdfs[1], strict=True):
                self.likelihood(p, f[:, state], culprit)
            leak = np.exp(leak - leak.max())
            self.scale(_log(leak.sum()), culprit)
            parents, mechanism = _seen_at_maximum(leak, mechanism.contributions, parents)
            state = 1
        if len(parents) == 0:
            self.scale(_log(mechanism.expand()[state]), culprit)
        elif len(parents) == 1:
            self.likelihood(parents[0], _log(mechanism.expand()[:, state]), culprit)
        elif isinstance(mechanism, Table):
            seen = mechanism.probabilities[..., state]
            self.scale(_log(seen.max()), culprit)
            seen = seen / seen.max()
            self.factors.append((i, parents, Table(np.stack([1 - seen, seen], axis=-1))))
        else:
            self.factors.append((i, parents, mechanism))

    def component(self, factors: Sequence[tuple[int, tuple[int, ...], Mechanism]]) -> Component:
        names = self.net.names
        seen = {i for i, _, _ in factors if i in self.known}
        variables = [Variable(names[i], ("other", "seen")) if i in seen else self.net.variables[i] for i, _, _ in factors]
        parents = {names[i]: [names[p] for p in pa] for i, pa, _ in factors}
        net = Network.as_given(variables, parents, {names[i]: m for i, _, m in factors}, self.net.name)
        nodes = tuple(self.net.index[n] for n in net.names)
        likelihoods = {c: self.log_likelihoods[i] for c, i in enumerate(nodes) if i in self.log_likelihoods}
        virtual = {c: _floored(log) for c, log in likelihoods.items() if log.any()}
        logs = likelihoods | {c: self.log_priors[i] for c, i in enumerate(nodes) if i in self.log_priors}
        leaks = {c: self.log_leaks[i] for c, i in enumerate(nodes) if i in self.log_leaks}
        return Component(net, Evidence({c: 1 for c, i in enumerate(nodes) if i in seen}, virtual), nodes, _faint(logs), _faint(leaks))


def _floored(log: Floats) -> Floats:
    """The floor keeps a state that is merely improbable apart from one that is ruled out."""
    return np.where(log > -np.inf, np.exp(np.maximum(log, FLOOR)), 0.0)


def _faint(logs: Mapping[int, Floats]) -> dict[int, Floats]:
    return {c: log for c, log in logs.items() if ((log < FLOOR) & (log > -np.inf)).any()}


def _log(values: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.log(values)


def _sliced(net: Network, known: Mapping[int, int], i: int) -> tuple[tuple[int, ...], Mechanism, Floats | None]:
    """The unobserved parents of node i, its mechanism given the states of the observed ones, and of a noisy-max the leak's logarithms."""
    parents, mechanism = net.parents[i], net.mechanisms[i]
    free = tuple(p for p in parents if p not in known)
    if len(free) == len(parents):
        return free, mechanism, None if isinstance(mechanism, Table) else _log(mechanism.leak)
    if isinstance(mechanism, Table):
        return free, Table(mechanism.probabilities[tuple(known.get(p, slice(None)) for p in parents)]), None
    steps, effects = mechanism.steps
    for p, effect in zip(parents, effects, strict=True):
        if p in known:
            steps = steps + effect[known[p]]
    leak = log_pmf_from_steps(steps)
    return free, NoisyMax(_floored(leak), [c for p, c in zip(parents, mechanism.contributions, strict=True) if p not in known]), leak


def _seen_at_maximum(leak: Floats, contributions: Sequence[Floats], parents: tuple[int, ...]) -> tuple[tuple[int, ...], Mechanism]:
    """P(X = state | pa, no effect above state), as a binary noisy-or of the parents that matter; the leak goes up to that state."""
    state = len(leak) - 1
    if state == 0:
        return (), Table([0.0, 1.0])

    def reaches(pmf: Floats) -> Floats:
        below, here = pmf[..., :state].sum(-1), pmf[..., state]
        share = np.divide(here, below + here, out=np.zeros_like(here), where=here > 0)
        return np.stack([np.divide(below, below + here, out=np.ones_like(here), where=here > 0), share], axis=-1)

    own = reaches(leak)
    if own[0] == 0:
        return (), Table([0.0, 1.0])
    rows = [(p, reaches(c)) for p, c in zip(parents, contributions, strict=True)]
    rows = [(p, r) for p, r in rows if r[:, 1].any()]
    return tuple(p for p, _ in rows), NoisyMax(own, [r for _, r in rows])


def as_noisy_or(table: Table) -> NoisyMax | None:
    """The noisy-or that a binary table is, if it is one.

    >>> as_noisy_or(Table([[[0.9, 0.1], [0.0, 1.0]], [[0.45, 0.55], [0.0, 1.0]]])).leak.tolist()
    [0.9, 0.1]
    """
    parents = len(table.parent_cards)
    if table.card != 2 or set(table.parent_cards) - {2}:
        return None
    absent, present = table.probabilities[..., 0], table.probabilities[..., 1]
    none = (0,) * parents
    contributions = []
    for j in range(parents):
        alone = tuple(int(k == j) for k in range(parents))
        if absent[alone] > absent[none]:
            return None
        # two quotients rather than one and its complement: each keeps its own digits
        row = [absent[alone], present[alone] - present[none]] if absent[none] > 0 else [1.0, 0.0]
        contributions.append([[1.0, 0.0], np.maximum(row, 0.0) / max(absent[none], sum(row))])
    found = NoisyMax(table.probabilities[none], contributions).expand(limit=table.probabilities.size)
    rounding = np.where(np.ldexp(present, 53) % 1 == 0, ROUNDING, 0.0)
    same = np.isclose(found[..., 0], absent, rtol=NOISY_OR_TOLERANCE, atol=0) & (
        np.abs(found[..., 1] - present) <= NOISY_OR_TOLERANCE * present + rounding
    )
    return NoisyMax(table.probabilities[none], contributions) if same.all() else None
