import numpy as np
import pandas as pd
import pytest

from unimarg import Network, Variable
from unimarg.errors import EvidenceError
from unimarg.evidence import parse_evidence, state_from_text

NET = Network(
    [
        Variable("smoke"),
        Variable("level", ("1", "0", "2")),
        Variable("flag", ("False", "True")),
        Variable("size", ("small", "big", "huge")),
        Variable("unknown", ("known", "nan")),
        Variable("grade", ("1", "2", "3")),
        Variable("count", ("0", "1", "many")),
        Variable("dose", ("2.0", "1.0")),
        Variable("share", ("0.25", "0.5")),
    ],
    {},
    {"smoke": [0.5, 0.5], "flag": [0.5, 0.5], "unknown": [0.5, 0.5], "dose": [0.5, 0.5], "share": [0.5, 0.5]}
    | {name: [0.2, 0.3, 0.5] for name in ("level", "size", "grade", "count")},
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
        ({"grade": 3}, {5: 2}),  # no index
        ({"grade": np.int8(3)}, {5: 2}),
        ({"grade": "1.0"}, {5: 0}),  # as a table of text may have it
        ({"grade": {"2": 1}}, {5: 1}),
        ({"count": 1, "dose": 2}, {6: 1, 7: 0}),
        ({"dose": 1.0}, {7: 1}),
        ({"flag": True}, {2: 1}),
        ({"smoke": [0, 1]}, {0: 1}),  # one state is possible
        ({"size": {"big": 1}}, {3: 1}),
        ({"size": {"big": 1, "huge": 0}}, {3: 1}),
    ],
)
def test_hard_evidence(evidence, hard):
    parsed = parse_evidence(NET, evidence)
    assert dict(parsed.hard) == hard
    assert not parsed.virtual
    assert len(parsed) == len(hard)


@pytest.mark.parametrize(
    ("given", "expected"),
    [([0.2, 0.9], [0.2, 0.9]), ({"yes": 0.9, "no": 0.2}, [0.2, 0.9]), ([0, 0.5], [0, 0.5]), ({"yes": 0.5, "no": 0}, [0, 0.5])],
)
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
        ({"smoke": None}, r"cannot be None; give a state \(no, yes\), its index or a likelihood, or leave it out if not observed"),
        ({"level": 1}, "give the label as a string"),  # a label, and the index of another
        ({"grade": 1.0}, "'grade': 1.0 could be the state labelled '1' or state number 1 .'2'.; give the label as a string"),
        ({"grade": {2: 1}}, "give the label as a string"),
        ({"grade": None}, r"cannot be None; give a state \(1, 2, 3\) or a likelihood, or leave"),
        ({"grade": 0}, "'grade' has no state '0': some of its labels are numbers, .* one of them; allowed: '1', '2', '3'"),
        ({"grade": "0"}, "some of its labels are numbers"),
        ({"grade": 0.0}, "some of its labels are numbers"),
        ({"grade": {0: 0.5, 1: 0.5}}, "some of its labels are numbers"),
        ({"count": 2}, "'2': some of its labels are numbers, .* allowed: '0', '1', 'many'"),  # not the third state
        ({"share": 1}, "'share' has no state '1': some of its labels are numbers"),  # not the second state
        ({"dose": 0}, "some of its labels are numbers"),
        ({"grade": "one"}, "'grade' has no state 'one'; allowed: '1', '2', '3'"),
        ({"smoke": "1"}, "'smoke' has no state '1'; allowed: 'no', 'yes'"),  # text is a number in files and on the command line only
        ({"smoke": [0.5]}, "needs 2 numbers"),
        ({"smoke": [0, 0]}, "zero for every state"),
        ({"smoke": [np.nan, 1]}, "finite and not negative"),
        ({"smoke": [-1, 1]}, "finite and not negative"),
        ({"smoke": ["a", "b"]}, "must be numbers"),
        ({"smoke": {"maybe": 1}}, "no state 'maybe'"),
        ({"smoke": {"yes": "x"}}, "must be numbers"),
        ({"smoke": {"yes": 0.8}}, "'smoke' names one state alone, which would be certain: give 'yes' itself, or name the others too"),
        ({"size": {1: 2}}, "give 'big' itself"),
        ({"smoke": {"yes": 0}}, "zero for every state"),
        ({"smoke": {"yes": -1}}, "finite and not negative"),
        ({"smoke": {"yse": 0.8}}, "no state 'yse'; did you mean 'yes'"),
        (["smoke"], "must be a mapping"),
        (pd.Series({"smoke": "yes"}), r"must be a mapping .*not Series; of a table's row make one: row\.dropna\(\)\.to_dict\(\)"),
    ],
)
def test_mistakes_are_named(evidence, message):
    with pytest.raises(EvidenceError, match=message):
        parse_evidence(NET, evidence)


@pytest.mark.parametrize(
    ("name", "text", "state"),
    [
        ("smoke", "yes", 1),
        ("smoke", "1", 1),
        ("smoke", "1.0", 1),
        ("grade", "1", 0),
        ("grade", "1.0", 0),
        ("count", "many", 2),
        ("dose", "1", 1),
    ],
)
def test_a_number_as_text_is_an_index_unless_labels_are_numbers(name, text, state):
    assert state_from_text(NET.variables[NET.index[name]], text) == state


@pytest.mark.parametrize(
    ("name", "text"), [("smoke", "2"), ("smoke", "-1"), ("smoke", "1.5"), ("smoke", "9" * 5000), ("grade", "0"), ("count", "2")]
)
def test_what_is_no_state_as_text(name, text):
    with pytest.raises(EvidenceError, match="has no state"):
        state_from_text(NET.variables[NET.index[name]], text)
