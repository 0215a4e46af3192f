"""What ``make demo`` shows: the networks that come along, exact answers, and the sampler."""

from __future__ import annotations

import time

from rich.console import Console
from rich.table import Table as Grid

import unimarg as um
from unimarg.examples import clinic_cases
from unimarg.posterior import Posterior


def run() -> None:
    console = Console(highlight=False)
    _asia(console)
    _clinic(console)
    _sampling(console)


def _asia(console: Console) -> None:
    console.rule("[bold]1. Exact, where that is cheap")
    evidence = {"asia": "yes", "dysp": "yes", "xray": "yes"}
    console.print("Back from Asia, short of breath, with a shadow on the X-ray (Lauritzen and Spiegelhalter 1988):")
    post = um.exact(um.example("asia"), evidence)
    console.print(bars(post, ["tub", "lung", "bronc"]))
    console.print(f"[dim]log P(evidence) = {post.log_evidence:.4f}, {1000 * post.seconds:.0f} ms[/dim]\n")


def _clinic(console: Console) -> None:
    console.rule("[bold]2. A clinic with 248 variables (an illustration, not medical advice)")
    net, case = um.example("clinic"), clinic_cases()[0]
    console.print(case.story)
    start = time.perf_counter()
    try:
        post = um.exact(net, case.evidence, targets=["pneumonia", "influenza", "pulmonary_embolism"])
        console.print(bars(post, list(post)))
    except um.TooExpensiveError as e:
        console.print(f"[yellow]{e}[/yellow]")
        console.print(f"[dim]declined after {time.perf_counter() - start:.1f} s, instead of a process that runs out of memory[/dim]\n")


def _sampling(console: Console) -> None:
    console.rule("[bold]3. Samples by the hundred million")
    for net in (um.example("alarm"), um.example("clinic"), um.medical()):
        n = 65536
        um.sample(net, n, seed=0)  # compiles
        start = time.perf_counter()
        um.sample(net, n, seed=1)
        rate = n * len(net) / (time.perf_counter() - start)
        console.print(f"{net.name:36} {len(net):5} variables  {rate / 1e6:5.0f} million node-samples a second")


def bars(post: Posterior, names: list[str], width: int = 30) -> Grid:
    """A bar for every state of the variables named."""
    grid = Grid(box=None, pad_edge=False)
    for heading, justify in (("variable", "left"), ("state", "left"), ("probability", "right"), ("", "left")):
        grid.add_column(heading, justify=justify, no_wrap=True)
    for name in names:
        for k, (state, p) in enumerate(post[name].items()):
            grid.add_row(name if k == 0 else "", state, f"{p:.4f}", "[cyan]" + "█" * round(width * p) + "[/cyan]")
    return grid
