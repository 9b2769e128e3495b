"""An engine that gains attributes: segments that were built before match points with more of them."""

from __future__ import annotations

import numpy as np
import pytest

from hitbox.encoding.arrays import HIGHEST, LOWEST, MISSING, Boxes, Points, Space
from hitbox.engine import Engine
from hitbox.errors import DamagedArray, MatcherError
from hitbox.matchers import make
from support.tiers import only


def some_boxes(rng: np.random.Generator, count: int, attributes: int) -> Boxes:
    boxes = []
    for _ in range(count):
        chosen = rng.choice(attributes, int(rng.integers(1, attributes + 1)), replace=False)
        low = rng.integers(0, 50, len(chosen))
        width = rng.integers(0, 2) * rng.integers(0, 30, len(chosen))
        ends = zip(low.tolist(), (low + width).tolist(), strict=True)
        boxes.append(dict(zip(chosen.tolist(), ends, strict=True)))
    return Boxes.of(boxes, rng.integers(0, 10, count).tolist())


def some_points(rng: np.random.Generator, count: int, attributes: int, intervals: bool) -> Points:
    low = rng.integers(0, 60, (count, attributes))
    low[rng.random(low.shape) < 0.1] = MISSING
    if not intervals:
        return Points.of(low)
    high = np.where(low == MISSING, MISSING, low + rng.integers(0, 5, low.shape))
    return Points(low, high)


@pytest.mark.parametrize("compact", only([False], [False, True]))
@pytest.mark.parametrize("kind", only(["auto"], ["auto", "bitmap", "dense", "postings"]))
def test_points_of_more_attributes(kind: str, compact: bool) -> None:
    if compact and kind == "dense":
        pytest.skip("a dense segment is never compact")
    rng = np.random.default_rng(7)
    engine = Engine(Space.of(2), kind=kind, compact=compact, tail=40, block=16)
    oracle = make("brute", Space.of(70))
    number = 0
    for attributes in (2, 3, 7, 66, 70):
        space = Space.of(attributes)
        same, commit = engine.widened(space, {})
        assert same is engine
        commit()
        for count in (300, 5, 100):
            numbers = np.arange(number, number + count)
            boxes = some_boxes(rng, count, attributes if attributes < 66 else 70 if attributes == 70 else 66)
            engine.insert(numbers, boxes)
            oracle.insert(numbers, boxes)
            number += count
        for intervals in (False, True):
            for count in (1, 20, 300):  # single events, and batches
                points = some_points(rng, count, attributes, intervals)
                more = np.full((count, 70 - attributes), MISSING)
                wide = Points.of(np.hstack([points.low, more]))
                if intervals:
                    wide = Points(wide.low, np.hstack([points.high, more]))
                found, wanted = engine.match(points), oracle.match(wide)
                assert [sorted(found[e]) for e in range(count)] == [sorted(wanted[e]) for e in range(count)]
        widths = {segment.attributes for segment in engine.content.sealed.segments}
        assert max(widths) == attributes
        assert attributes == 2 or len(widths) > 1
        again = Engine.from_arrays(space, engine.arrays(), kind=kind, tail=40)
        assert [sorted(again.match(points)[e]) for e in range(count)] == [sorted(wanted[e]) for e in range(count)]
        gone = rng.choice(engine.numbers(), 50, replace=False)
        engine.delete(gone)
        oracle.delete(gone)
    while (merge := engine.prepare()) is not None:
        merge()
    points = some_points(rng, 200, 70, False)
    found, wanted = engine.match(points), oracle.match(points)
    assert [sorted(found[e]) for e in range(200)] == [sorted(wanted[e]) for e in range(200)]
    numbers = engine.numbers()
    assert np.array_equal(engine.boxes(numbers).low, oracle.boxes(numbers).low)


def test_too_many_attributes() -> None:
    engine = Engine(Space.of(1000))
    with pytest.raises(MatcherError, match="1 to 1024"):
        engine.widened(Space.of(1025), {})
    assert engine.space.attributes == 1000


def test_a_segment_has_no_more_attributes_than_the_space() -> None:
    engine = Engine(Space.of(3), tail=2)
    engine.insert(np.arange(9), Boxes.of([{2: (n, HIGHEST), 0: (LOWEST, 3)} for n in range(9)]))
    with pytest.raises(DamagedArray, match="too many attributes"):
        Engine.from_arrays(Space.of(2), engine.arrays())
