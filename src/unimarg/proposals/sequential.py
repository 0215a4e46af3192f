"""SUM-IS: every node given the evidence and all that was drawn before it (paper, section 3).

Without ``structure`` q_i = UM_i(e, x_1 .. x_{i-1}), the paper to the letter. With it q_i = P(x_i | pa_i) where no finding lies below i, and
elsewhere q_i is proportional to P(x_i | pa_i) exp(h_i), with h from a student or from the message head of a network of one hidden layer;
one that has no message head gives UM_i there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from unimarg.conditionals import Query
from unimarg.counter import Key, key_from_seed
from unimarg.errors import UsageError
from unimarg.frame import frame_of
from unimarg.importance import Draw, Drawn, Weigh, first_sample
from unimarg.incremental import Layer, make_findings, sequential_draw, student_layer, trunk_layer
from unimarg.layout import compile_network
from unimarg.nets import columns, leading_bits

if TYPE_CHECKING:
    from unimarg.marginalizer import Marginalizer


def sequential(model: Marginalizer, query: Query, structure: bool = True, nets: bool = True) -> tuple[Draw, Weigh]:
    net = model.net
    if not model.sequential:
        advice = "train with the preset 'paper', or with student=256 (--option)"
        raise UsageError(f"sequential needs a network of one hidden layer or a student; {advice}")
    if not structure and model.student is not None:
        raise UsageError("sequential with structure=False (--no-structure) needs one hidden layer, such as the preset 'paper' has")
    tilted = structure and (model.student is not None or "message" in model.recipe.architecture.heads)  # a table times exp(h)
    everywhere = np.ones(len(net), dtype=bool)
    table = (everywhere if tilted else ~query.below) if structure else ~everywhere
    findings = make_findings(net, query.evidence, table, query.below if structure else everywhere)
    layer = _layer(model, query, "message" if tilted else "marginal")
    compiled = compile_network(net, width=1)
    points = jnp.asarray(columns()[frame_of(net).points[: len(net)]])

    def draw(key: Key, first: jax.Array, n: int) -> Drawn:
        numbers = {"columns": points, "leading": leading_bits(nets)}
        drawn = sequential_draw(compiled.layout, compiled.arrays, key, first, n, layer, findings, **numbers)
        return drawn.states, drawn.log_weight, None

    def weigh(states: jax.Array) -> tuple[jax.Array, None]:
        unused = key_from_seed(0), first_sample(0)
        return sequential_draw(compiled.layout, compiled.arrays, *unused, states.shape[1], layer, findings, forced=states).log_weight, None

    return draw, weigh


def _layer(model: Marginalizer, query: Query, head: str) -> Layer:
    known, values = model.arrays([query.evidence])
    if model.student is None:
        return trunk_layer(
            model.trunk,
            head,
            model.recipe.encoding,
            model.ragged,
            *model.passes.prior_slots,
            jnp.asarray(known),
            [jnp.asarray(v) for v in values],
        )
    virtual = np.zeros(len(model.net), dtype=bool)
    virtual[list(query.evidence.virtual)] = True
    messages = None
    if "message" in model.recipe.architecture.heads:
        messages = jnp.asarray(model.messages(query.evidence)[:, 1:], jnp.float32)
    return student_layer(model.student, jnp.asarray(model.features(query.evidence)), messages, jnp.asarray(virtual))
