"""What the matchers for both sides share: intervals on both sides, keys beyond double precision."""

from __future__ import annotations

import numpy as np
import pytest

from hitbox.encoding.arrays import HIGHEST, LOWEST, MISSING, Boxes, Points, Space
from hitbox.matchers import make
from support.matcher_data import rows, two_sided

SYMMETRIC = ["r-tree", "compound", "ub-tree", "mlgf"]


@pytest.mark.parametrize("name", SYMMETRIC)
@pytest.mark.parametrize("information", [(), (2, 3), (0, 1, 2, 3)])
def test_both_sides_as_intervals(name: str, information: tuple[int, ...]) -> None:
    rng = np.random.default_rng(10)
    space = Space(np.zeros(4, np.int64), np.full(4, 1000), information)
    matcher, oracle = make(name, space), make("brute", space)
    boxes = Boxes.of_dense(*two_sided(rng, 4000, 4))
    low, high = two_sided(rng, 60, 4)
    free = rng.random(low.shape) < 0.2
    points = Points(np.where(free, MISSING, low), np.where(free, HIGHEST, high))
    for one in (matcher, oracle):
        one.insert(np.arange(4000), boxes)
        one.delete(np.arange(0, 4000, 3))
    assert rows(matcher, points) == rows(oracle, points)


@pytest.mark.parametrize("name", SYMMETRIC)
def test_neighbouring_keys_beyond_double_precision(name: str) -> None:
    keys = np.array([2**53, 2**53 + 1, 2**53 + 2, HIGHEST - 1, HIGHEST, LOWEST, LOWEST + 1, -(2**53) - 1, -(2**53)])
    boxes = Boxes.of([{0: (int(key), int(key))} for key in keys])
    matcher = make(name, Space.of(1))
    matcher.insert(np.arange(len(keys)), boxes)
    assert rows(matcher, Points.of(keys[:, None])) == [[number] for number in range(len(keys))]
    matcher.delete(np.array([1, 4]))
    assert rows(matcher, Points.of(keys[:, None])) == [[n] if n not in (1, 4) else [] for n in range(len(keys))]
