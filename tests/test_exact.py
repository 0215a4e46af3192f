"""Exact inference against enumeration, and what it does with bad, impossible and too large queries."""

import math
import time
import tracemalloc
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from networks import as_given, enumerate_all, random_evidence, random_network, seeds
from unimarg.errors import EvidenceError, ImpossibleEvidenceError, TooExpensiveError, UsageError
from unimarg.evaluation import evidence_sets
from unimarg.evidence import parse_evidence
from unimarg.exact import _one_by_one, exact, solve
from unimarg.examples import example
from unimarg.inference import infer
from unimarg.influence import explain
from unimarg.junction import _factors, _planned, junction_tree
from unimarg.network import Network, NoisyOr, Table, Variable
from unimarg.reduction import reduce

GIB = 2**30


@settings(max_examples=150, deadline=None)
@given(seeds, st.integers(1, 12), st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 0.3]), st.sampled_from([0.0, 0.2, 0.5]))
def test_equals_enumeration(seed, size, noisy, zeros, observed):
    rng = np.random.default_rng(seed)
    net = random_network(rng, size, noisy=noisy, zeros=zeros, max_parents=4, most=60_000)
    evidence = random_evidence(rng, net, observed, 0.2)
    log_p, marginals = enumerate_all(net, evidence)
    if log_p == -np.inf:
        with pytest.raises(ImpossibleEvidenceError):
            exact(net, as_given(net, evidence))
        return
    answer = exact(net, as_given(net, evidence))
    assert answer.log_evidence == pytest.approx(log_p, abs=1e-10)
    for found, expected in zip(answer.probabilities, marginals, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-12, rtol=0)


@settings(max_examples=60, deadline=None)
@given(seeds, st.sampled_from([0.0, 0.3]))
def test_junction_tree_of_chains_with_given_cliques(seed, zeros):
    """The paths that only large components take: every noisy-max a chain, and cliques of our own."""
    rng = np.random.default_rng(seed)
    net = random_network(rng, 9, noisy=0.8, zeros=zeros, max_parents=4, most=60_000)
    evidence = random_evidence(rng, net, 0.3, 0.1)
    log_p, marginals = enumerate_all(net, evidence)
    if log_p == -np.inf:
        return
    reduction = reduce(net, evidence, range(len(net)))
    total = reduction.log_scale
    for component in reduction.components:
        targets = [i for i in range(len(component.net)) if i not in component.evidence.hard]
        form = _factors(component.net, 0)
        plain = _planned(component, targets, form, [])
        everything = set(range(len(form[0]))) - {form[1][i] for i in component.evidence.hard}
        told = _planned(component, targets, form, [everything])
        assert told.predicted_bytes >= plain.predicted_bytes
        log_part, found = told.solve()
        total += log_part
        for i, p in found.items():
            np.testing.assert_allclose(p, marginals[component.nodes[i]], atol=1e-12, rtol=0)
    assert total == pytest.approx(log_p, abs=1e-10)


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_a_subset_of_targets_is_the_same_numbers(seed):
    rng = np.random.default_rng(seed)
    net = random_network(rng, 8, noisy=0.5, zeros=0.0, max_parents=4, most=60_000)
    evidence = as_given(net, random_evidence(rng, net, 0.3, 0.1))
    everything = exact(net, evidence)
    subset = [net.names[i] for i in rng.permutation(8)[:3]]
    some = exact(net, evidence, subset)
    assert list(some) == subset
    assert some.log_evidence == pytest.approx(everything.log_evidence, abs=1e-12)
    for name in subset:
        assert list(some[name].values()) == pytest.approx(list(everything[name].values()), abs=1e-12)


def two_nodes() -> Network:
    return Network([Variable("rain"), Variable("wet")], {"wet": ["rain"]}, {"rain": [0.8, 0.2], "wet": [[0.9, 0.1], [0.2, 0.8]]})


def test_what_an_answer_looks_like():
    answer = exact(two_nodes(), {"wet": "yes"})
    assert (answer.method, answer.status, answer.ess, answer.log_evidence_error) == ("exact", "ok", np.inf, 0.0)
    assert list(answer) == ["rain", "wet"]
    assert answer["wet"] == {"no": 0.0, "yes": 1.0}
    assert answer["rain"]["yes"] == pytest.approx(0.16 / 0.24)
    assert answer.log_evidence == pytest.approx(np.log(0.24))


def test_no_targets_still_give_log_evidence():
    assert exact(two_nodes(), {"wet": "yes"}, []).log_evidence == pytest.approx(np.log(0.24))


def test_evidence_on_every_node():
    answer = exact(two_nodes(), {"wet": "yes", "rain": "no"})
    assert answer.log_evidence == pytest.approx(np.log(0.08))
    assert answer["rain"]["no"] == 1.0


def test_unknown_names_suggest_the_closest():
    with pytest.raises(UsageError, match="did you mean 'rain'"):
        exact(two_nodes(), {}, ["rian"])
    with pytest.raises(EvidenceError, match="did you mean 'wet'"):
        exact(two_nodes(), {"wett": 1})


def test_one_node_and_one_state():
    single = Network([Variable("a", ("x", "y", "z"))], {}, {"a": [0.2, 0.3, 0.5]})
    assert list(exact(single)["a"].values()) == [0.2, 0.3, 0.5]
    assert exact(single, {"a": [1.0, 1.0, 0.0]})["a"]["y"] == pytest.approx(0.6)
    constant = Network([Variable("one", ("only",)), Variable("b")], {"b": ["one"]}, {"one": [1.0], "b": [[0.4, 0.6]]})
    assert exact(constant, {"b": 1})["one"] == {"only": 1.0}


@pytest.mark.parametrize("given", [{"b": "yes", "c": "yes"}, {"a": [0.0, 1.0], "b": [0.0, 0.5], "c": "no"}, {"d": "yes", "a": "yes"}])
def test_impossible_evidence_is_proven(given):
    copy, differs = [[1.0, 0.0], [0.0, 1.0]], [[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]]
    tables = {"a": [0.5, 0.5], "b": copy, "c": [[0.0, 1.0], [1.0, 0.0]], "d": differs}
    net = Network([Variable(n) for n in "abcd"], {"b": ["a"], "c": ["a"], "d": ["a", "b"]}, tables)
    with pytest.raises(ImpossibleEvidenceError):
        exact(net, given if "c" not in given or given["c"] == "yes" else {"b": "no", "c": "no"})


def grid(side: int, seed: int = 0) -> Network:
    rng = np.random.default_rng(seed)
    above = {(r, c): [(r - 1, c)] * (r > 0) + [(r, c - 1)] * (c > 0) for r in range(side) for c in range(side)}
    parents = {f"{r},{c}": [f"{a},{b}" for a, b in pa] for (r, c), pa in above.items()}
    return Network(
        [Variable(n) for n in parents], parents, {n: Table(rng.dirichlet([1, 1], size=(2,) * len(p))) for n, p in parents.items()}
    )


def test_a_large_treewidth_is_declined_with_a_figure():
    started = time.perf_counter()
    with pytest.raises(
        TooExpensiveError, match=r"needs about [\d.e+]+ [GT]iB, the budget is 4 GiB; allow more \(memory=, --memory\)"
    ) as caught:
        exact(grid(40))
    assert caught.value.predicted_bytes > 4 * GIB
    assert time.perf_counter() - started < 30
    # a query that needs little of it is still answered
    assert sum(exact(grid(40), {}, ["3,3"])["3,3"].values()) == pytest.approx(1.0)


def test_the_budget_is_an_argument():
    with pytest.raises(TooExpensiveError, match="MiB, the budget is 1 MiB"):
        exact(grid(12), memory=2**20)
    with pytest.raises(TooExpensiveError, match="MiB, the budget is 1 MiB"):
        infer(grid(12), method="exact", memory=2**20)
    assert [post.status for post in infer(grid(12), [{}], method="exact", memory=2**20)] == ["failed"]
    with pytest.raises(UsageError, match="memory is for the method 'exact'"):
        infer(grid(12), memory=2**20)
    assert len(exact(grid(12))) == 144


@pytest.mark.parametrize("memory", ["4GiB", 0, True, math.nan, [1]])
def test_a_budget_is_a_number_of_bytes(memory):
    for ask in (exact, partial(infer, method="exact"), partial(explain, target="0,0")):
        with pytest.raises(UsageError, match="a positive number of bytes"):
            ask(grid(2), {}, memory=memory)


def test_log_evidence_of_many_findings_does_not_underflow():
    """A hidden chain with two observed children at each of 700 steps, each of the latter a child of two neighbours."""
    rng = np.random.default_rng(0)
    n = 700
    names = [f"h{t}" for t in range(n)]
    seen = [f"x{t}" for t in range(n)] + [f"y{t}" for t in range(1, n)]
    parents = {f"h{t}": [f"h{t - 1}"] for t in range(1, n)} | {f"x{t}": [f"h{t}"] for t in range(n)}
    parents |= {f"y{t}": [f"h{t - 1}", f"h{t}"] for t in range(1, n)}
    mechanisms = {v: Table(rng.dirichlet([1, 1], size=(2,) * len(parents.get(v, ())))) for v in names + seen}
    net = Network([Variable(v) for v in names + seen], parents, mechanisms)
    states = {v: int(rng.integers(2)) for v in seen}
    alpha, log_p = np.ones((1, 1)), 0.0
    forward = []
    for t in range(n):
        step = mechanisms[f"h{t}"].probabilities.reshape(-1, 2) * mechanisms[f"x{t}"].probabilities[:, states[f"x{t}"]]
        if t:
            step = step * mechanisms[f"y{t}"].probabilities[..., states[f"y{t}"]]
        alpha = alpha @ step
        log_p += np.log(alpha.sum())
        alpha = alpha / alpha.sum()
        forward.append(alpha)
    answer = exact(net, states)
    assert log_p < -750
    assert answer.log_evidence == pytest.approx(log_p, abs=1e-9)
    np.testing.assert_allclose(answer.probabilities[net.index[f"h{n - 1}"]], forward[-1][0], atol=1e-12)
    assert all(np.isfinite(p).all() for p in answer.probabilities)


def test_zero_by_underflow_proves_nothing():
    tiny = 1e-200
    tables = {"a": [1 - tiny, tiny], "b": [[1.0, 0.0], [1 - tiny, tiny]], "c": [[1.0, 0.0], [1 - tiny, tiny]]}
    tables["d"] = [[[1.0, 0.0], [0.5, 0.5]], [[0.5, 0.5], [0.1, 0.9]]]
    net = Network([Variable(n) for n in "abcd"], {"b": ["a"], "c": ["b"], "d": ["b", "c"]}, tables)
    try:
        assert exact(net, {"c": 1, "d": 1}, ["a"])["a"]["yes"] == pytest.approx(1.0)
    except ImpossibleEvidenceError:
        pytest.fail("underflow was taken for a proof")
    except EvidenceError as e:
        assert "double precision" in str(e)  # noqa: PT017 (either outcome is honest)


@pytest.mark.parametrize("state", [0, 1])
def test_a_noisy_or_of_165_parents(state):
    rng = np.random.default_rng(1)
    n = 165
    prior, links = rng.uniform(0.001, 0.2, n), rng.uniform(0.05, 0.95, n)
    names = [f"d{i}" for i in range(n)]
    mechanisms = {f"d{i}": [1 - p, p] for i, p in enumerate(prior)} | {"s": NoisyOr(0.02, links.tolist())}
    net = Network([Variable(v) for v in [*names, "s"]], {"s": names}, mechanisms)
    started = time.process_time()
    answer = exact(net, {"s": state})
    assert time.process_time() - started < 1
    absent = 0.98 * np.prod(1 - prior * links)  # P(s = 0)
    with_d = prior * (1 - links) * absent / (1 - prior * links)  # P(d = 1, s = 0)
    expected = with_d / absent if state == 0 else (prior - with_d) / (1 - absent)
    np.testing.assert_allclose([answer[d]["yes"] for d in names], expected, atol=1e-12)
    assert answer.log_evidence == pytest.approx(np.log(absent if state == 0 else 1 - absent), abs=1e-12)
    # the junction tree of the chain says the same
    (component, *_) = reduce(net, parse_evidence(net, {"s": 1}), range(n)).components
    log_p, found = junction_tree(component, range(n), GIB).solve()
    again, same = solve(component, range(n), GIB)
    assert log_p == pytest.approx(again, abs=1e-12)
    for i, p in found.items():
        np.testing.assert_allclose(p, same[i], atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(seeds, st.sampled_from([0.0, 0.3]))
def test_target_by_target_is_the_same(seed, zeros):
    rng = np.random.default_rng(seed)
    net = random_network(rng, 9, noisy=0.6, zeros=zeros, max_parents=4, most=60_000)
    evidence = random_evidence(rng, net, 0.2, 0.1)
    log_p, marginals = enumerate_all(net, evidence)
    if log_p == -np.inf:
        return
    reduction = reduce(net, evidence, range(len(net)))
    for component in reduction.components:
        targets = [i for i in range(len(component.net)) if i not in component.evidence.hard]
        _, found = _one_by_one(component, targets, GIB, 0.0)
        for i in targets:
            np.testing.assert_allclose(found[i], marginals[component.nodes[i]], atol=1e-12, rtol=0)


def test_many_targets_do_not_make_a_small_query_large():
    """Three layers; all symptoms together have a hopeless treewidth, the four that were seen have not."""
    rng = np.random.default_rng(2)
    risks, diseases, symptoms = ([f"{kind}{i}" for i in range(n)] for kind, n in (("r", 10), ("d", 60), ("s", 80)))
    parents = {d: rng.choice(risks, 2, replace=False).tolist() for d in diseases} | {
        s: rng.choice(diseases, 12, False).tolist() for s in symptoms
    }
    mechanisms = {r: Table([0.8, 0.2]) for r in risks}
    mechanisms |= {v: NoisyOr(0.02, rng.uniform(0.05, 0.6, len(pa)).tolist()) for v, pa in parents.items()}
    net = Network([Variable(v) for v in [*risks, *diseases, *symptoms]], parents, mechanisms)
    evidence = {"s0": 1, "s1": 1, "s2": 0, "s3": 0}
    found = parse_evidence(net, evidence)
    with pytest.raises(TooExpensiveError):
        solve(max(reduce(net, found, range(len(net))).components, key=lambda c: len(c.net)), range(20), 2**28)
    answer = exact(net, evidence, memory=2**28)
    for name in ("s7", "d5", "r3"):
        assert answer[name]["yes"] == pytest.approx(exact(net, evidence, [name])[name]["yes"], abs=1e-11)


def test_a_certain_variable_of_many_states_needs_no_square_matrix():
    n = 30_000
    net = Network(
        [Variable("a", tuple(map(str, range(n)))), Variable("b")], {"b": ["a"]}, {"a": np.eye(1, n)[0], "b": np.full((n, 2), 0.5)}
    )
    tracemalloc.start()
    try:
        assert exact(net, {"b": "yes"}, ["a"])["a"]["0"] == 1.0
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()


def test_an_observed_table_larger_than_any_noisy_max_is_expanded_to():
    parents = [f"p{i}" for i in range(22)]
    table = np.full((2,) * 23, 0.5)
    net = Network([Variable(v) for v in [*parents, "x"]], {"x": parents}, {p: [0.5, 0.5] for p in parents} | {"x": table})
    assert exact(net, {"x": "yes"}, ["p0"])["p0"]["yes"] == pytest.approx(0.5)


@pytest.mark.parametrize("memory", [0, -1, float("nan")])
def test_a_budget_must_be_positive(memory):
    with pytest.raises(UsageError, match="memory must be a positive number"):
        exact(two_nodes(), memory=memory)


def test_targets_must_be_a_list():
    with pytest.raises(UsageError, match="not the string 'rain'"):
        exact(two_nodes(), targets="rain")


def test_an_answer_is_a_mapping():
    answer = exact(two_nodes(), {}, ["rain"])
    assert ("rain" in answer, "wet" in answer, answer.get("wet"), answer.get("rain")) == (True, False, None, {"no": 0.8, "yes": 0.2})
    with pytest.raises(UsageError, match="'wet' is not among the targets"):
        answer["wet"]


def test_every_state_is_answered_also_of_what_is_observed():
    """A noisy-max observed in a middle state is cut to the states up to it on the way."""
    net = example("clinic")
    row = evidence_sets(net, "uniform", 1, 1017)[0]
    found = exact(net, {net.names[i]: int(k) for i, k in enumerate(row) if k >= 0}, memory=2.0**28)
    assert [len(p) for p in found.probabilities] == net.cards.tolist()
    assert all(p[k] == 1 for p, k in zip(found.probabilities, row, strict=True) if k >= 0)
