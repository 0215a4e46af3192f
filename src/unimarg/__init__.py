"""unimarg: fast, trustworthy inference in large Bayesian networks.

>>> import unimarg as um
>>> post = um.exact(um.example("asia"), {"dysp": "yes"})
>>> round(post["lung"]["yes"], 4)
0.1028
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from unimarg.errors import (
    EvidenceError,
    FormatError,
    ImpossibleEvidenceError,
    NetworkError,
    TooExpensiveError,
    TrainingError,
    UnimargError,
    UsageError,
)
from unimarg.exact import exact
from unimarg.examples import example
from unimarg.examples.medical import medical
from unimarg.formats import load, save
from unimarg.formats.interop import from_pgmpy, from_pyagrum, to_pgmpy, to_pyagrum
from unimarg.network import Network, NoisyMax, NoisyOr, Table, Variable
from unimarg.posterior import Posterior

if TYPE_CHECKING:
    from unimarg.checkpoint import load_model
    from unimarg.compiled import sample
    from unimarg.marginalizer import Marginalizer
    from unimarg.query import infer
    from unimarg.trainer import train

__all__ = [
    "EvidenceError",
    "FormatError",
    "ImpossibleEvidenceError",
    "Marginalizer",
    "Network",
    "NetworkError",
    "NoisyMax",
    "NoisyOr",
    "Posterior",
    "Table",
    "TooExpensiveError",
    "TrainingError",
    "UnimargError",
    "UsageError",
    "Variable",
    "exact",
    "example",
    "from_pgmpy",
    "from_pyagrum",
    "infer",
    "load",
    "load_model",
    "medical",
    "sample",
    "save",
    "to_pgmpy",
    "to_pyagrum",
    "train",
]

# what needs JAX, which takes more than a second to import, is imported when first used
_LAZY = {
    "Marginalizer": "unimarg.marginalizer",
    "infer": "unimarg.query",
    "load_model": "unimarg.checkpoint",
    "sample": "unimarg.compiled",
    "train": "unimarg.trainer",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'unimarg' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
