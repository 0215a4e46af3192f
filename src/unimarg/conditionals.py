"""What each node is drawn from: the arrays that a proposal makes for a query and ``walk`` computes with.

A ``Frame`` holds what a network gives once: an order of drawing, every table P(x_i | pa_i) as rows of one long array, the
noisy-max nodes that are too large for tables. A proposal fills in ``Conditionals`` for one evidence set; all shapes
are the frame's, so that nothing is compiled again.
"""

from __future__ import annotations

import heapq
import math
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from unimarg.evidence import Evidence
from unimarg.layout import Kind, NoisyBlocks, noisy_blocks, power_of_two, tail_words
from unimarg.network import Floats, Ints, Network, NoisyMax
from unimarg.relevance import ancestors, has_observed_descendant
from unimarg.support import Support

PLAIN_TABLE, TABLE, PLAIN_NOISY, NOISY, TILTED = range(5)  # how a node is drawn, see walk
DRAWN, TABLE_MEAN, NOISY_MEAN = range(3)  # what is averaged for its marginal
EXPANDED = 1 << 8  # entries up to which a noisy-max is taken as a table
FLOOR = 2e-8  # a conditional's smallest probability above 0: 32 random bits still give it to a per cent
LEAST_CAPACITY, GROWTH = 1 << 19, 2  # entries of all tables together, and relative to the network's own
MOST_CONTEXTS = 24  # nodes that a proposal's table may depend on; the network's own may have more
MOST_LINKS = 1 << 13  # links of noisy-max nodes that a walk may have beside the nodes themselves


class Shape(NamedTuple):
    """What the compiled program depends on."""

    nodes: int
    card: int  # the largest
    dtype: str


class Step(NamedTuple):
    """One draw; all arrays have a leading axis ``[most steps]``, of which ``Conditionals.drawn`` are taken."""

    node: jax.Array
    number: jax.Array  # for random numbers: the node's, or a link's own
    mode: jax.Array
    card: jax.Array
    half: jax.Array  # half of the padded number of states: where bisection begins; 0 for a noisy-max without a table
    offset: jax.Array  # of its table's first entry
    contexts: jax.Array  # how many nodes its table depends on
    context: jax.Array  # [steps, most contexts]
    strides: jax.Array  # in entries
    noisy: jax.Array  # number among the large noisy-max nodes
    log_likelihood: jax.Array  # [steps, noisy card], of a noisy-max node's finding
    tilt: jax.Array  # lambda, likewise
    beta: jax.Array
    on_support: jax.Array  # bool: u is cut to the states that the target allows
    edges: jax.Array  # [steps, 2]: from and to in Edges
    log_other: jax.Array | None = None  # log u, [steps, noisy card]; None where nothing is mixed in


class Edges(NamedTuple):
    """Arcs into hidden large noisy-max nodes, by parent; ``D`` as in ``walk``, all differences of log cumulative probabilities."""

    child: jax.Array  # int32 [edges]: number among the large noisy-max nodes
    effect: jax.Array  # [edges, parent card, card - 1]: of the parent's states
    expected: jax.Array  # [edges, card - 1]: of the parent before it is drawn
    below: jax.Array  # [large noisy-max nodes, card]: b_k
    start: jax.Array  # [large noisy-max nodes, card - 1]: with every parent as expected
    steps: jax.Array  # int32 [large noisy-max nodes]: their own card - 1


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


class Conditionals(NamedTuple):
    steps: Step
    drawn: jax.Array  # how many steps there are
    means: Mean
    estimated: jax.Array  # how many means
    high: jax.Array  # uint32 [capacity]: 2^32 P(X > k)
    prob: jax.Array  # float32: P(X = k)
    log_ratio: jax.Array  # float32: log of P(x_i | pa_i) l_i(x_i) over it
    noisy: NoisyBlocks | None
    edges: Edges | None


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


class Frame:
    """A network prepared for walks; see the module docstring."""

    def __init__(self, net: Network):
        # weakly, so that the cache of frames lets networks go
        self._net = weakref.ref(net)
        sizes = [math.prod(map(float, (*m.parent_cards, m.card))) for m in net.mechanisms]
        self.large = np.array([isinstance(m, NoisyMax) and s > EXPANDED for m, s in zip(net.mechanisms, sizes, strict=True)])
        self.order = drawing_order(net, self.large)
        self.when = np.argsort(self.order)
        self.padded = np.array([power_of_two(int(k)) for k in net.cards])
        self._lay_out(net)
        self.most_contexts = max(MOST_CONTEXTS, *(len(pa) for i, pa in enumerate(net.parents) if not self.large[i]), 1)
        self._noisy(net)

    @property
    def net(self) -> Network:
        net = self._net()
        assert net is not None
        return net

    def _lay_out(self, net: Network) -> None:
        """All tables as rows of one array for each padded number of states, these one after another."""
        self.offset = np.zeros(len(net), dtype=np.int64)
        self.tables: list[Floats] = []  # [rows, padded card]
        self.row_node: list[Ints] = []
        at = 0
        for card in sorted(set(self.padded.tolist())):
            parts, owners = [], []
            for i in np.flatnonzero((self.padded == card) & ~self.large):
                flat = net.mechanisms[i].expand().reshape(-1, net.cards[i])
                self.offset[i] = at
                at += len(flat) * card
                parts.append(np.pad(flat, ((0, 0), (0, card - flat.shape[1]))))
                owners.append(np.full(len(flat), i))
            if parts:
                self.tables.append(np.concatenate(parts))
                self.row_node.append(np.concatenate(owners))
        self.entries = at
        self.capacity = power_of_two(max(LEAST_CAPACITY, GROWTH * at))

    def _noisy(self, net: Network) -> None:
        """Noisy-max nodes too large for tables."""
        members = np.flatnonzero(self.large)
        self.noisy_number = np.zeros(len(net), dtype=np.int64)
        self.noisy_number[members] = np.arange(len(members))
        self.blocks, self.noisy_card, self.arcs = None, 2, Arcs.none(len(net))
        if len(members):
            self.noisy_card = int(max(2, *net.cards[members]))
            parent_card = max(int(net.cards[p]) for i in members for p in net.parents[i])
            kind = Kind(True, 0, self.noisy_card, parent_card, False)
            self.blocks = noisy_blocks(net, kind, [[int(i)] for i in members], np.arange(len(net)), 1)
            self.arcs = Arcs.make(net, members, self.blocks)
        self.links = min(MOST_LINKS, sum(len(pa) for pa, m in zip(net.parents, net.mechanisms, strict=True) if isinstance(m, NoisyMax)))

    @cached_property
    def shape(self) -> Shape:
        cards = self.net.cards
        dtype = "int8" if cards.max() <= 127 else "int16" if cards.max() < 2**15 else "int32"
        return Shape(len(cards), int(cards.max()), dtype)

    def parents_of(self, nodes: Ints) -> Ints:
        """All parents of some nodes."""
        return np.concatenate([self._parents[i] for i in nodes]) if len(nodes) else nodes

    @cached_property
    def _parents(self) -> list[Ints]:
        return [np.array(pa, dtype=np.int64) for pa in self.net.parents]

    @cached_property
    def expanded(self) -> list[Floats]:
        """P(x_i | pa_i) of every node as a table, ``[*parent cards, card]``; a large noisy-max has none."""
        return [np.ones(()) if large else m.expand() for m, large in zip(self.net.mechanisms, self.large, strict=True)]

    @cached_property
    def factors(self) -> list[tuple[tuple[int, ...], Floats]]:
        """P(x_i | pa_i) of every table with its nodes in the order of drawing; a large noisy-max has none."""
        out: list[tuple[tuple[int, ...], Floats]] = []
        for i, (pa, table) in enumerate(zip(self.net.parents, self.expanded, strict=True)):
            scope = () if self.large[i] else (*pa, i)
            axes = sorted(range(len(scope)), key=lambda a: self.when[scope[a]])
            out.append((tuple(scope[a] for a in axes), np.ascontiguousarray(np.transpose(table, axes))))
        return out

    @cached_property
    def support(self) -> Support:
        return Support(self.net)

    @cached_property
    def ranges(self) -> Floats:
        """How far P(x_i = k | pa_i) varies over the parents' states, ``[nodes, card]``; 1 for a large noisy-max."""
        out = np.ones((len(self.net), int(self.net.cards.max())))
        for i in np.flatnonzero(~self.large):
            rows = self.expanded[i].reshape(-1, self.net.cards[i])
            out[i, : rows.shape[1]] = rows.max(axis=0) - rows.min(axis=0)
        return out

    @cached_property
    def family_contexts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(contexts, context, strides) of the tables as the network has them."""
        net = self.net
        contexts = np.zeros(len(net), dtype=np.int32)
        context = np.zeros((len(net), self.most_contexts), dtype=np.int32)
        strides = np.zeros_like(context)
        for i, pa in enumerate(net.parents):
            if not self.large[i]:
                contexts[i] = len(pa)
                context[i, : len(pa)] = pa
                strides[i, : len(pa)] = strides_of([int(net.cards[p]) for p in pa], int(self.padded[i]))
        return contexts, context, strides


class Arcs(NamedTuple):
    """Arcs into the large noisy-max nodes, by parent."""

    first: Ints  # [nodes + 1]: where the arcs of each parent begin
    parent: Ints
    child: Ints  # number among the large noisy-max nodes
    effect: Floats  # [arcs, parent card, card - 1]

    @classmethod
    def none(cls, nodes: int) -> Arcs:
        empty = np.zeros(0, dtype=np.int64)
        return cls(np.zeros(nodes + 1, dtype=np.int64), empty, empty, np.zeros((0, 2, 1)))

    @classmethod
    def make(cls, net: Network, members: Ints, blocks: NoisyBlocks) -> Arcs:
        found = sorted((p, c, j) for c, i in enumerate(members) for j, p in enumerate(net.parents[i]))
        parent, child, j = (np.array(a) for a in zip(*found, strict=True))
        effect = np.pad(np.asarray(blocks.steps, dtype=np.float64)[child, 0, j], ((0, 0), (1, 0), (0, 0)))  # state 0 has none
        return cls(np.searchsorted(parent, np.arange(len(net) + 1)), parent, child, effect)


def strides_of(cards: list[int], inner: int) -> list[int]:
    """Of the axes of an array ``[*cards, inner]`` in entries."""
    out = [inner]
    for card in cards[:0:-1]:
        out.append(out[-1] * card)
    return out[::-1] if cards else []


_frames: dict[int, Frame] = {}


def frame_of(net: Network) -> Frame:
    """The frame of a network, made once."""
    found = _frames.get(id(net))
    if found is None:
        found = _frames[id(net)] = Frame(net)
        weakref.finalize(net, _frames.pop, id(net), None)
    return found


def drawing_order(net: Network, large: np.ndarray) -> Ints:
    """Parents first; among such orders one whose reverse, as an order of elimination, joins few variables at a time."""
    logs = np.log2(net.cards.astype(float))
    waiting = [len(c) for c in net.children]
    neighbours: list[set[int]] = [set() for _ in range(len(net))]  # of a node's factors among those left

    def join(scope: set[int]) -> None:
        for v in scope:
            neighbours[v] |= scope

    for i, pa in enumerate(net.parents):
        if not large[i]:
            join({i, *pa})
    queue = [(sum(logs[v] for v in neighbours[i]), i) for i, w in enumerate(waiting) if w == 0]
    heapq.heapify(queue)
    order: list[int] = []
    gone = np.zeros(len(net), dtype=bool)
    while queue:
        size, i = heapq.heappop(queue)
        now = sum(logs[v] for v in neighbours[i])
        if gone[i] or (now > size and queue and now > queue[0][0]):
            if not gone[i]:
                heapq.heappush(queue, (now, i))
            continue
        gone[i] = True
        order.append(i)
        rest = neighbours[i] - {i}
        for v in rest:
            neighbours[v].discard(i)
        if len(rest) <= 24:  # beyond, they would not be joined anyway
            join(rest)
        for p in net.parents[i]:
            waiting[p] -= 1
            if waiting[p] == 0:
                heapq.heappush(queue, (sum(logs[v] for v in neighbours[p]), p))
    return np.array(order[::-1], dtype=np.int64)


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
        """A table q(x | scope), ``[*cards of scope, card]`` and normalised, with its target."""
        card = q.shape[-1]
        padded, rows = power_of_two(card), q.size // card
        begin, end = self.used, self.used + rows * padded
        assert end <= self.frame.capacity
        for array, values in ((self.prob, q), (self.target, target)):
            array[begin:end].reshape(rows, padded)[:, :card] = values.reshape(rows, card)
        self.added.append((begin, end, padded))
        self.used = end
        return Placed(begin, scope, strides_of(list(q.shape[:-1]), padded), padded)

    def finish(self) -> Conditionals:
        """Arrays on the device."""
        prob, log_ratio, high = _finished_tables(self)
        steps, count = self._steps()
        means, mean_count = self._means()
        counts = jnp.int32(count), jnp.int32(mean_count)
        tables = jnp.asarray(high), jnp.asarray(prob), jnp.asarray(log_ratio)
        return Conditionals(steps, counts[0], means, counts[1], *tables, self.frame.blocks, self.edges)

    def _steps(self) -> tuple[Step, int]:
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
        offset = frame.offset[nodes]
        mode = np.where(self.plain, np.where(frame.large, PLAIN_NOISY, PLAIN_TABLE), np.where(frame.large, NOISY, TABLE))[nodes]
        number = nodes.copy()
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
        has_edges = self.edge_range[nodes, 1] > self.edge_range[nodes, 0]
        mode = np.where(has_edges & (mode == TABLE) & (number == nodes), TILTED, mode)
        with np.errstate(divide="ignore"):
            log_likelihood = np.log(_widen(query.likelihood, frame.noisy_card))
        edges = np.where((number == nodes)[:, None], self.edge_range[nodes], 0)
        table = (frame.net.cards[nodes], half, offset, contexts, context, strides)
        noisy = (*(a[nodes] for a in (frame.noisy_number, log_likelihood, self.tilt, self.beta)), np.full(len(nodes), self.structure))
        most = n + frame.links
        steps = Step(*(pad_rows(a, most) for a in (nodes, number, mode, *table, *noisy, edges)))
        if self.log_other is not None:
            steps = steps._replace(log_other=pad_rows(self.log_other[nodes], most))
        return steps, len(nodes)

    def _means(self) -> tuple[Mean, int]:
        frame, query = self.frame, self.query
        wanted = np.array([t for t in query.targets if not query.known[t]], dtype=np.int64)
        mean = query.free & self.plain
        kind = np.where(mean, np.where(frame.large, NOISY_MEAN, TABLE_MEAN), DRAWN)
        own = (np.arange(len(mean)), kind, frame.net.cards, frame.offset, *frame.family_contexts, frame.noisy_number)
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


def pad_rows(a: np.ndarray, length: int) -> jax.Array:
    out = np.zeros((length, *a.shape[1:]), dtype={"i": np.int32, "b": np.bool_}.get(a.dtype.kind, np.float32))
    out[: len(a)] = a
    return jnp.asarray(out)


def normalised(q: Floats) -> Floats:
    """Rows that sum to 1; rows of zeros stay."""
    total = q.sum(axis=-1, keepdims=True)
    return np.divide(q, total, out=np.zeros_like(q), where=total > 0)


def _widen(values: Floats, width: int) -> Floats:
    """``[nodes, card]`` cut or padded with zeros to another width."""
    have = values.shape[1]
    return values[:, :width] if have >= width else np.pad(values, ((0, 0), (0, width - have)))


def _finished_tables(draft: Draft) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities with a floor, log ratios, and thresholds for every row of every table."""
    frame = draft.frame
    prob, target = draft.prob[: draft.used], draft.target[: draft.used]
    high = np.zeros(frame.capacity, dtype=np.uint32)
    spans = [(begin, begin + table.size, table.shape[1]) for begin, table, _ in draft.spans()] + draft.added
    for begin, end, width in spans:
        q = prob[begin:end].reshape(-1, width)
        t = target[begin:end].reshape(-1, width)
        low = (t > 0) & (q < FLOOR)
        if low.any():
            q = np.where(low, FLOOR, q)
            touched = low.any(axis=1)
            q[touched] = normalised(q[touched])
        dead = ~q.any(axis=1)
        if dead.any():  # no state is possible: draw the first, its weight is 0
            q = q.copy()
            q[dead, 0] = 1.0
        prob[begin:end] = q.ravel()
        high[begin:end].reshape(-1, width)[:, : width - 1] = tail_words(q)[0]
    log_ratio, finished = np.zeros(frame.capacity, dtype=np.float32), np.zeros(frame.capacity, dtype=np.float32)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_ratio[: draft.used] = np.where(target > 0, np.log(target / prob), -np.inf)
    finished[: draft.used] = prob
    return finished, log_ratio, high
