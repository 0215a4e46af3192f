"""Requests made up from the service's own description by schemathesis: none may end in a 500.

    python benchmarks/service_schema.py model.um [--examples 800] [--seed 1]

Valid and invalid requests for every operation. schemathesis also checks that statuses, types and bodies of the answers are as
described; the service's own counters say how many requests came, and with what status they were answered.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections import Counter

from service_load import Service

ENOUGH = 5000


def statuses(service: Service) -> Counter[str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{service.port}/metrics") as answer:
        text = answer.read().decode()
    found: Counter[str] = Counter()
    for status, count in re.findall(r'unimarg_requests_total\{endpoint="\w+",status="(\d+)"\} (\S+)', text):
        found[status] += int(float(count))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--examples", type=int, default=800, help="for each operation")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    service = Service(given.model, "--seconds", "1")
    try:
        command = [sys.executable, "-m", "schemathesis.cli", "run", f"http://127.0.0.1:{service.port}/openapi.json"]
        # names that are no variables of the network fit the description all the same, and are rightly rejected
        options = ["--exclude-checks", "positive_data_acceptance", "--continue-on-failure", "--no-shrink", "--request-timeout", "60"]
        numbers = ["--max-examples", str(given.examples), "--seed", str(given.seed)]
        with tempfile.TemporaryDirectory() as folder:  # it keeps a folder of its own where it runs
            ended = subprocess.run([*command, *options, *numbers], check=False, cwd=folder)
        found = statuses(service)
    finally:
        service.stop()
    total, broken = sum(found.values()), sum(n for status, n in found.items() if status.startswith("5") and status != "503")
    print(f"{total:,} requests: " + ", ".join(f"{status}: {n:,}" for status, n in sorted(found.items())))
    sys.exit(1 if broken or total < ENOUGH or ended.returncode else 0)


if __name__ == "__main__":
    main()
