"""Tables of evidence: what the cells of a data frame mean."""

import datetime

import numpy as np
import pandas as pd
import pytest

from unimarg import EvidenceError, Network, UsageError, Variable
from unimarg.tables import states_from_frame

NET = Network(
    [Variable("a", ("no", "yes")), Variable("b", ("NA", "None", "nan")), Variable("c", ("1", "2", "3")), Variable("d", ("0", "1"))],
    {},
    {"a": [0.5, 0.5], "b": [0.2, 0.3, 0.5], "c": [0.2, 0.3, 0.5], "d": [0.5, 0.5]},
)


def states(**columns) -> list[list[int]]:
    return states_from_frame(NET, pd.DataFrame(columns)).T.tolist()


def test_labels_indices_and_empty_cells():
    a, b, c, d = states(a=["yes", None, "no", np.nan], d=[1, 0, np.nan, 1])
    assert (a, b, c, d) == ([1, -1, 0, -1], [-1] * 4, [-1] * 4, [1, 0, -1, 1])
    assert states(a=[1, 0])[0] == [1, 0]
    assert states(a=pd.array([1, None, 0], "Int64"))[0] == [1, -1, 0]
    assert states(a=pd.array(["yes", None], "string"))[0] == [1, -1]
    assert states(a=pd.Categorical(["yes", None, "no"], categories=["no", "yes", "maybe"]))[0] == [1, -1, 0]
    assert states(a=[pd.NA, pd.NaT, "yes"])[0] == [-1, -1, 1]


def test_an_empty_string_is_an_empty_cell():
    assert states(a=["", "yes", None], b=["NA", "", ""])[:2] == [[-1, 1, -1], [0, -1, -1]]
    with pytest.raises(EvidenceError, match="row 1: 'a' has no state ' '"):
        states(a=["", " "])


def test_names_of_nothing_are_labels_when_strings():
    assert states(b=["NA", "None", "nan", None, np.nan, pd.NA])[1] == [0, 1, 2, -1, -1, -1]


def test_a_number_that_could_be_two_states_is_refused_also_beside_empty_cells():
    # pandas makes 1 beside an empty cell 1.0, which must mean the same
    for column in ([1, 2], [1, None], [2.0, None]):
        with pytest.raises(EvidenceError, match="give the label as a string"):
            states(c=column)
    assert states(c=["1", None, "3"])[2] == [0, -1, 2]
    assert states(c=[3.0, None])[2] == [2, -1]  # only a label
    assert states(d=[1.0, None])[3] == [1, -1]  # both, and the same
    for column in ([3, 0], [3.0, None, 0.0], ["3", "0"]):  # only an index
        with pytest.raises(EvidenceError, match=r"row \d: 'c' has no state '0(\.0)?': some of its labels are numbers"):
            states(c=column)


def test_one_is_not_true():
    for column in ([1, True, "no"], [True, 1, "no"], [None, 0, False, 1, np.True_]):
        row = next(r for r, cell in enumerate(column) if isinstance(cell, bool))
        with pytest.raises(EvidenceError, match=f"row {row}: 'a' has no state '{column[row]}'"):
            states(a=pd.Series(column, dtype=object))
    assert states(a=pd.Series([1, 1.0, None, "no", 0, np.int8(1)], dtype=object))[0] == [1, 1, -1, 0, 0, 1]


NO_STATES = ["maybe", 2, -1, 0.5, np.inf, True, datetime.date(2020, 1, 1), pd.Timestamp("2020-01-01"), 1j, ("no",), ["no"]]


@pytest.mark.parametrize("cell", NO_STATES, ids=str)
def test_a_cell_that_is_no_state_is_named_with_its_row(cell):
    with pytest.raises(EvidenceError, match="row 2: 'a'"):
        states(a=pd.Series([None, "no", cell], dtype=object))


def test_columns():
    with pytest.raises(UsageError, match="separated by ';'"):
        states_from_frame(NET, pd.DataFrame({"a;b": ["no;NA"]}))
    with pytest.raises(UsageError, match="did you mean 'a'"):
        states(A=["no"])
    with pytest.raises(UsageError, match="there twice"):
        states_from_frame(NET, pd.DataFrame([["no", "no"]], columns=["a", "a"]))
    with pytest.raises(UsageError, match="no variable"):
        states_from_frame(NET, pd.DataFrame([["no"]], columns=pd.MultiIndex.from_tuples([("a", "b")])))
    with pytest.raises(UsageError, match="no variable"):
        states_from_frame(NET, pd.DataFrame([[0]]))
    assert states_from_frame(NET, pd.DataFrame({"a": []})).shape == (0, 4)
    assert (states_from_frame(NET, pd.DataFrame(index=range(3))) == -1).all()


def test_one_state_more_than_a_byte_holds():
    many = Network([Variable("m", tuple(f"s{k}" for k in range(200)))], {}, {"m": np.full(200, 1 / 200)})
    assert states_from_frame(many, pd.DataFrame({"m": ["s199", None, 150]})).tolist() == [[199], [-1], [150]]
