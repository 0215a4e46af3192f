"""Networks to and from the objects of pgmpy and pyAgrum, which are imported when first used.

Axes are matched by variable name, never by position: pgmpy's ``get_evidence()`` returns the parents reversed
(``variables[1:]`` does not), and a pyAgrum tensor lists its variables with the first one fastest, so that its
array has the axes of ``names`` reversed. Groups travel as node attributes (pgmpy) or network properties (pyAgrum).
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Sequence
from os import PathLike
from types import ModuleType
from typing import Any

import numpy as np

from unimarg.errors import NetworkError, UsageError
from unimarg.network import Floats, Network, Table, Variable

MAX_TENSOR = 2**27  # entries of the largest pyAgrum tensor that is copied: its noisy gates only pretend to be tables
_GROUP = "unimarg group of "


AnyNetwork = Network | Any  # a Network, or what ``as_network`` makes one of


def as_network(source: AnyNetwork) -> Network:
    """The network itself, or a pgmpy or pyAgrum model as one: what every function takes in place of a network."""
    if isinstance(source, Network):
        return source
    if hasattr(source, "cpds"):
        return from_pgmpy(source)
    if hasattr(source, "cpt"):
        return from_pyagrum(source)
    hint = "; unimarg.load reads one from a file" if isinstance(source, str | PathLike) else ""
    raise UsageError(f"this needs a Network, or a model of pgmpy or pyAgrum, not {type(source).__name__}{hint}")


def from_pgmpy(model: Any) -> Network:
    """A Network from a pgmpy ``DiscreteBayesianNetwork`` with all its CPDs (a noisy-OR CPD is already a table there)."""
    if not hasattr(model, "cpds") or not hasattr(model, "nodes"):
        raise UsageError(f"from_pgmpy needs a pgmpy DiscreteBayesianNetwork, not {type(model).__name__}")
    cpds = {cpd.variable: cpd for cpd in model.cpds}
    variables: dict[Any, Variable] = {}
    for node, attributes in model.nodes(data=True):
        if node not in cpds:
            raise NetworkError(f"the pgmpy model has no CPD for {node!r}")
        if not hasattr(cpds[node], "state_names") or not hasattr(cpds[node], "values"):
            raise NetworkError(f"the CPD of {node!r} is a {type(cpds[node]).__name__}, not a table over states")
        states = tuple(str(s) for s in cpds[node].state_names[node])
        variables[node] = Variable(str(node), states, str(attributes.get("group") or ""))
    parents: dict[str, list[str]] = {}
    tables: dict[str, Table] = {}
    for node, variable in variables.items():
        cpd = cpds[node]
        given = list(cpd.variables[1:])
        if set(given) != set(model.predecessors(node)):
            raise NetworkError(f"the CPD of {node!r} has the parents {given}, the graph {list(model.predecessors(node))}")
        values = np.moveaxis(np.asarray(cpd.values, dtype=np.float64), 0, -1)
        for axis, parent in enumerate(given):
            labels = [str(s) for s in cpd.state_names[parent]]
            values = _in_order(values, axis, labels, variables[parent], variable)
        parents[variable.name] = [variables[p].name for p in given]
        tables[variable.name] = Table(np.ascontiguousarray(values))
    return Network(list(variables.values()), parents, tables, str(getattr(model, "name", "") or "network"))


def _in_order(values: Floats, axis: int, labels: list[str], parent: Variable, child: Variable) -> Floats:
    """Turn an axis into the parent's own order of states: every CPD may list them as it likes."""
    if sorted(labels) != sorted(parent.states):
        raise NetworkError(f"the CPD of {child.name!r} gives its parent {parent.name!r} the states {labels}, not {list(parent.states)}")
    order = [labels.index(s) for s in parent.states]
    return values if order == list(range(len(order))) else values.take(order, axis)


def to_pgmpy(net: Network) -> Any:
    """A pgmpy ``DiscreteBayesianNetwork``; a noisy-max becomes a table if it is small enough."""
    models, factors = import_quietly("pgmpy.models", "pgmpy"), import_quietly("pgmpy.factors.discrete", "pgmpy")
    model = models.DiscreteBayesianNetwork()
    for variable in net.variables:
        model.add_node(variable.name)
        if variable.group:
            model.nodes[variable.name]["group"] = variable.group
    for i, variable in enumerate(net.variables):
        given = [net.variables[p] for p in net.parents[i]]
        model.add_edges_from((p.name, variable.name) for p in given)
        table = _expanded(net, i, "pgmpy")
        cpd = factors.TabularCPD(
            variable.name,
            variable.card,
            np.moveaxis(table, -1, 0).reshape(variable.card, -1),
            evidence=[p.name for p in given] or None,
            evidence_card=[p.card for p in given] or None,
            state_names={v.name: list(v.states) for v in (variable, *given)},
        )
        model.add_cpds(cpd)
    model.name = net.name
    return model


def from_pyagrum(bn: Any) -> Network:
    """A Network from a pyAgrum ``BayesNet``; noisy gates and other functional nodes are read as the tables they stand for."""
    if not hasattr(bn, "cpt") or not hasattr(bn, "nodes"):
        raise UsageError(f"from_pyagrum needs a pyagrum.BayesNet, not {type(bn).__name__}")
    groups = {k.removeprefix(_GROUP): bn.property(k) for k in bn.properties() if k.startswith(_GROUP)}
    variables: dict[str, Variable] = {}
    parents: dict[str, list[str]] = {}
    tables: dict[str, Table] = {}
    for node in sorted(bn.nodes()):
        described = bn.variable(node)
        name = described.name()
        variables[name] = Variable(name, tuple(described.labels()), groups.get(name, ""))
        tensor = bn.cpt(node)
        if tensor.domainSize() > MAX_TENSOR:
            raise NetworkError(
                f"the table of {name!r} has {tensor.domainSize():.3g} entries, more than the {MAX_TENSOR:.3g} that are copied"
            )
        axes = list(tensor.names)[::-1]
        parents[name] = list(tensor.names)[1:]
        assert axes[-1] == name
        # not toarray(): for a noisy gate or an aggregator it returns uninitialised memory (pyAgrum 3.3.1)
        array = np.asarray(tensor[:], dtype=np.float64)
        tables[name] = Table(np.ascontiguousarray(array.transpose([axes.index(a) for a in (*parents[name], name)])))
    title = bn.property("name") if "name" in bn.properties() else ""
    return Network(list(variables.values()), parents, tables, title or "network")


def to_pyagrum(net: Network) -> Any:
    """A pyAgrum ``BayesNet`` of labelled variables; a noisy-max becomes a table if it is small enough."""
    gum = import_quietly("pyagrum", "pyagrum")
    bn = gum.BayesNet(net.name)
    for variable in net.variables:
        try:
            node = bn.add(gum.LabelizedVariable(variable.name, variable.name, list(variable.states)))
            if variable.group:
                bn.setProperty(_GROUP + variable.name, variable.group)
        except (gum.GumException, TypeError, UnicodeError) as e:
            raise NetworkError(f"pyAgrum cannot take the variable {variable.name!r}: {_sentence(e)}") from None
        # some strings come back cut short instead of being refused
        if bn.variable(node).name() != variable.name or tuple(bn.variable(node).labels()) != variable.states:
            raise NetworkError(f"pyAgrum cannot take the names of {variable.name!r} and its states {list(variable.states)}")
    for i, variable in enumerate(net.variables):
        given = [net.names[p] for p in net.parents[i]]
        table = _expanded(net, i, "pyAgrum")
        for parent in given:
            bn.addArc(parent, variable.name)
        tensor = bn.cpt(variable.name)
        axes = [*given, variable.name]
        tensor.fillWith(table.transpose([axes.index(a) for a in reversed(tensor.names)]).ravel().tolist())
    return bn


def _expanded(net: Network, i: int, library: str) -> Floats:
    try:
        return net.mechanisms[i].expand()
    except NetworkError as e:
        raise NetworkError(f"{net.names[i]!r} cannot be given to {library}: {e}") from None


def _sentence(error: Exception) -> str:
    lines: Sequence[str] = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


def import_quietly(module: str, package: str) -> ModuleType:
    """A library that is imported when first needed, its warnings at import ignored."""
    try:
        # where warnings are errors, one raised while pyAgrum's SWIG types are made kills the interpreter
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(module)
    except ImportError as e:
        raise UsageError(f"{package} is needed for this and could not be imported: {e}") from None
