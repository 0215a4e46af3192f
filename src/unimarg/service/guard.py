"""What stands before every request: host, token, size, patience, concurrency; and the headers behind every answer.

The body is read here, within its limits, before anything looks at it.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from unimarg.service.limits import Limits
from unimarg.service.metrics import Metrics
from unimarg.service.refusal import RefusalError

API = "/v1/"
GUARDED = (API, "/metrics", "/openapi.json")  # with a token; the page itself, /health and /ready are open
HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; manifest-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]


class Guard:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, limits: Limits, metrics: Metrics, token: str | None = None, hosts: Collection[str] | None = None):
        self.app, self.limits, self.metrics = app, limits, metrics
        self.token = None if token is None else b"bearer " + token.encode()
        self.hosts = hosts
        self.in_flight = 0
        metrics.in_flight.set_function(lambda: self.in_flight)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        status = 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        began = time.perf_counter()
        try:
            await self._admit(scope, receive, answer)
        except RefusalError as e:
            await e.response()(scope, receive, answer)
        except Exception:
            status = 500  # which is answered further out
            raise
        finally:
            name = _name(scope)
            self.metrics.requests.labels(name, status).inc()
            self.metrics.seconds.labels(name).observe(time.perf_counter() - began)
        return None

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        path: str = scope["path"]
        self._check_host(headers.get(b"host", b""))
        if path.startswith(GUARDED):
            self._check_token(headers.get(b"authorization", b""))
        if not path.startswith(API) or scope["method"] != "POST":
            return await self.app(scope, receive, send)
        body = await self._body(headers, receive)
        if self.in_flight >= self.limits.concurrency:
            raise RefusalError(503, f"{self.in_flight} requests are being answered, and no more are taken; please try again", retry=1)
        self.in_flight += 1
        try:
            await self.app(scope, _replay(body, receive), send)
        finally:
            self.in_flight -= 1
        return None

    def _check_host(self, host: bytes) -> None:
        """On the loopback, only by its own names: a foreign page cannot get here under a name of its own (DNS rebinding)."""
        name = host.decode("latin-1").rsplit(":", 1)[0] if not host.endswith(b"]") else host.decode("latin-1")
        if self.hosts is not None and name.lower() not in self.hosts:
            raise RefusalError(403, f"this service answers to {', '.join(sorted(self.hosts))}, not to {name[:100]!r}")

    def _check_token(self, given: bytes) -> None:
        """In the same time, however much of it is right."""
        scheme, _, rest = given.partition(b" ")
        if self.token is not None and not hmac.compare_digest(scheme.lower() + b" " + rest.strip(), self.token):
            raise RefusalError(401, "this service wants a token: Authorization: Bearer ...", headers={"www-authenticate": "Bearer"})

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        too_large = RefusalError(413, f"the body may have at most {self.limits.body:,} bytes")
        declared = headers.get(b"content-length", b"")
        if declared.isdigit() and int(declared) > self.limits.body:
            raise too_large
        parts, size = [], 0
        try:
            async with asyncio.timeout(self.limits.patience):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise RefusalError(499, "the client has left")
                    part = message.get("body", b"")
                    size += len(part)
                    if size > self.limits.body:
                        raise too_large
                    parts.append(part)
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            sentence = f"the request did not arrive within {self.limits.patience:g} seconds"
            raise RefusalError(408, sentence, headers={"connection": "close"}) from None


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body that was read, then what the connection says."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _name(scope: Scope) -> str:
    """Of the endpoint; what a client can choose freely must not become a label."""
    endpoint = scope.get("endpoint")
    return getattr(endpoint, "__name__", "other") if endpoint is not None else "other"
