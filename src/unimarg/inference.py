"""``infer``: one evidence set, or many, each with its own stopping and status.

Of many, those that ``lookahead`` samples are drawn several at a time where the device gains by that (``together``).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from unimarg.errors import EvidenceError
from unimarg.evidence import one_set, parse_evidence
from unimarg.exact_together import LOOKED_AT, worthwhile
from unimarg.formats.interop import AnyNetwork, as_network
from unimarg.frame import frame_of
from unimarg.network import Network
from unimarg.posterior import Posterior
from unimarg.query import Asked, Options, check
from unimarg.tables import given, nothing_known, states_from_frame
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
    table = states_from_frame(net, evidence) if hasattr(evidence, "columns") and hasattr(evidence, "dropna") else None  # of pandas
    if table is None and one_set(evidence):
        return Asked(net, model, evidence, targets, made).by(method)
    sets = list(evidence) if table is None else table
    out = dict[int, Posterior]()
    if method in ("auto", "exact") and made.memory is None and len(sets) >= LOOKED_AT:
        numbers, states = _certain(net, sets) if table is None else (np.arange(len(table)), table)
        out = _exactly_together(net, numbers, states, net.find_all(targets))
    left = [n for n in range(len(sets)) if n not in out]
    asked = [_one_of_several(net, model, n, sets[n] if table is None else given(net, table[n]), targets, made) for n in left]
    if method == "um":
        assert model is not None
        return model.one_shots([a.query.evidence for a in asked], net.find_all(targets))
    out |= zip(left, _one_after_the_other(net, asked, method, made), strict=True)
    return [out[n] for n in range(len(sets))]


def _one_after_the_other(net: Network, asked: Sequence[Asked], method: str, made: Options) -> list[Posterior]:
    """On an accelerator some together, where these are sampled."""
    sets = sets_together(frame_of(net))
    if sets and method in ("auto", "lookahead") and made.structure and made.seconds is None and made.progress is None:
        return _by_side_by_side(asked, method, sets)
    with ThreadPoolExecutor(None if method == "exact" else 2) as pool:  # one is prepared while another is sampled
        return list(pool.map(lambda a: a.by_or_failed(method), asked))


def _certain(net: Network, sets: Iterable[Any]) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of the sets whose findings are all certain, and their states ``[rows, nodes]``, -1 where nothing is known."""
    hard: dict[int, Mapping[int, int]] = {}
    for number, one in enumerate(sets):
        with _numbered(number):
            found = parse_evidence(net, one)
        if not found.virtual:
            hard[number] = found.hard
    states = nothing_known(net, len(hard))
    for row, found in zip(states, hard.values(), strict=True):
        row[list(found)] = list(found.values())
    return np.array(list(hard), dtype=np.int64), states


def _exactly_together(net: Network, numbers: np.ndarray, states: np.ndarray, targets: Sequence[int]) -> dict[int, Posterior]:
    """By one program where that is quicker; what it does not answer is left out."""
    began, out = time.perf_counter(), dict[int, Posterior]()
    table = worthwhile(net, states, np.flatnonzero((states >= 0).any(axis=0)), targets)
    if table is None:
        return out
    found = table.answers(states)
    variables, ends = tuple(net.variables[t] for t in targets), np.cumsum([0, *net.cards[list(targets)]]).tolist()
    parts = [slice(*ab) for ab in itertools.pairwise(ends)]
    zeros = np.zeros(ends[-1])
    zeros.flags.writeable = False  # since all share it
    none = tuple(zeros[part] for part in parts)
    seconds = (time.perf_counter() - began) / len(states)
    for row in np.flatnonzero(found.reached).tolist():
        probabilities = found.probabilities[row].copy()  # or one answer that is kept would keep them all
        each = [probabilities[part] for part in parts]
        out[int(numbers[row])] = Posterior.exact(variables, each, float(found.log_p[row]), seconds, none)
    return out


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
    with _numbered(number):
        return Asked(net, model, evidence, targets, options)


@contextmanager
def _numbered(number: int) -> Iterator[None]:
    """Errors name the evidence set."""
    try:
        yield
    except EvidenceError as e:
        raise EvidenceError(f"evidence set {number}: {e}") from e
