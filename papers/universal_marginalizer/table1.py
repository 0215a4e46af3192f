"""Table 1 of the paper: hidden layers x encodings, mean absolute error and mean maximum error of one-shot marginals.

    python papers/universal_marginalizer/table1.py --references FILE    on medical(50, 250, 700, seed=7), as the paper trains: 20,000 steps
    python papers/universal_marginalizer/table1.py --quick              on a small network, in about a minute

FILE is an .npz with ``evidence [sets, nodes]`` (int8, -1 where unobserved) and ``truth [sets, states]``; without it the answers come from
``um.exact``, where that can. A row that is in the CSV already is not trained again. The paper's network is private: its
figures stand beside ours for comparison of the pattern, not of the values.
"""

import argparse
import csv
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

import unimarg as um
from unimarg.encoding import ENCODINGS
from unimarg.evaluation import errors, evidence_sets

HERE = Path(__file__).parent
PAPER = {  # (hidden, encoding): mean absolute error, mean maximum error
    ((2048,), "two_bit"): (0.0063, 0.3425),
    ((2048,), "prior"): (0.0060, 0.3223),
    ((4096,), "two_bit"): (0.0053, 0.2982),
    ((4096,), "prior"): (0.0052, 0.2951),
    ((1024, 1024), "two_bit"): (0.0081, 0.4492),
    ((1024, 1024), "prior"): (0.0083, 0.4726),
    ((2048, 2048), "two_bit"): (0.0071, 0.4076),
    ((2048, 2048), "prior"): (0.0071, 0.4264),
}
SIZES = list(dict.fromkeys(hidden for hidden, _ in PAPER))
STEPS, QUICK_STEPS, QUICK_WIDTH = 20_000, 500, 16  # a quick run has layers of one sixteenth
SETS, FAMILY, EVIDENCE_SEED = 60, "clinical", 4242
KEY = ["network", "hidden", "encoding", "steps", "seed", "references"]
COLUMNS = [*KEY, "mae", "mean_max", "paper_mae", "paper_mean_max", "sets", "seconds", "commit", "jax", "python", "hardware"]


def exact_references(net: um.Network) -> tuple[np.ndarray, np.ndarray]:
    evidence = evidence_sets(net, FAMILY, SETS, EVIDENCE_SEED)
    given = [{net.names[i]: int(row[i]) for i in np.flatnonzero(row >= 0)} for row in evidence]
    try:
        return evidence, np.stack([np.concatenate(um.exact(net, e).probabilities) for e in given])
    except um.TooExpensiveError as e:
        sys.exit(f"{net.name} needs --references: {e}")


def read_references(path: str, net: um.Network) -> tuple[np.ndarray, np.ndarray]:
    try:
        with np.load(path) as file:
            evidence, truth = file["evidence"].astype(np.int64), file["truth"]
    except (OSError, KeyError, ValueError) as e:
        sys.exit(f"{path}: not an .npz with the arrays evidence and truth ({e})")
    expected = ((len(truth), len(net)), (len(evidence), int(net.cards.sum())))
    if (evidence.shape, truth.shape) != expected:
        sys.exit(f"{path}: evidence is {list(evidence.shape)} and truth {list(truth.shape)}, which do not fit {net.name}")
    return evidence, truth


def commit() -> str:
    command = ["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def search(
    net: um.Network,
    references: tuple[np.ndarray, np.ndarray],
    source: str,
    sizes: Sequence[tuple[int, ...]],
    steps: int,
    seed: int,
    out: Path,
) -> list[dict[str, str]]:
    """Train what is not in the file yet, one row after the other, and give all rows that belong to this search."""
    evidence, truth = references
    done = {tuple(row[k] for k in KEY): row for row in _rows(out)}
    found = []
    for paper_size, hidden in zip(SIZES, sizes, strict=False):
        for encoding in ENCODINGS:
            label = "x".join(map(str, hidden))
            key = dict(zip(KEY, map(str, (net.name, label, encoding, steps, seed, source)), strict=True))
            if tuple(key.values()) not in done:
                model = um.train(net, "paper", f"{steps} steps", seed, hidden=hidden, encoding=encoding)
                mean, largest = errors(model.marginals_of_states(evidence), truth, evidence, net)
                paper = PAPER[paper_size, encoding]
                figures = [f"{mean.mean():.6f}", f"{largest.mean():.5f}", *paper, len(evidence), f"{model.history['seconds']:.0f}"]
                versions = [commit(), jax.__version__, platform.python_version(), jax.devices()[0].device_kind]
                row = dict(zip(COLUMNS, map(str, [*key.values(), *figures, *versions]), strict=True))
                _append(out, row)
                done[tuple(key.values())] = row
            found.append(done[tuple(key.values())])
    return found


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        if reader.fieldnames != COLUMNS:
            sys.exit(f"{path}: not a table of this script")
        return list(reader)


def _append(path: Path, row: dict[str, str]) -> None:
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if new:
            writer.writeheader()
        writer.writerow(row)


def show(rows: list[dict[str, str]]) -> None:
    print(f"{'hidden':>10} {'encoding':>9} {'mae':>9} {'mean max':>9}   paper: {'mae':>7} {'mean max':>9}")
    for row in rows:
        ours = f"{row['hidden']:>10} {row['encoding']:>9} {row['mae']:>9} {row['mean_max']:>9}"
        print(f"{ours}          {row['paper_mae']:>7} {row['paper_mean_max']:>9}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small network, small layers, few steps")
    parser.add_argument("--references", metavar="FILE", help="an .npz with evidence and truth")
    parser.add_argument("--steps", type=int, help=f"{STEPS} unless told otherwise; {QUICK_STEPS} if quick")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="the CSV; table1.csv or table1_quick.csv beside this script unless told otherwise")
    given = parser.parse_args(arguments)
    net = um.medical(5, 15, 30, seed=7) if given.quick else um.medical(50, 250, 700, seed=7)
    references = read_references(given.references, net) if given.references else exact_references(net)
    sizes = [tuple(h // QUICK_WIDTH for h in hidden) for hidden in SIZES] if given.quick else SIZES
    out = given.out or HERE / ("table1_quick.csv" if given.quick else "table1.csv")
    source = Path(given.references).name if given.references else "exact"
    show(search(net, references, source, sizes, given.steps or (QUICK_STEPS if given.quick else STEPS), given.seed, out))


if __name__ == "__main__":
    main()
