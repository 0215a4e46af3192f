"""The .um file: what went in comes out; anything else is a sentence."""

import json
import os
import struct

import jax
import numpy as np
import pytest
from safetensors.numpy import load, save

import unimarg as um
from models import ASIA, CALL, random_model, same, train
from networks import random_network
from unimarg import Network, NoisyMax, Variable, checkpoint
from unimarg.checkpoint import _mask_from_json, _mask_to_json, save_model
from unimarg.errors import FormatError, UsageError
from unimarg.formats import files
from unimarg.masking import Among, Fixed, LogUniformRate, Mixture, Prefix, Rates, UniformRate

ODD = Network(
    [
        Variable("a b=c", ("NA", "None", "ü,\n"), "group: 1"),
        Variable(" ", (" ", "x")),
        Variable("日本", ("only",), "g"),
        Variable("noisy", ("0", "1", "2")),
    ],
    {"noisy": [" ", "a b=c"], " ": ["a b=c"]},
    {
        "a b=c": [1 / 3, 1 / 3, 1 / 3],
        " ": [[0.1, 0.9], [1e-300, 1.0], [0.5, 0.5]],
        "日本": [1.0],
        "noisy": NoisyMax([0.7, 0.2, 0.1], [np.array([[1, 0, 0], [0.2, 0.3, 0.5]]), np.array([[1, 0, 0], [0, 1, 0], [0.1, 0.1, 0.8]])]),
    },
    name="odd [network]",
)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("models") / "small.um"
    random_model(random_network(2, 5), hidden=(3,), student=2).save(path)
    return path.read_bytes()


@pytest.mark.parametrize("net", [ASIA, ODD, random_network(7, 12), um.medical(3, 6, 9, seed=1)], ids=["asia", "odd", "random", "medical"])
@pytest.mark.parametrize("preset", ["paper", "default"])
def test_round_trip(net, preset, tmp_path):
    model = random_model(net, preset=preset)
    path = tmp_path / "model.um"
    model.save(path)
    back = um.load_model(path)
    assert back.net == net
    assert [v.group for v in back.net.variables] == [v.group for v in net.variables]
    assert back.net.name == net.name
    assert back.recipe == model.recipe
    assert dict(back.history) == model.history
    assert same(back.priors, model.priors)
    assert same(back.student, model.student)
    assert (model.student is None) == (preset == "paper")
    states = np.where(np.random.default_rng(0).random((20, len(net))) < 0.5, um.sample(net, 20), -1)
    assert (back.marginals_of_states(states) == model.marginals_of_states(states)).all()
    first = path.read_bytes()
    back.save(path)
    assert path.read_bytes() == first


@pytest.mark.parametrize(
    "mask", [Fixed((1, 2)), Rates((0.1, 0.9)), LogUniformRate(0.25), Mixture((Prefix(Among(UniformRate(), (0,))), UniformRate()), (1, 2))]
)
def test_masks_come_back(mask):
    assert _mask_from_json(json.loads(json.dumps(_mask_to_json(mask)))) == mask


def test_a_mask_of_the_users_own_is_named_even_if_it_is_called_like_ours():
    class Fixed:
        pass

    assert _mask_to_json(Fixed()) == {"kind": "Fixed"}


def load_bytes(tmp_path, data: bytes):
    path = tmp_path / "bad.um"
    path.write_bytes(data)
    return um.load_model(path)


def test_truncated_anywhere(data, tmp_path):
    rng = np.random.default_rng(0)
    cuts = {0, 1, 7, 8, 9, len(data) - 1, *rng.integers(len(data), size=100).tolist()}
    for cut in cuts:
        with pytest.raises(FormatError, match=r"bad\.um"):
            load_bytes(tmp_path, data[:cut])


def test_flipped_bytes(data, tmp_path):
    """A wrong number in the weights cannot be seen, but whatever loads can answer."""
    rng = np.random.default_rng(1)
    header = 8 + struct.unpack("<Q", data[:8])[0]
    refused = 0
    places = [*range(12), *rng.integers(8, header, size=150).tolist(), *rng.integers(header, len(data), size=100).tolist()]
    for place in places:
        bad = bytearray(data)
        bad[place] ^= 1 << rng.integers(8)
        try:
            model = load_bytes(tmp_path, bytes(bad))
            assert np.isfinite(model.marginals_of_states(np.full((1, len(model.net)), -1))).all()
            repr(model)
        except FormatError:
            refused += 1
    assert refused > 40


def test_other_files(tmp_path):
    rng = np.random.default_rng(2)
    others = [
        b"",
        b"\0" * 100,
        b"\xff" * 100,
        rng.bytes(1000),
        b"network asia {}\n",
        save({"a": np.ones(3)}),
        struct.pack("<Q", 2**63) + b"{}",
    ]
    for other in others:
        with pytest.raises(FormatError, match="not a unimarg model"):
            load_bytes(tmp_path, other)
    with pytest.raises(FormatError, match="cannot be read"):
        um.load_model(tmp_path / "none.um")


def changed(data: bytes, change) -> bytes:
    """The file with its tensors and metadata changed by hand."""
    length = struct.unpack("<Q", data[:8])[0]
    about = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["unimarg"])
    tensors = dict(load(data))
    replaced = change(about, tensors)
    return save(tensors, metadata={"unimarg": json.dumps(about if replaced is None else replaced)})


def _put(*keys):
    """A change of the metadata: the last is the new value."""

    def change(about, tensors):
        place = about
        for key in keys[:-2]:
            place = place[key]
        place[keys[-2]] = keys[-1]

    return change


def _drop(name):
    def change(about, tensors):
        del (tensors if name in tensors else about["history"])[name]

    return change


def with_norms(about, tensors):
    """As of version 2: norms with random weights between the layers and the head, and layers behind them that undo these."""
    about["version"] = 2
    rng = np.random.default_rng(7)
    blocks = len(about["recipe"]["architecture"]["hidden"])
    head = 2 * (2 * blocks + 1)
    tensors |= {f"trunk.{head + 2 * (blocks + 1) + k}": tensors[f"trunk.{head + k}"] for k in range(2)}
    behind = [[f"trunk.{4 * n + 2 + k}" for k in range(2)] for n in range(blocks)] + [
        [f"trunk.{head + 2 * (blocks + 1) + k}" for k in range(2)]
    ]
    for n, names in enumerate(behind):
        scale, shift = (rng.uniform(0.5, 2, len(tensors[names[0]])).astype(np.float32) for _ in range(2))
        tensors |= {f"trunk.{head + 2 * n}": scale, f"trunk.{head + 2 * n + 1}": shift}
        for weight, bias in [names] + [["student.0", "student.1"]] * (n == blocks):
            tensors[weight] = tensors[weight] / scale[:, None]
            tensors[bias] = tensors[bias] - shift @ tensors[weight]


def test_files_whose_norms_had_weights(tmp_path):
    net = um.example("asia")
    model = random_model(net, preset="default", hidden=(8, 8, 8), student=8, rounds=0)
    model.save(tmp_path / "model.um")
    data = (tmp_path / "model.um").read_bytes()
    old = changed(data, with_norms)
    states = np.full((2, len(net)), -1)
    states[0, :3] = 1
    found = load_bytes(tmp_path, old)
    np.testing.assert_allclose(found.marginals_of_states(states), model.marginals_of_states(states), atol=1e-5)
    for a, b in zip(jax.tree.leaves((found.trunk, found.student)), jax.tree.leaves((model.trunk, model.student)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    for name in ("trunk.14", "trunk.15", "trunk.22", "student.0"):

        def narrow(about, tensors, name=name):
            with_norms(about, tensors)
            tensors[name] = tensors[name][:1]

        with pytest.raises(FormatError, match="does not fit"):
            load_bytes(tmp_path, changed(data, narrow))
    with pytest.raises(FormatError, match="not a unimarg model"):
        load_bytes(tmp_path, changed(data, _put("version", 2)))


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("heads", [("marginal",), ("marginal", "message")])
def test_files_without_gates_for_messages(tmp_path, heads, residual):
    """As of version 4: they answer as a file of today in which these are 0."""
    net = um.example("asia")
    random_model(net, preset="default", hidden=(8, 8), heads=heads, residual=residual, student=0, rounds=0).save(tmp_path / "model.um")
    data, names = (tmp_path / "model.um").read_bytes(), ["trunk.10", "trunk.11"] if residual else ["trunk.4", "trunk.5"]
    before = len(net) * (len(heads) + 1)  # a slot for each binary node

    def today(about, tensors):
        rng = np.random.default_rng(5)
        for name in names:
            tensors[name] = rng.standard_normal(tensors[name].shape, dtype=np.float32)
            tensors[name][..., before:] = 0

    def of_version_4(about, tensors):
        today(about, tensors)
        about["version"] = 4
        tensors |= {name: tensors[name][..., :before].copy() for name in names}

    def damaged(about, tensors):
        of_version_4(about, tensors)
        tensors[names[0]] = tensors[names[0]][:, 1:].copy()

    now, old = (load_bytes(tmp_path, changed(data, change)) for change in (today, of_version_4))
    assert same(now.trunk, old.trunk)
    with pytest.raises(FormatError, match="the head does not fit"):
        load_bytes(tmp_path, changed(data, damaged))


@pytest.mark.parametrize(
    "change",
    [
        _put("version", 9),
        _put("version", None),
        _put("history", []),
        _put("history", None),
        _put("history", "steps", "many"),
        _put("history", "planned_steps", True),
        _put("history", "samples", -1),
        _put("history", "seconds", 10**400),
        _put("history", "loss", "low"),
        _put("history", "held_out", [[0, 0.5], [8]]),
        _put("history", "held_out_reference_error", [0.5]),
        _put("recipe", "architecture", "hidden", [4]),
        _put("recipe", "architecture", "hidden", [10**9]),
        _put("recipe", "architecture", "hidden", [10**30]),
        _put("recipe", "architecture", "hidden", []),
        _put("recipe", "architecture", "heads", ["message"]),
        _put("recipe", "architecture", "evil", 1),
        _put("recipe", "encoding", "three_bit"),
        _put("recipe", "batch", "many"),
        _put("recipe", "mask", None),
        _put("recipe", "mask", {"kind": ["Fixed"]}),
        _put("recipe", None),
        _put("network", "nodes", []),
        _put("network", "nodes", 0, "states", []),
        _put("network", "nodes", 0, "states", ["a"] * 10**4),
        _put("network", "nodes", 0, "parents", [99]),
        _put("network", "nodes", 0, "parents", [0]),
        _put("network", "nodes", 0, "name", {}),
        _put("network", 5),
        lambda about, tensors: [],
        lambda about, tensors: 7,
        _drop("trunk.0"),
        _drop("student.0"),
        _put("recipe", "student", 3),
        _put("recipe", "student", -1),
        _put("recipe", "student", 10**30),
        lambda about, tensors: tensors.update({"student.1": tensors["student.1"] * np.float32(np.nan)}),
        _drop("priors"),
        _drop("network"),
        lambda about, tensors: tensors.update(network=tensors["network"][:-1]),
        lambda about, tensors: tensors.update(network=np.append(tensors["network"], 1.0)),
        lambda about, tensors: tensors.update(network=tensors["network"] * np.nan),
        lambda about, tensors: tensors.update(network=tensors["network"] * 2),
        lambda about, tensors: tensors.update(priors=tensors["priors"] * np.nan),
        lambda about, tensors: tensors.update(priors=tensors["priors"] * 0),
        lambda about, tensors: tensors.update(priors=tensors["priors"][:-1]),
        lambda about, tensors: tensors.update({"trunk.0": tensors["trunk.0"].T}),
        lambda about, tensors: tensors.update({"trunk.0": tensors["trunk.0"].astype(np.float64)}),
        lambda about, tensors: tensors.update({"trunk.0": tensors["trunk.0"] * np.float32(np.inf)}),
    ],
)
def test_what_does_not_fit_together_is_refused(data, change, tmp_path):
    with pytest.raises(FormatError, match=r"bad\.um"):
        load_bytes(tmp_path, changed(data, change))


def test_files_from_before_there_were_students_load(data, tmp_path):
    def without(about, tensors):
        del about["recipe"]["student"]
        for name in [name for name in tensors if name.startswith("student")]:
            del tensors[name]

    model = load_bytes(tmp_path, changed(data, without))
    assert (model.student, model.recipe.student) == (None, 0)
    assert same(model.trunk, load_bytes(tmp_path, data).trunk)


def test_changing_nothing_loads(data, tmp_path):
    assert len(load_bytes(tmp_path, changed(data, lambda about, tensors: None)).net) > 0
    for history in ({}, {"loss": None, "held_out": [], "of another version": {}}):
        assert load_bytes(tmp_path, changed(data, _put("history", history))).history == history


def test_a_failure_leaves_the_old_file(data, tmp_path, monkeypatch):
    path = tmp_path / "model.um"
    path.write_bytes(data)

    def fail(*_):
        raise OSError(28, "No space left on device")

    for name in ("replace", "fsync"):
        if not hasattr(files.os, name):
            continue
        with monkeypatch.context() as patch:
            patch.setattr(files.os, name, fail)
            with pytest.raises(FormatError, match="No space left"):
                random_model(ASIA).save(path)
        assert path.read_bytes() == data
        assert os.listdir(tmp_path) == ["model.um"]


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("runs") / "run.um"

    def stop(p):
        raise KeyboardInterrupt

    train(checkpoint=path, progress=stop)
    return path.read_bytes()


@pytest.mark.parametrize(
    "change",
    [
        _put("history", "planned_steps", None),
        _put("history", "planned_steps", 10**12),
        _put("history", "planned_steps", CALL - 1),
        _drop("planned_steps"),
        _drop("state.1"),
        lambda about, tensors: tensors.update({"state.1": tensors["state.1"][:1]}),
        lambda about, tensors: tensors.update({"state.0": np.array(-1, np.int32)}),
        lambda about, tensors: tensors.update({"state.0": np.array(0.5)}),
    ],
)
def test_a_damaged_run_is_not_resumed(unfinished, change, tmp_path):
    path = tmp_path / "bad.um"
    path.write_bytes(changed(unfinished, change))
    with pytest.raises(FormatError, match=r"bad\.um"):
        train(checkpoint=path, resume=True)


def test_a_finished_model_is_smaller_and_has_no_state(unfinished, tmp_path):
    path = tmp_path / "model.um"
    save_model(train(budget=f"{CALL} steps"), path)
    assert not [name for name in load(path.read_bytes()) if name.startswith("state")]
    assert [name for name in load(unfinished) if name.startswith("state")]
    assert len(path.read_bytes()) < len(unfinished)


@pytest.mark.parametrize("name", ["net.bif", "model", "model.um.gz", ".um"])
def test_a_model_replaces_no_other_file(name, tmp_path):
    path = tmp_path / name
    path.write_text("a network")
    with pytest.raises(UsageError, match=f"a model is written to a .um file, not to '{name}'"):
        random_model(ASIA).save(path)
    assert path.read_text() == "a network"
    with pytest.raises(UsageError, match="not to None"):
        random_model(ASIA).save(None)  # pyright: ignore[reportArgumentType]


def test_models_have_a_limit_of_their_own(data, tmp_path, monkeypatch):
    """Larger than any network file may be; a limit there is, for reading and for writing."""
    path = tmp_path / "model.um"
    path.write_bytes(data)
    monkeypatch.setattr(files, "MAX_BYTES", 10)
    model = um.load_model(path)
    monkeypatch.setattr(checkpoint, "MAX_BYTES", 100)
    with pytest.raises(FormatError, match="the limit is 100"):
        um.load_model(path)
    with pytest.raises(FormatError, match=r"cannot be written: the model has .* the limit is 100"):
        model.save(path)
    assert path.read_bytes() == data


@pytest.mark.parametrize(("version", "rounds", "refused"), [(1, 2, True), (7, 2, True), (7, 0, False), (8, 2, False)])
def test_files_that_started_from_other_beliefs(tmp_path, version, rounds, refused):
    """As of version 7: a round was one step of every message."""
    random_model(ASIA, preset="small", hidden=(8,), rounds=rounds).save(tmp_path / "model.um")
    old = changed((tmp_path / "model.um").read_bytes(), _put("version", version))
    if refused:
        with pytest.raises(FormatError, match="older version, which started from other beliefs: train it again"):
            load_bytes(tmp_path, old)
    else:
        assert load_bytes(tmp_path, old).recipe.rounds == rounds
