"""index-count: counting, but the index tells which constraints hold without testing them.

T. Xue, Q. Jia: "A fast matching algorithm for content-based publish/subscribe systems". Constraints are kept once and
indexed level by level, by type, attribute and operator; see counting.py for the constraints themselves:

    type        attribute (hash table of the type)      operator
    integer  -> { price, volume }                    -> =  >=  <=   -> constraints
    string   -> { city }                             -> =  >=  <=

A schema gives each attribute one type, so this level only decides in which table an attribute is looked up. Matchers
see keys, not types; `types` says over how many types the attributes are spread. For each attribute of the event:

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

from hitbox.encoding.arrays import I32, I64, MISSING, Hits, Points, Space
from hitbox.matchers.base import check_count
from hitbox.matchers.counting import AT_LEAST, AT_MOST, EMPTY, EQUAL, OPERATORS, Counting, place_of, report_bare, tally
from hitbox.matchers.kernels import grown
from hitbox.matchers.rein import cut


class IndexCount(Counting):
    def __init__(self, space: Space, *, types: int = 1):
        check_count("types", types, 1)
        super().__init__(space)
        self.type_of: I32 = np.arange(space.attributes, dtype=np.int32) % np.int32(types)
        room = 1 << int(2 * -(-space.attributes // types)).bit_length()
        self.names: I32 = np.full((types, room), EMPTY, np.int32)
        """The attributes of each type, as hash tables of one size."""
        for attribute, own in enumerate(self.type_of.tolist()):
            self.names[own, name_place(self.names[own], attribute)] = attribute

    def match_timed(self, points: Points, stamps: I64) -> Hits:
        self.require_points(points)
        levels = (self.type_of, self.names)
        table = (self.table, self.kinds, self.values)
        return Hits(*count_covered(points.low, len(self), levels, table, *self._index(), stamps))

    def nbytes(self) -> int:
        return super().nbytes() + self.type_of.nbytes + self.names.nbytes


@njit(cache=True, nogil=True)
def name_place(names: I32, attribute: int) -> int:
    """Where an attribute stands in the table of its type, or the empty place where it would."""
    mask = len(names) - 1
    place = (attribute * 0x9E3779B1 >> 7) & mask
    while names[place] != EMPTY and names[place] != attribute:
        place = (place + 1) & mask
    return place


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
    lows: I64, count: int, levels: Any, table: Any, index: Any, links: Any, target: Any, bare: I32, stamps: I64
) -> tuple[I64, I32]:
    type_of, names = levels
    start, size, constraint, values = index
    heads, sizes, owners, _ = links
    offsets = np.zeros(len(lows) + 1, np.int64)
    matched = np.empty(64, np.int32)
    equal = np.empty(1, np.int32)
    used = 0
    for event in range(len(lows)):
        missing = target.copy()
        matched = grown(matched, used + count)
        used = report_bare(bare, matched, used, stamps)
        for attribute in range(lows.shape[1]):
            key, own = lows[event, attribute], names[type_of[attribute]]
            name = own[name_place(own, attribute)]
            for kind in range(name * OPERATORS, (name + 1) * OPERATORS):
                if kind % OPERATORS == EQUAL:
                    equal[0] = table[0][place_of(table[0], table[1], table[2], kind, key)]
                    holding = equal if equal[0] != EMPTY else equal[:0]
                else:
                    begin, end = stretch(kind, key, start, size, values)
                    holding = constraint[begin:end]
                for id in holding:
                    used = tally(owners, heads[id], heads[id] + sizes[id], missing, matched, used, stamps)
        offsets[event + 1] = used
    return offsets, matched[:used].copy()
