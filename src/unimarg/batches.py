"""What training learns from: fresh samples of the network, masked, encoded and labelled, for many steps at once.

In place of the outcome x_i of a node its label is, where asked, its distribution given more than the evidence x_m, which has the same
expectation and less noise: P(x_i | x_m) itself (``clique_tree``), the mean of several samples of the posterior (``particles``), or
P(x_i | the rest of the sample) (``blanket``). Step t uses the samples t * batch up to (t + 1) * batch of the run's key, so that a run
that was interrupted goes on to the same weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from unimarg.blanket import blanket_log_p
from unimarg.channels import Words, channel_words, interleaved, one_of, through, through_channels
from unimarg.clique_tree import CliqueTree
from unimarg.compiled import draw_states, log_conditionals_of
from unimarg.counter import Key, threefry
from unimarg.encoding import encode, one_hot, starts
from unimarg.layout import MAX_NODES, Arrays, Layout
from unimarg.particles import weighted_labels
from unimarg.presets import Recipe
from unimarg.propagation import Propagation
from unimarg.ragged import Parts, Ragged, by_group, by_node, grouped
from unimarg.rarity import CANDIDATES, rarer
from unimarg.student import batch_rows
from unimarg.trunk import dropout_noise

LABEL_ENTRIES = 1 << 31  # of all rows that a GPU labels at once: 8 GB, several times
ARRAYS = 8  # of all states, that labels without cliques take
TAUGHT = 32  # samples, a power of two
TRUNK_STEPS = 4  # of a GPU for each of the student and of the averages, likewise
PARTICLES = 32  # samples of the posterior for each label
MASKS, CHANNELS, DROPOUT, OTHER_PARTICLES, RARER = range(1, 6)  # streams of random numbers beside the samples' own


@dataclass(frozen=True)
class Plan:
    """What the compiled program depends on."""

    layout: Layout
    ragged: Ragged
    recipe: Recipe
    steps_per_call: int
    half: bool  # bfloat16 products
    teacher: CliqueTree | None = None  # exact labels
    propagation: Propagation | None = None  # beliefs to start from

    def __post_init__(self) -> None:
        assert self.steps_per_call % self.together == 0

    @property
    def samples_per_call(self) -> int:
        return self.steps_per_call * self.recipe.batch

    @property
    def together(self) -> int:
        """Steps of the trunk for each of the student and of the averages: a GPU takes as long for few rows as for many."""
        return TRUNK_STEPS if self.half else 1

    @property
    def student_rows(self) -> int:
        """Of a batch."""
        return batch_rows(self.recipe.batch)

    @property
    def rows(self) -> int:
        """Samples that are labelled at once: a batch, and on a GPU, which wants wide work, as many as fit."""
        if not self.half:
            return self.recipe.batch
        fits = LABEL_ENTRIES / self.row_entries
        return min(self.samples_per_call, max(self.recipe.batch, 1 << int(np.log2(max(fits, 1)))))

    @property
    def row_entries(self) -> float:
        """What the labels of a sample take while they are made."""
        return self.teacher.entries if self.teacher else ARRAYS * len(self.ragged.cards) * self.ragged.largest

    @property
    def taught(self) -> int:
        """Samples that the teacher answers at once: on a CPU so few that what it computes stays near."""
        return self.rows if self.half else min(self.rows, TAUGHT)

    @property
    def tabled(self) -> bool:
        """Whether anything is learnt beside the tables."""
        return self.recipe.student > 0 or "message" in self.recipe.architecture.heads

    @property
    def few(self) -> int:
        """Of so many samples one has uncertain findings, and of what it shows a share of ``unsure``."""
        return one_of(self.recipe.virtual, self.recipe.batch)

    @property
    def unsure(self) -> float:
        return self.few * self.recipe.virtual

    @property
    def labels(self) -> str:
        """Of the marginal head: exact, weighted, soft or sample."""
        if self.recipe.labels != "auto":
            return self.recipe.labels
        return "exact" if self.teacher else "sample" if not self.half else "weighted" if self.propagation else "soft"

    @property
    def soft(self) -> bool:
        """Whether the message head learns from labels given the rest of the sample, which a GPU finds soon."""
        return self.labels == "soft" or (self.labels == "weighted" and self.half)


class Given(NamedTuple):
    """Constants of a run."""

    arrays: Arrays
    key: Key
    priors: jax.Array  # [slots]
    prior_logits: jax.Array  # [slots]
    steps: jax.Array  # int32: of the whole run, for the learning rate
    descendants: jax.Array | None = None  # bool [nodes, nodes], for a student


class Batch(NamedTuple):
    """What a step learns from; nodes lie in the order of ``ragged`` but for ``states``."""

    inputs: jax.Array  # [samples, nodes + slots]: the encoded evidence
    labels: Parts  # [samples, nodes, K]: what the marginal head should say; empty: the outcomes
    softened: Parts  # likewise the message head, with the sample's own parents; empty: the outcomes
    known: jax.Array  # bool [samples, nodes]
    values: Parts  # [samples, nodes, K]: the evidence
    certain: jax.Array  # bool [samples, nodes]: hard evidence
    states: jax.Array  # [nodes, samples]
    noise: jax.Array | None  # uint32 [samples, words], for dropout; drawn for all steps of a call at once
    starts: dict[str, jax.Array]  # [samples, slots]: logits for each head to start from, if not the prior's; without beliefs only of
    # samples with uncertain findings
    tables: Parts  # [samples, nodes, K]: log P(x_i = k | pa_i), for a message head or a student; else empty


def stream(key: Key, number: int) -> Key:
    """A key of its own for each purpose."""
    return jnp.stack(threefry(key, jnp.uint32(0xFFFFFFFF), jnp.uint32(number)))


def batches(plan: Plan, given: Given, step: jax.Array) -> Batch:
    """Fresh samples for ``steps_per_call`` steps from this one on, with their evidence and labels: ``[steps, ...]``."""
    n = plan.samples_per_call
    first = step.astype(jnp.uint32) * np.uint32(plan.recipe.batch)
    upper = step.astype(jnp.uint32) >> np.uint32(33 - plan.recipe.batch.bit_length())  # beyond 2^32 samples
    samples = first + lax.iota(jnp.uint32, n)
    states = draw_states(plan.layout, given.arrays, given.key, jnp.stack([first, upper * np.uint32(MAX_NODES)]), n)

    def parts_of(a: jax.Array, size: int) -> jax.Array:
        return jnp.moveaxis(a.reshape(*a.shape[:-1], -1, size), -2, 0)

    # Loop after loop in place of one: XLA computes cheap-looking things again wherever they are used, barrier or not, and only
    # what a loop leaves behind is safe. With random numbers and transpositions inside the teacher a step took twice the time.
    numbered = parts_of(samples, plan.rows)
    masks = lax.map(lambda part: plan.recipe.mask.draw(stream(given.key, MASKS), part, states.shape[0]), numbered)
    drawn, parts = None, parts_of(states, plan.rows)
    if plan.recipe.virtual:
        few = parts_of(samples[:: plan.few], plan.rows // plan.few)
        drawn = lax.map(lambda part: channel_words(stream(given.key, CHANNELS), part, states.shape[0]), few)
    if plan.recipe.rare:
        parts = lax.map(lambda part: chosen(plan, given, *part), (numbered, parts, masks, drawn))
    evidence = lax.map(lambda part: shown(plan, *part), (parts, masks, drawn))
    exact = None
    if plan.teacher:
        known, seen, _ = evidence
        few = jax.tree.map(lambda a: a.reshape(-1, plan.taught * a.shape[1] // plan.rows, *a.shape[2:]), (known, seen))
        few = jnp.moveaxis(parts_of(parts, plan.taught), 1, 0).reshape(-1, states.shape[0], plan.taught), *few
        marginals = lax.map(plan.teacher.marginals, lax.map(lambda part: likelihoods(plan, *part), few))
        exact = lax.map(lambda part: by_group(plan.ragged, part), marginals)
        exact = jax.tree.map(lambda a: a.reshape(-1, plan.rows, *a.shape[2:]), exact)
    learnt_from = lax.map(lambda part: labelled(plan, given, upper, *part), (*evidence, exact, parts, masks, numbered))
    if plan.rows != plan.recipe.batch:
        steps = plan.steps_per_call
        learnt_from = jax.tree.map(
            lambda a: a.reshape(steps, len(a) * a.shape[1] // steps, *a.shape[2:]), learnt_from._replace(states=None)
        )
        learnt_from = learnt_from._replace(states=parts_of(jnp.moveaxis(parts, 0, 1).reshape(states.shape), plan.recipe.batch))
    noise = dropout_noise(stream(given.key, DROPOUT), samples, plan.recipe.architecture)
    if noise is not None:
        learnt_from = learnt_from._replace(noise=noise.reshape(-1, plan.recipe.batch, noise.shape[-1]))
    return learnt_from


def chosen(plan: Plan, given: Given, samples: jax.Array, states: jax.Array, observed: jax.Array, drawn: Words | None) -> jax.Array:
    """``states``, of which some give way to rarer ones. The choice may look at what is seen for certain alone."""
    certain = observed
    if drawn is not None:
        hidden = by_node(through(drawn, plan.unsure), plan.ragged)
        certain = interleaved(certain.T[:: plan.few] & ~hidden.T, certain.T, plan.few).T
    key, together = stream(given.key, RARER), min(CANDIDATES, plan.recipe.batch)
    return rarer(plan.ragged, given.priors, key, samples, plan.recipe.rare, states, certain, together)


def shown(plan: Plan, states: jax.Array, observed: jax.Array, drawn: Words | None) -> tuple[jax.Array, Parts | None, jax.Array]:
    """The evidence of a batch: which nodes are known, what is seen of them in samples with uncertain findings, and which are certain."""
    known = plan.ragged.rows(observed)
    if drawn is None:
        return known, None, known
    few = slice(None, None, plan.few)
    seen, certain = through_channels(drawn, plan.unsure, known[few], plan.ragged.rows(states)[few], plan.ragged)
    return known, seen, interleaved(certain, known, plan.few)


def values_of(plan: Plan, states: jax.Array, seen: Parts | None) -> Parts:
    """What the evidence of all samples says of each state: made where it is used, which is quicker than keeping it for many steps."""
    rows = plan.ragged.rows(states)
    if seen is None:
        return one_hot(rows, plan.ragged, bool)
    return [interleaved(part, every, plan.few) for part, every in zip(seen, one_hot(rows, plan.ragged), strict=True)]


def labelled(
    plan: Plan,
    given: Given,
    upper: jax.Array,
    known: jax.Array,
    seen: Parts | None,
    certain: jax.Array,
    exact: Parts | None,
    states: jax.Array,
    observed: jax.Array,
    samples: jax.Array,
) -> Batch:
    """The evidence encoded, and what it implies: the exact marginals, or the samples themselves, averaged or softened where asked;
    ``samples`` are the lower words of their numbers.

    The tables' rows are looked up here, for many batches at once, because a GPU takes as long for few samples as for many.
    """
    ragged, values = plan.ragged, values_of(plan, states, seen)
    log_p = log_conditionals_of(plan.layout, given.arrays, states)  # left out by the compiler where nothing needs it
    beliefs = {} if plan.propagation is None else plan.propagation.logits(known, values, plan.half)
    inputs, start = encoded(plan, given, known, values, beliefs)
    start = {head: part for head, part in start.items() if head in plan.recipe.architecture.heads}
    softened = soft_labels(plan, given, known, values, states, observed, log_p) if plan.soft else []
    if exact is not None:
        labels = exact
    elif plan.labels == "weighted":
        key, evidence, messages = stream(given.key, OTHER_PARTICLES), (known, values, certain), beliefs.get("message")
        labels = weighted_labels(plan.layout, given.arrays, ragged, key, (samples, upper), evidence, messages, states, PARTICLES, plan.half)
    else:
        labels = softened
    tables = grouped(log_p, ragged) if plan.tabled else []
    return Batch(inputs, labels, softened, known, values, certain, states, None, start, tables)


def encoded(
    plan: Plan, given: Given, known: jax.Array, values: Parts, beliefs: dict[str, jax.Array]
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The trunk's input, and what the heads start from, as ``Batch`` has it; only what may be uncertain is graded."""
    ragged, recipe, believed = plan.ragged, plan.recipe, beliefs.get("marginal")
    kind = jnp.bfloat16 if plan.half else jnp.float32  # as the first product takes it
    graded = recipe.encoding == "graded" and recipe.virtual > 0
    every = encode("two_bit" if graded else recipe.encoding, known, values, ragged, given.priors, believed, kind)
    if not graded:
        return every, beliefs
    few = slice(None, None, plan.few)
    evidence = known[few], [part[few] for part in values], ragged
    some = encode("graded", *evidence, given.priors, None if believed is None else believed[few], kind)
    return interleaved(some, every, plan.few), beliefs or starts("graded", *evidence, given.prior_logits)


def soft_labels(
    plan: Plan, given: Given, known: jax.Array, values: Parts, states: jax.Array, observed: jax.Array, log_p: jax.Array
) -> Parts:
    """P(x_i = k | the rest of the sample), ``[samples, nodes, K]`` for each group."""
    logits = grouped(blanket_log_p(plan.layout, given.arrays, states, observed, log_p), plan.ragged)
    return [
        jax.nn.softmax(jnp.where(flag[..., None], jnp.log(value), 0) + part, axis=-1)
        for part, flag, value in zip(logits, plan.ragged.nodes(known), values, strict=True)
    ]


def likelihoods(plan: Plan, states: jax.Array, known: jax.Array, seen: Parts | None) -> list[jax.Array]:
    """The evidence as the teacher takes it: ``[K, samples]`` for each node, ones where nothing is known."""
    grouped = [
        jnp.where(flag[:, j], value[:, j].T, 1.0)
        for flag, value in zip(plan.ragged.nodes(known), values_of(plan, states, seen), strict=True)
        for j in range(value.shape[1])
    ]
    return [grouped[p] for p in plan.ragged.place]
