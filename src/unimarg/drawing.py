"""A network's graph as a picture: causes on the left, effects on the right, by Matplotlib without a display.

A node's column is the longest path to it, a root's the one before its first child; within a column nodes are ordered by the mean place
of their neighbours, again and again, so that few arcs cross.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from unimarg.errors import UsageError, whole_number
from unimarg.names import visible
from unimarg.network import Network
from unimarg.plots import picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 150  # nodes of one picture
SWEEPS = 12
COLUMN, ROW = 2.4, 0.34  # inches
COLOURS = ("#dbe7f3", "#fbe3c8", "#d9efd6", "#ecdcf0", "#f6d9d9", "#e3e3e3")  # of groups, in their order


def network_figure(net: Network, around: str | None = None, distance: int = 1) -> Figure:
    """All of a network, or what is at most ``distance`` arcs from one variable."""
    distance = whole_number(distance, "the distance", 0, 100)
    nodes = list(range(len(net))) if around is None else neighbourhood(net, net.find(around), distance)
    if len(nodes) > MOST:
        name = net.names[0]
        hint = "a smaller distance (distance=, --distance)" if around else f"around={name!r} (--around {shlex.quote(name)}), for example"
        raise UsageError(f"a picture of {len(nodes):,} nodes cannot be read (more than {MOST}); draw a part of them: {hint}")
    columns = _columns(net, nodes)
    place = {i: (x, y - (len(column) - 1) / 2) for x, column in enumerate(columns) for y, i in enumerate(column)}
    tallest = max(map(len, columns))
    figure = picture((1 + COLUMN * len(columns), 1 + ROW * tallest))
    axes = figure.subplots()
    axes.set_axis_off()
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(tallest / 2, -tallest / 2))
    groups = list(dict.fromkeys(net.variables[i].group for i in nodes))
    boxes = {}
    for i in nodes:
        colour = COLOURS[groups.index(net.variables[i].group) % len(COLOURS)]
        edge = {"boxstyle": "round,pad=0.3", "facecolor": colour, "linewidth": 1.8 if net.names[i] == around else 0.6}
        style = {"ha": "center", "va": "center", "fontsize": 8, "color": "#111111", "parse_math": False, "zorder": 3}
        boxes[i] = axes.text(*place[i], visible(net.names[i], 28), bbox=edge, **style)
    figure.draw_without_rendering()  # now the boxes have their sizes, and arcs can end at their edges
    for cause, effect in [(p, i) for i in nodes for p in net.parents[i] if p in place]:
        bend = 0.12 if place[effect][0] - place[cause][0] > 1 else 0.0  # past what lies between
        ends = {"patchA": boxes[cause].get_bbox_patch(), "patchB": boxes[effect].get_bbox_patch(), "connectionstyle": f"arc3,rad={bend}"}
        axes.annotate("", place[effect], place[cause], zorder=1, arrowprops={"arrowstyle": "-|>", "color": "#888888", "lw": 0.7, **ends})
    return figure


def neighbourhood(net: Network, node: int, distance: int) -> list[int]:
    """What is at most so many arcs away, in either direction."""
    seen = {node}
    for _ in range(distance):
        seen |= {j for i in seen for j in (*net.parents[i], *net.children[i])}
    return sorted(seen)


def _columns(net: Network, nodes: list[int]) -> list[list[int]]:
    level: dict[int, int] = {}
    for i in nodes:  # in topological order
        level[i] = 1 + max((level[p] for p in net.parents[i] if p in level), default=-1)
    for i in reversed(nodes):
        if not level[i]:
            level[i] = min((level[c] for c in net.children[i] if c in level), default=1) - 1
    columns: list[list[int]] = [[] for _ in range(1 + max(level.values()))]
    for i in nodes:
        columns[level[i]].append(i)
    near = {i: [j for j in (*net.parents[i], *net.children[i]) if j in level] for i in nodes}
    for _ in range(SWEEPS):
        height = {i: y - (len(column) - 1) / 2 for column in columns for y, i in enumerate(column)}
        for column in columns:
            column.sort(key=lambda i: sum(height[j] for j in near[i]) / len(near[i]) if near[i] else 0.0)
            height |= {i: y - (len(column) - 1) / 2 for y, i in enumerate(column)}
    return columns
