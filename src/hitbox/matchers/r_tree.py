"""r-tree: boxes as rectangles in an R*-tree, an event as an intersection query: the naive way to match both sides.

"Naive" in Wang and Kitsuregawa's symmetric publish/subscribe paper, which used the same library: libspatialindex,
here through the `rtree` package, with the paper's fanout of 10. No dimension transform: one dimension per attribute.

    number -> [ code(low), code(high) ] on every attribute      -> R*-tree -> candidates -> exact bounds -> hits
              [ 0, 1 ] where it says nothing

The library computes in doubles, which hold int64 keys only up to 2^53, and its areas overflow where one side is the
whole number line. So rectangles are given in the 16-bit codes of grid.py, scaled to 0..1: codes keep order, hence
rectangles only ever grow, and candidates are confirmed by the exact bounds. An attribute that a box or an event
leaves open spans all codes, and "missing" is code 0, outside every constraint.

The first boxes, and any later batch that is at least a quarter of what is there, are loaded by the library's
sort-tile bulk loader; single ones are inserted and deleted in the tree, as are all with `bulk=False`. The library's
queries share scratch memory, so a lock lets one thread search at a time.

Cost: match grows with the overlap of the tree's rectangles, towards O(n) with many attributes; insert and delete
O(fanout log n); memory about 16 m + 12 bytes per box at 70% filling, beside the exact bounds.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
from numba import njit
from rtree.core import rt
from rtree.index import Index, Property

from hitbox.encoding.arrays import I32, I64, Boxes, Hits, Points, Space
from hitbox.matchers.base import check_count, check_flag
from hitbox.matchers.grid import F64, Gridded, codes_of, confirm, report

FILL = 0.7


class RTree(Gridded):
    intervals = True
    top = (1 << 16) - 1

    def __init__(self, space: Space, *, fanout: int = 10, bulk: bool = True):
        check_count("fanout", fanout, 4)
        check_flag("bulk", bulk)
        super().__init__(space)
        self.fanout, self.bulk = fanout, bulk
        self.lock = threading.Lock()
        self.parts = self.split(space)
        self._restart(Boxes.of([]))

    @staticmethod
    def split(space: Space) -> list[I64]:
        """The attributes of each tree: here all in one."""
        return [np.arange(space.attributes)]

    def _restart(self, boxes: Boxes) -> None:
        self.trees: list[Any] = [self._tree(part, None) for part in self.parts]

    def _tree(self, part: I64, content: tuple[I64, F64, F64] | None) -> Any:
        dimensions = max(2, len(part))  # the library has no trees on a line
        properties = Property(
            dimension=dimensions,
            leaf_capacity=self.fanout,
            index_capacity=self.fanout,
            near_minimum_overlap_factor=self.fanout,  # all of them; the library's own 32 exceeds the fanout
            fill_factor=FILL,
        )
        arguments = () if content is None else (content,)
        return Index(*arguments, properties=properties, interleaved=False)

    def _sides(self, low: I64, high: I64, part: I64) -> tuple[F64, F64]:
        """Lower and upper corners on the attributes of one tree."""
        attribute = np.tile(part.astype(np.int32), len(low))
        shape = (len(low), len(part))
        sides = [codes_of(attribute, keys[:, part].ravel(), self.grid.rulers) / self.top for keys in (low, high)]
        sides = [side.reshape(shape) for side in sides]
        if len(part) == 1:
            sides = [np.hstack([side, np.zeros_like(side)]) for side in sides]
        return sides[0], sides[1]

    def _place(self, numbers: I64, boxes: Boxes) -> None:
        bulk = self.bulk and 4 * len(numbers) >= self.store.count
        if bulk:
            numbers = self.store.living()
            boxes = self.store.boxes(numbers)
        low, high = boxes.dense(self.space.attributes)
        for i, part in enumerate(self.parts):
            lower, upper = self._sides(low, high, part)
            if bulk:
                self.trees[i] = self._tree(part, (numbers, lower, upper))
            else:
                for entry in corners(self.trees[i], numbers, lower, upper):
                    rt.Index_InsertData(*entry, None, 0)

    def _remove(self, numbers: I64) -> None:
        low, high = self.store.boxes(numbers).dense(self.space.attributes)
        for tree, part in zip(self.trees, self.parts, strict=True):
            for entry in corners(tree, numbers, *self._sides(low, high, part)):
                rt.Index_DeleteData(*entry)

    def match_timed(self, points: Points, stamps: I64) -> Hits:
        if not len(points) or not self.store.count:
            return Hits.of([[]] * len(points))
        answers = []
        for tree, part in zip(self.trees, self.parts, strict=True):
            sides = self._sides(points.low, points.high, part)
            with self.lock:
                numbers, counts = tree.intersection_v(*sides)
            ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts.astype(np.int64))])
            answers.append((numbers.astype(np.int32), ends))
        first, last = answers[0], answers[-1]
        return Hits(*join(points.low, points.high, *first, *last, self.store.capacity, self.bounds, stamps))

    def nbytes(self) -> int:
        dimensions = sum(max(2, len(part)) for part in self.parts)
        return super().nbytes() + int(self.store.count * (16 * dimensions + 12 * len(self.parts)) / FILL)


def corners(tree: Any, numbers: I64, lower: F64, upper: F64) -> Iterator[tuple[Any, ...]]:
    """What the library's own functions take for each rectangle; its Python methods copy every coordinate twice."""
    dimensions = lower.shape[1]
    row = ctypes.c_double * dimensions
    sides = [(row * len(side)).from_buffer(np.ascontiguousarray(side)) for side in (lower, upper)]
    for number, low, high in zip(numbers.tolist(), *sides, strict=True):
        yield tree.handle, number, low, high, dimensions


@njit(cache=True, nogil=True)
def join(
    lows: I64, highs: I64, numbers: I32, ends: I64, others: I32, other_ends: I64, capacity: int,
    bounds: tuple[I64, I32, I32, I64, I64], stamps: I64,
) -> tuple[I64, I32]:  # fmt: skip
    """For each event the numbers that both answers hold, confirmed; an answer joined with itself stays as it is."""
    offsets = np.zeros(len(lows) + 1, np.int64)
    matched, used = np.empty(64, np.int32), 0
    held = np.zeros(capacity, np.bool_)
    for event in range(len(lows)):
        mine = numbers[ends[event] : ends[event + 1]]
        theirs = others[other_ends[event] : other_ends[event + 1]].copy()
        for number in mine:
            held[number] = True
        count = 0
        for number in theirs:
            theirs[count] = number
            count += held[number]
        for number in mine:
            held[number] = False
        count = confirm(theirs, count, lows[event], highs[event], *bounds)
        matched, used = report(theirs, count, matched, used, stamps)
        offsets[event + 1] = used
    return offsets, matched[:used].copy()
