"""Exact posterior marginals of many evidence sets at once on the device: labels without noise.

With l_i(k) the likelihood of each node's states (one-hot where observed, ones where not), P(e) is the sum over
all x of prod_i P(x_i | pa_i) l_i(x_i). Eliminating variables one by one gives it, and its derivatives give
every marginal at once (Darwiche 2003):

    P(X_i = k | e) = l_i(k) d log P(e) / d l_i(k)

so that the program for the sum, differentiated backwards, is the whole junction tree. For networks whose
cliques are small.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import itemgetter

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from unimarg.network import Floats, Network
from unimarg.triangulation import eliminate, moral_graph

TINY = 1e-35  # below every message of evidence that is possible, above float32's smallest


@dataclass(frozen=True, eq=False)
class Teacher:
    """An elimination order for a network; ``entries`` is the size of all cliques together."""

    net: Network
    cliques: dict[int, tuple[int, ...]]  # variable -> its clique by time of elimination, itself first
    entries: float

    @cached_property
    def tables(self) -> list[Floats]:
        """P(x_i | pa_i) with axes in the order of elimination."""
        when = {v: t for t, v in enumerate(self.cliques)}
        out = []
        for i, (pa, m) in enumerate(zip(self.net.parents, self.net.mechanisms, strict=True)):
            scope = [*pa, i]
            out.append(np.transpose(m.expand(), np.argsort([when[v] for v in scope])))
        return out

    def marginals(self, likelihoods: list[jax.Array]) -> list[jax.Array]:
        """P(X_i = k | e), ``[K, samples]`` for each node, from likelihoods of the same shapes."""
        gradient = jax.grad(lambda given: self.log_evidence(given).sum())(likelihoods)
        return [given * g for given, g in zip(likelihoods, gradient, strict=True)]

    def log_evidence(self, likelihoods: list[jax.Array]) -> jax.Array:
        """log P(e), ``[samples]``."""
        when = {v: t for t, v in enumerate(self.cliques)}
        # factors wait at the variable of their scope that goes first
        waiting: dict[int, list[tuple[tuple[int, ...], jax.Array]]] = {v: [] for v in self.cliques}
        for i, table in enumerate(self.tables):
            scope = tuple(sorted((*self.net.parents[i], i), key=when.__getitem__))
            waiting[scope[0]].append((scope, jnp.asarray(table, jnp.float32)[..., None]))
        samples = likelihoods[0].shape[-1]
        total = jnp.zeros(samples)
        for v, clique in self.cliques.items():
            cards = [int(self.net.cards[u]) for u in clique]
            product = jnp.ones((math.prod(cards), samples))
            for scope, factor in [*waiting.pop(v), ((v,), likelihoods[v])]:
                product = _times(product, factor, [u in scope for u in clique], cards)
            message = product.reshape(cards[0], -1, samples).sum(axis=0)
            scale = lax.stop_gradient(jnp.maximum(message.max(axis=0), TINY))
            total = total + jnp.log(scale)
            message = message / scale
            if len(clique) > 1:
                waiting[clique[1]].append((clique[1:], message))
            else:
                total = total + jnp.log(jnp.maximum(message[0], TINY))
        return total


def _times(product: jax.Array, factor: jax.Array, present: list[bool], cards: list[int]) -> jax.Array:
    """``product [entries of the clique, samples]`` times a factor that has only the axes ``present``.

    Neighbouring axes that the factor has, or lacks, are taken as one: few and long axes are what compilers like.
    """
    runs = [(has, math.prod(card for _, card in run)) for has, run in groupby(zip(present, cards, strict=True), key=itemgetter(0))]
    wide = product.reshape(*(size for _, size in runs), product.shape[-1])
    narrow = factor.reshape(*(size if has else 1 for has, size in runs), factor.shape[-1])
    return (wide * narrow).reshape(product.shape)


def make_teacher(net: Network, limit: float) -> Teacher | None:
    """A teacher if its cliques have at most ``limit`` entries together, else None."""
    widest = max(math.prod(map(float, (*m.parent_cards, m.card))) for m in net.mechanisms)
    if widest > limit:
        return None
    graph = moral_graph([(*pa, i) for i, pa in enumerate(net.parents)])
    logs = np.log(net.cards.astype(float)).tolist()
    best = min((eliminate(graph, logs, limit, weighted=w) for w in (True, False)), key=lambda found: found[1])
    if best[1] > limit:
        return None
    when = {v: t for t, v in enumerate(best[0])}
    cliques = {v: tuple(sorted(c, key=when.__getitem__)) for v, c in best[0].items()}
    return Teacher(net, cliques, best[1])
