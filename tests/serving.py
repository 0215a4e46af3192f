"""A service in a thread, and a client for it."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from unimarg import Marginalizer, Network, NoisyOr, Variable
from unimarg.service.app import Service, make_app
from unimarg.service.limits import Limits
from unimarg.service.served import Served
from unimarg.service.server import Server, hosts_of, listen, make_server


@dataclass
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The sentence, and nothing but it."""
        assert list(self.json) == ["error"], self.body
        assert "Traceback" not in self.json["error"]
        return self.json["error"]


class Client:
    def __init__(self, server: Server, service: Service):
        self.server, self.service = server, service
        self.port = int(server.address.rsplit(":", 1)[1])

    def ask(self, verb: str, path: str, body: object = None, headers: Mapping[str, str] | None = None) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(verb, path, data, {"content-type": "application/json"} | dict(headers or {}))
        answer = connection.getresponse()
        reply = Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        connection.close()
        return reply

    def get(self, path: str, **headers: str) -> Reply:
        return self.ask("GET", path, headers=headers)

    def post(self, path: str, body: object, **headers: str) -> Reply:
        return self.ask("POST", path, body, headers)


@contextlib.contextmanager
def serving(
    models: Mapping[str, Marginalizer | Network],
    limits: Limits | None = None,
    token: str | None = None,
    warm: bool | Callable[[], object] = False,
    wait: bool = True,
) -> Iterator[Client]:
    """On a free port; without ``warm`` sampling compiles when it is first used, and a function of the test's own may take its place."""
    served = [Served(name, source) for name, source in models.items()]
    if warm is not True:
        for s in served:
            s.warm_up = lambda stop: warm() if callable(warm) else None
    app = make_app(served, limits, token, hosts_of("127.0.0.1"))
    server = make_server(app)
    thread = threading.Thread(target=server.run, args=([listen("127.0.0.1", 0)],))
    thread.start()
    try:
        wait_for(lambda: server.started or not thread.is_alive(), 60)
        client = Client(server, app.state.service)
        wait_for(lambda: client.service.ready or not wait, 120)
        yield client
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


def wait_for(true: Any, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def clinic_like(evil: str = "") -> Network:
    """Risks, diseases and symptoms, small enough for anything; ``evil`` is part of every name, state and group."""
    rng = np.random.default_rng(0)
    yes, no = "yes" + evil, "no" + evil
    risks = [Variable(f"risk_{i}{evil}", (no, yes), "risks" + evil) for i in range(2)]
    diseases = [Variable(f"disease_{i}{evil}", (no, yes), "diseases" + evil) for i in range(3)]
    fever = Variable("fever" + evil, ("none" + evil, "low" + evil, "high" + evil), "symptoms" + evil)
    symptoms = [Variable(f"symptom_{i}{evil}", (no, yes), "symptoms" + evil) for i in range(10)]
    parents: dict[str, list[str]] = {d.name: [r.name for r in risks] for d in diseases} | {fever.name: [diseases[0].name]}
    parents |= {s.name: [d.name for d in diseases] for s in symptoms}
    tables: dict[str, Any] = {r.name: [0.7, 0.3] for r in risks}
    tables |= {d.name: NoisyOr(0.05, rng.uniform(0.1, 0.4, 2)) for d in diseases}
    tables[fever.name] = [[0.9, 0.08, 0.02], [0.2, 0.3, 0.5]]
    tables |= {s.name: NoisyOr(0.02, rng.uniform(0.05, 0.8, 3)) for s in symptoms}
    return Network([*risks, *diseases, fever, *symptoms], parents, tables, "small clinic")
