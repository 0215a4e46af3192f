"""The student: densities node by node, a joint that no message per node can give, and its place in runs and files."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unimarg as um
from models import ASIA, OPTIONS, random_model, same, train
from networks import random_network
from unimarg.batches import Given, Plan, batches, labelled, shown
from unimarg.channels import channel_words, through_channels
from unimarg.compiled import log_conditionals, sample
from unimarg.counter import key_from_seed
from unimarg.encoding import one_hot, prior_slots
from unimarg.evidence import Evidence
from unimarg.layout import compile_network
from unimarg.masking import Among, Fixed, UniformRate
from unimarg.ragged import grouped
from unimarg.relevance import has_observed_descendant
from unimarg.student import BLOCK, Student, batch_rows, descendants
from unimarg.training import (
    View,
    averaged,
    initial_state,
    learn,
    loss,
    message_log_q,
    run_steps,
    student_log_q,
    student_loss,
    student_view,
)

ROWS = 5


def setting(net, rows=ROWS, **options):
    """A random model with a student, its plan and constants, and what its trunk sees of samples ``[nodes, rows]``."""
    model = random_model(net, **({"student": 6} | options))
    compiled = compile_network(net)
    plan = Plan(compiled.layout, model.ragged, model.recipe, 1, False)
    priors = prior_slots(model.priors, model.ragged)
    given = Given(compiled.arrays, key_from_seed(0), *priors, jnp.int32(100), jnp.asarray(descendants(net)))
    states = jnp.asarray(sample(net, rows, seed=1).T)
    observed = jnp.asarray(np.random.default_rng(0).random(states.shape) < 0.3)
    known, values = model.ragged.rows(observed), one_hot(model.ragged.rows(states), model.ragged)
    certain = known
    if model.recipe.virtual:
        drawn = channel_words(key_from_seed(3), jnp.arange(rows, dtype=jnp.uint32), len(net))
        channels = jax.jit(lambda s: through_channels(drawn, 0.5, known, s, model.ragged))
        values, certain = channels(model.ragged.rows(states))
    features = jnp.asarray(np.random.default_rng(2).standard_normal((rows, 16)), jnp.float32)
    messages = jnp.asarray(np.random.default_rng(3).standard_normal((rows, model.ragged.slots)), jnp.float32)
    tables = grouped(log_conditionals(compiled, states), model.ragged)
    return model, plan, given, states, View(features, messages, known, certain, values, tables)


def naive(model, states, view):
    """log q_i(k), ``[K]`` for each sample and node, and whether it is counted: sample by sample, node by node, in float64."""
    net, ragged, student = model.net, model.ragged, jax.tree.map(lambda a: np.asarray(a, np.float64), model.student)
    for r, x in enumerate(np.asarray(states).T):
        known, certain = (np.asarray(a[r])[ragged.place] for a in (view.known, view.certain))
        likelihood = {i: np.asarray(view.values[g][r, j], np.float64) for i, (g, j) in enumerate(ragged.member) if known[i] > certain[i]}
        above = has_observed_descendant(net, Evidence({i: int(x[i]) for i in np.flatnonzero(certain)}, likelihood))
        before = np.asarray(view.features[r], np.float64) @ student.evidence.weight + student.evidence.bias
        for i, k in enumerate(net.cards):
            h = np.append(0, student.out[i] @ np.maximum(before, 0) + student.bias[i])[:k]
            if not known[i]:
                group, j = ragged.member[i]
                h[1:] += np.asarray(ragged.split(view.messages)[group][r, j])
            q = net.mechanisms[i].expand()[tuple(x[p] for p in net.parents[i])] * likelihood.get(i, 1.0) * np.exp(h)
            yield r, i, q / q.sum(), above[i] and not certain[i]
            if not certain[i]:
                before = before + student.rows[i, x[i]]


@pytest.mark.parametrize("virtual", [0.0, 0.5])
@pytest.mark.parametrize("nodes", [7, 2 * BLOCK + 3])
def test_densities_and_loss_of_all_nodes_at_once_are_those_of_a_plain_loop(nodes, virtual):
    net = random_network(nodes, nodes)
    model, plan, given, states, view = setting(net, virtual=virtual)
    assert not virtual or (view.known & ~view.certain).any()
    log_q = np.asarray(jax.jit(lambda s, v, x: student_log_q(s, plan, v, x))(model.student, view, states))
    total, count = 0.0, 0
    for r, i, q, counted in naive(model, states, view):
        np.testing.assert_allclose(np.exp(log_q[i, : len(q), r]), q, atol=3e-6)
        if counted:
            total, count = total - np.log(q[states[i, r]]), count + 1
    assert 0 < count < states.size / 2
    assert float(jax.jit(lambda s: student_loss(s, plan, given, view, states))(model.student)) == pytest.approx(total / count, rel=1e-5)


def test_only_what_was_drawn_before_a_node_matters_to_it():
    net = random_network(3, 20)
    model, *_, states, view = setting(net)
    card = model.ragged.largest
    messages = jax.jit(lambda s, x, drawn: s.messages(view.features, x, drawn))
    before = np.asarray(messages(model.student, states, jnp.ones(states.shape, bool)))
    assert before.shape == (20, card, ROWS)
    assert (before[:, 0] == 0).all()
    for i in (0, 9, 19):
        other = states.at[i].set((states[i] + 1) % card)
        after = np.asarray(messages(model.student, other, jnp.ones(states.shape, bool)))
        assert (after[: i + 1] == before[: i + 1]).all()
        assert i == 19 or (after[i + 1 :] != before[i + 1 :]).any()
        observed = jnp.ones(states.shape, bool).at[i].set(False)
        hidden = [np.asarray(messages(model.student, s, observed)) for s in (states, other)]
        assert (hidden[0] == hidden[1]).all()  # an observed state reaches the student through the trunk alone


def test_descendants():
    net = random_network(8, 15)
    below = descendants(net)
    for i in range(15):
        assert (below[:, i] == has_observed_descendant(net, Evidence({i: 0}, {}))).all()


def test_a_student_starts_at_the_tables():
    student = Student.make(0, 8, 16, 5, 3)
    h = student.messages(jnp.ones((2, 16)), jnp.zeros((5, 2), jnp.int8), jnp.ones((5, 2), bool))
    assert (h == 0).all()


def test_rows_of_a_batch():
    assert [batch_rows(b) for b in (8, 32, 64, 256, 1024)] == [8, 32, 32, 32, 128]


def explaining_away(causes: int = 6, effects: int = 4):
    """Effects that hardly ever happen without a cause, each with all the causes: given an effect, one cause speaks against the others."""
    names = [f"c{i}" for i in range(causes)]
    seen = [f"e{j}" for j in range(effects)]
    weights = np.random.default_rng(1).uniform(0.3, 0.95, size=(effects, causes))
    return um.Network(
        [um.Variable(n) for n in names + seen],
        dict.fromkeys(seen, names),
        {n: [0.9, 0.1] for n in names} | {e: um.NoisyOr(0.001, w.tolist()) for e, w in zip(seen, weights, strict=True)},
    )


def test_a_student_learns_what_messages_cannot():
    net = explaining_away()
    findings = Among(UniformRate(), tuple(range(6, 10)))
    options = {
        "hidden": (48,),
        "batch": 256,
        "virtual": 0,
        "rounds": 0,
        "student": 48,
        "message_weight": 1,
        "learning_rate": 5e-3,
        "warm_up": 20,
    }
    model = um.train(net, "default", "800 steps", 1, mask=findings, **options)
    compiled = compile_network(net)
    plan = Plan(compiled.layout, model.ragged, model.recipe, 1, False)
    priors = prior_slots(model.priors, model.ragged)
    given = Given(compiled.arrays, key_from_seed(0), *priors, jnp.int32(1), jnp.asarray(descendants(net)))
    states = jnp.asarray(sample(net, 1 << 15, seed=99).T)
    states = states[:, (states[6:] > 0).any(axis=0)]
    samples = jnp.arange(states.shape[1], dtype=jnp.uint32)
    observed = Fixed(tuple(range(6, 10))).draw(given.key, samples, 10)
    batch = labelled(plan, given, jnp.uint32(0), *shown(plan, states, observed, None), None, states, observed, samples)
    _, ((features, message), _) = loss(model.trunk, plan, given, batch)
    view = View(features, message, batch.known, batch.certain, batch.values, batch.tables)
    by_message = jnp.stack(message_log_q(model.ragged, message, view.tables)[0]).transpose(2, 0, 1)
    by_student = student_log_q(model.student, plan, view, states)
    log_joint = {}
    for name, log_q in {"message": by_message, "student": by_student}.items():
        each = jnp.take_along_axis(log_q[:6], states[:6, None].astype(int), axis=1)[:, 0]
        log_joint[name] = float(each.sum(axis=0).mean())
    # the best that any proposal can do: the posterior itself, by enumeration
    effects, index = np.unique(np.asarray(states[6:]).T, axis=0, return_inverse=True)
    evidence = np.array([um.exact(net, {f"e{j}": int(k) for j, k in enumerate(row)}, []).log_evidence for row in effects])
    best = float((net.log_probability(np.asarray(states).T) - evidence[index]).mean())
    gap = {name: best - value for name, value in log_joint.items()}
    assert 0 < gap["student"] < gap["message"] / 2, gap


@pytest.fixture(scope="module")
def whole():
    return train()


def test_the_trunk_does_not_feel_the_student(whole):
    alone = train(student=0)
    assert alone.student is None
    for a, b in zip(jax.tree.leaves(alone.trunk), jax.tree.leaves(whole.trunk), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    assert (np.asarray(whole.student.out) != 0).any()


def test_interrupted_and_resumed_to_the_same_student(whole, tmp_path):
    path = tmp_path / "run.um"

    def stop(p):
        raise KeyboardInterrupt

    stopped = train(checkpoint=path, progress=stop)
    assert same(um.load_model(path).student, stopped.student)
    assert not same(stopped.student, whole.student)
    done = train(checkpoint=path, resume=True)
    assert same(done.student, whole.student)
    assert same(um.load_model(path).student, whole.student)


def test_weights_of_the_student_are_averaged():
    model, plan, *_ = setting(ASIA, average=0.9)
    learner = initial_state(plan, 0).student
    assert same(learner.average, learner.weights)
    gradient = jax.tree.map(jnp.ones_like, model.student)
    after = learn(model.recipe, setting(ASIA)[2], jnp.int32(50), learner, gradient)
    assert same(after.average, learner.average)
    after = averaged(model.recipe, jnp.int32(50), jnp.int32(1), after)
    assert same(after.best, after.average)
    moved = [(np.asarray(x) - y) for x, y in ((after.weights.bias, learner.weights.bias), (after.best.bias, learner.weights.bias))]
    np.testing.assert_allclose(moved[1], moved[0] * (1 - 51 / 60), rtol=1e-4)
    four = averaged(model.recipe, jnp.int32(50), jnp.int32(4), after._replace(average=learner.average))
    np.testing.assert_allclose(four.best.bias - learner.weights.bias, moved[0] * (1 - (51 / 60) ** 4), rtol=1e-4)


def test_several_batches_are_one_to_the_student():
    _, plan, given, *_ = setting(ASIA, batch=64)
    plan = replace(plan, steps_per_call=8, half=True)
    assert (plan.together, plan.student_rows) == (4, 32)
    made = batches(plan, given, jnp.int32(0))
    features = jnp.asarray(np.random.default_rng(0).standard_normal((4, 32, 16)), jnp.float32)
    view, states = student_view(plan, made, jnp.int32(4), features, None)
    assert states.shape == (8, 4 * 32)
    for n in range(4):
        rows = slice(32 * n, 32 * (n + 1))
        assert (states[:, rows] == made.states[4 + n, :, :32]).all()
        assert (view.features[rows] == features[n]).all()
        for seen, given_to_all in ((view.known, made.known), (view.certain, made.certain)):
            assert (seen[rows] == given_to_all[4 + n, :32]).all()
        for seen, given_to_all in zip(view.tables + view.values, made.tables + made.values, strict=True):
            assert (seen[rows] == given_to_all[4 + n, :32]).all()


def test_a_run_may_end_between_two_steps_of_the_student():
    """A GPU takes four of the trunk for one of the student, and as many turns in every call."""
    _, plan, given, *_ = setting(ASIA, batch=64)
    ends = []
    for calls in (4, 8):
        several = replace(plan, steps_per_call=calls, half=True)
        state = initial_state(several, 0)
        for _ in range(16 // calls):
            state, _ = run_steps(several, given._replace(steps=jnp.int32(6)), state)
        assert int(state.step) == 6
        assert int(state.student.optimizer[0].count) == 2
        ends.append(jax.tree.leaves(state.student))
    for one, other in zip(*ends, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_random_model_has_the_student_of_its_recipe():
    assert random_model(ASIA, **OPTIONS).student.rows.shape == (8, 2, 8)
    assert random_model(ASIA, preset="small").student is None
    assert random_model(ASIA, preset="paper").student is None
