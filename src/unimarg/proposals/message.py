"""q_i proportional to P(x_i | pa_i) exp(lambda_i(e)): the table, tilted by what the network says of the evidence below."""

from __future__ import annotations

from unimarg.conditionals import Draft, Frame, Query
from unimarg.network import Floats


def message(frame: Frame, query: Query, messages: Floats, structure: bool = True) -> Draft:
    """``messages`` are lambda, ``[nodes, card]``."""
    draft = Draft(frame, query, structure)
    draft.set_families(tilt=messages)
    return draft
