"""Tables of any size: what cells mean, bad rows, files in and out, and a run that was killed."""

import csv
import gzip
import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest

import unimarg as um
from models import ASIA, random_model
from test_cli import run
from unimarg import EvidenceError, FormatError, Network, UsageError, Variable
from unimarg.bulk import scoring as module
from unimarg.bulk.source import Batch, by_number, open_source, states_of
from unimarg.inference import answer
from unimarg.masking import observable

score = um.score
ALARM, MODEL = um.example("alarm"), random_model(ASIA)
HEADER = "dysp,smoke,lung"
NET = Network(
    [Variable("a"), Variable("b", ("NA", "None", "nan")), Variable("c", ("1", "2", "3"))],
    {},
    {"a": [0.5, 0.5], "b": [0.2, 0.3, 0.5], "c": [0.2, 0.3, 0.5]},
)


def table(folder: Path, text: str, name: str = "rows.csv") -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def frame(rows: int, seed: int = 0) -> pd.DataFrame:
    """Ragged rows, possible ones: findings of samples, here and there left out."""
    rng = np.random.default_rng(seed)
    states = um.sample(ASIA, rows, seed=seed)
    out = pd.DataFrame({v.name: np.array(v.states)[states[:, i]] for i, v in enumerate(ASIA.variables)}).astype(object)
    return out.mask(rng.random(out.shape) < 0.7)


def test_states_by_number_are_told_on_the_command_line(tmp_path, capsys):
    out = str(tmp_path / "out.csv")

    def told(text: str, net: str = "asia", *more: str) -> str:
        code, _, err = run(capsys, "score", net, str(table(tmp_path, text)), "-o", out, *more)
        assert code == 0
        return err

    note = "unimarg: note: states by number, from 0: in column 'dysp' 1 is 'no'"
    assert told("dysp,smoke\n,yes\n1,no\n0,yes\n") == f"{note}\n"
    names = "dysp,smoke,xray,lung,tub"
    assert told(f"{names}\n{',,,,'}\n1,0,1,1,1\n") == f"{note}, in column 'smoke' 0 is 'yes', in column 'xray' 1 is 'no' and 2 more\n"
    assert told("dysp,smoke\nyes,no\n,\n") == told("dysp\n") == ""
    assert told("id,dysp\n1,yes\n", "asia", "--keep", "id") == ""
    um.save(NET, tmp_path / "net.bif")
    assert told("c,b\n1,NA\n2.0,nan\n", str(tmp_path / "net.bif")) == ""
    score(ASIA, table(tmp_path, "dysp\n1\n"), out)
    assert capsys.readouterr().err == ""


def test_cells_of_a_parquet_file_by_number():
    batch = Batch([[None, 1, 0], [True, False, None], [float("nan"), 0.0, 1.0], [1, 2, 3]], [])
    net = Network(
        [Variable("a"), Variable("t", ("false", "true")), Variable("f"), Variable("c", ("1", "2", "3"))],
        {},
        {name: [0.5, 0.5] for name in "atf"} | {"c": [0.2, 0.3, 0.5]},
    )
    assert by_number(net, list("atfc"), batch) == {"a": "1 is 'yes'", "f": "0.0 is 'no'"}


def test_what_cells_mean(tmp_path):
    """Only an empty cell is unobserved; a number is a state's, unless labels are numbers."""
    path = table(tmp_path, "a,b,c\nyes,NA,1\n,None,\n0,nan,3\n1.0,2,2.0\nyes,NA,0\n2,NA,1\n")
    (batch,) = open_source(path).batches(10, 0)
    states, wrong = states_of(NET, ["a", "b", "c"], batch)
    assert states[:4].tolist() == [[1, 0, 0], [-1, 1, -1], [0, 2, 2], [1, 2, 1]]
    assert sorted(wrong) == [4, 5]
    assert wrong[4].startswith("'c' has no state '0': some of its labels are numbers")
    assert wrong[5] == "'a' has no state '2'; allowed: 'no', 'yes'"
    assert list(batch.lines) == [2, 3, 4, 5, 6, 7]


def test_a_row_of_one_cell(tmp_path):
    (batch,) = open_source(table(tmp_path, "a,b,c\nyes\nyes,NA\n")).batches(10, 0)
    assert batch.wrong == {0: "has 1 cell, the first line 3", 1: "has 2 cells, the first line 3"}


def test_what_cells_of_numbers_mean():
    states, wrong = states_of(NET, ["a"], Batch([[1, 1.0, True, 0, None, float("nan")]], []))  # 1, 1.0 and True are one key of a dictionary
    assert (states[:, 0].tolist(), list(wrong)) == ([1, 1, -1, 0, -1, -1], [2])
    states, wrong = states_of(NET, ["c"], Batch([[3, 3.0, 1, 0, None]], []))
    assert (states[:, 2].tolist(), list(wrong)) == ([2, 2, -1, -1, -1], [2, 3])
    assert "could be the state labelled '1' or state number 1" in wrong[2]
    assert "some of its labels are numbers" in wrong[3]


def test_bytes_that_are_no_text_are_set_aside_and_never_mixed_up(tmp_path):
    """Two names that differ in such a byte were one."""
    (tmp_path / "rows.csv").write_bytes("id,dysp\nM\xfcller,yes\nM\xf6ller,no\n".encode("latin-1") + "Möller,yes\n".encode())
    done = score(ASIA, tmp_path / "rows.csv", tmp_path / "out.csv", ["lung"], keep=["id"], errors=tmp_path / "bad.csv")
    assert (done.rows, done.bad) == (3, 2)
    assert (tmp_path / "out.csv").read_text().splitlines()[1].startswith("2,Möller,")
    bad = (tmp_path / "bad.csv").read_text().splitlines()
    assert bad[1] == "0,2,is not UTF-8 text: save the file in that encoding,M\\xfcller,yes"
    (tmp_path / "rows.csv").write_bytes("m\xfcller\nyes\n".encode("latin-1"))
    with pytest.raises(FormatError, match="names of the columns are not UTF-8"):
        score(ASIA, tmp_path / "rows.csv", tmp_path / "out.csv", ["lung"])


@pytest.mark.parametrize(
    ("suffix_in", "suffix_out"), [(".csv", ".csv"), (".csv.gz", ".csv.gz"), (".parquet", ".csv"), (".csv", ".parquet")]
)
def test_every_row_is_that_of_predict_proba(tmp_path, monkeypatch, suffix_in, suffix_out):
    monkeypatch.setattr(module, "MOST", 64)
    monkeypatch.setattr(module, "FEWEST", 64)
    rows = frame(150)
    rows.insert(0, "id", [f"p{n}" for n in range(150)])
    source, output = tmp_path / f"rows{suffix_in}", tmp_path / f"out{suffix_out}"
    rows.to_parquet(source) if suffix_in == ".parquet" else rows.to_csv(source, index=False)
    done = score(MODEL, source, output, ["lung", "bronc"], keep=["id"])  # in the order asked for
    assert (done.rows, done.bad, done.resumed) == (150, 0, 0)
    found = pd.read_parquet(output) if suffix_out == ".parquet" else pd.read_csv(output)
    assert list(found.columns) == ["row", "id", "lung=yes", "lung=no", "bronc=yes", "bronc=no"]
    assert list(found["row"]) == list(range(150))
    assert list(found["id"]) == list(rows["id"])
    expected = MODEL.predict_proba(rows.drop(columns="id"))[["lung", "bronc"]]
    np.testing.assert_allclose(found.iloc[:, 2:].to_numpy(), expected.to_numpy(), atol=2e-6)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([source.name, output.name])


def test_parquet_keeps_numbers_of_states_types_and_nulls(tmp_path):
    rows = pd.DataFrame({"id": [7, 8, 9], "dysp": pd.array([0, None, 1], "Int64"), "smoke": pd.Categorical(["yes", None, "no"])})
    rows["lung"] = [None, None, None]
    rows.to_parquet(tmp_path / "rows.parquet")
    score(MODEL, tmp_path / "rows.parquet", tmp_path / "out.parquet", ["tub"], keep=["id"])
    found = pd.read_parquet(tmp_path / "out.parquet")
    assert found["id"].dtype == np.int64
    assert found["tub=yes"].dtype == np.float32
    for row, evidence in enumerate([{"dysp": "yes", "smoke": "yes"}, {}, {"dysp": "no", "smoke": "no"}]):
        assert found["tub=yes"][row] == pytest.approx(MODEL.query(evidence, method="um")["tub"]["yes"], abs=1e-6)


BAD = f"{HEADER}\nyes,,\nmaybe,,\nyes,no\n\nyes,no,no,extra\n,,\n"


def test_bad_rows_are_set_aside_with_their_line(tmp_path):
    path = table(tmp_path, 'dysp,either,lung\nyes,,\nmaybe,,\nyes,no\n\nyes,no,no,extra\n,,\n"no\n",,\n,no,yes\nno,,\n')
    done = score(MODEL, path, tmp_path / "out.csv", ["tub"], errors=tmp_path / "bad.csv")
    assert (done.rows, done.bad) == (8, 5)
    assert list(pd.read_csv(tmp_path / "out.csv")["row"]) == [0, 4, 7]
    bad = list(csv.DictReader(io.StringIO((tmp_path / "bad.csv").read_text(), newline="")))
    assert [(b["row"], b["line"]) for b in bad] == [("1", "3"), ("2", "4"), ("3", "6"), ("5", "8"), ("6", "10")]
    assert "'dysp' has no state 'maybe'" in bad[0]["reason"]
    assert "has 2 cells, the first line 3" in bad[1]["reason"]
    assert "beyond them: 'extra'" in bad[2]["reason"]
    assert "impossible" in bad[4]["reason"]
    assert (bad[4]["either"], bad[4]["lung"], bad[3]["dysp"]) == ("no", "yes", "no\n")


def test_without_a_place_for_them_a_bad_row_ends_the_run(tmp_path):
    with pytest.raises(EvidenceError, match=r"rows\.csv: line 3: 'dysp' has no state 'maybe'"):
        score(MODEL, table(tmp_path, BAD), tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


def test_auto_row_by_row_with_an_error(tmp_path):
    path = table(tmp_path, "dysp,either,lung\nyes,,\n,no,yes\n,,\n")
    score(MODEL, path, tmp_path / "out.csv", ["tub"], method="auto", errors=tmp_path / "bad.csv")
    found = pd.read_csv(tmp_path / "out.csv")
    assert list(found["row"]) == [0, 2]
    assert found["tub=yes"][0] == pytest.approx(um.exact(ASIA, {"dysp": "yes"})["tub"]["yes"], rel=1e-5)
    assert (found["method"][0], found["status"][0], found["largest_error"][0]) == ("exact", "ok", 0)
    assert "impossible" in (tmp_path / "bad.csv").read_text()


def test_equal_rows_are_answered_once(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("unimarg.inference.answer", lambda *given: asked.append(given[2]) or answer(*given))
    score(
        ASIA, table(tmp_path, "dysp,either,lung\nyes,,\n,no,yes\nyes,,\nno,,\n,no,yes\n"), tmp_path / "out.csv", errors=tmp_path / "bad.csv"
    )
    assert asked == [{"dysp": "yes"}, {"either": "no", "lung": "yes"}, {"dysp": "no"}]
    found = pd.read_csv(tmp_path / "out.csv")
    assert list(found["row"]) == [0, 2, 3]
    assert found["bronc=yes"][0] == found["bronc=yes"][1] != found["bronc=yes"][2]
    assert (tmp_path / "bad.csv").read_text().count("impossible") == 2


def test_a_network_needs_no_model(tmp_path):
    """By auto unless told; alike by exact, and for an object of pyAgrum."""
    rows = frame(40)
    rows.loc[7, ["either", "lung"]] = ["no", "yes"]  # which is impossible
    rows.loc[9, "dysp"] = "maybe"
    rows.insert(0, "id", range(40))
    rows.to_csv(tmp_path / "rows.csv", index=False)
    for number, (source, options) in enumerate(
        [(ASIA, {}), (um.to_pyagrum(ASIA), {}), (ASIA, {"method": "exact"}), (MODEL, {"method": "exact"})]
    ):
        output = tmp_path / f"out{number}.csv"
        done = score(source, tmp_path / "rows.csv", output, ["lung"], keep=["id"], errors=tmp_path / "bad.csv", **options)
        assert (done.rows, done.bad, done.doubtful) == (40, 2, 0)
        bad = pd.read_csv(tmp_path / "bad.csv")
        assert list(bad["line"]) == [9, 11]
        assert "impossible" in bad["reason"][0]
        found = pd.read_csv(output)
        assert set(found["method"]) == {"exact"}
        for row, p in zip(found["id"], found["lung=yes"], strict=True):
            evidence = rows.drop(columns="id").loc[row].dropna().to_dict()
            assert p == pytest.approx(um.exact(ASIA, evidence)["lung"]["yes"], rel=1e-5)


def test_a_row_that_is_too_expensive_is_set_aside(tmp_path, monkeypatch):
    """And the reason says what can be done about it here."""
    monkeypatch.setattr(sys.modules["unimarg.exact"], "DEFAULT_MEMORY", 700)
    path = table(tmp_path, f"{','.join(ALARM.names)}\n{',' * 36}\n{','.join('0' * 37)}\n")
    done = score(ALARM, path, tmp_path / "out.csv", ["HR"], method="exact", errors=tmp_path / "bad.csv")
    assert (done.rows, done.bad) == (2, 1)
    (bad,) = csv.DictReader(io.StringIO((tmp_path / "bad.csv").read_text(), newline=""))
    assert bad["line"] == "2"
    assert bad["reason"].startswith("the exact answer needs about ")
    assert bad["reason"].endswith("the budget is 700 B; use the method auto")


def test_no_rows(tmp_path):
    for suffix in (".csv", ".parquet"):
        assert score(MODEL, table(tmp_path, f"{HEADER}\n"), tmp_path / f"out{suffix}", ["tub"]).rows == 0
    assert (tmp_path / "out.csv").read_text() == "row,tub=yes,tub=no\n"
    assert list(pd.read_parquet(tmp_path / "out.parquet").columns) == ["row", "tub=yes", "tub=no"]


@pytest.mark.parametrize(
    ("text", "options", "error", "message"),
    [
        ("", {}, FormatError, "is empty"),
        ("id,dysp\n1,yes\n", {}, UsageError, "column 'id' is no variable .*--keep"),
        ("dysp,dysp\n", {}, UsageError, "'dysp' is there twice"),
        (HEADER, {"keep": ["id"]}, UsageError, "no column 'id' to keep"),
        (HEADER, {"keep": "dysp"}, UsageError, "give a list of names"),
        ("dysp;smoke\nyes;no\n", {}, UsageError, "column 'dysp;smoke' is no .*separated by ';': that must be commas$"),
        ('"id"\t"smoke"\n1\tno\n', {"keep": ["id"]}, UsageError, r"separated by '\\t'"),
        ("ill;well\n", {}, UsageError, "allowed: .*--keep"),
        (HEADER, {"method": "prior"}, UsageError, "^a table is scored by one of the methods um, auto, exact, not 'prior'"),
        (HEADER, {"targets": ["lunge"]}, UsageError, "did you mean 'lung'"),
        (HEADER, {"targets": [], "method": "exact"}, UsageError, "there is no target to score"),
        (HEADER, {"output": "out.xlsx"}, UsageError, "one of the suffixes .csv"),
        (HEADER, {"output": "no/such/out.csv"}, FormatError, "there is no folder"),
        (HEADER, {"errors": "no/such/bad.csv"}, FormatError, "there is no folder"),
        (f'{HEADER}\n"{"x" * 200_000}\n', {}, FormatError, "rows.csv:2: cannot be read on"),
    ],
)
def test_what_is_refused(tmp_path, text, options, error, message):
    output = tmp_path / options.pop("output", "out.csv")
    with pytest.raises(error, match=message):
        score(MODEL, table(tmp_path, text), output, **options)
    assert not output.exists()


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("asia.um", {}, "needs a trained model or a network, not a name; unimarg.load_model or unimarg.load reads 'asia.um'"),
        (None, {}, "this needs a Network"),
        (ASIA, {"method": "um"}, "^without a trained model a table is scored by one of the methods auto, exact, not 'um'"),
    ],
)
def test_what_is_no_model(tmp_path, source, options, message):
    with pytest.raises(UsageError, match=message):
        score(source, table(tmp_path, HEADER), tmp_path / "out.csv", **options)


@pytest.mark.parametrize("name", ["asia.um", "asia.bif", "link.csv"])
def test_errors_replace_no_other_file(tmp_path, name):
    path = tmp_path / name
    (tmp_path / "asia.um").write_bytes(b"a model")
    (tmp_path / "asia.bif").write_bytes(b"a model")
    (tmp_path / "link.csv").symlink_to("asia.um")
    with pytest.raises(UsageError, match=r"one of the suffixes \.csv \.csv\.gz, not to 'asia"):
        score(MODEL, table(tmp_path, f"{HEADER}\nyes,,\n"), tmp_path / "out.csv", errors=path)
    assert path.read_bytes() == b"a model"


def test_files_that_are_none(tmp_path):
    for name in ("rows.parquet", "rows.csv.gz", "rows.xlsx"):
        (tmp_path / name).write_bytes(b"nonsense")
        with pytest.raises(FormatError):
            score(MODEL, tmp_path / name, tmp_path / "out.csv")
    pd.DataFrame({"dysp": [["yes"]]}).to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(FormatError, match="'dysp' holds list"):
        score(MODEL, tmp_path / "rows.parquet", tmp_path / "out.csv")
    with pytest.raises(OSError, match="missing"):
        score(MODEL, tmp_path / "missing.csv", tmp_path / "out.csv")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_run_goes_on_where_it_stopped(tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(module, "MOST", 64)
    monkeypatch.setattr(module, "FEWEST", 64)
    rows = frame(300).astype(object)
    rows.loc[70, "dysp"] = "maybe"
    rows.to_csv(tmp_path / "rows.csv", index=False)
    arguments = (MODEL, tmp_path / "rows.csv")
    score(*arguments, tmp_path / f"whole{suffix}", errors=tmp_path / "whole_bad.csv")

    class StopError(Exception):
        pass

    def stop(rows: int, share: float) -> None:
        if rows > 100:
            raise StopError

    output, bad = tmp_path / f"out{suffix}", tmp_path / "bad.csv"
    with pytest.raises(StopError):
        score(*arguments, output, errors=bad, progress=stop)
    assert not output.exists()
    with pytest.raises(UsageError, match="another input, model or option"):
        score(*arguments, output, ["lung"], errors=bad)
    done = score(*arguments, output, errors=bad)
    assert (done.rows, done.resumed, done.bad) == (300, 64, 1)  # two parts were there; the last one is made again
    assert output.read_bytes() == (tmp_path / f"whole{suffix}").read_bytes()
    assert bad.read_text() == (tmp_path / "whole_bad.csv").read_text()
    assert not (tmp_path / f"out{suffix}.parts").exists()


def test_a_run_of_a_network_goes_on_with_that_network_only(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ONE_BY_ONE", 4)
    monkeypatch.setattr(module, "MOST", 4)
    frame(10).to_csv(tmp_path / "rows.csv", index=False)

    def stop(rows: int, share: float) -> None:
        if rows == 8:
            raise KeyboardInterrupt

    files = tmp_path / "rows.csv", tmp_path / "out.csv", ["lung"]
    with pytest.raises(KeyboardInterrupt):
        score(ASIA, *files, progress=stop)
    other = Network(
        ASIA.variables,
        {v.name: [ASIA.names[p] for p in parents] for v, parents in zip(ASIA.variables, ASIA.parents, strict=True)},
        dict(zip(ASIA.names, ASIA.mechanisms, strict=True)) | {"smoke": [0.4, 0.6]},
        ASIA.name,
    )
    with pytest.raises(UsageError, match="another input, model or option"):
        score(other, *files)
    assert score(ASIA, *files).resumed == 4
    assert list(pd.read_csv(tmp_path / "out.csv")["row"]) == list(range(10))


def test_a_large_table_comes_in_a_thousand_parts(tmp_path):
    """Row by row too, and a part without errors is one file."""
    rows = 200_000
    line = ",".join(["yes"] * len(ASIA)) + "\n"
    (tmp_path / "rows.csv").write_text(",".join(ASIA.names) + "\n" + line * rows)
    seen: list[int] = []

    def stop(done: int, share: float) -> None:
        seen.append(done)
        if len(seen) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        score(ASIA, tmp_path / "rows.csv", tmp_path / "out.csv", ["lung"], progress=stop)
    assert 150 < seen[0] < 300
    assert seen == [seen[0] * n for n in (1, 2, 3)]
    folder = tmp_path / "out.csv.parts"
    assert sorted(file.name for file in folder.iterdir()) == [*(f"{n:06}.csv" for n in range(3)), "job.json"]
    # a run whose parts are of another size goes on with these
    job = json.loads((folder / "job.json").read_text())
    assert job["rows"] == seen[0]
    for n in range(3):
        (folder / f"{n:06}.csv").write_text("".join(f"{10 * n + r},0.5,0.5,exact,ok,0.0\n" for r in range(10)))
    (folder / "job.json").write_text(json.dumps(job | {"rows": 10}, indent=1, sort_keys=True))
    seen.clear()
    with pytest.raises(KeyboardInterrupt):
        score(ASIA, tmp_path / "rows.csv", tmp_path / "out.csv", ["lung"], progress=stop)
    assert seen == [30, 40, 50]


def test_errors_of_a_run_that_was_killed_are_not_those_of_the_next(tmp_path):
    frame(10).to_csv(tmp_path / "rows.csv", index=False)
    bad = tmp_path / "bad.csv"
    folder = tmp_path / "out.csv.parts"
    folder.mkdir()
    (folder / "job.json").write_text("{}")
    (folder / "000000.errors.csv").write_text("3,5,another reason\n")
    assert score(ASIA, tmp_path / "rows.csv", tmp_path / "out.csv", ["lung"], errors=bad).bad == 0
    assert len(bad.read_text().splitlines()) == 1


def test_a_run_of_a_model_goes_on_with_that_model_only(tmp_path, monkeypatch):
    """Its student and its network's tables count too, since auto and exact answer by them."""
    monkeypatch.setattr(module, "ONE_BY_ONE", 4)
    monkeypatch.setattr(module, "MOST", 4)
    frame(10).to_csv(tmp_path / "rows.csv", index=False)
    model = random_model(ASIA, preset="default", hidden=(4,), student=2)
    parents = {v.name: [ASIA.names[p] for p in pa] for v, pa in zip(ASIA.variables, ASIA.parents, strict=True)}
    tables = dict(zip(ASIA.names, ASIA.mechanisms, strict=True)) | {"smoke": [0.4, 0.6]}
    others = [
        replace(model, net=Network(ASIA.variables, parents, tables, ASIA.name)),
        replace(model, student=jax.tree.map(lambda a: a + 1, model.student)),
        replace(model, priors=MODEL.priors[::-1]),
    ]

    def stop(rows: int, share: float) -> None:
        raise KeyboardInterrupt

    def again(source) -> None:
        score(source, tmp_path / "rows.csv", tmp_path / "out.csv", ["lung"], method="exact", progress=stop)

    with pytest.raises(KeyboardInterrupt):
        again(model)
    for other in others:
        with pytest.raises(UsageError, match="another input, model or option"):
            again(other)
    with pytest.raises(KeyboardInterrupt):
        again(model)


def test_the_advice_after_a_bad_row_can_be_followed(tmp_path, monkeypatch):
    """A run that came to nothing is not in the way of the next; one that has finished parts goes on with a file for errors."""
    good, wrong = "yes,no,\n", "maybe,no,\n"
    files = tmp_path / "rows.csv", tmp_path / "out.csv"
    table(tmp_path, f"{HEADER}\n{wrong}")
    with pytest.raises(EvidenceError, match="--errors"):
        score(MODEL, *files, ["tub"])
    assert not (tmp_path / "out.csv.parts").exists()
    (tmp_path / "out.csv.parts").mkdir()
    (tmp_path / "out.csv.parts" / "job.json").write_text("{}")  # of a run that was killed before its first part
    assert score(MODEL, *files, ["tub"], errors=tmp_path / "bad.csv").bad == 1
    monkeypatch.setattr(module, "ONE_BY_ONE", 4)
    monkeypatch.setattr(module, "MOST", 4)
    monkeypatch.setattr(module, "FEWEST", 4)
    table(tmp_path, f"{HEADER}\n{good * 9}{wrong}")
    with pytest.raises(EvidenceError, match=r"line 11: .*--errors"):
        score(MODEL, *files, ["tub"])
    done = score(MODEL, *files, ["tub"], errors=tmp_path / "bad.csv")
    assert (done.rows, done.bad, done.resumed) == (10, 1, 4)


def test_a_run_that_stopped_while_the_parts_were_joined(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST", 64)
    monkeypatch.setattr(module, "FEWEST", 64)
    frame(100).to_csv(tmp_path / "rows.csv", index=False)
    with monkeypatch.context() as patch:
        patch.setattr(module.Parts, "join", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            score(MODEL, tmp_path / "rows.csv", tmp_path / "out.csv", ["lung"])
    done = score(MODEL, tmp_path / "rows.csv", tmp_path / "out.csv", ["lung"])
    assert (done.rows, done.resumed) == (100, 64)
    assert list(pd.read_csv(tmp_path / "out.csv")["row"]) == list(range(100))


def test_kill_minus_nine(tmp_path, capsys):
    """No row lost, none doubled."""
    MODEL.save(tmp_path / "asia.um")
    frame(20_000).to_csv(tmp_path / "rows.csv", index=False)
    program = "import sys, unimarg.bulk.scoring as s; s.MOST = s.FEWEST = 64\nfrom unimarg.cli import main; main(sys.argv[1:])"
    arguments = ["score", "asia.um", "rows.csv", "-o", "out.csv", "--errors", "bad.csv"]
    folder = tmp_path / "out.csv.parts"
    process = subprocess.Popen([sys.executable, "-c", program, *arguments], cwd=tmp_path)
    while process.poll() is None and not (folder / "000020.csv").exists():
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "out.csv").exists()
    subprocess.run([sys.executable, "-c", program, *arguments], cwd=tmp_path, check=True)
    found = pd.read_csv(tmp_path / "out.csv")
    assert list(found["row"]) == list(range(20_000))
    code, out, _ = run(capsys, "score", str(tmp_path / "asia.um"), str(tmp_path / "rows.csv"), "-o", str(tmp_path / "whole.csv"), "--json")
    assert (code, json.loads(out)["rows"]) == (0, 20_000)
    np.testing.assert_allclose(found.to_numpy(), pd.read_csv(tmp_path / "whole.csv").to_numpy(), atol=2e-6)


def test_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    MODEL.save("asia.um")
    table(tmp_path, BAD)
    code, out, err = run(capsys, "score", "asia.um", "rows.csv", "-o", "out.parquet", "-t", "lung", "--errors", "bad.csv")
    assert (code, err) == (0, "")
    assert out.startswith("out.parquet: 5 rows, 3 of them bad, see bad.csv, ")
    code, out, _ = run(capsys, "score", "asia", "rows.csv", "-o", "exact.csv", "-t", "lung", "--method", "exact", "--errors", "bad.csv")
    assert (code, out.startswith("exact.csv: 5 rows, 3 of them bad, see bad.csv, ")) == (0, True)
    (tmp_path / "all.csv").write_text("dysp\nmaybe\n")
    assert run(capsys, "score", "asia", "all.csv", "-o", "none.csv", "--errors", "bad.csv")[0] == 1
    for arguments, message in [
        (("asia", "rows.csv", "--method", "um"), "unimarg train asia"),
        (("asia", "rows.csv"), "line 3: 'dysp' has no state 'maybe'"),
        (("asiaa", "rows.csv"), "did you mean 'asia'"),
        (("asia.um", "rows.csv"), "line 3: 'dysp' has no state 'maybe'"),
        (("asia.um", "missing.csv"), "missing.csv"),
    ]:
        code, _, err = run(capsys, "score", *arguments, "-o", "other.csv")
        assert (code, err.count("\n")) == (2, 1)
        assert message in err


def test_parquet_without_pyarrow_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    path = table(tmp_path, f"{HEADER}\nyes,,\n")
    with pytest.raises(UsageError, match=r"pyarrow \(the extra 'parquet'\) is needed"):
        score(MODEL, path, tmp_path / "out.parquet")
    with pytest.raises(UsageError, match="pyarrow"):
        score(MODEL, tmp_path / "rows.parquet", tmp_path / "out.csv")
    assert score(MODEL, path, tmp_path / "out.csv").rows == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.csv", "rows.csv"]


def test_nothing_is_written_over_the_input(tmp_path):
    path = table(tmp_path, f"{HEADER}\nyes,,\n")
    for options in ({"output": path}, {"output": tmp_path / "out.csv", "errors": path}):
        with pytest.raises(UsageError, match="must be different files"):
            score(MODEL, path, **options)
    assert path.read_text() == f"{HEADER}\nyes,,\n"


def test_findings_that_training_never_showed(tmp_path, capsys):
    random_model(ASIA, mask=observable(ASIA, ["dysp", "smoke"])).save(tmp_path / "asia.um")
    text = "dysp,smoke,xray,either,lung\nyes,no,yes,,\nyes,,,,\n,,,no,yes\n,yes,,yes,\n"
    common = ("score", str(tmp_path / "asia.um"), str(table(tmp_path, text)), "--errors", str(tmp_path / "bad.csv"), "-o")
    code, out, err = run(capsys, *common, str(tmp_path / "out.csv"), "--json")
    assert (code, json.loads(out)["doubtful"], json.loads(out)["bad"]) == (0, 2, 1)
    told = "2 rows are not to be trusted: training never showed a finding on 'either', 'xray', use another method"
    assert err == f"unimarg: note: {told}\n"
    code, out, err = run(capsys, *common, str(tmp_path / "auto.csv"), "--method", "auto", "--json")
    assert (code, json.loads(out)["doubtful"], err) == (0, 0, "")
