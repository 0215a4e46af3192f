"""Small random networks for the tests."""

import numpy as np

from unimarg import Network, NoisyMax, Table, Variable


def random_table(rng: np.random.Generator, parent_cards: list[int], card: int, zeros: float = 0.0) -> Table:
    p = rng.dirichlet(np.ones(card), size=parent_cards)
    p = np.where(rng.random(p.shape) < zeros, 0.0, p)
    p[..., 0] += p.sum(-1) == 0
    return Table(p / p.sum(-1, keepdims=True))


def random_noisy_max(rng: np.random.Generator, parent_cards: list[int], card: int) -> NoisyMax:
    contributions = [rng.dirichlet(np.ones(card), size=c) for c in parent_cards]
    for c in contributions:
        c[0] = np.eye(card)[0]
    leak = rng.dirichlet(np.ones(card)) if rng.random() < 0.8 else np.eye(card)[0]
    return NoisyMax(leak, contributions)


def random_network(seed: int, nodes: int, max_parents: int = 3, max_card: int = 4, zeros: float = 0.1, noisy: float = 0.4) -> Network:
    """Tables with some zeros and noisy-max nodes, names n0, n1, ..., in topological order."""
    rng = np.random.default_rng(seed)
    variables, parents, mechanisms = [], {}, {}
    for i in range(nodes):
        card = int(rng.integers(2, max_card + 1))
        variables.append(Variable(f"n{i}", tuple(f"s{k}" for k in range(card))))
        pa = sorted(rng.choice(i, size=min(i, int(rng.integers(0, max_parents + 1))), replace=False)) if i else []
        cards = [variables[p].card for p in pa]
        parents[f"n{i}"] = [f"n{p}" for p in pa]
        make_noisy = pa and rng.random() < noisy
        mechanisms[f"n{i}"] = random_noisy_max(rng, cards, card) if make_noisy else random_table(rng, cards, card, zeros)
    return Network(variables, parents, mechanisms)


def all_states(net: Network) -> np.ndarray:
    """Every joint state, ``[states, nodes]``."""
    return np.stack(np.meshgrid(*(np.arange(c) for c in net.cards), indexing="ij"), axis=-1).reshape(-1, len(net))
