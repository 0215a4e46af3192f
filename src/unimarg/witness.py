"""What a proposal misses, by samples that it did not draw.

A proposal that gives next to nothing to a part of the posterior does not draw from there, and no weight shows it: a network that was
trained for too short a time does that, and the prior where a cause is rare. Samples of ``lookahead``, which has an eye on the findings
and needs no network, do fall there. With their own weights v, and w those that the proposal gives to the same states, m witnesses tell
of the variance of a mean over n samples

    E[ w / P(e) (f - mu)^2 | e ] / n  ~  sum v w (f - mu)^2 / (n m P(e)^2)

which the proposal's own samples show as sum w^2 (f - mu)^2 / (sum w)^2, where they fall; and of that of P(e) by a mean of
(w / P(e) - 1)^2 P(e) / w. To sums over samples (``sums``) the witnesses are samples of the weight sqrt(v w).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from unimarg.conditionals import Conditionals, Query
from unimarg.counter import Key, key_from_seed
from unimarg.frame import Frame
from unimarg.importance import Draw, Drawn, Weigh, first_sample
from unimarg.proposals.lookahead import lookahead
from unimarg.walk import Origin, walk

MOST = 3e4  # of a log weight: where the proposal cannot draw a state at all


def witness(frame: Frame, query: Query, weigh: Weigh) -> Draw:
    """Draws with two log weights, of v and w. ``query`` must have all nodes drawn that the proposal draws."""
    by_tables = lookahead(frame, query).finish()

    def draw(key: Key, first: jax.Array, n: int) -> Drawn:
        states, log_v, _ = walk(frame.shape, by_tables, key, first, n, nets=True)
        log_w, origin = weigh(states)
        return states, jnp.stack([log_v, jnp.where(log_v > -jnp.inf, jnp.minimum(log_w, MOST), 0.0)]), origin

    return draw


def weighed_by_walk(frame: Frame, given: Conditionals, control: bool = True) -> Weigh:
    """By a proposal that draws every node in one step; ``control`` as for ``sampler``, so that both are summed by one program."""

    def weigh(states: jax.Array) -> tuple[jax.Array, Origin | None]:
        unused = key_from_seed(0), first_sample(0)
        _, log_w, origin = walk(frame.shape, given, *unused, states.shape[1], states[given.steps.node])
        return log_w, origin if control else None

    return weigh
