"""Evidence sets, their exact answers, and errors: how answers are judged.

Every set is taken from a forward sample, so that it is possible:

    random     each node observed with probability 0.2
    uniform    each node with probability p, p ~ U[0, 1] per set: the paper's masking
    leaves     8 leaves in the rarest of their sampled states
    clinical   1 to 6 findings present and 0 to 14 absent among the leaves, 0 to 9 roots: for layered networks
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from unimarg.clique_tree import clique_tree
from unimarg.compiled import sample, sample_chunks
from unimarg.errors import TooExpensiveError, UsageError, closest, whole_number
from unimarg.masking import leaves
from unimarg.network import Floats, Ints, Network
from unimarg.tables import given

FAMILIES = ("random", "uniform", "leaves", "clinical")
RATE = 0.2
LEAVES = 8
POOL = 64  # samples among which the rarest states are sought
CLIQUES, CLIQUES_ACCELERATED = 1 << 14, 1 << 24  # entries up to which many sets are computed together
TOGETHER = 1 << 26  # entries times sets
LONG_RUN, LONG_RUN_ERROR = 1 << 18, 0.001  # samples of a reference that is not exact, and the largest error at which fewer will do


def evidence_sets(net: Network, family: str, count: int, seed: int) -> Ints:
    """States ``[count, nodes]``, -1 where unobserved."""
    if family not in FAMILIES:
        raise UsageError(f"there is no evidence family {family!r}; {closest(family, FAMILIES)}")
    count = whole_number(count, "the number of evidence sets", 1, 10**6)
    rng = np.random.default_rng([seed, FAMILIES.index(family)])
    if family == "leaves":
        return _rare_leaves(net, count, seed, rng)
    states = sample(net, count, seed=seed).astype(np.int64)
    if family == "clinical":
        return np.stack([_clinical(net, row, rng) for row in states])
    rate = RATE if family == "random" else rng.random((count, 1))
    return np.where(rng.random(states.shape) < rate, states, -1)


def _rare_leaves(net: Network, count: int, seed: int, rng: np.random.Generator) -> Ints:
    """In each set 8 leaves; of a pool of samples the one whose states of these leaves are rarest."""
    ends = np.array(leaves(net))
    # the leaves alone are kept, as small integers
    pool = np.concatenate([piece[:, ends] for piece in sample_chunks(net, POOL * count, seed=seed + 1)])
    rarity = []
    for states, card in zip(pool.T, net.cards[ends], strict=True):
        frequency = np.bincount(states, minlength=int(card)) / len(pool)
        rarity.append(-np.log(np.maximum(frequency, 0.5 / len(pool))))
    out = np.full((count, len(net)), -1)
    for row in range(count):
        chosen = rng.choice(len(ends), size=min(LEAVES, len(ends)), replace=False)
        part = pool[row * POOL : (row + 1) * POOL]
        rarest = part[np.argmax(sum(rarity[j][part[:, j]] for j in chosen))]
        out[row, ends[chosen]] = rarest[chosen]
    return out


def _clinical(net: Network, states: Ints, rng: np.random.Generator) -> Ints:
    ends = np.array(leaves(net))
    roots = np.array([i for i, pa in enumerate(net.parents) if not pa])
    out = np.full(len(net), -1)
    present, absent = ends[states[ends] > 0], ends[states[ends] == 0]
    for group, least, most in ((present, 1, 6), (absent, 0, 14), (roots, 0, 9)):
        chosen = rng.permutation(group)[: rng.integers(least, most + 1)]
        out[chosen] = states[chosen]
    return out


def references(net: Network, evidence: Ints) -> tuple[np.ndarray, float]:
    """Marginals ``[sets, states]`` and their mean standard error.

    Exact, all sets at once where the cliques are small, else one by one; where that is out of reach, by importance sampling.
    """
    tree = clique_tree(net, CLIQUES if jax.default_backend() == "cpu" else CLIQUES_ACCELERATED)
    if tree is None:
        found = [_reference(net, given(net, row)) for row in evidence]
        truth, error = (np.stack([np.concatenate(parts) for parts in many]) for many in zip(*found, strict=True))
        hidden = np.repeat(evidence < 0, net.cards, axis=1)
        return truth, float(error[hidden].mean()) if hidden.any() else 0.0
    marginals = jax.jit(tree.marginals)
    size = min(len(evidence), max(1, int(TOGETHER / tree.entries)))
    pieces = []
    for first in range(0, len(evidence), size):
        part = np.resize(evidence[first : first + size], (size, len(net)))  # the last one filled up: one program for all
        likelihoods = [jnp.asarray((part[:, i] == np.arange(k)[:, None]) | (part[:, i] < 0), jnp.float32) for i, k in enumerate(net.cards)]
        pieces.append(np.concatenate([np.asarray(m) for m in marginals(likelihoods)]).T)
    return np.concatenate(pieces)[: len(evidence)], 0.0


def _reference(net: Network, evidence: dict[str, str]) -> tuple[tuple[Floats, ...], tuple[Floats, ...]]:
    """Marginals and standard errors of one set."""
    from unimarg.exact import exact
    from unimarg.inference import infer

    try:
        found = exact(net, evidence)
    except TooExpensiveError:
        found = infer(net, evidence, samples=LONG_RUN, target_error=LONG_RUN_ERROR)
    return found.probabilities, found.std_errors


def errors(estimate: np.ndarray, truth: np.ndarray, evidence: Ints, net: Network) -> tuple[np.ndarray, np.ndarray]:
    """Mean and largest absolute error of each set over the states of its unobserved nodes, from ``[sets, states]``."""
    hidden = np.repeat(evidence < 0, net.cards, axis=1)
    difference = np.where(hidden, np.abs(estimate - truth), 0.0)
    return difference.sum(axis=1) / np.maximum(hidden.sum(axis=1), 1), difference.max(axis=1)
