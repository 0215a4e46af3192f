"""The junction tree of one component of a query, by pyAgrum; predicted before it is run.

A noisy-max with parents U_1 .. U_n becomes a chain A_1 = max(leak, effect of U_1), A_j = max(A_{j-1}, effect of U_j),
X = A_n: n small tables in place of one with exponentially many entries. All chains take their parents in one
order, which bounds the treewidth of a two-layer network by the number of its positive findings.

A P(e) so small that underflow may have had a part in it is computed again in logarithms, on the same tree.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from unimarg.errors import ImpossibleEvidenceError
from unimarg.formats.interop import import_quietly
from unimarg.log_tree import LogFactor, log_factor, propagate
from unimarg.network import Floats, Network, NoisyMax, Table
from unimarg.reduction import SMALLEST, Component
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
        assert self.prepared is not None
        p = _evidence_probability(self.prepared)
        if p < SMALLEST:
            return self.solve_in_logs()
        marginals = {}
        for t in self.targets:
            values = self.prepared.posterior(self.position[t]).toarray()
            marginals[t] = values / values.sum()
        return math.log(p), marginals

    def solve_in_logs(self) -> tuple[float, dict[int, Floats]]:
        """The same for numbers of any size; a sum of zero is proof that the findings are impossible."""
        assert self.prepared is not None
        evidence, faint = self.component.evidence, self.component.faint
        logs: list[LogFactor] = [((*f.parents, at), _log(f.table)) for at, f in enumerate(self.factors)]
        for i in evidence.hard:
            scope, log = logs[self.position[i]]
            logs[self.position[i]] = scope[:-1], log[..., 1]
        for i in faint.keys() - evidence.virtual.keys():
            logs[self.position[i]] = (self.position[i],), faint[i]
        for i, log in self.component.faint_leaks.items():
            at = self.position[i] - len(self.component.net.parents[i])  # where the chain begins
            logs[at] = (at,), log
        logs += [((self.position[i],), faint.get(i, _log(likelihood))) for i, likelihood in evidence.virtual.items()]
        tree, observed = self.prepared.junctionTree(), {self.position[i] for i in evidence.hard}
        log_p, found = propagate(
            {c: tree.clique(c) - observed for c in tree.nodes()},
            {c: tree.neighbours(c) for c in tree.nodes()},
            [log_factor(scope, log) for scope, log in logs],
            [self.position[t] for t in self.targets],
        )
        if log_p == -np.inf:
            findings = ", ".join(self.component.net.names[i] for i in sorted(evidence.nodes)[:8])
            findings += " and others" if len(evidence) > 8 else ""
            raise ImpossibleEvidenceError(f"the evidence is impossible: these findings, with the rest, contradict each other: {findings}")
        return log_p, {t: found[self.position[t]] for t in self.targets}


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
    prepared = _inference(tree)
    return replace(tree, predicted_bytes=_predict(prepared, tree.factors), prepared=prepared)


def _factors(net: Network, limit: int) -> _Form:
    factors: list[Factor] = []
    position: list[int] = []
    for pa, mechanism in zip(net.parents, net.mechanisms, strict=True):
        parents = tuple(position[p] for p in pa)
        small = len(pa) < 2 or mechanism.entries <= limit
        if isinstance(mechanism, Table) or not pa or (small and mechanism.has_table):
            factors.append(Factor(parents, mechanism.expand()))
        else:
            for parents_, table in _chain(mechanism, parents):
                factors.append(Factor((len(factors) - 1, *parents_) if table.ndim == 3 else parents_, table))
        position.append(len(factors) - 1)
    return tuple(factors), tuple(position)


def _chain(mechanism: NoisyMax, parents: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], Floats]]:
    """One table for each parent, in ascending order of the parents: the first with the leak, the others with a predecessor."""
    order = sorted(range(len(parents)), key=parents.__getitem__)
    first = NoisyMax(mechanism.leak, [mechanism.contributions[order[0]]])
    apart = not first.has_table
    yield ((), mechanism.leak) if apart else ((parents[order[0]],), first.expand())
    states = np.arange(mechanism.card)
    before, after = states[:, None, None], states[None, None, :]
    for j in order if apart else order[1:]:
        pmf = mechanism.contributions[j]
        cdf = np.exp(mechanism.log_cdfs[1][j])
        yield (parents[j],), np.where(after > before, pmf[None], np.where(after == before, cdf[None], 0.0))


def _log(values: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.log(values)


def _bayes_net(factors: Sequence[Factor]) -> pyagrum.BayesNet:
    pyagrum = import_quietly("pyagrum", "pyagrum")
    bn = pyagrum.BayesNet()
    for i, f in enumerate(factors):
        bn.add(pyagrum.LabelizedVariable(f"v{i}", "", f.table.shape[-1]), i)
    for i, f in enumerate(factors):
        for p in f.parents:
            bn.addArc(p, i)
        n = len(f.parents)
        # pyAgrum's first axis varies fastest: the variable itself, then its parents in the order of their arcs
        values = f.table.transpose([*range(n - 1, -1, -1), n]).ravel()
        bn.cpt(i).fillWith(values.tolist())
    return bn


def _inference(tree: JunctionTree) -> pyagrum.LazyPropagation:
    """A propagation with the component's findings and the tree's targets."""
    pyagrum = import_quietly("pyagrum", "pyagrum")
    found = tree.component.evidence
    evidence = {tree.position[i]: 1 for i in found.hard} | {tree.position[i]: v.tolist() for i, v in found.virtual.items()}
    inference = pyagrum.LazyPropagation(_bayes_net(tree.factors))
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


def _evidence_probability(inference: pyagrum.LazyPropagation) -> float:
    pyagrum = import_quietly("pyagrum", "pyagrum")
    try:
        inference.makeInference()
        return inference.evidenceProbability()
    except pyagrum.IncompatibleEvidence:
        return 0.0
