"""Every proposal keeps the contract (``contract.py``), and what is particular to one."""

import numpy as np
import pytest

from contract import DRAWS, TIGHT, Case, assert_contract, assert_follows, log_weights, outcomes
from models import random_model
from networks import enumerate_all, random_evidence, random_network
from unimarg import Network, NoisyMax, Variable, frame
from unimarg.conditionals import Conditionals, Query
from unimarg.counter import key_from_seed
from unimarg.evidence import Evidence
from unimarg.frame import Frame
from unimarg.importance import first_sample
from unimarg.proposals.adaptive import adapt
from unimarg.proposals.hybrid import hybrid
from unimarg.proposals.independent import independent
from unimarg.proposals.lookahead import lookahead
from unimarg.proposals.message import message
from unimarg.proposals.prior import prior
from unimarg.proposals.sequential import sequential


def pmf(rng: np.random.Generator, *shape: int, zeros: float = 0.0) -> np.ndarray:
    p = rng.dirichlet(np.ones(shape[-1]), size=shape[:-1]) * (rng.random(shape) >= zeros) + 0.0
    p[..., 0] += p.sum(-1) == 0
    return p / p.sum(-1, keepdims=True)


def noisy_network(seed: int, zeros: float = 0.0, most: int = 3) -> Network:
    """Noisy-max nodes above and below each other, with three parents each, and a table beside them; at most 432 joint states."""
    rng = np.random.default_rng(seed)
    cards = {"a": 2, "b": 3, "c": 2, "m": most, "n": 2, "t": 2, "z": most}
    parents = {"c": ["a"], "m": ["a", "b", "c"], "n": ["m", "b", "c"], "t": ["m"], "z": ["m", "n", "c"]}

    def mechanism(name: str) -> np.ndarray | NoisyMax:
        given = [cards[p] for p in parents.get(name, [])]
        if name not in "mnz":
            return pmf(rng, *given, cards[name], zeros=zeros)
        effects = [pmf(rng, k, cards[name], zeros=zeros) for k in given]
        for e in effects:
            e[0] = np.eye(cards[name])[0]
        return NoisyMax(pmf(rng, cards[name], zeros=zeros), effects)

    return Network([Variable(v, tuple("0123"[:k])) for v, k in cards.items()], parents, {v: mechanism(v) for v in cards})


def frames() -> dict[str, Frame]:
    """Networks stay alive as attributes: a frame refers to its own weakly."""
    out = {}
    for name, net, expanded in [
        ("tables", random_network(10, 6, noisy=0, zeros=0, most=300), 256),
        ("zeros", random_network(40, 6, noisy=0, zeros=0.3, most=300), 256),
        ("noisy", noisy_network(1), 30),
        ("noisy zeros", noisy_network(2, zeros=0.3), 30),
        ("expanded", noisy_network(1), 256),
        ("binary", noisy_network(3, most=2), 15),
    ]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(frame, "EXPANDED", expanded)
            patch.setattr(frame, "CAPACITY", (1 << 14, 1 << 14))
            out[name] = Frame(net)
        out[name].alive = net
    return out


FRAMES = frames()
BY_HAND = [  # on the noisy networks: roots, the middle and leaves, states to be explained and the lowest
    Evidence({}, {}),
    Evidence({6: 2}, {}),
    Evidence({6: 0}, {}),
    Evidence({6: 1, 4: 0}, {0: np.array([0.2, 2.0])}),
    Evidence({3: 2}, {6: np.array([0.0, 0.3, 0.9])}),
    Evidence({4: 1, 5: 1}, {3: np.array([0.5, 0.1, 0.7])}),
    Evidence({6: 2, 1: 1}, {5: np.array([0.1, 0.8])}),
]


def evidence_of(name: str) -> list[Evidence]:
    frame = FRAMES[name]
    if name == "binary":
        found = [Evidence({6: 1}, {}), Evidence({4: 0}, {6: np.array([0.2, 0.9])}), Evidence({5: 1}, {1: np.array([0.1, 0.2, 0.9])})]
    elif name == "expanded":
        found = BY_HAND[1::2]
    elif "noisy" in name:
        found = BY_HAND
    else:
        rng = np.random.default_rng(1)
        found = [random_evidence(rng, frame.net, *share) for share in [(0, 0), (0.2, 0.2), (0.5, 0), (0, 0.5), (0.3, 0.3)]]
    return [e for e in found if enumerate_all(frame.net, e)[0] > -np.inf]


CASES = [(name, e) for name in FRAMES for e in range(len(evidence_of(name)))]


def case_of(name: str, number: int) -> Case:
    return made(FRAMES[name], evidence_of(name)[number], number)


def made(frame: Frame, evidence: Evidence, seed: int = 0) -> Case:
    return Case(frame, Query.make(frame.net, evidence, tuple(range(len(frame.net)))), np.random.default_rng(seed))


def beliefs(case: Case) -> np.ndarray:
    """Marginals of a poor model, ``[nodes, card]``."""
    net = case.frame.net
    return np.stack([np.pad(case.rng.dirichlet(np.ones(k)), (0, int(net.cards.max() - k))) for k in net.cards])


def lambdas(case: Case) -> np.ndarray:
    return case.rng.normal(size=(len(case.frame.net), int(case.frame.net.cards.max())))


PROPOSALS = {
    "prior": lambda c: prior(c.frame, c.query),
    "prior, no structure": lambda c: prior(c.frame, c.query, False),
    "independent": lambda c: independent(c.frame, c.query, beliefs(c)),
    "independent, no structure": lambda c: independent(c.frame, c.query, beliefs(c), False),
    "hybrid": lambda c: hybrid(c.frame, c.query, beliefs(c), 0.25),
    "hybrid, no structure": lambda c: hybrid(c.frame, c.query, beliefs(c), 0.25, False),
    "hybrid by node": lambda c: hybrid(c.frame, c.query, beliefs(c), c.rng.choice([0, 0.1, 0.7, 1], len(c.frame.net))),
    "message": lambda c: message(c.frame, c.query, lambdas(c)),
    "message, no structure": lambda c: message(c.frame, c.query, lambdas(c), False),
    "lookahead": lambda c: lookahead(c.frame, c.query),
    "lookahead, small": lambda c: lookahead(c.frame, c.query, largest=6),
}


@pytest.mark.parametrize("proposal", PROPOSALS)
@pytest.mark.parametrize(("name", "number"), CASES)
def test_every_proposal_keeps_the_contract(name, number, proposal):
    case = case_of(name, number)
    assert_contract(case, PROPOSALS[proposal](case).finish())


# --- what is particular to one


def assert_rejected(case: Case, given: Conditionals) -> None:
    with pytest.raises(AssertionError):
        assert_contract(case, given)


@pytest.mark.parametrize("name", ["tables", "noisy"])
def test_the_contract_rejects_a_density_off_by_a_thousandth_at_one_node(name):
    case = case_of(name, 1)
    given = message(case.frame, case.query, lambdas(case), False).finish()
    assert_contract(case, given)
    begin = int(case.frame.offset[0])
    assert_rejected(
        case, given._replace(log_ratio=given.log_ratio.at[begin : begin + int(case.frame.padded[0])].add(1e-3))
    )  # in the weights
    assert_rejected(case, given._replace(high=given.high.at[begin].add(4_300_000)))  # in what is drawn
    steps = given.steps
    assert_rejected(case, given._replace(steps=steps._replace(context=steps.context[:, ::-1])))  # a table read at the wrong parents


def test_densities_are_those_of_the_definitions():
    """log Q from the formulas of the module docstrings, node by node."""
    beta = np.array([0, 0.1, 0.7, 1, 0.3, 0.5, 0.2])
    for name, number in [("noisy", 3), ("expanded", 1), ("noisy zeros", 2)]:
        case = case_of(name, number)
        u, tilt = beliefs(case), lambdas(case)
        for structure in (True, False):
            for draft, share, lift in [
                (prior(case.frame, case.query, structure), 0 * beta, 0 * tilt),
                (independent(case.frame, case.query, u, structure), 0 * beta + 1, 0 * tilt),
                (hybrid(case.frame, case.query, u, beta, structure), beta, 0 * tilt),
                (message(case.frame, case.query, tilt, structure), 0 * beta, without_own_findings(case, tilt)),
            ]:
                given = draft.finish()
                every = outcomes(case, given)
                log_w = log_weights(case, given, every.states)
                log_q = by_definition(case, given, every.states, u, share, lift, structure)
                sure = every.log_target > -30
                np.testing.assert_allclose(log_w[sure], every.log_target[sure] - log_q[sure], atol=TIGHT)


def without_own_findings(case: Case, tilt: np.ndarray) -> np.ndarray:
    """lambda includes what a virtual finding says of its own node; t has that already."""
    out = tilt.copy()
    for i, likelihood in case.query.evidence.virtual.items():
        out[i, : len(likelihood)] -= np.log(np.where(likelihood > 0, likelihood, 1))
    return out


def by_definition(case, given, states, u, beta, tilt, structure) -> np.ndarray:
    net, log_q = case.frame.net, np.zeros(len(states))
    full = np.zeros((len(states), len(net)), dtype=int)
    nodes = np.asarray(given.steps.node)[: states.shape[1]]
    full[:, nodes] = states
    for i in nodes:
        k = net.cards[i]
        t = net.mechanisms[i].rows(full[:, list(net.parents[i])]) * case.query.likelihood[i, :k]
        q = t * np.exp(tilt[i, :k])
        mask = t > 0 if structure else case.query.likelihood[i, :k] > 0 if case.frame.large[i] else np.ones(k, dtype=bool)
        other = np.where(mask, u[i, :k], 0)
        q, other = (a / np.maximum(a.sum(-1, keepdims=True), 1e-300) for a in (q, other))
        share = 0.0 if case.query.known[i] else beta[i]
        q = t if structure and case.query.free[i] else (1 - share) * q + share * other
        with np.errstate(divide="ignore"):
            log_q += np.log(q[np.arange(len(states)), full[:, i]])
    return log_q


@pytest.mark.parametrize("name", FRAMES)
def test_lookahead_is_exact_where_everything_fits(name):
    """Every weight is P(e); hidden large noisy-max nodes are the exception: their parents hear of them as expected."""
    for number in range(len(evidence_of(name))):
        case = case_of(name, number)
        given = lookahead(case.frame, case.query).finish()
        every = outcomes(case, given)
        log_w = log_weights(case, given, every.states)
        exact = enumerate_all(case.frame.net, case.query.evidence)[0]
        above = case.frame.large & case.query.below & ~case.query.known
        q = np.where(every.log_target > -30, np.exp(every.log_target - np.where(np.isfinite(log_w), log_w, 0)), 0)
        off = q @ np.abs(np.exp(np.where(q > 0, log_w - exact, 0)) - 1)
        assert off < (1 if above.any() else 1e-5)


@pytest.mark.parametrize("name", ["tables", "noisy zeros", "expanded"])
def test_adaptive_keeps_the_contract_and_does_no_harm(name):
    for number in range(1, 3):
        case = case_of(name, number)
        draft = hybrid(case.frame, case.query, beliefs(case), 0.5, False)

        def share(given: Conditionals, case: Case = case) -> float:
            every, log_w = assert_contract(case, given)
            live = np.isfinite(log_w) & np.isfinite(every.log_target)
            w, t = np.exp(log_w[live]), np.exp(every.log_target[live])
            return t.sum() ** 2 / (t @ w)  # (E w)^2 / E w^2

        before = share(draft.finish())
        assert share(adapt(draft, seed=1)[0]) > before - 0.02


def test_a_belief_in_nothing_possible_and_states_that_fit_nothing_are_no_harm():
    """u = 0 on the whole support of t, and parents that leave a large noisy-max no state."""
    frame = FRAMES["noisy zeros"]
    case = made(frame, Evidence({}, {3: np.array([0.0, 0.0, 1.5]), 6: np.array([0, 0, 0.5])}))
    u = np.zeros((len(frame.net), 3))
    u[:, 0] = 1.0  # z and m can only be 2
    for draft in (independent(frame, case.query, u, False), hybrid(frame, case.query, u, 0.3), lookahead(frame, case.query)):
        assert_contract(case, draft.finish())


@pytest.mark.parametrize("options", [{}, {"heads": ("marginal", "message")}, {"preset": "default", "student": 16}])
def test_sequential_draws_follow_their_density(options):
    """Outcomes and their weights are those that were drawn, which is nearly all; every one of them is checked in test_incremental."""
    net = random_network(38, 6, noisy=0, zeros=0.3, most=100)
    for evidence, structure in [(Evidence({5: 1}, {1: np.array([0.2, 2.0])}), True), (Evidence({4: 1}, {}), False)]:
        if not structure and "student" in options:
            continue
        query = Query.make(net, evidence, tuple(range(len(net))))
        draw, _ = sequential(random_model(net, **({"hidden": (16,)} | options)), query, structure)
        states, log_w = (np.asarray(a) for a in draw(key_from_seed(3), first_sample(0), DRAWS)[:2])
        live = np.isfinite(log_w)
        rows, first = np.unique(states.T[live], axis=0, return_index=True)
        target = net.log_probability(rows) + np.log(query.likelihood[np.arange(len(net)), rows]).sum(axis=1)
        weights = log_w[live][first].astype(np.float64)
        assert_follows(rows, np.exp(target - weights), weights, states.T, log_w, missing=5 / DRAWS)
        w = np.where(live, np.exp(log_w - enumerate_all(net, evidence)[0]), 0)
        assert abs(w.mean() - 1) < 4.5 * w.std() / np.sqrt(DRAWS)


def test_adaptation_keeps_to_its_time():
    net = random_network(4, 8)
    query = Query.make(net, Evidence({7: 0}, {}), tuple(range(8)))
    frame_of_net = frame.frame_of(net)
    assert adapt(lookahead(frame_of_net, query), 0, seconds=-1.0)[1] == 0
    assert adapt(lookahead(frame_of_net, query), 0)[1] > 0
