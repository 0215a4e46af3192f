"""What one request, and all of them together, may take."""

from __future__ import annotations

from dataclasses import dataclass

from unimarg.errors import UsageError, whole_number
from unimarg.passes import BATCHES


@dataclass(frozen=True)
class Limits:
    """The service's limits; beyond them there is a 4xx, or a 503 that says when to come back."""

    body: int = 1 << 20  # bytes of a request
    concurrency: int = 128  # requests that are being answered
    rows: int = 1024  # evidence sets of a batch
    samples: int = 1 << 20  # of an answer by sampling
    seconds: float = 30.0  # likewise
    sampling: int = 2  # answers by sampling at once
    queue: int = 8  # that wait for one of those
    batch: int = 64  # one-shot questions that are answered together
    patience: float = 10.0  # seconds for a request to arrive

    def __post_init__(self) -> None:
        for name, most in (("body", 1 << 30), ("concurrency", 1 << 16), ("rows", 1 << 20), ("samples", 1 << 40), ("sampling", 256)):
            whole_number(getattr(self, name), f"the limit {name!r}", 1, most)
        whole_number(self.queue, "the limit 'queue'", 0, 1 << 16)
        whole_number(self.batch, "the limit 'batch'", 1, BATCHES[-1])
        for name in ("seconds", "patience"):
            if not 0 < getattr(self, name) <= 86_400:
                raise UsageError(f"the limit {name!r} must be a number of seconds above 0 and at most a day, not {getattr(self, name)!r}")
