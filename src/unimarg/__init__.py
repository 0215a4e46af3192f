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
    SamplingError,
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
from unimarg.influence import explain
from unimarg.network import Network, NoisyMax, NoisyOr, Table, Variable
from unimarg.posterior import Posterior
from unimarg.questions import next_questions

if TYPE_CHECKING:
    from unimarg.bulk.scoring import score
    from unimarg.checkpoint import load_model
    from unimarg.comparison import evaluate
    from unimarg.compiled import sample
    from unimarg.explanation import Explanation, most_probable
    from unimarg.inference import infer
    from unimarg.joint_marginals import joint
    from unimarg.joint_posterior import sample_posterior
    from unimarg.marginalizer import Marginalizer
    from unimarg.trainer import train

__all__ = [
    "EvidenceError",
    "Explanation",
    "FormatError",
    "ImpossibleEvidenceError",
    "Marginalizer",
    "Network",
    "NetworkError",
    "NoisyMax",
    "NoisyOr",
    "Posterior",
    "SamplingError",
    "Table",
    "TooExpensiveError",
    "TrainingError",
    "UnimargError",
    "UsageError",
    "Variable",
    "evaluate",
    "exact",
    "example",
    "explain",
    "from_pgmpy",
    "from_pyagrum",
    "infer",
    "joint",
    "load",
    "load_model",
    "medical",
    "most_probable",
    "next_questions",
    "sample",
    "sample_posterior",
    "save",
    "score",
    "to_pgmpy",
    "to_pyagrum",
    "train",
]

# what needs JAX, which takes more than a second to import, is imported when first used
_LAZY = {
    "Explanation": "unimarg.explanation",
    "Marginalizer": "unimarg.marginalizer",
    "evaluate": "unimarg.comparison",
    "infer": "unimarg.inference",
    "joint": "unimarg.joint_marginals",
    "load_model": "unimarg.checkpoint",
    "most_probable": "unimarg.explanation",
    "sample": "unimarg.compiled",
    "sample_posterior": "unimarg.joint_posterior",
    "score": "unimarg.bulk.scoring",
    "train": "unimarg.trainer",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from unimarg.provenance import installed_version

        return installed_version()
    if name not in _LAZY:
        raise AttributeError(f"module 'unimarg' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
