"""Match and send, in the three ways of the Pri-REIN paper."""

from __future__ import annotations

import numpy as np
import pytest

from hitbox.encoding.arrays import I64, Boxes, Points, Space
from hitbox.errors import MatcherError
from hitbox.matchers import make, sending
from hitbox.matchers.pri_rein import PriRein
from support.matcher_data import OnlyLevels


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
