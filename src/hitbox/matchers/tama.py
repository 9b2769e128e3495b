"""tama: every attribute halved repeatedly; a constraint lies in the few cells that tile it.

TAMA (Zhao and Wu, "Towards Approximate Event Processing in a Large-Scale Content-Based Network", ICDCS 2011), here
after its description in the REIN, Pri-REIN and DEXIN papers. With discretisation level d an attribute has cells on
layers 0..d, layer i cutting its range into 2^i; they are numbered like a heap:

    layer 0                 1                         d = 3: a constraint over parts 2..7
    layer 1         2               3                 lies in cells 5 and 3
    layer 2     4       5       6       7
    layer 3   8   9  10  11  12  13  14  15           cell 0 of each attribute: "missing"
    part      0   1   2   3   4   5   6   7

An event's value lies in one cell of each layer: every subscription listed in these d + 1 cells has this constraint
satisfied, exactly once, and is counted. Constraints are rounded outwards to the cells of layer d, so the count alone
(the paper's approximate matching, `exact=False`) may report a subscription whose bound lies within the event's cell of
layer d, and never loses one. With `exact=True` a full count is confirmed by the exact bounds.

By default cells are runs of one array and each subscription has a counter in an array. `counters="map"` counts in a
hash map that is empty when an event comes, as in the counting algorithm that SIENA published and as the programs that
the papers measured probably did; `style="lists"` makes each cell a linked list (linked_lists.py).

Cost: match O(satisfied constraints) counters + m(d + 1) cells; insert up to 2d list entries per constraint; delete
searches each of those lists; memory 4 bytes per entry and per box, 24 per cell (m 2^(d+1) of them), beside the exact
bounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from hitbox.encoding.arrays import I32, I64, MISSING, Boxes, Hits, Points, Space
from hitbox.matchers.base import check_choice, check_count, check_flag
from hitbox.matchers.counting import NO_COUNTERS, count_up, counter_map, empty_map
from hitbox.matchers.grid import Gridded, Rulers, code, confirm, count_off, report, widened
from hitbox.matchers.kernels import Lists, grown
from hitbox.matchers.linked_lists import NONE, STYLES, LinkedLists, Nodes, arrays_of

BATCH = 1 << 14
"""Boxes that are inserted first; then as many again, twice as many, and so on: all at once would need three times the
room of the lists (a wide box has hundreds of entries), but these are laid out anew for each part."""


class Tama(Gridded):
    def __init__(
        self, space: Space, *, levels: int = 13, exact: bool = True, style: str = "runs", counters: str = "array"
    ):
        check_count("levels", levels, 1, 20)
        check_flag("exact", exact)
        check_choice("style", style, STYLES)
        check_choice("counters", counters, ("array", "map"))
        self.linked, self.mapped = style == "lists", counters == "map"
        self.levels, self.exact = levels, exact
        self.top = 1 << levels
        super().__init__(space)
        self._restart(Boxes.of([]))

    def _restart(self, boxes: Boxes) -> None:
        count = self.space.attributes * 2 * self.top
        self.lists: Lists | LinkedLists = LinkedLists(count) if self.linked else Lists(count, valued=False)
        self.needs: I32 = np.zeros(0, np.int32)
        self.bare: I32 = np.zeros(0, np.int32)

    def cells(self, boxes: Boxes) -> tuple[I64, I64]:
        """The cells of every constraint, and how many each box has."""
        tiles: tuple[I64, I64] = tile(boxes.offsets, boxes.attribute, boxes.low, boxes.high, self.grid.rulers, self.top)
        return tiles

    def _place(self, numbers: I64, boxes: Boxes) -> None:
        owners, done = numbers.astype(np.int32), 0
        while done < len(numbers):
            rows = np.arange(done, min(max(2 * done, BATCH), len(numbers)))
            cells, count = self.cells(boxes.take(rows))
            self.lists.insert(cells, np.repeat(owners[rows], count), cells[:0])
            done += len(rows)
        self.needs = widened(self.needs, self.store.capacity)
        self.needs[numbers] = np.diff(boxes.offsets)
        self.bare = np.concatenate([self.bare, numbers[self.needs[numbers] == 0].astype(np.int32)])

    def _remove(self, numbers: I64) -> None:
        cells, count = self.cells(self.store.boxes(numbers))
        self.lists.delete(cells, np.repeat(numbers, count))
        self.bare = self.bare[~np.isin(self.bare, numbers)]

    def match_timed(self, points: Points, stamps: I64) -> Hits:
        self.require_points(points)
        query = (points.low, self.grid.rulers, self.top)
        checked = (self.needs, self.bare, self.exact, self.bounds, stamps)
        counters = counter_map(len(self)) if self.mapped else NO_COUNTERS
        return Hits(*count_cells(*query, arrays_of(self.lists), counters, *checked))

    def nbytes(self) -> int:
        return super().nbytes() + self.lists.nbytes() + self.needs.nbytes


@njit(cache=True, nogil=True)
def tile(offsets: I64, attribute: Any, low: I64, high: I64, grid: Rulers, top: int) -> tuple[I64, I64]:
    cells, used = np.empty(16 * len(low) + 16, np.int64), 0
    count = np.zeros(len(offsets) - 1, np.int64)
    for box in range(len(count)):
        before = used
        for row in range(offsets[box], offsets[box + 1]):
            base = attribute[row] * 2 * top
            cells = grown(cells, used + 64)
            if low[row] == MISSING:
                cells[used] = base
                used += 1
            if high[row] == MISSING:
                continue
            left = top - 1 + max(1, code(attribute[row], low[row], grid))
            right = top + code(attribute[row], high[row], grid)
            while left < right:
                if left & 1:
                    cells[used] = base + left
                    used, left = used + 1, left + 1
                if right & 1:
                    right -= 1
                    cells[used] = base + right
                    used += 1
                left, right = left >> 1, right >> 1
        count[box] = used - before
    return cells[:used].copy(), count


@njit(cache=True, nogil=True)
def read_chain(node: int, nodes: Nodes, numbers: I32) -> int:
    """The numbers of a linked list, into `numbers`; how many they are."""
    used = 0
    while node != NONE:
        numbers[used] = nodes[node].number
        used += 1
        node = int(nodes[node].next)
    return used


@njit(cache=True, nogil=True)
def count_off_in_map(numbers: I32, begin: int, end: int, counters: I32, shift: int, needs: I32, reached: I32) -> int:
    """`count_off` with a map of counters that count up."""
    used = 0
    for place in range(begin, end):
        number = numbers[place]
        if count_up(counters, shift, number) == needs[number]:
            reached[used] = number
            used += 1
    return used


@njit(cache=True, nogil=True)
def count_cells(
    lows: I64, grid: Rulers, top: int, lists: Any, counters: I32, needs: I32, bare: I32, exact: bool, bounds: Any,
    stamps: I64,
) -> tuple[I64, I32]:  # fmt: skip
    """Over runs or linked lists, with a map of counters or (where `counters` is empty) an array."""
    start, size, numbers, _, heads, nodes = lists
    offsets = np.zeros(len(lows) + 1, np.int64)
    matched, used = np.empty(64, np.int32), 0
    counter, reached, chain = np.empty_like(needs), np.empty_like(needs), np.empty_like(needs)
    for event in range(len(lows)):
        keys, shift = lows[event], 0
        if len(counters):
            shift = empty_map(counters)
        else:
            counter[:] = needs
        matched, used = report(bare, len(bare), matched, used, stamps)
        for attribute in range(len(keys)):
            base = attribute * 2 * top
            place = code(attribute, keys[attribute], grid)
            cell = base if place == 0 else base + top - 1 + place
            while cell >= base:
                if len(heads):
                    here, begin, end = chain, 0, read_chain(int(heads[cell]), nodes, chain)
                else:
                    here, begin, end = numbers, start[cell], start[cell] + size[cell]
                if len(counters):
                    count = count_off_in_map(here, begin, end, counters, shift, needs, reached)
                else:
                    count = count_off(here, begin, end, counter, reached)
                if count:  # rarely: most of the time goes into counting, and a call costs as much as a short cell
                    count = confirm(reached, count, keys, keys, *bounds) if exact else count
                    matched, used = report(reached, count, matched, used, stamps)
                cell = base + ((cell - base) >> 1) if cell > base + 1 else -1
        offsets[event + 1] = used
    return offsets, matched[:used].copy()
