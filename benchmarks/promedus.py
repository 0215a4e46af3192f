"""Exact marginals of the UAI-2014 Promedus networks against their references.

    python benchmarks/promedus.py FOLDER

FOLDER holds NAME.uai, NAME.uai.evid and NAME.uai.MAR. The references are printed to six digits, so that a difference of
about 5e-7 is agreement.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from unimarg.errors import UnimargError
from unimarg.exact import exact
from unimarg.formats.uai import read, read_uai_evidence, read_uai_marginals

TOLERANCE = 1.1e-5


def main(folder: Path) -> int:
    worst = 0.0
    print(f"{'network':<14} {'nodes':>6} {'findings':>8} {'log P(e)':>10} {'max difference':>15} {'seconds':>8}")
    for path in sorted(folder.glob("*.uai")):
        net = read(path.read_bytes(), str(path))
        evidence = read_uai_evidence(Path(f"{path}.evid"), net)
        reference = read_uai_marginals(Path(f"{path}.MAR"), net)
        started = time.perf_counter()
        try:
            answer = exact(net, evidence)
        except UnimargError as e:
            print(f"{path.stem:<14} {len(net):>6} {len(evidence):>8} {e}")
            worst = np.inf
            continue
        seconds = time.perf_counter() - started
        difference = max(
            float(np.abs(p - np.asarray(reference[v.name])).max()) for v, p in zip(answer.variables, answer.probabilities, strict=True)
        )
        worst = max(worst, difference)
        print(f"{path.stem:<14} {len(net):>6} {len(evidence):>8} {answer.log_evidence:>10.4f} {difference:>15.1e} {seconds:>8.2f}")
    print(f"largest difference {worst:.1e}, tolerance {TOLERANCE:.1e}")
    return int(worst > TOLERANCE)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1])))
