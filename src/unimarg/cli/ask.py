"""``unimarg ask``: a diagnosis in the terminal, question by question."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unimarg.cli.common import (
    CaseOption,
    EvidenceOption,
    JsonOption,
    ModelArgument,
    app,
    findings_of,
    finite,
    source_of,
    state_named,
    variables_of,
)
from unimarg.errors import UnimargError, UsageError

if TYPE_CHECKING:
    from unimarg.network import Network
    from unimarg.posterior import Posterior

SHOWN = 5  # targets or questions in a list
LEAST = 0.001  # nats: below this a question is not worth asking
THINKING = "thinking: a network's first sampled query compiles its program"
HELP = "a state or its number answers, s skips, u undoes, q stops; NAME=STATE tells something else"


@app.command()
def ask(
    network: ModelArgument,
    target: Annotated[
        list[str] | None, typer.Option("-t", "--target", help="What to find out: a variable, or a group of them. Repeatable.")
    ] = None,
    among: Annotated[
        list[str] | None,
        typer.Option(
            "--among",
            help="What may be asked: a variable or a group; if not given all, of a model those that its training showed. Repeatable.",
        ),
    ] = None,
    cost: Annotated[list[str] | None, typer.Option("--cost", metavar="NAME=NUMBER", help="What a question costs, 1 if not given.")] = None,
    evidence: EvidenceOption = None,
    case: CaseOption = None,
    just_list: Annotated[bool, typer.Option("--list", help="Print the questions in their order, and ask none.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Find out by asking: always the question that tells most about the targets, for its cost. Answers come from standard input.

    Example: unimarg ask asia -t lung -t tub
    """
    net, model = source_of(network)
    targets = variables_of(net, target or [])
    if not targets:
        raise UsageError("say what to find out: -t NAME, a variable or a group of variables")
    if as_json and not just_list:
        raise UsageError("--json goes with --list: an interview is for people")
    findings = findings_of(net, case, evidence or [])
    options = {"targets": targets, "candidates": variables_of(net, among or []) or None, "costs": _costs(cost or [])}
    if model is None:
        from unimarg.inference import infer
        from unimarg.query import only_question
        from unimarg.questions import next_questions

        only_question(net, None)
        interview = Interview(net, partial(infer, net, targets=targets), partial(next_questions, net, **options), findings)
    else:
        answer = partial(model.query, targets=targets, method="um")
        interview = Interview(net, answer, partial(model.next_questions, **options), findings)
    if just_list:
        return interview.list_questions(as_json)
    return interview.run()


class Interview:
    """What is known and what was skipped, with every state before it, so that an answer can be taken back."""

    def __init__(self, net: Network, posterior: Any, questions: Any, findings: Mapping[str, Any]):
        from unimarg import terminal

        self.net, self.posterior, self.questions = net, posterior, questions
        self.findings, self.skipped = dict(findings), frozenset[str]()
        self.before: list[tuple[dict[str, Any], frozenset[str]]] = []
        self.prior: Posterior | None = None
        self.console = terminal.console()

    def list_questions(self, as_json: bool) -> None:
        from unimarg import terminal

        with terminal.waiting(THINKING):
            table = self.questions(self.findings)
        if as_json:
            rows = [finite(row) for row in table.to_dict("records")]
            return print(json.dumps({"questions": rows, **table.attrs, "evidence": self.findings}, indent=2))
        self.console.print(terminal.questions(table))
        return self.console.print(table.attrs["method"], style="dim", markup=False)

    def run(self) -> None:
        self.show()
        while self.take(self.put_best()):
            pass
        known = ", ".join(f"{name}={value}" for name, value in self.findings.items())
        self.console.print(f"known: {known or 'nothing'}", markup=False)

    def put_best(self) -> str | None:
        """The best question that was not skipped, if it is worth asking."""
        import numpy as np

        from unimarg import terminal

        with terminal.waiting(THINKING):
            table = self.questions(self.findings)
        worth = np.maximum(2 * table["gain_error"].fillna(0), LEAST)  # more than chance
        left = table[~table["variable"].isin(list(self.skipped)) & (table["gain"] >= worth)]
        if not len(left):
            self.console.print("No question left would tell much: q stops, u undoes.")
            return None
        name, gain = left["variable"].iloc[0], left["gain"].iloc[0]
        told = f"[dim]expected to tell {gain:.3f} of {table.attrs['entropy']:.3f} nats[/dim]"
        self.console.print()
        self.console.print(terminal.plain(f"{name}?"), told)
        for number, state in self.menu(name):
            self.console.print(terminal.plain(f"  {number}  {state}"))
        return name

    def menu(self, name: str) -> list[tuple[str, str]]:
        """States with the numbers that they have in ``-e NAME=NUMBER`` too; without them where numbers are names of states."""
        from unimarg.evidence import numbered

        variable = self.net.variables[self.net.index[name]]
        return [("" if numbered(variable) else str(k), state) for k, state in enumerate(variable.states)]

    def take(self, name: str | None) -> bool:
        """Lines until one is understood; whether to go on."""
        from unimarg import terminal

        while True:
            self.console.print("> ", end="")
            sys.stdout.flush()
            line = sys.stdin.readline()
            if not sys.stdin.isatty():
                self.console.print(terminal.plain(line.strip()))  # as a terminal would show it
            if not line or line.strip().lower() == "q":
                return False
            try:
                self.understand(line.strip(), name)
                return True
            except UnimargError as e:
                self.console.print(str(e), markup=False)

    def understand(self, text: str, name: str | None) -> None:
        from unimarg.evidence import WHOLE

        states = [] if name is None else [state for _, state in self.menu(name)]
        now = (self.findings, self.skipped)
        if text.lower() == "u":
            if not self.before:
                raise UsageError("there is nothing to undo")
            self.findings, self.skipped = self.before.pop()
            return self.show()
        if "=" in text and text not in states:
            self.tell(findings_of(self.net, None, [text]))
        elif name is not None and text.lower() == "s":
            self.skipped |= {name}
        elif name is not None and (text in states or WHOLE.fullmatch(text)):
            self.tell({name: state_named(self.net, name, text)})
        else:
            raise UsageError(HELP)
        self.before.append(now)
        return None

    def tell(self, news: dict[str, Any]) -> None:
        known, self.findings = self.findings, self.findings | news
        try:
            self.show()
        except UnimargError:
            self.findings = known
            raise

    def show(self) -> None:
        """Bars of the targets that moved most."""
        from unimarg import terminal

        with terminal.waiting(THINKING):
            before = self.prior = self.prior or self.posterior({})
            post = self.posterior(self.findings)
        moved = {n: max(abs(post[n][s] - before[n][s]) for s in post[n]) for n in post}
        names = sorted(moved, key=moved.__getitem__, reverse=True)[:SHOWN] if len(moved) > SHOWN else list(moved)
        self.console.print(terminal.bars(post, names))
        if post.method == "um" and post.message:  # findings that training never showed
            self.console.print(post.message, style="dim", markup=False)


def _costs(given: Iterable[str]) -> dict[str, float]:
    costs: dict[str, float] = {}
    for text in given:
        name, _, number = text.rpartition("=")
        try:
            costs[name] = float(number)
        except ValueError:
            raise UsageError(f"a cost is given as NAME=NUMBER, not {text!r}") from None
    return costs
