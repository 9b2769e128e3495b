"""The time metrics of every matcher, and match and send in three ways (Pri-REIN)."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event

import numpy as np
import pytest

from hitbox.encoding.arrays import I64, Boxes, Points, Space
from hitbox.errors import MatcherError
from hitbox.matchers import Matcher, make, matchers, metrics, sending
from hitbox.matchers.pri_rein import PriRein
from randoms import random_boxes, random_points

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


def three_levels() -> PriRein:
    pri = PriRein(Space.of(1))
    pri.insert(np.arange(6), Boxes.of([{0: (0, 9)}] * 5 + [{0: (7, 9)}], [1, 8, 5, 8, 1, 9]))
    return pri


@pytest.mark.parametrize("way", sending.WAYS)
@pytest.mark.parametrize("name", ["pri-rein", "brute"])
def test_every_way_sends_the_same(way: sending.Way, name: str) -> None:
    matcher = make(name, Space.of(1))
    pri = three_levels()
    matcher.insert(np.arange(6), pri.boxes(np.arange(6)))
    sent: list[tuple[int, list[int]]] = []
    with sending.MatchAndSend(matcher, lambda level, to: sent.append((level, sorted(to.tolist()))), way=way) as broker:
        deliveries = broker.publish(Points.of([[3]]))
        assert broker.publish(Points.of([[50]])) == []
    assert sent == [(8, [1, 3]), (5, [2]), (1, [0, 4])]
    assert [one.priority for one in deliveries] == [8, 5, 1]
    assert all(one.determined <= one.sent for one in deliveries)


@pytest.mark.parametrize(("way", "found_when_sending"), [("serial", [3, 3, 3]), ("alternate", [1, 2, 3])])
def test_when_levels_are_found_and_sent(way: sending.Way, found_when_sending: list[int]) -> None:
    """Serial finds all before it sends; alternate sends each before it finds the next."""
    matcher = OnlyLevels(three_levels())
    seen: list[int] = []
    with sending.MatchAndSend(matcher, lambda level, to: seen.append(matcher.asked), way=way) as broker:  # type: ignore[arg-type]
        broker.publish(Points.of([[3]]))
    assert seen == found_when_sending


def test_concurrent_matches_on_while_it_sends() -> None:
    """The first send does not end before the matcher has found the second level: only overlap can satisfy that."""
    matcher = OnlyLevels(three_levels())
    overlapped = []

    def send(level: int, numbers: I64) -> None:
        overlapped.append(matcher.went_on.wait(timeout=30))

    with sending.MatchAndSend(matcher, send, way="concurrent") as broker:  # type: ignore[arg-type]
        deliveries = broker.publish(Points.of([[3]]))
    assert overlapped == [True, True, True]
    assert deliveries[1].determined <= deliveries[0].sent


@pytest.mark.parametrize("way", sending.WAYS)
def test_a_sender_that_fails(way: sending.Way) -> None:
    sent: list[int] = []

    def send(level: int, numbers: I64) -> None:
        if level == 5:
            raise OSError("connection lost")
        sent.append(level)

    with sending.MatchAndSend(three_levels(), send, way=way) as broker:
        with pytest.raises(OSError, match="connection lost"):
            broker.publish(Points.of([[3]]))
        assert sent == [8]
        with pytest.raises(OSError, match="connection lost"):
            broker.publish(Points.of([[3]]))
    assert sent == [8, 8]


def test_ways_that_do_not_exist_and_several_events() -> None:
    with pytest.raises(MatcherError, match="did you mean 'serial'"):
        sending.MatchAndSend(three_levels(), print, way="seriel")  # type: ignore[arg-type]
    with sending.MatchAndSend(three_levels(), print) as broker, pytest.raises(MatcherError, match="one event"):
        broker.publish(Points.of([[1], [2]]))
