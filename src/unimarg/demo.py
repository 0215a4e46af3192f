"""What ``make demo`` shows: the networks that come along, exact answers, and the sampler."""

from __future__ import annotations

import time

from rich.console import Console

import unimarg as um
from unimarg import terminal
from unimarg.examples import clinic_cases


def run() -> None:
    console = terminal.console()
    _asia(console)
    _clinic(console)
    _sampling(console)


def _asia(console: Console) -> None:
    console.print("[bold]1. Exact, where that is cheap")
    evidence = {"asia": "yes", "dysp": "yes", "xray": "yes"}
    console.print("Back from Asia, short of breath, with a shadow on the X-ray (Lauritzen and Spiegelhalter 1988):")
    post = um.exact(um.example("asia"), evidence)
    console.print(terminal.bars(post, ["tub", "lung", "bronc"]))
    console.print(f"[dim]log P(evidence) = {post.log_evidence:.4f}, {1000 * post.seconds:.0f} ms[/dim]\n")


def _clinic(console: Console) -> None:
    console.print("[bold]2. A clinic with 248 variables (an illustration, not medical advice)")
    net, case = um.example("clinic"), clinic_cases()[0]
    console.print(case.story)
    start = time.perf_counter()
    try:
        post = um.exact(net, case.evidence, targets=["pneumonia", "influenza", "pulmonary_embolism"])
        console.print(terminal.bars(post, list(post)))
    except um.TooExpensiveError as e:
        console.print(str(e), style="yellow", markup=False)
        console.print(f"[dim]declined after {time.perf_counter() - start:.1f} s, instead of a process that runs out of memory[/dim]\n")


def _sampling(console: Console) -> None:
    console.print("[bold]3. Samples by the hundred million")
    for net in (um.example("alarm"), um.example("clinic"), um.medical()):
        n = 65536
        um.sample(net, n, seed=0)  # compiles
        start = time.perf_counter()
        um.sample(net, n, seed=1)
        rate = n * len(net) / (time.perf_counter() - start)
        console.print(f"{net.name:36} {len(net):5} variables  {rate / 1e6:5.0f} million node-samples a second")
