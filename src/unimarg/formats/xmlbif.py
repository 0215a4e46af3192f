"""XMLBIF 0.3: the interchange format of JavaBayes, Weka, SamIam, aGrUM and pgmpy.

``<VARIABLE TYPE="nature">`` has a NAME and OUTCOMEs; ``<DEFINITION>`` has FOR, GIVENs and a TABLE, listed with
the outcomes of FOR innermost and the first GIVEN slowest (F. G. Cozman, "The Interchange Format for Bayesian
Networks", 1998). A variable's group is the property ``group = symptoms``; other properties are ignored.
The format knows tables only: a noisy-max is written as one where it is small enough. The optional DTD is read but
not written, because aGrUM's reader cannot pass over it.
"""

from __future__ import annotations

from unimarg.errors import FormatError
from unimarg.formats.assemble import Node, build, check_parents, full_table, make_variable
from unimarg.formats.safe_xml import SPACE, Element, complaints, escape, leaf, parse, read_table
from unimarg.network import Network, Table, Variable


def read(data: bytes, path: str) -> Network:
    """The network in an XMLBIF file."""
    root = parse(data, path, "BIF")
    networks = root.all("NETWORK")
    if len(networks) != 1:
        raise FormatError(f"the file holds {len(networks)} NETWORK elements; one is needed", path, root.line)
    network = networks[0]
    lines: dict[str, int] = {}
    variables: dict[str, Variable] = {}
    for element in network.all("VARIABLE"):
        variable = _variable(element, path)
        if variable.name in lines:
            raise FormatError(f"two variables are called {variable.name!r}", path, element.line)
        lines[variable.name], variables[variable.name] = element.line, variable
    defined: dict[str, Node] = {}
    for element in network.all("DEFINITION"):
        node = _definition(element, variables, path)
        if node.variable.name in defined:
            raise FormatError(f"variable {node.variable.name!r} is defined twice", path, element.line)
        defined[node.variable.name] = node
    for name, line in lines.items():
        if name not in defined:
            raise FormatError(f"variable {name!r} has no DEFINITION", path, line)
    if not variables:
        raise FormatError("the network has no variables", path, network.line)
    title = network.first("NAME")
    return build([defined[name] for name in variables], (title.content if title else "") or "network", complaints(path))


def _variable(element: Element, path: str) -> Variable:
    kind = element.attributes.get("TYPE", "nature").strip(SPACE).lower()
    names = element.all("NAME")
    if len(names) != 1 or not names[0].content:
        raise FormatError("a VARIABLE needs one NAME", path, element.line)
    name = names[0].content
    if kind != "nature":
        raise FormatError(f"variable {name!r} is a {kind[:40]} node; only chance (nature) nodes can be read", path, element.line)
    states = [o.content for o in element.all("OUTCOME")]
    return make_variable(name, states, _group(element), complaints(path), element.line)


def _group(element: Element) -> str:
    for prop in element.all("PROPERTY"):
        key, equals, value = prop.content.partition("=")
        if equals and key.strip(SPACE) == "group":
            # what we write has exactly one space; with xml:space="preserve" the rest belongs to the name
            return value[1:] if prop.attributes.get("xml:space") == "preserve" else value.strip(SPACE)
    return ""


def _definition(element: Element, variables: dict[str, Variable], path: str) -> Node:
    targets, tables = element.all("FOR"), element.all("TABLE")
    if len(targets) != 1 or len(tables) != 1:
        raise FormatError("a DEFINITION needs one FOR and one TABLE", path, element.line)
    name, given = targets[0].content, tuple(g.content for g in element.all("GIVEN"))
    if name not in variables:
        raise FormatError(f"a DEFINITION is for {name!r}, which is no variable", path, element.line)
    check_parents(name, given, variables, complaints(path), element.line)
    cards = [*(variables[g].card for g in given), variables[name].card]
    return Node(variables[name], given, Table(read_table(tables[0], cards, name, path)), element.line)


def write(net: Network) -> str:
    """The network as XMLBIF text; numbers are shortest round-trip."""
    out = ['<?xml version="1.0" encoding="UTF-8"?>', '<BIF VERSION="0.3">', "<NETWORK>", leaf("NAME", net.name)]
    for variable in net.variables:
        out += ['<VARIABLE TYPE="nature">', "\t" + leaf("NAME", variable.name)]
        out += ["\t" + leaf("OUTCOME", state) for state in variable.states]
        if variable.group:
            out.append("\t" + _group_property(variable.group))
        out.append("</VARIABLE>")
    for i, variable in enumerate(net.variables):
        out += ["<DEFINITION>", "\t" + leaf("FOR", variable.name)]
        out += ["\t" + leaf("GIVEN", net.variables[p].name) for p in net.parents[i]]
        out += ["\t<TABLE>", _rows(net, i), "\t</TABLE>", "</DEFINITION>"]
    return "\n".join([*out, "</NETWORK>", "</BIF>", ""])


def _group_property(group: str) -> str:
    keep = ' xml:space="preserve"' if group != group.strip(SPACE) else ""
    return f"<PROPERTY{keep}>group = {escape(group)}</PROPERTY>"


def _rows(net: Network, i: int) -> str:
    table = full_table(net, i)
    return "\n".join("\t\t" + " ".join(map(repr, row)) for row in table.reshape(-1, table.shape[-1]).tolist())
