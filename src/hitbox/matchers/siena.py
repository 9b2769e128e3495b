"""siena: a two-level forwarding table, by attribute and then by operator, with counting.

A. Carzaniga, A. Wolf: "Forwarding in a content-based network", SIGCOMM 2003, in the form in which the REIN paper
compares itself with it: a two-sided constraint is two simple ones, and every pair of attribute and operator has one
bucket of (value, subscription) pairs. Nothing is shared between subscriptions:

    a   =   [ . . ]
        >=  [ (3, s1) (3, s9) (5, s2) ... ]     by rising value: those that the event satisfies are a stretch,
        <=  [ (7, s2) (9, s1) ... ]             and each counts for its subscription
    counters  { s1: 1, s9: 2 ... }              a map, empty when an event comes
    target  s1 -> 2                             a counter that gets there is a match

That paper says three things of it: inserting is the cheapest of all (pairs are appended), matching is linear in the
constraints that hold (so the buckets are in order), and a change means building the table again. All three hold here:
the first match after a change puts the buckets in order. Counters of partly matched subscriptions are a map, as in the
published source of the original, where counters kept in place are an option of its build; the half microsecond per pair
that the paper's times come to says the same (`index-count` keeps them in an array, and is several times faster). Left
out is the network side of the original (merging by interface, early cut-off), which a single matcher does not have.
Constraints are broken up as in counting.py, missing values included.

Cost: match O(constraints that hold), after a change O(all of them, sorted); insert O(k); delete O(k n), for the buckets
are searched; memory 24 bytes per two-sided constraint and 1 per box.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numba import njit

from hitbox.encoding.arrays import I32, I64, Boxes, Hits, Points, Space
from hitbox.matchers.box_store import TimedMatcher
from hitbox.matchers.counting import OPERATORS, Targets, constraints, report_bare, satisfied
from hitbox.matchers.kernels import Lists, grown, now


class Siena(TimedMatcher):
    def __init__(self, space: Space):
        super().__init__(space)
        self.targets = Targets(space)
        self.buckets = Lists(OPERATORS * space.attributes)
        self.in_order = True
        self.lock = threading.Lock()

    def insert(self, numbers: I64, boxes: Boxes) -> None:
        self.store.insert(numbers, boxes)
        kinds, values, owners = constraints(numbers, boxes)
        self.targets.insert(numbers, owners, self.store.capacity)
        self.buckets.insert(kinds, owners, values)
        self.in_order = False

    def delete(self, numbers: I64) -> None:
        kinds, _, owners = constraints(numbers, self.store.boxes(numbers))
        self.buckets.purge(kinds, owners)
        self.targets.delete(numbers)
        self.store.delete(numbers)
        self.in_order = False

    def _arrange(self) -> None:
        """Build the table again: every bucket by rising value."""
        with self.lock:  # events may be matched in several threads
            if self.in_order:
                return
            start, size, numbers, values = self.buckets.arrays
            for begin, end in zip(start.tolist(), (start + size).tolist(), strict=True):
                order = np.argsort(values[begin:end])
                numbers[begin:end], values[begin:end] = numbers[begin:end][order], values[begin:end][order]
            self.in_order = True

    def match_timed(self, points: Points, stamps: I64) -> Hits:
        self.require_points(points)
        self._arrange()
        room = 1 << max(1, (3 * len(self) // 2 - 1).bit_length())
        counters = np.empty((room, 2), np.int32)  # NumPy uses huge pages for large arrays: access is random
        goal = (self.targets.target, self.targets.bare_numbers)
        return Hits(*count_pairs(points.low, len(self), self.buckets.arrays, counters, *goal, stamps))

    def nbytes(self) -> int:
        return self.buckets.nbytes() + self.targets.nbytes()


@njit(cache=True, nogil=True)
def count_up(counters: I32, shift: int, number: int) -> int:
    """Add one to the counter of `number` in a hash map of (number, count) with linear probing; the new count."""
    place = ((number * 0x9E3779B1) & 0xFFFFFFFF) >> shift  # Fibonacci hashing: the upper bits of a product
    while counters[place, 0] != number and counters[place, 1]:
        place = (place + 1) & (len(counters) - 1)
    counters[place, 0] = number
    counters[place, 1] += 1
    return int(counters[place, 1])


@njit(cache=True, nogil=True)
def count_pairs(
    lows: I64, count: int, buckets: Any, counters: I32, target: Any, bare: I32, stamps: I64
) -> tuple[I64, I32]:
    start, size, numbers, values = buckets
    offsets = np.zeros(len(lows) + 1, np.int64)
    found = np.empty(64, np.int32)
    used, shift = 0, 32
    while 1 << (32 - shift) < len(counters):
        shift -= 1
    for event in range(len(lows)):
        counters[:] = 0
        found = grown(found, used + count)
        used = report_bare(bare, found, used, stamps)
        for kind in range(len(start)):
            first, last = satisfied(kind % OPERATORS, lows[event, kind // OPERATORS])
            bucket = values[start[kind] : start[kind] + size[kind]]
            begin = start[kind] + np.searchsorted(bucket, first, side="left")
            end = start[kind] + np.searchsorted(bucket, last, side="right")
            for i in range(begin, end):
                number = numbers[i]
                if count_up(counters, shift, number) < target[number]:
                    continue
                found[used] = number
                if len(stamps):
                    stamps[used] = now()
                used += 1
        offsets[event + 1] = used
    return offsets, found[:used].copy()
