"""The paper's appendix B: two nodes of which one is the other."""

import math

import numpy as np
import pytest

import unimarg as um
from models import random_model
from unimarg import Network, Variable
from unimarg.conditionals import Query
from unimarg.counter import key_from_seed
from unimarg.evidence import parse_evidence
from unimarg.frame import frame_of
from unimarg.importance import first_sample
from unimarg.proposals.independent import independent
from unimarg.proposals.lookahead import lookahead
from unimarg.proposals.message import message
from unimarg.proposals.sequential import sequential
from unimarg.walk import walk


def pair() -> tuple[Network, Query]:
    """j is caused only and always by i; the evidence leaves P(i | e) = P(j | e) = 0.001."""
    net = Network(
        [Variable(v) for v in ("i", "j", "e")],
        {"j": ["i"], "e": ["i"]},
        {"i": [0.9, 0.1], "j": [[1.0, 0.0], [0.0, 1.0]], "e": [[0.1, 0.9], [1 - 0.9 * 9 / 999, 0.9 * 9 / 999]]},
    )
    return net, Query.make(net, parse_evidence(net, {"e": "yes"}), (0, 1, 2))


def test_the_problematic_pair_of_the_paper():
    net, query = pair()
    frame = frame_of(net)
    exact = um.exact(net, {"e": "yes"})
    marginals = np.stack(exact.probabilities)
    assert marginals[:2, 1] == pytest.approx([0.001, 0.001])

    def largest(given, draw=None) -> float:
        """The largest weight over the mean, of 2^22 samples: with the pair at 1 and 1 once in a million."""
        top = -np.inf
        for chunk in range(512):
            draws = draw or (lambda *a: walk(frame.shape, given, *a))
            top = max(top, float(draws(key_from_seed(0), first_sample(chunk << 13), 1 << 13)[1].max()))
        return math.exp(top - exact.log_evidence)

    assert largest(independent(frame, query, marginals, structure=False).finish()) == pytest.approx(1000, rel=1e-3)
    told = np.zeros((3, 2))
    told[0] = np.log(net.mechanisms[2].expand()[:, 1])
    assert largest(message(frame, query, told).finish()) == pytest.approx(1, abs=1e-4)
    assert largest(lookahead(frame, query).finish()) == pytest.approx(1, abs=1e-4)
    assert largest(None, sequential(random_model(net, heads=("marginal", "message")), query)[0]) < 20
