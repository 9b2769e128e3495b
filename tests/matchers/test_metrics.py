"""When each match is known: the times of the Pri-REIN paper."""

from __future__ import annotations

import numpy as np
import pytest

from hitbox.encoding.arrays import Space
from hitbox.errors import MatcherError
from hitbox.matchers import make, matchers, metrics
from support.matcher_data import OnlyLevels
from support.random_boxes import random_boxes, random_points

STAMPED = ["simple", "counting", "index-count", "siena", "rein", "pri-rein", "pri-rein-s", "dexin"]


@pytest.mark.parametrize("name", matchers())
def test_times_of_every_matcher(name: str) -> None:
    rng = np.random.default_rng(2)
    matcher = make(name, Space.of(4, -20, 20))
    matcher.insert(np.arange(300), random_boxes(rng, 300, 4))
    points = random_points(rng, 8, 4)
    times = metrics.measure(matcher, points)
    for event, one in enumerate(times):
        assert sorted(one.numbers.tolist()) == sorted(matcher.match(points[event : event + 1])[0].tolist())
        assert len(one.determining) == len(one.numbers)
        assert (np.diff(one.determining) >= 0).all()
        if not len(one.numbers):
            assert one.preparing is one.ending is one.gap is one.interval is None
            continue
        assert one.preparing is not None
        assert one.preparing >= 0
        assert one.ending is not None
        assert one.ending >= 0
        assert one.preparing + (one.gap or 0) + one.ending == one.matching
        assert one.seen == ("each match" if name in STAMPED else one.seen)
    assert set(metrics.summary(times)) == set(metrics.METRICS)


def test_times_of_a_slower_machine() -> None:
    times = metrics.Times(np.array([4, 2], np.int32), np.array([10, 30]), 40, "each match")
    slower = times * 2.5
    assert slower.numbers is times.numbers
    assert [slower.preparing, slower.gap, slower.ending, slower.matching] == [25, 50, 25, 100]


def test_times_by_priority_and_from_outside() -> None:
    rng = np.random.default_rng(4)
    boxes = random_boxes(rng, 500, 3)
    pri, brute = make("pri-rein", Space.of(3, -20, 20)), make("brute", Space.of(3, -20, 20))
    points = random_points(rng, 3, 3)
    for one in (pri, brute):
        one.insert(np.arange(500), boxes)
    for times in metrics.measure(pri, points):
        assert (np.diff(boxes.priority[times.numbers].astype(int)) <= 0).all()  # the urgent are known before
    for times in metrics.measure(brute, points):
        assert times.seen == "whole event"
        assert (times.determining == times.matching).all()
    by_level = metrics.measure(OnlyLevels(pri), points)  # type: ignore[arg-type]
    assert {times.seen for times in by_level} == {"each level"}
    assert metrics.measure(pri, points[:0]) == []
    with pytest.raises(MatcherError, match="at least one event"):
        metrics.summary([])
