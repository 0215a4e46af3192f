"""``unimarg.train``: a budget turned into steps, progress, checkpoints, a clean stop.

A time budget is turned into a number of steps once, by timing the compiled program, and stored: an
interrupted run goes on to the very weights that the uninterrupted one would have reached.
"""

from __future__ import annotations

import itertools
import math
import re
import time
import warnings
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from unimarg.batches import PARTICLES, TRUNK_STEPS, Given, Plan
from unimarg.checkpoint import check_writable, load_state, save_model, unfinished
from unimarg.clique_tree import CliqueTree, clique_tree
from unimarg.compiled import sample_chunks
from unimarg.counter import key_from_seed
from unimarg.encoding import inputs, prior_slots
from unimarg.errors import FormatError, TrainingError, UsageError, whole_number
from unimarg.evaluation import errors, evidence_sets, references
from unimarg.formats.interop import AnyNetwork, as_network
from unimarg.layout import compile_network, power_of_two
from unimarg.marginalizer import Marginalizer
from unimarg.masking import Mask
from unimarg.network import Floats, Network
from unimarg.presets import Recipe, recipe
from unimarg.propagation import Propagation
from unimarg.ragged import Ragged
from unimarg.shares import shared
from unimarg.student import batch_rows, descendants
from unimarg.training import initial_state, run_steps

MAX_STEPS = 2**31 - 1
PRIOR_SAMPLES = 1 << 20
CHECKPOINT_SECONDS = 60.0
TEACHER_ENTRIES, TEACHER_ENTRIES_ACCELERATED = 1 << 14, 1 << 20  # exact labels cost about as much as the network then
HELD_OUT_SECONDS = 5.0
CALIBRATION_SECONDS, CALIBRATION_SHARE = 3.0, 0.05  # the longest trial, and the largest part of a budget that it takes
CALL_BYTES, CALL_SHARE = 1 << 28, 1 / 8  # of a call's evidence and labels: bytes on a CPU, share of the memory of another device
CALL_SECONDS = 0.5  # what a call should take: short enough for progress and Ctrl-C


class Progress(NamedTuple):
    """What a callback is told after each call."""

    step: int
    steps: int
    loss: float  # mean over the call
    samples_per_second: float
    seconds: float  # since the start of this run
    held_out: float | None = None  # mean absolute error on the held-out evidence sets, when it was last measured


class Budget(NamedTuple):
    seconds: float | None
    steps: int | None


def parse_budget(text: str) -> Budget:
    """ "60s", "10 min", "2h" or "20000 steps".

    >>> parse_budget("10 min").seconds
    600.0
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*(s|sec|seconds?|m|min|minutes?|h|hours?|steps?)\s*", str(text).lower())
    if not match or not math.isfinite(float(match[1])) or float(match[1]) <= 0:
        raise UsageError(f"a budget is a time or a number of steps, such as '60s', '10 min' or '20000 steps', not {text!r}")
    number, unit = float(match[1]), match[2]
    if unit.startswith("step"):
        if not number.is_integer() or number > MAX_STEPS:
            raise UsageError(f"the number of steps must be whole and at most {MAX_STEPS}, not {match[1]}")
        return Budget(None, int(number))
    return Budget(number * {"s": 1, "m": 60, "h": 3600}[unit[0]], None)


def train(
    net: AnyNetwork,
    preset: str = "default",
    budget: str = "60s",
    seed: int = 0,
    *,
    mask: Mask | None = None,
    checkpoint: str | PathLike[str] | None = None,
    resume: bool = False,
    force: bool = False,
    progress: Callable[[Progress], object] | None = None,
    held_out: int = 0,
    **options: Any,
) -> Marginalizer:
    """Train a Universal Marginalizer for a network.

    ``budget`` is a time, everything included, or a number of steps. ``mask`` says what will be observed, see
    ``unimarg.masking``; ``options`` change the preset: ``hidden=(512, 512)``, ``batch=256``, ``encoding="prior"``,
    ``student=0`` (no student for sequential importance sampling), ``labels="sample"`` (what to learn from: outcomes as in the paper,
    or "exact" posteriors, means of "weighted" samples, or outcomes made "soft"), ``rare=0`` (no preference for rare findings),
    ``virtual=0.2`` (that share of what is shown as uncertain findings).
    With ``checkpoint`` the run is saved in that file every minute and at the end; a model that is there, finished or not, is written over
    with ``force`` only, and ``resume`` goes on with an unfinished one. Ctrl-C, or a ``progress`` that answers True, ends a run early, which
    is saved and returned as it is.
    ``held_out`` evidence sets, of the family ``random``, are judged every few seconds: the mean absolute error goes to ``progress``
    and, as (step, error), into the model's history. Their answers are exact, or where that is out of reach from a long run of importance
    sampling, whose mean standard error the history has too; the time to find them is not of the budget. The weights do not depend on it.
    """
    start = time.perf_counter()
    net, limits = as_network(net), parse_budget(budget)
    made = recipe(net, preset, mask, **options)
    seed = whole_number(seed, "a seed", 0, 2**64 - 1)
    held_out = whole_number(held_out, "the number of held-out evidence sets", 0, 10**5)
    if resume and checkpoint is None:
        raise UsageError("resume needs a checkpoint to go on from")
    if resume and force:
        raise UsageError("resume goes on with a run and force writes over it: choose one")
    if checkpoint is not None:
        check_writable(checkpoint)
        if not (resume or force):
            _keep(checkpoint)
    return _Run(net, made, seed, limits, start, checkpoint, progress, held_out).go(resume)


def _keep(checkpoint: str | PathLike[str]) -> None:
    """A model in the file is not to be lost."""
    if run := unfinished(checkpoint):
        found = f"an unfinished run, at step {run[0]} of {run[1]}: go on with it (resume=True, --resume)"
        raise UsageError(f"{checkpoint} holds {found}, or write over it (force=True, --force)")
    if Path(checkpoint).is_file():
        raise UsageError(f"{checkpoint} is there already: choose another name, or write over it (force=True, --force)")


class _Run:
    """One training run."""

    def __init__(
        self,
        net: Network,
        made: Recipe,
        seed: int,
        limits: Budget,
        start: float,
        path: str | PathLike[str] | None,
        progress: Callable[[Progress], object] | None,
        held_out: int = 0,
    ):
        self.net, self.recipe, self.seed, self.limits = net, made, seed, limits
        self.start, self.path, self.progress = start, path, progress
        self.compiled = compile_network(net)
        self.ragged = Ragged(tuple(net.cards.tolist()))
        half = jax.default_backend() != "cpu"
        teacher = self._teacher(half)
        propagation = Propagation(net, made.rounds, made.pairs) if made.rounds else None
        self.plan = Plan(self.compiled.layout, self.ragged, made, self._steps_per_call(half, teacher), half, teacher, propagation)
        self.priors = estimate_priors(net, seed)
        self.loss: float | None = None
        self.before: Mapping[str, Any] = {}  # the history of the run that this one goes on with
        begin = time.perf_counter()
        self.held_out = HeldOut(net, held_out, seed) if held_out else None
        self.start += time.perf_counter() - begin

    def _steps_per_call(self, accelerated: bool, teacher: CliqueTree | None) -> int:
        """A power of two that keeps a call short and its samples in memory, by the work of a step.

        Two at least, since XLA takes loops of a single turn apart, and then compiles for twice as long and computes things again; on a GPU
        as many as go together.
        """
        architecture, slots = self.recipe.architecture, self.ragged.slots
        widths = (inputs(self.ragged, self.recipe.rounds > 0), *architecture.hidden)
        weights = sum(a * b for a, b in itertools.pairwise(widths)) + widths[-1] * slots * architecture.outputs
        if architecture.residual:
            weights += sum(2 * h * h for h in architecture.hidden)
        work = (6 * weights + 100 * (teacher.entries if teacher else 0)) * self.recipe.batch
        work += 100 * len(self.net) * self.ragged.largest * self.recipe.student * batch_rows(self.recipe.batch)
        if self.recipe.labels == "weighted":
            work += 500 * len(self.net) * self.ragged.largest * PARTICLES * self.recipe.batch
        seconds = work / (2e14 if accelerated else 5e10)
        # samples: eight arrays of floats, and the words that drop units
        a_sample = 32 * int(self.net.cards.sum()) + 4 * sum(architecture.words)
        fits = (CALL_SHARE * device_bytes() if accelerated else CALL_BYTES) / a_sample
        most = min(CALL_SECONDS / seconds, min(self.compiled.chunk, fits) / self.recipe.batch, self.limits.steps or math.inf)
        least = TRUNK_STEPS if accelerated else 2
        return max(least, 1 << math.floor(math.log2(max(most, 1))))

    def _teacher(self, accelerated: bool) -> CliqueTree | None:
        if self.recipe.labels not in ("exact", "auto"):
            return None
        limit = TEACHER_ENTRIES_ACCELERATED if accelerated else TEACHER_ENTRIES
        teacher = clique_tree(self.net, limit)
        if teacher is None and self.recipe.labels == "exact":
            advice = "use labels='auto' (--option)"
            raise UsageError(f"exact labels need cliques of at most {limit} entries together, and this network has more; {advice}")
        return teacher

    def go(self, resume: bool) -> Marginalizer:
        below = descendants(self.net) if self.recipe.student else None
        priors = prior_slots(self.priors, self.ragged)
        given = Given(self.compiled.arrays, key_from_seed(self.seed), *priors, jnp.int32(0), None if below is None else jnp.asarray(below))
        self.state = initial_state(self.plan, self.seed)  # in this place alone: a variable here would keep the first one for the whole run
        if resume:
            assert self.path is not None
            self.state, self.before = load_state(self.path, self._model(0), self.state)
            steps = self.before["planned_steps"]
            self.loss = self.before.get("loss")
            if self.held_out and self.before.get("held_out_sets") == len(self.held_out.evidence):
                self.held_out.measured = [(s, e) for s, e in self.before.get("held_out", ()) if s < int(self.state.step)]
        else:
            steps = self.limits.steps or self._calibrate(given)
        self._judge()
        finished = self._loop(given._replace(steps=jnp.int32(steps)), steps)
        model = self._model(steps)
        if self.path:
            try:
                save_model(model, self.path, None if finished else self.state)
            except FormatError as e:
                raise TrainingError(f"the training ended, but {e}", model) from e
        return model

    def _calibrate(self, given: Given) -> int:
        """How many steps fit into the time that is left: by calls of the program, once it is compiled and warm."""
        assert self.limits.seconds is not None
        jax.block_until_ready(run_steps(self.plan, given, self.state))  # compiles, and takes no step of a run of none
        given = given._replace(steps=jnp.int32(MAX_STEPS))
        calls: list[float] = []
        trial = min(CALIBRATION_SECONDS, CALIBRATION_SHARE * self.limits.seconds)
        while len(calls) < 3 or sum(calls) < trial:
            begin = time.perf_counter()
            jax.block_until_ready(run_steps(self.plan, given, self.state))
            calls.append(time.perf_counter() - begin)
        warm = calls[len(calls) // 2 :]  # the first ones after a compilation take up to twice as long
        a_call = sum(warm) / len(warm)
        left = self.limits.seconds - (time.perf_counter() - self.start)
        return min(MAX_STEPS, self.plan.steps_per_call * max(1, int(0.97 * left / a_call)))

    def _loop(self, given: Given, steps: int) -> bool:
        """Whether the state at the end is the planned one."""
        begin = saved = judged = time.perf_counter()
        first = int(self.state.step)
        good = self._model(steps)  # where the loss is known to be a number
        try:
            while int(self.state.step) < steps:
                after, losses = run_steps(self.plan, given, self.state)
                loss = float(losses[: int(after.step - self.state.step)].mean())
                if not math.isfinite(loss):
                    # the state the call began with is good only if its own losses are numbers: of the first turn, which has the student's
                    first_turn = float(losses[: self.plan.together].sum())
                    raise self._diverged(self._model(steps) if math.isfinite(first_turn) else good)
                good = self._model(steps)
                self.state, self.loss, now = after, loss, time.perf_counter()
                del after  # a large state: there are three while the next is made
                if now - judged > HELD_OUT_SECONDS or int(self.state.step) >= steps:
                    self._judge()
                    judged = time.perf_counter()
                if self.progress:
                    rate = (int(self.state.step) - first) * self.recipe.batch / (now - begin)
                    held_out = self.held_out.measured[-1][1] if self.held_out else None
                    if self.progress(Progress(int(self.state.step), steps, loss, rate, now - self.start, held_out)) is True:
                        break
                if self.path and now - saved > CHECKPOINT_SECONDS:
                    saved = now
                    try:
                        save_model(self._model(steps), self.path, self.state)
                    except FormatError as e:  # a full disk may have room again at the end
                        warnings.warn(f"{e}; the training goes on", stacklevel=2)
        except KeyboardInterrupt:
            return False
        return int(self.state.step) >= steps

    def _judge(self) -> None:
        if self.held_out:
            self.held_out.measure(self._model(0))

    def _diverged(self, model: Marginalizer) -> TrainingError:
        where = ""
        if self.path:
            try:
                save_model(model, self.path)
                where = f"; the last good weights are in {self.path}"
            except FormatError as e:  # the error carries them
                where = f"; the last good weights were not saved: {e}"
        advice = f"try a smaller learning_rate (--option){where}"
        return TrainingError(f"the loss is no longer a number after step {model.history['steps']}; {advice}", model)

    def _model(self, steps: int) -> Marginalizer:
        history = {name: self.before[name] for name in ("held_out", "held_out_sets", "held_out_reference_error") if name in self.before}
        history |= {
            "seed": self.seed,
            "steps": int(self.state.step),
            "planned_steps": steps,
            "samples": int(self.state.step) * self.recipe.batch,
            "seconds": self.before.get("seconds", 0.0) + time.perf_counter() - self.start,
            "loss": self.loss,
        }
        if self.held_out:
            history |= {"held_out": list(self.held_out.measured), "held_out_sets": len(self.held_out.evidence)}
            history |= {"held_out_reference_error": self.held_out.reference_error}
        student = None if self.state.student is None else self.state.student.best
        trunk = self.state.trunk.best
        if self.state.told is not None:
            trunk = shared(trunk, self.state.told, self.ragged)
        return Marginalizer(self.net, self.recipe, trunk, self.priors, history, student)


def device_bytes() -> int:
    """The memory that an accelerator has for us, or that the smallest in use has where it does not say."""
    return (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", 1 << 34)


class HeldOut:
    """Evidence sets with their marginals, and the errors measured on them so far."""

    def __init__(self, net: Network, count: int, seed: int):
        # another seed than the training samples' and the priors'
        self.evidence = evidence_sets(net, "random", count, (seed + 0x7E57) % 2**64)
        self.truth, self.reference_error = references(net, self.evidence)
        self.measured: list[tuple[int, float]] = []  # (step, mean absolute error)

    def measure(self, model: Marginalizer) -> None:
        mean, _ = errors(model.marginals_of_states(self.evidence), self.truth, self.evidence, model.net)
        self.measured.append((model.history["steps"], float(mean.mean())))


def estimate_priors(net: Network, seed: int) -> tuple[Floats, ...]:
    """P(X_i = k) by forward sampling; a state that was never drawn still gets half a sample."""
    counts = [np.zeros(k) for k in net.cards]
    n = power_of_two(min(PRIOR_SAMPLES, max(1 << 14, (1 << 30) // len(net))))
    # another seed than the training samples'
    for piece in sample_chunks(net, n, seed=(seed + 0x5EED) % 2**64):
        for i, count in enumerate(counts):
            count += np.bincount(piece[:, i], minlength=len(count))
    return tuple(np.maximum(c, 0.5) / np.maximum(c, 0.5).sum() for c in counts)
