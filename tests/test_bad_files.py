"""Bad files, each read in a process of its own: an error that names file and line, in under a second and 200 MB."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from unimarg.formats import SUFFIXES
from unimarg.network import Network, Variable

SUFFIX = {module: suffix for suffix, module in reversed(SUFFIXES.items())}
SECONDS, MEGABYTES = 1.0, 200.0

# reads the file named on its command line; prints error, line, seconds and peak memory
PROBE = """
import pathlib, resource, sys, time
from unimarg.formats import load
from unimarg.errors import FormatError
start = time.process_time()
try:
    outcome, line = f"read {load(sys.argv[1])!r}", None
except FormatError as e:
    outcome, line = str(e), e.line
seconds, kilobytes = time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
status = pathlib.Path("/proc/self/status")
if status.exists():  # where getrusage counts what the parent had before this process began
    kilobytes = int(status.read_text().split("VmHWM:")[1].split()[0])
print(outcome.replace(chr(10), " "), line, seconds, kilobytes / 1024, sep="\\n")
"""


def good(form: str) -> str:
    """A small network, a -> b -> c, as the format writes it."""
    variables = [Variable(n, ("0", "1")) for n in ("x0", "x1", "x2")]
    tables = {"x0": [0.25, 0.75], "x1": [[0.5, 0.5], [0.125, 0.875]], "x2": [[0.375, 0.625], [0.0625, 0.9375]]}
    return import_module(f"unimarg.formats.{form}").write(Network(variables, {"x1": ["x0"], "x2": ["x1"]}, tables))


# what turns the good file into the bad one; the text that is replaced must be there
CYCLES = {
    "bif": ("probability ( x1 | x0 )", "probability ( x1 | x2 )"),
    "net": ("potential (x1 | x0)", "potential (x1 | x2)"),
    "uai": ("2 0 1", "2 2 1"),
    "xmlbif": ("<GIVEN>x0</GIVEN>", "<GIVEN>x2</GIVEN>"),
    "xdsl": ("<parents>x0</parents>", "<parents>x2</parents>"),
}
UNKNOWN = {
    "bif": [("  (1) 0.125", "  (2) 0.125"), ("| x0 )", "| y )")],
    "net": [("(x1 | x0)", "(x1 | y)")],
    "uai": [("2 0 1", "2 7 1")],
    "xmlbif": [("<GIVEN>x0</GIVEN>", "<GIVEN>y</GIVEN>")],
    "xdsl": [("<parents>x0</parents>", "<parents>y</parents>")],
}
HUGE = {
    "bif": [("[ 2 ]", "[ 1000000000000 ]")],
    "uai": [
        ("BAYES\n3", "BAYES\n1000000000000"),
        ("2 2 2\n3", "2 2 2\n1000000000000"),
        ("2 2 2", "1000000000000 2 2"),
        ("\n4\n", "\n1000000000000\n"),
    ],
}


def forty_parents(form: str) -> str:
    """A file whose last table would have 2^41 entries, and gives one."""
    names = [f"p{i}" for i in range(40)]
    scope = " ".join(names)
    if form == "bif":
        roots = "".join(f"variable {n} {{ type discrete [2] {{ 0, 1 }}; }}\nprobability ( {n} ) {{ table 0.5, 0.5; }}\n" for n in names)
        last = f"variable z {{ type discrete [2] {{ 0, 1 }}; }}\nprobability ( z | {', '.join(names)} ) {{ default 0.5, 0.5; }}\n"
        return roots + last
    if form == "net":
        roots = "".join(f'node {n} {{ states = ("0" "1"); }}\npotential ({n}) {{ data = (0.5 0.5); }}\n' for n in names)
        return "net { }\n" + roots + f'node z {{ states = ("0" "1"); }}\npotential (z | {scope}) {{ }}\n'
    if form == "uai":
        scopes = "".join(f"1 {i}\n" for i in range(40)) + f"41 {' '.join(map(str, range(41)))}\n"
        return f"BAYES\n41\n{'2 ' * 41}\n41\n{scopes}" + "2 0.5 0.5\n" * 40 + f"{2**41}\n0.5 0.5\n"
    if form == "xmlbif":
        given = "".join(f"<GIVEN>{n}</GIVEN>" for n in names)
        variables = "".join(f"<VARIABLE><NAME>{n}</NAME><OUTCOME>0</OUTCOME><OUTCOME>1</OUTCOME></VARIABLE>\n" for n in [*names, "z"])
        roots = "".join(f"<DEFINITION><FOR>{n}</FOR><TABLE>0.5 0.5</TABLE></DEFINITION>\n" for n in names)
        last = f"<DEFINITION><FOR>z</FOR>{given}<TABLE>0.5 0.5</TABLE></DEFINITION>"
        return f"<BIF><NETWORK>\n{variables}{roots}{last}</NETWORK></BIF>"
    states = '<state id="a"/><state id="b"/>'
    roots = "".join(f'<cpt id="{n}">{states}<probabilities>0.5 0.5</probabilities></cpt>\n' for n in names)
    last = f'<cpt id="z">{states}<parents>{scope}</parents><probabilities>0.5 0.5</probabilities></cpt>'
    return f"<smile><nodes>\n{roots}{last}</nodes></smile>"


def entity_bomb(form: str) -> str:
    lines = ['<!ENTITY a0 "lol">', *(f'<!ENTITY a{i} "{f"&a{i - 1};" * 10}">' for i in range(1, 13))]
    root = {"xmlbif": "BIF", "xdsl": "smile"}[form]
    return f"<!DOCTYPE {root} [\n" + "\n".join(lines) + f"\n]>\n<{root}>&a12;</{root}>"


def bad_files() -> list[tuple[str, str, bytes, str]]:
    """(format, what is wrong, content, what the error must say)."""
    cases: list[tuple[str, str, bytes, str]] = []

    def add(form: str, what: str, content: str | bytes, message: str) -> None:
        cases.append((form, what, content if isinstance(content, bytes) else content.encode(), message))

    def changed(form: str, old: str, new: str) -> str:
        text = good(form)
        assert old in text, (form, old, text)
        return text.replace(old, new, 1)

    for form in sorted(CYCLES):
        text = good(form)
        add(form, "cycle", changed(form, *CYCLES[form]), "cycle: x")
        add(form, "row sum", changed(form, "0.125", "0.25"), "sum to 1.125")
        for k, change in enumerate(UNKNOWN[form]):
            add(form, f"unknown name {k}", changed(form, *change), "no state '2'|no variable 'y'|whole number from 0 to 2")
        add(form, "truncated", text[: len(text) * 2 // 3], "never closed|expected|announced|not well-formed|ends before")
        add(form, "claims more than it holds", forty_parents(form), "would fill in|fewer numbers|numbers are announced")
        if form.startswith("x"):  # which says that it is UTF-8
            add(form, "wrong encoding", text.replace("x0", "ü").encode("latin-1"), "not valid utf-8")
            add(form, "entity bomb", entity_bomb(form), "entity")
        else:
            add(form, "wrong encoding", text.encode("utf-16-le"), "not a text file")
        add(form, "bad bytes", b"\xef\xbb\xbf" + text.encode() + b"\n\xff\xfe\xfd", "not valid utf")
        add(form, "empty", "", "empty")
        add(form, "blank", " \n\n", "empty")
        for k, change in enumerate(HUGE.get(form, [])):
            add(form, f"claim of 10^12, {k}", changed(form, *change), "1000000000000|10\\^12|whole number")
    truth = '<deterministic id="a"><state id="s"/><resultingstates>t</resultingstates></deterministic>'
    add("xdsl", "unknown state", f"<smile><nodes>{truth}</nodes></smile>", "no state 't'")
    return cases


CASES = bad_files()


@pytest.mark.parametrize(("form", "what", "content", "message"), CASES, ids=[f"{form} {what}" for form, what, *_ in CASES])
def test_a_bad_file_is_refused_quickly_and_small(form: str, what: str, content: bytes, message: str, tmp_path: Path):
    path = tmp_path / f"bad{SUFFIX[form]}"
    path.write_bytes(content)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", PROBE, str(path)], capture_output=True, text=True, env=environment, check=True)
    outcome, line, seconds, megabytes = done.stdout.splitlines()
    assert outcome.startswith(f"{path}:{line}: ")
    assert line.isdigit()
    assert 1 <= int(line) <= content.count(b"\n") + 1
    assert re.search(message, outcome)
    assert float(seconds) < SECONDS
    assert float(megabytes) < MEGABYTES


def test_the_probe_reads_a_good_file(tmp_path: Path):
    for form in CYCLES:
        path = tmp_path / f"good{SUFFIX[form]}"
        path.write_text(good(form))
        done = subprocess.run([sys.executable, "-c", PROBE, str(path)], capture_output=True, text=True, check=True)
        assert done.stdout.startswith("read Network(")
