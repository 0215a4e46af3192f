"""The ways to say beta: a number, by name, by a function of what was drawn, fitted to the query."""

import jax.numpy as jnp
import numpy as np
import pytest

import unimarg as um
from models import ASIA, random_model
from networks import all_states, as_given, random_evidence, random_network
from unimarg.conditionals import Query
from unimarg.counter import key_from_seed
from unimarg.evidence import Evidence
from unimarg.frame import frame_of
from unimarg.importance import chunk_size, first_sample
from unimarg.network import Network
from unimarg.proposals.hybrid import FITTED, as_beta, host_walk, hybrid
from unimarg.query import Asked, Options
from unimarg.walk import walk

EVIDENCE = {"dysp": "yes", "xray": [0.3, 0.9]}


def case(seed: int) -> tuple[Network, Evidence, np.ndarray]:
    """A network, evidence that is possible, and marginals as a UM might give them."""
    rng = np.random.default_rng(seed)
    net = random_network(seed, 6, most=400)
    marginals = np.zeros((len(net), int(net.cards.max())))
    for i, k in enumerate(net.cards):
        marginals[i, :k] = rng.dirichlet(np.ones(k))
    while True:
        evidence = random_evidence(rng, net, 0.2, 0.2)
        if (net.log_probability(all_states(net, evidence)) > -np.inf).any():
            return net, evidence, marginals


def enumerate_density(net: Network, evidence: Evidence, marginals: np.ndarray, beta, structure: bool) -> tuple[np.ndarray, ...]:
    """All joint states, log w and log Q of each."""
    states = all_states(net, evidence)
    query = Query.make(net, evidence, tuple(range(len(net))), every=True)
    _, log_w, log_q = host_walk(frame_of(net), query, marginals, beta, structure, lambda i: states[:, i], len(states))
    return states, log_w, log_q


def changing(states: np.ndarray) -> np.ndarray:
    """More of the UM, the more has been drawn, and depending on what."""
    drawn = states >= 0
    return 0.9 * (0.1 + np.where(drawn, states, 0).sum(axis=1)) / (1 + drawn.sum(axis=1) * 3)


@pytest.mark.parametrize("structure", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_density_of_a_function_is_the_distribution_of_its_draws(seed, structure):
    net, evidence, marginals = case(seed)
    states, log_w, log_q = enumerate_density(net, evidence, marginals, changing, structure)
    q = np.exp(log_q)
    target = net.log_probability(states)
    with np.errstate(divide="ignore"):
        for i, likelihood in evidence.virtual.items():
            target = target + np.log(likelihood)[states[:, i]]
    assert q.sum() == pytest.approx(1, abs=1e-9)
    possible = target > -np.inf
    assert (q[possible] > 0).all()  # full support
    assert log_w[possible] == pytest.approx(target[possible] - log_q[possible], abs=1e-9)
    assert (log_w[~possible] == -np.inf).all()
    n = 20_000
    rng = np.random.default_rng(seed)
    query = Query.make(net, evidence, tuple(range(len(net))), every=True)
    drawn, drawn_w, _ = host_walk(frame_of(net), query, marginals, changing, structure, lambda _: rng.random(n), n)
    where = {tuple(s): t for t, s in enumerate(states.tolist())}
    numbers = np.array([where[tuple(s)] for s in drawn.tolist()])
    counts = np.bincount(numbers, minlength=len(states))
    often = n * q > 10
    assert (np.abs(counts - n * q)[often] < 4.5 * np.sqrt(n * q * (1 - q) + 1e-9)[often]).all()
    assert drawn_w == pytest.approx(log_w[numbers], abs=1e-9)


@pytest.mark.parametrize("structure", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_a_constant_function_is_the_number(seed, structure):
    """The walk on the host has the weights of the walk on the device."""
    net, evidence, marginals = case(seed)
    states, log_w, _ = enumerate_density(net, evidence, marginals, lambda s: 0.3, structure)
    query = Query.make(net, evidence, tuple(range(len(net))), every=True)
    given = hybrid(frame_of(net), query, marginals, 0.3, structure).finish()
    order = np.asarray(given.steps.node)[: int(given.drawn)]
    forced = jnp.asarray(states[:, order].T, frame_of(net).shape.dtype)
    compiled = np.asarray(walk(frame_of(net).shape, given, key_from_seed(0), first_sample(0), len(states), forced)[1])
    possible = log_w > -np.inf
    assert compiled[possible] == pytest.approx(log_w[possible], abs=2e-5)


def test_a_function_answers_right_and_sees_evidence_and_states():
    seen = []

    def beta(states, evidence):
        seen.append((states.shape[1], evidence))
        assert (states[:, ASIA.index["dysp"]] == ASIA.variables[ASIA.index["dysp"]].states.index("yes")).all()
        return np.where(states[:, 0] == 1, 0.2, 0.05)

    model = random_model(ASIA)
    post = model.query(EVIDENCE, method="hybrid", beta=beta, samples=1 << 14, target_error=None)
    truth = um.exact(ASIA, EVIDENCE)
    assert (post.status, post.method) == ("ok", "hybrid")
    assert seen[0] == (8, EVIDENCE)
    for name in ASIA.names:
        for state, p in post[name].items():
            assert abs(p - truth[name][state]) <= 4.5 * post.error(name)[state] + 1e-6
    again = model.query(EVIDENCE, method="hybrid", beta=beta, samples=1 << 14, target_error=None)
    assert again["lung"] == post["lung"]


def test_by_name():
    assert as_beta({"lung": 0.5}, ASIA).tolist() == [0.5 if n == "lung" else 0.0 for n in ASIA.names]
    model = random_model(ASIA)
    options = {"method": "hybrid", "samples": 4096, "target_error": None}
    by_name = model.query(EVIDENCE, beta=dict.fromkeys(ASIA.names, 0.25), **options)
    assert by_name["lung"] == model.query(EVIDENCE, beta=0.25, **options)["lung"]
    assert by_name["lung"] != model.query(EVIDENCE, beta={"lung": 0.25}, **options)["lung"]


def test_fitted_is_the_best_of_those_tried():
    """A random network knows nothing: the more of it, the worse, and the fit says so; its own samples are counted."""
    model = random_model(ASIA)
    post = model.query(EVIDENCE, method="hybrid", beta="fit", samples=1 << 14, target_error=None)
    fitted = float(post.message.split()[1])
    assert fitted in FITTED
    assert "did best in a pilot" in post.message
    ess = {b: model.query(EVIDENCE, method="hybrid", beta=b, samples=1 << 14, target_error=None).ess for b in FITTED}
    assert post.ess == pytest.approx(ess[fitted])
    assert ess[fitted] > 0.95 * max(ess.values())
    asked = Asked(ASIA, model, EVIDENCE, None, Options(beta="fit"))
    asked.estimator("hybrid")
    assert asked.spent == len(FITTED) * chunk_size(frame_of(ASIA))


@pytest.mark.parametrize(
    ("beta", "word"),
    [
        (1.5, "between 0 and 1"),
        (-0.1, "between 0 and 1"),
        (float("nan"), "between 0 and 1"),
        ([0.5, 0.5], "one for each of the 8 variables"),
        ("best", "or 'fit'"),
        ({"lungs": 0.5}, "did you mean 'lung'"),
        ({"lung": 2.0}, "between 0 and 1"),
        (lambda states, evidence: 3.0, "between 0 and 1"),
        (lambda states, evidence: "much", "must return a number"),
        (lambda states, evidence: np.zeros(3), "must return a number"),
    ],
)
def test_misuse(beta, word):
    with pytest.raises(um.UsageError, match=word):
        random_model(ASIA).query(EVIDENCE, method="hybrid", beta=beta, samples=1000)


def test_evidence_in_hybrid_form_of_a_random_case():
    """Virtual and hard findings anywhere, on models of random networks."""
    net, evidence, _ = case(3)
    model = random_model(net)
    truth = um.exact(net, as_given(net, evidence))
    post = model.query(as_given(net, evidence), method="hybrid", beta=lambda s, e: 0.1, samples=1 << 14, target_error=None)
    assert abs(post.log_evidence - truth.log_evidence) <= 4.5 * post.log_evidence_error + 1e-5
