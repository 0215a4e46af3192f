"""The web server around the application: address, patience with slow clients, a clean end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from unimarg.errors import UsageError
from unimarg.service.app import Service

LOOPBACK = ("127.0.0.1", "localhost", "::1")
CONNECTIONS = 900  # below the usual limit of open files
GRACE = 10  # seconds that running requests have at the end


class Impatient(HttpToolsProtocol):
    """Closes a connection whose request line and headers do not arrive in time; for the body see ``guard``."""

    patience = 10.0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timer = self.loop.call_later(self.patience, transport.close)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._timer is None:
            self._timer = self.loop.call_later(self.patience, self.transport.close)

    def on_headers_complete(self) -> None:
        self._forget()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Server(uvicorn.Server):
    """Says where it is when it is there, and when it is ready."""

    def __init__(
        self,
        config: uvicorn.Config,
        service: Service,
        started: Callable[[str], None] | None = None,
        ready: Callable[[], None] | None = None,
    ):
        super().__init__(config)
        self.service = service
        self._tell, self._tell_ready = started, ready
        self._waiting: asyncio.Task[None] | None = None

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        if self.started and self._tell is not None:
            self._tell(self.address)
        self._waiting = asyncio.create_task(self._until_ready())

    async def _until_ready(self) -> None:
        await self.service.prepared.wait()
        if self.service.ready and self._tell_ready is not None:
            self._tell_ready()

    async def shutdown(self, sockets: Any = None) -> None:
        self.service.give_up()
        await super().shutdown(sockets)

    @property
    def address(self) -> str:
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def make_server(app: FastAPI, started: Callable[[str], None] | None = None, ready: Callable[[], None] | None = None) -> Server:
    """To be run on sockets that ``listen`` gives; calls ``started`` with its address, and ``ready`` when all is prepared."""
    limits = app.state.service.limits
    protocol = type("Patient", (Impatient,), {"patience": limits.patience})
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=GRACE,
    )
    return Server(config, app.state.service, started, ready)


def listen(host: str, port: int) -> socket.socket:
    """A socket at this address, before anything long is begun."""
    listening = None
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = socket.socket(family, kind)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except (OSError, UnicodeError) as e:
        if listening is not None:
            listening.close()
        raise UsageError(f"cannot listen on {host} port {port}: {getattr(e, 'strerror', None) or e}") from None
    return listening


def hosts_of(host: str) -> frozenset[str] | None:
    """The names that a service on the loopback answers to; elsewhere, any."""
    return frozenset({"127.0.0.1", "localhost", "[::1]"}) if host in LOOPBACK else None
