"""Training killed without warning (kill -9) at random moments, and resumed: the same weights in the end?

    python benchmarks/kill_training.py [KILLS] [FOLDER]

Each run of ``unimarg train`` is killed after its first checkpoint, the file it left is loaded, and the run is resumed (and
killed again, up to three times) until it ends. The weights must be those of a run that nobody disturbed, bit for bit.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

STEPS, MOST = 150, 3
# short calls and a checkpoint after each, so that a kill often hits the writing of one
PROGRAM = """
import sys
import unimarg.trainer as t
t.CHECKPOINT_SECONDS = 0.0
t._Run._steps_per_call = lambda self, accelerated, teacher: 4
from unimarg.cli import main
main(sys.argv[1:])
"""


def start(output: Path, folder: Path, *more: str) -> subprocess.Popen[bytes]:
    cache = {"JAX_COMPILATION_CACHE_DIR": str(folder / "programs"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    arguments = ["train", "asia", "-o", str(output), "--preset", "small", "--budget", f"{STEPS} steps", "--seed", "5", *more]
    with open(folder / "log.txt", "ab") as log:
        return subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments], stdout=log, stderr=log, env=os.environ | cache)


def wait_for_progress(process: subprocess.Popen[bytes], output: Path, after: int) -> None:
    """Until the file has been written again."""
    while process.poll() is None and (not output.exists() or output.stat().st_mtime_ns <= after):
        time.sleep(0.002)


def killed_and_resumed(output: Path, folder: Path, rng: random.Random) -> list[int]:
    """Kill, look at the file, resume, and so on; the steps at which the kills hit."""
    from unimarg.checkpoint import load_model

    hits, more = [], ["--force"]
    while True:
        before = output.stat().st_mtime_ns if output.exists() else 0
        process = start(output, folder, *more)
        if len(hits) < MOST:
            wait_for_progress(process, output, before)
            time.sleep(rng.uniform(0, 1.0))
            process.send_signal(signal.SIGKILL)
        process.wait()
        history = load_model(output).history  # whatever happened, the file is whole
        if history["steps"] == history["planned_steps"]:
            return hits
        hits.append(int(history["steps"]))
        more = ["--resume"]


def weights(path: Path) -> dict[str, np.ndarray]:
    return {name: tensor for name, tensor in load_file(path).items() if name.startswith("trunk")}


def main(least: int, folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)
    reference = folder / "undisturbed.um"
    if start(reference, folder, "--force").wait():
        sys.exit((folder / "log.txt").read_text())
    expected = weights(reference)
    runs = kills = wrong = 0
    while kills < least and runs < least:
        output = folder / f"run{runs}.um"
        hits = killed_and_resumed(output, folder, rng)
        found = weights(output)
        same = all(found[name].tobytes() == tensor.tobytes() for name, tensor in expected.items())
        runs, kills, wrong = runs + 1, kills + len(hits), wrong + (not same)
        print(f"killed at step {', '.join(map(str, hits)) or 'none'}; {'the same weights' if same else 'OTHER WEIGHTS'}", flush=True)
    print(f"{kills} kills in {runs} runs: every file loaded, {wrong} runs ended with other weights")
    return int(wrong > 0 or kills < least)


if __name__ == "__main__":
    where = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(tempfile.mkdtemp())
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20, where))
