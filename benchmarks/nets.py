"""What nets that fill space gain over independent samples: squared errors against exact inference, in one run on the same sets.

    python benchmarks/nets.py NETWORK... [--families random leaves] [--methods lookahead prior] [--sets 6] [--seeds 8] [--samples 10240]
        [--train 20s] [--out results.csv]

For each network, family and method: the geometric mean over sets of how many times lower the squared error of all marginals is in nets
(mean over seeds), the least and the most of these, the squared errors that the answers tell of relative to the true ones, and how many
times as long a sample takes. Sets where either way is not ok are left out and counted.
"""

import argparse
import csv
import sys
import time
from pathlib import Path

import numpy as np
from inference_checks import load, trained

import unimarg as um
from unimarg import Network
from unimarg.evaluation import evidence_sets
from unimarg.evaluation import given as named
from unimarg.importance import Limits
from unimarg.query import Asked, Options

COLUMNS = ["network", "family", "method", "samples", "sets", "left_out", "times_lower", "least", "most", "told_over_true", "time_ratio"]
SEED = 4242


def answers(net: Network, model: um.Marginalizer | None, given: dict[str, str], method: str, samples: int, seeds: int, nets: bool) -> list:
    """(squared error, what is told of it, seconds) for each seed, or nothing where the status is not ok."""
    exact, out = um.exact(net, given), []
    for seed in range(seeds):
        asked = Asked(net, model, given, None, Options(samples=samples, target_error=None, seed=seed), nets=nets)
        estimator = asked.estimator(method)
        began = time.perf_counter()
        estimator.run(Limits(samples), seed)
        seconds = time.perf_counter() - began
        post = estimator.posterior(method, Limits(samples), seconds)
        if post.status != "ok":
            return []
        true = sum(((p - q) ** 2).sum() for p, q in zip(post.probabilities, exact.probabilities, strict=True))
        out.append((true, sum((e**2).sum() for e in post.std_errors), seconds))
    return out


def compare(net: Network, model: um.Marginalizer | None, family: str, method: str, given: argparse.Namespace) -> list[object]:
    rows = []
    for states in evidence_sets(net, family, given.sets, SEED):
        both = [answers(net, model, named(net, states), method, given.samples, given.seeds, nets) for nets in (False, True)]
        if all(both):
            apart, even = (np.array(b) for b in both)
            seconds = [np.median(a[1:, 2]) for a in (apart, even)]  # the first may have compiled
            rows.append((apart[:, 0].mean() / even[:, 0].mean(), even[:, 1].mean() / even[:, 0].mean(), seconds[1] / seconds[0]))
    if not rows:
        return [given.samples, 0, given.sets, *[""] * 5]
    lower, told, slower = np.array(rows).T
    figures = [np.exp(np.log(lower).mean()), lower.min(), lower.max(), np.exp(np.log(told).mean()), np.median(slower)]
    return [given.samples, len(rows), given.sets - len(rows), *(f"{x:.3g}" for x in figures)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="+", type=Path, help="files, or names of examples")
    parser.add_argument("--families", nargs="+", default=["random", "leaves"])
    parser.add_argument("--methods", nargs="+", default=["lookahead", "prior"])
    parser.add_argument("--sets", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--samples", type=int, default=10240)
    parser.add_argument("--train", help="for so long, the small preset, for methods that need a model")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with given.out.open("w", newline="", buffering=1) if given.out else sys.stdout as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(COLUMNS)
        for name, net in load(given.networks).items():
            model = trained(net, given.train) if given.train else None
            for family in given.families:
                for method in given.methods:
                    out.writerow([name, family, method, *compare(net, model, family, method, given)])
                    file.flush()


if __name__ == "__main__":
    main()
