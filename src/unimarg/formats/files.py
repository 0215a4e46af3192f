"""Bytes from and to files: plain or gzip by suffix, bounded when read, atomic when written."""

from __future__ import annotations

import contextlib
import gzip
import os
import secrets
import stat
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, cast

from unimarg.errors import FormatError, UnimargError, UsageError

MAX_BYTES = 2**30  # the largest network file, unpacked, that is read
# Networks as text shrink 10 to 50 times. A file that grows beyond this, and beyond a size that does no
# harm, is taken for a decompression bomb before it has filled the memory.
MAX_GZIP_RATIO = 100
HARMLESS_BYTES = 2**25
_CHUNK = 2**20
_unfinished: set[str] = set()  # files that are being written and have no name yet


def path_of(path: object) -> str:
    """A user's path as a string."""
    found = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(found, str):
        raise UsageError(f"a file is given by its path, a string or a pathlib.Path, not by {repr(found)[:100]}")
    return found


def read_bytes(path: str, limit: int | None = None) -> bytes:
    """The file's content, unpacked if its name ends in ``.gz``; at most ``limit`` bytes, MAX_BYTES if not given."""
    limit = MAX_BYTES if limit is None else limit
    with explained(path, "read"), open(path, "rb", opener=_open_without_waiting) as f:
        status = os.fstat(f.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise FormatError("is not a regular file", path)
        if status.st_size > limit:
            raise FormatError(f"has {status.st_size} bytes; the limit is {limit}", path)
        data = f.read(status.st_size)
    return _unpack(data, path, limit) if path.lower().endswith(".gz") else data


@contextlib.contextmanager
def explained(path: str, verb: str) -> Iterator[None]:
    """The system's complaints as ours."""
    try:
        yield
    except UnimargError:
        raise
    except OSError as e:
        raise FormatError(f"cannot be {verb}: {e.strerror or e}", path) from e
    except ValueError as e:
        raise FormatError(f"is no file name: {e}", path) from e


def _open_without_waiting(path: str, flags: int) -> int:
    # opening a named pipe would otherwise wait for a writer
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _unpack(data: bytes, path: str, limit: int) -> bytes:
    limit = min(limit, max(HARMLESS_BYTES, MAX_GZIP_RATIO * len(data)))
    out = bytearray()
    rest = data
    while rest.strip(b"\0"):  # a gzip file may hold several members, and zero padding after them
        member = zlib.decompressobj(wbits=31)
        try:
            while not member.eof:
                out += member.decompress(rest, _CHUNK)
                rest = member.unconsumed_tail
                if len(out) > limit:
                    raise FormatError(
                        f"unpacks to more than {limit} bytes from {len(data)}, which looks like a decompression bomb; "
                        "unpack it by hand if it is not",
                        path,
                    )
                if not rest and not member.eof:
                    raise FormatError("the gzip data end too early", path)
        except zlib.error as e:
            raise FormatError(f"is not valid gzip data: {e}", path) from e
        rest = member.unused_data
    return bytes(out)


def check_output(path: Path, what: str, suffixes: Sequence[str], stream: bool = False) -> None:
    """Whether a file may be written there, before the work that fills it: a slip must not replace a model or a network.

    With ``stream`` a pipe or a device may have any name.
    """
    if stream and (path.parts[:2] == ("/", "dev") or (path.exists() and not path.is_file() and not path.is_dir())):
        return  # /dev/stdout may lead to a file
    for name in (path.name, path.resolve().name):  # a link is followed
        if not name.lower().endswith(tuple(suffixes)):
            raise UsageError(f"{what} is written to a file with one of the suffixes {' '.join(suffixes)}, not to {name!r}")
    if not path.absolute().parent.is_dir():
        raise FormatError(f"cannot be written: there is no folder {str(path.parent)!r}", path)


def write_bytes(path: str, data: bytes) -> None:
    """Write a file in one step. Packed if the name ends in ``.gz``, the same bytes for the same content."""
    with replacing(path) as f:
        f.write(data)


@contextlib.contextmanager
def replacing(path: str) -> Iterator[IO[bytes]]:
    """A file to write that takes the place of ``path`` at the end.

    A reader sees the old content or the new, and a failure leaves the old. What is written is packed if
    the name ends in ``.gz``. A pipe or a device is written to, never replaced.
    """
    with explained(path, "written"):
        target = os.path.realpath(path)  # a link keeps pointing at the file
        if os.path.isdir(target):
            raise FormatError("cannot be written: Is a directory", path)
        with _replacing(target) if os.path.isfile(target) or not os.path.exists(path) else _device(path) as f:
            if path.lower().endswith(".gz"):
                with gzip.GzipFile("", "wb", compresslevel=6, fileobj=f, mtime=0) as packed:
                    yield cast(IO[bytes], packed)
            else:
                yield f


def _device(path: str) -> IO[bytes]:
    handle = _open_without_waiting(path, os.O_WRONLY)
    os.set_blocking(handle, True)  # only opening must not wait, for a reader that never comes
    return open(handle, "wb")


@contextlib.contextmanager
def _replacing(target: str) -> Iterator[IO[bytes]]:
    folder, name = os.path.split(target)
    temporary = os.path.join(folder, f".{name[:100]}.{secrets.token_hex(6)}.tmp")
    # unlike tempfile's, this mode respects the umask
    _unfinished.add(temporary)
    handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0), 0o666)
    try:
        with open(handle, "wb") as f:
            yield f
            f.flush()
            os.fsync(f.fileno())
        with contextlib.suppress(FileNotFoundError):
            os.chmod(temporary, stat.S_IMODE(os.stat(target).st_mode))
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    finally:
        _unfinished.discard(temporary)
    _sync_folder(folder)


def remove_unfinished() -> None:
    """For a process that ends while others of its threads write."""
    for temporary in tuple(_unfinished):
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def _sync_folder(folder: str) -> None:
    """Make the new name durable where the system allows it; the content already is."""
    with contextlib.suppress(OSError):
        handle = os.open(folder or ".", os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
