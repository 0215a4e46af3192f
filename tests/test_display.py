"""What a notebook shows: HTML that is well formed and harmless, pictures, reprs."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

import unimarg as um
from test_cli import run
from unimarg import Network, UsageError, Variable
from unimarg.display import BAR, MOST
from unimarg.drawing import neighbourhood

ASIA, CLINIC = um.example("asia"), um.example("clinic")
EVIL = "<script>alert('1')</script>&\x07\"" + "x" * 200
HOSTILE = Network(
    [Variable(EVIL, ("<b>no</b>", "$yes$")), Variable("b", ("no", "yes"), EVIL)],
    {"b": [EVIL]},
    {EVIL: [0.5, 0.5], "b": [[0.1, 0.9], [0.3, 0.7]]},
)


def parsed(shown: object) -> ET.Element:
    return ET.fromstring(shown._repr_html_().replace("&nbsp;", " "))  # type: ignore[attr-defined]


def test_a_posterior_has_a_bar_for_every_state():
    post = um.exact(ASIA, {"dysp": "yes"})
    page = parsed(post)
    bars = page.findall(".//svg")
    assert len(bars) == 16
    shown = [float(b.findall("rect")[1].get("width", "")) / BAR for b in bars]
    assert shown == pytest.approx([p for _, _, p, _ in post.rows()], abs=0.001)
    assert not page.findall(".//path")  # exact: no whiskers
    assert "log P(evidence) = -0.8302" in "".join(page.itertext())


def test_whiskers_are_two_standard_errors():
    post = um.infer(ASIA, {"dysp": "yes"}, ["smoke"], method="prior", samples=2048, target_error=None)
    (yes, _) = parsed(post).findall(".//svg")
    path = yes.find("path")
    assert path is not None
    low, high = (float(x) / BAR for x in re.findall(r"M([\d.]+) 3V", path.get("d", "")))
    p, error = post["smoke"]["yes"], post.error("smoke")["yes"]
    assert (low, high) == pytest.approx((p - 2 * error, p + 2 * error), abs=0.001)


def test_a_network_shows_its_variables():
    words = "".join(parsed(ASIA).itertext())
    assert "asia: 8 variables, 8 arcs, 18 parameters" in words
    assert "lung, tub" in words
    rows = parsed(CLINIC).findall(".//tr")
    assert len(rows) == MOST + 1
    assert f"and {len(CLINIC) - MOST} more variables" in "".join(parsed(CLINIC).itertext())


def test_names_are_never_markup():
    for shown in (HOSTILE, um.exact(HOSTILE)):
        page = parsed(shown)
        assert {e.tag for e in page.iter()} <= {"div", "table", "thead", "tbody", "tr", "th", "td", "b", "svg", "rect", "path", "code"}
        assert "<script>alert('1')</script>&\\x07" in "".join(page.itertext())
        assert "x" * 100 not in "".join(page.itertext())
    assert "\x07" not in repr(um.exact(HOSTILE))


def test_repr_says_what_was_found():
    lines = repr(um.exact(ASIA, {"dysp": "yes"})).splitlines()
    assert lines[0] == "Posterior of 8 variables by exact, log P(e) -0.8302"
    assert "  lung: yes 0.1028, no 0.8972" in lines
    assert lines[-1] == "  and 2 more"
    post = um.infer(ASIA, {"dysp": "yes"}, ["smoke"], method="prior", samples=2048, target_error=None)
    assert re.search(r"by prior, ok, 2,048 samples worth [\d,]+", repr(post))
    error = f"{max(post.error('smoke').values()):.1g}"
    assert re.search(rf"smoke: yes 0\.\d+, no 0\.\d+ \(± {re.escape(error)}\)", repr(post))


def png(figure: object) -> bool:
    return figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]


def test_plots_are_shown_without_pyplot():
    assert png(um.exact(ASIA).plot(["lung"]))
    figure = ASIA.plot()
    assert png(figure)
    axes = figure.axes[0]
    assert [t.get_text() for t in axes.texts if t.get_text()] == list(ASIA.names)
    assert sum(t.get_text() == "" for t in axes.texts) == ASIA.arc_count
    assert png(HOSTILE.plot())
    for post, names in ((um.exact(ASIA, {}, []), None), (um.exact(ASIA), [])):
        with pytest.raises(UsageError, match="nothing to draw"):
            post.plot(names)


def test_part_of_a_network(tmp_path, capsys):
    near = neighbourhood(ASIA, ASIA.index["lung"], 1)
    assert {ASIA.names[i] for i in near} == {"smoke", "lung", "either"}
    assert len(neighbourhood(ASIA, ASIA.index["lung"], 9)) == 8
    with pytest.raises(UsageError, match="248 nodes cannot be read"):
        CLINIC.plot()
    with pytest.raises(UsageError, match="did you mean 'lung'"):
        ASIA.plot("lunge")
    with pytest.raises(UsageError, match="a smaller distance"):
        CLINIC.plot("age", 5)
    picture = tmp_path / "near.svg"
    code, _, _ = run(capsys, "info", "clinic", "--plot", str(picture), "--around", "asthma")
    assert code == 0
    assert "asthma" in Path(picture).read_text()
    assert run(capsys, "info", "asia", "--plot", "x.jpg")[0] == 2
    name = CLINIC.names[0]
    code, _, err = run(capsys, "info", "clinic", "--plot", str(picture))
    assert (code, f"around={name!r} (--around {name}), for example" in err) == (2, True)
    assert run(capsys, "info", "clinic", "--plot", str(picture), "--around", name)[0] == 0  # what it says works
    for alone in (("--around", "asthma"), ("--distance", "2")):
        code, _, err = run(capsys, "info", "clinic", *alone)
        assert (code, "give --plot" in err) == (2, True)
    code, _, err = run(capsys, "info", "clinic", "--plot", str(picture), "--around", "asthma", "--distance", "9")
    assert (code, "--distance" in err) == (2, True)


def test_arcs_go_to_the_right():
    axes = um.example("alarm").plot().axes[0]
    arrows = [t for t in axes.texts if not t.get_text()]
    assert all(np.subtract(t.xy, t.xyann)[0] > 0 for t in arrows)  # type: ignore[attr-defined]
