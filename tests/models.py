"""Small marginalizers for the tests: random ones, made in no time, and training runs that share their programs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unimarg as um
from unimarg import Marginalizer, Network, trainer
from unimarg.encoding import inputs
from unimarg.presets import recipe
from unimarg.ragged import Ragged
from unimarg.student import Student
from unimarg.trunk import Trunk

ASIA = um.example("asia")
ILL = {"dysp": "yes", "xray": "yes", "smoke": [0.3, 0.9]}
METHODS = ["prior", "independent", "hybrid", "message", "lookahead", "adaptive", "sequential"]  # by sampling
# every part of training: both heads, mixed masks, channels, clipping, averaging, a student; runs with these options share two programs
OPTIONS: dict[str, Any] = {"preset": "default", "hidden": (16,), "batch": 16, "labels": "sample", "student": 8, "clip": 1.0}
CALL, STEPS = 8, 19  # two calls and a shorter one


def random_model(net: Network, seed: int = 0, **options: Any) -> Marginalizer:
    """As if trained: random weights, random priors."""
    made = recipe(net, **({"preset": "paper", "hidden": (16,)} | options))
    ragged = Ragged(tuple(net.cards.tolist()))
    trunk = Trunk.make(seed, made.architecture, inputs(ragged, made.rounds > 0), ragged.slots)
    rng = np.random.default_rng(seed)
    priors = tuple(rng.dirichlet(np.full(k, 3.0)) for k in net.cards)
    student = None
    if made.student:
        student = Student.make(seed, made.student, made.architecture.hidden[-1], len(net), ragged.largest)
        student = jax.tree.map(lambda a: a + jnp.asarray(0.3 * rng.standard_normal(a.shape), jnp.float32), student)
    history = {"seed": seed, "steps": 5, "planned_steps": 5, "samples": 80, "seconds": 1.0, "loss": 0.5}
    return Marginalizer(net, made, trunk, priors, history, student)


def train(net: Network = ASIA, budget: str = f"{STEPS} steps", seed: int = 1, calls: int = CALL, **changes: Any) -> Marginalizer:
    """A short run in calls of few steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer._Run, "_steps_per_call", lambda self, accelerated, teacher: calls)
        return um.train(net, **(OPTIONS | {"budget": budget, "seed": seed} | changes))


def same(one: Any, other: Any) -> bool:
    """Bit for bit."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)
