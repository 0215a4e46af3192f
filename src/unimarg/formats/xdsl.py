"""XDSL, the format of GeNIe and SMILE: chance, deterministic and noisy-max nodes.

Tables list the child innermost and the first parent slowest; ``<deterministic>`` gives one state per parent
configuration. Rows of a ``<cpt>`` within 0.005 of 1 are rescaled. ``<noisymax>`` (schema: state+, parents?,
strengths?, parameters; SMILE's manual, "Noisy-MAX", and its public header ``defnoisymax.h``) works like this:

- the child's states are listed from the strongest down to the neutral ("distinguished") one, which is LAST;
- ``strengths`` has for each parent a permutation: entry s is the parent state that column s belongs to, again
  strongest first, the parent's neutral state last; left out, it is 0 1 2 ...;
- ``parameters`` has for each parent one column over the child's states per parent state, in that order, the last
  column being 0 ... 0 1; then one last column for the leak;
- numbers are Diez's net ones, P(Y | X_i alone, no leak): "We DON'T use P(Y|~X1,...,Xi,...,Xn)", says the header.

A ``NoisyMax`` of ours has the neutral state first, in the child and in every parent, so reading may reorder the
states of a variable (states go by name; see ``xdsl_order``). Writing turns a noisy-max child round and gives the
strengths, which makes reading it back an identity.

Ids are letters, digits and underscores; what else a name holds is kept in the properties ``unimarg_name`` and
``unimarg_states``, as JSON from id to name, so that an id changed in GeNIe wins over a stale entry.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

import numpy as np

from unimarg.errors import FormatError
from unimarg.formats.assemble import build, check_parents, identifiers, make_variable, shown, size_of
from unimarg.formats.safe_xml import Element, complaints, leaf, parse, read_numbers, read_table
from unimarg.formats.xdsl_order import Listed, ListedMax, Raw, ordered_nodes
from unimarg.mechanism import MAX_EXPANDED
from unimarg.network import ROW_SUM_TOLERANCE, Floats, Network, NoisyMax, Table

_ID = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
GENIE_ROW_SUM_TOLERANCE = 5e-3  # learned networks saved by GeNIe have rows that miss 1 by 2e-3
_KINDS = ("cpt", "deterministic", "noisymax")


def read(data: bytes, path: str) -> Network:
    """The network in an XDSL file."""
    root = parse(data, path, "smile")
    if root.first("dynamic") is not None:
        raise FormatError("dynamic (temporal) networks cannot be read", path, root.line)
    listing = root.first("nodes")
    if listing is None or not listing.children:
        raise FormatError("the network has no nodes", path, root.line)
    raws: dict[str, Raw] = {}
    for element in listing.children:
        raw = _raw(element, path)
        if raw.id in raws:
            raise FormatError(f"two nodes have the id {raw.id!r}", path, element.line)
        raws[raw.id] = raw
    truth_entries = 0
    for element, raw in zip(listing.children, raws.values(), strict=True):
        check_parents(raw.id, raw.parents, raws, complaints(path), raw.line)
        listed = raw.mechanism = _mechanism(element, raw, [raws[p].card for p in raw.parents], path)
        if element.tag == "deterministic" and isinstance(listed, Table):
            truth_entries += listed.probabilities.size
            if truth_entries > MAX_EXPANDED:
                raise FormatError("the deterministic nodes are too large to be read as tables", path, element.line)
    return build(ordered_nodes(raws, path), root.attributes.get("id") or "network", complaints(path))


def _raw(element: Element, path: str) -> Raw:
    """A node's names: what is needed of every node before tables can be shaped."""
    node = element.attributes.get("id", "").strip()
    if element.tag not in _KINDS:
        kinds = ", ".join(_KINDS)
        raise FormatError(f"node {node!r} is of the kind <{element.tag[:60]}>; only {kinds} nodes can be read", path, element.line)
    if not node:
        raise FormatError(f"a <{element.tag}> node has no id", path, element.line)
    ids = [state.attributes.get("id", "").strip() for state in element.all("state")]
    names = _renamed(element, "unimarg_name", [node], path)
    states = _renamed(element, "unimarg_states", ids, path)
    group = next((p.content for p in element.all("property") if p.attributes.get("id") == "group"), "")
    variable = make_variable(names[0], states, group, complaints(path), element.line)
    parents = element.first("parents")
    return Raw(node, variable, tuple(ids), tuple(parents.text.split()) if parents else (), element.line)


def _renamed(element: Element, key: str, ids: list[str], path: str) -> list[str]:
    found = next((p for p in element.all("property") if p.attributes.get("id") == key), None)
    if found is None:
        return ids
    try:
        names = json.loads(found.content)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, dict) or not all(isinstance(n, str) for n in names.values()):
        raise FormatError(f"the property {key!r} must be a JSON object of names by id", path, found.line)
    renamed = [names.get(i, i) for i in ids]
    if any("\ud800" <= c <= "\udfff" for name in renamed for c in name):
        raise FormatError(f"the property {key!r} holds half a character, which is no text", path, found.line)
    return renamed


def _mechanism(element: Element, raw: Raw, parent_cards: list[int], path: str) -> Listed:
    wanted = {"cpt": "probabilities", "deterministic": "resultingstates", "noisymax": "parameters"}[element.tag]
    values = element.first(wanted)
    if values is None:
        raise FormatError(f"node {raw.id!r} has no <{wanted}>", path, element.line)
    if element.tag == "cpt":
        return Table(_rescaled(read_table(values, [*parent_cards, raw.card], raw.id, path)))
    if element.tag == "deterministic":
        return Table(_truth_table(values, raw, parent_cards, path))
    return _noisy_max(element, values, raw, parent_cards, path)


def _rescaled(table: Floats) -> Floats:
    """Rows a little further from 1 than a Network allows; real GeNIe files have them. Beyond, the Network complains."""
    sums = table.sum(axis=-1, keepdims=True)
    off = np.abs(sums - 1)
    return np.where((off > ROW_SUM_TOLERANCE) & (off <= GENIE_ROW_SUM_TOLERANCE), table / np.where(sums == 0, 1, sums), table)


def _truth_table(values: Element, raw: Raw, parent_cards: list[int], path: str) -> Floats:
    results = values.text.split()
    rows = size_of(parent_cards, len(results))
    if len(results) != rows:
        raise FormatError(f"node {raw.id!r} has {len(results)} resulting states, which do not fit its parents", path, values.line)
    if rows * raw.card > MAX_EXPANDED:
        raise FormatError(f"the deterministic node {raw.id!r} is too large to be read as a table", path, values.line)
    position = {state: k for k, state in enumerate(raw.state_ids)}
    unknown = next((r for r in results if r not in position), None)
    if unknown is not None:
        raise FormatError(f"node {raw.id!r} has no state {shown(unknown)}", path, values.line)
    table = np.zeros((rows, raw.card))
    table[np.arange(rows), [position[r] for r in results]] = 1
    return table.reshape([*parent_cards, raw.card])


def _noisy_max(element: Element, values: Element, raw: Raw, parent_cards: list[int], path: str) -> ListedMax:
    count = (sum(parent_cards) + 1) * raw.card
    columns = read_numbers(values, count, f"the noisy-max {raw.id!r}", path).reshape(-1, raw.card)
    given = element.first("strengths")
    tokens = given.text.split() if given else [str(s) for card in parent_cards for s in range(card)]
    if len(tokens) != sum(parent_cards):
        raise FormatError(f"node {raw.id!r} needs {sum(parent_cards)} strengths and has {len(tokens)}", path, element.line)
    neutral = np.zeros(raw.card)
    neutral[-1] = 1
    strengths, contributions, start = [], [], 0
    for parent, card in zip(raw.parents, parent_cards, strict=True):
        position = {str(s): s for s in range(card)}
        order = [position.get(t, -1) for t in tokens[start : start + card]]
        if sorted(order) != list(range(card)):
            raise FormatError(f"node {raw.id!r}: the strengths of {parent!r} are no permutation of 0 to {card - 1}", path, element.line)
        block = columns[start : start + card]
        if np.abs(block[-1] - neutral).max() > 1e-3:
            raise FormatError(f"node {raw.id!r}: the neutral column of {parent!r} must be 0 ... 0 1", path, values.line)
        rows = np.empty_like(block)
        rows[order] = block
        rows[order[-1]] = neutral
        strengths.append(tuple(order))
        contributions.append(rows)
        start += card
    return ListedMax(columns[-1], contributions, strengths)


def write(net: Network) -> str:
    """The network as XDSL text; numbers are shortest round-trip."""
    ids = _ids(net.names)
    name = _ids([net.name])[net.name]
    out = ['<?xml version="1.0" encoding="UTF-8"?>', f'<smile version="1.0" id="{name}" numsamples="10000" discsamples="10000">']
    out.append("\t<nodes>")
    # a noisy-max child is turned round, because SMILE wants its neutral state last
    turned = [isinstance(m, NoisyMax) for m in net.mechanisms]
    for i, (variable, mechanism) in enumerate(zip(net.variables, net.mechanisms, strict=True)):
        tag = "noisymax" if turned[i] else "cpt"
        states = _ids(variable.states)
        out.append(f'\t\t<{tag} id="{ids[variable.name]}">')
        out += [f'\t\t\t<state id="{states[s]}" />' for s in (variable.states[::-1] if turned[i] else variable.states)]
        if net.parents[i]:
            out.append("\t\t\t<parents>" + " ".join(ids[net.names[p]] for p in net.parents[i]) + "</parents>")
        reverse = [turned[p] for p in net.parents[i]]
        out += _max_lines(mechanism, reverse) if isinstance(mechanism, NoisyMax) else _table_lines(mechanism, reverse)
        out += _property_lines(variable.group, {ids[variable.name]: variable.name}, {i: s for s, i in states.items()})
        out.append(f"\t\t</{tag}>")
    return "\n".join([*out, "\t</nodes>", "</smile>", ""])


def _table_lines(table: Table, reverse: list[bool]) -> list[str]:
    turned = table.probabilities[tuple(slice(None, None, -1) if r else slice(None) for r in reverse)]
    return [f"\t\t\t<probabilities>{_numbers(turned)}</probabilities>"]


def _max_lines(mechanism: NoisyMax, reverse: list[bool]) -> list[str]:
    """Parent states from the last to the neutral first one; as file indices they ascend where the parent is turned round."""
    strengths = [s for r, card in zip(reverse, mechanism.parent_cards, strict=True) for s in (range(card) if r else range(card)[::-1])]
    columns = [*(c[::-1, ::-1] for c in mechanism.contributions), mechanism.leak[None, ::-1]]
    lines = [f"\t\t\t<parameters>{' '.join(_numbers(c) for c in columns)}</parameters>"]
    return [f"\t\t\t<strengths>{' '.join(map(str, strengths))}</strengths>", *lines] if strengths else lines


def _numbers(array: Floats) -> str:
    return " ".join(map(repr, array.ravel().tolist()))


def _property_lines(group: str, names: dict[str, str], states: dict[str, str]) -> list[str]:
    lines = [leaf("property", group, ' id="group"')] if group else []
    for key, by_id in (("unimarg_name", names), ("unimarg_states", states)):
        odd = {i: name for i, name in by_id.items() if i != name}
        if odd:
            lines.append(leaf("property", json.dumps(odd), f' id="{key}"'))
    return ["\t\t\t" + line for line in lines]


def _ids(names: Iterable[str]) -> dict[str, str]:
    return identifiers(names, _ID.fullmatch)
