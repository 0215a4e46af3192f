"""q_i = beta UM_i(e) + (1 - beta) P(x_i | pa_i), with ``structure`` the UM renormalised on the support of P (paper, section 4).

beta is a number, one for each node, fitted to the query, or a function of what has been drawn so far and the evidence, which the paper
leaves to future work. Such a function is Python, so that its samples are drawn on the host, slowly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from unimarg.conditionals import FLOOR, Draft, Query, normalised
from unimarg.counter import Key, key_of_stream
from unimarg.diagnostics import kish, scaled
from unimarg.errors import UsageError, closest
from unimarg.frame import Frame
from unimarg.importance import Draw, Drawn, Weigh, chunk_size, first_sample
from unimarg.nets import Numbers, columns, leading_bits
from unimarg.network import Floats, Ints, Network
from unimarg.walk import walk

FITTED = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)  # values tried for a query
STREAM = 0xBE7A  # apart from the samples that are used

Beta = Callable[[Ints, Mapping[str, object]], Any]  # (states [n, nodes], -1 where not drawn yet; evidence) -> a number or [n]


def hybrid(frame: Frame, query: Query, marginals: Floats, beta: Floats | float, structure: bool = True) -> Draft:
    """``beta`` is a number for all nodes or one for each."""
    draft = Draft(frame, query, structure)
    draft.set_families(other=marginals, beta=np.broadcast_to(np.asarray(beta, dtype=float), len(marginals)))
    return draft


def as_beta(beta: Any, net: Network) -> Floats:
    """``[nodes]`` from a number, an array, or a mapping from name to number in which those not named have 0."""
    if isinstance(beta, Mapping):
        for name in beta:
            if name not in net.index:
                raise UsageError(f"beta is given for {name!r}, which is no variable; {closest(name, net.names)}")
        beta = [beta.get(name, 0.0) for name in net.names]
    try:
        values = np.asarray(beta, dtype=float)
    except (TypeError, ValueError):
        raise UsageError(f"beta must be a number, one for each variable, a function, or 'fit', not {beta!r}") from None
    if values.shape not in ((), (len(net),)):
        raise UsageError(f"beta must be a number or one for each of the {len(net)} variables, not an array {list(values.shape)}")
    _check(values)
    return np.broadcast_to(values, len(net))


def _check(values: Floats) -> None:
    wrong = values[~((values >= 0) & (values <= 1))]
    if len(wrong.ravel()):
        raise UsageError(f"beta must lie between 0 and 1, not {wrong.ravel()[0]:g}")


def fit_beta(frame: Frame, query: Query, marginals: Floats, structure: bool, seed: int) -> tuple[float, int]:
    """The value with the most effective samples in a short run, and the samples that all runs took; they are not used again."""
    key, n = key_of_stream(seed, STREAM), chunk_size(frame)
    found: dict[float, float] = {}
    for beta in FITTED:
        given = hybrid(frame, query, marginals, beta, structure).finish()
        log_w = np.asarray(walk(frame.shape, given, key, first_sample(0), n)[1])
        found[beta] = kish(scaled(log_w)[1])
    return max(found, key=found.__getitem__), n * len(FITTED)


def hybrid_by_callable(
    frame: Frame, query: Query, marginals: Floats, beta: Beta, evidence: Mapping[str, object], structure: bool = True, nets: bool = True
) -> tuple[Draw, Weigh]:
    """Draws with ``beta(states, evidence)`` asked at every node: the next is the first that has -1 in all rows."""

    alone = Lock()  # a user's function is asked by one thread at a time

    def walked(draws: Callable[[int], Floats | Ints], n: int) -> tuple[Ints, jax.Array]:
        with alone:
            states, log_w, _ = host_walk(frame, query, marginals, lambda s: beta(s, evidence), structure, draws, n)
        return states, jnp.asarray(log_w, jnp.float32)

    def draw(key: Key, first: jax.Array, n: int) -> Drawn:
        states, log_w = walked(_uniforms(frame, Numbers.make(key, first, n, leading_bits(nets))), n)
        return jnp.asarray(states.T, frame.shape.dtype), log_w, None

    def weigh(states: jax.Array) -> tuple[jax.Array, None]:
        given = np.asarray(states, dtype=np.int64)
        return walked(given.__getitem__, given.shape[1])[1], None

    return draw, weigh


def _uniforms(frame: Frame, numbers: Numbers) -> Callable[[int], Floats]:
    """Those of ``walk`` for a node, ``[n]``."""

    def of(node: int) -> Floats:
        words = numbers.words(jnp.int32(node), jnp.asarray(columns()[frame.points[node]]))
        high, low = (np.asarray(w, dtype=np.float64) for w in words)
        return (high + low * 2.0**-32) * 2.0**-32

    return of


def host_walk(
    frame: Frame,
    query: Query,
    marginals: Floats,
    beta: Callable[[Ints], Any],
    structure: bool,
    draws: Callable[[int], Floats | Ints],
    n: int,
) -> tuple[Ints, Floats, Floats]:
    """States ``[n, nodes]``, their log w and log q; ``draws(node)`` are numbers in [0, 1), or integers: then the states themselves."""
    net = frame.net
    states = np.full((n, len(net)), -1, dtype=np.int64)
    for i, k in query.evidence.hard.items():
        states[:, i] = k
    log_w, log_q = np.zeros(n), np.zeros(n)
    rows = np.arange(n)
    for i in query.closure.tolist():  # sorted, and so parents first
        p = net.mechanisms[i].rows(states[:, list(net.parents[i])])
        target = p * query.likelihood[i, : net.cards[i]]
        with np.errstate(divide="ignore"):
            if query.known[i]:
                log_w += np.log(target[rows, states[:, i]])
                continue
            q = p if structure and query.free[i] else _mixed(target, marginals[i, : net.cards[i]], beta(states), structure)
            given = draws(i)
            states[:, i] = given if given.dtype.kind == "i" else (given[:, None] >= np.cumsum(q[:, :-1], axis=1)).sum(axis=1)
            mine = np.log(q[rows, states[:, i]])
            # a state that q cannot give has no weight; one that P does not allow weighs nothing
            log_w += np.where(target[rows, states[:, i]] > 0, np.log(target[rows, states[:, i]]) - np.maximum(mine, -1e30), -np.inf)
            log_q += mine
    return np.maximum(states, 0), log_w, log_q


def _mixed(target: Floats, marginal: Floats, beta: Any, structure: bool) -> Floats:
    """(1 - beta) t / Z + beta u / Z', with ``structure`` u where t > 0, every state with t > 0 possible; ``[n, card]``."""
    n = len(target)
    try:
        share = np.broadcast_to(np.asarray(beta, dtype=float), n)
    except (TypeError, ValueError):
        raise UsageError(f"beta must return a number or one for each of the {n} samples") from None
    _check(share)
    u = normalised(np.where((target > 0) | (not structure), marginal, 0.0))
    share = np.where(u.sum(axis=1) > 0, share, 0.0)[:, None]
    q = (1 - share) * normalised(target) + share * u
    q = normalised(np.where((target > 0) & (q < FLOOR), FLOOR, q))
    dead = ~q.any(axis=1)  # nothing fits what was drawn before: draw the first, its weight is 0
    q[dead, 0] = 1.0
    return q
