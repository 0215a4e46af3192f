"""SUM-IS: N full passes, the incremental evaluation, and one full pass, side by side in one run.

    python benchmarks/sum_is.py [--nodes 500] [--units 2048] [--blocks 32 64 128 256]

A random network of binary nodes with two parents each, and the paper's trunk with random weights: every node is drawn from UM_i of the
evidence and all that was drawn before it, nothing is skipped. The incremental evaluation is asked for as an estimate asks for it: one chunk
for each core, side by side. Samples a second, medians of interleaved repeats, compilation apart.
"""

import argparse
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import unimarg as um
from unimarg.counter import key_from_seed
from unimarg.encoding import encode, one_hot
from unimarg.evidence import Evidence
from unimarg.importance import first_sample, side_by_side
from unimarg.incremental import make_findings, sequential_draw, trunk_layer
from unimarg.layout import compile_network
from unimarg.presets import recipe
from unimarg.ragged import Ragged
from unimarg.trunk import Trunk

REPEATS, SAMPLES, FEW = 5, 2048, 64  # FEW: samples of the N passes, which are slow


def random_net(nodes: int, rng: np.random.Generator) -> um.Network:
    names = [f"x{i}" for i in range(nodes)]
    parents = {name: [names[j] for j in rng.choice(i, size=min(i, 2), replace=False)] for i, name in enumerate(names)}
    return um.Network([um.Variable(n) for n in names], parents, {n: rng.dirichlet((1, 1), (2,) * len(parents[n])) for n in names})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--units", type=int, default=2048)
    parser.add_argument("--blocks", type=int, nargs="+", default=[32, 64, 128, 256])
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    net = random_net(given.nodes, rng)
    ragged, compiled, key = Ragged(tuple(net.cards.tolist())), compile_network(net, width=1), key_from_seed(0)
    trunk = Trunk.make(0, recipe(net, "paper", hidden=(given.units,)).architecture, 2 * len(net), len(net))
    priors, nothing = jnp.full(len(net), 0.5), jnp.zeros(len(net))
    findings = make_findings(net, Evidence({}, {}), np.zeros(len(net), bool), np.ones(len(net), bool))

    @jax.jit
    def full_pass(trunk: Trunk, states: jax.Array) -> jax.Array:
        x = encode("prior", states >= 0, one_hot(states, ragged), ragged, priors)
        return trunk(x, nothing)["marginal"]

    @jax.jit
    def n_passes(trunk: Trunk, states: jax.Array, uniform: jax.Array) -> jax.Array:
        def step(i: jax.Array, states: jax.Array) -> jax.Array:
            p = jax.nn.sigmoid(full_pass(trunk, states))
            return states.at[:, i].set((uniform[:, i] < p[:, i]).astype(states.dtype))

        return jax.lax.fori_loop(0, len(net), step, states)

    @jax.jit
    def layer(trunk: Trunk) -> object:
        known = jnp.zeros((1, len(net)), bool)
        return trunk_layer(trunk, "marginal", "prior", ragged, priors, nothing, known, one_hot(jnp.full((1, len(net)), -1), ragged))

    drawn = jnp.asarray(um.sample(net, SAMPLES, seed=1))
    runs = {
        "one full pass": (SAMPLES, lambda: full_pass(trunk, drawn)),
        "N full passes": (FEW, lambda: n_passes(trunk, jnp.full_like(drawn[:FEW], -1), jnp.asarray(rng.random((FEW, len(net)))))),
    }
    cores = side_by_side()
    pool = ThreadPoolExecutor(cores)

    def incremental(block: int) -> list[object]:
        made, part = layer(trunk), SAMPLES // cores

        def draw(chunk: int) -> object:
            at = first_sample(chunk * part)
            return jax.block_until_ready(sequential_draw(compiled.layout, compiled.arrays, key, at, part, made, findings, block))

        return list(pool.map(draw, range(cores)))

    for block in given.blocks:
        runs[f"incremental, {block}"] = (SAMPLES, partial(incremental, block))
    seconds = {name: [] for name in runs}
    for repeat in range(REPEATS + 1):
        for name, (n, run) in runs.items():
            start = time.perf_counter()
            jax.block_until_ready(run())
            if repeat:  # the first compiles
                seconds[name].append((time.perf_counter() - start) / n)
    rate = {name: 1 / statistics.median(s) for name, s in seconds.items()}
    print(f"{given.nodes} nodes, {given.units} units, {cores} cores, {jax.devices()[0].device_kind}, JAX {jax.__version__}")
    print(f"{'':20} {'samples/s':>10} {'x N passes':>11} {'x one pass':>11}")
    for name, r in rate.items():
        print(f"{name:20} {r:10.0f} {r / rate['N full passes']:11.1f} {r / rate['one full pass']:11.3f}")


if __name__ == "__main__":
    main()
