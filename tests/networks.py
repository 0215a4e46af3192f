"""Small random networks and evidence for the tests, and the reference: every joint state, one by one."""

import numpy as np
from hypothesis import strategies as st

from unimarg import Network, NoisyMax, Variable
from unimarg.evidence import Evidence
from unimarg.ragged import Ragged

seeds = st.integers(0, 2**32 - 1)


def random_network(
    seed: int | np.random.Generator, nodes: int, *, noisy: float = 0.4, zeros: float = 0.1, max_parents: int = 3, most: float = np.inf
) -> Network:
    """Tables with some zeros and noisy-max nodes, 1 to 4 states, names v0, v1, ..., in topological order.

    No more than ``most`` joint states.
    """
    rng = np.random.default_rng(seed)
    cards = rng.choice([1, 2, 2, 2, 3, 4], size=nodes).tolist()
    while np.log(cards).sum() > np.log(most):
        cards[rng.integers(nodes)] = 2
    variables, parents, mechanisms = [], {}, {}
    for i, card in enumerate(cards):
        pa = sorted(rng.choice(i, size=min(i, rng.integers(0, max_parents + 1)), replace=False).tolist()) if i else []
        given = [cards[p] for p in pa]
        variables.append(Variable(f"v{i}", tuple(f"s{k}" for k in range(card))))
        parents[f"v{i}"] = [f"v{p}" for p in pa]
        if rng.random() < noisy:
            contributions = [_pmf(rng, [c], card, zeros) for c in given]
            for c in contributions:
                c[0] = np.eye(card)[0]
            mechanisms[f"v{i}"] = NoisyMax(_pmf(rng, [], card, zeros), contributions)
        else:
            mechanisms[f"v{i}"] = _pmf(rng, given, card, zeros)
    return Network(variables, parents, mechanisms)


def _pmf(rng: np.random.Generator, rows: list[int], card: int, zeros: float) -> np.ndarray:
    p = rng.dirichlet(np.ones(card), size=rows) * (rng.random((*rows, card)) >= zeros) + 0.0
    p[..., 0] += p.sum(-1) == 0
    return p / p.sum(-1, keepdims=True)


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


def all_states(net: Network, evidence: Evidence | None = None) -> np.ndarray:
    """Every joint state that the hard findings allow, ``[states, nodes]``."""
    hard = evidence.hard if evidence else {}
    choices = [np.array([hard[i]]) if i in hard else np.arange(c) for i, c in enumerate(net.cards)]
    return np.stack(np.meshgrid(*choices, indexing="ij"), axis=-1).reshape(-1, len(net))


def enumerate_all(net: Network, evidence: Evidence) -> tuple[float, list[np.ndarray]]:
    """log P(e) and every marginal; no marginals where P(e) is zero."""
    states = all_states(net, evidence)
    log = net.log_probability(states)
    with np.errstate(divide="ignore"):
        for i, likelihood in evidence.virtual.items():
            log = log + np.log(likelihood)[states[:, i]]
    if np.isneginf(log.max()):
        return -np.inf, []
    p = np.exp(log - log.max())
    marginals = [np.bincount(states[:, i], weights=p, minlength=v.card) / p.sum() for i, v in enumerate(net.variables)]
    return float(np.log(p.sum()) + log.max()), marginals


def states_order(ragged: Ragged) -> np.ndarray:
    """For each (node, state) of the network in order, its place when the groups ``[nodes, K]`` are laid side by side."""
    starts = np.cumsum([0, *(ragged.cards[i] for i in ragged.order)])[:-1]
    by_node = dict(zip(ragged.order.tolist(), starts.tolist(), strict=True))
    return np.concatenate([by_node[i] + np.arange(k) for i, k in enumerate(ragged.cards)])
