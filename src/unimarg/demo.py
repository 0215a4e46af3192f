"""What ``make demo`` shows: an exact answer, a network too tangled for one, and what learning does about it."""

from __future__ import annotations

import time

import numpy as np
from rich.console import Console

import unimarg as um
from unimarg import terminal
from unimarg.examples import clinic_cases
from unimarg.marginalizer import Marginalizer
from unimarg.posterior import Posterior

PATIENTS = ("Fever and a cough", "It burns", "Always thirsty")


def run(budget: str = "40s") -> Marginalizer:
    """Print the demo; ``budget`` is for the training in the middle, and its model is given back."""
    console = terminal.console()
    _asia(console)
    _too_expensive(console)
    model = _train(console, budget)
    _patients(console, model)
    _sampled(console, model)
    _speed(console, model)
    return model


def _asia(console: Console) -> None:
    console.print("[bold]1. Exact, where that is cheap")
    evidence = {"asia": "yes", "dysp": "yes", "xray": "yes"}
    console.print("Back from Asia, short of breath, with a shadow on the X-ray (Lauritzen and Spiegelhalter 1988):")
    post = um.exact(um.example("asia"), evidence)
    console.print(terminal.bars(post, ["tub", "lung", "bronc"]))
    console.print(f"[dim]log P(evidence) = {post.log_evidence:.4f}, {1000 * post.seconds:.0f} ms[/dim]\n")


def _too_expensive(console: Console) -> None:
    console.print("[bold]2. A clinic with 248 variables: risks, diseases, symptoms (an illustration, not medical advice)")
    start = time.perf_counter()
    try:
        um.exact(um.example("clinic"), clinic_cases()[0].evidence)
    except um.TooExpensiveError as e:
        console.print(str(e), style="yellow", markup=False)
        console.print(f"[dim]declined after {time.perf_counter() - start:.1f} s, instead of a process that runs out of memory[/dim]\n")


def _train(console: Console, budget: str) -> Marginalizer:
    console.print(f"[bold]3. So one neural network learns all its posteriors, under any evidence, in {budget}")
    console.print("[dim]It starts from loopy belief propagation and learns what that misses.[/dim]")
    with terminal.training_bar() as progress:
        model = um.train(um.example("clinic"), "small", budget, seed=0, progress=progress)
    console.print(f"[dim]{model.history['samples']:,} samples, each new, each with something else hidden[/dim]\n")
    return model


def _patients(console: Console, model: Marginalizer) -> None:
    console.print("[bold]4. It answers in milliseconds: the diseases that rose most")
    prior = model.query(method="um")
    for case in clinic_cases():
        if case.name in PATIENTS:
            post = model.query(case.evidence, method="um")
            console.print(f"\n{case.story}", markup=False)
            console.print(terminal.bars(post, _risen(model, prior, post)))
            console.print(f"[dim]{1000 * post.seconds:.0f} ms for all {len(post)} variables[/dim]")
    console.print()


def _sampled(console: Console, model: Marginalizer) -> None:
    console.print("[bold]5. How far off was that? The same patients by importance sampling, with error bars and a verdict")
    prior = model.query(method="um")
    cases = [case for case in clinic_cases() if case.name in PATIENTS]
    with terminal.waiting("compiling, once for all queries"):
        model.query(cases[0].evidence, samples=1)
    for case in cases:
        post, quick = model.query(case.evidence), model.query(case.evidence, method="um")
        console.print(terminal.bars(post, _risen(model, prior, post, 1)))
        trust = f"{post.method}, {post.status}: {post.samples:,} samples worth {post.ess:,.0f}, {1000 * post.seconds:.0f} ms"
        off = {name: max(abs(post[name][s] - quick[name][s]) for s in post[name]) for name in post}
        worst = max(off, key=off.__getitem__)
        console.print(
            f"[dim]{trust}; one pass was {np.mean(list(off.values())):.4f} off on average, {off[worst]:.2f} at most ({worst})[/dim]"
        )
    console.print("One pass for the first impression, samples for what counts; both are a matter of milliseconds here.\n")


def _risen(model: Marginalizer, prior: Posterior, post: Posterior, count: int = 3) -> list[str]:
    """The diseases whose neutral state lost most."""
    diseases = [v for v in model.net.variables if v.group == "diseases"]
    lost = {v.name: prior[v.name][v.states[0]] - post[v.name][v.states[0]] for v in diseases}
    return sorted(lost, key=lost.__getitem__, reverse=True)[:count]


def _speed(console: Console, model: Marginalizer) -> None:
    console.print("[bold]6. And for many patients at once, whatever is known of each")
    states = um.sample(model.net, 8192, seed=1).astype(np.int64)
    states = np.where(np.random.default_rng(0).random(states.shape) < 0.1, states, -1)
    model.marginals_of_states(states)  # compiles
    start = time.perf_counter()
    model.marginals_of_states(states)
    rate = len(states) / (time.perf_counter() - start)
    console.print(f"{rate:,.0f} patients a second, all {len(model.net)} marginals each")
    um.sample(model.net, 65536, seed=0)
    start = time.perf_counter()
    um.sample(model.net, 65536, seed=1)
    rate = 65536 * len(model.net) / (time.perf_counter() - start)
    console.print(f"{rate / 1e6:,.0f} million node-samples a second by the sampler that it learns from")
