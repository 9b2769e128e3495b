"""Match and send, in the three running ways of the Pri-REIN paper (figure 2).

    serial       match match match | send send send       shortest determining, longest processing time
    alternate    match send match send match send          each level leaves at once, but holds up the next
    concurrent   match match match                         each level leaves at once and holds up nothing
                       send  send  send

A unit is one priority level of one event, the most urgent first: a matcher with a `match_levels` of its own finds it
only when asked, any other finds all at once and the levels are separated afterwards. `publish` returns when all has
been sent, whatever the way, so the ways differ in time only. A sender that fails stops what is not yet sent, and its
error comes out of `publish`; nothing is sent after that.

The concurrent way sends in one thread, in order; it overlaps because kernels run without the interpreter's lock and
senders wait for the network.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from threading import Event
from types import TracebackType
from typing import Literal

from hitbox.encoding.arrays import I32, Points
from hitbox.errors import MatcherError, nearest
from hitbox.matchers.base import Matcher

Sender = Callable[[int, I32], object]
"""Called with a priority and the numbers to send to."""

Way = Literal["serial", "alternate", "concurrent"]
WAYS = ("serial", "alternate", "concurrent")


@dataclass(frozen=True, slots=True)
class Delivery:
    """One level: when it was determined and when it had been sent, in nanoseconds since the event came in."""

    priority: int
    numbers: I32
    determined: int
    sent: int


class MatchAndSend:
    """Matches events and hands the matches to `send`, level by level.

    >>> import numpy as np
    >>> from hitbox.encoding.arrays import Boxes, Points, Space
    >>> from hitbox.matchers import make
    >>> matcher = make("brute", Space.of(1))
    >>> matcher.insert(np.array([0, 1]), Boxes.of([{0: (1, 5)}, {0: (3, 9)}], priority=[2, 7]))
    >>> with MatchAndSend(matcher, lambda priority, numbers: print(priority, numbers), way="serial") as broker:
    ...     deliveries = broker.publish(Points.of([[4]]))
    7 [1]
    2 [0]
    """

    def __init__(self, matcher: Matcher, send: Sender, *, way: Way = "concurrent"):
        if way not in WAYS:
            raise MatcherError(f"no way {way!r} to match and send{nearest(way, WAYS)} (have: {', '.join(WAYS)})")
        self.matcher, self.send, self.way = matcher, send, way
        self.pool = ThreadPoolExecutor(1, "hitbox-send") if way == "concurrent" else None

    def publish(self, points: Points) -> list[Delivery]:
        """Match one event and send it to all that want it."""
        if len(points) != 1:
            raise MatcherError(f"publish takes one event at a time, got {len(points)}")
        start = time.perf_counter_ns()

        def deliver(priority: int, numbers: I32, determined: int) -> Delivery:
            self.send(priority, numbers)
            return Delivery(priority, numbers, determined, time.perf_counter_ns() - start)

        units = self.matcher.match_levels(points)
        levels = ((level, numbers, time.perf_counter_ns() - start) for level, numbers in units)
        if self.pool is not None:
            return _overlapped(self.pool, deliver, levels)
        return [deliver(*unit) for unit in (list(levels) if self.way == "serial" else levels)]

    def close(self) -> None:
        if self.pool is not None:
            self.pool.shutdown()

    def __enter__(self) -> MatchAndSend:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _overlapped(
    pool: ThreadPoolExecutor, deliver: Callable[[int, I32, int], Delivery], found: Iterable[tuple[int, I32, int]]
) -> list[Delivery]:
    stop = Event()

    def unless_stopped(priority: int, numbers: I32, determined: int) -> Delivery:
        if stop.is_set():
            raise CancelledError
        try:
            return deliver(priority, numbers, determined)
        except BaseException:
            stop.set()  # before the thread takes up the next level
            raise

    sent: list[Future[Delivery]] = []
    try:
        sent.extend(pool.submit(unless_stopped, *unit) for unit in found)
        return [delivery.result() for delivery in sent]
    except BaseException:
        stop.set()
        wait(sent)
        raise
