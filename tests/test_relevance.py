"""What a query needs, and the reduction of a query to independent parts."""

import numpy as np
import pytest

from unimarg.errors import ImpossibleEvidenceError
from unimarg.evidence import parse_evidence
from unimarg.network import Network, NoisyOr, Table, Variable
from unimarg.reduction import as_noisy_or, reduce
from unimarg.relevance import ancestors, has_observed_descendant, relevant


@pytest.fixture
def diamond() -> Network:
    """a -> b -> d <- c <- a, and e -> f apart; g below d."""
    names = "abcdefg"
    parents = {"b": ["a"], "c": ["a"], "d": ["b", "c"], "f": ["e"], "g": ["d"]}
    tables = {n: Table(np.random.default_rng(k).dirichlet([1, 1], size=(2,) * len(parents.get(n, ())))) for k, n in enumerate(names)}
    return Network([Variable(n) for n in names], parents, tables)


def named(net: Network, nodes) -> str:
    return "".join(sorted(net.names[i] for i in nodes))


def test_ancestors(diamond):
    assert named(diamond, ancestors(diamond, [diamond.index["d"]])) == "abcd"
    assert ancestors(diamond, []) == set()


@pytest.mark.parametrize(
    ("evidence", "targets", "expected"),
    [
        ({}, "a", "a"),
        ({}, "d", "abcd"),
        ({"f": 1}, "d", "abcd"),
        ({"d": 1}, "b", "abcd"),
        ({"b": 1, "c": 1}, "a", "abc"),
        ({"b": 1, "c": 1}, "d", "d"),
        ({"d": 1}, "g", "g"),
        ({"d": [0.5, 1.0]}, "g", "abcdg"),
        ({"a": 1}, "a", ""),
    ],
)
def test_relevant(diamond, evidence, targets, expected):
    found = relevant(diamond, parse_evidence(diamond, evidence), [diamond.index[t] for t in targets])
    assert named(diamond, found) == expected


def test_a_virtual_finding_counts_as_an_observed_child(diamond):
    below = has_observed_descendant(diamond, parse_evidence(diamond, {"d": [0.5, 1.0], "f": 0}))
    assert named(diamond, np.flatnonzero(below)) == "abcde"
    assert not has_observed_descendant(diamond, parse_evidence(diamond, {"a": 0})).any()


def test_parts_split_where_evidence_cuts(diamond):
    reduction = reduce(diamond, parse_evidence(diamond, {"b": 1, "c": 0, "f": 1}), range(7))
    parts = sorted(named(diamond, c.nodes) for c in reduction.components)
    assert parts == ["a", "dg", "e"]  # every finding became a likelihood or a number
    assert all(not c.evidence.hard for c in reduction.components)


def test_barren_nodes_are_dropped(diamond):
    reduction = reduce(diamond, parse_evidence(diamond, {}), [diamond.index["b"]])
    assert [named(diamond, c.nodes) for c in reduction.components] == ["ab"]


def test_a_noisy_or_seen_absent_splits_its_parents():
    n = 200
    net = Network(
        [Variable(f"d{i}") for i in range(n)] + [Variable("s")],
        {"s": [f"d{i}" for i in range(n)]},
        {**{f"d{i}": [0.9, 0.1] for i in range(n)}, "s": NoisyOr(0.2, [0.5] * n)},
    )
    reduction = reduce(net, parse_evidence(net, {"s": 0}), range(n))
    assert len(reduction.components) == n
    assert reduction.log_scale == pytest.approx(np.log(0.8) + n * np.log(0.95))
    assert reduction.components[0].net.mechanisms[0].expand() == pytest.approx([0.9 / 0.95, 0.05 / 0.95])


def test_what_is_certain_is_known():
    chain = [[1.0, 0.0], [0.0, 1.0]]
    net = Network(
        [Variable(n) for n in "abcd"], {"b": ["a"], "c": ["b"], "d": ["c"]}, {"a": [0.3, 0.7], "b": chain, "c": chain, "d": chain}
    )
    reduction = reduce(net, parse_evidence(net, {"d": 1}), range(4))
    assert reduction.known == {0: 1, 1: 1, 2: 1, 3: 1}
    assert reduction.components == ()
    assert reduction.log_scale == pytest.approx(np.log(0.7))


def test_an_impossible_finding_is_named(diamond):
    net = Network([Variable("a"), Variable("b")], {"b": ["a"]}, {"a": [1.0, 0.0], "b": [[1.0, 0.0], [0.5, 0.5]]})
    with pytest.raises(ImpossibleEvidenceError, match="b=yes"):
        reduce(net, parse_evidence(net, {"a": "no", "b": "yes"}), [])


def test_noisy_or_recognised_in_tables():
    given = NoisyOr(1e-7, [1e-5, 0.25, 1.0])
    found = as_noisy_or(Table(given.expand()))
    assert found is not None
    np.testing.assert_allclose(found.contributions[0], given.contributions[0], rtol=1e-9)
    assert as_noisy_or(Table([[[0.9, 0.1], [0.5, 0.5]], [[0.5, 0.5], [0.2, 0.8]]])) is None
    assert as_noisy_or(Table([[0.1, 0.9], [0.5, 0.5]])) is None  # the parent inhibits
    assert as_noisy_or(Table(np.full((3, 2), 0.5))) is None
    assert as_noisy_or(Table([[[1.0, 1e-97], [1.0, 1e-80]], [[1.0, 1e-40], [1.0, 1e-34]]])) is None  # too small to be roundings of 1
