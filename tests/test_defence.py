"""What look-ahead averages away and a refit did not see can still be drawn."""

from types import SimpleNamespace

import numpy as np
import pytest

import unimarg as um
from unimarg.conditionals import Query
from unimarg.evidence import parse_evidence
from unimarg.frame import frame_of
from unimarg.proposals import adaptive as adaptive_module
from unimarg.proposals import lookahead as lookahead_module
from unimarg.proposals.expected import expected
from unimarg.proposals.lookahead import lookahead


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
    adaptive_module._refit_table(draft, 0, np.zeros(1000, np.int64), np.zeros(1000, np.int64), 2, np.ones(1000))  # pyright: ignore[reportArgumentType]
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
