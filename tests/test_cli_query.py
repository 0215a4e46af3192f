"""``unimarg query``: every method, errors and trust on the terminal, JSON, pictures; samples of a posterior."""

import csv
import io
import itertools
import json
import math
import signal
import sys

import numpy as np
import pytest

import unimarg as um
from models import ASIA, random_model
from test_cli import run
from unimarg import importance, plots, query, terminal
from unimarg.cli import main
from unimarg.importance import FIRST_CHECK
from unimarg.query import WITH_MODEL, WITHOUT_MODEL

FINDINGS = ("-e", "dysp=yes", "-e", "xray=yes:0.9,no:0.2")
EVIDENCE = {"dysp": "yes", "xray": {"yes": 0.9, "no": 0.2}}


@pytest.fixture(scope="module")
def model_file(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("models") / "asia.um"
    random_model(ASIA, preset="paper", heads=("marginal", "message")).save(path)
    return str(path)


@pytest.mark.parametrize("method", [m for m in WITH_MODEL if m != "um"])
def test_every_method(capsys, model_file, method):
    source = "asia" if method in WITHOUT_MODEL else model_file
    samples = () if method == "exact" else ("--samples", "4096")
    code, out, _ = run(capsys, "query", source, *FINDINGS, "-t", "lung", "--method", method, *samples, "--json")
    answer = json.loads(out)
    assert code == 0
    assert answer["method"] == ("exact" if method == "auto" else method)
    assert answer["evidence"] == EVIDENCE
    truth = um.exact(ASIA, EVIDENCE)["lung"]["yes"]
    assert abs(answer["marginals"]["lung"]["yes"] - truth) <= 4.5 * answer["std_errors"]["lung"]["yes"] + 1e-9
    assert answer["samples"] == (0 if answer["method"] == "exact" else 4096)
    for key in ("status", "message", "log_evidence", "log_evidence_error", "ess", "k_hat", "seconds", "seed"):
        assert key in answer


@pytest.mark.parametrize("words", [("query", "-t", "lung"), ("query", "--joint", "lung"), ("sample", "-n", "9")])
def test_one_question_compiles_nothing_for_others(capsys, monkeypatch, words):
    prepared = []
    monkeypatch.setattr(query, "EXACT_ENTRIES", -1)
    monkeypatch.setattr(query.Asked, "_prepare", lambda self: prepared.append(self))
    command, *rest = words
    code, out, _ = run(capsys, command, "asia", "-e", "dysp=yes", *rest)
    assert code == 0
    assert out
    assert not prepared
    um.infer(um.example("asia"), {"dysp": "yes"})
    assert len(prepared) == 1


def test_the_table_says_how_far_to_trust_it(capsys):
    code, out, _ = run(capsys, "query", "asia", *FINDINGS, "-t", "lung", "--method", "prior", "--samples", "8192")
    post = um.infer(ASIA, EVIDENCE, ["lung"], "prior", samples=8192, target_error=None)
    assert code == 0
    p, error = terminal.with_error(post["lung"]["yes"], post.error("lung")["yes"])
    assert p in out
    assert error in out
    trust = out.splitlines()[-1]
    assert trust.startswith(f"prior, ok, 8,192 samples worth {post.ess:,.0f}, ")
    assert f"log P(evidence) = {' '.join(terminal.with_error(post.log_evidence, post.log_evidence_error))}" in trust
    assert trust.endswith(" ms")


@pytest.mark.parametrize(
    ("p", "error", "shown"),
    [
        (0.123456, 0.0032, ("0.123", "0.003")),
        (0.123456, 0.0013, ("0.1235", "0.0013")),
        (0.123456, 0.00096, ("0.1235", "0.0010")),
        (0.9, 0.3, ("0.9", "0.3")),
        (0.5, 1e-12, ("0.500000", "0.000001")),
        (0.25, 0.0, ("0.2500", "")),
        (0.25, math.nan, ("0.2500", "")),
        (math.nan, math.nan, ("unknown", "")),
    ],
)
def test_digits(p, error, shown):
    assert terminal.digits(p, error) == shown


def test_options_reach_the_engine(capsys, model_file):
    model = um.load_model(model_file)
    arguments = ("query", model_file, *FINDINGS, "-t", "lung", "--method", "hybrid", "--samples", "4096", "--json")
    one = json.loads(run(capsys, *arguments, "--beta", "0.1", "--seed", "3", "--no-structure")[1])
    same = model.query(EVIDENCE, ["lung"], "hybrid", samples=4096, target_error=None, beta=0.1, seed=3, structure=False)
    assert one["marginals"]["lung"] == same["lung"]
    assert one["ess"] == pytest.approx(same.ess)
    assert "did best in a pilot" in json.loads(run(capsys, *arguments, "--beta", "fit")[1])["message"]
    to_target = json.loads(run(capsys, "query", "asia", *FINDINGS, "--method", "prior", "--target-error", "0.02", "--json")[1])
    assert max(max(e.values()) for e in to_target["std_errors"].values()) <= 0.02
    assert to_target["samples"] == FIRST_CHECK
    soon = json.loads(
        run(capsys, "query", "asia", *FINDINGS, "--method", "prior", "--samples", "100000000", "--seconds", "0.01", "--json")[1]
    )
    assert soon["samples"] < 100_000_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--method exact --samples 10", "samples is for methods that draw samples, and 'exact' draws none"),
        ("--method exact --joint lung --seconds 1", "seconds is for methods that draw samples"),
        ("--method um --no-structure", "structure is for methods that draw samples, and 'um' draws none"),
        ("--method prior --beta 0.1", "beta is for the method 'hybrid'"),
        ("--memory 2", "memory is for the method 'exact', and this is 'auto'"),
        ("--explain lung --seconds 3", "--seconds has no effect on --explain"),
        ("--explain lung --memory 2", "--memory has no effect on --explain"),
        ("--most-probable --target-error 0.1", "--target-error has no effect on --most-probable"),
        ("--most-probable --method um", "--method has no effect on --most-probable"),
    ],
)
def test_an_option_without_effect_is_refused(capsys, model_file, options, message):
    code, out, err = run(capsys, "query", model_file, "-e", "dysp=yes", *options.split())
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.parametrize("options", ["--explain lung --target-error 0.005 --seed 3", "--most-probable --seed 3 --target-error 0.005"])
def test_an_option_that_says_nothing_is_not(capsys, model_file, options):
    assert run(capsys, "query", model_file, "-e", "dysp=yes", *options.split())[0] == 0


def test_an_answer_not_to_be_trusted_has_exit_code_1(capsys, tmp_path):
    many = range(20)
    net = um.Network(
        [um.Variable(f"{kind}{i}") for i in many for kind in "cf"],
        {f"f{i}": [f"c{i}"] for i in many},
        {f"c{i}": [0.999, 0.001] for i in many} | {f"f{i}": [[0.9999, 0.0001], [0.1, 0.9]] for i in many},
    )
    um.save(net, tmp_path / "rare.bif")
    findings = [word for i in many for word in ("-e", f"f{i}=yes")]
    code, out, err = run(capsys, "query", str(tmp_path / "rare.bif"), *findings, "--method", "prior", "--samples", "8192")
    assert (code, err) == (1, "")
    assert "prior, failed, 8,192 samples worth" in out
    assert "not to be trusted" in out
    assert run(capsys, "query", str(tmp_path / "rare.bif"), *findings, "-t", "c0")[0] == 0


def test_joint(capsys, model_file):
    truth = um.joint(ASIA, EVIDENCE, ["lung", "bronc"])
    names = ("--joint", "lung", "--joint", "bronc")
    for source in ("asia", model_file):
        code, out, _ = run(capsys, "query", source, *FINDINGS, *names, "--json")
        answer = json.loads(out)
        assert (code, answer["method"], answer["ess"]) == (0, "exact", None)
        assert [c["probability"] for c in answer["combinations"]] == pytest.approx(truth["probability"].tolist())
    code, out, _ = run(capsys, "query", "asia", *FINDINGS, *names, "--method", "prior", "--samples", "8192")
    assert code == 0
    assert "± 0.00" in out
    assert "prior, ok, 8,192 samples worth" in out


def test_most_probable(capsys, model_file):
    expected = um.most_probable(ASIA, EVIDENCE)
    for source in ("asia", model_file):
        answer = json.loads(run(capsys, "query", source, *FINDINGS, "--most-probable", "--json")[1])
        assert answer["assignment"] == expected.assignment
        assert (answer["exact"], answer["log_probability"]) == (True, pytest.approx(expected.log_probability))
    code, out, _ = run(capsys, "query", "asia", *FINDINGS, "--most-probable")
    assert code == 0
    assert "the most probable of all" in out
    assert "dysp" not in out


def test_posterior_samples(capfdbinary):
    with pytest.raises(SystemExit):
        main(["sample", "asia", "-n", "200", "--seed", "4", "-e", "dysp=yes"])
    out, err = capfdbinary.readouterr()
    header, *rows = csv.reader(io.StringIO(out.decode()))
    frame = um.sample_posterior(ASIA, {"dysp": "yes"}, 200, seed=4)
    assert header == list(frame.columns)
    assert rows == frame.to_numpy().tolist()
    assert b"draws, worth" in err
    with pytest.raises(SystemExit):
        main(["sample", "asia", "-n", "200", "--seed", "4", "-e", "dysp=yes", "--indices"])
    numbers = np.loadtxt(io.BytesIO(capfdbinary.readouterr().out), delimiter=",", skiprows=1, dtype=int)
    assert (np.array(ASIA.variables[3].states)[numbers[:, 3]] == frame[ASIA.names[3]].to_numpy()).all()


# --- pictures


def test_plot(capsys, tmp_path):
    for suffix, start in ((".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")):
        path = tmp_path / f"asia{suffix}"
        code, _, _ = run(capsys, "query", "asia", *FINDINGS, "--method", "prior", "--samples", "2000", "--plot", str(path))
        assert code == 0
        assert path.read_bytes().startswith(start)


def test_bars_and_whiskers_are_the_answer():
    post = um.infer(ASIA, EVIDENCE, ["lung", "smoke"], "prior", samples=2000, target_error=None)
    axes = plots.posterior_figure(post).axes[0]
    expected = [p for name in post for p in post[name].values()]
    assert [bar.get_width() for bar in axes.patches] == pytest.approx(expected)
    whiskers = axes.collections[0].get_segments()
    errors = [e for name in post for e in post.error(name).values()]
    assert [s[1][0] - s[0][0] for s in whiskers] == pytest.approx([4 * e for e in errors], rel=1e-3)
    assert {t.get_text() for t in axes.get_yticklabels()} == {"lung", "smoke", "yes", "no"}
    exact = plots.posterior_figure(um.exact(ASIA, EVIDENCE)).axes[0]
    assert not exact.collections  # no whiskers where there is no error


def test_odd_names_and_many_bars_in_a_picture(tmp_path):
    variables = [um.Variable(f"$\\frac{{{i}$\n" + "x" * 100, ("$a_$", "b")) for i in range(300)]
    net = um.Network(variables, {}, {v.name: [0.5, 0.5] for v in variables})
    post = um.exact(net)
    plots.save_posterior(post, list(post), tmp_path / "odd.svg")
    assert "the first 200 of 300 variables" in plots.posterior_figure(post).axes[0].get_title("left")


# --- progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_on_a_terminal_once_it_takes_a_while(monkeypatch):
    for patience, shown in ((0.0, True), (1000.0, False)):
        monkeypatch.setattr(terminal, "PATIENCE", patience)
        stream = Terminal()
        monkeypatch.setattr(sys, "stderr", stream)
        with terminal.sampling_bar(1000, None) as progress:
            assert progress is not None
            progress(500, 1.0)
            progress(900, 2.0)
        assert ("900 samples, 450 a second" in stream.getvalue()) == shown


def test_no_bar_elsewhere(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with terminal.sampling_bar(1000, None) as progress:
        assert progress is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "hybrid"], "needs a trained model"),
        (["--method", "lookahed"], "did you mean 'lookahead'"),
        (["--samples", "0", "--method", "prior"], "number of samples"),
        (["--target-error", "-1", "--method", "prior"], "target_error"),
        (["--target-error", "nan", "--method", "prior"], "target_error"),
        (["--seconds", "0", "--method", "prior"], "seconds"),
        (["--seed", "-1", "--method", "prior"], "seed"),
        (["--beta", "much"], "beta must be a number or 'fit'"),
        (["--plot", "x.jpg"], ".png .svg .pdf"),
        (["--plot", "no/such/x.png"], "there is no folder"),
        (["--plot", "x.png", "--most-probable"], "does not go with"),
        (["--joint", "lungs"], "did you mean 'lung'"),
        (["--joint", "lung", "--method", "um"], "unimarg train asia"),
        (["-e", "xray=yes:0,no:0"], "zero for every state"),
        (["-e", "xray=yes:nan,no:1"], "finite"),
        (["-e", "either=no", "-e", "lung=yes", "--method", "prior"], "impossible"),
        (["-e", "either=no", "-e", "lung=yes", "--most-probable"], "impossible"),
    ],
)
def test_mistakes(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, "query", "asia", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_beta_out_of_range(capsys, model_file):
    code, _, err = run(capsys, "query", model_file, "--method", "hybrid", "--beta", "1.5")
    assert code == 2
    assert "between 0 and 1" in err


def test_json_of_an_answer_that_failed_has_no_undefined_numbers(capsys, tmp_path):
    """b is a, and c says that they differ: no sample is compatible."""
    copy, differ = np.eye(2), np.array([[[1, 0], [0, 1]], [[0, 1], [1, 0]]], dtype=float)
    net = um.Network([um.Variable(v) for v in "abc"], {"b": ["a"], "c": ["a", "b"]}, {"a": [0.5, 0.5], "b": copy, "c": differ})
    um.save(net, tmp_path / "never.bif")
    given = ("query", str(tmp_path / "never.bif"), "-e", "c=yes", "--method", "prior", "--samples", "2000", "--json")
    code, out, _ = run(capsys, *given)
    answer = json.loads(out, parse_constant=pytest.fail)
    assert (code, answer["status"], answer["marginals"]["a"]) == (1, "failed", {"no": None, "yes": None})
    code, out, _ = run(capsys, *given, "--joint", "a", "--joint", "b")
    answer = json.loads(out, parse_constant=pytest.fail)
    assert (code, answer["status"], answer["combinations"][0]["probability"]) == (1, "failed", None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-e", "dysp=yes:0.8"), "names one state alone, which would be certain: give 'yes' itself, or name the others too"),
        (("-e", "disp=yes:0.8"), "there is no variable 'disp'; did you mean 'dysp'?"),
        (("-e", "dysp=yse:0.8"), "'dysp' has no state 'yse'; did you mean 'yes'?"),
        (("-e", "dysp=yes,smoke=no"), "give -e for each"),
        (("-e", "dysp=yes", "smoke=no"), "give -e for each"),
        (("-t", "lung,tub"), "give the option for each"),
    ],
)
@pytest.mark.parametrize("columns", ["60", "200"])
def test_what_reads_like_one_thing_and_is_another(capsys, monkeypatch, words, message, columns):
    monkeypatch.setenv("COLUMNS", columns)
    code, _, err = run(capsys, "query", "asia", *words)
    assert (code, message in unboxed(err)) == (2, True)


def unboxed(err: str) -> str:
    """What a complaint in a box says, however wide the terminal is."""
    return " ".join(err.replace("│", " ").split())


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("query", "asia", "-e", "dysp=yes", "smoke=no"), "give -e for each finding"),
        (("train", "asia", "-o", "a.um", "--option", "rounds=2", "batch=64"), "give the option for each"),
        (("ask", "asia", "-t", "lung", "--cost", "xray=5", "dysp=2"), "give the option for each"),
        (("convert", "asia", "asia.bif", "dysp=yes"), ""),
    ],
)
def test_a_hint_fits_the_verb(capsys, tmp_path, monkeypatch, words, hint):
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, *words)
    assert (code, list(tmp_path.iterdir())) == (2, [])
    _, _, said = unboxed(err).partition(f"({words[-1]})")
    assert said
    assert hint in said
    assert hint or "give" not in said


def test_a_state_by_number_is_told(capsys):
    code, out, err = run(capsys, "query", "asia", "-e", "dysp=1", "-e", "smoke=yes", "-t", "lung", "--json")
    assert (code, err) == (0, "unimarg: note: states by number, from 0: dysp=1 is 'no'\n")
    assert json.loads(out)["evidence"] == {"dysp": "no", "smoke": "yes"}


def test_a_label_that_is_a_number_is_no_state_by_number(capsys, tmp_path):
    um.save(um.Network([um.Variable("x", ("1", "2"))], {}, {"x": [0.5, 0.5]}), tmp_path / "x.bif")
    code, out, err = run(capsys, "query", str(tmp_path / "x.bif"), "-e", "x=1.0", "--json")
    assert (code, err, json.loads(out)["evidence"]) == (0, "", {"x": "1"})


def test_a_file_is_found_without_its_ending(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    um.save(ASIA, "pump.bif")
    assert "did you mean 'pump.bif'?" in run(capsys, "query", "pump")[2]


def test_a_file_elsewhere_is_found_without_its_ending(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    um.save(ASIA, "sub/pump.bif")
    for given in ("sub/pump", str(tmp_path / "sub" / "pump")):
        assert f"did you mean '{given}.bif'?" in run(capsys, "info", given)[2]
    for given in ("nowhere/pump", "/nowhere/pump"):
        code, _, err = run(capsys, "info", given)
        assert (code, f"neither a file nor an example '{given}'" in err) == (2, True)


def test_a_network_is_not_written_over_itself(capsys, tmp_path):
    um.save(ASIA, path := tmp_path / "pump.bif")
    before = path.read_bytes()
    assert "is the file to read: write another one" in run(capsys, "convert", str(path), str(tmp_path / "." / "pump.bif"))[2]
    assert path.read_bytes() == before


def test_one_pass_tells_of_uncertain_findings(model_file):
    model = um.load_model(model_file)
    assert "uncertain findings" in model.query({"dysp": {"yes": 0.9, "no": 0.2}}, method="um").message
    assert "uncertain" not in model.query({"dysp": "yes", "smoke": {"yes": 0.5, "no": 0.5}}, method="um").message


@pytest.mark.parametrize(("virtual", "share"), [(0.0, "none"), (1e-4, "0.01%"), (0.125, "12.5%"), (0.2, "20%"), (1.0, "100%")])
def test_the_share_of_uncertain_findings_is_told_however_small(virtual, share):
    message = random_model(ASIA, virtual=virtual).query({"dysp": {"yes": 0.9, "no": 0.2}}, method="um").message
    assert f", {share} of the findings in training were" in message


def test_a_state_given_twice(capsys):
    code, _, err = run(capsys, "query", "asia", "-e", "dysp=yes:1,yes:0.5")
    assert code == 2
    assert "has 'yes' twice" in err


@pytest.mark.parametrize("question", [("--joint", "bronc"), ("--most-probable",), ("--explain", "bronc")])
def test_targets_do_not_go_with_other_questions(capsys, question):
    code, _, err = run(capsys, "query", "asia", "-e", "dysp=yes", "-t", "lung", *question)
    assert code == 2
    assert "-t asks for marginals" in err


def test_explain_keeps_to_the_memory_it_is_given(capsys):
    code, _, err = run(capsys, "query", "alarm", "-e", "HRBP=HIGH", "--explain", "CO", "--memory", "1e-9")
    assert code == 2
    assert "the budget is" in err
    assert run(capsys, "query", "alarm", "-e", "HRBP=HIGH", "--explain", "CO", "--memory", "1")[0] == 0


def test_version_and_columns_of_samples(capsys):
    code, out, _ = run(capsys, "--version")
    assert (code, out) == (0, f"unimarg {um.__version__}\n")
    code, out, _ = run(capsys, "sample", "asia", "-n", "3", "-t", "lung", "-t", "smoke")
    rows = list(csv.reader(io.StringIO(out)))
    assert (code, rows[0], len(rows)) == (0, ["lung", "smoke"], 4)
    whole = list(csv.DictReader(io.StringIO(run(capsys, "sample", "asia", "-n", "3")[1])))
    assert rows[1:] == [[row["lung"], row["smoke"]] for row in whole]
    assert run(capsys, "sample", "asia", "-t", "lungs")[0] == 2


def test_a_group_stands_for_its_variables(capsys, tmp_path):
    names = {"rain": "weather", "sun": "weather", "wet": "lawn"}
    tables = {"rain": [0.8, 0.2], "sun": [0.5, 0.5], "wet": [[0.9, 0.1], [0.2, 0.8]]}
    net = um.Network([um.Variable(name, group=group) for name, group in names.items()], {"wet": ["rain"]}, tables)
    um.save(net, tmp_path / "lawn.xdsl")
    lawn = str(tmp_path / "lawn.xdsl")
    answer = json.loads(run(capsys, "query", lawn, "-e", "wet=yes", "-t", "weather", "-t", "rain", "--json")[1])
    assert answer["marginals"] == um.exact(net, {"wet": "yes"}, ["rain", "sun"]).to_dict()["marginals"]
    assert run(capsys, "sample", lawn, "-n", "1", "-t", "weather", "-o", str(tmp_path / "a.csv"))[0] == 0
    assert (tmp_path / "a.csv").read_text().startswith("rain,sun\n")
    made = ("train", lawn, "-o", str(tmp_path / "lawn.um"), "--preset", "small", "--budget", "1 steps", "--observable", "weather")
    assert run(capsys, *made)[0] == 0
    assert json.loads(run(capsys, "info", str(tmp_path / "lawn.um"), "--json")[1])["observable"] == ["rain", "sun"]
    for verb in (("query", lawn), ("sample", lawn)):
        code, _, err = run(capsys, *verb, "-t", "weathr")
        assert (code, "neither a variable nor a group 'weathr'; did you mean 'weather'" in err) == (2, True)


def interrupting(monkeypatch, in_round: int, times: int = 1) -> None:
    """Ctrl-C while samples are drawn."""
    advance, count = importance.Estimator._advance, itertools.count(1)

    def advanced(*given):
        advance(*given)
        if next(count) == in_round:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(importance.Estimator, "_advance", advanced)


@pytest.mark.parametrize("question", [("-t", "lung"), ("--joint", "lung"), ("-t", "lung", "--method", "auto")])
def test_ctrl_c_keeps_the_samples_so_far(capsys, monkeypatch, question):
    monkeypatch.setattr(query, "EXACT_ENTRIES", -1)
    handler = signal.getsignal(signal.SIGINT)
    interrupting(monkeypatch, 3)
    code, out, _ = run(capsys, "query", "asia", *FINDINGS, "--method", "lookahead", "--samples", "100000000", *question, "--json")
    answer = json.loads(out)
    assert (code, answer["status"]) == (130, "ok")
    assert 0 < answer["samples"] < 1_000_000
    assert answer["message"].startswith(f"stopped by Ctrl-C after {answer['samples']:,} samples")
    assert signal.getsignal(signal.SIGINT) is handler
    truth = um.exact(ASIA, EVIDENCE)["lung"]["yes"]
    if "--joint" not in question:
        assert abs(answer["marginals"]["lung"]["yes"] - truth) <= 4.5 * answer["std_errors"]["lung"]["yes"]


@pytest.mark.parametrize(("in_round", "times"), [(3, 2), (1, 1)])  # twice, or before there are samples to keep
def test_ctrl_c_ends_at_once(capsys, monkeypatch, in_round, times):
    interrupting(monkeypatch, in_round, times)
    code, out, _ = run(capsys, "query", "asia", *FINDINGS, "--method", "lookahead", "--samples", "100000000")
    assert (code, out) == (130, "")


def test_ctrl_c_is_not_caught_in_python(monkeypatch):
    interrupting(monkeypatch, 3)
    with pytest.raises(KeyboardInterrupt):
        um.infer(ASIA, EVIDENCE, method="lookahead", samples=10**8, target_error=None)
