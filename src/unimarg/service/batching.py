"""Questions that arrive while the device is busy are answered together, by its next pass.

Nobody waits for a batch to fill: an idle device takes what there is, a busy one finds more when it is done. Passes have a few fixed
sizes (``passes.BATCHES``): the smallest is compiled first, for whoever waits already, and larger ones are used from when they
are there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from unimarg.evidence import Evidence
from unimarg.marginalizer import Marginalizer
from unimarg.passes import BATCHES, batch_size
from unimarg.service.metrics import Metrics
from unimarg.service.writing import plain

Rows = tuple[np.ndarray, np.ndarray]  # [rows, states], and for each row the node that its evidence leaves no state, or -1


class Batcher:
    """The one-shot answers of one model, from any number of requests."""

    def __init__(self, model: Marginalizer, largest: int, metrics: Metrics):
        self.model, self.largest, self.metrics = model, largest, metrics
        self._waiting: deque[tuple[Sequence[Evidence], asyncio.Future[Rows]]] = deque()
        self._wake = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "unimarg-device")
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Compiles the smallest pass, then answers."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._warm_up)
        finally:
            self._task = asyncio.create_task(self._run())

    def _warm_up(self) -> None:
        self.model.passes.sizes[:] = BATCHES[:1]
        self.model.answers([Evidence({}, {})])

    def grow(self) -> None:
        """Compiles the passes of a batch; lists of questions use these too, larger ones take long to compile."""
        for size in _sizes(self.largest):
            if size not in self.model.passes.sizes:
                self.model.passes.compile(size)

    def refuse(self, reason: Exception) -> None:
        """Those that wait."""
        while self._waiting:
            _, future = self._waiting.popleft()
            if not future.done():
                future.set_exception(reason)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def ask(self, evidence: Sequence[Evidence]) -> Rows:
        """Marginals of at most ``largest`` evidence sets."""
        future: asyncio.Future[Rows] = asyncio.get_running_loop().create_future()
        self._waiting.append((evidence, future))
        self._wake.set()
        return await future

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            taken = self._take()
            if not taken:
                self._wake.clear()
                continue
            together = [e for evidence, _ in taken for e in evidence]
            self.metrics.rows.observe(len(together))
            try:
                rows, contradiction = await loop.run_in_executor(self._thread, self._answer, together)
            except Exception as e:
                for _, future in taken:
                    if not future.done():
                        future.set_exception(e)
                continue
            first = 0
            for evidence, future in taken:
                part = slice(first, first := first + len(evidence))
                if not future.done():
                    future.set_result((rows[part], contradiction[part]))

    def _answer(self, together: Sequence[Evidence]) -> Rows:
        rows, contradiction = self.model.answers(together)
        return plain(rows), contradiction

    def _take(self) -> list[tuple[Sequence[Evidence], asyncio.Future[Rows]]]:
        """Those that have waited longest, as many as fit one batch, without those who have left."""
        taken, rows = [], 0
        while self._waiting and (not taken or rows + len(self._waiting[0][0]) <= self.largest):
            evidence, future = self._waiting.popleft()
            if not future.done():
                taken.append((evidence, future))
                rows += len(evidence)
        return taken


def _sizes(largest: int) -> list[int]:
    """Of the passes for any number of rows up to this one."""
    return sorted({batch_size(rows) for rows in range(1, largest + 1)})
