"""The paper's tables: their scripts run, go on where they stopped, and refuse what does not fit."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import unimarg as um
from unimarg.evaluation import errors, evidence_sets


def script(name: str):
    path = Path(__file__).parent.parent / "papers" / "universal_marginalizer" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


table1 = script("table1")
NET = um.medical(2, 4, 6, seed=7)


def test_table_1_goes_on_where_it_stopped(tmp_path, monkeypatch, capsys):
    out = tmp_path / "table1.csv"
    monkeypatch.setattr(table1, "SETS", 5)
    references = table1.exact_references(NET)
    rows = table1.search(NET, references, "exact", [(8,)], 4, 0, out)
    assert [(r["hidden"], r["encoding"], r["steps"]) for r in rows] == [("8", "two_bit", "4"), ("8", "prior", "4")]
    assert [(r["paper_mae"], r["paper_mean_max"]) for r in rows] == [("0.0063", "0.3425"), ("0.006", "0.3223")]
    assert all(r[c] for r in rows for c in table1.COLUMNS)
    model = um.train(NET, "paper", "4 steps", 0, hidden=(8,), encoding="prior")
    mean, largest = errors(model.marginals_of_states(references[0]), references[1], references[0], NET)
    assert (float(rows[1]["mae"]), float(rows[1]["mean_max"])) == pytest.approx((mean.mean(), largest.mean()), abs=1e-4)

    def never(*_, **__):
        raise AssertionError("trained again")

    with monkeypatch.context() as patch:
        patch.setattr(um, "train", never)
        before = out.read_bytes()
        assert table1.search(NET, references, "exact", [(8,)], 4, 0, out) == rows
        assert out.read_bytes() == before
        with pytest.raises(AssertionError, match="trained again"):  # another seed is another row
            table1.search(NET, references, "exact", [(8,)], 4, 1, out)
    table1.show(rows)
    assert capsys.readouterr().out.count("\n") == 3


def test_quick_is_the_papers_search_on_a_small_network(tmp_path, monkeypatch):
    seen = {}
    monkeypatch.setattr(table1, "search", lambda net, references, source, sizes, steps, seed, out: seen.update(locals()) or [])
    monkeypatch.setattr(table1, "SETS", 3)
    table1.main(["--quick", "--steps", "7", "--out", str(tmp_path / "t.csv")])
    assert (len(seen["net"]), seen["sizes"], seen["steps"]) == (50, [(128,), (256,), (64, 64), (128, 128)], 7)
    assert seen["references"][1].shape == (3, 100)


def test_references_from_a_file(tmp_path):
    evidence = evidence_sets(NET, "clinical", 4, 1).astype(np.int8)
    truth = np.full((4, 24), 0.5)
    np.savez(tmp_path / "good.npz", evidence=evidence, truth=truth)
    found = table1.read_references(str(tmp_path / "good.npz"), NET)
    assert (found[0] == evidence).all()
    assert (found[1] == truth).all()
    np.savez(tmp_path / "short.npz", evidence=evidence[:, 1:], truth=truth)
    np.savez(tmp_path / "other.npz", evidence=evidence)
    (tmp_path / "text.npz").write_text("nothing")
    for name in ("short", "other", "text", "none"):
        with pytest.raises(SystemExit, match=f"{name}.npz"):
            table1.read_references(str(tmp_path / f"{name}.npz"), NET)
