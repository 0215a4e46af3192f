"""XMLBIF and XDSL against mistakes, odd encodings and hostile input: a FormatError on the right line, and soon."""

from __future__ import annotations

import resource
import time

import pytest

from test_formats_xml import XDSL, XMLBIF, chance, root, smile
from unimarg.errors import FormatError
from unimarg.formats import xdsl, xmlbif
from unimarg.mechanism import MAX_EXPANDED


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "iso-8859-1", "windows-1252"])
def test_encodings(encoding: str):
    text = XMLBIF.replace("dry", "trocken für").replace('<?xml version="1.0"?>', f'<?xml version="1.0" encoding="{encoding}"?>')
    text = text.replace("utf-8-sig", "utf-8")
    assert xmlbif.read(text.encode(encoding), "x").variables[0].states[0] == "trocken für"


def test_bad_bytes_and_unknown_encoding():
    with pytest.raises(FormatError, match=r"x:12: .*utf-8"):
        xmlbif.read(XMLBIF.replace("heavy", "für").encode("latin-1"), "x")
    with pytest.raises(FormatError, match="'klingon'"):
        xmlbif.read(XMLBIF.replace('"1.0"?', '"1.0" encoding="klingon"?').encode(), "x")


def test_half_comments_of_old_agrum():
    text = XMLBIF.replace("<OUTCOME>dry", "<!- OUTCOME are not used\nbut kept ->\n<OUTCOME>dry", 1)
    assert xmlbif.read(text.encode(), "x") == xmlbif.read(XMLBIF.encode(), "x")
    with pytest.raises(FormatError) as info:  # lines still count: the table below now sums to something else
        xmlbif.read(text.replace("0.01 0.99", "0.01 0.89").encode(), "x")
    assert info.value.line == 1 + text[: text.index("<DEFINITION>\n")].count("\n")


@pytest.mark.parametrize(
    "dtd",
    [
        "<!DOCTYPE b [" + '<!ENTITY a "lol">' + "".join(f'<!ENTITY a{i} "{f"&a{i - 1 or str()};" * 10}">' for i in range(1, 12)) + "]>",
        '<!DOCTYPE b [<!ENTITY x SYSTEM "file:///etc/passwd">]>',
        '<!DOCTYPE b [<!ENTITY % x SYSTEM "http://localhost/x.dtd"> %x;]>',
    ],
)
@pytest.mark.parametrize("module", [xmlbif, xdsl])
def test_entities_are_refused_at_once(module, dtd: str):
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(FormatError, match="entity"):
        module.read(f"{dtd}<BIF>&a11;</BIF>".encode(), "x")
    assert time.process_time() - start < 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


def test_default_attributes_do_not_multiply():
    declared = "".join(f'<!ATTLIST a b{i} CDATA "x">' for i in range(3000))
    with pytest.raises(FormatError, match="declares more than 200 attributes"):
        xmlbif.read(f"<!DOCTYPE BIF [{declared}]><BIF>{'<a/>' * 10_000}</BIF>".encode(), "x")


def test_external_dtd_is_not_fetched():
    text = '<!DOCTYPE BIF SYSTEM "http://localhost:1/bif.dtd">' + XMLBIF[XMLBIF.index("<BIF") :]
    assert len(xmlbif.read(text.encode(), "x")) == 3
    with pytest.raises(FormatError, match="entity"):
        xmlbif.read(text.replace("dry<", "&dry;<").encode(), "x")


# --- mistakes and hostile input

BAD_XMLBIF = [
    (('TYPE="nature"', 'TYPE="decision"'), "decision node", 11),
    (("0.7 0.2 0.1", "0.7 0.2 0.2"), "sum to 1.1", 18),
    (("0.7 0.2 0.1", "0.7 0.2"), "fewer numbers|needs 3 numbers", 18),
    (("0.7 0.2 0.1", "0.7 0.2 0.05 0.05"), "more than 3", 18),
    (("0.7 0.2 0.1", "0.7 nan 0.1"), "'nan'", 18),
    (("0.7 0.2 0.1", "0.7 1_0 0.1"), "'1_0'", 18),
    (("0.7 0.2 0.1", "1.7 -0.8 0.1"), "negative", 18),
    (("0.7 0.2 0.1", "1e999 0 0"), "too large", 18),
    (("0.7 0.2 0.1", "0.7 ٠ 0.3"), "a number, not", 18),
    (("0.7 0.2 0.1", "0.7-- 0.2 0.1"), "a number, not", 18),
    (("<GIVEN>sprinkler", "<GIVEN>sprinkle"), "did you mean 'sprinkler'", 19),
    (("<GIVEN>sprinkler", "<GIVEN>rain"), "twice", 19),
    (("<FOR>sprinkler", "<FOR>wind"), "'wind', which is no variable", 30),
    (("<FOR>rain</FOR><TABLE>0.7 0.2 0.1", "<FOR>sprinkler</FOR><TABLE>0.5 0.5"), "defined twice", 30),
    (("<DEFINITION><FOR>sprinkler</FOR><TABLE>0.6 0.4</TABLE></DEFINITION>", ""), "no DEFINITION", 16),
    (("<FOR>sprinkler</FOR>", ""), "one FOR", 30),
    (("<OUTCOME>light", "<OUTCOME>dry"), "'dry' twice", 11),
    (("<NAME>wet", "<NAME>rain"), "two variables", 17),
    (("</NETWORK>", "</NETWORK><NETWORK/>"), "2 NETWORK", 8),
    (("</BIF>", "</bif>"), "mismatched tag", 32),
]


@pytest.mark.parametrize(("change", "message", "line"), BAD_XMLBIF)
def test_xmlbif_mistakes_name_the_line(change: tuple[str, str], message: str, line: int):
    with pytest.raises(FormatError, match=message) as info:
        xmlbif.read(XMLBIF.replace(*change, 1).encode(), "rain.xml")
    assert (info.value.path, info.value.line) == ("rain.xml", line)


def test_cycle_is_a_format_error():
    text = XMLBIF.replace("<FOR>rain</FOR><TABLE>0.7 0.2 0.1", "<FOR>rain</FOR><GIVEN>wet</GIVEN><TABLE>0.7 0.2 0.1 0.7 0.2 0.1")
    with pytest.raises(FormatError, match="cycle"):
        xmlbif.read(text.encode(), "x")


BAD_XDSL = [
    (("1 2 0</str", "1 2 2</str"), "no permutation"),
    (("1 2 0</str", "1 2</str"), "needs 5 strengths"),
    (("1 2 0</str", "1 2 " + "9" * 5000 + "</str"), "no permutation"),
    (("0.5 0 0 1 0.1 0.1 0.8", "0.5 0 0.5 0.5 0.1 0.1 0.8"), "neutral column of 'B'"),
    (("0.1 0.1 0.8<", "0.1 0.8<"), "needs 18 numbers, and the file has 17"),
    (("lo hi hi", "lo hi"), "2 resulting states"),
    (("lo hi hi", "lo hi up"), "no state 'up'"),
    (("<nodes>", "<dynamic/><nodes>"), "dynamic"),
    (('<state id="off" />', "<state />"), "non-empty string"),
    (('id="B"', 'id="A"'), "two nodes"),
    (("<parents>B<", "<parents>D<"), "own parent"),
    (("0.3 0.7", "0.3 0.6"), "sum to 0.9"),
]


@pytest.mark.parametrize(("change", "message"), BAD_XDSL)
def test_xdsl_mistakes(change: tuple[str, str], message: str):
    with pytest.raises(FormatError, match=message) as info:
        xdsl.read(XDSL.replace(*change, 1).encode(), "worked.xdsl")
    assert info.value.line is not None


@pytest.mark.parametrize("kind", ["equation", "noisyadder", "utility", "decision", "mau"])
def test_xdsl_other_kinds_of_node_are_named(kind: str):
    with pytest.raises(FormatError, match=f"x:1: node 'U' is of the kind <{kind}>"):
        xdsl.read(smile(root("A"), f'<{kind} id="U"><state id="a"/></{kind}>'), "x")


def test_genie_rows_a_little_off_are_rescaled():
    net = xdsl.read(XDSL.replace("0.3 0.7", "0.3 0.698").encode(), "x")
    assert chance(net, "A", "present") == pytest.approx(0.3 / 0.998)


def test_claims_are_checked_before_anything_is_allocated():
    parents = [root(f"p{i}", tuple(f"s{k}" for k in range(100)), "0.01 " * 100) for i in range(60)]
    ids = " ".join(f"p{i}" for i in range(60))
    names = f'id="c"><state id="a"/><state id="b"/><parents>{ids}</parents>'
    child = f"<cpt {names}<probabilities>0.5 0.5</probabilities></cpt>"
    truth = f"<deterministic {names}<resultingstates>a b</resultingstates></deterministic>"
    start = time.process_time()
    for node in (child, truth):
        with pytest.raises(FormatError, match="'c'"):
            xdsl.read(smile(*parents, node), "x")
    assert time.process_time() - start < 1


def test_large_deterministic_and_wide_noisy_max():
    states = "".join(f'<state id="s{k}"/>' for k in range(20_000))
    truth = f'<deterministic id="d">{states}<parents>p</parents><resultingstates>{"s0 " * 300}</resultingstates></deterministic>'
    parent = root("p", tuple(f"s{k}" for k in range(300)), "1" + " 0" * 299)
    assert MAX_EXPANDED < 300 * 20_000
    with pytest.raises(FormatError, match="too large"):
        xdsl.read(smile(parent, truth), "x")
    # a square matrix of its 20,000 states would need 3 GB
    wide = f'<noisymax id="w">{states}<parameters>{"0 " * 19_999}1</parameters></noisymax>'
    assert xdsl.read(smile(wide), "x").variables[0].card == 20_000


def test_sixty_three_parents_but_no_more():
    single = [root(f"p{i}", ("only",), "1") for i in range(64)]
    for count, fine in ((63, True), (64, False)):
        ids = " ".join(f"p{i}" for i in range(count))
        child = f'<cpt id="c"><state id="a"/><state id="b"/><parents>{ids}</parents><probabilities>0.5 0.5</probabilities></cpt>'
        if fine:
            assert len(xdsl.read(smile(*single, child), "x")) == 65
        else:
            with pytest.raises(FormatError, match="at most 63"):
                xdsl.read(smile(*single, child), "x")


def test_depth_and_count_are_bounded():
    with pytest.raises(FormatError, match="nested deeper"):
        xmlbif.read(b"<BIF>" * 1000, "x")
    with pytest.raises(FormatError, match="more than 300000 elements"):
        xmlbif.read(b"<BIF>" + b"<a/>" * 300_001, "x")


@pytest.mark.parametrize(("module", "text"), [(xmlbif, XMLBIF), (xdsl, XDSL)])
def test_truncated_anywhere(module, text: str):
    data = text.encode()
    for end in range(len(data.rstrip())):
        with pytest.raises(FormatError):
            module.read(data[:end], "x")
