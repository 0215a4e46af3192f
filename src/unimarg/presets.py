"""Named recipes for training: ``paper``, ``small`` and ``default``.

The paper gives one hidden layer of 4096 units, ReLU, dropout 0.5, Adam, cross-entropy over all nodes,
masks of uniform rate, 20,000 iterations and two encodings. It does not give the batch size and the learning
rate: 1e-3 (Adam's usual) and 256 samples, or 2048 on a GPU, are our choice; in equal time either is the better one on its device
(``docs/log.md``). So are the widths and batches of ``default``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import jax
import jax.numpy as jnp

from unimarg.counter import key_from_seed
from unimarg.encoding import ENCODINGS, Encoding
from unimarg.errors import UsageError, closest, whole_number
from unimarg.masking import Among, LogUniformRate, Mask, Mixture, Prefix, UniformRate, leaves
from unimarg.network import Network, NoisyMax
from unimarg.trunk import MAX_WIDTH, Architecture

ROUNDS, FEWER_ROUNDS = 6, 4  # of belief propagation; fewer in ``small``, but where causes of noisy-max nodes compete, which takes longer


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a training run but the network, the budget and the seed."""

    preset: str
    architecture: Architecture
    encoding: Encoding
    mask: Mask
    observed_loss: bool  # the paper also predicts the nodes it shows
    batch: int  # a power of two
    learning_rate: float
    warm_up: int = 0  # steps of linear warm-up; with it the rate falls along a cosine to the end
    average: float = 0.0  # decay of the running average of the weights; 0: none
    clip: float = 0.0  # largest norm of a gradient; 0: none
    labels: str = "sample"  # or "soft": given the rest of the sample; "weighted": of several samples; "exact": posteriors;
    # "auto": exact if cliques are small, else on a CPU sample, on a GPU weighted if there are rounds, else soft
    rounds: int = 0  # of belief propagation, from whose answer the network starts; 0: from the prior
    pairs: bool = False  # whether these beliefs know what noisy-ors with common parents say of each other (``pairs``)
    message_weight: float = 0.1  # of the message head's loss beside the marginal head's
    virtual: float = 0.0  # share of the shown nodes that are shown through a random channel, those of a few samples (``channels``)
    rare: float = 0.0  # share of the samples that are the rarest, by what they show, of up to 64
    student: int = 0  # units of a one-layer student for SUM-IS beside the trunk; 0: none

    def __post_init__(self) -> None:
        for name, allowed in (("encoding", ENCODINGS), ("labels", LABELS)):
            if getattr(self, name) not in allowed:
                raise UsageError(f"there is no {name} {getattr(self, name)!r}; {closest(getattr(self, name), allowed)}")
        numbers: dict[str, float] = {
            "batch": whole_number(self.batch, "the batch size", 1, 1 << 24),
            "rounds": whole_number(self.rounds, "the number of rounds", 0, 1000),
            "warm_up": whole_number(self.warm_up, "warm_up", 0, 2**31 - 1),
            "student": whole_number(self.student, "the number of the student's units", 0, MAX_WIDTH),
        }
        if not isinstance(self.pairs, bool):
            raise UsageError(f"pairs must be true or false, not {self.pairs!r}")
        if self.batch & (self.batch - 1):
            raise UsageError(f"the batch size must be a power of two, not {self.batch!r}")
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if not isinstance(value, Real) or not least <= value <= most:
                raise UsageError(f"{name} must be a number from {least:g} to {most:g}, not {value!r}")
            numbers[name] = float(value)
        for name, value in numbers.items():  # plain Python numbers: they are compared and written into files
            object.__setattr__(self, name, value)


_RANGES = {"learning_rate": (0, 1e30), "average": (0, 1), "clip": (0, 1e30), "message_weight": (0, 1e30), "virtual": (0, 1), "rare": (0, 1)}
LABELS = ("sample", "soft", "weighted", "exact", "auto")


def recipe(net: Network, preset: str = "default", mask: Mask | None = None, **changes: Any) -> Recipe:
    """A preset for a network, with changes: fields of ``Recipe`` or of ``Architecture`` by name."""
    if not isinstance(preset, str) or preset not in PRESETS:
        raise UsageError(f"there is no preset {preset!r}; {closest(preset, PRESETS)}")
    made = PRESETS[preset](net)
    for name in changes:
        if name not in OPTIONS:
            raise UsageError(f"there is no training option {name!r}; {closest(name, OPTIONS, len(OPTIONS))}")
    inner = {name: value for name, value in changes.items() if name in Architecture.__dataclass_fields__}
    outer = {name: value for name, value in changes.items() if name not in inner}
    made = replace(made, architecture=replace(made.architecture, **inner), **outer)
    if mask is None:
        return made
    _check_mask(mask, len(net))
    return replace(made, mask=mask)


def _check_mask(mask: Mask, nodes: int) -> None:
    """A mask that does not fit is an error before the training."""
    if not hasattr(mask, "draw"):
        raise UsageError(f"a mask is an object of unimarg.masking, not {mask!r}")
    drawn = jax.eval_shape(lambda: mask.draw(key_from_seed(0), jnp.arange(4, dtype=jnp.uint32), nodes))
    if drawn.shape != (nodes, 4) or drawn.dtype != bool:
        raise UsageError(
            f"a mask must draw booleans [nodes, samples], not {drawn.dtype} {list(drawn.shape)} for {nodes} nodes and 4 samples"
        )


def _paper(net: Network) -> Recipe:
    batch = 256 if jax.default_backend() == "cpu" else 2048
    return Recipe("paper", Architecture((4096,), dropout=0.5), "prior", UniformRate(), True, batch, learning_rate=1e-3)


def _mixed(net: Network) -> Mask:
    """Dense, sparse, leaves only, and what sequential importance sampling meets."""
    found = leaves(net)
    masks = (UniformRate(), LogUniformRate(), Among(LogUniformRate(), found), Prefix(LogUniformRate()))
    return Mixture(masks, (0.35, 0.35, 0.2, 0.1))


def _small(net: Network) -> Recipe:
    made = _default(net)
    architecture = replace(made.architecture, hidden=(256,) * 2, heads=("marginal",))
    rounds = ROUNDS if any(isinstance(m, NoisyMax) for m in net.mechanisms) else FEWER_ROUNDS
    return replace(made, preset="small", architecture=architecture, batch=256, learning_rate=3e-3, student=0, rounds=rounds, pairs=False)


def _default(net: Network) -> Recipe:
    width, rate = (1024, 1e-3) if jax.default_backend() == "cpu" else (2048, 5e-4)
    return Recipe(
        "default",
        Architecture((width,) * 3, residual=True, heads=("marginal", "message"), from_prior=True, gated=True),
        "graded",
        _mixed(net),
        observed_loss=False,
        batch=width,
        learning_rate=rate,
        warm_up=500,
        average=0.999,
        labels="auto",
        virtual=0.02,
        rare=0.5,
        student=256,
        rounds=ROUNDS,
        pairs=True,
    )


PRESETS = {"default": _default, "small": _small, "paper": _paper}
OPTIONS = sorted({*Architecture.__dataclass_fields__, *Recipe.__dataclass_fields__} - {"preset", "architecture", "mask"})
