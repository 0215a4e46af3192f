"""What look-ahead averages away and a refit did not see can still be drawn."""

from types import SimpleNamespace

import numpy as np
import pytest

import unimarg as um
from unimarg import Network, NoisyOr, Variable
from unimarg.conditionals import Draft, Query
from unimarg.evidence import parse_evidence
from unimarg.frame import Frame, _rivals, frame_of
from unimarg.proposals import adaptive as adaptive_module
from unimarg.proposals import lookahead as lookahead_module
from unimarg.proposals.expected import expected
from unimarg.proposals.lookahead import lookahead
from unimarg.relevance import ancestors


@pytest.fixture
def heard(monkeypatch):
    """Variable, scope, product and t of those that heard of averages."""
    found = []
    original = lookahead_module._Sweep._defend
    monkeypatch.setattr(lookahead_module._Sweep, "_defend", lambda self: (original(self), found.extend(self.defended))[0])
    return found


def test_who_hears_of_averages_keeps_a_share_of_its_own_table(heard):
    net = um.example("alarm")
    query = Query.make(net, parse_evidence(net, {"HRBP": 2, "EXPCO2": 0, "BP": 0}), tuple(range(len(net))))
    draft = lookahead(frame_of(net), query, largest=16)
    assert len(heard) > 2
    share = min(max(3 / len(heard), 0.05), 0.25)
    for v, _, product, target in heard:
        begin, target = draft.tables[v].offset, np.broadcast_to(target, product.shape)
        prob = draft.prob[begin : begin + target.size // target.shape[-1] * draft.tables[v].padded].reshape(-1, draft.tables[v].padded)
        own, wanted = (a / np.maximum(a.sum(axis=-1, keepdims=True), 1e-300) for a in (target, product))
        mixed = ((1 - share) * wanted + share * own).reshape(-1, target.shape[-1])
        mixed /= np.maximum(mixed.sum(axis=1, keepdims=True), 1e-300)
        np.testing.assert_allclose(prob[:, : target.shape[-1]], mixed, atol=1e-12)


def test_a_refit_takes_little_from_what_its_samples_missed():
    draft = SimpleNamespace(prob=np.array([0.5, 0.5]))
    adaptive_module._refit_table(draft, 0, np.zeros(1000, np.int64), np.zeros(1000, np.int64), 2, np.ones(1000), False)  # pyright: ignore[reportArgumentType]
    assert draft.prob[1] == pytest.approx(0.8 * 0.5 / (0.8 * 0.5 + (1000 + 8 * 0.5) / 1008))


@pytest.mark.parametrize(("states", "power"), [(2, 1), (4, 2)])
def test_a_message_that_is_cut_is_taken_by_its_mean_square_where_states_are_many(heard, states, power):
    rng = np.random.default_rng(0)
    a, b = rng.dirichlet(np.ones(states), 2)
    seen = rng.random((states, states)) ** 4  # P(c = 1 | a, b)
    labels = tuple(map(str, range(states)))
    net = um.Network(
        [um.Variable("a", labels), um.Variable("b", labels), um.Variable("c", ("0", "1"))],
        {"c": ["a", "b"]},
        {"a": a, "b": b, "c": np.stack([1 - seen, seen], axis=-1)},
    )
    query = Query.make(net, parse_evidence(net, {"c": "1"}), (0, 1))
    lookahead(frame_of(net), query, largest=states)  # too little for a and b together
    v, union, product, _ = heard[0]  # of the two the one that is drawn last
    assert union == (v,)
    weights = expected(frame_of(net), query)[1 - v, :states]
    own = (a, b)[v] * ((seen if v == 0 else seen.T) ** power @ weights) ** (1 / power)
    np.testing.assert_allclose(product / product.sum(), own / own.sum(), rtol=1e-9)


@pytest.mark.parametrize("told", [0.0, 0.2])
def test_what_says_next_to_nothing_is_not_passed_on(told):
    """P(c = 1 | a, b) depends on b and, where ``told``, on a; b's message to a is that part alone."""
    seen = np.array([[0.2, 0.8], [0.2, 0.8]]) + told * np.array([[0.0, 0.0], [1.0, -1.0]])
    net = um.Network(
        [um.Variable("a"), um.Variable("b"), um.Variable("c")],
        {"b": ["a"], "c": ["a", "b"]},
        {"a": [0.6, 0.4], "b": [[0.5, 0.5], [0.4, 0.6]], "c": np.stack([1 - seen, seen], axis=-1)},
    )
    frame, query = frame_of(net), Query.make(net, parse_evidence(net, {"c": "yes"}), (0, 1))
    factor = lookahead_module.Factor((0, 1), seen)
    sweep = lookahead_module._Sweep(frame, query, Draft(frame, query), 2)
    here, rest = sweep._split(1, factor, {1})
    assert (here.scope, rest.scope) == ((1,), (0,))
    sweep.waiting[1] = [factor]
    assert sweep._fit(1, lookahead_module.Factor((1,), np.ones(2)), 2)[0] == (1,)
    assert (0 in sweep.waiting) == (told > 0)


@pytest.mark.parametrize("seed", range(6))
def test_tables_fit_whatever_the_room(monkeypatch, seed):
    """Noisy-max findings that share causes, in all the room that is left beside the network's own tables."""
    rng = np.random.default_rng(seed)
    causes = [um.Variable(f"c{i}", ("no", "yes", "much", "most")[: rng.integers(2, 5)]) for i in range(12)]
    signs = [um.Variable(f"s{i}", ("none", "mild", "severe")) for i in range(10)]
    parents = {s.name: [c.name for c in rng.permutation(causes)[: rng.integers(3, 9)]] for s in signs}
    card = {c.name: c.card for c in causes}
    mechanisms = {c.name: rng.dirichlet(np.ones(c.card)) for c in causes}
    for s in signs:
        effects = [np.vstack([np.eye(3)[0], rng.dirichlet(np.ones(3), size=card[p] - 1)]) for p in parents[s.name]]
        mechanisms[s.name] = um.NoisyMax(rng.dirichlet([8.0, 1.0, 1.0]), effects)
    net = um.Network([*causes, *signs], parents, mechanisms)
    query = Query.make(net, parse_evidence(net, {s.name: "severe" for s in signs}), tuple(range(12)))
    used = []
    for least in (1, 1 << 9, 1 << 12, 1 << 16):
        monkeypatch.setattr("unimarg.frame.CAPACITY", (least, least))
        frame = Frame(net)
        draft = lookahead(frame, query)
        assert frame.entries < draft.used <= frame.capacity
        used.append(draft.used)
    assert used[-1] > used[0]  # more room, larger tables


def test_what_is_large_for_something_rare_is_passed_on():
    """Of a factor with a mean of 1: its mean square and its maximum."""
    assert not lookahead_module._varies(1 + 1e-4, 1.05)
    assert lookahead_module._varies(1 + 1e-2, 1.05)
    assert lookahead_module._varies(1 + 1e-4, 1.5)


def test_a_large_noisy_max_is_drawn_before_others_that_explain_the_same():
    """By then its causes are known: drawn last, it was expected to explain by others what its causes left to it one time in thousands."""
    roots = [f"r{i}" for i in range(16)]
    parents = {"c": roots, "d": ["r0"], "s": ["c", "d"], "t": ["c", "d"]}
    mechanisms = {r: [0.998, 0.002] for r in roots} | {"c": um.NoisyOr(1e-6, [0.9] * 16), "d": [[0.995, 0.005], [0.5, 0.5]]}
    mechanisms |= {"s": um.NoisyOr(1e-4, [0.9, 0.9]), "t": um.NoisyOr(1e-4, [0.8, 0.1])}
    net = um.Network([um.Variable(n) for n in (*roots, *parents)], parents, mechanisms)
    frame, evidence = frame_of(net), {"s": "yes", "t": "yes"}
    assert [net.names[i] for i in np.flatnonzero(frame.large)] == ["c"]
    assert frame.when[net.index["c"]] < frame.when[net.index["d"]]
    _, weights = um.sample_posterior(net, evidence, 20480, method="lookahead", weighted=True)
    assert np.max(weights) * len(weights) < 6


@pytest.mark.parametrize(("rival", "least"), [([], 0.99), (["d39"], 0.4)])
def test_a_large_noisy_max_does_not_wait_for_those_that_explain_nothing_with_it(rival, least):
    """Its causes drive a long chain, which is exact in the order of the chain; drawn before all of it, they would hear of it in part."""
    rng, four = np.random.default_rng(0), ("x", "y", "z", "u")
    parents = {"c": [f"a{i}" for i in range(40)], "s": ["c", *rival]}
    mechanisms = {a: [0.5, 0.5] for a in parents["c"]} | {"c": um.NoisyOr(0.01, [0.1] * 40)}
    mechanisms["s"] = np.array([[[0.9, 0.1]] * 4, [[0.6, 0.4]] * 2 + [[0.2, 0.8]] * 2]) if rival else [[0.9, 0.1], [0.2, 0.8]]
    for i in range(40):
        parents |= {f"d{i}": [f"a{i}", f"d{i - 1}"][: 1 + (i > 0)], f"o{i}": [f"d{i}"]}
        mechanisms[f"d{i}"] = rng.dirichlet(np.full(4, 0.3), size=(2, 4)[: 1 + (i > 0)])
        mechanisms[f"o{i}"] = rng.dirichlet(np.full(4, 0.3), size=4)
    net = um.Network([um.Variable(v, four if v[0] in "do" else ("no", "yes")) for v in mechanisms], parents, mechanisms)
    frame = frame_of(net)
    assert [net.names[i] for i in np.flatnonzero(frame.large)] == ["c"]
    assert (frame.when[net.index["c"]] < frame.when[net.index["d39"]]) == bool(rival)
    seen = um.sample(net, 1, seed=5)[0]
    evidence = {f"o{i}": int(seen[net.index[f"o{i}"]]) for i in range(40)} | {"s": "yes"}
    post = um.infer(net, evidence, method="lookahead", samples=5120)
    assert post.ess > least * 5120
    assert abs(post.log_evidence - um.exact(net, evidence).log_evidence) < 4 * post.log_evidence_error + 1e-9


def test_rivals_are_soon_found_in_deep_networks():
    """By what lies above each node, bit by bit; here as it is defined."""
    rng, count = np.random.default_rng(0), 60
    names = [f"v{i}" for i in range(count)]
    parents = {f"v{i}": [f"v{j}" for j in sorted(rng.choice(i, min(i, 3), replace=False).tolist())] for i in range(1, count)}
    mechanisms = {name: NoisyOr(0.1, [0.3] * len(parents.get(name, ()))) for name in names}
    net = Network([Variable(name) for name in names], parents, mechanisms)
    large = rng.random(count) < 0.5
    for i, found in _rivals(net, large).items():
        others = {p for c in net.children[i] for p in net.parents[c] if not large[p]}
        assert found == others - ancestors(net, [i])
    assert len(_rivals(net, large)) > 10
