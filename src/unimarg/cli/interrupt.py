"""Ctrl-C on the command line: a command ends at once, or comes to an end and keeps what there is.

A KeyboardInterrupt comes only when the compiler is done, and where it is raised while JAX is imported or compiles it is dropped there, or
brings the process down. So none is raised: a thread hears the signal, and ends the process. A verb that has something to keep says so
(``keeping``): it is told to come to an end, and what ends the process is the next Ctrl-C.

Within Python, where ``listening`` is not, Ctrl-C remains a KeyboardInterrupt but for verbs that keep something.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from unimarg.formats.files import remove_unfinished

INTERRUPTED = 130  # exit code
END, MANY = b"\0", 1 << 12  # to the listener: that it is over; signals read at once
A_WHILE = 0.7  # seconds after which a command is seen not to have come to its end
SHOW_CURSOR = "\x1b[?25h"


class _Keeper:
    """What a verb does about Ctrl-C."""

    def __init__(self, stop: Callable[[], bool] | None, lost: Callable[[], str]):
        self.stop, self.lost, self.over = stop, lost, threading.Event()

    def tell(self) -> bool:
        """Whether it comes to an end by itself, now that it is told for the first time."""
        stop, self.stop = self.stop, None
        return stop is not None and stop()


class _Listener(threading.Thread):
    """Hears signals the moment they come, whatever the main thread does."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.keeper: _Keeper | None = None
        self.reading, self.writing = os.pipe()
        for end in (self.reading, self.writing):
            os.set_blocking(end, False)
        self.before = signal.set_wakeup_fd(self.writing)

    def run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})  # a reader of what is said may be gone, by the same Ctrl-C
        heard = self._heard(None)
        while END not in heard:
            try:
                if not {signal.SIGINT, signal.SIGTERM}.isdisjoint(heard):
                    heard = self._interrupted()
            except Exception:  # nobody else would listen
                leave()
            if END not in heard:
                heard = self._heard(None)

    def _heard(self, seconds: float | None) -> bytes:
        """Numbers of signals, all that have come; waits for one so long."""
        return os.read(self.reading, MANY) if select.select([self.reading], [], [], seconds)[0] else b""

    def _interrupted(self) -> bytes:
        """What came meanwhile: it was the same one, or came before anybody knew that a second would end the process."""
        keeper = self.keeper
        if keeper is None or not keeper.tell():
            leave(keeper.lost() if keeper else "")
        ended, meanwhile = keeper.over.wait(A_WHILE), self._heard(0)
        if not ended:
            with suppress(OSError, ValueError):
                print("unimarg: stopping as soon as this step ends (Ctrl-C again: at once)", file=sys.stderr, flush=True)
        return meanwhile

    def close(self) -> None:
        signal.set_wakeup_fd(self.before)
        os.write(self.writing, END)
        self.join()
        os.close(self.writing)
        os.close(self.reading)


_listener: _Listener | None = None  # signals are the process's


@contextmanager
def listening() -> Iterator[None]:
    """Ctrl-C ends the process from here on, with exit code 130; one that is ignored, as in a script's background, remains so."""
    global _listener
    if os.name != "posix":
        yield
        return
    _listener = _Listener()
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _heard_elsewhere)
    _listener.start()
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        hand_over()


def hand_over() -> None:
    """Nobody listens any more: for what has its own way with signals."""
    global _listener
    if _listener is not None:
        _listener.close()
        _listener = None


@contextmanager
def keeping(stop: Callable[[], bool] | None, lost: Callable[[], str] = str, terminated: bool = False) -> Iterator[None]:
    """Ctrl-C calls ``stop`` first, which answers False where there is nothing to keep; None: what there is, is kept as it comes.

    What is ``lost`` is said where the process ends without it. A polite kill is a Ctrl-C where ``terminated`` says so.
    """
    keeper, listener = _Keeper(stop, lost), _listener
    if listener is None:
        with _handled(keeper):
            yield
        return
    around, listener.keeper = listener.keeper, keeper
    before = signal.signal(signal.SIGTERM, _heard_elsewhere) if terminated else None
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)
        listener.keeper = around
        keeper.over.set()


def leave(said: str = "") -> NoReturn:
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

    def interrupted(number: int, frame: Any) -> None:
        if not keeper.tell():
            if said := keeper.lost():
                print(f"unimarg: {said}", file=sys.stderr)
            before(number, frame)

    signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
