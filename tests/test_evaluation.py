import numpy as np
import pytest

import unimarg as um
from networks import random_network
from unimarg.errors import UsageError
from unimarg.evaluation import FAMILIES, errors, evidence_sets, references
from unimarg.masking import leaves

MEDICAL = um.medical(6, 12, 20, seed=3)
ALARM = um.example("alarm")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(family):
    sets = evidence_sets(MEDICAL, family, 30, seed=1)
    assert sets.shape == (30, len(MEDICAL))
    assert ((sets >= -1) & (sets < MEDICAL.cards)).all()
    assert (sets == evidence_sets(MEDICAL, family, 30, seed=1)).all()
    assert (sets != evidence_sets(MEDICAL, family, 30, seed=2)).any()
    net = random_network(3, 9, zeros=0.4)  # many states cannot be
    for row in evidence_sets(net, family, 20, seed=5):
        assert np.isfinite(um.exact(net, {net.names[i]: int(k) for i, k in enumerate(row) if k >= 0}).log_evidence)


def test_random_and_uniform_by_their_frequencies():
    n = 2000
    observed = evidence_sets(ALARM, "random", n, seed=1) >= 0
    assert (np.abs(observed.mean(axis=0) - 0.2) < 4 * np.sqrt(0.16 / n)).all()
    sizes = (evidence_sets(ALARM, "uniform", n, seed=1) >= 0).sum(axis=1)
    expected = n / (len(ALARM) + 1)  # every number of nodes equally often
    assert (np.abs(np.bincount(sizes, minlength=len(ALARM) + 1) - expected) < 4.5 * np.sqrt(expected)).all()


def test_leaves_are_rare(monkeypatch):
    n = 200
    monkeypatch.setattr("unimarg.evaluation.sample", None)  # whole samples are not drawn for them
    sets = evidence_sets(ALARM, "leaves", n, seed=1)
    ends = np.array(leaves(ALARM))
    assert ((sets >= 0).sum(axis=1) == 8).all()
    assert (np.delete(sets, ends, axis=1) == -1).all()
    prior = um.exact(ALARM)

    def surprise(rows):
        return np.mean([-np.log(prior.probabilities[i][rows[rows[:, i] >= 0, i]]).mean() for i in ends])

    plain = um.sample(ALARM, n, seed=9)
    assert surprise(sets) > 1.5 * surprise(np.where(sets >= 0, plain, -1))
    few = evidence_sets(um.example("asia"), "leaves", 5, seed=0)  # only two leaves
    assert ((few >= 0).sum(axis=1) == 2).all()


def test_clinical():
    sets = evidence_sets(MEDICAL, "clinical", 400, seed=1)
    ends = np.array(leaves(MEDICAL))
    roots = np.array([i for i, pa in enumerate(MEDICAL.parents) if not pa])
    present, absent = (sets[:, ends] > 0).sum(axis=1), (sets[:, ends] == 0).sum(axis=1)
    only_roots = (sets[:, np.setdiff1d(roots, ends)] >= 0).sum(axis=1)
    assert present.max() <= 6
    assert {1, 2, 3} <= set(present.tolist())
    assert absent.max() <= 14
    assert absent.min() == 0
    assert only_roots.max() <= 9
    others = np.setdiff1d(np.arange(len(MEDICAL)), [*ends, *roots])
    assert (sets[:, others] == -1).all()


def test_errors_by_hand():
    net = um.Network([um.Variable("a", ("x", "y")), um.Variable("b", ("x", "y", "z"))], {}, {"a": [0.5, 0.5], "b": [0.2, 0.3, 0.5]})
    truth, estimate = np.array([[0.5, 0.5, 0.2, 0.3, 0.5]] * 3), np.array([[0.9, 0.1, 0.2, 0.4, 0.4]] * 3)
    mean, largest = errors(estimate, truth, np.array([[-1, -1], [0, -1], [1, 2]]), net)
    np.testing.assert_allclose(mean, [1.0 / 5, 0.2 / 3, 0])
    np.testing.assert_allclose(largest, [0.4, 0.1, 0])


def test_references_where_numbers_are_labels(monkeypatch):
    table = [[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]]
    net = um.Network(
        [um.Variable("level", ("1", "2", "3")), um.Variable("ill")], {"ill": ["level"]}, {"level": [0.2, 0.3, 0.5], "ill": table}
    )
    monkeypatch.setattr("unimarg.evaluation.clique_tree", lambda *_: None)  # one by one
    truth, _ = references(net, np.array([[0, -1], [1, -1], [2, -1]]))
    np.testing.assert_allclose(truth, np.hstack([np.eye(3), table]), atol=1e-12)


@pytest.mark.parametrize(("family", "count"), [("randm", 5), ("random", 0), ("random", 1.5), ("random", None)])
def test_misuse(family, count):
    with pytest.raises(UsageError):
        evidence_sets(ALARM, family, count, seed=0)
