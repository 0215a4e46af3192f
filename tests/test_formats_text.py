"""BIF and Hugin NET: files written by hand, checked by named states, and the errors they give; hostile sizes in all text formats."""

from __future__ import annotations

import time

import numpy as np
import pytest

from unimarg.errors import FormatError
from unimarg.formats import bif, net, uai
from unimarg.network import Network, NoisyMax, Variable

BIF = """// a comment before
network "my net" { property author = "a {b} c"; }
variable A { type discrete [ 2 ] { a0, a1 }; property position = (1, 2); property group = risks; }
/* a block { of
comment } */
variable "B b" {
  type discrete[3] {<5, "5, 12", 12+};
  property group = "two words";
}
variable C { type discrete [2] { c0 c1 }; }
probability ( A ) { table 0.25 0.75; }
probability ( "B b" | A ) {
  (a1) 0.2, 0.3, 0.5; // rows in any order
  (a0) 0.1, 0.6, 0.3;
}
probability ( C | A, "B b" ) {
  default 0.5, 0.5;
  (a0, "5, 12") 0.9, 0.1;
  (a1, 12+) 1, 0;
}
"""

NET = """% comment "not a string
net
{
    name = "my net";
    node_size = (80 40);
}
node A { label = "Not a name"; states = ("a0" "a1"); unimarg_group = "risks"; position = (1 2); }
discrete node B
{
    states = ("<5" "5 \\"12\\"" "12+ % no comment");
    unimarg_name = "B b";
}
node C { states = ("c0" "c1"); }
node D { states = ("d0" "d1" "d2"); }
node E { states = (); subtype = number; state_values = (0 2.5); }
potential (A) { data = (0.25 0.75); }
potential (B | A)
{
    data = (( 0.1 0.6 0.3 )   % a0
            ( 0.2 0.3 0.5 )); % a1
    experience = (10 20);
}
potential (C | A B) { data = (((0.1 0.9) (0.2 0.8) (0.3 0.7)) ((0.4 0.6) (0.5 0.5) (1 0))); }
potential (D | A) { }
potential (E) { }
"""


def row(network: Network, child: str, **given: str) -> list[float]:
    """P(child | given), by names."""
    i = network.find(child)
    parents = [network.variables[p] for p in network.parents[i]]
    assert sorted(given) == sorted(p.name.replace(" ", "_") for p in parents)
    states = [p.states.index(given[p.name.replace(" ", "_")]) for p in parents]
    return network.mechanisms[i].rows(np.array([states], dtype=np.int64).reshape(1, -1))[0].tolist()


def read_bif(text: str) -> Network:
    return bif.read(text.encode(), "f.bif")


def read_net(text: str) -> Network:
    return net.read(text.encode(), "f.net")


def test_bif_by_hand():
    got = read_bif(BIF)
    assert got.name == "my net"
    assert got.variables[0] == Variable("A", ("a0", "a1"), "risks")
    assert got.variables[1] == Variable("B b", ("<5", "5, 12", "12+"), "two words")
    assert row(got, "A") == [0.25, 0.75]
    assert row(got, "B b", A="a0") == [0.1, 0.6, 0.3]
    assert row(got, "B b", A="a1") == [0.2, 0.3, 0.5]
    assert row(got, "C", A="a0", B_b="5, 12") == [0.9, 0.1]
    assert row(got, "C", A="a1", B_b="12+") == [1, 0]
    assert row(got, "C", A="a1", B_b="<5") == [0.5, 0.5]


TWO = "variable A { type discrete [2] { x, y }; } variable B { type discrete [3] { p, q, r }; } probability ( A ) { table 0.5, 0.5; }\n"


def test_bif_table_with_parents_has_the_child_slowest():
    got = read_bif(TWO + "probability ( B | A ) { table 0.1, 0.2, 0.3, 0.4, 0.6, 0.4; }")
    assert row(got, "B", A="x") == [0.1, 0.3, 0.6]
    assert row(got, "B", A="y") == [0.2, 0.4, 0.4]
    careful = read_bif(TWO + "probability ( B | A ) { property x; table 0.1, 0.2, 0.3, 0.4, 0.6, 0.4; }")
    assert careful == got


def test_bif_fast_and_careful_readers_agree():
    rows = "(y) 0.1, 0.2 0.7; (x) .1e0, 2.0E-1, 0.7;"
    assert read_bif(TWO + f"probability ( B | A ) {{ {rows} }}") == read_bif(TWO + f"probability ( B | A ) {{ property x; {rows} }}")


def test_bif_noisy_max_when_rows_are_missing():
    text = """variable A { type discrete [2] { 0, 1 }; } variable B { type discrete [3] { 0, 1, 2 }; }
    variable C { type discrete [2] { 0, 1 }; }
    probability ( A ) { table 0.5, 0.5; } probability ( B ) { table 0.5, 0.25, 0.25; }
    probability ( C | A, B ) { property function max; (0, 0) 0.75, 0.25; (1, 0) 0.5, 0.5; (0, 1) 0.25, 0.75; (0, 2) 0.125, 0.875; }"""
    got = read_bif(text)
    assert isinstance(got.mechanisms[2], NoisyMax)
    assert row(got, "C", A="0", B="0") == pytest.approx([0.75, 0.25])
    assert row(got, "C", A="1", B="2") == pytest.approx([0.75 * 0.5 * 0.125, 1 - 0.75 * 0.5 * 0.125])
    with pytest.raises(FormatError, match=r"only 'B' is '2' is missing"):
        read_bif(text.replace("(0, 2) 0.125, 0.875;", ""))
    with pytest.raises(FormatError, match="the leak, is missing"):
        read_bif(text.replace("(0, 0) 0.75, 0.25;", ""))
    with pytest.raises(FormatError, match="more than one parent"):
        read_bif(text.replace("(0, 2)", "(1, 2)"))


def test_bif_with_one_parent_and_all_rows_is_a_table():
    got = read_bif(TWO + "probability ( B | A ) { property function max; (x) 0.1, 0.2, 0.7; (y) 0.3, 0.3, 0.4; }")
    assert row(got, "B", A="y") == [0.3, 0.3, 0.4]


def test_bif_isolated_variables_are_uniform_if_few():
    some = "".join(f"variable v{i} {{ type discrete [2] {{ x, y }}; }} probability ( v{i} ) {{ table 0.1, 0.9; }}" for i in range(9))
    with pytest.warns(UserWarning, match="'z' has no probability block"):
        got = read_bif(some + "variable z { type discrete [2] { x, y }; }")
    assert row(got, "z") == [0.5, 0.5]
    with pytest.raises(FormatError, match="has no probability block"):
        read_bif(some + "variable y { type discrete [2] { x, y }; } variable z { type discrete [2] { x, y }; }")


BIF_ERRORS = [
    ("probability ( B | A ) {\n (x) 0.1, 0.2, 0.7;\n}", 2, r"no row for \(y\)"),
    ("probability ( B | A ) {\n (x) 0.1, 0.2, 0.7;\n (x) 0.1, 0.2, 0.7; }", 4, r"row \(x\) of 'B' comes twice"),
    ("probability ( B | A ) {\n (x) 0.1, 0.2, 0.7;\n (z) 0.1, 0.2, 0.7; }", 4, r"'A' has no state 'z'"),
    ("probability ( B | A ) {\n (x, x) 0.1, 0.2, 0.7; }", 3, "names 2 parent states"),
    ("probability ( B | A ) {\n (x) 0.1, 0.2; (y) 0.1, 0.2, 0.7; }", 3, "has 3 states; 2 numbers"),
    ("probability ( B | A ) {\n (x) 0.1, 0_2, 0.7; (y) 0.1, 0.2, 0.7; }", 3, "expected a number, not '0_2'"),
    ("probability ( B | A ) {\n (x) 0.1, 0.2, 0.6; (y) 0.1, 0.2, 0.7; }", 2, "'B' given A=x sum to 0.9"),
    ("probability ( B | A ) {\n (x) nan, 0.2, 0.6; (y) 0.1, 0.2, 0.7; }", 3, "expected a number, not 'nan'"),
    ("probability ( B | A ) {\n (x) -0.1, 0.4, 0.7; (y) 0.1, 0.2, 0.7; }", 2, "negative"),
    ("probability ( B | A ) {\n table 0.1, 0.2, 0.7; }", 2, "has 3 numbers, its states and parents need 6"),
    ("probability ( B | A ) {\n default 0.1, 0.2, 0.7; table 1; }", 2, "both a table and rows"),
    ("probability ( B | A )\n { (x) 0.1 0.2 0.7 (y) 0.1 0.2 0.7; }", 3, r"expected a number, not '\('"),
    ("probability ( B | A ) {\n (x 0.1, 0.2, 0.7; }", 3, r"'\)' is missing"),
    ("probability ( B | A ) {\n (x) 0.1, 0.2, 0.7 }", 3, "';' is missing"),
    ("probability ( B | A ) {\n rubbish; }", 3, "expected a row"),
    ("probability ( B | A, A ) { }", 2, "comes twice"),
    ("probability ( B, A ) { }", 2, "expected"),
    ("probability ( B | Z ) { }", 2, "no variable 'Z'"),
    ("probability ( B | A ) {\n (x) 0.1", 2, "never closed"),
    ("probability ( A ) { table 0.5, 0.5; }", 2, "second probability block for 'A'"),
    ("\n\nvariable A { type discrete [2] { x, y }; }", 4, "two variables are called 'A'"),
    ("\nvariable Z { type discrete [1000000000000] { x, y }; }", 3, "claims '1000000000000' states and lists 2"),
    ("\nvariable Z { type discrete [2] { x, x }; }", 3, "state 'x' twice"),
    ("\nvariable Z { type discrete [2] { x, (y) }; }", 3, "not a list of names"),
    ("\nvariable Z { type continuous; }", 3, "expected a type or a property"),
    ("\nvariable Z { }", 3, "has no type"),
    ("\nvariable { type discrete [1] { x }; }", 3, "without a name"),
    ("\nrubbish", 3, "expected a network, variable or probability block, not 'rubbish'"),
    ("\n/* open", 3, "never closed"),
    ("", 1, "'B' has no probability block"),
]


def test_bif_cycle_is_shown():
    variables = "variable A { type discrete [1] { x }; } variable B { type discrete [1] { x }; }"
    with pytest.raises(FormatError, match=r"cycle: A -> B -> A|cycle: B -> A -> B"):
        read_bif(variables + "probability ( A | B ) { (x) 1; } probability ( B | A ) { (x) 1; }")


def test_bif_double_quote_is_refused_and_brackets_are_quoted():
    with pytest.raises(FormatError, match="double quote"):
        bif.write(Network([Variable('a"b')], {}, {'a"b': [0.5, 0.5]}))
    assert '"a (b)"' in bif.write(Network([Variable("a (b)")], {}, {"a (b)": [0.5, 0.5]}))


def test_net_by_hand():
    got = read_net(NET)
    assert got.name == "my net"
    assert got.variables[got.find("A")] == Variable("A", ("a0", "a1"), "risks")
    assert got.variables[got.find("B b")].states == ("<5", '5 "12"', "12+ % no comment")
    assert row(got, "A") == [0.25, 0.75]
    assert row(got, "B b", A="a1") == [0.2, 0.3, 0.5]
    assert row(got, "C", A="a0", B_b='5 "12"') == [0.2, 0.8]
    assert row(got, "C", A="a1", B_b="<5") == [0.4, 0.6]
    assert row(got, "D", A="a1") == [1 / 3] * 3
    assert got.variables[got.find("E")].states == ("0", "2.5")
    assert row(got, "E") == [0.5, 0.5]


def test_net_class_and_flat_data():
    text = 'class My { name = Mine; inputs = (); node A { states = ("x" "y"); } node B { states = (x y ); }\n'
    got = read_net(text + "potential (A) { data = (0.1 0.9); } potential (B | A) { data = (0.1 0.9 0.2 0.8); } }")
    assert got.name == "Mine"
    assert row(got, "B", A="y") == [0.2, 0.8]


A_NODE = 'net { }\nnode A { states = ("x" "y"); }\n'
NET_ERRORS = [
    ("decision D { }", 3, "only discrete nodes"),
    ("utility U { }", 3, "only discrete nodes"),
    ("continuous node D { }", 3, "'continuous node' 'D': only discrete nodes"),
    ("instance D : Z ();", 3, "only discrete nodes"),
    ('node A { states = ("x"); }', 3, "second one"),
    ("node B { }", 3, "'B' has no states"),
    ("node B { states = ((x) y); }", 3, "must be a list of labels"),
    ('node B { states = ("x" "x"); }', 3, "'x' twice"),
    ('node B { states = ("x" "y)', 3, "expected 'attribute = value;'"),
    ("potential (A) { data = (0.5 0.6); }", 3, "sum to 1.1"),
    ("potential (A) {\n data = (0.5); }", 4, "have 1 numbers"),
    ("potential (A) {\n data = (0.5) (0.5); }", 4, "not nested"),
    ("potential (A) {\n data = (0.5 nil); }", 4, "expected a number, not 'nil'"),
    ("potential (A) { model_nodes = (); model_data = (1); }", 3, "model expression"),
    ("potential (A | Z) { }", 3, "no variable 'Z'"),
    ("potential (A | A) { }", 3, "comes twice"),
    ("potential (A A) { }", 3, "expected"),
    ("potential (A) { } potential (A) { }", 3, "second potential"),
    ("", 2, "'A' has no potential"),
    ("node B rubbish { }", 3, "has no block"),
    ("rubbish", 3, "expected a net, node or potential block, not 'rubbish'"),
    ("class C {", 3, "never closed"),
]


ERRORS = [(read_bif, TWO + text, line, message) for text, line, message in BIF_ERRORS]
ERRORS += [(read_net, A_NODE + text, line, message) for text, line, message in NET_ERRORS]


@pytest.mark.parametrize(("read", "text", "line", "message"), ERRORS)
def test_errors_name_the_line(read, text, line, message):
    with pytest.raises(FormatError, match=message) as caught:
        read(text)
    assert (caught.value.path, caught.value.line) == ("f.bif" if read is read_bif else "f.net", line)


def test_net_writes_identifiers_and_keeps_the_names():
    names = ["a b", "a_b", "n_a_b", "a-b", "node", "é"]
    given = Network(
        [Variable(n) for n in names], {"é": ["a-b", "a b"]}, {n: [0.5, 0.5] for n in names[:-1]} | {"é": np.full((2, 2, 2), 0.5)}
    )
    text = net.write(given)
    assert all(line.split()[1].isidentifier() for line in text.splitlines() if line.startswith("node "))
    assert read_net(text) == given


MANY = "".join(f"variable v{i} {{ type discrete [2] {{ x, y }}; }} probability ( v{i} ) {{ table 0.5, 0.5; }}\n" for i in range(500))
PARENTS = [f"v{i}" for i in range(1, 500)]
HOSTILE = {
    "bif brackets": (bif, "network n " + "{(" * 300_000),
    "bif quotes": (bif, '"' * 500_000),
    "bif comments": (bif, "/*" * 300_000 + "//" * 300_000),
    "bif spaces": (bif, " " * 1_000_000 + "x"),
    "bif a million parents": (bif, TWO + f"probability ( B | {'A, ' * 300_000} A ) {{ table 1; }}"),
    "bif default over 2^499 rows": (
        bif,
        MANY + f"variable z {{ type discrete [1] {{ x }}; }} probability ( z | {', '.join(PARENTS)} ) {{ default 1; }}",
    ),
    "bif defaults that add up": (
        bif,
        MANY
        + "".join(
            f"variable z{k} {{ type discrete [1] {{ x }}; }} probability ( z{k} | {', '.join(PARENTS[:21])} ) {{ default 1; }}\n"
            for k in range(9)
        ),
    ),
    "bif many states and rows": (
        bif,
        f"variable A {{ type discrete [30000] {{ {' '.join(f's{i}' for i in range(30_000))} }}; }}"
        + "variable B { type discrete [1] { x }; }"
        + "probability ( B | A ) { property x;"
        + "".join(f"(s{i}) 1;" for i in range(30_000))
        + "}",
    ),
    "bif noisy-max of many states": (
        bif,
        "".join(f"variable {n} {{ type discrete [30000] {{ {' '.join(f's{i}' for i in range(30_000))} }}; }}" for n in "AB")
        + "probability ( B | A ) { property function max; }",
    ),
    "net brackets": (net, A_NODE + f"potential (A) {{ data = {'(' * 300_000}; }}"),
    "net closed brackets": (net, A_NODE + f"potential (A) {{ data = {'(' * 300_000} 0.5 0.5 {')' * 300_000}; }}"),
    "net string": (net, A_NODE + 'node B { states = ("' + "\\" * 500_000),
    "net words": (net, "net { " + "a " * 500_000),
    "net uniform over 2^40": (
        net,
        "net {}" + "".join(f'node v{i} {{ states = ("x" "y"); }}' for i in range(50)) + f"potential (v0 | {' '.join(PARENTS[:40])}) {{ }}",
    ),
    "uai many states": (uai, "BAYES 50000 " + "50000 " * 50_000 + "50000 " + "".join(f"1 {i} " for i in range(50_000))),
    "uai many parents": (uai, "BAYES 50000 " + "2 " * 50_000 + "1 50000 " + " ".join(map(str, range(50_000)))),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_sizes_are_refused_at_once(case):
    module, text = HOSTILE[case]
    start = time.process_time()
    with pytest.raises(FormatError):
        module.read(text.encode(), "f")
    assert time.process_time() - start < 2  # a few tenths on an idle machine
