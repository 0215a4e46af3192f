"""Is importance sampling right, and does it know when it is not: against exact answers.

    python benchmarks/inference_checks.py NETWORK... [--sets 6] [--samples 65536] [--train 20s] [--queries 200] [--seed 7]
        [--out results.csv]

First every proposal on evidence sets of each network: |z| of every marginal where the status is ok, ESS p (1 - p) >= 10 and the error more
than that of rounding, how many of the 95% intervals cover, and the statuses; ``score_z`` has the error that the exact probability gives in
place of the reported one, which a state drawn less often than expected makes small. Then random queries by auto, once as it is and once
without exact inference: how many are ok, and whether an ok answer is ever off by more than 5 standard errors plus 0.005. A model for the
proposals that need one is trained first with ``--train``. Prints CSV; what breaks a rule is named on stderr, and is the exit status.
"""

import argparse
import csv
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import unimarg as um
from unimarg import Network, Posterior, query
from unimarg.errors import TooExpensiveError
from unimarg.estimates import ROUNDING
from unimarg.evaluation import evidence_sets
from unimarg.query import WITH_MODEL, WITHOUT_MODEL

FAMILIES = ("random", "uniform", "leaves")
SEED = 7
Z, OFTEN = 4.5, 10  # the largest |z|; ESS p (1 - p) from which it is asked for
ERRORS, MARGIN = 5, 0.005  # what an ok answer may be off by
COLUMNS = ["network", "check", "method", "structure", "queries", "ok", "low_ess", "failed", "worst_z", "worst_score_z", "z_scores"]
COLUMNS += ["coverage_95", "worst_beyond_5_errors", "median_seconds"]


class Tally:
    """What a row of the table needs, query by query."""

    def __init__(self) -> None:
        self.status: Counter[str] = Counter()
        self.scores: list[np.ndarray] = [np.zeros(0)]
        self.true_scores: list[np.ndarray] = [np.zeros(0)]  # with the error that the exact probability gives
        self.seconds: list[float] = []
        self.beyond = -np.inf

    def add(self, found: Posterior, exact: Posterior, what: str) -> None:
        self.status[found.status] += 1
        self.seconds.append(found.seconds)
        if found.status != "ok":
            return
        p, q, e = (np.concatenate(a) for a in (found.probabilities, exact.probabilities, found.std_errors))
        often = (min(found.ess, 1e18) * q * (1 - q) >= OFTEN) & (e > 2 * ROUNDING)
        z = (p - q)[often] / e[often]
        self.scores.append(z)
        estimated = np.maximum(p * (1 - p), 1e-30)[often]
        self.true_scores.append(np.where(e[often] ** 2 * found.ess < 2 * estimated, z * np.sqrt(estimated / (q * (1 - q))[often]), z))
        beyond = np.abs(p - q) - ERRORS * e
        self.beyond = max(self.beyond, float(beyond.max()))
        names = [f"{v.name}={s}" for v in found.variables for s in v.states]
        if beyond.max() > MARGIN or (len(z) and np.abs(z).max() > Z):
            at = int(beyond.argmax()) if beyond.max() > MARGIN else int(np.flatnonzero(often)[np.abs(z).argmax()])
            found_it = f"{names[at]} is {q[at]:.6f}, found {p[at]:.6f} +- {e[at]:.2g}"
            print(f"{what}: {found_it}; {found.method}, ESS {found.ess:.0f}, k-hat {found.k_hat:.2f}", file=sys.stderr)

    def join(self, other: "Tally") -> None:
        self.status += other.status
        self.scores += other.scores
        self.true_scores += other.true_scores
        self.seconds += other.seconds
        self.beyond = max(self.beyond, other.beyond)

    def row(self) -> list[Any]:
        z = np.abs(np.concatenate(self.scores))
        worst, covered = (f"{z.max():.2f}", f"{(z < 1.96).mean():.4f}") if len(z) else ("", "")
        true = np.abs(np.concatenate(self.true_scores))
        counts = [self.status[s] for s in ("ok", "low_ess", "failed")]
        return [
            sum(counts),
            *counts,
            worst,
            f"{true.max():.2f}" if len(true) else "",
            len(z),
            covered,
            f"{self.beyond:.2g}",
            f"{np.median(self.seconds):.3f}",
        ]

    @property
    def wrong(self) -> bool:
        return self.beyond > MARGIN or np.abs(np.concatenate(self.scores)).max(initial=0) > Z


def random_evidence(net: Network, count: int, seed: int) -> list[dict[str, object]]:
    """Of every family in turn; in each third set one finding is virtual."""
    rng = np.random.default_rng(seed)
    out: list[dict[str, object]] = []
    for number in range(count):
        row = evidence_sets(net, FAMILIES[number % len(FAMILIES)], 1, seed + number)[0]
        given: dict[str, object] = {net.names[i]: net.variables[i].states[k] for i, k in enumerate(row) if k >= 0}
        if number % 3 == 2 and given:
            name = rng.choice(list(given))
            states = net.variables[net.index[name]].states
            given[name] = [float(rng.random() + (s == given[name])) for s in states]
        out.append(given)
    return out


Ask = Callable[..., Posterior]


def proposals(net: Network, model: um.Marginalizer | None) -> Iterator[tuple[str, bool, Ask]]:
    """Every method by sampling, with and without structure where that makes a difference, and how to ask by it."""
    ask: Ask = model.query if model else partial(um.infer, net)
    for method in WITH_MODEL if model else WITHOUT_MODEL:
        if method in ("auto", "exact", "um") or (method == "sequential" and model is not None and not model.sequential):
            continue
        for structure in (True, False) if method in ("prior", "independent", "hybrid", "message") else (True,):
            yield method, structure, ask


def every_proposal(net: Network, name: str, model: um.Marginalizer | None, sets: int, samples: int, seed: int, out: Any) -> bool:
    evidence = random_evidence(net, sets, seed)
    exact = [um.exact(net, e) for e in evidence]
    wrong = False
    for method, structure, ask in proposals(net, model):
        tally = Tally()
        for number, (e, truth) in enumerate(zip(evidence, exact, strict=True)):
            options: dict[str, Any] = {"samples": samples, "target_error": None, "structure": structure, "seed": seed + number}
            tally.add(ask(e, method=method, **options), truth, f"{name}, set {number}")
        out.writerow([name, "proposals", method, structure, *tally.row()])
        sys.stdout.flush()
        wrong |= tally.wrong
    return wrong


CHECKS = ("auto", "auto without exact")


def random_queries(nets: dict[str, Network], queries: int, seed: int, out: Any) -> bool:
    """Both checks on the same queries: the exact answers are needed for both."""
    everything = {check: Tally() for check in CHECKS}
    for name, net in nets.items():
        tallies = {check: Tally() for check in CHECKS}
        rng = np.random.default_rng(seed)
        for number, e in enumerate(random_evidence(net, -(-queries // len(nets)), 1000 + seed)):
            few = rng.choice(net.names, size=min(3, len(net)), replace=False).tolist()
            targets = few if number % 4 == 0 else None
            try:
                truth = um.exact(net, e, targets)
            except TooExpensiveError:
                continue
            for check, tally in tallies.items():
                with exact_up_to(query.EXACT_ENTRIES if check == "auto" else -1):
                    tally.add(um.infer(net, e, targets, seed=seed - SEED + number), truth, f"{check}, {name}, query {number}")
        for check, tally in tallies.items():
            everything[check].join(tally)
            out.writerow([name, check, "auto", True, *tally.row()])
        sys.stdout.flush()
    wrong = False
    for check, tally in everything.items():
        out.writerow(["all", check, "auto", True, *tally.row()])
        share = tally.status["ok"] / max(sum(tally.status.values()), 1)
        if share < 0.9:
            print(f"{check}: only {share:.1%} are ok", file=sys.stderr)
        wrong |= tally.beyond > MARGIN or share < 0.9
    return wrong


@contextmanager
def exact_up_to(entries: int) -> Iterator[None]:
    limit, query.EXACT_ENTRIES = query.EXACT_ENTRIES, entries
    try:
        yield
    finally:
        query.EXACT_ENTRIES = limit


def load(networks: list[Path]) -> dict[str, Network]:
    """By name: files, or examples."""
    return {path.name.split(".")[0]: um.load(path) if path.exists() else um.example(path.name) for path in networks}


def trained(net: Network, budget: str) -> um.Marginalizer:
    """A model for every proposal that needs one."""
    return um.train(net, "small", budget, heads=("marginal", "message"), student=64, seed=1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="+", type=Path, help="files, or names of examples")
    parser.add_argument("--sets", type=int, default=6)
    parser.add_argument("--samples", type=int, default=1 << 16)
    parser.add_argument("--train", help="for so long, the small preset with a message head and a student")
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--seed", type=int, default=SEED, help="of the evidence sets and of the samples")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    nets = load(given.networks)
    began, wrong = time.perf_counter(), False
    with given.out.open("w", newline="", buffering=1) if given.out else sys.stdout as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(COLUMNS)
        for name, net in nets.items() if given.sets else ():
            model = trained(net, given.train) if given.train else None
            wrong |= every_proposal(net, name, model, given.sets, given.samples, given.seed, out)
            file.flush()
        if given.queries:
            wrong |= random_queries(nets, given.queries, given.seed, out)
    print(f"{time.perf_counter() - began:.0f} s", file=sys.stderr)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
