"""A run from outside: budgets, exact step counts, a clean stop, and going on to the same weights."""

import os
import shutil
import sys
import weakref

import jax
import numpy as np
import pytest

import unimarg as um
from models import ASIA, CALL, OPTIONS, STEPS, same, train
from unimarg import evaluation, trainer, training
from unimarg.checkpoint import save_model
from unimarg.cli.inspect import model_facts
from unimarg.errors import FormatError, TrainingError, UsageError
from unimarg.masking import Fixed
from unimarg.presets import recipe
from unimarg.trainer import estimate_priors, parse_budget
from unimarg.training import State


@pytest.fixture(scope="module")
def whole():
    return train()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that was interrupted after its first call, and its file."""
    path = tmp_path_factory.mktemp("stopped") / "run.um"
    return interrupt(path, CALL), path


def interrupt(path, after: int, **changes):
    def stop(p):
        if p.step >= after:
            raise KeyboardInterrupt

    return train(checkpoint=path, progress=stop, **changes)


@pytest.mark.parametrize(
    ("text", "seconds", "steps"),
    [
        ("60s", 60, None),
        ("10 min", 600, None),
        ("1.5h", 5400, None),
        (" .5 Minutes ", 30, None),
        ("20000 steps", None, 20000),
        ("1 step", None, 1),
        (f"{2**31 - 1}steps", None, 2**31 - 1),
    ],
)
def test_budgets(text, seconds, steps):
    assert parse_budget(text) == (seconds, steps)


def test_slow_calls_right_after_a_compilation_do_not_count(monkeypatch):
    """The first calls take four times as long as those after: the steps fill the budget all the same."""
    clock = [0.0]
    calls = iter([6.0] + [0.4] * 4)

    def slow_at_first(plan, given, state):
        clock[0] += next(calls, 0.1)
        return training.run_steps(plan, given, state)

    monkeypatch.setattr(trainer, "run_steps", slow_at_first)
    monkeypatch.setattr(trainer.time, "perf_counter", lambda: clock[0])
    model = train(budget="60s")
    assert clock[0] == pytest.approx(60, rel=0.1)
    assert model.history["seconds"] == pytest.approx(60, rel=0.1)


NONSENSE = ["", "60", "s", "-1s", "0s", "0 steps", "1.5 steps", f"{2**31} steps", "1e3 s", "nan s", "inf h", "9" * 400 + "s", "3 days"]


@pytest.mark.parametrize("text", [*NONSENSE, 60, None])
def test_nonsense_is_no_budget(text):
    with pytest.raises(UsageError, match="steps"):
        parse_budget(text)
    with pytest.raises(UsageError, match="steps"):
        um.train(ASIA, budget=text)


def test_exactly_as_many_steps_as_asked(whole):
    seen = []
    again = train(progress=seen.append)
    assert [p.step for p in seen] == [8, 16, STEPS]
    assert [p.steps for p in seen] == [STEPS] * 3
    assert all(np.isfinite(p.loss) and p.samples_per_second > 0 and p.seconds > 0 for p in seen)
    assert {k: again.history[k] for k in ("steps", "planned_steps", "samples", "seed")} == {
        "steps": STEPS,
        "planned_steps": STEPS,
        "samples": 16 * STEPS,
        "seed": 1,
    }
    assert same(again.trunk, whole.trunk)  # the same seed, the same weights
    assert same(again.priors, whole.priors)
    assert not same(train(seed=2).trunk, whole.trunk)


def test_interrupted_saved_returned_and_resumed_to_the_same_weights(whole, stopped, tmp_path):
    model, path = stopped
    assert (model.history["steps"], model.history["planned_steps"]) == (CALL, STEPS)
    assert same(um.load_model(path).trunk, model.trunk)
    assert not same(model.trunk, whole.trunk)
    copy = tmp_path / "copy.um"
    copy.write_bytes(path.read_bytes())
    done = train(checkpoint=copy, resume=True, budget="60s")  # the budget is the one of the beginning
    assert (done.history["steps"], done.history["planned_steps"]) == (STEPS, STEPS)
    assert same(done.trunk, whole.trunk)
    assert same(um.load_model(copy).trunk, whole.trunk)
    with pytest.raises(FormatError, match="finished"):
        train(checkpoint=copy, resume=True)


@pytest.mark.parametrize("resumed", [False, True])
def test_the_state_at_the_beginning_is_let_go(stopped, tmp_path, monkeypatch, resumed):
    first, alive = [], []

    def watched(make):
        def made(*given):
            state = make(*given)
            optimizer = jax.tree.leaves((state if isinstance(state, State) else state[0]).trunk.optimizer)
            first.extend(weakref.ref(a) for a in optimizer)
            return state

        return made

    monkeypatch.setattr(trainer, "initial_state", watched(trainer.initial_state))
    monkeypatch.setattr(trainer, "load_state", watched(trainer.load_state))
    train(
        checkpoint=shutil.copy(stopped[1], tmp_path / "run.um"),
        resume=resumed,
        force=not resumed,
        progress=lambda p: alive.append(sum(r() is not None for r in first)),
    )
    assert first
    assert alive == [0] * (2 if resumed else 3)


def test_an_unfinished_run_is_not_written_over(stopped):
    _, path = stopped
    before = path.read_bytes()
    with pytest.raises(UsageError, match=f"unfinished run, at step {CALL} of {STEPS}"):
        train(checkpoint=path)
    with pytest.raises(UsageError, match="choose one"):
        train(checkpoint=path, resume=True, force=True)
    assert path.read_bytes() == before


def test_a_model_is_not_written_over_unless_told(stopped, whole, tmp_path):
    path = tmp_path / "model.um"
    stopped[0].save(path)  # no run that could go on
    before = path.read_bytes()
    with pytest.raises(UsageError, match=r"model\.um is there already: .*force=True, --force"):
        train(checkpoint=path)
    assert path.read_bytes() == before
    assert same(train(checkpoint=path, force=True).trunk, whole.trunk)
    shutil.copy(stopped[1], path)  # one that could
    assert same(train(checkpoint=path, force=True).trunk, whole.trunk)


def test_the_history_goes_on_with_the_run(tmp_path, monkeypatch):
    path = tmp_path / "run.um"
    monkeypatch.setattr(trainer, "HELD_OUT_SECONDS", 0.0)
    first = interrupt(path, CALL, held_out=2).history
    copy = shutil.copy(path, tmp_path / "copy.um")
    done = train(checkpoint=path, resume=True, held_out=2).history
    assert done["seconds"] > first["seconds"] > 0
    assert [step for step, _ in done["held_out"]] == [0, CALL, 2 * CALL, STEPS]
    assert done["held_out"][:2] == first["held_out"]
    others = train(checkpoint=shutil.copy(copy, tmp_path / "others.um"), resume=True, held_out=3).history
    assert [step for step, _ in others["held_out"]] == [CALL, 2 * CALL, STEPS]  # errors of other sets are no part of it
    not_judged = train(checkpoint=copy, resume=True).history
    assert not_judged["held_out"] == [list(pair) for pair in first["held_out"]]
    assert not_judged["loss"] == done["loss"] != first["loss"]


def test_the_history_of_a_run_with_nothing_left_to_do(tmp_path, monkeypatch):
    """It was killed after its last step, before its end was saved."""
    monkeypatch.setattr(trainer, "CHECKPOINT_SECONDS", 0.0)
    path, copy = tmp_path / "run.um", tmp_path / "copy.um"

    def keep(model, to, state=None):
        save_model(model, to, state)
        if state is not None:
            shutil.copy(to, copy)

    monkeypatch.setattr(trainer, "save_model", keep)
    whole = train(checkpoint=path)
    again = train(checkpoint=copy, resume=True)
    assert same(again.trunk, whole.trunk)
    assert again.history["loss"] == whole.history["loss"]
    assert again.history["seconds"] > um.load_model(path).history["seconds"] > 0


def test_interrupted_twice(whole, tmp_path):
    path = tmp_path / "run.um"
    interrupt(path, CALL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "CHECKPOINT_SECONDS", 0.0)
        seen = []

        def stop(p):
            seen.append(p.step)
            raise KeyboardInterrupt

        train(checkpoint=path, resume=True, progress=stop)
        assert seen == [2 * CALL]
        assert same(train(checkpoint=path, resume=True).trunk, whole.trunk)


def test_checkpoints_on_the_way(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "CHECKPOINT_SECONDS", 0.0)
    path = tmp_path / "run.um"
    steps = []

    def look(p):  # told before the checkpoint of the same call
        steps.append(um.load_model(path).history["steps"] if path.exists() else None)

    train(checkpoint=path, progress=look)
    assert steps == [None, 8, 16]
    assert same(um.load_model(path).trunk, whole.trunk)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"seed": 2}, "seed"),
        ({"net": um.example("alarm")}, "network"),
        ({"preset": "small"}, "recipe"),
        ({"hidden": (8,)}, r"recipe \(hidden=\[16\]\)"),
        ({"mask": Fixed((0,))}, r"recipe \(mask\)"),
        ({"learning_rate": 1e-4}, r"recipe \(learning_rate=0.00\d+\)"),
    ],
)
def test_another_run_is_not_resumed(stopped, changes, word):
    before = stopped[1].read_bytes()
    with pytest.raises(FormatError, match=f"another {word}"):
        train(checkpoint=stopped[1], resume=True, **changes)
    assert stopped[1].read_bytes() == before


def test_resume_needs_a_run(tmp_path):
    with pytest.raises(UsageError, match="resume needs"):
        train(resume=True)
    with pytest.raises(FormatError, match="cannot be read"):
        train(resume=True, checkpoint=tmp_path / "none.um")


@pytest.mark.parametrize("calls", [CALL, 1])
def test_a_loss_that_is_no_number_stops_with_the_last_good_model(tmp_path, calls):
    path = tmp_path / "run.um"
    with pytest.raises(TrainingError, match="smaller learning_rate") as e:
        train(checkpoint=path, calls=calls, preset="paper", learning_rate=1e30)
    assert e.value.model.history["steps"] == 0  # already the first step spoils the weights
    answer = e.value.model.query({"dysp": "yes"})
    assert all(np.isfinite(p).all() for p in answer.probabilities)
    assert same(um.load_model(path).trunk, e.value.model.trunk)
    assert str(e.value).endswith(f"; the last good weights are in {path}")
    with pytest.raises(FormatError, match=f"the last good weights of a run that stopped at step 0 of {STEPS}, .* begin anew"):
        train(checkpoint=path, calls=calls, preset="paper", learning_rate=1e30, resume=True)


def test_a_student_that_is_no_number_is_not_saved_as_good(tmp_path, monkeypatch):
    """On a GPU its loss counts only with the last step of a turn."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    original = trainer.run_steps

    def spoil(plan, given, state):
        after, losses = original(plan, given, state)
        if int(after.step) == 8:
            after = after._replace(student=jax.tree.map(lambda a: a * np.nan if a.dtype == np.float32 else a, after.student))
        return after, losses

    monkeypatch.setattr(trainer, "run_steps", spoil)
    path = tmp_path / "run.um"
    with pytest.raises(TrainingError, match="smaller learning_rate") as e:
        train(checkpoint=path, calls=4, student=6)
    assert e.value.model.history["steps"] == 4
    assert all(np.isfinite(a).all() for a in jax.tree.leaves(um.load_model(path).student))


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_a_network_of_nodes_without_a_choice(monkeypatch, backend):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    net = um.Network([um.Variable("a", ("x",)), um.Variable("b", ("y",))], {"b": ["a"]}, {"a": [1.0], "b": [[1.0]]})
    model = train(net, "4 steps", calls=4)
    assert model.query({}, method="um")["b"] == {"y": 1.0}


@pytest.mark.parametrize(
    "changes",
    [
        {"preset": "papr"},
        {"hiden": (3,)},
        {"encoding": "prio"},
        {"preset": ["paper"]},
        {"residual": "abc"},
        {"batch": 100},
        {"seed": -1},
        {"seed": 1.5},
        {"mask": Fixed((8,))},
    ],
)
def test_mistakes_are_told_before_training(changes, monkeypatch, tmp_path):
    monkeypatch.setattr(trainer, "_Run", None)  # nothing may start
    with pytest.raises(UsageError):
        um.train(ASIA, **changes)
    (tmp_path / "folder.um").mkdir()
    for path in (tmp_path / "folder.um", tmp_path / "nowhere" / "run.um"):
        with pytest.raises(FormatError, match="cannot be written"):
            um.train(ASIA, checkpoint=path)
    for name in ("asia.bif", 5):
        with pytest.raises(UsageError, match=f"a model is written to a .um file, not to {name!r}"):
            um.train(ASIA, checkpoint=name)  # pyright: ignore[reportArgumentType]


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="no folder that takes no files")
def test_a_folder_that_takes_no_files_is_told_before_training(monkeypatch):
    """Whoever asks, the superuser too."""
    monkeypatch.setattr(trainer, "_Run", None)
    with pytest.raises(FormatError, match="cannot be written"):
        um.train(ASIA, checkpoint="/proc/run.um")


def test_what_cannot_be_written_is_not_lost(tmp_path, monkeypatch):
    def full(*_):
        raise FormatError("cannot be written: no space left on device", "run.um")

    monkeypatch.setattr(trainer, "save_model", full)
    monkeypatch.setattr(trainer, "CHECKPOINT_SECONDS", 0.0)
    with pytest.warns(UserWarning, match="no space left on device; the training goes on"), pytest.raises(TrainingError) as e:
        train(checkpoint=tmp_path / "run.um")
    assert "the training ended, but" in str(e.value)
    assert e.value.model.history["steps"] == STEPS
    with pytest.raises(TrainingError, match=r"no longer a number .* were not saved: run\.um: cannot be written") as e:
        train(checkpoint=tmp_path / "run.um", preset="paper", learning_rate=1e30)
    assert e.value.model.history["steps"] == 0


def test_exact_labels_need_small_cliques():
    with pytest.raises(UsageError, match="labels='auto'"):
        train(um.example("clinic"), labels="exact")


def test_a_time_budget_becomes_steps_once():
    made = train(budget="0.01s")
    assert made.history["steps"] == made.history["planned_steps"] == CALL  # at least one call


def test_estimated_priors():
    exact = um.exact(ASIA)
    n = trainer.PRIOR_SAMPLES
    for p, truth in zip(estimate_priors(ASIA, 3), exact.probabilities, strict=True):
        assert (np.abs(p - truth) / np.sqrt(truth * (1 - truth) / n) < 4.5).all()
    net = um.Network([um.Variable("a", ("x", "y"))], {}, {"a": [1.0, 0.0]})
    (floored,) = estimate_priors(net, 0)
    assert 0 < floored[1] < 1 / n  # never zero


def test_held_out_sets_out_of_reach_of_exact_inference_have_sampled_references(monkeypatch):
    def too_expensive(*_, **__):
        raise um.TooExpensiveError("no", 1e30)

    monkeypatch.setattr("unimarg.evaluation.clique_tree", lambda *_: None)
    evidence = evaluation.evidence_sets(ASIA, "random", 4, 3)
    exact, none = evaluation.references(ASIA, evidence)
    assert none == 0.0
    monkeypatch.setattr(sys.modules["unimarg.exact"], "exact", too_expensive)
    monkeypatch.setattr("unimarg.query.Asked.small", lambda self: False)
    sampled, error = evaluation.references(ASIA, evidence)
    assert 0 < error < 0.001
    assert 0 < np.abs(sampled - exact).max() < 5 * evaluation.LONG_RUN_ERROR
    model = train(held_out=2)
    assert 0 < model.history["held_out_reference_error"] < 0.001
    assert model_facts(model)["held_out_reference_error"] == model.history["held_out_reference_error"]


def test_held_out_errors_are_told_and_kept_and_change_nothing(whole, monkeypatch):
    monkeypatch.setattr(trainer, "HELD_OUT_SECONDS", 0.0)
    told = []
    model = train(held_out=20, progress=told.append)
    assert same(model.trunk, whole.trunk)
    steps, found = zip(*model.history["held_out"], strict=True)
    assert steps == (0, 8, 16, 19)
    assert [p.held_out for p in told] == list(found[1:])
    run = trainer.HeldOut(ASIA, 20, 1)
    run.measure(model)
    assert run.measured == [model.history["held_out"][-1]]
    rows = ({ASIA.names[i]: int(k) for i, k in enumerate(row) if k >= 0} for row in run.evidence)
    truth = np.stack([np.concatenate(um.exact(ASIA, e).probabilities) for e in rows])
    np.testing.assert_allclose(run.truth, truth, atol=2e-6)
    assert "held_out" not in whole.history


@pytest.mark.parametrize("nonsense", [-1, 1.5, "many", 10**9])
def test_held_out_of_nonsense(nonsense):
    with pytest.raises(UsageError, match="held-out evidence sets"):
        um.train(ASIA, held_out=nonsense)


def test_a_shorter_last_call_is_the_same_program(whole):
    """19 steps in calls of 8, and one call of 32 that stops after 19: the same weights to rounding."""
    before = training.run_steps._cache_size()
    again = train(seed=2)
    assert training.run_steps._cache_size() == before
    assert again.history["steps"] == STEPS
    for a, b in zip(jax.tree.leaves(whole.trunk), jax.tree.leaves(train(calls=32).trunk), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_a_run_on_a_gpu_is_resumed_to_the_same_weights(tmp_path, monkeypatch):
    """With four steps of the trunk for one of the student; whatever budget is given again."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")  # the same program, with products of bfloat16, on this device
    options = {"budget": "22 steps", "student": 6, "seed": 1}
    whole = um.train(ASIA, **(OPTIONS | options))

    def stop(p):
        raise KeyboardInterrupt

    path = tmp_path / "run.um"
    assert train(checkpoint=path, progress=stop, **options).history["steps"] == CALL
    done = um.train(ASIA, checkpoint=path, resume=True, **(OPTIONS | options | {"budget": "2 steps"}))
    assert done.history["steps"] == 22
    for a, b in zip(jax.tree.leaves((whole.trunk, whole.student)), jax.tree.leaves((done.trunk, done.student)), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


@pytest.mark.parametrize(("steps", "batch", "turns"), [(1, 8, 2), (1, 1 << 20, 2), (64, 8, 64)])
def test_a_call_has_two_turns_at_least(steps, batch, turns):
    """However short the run or large the batch: with one, XLA takes the loops apart."""
    made = recipe(ASIA, "paper", hidden=(8,), batch=batch)
    assert trainer._Run(ASIA, made, 0, parse_budget(f"{steps} steps"), 0.0, None, None).plan.steps_per_call == turns


def test_a_run_of_one_step_takes_one():
    one = um.train(ASIA, "paper", "1 steps", hidden=(8,), batch=8, dropout=0)
    assert (one.history["steps"], one.history["samples"]) == (1, 8)
    first = train(budget="1 steps", calls=4, preset="paper", hidden=(8,), batch=8, dropout=0, labels="sample", student=0, seed=0)
    for a, b in zip(jax.tree.leaves(one.trunk), jax.tree.leaves(first.trunk), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
