import numpy as np
import pytest

import unimarg as um
from models import random_model
from networks import all_states, random_network
from unimarg import support
from unimarg.support import Support


@pytest.mark.parametrize("noisy", [0.2, 0.8])
@pytest.mark.parametrize("seed", range(12))
def test_what_is_ruled_out_has_probability_zero(seed, noisy):
    """Against enumeration, for evidence that is possible; and it does rule something out."""
    rng = np.random.default_rng(seed)
    net = random_network(seed, nodes=7, max_parents=2, zeros=0.4, noisy=noisy)
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


@pytest.mark.parametrize("seed", range(30))
def test_a_noisy_max_rules_out_what_its_table_does(seed):
    """One node and its causes, any of whose states may be ruled out: by the table this is complete, and so it is without it."""
    rng = np.random.default_rng(seed)
    cards, card = rng.integers(1, 4, size=rng.integers(1, 5)).tolist(), int(rng.integers(2, 5))

    def pmf(rows: int) -> np.ndarray:
        p = rng.random((rows, card)) * (rng.random((rows, card)) < 0.5)
        p[np.arange(rows), rng.integers(card, size=rows)] += 0.1
        return p / p.sum(axis=1, keepdims=True)

    contributions = [pmf(k) for k in cards]
    for c in contributions:
        c[0] = np.eye(card)[0]
    variables = [um.Variable(f"c{j}", tuple(map(str, range(k)))) for j, k in enumerate(cards)] + [
        um.Variable("x", tuple(map(str, range(card))))
    ]
    mechanism = um.NoisyMax(pmf(1)[0], contributions)
    roots = {f"c{j}": np.full(k, 1 / k) for j, k in enumerate(cards)}
    parents = {"x": [f"c{j}" for j in range(len(cards))]}
    nets = [um.Network(variables, parents, roots | {"x": m}) for m in (mechanism, um.Table(mechanism.expand()))]
    given = {i: rng.random((70, v.card)) < 0.6 for i, v in enumerate(variables)}
    by_sources, by_table = (given | Support(net).narrow(given) for net in nets)
    for i in given:
        some = np.all([a.any(axis=1) for a in by_table.values()], axis=0)  # impossible rows: each is seen by both, in its own way
        np.testing.assert_array_equal(by_sources[i][some], by_table[i][some])
        assert (np.all([a.any(axis=1) for a in by_sources.values()], axis=0) == some).all()


def test_a_cause_that_alone_explains_a_finding():
    """165 causes without a leak: with all but one absent, that one is present; with all absent the finding is impossible."""
    causes = [f"c{j}" for j in range(165)]
    net = um.Network(
        [um.Variable(c) for c in (*causes, "x")], {"x": causes}, {c: [0.9, 0.1] for c in causes} | {"x": um.NoisyOr(0.0, [0.5] * 165)}
    )
    given = {"x": "yes"} | dict.fromkeys(causes[1:], "no")
    assert random_model(net).query(given, method="um")["c0"] == {"no": 0.0, "yes": 1.0}
    for method in ("um", "lookahead", "prior"):
        with pytest.raises(um.ImpossibleEvidenceError, match=r"'x'='yes', 'c1'='no'.* and 159 more do not go together"):
            random_model(net).query(given | {"c0": "no"}, method=method)
