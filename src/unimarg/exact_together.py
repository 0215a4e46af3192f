"""Exact posteriors of a table of evidence: one compiled program for thousands of rows, each with findings of its own.

A junction tree of the network (``clique_tree``) in float64, some rows at a time, so that what is computed stays near. It is compiled once
for a network, which takes as long as some thousand rows one by one. Rows so improbable that float64 does not reach them are left to
``exact``, and so are impossible ones, which it explains.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from unimarg.clique_tree import CliqueTree, clique_tree
from unimarg.compiled import ONE_CORE
from unimarg.importance import side_by_side
from unimarg.network import Floats, Ints, Network
from unimarg.relevance import ancestors

MANY, ROWS_PER_CLIQUE = 2000, 20  # rows that are worth a program, which takes the longer to compile the more cliques there are
KEPT = 4  # programs for each network
ENTRIES, ENTRIES_ACCELERATED = 1 << 18, 1 << 21  # of all cliques; on a CPU a program of more takes minutes to compile
CALL = 4096  # rows of a call
PART, PART_ACCELERATED = (8, 32, 1 << 18), (32, CALL, 1 << 28)  # rows at once: at least, at most, and entries of all cliques for them
REACH = -640.0  # log of what is left above TINY_DOUBLE, that what is lost does not count


class Found(NamedTuple):
    probabilities: Floats  # [rows, states of the targets side by side]
    log_p: Floats  # [rows]: log P(e)
    reached: np.ndarray  # bool [rows]: whether there is an answer


class ExactTable:
    """Of a network whose cliques are small, what findings on some nodes say of the targets."""

    def __init__(self, net: Network, tree: CliqueTree, targets: Sequence[int]):
        """``tree`` is of a part of ``net``."""
        self.many = max(MANY, ROWS_PER_CLIQUE * len(tree.cliques))  # rows that it is worth
        self.nodes, self.card = np.array([net.index[name] for name in tree.net.names]), int(net.cards[list(targets)].sum())
        columns, cards = [tree.net.index[net.names[t]] for t in targets], tree.net.cards.tolist()
        least, most, fit = PART if jax.default_backend() == "cpu" else PART_ACCELERATED
        part = max(least, min(most, 1 << int(np.log2(max(fit / tree.entries, 1)))))

        def some(states: jax.Array) -> jax.Array:  # [nodes, rows]
            given = [(jnp.arange(k)[:, None] == row) | (row < 0) for k, row in zip(cards, states, strict=True)]
            found = tree.answers([g.astype(jnp.float64) for g in given])
            return jnp.concatenate([*(found.marginals[n] for n in columns), found.log_p[None], found.reach[None]])

        def call(states: jax.Array) -> jax.Array:  # [CALL, nodes]
            parts = jnp.swapaxes(states.reshape(-1, part, states.shape[1]), 1, 2)
            return jnp.swapaxes(lax.map(some, parts), 1, 2).reshape(len(states), -1)

        self._call = jax.jit(call, compiler_options=ONE_CORE)

    def answers(self, states: Ints) -> Found:
        """Of ``[rows, nodes]`` of the network, -1 where nothing is known; calls side by side."""
        rows = np.ascontiguousarray(states[:, self.nodes], dtype=np.int32)

        def call(first: int) -> Floats:
            part = rows[first : first + CALL]
            filled = np.pad(part, ((0, CALL - len(part)), (0, 0)), mode="edge")
            with jax.enable_x64(True):
                return np.asarray(self._call(filled))[: len(part)]

        with ThreadPoolExecutor(side_by_side()) as pool:
            found = [*pool.map(call, range(0, len(rows), CALL))]
        out = np.concatenate(found) if found else np.zeros((0, self.card + 2))
        probabilities, log_p, reach = np.minimum(out[:, : self.card], 1), np.minimum(out[:, -2], 0), out[:, -1]
        return Found(probabilities, log_p, (reach > REACH) & np.isfinite(probabilities).all(axis=1))


_kept: dict[int, dict[tuple[int, ...], ExactTable | None]] = {}  # of each network the last few, by their targets


def exact_table(net: Network, observed: Iterable[int], targets: Sequence[int]) -> ExactTable | None:
    """For findings on nodes ``observed`` at most, or None where the cliques are too large. Kept, if asked for again and again."""
    nodes, wanted = sorted(ancestors(net, {*observed, *targets})), tuple(targets)
    if id(net) not in _kept:
        weakref.finalize(net, _kept.pop, id(net), None)
    kept = _kept.setdefault(id(net), {})
    found = kept.pop(wanted, None)
    if found is None or not {*nodes} <= {*found.nodes.tolist()}:
        found = _make(net, nodes, targets)
    kept[wanted] = found
    while len(kept) > KEPT:
        del kept[next(iter(kept))]
    return found


def _make(net: Network, nodes: Sequence[int], targets: Sequence[int]) -> ExactTable | None:
    names = net.names
    parents = {names[i]: [names[p] for p in net.parents[i]] for i in nodes}
    variables, mechanisms = [net.variables[i] for i in nodes], {names[i]: net.mechanisms[i] for i in nodes}
    limit = ENTRIES if jax.default_backend() == "cpu" else ENTRIES_ACCELERATED
    tree = clique_tree(Network.as_given(variables, parents, mechanisms, net.name), limit)
    return None if tree is None else ExactTable(net, tree, targets)
