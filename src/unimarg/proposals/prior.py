"""q_i = P(x_i | pa_i): likelihood weighting."""

from __future__ import annotations

from unimarg.conditionals import Draft, Query
from unimarg.frame import Frame


def prior(frame: Frame, query: Query, structure: bool = True) -> Draft:
    draft = Draft(frame, query, structure)
    draft.set_families()
    return draft
