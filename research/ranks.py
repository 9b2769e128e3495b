"""Ranks, and Spearman's correlation of two rows of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def ranks(values: NDArray[Any]) -> NDArray[np.float64]:
    """Ranks, equal values sharing the mean of theirs."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(count)
    return (ends - (count - 1) / 2)[place].astype(np.float64)


def rank_correlation(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Spearman's; 0 where one of the two does not vary.

    >>> rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([10.0, 40.0, 90.0]))
    1.0
    """
    if len(a) < 2 or a.min() == a.max() or b.min() == b.max():
        return 0.0
    return round(float(np.corrcoef(ranks(a), ranks(b))[0, 1]), 12)
