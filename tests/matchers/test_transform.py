"""The dimension transform: the corner below an event."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hitbox.encoding.arrays import Boxes, Points, Space
from hitbox.matchers import make
from support.matcher_data import rows
from support.random_boxes import random_boxes, random_points


@pytest.mark.parametrize("name", ["ub-tree", "mlgf"])
def test_boxes_of_a_space_without_attributes_meet_everything(name: str) -> None:
    matcher = make(name, Space.of(0))
    matcher.insert(np.arange(3), Boxes.of([{}, {}, {}]))
    matcher.delete(np.array([1]))
    assert rows(matcher, Points.of(np.zeros((2, 0), np.int64))) == [[0, 2], [0, 2]]


@pytest.mark.parametrize("name", ["ub-tree", "mlgf"])
def test_a_box_meets_an_event_only_below_its_corner(name: str) -> None:
    rng = np.random.default_rng(11)
    matcher: Any = make(name, Space.of(5, -20, 20))
    matcher.insert(np.arange(500), random_boxes(rng, 500, 5))
    points = random_points(rng, 50, 5, intervals=True)
    corners, hits = matcher.image_points(points), matcher.match(points)
    for event in range(len(points)):
        below = (matcher.images[:500] <= corners[event]).all(axis=1)
        assert below[hits[event]].all()
