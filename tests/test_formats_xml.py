"""XMLBIF and XDSL: hand-made files with numbers checked by named states, and round trips."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unimarg.errors import FormatError
from unimarg.formats import xdsl, xmlbif
from unimarg.network import Network, NoisyMax, NoisyOr, Table, Variable


def chance(net: Network, child: str, state: str, **given: str) -> float:
    """P(child = state | given), by names only."""
    i = net.find(child)
    parents = [net.variables[p] for p in net.parents[i]]
    assert {p.name for p in parents} == set(given)
    row = net.mechanisms[i].rows(np.array([[p.states.index(given[p.name]) for p in parents]]))[0]
    return float(row[net.variables[i].states.index(state)])


XMLBIF = """<?xml version="1.0"?>
<!DOCTYPE BIF [
  <!ELEMENT BIF ( NETWORK )*>
  <!ATTLIST BIF VERSION CDATA #REQUIRED>
  <!ELEMENT VARIABLE ( NAME, ( OUTCOME | PROPERTY )* ) >
  <!ATTLIST VARIABLE TYPE (nature|decision|utility) "nature">
]>
<BIF VERSION="0.3">
<NETWORK>
<NAME>Rain &amp; co</NAME>
<VARIABLE TYPE="nature">
  <NAME> rain </NAME><OUTCOME>dry</OUTCOME><OUTCOME>light</OUTCOME><OUTCOME>heavy</OUTCOME>
  <PROPERTY>position = (73, 165)</PROPERTY>
  <PROPERTY>group = causes</PROPERTY>
</VARIABLE>
<VARIABLE><NAME>sprinkler</NAME><OUTCOME>off</OUTCOME><OUTCOME>on</OUTCOME><PROPERTY/></VARIABLE>
<VARIABLE TYPE="nature"><NAME>wet</NAME><OUTCOME>no</OUTCOME><OUTCOME>yes</OUTCOME></VARIABLE>
<DEFINITION><FOR>rain</FOR><TABLE>0.7 0.2 0.1</TABLE></DEFINITION>
<DEFINITION>
  <FOR>wet</FOR><GIVEN>rain</GIVEN><GIVEN>sprinkler</GIVEN>
  <TABLE> <!-- dry, off: Weka and GeNIe write such comments -->
    0.99 0.01
    0.2 0.8  <!-- dry, on -->
    3e-1 0.7
    0.15 0.85
    0.05 0.95
    0.01 0.99
  </TABLE>
</DEFINITION>
<DEFINITION><FOR>sprinkler</FOR><TABLE>0.6 0.4</TABLE></DEFINITION>
</NETWORK>
</BIF>
"""

XDSL = """<?xml version="1.0" encoding="UTF-8"?>
<!-- made by hand -->
<smile version="1.0" id="Worked" numsamples="1000" discsamples="10000">
  <nodes>
    <cpt id="A" diagtype="observation"><state id="present" fault="true" /><state id="absent" />
      <probabilities>0.3 0.7</probabilities><property id="group">causes</property></cpt>
    <cpt id="B"><state id="off" /><state id="max" /><state id="mid" /><probabilities>0.5 0.2 0.3</probabilities></cpt>
    <noisymax id="C">
      <state id="high" /><state id="low" /><state id="none" />
      <parents>A B</parents>
      <strengths>0 1 1 2 0</strengths>
      <parameters>0.5 0.3 0.2 0 0 1 0.4 0.4 0.2 0.1 0.4 0.5 0 0 1 0.1 0.1 0.8</parameters>
    </noisymax>
    <cpt id="T"><state id="neg" /><state id="pos" /><parents>A C</parents>
      <probabilities>0.1 0.9 0.2 0.8 0.3 0.7 0.4 0.6 0.5 0.5 0.6 0.4</probabilities></cpt>
    <deterministic id="D"><state id="lo" /><state id="hi" /><parents>B</parents>
      <resultingstates>lo hi hi</resultingstates></deterministic>
  </nodes>
  <extensions><genie version="1.0" app="GeNIe" name="x"><node id="A"><name>A &lt;1&gt;</name>
    <position>1 2 3 4</position></node><submodel id="S"><node id="B" /></submodel></genie></extensions>
</smile>
"""


def test_xmlbif_by_named_states():
    net = xmlbif.read(XMLBIF.encode(), "rain.xml")
    assert net.name == "Rain & co"
    assert net.names == ("rain", "sprinkler", "wet")
    assert [v.group for v in net.variables] == ["causes", "", ""]
    assert chance(net, "rain", "heavy") == 0.1
    assert chance(net, "wet", "yes", rain="dry", sprinkler="on") == 0.8
    assert chance(net, "wet", "yes", rain="light", sprinkler="off") == 0.7
    assert chance(net, "wet", "no", rain="heavy", sprinkler="off") == 0.05


def test_xdsl_noisy_max_by_hand():
    """C ascends none < low < high. Column by column, P(C <= none) and P(C <= low), summed from the neutral end:

    A=present  .5 .3 .2  ->  .2  .5        B=max  .4 .4 .2  ->  .2  .6      (strengths 1 2 0: column 0 is state 1, max;
    A=absent    0  0  1  ->   1   1        B=mid  .1 .4 .5  ->  .5  .9       column 1 is state 2, mid; column 2 state 0, off)
    leak       .1 .1 .8  ->  .8  .9        B=off   0  0  1  ->   1   1

    Products with the leak, then differences:
    present, max:  none .2*.2*.8 = .032   <=low .5*.6*.9 = .27    low .238   high .73
    present, mid:  none .2*.5*.8 = .08    <=low .5*.9*.9 = .405   low .325   high .595
    present, off:  none .2*1*.8  = .16    <=low .5*1*.9  = .45    low .29    high .55
    absent,  max:  none 1*.2*.8  = .16    <=low 1*.6*.9  = .54    low .38    high .46
    absent,  mid:  none 1*.5*.8  = .4     <=low 1*.9*.9  = .81    low .41    high .19
    absent,  off:  none .8                <=low .9                low .1     high .1
    """
    net = xdsl.read(XDSL.encode(), "worked.xdsl")
    worked = {
        ("present", "max"): (0.032, 0.238, 0.73),
        ("present", "mid"): (0.08, 0.325, 0.595),
        ("present", "off"): (0.16, 0.29, 0.55),
        ("absent", "max"): (0.16, 0.38, 0.46),
        ("absent", "mid"): (0.4, 0.41, 0.19),
        ("absent", "off"): (0.8, 0.1, 0.1),
    }
    assert isinstance(net.mechanisms[net.find("C")], NoisyMax)
    for (a, b), expected in worked.items():
        for state, value in zip(("none", "low", "high"), expected, strict=True):
            assert chance(net, "C", state, A=a, B=b) == pytest.approx(value, abs=1e-15)


def test_xdsl_other_nodes_follow_the_reordered_states():
    net = xdsl.read(XDSL.encode(), "worked.xdsl")
    assert net.name == "Worked"
    # neutral first for the noisy-max child and its parents; others as listed
    assert [v.states for v in net.variables] == [
        ("absent", "present"),
        ("off", "max", "mid"),
        ("none", "low", "high"),
        ("neg", "pos"),
        ("lo", "hi"),
    ]
    assert net.variables[0].group == "causes"
    assert chance(net, "A", "present") == 0.3
    assert chance(net, "B", "mid") == 0.3
    assert chance(net, "T", "pos", A="present", C="high") == 0.9
    assert chance(net, "T", "pos", A="present", C="none") == 0.7
    assert chance(net, "T", "pos", A="absent", C="high") == 0.6
    assert chance(net, "T", "pos", A="absent", C="none") == 0.4
    assert [chance(net, "D", "hi", B=b) for b in ("off", "max", "mid")] == [0, 1, 1]
    assert xdsl.read(xdsl.write(net).encode(), "x") == net


def or_gate(name: str, parents: list[str], strengths: str, parameters: str) -> str:
    return (
        f'<noisymax id="{name}"><state id="yes"/><state id="no"/><parents>{" ".join(parents)}</parents>'
        f"<strengths>{strengths}</strengths><parameters>{parameters}</parameters></noisymax>"
    )


def smile(*nodes: str) -> bytes:
    return ('<smile version="1.0" id="n"><nodes>' + "".join(nodes) + "</nodes></smile>").encode()


def root(name: str, states: tuple[str, ...] = ("yes", "no"), numbers: str = "0.5 0.5") -> str:
    return f'<cpt id="{name}">' + "".join(f'<state id="{s}"/>' for s in states) + f"<probabilities>{numbers}</probabilities></cpt>"


def test_xdsl_conflicting_strengths_make_the_smaller_node_a_table():
    # Small acts when A is "no" (a negation, as GeNIe allows), Large when it is "yes": A cannot start with both
    small = or_gate("Small", ["A"], "1 0", "0.8 0.2 0 1 0.1 0.9")
    large = or_gate("Large", ["A", "B"], "0 1 0 1", "0.6 0.4 0 1 0.5 0.5 0 1 0 1")
    net = xdsl.read(smile(root("A"), root("B"), small, large), "x")
    assert isinstance(net.mechanisms[net.find("Large")], NoisyMax)
    assert isinstance(net.mechanisms[net.find("Small")], Table)
    assert chance(net, "Small", "yes", A="no") == pytest.approx(1 - 0.2 * 0.9)
    assert chance(net, "Small", "yes", A="yes") == pytest.approx(0.1)
    assert chance(net, "Large", "yes", A="yes", B="yes") == pytest.approx(1 - 0.4 * 0.5)
    assert chance(net, "Large", "yes", A="no", B="no") == pytest.approx(0)
    assert xdsl.read(xdsl.write(net).encode(), "x") == net


def test_xdsl_noisy_max_parent_that_is_wanted_the_other_way_round():
    first = or_gate("First", ["A"], "0 1", "0.8 0.2 0 1 0.1 0.9")
    second = or_gate("Second", ["First", "A"], "1 0 0 1", "0.7 0.3 0 1 0.5 0.5 0 1 0 1")
    net = xdsl.read(smile(root("A"), first, second), "x")
    assert chance(net, "First", "yes", A="yes") == pytest.approx(1 - 0.2 * 0.9)
    assert chance(net, "Second", "yes", First="no", A="no") == pytest.approx(0.7)
    assert chance(net, "Second", "yes", First="yes", A="yes") == pytest.approx(0.5)
    assert xdsl.read(xdsl.write(net).encode(), "x") == net


def test_xdsl_conflict_too_large_for_a_table():
    names = [f"P{i}" for i in range(30)]
    one = or_gate("One", names, "0 1 " * 30, "0.6 0.4 0 1 " * 30 + "0 1")
    other = or_gate("Other", names, "1 0 " * 30, "0.6 0.4 0 1 " * 30 + "0 1")
    assert isinstance(xdsl.read(smile(*map(root, names), one), "x").mechanisms[-1], NoisyMax)
    with pytest.raises(FormatError, match=r"'Other'.*neutral state differs"):
        xdsl.read(smile(*map(root, names), one, other), "x")


def test_xdsl_strengths_may_be_left_out():
    node = or_gate("N", ["A"], "", "0.8 0.2 0 1 0.1 0.9").replace("<strengths></strengths>", "")
    net = xdsl.read(smile(root("A"), node), "x")
    assert chance(net, "N", "yes", A="yes") == pytest.approx(1 - 0.2 * 0.9)


def test_many_parents_stay_a_noisy_or():
    variables = [Variable(f"p{i}") for i in range(165)] + [Variable("x")]
    tables = {f"p{i}": [0.9, 0.1] for i in range(165)}
    net = Network(variables, {"x": [v.name for v in variables[:-1]]}, {**tables, "x": NoisyOr(0.01, [0.3] * 165)})
    assert xdsl.read(xdsl.write(net).encode(), "x") == net


def test_xmlbif_expands_a_small_noisy_max():
    net = Network([Variable("a"), Variable("x")], {"x": ["a"]}, {"a": [0.5, 0.5], "x": NoisyOr(0.1, [0.8])})
    again = xmlbif.read(xmlbif.write(net).encode(), "x")
    assert np.array_equal(again.mechanisms[1].expand(), net.mechanisms[1].expand())


def test_xdsl_ids_changed_elsewhere_win_over_stale_names():
    net = Network([Variable("my name", ("a b", "c"))], {}, {"my name": [0.5, 0.5]})
    text = xdsl.write(net)
    assert 'id="my_name"' in text
    assert xdsl.read(text.replace('id="my_name"', 'id="renamed"').replace('"a_b" />', '"new" />').encode(), "x").variables[0] == Variable(
        "renamed", ("new", "c")
    )


# --- round trips

written = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs"), include_characters="\t\n\r", exclude_characters="￾￿"))
names = st.one_of(st.sampled_from(["a b<&>\"'", "a_b", "a b", " edge ", "]]>", "漢字", "x\r\ny"]), written.filter(bool))


@st.composite
def networks(draw: st.DrawFn, noisy: bool = True) -> Network:
    labels = draw(st.lists(names, min_size=1, max_size=5, unique=True))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    variables, parents, mechanisms = [], {}, {}
    for i, label in enumerate(labels):
        states = draw(st.lists(names, min_size=1, max_size=3, unique=True))
        chosen = draw(st.lists(st.sampled_from(range(i)), max_size=3, unique=True)) if i else []
        cards, card = [variables[p].card for p in chosen], len(states)
        variables.append(Variable(label, tuple(states), draw(written)))
        parents[label] = [labels[p] for p in chosen]
        if noisy and draw(st.booleans()):
            neutral = np.eye(card)[:1]
            rows = [np.vstack([neutral, rng.dirichlet(np.ones(card), c - 1)]) for c in cards]
            mechanisms[label] = NoisyMax(rng.dirichlet(np.ones(card)), rows)
        else:
            mechanisms[label] = rng.dirichlet(np.ones(card), cards)
    return Network(variables, parents, mechanisms)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(networks())
def test_xdsl_round_trip_is_identical(net: Network):
    assert xdsl.read(xdsl.write(net).encode(), "x") == net


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(networks(noisy=False))
def test_xmlbif_round_trip_is_identical(net: Network):
    assert xmlbif.read(xmlbif.write(net).encode(), "x") == net


def test_half_a_character_is_no_name():
    """JSON can hold what no file and no terminal can."""
    text = xdsl.write(Network([Variable("my name")], {}, {"my name": [0.5, 0.5]}))
    with pytest.raises(FormatError, match=r"x:8: .*half a character"):
        xdsl.read(text.replace("my name&quot;}", "\\ud800&quot;}").encode(), "x")


def test_control_characters():
    net = Network([Variable("a\x01")], {}, {"a\x01": [0.5, 0.5]})
    assert xdsl.read(xdsl.write(net).encode(), "x") == net  # in JSON, so they survive
    with pytest.raises(FormatError, match="XML cannot express"):
        xmlbif.write(net)
