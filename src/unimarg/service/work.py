"""Longer work in threads: so many at once, so many waiting, and stopped when the client has left."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from starlette.requests import Request

from unimarg.service.metrics import Metrics
from unimarg.service.refusal import RefusalError

T = TypeVar("T")
Stop = threading.Event


class StoppedError(Exception):
    """Raised inside work that nobody waits for any more."""


class Workers:
    """A few threads and a short queue before them."""

    def __init__(self, kind: str, threads: int, queue: int, metrics: Metrics):
        self.limit, self.metrics, self.busy = threads + queue, metrics, 0
        metrics.work.labels(kind).set_function(lambda: self.busy)
        self._threads = ThreadPoolExecutor(threads, "unimarg-work")
        self._stops: set[Stop] = set()

    def start(self, work: Callable[[Stop], T], stop: Stop) -> asyncio.Future[T]:
        """The result to come; ``stop`` asks the work to end early. A 503 where the queue is full."""
        if self.busy >= self.limit:
            raise RefusalError(503, f"{self.busy} answers are being computed or wait for it, and no more fit; please try again", retry=2)
        loop = asyncio.get_running_loop()
        running = self._threads.submit(work, stop)
        self._count(+1)
        self._stops.add(stop)

        def done(_: Future[T]) -> None:
            self._stops.discard(stop)
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._count, -1)

        running.add_done_callback(done)
        return asyncio.wrap_future(running, loop=loop)

    async def run(self, request: Request, work: Callable[[Stop], T]) -> T:
        """The result, unless the client leaves first."""
        stop = Stop()
        result = self.start(work, stop)
        gone = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait({result, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not result.done():
                self.metrics.left.inc()
                raise RefusalError(499, "the client has left")
            return result.result()
        finally:
            stop.set()
            gone.cancel()
            result.cancel()

    def stop(self) -> None:
        for stop in list(self._stops):
            stop.set()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _count(self, change: int) -> None:
        self.busy += change


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
