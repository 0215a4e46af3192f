"""What a person sees on a terminal: posteriors as bars, facts as two columns.

Names come from files and are shown as they are: never as markup, never cut off where the output goes to a file.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar
from rich.table import Table as Grid
from rich.text import Text

from unimarg.posterior import Posterior

if TYPE_CHECKING:
    from unimarg.trainer import Progress

WIDTH = 24  # characters of a full bar


def console() -> Console:
    """Standard output; nothing is wrapped or cut in a file or a pipe."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 10_000)


def columns(rows: Iterable[tuple[str, str]]) -> Grid:
    """A name and what there is to say of it, line by line."""
    grid = Grid.grid(padding=(0, 2))
    for row in rows:
        grid.add_row(*map(plain, row))
    return grid


def bars(post: Posterior, names: Iterable[str]) -> Grid:
    """A bar for every state of the variables named."""
    block, sliver = ("█", "▏") if (sys.stdout.encoding or "").lower().startswith("utf") else ("#", ".")
    grid = Grid(box=None, pad_edge=False)
    grid.add_column("variable", no_wrap=True)
    grid.add_column("state", no_wrap=True)
    grid.add_column("probability", no_wrap=True, justify="right")
    grid.add_column("")
    for name in names:
        for k, (state, p) in enumerate(post[name].items()):
            bar = block * round(WIDTH * p) or (sliver if p > 0 else "")
            grid.add_row(plain(name if k == 0 else ""), plain(state), f"{p:.4f}", Text(bar, "cyan"))
    return grid


def plain(text: str) -> Text:
    """Text as it stands, control characters made visible."""
    return Text("".join(_visible(text)))


def _visible(text: str) -> Iterator[str]:
    for c in text:
        yield c if c.isprintable() else c.encode("unicode_escape").decode()


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
