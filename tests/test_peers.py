"""``benchmarks/peers``: whatever an engine does, it is caught, shown, and the run goes on."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from models import ASIA

FOLDER = Path(__file__).parent.parent / "benchmarks" / "peers"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")

FAKES = """
import os, sys, time
import numpy as np
from unimarg import exact

class Fake:
    module = "unimarg"
    methods = {m: "exact" for m in ("right", "raises", "crashes", "hangs", "hungry", "wrong", "short", "nan", "chatty", "unbuilt")}
    rows = sample = load = None
    def __init__(self, method, net, model, training):
        self.method, self.net = method, net
        if method == "unbuilt":
            raise ValueError("no such network")
    def answer(self, row, seconds):
        evidence = {self.net.names[i]: int(k) for i, k in enumerate(row) if k >= 0}
        found = np.concatenate(exact(self.net, evidence).probabilities)
        if self.method == "raises": raise RuntimeError("a fault")
        if self.method == "crashes": print("last words", file=sys.stderr, flush=True); os.abort()
        if self.method == "hangs" and not seconds: time.sleep(60)  # not at the first answer, which may take long
        if self.method == "hungry":
            kept = [np.ones(1 << 24)]
            while True: kept.append(np.ones(1 << 24)); time.sleep(0.01)
        if self.method == "wrong": found = np.full(len(found), 0.5)
        if self.method == "short": found = found[:-1]
        if self.method == "nan": found = found * np.nan
        if self.method == "chatty": print("noise " * 1000)
        return found, 0

ENGINES = {"fake": Fake}
"""


@pytest.fixture
def peers(monkeypatch, tmp_path):
    """The benchmark's modules and a file of fake engines."""
    monkeypatch.syspath_prepend(str(FOLDER))
    import process
    import report
    import run

    fakes = tmp_path / "fakes.py"
    fakes.write_text(FAKES)
    namespace: dict = {}
    exec(FAKES, namespace)
    monkeypatch.setattr(run, "Process", lambda library, memory, python: process.Process(library, memory, python, fakes))
    yield run, report, namespace["ENGINES"]
    for name in ("process", "report", "run", "engines", "pictures"):
        sys.modules.pop(name, None)


def only(engines, *methods):
    """The fake library with some of its methods."""
    return type("Some", (engines["fake"],), {"methods": dict.fromkeys(methods, "exact")})


def test_every_way_to_fail_is_shown_and_the_run_goes_on(peers, tmp_path):
    run, report, engines = peers
    case = run.Case("asia", ASIA, "random")
    plan = run.Plan(2, (0.1,), 1, "small", 60, 60, 0.2, 16, memory=400 * 2**20)
    contest = run.Contest(tmp_path, plan, ["fake"], {}, {"fake": only(engines, *(m for m in engines["fake"].methods if m != "hangs"))})
    contest.judge(case)
    short = run.Plan(2, (0.1,), 1, "small", 1, 60, 0.2, 16)
    run.Contest(tmp_path, short, ["fake"], {}, {"fake": only(engines, "hangs")}).judge(case)
    answers, facts = (
        run.read_rows(tmp_path / f"{name}.csv", columns) for name, columns in (("answers", run.ANSWERS), ("facts", run.FACTS))
    )
    statuses = {method: [r["status"] for r in answers if r["engine"] == f"fake {method}"] for method in engines["fake"].methods}
    assert statuses["right"] == statuses["chatty"] == ["ok", "ok"]
    assert statuses["wrong"] == statuses["short"] == statuses["nan"] == ["wrong", "wrong"]
    assert {method: statuses[method] for method in FATAL} == {method: [kind, kind] for method, kind in FATAL.items()}
    said = {(r["engine"], r["fact"]): r["message"] for r in facts if r["status"] != "ok"}
    assert said["fake unbuilt", "build_seconds"] == "ValueError: no such network"
    assert said["fake raises", "first_seconds"] == "RuntimeError: a fault"
    assert said["fake crashes", "first_seconds"] == "ended by SIGABRT; last words"
    assert "off by" in next(r["message"] for r in answers if r["engine"] == "fake wrong")

    (tmp_path / "about.json").write_text(ABOUT)
    report.write_report(tmp_path)  # as it stands after the first network's answers
    assert "rows a second" not in (tmp_path / "report.md").read_text()
    contest.rates(case)
    report.write_report(tmp_path)
    text = (tmp_path / "report.md").read_text()
    for part in (
        "fake crashes | asia | crash",
        "fake hangs | asia | time-out",
        "fake wrong | asia | wrong",
        "last words",
        "rows a second",
        "2 of 2",
        "0 of 2",
    ):
        assert part in text, part
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")

    before = (tmp_path / "answers.csv").read_bytes()
    again = run.Contest(tmp_path, plan, ["fake"], {}, {"fake": only(engines, "right")})
    again.judge(case)
    assert (tmp_path / "answers.csv").read_bytes() == before  # nothing is asked twice


FATAL = {"raises": "error", "crashes": "crash", "hangs": "time-out", "hungry": "memory"}
ABOUT = """{"unimarg": "0", "commit": "abc", "jax": "1", "python": "3", "hardware": "a test", "seed": 1, "versions": {"fake": "1"},
"note": "", "plan": {"budgets": [0.1], "patience": 2, "memory": 1e9}, "load_before": 0, "load_after": 0, "minutes": 1}"""


def test_an_engine_that_dies_late_gets_a_fresh_process_then_none(peers, tmp_path):
    """It answers the first time it is asked, and never again."""
    run, _, engines = peers
    plan = run.Plan(6, (0.1,), 1, "small", 60, 60, 0.2, 16)
    contest = run.Contest(tmp_path, plan, ["fake"], {}, {"fake": only(engines, "raises")})
    case, row = run.Case("asia", ASIA, "random"), np.full(len(ASIA), -1)
    processes = {"fake raises": contest._built(case, "fake raises")[0]}
    truth = run.reference(ASIA, row, 0)
    for count in (1, 2, 3):
        old = processes["fake raises"]
        status = contest._set(case, "fake raises", old, count, row, [0.0], truth)
        assert status == "error"
        contest._after(case, "fake raises", processes, "crash" if count == 1 else status, count, count)
        if count == 1:
            assert processes["fake raises"] is not old
            assert old.process.poll() is not None
    assert not processes
    assert ("asia", "fake raises", "given_up") in contest.facts


def test_seconds_to_an_error_by_hand(peers):
    _, report, _ = peers
    points = [{"seconds": s, "mae": m, "answered": 1, "kind": "sampling"} for s, m in ((0.1, 0.1), (1.0, 0.01), (10.0, 0.001))]
    assert report.seconds_to(points, 0.1) == "≤ 0.1"
    assert report.seconds_to(points, math.sqrt(0.1 * 0.01)) == "0.316"
    assert report.seconds_to(points, 1e-4) == "> 10"
    exact = [{"seconds": 0.5, "mae": 0.0, "answered": 1, "kind": "exact"}]
    assert report.seconds_to(exact, 0.01) == "0.5"
    assert report.seconds_to([exact[0] | {"mae": 0.2}], 0.01) == "never"
    assert report.seconds_to([exact[0] | {"answered": 0}], 0.01) == "no answer"


def test_references_that_are_not_sure_enough_are_named(peers):
    _, report, _ = peers
    row = {"network": "n", "family": "f", "mae": 0.01, "reference": "lookahead", "reference_error": 0.0009}
    assert "uncertain" not in next(report.reference_remarks([row]))
    assert "uncertain" in next(report.reference_remarks([row | {"reference_error": 0.002}]))
