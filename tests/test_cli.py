import contextlib
import csv
import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import unimarg as um
from unimarg.cli import main
from unimarg.cli.common import findings_of


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of one command."""
    with pytest.raises(SystemExit) as e:
        main(arguments)
    out, err = capsys.readouterr()
    return int(e.value.code or 0), out, err


def test_info(capsys):
    code, out, _ = run(capsys, "info", "asia", "--json")
    facts = json.loads(out)
    assert code == 0
    assert (facts["variables"], facts["arcs"], facts["parameters"], facts["most_parents"], facts["levels"]) == (8, 8, 18, 2, 4)
    code, out, _ = run(capsys, "info", "alarm", "--variables")
    assert code == 0
    assert re.search(r"^LVFAILURE +TRUE, FALSE *$", out, flags=re.M)
    assert re.search(r"^HISTORY +TRUE, FALSE +from LVFAILURE *$", out, flags=re.M)
    listed = json.loads(run(capsys, "info", "alarm", "--variables", "--json")[1])
    assert listed["states"] == {v.name: list(v.states) for v in um.example("alarm").variables}
    assert (listed["parents"]["LVFAILURE"], listed["parents"]["HISTORY"]) == ([], ["LVFAILURE"])
    code, out, _ = run(capsys, "info", "clinic")
    assert code == 0
    assert "1,269" in out


def test_convert_and_info_of_a_file(capsys, tmp_path):
    target = tmp_path / "asia.xdsl"
    code, out, _ = run(capsys, "convert", "asia", str(target))
    assert code == 0
    assert "8 variables" in out
    assert um.load(target) == um.example("asia")
    code, out, _ = run(capsys, "convert", "asia", str(target), "--json")
    assert (code, json.loads(out)["arcs"]) == (0, 8)


def test_query(capsys):
    code, out, _ = run(capsys, "query", "asia", "-e", "dysp=yes", "-e", "smoke=no", "-t", "lung", "--json")
    answer = json.loads(out)
    expected = um.exact(um.example("asia"), {"dysp": "yes", "smoke": "no"}, targets=["lung"])
    assert code == 0
    assert list(answer["marginals"]) == ["lung"]
    assert answer["marginals"]["lung"] == pytest.approx(expected["lung"], abs=1e-15)  # pyAgrum's last bit may differ from run to run
    assert answer["method"] == "exact"
    assert answer["ess"] is None
    code, out, _ = run(capsys, "query", "asia", "-e", "dysp=yes")
    assert code == 0
    assert f"{um.exact(um.example('asia'), {'dysp': 'yes'})['bronc']['yes']:.4f}" in out


def test_convert_to_uai_says_that_names_are_lost(capsys, tmp_path):
    code, _, err = run(capsys, "convert", "asia", str(tmp_path / "asia.uai.gz"))
    assert (code, err.count("\n")) == (0, 1)
    assert err.startswith("unimarg: note: UAI has no names: variables become x0, x1, ...")
    for source, target in (("asia.uai.gz", "again.uai"), ("asia.uai.gz", "again.bif")):  # nothing to lose
        assert run(capsys, "convert", str(tmp_path / source), str(tmp_path / target))[::2] == (0, "")


def test_query_with_a_likelihood_and_a_case_file(capsys, tmp_path):
    case = tmp_path / "case.json"
    case.write_text(json.dumps({"dysp": "yes"}))
    code, out, _ = run(capsys, "query", "asia", "--case", str(case), "-e", "xray=yes:0.9,no:0.2", "-t", "lung", "--json")
    assert code == 0
    expected = um.exact(um.example("asia"), {"dysp": "yes", "xray": [0.9, 0.2]})
    assert json.loads(out)["marginals"]["lung"]["yes"] == pytest.approx(expected["lung"]["yes"], abs=1e-15)


def test_a_case_may_be_uai_evidence(capsys, tmp_path):
    um.save(um.example("asia"), tmp_path / "asia.uai")
    source, case = str(tmp_path / "asia.uai"), tmp_path / "asia.uai.evid"
    case.write_text("2 7 0 1 1\n")  # dysp=yes, smoke=no
    code, out, _ = run(capsys, "query", source, "--case", str(case), "-t", "x3", "--json")
    answer = json.loads(out)
    expected = um.exact(um.example("asia"), {"dysp": "yes", "smoke": "no"})["lung"]["yes"]
    assert (code, answer["evidence"]) == (0, {"x7": "0", "x1": "1"})
    assert answer["marginals"]["x3"]["0"] == pytest.approx(expected, abs=1e-12)
    assert json.loads(run(capsys, "query", "asia", "--case", str(case), "--json")[1])["evidence"] == {"dysp": "yes", "smoke": "no"}
    broken = {"3 7 0 3": "3 evidence sets", "2 7 0": "need 4 numbers", "1 9 0": "from 0 to 7", "": "ends", '{"x7": 0}': "whole number"}
    for text, message in broken.items():
        case.write_text(text)
        code, _, err = run(capsys, "query", source, "--case", str(case))
        assert (code, err.count("\n")) == (2, 1)
        assert f"{case}:" in err
        assert message in err


def test_sample(capsys, tmp_path):
    target = tmp_path / "asia.csv.gz"
    assert run(capsys, "sample", "asia", "-n", "500", "--seed", "3", "-o", str(target))[0] == 0
    import gzip

    net = um.example("asia")
    with gzip.open(target, "rt", newline="") as f:
        header, *rows = csv.reader(f)
    assert tuple(header) == net.names
    expected = um.sample(net, 500, seed=3)
    assert rows == [[v.states[k] for v, k in zip(net.variables, row, strict=True)] for row in expected]


def test_sample_to_standard_output_by_index(capfdbinary):
    with pytest.raises(SystemExit):
        main(["sample", "asia", "-n", "20", "--indices"])
    lines = capfdbinary.readouterr().out.decode().splitlines()
    assert (np.array([line.split(",") for line in lines[1:]], dtype=int) == um.sample(um.example("asia"), 20)).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["info", "nothing.bif"], "nothing.bif: cannot be read"),
        (["info", "asja"], "did you mean 'asia'"),
        (["info", "asia.txt"], "unknown suffix"),
        (["info", "."], "is a folder"),
        (["info", ""], "neither a file nor an example ''"),
        (["query", "asia", "-e", "dysp=YES"], "did you mean 'yes'"),
        (["query", "asia", "-e", "dysp=yes", "-e", "dysp=no"], "two findings on 'dysp'"),
        (["query", "asia", "--memory", "nan"], "memory"),
        (["query", "asia", "--case", "."], "directory"),
        (["convert", "asia", "out.txt"], "unknown suffix '.txt'"),
        (["query", "asia", "-e", "dysp=maybe"], "'dysp' has no state 'maybe'"),
        (["query", "asia", "-e", "disp=yes"], "did you mean 'dysp'"),
        (["query", "asia", "-e", "dysp"], "given as -e NAME=STATE"),
        (["query", "asia", "-e", "dysp=yes:a,no:1"], "state:number"),
        (["query", "asia", "-t", "lungs"], "did you mean 'lung'"),
        (["query", "asia", "--method", "exat"], "did you mean 'exact'"),
        (["query", "asia", "--case", "no/such.json"], "no/such.json"),
        (["query", "asia", "-e", "either=no", "-e", "lung=yes"], "impossible"),
        (["query", "asia", "--memory", "-1"], "memory"),
        (["sample", "asia", "-n", "-5"], "number of samples"),
        (["sample", "asia", "--seed", "-5"], "seed"),
        (["sample", "asia", "-o", "no/such/folder/x.csv"], "cannot be written"),
        (["sample", "asia", "-n", "2", "-o", "keep.um"], "suffixes .csv .csv.gz, not to 'keep.um'"),
        (["sample", "asia", "-n", "2", "-o", "keep.bif"], "suffixes .csv .csv.gz, not to 'keep.bif'"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_code_2(capsys, arguments, message):
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert not out
    assert err.startswith("unimarg: ")
    assert err.count("\n") == 1
    assert message in err


LEVELS = """network levels { }
variable level { type discrete [3] { "1", "2", "3" }; }
variable ill { type discrete [2] { no, yes }; }
probability ( level ) { table 0.2, 0.3, 0.5; }
probability ( ill | level ) { ( "1" ) 0.9, 0.1; ( "2" ) 0.5, 0.5; ( "3" ) 0.2, 0.8; }
"""


def test_numbers_are_labels_where_labels_are_numbers(capsys, tmp_path):
    path, case = tmp_path / "levels.bif", tmp_path / "case.json"
    path.write_text(LEVELS)
    for text, ill in (("1", 0.1), ("3", 0.8), ("2.0", 0.5)):
        answer = json.loads(run(capsys, "query", str(path), "-e", f"level={text}", "--json")[1])
        assert answer["marginals"]["ill"]["yes"] == pytest.approx(ill)
        assert answer["evidence"] == {"level": text[0]}
        case.write_text(f'{{"level": "{text}"}}')
        answer = json.loads(run(capsys, "query", str(path), "--case", str(case), "--json")[1])
        assert answer["marginals"]["ill"]["yes"] == pytest.approx(ill)
    case.write_text('{"level": 1}')  # a label, and the index of another
    assert "give the label as a string" in run(capsys, "query", str(path), "--case", str(case))[2]
    case.write_text('{"level": 0}')
    for words in (("-e", "level=0"), ("--case", str(case)), ("--explain", "level=0"), ("-e", "level=0:0.5,1:0.5")):
        code, _, err = run(capsys, "query", str(path), *words)
        assert (code, err.count("\n")) == (2, 1)
        assert "'level' has no state '0': some of its labels are numbers, so that a number must be one of them; allowed: '1', '2'" in err
    answer = json.loads(run(capsys, "query", str(path), "-e", "ill=1", "--explain", "level=1", "--json")[1])
    assert (answer["state"], answer["evidence"]) == ("1", {"ill": "yes"})  # a label; the number of a state


ODD = """network "[bold]net" { }
variable "œdème [x]" { type discrete [2] { "[red]", ":smile:" }; property group = "[/g]"; }
variable LONG { type discrete [2] { no, yes }; }
probability ( "œdème [x]" ) { table 0.25, 0.75; }
probability ( LONG ) { table 0.25, 0.75; }
""".replace("LONG", "a_long_name" * 20)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_names_are_shown_as_they_are(tmp_path, encoding):
    path = tmp_path / "odd.bif"
    path.write_text(ODD, encoding="utf-8")
    for verb in ("info", "query"):
        command = [sys.executable, "-c", "from unimarg.cli import main; main()", verb, str(path)]
        out = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": encoding}, check=True).stdout.decode(
            encoding
        )
        wanted = ["[bold]net", "[/g] (1)"] if verb == "info" else ["[red]", ":smile:", "[x]", "a_long_name" * 20]
        assert all(name in out for name in wanted)


def test_a_warning_is_one_sentence(capsys, tmp_path):
    block = "variable {0} {{ type discrete [2] {{ x, y }}; }}\n"
    path = tmp_path / "a.bif"
    path.write_text("".join(block.format(f"v{i}") + f"probability ( v{i} ) {{ table 0.1, 0.9; }}\n" for i in range(9)) + block.format("z"))
    code, out, err = run(capsys, "info", str(path))
    assert (code, err) == (0, f"unimarg: note: {path}: 'z' has no probability block and no arc; taken as uniform\n")
    assert "groups" not in out


def test_evidence_on_every_variable_shows_them(capsys):
    findings = [word for n in um.example("asia").names for word in ("-e", f"{n}=no")]
    code, out, _ = run(capsys, "query", "asia", *findings)
    assert code == 0
    assert "dysp" in out


@contextlib.contextmanager
def endless_sampling(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that listens to SIGINT even where this one was started without, and is gone at the end."""
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from unimarg.cli import run; run()"
    command = [sys.executable, "-c", code, "sample", "asia", "-n", "1000000000", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("output", [True, False])
def test_interrupted_sampling_leaves_nothing_behind(tmp_path, output):
    with endless_sampling(*["-o", str(tmp_path / "x.csv")] * output) as process:
        if output:
            while not list(tmp_path.iterdir()):
                time.sleep(0.05)
        else:
            process.stdout.read(10_000)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, b"")
    assert not list(tmp_path.iterdir())


def test_a_reader_that_goes_away():
    with endless_sampling() as process:
        process.stdout.read(100)
        process.stdout.close()
        assert process.wait(timeout=30) == -signal.SIGPIPE  # 141 to a shell: 1 is for answers that are not to be trusted
        assert process.stderr.read() == b""


def run_without(capsys, streams: tuple[str, ...], *arguments: str) -> tuple[int, str, str]:
    """``run`` where the caller closed some streams, which Python has as None."""
    with pytest.MonkeyPatch.context() as patch:
        for name in streams:
            patch.setattr(sys, name, None)
        found = run(capsys, *arguments)
        for name in streams:
            getattr(sys, name).close()
    return found


@pytest.mark.parametrize(
    "words", ["query asia", "query asia --json", "query asia --most-probable", "info asia", "ask asia -t lung", "sample asia", "--help"]
)
def test_a_closed_standard_output_is_told(capsys, words):
    told = "unimarg: standard output is closed: there is nowhere to write the answer to\n"
    assert run_without(capsys, ("stdout",), *words.split()) == (2, "", told)
    assert run_without(capsys, ("stdout", "stderr"), *words.split()) == (2, "", "")


def test_a_closed_standard_output_does_not_matter_to_files(capsys, tmp_path):
    for words in (("convert", "asia", str(tmp_path / "asia.bif")), ("sample", "asia", "-n", "3", "-o", str(tmp_path / "x.csv"))):
        assert run_without(capsys, ("stdout",), *words) == (0, "", "")
        assert (tmp_path / words[-1]).stat().st_size


def test_a_closed_standard_error_has_no_notes_and_the_answer_none_of_them(capsys):
    words = ("query", "asia", "-e", "dysp=1", "-t", "lung", "--json")
    code, out, err = run_without(capsys, ("stderr",), *words)
    assert (code, json.loads(out)["evidence"], err) == (0, {"dysp": "no"}, "")
    assert "note" in run(capsys, *words)[2]


def test_a_closed_standard_input_has_ended(capsys):
    code, out, _ = run_without(capsys, ("stdin",), "ask", "asia", "-t", "lung")
    assert (code, out.splitlines()[-1]) == (0, "known: nothing")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
@pytest.mark.parametrize("words", ["query asia --json", "info asia", "sample asia -n 9"])
@pytest.mark.parametrize("through", [True, False])
def test_a_full_standard_output_is_told(capsys, monkeypatch, words, through):
    with open("/dev/full", "w", buffering=1 if through else -1) as full:
        monkeypatch.setattr(sys, "stdout", full)
        code, _, err = run(capsys, *words.split())
    assert (code, err) == (2, "unimarg: standard output: cannot be written: No space left on device\n")


def test_lines_end_where_their_text_ends(capsys):
    for words in (("info", "clinic", "--variables"), ("query", "asia"), ("query", "asia", "--most-probable")):
        out = run(capsys, *words)[1]
        assert len(out.splitlines()) > 5
        assert not re.search(r" $", out, flags=re.M)


def test_a_target_that_is_named_twice_is_one(capsys):
    twice = ("-t", "lung", "-t", "lung")
    assert run(capsys, "query", "asia", *twice)[1].count("lung") == 1
    assert run(capsys, "sample", "asia", "-n", "3", *twice)[1].splitlines()[0] == "lung"
    for method in ("exact", "lookahead"):
        assert len(um.infer(um.example("asia"), {}, ["lung", "lung"], method).variables) == 1


def test_bad_case_file(capsys, tmp_path):
    case = tmp_path / "case.json"
    mistakes = {
        "{": "is not JSON",
        "[1]": "one JSON object",
        '{"dysp": null}': "cannot be None",
        '{"dysp": ' + "9" * 400 + "}": "has no state",
        "9" * 5000: "is not JSON",
        '{"dysp": "yes", "dysp": "no"}': "case.json: 'dysp' is there twice: 'yes' and 'no'",
        '{"dysp": {"yes": 0.9, "yes": 0.2}}': "'yes' is there twice",
        '{"smoke": "no"}': "two findings on 'smoke': 'no' and 'yes'",
    }
    for text, message in mistakes.items():
        case.write_text(text)
        code, _, err = run(capsys, "query", "asia", "--case", str(case), "-e", "smoke=yes")
        assert code == 2
        assert message in err


def test_import_and_help_do_not_load_heavy_libraries():
    code = "import sys, unimarg, unimarg.cli; print([m for m in ('jax', 'pandas', 'pyagrum', 'matplotlib') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_python_m_unimarg_is_the_command_line():
    found = subprocess.run([sys.executable, "-m", "unimarg", "--version"], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == f"unimarg {um.__version__}"


def test_a_case_and_an_option_may_say_the_same_in_other_words(capsys, tmp_path):
    case = tmp_path / "case.json"
    case.write_text('{"smoke": 0}')
    assert run(capsys, "query", "asia", "--case", str(case), "-e", "smoke=yes", "-t", "lung")[0] == 0
    assert run(capsys, "query", "asia", "--case", str(case), "-e", "smoke=no", "-t", "lung")[0] == 2


def test_blanks_around_a_finding_do_not_matter(capsys):
    for words in ("dysp = yes", " dysp=yes ", "dysp= 0"):
        code, out, err = run(capsys, "query", "asia", "-e", words, "-t", "lung", "--json")
        assert (code, json.loads(out)["evidence"], "by number" in err) == (0, {"dysp": "yes"}, "0" in words)
    code, out, _ = run(capsys, "query", "asia", "-e", "dysp = yes:0.9, no:0.2", "-t", "lung", "--json")
    assert (code, json.loads(out)["evidence"]) == (0, {"dysp": {"yes": 0.9, "no": 0.2}})
    own = um.Network([um.Variable("x", ("a", " a", "b")), um.Variable("x ", ("a ", "b"))], {}, {"x": [0.2, 0.3, 0.5], "x ": [0.5, 0.5]})
    found = {"x=a": {"x": "a"}, "x= a": {"x": " a"}, "x= b": {"x": "b"}, "x =a ": {"x ": "a "}, "x = b": {"x ": "b"}}
    for words, evidence in found.items():
        assert findings_of(own, None, [words]) == evidence


def refusing(method):
    """A method of paths where the working folder can only be read."""

    def refuse(path: Path, *arguments: object, **options: object) -> object:
        if not path.is_absolute():
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return method(path, *arguments, **options)

    return refuse


@pytest.mark.parametrize(
    ("words", "file"),
    [
        ("score asia rows.csv -o out.csv", "out.csv.parts"),
        ("evaluate asia --sets 1 -m prior --samples 64 -o out.csv", "out.csv"),
        ("reproduce table2 --quick --out folder", "folder"),
    ],
)
def test_a_folder_that_can_only_be_read_is_told_in_the_same_words(capsys, tmp_path, monkeypatch, words, file):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("dysp\nyes\n")
    for name in ("mkdir", "open"):  # root may write everywhere
        monkeypatch.setattr(Path, name, refusing(getattr(Path, name)))
    code, _, err = run(capsys, *words.split())
    assert (code, err.splitlines()[-1]) == (2, f"unimarg: {file}: cannot be written: Read-only file system")


def test_samples_to_standard_output_that_leads_to_a_file(tmp_path):
    with (tmp_path / "samples.txt").open("w") as out:
        command = [sys.executable, "-m", "unimarg", "sample", "asia", "-n", "3", "-o", "/dev/stdout"]
        subprocess.run(command, stdout=out, check=True, timeout=120)
    assert len((tmp_path / "samples.txt").read_text().splitlines()) == 4
