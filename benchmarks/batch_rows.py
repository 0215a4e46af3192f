"""All marginals for many rows, each with evidence of its own: rows a second, side by side in one run.

    python benchmarks/batch_rows.py NETWORK [model.um ...] [--results folder]

Ours: ``um.infer`` of a DataFrame, exact answers by one program where cliques are small; then one pass of each trained model on all
cores, with and without the proof of impossible states; the mean absolute error is that on the rows that pyAgrum did. pyAgrum:
LazyPropagation, one process for each core. With ``--results`` the curve of accuracy against cost is written as CSV and PNG.
"""

import argparse
import csv
import multiprocessing
import os
import time
from pathlib import Path

import numpy as np
import pandas as pd
from one_shot import named

import unimarg as um
from unimarg.evaluation import errors, evidence_sets
from unimarg.exact_together import exact_table
from unimarg.formats.interop import import_quietly

ROWS, SEED, REPEATS = 10_000, 99, 3
THEIR_SECONDS = 20.0
# seconds_before are those of training, or of compilation
COLUMNS = ["network", "method", "hidden", "rounds", "steps", "seconds_before", "rule_out"]
COLUMNS += ["rows_s", "times_pyagrum", "mae", "mean_max", "cores"]


def peer(path: str, evidence: np.ndarray) -> tuple[int, float, np.ndarray]:
    """Rows done, seconds taken and their marginals, by one process."""
    gum = import_quietly("pyagrum", "pyagrum")
    _, net = named(path)
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


def peers(path: str, evidence: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Rows a second of all processes together, the rows they did, and their marginals."""
    cores = len(os.sched_getaffinity(0))
    with multiprocessing.get_context("spawn").Pool(cores) as pool:
        results = pool.starmap(peer, [(path, part) for part in np.array_split(evidence, cores)])
    rows = [part[: len(answers)] for part, (_, _, answers) in zip(np.array_split(np.arange(ROWS), cores), results, strict=True)]
    return sum(n / seconds for n, seconds, _ in results), np.concatenate(rows), np.concatenate([a for _, _, a in results])


def ours(model: um.Marginalizer, evidence: np.ndarray, rule_out: bool) -> tuple[float, np.ndarray]:
    """Rows a second, the best of a few times, and the marginals."""
    answer = model.marginals_of_states(evidence, rule_out)  # compiles
    taken = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        model.marginals_of_states(evidence, rule_out)
        taken.append(time.perf_counter() - start)
    return ROWS / min(taken), answer


def exactly(net: um.Network, evidence: np.ndarray) -> tuple[float, float, np.ndarray] | None:
    """Seconds of compilation, rows a second, the best of a few times, and the marginals; None where cliques are large."""
    every = range(len(net))
    if exact_table(net, every, every) is None:
        return None
    labels = [np.array([*v.states, None], dtype=object)[column] for v, column in zip(net.variables, evidence.T, strict=True)]
    frame = pd.DataFrame(dict(zip(net.names, labels, strict=True)))
    taken, found = [], []
    for _ in range(1 + REPEATS):
        start = time.perf_counter()
        found = um.infer(net, frame, method="exact")
        taken.append(time.perf_counter() - start)
    return taken[0] - min(taken), ROWS / min(taken), np.array([np.concatenate(f.probabilities) for f in found])


def draw(rows: list[list[object]], path: Path) -> None:
    """Error against rows a second; exact inference, which has no error, as a vertical line."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 4.2), layout="constrained")
    table = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
    for rule_out, marker in ((True, "o"), (False, "s")):
        ours = [r for r in table if r["method"] == "um" and r["rule_out"] == rule_out]
        points = sorted((float(str(r["rows_s"])), float(str(r["mae"])), f"{r['hidden']}, {r['rounds']} rounds") for r in ours)
        label = "one pass, with the proof of impossible states" if rule_out else "one pass"
        axes.plot([p[0] for p in points], [p[1] for p in points], marker, label=label)
        for x, y, hidden in points * (not rule_out):
            axes.annotate(hidden, (x, y), textcoords="offset points", xytext=(6, 4), fontsize=8)
    for r in table:
        if r["method"] != "um":
            label, color = ("exact, by one program", "C2") if r["method"] == "exact" else ("pyAgrum LazyPropagation (exact)", "grey")
            axes.axvline(float(str(r["rows_s"])), color=color, linestyle="--", label=label)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel=f"rows a second, {table[0]['cores']} cores",
        ylabel="mean absolute error",
        title=table[0]["network"],
    )
    axes.margins(0.3)
    axes.legend(fontsize=8, loc="upper left")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", help="a file, or the name of an example")
    parser.add_argument("models", nargs="*", help=".um files of it")
    parser.add_argument("--results", type=Path, help="a folder for batch_rows_NETWORK.csv and .png")
    given = parser.parse_args()
    models = [um.load_model(path) for path in given.models]
    name, net = named(given.network)
    if any(m.net != net for m in models):
        parser.error("the models answer for different networks")
    cores = len(os.sched_getaffinity(0))
    evidence = evidence_sets(net, "random", ROWS, SEED)
    theirs, done, truth = peers(given.network, evidence)
    print(f"pyAgrum LazyPropagation, {cores} processes: {theirs:10.0f} rows/s ({len(done)} rows)")
    rows: list[list[object]] = [[name, "pyagrum", "", "", "", "", "", f"{theirs:.1f}", 1, 0, 0, cores]]
    if exact := exactly(net, evidence):
        compiling, rate, answer = exact
        mean, largest = (e.mean() for e in errors(answer[done], truth, evidence[done], net))
        print(f"unimarg exact, compiled in {compiling:.1f} s: {rate:10.0f} rows/s, {rate / theirs:6.0f} times; MAE {mean:.1e}")
        figures = [f"{rate:.0f}", f"{rate / theirs:.1f}", f"{mean:.1e}", f"{largest:.1e}"]
        rows.append([name, "exact", "", "", "", f"{compiling:.1f}", "", *figures, cores])
    for model in models:
        hidden, rounds = "x".join(map(str, model.recipe.architecture.hidden)), model.recipe.rounds
        for rule_out in (True, False):
            rate, answer = ours(model, evidence, rule_out)
            mean, largest = (e.mean() for e in errors(answer[done], truth, evidence[done], net))
            print(
                f"unimarg um {hidden:>14}, {rounds:2} rounds, rule_out={rule_out!s:5}: {rate:10.0f} rows/s, {rate / theirs:6.0f} times; "
                f"MAE {mean:.5f}, mean max {largest:.4f}"
            )
            trained = [hidden, rounds, model.history["steps"], f"{model.history['seconds']:.0f}"]
            rows.append([name, "um", *trained, rule_out, f"{rate:.0f}", f"{rate / theirs:.1f}", f"{mean:.6f}", f"{largest:.5f}", cores])
    if given.results:
        given.results.mkdir(parents=True, exist_ok=True)
        path = given.results / f"batch_rows_{name}.csv"
        with path.open("w", newline="") as f:
            csv.writer(f).writerows([COLUMNS, *rows])
        if models:
            draw(rows, path.with_suffix(".png"))


if __name__ == "__main__":
    main()
