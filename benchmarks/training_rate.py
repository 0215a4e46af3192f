"""How much of the device's matrix rate training achieves, everything included.

    python benchmarks/training_rate.py alarm --preset small [--option batch=512 ...]

Training: multiplications of a step's matrix products (forward, and backward for weights and inputs of every layer) over the
time of a step, with its share of sampling, masking, labels and the update. Beside it the rate of those very
products alone: the same shapes and types, many of them in a compiled loop. Medians of interleaved repeats. A student's time counts and
its work does not; ``--option student=0`` leaves it out.
"""

import argparse
import ast
import csv
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from one_shot import named

from unimarg.batches import Given
from unimarg.counter import key_from_seed
from unimarg.encoding import prior_slots
from unimarg.presets import recipe
from unimarg.student import descendants
from unimarg.trainer import MAX_STEPS, Budget, _Run
from unimarg.training import initial_state, run_steps

REPEATS, SECONDS, TOGETHER = 7, 0.2, 16
FEW = 16  # turns of a loop to judge its speed by
COLUMNS = ["network", "preset", "options", "batch", "ms_step", "gmul_s_training", "gmul_s_products", "share", "hardware", "jax"]
Shape = tuple[int, int, int]  # rows, inner, columns of a product


def products(run: _Run) -> list[Shape]:
    """Of one step; the first layer's input needs no gradient."""
    batch, trunk = run.recipe.batch, initial_state(run.plan, 0).trunk.weights
    out: list[Shape] = []
    for n, layer in enumerate([*trunk.layers, trunk.head]):
        inputs, outputs = layer.weight.shape
        out += [(batch, inputs, outputs), (inputs, batch, outputs)] + [(batch, outputs, inputs)] * (n > 0)
    return out


def product_loop(shape: Shape, half: bool) -> Callable[[int], Any]:
    """A function that multiplies ``TOGETHER`` pairs of matrices of this shape so many times."""
    rows, inner, columns = shape
    kind = jnp.bfloat16 if half else jnp.float32
    given = tuple(jnp.full((rows, inner), 1 + n, kind) for n in range(TOGETHER)), jnp.ones((inner, columns), kind)

    @partial(jax.jit, static_argnums=0)  # a loop of known length: a GPU would stop at each turn to ask whether it is the last
    def repeat(times: int, lefts: tuple[jax.Array, ...], right: jax.Array) -> tuple[jax.Array, ...]:
        def body(n: jax.Array, carried: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
            right = carried[0].at[0, 0].set(n.astype(kind))  # something new each time, so that no product can be left out
            precision = None if half else lax.Precision.HIGHEST
            return right, tuple(jnp.dot(left, right, precision=precision, preferred_element_type=jnp.float32) for left in lefts)

        return lax.fori_loop(0, times, body, (right, (jnp.zeros((rows, columns)),) * TOGETHER))[1]

    return lambda times: jax.block_until_ready(repeat(times, *given))


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--option", action="append", default=[], help="name=value, as for um.train")
    given = parser.parse_args()
    name, net = named(given.network)
    made = recipe(net, given.preset, None, **{name: ast.literal_eval(value) for name, value in (o.split("=", 1) for o in given.option)})
    run = _Run(net, made, 0, Budget(None, MAX_STEPS), time.perf_counter(), None, None)
    below = jnp.asarray(descendants(net)) if made.student else None
    constants = Given(run.compiled.arrays, key_from_seed(0), *prior_slots(run.priors, run.ragged), jnp.int32(MAX_STEPS), below)
    state = initial_state(run.plan, 0)

    def a_call() -> Any:
        return jax.block_until_ready(run_steps(run.plan, constants, state))

    shapes = products(run)
    loops = {shape: product_loop(shape, run.plan.half) for shape in set(shapes)}
    a_call()
    # as many times as take a while, so that the call itself does not count
    times = {}
    for shape, loop in loops.items():
        loop(FEW)
        times[shape] = max(FEW, int(SECONDS / len(loops) / (seconds(lambda loop=loop: loop(FEW)) / FEW)))
        loop(times[shape])
    steps, alone = [], []
    for _ in range(REPEATS):
        steps.append(seconds(a_call) / run.plan.steps_per_call)
        each = {
            shape: seconds(lambda loop=loop, shape=shape: loop(times[shape])) / times[shape] / TOGETHER for shape, loop in loops.items()
        }
        alone.append(sum(each[shape] for shape in shapes))
    work = sum(float(np.prod(shape)) for shape in shapes)
    step, products_alone = float(np.median(steps)), float(np.median(alone))
    out = csv.writer(sys.stdout)
    out.writerow(COLUMNS)
    figures = [f"{step * 1e3:.3f}", f"{work / step / 1e9:.1f}", f"{work / products_alone / 1e9:.1f}", f"{products_alone / step:.2f}"]
    machine = [jax.devices()[0].device_kind, jax.__version__]
    out.writerow([name, given.preset, " ".join(given.option), made.batch, *figures, *machine])


if __name__ == "__main__":
    main()
