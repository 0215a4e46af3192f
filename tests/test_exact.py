"""Exact inference against enumeration, and what it does with bad, impossible and too large queries."""

import math
import sys
import time
import tracemalloc
from functools import partial

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from networks import all_states, as_given, enumerate_all, random_evidence, random_network, seeds
from unimarg.errors import EvidenceError, ImpossibleEvidenceError, TooExpensiveError, UsageError
from unimarg.evaluation import evidence_sets
from unimarg.evidence import parse_evidence
from unimarg.exact import _one_by_one, exact, solve
from unimarg.examples import example
from unimarg.inference import infer
from unimarg.influence import explain
from unimarg.junction import _factors, _planned, junction_tree
from unimarg.network import Network, NoisyMax, NoisyOr, Table, Variable
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
        in_logs, same = plain.solve_in_logs()
        assert in_logs == pytest.approx(log_part, abs=1e-10)
        for i, p in found.items():
            np.testing.assert_allclose(p, marginals[component.nodes[i]], atol=1e-12, rtol=0)
            np.testing.assert_allclose(same[i], p, atol=1e-12, rtol=0)
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


def test_several_sets_are_for_infer():
    sets = [{"dysp": "yes"}, {}]
    for several in (sets, pd.DataFrame(sets)):
        with pytest.raises(EvidenceError, match=r'one evidence set.*unimarg\.infer\(net, sets, method="exact"\)'):
            exact(example("asia"), several)
    with pytest.raises(EvidenceError, match=r"row\.dropna\(\)\.to_dict\(\)"):
        exact(example("asia"), pd.Series(sets[0]))


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
    answer = exact(net, {"c": 1, "d": 1}, ["a"])
    assert answer["a"]["yes"] == 1.0
    assert answer.log_evidence == pytest.approx(3 * np.log(tiny) + np.log(0.9), abs=1e-9)


def opposed(alone: int, shared: int, *, parents: int) -> tuple[Network, dict[str, object], np.ndarray]:
    """Findings f for x=yes and findings g for x=no, and log P(x, e); f has x for a parent, and another root as well if ``parents`` is 2."""
    f, g = np.array([[0.99, 0.01], [0.01, 0.99]]), np.array([[[0.01, 0.99], [0.013, 0.987]], [[0.99, 0.01], [0.986, 0.014]]])
    groups = {"f": (alone, f if parents == 1 else np.stack([f, f[:, ::-1] * 0.1 + f * 0.9], axis=1)), "g": (shared, g)}
    above = {"x": ["r"]}
    tables: dict[str, object] = {"r": [0.5, 0.5], "x": [[0.6, 0.4], [0.4, 0.6]]}
    log = np.log([0.5, 0.5])
    for name, (copies, table) in groups.items():
        for i in range(copies):
            above[f"{name}{i}"] = ["x", f"of {name}{i}"][: table.ndim - 1]
            tables |= {f"{name}{i}": table} | ({f"of {name}{i}": [0.5, 0.5]} if table.ndim == 3 else {})
        log += copies * np.log(table[..., 1].reshape(2, -1).mean(1))
    net = Network([Variable(n) for n in tables], above, tables)  # pyright: ignore[reportArgumentType]
    return net, {n: "yes" for n in tables if n[0] in groups and n not in ("x", "r")}, log


@pytest.mark.parametrize("counts", [(400, 200), (260, 200), (200, 140), (200, 260)])
@pytest.mark.parametrize("parents", [1, 2])
def test_findings_that_tell_states_apart_by_more_than_a_double_can(counts, parents):
    """Whichever findings come first, they leave of one state of x less than 1e-300, and it may be the one that the rest calls for."""
    net, evidence, log = opposed(*counts, parents=parents)
    answer = exact(net, evidence, ["x", "r"])
    x = np.exp(log - np.logaddexp(*log))
    assert answer.log_evidence == pytest.approx(np.logaddexp(*log), abs=1e-9)
    np.testing.assert_allclose(list(answer["x"].values()), x, atol=1e-12)
    np.testing.assert_allclose(list(answer["r"].values()), x @ [[0.6, 0.4], [0.4, 0.6]], atol=1e-12)


@pytest.mark.parametrize("copies", [0, 200])
def test_a_root_whose_states_are_further_apart_than_a_double_can_tell(copies):
    mechanisms = {"a": [0.5, 0.5], "b": [0.5, 0.5], "c": [[[0.5, 0.5], [0.9, 0.1]], [[1.0, 0.0], [1.0, 0.0]]]}
    mechanisms |= {f"f{i}": [[0.99, 0.01], [0.01, 0.99]] for i in range(copies)}
    parents = {"c": ["a", "b"]} | {f"f{i}": ["a"] for i in range(copies)}
    net = Network([Variable(n) for n in mechanisms], parents, mechanisms)
    given = {"c": "yes"} | ({f"f{i}": "yes" for i in range(copies)} or {"a": [1e-160, 1e195]})
    answer = exact(net, given)
    assert answer.log_evidence == pytest.approx((copies * np.log(0.01) or np.log(1e-160)) + np.log(0.5 * 0.3), abs=1e-9)
    assert answer["a"] == {"no": 1.0, "yes": 0.0}
    assert answer["b"]["yes"] == pytest.approx(1 / 6, abs=1e-12)


@pytest.mark.parametrize("leak", [0.0, 1 - 1e-200])
def test_a_noisy_max_whose_table_would_have_false_zeros(leak):
    """P(x = no | a, b) = 1e-400 is no double; the opposite states of a and b are less probable still."""
    rare, absent = [[1.0, 0.0], [1e-200, 1.0]], 1.0 if leak == 0 else 1e-200
    mechanisms = {"a": [0.5, 0.5], "b": [0.5, 0.5], "y": [0.5, 0.5], "x": NoisyMax([absent, leak], [rare, rare])}
    mechanisms["z"] = [[[0.5, 0.5], [0.4, 0.6]], [[1.0, 0.0], [1.0, 0.0]]]
    net = Network([Variable(n) for n in "abyxz"], {"x": ["a", "b"], "z": ["x", "y"]}, mechanisms)  # pyright: ignore[reportArgumentType]
    answer = exact(net, {"z": "yes", "a": [1e-300, 1.0], "b": [1e-300, 1.0]})
    assert answer.log_evidence == pytest.approx(np.log(0.25 * 0.55) + 2 * np.log(1e-200) + np.log(absent), abs=1e-9)
    assert (answer["a"]["yes"], answer["x"]["no"]) == (1.0, 1.0)


@settings(max_examples=100, deadline=None)
@given(seeds, st.sampled_from([1, 20, 200]), st.sampled_from([0.0, 0.2]), st.sampled_from([0.0, 0.5]))
def test_many_copies_of_a_few_findings(seed, spread, zeros, noisy):
    """Likelihoods far below what a double can hold, by logarithms: a copy more is a term more."""
    rng = np.random.default_rng(seed)
    core = random_network(rng, 5, noisy=noisy, zeros=zeros)
    states = all_states(core)
    log = core.log_probability(states)
    parents = {core.names[i]: [core.names[p] for p in pa] for i, pa in enumerate(core.parents)}
    mechanisms: dict[str, Table | NoisyMax] = dict(zip(core.names, core.mechanisms, strict=True))
    for group in range(4):
        above = rng.choice(5, size=rng.integers(1, 4), replace=False)
        p = np.exp(-spread * rng.random((*core.cards[above], 2))) * (rng.random((*core.cards[above], 2)) >= zeros / 4)
        p[..., 1] += p.sum(-1) == 0
        table, copies = p / p.sum(-1, keepdims=True), int(rng.integers(1, 1 + 200 // np.sqrt(spread)))
        with np.errstate(divide="ignore"):
            log = log + copies * np.log(table[..., 0])[tuple(states[:, above].T)]
        mechanisms |= {f"{group}.{i}": Table(table) for i in range(copies)}
        parents |= {f"{group}.{i}": [core.names[a] for a in above] for i in range(copies)}
    net = Network([*core.variables, *(Variable(n) for n in mechanisms if n not in core.index)], parents, mechanisms)
    given = {n: "no" for n in mechanisms if n not in core.index}
    if log.max() == -np.inf:
        with pytest.raises(ImpossibleEvidenceError):
            exact(net, given)
        return
    answer = exact(net, given, core.names)
    p = np.exp(log - log.max())
    assert answer.log_evidence == pytest.approx(float(np.log(p.sum()) + log.max()), rel=1e-12, abs=1e-10)
    for i, found in enumerate(answer.probabilities):
        np.testing.assert_allclose(found, np.bincount(states[:, i], weights=p, minlength=len(found)) / p.sum(), atol=1e-10, rtol=0)


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


def test_findings_too_improbable_for_what_fits_are_too_expensive(monkeypatch):
    """The dynamic programme fits and may be off, the junction tree is right and does not fit; a list keeps its other answers."""
    rng = np.random.default_rng(4)
    causes, effects = [f"c{i}" for i in range(24)], [f"e{i}" for i in range(8)]
    parents = {e: rng.choice(causes, 16, replace=False).tolist() for e in effects}
    tables = {c: Table([0.9, 0.1]) for c in causes} | {e: NoisyOr(0.01, rng.uniform(0.1, 0.6, 16).tolist()) for e in effects}
    net, all_seen = Network([Variable(v) for v in [*causes, *effects]], parents, tables), dict.fromkeys(effects, "yes")
    assert exact(net, all_seen, ["c0"], memory=2**20).status == "ok"
    monkeypatch.setattr(sys.modules["unimarg.exact"], "_reliable", lambda component, log_p: len(component.evidence.nodes) < 8)
    for quick in (2.0, 0.0):
        monkeypatch.setattr(sys.modules["unimarg.exact"], "QUICK", quick)
        with pytest.raises(TooExpensiveError, match=r"needs about .* the budget is 1 MiB") as caught:
            exact(net, all_seen, ["c0"], memory=2**20)
        assert caught.value.predicted_bytes > 2**20
        found = infer(net, [all_seen, {"e0": "yes"}], ["c0"], "exact", memory=2**20)
        assert [f.status for f in found] == ["failed", "ok"]


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
