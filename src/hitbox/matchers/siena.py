"""siena: a two-level forwarding table, by attribute and then by operator, with counting.

A. Carzaniga, A. Wolf: "Forwarding in a content-based network", SIGCOMM 2003, in the form in which the REIN paper
compares itself with it: a two-sided constraint is two simple ones, and every pair of attribute and operator has one
bucket of (value, subscription) pairs. Nothing is shared between subscriptions:

    a   =   [ . . ]
        >=  [ (3, s1) (3, s9) (5, s2) ... ]     by rising value: those that the event satisfies are a stretch,
        <=  [ (7, s2) (9, s1) ... ]             and each counts for its subscription
    counters  { s1: 1, s9: 2 ... }              a map, empty when an event comes
    target  s1 -> 2                             a counter that gets there is a match

Matching is linear in the constraints that hold, so the buckets are in order, and inserting pays for that order.
Counters of partly matched subscriptions are a map, as the algorithm is published; `counters="array"` keeps one per
subscription in an array (docs/matchers.md has the argument). Left out is the network side of the original (merging by
interface, early cut-off), which a single matcher does not have. Constraints are broken up as in counting.py, missing
values included.

Cost: match O(constraints that hold); insert O(k log n) for many at once, O(k n) for one; delete O(k n); memory 24 bytes
per two-sided constraint and 1 per box.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from hitbox.encoding.arrays import I32, I64, Boxes, Hits, Points, Space
from hitbox.matchers.base import check_choice
from hitbox.matchers.box_store import TimedMatcher
from hitbox.matchers.counting import (
    NO_COUNTERS,
    OPERATORS,
    Targets,
    constraints,
    counter_map,
    empty_map,
    report_bare,
    satisfied,
    tally,
    tally_in_map,
)
from hitbox.matchers.kernels import Lists, grown


class Siena(TimedMatcher):
    def __init__(self, space: Space, *, counters: str = "map"):
        check_choice("counters", counters, ("map", "array"))
        super().__init__(space)
        self.mapped = counters == "map"
        self.targets = Targets(space)
        self.buckets = Lists(OPERATORS * space.attributes, ordered=True)

    def insert(self, numbers: I64, boxes: Boxes) -> None:
        self.store.insert(numbers, boxes)
        kinds, values, owners = constraints(numbers, boxes)
        self.targets.insert(numbers, owners, self.store.capacity)
        self.buckets.insert(kinds, owners, values)

    def delete(self, numbers: I64) -> None:
        kinds, _, owners = constraints(numbers, self.store.boxes(numbers))
        self.buckets.purge(kinds, owners)
        self.targets.delete(numbers)
        self.store.delete(numbers)

    def match_timed(self, points: Points, stamps: I64) -> Hits:
        self.require_points(points)
        rows = (points.low, len(self), self.buckets.arrays, self.targets.target, self.targets.bare_numbers)
        counters = counter_map(len(self)) if self.mapped else NO_COUNTERS
        return Hits(*count(*rows, counters, stamps))

    def nbytes(self) -> int:
        return self.buckets.nbytes() + self.targets.nbytes()


@njit(cache=True, nogil=True)
def holding(kind: int, key: int, start: I64, size: I64, values: I64) -> tuple[int, int]:
    """The stretch of a bucket whose constraints `key` satisfies."""
    first, last = satisfied(kind % OPERATORS, key)
    bucket = values[start[kind] : start[kind] + size[kind]]
    begin = np.searchsorted(bucket, first, side="left")
    end = np.searchsorted(bucket, last, side="right")
    return start[kind] + begin, start[kind] + end


@njit(cache=True, nogil=True)
def count(lows: I64, most: int, buckets: Any, target: Any, bare: I32, counters: I32, stamps: I64) -> tuple[I64, I32]:
    """Counts in a map, or (where `counters` is empty) in an array that starts with the targets."""
    start, size, numbers, values = buckets
    offsets = np.zeros(len(lows) + 1, np.int64)
    matched = np.empty(64, np.int32)
    missing = target[:0]
    used, shift, mapped = 0, 0, len(counters) > 0
    for event in range(len(lows)):
        if mapped:
            shift = empty_map(counters)
        else:
            missing = target.copy()
        matched = grown(matched, used + most)
        used = report_bare(bare, matched, used, stamps)
        for kind in range(len(start)):
            begin, end = holding(kind, lows[event, kind // OPERATORS], start, size, values)
            if mapped:
                used = tally_in_map(numbers, begin, end, counters, shift, target, matched, used, stamps)
            else:
                used = tally(numbers, begin, end, missing, matched, used, stamps)
        offsets[event + 1] = used
    return offsets, matched[:used].copy()
