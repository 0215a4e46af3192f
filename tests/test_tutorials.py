"""The tutorials run, and print what they say they print; the pages beside them are fresh."""

import re
import runpy
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.py"))


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda p: p.stem)
def test_tutorial(path, capsys):
    promised = re.findall(r"# -> (.*)$", path.read_text(), flags=re.M)
    assert len(promised) >= 4
    runpy.run_path(str(path))
    printed = iter(capsys.readouterr().out.splitlines())
    for line in promised:
        assert line in printed, line  # in this order, other lines between


def test_every_tutorial_is_listed():
    listed = re.findall(r"^\| \[(\w+\.py)\]\(\1\)", (DOCS / "tutorials" / "README.md").read_text(), flags=re.M)
    assert sorted(listed) == [p.name for p in TUTORIALS]


def test_the_api_reference_is_that_of_the_docstrings(monkeypatch):
    """Made anew by: python docs/make_api.py"""
    monkeypatch.syspath_prepend(str(DOCS))
    import make_api  # type: ignore[import-not-found]

    import unimarg as um

    assert make_api.page() == (DOCS / "api.md").read_text()
    told = {*make_api.NETWORKS, *make_api.ANSWERS, *make_api.MODELS, *make_api.ERRORS}
    assert told == set(um.__all__)
    sys.modules.pop("make_api")


def test_links_of_the_pages_lead_somewhere():
    for page in [DOCS.parent / "README.md", *DOCS.glob("*.md"), *DOCS.glob("tutorials/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
