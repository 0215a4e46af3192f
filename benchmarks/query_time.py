"""How long one warm query takes by auto, and how many programs are compiled after the first.

    python benchmarks/query_time.py [clinic alarm ...] [--sets 40] [--target-error 0.005]

Evidence is `clinical` where the network has noisy-max nodes, else `random`; all marginals are asked for. Times stand on a quiet
machine only.
"""

import argparse
import time
from collections import Counter

import jax
import numpy as np
from one_shot import named

import unimarg as um
from unimarg import NoisyMax
from unimarg.evaluation import evidence_sets
from unimarg.tables import given as named_states

SEED = 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=["clinic", "alarm"])
    parser.add_argument("--sets", type=int, default=40)
    parser.add_argument("--target-error", type=float, default=0.005)
    given = parser.parse_args()
    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compiled.append(event) if "backend_compile" in event else None
    )
    for name in given.networks:
        net = named(name)[1]
        family = "clinical" if any(isinstance(m, NoisyMax) for m in net.mechanisms) else "random"
        seconds, answers = [], []
        for row in evidence_sets(net, family, given.sets + 1, SEED):
            evidence = named_states(net, row)
            if len(seconds) == 1:
                compiled.clear()
            begin = time.perf_counter()
            answers.append(um.infer(net, evidence, target_error=given.target_error))
            seconds.append(time.perf_counter() - begin)
        warm = 1e3 * np.array(seconds[1:])
        print(f"{name}: median {np.median(warm):.0f} ms, 90% below {np.percentile(warm, 90):.0f} ms, the first {seconds[0]:.1f} s")
        print(f"  {len(compiled)} programs compiled after the first; samples {np.median([a.samples for a in answers]):.0f} in the median")
        print(f"  {dict(Counter((a.method, a.status) for a in answers))}")


if __name__ == "__main__":
    main()
