"""Accuracy of one-shot marginals: train a network, compare its answers with exact ones.

    python benchmarks/one_shot.py alarm.bif.gz --preset default --budget 75s [--option batch=512 ...]

Prints a line of CSV for each evidence family: mean absolute error, mean over sets of the largest error, worst set.
Truth comes from the batched exact inference of ``unimarg.teacher`` (float32, checked against enumeration in the
tests), so that nothing but JAX is needed where it runs.
"""

import argparse
import ast
import csv
import sys
from pathlib import Path

import jax

import unimarg as um
from unimarg.evaluation import errors, evidence_sets, references

SETS, SEED = 60, 4242
COLUMNS = ["network", "preset", "budget", "options", "family", "mae", "mean_max", "worst", "steps", "seconds", "hardware", "jax", "seed"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--option", action="append", default=[], help="name=value, as for um.train")
    given = parser.parse_args()
    net = um.load(given.network) if Path(given.network).exists() else um.example(given.network)
    options = {name: ast.literal_eval(value) for name, value in (o.split("=", 1) for o in given.option)}
    model = um.train(net, given.preset, given.budget, given.seed, **options)
    out = csv.writer(sys.stdout)
    out.writerow(COLUMNS)
    for family in ("random", "leaves"):
        evidence = evidence_sets(net, family, SETS, SEED)
        mean, largest = errors(model.marginals_of_states(evidence), references(net, evidence), evidence, net)
        figures = [f"{x:.6f}" for x in (mean.mean(), largest.mean(), largest.max())]
        name = Path(given.network).name.split(".")[0]
        run = [model.history["steps"], f"{model.history['seconds']:.0f}", jax.devices()[0].device_kind, jax.__version__, given.seed]
        out.writerow([name, given.preset, given.budget, " ".join(given.option), family, *figures, *run])


if __name__ == "__main__":
    main()
