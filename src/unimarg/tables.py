"""Tables of evidence: rows of labels or state numbers, an empty cell where nothing is known."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from unimarg.errors import EvidenceError, UsageError, closest
from unimarg.evidence import state_index
from unimarg.network import Ints, Network, Variable

if TYPE_CHECKING:
    import pandas as pd

SEPARATORS = (";", "\t", "|")  # of tables, beside the comma


def states_from_frame(net: Network, frame: pd.DataFrame) -> np.ndarray:
    """States ``[rows, nodes]``, -1 where a cell is empty or a variable has no column."""
    if not hasattr(frame, "columns"):
        raise UsageError(f"a table of evidence is a pandas DataFrame with a column for each variable, not {type(frame).__name__}")
    states = nothing_known(net, len(frame))
    for name in frame.columns:
        if name not in net.index:
            raise UsageError(no_column(net, name))
    if not frame.columns.is_unique:
        raise UsageError(f"column {frame.columns[frame.columns.duplicated()][0]!r} is there twice")
    for name in frame.columns:
        i = net.index[name]
        states[:, i] = _column(net.variables[i], frame.loc[:, name])
    return states


def nothing_known(net: Network, rows: int) -> np.ndarray:
    """States ``[rows, nodes]`` to be filled in, -1."""
    return np.full((rows, len(net)), -1, dtype=np.int8 if net.cards.max() < 127 else np.int32)


def given(net: Network, row: Ints) -> dict[str, str]:
    """Evidence by names from states, -1 where unobserved; by labels, since a number may be a label itself."""
    return {net.names[i]: net.variables[i].states[k] for i, k in enumerate(row) if k >= 0}


def no_column(net: Network, name: object, advice: str = "") -> str:
    """The sentence for a column that is no variable; several names in one are those of a file with another separator than commas."""
    for separator in SEPARATORS:
        parts = [part.strip(' "') for part in str(name).split(separator)]
        if len(parts) > 1 and any(part in net.index for part in parts):
            return f"column {name!r} is no variable of the network; the columns seem to be separated by {separator!r}: that must be commas"
    return f"column {name!r} is no variable of the network; {closest(name, net.names)}{advice}"


def _column(variable: Variable, column: pd.Series) -> np.ndarray:
    """Each distinct value is looked up once."""
    try:
        codes, values = _distinct(column)
    except TypeError:  # a list or another thing that cannot be looked up
        row = next(r for r, value in enumerate(column) if not isinstance(value, Hashable))
        raise EvidenceError(f"row {row}: {variable.name!r} cannot be {column.iloc[row]!r}; a cell is a state's label or index") from None
    found = np.full(len(values) + 1, -1)
    for c, value in enumerate(values):
        if isinstance(value, str) and not value:
            continue  # no state is called so: empty, as in a CSV file
        try:
            found[c] = state_index(variable, value)
        except EvidenceError as e:
            raise EvidenceError(f"row {int(np.argmax(codes == c))}: {e}") from None
    return found[codes]


def _distinct(column: pd.Series) -> tuple[np.ndarray, Sequence[object]]:
    """The number of each cell's value, -1 for an empty one, and the values; 1 and True are two, which they are not to pandas."""
    codes, values = column.factorize()
    if column.dtype != object or not any(value in (0, 1) for value in values):
        return codes, list(values)
    numbers: dict[tuple[type, object], int] = {}
    cells = zip(column, codes >= 0, strict=True)
    codes = np.array([numbers.setdefault((type(cell), cell), len(numbers)) if known else -1 for cell, known in cells])
    return codes, [value for _, value in numbers]
