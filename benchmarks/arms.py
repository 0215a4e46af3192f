"""Arms that the default preset was chosen from, each trained for the same time.

    python benchmarks/arms.py alarm.bif.gz residual plain transformer --seconds 70 [--references refs.npz] [--seed 0]

An arm is the default preset without a student, a few options changed, or another trunk in its place; time is counted without
compilation. Writes a line of CSV for each arm and evidence family; ``--each FILE`` adds one for each evidence set, ``--save FOLDER``
keeps the models, for ``ess.py``. References as in ``one_shot.py``.

Several of these may run on one device at a time: with ``--lock FILE``, the same for all, only one of them trains, while the others
compile and judge. Compilation tries kernels on the device too, so that it is not free for the one that trains.

What the arms that are not in the product do:

transformer    one token for every node (flag and value, an embedding of its own), attention, a head of its own for every node
edge           the same, attention only between neighbours in the moral graph
propagation    the beliefs that the default starts from, nothing is learnt
prior          the default without those beliefs: a residual on the prior
ungated        the default without gates on those beliefs
muon           Muon in place of Adam
"""

from __future__ import annotations

import argparse
import ast
import csv
import fcntl
import itertools
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from muon import muon_for_layers
from one_shot import named, truths

from unimarg import trainer, training
from unimarg.batches import TRUNK_STEPS
from unimarg.encoding import prior_slots
from unimarg.evaluation import errors
from unimarg.marginalizer import Marginalizer
from unimarg.masking import UniformRate
from unimarg.network import Network
from unimarg.presets import recipe
from unimarg.ragged import Parts, Ragged
from unimarg.triangulation import moral_graph
from unimarg.trunk import Linear, Trunk, standardised

ARMS: dict[str, dict[str, Any]] = {
    "residual": {},
    "residual-1024": {"hidden": (1024,) * 3, "learning_rate": 1e-3, "batch": 1024},
    "plain": {"residual": False, "hidden": (2048,) * 2},
    "plain-4096": {"residual": False, "hidden": (4096,)},
    "marginal-head": {"heads": ("marginal",)},
    "uniform-mask": {"mask": UniformRate()},
    "no-average": {"average": 0.0},
    "sample": {"labels": "sample"},
    "soft": {"labels": "soft"},
    "weighted": {"labels": "weighted"},
    "exact": {"labels": "exact"},
    "transformer": {"trunk": "transformer", "rounds": 0, "heads": ("marginal",)},
    "edge": {"trunk": "edge", "rounds": 0, "heads": ("marginal",)},
    "propagation": {"trunk": "untrained"},
    "prior": {"rounds": 0},
    "ungated": {"gated": False},
    "muon": {"optimizer": "muon", "learning_rate": 1e-3},
}
TOKENS_PER_CALL = 1 << 23


# --- tokens and attention


class Transformer(eqx.Module):
    enter: list[jax.Array]  # [nodes, K, width] for each group: a flag and K - 1 values
    start: jax.Array  # [nodes, width]
    layers: list[list[Linear]]  # queries, keys and values; out; up; down
    leave: list[jax.Array]  # [nodes, width, K - 1] for each group
    near: jax.Array | None  # [nodes, nodes]: 1 where attention may go (a number: weights are differentiated)
    ragged: Ragged = eqx.field(static=True)
    heads: int = eqx.field(static=True)
    kernel: Any = eqx.field(static=True)  # of attention: None, or "cudnn", which takes bfloat16 alone

    @classmethod
    def make(
        cls, seed: int, ragged: Ragged, near: np.ndarray | None, kernel: str | None, width: int = 128, depth: int = 4, heads: int = 4
    ) -> Transformer:
        rng = np.random.default_rng(seed)

        def normal(*shape: int, scale: float = 1.0) -> jax.Array:
            return jnp.asarray(scale * rng.standard_normal(shape), jnp.float32)

        def layer() -> list[Linear]:
            shapes = [(width, 3 * width, 1.0), (width, width, 1 / depth), (width, 4 * width, 1.4), (4 * width, width, 1 / depth)]
            return [Linear.make(rng, *s) for s in shapes]

        return cls(
            [normal(n, k, width) for k, n in ragged.groups],
            normal(len(ragged.cards), width),
            [layer() for _ in range(depth)],
            [jnp.zeros((n, width, k - 1)) for k, n in ragged.groups],
            None if near is None else jnp.asarray(near, jnp.float32),
            ragged,
            heads,
            kernel,
        )

    def features(self, x: jax.Array, half: bool = False, key: Any = None) -> jax.Array:
        """``[samples, nodes, width]``"""
        nodes, kind = len(self.ragged.cards), jnp.bfloat16 if half else jnp.float32
        flags, slots = self.ragged.nodes(x[:, :nodes]), self.ragged.split(x[:, nodes:])
        tokens = [
            jnp.einsum("bnk,nkd->bnd", jnp.concatenate([f[..., None], s], -1), w) for f, s, w in zip(flags, slots, self.enter, strict=True)
        ]
        h = (jnp.concatenate(tokens, axis=1) + self.start).astype(kind)
        shape = h.shape
        h = h.reshape(-1, shape[-1])  # a row for each token, as the layers take them
        near = None if self.near is None else self.near[None, None] > 0.5
        for qkv, out, up, down in self.layers:
            parts = jnp.split(qkv(standardised(h), half).astype(kind), 3, -1)
            q, k, v = (a.reshape(*shape[:2], self.heads, -1) for a in parts)
            seen = jax.nn.dot_product_attention(q, k, v, mask=near, implementation=self.kernel if half else None)
            h = (h + out(seen.reshape(h.shape), half)).astype(kind)
            h = (h + down(up.relu(standardised(h), half), half)).astype(kind)
        return standardised(h).reshape(shape)

    def logits(self, h: jax.Array, start: Mapping[str, jax.Array], half: bool = False) -> dict[str, jax.Array]:
        parts = [jnp.einsum("bnd,ndk->bnk", g, w).reshape(len(h), -1) for g, w in zip(_groups(h, self.ragged), self.leave, strict=True)]
        return {"marginal": start["marginal"] + jnp.concatenate(parts, axis=-1)}

    def __call__(self, x: jax.Array, start: Mapping[str, jax.Array], half: bool = False) -> dict[str, jax.Array]:
        return self.logits(self.features(x, half), start, half)


def _groups(h: jax.Array, ragged: Ragged) -> Parts:
    edges = np.cumsum([0, *(n for _, n in ragged.groups)])
    return [h[:, a:b] for a, b in itertools.pairwise(edges)]


# --- training


def make_transformer(net: Network, ragged: Ragged, seed: int, masked: bool, kernel: str | None) -> Transformer:
    near = None
    if masked:
        near = np.eye(len(net), dtype=bool)
        for v, others in moral_graph([(*pa, i) for i, pa in enumerate(net.parents)]).items():
            near[ragged.place[v], ragged.place[list(others)]] = True
    return Transformer.make(seed, ragged, near, kernel)


@contextmanager
def alone(path: str | None) -> Iterator[None]:
    """Of all processes that name this file one at a time, the others wait."""
    if path is None:
        yield
        return
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def train_arm(net: Network, arm: str, seconds: float, seed: int, extra: dict[str, Any], lock: str | None = None) -> Marginalizer:
    """As ``unimarg.train``, for a time without compilation."""
    options: dict[str, Any] = {"student": 0} | ARMS[arm] | extra
    kind, optimizer, mask, kernel = (options.pop(name, None) for name in ("trunk", "optimizer", "mask", "kernel"))
    made = recipe(net, "default", mask, **options)
    run = trainer._Run(net, made, seed, trainer.Budget(seconds, None), time.perf_counter(), None, None)
    adam = training.optimizer
    if optimizer == "muon":
        training.optimizer = lambda recipe: muon_for_layers()
    state = training.initial_state(run.plan, seed)
    if kind in ("transformer", "edge"):
        trunk = make_transformer(net, run.ragged, seed, kind == "edge", kernel)
        fit = TOKENS_PER_CALL >> (made.batch * len(net) - 1).bit_length()  # a call is to be short, and the run reckons with its own trunk
        run.plan = replace(run.plan, steps_per_call=min(run.plan.steps_per_call, max(fit, TRUNK_STEPS)))
        state = state._replace(trunk=training.Learner(trunk, trunk, training.optimizer(made).init(cast(Any, trunk))))
    if kind == "untrained":
        run.state = state
        return run._model(0)
    given = training.Given(run.compiled.arrays, trainer.key_from_seed(seed), *prior_slots(run.priors, run.ragged), jnp.int32(0))
    begin = time.perf_counter()
    run.state = state
    del state
    jax.block_until_ready(training.run_steps(run.plan, given, run.state))  # compiles, and takes no step
    compiling = time.perf_counter() - begin
    with alone(lock):
        run.start = time.perf_counter()
        steps = run._calibrate(given)
        begin = time.perf_counter()
        run._loop(given._replace(steps=jnp.int32(steps)), steps)
        a_step = (time.perf_counter() - begin) / steps
        model = run._model(steps)
    training.optimizer = adam
    print(f"{net.name} {arm}: compiled in {compiling:.0f} s, {1e3 * a_step:.3f} ms a step", file=sys.stderr, flush=True)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", help="a file, an example, or 'medical'")
    parser.add_argument("arms", nargs="+", help=f"of {', '.join(ARMS)}; with options as in \"transformer:batch=256;kernel='cudnn'\"")
    parser.add_argument("--seconds", type=float, default=25)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--references")
    parser.add_argument("--lock", help="a file: of the processes that name it one trains at a time")
    parser.add_argument("--save", help="a folder that gets the models, as NETWORK-ARM-seed-N.um, but for the transformers")
    parser.add_argument("--each", help="a file that gets a line for each arm, seed, family and evidence set: mean and largest error")
    given = parser.parse_args()
    for path in filter(None, (given.lock, given.each)):
        open(path, "a").close()  # one that cannot be written says so now, not after the first arm
    if given.save:
        os.makedirs(given.save, exist_ok=True)
    name, net = named(given.network)
    expected = truths(name, net, given.references)
    out = csv.writer(sys.stdout)
    for arm in given.arms:
        kind, _, extra = arm.partition(":")
        options = {k: ast.literal_eval(v) for k, v in (o.split("=", 1) for o in extra.split(";") if o)}
        try:
            model = train_arm(net, kind, given.seconds, given.seed, options, given.lock)
        except Exception as e:  # an arm that fails says so, and the others go on
            print(f"{name} {arm} failed: {str(e)[:300]}", file=sys.stderr, flush=True)
            continue
        if given.save and isinstance(model.trunk, Trunk):
            model.save(f"{given.save}/{name}-{kind}-seed-{given.seed}.um")
        for family, (evidence, truth) in expected.items():
            mean, largest = errors(model.marginals_of_states(evidence), truth, evidence, net)
            figures = [f"{x:.6f}" for x in (mean.mean(), largest.mean(), largest.max())]
            run = [model.history["steps"], f"{model.history['seconds']:.0f}", jax.devices()[0].device_kind, jax.__version__, given.seed]
            out.writerow([name, arm, f"{given.seconds:g}", family, *figures, *run])
            sys.stdout.flush()
            if given.each:
                with open(given.each, "a") as each:
                    pairs = zip(mean, largest, strict=True)
                    csv.writer(each).writerows([name, arm, given.seed, family, n, f"{m:.7f}", f"{x:.7f}"] for n, (m, x) in enumerate(pairs))


if __name__ == "__main__":
    main()
