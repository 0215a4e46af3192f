"""How evidence enters the neural network (paper, section 4).

Every node has a flag, 1 where something is known of it, and a value slot for each state but the first:

    two_bit   the value where known (0 or 1; a likelihood where uncertain), 0 where not
    prior     the value where known, the prior probability where not (the paper's 33 bits)
    graded    as two_bit, but where uncertain the flag says how much is told, the largest likelihood less the smallest, and the
              value is that times P(x_i = k | this finding alone)

For a binary node the first two are the paper's two numbers. Virtual evidence enters them as its normalised likelihood,
of which hard evidence is the one-hot case. But a weak finding is then as far from none as a strong one, and a network that has
seen few of them answers worse than if it had not been told at all; graded, it lies between the two. What is hidden never
reaches the encoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, get_args

import jax
import jax.numpy as jnp
import numpy as np

from unimarg.network import Floats
from unimarg.ragged import Parts, Ragged, over_states

Encoding: TypeAlias = Literal["two_bit", "prior", "graded"]
ENCODINGS: tuple[str, ...] = get_args(Encoding)


SMALLEST = 1e-30  # likelihood that is told from 0
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
    graded = encoding == "graded" and values[0].dtype != bool  # which are certain, all of them
    flags, slots = [known], []
    if graded:
        flags, values = _graded(known, values, ragged, priors)
    for flag, value, prior in zip(ragged.nodes(known), values, ragged.split(priors), strict=True):
        hidden = prior if encoding == "prior" else jnp.zeros_like(prior)
        shown = jnp.where(flag[..., None], value[..., 1:], hidden)
        slots.append(shown.reshape(*shown.shape[:-2], -1))
    # one concatenation and none inside another: XLA has been seen to get nested ones wrong (jax issue 40588)
    extra = [] if beliefs is None else [BELIEF_SCALE * beliefs]
    return jnp.concatenate([a.astype(dtype) for a in (*flags, *slots, *extra)], axis=-1)


def _graded(known: jax.Array, values: Parts, ragged: Ragged, priors: jax.Array) -> tuple[Parts, Parts]:
    """Flags ``[samples, nodes]`` and values ``[samples, nodes, K]``; of certain findings 1 and one-hot, to rounding."""
    flags, out = [], []
    for flag, value, prior in zip(ragged.nodes(known), values, ragged.probabilities(priors), strict=True):
        weights = value * prior
        told = over_states(jnp.maximum, value) - over_states(jnp.minimum, value) if value.shape[-1] > 1 else value[..., 0]
        flags.append(jnp.where(flag, told, 0))
        out.append((told / jnp.maximum(over_states(jnp.add, weights), SMALLEST))[..., None] * weights)
    return flags, out


def starts(encoding: Encoding, known: jax.Array, values: Parts, ragged: Ragged, prior_logits: jax.Array) -> dict[str, jax.Array]:
    """Logits ``[samples, slots]`` that the heads start from where there are no beliefs and, with ``graded``, findings may be uncertain.

    What a finding says of its own node is in them: P(x_i | e) is proportional to P(x_i | all else) times its likelihood. Otherwise
    nothing, and the start is the prior.
    """
    if encoding != "graded" or values[0].dtype == bool:
        return {}
    floored = [jnp.maximum(v, SMALLEST) for v in values]
    own = [jnp.where(flag[..., None], jnp.log(v[..., 1:] / v[..., :1]), 0) for flag, v in zip(ragged.nodes(known), floored, strict=True)]
    said = jnp.concatenate([a.reshape(*a.shape[:-2], -1) for a in own], axis=-1)
    return {"marginal": prior_logits + said, "message": said}


def one_hot(states: jax.Array, ragged: Ragged, dtype: Any = jnp.float32) -> Parts:
    """``[samples, nodes]`` states as values ``[samples, nodes, K]``; a negative state gives zeros."""
    return [
        (part[..., None] == jnp.arange(k, dtype=states.dtype)).astype(dtype)
        for part, (k, _) in zip(ragged.nodes(states), ragged.groups, strict=True)
    ]


def prior_slots(priors: Sequence[Floats], ragged: Ragged) -> tuple[jax.Array, jax.Array]:
    """Prior probabilities and logits against state 0, ``[slots]`` each."""
    ordered = [priors[i] for i in ragged.order]
    probabilities = np.concatenate([p[1:] for p in ordered])
    logits = np.concatenate([np.log(p[1:] / p[0]) for p in ordered])
    return jnp.asarray(probabilities, jnp.float32), jnp.asarray(logits, jnp.float32)
