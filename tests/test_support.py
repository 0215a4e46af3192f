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
    possible = Support(net).narrow([np.where(k >= 0, k == np.arange(c), True)[None] for k, c in zip(evidence, net.cards, strict=True)])
    posterior = np.where(((joint == evidence) | (evidence < 0)).all(axis=1), p, 0)
    for i, allowed in enumerate(possible):
        marginal = np.bincount(joint[:, i], weights=posterior, minlength=int(net.cards[i]))
        assert not (marginal[~allowed[0]] > 0).any()


def test_deterministic_or_by_hand():
    """In asia, either = lung or tub: 'either no' rules out both, and both 'no' rule out 'either yes'."""
    net = um.example("asia")

    def narrow(**evidence: str) -> dict[str, list[bool]]:
        allowed = [np.ones((1, v.card), dtype=bool) for v in net.variables]
        for name, state in evidence.items():
            allowed[net.index[name]][:] = [[s == state for s in net.variables[net.index[name]].states]]
        return dict(zip(net.names, (a[0].tolist() for a in Support(net).narrow(allowed)), strict=True))

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
    allowed = [(evidence[:, [i]] == np.arange(k)) | (evidence[:, [i]] < 0) for i, k in enumerate(net.cards)]
    together = Support(net).narrow(allowed)
    assert any(t is not a for t, a in zip(together, allowed, strict=True))
    assert all(t.any(axis=1).all() for t in together)
    for row in range(130):
        alone = Support(net).narrow([a[row : row + 1] for a in allowed])
        assert all((t[row] == a[0]).all() for t, a in zip(together, alone, strict=True))
