"""How evidence enters the neural network (paper, section 4).

Every node has a flag, 1 where something is known of it, and a value slot for each state but the first:

    two_bit   the value where known (0 or 1; a likelihood where uncertain), 0 where not
    prior     the value where known, the prior probability where not (the paper's 33 bits)

For a binary node these are the paper's two numbers. Virtual evidence enters as its normalised likelihood,
of which hard evidence is the one-hot case. What is hidden never reaches the encoding.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

import jax
import jax.numpy as jnp

from unimarg.ragged import Parts, Ragged

Encoding: TypeAlias = Literal["two_bit", "prior"]
ENCODINGS: tuple[str, ...] = get_args(Encoding)


BELIEF_SCALE = 0.25  # logits of beliefs go up to 20


def inputs(ragged: Ragged, beliefs: bool) -> int:
    """Numbers that ``encode`` makes of a sample."""
    return len(ragged.cards) + (2 if beliefs else 1) * ragged.slots


def encode(
    encoding: Encoding,
    known: jax.Array,
    values: Parts,
    ragged: Ragged,
    priors: jax.Array,
    beliefs: jax.Array | None = None,
    dtype: Any = jnp.float32,
) -> jax.Array:
    """``[samples, inputs]`` from ``known [samples, nodes]`` (bool) and values ``[samples, nodes, K]``.

    Nodes lie in the order of ``ragged``; ``priors [slots]`` are P(node = state), ``beliefs [samples, slots]`` logits that are
    given as well (see ``propagation``).
    """
    slots = []
    for flag, value, prior in zip(ragged.nodes(known), values, ragged.split(priors), strict=True):
        hidden = prior if encoding == "prior" else jnp.zeros_like(prior)
        shown = jnp.where(flag[..., None], value[..., 1:], hidden)
        slots.append(shown.reshape(*shown.shape[:-2], -1))
    # one concatenation and none inside another: XLA has been seen to get nested ones wrong (jax issue 40588)
    extra = [] if beliefs is None else [BELIEF_SCALE * beliefs]
    return jnp.concatenate([a.astype(dtype) for a in (known, *slots, *extra)], axis=-1)


def one_hot(states: jax.Array, ragged: Ragged, dtype: Any = jnp.float32) -> Parts:
    """``[samples, nodes]`` states as values ``[samples, nodes, K]``; a negative state gives zeros."""
    return [
        (part[..., None] == jnp.arange(k, dtype=states.dtype)).astype(dtype)
        for part, (k, _) in zip(ragged.nodes(states), ragged.groups, strict=True)
    ]
