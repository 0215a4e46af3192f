"""Load every BIF file of a folder with our reader and with pgmpy's, side by side in one run.

    python benchmarks/load_bif.py FOLDER [--repeat 3] [--without-pgmpy]

Counts are checked against those published with the bnlearn repository.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path

from unimarg.formats import load
from unimarg.network import Network

# name: nodes, arcs, free parameters
PUBLISHED = {
    "alarm": (37, 46, 509),
    "andes": (223, 338, 1157),
    "asia": (8, 8, 18),
    "barley": (48, 84, 114005),
    "cancer": (5, 4, 10),
    "child": (20, 25, 230),
    "diabetes": (413, 602, 429409),
    "earthquake": (5, 4, 10),
    "hailfinder": (56, 66, 2656),
    "hepar2": (70, 123, 1453),
    "insurance": (27, 52, 1008),
    "link": (724, 1125, 14211),
    "mildew": (35, 46, 540150),
    "munin1": (186, 273, 15622),
    "munin2": (1003, 1244, 69431),
    "pathfinder": (109, 195, 72079),
    "pigs": (441, 592, 5618),
    "sachs": (11, 17, 178),
    "survey": (6, 6, 21),
    "water": (32, 66, 10083),
    "win95pts": (76, 112, 574),
}


def best_of(repeat: int, action: Callable[[], object]) -> float:
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def pgmpy_seconds(path: Path) -> float:
    """Once: the large files take it tens of seconds. Unpacking is not counted, nor what it prints."""
    from pgmpy.readwrite import BIFReader

    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    logging.disable(logging.WARNING)
    with contextlib.redirect_stderr(io.StringIO()):
        return best_of(1, lambda: BIFReader(string=text).get_model())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--repeat", type=int, default=3, help="our time is the best of this many")
    parser.add_argument("--without-pgmpy", action="store_true")
    args = parser.parse_args()
    paths = sorted(p for p in args.folder.iterdir() if p.name.endswith((".bif", ".bif.gz")))
    if not paths:
        parser.error(f"there is no .bif or .bif.gz file in {args.folder}")
    wrong, ours_total, theirs_total = 0, 0.0, 0.0
    print(f"{'network':12} {'nodes':>6} {'arcs':>6} {'parameters':>11} {'published':>10} {'ours ms':>9} {'pgmpy ms':>10} {'ratio':>7}")
    for path in paths:
        name = path.name.split(".")[0]
        net: Network = load(path)
        found = (len(net), net.arc_count, net.parameter_count)
        verdict = "agrees" if PUBLISHED.get(name) == found else "DIFFERS" if name in PUBLISHED else "unknown"
        wrong += verdict == "DIFFERS"
        ours = best_of(args.repeat, lambda path=path: load(path))
        theirs = float("nan") if args.without_pgmpy else pgmpy_seconds(path)
        ours_total, theirs_total = ours_total + ours, theirs_total + theirs
        print(
            f"{name:12} {found[0]:6} {found[1]:6} {found[2]:11} {verdict:>10} {1e3 * ours:9.1f} {1e3 * theirs:10.1f} {theirs / ours:7.1f}",
            flush=True,
        )
    print(f"{'total':12} {'':35} {'':>10} {1e3 * ours_total:9.1f} {1e3 * theirs_total:10.1f} {theirs_total / ours_total:7.1f}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
