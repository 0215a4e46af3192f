"""What a person sees on a terminal: posteriors as bars, facts as two columns.

Names come from files and are shown as they are: never as markup, never cut off where the output goes to a file.
"""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any, cast

from rich.console import Console, Group
from rich.markup import escape
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar
from rich.table import Table as Grid
from rich.text import Text

from unimarg.names import visible
from unimarg.posterior import Posterior

if TYPE_CHECKING:
    import pandas as pd

    from unimarg.trainer import Progress

WIDTH = 24  # characters of a full bar
MOST_DIGITS = 6
LONGEST = 60  # characters of a name on a terminal
PATIENCE = 2.0  # seconds before a bar shows how far it is
MOMENT = 0.7  # seconds before a line says that something is going on
PREPARING = "preparing: a network's first sampled query compiles its program"
TRUST = ("method", "status", "samples", "ess", "k_hat", "log_evidence", "log_evidence_error", "seconds", "message")


def console() -> Console:
    """Standard output; nothing is wrapped or cut in a file or a pipe, nor filled up with blanks."""
    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(highlight=False, width=10_000, file=cast(IO[str], _Trimmed(sys.stdout)))


class _Trimmed:
    """A stream whose lines end where their text ends: grids fill them up to their width."""

    def __init__(self, out: IO[str]):
        self.out = out

    def __getattr__(self, name: str) -> Any:
        return getattr(self.out, name)

    def write(self, text: str) -> int:
        *lines, rest = text.split("\n")
        return self.out.write("\n".join([*(line.rstrip(" ") for line in lines), rest]))


def columns(rows: Iterable[tuple[str, ...]]) -> Grid:
    """A name and what there is to say of it, line by line."""
    grid = Grid.grid(padding=(0, 2))
    for row in rows:
        grid.add_row(*map(plain, row))
    return grid


def bars(post: Posterior, names: Iterable[str]) -> Grid:
    """A bar for every state of the variables named, its standard error beside it where there is one."""
    grid = _grid("variable", "state")
    for name in names:
        errors = post.error(name)
        for k, (state, p) in enumerate(post[name].items()):
            grid.add_row(plain(name if k == 0 else ""), plain(state), *with_error(p, errors[state]), _bar(p))
    return grid


def combinations(frame: pd.DataFrame) -> Grid:
    """A bar for every combination of states that ``unimarg.joint`` gives."""
    names = list(frame.columns[:-2])
    grid = _grid(*names)
    for *states, p, error in frame.itertuples(index=False):
        grid.add_row(*map(plain, states), *with_error(p, error), _bar(p))
    return grid


def questions(frame: pd.DataFrame) -> Grid:
    """What ``next_questions`` gives, the best first, with what it costs where that differs."""
    shown = 3 if frame["cost"].ne(1).to_numpy().any() else 1
    grid = Grid(box=None, pad_edge=False)
    grid.add_column("question", no_wrap=True)
    for name in ("gain (nats)", "cost", "gain per cost")[:shown]:
        grid.add_column(name, no_wrap=True, justify="right")
    grid.add_column("")
    most = max(frame["gain_per_cost"].max(), 1e-300)
    for name, gain, cost, rate, error in frame.itertuples(index=False):
        off = f" ± {error:.4f}" if error > 0 else ""
        numbers = [f"{gain:.4f}{off}", f"{cost:g}", f"{rate:.4f}"][:shown]
        grid.add_row(plain(name), *numbers, _bar(rate / most))
    return grid


def influence(frame: pd.DataFrame) -> Group:
    """What ``explain`` gives: findings, strongest first."""
    facts = frame.attrs
    title = plain(f"{facts['target']} = {facts['state']}: {facts['probability']:.4f}, without any finding {facts['prior']:.4f}")
    grid = Grid(box=None, pad_edge=False)
    for name in ("finding", "state"):
        grid.add_column(name, no_wrap=True)
    for name in ("without it", "shift", "log odds"):
        grid.add_column(name, no_wrap=True, justify="right")
    for name, state, without, shift, odds in frame.itertuples(index=False):
        grid.add_row(plain(name), plain(state), f"{without:.4f}", f"{shift:+.4f}", f"{odds:+.3f}")
    return Group(title, grid if len(frame) else "there are no findings")


def summary(frame: pd.DataFrame) -> Grid:
    """What ``unimarg.comparison.summary`` gives, a line for each method and statistic."""
    from unimarg.rows import cell

    grid = Grid(box=None, pad_edge=False)
    for name in frame.columns:
        number = frame[name].dtype.kind in "fi"
        grid.add_column(name.replace("_error", " error").replace("_share", " share"), justify="right" if number else "left")
    for row in frame.itertuples(index=False):
        grid.add_row(*(plain(cell(value)) for value in row), end_section=row[4] == "worst")
    return grid


def _grid(*names: str) -> Grid:
    grid = Grid(box=None, pad_edge=False)
    for name in names:
        grid.add_column(plain(name), no_wrap=True, max_width=LONGEST if sys.stdout.isatty() else None)
    grid.add_column("probability", no_wrap=True, justify="right")
    grid.add_column("", no_wrap=True)
    grid.add_column("")
    return grid


def _bar(p: float) -> Text:
    block, sliver = ("█", "▏") if _utf() else ("#", ".")
    return Text((block * round(WIDTH * p) or (sliver if p > 0 else "")) if math.isfinite(p) else "", "cyan")


def digits(p: float, error: float) -> tuple[str, str]:
    """A probability with as many decimals as its standard error has a meaning for, and the error.

    >>> digits(0.123456, 0.0032), digits(0.123456, 0.00013), digits(0.5, 0.0)
    (('0.123', '0.003'), ('0.12346', '0.00013'), ('0.5000', ''))
    """
    if not math.isfinite(p):
        return "unknown", ""
    if not (math.isfinite(error) and error > 0):  # exact, or without an error of its own
        return f"{p:.4f}", ""
    places = -math.floor(math.log10(error))
    if round(error * 10**places) == 1:
        places += 1  # an error that begins with 1 gets a second digit
    places = min(max(places, 1), MOST_DIGITS)
    return f"{p:.{places}f}", f"{max(error, 10.0**-places):.{places}f}"


def with_error(p: float, error: float) -> tuple[str, str]:
    """``digits`` with a sign before the error."""
    value, after = digits(p, error)
    return value, f"{'±' if _utf() else '+-'} {after}" if after else ""


def _utf() -> bool:
    return (sys.stdout.encoding or "").lower().startswith("utf")


def trust(post: Posterior) -> str:
    """How far to trust an answer, in a line or two."""
    return trust_line({name: getattr(post, name) for name in TRUST})


def trust_line(facts: Mapping[Any, Any]) -> str:
    """``trust`` from the facts themselves."""
    parts = [str(facts["method"])]
    if facts["samples"]:
        parts += [facts["status"], f"{facts['samples']:,} samples worth {facts['ess']:,.0f}"]
        parts += [f"k-hat {facts['k_hat']:.2f}"] if math.isfinite(facts["k_hat"]) else []
    log_p, error = facts["log_evidence"], facts["log_evidence_error"]
    if math.isfinite(log_p) and math.isfinite(error):
        parts.append(f"log P(evidence) = {log_p:.6g}" if not error > 0 else f"log P(evidence) = {' '.join(with_error(log_p, error))}")
    parts.append(f"{facts['seconds'] * 1000:.0f} ms")
    return "\n".join(f"[dim]{escape(line)}[/dim]" for line in (", ".join(parts), facts["message"]) if line)


def plain(text: str) -> Text:
    """Text as it stands, control characters made visible."""
    return Text(visible(text))


@contextlib.contextmanager
def training_bar() -> Iterator[Callable[[Progress], None]]:
    """For the progress of ``train``: a bar with loss and speed on a terminal, else a line every half minute."""
    quiet = not sys.stderr.isatty()
    shown = (TextColumn("training"), BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with ProgressBar(*shown, console=Console(stderr=True), disable=quiet) as bar:
        task = bar.add_task("compiling", total=None)
        last = 0.0

        def tell(now: Progress) -> None:
            nonlocal last
            text = f"step {now.step:,} of {now.steps:,}, loss {now.loss:.4f}, {now.samples_per_second:,.0f} samples/s"
            text += "" if now.held_out is None else f", held-out error {now.held_out:.5f}"
            bar.update(task, completed=now.step, total=now.steps, description=text)
            if quiet and now.seconds - last > 30:
                last = now.seconds
                print(text, file=sys.stderr, flush=True)

        yield tell


@contextlib.contextmanager
def rows_bar() -> Iterator[Callable[[int, int, str], None] | None]:
    """For the progress of ``evaluate``: rows done and what comes next, on a terminal only."""
    if not sys.stderr.isatty():
        yield None
        return
    shown = (
        TextColumn("evaluating"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} {task.description}"),
        TimeRemainingColumn(),
    )
    with ProgressBar(*shown, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, text: bar.update(task, completed=done, total=total, description=escape(text))


@contextlib.contextmanager
def scoring_bar() -> Iterator[Callable[[int, float], None]]:
    """For the progress of ``score``: a bar on a terminal, else a line every half minute."""
    quiet = not sys.stderr.isatty()
    shown = (TextColumn("scoring"), BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with ProgressBar(*shown, console=Console(stderr=True), disable=quiet, transient=True) as bar:
        task = bar.add_task("", total=1.0)
        last = time.perf_counter()

        def tell(rows: int, share: float) -> None:
            nonlocal last
            bar.update(task, completed=share, description=f"{rows:,} rows")
            if quiet and time.perf_counter() - last > 30:
                last = time.perf_counter()
                print(f"{rows:,} rows, {share:.0%}", file=sys.stderr, flush=True)

        yield tell


@contextlib.contextmanager
def status() -> Iterator[Callable[[str], None]]:
    """What is going on: one line on a terminal, else one line each."""
    if not sys.stderr.isatty():
        yield lambda text: print(text, file=sys.stderr, flush=True)
        return
    with Console(stderr=True).status("") as line:
        yield lambda text: line.update(escape(text))


@contextlib.contextmanager
def waiting(text: str) -> Iterator[Callable[[], None]]:
    """Says on a terminal that something is going on, once it has taken a moment, until the function it gives is called."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    line, lock, over = Console(stderr=True).status(escape(text)), threading.Lock(), threading.Event()

    def begin() -> None:
        with lock:
            if not over.wait(MOMENT):
                line.start()

    def end() -> None:
        over.set()
        with lock:
            line.stop()

    threading.Thread(target=begin, daemon=True).start()
    try:
        yield end
    finally:
        end()


@contextlib.contextmanager
def sampling_bar(samples: int | None, seconds: float | None) -> Iterator[Callable[[int, float], None] | None]:
    """For the progress of a query, on a terminal only, once it has taken a while: that it is prepared, then a bar towards its limit."""
    if not sys.stderr.isatty():
        yield None
        return
    from unimarg.importance import DEFAULT_SAMPLES

    shown = (TextColumn("sampling"), BarColumn(), TextColumn("{task.description}"))
    began, bar = time.perf_counter(), ProgressBar(*shown, console=Console(stderr=True), transient=True)
    task = bar.add_task("", total=1.0)

    def tell(drawn: int, spent: float) -> None:
        ready()
        if not bar.live.is_started and time.perf_counter() - began > PATIENCE:
            bar.start()
        share = max(drawn / (samples or DEFAULT_SAMPLES), spent / seconds if seconds else 0.0)
        bar.update(task, completed=min(share, 1.0), description=f"{drawn:,} samples, {drawn / max(spent, 1e-9):,.0f} a second")

    try:
        with waiting(PREPARING) as ready:
            yield tell
    finally:
        bar.stop()
