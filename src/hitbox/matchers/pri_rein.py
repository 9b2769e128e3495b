"""pri-rein, pri-rein-s: REIN that finds the most urgent matches first.

The Pri-REIN paper (prioritised event matching on top of REIN). The preparing stage is REIN's own: mark what fails. Only
the order in which the bit set is read changes: one list of numbers per priority, read from the most urgent down, so
every match of a priority is determined before any of a lower one.

    marks    bit set of REIN
    order    priority 9 [ 4 17 3 ... ]     checked first; a list of `Lists`, kept by rank
             priority 8 [ 2 11 ... ]
             ...
    rank     pri-rein    order of arrival (the paper's first come, first served)
             pri-rein-s  falling selectivity: the share of the space that a box covers, so that those most likely
                         to match are found early within their priority

The paper calls its highest priority 0; here 9 is the most urgent. Left open by the paper: how selectivity is known. It
is the product of the covered shares of the declared (or chosen) domains, which is exact for events that are uniform.

Cost over REIN: match one bit test per box; insert O(1) (pri-rein-s: O(n / levels) to keep the order); delete
O(n / levels), or O(n) for many at once; memory per box 12 bytes in `order` and 8 in `rank`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numba import njit

from hitbox.encoding.arrays import I32, I64, LEVELS, Boxes, Hits, Points, Space
from hitbox.errors import MatcherError
from hitbox.matchers.box_store import NO_STAMPS
from hitbox.matchers.kernels import U64, Lists, unmarked_among
from hitbox.matchers.rein import Rein, mark_point


class PriRein(Rein):
    ordered = True

    def __init__(self, space: Space, *, buckets: int = 1000, sorted_buckets: bool = False):
        super().__init__(space, buckets=buckets, sorted_buckets=sorted_buckets)
        self.clock_each_match = False  # bits are looked at one by one
        self.order = Lists(LEVELS, ordered=True)
        self.rank: I64 = np.zeros(0, np.int64)
        self.arrivals = 0

    def insert(self, numbers: I64, boxes: Boxes) -> None:
        super().insert(numbers, boxes)
        self._enlist(numbers, boxes)

    def _enlist(self, numbers: I64, boxes: Boxes) -> None:
        if self.store.capacity > len(self.rank):
            self.rank = np.concatenate([self.rank, np.zeros(self.store.capacity - len(self.rank), np.int64)])
        self.rank[numbers] = self._ranks(boxes)
        self.order.insert(self._levels(numbers), numbers, self.rank[numbers])

    def _ranks(self, boxes: Boxes) -> I64:
        ranks = np.arange(self.arrivals, self.arrivals + len(boxes))
        self.arrivals += len(boxes)
        return ranks

    def _levels(self, numbers: I64) -> I64:
        return LEVELS - 1 - self.store.priority[numbers].astype(np.int64)

    def delete(self, numbers: I64) -> None:
        super().delete(numbers)
        self.order.purge(self._levels(numbers), numbers)

    def match_timed(self, points: Points, stamps: I64) -> Hits:
        order = (self.order.start, self.order.size, self.order.numbers)
        return Hits(*match_in_order(points.low, points.high, self.living.dead, *self._index(), *order, stamps))

    def match_levels(self, points: Points) -> Iterator[tuple[int, I32]]:
        """(priority, numbers) of one event, the most urgent first, each found only when it is asked for."""
        if len(points) != 1:
            raise MatcherError(f"match_levels takes one event at a time, got {len(points)}")
        marks = self.living.dead.copy()
        mark_point(marks, 0, points.low, points.high, *self._index())
        for level in range(LEVELS):
            begin, size = int(self.order.start[level]), int(self.order.size[level])
            matched, used = unmarked_among(
                self.order.numbers[begin : begin + size], marks, np.empty(0, np.int32), 0, NO_STAMPS
            )
            if used:
                yield LEVELS - 1 - level, matched[:used]

    def nbytes(self) -> int:
        return super().nbytes() + self.order.nbytes() + self.rank.nbytes


class PriReinS(PriRein):
    def __init__(self, space: Space, *, buckets: int = 1000, sorted_buckets: bool = False):
        super().__init__(space, buckets=buckets, sorted_buckets=sorted_buckets)
        self.ranked = 0

    def _enlist(self, numbers: I64, boxes: Boxes) -> None:
        if self.ranked != self.fitted:  # the domain was chosen again, and selectivity with it
            self.ranked = self.fitted
            self.order = Lists(LEVELS, ordered=True)
            numbers = self.store.living()
            boxes = self.store.boxes(numbers)
        super()._enlist(numbers, boxes)

    def _ranks(self, boxes: Boxes) -> I64:
        ranks: I64 = ((1 - selectivity(boxes, self.grid.share(boxes))) * 2.0**52).astype(np.int64)
        return ranks


def selectivity(boxes: Boxes, share: Any) -> Any:
    """The share of the space that each box covers: the product of its constraints' shares."""
    owner = np.repeat(np.arange(len(boxes)), np.diff(boxes.offsets))
    with np.errstate(divide="ignore"):
        return np.exp(np.bincount(owner, np.log(share), len(boxes)))


@njit(cache=True, nogil=True)
def match_in_order(
    lows: I64, highs: I64, dead: U64, cells: int, grid: Any, lists: Any, ordered: bool,
    start: I64, size: I64, numbers: I32, stamps: I64,
) -> tuple[I64, I32]:  # fmt: skip
    offsets = np.zeros(len(lows) + 1, np.int64)
    matched = np.empty(64, np.int32)
    used = 0
    for event in range(len(lows)):
        marks = dead.copy()
        mark_point(marks, event, lows, highs, cells, grid, lists, ordered)
        for level in range(len(start)):
            mine = numbers[start[level] : start[level] + size[level]]
            matched, used = unmarked_among(mine, marks, matched, used, stamps)
        offsets[event + 1] = used
    return offsets, matched[:used].copy()
