"""Feed a format's reader with mutated files: it must read them or raise FormatError, and be quick about it.

    python benchmarks/fuzz_formats.py --format bif --count 100000 --seed 0

Seeds are small networks written by the format's own writer, and the files given with --file. What is accepted
must survive being written and read again. Exits with 1, and prints the input, on any other exception or on an input slower than the limit.
"""

from __future__ import annotations

import argparse
import random
import re
import resource
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np

from unimarg.errors import FormatError, NetworkError
from unimarg.formats import SUFFIXES, Format
from unimarg.network import Network, NoisyOr, Table, Variable

HOSTILE = re.findall(
    r"[^ ]+",
    "nan inf -inf -1 -0.0 1e999 1e-999 0x10 1_0 \u0661 9999999999999 1000000000000000000000 1e308 0 1 2 00 +1 . - , ; ( ) { } [ ] | \" ' "
    "/ // /* */ % # = \\ \0 \x1b \u00e9 \u20ac \ufeff \U0001d538 default table property group function max network variable probability "
    "type discrete net class node potential data states unimarg_name label model_data BAYES MARKOV MAR "
    "<!-- --> <![CDATA[ ]]> &amp; &lol; &#0; &lt; <!DOCTYPE <?xml /> </nodes> <cpt> <noisymax> <deterministic> <GIVEN> <FOR>",
)
HOSTILE += ["9" * 5000, "<!- x ->", "0 1", "1 0 2", "x0 x1", '{"x0": "x1"}', "<!DOCTYPE a [<!ENTITY b 'c'>]>"]
HOSTILE += ['<property id="unimarg_name">{"x0": "x1"}</property>', '<property id="unimarg_states">{"0": "\\ud800"}</property>']
MAX_INPUT = 2**20  # repeated repetition grows without end
TOKEN = re.compile(rb'"[^"]*"|[\w.+-]+|\s+|.', re.DOTALL)


@dataclass
class Tally:
    """What happened to the inputs."""

    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    slowest: float = 0.0
    slowest_input: bytes = b""
    failures: list[tuple[str, bytes]] = field(default_factory=list)


def seed_networks() -> list[Network]:
    rain = Variable("rain", ("no", "yes"), "weather")
    sky = Variable("sky", ("clear", "grey", "black"))
    wet = Variable("wet grass", ("dry", "a little", "very"), "garden")
    tables = {"rain": [0.8, 0.2], "sky": [[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]]}
    small = Network([rain, sky], {"sky": ["rain"]}, tables)
    rows = np.random.default_rng(0).dirichlet([1, 1, 1], (3, 2))
    odd = Network([rain, sky, wet], {"sky": ["rain"], "wet grass": ["sky", "rain"]}, {**tables, "wet grass": rows})
    binary = [Variable(f"x{i}", ("0", "1")) for i in range(4)]
    arcs = {"x2": ["x0", "x1"], "x3": ["x2"]}
    chain = {"x0": [0.9, 0.1], "x1": [0.5, 0.5], "x2": NoisyOr(0.01, [0.8, 0.3]), "x3": [[1.0, 0.0], [1e-7, 1 - 1e-7]]}
    return [small, odd, Network(binary, arcs, chain)]


def mutate(data: bytes, seeds: list[bytes], rng: random.Random) -> bytes:
    """One to four random changes to bytes or to words."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        data = (_change_bytes if rng.random() < 0.4 else _change_words)(data, seeds, rng)[:MAX_INPUT]
    return data


def _change_bytes(data: bytes, seeds: list[bytes], rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    end = min(len(data), at + rng.choice((1, 1, 2, 8, 64)))
    other = rng.choice(seeds)
    cut = rng.randrange(len(other))
    return rng.choice(
        (
            lambda: data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :],
            lambda: data[:at] + data[end:],
            lambda: data[:at],
            lambda: data[at:],
            lambda: data[:end] + data[at:end] * rng.choice((1, 3, 500)) + data[end:],
            lambda: data[:at] + other[cut:],
            lambda: data[:at] + other[cut : cut + 40] + data[at:],
        )
    )()


def _change_words(data: bytes, seeds: list[bytes], rng: random.Random) -> bytes:
    words = TOKEN.findall(data) or [b""]
    at, other = rng.randrange(len(words)), rng.randrange(len(words))
    choice = rng.randrange(6)
    if choice == 0:
        words[at] = rng.choice(HOSTILE).encode()
    elif choice == 1:
        words[at], words[other] = words[other], words[at]
    elif choice == 2:
        words[at] = words[other]
    elif choice == 3:
        del words[at : at + rng.choice((1, 1, 5))]
    elif choice == 4:
        words.insert(at, rng.choice(HOSTILE).encode())
    else:
        words[at] *= rng.choice((2, 10, 2000))
    return b"".join(words)


def fuzz(module: Format, count: int, seed: int, limit: float = 1.0, more_seeds: Sequence[bytes] = ()) -> Tally:
    """Read ``count`` mutated files; ``limit`` is the number of seconds that one may take."""
    rng = random.Random(seed)
    seeds = [*more_seeds, *(module.write(net).encode() for net in seed_networks())]
    tally = Tally()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", UserWarning)  # ours: something in the file was filled in
        for _ in range(count):
            data = mutate(rng.choice(seeds), seeds, rng)
            start = time.perf_counter()
            outcome = _try(module, data)
            seconds = time.perf_counter() - start
            tally.outcomes["slow" if seconds > limit else outcome] += 1
            tally.seconds += seconds
            if seconds > tally.slowest:
                tally.slowest, tally.slowest_input = seconds, data
            if seconds > limit or outcome not in ("read", "refused"):
                tally.failures.append((f"{outcome} after {seconds:.2f} s", data))
    return tally


def _try(module: Format, data: bytes) -> str:
    try:
        net = module.read(data, "fuzz")
    except (FormatError, NetworkError):
        return "refused"
    except Exception as e:
        return f"raised {e!r:.200}"
    try:
        text = module.write(net)
    except FormatError:
        return "read"  # a name that can be read but not written is refused by name
    except Exception as e:
        return f"writing raised {e!r:.200}"
    again = module.read(text.encode(), "fuzz")
    keeps = module.__name__.endswith("xdsl") if isinstance(module, ModuleType) else True
    same = again == net or not (keeps or all(isinstance(m, Table) for m in net.mechanisms))
    return "read" if same else "changed by writing and reading"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", required=True, choices=sorted(set(SUFFIXES.values())))
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=1.0, help="seconds that one input may take")
    parser.add_argument("--file", type=Path, action="append", default=[], help="one more file to mutate; may be repeated")
    args = parser.parse_args()
    more = [path.read_bytes() for path in args.file]
    tally = fuzz(import_module(f"unimarg.formats.{args.format}"), args.count, args.seed, args.limit, more)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{args.format}: {args.count} inputs, seed {args.seed}: {dict(tally.outcomes)}")
    print(f"mean {1e3 * tally.seconds / args.count:.3f} ms, slowest {1e3 * tally.slowest:.1f} ms, peak memory {peak:.0f} MiB")
    print(f"the slowest has {len(tally.slowest_input)} bytes: {tally.slowest_input[:150]!r}")
    for what, data in tally.failures[:5]:
        print(f"{what}\n{data[:2000]!r}")
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
