"""The noisy-or dynamic programme against enumeration and against the junction tree."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from networks import as_given, enumerate_all, random_evidence, seeds
from unimarg.bn2o import programme
from unimarg.errors import ImpossibleEvidenceError
from unimarg.evidence import Evidence, parse_evidence
from unimarg.exact import exact
from unimarg.junction import junction_tree
from unimarg.network import Network, NoisyOr, Table, Variable
from unimarg.reduction import reduce


def unobserved(component) -> list[int]:
    return [i for i in range(len(component.net)) if i not in component.evidence.hard]


def by_programme(net: Network, evidence: Evidence) -> tuple[float, dict[int, np.ndarray]] | None:
    """Every component by the dynamic programme, or None where one has not the form."""
    reduction = reduce(net, evidence, range(len(net)))
    total, answers = reduction.log_scale, {i: np.eye(net.variables[i].card)[k] for i, k in reduction.known.items()}
    for component in reduction.components:
        found = programme(component, unobserved(component))
        if found is None:
            return None
        log_p, marginals = found.solve()
        total += log_p
        answers |= {component.nodes[i]: p for i, p in marginals.items()}
    return total, answers


def or_network(rng: np.random.Generator, roots: int, inner: int, passing: float, sharing: bool) -> Network:
    """Noisy-ors of roots and of each other, half of them written as tables; inner nodes mostly pass everything on."""
    parents, mechanisms = {}, {f"v{i}": Table(rng.dirichlet([1, 1])) for i in range(roots)}
    free = []
    for i in range(roots, roots + inner):
        above = rng.choice(roots, size=rng.integers(1, min(roots, 3) + 1), replace=False).tolist()
        pool = free if not sharing else list(range(roots, i))
        below = [pool[k] for k in rng.choice(len(pool), size=min(len(pool), rng.integers(0, 3)), replace=False)] if pool else []
        free = [f for f in free if f not in below] + [i]
        strengths = [float(rng.choice([1.0, rng.random()])) for _ in above] + [
            1.0 if rng.random() < passing else rng.random() for _ in below
        ]
        given = NoisyOr(float(rng.choice([0.0, 0.1 * rng.random()])), strengths)
        parents[f"v{i}"] = [f"v{p}" for p in above + below]
        mechanisms[f"v{i}"] = given if rng.random() < 0.5 else Table(given.expand())
    return Network([Variable(f"v{i}") for i in range(roots + inner)], parents, mechanisms)


@settings(max_examples=200, deadline=None)
@given(seeds, st.integers(1, 6), st.integers(1, 6), st.sampled_from([1.0, 0.8]), st.booleans())
def test_equals_enumeration_wherever_it_applies(seed, roots, inner, passing, sharing):
    rng = np.random.default_rng(seed)
    net = or_network(rng, roots, inner, passing, sharing)
    evidence = random_evidence(rng, net, 0.3, 0.1)
    log_p, marginals = enumerate_all(net, evidence)
    if log_p == -np.inf:
        with pytest.raises(ImpossibleEvidenceError):
            exact(net, as_given(net, evidence))
        return
    found = by_programme(net, evidence)
    if found is not None:
        assert found[0] == pytest.approx(log_p, abs=1e-11)
        for i, p in found[1].items():
            np.testing.assert_allclose(p, marginals[i], atol=1e-12, rtol=0)


def test_it_applies_to_trees_of_ors():
    """The property test above is not vacuous."""
    applies = 0
    for seed in range(50):
        rng = np.random.default_rng(seed)
        net = or_network(rng, 5, 5, 1.0, sharing=False)
        applies += by_programme(net, Evidence(dict.fromkeys(range(7, 10), 1), {})) is not None
    assert applies >= 40


def bn2o(rng: np.random.Generator, roots: int, findings: int, links: int) -> Network:
    names = [f"d{i}" for i in range(roots)]
    parents = {f"s{j}": [names[i] for i in sorted(rng.choice(roots, links, replace=False))] for j in range(findings)}
    mechanisms = {d: Table([1 - p, p]) for d, p in zip(names, rng.uniform(0.01, 0.2, roots), strict=True)}
    mechanisms |= {s: NoisyOr(0.01, rng.uniform(0.1, 0.9, links).tolist()) for s in parents}
    return Network([Variable(n) for n in [*names, *parents]], parents, mechanisms)


def test_agrees_with_the_junction_tree_on_two_layers():
    rng = np.random.default_rng(3)
    net = bn2o(rng, 20, 9, 6)
    evidence = parse_evidence(net, {f"s{j}": int(j < 5) for j in range(7)} | {"d3": [0.2, 1.0], "d4": 0})
    reduction = reduce(net, evidence, range(len(net)))
    for component in reduction.components:
        targets = unobserved(component)
        found = programme(component, targets)
        assert found is not None
        (log_p, marginals), (other, expected) = found.solve(), junction_tree(component, targets, 2**30).solve()
        assert log_p == pytest.approx(other, abs=1e-11)
        for i in targets:
            np.testing.assert_allclose(marginals[i], expected[i], atol=1e-12)


def test_many_positive_findings_beyond_the_junction_tree():
    net = bn2o(np.random.default_rng(5), 120, 14, 30)
    evidence = {f"s{j}": 1 for j in range(14)}
    component = max(reduce(net, parse_evidence(net, evidence), range(len(net))).components, key=lambda c: len(c.net))
    found = programme(component, unobserved(component))
    assert found is not None
    assert found.width <= 14
    assert junction_tree(component, unobserved(component), 2**30).predicted_bytes > 2**30
    started = time.perf_counter()
    answer = exact(net, evidence)
    assert time.perf_counter() - started < 20
    # negating one finding and adding both must give the rest: P(e) + P(e with s0 absent) = P(e without s0)
    without = exact(net, {s: k for s, k in evidence.items() if s != "s0"}, ["s0"])
    assert answer.log_evidence - without.log_evidence == pytest.approx(np.log(without["s0"]["yes"]), abs=1e-10)


def test_findings_with_few_roots_each_are_not_open_together():
    n = 300
    parents = {f"s{j}": [f"d{j}", f"d{j + 1}"] for j in range(n)}
    mechanisms = {f"d{i}": [0.9, 0.1] for i in range(n + 1)} | {s: NoisyOr(0.01, [0.5, 0.7]) for s in parents}
    net = Network([Variable(f"d{i}") for i in range(n + 1)] + [Variable(s) for s in parents], parents, mechanisms)
    (component,) = reduce(net, parse_evidence(net, dict.fromkeys(parents, 1)), range(n + 1)).components
    found = programme(component, unobserved(component))
    assert found is not None
    assert found.width <= 2
    log_p, marginals = found.solve()
    other, expected = junction_tree(component, unobserved(component), 2**30).solve()
    assert log_p == pytest.approx(other, abs=1e-9)
    for i, p in marginals.items():
        np.testing.assert_allclose(p, expected[i], atol=1e-12)


def chains() -> Network:
    """Two findings, each the end of a chain of plain tables of (disease, chain so far), as in Promedus."""

    def link(strength: float, leak: float = 0.0) -> Table:
        return Table([[[1 - leak, leak], [0.0, 1.0]], [[(1 - leak) * (1 - strength), 1 - (1 - leak) * (1 - strength)], [0.0, 1.0]]])

    mechanisms = {f"d{i}": Table([1 - p, p]) for i, p in enumerate([0.01, 0.2, 0.05, 0.1, 0.03])}
    parents = {"a1": ["d0"], "a2": ["d1", "a1"], "a3": ["d2", "a2"], "a": ["a3"]}
    parents |= {"b1": ["d1"], "b2": ["d3", "b1"], "b": ["d4", "b2"], "c1": ["d0"], "c": ["d4", "c1"]}
    mechanisms |= {"a1": Table([[1.0, 0.0], [0.3, 0.7]]), "a2": link(0.9), "a3": link(0.4, 0.02), "a": Table([[0.95, 0.05], [0.0, 1.0]])}
    mechanisms |= {"b1": Table([[1.0, 0.0], [0.5, 0.5]]), "b2": link(0.8), "b": link(0.6)}
    mechanisms |= {"c1": Table([[1.0, 0.0], [0.2, 0.8]]), "c": link(0.9, 0.1)}
    return Network([Variable(n) for n in mechanisms], parents, mechanisms)


@pytest.mark.parametrize(
    "given",
    [
        {"a": 1, "b": 1},
        {"a": 1, "b": 0},
        {"a": 1, "b": 1, "c": 0},
        {"a2": 0, "b": 1},
        {"a": 1, "a2": 1, "c": 1},
        {"a": 1, "b": 1, "d1": [0.3, 1.0], "d4": 0},
        {"b": [0.2, 0.9], "a": 1},
    ],
)
def test_or_chains_of_plain_tables(given):
    net = chains()
    evidence = parse_evidence(net, given)
    found = by_programme(net, evidence)
    assert found is not None
    log_p, marginals = enumerate_all(net, evidence)
    assert found[0] == pytest.approx(log_p, abs=1e-12)
    for i in range(len(net)):
        np.testing.assert_allclose(found[1][i], marginals[i], atol=1e-13)


def test_shared_noise_is_refused():
    """y is a noisy-or of two roots; where its arc also inhibits, or two findings hang on it, effects are not independent."""
    roots = {"d": Table([0.7, 0.3]), "e": Table([0.6, 0.4]), "f": Table([0.5, 0.5])}
    for strength, findings in ((0.5, ["x"]), (1.0, ["x", "z"])):
        mechanisms = roots | {"y": NoisyOr(0.1, [0.6, 0.7])} | {s: NoisyOr(0.1, [strength, 0.5]) for s in findings}
        parents = {"y": ["d", "e"]} | {s: ["y", "f"] for s in findings}
        net = Network([Variable(n) for n in mechanisms], parents, mechanisms)
        evidence = Evidence({net.index[s]: 1 for s in findings}, {})
        assert by_programme(net, evidence) is None
        log_p, marginals = enumerate_all(net, evidence)
        answer = exact(net, dict.fromkeys(findings, 1))  # the junction tree takes over
        assert answer.log_evidence == pytest.approx(log_p, abs=1e-12)
        np.testing.assert_allclose(answer.probabilities[net.index["y"]], marginals[net.index["y"]], atol=1e-13)


def test_a_finding_without_a_possible_cause():
    mechanisms = {"d": Table([1.0, 0.0]), "e": Table([0.5, 0.5]), "f": Table([0.5, 0.5]), "s": NoisyOr(0.0, [0.9, 0.5, 0.5])}
    net = Network([Variable(n) for n in mechanisms], {"s": ["d", "e", "f"]}, mechanisms)
    with pytest.raises(ImpossibleEvidenceError):
        exact(net, {"s": 1, "e": 0, "f": 0})


@pytest.mark.parametrize(("findings", "e"), [(12, 1e-30), (14, 1e-24), (4, 1e-90), (3, 1e-3)])
def test_findings_that_are_all_but_impossible_together(findings, e):
    """P(s | d) = e (1 + d1 + 2 d2 + 4 d3) to within rounding, except for the largest e; f(all) may be far below the smallest double."""
    mechanisms = {d: Table([0.5, 0.5]) for d in ("d1", "d2", "d3")} | {f"s{i}": NoisyOr(e, [e, 2 * e, 4 * e]) for i in range(findings)}
    parents = {f"s{i}": ["d1", "d2", "d3"] for i in range(findings)} | {"t": ["d1", "d2"]}
    net = Network([Variable(n) for n in [*mechanisms, "t"]], parents, mechanisms | {"t": NoisyOr(0.1, [0.3, 0.6])})
    d = np.array(np.meshgrid([0, 1], [0, 1], [0, 1], indexing="ij")).reshape(3, -1)
    log = findings * np.log(-np.expm1(np.log1p(-np.array([e, e, 2 * e, 4 * e])) @ np.vstack([np.ones(8), d]))) - np.log(8)
    p = np.exp(log - log.max())
    answer = exact(net, {f"s{i}": "yes" for i in range(findings)})
    assert answer.log_evidence == pytest.approx(np.log(p.sum()) + log.max(), rel=1e-13)
    p /= p.sum()
    np.testing.assert_allclose([answer[f"d{k + 1}"]["yes"] for k in range(3)], d @ p, atol=1e-12)
    assert answer["t"]["no"] == pytest.approx(0.9 * (0.7 ** d[0] * 0.4 ** d[1]) @ p, abs=1e-11)


def test_faint_numbers_that_the_programme_does_not_know():
    """A root told against by 1e-495, and a finding that needs it: the junction tree takes over."""
    roots = {f"d{i}": Table([0.5, 0.5]) for i in range(3)}
    net = Network([Variable(n) for n in [*roots, "s"]], {"s": list(roots)}, roots | {"s": NoisyOr(0.0, [0.3, 0.4, 0.0])})
    answer = exact(net, {"s": "yes", "d0": [1e200, 1e-295], "d1": [1e200, 1e-295]}, ["d0", "d1"])
    p = np.array([0.3, 0.4]) / 0.7
    assert answer.log_evidence == pytest.approx(np.log(0.25 * 0.7) + np.log(1e200) + np.log(1e-295), abs=1e-9)
    np.testing.assert_allclose([answer["d0"]["yes"], answer["d1"]["yes"]], p, atol=1e-12)
