"""OpIndex: partitions, signatures, buckets."""

from __future__ import annotations

from typing import Any

import numpy as np

from hitbox.encoding.arrays import HIGHEST, MISSING, Boxes, Points, Space
from hitbox.matchers import make
from support.matcher_data import rows


def test_opindex_partitions_by_the_rarest_attribute_and_signs_its_equalities() -> None:
    matcher: Any = make("opindex", Space.of(3))
    boxes = Boxes.of(
        [
            {0: (1, 5), 1: (2, 2)},
            {0: (3, HIGHEST), 1: (4, 9)},
            {0: (7, 7), 1: (1, 2), 2: (6, 6)},
            {0: (MISSING, MISSING)},
        ]
    )
    matcher.insert(np.arange(4), boxes)
    assert matcher.pivots(boxes).tolist() == [1, 1, 2, 3]  # attribute 0 is the commonest; the last needs none present
    bits = np.bitwise_count(matcher.signature).sum(axis=1)
    assert bits.tolist() == [0, 1, 2, 1]
    assert matcher.needs.tolist() == [3, 3, 4, 1]  # a range is two predicates, one-sided and equal are one
    points = Points.of([[4, 2, MISSING], [7, 2, 6], [MISSING, 2, 6], [7, 5, MISSING]])
    assert rows(matcher, points) == [[0], [2], [3], [1]]


def test_opindex_buckets_grow_with_the_equalities() -> None:
    rng = np.random.default_rng(5)
    keys = rng.integers(0, 50, (3000, 2))
    matcher, oracle = make("opindex", Space.of(2)), make("brute", Space.of(2))
    for part in np.array_split(np.arange(3000), 7):
        for one in (matcher, oracle):
            one.insert(part, Boxes.of_dense(keys[part], keys[part]))
    points = Points.of(rng.integers(0, 50, (60, 2)))
    assert rows(matcher, points) == rows(oracle, points)
    buckets = matcher.buckets  # type: ignore[attr-defined]
    assert buckets.live == 6000 <= len(buckets.start)
