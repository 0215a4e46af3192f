import jax
import numpy as np
import pytest

import unimarg as um
from unimarg.errors import UsageError
from unimarg.masking import Fixed, Mixture, Rates, UniformRate
from unimarg.presets import OPTIONS, PRESETS, recipe
from unimarg.trunk import Architecture

ASIA = um.example("asia")


def test_the_paper():
    made = recipe(ASIA, "paper")
    assert made.architecture == Architecture((4096,), residual=False, dropout=0.5, heads=("marginal",), from_prior=False)
    assert made.mask == UniformRate()
    assert made.observed_loss
    assert made.student == 0  # its one layer is its own
    assert (made.labels, made.warm_up, made.average, made.clip, made.virtual) == ("sample", 0, 0, 0, 0)  # plain Adam on samples
    assert {recipe(ASIA, "paper", encoding=e).encoding for e in ("two_bit", "prior")} == {"two_bit", "prior"}


def test_a_gpu_gets_wider_work(monkeypatch):
    before = {preset: recipe(ASIA, preset) for preset in PRESETS}
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    after = {preset: recipe(ASIA, preset) for preset in PRESETS}
    wide = before["default"].architecture, after["default"].architecture
    assert [a.hidden for a in wide] == [(1024,) * 3, (2048,) * 3]
    assert (before["default"].batch, after["default"].batch) == (1024, 2048)
    assert (before["paper"].batch, after["paper"].batch) == (256, 2048)
    assert before["paper"].architecture == after["paper"].architecture
    assert before["small"] == after["small"]


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_can_be_hashed_and_made_again(preset):
    made = recipe(ASIA, preset)
    assert made.preset == preset
    assert hash(made) == hash(recipe(ASIA, preset))
    assert made != recipe(ASIA, preset, batch=2)


def test_small_has_fewer_rounds_where_no_causes_compete():
    clinical = um.medical(1, 2, 3, seed=1)
    assert [recipe(net, preset).rounds for net in (ASIA, clinical) for preset in ("default", "small", "paper")] == [6, 4, 0, 6, 6, 0]


def test_changes_reach_recipe_and_architecture_at_once():
    # each alone would not fit the preset: blocks of a residual trunk have one width
    made = recipe(ASIA, "small", hidden=[np.int64(64), 32], residual=False, batch=np.int64(8), learning_rate=np.float32(0.5))
    assert made.architecture.hidden == (64, 32)
    assert [type(h) for h in made.architecture.hidden] == [int, int]
    assert (made.batch, type(made.batch), made.learning_rate, type(made.learning_rate)) == (8, int, 0.5, float)
    assert recipe(ASIA, "small", Fixed((1,))).mask == Fixed((1,))
    assert "hidden" in OPTIONS
    assert "mask" not in OPTIONS


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"preset": "papr"}, "did you mean 'paper'"),
        ({"hiden": (3,)}, "did you mean 'hidden'"),
        ({"architecture": None}, "no training option"),
        ({"encoding": "prio"}, "did you mean 'prior'"),
        ({"labels": "exakt"}, "did you mean 'exact'"),
        *(({"batch": b}, "batch") for b in (0, -4, 3, 100, 64.0, "64", None, True)),
        *(({"hidden": h}, "hidden|layer") for h in (512, (), (0,), (1.5,), ("a",), "64", None)),
        *(({"dropout": d}, "dropout") for d in (1, -0.1, float("nan"), "half")),
        *(({"heads": h}, "heads") for h in (("message",), (), ("marginal", "marginal"), ("marginal", "foo"))),
        *(({"learning_rate": r}, "learning_rate") for r in (-1, float("nan"), float("inf"), "fast", None)),
        ({"virtual": 1.5}, "virtual"),
        ({"average": 2}, "average"),
        ({"clip": -1}, "clip"),
        ({"warm_up": -1}, "warm_up"),
        *(({"student": units}, "student") for units in (-1, 1.5, "256", None, True)),
        ({"hidden": (8, 4), "residual": True}, "one width"),
        ({"gated": True}, "needs from_prior"),
        ({"gated": 1}, "gated must be true or false"),
        ({"pairs": 1}, "pairs must be true or false"),
        ({"mask": Fixed((8,))}, "no node 8"),
        ({"mask": Rates((0.5,))}, "rates"),
        ({"mask": Mixture([UniformRate(), Fixed((99,))])}, "no node 99"),
        ({"mask": "uniform"}, "mask"),
    ],
)
def test_nonsense_is_refused(changes, word):
    with pytest.raises(UsageError, match=word):
        recipe(ASIA, **({"preset": "paper"} | changes))


def test_a_mask_of_the_wrong_shape_is_refused():
    class Sideways:
        def draw(self, key, samples, nodes):
            return UniformRate().draw(key, samples, nodes).T

    with pytest.raises(UsageError, match=r"\[nodes, samples\]"):
        recipe(ASIA, mask=Sideways())
