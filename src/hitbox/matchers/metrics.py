"""When is each match known? The fine-grained times of the Pri-REIN paper, measured on any matcher.

    ts        tf      t2    t3          tl      te
    |---------|-------|-----|--- ... ---|-------|
    preparing |   intervals, gap        | ending       matching = te - ts

    determining  ti - ts of each match         preparing  tf - ts, before the first match is known
    gap          tl - tf                       ending     te - tl, after the last one is known
    interval     mean of t(i+1) - ti

`measure` works on any matcher. A TimedMatcher notes the moment of each match inside its kernel. Reading the clock would
be most of the time where many match, so its cost is measured and subtracted. A matcher with its own `match_levels` is
timed level by level. Of any other only the whole call is visible, so all its matches are determined at the end.
`Times.seen` says which of these applies.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import numpy as np

from hitbox.encoding.arrays import I32, I64, Points
from hitbox.errors import MatcherError
from hitbox.matchers.base import Matcher
from hitbox.matchers.box_store import TimedMatcher
from hitbox.matchers.kernels import stamp

Seen = Literal["each match", "each level", "whole event"]
METRICS = ("preparing", "ending", "matching", "gap", "interval")


@dataclass(frozen=True, slots=True)
class Times:
    """The times of one event in nanoseconds; those that need more matches than there were are None."""

    numbers: I32
    """The matches, in the order in which they were determined."""
    determining: I64
    matching: int
    seen: Seen

    def __mul__(self, factor: float) -> Times:
        """What it would have been on a machine that takes `factor` times as long."""
        determining = np.rint(self.determining * factor).astype(np.int64)
        return replace(self, determining=determining, matching=round(self.matching * factor))

    @property
    def preparing(self) -> int | None:
        return int(self.determining[0]) if len(self.determining) else None

    @property
    def ending(self) -> int | None:
        return self.matching - int(self.determining[-1]) if len(self.determining) else None

    @property
    def gap(self) -> int | None:
        return int(self.determining[-1] - self.determining[0]) if len(self.determining) else None

    @property
    def interval(self) -> float | None:
        return (self.gap or 0) / (len(self.determining) - 1) if len(self.determining) > 1 else None


def measure(matcher: Matcher, points: Points) -> list[Times]:
    """The times of each event, matched one by one (the first twice, so that nothing is compiled while timed)."""
    if not len(points):
        return []
    stamps = np.zeros(max(1, len(matcher)), np.int64)
    by_level = type(matcher).match_levels is not Matcher.match_levels
    measure_event = _timed if isinstance(matcher, TimedMatcher) else _levels if by_level else _whole
    measure_event(matcher, points[:1], stamps)
    return [measure_event(matcher, points[event : event + 1], stamps) for event in range(len(points))]


def summary(times: Sequence[Times]) -> dict[str, tuple[float, float]]:
    """Mean and standard deviation of each metric in milliseconds, over the events that have it."""
    if not times:
        raise MatcherError("no times to sum up: measure at least one event")
    summaries: dict[str, tuple[float, float]] = {}
    for metric in METRICS:
        values = [value for event in times if (value := getattr(event, metric)) is not None]
        if values:
            summaries[metric] = float(np.mean(values)) / 1e6, float(np.std(values)) / 1e6
    return summaries


@cache
def clock_cost() -> float:
    """Nanoseconds of one reading of the clock inside a kernel; the quickest of a few tries."""
    stamps = np.zeros(2_000, np.int64)
    tries = []
    for _ in range(20):
        stamp(stamps)
        tries.append((stamps[-1] - stamps[0]) / (len(stamps) - 1))
    return float(min(tries))


def _now() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)  # the clock that kernels read


def _timed(matcher: Any, point: Points, stamps: I64) -> Times:
    start = _now()
    numbers = matcher.match_timed(point, stamps).numbers
    end = _now()
    each = clock_cost() if matcher.clock_each_match else 0.0
    readings = (np.arange(len(numbers) + 1) * each).astype(np.int64)
    determining = np.maximum.accumulate(stamps[: len(numbers)] - start - readings[:-1])
    return Times(numbers, determining, end - start - int(readings[-1]), "each match")


def _levels(matcher: Any, point: Points, stamps: I64) -> Times:
    parts, moments = [np.zeros(0, np.int32)], []
    start = _now()
    for _, numbers in matcher.match_levels(point):
        moments.append(_now() - start)
        parts.append(numbers)
    end = _now()
    determining = np.repeat(np.array(moments, np.int64), [len(part) for part in parts[1:]])
    return Times(np.concatenate(parts), determining, end - start, "each level")


def _whole(matcher: Matcher, point: Points, stamps: I64) -> Times:
    start = _now()
    numbers = matcher.match(point).numbers
    end = _now()
    return Times(numbers, np.full(len(numbers), end - start), end - start, "whole event")
