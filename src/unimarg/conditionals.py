"""What each node is drawn from: the arrays that a proposal makes for a query and ``walk`` computes with.

A proposal fills in ``Conditionals`` for one evidence set, starting from a ``Draft``; all shapes are the ``Frame``'s, so that nothing is
compiled again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import numpy as np

from unimarg.evidence import Evidence
from unimarg.frame import Frame, strides_of
from unimarg.layout import NoisyBlocks, over_states, power_of_two, scaled_tails
from unimarg.nets import columns
from unimarg.network import Floats, Ints, Network
from unimarg.relevance import ancestors, has_observed_descendant

PLAIN_TABLE, TABLE, PLAIN_NOISY, NOISY, TILTED = range(5)  # how a node is drawn, see walk
DRAWN, BY_ROW, BY_FORMULA, TABLE_MEAN, NOISY_MEAN = range(5)  # what is averaged for its marginal, see sums
FORMULAS = NOISY, TILTED  # those that leave their q
FLOOR = 2e-8  # a conditional's smallest probability above 0: 32 random bits still give it to a per cent
TINY = 1e-300  # likewise before it is multiplied by a formula


class Step(NamedTuple):
    """One draw; all arrays have a leading axis ``[most steps]``, of which ``Conditionals.drawn`` are taken."""

    node: jax.Array
    number: jax.Array  # for random numbers: the node's, or a link's own
    points: jax.Array  # likewise: which of the candidates in ``nets``
    mode: jax.Array
    card: jax.Array
    half: jax.Array  # half of the padded number of states: where bisection begins; 0 for a noisy-max without a table
    offset: jax.Array  # of its table's first entry
    contexts: jax.Array  # how many nodes its table depends on
    context: jax.Array  # [steps, most contexts]
    strides: jax.Array  # in entries; 0 beyond them
    noisy: jax.Array  # number among the large noisy-max nodes
    log_likelihood: jax.Array  # [steps, noisy card], of a noisy-max node's finding
    tilt: jax.Array  # lambda, likewise
    beta: jax.Array
    on_support: jax.Array  # bool: u is cut to the states that the target allows
    edges: jax.Array  # [steps, 2]: from and to in Edges
    formula: jax.Array  # [steps, 2]: from and to in Origin.formula, where q is kept
    log_other: jax.Array | None = None  # log u, [steps, noisy card]; None where nothing is mixed in


class Edges(NamedTuple):
    """Arcs into hidden large noisy-max nodes, by parent; ``D`` as in ``walk``, all differences of log cumulative probabilities."""

    child: jax.Array  # int32 [edges]: number among the large noisy-max nodes
    effect: jax.Array  # [edges, parent card, card - 1]: of the parent's states
    ahead: jax.Array  # [edges, card - 1]: of the parents drawn after it, as expected
    below: jax.Array  # [large noisy-max nodes, card]: b_k
    start: jax.Array  # [states, without the first, of large noisy-max nodes]: of the leak, and of observed parents that are not drawn
    rows: jax.Array  # int32 [large noisy-max nodes, 2]: from and to in it


class Mean(NamedTuple):
    """One marginal to be estimated; a leading axis ``[nodes]``, of which ``Conditionals.estimated`` are taken."""

    node: jax.Array
    kind: jax.Array
    card: jax.Array
    offset: jax.Array
    contexts: jax.Array
    context: jax.Array
    strides: jax.Array
    noisy: jax.Array
    formula: jax.Array


class Conditionals(NamedTuple):
    steps: Step
    drawn: jax.Array  # how many steps there are
    means: Mean
    estimated: jax.Array  # how many means
    high: jax.Array  # uint32 [capacity]: 2^32 P(X > k)
    prob: jax.Array  # float32: P(X = k), or its logarithm where a formula multiplies it
    log_ratio: jax.Array  # float32: log of P(x_i | pa_i) l_i(x_i) over it
    noisy: NoisyBlocks | None
    edges: Edges | None
    columns: jax.Array  # of those candidates, uint32 [candidates, BITS]


@dataclass(frozen=True)
class Query:
    """Evidence, targets, and what follows from the graph."""

    evidence: Evidence
    targets: tuple[int, ...]
    closure: Ints  # the ancestors of evidence and targets
    below: np.ndarray  # bool [nodes]: a finding lies below the node
    known: np.ndarray  # bool [nodes]: hard findings
    likelihood: Floats  # [nodes, card]: one-hot, a virtual finding's, or ones; 0 for states a node lacks
    every: bool = False  # whether all of the closure is drawn, also where a mean would do

    @classmethod
    def make(cls, net: Network, evidence: Evidence, targets: tuple[int, ...], every: bool = False) -> Query:
        card = int(net.cards.max())
        likelihood = (np.arange(card) < net.cards[:, None]).astype(float)
        for i, k in evidence.hard.items():
            likelihood[i] = np.arange(card) == k
        for i, value in evidence.virtual.items():
            likelihood[i, : len(value)] = value
        known = np.zeros(len(net), dtype=bool)
        known[list(evidence.hard)] = True
        closure = np.array(sorted(ancestors(net, {*targets, *evidence.nodes})), dtype=np.int64)
        return cls(evidence, targets, closure, has_observed_descendant(net, evidence), known, likelihood, every)

    @cached_property
    def free(self) -> np.ndarray:
        """Nodes whose P(x_i | pa_i) is already the posterior given the parents."""
        return ~self.below & ~self.known


class Draft:
    """Conditionals in the making: every node of the closure drawn from P(x_i | pa_i) l_i(x_i); a proposal changes what it must."""

    def __init__(self, frame: Frame, query: Query, structure: bool = True):
        self.frame, self.query = frame, query
        n = len(frame.order)
        self.structure = np.bool_(structure)
        self.plain = query.free if structure else np.zeros(n, dtype=bool)
        self.prob, self.target = np.zeros(frame.capacity), np.zeros(frame.capacity)  # of draws; P(x_i | pa_i) l_i(x_i)
        self.used = frame.entries
        self.added: list[tuple[int, int, int]] = []  # (begin, end, padded card) of tables beyond the network's own
        self.tables: dict[int, Placed] = {}  # of nodes that are not drawn from their own
        self.ranges: dict[int, Floats] | None = None  # how far q_i(k | drawn before) varies, [card], if q is known to be the posterior
        self.sequence: list[int | Link] = frame.order.tolist()
        self.tilt = np.zeros((n, frame.noisy_card))
        self.log_other: Floats | None = None
        self.beta = np.zeros(n)
        self.edges: Edges | None = None
        self.edge_range = np.zeros((n, 2), dtype=np.int64)
        for begin, table, owner in self.spans():
            likelihood = _widen(query.likelihood, table.shape[1])
            self.target[begin : begin + table.size] = (table * likelihood[owner]).ravel()

    def spans(self) -> Iterator[tuple[int, Floats, Ints]]:
        at = 0
        for table, owner in zip(self.frame.tables, self.frame.row_node, strict=True):
            yield at, table, owner
            at += table.size

    def set_families(self, tilt: Floats | None = None, other: Floats | None = None, beta: Floats | None = None) -> None:
        """q_i = (1 - beta_i) t_i exp(lambda_i) / Z + beta_i u_i [t_i > 0] / Z' for every node, from ``[nodes, card]`` and ``[nodes]``.

        With ``structure`` nodes without findings below keep P(x_i | pa_i), without it u_i stays as it is where t_i = 0.
        """
        change = ~self.plain
        if tilt is not None:
            tilt = np.where(change[:, None], tilt - np.max(tilt, axis=1, keepdims=True), 0.0)
        share = None if beta is None else np.where(change & ~self.query.known, beta, 0.0)
        for begin, table, owner in self.spans():
            target = self.target[begin : begin + table.size].reshape(table.shape)
            q = normalised(target if tilt is None else target * np.exp(_widen(tilt, table.shape[1]))[owner])
            if share is not None and other is not None:
                u = normalised(np.where((target > 0) | ~self.structure, _widen(other, table.shape[1])[owner], 0.0))
                weight = np.where(u.sum(axis=1, keepdims=True) > 0, share[owner][:, None], 0.0)
                q = (1 - weight) * q + weight * u
            self.prob[begin : begin + table.size] = q.ravel()
        width = self.frame.noisy_card
        if tilt is not None:
            self.tilt = _widen(tilt, width)
        if share is not None and other is not None:
            floored = np.where(_widen(self.query.likelihood, width) > 0, np.maximum(_widen(other, width), FLOOR), 0.0)
            with np.errstate(divide="ignore"):
                self.log_other, self.beta = np.log(floored), share

    def add_table(self, scope: list[int], q: Floats, target: Floats) -> Placed:
        """A table q(x | scope), ``[*cards of scope, card]`` up to a factor for each row, with its target, which may lack axes of it."""
        card = q.shape[-1]
        padded, rows = power_of_two(card), q.size // card
        begin, end = self.used, self.used + rows * padded
        assert end <= self.frame.capacity
        for array, values in ((self.prob, q), (self.target, target)):
            array[begin:end].reshape(*q.shape[:-1], padded)[..., :card] = values
        self.added.append((begin, end, padded))
        self.used = end
        return Placed(begin, scope, strides_of(list(q.shape[:-1]), padded), padded)

    def finish(self) -> Conditionals:
        """Arrays on the device."""
        return jax.device_put(self.arrays())  # all at once: one by one takes several times as long

    def arrays(self) -> Conditionals:
        """The same on the host."""
        mode = self._modes()
        prob, log_ratio, high = _finished_tables(self, self._by_formula(mode))
        steps, count = self._steps(mode)
        means, mean_count = self._means(mode)
        counted = steps, np.int32(count), means, np.int32(mean_count)
        parts: Any = (*counted, high, prob, log_ratio, self.frame.blocks, self.edges, columns())
        return Conditionals(*parts)

    def _modes(self) -> Ints:
        """How each node is drawn."""
        large, has_edges = self.frame.large, self.edge_range[:, 1] > self.edge_range[:, 0]
        by_table = np.where(self.plain, PLAIN_TABLE, np.where(has_edges, TILTED, TABLE))
        return np.where(large, np.where(self.plain, PLAIN_NOISY, NOISY), by_table)

    def _by_formula(self, modes: Ints) -> np.ndarray:
        """Which entries of the tables a formula multiplies, bool ``[used]``."""
        out, ends = np.zeros(self.used, dtype=bool), {begin: end for begin, end, _ in self.added}
        for i in np.flatnonzero(np.isin(modes, FORMULAS)).tolist():
            if i in self.tables:
                begin = self.tables[i].offset
                out[begin : ends[begin]] = True
            elif not self.frame.large[i]:
                begin = self.frame.offset[i]
                out[begin : begin + self.frame.padded[i] * (self.frame.expanded[i].size // self.frame.net.cards[i])] = True
        return out

    def _steps(self, modes: Ints) -> tuple[Step, int]:
        frame, query = self.frame, self.query
        n = len(frame.order)
        needed = np.zeros(n, dtype=bool)
        needed[query.closure] = True
        # a node whose mean is taken need not be drawn unless others depend on it
        read = np.zeros(n, dtype=bool)
        read[frame.parents_of(query.closure)] = True
        drawn = needed & (read | query.every | ~(query.free & self.plain))
        sequence = [s for s in self.sequence if isinstance(s, Link) or drawn[s]]
        nodes = np.array([s.node if isinstance(s, Link) else s for s in sequence], dtype=np.int64)
        contexts, context, strides = (a[nodes] for a in frame.family_contexts)
        offset, mode, number = frame.offset[nodes], modes[nodes], nodes.copy()
        half = np.where(frame.large, 0, frame.padded // 2)[nodes]
        for t, s in enumerate(sequence):
            if isinstance(s, Link):
                table, mode[t], number[t] = s.table, TABLE, s.number
            elif s in self.tables:
                table = self.tables[s]
            else:
                continue
            offset[t], contexts[t], half[t] = table.offset, len(table.scope), table.padded // 2
            context[t, : contexts[t]], strides[t, : contexts[t]] = table.scope, table.strides
            strides[t, contexts[t] :] = 0
        with np.errstate(divide="ignore"):
            log_likelihood = np.log(_widen(query.likelihood, frame.noisy_card))
        own = (number == nodes)[:, None]  # not a link
        edges = np.where(own, self.edge_range[nodes], 0)
        formula = np.where(own & np.isin(mode, FORMULAS)[:, None], frame.formula[nodes], 0)
        table = (frame.net.cards[nodes], half, offset, contexts, context, strides)
        noisy = (*(a[nodes] for a in (frame.noisy_number, log_likelihood, self.tilt, self.beta)), np.full(len(nodes), self.structure))
        most = n + frame.links
        steps = Step(*(pad_rows(a, most) for a in (nodes, number, frame.points[number], mode, *table, *noisy, edges, formula)))
        if self.log_other is not None:
            steps = steps._replace(log_other=pad_rows(self.log_other[nodes], most))
        return steps, len(nodes)

    def _means(self, modes: Ints) -> tuple[Mean, int]:
        frame, query = self.frame, self.query
        wanted = np.array([t for t in query.targets if not query.known[t]], dtype=np.int64)
        mean = query.free & self.plain
        known = np.isin(modes, FORMULAS) & (frame.formula[:, 1] > frame.formula[:, 0])
        drawn = np.where(np.isin(modes, (PLAIN_TABLE, TABLE)), BY_ROW, np.where(known, BY_FORMULA, DRAWN))
        kind = np.where(mean, np.where(frame.large, NOISY_MEAN, TABLE_MEAN), drawn)
        contexts = frame.family_contexts
        own = (np.arange(len(mean)), kind, frame.net.cards, frame.offset, *contexts, frame.noisy_number, frame.formula[:, 0])
        return Mean(*(pad_rows(a[wanted], len(mean)) for a in own)), len(wanted)


class Placed(NamedTuple):
    """Where a table lies and what it depends on."""

    offset: int
    scope: list[int]
    strides: list[int]  # in entries
    padded: int  # states, a power of two


class Link(NamedTuple):
    """A part of a noisy-max node: the maximum over some of its parents, drawn from a table."""

    node: int
    number: int
    table: Placed


def pad_rows(a: np.ndarray, length: int) -> Any:
    out = np.zeros((length, *a.shape[1:]), dtype={"i": np.int32, "b": np.bool_}.get(a.dtype.kind, np.float32))
    out[: len(a)] = a
    return out


def normalised(q: Floats) -> Floats:
    """Rows that sum to 1; rows of zeros stay."""
    total = over_states(q)[..., None]
    return q / np.where(total > 0, total, 1)


def _widen(values: Floats, width: int) -> Floats:
    """``[nodes, card]`` cut or padded with zeros to another width."""
    have = values.shape[1]
    return values[:, :width] if have >= width else np.pad(values, ((0, 0), (0, width - have)))


def _finished_tables(draft: Draft, by_formula: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities with a floor, or their logarithms, log ratios, and thresholds for every row of every table."""
    frame, floor = draft.frame, np.where(by_formula, TINY, FLOOR)
    prob, target = draft.prob[: draft.used], draft.target[: draft.used]
    if draft.ranges is not None:
        floor[prob == 0] = 0  # what is not possible in the posterior itself need not be drawn
    high = np.zeros(frame.capacity, dtype=np.uint32)
    spans = [(begin, begin + table.size, table.shape[1]) for begin, table, _ in draft.spans()] + draft.added
    runs = [list(run) for _, run in groupby(spans, key=itemgetter(2))]  # one lies behind the other
    for width in {width for _, _, width in spans}:
        same = [slice(run[0][0], run[-1][1]) for run in runs if run[0][2] == width]
        q, words = _finished(*(np.concatenate([a[at] for at in same]).reshape(-1, width) for a in (prob, target, floor)))
        ends = np.cumsum([at.stop - at.start for at in same])[:-1]
        for at, some, of_them in zip(same, np.split(q.ravel(), ends), np.split(words.ravel(), ends), strict=True):
            prob[at], high[at] = some, of_them
    log_ratio, finished = np.zeros(frame.capacity, dtype=np.float32), np.zeros(frame.capacity, dtype=np.float32)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_ratio[: draft.used] = np.where((target > 0) & (prob > 0), np.log(target / prob), -np.inf)
        finished[: draft.used] = np.where(by_formula, np.log(prob), prob)
    return finished, log_ratio, high


def _finished(q: Floats, target: Floats, floor: Floats) -> tuple[Floats, np.ndarray]:
    """Rows of one width: probabilities with a floor, and thresholds."""
    q = normalised(q)
    row, state = np.nonzero((target > 0) & (q < floor))
    q[row, state] = floor[row, state]
    touched = np.unique(row)
    q[touched] = normalised(q[touched])
    q[over_states(q) == 0, 0] = 1.0  # no state is possible: draw the first, its weight is 0
    words = np.zeros(q.shape, dtype=np.uint32)
    words[:, :-1] = np.minimum(scaled_tails(q), 2.0**32 - 1)
    return q, words
