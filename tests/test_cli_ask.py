"""``unimarg ask`` with answers from a pipe, and ``unimarg query --explain``."""

import io
import json
import re

import pytest

import unimarg as um
from models import ASIA, random_model
from test_cli import run
from unimarg.masking import observable


@pytest.fixture
def ask(capsys, monkeypatch):
    def interview(*arguments: str, answers: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(answers))
        return run(capsys, "ask", *arguments)

    return interview


def asked(out: str) -> list[str]:
    return re.findall(r"^(\S+)\? expected to tell", out, flags=re.M)


def lung(out: str) -> list[str]:
    """What the bars said of it, time after time."""
    return re.findall(r"^lung +yes +([\d.]+)", out, flags=re.M)


def exact(**evidence: str) -> str:
    return f"{um.exact(ASIA, evidence)['lung']['yes']:.4f}"


def test_an_interview_asks_the_best_and_shows_the_answer(ask):
    code, out, _ = ask("asia", "-t", "lung", "-t", "tub", "-e", "dysp=yes", answers="0\nno\nq\n")
    assert code == 0
    first = um.next_questions(ASIA, {"dysp": "yes"}, ["lung", "tub"])["variable"].iloc[0]
    second = um.next_questions(ASIA, {"dysp": "yes", first: "yes"}, ["lung", "tub"])["variable"].iloc[0]
    assert asked(out)[:2] == [first, second] == ["either", "smoke"]
    assert lung(out) == [exact(dysp="yes"), exact(dysp="yes", either="yes"), exact(dysp="yes", either="yes", smoke="no")]
    assert out.splitlines()[-1] == "known: dysp=yes, either=yes, smoke=no"


def test_skip_undo_another_finding_and_the_end_of_the_pipe(ask):
    code, out, _ = ask("asia", "-t", "lung", answers="s\n1\nu\nu\nxray=yes\n")
    assert code == 0
    assert asked(out) == ["either", "xray", "xray", "either", "either"]  # either skipped, xray=no leaves nothing, undone, undone
    assert lung(out) == [exact(), exact(xray="no"), exact(), exact(), exact(xray="yes")]
    assert out.splitlines()[-1] == "known: xray=yes"


def test_a_finding_that_training_never_showed_is_doubted(ask, tmp_path):
    random_model(ASIA, mask=observable(ASIA, ["dysp", "smoke"])).save(tmp_path / "asia.um")
    _, out, _ = ask(str(tmp_path / "asia.um"), "-t", "lung", answers="dysp=yes\nxray=yes\nq\n")
    before, after = out.split("xray=yes", 1)
    assert "not to be trusted" not in before
    assert "not to be trusted" in after


def test_samples_ask_where_exact_inference_is_out_of_reach(ask, monkeypatch):
    monkeypatch.setattr("unimarg.query.EXACT_ENTRIES", -1)
    _, out, _ = ask("asia", "-t", "lung", "-t", "tub", "-e", "dysp=yes", answers="0\nq\n")
    assert asked(out) == ["either", "smoke"]
    assert "±" in out
    assert re.search(r"either +0\.\d+ ± 0\.00", ask("asia", "-t", "lung", "--list", answers="")[1])


def test_what_is_not_understood_is_asked_again(ask):
    _, out, _ = ask("asia", "-t", "lung", answers="2\nmaybe\nu\nxray=perhaps\n\n0\n")
    assert out.count("a state or its number answers") == 2
    assert "'either' has no state '2'; allowed: 'yes', 'no'" in out
    assert "there is nothing to undo" in out
    assert "'xray' has no state 'perhaps'" in out
    assert out.splitlines()[-1] == "known: either=yes"


def test_a_number_means_what_it_means_elsewhere(ask, tmp_path):
    _, out, _ = ask("asia", "-t", "lung", answers="1\n")
    _, told, _ = ask("asia", "-t", "lung", "-e", "either=1")
    assert lung(out)[-1] == lung(told)[0] == exact(either="no")
    assert "\n  0  yes\n  1  no\n" in out
    grades = um.Variable("grade", ("3", "2", "1"))  # where numbers are names, they are nothing else
    net = um.Network(
        [grades, um.Variable("ill")], {"ill": ["grade"]}, {"grade": [0.2, 0.3, 0.5], "ill": [[0.9, 0.1], [0.5, 0.5], [0.1, 0.9]]}
    )
    um.save(net, tmp_path / "net.bif")
    _, out, _ = ask(str(tmp_path / "net.bif"), "-t", "ill", answers="0\n1\n")
    assert "'grade' has no state '0': some of its labels are numbers" in out
    assert out.splitlines()[-1] == "known: grade=1"
    assert "0  3" not in out


def test_an_impossible_answer_is_taken_back(ask):
    _, out, _ = ask("asia", "-t", "bronc", "-e", "tub=yes", answers="either=no\nlung=yes\n")
    assert "impossible" in out
    assert out.splitlines()[-1] == "known: tub=yes, lung=yes"


def test_it_says_where_nothing_is_worth_asking(ask):
    _, out, _ = ask("asia", "-t", "lung", "--among", "xray", "--among", "smoke", answers="0\n0\n0\n0\n")
    assert sorted(asked(out)) == ["smoke", "xray"]
    assert "No question left would tell much" in out


def test_a_model_and_groups(ask, tmp_path):
    clinic = um.example("clinic")
    random_model(clinic).save(tmp_path / "clinic.um")
    code, out, _ = ask(str(tmp_path / "clinic.um"), "-t", "diseases", "--among", "symptoms", answers="1\n")
    assert code == 0
    assert {v.group for v in clinic.variables if v.name in asked(out)} == {"symptoms"}


def test_the_list_alone(ask):
    code, out, _ = ask("asia", "-t", "lung", "-e", "dysp=yes", "--cost", "either=1000", "--list", "--json")
    answer = json.loads(out)
    assert code == 0
    expected = um.next_questions(ASIA, {"dysp": "yes"}, ["lung"], costs={"either": 1000})
    assert [q["variable"] for q in answer["questions"]] == list(expected["variable"])
    assert answer["entropy"] == pytest.approx(expected.attrs["entropy"])
    _, out, _ = ask("asia", "-t", "lung", "--list")
    assert out.split()[:3] == ["question", "gain", "(nats)"]
    assert "cost" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "say what to find out"),
        (["-t", "lunge"], "neither a variable nor a group 'lunge'; did you mean 'lung'"),
        (["-t", "lung", "--cost", "xray"], "a cost is given as NAME=NUMBER"),
        (["-t", "lung", "--cost", "xray=-1"], "must be a number above 0"),
        (["-t", "lung", "--json"], "--json goes with --list"),
    ],
)
def test_misuse_is_a_sentence(ask, arguments, message):
    code, _, err = ask("asia", *arguments)
    assert code == 2
    assert message in err


def test_query_explain(capsys, tmp_path):
    given = ("-e", "dysp=yes", "-e", "smoke=no")
    table = um.explain(ASIA, {"dysp": "yes", "smoke": "no"}, "lung")
    answer = json.loads(run(capsys, "query", "asia", *given, "--explain", "lung", "--json")[1])
    assert [row["variable"] for row in answer["findings"]] == list(table["variable"])
    assert answer["state"] == table.attrs["state"]
    code, out, _ = run(capsys, "query", "asia", *given, "--explain", "lung")
    assert code == 0
    assert f"{table['log_odds'].iloc[0]:+.3f}" in out
    assert out.rstrip().endswith("exact")
    other = "yes" if table.attrs["state"] == "no" else "no"
    chosen = json.loads(run(capsys, "query", "asia", *given, "--explain", f"lung={other}", "--json")[1])
    assert (chosen["state"], chosen["method"]) == (other, "exact")
    assert chosen["probability"] == pytest.approx(1 - answer["probability"])
    model = random_model(ASIA)
    model.save(tmp_path / "asia.um")
    answer = json.loads(run(capsys, "query", str(tmp_path / "asia.um"), *given, "--explain", "lung", "--json")[1])
    assert answer["findings"][0]["without"] == pytest.approx(model.explain({"dysp": "yes", "smoke": "no"}, "lung")["without"].iloc[0])
    assert answer["method"] == "um"
    code, _, err = run(capsys, "query", str(tmp_path / "asia.um"), *given, "--explain", "lung", "--method", "exact")
    assert (code, "one pass of a model" in err) == (2, True)
    code, out, _ = run(capsys, "query", "asia", "--explain", "lung")
    assert (code, out.splitlines()[1:]) == (0, ["there are no findings", "exact"])
    assert out.startswith("lung = yes: 0.0550, without any finding 0.0550\n")
    certain = json.loads(run(capsys, "query", "asia", "-e", "lung=yes", "--explain", "either", "--json")[1])
    assert certain["findings"][0]["log_odds"] is None  # infinite
    code, _, err = run(capsys, "query", "asia", "--explain", "lung", "--most-probable")
    assert (code, "one at a time" in err) == (2, True)
