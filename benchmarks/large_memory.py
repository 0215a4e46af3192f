"""Peak memory of training on a network of 10,000 nodes, checkpoint and loading included.

    python benchmarks/large_memory.py [--preset default] [--steps 4]

A line of CSV: the preset, the steps, seconds and GiB at the end of training and after saving and loading the model.
"""

import argparse
import csv
import resource
import sys
import tempfile
import time
from pathlib import Path

import unimarg as um

COLUMNS = ["network", "preset", "steps", "seconds", "peak_gib_trained", "peak_gib_loaded", "model_mib"]


def peak() -> float:
    """GiB; Linux counts in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="default")
    parser.add_argument("--steps", type=int, default=4)
    given = parser.parse_args()
    net = um.medical(500, 2500, 7000, seed=7)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.um"
        um.train(net, given.preset, f"{given.steps} steps", checkpoint=path)
        taken, trained = time.perf_counter() - start, peak()
        um.load_model(path)
        out = csv.writer(sys.stdout)
        out.writerow(COLUMNS)
        size = f"{path.stat().st_size / 2**20:.0f}"
        out.writerow([net.name, given.preset, given.steps, f"{taken:.0f}", f"{trained:.2f}", f"{peak():.2f}", size])


if __name__ == "__main__":
    main()
