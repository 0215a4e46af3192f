"""Load every BIF file of a folder and compare nodes, arcs and free parameters with those published with the bnlearn repository.

    python benchmarks/published_counts.py FOLDER

How long loading takes, here and elsewhere, is a part of ``make bench``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from unimarg.formats import load

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


def main(folder: Path) -> int:
    wrong = 0
    for path in sorted(p for p in folder.iterdir() if p.name.endswith((".bif", ".bif.gz"))):
        name, net = path.name.split(".")[0], load(path)
        found = (len(net), net.arc_count, net.parameter_count)
        verdict = "agrees" if PUBLISHED.get(name) == found else "DIFFERS" if name in PUBLISHED else "unknown"
        wrong += verdict == "DIFFERS"
        print(f"{name:12} {found[0]:6} nodes {found[1]:6} arcs {found[2]:8} parameters: {verdict}", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1])))
