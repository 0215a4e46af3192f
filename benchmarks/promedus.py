"""The UAI-2014 Promedus networks within 20 seconds on one core: exactly, and by importance sampling alone, against the published marginals.

    python benchmarks/promedus.py FOLDER [--out promedus.csv] [--seconds 20] [--only Promedus_11]

FOLDER holds NAME.uai, NAME.uai.evid and NAME.uai.MAR. Every answer is given by a fresh process that is bound to one core, and its time
counts from the network in memory to the marginals of all nodes: compiling is in it. «sampled» is ``auto`` with exact inference ruled out.
Over the unobserved nodes: MAE and the largest of |p - p*|; the mean of Hellinger's distance, H^2 = 1/2 sum (sqrt p - sqrt p*)^2. The
published marginals are printed to six digits: a difference of 5e-7 is agreement. The exit status says whether all exact answers agree.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from unimarg.rows import cell, write_rows

TOLERANCE = 1.1e-5
METHODS = ("exact", "sampled")
SEED = 4242
PATIENCE = 100.0  # seconds beyond the limit after which a process is ended


def one(path: Path, method: str, seconds: float) -> dict[str, Any]:
    """One answer, in this process."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # before anything counts the cores
    import unimarg as um
    from unimarg import query
    from unimarg.formats.uai import read, read_uai_evidence, read_uai_marginals
    from unimarg.provenance import provenance

    net = read(path.read_bytes(), str(path))
    evidence, published = (f(Path(f"{path}.{suffix}"), net) for f, suffix in ((read_uai_evidence, "evid"), (read_uai_marginals, "MAR")))
    if method == "sampled":
        query.EXACT_ENTRIES = -1
    options: dict[str, Any] = {"seconds": seconds, "samples": 1 << 34, "target_error": None, "seed": SEED} if method == "sampled" else {}
    out: dict[str, Any] = {"network": path.stem, "nodes": len(net), "findings": len(evidence), "asked": method}
    begin, before = time.perf_counter(), time.process_time()
    try:
        post = um.infer(net, evidence, method="exact" if method == "exact" else "auto", **options)
    except um.UnimargError as e:
        return out | {"status": "error", "message": str(e)}
    out |= {"seconds": time.perf_counter() - begin, "cpu_seconds": time.process_time() - before}  # apart on a busy machine
    hidden = [v.name for v in net.variables if v.name not in evidence]
    pairs = [(np.array(list(post[name].values())), np.asarray(published[name])) for name in hidden]
    errors = np.concatenate([np.abs(p - q) for p, q in pairs])
    hellinger = [np.sqrt(0.5 * ((np.sqrt(p) - np.sqrt(q)) ** 2).sum()) for p, q in pairs]
    out |= {"mae": float(errors.mean()), "hellinger": float(np.mean(hellinger)), "max_error": float(errors.max())}
    out |= {"method": post.method, "samples": post.samples, "ess": post.ess, "k_hat": post.k_hat, "log_evidence": post.log_evidence}
    return out | {"status": post.status, "message": post.message, "seed": SEED, "load": os.getloadavg()[0]} | provenance()


def in_a_process(path: Path, method: str, seconds: float) -> dict[str, Any]:
    command = [sys.executable, __file__, str(path.parent), "--only", path.stem, "--one", method, "--seconds", str(seconds)]
    failed = {"network": path.stem, "asked": method, "status": "error"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return failed | {"message": f"no answer within {seconds + PATIENCE:g} s"}
    return json.loads(done.stdout) if not done.returncode else failed | {"message": done.stderr.strip().splitlines()[-1]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, help="a CSV")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--one", choices=METHODS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    paths = [p for p in sorted(given.folder.glob("*.uai")) if not given.only or p.stem in given.only]
    if given.one:
        print(json.dumps(one(paths[0], given.one, given.seconds)))
        return 0
    rows, wrong = [], 0
    shown = ("network", "asked", "seconds", "cpu_seconds", "mae", "hellinger", "max_error", "ess", "k_hat", "status", "message")
    for path in paths:
        for method in METHODS:
            row = in_a_process(path, method, given.seconds)
            print("  ".join(f"{name} {cell(row[name])}" for name in shown if row.get(name) not in (None, "")), flush=True)
            wrong += method == "exact" and not row.get("max_error", 1.0) < TOLERANCE
            rows.append(row)
    if given.out:
        names = list(dict.fromkeys(name for row in rows for name in row))
        write_rows(given.out, [{name: row.get(name, "") for name in names} for row in rows])
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
