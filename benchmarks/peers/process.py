"""The other side of ``worker.py``: ask an engine within a time and a memory limit; whatever goes wrong becomes a ``Failure``."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TICK = 0.05  # seconds between looks at the memory


class Failure(Exception):  # noqa: N818 (a result, not an error of ours)
    """``kind`` is crash, time-out, memory, error or wrong."""

    def __init__(self, kind: str, message: str):
        super().__init__(f"{kind}: {message}")
        self.kind, self.message = kind, message


class Process:
    """An engine of a library, in a process that may die. ``peak`` is the most memory it was seen to have, in bytes."""

    def __init__(self, library: str, memory: float, python: str = sys.executable, engines: Path = HERE / "engines.py"):
        self.memory, self.peak = memory, 0.0
        self.stderr = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        source = str(HERE.parent.parent / "src")
        self.process = subprocess.Popen(
            [python, str(HERE / "worker.py"), str(engines), library],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.stderr,
            env=os.environ | {"PYTHONPATH": source},
            start_new_session=True,  # so that what it started goes with it
        )
        self.buffer = b""

    def ask(self, seconds: float, **request: Any) -> dict[str, Any]:
        """The reply, if it comes within so many seconds."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(pickle.dumps(request, protocol=4))
            self.process.stdin.flush()
        except OSError:
            raise self._dead() from None
        reply = self._reply(time.monotonic() + seconds, seconds)
        if "error" in reply:
            raise Failure("error", reply["error"])
        return reply

    def _reply(self, deadline: float, seconds: float) -> dict[str, Any]:
        assert self.process.stdout is not None
        pipe = self.process.stdout.fileno()
        while True:
            if select.select([pipe], [], [], TICK)[0]:
                piece = os.read(pipe, 1 << 20)
                if not piece:
                    raise self._dead()
                self.buffer += piece
                with contextlib.suppress(EOFError, pickle.UnpicklingError):  # not all of it has come
                    reply = pickle.loads(self.buffer)
                    self.buffer = b""
                    self._look()
                    return reply
            if self._look() > self.memory:
                self.close()
                raise Failure("memory", f"more than {self.memory / 2**30:.3g} GiB")
            if time.monotonic() > deadline:
                self.close()
                raise Failure("time-out", f"no answer within {seconds:.3g} s")

    def _look(self) -> float:
        """The memory it has now."""
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
                if line.startswith("VmHWM"):
                    self.peak = max(self.peak, 1024.0 * int(line.split()[1]))
                elif line.startswith("VmRSS"):
                    return 1024.0 * int(line.split()[1])
        return 0.0

    def _dead(self) -> Failure:
        code = self.process.wait()
        self.stderr.seek(0)
        said = self.stderr.read().decode(errors="replace").strip().splitlines()
        how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        return Failure("crash", " ".join(f"{how}; {said[-1] if said else 'it said nothing'}".split())[:300])

    def close(self) -> None:
        """Ends it, and whatever it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self.stderr.close()
