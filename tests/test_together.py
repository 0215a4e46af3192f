"""Several evidence sets drawn in one call, against each of them drawn alone."""

import jax
import numpy as np
import pytest

import unimarg as um
from unimarg import query, together
from unimarg.importance import Estimator, Limits
from unimarg.network import Network
from unimarg.query import Asked, Options
from unimarg.together import run_together

ALARM, CLINIC = um.example("alarm"), um.medical(risks=4, diseases=12, symptoms=20, seed=1)
SETS, SAMPLES = 8, 4096


def evidence_of(net: Network, count: int) -> list[dict[str, int]]:
    """Of very different sizes, the first without any."""
    rng, samples = np.random.default_rng(3), um.sample(net, count, seed=5)
    return [{net.names[i]: int(samples[n, i]) for i in rng.permutation(len(net))[: 2 * n]} for n in range(count)]


def asked(net: Network, evidence: list[dict[str, int]]) -> list[Asked]:
    out = [Asked(net, None, e, None, Options()) for e in evidence]
    for a in out:
        a.get_ready("lookahead")
    return out


def ready(found: list[Asked]) -> list[Estimator]:
    return [a.ready for a in found if a.ready]


@pytest.mark.parametrize("net", [ALARM, CLINIC], ids=["alarm", "medical"])
def test_sums_are_those_of_each_alone(net):
    """Sets of which one has next to nothing to draw, and in the last call some are missing."""
    several = ready(asked(net, evidence_of(net, SETS)))
    limits = Limits(samples=2 * SAMPLES + 100, target_error=None)
    run_together(several, SETS + 2, limits, seed=7, samples=SAMPLES)
    for found, alone in zip(several, ready(asked(net, evidence_of(net, SETS))), strict=True):
        alone.run(limits, seed=7)
        assert found.total.samples == alone.total.samples == limits.samples
        assert found.total.log_evidence == pytest.approx(alone.total.log_evidence, abs=1e-5)
        assert found.ess == pytest.approx(alone.ess, rel=1e-4)
        for a, b in zip(found.moments(), alone.moments(), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)


def test_each_set_stops_on_its_own(monkeypatch):
    monkeypatch.setattr(together, "FEWEST", 3)
    several = ready(asked(ALARM, evidence_of(ALARM, SETS)))
    run_together(several, SETS, Limits(target_error=0.002), seed=0, samples=SAMPLES)
    assert sum(e.reached(0.002) for e in several) > SETS - 3
    drawn = sorted(e.total.samples for e in several)
    assert drawn[0] == SAMPLES < drawn[-1]
    assert not any(n % SAMPLES for n in drawn)


def test_a_poor_set_is_left_to_others():
    several = ready(asked(CLINIC, evidence_of(CLINIC, SETS)))
    run_together(several, SETS, Limits(target_error=1e-9, samples=1 << 15), seed=0, poor=1.01, samples=1024)
    assert {e.total.samples for e in several} == {1024}


@pytest.mark.parametrize("method", ["auto", "lookahead"])
def test_a_list_is_answered_together_as_one_by_one(monkeypatch, method):
    """As on an accelerator; with ``auto`` some sets are small enough for exact inference."""
    net = CLINIC
    sets = evidence_of(net, 2 * SETS + 3)
    expected = [um.infer(net, e, method="exact") for e in sets]
    calls = []
    monkeypatch.setattr(query, "sets_together", lambda frame: SETS)
    monkeypatch.setattr(query, "EXACT_ENTRIES", 1 << 8)
    monkeypatch.setattr(query, "run_together", lambda e, *a: calls.append(len(e)) or run_together(e, *a, samples=SAMPLES))
    found = um.infer(net, sets, method=method, samples=1 << 16, target_error=0.004)
    assert sum(calls) == sum(p.method != "exact" for p in found) > SETS
    assert len(calls) == 3
    for posterior, exact in zip(found, expected, strict=True):
        assert posterior.status == "ok"
        assert posterior.seconds > 0
        for p, error, truth in zip(posterior.probabilities, posterior.std_errors, exact.probabilities, strict=True):
            assert (np.abs(p - truth) < 5 * error + 1e-6).all()


def test_an_impossible_set_fails_alone(monkeypatch):
    net = um.example("asia")
    sets = [{"smoke": "yes"}, {"tub": "yes", "either": "no"}, *[{"asia": "no"}] * SETS]
    monkeypatch.setattr(query, "sets_together", lambda frame: SETS)
    found = um.infer(net, sets, method="lookahead", samples=5000)
    assert [p.status for p in found] == ["ok", "failed", *["ok"] * SETS]
    assert "impossible" in found[1].message
    assert found[0].samples == found[-1].samples == 5000


def test_on_a_cpu_sets_are_drawn_one_by_one():
    assert jax.default_backend() != "cpu" or together.sets_together(asked(ALARM, [{}])[0].frame) == 0
