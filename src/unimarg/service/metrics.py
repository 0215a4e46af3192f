"""What Prometheus reads at ``/metrics``: requests, how long they took, how full the batches were."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

SECONDS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
ROWS = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """The counters of one service; their own registry, so that several may live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = Counter("unimarg_requests", "Requests answered.", ["endpoint", "status"], registry=self.registry)
        self.seconds = Histogram(
            "unimarg_request_seconds", "From the whole request to the last byte.", ["endpoint"], registry=self.registry, buckets=SECONDS
        )
        self.rows = Histogram("unimarg_batch_rows", "Evidence sets answered by one forward pass.", registry=self.registry, buckets=ROWS)
        self.in_flight = Gauge("unimarg_in_flight", "Requests being answered.", registry=self.registry)
        self.work = Gauge("unimarg_work", "Longer work, running and waiting.", ["kind"], registry=self.registry)
        self.left = Counter("unimarg_abandoned", "Answers stopped because the client had gone.", registry=self.registry)

    def text(self) -> bytes:
        return generate_latest(self.registry)


CONTENT_TYPE = CONTENT_TYPE_LATEST
