"""``unimarg serve`` and ``unimarg demo``: models over HTTP, and a page to ask them by hand."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unimarg.cli.common import app, model_of, network_of
from unimarg.cli.interrupt import hand_over
from unimarg.errors import UsageError

if TYPE_CHECKING:
    from socket import socket

    from unimarg.marginalizer import Marginalizer
    from unimarg.network import Network
    from unimarg.service.limits import Limits


@app.command()
def serve(
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="Trained models (.um), network files, or names of examples.")],
    host: Annotated[str, typer.Option(help="The address to listen on; anything but the loopback lets others in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 picks a free one.", min=0, max=65535)] = 8000,
    token: Annotated[
        str | None, typer.Option(envvar="UNIMARG_TOKEN", help="Requests must carry it: Authorization: Bearer TOKEN.", show_envvar=True)
    ] = None,
    concurrency: Annotated[int, typer.Option(help="Requests taken at once, of any kind; more get a 503 and may try again.")] = 128,
    queue: Annotated[
        int,
        typer.Option(
            help="Answers by auto or exact that wait while two are computed (questions and explanations: while one is); more get a 503 too."
        ),
    ] = 8,
    body: Annotated[int, typer.Option(help="Bytes that a request may have.")] = 1 << 20,
    samples: Annotated[int, typer.Option(help="Samples that an answer may draw.")] = 1 << 20,
    seconds: Annotated[float, typer.Option(help="Seconds that an answer may draw samples.")] = 30.0,
    batch: Annotated[int, typer.Option(help="One-shot questions that one pass answers together.")] = 64,
) -> None:
    """Serve models over HTTP, with a page at /, a description of the interface at /docs and metrics for Prometheus at /metrics.

    It listens at once; /health answers while the service lives, /ready with a 503 until its programs are compiled.
    An answer by exact may take 64 MiB; what needs more is refused with the figure, and may be asked by auto.

    Example: unimarg serve clinic.um asia.um --port 8000
    """
    from unimarg.service.limits import Limits
    from unimarg.service.server import listen

    if token == "":
        raise UsageError("an empty token protects nothing; leave --token out, or give one")
    limits = Limits(body=body, concurrency=concurrency, queue=queue, samples=samples, seconds=seconds, batch=batch)
    with listen(host, port) as listening:
        names = [Path(source).name.removesuffix(".gz").rsplit(".", 1)[0] or source for source in models]
        if twice := next((name for name in names if names.count(name) > 1), None):
            alike = [source for name, source in zip(names, models, strict=True) if name == twice]
            raise UsageError(f"models would have the same name {twice!r}: {', '.join(alike)}; rename a file")
        named = dict(zip(names, models, strict=True))
        _run(listening, {name: model_of(source) or network_of(source) for name, source in named.items()}, limits, host, token)


def _run(listening: socket, models: Mapping[str, Marginalizer | Network], limits: Limits, host: str, token: str | None) -> None:
    """Until it is told to stop."""
    from unimarg.service.app import make_app
    from unimarg.service.served import Served
    from unimarg.service.server import LOOPBACK, hosts_of, make_server

    if host not in LOOPBACK and token is None:
        print("unimarg: note: anybody who can reach this machine can use the service; --token keeps others out", file=sys.stderr)
    application = make_app([Served(name, model) for name, model in models.items()], limits, token, hosts_of(host))

    def started(address: str) -> None:
        print(f"{', '.join(models)} at {address} (Ctrl-C stops); being prepared", flush=True)

    def ready() -> None:
        print(f"ready after {time.perf_counter() - began:.0f} s", flush=True)

    server = make_server(application, started, ready)
    began = time.perf_counter()
    hand_over()
    for number in (signal.SIGINT, signal.SIGTERM):
        # uvicorn has its own while it runs, and passes the signal on when it has ended well
        signal.signal(number, lambda *_: setattr(server, "should_exit", True))
    server.run([listening])
    if not server.service.ready:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # Python would wait for what is being compiled, and then crash


@app.command()
def demo(
    no_serve: Annotated[bool, typer.Option("--no-serve", help="End with the last lines on the terminal, without a service.")] = False,
    port: Annotated[int, typer.Option(help="Of the service; 0 picks a free one.", min=0, max=65535)] = 8000,
) -> None:
    """A minute with unimarg on the networks that come with it; then a page to go on with, until Ctrl-C.

    Example: unimarg demo --no-serve
    """
    from unimarg import demo

    if no_serve:
        demo.run()
        return
    from unimarg.service.limits import Limits
    from unimarg.service.server import listen

    with listen("127.0.0.1", port) as listening:
        model = demo.run()
        print("\n7. Now you: a page for the same clinic, warming up", flush=True)
        _run(listening, {"clinic": model}, Limits(), "127.0.0.1", None)
