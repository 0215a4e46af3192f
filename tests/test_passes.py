"""One pass for many rows: the same as for each alone, and nothing for what is impossible."""

from dataclasses import replace

import jax
import numpy as np
import pytest

import unimarg as um
from models import random_model
from networks import random_network
from unimarg import passes
from unimarg.support import Support


def rows(net: um.Network, n: int, seed: int = 0, shown: float = 0.4) -> np.ndarray:
    """Evidence that is possible; -1 where nothing is observed."""
    x = np.asarray(um.sample(net, n, seed=seed)).astype(int)
    return np.where(np.random.default_rng(seed).random(x.shape) < shown, x, -1)


@pytest.mark.parametrize("rounds", [0, 2])
def test_many_rows_are_as_each_alone_and_have_the_zeros_that_are_proven(rounds, monkeypatch):
    """In two pieces of 64 rows and a rest that is padded, the first contradictory row in the second of them."""
    monkeypatch.setattr(passes, "PROVEN", 64)
    net = random_network(3, nodes=9, max_parents=2, zeros=0.4)
    model = random_model(net, preset="small", hidden=(8, 8), rounds=rounds)
    evidence = rows(net, 150)
    support, edges = Support(net), np.cumsum([0, *net.cards])
    allowed = {i: (evidence[:, [i]] == np.arange(k)) | (evidence[:, [i]] < 0) for i, k in enumerate(net.cards)}
    possible = np.concatenate(list((allowed | support.narrow(allowed)).values()), axis=1)
    found, contradiction = model.answers_of_states(evidence)
    assert (contradiction == -1).all()
    assert ((found > 0) == possible).all()
    assert possible.sum() < np.concatenate(list(allowed.values()), axis=1).sum()  # more than the evidence itself rules out
    np.testing.assert_allclose(np.add.reduceat(found, edges[:-1], axis=1), 1, atol=1e-5)
    for row in (0, 63, 64, 149):
        np.testing.assert_allclose(model.answers_of_states(evidence[[row]])[0][0], found[row], atol=1e-5)
    without = model.answers_of_states(evidence, rule_out=False)[0]
    assert ((without > 0) == np.concatenate(list(allowed.values()), axis=1)).all()
    kept = np.where(possible, without, 0)
    scale = np.repeat(np.add.reduceat(kept, edges[:-1], axis=1), net.cards, axis=1)
    np.testing.assert_allclose(found, kept / scale, atol=1e-5)  # the rest is scaled up


def test_an_impossible_row_is_told_and_leaves_its_neighbours_alone(monkeypatch):
    monkeypatch.setattr(passes, "PROVEN", 64)
    net = um.example("asia")
    model = random_model(net, preset="small", hidden=(8, 8))
    evidence = rows(net, 70)
    bad = {"either": "no", "lung": "yes"}
    evidence[66] = [net.variables[i].states.index(bad[name]) if name in bad else -1 for i, name in enumerate(net.names)]
    found, contradiction = model.answers_of_states(evidence)
    assert np.flatnonzero(contradiction >= 0).tolist() == [66]
    assert np.isfinite(found).all()
    good = np.arange(70) != 66
    np.testing.assert_allclose(found[good], model.answers_of_states(evidence[good])[0], atol=1e-5)
    with pytest.raises(um.ImpossibleEvidenceError, match="row 66"):
        model.marginals_of_states(evidence)


def test_what_is_left_is_never_zero():
    """However sure the network is: weights so large that probabilities underflow."""
    model = random_model(um.example("asia"))
    sure = replace(model, trunk=jax.tree.map(lambda a: 1000 * a, model.trunk))
    found = sure.answers_of_states(np.full((1, 8), -1))[0]
    assert (found > 0).all()
    assert found.min() < 1e-29
    assert sure.query({"lung": "yes"}, method="um")["either"] == {"yes": 1, "no": 0}


def test_no_rows_are_no_answers():
    model = random_model(um.example("asia"))
    found, contradiction = model.answers_of_states(np.zeros((0, 8), int))
    assert found.shape == (0, 16)
    assert contradiction.shape == (0,)
