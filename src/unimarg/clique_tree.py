"""Exact posterior marginals of many evidence sets at once on the device: a table's answers, and labels without noise.

A junction tree in which variables that go one after the other out of the same clique go together. With l_i(k) the likelihood of each
node's states (one-hot where observed, ones where not), F_c the product of a clique's tables P(x_i | pa_i), the likelihoods of what
goes there and the messages from below, and S what it shares with the clique above:

    up      m_c(S) = sum over the others of F_c,  scaled
    down    belief of c = F_c * b_c(S) / m_c(S),  b_c the belief of the clique above, summed onto S

A product is made anew on the way down: it is cheaper to compute than to keep. Where m_c is 0 so is the belief. The marginal of a
variable is a sum over the smallest table that has it. For networks whose cliques are small.

Messages and likelihoods are scaled to a maximum of 1 before they are multiplied, so that the numbers of a product are no further from 1
than its tables and contradictions among its messages take them: variables go together only where both are few.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from unimarg.network import Network
from unimarg.triangulation import eliminate, moral_graph

TINY, TINY_DOUBLE = 1e-35, 1e-300  # above the smallest numbers of float32 and float64: what is below counts as impossible
RANGE, MESSAGES = 46.0, 4  # of a clique in which variables go together: log of the largest over the smallest product of tables; from below


class Clique(NamedTuple):
    scope: tuple[int, ...]  # variables in the order in which they go
    going: int  # so many of them go here, the first
    below: tuple[int, ...]  # the cliques whose messages come here

    @property
    def shared(self) -> tuple[int, ...]:
        """With the clique above."""
        return self.scope[self.going :]


class Answers(NamedTuple):
    marginals: list[jax.Array]  # P(X_i = k | e), ``[K, samples]`` for each node
    log_p: jax.Array  # log P(e), ``[samples]``
    reach: jax.Array  # a number lost below TINY could have changed them by TINY / exp(reach) at most, ``[samples]``


@dataclass(frozen=True, eq=False)
class CliqueTree:
    """A junction tree of a network, each clique behind those below it."""

    net: Network
    cliques: tuple[Clique, ...]

    @property
    def entries(self) -> float:
        """Of all cliques together."""
        return sum(math.prod(map(float, self._cards(c.scope))) for c in self.cliques)

    @cached_property
    def tables(self) -> list[np.ndarray]:
        """The product of the tables of each clique, ``[entries]``."""
        home = {v: n for n, c in enumerate(self.cliques) for v in c.scope[: c.going]}
        out = [np.ones(self._cards(c.scope)) for c in self.cliques]
        for i, (pa, m) in enumerate(zip(self.net.parents, self.net.mechanisms, strict=True)):
            n = min(home[v] for v in (*pa, i))  # a clique lies above those that go before it
            scope = self.cliques[n].scope
            at = [scope.index(v) for v in (*pa, i)]
            shape = [int(self.net.cards[v]) if v in (*pa, i) else 1 for v in scope]
            out[n] *= np.transpose(m.expand(), np.argsort(at)).reshape(shape)
        return [table.ravel() for table in out]

    def marginals(self, likelihoods: list[jax.Array]) -> list[jax.Array]:
        """P(X_i = k | e), ``[K, samples]`` for each node, from likelihoods of the same shapes."""
        return self.answers(likelihoods).marginals

    def answers(self, likelihoods: list[jax.Array]) -> Answers:
        """From likelihoods ``[K, samples]`` of each node, of float32, or of float64 where JAX has it enabled."""
        outer, tiny = _scales(likelihoods), _tiny(likelihoods[0])
        likelihoods = [given / scale for given, scale in zip(likelihoods, outer, strict=True)]
        scales, messages = self._up(likelihoods)
        smallest = self._smallest
        shared: dict[int, jax.Array] = {}  # beliefs of what a clique shares
        out: dict[int, jax.Array] = {}
        for n, clique in reversed([*enumerate(self.cliques)]):
            possible = messages[n] > tiny
            ratio = jnp.where(possible, shared.get(n, 1.0) / jnp.where(possible, messages[n], 1), 0) / scales[n]
            belief = self._times(self._product(n, likelihoods, messages), clique.scope, ratio, clique.shared)
            for k in clique.below:
                shared[k] = self._onto(belief, clique.scope, self.cliques[k].shared)
            going = clique.scope[: clique.going]
            if not smallest.keys() >= {*going}:
                here = self._onto(belief, clique.scope, going)
                out |= {v: self._onto(here, going, (v,)) for v in going if v not in smallest}
        out |= {v: self._onto(shared[n], self.cliques[n].shared, (v,)) for v, n in smallest.items()}
        zero = jnp.zeros_like(likelihoods[0][0])
        logs = [jnp.log(scale) for scale in scales]
        # a message below TINY is, of P(e), at most that over the scales of the cliques that are not below it; some scales are above 1
        reach = sum((jnp.minimum(log, 0) for log in logs), zero)
        log_p = sum((jnp.log(scale) for scale in outer), sum(logs, zero))
        return Answers([out[i] for i in range(len(self.net))], log_p, reach)

    @cached_property
    def _smallest(self) -> dict[int, int]:
        """For each variable that cliques share, the one that shares the fewest entries with it among them."""
        by_size = sorted(range(len(self.cliques)), key=lambda n: -math.prod(self._cards(self.cliques[n].shared)))
        return {v: n for n in by_size for v in self.cliques[n].shared}

    def _up(self, likelihoods: list[jax.Array]) -> tuple[list[jax.Array], list[jax.Array]]:
        """Of each clique the largest m ``[samples]``, and m over that ``[entries of what it shares, samples]``."""
        scales: list[jax.Array] = []
        messages: list[jax.Array] = []
        for n, clique in enumerate(self.cliques):
            message = self._onto(self._product(n, likelihoods, messages), clique.scope, clique.shared)
            scales.append(jnp.maximum(message.max(axis=0), _tiny(message)))
            messages.append(message / scales[n])
        return scales, messages

    def _product(self, n: int, likelihoods: list[jax.Array], messages: list[jax.Array]) -> jax.Array:
        """``[entries, samples]``"""
        clique = self.cliques[n]
        product = jnp.asarray(self.tables[n])[:, None]
        for v in clique.scope[: clique.going]:
            product = self._times(product, clique.scope, likelihoods[v], (v,))
        for k in clique.below:
            product = self._times(product, clique.scope, messages[k], self.cliques[k].shared)
        return product

    def _times(self, product: jax.Array, scope: tuple[int, ...], factor: jax.Array, variables: tuple[int, ...]) -> jax.Array:
        """``product [entries of scope, samples]`` times a factor of some of its variables."""
        runs = self._runs(scope, variables)
        wide = product.reshape(*(size for _, size in runs), -1)
        narrow = factor.reshape(*(size if has else 1 for has, size in runs), -1)
        return (wide * narrow).reshape(len(product), -1)

    def _onto(self, product: jax.Array, scope: tuple[int, ...], variables: tuple[int, ...]) -> jax.Array:
        """The sum over all other variables, ``[entries of variables, samples]``."""
        runs = self._runs(scope, variables)
        wide = product.reshape(*(size for _, size in runs), -1)
        return wide.sum(axis=tuple(axis for axis, (has, _) in enumerate(runs) if not has)).reshape(-1, product.shape[-1])

    def _runs(self, scope: tuple[int, ...], variables: tuple[int, ...]) -> list[tuple[bool, int]]:
        """Neighbouring axes that are among the variables, or are not, as one: few and long axes are what compilers like."""
        pairs = zip((v in variables for v in scope), self._cards(scope), strict=True)
        return [(has, math.prod(card for _, card in run)) for has, run in groupby(pairs, key=itemgetter(0))]

    def _cards(self, scope: Sequence[int]) -> list[int]:
        return self.net.cards[[*scope]].tolist()


def _scales(likelihoods: list[jax.Array]) -> list[jax.Array]:
    """The largest of each node's, ``[samples]``."""
    return [jnp.maximum(given.max(axis=0), _tiny(given)) for given in likelihoods]


def _tiny(a: jax.Array) -> float:
    return TINY_DOUBLE if a.dtype == jnp.float64 else TINY


def clique_tree(net: Network, limit: float) -> CliqueTree | None:
    """A tree if its cliques have at most ``limit`` entries together, else None."""
    if max(m.entries for m in net.mechanisms) > limit:
        return None
    graph = moral_graph([(*pa, i) for i, pa in enumerate(net.parents)])
    logs = np.log(net.cards.astype(float)).tolist()
    most = 2 * limit  # a clique of 2 x 2 x 2 counts three times there: 8, 4 and 2
    best = min((eliminate(graph, logs, most, weighted=w) for w in (True, False)), key=itemgetter(1))
    if best[1] > most:
        return None
    tree = CliqueTree(net, _tree(best[0], net))
    return tree if tree.entries <= limit else None


def _tree(found: dict[int, set[int]], net: Network) -> tuple[Clique, ...]:
    """From the clique of each variable by time of elimination."""
    when = {v: t for t, v in enumerate(found)}
    scopes = {v: tuple(sorted(clique, key=when.__getitem__)) for v, clique in found.items()}
    going: dict[int, list[int]] = {}  # by the first variable to go in a clique
    rests: dict[tuple[int, ...], int] = {}  # what is left of a clique, and the first to go there
    ranges, heard = _ranges(net, when), Counter(scope[1] for scope in scopes.values() if scope[1:])
    for v, scope in scopes.items():
        first = rests.pop(scope, v)
        together = [*going.get(first, ()), v]
        if sum(ranges[u] for u in together) > RANGE or sum(heard[u] for u in together) - len(together) + 1 > MESSAGES:
            first, together = v, [v]
        going[first] = together
        if scope[1:]:
            rests[scope[1:]] = first
    order = sorted(going, key=lambda first: when[going[first][-1]])
    home = {v: n for n, first in enumerate(order) for v in going[first]}
    below: list[list[int]] = [[] for _ in order]
    for n, first in enumerate(order):
        if shared := scopes[first][len(going[first]) :]:
            below[home[shared[0]]].append(n)
    return tuple(Clique(scopes[first], len(going[first]), tuple(below[n])) for n, first in enumerate(order))


def _ranges(net: Network, when: dict[int, int]) -> dict[int, float]:
    """Of the tables that belong to each variable, as the first of theirs to go: log of the largest number over the smallest."""
    out = dict.fromkeys(when, 0.0)
    for i, (pa, m) in enumerate(zip(net.parents, net.mechanisms, strict=True)):
        numbers = m.expand()
        out[min((*pa, i), key=when.__getitem__)] += math.log(numbers.max() / numbers[numbers > 0].min())
    return out
