"""One engine in a process of its own: requests come in on the standard input, replies go out on the standard output.

    python worker.py ENGINES.py LIBRARY

Every request is a pickled dictionary with ``do``; every reply one with ``seconds`` and the result, or with ``error``. What the
library itself prints goes to the standard error.
"""

import contextlib
import importlib.metadata
import importlib.util
import os
import pickle
import statistics
import sys
import time
from typing import Any

import numpy as np


class Worker:
    def __init__(self, path: str, library: str):
        spec = importlib.util.spec_from_file_location("engines", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.kind = module.ENGINES[library]
        self.engine: Any = None

    def library(self) -> dict[str, Any]:
        """Its version; that it can be imported at all."""
        importlib.import_module(self.kind.module)
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return {"version": importlib.metadata.version(self.kind.module.split(".")[0])}
        return {"version": "unknown"}

    def build(self, **given: Any) -> dict[str, Any]:
        self.engine = self.kind(**given)
        return {}

    def answer(self, row: np.ndarray, budget: float) -> dict[str, Any]:
        marginals, samples = self.engine.answer(row, budget)
        return {"marginals": np.asarray(marginals, dtype=float), "samples": int(samples)}

    def rows(self, evidence: np.ndarray, budget: float) -> dict[str, Any]:
        """How many rows were answered, in how many seconds: in one call where there is such a call, else one by one."""
        if self.engine.rows is not None:
            return self._together(evidence, budget)
        self.engine.answer(evidence[0], 0)
        begin, done = time.perf_counter(), 0
        while time.perf_counter() - begin < budget and done < len(evidence):
            self.engine.answer(evidence[done], 0)
            done += 1
        return {"rows": done, "taken": time.perf_counter() - begin}

    def _together(self, evidence: np.ndarray, budget: float) -> dict[str, Any]:
        """As many in one call as fit into the time."""
        count, spent = 16, 0.0
        while True:
            part = evidence[:count]
            self.engine.rows(part)  # compiles for this number of rows
            begin = time.perf_counter()
            self.engine.rows(part)
            spent = time.perf_counter() - begin
            if spent > budget / 2 or count >= len(evidence):
                return {"rows": len(part), "taken": spent}
            count *= 8

    def sample(self, budget: float) -> dict[str, Any]:
        """Forward samples a second, the median of three."""
        if self.engine.sample is None:
            return {"samples": 0, "taken": 1.0}
        count, spent = 100, 0.0
        while spent < budget / 5 and count < 1 << 24:
            count *= 4
            self.engine.sample(count)  # compiles
            begin = time.perf_counter()
            self.engine.sample(count)
            spent = time.perf_counter() - begin
        times = []
        for _ in range(3):
            begin = time.perf_counter()
            self.engine.sample(count)
            times.append(time.perf_counter() - begin)
        return {"samples": count, "taken": statistics.median(times)}

    def load(self, path: str) -> dict[str, Any]:
        """Seconds of the quickest of three, or of two where they are long; the first may include an import."""
        if self.kind.load is None:
            return {"counts": None, "taken": float("nan")}
        times: list[float] = []
        counts = None
        while len(times) < 2 or (len(times) < 3 and sum(times) < 5):
            begin = time.perf_counter()
            counts = self.kind.load(path)
            times.append(time.perf_counter() - begin)
        return {"counts": counts, "taken": min(times)}


def main() -> None:
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    worker = Worker(*sys.argv[1:])
    while True:
        try:
            request = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        begin = time.perf_counter()
        try:
            reply = getattr(worker, request.pop("do"))(**request)
        except Exception as e:  # a peer's failure is a result
            text = " ".join(str(e).split()) or "no message"
            reply = {"error": f"{type(e).__name__}: {text[:300]}"}
        reply["seconds"] = time.perf_counter() - begin
        pickle.dump(reply, replies)
        replies.flush()


if __name__ == "__main__":
    main()
