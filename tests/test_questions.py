"""What to ask next: against mutual information by enumeration, a trained model within its own error, and what is refused."""

import numpy as np
import pytest
from hypothesis import given, settings

import unimarg as um
from models import ASIA, random_model
from networks import all_states, as_given, random_evidence, random_network, seeds
from unimarg import Network, Variable
from unimarg.drawn import SAMPLES, draw
from unimarg.passes import Passes
from unimarg.questions import Asking, next_questions


def mutual_information(net: um.Network, evidence, one: int, other: int) -> float:
    """By enumeration of all states: H(X) + H(Y) - H(X, Y)."""
    states = all_states(net, evidence)
    log = net.log_probability(states)
    with np.errstate(divide="ignore"):
        for i, likelihood in evidence.virtual.items():
            log = log + np.log(likelihood)[states[:, i]]
    p = np.exp(log - log.max())
    joint = np.zeros((net.cards[one], net.cards[other]))
    np.add.at(joint, (states[:, one], states[:, other]), p / p.sum())

    def entropy(q):
        return -(q[q > 0] * np.log(q[q > 0])).sum()

    return entropy(joint.sum(1)) + entropy(joint.sum(0)) - entropy(joint.ravel())


@given(seeds)
@settings(max_examples=25, deadline=None)
def test_exact_gain_is_mutual_information(seed):
    rng = np.random.default_rng(seed)
    net = random_network(rng, 6, most=300)
    evidence = random_evidence(rng, net, hard=0.2, virtual=0.2)
    try:
        table = next_questions(net, as_given(net, evidence), ["v0", "v5"])
    except um.ImpossibleEvidenceError:
        return
    assert set(table["variable"]) == {net.names[i] for i in range(1, 5) if i not in evidence.nodes}
    for name, gain in zip(table["variable"], table["gain"], strict=True):
        assert gain == pytest.approx(sum(mutual_information(net, evidence, net.index[name], t) for t in (0, 5)), abs=1e-9)


@pytest.mark.parametrize("evidence", [{}, {"dysp": "yes", "xray": {"yes": 0.9, "no": 0.2}}])
def test_samples_give_the_exact_gain_within_its_error(monkeypatch, evidence):
    exact = next_questions(ASIA, evidence, ["lung", "bronc"]).set_index("variable")
    assert (exact.attrs["method"], exact["gain_error"].max()) == ("exact", 0)
    monkeypatch.setattr("unimarg.query.EXACT_ENTRIES", -1)
    off = []
    for seed in range(4):
        found = next_questions(ASIA, evidence, ["lung", "bronc"], seed=seed).set_index("variable")
        assert found.attrs["method"] == "lookahead"
        assert found["gain_error"].max() < 0.01
        assert found.attrs["entropy"] == pytest.approx(exact.attrs["entropy"], abs=0.02)
        off += ((found["gain"] - exact["gain"]) / found["gain_error"])[exact["gain"] > 0.01].tolist()
    assert len(off) >= 8
    assert 0.5 < max(map(abs, off)) < 6  # they are samples, and know how far they are off: Student's, with seven degrees of freedom


def test_what_samples_find_by_chance_is_taken_off(monkeypatch):
    """A coin tells nothing of forty others; samples taken as they are say that it does, by 40 / 2n."""
    names = [f"c{i}" for i in range(41)]
    net = Network([Variable(n) for n in names], {}, {n: [0.5, 0.5] for n in names})
    monkeypatch.setattr("unimarg.query.EXACT_ENTRIES", -1)
    chance = 40 / (2 * SAMPLES)
    drawn = draw(net, {}, 0)[0]
    asking = Asking.make(net, {}, names[1:], [names[0]], None, range(41))
    assert asking.judge(drawn.answers)[0][0] > chance / 2
    gains = [next_questions(net, {}, names[1:], [names[0]], seed=seed)["gain"][0] for seed in range(6)]
    assert np.mean(gains) < chance / 2


def test_answers_that_samples_do_not_have(monkeypatch):
    """A state of 1e-9 comes in no sample: it counts for nothing, and is no contradiction."""
    net = Network([Variable("a"), Variable("b")], {"b": ["a"]}, {"a": [1 - 1e-9, 1e-9], "b": [[0.7, 0.3], [0.1, 0.9]]})
    monkeypatch.setattr("unimarg.query.EXACT_ENTRIES", -1)
    assert next_questions(net, {}, ["b"])["gain"][0] == pytest.approx(0, abs=1e-6)


@pytest.fixture(scope="module")
def asia():
    return um.train(ASIA, "default", "50 steps", hidden=(64,), batch=256, heads=("marginal",), student=0, seed=0)


@pytest.mark.parametrize("evidence", [{}, {"dysp": "yes"}, {"dysp": "yes", "asia": "no", "xray": {"yes": 0.9, "no": 0.2}}])
def test_a_model_gives_the_exact_gain_within_its_error(asia, evidence):
    """Where no probability is off by more than d, an entropy of two states is off by no more than h(d), the binary entropy."""
    exact = next_questions(ASIA, evidence, ["lung", "tub"]).set_index("variable")["gain"]
    found = asia.next_questions(evidence, ["lung", "tub"]).set_index("variable")["gain"]
    worst = 0.0
    for extra in [{}, *({name: k} for name in exact.index for k in (0, 1))]:
        truth, guess = um.exact(ASIA, evidence | extra), asia.query(evidence | extra, method="um")
        worst = max(worst, *(abs(truth[n]["yes"] - guess[n]["yes"]) for n in (*exact.index, "lung", "tub")))
    assert worst < 0.02
    allowed = -worst * np.log(worst) - (1 - worst) * np.log(1 - worst)
    assert set(found.index) == set(exact.index)
    assert (found >= 0).all()
    assert ((found - exact).abs() < 2 * allowed).all()
    assert found.idxmax() == exact.idxmax() == "either"


def test_one_batch_answers_all(asia, monkeypatch):
    calls = []
    one_pass = Passes.marginals
    monkeypatch.setattr(Passes, "marginals", lambda self, known, *rest: calls.append(len(known)) or one_pass(self, known, *rest))
    table = asia.next_questions({"dysp": "yes"}, ["lung"])
    assert calls == [1, 12]  # the evidence itself, then two answers to each of six questions
    assert len(table) == 6


def test_costs_order_by_gain_per_cost():
    free = next_questions(ASIA, {"dysp": "yes"}, ["lung"])
    dear = next_questions(ASIA, {"dysp": "yes"}, ["lung"], costs={"either": 1000, "xray": 2})
    assert list(free["variable"][:2]) == ["either", "xray"]
    assert dear["variable"].iloc[0] == "xray"
    assert dear["gain_per_cost"].is_monotonic_decreasing
    row = dear.set_index("variable").loc["either"]
    assert (row["cost"], row["gain_per_cost"]) == (1000, row["gain"] / 1000)
    assert dear.set_index("variable")["gain"].to_dict() == pytest.approx(free.set_index("variable")["gain"].to_dict())


def test_candidates_are_what_is_asked_and_not_known():
    table = next_questions(ASIA, {"dysp": "yes"}, ["lung"], candidates=["smoke", "dysp", "lung", "smoke"])
    assert list(table["variable"]) == ["lung", "smoke"]
    assert table["gain"].iloc[0] == pytest.approx(table.attrs["entropy"])  # to ask for the target itself answers all
    assert len(next_questions(ASIA, {"dysp": "yes"}, ["lung"], candidates=["dysp"])) == 0
    assert next_questions(ASIA, {"lung": "yes"}, ["lung"])["gain"].max() == 0  # known already


def test_states_that_are_impossible_have_no_weight():
    """either is a logical or: lung = yes leaves it no other state."""
    for source in (next_questions, lambda net, *rest: random_model(net).next_questions(*rest)):
        table = source(ASIA, {"lung": "yes"}, ["xray"]).set_index("variable")
        assert table["gain"]["either"] == pytest.approx(0, abs=1e-9)
        with pytest.raises(um.ImpossibleEvidenceError, match="impossible"):
            source(ASIA, {"lung": "yes", "either": "no"}, ["xray"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"targets": []}, "at least one target"),
        ({"targets": "lung"}, "must be a list of names, not the string 'lung'"),
        ({"targets": ["lunge"]}, "no variable 'lunge'; did you mean 'lung'"),
        ({"candidates": "smoke"}, "candidates must be a list"),
        ({"candidates": ["smok"]}, "did you mean 'smoke'"),
        ({"costs": {"smok": 1}}, "costs: there is no variable 'smok'; did you mean 'smoke'"),
        ({"costs": {"smoke": 0}}, "the cost of asking for 'smoke' must be a number above 0, not 0"),
        ({"costs": {"smoke": float("nan")}}, "must be a number above 0"),
        ({"costs": {"smoke": "much"}}, "must be a number above 0, not 'much'"),
        ({"evidence": {"dysp": "maybe"}}, "'dysp' has no state 'maybe'"),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(um.UnimargError, match=message):
        next_questions(ASIA, **({"evidence": {}, "targets": ["lung"]} | options))
