"""Importance sampling on the paper's evidence sets, by its proposals and ours: what Figure 1 and Table 2 are made from.

A row for each (proposal, set, number of samples) in sampling.csv: Pearson correlation of the vectors P(X_i = 1) of unobserved nodes
with the reference, mean and largest absolute error, Kish's ESS, k-hat. The paper's proposals are taken to the letter
(``structure=False``), from its network of one layer, and once more with structure; the others use the preset ``default``.
With structure, nodes that no finding lies below are estimated by P(x_i | pa_i), and the others with the proposal's conditionals as
control variates; to the letter all are counted as drawn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from unimarg.comparison import compare, stream_seed
from unimarg.counter import Key
from unimarg.errors import UnimargError, UsageError, closest
from unimarg.importance import Draw, Drawn, Limits, chunk_size, first_sample
from unimarg.marginalizer import Marginalizer
from unimarg.network import Network
from unimarg.posterior import Posterior
from unimarg.provenance import COLUMNS as PROVENANCE
from unimarg.provenance import provenance
from unimarg.query import Asked, Options
from unimarg.reproduce.setting import References, Setting
from unimarg.rows import append_row, read_rows
from unimarg.tables import given

BETAS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
SAMPLES = (31_250, 125_000, 250_000, 500_000, 1_000_000, 2_000_000)
FEWER = 250_000  # samples of proposals that run a network at every node
QUICK_SAMPLES = (250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000)
FIGURES = ("correlation", "mae", "max_error", "ess", "k_hat")
KEY = ("network", "references", "model", "proposal", "set", "samples", "seed")
COLUMNS = (*KEY, *FIGURES, "spent", "seconds", "message", *PROVENANCE)


@dataclass(frozen=True)
class Proposal:
    name: str
    method: str
    preset: str | None = None  # of the model it needs
    beta: float | None = None
    structure: bool = True
    ours: bool = False
    most: int = 2_000_000  # samples


def beta_name(beta: float) -> str:
    return f"beta {beta:g}"


PROPOSALS = (
    *(Proposal(beta_name(b), "hybrid", "paper", b, structure=False) for b in BETAS),
    Proposal("SUM-IS", "sequential", "paper", structure=False, most=FEWER),
    *(Proposal(f"{beta_name(b)}, structure", "hybrid", "paper", b, ours=True) for b in (0.1, 0.25, 0.5)),
    Proposal("sequential", "sequential", "default", ours=True, most=FEWER),
    Proposal("message", "message", "default", ours=True),
    Proposal("lookahead", "lookahead", ours=True),
    Proposal("adaptive", "adaptive", ours=True),
)


def asked(setting: Setting) -> list[Proposal]:
    """All proposals but those to be left out; each beta is needed for what the paper says of them."""
    optional = [p.name for p in PROPOSALS if p.beta is None or p.ours]
    for name in setting.without:
        if name not in optional:
            raise UsageError(f"there is no proposal {name!r} to leave out; {closest(name, optional)}")
    return [p for p in PROPOSALS if p.name not in setting.without]


def sampling_rows(setting: Setting) -> tuple[list[dict[str, Any]], References]:
    """Every row, those that are in the file already as they are."""
    proposals = asked(setting)
    net = setting.net
    references = setting.references(net)
    file = setting.path("sampling.csv")
    found = {tuple(row[k] for k in KEY): row for row in read_rows(file, COLUMNS)}
    made_by, models, out = provenance(), _models(setting, net), []
    for proposal in proposals:
        model = "none" if proposal.preset is None else f"{proposal.preset} {setting.steps(proposal.preset)} steps"
        points = [n for n in (QUICK_SAMPLES if setting.quick else SAMPLES) if n <= proposal.most]
        for number in range(len(references.evidence)):
            keys = [tuple(map(str, (net.name, references.source, model, proposal.name, number, n, setting.seed))) for n in points]
            if not all(key in found for key in keys):
                setting.say(f"{proposal.name}, set {number + 1} of {len(references.evidence)}")
                rows = _draw(net, models(proposal.preset), proposal, references, number, points, setting.seed)
                for key, row in zip(keys, rows, strict=True):
                    if key not in found:
                        found[key] = dict(zip(KEY, key, strict=True)) | row | made_by
                        append_row(file, COLUMNS, found[key])
            out += [_parsed(found[key]) for key in keys]
    return out, references


def _models(setting: Setting, net: Network) -> Callable[[str | None], Marginalizer | None]:
    """Trained when first needed."""
    known: dict[str, Marginalizer] = {}

    def of(preset: str | None) -> Marginalizer | None:
        if preset is None:
            return None
        if preset not in known:
            known[preset] = setting.model(net, preset)
        return known[preset]

    return of


def _draw(
    net: Network, model: Marginalizer | None, proposal: Proposal, references: References, number: int, points: Sequence[int], seed: int
) -> list[dict[str, Any]]:
    """One run, looked at whenever it has so many samples."""
    evidence, truth = references.evidence[number], _posterior(net, references, number)
    seed = stream_seed(seed, number)
    options = Options(structure=proposal.structure, beta=proposal.beta, seed=seed)
    began, rows = time.perf_counter(), []
    try:
        asked = Asked(net, model, given(net, evidence), None, options, nets=False)
        estimator = asked.estimator(proposal.method)
        estimator.witness = None  # what independent samples themselves show, as in the paper
        draw, size = estimator.draw, chunk_size(estimator.frame)
        first = _first_chunk(draw)
        for n in points:
            estimator.draw = first if n <= size else draw
            estimator.run(Limits(n), seed)
            seconds = time.perf_counter() - began
            post = estimator.posterior(proposal.method, Limits(n), seconds)
            figures = compare(post, truth, evidence, net) | {"ess": post.ess}
            rows.append({name: figures[name] for name in FIGURES} | {"spent": asked.spent, "seconds": seconds, "message": post.message})
    except UnimargError as e:  # shown, and no reason to stop
        empty = dict.fromkeys((*FIGURES, "seconds"), np.nan) | {"spent": 0, "message": " ".join(str(e).split())}
        rows += [empty] * (len(points) - len(rows))
    return rows


def _first_chunk(draw: Draw) -> Draw:
    """The same samples again for every number of them that a chunk holds: drawn once, and moved up to the first that counts."""
    drawn: list[Drawn] = []

    def again(key: Key, first: jax.Array, n: int) -> Drawn:
        if not drawn:
            drawn.append(draw(key, first_sample(0), n))
        by = -int(first[0])
        return jax.tree.map(lambda a: jnp.roll(a, by, axis=-1), drawn[0])

    return again


def _posterior(net: Network, references: References, number: int) -> Posterior:
    edges = np.cumsum(net.cards)[:-1]
    truth, error = (tuple(np.split(a[number], edges)) for a in (references.truth, references.std_error))
    return Posterior(net.variables, truth, error, np.nan, np.nan, np.inf, -np.inf, 0, references.source, "ok", 0.0)


def _parsed(row: dict[str, Any]) -> dict[str, Any]:
    """Numbers as numbers, whether just made or read; an answer that is none has correlation 0 and ESS 0."""
    number = {name: np.nan if row[name] == "" else float(row[name]) for name in FIGURES}
    for name in ("correlation", "ess"):
        number[name] = 0.0 if np.isnan(number[name]) else number[name]
    return row | number | {name: int(row[name]) for name in ("set", "samples")}


def column(rows: Iterable[dict[str, Any]], proposal: str, samples: int, name: str) -> np.ndarray:
    """One figure of all sets."""
    return np.array([row[name] for row in rows if (row["proposal"], row["samples"]) == (proposal, samples)])


def common(rows: Iterable[dict[str, Any]], names: Iterable[str] = ("network", "references", "seed", *PROVENANCE)) -> dict[str, str]:
    """What the rows were made by; several values where they differ."""
    rows = list(rows)
    return {name: " and ".join(dict.fromkeys(str(row[name]) for row in rows)) for name in names}
