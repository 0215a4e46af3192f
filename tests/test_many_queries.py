"""One query after another: nothing is compiled again, and nothing is kept."""

import gc

import jax
import numpy as np
import pytest

import unimarg as um
from models import random_model
from unimarg import Network, Variable
from unimarg.frame import frame_of
from unimarg.sums import _weighted_sums
from unimarg.walk import _walk

ALARM = um.example("alarm")


def test_new_evidence_compiles_nothing_and_keeps_no_memory():
    rng = np.random.default_rng(0)

    def ask() -> None:
        chosen = rng.choice(len(ALARM), size=rng.integers(0, 6), replace=False)
        states = um.sample(ALARM, 1, seed=int(rng.integers(1 << 30)))[0]
        evidence: dict[str, object] = {ALARM.names[i]: int(states[i]) for i in chosen}
        if len(chosen):
            evidence[ALARM.names[chosen[0]]] = (rng.random(ALARM.cards[chosen[0]]) + 0.1).tolist()
        targets = None if rng.random() < 0.5 else [ALARM.names[int(rng.integers(len(ALARM)))]]
        for method in ("prior", "lookahead", "adaptive"):
            um.infer(ALARM, evidence, targets, method=method, samples=8192)

    for _ in range(3):
        ask()
    gc.collect()
    programs, arrays = (_walk._cache_size(), _weighted_sums._cache_size()), len(jax.live_arrays())
    for _ in range(12):
        ask()
    gc.collect()
    assert (_walk._cache_size(), _weighted_sums._cache_size()) == programs
    assert len(jax.live_arrays()) <= arrays


@pytest.mark.parametrize("with_model", [False, True])
def test_nothing_is_compiled_after_the_first_query(monkeypatch, with_model):
    """Whatever the evidence, the targets, the error asked for, and however far ``auto`` escalates."""
    net = um.medical(risks=4, diseases=6, symptoms=14, seed=1)
    ask = random_model(net, heads=("marginal", "message")).query if with_model else lambda *a, **o: um.infer(net, *a, **o)
    events: list[str] = []

    def listen(event: str, *_: object, **__: object) -> None:
        events.append(event)

    samples = um.sample(net, 24, seed=3)
    monkeypatch.setattr("unimarg.query.EXACT_ENTRIES", -1)
    ask({}, target_error=0.01)
    jax.monitoring.register_event_duration_secs_listener(listen)
    rng, tried = np.random.default_rng(0), ""
    for number, states in enumerate(samples):
        chosen = rng.choice(len(net), size=rng.integers(0, 8), replace=False)
        evidence: dict[str, object] = {net.names[i]: int(states[i]) for i in chosen}
        if number % 3 == 0:
            evidence[net.names[number % len(net)]] = [0.2, 0.7]
        monkeypatch.setattr("unimarg.query.POOR", 1.1 if number % 2 else 0.05)  # 1.1: nothing is good enough
        monkeypatch.setattr("unimarg.query.EXACT_ENTRIES", 1 << 22 if number % 5 == 0 else -1)
        targets = [net.names[i] for i in rng.choice(len(net), size=2)] if number % 4 == 0 else None
        options = {"target_error": [0.01, 0.004, None][number % 3], "samples": [None, 12_345, 20_000][number % 3]}
        found = ask(evidence, targets, seed=number, **options)
        tried += f"{found.method} {found.message}"
    jax.jit(lambda x: x + len(tried))(1)  # the listener hears of this one
    jax.monitoring.unregister_event_duration_listener(listen)
    assert all(method in tried for method in ("exact", "lookahead", "adaptive", *(["sequential"] if with_model else [])))
    assert sum("backend_compile" in e for e in events) == 1


def test_frames_go_with_their_networks():
    from unimarg import frame

    before = len(frame._frames)
    net = Network([Variable("x")], {}, {"x": [0.3, 0.7]})
    frame_of(net)
    assert len(frame._frames) == before + 1
    del net
    gc.collect()
    assert len(frame._frames) == before
