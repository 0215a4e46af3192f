"""Evidence sets and errors: how answers are judged.

Every set is taken from a forward sample, so that it is possible:

    random     each node observed with probability 0.2
    uniform    each node with probability p, p ~ U[0, 1] per set: the paper's masking
    leaves     8 leaves in the rarest of their sampled states
    clinical   1 to 6 findings present and 0 to 14 absent among the leaves, 0 to 9 roots: for layered networks
"""

from __future__ import annotations

import numpy as np

from unimarg.compiled import sample
from unimarg.errors import UsageError, closest, whole_number
from unimarg.masking import leaves
from unimarg.network import Ints, Network

FAMILIES = ("random", "uniform", "leaves", "clinical")
RATE = 0.2
LEAVES = 8
POOL = 64  # samples among which the rarest states are sought


def evidence_sets(net: Network, family: str, count: int, seed: int) -> Ints:
    """States ``[count, nodes]``, -1 where unobserved."""
    if family not in FAMILIES:
        raise UsageError(f"there is no evidence family {family!r}; {closest(family, FAMILIES)}")
    count = whole_number(count, "the number of evidence sets", 1, 10**6)
    rng = np.random.default_rng([seed, FAMILIES.index(family)])
    states = sample(net, count, seed=seed).astype(np.int64)
    if family == "leaves":
        return _rare_leaves(net, count, seed, rng)
    if family == "clinical":
        return np.stack([_clinical(net, row, rng) for row in states])
    rate = RATE if family == "random" else rng.random((count, 1))
    return np.where(rng.random(states.shape) < rate, states, -1)


def _rare_leaves(net: Network, count: int, seed: int, rng: np.random.Generator) -> Ints:
    """In each set 8 leaves; of a pool of samples the one whose states of these leaves are rarest."""
    pool = sample(net, POOL * count, seed=seed + 1).astype(np.int64)
    ends = np.array(leaves(net))
    rarity = np.zeros(pool.shape)
    for i in ends:
        frequency = np.bincount(pool[:, i], minlength=int(net.cards[i])) / len(pool)
        rarity[:, i] = -np.log(np.maximum(frequency, 0.5 / len(pool)))[pool[:, i]]
    out = np.full((count, len(net)), -1)
    for row in range(count):
        chosen = rng.choice(ends, size=min(LEAVES, len(ends)), replace=False)
        part = slice(row * POOL, (row + 1) * POOL)
        rarest = part.start + int(np.argmax(rarity[part][:, chosen].sum(axis=1)))
        out[row, chosen] = pool[rarest, chosen]
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


def errors(estimate: np.ndarray, truth: np.ndarray, evidence: Ints, net: Network) -> tuple[np.ndarray, np.ndarray]:
    """Mean and largest absolute error of each set over the states of its unobserved nodes, from ``[sets, states]``."""
    hidden = np.repeat(evidence < 0, net.cards, axis=1)
    difference = np.where(hidden, np.abs(estimate - truth), 0.0)
    return difference.sum(axis=1) / np.maximum(hidden.sum(axis=1), 1), difference.max(axis=1)
