"""From OUT/answers.csv and OUT/facts.csv to OUT/summary.csv, OUT/report.md and plots.

    python benchmarks/peers/report.py OUT

Statistics are over evidence sets: medians with 95% bootstrap intervals, and the worst set, which a median hides.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pictures import draw_curves, draw_rates

from unimarg.bootstrap import interval
from unimarg.rows import cell, markdown_table, write_rows

TARGETS = (0.01, 0.001)  # errors to which times are given
EXACT = 1e-6  # an error that is none: single precision
TENTH = 0.1
FAILURES = ("crash", "time-out", "memory", "error", "wrong")


def summary(answers: pd.DataFrame) -> list[dict[str, Any]]:
    """One row for each network, family, engine and budget."""
    rows = []
    sets = {(n, f): part["set"].nunique() for (n, f), part in answers.groupby(["network", "family"])}
    for (network, family, engine, budget), part in answers.groupby(["network", "family", "engine", "budget"], sort=False):
        good = part[part["status"] == "ok"]
        row = {"network": network, "family": family, "engine": engine, "kind": part["kind"].iloc[0], "budget": budget}
        row |= {"sets": sets[network, family], "answered": len(good), "seconds": _median(good["seconds"])}
        row |= {"mae": _median(good["mae"])} | dict(zip(("low", "high"), interval(good["mae"].to_numpy(), np.median), strict=True))
        row |= {"mae_mean": float(good["mae"].mean()), "mae_worst": float(good["mae"].max()), "max_error": _median(good["max_error"])}
        row |= {"max_error_worst": float(good["max_error"].max()), "samples": _median(good["samples"])}
        row |= {f: int((part["status"] == f).sum()) for f in FAILURES}
        row |= {"reference": "/".join(part["reference"].unique()), "reference_error": float(part["reference_error"].mean())}
        rows.append(row)
    return rows


def _median(values: pd.Series) -> float:
    return float(values.median()) if len(values) else math.nan


def seconds_to(points: Sequence[dict[str, Any]], target: float) -> str:
    """Seconds until the median error is below the target: by interpolation between the budgets, in logarithms."""
    points = sorted((p for p in points if p["answered"]), key=lambda p: p["seconds"])
    if not points:
        return "no answer"
    for before, after in zip([None, *points[:-1]], points, strict=True):
        if after["mae"] <= target:
            if before is None or after["kind"] != "sampling":
                return f"{'' if after['kind'] != 'sampling' else '≤ '}{cell(after['seconds'])}"
            x, y = ([math.log(p[k]) for p in (before, after)] for k in ("mae", "seconds"))
            share = (x[0] - math.log(target)) / max(x[0] - x[1], 1e-12)
            return cell(math.exp(y[0] + share * (y[1] - y[0])))
    last = points[-1]
    return f"> {cell(last['seconds'])}" if last["kind"] == "sampling" else "never"


def error_table(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each engine at the longest budget."""
    table = []
    for engine in dict.fromkeys(r["engine"] for r in rows):
        mine = [r for r in rows if r["engine"] == engine]
        last = max(mine, key=lambda r: r["budget"])
        none = last["mae"] < EXACT
        table.append(
            {
                "engine": engine,
                "seconds": last["seconds"],
                "median MAE [95%]": "none" if none else f"{cell(last['mae'])} [{cell(last['low'])}, {cell(last['high'])}]",
                "worst set": "none" if last["mae_worst"] < EXACT else cell(last["mae_worst"]),
                "median of the largest error": "none" if none else cell(last["max_error"]),
            }
            | {f"s to {t:g}": seconds_to(mine, t) for t in TARGETS}
            | {"answered": f"{last['answered']} of {last['sets']}"}
        )
    return table


def reference_remarks(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Where references came from, and whether their error is a tenth of the smallest that is compared."""
    for network, family in dict.fromkeys((r["network"], r["family"]) for r in rows):
        mine = [r for r in rows if (r["network"], r["family"]) == (network, family)]
        error, method = mine[0]["reference_error"], mine[0]["reference"]
        judged = [r["mae"] for r in mine if r["mae"] > EXACT]
        text = f"{network}, {family}: references by {method}, mean standard error {error:.2g}; "
        smallest = min(judged, default=math.nan)
        text += f"smallest error compared {smallest:.2g}" if judged else "no error to compare"
        yield text + (
            ", **of which the references' is more than a tenth: the smallest errors are uncertain**" if error > TENTH * smallest else ""
        )


def failures(answers: pd.DataFrame, facts: pd.DataFrame) -> list[dict[str, Any]]:
    """What went wrong, how often, in its own words."""
    seen: dict[tuple[str, ...], list[Any]] = {}
    for source, place in ((answers, "answer"), (facts, None)):
        for row in source[source["status"] != "ok"].to_dict("records"):
            what = place or str(row["fact"]).split("_")[0]
            first = seen.setdefault((row["engine"], row["network"], row["status"], what), [0, str(row["message"])[:160]])
            first[0] += 1
    names = ("engine", "network", "failure", "of")
    return [dict(zip(names, key, strict=True)) | {"times": n, "message": text} for key, (n, text) in sorted(seen.items())]


def fact_table(facts: pd.DataFrame, wanted: Sequence[tuple[str, str, float]]) -> list[dict[str, Any]]:
    """Engines down, facts across, each a range over networks where there are several."""
    table = []
    for engine in dict.fromkeys(facts["engine"]):
        row: dict[str, Any] = {"engine": engine}
        for fact, title, scale in wanted:
            values = facts[(facts["engine"] == engine) & (facts["fact"] == fact) & (facts["status"] == "ok")]["value"].dropna() * scale
            ends = [] if values.empty else list(dict.fromkeys(cell(float(v)) for v in (values.min(), values.max())))
            row[title] = " to ".join(ends) or "-"
        if any(v != "-" for k, v in row.items() if k != "engine"):
            table.append(row)
    return table


def by_network(facts: pd.DataFrame, fact: str, scale: float = 1.0) -> list[dict[str, Any]]:
    part = facts[facts["fact"] == fact]
    table = []
    for network in dict.fromkeys(part["network"]):
        here = part[part["network"] == network]
        values = {r["engine"]: cell(float(r["value"]) * scale) if r["status"] == "ok" else r["status"] for r in here.to_dict("records")}
        table.append({"network": network} | {e: values.get(e, "-") for e in dict.fromkeys(part["engine"])})
    return table


def _head(about: dict[str, Any], rows: Sequence[dict[str, Any]]) -> list[str]:
    plan = about["plan"]
    versions = ", ".join(f"{k} {v}" for k, v in about["versions"].items())
    sets = max((r["sets"] for r in rows), default=0)
    return [
        "# unimarg and its peers, side by side",
        "",
        f"Commit {about['commit']}, seed {about['seed']}; {versions}; Python {about['python']}, JAX {about['jax']}; {about['hardware']}; "
        f"load {about['load_before']:.1f} at the start and {about['load_after']:.1f} at the end; {about['minutes']:.0f} minutes."
        + (f" **{about['note']}**" if about["note"] else ""),
        "",
        f"{sets} evidence sets for each network"
        + (" (the short version; the long one has 50)" if sets < 50 else "")
        + f"; sampling engines get {', '.join(f'{b:g}' for b in plan['budgets'])} s for each answer about all variables, the others take "
        f"their time, up to {plan['patience']:g} s; {plan['memory'] / 2**30:g} GiB at most. Times are those of answers: importing, "
        "building, compiling and training are listed apart. Errors are absolute errors of marginals over the unobserved nodes of a set: "
        "MAE is their mean. «none»: below 1e-6. Ratios within this run count, absolute times depend on the machine.",
        "",
    ]


RATES = (
    (
        "rows_per_second",
        1.0,
        "Many rows, each with evidence of its own: rows a second, all marginals",
        "Where a library answers row by row it gets a process for each core.\n\n![rows a second](rows.png)\n\n",
    ),
    ("node_samples_per_second", 1e-6, "Forward samples: millions of node-samples a second", ""),
    ("load_seconds", 1e3, "Loading a BIF file: milliseconds", ""),
)


def _sections(out: Path, rows: list[dict[str, Any]], answers: pd.DataFrame, facts: pd.DataFrame) -> Iterator[str]:
    yield "## Error against time\n\n![error against time](curves.png)\n"
    for network, family in dict.fromkeys((r["network"], r["family"]) for r in rows):
        yield f"### {network}, evidence `{family}`\n"
        yield markdown_table(error_table([r for r in rows if (r["network"], r["family"]) == (network, family)]))
    yield "## References\n"
    yield "\n".join(f"- {text}" for text in reference_remarks(rows)) + "\n"
    for fact, scale, title, text in RATES:
        if (facts["fact"] == fact).any():  # a report is written before the first rates are measured, too
            yield f"## {title}\n"
            yield text + markdown_table(by_network(facts, fact, scale))
    yield "## Apart from answers\n\nRanges are over networks; the first answer includes compiling; nbn's AmortizedIS trains while built;"
    yield "memory is the peak of a process.\n"
    wanted = [("import_seconds", "import, s", 1), ("build_seconds", "build, s", 1), ("first_seconds", "first answer, s", 1)]
    yield markdown_table(fact_table(facts, [*wanted, ("training_seconds", "training, s", 1), ("peak_bytes", "memory, MiB", 2.0**-20)]))
    yield "## Where engines fail\n"
    found = failures(answers, facts)
    yield markdown_table(found) if found else "Nowhere.\n"


def write_report(out: Path) -> None:
    answers, facts = (pd.read_csv(out / f"{name}.csv", keep_default_na=False, na_values=[""]) for name in ("answers", "facts"))
    facts["network"], answers["message"], facts["message"] = (
        facts["network"].fillna(""),
        answers["message"].fillna(""),
        facts["message"].fillna(""),
    )
    about = json.loads((out / "about.json").read_text())
    rows = summary(answers)
    made_by = {k: about[k] for k in ("seed", "unimarg", "commit", "jax", "python", "hardware")}
    write_rows(out / "summary.csv", [r | made_by for r in rows])
    draw_curves(rows, out / "curves.png")
    draw_rates(facts, out / "rows.png")
    (out / "report.md").write_text("\n".join([*_head(about, rows), *_sections(out, rows, answers, facts)]))


if __name__ == "__main__":
    write_report(Path(sys.argv[1]))
