"""Table 1 of the paper: hidden layers x encodings, mean absolute error and mean maximum error of one-shot marginals.

20,000 steps each, as the paper trains; quick: layers of a sixteenth and 500 steps. A row that is in the CSV already is not trained again.
One more row for what we add: the preset ``default``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from unimarg.evaluation import errors
from unimarg.marginalizer import Marginalizer
from unimarg.network import Network
from unimarg.provenance import COLUMNS as PROVENANCE
from unimarg.provenance import provenance
from unimarg.reproduce.setting import BATCH, References, Say, Setting
from unimarg.rows import append_row, read_rows
from unimarg.trainer import train

PAPER = {  # (hidden, encoding): mean absolute error, mean maximum error
    ((2048,), "two_bit"): (0.0063, 0.3425),
    ((2048,), "prior"): (0.0060, 0.3223),
    ((4096,), "two_bit"): (0.0053, 0.2982),
    ((4096,), "prior"): (0.0052, 0.2951),
    ((1024, 1024), "two_bit"): (0.0081, 0.4492),
    ((1024, 1024), "prior"): (0.0083, 0.4726),
    ((2048, 2048), "two_bit"): (0.0071, 0.4076),
    ((2048, 2048), "prior"): (0.0071, 0.4264),
}
SIZES = tuple(dict.fromkeys(hidden for hidden, _ in PAPER))
QUICK_WIDTH = 16  # a quick run has layers of one sixteenth
KEY = ("network", "hidden", "encoding", "steps", "seed", "references")
FIGURES = ("mae", "mean_max", "worst_max", "paper_mae", "paper_mean_max", "reference_error", "sets", "seconds")
COLUMNS = (*KEY, *FIGURES, *PROVENANCE)
UNKNOWN = (float("nan"), float("nan"))
HIDDEN = ("network", "seed", "references", "sets", *PROVENANCE)


def reproduce(setting: Setting) -> str:
    net = setting.net
    sizes = [tuple(h // QUICK_WIDTH for h in hidden) for hidden in SIZES] if setting.quick else SIZES
    references, file = setting.references(net), setting.path("table1.csv")
    rows = search(net, references, sizes, setting.steps("paper"), setting.seed, file, setting.say)
    steps = setting.steps("default")
    rows.append(_found_or_made(net, references, ("default", "", steps), UNKNOWN, setting.seed, file, lambda: setting.model(net, "default")))
    return setting.report("table1", rows, list(findings(rows)), HIDDEN)


def search(
    net: Network, references: References, sizes: Sequence[tuple[int, ...]], steps: int, seed: int, file: Path, say: Say = lambda text: None
) -> list[dict[str, Any]]:
    """Train what is not in the file yet, one row after the other, and give all rows that belong to this search."""

    def trained(hidden: tuple[int, ...], encoding: str) -> Marginalizer:
        say(f"training {hidden}, {encoding}, {steps:,} steps")
        return train(net, "paper", f"{steps} steps", seed, batch=BATCH, hidden=hidden, encoding=encoding)

    found = []
    for paper_size, hidden in zip(SIZES, sizes, strict=False):
        for encoding in ("two_bit", "prior"):
            label, paper = ("x".join(map(str, hidden)), encoding, steps), PAPER[paper_size, encoding]
            found.append(_found_or_made(net, references, label, paper, seed, file, partial(trained, hidden, encoding)))
    return found


def _found_or_made(
    net: Network,
    references: References,
    label: tuple[str, str, int],
    paper: tuple[float, float],
    seed: int,
    file: Path,
    trained: Callable[[], Marginalizer],
) -> dict[str, Any]:
    key = dict(zip(KEY, map(str, (net.name, *label, seed, references.source)), strict=True))
    for row in read_rows(file, COLUMNS):
        if key.items() <= row.items():
            return row | {name: float(row[name] or "nan") for name in FIGURES if name != "sets"}
    row = key | _figures(net, references, trained(), paper) | provenance()
    append_row(file, COLUMNS, row)
    return row


def _figures(net: Network, references: References, model: Marginalizer, paper: tuple[float, float]) -> dict[str, Any]:
    mean, largest = errors(model.marginals_of_states(references.evidence), references.truth, references.evidence, net)
    ours = (float(mean.mean()), float(largest.mean()), float(largest.max()))
    values = (*ours, *paper, references.mean_error(net), str(len(mean)), float(model.history["seconds"]))
    return dict(zip(FIGURES, values, strict=True))


def findings(table: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What the paper says of its Table 1, and whether it holds here."""
    searched, default = table[:-1], table[-1]
    best = min(searched, key=lambda row: row["mae"])
    one = [row for row in searched if "x" not in row["hidden"]]
    two = [row for row in searched if "x" in row["hidden"]]
    widest = searched[2]["hidden"] if len(searched) > 2 else searched[0]["hidden"]
    holds = best["hidden"] == widest
    yield f"the widest single layer is best: {_verdict(holds)} (least MAE {best['mae']:.4f} by {best['hidden']}, {best['encoding']})"
    if two:
        a, b = (min(row["mae"] for row in rows) for rows in (one, two))
        yield f"one layer is better than two: {_verdict(a < b)} (best MAE {a:.4f} against {b:.4f})"
    by = {(row["hidden"], row["encoding"]): row["mae"] for row in searched}
    helped = [by[hidden, "prior"] < by[hidden, "two_bit"] for hidden in dict.fromkeys(row["hidden"] for row in searched)]
    yield f"priors as input help: in {sum(helped)} of {len(helped)} sizes (the paper: in 2 of 4, one equal)"
    yield f"the preset default has MAE {default['mae']:.4f}, the references' own error is {default['reference_error']:.1e}"


def _verdict(holds: bool) -> str:
    return "confirmed" if holds else "not confirmed"
