"""``infer``: one evidence set, or many, each with its own stopping and status.

Of many, those that ``lookahead`` samples are drawn several at a time where the device gains by that (``together``).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from unimarg.errors import EvidenceError
from unimarg.evidence import one_set
from unimarg.exact_together import MANY, exact_table
from unimarg.formats.interop import AnyNetwork, as_network
from unimarg.frame import frame_of
from unimarg.network import Network
from unimarg.posterior import Posterior
from unimarg.query import Asked, Options, check
from unimarg.tables import given, states_from_frame
from unimarg.together import FEWEST, Group, better_off, sets_together

if TYPE_CHECKING:
    import pandas as pd

    from unimarg.marginalizer import Marginalizer


@overload
def infer(
    net: AnyNetwork,
    evidence: Mapping[str, object] | None = None,
    targets: Sequence[str] | None = None,
    method: str = "auto",
    **options: Any,
) -> Posterior: ...


@overload
def infer(
    net: AnyNetwork,
    evidence: Iterable[Mapping[str, object]] | pd.DataFrame,
    targets: Sequence[str] | None = None,
    method: str = "auto",
    **options: Any,
) -> list[Posterior]: ...


def infer(
    net: AnyNetwork,
    evidence: Mapping[str, object] | Iterable[Mapping[str, object]] | pd.DataFrame | None = None,
    targets: Sequence[str] | None = None,
    method: str = "auto",
    **options: Any,
) -> Posterior | list[Posterior]:
    """Posterior marginals without a trained model.

    ``method`` is auto, exact, prior, lookahead or adaptive. ``options``: ``samples``, ``target_error`` (the largest standard error over the
    targets; None: draw all samples), ``seconds``, ``structure``, ``seed``; ``memory`` (of exact: bytes, 4 GiB if not given);
    ``progress`` (told the samples and seconds so far, again and again; the answer True ends the drawing). An option that has no effect on
    the method is an error; ``auto`` takes all but ``memory``.
    For several evidence sets give a list of them, or a DataFrame, whose rows they are, with an empty cell (None, NaN) where nothing is
    known: the answers are a list too, each with its own stopping and status; where one alone would be an error (impossible evidence,
    exact inference too expensive) it has the status ``failed`` and says why. Thousands of them are answered by one program where exact
    inference is quick; on an accelerator ``auto`` and ``lookahead`` draw many sets in one call.

    >>> from unimarg.network import NoisyOr, Variable
    >>> net = Network([Variable("rain"), Variable("wet")], {"wet": ["rain"]}, {"rain": [0.8, 0.2], "wet": NoisyOr(0.1, [0.8])})
    >>> round(infer(net, {"wet": "yes"})["rain"]["yes"], 4)
    0.6721
    """
    return answer(as_network(net), None, evidence, targets, method, **options)


def answer(net: Network, model: Marginalizer | None, evidence: Any, targets: Sequence[str] | None, method: str, **options: Any) -> Any:
    """``infer`` and ``Marginalizer.query``."""
    check(method, model, options)
    made = Options(**options)
    made.limits()
    targets = None if targets is None else [net.names[i] for i in net.find_all(targets)]
    if hasattr(evidence, "columns") and hasattr(evidence, "dropna"):  # a table of pandas
        evidence = [given(net, row) for row in states_from_frame(net, evidence)]
    if one_set(evidence):
        return Asked(net, model, evidence, targets, made).by(method)
    asked = [_one_of_several(net, model, number, e, targets, made) for number, e in enumerate(evidence)]
    if method == "um":
        assert model is not None
        return model.one_shots([a.query.evidence for a in asked], net.find_all(targets))
    if method in ("auto", "exact") and made.memory is None and len(asked) >= MANY:
        return _exactly_together(net, asked, method, net.find_all(targets))
    return _one_after_the_other(net, asked, method, made)


def _one_after_the_other(net: Network, asked: Sequence[Asked], method: str, made: Options) -> list[Posterior]:
    """On an accelerator some together, where these are sampled."""
    sets = sets_together(frame_of(net))
    if sets and method in ("auto", "lookahead") and made.structure and made.seconds is None and made.progress is None:
        return _by_side_by_side(asked, method, sets)
    with ThreadPoolExecutor(None if method == "exact" else 2) as pool:  # one is prepared while another is sampled
        return list(pool.map(lambda a: a.by_or_failed(method), asked))


def _exactly_together(net: Network, asked: Sequence[Asked], method: str, targets: Sequence[int]) -> list[Posterior]:
    """By one program, where cliques are small; what it does not answer one after the other."""
    began, out = time.perf_counter(), dict[int, Posterior]()
    table = exact_table(net, {i for a in asked for i in a.query.evidence.hard}, targets)
    if table is not None and len(asked) >= table.many:
        certain = [n for n, a in enumerate(asked) if not a.query.evidence.virtual]
        states = np.full((len(certain), len(net)), -1)
        for row, n in enumerate(certain):
            hard = asked[n].query.evidence.hard
            states[row, list(hard)] = list(hard.values())
        found = table.answers(states)
        variables, ends = [net.variables[t] for t in targets], np.cumsum([0, *net.cards[list(targets)]])
        seconds = (time.perf_counter() - began) / max(len(certain), 1)
        for row in np.flatnonzero(found.reached).tolist():
            probabilities = [found.probabilities[row, a:b].copy() for a, b in itertools.pairwise(ends)]
            out[certain[row]] = Posterior.exact(variables, probabilities, float(found.log_p[row]), seconds)
    left = [n for n in range(len(asked)) if n not in out]
    out |= zip(left, _one_after_the_other(net, [asked[n] for n in left], method, asked[0].options), strict=True)
    return [out[n] for n in range(len(asked))]


def _by_side_by_side(asked: Sequence[Asked], method: str, sets: int) -> list[Posterior]:
    """Some at a time, with samples of ``lookahead`` that are drawn together; while these are drawn the next are prepared."""
    count = -(-len(asked) // sets)  # groups of about one size, since few sets are not drawn together
    groups = [asked[len(asked) * n // count : len(asked) * (n + 1) // count] for n in range(count)]
    out: list[Posterior] = []

    def prepare(number: int) -> None:
        for a in groups[number] if number < len(groups) else ():
            a.get_ready(method)

    with ThreadPoolExecutor(1) as aside:
        coming = aside.submit(prepare, 0)
        for number, group in enumerate(groups):
            coming.result()
            coming = aside.submit(prepare, number + 1)
            _draw_together([a for a in group if a.ready], method, sets)
            for a in group:
                out.append(a.by_or_failed(method))
                a.ready = None  # and its tables
    return out


def _draw_together(ready: Sequence[Asked], method: str, sets: int) -> None:
    """With ``auto`` as many as a pilot first, and more of those only whose share of effective samples is not poor."""
    if len(ready) < FEWEST:
        return
    began, limits, seed = time.perf_counter(), ready[0].limits, ready[0].options.seed
    first, estimators = ready[0].pilot if method == "auto" else limits, [a.ready for a in ready if a.ready]
    if len(better_off(estimators, first)) < FEWEST:
        return
    group = Group(estimators, sets, max(a.used for a in ready))
    good = group.estimators
    if method == "auto":
        left = group.run(first, seed)
        judged = [(a, e) for a, e in zip(ready, group.estimators, strict=True) if e not in left]
        for a, e in judged:
            a.share = e.ess / max(e.total.samples, 1)
        good = [e for a, e in judged if a.good]
    group.run(limits, seed, good)
    for a in ready:
        a.shared += (time.perf_counter() - began) / len(ready)


def _one_of_several(net: Network, model: Marginalizer | None, number: int, evidence: Any, targets: Any, options: Options) -> Asked:
    try:
        return Asked(net, model, evidence, targets, options)
    except EvidenceError as e:
        raise EvidenceError(f"evidence set {number}: {e}") from e
