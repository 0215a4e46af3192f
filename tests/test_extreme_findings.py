"""Likelihoods and leaks far below the rounding of 1: what is all but impossible is not impossible."""

import math

import numpy as np
import pytest

import unimarg as um
from models import ASIA, random_model
from unimarg.errors import EvidenceError
from unimarg.proposals import adaptive

MODEL = random_model(ASIA, heads=("marginal", "message"))


def opposed(causes: int, others: int, x: float) -> tuple[um.Network, dict[str, object]]:
    """r0 makes w likely, of which its own finding says the opposite as strongly; w and z are too large for tables."""
    roots, rest = [f"r{j}" for j in range(causes)], [f"u{j}" for j in range(others)]
    tables: dict[str, object] = {name: [0.9, 0.1] for name in (*roots, *rest)}
    tables |= {"w": um.NoisyOr(0.0, [0.5] * causes), "z": um.NoisyOr(0.1, [0.3] * (others + 1))}
    net = um.Network([um.Variable(n) for n in tables], {"w": roots, "z": ["r0", *rest]}, tables)  # pyright: ignore[reportArgumentType]
    return net, {"w": [x, 1.0], "z": "yes", "r0": [1.0, x]} | dict.fromkeys(roots[1:], "no")


@pytest.mark.parametrize("x", [1e-8, 1e-14])
@pytest.mark.parametrize("method", ["lookahead", "adaptive", "auto"])
def test_findings_that_all_but_contradict_each_other(method, x, monkeypatch):
    monkeypatch.setattr("unimarg.query.EXACT_SECONDS", 0.0)  # auto is to sample
    net, given = opposed(12, 15, x)
    exact = um.exact(net, given, ["r0"])
    found = um.infer(net, given, ["r0"], method=method, samples=1 << 14, target_error=None)
    assert found.status == "ok"
    assert abs(found["r0"]["yes"] - exact["r0"]["yes"]) < 4 * found.error("r0")["yes"]
    assert found.log_evidence == pytest.approx(exact.log_evidence, abs=4 * found.log_evidence_error + 1e-4)


def test_a_refit_of_a_tilted_table_is_relative_to_what_was_drawn():
    """Drawn half and half because of a tilt of 1e6 on a table of 1e-6: where weights agree there is nothing to change."""

    class Drafted:
        prob = np.array([1 - 1e-6, 1e-6])

    rng = np.random.default_rng(0)
    drawn, row = rng.integers(0, 2, 4000), np.zeros(4000, np.int64)
    adaptive._refit_table(Drafted(), 0, row, drawn, 2, np.ones(4000), True)  # pyright: ignore[reportArgumentType]
    np.testing.assert_allclose(Drafted.prob, [1 - 1e-6, 1e-6], rtol=1e-12)
    adaptive._refit_table(Drafted(), 0, row, drawn, 2, np.where(drawn == 1, 3.0, 1.0), True)  # pyright: ignore[reportArgumentType]
    assert Drafted.prob[1] / Drafted.prob[0] == pytest.approx(1e-6 * 0.75 / 0.5 / 0.8, rel=0.05)  # the other one keeps LEAST


@pytest.mark.parametrize("x", [1e-10, 1e-16, 1e-50, 1e-290])
def test_exact_ors_keep_the_digits_of_what_is_all_but_impossible(x):
    alone = um.exact(ASIA, {"tub": "yes"}).log_evidence
    found = um.exact(ASIA, {"tub": "yes", "either": {"yes": x, "no": 1.0}}, ["lung"])
    assert found.log_evidence == pytest.approx(alone + math.log(x), abs=1e-9)
    assert found["lung"]["yes"] == pytest.approx(0.055, abs=1e-9)
    causes = [f"c{j}" for j in range(30)]
    tables: dict[str, object] = {key: [0.9, 0.1] for key in causes} | {"s": um.NoisyOr(x, [0.0] * 30)}
    net = um.Network([um.Variable(n) for n in tables], {"s": causes}, tables)  # pyright: ignore[reportArgumentType]
    assert um.exact(net, {"s": "yes"}).log_evidence == pytest.approx(math.log(x), abs=1e-9)


def rare_middle(x: float) -> um.Network:
    """The middle state of b is reached by its leak alone, beside a lower one 1 / x times as likely."""
    variables = [um.Variable("a"), um.Variable("b", ("0", "1", "2")), um.Variable("c")]
    b = um.NoisyMax([0.4, x, 0.6 - x], [[[1, 0, 0], [0.9, 0, 0.1]]])
    return um.Network(variables, {"b": ["a"], "c": ["b"]}, {"a": [0.5, 0.5], "b": b, "c": [[0.5, 0.5], [0.2, 0.8], [0.3, 0.7]]})


@pytest.mark.parametrize("x", [1e-14, 1e-18, 1e-30])
def test_a_rare_middle_state_of_a_noisy_max_is_possible(x):
    net = rare_middle(x)
    assert um.exact(net, {"b": "1"}).log_evidence == pytest.approx(math.log(x * 0.95), abs=1e-12)
    assert um.exact(net, {"b": "1", "a": "yes"}).log_evidence == pytest.approx(math.log(x * 0.45), abs=1e-12)
    for given, p in (({"b": "1"}, 0.5), ({"b": "1", "a": "yes"}, 0.45)):
        best = um.most_probable(net, given)
        assert best.log_probability == pytest.approx(math.log(x * p * 0.8), abs=1e-12)
        assert best.assignment["c"] == "yes"
    for method in ("prior", "lookahead", "adaptive"):
        found = um.infer(net, {"b": "1"}, method=method, samples=4096)
        assert found.log_evidence == pytest.approx(math.log(x * 0.95), abs=4 * found.log_evidence_error + 1e-5)


@pytest.mark.parametrize("causes", [6, 14])
@pytest.mark.parametrize("method", ["prior", "lookahead", "adaptive"])
def test_sampling_sees_a_rare_middle_state_in_chains_and_large_nodes(method, causes):
    names = [f"r{j}" for j in range(causes)]
    tables = {n: [0.5, 0.5] for n in names} | {"b": um.NoisyMax([0.4, 1e-18, 0.6], [[[1, 0, 0], [0.9, 0, 0.1]]] * causes)}
    net = um.Network([*map(um.Variable, names), um.Variable("b", ("0", "1", "2"))], {"b": names}, tables)  # pyright: ignore[reportArgumentType]
    found = um.infer(net, {"b": "1"}, method=method, samples=4096)
    assert found.log_evidence == pytest.approx(math.log(1e-18) + causes * math.log(0.95), abs=4 * found.log_evidence_error + 1e-4)


def rare_cause(p: float, effect: float) -> um.Network:
    """The middle state of b, too large for a table, is reached by its leak, or by r0, which is rare itself."""
    names = [f"r{j}" for j in range(14)]
    b = um.NoisyMax([0.4, 1e-18, 0.6], [[[1, 0, 0], [0.8 - effect, effect, 0.2]], *[[[1, 0, 0], [0.9, 0, 0.1]]] * 13])
    tables = {n: [0.5, 0.5] for n in names} | {"r0": [1 - p, p], "b": b}
    return um.Network([*map(um.Variable, names), um.Variable("b", ("0", "1", "2"))], {"b": names}, tables)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("likelihood", [[0, 1, 1e-30], [1e-19, 1, 1e-19]])
@pytest.mark.parametrize(("p", "effect"), [(1e-6, 1e-12), (1e-9, 1e-8), (1e-15, 0.5)])
def test_what_may_have_caused_a_rare_middle_state_is_drawn(p, effect, likelihood):
    net, given = rare_cause(p, effect), {"b": likelihood}
    exact = um.exact(net, given, ["r0", "r1"])
    for method in ("lookahead", "adaptive"):
        found = um.infer(net, given, ["r0", "r1"], method=method, samples=1 << 13, target_error=None)
        assert found.status == "ok"
        assert abs(found.log_evidence - exact.log_evidence) < 4 * found.log_evidence_error < 0.01
        for name in ("r0", "r1"):
            assert abs(found[name]["yes"] - exact[name]["yes"]) < 4 * found.error(name)["yes"] < 0.1
    drawn = um.sample_posterior(net, given, 1000, method="lookahead", targets=["r0"])
    share = exact["r0"]["yes"]
    assert abs((drawn["r0"] == "yes").mean() - share) < 4 * math.sqrt(share * (1 - share) / 1000)


@pytest.mark.parametrize(("known", "tiny"), [(12, 1e-30), (0, 1e-200)])
def test_two_hidden_causes_of_a_noisy_max_without_a_table(known, tiny):
    """a is rare, and c next to certain to have caused m; each explains the other away. Without a table for its size, or for its numbers."""
    names = ["a", "c", *(f"r{j}" for j in range(known))]
    tables: dict[str, object] = {name: [0.5, 0.5] for name in names} | {"a": [0.998, 0.002], "c": [0.9, 0.1]}
    tables["m"] = um.NoisyMax(
        [1, 0, 0], [[[1, 0, 0], [tiny, 0.7 - tiny, 0.3]], [[1, 0, 0], [tiny, 0.15 - tiny, 0.85]], *[np.eye(3)[:2]] * known]
    )
    variables = [*map(um.Variable, names), um.Variable("m", ("0", "1", "2"))]
    net = um.Network(variables, {"m": names}, tables)  # pyright: ignore[reportArgumentType]
    given = {"m": "2"} | dict.fromkeys(names[2:], "no")
    exact = um.exact(net, given, ["a", "c"])
    found = um.infer(net, given, ["a", "c"], method="lookahead", samples=1 << 12, target_error=None)
    assert found.status == "ok"
    assert abs(found.log_evidence - exact.log_evidence) < 4 * found.log_evidence_error < 1e-3
    for name in ("a", "c"):
        assert abs(found[name]["yes"] - exact[name]["yes"]) < 4 * found.error(name)["yes"] < 0.01


def all_but_certain() -> um.Network:
    """Each cause leaves b its middle state with 2e-200 and its lowest with 1e-200; c = yes shows that b is in between."""
    names = ["r0", "r1", "r2", "r3"]
    tables: dict[str, object] = {name: [0.5, 0.5] for name in names}
    tables |= {"b": um.NoisyMax([1, 0, 0], [[[1, 0, 0], [1e-200, 2e-200, 1.0]]] * 4)}
    tables |= {"x": [0.5, 0.5], "c": [[[1, 0], [1, 0]], [[0.5, 0.5], [0.2, 0.8]], [[1, 0], [1, 0]]]}
    variables = [um.Variable(n, ("0", "1", "2") if n == "b" else ("no", "yes")) for n in tables]
    return um.Network(variables, {"b": names, "c": ["b", "x"]}, tables)  # pyright: ignore[reportArgumentType]


ALL_BUT_CERTAIN = all_but_certain()


@pytest.mark.parametrize(
    ("given", "share"),
    [({"b": "0"}, 1), ({"b": "1"}, 8), ({"b": [1, 1, 0]}, 9), ({"c": "yes"}, 8 * 0.65), ({"c": "yes", "b": [1, 1e-30, 0]}, 8 * 0.65e-30)],
)
def test_known_causes_that_leave_less_than_a_number_can_be(given, share):
    """Two causes leave P(b = 0) = 1e-400 and P(b = 1) = 8e-400, a third next to nothing; of x, c = yes says no or yes as 5 to 8."""
    net, evidence = ALL_BUT_CERTAIN, given | {"r0": "yes", "r1": "yes", "r2": "no"}
    right = math.log(share) + 2 * math.log(1e-200) + 4 * math.log(0.5)
    exact = um.exact(net, evidence)
    assert exact.log_evidence == pytest.approx(right, abs=1e-9)
    assert exact["x"]["yes"] == pytest.approx(8 / 13 if "c" in given else 0.5, abs=1e-9)
    for method in ("lookahead", "adaptive", "prior") if given.keys() == {"b"} else ():  # c alone is not enough to draw a state of 1e-400
        found = um.infer(net, evidence, ["b", "x"], method=method, samples=1 << 12, target_error=None)
        assert found.status == "ok"
        assert abs(found.log_evidence - right) < 4 * found.log_evidence_error < 0.1
        assert abs(found["b"]["0"] - exact["b"]["0"]) <= 4 * found.error("b")["0"]
        assert abs(found["x"]["yes"] - exact["x"]["yes"]) <= 4 * found.error("x")["yes"]
    best = um.most_probable(net, evidence)
    likelihood = 1e-30 if "1e-30" in str(given) else 1
    states = np.array([[v.states.index(best.assignment[v.name]) for v in net.variables]])
    assert best.log_probability == pytest.approx(net.log_probability(states)[0] + math.log(likelihood), abs=1e-9)


@pytest.mark.parametrize("suffix", ["bif", "xmlbif", "net", "uai", "xdsl"])
def test_a_rare_middle_state_survives_a_file(suffix, tmp_path):
    net = rare_middle(1e-18)
    um.save(net, tmp_path / f"a.{suffix}")
    again = um.load(tmp_path / f"a.{suffix}")
    log_p = again.log_probability(np.array([[0, 1, 0], [1, 1, 1]]))
    np.testing.assert_allclose(log_p, np.log([0.5 * 1e-18 * 0.2, 0.5 * 0.9e-18 * 0.8]), rtol=1e-13)


@pytest.mark.parametrize("likelihood", [[1e-50, 1.0], [1e300, 1e290], [1e-300, 1e-290]])
@pytest.mark.parametrize("method", ["um", "independent", "hybrid", "message", "prior", "lookahead"])
def test_every_method_takes_any_scale(likelihood, method):
    found = MODEL.query({"either": likelihood, "tub": "yes"}, method=method, samples=None if method == "um" else 2048)
    exact = um.exact(ASIA, {"either": likelihood, "tub": "yes"})
    assert all(np.isfinite(p).all() for p in found.probabilities)
    assert found["either"]["yes"] == pytest.approx(1.0)  # by tub
    if method != "um":
        assert abs(found.log_evidence - exact.log_evidence) < 4.5 * found.log_evidence_error + 1e-3


@pytest.mark.parametrize("ask", [lambda e: um.exact(ASIA, e), lambda e: MODEL.query(e, method="um"), lambda e: um.infer(ASIA, e)])
def test_a_likelihood_too_large_to_be_summed(ask):
    with pytest.raises(EvidenceError, match=r"'xray' may be no more than 1e\+300: divide all of it"):
        ask({"xray": [1e308, 1.5e308]})


@pytest.mark.parametrize("method", ["lookahead", "prior", "exact"])
def test_a_likelihood_too_small_to_keep_its_digits(method):
    """Twice and once the least number there is, times a table, are neither: P(lung) was off by 59 errors."""
    with pytest.raises(EvidenceError, match=r"'xray' may not be below 1e-300 throughout: multiply all of it"):
        um.infer(ASIA, {"xray": [2e-323, 1e-323]}, method=method)
    found, right = (um.infer(ASIA, {"xray": x}, method=method)["lung"]["yes"] for x in ([2e-300, 1e-300], [2.0, 1.0]))
    assert found == pytest.approx(right, rel=1e-4)  # a log weight of -690 is rounded to 6e-5


def one_cause(findings: int, hit: float) -> tuple[um.Network, dict[str, str]]:
    """Half of the findings speak for their cause and half against it: what is left is the prior, .3 and .7."""
    names = [f"f{j}" for j in range(findings)]
    tables: dict[str, object] = {"a": [0.3, 0.7]} | {name: [[hit, 1 - hit], [1 - hit, hit]] for name in names}
    net = um.Network([um.Variable(n) for n in tables], {name: ["a"] for name in names}, tables)  # pyright: ignore[reportArgumentType]
    return net, {name: "yes" if j < findings // 2 else "no" for j, name in enumerate(names)}


@pytest.mark.parametrize(("findings", "hit"), [(240, 0.99), (400, 0.99), (2000, 0.9)])
@pytest.mark.parametrize("method", ["lookahead", "prior", "adaptive"])
def test_hundreds_of_findings_for_and_against_one_cause(method, findings, hit):
    net, given = one_cause(findings, hit)
    found = um.infer(net, given, ["a"], method=method, samples=1 << 14, target_error=None)
    assert found.status == "ok"
    assert abs(found["a"]["no"] - 0.3) < 4 * found.error("a")["no"] < 0.002
    right = findings // 2 * (math.log(hit) + math.log(1 - hit))
    assert abs(found.log_evidence - right) < 4 * found.log_evidence_error < 0.002


def test_samples_of_a_posterior_of_hundreds_of_findings():
    net, given = one_cause(400, 0.99)
    drawn = um.sample_posterior(net, given, 1000, method="lookahead", targets=["a"])
    assert abs((drawn["a"] == "no").mean() - 0.3) < 4 * math.sqrt(0.3 * 0.7 / 1000)


@pytest.mark.parametrize("strength", [50, 700])
def test_messages_of_more_range_than_a_number_has(strength):
    """Findings below x say no by e^strength, which x tells r; those below r say yes by e to the strength less log 3."""
    hit = 1 / (1 + math.exp(-1.0))
    below, beside = [f"f{j}" for j in range(strength)], [f"g{j}" for j in range(strength)]
    tables: dict[str, object] = {"r": [0.5, 0.5], "x": [[1.0, 0.0], [0.0, 1.0]], "y": [[0.75, 0.25], [0.25, 0.75]]}
    tables |= {name: [[hit, 1 - hit], [1 - hit, hit]] for name in (*below, *beside)}
    parents = {"x": ["r"], "y": ["r"]} | {name: ["x"] for name in below} | {name: ["r"] for name in beside}
    net = um.Network([um.Variable(n) for n in tables], parents, tables)  # pyright: ignore[reportArgumentType]
    given = {"y": "no"} | dict.fromkeys(below, "no") | dict.fromkeys(beside, "yes")
    found = um.infer(net, given, ["r", "x"], method="lookahead", samples=1 << 14, target_error=None)
    assert found.status == "ok"
    for name in ("r", "x"):
        assert abs(found[name]["no"] - 0.75) < 4 * found.error(name)["no"] < 0.001


def test_the_error_of_evidence_knows_of_light_samples():
    """A rare state that weighs less, of which every net may hold the same number."""
    r = 0.02724854
    net = um.Network([um.Variable("a"), um.Variable("b")], {"b": ["a"]}, {"a": [1 - r, r], "b": [[0.7, 0.3], [0.88, 0.12]]})
    right = math.log((1 - r) * 0.3 + r * 0.12)
    for seed in range(20):
        found = um.infer(net, {"b": "yes"}, method="prior", seed=seed)
        assert abs(found.log_evidence - right) < 4 * found.log_evidence_error < 0.001


def test_the_error_of_evidence_knows_of_samples_that_were_not_drawn():
    """All weights are the same, until the rare state comes; where there is no other weight no error is told."""
    r = 2e-5
    net = um.Network([um.Variable("a"), um.Variable("b")], {"b": ["a"]}, {"a": [1 - r, r], "b": [[0.7, 0.3], [0.1, 0.9]]})
    found = um.infer(net, {"b": "yes"}, method="prior", samples=4096, target_error=None)
    assert 1e-5 < abs(found.log_evidence - math.log((1 - r) * 0.3 + r * 0.9)) < 4 * found.log_evidence_error < 1e-3
    assert um.infer(net, {"b": "yes"}, method="lookahead", samples=4096, target_error=None).log_evidence_error < 1e-6
    assert um.infer(net, {"a": "yes"}, method="prior", samples=4096, target_error=None).log_evidence_error < 1e-5


def test_a_message_of_a_range_without_bounds():
    """700 findings, each of which all but rules out one state of b, a copy of a."""
    names = [f"f{j}" for j in range(700)]
    tables: dict[str, object] = {"a": [0.3, 0.7], "b": [[1.0, 0.0], [0.0, 1.0]]} | {name: [[1.0, 1e-300], [0.5, 0.5]] for name in names}
    parents = {"b": ["a"]} | {name: ["b"] for name in names}
    net = um.Network([um.Variable(n) for n in tables], parents, tables)  # pyright: ignore[reportArgumentType]
    found = um.infer(net, dict.fromkeys(names, "yes"), ["a"], method="lookahead", samples=4096)
    assert (found.status, found["a"]["yes"]) == ("ok", pytest.approx(1, abs=1e-6))
    assert found.log_evidence == pytest.approx(math.log(0.7) + 700 * math.log(0.5), abs=4 * found.log_evidence_error)


def test_many_hidden_children_may_say_much_together():
    """170 hidden noisy-or children of v, each seen through a finding, against 170 findings on a, of which v is a copy."""
    count = 170
    others = [f"o{j}" for j in range(13)]
    tables: dict[str, object] = {"a": [0.5, 0.5], "v": [[1.0, 0.0], [0.0, 1.0]]} | {name: [1.0 - 1e-9, 1e-9] for name in others}
    parents: dict[str, list[str]] = {"v": ["a"]}
    for j in range(count):
        tables |= {
            f"c{j}": um.NoisyOr(0.0, [1.0] + [0.0] * 13),
            f"x{j}": [[0.99, 0.01], [0.01, 0.99]],
            f"g{j}": [[0.99, 0.01], [0.01, 0.99]],
        }
        parents |= {f"c{j}": ["v", *others], f"x{j}": [f"c{j}"], f"g{j}": ["a"]}
    net = um.Network([um.Variable(n) for n in tables], parents, tables)  # pyright: ignore[reportArgumentType]
    given = {f"x{j}": "yes" for j in range(count)} | {f"g{j}": "no" for j in range(count)}
    found = um.infer(net, given, ["a"], method="lookahead", samples=1 << 14, target_error=None)
    assert found.status == "ok"
    assert abs(found["a"]["no"] - 0.5) < 4 * found.error("a")["no"] < 0.01
    assert found.log_evidence == pytest.approx(count * (math.log(0.99) + math.log(0.01)), abs=4 * found.log_evidence_error)


def test_a_faint_leak_without_parents():
    net = um.Network([um.Variable("b"), um.Variable("c")], {"c": ["b"]}, {"b": um.NoisyOr(1e-305, []), "c": [[0.2, 0.8], [0.3, 0.7]]})
    assert um.exact(net)["c"]["yes"] == pytest.approx(0.8, abs=1e-12)
