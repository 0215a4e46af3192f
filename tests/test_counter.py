import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unimarg as um
from unimarg.counter import key_from_seed, threefry, words
from unimarg.errors import UsageError


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [  # the known answers published with Random123 (Salmon et al. 2011) for threefry2x32, 20 rounds
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_known_answers(key, counter, expected):
    high, low = threefry(jnp.array(key, jnp.uint32), *(jnp.array([c], jnp.uint32) for c in counter))
    assert (int(high[0]), int(low[0])) == expected


def test_same_as_jax():
    key = jax.random.key(123)
    data = jax.random.key_data(key)
    high, low = threefry(data, jnp.zeros(1, jnp.uint32), jnp.zeros(1, jnp.uint32))
    folded = jax.random.key_data(jax.random.split(key, 1)[0])  # JAX splits by the counter (0, 0)
    assert [int(high[0]), int(low[0])] == folded.tolist()


def test_words_depend_on_key_sample_and_node():
    a = np.asarray(words(key_from_seed(1), np.arange(4, dtype=np.uint32), np.arange(3, dtype=np.uint32))[0])
    b = np.asarray(words(key_from_seed(2), np.arange(4, dtype=np.uint32), np.arange(3, dtype=np.uint32))[0])
    assert a.shape == (3, 4)
    assert len(np.unique(np.concatenate([a, b]))) == 24


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, "7", None, True])
def test_bad_seed(seed):
    with pytest.raises(UsageError, match="seed"):
        key_from_seed(seed)


def test_64_bits_are_an_error_with_a_way_out(tmp_path):
    net = um.example("asia")
    um.train(net, "small", "1 steps", hidden=(8,), batch=8, checkpoint=tmp_path / "asia.um")
    jax.config.update("jax_enable_x64", True)
    try:
        asked = [
            lambda: um.sample(net, 4),
            lambda: um.infer(net, {"dysp": "yes"}, method="prior"),
            lambda: um.train(net, budget="1 steps"),
            lambda: um.load_model(tmp_path / "asia.um"),
        ]
        for ask in asked:
            with pytest.raises(UsageError, match="jax_enable_x64"):
                ask()
        assert um.exact(net, {"dysp": "yes"}).status == "ok"
    finally:
        jax.config.update("jax_enable_x64", False)
