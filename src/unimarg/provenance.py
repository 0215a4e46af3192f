"""What made a result: the commit, versions and hardware that go into every table."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

COLUMNS = ("unimarg", "commit", "jax", "python", "hardware")


def provenance() -> dict[str, str]:
    import jax

    hardware = jax.devices()[0].device_kind
    if jax.default_backend() == "cpu":
        hardware = f"{os.cpu_count()} cores {platform.machine()}"
    return dict(zip(COLUMNS, (installed_version(), _commit(), jax.__version__, platform.python_version(), hardware), strict=True))


def installed_version() -> str:
    try:
        return version("unimarg")
    except PackageNotFoundError:
        return "unknown"


def _commit() -> str:
    """Of the repository that this very file belongs to, marked where it has been changed; an installed package has none."""
    here = Path(__file__)
    git = ("git", "-C", str(here.parent))
    try:
        subprocess.run([*git, "ls-files", "--error-unmatch", here.name], capture_output=True, check=True)
        found = subprocess.run([*git, "describe", "--always", "--exclude=*", "--dirty=+"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()
