"""R-tree: batches and single boxes."""

from __future__ import annotations

import numpy as np

from hitbox.encoding.arrays import Points, Space
from hitbox.matchers import make
from support.matcher_data import ranges, rows


def test_r_tree_takes_batches_and_single_boxes() -> None:
    rng = np.random.default_rng(12)
    space = Space.of(3, 0, 1000)
    matcher, oracle = make("r-tree", space), make("brute", space)
    begin = 0
    for count in (500, 3, 1, 300, 40):  # in bulk where it is a quarter of what is there, else one by one
        boxes = ranges(rng, count, 3, 250)
        for one in (matcher, oracle):
            one.insert(np.arange(begin, begin + count), boxes)
        begin += count
        points = Points.of(rng.integers(0, 1001, (20, 3)))
        assert rows(matcher, points) == rows(oracle, points)
