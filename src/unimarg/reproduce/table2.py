"""Table 2 of the paper: effective samples of 2 million, for each beta, and of what we add."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from unimarg.plots import FILL, LINE, WHISKER, save
from unimarg.reproduce.sampling import BETAS, PROPOSALS, Proposal, asked, beta_name, column, common, sampling_rows
from unimarg.reproduce.setting import Setting
from unimarg.rows import write_rows

PAPER = dict(zip(map(beta_name, BETAS), (7678, 15458, 11779, 1218, 171, 92), strict=True))


def reproduce(setting: Setting) -> str:
    rows, _ = sampling_rows(setting)
    most = {row["proposal"]: row["samples"] for row in sorted(rows, key=lambda row: row["samples"])}
    made_by = common(rows)
    table = [_line(rows, p, most[p.name]) | made_by for p in asked(setting)]
    save(picture(table, setting.quick), setting.path("table2.png"))
    write_rows(setting.path("table2.csv"), table)
    return setting.report("table2", table, list(findings(table)), tuple(made_by))


def _line(rows: list[dict[str, Any]], proposal: Proposal, samples: int) -> dict[str, Any]:
    ess, k, spent = (column(rows, proposal.name, samples, name) for name in ("ess", "k_hat", "spent"))
    return {
        "proposal": proposal.name,
        "samples": samples,
        "sets": len(ess),
        "ess_mean": float(ess.mean()),
        "ess_median": float(np.median(ess)),
        "ess_worst": float(ess.min()),
        "share_median": float(np.median(ess)) / samples,
        "paper_ess": float(PAPER.get(proposal.name, np.nan)),
        "k_hat_median": float(np.median(k)),
        "samples_of_adaptation": int(np.median(spent.astype(float))),
    }


def findings(table: list[dict[str, Any]]) -> Iterator[str]:
    """What the paper says of its Table 2, and whether it holds here: by the median set."""
    ess = {row["proposal"]: row["ess_median"] for row in table}
    share = {row["proposal"]: row["share_median"] for row in table}
    for beta in (0.1, 0.25):
        mixed, plain = ess[beta_name(beta)], ess["beta 0"]
        yield f"beta {beta:g} has more effective samples than beta 0: {_verdict(mixed > plain)} (median {mixed:,.0f} against {plain:,.0f})"
        masked = f"{beta_name(beta)}, structure"
        if masked in ess:
            yield f"the same with structure: {_verdict(ess[masked] > plain)} (median {ess[masked]:,.0f})"
    least = min(BETAS, key=lambda beta: ess[beta_name(beta)])
    yield f"beta 1 has the fewest: {_verdict(least == 1.0)} (median {ess['beta 1']:,.0f})"
    ours = [p.name for p in PROPOSALS if p.ours and p.name in share]
    paper = max((p.name for p in PROPOSALS if not p.ours and p.name in share), key=share.__getitem__)
    if not ours:
        return
    best = max(ours, key=share.__getitem__)
    yield f"the best of ours is {best} (median {share[best]:.2%} of the samples), the best of the paper's {paper} ({share[paper]:.2%})"


def _verdict(holds: bool) -> str:
    return "confirmed" if holds else "not confirmed"


def _shares(table: list[dict[str, Any]], name: str) -> list[float]:
    """Per sample; one where there is none, so that it can be drawn."""
    return [max(row[name], 1.0) / row["samples"] for row in table]


def picture(table: list[dict[str, Any]], quick: bool) -> Figure:
    """Bars of the mean, with median, worst set and the paper's figure."""
    figure = Figure(figsize=(8.5, 4.5), layout="constrained")
    axes = figure.subplots()
    at = np.arange(len(table))
    axes.barh(at, _shares(table, "ess_mean"), color=FILL, label="mean")
    axes.plot(_shares(table, "ess_median"), at, "|", color=WHISKER, ms=16, mew=2, label="median set")
    axes.plot(_shares(table, "ess_worst"), at, "x", color="tab:red", label="worst set")
    if not quick:
        axes.plot(
            [row["paper_ess"] / row["samples"] for row in table],
            at,
            "D",
            color="tab:orange",
            mec=WHISKER,
            label="the paper, on its own network",
        )
    axes.set_yticks(at, [row["proposal"] for row in table])
    axes.invert_yaxis()
    least = 1 / max(row["samples"] for row in table)
    axes.set(xscale="log", xlim=(least, 1.5), xlabel="effective samples per sample drawn")
    axes.axvline(1, color=WHISKER, lw=1, ls=":")
    title = f"{table[0]['network']}, {table[0]['sets']} evidence sets{', a quick run' if quick else ''}; beta and SUM-IS: the paper's"
    axes.set_title(title, fontsize=9, loc="left")
    axes.xaxis.grid(True, color=LINE)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=4, fontsize=8)
    return figure
