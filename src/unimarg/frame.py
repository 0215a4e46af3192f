"""A network prepared for walks: what every query of it shares.

An order of drawing, every table P(x_i | pa_i) as rows of one long array, and the noisy-max nodes that are too large for tables. Its
shapes are those of every ``Conditionals``.
"""

from __future__ import annotations

import heapq
import math
import weakref
from functools import cached_property
from typing import NamedTuple

import numpy as np

from unimarg.layout import Kind, NoisyBlocks, noisy_blocks, parent_order, power_of_two
from unimarg.mechanism import pmf_from_steps
from unimarg.nets import CANDIDATES, choose
from unimarg.network import Floats, Ints, Mechanism, Network, NoisyMax
from unimarg.support import Support

EXPANDED, TOGETHER = 1 << 10, 1 << 17  # entries up to which a noisy-max is taken as a table, and of all such tables
CAPACITY, OF_A_NODE = (1 << 18, 1 << 19), 1 << 9  # entries of all tables together: within these, so many for each node,
GROWTH = 2  # and no fewer than this times the network's own
CONTEXTS = 4  # nodes that a table depends on, taken at a time
MOST_CONTEXTS = 24  # those that a proposal's table may depend on; the network's own may have more
MOST_STATES = 8  # of a node whose q is kept where it is drawn by formula
SMALLEST_STEP = 1e-37  # of a noisy-max without a table
MOST_LINKS = 1 << 13  # links of noisy-max nodes that a walk may have beside the nodes themselves


class Shape(NamedTuple):
    """What the compiled program depends on."""

    nodes: int
    card: int  # the largest
    dtype: str
    formulas: int  # states, without the first, of nodes that may be drawn by formula and whose q is kept then, see walk
    formula_states: int  # the largest number of a node's


class Frame:
    """A network prepared for walks; see the module docstring."""

    def __init__(self, net: Network):
        # weakly, so that the cache of frames lets networks go
        self._net = weakref.ref(net)
        noisy = np.array([isinstance(m, NoisyMax) for m in net.mechanisms])
        sizes = np.array([math.inf if _by_formula(m) else m.entries for m in net.mechanisms])
        self.large = noisy & (sizes > most_expanded(sizes[noisy]))
        self.order = drawing_order(net, self.large)
        self.when = np.argsort(self.order)
        self.padded = np.array([power_of_two(int(k)) for k in net.cards])
        self.prepared: set[int] = set()  # ids of models (0: none) whose escalation is compiled
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
        self.capacity = power_of_two(max(int(np.clip(OF_A_NODE * len(net), *CAPACITY)), GROWTH * at))

    def _noisy(self, net: Network) -> None:
        """Noisy-max nodes too large for tables."""
        members = np.flatnonzero(self.large)
        self.noisy_number = np.zeros(len(net), dtype=np.int64)
        self.noisy_number[members] = np.arange(len(members))
        self.noisy_rows = row_ranges(np.maximum(net.cards[members] - 1, 1))  # of their states without the first, one after another
        self.blocks, self.noisy_card, self.arcs = None, 2, Arcs.none(len(net))
        if len(members):
            self.noisy_card = int(max(2, *net.cards[members]))
            parent_card = max(int(net.cards[p]) for i in members for p in net.parents[i])
            kind = Kind(True, 0, self.noisy_card, parent_card, False)
            self.blocks = noisy_blocks(net, kind, [[int(i)] for i in members], np.arange(len(net)), 1)
            self.arcs = Arcs.make(net, members, self.blocks, self.when)
        # a hidden noisy-max, or a parent of one, that may have findings below
        above = np.array([len(c) > 0 for c in net.children]) & (self.large | (np.diff(self.arcs.first) > 0)) & (net.cards <= MOST_STATES)
        self.formula = row_ranges(np.where(above, net.cards - 1, 0))  # in Origin.formula
        self.links = min(MOST_LINKS, sum(len(pa) for pa, m in zip(net.parents, net.mechanisms, strict=True) if isinstance(m, NoisyMax)))

    @cached_property
    def shape(self) -> Shape:
        cards, formula = self.net.cards, self.formula
        dtype = "int8" if cards.max() <= 127 else "int16" if cards.max() < 2**15 else "int32"
        return Shape(len(cards), int(cards.max()), dtype, int(formula[-1, 1]), int(np.diff(formula).max()))

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
    def causes(self) -> dict[int, Causes]:
        """Of every large noisy-max."""
        return {i: Causes.make(self.net, i) for i in np.flatnonzero(self.large).tolist()}

    @cached_property
    def points(self) -> Ints:
        """The points that nodes, and after them links, are drawn with: numbers of ``nets.candidates``. Those of links are any."""
        chosen = choose(self.order.tolist(), [(*p, *c) for p, c in zip(self.net.parents, self.net.children, strict=True)])
        return np.concatenate([chosen, np.arange(self.links) % CANDIDATES])

    @cached_property
    def support(self) -> Support:
        return Support(self.net)

    @cached_property
    def ranges(self) -> Floats:
        """How far P(x_i = k | pa_i) varies over the parents' states, ``[nodes, card]``; 1 for a large noisy-max."""
        out = np.ones((len(self.net), int(self.net.cards.max())))
        for i in np.flatnonzero(~self.large):
            out[i, : self.net.cards[i]] = range_over_rows(self.expanded[i])
        return out

    @cached_property
    def family_contexts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(contexts, context, strides) of the tables as the network has them."""
        net = self.net
        contexts = np.zeros(len(net), dtype=np.int32)
        context = np.zeros((len(net), -(-self.most_contexts // CONTEXTS) * CONTEXTS), dtype=np.int32)
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
    turn: Ints  # of the parent among the child's, in the order of drawing
    effect: Floats  # [arcs, parent card, card - 1]: steps
    pmf: Floats  # the same, [arcs, parent card, card]

    @classmethod
    def none(cls, nodes: int) -> Arcs:
        empty = np.zeros(0, dtype=np.int64)
        return cls(np.zeros(nodes + 1, dtype=np.int64), empty, empty, empty, np.zeros((0, 2, 1)), np.zeros((0, 2, 2)))

    @classmethod
    def make(cls, net: Network, members: Ints, blocks: NoisyBlocks, when: Ints) -> Arcs:
        found = sorted((net.parents[i][j], c, at) for c, i in enumerate(members) for at, j in enumerate(parent_order(net.mechanisms[i])))  # pyright: ignore[reportArgumentType]
        parent, child, j = (np.array(a) for a in zip(*found, strict=True))
        effect = np.pad(np.asarray(blocks.steps, dtype=np.float64)[child, 0, j], ((0, 0), (1, 0), (0, 0)))  # state 0 has none
        order = np.lexsort((when[parent], child))
        turn = np.empty_like(order)
        turn[order] = np.arange(len(order)) - np.searchsorted(child[order], child[order])
        return cls(np.searchsorted(parent, np.arange(len(net) + 1)), parent, child, turn, effect, pmf_from_steps(effect))


class Causes(NamedTuple):
    """A noisy-max node's, side by side; states that a parent lacks have no effect."""

    parents: Ints
    leak: Floats  # [card - 1]: steps
    effect: Floats  # [parents, parent card, card - 1]: steps
    pmf: Floats  # the same, [parents, parent card, card]

    @classmethod
    def make(cls, net: Network, i: int) -> Causes:
        leak, effects = net.mechanisms[i].steps  # pyright: ignore[reportAttributeAccessIssue]
        most = max(len(e) for e in effects)
        effect = np.stack([np.pad(e, ((0, most - len(e)), (0, 0))) for e in effects])
        return cls(np.array(net.parents[i]), leak, effect, pmf_from_steps(effect))


def range_over_rows(table: Floats) -> Floats:
    """How far the probability of each state varies over the parents' states, ``[card]``."""
    rows = table.reshape(-1, table.shape[-1])
    return rows.max(axis=0) - rows.min(axis=0)


def row_ranges(lengths: Ints) -> Ints:
    """From and to of each, one after another, ``[n, 2]``."""
    ends = np.cumsum(lengths)
    return np.stack([ends - lengths, ends], axis=1)


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


def most_expanded(sizes: Floats) -> int:
    """Entries up to which a noisy-max is taken as a table, from those that each would have.

    >>> most_expanded(np.full(1, 1024.0)), most_expanded(np.full(600, 256.0))
    (1024, 128)
    """
    most = EXPANDED
    while most > 1 and sizes[sizes <= most].sum() > TOGETHER:
        most //= 2
    return most


def _by_formula(m: Mechanism) -> bool:
    """Whether it is a noisy-max whose table would have false zeros, and whose steps single precision holds."""
    if not isinstance(m, NoisyMax) or not m.contributions or m.has_table:
        return False
    return all((np.abs(s[s != 0]) > SMALLEST_STEP).all() for s in (m.steps[0], *m.steps[1]))


def drawing_order(net: Network, large: np.ndarray) -> Ints:
    """Parents first; among such orders one whose reverse, as an order of elimination, joins few variables at a time.

    A large noisy-max is drawn before its rivals: those drawn before it hear only on average what it may explain.
    """
    logs = np.log2(net.cards.astype(float))
    waiting = [len(c) for c in net.children]
    neighbours: list[set[int]] = [set() for _ in range(len(net))]  # of a node's factors among those left
    rivals = _rivals(net, large)
    rival_of: dict[int, list[int]] = {}
    for i, others in rivals.items():
        for v in others:
            rival_of.setdefault(v, []).append(i)

    def join(scope: set[int]) -> None:
        for v in scope:
            neighbours[v] |= scope

    for i, pa in enumerate(net.parents):
        if not large[i]:
            join({i, *pa})

    def size_of(i: int) -> tuple[bool, float]:
        """Whether a rival of i is to be eliminated first, and the logarithm of the size of i's table."""
        return bool(rivals.get(i)), sum(logs[v] for v in neighbours[i])

    queue = [(size_of(i), i) for i, w in enumerate(waiting) if w == 0]
    heapq.heapify(queue)
    order: list[int] = []
    gone = np.zeros(len(net), dtype=bool)
    while queue:
        size, i = heapq.heappop(queue)
        now = size_of(i)
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
        for v in rival_of.get(i, ()):
            rivals[v].discard(i)
        for v in {*net.parents[i], *(v for v in rival_of.get(i, ()) if not rivals[v])}:
            if waiting[v] == 0:
                heapq.heappush(queue, (size_of(v), v))
    return np.array(order[::-1], dtype=np.int64)


def _rivals(net: Network, large: np.ndarray) -> dict[int, set[int]]:
    """Of a large noisy-max what may explain the same: its children's other parents, without those above it and those as large."""
    others = {i: {p for c in net.children[i] for p in net.parents[c] if not large[p]} for i in np.flatnonzero(large).tolist()}
    bits = {v: 1 << n for n, v in enumerate(set().union(*others.values()))}
    above = [0] * len(net)  # which of them, bit by bit
    for i, pa in enumerate(net.parents):  # parents come first
        for p in pa:
            above[i] |= above[p] | bits.get(p, 0)
    return {i: {v for v in found if not above[i] & bits[v]} for i, found in others.items() if found}
