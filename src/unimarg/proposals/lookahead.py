"""Each node is drawn with regard to what is still to be explained: no training needed.

Going backwards through the order of drawing, variable v collects its own factor t_v = P(x_v | pa_v) l_v(x_v) and the messages of
those behind it, which are functions of x_v and of variables drawn earlier:

    q_v(x_v | earlier) is proportional to t_v prod_m f_m(x_v, earlier)
    f_v(earlier) = sum over x_v of t_v prod_m f_m                        the message of v

This is bucket elimination (Dechter 1999): while tables stay small, q is the exact posterior and every weight the same. Where a
table would have more than LARGEST entries, a message is split in two, each an average over what the other keeps (as mini-buckets
do), with variables not drawn yet as expected (``expected``). Averages can be wrong by orders of magnitude, so that a part of the
posterior would never be drawn and never be missed: who hears of them is drawn with a share from its own t_v.

An observed noisy-max with many parents is taken apart into links y_j = max(y_{j-1}, effect of parent j), each drawn right
after parent j: tables then hold which findings are explained already, jointly, and co-parents explain each other away.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import numpy as np

from unimarg.conditionals import Draft, Edges, Link, Query, normalised, pad_rows
from unimarg.frame import Frame, range_over_rows
from unimarg.layout import over_states, running_sums
from unimarg.mechanism import NoisyMax, pmf_from_steps, steps_of
from unimarg.network import Floats, Ints
from unimarg.proposals.expected import axis_by_axis, expected, sums_beside, to_causes
from unimarg.proposals.factors import SMALL, TINY, Factor, align, multiplied

LARGEST = 1 << 12  # entries of a table
SPARE = 32  # tables that may share what is left when each has its part of one half of the capacity
NEGLIGIBLE = 1e-3, 0.1  # variance of a factor relative to its squared mean, and by how much it may exceed that mean, if it says nothing
FEW_PARENTS = 2  # a noisy-max with no more of them unobserved stays a table, if it is one
EXPECTED = 3.0  # nodes of a sample that are drawn from t_v / Z, among those that heard of averages
DEFENCE = 0.05, 0.25  # the least and the most of its share in a conditional
RANGE, PIECES = 400.0, 256  # of the logarithms of a message, and how many at most it goes in


def lookahead(frame: Frame, query: Query, largest: int = LARGEST) -> Draft:
    """With tables of at most ``largest`` entries."""
    draft = Draft(frame, query)
    draft.set_families()
    _Sweep(frame, query, draft, largest).run()
    return draft


class _Sweep:
    """Variables are nodes, and from ``len(net)`` on links."""

    def __init__(self, frame: Frame, query: Query, draft: Draft, largest: int):
        self.frame, self.query, self.draft = frame, query, draft
        self.state = dict(query.evidence.hard)
        relevant = np.zeros(len(frame.order), dtype=bool)
        relevant[query.closure] = True
        self.relevant = relevant & ~query.free
        self.cards: list[int] = frame.net.cards.tolist()
        self.by_node = expected(frame, query)
        self.weights = [row[:k] for row, k in zip(self.by_node, self.cards, strict=True)]  # of averages, for each variable
        self.waiting: dict[int, list[Factor]] = {}
        self.chain: dict[int, tuple[int, Factor]] = {}  # link -> its node, its factor
        self.chained: set[int] = set()
        self.defended: list[tuple[int, tuple[int, ...], Floats, Floats]] = []  # variable, scope, product, t
        self.exact, self.products = True, dict[int, Floats]()  # whether q is the posterior so far; q of nodes up to a factor
        self.joint: dict[tuple[int, ...], Floats] = {(): np.ones(1)}  # of several variables: the product of their weights, flat
        self.most, self.promised = largest, 0  # entries of a table, and of those that all links must have
        after: dict[int, list[int]] = {}  # node -> links drawn right after it
        for c in np.flatnonzero(self.relevant & query.known).tolist():
            for p, link in self._links(c):
                after.setdefault(p, []).append(link)
        self.sequence = self._sequence(after)
        self.position = {v: t for t, v in enumerate(self.sequence)}
        self.left = len(self.chain) + int((self.relevant & ~query.known).sum())  # variables to come
        self.free = frame.capacity - draft.used - self.promised
        self.share = self.free // (4 * max(self.left, 1))
        self._expect()

    def _sequence(self, after: dict[int, list[int]]) -> list[int]:
        """The order of drawing with every link right after its parent."""
        order = [i for i in self.frame.order.tolist() if i not in self.chained]
        return [v for i in order for v in (i, *after.get(i, []))]

    def run(self) -> None:
        for v in reversed(self.sequence):
            if v in self.chain:
                self._variable(v, self._sorted(self.chain[v][1]))
            elif self.relevant[v]:
                if self.frame.large[v]:
                    self._large(v)
                elif v in self.state:
                    self._send(self._own(v))
                else:
                    self._variable(v, self._own(v))
        self._defend()
        n = len(self.frame.order)
        links = {v: Link(node, v, self.draft.tables[v]) for v, (node, _) in self.chain.items()}
        self.draft.sequence = [links.get(v, v) for v in self.sequence if v < n or v in links]
        self._edges()
        if self.exact:
            self.draft.ranges = {v: _range(q) for v, q in self.products.items()}

    def _room(self) -> int:
        """Entries of the next table: an equal share of one half, and something of all that is spare.

        Its rows are padded to at most twice their length, and there is as much for every variable to come.
        """
        spare = self.free - 2 * self.share * self.left
        self.left -= 1
        return min(self.most, self.share + spare // (2 * SPARE))

    # --- factors

    def _own(self, i: int) -> Factor:
        """t_i as a function of the nodes not observed."""
        scope, table = self.frame.factors[i]
        if i in self.query.evidence.virtual:
            table = table * self.query.likelihood[i, : self.cards[i]].reshape([-1 if v == i else 1 for v in scope])
        kept = tuple(v for v in scope if v not in self.state)
        return self._sorted(Factor(kept, table[tuple(self.state.get(v, slice(None)) for v in scope)]))

    def _links(self, c: int) -> list[tuple[int, int]]:
        """Takes a noisy-max apart that is observed in a state to be explained: (parent, link drawn after it).

        All partial maxima are at most the observed state, and the last is that state.
        """
        net, m, state = self.frame.net, self.frame.net.mechanisms[c], self.state.get(c)
        if not isinstance(m, NoisyMax) or not state:
            return []
        parents = net.parents[c]
        unknown = sorted((j for j, p in enumerate(parents) if p not in self.state), key=lambda j: self.frame.when[parents[j]])
        card, links = state + 1, len(self.chain) + len(unknown)
        if len(unknown) <= (0 if self.frame.large[c] else FEW_PARENTS) or links > self.frame.links:
            return []
        promised = self.promised + 2 * len(unknown) * card * card * max(m.parent_cards)  # every link needs its table
        leak, effects = m.steps
        start = leak + sum((effects[j][self.state[p]] for j, p in enumerate(parents) if p in self.state), np.zeros(len(leak)))
        if 2 * promised > self.frame.capacity - self.draft.used or start[state:].sum() < math.log(SMALL):
            return []
        self.promised = promised
        reached, before, out = start, -1, []
        for j in unknown:
            table = _link(m.contributions[j][:, :card]) if before >= 0 else pmf_from_steps(effects[j] + start)[:, :card]
            if j == unknown[-1]:
                table = table * self.query.likelihood[c, :card]
            reached = reached + steps_of(self.weights[parents[j]] @ m.contributions[j])
            v = len(self.cards)
            self.cards.append(card)
            self.weights.append(pmf_from_steps(reached[: card - 1]))  # P(y_j), parents as expected
            self.chain[v] = (c, Factor((parents[j], v) if before < 0 else (before, parents[j], v), table))
            out.append((parents[j], v))
            before = v
        self.chained.add(c)
        return out

    def _sorted(self, f: Factor) -> Factor:
        axes = sorted(range(len(f.scope)), key=lambda a: self.position[f.scope[a]])
        return Factor(tuple(f.scope[a] for a in axes), np.transpose(f.values, axes), f.cut)

    # --- one variable after another

    def _variable(self, v: int, own: Factor) -> None:
        if v in self.chain:
            self.free += 2 * own.values.size
        room = self._room()
        union, factors = self._fit(v, own, room)
        target = align(own, union)
        product, scale = multiplied([target, *(align(f, union) for f in factors)])
        heard, lower = (product, scale) if v in self.chain else self._with_children(v, product, scale)
        cut = any(f.cut for f in factors)
        self._send(Factor(union[:-1], over_states(heard), cut), lower)
        self.exact &= not cut
        if v not in self.chain:
            self.products[v] = product
            if not factors or product.size > room:
                self.exact &= not factors
                return  # as the draft has it; a table of its own that is so large is not kept twice
        self.free -= 2 * product.size
        if cut and v not in self.chain:
            self.defended.append((v, union, product, target))
        else:
            self._set_table(v, union, product, target)

    def _defend(self) -> None:
        """Who heard of averages is drawn from its own t_v as well: the more often, the fewer they are."""
        share = np.clip(EXPECTED / max(len(self.defended), 1), *DEFENCE)
        for v, union, product, target in self.defended:
            self._set_table(v, union, (1 - share) * normalised(product) + share * normalised(target), target)

    def _set_table(self, v: int, union: tuple[int, ...], product: Floats, target: Floats) -> None:
        rows = [self.chain[u][0] if u in self.chain else u for u in union[:-1]]
        self.draft.tables[v] = self.draft.add_table(rows, product, target)

    def _large(self, i: int) -> None:
        """A large noisy-max that is hidden is drawn in proportion to P(x_i | pa_i) f(x_i, S), f the product of the messages.

        Its parents hear of it through ``Edges``; S, and every other message, hears of the average over x_i as expected. One
        that is observed in its lowest state falls apart into its parents: all causes are absent.
        """
        k = self.cards[i]
        self.exact &= self.state.get(i) == 0
        if i in self.state:
            parents, messages = to_causes(self.frame, i, self.query.likelihood[i, :k], self.by_node)
            for p, message in zip(parents.tolist(), messages, strict=True):
                if p not in self.state:
                    self._send(Factor((p,), message[: self.cards[p]]))
            return
        room = self._room()
        union, messages = self._fit(i, Factor((i,), np.ones(k)), room)
        f, scale = multiplied([np.ones([self.cards[u] for u in union]), *(align(g, union) for g in messages)])
        if messages and f.size <= room:
            self.free -= 2 * f.size
            self._set_table(i, union, f, np.ones_like(f))
        f, scale = self._with_children(i, f * self.query.likelihood[i, :k], scale)
        self._send(Factor(union[:-1], f @ self.weights[i], True), scale)
        below = self._average(Factor(union, f), union[:-1]).values  # of rows that may have lost their scale
        self.below[self.frame.noisy_number[i], :k] = below / max(below.max(), TINY)

    # --- hidden large noisy-max nodes, seen from their parents

    def _hidden(self) -> Ints:
        """The arcs that lead to one that matters."""
        members = np.flatnonzero(self.frame.large)
        return np.flatnonzero((self.relevant & ~self.query.known)[members][self.frame.arcs.child]) if len(members) else members

    def _expect(self) -> None:
        """For each arc the expected effects of the parents drawn after its own, and P(x_c | x_i) of its child, the others as expected.

        A sum leaves out what it must not hold: taken off again, that would leave nothing of a rare state.
        """
        arcs, card = self.frame.arcs, self.frame.noisy_card
        members = np.flatnonzero(self.frame.large)
        self.below = np.ones((len(members), card))
        self.hidden = self._hidden()
        parent, child, turn = (a[self.hidden] for a in (arcs.parent, arcs.child, arcs.turn))
        effect, pmf = arcs.effect[self.hidden], arcs.pmf[self.hidden]
        self.first_hidden = np.searchsorted(parent, np.arange(len(self.relevant) + 1))  # of each parent
        weight = self.by_node[parent, None, : pmf.shape[1]]
        expected = np.maximum(steps_of((weight @ pmf[:, : weight.shape[-1]])[:, 0]), math.log(TINY))
        self.start = np.zeros((len(members), card - 1))
        if self.frame.blocks is not None:
            self.start += np.asarray(self.frame.blocks.leak, dtype=np.float64)[:, 0]
        linked = np.isin(parent, list(self.chained))  # observed, and not drawn itself
        np.add.at(self.start, child[linked], expected[linked])
        each = np.zeros((len(members), arcs.turn.max(initial=0) + 1, card - 1))
        each[child, turn] = np.where(linked[:, None], 0.0, expected)
        before, self.ahead = (a[child, turn] for a in sums_beside(each))
        self.child_given = pmf_from_steps((self.start[child] + before + self.ahead)[:, None] + effect)

    def _with_children(self, i: int, f: Floats, scale: Floats | None) -> tuple[Floats, Floats | None]:
        """f times what hidden large noisy-max children say of node i's states, the other parents as expected; as ``multiplied``."""
        begin, end = self.first_hidden[i : i + 2].tolist()
        if begin == end:
            return f, scale
        child = self.frame.arcs.child[self.hidden[begin:end]]
        z = (self.child_given[begin:end, : self.cards[i]] @ self.below[child][..., None])[..., 0]
        z = z / np.maximum(z.max(axis=1, keepdims=True), TINY)
        together = np.prod(z, axis=0)
        f, more = multiplied([f, together] if together.min() > SMALL else [f, *z])
        return f, scale if more is None else more if scale is None else scale + more

    def _edges(self) -> None:
        """What ``walk`` needs of them."""
        if self.frame.blocks is None:
            return
        arcs = self.frame.arcs
        self.draft.edge_range = np.stack([self.first_hidden[:-1], self.first_hidden[1:]], axis=1)

        def padded(a: np.ndarray) -> jax.Array:
            return pad_rows(a, len(arcs.child))

        rows = self.frame.noisy_rows
        start = self.start[np.arange(self.start.shape[1]) < np.diff(rows)]
        per_node = (pad_rows(a, len(a)) for a in (self.below, start, rows))
        self.draft.edges = Edges(padded(arcs.child[self.hidden]), padded(arcs.effect[self.hidden]), padded(self.ahead), *per_node)

    def _fit(self, v: int, own: Factor, room: int) -> tuple[tuple[int, ...], list[Factor]]:
        """The messages waiting at v, cut so that together with its own factor they have at most ``room`` entries."""
        union = {*own.scope, v}
        out: list[Factor] = []
        for f in sorted(self.waiting.pop(v, []), key=lambda f: f.values.size):
            kept = self._most_telling(f, union, room)
            union |= kept
            if kept.issuperset(f.scope):
                out.append(f)
            else:
                here, rest = self._split(v, f, union)
                out.append(here)
                weights, values = self._weights(rest.scope), rest.values.ravel()
                values = values / max(float(weights @ values), TINY)
                if _varies(float(weights @ values**2), float(values.max())):
                    self._send(rest)
        return tuple(sorted(union, key=self.position.__getitem__)), out

    def _most_telling(self, f: Factor, union: set[int], room: int) -> set[int]:
        """The variables of f that may join: where not all fit, those whose states change it, and the most telling first."""
        size = math.prod(self.cards[u] for u in union)
        kept = {u for u in f.scope if u in union}
        others = [u for u in f.scope if u not in union]
        if len(others) > 1 and math.prod(self.cards[u] for u in others) * size > room:
            effect = self._effects(f)
            others = sorted((u for u in others if _varies(*effect[u])), key=lambda u: -effect[u][0])
        for u in others:
            if size * self.cards[u] <= room and len(union) + len(kept) <= self.frame.most_contexts:
                size *= self.cards[u]
                kept.add(u)
        return kept

    def _effects(self, f: Factor) -> dict[int, tuple[float, float]]:
        """For each variable of f how much f varies over its states, the others averaged: mean square and maximum, where the mean is 1."""
        weights = [self.weights[u] for u in f.scope]
        alone = axis_by_axis(f.values, weights)
        starts = np.cumsum([0, *map(len, weights[:-1])])
        values = np.concatenate(alone) / max(float(weights[-1] @ alone[-1]), TINY)
        squares = np.add.reduceat(np.concatenate(weights) * values**2, starts).tolist()
        return dict(zip(f.scope, zip(squares, np.maximum.reduceat(values, starts).tolist(), strict=True), strict=True))

    def _split(self, v: int, f: Factor, union: set[int]) -> tuple[Factor, Factor]:
        """f(x_v, S) as g(x_v, S in union) h(S): each an average, h relative to what g says of the variables they share.

        Among all q that do not know the rest of S, weights vary least for the one in proportion to the root of the mean square: that is
        g where many states are averaged. Of binary causes and of links, where f is all but 0 unless a finding is explained, it makes too
        much, and g is the mean.
        """
        others = [u for u in f.scope if u not in union]
        squared = self.chain.keys().isdisjoint(f.scope) and any(self.cards[u] > 2 for u in others)
        f = f._replace(cut=True)
        here = self._average(f._replace(values=f.values**2) if squared else f, others)
        if squared:
            here = here._replace(values=np.sqrt(here.values))
        rest, shared = self._average(f, [v]), self._average(here, [v])
        return here, rest._replace(values=rest.values / np.maximum(align(shared, rest.scope), TINY))

    def _average(self, f: Factor, variables: Sequence[int]) -> Factor:
        kept, axes = [], []
        for axis, u in enumerate(f.scope):
            (axes if u in variables else kept).append(axis)
        weights, shape = self._weights(tuple(f.scope[a] for a in axes)), f.values.shape
        flat = f.values.transpose(kept + axes).reshape(-1, len(weights))
        return Factor(tuple(f.scope[a] for a in kept), (flat @ weights).reshape([shape[a] for a in kept]), f.cut)

    def _weights(self, variables: tuple[int, ...]) -> Floats:
        """Of all states of some variables together."""
        if variables not in self.joint:
            self.joint[variables] = (self._weights(variables[:-1])[:, None] * self.weights[variables[-1]]).ravel()
        return self.joint[variables]

    def _send(self, f: Factor, scale: Floats | None = None) -> None:
        """To the last of its variables; ``scale`` as of ``multiplied``: what has a wider range than a number goes in several pieces."""
        top = f.values.max()
        if not f.scope or top <= 0:
            return
        waiting = self.waiting.setdefault(f.scope[-1], [])
        if scale is None:
            waiting.append(f._replace(values=f.values / top))
            return
        possible = f.values > 0
        log = np.log(np.where(possible, f.values, 1.0)) + scale
        left = np.where(possible, np.maximum(log - log[possible].max(), -PIECES * RANGE), 0.0)
        waiting.append(f._replace(values=np.where(possible, np.exp(np.maximum(left, -RANGE)), 0.0)))
        while (left := np.minimum(left + RANGE, 0.0)).any():
            waiting.append(f._replace(values=np.exp(np.maximum(left, -RANGE))))


def _varies(square: float, most: float) -> bool:
    """Whether a factor of mean 1 says anything, or is large for something rare, which would be drawn too seldom without it."""
    return square > 1 + NEGLIGIBLE[0] or most > 1 + NEGLIGIBLE[1]


def _range(q: Floats) -> Floats:
    """How far a conditional varies over what was drawn before, as far as that is possible; ``q`` up to a factor for each row."""
    rows = q[over_states(q) > 0]
    return range_over_rows(normalised(rows)) if len(rows) else np.zeros(q.shape[-1])


def _link(pmf: Floats) -> Floats:
    """P(y_j | y_{j-1}, x_j) from the effect of x_j alone, ``[parent card, card]``."""
    before, now = np.arange(pmf.shape[1])[:, None, None], np.arange(pmf.shape[1])
    return np.where(now > before, pmf, np.where(now == before, running_sums(pmf), 0.0))
