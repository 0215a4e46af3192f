"""Exact posteriors of a table of evidence: one compiled program for thousands of rows, each with findings of its own.

A junction tree of the network (``clique_tree``) in float64, some rows at a time, so that what is computed stays near. Whether it is quicker
than rows one by one, with its compilation, is estimated from some of them: where most is observed, one by one leaves little to compute.
Rows so improbable that float64 does not reach them are left to ``exact``, and so are impossible ones, which it explains.
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
from unimarg.evidence import Evidence
from unimarg.importance import side_by_side
from unimarg.network import Floats, Network
from unimarg.relevance import ancestors, open_scopes
from unimarg.triangulation import moral_graph, quick_entries

MANY = 300  # rows that differ: fewer are answered one by one
LOOKED_AT = 32  # rows by which it is judged what one takes alone
A_CLIQUE = 0.1  # seconds to compile
AN_ENTRY, AN_ENTRY_ACCELERATED = 5e-9, 1e-10  # seconds of a row, for each entry of the cliques
A_NODE_ALONE, AN_ENTRY_ALONE = 1.2e-4, 2.5e-7  # seconds of a row by itself, for each node and entry that findings leave open
KEPT = 4  # programs for each network
ENTRIES, ENTRIES_ACCELERATED = 1 << 18, 1 << 21  # of all cliques; on a CPU a program of more takes minutes to compile
CALL, CALL_SECONDS = 4096, 1.0  # rows of a call at most, and what it may take
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
        self.nodes, self.card = np.array([net.index[name] for name in tree.net.names]), int(net.cards[list(targets)].sum())
        columns, cards = [tree.net.index[net.names[t]] for t in targets], tree.net.cards.tolist()
        on_cpu = jax.default_backend() == "cpu"
        least, most, fit = PART if on_cpu else PART_ACCELERATED
        part = max(least, min(most, _power_below(fit / tree.entries)))
        self.a_row = tree.entries * (AN_ENTRY if on_cpu else AN_ENTRY_ACCELERATED)
        self.compilation = A_CLIQUE * len(tree.cliques)  # seconds, as those of a row
        self.compiled = False
        self.rows = max(part, min(CALL, _power_below(CALL_SECONDS / self.a_row)))  # of a call

        def some(states: jax.Array) -> jax.Array:  # [nodes, rows]
            given = [(jnp.arange(k)[:, None] == row) | (row < 0) for k, row in zip(cards, states, strict=True)]
            found = tree.answers([g.astype(jnp.float64) for g in given])
            return jnp.concatenate([*(found.marginals[n] for n in columns), found.log_p[None], found.reach[None]])

        def call(states: jax.Array) -> jax.Array:  # [rows of a call, nodes]
            parts = jnp.swapaxes(states.reshape(-1, part, states.shape[1]), 1, 2)
            return jnp.swapaxes(lax.map(some, parts), 1, 2).reshape(len(states), -1)

        self._call = jax.jit(call, compiler_options=ONE_CORE)

    def answers(self, states: np.ndarray) -> Found:
        """Of ``[rows, nodes]`` of the network, -1 where nothing is known; calls side by side, of which Ctrl-C waits for none."""

        def call(first: int) -> Floats:
            part = states[first : first + self.rows, self.nodes].astype(np.int32)
            filled = np.pad(part, ((0, self.rows - len(part)), (0, 0)), mode="edge")
            with jax.enable_x64(True):
                return np.asarray(self._call(filled))[: len(part)]

        pool = ThreadPoolExecutor(side_by_side())
        try:
            found = [*pool.map(call, range(0, len(states), self.rows))]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        self.compiled = True
        out = np.concatenate(found) if found else np.zeros((0, self.card + 2))
        probabilities, log_p, reach = np.minimum(out[:, : self.card], 1), np.minimum(out[:, -2], 0), out[:, -1]
        return Found(probabilities, log_p, (reach > REACH) & np.isfinite(probabilities).all(axis=1))


def _power_below(x: float) -> int:
    return 1 << int(np.log2(max(x, 1)))


def worthwhile(
    net: Network, states: np.ndarray, observed: Iterable[int], targets: Sequence[int], share: float | None = None
) -> ExactTable | None:
    """A program for rows with findings on nodes ``observed``, where there is one and it is quicker than the rows one by one.

    ``states`` ``[rows, nodes]`` are the first ``share`` of the rows; or, if None, all of them, and a program that is there already costs
    nothing more.
    """
    there, times = share is None and _there(net, targets), 1 / (share or 1)
    least = LOOKED_AT if there else MANY
    if len(states) * times < least or len(distinct := np.unique(states, axis=0)) * times < least:
        return None
    if (table := exact_table(net, observed, targets)) is None:
        return None
    some = distinct[np.linspace(0, len(distinct) - 1, LOOKED_AT).astype(int)]
    alone = len(distinct) * times * float(np.mean([_seconds_alone(net, row, targets) for row in some]))
    compilation = 0.0 if there and table.compiled else table.compilation
    return table if compilation + len(states) * times * table.a_row < alone else None


def _seconds_alone(net: Network, row: np.ndarray, targets: Sequence[int]) -> float:
    hard = {i: k for i, k in enumerate(row.tolist()) if k >= 0}
    scopes = open_scopes(net, Evidence(hard, {}), targets)
    logs = np.log(net.cards.astype(float)).tolist()
    return A_NODE_ALONE * len(scopes) + AN_ENTRY_ALONE * quick_entries(moral_graph(scopes.values()), logs, 1 / AN_ENTRY_ALONE)


_kept: dict[int, dict[tuple[int, ...], ExactTable]] = {}  # of each network the last few, by their targets


def _there(net: Network, targets: Sequence[int]) -> bool:
    return tuple(targets) in _kept.get(id(net), ())


def exact_table(net: Network, observed: Iterable[int], targets: Sequence[int]) -> ExactTable | None:
    """For findings on nodes ``observed`` at most, or None where the cliques are too large. Kept, if asked for again and again."""
    nodes, wanted = ancestors(net, {*observed, *targets}), tuple(targets)
    if not nodes:
        return None
    if id(net) not in _kept:
        weakref.finalize(net, _kept.pop, id(net), None)
    kept = _kept.setdefault(id(net), {})
    found = kept.pop(wanted, None)
    if found is None or not nodes.issubset(found.nodes.tolist()):
        # with what was asked for before: lists whose findings alternate need one program
        together = nodes if found is None else nodes.union(found.nodes.tolist())
        found = _make(net, together, targets) or _make(net, nodes, targets)
    if found is not None:
        kept[wanted] = found
    while len(kept) > KEPT:
        del kept[next(iter(kept))]
    return found


def _make(net: Network, nodes: Iterable[int], targets: Sequence[int]) -> ExactTable | None:
    names, nodes = net.names, sorted(nodes)
    parents = {names[i]: [names[p] for p in net.parents[i]] for i in nodes}
    variables, mechanisms = [net.variables[i] for i in nodes], {names[i]: net.mechanisms[i] for i in nodes}
    limit = ENTRIES if jax.default_backend() == "cpu" else ENTRIES_ACCELERATED
    tree = clique_tree(Network.as_given(variables, parents, mechanisms, net.name), limit)
    return None if tree is None else ExactTable(net, tree, targets)
