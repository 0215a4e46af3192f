"""Many evidence sets: a list of them in one call against a loop over them, by the same method.

    python benchmarks/many_sets.py alarm clinic medical --sets 128 [--method lookahead] [--rounds 2]

Prints a line of CSV for each network and round: milliseconds a set by the loop and by the list, how many times quicker the list is,
the share that is ok, median samples of each, and how far apart the two answers lie at most, in standard errors of their difference (they
have the random numbers in common where they draw as many samples). The evidence is of the family ``clinical`` where a network has
groups for it, else ``random``.
"""

import argparse
import csv
import sys
import time

import jax
import numpy as np
from one_shot import named

import unimarg as um
from unimarg.evaluation import evidence_sets
from unimarg.network import Network
from unimarg.posterior import Posterior

COLUMNS = ["network", "method", "sets", "ms_loop", "ms_list", "times", "ok", "samples_loop", "samples_list", "apart", "hardware", "jax"]


def evidence_of(net: Network, count: int) -> list[dict[str, str]]:
    family = "clinical" if any(v.group for v in net.variables) else "random"
    rows = evidence_sets(net, family, count, 7)
    return [{net.names[i]: net.variables[i].states[int(k)] for i, k in enumerate(row) if k >= 0} for row in rows]


def apart(a: Posterior, b: Posterior) -> float:
    """The largest difference in standard errors; those below 1e-4 count as that."""
    pairs = zip(a.probabilities, b.probabilities, a.std_errors, b.std_errors, strict=True)
    return max(float((np.abs(p - q) / np.maximum(np.hypot(s, t), 1e-4)).max()) for p, q, s, t in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="+", help="files, examples, or 'medical'")
    parser.add_argument("--sets", type=int, default=128)
    parser.add_argument("--method", default="lookahead")
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    out = csv.writer(sys.stdout)
    out.writerow(COLUMNS)
    for name, net in map(named, given.networks):
        sets = evidence_of(net, given.sets)
        um.infer(net, sets[: max(given.sets // 2, 1)], method=given.method)  # compiles
        um.infer(net, sets[0], method=given.method)
        for _ in range(given.rounds):
            begin = time.perf_counter()
            one_by_one = [um.infer(net, e, method=given.method) for e in sets]
            middle = time.perf_counter()
            together = um.infer(net, sets, method=given.method)
            end = time.perf_counter()
            loop, many = ((b - a) / given.sets * 1e3 for a, b in ((begin, middle), (middle, end)))
            samples = [int(np.median([p.samples for p in found])) for found in (one_by_one, together)]
            ok = np.mean([p.status == "ok" for p in together])
            most = max(apart(a, b) for a, b in zip(one_by_one, together, strict=True))
            figures = [f"{loop:.1f}", f"{many:.1f}", f"{loop / many:.2f}", f"{ok:.3f}", *samples, f"{most:.2f}"]
            out.writerow([name, given.method, given.sets, *figures, jax.devices()[0].device_kind, jax.__version__])
            sys.stdout.flush()


if __name__ == "__main__":
    main()
