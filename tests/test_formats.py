"""The dispatcher, and the contract that every format keeps."""

from __future__ import annotations

import gzip
import importlib.util
import io
import os
import stat
import sys
import threading
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import unimarg as um
from unimarg.errors import FormatError, UsageError
from unimarg.formats import SUFFIXES, bif, files, load, save
from unimarg.network import Network, NoisyMax, NoisyOr, Table, Variable

# formats are added as modules; those that exist are held to the contract
FORMATS = sorted({m for m in SUFFIXES.values() if importlib.util.find_spec(f"unimarg.formats.{m}")})
KEEPS_NAMES = [f for f in FORMATS if f != "uai"]
SUFFIX = {m: s for s, m in reversed(SUFFIXES.items())}


def three_nodes() -> Network:
    rain = Variable("rain", ("no", "yes"), "weather")
    sky = Variable("sky", ("clear", "grey", "black"))
    wet = Variable("wet", ("dry", "damp", "soaked"), "garden")
    return Network(
        [rain, sky, wet],
        {"sky": ["rain"], "wet": ["sky", "rain"]},
        {
            "rain": [0.8, 0.2],
            "sky": [[0.7, 0.2, 0.1], [0.1, 1 / 3, 1 - 0.1 - 1 / 3]],
            "wet": np.random.default_rng(0).dirichlet([1, 1, 1], (3, 2)),
        },
        "garden",
    )


def odd_names() -> Network:
    odd = Variable("blood pressure (mm/Hg) | systolic, %", ("<5", "5-12", "12+", "a b", "x;y", "{}", "[1,2)", "//", "/* no */"), "a group")
    accents = Variable("œdème à l'œil", ("nein", "größer", "日本", "2.0", "default", "table"), "é=;")
    digits = Variable("1st.node_2", ("None", "NA", "=", "-", "True"))
    keyword = Variable("node", ("state", "'quoted'"))
    variables = [odd, accents, digits, keyword]
    rng = np.random.default_rng(1)
    tables = {
        odd.name: rng.dirichlet(np.ones(9)),
        accents.name: rng.dirichlet(np.ones(6), 9),
        digits.name: rng.dirichlet(np.ones(5), (6, 9)),
        keyword.name: rng.dirichlet(np.ones(2), (5,)),
    }
    return Network(variables, {accents.name: [odd.name], digits.name: [accents.name, odd.name], keyword.name: [digits.name]}, tables)


def expanded(net: Network) -> Network:
    """The same network with every mechanism as a table."""
    parents = {v.name: [net.names[p] for p in pa] for v, pa in zip(net.variables, net.parents, strict=True)}
    return Network(net.variables, parents, {v.name: Table(m.expand()) for v, m in zip(net.variables, net.mechanisms, strict=True)})


def roundtrip(net: Network, form: str) -> Network:
    module = import_module(f"unimarg.formats.{form}")
    return module.read(module.write(net).encode(), f"a{SUFFIX[form]}")


def same_numbers(a: Network, b: Network) -> bool:
    return a.parents == b.parents and a.mechanisms == b.mechanisms and a.cards.tolist() == b.cards.tolist()


@pytest.mark.parametrize("form", KEEPS_NAMES)
@pytest.mark.parametrize("make", [three_nodes, odd_names])
def test_written_and_read_again_is_identical(form, make):
    assert roundtrip(make(), form) == make()


@pytest.mark.parametrize("form", FORMATS)
def test_numbers_survive_in_every_format(form):
    net = three_nodes()
    again = roundtrip(net, form)
    assert same_numbers(again, net)
    assert roundtrip(again, form) == again


@pytest.mark.parametrize("form", KEEPS_NAMES)
def test_network_name_survives(form):
    assert roundtrip(three_nodes(), form).name == "garden"


@pytest.mark.parametrize("form", FORMATS)
def test_noisy_max_is_kept_or_expanded(form):
    parents = [Variable("a"), Variable("b", ("none", "some", "much"))]
    effects = [[[1, 0, 0], [0.3, 0.5, 0.2]], [[1, 0, 0], [0.6, 0.3, 0.1], [0.2, 0.3, 0.5]]]
    net = Network(
        [*parents, Variable("c", ("0", "1", "2"))],
        {"c": ["a", "b"]},
        {"a": [0.9, 0.1], "b": [0.5, 0.3, 0.2], "c": NoisyMax([0.9, 0.07, 0.03], effects)},
    )
    again = roundtrip(net, form)
    kept = any(isinstance(m, NoisyMax) for m in again.mechanisms)
    assert same_numbers(again, net if kept else expanded(net))


@pytest.mark.parametrize("form", [f for f in FORMATS if f != "xdsl"])
@pytest.mark.parametrize("count", [40, 1200])
def test_noisy_max_too_large_for_a_table_is_refused(form, count, tmp_path):
    causes = [Variable(f"d{i}") for i in range(count)]
    tables = {v.name: Table([0.9, 0.1]) for v in causes}
    net = Network([*causes, Variable("s")], {"s": [v.name for v in causes]}, {**tables, "s": NoisyOr(0.01, [0.5] * count)})
    path = tmp_path / f"a{SUFFIX[form]}"
    path.write_text("old")
    with pytest.raises(FormatError, match=rf"'s' is a noisy-max of {count} parents.*10\^.*4194304.*\.xdsl"):
        save(net, path)
    assert path.read_text() == "old"


@st.composite
def networks(draw) -> Network:
    text = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters='"'), min_size=1, max_size=8)
    n = draw(st.integers(1, 5))
    names = draw(st.lists(text, min_size=n, max_size=n, unique=True))
    variables = [
        Variable(name, tuple(draw(st.lists(text, min_size=1, max_size=4, unique=True))), draw(text | st.just(""))) for name in names
    ]
    parents, tables = {}, {}
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    for i, v in enumerate(variables):
        chosen = draw(st.permutations(range(i)))[: draw(st.integers(0, min(i, 3)))]
        parents[v.name] = [names[p] for p in chosen]
        tables[v.name] = rng.dirichlet(np.full(v.card, 0.3), [variables[p].card for p in chosen])
    return Network(variables, parents, tables)


@pytest.mark.parametrize("form", KEEPS_NAMES)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(net=networks())
def test_random_networks_round_trip(form, net):
    assert roundtrip(net, form) == net


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(net=networks())
def test_random_networks_round_trip_in_uai(net):
    again = roundtrip(net, "uai")
    assert same_numbers(again, net)
    assert roundtrip(again, "uai") == again


@pytest.mark.parametrize("form", [f for f in FORMATS if f in ("bif", "net")])
@pytest.mark.parametrize("bad", ["line\nbreak", "nul\0", "tab\there"])
def test_names_that_cannot_be_held_are_refused(form, bad, tmp_path):
    net = Network([Variable("a", ("x", bad))], {}, {"a": [0.5, 0.5]})
    path = tmp_path / f"a{SUFFIX[form]}"
    with pytest.raises(FormatError, match="control character"):
        save(net, path)
    assert not list(tmp_path.iterdir())


def fuzz_driver():
    path = Path(__file__).parent.parent / "benchmarks" / "fuzz_formats.py"
    spec = importlib.util.spec_from_file_location("fuzz_formats", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fuzz_formats"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("form", FORMATS)
def test_mutated_files_are_read_or_refused(form):
    tally = fuzz_driver().fuzz(import_module(f"unimarg.formats.{form}"), 2000, seed=3, limit=5.0)
    assert not tally.failures, tally.failures[0]
    assert tally.outcomes["read"] > 20
    assert tally.outcomes["refused"] > 500


def test_fuzzing_notices_a_broken_reader():
    class Broken:
        def read(self, data: bytes, path: str) -> Network:
            int(data)
            return three_nodes()

        def write(self, net: Network) -> str:
            return "12"

    assert fuzz_driver().fuzz(Broken(), 50, seed=0).failures


@pytest.mark.parametrize("suffix", [s for s in SUFFIXES if SUFFIXES[s] in FORMATS])
@pytest.mark.parametrize("packed", ["", ".gz", ".GZ"])
def test_load_and_save_by_suffix(suffix, packed, tmp_path):
    path = tmp_path / f"a.b{suffix}{packed}"
    save(three_nodes(), path)
    first = path.read_bytes()
    assert (first[:2] == b"\x1f\x8b") == bool(packed)
    assert same_numbers(load(path), three_nodes())
    assert same_numbers(load(str(path)), three_nodes())
    save(three_nodes(), str(path))
    assert path.read_bytes() == first  # also when packed


@pytest.mark.parametrize("name", ["a.txt", "a", "a.gz", "a.bif.zip", "bif"])
def test_unknown_suffix(name, tmp_path):
    with pytest.raises(FormatError, match=r"unknown suffix.*\.bif \.xmlbif"):
        load(tmp_path / name)
    with pytest.raises(FormatError, match="unknown suffix"):
        save(three_nodes(), tmp_path / name)


@pytest.mark.parametrize("path", [None, b"net.bif", 3, io.BytesIO()])
def test_what_is_no_path(path):
    for call in (load, um.load_model, lambda p: save(three_nodes(), p)):
        with pytest.raises(UsageError, match=r"a file is given by its path, a string or a pathlib\.Path, not by "):
            call(path)


def test_the_name_of_an_example_is_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FormatError, match=r"asia: there is no such file; the example of this name is unimarg\.example\('asia'\)"):
        load("asia")
    (tmp_path / "asia").write_text("a file")
    for name in ("asia", "asja"):
        with pytest.raises(FormatError, match=f"unknown suffix '{name}'"):
            load(name)


def test_files_that_cannot_be_opened(tmp_path):
    with pytest.raises(FormatError, match=r"missing\.bif: cannot be read: No such file"):
        load(tmp_path / "missing.bif")
    (tmp_path / "folder.bif").mkdir()
    with pytest.raises(FormatError, match=r"Is a directory|not a regular file"):
        load(tmp_path / "folder.bif")
    with pytest.raises(FormatError, match="Is a directory"):
        save(three_nodes(), tmp_path / "folder.bif")
    with pytest.raises(FormatError, match="No such file"):
        save(three_nodes(), tmp_path / "nowhere" / "a.bif")
    with pytest.raises(FormatError, match="is no file name"):
        load("a\0.bif")
    with pytest.raises(FormatError, match="is no file name"):
        save(three_nodes(), "a\0.bif")
    with pytest.raises(FormatError, match=r"cannot be read: .*too long"):
        load("a" * 5000 + ".bif")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_named_pipe_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "pipe.bif")
    with pytest.raises(FormatError, match="not a regular file"):
        load(tmp_path / "pipe.bif")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    """As is a device: a superuser who wrote to /dev/null must still have one."""
    path = tmp_path / "pipe.bif"
    os.mkfifo(path)
    with pytest.raises(FormatError, match="cannot be written"):  # nobody reads
        save(three_nodes(), path)
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    save(three_nodes(), path)
    assert bif.read(os.read(handle, 2**16), "pipe") == three_nodes()
    os.close(handle)
    assert stat.S_ISFIFO(path.stat().st_mode)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read anything")
def test_file_without_permission(tmp_path):
    path = tmp_path / "a.bif"
    save(three_nodes(), path)
    path.chmod(0)
    with pytest.raises(FormatError, match="Permission denied"):
        load(path)


@pytest.mark.parametrize("content", [b"", b" \n\t\n"])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_empty_file(content, suffix, tmp_path):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(content)
    with pytest.raises(FormatError, match="the file is empty"):
        load(path)


def test_broken_gzip(tmp_path):
    path = tmp_path / "a.bif.gz"
    save(three_nodes(), path)
    good = path.read_bytes()
    for bad in (good[:-12], good[:20], b"network", good[:40] + b"\xff" + good[41:], good + b"trailing"):
        path.write_bytes(bad)
        with pytest.raises(FormatError, match="gzip"):
            load(path)
    path.write_bytes(good + b"\0" * 512)
    assert load(path) == three_nodes()
    path.write_bytes(gzip.compress(b"network a {}\n") + good)
    assert load(path) == three_nodes()


def test_gzip_bomb_is_refused_before_it_unfolds(tmp_path):
    path = tmp_path / "a.bif.gz"
    path.write_bytes(gzip.compress(b" " * (files.HARMLESS_BYTES + 2**20)))
    with pytest.raises(FormatError, match="decompression bomb"):
        load(path)


def test_large_file_is_refused_unread(tmp_path, monkeypatch):
    path = tmp_path / "a.bif"
    save(three_nodes(), path)
    monkeypatch.setattr(files, "MAX_BYTES", 100)
    with pytest.raises(FormatError, match="the limit is 100"):
        load(path)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252", "latin-1"])
def test_encodings(encoding, tmp_path):
    text = "network n { }\nvariable größe { type discrete [ 2 ] { klein, groß }; }\nprobability ( größe ) { table 0.25, 0.75; }\n"
    path = tmp_path / "a.bif"
    path.write_bytes(text.encode(encoding))
    assert load(path).variables == (Variable("größe", ("klein", "groß")),)


@pytest.mark.parametrize("suffix", [".bif", ".net", ".uai"])
@pytest.mark.parametrize(
    "data", [b"\x7fELF\x02\x01\0\0", b"\xff\xfe\0\0n\0\0\0", b"\xff\xfe\0\xd8", "network".encode("utf-16-le"), b"\xef\xbb\xbf\xff"]
)
def test_binary_garbage(suffix, data, tmp_path):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=r"not a text file|is not valid utf"):
        load(path)


def test_saving_keeps_the_old_file_when_it_fails(tmp_path, monkeypatch):
    path = tmp_path / "a.bif"
    save(three_nodes(), path)
    old = path.read_bytes()

    def full_disk(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(FormatError, match=r"a\.bif: cannot be written: No space left"):
        save(odd_names(), path)
    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]


def test_saving_keeps_mode_and_link(tmp_path):
    target = tmp_path / "real.bif"
    save(three_nodes(), target)
    target.chmod(0o640)
    link = tmp_path / "link.bif"
    link.symlink_to(target)
    save(odd_names(), link)
    assert link.is_symlink()
    assert load(target) == odd_names()
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_a_lone_surrogate_is_refused(tmp_path):
    net = Network([Variable("a\ud800")], {}, {"a\ud800": [0.5, 0.5]})
    with pytest.raises(FormatError, match="cannot be written as text"):
        save(net, tmp_path / "a.bif")
    assert not list(tmp_path.iterdir())


def test_readers_see_the_old_file_or_the_new_one(tmp_path):
    path = tmp_path / "a.bif"
    save(three_nodes(), path)
    done = threading.Event()

    def rewrite() -> None:
        for k in range(40):
            save([three_nodes(), odd_names()][k % 2], path)
        done.set()

    writer = threading.Thread(target=rewrite)
    writer.start()
    while not done.is_set():
        assert load(path) in (three_nodes(), odd_names())
    writer.join()
