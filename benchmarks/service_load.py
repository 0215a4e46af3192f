"""The service under load, on this machine's loopback: one-shot questions from many clients that each wait for their answer.

    python benchmarks/service_load.py clinic.um [--clients 64] [--seconds 60] [--results file.csv]

Phases, all in one run, the load generator on the same cores:
  batched, one by one   the same clients against two services, in turns: with micro-batches of 64 and without (--batch 1)
  sustained             the batched service for the whole time
  overload              4 times the clients: some get a 503
  recovery              the first clients again
For each: requests a second that were answered, the 503s, other errors, p50 and p99 of the answered, the service's memory after it.
"""

import argparse
import asyncio
import json
import re
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import uvloop

import unimarg as um
from unimarg.examples import clinic_cases
from unimarg.provenance import provenance
from unimarg.rows import write_rows

ENDING = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


@dataclass
class Tally:
    seconds: list[float] = field(default_factory=list)  # of those that were answered
    refused: int = 0
    failed: int = 0
    last_error: bytes = b""


class Client(asyncio.Protocol):
    """Sends the next question when the last is answered."""

    def __init__(self, requests: list[bytes], first: int, tally: Tally, end: float, done: asyncio.Future):
        self.requests, self.turn, self.tally, self.end, self.done = requests, first, tally, end, done
        self.buffer = bytearray()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self.ask()

    def ask(self) -> None:
        if time.perf_counter() >= self.end:
            return self.transport.close()
        self.began = time.perf_counter()
        self.turn += 1
        return self.transport.write(self.requests[self.turn % len(self.requests)])

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head = self.buffer.find(b"\r\n\r\n")
        if head < 0:
            return
        length = int(ENDING.search(self.buffer, 0, head)[1])  # type: ignore[index]
        if len(self.buffer) < head + 4 + length:
            return
        status = bytes(self.buffer[9:12])
        if status == b"200":
            self.tally.seconds.append(time.perf_counter() - self.began)
        elif status == b"503":
            self.tally.refused += 1
        else:
            self.tally.failed, self.tally.last_error = self.tally.failed + 1, bytes(self.buffer[:400])
        self.buffer.clear()
        if status == b"503":  # as Retry-After asks, but impatiently, so that the overload lasts
            asyncio.get_running_loop().call_later(0.1, self.ask)
        else:
            self.ask()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self.tally.failed, self.tally.last_error = self.tally.failed + 1, repr(exc).encode()
        if not self.done.done():
            self.done.set_result(None)


async def load(port: int, requests: list[bytes], clients: int, seconds: float) -> Tally:
    tally, loop = Tally(), asyncio.get_running_loop()
    end = time.perf_counter() + seconds
    futures = [loop.create_future() for _ in range(clients)]
    for i, done in enumerate(futures):
        await loop.create_connection(lambda i=i, done=done: Client(requests, 7 * i, tally, end, done), "127.0.0.1", port)
    await asyncio.gather(*futures)
    return tally


class Service:
    """A service in a process of its own."""

    def __init__(self, model: str, *options: str):
        command = [sys.executable, "-c", "from unimarg.cli import main; main()", "serve", model, "--port", "0", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()  # type: ignore[union-attr]
        self.port = int(re.findall(r":(\d+)", line)[0])
        while self.get("/health")["status"] != "ok":
            time.sleep(0.5)

    def get(self, path: str) -> dict:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}") as answer:
            return json.load(answer)

    @property
    def memory(self) -> float:
        """MiB resident."""
        return int(re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{self.process.pid}/status").read_text())[0]) / 1024

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


def questions(model: um.Marginalizer, name: str) -> list[bytes]:
    """The vignettes of the clinic, else cases drawn from the network; all marginals are asked for."""
    if model.net.name == "clinic":
        cases = [dict(c.evidence) for c in clinic_cases()]
    else:
        rng, states = np.random.default_rng(0), um.sample(model.net, 50, seed=0)
        cases = [{model.net.names[i]: model.net.variables[i].states[row[i]] for i in rng.choice(len(model.net), 4)} for row in states]
    made = []
    for case in cases:
        body = json.dumps({"evidence": case}).encode()
        kind, length = "content-type: application/json", f"content-length: {len(body)}"
        head = [f"POST /v1/models/{name}/query HTTP/1.1", "host: 127.0.0.1", kind, length, "", ""]
        made.append("\r\n".join(head).encode() + body)
    return made


def measure(phase: str, service: Service, requests: list[bytes], clients: int, seconds: float) -> dict[str, object]:
    tally = uvloop.run(load(service.port, requests, clients, seconds))
    times = np.array(tally.seconds or [np.nan]) * 1000
    row = {
        "phase": phase,
        "clients": clients,
        "seconds": seconds,
        "requests_s": round(len(tally.seconds) / seconds, 1),
        "p50_ms": round(float(np.percentile(times, 50)), 1),
        "p99_ms": round(float(np.percentile(times, 99)), 1),
        "refused_503": tally.refused,
        "errors": tally.failed,
        "service_mib": round(service.memory),
    }
    print(*(f"{k} {v}" for k, v in row.items()), sep=", ", flush=True)
    if tally.failed:
        print(tally.last_error.decode(errors="replace"))
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()
    requests = questions(um.load_model(given.model), Path(given.model).name.split(".")[0])
    batched, single = Service(given.model), Service(given.model, "--batch", "1")
    rows = []
    try:
        turn = given.seconds / 6
        for service in (batched, single):
            uvloop.run(load(service.port, requests, given.clients, 2.0))  # memory and caches settle
        for _ in range(3):
            rows.append(measure("batched", batched, requests, given.clients, turn))
            rows.append(measure("one by one", single, requests, given.clients, turn))
        single.stop()
        rows.append(measure("sustained", batched, requests, given.clients, given.seconds))
        rows.append(measure("overload", batched, requests, 4 * given.clients, given.seconds / 3))
        rows.append(measure("recovery", batched, requests, given.clients, given.seconds / 3))
    finally:
        for service in (batched, single):
            service.stop()
    ratio = np.median([a["requests_s"] / b["requests_s"] for a, b in zip(rows[0:6:2], rows[1:6:2], strict=True)])
    print(f"micro-batching against one by one: {ratio:.1f} times the requests a second")
    if given.results:
        write_rows(given.results, [row | provenance() for row in rows])


if __name__ == "__main__":
    main()
