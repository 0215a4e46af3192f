"""Several evidence sets drawn in one call, against each of them drawn alone."""

import time

import jax
import numpy as np
import pytest

import unimarg as um
from unimarg import importance, inference, query, together
from unimarg.frame import frame_of
from unimarg.importance import CHUNK_BYTES, Estimator, Limits
from unimarg.network import Network
from unimarg.query import Asked, Options
from unimarg.together import Group

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


def grouped(net: Network, sets: int = SETS) -> Group:
    found = asked(net, evidence_of(net, SETS))
    return Group(ready(found), sets, max(a.used for a in found), SAMPLES)


@pytest.fixture(autouse=True)
def few_are_enough(monkeypatch):
    for module in (together, inference):
        monkeypatch.setattr(module, "FEWEST", 3)


@pytest.mark.parametrize("net", [ALARM, CLINIC], ids=["alarm", "medical"])
def test_sums_are_those_of_each_alone(net):
    """Sets of which one has next to nothing to draw; some are missing, and the last call has few samples."""
    limits = Limits(samples=2 * SAMPLES - 100, target_error=None)
    group = grouped(net, SETS + 2)
    assert group.run(limits, seed=7) == []
    for found, alone in zip(group.estimators, ready(asked(net, evidence_of(net, SETS))), strict=True):
        alone.run(limits, seed=7)
        assert found.total.samples == alone.total.samples == limits.samples
        assert found.total.log_evidence == pytest.approx(alone.total.log_evidence, abs=1e-5)
        assert found.ess == pytest.approx(alone.ess, rel=1e-4)
        for a, b in zip(found.estimates.moments(), alone.estimates.moments(), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)


def test_each_set_stops_on_its_own():
    group, limits = grouped(ALARM), Limits(target_error=0.002)
    left = group.run(limits, seed=0)
    assert all(e.reached(0.002) for e in group.estimators if e not in left)
    drawn = sorted(e.total.samples for e in group.estimators)
    assert drawn[0] == SAMPLES < drawn[-1]
    assert not any(n % SAMPLES for n in drawn)
    for e in left:  # errors are not looked at before the samples of the next look
        assert e.total.samples < e.next_look
    assert sum(e.next_look - e.total.samples <= 2 * SAMPLES for e in left) < 3


def test_who_needs_many_more_goes_on_alone():
    group = grouped(ALARM)
    assert group.run(Limits(samples=3 * SAMPLES, target_error=None), seed=0) == group.estimators
    assert {e.total.samples for e in group.estimators} == {0}
    left = group.run(Limits(samples=1 << 20, target_error=1e-9), seed=0)
    assert left == group.estimators
    assert {e.total.samples for e in left} == {4 * SAMPLES}  # looked at after 1, 2 and 4 calls; the next time 4 are missing


def test_only_those_asked_for_go_on():
    group = grouped(CLINIC)
    group.run(Limits(samples=1000, target_error=None), seed=0, among=[])
    assert {e.total.samples for e in group.estimators} == {0}
    group.run(Limits(samples=1024, target_error=None), seed=0, among=group.estimators[2:6])
    assert [e.total.samples for e in group.estimators] == [0, 0, 1024, 1024, 1024, 1024, 0, 0]


@pytest.mark.parametrize("method", ["auto", "lookahead"])
def test_a_list_is_answered_together_as_one_by_one(monkeypatch, method):
    """As on an accelerator; with ``auto`` some sets are small enough for exact inference."""
    net, sizes = CLINIC, []
    sets = evidence_of(net, 2 * SETS + 3)
    expected = [um.infer(net, e, method="exact") for e in sets]

    class Seen(Group):
        def __init__(self, estimators, sets, used):
            sizes.append(len(estimators))
            super().__init__(estimators, sets, used, SAMPLES)

    monkeypatch.setattr(inference, "sets_together", lambda frame: SETS)
    monkeypatch.setattr(query, "EXACT_ENTRIES", 1 << 8)
    monkeypatch.setattr(inference, "Group", Seen)
    begin = time.perf_counter()
    found = um.infer(net, sets, method=method, samples=1 << 16, target_error=0.004)
    took = time.perf_counter() - begin
    assert sum(sizes) > SETS
    assert max(sizes) - min(sizes) <= 2  # of the sets that are sampled; of all of them 6, 6 and 7
    assert sum(sizes) <= sum(p.method != "exact" for p in found) < sum(sizes) + 3
    assert 0.5 * took < sum(p.seconds for p in found) < 2 * took
    for posterior, exact in zip(found, expected, strict=True):
        assert posterior.status == "ok"
        for p, error, truth in zip(posterior.probabilities, posterior.std_errors, exact.probabilities, strict=True):
            assert (np.abs(p - truth) < 5 * error + 1e-6).all()


def test_auto_judges_by_a_pilot_and_not_by_what_comes_later(monkeypatch):
    """Where nothing is good enough every proposal is tried, after the samples of a pilot; where all is, none but the first."""
    monkeypatch.setattr(inference, "sets_together", lambda frame: SETS)
    monkeypatch.setattr(query, "EXACT_ENTRIES", -1)
    for poor, methods in ((1.1, {"lookahead", "adaptive"}), (0.0, {"lookahead"})):
        monkeypatch.setattr(query, "POOR", poor)
        several = [Asked(CLINIC, None, e, None, Options(target_error=1e-9, samples=60_000)) for e in evidence_of(CLINIC, SETS)]
        found = inference._by_side_by_side(several, "auto", SETS)
        assert {p.method for p in found} == methods
        assert {p.samples for p in found} == {60_000}
        for a, p in zip(several, found, strict=True):
            assert a.share is not None
            assert f"lookahead (ESS {a.share:.1%})" in p.message
            assert a.ready is None  # tables go with the answer


def test_an_impossible_set_fails_alone(monkeypatch):
    net = um.example("asia")
    sets = [{"smoke": "yes"}, {"tub": "yes", "either": "no"}, *[{"asia": "no"}] * SETS]
    monkeypatch.setattr(inference, "sets_together", lambda frame: SETS)
    found = um.infer(net, sets, method="lookahead", samples=5000)
    assert [p.status for p in found] == ["ok", "failed", *["ok"] * SETS]
    assert "impossible" in found[1].message
    assert found[0].samples == found[-1].samples == 5000


def test_who_goes_on_alone_does_so_by_whole_calls(monkeypatch):
    """And a group from which all would leave at once is not made."""
    left: list[tuple[Estimator, int]] = []

    class Seen(Group):
        def run(self, *given):
            found = super().run(*given)
            left.extend((e, e.total.samples) for e in found)
            return found

    monkeypatch.setattr(inference, "sets_together", lambda frame: SETS)
    monkeypatch.setattr(inference, "Group", Seen)
    monkeypatch.setattr(query, "chunk_size", lambda frame: 1 << 16)
    sets, limits = evidence_of(ALARM, SETS), {"method": "lookahead", "samples": 1 << 18}
    um.infer(ALARM, sets, target_error=0.0006, **limits)
    assert left
    assert all(e.total.samples >= before + (1 << 16) for e, before in left)
    monkeypatch.setattr(inference, "Group", None)
    assert {p.samples for p in um.infer(ALARM, sets, target_error=None, **limits)} == {1 << 18}


def test_how_many_sets_an_accelerator_takes(monkeypatch):
    """As many as fit, whatever the chunks of one set alone, which are powers of two."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    frame = frame_of(CLINIC)
    assert together.sets_together(frame) == together.MOST
    for fit, expected in ((20.5, 20), (3.5, 3), (2.5, 0)):
        monkeypatch.setattr(importance, "CHUNK_BYTES", int(fit * together.SAMPLES * CHUNK_BYTES / importance.samples_that_fit(frame)))
        assert together.sets_together(frame) == expected
        monkeypatch.setattr(importance, "CHUNK_BYTES", CHUNK_BYTES)


def test_on_a_cpu_sets_are_drawn_one_by_one():
    assert jax.default_backend() != "cpu" or together.sets_together(asked(ALARM, [{}])[0].frame) == 0
