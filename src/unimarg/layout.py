"""A network as arrays: what ``compiled`` computes with.

Nodes that are computed alike (mechanism, number of parents, padded number of states) are of one kind;
blocks of ``width`` nodes of one kind are computed together, parents first.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from unimarg.errors import UsageError
from unimarg.network import Floats, Mechanism, Network, NoisyMax, Table

FINE = 1e-6  # a probability below this needs 64 random bits
TURN = 4  # parents that a noisy-max adds at a time: fewer passes over the sums
MAX_CHUNK, MAX_CHUNK_ACCELERATED = 1 << 16, 1 << 18
CHUNK_BYTES, CHUNK_BYTES_ACCELERATED = 1 << 27, 1 << 29
WIDEST, A_START = 64, 8  # nodes of a block; starting one takes as long as so many nodes
MAX_NODES = 1 << 22  # node numbers share a counter word with the sample index's upper bits


class Kind(NamedTuple):
    """Nodes of one kind share a program."""

    noisy: bool
    parents: int  # of a table; a noisy-max loops over as many as its block needs
    card: int  # a power of two
    parent_card: int  # of a noisy-max, a power of two; 0 for a table
    fine: bool


class Tables(NamedTuple):
    """Tables of one number of states and resolution, row after row."""

    high: jax.Array  # uint32 [rows * (card - 1)]: 2^32 P(X > k)
    low: jax.Array  # uint32, the next 32 bits; empty unless fine
    log_p: jax.Array  # float32 [rows * card]


class TableBlocks(NamedTuple):
    parents: jax.Array  # int32 [blocks, width, parents]: rows of the states
    strides: jax.Array  # int32, likewise
    offset: jax.Array  # int32 [blocks, width]: first row in Tables


class NoisyBlocks(NamedTuple):
    turns: jax.Array  # int32 [blocks]: of TURN parents each, as many as the block's nodes need
    wide: jax.Array  # int32 [blocks]: the first of these, which hold all parents of more than two states
    parents: jax.Array  # int32 [blocks, width, most parents]
    leak: jax.Array  # float32 [blocks, width, card - 1]: D_1 .. D_{card-1} of the leak
    steps: jax.Array  # float32 [blocks, width, most parents, parent_card - 1, card - 1]: of a parent's states 1, 2, ...


class Schedule(NamedTuple):
    """Which block comes when; one entry for each block."""

    kind: jax.Array  # int32
    position: jax.Array  # int32: among the blocks of its kind
    start: jax.Array  # int32: its first row
    nodes: jax.Array  # int32 [blocks, width]: node numbers, -1 for padding


class Arrays(NamedTuple):
    schedule: Schedule
    blocks: tuple[TableBlocks | NoisyBlocks, ...]  # one for each kind
    tables: tuple[Tables, ...]  # one for each pair (card, fine)
    row: jax.Array  # int32 [nodes]


class Layout(NamedTuple):
    """The part of a compiled network that decides the program: networks that share it share the program."""

    kinds: tuple[Kind, ...]
    table_index: tuple[int, ...]  # for each kind, its entry in Arrays.tables (-1 for a noisy-max)
    rows: int
    width: int
    card: int  # the padded number of states that log_conditionals uses
    dtype: str


@dataclass(frozen=True, eq=False)
class CompiledNetwork:
    """What ``compile_network`` makes; node i lies in row ``arrays.row[i]`` of the states."""

    layout: Layout
    arrays: Arrays

    @property
    def chunk(self) -> int:
        """Samples in a chunk, a power of two: as many as run well, fewer where the states would take much memory."""
        accelerated = jax.default_backend() != "cpu"
        most, fits = (MAX_CHUNK_ACCELERATED, CHUNK_BYTES_ACCELERATED) if accelerated else (MAX_CHUNK, CHUNK_BYTES)
        size = fits // (self.layout.rows * np.dtype(self.layout.dtype).itemsize)
        return min(most, 1 << (max(size, 64).bit_length() - 1))


def compile_network(net: Network, width: int | None = None) -> CompiledNetwork:
    """Arrays for a network; ``width`` is the number of nodes in a block.

    A CPU is fastest with one node at a time over many samples, which it vectorises; other devices want
    wide blocks.
    """
    if len(net) > MAX_NODES:
        raise UsageError(f"the network has {len(net)} variables; at most {MAX_NODES} can be compiled")
    kinds_of = [_kind(m) for m in net.mechanisms]
    if width is None:
        width = 1 if jax.default_backend() == "cpu" else _best_width(net, kinds_of)
    packed = _pack(net, kinds_of, width)
    kinds = tuple(sorted({k for k, _ in packed}))
    row = np.zeros(len(net), dtype=np.int64)
    for b, (_, nodes) in enumerate(packed):
        row[nodes] = b * width + np.arange(len(nodes))
    table_keys = sorted({(k.card, k.fine) for k in kinds if not k.noisy})
    tables, offset = [], {}
    for card, fine in table_keys:
        tables.append(_tables(net, kinds_of, card, fine, offset))
    blocks = []
    for k in kinds:
        members = [nodes for kind, nodes in packed if kind == k]
        blocks.append(noisy_blocks(net, k, members, row, width) if k.noisy else _table_blocks(net, k, members, row, offset, width))
    layout = Layout(
        kinds=kinds,
        table_index=tuple(-1 if k.noisy else table_keys.index((k.card, k.fine)) for k in kinds),
        rows=len(packed) * width,
        width=width,
        card=max(k.card for k in kinds),
        dtype="int8" if net.cards.max() <= 127 else "int16" if net.cards.max() < 2**15 else "int32",
    )
    return CompiledNetwork(layout, Arrays(_schedule(packed, kinds, width), tuple(blocks), tuple(tables), _ints(row)))


# --- packing nodes into blocks


def power_of_two(n: int) -> int:
    return 1 << max(1, (n - 1).bit_length())


def _kind(m: Mechanism) -> Kind:
    card = power_of_two(m.card)
    if isinstance(m, Table):
        p = m.probabilities
        return Kind(False, len(m.parent_cards), card, 0, bool(((p > 0) & (p < FINE)).any()))
    rare = min((c[c > 0].min() for c in (m.leak, *m.contributions)), default=1.0)
    return Kind(True, 0, card, power_of_two(max(m.parent_cards, default=2)), bool(rare < FINE))


def _pack(net: Network, kinds: list[Kind], width: int) -> list[tuple[Kind, list[int]]]:
    """Blocks in an order that puts parents first: again and again one of the kind with most nodes ready."""
    if width == 1:
        return [(kind, [i]) for i, kind in enumerate(kinds)]
    waiting = [len(pa) for pa in net.parents]
    # heaps by the number of parents: neighbours in this order have about as many, so that a noisy block wastes little work
    ready: dict[Kind, list[tuple[int, int]]] = {}
    for i, w in enumerate(waiting):
        if w == 0:
            heappush(ready.setdefault(kinds[i], []), (0, i))
    packed: list[tuple[Kind, list[int]]] = []
    while any(ready.values()):
        kind = max(ready, key=lambda k: len(ready[k]))
        queue = ready[kind]
        block = [heappop(queue)[1] for _ in range(min(width, len(queue)))]
        packed.append((kind, block))
        for i in block:
            for c in net.children[i]:
                waiting[c] -= 1
                if waiting[c] == 0:
                    heappush(ready.setdefault(kinds[c], []), (len(net.parents[c]), c))
    return packed


def _best_width(net: Network, kinds: list[Kind]) -> int:
    """That takes a GPU the least time: wide blocks are few, but hold more padding."""

    def cost(width: int) -> int:
        return len(_pack(net, kinds, width)) * (width + A_START)

    width = min(WIDEST, power_of_two(len(net)))
    least = cost(width)
    while width > 2 and (narrower := cost(width // 2)) < least:
        width, least = width // 2, narrower
    return width


def _schedule(packed: list[tuple[Kind, list[int]]], kinds: tuple[Kind, ...], width: int) -> Schedule:
    seen = dict.fromkeys(kinds, 0)
    position, nodes = [], np.full((len(packed), width), -1)
    for b, (kind, members) in enumerate(packed):
        position.append(seen[kind])
        seen[kind] += 1
        nodes[b, : len(members)] = members
    return Schedule(*(_ints(a) for a in ([kinds.index(k) for k, _ in packed], position, np.arange(len(packed)) * width, nodes)))


def _ints(a: Any) -> jax.Array:
    return jnp.asarray(np.asarray(a, dtype=np.int32))


# --- tables


def _tables(net: Network, kinds: list[Kind], card: int, fine: bool, offset: dict[int, int]) -> Tables:
    """All tables of one padded number of states; ``offset`` learns the row where each node's begins."""
    parts: list[Floats] = []
    at = 0
    for i, m in enumerate(net.mechanisms):
        if isinstance(m, Table) and (kinds[i].card, kinds[i].fine) == (card, fine):
            flat = m.probabilities.reshape(-1, m.card)
            parts.append(np.pad(flat, ((0, 0), (0, card - m.card))))
            offset[i] = at
            at += len(flat)
    p = np.concatenate(parts)
    high, low = tail_words(p)
    with np.errstate(divide="ignore"):
        log_p = np.log(p).astype(np.float32)
    return Tables(jnp.asarray(high.ravel()), jnp.asarray(low.ravel()[: low.size * fine]), jnp.asarray(log_p.ravel()))


def over_states(p: Floats) -> Floats:
    """The sum over the last axis, state by state: NumPy is slow along an axis that is short."""
    return sum((p[..., k] for k in range(1, p.shape[-1])), p[..., 0])


def running_sums(p: Floats) -> Floats:
    """np.cumsum along the last axis, likewise."""
    out = p.copy()
    for k in range(1, p.shape[-1]):
        out[..., k] += out[..., k - 1]
    return out


def scaled_tails(p: Floats) -> Floats:
    """2^32 P(X > k), for k = 0 .. card-2."""
    head = running_sums(p[:, :-1])
    tail = running_sums(p[:, :0:-1])[:, ::-1]
    scaled = np.where(tail <= 0.5, tail * 2.0**32, 2.0**32 - head * 2.0**32)  # the smaller side has the digits
    return np.where(tail <= 0, 0, np.where(head <= 0, 2.0**32, scaled))


def tail_words(p: Floats) -> tuple[np.ndarray, np.ndarray]:
    """2^64 P(X > k) as two words, for k = 0 .. card-2; certain is all ones, which no masked word reaches."""
    scaled = scaled_tails(p)
    high = np.minimum(np.floor(scaled), 2.0**32 - 1)
    low = np.minimum(np.floor((scaled - high) * 2.0**32), 2.0**32 - 1)
    return high.astype(np.uint32), low.astype(np.uint32)


def _table_blocks(net: Network, kind: Kind, blocks: list[list[int]], row: np.ndarray, offset: dict[int, int], width: int) -> TableBlocks:
    parents = np.zeros((len(blocks), width, kind.parents))
    strides = np.zeros_like(parents)
    offsets = np.zeros((len(blocks), width))
    for b, nodes in enumerate(blocks):
        for w, i in enumerate(nodes):
            cards = net.mechanisms[i].parent_cards
            parents[b, w] = row[list(net.parents[i])]
            strides[b, w] = np.cumprod((1, *cards[:0:-1]))[::-1] if cards else ()
            offsets[b, w] = offset[i]
    return TableBlocks(_ints(parents), _ints(strides), _ints(offsets))


# --- noisy-max


def noisy_blocks(net: Network, kind: Kind, blocks: list[list[int]], row: np.ndarray, width: int) -> NoisyBlocks:
    turns = [-(-max(len(net.parents[i]) for i in nodes) // TURN) for nodes in blocks]
    wide = [-(-max(sum(k > 2 for k in net.mechanisms[i].parent_cards) for i in nodes) // TURN) for nodes in blocks]
    most = TURN * max(*turns, 1)  # a noisy-max may have no parents
    parents = np.zeros((len(blocks), width, most))
    leak = np.zeros((len(blocks), width, kind.card - 1), np.float32)
    steps = np.zeros((len(blocks), width, most, kind.parent_card - 1, kind.card - 1), np.float32)
    for b, nodes in enumerate(blocks):
        for w, i in enumerate(nodes):
            m = net.mechanisms[i]
            assert isinstance(m, NoisyMax)
            own, effects = m.steps
            leak[b, w, : m.card - 1] = own
            for slot, j in enumerate(parent_order(m)):
                parents[b, w, slot] = row[net.parents[i][j]]
                steps[b, w, slot, : len(effects[j]) - 1, : m.card - 1] = effects[j][1:]
    return NoisyBlocks(_ints(turns), _ints(wide), _ints(parents), jnp.asarray(leak), jnp.asarray(steps))


def parent_order(m: NoisyMax) -> list[int]:
    """Those of more than two states first."""
    return sorted(range(len(m.parent_cards)), key=lambda j: m.parent_cards[j] <= 2)
