"""``unimarg.evaluate``: methods side by side on the same evidence sets, against references that have an error of their own.

For each evidence set, over the unobserved nodes, p the answer with standard errors s, and p*, s* the reference's:

    mae, max_error         mean and largest |p - p*| over their states
    correlation            Pearson's, of the vectors p and p* over all states but each node's first, as the paper's P(X_i = 1)
    ess_share              Kish's effective samples per sample drawn, those of pilots and adaptation counted
    k_hat                  tail of the weights
    coverage               share of the states with s > 0 for which |p - p*| <= 1.96 sqrt(s^2 + s*^2): 0.95 if errors are honest
    log_evidence_error     |log P(e) - log P*(e)|
    seconds                of the answer; what is compiled is compiled before

A reference is exact where ``auto`` would be; otherwise a long run of ``lookahead`` or ``adaptive`` importance sampling, from random numbers
of its own, whose mean and largest standard errors are columns.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unimarg.bootstrap import interval
from unimarg.checkpoint import digest
from unimarg.errors import FormatError, TooExpensiveError, UnimargError, UsageError, closest, whole_number
from unimarg.evaluation import FAMILIES, evidence_sets
from unimarg.formats.interop import AnyNetwork, as_network
from unimarg.importance import MAX_SAMPLES
from unimarg.marginalizer import Marginalizer
from unimarg.network import Floats, Ints, Network
from unimarg.posterior import Posterior
from unimarg.provenance import COLUMNS as PROVENANCE
from unimarg.provenance import provenance
from unimarg.query import WITHOUT_MODEL, Asked, Options, check
from unimarg.rows import append_row, markdown_table, read_rows
from unimarg.tables import given

if TYPE_CHECKING:
    import pandas as pd

KEY = ("network", "settings", "family", "set", "method")
METRICS = ("mae", "max_error", "correlation", "ess_share", "k_hat", "coverage", "log_evidence_error", "seconds")
REFERENCE = ("reference", "reference_error", "reference_max_error", "reference_log_evidence_error")
COLUMNS = (*KEY, "observed", *METRICS, "samples", "status", "message", *REFERENCE, "seed", *PROVENANCE)
WHOLE = ("set", "observed", "samples", "seed")
NUMBERS = (*METRICS, *REFERENCE[1:])
STATISTICS = ("mean", "mean from", "mean to", "median", "worst")
HIGHER_IS_BETTER = ("correlation", "ess_share", "coverage")
SHOWN = (*METRICS, "reference_error")
SETS, SEED, SAMPLES, REFERENCE_SAMPLES = 50, 4242, 1 << 16, 1 << 22
TENTH = 0.1  # of an error: what a reference's own may be at most

Told = Callable[[int, int, str], None]  # rows done, rows in all, what comes next


def evaluate(
    source: AnyNetwork | Marginalizer,
    methods: Sequence[str] | None = None,
    families: Sequence[str] = ("random",),
    sets: int = SETS,
    seed: int = SEED,
    *,
    file: str | PathLike[str] | None = None,
    reference_samples: int = REFERENCE_SAMPLES,
    reference_error: float | None = None,
    progress: Told | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Judge methods on evidence sets of a network, or of a trained model: one row for each (family, set, method).

    ``methods`` are those of ``Marginalizer.query``; ``"hybrid:0.1"`` is hybrid with that beta; None: all that there are, but ``exact``.
    ``families``: random, uniform, leaves, clinical. ``options`` of the methods: ``samples`` (65,536, all of them drawn), ``target_error``,
    ``seconds``, ``structure``. A sampled reference ends after ``reference_samples``, or when its largest standard error is below
    ``reference_error``. With ``file``, a CSV, every row is written when it is there, and rows found in it are not computed again.
    ``unimarg.comparison.summary`` gives mean, its 95% interval, median and worst set.
    """
    model = source if isinstance(source, Marginalizer) else None
    net = source.net if isinstance(source, Marginalizer) else as_network(source)
    made = _options(options)
    seed = whole_number(seed, "a seed", 0, 2**32 - 1)
    run = _Run(net, model, made, seed, whole_number(sets, "the number of evidence sets", 1, 10**6))
    run.reference_options = Options(whole_number(reference_samples, "the reference's samples", 1, MAX_SAMPLES), reference_error)
    run.reference_options.limits()
    labels = _labels(methods, model)
    for family in families:
        if family not in FAMILIES:
            raise UsageError(f"there is no evidence family {family!r}; {closest(family, FAMILIES)}")
    return run.table(labels, list(dict.fromkeys(families)), None if file is None else Path(file), progress)


def _options(given: Mapping[str, Any]) -> Options:
    allowed = ("samples", "target_error", "seconds", "structure")
    for name in given:
        if name not in allowed:
            raise UsageError(f"there is no option {name!r}; {closest(name, allowed)}")
    made = Options(**{"samples": SAMPLES, "target_error": None, **given})
    made.limits()
    return made


def methods_of(model: Marginalizer | None) -> list[str]:
    """What can be compared without being asked for: all but ``exact``, which may take long."""
    if model is None:
        return [m for m in WITHOUT_MODEL if m != "exact"]
    found = ["auto", "um", "prior", "lookahead", "adaptive", "independent", "hybrid"]
    found += ["message"] if "message" in model.recipe.architecture.heads else []
    return found + (["sequential"] if model.sequential else [])


def _labels(methods: Sequence[str] | None, model: Marginalizer | None) -> list[str]:
    if isinstance(methods, str):
        raise UsageError(f"methods must be a list of names, not the string {methods!r}")
    labels = methods_of(model) if methods is None else list(dict.fromkeys(methods))
    if not labels:
        raise UsageError("there is no method to judge")
    for label in labels:
        check(_method(label)[0], model, {})
    return labels


def _method(label: str) -> tuple[str, float | str | None]:
    """The method and its beta."""
    name, colon, beta = label.partition(":")
    if not colon or label == "hybrid:fit":
        return name, beta or None
    try:
        value = float(beta)
    except ValueError:
        value = math.nan
    if name != "hybrid" or not 0 <= value <= 1:
        raise UsageError(f"a method is a name, or hybrid:BETA with a number from 0 to 1 or 'fit', not {label!r}")
    return name, value


class _Run:
    """Evidence sets of one network, and rows for them."""

    reference_options: Options

    def __init__(self, net: Network, model: Marginalizer | None, options: Options, seed: int, sets: int):
        self.net, self.model, self.options, self.seed, self.sets = net, model, options, seed, sets
        self.made_by = provenance()
        self.warm: set[str] = set()

    def table(self, labels: Sequence[str], families: Sequence[str], file: Path | None, progress: Told | None) -> pd.DataFrame:
        import pandas as pd

        settings = self._settings()
        rows = {tuple(row[k] for k in KEY): row for row in (_read(file) if file else [])}
        wanted = [(self.net.name, settings, f, s, label) for f in families for s in range(self.sets) for label in labels]
        done = sum(key in rows for key in wanted)
        for family in families:
            for number, row in enumerate(evidence_sets(self.net, family, self.sets, self.seed)):
                keys = [(self.net.name, settings, family, number, label) for label in labels]
                truth = None
                for key in (k for k in keys if k not in rows):
                    if progress:
                        progress(done, len(wanted), f"{family}, set {number + 1}" + (": reference" if truth is None else f": {key[-1]}"))
                    if truth is None:
                        truth = self._reference(row, family, number)
                    rows[key] = dict(zip(KEY, key, strict=True)) | self._row(row, truth, family, number, key[-1])
                    if file:
                        append_row(file, COLUMNS, rows[key])
                    done += 1
        if progress:
            progress(done, len(wanted), "")
        return pd.DataFrame([rows[key] for key in wanted], columns=list(COLUMNS))

    def _settings(self) -> str:
        """A digest of all that an answer depends on beside family, set and method."""
        asked = (digest(self.net, self.model), self.options, self.reference_options, self.seed, self.sets)
        return hashlib.sha256(repr(asked).encode()).hexdigest()[:12]

    def _asked(self, row: Ints, model: Marginalizer | None, options: Options, *stream: int, **changes: Any) -> Asked:
        """With random numbers of the set's own."""
        return Asked(self.net, model, given(self.net, row), None, replace(options, seed=stream_seed(self.seed, *stream), **changes))

    def _reference(self, row: Ints, family: str, number: int) -> Posterior:
        return self._asked(row, None, self.reference_options, FAMILIES.index(family), number, 1).by("auto")

    def _row(self, row: Ints, truth: Posterior, family: str, number: int, label: str) -> dict[str, Any]:
        method, beta = _method(label)
        stream = (FAMILIES.index(family), number, 0)
        self._warm_up(row, method, beta)
        asked = self._asked(row, self.model, self.options, *stream, beta=beta)
        out: dict[str, Any] = {"observed": int((row >= 0).sum()), "samples": 0, "seed": self.seed} | self.made_by
        try:
            post = asked.by(method)
            out |= compare(post, truth, row, self.net, asked.spent)
            out |= {"samples": post.samples, "status": post.status, "message": post.message}
        except (UnimargError, MemoryError) as e:  # shown, and no reason to stop
            out |= dict.fromkeys(METRICS, math.nan) | {"status": "error", "message": str(e)}
        out["message"] = " ".join(out["message"].split())
        return out | _reference_columns(truth, row, self.net)

    def _warm_up(self, row: Ints, method: str, beta: float | str | None) -> None:
        """Compiles, by one sample; what the model cannot do at all is an error here, not in every row."""
        if method in self.warm or method == "exact":
            return
        self.warm.add(method)
        with contextlib.suppress(TooExpensiveError):
            self._asked(row, self.model, self.options, 0, samples=1, beta=beta).by(method)


def stream_seed(*numbers: int) -> int:
    """Random numbers of its own for every purpose."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])


def compare(post: Posterior, truth: Posterior, row: Ints, net: Network, spent: int = 0) -> dict[str, float]:
    """The metrics of one answer about all variables; ``row`` is the evidence, -1 where unobserved."""
    hidden = np.repeat(row < 0, net.cards)
    p, s, known, error = (_side_by_side(a)[hidden] for a in (post.probabilities, post.std_errors, truth.probabilities, truth.std_errors))
    difference = np.abs(p - known)
    judged = s > 0
    inside = difference[judged] <= 1.96 * np.sqrt(s[judged] ** 2 + error[judged] ** 2)
    drawn = post.samples + spent
    return {
        "mae": float(difference.mean()) if len(p) else math.nan,
        "max_error": float(difference.max()) if len(p) else math.nan,
        "correlation": correlation(_side_by_side(post.probabilities), _side_by_side(truth.probabilities), row, net),
        "ess_share": post.ess / drawn if post.samples else math.nan,
        "k_hat": post.k_hat if post.samples else math.nan,
        "coverage": float(inside.mean()) if len(inside) else math.nan,
        "log_evidence_error": abs(post.log_evidence - truth.log_evidence),
        "seconds": post.seconds,
    }


def correlation(estimate: Floats, truth: Floats, row: Ints, net: Network) -> float:
    """Pearson's over the unobserved nodes, all states but the first, from ``[states]`` each."""
    first = np.zeros(int(net.cards.sum()), dtype=bool)
    first[np.cumsum([0, *net.cards[:-1]])] = True
    kept = np.repeat(row < 0, net.cards) & ~first
    a, b = (x[kept] - x[kept].mean() if kept.any() else x[kept] for x in (estimate, truth))
    scale = math.sqrt(float((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / scale if scale > 0 else math.nan


def _side_by_side(parts: Sequence[Floats]) -> Floats:
    return np.concatenate(parts).astype(np.float64)


def _reference_columns(truth: Posterior, row: Ints, net: Network) -> dict[str, Any]:
    error = _side_by_side(truth.std_errors)[np.repeat(row < 0, net.cards)]
    figures = (float(error.mean()), float(error.max())) if len(error) else (0.0, 0.0)
    return dict(zip(REFERENCE, (truth.method, *figures, truth.log_evidence_error), strict=True))


def _read(file: Path) -> list[dict[str, Any]]:
    """Rows written before, cells as what they were."""
    try:
        return [_parsed(cells) for cells in read_rows(file, COLUMNS)]
    except (TypeError, ValueError) as e:
        raise e if isinstance(e, UnimargError) else FormatError("not a table that evaluate wrote; give another file", file) from None


def _parsed(cells: dict[str, str]) -> dict[str, Any]:
    numbers = {name: float(cells[name] or "nan") for name in NUMBERS}
    return cells | numbers | {name: int(cells[name]) for name in WHOLE}


# --- summaries


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Of every metric the mean with the ends of its 95% interval, the median and the worst set, over the sets with an answer.

    Five rows for each family and method. The interval is a bootstrap over the evidence sets: what other sets would have given.
    """
    import pandas as pd

    rows = []
    for (family, method), part in _parts(table, "family", "method"):
        values = {metric: np.array([row[metric] for row in part], dtype=float) for metric in SHOWN}
        answered = int((~np.isnan(values["mae"])).sum())
        for statistic in STATISTICS:
            figures = {metric: _figure(values[metric], statistic, metric) for metric in SHOWN}
            rows.append({"family": family, "method": method, "sets": len(part), "answered": answered, "statistic": statistic} | figures)
    return pd.DataFrame(rows)


def _parts(table: pd.DataFrame, *names: str) -> Iterator[tuple[tuple[Any, ...], list[dict[Any, Any]]]]:
    """Rows that have the same values in some columns, in the order in which they come."""
    parts: dict[tuple[Any, ...], list[dict[Any, Any]]] = {}
    for row in table.to_dict("records"):
        parts.setdefault(tuple(row[name] for name in names), []).append(row)
    yield from parts.items()


def _figure(values: np.ndarray, statistic: str, metric: str) -> float:
    values = values[~np.isnan(values)]
    if not len(values):
        return math.nan
    if statistic in ("mean from", "mean to"):
        return interval(values)[statistic == "mean to"]
    if statistic == "worst":
        return float(values.min() if metric in HIGHER_IS_BETTER else values.max())
    return float(values.mean() if statistic == "mean" else np.median(values))


def remarks(table: pd.DataFrame) -> Iterator[str]:
    """What a reader of the summary must know: where references came from, and where they are not sure enough."""
    for (family,), part in _parts(table, "family"):
        sets = {row["set"]: row for row in part}.values()
        counts = Counter(row["reference"] for row in sets)
        error = np.mean([row["reference_error"] for row in sets])
        yield f"{family}: references {', '.join(f'{name} {n}' for name, n in counts.items())}; mean standard error {error:.2g}"
    for (family, method), part in _parts(table, "family", "method"):
        errors = np.array([row["mae"] for row in part], dtype=float)
        smallest = min(_figure(errors, "mean", "mae"), _figure(errors, "median", "mae"))
        if np.mean([row["reference_error"] for row in part]) > TENTH * smallest:
            yield f"{family}: the references' error is more than a tenth of that of {method}, whose errors are therefore uncertain"
    for (method, message, status), part in _parts(table, "method", "message", "status"):
        if status == "error":
            yield f"{method} gave no answer for {len(part)} set{'s' * (len(part) > 1)}: {message}"
    yield "mean from, mean to: the 95% interval of the mean over evidence sets"


def markdown(table: pd.DataFrame) -> str:
    """The summary as a table in Markdown, with the remarks below."""
    rows: list[Any] = summary(table).to_dict("records")
    return "\n".join([markdown_table(rows), *(f"- {text}" for text in remarks(table)), ""])
