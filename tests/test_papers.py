"""``unimarg reproduce``: the paper's experiments run, go on where they stopped, and refuse what does not fit."""

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import unimarg as um
from models import random_model, same
from test_cli import run
from unimarg import trainer
from unimarg.cli.judge import EXPERIMENTS
from unimarg.errors import FormatError, UsageError
from unimarg.evaluation import errors, evidence_sets
from unimarg.query import Asked
from unimarg.reproduce import appendix_b, figure1, sampling, setting, table1, table2
from unimarg.reproduce.setting import References, Setting, make_references, read_references

NET = um.medical(2, 4, 6, seed=7)


@pytest.fixture
def tiny(tmp_path, monkeypatch) -> Setting:
    """A quick run on a smaller network, with models that were never trained."""
    monkeypatch.setattr(Setting, "net", property(lambda self: NET))
    monkeypatch.setattr(setting, "QUICK_SETS", 3)
    monkeypatch.setattr(sampling, "QUICK_SAMPLES", (50, 100, 200, 400))
    monkeypatch.setattr(Setting, "model", lambda self, net, preset: random_model(net, heads=("marginal", "message")))
    return Setting(tmp_path / "out", quick=True)


def exact_references(sets: int = 5) -> References:
    evidence = evidence_sets(NET, "clinical", sets, 1)
    given = [{NET.names[i]: int(row[i]) for i in np.flatnonzero(row >= 0)} for row in evidence]
    truth = np.stack([np.concatenate(um.exact(NET, e).probabilities) for e in given])
    return References(evidence, truth, np.zeros_like(truth), "exact")


def test_table_1_goes_on_where_it_stopped(tmp_path, monkeypatch):
    out, references = tmp_path / "table1.csv", exact_references()
    rows = table1.search(NET, references, [(8,)], 4, 0, out)
    assert [(r["hidden"], r["encoding"], r["steps"]) for r in rows] == [("8", "two_bit", "4"), ("8", "prior", "4")]
    assert [(r["paper_mae"], r["paper_mean_max"]) for r in rows] == [(0.0063, 0.3425), (0.006, 0.3223)]
    assert all(str(r[c]) for r in rows for c in table1.COLUMNS)
    model = um.train(NET, "paper", "4 steps", 0, hidden=(8,), encoding="prior")
    mean, largest = errors(model.marginals_of_states(references.evidence), references.truth, references.evidence, NET)
    assert (rows[1]["mae"], rows[1]["mean_max"], rows[1]["worst_max"]) == pytest.approx((mean.mean(), largest.mean(), largest.max()))

    def never(*_, **__):
        raise AssertionError("trained again")

    monkeypatch.setattr(table1, "train", never)
    before = out.read_bytes()
    assert table1.search(NET, references, [(8,)], 4, 0, out) == rows
    assert out.read_bytes() == before
    with pytest.raises(AssertionError, match="trained again"):  # another seed is another row
        table1.search(NET, references, [(8,)], 4, 1, out)


def test_table_1_is_the_papers_search(tiny, monkeypatch):
    seen = []

    def trained(net, preset, budget, seed, batch, hidden, encoding):
        seen.append((preset, budget, batch, hidden, encoding))
        return random_model(net, len(seen), hidden=(8,))

    monkeypatch.setattr(table1, "train", trained)
    text = table1.reproduce(tiny)
    sizes = [(128,), (256,), (64, 64), (128, 128)]
    assert seen == [("paper", "500 steps", 256, hidden, encoding) for hidden in sizes for encoding in ("two_bit", "prior")]
    assert text.count("\n| ") == 1 + 8 + 1 - 1
    assert "one layer is better than two" in text
    with tiny.path("table1.csv").open() as file:
        assert [row["hidden"] for row in csv.DictReader(file)][-1] == "default"


def test_figure_1_and_table_2_share_their_runs(tiny, monkeypatch):
    text = figure1.reproduce(tiny)
    assert text.count("confirmed") == 7  # three betas, each with structure too, and beta 1
    with tiny.path("figure1.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(sampling.PROPOSALS) * 4
    assert all(float(r["low"]) <= float(r["correlation"]) <= float(r["high"]) <= 1 for r in rows)
    assert {r["commit"] for r in rows} != {""}
    assert tiny.path("figure1.png").read_bytes().startswith(b"\x89PNG")

    def never(*_):
        raise AssertionError("drawn again")

    monkeypatch.setattr(Asked, "estimator", never)
    text = table2.reproduce(tiny)
    assert "| beta 0.1 | 400 | 3 |" in text
    assert "| 15,458 |" in text
    assert tiny.path("table2.png").read_bytes().startswith(b"\x89PNG")
    file = tiny.path("sampling.csv")
    file.write_bytes(file.read_bytes()[:-30])
    with pytest.raises(AssertionError, match="drawn again"):
        table2.reproduce(tiny)


def test_a_run_looked_at_early_is_the_start_of_a_longer_one():
    references, proposal = exact_references(), sampling.PROPOSALS[1]
    model = random_model(NET)
    short = sampling._draw(NET, model, proposal, references, 2, (100, 300), 0)
    alone = sampling._draw(NET, model, proposal, references, 2, (300,), 0)
    assert short[1]["ess"] == pytest.approx(alone[0]["ess"], rel=1e-5)
    assert short[1]["mae"] == pytest.approx(alone[0]["mae"], rel=1e-3)
    failed = sampling._draw(NET, model, sampling.Proposal("x", "message", "paper"), references, 2, (100, 300), 0)
    assert [row["message"] for row in failed] == [
        "the model has no message head; train with the preset 'default', or with heads=('marginal', 'message') (--option)"
    ] * 2
    assert (sampling._parsed(failed[0] | {"set": 0, "samples": 9})["correlation"], len(failed)) == (0.0, 2)


def test_findings_can_fail():
    base = {"samples": 0, "correlation": 0.5, "ess_median": 5.0, "share_median": 0.5, "mae": 0.01, "reference_error": 0.0}
    names = [p.name for p in sampling.PROPOSALS]
    even = [base | {"proposal": p, "samples": n} for p in names for n in (1, 2, 4, 8)]
    assert sum("not confirmed" in line for line in figure1.findings(even)) == 7
    better = [row | {"correlation": 0.1 if row["proposal"] == "beta 1" else 0.4 if row["proposal"] == "beta 0" else 0.5} for row in even]
    assert not any("not confirmed" in line for line in figure1.findings(better))
    for error, said in ((0.005, "2.0 times smaller"), (0.005, "uncertain"), (0.0005, "small enough")):
        assert said in list(figure1.findings([row | {"reference_error": error} for row in even]))[-1]
    assert sum("not confirmed" in line for line in table2.findings([base | {"proposal": p} for p in names])) == 5


def test_appendix_b(tiny, monkeypatch):
    monkeypatch.setattr(appendix_b, "CHUNK", 1 << 12)
    monkeypatch.setattr(appendix_b, "QUICK_SAMPLES", 1 << 13)
    assert "| message | 8192 | 1 | 0 | 0 | 8,192 |" in appendix_b.reproduce(tiny)


def test_references_are_kept(tmp_path, monkeypatch):
    path = tmp_path / "references.npz"
    first = make_references(NET, 3, path, "exact", 1)
    assert (first.source, first.mean_error(NET)) == ("exact", 0.0)
    said = []
    again = make_references(NET, 4, path, "exact", 1, said.append)
    assert said == ["reference 4 of 4"]
    assert (again.truth[:3] == first.truth).all()
    monkeypatch.setattr(Asked, "small", lambda self: False)
    sampled = make_references(NET, 4, tmp_path / "sampled.npz", "auto", 1 << 14)
    assert sampled.source == "sampled"
    z = (sampled.truth - again.truth)[sampled.std_error > 0] / sampled.std_error[sampled.std_error > 0]
    assert np.abs(z).max() < 4.5
    monkeypatch.setattr(setting, "EVIDENCE_SEED", 5)
    with pytest.raises(FormatError, match="other evidence sets"):
        make_references(NET, 4, path, "exact", 1)


def test_references_from_a_file(tmp_path):
    evidence = evidence_sets(NET, "clinical", 4, 1).astype(np.int8)
    truth = np.full((4, 24), 0.5)
    np.savez(tmp_path / "good.npz", evidence=evidence, truth=truth)
    found = read_references(tmp_path / "good.npz", NET)
    assert (found.evidence == evidence).all()
    assert (found.truth == truth).all()
    assert (found.std_error == 0).all()
    np.savez(tmp_path / "short.npz", evidence=evidence[:, 1:], truth=truth)
    np.savez(tmp_path / "other.npz", evidence=evidence)
    (tmp_path / "text.npz").write_text("nothing")
    for name in ("short", "other", "text", "none"):
        with pytest.raises(FormatError, match=rf"{name}\.npz"):
            read_references(tmp_path / f"{name}.npz", NET)
    np.savez(tmp_path / "gaps.npz", evidence=evidence, truth=truth * np.nan)
    with pytest.raises(FormatError, match="missing"):
        Setting(tmp_path, references_file=tmp_path / "gaps.npz").references(NET)


def test_models_are_kept_and_an_unfinished_one_is_not_used(tmp_path, monkeypatch):
    made = Setting(tmp_path, quick=True)
    random_model(NET).save(tmp_path / "paper-0_quick.um")  # 5 steps
    calls = []
    monkeypatch.setattr(setting, "train", lambda net, *_, **__: calls.append(1) or random_model(net))
    monkeypatch.setattr(setting, "STEPS", {"paper": (7, 7)})
    with pytest.raises(UsageError, match="stopped after 5 of 7 steps"):
        made.model(NET, "paper")
    monkeypatch.setattr(setting, "STEPS", {"paper": (5, 5)})
    assert made.model(NET, "paper").history["steps"] == 5
    assert len(calls) == 1


@pytest.mark.parametrize("done", [0, 16])
def test_an_unfinished_training_goes_on(tmp_path, monkeypatch, done):
    def stop(*_):
        raise KeyboardInterrupt

    options = {"hidden": (8,), "batch": 8}
    monkeypatch.setattr(setting, "OPTIONS", {"paper": (options, options)})
    monkeypatch.setattr(setting, "STEPS", {"paper": (64, 64)})
    monkeypatch.setattr(trainer._Run, "_steps_per_call", lambda self, accelerated, teacher: 16)
    whole = um.train(NET, "paper", "64 steps", **options)
    with monkeypatch.context() as first:
        if done == 0:
            first.setattr(trainer, "run_steps", stop)  # while the program is compiled
        um.train(NET, "paper", "64 steps", checkpoint=tmp_path / "paper-0_quick.um", progress=stop, **options)
    said = []
    made = Setting(tmp_path, quick=True, say=said.append).model(NET, "paper")
    assert made.history["steps"] == 64
    assert said == [f"training the preset paper, 64 steps, from step {done} on"]
    assert same(made.trunk, whole.trunk)


def test_command_line(capsys, tmp_path):
    code, _, err = run(capsys, "reproduce", "table3")
    assert code == 2
    assert "did you mean" in err
    code, _, err = run(capsys, "reproduce", "table1", "--quick", "--out", str(tmp_path), "--references", str(tmp_path / "none.npz"))
    assert code == 2
    assert "none.npz" in err
    for name in EXPERIMENTS:
        assert f"unimarg reproduce {name} " in (Path(__file__).parent.parent / "papers/universal_marginalizer/README.md").read_text()


def test_proposals_can_be_left_out_but_not_the_papers_betas():
    every = [p.name for p in sampling.asked(Setting(Path("out")))]
    fewer = [p.name for p in sampling.asked(Setting(Path("out"), without=("SUM-IS", "beta 0.1, structure")))]
    assert set(every) - set(fewer) == {"SUM-IS", "beta 0.1, structure"}
    for name in ("beta 0.1", "nonsense"):
        with pytest.raises(UsageError, match="to leave out"):
            sampling.asked(Setting(Path("out"), without=(name,)))


def test_references_by_summing_diseases_out(tmp_path):
    """Against exact answers, by their own errors; another process, because it computes with 64 bits."""
    script, out = Path(__file__).parent.parent / "papers/universal_marginalizer/references.py", tmp_path / "r.npz"
    command = [sys.executable, script, out, "--network", "5", "15", "30", "--sets", "3", "--samples", "30000"]
    subprocess.run(command, check=True, capture_output=True)
    found, net = np.load(out), um.medical(5, 15, 30, seed=7)
    for states, truth, error in zip(found["evidence"], found["truth"], found["std_error"], strict=True):
        exact = np.concatenate(um.exact(net, {net.names[i]: int(k) for i, k in enumerate(states) if k >= 0}).probabilities)
        assert (np.abs(truth - exact) <= 4.5 * error + 1e-9).all()
    assert 1e-7 < found["std_error"].mean() < 1e-4
