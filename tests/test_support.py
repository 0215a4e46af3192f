import numpy as np
import pytest

import unimarg as um
from networks import all_states, random_network
from unimarg import support
from unimarg.support import Support


@pytest.mark.parametrize("seed", range(12))
def test_what_is_ruled_out_has_probability_zero(seed):
    """Against enumeration, for evidence that is possible; and it does rule something out."""
    rng = np.random.default_rng(seed)
    net = random_network(seed, nodes=7, max_parents=2, zeros=0.4, noisy=0.2)
    joint = all_states(net)
    p = np.exp(net.log_probability(joint))
    x = joint[rng.choice(len(joint), p=p / p.sum())]
    seen = rng.random(len(net)) < 0.4
    evidence = np.where(seen, x, -1)
    given = {i: np.where(k >= 0, k == np.arange(c), True)[None] for i, (k, c) in enumerate(zip(evidence, net.cards, strict=True))}
    possible = given | Support(net).narrow(given)
    posterior = np.where(((joint == evidence) | (evidence < 0)).all(axis=1), p, 0)
    for i, allowed in possible.items():
        marginal = np.bincount(joint[:, i], weights=posterior, minlength=int(net.cards[i]))
        assert not (marginal[~allowed[0]] > 0).any()


def test_deterministic_or_by_hand():
    """In asia, either = lung or tub: 'either no' rules out both, and both 'no' rule out 'either yes'."""
    net = um.example("asia")

    def narrow(**evidence: str) -> dict[str, list[bool]]:
        allowed = {i: np.ones((1, v.card), dtype=bool) for i, v in enumerate(net.variables)}
        for name, state in evidence.items():
            allowed[net.index[name]][:] = [[s == state for s in net.variables[net.index[name]].states]]
        return {net.names[i]: a[0].tolist() for i, a in (allowed | Support(net).narrow(allowed)).items()}

    assert narrow(either="no")["lung"] == [False, True]
    assert narrow(either="no")["tub"] == [False, True]
    assert narrow(lung="no", tub="no")["either"] == [False, True]
    assert narrow(lung="yes")["either"] == [True, False]
    assert narrow(either="yes")["lung"] == [True, True]
    assert narrow(either="no", lung="yes")["tub"] == [False, False] or not any(narrow(either="no", lung="yes")["lung"])


def test_many_rows_at_once_are_as_each_alone(monkeypatch):
    """130 rows in pieces of 64: whole words, the rest of a word, and arrays in which nothing was ruled out."""
    monkeypatch.setattr(support, "ROWS", 64)
    net = random_network(3, nodes=9, max_parents=2, zeros=0.4)
    x = um.sample(net, 130, seed=1)
    evidence = np.where(np.random.default_rng(0).random(x.shape) < 0.3, x, -1)
    allowed = {i: (evidence[:, [i]] == np.arange(k)) | (evidence[:, [i]] < 0) for i, k in enumerate(net.cards)}
    narrowed = Support(net).narrow(allowed)
    assert 0 < len(narrowed) < len(net)
    assert all(t.any(axis=1).all() for t in narrowed.values())
    for row in range(130):
        own = {i: a[row : row + 1] for i, a in allowed.items()}
        alone = own | Support(net).narrow(own)
        assert all((t[row] == alone[i][0]).all() for i, t in (allowed | narrowed).items())
