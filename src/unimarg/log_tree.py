"""Propagation in a junction tree whose numbers are logarithms: slower than pyAgrum's, and nothing is too small for it.

Leaves to root, a message is the log-sum-exp of its clique over what the next one does not share, scaled to a maximum of 0. On the
way back a clique holds its posterior, where what is below 1e-308 of the whole may be lost, and what it tells a clique below is its
marginal divided by what that clique told it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import TypeAlias

import numpy as np

from unimarg.network import Floats

LogFactor: TypeAlias = tuple[tuple[int, ...], Floats]  # variables, ascending, and a logarithm for each of their states


def log_factor(variables: Sequence[int], log: Floats) -> LogFactor:
    """With its variables in ascending order."""
    order = sorted(range(len(variables)), key=variables.__getitem__)
    return tuple(variables[k] for k in order), log.transpose(order)


def propagate(
    cliques: Mapping[int, Set[int]], neighbours: Mapping[int, Iterable[int]], factors: Iterable[LogFactor], targets: Iterable[int]
) -> tuple[float, dict[int, Floats]]:
    """The logarithm of the sum of the product of all factors, and the targets' marginals; none where the sum is zero."""
    scopes = {c: tuple(sorted(members)) for c, members in cliques.items()}
    held: dict[int, list[LogFactor]] = {c: [] for c in cliques}
    home = _homes(cliques)
    cards: dict[int, int] = {}
    for variables, log in factors:
        held[home(variables)].append((variables, log))
        cards |= zip(variables, log.shape, strict=True)
    order, above = _rooted(neighbours)
    total = 0.0
    told: dict[int, LogFactor] = {}
    for c in reversed(order):
        shared = tuple(v for v in scopes[c] if v in cliques[above[c]]) if c in above else ()
        message = _log_sum(scopes[c], _product(scopes[c], held[c], cards), shared)
        top = float(message.max())
        if top == -np.inf:
            return -np.inf, {}
        total += top
        if c in above:
            message -= top
            told[c] = shared, message
            held[above[c]].append(told[c])
    wanted: dict[int, list[int]] = {c: [] for c in cliques}
    for t in targets:
        wanted[home((t,))].append(t)
    marginals: dict[int, Floats] = {}
    for c in order:
        weights = _product(scopes[c], held.pop(c), cards)
        weights -= weights.max()
        np.exp(weights, out=weights)  # large tables are worked on in place
        weights /= weights.sum()
        for t in wanted[c]:
            marginals[t] = _sum(scopes[c], weights, (t,))
        for k in (k for k in neighbours[c] if above.get(k) == c):
            shared, message = told.pop(k)
            said = _sum(scopes[c], weights, shared)
            with np.errstate(divide="ignore"):
                np.log(said, out=said)
            np.subtract(said, message, out=said, where=message > -np.inf)  # what the clique below ruled out stays so anyway
            held[k].append((shared, said))
    return total, marginals


def _homes(cliques: Mapping[int, Set[int]]) -> Callable[[tuple[int, ...]], int]:
    """A function from some variables to the smallest clique that holds them all."""
    by_variable: dict[int, list[int]] = {}
    for c in sorted(cliques, key=lambda c: len(cliques[c])):
        for v in cliques[c]:
            by_variable.setdefault(v, []).append(c)
    anywhere = next(iter(cliques))

    def home(variables: tuple[int, ...]) -> int:
        among = min((by_variable[v] for v in variables), key=len, default=[anywhere])
        return next(c for c in among if cliques[c] >= set(variables))

    return home


def _rooted(neighbours: Mapping[int, Iterable[int]]) -> tuple[list[int], dict[int, int]]:
    """The cliques, each after the one above it, and that one."""
    order: list[int] = []
    above: dict[int, int] = {}
    seen: set[int] = set()
    for root in neighbours:
        stack = [] if root in seen else [root]
        seen.add(root)
        while stack:
            c = stack.pop()
            order.append(c)
            for k in neighbours[c]:
                if k not in seen:
                    seen.add(k)
                    above[k] = c
                    stack.append(k)
    return order, above


def _product(scope: tuple[int, ...], factors: Sequence[LogFactor], cards: Mapping[int, int]) -> Floats:
    total = np.zeros([cards[v] for v in scope])
    for variables, log in factors:
        total += log.reshape([cards[v] if v in variables else 1 for v in scope])
    return total


def _sum(scope: tuple[int, ...], values: Floats, kept: tuple[int, ...]) -> Floats:
    return np.asarray(values.sum(axis=tuple(k for k, v in enumerate(scope) if v not in kept)))


def _log_sum(scope: tuple[int, ...], log: Floats, kept: tuple[int, ...]) -> Floats:
    """log sum exp over all variables but those kept; ``log`` is used up."""
    top = log.max(axis=tuple(k for k, v in enumerate(scope) if v not in kept), keepdims=True)
    top = np.where(top > -np.inf, top, 0.0)
    log -= top
    with np.errstate(divide="ignore"):
        total = np.asarray(np.log(_sum(scope, np.exp(log, out=log), kept)))
    total += top.reshape(total.shape)
    return total
