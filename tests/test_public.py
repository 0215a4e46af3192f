"""What others build on: the public names, and a README that tells the truth."""

import ast
import importlib
import io
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import unimarg as um
from unimarg.cli import main

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_public_names():
    assert sorted(um.__all__) == [
        "EvidenceError",
        "Explanation",
        "FormatError",
        "ImpossibleEvidenceError",
        "Marginalizer",
        "Network",
        "NetworkError",
        "NoisyMax",
        "NoisyOr",
        "Posterior",
        "SamplingError",
        "Table",
        "TooExpensiveError",
        "TrainingError",
        "UnimargError",
        "UsageError",
        "Variable",
        "evaluate",
        "exact",
        "example",
        "explain",
        "from_pgmpy",
        "from_pyagrum",
        "infer",
        "joint",
        "load",
        "load_model",
        "medical",
        "most_probable",
        "next_questions",
        "sample",
        "sample_posterior",
        "save",
        "score",
        "to_pgmpy",
        "to_pyagrum",
        "train",
    ]
    for name in um.__all__:
        assert callable(getattr(um, name))
    assert not hasattr(um, "nonsense")
    assert set(um.__all__) < set(dir(um))
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", um.__version__)


def test_a_module_of_the_same_name_does_not_hide_a_function():

    assert callable(um.exact)


PACKAGE = ROOT / "src" / "unimarg"
LISTED = re.findall(r"^\| `([\w/]+\.py)` \|", (ROOT / "docs" / "files.md").read_text(), flags=re.M)


def test_file_map_is_fresh():
    """Every module has one line in docs/files.md, and every line names a module that exists."""
    modules = {str(p.relative_to(PACKAGE)) for p in PACKAGE.rglob("*.py") if p.name != "__init__.py"}
    assert sorted(LISTED) == sorted(modules)


def imported(module: str) -> set[str]:
    """The modules of ours that it imports at its top."""
    out = set()
    for node in ast.parse((PACKAGE / module).read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "unimarg":
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            out |= {"/".join(name.split(".")[1:]) + ".py" for name in names} & {*LISTED}
    return out


def test_a_module_imports_what_lies_above_it():
    assert "evidence.py" in imported("query.py")
    for at, module in enumerate(LISTED):
        assert imported(module) <= {*LISTED[:at]}, module


def readme_block(heading: str) -> str:
    section = README.split(f"\n## {heading}\n")[1]
    return re.findall(r"```\w*\n(.*?)```", section, flags=re.S)[0]


def test_readme_python_runs_and_says_the_truth(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    code = readme_block("In Python")
    exec(code, names)
    assert len(um.load(tmp_path / "alarm.bif")) == 37
    assert names["x"].shape == (1_000_000, 8)
    claimed = ast.literal_eval(re.findall(r'^post\["lung"\]  # (.*)$', code, flags=re.M)[0])
    assert {state: round(p, 4) for state, p in names["post"]["lung"].items()} == claimed
    assert len(code.splitlines()) <= 24


def test_readme_training_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"um": um, "net": um.example("asia")}
    exec(readme_block("Training"), names)
    assert names["model"].predict_proba(names["rows"]).shape == (2, 16)
    assert names["model"].history["steps"] == 100


def test_readme_queries_run():
    names: dict[str, Any] = {"um": um, "net": um.example("asia")}
    exec(readme_block("Any method, with its error"), names)
    assert (names["post"].method, names["post"].status, len(names["frame"])) == ("lookahead", "ok", 1000)


def test_thresholds_in_the_page_on_auto_are_those_of_the_code():
    listed = re.findall(r"^\| `(\w+)\.(\w+)` \| ([\d.]+) \|", (ROOT / "docs" / "auto.md").read_text(), flags=re.M)
    assert len(listed) >= 10
    for module, name, value in listed:
        assert getattr(importlib.import_module(f"unimarg.{module}"), name) == float(value), name


def test_readme_commands_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    commands = [shlex.split(line, comments=True) for line in readme_block("On the command line").splitlines()]
    assert [c[:2] for c in commands if c[0] != "unimarg"] == []
    monkeypatch.setattr("sys.stdin", io.StringIO("1\nq\n"))
    (tmp_path / "asia.um").write_text("of the section before, or the second time")
    for command in commands:
        with pytest.raises(SystemExit) as e:
            main(["1000" if word == "1000000" else word for word in command[1:]])
        assert not e.value.code, capsys.readouterr().err
    assert (tmp_path / "alarm.csv").read_text().count("\n") == 1001


def test_readme_make_targets_exist():
    targets = re.findall(r"^make (\w+)", readme_block("Two commands"), flags=re.M)
    assert targets == ["demo", "test"]
    for target in targets:
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), flags=re.M)
