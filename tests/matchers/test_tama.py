"""TAMA: cells tile every range; approximate matching errs only within a cell."""

from __future__ import annotations

from typing import Any

import numpy as np

from hitbox.encoding.arrays import Boxes, Points, Space
from hitbox.matchers import make
from support.matcher_data import ranges, rows


def test_tama_tiles_every_range_exactly() -> None:
    matcher: Any = make("tama", Space.of(1, 0, 31), levels=5)
    for low in range(32):
        for high in range(low, 32):
            cells, count = matcher.cells(Boxes.of([{0: (low, high)}]))
            assert count.tolist() == [len(cells)]
            assert len(cells) <= 2 * 5
            covered = []
            for cell in cells.tolist():
                layer = cell.bit_length() - 1
                width = 1 << (5 - layer)
                first = (cell - (1 << layer)) * width
                covered += range(first, first + width)
            assert sorted(covered) == list(range(low, high + 1))


def test_tama_approximate_errs_only_within_a_cell() -> None:
    rng = np.random.default_rng(6)
    space = Space.of(3, 0, 1000)
    boxes = ranges(rng, 3000, 3, 300)
    points = Points.of(rng.integers(0, 1001, (40, 3)))
    exact, rough, oracle = (
        make("tama", space, levels=5),
        make("tama", space, levels=5, exact=False),
        make("brute", space),
    )
    for one in (exact, rough, oracle):
        one.insert(np.arange(3000), boxes)
    want, more = rows(oracle, points), rows(rough, points)
    assert rows(exact, points) == want
    extra = 0
    for event, (few, many) in enumerate(zip(want, more, strict=True)):
        assert set(few) <= set(many)
        wrong = np.setdiff1d(many, few).astype(np.int64)
        extra += len(wrong)
        low, high = boxes.take(wrong).dense(3)
        key = points.low[event]
        beyond = np.maximum(low - key, key - high).max(axis=1)
        assert (beyond <= 1001 / 32 + 1).all()  # a cell's width
    assert extra > 0
