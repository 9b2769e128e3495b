"""counting: test every distinct constraint once, count the satisfied ones of each subscription.

The counting algorithm of T. Yan and H. Garcia-Molina (index structures for selective dissemination of information, TODS
1994; the SIFT system, TODS 1999), as carried over to attribute constraints and used as the baseline of index-count. A
box is broken into constraints (attribute, operator, value); equal ones are kept once and linked to their boxes:

    box 7: a in [3, 9], b = 5          operators  =  >=  <=       two-sided is two constraints
    table    (a >= 3) -> 0   (a <= 9) -> 1   (b = 5) -> 2         hash of (attribute and operator, value)
    index    attribute x operator -> [(constraint, value) ...]    by rising value
    links    constraint -> [ 7 ... ]                              the boxes that hold it
    target   7 -> 3                                               counted down; a box that gets to 0 matches

Here every distinct constraint is tested in turn; `index-count` (index_count.py) shares all of this and
tests only as far as it must. Missing values: MISSING lies below all values of `>=`, so at least one of a box's
constraints stays unsatisfied; `IS NULL` is "= MISSING". A lower end at MISSING and an upper end at HIGHEST always hold
and are no constraints. Boxes without constraints match at once.

Cost: match O(distinct constraints + links of the satisfied ones); insert and delete O(k) hash steps and O(k distinct of
that operator) to keep the order; memory 4 bytes per constraint of a box and about 75 per distinct one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from hitbox.encoding.arrays import HIGHEST, I32, I64, MISSING, Boxes, Hits, Points, Space
from hitbox.matchers.box_store import TimedMatcher
from hitbox.matchers.kernels import Lists, grown, now

EQUAL, AT_LEAST, AT_MOST = range(3)
OPERATORS = 3
EMPTY = -1
CHUNK = 1 << 20


def constraints(numbers: I64, boxes: Boxes) -> tuple[I32, I64, I32]:
    """(attribute x operator, value, owner) of every constraint that `boxes` are made of."""
    most = 2 * len(boxes.low)
    kinds, values, owners = np.empty(most, np.int32), np.empty(most, np.int64), np.empty(most, np.int32)
    used = break_up(kinds, values, owners, numbers, boxes.offsets, boxes.attribute, boxes.low, boxes.high)
    return kinds[:used], values[:used], owners[:used]


class Targets:
    """How many constraints each box has, and which have none."""

    def __init__(self, space: Space):
        self.target = np.zeros(0, np.min_scalar_type(2 * space.attributes))
        self.bare = Lists(1, valued=False)

    def insert(self, numbers: I64, owners: I32, capacity: int) -> None:
        if capacity > len(self.target):
            extra = np.zeros(capacity - len(self.target), self.target.dtype)
            self.target = np.concatenate([self.target, extra])
        self.target[numbers] = 0
        count_owners(self.target, owners)
        bare = numbers[self.target[numbers] == 0]
        self.bare.insert(np.zeros(len(bare), np.int64), bare, bare)

    def delete(self, numbers: I64) -> None:
        bare = numbers[self.target[numbers] == 0]
        if len(bare):
            self.bare.purge(np.zeros(len(bare), np.int64), bare)

    @property
    def bare_numbers(self) -> I32:
        return self.bare.numbers[self.bare.start[0] : self.bare.start[0] + self.bare.size[0]]

    def nbytes(self) -> int:
        return self.target.nbytes + self.bare.nbytes()


def counter_map(boxes: int) -> I32:
    """Room for a hash map of (number, count) of up to so many boxes; see `count_up`."""
    room = 1 << max(1, (3 * boxes // 2 - 1).bit_length())
    return np.empty((room, 2), np.int32)  # NumPy uses huge pages for large arrays: access is random


NO_COUNTERS: I32 = np.zeros((0, 2), np.int32)


class Counting(TimedMatcher):
    def __init__(self, space: Space):
        super().__init__(space)
        self.targets = Targets(space)
        self.index = Lists(OPERATORS * space.attributes, ordered=True)
        self.links = Lists(0, valued=False)
        self.table: I32 = np.full(64, EMPTY, np.int32)
        self.kinds: I64 = np.zeros(0, np.int64)
        self.values: I64 = np.zeros(0, np.int64)
        self.free: I64 = np.zeros(0, np.int64)

    def insert(self, numbers: I64, boxes: Boxes) -> None:
        self.store.insert(numbers, boxes)
        kinds, values, owners = constraints(numbers, boxes)
        self.targets.insert(numbers, owners, self.store.capacity)
        order = np.lexsort((values, kinds))  # constraints numbered in the order of the index: links are read in a row
        kinds, values, owners = kinds[order], values[order], owners[order]
        rows = [slice(i, i + CHUNK) for i in range(0, len(kinds), CHUNK)]
        parts = [self._intern(kinds[part], values[part]) for part in rows]
        if parts:
            ids = np.concatenate([ids for ids, _ in parts])
            new = np.concatenate([new for _, new in parts])
            self.links.extend(len(self.kinds))
            self.links.insert(ids, owners, values)
            self.index.insert(self.kinds[new], new, self.values[new])

    def _intern(self, kinds: I32, values: I64) -> tuple[I64, I64]:
        """The constraint of each row, and those that are new."""
        if len(self.free) < len(kinds):
            have = len(self.kinds)
            extra = np.zeros(max(len(kinds), have // 2), np.int64)
            self.kinds, self.values = np.concatenate([self.kinds, extra]), np.concatenate([self.values, extra])
            self.free = np.concatenate([np.arange(have + len(extra) - 1, have - 1, -1), self.free])
        known = len(self.kinds) - len(self.free)
        if 2 * (known + len(kinds)) > len(self.table):
            ids = self.table[self.table != EMPTY]
            self.table = np.full(1 << int(4 * (known + len(kinds))).bit_length(), EMPTY, np.int32)
            rehash(self.table, self.kinds, self.values, ids)
        ids, new = intern(self.table, self.kinds, self.values, self.free, kinds, values)
        self.free = self.free[: len(self.free) - len(new)]
        return ids, new

    def delete(self, numbers: I64) -> None:
        kinds, values, owners = constraints(numbers, self.store.boxes(numbers))
        ids = look_up(self.table, self.kinds, self.values, kinds, values)
        self.links.purge(ids, owners)
        gone = np.unique(ids)
        gone = gone[self.links.size[gone] == 0]
        if len(gone):
            self.index.purge(self.kinds[gone], gone)
            forget(self.table, self.kinds, self.values, gone)
            self.free = np.concatenate([self.free, gone])
        self.targets.delete(numbers)
        self.store.delete(numbers)

    def match_timed(self, points: Points, stamps: I64) -> Hits:
        self.require_points(points)
        return Hits(*count_points(points.low, len(self), *self._index(), stamps))

    def _index(self) -> tuple[Any, ...]:
        return self.index.arrays, self.links.arrays, self.targets.target, self.targets.bare_numbers

    def nbytes(self) -> int:
        arrays = (self.table, self.kinds, self.values, self.free)
        lists = (self.index, self.links, self.targets)
        return sum(a.nbytes for a in arrays) + sum(part.nbytes() for part in lists)


@njit(cache=True, nogil=True)
def break_up(
    kinds: I32, values: I64, owners: I32, numbers: I64, offsets: I64, attribute: I32, low: I64, high: I64
) -> int:
    """Write down the constraints; how many they are."""
    used = 0
    for box in range(len(numbers)):
        for row in range(offsets[box], offsets[box + 1]):
            kind, point = attribute[row] * OPERATORS, low[row] == high[row]
            if point or low[row] != MISSING:
                kinds[used], values[used] = kind + (EQUAL if point else AT_LEAST), low[row]
                owners[used] = numbers[box]
                used += 1
            if not point and high[row] != HIGHEST:
                kinds[used], values[used] = kind + AT_MOST, high[row]
                owners[used] = numbers[box]
                used += 1
    return used


@njit(cache=True, nogil=True)
def count_owners(target: Any, owners: I32) -> None:
    for owner in owners:
        target[owner] += 1


@njit(cache=True, nogil=True)
def home(kind: int, value: int, mask: int) -> int:
    mixed = (np.uint64(value) ^ (np.uint64(kind) << np.uint64(48))) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return np.int64(mixed >> np.uint64(32)) & mask  # type: ignore[return-value]


@njit(cache=True, nogil=True)
def place_of(table: I32, kinds: I64, values: I64, kind: int, value: int) -> int:
    """Where the constraint stands in the table, or the empty place where it would."""
    mask = len(table) - 1
    place = home(kind, value, mask)
    while table[place] != EMPTY and (values[table[place]] != value or kinds[table[place]] != kind):
        place = (place + 1) & mask
    return place  # type: ignore[no-any-return]


@njit(cache=True, nogil=True)
def rehash(table: I32, kinds: I64, values: I64, ids: I32) -> None:
    for id in ids:
        table[place_of(table, kinds, values, kinds[id], values[id])] = id


@njit(cache=True, nogil=True)
def intern(table: I32, kinds: I64, values: I64, free: I64, kind: I32, value: I64) -> tuple[I64, I64]:
    ids, new = np.empty(len(kind), np.int64), np.empty(len(kind), np.int64)
    taken = 0
    for i in range(len(kind)):
        place = place_of(table, kinds, values, kind[i], value[i])
        if table[place] == EMPTY:
            id = free[len(free) - 1 - taken]
            table[place], kinds[id], values[id] = id, kind[i], value[i]
            new[taken] = id
            taken += 1
        ids[i] = table[place]
    return ids, new[:taken].copy()


@njit(cache=True, nogil=True)
def look_up(table: I32, kinds: I64, values: I64, kind: I32, value: I64) -> I64:
    ids = np.empty(len(kind), np.int64)
    for i in range(len(kind)):
        ids[i] = table[place_of(table, kinds, values, kind[i], value[i])]
    return ids


@njit(cache=True, nogil=True)
def forget(table: I32, kinds: I64, values: I64, gone: I64) -> None:
    """Take constraints out of the table; what probed past them moves up, so no tombstones stay."""
    mask = len(table) - 1
    for id in gone:
        hole = place_of(table, kinds, values, kinds[id], values[id])
        probe = (hole + 1) & mask
        while table[probe] != EMPTY:
            wanted = home(kinds[table[probe]], values[table[probe]], mask)
            if ((probe - wanted) & mask) >= ((probe - hole) & mask):
                table[hole] = table[probe]
                hole = probe
            probe = (probe + 1) & mask
        table[hole] = EMPTY


@njit(cache=True, nogil=True)
def empty_map(counters: I32) -> int:
    """Make a counter map empty; the shift that `count_up` hashes with."""
    counters[:] = 0
    shift = 32
    while 1 << (32 - shift) < len(counters):
        shift -= 1
    return shift


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
def report_bare(bare: I32, found: I64, used: int, stamps: I64) -> int:
    for number in bare:
        found[used] = number
        if len(stamps):
            stamps[used] = now()
        used += 1
    return used


@njit(cache=True, nogil=True)
def satisfied(operator: int, key: int) -> tuple[int, int]:
    """The first and last value that a constraint of `operator` may have for `key` to satisfy it."""
    return MISSING if operator == AT_LEAST else key, HIGHEST if operator == AT_MOST else key


@njit(cache=True, nogil=True, inline="always")
def tally(owners: I32, begin: int, end: int, missing: Any, found: I64, used: int, stamps: I64) -> int:
    """Count one satisfied constraint for each of `owners[begin:end]`; the new end of `found`.

    What is `missing` to a box's target counts down: one place in memory to look at instead of two.
    """
    for i in range(begin, end):
        number = owners[i]
        missing[number] -= 1
        if missing[number] == 0:
            found[used] = number
            if len(stamps):
                stamps[used] = now()
            used += 1
    return used


@njit(cache=True, nogil=True)
def tally_in_map(
    owners: I32, begin: int, end: int, counters: I32, shift: int, target: Any, found: I64, used: int, stamps: I64
) -> int:
    """`tally` with a map of counters, which count up."""
    for i in range(begin, end):
        number = owners[i]
        if count_up(counters, shift, number) == target[number]:
            found[used] = number
            if len(stamps):
                stamps[used] = now()
            used += 1
    return used


@njit(cache=True, nogil=True)
def count_points(lows: I64, count: int, index: Any, links: Any, target: Any, bare: I32, stamps: I64) -> tuple[I64, I32]:
    start, size, constraint, values = index
    heads, sizes, owners, _ = links
    offsets = np.zeros(len(lows) + 1, np.int64)
    matched = np.empty(64, np.int32)
    used = 0
    for event in range(len(lows)):
        missing = target.copy()
        matched = grown(matched, used + count)
        used = report_bare(bare, matched, used, stamps)
        for kind in range(len(start)):
            first, last = satisfied(kind % OPERATORS, lows[event, kind // OPERATORS])
            for i in range(start[kind], start[kind] + size[kind]):
                if first <= values[i] <= last:
                    id = constraint[i]
                    used = tally(owners, heads[id], heads[id] + sizes[id], missing, matched, used, stamps)
        offsets[event + 1] = used
    return offsets, matched[:used].copy()
