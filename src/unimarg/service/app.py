"""The application: what each address answers.

A one-shot answer waits for the next pass of the device (``batching``); the rest runs in threads (``work``).
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from unimarg.errors import UnimargError, UsageError, closest
from unimarg.query import OF_SAMPLES, check
from unimarg.service import refusal, schemas
from unimarg.service.batching import Batcher
from unimarg.service.body import StrictRoute
from unimarg.service.guard import Guard
from unimarg.service.limits import Limits
from unimarg.service.metrics import CONTENT_TYPE, Metrics
from unimarg.service.refusal import RefusalError
from unimarg.service.served import Served, timed
from unimarg.service.work import Stop, Workers
from unimarg.service.writing import Writer

KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
T = TypeVar("T")
NUMBERS = 1 << 20  # in the answer to a batch
ADDRESSES = {"index.html": "/", "docs.html": "/docs"}  # of the page's files; the others have their own names
NO: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.Trouble, "description": text}
    for status, text in {
        400: "The body is not JSON in UTF-8, is nested too deeply, or has too long a number.",
        401: "A token is needed.",
        404: "There is no such model.",
        408: "The request did not arrive in time.",
        413: "The body is too large.",
        415: "The content type of the body is not that of JSON.",
        422: "The request does not fit the network; the sentence says why.",
        503: "Too much to do; Retry-After says when to try again.",
    }.items()
}


class Service:
    """The models, their batchers, and the threads for what takes longer."""

    def __init__(self, served: Sequence[Served], limits: Limits):
        self.limits, self.metrics = limits, Metrics()
        self.served = {s.name: s for s in served}
        if len(self.served) < len(served):
            raise UsageError(f"two models have the same name: {', '.join(s.name for s in served)}")
        self.batchers = {s.name: Batcher(s.model, limits.batch, self.metrics) for s in served if s.model is not None}
        self.sampling = Workers("sampling", limits.sampling, limits.queue, self.metrics)
        self.passes = Workers("passes", 1, limits.queue, self.metrics)  # questions and explanations: many rows, but bounded
        self._describing = ThreadPoolExecutor(1, "unimarg-describe")
        self._growing = ThreadPoolExecutor(1, "unimarg-grow")
        self.prepared = asyncio.Event()  # or that failed, or the service ends
        self.ready, self.stopping = False, False

    @asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        preparing = asyncio.create_task(self._prepare())
        try:
            yield
        finally:
            preparing.cancel()
            for batcher in self.batchers.values():
                await batcher.stop()
            for threads in (self._describing, self._growing):
                threads.shutdown(wait=False, cancel_futures=True)
            self.sampling.stop()
            self.passes.stop()

    async def _prepare(self) -> None:
        """What is compiled while the service listens: one-shot answers first, then sampling beside larger passes."""
        try:
            for batcher in self.batchers.values():
                await batcher.start()
            await asyncio.gather(self._grow(), self._warm_up())
            _freeze()
            self.ready = True
        except Exception:
            logging.getLogger("uvicorn.error").exception("the service could not be prepared")
        finally:
            self.prepared.set()

    async def _grow(self) -> None:
        for batcher in self.batchers.values():
            await _run_in(self._growing, batcher.grow)

    async def _warm_up(self) -> None:
        def every(stop: Stop) -> None:
            for s in self.served.values():
                s.warm_up(stop)

        def priors() -> None:
            for s in self.served.values():
                _ = s.priors

        await _run_in(self._describing, priors)
        await self.sampling.start(every, Stop())  # as one work: no request can take the place of the next model

    async def describe(self, served: Served) -> dict[str, Any]:
        return await _run_in(self._describing, served.describe)

    async def turn(self, method: str = "auto") -> None:
        """Until all is prepared: what everybody needs is compiled once, and not by each who asks meanwhile. Exact answers need none."""
        if method != "exact":
            await self.prepared.wait()
        if self.stopping:
            raise _stopping()

    def give_up(self) -> None:
        """Before the end: who waits for the service to be prepared would wait in vain."""
        if not self.prepared.is_set():
            self.stopping = True
            self.prepared.set()
            for batcher in self.batchers.values():
                batcher.refuse(_stopping())

    def insight(self, served: Served) -> Workers:
        """Who finds questions and explanations: one pass of a model, else many queries."""
        return self.sampling if served.model is None else self.passes

    def find(self, name: str) -> Served:
        if name not in self.served:
            raise RefusalError(404, f"there is no model {name[:100]!r}; {closest(name[:100], self.served)}")
        return self.served[name]

    def bounded(self, asked: schemas.QueryBody, served: Served) -> schemas.QueryBody:
        """With the service's own limits where the request has none."""
        method = asked.method or ("auto" if served.model is None else "um")
        if method == "um" and served.model is None:
            raise UsageError(f"{served.name!r} is a network without a trained model: its methods are auto and exact")
        check(method, served.model, asked.model_dump(include=set(OF_SAMPLES)))
        for name in ("samples", "seconds"):
            given, most = getattr(asked, name), getattr(self.limits, name)
            if given is not None and given > most:
                raise UsageError(f"{name} may be at most {most:,} here, not {given:,}")
        seconds, samples = asked.seconds or self.limits.seconds, asked.samples or self.limits.samples
        return asked.model_copy(update={"method": method, "seconds": seconds, "samples": samples})

    async def one_shot(self, served: Served, case: schemas.CaseBody) -> bytes:
        assert served.model is not None
        began, writer = time.perf_counter(), served.writer(case.targets)
        evidence = served.findings(case.evidence)
        rows, contradiction = await self.batchers[served.name].ask([evidence])
        if contradiction[0] >= 0:
            raise await asyncio.to_thread(served.model.impossible, evidence)
        return served.one_shot(served.model.about_one_shot(evidence), writer.marginals(rows[0]), time.perf_counter() - began)


async def _run_in(threads: Executor, work: Callable[[], T]) -> T:
    """Not asyncio's own threads, which the end of the service would wait for."""
    return await asyncio.get_running_loop().run_in_executor(threads, work)


def _freeze() -> None:
    """What the compilers leave behind stays: to go through it again would make requests wait."""
    gc.collect()
    gc.freeze()


def _stopping() -> RefusalError:
    return RefusalError(503, "the service ends before it was ready", retry=2)


def make_app(
    served: Sequence[Served], limits: Limits | None = None, token: str | None = None, hosts: Collection[str] | None = None
) -> FastAPI:
    """The ASGI application; ``hosts`` are the names it answers to, None: any."""
    service = Service(served, limits or Limits())
    app = FastAPI(
        title="unimarg",
        version=version("unimarg"),
        summary="Posterior marginals of Bayesian networks: at once by a trained network, or with an error that is reported.",
        docs_url=None,  # would load scripts from elsewhere; /docs is a page of our own
        redoc_url=None,
        lifespan=service.lifespan,
        redirect_slashes=False,
        exception_handlers={
            RefusalError: refusal.refused,
            UnimargError: refusal.mistaken,
            RequestValidationError: refusal.malformed,
            HTTPException: refusal.http_error,
            Exception: refusal.broken,
        },
    )
    app.router.route_class = StrictRoute
    app.add_middleware(Guard, limits=service.limits, metrics=service.metrics, token=token, hosts=hosts)
    app.state.service = service
    _pages(app)
    _about(app, service)
    _answers(app, service)
    _refined(app, service)
    _insight(app, service)
    _name_models(app, service)
    return app


def _name_models(app: FastAPI, service: Service) -> None:
    """The description says which models there are."""
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        described = describe()
        parameters = [p for path in described["paths"].values() for what in path.values() for p in what.get("parameters", ())]
        for parameter in parameters:
            if parameter["name"] == "model":
                parameter["schema"]["enum"] = list(service.served)
        return described

    app.openapi = openapi


def _json(value: Any) -> Response:
    return Response(value if isinstance(value, bytes) else orjson.dumps(value), media_type="application/json")


def _pages(app: FastAPI) -> None:
    """Files by their address, read once: no path of a request reaches the file system."""
    files = (file for file in (resources.files("unimarg.service") / "page").iterdir() if Path(file.name).suffix in KINDS)
    for file in files:
        content, kind = file.read_bytes(), KINDS[Path(file.name).suffix]

        async def page(_: Request, content: bytes = content, kind: str = kind) -> Response:
            return Response(content, media_type=kind)

        app.add_route(ADDRESSES.get(file.name, f"/{file.name}"), page, ["GET"], include_in_schema=False)


def _about(app: FastAPI, service: Service) -> None:
    @app.get("/health", response_model=schemas.Health, tags=["about"])
    async def health() -> Response:
        """Whether the service lives: a 200 from the beginning. What it says of itself tells whether its programs are compiled."""
        status = "ok" if service.ready else "warming up"
        return _json({"status": status, "version": version("unimarg"), "models": [s.facts() for s in service.served.values()]})

    warming = {"model": schemas.Trouble, "description": "Programs are being compiled; Retry-After says when to try again."}

    @app.get("/ready", response_model=schemas.Health, tags=["about"], responses={503: warming})
    async def ready() -> Response:
        """Whether to send requests here: as /health, but a 503 while answers would have to wait for programs to be compiled."""
        if not service.ready:
            raise RefusalError(503, "the service is warming up; please try again", retry=2)
        return await health()

    @app.get("/metrics", tags=["about"], response_class=Response, responses={200: {"content": {"text/plain": {}}}, 401: NO[401]})
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)

    @app.get("/v1/models", response_model=list[schemas.ModelFacts], tags=["about"], responses={401: NO[401]})
    async def models() -> Response:
        """The models that are served."""
        return _json([s.facts() for s in service.served.values()])

    @app.get("/v1/models/{model}", response_model=schemas.NetworkFacts, tags=["about"], responses={401: NO[401], 404: NO[404]})
    async def network(model: str) -> Response:
        """Its network: variables, groups, states, parents, priors."""
        served = service.find(model)
        facts = await service.describe(served)
        limits = {name: getattr(service.limits, name) for name in ("samples", "seconds", "rows")}
        return _json(facts | {"limits": limits})


def _answers(app: FastAPI, service: Service) -> None:
    @app.post("/v1/models/{model}/query", response_model=schemas.Answer, tags=["answers"], responses=NO)
    async def query(model: str, asked: schemas.QueryBody, request: Request) -> Response:
        """Posterior marginals, by one pass or with an error."""
        served = service.find(model)
        bounded = service.bounded(asked, served)
        if bounded.method == "um":
            return _json(await service.one_shot(served, bounded))
        served.findings(asked.evidence)  # mistakes need not wait
        await service.turn(bounded.method or "auto")
        return _json(await service.sampling.run(request, lambda stop: served.refined(bounded, stop)))

    @app.post("/v1/models/{model}/batch", response_model=schemas.BatchAnswer, tags=["answers"], responses=NO)
    async def batch(model: str, asked: schemas.BatchBody) -> Response:
        """One-shot answers to many cases; one that is mistaken gets its sentence, the others their marginals."""
        began, served = time.perf_counter(), service.find(model)
        if served.model is None:
            raise UsageError(f"{served.name!r} is a network without a trained model: ask case by case")
        writer = served.writer(asked.targets)
        if len(asked.evidence) > service.limits.rows:
            raise UsageError(f"a batch may have at most {service.limits.rows} evidence sets, not {len(asked.evidence)}")
        if len(asked.evidence) * writer.states > NUMBERS:
            raise UsageError(
                f"{len(asked.evidence)} cases with {writer.states} states each are too many numbers; ask for fewer, or for some targets"
            )
        answers: list[bytes] = []
        for first in range(0, len(asked.evidence), service.limits.batch):
            answers += await _some(service, served, asked.evidence[first : first + service.limits.batch], writer)
        head = orjson.dumps({"model": served.name, "method": "um", "seconds": timed(began)})
        return _json(head[:-1] + b',"answers":[' + b",".join(answers) + b"]}")


async def _some(service: Service, served: Served, cases: Sequence[dict[str, Any]], writer: Writer) -> list[bytes]:
    """Of at most one batch."""
    assert served.model is not None
    answers = [b""] * len(cases)
    good = []
    for i, case in enumerate(cases):
        try:
            good.append((i, served.findings(case)))
        except UnimargError as e:
            answers[i] = refusal.trouble(e)
    if good:
        rows, contradiction = await service.batchers[served.name].ask([e for _, e in good])
        for (i, evidence), row, node in zip(good, rows, contradiction.tolist(), strict=True):
            if node >= 0:
                answers[i] = refusal.trouble(await asyncio.to_thread(served.model.impossible, evidence))
            else:
                answers[i] = served.one_of_many(evidence, writer.marginals(row))
    return answers


def _refined(app: FastAPI, service: Service) -> None:
    @app.post(
        "/v1/models/{model}/stream",
        tags=["answers"],
        response_class=StreamingResponse,
        responses=NO
        | {200: {"content": {"application/x-ndjson": {}}, "description": "Lines of JSON; `stage` is first, progress, final or error."}},
    )
    async def stream(model: str, asked: schemas.QueryBody) -> Response:
        """The one-shot answer at once, then the exact or sampled one: a line of JSON each. Leave to stop it."""
        served = service.find(model)
        method = "exact" if asked.method == "exact" else "auto"
        bounded = service.bounded(asked.model_copy(update={"method": method}), served)
        first = await service.one_shot(served, bounded) if served.model is not None else None
        served.findings(bounded.evidence)
        served.writer(bounded.targets)
        return _Refinement(service, served, bounded, first)


class _Refinement(StreamingResponse):
    """Lines about work that began before the response did, so that a full queue is a 503."""

    def __init__(self, service: Service, served: Served, asked: schemas.QueryBody, first: bytes | None):
        loop, self.news = asyncio.get_running_loop(), asyncio.Queue[bytes | None]()
        self.stop, self.left = Stop(), service.metrics.left

        def tell(samples: int, seconds: float) -> None:
            line = _line("progress", {"samples": samples, "seconds": round(seconds, 3)})
            loop.call_soon_threadsafe(self.news.put_nowait, line)

        def start() -> asyncio.Future[dict[str, Any]]:
            return service.sampling.start(lambda stop: served.refined(asked, stop, tell), self.stop)

        async def later() -> dict[str, Any]:
            await service.turn()
            return await start()

        ready = service.prepared.is_set() or asked.method == "exact"
        self.result = start() if ready else asyncio.ensure_future(later())
        self.result.add_done_callback(lambda _: self.news.put_nowait(None))
        super().__init__(self._lines(first), media_type="application/x-ndjson")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:  # not in the lines: who leaves at once has them never begin
            self.stop.set()
            if not self.result.done():
                self.left.inc()
                self.result.cancel()

    async def _lines(self, first: bytes | None) -> AsyncIterator[bytes]:
        if first is not None:
            yield b'{"stage":"first",' + first[1:] + b"\n"
        while (line := await self.news.get()) is not None:
            yield line
        try:
            yield _line("final", self.result.result())
        except (UnimargError, RefusalError) as e:
            yield b'{"stage":"error",' + refusal.trouble(e)[1:] + b"\n"


def _line(stage: str, value: dict[str, Any]) -> bytes:
    return orjson.dumps({"stage": stage} | value) + b"\n"


def _insight(app: FastAPI, service: Service) -> None:
    @app.post("/v1/models/{model}/questions", response_model=schemas.Ranking, tags=["insight"], responses=NO)
    async def questions(model: str, asked: schemas.QuestionsBody, request: Request) -> Response:
        """What to ask next: expected information about the targets."""
        began, served = time.perf_counter(), service.find(model)
        await service.turn()
        table = await service.insight(served).run(request, lambda stop: served.questions(asked, stop))
        best = table.head(asked.limit).to_dict("records")
        return _json(table.attrs | {"questions": best, "seconds": timed(began)})

    @app.post("/v1/models/{model}/explain", response_model=schemas.ExplainAnswer, tags=["insight"], responses=NO)
    async def explain(model: str, asked: schemas.ExplainBody, request: Request) -> Response:
        """Which findings moved a target most: each left out in turn."""
        began, served = time.perf_counter(), service.find(model)
        await service.turn()
        table = await service.insight(served).run(request, lambda stop: served.explained(asked, stop))
        return _json(table.attrs | {"findings": table.to_dict("records"), "seconds": timed(began)})
