"""``um.evaluate``: metrics by hand, references with an error, rows that are not computed twice, failures that are shown."""

import dataclasses
import json
import math

import numpy as np
import pandas as pd
import pytest

import unimarg as um
from models import ASIA, random_model
from test_cli import run
from unimarg import comparison
from unimarg.bootstrap import interval
from unimarg.comparison import COLUMNS, METRICS, compare, correlation, markdown, methods_of, remarks, summary
from unimarg.errors import FormatError, UsageError
from unimarg.query import Asked
from unimarg.rows import read_rows

CLINIC = um.medical(3, 6, 9, seed=3)
PAIR = um.Network([um.Variable("a", ("x", "y")), um.Variable("b", ("x", "y", "z"))], {}, {"a": [0.5, 0.5], "b": [0.2, 0.3, 0.5]})


def small(source=ASIA, methods=("prior", "lookahead"), sets=3, samples=2048, **options):
    return um.evaluate(source, methods, sets=sets, samples=samples, **options)


def test_metrics_by_hand():
    truth = um.exact(PAIR, {})
    off = (np.array([0.6, 0.4]), np.array([0.2, 0.4, 0.4]))
    errors = (np.array([0.06, 0.06]), np.array([0.0, 0.01, 0.06]))
    post = dataclasses.replace(truth, probabilities=off, std_errors=errors, log_evidence=-0.25, ess=30.0, k_hat=0.4, samples=80)
    found = compare(post, truth, np.array([-1, -1]), PAIR, spent=20)
    expected = {"mae": 0.4 / 5, "max_error": 0.1, "ess_share": 0.3, "k_hat": 0.4, "coverage": 3 / 4, "log_evidence_error": 0.25}
    assert {k: found[k] for k in expected} == pytest.approx(expected)
    unsure = dataclasses.replace(truth, std_errors=(np.full(2, 0.0), np.array([0.0, 0.06, 0.0])))
    assert compare(post, unsure, np.array([-1, -1]), PAIR)["coverage"] == 1.0  # the reference's error counts too
    assert compare(post, truth, np.array([0, -1]), PAIR)["mae"] == pytest.approx(0.2 / 3)
    assert math.isnan(compare(post, truth, np.array([0, 0]), PAIR)["mae"])  # nothing was asked
    assert math.isnan(compare(truth, truth, np.array([-1, -1]), PAIR)["coverage"])


def test_correlation_leaves_out_the_first_states():
    estimate, truth = np.array([0.9, 0.1, 0.2, 0.5, 0.3]), np.array([0.5, 0.5, 0.2, 0.3, 0.5])
    expected = np.corrcoef(estimate[[1, 3, 4]], truth[[1, 3, 4]])[0, 1]
    assert correlation(estimate, truth, np.array([-1, -1]), PAIR) == pytest.approx(expected)
    assert math.isnan(correlation(estimate, truth, np.array([-1, 0]), PAIR))  # of one number there is none


def test_a_row_is_what_a_query_says():
    table = small(methods=("prior", "exact"))
    assert tuple(table.columns) == COLUMNS
    assert list(table["method"]) == ["prior", "exact"] * 3
    exact = table[table["method"] == "exact"]
    assert (exact["mae"] < 1e-12).all()
    prior = table[table["method"] == "prior"]
    assert (prior["samples"] == 2048).all()
    assert ((prior["mae"] > 0) & (prior["mae"] < 0.05)).all()
    assert (table["reference"] == "exact").all()
    assert (table["reference_error"] == 0).all()
    again = small(methods=("prior",))[["set", *METRICS[:-1]]].to_numpy(float)
    np.testing.assert_allclose(again, prior[["set", *METRICS[:-1]]].to_numpy(float), atol=1e-12)  # the references in another order of sums
    assert (small(methods=("prior",), seed=1)["mae"].to_numpy() != prior["mae"].to_numpy()).any()


def test_every_method_of_a_model_and_every_family():
    model = random_model(CLINIC, preset="paper", heads=("marginal", "message"))
    methods = [*methods_of(model), "hybrid:0.5", "hybrid:fit"]
    assert {"um", "sequential", "message", "auto"} <= set(methods)
    families = ["random", "uniform", "leaves", "clinical"]
    table = um.evaluate(model, methods, families, sets=1, samples=512)
    assert (table["status"] != "error").all(), table["message"].unique()
    assert table["mae"].notna().all()
    assert list(dict.fromkeys(table["family"])) == families
    one = table[table["method"] == "um"]
    assert one["ess_share"].isna().all()
    assert one["coverage"].isna().all()
    spent = table.set_index(["method", "family"])["ess_share"]
    assert (spent["adaptive"] < 0.6).all()  # rounds of refitting are drawn too


def test_coverage_is_that_of_honest_errors():
    table = small(CLINIC, ["prior"], sets=20, samples=4096)
    assert table["coverage"].mean() == pytest.approx(0.95, abs=0.05)


def test_rows_in_the_file_are_not_computed_again(tmp_path, monkeypatch):
    file = tmp_path / "rows.csv"
    first = small(file=file)
    before = file.read_bytes()
    assert before.count(b"\n") == 7

    def never(*_):
        raise AssertionError("computed again")

    with monkeypatch.context() as patch:
        patch.setattr(Asked, "by", never)
        again = small(file=file)
        assert file.read_bytes() == before
        for changed in ({"samples": 1024}, {"seed": 7}, {"reference_samples": 5}, {"structure": False}, {"source": CLINIC}, {"sets": 4}):
            with pytest.raises(AssertionError, match="computed again"):
                small(file=file, **changed)
    assert again.equals(first)
    more = small(methods=("prior", "adaptive", "lookahead"), file=file)
    assert more[more["method"] != "adaptive"].reset_index(drop=True).equals(first)
    assert file.read_bytes().startswith(before)


def test_a_line_that_was_cut_off_is_computed_again(tmp_path):
    file = tmp_path / "rows.csv"
    whole = small(file=file)
    text = file.read_bytes()
    file.write_bytes(text[:-40])
    assert len(read_rows(file, COLUMNS)) == 5
    np.testing.assert_allclose(small(file=file)["mae"], whole["mae"], atol=1e-12)
    assert len(read_rows(file, COLUMNS)) == 6
    file.write_bytes(b"netw")
    assert len(small(file=file)) == 6
    file.write_text("a,b\n1,2\n")
    with pytest.raises(FormatError, match=r"rows\.csv"):
        small(file=file)


def test_another_model_is_another_answer(tmp_path):
    file = tmp_path / "rows.csv"
    one = small(random_model(ASIA, 0), ["um"], file=file)
    other = small(random_model(ASIA, 1), ["um"], file=file)
    assert (one["mae"] != other["mae"]).all()
    assert len(read_rows(file, COLUMNS)) == 6


def test_sampled_references_have_an_error_and_random_numbers_of_their_own(monkeypatch):
    monkeypatch.setattr(Asked, "small", lambda self: False)
    table = small(CLINIC, ["lookahead"], sets=2, samples=4096, reference_samples=4096)
    assert (table["reference"] == "lookahead").all()
    assert (table["reference_error"] > 0).all()
    assert (table["reference_max_error"] >= table["reference_error"]).all()
    assert (table["mae"] > 0).all()  # the same random numbers would agree to the last digit
    assert any("lookahead, whose errors are therefore uncertain" in text for text in remarks(table))
    uneven = table.assign(mae=[1e-4, 1.0], reference_error=1e-2)  # the mean alone would hide it
    assert not any("uncertain" in text for text in remarks(uneven.assign(mae=[1.0, 1.0])))
    uneven = pd.concat([uneven, uneven.iloc[:1]])
    assert any("uncertain" in text for text in remarks(uneven))
    long = small(CLINIC, ["lookahead"], sets=2, samples=512, reference_samples=1 << 18)
    assert (long["reference_error"] < 0.2 * table["reference_error"]).all()
    assert not any("uncertain" in text for text in remarks(long))
    stopped = small(CLINIC, ["lookahead"], sets=2, samples=512, reference_samples=1 << 18, reference_error=0.02)
    assert (stopped["reference_max_error"] <= 0.02).all()
    assert (stopped["reference_error"] > long["reference_error"]).all()


def test_what_fails_is_shown_and_does_not_stop_the_run(monkeypatch):
    answer = Asked.by

    def by(self, method):
        if method == "exact":
            raise um.TooExpensiveError("it would need\n9 GiB", 9e9)
        return answer(self, method)

    monkeypatch.setattr(Asked, "by", by)
    table = small(methods=("exact", "prior"))
    failed = table[table["method"] == "exact"]
    assert (failed["status"] == "error").all()
    assert (failed["message"] == "it would need 9 GiB").all()
    assert failed[list(METRICS)].isna().all(axis=None)
    found = summary(table)
    assert list(found["answered"]) == [0] * 5 + [3] * 5
    assert "exact gave no answer for 3 sets: it would need 9 GiB" in list(remarks(table))


def test_summary_by_hand():
    table = small(methods=("prior",)).assign(
        mae=[0.1, 0.2, 0.6], correlation=[0.5, 0.9, 1.0], k_hat=[math.nan, 0.1, 0.2], ess_share=[math.nan] * 3
    )
    found = summary(table).set_index("statistic")
    assert list(found["mae"]) == pytest.approx([0.3, 0.1, 0.6, 0.2, 0.6])  # three sets: the interval is all that there is
    assert list(found["correlation"]) == pytest.approx([0.8, 0.5, 1.0, 0.9, 0.5])
    assert list(found["k_hat"]) == pytest.approx([0.15, 0.1, 0.2, 0.15, 0.2])
    assert found["ess_share"].isna().all()
    lines = markdown(table).splitlines()
    assert lines[0].startswith("| family | method | sets | answered | statistic | mae |")
    assert lines[6].startswith("| random | prior | 3 | 3 | worst | 0.6 |")
    assert len({line.count("|") for line in lines[:7]}) == 1
    assert lines[8] == "- random: references exact 3; mean standard error 0"


def test_intervals_of_the_mean_cover_it():
    """200 times 50 draws of a skewed variable, whose mean is 1; a normal interval of half its width would cover two thirds."""
    rng = np.random.default_rng(0)
    ends = [interval(rng.exponential(size=50)) for _ in range(200)]
    assert 0.89 < np.mean([low <= 1 <= high for low, high in ends]) < 0.98
    assert all(np.isnan(interval([math.nan])))
    assert interval([1.0, 2.0, 9.0], np.median) == (1.0, 9.0)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"methods": ["priour"]}, "did you mean 'prior'"),
        ({"methods": "prior"}, "a list of names"),
        ({"methods": []}, "no method"),
        ({"methods": ["um"]}, "needs a trained model"),
        ({"methods": ["prior:0.5"]}, "hybrid:BETA"),
        ({"methods": ["prior:fit"]}, "hybrid:BETA"),
        ({"methods": ["hybrid:2"]}, "hybrid:BETA"),
        ({"families": ["leafs"]}, "did you mean 'leaves'"),
        ({"sets": 0}, "evidence sets"),
        ({"seed": -1}, "seed"),
        ({"samples": 0}, "samples"),
        ({"reference_samples": 0}, "reference"),
        ({"reference_error": -1}, "target_error|reference_error"),
        ({"beta": 0.5}, "no option 'beta'"),
    ],
)
def test_misuse(given, sentence):
    with pytest.raises(UsageError, match=sentence):
        um.evaluate(ASIA, **given)


def test_what_a_model_cannot_do_is_one_error():
    with pytest.raises(UsageError, match="message head"):
        small(random_model(ASIA), ["message"])


def test_command_line(capsys, tmp_path):
    random_model(ASIA).save(tmp_path / "asia.um")
    files = {kind: tmp_path / f"out.{kind}" for kind in ("csv", "md", "png")}
    command = ("evaluate", str(tmp_path / "asia.um"), "-m", "um", "-m", "prior", "-f", "random", "-f", "leaves", "--sets", "2")
    command += ("--samples", "512", "-o", str(files["csv"]), "--markdown", str(files["md"]), "--plot", str(files["png"]))
    code, out, err = run(capsys, *command)
    assert (code, err) == (0, "")
    assert out.count("median") == 4
    assert "references exact 2" in out
    assert files["md"].read_text().count("| worst |") == 4
    assert files["png"].read_bytes().startswith(b"\x89PNG")
    assert len(read_rows(files["csv"], COLUMNS)) == 8
    code, out, _ = run(capsys, *command[:-2], "--json")
    assert code == 0
    answer = json.loads(out)
    assert [row["statistic"] for row in answer["summary"]] == ["mean", "mean from", "mean to", "median", "worst"] * 4
    assert answer["summary"][0]["coverage"] is None
    for option, name in (("--plot", "out.txt"), ("--markdown", "asia.um"), ("--markdown", "asia.bif"), ("-o", "asia.um")):
        code, _, err = run(capsys, "evaluate", "asia", option, str(tmp_path / name))
        assert code == 2
        assert "suffixes" in err


@pytest.mark.parametrize("content", [b"a model", b"a model\nof two lines"])
def test_a_file_of_another_kind_stays_as_it_is(tmp_path, content):
    (tmp_path / "rows").write_bytes(content)
    with pytest.raises(FormatError, match="give another"):
        small(file=tmp_path / "rows")
    assert (tmp_path / "rows").read_bytes() == content


def test_progress():
    told = []
    small(progress=lambda *now: told.append(now))
    assert told[0] == (0, 6, "random, set 1: reference")
    assert told[1] == (1, 6, "random, set 1: lookahead")
    assert told[-1] == (6, 6, "")
    assert comparison.SETS >= 50
