"""h-tree: similar subscriptions together in the leaves of a tree of overlapping cells; only nearby leaves are read.

H-Tree (Qian, Cao, Zhu, Li and Wang, "H-Tree: An Efficient Index Structure for Event Matching in Content-Based
Publish/Subscribe Systems", TPDS 2014), here after its description in the REIN, Pri-REIN and DEXIN papers. Each of l
indexed attributes is a level of the tree and cut into c cells of width 1/c; a constraint no wider than a cell goes by
its centre into one of them, so it reaches at most half a cell beyond, and cells count as twice as wide as they are:

    cells      0         1         2         3          c = 4
           |---------|---------|---------|---------|
    cell 1      [~~~~~~~~~~~~~~~~~~]                    overlaps half of its neighbours
    event           ^                                   lies in the wide cells 0 and 1: two branches per level

    leaf = (branch on attribute 1, ..., branch on attribute l), one list of numbers each, (c + 1)^l leaves

A wider constraint is split into pieces no wider than a cell, and the subscription is listed under every combination of
its pieces: ceil(w c)^l copies at width w. Where that would pass `limit` entries, insert refuses before it changes
anything. Choices where the descriptions leave room: a box that leaves an indexed attribute free, or accepts "missing"
on it, takes one more branch that every event follows (the descriptions have all attributes constrained); the
attributes that most boxes constrain are indexed, as counted when the index is (re)built (see grid.py). A box found
under several visited branches is reported under the first of them only, so no set of visited boxes is needed.

Cost: match 3^l leaves at most and every box in them, checked by exact bounds; insert and delete one entry per copy;
memory 4 bytes per copy, 24 per leaf, beside the exact bounds.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
from numba import njit

from hitbox.encoding.arrays import I32, I64, MISSING, Boxes, Hits, Points, Space
from hitbox.errors import MatcherError
from hitbox.matchers.base import check_count
from hitbox.matchers.grid import Grid, Gridded, Rulers, code, meets, report
from hitbox.matchers.kernels import Lists, lay_out, prefetch

UNIT = 1 << 16  # grid codes per cell
BATCH = 1 << 22  # list entries made at once
PREFETCH_DISTANCE = 8  # boxes whose bounds are fetched before they are checked: they are rarely in the cache
NO_VALUES = np.zeros(0, np.int64)
NO_LEAVES = np.zeros(0, np.int32)
FEW = 64  # branches of the first levels that boxes are gone through for, one after the other
BLOCK = 1 << 10  # boxes checked before their matches are reported: a leaf may hold most of them


class HTree(Gridded):
    def __init__(self, space: Space, *, cells: int = 6, indexed: int = 6, limit: int = 250_000_000):
        for option, value in (("cells", cells), ("indexed", indexed), ("limit", limit)):
            check_count(option, value, 1)
        indexed = min(indexed, space.attributes)
        if (cells + 1) ** indexed > limit:
            raise MatcherError(
                f"h-tree: {cells} cells on {indexed} indexed attributes make {(cells + 1) ** indexed} leaves, "
                f"beyond limit={limit}; lower cells or indexed, or raise limit"
            )
        self.cells, self.indexed, self.limit = cells, indexed, limit
        self.top = cells * UNIT
        super().__init__(space)
        self._restart(Boxes.of([]))

    def _choose(self, boxes: Boxes) -> I64:
        used = np.bincount(boxes.attribute[boxes.low > MISSING], minlength=self.space.attributes)
        return np.sort(np.argsort(-used, kind="stable")[: self.indexed])

    def _admit(self, grid: Grid, boxes: Boxes, restart: bool) -> None:
        chosen = self._choose(boxes) if restart else self.chosen
        first, last = branches(boxes, chosen, grid.rulers, self.space.attributes)
        copies = np.prod((last - first + 1).astype(np.float64), axis=1)
        total = copies.sum() + (0 if restart else self.lists.live)
        if total > self.limit:
            raise MatcherError(
                f"h-tree: splitting wide ranges over {self.cells} cells on {len(chosen)} attributes needs {total:.3g} "
                f"list entries (up to {copies.max():.3g} a box), beyond limit={self.limit}; nothing was inserted. "
                "Lower cells or indexed, raise limit, or use another matcher for wide ranges"
            )

    def _restart(self, boxes: Boxes) -> None:
        self.chosen = self._choose(boxes)
        self.lists = Leaves((self.cells + 1) ** self.indexed, valued=False)

    def _entries(self, boxes: Boxes) -> list[tuple[slice, I32, I32]]:
        """First and last branches of each box, in parts small enough for memory."""
        first, last = branches(boxes, self.chosen, self.grid.rulers, self.space.attributes)
        part = np.cumsum(np.prod(last - first + 1, axis=1)) // BATCH
        edges = [0, *(np.flatnonzero(np.diff(part)) + 1).tolist(), len(first)]
        parts = [slice(begin, end) for begin, end in pairwise(edges)]
        return [(rows, first[rows], last[rows]) for rows in parts]

    def _place(self, numbers: I64, boxes: Boxes) -> None:
        parts = [(numbers[rows], first, last) for rows, first, last in self._entries(boxes)]
        if not self.lists.live:
            self.lists.reserve(leaves_of(*part, self.cells + 1)[0] for part in parts)
            for part in parts:
                self.lists.fill(*leaves_of(*part, self.cells + 1))
            return
        for part in parts:
            leaves, owners = leaves_of(*part, self.cells + 1)
            self.lists.insert(leaves, owners, NO_VALUES)

    def _remove(self, numbers: I64) -> None:
        for rows, first, last in self._entries(self.store.boxes(numbers)):
            self.lists.delete(*leaves_of(numbers[rows], first, last, self.cells + 1))

    def match_timed(self, points: Points, stamps: I64) -> Hits:
        self.require_points(points)
        start, size, numbers, _ = self.lists.arrays
        index = (start, size, numbers, self.chosen, self.cells)
        return Hits(*visit(points.low, self.grid.rulers, *index, self.bounds, stamps))

    def nbytes(self) -> int:
        return super().nbytes() + self.lists.nbytes()


class Leaves(Lists):
    """The numbers of the boxes in each leaf. Empty ones get their room first, then what they hold, in any number of
    parts: no list moves, and nothing is there twice."""

    def reserve(self, parts: Iterable[I32]) -> None:
        """Room for one entry per mention of a leaf, and an eighth more."""
        count = np.zeros(len(self.start), np.int64)
        for leaves in parts:
            count += np.bincount(leaves, minlength=len(count))
        self.start, _, self.room = lay_out(count, NO_LEAVES)
        self.used = int(self.room.sum())
        self.numbers = np.empty(self.used, np.int32)

    def fill(self, leaves: I32, owners: I32) -> None:
        """Add entries for which there is room."""
        write(leaves, owners, self.start, self.size, self.numbers)
        self.live += len(leaves)


@njit(cache=True, nogil=True)
def write(leaves: I32, owners: I32, start: I64, size: I64, numbers: I32) -> None:
    for i in range(len(leaves)):
        soon, leaf = leaves[min(i + PREFETCH_DISTANCE, len(leaves) - 1)], leaves[i]
        prefetch(numbers, start[soon] + size[soon])
        numbers[start[leaf] + size[leaf]] = owners[i]
        size[leaf] += 1


def branches(boxes: Boxes, chosen: I64, grid: Rulers, attributes: int) -> tuple[I32, I32]:
    """The first and last branch of each box on each chosen attribute; 0 is the branch of those that leave it free."""
    level = np.full(attributes, -1, np.int64)
    level[chosen] = np.arange(len(chosen))
    levels = len(chosen)
    ends: tuple[I32, I32] = branches_of(boxes.offsets, boxes.attribute, boxes.low, boxes.high, level, levels, grid)
    return ends


@njit(cache=True, nogil=True)
def branch(attribute: int, low: int, high: int, grid: Rulers) -> tuple[int, int]:
    if low == MISSING:
        return 0, 0
    begin, end = code(attribute, low, grid) - 1, code(attribute, high, grid) - 1
    pieces = (end - begin + UNIT) // UNIT
    half = (end - begin) // pieces // 2  # the centre of a piece is half of it away from its end
    return 1 + (begin + half) // UNIT, 1 + (end - half) // UNIT


@njit(cache=True, nogil=True)
def branches_of(
    offsets: I64, attribute: I32, low: I64, high: I64, level: I64, levels: int, grid: Rulers
) -> tuple[I32, I32]:
    first = np.zeros((len(offsets) - 1, levels), np.int32)
    last = np.zeros((len(offsets) - 1, levels), np.int32)
    for box in range(len(first)):
        for row in range(offsets[box], offsets[box + 1]):
            at = level[attribute[row]]
            if at >= 0:
                first[box, at], last[box, at] = branch(attribute[row], low[row], high[row], grid)
    return first, last


@njit(cache=True, nogil=True)
def step(place: I64, first: Any, last: Any, base: int) -> int:
    """Turn `place` to the next combination of branches, last level fastest; its leaf, or -1 after the last one."""
    leaf, carry = 0, True
    for at in range(len(place) - 1, -1, -1):
        if carry:
            place[at] += 1
            carry = place[at] > last[at]
            if carry:
                place[at] = first[at]
    for at in range(len(place)):
        leaf = leaf * base + place[at]
    return -1 if carry else leaf


@njit(cache=True, nogil=True)
def leaves_of(numbers: I64, first: I32, last: I32, base: int) -> tuple[I32, I32]:
    """The leaf and the number of every copy.

    Branch by branch of the first levels (where they are few), so that lists which lie together are written together:
    all of them have more pages than a processor keeps track of. Branches of the last level lie side by side.
    """
    levels, copies = first.shape[1], 0
    for box in range(len(numbers)):
        here = 1
        for at in range(levels):
            here *= last[box, at] - first[box, at] + 1
        copies += here
    leaves, owners = np.empty(copies, np.int32), np.empty(copies, np.int32)
    place, used, above = np.empty(levels, np.int64), 0, 0
    while above < levels - 1 and base ** (above + 1) <= FEW:
        above += 1
    for branch in range(base**above):
        for box in range(len(numbers)):
            inside, rest = True, branch
            for at in range(above - 1, -1, -1):
                inside &= first[box, at] <= rest % base <= last[box, at]
                rest //= base
            if not inside:
                continue
            place[above:] = first[box, above:]
            at = above
            while at >= above:
                leaf = branch
                for chosen in range(above, levels):
                    leaf = leaf * base + place[chosen]
                for beside in range(last[box, -1] - first[box, -1] + 1):
                    leaves[used], owners[used] = leaf + beside, numbers[box]
                    used += 1
                at = levels - 2
                while at >= above and place[at] == last[box, at]:
                    place[at] = first[box, at]
                    at -= 1
                if at >= above:
                    place[at] += 1
    return leaves, owners


@njit(cache=True, nogil=True)
def first_of(
    number: int, here: I64, begin: I64, level: I64, grid: Rulers,
    start: I64, length: I32, attribute: I32, low: I64, high: I64,
) -> bool:  # fmt: skip
    """Whether the leaf `here` is the first of the visited ones that list the box."""
    for row in range(start[number], start[number] + length[number]):
        at = level[attribute[row]]
        if at >= 0 and low[row] > MISSING:
            first, _ = branch(attribute[row], low[row], high[row], grid)
            if here[at] != max(first, begin[at]):
                return False
    return True


@njit(cache=True, nogil=True)
def search(leaf: Any, reached: I32, keys: I64, start: I64, length: I32, attribute: I32, low: I64, high: I64) -> int:
    """The boxes of a leaf that meet the point, into `reached`."""
    used = 0
    for i in range(len(leaf)):
        number, soon = leaf[i], start[leaf[min(i + PREFETCH_DISTANCE, len(leaf) - 1)]]
        prefetch(attribute, soon)
        prefetch(low, soon)
        prefetch(high, soon)
        if meets(number, keys, keys, start, length, attribute, low, high):
            reached[used] = number
            used += 1
    return used


@njit(cache=True, nogil=True)
def surround(keys: I64, chosen: I64, cells: int, grid: Rulers, begin: I64, wide: I64) -> None:
    """For each level the first cell that the event visits, and how many: none where its value is missing."""
    for at in range(len(chosen)):
        position = code(chosen[at], keys[chosen[at]], grid) - 1
        begin[at] = 1 + max(0, (position - UNIT // 2) // UNIT)
        end = 1 + min(cells - 1, (position + UNIT // 2) // UNIT)
        wide[at] = end - begin[at] + 1 if position >= 0 else 0


@njit(cache=True, nogil=True)
def visit(
    lows: I64, grid: Rulers, start: I64, size: I64, numbers: I32, chosen: I64, cells: int, bounds: Any, stamps: I64
) -> tuple[I64, I32]:
    levels = len(chosen)
    level = np.full(lows.shape[1], -1, np.int64)
    for at in range(levels):
        level[chosen[at]] = at
    offsets = np.zeros(len(lows) + 1, np.int64)
    matched, used = np.empty(64, np.int32), 0
    reached = np.empty(BLOCK, np.int32)
    begin, wide, turn = np.empty(levels, np.int64), np.empty(levels, np.int64), np.empty(levels, np.int64)
    zero, here = np.zeros(levels, np.int64), np.empty(levels, np.int64)
    for event in range(len(lows)):
        keys = lows[event]
        surround(keys, chosen, cells, grid, begin, wide)
        turn[:] = 0
        turn[-1] = -1
        while step(turn, zero, wide, 1) >= 0:
            leaf = 0
            for at in range(levels):
                here[at] = 0 if turn[at] == 0 else begin[at] + turn[at] - 1
                leaf = leaf * (cells + 1) + here[at]
            end = start[leaf] + size[leaf]
            for block in range(start[leaf], end, BLOCK):
                count = search(numbers[block : min(block + BLOCK, end)], reached, keys, *bounds)
                for i in range(count):
                    if first_of(reached[i], here, begin, level, grid, *bounds):
                        matched, used = report(reached[i:], 1, matched, used, stamps)
        offsets[event + 1] = used
    return offsets, matched[:used].copy()
