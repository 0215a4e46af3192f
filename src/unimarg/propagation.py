"""Loopy belief propagation: a few rounds of Pearl's messages (1988) for many evidence sets at once.

Every node and its parents form a factor P(x_c | pa_c). In each round each factor tells each of its variables what it
has heard from the others, and a belief is the product of what a variable hears and its own evidence:

    message of c to v  =  sum over the others' states of P(x_c | pa_c) * prod over others u of (belief of u without c's message)

Exact where the graph is a tree and nearly so where its loops are long: a good start for a network that learns the rest.
A table is contracted as it is. With P(X <= k | pa) = L(k) prod_j F_j(k | pa_j) a noisy-max of independent parents needs no table:

    P(X <= k) = L(k) prod_j E[F_j(k | pa_j)],    to parent j in state s:  sum over k of lambda(k) P(X = k | pa_j = s)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from unimarg.layout import power_of_two
from unimarg.network import Ints, Network, NoisyMax
from unimarg.ragged import Parts, Ragged

NEVER = -30.0  # the logarithm of what is impossible
TINY = 1e-13  # about exp(NEVER)
MOST = 20.0  # the largest logit
ROWS_ENTRIES, ROWS_ENTRIES_ACCELERATED = 1 << 24, 1 << 29  # of factors and messages, for the rows taken at once


class Sums:
    """Sums of rows by target, as gathers and not as scatters: in the same order on every device, each time."""

    def __init__(self, targets: Ints, count: int):
        degree = np.bincount(targets, minlength=count)
        start = np.concatenate([[0], np.cumsum(degree)])
        rows = np.argsort(targets, kind="stable")
        width = np.where(degree > 0, 2 ** np.ceil(np.log2(np.maximum(degree, 1))), 0).astype(int)
        self.classes = []  # of targets with about as many rows: [targets, width], padded with the row after the last
        order = []
        for w in np.unique(width):
            members = np.flatnonzero(width == w)
            at = start[members][:, None] + np.arange(w)
            padded = np.where(np.arange(w) < degree[members][:, None], rows[np.minimum(at, len(rows) - 1)] if len(rows) else 0, len(rows))
            self.classes.append(padded.astype(np.int32))
            order.append(members)
        self.place = np.argsort(np.concatenate(order)).astype(np.int32)

    def __call__(self, rows: jax.Array) -> jax.Array:
        padded = jnp.pad(rows, [(0, 1)] + [(0, 0)] * (rows.ndim - 1))
        return jnp.concatenate([padded[c].sum(axis=1) for c in self.classes])[self.place]


@dataclass(frozen=True, eq=False)
class Noisy:
    """All noisy-max nodes of a network, arc by arc; the last state's cumulative probability is 1 and left out."""

    child: Ints  # [arcs], among the noisy nodes
    heard: Ints  # [arcs]: number of the message to the parent
    own: Ints  # [nodes]: number of the message to the node itself
    leak: np.ndarray  # float32 [nodes, card - 1]: log L
    factors: np.ndarray  # float32 [arcs, card, card - 1]: F by the parent's state
    sums: Sums


class Propagation:
    """Messages of a network's factors; ``rounds`` of them."""

    def __init__(self, net: Network, rounds: int):
        self.net = net
        self.ragged, self.rounds, self.card = Ragged(tuple(net.cards.tolist())), rounds, power_of_two(int(net.cards.max()))
        targets: list[int] = []
        shapes: dict[tuple[int, ...], list[int]] = {}
        for i, m in enumerate(net.mechanisms):
            if not isinstance(m, NoisyMax):
                # few shapes are few operations, and soon compiled: cards are padded with impossible states, and axes sorted
                shapes.setdefault(tuple(sorted(map(power_of_two, (*m.parent_cards, m.card)))), []).append(i)
        self.tables = []  # (number of the first message of each axis, tables [n, *shape])
        for shape, members in shapes.items():
            tables = np.zeros((len(members), *shape), np.float32)
            scopes = np.zeros((len(members), len(shape)), int)
            for at, i in enumerate(members):
                table, scope = net.mechanisms[i].expand(), np.array([*net.parents[i], i])
                axes = np.argsort(table.shape, kind="stable")
                tables[(at, *(slice(k) for k in np.take(table.shape, axes)))] = table.transpose(axes)
                scopes[at] = self.ragged.place[scope[axes]]
            first = [len(targets) + a * len(members) for a in range(len(shape))]
            targets += scopes.T.ravel().tolist()
            self.tables.append((first, tables))
        self.noisy = self._noisy(net, targets)
        self.targets = np.array(targets, np.int64)
        self.sums = Sums(self.targets, len(net))
        # what a row takes
        self.entries = float(sum(t.size for _, t in self.tables) + 8 * self.card * len(targets))

    def __hash__(self) -> int:
        return hash((self.rounds, self.ragged))

    def __eq__(self, other: object) -> bool:
        """Of equal networks: their programs are the same, and compiled once."""
        return self is other or (isinstance(other, Propagation) and self.rounds == other.rounds and self.net == other.net)

    def _noisy(self, net: Network, targets: list[int]) -> Noisy | None:
        nodes = [(i, m) for i, m in enumerate(net.mechanisms) if isinstance(m, NoisyMax)]
        if not nodes:
            return None
        below, leak = self.card - 1, np.zeros((len(nodes), self.card - 1))
        child, parents, factors = [], [], []
        for at, (i, m) in enumerate(nodes):
            log_leak, log_factors = m.log_cdfs
            leak[at, : m.card - 1] = np.maximum(log_leak[:-1], NEVER)
            for p, f in zip(net.parents[i], log_factors, strict=True):
                full = np.ones((self.card, below))
                full[: len(f), : m.card - 1] = np.exp(f[:, :-1])
                child.append(at)
                parents.append(p)
                factors.append(full)
        heard = len(targets) + np.arange(len(child))
        targets += self.ragged.place[np.array(parents, int)].tolist()
        own = len(targets) + np.arange(len(nodes))
        targets += self.ragged.place[np.array([i for i, _ in nodes])].tolist()
        arcs = np.array(child, int)
        stacked = np.stack(factors) if factors else np.ones((0, self.card, below))
        return Noisy(arcs, heard, own, leak.astype(np.float32), stacked.astype(np.float32), Sums(arcs, len(nodes)))

    def logits(self, known: jax.Array, values: Parts, accelerated: bool) -> jax.Array:
        """Beliefs against each node's first state, ``[n, slots]``, from what is known ``[n, nodes]`` and its likelihoods."""
        most = (ROWS_ENTRIES_ACCELERATED if accelerated else ROWS_ENTRIES) / self.entries
        return by_blocks(lambda block: self._logits(*block), (known, values), most)

    def _logits(self, known: jax.Array, values: Parts) -> jax.Array:
        rows = []
        for flag, value in zip(self.ragged.nodes(known), values, strict=True):
            log = jnp.where(flag[..., None], jnp.log(jnp.maximum(value, TINY)), 0)
            rows.append(jnp.pad(log, ((0, 0), (0, 0), (0, self.card - log.shape[-1])), constant_values=2 * NEVER))
        evidence = jnp.moveaxis(lax.optimization_barrier(jnp.concatenate(rows, axis=1)), 0, -1)  # [nodes, card, n]
        start = jnp.zeros((len(self.targets), self.card, known.shape[0]))
        messages = lax.fori_loop(0, self.rounds, lambda _, old: self._round(evidence, old), start)
        beliefs = lax.optimization_barrier(evidence + self.sums(messages))
        out, at = [], 0
        for k, n in self.ragged.groups:
            part = beliefs[at : at + n, 1:k] - beliefs[at : at + n, :1]
            out.append(part.reshape(n * (k - 1), known.shape[0]))
            at += n
        return jnp.clip(jnp.concatenate(out), -MOST, MOST).T

    def _round(self, evidence: jax.Array, old: jax.Array) -> jax.Array:
        beliefs = evidence + self.sums(old)
        heard = lax.optimization_barrier(jax.nn.softmax(beliefs[self.targets] - old, axis=1))  # [messages, card, n]
        new = [m for first, table in self.tables for m in _table_messages(first, table, heard)]
        if self.noisy is not None:
            new += _noisy_messages(self.noisy, heard)
        padded = [jnp.pad(m, ((0, 0), (0, self.card - m.shape[1]), (0, 0)), constant_values=1.0) for m in new]
        log = jnp.log(jnp.maximum(jnp.concatenate(padded), TINY))
        return lax.optimization_barrier(log)


def _table_messages(first: list[int], table: np.ndarray, heard: jax.Array) -> list[jax.Array]:
    """``[tables, K, n]`` for each axis, largest 1."""
    n, shape = heard.shape[-1], table.shape[1:]
    given = [heard[at : at + len(table), :k] for at, k in zip(first, shape, strict=True)]
    out = []
    for axis in range(len(shape)):
        message, sizes = jnp.asarray(table)[..., None], list(shape)
        for other in reversed(range(len(shape))):  # contracted one by one; few and long axes are what compilers like
            if other != axis:
                before, after = math.prod(sizes[:other]), math.prod(sizes[other + 1 :])
                wide = message.reshape(len(table), before, sizes[other], after, -1)
                message = (wide * given[other].reshape(len(table), 1, sizes[other], 1, n)).sum(axis=2)
                sizes[other] = 1
        message = jnp.broadcast_to(message.reshape(len(table), shape[axis], -1), (len(table), shape[axis], n))
        out.append(message / jnp.maximum(message.max(axis=1, keepdims=True), TINY))
    return out


def _noisy_messages(noisy: Noisy, heard: jax.Array) -> list[jax.Array]:
    """To all parents, and to the nodes themselves."""
    parents, own = heard[noisy.heard], heard[noisy.own]  # [arcs, card, n], [nodes, card, n]
    expected = (parents[:, :, None] * jnp.asarray(noisy.factors)[..., None]).sum(axis=1)  # [arcs, card - 1, n]
    log = jnp.log(jnp.maximum(expected, TINY))
    log_cdf = noisy.sums(log) + jnp.asarray(noisy.leak)[..., None]
    pmf = jnp.diff(jnp.pad(jnp.exp(log_cdf), ((0, 0), (1, 1), (0, 0)), constant_values=((0, 0), (0, 1), (0, 0))), axis=1)
    # sum over k of lambda(k) P(X = k) = lambda(last) + sum over k < last of P(X <= k) (lambda(k) - lambda(k + 1))
    falls = (own[:, :-1] - own[:, 1:])[noisy.child] * jnp.exp(log_cdf[noisy.child] - log)
    up = own[noisy.child, -1:] + (jnp.asarray(noisy.factors)[..., None] * falls[:, None]).sum(axis=2)
    up = jnp.maximum(up, 0)
    return [up / jnp.maximum(up.max(axis=1, keepdims=True), TINY), pmf / jnp.maximum(pmf.max(axis=1, keepdims=True), TINY)]


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
