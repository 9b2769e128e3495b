"""opindex: subscriptions by pivot attribute, their predicates by operator class, counted down to zero.

OpIndex (Zhang, Chan and Tan, "An Efficient Publish/Subscribe Index for E-Commerce Databases", PVLDB 2014), here from
that publication and its description in the DEXIN paper. A subscription belongs to the partition of its **pivot**: the
rarest of its attributes, so an event need only visit the partitions of attributes that it carries. Within a partition
predicates are classed by attribute and operator:

    partition p   signature [ 0 1 0 0 1 ... ]     hashes of its (attribute, value) equalities
      (a, >=)     values ascending   -> numbers   satisfied ones are a prefix, in 16 segments of the range: whole
                                                  segments are counted unseen, the last one up to the event's value
      (a, <=)     values descending  -> numbers   the same, on complemented values
      (a,  =)     hash buckets       -> numbers   probed only where the signature has the bit
    counter       predicates still to satisfy, one counter per number; zero is a match

Choices where the paper leaves room: a range is a `>=` and a `<=` predicate; `IS NULL` is an equality with "missing"; a
box that needs no attribute to be present lives in one more partition that every event visits. The rarity of attributes
is counted when the index is (re)built (see grid.py). A signature has 2^16 bits, which deletes leave set until the next
rebuild. Hash collisions count a predicate too often, so a counter at zero is confirmed by the exact bounds.

Cost: match O(satisfied predicates in visited partitions) + a copy of the counters; insert and delete O(segments of
the box); memory 12 bytes per predicate, two predicates per range, 2 bytes per box, beside the exact bounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from hitbox.encoding.arrays import HIGHEST, I32, I64, LOWEST, MISSING, Boxes, Hits, Points, Space
from hitbox.matchers.grid import U16, Gridded, Rulers, code, confirm, count_off, report, widened
from hitbox.matchers.kernels import U64, Lists

GREATER, LESS, EQUAL = 0, 1, 2
SIGNATURE = 1 << 16
SEGMENTS = 16


class OpIndex(Gridded):
    top = SEGMENTS

    def __init__(self, space: Space):
        super().__init__(space)
        self._restart(Boxes.of([]))

    def _restart(self, boxes: Boxes) -> None:
        attributes = self.space.attributes
        self.rarity = np.bincount(boxes.attribute, minlength=attributes)
        self.classes: I64 = np.zeros(0, np.int64)  # (pivot, attribute, operator) in one number, ascending
        self.list_of: I64 = np.zeros(0, np.int64)
        self.first: I64 = np.zeros(attributes + 2, np.int64)
        self.ranges = Lists(0, ordered=True)
        self.buckets = Lists(1)
        self.signature: U64 = np.zeros((attributes + 1, SIGNATURE // 64), np.uint64)
        self.needs: U16 = np.zeros(0, np.uint16)
        self.bare: I32 = np.zeros(0, np.int32)

    def pivots(self, boxes: Boxes) -> I64:
        """The rarest attribute that each box needs to be present; `attributes` where there is none."""
        attributes = self.space.attributes
        pivots: I64 = pivots_of(boxes.offsets, boxes.attribute, boxes.low, self.rarity, attributes)
        return pivots

    def _predicates(self, numbers: I64, boxes: Boxes) -> tuple[I64, I64, I64]:
        """Class, value and number of every predicate; values of `<=` are complemented so that all lists ascend."""
        width = np.diff(boxes.offsets)
        owner = np.repeat(numbers, width)
        base = (np.repeat(self.pivots(boxes), width) * self.space.attributes + boxes.attribute) * 3
        low, high = boxes.low, boxes.high
        equal, or_missing = low == high, (low == MISSING) & (high > MISSING) & (high < HIGHEST)
        greater = ~equal & (low > MISSING) & ((low > LOWEST) | (high == HIGHEST))
        less = ~equal & (high < HIGHEST)
        parts = [(greater, GREATER, low), (less, LESS, ~high), (equal | or_missing, EQUAL, low)]
        return (
            np.concatenate([base[rows] + operator for rows, operator, _ in parts]),
            np.concatenate([values[rows] for rows, _, values in parts]),
            np.concatenate([owner[rows] for rows, _, _ in parts]),
        )

    def _place(self, numbers: I64, boxes: Boxes) -> None:
        classes, values, owners = self._predicates(numbers, boxes)
        self._open(np.unique(classes))
        equal = classes % 3 == EQUAL
        self.ranges.insert(self._lists(classes[~equal], values[~equal]), owners[~equal], values[~equal])
        hashes = hashes_of(classes[equal], values[equal])
        sign(self.signature, classes[equal] // (3 * self.space.attributes), hashes)
        self._bucket(hashes, owners[equal])
        self._count(numbers, boxes)

    def _lists(self, classes: I64, values: I64) -> I64:
        """The list of each ordered predicate: its class, then the segment that its value lies in."""
        first = self.list_of[np.searchsorted(self.classes, classes)]
        lists: I64 = first * SEGMENTS + segments_of(classes, values, self.space.attributes, self.grid.rulers)
        return lists

    def _count(self, numbers: I64, boxes: Boxes) -> None:
        self.needs = widened(self.needs, self.store.capacity)
        low, high = boxes.low, boxes.high
        each = np.where((low > LOWEST) & (high < HIGHEST) & (low != high), 2, 1)
        each[(low == MISSING) & (high == HIGHEST)] = 0
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(each)])[boxes.offsets]
        self.needs[numbers] = np.diff(ends)
        self.bare = np.concatenate([self.bare, numbers[np.diff(ends) == 0].astype(np.int32)])

    def _open(self, classes: I64) -> None:
        new = np.setdiff1d(classes, self.classes, assume_unique=True)
        if len(new):
            lists = np.concatenate([self.list_of, len(self.list_of) + np.arange(len(new))])
            both = np.concatenate([self.classes, new])
            order = np.argsort(both)
            self.classes, self.list_of = both[order], lists[order]
            attributes = self.space.attributes
            self.first = np.searchsorted(self.classes, np.arange(attributes + 2) * attributes * 3)
            self.ranges.extend(SEGMENTS * len(lists))

    def _bucket(self, hashes: I64, numbers: I64) -> None:
        """Add to the hash buckets, twice as many of them where there is more than one entry per bucket."""
        count = len(self.buckets.start)
        total = self.buckets.live + len(hashes)
        if total > count:
            old_hashes, old_numbers = entries(*self.buckets.arrays)
            count = 1 << int(2 * total).bit_length()
            self.buckets = Lists(count)
            hashes, numbers = np.concatenate([old_hashes, hashes]), np.concatenate([old_numbers, numbers])
        self.buckets.insert(hashes & (count - 1), numbers, hashes)

    def _remove(self, numbers: I64) -> None:
        classes, values, owners = self._predicates(numbers, self.store.boxes(numbers))
        equal = classes % 3 == EQUAL
        self.ranges.delete(self._lists(classes[~equal], values[~equal]), owners[~equal])
        hashes = hashes_of(classes[equal], values[equal])
        self.buckets.delete(hashes & (len(self.buckets.start) - 1), owners[equal])
        self.needs[numbers] = 0
        self.bare = self.bare[~np.isin(self.bare, numbers)]

    def match_timed(self, points: Points, stamps: I64) -> Hits:
        self.require_points(points)
        partitions = (self.first, self.classes, self.list_of, self.signature)
        index = (*partitions, self.ranges.arrays, self.buckets.arrays, self.needs, self.bare)
        return Hits(*count_down(points.low, *index, self.grid.rulers, self.bounds, stamps))

    def nbytes(self) -> int:
        return (
            super().nbytes() + self.ranges.nbytes() + self.buckets.nbytes() + self.signature.nbytes + self.needs.nbytes
        )


@njit(cache=True, nogil=True)
def pivots_of(offsets: I64, attribute: Any, low: I64, rarity: I64, none: int) -> I64:
    pivots = np.full(len(offsets) - 1, none, np.int64)
    for box in range(len(pivots)):
        for row in range(offsets[box], offsets[box + 1]):
            if low[row] > MISSING and (pivots[box] == none or rarity[attribute[row]] < rarity[pivots[box]]):
                pivots[box] = attribute[row]
    return pivots


@njit(cache=True, nogil=True)
def mixed(kind: int, value: int) -> int:
    """A hash of (class, value): the finaliser of splitmix64, which spreads neighbours over all 64 bits."""
    word = np.uint64(value) + np.uint64(kind + 1) * np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return int(np.int64(word ^ (word >> np.uint64(31))))


@njit(cache=True, nogil=True)
def hashes_of(kinds: I64, values: I64) -> I64:
    hashes = np.empty(len(kinds), np.int64)
    for i in range(len(kinds)):
        hashes[i] = mixed(kinds[i], values[i])
    return hashes


@njit(cache=True, nogil=True)
def sign(signature: U64, pivots: I64, hashes: I64) -> None:
    for i in range(len(pivots)):
        bit = (hashes[i] >> 40) & (SIGNATURE - 1)
        signature[pivots[i], bit >> 6] |= np.uint64(1) << np.uint64(bit & 63)


@njit(cache=True, nogil=True)
def entries(start: I64, size: I64, numbers: Any, values: I64) -> tuple[I64, I64]:
    total = size.sum()
    all_values, all_numbers = np.empty(total, np.int64), np.empty(total, np.int64)
    used = 0
    for number in range(len(size)):
        for place in range(start[number], start[number] + size[number]):
            all_values[used], all_numbers[used] = values[place], numbers[place]
            used += 1
    return all_values, all_numbers


@njit(cache=True, nogil=True)
def count_equal(
    kind: int, key: int, signature: U64, start: I64, size: I64, numbers: I32, hashes: I64, counter: U16, reached: I32
) -> int:
    hashed = mixed(kind, key)
    bit = (hashed >> 40) & (SIGNATURE - 1)
    if (signature[bit >> 6] >> np.uint64(bit & 63)) & np.uint64(1) == 0:
        return 0
    used, bucket = 0, hashed & (len(start) - 1)
    for place in range(start[bucket], start[bucket] + size[bucket]):
        if hashes[place] == hashed:
            used += count_off(numbers, place, place + 1, counter, reached[used:])
    return used


@njit(cache=True, nogil=True)
def segment(kind: int, value: int, attributes: int, grid: Rulers) -> int:
    """Which part of its class a value (complemented for `<=`) lies in; segments ascend as the values do."""
    attribute = (kind // 3) % attributes
    if kind % 3 == LESS:
        return SEGMENTS - int(code(attribute, ~value, grid))
    return int(code(attribute, value, grid)) - 1


@njit(cache=True, nogil=True)
def segments_of(kinds: I64, values: I64, attributes: int, grid: Rulers) -> I64:
    segments = np.empty(len(kinds), np.int64)
    for i in range(len(kinds)):
        segments[i] = segment(kinds[i], values[i], attributes, grid)
    return segments


@njit(cache=True, nogil=True)
def count_ordered(
    first: int, last: int, key: int, start: I64, size: I64, numbers: I32, values: I64, counter: U16, reached: I32
) -> int:
    """All predicates of the lists before `last`, and those of `last` up to the first that `key` does not reach."""
    used: int = 0
    for number in range(first, last):
        used += count_off(numbers, start[number], start[number] + size[number], counter, reached[used:])
    length = np.searchsorted(values[start[last] : start[last] + size[last]], key, side="right")
    used += count_off(numbers, start[last], start[last] + length, counter, reached[used:])
    return used


@njit(cache=True, nogil=True)
def count_down(
    lows: I64, first: I64, classes: I64, list_of: I64, signature: U64, ranges: Any, buckets: Any, needs: U16, bare: I32,
    grid: Rulers, bounds: Any, stamps: I64,
) -> tuple[I64, I32]:  # fmt: skip
    attributes = lows.shape[1]
    offsets = np.zeros(len(lows) + 1, np.int64)
    matched, used = np.empty(64, np.int32), 0
    counter, reached = np.empty(len(needs), np.uint16), np.empty(len(needs), np.int32)
    for event in range(len(lows)):
        keys = lows[event]
        counter[:] = needs
        matched, used = report(bare, len(bare), matched, used, stamps)
        for pivot in range(attributes + 1):
            if pivot < attributes and keys[pivot] == MISSING:
                continue
            for c in range(first[pivot], first[pivot + 1]):
                operator, key = classes[c] % 3, keys[(classes[c] // 3) % attributes]
                count = 0
                if operator == EQUAL:
                    count = count_equal(classes[c], key, signature[pivot], *buckets, counter, reached)
                elif key != MISSING:
                    key = key if operator == GREATER else ~key
                    begin = list_of[c] * SEGMENTS
                    last = begin + segment(classes[c], key, attributes, grid)
                    count = count_ordered(begin, last, key, *ranges, counter, reached)
                count = confirm(reached, count, keys, keys, *bounds)
                matched, used = report(reached, count, matched, used, stamps)
        offsets[event + 1] = used
    return offsets, matched[:used].copy()
