"""Multilevel grid file: regions, pages, cuts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hitbox.encoding.arrays import Boxes, Points, Space
from hitbox.matchers import make
from hitbox.matchers.mlgf import next_half
from support.matcher_data import rows, two_sided


def mlgf_pages(matcher: Any) -> list[tuple[list[int], Any, Any]]:
    """Numbers, lower and upper corner of every data page, checking the directory on the way."""
    from hitbox.matchers import mlgf as g
    from hitbox.matchers.pages import chain

    cells, regions = matcher.cells, matcher.regions
    found = []

    def walk(region: int, low: Any, high: Any) -> None:
        level, body, count, room = regions[region, [g.LEVEL, g.BODY, g.COUNT, g.ROOM]].tolist()
        assert count <= room
        if level == 0:
            numbers = chain(matcher.pages, body)
            assert len(numbers) == count
            found.append((numbers, low, high))
            return
        assert room == matcher.fanout
        todo, outer = [(body, 0, low, high)], 0
        while todo:
            cell, up, low, high = todo.pop()
            dimension, cut, left, right = cells[cell, [g.DIMENSION, g.CUT, g.LEFT, g.RIGHT]].tolist()
            assert cells[cell, g.UP] == up
            if dimension < 0:
                outer += 1
                assert regions[left, [g.LEVEL, g.CELL, g.DIR]].tolist() == [level - 1, cell, region]
                walk(left, low, high)
                continue
            assert low[dimension] < cut <= high[dimension], (
                "a cut lies within its region: halves are disjoint and cover"
            )
            middle_high, middle_low = high.copy(), low.copy()
            middle_high[dimension], middle_low[dimension] = cut - 1, cut
            todo += [(left, cell, low, middle_high), (right, cell, middle_low, high)]
        assert outer == count

    dimensions = matcher.images.shape[1]
    walk(matcher.root, np.zeros(dimensions, int), np.full(dimensions, 2**16 - 1))
    return found


def check_mlgf(matcher: Any) -> int:
    pages, seen = mlgf_pages(matcher), []
    for numbers, low, high in pages:
        images = matcher.images[numbers]
        assert ((images >= low) & (images <= high)).all()
        assert len(numbers) <= matcher.capacity or len(np.unique(images, axis=0)) == 1
        seen += numbers
    assert sorted(seen) == matcher.store.living().tolist()
    return len(pages)


@pytest.mark.parametrize("skewed", [False, True])
def test_mlgf_regions_are_disjoint_cover_all_and_hold_their_capacity(skewed: bool) -> None:
    rng = np.random.default_rng(15)
    matcher: Any = make("mlgf", Space.of(3, 0, 10_000), capacity=6, fanout=4)
    low, high = two_sided(rng, 3000, 3, size=100 if skewed else 10_000)
    if skewed:
        low, high = low**2 // 100, high**2 // 100
    boxes = Boxes.of_dense(low, high)
    matcher.insert(np.arange(2000), boxes.take(np.arange(2000)))
    check_mlgf(matcher)
    alive = np.arange(2000)
    for _ in range(6):
        gone = rng.permutation(alive)[: rng.integers(0, 1000)]
        alive = np.setdiff1d(alive, gone)
        new = rng.permutation(np.setdiff1d(np.arange(3000), alive))[:400]
        alive = np.union1d(alive, new)
        matcher.delete(gone)
        matcher.insert(new, boxes.take(new))
        check_mlgf(matcher)
    full = check_mlgf(matcher)
    matcher.delete(rng.permutation(alive)[: len(alive) - 50])
    assert check_mlgf(matcher) < full / 8, "regions merge as they empty"


def test_mlgf_lets_a_page_of_equal_boxes_grow() -> None:
    matcher: Any = make("mlgf", Space.of(2, 0, 10), capacity=4)
    matcher.insert(np.arange(500), Boxes.of([{0: (1, 2), 1: (3, 3)}] * 500))
    assert check_mlgf(matcher) <= 2
    matcher.insert(np.array([500]), Boxes.of([{0: (9, 9)}]))
    assert rows(matcher, Points.of([[9, 3], [2, 3]])) == [[500], list(range(500))]
    matcher.delete(np.arange(500))
    assert check_mlgf(matcher) <= 2


def test_published_cuts_halve_a_region_and_the_dimensions_take_turns() -> None:
    images = np.array([[0, 10, 7], [40_000, 60_000, 7], [65_535, 20_000, 7]], np.uint16)
    numbers = np.arange(3, dtype=np.int32)

    def cut(last: int, floor: int = 0, top: int = 2**16) -> tuple[int, int]:
        return next_half(numbers, images, np.full(3, floor), np.full(3, top), last)  # type: ignore[no-any-return]

    assert cut(-1) == (0, 2**15)
    assert cut(0) == (1, 2**15)
    assert cut(1) == (0, 2**15)  # all are alike on the last one: it is passed over
    assert cut(0, top=2**17) == (1, 2**15)  # no upper half has boxes, until its turn comes again
    images[:] = 7
    assert cut(-1) == (-1, 0)


@pytest.mark.parametrize("capacity", [3, 20])
def test_regions_that_are_halved_in_turn_are_disjoint_and_cover_all(capacity: int) -> None:
    rng = np.random.default_rng(2)
    low, high = two_sided(rng, 1_500, 2)
    matcher: Any = make("mlgf", Space.of(2, 0, 1000), capacity=capacity, fanout=4, cut="cyclic")
    matcher.insert(np.arange(1_500), Boxes.of_dense(low, high))
    assert check_mlgf(matcher) > 1_500 / capacity
    matcher.delete(np.arange(0, 1_500, 2))
    check_mlgf(matcher)
