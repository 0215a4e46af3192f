"""Networks to and from pgmpy and pyAgrum, and the files those two write."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import unimarg as um
from unimarg.errors import NetworkError, UsageError
from unimarg.formats import xmlbif
from unimarg.formats.interop import as_network, from_pgmpy, from_pyagrum, import_quietly, to_pgmpy, to_pyagrum
from unimarg.network import Network, NoisyOr, Variable


@pytest.fixture(scope="module")
def gum() -> Any:
    return import_quietly("pyagrum", "pyagrum")


@pytest.fixture(scope="module")
def pgmpy() -> Any:
    import_quietly("pgmpy.models", "pgmpy")
    import_quietly("pgmpy.factors.discrete", "pgmpy")
    import_quietly("pgmpy.readwrite", "pgmpy")
    return import_quietly("pgmpy", "pgmpy")


def network(seed: int = 0, names: tuple[str, ...] = ("a", "b", "c", "d")) -> Network:
    """Four variables of 2, 3, 4 and 2 states; the last has the others as parents, in an order that is not theirs."""
    rng = np.random.default_rng(seed)
    a, b, c, d = names
    variables = [
        Variable(a, ("x", "y")),
        Variable(b, ("p", "q", "r"), "middle"),
        Variable(c, ("1", "2", "3", "4")),
        Variable(d, ("no", "yes")),
    ]
    tables = {a: rng.dirichlet([1, 1]), b: rng.dirichlet([1] * 3, 2), c: rng.dirichlet([1] * 4), d: rng.dirichlet([1, 1], (4, 2, 3))}
    return Network(variables, {b: [a], d: [c, a, b]}, tables, "four")


def configurations(net: Network, i: int) -> list[tuple[dict[str, str], float]]:
    """Every entry of a table as names and number."""
    family = [*(net.variables[p] for p in net.parents[i]), net.variables[i]]
    table = net.mechanisms[i].expand()
    entries = itertools.product(*(range(v.card) for v in family))
    return [({v.name: v.states[k] for v, k in zip(family, entry, strict=True)}, float(table[entry])) for entry in entries]


ODD = ("a b<&>\"'", "é漢", " ", "1")


@pytest.mark.parametrize("names", [("a", "b", "c", "d"), ODD])
@pytest.mark.parametrize(("there", "back"), [(to_pgmpy, from_pgmpy), (to_pyagrum, from_pyagrum)])
def test_there_and_back_is_identical(there, back, names: tuple[str, ...]):
    net = network(names=names)
    again = back(there(net))
    assert again == net
    assert again.name == "four"


def test_pyagrum_values_by_named_instantiation(gum: Any):
    net = network()
    bn = to_pyagrum(net)
    for i, name in enumerate(net.names):
        for names, value in configurations(net, i):
            assert bn.cpt(name)[names] == value


def test_pyagrum_posterior_agrees_with_enumeration(gum: Any):
    net = network()
    inference = gum.LazyPropagation(to_pyagrum(net))
    inference.setEvidence({"d": "yes", "b": "q"})
    a, b, c, d = (net.mechanisms[net.find(name)].expand() for name in "abcd")  # d has the axes c, a, b, d
    weights = np.einsum("a,a,c,ca->c", a, b[:, 1], c, d[:, :, 1, 1])
    assert inference.posterior("c").tolist() == pytest.approx((weights / weights.sum()).tolist(), abs=1e-12)


def test_pgmpy_values_by_name(pgmpy: Any):
    net = network()
    model = to_pgmpy(net)
    assert model.check_model()
    for i, name in enumerate(net.names):
        cpd = model.get_cpds(name)
        for names, value in configurations(net, i):
            assert cpd.get_value(**names) == value


def test_pgmpy_parent_states_in_another_order(pgmpy: Any):
    cpd = pgmpy.factors.discrete.TabularCPD
    model = pgmpy.models.DiscreteBayesianNetwork([("a", "b")])
    model.add_cpds(cpd("a", 2, [[0.2], [0.8]], state_names={"a": ["x", "y"]}))
    model.add_cpds(cpd("b", 2, [[0.1, 0.4], [0.9, 0.6]], ["a"], [2], state_names={"b": ["u", "v"], "a": ["y", "x"]}))
    table = from_pgmpy(model).mechanisms[1].expand()
    assert table.tolist() == [[0.4, 0.6], [0.1, 0.9]]
    model.add_cpds(cpd("b", 2, [[0.1, 0.4], [0.9, 0.6]], ["a"], [2], state_names={"b": ["u", "v"], "a": ["y", "z"]}))
    with pytest.raises(NetworkError, match="'b' gives its parent 'a'"):
        from_pgmpy(model)


def test_pgmpy_noisy_or_is_a_table(pgmpy: Any):
    discrete = pgmpy.factors.discrete
    model = pgmpy.models.DiscreteBayesianNetwork([("a", "n"), ("b", "n")])
    for name in "ab":
        model.add_cpds(discrete.TabularCPD(name, 2, [[0.2], [0.8]], state_names={name: ["True", "False"]}))
    model.add_cpds(discrete.NoisyORCPD("n", [0.3, 0.5], ["a", "b"]))
    net = from_pgmpy(model)
    rows = net.mechanisms[net.find("n")].expand()  # states True, False
    assert rows[..., 0].ravel().tolist() == pytest.approx([1 - 0.7 * 0.5, 0.3, 0.5, 0.0])


def test_pgmpy_incomplete_model(pgmpy: Any):
    model = pgmpy.models.DiscreteBayesianNetwork([("a", "b")])
    with pytest.raises(NetworkError, match="no CPD for 'a'"):
        from_pgmpy(model)
    with pytest.raises(UsageError, match="not int"):
        from_pgmpy(3)
    with pytest.raises(UsageError, match="not int"):
        from_pyagrum(3)


def test_pyagrum_kinds_of_variable(gum: Any):
    bn = gum.BayesNet()
    bn.add(gum.LabelizedVariable("labels", "", ["x", "y"]))
    bn.add(gum.RangeVariable("range", "", -1, 1))
    bn.add(gum.IntegerVariable("integers", "", [1, 3, 7]))
    bn.add(gum.DiscretizedVariable("bins", "", [1, 2, 3.5]))
    bn.add(gum.NumericalDiscreteVariable("numbers", "", [1.5, 2.5]))
    for parent in ("range", "labels", "bins"):
        bn.addArc(parent, "integers")
    bn.generateCPTs()
    net = from_pyagrum(bn)
    states = {v.name: v.states for v in net.variables}
    assert states == {
        "labels": ("x", "y"),
        "range": ("-1", "0", "1"),
        "integers": ("1", "3", "7"),
        "bins": ("[1;2[", "[2;3.5]"),
        "numbers": ("1.5", "2.5"),
    }
    for i, name in enumerate(net.names):
        tensor = bn.cpt(name)
        for names, value in configurations(net, i):
            instantiation = gum.Instantiation(tensor)
            for variable, state in names.items():
                instantiation.chgVal(variable, states[variable].index(state))
            # pyAgrum's generated rows are not normalised to the last bit
            assert tensor.get(instantiation) == pytest.approx(value, abs=1e-15)


def test_pyagrum_gates_are_read_as_what_they_stand_for(gum: Any):
    bn = gum.fastBN("a{no|yes};b{no|yes}")
    bn.addNoisyORNet(gum.LabelizedVariable("n", "", ["no", "yes"]), 0.1)
    bn.addWeightedArc("a", "n", 0.3)
    bn.addWeightedArc("b", "n", 0.5)
    net = from_pyagrum(bn)
    n = net.find("n")
    values = {tuple(sorted(names.items())): p for names, p in configurations(net, n)}
    both = {tuple(sorted({"a": "yes", "b": "yes", "n": "no"}.items())): 0.9 * 0.7 * 0.5}
    none = {tuple(sorted({"a": "no", "b": "no", "n": "no"}.items())): 0.9}
    for key, expected in (both | none).items():
        assert values[key] == pytest.approx(expected)


def test_noisy_max_is_expanded_or_declined():
    names = [f"p{i}" for i in range(30)]
    roots = {n: [0.5, 0.5] for n in names}
    variables = [*map(Variable, names), Variable("x")]
    small = Network([*variables[:2], variables[-1]], {"x": names[:2]}, {n: roots[n] for n in names[:2]} | {"x": NoisyOr(0.1, [0.2, 0.3])})
    large = Network(variables, {"x": names}, {**roots, "x": NoisyOr(0.1, [0.2] * 30)})
    for there, back in ((to_pgmpy, from_pgmpy), (to_pyagrum, from_pyagrum)):
        assert np.array_equal(back(there(small)).mechanisms[2].expand(), small.mechanisms[2].expand())
        with pytest.raises(NetworkError, match="'x' cannot be given to"):
            there(large)


@pytest.mark.parametrize("variable", [Variable("a\0b"), Variable("a", ("x\0", "y")), Variable("a\ud800")])
def test_names_that_pyagrum_cannot_take(variable: Variable):
    net = Network([variable], {}, {variable.name: [0.5, 0.5]})
    try:
        assert from_pyagrum(to_pyagrum(net)) == net
    except NetworkError as e:
        assert "pyAgrum cannot take" in str(e)  # noqa: PT017 (either outcome is right)


def test_xmlbif_written_by_pgmpy(pgmpy: Any):
    net = network()
    text = str(pgmpy.readwrite.XMLBIFWriter(to_pgmpy(net)))
    assert_same_by_name(xmlbif.read(text.encode(), "pgmpy.xml"), net, 1e-6)


def test_xmlbif_written_by_pyagrum(gum: Any, tmp_path):
    net = network()
    path = tmp_path / "net.bifxml"
    gum.saveBN(to_pyagrum(net), str(path))
    assert_same_by_name(xmlbif.read(path.read_bytes(), str(path)), net, 1e-5)


def test_xmlbif_read_by_the_others(gum: Any, pgmpy: Any, tmp_path):
    net = network()
    path = tmp_path / "net.bifxml"
    path.write_text(xmlbif.write(net), encoding="utf-8")
    assert_same_by_name(from_pyagrum(gum.loadBN(str(path))), net, 1e-6)
    assert_same_by_name(from_pgmpy(pgmpy.readwrite.XMLBIFReader(str(path)).get_model()), net, 1e-9)


def assert_same_by_name(read: Network, net: Network, tolerance: float) -> None:
    assert set(read.names) == set(net.names)
    for i, name in enumerate(net.names):
        found = {tuple(sorted(names.items())): p for names, p in configurations(read, read.find(name))}
        expected = {tuple(sorted(names.items())): p for names, p in configurations(net, i)}
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert found[key] == pytest.approx(value, abs=tolerance)


def test_models_of_others_are_taken_in_place_of_a_network():
    asia = um.example("asia")
    evidence = {"dysp": "yes"}
    expected = um.exact(asia, evidence)["lung"]
    for theirs in (um.to_pyagrum(asia), um.to_pgmpy(asia)):
        assert um.exact(theirs, evidence)["lung"] == pytest.approx(expected)
        assert um.infer(theirs, evidence)["lung"] == pytest.approx(expected)
        assert um.joint(theirs, evidence, ["lung"])["probability"].tolist() == pytest.approx(list(expected.values()))
        assert um.most_probable(theirs, evidence).assignment == um.most_probable(asia, evidence).assignment
        assert um.next_questions(theirs, evidence, ["lung"])["variable"].iloc[0] == "either"
        assert len(um.explain(theirs, evidence, "lung")) == 1
        assert um.sample(theirs, 10).shape == (10, 8)
        assert as_network(theirs) == asia
    assert as_network(asia) is asia


@pytest.mark.parametrize("call", [um.exact, um.infer, um.train, um.most_probable, um.evaluate, lambda net: um.sample(net, 5)])
def test_what_is_no_network_is_refused(call):
    with pytest.raises(UsageError, match="needs a Network, or a model of pgmpy or pyAgrum, not str; unimarg"):
        call("asia.bif")
    with pytest.raises(UsageError, match="not int"):
        call(7)
