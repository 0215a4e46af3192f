"""q_i = beta UM_i(e) + (1 - beta) P(x_i | pa_i), the UM renormalised on the support of P (paper, section 3.1)."""

from __future__ import annotations

import numpy as np

from unimarg.conditionals import Draft, Frame, Query
from unimarg.network import Floats


def hybrid(frame: Frame, query: Query, marginals: Floats, beta: Floats | float, structure: bool = True) -> Draft:
    """``beta`` is a number for all nodes or one for each."""
    draft = Draft(frame, query, structure)
    draft.set_families(other=marginals, beta=np.broadcast_to(np.asarray(beta, dtype=float), len(marginals)))
    return draft
