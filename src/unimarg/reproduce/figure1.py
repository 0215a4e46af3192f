"""Figure 1 of the paper: correlation of importance-sampled marginals with the reference, against the number of samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from unimarg.plots import LINE, save
from unimarg.reproduce.sampling import BETAS, PROPOSALS, Proposal, asked, beta_name, column, common, sampling_rows
from unimarg.reproduce.setting import Setting
from unimarg.rows import write_rows

PAPER = {("beta 0", 2_000_000): 0.92, ("beta 0.25", 250_000): 0.95, ("beta 0.25", 2_000_000): 0.96}  # as its text says
OURS = {"SUM-IS": "tab:pink", "sequential": "tab:purple", "message": "tab:red", "lookahead": "tab:orange", "adaptive": "tab:brown"}
LEAST = 1e-7  # 1 - correlation that is drawn
BOOTSTRAP = 2000  # resamplings of the sets, for the interval of the mean
GOOD = (0.1, 0.25, 0.5)


def reproduce(setting: Setting) -> str:
    rows, references = sampling_rows(setting)
    points = sorted({row["samples"] for row in rows})
    made_by, own_error = common(rows), references.mean_error(setting.net)
    table = [_line(rows, p, n) | {"reference_error": own_error} | made_by for p in asked(setting) for n in points if n <= p.most]
    save(picture(table, setting.quick), setting.path("figure1.png"))
    write_rows(setting.path("figure1.csv"), table)
    ends = [row for row in table if row["samples"] in (points[-1], points[-4])]  # an eighth of the samples, and all
    return setting.report("figure1", ends, list(findings(table)), (*made_by, "low", "high"))


def _line(rows: list[dict[str, Any]], proposal: Proposal, samples: int) -> dict[str, Any]:
    r, e = (column(rows, proposal.name, samples, name) for name in ("correlation", "mae"))
    means = np.random.default_rng(0).choice(r, (BOOTSTRAP, len(r))).mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return {
        "proposal": proposal.name,
        "samples": samples,
        "sets": len(r),
        "correlation": float(r.mean()),
        "low": float(low),
        "high": float(high),
        "correlation_median": float(np.median(r)),
        "correlation_worst": float(r.min()),
        "mae": float(np.nanmean(e)) if not np.isnan(e).all() else np.nan,
        "mae_median": float(np.nanmedian(e)) if not np.isnan(e).all() else np.nan,
        "mae_worst": float(e.max()),  # not a number where a set has no answer
        "paper_correlation": PAPER.get((proposal.name, samples), np.nan),
    }


def findings(table: list[dict[str, Any]]) -> Iterator[str]:
    """What the paper says of its Figure 1, and whether it holds here."""
    found = {(row["proposal"], row["samples"]): row for row in table}
    points = sorted({row["samples"] for row in table})
    most, eighth = points[-1], points[-4]
    plain = found["beta 0", most]["correlation"]
    for beta in GOOD:
        mixed = found[beta_name(beta), eighth]["correlation"]
        yield (
            f"beta {beta:g} with {eighth:,} samples beats beta 0 with {most:,}: {_verdict(mixed > plain)}"
            f" (mean correlation {mixed:.5f} against {plain:.5f})"
        )
        if own := found.get((f"{beta_name(beta)}, structure", eighth)):
            yield f"the same with structure: {_verdict(own['correlation'] > plain)} ({own['correlation']:.5f})"
    r = {beta: found[beta_name(beta), most]["correlation"] for beta in BETAS}
    yield f"beta 1 is the worst of all at {most:,} samples: {_verdict(min(r, key=r.__getitem__) == 1.0)} (mean correlation {r[1.0]:.5f})"

    own, least = table[0]["reference_error"], min((row["mae"] for row in table if row["mae"] > 0), default=np.nan)
    if own > 0:
        smallest = next(row for row in table if row["mae"] == least)
        yield (
            f"the references' mean standard error, {own:.1e}, is {least / own:.1f} times smaller than the least mean error,"
            f" {least:.1e} by {smallest['proposal']} with {smallest['samples']:,} samples: "
            + ("small enough" if least >= 10 * own else "below ten times, so that this end of the curves is uncertain")
        )


def _verdict(holds: bool) -> str:
    return "confirmed" if holds else "not confirmed"


def picture(table: list[dict[str, Any]], quick: bool) -> Figure:
    """Correlation on the left, mean absolute error on the right, both over the number of samples."""
    figure = Figure(figsize=(12, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    for proposal in PROPOSALS:
        rows = [row for row in table if row["proposal"] == proposal.name]
        if not rows:
            continue
        n = [row["samples"] for row in rows]
        style: dict[str, Any] = {"color": OURS.get(proposal.name), "lw": 1.8, "ls": "--" if proposal.ours else "-", "label": proposal.name}
        if proposal.name == "adaptive":
            style["ls"] = ":"  # often the same as lookahead, which stays to be seen below
        if proposal.beta is not None:
            style["color"] = colormaps["viridis"](0.95 * proposal.beta)
        left.plot(n, [_gap(row["correlation"]) for row in rows], marker="o", ms=3, **style)
        left.fill_between(
            n, [_gap(row["low"]) for row in rows], [_gap(row["high"]) for row in rows], color=style["color"], alpha=0.12, lw=0
        )
        right.plot(n, [row["mae"] for row in rows], marker="o", ms=3, **style)
    left.set(xscale="log", yscale="log", xlabel="samples", ylabel="correlation with the reference")
    left.invert_yaxis()
    left.yaxis.set_major_formatter(FuncFormatter(lambda gap, _: f"{1 - gap:.7f}".rstrip("0").rstrip(".") or "0"))
    left.yaxis.set_minor_formatter(NullFormatter())
    sets = table[0]["sets"]
    left.set_title(f"mean of {sets} evidence sets, shaded: 95% interval of the mean", fontsize=9, loc="left")
    right.set(xscale="log", yscale="log", xlabel="samples", ylabel="mean absolute error of the marginals")
    if (own := table[0]["reference_error"]) > 0:
        right.axhline(own, color="black", lw=1, ls=":", label="reference's own error")
    right.set_title(table[0]["network"] + (", a quick run" if quick else ""), fontsize=9, loc="left")
    for axes in (left, right):
        axes.grid(True, color=LINE)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*right.get_legend_handles_labels(), loc="outside right center", title="paper: solid\nours: broken", fontsize=9)
    return figure


def _gap(r: float) -> float:
    return max(1 - r, LEAST)
