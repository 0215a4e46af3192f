"""Networks from and to files, the format chosen by the file's suffix.

A format is one module with ``read(data: bytes, path: str) -> Network`` and ``write(net) -> str``; to add
one, write the module and name its suffixes here. Any suffix may be followed by ``.gz``.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Protocol, cast

from unimarg.errors import FormatError, NetworkError
from unimarg.formats import files
from unimarg.formats.interop import AnyNetwork, as_network
from unimarg.network import Network

# suffix -> module of this package, imported when a file asks for it
SUFFIXES = {
    ".bif": "bif",
    ".xmlbif": "xmlbif",
    ".bifxml": "xmlbif",
    ".xml": "xmlbif",
    ".net": "net",
    ".uai": "uai",
    ".xdsl": "xdsl",
}


class Format(Protocol):
    """What a module of this package offers."""

    def read(self, data: bytes, path: str) -> Network: ...

    def write(self, net: Network) -> str: ...


def load(path: str | os.PathLike[str]) -> Network:
    """Read a network from a file.

    A file that cannot be read gives a ``FormatError`` that names the file and, where there is one, the line.
    """
    from unimarg.examples import example_names  # here, since examples are read from files

    path = files.path_of(path)
    if path.lower().endswith(".um"):
        raise FormatError("is a trained model, not a network: load_model reads it, and its network is model.net", path)
    if path in example_names() and not os.path.exists(path):
        raise FormatError(f"there is no such file; the example of this name is unimarg.example({path!r})", path)
    module = _format(path)
    data = files.read_bytes(path)
    if not data.strip():
        raise FormatError("the file is empty", path, 1)
    try:
        return module.read(data, path)
    except NetworkError as e:
        raise FormatError(str(e), path) from e
    except (RecursionError, MemoryError) as e:
        raise FormatError(f"the file is nested too deeply or too large ({type(e).__name__})", path) from e


def save(net: AnyNetwork, path: str | os.PathLike[str]) -> None:
    """Write a network to a file; a failure leaves an existing file as it was.

    UAI has no names: in such a file variables are x0, x1, ... in the order of ``net.names``, unless these are their names already, and
    states 0, 1, ...
    """
    path = files.path_of(path)
    module = _format(path)
    try:
        data = module.write(as_network(net)).encode("utf-8")
    except FormatError as e:
        raise FormatError(e.message, path, e.line) from e
    except NetworkError as e:
        raise FormatError(str(e), path) from e
    except UnicodeEncodeError as e:
        raise FormatError(f"a name holds {e.object[e.start : e.end]!r}, which cannot be written as text", path) from e
    files.write_bytes(path, data)


def _format(path: str) -> Format:
    base = path.lower().removesuffix(".gz")
    suffix = os.path.splitext(base)[1] or os.path.basename(base)
    if suffix not in SUFFIXES:
        raise FormatError(f"unknown suffix {suffix!r}; known are {' '.join(SUFFIXES)}, each also with .gz", path)
    return cast(Format, import_module(f"unimarg.formats.{SUFFIXES[suffix]}"))
