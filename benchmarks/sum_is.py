"""SUM-IS: N full passes, the incremental evaluation, and one full pass, side by side in one run.

    python benchmarks/sum_is.py [--nodes 500] [--units 2048] [--blocks 32 64 128 256]

A random network of binary nodes with two parents each, and the paper's trunk with random weights: every node is drawn from UM_i of the
evidence and all that was drawn before it, nothing is skipped. The incremental evaluation is asked for as an estimate asks for it: one chunk
for each core, side by side. Samples a second, medians of interleaved repeats, compilation apart.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import unimarg as um
from unimarg.counter import key_from_seed
from unimarg.encoding import encode, one_hot
from unimarg.evidence import Evidence
from unimarg.importance import first_sample, side_by_side
from unimarg.incremental import Layer, make_findings, sequential_draw, trunk_layer
from unimarg.layout import compile_network
from unimarg.presets import recipe
from unimarg.ragged import Ragged
from unimarg.trunk import Trunk

REPEATS, SAMPLES, FEW = 5, 2048, 64  # FEW: samples of the N passes, which are slow


def random_net(nodes: int, rng: np.random.Generator) -> um.Network:
    names = [f"x{i}" for i in range(nodes)]
    parents = {name: [names[j] for j in rng.choice(i, size=min(i, 2), replace=False)] for i, name in enumerate(names)}
    return um.Network([um.Variable(n) for n in names], parents, {n: rng.dirichlet((1, 1), (2,) * len(parents[n])) for n in names})


class Contest:
    """The three ways to draw from one network and trunk."""

    def __init__(self, nodes: int, units: int):
        self.rng = np.random.default_rng(0)
        self.net = random_net(nodes, self.rng)
        self.ragged, self.compiled = Ragged(tuple(self.net.cards.tolist())), compile_network(self.net, width=1)
        self.trunk = Trunk.make(0, recipe(self.net, "paper", hidden=(units,)).architecture, 2 * nodes, nodes)
        self.priors, self.nothing = jnp.full(nodes, 0.5), jnp.zeros(nodes)
        self.findings = make_findings(self.net, Evidence({}, {}), np.zeros(nodes, bool), np.ones(nodes, bool))
        self.drawn = jnp.asarray(um.sample(self.net, SAMPLES, seed=1))
        self.cores = side_by_side()
        self.pool = ThreadPoolExecutor(self.cores)

    @partial(jax.jit, static_argnums=0)
    def _full_pass(self, trunk: Trunk, states: jax.Array) -> jax.Array:
        x = encode("prior", states >= 0, one_hot(states, self.ragged), self.ragged, self.priors)
        return trunk(x, {})["marginal"]

    @partial(jax.jit, static_argnums=0)
    def _n_passes(self, trunk: Trunk, states: jax.Array, uniform: jax.Array) -> jax.Array:
        def step(i: jax.Array, states: jax.Array) -> jax.Array:
            p = jax.nn.sigmoid(self._full_pass(trunk, states))
            return states.at[:, i].set((uniform[:, i] < p[:, i]).astype(states.dtype))

        return lax.fori_loop(0, len(self.net), step, states)

    @partial(jax.jit, static_argnums=0)
    def _layer(self, trunk: Trunk) -> Layer:
        known, values = jnp.zeros((1, len(self.net)), bool), one_hot(jnp.full((1, len(self.net)), -1), self.ragged)
        return trunk_layer(trunk, "marginal", "prior", self.ragged, self.priors, self.nothing, known, values)

    def one_pass(self) -> jax.Array:
        return self._full_pass(self.trunk, self.drawn)

    def n_passes(self) -> jax.Array:
        return self._n_passes(self.trunk, jnp.full_like(self.drawn[:FEW], -1), jnp.asarray(self.rng.random((FEW, len(self.net)))))

    def incremental(self, block: int) -> list[object]:
        made, part, key = self._layer(self.trunk), SAMPLES // self.cores, key_from_seed(0)

        def draw(chunk: int) -> object:
            layout, arrays = self.compiled.layout, self.compiled.arrays
            return jax.block_until_ready(sequential_draw(layout, arrays, key, first_sample(chunk * part), part, made, self.findings, block))

        return list(self.pool.map(draw, range(self.cores)))


def rates(runs: dict[str, tuple[int, Callable[[], object]]]) -> dict[str, float]:
    """Samples a second of each, in turns."""
    seconds = {name: [] for name in runs}
    for repeat in range(REPEATS + 1):
        for name, (n, run) in runs.items():
            start = time.perf_counter()
            jax.block_until_ready(run())
            if repeat:  # the first compiles
                seconds[name].append((time.perf_counter() - start) / n)
    return {name: 1 / statistics.median(s) for name, s in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--units", type=int, default=2048)
    parser.add_argument("--blocks", type=int, nargs="+", default=[32, 64, 128, 256])
    given = parser.parse_args()
    contest = Contest(given.nodes, given.units)
    runs: dict[str, tuple[int, Callable[[], object]]] = {
        "one full pass": (SAMPLES, contest.one_pass),
        "N full passes": (FEW, contest.n_passes),
    }
    runs |= {f"incremental, {block}": (SAMPLES, partial(contest.incremental, block)) for block in given.blocks}
    rate = rates(runs)
    print(f"{given.nodes} nodes, {given.units} units, {contest.cores} cores, {jax.devices()[0].device_kind}, JAX {jax.__version__}")
    print(f"{'':20} {'samples/s':>10} {'x N passes':>11} {'x one pass':>11}")
    for name, r in rate.items():
        print(f"{name:20} {r:10.0f} {r / rate['N full passes']:11.1f} {r / rate['one full pass']:11.3f}")


if __name__ == "__main__":
    main()
