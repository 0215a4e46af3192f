"""Elimination orders for junction trees: cliques found greedily by the fill they cause (Rose 1972, Kjaerulff 1990).

Eliminating v joins its neighbours into a clique {v} + N(v) of prod_u card(u) entries; the next v is the one with the
smallest sum over the missing edges (a, b) of log card(a) * log card(b).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence

HOPELESS = 2.0**50  # entries; no need to know how much worse it gets
CROWD = 48  # a node with more neighbours is left to the end: its clique has no hope, and scoring it is slow

Graph = dict[int, set[int]]


def moral_graph(scopes: Iterable[Iterable[int]]) -> Graph:
    """An edge between any two variables that share a factor."""
    graph: Graph = {}
    for scope in scopes:
        members = set(scope)
        for v in members:
            graph.setdefault(v, set()).update(members)
    for v, neighbours in graph.items():
        neighbours.discard(v)
    return graph


def cliques(
    graph: Graph, log_cards: Mapping[int, float] | Sequence[float], limit: float = HOPELESS, *, weighted: bool = True
) -> tuple[list[set[int]], float]:
    """The maximal cliques of a greedy elimination and the entries of all of them, which ends early once those exceed ``limit``.

    >>> square = moral_graph([(0, 1), (1, 2), (2, 3), (3, 0)])
    >>> cliques(square, [math.log(2)] * 4)[0]
    [{0, 1, 3}, {1, 2, 3}]
    """
    found, entries = eliminate(graph, log_cards, limit, weighted=weighted)
    return _maximal(found), entries


def eliminate(
    graph: Graph, log_cards: Mapping[int, float] | Sequence[float], limit: float = HOPELESS, *, weighted: bool = True
) -> tuple[dict[int, set[int]], float]:
    """The clique of every variable, in the order in which they go; see ``cliques``.

    With ``weighted=False`` every missing edge counts the same.
    """
    graph = {v: set(n) for v, n in graph.items()}

    def fill(v: int) -> list[tuple[int, int]]:
        neighbours = graph[v]
        return [(a, b) for a in neighbours for b in neighbours - graph[a] if a < b]

    def score(v: int) -> float:
        if len(graph[v]) > CROWD:
            return 1e9 * len(graph[v])
        return sum(log_cards[a] * log_cards[b] for a, b in fill(v)) if weighted else float(len(fill(v)))

    scores = {v: score(v) for v in sorted(graph)}
    queue = [(s, v) for v, s in scores.items()]
    heapq.heapify(queue)
    found: dict[int, set[int]] = {}
    entries = 0.0
    while queue:
        s, v = heapq.heappop(queue)
        if v in found or s != scores[v]:
            continue
        clique = {v, *graph[v]}
        entries += math.exp(min(sum(log_cards[u] for u in clique), 700.0))
        if entries > limit:
            break
        changed = set(graph[v])
        for a, b in fill(v):
            graph[a].add(b)
            graph[b].add(a)
            changed |= graph[a] & graph[b]
        for u in graph.pop(v):
            graph[u].discard(v)
        changed.discard(v)
        found[v] = clique
        for u in changed:
            scores[u] = score(u)
            heapq.heappush(queue, (scores[u], u))
    return found, entries


def _maximal(found: Mapping[int, set[int]]) -> list[set[int]]:
    """Without those that an earlier one contains: C_v less v lies in the clique of the next of its members to go."""
    when = {v: t for t, v in enumerate(found)}
    contained = set()
    for v, clique in found.items():
        rest = clique - {v}
        if rest:
            following = min(rest, key=lambda u: when.get(u, len(when)))
            if following in found and len(found[following]) == len(rest):
                contained.add(following)
    return [clique for v, clique in found.items() if v not in contained]


def quick_entries(graph: Graph, log_cards: Mapping[int, float] | Sequence[float], limit: float) -> float:
    """Entries of all cliques when always the variable with the smallest clique goes next: quick to find, seldom the best.

    Ends once they exceed ``limit``.

    >>> quick_entries(moral_graph([(0, 1), (1, 2)]), [math.log(2)] * 3, 1e9)
    10.0
    """
    graph = {v: set(n) for v, n in graph.items()}
    size = {v: log_cards[v] + sum(log_cards[u] for u in n) for v, n in graph.items()}
    queue = [(s, v) for v, s in size.items()]
    heapq.heapify(queue)
    total = 0.0
    while queue:
        s, v = heapq.heappop(queue)
        if v not in graph or s != size[v]:
            continue
        total += math.exp(min(s, 700.0))
        if total > limit:
            break
        neighbours = graph.pop(v)
        for u in neighbours:
            graph[u] |= neighbours
            graph[u] -= {u, v}
            size[u] = log_cards[u] + sum(log_cards[w] for w in graph[u])
            heapq.heappush(queue, (size[u], u))
    return round(total, 6)
