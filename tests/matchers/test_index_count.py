"""Index-Count: constraints are kept once, attributes are found under their types."""

from __future__ import annotations

import numpy as np

from hitbox.encoding.arrays import Boxes, Points, Space
from hitbox.matchers.index_count import IndexCount, name_place


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


def test_every_attribute_is_found_under_its_type() -> None:
    matcher = IndexCount(Space.of(10), types=4)
    assert matcher.type_of.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    for attribute in range(10):
        for own, names in enumerate(matcher.names):
            found = names[name_place(names, attribute)]
            assert found == (attribute if own == attribute % 4 else -1)
