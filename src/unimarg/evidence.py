"""Evidence: the only place where a user's names become numbers.

Evidence is one mapping from a variable's name to what is known of it:

- a state's label or index: hard evidence, X = k. Where a label is a number there are no indices: "1" is the state called so;
- a likelihood, as a list over the states or a ``{label: value}`` mapping: virtual evidence,
  proportional to P(what was seen | X = k) (Pearl 1988). Where only one state is possible it is hard. States that a mapping
  leaves out are impossible; one that names a single state is meant otherwise, and an error unless its value is 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real

import numpy as np

from unimarg.errors import EvidenceError, closest, listed
from unimarg.network import Floats, Network, Variable

LEAST, LARGEST = 1e-300, 1e300  # of a likelihood's maximum, so that products of it keep their digits and sums are numbers
WHOLE = re.compile(r"(-?[0-9]{1,18})(\.0*)?")  # a whole number as text, also as a table's column with empty cells writes it
NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)")  # any, in plain digits


@dataclass(frozen=True, eq=False)
class Evidence:
    """Findings by node index: ``hard`` states and ``virtual`` likelihoods ``[card]``."""

    hard: Mapping[int, int]
    virtual: Mapping[int, Floats]

    def __len__(self) -> int:
        return len(self.hard) + len(self.virtual)

    @property
    def nodes(self) -> set[int]:
        return {*self.hard, *self.virtual}

    @property
    def telling(self) -> dict[int, int | Floats]:
        """Without likelihoods that are the same for every state: they say nothing, and a trained network need not know that."""
        return {**self.hard, **{i: likelihood for i, likelihood in self.virtual.items() if (likelihood != likelihood[0]).any()}}


def parse_evidence(net: Network, evidence: Mapping[str, object] | None) -> Evidence:
    """Check a user's evidence against the network.

    >>> from unimarg.network import Network, Variable
    >>> net = Network([Variable("rain")], {}, {"rain": [0.8, 0.2]})
    >>> dict(parse_evidence(net, {"rain": "yes"}).hard)
    {0: 1}
    """
    hard: dict[int, int] = {}
    virtual: dict[int, Floats] = {}
    if evidence is not None and not isinstance(evidence, Mapping):
        advice = "; of a table's row make one: row.dropna().to_dict()" if _of_pandas(evidence) else ""
        raise EvidenceError(f"evidence must be a mapping from variable to state, not {type(evidence).__name__}{advice}")
    for name, value in (evidence or {}).items():
        if name not in net.index:
            raise EvidenceError(f"there is no variable {name!r}; {closest(name, net.names)}")
        i = net.index[name]
        found = _finding(net.variables[i], value)
        if isinstance(found, int):
            hard[i] = found
        else:
            virtual[i] = found
    return Evidence(hard, virtual)


def one_set(evidence: object) -> bool:
    """Whether this is meant as one evidence set, and not as several."""
    return not isinstance(evidence, Iterable) or isinstance(evidence, Mapping | str) or _of_pandas(evidence)


def _of_pandas(evidence: object) -> bool:
    return hasattr(evidence, "dropna")


def no_name_twice(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    """As ``object_pairs_hook`` of ``json.loads``, which else takes the last of two findings on one variable."""
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise EvidenceError(f"{name!r} is there twice: {found[name]!r} and {value!r}")
        found[name] = value
    return found


def _finding(variable: Variable, value: object) -> int | Floats:
    if isinstance(value, str | bool | np.bool_ | Real) and value == value:
        return state_index(variable, value)
    if isinstance(value, Mapping | Sequence | np.ndarray):
        likelihood = _likelihood(variable, value)
        possible = np.flatnonzero(likelihood)
        # a single possible state with likelihood 1 is that state; another number would change P(e)
        if len(possible) == 1 and likelihood[possible[0]] == 1:
            return int(possible[0])
        if isinstance(value, Mapping) and len(value) == 1 < variable.card:
            advice = f"give {variable.states[possible[0]]!r} itself, or name the others too"
            raise EvidenceError(f"the likelihood of {variable.name!r} names one state alone, which would be certain: {advice}")
        return likelihood
    states = ", ".join(variable.states)  # an empty value may be a mistake: None and NA are states in some networks
    allowed = f"a state ({states})" + ("" if numbered(variable) else ", its index") + " or a likelihood"
    raise EvidenceError(f"{variable.name!r} cannot be {value!r}; give {allowed}, or leave it out if not observed")


def state_index(variable: Variable, value: object) -> int:
    """A state's index from its label or its index. Where a label is a number a number is a label, and an error where as an index
    it would be another state: it may come from samples, which have indices.
    """
    label = _label(variable, value)
    by_index = None if isinstance(value, bool | np.bool_) else _as_index(variable, value)
    if label in variable.states:
        found = variable.states.index(label)
        if by_index not in (None, found):
            raise EvidenceError(
                f"{variable.name!r}: {value!r} could be the state labelled {label!r} or state number {by_index} "
                f"({variable.states[by_index]!r}); give the label as a string"
            )
        return found
    if isinstance(value, bool | np.bool_):  # True is not "state 1" unless a state says so
        by_index = next((i for i, s in enumerate(variable.states) if s.lower() == label.lower()), None)
    elif numbered(variable) and WHOLE.fullmatch(label):
        why = "some of its labels are numbers, so that a number must be one of them"
        raise EvidenceError(f"{variable.name!r} has no state {label!r}: {why}; {listed(variable.states)}")
    if by_index is not None:
        return by_index
    raise EvidenceError(f"{variable.name!r} has no state {label!r}; {closest(label, variable.states)}")


def state_from_text(variable: Variable, text: str) -> int:
    """The same from a file or a command line, where a number is text: it is an index unless a label is a number."""
    number = WHOLE.fullmatch(text)
    return state_index(variable, int(number[1]) if number and not numbered(variable) else text)


def numbered(variable: Variable) -> bool:
    """Whether any label is a number: then an index would be taken for a label, or a label for an index.

    >>> numbered(Variable("level", ("1", "2", "many"))), numbered(Variable("dose", (".25", "0.5"))), numbered(Variable("rain"))
    (True, True, False)
    """
    return any(map(NUMBER.fullmatch, variable.states))


def _label(variable: Variable, value: object) -> str:
    """How a value is written; 1.0, which is what a table makes of 1 beside an empty cell, as 1 where that is a label, and 1 as 1.0."""
    label = str(value)
    whole = WHOLE.fullmatch(label)
    written = (label, whole[1], f"{whole[1]}.0") if whole else (label,)
    return next((w for w in written if w in variable.states), label)


def _as_index(variable: Variable, value: object) -> int | None:
    if not isinstance(value, Real):
        return None
    try:
        number = float(value)
    except OverflowError:  # an int may be too large
        return None
    return int(number) if number.is_integer() and 0 <= number < variable.card else None


def _likelihood(variable: Variable, value: Mapping[object, object] | Sequence[object] | np.ndarray) -> Floats:
    try:
        if isinstance(value, Mapping):
            likelihood = np.zeros(variable.card)
            for state, number in value.items():
                likelihood[state_index(variable, state)] = float(number)  # pyright: ignore[reportArgumentType]
        else:
            likelihood = np.array(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as e:
        if isinstance(e, EvidenceError):
            raise
        raise EvidenceError(f"the likelihood of {variable.name!r} must be numbers, not {str(value)[:200]}") from None
    if likelihood.shape != (variable.card,):
        raise EvidenceError(
            f"the likelihood of {variable.name!r} needs {variable.card} numbers, one for each of {', '.join(variable.states)}"
        )
    if not np.isfinite(likelihood).all() or (likelihood < 0).any():
        raise EvidenceError(f"the likelihood of {variable.name!r} must be finite and not negative: {likelihood.tolist()}")
    if likelihood.max() > LARGEST:
        raise EvidenceError(f"the likelihood of {variable.name!r} may be no more than {LARGEST:g}: divide all of it by the same number")
    if not likelihood.any():
        raise EvidenceError(f"the likelihood of {variable.name!r} is zero for every state")
    if likelihood.max() < LEAST:
        advice = "multiply all of it by the same number"
        raise EvidenceError(f"the likelihood of {variable.name!r} may not be below {LEAST:g} throughout: {advice}")
    return likelihood
