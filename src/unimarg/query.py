"""One question, any method; ``auto`` picks one and says which.

``auto`` (docs/auto.md): exact inference where the pruned query is small; else ``lookahead`` to the target error; where its
weights are poor, ``adaptive``; where those are poor too and the model has one hidden layer or a student, ``sequential``; where no samples
do, exact inference once more, if there is a chance that it fits. The samples of a method that was given up are discarded.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from numbers import Real
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from unimarg.conditionals import Conditionals, Draft, Query
from unimarg.conflict import impossible
from unimarg.counter import key_from_seed
from unimarg.errors import ImpossibleEvidenceError, TooExpensiveError, UsageError, closest, whole_number
from unimarg.evidence import parse_evidence
from unimarg.frame import Frame, frame_of
from unimarg.importance import DEFAULT_SAMPLES, MAX_SAMPLES, Draw, Estimator, Limits, Weigh, chunk_size, sampler
from unimarg.nets import NET
from unimarg.network import Floats, Network
from unimarg.posterior import Posterior
from unimarg.proposals.adaptive import adapt, traced
from unimarg.proposals.hybrid import as_beta, fit_beta, hybrid, hybrid_by_callable
from unimarg.proposals.independent import independent
from unimarg.proposals.lookahead import lookahead
from unimarg.proposals.message import message
from unimarg.proposals.prior import prior
from unimarg.relevance import open_scopes
from unimarg.triangulation import moral_graph, quick_entries
from unimarg.witness import weighed_by_walk, witness

if TYPE_CHECKING:
    from unimarg.marginalizer import Marginalizer

WITHOUT_MODEL = ("auto", "exact", "prior", "lookahead", "adaptive")
WITH_MODEL = (*WITHOUT_MODEL, "um", "independent", "hybrid", "message", "sequential")
DRAW_NONE = ("exact", "um")
OF_SAMPLES = ("samples", "target_error", "seconds", "structure")  # options of the others; a seed does no harm to any
TARGET_ERROR = 0.005
DEFAULT_BETA = 0.25  # the paper finds .1 to .5 good
EXACT_ENTRIES = 1 << 24  # of the cliques of a query that auto answers exactly: below a second
LAST_RESORT = 64  # times as many where samples do not do: a quick look at cliques is often off by that
EXACT_PARENTS = 12  # a noisy-max with more unobserved parents is left to sampling, but for noisy-ors in two layers,
EXACT_SECONDS = 1.0  # of which the programme over positive findings may take so long
EXACT_MEMORY = 2.0**30
PILOT = 20 << 10  # samples by which auto judges a proposal
LEAST_NETS = 16  # from which on samples are drawn in nets
POOR = 0.05  # effective samples per sample below which auto looks for another proposal

Progress = Callable[[int, float], object]  # samples so far, seconds; True ends the drawing with what there is


@dataclass(frozen=True)
class Options:
    """What may be asked of a query beside evidence and targets."""

    samples: int | None = None
    target_error: float | None = TARGET_ERROR
    seconds: float | None = None
    beta: Any = None
    structure: bool = True
    seed: int = 0
    progress: Progress | None = None
    memory: float | None = None  # of exact, in bytes

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", whole_number(self.seed, "a seed", 0, 2**64 - 1))
        if not isinstance(self.structure, bool | np.bool_):
            raise UsageError(f"structure must be True or False, not {self.structure!r}")

    def limits(self) -> Limits:
        samples = DEFAULT_SAMPLES if self.samples is None else whole_number(self.samples, "the number of samples", 1, MAX_SAMPLES)
        for name in ("target_error", "seconds"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, Real) or not float(value) > 0):
                raise UsageError(f"{name} must be a number above 0, not {value!r}")
        return Limits(samples, math.inf if self.seconds is None else float(self.seconds), self.target_error)


def is_default(name: str, value: Any) -> bool:
    """Whether an option says nothing, written out or not."""
    return value is None or (np.isscalar(value) and value == getattr(Options, name))


def check(method: str, model: Marginalizer | None, options: Mapping[str, Any]) -> None:
    """Whether there is such a method, and such options, each with an effect."""
    if method not in WITH_MODEL:
        raise UsageError(f"there is no method {method!r}; {closest(method, WITH_MODEL, len(WITH_MODEL))}")
    if model is None and method not in WITHOUT_MODEL:
        raise UsageError(f"the method {method!r} needs a trained model; without one there are {', '.join(WITHOUT_MODEL)}")
    for name in options:
        if name not in Options.__dataclass_fields__:
            raise UsageError(f"there is no option {name!r}; {closest(name, list(Options.__dataclass_fields__))}")
    for name, only in (("beta", "hybrid"), ("memory", "exact")):
        if method != only and options.get(name) is not None:
            raise UsageError(f"{name} is for the method {only!r}, and this is {method!r}")
    for name in OF_SAMPLES:
        if method in DRAW_NONE and not is_default(name, options.get(name)):
            raise UsageError(f"{name} is for methods that draw samples, and {method!r} draws none: leave it out, or use 'auto'")


class Asked:
    """One evidence set and its targets."""

    def __init__(
        self,
        net: Network,
        model: Marginalizer | None,
        evidence: Any,
        targets: Sequence[str] | None,
        options: Options,
        every: bool = False,
        nets: bool = True,
    ):
        self.began = time.perf_counter()
        self.net, self.model, self.options = net, model, options
        nodes = net.find_all(targets)
        self.given, self.names = evidence, None if targets is None else [net.names[i] for i in nodes]
        self.query = Query.make(net, parse_evidence(net, evidence), tuple(nodes), every)
        self.frame: Frame = frame_of(net)
        self.limits = options.limits()
        self.nets = nets and self.limits.samples >= LEAST_NETS * NET  # samples in nets, or independent: few nets say little of their error
        self.note, self.spent = "", 0  # what a proposal has to say, and the samples drawn on the way to it
        self.ready: Estimator | None = None  # of ``lookahead``, where several sets are drawn together,
        self.used, self.shared = 0, 0.0  # entries of its tables, this set's share of the seconds,
        self.share: float | None = None  # and what a sample of the pilot was worth

    def by(self, method: str) -> Posterior:
        self.began = time.perf_counter()  # of several sets, those before do not count
        if method == "exact":
            return self._exact(self.memory)
        if method == "um":
            assert self.model is not None
            return self.model.one_shot(self.query.evidence, self.query.targets)
        if method == "auto" and not self.ready and self.small():
            try:
                return self._exact(EXACT_MEMORY)
            except TooExpensiveError:
                pass
        self.rule_out()
        if method == "auto":
            return self._auto()
        found = self._sampled(method).posterior(method, self.limits, self.seconds())
        return replace(found, message="; ".join(m for m in (found.message, self.note) if m))

    def by_or_failed(self, method: str) -> Posterior:
        """``by``, where one set of several must not cost the others their answers."""
        try:
            return self.by(method)
        except (ImpossibleEvidenceError, TooExpensiveError) as e:
            return Posterior.failed([self.net.variables[t] for t in self.query.targets], method, str(e), self.seconds())

    def seconds(self) -> float:
        return time.perf_counter() - self.began + self.shared

    @property
    def pilot(self) -> Limits:
        """By which ``auto`` judges a proposal."""
        return replace(self.limits, samples=min(PILOT, self.limits.samples))

    @property
    def good(self) -> bool:
        """Whether the samples of a pilot that was drawn together with other sets are worth drawing more."""
        return self.share is not None and self.share >= POOR

    def get_ready(self, method: str) -> None:
        """For samples together with other sets, if this one is to be sampled."""
        began = time.perf_counter()
        if method == "auto" and self.small():
            return
        try:
            self.rule_out()
        except ImpossibleEvidenceError:
            return  # ``by`` says so
        draft = lookahead(self.frame, self.query)
        given = draft.arrays()
        self.ready = Estimator(self.frame, self.query, given, self._sampler(given), ranges=self._ranges(draft), nets=self.nets)
        self.used, self.shared = draft.used, time.perf_counter() - began

    # --- exact

    def _exact(self, memory: float) -> Posterior:
        from unimarg.exact import exact

        return exact(self.net, self.given, self.names, memory=memory)

    def _exact_at_once(self) -> Posterior:
        """All targets together, which is soon known to fit or not."""
        from unimarg.exact import exact_marginals

        log_p, found = exact_marginals(self.net, self.query.evidence, self.query.targets, EXACT_MEMORY, apart=False)
        targets = self.query.targets
        return Posterior.exact([self.net.variables[t] for t in targets], [found[t] for t in targets], log_p, self.seconds())

    @property
    def memory(self) -> float:
        """The budget of ``exact`` in bytes."""
        from unimarg.exact import DEFAULT_MEMORY, check_memory

        if self.options.memory is None:
            return DEFAULT_MEMORY
        check_memory(self.options.memory)
        return self.options.memory

    def small(self, times: float = 1) -> bool:
        """Whether exact inference is quick, or takes so many times as long: by a cheap elimination of what the targets depend on."""
        scopes = open_scopes(self.net, self.query.evidence, self.query.targets)
        if any(self.frame.large[i] and len(s) > EXACT_PARENTS for i, s in scopes.items()):
            return self._two_layers(scopes)
        logs = np.log(self.net.cards.astype(float)).tolist()
        return quick_entries(moral_graph(scopes.values()), logs, times * EXACT_ENTRIES) <= times * EXACT_ENTRIES

    def _two_layers(self, scopes: Mapping[int, Sequence[int]]) -> bool:
        """Whether noisy-ors of independent causes are all there is, and few enough of them have to be explained."""
        from unimarg.exact import programme_seconds

        causes = {v for i, s in scopes.items() for v in s if v != i}
        if any(len(scopes[v]) > 1 for v in causes) or (self.net.cards[[*causes]] != 2).any():
            return False
        return programme_seconds(self.net, self.query.evidence, self.query.targets) < EXACT_SECONDS

    def rule_out(self) -> None:
        """Impossible evidence is an error where that can be proven."""
        support = self.frame.support
        allowed = {i: self.query.likelihood[i : i + 1, : self.net.cards[i]] > 0 for i in support.touching}
        if not all(possible.any() for possible in support.narrow(allowed).values()):
            raise impossible(self.net, self.query.evidence, support)

    # --- sampling

    def _sampled(self, method: str, limits: Limits | None = None) -> Estimator:
        estimator = self.ready if self.ready and method == "lookahead" else self.estimator(method)
        self.run(estimator, limits)
        return estimator

    def run(self, estimator: Estimator, limits: Limits | None = None) -> None:
        """Within what is left of the seconds."""
        limits = limits or self.limits
        if isinstance(estimator.given.high, np.ndarray) and estimator.look(limits):  # drawn together so far, and goes on alone
            estimator.given = jax.device_put(estimator.given)
            estimator.draw = self._sampler(estimator.given)
            estimator.next_look = max(estimator.next_look, estimator.total.samples + chunk_size(self.frame))  # all of a call counts
        left = replace(limits, seconds=limits.seconds - self.seconds())
        estimator.run(left, self.options.seed, progress=self.told if self.options.progress else None)

    def told(self, samples: int, seconds: float) -> bool:
        """Progress, and whether to stop; then no time is left for another proposal either."""
        stop = self.options.progress is not None and self.options.progress(samples, seconds) is True
        if stop:
            self.limits = replace(self.limits, seconds=0.0)
        return stop

    def proposal(self, method: str) -> tuple[str, Estimator, str]:
        """Of a method, or the one that ``auto`` finds: its name, ready to draw, and what there is to say of it."""
        self.rule_out()
        return self.best() if method == "auto" else (method, self.estimator(method), self.note)

    def estimator(self, method: str) -> Estimator:
        """Ready to draw from a proposal."""
        frame, query, options = self.frame, self.query, self.options
        if method == "adaptive":
            draft = lookahead(frame, query)
            given, self.spent = adapt(draft, options.seed, self.limits.seconds - self.seconds())
            return Estimator(frame, query, given, self._sampler(given), ranges=self._ranges(draft), nets=self.nets)
        if method == "sequential":
            from unimarg.proposals.sequential import sequential

            assert self.model is not None
            return self._drawn_by(*sequential(self.model, query, options.structure, self.nets), range(len(self.net)))
        if method == "hybrid" and callable(options.beta):
            drawn = hybrid_by_callable(frame, query, self._marginals(), options.beta, self.given or {}, options.structure, self.nets)
            return self._drawn_by(*drawn, query.targets)
        draft = self.draft(method)
        given, witnesses = draft.finish(), None
        if method != "lookahead" and (method != "prior" or query.below.any()):  # without findings below the prior is the posterior
            drawn = replace(query, every=query.every or not options.structure)
            witnesses = witness(frame, drawn, weighed_by_walk(frame, given, options.structure))
        return Estimator(frame, query, given, self._sampler(given), witnesses, self._ranges(draft), self.nets)

    def _sampler(self, given: Conditionals) -> Draw:
        return sampler(self.frame, given, self.options.structure, self.nets)

    def _ranges(self, draft: Draft) -> dict[int, Floats] | None:
        """Those that control variates leave, of which there are none without structure."""
        return draft.ranges if self.options.structure else None

    def _drawn_by(self, draw: Draw, weigh: Weigh, nodes: Sequence[int]) -> Estimator:
        """Not by a walk: ``nodes`` and those above them; with structure, means are still over P(x_i | pa_i) where no finding lies below."""
        given = prior(self.frame, self.query, self.options.structure).finish()
        drawn = Query.make(self.net, self.query.evidence, tuple(nodes), every=True)
        return Estimator(self.frame, self.query, given, draw, witness=witness(self.frame, drawn, weigh), nets=self.nets)

    def draft(self, method: str) -> Draft:
        frame, query, structure = self.frame, self.query, self.options.structure
        if method == "prior":
            return prior(frame, query, structure)
        if method == "lookahead":
            return lookahead(frame, query)
        assert self.model is not None
        if method == "message":
            return message(frame, query, self.model.messages(query.evidence), structure)
        if method == "independent":
            return independent(frame, query, self._marginals(), structure)
        beta = DEFAULT_BETA if self.options.beta is None else self.options.beta
        if isinstance(beta, str) and beta == "fit":
            beta, self.spent = fit_beta(frame, query, self._marginals(), structure, self.options.seed)
            self.note = f"beta {beta:g} did best in a pilot"
        return hybrid(frame, query, self._marginals(), as_beta(beta, self.net), structure)

    def _marginals(self) -> Floats:
        assert self.model is not None
        return by_node(self.model.marginals([self.query.evidence])[0], self.net)

    def _auto(self) -> Posterior:
        method, estimator, tried = self.best()
        self.run(estimator)
        found = estimator.posterior(method, self.limits, self.seconds())
        unlimited = self.limits.seconds == math.inf and self.options.samples is None
        if found.status != "ok" and unlimited and self.small(LAST_RESORT):
            try:
                return replace(self._exact_at_once(), message=f"{tried}, then exact", seconds=self.seconds())
            except TooExpensiveError:
                pass
        return replace(found, message="; ".join(m for m in (found.message, tried) if m))

    def best(self) -> tuple[str, Estimator, str]:
        """Proposals in turn, until one does well: the best, with the samples of its pilot, and what was tried.

        The first time, all that a later query may escalate to is compiled beside it.
        """
        prepared, mine = self.frame.prepared, _identity(self.model)
        if mine in prepared:
            return self._best()
        prepared.add(mine)
        with ThreadPoolExecutor(1) as aside:
            compiled = aside.submit(self._prepare)
            found = self._best()
            compiled.result()
        return found

    def _prepare(self) -> None:
        traced(self.frame, lookahead(self.frame, self.query).finish(), key_from_seed(self.options.seed))
        if self.model is not None and self.model.sequential:
            estimator = self.estimator("sequential")
            estimator.run(Limits(samples=1))

    def _best(self) -> tuple[str, Estimator, str]:
        methods = ["lookahead", "adaptive"]
        if self.model is not None and self.model.sequential:
            methods.append("sequential")
        tried: list[str] = []
        drawn = 0
        best: tuple[float, str, Estimator] | None = None
        for method in methods:
            pilot = self._sampled(method, self.pilot)
            share = pilot.ess / max(pilot.total.samples, 1)
            if pilot is self.ready and self.share is not None:
                share = self.share  # as it was after a pilot's samples
            tried.append(f"{method} (ESS {share:.1%})")
            drawn += pilot.total.samples
            if best is None or share > best[0]:
                best = (share, method, pilot)
            if share >= POOR or self.seconds() > self.limits.seconds:
                break
        assert best is not None
        self.spent += drawn - best[2].total.samples  # pilots that are not used
        return best[1], best[2], f"auto tried {', '.join(tried)}"


def _identity(model: Marginalizer | None) -> int:
    return 0 if model is None else id(model)


def only_question(net: Network, model: Marginalizer | None) -> None:
    """Before a question by ``auto`` that no other follows: what others might escalate to is then not compiled, a third of the time."""
    frame_of(net).prepared.add(_identity(model))


def by_node(states: Floats, net: Network) -> Floats:
    """States of all nodes side by side, as ``[nodes, card]`` padded with zeros."""
    out = np.zeros((len(net), int(net.cards.max())))
    out[np.arange(out.shape[1]) < net.cards[:, None]] = states
    return out
