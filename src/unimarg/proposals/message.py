"""q_i proportional to P(x_i | pa_i) exp(lambda_i(e)): the table, tilted by what the network says of the evidence below."""

from __future__ import annotations

import numpy as np

from unimarg.conditionals import Draft, Query
from unimarg.frame import Frame
from unimarg.network import Floats


def message(frame: Frame, query: Query, messages: Floats, structure: bool = True) -> Draft:
    """``messages`` are lambda, ``[nodes, card]``. They include what a virtual finding says of its node, which is in the target too."""
    tilt = messages.copy()
    for i, likelihood in query.evidence.virtual.items():
        tilt[i, : len(likelihood)] -= np.log(np.where(likelihood > 0, likelihood, 1))
    draft = Draft(frame, query, structure)
    draft.set_families(tilt=tilt)
    return draft
