"""Segments whose boxes are numbered in the engine's own order: they store one number per block."""

from __future__ import annotations

import numpy as np
import pytest

from hitbox.encoding.arrays import Boxes, Space
from hitbox.engine import Engine, _kernels
from hitbox.engine.engine import MIN_ARRANGED
from hitbox.errors import DamagedArray
from hitbox.matchers import make
from support.matcher_data import assert_equal
from support.random_boxes import random_boxes, random_points
from support.tiers import pairs

NONE = np.zeros(0, np.int64)


def arranged(engine: Engine, boxes: Boxes, first: int) -> Boxes:
    """Inserts boxes under numbers from `first` on; the boxes in the order of their numbers."""
    built = engine.arrange(boxes)
    assert built is not None
    assert sorted(built.order.tolist()) == list(range(len(boxes)))
    engine.change(NONE, np.arange(first, first + len(boxes)), boxes, built)()
    return boxes.take(built.order)


@pairs(
    block=[100, 512],
    kind_and_compact=[("auto", False), ("bitmap", False), ("bitmap", True), ("dense", False), ("postings", False)],
    simd=_kernels.simd_levels(),
)
def test_numbers_follow_the_order_of_the_segments(simd: str, kind_and_compact: tuple[str, bool], block: int) -> None:
    kind, compact = kind_and_compact
    rng = np.random.default_rng(block)
    boxes = random_boxes(rng, 3000, 4)
    boxes = Boxes(boxes.offsets, boxes.attribute, boxes.low, boxes.high, rng.integers(0, 10, 3000).astype(np.uint8))
    engine = Engine(Space.of(4), simd=simd, kind=kind, compact=compact, block=block, band=700)
    oracle = make("brute", Space.of(4))
    oracle.insert(np.arange(70, 3070), arranged(engine, boxes, 70))
    for segment in engine.content.sealed.segments:
        if segment.kind == "bitmap":
            assert segment.arrays["sizes"][6] == 0  # bytes per number
    points = random_points(rng, 200, 4)
    assert_equal(engine, oracle, points)
    for at in range(40):
        assert_equal(engine, oracle, points[at : at + 1])
        assert set(engine._match(points[at : at + 1], limit=5)[1]) <= set(oracle.match(points[at : at + 1]).numbers)

    gone = rng.permutation(np.arange(70, 3070))[:500]
    more = random_boxes(rng, 50, 4)
    for matcher in (engine, oracle):
        matcher.change(gone, np.arange(50), more)()
    again = Engine.from_arrays(engine.space, engine.arrays(), simd=simd)
    numbers = oracle.numbers()
    for matcher in (engine, again):
        assert matcher.numbers().tolist() == numbers.tolist()
        assert_equal(matcher, oracle, points)
        kept, held = oracle.boxes(numbers), matcher.boxes(numbers)
        for name in ("offsets", "attribute", "low", "high", "priority"):
            assert getattr(held, name).tolist() == getattr(kept, name).tolist()


def test_few_boxes_are_not_arranged() -> None:
    boxes = random_boxes(np.random.default_rng(1), MIN_ARRANGED - 1, 3)
    assert Engine(Space.of(3)).arrange(boxes) is None


def test_forged_numbers_of_blocks_are_found() -> None:
    engine = Engine(Space.of(3), kind="bitmap")
    arranged(engine, random_boxes(np.random.default_rng(2), 2000, 3), 0)
    arrays = engine.arrays()
    numbers = arrays["segment0.numbers"].copy()
    numbers[:4].view(np.uint32)[:] = 2**31
    with pytest.raises(DamagedArray, match="numbers"):
        Engine.from_arrays(engine.space, arrays | {"segment0.numbers": numbers})
