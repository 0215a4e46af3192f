"""The scripts of benchmarks/ keep up with the package: they can be read, and those that wait for each other do."""

import fcntl
import importlib
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def read(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))  # as Python does for a script
    return importlib.import_module(name)


@pytest.mark.parametrize("name", sorted(path.stem for path in BENCHMARKS.glob("*.py")))
def test_every_script_finds_what_it_imports(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = read(name, monkeypatch)
    assert callable(module.main) if name != "muon" else callable(module.muon_for_layers)  # an arm of arms.py


def test_arms_with_a_lock_train_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arms = read("arms", monkeypatch)
    path = tmp_path / "lock"
    with arms.alone(str(path)), open(path) as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with open(path) as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    monkeypatch.setattr("sys.argv", ["arms.py", "asia", "residual", "--lock", str(tmp_path / "no" / "lock")])
    with pytest.raises(FileNotFoundError, match="lock"):
        arms.main()
