"""How evidence enters the neural network (paper, section 4).

Every node has a flag, 1 where something is known of it, and a value slot for each state but the first:

    two_bit   the value where known (0 or 1; a likelihood where uncertain), 0 where not
    prior     the value where known, the prior probability where not (the paper's 33 bits)

For a binary node these are the paper's two numbers. Virtual evidence enters as its normalised likelihood,
of which hard evidence is the one-hot case. What is hidden never reaches the encoding.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import jax
import jax.numpy as jnp

from unimarg.ragged import Ragged

Encoding: TypeAlias = Literal["two_bit", "prior"]
ENCODINGS: tuple[str, ...] = get_args(Encoding)


def encode(encoding: Encoding, known: jax.Array, values: jax.Array, ragged: Ragged, priors: jax.Array) -> jax.Array:
    """``[samples, nodes + slots]`` from ``known [samples, nodes]`` (bool) and ``values [samples, slots]``.

    Nodes and slots lie in the order of ``ragged``; ``priors [slots]`` are P(node = state).
    """
    shown = slot_flags(known, ragged)
    hidden = priors if encoding == "prior" else jnp.zeros_like(priors)
    return jnp.concatenate([known.astype(values.dtype), jnp.where(shown, values, hidden)], axis=-1)


def slot_flags(known: jax.Array, ragged: Ragged) -> jax.Array:
    """``[..., nodes]`` repeated for each of a node's slots, ``[..., slots]``."""
    parts, at = [], 0
    for k, n in ragged.groups:
        part = known[..., at : at + n, None]
        parts.append(jnp.broadcast_to(part, (*part.shape[:-1], k - 1)))
        at += n
    return ragged.join(parts)


def one_hot(states: jax.Array, ragged: Ragged, dtype: jax.typing.DTypeLike = jnp.float32) -> jax.Array:
    """``[..., nodes]`` states as values ``[..., slots]``: 1 in the slot of the state, none for state 0."""
    parts, at = [], 0
    for k, n in ragged.groups:
        part = states[..., at : at + n, None]
        parts.append((part == jnp.arange(1, k, dtype=states.dtype)).astype(dtype))
        at += n
    return ragged.join(parts)
