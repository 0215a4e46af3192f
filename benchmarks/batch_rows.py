"""All marginals for many rows, each with evidence of its own: rows a second, side by side in one run.

    python benchmarks/batch_rows.py model.um

Ours: one pass of the trained model on all cores, with and without the proof of impossible states. pyAgrum:
LazyPropagation, one process for each core. Also the mean absolute error of ours on the rows that pyAgrum did.
"""

import multiprocessing
import os
import sys
import time

import numpy as np

import unimarg as um
from unimarg.evaluation import errors, evidence_sets
from unimarg.formats.interop import import_quietly

ROWS, SEED = 10_000, 99
THEIR_SECONDS = 20.0


def peer(path: str, evidence: np.ndarray) -> tuple[int, float, np.ndarray]:
    """Rows done, seconds taken and their marginals, by one process."""
    gum = import_quietly("pyagrum", "pyagrum")
    net = um.load_model(path).net
    bn = um.to_pyagrum(net)
    inference = gum.LazyPropagation(bn)
    answers = []
    start = time.perf_counter()
    for row in evidence:
        inference.setEvidence({net.names[i]: int(k) for i, k in enumerate(row) if k >= 0})
        inference.makeInference()
        answers.append(np.concatenate([inference.posterior(name).toarray() for name in net.names]))
        if time.perf_counter() - start > THEIR_SECONDS:
            break
    return len(answers), time.perf_counter() - start, np.array(answers)


def main() -> None:
    path = sys.argv[1]
    model = um.load_model(path)
    net = model.net
    evidence = evidence_sets(net, "random", ROWS, SEED)
    cores = len(os.sched_getaffinity(0))
    with multiprocessing.get_context("spawn").Pool(cores) as pool:
        results = pool.starmap(peer, [(path, part) for part in np.array_split(evidence, cores)])
    theirs = sum(n / seconds for n, seconds, _ in results)
    print(f"pyAgrum LazyPropagation, {cores} processes: {theirs:10.0f} rows/s ({sum(n for n, _, _ in results)} rows)")
    for rule_out in (True, False):
        model.marginals_of_states(evidence, rule_out)  # compiles
        start = time.perf_counter()
        answer = model.marginals_of_states(evidence, rule_out)
        ours = ROWS / (time.perf_counter() - start)
        print(f"unimarg um, rule_out={rule_out!s:5}:            {ours:10.0f} rows/s, {ours / theirs:.0f} times")
    done = [part[: len(answers)] for part, (_, _, answers) in zip(np.array_split(np.arange(ROWS), cores), results, strict=True)]
    rows = np.concatenate(done)
    mean, largest = errors(answer[rows], np.concatenate([a for _, _, a in results]), evidence[rows], net)
    print(f"error of ours on {len(rows)} rows: MAE {mean.mean():.5f}, mean max {largest.mean():.4f}, worst {largest.max():.3f}")


if __name__ == "__main__":
    main()
