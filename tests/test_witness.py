"""What a proposal misses: it is weighed where it does not draw."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

import unimarg as um
from models import ASIA, ILL, random_model
from networks import all_states, as_given, enumerate_all, random_network
from unimarg import Network, Variable
from unimarg.conditionals import Query
from unimarg.counter import key_from_seed
from unimarg.estimates import ENOUGH
from unimarg.evidence import Evidence
from unimarg.frame import Frame, frame_of
from unimarg.importance import CHUNK, HOPELESS, MISSES, Draw, Estimator, Limits, Weigh, first_sample, sampler
from unimarg.proposals.hybrid import hybrid, hybrid_by_callable
from unimarg.proposals.independent import independent
from unimarg.proposals.message import message
from unimarg.proposals.sequential import sequential
from unimarg.query import Asked, Options
from unimarg.terminal import trust
from unimarg.witness import weighed_by_walk, witness

NET = random_network(38, 7, most=400)
MODEL = random_model(NET, heads=("marginal", "message"))
EVIDENCE = Evidence({6: 1}, {2: np.array([0.2, 1.0, 0.7][: NET.cards[2]])})
QUERY = Query.make(NET, EVIDENCE, tuple(range(len(NET))), every=True)
SAMPLES = 1 << 16


def beliefs(net: um.Network, misses: float) -> np.ndarray:
    """The exact posteriors, but for the first unobserved node's last state, which has only a little left of its share."""
    u = np.zeros((len(net), int(net.cards.max())))
    for i, p in enumerate(enumerate_all(net, EVIDENCE)[1]):
        u[i, : len(p)] = p
    k = net.cards[0] - 1
    u[0, k] *= misses
    return u / u.sum(axis=1, keepdims=True)


def estimator(frame: Frame, draft, heard: bool = True) -> Estimator:
    given = draft.finish()
    return Estimator(frame, QUERY, given, sampler(frame, given), witness(frame, QUERY, weighed_by_walk(frame, given)) if heard else None)


@pytest.mark.parametrize("structure", [True, False])
def test_a_part_that_is_never_drawn_is_noticed(structure):
    frame = frame_of(NET)
    truth = enumerate_all(NET, EVIDENCE)[1][0][-1]
    assert truth > 0.05
    answers = []
    for heard in (False, True):
        made = estimator(frame, independent(frame, QUERY, beliefs(NET, 1e-7), structure), heard)
        made.run(Limits(SAMPLES), 3)
        answers.append(made.posterior("independent", Limits(), 0.0))
    alone, checked = answers
    assert (alone.status, checked.status) == ("ok", "failed")
    assert alone.probabilities[0][-1] == checked.probabilities[0][-1] == pytest.approx(0, abs=1e-3)
    assert alone.std_errors[0][-1] < truth / 20
    assert checked.std_errors[0][-1] > truth / 5
    assert checked.std_errors[0].max() <= 1
    assert 1 <= checked.ess < HOPELESS
    assert MISSES in checked.message
    assert MISSES not in alone.message
    assert checked.log_evidence_error == math.inf
    assert "log P" not in trust(checked)


def test_a_target_error_that_is_out_of_reach_says_why():
    """A rare cause that the network hardly knows: a large error in place of a small one. Without a target it is as good as it says."""
    net = Network([Variable("a"), Variable("b")], {"b": ["a"]}, {"a": [0.999, 0.001], "b": [[0.5, 0.5], [0.4, 0.6]]})
    frame, query = frame_of(net), Query.make(net, Evidence({1: 1}, {}), (0, 1), every=True)
    given = independent(frame, query, np.array([[1 - 1e-6, 1e-6], [0.5, 0.5]]), structure=False).finish()
    made = Estimator(frame, query, given, None, witness(frame, query, weighed_by_walk(frame, given)))
    made.run(Limits(SAMPLES), 1)
    found = made.posterior("independent", Limits(), 0.0)
    assert (found.status, found.message) == ("ok", "")
    assert found.ess < made.total.ess / 2
    assert found.std_errors[0][1] > 0.001
    status, message = made.status(Limits(target_error=0.0005))
    assert status == "low_ess"
    assert message.startswith("the largest standard error")
    assert message.endswith(MISSES)


def test_witnesses_tell_the_variance_that_enumeration_gives():
    frame = frame_of(NET)
    given = independent(frame, QUERY, beliefs(NET, 0.02)).finish()
    made = Estimator(frame, QUERY, given, None, witness(frame, QUERY, weighed_by_walk(frame, given)))
    made.run(Limits(SAMPLES), 5)
    states = all_states(NET, EVIDENCE)
    log_p = NET.log_probability(states) + np.log(QUERY.likelihood[np.arange(len(NET)), states]).sum(axis=1)
    keep = log_p > -np.inf
    states, log_p = states[keep], log_p[keep]
    log_z = np.logaddexp.reduce(log_p)
    log_w = np.asarray(weighed_by_walk(frame, given)(jnp.asarray(states.T, frame.shape.dtype))[0], np.float64)
    posterior, ratio = np.exp(log_p - log_z), np.exp(log_w - log_z)
    # of a mean over m witnesses
    error = math.sqrt((posterior @ ratio**2) / made.estimates.heard.samples)
    told = made.estimates.heard.w2 * made.estimates.scale * made.total.samples * math.exp(2 * (made.total.log_evidence - log_z))
    assert abs(told - posterior @ ratio) < 4.5 * error
    k = NET.cards[0] - 1
    f = states[:, 0] == k
    variance = posterior @ (ratio * (f - posterior @ f) ** 2) / made.total.samples
    mean = np.zeros_like(made.estimates.heard.centre)
    mean[0, k] = posterior @ f
    found = made.estimates.told_of(mean)[0, k] * math.exp(2 * (made.total.log_evidence - log_z))
    assert found == pytest.approx(variance, rel=4.5 * error / (posterior @ ratio) + 0.05)
    of_evidence = posterior @ ratio - 1
    assert made.estimates.heard.variance(log_z) == pytest.approx(of_evidence, rel=4.5 * error / of_evidence)


def test_a_rare_cause_that_is_never_drawn_is_in_every_error():
    """Nets leave hardly any variance of what is drawn: errors were off by 6 (c), 12 (the joint) and 331 times (log P(e))."""
    variables = [Variable(name) for name in "abcd"]
    tables = {"a": [1 - 3e-5, 3e-5], "b": [[0.99, 0.01], [0, 1]], "c": [[0.5, 0.5], [0.1, 0.9]], "d": [[0.5, 0.5], [0.45, 0.55]]}
    net = Network(variables, {"b": ["a"], "c": ["a"], "d": ["c"]}, tables)
    given = {"b": "yes", "d": "yes"}
    right, together = um.exact(net, given), um.joint(net, given, ["a", "c"], method="exact")
    for seed in range(3):
        found = um.infer(net, given, method="prior", seed=seed)
        assert found["a"]["yes"] == 0
        assert abs(found["c"]["yes"] - right["c"]["yes"]) < 3 * found.error("c")["yes"]
        assert abs(found.log_evidence - right.log_evidence) < 3 * found.log_evidence_error < 0.05
        joint = um.joint(net, given, ["a", "c"], method="prior", seed=seed)
        assert (abs(joint.probability - together.probability) < 3 * joint.std_error).all()


def test_samples_of_no_weight_do_not_hide_what_is_missed():
    """Half of the samples are impossible: their variance was set against what witnesses tell, and log P(e) was off by 60 errors."""
    tables = {"a": [0.5, 0.5], "c": [1 - 6e-5, 6e-5], "e": [[[1, 0], [0, 1]], [[0.98, 0.02], [0, 1]]]}
    net = Network([Variable(name) for name in "ace"], {"e": ["a", "c"]}, tables)
    right = um.exact(net, {"e": "yes"})
    for seed in range(6):
        found = um.infer(net, {"e": "yes"}, method="prior", samples=20480, target_error=None, seed=seed)
        assert found.status == "ok"
        assert abs(found.log_evidence - right.log_evidence) < 4.5 * found.log_evidence_error < 0.05


def test_where_nothing_is_missed_they_change_nothing():
    frame = frame_of(NET)
    for draft in (hybrid(frame, QUERY, beliefs(NET, 1.0), 0.3), message(frame, QUERY, np.zeros((len(NET), int(NET.cards.max()))))):
        one, other = (estimator(frame, draft, heard) for heard in (False, True))
        for made in (one, other):
            made.run(Limits(SAMPLES), 1)
        assert other.estimates.heard.samples == SAMPLES // 4
        assert other.ess == one.ess > ENOUGH
        p, q = one.posterior("", Limits(), 0.0), other.posterior("", Limits(), 0.0)
        common = np.concatenate(p.probabilities) > 0.01
        np.testing.assert_array_equal(np.concatenate(p.std_errors)[common], np.concatenate(q.std_errors)[common])
        np.testing.assert_array_equal(np.concatenate(p.probabilities), np.concatenate(q.probabilities))


def pairs() -> dict[str, tuple[Draw, Weigh]]:
    frame = frame_of(NET)
    u = beliefs(NET, 0.5)
    given = independent(frame, QUERY, u).finish()
    student = random_model(NET, preset="default", hidden=(16,), student=16)
    return {
        "walk": (sampler(frame, given), weighed_by_walk(frame, given)),
        "callable": hybrid_by_callable(frame, QUERY, u, lambda s, e: 0.3 + 0.4 * (s[:, 0] == 0), {}),
        "sequential": sequential(MODEL, QUERY),
        "to the letter": sequential(MODEL, QUERY, structure=False),
        "student": sequential(student, QUERY),
    }


@pytest.mark.parametrize("name", list(pairs()))
def test_what_was_drawn_is_weighed_as_it_was(name):
    draw, weigh = pairs()[name]
    states, log_w, _ = draw(key_from_seed(4), first_sample(0), 512)
    np.testing.assert_allclose(np.asarray(weigh(states)[0]), np.asarray(log_w), atol=1e-5)


def test_a_state_that_cannot_be_drawn_at_all():
    """Weights without bounds leave errors that are numbers, and a status that says it."""
    frame = frame_of(NET)
    given = independent(frame, QUERY, beliefs(NET, 1.0)).finish()

    def weigh(states):
        log_w, origin = weighed_by_walk(frame, given)(states)
        return jnp.where(states[0] == NET.cards[0] - 1, jnp.inf, log_w), origin

    made = Estimator(frame, QUERY, given, None, witness(frame, QUERY, weigh))
    made.run(Limits(CHUNK))
    found = made.posterior("independent", Limits(), 0.0)
    assert found.status == "failed"
    assert found.ess == 1
    assert np.isfinite(np.concatenate(found.std_errors)).all()


def test_the_same_answer_for_any_chunk_and_no_more_witnesses_than_are_due():
    model = random_model(ASIA, heads=("marginal", "message"))
    found = []
    for chunk in (CHUNK, 3000, 1 << 13):
        made = Asked(ASIA, model, ILL, None, Options(structure=False)).estimator("independent")
        made.run(Limits(1 << 15), 5, chunk)
        assert made.estimates.heard.samples == 1 << 13
        found.append((made.ess, made.estimates.moments()[1]))
    for ess, errors in found[1:]:
        assert ess == pytest.approx(found[0][0], rel=1e-4)
        np.testing.assert_allclose(errors, found[0][1], rtol=1e-3)


def test_out_of_time_some_are_heard_all_the_same():
    model = random_model(ASIA, heads=("marginal", "message"))
    made = Asked(ASIA, model, ILL, None, Options()).estimator("message")
    made.run(Limits(1 << 30, seconds=0.0), 5)
    assert made.total.samples < 1 << 20
    assert made.estimates.heard.samples >= CHUNK


def test_every_proposal_but_those_of_lookahead_is_checked():
    model = random_model(ASIA, heads=("marginal", "message"))
    for method, heard in {"lookahead": False, "adaptive": False}.items() | dict.fromkeys(
        ("prior", "independent", "hybrid", "message", "sequential"), True
    ).items():
        made = Asked(ASIA, model, ILL, None, Options()).estimator(method)
        assert (made.witness is not None) == heard


def test_samples_and_joint_marginals_are_checked_too(monkeypatch):
    names, evidence = NET.names, as_given(NET, EVIDENCE)
    monkeypatch.setattr(Asked, "_marginals", lambda self: beliefs(NET, 1e-7))
    table = MODEL.joint(evidence, [names[0], names[1]], method="independent", samples=SAMPLES, target_error=None)
    assert table.attrs["status"] == "failed"
    assert table.attrs["ess"] < HOPELESS
    rows, _ = MODEL.sample_posterior(evidence, 1000, method="independent", weighted=True)
    assert rows.attrs["status"] == "low_ess"
    assert MISSES in rows.attrs["message"]
    with pytest.raises(um.SamplingError, match=MISSES):
        MODEL.sample_posterior(evidence, 1000, method="independent", samples=SAMPLES)


def test_a_query_of_few_targets_is_weighed_rightly():
    """It draws less; the witnesses have all that the proposal draws."""
    model = random_model(ASIA, heads=("marginal", "message"))
    exact = um.exact(ASIA, ILL, ["lung"])
    for method in ("independent", "hybrid", "message", "sequential"):
        for structure in (True, False):
            made = Asked(ASIA, model, ILL, ["lung"], Options(structure=structure)).estimator(method)
            made.run(Limits(1 << 15), 1)
            assert 1 / (made.estimates.heard.w2 * made.estimates.scale) == pytest.approx(made.total.ess, rel=0.2)
            found = made.posterior(method, Limits(), 0.0)
            assert abs(found["lung"]["yes"] - exact["lung"]["yes"]) < 4.5 * found.error("lung")["yes"]


RARE_CAUSE = Network(
    [Variable("cause"), Variable("finding"), Variable("leaf")],
    {"finding": ["cause"], "leaf": ["cause"]},
    {"cause": [1 - 1e-6, 1e-6], "finding": [[0.999, 0.001], [0.0, 1.0]], "leaf": [[0.5, 0.5], [0.1, 0.9]]},
)


def test_a_rare_cause_that_the_prior_does_not_draw_is_noticed():
    exact = um.exact(RARE_CAUSE, {"finding": "yes"})["cause"]["yes"]
    found = um.infer(RARE_CAUSE, {"finding": "yes"}, method="prior", samples=20480, target_error=None)
    assert found["cause"]["yes"] == 0
    assert found.error("cause")["yes"] > exact / 2
    assert um.infer(RARE_CAUSE, {"cause": "no"}, method="prior", samples=20480, target_error=None).ess == pytest.approx(20480)


def test_witnesses_of_joint_marginals_draw_every_target():
    """Also one that is nobody's parent and has no finding below, for which a mean would do."""
    asked = {"evidence": {"finding": "yes"}, "names": ["cause", "leaf"], "method": "prior", "samples": 20480, "target_error": None}
    rare = um.joint(RARE_CAUSE, **asked).set_index(["cause", "leaf"])
    exact = um.joint(RARE_CAUSE, {"finding": "yes"}, ["cause", "leaf"], method="exact").set_index(["cause", "leaf"])
    assert (rare.std_error > (rare.probability - exact.probability).abs() / 3).all()
    net = Network(
        RARE_CAUSE.variables,
        {"finding": ["cause"], "leaf": ["cause"]},
        {"cause": [0.5, 0.5], "finding": [[0.6, 0.4], [0.4, 0.6]], "leaf": [[0.01, 0.99], [0.02, 0.98]]},
    )
    usual = um.joint(net, **asked)
    counted = np.sqrt(usual.probability * (1 - usual.probability) / usual.attrs["ess"])
    exact = um.joint(net, {"finding": "yes"}, ["cause", "leaf"], method="exact")
    assert (usual.std_error < 1.3 * counted).all()
    assert ((usual.probability - exact.probability).abs() < 4.5 * usual.std_error).all()
