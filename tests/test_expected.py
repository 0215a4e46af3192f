"""What look-ahead expects of a node: lambda against enumeration, and where nothing is known the prior."""

import numpy as np
import pytest

import unimarg as um
from unimarg.conditionals import Query
from unimarg.evidence import parse_evidence
from unimarg.frame import frame_of
from unimarg.proposals.expected import POWER, SHARE, expected, forward_priors, from_below


def one_effect(noisy: bool) -> um.Network:
    """Nine causes, all roots, of one effect, which has a sign: a tree, so that one pass up is exact."""
    rng = np.random.default_rng(5)
    causes = [um.Variable(f"c{i}", ("no", "yes", "much")[: 3 if i == 0 else 2]) for i in range(9 if noisy else 3)]
    effect, sign = um.Variable("effect", ("none", "mild", "severe")), um.Variable("sign")
    tables = {c.name: rng.dirichlet(np.ones(c.card)) for c in causes} | {"sign": rng.dirichlet(np.ones(2), size=3)}
    if noisy:
        effects = [np.vstack([np.eye(3)[0], rng.dirichlet(np.ones(3), size=c.card - 1)]) for c in causes]
        mechanism = um.NoisyMax(rng.dirichlet([6.0, 1.0, 1.0]), effects)
    else:
        mechanism = um.Table(rng.dirichlet(np.ones(3), size=[c.card for c in causes]))
    return um.Network([*causes, effect, sign], {"effect": [c.name for c in causes], "sign": ["effect"]}, tables | {"effect": mechanism})


@pytest.mark.parametrize("noisy", [True, False])
@pytest.mark.parametrize("evidence", [{"sign": "yes"}, {"sign": [0.3, 0.9]}, {"effect": "mild"}, {"sign": "yes", "c1": "yes"}])
def test_lambda_is_the_probability_of_what_lies_below(noisy, evidence):
    net = one_effect(noisy)
    frame, query = frame_of(net), Query.make(net, parse_evidence(net, evidence), tuple(range(len(net))))
    assert frame.large.any() == noisy
    prior = forward_priors(frame, query)
    heard, weights = from_below(frame, query, prior), expected(frame, query)
    above = {name: value for name, value in evidence.items() if name.startswith("c")}
    for i in np.flatnonzero(query.below & ~query.known).tolist():
        k = int(net.cards[i])
        if i not in query.evidence.virtual:  # whose own finding is in its prior
            np.testing.assert_allclose(prior[i, :k], um.exact(net, above).probabilities[i], rtol=1e-9)
        if query.below[i]:
            assert heard[i, :k].max() == pytest.approx(1)
        posterior = prior[i, :k] * heard[i, :k]
        np.testing.assert_allclose(posterior / posterior.sum(), um.exact(net, evidence).probabilities[i], rtol=1e-9)
        tempered = prior[i, :k] * heard[i, :k] ** POWER
        np.testing.assert_allclose(weights[i, :k], (1 - SHARE) * tempered / tempered.sum() + SHARE * prior[i, :k], rtol=1e-9)


def test_many_findings_do_not_underflow():
    """A thousand signs that each speak against both states: what remains is their ratio."""
    signs = [um.Variable(f"s{i}") for i in range(1000)]
    tables = {"cause": [0.5, 0.5]} | {s.name: [[1 - 1e-9, 1e-9], [1 - 2e-9, 2e-9]] for s in signs[:500]}
    tables |= {s.name: [[1 - 2e-9, 2e-9], [1 - 1e-9, 1e-9]] for s in signs[500:]}
    net = um.Network([um.Variable("cause"), *signs], {s.name: ["cause"] for s in signs}, tables)
    query = Query.make(net, parse_evidence(net, {s.name: "yes" for s in signs}), (0,))
    np.testing.assert_allclose(expected(frame_of(net), query)[0], [0.5, 0.5], rtol=1e-6)


def test_nothing_below_is_left_as_it_is():
    net = um.example("asia")
    query = Query.make(net, parse_evidence(net, {"asia": "yes"}), tuple(range(len(net))))
    for weights, likelihood in zip(expected(frame_of(net), query), query.likelihood, strict=True):
        np.testing.assert_array_equal(weights, likelihood)
