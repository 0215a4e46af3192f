"""Our sampling against pyAgrum's approximate engines: weighted samples a second, and the error that a given time leaves.

    python benchmarks/samplers.py alarm.bif.gz hepar2.bif.gz [--sets 5] [--seconds 0.1 1] > samplers.csv

Every engine answers all marginals of the same evidence sets in the same run. Rates: samples drawn, weighed and summed up, per second of
one call after compilation. Errors: mean and largest absolute error against exact inference after so many seconds a query, medians
over the sets. Ours runs without a trained network (``lookahead``, ``prior``) and with one (``message``; training is not in
its seconds, ``--train`` says how long it was).
"""

import argparse
import csv
import sys
import time
from pathlib import Path

import numpy as np

import unimarg as um
from unimarg.evaluation import evidence_sets
from unimarg.formats.interop import import_quietly
from unimarg.network import Network

SEED = 4242
OURS = ("prior", "lookahead", "message")
PEERS = ("LoopyBeliefPropagation", "WeightedSampling", "ImportanceSampling", "GibbsSampling")
COLUMNS = ["network", "family", "engine", "budget_seconds", "seconds", "samples_per_second", "mae", "max_error"]
COLUMNS += ["failed", "sets", "training"]
Answer = tuple[list[np.ndarray], float]  # marginals, samples (iterations, where there are none)


class Engines:
    """Everything that can answer for one network."""

    def __init__(self, net: Network, budget: str):
        self.net, self.bn = net, um.to_pyagrum(net)
        self.model = um.train(net, "small", budget, heads=("marginal", "message"))

    @property
    def names(self) -> list[str]:
        return [f"pyAgrum {name}" for name in PEERS] + [f"unimarg {name}" for name in OURS]

    def answer(self, name: str, evidence: dict[str, str], seconds: float) -> Answer:
        package, method = name.split()
        return self._peer(method, evidence, seconds) if package == "pyAgrum" else self._ours(method, evidence, seconds)

    def _peer(self, name: str, evidence: dict[str, str], seconds: float) -> Answer:
        engine = getattr(import_quietly("pyagrum", "pyagrum"), name)(self.bn)
        engine.setVerbosity(False)
        engine.setEpsilon(1e-12)
        engine.setMinEpsilonRate(1e-12)
        engine.setMaxTime(seconds)
        engine.setMaxIter(10**9)
        engine.setEvidence(evidence)
        engine.makeInference()
        return [engine.posterior(v.name).toarray() for v in self.net.variables], float(engine.nbrIterations())

    def _ours(self, method: str, evidence: dict[str, str], seconds: float) -> Answer:
        post = self.model.query(evidence, method=method, target_error=None, samples=1 << 34, seconds=seconds)
        return list(post.probabilities), float(post.samples)


def errors(marginals: list[np.ndarray], truth: list[np.ndarray]) -> tuple[float, float]:
    difference = np.abs(np.concatenate(marginals) - np.concatenate(truth))
    return float(difference.mean()), float(difference.max())


def measure(engines: Engines, name: str, cases: list[tuple[dict[str, str], list[np.ndarray]]], budget: float) -> tuple[list[float], int]:
    """Medians of seconds, samples a second, mean and largest error; and how often the engine failed."""
    rows = []
    for evidence, truth in cases:
        begin = time.perf_counter()
        try:
            marginals, samples = engines.answer(name, evidence, budget)
        except Exception as e:  # a peer's failure is a result
            print(f"{engines.net.name} {name}: {type(e).__name__} {str(e)[:200]}", file=sys.stderr)
            continue
        seconds = time.perf_counter() - begin
        rows.append((seconds, samples / seconds, *errors(marginals, truth)))
    middle = np.median(np.array(rows), axis=0).tolist() if rows else [np.nan] * 4
    return middle, len(cases) - len(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="+")
    parser.add_argument("--sets", type=int, default=5)
    parser.add_argument("--family", default="random")
    parser.add_argument("--seconds", type=float, nargs="+", default=[0.1, 1.0])
    parser.add_argument("--train", default="20s")
    given = parser.parse_args()
    out = csv.writer(sys.stdout)
    out.writerow(COLUMNS)
    for path in given.networks:
        net = um.load(path) if Path(path).exists() else um.example(path)
        engines = Engines(net, given.train)
        cases = []
        for row in evidence_sets(net, given.family, given.sets, SEED):
            evidence = {net.names[i]: net.variables[i].states[k] for i, k in enumerate(row) if k >= 0}
            cases.append((evidence, list(um.exact(net, evidence).probabilities)))
        for name in engines.names:
            measure(engines, name, cases[:1], 0.01)  # imports and compiles
            for budget in given.seconds:
                middle, failed = measure(engines, name, cases, budget)
                training = f"small {engines.model.history['steps']} steps" if "message" in name else ""
                label = [Path(path).name.split(".")[0], given.family, name, budget]
                out.writerow([*label, *(f"{x:.4g}" for x in middle), failed, len(cases), training])
                sys.stdout.flush()


if __name__ == "__main__":
    main()
