"""The sentence for impossible evidence names findings that do not go together, and no more of them than it takes."""

import itertools
import math

import numpy as np
import pytest

import unimarg as um
from models import ASIA, random_model
from unimarg.conflict import conflict, impossible
from unimarg.evidence import parse_evidence
from unimarg.support import Support

GIVEN = {"dysp": "yes", "either": "no", "smoke": "no", "lung": "yes"}
SAID = "the evidence is impossible: 'either'='no' and 'lung'='yes' do not go together"
MODEL = random_model(ASIA)


@pytest.mark.parametrize("method", ["auto", "exact", "prior", "lookahead", "adaptive", "um"])
def test_every_method_names_them(method):
    with pytest.raises(um.ImpossibleEvidenceError) as e:
        MODEL.query(GIVEN, method=method)
    assert str(e.value) == SAID
    assert MODEL.query([GIVEN, {}], method=method)[0].message == SAID


@pytest.mark.parametrize(
    "ask",
    [
        lambda net: net.most_probable(GIVEN) if net is MODEL else um.most_probable(net, GIVEN),
        lambda net: net.explain(GIVEN, "tub") if net is MODEL else um.explain(net, GIVEN, "tub"),
        lambda net: net.next_questions(GIVEN, ["tub"]) if net is MODEL else um.next_questions(net, GIVEN, ["tub"]),
        lambda net: net.joint(GIVEN, ["tub", "lung"]) if net is MODEL else um.joint(net, GIVEN, ["tub", "lung"]),
        lambda net: net.sample_posterior(GIVEN, 10) if net is MODEL else um.sample_posterior(net, GIVEN, 10),
    ],
    ids=["most_probable", "explain", "next_questions", "joint", "sample_posterior"],
)
@pytest.mark.parametrize("net", [ASIA, MODEL], ids=["network", "model"])
def test_every_question_names_them(net, ask):
    with pytest.raises(um.ImpossibleEvidenceError) as e:
        ask(net)
    assert str(e.value) == SAID


def test_rows_of_a_table_name_them():
    states = np.full((2, len(ASIA)), -1)
    states[1, [ASIA.index["either"], ASIA.index["lung"]]] = [1, 0]
    with pytest.raises(um.ImpossibleEvidenceError) as e:
        MODEL.marginals_of_states(states)
    assert str(e.value).startswith("row 1: the evidence is impossible: ")
    assert "'either'='no'" in str(e.value)


def chain():
    """Each variable is at least as high as the one before; the last can not be 3."""
    variables = [um.Variable(f"x{i}", ("0", "1", "2", "3")) for i in range(5)]
    table = np.triu(np.ones((4, 4)))
    last = np.array([[1.0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 1, 0], [0, 0, 1, 0]])
    tables = {f"x{i}": (table if i < 4 else last) / (table if i < 4 else last).sum(axis=1, keepdims=True) for i in range(1, 5)}
    return um.Network(variables, {f"x{i}": [f"x{i - 1}"] for i in range(1, 5)}, {"x0": [0.25] * 4} | tables)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"x4": "3", "x0": "1"}, "'x4'='3' has probability zero by itself"),
        ({"x3": "0", "x1": "1", "x0": "2"}, "'x3'='0' and 'x1'='1' do not go together"),
        ({"x0": [0, 0, 1, 1], "x2": "1", "x4": "2"}, "'x2'='1' and the likelihood of 'x0' do not go together"),
        (
            {"x1": [0, 1, 1, 0], "x3": [1, 0, 0, 1], "x4": "1"},
            "'x4'='1', the likelihood of 'x1' and the likelihood of 'x3' do not go together",
        ),
    ],
)
def test_alone_together_or_uncertain(given, said):
    net = chain()
    for method in ("lookahead", "exact"):
        with pytest.raises(um.ImpossibleEvidenceError) as e:
            um.infer(net, given, method=method)
        assert str(e.value) == f"the evidence is impossible: {said}"


def test_none_can_be_left_out():
    """Every set of findings that is found is impossible, and every part of it possible: by enumeration of the rest."""
    net, rng, found = chain(), np.random.default_rng(0), 0
    for _ in range(200):
        given = {f"x{i}": int(rng.integers(4)) for i in rng.permutation(5)[: rng.integers(1, 6)]}
        nodes = conflict(net, parse_evidence(net, given), Support(net))
        if nodes is None:
            assert um.exact(net, given).log_evidence > -math.inf
            continue
        found += 1
        names = [net.names[i] for i in nodes]
        assert names == [name for name in given if name in names]
        with pytest.raises(um.ImpossibleEvidenceError):
            um.exact(net, {name: given[name] for name in names})
        for part in itertools.combinations(names, len(names) - 1):
            um.exact(net, {name: given[name] for name in part})
    assert found > 50


def test_many_findings():
    """A hundred and sixty-six that are all needed, and two among hundreds: few of them are named, or few are searched."""
    causes = [f"c{j}" for j in range(165)]
    priors = {c: [0.9, 0.1] for c in causes}
    net = um.Network([um.Variable(c) for c in (*causes, "x")], {"x": causes}, priors | {"x": um.NoisyOr(0.0, [0.5] * 165)})
    evidence = parse_evidence(net, {"x": "yes"} | dict.fromkeys(causes, "no"))
    assert len(conflict(net, evidence, seconds=100.0) or ()) == 166
    assert str(impossible(net, evidence)).endswith("'c4'='no', 'c5'='no' and 159 more do not go together")
    assert len(conflict(net, evidence, seconds=0.0) or ()) == 166  # those that could not be looked at stay
    pairs = [um.Variable(f"{a}{i}") for i in range(300) for a in "ab"]
    tables = {v.name: [0.5, 0.5] if v.name[0] == "a" else [[1, 0], [0.5, 0.5]] for v in pairs}
    large = um.Network(pairs, {f"b{i}": [f"a{i}"] for i in range(300)}, tables)
    given = dict.fromkeys(large.names, "yes") | {"a140": "no"}
    assert str(impossible(large, parse_evidence(large, given))).endswith("'a140'='no' and 'b140'='yes' do not go together")


def test_what_propagation_does_not_prove_is_told_of_all():
    """Three that differ from each other have two states: each pair of them may."""
    differ = [[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]]
    names = ("a", "b", "c")
    variables = [*(um.Variable(n) for n in names), *(um.Variable(f"{x}{y}") for x, y in itertools.combinations(names, 2))]
    parents = {f"{x}{y}": [x, y] for x, y in itertools.combinations(names, 2)}
    given = dict.fromkeys(parents, "yes")
    net = um.Network(variables, parents, {n: [0.5, 0.5] for n in names} | dict.fromkeys(parents, differ))
    evidence = parse_evidence(net, given)
    assert conflict(net, evidence) is None
    assert str(impossible(net, evidence)) == "the evidence is impossible: 'ab'='yes', 'ac'='yes' and 'bc'='yes' do not go together"
    with pytest.raises(um.ImpossibleEvidenceError, match=r"contradict each other|does not go with the rest|given the rest"):
        um.exact(net, given)
    with pytest.raises(um.ImpossibleEvidenceError, match="'ab'='yes', 'ac'='yes' and 'bc'='yes' do not go together"):
        um.most_probable(net, given)
