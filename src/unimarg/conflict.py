"""Which findings do not go together, where ``support`` proves that the evidence is impossible.

What propagation rules out under some findings it rules out under more. So the shortest impossible beginning of a list of findings
ends with one that belongs to a conflict; it goes to the front, what came before it is searched again, and so on until those at the
front are impossible by themselves. None of them can then be left out. Beginnings of many lengths are rows of one propagation.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from unimarg.errors import ImpossibleEvidenceError
from unimarg.evidence import Evidence
from unimarg.network import Network
from unimarg.support import Support

LENGTHS = 64  # of beginnings that are tried at once: what a word of bits holds
SECONDS = 1.0  # after which some that could be left out may stay
LISTED = 8  # findings that a sentence names


def impossible(net: Network, evidence: Evidence, support: Support | None = None) -> ImpossibleEvidenceError:
    """An error that names the findings in conflict: all, where propagation does not tell which."""
    found = conflict(net, evidence, support)
    return ImpossibleEvidenceError(sentence(net, evidence, [*evidence.hard, *evidence.virtual] if found is None else found))


def conflict(net: Network, evidence: Evidence, support: Support | None = None, seconds: float = SECONDS) -> list[int] | None:
    """Nodes whose findings propagation proves not to go together, none of them without need; None where it proves nothing."""
    began = time.perf_counter()
    support = support or Support(net)
    rest = [i for i in (*evidence.hard, *evidence.virtual) if i in support.touching]
    if not _contradicts(support, evidence, [rest])[0]:
        return None
    found: list[int] = []
    while length := _shortest(support, evidence, found, rest):
        found.append(rest[length - 1])
        rest = rest[: length - 1]
        if time.perf_counter() - began > seconds:
            found += rest
            break
    return [i for i in (*evidence.hard, *evidence.virtual) if i in found]


def sentence(net: Network, evidence: Evidence, nodes: Sequence[int]) -> str:
    """That their findings do not go together."""
    findings = [_shown(net, evidence, i) for i in nodes]
    if not findings:
        return "the evidence is impossible"
    if len(findings) == 1:
        return f"the evidence is impossible: {findings[0]} has probability zero by itself"
    last = findings[-1] if len(findings) <= LISTED else f"{len(findings) - LISTED + 1} more"
    return f"the evidence is impossible: {', '.join(findings[: LISTED - 1][: len(findings) - 1])} and {last} do not go together"


def _shortest(support: Support, evidence: Evidence, found: list[int], rest: list[int]) -> int:
    """How many of the rest, all of which are enough, it takes for a contradiction."""
    low, high = -1, len(rest)
    while high - low > 1:
        lengths = np.unique(np.linspace(low + 1, high - 1, min(high - low - 1, LENGTHS)).astype(int)).tolist()
        enough = _contradicts(support, evidence, [found + rest[:n] for n in lengths])
        first = int(np.argmax(enough)) if enough.any() else len(lengths)
        low, high = lengths[first - 1] if first else low, lengths[first] if first < len(lengths) else high
    return high


def _contradicts(support: Support, evidence: Evidence, sets: Sequence[Sequence[int]]) -> np.ndarray:
    """bool [sets], whether the findings on these nodes leave some node no state."""
    allowed = {i: np.ones((len(sets), support.cards[i]), dtype=bool) for i in support.touching}
    for row, nodes in enumerate(sets):
        for i in nodes:
            allowed[i][row] = evidence.virtual[i] > 0 if i in evidence.virtual else np.arange(support.cards[i]) == evidence.hard[i]
    out = np.zeros(len(sets), dtype=bool)
    for possible in support.narrow(allowed).values():
        out |= ~possible.any(axis=1)
    return out


def _shown(net: Network, evidence: Evidence, node: int) -> str:
    variable = net.variables[node]
    if node in evidence.virtual:
        return f"the likelihood of {variable.name!r}"
    return f"{variable.name!r}={variable.states[evidence.hard[node]]!r}"
