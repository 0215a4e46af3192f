"""Arms that the default preset was chosen from, each trained for the same time.

    python benchmarks/arms.py alarm.bif.gz residual plain transformer --seconds 25 [--references refs.npz] [--seed 0]

An arm is the default preset with a few options changed, or with another trunk in its place; time is counted without
compilation. Writes a line of CSV for each arm and evidence family. References are an .npz with arrays
``<network>.<family>.evidence`` and ``.truth``; without one they are computed as in ``one_shot.py``.

What the arms that are not in the product do:

transformer    one token for every node (flag and value, an embedding of its own), attention, a head of its own for every node
edge           the same, attention only between neighbours in the moral graph
belief         loopy belief propagation (a few rounds) beside the evidence as input, and the network as a residual on its beliefs
bp             those beliefs alone, nothing is learnt
muon           Muon in place of Adam
"""

from __future__ import annotations

import argparse
import ast
import csv
import sys
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib

import unimarg as um
from unimarg import trainer, training
from unimarg.evaluation import errors, evidence_sets
from unimarg.marginalizer import Marginalizer, prior_slots
from unimarg.masking import UniformRate
from unimarg.network import Network, NoisyMax
from unimarg.presets import recipe
from unimarg.ragged import Parts, Ragged
from unimarg.triangulation import moral_graph
from unimarg.trunk import Linear, Norm, Trunk

SETS, SEED = 60, 4242
NEVER = -30.0  # log of a message that is as good as zero

ARMS: dict[str, dict[str, Any]] = {
    "residual": {},
    "residual-2048": {"hidden": (2048,) * 3, "learning_rate": 5e-4},
    "plain": {"residual": False, "hidden": (2048,) * 2},
    "plain-4096": {"residual": False, "hidden": (4096,)},
    "marginal-head": {"heads": ("marginal",)},
    "uniform-mask": {"mask": UniformRate()},
    "no-average": {"average": 0.0},
    "sample": {"labels": "sample"},
    "soft": {"labels": "soft"},
    "exact": {"labels": "exact"},
    "transformer": {"trunk": "transformer"},
    "edge": {"trunk": "edge"},
    "belief": {"trunk": "belief"},
    "bp": {"trunk": "bp"},
    "muon": {"optimizer": "muon", "learning_rate": 1e-2},
}


# --- tokens and attention


class Transformer(eqx.Module):
    enter: list[jax.Array]  # [nodes, K, width] for each group: a flag and K - 1 values
    start: jax.Array  # [nodes, width]
    layers: list[list[Linear]]  # queries, keys and values; out; up; down
    norms: list[Norm]
    leave: list[jax.Array]  # [nodes, width, K - 1] for each group
    near: jax.Array | None  # [nodes, nodes]: 1 where attention may go (a number: weights are differentiated)
    ragged: Ragged = eqx.field(static=True)
    heads: int = eqx.field(static=True)

    @classmethod
    def make(cls, seed: int, ragged: Ragged, near: np.ndarray | None, width: int = 128, depth: int = 4, heads: int = 4) -> Transformer:
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
            [Norm.make(width) for _ in range(2 * depth + 1)],
            [jnp.zeros((n, width, k - 1)) for k, n in ragged.groups],
            None if near is None else jnp.asarray(near, jnp.float32),
            ragged,
            heads,
        )

    def __call__(self, x: jax.Array, prior_logits: jax.Array, half: bool = False, key: Any = None) -> dict[str, jax.Array]:
        nodes, kind = len(self.ragged.cards), jnp.bfloat16 if half else jnp.float32
        flags, slots = self.ragged.nodes(x[:, :nodes]), self.ragged.split(x[:, nodes:])
        tokens = [
            jnp.einsum("bnk,nkd->bnd", jnp.concatenate([f[..., None], s], -1), w) for f, s, w in zip(flags, slots, self.enter, strict=True)
        ]
        h = jnp.concatenate(tokens, axis=1) + self.start
        for i, (qkv, out, up, down) in enumerate(self.layers):
            q, k, v = (a.reshape(*a.shape[:2], self.heads, -1).astype(kind) for a in jnp.split(qkv(self.norms[2 * i](h), half), 3, -1))
            near = None if self.near is None else self.near[None, None] > 0.5
            mixed = jax.nn.dot_product_attention(q, k, v, mask=near)
            h = h + out(mixed.reshape(h.shape), half)
            h = h + down(jax.nn.relu(up(self.norms[2 * i + 1](h), half)), half)
        h = self.norms[-1](h)
        parts = [jnp.einsum("bnd,ndk->bnk", g, w).reshape(len(x), -1) for g, w in zip(_groups(h, self.ragged), self.leave, strict=True)]
        return {"marginal": prior_logits + jnp.concatenate(parts, axis=-1)}


def _groups(h: jax.Array, ragged: Ragged) -> Parts:
    edges = np.cumsum([0, *(n for _, n in ragged.groups)])
    return [h[:, a:b] for a, b in zip(edges[:-1], edges[1:], strict=True)]


# --- loopy belief propagation


class Tables:
    """Rounds of sum-product between the nodes and their tables; tables of the same shape at once."""

    def __init__(self, net: Network, ragged: Ragged, rounds: int):
        self.rounds, self.card, self.nodes = rounds, int(net.cards.max()), len(net)
        shapes: dict[tuple[int, ...], list[int]] = {}
        for i, pa in enumerate(net.parents):
            shapes.setdefault(tuple(int(net.cards[v]) for v in (*pa, i)), []).append(i)
        self.groups = []
        for shape, members in shapes.items():
            scopes = ragged.place[np.array([[*net.parents[i], i] for i in members])]  # [tables, axes]
            self.groups.append((shape, scopes, np.stack([net.mechanisms[i].expand() for i in members]).astype(np.float32)))

    def __call__(self, evidence: jax.Array) -> jax.Array:
        """Log beliefs ``[nodes, card, samples]`` from log likelihoods of the same shape."""
        said = [[jnp.zeros((len(s), k, evidence.shape[-1])) for k in shape] for shape, s, _ in self.groups]
        for _ in range(self.rounds):
            beliefs = self._beliefs(evidence, said)
            said = [self._speak(beliefs, *group, old) for group, old in zip(self.groups, said, strict=True)]
        return self._beliefs(evidence, said)

    def _beliefs(self, evidence: jax.Array, said: list[list[jax.Array]]) -> jax.Array:
        for (shape, scopes, _), messages in zip(self.groups, said, strict=True):
            for axis, k in enumerate(shape):
                evidence = evidence.at[scopes[:, axis], :k].add(messages[axis])
        return evidence

    def _speak(
        self, beliefs: jax.Array, shape: tuple[int, ...], scopes: np.ndarray, table: np.ndarray, old: list[jax.Array]
    ) -> list[jax.Array]:
        heard = [jax.nn.softmax(beliefs[scopes[:, a], :k] - old[a], axis=1) for a, k in enumerate(shape)]
        axes = "abcdefghijklmnopq"[: len(shape)]
        out = []
        for a in range(len(shape)):
            others = [b for b in range(len(shape)) if b != a]
            rule = f"z{axes}," + ",".join(f"z{axes[b]}s" for b in others) + f"->z{axes[a]}s"
            if others:
                message = jnp.einsum(rule, jnp.asarray(table), *(heard[b] for b in others), precision="highest")
            else:
                message = jnp.broadcast_to(jnp.asarray(table)[..., None], (*table.shape, beliefs.shape[-1]))
            message = jnp.maximum(jnp.log(jnp.maximum(message, 1e-30)), NEVER)
            out.append(message - message.max(axis=1, keepdims=True))
        return out


class NoisyOrs:
    """The same for networks of binary noisy-ors, arc by arc: a product over the parents is a product of expectations."""

    def __init__(self, net: Network, ragged: Ragged, rounds: int):
        self.rounds, self.nodes = rounds, len(net)
        arcs, log_off = [], np.zeros(len(net))
        for i, (pa, m) in enumerate(zip(net.parents, net.mechanisms, strict=True)):
            noisy = isinstance(m, NoisyMax)
            assert noisy or not pa
            log_off[i] = np.log(m.leak[0] if isinstance(m, NoisyMax) else m.expand()[0])
            arcs += [(p, i, m.contributions[j][1, 1]) for j, p in enumerate(pa) if isinstance(m, NoisyMax)]
        self.parent, self.child = (np.array([a[j] for a in arcs]) for j in (0, 1))
        self.effect = np.array([a[2] for a in arcs], np.float32)[:, None]
        self.log_off = log_off.astype(np.float32)[:, None]

    def __call__(self, evidence: jax.Array) -> jax.Array:
        given = evidence[:, 1] - evidence[:, 0]  # [nodes, samples]
        up = jnp.zeros((len(self.parent), given.shape[-1]))
        on = self.log_off  # log P(off | what is above), per node
        for _ in range(self.rounds):
            below = given.at[self.parent].add(up)
            for _ in range(2):  # risks, then diseases
                total = jnp.log(jnp.maximum(-jnp.expm1(on), 1e-12)) - on + below
                p = jax.nn.sigmoid(jnp.clip(total[self.parent] - up, NEVER, -NEVER))
                quiet = jnp.log1p(-jnp.minimum(self.effect * p, 1 - 1e-6))
                on = jnp.broadcast_to(self.log_off, given.shape).at[self.child].add(quiet)
            off = jnp.exp(on[self.child] - quiet)  # P(child off | this parent off)
            ratio = jnp.exp(jnp.clip(below[self.child], NEVER, -NEVER))
            with_it = off * (1 - self.effect)
            up = jnp.log(with_it + ratio * (1 - with_it)) - jnp.log(off + ratio * (1 - off))
        below = given.at[self.parent].add(up)
        total = jnp.log(jnp.maximum(-jnp.expm1(on), 1e-12)) - on + below
        return jnp.stack([jnp.zeros_like(total), total], axis=1)


class Belief(eqx.Module):
    """A trunk that is also given beliefs, and starts from them; ``inner`` None: the beliefs alone."""

    inner: Trunk | None
    propagate: Any = eqx.field(static=True)
    ragged: Ragged = eqx.field(static=True)

    def __call__(self, x: jax.Array, prior_logits: jax.Array, half: bool = False, key: Any = None) -> dict[str, jax.Array]:
        nodes = len(self.ragged.cards)
        evidence = []
        card = max(self.ragged.cards)
        for flag, slots in zip(self.ragged.nodes(x[:, :nodes]), self.ragged.split(x[:, nodes:]), strict=True):
            values = jnp.concatenate([1 - slots.sum(-1, keepdims=True), slots], axis=-1)
            log = jnp.where(flag[..., None] > 0, jnp.maximum(jnp.log(jnp.maximum(values, 1e-30)), NEVER), 0)
            evidence.append(jnp.pad(log, ((0, 0), (0, 0), (0, card - log.shape[-1]))))
        beliefs = self.propagate(jnp.moveaxis(jnp.concatenate(evidence, axis=1), 0, -1))  # [nodes, card, samples]
        beliefs, at = jnp.moveaxis(beliefs, -1, 0), 0
        logits = []
        for k, n in self.ragged.groups:
            part = beliefs[:, at : at + n, :k]
            logits.append((part[..., 1:] - part[..., :1]).reshape(len(x), n * (k - 1)))
            at += n
        base = jax.lax.stop_gradient(jnp.clip(jnp.concatenate(logits, axis=-1), -20, 20))
        if self.inner is None:
            return {"marginal": base}
        out = self.inner(jnp.concatenate([x, base / 4], axis=-1), prior_logits, half, key)
        return out | {"marginal": out["marginal"] - prior_logits + base}


# --- training


def make_trunk(kind: str, net: Network, plan: training.Plan, seed: int) -> Any:
    ragged = plan.ragged
    if kind in ("transformer", "edge"):
        near = None
        if kind == "edge":
            graph = moral_graph([(*pa, i) for i, pa in enumerate(net.parents)])
            near = np.eye(len(net), dtype=bool)
            for v, others in graph.items():
                near[ragged.place[v], ragged.place[list(others)]] = True
        return Transformer.make(seed, ragged, near)
    noisy = any(isinstance(m, NoisyMax) for m in net.mechanisms)
    propagate = NoisyOrs(net, ragged, 3) if noisy else Tables(net, ragged, 4)
    inputs = len(net) + 2 * ragged.slots
    return Belief(Trunk.make(seed, plan.recipe.architecture, inputs, ragged.slots) if kind == "belief" else None, propagate, ragged)


def train_arm(net: Network, arm: str, seconds: float, seed: int, extra: dict[str, Any]) -> Marginalizer:
    """As ``unimarg.train``, for a time without compilation."""
    options = ARMS[arm] | extra
    kind, optimizer, mask = options.pop("trunk", None), options.pop("optimizer", None), options.pop("mask", None)
    if kind in ("transformer", "edge"):
        options["heads"] = ("marginal",)
    made = recipe(net, "default", mask, **options)
    plain = training.optimizer
    if optimizer == "muon":
        training.optimizer = lambda recipe: optax.chain(optax.clip_by_global_norm(1.0), optax.contrib.muon(1.0))
    run = trainer._Run(net, made, seed, trainer.Budget(seconds, None), time.perf_counter(), None, None)
    if kind == "bp":
        return run._model(training.initial_state(run.plan, seed)._replace(trunk=make_trunk(kind, net, run.plan, seed), average=None), 0)
    state = training.initial_state(run.plan, seed)
    if kind:
        trunk = make_trunk(kind, net, run.plan, seed)
        weights = eqx.filter(trunk, eqx.is_inexact_array)
        state = training.State(state.step, trunk, trunk if made.average else None, training.optimizer(made).init(weights))
    given = training.Given(run.compiled.arrays, trainer.key_from_seed(seed), *prior_slots(run.priors, run.ragged), jnp.int32(10**9))
    begin = time.perf_counter()
    jax.block_until_ready(training.run_steps(run.plan, given, state))
    compiling = time.perf_counter() - begin
    begin = time.perf_counter()
    jax.block_until_ready(training.run_steps(run.plan, given, state))
    a_call = time.perf_counter() - begin
    steps = run.plan.steps_per_call * max(1, int(0.97 * seconds / a_call))
    run.start = time.perf_counter()
    state, _ = run._loop(given._replace(steps=jnp.int32(steps)), state, steps)
    training.optimizer = plain
    print(
        f"{net.name} {arm}: compiled in {compiling:.0f} s, {1e3 * a_call / run.plan.steps_per_call:.3f} ms a step",
        file=sys.stderr,
        flush=True,
    )
    return run._model(state, steps)


def references(net: Network, name: str, path: str | None) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    if path is None:
        from one_shot import truth

        sets = {family: evidence_sets(net, family, SETS, SEED) for family in ("random", "leaves")}
        return {family: (evidence, truth(net, evidence)) for family, evidence in sets.items()}
    stored = np.load(path)
    families = [f for f in ("random", "leaves", "clinical") if f"{name}.{f}.truth" in stored]
    return {f: (stored[f"{name}.{f}.evidence"].astype(np.int64), stored[f"{name}.{f}.truth"]) for f in families}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", help="a file, an example, or 'medical'")
    parser.add_argument("arms", nargs="+", help=f"of {', '.join(ARMS)}; with options as in soft:passes=4,batch=512")
    parser.add_argument("--seconds", type=float, default=25)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--references")
    given = parser.parse_args()
    name = Path(given.network).name.split(".")[0]
    net = um.medical() if name == "medical" else um.load(given.network) if Path(given.network).exists() else um.example(given.network)
    truths = references(net, name, given.references)
    out = csv.writer(sys.stdout)
    for arm in given.arms:
        kind, _, extra = arm.partition(":")
        options = {k: ast.literal_eval(v) for k, v in (o.split("=", 1) for o in extra.split(";") if o)}
        try:
            model = train_arm(net, kind, given.seconds, given.seed, options)
        except Exception as e:  # an arm that fails says so, and the others go on
            print(f"{name} {arm} failed: {str(e)[:300]}", file=sys.stderr, flush=True)
            continue
        for family, (evidence, truth) in truths.items():
            mean, largest = errors(model.marginals_of_states(evidence), truth, evidence, net)
            figures = [f"{x:.6f}" for x in (mean.mean(), largest.mean(), largest.max())]
            run = [model.history["steps"], f"{model.history['seconds']:.0f}", jax.devices()[0].device_kind, jax.__version__, given.seed]
            out.writerow([name, arm, f"{given.seconds:g}", family, *figures, *run])
            sys.stdout.flush()


if __name__ == "__main__":
    main()
