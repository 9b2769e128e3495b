"""Matchers that keep the exact boxes by number: all of the published ones.

StoredMatcher    keeps a BoxStore; a subclass adds its index and `match`
TimedMatcher     also notes when each match was found, which the metrics of Pri-REIN need (metrics.py)
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from hitbox.encoding.arrays import I64, Boxes, Hits, Points, Space
from hitbox.matchers.base import Matcher

NO_STAMPS: I64 = np.zeros(0, np.int64)
"""Passed as `stamps` to match without noting times."""


class StoredMatcher(Matcher):
    """Keeps the exact boxes in `store`. A subclass with an index overrides `insert` and `delete` to change both."""

    def __init__(self, space: Space):
        self.space = space
        self.store = BoxStore()

    def insert(self, numbers: I64, boxes: Boxes) -> None:
        self.store.insert(numbers, boxes)

    def delete(self, numbers: I64) -> None:
        self.store.delete(numbers)

    def boxes(self, numbers: I64) -> Boxes:
        return self.store.boxes(numbers)

    def numbers(self) -> I64:
        return self.store.living()

    def __len__(self) -> int:
        return self.store.count

    def nbytes(self) -> int:
        return self.store.nbytes()


class TimedMatcher(StoredMatcher):
    """A StoredMatcher whose kernels can note the moment of each match."""

    clock_each_match: bool = True
    """Whether the clock is read once per match; otherwise once per group of matches."""

    @abstractmethod
    def match_timed(self, points: Points, stamps: I64) -> Hits:
        """`match`; unless `stamps` is empty, the moment of match k goes into `stamps[k]`, in nanoseconds."""

    def match(self, points: Points) -> Hits:
        return self.match_timed(points, NO_STAMPS)


class BoxStore:
    """Boxes by number in one growing arena: what a matcher that needs the exact bounds keeps them in.

    start[number]  length[number]  priority[number]   (length -1: not in use)
          |              |
    attribute/low/high  [ . . . . . . . . ]           deleted rows are squeezed out when they are half of it
    """

    def __init__(self) -> None:
        self.start = np.zeros(0, np.int64)
        self.length = np.zeros(0, np.int32)
        self.priority = np.zeros(0, np.uint8)
        self.attribute = np.zeros(0, np.int32)
        self.low = np.zeros(0, np.int64)
        self.high = np.zeros(0, np.int64)
        self.used = 0
        self.live_rows = 0
        self.count = 0

    @property
    def capacity(self) -> int:
        """One more than the largest number that the arrays can hold."""
        return len(self.start)

    def living(self) -> I64:
        return np.flatnonzero(self.length >= 0)

    def insert(self, numbers: I64, boxes: Boxes) -> None:
        if not len(numbers):
            return
        self._grow_numbers(int(numbers.max()) + 1)
        rows = len(boxes.low)
        if self.used + rows > len(self.low):
            self._grow_arena(self.used + rows)
        part = slice(self.used, self.used + rows)
        self.attribute[part], self.low[part], self.high[part] = boxes.attribute, boxes.low, boxes.high
        self.start[numbers] = boxes.offsets[:-1] + self.used
        self.length[numbers] = np.diff(boxes.offsets)
        self.priority[numbers] = boxes.priority
        self.used += rows
        self.live_rows += rows
        self.count += len(numbers)

    def delete(self, numbers: I64) -> None:
        self.live_rows -= int(self.length[numbers].sum())
        self.length[numbers] = -1
        self.count -= len(numbers)
        if self.used > 1024 and self.live_rows < self.used // 2:
            self._squeeze()

    def boxes(self, numbers: I64) -> Boxes:
        length = self.length[numbers].astype(np.int64)
        offsets = np.zeros(len(numbers) + 1, np.int64)
        np.cumsum(length, out=offsets[1:])
        flat = np.arange(offsets[-1]) + np.repeat(self.start[numbers] - offsets[:-1], length)
        return Boxes(offsets, self.attribute[flat], self.low[flat], self.high[flat], self.priority[numbers])

    def nbytes(self) -> int:
        arrays = (self.start, self.length, self.priority, self.attribute, self.low, self.high)
        return sum(a.nbytes for a in arrays)

    def _grow_numbers(self, capacity: int) -> None:
        if capacity > self.capacity:
            extra = max(capacity, self.capacity * 3 // 2) - self.capacity
            self.start = np.concatenate([self.start, np.zeros(extra, np.int64)])
            self.length = np.concatenate([self.length, np.full(extra, -1, np.int32)])
            self.priority = np.concatenate([self.priority, np.zeros(extra, np.uint8)])

    def _grow_arena(self, rows: int) -> None:
        room = max(rows, len(self.low) * 3 // 2)
        for name in ("attribute", "low", "high"):
            old = getattr(self, name)
            new = np.empty(room, old.dtype)  # what is not used yet is not touched yet
            new[: self.used] = old[: self.used]
            setattr(self, name, new)

    def _squeeze(self) -> None:
        numbers = self.living()
        boxes = self.boxes(numbers)
        self.attribute, self.low, self.high = boxes.attribute, boxes.low, boxes.high
        self.start[numbers] = boxes.offsets[:-1]
        self.used = len(boxes.low)
