"""Writes docs/api.md from the docstrings of the public names; a test compares the two.

python docs/make_api.py
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import unimarg as um

# headings, and the methods of a class that are told of
NETWORKS = {name: [] for name in ("example", "load", "save", "medical")}
NETWORKS |= {"Network": ["find", "plot", "log_probability"], "Variable": [], "Table": [], "NoisyMax": [], "NoisyOr": []}
NETWORKS |= {name: [] for name in ("from_pgmpy", "to_pgmpy", "from_pyagrum", "to_pyagrum")}
ANSWERS = {name: [] for name in ("exact", "infer", "joint", "sample_posterior", "most_probable", "next_questions", "explain", "sample")}
ANSWERS |= {"Posterior": ["error", "table", "rows", "to_dict", "plot"], "Explanation": []}
LEARNED = ["query", "predict_proba", "predict", "next_questions", "explain", "joint", "sample_posterior", "most_probable", "embed", "save"]
MODELS = {"train": [], "load_model": [], "Marginalizer": LEARNED, "evaluate": [], "score": []}
ERRORS = {name: [] for name in um.__all__ if name.endswith("Error")}
HEAD = """# API

Made from the docstrings by `docs/make_api.py`. Evidence is always one mapping from a variable's name to a state's label, its index, or a
likelihood (a list over the states, or `{state: value}`). Where a label is a number, no number is an
index: give such labels as strings, since a number that could be both is an error. Wherever a network is taken, a model of pgmpy or
pyAgrum is too.
"""


def page() -> str:
    parts = [HEAD]
    for title, names in {"Networks": NETWORKS, "Answers": ANSWERS, "Models": MODELS, "Errors": ERRORS}.items():
        parts.append(f"## {title}\n")
        for name, methods in names.items():
            thing = getattr(um, name)
            call = "" if name in ERRORS or name == "Marginalizer" else _call(f"um.{name}", thing)
            parts.append(f"### `{name}`\n\n{call}{_prose(thing)}")
            parts += [_call(f".{m}", getattr(thing, m)) + _prose(getattr(thing, m)) for m in methods]
    return "\n".join(parts)


def _call(name: str, thing: Any) -> str:
    """As it is written in the source, without ``self``."""
    signature = inspect.signature(thing)
    shown: list[str] = []
    for p in signature.parameters.values():
        if p.name == "self":
            continue
        if p.kind == p.KEYWORD_ONLY and "*" not in shown:
            shown.append("*")
        stars = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        shown.append(f"{stars}{p.name}: {p.annotation}" + ("" if p.default is p.empty else f" = {p.default!r}"))
    result = "" if inspect.isclass(thing) else f" -> {signature.return_annotation}"
    return f"```python\n{name}({', '.join(shown)}){result}\n```\n\n"


def _prose(thing: Any) -> str:
    """A docstring as Markdown: examples fenced, code by single quotes."""
    text = (inspect.getdoc(thing) or "").replace("``", "`")
    return re.sub(r"^>>> (?:.+\n?)+", lambda m: f"```python\n{m[0].rstrip()}\n```\n", text, flags=re.M).rstrip() + "\n"


if __name__ == "__main__":
    (Path(__file__).parent / "api.md").write_text(page())
