"""UAI with its evidence and marginals: files written by hand, checked by named states, and the errors they give."""

from __future__ import annotations

import numpy as np
import pytest

from test_formats_text import row
from unimarg.errors import EvidenceError, FormatError
from unimarg.formats import uai
from unimarg.network import Network

UAI = """BAYES
3
2 3 2
3
1 0   # a comment as aGrUM writes it, with 1 2 3
2 0 1
3 1 0 2

2
 0.25 0.75
6
 0.1 0.6 0.3
 0.2 0.3 0.5
12
 0.1 0.9 0.4 0.6
 0.2 0.8 0.5 0.5
 0.3 0.7 1 0
"""


def read_uai(text: str) -> Network:
    return uai.read(text.encode(), "f.uai")


def test_uai_by_hand():
    got = read_uai(UAI)
    assert got.names == ("x0", "x1", "x2")
    assert row(got, "x0") == [0.25, 0.75]
    assert row(got, "x1", x0="1") == [0.2, 0.3, 0.5]
    assert row(got, "x2", x0="1", x1="0") == [0.4, 0.6]
    assert row(got, "x2", x0="0", x1="2") == [0.3, 0.7]


def test_uai_markov_with_the_child_anywhere():
    # the same network as UAI, each child at another place of its scope, factors in another order
    text = """MARKOV 3 2 3 2 3
    3 2 1 0   2 1 0   1 0
    12  0.1 0.4 0.2 0.5 0.3 1   0.9 0.6 0.8 0.5 0.7 0
    6  0.1 0.2  0.6 0.3  0.3 0.5
    2  0.25 0.75"""
    got = read_uai(text)
    assert row(got, "x2", x0="1", x1="0") == [0.4, 0.6]
    assert row(got, "x1", x0="0") == [0.1, 0.6, 0.3]
    assert uai.read(uai.write(got).encode(), "again") == got


def test_uai_children_are_found_though_every_axis_is_normalised():
    text = "MARKOV 3 2 2 2 3 2 0 1 2 1 2 1 2 4 0.5 0.5 0.5 0.5 4 0.5 0.5 0.5 0.5 2 0.5 0.5"
    got = read_uai(text)
    assert {got.names[i]: [got.names[p] for p in pa] for i, pa in enumerate(got.parents)} == {"x2": [], "x1": ["x2"], "x0": ["x1"]}


UAI_ERRORS = [
    ("LATTICE 1", "BAYES or MARKOV"),
    ("BAYES", "ends before the number of variables"),
    ("BAYES 0 0", "at least one variable"),
    ("BAYES -1", "whole number"),
    ("BAYES 1000000000000 2", "whole number from 0 to 3"),
    ("BAYES " + "9" * 5000, "whole number"),
    ("BAYES 1 1_0 1 1 0 2 1 0", "whole number"),
    ("BAYES 1 0 1 1 0 0", "has no states"),
    ("BAYES 2 2 2 1 1 0 2 0.5 0.5", "2 variables and 1 factors"),
    ("BAYES 2 2 2 2 1 0 1 0 2 0.5 0.5 2 0.5 0.5", "factors 0 and 1 are both tables of variable 0"),
    ("BAYES 1 2 1 1 7 2 0.5 0.5", "whole number from 0 to 0"),
    ("BAYES 2 2 2 2 1 0 2 1 1 2 0.5 0.5 4 1 0 1 0", "over one twice"),
    ("BAYES 1 2 1 1 0 3 0.5 0.5 0", "has 3 entries"),
    ("BAYES 1 2 1 1 0 2 0.5", "2 numbers are announced"),
    ("BAYES 1 2 1 1 0 2 0.5 x", "expected a number, not 'x'"),
    ("BAYES 1 2 1 1 0 2 0.5 0.6", "'x0' sum to 1.1"),
    ("BAYES 1 2 1 1 0 2 0.5 0.5 7", "expected the end of the file"),
    ("MARKOV 2 2 2 2 2 0 1 2 1 0 4 1 1 1 1 4 1 1 1 1", r"factor 0 over \(0, 1\) is on a cycle"),
    ("MARKOV 2 2 2 2 2 0 1 1 0 4 1 2 3 4 2 0.5 0.5", r"factor 0 over \(0, 1\) is not a table of x1"),
    ("MARKOV 2 2 2 2 2 0 1 2 0 1 4 1 0 1 0 4 1 0 1 0", "no Bayesian network"),
]


@pytest.mark.parametrize(("text", "message"), UAI_ERRORS)
def test_uai_errors(text, message):
    with pytest.raises(FormatError, match=message) as caught:
        read_uai("\n\n" + text)
    assert caught.value.line == 3


@pytest.fixture
def chain() -> Network:
    """x1 -> x0: the network's order is not that of the numbers."""
    return read_uai("BAYES 2 3 2 2 2 1 0 1 1 6 0.2 0.3 0.5 0.1 0.1 0.8 2 0.5 0.5")


@pytest.mark.parametrize("text", ["1 0 2", "1\n1 0 2\n", "2 0 2 0 2", " 1 0 2 "])
def test_uai_evidence(text, chain, tmp_path):
    path = tmp_path / "a.evid"
    path.write_text(text)
    assert chain.names == ("x1", "x0")
    assert uai.read_uai_evidence(path, chain) == {"x0": "2"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "ends before"),
        ("2 0", "2 evidence sets"),
        ("1 5 0", "whole number from 0 to 1"),
        ("1 1 2", "state of 'x1' must be"),
        ("2 0 1 0 2", "observed twice"),
        ("2 1 0 0 1 0 1", "need 4 numbers"),
        ("2\n1 0 1\n1 0 1", "need 4|2 evidence sets"),
        ("x", "whole number"),
    ],
)
def test_uai_evidence_errors(text, message, chain, tmp_path):
    path = tmp_path / "a.evid"
    path.write_text(text)
    with pytest.raises(FormatError, match=message):
        uai.read_uai_evidence(path, chain)


def test_uai_evidence_written_and_read(chain, tmp_path):
    path = tmp_path / "a.evid"
    for evidence in ({}, {"x0": "1"}, {"x1": "1", "x0": "0"}):
        uai.write_uai_evidence(path, chain, evidence)
        assert uai.read_uai_evidence(path, chain) == evidence
    with pytest.raises(FormatError, match="'x0' is a likelihood"):
        uai.write_uai_evidence(path, chain, {"x0": [0.5, 0.5, 0.1]})
    with pytest.raises(EvidenceError, match="no variable"):
        uai.write_uai_evidence(path, chain, {"x7": "1"})
    assert uai.read_uai_evidence(path, chain) == {"x1": "1", "x0": "0"}


@pytest.mark.parametrize("text", ["MAR\n2 3 0.2 0.3 0.5 2 0.9 0.1\n", "MAR\n1\n2 3 0.2 0.3 0.5 2 0.9 0.1"])
def test_uai_marginals(text, chain, tmp_path):
    path = tmp_path / "a.MAR"
    path.write_text(text)
    got = uai.read_uai_marginals(path, chain)
    assert got["x0"].tolist() == [0.2, 0.3, 0.5]
    assert got["x1"].tolist() == [0.9, 0.1]
    uai.write_uai_marginals(tmp_path / "b.MAR.gz", chain, got)
    again = uai.read_uai_marginals(tmp_path / "b.MAR.gz", chain)
    assert all(np.array_equal(again[n], got[n]) for n in chain.names)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("PR\n1", "starts with MAR"),
        ("MAR 3 2 0.5 0.5 2 0.5 0.5 2 0.5 0.5", "the network has 2"),
        ("MAR 2 2 0.5 0.5 2 0.5 0.5", "'x0' has 3 states"),
        ("MAR 2 3 0.2 0.3 0.5 2 0.9", "2 numbers are announced"),
        ("MAR 2 3 0.2 0.3 0.6 2 0.9 0.1", "no distribution"),
        ("MAR 2 3 nan 0.3 0.6 2 0.9 0.1", "expected a number, not 'nan'"),
        ("MAR 2 3 0.2 0.3 0.5 2 0.9 0.1 4 4", "expected the end"),
    ],
)
def test_uai_marginals_errors(text, message, chain, tmp_path):
    path = tmp_path / "a.MAR"
    path.write_text(text)
    with pytest.raises(FormatError, match=message):
        uai.read_uai_marginals(path, chain)


def test_uai_marginals_must_be_complete(chain, tmp_path):
    with pytest.raises(FormatError, match="'x1' is missing"):
        uai.write_uai_marginals(tmp_path / "a.MAR", chain, {"x0": [0.2, 0.3, 0.5]})
    with pytest.raises(FormatError, match="must be 3 probabilities"):
        uai.write_uai_marginals(tmp_path / "a.MAR", chain, {"x0": [0.2, 0.3], "x1": [0.5, 0.5]})
    assert not list(tmp_path.iterdir())
