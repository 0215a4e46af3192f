"""One pass of a trained network for any number of rows, each with evidence of its own.

UM(e)_i(k) is proportional to exp(start_i(k) + trunk(e)_i(k)) over the states k of node i that the evidence leaves possible,
and exactly 0 for the others: what a finding rules out by itself, and, where asked, what ``support`` proves impossible.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from unimarg.encoding import encode, prior_slots, starts
from unimarg.network import Floats, Ints, Network
from unimarg.presets import Recipe
from unimarg.propagation import Propagation
from unimarg.ragged import Parts, Ragged
from unimarg.support import Support, pack, unpack
from unimarg.trunk import Trunk

BATCHES = (1, 64, 512, 4096)  # rows of a compiled pass; a batch is padded to one of these
OVERHEAD = 16  # rows that a pass could have answered in the time that it takes to start
TINY = 1e-30  # what is left has at least this probability, or likelihood
PROVEN = 4 * BATCHES[-1]  # rows whose evidence is propagated together


@dataclass(frozen=True, eq=False)
class Passes:
    """Evidence comes as flags ``[rows, nodes]`` and values ``[rows, nodes, K]`` for each group, in the order of ``ragged``."""

    net: Network
    recipe: Recipe
    trunk: Trunk
    priors: tuple[Floats, ...]

    @cached_property
    def ragged(self) -> Ragged:
        return Ragged(tuple(self.net.cards.tolist()))

    @cached_property
    def sizes(self) -> list[int]:
        """Rows of the passes that are used; a service adds the larger ones as they are compiled."""
        return list(BATCHES)

    @cached_property
    def support(self) -> Support:
        return Support(self.net)

    @cached_property
    def _propagation(self) -> Propagation | None:
        return Propagation(self.net, self.recipe.rounds, self.recipe.pairs) if self.recipe.rounds else None

    @cached_property
    def prior_slots(self) -> tuple[jax.Array, jax.Array]:
        return prior_slots(self.priors, self.ragged)

    @cached_property
    def _columns(self) -> Ints:
        """For each state of each node of the network, its place in the groups of ``ragged`` side by side."""
        starts = dict(zip(self.ragged.order.tolist(), np.cumsum([0, *self.net.cards[self.ragged.order]]).tolist(), strict=False))
        return np.concatenate([starts[i] + np.arange(k) for i, k in enumerate(self.net.cards)])

    def marginals(self, known: np.ndarray, values: Sequence[np.ndarray], rule_out: bool = True) -> tuple[np.ndarray, Ints]:
        """The states of all nodes side by side ``[rows, states]``, float32, and for each row a node without a possible state, or -1."""
        out = np.empty((len(known), len(self._columns)), np.float32)
        contradiction = np.full(len(known), -1)
        for first in range(0, len(known), PROVEN):
            some = slice(first, first + PROVEN)
            given, allowed = (known[some], [v[some] for v in values]), None
            if rule_out and self.support.tables:
                allowed, contradiction[some] = self._possible(*given)
            for rows, (answer,) in self._batches(*given, "marginal", allowed):
                np.take(answer, self._columns, axis=1, out=out[some][rows], mode="clip")
        return out, contradiction

    def forward(self, known: np.ndarray, values: Sequence[np.ndarray], output: str) -> list[np.ndarray]:
        """Messages ``[rows, nodes, K]`` for each group, or features ``[rows, width]`` alone."""
        pieces = [answer for _, answer in self._batches(known, values, output)]
        return [np.concatenate(same) for same in zip(*pieces, strict=True)]

    def compile(self, size: int) -> None:
        """The pass of so many rows, one of ``BATCHES``, which is used from then on."""
        known = np.zeros((size, len(self.net)), bool)
        values = [np.zeros((size, n, k), np.float32) for k, n in self.ragged.groups]
        allowed = [np.ones((n, k, size), bool) for k, n in self.ragged.groups] if self.support.tables else None
        jax.block_until_ready(self._answer(known, values, "marginal", allowed))
        if size not in self.sizes:
            self.sizes.append(size)

    def _possible(self, known: np.ndarray, values: Sequence[np.ndarray]) -> tuple[list[NDArray[np.bool_]], Ints]:
        """Which states are left, ``[nodes, K, rows]`` for each group, and the contradictions; a row that has one keeps every state."""
        flags = self.ragged.nodes(known)  # pyright: ignore[reportArgumentType]
        left = [pack(np.moveaxis((v > 0) | ~flag[..., None], 0, -1)) for flag, v in zip(flags, values, strict=True)]
        place = {i: self.ragged.member[i] for i in self.support.touching}
        for i, words in self.support.propagate({i: left[g][j] for i, (g, j) in place.items()}).items():
            g, j = place[i]
            left[g][j] = words
        empty = np.concatenate([~np.bitwise_or.reduce(words, axis=1) for words in left])[self.ragged.place]
        found = unpack(empty, len(known))
        if empty.any():
            left = [words | np.bitwise_or.reduce(empty, axis=0) for words in left]
        return [unpack(words, len(known)) for words in left], np.where(found.any(axis=0), found.argmax(axis=0), -1)

    def _batches(
        self, known: np.ndarray, values: Sequence[np.ndarray], output: str, allowed: Sequence[np.ndarray] | None = None
    ) -> Iterator[tuple[slice, list[np.ndarray]]]:
        """Rows and their answers, by batches of few sizes so that little is compiled; one of them where there are no rows."""
        first = 0
        while first < max(len(known), 1):
            size = batch_size(len(known) - first, self.sizes)
            rows = slice(first, min(first + size, len(known)))
            taken = [_padded(a[rows], size, 0) for a in (known, *values)]
            left = None if allowed is None else [_padded(a[:, :, rows], size, -1) for a in allowed]
            yield rows, [np.asarray(a)[: rows.stop - first] for a in self._answer(taken[0], taken[1:], output, left)]
            first += size

    def _answer(self, known: np.ndarray, values: Sequence[np.ndarray], output: str, allowed: Sequence[np.ndarray] | None) -> Parts:
        encoding, slots = self.recipe.encoding, self.prior_slots
        return answer(self.ragged, encoding, output, self.trunk, *slots, known, list(values), self._propagation, allowed)


def batch_size(rows: int, sizes: Sequence[int] = BATCHES) -> int:
    """Of some sizes of a pass, the one that answers so many rows soonest, what fills up the last pass included.

    >>> [batch_size(n) for n in (1, 5, 300, 2000, 4000)]
    [1, 64, 64, 512, 4096]
    """
    return min(sizes, key=lambda size: -(-rows // size) * (size + OVERHEAD))


def _padded(a: np.ndarray, size: int, axis: int) -> np.ndarray:
    """With rows of nothing, or of everything that is possible, up to so many."""
    missing = size - a.shape[axis]
    if not missing:
        return a
    pad = [(0, 0)] * a.ndim
    pad[axis] = (0, missing)
    return np.pad(a, pad, constant_values=axis != 0)


@partial(jax.jit, static_argnames=("ragged", "encoding", "output", "propagation"))
def answer(
    ragged: Ragged,
    encoding: Any,
    output: str,
    trunk: Trunk,
    priors: Any,
    prior_logits: Any,
    known: Any,
    values: Any,
    propagation: Propagation | None = None,
    allowed: Any = None,
) -> Parts:
    """Marginals of the groups side by side ``[rows, states]``, messages ``[rows, nodes, K]`` for each group, or the trunk's last layer."""
    beliefs = {} if propagation is None else propagation.logits(known, values, jax.default_backend() != "cpu")
    x = encode(encoding, known, values, ragged, priors, beliefs.get("marginal"))
    start = beliefs or starts(encoding, known, values, ragged, prior_logits) or {"marginal": prior_logits}
    if output == "features":
        return [trunk.features(x)]
    if output == "message":
        return ragged.with_reference(trunk(x, start)["message"])
    if allowed is None:
        possible = [(value != 0) | ~flag[..., None] for value, flag in zip(values, ragged.nodes(known), strict=True)]
    else:
        possible = [jnp.moveaxis(part, -1, 0) for part in allowed]
    logits = ragged.with_reference(trunk(x, start)["marginal"])
    out = []
    for part, left in zip(logits, possible, strict=True):  # one state that is left is exactly 1
        p = jax.nn.softmax(jnp.where(left, part, -jnp.inf), axis=-1)
        out.append(jnp.where(left, jnp.maximum(p, TINY), 0))
    return [jnp.concatenate([part.reshape(part.shape[0], -1) for part in out], axis=1)]
