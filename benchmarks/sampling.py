"""Ancestral samples: unimarg against pyAgrum's BNDatabaseGenerator, side by side in one run.

    python benchmarks/sampling.py FOLDER [NAME ...]

FOLDER holds .bif or .bif.gz files; NAME picks some of them. Prints node-samples per second: medians of
repeats, compilation apart.
"""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyagrum

import unimarg as um
from unimarg.compiled import draw
from unimarg.counter import key_from_seed
from unimarg.layout import compile_network


def median_seconds(run: Callable[[], object], repeats: int = 5) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def row(path: Path) -> str:
    net = um.load(path)
    compiled, key = compile_network(net), key_from_seed(0)
    start = time.perf_counter()
    draw(compiled, key, compiled.chunk).block_until_ready()
    compilation = time.perf_counter() - start
    n = 4 * compiled.chunk
    ours = len(net) * n / median_seconds(lambda: um.sample(net, n, seed=1))
    theirs_net = um.to_pyagrum(net)  # the generator does not keep it alive
    generator = pyagrum.BNDatabaseGenerator(theirs_net)
    few = max(500, 2_000_000 // len(net))
    theirs = len(net) * few / median_seconds(lambda: generator.drawSamples(few))
    name = path.name.split(".")[0]
    return f"{name:12} {len(net):6} {ours / 1e6:12.0f} {theirs / 1e6:12.1f} {ours / theirs:8.0f} {compilation:10.2f}"


def main() -> None:
    folder, *names = sys.argv[1:] or ["src/unimarg/examples"]
    paths = sorted(p for p in Path(folder).glob("*.bif*") if not names or p.name.split(".")[0] in names)
    print(f"{'network':12} {'nodes':>6} {'unimarg M/s':>12} {'pyAgrum M/s':>12} {'ratio':>8} {'compile s':>10}")
    for path in paths:
        print(row(path), flush=True)


if __name__ == "__main__":
    main()
