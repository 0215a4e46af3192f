"""The reference of the exact methods' tests: every joint state, one by one; and random networks to try it on."""

import numpy as np
from hypothesis import strategies as st

from unimarg.evidence import Evidence
from unimarg.network import Network, NoisyMax, Table, Variable


def enumerate_all(net: Network, evidence: Evidence) -> tuple[float, list[np.ndarray]]:
    """log P(e) and every marginal; the marginals are None where P(e) is zero."""
    cards = [1 if i in evidence.hard else v.card for i, v in enumerate(net.variables)]
    states = np.stack(np.unravel_index(np.arange(np.prod(cards)), cards), axis=1)
    for i, k in evidence.hard.items():
        states[:, i] = k
    log = net.log_probability(states)
    with np.errstate(divide="ignore"):
        for i, likelihood in evidence.virtual.items():
            log = log + np.log(likelihood)[states[:, i]]
    if np.isneginf(log.max()):
        return -np.inf, []
    p = np.exp(log - log.max())
    marginals = [np.bincount(states[:, i], weights=p, minlength=v.card) / p.sum() for i, v in enumerate(net.variables)]
    return float(np.log(p.sum()) + log.max()), marginals


def pmf(rng: np.random.Generator, rows: tuple[int, ...], card: int, zeros: float) -> np.ndarray:
    p = rng.dirichlet(np.ones(card), size=rows) * (rng.random((*rows, card)) >= zeros) + 0.0
    p[..., 0] += p.sum(-1) == 0
    return p / p.sum(-1, keepdims=True)


def random_network(rng: np.random.Generator, size: int, noisy: float, zeros: float) -> Network:
    """Tables with zeros and noisy-max nodes, 1 to 4 states, up to 4 parents."""
    cards = rng.choice([1, 2, 2, 2, 3, 4], size=size)
    while np.prod(cards) > 60_000:
        cards[rng.integers(size)] = 2
    variables, parents, mechanisms = [], {}, {}
    for i, card in enumerate(cards):
        pa = sorted(rng.choice(i, size=min(i, rng.integers(0, 5)), replace=False).tolist()) if i else []
        variables.append(Variable(f"v{i}", tuple(f"s{k}" for k in range(card))))
        parents[f"v{i}"] = [f"v{p}" for p in pa]
        if rng.random() < noisy:
            contributions = [pmf(rng, (int(cards[p]),), int(card), zeros) for p in pa]
            for c in contributions:
                c[0] = np.eye(card)[0]
            mechanisms[f"v{i}"] = NoisyMax(pmf(rng, (), int(card), zeros), contributions)
        else:
            mechanisms[f"v{i}"] = Table(pmf(rng, tuple(int(cards[p]) for p in pa), int(card), zeros))
    return Network(variables, parents, mechanisms)


def random_evidence(rng: np.random.Generator, net: Network, hard: float, virtual: float) -> Evidence:
    kind = rng.choice(3, p=[hard, virtual, 1 - hard - virtual], size=len(net))
    likelihoods = {i: rng.random(net.variables[i].card) + 1e-3 for i in np.flatnonzero(kind == 1).tolist()}
    for likelihood in likelihoods.values():
        if len(likelihood) > 1 and rng.random() < 0.3:
            likelihood[rng.integers(len(likelihood))] = 0.0
    return Evidence({i: int(rng.integers(net.variables[i].card)) for i in np.flatnonzero(kind == 0).tolist()}, likelihoods)


def as_given(net: Network, evidence: Evidence) -> dict[str, object]:
    """Evidence as a user writes it."""
    return {net.names[i]: k for i, k in evidence.hard.items()} | {net.names[i]: v.tolist() for i, v in evidence.virtual.items()}


seeds = st.integers(0, 2**32 - 1)
