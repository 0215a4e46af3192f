"""References for the experiments by a method that shares nothing with those compared: risks drawn, all else summed out.

    python papers/universal_marginalizer/references.py references.npz [--samples 20000000] [--network 50 250 700]

Given the risks r, diseases are independent a priori. Let A_d = P(d absent | r), q_sd the chance that d does not switch on s, and
for a set T of findings l(T) and q_d(T) the products over T of (1 - leak_s) and of q_sd. The evidence F, positive findings F+ and
negative ones F-, then has (Heckerman 1989)

    P(F | r) = sum over subsets S of F+ of (-1)^|S| l(S, F-) prod over d of [A_d + (1 - A_d) q_d(S, F-)]

in float64, and each term also holds P(d, F | r) and P(s, F | r) for every disease and symptom. Risks are drawn independently, with
probabilities that a few rounds of weighted samples improve. Each marginal is a weighted mean of exact conditionals, less what the
drawn risks themselves, whose expectations are known, say of its error (control variates); its standard error is kept beside it.
"""

import argparse
import itertools
import time
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import unimarg as um
from unimarg.evaluation import evidence_sets
from unimarg.formats.files import replacing
from unimarg.reproduce.setting import EVIDENCE_SEED, FAMILY, SETS

ROUNDS, PILOT, CHUNK = 4, 1 << 15, 1 << 14
WIDTHS = (3, 6, 10, 16, 24, 40)  # of symptoms by their number of parents
LEAST = 0.002  # of a risk's probability in the proposal


class Layers(NamedTuple):
    """The network's numbers. Symptoms are taken by their number of parents, a few widths of them, padded with contributions of 0."""

    prior: Any  # [risks]
    risk: Any  # [risks, diseases]: log(1 - contribution), 0 without an arc
    disease_leak: Any  # [diseases]: log(1 - leak)
    arcs: Any  # for each width: parents and contributions, [symptoms, width]
    place: Any  # [symptoms]: where each lies among those
    quiet: Any  # [symptoms, diseases]: 1 - contribution
    symptom_leak: Any  # [symptoms]: 1 - leak


class Case(NamedTuple):
    """An evidence set."""

    known: Any  # [risks]: 0 or 1, -1 where unknown
    diseases: Any  # [diseases]: likewise
    quiet: Any  # [subsets, diseases]: prod of q
    sign: Any  # [subsets]: times prod of (1 - leak)


def layers(net: um.Network) -> Layers:
    groups = [[i for i, v in enumerate(net.variables) if v.group == g] for g in ("risks", "diseases", "symptoms")]
    risks, diseases, symptoms = groups
    assert [*risks, *diseases, *symptoms] == list(range(len(net)))
    risk, quiet = np.zeros((len(risks), len(diseases))), np.ones((len(symptoms), len(diseases)))
    for d, i in enumerate(diseases):
        for j, p in enumerate(net.parents[i]):
            risk[p, d] = np.log(net.mechanisms[i].contributions[j][1, 0])
    for s, i in enumerate(symptoms):
        for j, p in enumerate(net.parents[i]):
            quiet[s, p - len(risks)] = net.mechanisms[i].contributions[j][1, 0]
    leak = [np.array([net.mechanisms[i].leak[0] for i in group]) for group in groups[1:]]
    prior = np.array([net.mechanisms[i].probabilities[1] for i in risks])
    degree = (quiet < 1).sum(axis=1)
    assert degree.min() > 0
    assert degree.max() <= WIDTHS[-1]
    arcs, order = [], []
    for low, high in itertools.pairwise((0, *WIDTHS)):
        members = np.flatnonzero((degree > low) & (degree <= high))
        parents = np.argsort(quiet[members], axis=1, kind="stable")[:, :high]  # those that contribute come first
        arcs.append((parents, np.take_along_axis(1 - quiet[members], parents, axis=1)))
        order.append(members)
    return Layers(prior, risk, np.log(leak[0]), arcs, np.argsort(np.concatenate(order)), quiet, leak[1])


def case(given: Layers, states: np.ndarray) -> Case:
    risks, diseases = given.risk.shape
    known, of_diseases, found = np.split(states, [risks, risks + diseases])
    absent, positive = np.flatnonzero(found == 0), np.flatnonzero(found == 1)
    subsets = [[s for b, s in enumerate(positive) if number >> b & 1] for number in range(1 << len(positive))]
    rows = [np.concatenate([absent, np.array(s, int)]) for s in subsets]
    sign = [(-1) ** len(s) * given.symptom_leak[r].prod() for s, r in zip(subsets, rows, strict=True)]
    return Case(known, of_diseases, np.stack([given.quiet[r].prod(axis=0) for r in rows]), np.array(sign))


@partial(jax.jit, static_argnames=("n",))
def sums(given: Layers, of: Case, proposal: jax.Array, offset: jax.Array, key: jax.Array, n: int) -> tuple[jax.Array, ...]:
    """log of the mean weight, and sums of w, w^2, w f, w^2 f, w^2 f^2, h, h h', w h, w f h' with f = P(x = 1 | r, F), h = r - E[r] and w
    scaled by exp(-offset)."""
    given, of = jax.tree.map(lambda a: jnp.asarray(a)[:, None] if np.ndim(a) == 1 else jnp.asarray(a), (given, of))
    proposal = proposal[:, None]
    drawn = jax.random.uniform(key, (len(proposal), n)) < proposal
    r = jnp.where(of.known >= 0, of.known == 1, drawn).astype(jnp.float64)
    ratio = jnp.where(r > 0, jnp.log(given.prior), jnp.log1p(-given.prior))
    ratio -= jnp.where(of.known >= 0, 0, jnp.where(r > 0, jnp.log(proposal), jnp.log1p(-proposal)))
    absent = jnp.exp(given.risk.T @ r + given.disease_leak)  # A
    present = jnp.where(of.diseases == 0, 0, 1 - absent)
    absent = jnp.where(of.diseases == 1, 0, absent)

    def subset(carry: tuple[jax.Array, ...], now: tuple[jax.Array, jax.Array]) -> tuple[tuple[jax.Array, ...], None]:
        total, diseases, symptoms = carry
        quiet, sign = now
        factor = absent + present * quiet[:, None]
        term = sign * jnp.exp(jnp.log(factor).sum(axis=0))
        share = present * quiet[:, None] / factor  # of the diseases, given S silent
        silent = [(1 - effect[..., None] * share[parents]).prod(axis=1) for parents, effect in given.arcs]
        return (total + term, diseases + term * share, symptoms + term * jnp.concatenate(silent)), None

    zeros = (jnp.zeros(n), jnp.zeros((len(absent), n)), jnp.zeros((len(given.quiet), n)))
    (total, diseases, symptoms), _ = lax.scan(subset, zeros, (of.quiet, of.sign[:, 0]))
    total = jnp.maximum(total, 1e-300)
    f = jnp.concatenate([r, diseases / total, 1 - given.symptom_leak * symptoms[given.place[:, 0]] / total])
    log_w = ratio.sum(axis=0) + jnp.log(total)
    w = jnp.exp(log_w - offset)
    h = jnp.where(of.known >= 0, 0, r - proposal)
    of_f = w.sum(), (w**2).sum(), f @ w, f @ w**2, f**2 @ w**2
    return jax.nn.logsumexp(log_w) - jnp.log(n), *of_f, h.sum(axis=1), h @ h.T, h @ w, (f * w) @ h.T


def marginals(given: Layers, of: Case, samples: int, seed: int) -> tuple[np.ndarray, np.ndarray, float]:
    """P(x = 1 | F) of every node, standard errors, and the effective share of the samples."""
    key = jax.random.key(seed)
    proposal, risks = jnp.asarray(given.prior), len(given.prior)
    offset = jnp.float64(0)
    for number in range(ROUNDS):
        offset, *_ = sums(given, of, proposal, jnp.float64(0), jax.random.fold_in(key, number), PILOT)
        _, w, _, wf, *_ = sums(given, of, proposal, offset, jax.random.fold_in(key, number), PILOT)
        proposal = jnp.clip(wf[:risks] / w, LEAST, 1 - LEAST)
    whole: Any = None
    count = -(-samples // CHUNK)
    for number in range(count):
        _, *one = sums(given, of, proposal, offset, jax.random.fold_in(key, ROUNDS + number), CHUNK)
        whole = one if whole is None else [a + b for a, b in zip(whole, one, strict=True)]
    w, w2, wf, w2f, w2f2, h, hh, wh, wfh = (np.asarray(a) for a in whole)
    mean = wf / w
    along = wfh - np.outer(mean, wh)
    factor = np.linalg.lstsq(hh, along.T, rcond=1e-9)[0].T  # the risks that are known have no h
    variance = w2f2 - 2 * mean * w2f + mean**2 * w2 - (factor * along).sum(axis=1)
    return mean - factor @ h / w, np.sqrt(np.maximum(variance, 0)) / w, float(w**2 / w2 / (count * CHUNK))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--samples", type=int, default=20_000_000)
    parser.add_argument("--network", type=int, nargs=3, default=(50, 250, 700), help="risks, diseases, symptoms")
    parser.add_argument("--sets", type=int, default=SETS)
    parser.add_argument("--seconds", type=float, default=np.inf, help="stop after the set during which so many have passed")
    asked = parser.parse_args()
    net = um.medical(*asked.network, seed=7)
    evidence, given = evidence_sets(net, FAMILY, asked.sets, EVIDENCE_SEED), layers(net)
    jax.config.update("jax_enable_x64", True)
    truth, error = np.full((2, asked.sets, 2 * len(net)), np.nan)
    began = time.perf_counter()
    for number, states in enumerate(evidence):
        p, e, share = marginals(given, case(given, states), asked.samples, number)
        p, e = (np.where(states < 0, a, b) for a, b in ((p, states), (e, 0)))
        truth[number], error[number] = np.stack([1 - p, p], axis=1).ravel(), np.repeat(e, 2)
        seconds = time.perf_counter() - began
        errors = f"mean standard error {e[states < 0].mean():.2g}, largest {e.max():.2g}"
        print(f"set {number + 1}: ESS {share:.3f}, {errors}, {seconds:.0f} s", flush=True)
        if seconds > asked.seconds:
            break
    with replacing(asked.out) as file:
        np.savez_compressed(file, evidence=evidence.astype(np.int8), truth=truth, std_error=error.astype(np.float32))


if __name__ == "__main__":
    main()
