"""Networks to try things on: ``example("asia")``, ``example("alarm")``, ``example("clinic")``, and ``medical`` of any size.

asia     8 nodes    Lauritzen & Spiegelhalter 1988: shortness of breath, small enough to follow by hand
alarm    37 nodes   Beinlich et al. 1989: monitoring a ventilated patient
clinic   over 200   ours, invented: a visit to a family doctor; too tangled for exact inference
medical  any size   generated: three layers of risks, diseases and symptoms

The first three are data files inside the package, read when asked for.
"""

from __future__ import annotations

from importlib.resources import files

from unimarg.errors import UsageError, closest
from unimarg.examples.clinic import Case, clinic_cases, read_clinic
from unimarg.examples.medical import medical
from unimarg.network import Network

__all__ = ["Case", "clinic_cases", "example", "example_names", "medical"]

_FILES = {"asia": "asia.bif", "alarm": "alarm.bif", "clinic": "clinic.toml"}


def example_names() -> tuple[str, ...]:
    """The names that ``example`` knows, smallest network first."""
    return tuple(_FILES)


def example(name: str) -> Network:
    """A network that comes with the package.

    >>> example("clinic").name
    'clinic'
    """
    if name not in _FILES:
        raise UsageError(f"there is no example {name!r}; {closest(name, _FILES)}")
    file = _FILES[name]
    data = (files("unimarg.examples") / file).read_bytes()
    if file.endswith(".toml"):
        return read_clinic(data, file)
    from unimarg.formats import bif  # here, so that the package imports without its file readers

    return bif.read(data, file)
