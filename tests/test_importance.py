"""Estimates, their errors, when to stop, and how far to trust: against exact answers."""

import math

import jax
import numpy as np
import pytest
from scipy.stats import genpareto, kstest

import unimarg as um
from models import ASIA, ILL, METHODS, random_model
from unimarg import Network, Posterior, Variable
from unimarg.conditionals import BY_FORMULA, BY_ROW, Query
from unimarg.counter import key_from_seed
from unimarg.diagnostics import k_hat, tail_size
from unimarg.estimates import ENOUGH
from unimarg.evidence import parse_evidence
from unimarg.frame import frame_of
from unimarg.importance import CHUNK, FIRST_CHECK, Estimator, Limits, first_sample, sampler
from unimarg.nets import NET
from unimarg.proposals.lookahead import lookahead
from unimarg.proposals.prior import prior
from unimarg.sums import SUMS
from unimarg.walk import walk
from unimarg.weighted import Weighted, spreads_of

ALARM = um.example("alarm")
MODEL = random_model(ASIA, heads=("marginal", "message"))
ALARMING = {"HRBP": 2, "EXPCO2": 0, "BP": 0, "PRESS": [0.1, 0.2, 0.9, 0.4]}


def scores(found: Posterior, exact: Posterior) -> np.ndarray:
    """z of every state where ESS p (1 - p) >= 10; an error of 0 is for what is known, to rounding."""
    out = []
    for p, q, e in zip(found.probabilities, exact.probabilities, found.std_errors, strict=True):
        np.testing.assert_allclose(p[e == 0], q[e == 0], atol=1e-6)
        often = (found.ess * q * (1 - q) >= 10) & (e > 0)
        out.append((p[often] - q[often]) / e[often])
    return np.concatenate(out)


@pytest.mark.parametrize("structure", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_marginals_and_evidence_agree_with_exact(method, structure):
    for evidence in ({}, ILL, {"either": "yes"}, {"asia": "yes", "bronc": [1.0, 0.2], "tub": "no"}):
        exact = um.exact(ASIA, evidence)
        found = MODEL.query(evidence, method=method, samples=1 << 15, target_error=None, structure=structure, seed=3)
        assert found.status == "ok"
        assert np.abs(scores(found, exact)).max() < 4.5
        assert abs(found.log_evidence - exact.log_evidence) <= 4.5 * found.log_evidence_error + 1e-5
        for p in found.probabilities:
            assert p.sum() == pytest.approx(1)


@pytest.mark.parametrize("method", ["prior", "lookahead", "adaptive"])
def test_alarm(method):
    for evidence in ({"CVP": 2}, ALARMING):
        found = um.infer(ALARM, evidence, method=method, samples=1 << 16, target_error=None)
        assert np.abs(scores(found, um.exact(ALARM, evidence))).max() < 4.5
        assert found.status == ("low_ess" if found.ess < ENOUGH else "ok")


def test_scores_are_standard_normal_and_intervals_cover():
    exact = um.exact(ASIA, ILL)
    marginals, evidence, every = [], [], []
    query = Query.make(ASIA, parse_evidence(ASIA, ILL), tuple(range(len(ASIA))))
    given = prior(frame_of(ASIA), query).finish()
    for seed in range(200):
        estimator = Estimator(frame_of(ASIA), query, given)
        estimator.run(Limits(1 << 14), seed)
        found = estimator.posterior("prior", Limits(), 0.0)
        at = found._position("lung")
        marginals.append((found.probabilities[at][0] - exact.probabilities[at][0]) / found.std_errors[at][0])
        evidence.append((found.log_evidence - exact.log_evidence) / found.log_evidence_error)
        every.append(np.abs(scores(found, exact)) < 1.96)
    assert kstest(marginals, "norm").pvalue > 1e-3
    assert kstest(evidence, "norm").pvalue > 1e-3
    assert 0.93 < np.mean(np.concatenate(every)) < 0.97


def test_the_same_seed_gives_the_same_answer_for_any_chunk():
    query = Query.make(ASIA, parse_evidence(ASIA, ILL), tuple(range(len(ASIA))))
    given = prior(frame_of(ASIA), query).finish()
    answers = []
    for chunk in (CHUNK, 3000, 1 << 13):
        estimator = Estimator(frame_of(ASIA), query, given)
        estimator.run(Limits(20_000), 5, chunk)
        answers.append(estimator.posterior("prior", Limits(), 0.0))
    one = answers[0]
    for other in answers[1:]:
        assert (other.samples, other.k_hat) == (one.samples, pytest.approx(one.k_hat, abs=1e-5))
        np.testing.assert_allclose(np.concatenate(other.probabilities), np.concatenate(one.probabilities), atol=1e-6)
        np.testing.assert_allclose(np.concatenate(other.std_errors), np.concatenate(one.std_errors), rtol=1e-4)
        assert (other.ess, other.log_evidence) == (pytest.approx(one.ess, rel=1e-5), pytest.approx(one.log_evidence, abs=1e-5))
        assert other.log_evidence_error == pytest.approx(one.log_evidence_error, rel=1e-4)
    again = um.infer(ASIA, ILL, method="prior", samples=20_000, seed=5)
    np.testing.assert_array_equal(np.concatenate(again.probabilities), np.concatenate(one.probabilities))
    assert um.infer(ASIA, ILL, method="prior", samples=20_000, seed=6).log_evidence != one.log_evidence


@pytest.mark.parametrize("method", METHODS)
def test_seeds_of_numpy(method):
    beta = "fit" if method == "hybrid" else None
    found = [MODEL.query(ILL, method=method, seed=seed, samples=CHUNK, beta=beta) for seed in (5, np.int32(5))]
    np.testing.assert_array_equal(*(np.concatenate(f.probabilities) for f in found))


@pytest.mark.parametrize("target", [0.005, 0.003])
def test_where_a_run_stops_does_not_depend_on_the_chunks(target):
    query = Query.make(ASIA, parse_evidence(ASIA, ILL), tuple(range(len(ASIA))))
    given = prior(frame_of(ASIA), query).finish()
    counts = set()
    for chunk in (1 << 12, 3000, 1 << 14):
        estimator = Estimator(frame_of(ASIA), query, given)
        estimator.run(Limits(1 << 20, target_error=target), 5, chunk)
        assert estimator.estimates.largest_error() <= target
        counts.add(estimator.total.samples)
    assert len(counts) == 1


@pytest.mark.parametrize("nets", [False, True])
def test_an_answer_without_sampling_has_the_errors_of_the_definition(nets):
    """By hand: mean sum w f / sum w, error sqrt(sum w^2 (f - mean)^2) / sum w; then less the fitted share of f - q.

    In nets the terms of these sums are first added up in each, and the error is a little larger, as there are few of them.
    """
    query = Query.make(ASIA, parse_evidence(ASIA, ILL), tuple(range(len(ASIA))))
    given = prior(frame_of(ASIA), query).finish()
    states, log_w, origin = walk(frame_of(ASIA).shape, given, key_from_seed(0), first_sample(0), 1 << 16, nets=nets)
    lung, smoke = (np.asarray(states)[ASIA.index[name]] for name in ("lung", "smoke"))
    w, f, n = np.exp(np.asarray(log_w, np.float64)), lung == 0, 1 << 16
    q = ASIA.mechanisms[ASIA.index["lung"]].expand()[smoke, 0]
    np.testing.assert_allclose(np.asarray(given.prob)[np.asarray(origin.rows)[ASIA.index["lung"]]], q, rtol=1e-6)
    estimator = Estimator(frame_of(ASIA), query, given, sampler(frame_of(ASIA), given, nets=nets), nets=nets)
    estimator.run(Limits(1 << 16))
    found = estimator.posterior("prior", Limits(), 0.0)
    mean = w @ f / w.sum()
    first = ASIA.variables[ASIA.index["lung"]].states[0]
    terms = n // NET if nets else n
    factor = terms / 9 * np.expm1(9 / (terms - 1)) if nets else 1
    part, control = (a.reshape(terms, -1).sum(axis=1) for a in (n * w / w.sum() * (f - mean), f - q))
    share = part @ control / (control @ control)
    assert abs(share) > 0.1
    better = mean - share * control.sum() / n
    left = (n * w / w.sum() * (f - better)).reshape(terms, -1).sum(axis=1) - share * control
    assert left.mean() == pytest.approx(0, abs=1e-12)
    assert found["lung"][first] == pytest.approx(better, rel=1e-5)
    assert found.error("lung")[first] == pytest.approx(np.sqrt(factor * (left**2).sum()) / n, rel=1e-4)
    assert found.error("lung")[first] < np.sqrt((w**2) @ (f - mean) ** 2) / w.sum()
    assert found.ess == pytest.approx(w.sum() ** 2 / (w**2).sum(), rel=1e-5)
    assert found.log_evidence == pytest.approx(np.log(w.mean()), abs=1e-5)


def two_hidden_noisy_max_nodes() -> tuple[Network, dict[str, str]]:
    """Too large for tables, so that they and their parents are drawn by formula."""
    rng = np.random.default_rng(3)
    roots = [Variable(f"r{i}", ("no", "yes") if i else ("low", "middle", "high")) for i in range(9)]
    hidden = [Variable("d0"), Variable("d1", ("none", "mild", "severe"))]
    noisy = {
        d.name: um.NoisyMax(
            rng.dirichlet([5.0] + [1.0] * (d.card - 1)),
            [np.vstack([np.eye(d.card)[0], rng.dirichlet(np.ones(d.card), size=r.card - 1)]) for r in roots],
        )
        for d in hidden
    }
    tables = {r.name: rng.dirichlet(np.ones(r.card)) for r in roots} | {"s": rng.dirichlet(np.ones(2), size=(2, 3))}
    parents = {d.name: [r.name for r in roots] for d in hidden} | {"s": ["d0", "d1"]}
    return Network([*roots, *hidden, Variable("s")], parents, tables | noisy), {"s": "yes"}


def test_what_a_state_was_drawn_from_makes_its_weight():
    net, evidence = two_hidden_noisy_max_nodes()
    frame, query = frame_of(net), Query.make(net, parse_evidence(net, evidence), tuple(range(len(net))))
    given = lookahead(frame, query).finish()
    states, log_w, origin = (jax.tree.map(np.asarray, a) for a in walk(frame.shape, given, key_from_seed(1), first_sample(0), 2000))
    node, kind = (np.asarray(a)[: int(given.estimated)].tolist() for a in (given.means.node, given.means.kind))
    kind = dict(zip(node, kind, strict=True))
    expected, by_formula = np.zeros(2000), 0
    for i, m in enumerate(net.mechanisms):
        expected += np.log(m.rows(states[list(net.parents[i])].T)[np.arange(2000), states[i]])
        if query.known[i]:
            continue
        if kind[i] == BY_ROW:
            q = np.asarray(given.prob)[origin.rows[i] + states[i]]
        else:
            assert kind[i] == BY_FORMULA
            others = origin.formula[slice(*frame.formula[i])]
            q = np.choose(states[i], [1 - others.sum(axis=0), *others])
            by_formula += 1
        expected -= np.log(q)
    assert by_formula == 11
    np.testing.assert_allclose(log_w, expected, atol=2e-4)


def test_control_variates_of_formulas_lower_the_error_and_the_reported_one():
    net, evidence = two_hidden_noisy_max_nodes()
    frame, query = frame_of(net), Query.make(net, parse_evidence(net, evidence), tuple(range(len(net))))
    given, exact = lookahead(frame, query).finish(), um.exact(net, evidence)
    squares, z = {True: [], False: []}, []
    for seed in range(30):
        for control in (True, False):
            estimator = Estimator(frame, query, given, sampler(frame, given, control))
            estimator.run(Limits(1 << 14), seed)
            found = estimator.posterior("lookahead", Limits(), 0.0)
            squares[control].append(np.square(np.concatenate(found.probabilities) - np.concatenate(exact.probabilities)))
            if control:
                z.append(scores(found, exact))
    assert np.mean(squares[True]) < 0.5 * np.mean(squares[False])
    assert np.square(z).mean() == pytest.approx(1, abs=0.3)


def test_a_context_never_drawn_leaves_an_error():
    """A mean of probabilities that were all the same: as much as the two heaviest samples could have made of it."""
    tables = {"cause": [1 - 1e-4, 1e-4], "effect": [[0.7, 0.3], [0.1, 0.9]]}
    rare = Network([Variable("cause"), Variable("effect")], {"effect": ["cause"]}, tables)
    found = [um.infer(rare, {}, method="prior", samples=4096, target_error=None, seed=seed) for seed in range(6)]
    errors = np.array([f.error("effect")["yes"] for f in found])
    assert (errors >= 2 * 0.6 / 4096 * (1 - 1e-6)).all()
    never = np.isclose([f["effect"]["yes"] for f in found], 0.3, atol=1e-6)
    assert never.any()
    np.testing.assert_allclose(errors[never], 2 * 0.6 / 4096, rtol=1e-5)


# --- when to stop


def test_samples_target_error_and_seconds():
    seen = []
    found = um.infer(ASIA, ILL, method="prior", samples=10_000, target_error=None, progress=lambda n, s: seen.append(n))
    assert found.samples == 10_000
    assert seen[-1] == 10_000
    assert seen == sorted(seen)
    for target in (0.01, 0.003):
        found = um.infer(ASIA, ILL, method="prior", target_error=target)
        largest = max(e.max() for e in found.std_errors)
        assert (found.status, largest <= target) == ("ok", True)
        assert found.samples % (FIRST_CHECK // 2) == 0
        assert found.samples == FIRST_CHECK or largest > 0.7 * target  # no more than twice what was needed
    assert um.infer(ASIA, ILL, method="prior", samples=1 << 30, target_error=None, seconds=0.05).samples < 1 << 24
    little = um.infer(ASIA, ILL, method="prior", samples=8192, target_error=1e-4)
    assert little.status == "low_ess"
    assert "the target was 0.0001" in little.message


def test_statuses():
    rare = Network(
        [Variable("cause"), Variable("sign"), Variable("other")],
        {"sign": ["cause"], "other": ["cause"]},
        {"cause": [1 - 1e-4, 1e-4], "sign": [[1 - 1e-5, 1e-5], [0.1, 0.9]], "other": [[0.7, 0.3], [0.2, 0.8]]},
    )
    failed = um.infer(rare, {"sign": "yes"}, method="prior", samples=8192, target_error=None)
    assert failed.status in ("failed", "low_ess")
    low = um.infer(rare, {"sign": "yes"}, method="prior", samples=1 << 20, target_error=None)
    assert low.status == "low_ess"
    assert "worth" in low.message or "k-hat" in low.message
    assert um.infer(rare, {"sign": "yes"}, method="lookahead").status == "ok"
    assert um.infer(rare, {"sign": "yes"}, method="prior", samples=8).status == "failed"


def test_k_hat_finds_the_shape_of_pareto_weights():
    for shape in (0.2, 0.5, 0.9):
        found = [k_hat(np.log1p(genpareto.rvs(shape, size=40_000, random_state=seed)), 40_000) for seed in range(20)]
        assert np.mean(found) == pytest.approx(shape, abs=0.05)
    assert k_hat(np.zeros(100), 100) == -math.inf
    assert k_hat(np.zeros(3), 3) == math.inf  # too few to say
    assert k_hat(np.full(100, -np.inf), 100) == math.inf


def test_the_tail_that_is_kept_is_that_of_all_weights():
    rng = np.random.default_rng(0)
    log_w = rng.normal(size=50_000)
    total = Weighted(1, 2)
    for part in np.split(log_w, 10):
        total.add(
            float(part.max()), np.exp(part - part.max()).sum(), spreads_of(np.exp(part - part.max())), np.zeros((1, 2, SUMS)), part, 5000
        )
    assert len(total.largest) == tail_size(50_000) + 1
    np.testing.assert_array_equal(np.sort(total.largest), np.sort(log_w)[-len(total.largest) :])
    assert total.ess == pytest.approx(np.exp(log_w).sum() ** 2 / np.exp(2 * log_w).sum())


@pytest.mark.parametrize("weights", ["equal", "few heavy", "heavy tail"])
def test_a_state_in_no_sample_may_have_been_missed_by_a_few_heavy_ones(weights):
    query = Query.make(ASIA, parse_evidence(ASIA, ILL), tuple(range(len(ASIA))))
    estimator = Estimator(frame_of(ASIA), query, prior(frame_of(ASIA), query).finish())
    drawn = {"equal": np.ones(20_000), "few heavy": np.concatenate([np.full(10_000, 0.02), np.ones(5)])}
    w = drawn.get(weights, np.exp(np.random.default_rng(0).exponential(0.9, 20_000)))  # Pareto weights of shape 0.9
    w = w / w.max()
    estimator.total.add(0.0, w.sum(), spreads_of(w), np.zeros((len(ASIA), 2, SUMS)), np.log(w), len(w))
    mean, error = estimator.estimates.moments()
    assert mean[ASIA.index["lung"], 0] == 0
    assert error[ASIA.index["lung"], 0] == pytest.approx(2 * np.sort(w)[-10:].mean() / w.sum())


def test_intervals_of_a_rare_state_cover_although_few_samples_show_it():
    """Some four samples of 10,240 do, each, as those of the usual cause, twenty times as heavy as those of none."""
    p = {"cause": [0.9796, 0.02, 0.0004], "finding": [[0.95, 0.05], [0.0, 1.0], [0.0, 1.0]]}
    net = Network([Variable("cause", ("none", "usual", "rare")), Variable("finding")], {"finding": ["cause"]}, p)
    frame, query = frame_of(net), Query.make(net, parse_evidence(net, {"finding": "yes"}), (0,))
    given, exact, z = prior(frame, query).finish(), um.exact(net, {"finding": "yes"})["cause"]["rare"], []
    for seed in range(200):
        estimator = Estimator(frame, query, given, sampler(frame, given, control=False))  # its own samples alone
        estimator.run(Limits(samples=10240), seed)
        assert estimator.ess * exact * (1 - exact) > 10
        mean, error = estimator.estimates.moments()
        z.append((mean[0, 2] - exact) / error[0, 2])
    assert np.mean(np.abs(z) < 1.96) > 0.93
    assert np.abs(z).max() < 4.5


def test_what_no_sample_showed_has_an_error():
    net = Network(
        [Variable("x"), Variable("y"), Variable("z")], {"y": ["x"]}, {"x": [1 - 1e-7, 1e-7], "y": [[0.5, 0.5], [0.4, 0.6]], "z": [0.5, 0.5]}
    )
    found = um.infer(net, {"y": "yes"}, method="prior", samples=8192, target_error=None)
    assert found["x"]["yes"] == 0
    assert found.error("x")["yes"] == pytest.approx(2 / found.ess)


@pytest.mark.parametrize("method", ["prior", "lookahead"])
def test_nodes_of_a_single_state(method):
    single, pair = ("x",), ("no", "yes")
    roots = [Variable(f"r{i}", pair) for i in range(9)]
    names = [r.name for r in roots]
    net = Network(
        [Variable("first", pair), *roots, Variable("one", single), Variable("leaf", pair), Variable("seen", pair)],
        {"one": names, "leaf": ["one", "first"], "seen": ["r0"]},
        {
            "first": [0.0, 1.0],
            **{name: [0.7, 0.3] for name in names},
            "one": um.NoisyMax([1.0], [[[1.0], [1.0]]] * 9),
            "leaf": [[[0.6, 0.4], [0.2, 0.8]]],
            "seen": [[0.9, 0.1], [0.3, 0.7]],
        },
    )
    found = um.infer(net, {"seen": "yes"}, method=method, samples=1 << 13)
    exact = um.exact(net, {"seen": "yes"})
    assert found["one"] == {"x": 1.0}
    assert found["leaf"]["yes"] == pytest.approx(0.8, abs=1e-6)
    assert abs(found["r0"]["yes"] - exact["r0"]["yes"]) < 5 * found.error("r0")["yes"]
    alone = Network([Variable("a", single), Variable("b", single)], {"b": ["a"]}, {"a": [1.0], "b": [[1.0]]})
    assert um.infer(alone, {"b": "x"}, method=method)["a"] == {"x": 1.0}
