"""The command line: thin functions over the library, a file for each verb or two.

A user's mistake ends with one sentence on standard error and exit code 2, never with a traceback.
"""

from __future__ import annotations

import errno
import gc
import io
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Annotated

import typer

from unimarg.cli import ask, inspect, judge, query, sample, score, serve, train  # noqa: F401  each adds its verbs
from unimarg.cli.common import app
from unimarg.errors import UnimargError, UsageError

INTERRUPTED = 130  # exit code
TO_A_FILE = ("convert", "reproduce", "score", "train")  # verbs whose answer is not on standard output
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
SERVICES = ("demo", "serve")
A_WHILE = 0.7  # seconds after which Ctrl-C is seen not to have ended a command
SAVES = ("score", "train")  # verbs that Ctrl-C tells to save, which must not be interrupted
AGAIN = 3.0  # seconds after which it is sent again to the others, for code of other libraries may have dropped it


def run() -> None:
    """The entry point of ``unimarg``: where Ctrl-C ended the command the process ends too, whatever is compiled beside.

    Python would wait for that, and crash. Where the reader of a pipe has gone the process ends as others do, by SIGPIPE (141 to a shell);
    a service goes on without one of its clients.
    """
    if hasattr(signal, "SIGPIPE") and "".join(sys.argv[1:2]) not in SERVICES:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
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
        with _interruptible(not words or words[0] not in SAVES), warnings.catch_warnings():
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


@contextmanager
def _interruptible(again: bool = True) -> Iterator[None]:
    """Ctrl-C always ends a command, also where it comes while garbage is collected; ``again``: where it was dropped on the way, too."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    interrupt = _Interrupt()
    gc.callbacks.insert(0, interrupt.watch)
    signal.signal(signal.SIGINT, interrupt)
    try:
        with _heard(interrupt, again):
            yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        gc.callbacks.remove(interrupt.watch)


@contextmanager
def _heard(interrupt: _Interrupt, again: bool) -> Iterator[None]:
    """Says that Ctrl-C was heard where it takes a while: what is being compiled, or read by another library, has to end first.

    What is raised while something is compiled may be dropped there, and the command would go on to its end.
    """
    if os.name != "posix":
        yield
        return
    (reading, writing), over, main = os.pipe(), threading.Event(), threading.main_thread().ident or 0
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing)

    def listen() -> None:
        while (number := os.read(reading, 1)) and number[0] != signal.SIGINT:
            pass
        if number and not over.wait(A_WHILE):
            print("unimarg: stopping as soon as this step ends", file=sys.stderr, flush=True)
            while again and not over.wait(AGAIN):
                if interrupt.raised:
                    signal.pthread_kill(main, signal.SIGINT)

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    try:
        yield
    finally:
        over.set()
        signal.set_wakeup_fd(before)
        os.close(writing)
        listener.join()
        os.close(reading)


class _Interrupt:
    """Python drops an exception that is raised in a finaliser or in a callback of the garbage collector, of which JAX has one.

    Then the signal is sent again, a moment later.
    """

    def __init__(self) -> None:
        self.collecting = self.raised = False

    def watch(self, phase: str, _: object) -> None:
        self.collecting = phase == "start"

    def __call__(self, number: int, frame: FrameType | None) -> None:
        callbacks = [getattr(call, "__code__", None) for call in gc.callbacks]
        dropped = self.collecting
        while frame is not None and not dropped:  # callbacks at the end of a collection
            dropped, frame = frame.f_code in callbacks, frame.f_back
        if not dropped:
            self.raised = True
            raise KeyboardInterrupt
        again = threading.Timer(0.01, signal.pthread_kill, (threading.main_thread().ident, number))
        again.daemon = True
        again.start()


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
