"""Generated three-layer medical networks: risks cause diseases, diseases cause symptoms, by noisy-OR.

    risk      P(yes) ~ U(.03, .4)
    disease   1 to 5 risks as parents (uniform), contributions log-uniform on .002 to .1, leak log-uniform on 2e-4 to 2e-2
    symptom   1 + G diseases as parents, P(G = g) = .15 * .85^g for g = 0, 1, ..., at most 40 in all, picked without replacement
              in proportion to one popularity vector ~ Dirichlet(2); contributions U(.05, .9), leak log-uniform on 1e-3 to 5e-2

The same seed gives the same network, bit for bit, on every machine and with every version of NumPy: only the raw
stream of PCG64 is used, which NumPy keeps fixed (its distributions it may change, NEP 19), and every draw is an inverse transform
that cannot depend on the platform: integer arithmetic for choices, plain IEEE products for uniforms, and `decimal`, whose ``exp`` and
``ln`` are correctly rounded, in place of the C library's. Parameters keep 10 significant digits.

Draws are taken in this order: all risk priors; then disease by disease the number of parents, the parents, their contributions,
the leak; then two per disease for the popularity; then symptom by symptom as for diseases.
"""

from __future__ import annotations

from decimal import Context, Decimal, localcontext

import numpy as np

from unimarg.errors import whole_number
from unimarg.network import Ints, Mechanism, Network, NoisyOr, Variable

MAX_RISKS_PER_DISEASE = 5
MAX_DISEASES_PER_SYMPTOM = 40
MAX_LAYER = 1_000_000
BITS = 53  # of each 64-bit word, the upper ones: what a float64 can hold
_DECIMAL = Context(prec=25)


def medical(risks: int = 50, diseases: int = 250, symptoms: int = 700, seed: int = 7) -> Network:
    """A random network of ``risks``, ``diseases`` and ``symptoms``, all "no"/"yes"; see the module docstring.

    >>> medical(5, 10, 20, seed=1)
    Network('medical-5-10-20-seed-1', 35 variables, 134 arcs)
    """
    risks, diseases, symptoms = (
        whole_number(n, what, 1, MAX_LAYER) for n, what in ((risks, "risks"), (diseases, "diseases"), (symptoms, "symptoms"))
    )
    stream = _Stream(whole_number(seed, "a seed", 0, 2**64 - 1))
    layers = {f"{kind}s": [f"{kind}_{i}" for i in range(n)] for kind, n in (("risk", risks), ("disease", diseases), ("symptom", symptoms))}
    parents: dict[str, list[str]] = {}
    mechanisms: dict[str, Mechanism | list[float]] = {}
    with localcontext(_DECIMAL):
        for risk in layers["risks"]:
            prior = stream.uniform(0.03, 0.4)
            mechanisms[risk] = [1 - prior, prior]
        equal = np.ones(risks, dtype=np.int64)
        for disease in layers["diseases"]:
            count = 1 + stream.below(min(MAX_RISKS_PER_DISEASE, risks))
            parents[disease] = [layers["risks"][i] for i in stream.choose(equal, count)]
            contributions = [stream.log_uniform(0.002, 0.1) for _ in range(count)]
            mechanisms[disease] = NoisyOr(stream.log_uniform(2e-4, 2e-2), contributions)
        popularity = np.array([stream.gamma2() for _ in range(diseases)], dtype=np.int64)
        for symptom in layers["symptoms"]:
            count = min(1 + stream.geometric(0.15, MAX_DISEASES_PER_SYMPTOM - 1), diseases)
            parents[symptom] = [layers["diseases"][i] for i in stream.choose(popularity, count)]
            contributions = [stream.uniform(0.05, 0.9) for _ in range(count)]
            mechanisms[symptom] = NoisyOr(stream.log_uniform(1e-3, 5e-2), contributions)
    variables = [Variable(name, group=group) for group, names in layers.items() for name in names]
    return Network(variables, parents, mechanisms, name=f"medical-{risks}-{diseases}-{symptoms}-seed-{seed}")


class _Stream:
    """Draws from the raw words of PCG64, one word each unless said otherwise."""

    def __init__(self, seed: int):
        self._generator = np.random.PCG64(seed)

    def bits(self) -> int:
        """A whole number, uniform on 0 to 2^53 - 1."""
        return int(self._generator.random_raw()) >> (64 - BITS)

    def below(self, n: int) -> int:
        """A whole number, uniform on 0 to n - 1 (to one part in 2^53 / n)."""
        return self.bits() * n >> BITS

    def uniform(self, low: float, high: float) -> float:
        return _rounded(low + (high - low) * (self.bits() * 2.0**-BITS))

    def log_uniform(self, low: float, high: float) -> float:
        lowest, highest = Decimal(str(low)).ln(), Decimal(str(high)).ln()
        return _rounded((lowest + (highest - lowest) * self.bits() / 2**BITS).exp())

    def geometric(self, p: float, most: int) -> int:
        """Failures before the first success, cut at ``most``: how many powers of 1 - p lie above a uniform draw."""
        u, tail = self.bits() * 2.0**-BITS, 1.0
        for g in range(most):
            tail *= 1 - p
            if u >= tail:
                return g
        return most

    def gamma2(self) -> int:
        """Gamma(2) = -ln(u1 u2), in units of 1e-9 so that sums of weights are exact; never 0. Two words."""
        product = Decimal((self.bits() + 1) * (self.bits() + 1)) / 2 ** (2 * BITS)
        return max(1, int(-product.ln() * 10**9))

    def choose(self, weights: Ints, count: int) -> list[int]:
        """``count`` different positions, each in proportion to the weights still left; ascending. One word for each."""
        left = weights.copy()
        chosen: list[int] = []
        for _ in range(count):
            totals = np.cumsum(left)
            # the first position whose running total exceeds the draw: one without weight is never it
            position = int(np.searchsorted(totals, self.below(int(totals[-1])), side="right"))
            left[position] = 0
            chosen.append(position)
        return sorted(chosen)


def _rounded(value: float | Decimal) -> float:
    return float(f"{value:.10g}")
