"""Effective samples of every proposal: how much of what is drawn counts.

    python benchmarks/ess.py alarm.bif.gz --family random [--model alarm.um | --train 75s] [--methods prior,lookahead]

For each proposal ESS / samples over the evidence sets: mean, median, worst; k-hat; and the squared error that a second of sampling
leaves, relative to ``prior``: the variance of an estimate falls with effective samples per second. Preparing a query is
included in the seconds, compilation is not. ``medical`` is the paper-sized network medical(50, 250, 700, seed=7).
"""

import argparse
import csv
import sys
import time
from pathlib import Path

import jax
import numpy as np

import unimarg as um
from unimarg.counter import key_from_seed
from unimarg.diagnostics import k_hat
from unimarg.evaluation import evidence_sets
from unimarg.frame import frame_of
from unimarg.importance import chunk_size, first_sample
from unimarg.network import Network
from unimarg.query import WITH_MODEL, WITHOUT_MODEL, Asked, Options

SETS, SEED = 60, 4242
BETAS = (0.1, 0.25, 0.5)
COLUMNS = ["network", "family", "method", "structure", "beta", "sets", "samples", "ess_mean", "ess_median", "ess_worst", "k_hat_median"]
COLUMNS += ["samples_per_second", "effective_per_second_median", "model", "hardware", "jax", "seed"]


def arms(model: um.Marginalizer | None, chosen: str) -> list[tuple[str, bool, float | None]]:
    """(method, structure, beta): the paper's proposals with and without structure."""
    names = chosen.split(",") if chosen else [m for m in (WITH_MODEL if model else WITHOUT_MODEL) if m not in ("auto", "exact", "um")]
    out: list[tuple[str, bool, float | None]] = []
    for name in names:
        for structure in (True, False) if name in ("independent", "hybrid") else (True,):
            out += [(name, structure, beta) for beta in (BETAS if name == "hybrid" else (None,))]
    return out


def measure(
    net: Network, model: um.Marginalizer | None, evidence: np.ndarray, arm: tuple[str, bool, float | None], samples: int
) -> list[np.ndarray]:
    """For each set: ESS / samples (those of adaptation count too), k-hat, seconds."""
    method, structure, beta = arm
    out = []
    for number, row in enumerate(evidence):
        given = {net.names[i]: net.variables[i].states[k] for i, k in enumerate(row) if k >= 0}
        size = min(chunk_size(frame_of(net)), samples)
        begin = time.perf_counter()
        asked = Asked(net, model, given, None, Options(structure=structure, beta=beta, seed=number))
        drawer = asked.estimator(method)
        pieces = [np.asarray(drawer.draw(key_from_seed(number), first_sample(first), size)[1]) for first in range(0, samples, size)]
        seconds = time.perf_counter() - begin
        log_w = np.concatenate(pieces).astype(np.float64)
        w = np.exp(log_w - log_w.max()) if log_w.max() > -np.inf else np.zeros(1)
        ess = w.sum() ** 2 / max((w * w).sum(), 1e-300)
        spent = len(log_w) + asked.spent
        out.append(np.array([ess / spent, k_hat(log_w, len(log_w)), seconds, ess / seconds]))
    return out


def network(name: str) -> Network:
    if name == "medical":
        return um.medical(50, 250, 700, seed=7)
    return um.load(name) if Path(name).exists() else um.example(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network")
    parser.add_argument("--family", default="random")
    parser.add_argument("--model")
    parser.add_argument("--train", help="train the default preset for so long first")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--methods", default="")
    parser.add_argument("--sets", type=int, default=SETS)
    parser.add_argument("--samples", type=int, default=1 << 15)
    given = parser.parse_args()
    net = network(given.network)
    model = um.load_model(given.model) if given.model else um.train(net, given.preset, given.train) if given.train else None
    net = model.net if model else net
    evidence = evidence_sets(net, given.family, given.sets, SEED)
    out = csv.writer(sys.stdout)
    out.writerow(COLUMNS)
    for arm in arms(model, given.methods):
        measure(net, model, evidence[:1], arm, given.samples)  # compiles
        e, k, seconds, per_second = np.array(measure(net, model, evidence, arm, given.samples)).T
        figures = [
            f"{x:.5g}" for x in (e.mean(), np.median(e), e.min(), np.median(k), given.samples / np.median(seconds), np.median(per_second))
        ]
        made = "" if model is None else f"{model.recipe.preset} {model.history['steps']} steps {model.history['seconds']:.0f} s"
        name = Path(given.network).name.split(".")[0]
        out.writerow(
            [
                name,
                given.family,
                *("" if a is None else a for a in arm),
                len(e),
                given.samples,
                *figures,
                made,
                jax.devices()[0].device_kind,
                jax.__version__,
                SEED,
            ]
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
