"""Random workloads that hit the corners: missing values, bounds met exactly, duplicates, extreme keys."""

from __future__ import annotations

import numpy as np

from hitbox.encoding.arrays import HIGHEST, LOWEST, MISSING, Boxes, Points


def random_keys(rng: np.random.Generator, size: int, span: int) -> np.ndarray:
    """Small keys, so that bounds are often hit exactly; now and then an extreme one."""
    keys = rng.integers(-span, span + 1, size)
    extreme = rng.choice([LOWEST, LOWEST + 1, HIGHEST - 1, HIGHEST], size)
    return np.where(rng.random(size) < 0.03, extreme, keys)


def random_boxes(rng: np.random.Generator, count: int, attributes: int, span: int = 20) -> Boxes:
    """Boxes of every kind: ranges, equalities, one-sided, IS NULL, IS NOT NULL, unconstrained, duplicates."""
    low = np.full((count, attributes), MISSING, np.int64)
    high = np.full((count, attributes), HIGHEST, np.int64)
    share = rng.choice([0.1, 0.5, 1.0])
    for a in range(attributes):
        one, two = random_keys(rng, count, span), random_keys(rng, count, span)
        kind = rng.integers(0, 7, count)
        lo, hi = np.minimum(one, two), np.maximum(one, two)
        lo = np.select([kind == 1, kind == 2, kind == 4, kind == 5], [one, LOWEST, MISSING, LOWEST], lo)
        hi = np.select([kind == 1, kind == 3, kind == 4, kind == 5], [one, HIGHEST, MISSING, HIGHEST], hi)
        used = rng.random(count) < share
        low[used, a], high[used, a] = lo[used], hi[used]
    if count > 4:
        copies = rng.integers(0, count, count // 4)
        low[: len(copies)], high[: len(copies)] = low[copies].copy(), high[copies].copy()
    return Boxes.of_dense(low, high, rng.integers(0, 10, count).astype(np.uint8))


def random_points(
    rng: np.random.Generator, count: int, attributes: int, span: int = 20, intervals: bool = False
) -> Points:
    keys = random_keys(rng, count * attributes, span).reshape(count, attributes)
    keys[rng.random(keys.shape) < rng.choice([0.0, 0.1, 0.5])] = MISSING
    if not intervals:
        return Points.of(keys)
    other = random_keys(rng, count * attributes, span).reshape(count, attributes)
    wide = (rng.random(keys.shape) < 0.5) & (keys != MISSING)
    low = np.where(wide, np.minimum(keys, other), keys)
    high = np.where(wide, np.maximum(keys, other), keys)
    anything = rng.random(keys.shape) < 0.1  # an event that does not care
    return Points(np.where(anything, MISSING, low), np.where(anything, HIGHEST, high))
