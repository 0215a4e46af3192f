"""Belief propagation: exact on trees, whatever the mechanism; evidence that is uncertain; sums by target."""

import itertools
import time
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unimarg as um
from networks import states_order
from unimarg.encoding import one_hot
from unimarg.gathers import Sums, by_blocks
from unimarg.messages import NoisyMaxes
from unimarg.propagation import LEVELS, Propagation, shared_levels

ROWS = 8


def tree(seed: int, nodes: int = 10) -> um.Network:
    """A polytree: every new node takes as parents one node from each of some components, and joins them."""
    rng = np.random.default_rng(seed)
    variables = [um.Variable(f"v{i}", tuple(f"s{k}" for k in range(rng.integers(2, 7)))) for i in range(nodes)]
    component, parents, mechanisms = list(range(nodes)), {}, {}
    for i, v in enumerate(variables):
        roots = sorted(set(component[:i]))
        chosen = rng.permutation(roots)[: rng.integers(1, 4)] if roots and i > 3 else []
        pa = [int(rng.choice([j for j in range(i) if component[j] == c])) for c in chosen]
        for j in range(i):
            if component[j] in chosen:
                component[j] = i
        cards = [variables[p].card for p in pa]
        if pa and rng.random() < 0.5:
            contributions = [np.vstack([np.eye(v.card)[0], rng.dirichlet(np.ones(v.card), size=k - 1)]) for k in cards]
            mechanisms[v.name] = um.NoisyMax(rng.dirichlet(np.ones(v.card)), contributions)
        else:
            mechanisms[v.name] = rng.dirichlet(np.ones(v.card), size=cards) if cards else rng.dirichlet(np.ones(v.card))
        parents[v.name] = [variables[p].name for p in pa]
    return um.Network(variables, parents, mechanisms)


def logits(net, states, rounds, likelihoods=None, pairs=False):
    propagation = Propagation(net, rounds, pairs)
    ragged = propagation.ragged
    known, values = jnp.asarray(states >= 0)[:, ragged.order], one_hot(jnp.asarray(states)[:, ragged.order], ragged)
    for i, likelihood in (likelihoods or {}).items():
        group, j = ragged.member[i]
        known, values[group] = known.at[:, ragged.place[i]].set(True), values[group].at[:, j].set(likelihood)
    return ragged, jax.jit(lambda k, v: propagation.logits(k, v, accelerated=False))(known, values)


def as_states(ragged, said):
    """Beliefs, ``[rows, states]``."""
    parts = [jax.nn.softmax(p, axis=-1).reshape(len(p), -1) for p in ragged.with_reference(said["marginal"])]
    return np.concatenate(parts, axis=1)[:, states_order(ragged)]


def beliefs(net, states, rounds):
    return as_states(*logits(net, states, rounds))


def test_ten_thousand_nodes_are_soon_prepared():
    """In half a second; a list for every node at every arc had taken many minutes."""
    net = um.medical(500, 2500, 7000, seed=7)
    begin = time.process_time()
    propagation = Propagation(net, 8)
    assert time.process_time() - begin < 10
    assert sum(len(g.members) for g in propagation.groups if isinstance(g.factors, NoisyMaxes)) == sum(
        isinstance(m, um.NoisyMax) for m in net.mechanisms
    )


@cache
def on_a_tree(seed):
    """A polytree, samples, what is known of them, the first node's likelihood, and what is said after as many rounds as it has nodes."""
    net = tree(seed)
    drawn = um.sample(net, ROWS, seed=seed).astype(np.int64)
    states = np.where(np.random.default_rng(seed).random(drawn.shape) < 0.3, drawn, -1)
    states[:, 0] = -1
    likelihood = np.linspace(0.2, 0.9, int(net.cards[0]))
    return net, drawn, states, likelihood, *logits(net, states, len(net), {0: likelihood})


@pytest.mark.parametrize("seed", range(2))
def test_exact_on_polytrees(seed):
    net, _, states, likelihood, ragged, said = on_a_tree(seed)
    assert sum(map(len, net.parents)) < len(net)
    assert {type(m) for m in net.mechanisms} == {um.Table, um.NoisyMax}
    found = as_states(ragged, said)
    for row in range(ROWS):
        evidence: dict[str, object] = {net.names[i]: int(k) for i, k in enumerate(states[row]) if k >= 0}
        evidence[net.names[0]] = dict(zip(net.variables[0].states, likelihood.tolist(), strict=True))
        np.testing.assert_allclose(found[row], np.concatenate(um.exact(net, evidence).probabilities), atol=2e-5)


@pytest.mark.parametrize("seed", range(2))
def test_messages_are_what_lies_below_on_polytrees(seed):
    """P(x_i | pa_i, e) is proportional to P(x_i | pa_i) exp(lambda_i): a proposal by them has equal weights."""
    net, drawn, states, likelihood, ragged, found = on_a_tree(seed)
    parts, checked = [np.asarray(p, np.float64) for p in ragged.with_reference(found["message"])], 0
    for row, i in itertools.product(range(ROWS), range(len(net))):
        if states[row, i] >= 0:
            continue
        group, j = ragged.member[i]
        pa = drawn[row, list(net.parents[i])]
        unscaled = net.mechanisms[i].rows(pa[None])[0] * np.exp(parts[group][row, j])
        given = {**dict(zip(net.parents[i], pa, strict=True)), **{v: k for v, k in enumerate(states[row]) if k >= 0}}
        evidence: dict[str, object] = {net.names[v]: int(k) for v, k in given.items()}
        if 0 not in given:
            evidence[net.names[0]] = dict(zip(net.variables[0].states, likelihood.tolist(), strict=True))
        np.testing.assert_allclose(unscaled / unscaled.sum(), um.exact(net, evidence).probabilities[i], atol=5e-5)
        checked += np.ptp(parts[group][row, j]) > 0.01
    assert checked > 10


def test_states_far_likelier_than_the_first_are_told_apart():
    """Each is e^20 times as likely and more; their ratios were lost, as if all were equally likely."""
    net = um.Network(
        [um.Variable("a", ("0", "1", "2", "3")), um.Variable("b", ("x", "y", "z"))],
        {"b": ["a"]},
        {"a": [1e-14, 0.6, 0.3, 0.1 - 1e-14], "b": [[1, 0, 0], [0, 0.9, 0.1], [0, 0.2, 0.8], [0, 0.5, 0.5]]},
    )
    found = beliefs(net, np.array([[-1, -1], [-1, 2]]), 3)
    for row, evidence in enumerate(({}, {"b": "z"})):
        np.testing.assert_allclose(found[row], np.concatenate(um.exact(net, evidence).probabilities), atol=1e-6)


def test_loops_are_close_and_rounds_help():
    net = um.medical(10, 30, 60, seed=3)
    drawn = um.sample(net, ROWS // 2, seed=5).astype(np.int64)
    states = np.where(np.random.default_rng(1).random(drawn.shape) < 0.4, drawn, -1)
    states[:, :40] = -1  # what is above is hidden
    truth = np.stack(
        [np.concatenate(um.exact(net, {net.names[i]: int(k) for i, k in enumerate(r) if k >= 0}).probabilities) for r in states]
    )
    few, many = (np.abs(beliefs(net, states, n) - truth).mean() for n in (1, 3))
    assert many < few / 5
    assert many < 2e-3


def test_one_round_goes_up_and_down():
    """However long the way: what is known at one end of a chain has arrived at the other, and at a fork of it."""
    names = [f"v{i}" for i in range(40)]
    parents = {b: [a] for a, b in itertools.pairwise(names)} | {"fork": ["v3"]}
    mechanisms = {"v0": [0.5, 0.5]} | {b: [[0.995, 0.005], [0.01, 0.99]] for b in (*names[1:], "fork")}
    net = um.Network([um.Variable(n) for n in (*names, "fork")], parents, mechanisms)
    states = np.full((2, len(net)), -1)
    states[0, net.index["v39"]] = states[1, net.index["v0"]] = 1
    for found, row in zip(beliefs(net, states, 1), states, strict=True):
        expected = um.exact(net, {net.names[i]: int(k) for i, k in enumerate(row) if k >= 0})
        np.testing.assert_allclose(found, np.concatenate(expected.probabilities), atol=2e-5)


def test_causes_that_compete_do_not_swing(monkeypatch):
    """All of them are told that it must be one of them, next that the others suffice, and so on: unless steps back are shorter."""
    causes, findings = [f"d{i}" for i in range(6)], [f"s{i}" for i in range(4)]
    effects = {s: um.NoisyOr(1e-3, [0.9] * 6) for s in findings}
    mechanisms = {d: [0.9, 0.1] for d in causes} | effects
    net = um.Network([um.Variable(n) for n in mechanisms], dict.fromkeys(findings, causes), mechanisms)
    states = np.array([[-1] * 6 + [1] * 4])
    one, next_ = (beliefs(net, states, rounds) for rounds in (10, 11))
    np.testing.assert_allclose(one, next_, atol=1e-3)
    monkeypatch.setattr("unimarg.propagation._step", lambda change, before: change)
    one, next_ = (beliefs(net, states, rounds) for rounds in (10, 11))
    assert abs(one - next_).max() > 0.3


def test_nodes_of_a_kind_share_levels_and_parents_come_first():
    net = um.example("alarm")
    kinds = [(len(pa), int(k)) for pa, k in zip(net.parents, net.cards, strict=True)]
    level = shared_levels(net, kinds)
    assert all(level[p] < level[i] for i, parents in enumerate(net.parents) for p in parents)
    soonest = np.zeros(len(net), int)
    for i, parents in enumerate(net.parents):
        soonest[i] = 1 + max((soonest[p] for p in parents), default=-1)
    assert level.max() == soonest.max()
    assert len({*zip(level, kinds, strict=True)}) < len({*zip(soonest, kinds, strict=True)})


def test_deep_networks_have_few_operations(monkeypatch):
    """Neighbouring levels are taken together; more rounds are exact all the same."""
    rng = np.random.default_rng(0)
    net = um.Network(
        [um.Variable(f"v{i}") for i in range(150)],
        {f"v{i}": [f"v{i - 1}"] for i in range(1, 150)},
        {f"v{i}": rng.dirichlet([1, 1], size=2) if i else [0.5, 0.5] for i in range(150)},
    )
    assert len(Propagation(net, 1).groups) <= LEVELS[0] + 1
    states = np.full((1, len(net)), -1)
    states[0, [0, 140]] = 1
    truth = np.concatenate(um.exact(net, {"v0": 1, "v140": 1}).probabilities)
    np.testing.assert_allclose(beliefs(net, states, 12)[0], truth, atol=1e-4)
    monkeypatch.setattr("unimarg.propagation.GROUPS", 13)
    assert 6 <= len(Propagation(net, 1).groups) <= 13
    np.testing.assert_allclose(beliefs(net, states, 40)[0], truth, atol=1e-4)


def mixed(nodes: int) -> um.Network:
    """Nodes of two to four states, each with one or two of the twelve before it as parents."""
    rng = np.random.default_rng(0)
    cards = rng.choice([2, 3, 4], nodes)
    variables = [um.Variable(f"v{i}", tuple(f"s{k}" for k in range(c))) for i, c in enumerate(cards)]
    pa = [sorted(rng.choice(range(max(i - 12, 0), i), min(i, int(rng.integers(1, 3))), replace=False).tolist()) for i in range(nodes)]
    tables = [rng.dirichlet(np.full(cards[i], 0.3), size=[cards[j] for j in pa[i]] or None) for i in range(nodes)]
    parents = {v.name: [variables[j].name for j in pa[i]] for i, v in enumerate(variables)}
    return um.Network(variables, parents, {v.name: t for v, t in zip(variables, tables, strict=True)})


def test_three_states_are_padded_to_four_only_where_levels_would_be_taken_together(monkeypatch):
    """More kinds are more operations; beliefs are the same either way as long as parents are in earlier groups."""

    def apart(made: Propagation) -> bool:
        group = {i: g for g, each in enumerate(made.groups) for i in each.members.tolist()}
        return all(group[p] < group[i] for i, parents in enumerate(made.net.parents) for p in parents)

    net = mixed(40)
    fine = Propagation(net, 2)
    monkeypatch.setattr("unimarg.propagation.GROUPS", len(fine.groups) - 1)
    coarse = Propagation(net, 2)
    assert (sorted(fine.counts), sorted(coarse.counts)) == ([2, 3, 4], [2, 4])
    assert apart(fine)
    assert apart(coarse)
    states = np.where(np.random.default_rng(1).random((8, 40)) < 0.3, np.asarray(um.sample(net, 8, seed=0)).astype(int), -1)
    ordered = jnp.asarray(states[:, fine.ragged.order])
    one, other = (made.logits(ordered >= 0, one_hot(ordered, made.ragged), False)["marginal"] for made in (fine, coarse))
    np.testing.assert_allclose(one, other, atol=2e-5)
    assert np.abs(one).max() > 1


def test_sums_by_target():
    rng = np.random.default_rng(0)
    targets, rows = rng.integers(9, size=50), rng.standard_normal((50, 3)).astype(np.float32)
    targets[targets == 4] = 5  # one without any
    expected = np.zeros((9, 3))
    np.add.at(expected, targets, rows)
    np.testing.assert_allclose(Sums(targets, 9)(jnp.asarray(rows)), expected, atol=1e-5)
    assert (np.asarray(Sums(np.zeros(0, int), 2)(jnp.zeros((0, 3)))) == 0).all()


@pytest.mark.parametrize("most", [0.5, 5, 100])
def test_blocks_of_rows_are_the_same(most):
    x = jnp.arange(24.0).reshape(12, 2)
    np.testing.assert_array_equal(by_blocks(lambda a: a[0] * a[1], (x, x), most), x * x)


@pytest.mark.parametrize("leak", [0.0, 1e-9, 1e-6])
def test_a_cause_that_all_but_contradicts_itself_leaves_numbers(leak):
    """c1 is there though its causes are not: what it says of them is 0 against 0, and others must not suffer."""
    names = ["p1", "p2", "p3", "c1", "c2", "d"]
    parents = {"c1": ["p1", "p2"], "c2": ["p1", "p2", "p3"], "d": ["p3"]}
    mechanisms = {p: [0.9, 0.1] for p in names[:3]}
    mechanisms |= {"c1": um.NoisyOr(leak, [0.5, 0.5]), "c2": um.NoisyOr(0.01, [0.5] * 3), "d": um.NoisyOr(0.2, [0.5])}
    net = um.Network([um.Variable(n) for n in names], parents, mechanisms)
    states = np.array([[0, 0, -1, 1, -1, -1], [-1, -1, -1, 1, 0, 1]])
    found = beliefs(net, states, 8)
    assert np.isfinite(found).all()
    exact = um.exact(net, {"p1": "no", "p2": "no"})
    for name in ("p3", "c2", "d"):
        assert found[0, 2 * names.index(name) + 1] == pytest.approx(exact[name]["yes"], abs=1e-4)


def test_evidence_against_evidence_in_tables_leaves_numbers():
    names = ["a", "b", "c", *(f"x{i}" for i in range(30)), *(f"y{i}" for i in range(30))]
    parents = {"c": ["a", "b"]} | {f"x{i}": ["c"] for i in range(30)} | {f"y{i}": ["b"] for i in range(30)}
    both = [[[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]]
    mechanisms = {"a": [0.5, 0.5], "b": [0.5, 0.5], "c": both} | {n: [[0.99, 0.01], [0.01, 0.99]] for n in names[3:]}
    net = um.Network([um.Variable(n) for n in names], parents, mechanisms)
    states = np.array([[-1, -1, -1, *[1] * 30, *[0] * 30]])
    assert np.isfinite(beliefs(net, states, 8)).all()


def test_rows_of_no_target_are_left_out():
    targets, rows = np.array([1, -1, 0, 1, -1]), np.arange(10.0).reshape(5, 2)
    np.testing.assert_array_equal(Sums(targets, 3)(jnp.asarray(rows)), [rows[2], rows[0] + rows[3], [0, 0]])
