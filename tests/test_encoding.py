"""How evidence enters the network, by hand; and that what is hidden does not enter at all."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from networks import states_order
from unimarg.encoding import ENCODINGS, encode, one_hot, prior_slots, starts
from unimarg.passes import answer as one_pass
from unimarg.ragged import Ragged, log_normalised
from unimarg.trunk import Architecture, Trunk

MIXED = (3, 2, 1, 5, 2, 3, 4, 1, 2, 2, 7, 11)  # orders and sizes mixed, single states among them
ROWS = 64


def layout(cards=MIXED):
    ragged = Ragged(cards)
    rng = np.random.default_rng(len(cards))
    return ragged, *prior_slots([rng.dirichlet(np.ones(k)) for k in cards], ragged)


def draw(cards=MIXED, seed=0):
    """Which are known, and states, both in the order of the layout."""
    rng = np.random.default_rng(seed)
    ragged = Ragged(cards)
    states = np.stack([rng.integers(cards[i], size=ROWS, dtype=np.int32) for i in ragged.order], axis=1)
    return rng.random(states.shape) < 0.5, states


def test_binary_nodes_are_the_papers():
    ragged = Ragged((2, 2, 2))
    priors = prior_slots([np.array([1 - p, p]) for p in (0.1, 0.2, 0.3)], ragged)[0]
    known, values = jnp.array([[True, True, False]]), one_hot(jnp.array([[1, 0, 1]]), ragged)
    two_bit, prior = (np.asarray(encode(e, known, values, ragged, priors)) for e in ("two_bit", "prior"))
    np.testing.assert_array_equal(two_bit, [[1, 1, 0, 1, 0, 0]])  # observed? then: value
    np.testing.assert_array_equal(prior, np.array([[1, 1, 0, 1, 0, 0.3]], np.float32))  # the prior where hidden
    assert two_bit.dtype == np.float32


def test_categorical_and_virtual():
    ragged = Ragged((3, 2, 1, 3))  # in order of states: node 2 (no slot), 1 (1), 0 (2), 3 (2)
    assert ragged.order.tolist() == [2, 1, 0, 3]
    priors = prior_slots([np.array([0.2, 0.3, 0.5]), np.array([0.9, 0.1]), np.ones(1), np.array([0.6, 0.25, 0.15])], ragged)[0]
    known = jnp.array([[False, True, True, False], [True, False, False, True]])
    values = one_hot(jnp.array([[0, 1, 2, 1], [0, 0, 0, 0]]), ragged)
    values[2] = values[2].at[1, 1].set(jnp.array([0.5, 0.3, 0.2]))  # node 3, second row: a likelihood
    np.testing.assert_allclose(
        encode("two_bit", known, values, ragged, priors),
        [[0, 1, 1, 0, 1, 0, 1, 0, 0], [1, 0, 0, 1, 0, 0, 0, 0.3, 0.2]],
        rtol=1e-6,
    )
    np.testing.assert_allclose(
        encode("prior", known, values, ragged, priors),
        [[0, 1, 1, 0, 1, 0, 1, 0.25, 0.15], [1, 0, 0, 1, 0.1, 0.3, 0.5, 0.3, 0.2]],
        rtol=1e-6,
    )


def test_graded_by_hand():
    ragged = Ragged((2, 3, 1))  # in order of states: node 2 (no slot), 0 (1), 1 (2)
    priors, logits = prior_slots([np.array([0.9, 0.1]), np.array([0.2, 0.3, 0.5]), np.ones(1)], ragged)
    known = jnp.array([[True, True, False]] * 4 + [[True, False, True]])
    pairs = [[1, 0], [0.5, 0.5], [0.25, 0.75], [1e-30, 1], [0.5, 0.5]]
    values = [jnp.ones((5, 1, 1)), jnp.array(pairs)[:, None], jnp.tile(jnp.array([0.7, 0.2, 0.1]), (5, 1, 1))]
    x = np.asarray(encode("graded", known, values, ragged, priors))
    # certain; nothing told, as if hidden; P(x | finding) = .075 / (.225 + .075), half of it told; all but certain
    np.testing.assert_allclose(x[:, :2], [[1, 1], [1, 0], [1, 0.5], [1, 1], [1, 0]], rtol=1e-6)
    np.testing.assert_allclose(x[:, 3], [0, 0, 0.5 * 0.25, 1, 0], rtol=1e-6)
    alone = np.array([0.14, 0.06, 0.05])
    np.testing.assert_allclose(x[4, [2, 4, 5]], [0.6, *0.6 * alone[1:] / alone.sum()], rtol=1e-6)
    assert (x[:4, [2, 4, 5]] == 0).all()  # hidden
    start = starts("graded", known, values, ragged, logits)
    said = np.array([-np.log(1e30), 0, np.log(3), np.log(1e30), 0])
    np.testing.assert_allclose(start["message"][:, 0], said, atol=1e-5)
    np.testing.assert_allclose(start["message"][4, 1:], np.log([2 / 7, 1 / 7]), atol=1e-6)
    np.testing.assert_allclose(start["marginal"], logits + start["message"], atol=1e-5)
    assert (start["message"][:4, 1:] == 0).all()
    assert starts("two_bit", known, values, ragged, logits) == {}


@pytest.mark.parametrize("cards", [MIXED, (2, 2, 2)])
def test_certain_findings_are_graded_as_two_bit(cards):
    ragged, priors, _ = layout(cards)
    known, states = draw(cards)
    for kind in (bool, np.float32):
        values = one_hot(states, ragged, kind)
        graded, two_bit = (encode(e, known, values, ragged, priors) for e in ("graded", "two_bit"))
        np.testing.assert_allclose(graded, two_bit, rtol=2e-7, atol=0)


def test_one_hot_of_a_negative_state_is_zero():
    parts = one_hot(jnp.array([[0, -1, 2]]), Ragged((1, 3, 3)))
    assert [p.tolist() for p in parts] == [[[[1]]], [[[0, 0, 0], [0, 0, 1]]]]


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_hidden_value_never_changes_the_output(encoding, jit):
    ragged, priors, logits = layout()
    trunk = Trunk.make(3, Architecture((16,)), len(MIXED) + ragged.slots, ragged.slots)
    known, states = draw()
    other = np.where(known, states, draw(seed=9)[1])
    assert (states != other).any()

    def answer(known, states):
        x = encode(encoding, known, one_hot(states, ragged), ragged, priors)
        return (
            x,
            trunk(x, {"marginal": logits})["marginal"],
            *one_pass(ragged, encoding, False, trunk, priors, logits, known, one_hot(states, ragged)),
        )

    run = jax.jit(answer) if jit else answer
    with jax.disable_jit(not jit):
        one, two = run(known, states), run(known, other)
    assert all((np.asarray(a) == np.asarray(b)).all() for a, b in zip(one, two, strict=True))
    # and the test can fail: an observed value does change it
    changed = np.where(known, (states + 1) % np.array(MIXED, np.int32)[ragged.order], states)
    with jax.disable_jit(not jit):
        assert (np.asarray(run(known, changed)[1]) != np.asarray(one[1])).any()


@pytest.mark.parametrize("cards", [MIXED, (1, 1), (63, 2, 21, 2, 3)])
def test_jit_equals_eager(cards):
    # XLA has been seen to get nested concatenations wrong on a CPU (jax issue 40588)
    ragged, priors, logits = layout(cards)
    known, states = draw(cards)
    trunk = Trunk.make(3, Architecture((8,)), len(cards) + ragged.slots, ragged.slots)
    for encoding in ENCODINGS:

        def everything(known, states, encoding=encoding):
            values = one_hot(states, ragged)
            x = encode(encoding, known, values, ragged, priors)
            return values, x, one_pass(ragged, encoding, False, trunk, priors, logits, known, values)

        values, x, answer = jax.jit(everything)(known, states)
        with jax.disable_jit():
            plain_values, plain_x, plain_answer = everything(known, states)
        assert all((a == b).all() for a, b in zip(values, plain_values, strict=True))
        assert (x == plain_x).all()
        for a, b in zip(answer, plain_answer, strict=True):
            np.testing.assert_allclose(a, b, atol=2e-6)


def test_layout_against_loops():
    ragged = Ragged(MIXED)
    logits = np.random.default_rng(0).standard_normal((4, ragged.slots)).astype(np.float32)
    log_p = [np.stack(log_normalised(states), axis=-1) for states in ragged.by_states(jnp.asarray(logits))]
    flat = np.concatenate([p.reshape(4, -1) for p in log_p], axis=1)[:, states_order(ragged)]
    at, by_node = 0, {}
    for i in sorted(range(len(MIXED)), key=lambda i: (MIXED[i], i)):
        full = np.concatenate([np.zeros((4, 1)), logits[:, at : at + MIXED[i] - 1]], axis=1)
        by_node[i] = full - np.log(np.exp(full).sum(axis=1, keepdims=True))
        at += MIXED[i] - 1
    np.testing.assert_allclose(flat, np.concatenate([by_node[i] for i in range(len(MIXED))], axis=1), atol=1e-5)
    states = np.arange(2 * len(MIXED)).reshape(len(MIXED), 2)
    assert (np.asarray(ragged.rows(jnp.asarray(states))) == states[ragged.order].T).all()
    assert [ragged.order[sum(n for _, n in ragged.groups[:g]) + j] for g, j in ragged.member] == list(range(len(MIXED)))
