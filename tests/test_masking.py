"""Distributions over masks: one contract for all, then what each is for."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest

import unimarg as um
from unimarg.counter import key_from_seed
from unimarg.errors import UsageError
from unimarg.masking import Among, Fixed, LogUniformRate, Mixture, Prefix, Rates, UniformRate, can_show, leaves, observable

NODES, MANY = 12, 1 << 15
ODD, RATES = tuple(range(1, NODES, 2)), tuple(i / (NODES - 1) for i in range(NODES))
MASKS = {
    "uniform": UniformRate(),
    "log-uniform": LogUniformRate(),
    "rates": Rates(RATES),
    "among": Among(UniformRate(), ODD),
    "prefix": Prefix(LogUniformRate()),
    "mixture": Mixture((UniformRate(), Among(LogUniformRate(), ODD), Fixed((2, 5))), (1, 2, 3)),
    "nested": Mixture((Mixture((UniformRate(), Fixed((1,)))), Prefix(Mixture((Fixed(()), LogUniformRate()))))),
}


def draw(mask, seed=0, first=0, count=MANY, nodes=NODES) -> np.ndarray:
    return np.asarray(mask.draw(key_from_seed(seed), first + jnp.arange(count, dtype=jnp.uint32), nodes))


def assert_contract(mask) -> None:
    """What training relies on."""
    whole = draw(mask, count=1000)
    assert whole.shape == (NODES, 1000)
    assert whole.dtype == bool
    assert (draw(mask, first=100, count=100) == whole[:, 100:200]).all()
    assert (draw(mask, count=1000) == whole).all()
    assert (draw(mask, seed=1, count=1000) != whole).any()
    assert len(np.unique(whole, axis=1).T) > 1
    assert len({mask, eval(repr(mask))}) == 1  # made of plain values, compared by them


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_contract(mask):
    assert_contract(mask)


@dataclass(frozen=True)
class ByPosition:
    """Broken on purpose: it goes by the position in the chunk."""

    def draw(self, key, samples, nodes):
        return UniformRate().draw(key, jnp.arange(samples.shape[0], dtype=jnp.uint32), nodes)


def test_the_contract_can_fail():
    with pytest.raises(AssertionError):
        assert_contract(ByPosition())


def z_scores(counts: np.ndarray, expected: np.ndarray, n: int = MANY) -> np.ndarray:
    """Of frequencies that should be binomial; certain ones must be exact."""
    error = np.sqrt(expected * (1 - expected) / n)
    assert (counts[error == 0] == n * expected[error == 0]).all()
    return (counts / n - expected)[error > 0] / error[error > 0]


def sizes(observed: np.ndarray) -> np.ndarray:
    return np.bincount(observed.sum(axis=0), minlength=len(observed) + 1)


def test_uniform_rate_observes_every_number_of_nodes_equally_often():
    # p ~ U[0, 1] makes the number of observed nodes uniform on 0 .. n (paper, section 2.1)
    observed = draw(MASKS["uniform"])
    assert np.abs(z_scores(sizes(observed), np.full(NODES + 1, 1 / (NODES + 1)))).max() < 4
    assert np.abs(z_scores(observed.sum(axis=1), np.full(NODES, 0.5))).max() < 4
    both = (observed[0] & observed[7]).sum()
    assert abs(z_scores(np.array([both]), np.array([1 / 3]))[0]) < 4  # E p^2: one rate for all nodes of a sample


def test_log_uniform_rate():
    rates = np.exp(np.log(0.5 / NODES) * (np.arange(10_000) + 0.5) / 10_000)
    observed = draw(MASKS["log-uniform"])
    expected = np.array([rates.mean(), (rates**2).mean(), ((1 - rates) ** NODES).mean()])
    found = np.array([observed[3].sum(), (observed[3] & observed[8]).sum(), sizes(observed)[0]])
    assert np.abs(z_scores(found, expected)).max() < 4
    assert draw(LogUniformRate(least=100)).all()  # more than there are


def test_fixed_and_per_node_rates():
    assert (draw(Fixed((2, 5)), count=3) == np.isin(np.arange(NODES), [2, 5])[:, None]).all()
    assert not draw(Fixed(()), count=3).any()
    observed = draw(MASKS["rates"])
    assert np.abs(z_scores(observed.sum(axis=1), np.array(RATES))).max() < 4
    assert abs(z_scores(np.array([(observed[5] & observed[6]).sum()]), np.array([RATES[5] * RATES[6]]))[0]) < 4


def test_among_keeps_only_some():
    observed = draw(MASKS["among"])
    assert (observed[list(ODD)] == draw(MASKS["uniform"])[list(ODD)]).all()
    assert not np.delete(observed, ODD, axis=0).any()


def test_prefix_of_every_length():
    observed = draw(Prefix(Fixed((9,))))
    length = np.where(observed.all(axis=0), NODES, np.argmin(observed, axis=0))
    expected = np.full(NODES + 1, 1 / (NODES + 1))
    expected[[9, 10]] = 0, 2 / (NODES + 1)  # node 9 is shown anyway
    assert np.abs(z_scores(np.bincount(length, minlength=NODES + 1), expected)).max() < 4
    behind = np.arange(NODES)[:, None] > length
    assert (observed[behind] == np.broadcast_to(np.arange(NODES)[:, None] == 9, behind.shape)[behind]).all()


def test_mixture_weights():
    parts = Mixture((Fixed((0,)), Fixed((1,)), Fixed((2,)), Fixed((3,))), (1, 2, 0, 5))
    assert np.abs(z_scores(draw(parts)[:4].sum(axis=1), np.array([1, 2, 0, 5]) / 8)).max() < 4
    assert np.abs(z_scores(draw(Mixture((Fixed((0,)), Fixed((1,)))))[:2].sum(axis=1), np.array([0.5, 0.5]))).max() < 4


@pytest.mark.parametrize("weights", [(0.35, 0.35, 0.2, 0.1), (1, 1, 1), (0.1,) * 7, (3, 1e-9, 7)])
def test_a_mixture_made_of_its_own_weights_is_the_same(weights):
    made = Mixture((UniformRate(),) * len(weights), weights)
    assert Mixture(made.masks, made.weights) == made


def test_a_mixture_inside_another_chooses_for_itself():
    inner = Mixture((Fixed((0,)), Fixed((1,))))
    expected = np.array([0.25, 0.25, 0.5])
    for nested in (inner, Prefix(Among(inner, (0, 1)))):
        observed = draw(Mixture((Among(nested, (0, 1)), Fixed((2,)))))
        if nested is inner:
            assert np.abs(z_scores(observed[:3].sum(axis=1), expected)).max() < 4
        else:  # the prefix is of length 0 for 1 of 13
            assert abs(z_scores(np.array([(observed[1] & ~observed[0]).sum()]), np.array([0.25 / 13]))[0]) < 4


def test_lists_and_numpy_numbers_are_as_good_as_tuples():
    made = Mixture(
        [Fixed(np.array([1, 2])), Rates(np.array([0.5, 1.0], np.float32)), Among(UniformRate(), [np.int64(0)])], np.array([1, 1, 2])
    )
    assert made == Mixture((Fixed((1, 2)), Rates((0.5, 1.0)), Among(UniformRate(), (0,))), (0.25, 0.25, 0.5))
    assert hash(made) == hash(eval(repr(made)))


def test_observable():
    net = um.example("asia")
    assert [net.names[i] for i in leaves(net)] == ["xray", "dysp"]
    by_rate = draw(observable(net, {"dysp": 0.9, "xray": 0.3}), nodes=8)
    assert np.abs(z_scores(by_rate.sum(axis=1), np.array([0, 0, 0, 0, 0, 0, 0.3, 0.9]))).max() < 4
    by_name = draw(observable(net, ["dysp", "xray", "smoke"]), nodes=8)
    shown = [net.index[n] for n in ("dysp", "xray", "smoke")]
    assert not np.delete(by_name, shown, axis=0).any()
    assert set(map(tuple, by_name[shown].T.tolist())) == {(a, b, c) for a in (0, 1) for b in (0, 1) for c in (0, 1)}


@pytest.mark.parametrize(
    "make",
    [
        lambda net: Mixture(()),
        lambda net: Mixture((UniformRate(),), (1, 2)),
        lambda net: Mixture((UniformRate(), UniformRate()), (-1, 2)),
        lambda net: Mixture((UniformRate(), UniformRate()), (0, 0)),
        lambda net: Mixture((UniformRate(), UniformRate()), (float("nan"), 1)),
        lambda net: LogUniformRate(0),
        lambda net: LogUniformRate(float("nan")),
        lambda net: Rates((0.5, 1.5)),
        lambda net: Fixed((-1,)),
        lambda net: Fixed((1.5,)),
        lambda net: draw(Fixed((NODES,)), count=2),
        lambda net: draw(Among(UniformRate(), (NODES,)), count=2),
        lambda net: draw(Rates((0.5,)), count=2),
        lambda net: observable(net, {"dysp": 1.1}),
        lambda net: observable(net, {"dysp": "often"}),
        lambda net: observable(net, {"dyspp": 0.5}),
        lambda net: observable(net, ["dyspp"]),
        lambda net: observable(net, "dysp"),
        lambda net: observable(net, []),
    ],
)
def test_misuse_is_refused(make):
    with pytest.raises(UsageError):
        make(um.example("asia"))


@pytest.mark.parametrize(
    "mask", [*MASKS.values(), Fixed((2, 5)), Mixture((Fixed((1,)), UniformRate()), (1, 0)), Among(Rates(RATES), (0, 3))]
)
def test_what_a_mask_can_show_is_what_it_shows(mask):
    assert (can_show(mask, NODES) == draw(mask).any(axis=1)).all()
