"""One matcher of a benchmark: built, checked, timed within a budget.

The clock is the CPU time of the process (all of its threads, so no work is hidden in one), or the wall clock if
several threads are used. A slow matcher gets fewer events or fewer repetitions, never a longer run: what was
really measured stands beside each figure.
"""

from __future__ import annotations

import gc
import inspect
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hitbox.encoding.arrays import Boxes, Hits, Points
from hitbox.matchers import Matcher, make
from hitbox.matchers.kernels import mark
from research.errors import BenchError

CHUNK = 1 << 16
WARM_UP_EVENTS = 3
"""Events that run before the first timed one, because the previous matcher has filled the caches with its own data.
They are the last of the timed events; there are none if so few are timed that they would run twice in a row."""
MIN_SECONDS = 0.02
"""Shorter measurements are repeated until they take this many seconds together."""


@dataclass
class Times:
    """Seconds per event (or per box): one number per repetition, with `events` of them per call."""

    events: int = 0
    repeats: list[float] = field(default_factory=list)

    def record(self) -> dict[str, Any] | None:
        if not self.repeats:
            return None
        micro = np.array(self.repeats) * 1e6
        return {
            "us": float(np.median(micro)),
            "spread_us": spread(micro),
            "events": self.events,
            "repeats": len(micro),
        }


def spread(repeats: NDArray[np.float64]) -> float | None:
    """How far repetitions lie apart."""
    return float(repeats.std()) if len(repeats) > 1 else None


@dataclass
class Lane:
    name: str
    matcher: Matcher
    threads: int = 1
    build: float = 0.0
    estimate: float = 0.0
    """Seconds per event, as last measured: used to stay within budgets."""
    singles: NDArray[np.float64] | None = None
    """(repetitions, events) seconds."""
    batches: dict[int, Times] = field(default_factory=dict)
    insert_one: list[float] = field(default_factory=list)
    delete_one: list[float] = field(default_factory=list)
    insert_bulk: Times = field(default_factory=Times)
    delete_bulk: Times = field(default_factory=Times)
    bytes_a_box: float = 0.0
    known: int = sys.maxsize
    """How many of the events the matcher can answer: the floor is given the answers to the first ones."""
    count_single: Times = field(default_factory=Times)
    count_batch: Times = field(default_factory=Times)

    def __post_init__(self) -> None:
        takes = inspect.signature(self.matcher.match).parameters
        self.options = {"threads": self.threads} if self.threads > 1 and "threads" in takes else {}

    @property
    def clock(self) -> Callable[[], float]:
        return time.process_time if self.threads == 1 else time.perf_counter

    def match(self, points: Points) -> Hits:
        return self.matcher.match(points, **self.options)

    def warm_up(self, points: Points) -> None:
        if len(points) > 2 * WARM_UP_EVENTS:
            for i in range(len(points) - WARM_UP_EVENTS, len(points)):
                self.match(points[i : i + 1])

    def time_single(self, points: Points) -> NDArray[np.float64]:
        """Seconds of each event, one call each, collecting the result included."""
        self.warm_up(points)
        clock, match = self.clock, self.match
        taken = np.zeros(len(points))
        for i in range(len(points)):
            event = points[i : i + 1]
            begin = clock()
            match(event)
            taken[i] = clock() - begin
        return taken

    @property
    def counts(self) -> bool:
        """Whether the matcher can count matches without writing them."""
        return hasattr(self.matcher, "count")

    def count(self, points: Points) -> NDArray[np.int64]:
        counted: NDArray[np.int64] = self.matcher.count(points, **self.options)  # type: ignore[attr-defined]
        return counted

    def time_batch(self, points: Points, size: int, counting: bool = False) -> float:
        """Seconds per event in calls of `size` events; as many calls as make a measurable time."""
        points, call = points[: self.known], self.count if counting else self.match
        calls = max(1, min(len(points) // size, int(MIN_SECONDS / max(size * self.estimate, 1e-9))))
        begin = self.clock()
        for i in range(calls):
            call(points[i * size : (i + 1) * size])
        return (self.clock() - begin) / (calls * size)

    def affordable(self, wanted: int, seconds: float, estimate: float | None = None) -> int:
        return max(1, min(wanted, int(seconds / max(self.estimate if estimate is None else estimate, 1e-9))))

    def time_one(self, fresh: Boxes, first: int, seconds: float) -> None:
        """One call per box, up to a hundred; all are removed afterwards."""
        clock, matcher = self.clock, self.matcher
        last = np.array([first + len(fresh) - 1], np.int64)
        matcher.insert(last, fresh.take(np.array([0])))  # arrays grow here, once, and not under the clock
        matcher.delete(last)
        numbers = np.arange(first, first + min(len(fresh), 100), dtype=np.int64)
        began = time.perf_counter()
        for i in range(len(numbers)):
            box = fresh.take(np.array([i]))
            begin = clock()
            matcher.insert(numbers[i : i + 1], box)
            self.insert_one.append(clock() - begin)
            if time.perf_counter() - began > seconds:
                break
        for i in range(len(self.insert_one)):
            begin = clock()
            matcher.delete(numbers[i : i + 1])
            self.delete_one.append(clock() - begin)

    def time_bulk(self, fresh: Boxes, first: int, seconds: float) -> None:
        """As many boxes in one call as the time of single ones allows; all are gone afterwards."""
        one = float(np.median(self.insert_one) + np.median(self.delete_one))
        count = self.affordable(len(fresh), seconds, one)
        numbers, boxes = np.arange(first, first + count, dtype=np.int64), fresh.take(np.arange(count))
        begin = self.clock()
        self.matcher.insert(numbers, boxes)
        middle = self.clock()
        self.matcher.delete(numbers)
        end = self.clock()
        for times, taken in ((self.insert_bulk, middle - begin), (self.delete_bulk, end - middle)):
            times.events = count
            times.repeats.append(taken / count)


class Yardstick:
    """Seconds of a fixed piece of work, half of it in the caches: how fast the machine is just now."""

    def __init__(self) -> None:
        self.quickest = float("inf")
        """The quickest that this process has measured."""

    @cached_property
    def work(self) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
        marks = np.zeros(1 << 14, np.uint64)
        return marks, np.random.default_rng(1).integers(0, 64 * len(marks), 1 << 18).astype(np.int32)

    def __call__(self) -> float:
        """The second run counts: the first fills the caches again."""
        mark(*self.work)
        begin = time.process_time()
        mark(*self.work)
        taken = time.process_time() - begin
        self.quickest = min(self.quickest, taken)
        return taken


yardstick = Yardstick()


def oracle(space: Any, parts: Iterator[Boxes], points: Points) -> list[NDArray[np.int64]]:
    """The numbers that each point must meet, by `brute` over one part of the boxes at a time."""
    found: list[list[NDArray[np.int64]]] = [[] for _ in range(len(points))]
    start = 0
    for part in parts:
        brute = make("brute", space)
        brute.insert(np.arange(len(part), dtype=np.int64), part)
        hits = brute.match(points)
        for i in range(len(points)):
            found[i].append(hits[i].astype(np.int64) + start)
        start += len(part)
    return [np.concatenate([*rows, np.zeros(0, np.int64)]) for rows in found]


def parts_of(boxes: Boxes) -> Iterator[Boxes]:
    for start in range(0, len(boxes), CHUNK):
        yield boxes.take(np.arange(start, min(start + CHUNK, len(boxes))))


def require_equal(
    name: str, hits: Hits, expected: list[NDArray[np.int64]], when: str, first: int = 0, exact: bool = True
) -> None:
    """Refuse a matcher that differs from the oracle, naming an event and what was lost or invented.

    One that is not `exact` may report more, but must lose nothing.
    """
    if len(hits) != len(expected):
        raise BenchError(f"matcher {name!r} is wrong {when}: {len(hits)} results for {len(expected)} events")
    for i, want in enumerate(expected):
        got = np.sort(hits[i])
        got = got if exact else got[np.isin(got, want)]
        if not np.array_equal(got, np.sort(want)):
            lost, extra = np.setdiff1d(want, got), np.setdiff1d(got, want)
            twice = len(got) - len(np.unique(got))
            raise BenchError(
                f"matcher {name!r} is wrong {when}: event {first + i} meets {len(want)} boxes, it found {len(got)} "
                f"(lost {len(lost)}: {lost[:3].tolist()}, invented {len(extra)}: {extra[:3].tolist()}, "
                f"twice {twice}); no result is kept"
            )


@contextmanager
def quiet_memory() -> Iterator[None]:
    """No garbage collection while the clock runs."""
    was = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
