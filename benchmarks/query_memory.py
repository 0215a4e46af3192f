"""Do queries leak: resident memory over a thousand of them, each with evidence of its own.

    python benchmarks/query_memory.py [alarm clinic ...] [--queries 1000] [--target-error 0.02]

Every second query is answered without exact inference. Prints the memory after each tenth of the queries; the exit status is 1 if the
largest of the second half is more than 5% above that of the first.
"""

import argparse
import os
import sys
from pathlib import Path

from one_shot import named

import unimarg as um
from unimarg import query
from unimarg.evaluation import evidence_sets
from unimarg.tables import given as named_states

FAMILIES = ("random", "uniform", "leaves")


def resident() -> float:
    """In MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=["alarm", "clinic"])
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--target-error", type=float, default=0.02)
    given = parser.parse_args()
    nets = [named(name)[1] for name in given.networks]
    limit, seen = query.EXACT_ENTRIES, []
    for number in range(given.queries):
        net = nets[number % len(nets)]
        row = evidence_sets(net, FAMILIES[number % len(FAMILIES)], 1, number)[0]
        query.EXACT_ENTRIES = limit if number // len(nets) % 2 else -1
        um.infer(net, named_states(net, row), target_error=given.target_error, samples=1 << 15)
        if (number + 1) % max(given.queries // 10, 1) == 0:
            seen.append(resident())
            print(f"{number + 1:6d} queries: {seen[-1]:.0f} MiB", flush=True)
    growth = max(seen[len(seen) // 2 :]) / max(seen[: len(seen) // 2]) - 1
    print(f"{growth:+.1%} in the second half")
    return int(growth > 0.05)


if __name__ == "__main__":
    sys.exit(main())
