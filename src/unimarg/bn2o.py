"""The noisy-or dynamic programme: exact posteriors in networks of ORs, exponential in the positive findings only.

f(U) = P(exactly the findings U are switched on by the leaks and the roots taken so far). A root d that is absent leaves U
alone; present, it switches on each s not in U with probability 1 - q_s[d]:

    f <- w_d(0) f + w_d(1) T_d f,    T_d = product over s of [[q_s[d], 0], [1 - q_s[d], 1]],

and P(e) = f(all). Every term is positive, so nothing cancels (unlike Quickscore: Heckerman 1989). A finding enters f with its
first root and leaves with its last, so the cost is 2 to the power of those open at a time. P(e) is linear in each root's
weights: one sweep back gives every root. Another OR node X: P(X = 0, e) is the same programme with w_d(1) times q_X[d].

A number lost to underflow may be all there is of f(all) in the end. Where it can be, the programme is run again in logarithms,
with + for * and logaddexp for +, some twenty times slower.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from unimarg.errors import ImpossibleEvidenceError
from unimarg.network import Floats
from unimarg.or_network import OrNetwork, OrNode, recognise
from unimarg.reduction import SMALLEST, Component

WORKSPACE = 2**28  # bytes for the arrays of a batch of queries
OPERATIONS_PER_SECOND = 1e8  # measured on one core: 0.5 to 4 e8
PATIENCE = 120.0  # seconds


@dataclass(frozen=True)
class Numbers:
    """How numbers are held: as they are, or as logarithms."""

    zero: float
    one: float
    plus: np.ufunc
    times: np.ufunc
    over: np.ufunc
    log: Callable[[Floats], Floats]
    held: Callable[[Floats], Floats]  # a probability
    held_quiet: Callable[[Floats], Floats]  # q from log q
    held_loud: Callable[[Floats], Floats]  # 1 - q from log q, with its own digits


def _same(x: Floats) -> Floats:
    return x


PLAIN = Numbers(0.0, 1.0, np.add, np.multiply, np.divide, np.log, _same, np.exp, lambda log: -np.expm1(log))
LOGS = Numbers(-np.inf, 0.0, np.logaddexp, np.add, np.subtract, _same, np.log, _same, lambda log: np.log(-np.expm1(log)))


@dataclass(frozen=True)
class Step:
    """One move of the programme: open a finding, take a root, or close a finding. ``axes`` are the open ones a root touches."""

    kind: str  # open, root or close
    which: int  # a finding's or a root's column
    touched: tuple[tuple[int, int], ...] = ()  # (bit, finding) for a root; bit 0 is the slowest
    bit: int = 0


@dataclass(frozen=True, eq=False)
class Parameters:
    """A batch of B programmes that share their steps."""

    numbers: Numbers
    weights: Floats  # [B, roots, 2]
    quiet: Floats  # [B, findings, roots + 1]: q
    loud: Floats  # 1 - q

    @classmethod
    def make(cls, numbers: Numbers, weights: Floats, log_quiet: Floats) -> Parameters:
        return cls(numbers, weights, numbers.held_quiet(log_quiet), numbers.held_loud(log_quiet))


@dataclass(frozen=True, eq=False)
class Programme:
    """An OR network with the order in which its roots are taken."""

    component: Component
    network: OrNetwork
    targets: tuple[int, ...]
    quiet: Floats  # [findings, roots + 1]: log q
    steps: tuple[Step, ...]
    width: int  # findings open at a time, at most
    operations: float  # for one programme

    @cached_property
    def queries(self) -> tuple[int, ...]:
        return tuple(t for t in self.targets if t in self.network.nodes)

    @property
    def seconds(self) -> float:
        return self.operations * (4 + len(self.queries)) / OPERATIONS_PER_SECOND

    @property
    def predicted_bytes(self) -> float:
        kept = 2 * math.isqrt(len(self.steps)) + 6
        return 8 * 2.0**self.width * kept + 8 * self.quiet.size * 4 + min(WORKSPACE, 48 * 2.0**self.width * len(self.queries))

    def solve(self) -> tuple[float, dict[int, Floats]]:
        """log P(findings) and the marginals of the targets, by index in the component's network."""
        network = self.network
        for s, quiet in zip(network.findings, self.quiet, strict=True):
            present = np.append(network.weights[:, 1] > 0, True)
            if not (present & (quiet < 0)).any():
                name = self.component.net.names[s % len(self.component.net)]
                raise ImpossibleEvidenceError(f"the evidence is impossible: nothing that the rest allows can cause {name}")
        lost: list[bool] = []
        with np.errstate(divide="ignore", invalid="ignore", under="call", call=lambda *_: lost.append(True)):
            log_p, marginals = self._run(PLAIN)
            if lost and log_p < math.log(SMALLEST):
                log_p, marginals = self._run(LOGS)
        return log_p, marginals

    def _run(self, n: Numbers) -> tuple[float, dict[int, Floats]]:
        weights = self.network.weights
        base = Parameters.make(n, n.held(weights[None]), self.quiet[None])
        log_p, posteriors = _forward_backward(self.steps, base)
        answers: dict[int, Floats] = {}
        for column, d in enumerate(self.network.roots):
            answers[d] = posteriors[column] if column in posteriors else weights[column]
        for x, absent in zip(self.queries, self._absent(n, log_p), strict=True):
            answers[x] = np.array([absent, 1 - absent])
        return log_p, {t: answers[t] for t in self.targets}

    def _absent(self, n: Numbers, log_p: float) -> Iterator[float]:
        """P(X = 0 | e) for each query, in batches that fit the workspace."""
        rows = 8 * (self.quiet.size + 2 * self.network.weights.size + 6 * 2**self.width)
        size = max(1, WORKSPACE // rows)
        for start in range(0, len(self.queries), size):
            batch = [self.network.nodes[x] for x in self.queries[start : start + size]]
            logs = self._log_joint(n, batch) + [x.quiet[-1] for x in batch]
            yield from np.clip(np.exp(logs - log_p), 0.0, 1.0).tolist()

    def _log_joint(self, n: Numbers, batch: Sequence[OrNode]) -> Floats:
        """log P(X = 0, e) for each node X, but for its leak."""
        w = n.held(np.tile(self.network.weights, (len(batch), 1, 1)))
        w[:, :, 1] = n.times(w[:, :, 1], n.held_quiet(np.array([x.quiet[:-1] for x in batch])))
        quiet = np.empty((len(batch), *self.quiet.shape))
        for b, x in enumerate(batch):
            for row, s in enumerate(self.network.findings):
                quiet[b, row] = self.network.quiet_given_zero(s, x.zero)
        return _Sweep(Parameters.make(n, w, quiet)).run(self.steps).log


def programme(component: Component, targets: Sequence[int]) -> Programme | None:
    """The dynamic programme for a component, with its cost, or None where it has not the form."""
    network = recognise(component, targets)
    if network is None:
        return None
    quiet = np.array([network.nodes[s].quiet for s in network.findings]).reshape(len(network.findings), len(network.roots) + 1)
    steps, width, operations = _steps(quiet)
    return Programme(component, network, tuple(targets), quiet, steps, width, operations)


def _steps(quiet: Floats) -> tuple[tuple[Step, ...], int, float]:
    """The roots in an order that opens few findings at a time: first those that open none, then the one that opens fewest."""
    touches = [frozenset(np.flatnonzero(column < 0).tolist()) for column in quiet[:, :-1].T]
    waiting = set(range(len(touches)))
    left = {s: sum(s in t for t in touches) for s in range(len(quiet))}
    open_bits: list[int] = []
    steps: list[Step] = []
    width, operations = 0, 0.0

    def close() -> None:
        for s in [s for s in open_bits if left[s] == 0]:
            steps.append(Step("close", s, bit=open_bits.index(s)))
            open_bits.remove(s)

    for s in [s for s in left if left[s] == 0]:
        steps += [Step("open", s), Step("close", s)]
    while waiting:
        opened = frozenset(open_bits)
        ready = sorted(d for d in waiting if touches[d] <= opened)
        if not ready:
            # among those that open fewest, one that helps the finding nearest to its end
            best = min(waiting, key=lambda d: (len(touches[d] - opened), min((left[s] for s in touches[d]), default=0), d))
            for s in sorted(touches[best] - opened):
                steps.append(Step("open", s))
                open_bits.insert(0, s)
            width = max(width, len(open_bits))
            continue
        for d in ready:
            steps.append(Step("root", d, tuple(sorted((open_bits.index(s), s) for s in touches[d]))))
            operations += (len(touches[d]) + 3) * 2.0 ** len(open_bits) + 1000  # a call costs about a thousand elements
            for s in touches[d]:
                left[s] -= 1
        waiting -= set(ready)
        close()
    return tuple(steps), width, operations


class _Sweep:
    """f as ``[B, 2^open]``, scaled to a sum of 1, and the logarithm of its scale ``[B]``."""

    def __init__(self, parameters: Parameters):
        self.parameters = parameters
        self.f = np.full((len(parameters.weights), 1), parameters.numbers.one)
        self.log = np.zeros(len(parameters.weights))

    def run(self, steps: Sequence[Step]) -> _Sweep:
        for step in steps:
            self.take(step)
        return self

    def take(self, step: Step) -> None:
        p, n, batch = self.parameters, self.parameters.numbers, len(self.f)
        if step.kind == "open":
            self.f = np.concatenate([n.times(a[:, step.which, -1, None], self.f) for a in (p.quiet, p.loud)], axis=1)
        elif step.kind == "close":
            self.f = np.ascontiguousarray(self.f.reshape(batch, 2**step.bit, 2, -1)[:, :, 1]).reshape(batch, -1)
        else:
            present = self.f.copy()
            for bit, s in step.touched:
                view = present.reshape(batch, 2**bit, 2, -1)
                quiet, loud = (a[:, s, step.which, None, None] for a in (p.quiet, p.loud))
                view[:, :, 1] = n.plus(view[:, :, 1], n.times(loud, view[:, :, 0]))
                view[:, :, 0] = n.times(quiet, view[:, :, 0])
            weights = p.weights[:, step.which]
            self.f = n.plus(n.times(weights[:, :1], self.f), n.times(weights[:, 1:], present))
        total = n.plus.reduce(self.f, axis=1)
        self.log = self.log + n.log(total)
        self.f = n.over(self.f, np.where(total > n.zero, total, n.one)[:, None])


def _forward_backward(steps: Sequence[Step], base: Parameters) -> tuple[float, dict[int, Floats]]:
    """log P(e) and the posterior of every root; keeps f at every k-th step, k = sqrt(steps), and sweeps again in between."""
    stride = max(1, math.isqrt(len(steps)))
    sweep = _Sweep(base)
    kept: list[Floats] = []
    for t, step in enumerate(steps):
        if t % stride == 0:
            kept.append(sweep.f)
        sweep.take(step)
    posteriors: dict[int, Floats] = {}
    g = np.full(1, base.numbers.one)
    for segment in range(len(kept) - 1, -1, -1):
        part = steps[segment * stride : (segment + 1) * stride]
        again = _Sweep(base)
        again.f = kept.pop()
        before: list[Floats] = []
        for step in part:
            before.append(again.f[0])
            again.take(step)
        for step, f in zip(reversed(part), reversed(before), strict=True):
            g, posterior = _back(step, g, f, base)
            if posterior is not None:
                posteriors[step.which] = posterior
    return float(sweep.log[0]), posteriors


def _back(step: Step, g: Floats, f: Floats, base: Parameters) -> tuple[Floats, Floats | None]:
    """g(U) = P(all findings on at the end | U on now), up to scale, one step earlier; and a root's posterior."""
    posterior, n = None, base.numbers
    if step.kind == "open":
        half = len(g) // 2
        g = n.plus(n.times(base.quiet[0, step.which, -1], g[:half]), n.times(base.loud[0, step.which, -1], g[half:]))
    elif step.kind == "close":
        wider = np.full((2**step.bit, 2, len(g) // 2**step.bit), n.zero)
        wider[:, 1] = g.reshape(2**step.bit, -1)
        g = wider.ravel()
    else:
        present = g.copy()
        for bit, s in step.touched:
            view = present.reshape(2**bit, 2, -1)
            view[:, 0] = n.plus(n.times(base.quiet[0, s, step.which], view[:, 0]), n.times(base.loud[0, s, step.which], view[:, 1]))
        absent_weight, present_weight = base.weights[0, step.which]
        both = [n.plus.reduce(n.times(n.times(w, x), f)) for w, x in ((absent_weight, g), (present_weight, present))]
        logs = n.log(np.array(both))
        posterior = np.exp(logs - logs.max())
        posterior /= posterior.sum()
        g = n.plus(n.times(absent_weight, g), n.times(present_weight, present))
    return n.over(g, g.max()), posterior
