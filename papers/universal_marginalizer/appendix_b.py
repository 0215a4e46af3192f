"""Appendix B of the paper: why a product of correct marginals is a poor proposal.

    python papers/universal_marginalizer/appendix_b.py [--samples 4000000] [--out FOLDER]

X_j is caused only and always by X_i, and both have probability 0.001. Drawn independently from their marginals, both are 1 once in
a million samples, with the weight 0.001 / 0.001^2 = 1000; two samples in a thousand have one of them alone, which is impossible, and the
weight 0. Drawn one given the other (``message``; SUM-IS does the same with a trained network) every weight is 1. Writes
appendix_b.csv and appendix_b.png: the running estimate of P(X_i = 1), and the largest weight so far as a share of all.
"""

import argparse
import csv
import platform
from pathlib import Path

import jax
import numpy as np

import unimarg as um
from unimarg.conditionals import Query, frame_of
from unimarg.counter import key_from_seed
from unimarg.evidence import parse_evidence
from unimarg.importance import first_sample
from unimarg.proposals.independent import independent
from unimarg.proposals.message import message
from unimarg.walk import walk

COLUMNS = ["proposal", "samples", "largest_weight", "weights_above_2", "weights_of_0", "ess", "estimate", "truth", "seed", "jax", "python"]
RARE, SEED, CHUNK = 0.001, 1, 1 << 17


def problematic_pair() -> um.Network:
    variables = [um.Variable("X_i", ("0", "1")), um.Variable("X_j", ("0", "1"))]
    return um.Network(variables, {"X_j": ["X_i"]}, {"X_i": [1 - RARE, RARE], "X_j": [[1, 0], [0, 1]]})


def weights(samples: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """For each proposal the weights and the states of X_i."""
    net = problematic_pair()
    frame, query = frame_of(net), Query.make(net, parse_evidence(net, {}), (0, 1))
    marginals = np.array([[1 - RARE, RARE]] * 2)
    drafts = {
        "independent": independent(frame, query, marginals, structure=False),
        "message": message(frame, query, np.zeros((2, 2)), structure=False),
    }
    out = {}
    for name, draft in drafts.items():
        given = draft.finish()
        pieces = [walk(frame.shape, given, key_from_seed(SEED), first_sample(first), CHUNK) for first in range(0, samples, CHUNK)]
        states, log_w = (np.concatenate([np.asarray(p[a]) for p in pieces], axis=-1) for a in (0, 1))
        out[name] = np.exp(log_w.astype(np.float64)), states[0]
    return out


def plot(found: dict[str, tuple[np.ndarray, np.ndarray]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (above, below) = plt.subplots(2, 1, figsize=(7, 5.5), sharex=True, layout="constrained")
    for (name, (w, state)), colour in zip(found.items(), ("tab:red", "tab:blue"), strict=True):
        at = np.unique(np.geomspace(100, len(w), 400).astype(int)) - 1
        total = np.cumsum(w)
        above.semilogx(at + 1, (np.cumsum(w * state) / np.maximum(total, 1e-9))[at], color=colour, label=name)
        below.loglog(at + 1, (np.maximum.accumulate(w) / np.maximum(total, 1e-9))[at], color=colour, label=name)
    above.axhline(RARE, color="black", lw=0.8, ls=":", label="truth, 0.001")
    above.set(ylabel="estimate of P(X_i = 1)", title="Independent draws from correct marginals: rare, heavy weights")
    below.set(xlabel="samples", ylabel="largest weight / sum of weights")
    above.legend()
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1 << 22)
    parser.add_argument("--out", default=str(Path(__file__).parent))
    given = parser.parse_args()
    found = weights(given.samples)
    with (Path(given.out) / "appendix_b.csv").open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(COLUMNS)
        for name, (w, state) in found.items():
            heavy, impossible = int((w > 2).sum()), int((w == 0).sum())
            ess, estimate = w.sum() ** 2 / (w**2).sum(), (w * state).sum() / w.sum()
            figures = [len(w), f"{w.max():.6g}", heavy, impossible, f"{ess:.0f}", f"{estimate:.6g}", RARE]
            out.writerow([name, *figures, SEED, jax.__version__, platform.python_version()])
    plot(found, Path(given.out) / "appendix_b.png")
    print((Path(given.out) / "appendix_b.csv").read_text())


if __name__ == "__main__":
    main()
