"""SUM-IS at the price of about one forward pass (paper, section 3): samples node by node from a network of one hidden layer.

In topological order each node is drawn from q_i, given the evidence and all that was drawn before it. From one node to the next a
single input changes, so the hidden layer's pre-activation a grows by one row of its weights, and only the output of node i is read:

    h_i = U_i . relu(a) + c_i,     x_i ~ q_i,     a <- a + W[i, x_i]

N steps cost what one full pass costs, in place of N passes, with the same densities. q_i is a product of up to three factors:

    P(x_i | pa_i)     where ``table``: the table or noisy-max with the sampled parents
    L_i(x_i)          where ``table``: a virtual finding on i
    exp(h_i(x_i))     where ``tilt``

SUM-IS as published is ``tilt`` alone, with h the logits of UM_i. Where no finding lies below i, ``table`` alone is exact.

Pre-activations lie as ``[samples, units]``, for a block of samples that stays in the cache while all nodes are walked through.
"""

from __future__ import annotations

from functools import partial, reduce
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from unimarg.compiled import ONE_CORE, add_precisely, log_p_of_block
from unimarg.counter import Key
from unimarg.encoding import Encoding, encode, starts
from unimarg.evidence import Evidence
from unimarg.layout import Arrays, Layout, Schedule
from unimarg.nets import BITS, Numbers, leading_bits
from unimarg.network import Network
from unimarg.ragged import Parts, Ragged
from unimarg.student import Student
from unimarg.trunk import Trunk

Bools: TypeAlias = NDArray[np.bool_]

INDEPENDENT = leading_bits(nets=False)
BLOCK = 64  # samples walked through the nodes together on a CPU, where their pre-activations fit into a cache
BLOCK_BYTES = 1 << 30  # of pre-activations on another device, which wants as many samples as there are
LANES = 128  # partial sums of a dot product: XLA vectorises these on a CPU, and not the product itself
FEW_STATES = 4  # up to here rows are chosen by comparison, beyond by a product


class Layer(NamedTuple):
    """One hidden layer for one evidence set."""

    start: jax.Array  # a before the first node is drawn, [units]
    rows: jax.Array  # W, [nodes, K, units]
    out: jax.Array  # U, [nodes, K - 1, units]
    bias: jax.Array  # c, [nodes, K - 1]


class Findings(NamedTuple):
    """What is known of each node, and which factors its q has."""

    observed: jax.Array  # int32 [nodes], -1 where to be drawn
    log_likelihood: jax.Array  # [nodes, K]: log L; 0 where nothing is known, -inf for states that a node lacks
    virtual: jax.Array  # bool [nodes]: L is not 1
    table: jax.Array  # bool [nodes]
    tilt: jax.Array  # bool [nodes]


def make_findings(net: Network, evidence: Evidence, table: Bools, tilt: Bools) -> Findings:
    """Evidence as arrays; ``table`` and ``tilt`` are bool [nodes]."""
    observed = np.array([evidence.hard.get(i, -1) for i in range(len(net))], dtype=np.int32)
    log_likelihood = np.full((len(net), max(2, *net.cards)), -np.inf, dtype=np.float32)
    for i, k in enumerate(net.cards):
        with np.errstate(divide="ignore"):
            log_likelihood[i, :k] = np.log(evidence.virtual.get(i, np.ones(k)))
    virtual = np.isin(np.arange(len(net)), list(evidence.virtual))
    return Findings(*map(jnp.asarray, (observed, log_likelihood, virtual, table, tilt)))


class SequentialDraws(NamedTuple):
    states: jax.Array  # [nodes, samples]
    log_weight: jax.Array  # [samples]: log P(x) + log L(x) - log q(drawn x)
    log_q: jax.Array | None  # [nodes, samples] if asked for; 0 where observed


@partial(jax.jit, static_argnames=("layout", "n", "block", "densities"), compiler_options=ONE_CORE)
def sequential_draw(
    layout: Layout,
    arrays: Arrays,
    key: Key,
    first: jax.Array,
    n: int,
    layer: Layer,
    findings: Findings,
    block: int | None = None,
    densities: bool = False,
    forced: jax.Array | None = None,
    columns: jax.Array | None = None,
    leading: jax.Array | np.uint32 = INDEPENDENT,
) -> SequentialDraws:
    """n samples of one evidence set; ``layout`` must be of width 1, ``first`` is as for ``compiled.draw_states``.

    The number drawn for (sample, node) depends on the key and these two alone, whatever ``block`` is. With ``columns [nodes, BITS]`` of the
    nodes' points and ``leading`` bits of them samples fill space (``nets``), else they are independent. With ``forced`` states
    ``[nodes, n]`` nothing is drawn: these states' weights are given.
    """
    assert layout.width == 1
    layer = _padded(layer)
    units = layer.start.shape[0]
    if block is None:
        fits = 1 << (BLOCK_BYTES // (4 * units)).bit_length() - 1
        block = BLOCK if jax.default_backend() == "cpu" else max(fits, BLOCK)
    block = min(block, n)
    assert n % block == 0
    start = jnp.broadcast_to(layer.start, (block, units))
    # a node's own program: of its kind, drawn or observed
    branches = [partial(_draw, layout, arrays, k) for k in range(len(layout.kinds))]
    branches += [partial(_observe, layout, arrays, k) for k in range(len(layout.kinds))]

    def walk(number: jax.Array) -> tuple[jax.Array, ...]:
        numbers = Numbers.make(key, first.at[0].add(number * np.uint32(block)), block, leading)
        fixed = None if forced is None else lax.dynamic_slice_in_dim(forced, number.astype(jnp.int32) * block, block, axis=1)

        def step(carry: tuple[jax.Array, ...], now: tuple[Schedule, Layer, Findings, jax.Array]) -> tuple[tuple[jax.Array, ...], Any]:
            before, states, log_weight, lost = carry
            schedule, mine, known, points = now
            high, low = numbers.words(schedule.nodes[0], points)
            which = schedule.kind + len(layout.kinds) * (known.observed >= 0)
            state = None if fixed is None else lax.dynamic_index_in_dim(fixed, schedule.start, 0, keepdims=False).astype(jnp.int32)
            node = _Node(schedule.position, mine, known, before, states, high, low, state)
            state, gain, log_q, rows = lax.switch(which, branches, node)
            states = lax.dynamic_update_slice(states, state.astype(layout.dtype)[None], (schedule.start, 0))
            return (_grown(before, state, rows), states, *add_precisely(log_weight, lost, gain)), (log_q if densities else None)

        begin = (start, jnp.zeros((layout.rows, block), layout.dtype), jnp.zeros(block), jnp.zeros(block))
        points = jnp.zeros((layout.rows, BITS), jnp.uint32) if columns is None else columns
        each = (arrays.schedule, Layer(jnp.zeros(layout.rows), *layer[1:]), findings, points)
        (_, states, log_weight, _), log_q = lax.scan(step, begin, each)
        return states, log_weight, log_q

    states, log_weight, log_q = lax.map(walk, lax.iota(jnp.uint32, n // block))
    states, log_q = (None if a is None else jnp.moveaxis(a, 0, 1).reshape(layout.rows, n) for a in (states, log_q))
    assert states is not None
    return SequentialDraws(states, log_weight.reshape(n), log_q)


class _Node(NamedTuple):
    """Everything that the step of one node needs."""

    position: jax.Array
    layer: Layer  # its own rows
    known: Findings
    before: jax.Array  # [samples, units]
    states: jax.Array
    high: jax.Array
    low: jax.Array
    fixed: jax.Array | None = None  # the state, where it is not drawn


def _draw(layout: Layout, arrays: Arrays, k: int, node: _Node) -> tuple[jax.Array, ...]:
    """The state drawn, log P + log L - log q of it, log q, and the rows for ``_grown``.

    State by state, so that a CPU gets one loop over the samples in place of many small ones.
    """
    known, card = node.known, min(layout.kinds[k].card, node.layer.rows.shape[0])
    log_p = [p[0] for p in log_p_of_block(layout, arrays, k, node.position, node.states)[:card]]
    lik = [known.log_likelihood[s] for s in range(card)]
    out, bias = node.layer.out[: card - 1], node.layer.bias[: card - 1]
    tilted = lax.cond(known.tilt, lambda: _outputs(node.before, out, bias), lambda: jnp.zeros((card - 1, node.high.shape[0])))
    h = [jnp.zeros_like(log_p[0]), *tilted]
    score = [h[s] + jnp.where(known.table, log_p[s] + lik[s], jnp.where(jnp.isneginf(lik[s]), -jnp.inf, 0)) for s in range(card)]
    top = reduce(jnp.maximum, score)
    top = jnp.where(jnp.isneginf(top), 0, top)
    mass = [jnp.exp(a - top) for a in score]
    total = reduce(jnp.add, mass)
    state = _invert([m / total for m in mass], node.high, node.low) if node.fixed is None else node.fixed
    log_z = top + jnp.log(total)

    def at(values: list[jax.Array]) -> jax.Array:
        return reduce(lambda a, s: jnp.where(state == s, values[s], a), range(1, card), values[0])

    log_q = at(score) - jnp.where(total > 0, log_z, 0)  # a dead end, where no state is left, gets the weight 0
    gain = jnp.where(known.table, log_z - at(h), at([p + v for p, v in zip(log_p, lik, strict=True)]) - log_q)
    # exactly 0 where q is the table itself
    own = known.table & ~known.tilt & ~known.virtual
    return state, jnp.where(own & (total > 0), 0, gain), log_q, node.layer.rows


def _observe(layout: Layout, arrays: Arrays, k: int, node: _Node) -> tuple[jax.Array, ...]:
    """As ``_draw``, where there is nothing to draw and the layer knows already."""
    log_p = [p[0] for p in log_p_of_block(layout, arrays, k, node.position, node.states)]
    state = jnp.broadcast_to(node.known.observed, node.high.shape)
    gain = reduce(lambda a, s: jnp.where(state == s, log_p[s], a), range(1, len(log_p)), log_p[0])
    return state, gain, jnp.zeros_like(gain), jnp.zeros_like(node.layer.rows)


def _outputs(before: jax.Array, out: jax.Array, bias: jax.Array) -> jax.Array:
    """h_i(1), h_i(2), ..., ``[states, samples]``."""
    precise = lax.Precision.HIGHEST
    if len(out) > 1:
        return jnp.dot(out, jax.nn.relu(before).T, precision=precise) + bias[:, None]
    parts = [jax.nn.relu(before[:, at : at + LANES]) * out[0, at : at + LANES] for at in range(0, before.shape[1], LANES)]
    return (jnp.dot(sum(parts[1:], parts[0]), jnp.ones(LANES), precision=precise) + bias[0])[None]


def _grown(before: jax.Array, state: jax.Array, rows: jax.Array) -> jax.Array:
    """a + W[i, x_i]."""
    if len(rows) > FEW_STATES:
        chosen = (state[:, None] == jnp.arange(len(rows))).astype(jnp.float32)
        return before + jnp.dot(chosen, rows, precision=lax.Precision.HIGHEST)
    added = jnp.broadcast_to(rows[0], before.shape)
    for k in range(1, len(rows)):
        added = jnp.where((state == k)[:, None], rows[k], added)
    return before + added


def _invert(q: list[jax.Array], high: jax.Array, low: jax.Array) -> jax.Array:
    """The state whose share of [0, 1] holds the random number: how many k have u < q(x > k).

    Small probabilities keep their digits at both ends; what has none is never drawn.
    """
    below, above = _fraction(high, low), _fraction(~high, ~low)  # u and 1 - u
    heads = list(accumulate(q))[:-1]  # q(x <= k)
    tails = list(accumulate(q[:0:-1]))[::-1]  # q(x > k)
    state = jnp.zeros(high.shape, jnp.int32)
    for head, tail in zip(heads, tails, strict=True):
        state = state + jnp.where(tail <= 0.5, below < tail, above >= head)
    return state


def _fraction(high: jax.Array, low: jax.Array) -> jax.Array:
    return (high.astype(jnp.float32) + low.astype(jnp.float32) * np.float32(2.0**-32)) * np.float32(2.0**-32)


def _padded(layer: Layer) -> Layer:
    """With units that are always 0 up to a multiple of ``LANES``."""
    more = -layer.start.shape[0] % LANES
    start, rows, out = (jnp.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, more)]) for a in (layer.start, layer.rows, layer.out))
    return Layer(start, rows, out, layer.bias)


# --- where layers come from


def student_layer(student: Student, features: jax.Array, messages: jax.Array | None, virtual: jax.Array) -> Layer:
    """Of a student, from the trunk's ``features [width]`` and its message head, ``[nodes, K - 1]``, if there is one.

    ``virtual``, bool [nodes], has the nodes with a virtual finding; see ``student.py``.
    """
    start = jnp.dot(features, student.evidence.weight, precision=lax.Precision.HIGHEST) + student.evidence.bias
    more = 0 if messages is None else jnp.where(virtual[:, None], 0, messages)
    return Layer(start, student.rows, student.out, student.bias + more)


def trunk_layer(
    trunk: Trunk, head: str, encoding: Encoding, ragged: Ragged, priors: jax.Array, prior_logits: jax.Array, known: jax.Array, values: Parts
) -> Layer:
    """Of a plain trunk with one hidden layer, from evidence as for ``encode`` with one row.

    When a node becomes known for certain its flag becomes 1 and its value replaces what stood in its slots.
    """
    made = trunk.architecture
    assert not made.residual
    assert len(made.hidden) == 1
    nodes, slot = len(ragged.cards), ragged.slot
    x = encode(encoding, known, values, ragged, priors)
    weight, bias = trunk.layers[0].weight, trunk.layers[0].bias
    start = jnp.dot(x[0], weight, precision=lax.Precision.HIGHEST) + bias
    place = jnp.asarray(ragged.place)
    value = jnp.pad(weight[nodes:], ((0, 1), (0, 0)))[slot]  # [nodes, K - 1, units]
    now = jnp.pad(x[0, nodes:], (0, 1))[slot]
    base = (1 - x[0, place])[:, None] * weight[place] - (now[..., None] * value).sum(axis=1)
    rows = base[:, None] + jnp.pad(value, ((0, 0), (1, 0), (0, 0)))

    def outputs(number: int) -> tuple[jax.Array, jax.Array]:
        at = slice(number * ragged.slots, (number + 1) * ragged.slots)
        return trunk.head.weight[:, at], trunk.head.bias[at]

    weight, shift = outputs(made.heads.index(head))
    if made.from_prior and head == "marginal":  # a message's start is L_i, which is not h's business
        begin = starts(encoding, known, values, ragged, prior_logits).get(head, prior_logits[None])[0]
        shift = shift + begin
        if made.gated:  # what it weighs is constant here
            gate, bias = outputs(len(made.heads))
            weight, shift = weight + gate * begin, shift + bias * begin
    return Layer(start, rows, jnp.pad(weight, ((0, 0), (0, 1))).T[slot], jnp.pad(shift, (0, 1))[slot])
