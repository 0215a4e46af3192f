"""One model, or a network without one, as the service offers it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import orjson

from unimarg import query
from unimarg.errors import TooExpensiveError
from unimarg.evidence import Evidence, parse_evidence
from unimarg.exact import advised, exact
from unimarg.inference import answer
from unimarg.influence import influence_by_auto
from unimarg.marginalizer import Marginalizer
from unimarg.network import Floats, Network
from unimarg.posterior import Posterior
from unimarg.query import Asked, Options
from unimarg.questions import Asking
from unimarg.service import schemas
from unimarg.service.work import Stop, StoppedError
from unimarg.service.writing import Writer, plain

QUICK = 0.25  # of what auto takes for quick: others wait
EXACT_MEMORY = 2.0**26  # of method exact: it cannot be stopped on the way, and others wait while pyAgrum holds Python's lock
Tell = Callable[[int, float], None]  # samples so far, seconds


class Served:
    """What a name in the URL stands for."""

    def __init__(self, name: str, source: Marginalizer | Network):
        self.name = name
        self.model = source if isinstance(source, Marginalizer) else None
        self.net: Network = source.net if isinstance(source, Marginalizer) else source
        self._all = Writer(self.net, range(len(self.net)))

    @cached_property
    def priors(self) -> Sequence[Floats]:
        """P(X_i), exact where that is quick, else estimated in training or here."""
        if self.model is not None and not self._quick({}):
            return self.model.priors
        return answer(self.net, None, {}, None, "auto").probabilities

    def warm_up(self, stop: Stop) -> None:
        """What sampling compiles."""
        leaf, likely = self.net.names[-1], int(np.argmax(self.priors[-1]))  # something to be explained: else a proposal is the prior
        for method in ("lookahead", "adaptive"):
            if not stop.is_set():
                answer(self.net, self.model, {leaf: likely}, None, method, samples=1)

    def facts(self) -> dict[str, Any]:
        return {"name": self.name, "network": self.net.name, "variables": len(self.net), "trained": self.model is not None}

    def describe(self) -> dict[str, Any]:
        """For a page to draw it."""
        names = self.net.names
        shown = [True] * len(names) if self.model is None else self.model.observable.tolist()
        return {
            "model": self.name,
            "network": self.net.name,
            "trained": self.model is not None,
            "methods": ["um", "auto", "exact"] if self.model is not None else ["auto", "exact"],
            "groups": list(dict.fromkeys(v.group for v in self.net.variables)),
            "variables": [
                {
                    "name": v.name,
                    "group": v.group,
                    "states": v.states,
                    "parents": [names[p] for p in parents],
                    "prior": dict(zip(v.states, plain(prior).tolist(), strict=True)),
                    "observable": observable,
                }
                for v, parents, prior, observable in zip(self.net.variables, self.net.parents, self.priors, shown, strict=True)
            ],
        }

    def findings(self, evidence: Mapping[str, object]) -> Evidence:
        return parse_evidence(self.net, evidence)

    def writer(self, targets: Sequence[str] | None) -> Writer:
        return self._all if targets is None else Writer(self.net, [self.net.find(t) for t in dict.fromkeys(targets)])

    def one_shot(self, message: str, marginals: bytes, seconds: float) -> bytes:
        """The JSON of an answer by one pass; the fields of ``Posterior.to_dict``."""
        nothing = dict.fromkeys(("std_errors", "ess", "k_hat", "log_evidence", "log_evidence_error"))
        facts = {"model": self.name, "method": "um", "status": "ok", "message": message, "samples": 0} | nothing
        return b'%b,"marginals":%b,"seconds":%.6f}' % (orjson.dumps(facts)[:-1], marginals, seconds)

    def one_of_many(self, evidence: Evidence, marginals: bytes) -> bytes:
        assert self.model is not None
        return b'{"message":%b,"marginals":%b}' % (orjson.dumps(self.model.about_one_shot(evidence)), marginals)

    def refined(self, asked: schemas.QueryBody, stop: Stop, tell: Tell | None = None) -> dict[str, Any]:
        """By exact inference, or by sampling until ``stop``."""

        def progress(samples: int, seconds: float) -> None:
            _go_on(stop)
            if tell is not None:
                tell(samples, seconds)

        _go_on(stop)
        if asked.method == "exact":
            try:
                found = exact(self.net, asked.evidence, asked.targets, memory=EXACT_MEMORY)
            except TooExpensiveError as e:
                raise advised(e, 'ask for fewer targets, or with "method": "auto"') from None
        else:
            options = {name: getattr(asked, name) for name in ("samples", "seconds", "target_error", "seed")}
            found: Posterior = answer(self.net, self.model, asked.evidence, asked.targets, "auto", progress=progress, **options)
        return {"model": self.name} | found.to_dict()

    def questions(self, asked: schemas.QuestionsBody, stop: Stop) -> Any:
        if self.model is not None:
            return self.model.next_questions(asked.evidence, asked.targets, asked.candidates, asked.costs)
        asking = Asking.make(self.net, asked.evidence, asked.targets, asked.candidates, asked.costs, range(len(self.net)))
        return asking.without_model(asked.evidence, 0, partial(_go_on, stop), query.EXACT_MEMORY)

    def explained(self, asked: schemas.ExplainBody, stop: Stop) -> Any:
        if self.model is not None:
            return self.model.explain(asked.evidence, asked.target, asked.state)
        return influence_by_auto(self.net, asked.evidence, asked.target, asked.state, 0, partial(_go_on, stop))

    def _quick(self, evidence: Mapping[str, object]) -> bool:
        """Whether exact inference is."""
        return Asked(self.net, None, evidence, None, Options()).small(QUICK)


def _go_on(stop: Stop) -> None:
    if stop.is_set():
        raise StoppedError


def timed(began: float) -> float:
    return round(time.perf_counter() - began, 6)
