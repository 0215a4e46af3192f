"""The junction tree of one component of a query, by pyAgrum; predicted before it is run.

A noisy-max with parents U_1 .. U_n becomes a chain A_1 = max(leak, effect of U_1), A_j = max(A_{j-1}, effect of U_j),
X = A_n: n small tables in place of one with exponentially many entries. All chains take their parents in one
order, which bounds the treewidth of a two-layer network by the number of its positive findings.

log P(e) = sum_b log P(block b | blocks before it): one block where the product is a number, else as many as it takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from unimarg.errors import EvidenceError, ImpossibleEvidenceError
from unimarg.formats.interop import import_quietly
from unimarg.network import Floats, Network, NoisyMax, Table
from unimarg.reduction import Component
from unimarg.triangulation import cliques, moral_graph

if TYPE_CHECKING:
    import pyagrum

# On one thread LazyPropagation's peak was 0.3 to 1.7 times the bytes of all clique tables (bnlearn's pigs, munin1, munin2,
# diabetes, water, barley, mildew, link without evidence), plus some 20 kB for each node; two threads took up to 3.7 times
PEAK_FACTOR = 2.0
NODE_BYTES = 20_000
BYTES_PER_SECOND = 1e8  # of predicted_bytes; measured on one core: 0.4 (munin1) to 4 e8
EXPANDED = 64  # entries of the largest noisy-max table that is used as it is
LARGE = 1000  # factors; from here on pyAgrum's triangulation takes seconds, and a greedy one says first whether to try
HOPE = 64  # times the budget; a greedy order this far off will not be saved by another
EASY = 16 * 2**20  # bytes; below this pyAgrum's own triangulation is not worth improving
SMALLEST = 1e-200  # a product of probabilities above this has lost nothing to underflow


@dataclass(frozen=True, eq=False)
class Factor:
    """P(node | parents) as an array ``[*parent_cards, card]``, by index among the factors, parents first."""

    parents: tuple[int, ...]
    table: Floats


_Form: TypeAlias = tuple[tuple[Factor, ...], tuple[int, ...]]  # the factors, and for each variable the position of its own


@dataclass(frozen=True, eq=False)
class JunctionTree:
    """A component as plain factors, with what it would cost; ``position[i]`` is the factor of its variable i."""

    component: Component
    factors: tuple[Factor, ...]
    position: tuple[int, ...]
    targets: tuple[int, ...]
    cliques: tuple[set[int], ...]  # wanted, by factor; none: pyAgrum chooses
    predicted_bytes: float
    prepared: pyagrum.LazyPropagation | None  # with all findings, not yet run

    @property
    def seconds(self) -> float:
        return self.predicted_bytes / BYTES_PER_SECOND

    def solve(self) -> tuple[float, dict[int, Floats]]:
        """log P(findings) and the marginals of the targets, by index in the component's network."""
        log_p, inference = _absorb(self)
        if inference is None:
            raise self._failure()
        marginals = {}
        for t in self.targets:
            values = inference.posterior(self.position[t]).toarray()
            marginals[t] = values / values.sum()
        return log_p, marginals

    def _failure(self) -> EvidenceError:
        """P(e) came out as zero: an error either way, but only the network's zeros prove it impossible."""
        factors = tuple(Factor(f.parents, _support(f.table)) for f in self.factors)
        virtual = {i: (v > 0).astype(float) for i, v in self.component.evidence.virtual.items()}
        evidence = replace(self.component.evidence, virtual=virtual)
        possible = replace(self, factors=factors, component=replace(self.component, evidence=evidence), prepared=None)
        findings = ", ".join(self.component.net.names[i] for i in sorted(evidence.nodes)[:8])
        findings += " and others" if len(evidence) > 8 else ""
        if _absorb(possible)[1] is None:
            return ImpossibleEvidenceError(f"the evidence is impossible: these findings, with the rest, contradict each other: {findings}")
        return EvidenceError(f"the evidence is too improbable for double precision (below 1e-300 given the rest): {findings}")


def junction_tree(component: Component, targets: Sequence[int], memory: float) -> JunctionTree:
    """The cheapest junction tree found: pyAgrum's own, and where that is large, greedy ones on two forms of the factors."""
    forms = [_factors(component.net, EXPANDED)]
    if len(forms[0][0]) > LARGE:
        entries = _greedy(component, forms[0])[1]
        if _peak(entries, 0) > HOPE * memory:
            return JunctionTree(component, *forms[0], tuple(targets), (), _peak(entries, len(forms[0][0])), None)
    best = _planned(component, targets, forms[0], [])
    if best.predicted_bytes - _peak(0, len(best.factors)) < EASY:
        return best
    if any(isinstance(m, NoisyMax) for m in component.net.mechanisms):
        forms.append(_factors(component.net, 8))
    for form in forms:
        for weighted in (True, False):
            found, entries = _greedy(component, form, weighted=weighted)
            if _peak(entries, len(form[0])) < 0.8 * best.predicted_bytes:
                candidate = _planned(component, targets, form, found)
                best = min(best, candidate, key=lambda tree: tree.predicted_bytes)
    return best


def _greedy(component: Component, form: _Form, *, weighted: bool = True) -> tuple[list[set[int]], float]:
    factors, position = form
    observed = {position[i] for i in component.evidence.hard}
    graph = moral_graph([{i, *f.parents} - observed for i, f in enumerate(factors)])
    return cliques(graph, np.log([f.table.shape[-1] for f in factors]).tolist(), weighted=weighted)


def _planned(component: Component, targets: Sequence[int], form: _Form, together: Sequence[set[int]]) -> JunctionTree:
    """With its cost. The sets ``together`` become joint targets, which is how pyAgrum can be told its cliques."""
    # small cliques come by themselves once the large ones are there, and each joint target costs a little
    tree = JunctionTree(component, *form, tuple(targets), tuple(c for c in together if len(c) > 3), 0.0, None)
    prepared = _inference(tree, component.evidence.nodes, {})
    return replace(tree, predicted_bytes=_predict(prepared, tree.factors), prepared=prepared)


def _factors(net: Network, limit: int) -> _Form:
    factors: list[Factor] = []
    position: list[int] = []
    for pa, mechanism in zip(net.parents, net.mechanisms, strict=True):
        parents = tuple(position[p] for p in pa)
        if isinstance(mechanism, Table) or len(pa) < 2 or math.prod((*mechanism.parent_cards, mechanism.card)) <= limit:
            factors.append(Factor(parents, mechanism.expand()))
        else:
            for parents_, table in _chain(mechanism, parents):
                factors.append(Factor((len(factors) - 1, *parents_) if table.ndim == 3 else parents_, table))
        position.append(len(factors) - 1)
    return tuple(factors), tuple(position)


def _chain(mechanism: NoisyMax, parents: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], Floats]]:
    """One table for each parent, in ascending order of the parents: the first without, the others with a predecessor."""
    order = sorted(range(len(parents)), key=parents.__getitem__)
    first = mechanism.contributions[order[0]]
    yield (parents[order[0]],), NoisyMax(mechanism.leak, [first]).expand()
    states = np.arange(mechanism.card)
    before, after = states[:, None, None], states[None, None, :]
    for j in order[1:]:
        pmf = mechanism.contributions[j]
        cdf = np.exp(mechanism.log_cdfs[1][j])
        yield (parents[j],), np.where(after > before, pmf[None], np.where(after == before, cdf[None], 0.0))


def _support(table: Floats) -> Floats:
    possible = (table > 0).astype(np.float64)
    return possible / possible.sum(-1, keepdims=True)


def _bayes_net(factors: Sequence[Factor], scale: Mapping[int, float]) -> pyagrum.BayesNet:
    """The factors as a pyAgrum network; those of ``scale`` are multiplied by it (they are observed, and no longer sum to 1)."""
    pyagrum = import_quietly("pyagrum", "pyagrum")
    bn = pyagrum.BayesNet()
    for i, f in enumerate(factors):
        bn.add(pyagrum.LabelizedVariable(f"v{i}", "", f.table.shape[-1]), i)
    for i, f in enumerate(factors):
        for p in f.parents:
            bn.addArc(p, i)
        n = len(f.parents)
        # pyAgrum's first axis varies fastest: the variable itself, then its parents in the order of their arcs
        values = f.table.transpose([*range(n - 1, -1, -1), n]).ravel() * scale.get(i, 1.0)
        bn.cpt(i).fillWith(values.tolist())
    return bn


def _inference(tree: JunctionTree, findings: Iterable[int], scale: Mapping[int, float]) -> pyagrum.LazyPropagation:
    """A propagation with these findings, each multiplied by its scale, and the tree's targets."""
    pyagrum = import_quietly("pyagrum", "pyagrum")
    evidence, observed = {}, {}
    for i in findings:
        at = tree.position[i]
        if i in tree.component.evidence.hard:
            evidence[at], observed[at] = 1, scale.get(i, 1.0)
        else:
            evidence[at] = (tree.component.evidence.virtual[i] * scale.get(i, 1.0)).tolist()
    inference = pyagrum.LazyPropagation(_bayes_net(tree.factors, observed))
    inference.setNumberOfThreads(1)  # threads that wait for each other make a busy machine ten times slower
    # all of them, wanted or not: pyAgrum leaves out findings that its targets do not depend on, also from P(e)
    inference.setTargets(set(range(len(tree.factors))) - {tree.position[i] for i in tree.component.evidence.hard})
    inference.setEvidence(evidence)
    for clique in tree.cliques:
        inference.addJointTarget(clique)
    return inference


def _predict(inference: pyagrum.LazyPropagation, factors: Sequence[Factor]) -> float:
    """Bytes that propagation will need at its peak, from the sizes of the cliques."""
    cliques = inference.junctionTree()
    log_cards = [math.log(f.table.shape[-1]) for f in factors]
    logs = [sum(log_cards[v] for v in cliques.clique(c)) for c in cliques.nodes()]
    return _peak(sum(math.exp(min(x, 700.0)) for x in logs), len(factors))


def _peak(entries: float, nodes: int) -> float:
    return PEAK_FACTOR * 8 * entries + NODE_BYTES * nodes


def _absorb(tree: JunctionTree) -> tuple[float, pyagrum.LazyPropagation | None]:
    """log P(findings) and a propagation with all of them; None in its place where the probability came out as zero.

    Findings already in are scaled to a joint probability of 1, so that what is next starts from a number of
    ordinary size. A block whose probability underflows is halved.
    """
    waiting = [sorted(tree.component.evidence.nodes)]
    done: list[int] = []
    scale: dict[int, float] = {}
    total, inference = 0.0, None
    while waiting:
        block = waiting.pop()
        first = tree.prepared is not None and inference is None
        inference = tree.prepared if first else _inference(tree, [*done, *block], scale)
        assert inference is not None
        p = _evidence_probability(inference)
        if SMALLEST < p < 1 / SMALLEST:
            total += math.log(p)
            done += block
            scale |= dict.fromkeys(block, math.exp(-math.log(p) / max(len(block), 1)))
        elif len(block) > 1:
            half = len(block) // 2
            waiting += [block[half:], block[:half]]
        else:
            return -np.inf, None
    # the last block's scale is not in yet, and need not be: a common factor leaves the marginals alone
    return total, inference


def _evidence_probability(inference: pyagrum.LazyPropagation) -> float:
    pyagrum = import_quietly("pyagrum", "pyagrum")
    try:
        inference.makeInference()
        return inference.evidenceProbability()
    except pyagrum.IncompatibleEvidence:
        return 0.0
