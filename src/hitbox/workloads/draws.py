"""Random numbers by position: row 7 is the same whichever process generates it, and with whichever other rows.

A word is a hash of (seed, stream, row, column), two rounds of the splitmix64 finaliser:

    row key  = mix(mix(seed, stream) + row * GOLDEN)        one per row
    word     = mix(row key + (column + 1) * GOLDEN)         splitmix64 seeded by the row, its column-th output

So any partitioning of the rows concatenates to the same numbers, on one core or on a cluster.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hitbox.encoding.arrays import I64

U64 = NDArray[np.uint64]
F64 = NDArray[np.float64]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
DISTRIBUTIONS = ("uniform", "normal", "pareto", "zipf", "mixed")


def mix(words: U64) -> U64:
    """The splitmix64 finaliser, in place."""
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


def words(seed: int, stream: int, rows: I64, columns: int) -> U64:
    """(rows, columns) words."""
    root = np.array([seed & 0xFFFFFFFFFFFFFFFF], np.uint64)
    key = mix(mix(root + GOLDEN) + np.array([stream + 1], np.uint64) * GOLDEN)
    row = mix(key + rows.astype(np.uint64) * GOLDEN)
    steps = np.arange(1, columns + 1, dtype=np.uint64) * GOLDEN
    return mix(row[:, None] + steps[None, :])


def units(seed: int, stream: int, rows: I64, columns: int) -> F64:
    """(rows, columns) numbers in [0, 1)."""
    return np.asarray((words(seed, stream, rows, columns) >> np.uint64(11)) * 2.0**-53)


def choose(seed: int, stream: int, rows: I64, attributes: int, sizes: I64 | int) -> I64:
    """For each row a uniform set of `sizes` attributes, sorted: (rows, largest size), padded with `attributes`.

    Floyd's sampling: one draw per element, no rejection, for any number of attributes.
    """
    width = sizes if isinstance(sizes, int) else int(sizes.max(initial=0))
    if isinstance(sizes, int) and sizes == attributes:
        return np.broadcast_to(np.arange(attributes), (len(rows), attributes)).copy()
    draws = units(seed, stream, rows, width)
    picked = np.full((width, len(rows)), -1, np.int64)
    for step in range(width):
        top = attributes - sizes + step
        pick = (draws[:, step] * (top + 1)).astype(np.int64)
        taken = (picked[:step] == pick).any(axis=0)
        picked[step] = np.where(taken, top, pick)
    if not isinstance(sizes, int):
        picked[np.arange(width)[:, None] >= sizes] = attributes
    return np.sort(picked.T, axis=1)


def shaped(distribution: str, seed: int, stream: int, rows: I64, columns: int, cardinality: int, skew: float) -> F64:
    """(rows, columns) numbers in [0, 1) of one of the papers' distributions, "mixed" apart: see ranges.py.

    normal: mean 0.5, variance 0.02, clipped. pareto: mean 0.5 and shape 2, so smallest value 0.25, cut at 1.
    zipf: of `cardinality` ranks, the most frequent at 0, so that hot values lie side by side.
    """
    if distribution == "uniform":
        return units(seed, stream, rows, columns)
    if distribution == "normal":
        both = units(seed, stream, rows, 2 * columns)
        radius = np.sqrt(-2.0 * np.log1p(-both[:, :columns]))
        values = 0.5 + np.sqrt(0.02) * radius * np.cos(2 * np.pi * both[:, columns:])
        return np.asarray(np.clip(values, 0.0, np.nextafter(1.0, 0.0)))
    draws = units(seed, stream, rows, columns)
    if distribution == "pareto":
        return np.asarray(np.minimum(0.25 / np.sqrt(1.0 - draws * (1.0 - 0.25**2)), np.nextafter(1.0, 0.0)))
    return zipf_ranks(draws, cardinality, skew) / cardinality


def zipf_ranks(draws: F64, cardinality: int, skew: float) -> I64:
    """Ranks 0..cardinality-1, rank r with probability proportional to 1 / (r + 1) ** skew."""
    return np.minimum(np.searchsorted(_zipf_table(cardinality, skew), draws, side="right"), cardinality - 1)


@lru_cache(maxsize=64)
def _zipf_table(cardinality: int, skew: float) -> F64:
    table = np.cumsum(np.arange(1, cardinality + 1, dtype=np.float64) ** -skew)
    return np.asarray(table / table[-1])
