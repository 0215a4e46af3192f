"""Pictures of posteriors and of comparisons, by Matplotlib without a display."""

from __future__ import annotations

import io
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from unimarg.errors import UsageError
from unimarg.formats.files import check_output, replacing
from unimarg.names import visible
from unimarg.posterior import Posterior

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
MOST_BARS = 400  # of one picture; further variables are left out, and the title says so
ROW = 0.24  # inches
LONGEST = 60  # characters of a name
EXACT = 1e-9  # an error that is none
FILL, WHISKER, LINE = "#4c78a8", "#222222", "#dddddd"


def check_path(path: Path) -> None:
    """Whether a picture can be written there, before the work that fills it."""
    check_output(path, "a picture", SUFFIXES)


def save_posterior(post: Posterior, names: Sequence[str], path: Path) -> None:
    """The marginals of some variables as a picture."""
    save(posterior_figure(post, names), path)


def save_comparison(table: pd.DataFrame, path: Path) -> None:
    """The errors that ``unimarg.evaluate`` found, as a picture."""
    save(comparison_figure(table), path)


def save(figure: Figure, path: Path) -> None:
    check_path(path)
    with replacing(str(path)) as out:
        figure.savefig(out, format=path.suffix.lower()[1:], dpi=120)


def picture(size: tuple[float, float]) -> Figure:
    """An empty figure of so many inches that a notebook shows as it is, without pyplot."""
    from matplotlib.figure import Figure

    class Picture(Figure):
        def _repr_png_(self) -> bytes:
            out = io.BytesIO()
            self.savefig(out, format="png", dpi=120)
            return out.getvalue()

    return Picture(figsize=size, layout="constrained")


def posterior_figure(post: Posterior, names: Sequence[str] | None = None) -> Figure:
    """Bars for every state, grouped by variable, with whiskers of two standard errors."""
    shown = _first(post, list(post) if names is None else list(names))
    if not shown:
        raise UsageError("there is nothing to draw: the posterior is of no variable, or none of them is named")
    rows: list[tuple[float, str, float, float]] = []  # position, state, probability, whisker
    heads: list[tuple[float, str]] = []
    at = 0.0
    for name in shown:
        heads.append((at, visible(name, LONGEST)))
        for state, p in post[name].items():
            at += 1
            error = post.error(name)[state]
            rows.append((at, visible(state, LONGEST), p if math.isfinite(p) else 0.0, 2 * error if math.isfinite(error) else 0.0))
        at += 1.4
    positions, labels, values, whiskers = (list(column) for column in zip(*rows, strict=True))
    figure = picture((8, 1.4 + ROW * at))
    axes = figure.subplots()
    axes.barh(positions, values, height=0.8, color=FILL)
    low = [min(w, v) for w, v in zip(whiskers, values, strict=True)]
    high = [min(w, 1 - v) for w, v in zip(whiskers, values, strict=True)]
    if any(whiskers):
        axes.errorbar(values, positions, xerr=[low, high], fmt="none", ecolor=WHISKER, elinewidth=1, capsize=2)
    ticks = axes.set_yticks([a for a, _ in heads] + positions, [name for _, name in heads] + labels, fontsize=8, parse_math=False)
    for tick in ticks[: len(heads)]:
        tick.label1.set_fontweight("bold")
        tick.tick1line.set_visible(False)
    axes.set(xlim=(0, 1), ylim=(at - 0.8, -0.8), xlabel="probability" + (", whiskers: two standard errors" if any(whiskers) else ""))
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.grid(True, color=LINE)
    axes.set_axisbelow(True)
    axes.set_title(_title(post, len(shown), len(names or post)), fontsize=9, loc="left")
    return figure


def comparison_figure(table: pd.DataFrame) -> Figure:
    """A panel for each family: a dot for the mean absolute error of each evidence set; medians stand on their 95% intervals."""
    import numpy as np

    from unimarg.bootstrap import interval

    rows = table.to_dict("records")
    families, methods = (list(dict.fromkeys(row[name] for row in rows)) for name in ("family", "method"))
    figure = picture((2.5 + 4.5 * len(families), 1.8 + 0.4 * len(methods)))
    panels = figure.subplots(1, len(families), sharey=True, squeeze=False)[0]
    for axes, family in zip(panels, families, strict=True):
        part = [row for row in rows if row["family"] == family]
        floor = 0.3 * min((row["mae"] for row in part if row["mae"] > EXACT), default=EXACT)  # where exact answers are drawn
        for at, method in enumerate(methods):
            shown = sorted(max(row["mae"], floor) for row in part if row["method"] == method and math.isfinite(row["mae"]))
            axes.plot(shown, [at + 0.5 * (k % 5 - 2) / 5 for k in range(len(shown))], ".", color=FILL, alpha=0.6, ms=5)
            if shown:
                axes.plot([statistics.median(shown)] * 2, [at - 0.35, at + 0.35], color=WHISKER, lw=2)
                axes.plot(interval(shown, np.median), [at + 0.35] * 2, color=WHISKER, lw=2)
        reference = sum(row["reference_error"] for row in part) / len(part)
        if reference > floor:
            axes.axvline(reference, color=WHISKER, ls=":", lw=1)
        axes.set(xscale="log", xlabel="mean absolute error of each set" + "; dotted: the reference's own" * (reference > floor))
        sets = len({row["set"] for row in part})
        exact = "; left edge: exact" * any(row["mae"] <= EXACT for row in part)
        title = f"{visible(part[0]['network'], LONGEST)}, {family}, {sets} sets; median and its 95% interval{exact}"
        axes.set_title(title, fontsize=9, loc="left")
        axes.set_yticks(range(len(methods)), methods)
        axes.set_ylim(len(methods) - 0.5, -0.5)
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.grid(True, color=LINE)
    return figure


def _first(post: Posterior, names: Sequence[str]) -> list[str]:
    bars, out = 0, []
    for name in names:
        bars += len(post[name])
        if bars > MOST_BARS and out:
            break
        out.append(name)
    return out


def _title(post: Posterior, shown: int, wanted: int) -> str:
    text = post.method if not post.samples else f"{post.method}, {post.status}, {post.samples:,} samples worth {post.ess:,.0f}"
    return text + (f"; the first {shown} of {wanted} variables" if shown < wanted else "")
