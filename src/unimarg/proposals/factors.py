"""Functions of some variables as tables, and their products, which must not fall out of a number's range."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from unimarg.network import Floats

TINY, SMALL = 1e-300, 1e-200


class Factor(NamedTuple):
    scope: tuple[int, ...]  # variables in the order of drawing
    values: Floats  # an axis for each
    cut: bool = False  # whether something was averaged out on the way


def align(f: Factor, union: tuple[int, ...]) -> Floats:
    """With axes of length 1 for the variables it lacks; both are in the order of drawing."""
    sizes = iter(f.values.shape)
    present = set(f.scope)
    return f.values.reshape([next(sizes) if v in present else 1 for v in union])


def multiplied(factors: list[Floats]) -> tuple[Floats, Floats | None]:
    """Their product; where that would fall out of a number's range the product over each row's largest, and the logs of those.

    What is possible stays so. Hundreds of findings of one cause, some for and some against, would else leave nothing of any of its states.
    """
    product = factors[0]
    for f in factors[1:]:
        product = product * f
    if product.min() > SMALL or math.prod(float(f.min(where=f > 0, initial=1.0)) for f in factors) > SMALL:
        return product, None
    possible = np.logical_and.reduce(np.broadcast_arrays(*(f > 0 for f in factors)))
    if not (product <= SMALL)[possible].any():
        return product, None
    with np.errstate(divide="ignore"):
        log = sum((np.log(f) for f in factors[1:]), np.log(factors[0]))
    top = log.max(axis=-1)
    top = np.where(top > -np.inf, top, 0.0)
    return np.where(possible, np.maximum(np.exp(log - top[..., None]), TINY), 0.0), top
