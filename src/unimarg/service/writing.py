"""Marginals as JSON, without a dictionary in between: what does not change from answer to answer is written once.

{"age":{"child":  p_0  ,"young":  p_1  ...  },"sex":{"male":  p_4  ...  }}
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import orjson

from unimarg.network import Network

DIGITS = 7  # of a float32


class Writer:
    """For some nodes of a network, in their order."""

    def __init__(self, net: Network, nodes: Sequence[int]):
        edges = np.cumsum([0, *net.cards])
        self._columns = np.concatenate([np.arange(edges[i], edges[i + 1]) for i in nodes] or [np.zeros(0, dtype=int)])
        self.states = len(self._columns)
        self._all = len(nodes) == len(net) and list(nodes) == list(range(len(net)))
        self._keys: list[bytes] = []
        before = b"{"
        for i in nodes:
            variable = net.variables[i]
            states = [orjson.dumps(s) + b":" for s in variable.states]
            self._keys.append(before + orjson.dumps(variable.name) + b":{" + states[0])
            self._keys += [b"," + s for s in states[1:]]
            before = b"},"

    def marginals(self, row: np.ndarray) -> bytes:
        """From a row of the probabilities of all states, as ``plain`` gives it."""
        if not self._keys:
            return b"{}"
        p = row if self._all else row[self._columns]
        pieces = [b""] * (2 * len(self._keys))
        pieces[::2] = self._keys
        pieces[1::2] = orjson.dumps(p, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].split(b",")
        return b"".join(pieces) + b"}}"


def plain(p: np.ndarray) -> np.ndarray:
    """Rounded, so that a float32 is not written with the digits of a float64."""
    return p.astype(np.float64).round(DIGITS)
