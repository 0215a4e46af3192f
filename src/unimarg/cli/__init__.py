"""The command line: thin functions over the library, a file for each verb or two.

A user's mistake ends with one sentence on standard error and exit code 2, never with a traceback.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

import typer

from unimarg.cli import ask, inspect, judge, query, sample, score, serve, train  # noqa: F401  each adds its verbs
from unimarg.cli.common import app
from unimarg.cli.interrupt import INTERRUPTED, listening
from unimarg.errors import UnimargError, UsageError

TO_A_FILE = ("convert", "reproduce", "score", "train")  # verbs whose answer is not on standard output
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
SERVICES = ("demo", "serve")


def run() -> None:
    """The entry point of ``unimarg``: Ctrl-C ends the process, whatever is compiled beside.

    Python would wait for that, and crash. Where the reader of a pipe has gone the process ends as others do, by SIGPIPE (141 to a shell);
    a service goes on without one of its clients.
    """
    if hasattr(signal, "SIGPIPE") and "".join(sys.argv[1:2]) not in SERVICES:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        with listening():
            main()
    except SystemExit as e:
        if e.code == INTERRUPTED:
            with suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(INTERRUPTED)
        raise


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line within a process."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        _open_streams(words)
        with warnings.catch_warnings():
            warnings.simplefilter("default", UserWarning)
            warnings.showwarning = _warn
            try:
                app(words)
            finally:
                sys.stdout.flush()
    except UnimargError as e:
        _fail(str(e))
    except BrokenPipeError:
        sys.stderr.close()  # the reader of a pipe has gone: nothing to say
        sys.exit(1)
    except OSError as e:
        if e.errno in FULL and not e.filename:  # a file would have been named
            _let_go()
            _fail(f"standard output: cannot be written: {e.strerror}")
        _fail(f"{e.filename}: {e.strerror}" if e.filename else str(e))


def _open_streams(words: Sequence[str]) -> None:
    """A closed stream is as good as an empty one, but for standard output where the answer goes to it.

    A closed one would be None, and the next file that is opened have its number.
    """
    closed = sys.stdout is None
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # the lowest number is taken first
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  open to the end
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show is no reason to fail
    verb = words[0] if words else ""
    to_a_file = verb == "sample" and any(word.startswith(("-o", "--output")) for word in words)
    if closed and not to_a_file and verb not in (*TO_A_FILE, *SERVICES):
        raise UsageError("standard output is closed: there is nowhere to write the answer to")


def _let_go() -> None:
    """Standard output leads nowhere from now on: Python would try once more at the end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    print(f"unimarg: note: {message}", file=sys.stderr)


def _fail(message: str) -> None:
    print(f"unimarg: {message}", file=sys.stderr)
    sys.exit(2)


def _show_version(wanted: bool) -> None:
    if wanted:
        from unimarg import __version__

        print(f"unimarg {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Print the version and stop.")] = False,
) -> None:
    """Inference in large Bayesian networks: fast, and with a number that says how far to trust it."""
