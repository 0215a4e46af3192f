"""``unimarg serve``: models over HTTP, and a page to ask them by hand."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from unimarg.cli.common import app, model_of, network_of
from unimarg.errors import UsageError


@app.command()
def serve(
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="Trained models (.um), network files, or names of examples.")],
    host: Annotated[str, typer.Option(help="The address to listen on; anything but the loopback lets others in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 picks a free one.", min=0, max=65535)] = 8000,
    token: Annotated[
        str | None, typer.Option(envvar="UNIMARG_TOKEN", help="Requests must carry it: Authorization: Bearer TOKEN.", show_envvar=True)
    ] = None,
    concurrency: Annotated[int, typer.Option(help="Requests answered at once; more get a 503 and may try again.")] = 128,
    body: Annotated[int, typer.Option(help="Bytes that a request may have.")] = 1 << 20,
    samples: Annotated[int, typer.Option(help="Samples that an answer may draw.")] = 1 << 20,
    seconds: Annotated[float, typer.Option(help="Seconds that an answer may draw samples.")] = 30.0,
    batch: Annotated[int, typer.Option(help="One-shot questions that one pass answers together.")] = 64,
) -> None:
    """Serve models over HTTP, with a page at /, a description of the interface at /docs and metrics for Prometheus at /metrics.

    Example: unimarg serve clinic.um asia.um --port 8000
    """
    from unimarg.service.limits import Limits

    if token == "":
        raise UsageError("an empty token protects nothing; leave --token out, or give one")
    limits = Limits(body=body, concurrency=concurrency, samples=samples, seconds=seconds, batch=batch)
    run([(Path(source).name.split(".")[0] or source, source) for source in models], limits, host, port, token)


def run(sources: list[tuple[str, str]], limits: object, host: str, port: int, token: str | None) -> None:
    """Until it is told to stop."""
    from unimarg.service.app import make_app
    from unimarg.service.limits import Limits
    from unimarg.service.served import Served
    from unimarg.service.server import LOOPBACK, hosts_of, listen, make_server

    assert isinstance(limits, Limits)
    if host not in LOOPBACK and token is None:
        print("unimarg: note: anybody who can reach this machine can use the service; --token keeps others out", file=sys.stderr)
    with listen(host, port) as listening:
        served = [Served(name, model_of(source) or network_of(source)) for name, source in sources]
        application = make_app(served, limits, token, hosts_of(host))

        def started(address: str) -> None:
            print(f"{', '.join(s.name for s in served)} at {address} (Ctrl-C stops)", flush=True)

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)  # uvicorn has its own while it runs, and passes the signal on when it has ended well
        make_server(application, started).run([listening])
