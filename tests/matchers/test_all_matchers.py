"""Every matcher in the registry equals the oracle, before and after inserts and deletes."""

from __future__ import annotations

import numpy as np
import pytest

from hitbox.encoding.arrays import Boxes, Points, Space
from hitbox.errors import MatcherError
from hitbox.matchers import Matcher, make, matchers
from support.matcher_data import assert_equal
from support.random_boxes import random_boxes, random_points

TESTED = [name for name in matchers() if name != "brute"] or ["brute"]


def points_for(matcher: Matcher, rng: np.random.Generator, attributes: int, count: int = 12) -> list[Points]:
    found = [random_points(rng, count, attributes)]
    if matcher.intervals:
        found.append(random_points(rng, count, attributes, intervals=True))
    return found


@pytest.mark.parametrize("name", TESTED)
@pytest.mark.parametrize("seed", range(12))
def test_equals_oracle_through_changes(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    attributes = int(rng.choice([1, 2, 3, 7, 20]))
    space = Space.of(attributes) if seed % 2 else Space.of(attributes, -20, 20)
    matcher, oracle = make(name, space), make("brute", space)
    both = (matcher, oracle)
    for points in points_for(matcher, rng, attributes):
        assert_equal(matcher, oracle, points)  # empty
    alive = np.arange(int(rng.choice([1, 30, 700])))
    boxes = random_boxes(rng, len(alive), attributes)
    for one in both:
        one.insert(alive, boxes)
    for _ in range(4):
        for points in points_for(matcher, rng, attributes):
            assert_equal(matcher, oracle, points)
        gone = rng.permutation(alive)[: rng.integers(0, len(alive) + 1)]
        alive = np.setdiff1d(alive, gone)
        free = np.setdiff1d(np.arange(len(alive) + 150), alive)
        new = rng.permutation(free)[: rng.integers(1, 150)]  # numbers come back into use
        boxes = random_boxes(rng, len(new), attributes)
        for one in both:
            one.delete(gone)
            one.insert(new, boxes)
        alive = np.union1d(alive, new)
        assert len(matcher) == len(oracle) == len(alive)
    for points in points_for(matcher, rng, attributes):
        assert_equal(matcher, oracle, points)
    for one in both:
        one.delete(alive)
    for points in points_for(matcher, rng, attributes):
        assert_equal(matcher, oracle, points)


@pytest.mark.parametrize("name", matchers())
def test_boxes_come_back_as_they_went_in(name: str) -> None:
    rng = np.random.default_rng(7)
    matcher = make(name, Space.of(5))
    boxes = random_boxes(rng, 50, 5)
    numbers = rng.permutation(80)[:50]
    matcher.insert(numbers, boxes)
    matcher.delete(numbers[:10])
    back = matcher.boxes(numbers[10:])
    want = boxes.take(np.arange(10, 50))
    for field in ("offsets", "attribute", "low", "high", "priority"):
        np.testing.assert_array_equal(getattr(back, field), getattr(want, field))
    assert matcher.nbytes() > 0


@pytest.mark.parametrize("name", matchers())
def test_no_constraints_and_no_points(name: str) -> None:
    matcher = make(name, Space.of(2))
    matcher.insert(np.array([3]), Boxes.of([{}]))
    assert matcher.match(Points.of(np.zeros((0, 2)))).offsets.tolist() == [0]
    assert matcher.match(Points.of([[1, 2]]))[0].tolist() == [3]


@pytest.mark.parametrize("name", matchers())
def test_intervals_where_not_taken_are_refused(name: str) -> None:
    matcher = make(name, Space.of(1))
    if not matcher.intervals:
        low = np.zeros((1, 1), np.int64)
        with pytest.raises(MatcherError, match="interval"):
            matcher.match(Points(low, low + 1))


def test_unknown_matcher_and_option() -> None:
    with pytest.raises(MatcherError, match="did you mean 'brute'"):
        make("brut", Space.of(1))
    with pytest.raises(MatcherError, match="no option 'buckets'"):
        make("brute", Space.of(1), buckets=3)
