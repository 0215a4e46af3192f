"""The report's plots: error against time, and rows a second."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator

COLOURS = {"unimarg": "#c1272d", "pyAgrum": "#1f4e9c", "pgmpy": "#2a8f3c", "pomegranate": "#b8860b", "nbn": "#7b3fa0"}
MARKERS = ("o", "s", "^", "D", "v")
COLUMNS = 4


def style(engine: str, engines: Sequence[str]) -> dict[str, Any]:
    """A colour for each library, a marker for each of its methods."""
    library = engine.split(" ", 1)[0]
    mine = [e for e in engines if e.startswith(f"{library} ")]
    return {"color": COLOURS.get(library, "#555555"), "marker": MARKERS[mine.index(engine) % len(MARKERS)], "ms": 6, "lw": 1.5}


def draw_curves(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """A panel for each network and family: median error against median time, bands of 95%; exact engines on the bottom line."""
    panels = list(dict.fromkeys((r["network"], r["family"]) for r in rows))
    engines = list(dict.fromkeys(r["engine"] for r in rows if r["answered"]))
    across = min(COLUMNS, len(panels))
    down = -(-len(panels) // across)
    figure = Figure(figsize=(max(4.4 * across, 9), 3.9 * down + 1.9), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False).ravel()
    for axes, panel in zip(grid, panels, strict=False):
        _panel(axes, [r for r in rows if (r["network"], r["family"]) == panel and r["answered"]], engines)
        axes.set_title(f"{panel[0]}, {panel[1]} evidence", fontsize=11, loc="left")
        axes.set_xlabel("seconds for one answer about all variables", fontsize=9)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    for axes in grid[::across]:
        axes.set_ylabel("mean absolute error of the marginals", fontsize=9)
    figure.suptitle("median over evidence sets, with 95% intervals; hollow: not all sets were answered", fontsize=9, color="#555555")
    handles = [Line2D([], [], label=e, **style(e, engines)) for e in engines]
    figure.legend(handles=handles, loc="outside lower center", ncols=3 if across < 3 else 5, fontsize=9, frameon=False)
    figure.savefig(path, dpi=110)


def _panel(axes: Any, rows: Sequence[dict[str, Any]], engines: Sequence[str]) -> None:
    errors = [r["mae"] for r in rows if r["mae"] > 1e-6]
    floor = 10 ** (math.floor(math.log10(min(errors, default=1e-3))) - 1)  # where exact answers are drawn
    axes.axhspan(floor / 3, floor * 3, color="#eeeeee", zorder=0)
    for engine in dict.fromkeys(r["engine"] for r in rows):
        mine = sorted((r for r in rows if r["engine"] == engine), key=lambda r: r["seconds"])
        seconds = [r["seconds"] for r in mine]
        made, middle = style(engine, engines), [r["mae"] if r["mae"] > 1e-6 else floor for r in mine]
        hollow = {"mfc": "white"} if mine[-1]["answered"] < mine[-1]["sets"] else {}
        axes.plot(seconds, middle, zorder=3, **made, **hollow)
        if middle[0] > floor:
            low, high = ([max(r[end], floor) for r in mine] for end in ("low", "high"))
            if len(mine) > 1:
                axes.fill_between(seconds, low, high, color=made["color"], alpha=0.15, lw=0)
            else:
                axes.vlines(seconds, low, high, color=made["color"], lw=3, alpha=0.35)
    axes.set(xscale="log", yscale="log")
    axes.set_ylim(bottom=floor / 3)
    axes.yaxis.set_major_locator(LogLocator(numticks=12))
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda y, _: "exact" if y < floor * 1.01 and y > floor * 0.99 else "" if y < floor * 3 else f"{y:g}")
    )
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.grid(color="#dddddd", lw=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def draw_rates(facts: pd.DataFrame, path: Path) -> None:
    """Rows a second: a group of bars for each network."""
    part = facts[(facts["fact"] == "rows_per_second") & (facts["status"] == "ok")]
    networks, engines = (list(dict.fromkeys(part[name])) for name in ("network", "engine"))
    if not engines:
        return
    height = 0.8 / len(engines)
    figure = Figure(figsize=(8.5, 1.6 + 0.23 * len(engines) * len(networks)), layout="constrained")
    axes = figure.subplots()
    for k, engine in enumerate(engines):
        mine = part[part["engine"] == engine]
        at = [networks.index(n) + (k - (len(engines) - 1) / 2) * height for n in mine["network"]]
        values = [float(v) for v in mine["value"]]
        axes.barh(at, values, 0.88 * height, color=style(engine, engines)["color"], alpha=0.8)
        for y, v in zip(at, values, strict=True):
            axes.annotate(f" {engine}: {v:,.0f}" if v >= 10 else f" {engine}: {v:.2g}", (v, y), va="center", fontsize=7)
    axes.set_yticks(range(len(networks)), networks)
    axes.invert_yaxis()
    axes.set(xscale="log", xlabel="rows a second, all marginals of each row")
    axes.set_xlim(min(part["value"]) / 3, 100 * max(part["value"]))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", color="#dddddd", lw=0.6)
    axes.set_axisbelow(True)
    figure.savefig(path, dpi=110)
