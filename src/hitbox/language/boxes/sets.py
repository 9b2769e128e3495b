"""Sets of keys on one attribute: sorted closed intervals that neither overlap nor touch.

    a <> 5 OR a IS NULL      ((MISSING, 4), (6, HIGHEST))

MISSING is the key just below LOWEST, so "missing or small" is one interval and EVERYTHING is a single one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hitbox.encoding.arrays import HIGHEST, LOWEST, MISSING

Interval = tuple[int, int]
Set = tuple[Interval, ...]

EVERYTHING: Set = ((MISSING, HIGHEST),)
PRESENT: Set = ((LOWEST, HIGHEST),)
ABSENT: Set = ((MISSING, MISSING),)
EMPTY: Set = ()


def span(low: int, high: int) -> Set:
    """The values from `low` to `high`, cut to what a present value can be."""
    low, high = max(low, LOWEST), min(high, HIGHEST)
    return ((low, high),) if low <= high else EMPTY


def union(sets: Iterable[Set]) -> Set:
    """
    >>> union([((1, 3), (9, 9)), ((4, 6),)])
    ((1, 6), (9, 9))
    """
    intervals = sorted(interval for one in sets for interval in one)
    if len(intervals) < 2:
        return tuple(intervals)
    merged: list[Interval] = []
    low, high = intervals[0]
    for next_low, next_high in intervals:
        if next_low <= high + 1:
            if next_high > high:
                high = next_high
        else:
            merged.append((low, high))
            low, high = next_low, next_high
    merged.append((low, high))
    return tuple(merged)


def complement(one: Set, lowest: int = MISSING) -> Set:
    """
    >>> complement(((1, 3), (9, HIGHEST)), lowest=0)
    ((0, 0), (4, 8))
    """
    found: list[Interval] = []
    for low, high in one:
        if low > lowest:
            found.append((lowest, low - 1))
        lowest = max(lowest, high + 1)
    if lowest <= HIGHEST:
        found.append((lowest, HIGHEST))
    return tuple(found)


def intersection(sets: Sequence[Set]) -> Set:
    """
    >>> intersection([((1, 5), (8, 9)), ((4, 8),)])
    ((4, 5), (8, 8))
    """
    if len(sets) == 1:
        return sets[0]
    low, high = MISSING, HIGHEST
    several: list[Set] = []
    for one in sets:
        if len(one) == 1:
            low, high = max(low, one[0][0]), min(high, one[0][1])
        else:
            several.append(one)
    if low > high:
        return EMPTY
    if len(several) > 1:
        return complement(union(map(complement, [((low, high),), *several])))
    if several:
        return tuple((max(a, low), min(b, high)) for a, b in several[0] if b >= low and a <= high)
    return ((low, high),)


def within(inner: Set, outer: Set) -> bool:
    """Is every key of `inner` in `outer`?"""
    if not inner or not outer or inner[0][0] < outer[0][0] or inner[-1][1] > outer[-1][1]:
        return not inner
    at = 0
    for low, high in inner:
        while at < len(outer) and outer[at][1] < low:
            at += 1
        if at == len(outer) or not (outer[at][0] <= low and high <= outer[at][1]):
            return False
    return True
