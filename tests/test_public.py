"""What others build on: the public names, and a README that tells the truth."""

import re
from pathlib import Path

import unimarg

ROOT = Path(__file__).parent.parent


def test_public_names():
    assert sorted(unimarg.__all__) == [
        "EvidenceError",
        "FormatError",
        "ImpossibleEvidenceError",
        "Network",
        "NetworkError",
        "NoisyMax",
        "NoisyOr",
        "Posterior",
        "Table",
        "TooExpensiveError",
        "UnimargError",
        "UsageError",
        "Variable",
        "exact",
        "example",
        "from_pgmpy",
        "from_pyagrum",
        "load",
        "medical",
        "sample",
        "save",
        "to_pgmpy",
        "to_pyagrum",
    ]
    for name in unimarg.__all__:
        assert callable(getattr(unimarg, name))
    assert not hasattr(unimarg, "nonsense")


def test_a_module_of_the_same_name_does_not_hide_a_function():
    import unimarg.exact

    assert callable(unimarg.exact)


def test_file_map_of_the_readme_is_fresh():
    """Every module has one line in the README, and every line names a module that exists."""
    package = ROOT / "src" / "unimarg"
    modules = {str(p.relative_to(package)) for p in package.rglob("*.py") if p.name != "__init__.py"}
    listed = re.findall(r"^\| `([\w/]+\.py)` \|", (ROOT / "README.md").read_text(), flags=re.M)
    assert sorted(listed) == sorted(modules)


def test_readme_names_the_two_commands():
    readme = (ROOT / "README.md").read_text()
    assert "make demo" in readme
    assert "make test" in readme
