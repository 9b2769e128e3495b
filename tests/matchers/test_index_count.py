"""Index-Count: constraints are kept once."""

from __future__ import annotations

import numpy as np

from hitbox.encoding.arrays import Boxes, Points, Space
from hitbox.matchers.index_count import IndexCount


def test_constraints_are_kept_once_and_dropped_with_their_last_box() -> None:
    matcher = IndexCount(Space.of(2))
    boxes = Boxes.of([{0: (1, 5)}, {0: (1, 7), 1: (3, 3)}, {0: (1, 5), 1: (3, 3)}, {}])
    for numbers in (np.array([4, 0, 9, 2]), np.array([1, 5, 3, 8])):
        matcher.insert(numbers, boxes)
        assert matcher.index.live == 4  # a >= 1, a <= 5, a <= 7, b = 3
        assert sorted(matcher.match(Points.of([[4, 3]]))[0].tolist()) == sorted(numbers.tolist())
        assert matcher.match(Points.of([[6, 3]]))[0].tolist() == [numbers[3], numbers[1]]
        matcher.delete(numbers)
        assert matcher.index.live == 0
        assert matcher.links.live == 0
        assert (matcher.table < 0).all()
