"""Boxes and points of the papers, and comparisons of a matcher with the oracle."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event
from typing import Any

import numpy as np

from hitbox.encoding.arrays import I64, Boxes, Points, Space
from hitbox.matchers import Matcher, make
from hitbox.matchers.pri_rein import PriRein

# REIN's Table I: [low, high] on a1 and on a2 of s0 to s9, over the domain [0, 10].
TABLE_I = [
    ((0, 1), (7, 9)), ((2, 6), (4, 6)), ((3, 5), (8, 10)), ((1, 3), (3, 5)), ((4, 8), (1, 2)),
    ((6, 9), (4, 8)), ((5, 7), (6, 7)), ((8, 9), (3, 5)), ((7, 9), (2, 3)), ((9, 10), (0, 1)),
]  # fmt: skip


EVENT = Points.of([[3, 5]])


def table_i(name: str, priority: list[int] | None = None, **options: object) -> Matcher:
    matcher = make(name, Space.of(2, 0, 10), **options)
    matcher.insert(np.arange(10), Boxes.of([{0: a1, 1: a2} for a1, a2 in TABLE_I], priority))
    return matcher


def uniform(
    rng: np.random.Generator, count: int, attributes: int, constraints: int, width: float, domain: int = 1_000_000
) -> Boxes:
    """The subscriptions of the REIN and Pri-REIN papers: `constraints` random attributes, ranges of one width."""
    chosen = np.argsort(rng.random((count, attributes)), axis=1)[:, :constraints]
    low = rng.integers(0, int(domain * (1 - width)) + 1, count * constraints)
    return Boxes(
        np.arange(count + 1) * constraints,
        np.sort(chosen, axis=1).astype(np.int32).ravel(),
        low,
        low + int(domain * width),
        rng.integers(0, 10, count).astype(np.uint8),
    )


def varied(rng: np.random.Generator, count: int, attributes: int, domain: int = 10_000) -> Boxes:
    """DEXIN's subscriptions: every attribute constrained, a tenth by equality, widths 0.2 to 0.8."""
    width = rng.integers(domain // 5, domain * 4 // 5, (count, attributes))
    width[rng.random(width.shape) < 0.1] = 0
    low = (rng.random(width.shape) * (domain - width)).astype(np.int64)
    return Boxes.of_dense(low, low + width)


def rows(matcher: Matcher, points: Points) -> list[list[int]]:
    hits = matcher.match(points)
    return [sorted(hits[event].tolist()) for event in range(len(points))]


def ranges(rng: np.random.Generator, count: int, attributes: int, width: int, size: int = 1000) -> Boxes:
    low = rng.integers(0, size - width + 1, (count, attributes))
    return Boxes.of_dense(low, low + width)


def two_sided(rng: np.random.Generator, count: int, attributes: int, size: int = 1000) -> tuple[Any, Any]:
    low = rng.integers(0, size, (count, attributes))
    wide = rng.integers(0, size // 2, (count, attributes)) * rng.integers(0, 2, (count, attributes))
    return low, np.minimum(low + wide, size)


def assert_equal(matcher: Matcher, oracle: Matcher, points: Points) -> None:
    got, want = matcher.match(points), oracle.match(points)
    assert len(got) == len(want) == len(points)
    for event in range(len(points)):
        numbers = got[event].tolist()
        assert len(numbers) == len(set(numbers)), f"event {event}: a number came twice"
        assert sorted(numbers) == sorted(want[event].tolist()), f"event {event}: {points.low[event].tolist()}"
        if matcher.ordered and numbers:
            priority = matcher.boxes(np.array(numbers)).priority.astype(int)
            assert (np.diff(priority) <= 0).all(), "not most urgent first"


class OnlyLevels:
    """A matcher of which only `match_levels` is to be seen; `asked` counts the levels that were found."""

    def __init__(self, inner: Matcher) -> None:
        assert isinstance(inner, PriRein)
        self.inner, self.asked, self.went_on = inner, 0, Event()

    def match_levels(self, points: Points) -> Iterator[tuple[int, I64]]:
        for unit in self.inner.match_levels(points):
            self.asked += 1
            if self.asked > 1:
                self.went_on.set()
            yield unit

    def __len__(self) -> int:
        return len(self.inner)
