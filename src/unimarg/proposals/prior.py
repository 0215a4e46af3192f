"""q_i = P(x_i | pa_i): likelihood weighting."""

from __future__ import annotations

from unimarg.conditionals import Conditionals, Draft, Frame, Query


def prior(frame: Frame, query: Query, structure: bool = True) -> Conditionals:
    draft = Draft(frame, query, structure)
    draft.set_families()
    return draft.finish()
