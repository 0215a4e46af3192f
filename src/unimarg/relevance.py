"""Which nodes a query needs: barren nodes and d-separated parts are left out.

P(targets | e) depends only on the factors P(x_i | pa_i) of the ancestors A of targets and evidence, and of
those only on the ones connected to a target once the hard-observed nodes are cut out of the graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from unimarg.evidence import Evidence
from unimarg.network import Network


def ancestors(net: Network, nodes: Iterable[int]) -> set[int]:
    """The nodes themselves and everything above them."""
    seen: set[int] = set()
    stack = list(nodes)
    while stack:
        i = stack.pop()
        if i not in seen:
            seen.add(i)
            stack.extend(net.parents[i])
    return seen


def has_observed_descendant(net: Network, evidence: Evidence) -> NDArray[np.bool_]:
    """For each node, whether a finding lies below it; a virtual finding counts as an observed child.

    Where it is False, P(x_i | pa_i) is already the posterior given the parents.
    """
    below = np.zeros(len(net), dtype=bool)
    below[list(evidence.virtual)] = True
    for i in range(len(net) - 1, -1, -1):
        below[i] |= any(below[c] or c in evidence.hard for c in net.children[i])
    return below


def relevant(net: Network, evidence: Evidence, targets: Iterable[int]) -> set[int]:
    """The nodes whose factors P(x_i | pa_i) the posterior of the unobserved targets depends on.

    A parent that is not among them is observed: only its state matters.
    """
    wanted = {t for t in targets if t not in evidence.hard}
    kept = sorted(ancestors(net, wanted | evidence.nodes))
    scopes = [[v for v in (i, *net.parents[i]) if v not in evidence.hard] for i in kept]
    groups = [g for g in connected(scopes) if any(v in wanted for f in g for v in scopes[f])]
    return {kept[f] for group in groups for f in group}


def open_scopes(net: Network, evidence: Evidence, targets: Iterable[int]) -> dict[int, list[int]]:
    """Of each relevant node the variables of P(x_i | pa_i) that no hard finding decides."""
    kept = sorted(relevant(net, evidence, targets))
    return {i: [v for v in (*net.parents[i], i) if v not in evidence.hard] for i in kept}


def connected(scopes: Sequence[Sequence[int]]) -> list[list[int]]:
    """Positions of the scopes in groups that share no variable; an empty scope is in no group.

    >>> connected([[1], [1, 2], [3], []])
    [[0, 1], [2]]
    """
    root: dict[int, int] = {}

    def find(v: int) -> int:
        while root[v] != v:
            root[v] = v = root[root[v]]
        return v

    for scope in scopes:
        for v in scope:
            root.setdefault(v, v)
            root[find(v)] = find(scope[0])
    groups: dict[int, list[int]] = {}
    for position, scope in enumerate(scopes):
        if scope:
            groups.setdefault(find(scope[0]), []).append(position)
    return list(groups.values())
