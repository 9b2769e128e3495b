"""index-count: counting, but the index tells which constraints hold without testing them.

T. Xue, Q. Jia: "A fast matching algorithm for content-based publish/subscribe systems". Constraints are kept once and
indexed by type, attribute and operator (types are one key line here, so attribute and operator remain); see counting.py
for the layout. For each attribute of the event:

    =     one look into the hash table
    >=    ordered by value: the constraints up to the event's key hold      [ 2 5 7 | 9 12 ]   key 8
    <=    ordered by value: the constraints from the event's key on hold    [ 1 4 | 8 9 11 ]

In the order of covering (the tightest first) the first constraint that holds covers all behind it, so one binary search
finds them all. Then their links are counted as in `counting`.

Left open by the paper: its "first match" is found by binary search; other operators of the language (strings included)
arrive as keys and so are one of these three.

Cost: match O(m log distinct + links of the satisfied constraints); insert, delete and memory as `counting`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from hitbox.encoding.arrays import I32, I64, MISSING, Hits, Points
from hitbox.matchers.counting import AT_LEAST, AT_MOST, EMPTY, EQUAL, OPERATORS, Counting, place_of, report_bare, tally
from hitbox.matchers.kernels import grown
from hitbox.matchers.rein import cut


class IndexCount(Counting):
    def match_timed(self, points: Points, stamps: I64) -> Hits:
        self.require_points(points)
        table = (self.table, self.kinds, self.values)
        return Hits(*count_covered(points.low, len(self), table, *self._index(), stamps))


@njit(cache=True, nogil=True)
def stretch(kind: int, key: int, start: I64, size: I64, values: I64) -> tuple[int, int]:
    """The part of an ordered list that `key` satisfies."""
    begin, end = start[kind], start[kind] + size[kind]
    if kind % OPERATORS == AT_LEAST:
        return begin, begin + cut(values[begin:end], key)
    if kind % OPERATORS == AT_MOST and key > MISSING:
        return begin + cut(values[begin:end], key - 1), end
    return begin, end


@njit(cache=True, nogil=True)
def count_covered(
    lows: I64, count: int, table: Any, index: Any, links: Any, target: Any, bare: I32, stamps: I64
) -> tuple[I64, I32]:
    start, size, constraint, values = index
    heads, sizes, owners, _ = links
    offsets = np.zeros(len(lows) + 1, np.int64)
    found = np.empty(64, np.int32)
    equal = np.empty(1, np.int32)
    used = 0
    for event in range(len(lows)):
        missing = target.copy()
        found = grown(found, used + count)
        used = report_bare(bare, found, used, stamps)
        for kind in range(len(start)):
            key = lows[event, kind // OPERATORS]
            if kind % OPERATORS == EQUAL:
                equal[0] = table[0][place_of(table[0], table[1], table[2], kind, key)]
                holding = equal if equal[0] != EMPTY else equal[:0]
            else:
                begin, end = stretch(kind, key, start, size, values)
                holding = constraint[begin:end]
            for one in holding:
                used = tally(heads, sizes, owners, one, missing, found, used, stamps)
        offsets[event + 1] = used
    return offsets, found[:used].copy()
