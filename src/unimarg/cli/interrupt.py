"""Ctrl-C on the command line: a command ends at once, or comes to an end and keeps what there is.

A KeyboardInterrupt comes only when the compiler is done, and where it is raised while JAX is imported or compiles it is dropped there, or
brings the process down. So none is raised: a thread hears the signal, and ends the process. A verb that has something to keep says so
(``keeping``): it is told to come to an end, and what ends the process is the next Ctrl-C.

Within Python, where ``listening`` is not, Ctrl-C remains a KeyboardInterrupt but for verbs that keep something.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from unimarg.formats.files import remove_unfinished

INTERRUPTED = 130  # exit code
A_WHILE = 0.7  # seconds after which a command is seen not to have come to its end
SHOW_CURSOR = "\x1b[?25h"


class _Keeper:
    """What a verb does about Ctrl-C."""

    def __init__(self, stop: Callable[[], bool], lost: Callable[[], str]):
        self.stop, self.lost = stop, lost
        self.told, self.over = False, threading.Event()

    def tell(self) -> bool:
        """Whether it comes to an end by itself; the first time it is told."""
        if self.told or not self.stop():
            return False
        self.told = True
        return True


class _Listener(threading.Thread):
    """Hears signals the moment they come, whatever the main thread does."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.keeper: _Keeper | None = None
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.writing, False)
        self.before = signal.set_wakeup_fd(self.writing)

    def run(self) -> None:
        while heard := os.read(self.reading, 1):
            if heard[0] in (signal.SIGINT, signal.SIGTERM):
                self.interrupted()

    def interrupted(self) -> None:
        keeper = self.keeper
        if keeper is None or not keeper.tell():
            leave(keeper.lost() if keeper else "")
        elif not keeper.over.wait(A_WHILE):
            print("unimarg: stopping as soon as this step ends (Ctrl-C again: at once)", file=sys.stderr, flush=True)

    def close(self) -> None:
        signal.set_wakeup_fd(self.before)
        os.close(self.writing)
        self.join()
        os.close(self.reading)


_listener: _Listener | None = None  # signals are the process's


@contextmanager
def listening() -> Iterator[None]:
    """Ctrl-C ends the process from here on, with exit code 130; one that is ignored, as in a shell's background, remains so."""
    global _listener
    if os.name != "posix" or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    before = signal.signal(signal.SIGINT, _heard_elsewhere)
    _listener = _Listener()
    _listener.start()
    try:
        yield
    finally:
        _listener.close()
        _listener = None
        signal.signal(signal.SIGINT, before)


@contextmanager
def keeping(stop: Callable[[], bool], lost: Callable[[], str] = str, terminated: bool = False) -> Iterator[None]:
    """Ctrl-C calls ``stop`` first, which answers False where there is nothing to keep.

    What is ``lost`` is said where the process ends without it. A polite kill is a Ctrl-C where ``terminated`` says so.
    """
    keeper, listener = _Keeper(stop, lost), _listener
    if listener is None:
        with _handled(keeper):
            yield
        return
    listener.keeper = keeper
    before = signal.signal(signal.SIGTERM, _heard_elsewhere) if terminated else None
    try:
        yield
    finally:
        listener.keeper = None
        keeper.over.set()
        if before is not None:
            signal.signal(signal.SIGTERM, before)


@contextmanager
def not_listening() -> Iterator[None]:
    """For what has its own way with signals."""
    listener = _listener
    if listener is None:
        yield
        return
    signal.set_wakeup_fd(listener.before)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        signal.set_wakeup_fd(listener.writing)


def leave(said: str = "") -> None:
    """Ends the process: what was begun to be written goes, and the cursor, which a bar may have hidden, comes back."""
    remove_unfinished()
    with suppress(OSError, ValueError):
        cursor = f"{SHOW_CURSOR}\n" if sys.stderr.isatty() else ""
        line = f"unimarg: {said}\n" if said else ""
        os.write(sys.stderr.fileno(), f"{cursor}{line}".encode())
    os._exit(INTERRUPTED)


def _heard_elsewhere(*_: Any) -> None:
    """A handler that there must be for the signal to be passed on."""


@contextmanager
def _handled(keeper: _Keeper) -> Iterator[None]:
    """Without a listener: by a handler, in the main thread."""
    before = signal.getsignal(signal.SIGINT)
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield
        return
    handle = before

    def interrupted(number: int, frame: Any) -> None:
        if not keeper.tell():
            handle(number, frame)

    signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
