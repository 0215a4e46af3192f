"""The neural network: a trunk over the encoded evidence, and a linear head for each kind of output.

    plain      h = relu(W x + b), layer after layer: the paper's (section 4)
    residual   h = W x + b, then h <- h + V relu(U norm(h)), block after block, and a last norm

On a GPU products and what is kept between them are bfloat16, weights and their updates float32.

Outputs are logits against each node's first state, ``[samples, slots]``, where asked as residuals on a start: for the marginal head
the prior's or beliefs, for the message head nothing or what these beliefs say from below. A gate weighs a head's start, for beliefs may
be far off and sure: (1 + gate) start + residual, where both come out of the trunk and are 0 at first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from unimarg.counter import Key, threefry
from unimarg.errors import UsageError, whole_number

HEADS = ("marginal", "message")
MAX_WIDTH = 1 << 24


@dataclass(frozen=True)
class Architecture:
    """``hidden`` are layer widths (plain) or block widths, all equal (residual); ``dropout`` counts to 1/256."""

    hidden: tuple[int, ...]
    residual: bool = False
    dropout: float = 0.0
    heads: tuple[str, ...] = ("marginal",)
    from_prior: bool = False  # logits start at the prior's, or at beliefs where there are rounds of propagation
    gated: bool = False  # the trunk weighs that start

    def __post_init__(self) -> None:
        # plain Python values: they are compared and written into files
        if not isinstance(self.hidden, Sequence) or isinstance(self.hidden, str) or not self.hidden:
            raise UsageError(f"hidden must be layer widths, such as (512, 512), not {self.hidden!r}")
        object.__setattr__(self, "hidden", tuple(whole_number(h, "the width of a layer", 1, MAX_WIDTH) for h in self.hidden))
        object.__setattr__(self, "heads", tuple(self.heads))
        if self.heads not in (HEADS[:1], HEADS):
            raise UsageError(f"heads must be {HEADS[:1]} or {HEADS}, not {self.heads!r}")
        for name in ("residual", "from_prior", "gated"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"{name} must be true or false, not {getattr(self, name)!r}")
        if self.gated and not self.from_prior:
            raise UsageError("a gate weighs what logits start from: gated needs from_prior")
        if self.residual and len(set(self.hidden)) > 1:
            raise UsageError(f"a residual trunk needs blocks of one width, not {self.hidden!r}")
        if not isinstance(self.dropout, Real) or not 0 <= self.dropout < 1:
            raise UsageError(f"dropout must be from 0 up to but not including 1, not {self.dropout!r}")
        object.__setattr__(self, "dropout", float(self.dropout))

    @property
    def outputs(self) -> int:
        """For each slot: one of every head, then a gate for each."""
        return len(self.heads) * (1 + self.gated)

    @property
    def dropped(self) -> int:
        """Of 256 units."""
        return min(max(round(self.dropout * 256), int(self.dropout > 0)), 255)

    @property
    def bits(self) -> int:
        """Random bits that decide whether a unit is dropped: one for a half, at most eight."""
        return next(bits for bits in (1, 2, 4, 8) if self.dropped % (256 >> bits) == 0)

    @property
    def words(self) -> tuple[int, ...]:
        """Random words for each layer."""
        return tuple(-(-width * self.bits // 32) for width in self.hidden) if self.dropped else ()


class Linear(eqx.Module):
    weight: jax.Array  # [in, out]
    bias: jax.Array  # [out]

    @classmethod
    def make(cls, rng: np.random.Generator | None, inputs: int, outputs: int, scale: float) -> Linear:
        """Normal weights with standard deviation ``scale`` / sqrt(inputs); zeros without a generator."""
        if rng is None:
            return cls(jnp.zeros((inputs, outputs)), jnp.zeros(outputs))
        weight = rng.standard_normal((inputs, outputs), dtype=np.float32) * np.float32(scale / np.sqrt(inputs))
        return cls(jnp.asarray(weight), jnp.zeros(outputs))

    def __call__(self, x: jax.Array, half: bool) -> jax.Array:
        """float32 throughout, or bfloat16 products summed in float32."""
        product = half_dot(x, self.weight) if half else jnp.dot(x, self.weight, precision=jax.lax.Precision.HIGHEST)
        return product + self.bias

    def relu(self, x: jax.Array, half: bool) -> jax.Array:
        """Of the layer's output, likewise; bfloat16 then."""
        return half_relu(x, self.weight, self.bias) if half else jax.nn.relu(self(x, half))


@jax.custom_vjp
def half_dot(x: jax.Array, weight: jax.Array) -> jax.Array:
    """x @ weight by bfloat16 products; so are those of its gradient, which otherwise would be of float32.

    Gradients have the types of x and weight.
    """
    return jnp.dot(x.astype(jnp.bfloat16), weight.astype(jnp.bfloat16), preferred_element_type=jnp.float32)


def _half_dot_forward(x: jax.Array, weight: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    kinds = (jnp.zeros(0, a.dtype) for a in (x, weight))
    x, weight = x.astype(jnp.bfloat16), weight.astype(jnp.bfloat16)
    return half_dot(x, weight), (x, weight, *kinds)


def _half_dot_backward(saved: tuple[jax.Array, ...], gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, weight, like_x, like_weight = saved
    gradient = gradient.astype(jnp.bfloat16)
    to_x = jnp.dot(gradient, weight.T, preferred_element_type=like_x.dtype)
    return to_x, jnp.dot(x.T, gradient, preferred_element_type=like_weight.dtype)


half_dot.defvjp(_half_dot_forward, _half_dot_backward)


@jax.custom_vjp
def half_relu(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
    """relu(x @ weight + bias) by ``half_dot``, in bfloat16, which is all that its gradient needs: half of what goes through memory."""
    return _half_relu_forward(x, weight, bias)[0]


def _half_relu_forward(x: jax.Array, weight: jax.Array, bias: jax.Array) -> tuple[jax.Array, tuple[Any, ...]]:
    product, saved = _half_dot_forward(x, weight)
    out = jax.nn.relu(product + bias).astype(jnp.bfloat16)
    return out, (saved, out)


def _half_relu_backward(saved: tuple[Any, ...], gradient: jax.Array) -> tuple[jax.Array, ...]:
    of_product, out = saved
    gradient = jnp.where(out > 0, gradient, 0)
    return *_half_dot_backward(of_product, gradient), gradient.sum(axis=0, dtype=jnp.float32)


half_relu.defvjp(_half_relu_forward, _half_relu_backward)


@jax.custom_vjp
def dropped_relu(x: jax.Array, kept: jax.Array) -> jax.Array:
    """relu(x) where kept, else 0; what comes out is all that its gradient needs, so that no noise is taken apart twice."""
    return jnp.where(kept, jax.nn.relu(x), 0)


def _dropped_relu_forward(x: jax.Array, kept: jax.Array) -> tuple[jax.Array, jax.Array]:
    out = dropped_relu(x, kept)
    return out, out


def _dropped_relu_backward(out: jax.Array, gradient: jax.Array) -> tuple[jax.Array, None]:
    return jnp.where(out > 0, gradient, 0), None


dropped_relu.defvjp(_dropped_relu_forward, _dropped_relu_backward)


def halved(weights: Any) -> Any:
    """The matrices among the weights as the products take them."""
    return jax.tree.map(lambda w: w.astype(jnp.bfloat16) if w.ndim > 1 else w, weights)


def standardised(x: jax.Array) -> jax.Array:
    """Layer normalisation without a scale and a shift of its own: the layer behind it has both."""
    x = x.astype(jnp.float32)
    mean = x.mean(axis=-1, keepdims=True)
    variance = jnp.square(x - mean).mean(axis=-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-6)


def dropout_noise(key: Key, samples: jax.Array, architecture: Architecture) -> jax.Array | None:
    """Random bits for each unit of each layer and each sample, by its number: ``[samples, words]``; None without dropout.

    Words are taken apart where they are used: a CPU would draw the word anew for each unit.
    """
    if not architecture.dropped:
        return None
    pairs = jnp.arange(-(-sum(architecture.words) // 2), dtype=jnp.uint32)
    return jnp.concatenate(threefry(key, samples[:, None], pairs[None]), axis=1)


class Trunk(eqx.Module):
    layers: list[Linear]  # plain: one for each width; residual: the input's, then U and V of each block
    head: Linear  # [width, outputs * slots]
    architecture: Architecture = eqx.field(static=True)

    @classmethod
    def make(cls, seed: int | None, architecture: Architecture, inputs: int, slots: int) -> Trunk:
        """Random weights, drawn on the host: compiling their generator would take longer than using it.

        Without a seed there are zeros, which ``jax.eval_shape`` never makes.
        """
        rng = None if seed is None else np.random.Generator(np.random.PCG64(seed))
        hidden, residual = architecture.hidden, architecture.residual
        if residual:
            shapes = [(inputs, hidden[0], 1.0)]
            for width in hidden:
                shapes += [(width, width, np.sqrt(2)), (width, width, 1 / len(hidden))]
        else:
            shapes = [(a, b, np.sqrt(2)) for a, b in zip((inputs, *hidden), hidden, strict=False)]
        layers = [Linear.make(rng, *shape) for shape in shapes]
        # a head of zeros starts at the prior, and at the table itself for messages
        scale = 0.0 if architecture.from_prior else 1.0
        return cls(layers, Linear.make(rng, hidden[-1], architecture.outputs * slots, scale), architecture)

    def features(self, x: jax.Array, half: bool = False, noise: jax.Array | None = None) -> jax.Array:
        """The last hidden layer, ``[samples, width]``; with ``dropout_noise`` units are dropped."""
        if not self.architecture.residual:
            for i in range(len(self.layers)):
                x = self._units(x, i, i, half, noise)
            return x
        kind = jnp.bfloat16 if half else jnp.float32
        h = self.layers[0](x, half).astype(kind)
        for i in range(len(self.architecture.hidden)):
            inner = self._units(standardised(h), 2 * i + 1, i, half, noise)
            h = (h + self.layers[2 * i + 2](inner, half)).astype(kind)
        return standardised(h)

    def _units(self, x: jax.Array, layer: int, block: int, half: bool, noise: jax.Array | None) -> jax.Array:
        """What a layer makes of x, some units of it dropped where there is noise."""
        made, of = self.architecture, self.layers[layer]
        if noise is None:
            return of.relu(x, half)
        begin, words = sum(made.words[:block]), made.words[block]
        shifts = jnp.arange(0, 32, made.bits, dtype=jnp.uint32)[:, None]
        drawn = (noise[:, None, begin : begin + words] >> shifts) & jnp.uint32((1 << made.bits) - 1)
        kept = drawn.reshape(len(x), -1)[:, : made.hidden[block]] >= made.dropped >> (8 - made.bits)
        before = of.relu(x, half) if half else of(x, half)
        return dropped_relu(before * (256 / (256 - made.dropped)), kept)

    def __call__(self, x: jax.Array, start: Mapping[str, jax.Array], half: bool = False) -> dict[str, jax.Array]:
        """Logits ``[samples, slots]`` of each head."""
        return self.logits(self.features(x, half), start, half)

    def logits(self, features: jax.Array, start: Mapping[str, jax.Array], half: bool = False) -> dict[str, jax.Array]:
        """What the heads make of ``features``."""
        made = self.architecture
        parts = jnp.split(self.head(features, half), made.outputs, axis=-1)
        logits = dict(zip(made.heads, parts, strict=False))
        if made.from_prior:
            for n, head in enumerate(made.heads):
                if head in start:
                    logits[head] += (1 + parts[len(made.heads) + n]) * start[head] if made.gated else start[head]
        return logits
