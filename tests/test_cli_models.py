"""``unimarg train``, and ``info`` and ``query`` of what it makes; stopping and killing it."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import unimarg as um
from models import ASIA, random_model, same
from test_cli import run
from unimarg import presets, trainer
from unimarg.cli.train import NAMES
from unimarg.masking import observable
from unimarg.query import WITH_MODEL

CALL = 4
OPTIONS = ("--preset", "small", "--seed", "3")
STEPS = 60 * CALL
# short calls, none faster than 30 ms: every kill comes before the end
PROGRAM = f"""
import sys, time
import unimarg.trainer as t
run_steps = t.run_steps
t.run_steps = lambda *given: (time.sleep(0.03), run_steps(*given))[1]
t.CHECKPOINT_SECONDS = 0.05
t._Run._steps_per_call = lambda self, accelerated, teacher: {CALL}
from unimarg.cli import run
run()
"""


@pytest.fixture(scope="module")
def model_file(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("models") / "asia.um"
    random_model(ASIA).save(path)
    return str(path)


def test_info_of_a_model(capsys, model_file):
    code, out, _ = run(capsys, "info", model_file, "--json")
    facts = json.loads(out)
    assert code == 0
    assert (facts["variables"], facts["preset"], facts["hidden"], facts["encoding"]) == (8, "paper", "16", "prior")
    assert (facts["steps"], facts["finished"], facts["weights"]) == (5, True, 16 * 16 + 16 + 16 * 8 + 8)
    code, out, _ = run(capsys, "info", model_file)
    assert code == 0
    assert "training samples" in out


def test_a_model_stands_for_its_network(capsys, tmp_path, model_file):
    with pytest.raises(um.FormatError, match="load_model reads it"):
        um.load(model_file)
    assert run(capsys, "convert", model_file, str(tmp_path / "asia.xdsl"))[0] == 0
    assert um.load(tmp_path / "asia.xdsl") == ASIA
    assert run(capsys, "sample", model_file, "-n", "9")[1] == run(capsys, "sample", "asia", "-n", "9")[1]
    assert run(capsys, "train", model_file, "-o", str(tmp_path / "b.um"), "--preset", "small", "--budget", "1 steps")[0] == 0
    assert um.load_model(tmp_path / "b.um").net == ASIA
    code, _, err = run(capsys, "train", model_file, "-o", model_file, "--budget", "1 steps")
    assert (code, "is there already: choose another name, or write over it" in err) == (2, True)


def test_info_says_how_a_model_was_trained(capsys, tmp_path):
    random_model(ASIA, preset="small", hidden=(256, 256), rounds=2, rare=0.25).save(tmp_path / "asia.um")
    facts = json.loads(run(capsys, "info", str(tmp_path / "asia.um"), "--json")[1])
    assert facts["changed"] == ["rounds=2", "rare=0.25"]
    assert [facts["recipe"][name] for name in ("rounds", "virtual", "rare", "labels")] == [2, 0.02, 0.25, "auto"]
    assert facts["recipe"]["mask"]["kind"] == "Mixture"
    out = run(capsys, "info", str(tmp_path / "asia.um"))[1]
    assert re.search("changed +rounds=2, rare=0.25", out)
    assert "recipe" not in out


def test_info_says_what_can_be_observed(capsys, tmp_path):
    random_model(ASIA, mask=observable(ASIA, ["dysp", "smoke"])).save(tmp_path / "asia.um")
    assert json.loads(run(capsys, "info", str(tmp_path / "asia.um"), "--json")[1])["observable"] == ["smoke", "dysp"]
    out = run(capsys, "info", str(tmp_path / "asia.um"))[1]
    assert re.search("observable +smoke, dysp", out)
    assert "not to be trusted" in run(capsys, "query", str(tmp_path / "asia.um"), "-e", "xray=yes", "--method", "um")[1]
    assert "not to be trusted" in run(capsys, "query", str(tmp_path / "asia.um"), "-e", "xray=yes", "--explain", "lung")[1]
    assert "not to be trusted" not in run(capsys, "query", str(tmp_path / "asia.um"), "-e", "dysp=yes", "--explain", "lung")[1]
    questions = json.loads(run(capsys, "ask", str(tmp_path / "asia.um"), "-t", "lung", "--list", "--json")[1])["questions"]
    assert {q["variable"] for q in questions} == {"dysp", "smoke"}
    questions = json.loads(run(capsys, "ask", str(tmp_path / "asia.um"), "-t", "lung", "--among", "xray", "--list", "--json")[1])[
        "questions"
    ]
    assert [q["variable"] for q in questions] == ["xray"]


def test_a_damaged_model_is_told_without_the_names_of_classes(capsys, tmp_path, model_file):
    data = Path(model_file).read_bytes()
    for damaged, why in ((data[:-100], "incomplete metadata"), (data[:8] + b"?" * (len(data) - 8), "header"), (b"", "too small")):
        (tmp_path / "asia.um").write_bytes(damaged)
        code, _, err = run(capsys, "info", str(tmp_path / "asia.um"))
        assert (code, err.count("\n")) == (2, 1)
        assert err.startswith(f"unimarg: {tmp_path / 'asia.um'}: is not a unimarg model, or a damaged one: ")
        assert why in err
        assert "Error" not in err


def test_query_of_a_model(capsys, model_file):
    expected = um.load_model(model_file).query({"dysp": "yes", "xray": {"no": 0.2, "yes": 0.8}}, method="um")
    findings = ("-e", "dysp=yes", "-e", "xray=no:0.2,yes:0.8")
    code, out, _ = run(capsys, "query", model_file, *findings, "-t", "lung", "--method", "um", "--json")
    answer = json.loads(out)
    assert code == 0
    assert answer["method"] == "um"
    assert answer["marginals"]["lung"] == pytest.approx(expected["lung"])
    code, out, _ = run(capsys, "query", model_file, "-e", "dysp=yes", "--method", "exact", "-t", "lung", "--json")
    assert json.loads(out)["marginals"]["lung"] == pytest.approx(um.exact(ASIA, {"dysp": "yes"})["lung"])
    assert json.loads(run(capsys, "query", model_file, *findings, "--json")[1])["method"] == "exact"  # auto, and asia is small
    code, out, _ = run(capsys, "query", model_file, "-e", "dysp=yes", "--method", "um")
    assert code == 0
    assert "without an error of its own" in out


def test_train_writes_a_model(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer._Run, "_steps_per_call", lambda self, accelerated, teacher: 4)
    path = tmp_path / "asia.um"
    arguments = (
        "train",
        "asia",
        "-o",
        str(path),
        "--preset",
        "paper",
        "--observable",
        "dysp",
        "--observable",
        "xray",
        "--budget",
        "2 steps",
        "--held-out",
        "10",
    )
    code, out, _ = run(capsys, *arguments, "--json")
    facts = json.loads(out)
    assert 0 < facts["held_out_error"] < 0.5
    assert (code, facts["steps"], facts["finished"], facts["file"]) == (0, 2, True, str(path))
    assert um.load_model(path).history["steps"] == 2
    code, _, err = run(capsys, *arguments, "--resume")
    assert (code, err.count("\n")) == (2, 1)
    assert "finished" in err
    written = path.read_bytes()
    code, out, err = run(capsys, *arguments, "--seed", "1")
    assert (code, out) == (2, "")
    assert "is there already" in err
    assert path.read_bytes() == written
    assert run(capsys, *arguments, "--seed", "1", "--force")[0] == 0
    assert um.load_model(path).history["seed"] == 1


def test_help_names_every_training_option(capsys):
    assert NAMES.split(", ") == presets.OPTIONS
    code, out, _ = run(capsys, "train", "--help")
    assert code == 0
    assert all(name in out for name in presets.OPTIONS)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["train", "asia"], "--output"),
        (["train", "asia", "-o", "nowhere/asia.um"], "no folder"),
        (["train", "asia", "-o", "."], ".um file"),
        (["train", "asia", "-o", "asia.bif"], ".um file"),
        (["train", "asia", "-o", "asia.um", "--budget", "soon"], "budget"),
        (["train", "asia", "-o", "asia.um", "--preset", "papr"], "did you mean 'paper'"),
        (["train", "asia", "-o", "asia.um", "--preset", "x"], "allowed: 'default', 'small', 'paper'"),
        (["train", "asia", "-o", "asia.um", "--option", "x=1"], f"allowed: {', '.join(map(repr, presets.OPTIONS))}\n"),
        (["query", "asia", "--method", "x"], f"allowed: {', '.join(map(repr, WITH_MODEL))}\n"),
        (["train", "asia", "-o", "asia.um", "--observable", "dyspp"], "did you mean 'dysp'"),
        (["train", "asia", "-o", "asia.um", "--seed", "-1"], "seed"),
        (["train", "asia", "-o", "asia.um", "--held-out", "-1"], "held-out evidence sets"),
        (["train", "asia", "-o", "none.um", "--resume", "--preset", "paper"], "none.um"),
        (["query", "asia", "--method", "um"], "unimarg train asia"),
        (["query", "none.um"], "cannot be read"),
        (["query", "damaged.um"], "damaged"),
        (["info", "damaged.um"], "damaged"),
    ],
)
def test_mistakes(capsys, tmp_path, monkeypatch, model_file, arguments, word):
    monkeypatch.chdir(tmp_path)
    data = Path(model_file).read_bytes()
    Path("damaged.um").write_bytes(data[: len(data) // 2])
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert word in err
    assert "Traceback" not in out + err
    assert os.listdir() == ["damaged.um"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Start a run of ``unimarg train`` in a process; all share their compiled programs."""
    folder = tmp_path_factory.mktemp("runs")
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(folder / "programs"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}

    def start(name: str, *more: str) -> tuple[subprocess.Popen[str], Path]:
        path = folder / name
        arguments = ["train", "asia", "-o", str(path), *OPTIONS, "--budget", f"{STEPS} steps", *more]
        command = [sys.executable, "-c", PROGRAM, *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment), path

    return start


@pytest.fixture(scope="module")
def undisturbed(runs):
    process, path = runs("undisturbed.um")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert f"{STEPS} steps" in out
    return um.load_model(path)


def first_checkpoint(process, path, before: int = 0) -> None:
    while process.poll() is None and (not path.exists() or path.stat().st_mtime_ns <= before):
        time.sleep(0.01)
    assert process.poll() is None, process.communicate()


def test_killed_without_warning(runs, undisturbed):
    process, path = runs("killed.um")
    before = 0
    for wait in (0.0, 0.05, 0.12):
        first_checkpoint(process, path, before)
        time.sleep(wait)
        process.kill()
        process.communicate()
        left = um.load_model(path)  # whole, whatever the moment
        assert 0 < left.history["steps"] < left.history["planned_steps"]
        before = path.stat().st_mtime_ns
        process, _ = runs("killed.um", "--resume")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert same(um.load_model(path).trunk, undisturbed.trunk)


def test_a_polite_kill_saves_and_says_so(runs, undisturbed):
    process, path = runs("stopped.um")
    first_checkpoint(process, path)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "--resume" in err
    assert "Traceback" not in err
    assert 0 < um.load_model(path).history["steps"] < STEPS
    process, _ = runs("stopped.um")  # not written over by mistake
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "unfinished run" in err
    process, _ = runs("stopped.um", "--resume")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "going on from step" in err
    assert same(um.load_model(path).trunk, undisturbed.trunk)


@pytest.mark.parametrize(
    ("option", "said"), [("rounds", "NAME=VALUE"), ("rouds=3", "did you mean 'rounds'"), ("seed=3", "no training option 'seed'")]
)
def test_an_option_of_training_that_makes_no_sense(tmp_path, capsys, option, said):
    code, _, err = run(capsys, "train", "asia", "-o", str(tmp_path / "m.um"), "--budget", "2 steps", "--option", option)
    assert code == 2
    assert said in err


def test_options_of_training_change_the_preset(tmp_path, capsys):
    given = ("--budget", "1 steps", "--preset", "small", "--option", "hidden=[8,8]", "--option", "encoding=prior", "--option", "batch=16")
    heads = ("--option", "heads=('marginal', 'message')")  # as Python writes it
    code, _, err = run(capsys, "train", "asia", "-o", str(tmp_path / "m.um"), *given, *heads)
    made = um.load_model(tmp_path / "m.um").recipe
    assert (code, made.architecture.hidden, made.encoding, made.batch) == (0, (8, 8), "prior", 16)
    assert made.architecture.heads == ("marginal", "message")
    assert "too few steps" not in err  # so many were asked for
    out = run(capsys, "info", str(tmp_path / "m.um"))[1]
    assert re.search(r"finished +yes", out)
    assert re.search(r"loss +[\d.]{1,6} *\n", out)


def test_a_time_that_is_too_short_says_so(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(trainer._Run, "_steps_per_call", lambda self, accelerated, teacher: 4)
    given = ("--budget", "0.01s", "--preset", "small", "--option", "hidden=[8]", "--option", "batch=16")
    code, _, err = run(capsys, "train", "asia", "-o", str(tmp_path / "m.um"), *given)
    assert code == 0
    assert "too few steps" in err
    assert "--preset small" not in err


STUCK = """
import hashlib, signal, time
import unimarg.trainer as t
def train(*_, progress, **given):
    steps = {steps}
    while steps and progress(t.Progress(1, 2, 0.0, 1.0, 0.0)) is not True:
        print("step", flush=True)
        time.sleep(0.02)
    print("busy", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2_000_000_000)  # as a compiler is: no exception reaches it
    open(given["checkpoint"], "w").close()
t.train = train
signal.signal(signal.SIGINT, signal.default_int_handler)
from unimarg.cli import run
run()
"""


@contextlib.contextmanager
def stuck(path: Path, *, steps: bool, rounds: int = 2_000_000_000, ignored: bool = False) -> Iterator[subprocess.Popen[str]]:
    program = STUCK.format(steps=steps).replace("2_000_000_000", str(rounds))
    if ignored:  # as where a script starts it in the background
        program = program.replace("signal.default_int_handler", "signal.SIG_IGN")
    command = [sys.executable, "-c", program, "train", "asia", "-o", str(path), "--force"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == ("step\n" if steps else "busy\n")
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("number", "steps", "ignored"),
    [(signal.SIGINT, False, False), (signal.SIGTERM, False, False), (signal.SIGTERM, False, True), (signal.SIGINT, True, False)],
)
def test_stopped_without_saving(tmp_path, number, steps, ignored):
    """At once before the first step, else by a signal after it was said that another would do so; what was there stays."""
    path = tmp_path / "m.um"
    path.write_bytes(b"another model")
    with stuck(path, steps=steps, ignored=ignored) as process:
        if steps:
            for _ in range(2):  # as one
                process.send_signal(number)
                time.sleep(0.05)
            assert process.stderr.readline() == "unimarg: stopping as soon as this step ends (Ctrl-C again: at once)\n"
            assert process.poll() is None
        began = time.monotonic()
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert time.monotonic() - began < 5
    assert (process.returncode, err) == (130, f"unimarg: stopped without saving; {path} is as it was last saved\n")
    assert [file.name for file in tmp_path.iterdir()] == ["m.um"]
    assert path.read_bytes() == b"another model"


def test_what_ends_by_itself_is_not_ended(tmp_path):
    """Whoever reads what is said may be gone by the same Ctrl-C."""
    with stuck(tmp_path / "m.um", steps=True, rounds=3_000_000) as process:
        process.stderr.close()
        process.send_signal(signal.SIGINT)
        while process.stdout.readline() != "busy\n":
            pass
        process.wait(60)
    assert (tmp_path / "m.um").exists()
