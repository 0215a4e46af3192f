"""The joint posterior: samples, combinations of a few variables, the most probable state; against enumeration."""

import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings

import unimarg as um
from models import ASIA, random_model
from networks import all_states, as_given, random_evidence, random_network, seeds
from unimarg import joint_marginals
from unimarg.conditionals import Query
from unimarg.evidence import Evidence


def enumerated(net: um.Network, evidence: Evidence) -> tuple[np.ndarray, np.ndarray]:
    """Every joint state and log P(x) l(x)."""
    states = all_states(net, evidence)
    log = net.log_probability(states)
    with np.errstate(divide="ignore"):
        for i, likelihood in evidence.virtual.items():
            log = log + np.log(likelihood)[states[:, i]]
    return states, log


def joint_of(net: um.Network, evidence: Evidence, names: list[str]) -> np.ndarray:
    """P(names | e) by enumeration, in the order of ``um.joint``."""
    states, log = enumerated(net, evidence)
    nodes = [net.index[n] for n in names]
    cards = [int(net.cards[i]) for i in nodes]
    p = np.exp(log - log.max())
    codes = np.ravel_multi_index(tuple(states[:, nodes].T), cards)
    return np.bincount(codes, p, minlength=int(np.prod(cards))) / p.sum()


def possible_case(seed: int) -> tuple[um.Network, Evidence]:
    rng = np.random.default_rng(seed)
    net = random_network(seed, 7, most=2000)
    while True:
        evidence = random_evidence(rng, net, 0.2, 0.15)
        if enumerated(net, evidence)[1].max() > -np.inf:
            return net, evidence


# --- samples


@pytest.mark.parametrize("method", ["auto", "prior", "lookahead", "adaptive"])
def test_resampled_rows_have_the_joint_distribution(method):
    """Every pair of asia's variables that matters, with standard errors of independent samples."""
    evidence = {"dysp": "yes", "xray": [0.2, 0.7]}
    frame = um.sample_posterior(ASIA, evidence, 20_000, method=method, seed=3)
    assert list(frame.columns) == list(ASIA.names)
    assert (frame["dysp"] == "yes").all()
    assert (frame.attrs["status"], frame.attrs["ess"] >= 19_999) == ("ok", True)
    for names in (["lung", "bronc"], ["smoke", "either"], ["asia", "tub"]):
        truth = um.joint(ASIA, evidence, names, method="exact")
        counts = frame.groupby(names).size().reindex(pd.MultiIndex.from_frame(truth[names]), fill_value=0).to_numpy() / len(frame)
        error = np.sqrt(truth["probability"] * (1 - truth["probability"]) / len(frame)).to_numpy()
        # resampling adds to the spread of independent draws: ESS counts it
        assert (np.abs(counts - truth["probability"].to_numpy()) <= 4 * np.sqrt(2) * error + 1e-12).all(), names


def test_all_nodes_are_drawn_and_all_rows_are_possible():
    for seed in range(4):
        net, evidence = possible_case(seed)
        frame = um.sample_posterior(net, as_given(net, evidence), 300, seed=seed)
        states = np.array([[v.states.index(s) for v, s in zip(net.variables, row, strict=True)] for row in frame.to_numpy()])
        assert (net.log_probability(states) > -np.inf).all()
        assert all((states[:, i] == k).all() for i, k in evidence.hard.items())
        assert all((likelihood[states[:, i]] > 0).all() for i, likelihood in evidence.virtual.items())
        for i, v in enumerate(net.variables):  # nothing is constant that should vary, leaves without findings included
            truth = np.clip(joint_of(net, evidence, [v.name]), 0, 1)
            found = np.bincount(states[:, i], minlength=v.card) / len(states)
            assert (np.abs(found - truth) <= 5 * np.sqrt(2 * truth * (1 - truth) / 300) + 0.01).all(), (seed, v.name)


def test_weighted_samples_give_the_joint_and_log_evidence():
    evidence = {"dysp": "yes", "xray": "yes"}
    frame, weights = um.sample_posterior(ASIA, evidence, 20_000, method="prior", weighted=True, seed=1)
    assert weights.sum() == pytest.approx(1)
    truth = um.joint(ASIA, evidence, ["lung", "bronc"], method="exact")
    for _, row in truth.iterrows():
        hit = ((frame["lung"] == row["lung"]) & (frame["bronc"] == row["bronc"])).to_numpy()
        mean = weights[hit].sum()
        error = np.sqrt((weights**2 * (hit - mean) ** 2).sum())
        assert abs(mean - row["probability"]) < 4 * error
    assert frame.attrs["log_evidence"] == pytest.approx(um.exact(ASIA, evidence).log_evidence, abs=0.1)


def test_raw_chain_samples_are_those_of_the_network_itself():
    """The paper's approximate joint, without weights: its first node is drawn from UM(e)."""
    model = random_model(ASIA, preset="paper")
    raw = model.sample_posterior({"dysp": "yes"}, 4000, method="sequential", weighted=False, structure=False, seed=2)
    frame, weights = model.sample_posterior({"dysp": "yes"}, 4000, method="sequential", weighted=True, structure=False, seed=2)
    pd.testing.assert_frame_equal(raw, frame)
    assert weights.std() > 0
    first = model.query({"dysp": "yes"}, method="um")[ASIA.names[0]]
    share = (raw[ASIA.names[0]] == ASIA.variables[0].states[1]).mean()
    p = first[ASIA.variables[0].states[1]]
    assert abs(share - p) < 4 * np.sqrt(p * (1 - p) / 4000)


def test_same_seed_same_rows():
    one, two, other = (um.sample_posterior(ASIA, {"dysp": "yes"}, 50, seed=s) for s in (4, 4, 5))
    pd.testing.assert_frame_equal(one, two)
    assert not one.equals(other)


def test_only_the_closure_is_drawn(monkeypatch):
    closures = []
    make = Query.make.__func__

    def noted(*given, **named):
        found = make(Query, *given, **named)
        closures.append(found.closure.tolist())
        return found

    monkeypatch.setattr(Query, "make", noted)
    frame = um.sample_posterior(ASIA, {"tub": "yes"}, 10, targets=["smoke"])
    assert list(frame.columns) == ["smoke"]
    assert {ASIA.names[i] for i in closures[0]} == {"asia", "tub", "smoke"}


NEEDLES = 20


def needles() -> um.Network:
    """Twenty rare causes, each with a finding of its own: likelihood weighting hardly ever meets them."""
    variables = [um.Variable(f"{kind}{i}") for i in range(NEEDLES) for kind in ("cause", "finding")]
    parents = {f"finding{i}": [f"cause{i}"] for i in range(NEEDLES)}
    tables = {f"cause{i}": [0.9, 0.1] for i in range(NEEDLES)} | {f"finding{i}": [[0.999, 0.001], [0.1, 0.9]] for i in range(NEEDLES)}
    return um.Network(variables, parents, tables)


def test_too_few_effective_draws_are_never_silent():
    net = needles()
    evidence = {f"finding{i}": "yes" for i in range(NEEDLES)}
    with pytest.raises(um.SamplingError, match="are worth") as e:
        um.sample_posterior(net, evidence, 100, method="prior", samples=20_000)
    assert e.value.ess < 400
    assert e.value.samples == 20_000
    frame, _ = um.sample_posterior(net, evidence, 5_000, method="prior", weighted=True)
    assert frame.attrs["status"] == "low_ess"
    with pytest.warns(UserWarning, match="rows repeat"):
        frame = um.sample_posterior(ASIA, {"dysp": "yes"}, 16_000, method="prior", samples=1 << 14, targets=["lung"])
    assert frame.attrs["status"] == "low_ess"


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"target_error": 0.1}, "no target_error"),
        ({"method": "exact"}, "sampling method"),
        ({"method": "um"}, "sampling method"),
        ({"method": "auto", "weighted": False}, "name it"),
        ({"weighted": "yes"}, "weighted must be"),
        ({"n": -1}, "number of samples"),
        ({"n": 2.5}, "number of samples"),
        ({"samples": 0}, "number of samples"),
        ({"targets": "lung"}, "list of names"),
        ({"targets": ["lungs"]}, "did you mean 'lung'"),
        ({"evidence": {"either": "no", "lung": "yes"}}, "impossible"),
        ({"sample": 3}, "there is no option"),
    ],
)
def test_misuse_of_sample_posterior(options, word):
    with pytest.raises(um.UnimargError, match=word):
        um.sample_posterior(ASIA, **({"evidence": {"dysp": "yes"}, "n": 10} | options))


def test_draws_end_when_time_is_up_or_progress_says_so():
    options: dict = {"n": 10**6, "method": "prior", "samples": 10**9, "targets": ["lung"]}
    told: list[int] = []
    with pytest.warns(UserWarning, match="fewer than the 1000000 samples asked for"):
        stopped = um.sample_posterior(
            ASIA, {"dysp": "yes"}, progress=lambda samples, _: told.append(samples) or samples > 20_000, **options
        )
    assert stopped.attrs["draws"] == told[-1] < 60_000
    assert told == sorted(set(told))  # once for each number of samples
    assert len(stopped) == 10**6
    with pytest.warns(UserWarning, match="fewer than the 1000000 samples asked for"):
        short = um.sample_posterior(ASIA, {"dysp": "yes"}, seconds=0.05, **options)
    assert short.attrs["draws"] < 10**6


def test_no_samples():
    assert um.sample_posterior(ASIA, {"dysp": "yes"}, 0).shape == (0, 8)


# --- combinations


@settings(max_examples=25, deadline=None)
@given(seed=seeds)
def test_exact_joint_marginals(seed):
    net, evidence = possible_case(seed)
    names = [str(n) for n in np.random.default_rng(seed).choice(net.names, size=3, replace=False)]
    found = um.joint(net, as_given(net, evidence), names)
    assert found.attrs["method"] == "exact"
    assert found["probability"].to_numpy() == pytest.approx(joint_of(net, evidence, names), abs=1e-9)
    assert (found["std_error"] == 0).all()
    log = enumerated(net, evidence)[1]
    assert found.attrs["log_evidence"] == pytest.approx(log.max() + np.log(np.exp(log - log.max()).sum()), abs=1e-7)


@pytest.mark.parametrize("method", ["prior", "lookahead", "adaptive"])
@pytest.mark.parametrize("seed", [1, 2, 5])
def test_sampled_joint_marginals(seed, method):
    net, evidence = possible_case(seed)
    names = [net.names[i] for i in (1, 4, 6)]
    found = um.joint(net, as_given(net, evidence), names, method=method, samples=1 << 15, target_error=None)
    truth = joint_of(net, evidence, names)
    assert found.attrs["method"] == method
    assert found["probability"].sum() == pytest.approx(1)
    if found.attrs["status"] == "ok":
        assert (np.abs(found["probability"].to_numpy() - truth) <= 4.5 * found["std_error"].to_numpy() + 1e-9).all()
    log = enumerated(net, evidence)[1]
    exact = log.max() + np.log(np.exp(log - log.max()).sum())
    assert abs(found.attrs["log_evidence"] - exact) <= 4.5 * found.attrs["log_evidence_error"] + 1e-4


def test_no_evidence_is_certain():
    net = um.example("alarm")
    for names in itertools.combinations(net.names[:8], 2):  # for some, the products and sums do not come to 1
        assert um.joint(net, {}, names).attrs["log_evidence"] == 0.0
    truth = um.exact(net, {"HISTORY": "TRUE"}).log_evidence
    assert um.joint(net, {"HISTORY": "TRUE"}, net.names[:2]).attrs["log_evidence"] == pytest.approx(truth) != 0.0


def test_joint_stops_at_the_target_error_and_names_may_be_observed():
    found = um.joint(ASIA, {"dysp": "yes"}, ["dysp", "lung"], method="lookahead", target_error=0.01)
    assert found.attrs["status"] == "ok"
    assert 0 < found["std_error"].max() <= 0.01
    assert found.loc[found["dysp"] == "no", ["probability", "std_error"]].to_numpy().tolist() == [[0, 0], [0, 0]]


def test_auto_samples_where_exact_would_take_long(monkeypatch):
    monkeypatch.setattr(joint_marginals, "QUICK_CALLS", 1)
    found = um.joint(ASIA, {"dysp": "yes"}, ["lung", "bronc"])
    assert found.attrs["method"] == "lookahead"
    assert "auto tried lookahead" in found.attrs["message"]


def test_auto_samples_where_the_seconds_do_not_suffice_for_all_combinations():
    found = um.joint(ASIA, {"dysp": "yes"}, ["lung", "bronc"], seconds=1e-6)
    assert found.attrs["method"] == "lookahead"
    assert um.joint(ASIA, {"dysp": "yes"}, ["lung", "bronc"], method="exact").attrs["method"] == "exact"


@pytest.mark.parametrize("names", [np.array(["lung", "bronc"]), ("lung", "bronc"), iter(["lung", "bronc"])])
def test_names_of_a_joint_in_any_form(names):
    assert list(um.joint(ASIA, {"dysp": "yes"}, names).columns[:2]) == ["lung", "bronc"]


@pytest.mark.parametrize(
    ("names", "options", "word"),
    [
        ([], {}, "list of different names"),
        ("lung", {}, "must be a list of names, not the string 'lung'"),
        (5, {}, "must be a list of names, not 5"),
        (None, {}, "list of different names"),
        (["lung", "lung"], {}, "list of different names"),
        (["lungs"], {}, "did you mean 'lung'"),
        (["lung"], {"method": "um"}, "needs a trained model"),
        (["lung"], {"evidence": {"either": "no", "lung": "yes"}}, "impossible"),
    ],
)
def test_misuse_of_joint(names, options, word):
    with pytest.raises(um.UnimargError, match=word):
        um.joint(ASIA, options.pop("evidence", None), names, **options)


def test_too_many_combinations():
    net = um.example("alarm")
    with pytest.raises(um.UsageError, match="combinations"):
        um.joint(net, None, list(net.names[:20]))


# --- the most probable state


@settings(max_examples=40, deadline=None)
@given(seed=seeds)
def test_most_probable_is_the_maximum(seed):
    net, evidence = possible_case(seed)
    states, log = enumerated(net, evidence)
    found = um.most_probable(net, as_given(net, evidence))
    assert found.exact
    assert found.log_probability == pytest.approx(log.max(), abs=1e-9)
    mine = np.array([v.states.index(found.assignment[v.name]) for v in net.variables])
    assert log[(states == mine).all(axis=1)] == pytest.approx(log.max(), abs=1e-9)
    assert "most probable of all" in found.message


@pytest.mark.parametrize("seed", range(5))
def test_best_found_is_no_better_than_the_maximum_and_cannot_be_improved(seed):
    net, evidence = possible_case(seed)
    states, log = enumerated(net, evidence)
    found = um.most_probable(net, as_given(net, evidence), largest=0)
    assert not found.exact
    assert "best found" in found.message
    assert found.log_probability <= log.max() + 1e-9
    mine = np.array([v.states.index(found.assignment[v.name]) for v in net.variables])
    neighbours = (states != mine).sum(axis=1) <= 1
    assert found.log_probability == pytest.approx(log[neighbours].max(), abs=1e-9)
    assert found.log_probability == pytest.approx(log.max(), abs=1e-9)  # 8,192 samples of a few hundred states


def test_best_found_on_alarm():
    """The search alone finds what elimination finds, where one variable at a time is not enough."""
    net = um.example("alarm")
    x = um.sample(net, 4, seed=2)
    leaves = [i for i in range(len(net)) if not net.children[i]]
    for row in x:
        evidence = {net.names[i]: net.variables[i].states[row[i]] for i in leaves[::2]}
        exact, found = um.most_probable(net, evidence), um.most_probable(net, evidence, largest=0)
        assert (exact.exact, found.exact) == (True, False)
        assert found.log_probability == pytest.approx(exact.log_probability, abs=1e-9)


def test_most_probable_with_many_parents():
    """A noisy-or of 40 causes: absent, it falls apart and is exact; present, a sampled answer still finds the likeliest cause."""
    causes = [f"c{i}" for i in range(40)]
    net = um.Network(
        [um.Variable(c) for c in causes] + [um.Variable("finding")],
        {"finding": causes},
        {c: [0.99 - 0.001 * i, 0.01 + 0.001 * i] for i, c in enumerate(causes)} | {"finding": um.NoisyOr(1e-6, [0.9] * 40)},
    )
    absent = um.most_probable(net, {"finding": "no"})
    assert absent.exact
    assert set(absent.assignment.values()) == {"no"}
    present = um.most_probable(net, {"finding": "yes"})
    assert not present.exact
    assert [c for c in causes if present.assignment[c] == "yes"] == ["c39"]


def test_the_repr_of_an_explanation_shows_it():
    found = um.most_probable(ASIA, {"dysp": "yes"})
    assert repr(found).splitlines() == [
        f"Explanation of 8 variables, the most probable of all, log P(x, e) {found.log_probability:.4f}",
        *(f"  {name}: {state}" for name, state in found.assignment.items()),
    ]
    many = um.example("alarm")
    shown = repr(um.most_probable(many, largest=0))
    assert shown.startswith("Explanation of 37 variables, the best found; others may be more probable, log P(x, e) -")
    assert shown.splitlines()[-1] == "  and 25 more"
    assert len(shown.splitlines()) == 14
    odd = um.Variable("a\x1b[31m", ("\x07", "b"))
    assert repr(um.most_probable(um.Network([odd], {}, {odd.name: [0.9, 0.1]}))).splitlines()[1] == "  a\\x1b[31m: \\x07"


def test_most_probable_of_a_model_and_impossible_evidence():
    model = random_model(ASIA)
    assert model.most_probable({"dysp": "yes"}).assignment == um.most_probable(ASIA, {"dysp": "yes"}).assignment
    for largest in (1 << 20, 0):
        with pytest.raises(um.ImpossibleEvidenceError):
            um.most_probable(ASIA, {"either": "no", "lung": "yes"}, largest=largest)
    with pytest.raises(um.UsageError, match="largest"):
        um.most_probable(ASIA, {}, largest=-1)
    with pytest.raises(um.UsageError, match="largest must be"):
        random_model(ASIA).most_probable({}, largest=-1)


def test_joint_of_a_model():
    model = random_model(ASIA)
    found = model.joint({"dysp": "yes"}, ["lung", "bronc"], method="hybrid", beta=0.1, samples=1 << 14, target_error=None)
    truth = um.joint(ASIA, {"dysp": "yes"}, ["lung", "bronc"])
    assert (np.abs(found["probability"] - truth["probability"]) <= 4.5 * found["std_error"]).all()


@pytest.mark.parametrize("name", ["probability", "std_error"])
def test_a_variable_that_is_called_as_a_column_is_refused(name):
    net = um.Network([um.Variable(name), um.Variable("x")], {"x": [name]}, {name: [0.9, 0.1], "x": [[0.5, 0.5], [0.1, 0.9]]})
    with pytest.raises(um.errors.UsageError, match=f"column {name} of its own"):
        um.joint(net, {}, [name, "x"])


def test_an_exact_joint_keeps_to_the_memory_it_is_given():
    alarm = um.example("alarm")
    with pytest.raises(um.errors.TooExpensiveError, match=r"the budget is 1 "):
        um.joint(alarm, {"HRBP": "HIGH"}, ["CO", "LVFAILURE"], method="exact", memory=1.0)
    found = um.joint(alarm, {"HRBP": "HIGH"}, ["CO", "LVFAILURE"], method="exact", memory=2**30)
    assert found["probability"].sum() == pytest.approx(1, abs=1e-12)
    with pytest.raises(um.errors.UsageError, match="memory is for the method 'exact'"):
        um.joint(alarm, {"HRBP": "HIGH"}, ["CO"], memory=2**30)
