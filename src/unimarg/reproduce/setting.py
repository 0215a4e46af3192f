"""What the paper's experiments share: the network, evidence sets with their references, trained models, and where results go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from unimarg.checkpoint import load_model, unfinished
from unimarg.comparison import stream_seed
from unimarg.errors import FormatError, UsageError
from unimarg.evaluation import evidence_sets
from unimarg.examples.medical import medical
from unimarg.formats.files import explained, replacing, write_bytes
from unimarg.marginalizer import Marginalizer
from unimarg.network import Floats, Ints, Network
from unimarg.query import Asked, Options
from unimarg.rows import markdown_table
from unimarg.tables import given
from unimarg.trainer import train

FAMILY, EVIDENCE_SEED = "clinical", 4242
SETS, QUICK_SETS = 60, 20
REFERENCE_SAMPLES = 1 << 22  # by lookahead worth more than the paper's 300 million, of which its 2 million are worth 7678 at beta 0
STEPS = {"paper": (20_000, 500), "default": (30_000, 300)}  # in full, quick
BATCH = 256  # of the paper's steps, whatever the device
OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "paper": ({"batch": BATCH}, {"batch": BATCH, "hidden": (256,)}),
    "default": ({}, {"hidden": (128,) * 2, "batch": 256, "student": 64, "labels": "sample"}),
}

Say = Callable[[str], None]


@dataclass(frozen=True)
class References:
    """Evidence sets ``[sets, nodes]`` (-1 where unobserved), their marginals and standard errors ``[sets, states]``."""

    evidence: Ints
    truth: Floats
    std_error: Floats
    source: str  # exact, sampled, or the file they came from

    def mean_error(self, net: Network) -> float:
        return float(self.std_error[np.repeat(self.evidence < 0, net.cards, axis=1)].mean())


@dataclass(frozen=True)
class Setting:
    """One run of an experiment."""

    out: Path
    quick: bool = False
    seed: int = 0
    references_file: Path | None = None
    reference_samples: int = REFERENCE_SAMPLES
    without: tuple[str, ...] = ()  # proposals to leave out
    say: Say = field(default=lambda text: None, compare=False)

    @property
    def net(self) -> Network:
        return medical(5, 15, 30, seed=7) if self.quick else medical(50, 250, 700, seed=7)

    def path(self, name: str) -> Path:
        """Of a result; those of quick runs have names of their own."""
        stem, dot, suffix = name.partition(".")
        with explained(str(self.out), "written"):
            self.out.mkdir(parents=True, exist_ok=True)
        return self.out / (f"{stem}_quick{dot}{suffix}" if self.quick else name)

    def references(self, net: Network) -> References:
        """From the file given, else from the folder, where they are left for the next experiment."""
        if self.references_file is not None:
            found = read_references(self.references_file, net)
            if not np.isfinite(found.truth).all():
                raise FormatError("some of the references are missing", self.references_file)
            return found
        method, sets = ("exact", QUICK_SETS) if self.quick else ("auto", SETS)
        return make_references(net, sets, self.path("references.npz"), method, self.reference_samples, self.say)

    def steps(self, preset: str) -> int:
        return STEPS[preset][self.quick]

    def model(self, net: Network, preset: str) -> Marginalizer:
        """Trained, or from the folder where an earlier experiment left it."""
        path, steps = self.path(f"{preset}-{self.seed}.um"), self.steps(preset)
        if path.exists():
            model = load_model(path)
            if (model.history.get("steps"), model.net.name) == (steps, net.name):
                return model
        run = unfinished(path)
        resume = run is not None and run[1] == steps
        self.say(f"training the preset {preset}, {steps:,} steps" + (f", from step {run[0]:,} on" if run and resume else ""))
        options = {"checkpoint": path, "resume": resume, "force": run is None, **OPTIONS[preset][self.quick]}
        model = train(net, preset, f"{steps} steps", self.seed, **options)
        if model.history["steps"] != steps:
            raise UsageError(
                f"the training stopped after {model.history['steps']:,} of {steps:,} steps: nothing was measured; the same command goes on"
            )
        return model

    def report(self, name: str, rows: Sequence[Mapping[str, Any]], findings: Sequence[str], hidden: Sequence[str] = ()) -> str:
        """The table as Markdown, without some of its columns, and what it says of the paper below."""
        shown = [{k: v for k, v in row.items() if k not in hidden} for row in rows]
        text = "\n".join([markdown_table(shown), *(f"- {line}" for line in findings), ""])
        write_bytes(str(self.path(f"{name}.md")), text.encode())
        return text


def read_references(path: Path, net: Network) -> References:
    try:
        with np.load(path) as file:
            evidence, truth = file["evidence"].astype(np.int64), file["truth"].astype(np.float64)
            std_error = file["std_error"].astype(np.float64) if "std_error" in file else np.zeros_like(truth)
    except (OSError, KeyError, ValueError) as e:
        raise FormatError(f"not an .npz with the arrays evidence and truth ({e})", path) from None
    states = int(net.cards.sum())
    if evidence.shape != (len(truth), len(net)) or truth.shape != (len(evidence), states) or std_error.shape != truth.shape:
        raise FormatError(f"evidence is {list(evidence.shape)} and truth {list(truth.shape)}, which do not fit {net.name}", path)
    return References(evidence, truth, std_error, path.name)


def make_references(net: Network, sets: int, path: Path, method: str, samples: int, say: Say = lambda text: None) -> References:
    """Exact, or by ``auto`` and then a long run of importance sampling where exact inference is not quick; each kept in the file."""
    evidence = evidence_sets(net, FAMILY, sets, EVIDENCE_SEED)
    truth, error = np.full((2, sets, int(net.cards.sum())), np.nan)
    if path.exists():
        found = read_references(path, net)
        same = min(sets, len(found.evidence))
        if (found.evidence[:same] != evidence[:same]).any():
            raise FormatError("references of other evidence sets; give another folder", path)
        truth[:same], error[:same] = found.truth[:same], found.std_error[:same]
    for number in np.flatnonzero(np.isnan(truth).any(axis=1)).tolist():
        say(f"reference {number + 1} of {sets}")
        options = Options(samples, None, seed=stream_seed(EVIDENCE_SEED, number))
        post = Asked(net, None, given(net, evidence[number]), None, options).by(method)
        truth[number], error[number] = np.concatenate(post.probabilities), np.concatenate(post.std_errors)
        with replacing(str(path)) as file:
            np.savez_compressed(file, evidence=evidence.astype(np.int8), truth=truth, std_error=error)
    return References(evidence, truth, error, "exact" if not error.any() else "sampled")
