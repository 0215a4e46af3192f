"""Networks of ORs seen as two layers: independent binary roots, and nodes that any of them may switch on.

    P(X = 0 | roots) = prod_d q_X[d] ^ x_d,

where q_X[d] is the probability that root d, present, has no effect on X (the leak is a root that is always present). It is kept
as log q, because 1 - q may be far below the rounding of 1. A noisy-or of roots has this form; so has an OR-chain or tree of
noisy-ors, q_X[d] being the product over X's parents, as long as no noise is counted twice. What must hold is checked here node by
node:

- an arc from an inner node with more than one cause always passes (contribution 1): otherwise its causes share the arc's noise;
- no noisy inner node is reached on two ways from one node, or from two findings;
- a node asked for may share noisy nodes with the findings only if X = 0 implies that they are 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from unimarg.network import Floats, NoisyMax
from unimarg.reduction import Component, as_noisy_or


@dataclass(frozen=True, eq=False)
class OrNode:
    """An OR of roots, written down as it was given: ``links`` are (inner parent, contribution)."""

    direct: Floats  # [roots + 1], log q of the roots that are its parents, and its leak last
    links: tuple[tuple[int, float], ...]
    quiet: Floats  # [roots + 1], log q_X of the roots above it, near and far
    noisy: int  # bit set of the nodes whose noise q_X contains
    zero: int  # bit set of the OR nodes that are 0 whenever this one is
    above: int  # bit set of the OR nodes above it and itself


@dataclass(frozen=True, eq=False)
class OrNetwork:
    """``roots`` with weights ``[roots, 2]``, which sum to 1, and the OR nodes by index in the component.

    A likelihood of an OR node i that speaks for its presence is a finding too, with the number of variables added to i.
    """

    roots: tuple[int, ...]
    weights: Floats
    nodes: Mapping[int, OrNode]
    findings: tuple[int, ...]

    def quiet_given_zero(self, finding: int, zero: int) -> Floats:
        """log q of a finding when the OR nodes of the bit set ``zero`` are known to be 0 and pass nothing on."""
        node = self.nodes[finding]
        if not node.above & zero:
            return node.quiet
        again: dict[int, Floats] = {}
        for i, inner in self.nodes.items():  # parents come before children
            if node.above >> i & 1 and inner.above & zero:
                again[i] = np.zeros_like(inner.quiet) if zero >> i & 1 else _combined(inner, self.nodes, again)
        return again[finding]


def recognise(component: Component, targets: Sequence[int]) -> OrNetwork | None:
    """The component as a network of ORs, or None where it is not one, or not for all of these targets."""
    net, evidence = component.net, component.evidence
    roots = tuple(i for i in range(len(net)) if not net.parents[i])
    if any(v.card != 2 for v in net.variables):
        return None
    weights = np.array([net.mechanisms[i].expand() for i in roots])
    column = {d: c for c, d in enumerate(roots)}
    nodes: dict[int, OrNode] = {}
    for i in range(len(net)):
        if i not in column:
            mechanism = net.mechanisms[i]
            noisy_or = mechanism if isinstance(mechanism, NoisyMax) else as_noisy_or(mechanism)
            node = None if noisy_or is None else _or_node(i, noisy_or, net.parents[i], column, nodes)
            if node is None:
                return None
            nodes[i] = node
    for i, likelihood in evidence.virtual.items():
        if i in nodes:
            if likelihood[0] > likelihood[1]:
                return None
            # a child that i always switches on, and that is on by itself with probability L(0) / L(1), has been seen on
            child = NoisyMax([1 - likelihood[0] / likelihood[1], likelihood[0] / likelihood[1]], [np.eye(2)])
            extra = _or_node(len(net) + i, child, (i,), column, nodes)
            assert extra is not None
            nodes[len(net) + i] = extra
    findings = (*sorted(evidence.hard), *(i for i in nodes if i >= len(net)))
    shared = 0
    for s in findings:
        if shared & nodes[s].noisy:
            return None
        shared |= nodes[s].noisy
    if any(t in nodes and nodes[t].noisy & shared & ~nodes[t].zero for t in targets):
        return None
    return OrNetwork(roots, weights, nodes, findings)


def _or_node(i: int, mechanism: NoisyMax, parents: Sequence[int], column: Mapping[int, int], nodes: Mapping[int, OrNode]) -> OrNode | None:
    leak, effects = mechanism.log_cdfs
    direct = np.zeros(len(column) + 1)
    direct[-1] = leak[0]
    links: list[tuple[int, float]] = []
    noisy, zero, above = 0, 1 << i, 1 << i
    certain = mechanism.leak[1] in (0.0, 1.0)
    for p, rows, effect in zip(parents, mechanism.contributions, effects, strict=True):
        passes = float(rows[1, 1])
        certain &= passes in (0.0, 1.0)
        if p in column:
            direct[column[p]] = effect[1, 0]
        elif passes > 0:
            inner = nodes[p]
            if (passes < 1 and np.count_nonzero(inner.quiet < 0) > 1) or noisy & inner.noisy:
                return None
            links.append((p, passes))
            noisy |= inner.noisy
            above |= inner.above
            zero |= inner.zero if passes == 1 else 0
    node = OrNode(direct, tuple(links), direct, noisy if certain else noisy | 1 << i, zero, above)
    return OrNode(direct, node.links, _combined(node, nodes, {}), node.noisy, zero, above)


def _combined(node: OrNode, nodes: Mapping[int, OrNode], instead: Mapping[int, Floats]) -> Floats:
    """log q of a node from its own roots and its inner parents, some of them replaced."""
    quiet = node.direct.copy()
    for p, passes in node.links:
        q = instead.get(p, nodes[p].quiet)
        quiet += q if passes == 1 else np.log1p(passes * np.expm1(q))
    return quiet
