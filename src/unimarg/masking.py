"""Which nodes of a training sample are shown to the network: distributions over masks.

A mask distribution draws ``observed [nodes, samples]``; the paper (section 2.1) hides each node with one
probability p ~ U[0, 1] per sample. A network that never saw the masks it meets at query time is poor at
them, so masks can be mixed: ``Mixture([UniformRate(), LogUniformRate()])``.

Every draw is a function of (key, sample index, node), as in ``counter``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from unimarg.counter import Key, words
from unimarg.errors import UsageError, whole_number
from unimarg.network import Network

# numbers of a sample's own draws, beyond any node's
RATE, CUT = np.uint32(0xFFFFFFFF), np.uint32(0xFFFFFFFE)
WHICH = 0xFFFFFFFD  # and downwards, for a mixture inside another


class Mask(Protocol):
    """A distribution over sets of observed nodes."""

    def draw(self, key: Key, samples: jax.Array, nodes: int) -> jax.Array:
        """bool ``[nodes, samples]``, True where observed, for the sample numbers given."""
        ...


def _uniform(key: Key, samples: jax.Array, nodes: jax.Array) -> jax.Array:
    """In [0, 1), ``[nodes, samples]``."""
    return (words(key, samples, nodes)[0] >> np.uint32(8)).astype(jnp.float32) * np.float32(2.0**-24)


def _sample_uniform(key: Key, samples: jax.Array, number: np.uint32) -> jax.Array:
    return _uniform(key, samples, jnp.array([number]))[0]


def _bernoulli(key: Key, samples: jax.Array, rates: jax.Array) -> jax.Array:
    nodes = jnp.arange(rates.shape[0], dtype=jnp.uint32)
    return _uniform(key, samples, nodes) < rates


def _indices(nodes: Iterable[int]) -> tuple[int, ...]:
    """Plain numbers: what a mask is made of is hashed, compared and written into files."""
    return tuple(whole_number(i, "a node", 0, 2**31 - 1) for i in nodes)


def _column(chosen: tuple[int, ...], nodes: int) -> np.ndarray:
    """bool ``[nodes, 1]``, True for the chosen ones."""
    if any(i >= nodes for i in chosen):
        raise UsageError(f"there is no node {max(chosen)} in a network of {nodes}")
    column = np.zeros((nodes, 1), dtype=bool)
    column[list(chosen)] = True
    return column


@dataclass(frozen=True)
class UniformRate:
    """The paper's: every node observed with the same probability, which is uniform on [0, 1]."""

    def draw(self, key: Key, samples: jax.Array, nodes: int) -> jax.Array:
        rate = _sample_uniform(key, samples, RATE)
        return _bernoulli(key, samples, jnp.broadcast_to(rate, (nodes, samples.shape[0])))


@dataclass(frozen=True)
class LogUniformRate:
    """As ``UniformRate``, but the expected number of observed nodes is log-uniform from ``least`` up to all.

    Sparse evidence, which a uniform rate hardly ever shows in a large network.
    """

    least: float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "least", float(self.least))
        if not 0 < self.least < np.inf:
            raise UsageError(f"the least expected number of observed nodes must be positive, not {self.least!r}")

    def draw(self, key: Key, samples: jax.Array, nodes: int) -> jax.Array:
        lowest = np.log(min(self.least / nodes, 1.0))
        rate = jnp.exp(lowest * _sample_uniform(key, samples, RATE))
        return _bernoulli(key, samples, jnp.broadcast_to(rate, (nodes, samples.shape[0])))


@dataclass(frozen=True)
class Fixed:
    """Always the same nodes: the paper's deterministic masking. ``observed`` are node indices."""

    observed: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "observed", _indices(self.observed))

    def draw(self, key: Key, samples: jax.Array, nodes: int) -> jax.Array:
        return jnp.broadcast_to(_column(self.observed, nodes), (nodes, samples.shape[0]))


@dataclass(frozen=True)
class Rates:
    """Each node with its own probability: what can be observed, and how often."""

    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "rates", tuple(map(float, self.rates)))
        if not all(0 <= r <= 1 for r in self.rates):
            raise UsageError(f"rates must be from 0 to 1, not {list(self.rates)}")

    def draw(self, key: Key, samples: jax.Array, nodes: int) -> jax.Array:
        if len(self.rates) != nodes:
            raise UsageError(f"{nodes} nodes need as many rates, not {len(self.rates)}")
        return _bernoulli(key, samples, jnp.asarray(self.rates, jnp.float32)[:, None])


@dataclass(frozen=True)
class Among:
    """Another mask, of which only some nodes are kept: leaves only, findings only."""

    base: Mask
    nodes: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", _indices(self.nodes))

    def draw(self, key: Key, samples: jax.Array, nodes: int) -> jax.Array:
        return self.base.draw(key, samples, nodes) & _column(self.nodes, nodes)


@dataclass(frozen=True)
class Prefix:
    """All nodes up to a random one in topological order, joined with another mask: what SUM-IS meets."""

    base: Mask

    def draw(self, key: Key, samples: jax.Array, nodes: int) -> jax.Array:
        cut = (_sample_uniform(key, samples, CUT) * (nodes + 1)).astype(jnp.int32)
        return (jnp.arange(nodes)[:, None] < cut) | self.base.draw(key, samples, nodes)


@dataclass(frozen=True)
class Mixture:
    """One of several masks for each sample, by weight."""

    masks: tuple[Mask, ...]
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "masks", tuple(self.masks))
        if not self.masks:
            raise UsageError("a mixture needs at least one mask")
        weights = tuple(map(float, self.weights)) or (1.0,) * len(self.masks)
        if len(weights) != len(self.masks) or not all(w >= 0 for w in weights) or not sum(weights) > 0:
            raise UsageError(f"a mixture of {len(self.masks)} masks needs as many weights, none negative, not {list(self.weights)}")
        total = math.fsum(weights)
        # weights that add up to 1 stay as they are, to the last bit: a mixture read from a file is the one that was written
        object.__setattr__(self, "weights", weights if abs(total - 1) < 1e-12 else tuple(w / total for w in weights))

    def draw(self, key: Key, samples: jax.Array, nodes: int) -> jax.Array:
        u = _sample_uniform(key, samples, np.uint32(WHICH - _depth(self)))
        edges = np.cumsum(self.weights)[:-1]
        which = (u[:, None] >= edges.astype(np.float32)).sum(axis=1)
        observed = self.masks[0].draw(key, samples, nodes)
        for m, mask in enumerate(self.masks[1:], start=1):
            observed = jnp.where(which == m, mask.draw(key, samples, nodes), observed)
        return observed


def can_show(mask: Mask, nodes: int) -> np.ndarray:
    """bool ``[nodes]``, False where it is certain that a mask never shows a node."""
    if isinstance(mask, Fixed):
        return _column(mask.observed, nodes)[:, 0]
    if isinstance(mask, Rates):
        return np.array(mask.rates) > 0
    if isinstance(mask, Among):
        return can_show(mask.base, nodes) & _column(mask.nodes, nodes)[:, 0]
    if isinstance(mask, Mixture):
        return np.any([can_show(m, nodes) for m, weight in zip(mask.masks, mask.weights, strict=True) if weight], axis=0)
    return np.ones(nodes, dtype=bool)


def _depth(mask: Mask) -> int:
    """How many mixtures lie inside this mask, one in the other: each makes a choice of its own."""
    inside = [*getattr(mask, "masks", ()), *([mask.base] if hasattr(mask, "base") else [])]  # pyright: ignore[reportAttributeAccessIssue]
    return max(map(_depth, inside), default=0) + isinstance(mask, Mixture)


def leaves(net: Network) -> tuple[int, ...]:
    """Nodes without children."""
    return tuple(i for i, c in enumerate(net.children) if not c)


def observable(net: Network, rates: Mapping[str, float] | Sequence[str]) -> Mask:
    """The user's own mask: which variables can be observed, and how often if given as a mapping.

    >>> import unimarg as um
    >>> observable(um.example("asia"), {"dysp": 0.9, "xray": 0.3}).rates
    (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.3, 0.9)
    """
    if isinstance(rates, str) or not len(rates):
        raise UsageError(f"what can be observed is a list of variables or their rates, not {rates!r}")
    if isinstance(rates, Mapping):
        for name, rate in rates.items():
            if not isinstance(rate, Real) or not 0 <= rate <= 1:
                raise UsageError(f"the rate of {name!r} must be from 0 to 1, not {rate!r}")
        by_node = {net.find(name): float(rate) for name, rate in rates.items()}
        return Rates(tuple(by_node.get(i, 0.0) for i in range(len(net))))
    nodes = tuple(sorted(net.find(name) for name in rates))
    return Mixture((Among(UniformRate(), nodes), Among(LogUniformRate(), nodes)))
