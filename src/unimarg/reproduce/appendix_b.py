"""Appendix B of the paper: why a product of correct marginals is a poor proposal.

X_j is caused only and always by X_i, and both have probability 0.001. Drawn independently from their marginals, both are 1 once in
a million samples, with the weight 0.001 / 0.001^2 = 1000; two samples in a thousand have one of them alone, which is impossible, and the
weight 0. Drawn one given the other (``message``; SUM-IS does the same with a trained network) every weight is 1. The picture
has the running estimate of P(X_i = 1), and the largest weight so far as a share of all.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from unimarg.conditionals import Query
from unimarg.counter import key_from_seed
from unimarg.diagnostics import kish
from unimarg.evidence import parse_evidence
from unimarg.frame import frame_of
from unimarg.importance import first_sample
from unimarg.network import Network, Variable
from unimarg.plots import save
from unimarg.proposals.independent import independent
from unimarg.proposals.message import message
from unimarg.provenance import provenance
from unimarg.reproduce.setting import Setting
from unimarg.rows import write_rows
from unimarg.walk import walk

RARE, CHUNK = 0.001, 1 << 17
SAMPLES, QUICK_SAMPLES = 1 << 22, 1 << 21


def reproduce(setting: Setting) -> str:
    found = weights(QUICK_SAMPLES if setting.quick else SAMPLES, setting.seed)
    table, made_by = [], {"seed": setting.seed} | provenance()
    for name, (w, state) in found.items():
        figures = {
            "proposal": name,
            "samples": len(w),
            "largest_weight": float(w.max()),
            "weights_above_2": int((w > 2).sum()),
            "weights_of_0": int((w == 0).sum()),
            "ess": kish(w),
            "estimate": float((w * state).sum() / w.sum()),
            "truth": RARE,
        }
        table.append(figures | made_by)
    write_rows(setting.path("appendix_b.csv"), table)
    save(picture(found), setting.path("appendix_b.png"))
    heavy = table[0]["largest_weight"]
    finding = f"the pair, drawn independently, gets weights of 1000: {'confirmed' if abs(heavy - 1000) < 1 else 'not met in these samples'}"
    return setting.report("appendix_b", table, [finding], tuple(made_by))


def problematic_pair() -> Network:
    variables = [Variable("X_i", ("0", "1")), Variable("X_j", ("0", "1"))]
    return Network(variables, {"X_j": ["X_i"]}, {"X_i": [1 - RARE, RARE], "X_j": [[1, 0], [0, 1]]})


def weights(samples: int, seed: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """For each proposal the weights and the states of X_i."""
    net = problematic_pair()
    frame, query = frame_of(net), Query.make(net, parse_evidence(net, {}), (0, 1))
    marginals = np.array([[1 - RARE, RARE]] * 2)
    drafts = {
        "independent": independent(frame, query, marginals, structure=False),
        "message": message(frame, query, np.zeros((2, 2)), structure=False),
    }
    out = {}
    for name, draft in drafts.items():
        given = draft.finish()
        pieces = [walk(frame.shape, given, key_from_seed(seed), first_sample(first), CHUNK) for first in range(0, samples, CHUNK)]
        states, log_w = (np.concatenate([np.asarray(p[a]) for p in pieces], axis=-1) for a in (0, 1))
        out[name] = np.exp(log_w.astype(np.float64)), states[0]
    return out


def picture(found: dict[str, tuple[np.ndarray, np.ndarray]]) -> Figure:
    figure = Figure(figsize=(7, 5.5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    for (name, (w, state)), colour in zip(found.items(), ("tab:red", "tab:blue"), strict=True):
        at = np.unique(np.geomspace(100, len(w), 400).astype(int)) - 1
        total = np.cumsum(w)
        above.semilogx(at + 1, (np.cumsum(w * state) / np.maximum(total, 1e-9))[at], color=colour, label=name)
        below.loglog(at + 1, (np.maximum.accumulate(w) / np.maximum(total, 1e-9))[at], color=colour, label=name)
    above.axhline(RARE, color="black", lw=0.8, ls=":", label="truth, 0.001")
    above.set(ylabel="estimate of P(X_i = 1)", title="Independent draws from correct marginals: rare, heavy weights")
    below.set(xlabel="samples", ylabel="largest weight / sum of weights")
    above.legend()
    return figure
