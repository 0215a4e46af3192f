from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from networks import all_states, random_network
from unimarg import Network, NoisyMax, NoisyOr, Table, Variable, exact, infer, load, save, to_pyagrum
from unimarg.clique_tree import clique_tree
from unimarg.errors import FormatError, NetworkError, UsageError
from unimarg.examples import example


def chain(**mechanisms) -> Network:
    return Network([Variable(n) for n in "abc"], {"b": ["a"], "c": ["b"]}, {"a": [0.6, 0.4], "b": np.eye(2), "c": np.eye(2)} | mechanisms)


def test_order_is_topological_and_otherwise_as_given():
    net = Network(
        [Variable(n) for n in ("child", "x", "parent", "y")],
        {"child": ["parent"]},
        {"child": np.eye(2), "x": [0.5, 0.5], "parent": [0.5, 0.5], "y": [0.5, 0.5]},
    )
    assert net.names == ("x", "parent", "child", "y")
    assert net.parents == ((), (), (1,), ())
    assert net.children == ((), (2,), (), ())
    assert net.levels.tolist() == [0, 0, 1, 0]
    given = random_network(0, 30)
    assert given.names == tuple(f"v{i}" for i in range(30))


def test_counts():
    net = Network(
        [Variable("a", ("x", "y", "z")), Variable("b"), Variable("c")],
        {"b": ["a"], "c": ["a", "b"]},
        {"a": [0.2, 0.3, 0.5], "b": np.full((3, 2), 0.5), "c": NoisyMax([0.9, 0.1], [[[1, 0], [0.5, 0.5], [0, 1]], [[1, 0], [0.3, 0.7]]])},
    )
    assert (len(net), net.arc_count, net.parameter_count) == (3, 3, 2 + 3 + (1 + 2 + 1))
    assert repr(net) == "Network('network', 3 variables, 3 arcs)"


def test_noisy_or_by_hand():
    rows = NoisyOr(0.1, [0.8, 0.5]).rows(np.array([[0, 0], [1, 0], [0, 1], [1, 1]]))
    np.testing.assert_allclose(rows[:, 0], [0.9, 0.9 * 0.2, 0.9 * 0.5, 0.9 * 0.2 * 0.5], rtol=1e-15)


def test_noisy_max_by_hand():
    """Leak [.7,.2,.1], one parent present with effect [.5,.3,.2]: the maximum of the two."""
    rows = NoisyMax([0.7, 0.2, 0.1], [[[1, 0, 0], [0.5, 0.3, 0.2]]]).rows(np.array([[0], [1]]))
    np.testing.assert_allclose(rows[0], [0.7, 0.2, 0.1], rtol=1e-15)
    np.testing.assert_allclose(rows[1], [0.7 * 0.5, 0.9 * 0.8 - 0.7 * 0.5, 1 - 0.9 * 0.8], rtol=1e-14)


def test_noisy_max_keeps_small_probabilities():
    rows = NoisyMax([1 - 1e-18, 1e-18], [[[1, 0], [1 - 1e-12, 1e-12]]]).rows(np.array([[0], [1]]))
    np.testing.assert_allclose(rows[:, 1], [1e-18, 1e-12 + 1e-18], rtol=1e-12)


def rare_rows(rng: np.random.Generator, rows: int, card: int) -> np.ndarray:
    """Entries down to 1e-20 beside large ones and zeros, in any order."""
    p = 10 ** -rng.uniform(0, 20, (rows, card)) * (rng.random((rows, card)) < 0.7)
    p[np.arange(rows), rng.integers(card, size=rows)] += 0.5
    return p / p.sum(axis=1, keepdims=True)


def max_by_enumeration(leak: np.ndarray, contributions: list[np.ndarray]) -> np.ndarray:
    """``[configurations, card]`` of fractions: every state so far with every effect of the next cause, nothing rounded."""
    table = [[Fraction(x) for x in leak.tolist()]]
    for rows in contributions:
        effects = [[Fraction(x) for x in row] for row in rows.tolist()]
        wider = []
        for p in table:
            for q in effects:
                new = [Fraction(0)] * len(leak)
                for a, x in enumerate(p):
                    for b, y in enumerate(q):
                        new[max(a, b)] += x * y
                wider.append(new)
        table = wider
    return np.array(table)


@pytest.mark.parametrize("seed", range(40))
def test_no_state_of_a_noisy_max_is_lost(seed):
    rng = np.random.default_rng(seed)
    card, cards = int(rng.integers(2, 6)), rng.integers(2, 5, size=rng.integers(1, 6)).tolist()
    contributions = [np.vstack([np.eye(card)[0], rare_rows(rng, k - 1, card)]) for k in cards]
    m = NoisyMax(rare_rows(rng, 1, card)[0], contributions)
    truth = max_by_enumeration(m.leak, contributions)
    for found in (m.expand().reshape(-1, card), m.rows(np.array(list(np.ndindex(*cards))))):
        assert ((found == 0) == (truth == 0)).all()
        assert not np.signbit(found).any()  # a file would show -0.0
        off = [abs(Fraction(x) / t - 1) for x, t in zip(found.ravel().tolist(), truth.ravel(), strict=True) if t]
        assert max(off) < 1e-12


def test_expanded_noisy_max_equals_its_rows():
    net = random_network(5, 12, noisy=1.0)
    for m in net.mechanisms:
        states = np.array(list(np.ndindex(*m.parent_cards)), dtype=int).reshape(int(np.prod(m.parent_cards)), -1)
        np.testing.assert_allclose(m.expand().reshape(-1, m.card), m.rows(states), rtol=1e-13)
        np.testing.assert_allclose(m.rows(states).sum(axis=1), 1, rtol=1e-12)


def test_expanding_165_parents_is_refused():
    with pytest.raises(NetworkError, match=r"165 parents .* 9.35e\+49 entries"):
        NoisyOr(0.1, [0.5] * 165).expand()


def test_more_parents_of_a_single_state_than_a_table_can_have(tmp_path):
    """One axis each: numpy has 64."""
    causes = [Variable(f"c{i}", ("only",) if i else ("no", "yes")) for i in range(70)]
    tables = {v.name: [0.8, 0.2] if v.card > 1 else [1.0] for v in causes}
    effects = [[[1.0, 0.0], [0.4, 0.6]][: v.card] for v in causes]
    net = Network([*causes, Variable("s")], {"s": [v.name for v in causes]}, tables | {"s": NoisyMax([0.9, 0.1], effects)})
    p = 0.2 * 0.64 / (0.2 * 0.64 + 0.8 * 0.1)
    for method in ("exact", "lookahead", "prior"):
        found = infer(net, {"s": "yes"}, ["c0"], method)
        assert abs(found["c0"]["yes"] - p) <= 4 * found.error("c0")["yes"] + 1e-12
    assert clique_tree(net, 1 << 20) is None
    with pytest.raises(NetworkError, match="70 parents would need a table with an axis for each; the limit is 63 parents"):
        net.mechanisms[-1].expand()
    with pytest.raises(NetworkError, match=r"'s' cannot be given to pyAgrum: .* 63 parents"):
        to_pyagrum(net)
    with pytest.raises(FormatError, match=r"that would have as many parents, the limit is 63\. Save as \.xdsl"):
        save(net, tmp_path / "net.bif")


@pytest.mark.parametrize(
    ("states", "sentence"),
    [
        ([[0, 0, 0]], r"\[rows, 8 variables\], not int64 \[1, 3\]"),
        ([0] * 8, r"not int64 \[8\]"),
        ([[0.0] * 8], "not float64"),
        ([[True] * 8], "not bool"),
        ([[0] * 8, [-1] * 8], "row 1: 'asia' has no state number -1; they go from 0 to 1"),
        ([[0] * 7 + [2]], "row 0: 'dysp' has no state number 2"),
    ],
)
def test_states_that_have_no_probability(states, sentence):
    with pytest.raises(UsageError, match=sentence):
        example("asia").log_probability(states)


def test_log_probability_sums_to_one():
    for seed in range(5):
        net = random_network(seed, 6)
        assert np.exp(net.log_probability(all_states(net))).sum() == pytest.approx(1, abs=1e-12)


def test_equality_is_exact():
    assert random_network(1, 10) == random_network(1, 10)
    assert random_network(1, 10) != random_network(2, 10)
    assert chain() != chain(b=[[1 - 1e-9, 1e-9], [0, 1]])
    assert Table([0.5, 0.5]) != NoisyMax([0.5, 0.5], [])


def test_a_row_slightly_off_is_renormalised_once():
    net = chain(a=[0.3333, 0.6663])
    np.testing.assert_allclose(net.mechanisms[0].expand(), [0.3333 / 0.9996, 0.6663 / 0.9996], rtol=1e-15)
    again = chain(a=net.mechanisms[0])
    assert again == net


def test_arrays_are_frozen():
    with pytest.raises(ValueError, match="read-only"):
        chain().mechanisms[0].expand()[0] = 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Variable(""), "non-empty string"),
        (lambda: Variable("a", ()), "'a' has no states"),
        (lambda: Variable("a", "yes"), "list of labels"),
        (lambda: Variable("a", ("x", "x")), "the state 'x' twice"),
        (lambda: Variable("a", ("x", 1)), "non-empty string, not 1"),
        (lambda: Variable("a", group=3), "variable 'a': a group must be a string, not 3"),
        (lambda: Variable("a", group=None), "a group must be a string, not None"),
        (lambda: Network(["a"], {}, {"a": [0.5, 0.5]}), r"a list of Variable, and 'a' is none; Variable\('name'"),
        (lambda: Network("a", {}, {"a": [0.5, 0.5]}), "variables must be a list of Variable, not 'a'"),
        (lambda: Network(None, {}, {}), "variables must be a list of Variable, not None"),
        (lambda: Network([Variable("a")], None, {"a": [0.5, 0.5]}), "parents must be a mapping .* to the names of its parents, not None"),
        (lambda: Network([Variable("a")], {}, [[0.5, 0.5]]), "mechanisms must be a mapping .* to its probabilities, not"),
        (lambda: Network([Variable("a")], {"a": None}, {"a": [0.5, 0.5]}), "the parents of 'a' must be a list of names, not None"),
        (lambda: Network([Variable("a")], {"a": [["b"]]}, {"a": [0.5, 0.5]}), r"unknown parent \['b'\]"),
        (lambda: Network([Variable("a")], {}, {"a": [0.5, 0.5]}, 3), "a network's name must be a string, not 3"),
        (lambda: NoisyOr(0.1, 0.5), "a NoisyOr takes a number, the leak, and a list of numbers, one for each parent, not 0.1 and 0.5"),
        (lambda: NoisyOr("much", [0.5]), "a NoisyOr takes a number, the leak"),
        (lambda: NoisyOr(0.1, [None]), "a NoisyOr takes a number, the leak"),
        (lambda: NoisyMax([0.5, 0.5], 0.5), "contributions must be a list of arrays, one for each parent, not 0.5"),
        (lambda: Network([], {}, {}), "at least one variable"),
        (lambda: Network([Variable("a"), Variable("a")], {}, {"a": [0.5, 0.5]}), "two variables are called 'a'"),
        (lambda: Network([Variable("a")], {}, {}), "'a' has no probabilities"),
        (lambda: Network([Variable("alpha")], {"alpha": ["alpa"]}, {"alpha": [0.5, 0.5]}), "unknown parent 'alpa'; did you mean 'alpha'"),
        (lambda: Network([Variable("a")], {"b": []}, {"a": [0.5, 0.5]}), "given for 'b', which is no variable"),
        (lambda: Network([Variable("a"), Variable("b")], {"b": "a"}, {"a": [0.5, 0.5], "b": np.eye(2)}), "list of names"),
        (lambda: Network([Variable("a"), Variable("b")], {"b": ["a", "a"]}, {"a": [0.5, 0.5], "b": np.eye(2)}), "same parent twice"),
        (lambda: chain(b=[0.5, 0.5]), r"shape \[2\]; its parents \(a\) and states need \[2, 2\]"),
        (lambda: chain(b=[[0.5, 0.5], [0.9, 0.2]]), r"of 'b' given a=yes sum to 1.1, not 1: \[0.9, 0.2\]"),
        (lambda: chain(b=[[0.5, 0.5], [np.nan, 1]]), "given a=yes are not all finite"),
        (lambda: chain(b=[[0.5, 0.5], [-0.1, 1.1]]), "the probabilities of 'b' given a=yes include a negative one"),
        (lambda: chain(b=NoisyMax([1.5, -0.5], [[[1, 0], [0, 1]]])), "the numbers in the leak of 'b' include a negative one"),
        (lambda: chain(b=NoisyMax([1, 0], [[[1, 0], [2, -1]]])), "in the contribution of 'a' to 'b' given a=yes include a negative one"),
        (lambda: chain(b=[[0.5, 0.5], [1]]), "regular array"),
        (lambda: chain(b=NoisyMax([0.5, 0.5], [[[0.9, 0.1], [0, 1]]])), r"first \(neutral\) state 'no' must be \[1, 0, ...\]"),
        (lambda: chain(b=NoisyMax([0.5, 0.4], [[[1, 0], [0, 1]]])), "leak of 'b' sum to 0.9"),
        (lambda: NoisyMax([0.5, 0.5], [[1, 0]]), "contribution 0 must have shape"),
        (lambda: chain(b=NoisyMax([0.5, 0.3, 0.2], [[[1, 0, 0], [0, 1, 0]]])), "NoisyOr is for two, NoisyMax for any number"),
        (lambda: chain(b=NoisyOr(0.1, [0.5, 0.3])), "has 2 contributions"),
        (lambda: Table(0.5), "at least one dimension"),
    ],
)
def test_mistakes_are_named(make, message):
    with pytest.raises(NetworkError, match=message):
        make()


def test_a_cycle_is_printed():
    with pytest.raises(NetworkError) as e:
        Network(
            [Variable(n) for n in "abcd"],
            {"a": ["c"], "b": ["a"], "c": ["b"], "d": ["c"]},
            dict.fromkeys("abcd", [[0.5, 0.5]] * 2),
        )
    path = str(e.value).removeprefix("the arcs form a cycle: ").split(" -> ")
    assert path[0] == path[-1]
    assert set(path) == {"a", "b", "c"}
    assert ("a", "b") in pairwise(path)


def test_find_suggests():
    with pytest.raises(UsageError, match="did you mean 'v11'"):
        random_network(0, 12).find("vv11")


@pytest.mark.parametrize(
    ("cause", "effect", "named"),
    [
        (("yes", "no"), ("no", "yes"), "'cause' \\('yes'\\); "),
        (("no", "yes"), ("Present", "Absent"), "'effect' \\('Present'\\); "),
        (("TRUE", "FALSE"), ("yes", "no"), "'cause' \\('TRUE'\\), 'effect' \\('yes'\\); "),
    ],
)
def test_a_first_state_that_can_hardly_be_absent_is_told_of(cause, effect, named, tmp_path):
    variables, prior = [Variable("cause", cause), Variable("effect", effect)], [0.8, 0.2]
    with pytest.warns(UserWarning, match=f'first state of a node and of its parents for "absent": {named}') as told:
        net = Network(variables, {"effect": ["cause"]}, {"cause": prior, "effect": NoisyOr(0.1, [0.8])})
    assert [w.filename for w in told] == [__file__]
    Network(variables, {"effect": ["cause"]}, {"cause": prior, "effect": [[0.9, 0.1], [0.2, 0.8]]})  # a table has no such state
    save(net, tmp_path / "net.xdsl")  # where a neutral state may be called anything
    again = load(tmp_path / "net.xdsl")
    assert again == net
    assert exact(again, {"effect": effect[1]})["cause"] == exact(net, {"effect": effect[1]})["cause"]
