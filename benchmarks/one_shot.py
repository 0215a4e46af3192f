"""Accuracy of one-shot marginals: train a network, compare its answers with exact ones.

    python benchmarks/one_shot.py alarm.bif.gz --preset default --budget 75s [--option batch=512 ...] [--references refs.npz]

Prints a line of CSV for each evidence family: mean absolute error, mean over sets of the largest error, worst set.
References are an .npz with arrays ``<network>.<family>.evidence`` and ``.truth``; without one truth comes from
the batched exact inference of ``unimarg.clique_tree`` (float32, checked against enumeration in the tests) where the cliques are small
enough. Nothing but JAX is needed then.
"""

import argparse
import ast
import csv
import sys
from pathlib import Path

import jax
import numpy as np

import unimarg as um
from unimarg.evaluation import errors, evidence_sets, references
from unimarg.network import Network

SETS, SEED = 60, 4242
COLUMNS = ["network", "preset", "budget", "options", "family", "mae", "mean_max", "worst", "steps", "seconds", "hardware", "jax", "seed"]


def named(network: str) -> tuple[str, Network]:
    """A file, ``medical`` (the one of the paper's size) or an example, and what to call it."""
    name = Path(network).name.split(".")[0]
    return name, um.medical() if network == "medical" else um.load(network) if Path(network).exists() else um.example(network)


def truths(name: str, net: Network, path: str | None) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Evidence sets and their marginals, for each family."""
    if path is None:
        sets = {family: evidence_sets(net, family, SETS, SEED) for family in ("random", "leaves")}
        return {family: (evidence, references(net, evidence)[0]) for family, evidence in sets.items()}
    stored = np.load(path)
    families = [f for f in ("random", "leaves", "clinical") if f"{name}.{f}.truth" in stored]
    if not families:
        raise SystemExit(f"{path} has no references for {name}: arrays {name}.<family>.evidence and .truth are needed")
    return {f: (stored[f"{name}.{f}.evidence"].astype(np.int64), stored[f"{name}.{f}.truth"]) for f in families}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--option", action="append", default=[], help="name=value, as for um.train")
    parser.add_argument("--references")
    given = parser.parse_args()
    name, net = named(given.network)
    options = {name: ast.literal_eval(value) for name, value in (o.split("=", 1) for o in given.option)}
    expected = truths(name, net, given.references)
    model = um.train(net, given.preset, given.budget, given.seed, **options)
    out = csv.writer(sys.stdout)
    out.writerow(COLUMNS)
    for family, (evidence, truth) in expected.items():
        mean, largest = errors(model.marginals_of_states(evidence), truth, evidence, net)
        figures = [f"{x:.6f}" for x in (mean.mean(), largest.mean(), largest.max())]
        run = [model.history["steps"], f"{model.history['seconds']:.0f}", jax.devices()[0].device_kind, jax.__version__, given.seed]
        out.writerow([name, given.preset, given.budget, " ".join(given.option), family, *figures, *run])


if __name__ == "__main__":
    main()
