import numpy as np
import pandas as pd
import pytest

from unimarg import Network, Variable
from unimarg.errors import EvidenceError
from unimarg.evidence import parse_evidence

NET = Network(
    [
        Variable("smoke"),
        Variable("level", ("1", "0", "2")),
        Variable("flag", ("False", "True")),
        Variable("size", ("small", "big", "huge")),
        Variable("unknown", ("known", "nan")),
    ],
    {},
    {"smoke": [0.5, 0.5], "level": [0.2, 0.3, 0.5], "flag": [0.5, 0.5], "size": [0.2, 0.3, 0.5], "unknown": [0.5, 0.5]},
)


@pytest.mark.parametrize(
    ("evidence", "hard"),
    [
        ({}, {}),
        (None, {}),
        ({"smoke": "yes"}, {0: 1}),
        ({"smoke": 1, "size": np.int64(2)}, {0: 1, 3: 2}),
        ({"smoke": 1.0}, {0: 1}),
        ({"level": "0"}, {1: 1}),  # a label, not a number
        ({"level": 2}, {1: 2}),  # label and index agree
        ({"flag": True}, {2: 1}),
        ({"smoke": [0, 1]}, {0: 1}),  # one state is possible
        ({"size": {"big": 1}}, {3: 1}),
    ],
)
def test_hard_evidence(evidence, hard):
    parsed = parse_evidence(NET, evidence)
    assert dict(parsed.hard) == hard
    assert not parsed.virtual
    assert len(parsed) == len(hard)


@pytest.mark.parametrize(("given", "expected"), [([0.2, 0.9], [0.2, 0.9]), ({"yes": 0.9, "no": 0.2}, [0.2, 0.9]), ([0, 0.5], [0, 0.5])])
def test_virtual_evidence(given, expected):
    parsed = parse_evidence(NET, {"smoke": given})
    assert parsed.virtual[0].tolist() == expected
    assert parsed.nodes == {0}


@pytest.mark.parametrize(
    ("evidence", "message"),
    [
        ({"smok": "yes"}, "no variable 'smok'; did you mean 'smoke'"),
        ({"smoke": "ye"}, "'smoke' has no state 'ye'; did you mean 'yes'"),
        ({"smoke": 2}, "has no state '2'; allowed: 'no', 'yes'"),
        ({"smoke": -1}, "has no state '-1'"),
        ({"smoke": 0.5}, "has no state '0.5'"),
        ({"smoke": float("nan")}, "cannot be nan; .*leave it out if not observed"),
        ({"unknown": float("nan")}, "cannot be nan"),  # which is no label
        ({"smoke": np.float32("nan")}, "cannot be .*leave it out"),
        ({"smoke": pd.NA}, "cannot be <NA>; .*leave it out"),
        ({"smoke": 10**400}, "has no state '1000"),
        ({"smoke": [10**400, 1]}, "must be numbers"),
        ({"smoke": float("inf")}, "has no state 'inf'"),
        ({"smoke": True}, "has no state 'True'"),
        ({"smoke": None}, "cannot be None; .*leave it out if not observed"),
        ({"level": 1}, "give the label as a string"),
        ({"smoke": [0.5]}, "needs 2 numbers"),
        ({"smoke": [0, 0]}, "zero for every state"),
        ({"smoke": [np.nan, 1]}, "finite and not negative"),
        ({"smoke": [-1, 1]}, "finite and not negative"),
        ({"smoke": ["a", "b"]}, "must be numbers"),
        ({"smoke": {"maybe": 1}}, "no state 'maybe'"),
        ({"smoke": {"yes": "x"}}, "must be numbers"),
        (["smoke"], "must be a mapping"),
        (pd.Series({"smoke": "yes"}), r"must be a mapping .*not Series; of a table's row make one: row\.dropna\(\)\.to_dict\(\)"),
    ],
)
def test_mistakes_are_named(evidence, message):
    with pytest.raises(EvidenceError, match=message):
        parse_evidence(NET, evidence)
