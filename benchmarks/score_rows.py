"""A large table scored, against pgmpy row by row; memory on the way; killed without warning and resumed.

    python benchmarks/score_rows.py alarm.um [--rows 1000000] [--kills 5] [--results benchmarks/results/score_rows.csv]

The rows are samples of the network, each with a rate of its own at which cells are left out. ``unimarg score`` runs as a process of its
own: its time includes the start, compilation, reading and writing; its memory is looked at all the while. pgmpy's ``predict_probability``
gets one row at a time, since it takes no tables whose rows observe different variables. Then the same run again, killed with kill -9 at
random moments and started anew until it ends: the file must be that of the run that nobody disturbed, byte for byte.
"""

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

import unimarg as um
from unimarg.formats.interop import import_quietly
from unimarg.provenance import provenance
from unimarg.rows import write_rows

SEED = 3
LOOKED_AT, THEIR_ROWS = 1000, 30
JOINT, TOO_LARGE = 1e5, 2e9  # entries: of rows that pgmpy is given; 16 GB, which it would need for more


def write_table(net: um.Network, rows: int, path: Path) -> pd.DataFrame:
    """Ragged rows as CSV; the first few are returned."""
    rng = np.random.default_rng(SEED)
    labels = [np.array([*v.states, ""], dtype=object) for v in net.variables]
    first = None
    for n, start in enumerate(range(0, rows, 100_000)):
        states = um.sample(net, min(100_000, rows - start), seed=n).astype(np.int64)
        states[rng.random(states.shape) < rng.random((len(states), 1))] = -1
        frame = pd.DataFrame({v.name: labels[i][states[:, i]] for i, v in enumerate(net.variables)})
        frame.to_csv(path, mode="a" if n else "w", header=not n, index=False)
        first = frame.head(LOOKED_AT) if first is None else first
    assert first is not None
    return first


def command(model: Path, folder: Path, output: str) -> list[str]:
    return [
        sys.executable,
        "-c",
        "from unimarg.cli import main; main()",
        "score",
        str(model),
        str(folder / "rows.csv"),
        "-o",
        str(folder / output),
    ]


def memory(pid: int) -> float:
    """MiB in use now."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS")), 0.0)


def ours(model: Path, folder: Path) -> tuple[float, list[float]]:
    """Seconds, and memory again and again."""
    start, seen = time.perf_counter(), []
    process = subprocess.Popen(command(model, folder, "whole.parquet"))
    while process.poll() is None:
        seen.append(memory(process.pid))
        time.sleep(0.1)
    assert process.returncode == 0
    return time.perf_counter() - start, [m for m in seen if m > 0]


def theirs(net: um.Network, rows: pd.DataFrame) -> dict[str, float]:
    """Rows a second of pgmpy on rows that it can do, and the share that it cannot.

    ``predict_probability`` builds the joint table of all that a row leaves out; the rows are those where that has at most JOINT entries,
    which are the quick ones. Beside it: a query for each such variable, which needs no joint table.
    """
    cards = pd.Series(dict(zip(net.names, net.cards, strict=True)))
    entries = [cards[row[row == ""].index].prod() for _, row in rows.astype(object).iterrows()]
    small = [row[row != ""] for (_, row), n in zip(rows.iterrows(), entries, strict=True) if 1 < n <= JOINT][:THEIR_ROWS]
    peer = um.to_pgmpy(net)
    inference = import_quietly("pgmpy.inference", "pgmpy").VariableElimination(peer)
    start = time.perf_counter()
    for row in small:
        peer.predict_probability(pd.DataFrame([row]).astype(str))
    joint = time.perf_counter() - start
    start = time.perf_counter()
    for row in small:
        for name in set(net.names) - set(row.index):
            inference.query([name], evidence=row.to_dict(), show_progress=False)
    one_by_one = time.perf_counter() - start
    too_large = float(np.mean([n > TOO_LARGE for n in entries]))
    rates = {"pgmpy_rows_s": len(small) / joint, "pgmpy_queries_rows_s": len(small) / one_by_one}
    return {"pgmpy_rows": len(small), **rates, "pgmpy_cannot": too_large}


def kill_and_resume(model: Path, folder: Path, kills: int) -> int:
    """Kills that hit, each after some more parts, until the run ended."""
    rng, hits = random.Random(0), 0
    while not (folder / "killed.parquet").exists():
        process = subprocess.Popen(command(model, folder, "killed.parquet"))
        enough = parts(folder) + rng.randint(2, 12)
        while process.poll() is None and (hits == kills or parts(folder) < enough):
            time.sleep(0.05)
        time.sleep(rng.uniform(0, 0.5))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            hits += 1
        assert process.wait() in (0, -signal.SIGKILL)
    return hits


def parts(folder: Path) -> int:
    return len(list((folder / "killed.parquet.parts").glob("[0-9]*.parquet")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    net = um.load_model(options.model).net
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        some = write_table(net, options.rows, folder / "rows.csv")
        before = theirs(net, some)
        seconds, seen = ours(options.model, folder)
        peer = {k: max(v, before[k]) for k, v in theirs(net, some).items()}  # before and after: the faster
        table = pd.read_parquet(folder / "whole.parquet", columns=["row"])
        assert np.array_equal(table["row"], np.arange(options.rows)), "rows lost or doubled"
        hits = kill_and_resume(options.model, folder, options.kills)
        same = (folder / "killed.parquet").read_bytes() == (folder / "whole.parquet").read_bytes()
    quarters = [round(max(part)) for part in np.array_split(seen, 4)]
    row = {"network": net.name, "rows": options.rows, "seconds": round(seconds, 1), "rows_s": round(options.rows / seconds)}
    row |= {k: round(v, 3) for k, v in peer.items()} | {"times_pgmpy": round(row["rows_s"] / peer["pgmpy_rows_s"])}
    row |= {"peak_mib_by_quarter": " ".join(map(str, quarters)), "kills": hits, "same_file_after_kills": same}
    print("\n".join(f"{k}: {v}" for k, v in row.items()))
    if options.results:
        write_rows(options.results, [row | provenance()])
    sys.exit(not same)


if __name__ == "__main__":
    main()
