"""What a notebook shows: networks and posteriors as HTML, bars with whiskers of two standard errors as SVG.

No plotting library, no script, no outside resource. Names come from files and are text, never markup. Colours are those of the page
where they can be, so that a dark page stays dark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from unimarg.names import visible
from unimarg.network import Network, NoisyMax
from unimarg.posterior import Posterior

MOST = 30  # variables of one table; the rest is named by number
LONGEST = 60  # characters of a name
BAR, HEIGHT = 160, 12  # pixels
FILL = "#4c78a8"
CELL = 'style="text-align:left;padding:1px 8px;vertical-align:top"'
NUMBER = 'style="text-align:right;padding:1px 8px;font-variant-numeric:tabular-nums"'


def posterior_html(post: Posterior) -> str:
    """A bar for every state, and the line that says how far to trust it."""
    from unimarg.terminal import digits

    rows = []
    for name in list(post)[:MOST]:
        errors = post.error(name)
        for k, (state, p) in enumerate(post[name].items()):
            value, error = digits(p, errors[state])
            shown = f"{value} ± {error}" if error else value
            head = f"<b>{text(name)}</b>" if k == 0 else ""
            cells = "".join(f"<td {CELL}>{cell}</td>" for cell in (head, text(state), bar(p, errors[state])))
            rows.append(f"{cells}<td {NUMBER}>{shown}</td>")
    return _table(["variable", "state", "probability", ""], rows, _trust(post), _more(len(post), "table()"))


def network_html(net: Network) -> str:
    """Its size, and its first variables with their states and parents."""
    noisy = sum(isinstance(m, NoisyMax) for m in net.mechanisms)
    facts = [f"{len(net):,} variables", f"{net.arc_count:,} arc{'s' * (net.arc_count != 1)}", f"{net.parameter_count:,} parameters"]
    facts += [f"{noisy:,} noisy-max"] if noisy else []
    grouped = any(v.group for v in net.variables)
    rows = []
    for i, v in enumerate(net.variables[:MOST]):
        parents = _list([net.names[p] for p in net.parents[i]])
        cells = [f"<b>{text(v.name)}</b>", *([text(v.group)] if grouped else []), _list(v.states), parents]
        rows.append("".join(f"<td {CELL}>{cell}</td>" for cell in cells))
    heads = ["variable", *(["group"] if grouped else []), "states", "parents"]
    return _table(heads, rows, f"<b>{text(net.name)}</b>: {', '.join(facts)}", _more(len(net), "variables"))


def bar(p: float, error: float) -> str:
    """A probability as a bar, its whiskers two standard errors to each side."""
    if not math.isfinite(p):
        return "unknown"
    parts = [f'<rect width="{BAR * p:.1f}" height="{HEIGHT}" fill="{FILL}"/>']
    if math.isfinite(error) and error > 0:
        low, high = (BAR * min(max(p + s * 2 * error, 0), 1) for s in (-1, 1))
        middle, end = HEIGHT / 2, HEIGHT - 3
        path = f"M{low:.1f} 3V{end}M{high:.1f} 3V{end}M{low:.1f} {middle:g}H{high:.1f}"
        parts.append(f'<path d="{path}" stroke="currentColor" stroke-width="1.5" fill="none"/>')
    frame = f'<rect width="{BAR}" height="{HEIGHT}" fill="currentColor" opacity="0.08"/>'
    label = f"{p:.4f}" + (f" ± {error:.2g}" if math.isfinite(error) and error > 0 else "")
    return f'<svg width="{BAR}" height="{HEIGHT}" role="img" aria-label="{label}">{frame}{"".join(parts)}</svg>'


def text(name: str) -> str:
    """A name as text of a page: shortened, control characters made visible."""
    return escape(visible(name, LONGEST))


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(text(n) for n in names[:8])
    return shown + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _trust(post: Posterior) -> str:
    parts = [post.method]
    if post.samples:
        parts += [post.status, f"{post.samples:,} samples worth {post.ess:,.0f}"]
    if math.isfinite(post.log_evidence):
        parts.append(f"log P(evidence) = {post.log_evidence:.4g}")
    return escape("; ".join(m for m in (", ".join(parts), post.message) if m))


def _more(count: int, where: str) -> str:
    return f"and {count - MOST:,} more variables: see <code>.{where}</code>" if count > MOST else ""


def _table(heads: Sequence[str], rows: Iterable[str], above: str, below: str) -> str:
    head = "".join(f"<th {CELL}>{h}</th>" for h in heads)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    lines = [f"<div>{above}</div>", f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"]
    return f'<div style="font-size:90%">{"".join(lines)}{f"<div>{below}</div>" if below else ""}</div>'
