"""Dense segments: when they are chosen, several tiles, numbers without memory, changes, snapshots and forged arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hitbox import Index
from hitbox.encoding.arrays import HIGHEST, LOWEST, MISSING, Boxes, Points, Space
from hitbox.engine import Engine, _kernels
from hitbox.errors import DamagedArray
from hitbox.matchers import make
from support.matcher_data import assert_equal, uniform
from support.random_boxes import random_boxes, random_points

SIMD = _kernels.simd_levels()
ENOUGH = 1 << 14
"""Boxes from which a dense segment may be chosen."""
TILE = 65_024


def kinds(engine: Engine) -> list[str]:
    return [segment["kind"] for segment in engine.describe()["segments"]]


def kind_of(boxes: Boxes, attributes: int, **options: Any) -> str:
    engine = Engine(Space.of(attributes), **options)
    engine.insert(np.arange(len(boxes)), boxes)
    (found,) = kinds(engine)
    return found


def as_floats(boxes: Boxes) -> Boxes:
    """The same boxes with the keys of floats from 0 to 1, which are denser near 0."""
    low, high = ((ends / 1e6).view(np.int64) for ends in (boxes.low, boxes.high))
    return Boxes(boxes.offsets, boxes.attribute, low, high, boxes.priority)


@pytest.mark.parametrize(("width", "kind"), [(0.1, "bitmap"), (0.5, "bitmap"), (0.8, "dense"), (0.95, "dense")])
def test_the_share_that_matches_decides(width: float, kind: str) -> None:
    boxes = uniform(np.random.default_rng(1), ENOUGH, 20, 10, width)
    assert kind_of(boxes, 20) == kind
    assert kind_of(as_floats(boxes), 20) == kind
    assert kind_of(boxes, 20, kind="bitmap") == "bitmap"


@pytest.mark.parametrize("simd", SIMD)
def test_an_event_without_a_match_needs_no_memory_for_results(simd: str) -> None:
    index = Index({"a": "int"}, kind="dense", tail=1, simd=simd)
    index.subscribe(1, "a > 3")
    assert index.match({}) == index.match({"a": 3}) == index.match({"a": 3}, limit=1) == []
    assert index.match({"a": 4}) == [1]


def test_small_segments_are_not_dense() -> None:
    boxes = uniform(np.random.default_rng(2), ENOUGH, 20, 10, 0.9)
    assert kind_of(boxes.take(np.arange(ENOUGH - 1)), 20) == "bitmap"
    assert kind_of(boxes, 20) == "dense"
    assert kind_of(boxes, 65) == "bitmap"  # too few for the tables of so many attributes


@pytest.mark.parametrize(("low", "high"), [(5, 7), (MISSING, MISSING), (LOWEST, HIGHEST)])
def test_boxes_that_are_all_the_same_all_match(low: int, high: int) -> None:
    same = np.full((ENOUGH, 3), low)
    assert kind_of(Boxes.of_dense(same, np.full_like(same, high)), 3) == "dense"


def test_open_ends_count_as_far_as_other_boxes_look() -> None:
    low = np.random.default_rng(3).integers(0, 1000, (ENOUGH, 10))
    assert kind_of(Boxes.of_dense(low[:, :1], np.full_like(low[:, :1], HIGHEST)), 1) == "dense"
    assert kind_of(Boxes.of_dense(low, np.full_like(low, HIGHEST)), 10) == "bitmap"


def levelled(rng: np.random.Generator, count: int, width: float) -> Boxes:
    boxes = uniform(rng, count, 6, 4, width, domain=1000)
    some = rng.random(len(boxes.low)) < 0.05
    return Boxes(
        boxes.offsets,
        boxes.attribute,
        np.where(some, MISSING, boxes.low),
        np.where(rng.random(len(some)) < 0.05, HIGHEST, boxes.high),
        boxes.priority,
    )


@pytest.mark.parametrize("simd", SIMD)
def test_several_tiles(simd: str) -> None:
    """Points, intervals, batches, threads, levels, limits, counts and deletions over the end of a tile."""
    rng = np.random.default_rng(4)
    count = TILE + 3000
    boxes = levelled(rng, count, 0.7)
    engine, oracle = Engine(Space.of(6), simd=simd), make("brute", Space.of(6))
    for one in (engine, oracle):
        one.insert(np.arange(count), boxes)
    assert kinds(engine) == ["dense"]
    keys = rng.integers(-10, 1010, (130, 6))
    keys[rng.random(keys.shape) < 0.1] = MISSING
    wide = keys + np.where(keys == MISSING, 0, rng.integers(0, 300, keys.shape))
    gone = rng.permutation(count)[: count // 10]
    for points in (Points.of(keys), Points(keys, wide)):
        want = oracle.match(points[:6])
        for i in range(6):
            found = engine.match(points[i : i + 1]).numbers
            assert sorted(found.tolist()) == sorted(want[i].tolist())
            priority = boxes.priority[found].astype(int)
            assert (np.diff(priority) <= 0).all()
            assert [level for level, _ in engine.match_levels(points[i : i + 1])] == sorted(set(priority))[::-1]
            top = engine._match(points[i : i + 1], limit=40)[1]
            assert set(top.tolist()) <= set(found.tolist())
            assert boxes.priority[top].tolist() == priority[:40].tolist()
        for threads in (1, 2):
            hits = engine.match(points, threads=threads)
            np.testing.assert_array_equal(engine.count(points, threads=threads), np.diff(hits.offsets))
            np.testing.assert_array_equal(np.sort(hits[5]), np.sort(want[5]))
    for one in (engine, oracle):
        one.delete(gone)
    assert_equal(engine, oracle, Points.of(keys[:3]))


def test_numbers_in_order_take_no_memory() -> None:
    rng = np.random.default_rng(5)
    boxes = uniform(rng, 600, 3, 2, 0.8)
    for numbers, levels, size in [
        (np.arange(600), 1, 0),
        (np.arange(70_000, 70_600), 1, 0),
        (np.arange(70_000, 70_600), 10, 3),
        (rng.permutation(600), 1, 2),
    ]:
        boxes.priority[:] = np.arange(600) % levels
        engine, oracle = Engine(Space.of(3), kind="dense"), make("brute", Space.of(3))
        for one in (engine, oracle):
            one.insert(numbers, boxes)
        (segment,) = engine.content.sealed.segments
        assert len(segment.arrays["numbers"]) == 600 * size + 64
        assert_equal(engine, oracle, Points.of(rng.integers(0, 10**6, (20, 3))))
        np.testing.assert_array_equal(engine.numbers(), np.sort(numbers))


def test_merges_choose_again() -> None:
    """What is sealed from the tail is small; merged it becomes dense, and what deletions leave becomes small again."""
    rng = np.random.default_rng(6)
    boxes = uniform(rng, 2 * ENOUGH, 6, 4, 0.9)
    engine = Engine(Space.of(6))
    for part in np.split(np.arange(2 * ENOUGH), 8):
        engine.insert(part, boxes.take(part))
        if commit := engine.prepare():
            commit()
    assert "dense" in kinds(engine)
    engine.delete(np.arange(1000, 2 * ENOUGH))
    while commit := engine.prepare():
        commit()
    assert set(kinds(engine)) == {"bitmap"}
    oracle = make("brute", Space.of(6))
    oracle.insert(np.arange(1000), boxes.take(np.arange(1000)))
    assert_equal(engine, oracle, Points.of(rng.integers(0, 10**6, (10, 6))))


def saved(attributes: int, count: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(attributes)
    engine = Engine(Space.of(attributes), kind="dense", tail=1, lines=4)
    engine.insert(rng.permutation(2 * count)[:count], random_boxes(rng, count, attributes))
    return {name: array.copy() for name, array in engine.arrays().items()}


FORGED: list[tuple[str, int, int]] = [
    ("sizes", 0, 0),
    ("sizes", 0, 2**31),
    ("sizes", 1, 0),
    ("sizes", 1, 7),
    ("sizes", 1, 1024),
    ("sizes", 2, 2**31),
    ("sizes", 3, 10),
    ("sizes", 4, 0),
    ("sizes", 5, 2),
    ("sizes", 6, 1),
    ("sizes", 7, 5),
    ("level_ends", 3, 10**6),
    ("level_ends", -1, 4),
    ("starts", 5, 2**62),
    ("shift", 3, 65),
    ("line_at", 70, 2**31),
    ("list_at", 1, 90),
    ("list_begin", 0, 2),
    ("list_begin", 1, 2**31),
    ("list_begin", -1, 7),
    ("part_starts", 0, 1),
    ("part_starts", 1000, 60_000),
    ("part_starts", 1024, 60_000),
    ("part_starts", -1, 0),
    ("alive", -1, 2**63),
    ("numbers", 1, 255),
    ("rows", 0, 255),
]


@pytest.mark.parametrize(("name", "at", "value"), FORGED)
def test_forged_arrays_are_refused(name: str, at: int, value: int) -> None:
    arrays = saved(4, 700)
    Engine.from_arrays(Space.of(4), arrays)
    arrays[f"segment0.{name}"][at] = value
    with pytest.raises(DamagedArray):
        Engine.from_arrays(Space.of(4), arrays)


@pytest.mark.parametrize("attributes", [4, 70])
def test_forged_arrays_that_are_only_compared_do_no_harm(attributes: int) -> None:
    arrays = saved(attributes, 700)
    rng = np.random.default_rng(8)
    points = random_points(rng, 20, attributes)
    want = Engine.from_arrays(Space.of(attributes), arrays).match(points)
    again = Engine.from_arrays(Space.of(attributes), arrays)
    np.testing.assert_array_equal(again.match(points).numbers, want.numbers)
    for name in ("entries", "lines", "edges"):
        array = arrays[f"segment0.{name}"]
        array[:] = rng.integers(0, np.iinfo(array.dtype).max, len(array), array.dtype, endpoint=True)
    for simd in SIMD:
        engine = Engine.from_arrays(Space.of(attributes), arrays, simd=simd)
        assert set(engine.match(points).numbers.tolist()) <= set(engine.numbers().tolist())
        engine.match(points[:1])
