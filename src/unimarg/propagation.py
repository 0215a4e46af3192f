"""Loopy belief propagation: a few rounds of Pearl's messages (1988) for many evidence sets at once.

Every node and its parents form a factor P(x_c | pa_c), which tells each of its variables what it has heard from the others
(``messages``). A belief is the product of what all factors tell a variable and its own evidence. In a round messages go up, from the
last nodes to the first, and down again: each is sent once, and where there are no loops what is known below a node and above it has
arrived. The first round starts from what is heard without evidence, P(x_i) of independent parents.

Several causes of a finding are all told that it must be one of them, next that the others suffice, and so on for ever. A message to a
parent that swings back therefore stops half the way, or nearer the end that it comes from.

Exact where the graph is a tree, after as many rounds as paths turn, and nearly so where its loops are long: a good start for a network
that learns the rest. With ``pairs`` beliefs of noisy-ors are corrected in the end by what others with the same parents say (``pairs.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from unimarg.gathers import Sums, by_blocks, gathered, rounded_up
from unimarg.layout import power_of_two
from unimarg.messages import LEAST, NEVER, TINY, NoisyMaxes, Tables, probabilities
from unimarg.network import Floats, Ints, Network, NoisyMax, Table
from unimarg.pairs import Pairs, log_parts, log_r, make_pairs
from unimarg.ragged import Parts, Ragged

MOST = 20.0  # log of the likeliest state over any other
CERTAIN, SHRINK = -1e-7, 0.25  # log P(X = 0) of a noisy-or: the largest; what pairs leave of it at least, for they rule nothing out
ROWS_ENTRIES, ROWS_ENTRIES_ACCELERATED = 1 << 26, 1 << 29  # of factors and messages, for the rows taken at once
LEVELS = 48, 24, 12, 6, 3, 1  # of nodes that hear of one another in one sweep; of more, neighbours are taken together
GROUPS = 96  # more take long to compile: rather fewer levels

Widths = dict[int, jax.Array]  # for each width [messages or nodes, width - 1, n]


class Block(NamedTuple):
    """Messages to parents that lie one after the other."""

    width: int  # of the parents
    messages: slice
    to: Ints  # the parents, among the nodes of their width; 0 where there is none


@dataclass(frozen=True, eq=False)
class Group:
    """Nodes of one kind and one level."""

    members: Ints
    width: int
    nodes: slice  # among those of their width
    factors: Tables | NoisyMaxes
    blocks: list[Block]
    children: Sums  # over what children say of the nodes


class Messages(NamedTuple):
    """Everything that is said."""

    up: Widths  # to the parents of each factor
    steps: Widths  # how far these went last
    below: Widths  # of each node: what its children say, and its evidence
    beliefs: Widths  # of each node: that, and what its own factor says
    heard: list[Any]  # of each group: what its factors have heard from the parents


class Propagation:
    """Messages of a network's factors, in so many ``rounds``.

    Numbers of states are padded to 2, 3, 4, 6, 8, 12 and so on, ``width``, so that few shapes are few operations and soon compiled; only to
    powers of two where levels would have to be taken together otherwise. Everything is kept apart by width: a network of many binary
    nodes does not pay for its largest one.
    """

    def __init__(self, net: Network, rounds: int, pairs: bool = False):
        self.net, self.rounds, self.ragged = net, rounds, Ragged(tuple(net.cards.tolist()))
        self.widths = rounded_up(np.maximum(net.cards, 2))
        kinds, apart = self._kinds()
        if not apart:
            self.widths = np.array([power_of_two(int(k)) for k in net.cards])
            kinds, _ = self._kinds()
        self.width_of = dict(zip(net.cards.tolist(), self.widths.tolist(), strict=True))
        self.counts = {int(w): int((self.widths == w).sum()) for w in np.unique(self.widths)}
        self.place = np.zeros(len(net), np.int64)  # of each node among those of its width
        every = np.concatenate([members for _, members in kinds])
        for w, count in self.counts.items():
            self.place[every[self.widths[every] == w]] = np.arange(count)
        self.groups, self.targets = self._groups(kinds)
        self.sums = {w: Sums(to, self.counts[w]) for w, to in self.targets.items()}
        self.pairs = self._pairs() if pairs else None
        # what a row takes
        entries = sum(g.factors.entries for g in self.groups) + (0 if self.pairs is None else 8 * len(self.pairs.pair))
        self.entries = float(entries + 8 * sum(w * (len(to) + self.counts[w]) for w, to in self.targets.items()))
        self.prior = self._prior()

    def __hash__(self) -> int:
        return hash((self.rounds, self.ragged))

    def __eq__(self, other: object) -> bool:
        """Of equal networks: their programs are the same, and compiled once."""
        if self is other or not isinstance(other, Propagation):
            return self is other
        return (self.rounds, self.pairs is None) == (other.rounds, other.pairs is None) and self.net == other.net

    def _kinds(self) -> tuple[list[tuple[tuple[int, ...] | None, Ints]], bool]:
        """Nodes by level and kind, first levels first: the shape of their tables (None: noisy-max), and which. Whether levels are apart."""
        kinds = []
        for i, m in enumerate(self.net.mechanisms):
            noisy, own = isinstance(m, NoisyMax), int(self.widths[i])
            kinds.append((noisy, (own,) if noisy else (*sorted(self.widths[list(self.net.parents[i])].tolist()), own)))
        level = shared_levels(self.net, kinds)
        depth = int(level.max()) + 1
        found: dict[tuple[int, bool, tuple[int, ...]], list[int]] = {}
        levels = LEVELS[0]
        for levels in LEVELS:
            found = {}
            for i, kind in enumerate(kinds):
                found.setdefault((int(level[i]) * levels // max(depth, levels), *kind), []).append(i)
            if len(found) <= GROUPS:
                break
        children = np.array(list(map(len, self.net.children)))
        ordered = [  # by number of children, as their sums are made
            (None if noisy else shape, np.array(members)[np.argsort(children[members], kind="stable")])
            for (_, noisy, shape), members in sorted(found.items())
        ]
        return ordered, depth <= levels

    def _groups(self, kinds: list[tuple[tuple[int, ...] | None, Ints]]) -> tuple[list[Group], dict[int, Ints]]:
        """Also for each width whom each message to a parent goes to, among the nodes of that width; -1: nobody."""
        targets: dict[int, list[Ints]] = {w: [] for w in self.counts}
        made = []
        for shape, members in kinds:
            width, mechanisms = int(self.widths[members[0]]), [self.net.mechanisms[i] for i in members]
            factors: Tables | NoisyMaxes
            if shape is None:
                parents = [self.widths[list(self.net.parents[i])] for i in members]
                factors = NoisyMaxes.make([m for m in mechanisms if isinstance(m, NoisyMax)], width, parents)
            else:
                factors = Tables.make([m for m in mechanisms if isinstance(m, Table)], shape)
            blocks = []
            for w, arcs in factors.arcs:
                to = np.array([self.place[self.net.parents[members[at]][j]] if j >= 0 else -1 for at, j in arcs.tolist()], np.int64)
                first = sum(map(len, targets[w]))
                blocks.append(Block(w, slice(first, first + len(to)), np.maximum(to, 0)))
                targets[w].append(to)
            made.append((members, width, factors, blocks))
        every = {w: np.concatenate([np.zeros(0, np.int64), *parts]) for w, parts in targets.items()}
        groups = []
        for members, width, factors, blocks in made:
            first = int(self.place[members[0]])
            to = every[width] - first
            children = Sums(np.where((to >= 0) & (to < len(members)), to, -1), len(members))
            groups.append(Group(members, width, slice(first, first + len(members)), factors, blocks, children))
        return groups, every

    def _prior(self) -> dict[int, np.ndarray]:
        """What factors tell their nodes without evidence, ``[nodes, width - 1, 1]``."""
        out = {w: np.full((n, w - 1, 1), NEVER, np.float32) for w, n in self.counts.items()}
        p: list[Floats] = []
        for i, m in enumerate(self.net.mechanisms):
            p.append(_of_independent(m, [p[j] for j in self.net.parents[i]]))
            log = np.log(np.maximum(p[i] / p[i].max(), TINY))
            out[int(self.widths[i])][self.place[i], : len(log) - 1, 0] = log[1:] - log[0]
        return out

    def _pairs(self) -> Pairs | None:
        """Of binary noisy-ors with common binary parents, if there are any, by their places; arcs are numbers of messages."""
        child, message, quiet = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0)]
        for group in self.groups:
            if group.width != 2 or not isinstance(group.factors, NoisyMaxes):
                continue
            for block, effects in zip(group.blocks, group.factors.effects, strict=True):
                if block.width == 2:
                    child.append(np.repeat(group.nodes.start + effects.child, effects.number.shape[1]))
                    message.append(np.arange(block.messages.start, block.messages.stop))
                    quiet.append(effects.factors[:, :, 1, 0].ravel())
        to, arcs, loud = np.concatenate(child), np.concatenate(message), np.concatenate(quiet)
        real = self.targets[2][arcs] >= 0 if len(arcs) else np.zeros(0, bool)  # the others are padding
        to, arcs, loud = to[real], arcs[real], loud[real]
        if not len(arcs):
            return None
        parent, effects_ = self.targets[2][arcs], set(to.tolist())
        above = {(c, p) for c, p in zip(to.tolist(), parent.tolist(), strict=True) if p in effects_}
        found = make_pairs(to, parent, loud, above | {(p, c) for c, p in above})
        return None if found is None else found._replace(arcs=(arcs[found.arcs[0]], arcs[found.arcs[1]]))

    def logits(self, known: jax.Array, values: Parts, accelerated: bool) -> dict[str, jax.Array]:
        """What a head starts from, against each node's first state, ``[n, slots]``, from what is known ``[n, nodes]`` and its likelihoods.

        marginal: beliefs; message: lambda, what a node's children say of it and its own evidence.
        """
        most = (ROWS_ENTRIES_ACCELERATED if accelerated else ROWS_ENTRIES) / self.entries
        return by_blocks(lambda block: self._logits(*block), (known, values), most)

    def _logits(self, known: jax.Array, values: Parts) -> dict[str, jax.Array]:
        evidence, n = self._evidence(known, values), known.shape[0]
        beliefs = {w: jnp.asarray(self.prior[w]) + a for w, a in evidence.items()}
        heard = [g.factors.heard([gathered(beliefs[b.width], b.to) for b in g.blocks]) for g in self.groups]
        heard = jax.tree.map(lambda a: jnp.broadcast_to(a, (*a.shape[:-1], n)), heard)
        up = {w: jnp.zeros((len(to), w - 1, n)) for w, to in self.targets.items()}
        start = Messages(up, up, evidence, beliefs, heard)
        said = lax.fori_loop(0, self.rounds, lambda _, old: self._down(self._up(evidence, old)), start)
        beliefs = said.beliefs
        if self.pairs is not None:
            beliefs = beliefs | {2: beliefs[2] - self._correction(self.pairs, said)}
        return {"marginal": self._slots(beliefs), "message": self._slots(said.below)}

    def _up(self, evidence: Widths, old: Messages) -> Messages:
        """All messages to parents, those of the last nodes first."""
        up = dict(old.up)
        for group, heard in zip(self.groups[::-1], old.heard[::-1], strict=True):
            own = lax.optimization_barrier(evidence[group.width][group.nodes] + group.children(up[group.width]))
            for block, told in zip(group.blocks, group.factors.up(heard, own), strict=True):
                up[block.width] = _put(up[block.width], told, block.messages)
        steps = {w: _step(told - old.up[w], old.steps[w]) for w, told in up.items()}
        up = lax.optimization_barrier({w: old.up[w] + step for w, step in steps.items()})
        return Messages(up, steps, {w: evidence[w] + self.sums[w](up[w]) for w in up}, old.beliefs, old.heard)

    def _down(self, old: Messages) -> Messages:
        """All messages to the nodes of the factors, those of the first nodes first."""
        beliefs, every = dict(old.beliefs), []
        for group, before in zip(self.groups, old.heard, strict=True):
            w, logits = group.width, [gathered(beliefs[b.width], b.to) - old.up[b.width][b.messages] for b in group.blocks]
            heard = lax.optimization_barrier(group.factors.heard(logits))
            every.append(jax.tree.map(lambda a, b: jnp.broadcast_to(a, b.shape), heard, before))
            beliefs[w] = _put(beliefs[w], old.below[w][group.nodes] + group.factors.down(heard), group.nodes)
        return Messages(old.up, old.steps, old.below, beliefs, every)

    def _correction(self, pairs: Pairs, said: Messages) -> jax.Array:
        """Of the logits of binary nodes: what others with the same parents say of noisy-ors."""
        beliefs, below, up = said.beliefs[2], said.below[2], said.up[2]
        to_s, to_f = pairs.arcs
        given = (gathered(beliefs, self.targets[2][to_s]) - gathered(up, to_s))[:, 0]
        each = log_parts(given, given - gathered(up, to_f)[:, 0], pairs.quiet)
        log_a, log_b = (Sums(pairs.pair, len(pairs.of))(part) for part in lax.optimization_barrier(each))
        log_cdf = -jax.nn.softplus((beliefs - below)[:, 0])
        log = log_r(log_a, log_b, gathered(log_cdf, pairs.by), probabilities(gathered(below, pairs.by)))
        before = jnp.minimum(log_cdf, CERTAIN)
        after = jnp.minimum(before + Sums(pairs.of, len(below))(log, _stronger), before * SHRINK)
        return (_log_odds(after) - _log_odds(before))[:, None]

    def _slots(self, of: Widths) -> jax.Array:
        """Nodes side by side as ``ragged`` has them, ``[n, slots]``; the likeliest state is at most so much likelier than another."""
        out, at = [], 0
        for k, count in self.ragged.groups:
            part = gathered(of[self.width_of[k]], self.place[self.ragged.order[at : at + count]])[:, : k - 1]
            likeliest = jnp.maximum(part.max(axis=1, keepdims=True), 0) if k > 1 else 0.0
            part = jnp.maximum(part - likeliest, -MOST) - jnp.maximum(-likeliest, -MOST)
            out.append(part.reshape(count * (k - 1), part.shape[-1]))
            at += count
        return jnp.concatenate(out).T

    def _evidence(self, known: jax.Array, values: Parts) -> Widths:
        """Log likelihoods of the nodes, ``[nodes, width - 1, n]``; states that a node lacks are impossible."""
        rows: dict[int, Parts] = {w: [] for w in self.counts}
        for flag, value in zip(self.ragged.nodes(known), values, strict=True):
            log = jnp.log(jnp.maximum(value, LEAST))  # stronger than a message: what is observed is believed
            log = jnp.where(flag[..., None], log[..., 1:] - log[..., :1], 0)
            w = self.width_of[value.shape[-1]]
            rows[w].append(jnp.pad(log, ((0, 0), (0, 0), (0, w - value.shape[-1])), constant_values=2 * NEVER))
        found = {w: jnp.moveaxis(lax.optimization_barrier(jnp.concatenate(parts, axis=1)), 0, -1) for w, parts in rows.items()}
        order = self.ragged.order
        places = {w: np.argsort(self.place[order[self.widths[order] == w]]) for w in rows}
        return {w: lax.optimization_barrier(gathered(a, places[w])) for w, a in found.items()}


def shared_levels(net: Network, kinds: Sequence[Hashable]) -> Ints:
    """Levels of nodes, parents before children, so that nodes of a kind share them as far as they can: each is an operation of its own.

    >>> import unimarg as um
    >>> shared_levels(um.example("asia"), ["root", "root", *["node"] * 6]).tolist()
    [0, 0, 1, 1, 1, 2, 3, 3]
    """
    level = [-1] * len(net)
    count = Counter(kinds)
    for kind in sorted(count, key=lambda k: (count[k], str(k))):
        while open_ := [i for i in range(len(net)) if kinds[i] == kind and level[i] < 0]:
            least, most = _bounds(net, level)
            here = min(most[i] for i in open_)
            chosen = {i for i in open_ if least[i] <= here}
            behind = [False] * len(net)  # a chosen one, which cannot share its level
            for i, parents in enumerate(net.parents):
                behind[i] = any(p in chosen or behind[p] for p in parents)
            for i in chosen:
                level[i] = -1 if behind[i] else here
    return np.array(level)


def _bounds(net: Network, level: list[int]) -> tuple[list[int], list[int]]:
    """The first and last level that each node could have, given those that are fixed."""
    least: list[int] = []
    for fixed, parents in zip(level, net.parents, strict=True):
        least.append(max(fixed, max((least[p] + 1 for p in parents), default=0)))
    most = [max(least)] * len(net)
    for i in range(len(net))[::-1]:
        most[i] = level[i] if level[i] >= 0 else most[i]
        for p in net.parents[i]:
            most[p] = min(most[p], most[i] - 1)
    return least, most


def _put(array: jax.Array, rows: jax.Array, where: slice) -> jax.Array:
    """Rows in place of others."""
    return lax.dynamic_update_slice_in_dim(array, jnp.broadcast_to(rows, array[where].shape), where.start, 0)


def _step(change: jax.Array, before: jax.Array) -> jax.Array:
    """How far a message goes that would change so much: where it swings back, as far as a line through both changes is 0 (a secant)."""
    return jnp.where(change * before < 0, change * before / (before - change), change)


def _of_independent(mechanism: Table | NoisyMax, parents: list[Floats]) -> Floats:
    """P(X) of independent parents."""
    if isinstance(mechanism, NoisyMax):
        log_leak, effects = mechanism.log_cdfs
        with np.errstate(divide="ignore"):
            log_cdf = log_leak + sum(np.log(p @ np.exp(log)) for p, log in zip(parents, effects, strict=True))
        return np.maximum(np.diff(np.exp(log_cdf), prepend=0), 0)
    out = mechanism.probabilities
    for p in parents:
        out = (p @ out.reshape(len(p), -1)).reshape(out.shape[1:])
    return out


def _stronger(a: jax.Array, b: jax.Array) -> jax.Array:
    """Whichever is further from 0."""
    return jnp.where(jnp.abs(a) >= jnp.abs(b), a, b)


def _log_odds(log_p: jax.Array) -> jax.Array:
    return log_p - jnp.log(-jnp.expm1(log_p))
