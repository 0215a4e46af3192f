"""Loopy belief propagation: a few rounds of Pearl's messages (1988) for many evidence sets at once.

Every node and its parents form a factor P(x_c | pa_c). In each round each factor tells each of its variables what it
has heard from the others, and a belief is the product of what a variable hears and its own evidence:

    message of c to v  =  sum over the others' states of P(x_c | pa_c) * prod over others u of (belief of u without c's message)

Messages and beliefs are logarithms against the first state, so that a binary node has one number.

Exact where the graph is a tree and nearly so where its loops are long: a good start for a network that learns the rest.
A table is contracted as it is. With P(X <= k | pa) = L(k) prod_j F_j(k | pa_j) a noisy-max of independent parents needs no table:

    P(X <= k) = L(k) prod_j E[F_j(k | pa_j)],    to parent j in state s:  sum over k of lambda(k) P(X = k | pa_j = s)

With ``pairs`` beliefs of noisy-ors are corrected in the end by what others with the same parents say (``pairs.py``).
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from unimarg.layout import power_of_two
from unimarg.network import Ints, Network, NoisyMax
from unimarg.pairs import Pairs, log_parts, log_r, make_pairs
from unimarg.ragged import Parts, Ragged

NEVER = -30.0  # the logarithm of what is impossible
TINY = 1e-13  # about exp(NEVER)
LEAST = 1e-37  # of a likelihood, and of a message before it is scaled
NEGLIGIBLE = -69.0  # the logarithm of a probability that need not be told from smaller ones, but from 0
MOST = 20.0  # log of the likeliest state over any other
UNROLLED = 8  # terms of a sum that are written out: a CPU is slow to add along other axes than the last
CERTAIN, SHRINK = -1e-7, 0.25  # log P(X = 0) of a noisy-or: the largest; what pairs leave of it at least, for they rule nothing out
WASTE = 160  # rows of padding that cost less than another operation
ROWS_ENTRIES, ROWS_ENTRIES_ACCELERATED = 1 << 26, 1 << 29  # of factors and messages, for the rows taken at once


class Sums:
    """Sums of rows by target, as gathers and not as scatters: in the same order on every device, each time. Rows of no target have -1."""

    def __init__(self, targets: Ints, count: int):
        rows = np.argsort(targets, kind="stable")[(targets < 0).sum() :]
        degree = np.bincount(targets[rows], minlength=count)
        start = np.concatenate([[0], np.cumsum(degree)])
        self.classes = []  # of targets with about as many rows: [targets, padded degree], and 1 where there is one, 0 where not
        order = []
        padded = padded_degrees(degree)
        for w in np.unique(padded):
            members = np.flatnonzero(padded == w)
            there = np.arange(w) < degree[members][:, None]
            at = np.where(there, start[members][:, None] + np.arange(w), 0)
            chosen = rows[at] if len(rows) else at
            self.classes.append((chosen.astype(np.int32), None if there.all() else there.astype(np.float32)))
            order.append(members)
        self.place = np.argsort(np.concatenate(order)).astype(np.int32)

    def __call__(self, rows: jax.Array, combine: Callable[[jax.Array, jax.Array], jax.Array] = operator.add) -> jax.Array:
        """Or what another function of two makes of them, to which a row of zeros adds nothing."""
        sums = []
        for at, there in self.classes:
            if not at.size:
                sums.append(jnp.zeros((len(at), *rows.shape[1:]), rows.dtype))
                continue
            taken = gathered(rows, jnp.asarray(at.ravel())).reshape(*at.shape, *rows.shape[1:])
            sums.append(_sum(taken if there is None else taken * there.reshape(*at.shape, *[1] * (rows.ndim - 1)), combine))
        return gathered(jnp.concatenate(sums), jnp.asarray(self.place))


def _sum(a: jax.Array, combine: Callable[[jax.Array, jax.Array], jax.Array] = operator.add) -> jax.Array:
    """Over the second axis, by halves: a CPU is slow to add along other axes than the last."""
    while a.shape[1] > 1:
        half = a.shape[1] // 2
        odd = a[:, 2 * half :]
        a = combine(a[:, :half], a[:, half : 2 * half])
        a = a.at[:, :1].set(combine(a[:, :1], odd)) if odd.shape[1] else a
    return a[:, 0]


def _stronger(a: jax.Array, b: jax.Array) -> jax.Array:
    """Whichever is further from 0."""
    return jnp.where(jnp.abs(a) >= jnp.abs(b), a, b)


def gathered(array: jax.Array, rows: jax.Array) -> jax.Array:
    """array[rows], which are all there: a device need not look. Faster than ``take_rows`` behind the barriers here, slower in batches."""
    return array.at[rows].get(mode="promise_in_bounds")


def padded_degrees(degree: Ints) -> Ints:
    """Each rounded up so that there are few different ones, as long as the padding of a class stays below ``WASTE`` in all."""
    power = 2 ** np.ceil(np.log2(np.maximum(degree, 1))).astype(int)
    padded = np.where(degree > 0, np.where((power > 3) & (degree <= power // 4 * 3), power // 4 * 3, power), 0)
    levels = np.unique(padded)
    for level, above in itertools.pairwise(levels.tolist()):
        members = padded == level
        if (above - degree[members]).sum() <= WASTE:
            padded[members] = above
    return padded


class Arcs(NamedTuple):
    """Arcs into noisy-max nodes of one width that have about as many parents of one width: as many for each, some of no effect."""

    parents: int  # the width of the parents
    first: int  # number of the first message to a parent, among those of that width
    child: Ints  # [nodes], among the noisy nodes of their width
    factors: np.ndarray  # float32 [nodes, arcs of each, width of the parents, width - 1]: F by the parent's state


@dataclass(frozen=True, eq=False)
class Noisy:
    """All noisy-max nodes of one width; the last state's cumulative probability is 1 and left out."""

    width: int
    leak: np.ndarray  # float32 [nodes, width - 1]: log L
    arcs: list[Arcs]
    first: int  # number of the first message to a node itself, among those of its width
    sums: Sums  # over the children of all arcs, by node


Widths = dict[int, jax.Array]  # for each width [messages or nodes, width - 1, n]


class Propagation:
    """Messages of a network's factors; ``rounds`` of them.

    Numbers of states are padded to powers of two, ``width``, so that few shapes are few operations and soon compiled. Everything is
    kept apart by width: a network of many binary nodes does not pay for its largest one.
    """

    def __init__(self, net: Network, rounds: int, pairs: bool = False):
        self.net = net
        self.ragged, self.rounds = Ragged(tuple(net.cards.tolist())), rounds
        widths = np.array([power_of_two(int(k)) for k in net.cards])
        self.counts = {int(w): int((widths == w).sum()) for w in np.unique(widths)}  # nodes, in the order of ``ragged``
        start = dict(zip(self.counts, np.cumsum([0, *self.counts.values()]).tolist(), strict=False))
        self.place = self.ragged.place - np.array([start[int(w)] for w in widths])  # of each node among those of its width
        targets: dict[int, list[int]] = {w: [] for w in self.counts}
        self.own = {w: np.zeros(n, np.int64) for w, n in self.counts.items()}  # number of the message that a node's own factor sends to it
        self.tables = [self._stacked(members, shape, targets) for shape, members in self._shapes().items()]
        self.tabled = {w: len(found) for w, found in targets.items()}  # messages of tables, which come first
        self.noisy = [n for w in self.counts if (n := self._noisy(w, targets)) is not None]
        self.targets = {w: np.array(found, np.int64) for w, found in targets.items()}
        self.sums = {w: Sums(found, self.counts[w]) for w, found in self.targets.items()}
        self.pairs = self._pairs() if pairs else None
        # what a row takes
        arcs = sum(a.factors.size for n in self.noisy for a in n.arcs) + (0 if self.pairs is None else 8 * len(self.pairs.pair))
        self.entries = float(sum(t.size for _, t in self.tables) + arcs + 8 * sum(w * len(found) for w, found in targets.items()))

    def __hash__(self) -> int:
        return hash((self.rounds, self.ragged))

    def __eq__(self, other: object) -> bool:
        """Of equal networks: their programs are the same, and compiled once."""
        if self is other or not isinstance(other, Propagation):
            return self is other
        return (self.rounds, self.pairs is None) == (other.rounds, other.pairs is None) and self.net == other.net

    def _shapes(self) -> dict[tuple[int, ...], list[int]]:
        """Nodes with tables, by the sorted widths of their axes."""
        shapes: dict[tuple[int, ...], list[int]] = {}
        for i, m in enumerate(self.net.mechanisms):
            if not isinstance(m, NoisyMax):
                shapes.setdefault(tuple(sorted(map(power_of_two, (*m.parent_cards, m.card)))), []).append(i)
        return shapes

    def _stacked(self, members: list[int], shape: tuple[int, ...], targets: dict[int, list[int]]) -> tuple[list[int], np.ndarray]:
        """The number of the first message to each axis, and the tables ``[n, *shape]``; padded with impossible states."""
        tables = np.zeros((len(members), *shape), np.float32)
        scopes = np.zeros((len(members), len(shape)), int)
        last = np.zeros(len(members), int)  # the axis of the node itself
        for at, i in enumerate(members):
            table, scope = self.net.mechanisms[i].expand(), np.array([*self.net.parents[i], i])
            axes = np.argsort(table.shape, kind="stable")
            tables[(at, *(slice(k) for k in np.take(table.shape, axes)))] = table.transpose(axes)
            scopes[at] = self.place[scope[axes]]
            last[at] = np.argmax(axes)
        first = [_numbered(targets[w], to) for w, to in zip(shape, scopes.T.tolist(), strict=True)]
        for at, (i, axis) in enumerate(zip(members, last.tolist(), strict=True)):
            self.own[shape[axis]][self.place[i]] = first[axis] + at
        return first, tables

    def _noisy(self, width: int, targets: dict[int, list[int]]) -> Noisy | None:
        """Noisy-max nodes of a width, if there are any."""
        mechanisms = enumerate(self.net.mechanisms)
        nodes = [(i, m) for i, m in mechanisms if isinstance(m, NoisyMax) and power_of_two(m.card) == width]
        if not nodes:
            return None
        leak = np.zeros((len(nodes), width - 1), np.float32)
        # by their width, for each node: which of its parents
        parents: dict[int, list[list[int]]] = {int(w): [[] for _ in nodes] for w in self.counts}
        for at, (_, m) in enumerate(nodes):
            log_leak = m.log_cdfs[0]
            leak[at, : m.card - 1] = np.maximum(log_leak[:-1], NEVER)
            for j, k in enumerate(m.parent_cards):
                parents[power_of_two(k)][at].append(j)
        arcs = []
        for w, each in sorted(parents.items()):
            degree = np.array([len(js) for js in each])
            padded = padded_degrees(degree)
            for d in np.unique(padded[degree > 0]).tolist():
                child = np.flatnonzero((padded == d) & (degree > 0))
                arcs.append(self._arcs([nodes[at] for at in child], [each[at] for at in child], child, (d, w, width - 1), targets))
        places = self.place[[i for i, _ in nodes]]
        first = _numbered(targets[width], places.tolist())
        self.own[width][places] = first + np.arange(len(nodes))
        children = np.concatenate([np.zeros(0, int), *(a.child for a in arcs)])
        return Noisy(width, leak, arcs, first, Sums(children, len(nodes)))

    def _arcs(
        self,
        nodes: list[tuple[int, NoisyMax]],
        parents: list[list[int]],
        child: Ints,
        shape: tuple[int, int, int],
        targets: dict[int, list[int]],
    ) -> Arcs:
        factors = np.ones((len(nodes), *shape), np.float32)
        to = np.full((len(nodes), shape[0]), -1)
        for at, ((i, m), members) in enumerate(zip(nodes, parents, strict=True)):
            for n, j in enumerate(members):
                factors[at, n, : m.parent_cards[j], : m.card - 1] = np.exp(m.log_cdfs[1][j][:, :-1])
                to[at, n] = self.place[self.net.parents[i][j]]
        return Arcs(shape[1], _numbered(targets[shape[1]], to.ravel().tolist()), child, factors)

    def _pairs(self) -> Pairs | None:
        """Of binary noisy-ors with common binary parents, if there are any; arcs are numbers of messages."""
        noisy = next((n for n in self.noisy if n.width == 2), None)
        if noisy is None:
            return None
        arcs = [a for a in noisy.arcs if a.parents == 2]
        child = np.concatenate([np.zeros(0, np.int64), *(np.repeat(a.child, a.factors.shape[1]) for a in arcs)])
        message = np.concatenate([np.zeros(0, np.int64), *(a.first + np.arange(a.factors.shape[0] * a.factors.shape[1]) for a in arcs)])
        quiet = np.concatenate([np.zeros(0), *(a.factors[:, :, 1, 0].ravel() for a in arcs)])
        parent = self.targets[2][message]
        real = parent >= 0  # the others are padding
        child, message, quiet, parent = child[real], message[real], quiet[real], parent[real]
        of = {int(place): n for n, place in enumerate(self.targets[2][noisy.first : noisy.first + len(noisy.leak)])}
        above = {(c, of[p]) for c, p in zip(child.tolist(), parent.tolist(), strict=True) if p in of}
        found = make_pairs(child, parent, quiet, above | {(p, c) for c, p in above})
        return None if found is None else found._replace(arcs=(message[found.arcs[0]], message[found.arcs[1]]))

    def logits(self, known: jax.Array, values: Parts, accelerated: bool) -> dict[str, jax.Array]:
        """What a head starts from, against each node's first state, ``[n, slots]``, from what is known ``[n, nodes]`` and its likelihoods.

        marginal: beliefs; message: lambda, what a node's children say of it and its own evidence.
        """
        most = (ROWS_ENTRIES_ACCELERATED if accelerated else ROWS_ENTRIES) / self.entries
        return by_blocks(lambda block: self._logits(*block), (known, values), most)

    def _logits(self, known: jax.Array, values: Parts) -> dict[str, jax.Array]:
        evidence = self._evidence(known, values)
        start = {w: jnp.zeros((len(found), w - 1, known.shape[0])) for w, found in self.targets.items()}
        messages = lax.fori_loop(0, self.rounds, lambda _, old: self._round(evidence, old), start)
        beliefs = lax.optimization_barrier({w: e + self.sums[w](messages[w]) for w, e in evidence.items()})
        below = {w: b - gathered(messages[w], jnp.asarray(self.own[w])) for w, b in beliefs.items()}
        if self.pairs is not None:
            beliefs[2] = self._corrected(self.pairs, beliefs, messages)
        return {"marginal": self._slots(beliefs), "message": self._slots(below)}

    def _corrected(self, pairs: Pairs, beliefs: Widths, messages: Widths) -> jax.Array:
        """Beliefs of binary nodes, those of noisy-ors by what others with the same parents say."""
        noisy = next(n for n in self.noisy if n.width == 2)
        heard = self._heard(beliefs, messages)
        own, _, log_cdf = _cumulative(noisy, heard)
        to_s, to_f = (jnp.asarray(a) for a in pairs.arcs)
        given = gathered(heard[2][:, 0], to_s)
        each = log_parts(given, given - gathered(messages[2][:, 0], to_f), pairs.quiet)
        by_pair, by_node = Sums(pairs.pair, len(pairs.of)), Sums(pairs.of, len(noisy.leak))
        log_a, log_b = (by_pair(part) for part in lax.optimization_barrier(each))
        by = jnp.asarray(pairs.by)
        more = by_node(log_r(log_a, log_b, gathered(log_cdf[:, 0], by), gathered(own, by)), _stronger)
        before = jnp.minimum(log_cdf[:, 0], CERTAIN)
        after = jnp.minimum(before + more, before * SHRINK)
        change = _log_odds(after) - _log_odds(before)
        place = np.full(self.counts[2], -1)
        place[self.targets[2][noisy.first : noisy.first + len(noisy.leak)]] = np.arange(len(noisy.leak))
        changes = jnp.concatenate([change, jnp.zeros_like(change[:1])])
        return beliefs[2] - gathered(changes, jnp.asarray(np.where(place < 0, len(noisy.leak), place)))[:, None]

    def _slots(self, of: Widths) -> jax.Array:
        """Nodes of each width side by side, ``[n, slots]``."""
        out, at = [], dict.fromkeys(self.counts, 0)
        for k, count in self.ragged.groups:
            w = power_of_two(k)
            part = of[w][at[w] : at[w] + count, : k - 1]
            likeliest = jnp.maximum(part.max(axis=1, keepdims=True), 0) if k > 1 else 0.0
            part = jnp.maximum(part - likeliest, -MOST) - jnp.maximum(-likeliest, -MOST)
            out.append(part.reshape(count * (k - 1), part.shape[-1]))
            at[w] += count
        return jnp.concatenate(out).T

    def _evidence(self, known: jax.Array, values: Parts) -> Widths:
        """Log likelihoods of the nodes, ``[nodes, width - 1, n]``; states that a node lacks are impossible."""
        rows: dict[int, Parts] = {w: [] for w in self.counts}
        for flag, value in zip(self.ragged.nodes(known), values, strict=True):
            log = jnp.log(jnp.maximum(value, LEAST))  # stronger than a message: what is observed is believed
            log = jnp.where(flag[..., None], log[..., 1:] - log[..., :1], 0)
            w = power_of_two(value.shape[-1])
            rows[w].append(jnp.pad(log, ((0, 0), (0, 0), (0, w - value.shape[-1])), constant_values=2 * NEVER))
        return {w: jnp.moveaxis(lax.optimization_barrier(jnp.concatenate(parts, axis=1)), 0, -1) for w, parts in rows.items()}

    def _heard(self, beliefs: Widths, messages: Widths) -> Widths:
        """What the variables that messages go to have heard from all others."""
        to = {w: jnp.asarray(np.maximum(targets, 0)) for w, targets in self.targets.items()}
        return {w: lax.optimization_barrier(gathered(beliefs[w], to[w]) - sent) for w, sent in messages.items()}

    def _round(self, evidence: Widths, old: Widths) -> Widths:
        heard = self._heard({w: lax.optimization_barrier(evidence[w] + self.sums[w](sent)) for w, sent in old.items()}, old)
        new: dict[int, Parts] = {w: [] for w in old}
        sure = {w: lax.optimization_barrier(_probabilities(h[: self.tabled[w]])) for w, h in heard.items()}
        for first, table in self.tables:
            for w, message in zip(table.shape[1:], _table_messages(first, table, sure), strict=True):
                new[w].append(message)
        for noisy in self.noisy:
            for w, message in _noisy_messages(noisy, heard):
                new[w].append(message)
        return lax.optimization_barrier({w: jnp.concatenate(parts) for w, parts in new.items()})


def _numbered(targets: list[int], more: list[int]) -> int:
    """Further messages; the number of the first."""
    targets += more
    return len(targets) - len(more)


def _probabilities(logits: jax.Array) -> jax.Array:
    """``[..., width, n]`` from ``[..., width - 1, n]``."""
    if logits.shape[-2] == 1:
        return jnp.concatenate([jax.nn.sigmoid(-logits), jax.nn.sigmoid(logits)], axis=-2)
    return jax.nn.softmax(jnp.pad(logits, [(0, 0)] * (logits.ndim - 2) + [(1, 0), (0, 0)]), axis=-2)


def _log_ratios(message: jax.Array) -> jax.Array:
    """The inverse, ``[messages, width - 1, n]``, for numbers that need not add up to 1."""
    largest = jnp.maximum(message.max(axis=1, keepdims=True), LEAST)
    if message.shape[1] == 2:  # one logarithm
        first, second = (jnp.maximum(message[:, k : k + 1] / largest, TINY) for k in range(2))
        return jnp.log(second / first)
    log = jnp.log(jnp.maximum(message / largest, TINY))
    return log[:, 1:] - log[:, :1]


def _table_messages(first: list[int], table: np.ndarray, heard: Widths) -> list[jax.Array]:
    """``[tables, K - 1, n]`` for each axis, from probabilities ``[messages, K, n]``."""
    shape = table.shape[1:]
    given = [heard[w][at : at + len(table)] for at, w in zip(first, shape, strict=True)]
    sums = _but_one(jnp.asarray(table)[..., None], tuple(range(len(shape))), given)
    return [_log_ratios(jnp.broadcast_to(part, (len(table), *part.shape[1:-1], given[0].shape[-1]))) for part in sums]


def _but_one(table: jax.Array, axes: tuple[int, ...], given: list[jax.Array]) -> list[jax.Array]:
    """The table, which has these axes, summed over all but one of them, for each: by halves, whose sums have most of the work in common."""
    if len(axes) == 1:
        return [table]
    half = len(axes) // 2
    left, right = axes[:half], axes[half:]
    to_left, to_right = table, table
    for axis in reversed(right):
        to_left = _contracted(to_left, to_left.ndim - 2, given[axis])
    for axis in left:
        to_right = _contracted(to_right, 1, given[axis])
    return _but_one(to_left, left, given) + _but_one(to_right, right, given)


def _contracted(table: jax.Array, axis: int, given: jax.Array) -> jax.Array:
    """Summed over an axis with weights ``[tables, K, n]``; few and long axes are what compilers like."""
    shape = table.shape
    wide = table.reshape(shape[0], math.prod(shape[1:axis]), shape[axis], math.prod(shape[axis + 1 : -1]), shape[-1])
    if shape[-1] == 1:  # the same for all rows: a product of matrices
        out = jnp.einsum("tbka,tkn->tban", wide[..., 0], given, precision=lax.Precision.HIGHEST)
    else:
        out = functools.reduce(operator.add, (wide[:, :, k] * given[:, None, k, None] for k in range(shape[axis])))
    return out.reshape(*shape[:axis], *shape[axis + 1 : -1], -1)


def _log_odds(log_p: jax.Array) -> jax.Array:
    return log_p - jnp.log(-jnp.expm1(log_p))


def _cumulative(noisy: Noisy, heard: Widths) -> tuple[jax.Array, list[jax.Array], jax.Array]:
    """What else is known of the nodes ``[nodes, width, n]``; log E[F] of each arc; by all log P(X <= k) ``[nodes, width - 1, n]``."""
    own = _probabilities(heard[noisy.width][noisy.first : noisy.first + len(noisy.leak)])  # [nodes, width, n]
    n = own.shape[-1]
    logs, partial = [], [jnp.zeros((0, noisy.width - 1, n))]
    for arcs in noisy.arcs:
        children, each, parent_states = arcs.factors.shape[:3]
        parents = heard[arcs.parents][arcs.first : arcs.first + children * each].reshape(children, each, parent_states - 1, n)
        logs.append(lax.optimization_barrier(_log_expected(parents, arcs.factors)))  # [children, each, steps, n]
        partial.append(_sum(logs[-1]))
    return own, logs, noisy.sums(jnp.concatenate(partial)) + jnp.asarray(noisy.leak)[..., None]


def _noisy_messages(noisy: Noisy, heard: Widths) -> Iterator[tuple[int, jax.Array]]:
    """To all parents, and to the nodes themselves, each with its width."""
    own, logs, log_cdf = _cumulative(noisy, heard)
    last, falls, log_cdf = lax.optimization_barrier((own[:, -1:], own[:, :-1] - own[:, 1:], log_cdf))
    for arcs, log in zip(noisy.arcs, logs, strict=True):
        # sum over k of lambda(k) P(X = k) = lambda(last) + sum over k < last of P(X <= k) (lambda(k) - lambda(k + 1))
        cdf, fall, least = (gathered(a, jnp.asarray(arcs.child))[:, None] for a in (log_cdf, falls, last))
        others = jnp.exp(jnp.maximum(cdf - log, NEGLIGIBLE))
        up = least + _sum_products(fall * others, jnp.asarray(arcs.factors.swapaxes(2, 3)))
        yield arcs.parents, _log_ratios(jnp.maximum(up, 0).reshape(-1, *up.shape[2:]))
    lower, upper = (jnp.pad(log_cdf, ((0, 0), side, (0, 0)), constant_values=v) for side, v in (((1, 0), 4 * NEVER), ((0, 1), 0)))
    pmf = -jnp.expm1(jnp.minimum(lower - upper, 0)) * jnp.exp(upper)
    yield noisy.width, _log_ratios(pmf)


def _log_expected(logits: jax.Array, factors: np.ndarray) -> jax.Array:
    """log E[F], ``[..., K, n]``, with F ``[..., J, K]`` and the parents' logits ``[..., J - 1, n]``."""
    if logits.shape[-2] > 1:
        return jnp.log(jnp.maximum(_sum_products(_probabilities(logits), jnp.asarray(factors)), TINY))
    quiet, loud = jnp.asarray(factors[..., 1, :, None]), jnp.asarray(1 - factors[..., 1, :, None])  # F = 1 for the first state
    absent, there = jax.nn.sigmoid(-logits), jax.nn.sigmoid(logits)
    return _log_one_less(there * loud, jnp.maximum(absent + there * quiet, TINY))


def _log_one_less(x: jax.Array, rest: jax.Array) -> jax.Array:
    """log(1 - x) with all its digits, from x and ``rest``, which is 1 - x where that is small; one logarithm (Kahan 1987)."""
    near = jnp.where(x < 0.5, 1 - x, rest)
    log = jnp.log(near)
    return jnp.where(x < 0.5, jnp.where(near == 1, -x, log * (x / (1 - near))), log)


def _sum_products(a: jax.Array, b: jax.Array) -> jax.Array:
    """sum over j of a[j] b[j], ``[..., K, n]`` from ``[..., J, n]`` and ``[..., J, K]``, term by term where these are few."""
    if a.shape[-2] > UNROLLED:
        return (a[..., None, :] * b[..., None]).sum(axis=-3)
    terms = (a[..., j, None, :] * b[..., j, :, None] for j in range(a.shape[-2]))
    return functools.reduce(operator.add, terms)


def by_blocks(function: Any, rows: Any, most: float) -> Any:
    """function(rows), arrays with a first axis of rows, for at most so many rows at once."""
    n = jax.tree.leaves(rows)[0].shape[0]
    size = 1 << int(np.log2(max(most, 1)))
    if n <= size:
        return function(rows)
    while n % size:
        size //= 2
    blocks = jax.tree.map(lambda a: a.reshape(-1, size, *a.shape[1:]), rows)
    return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), lax.map(function, blocks))
