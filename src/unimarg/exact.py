"""Exact posteriors: the query is cut down first, then each part is solved by the cheapest exact method.

P(x_t | e) = P(x_t, e_c) / P(e_c) within the component c of target t, and log P(e) is the sum over components.
A part whose predicted cost is above the budget is declined before any work starts, unless it is the many targets that make
it so: a noisy-or X with no finding below it costs no more than the evidence does, since P(X = 0, e) is the evidence with one
finding more, and that finding falls apart into likelihoods of X's parents.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from numbers import Real

import numpy as np

from unimarg.bn2o import PATIENCE, Programme, programme
from unimarg.conflict import conflict, sentence
from unimarg.errors import EvidenceError, ImpossibleEvidenceError, TooExpensiveError, UsageError
from unimarg.evidence import Evidence, one_set, parse_evidence
from unimarg.formats.interop import AnyNetwork, as_network
from unimarg.junction import JunctionTree, junction_tree
from unimarg.network import Floats, Network, NoisyMax
from unimarg.posterior import Posterior
from unimarg.reduction import SMALLEST, Component, as_noisy_or, reduce
from unimarg.relevance import ancestors

QUICK = 2.0  # seconds; a dynamic programme this short is run without asking what a junction tree would take
DEFAULT_MEMORY = 4 * 2**30


def exact(
    net: AnyNetwork, evidence: Mapping[str, object] | None = None, targets: Sequence[str] | None = None, *, memory: float = DEFAULT_MEMORY
) -> Posterior:
    """Posterior marginals without sampling error, or a ``TooExpensiveError`` that says what they would need.

    ``targets=None`` means every variable; ``memory`` is the budget in bytes for any one part of the query.

    >>> from unimarg.network import NoisyOr, Variable
    >>> net = Network([Variable("rain"), Variable("wet")], {"wet": ["rain"]}, {"rain": [0.8, 0.2], "wet": NoisyOr(0.1, [0.8])})
    >>> round(exact(net, {"wet": "yes"})["rain"]["yes"], 4)
    0.6721
    """
    started = time.perf_counter()
    check_memory(memory)
    net = as_network(net)
    if not one_set(evidence) or hasattr(evidence, "columns"):
        several = f"exact answers one evidence set, not a {type(evidence).__name__} of them"
        raise EvidenceError(f'{several}; unimarg.infer(net, sets, method="exact") answers several')
    found = parse_evidence(net, evidence)
    wanted = net.find_all(targets)
    try:
        log_p, answers = exact_marginals(net, found, wanted, memory)
    except ImpossibleEvidenceError as e:
        together = conflict(net, found)
        raise e if together is None else ImpossibleEvidenceError(sentence(net, found, together)) from None
    seconds = time.perf_counter() - started
    return Posterior.exact([net.variables[i] for i in wanted], [answers[i] for i in wanted], log_p, seconds)


def check_memory(memory: object) -> None:
    """Whether it is a number of bytes."""
    if isinstance(memory, bool) or not isinstance(memory, Real) or not float(memory) > 0:
        raise UsageError(f"memory must be a positive number of bytes, not {memory!r}")


def exact_marginals(
    net: Network, evidence: Evidence, targets: Sequence[int], memory: float, *, apart: bool = True
) -> tuple[float, dict[int, Floats]]:
    """log P(e), and P(x_t | e) for each target; with ``apart``, a component that is too large is tried target by target."""
    reduction = reduce(net, evidence, targets)
    log_p = reduction.log_scale
    answers: dict[int, Floats] = {i: _certain(net.variables[i].card, k) for i, k in reduction.known.items()}
    wanted = set(targets) - answers.keys()
    for component in reduction.components:
        local = [c for c, i in enumerate(component.nodes) if i in wanted]
        try:
            part, marginals = solve(component, local, memory)
        except TooExpensiveError as error:
            if not apart:
                raise
            part, marginals = _one_by_one(component, local, memory, error.predicted_bytes)
        log_p += part
        answers |= {component.nodes[c]: p for c, p in marginals.items()}
    # a component may keep an observed noisy-max with fewer states than it has
    return log_p, answers | {i: _certain(net.variables[i].card, k) for i, k in evidence.hard.items()}


def solve(component: Component, targets: Sequence[int], memory: float) -> tuple[float, dict[int, Floats]]:
    """log P(findings) and marginals of one component, by the cheapest method that fits."""
    if not component.evidence and not targets:
        return 0.0, {}
    if len(component.net) == 1:
        return 0.0, {0: component.net.mechanisms[0].expand()}
    found = programme(component, targets)
    if found is not None and found.seconds < QUICK and found.predicted_bytes <= memory:
        log_p, marginals = found.solve()
        if _reliable(component, log_p):
            return log_p, marginals
        found = None
    ways: list[JunctionTree | Programme] = [junction_tree(component, targets, memory)]
    if found is not None and found.seconds < PATIENCE:
        ways.append(found)
    fitting = [way for way in ways if way.predicted_bytes <= memory]
    if not fitting:
        raise _too_expensive(min(way.predicted_bytes for way in ways), memory)
    for way in sorted(fitting, key=lambda way: way.seconds):
        log_p, marginals = way.solve()
        if isinstance(way, JunctionTree) or _reliable(component, log_p):
            return log_p, marginals
    raise _too_expensive(ways[0].predicted_bytes, memory)  # the junction tree, which goes on in logarithms, does not fit


def programme_seconds(net: Network, evidence: Evidence, targets: Sequence[int]) -> float:
    """What the programmes over positive findings would take together; infinite where something else is needed."""
    try:
        components = [c for c in reduce(net, evidence, targets).components if len(c.net) > 1]
    except ImpossibleEvidenceError:
        return 0.0
    wanted = set(targets)
    found = [programme(c, [local for local, i in enumerate(c.nodes) if i in wanted]) for c in components]
    return sum((math.inf if way is None else way.seconds for way in found), 0.0)


def _reliable(component: Component, log_p: float) -> bool:
    """Whether log P(findings) is right although the component's faint numbers were not known."""
    return not (component.faint or component.faint_leaks) or log_p > math.log(SMALLEST)


def _one_by_one(component: Component, targets: Sequence[int], memory: float, together: float) -> tuple[float, dict[int, Floats]]:
    """The nodes above the findings in one go, every other target on its own: together they would tie a knot."""
    net, evidence = component.net, component.evidence
    core = ancestors(net, evidence.nodes)
    log_p, answers = exact_marginals(net, evidence, [t for t in targets if t in core], memory, apart=False)
    if not _reliable(component, log_p):
        raise _too_expensive(together, memory)
    alone = sorted((t for t in targets if t not in core), key=lambda t: -len(ancestors(net, [t])))
    started = time.perf_counter()
    for done, t in enumerate(alone):
        minutes = (time.perf_counter() - started) / max(done, 1) * len(alone) / 60
        if 60 * minutes > PATIENCE:
            raise TooExpensiveError(
                f"the exact answer needs about {_bytes(together)} for all targets at once, or about {minutes:.0f} minutes one by one; "
                "ask for fewer targets, allow more (memory=, --memory) or use an approximate method",
                together,
            )
        answers[t] = _alone(net, evidence, t, memory, log_p)
    return log_p, answers


def _alone(net: Network, evidence: Evidence, target: int, memory: float, log_p: float) -> Floats:
    """The marginal of a target with no finding below it."""
    mechanism = net.mechanisms[target]
    splits = mechanism.card == 2 and (isinstance(mechanism, NoisyMax) or as_noisy_or(mechanism) is not None)
    if not splits:
        return exact_marginals(net, evidence, [target], memory, apart=False)[1][target]
    try:
        joint, _ = exact_marginals(net, Evidence({**evidence.hard, target: 0}, evidence.virtual), [], memory, apart=False)
    except ImpossibleEvidenceError:
        return np.array([0.0, 1.0])
    absent = min(math.exp(joint - log_p), 1.0)
    return np.array([absent, 1 - absent])


def _certain(card: int, state: int) -> Floats:
    marginal = np.zeros(card)
    marginal[state] = 1.0
    return marginal


def _too_expensive(needed: float, memory: float) -> TooExpensiveError:
    return TooExpensiveError(
        f"the exact answer needs about {_bytes(needed)}, the budget is {_bytes(memory)}; "
        "allow more (memory=, --memory) or use an approximate method",
        needed,
    )


def advised(error: TooExpensiveError, advice: str) -> TooExpensiveError:
    """The same figures, with advice for those who cannot allow more memory."""
    return TooExpensiveError(f"{str(error).partition('; ')[0]}; {advice}", error.predicted_bytes)


def _bytes(number: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.3g} {unit}"
        number /= 1024
    return f"{number:.4g} TiB" if number < 1e6 else f"{number:.2e} TiB"
