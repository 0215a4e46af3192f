"""Ours and the peers on the same networks, evidence and cores, in one run: everything measured, one folder.

    python benchmarks/peers/run.py OUT [--long] [--networks FOLDER] [--only alarm andes] [--peers pomegranate nbn]

Every engine runs in a process of its own, with a time and a memory limit; for each evidence set all are asked in turn, so that a
busy moment meets them alike. Answers go to OUT/answers.csv, other measurements to OUT/facts.csv, row by row: an interrupted run goes
on where it was. ``report.py`` turns them into OUT/report.md, with plots.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from engines import ENGINES
from process import Failure, Process
from report import write_report

import unimarg as um
from unimarg.evaluation import evidence_sets, given
from unimarg.network import Network
from unimarg.provenance import provenance
from unimarg.query import EXACT_MEMORY
from unimarg.rows import append_row, read_rows

SEED = 4242
KEY = ("network", "family", "set", "engine", "budget")
ANSWERS = (*KEY, "kind", "observed", "seconds", "samples", "mae", "max_error", "status", "message", "reference", "reference_error")
FACTS = ("network", "engine", "fact", "value", "status", "message")
DEFAULT = ("unimarg", "pyAgrum", "pgmpy")
WRONG = 1e-3  # the error from which an exact answer is none
IN_A_ROW, IN_ALL = 3, 10  # evidence sets without an answer after which an engine is not asked again about a network
LAYERED = "clinical"  # the evidence family of networks with layers: clinic, medical
REFERENCE_SAMPLES = 1 << 24


@dataclass(frozen=True)
class Plan:
    """How long everything may take."""

    sets: int
    budgets: tuple[float, ...]  # seconds of an answer by sampling
    training: float  # seconds
    preset: str
    patience: float  # seconds of an answer beyond its budget
    building: float  # seconds
    rates: float  # seconds of measuring rows, or samples, a second
    rows: int
    memory: float = 4 * 2**30


SHORT = Plan(8, (0.1, 0.3, 1.0), 40, "small", 8, 30, 2, 1 << 12)
LONG = Plan(50, (0.1, 0.3, 1.0), 120, "small", 10, 120, 5, 1 << 13)


Reference = tuple[np.ndarray, str, float]  # marginals [states], how they were found, their mean standard error


@dataclass(frozen=True)
class Case:
    name: str
    net: Network
    family: str
    file: Path | None = None


MADE: dict[str, Callable[[], Network]] = {
    "medical-65": lambda: um.medical(5, 20, 40, seed=7),  # noisy-ORs of up to 20 parents
    "medical-140": lambda: um.medical(10, 40, 90, seed=7),  # up to 25; exact references take up to 20 s each
    "clinic": lambda: um.example("clinic"),  # references by sampling alone, a minute and more each
}


def cases(folder: Path | None, only: list[str], families: list[str]) -> Iterator[Case]:
    """Every BIF file of a folder, or those among the examples and a medical network; with names, those alone."""
    if folder is None:
        yield from _files(Path(um.__file__).parent / "examples", only, families)
    else:
        yield from _files(folder, only, families)
    for name in only or ([] if folder else ["medical-65"]):
        if name in MADE:
            yield Case(name, MADE[name](), LAYERED)


def _files(folder: Path, only: list[str], families: list[str]) -> Iterator[Case]:
    for path in sorted(p for p in folder.iterdir() if p.name.endswith((".bif", ".bif.gz"))):
        name = path.name.split(".")[0]
        if not only or name in only:
            net = um.load(path)
            yield from (Case(name, net, family, path) for family in families)


class Contest:
    """All engines on one case after the other."""

    def __init__(self, out: Path, plan: Plan, libraries: list[str], pythons: dict[str, str], engines: dict[str, Any] = ENGINES):
        self.out, self.plan, self.pythons, self.engines = out, plan, pythons, engines
        self.kinds = {f"{lib} {method}": kind for lib in libraries for method, kind in engines[lib].methods.items()}
        self.answers = {tuple(r[k] for k in KEY) for r in read_rows(out / "answers.csv", ANSWERS)}
        self.facts = {(r["network"], r["engine"], r["fact"]) for r in read_rows(out / "facts.csv", FACTS)}

    # --- processes

    def _process(self, library: str) -> Process:
        return Process(library, self.plan.memory, self.pythons.get(library, sys.executable))

    def _built(self, case: Case, name: str) -> tuple[Process, dict[str, Any]]:
        library, method = name.split(" ", 1)
        process = self._process(library)
        try:
            process.ask(self.plan.building, do="library")
            model = str(self.out / f"{case.name}.um")
            limit = self.plan.building + self.plan.training
            return process, process.ask(limit, do="build", method=method, net=case.net, model=model, training=self.plan.training)
        except Failure:
            process.close()
            raise

    def fact(self, network: str, engine: str, fact: str, value: float, status: str = "ok", message: str = "") -> None:
        if (network, engine, fact) not in self.facts:
            self.facts.add((network, engine, fact))
            row = dict(zip(FACTS, (network, engine, fact, float(value), status, message), strict=True))
            append_row(self.out / "facts.csv", FACTS, row)

    def measured(self, network: str, engine: str, fact: str) -> bool:
        return (network, engine, fact) in self.facts

    # --- errors against time

    def judge(self, case: Case) -> None:
        """All engines on all evidence sets of a case, set by set."""
        wanted = {name: self._missing(case, name) for name in self.kinds}
        if not any(wanted.values()):
            return
        self._train(case)
        rows = evidence_sets(case.net, case.family, self.plan.sets, SEED)
        processes: dict[str, Process] = {}
        failures = dict.fromkeys(self.kinds, (0, 0))  # evidence sets in a row, and in all
        for name in (n for n in self.kinds if wanted[n]):
            self._start(case, name, processes, rows[0])
        for number, row in enumerate(rows):
            if not any(n == number for name in processes for n, _ in wanted[name]):
                continue
            truth = reference(case.net, row, number)
            for name in list(processes):
                budgets = [b for n, b in wanted[name] if n == number]
                status = self._set(case, name, processes[name], number, row, budgets, truth)
                in_a_row, in_all = failures[name]
                failures[name] = (0, in_all) if status == "ok" else (in_a_row + 1, in_all + 1)
                self._after(case, name, processes, status, *failures[name])
            print(f"{case.name} {case.family}: {number + 1} of {len(rows)} sets", flush=True)
        for name, process in processes.items():
            self.fact(case.name, name, "peak_bytes", process.peak)
            process.close()

    def _start(self, case: Case, name: str, processes: dict[str, Process], row: np.ndarray) -> None:
        """Builds, and compiles by a first answer, each timed apart."""
        fact = "build_seconds"
        try:
            processes[name], reply = self._built(case, name)
            self.fact(case.name, name, fact, reply["seconds"])
            fact = "first_seconds"
            reply = processes[name].ask(self.plan.building, do="answer", row=row, budget=min(self.plan.budgets))
            self.fact(case.name, name, fact, reply["seconds"])
        except Failure as e:
            self.fact(case.name, name, fact, math.nan, e.kind, e.message)
            if name in processes:
                self._after(case, name, processes, e.kind, 0, 0)

    def _set(self, case: Case, name: str, process: Process, number: int, row: np.ndarray, budgets: list[float], truth: Reference) -> str:
        """One engine on one evidence set, shortest time first; after a failure it is not asked for longer."""
        for budget in budgets:
            result = self._answer(case, name, process, row, budget, truth[0])
            key = dict(zip(KEY, (case.name, case.family, number, name, budget), strict=True))
            about = {"kind": self.kinds[name], "observed": int((row >= 0).sum()), "reference": truth[1], "reference_error": truth[2]}
            append_row(self.out / "answers.csv", ANSWERS, key | about | result)
            if result["status"] != "ok":
                return result["status"]
        return "ok"

    def _missing(self, case: Case, name: str) -> list[tuple[int, float]]:
        budgets = self.plan.budgets if self.kinds[name] == "sampling" else (0.0,)
        asked = [(number, budget) for number in range(self.plan.sets) for budget in budgets]
        return [(n, b) for n, b in asked if (case.name, case.family, str(n), name, str(b)) not in self.answers]

    def _answer(self, case: Case, name: str, process: Process, row: np.ndarray, budget: float, truth: np.ndarray) -> dict[str, Any]:
        limit = budget + self.plan.patience
        out: dict[str, Any] = {"seconds": math.nan, "samples": 0, "mae": math.nan, "max_error": math.nan, "status": "ok", "message": ""}
        try:
            reply = process.ask(limit, do="answer", row=row, budget=budget)
            out |= {"seconds": reply["seconds"], "samples": reply["samples"]}
            out |= checked(reply["marginals"], truth, row, case.net, self.kinds[name] == "exact")
        except Failure as e:
            out |= {"status": e.kind, "message": e.message}
        return out

    def _after(self, case: Case, name: str, processes: dict[str, Process], status: str, in_a_row: int, in_all: int) -> None:
        """A fresh process for one that is gone; none after too many failures."""
        hopeless = in_a_row >= IN_A_ROW or in_all >= IN_ALL
        if not hopeless and status not in ("crash", "time-out", "memory"):
            return
        process = processes.pop(name)
        process.close()
        if hopeless:
            text = f"not asked again after {in_all} evidence sets without an answer, {in_a_row} of them in a row"
            self.fact(case.name, name, "given_up", in_all, "given up", text)
            self.fact(case.name, name, "peak_bytes", process.peak)
            return
        try:
            processes[name], _ = self._built(case, name)
            processes[name].peak = process.peak
        except Failure as e:
            self.fact(case.name, name, "given_up", in_all, e.kind, e.message)

    def _train(self, case: Case) -> None:
        """A model in OUT/NETWORK.um is used; otherwise one is trained."""
        if "unimarg um" not in self.kinds:
            return
        file = self.out / f"{case.name}.um"
        if not file.exists():
            um.train(case.net, self.plan.preset, f"{self.plan.training:g}s", seed=SEED + 1).save(file)
        model = um.load_model(file)
        text = f"{model.recipe.preset}, {model.history['steps']} steps"
        self.fact(case.name, "unimarg um", "training_seconds", model.history["seconds"], message=text)

    # --- rates

    def rates(self, case: Case) -> None:
        """Rows a second, forward samples a second, seconds to load."""
        sampled: set[str] = set()
        evidence = evidence_sets(case.net, case.family, self.plan.rows, SEED + 2)
        for name, kind in self.kinds.items():
            library = name.split(" ", 1)[0]
            if kind != "sampling" and not self.measured(case.name, name, "rows_per_second"):
                self._measure(case.name, name, "rows_per_second", lambda name=name: self._rows(case, name, evidence))
            if library not in sampled and not self.measured(case.name, library, "node_samples_per_second"):
                self._measure(case.name, library, "node_samples_per_second", lambda name=name: self._samples(case, name))
            if case.file and library not in sampled and not self.measured(case.name, library, "load_seconds"):
                self._measure(case.name, library, "load_seconds", lambda library=library: self._load(case, library))
            sampled.add(library)
        print(f"{case.name}: rates", flush=True)

    def _measure(self, network: str, engine: str, fact: str, run: Any) -> None:
        try:
            self.fact(network, engine, fact, run())
        except Failure as e:
            self.fact(network, engine, fact, math.nan, e.kind, e.message)

    def _rows(self, case: Case, name: str, evidence: np.ndarray) -> float:
        """An engine that answers one row after the other gets a process for each core."""
        processes = [self._built(case, name)[0]]
        try:
            if self.engines[name.split(" ", 1)[0]].rows is None and name != "unimarg um":
                processes += [self._built(case, name)[0] for _ in range(len(os.sched_getaffinity(0)) - 1)]
            parts = np.array_split(evidence, len(processes))
            limit = self.plan.building + 8 * self.plan.rates
            with ThreadPoolExecutor() as pool:
                asked = lambda p, part: p.ask(limit, do="rows", evidence=part, budget=self.plan.rates)  # noqa: E731
                replies = list(pool.map(asked, processes, parts))
            return sum(r["rows"] / r["taken"] for r in replies)
        finally:
            for process in processes:
                process.close()

    def _samples(self, case: Case, name: str) -> float:
        process = self._built(case, name)[0]
        try:
            reply = process.ask(self.plan.building, do="sample", budget=self.plan.rates)
            return len(case.net) * reply["samples"] / reply["taken"] if reply["samples"] else math.nan
        finally:
            process.close()

    def _load(self, case: Case, library: str) -> float:
        assert case.file is not None
        process = self._process(library)
        data = case.file.read_bytes()
        with tempfile.TemporaryDirectory() as folder:
            plain = Path(folder) / f"{case.name}.bif"  # unpacking is nobody's time
            plain.write_bytes(gzip.decompress(data) if case.file.suffix == ".gz" else data)
            try:
                process.ask(self.plan.building, do="library")
                reply = process.ask(self.plan.building, do="load", path=str(plain))
            finally:
                process.close()
        if reply["counts"] not in (None, (len(case.net), case.net.arc_count)):
            raise Failure("wrong", f"{reply['counts']} nodes and arcs, not {(len(case.net), case.net.arc_count)}")
        return reply["taken"]

    # --- libraries

    def imports(self) -> dict[str, str]:
        """Versions; and the seconds of an import in a fresh interpreter, less those of the interpreter itself."""
        versions = {}
        for library in dict.fromkeys(name.split(" ", 1)[0] for name in self.kinds):
            process = self._process(library)
            try:
                versions[library] = process.ask(self.plan.building, do="library")["version"]
            except Failure as e:
                versions[library] = str(e)
                continue
            finally:
                process.close()
            bare, full = (self._seconds(library, code) for code in ("pass", f"import warnings; import {self.engines[library].module}"))
            self.fact("", library, "import_seconds", full - bare)
        return versions

    def _seconds(self, library: str, code: str) -> float:
        times = []
        for _ in range(2):  # the second finds the files in memory
            begin = time.perf_counter()
            environment = os.environ | {"PYTHONPATH": str(Path(um.__file__).parent.parent), "PYTHONWARNINGS": "ignore"}
            subprocess.run([self.pythons.get(library, sys.executable), "-c", code], env=environment, capture_output=True, check=False)
            times.append(time.perf_counter() - begin)
        return min(times)


def reference(net: Network, row: np.ndarray, number: int) -> Reference:
    """Exact where that is possible, else by a long run of ours, with an error of its own over the unobserved nodes."""
    evidence = given(net, row)
    try:
        post = um.exact(net, evidence, memory=EXACT_MEMORY)
    except um.TooExpensiveError:
        post = um.infer(net, evidence, method="auto", samples=REFERENCE_SAMPLES, target_error=None, seed=SEED + 3 + number)
    hidden = np.repeat(row < 0, net.cards)
    error = np.concatenate(post.std_errors)[hidden]
    return np.concatenate(post.probabilities), post.method, float(error.mean()) if len(error) else 0.0


def checked(found: np.ndarray, truth: np.ndarray, row: np.ndarray, net: Network, exact: bool) -> dict[str, Any]:
    """Errors over the unobserved nodes; what is no probability at all, or claims to be exact and is not, is wrong."""
    if found.shape != truth.shape:
        raise Failure("wrong", f"{found.shape[0]} numbers instead of {truth.shape[0]}")
    sums = np.add.reduceat(found, np.cumsum([0, *net.cards[:-1]]))
    if not (np.isfinite(found).all() and (found > -WRONG).all() and (np.abs(sums - 1) < WRONG).all()):
        raise Failure("wrong", "the answer is not a probability distribution")
    difference = np.abs(found - truth)[np.repeat(row < 0, net.cards)]
    mean, largest = (float(difference.mean()), float(difference.max())) if len(difference) else (0.0, 0.0)
    wrong = exact and largest > WRONG
    text = f"claims to be exact and is off by {largest:.2g}" if wrong else ""
    return {"mae": mean, "max_error": largest, "status": "wrong" if wrong else "ok", "message": text}


def _plain(plan: Plan) -> dict[str, Any]:
    return json.loads(json.dumps(asdict(plan)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--long", action="store_true", help="50 evidence sets, longer training")
    parser.add_argument("--networks", type=Path, help="a folder of .bif or .bif.gz files instead of the examples")
    parser.add_argument("--only", nargs="+", default=[], help="names of networks")
    parser.add_argument("--families", nargs="+", default=["random"], help="evidence of networks from files")
    parser.add_argument("--peers", nargs="*", default=[], help="further ones: pomegranate nbn, in .venv-bench-NAME or this environment")
    parser.add_argument("--budgets", nargs="+", type=float, help="seconds of an answer by sampling")
    parser.add_argument("--note", default="", help="a remark for the report, on the machine for example")
    given = parser.parse_args()
    plan = LONG if given.long else SHORT
    if given.budgets:
        plan = Plan(**asdict(plan) | {"budgets": tuple(given.budgets)})
    given.out.mkdir(parents=True, exist_ok=True)
    file = given.out / "about.json"
    before_this = json.loads(file.read_text()) if file.exists() else {"minutes": 0.0, "plan": _plain(plan)}
    if before_this["plan"] != _plain(plan):
        parser.error(f"{given.out} holds a run of another length; give another folder")
    pythons = {p: f".venv-bench-{p}/bin/python" for p in given.peers if Path(f".venv-bench-{p}/bin/python").exists()}
    contest = Contest(given.out, plan, [*DEFAULT, *given.peers], pythons)
    begin, before = time.perf_counter(), os.getloadavg()[0]
    versions = contest.imports()
    for case in cases(given.networks, given.only, given.families):
        for step in (contest.judge, contest.rates):
            step(case)
            about = provenance() | {"seed": SEED, "versions": versions, "plan": _plain(plan), "note": given.note}
            minutes = before_this["minutes"] + (time.perf_counter() - begin) / 60
            about |= {"load_before": before, "load_after": os.getloadavg()[0], "minutes": minutes}
            file.write_text(json.dumps(about, indent=1))
            write_report(given.out)
    print(given.out / "report.md")


if __name__ == "__main__":
    main()
