"""q_i = UM_i(e): every node on its own, the paper's problematic example (appendix B).

With ``structure`` UM_i is renormalised on the support of P(x_i | pa_i), given what was drawn before. Without it, it is not: a
table of zeros and ones then has weights of 0 and of 1 / UM_i.
"""

from __future__ import annotations

import numpy as np

from unimarg.conditionals import Draft, Query
from unimarg.frame import Frame
from unimarg.network import Floats


def independent(frame: Frame, query: Query, marginals: Floats, structure: bool = True) -> Draft:
    draft = Draft(frame, query, structure)
    draft.set_families(other=marginals, beta=np.ones(len(marginals)))
    return draft
