"""rein: mark every subscription that fails somewhere; what stays unmarked matches.

S. Qian, J. Cao, Y. Zhu, M. Li: "REIN: A fast event matching approach for content-based publish/subscribe systems",
INFOCOM 2014. Boxes are rectangles and the event is a small cube; a rectangle misses the cube where, on some attribute,
its high end lies below the cube or its low end above it. Two bucket lists per attribute hold the low and the high ends:

    attribute a   low ends    [ b0 | b1 | b2 | ... ]   a bucket is a list of (number, end) in the arena of `Lists`
                  high ends   [ b0 | b1 | b2 | ... ]
    event key v in cell c     low:  ends of cells > c fail, those of cell c are compared
                              high: ends of cells < c fail, those of cell c are compared
    marks         bit set over numbers, begun as "not alive"; unmarked bits are the result

Doubling of the domain: the paper doubles all values so that the event can grow to an odd cube [2v - 1, 2v + 1] that
touches no even end. On integers 2 high < 2v - 1 is high < v, so the doubling is left to logic and no key overflows.
The cube may as well be an interval: events with ranges match by the same two comparisons.

Missing values need no case of their own: MISSING lies below every end, so all low ends fail; an end at MISSING (low) or
HIGHEST (high) can never fail and is not stored. `IS NULL` is the high end MISSING: any present value marks it.

Left open by the paper: where no domain is declared, cells span the middle 99% of the ends of the first bulk insert and
what lies outside goes to the end cells; the cells are chosen again whenever the set has grown fourfold or was empty.
With `sorted_buckets` (for sets that change rarely) the one compared bucket is cut by binary search. The bit set is read
by words; `scan="bits"` looks at every bit, as Algorithm 1 of the paper says (lines 21 to 25) and as the Pri-REIN paper
does, whose times of the output stage depend on it. `style="lists"` keeps buckets as linked lists (linked_lists.py).

Cost: match O(failing ends + 2 m b) of one random bit each; insert O(k); delete O(k n / b); memory 27 bytes per
constraint (two ends of 12 and slack), 48 m b for the bucket heads. b buckets, k constraints per box, m attributes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from hitbox.encoding.arrays import HIGHEST, I32, I64, LOWEST, MISSING, Boxes, Hits, Points, Space
from hitbox.errors import MatcherError
from hitbox.matchers.base import check_choice, check_count, check_flag
from hitbox.matchers.box_store import NO_STAMPS, TimedMatcher
from hitbox.matchers.kernels import U64, Lists, Living, mark, unmarked, unmarked_bits
from hitbox.matchers.linked_lists import NONE, STYLES, LinkedLists, Nodes, arrays_of, mark_chain

LOW, HIGH = 0, 1


class Grid:
    """Each attribute's domain cut into cells of equal width; keys outside fall into the first or the last cell."""

    def __init__(self, space: Space, cells: int):
        self.cells = cells
        self.low, self.high = space.low.copy(), space.high.copy()
        self.undeclared = np.flatnonzero((self.low == LOWEST) | (self.high == HIGHEST))
        self.width = self._width()

    def _width(self) -> U64:
        span = self.high.view(np.uint64) - self.low.view(np.uint64)  # wraps to the right distance
        return span // np.uint64(self.cells) + np.uint64(1)

    @property
    def arrays(self) -> tuple[I64, I64, U64]:
        return self.low, self.high, self.width

    def fit(self, boxes: Boxes) -> None:
        """Choose the range of the attributes that declare none from the ends of `boxes`."""
        for attribute in self.undeclared:
            rows = boxes.attribute == attribute
            ends = np.concatenate([boxes.low[rows], boxes.high[rows]])
            ends = np.sort(ends[(ends > LOWEST) & (ends < HIGHEST)])
            if len(ends):
                cut = len(ends) // 200
                self.low[attribute], self.high[attribute] = ends[cut], ends[-1 - cut]
        self.width = self._width()

    def share(self, boxes: Boxes) -> Any:
        """The share of the domain that each constraint of `boxes` covers."""
        low, high = self.low[boxes.attribute].astype(float), self.high[boxes.attribute].astype(float)
        begin, end = np.maximum(boxes.low.astype(float), low), np.minimum(boxes.high.astype(float), high)
        return np.clip((end - begin + 1) / (high - low + 1), 0, 1)


class Rein(TimedMatcher):
    intervals = True

    def __init__(
        self,
        space: Space,
        *,
        buckets: int = 1000,
        sorted_buckets: bool = False,
        scan: str = "words",
        style: str = "runs",
    ):
        check_count("buckets", buckets, 1)
        check_flag("sorted_buckets", sorted_buckets)
        check_choice("scan", scan, ("words", "bits"))
        check_choice("style", style, STYLES)
        self.linked, self.sorted = style == "lists", sorted_buckets
        if self.linked and self.sorted:
            raise MatcherError("style='lists' keeps no order: leave out sorted_buckets, or use style='runs'")
        self.bitwise = scan == "bits"
        self.clock_each_match = not self.bitwise
        super().__init__(space)
        self.living = Living()
        self.grid = Grid(space, buckets)
        self.lists = self._empty_lists()
        self.fitted = 0

    def _empty_lists(self) -> Lists | LinkedLists:
        count = 2 * self.space.attributes * self.grid.cells
        return LinkedLists(count) if self.linked else Lists(count, ordered=self.sorted)

    def insert(self, numbers: I64, boxes: Boxes) -> None:
        self.store.insert(numbers, boxes)
        self.living.insert(numbers)
        fresh = self.store.count == len(numbers) or self.store.count > 4 * self.fitted
        if fresh and len(self.grid.undeclared):
            self._refit()
        else:
            self.lists.insert(*self._entries(numbers, boxes))

    def _refit(self) -> None:
        numbers = self.store.living()
        boxes = self.store.boxes(numbers)
        self.fitted = len(numbers)
        self.grid.fit(boxes)
        self.lists = self._empty_lists()
        self.lists.insert(*self._entries(numbers, boxes))

    def delete(self, numbers: I64) -> None:
        lists, owners, _ = self._entries(numbers, self.store.boxes(numbers))
        self.lists.purge(lists, owners)
        self.living.delete(numbers)
        self.store.delete(numbers)

    def _entries(self, numbers: I64, boxes: Boxes) -> tuple[I32, I32, I64]:
        """(list, number, end) of everything that `boxes` put into the bucket lists.

        Attribute by attribute: the lists of one stay in the cache while they fill. For linked lists box by box, as a
        program inserts that knows one subscription at a time.
        """
        rows = (boxes.offsets, boxes.attribute, boxes.low, boxes.high)
        place = places(len(self.grid.low), *rows)
        used = int(place[-1])
        entries = np.empty(used, np.int32), np.empty(used, np.int32), np.empty(used, np.int64)
        enter(*entries, place, not self.linked, numbers, *rows, self.grid.cells, *self.grid.arrays)
        return entries

    def match_timed(self, points: Points, stamps: I64) -> Hits:
        return Hits(*match_points(points.low, points.high, self.living.dead, *self._index(), self.bitwise, stamps))

    def _index(self) -> tuple[Any, ...]:
        return self.grid.cells, self.grid.arrays, arrays_of(self.lists), self.sorted

    def marked(self, key: int, attribute: int, side: int) -> I32:
        """The numbers that `key` on `attribute` marks in the bucket list of its LOW or HIGH ends."""
        marks = np.zeros_like(self.living.dead)
        mark_side(marks, attribute, side, key, *self._index())
        numbers: I32 = unmarked(~marks, np.empty(0, np.int32), 0, NO_STAMPS)[0]
        return numbers

    def nbytes(self) -> int:
        return self.lists.nbytes() + self.living.dead.nbytes


@njit(cache=True, nogil=True)
def cell(key: int, low: int, high: int, width: int) -> int:
    if key <= low:
        return 0
    return np.int64((np.uint64(min(key, high)) - np.uint64(low)) // width)  # type: ignore[return-value]


@njit(cache=True, nogil=True)
def places(attributes: int, offsets: I64, attribute: I32, low: I64, high: I64) -> I64:
    """Where the ends of each attribute begin if they are written one attribute after the other, and where all end."""
    place = np.zeros(attributes + 1, np.int64)
    for row in range(offsets[0], offsets[-1]):
        place[attribute[row] + 1] += int(low[row] != MISSING) + int(high[row] != HIGHEST)
    for a in range(attributes):
        place[a + 1] += place[a]
    return place


@njit(cache=True, nogil=True)
def enter(
    lists: I32, owners: I32, ends: I64, place: I64, grouped: bool, numbers: I64, offsets: I64, attribute: I32,
    low: I64, high: I64, cells: int, lowest: I64, highest: I64, width: U64,
) -> None:  # fmt: skip
    """Write down which end is to be put into which list: `grouped` by attribute, from `place` on, or box by box."""
    for box in range(len(numbers)):
        for row in range(offsets[box], offsets[box + 1]):
            a = attribute[row]
            group = a if grouped else 0
            for side in (LOW, HIGH):
                end = low[row] if side == LOW else high[row]
                if end == (MISSING if side == LOW else HIGHEST):
                    continue
                at = place[group]
                lists[at] = (2 * a + side) * cells + cell(end, lowest[a], highest[a], width[a])
                owners[at], ends[at] = numbers[box], end
                place[group] = at + 1


@njit(cache=True, nogil=True)
def cut(values: I64, key: int) -> int:
    """How many of the rising `values` are at most `key`."""
    first, last = 0, len(values)
    while first < last:
        middle = (first + last) >> 1
        if values[middle] <= key:
            first = middle + 1
        else:
            last = middle
    return first


@njit(cache=True, nogil=True)
def mark_linked_side(marks: U64, base: int, at: int, side: int, key: int, cells: int, heads: I32, nodes: Nodes) -> None:
    """`mark_side` where buckets are linked lists; the key lies in bucket `at`."""
    for bucket in range(at + 1, base + cells) if side == LOW else range(base, at):
        mark_chain(marks, int(heads[bucket]), nodes)
    node = int(heads[at])
    while node != NONE:
        number, value = nodes[node].number, nodes[node].value
        if (value > key) if side == LOW else (value < key):
            marks[number >> 6] |= np.uint64(1) << np.uint64(number & 63)
        node = int(nodes[node].next)


@njit(cache=True, nogil=True)
def mark_side(
    marks: U64, attribute: int, side: int, key: int, cells: int, grid: Any, lists: Any, ordered: bool
) -> None:
    """Mark the boxes whose low end lies above `key`, or whose high end lies below it."""
    start, size, numbers, values, heads, nodes = lists
    low, high, width = grid
    base = (2 * attribute + side) * cells
    at = base + cell(key, low[attribute], high[attribute], width[attribute])
    if len(heads):
        mark_linked_side(marks, base, at, side, key, cells, heads, nodes)
        return
    sweep = range(at + 1, base + cells) if side == LOW else range(base, at)
    for bucket in sweep:
        mark(marks, numbers[start[bucket] : start[bucket] + size[bucket]])
    begin, end = start[at], start[at] + size[at]
    if ordered and side == LOW:
        mark(marks, numbers[begin + cut(values[begin:end], key) : end])
    elif ordered:
        mark(marks, numbers[begin : begin + cut(values[begin:end], key - 1)] if key > MISSING else numbers[:0])
    else:
        for i in range(begin, end):
            if (values[i] > key) if side == LOW else (values[i] < key):
                marks[numbers[i] >> 6] |= np.uint64(1) << np.uint64(numbers[i] & 63)


@njit(cache=True, nogil=True)
def mark_point(marks: U64, event: int, lows: I64, highs: I64, cells: int, grid: Any, lists: Any, ordered: bool) -> None:
    for attribute in range(lows.shape[1]):
        mark_side(marks, attribute, HIGH, lows[event, attribute], cells, grid, lists, ordered)
        mark_side(marks, attribute, LOW, highs[event, attribute], cells, grid, lists, ordered)


@njit(cache=True, nogil=True)
def match_points(
    lows: I64, highs: I64, dead: U64, cells: int, grid: Any, lists: Any, ordered: bool, bitwise: bool, stamps: I64
) -> tuple[I64, I32]:
    offsets = np.zeros(len(lows) + 1, np.int64)
    matched = np.empty(64, np.int32)
    used = 0
    for event in range(len(lows)):
        marks = dead.copy()
        mark_point(marks, event, lows, highs, cells, grid, lists, ordered)
        if bitwise:
            matched, used = unmarked_bits(marks, matched, used, stamps)
        else:
            matched, used = unmarked(marks, matched, used, stamps)
        offsets[event + 1] = used
    return offsets, matched[:used].copy()
