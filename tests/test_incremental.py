"""Sequential draws: every density against a full pass for every node, and what is drawn against its density."""

import jax.numpy as jnp
import numpy as np
import pytest

import unimarg as um
from models import random_model
from networks import all_states, random_evidence, random_network
from unimarg.counter import key_from_seed
from unimarg.encoding import encode, starts
from unimarg.evidence import Evidence
from unimarg.incremental import Layer, make_findings, sequential_draw, student_layer, trunk_layer
from unimarg.layout import compile_network
from unimarg.relevance import has_observed_descendant

FIRST = jnp.array([0, 0], jnp.uint32)
SAMPLES = 64
WIDE = um.Network(  # more states than are chosen by comparison
    [um.Variable("a", tuple("abcdefg")), um.Variable("b"), um.Variable("c", tuple("abc"))],
    {"b": ["a"], "c": ["a", "b"]},
    {
        "a": np.full(7, 1 / 7),
        "b": np.random.default_rng(0).dirichlet(np.ones(2), 7),
        "c": np.random.default_rng(1).dirichlet(np.ones(3), (7, 2)),
    },
)


def layer_of(model, evidence: Evidence, head: str) -> Layer:
    flags, parts = model.arrays([evidence])
    known, values, priors = jnp.asarray(flags), [jnp.asarray(v) for v in parts], model.passes.prior_slots
    if head != "student":
        return trunk_layer(model.trunk, head, model.recipe.encoding, model.ragged, *priors, known, values)
    x = encode(model.recipe.encoding, known, values, model.ragged, priors[0])
    features = model.trunk.features(x)
    message = jnp.pad(model.trunk.logits(features, {"marginal": model.passes.prior_slots[1]})["message"][0], (0, 1))[model.ragged.slot]
    virtual = np.isin(np.arange(len(model.net)), list(evidence.virtual))
    return student_layer(model.student, features[0], message, jnp.asarray(virtual))


def n_passes(model, evidence: Evidence, head: str, states: np.ndarray, table: np.ndarray, tilt: np.ndarray) -> np.ndarray:
    """log q_i(x_i), ``[nodes, samples]``, by a full pass for every node and sample."""
    net, ragged = model.net, model.ragged
    log_q = np.zeros(states.shape)
    if head == "student":
        start = np.asarray(layer_of(model, evidence, head).start, np.float64)
        bias = np.asarray(layer_of(model, evidence, head).bias, np.float64)
        rows, out = (np.asarray(a, np.float64) for a in (model.student.rows, model.student.out))
    for i, k in enumerate(net.cards):
        if i in evidence.hard:
            continue
        if head == "student":
            drawn = [j for j in range(i) if j not in evidence.hard]
            hidden = np.maximum(start + sum(rows[j][states[j]] for j in drawn), 0) if drawn else np.maximum(start, 0)[None]
            h = np.pad((hidden @ out[i].T + bias[i])[:, : k - 1], ((0, 0), (1, 0)))
        else:
            later = {j: v for j, v in evidence.virtual.items() if j >= i}
            shown = [Evidence(dict(evidence.hard) | {j: int(x[j]) for j in range(i)}, later) for x in states.T]
            known, values = model.arrays(shown)
            given = jnp.asarray(known), [jnp.asarray(v) for v in values], ragged
            x = encode(model.recipe.encoding, *given, model.passes.prior_slots[0])
            start = {
                "marginal": starts(model.recipe.encoding, *given, model.passes.prior_slots[1]).get("marginal", model.passes.prior_slots[1])
            }
            group, j = ragged.member[i]
            h = np.asarray(ragged.with_reference(model.trunk(x, start)[head])[group][:, j], np.float64)
        likelihood = evidence.virtual.get(i, np.ones(k))
        q = np.exp(h) if tilt[i] else np.ones((1, k))
        parents = tuple(states[p] for p in net.parents[i])
        q = q * (likelihood * net.mechanisms[i].expand()[parents] if table[i] else likelihood > 0)
        q = np.broadcast_to(q / q.sum(axis=1, keepdims=True), (states.shape[1], k))
        log_q[i] = np.log(q[np.arange(states.shape[1]), states[i]])
    return log_q


def factors(net, evidence: Evidence, how: str) -> tuple[np.ndarray, np.ndarray]:
    below = has_observed_descendant(net, evidence)
    every = np.ones(len(net), dtype=bool)
    return {"paper": (~every, every), "structure": (~below, below), "residual": (every, below), "all": (every, every)}[how]


@pytest.mark.parametrize(
    ("head", "how", "options"),
    [
        ("marginal", "paper", {"encoding": "two_bit"}),
        ("marginal", "paper", {"encoding": "prior"}),
        ("marginal", "structure", {"encoding": "prior", "from_prior": True}),
        ("marginal", "paper", {"encoding": "two_bit", "from_prior": True, "gated": True, "heads": ("marginal", "message")}),
        ("marginal", "paper", {"encoding": "graded", "from_prior": True, "gated": True, "heads": ("marginal", "message")}),
        ("message", "residual", {"encoding": "prior", "heads": ("marginal", "message")}),
        ("message", "residual", {"encoding": "graded", "from_prior": True, "heads": ("marginal", "message")}),
        ("student", "residual", {"student": 130, "heads": ("marginal", "message"), "residual": True}),
        ("student", "all", {"student": 5, "heads": ("marginal", "message"), "residual": True}),
    ],
)
@pytest.mark.parametrize("net", [random_network(5, 24, most=1e9), WIDE], ids=["random", "wide"])
def test_every_density_is_that_of_a_full_pass(net, head, how, options):
    model, rng = random_model(net, **options), np.random.default_rng(3)
    compiled = compile_network(net, width=1)
    met = 0
    for _ in range(3):
        evidence = random_evidence(rng, net, 0.3, 0.2)
        table, tilt = factors(net, evidence, how)
        given = make_findings(net, evidence, table, tilt)
        drawn = sequential_draw(
            compiled.layout, compiled.arrays, key_from_seed(1), FIRST, SAMPLES, layer_of(model, evidence, head), given, 32, densities=True
        )
        states, log_q = np.asarray(drawn.states), np.asarray(drawn.log_q)
        for i, k in evidence.hard.items():
            assert (states[i] == k).all()
        assert ((states >= 0) & (states < net.cards[:, None])).all()
        possible = np.isfinite(log_q).all(axis=0)  # else a dead end: P L is 0 for every state
        assert (np.asarray(drawn.log_weight)[~possible] == -np.inf).all()
        states, log_q, met = states[:, possible], log_q[:, possible], met + possible.sum()
        np.testing.assert_allclose(log_q, n_passes(model, evidence, head, states, table, tilt), atol=1e-5)
        with np.errstate(divide="ignore"):
            log_l = sum((np.log(v)[states[i]] for i, v in evidence.virtual.items()), np.zeros(states.shape[1]))
        expected = net.log_probability(states.T) + log_l - log_q.sum(axis=0)
        np.testing.assert_allclose(np.asarray(drawn.log_weight)[possible], expected, atol=1e-4)
    assert met > SAMPLES


def setting(how: str = "residual"):
    net = random_network(12, 5, zeros=0, most=200)
    model = random_model(net, student=8, heads=("marginal", "message"), residual=True)
    evidence = Evidence({4: 0}, {})
    compiled = compile_network(net, width=1)
    return net, compiled, layer_of(model, evidence, "student"), make_findings(net, evidence, *factors(net, evidence, how)), evidence


def test_draws_follow_their_density():
    net, compiled, layer, given, evidence = setting("all")
    n = 1 << 15
    drawn = sequential_draw(compiled.layout, compiled.arrays, key_from_seed(2), FIRST, n, layer, given, densities=True)
    states, density = np.asarray(drawn.states).T, np.exp(np.asarray(drawn.log_q, np.float64).sum(axis=0))
    found, index, counts = np.unique(states, axis=0, return_index=True, return_counts=True)
    p = density[index]
    assert p.sum() == pytest.approx(1, abs=0.02)  # nearly every joint state is met
    assert len(found) <= len(all_states(net, evidence))
    z = (counts - n * p) / np.sqrt(n * p * (1 - p))
    assert np.abs(z[n * p > 10]).max() < 4.5
    weights = np.exp(np.asarray(drawn.log_weight, np.float64))
    truth = np.exp(um.exact(net, {net.names[4]: 0}, []).log_evidence)
    assert abs(weights.mean() - truth) < 4 * weights.std() / np.sqrt(n)


def test_blocks_and_calls_do_not_matter():
    _, compiled, layer, given, _ = setting()
    one = sequential_draw(compiled.layout, compiled.arrays, key_from_seed(2), FIRST, 64, layer, given, 64)
    for block in (8, 16):
        other = sequential_draw(compiled.layout, compiled.arrays, key_from_seed(2), FIRST, 64, layer, given, block)
        assert (one.states == other.states).all()
        np.testing.assert_allclose(one.log_weight, other.log_weight, atol=1e-5)
    second = sequential_draw(compiled.layout, compiled.arrays, key_from_seed(2), FIRST.at[0].set(32), 32, layer, given, 16)
    assert (second.states == one.states[:, 32:]).all()


def test_tables_alone_are_likelihood_weighting():
    net, compiled, layer, given, evidence = setting()
    given = make_findings(net, evidence, np.ones(5, bool), np.zeros(5, bool))
    drawn = sequential_draw(compiled.layout, compiled.arrays, key_from_seed(2), FIRST, 64, layer, given)
    states = np.asarray(drawn.states)
    table = net.mechanisms[4].expand()[tuple(states[p] for p in net.parents[4])]
    np.testing.assert_allclose(drawn.log_weight, np.log(np.broadcast_to(table, (64, table.shape[-1]))[:, 0]), rtol=1e-6)
    free = next(i for i in range(4) if net.cards[i] > 2)
    two = Evidence({}, {free: np.arange(net.cards[free]) < 2})  # a finding that only rules out
    drawn = sequential_draw(
        compiled.layout, compiled.arrays, key_from_seed(2), FIRST, 64, layer, make_findings(net, two, np.ones(5, bool), np.zeros(5, bool))
    )
    states = np.asarray(drawn.states)
    table = net.mechanisms[free].expand()[tuple(states[p] for p in net.parents[free])]
    np.testing.assert_allclose(drawn.log_weight, np.log(np.broadcast_to(table, (64, table.shape[-1]))[:, :2].sum(axis=1)), atol=1e-6)
    nothing = make_findings(net, Evidence({}, {}), np.ones(5, bool), np.zeros(5, bool))
    drawn = sequential_draw(compiled.layout, compiled.arrays, key_from_seed(2), FIRST, 64, layer, nothing)
    assert (np.asarray(drawn.log_weight) == 0).all()  # exactly


def test_other_evidence_compiles_nothing():
    net, compiled, layer, given, _ = setting()
    sequential_draw(compiled.layout, compiled.arrays, key_from_seed(2), FIRST, 64, layer, given)
    before = sequential_draw._cache_size()
    other = make_findings(net, Evidence({0: 0}, {2: np.full(int(net.cards[2]), 0.5)}), *factors(net, Evidence({0: 0}, {}), "paper"))
    sequential_draw(compiled.layout, compiled.arrays, key_from_seed(9), FIRST, 64, layer, other)
    assert sequential_draw._cache_size() == before
