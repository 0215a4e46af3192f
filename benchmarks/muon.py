"""Muon (Jordan 2024), an arm of ``arms.py``: of a layer's momentum M = U S V' its weights move along U V'.

    X <- a X + b (X X') X + c (X X')^2 X,   from X = M / |M|           takes every singular value to about 1 (Newton and Schulz)

in bfloat16 on a GPU. A step is as long as one of Adam's would be (Liu et al. 2025). The heads, biases and whatever is no matrix are left
to Adam.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from unimarg.trunk import Trunk

MOMENTUM = 0.95
A, B, C = 3.4445, -4.775, 2.0315  # singular values from .001 up end between .7 and 1.2 after
TURNS = 5
ALIKE = 0.2  # root mean square of Adam's steps


def muon_for_layers() -> optax.GradientTransformation:
    """With a rate of 1."""
    return optax.partition({"muon": muon(), "adam": optax.adam(1.0)}, _which)


def muon() -> optax.GradientTransformation:
    """Nesterov's momentum, made orthogonal."""

    def ahead(m: jax.Array, g: jax.Array) -> jax.Array:
        return MOMENTUM * m + (1 - MOMENTUM) * g

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        momentum = jax.tree.map(ahead, state, updates)
        return jax.tree.map(lambda m, g: _step(ahead(m, g)), momentum, updates), momentum

    return optax.GradientTransformation(lambda params: jax.tree.map(jnp.zeros_like, params), update)


def _step(momentum: jax.Array) -> jax.Array:
    return -ALIKE * max(momentum.shape) ** 0.5 * orthogonal(momentum)


def orthogonal(matrix: jax.Array) -> jax.Array:
    """U V' of U S V', about: singular values of some thousandths of the norm and more become .7 to 1.2."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / jnp.maximum(jnp.linalg.norm(x), 1e-30)
    x = x if jax.default_backend() == "cpu" else x.astype(jnp.bfloat16)
    for _ in range(TURNS):
        square = x @ x.T
        x = A * x + (B * square + C * (square @ square)) @ x
    return (x.T if tall else x).astype(matrix.dtype)


def _which(weights: Any) -> Any:
    """The optimiser of each weight."""
    labels = jax.tree.map(lambda _: "adam", weights)
    if not isinstance(weights, Trunk):
        return labels
    return eqx.tree_at(lambda trunk: [layer.weight for layer in trunk.layers], labels, ["muon"] * len(weights.layers))
