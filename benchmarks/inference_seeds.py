"""Are z-scores standard normal: one question asked with many seeds, every proposal, against exact answers.

    python benchmarks/inference_seeds.py NETWORK... [--sets 2] [--seeds 200] [--samples 20480] [--train 20s] [--seed 7] [--out results.csv]

For each evidence set and proposal that is ok with every seed: of all marginals with ESS p (1 - p) >= 10 and an error of more than
rounding the Kolmogorov-Smirnov test of z for the one that is least certain (its exact probability nearest one half), and how many have
p < .01, told apart by whether their scores are narrower than they should be (errors too large) or wider. A hundredth of them would be by
chance; marginals of one question are not independent.

ESS p (1 - p) is how many events an average of outcomes is made of: ESS^2 times its variance. Averages of probabilities may be made of
far fewer (``events``, by their variance over seeds), and what is made of a few is not normal, whatever its error; nor is the least error
told that an answer may have (``estimates.FEW``). So a marginal is tested that has ten events, if there is one: the least certain of those.
Prints CSV; the exit status says whether the chosen ones, together, are not standard normal (Bonferroni, one per cent).
"""

import argparse
import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np
from inference_checks import OFTEN, SEED, load, proposals, random_evidence, trained
from scipy.stats import kstest

import unimarg as um
from unimarg import Posterior
from unimarg.estimates import ROUNDING

COLUMNS = ["network", "set", "method", "structure", "not_ok", "marginal", "probability", "events", "mean_z", "sd_z", "ks_p"]
COLUMNS += ["marginals", "narrow", "wide", "covered_95"]
UNLIKELY = 0.01


def row_of(found: list[Posterior], exact: Posterior) -> list[Any]:
    """From ``not_ok`` on."""
    not_ok = sum(f.status != "ok" for f in found)
    if not_ok:
        return [not_ok, *[""] * 10]
    p, e = (np.stack([np.concatenate(getattr(f, part)) for f in found]) for part in ("probabilities", "std_errors"))
    q = np.concatenate(exact.probabilities)
    ess = np.mean([f.ess for f in found])
    often = (ess * q * (1 - q) >= OFTEN) & (e > 10 * ROUNDING).all(axis=0)
    events = ess**2 * p.var(axis=0)
    names = [f"{v.name}={s}" for v in exact.variables for s in v.states]
    if not often.any():
        return [0, *[""] * 10]
    made_of_many = often & (events >= OFTEN)
    at = int(np.where(made_of_many if made_of_many.any() else often, np.abs(q - 0.5), np.inf).argmin())
    z = (p - q)[:, often] / e[:, often]
    unlikely = np.array([kstest(scores, "norm").pvalue for scores in z.T]) < UNLIKELY
    narrow = z.std(axis=0) < 1
    own = (p - q)[:, at] / e[:, at]
    shape = [f"{own.mean():.3f}", f"{own.std():.3f}", f"{kstest(own, 'norm').pvalue:.2g}"]
    counts = [int(often.sum()), int((unlikely & narrow).sum()), int((unlikely & ~narrow).sum())]
    return [0, names[at], f"{q[at]:.4f}", f"{events[at]:.3g}", *shape, *counts, f"{(np.abs(z) < 1.96).mean():.4f}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="+", type=Path, help="files, or names of examples")
    parser.add_argument("--sets", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--samples", type=int, default=20480)
    parser.add_argument("--train", help="for so long, the small preset with a message head and a student")
    parser.add_argument("--seed", type=int, default=SEED, help="of the evidence sets")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    tests, least = 0, 1.0
    with given.out.open("w", newline="", buffering=1) if given.out else sys.stdout as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(COLUMNS)
        for name, net in load(given.networks).items():
            model = trained(net, given.train) if given.train else None
            for number, e in enumerate(random_evidence(net, given.sets, given.seed)):
                exact = um.exact(net, e)
                for method, structure, ask in proposals(net, model):
                    options: dict[str, Any] = {"samples": given.samples, "target_error": None, "structure": structure}
                    row = row_of([ask(e, method=method, seed=seed, **options) for seed in range(given.seeds)], exact)
                    out.writerow([name, number, method, structure, *row])
                    file.flush()
                    if row[6] and float(row[3]) >= OFTEN:
                        tests, least = tests + 1, min(least, float(row[6]))
    print(f"{tests} marginals, the least p {least:.2g}", file=sys.stderr)
    return int(least * tests < UNLIKELY)


if __name__ == "__main__":
    sys.exit(main())
