"""Models over HTTP: start the service, ask it, stop it. In a browser the same address shows a page."""

import json
import re
import subprocess
import sys
from urllib.request import Request, urlopen

# %% On the command line this is `unimarg serve asia`; several models may be named. Port 0 is any free port.
service = subprocess.Popen(
    [sys.executable, "-c", "from unimarg.cli import main; main()", "serve", "asia", "--port", "0"], stdout=subprocess.PIPE, text=True
)
assert service.stdout is not None
address = re.findall(r"http://\S+", service.stdout.readline())[0]


def post(path: str, body: dict) -> dict:
    request = Request(address + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(request) as answer:
        return json.load(answer)


try:
    # %% Posterior marginals, as post.to_dict() has them
    answer = post("/v1/models/asia/query", {"evidence": {"dysp": "yes", "smoke": "no"}, "targets": ["lung"]})
    print(answer["method"], round(answer["marginals"]["lung"]["yes"], 4))  # -> exact 0.0238

    # %% What to ask next
    ranking = post("/v1/models/asia/questions", {"evidence": {"dysp": "yes"}, "targets": ["lung", "tub"]})
    print(ranking["questions"][0]["variable"])  # -> either

    # %% Which findings moved an answer
    moved = post("/v1/models/asia/explain", {"evidence": {"dysp": "yes", "smoke": "no"}, "target": "lung"})
    print(moved["findings"][0]["variable"])  # -> smoke

    # %% The interface is described at /docs; /health and /metrics are for those who look after the service.
    with urlopen(address + "/health") as answer:
        print(json.load(answer)["models"][0]["name"])  # -> asia
finally:
    service.terminate()
    service.wait()
    service.stdout.close()
