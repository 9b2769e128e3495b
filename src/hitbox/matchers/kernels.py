"""What the Numba matchers share: bit sets over box numbers, lists in one arena, stamps, collecting the result.

    bit set    uint64 words, bit (number & 63) of word (number >> 6)
    Living     `dead`: bit set, 1 where no box lives, so that a match starts with `dead.copy()` and whatever is
               unmarked at the end is a living hit
    Lists      start  size  room          one of each per list
                 |      |
    numbers    [ 3 8 9 . . | 1 4 . | ... ]    int32, contiguous within a list: sweeping one is a linear read
    values     [ . . . . . | . . . | ... ]    int64 beside them (none in lists that are not `valued`)

A list that is full moves to the end of the arena with half as much room again; the arena is packed again, with an
eighth of slack in each list, when half of it is waste, and when many entries arrive at once. Cost: append O(1)
amortised, O(list) where lists are kept `ordered` by value; delete O(list), or O(arena) for many at once. Big arrays are
made by NumPy and filled by kernels: it asks the system for huge pages, Numba does not, and a build spends a third on
touching new pages.

Stamps: a kernel that emits matches takes an int64 array `stamps`; where it is not empty, the moment at which the k-th
match was determined goes into `stamps[k]`, in nanoseconds of the monotonic clock. A matcher whose
kernel does not read the clock for each match sets `clock_each_match = False` (box_store.py).
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from hitbox.encoding.arrays import I32, I64

U64 = NDArray[np.uint64]
Ints = I32 | I64

CLOCK = int(time.CLOCK_MONOTONIC)
FULL = np.uint64(0xFFFFFFFFFFFFFFFF)
SHORT = 64
"""A list that is sorted by moving its entries one by one, where they nearly are in order."""
DEAR = 50
"""Times as long as copying an entry: adding one where lists are full and have to move, or are kept in order."""
AHEAD = 32
"""Entries between asking for the end of a list and writing there: lists are many, and their ends not in the cache."""
STRETCH = 1024
"""Bits looked at one by one between two readings of the clock: a microsecond."""


@intrinsic
def now(typing_context: Any) -> Any:
    """Nanoseconds of the monotonic clock, read without leaving the kernel."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        i64, i32 = ir.IntType(64), ir.IntType(32)
        moment = builder.alloca(ir.ArrayType(i64, 2))  # struct timespec
        signature = ir.FunctionType(i32, [i32, moment.type])
        module = builder.module
        clock = module.globals.get("clock_gettime") or ir.Function(module, signature, "clock_gettime")
        builder.call(clock, [i32(CLOCK), moment])
        parts = builder.load(moment)
        seconds, nanoseconds = builder.extract_value(parts, 0), builder.extract_value(parts, 1)
        return builder.add(builder.mul(seconds, i64(1_000_000_000)), nanoseconds)

    return types.int64(), generate


@intrinsic
def trailing_zeros(typing_context: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.IntType(1)(0))

    return types.int64(types.uint64), generate


@intrinsic
def ones(typing_context: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), generate


@intrinsic
def prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of a contiguous array's item (flat index) that will be read soon."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        i32, pointer = ir.IntType(32), ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer, i32, i32, i32])
        hint = builder.module.globals.get("llvm.prefetch.p0") or ir.Function(builder.module, kind, "llvm.prefetch.p0")
        address = builder.bitcast(builder.gep(data, [arguments[1]]), pointer)
        builder.call(hint, [address, i32(0), i32(3), i32(1)])  # for reading, keep near, data
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


@intrinsic
def slide(typing_context: Any, array: Any, begin: Any, end: Any, by: Any) -> Any:
    """Move the items from `begin` to `end` (flat indices of a contiguous array) by some places, as one block."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, first, last, by = arguments
        data = context.make_array(signature.args[0])(context, builder, source).data
        here, there = builder.gep(data, [first]), builder.gep(data, [builder.add(first, by)])
        size = context.get_abi_sizeof(context.get_data_type(signature.args[0].dtype))
        cgutils.raw_memmove(builder, there, here, builder.sub(last, first), size)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64, types.int64), generate


@njit(cache=True, nogil=True)
def set_bits(bits: U64, numbers: Ints) -> None:
    for number in numbers:
        bits[number >> 6] |= np.uint64(1) << np.uint64(number & 63)


@njit(cache=True, nogil=True)
def clear_bits(bits: U64, numbers: I64) -> None:
    for number in numbers:
        bits[number >> 6] &= ~(np.uint64(1) << np.uint64(number & 63))


@njit(cache=True, nogil=True)
def grown(array: Any, size: int) -> Any:
    """`array` itself where it has `size` places, else a copy with at least half as much room again."""
    if size <= len(array):
        return array
    bigger = np.empty(max(size, len(array) * 3 // 2), array.dtype)
    bigger[: len(array)] = array
    return bigger


@njit(cache=True, nogil=True)
def grown_for_unmarked(marks: U64, found: I32, used: int) -> I32:
    """`found` with room for all numbers whose bit is 0, behind `found[:used]`."""
    count = 0
    for word in marks:
        count += ones(~word)
    room: I32 = grown(found, used + count)
    return room


@njit(cache=True, nogil=True)
def mark(marks: U64, numbers: I32) -> None:
    for number in numbers:
        marks[number >> 6] |= np.uint64(1) << np.uint64(number & 63)


@njit(cache=True, nogil=True)
def unmarked(marks: U64, found: I32, used: int, stamps: I64) -> tuple[I32, int]:
    """Append the numbers whose bit is 0 to `found[:used]`; the (possibly moved) array and its new end."""
    found = grown_for_unmarked(marks, found, used)
    for place in range(len(marks)):
        rest = ~marks[place]
        while rest != 0:
            found[used] = place * 64 + trailing_zeros(rest)
            if len(stamps):
                stamps[used] = now()
            used += 1
            rest &= rest - np.uint64(1)
    return found, used


@njit(cache=True, nogil=True)
def unmarked_bits(marks: U64, found: I32, used: int, stamps: I64) -> tuple[I32, int]:
    """`unmarked`, looking at one bit after the other.

    A look takes about a nanosecond and reading the clock twenty, so it is read once a STRETCH, whose matches are taken
    to lie evenly in it: the instrument then costs next to nothing, however many match.
    """
    found = grown(found, used + 64 * len(marks))
    begin = now() if len(stamps) else 0
    for first in range(0, len(marks), STRETCH // 64):
        before = used
        for word in range(first, min(first + STRETCH // 64, len(marks))):
            free = ~marks[word]
            for bit in range(64):
                found[used] = 64 * word + bit  # stays only if `used` moves on: no branch to mispredict
                used += int((free >> np.uint64(bit)) & np.uint64(1))
        if len(stamps):
            begin = stamp_evenly(stamps[before:used], begin)
    return found, used


@njit(cache=True, nogil=True)
def unmarked_among(numbers: I32, marks: U64, found: I32, used: int, stamps: I64) -> tuple[I32, int]:
    """`unmarked_bits`, but only those of `numbers`, in their order."""
    found = grown(found, used + len(numbers))
    begin = now() if len(stamps) else 0
    for first in range(0, len(numbers), STRETCH):
        before = used
        for number in numbers[first : first + STRETCH]:
            found[used] = number
            used += int((~marks[number >> 6] >> np.uint64(number & 63)) & np.uint64(1))
        if len(stamps):
            begin = stamp_evenly(stamps[before:used], begin)
    return found, used


@njit(cache=True, nogil=True)
def stamp_evenly(stamps: I64, begin: int) -> int:
    """Fill `stamps` with moments between `begin` and now; that now."""
    end: int = now()
    step = (end - begin) / (len(stamps) + 1)
    for k in range(len(stamps)):
        stamps[k] = begin + np.int64((k + 1) * step)
    return end


@njit(cache=True, nogil=True)
def stamp(stamps: I64) -> None:
    """Fill `stamps`, to see what reading the clock costs."""
    for i in range(len(stamps)):
        stamps[i] = now()


class Living:
    """Which numbers are in use, as the bit set `dead`."""

    def __init__(self) -> None:
        self.dead: U64 = np.zeros(0, np.uint64)

    def insert(self, numbers: I64) -> None:
        if not len(numbers):
            return
        words = (int(numbers.max()) >> 6) + 1
        if words > len(self.dead):
            extra = max(words, len(self.dead) * 3 // 2) - len(self.dead)
            self.dead = np.concatenate([self.dead, np.full(extra, FULL)])
        clear_bits(self.dead, numbers)

    def delete(self, numbers: I64) -> None:
        set_bits(self.dead, numbers)


class Lists:
    """`count` growing lists of (number, value) in one arena."""

    def __init__(self, count: int, *, valued: bool = True, ordered: bool = False):
        self.valued, self.ordered = valued, ordered
        self.start, self.size, self.room = (np.zeros(count, np.int64) for _ in range(3))
        self.numbers: I32 = np.zeros(0, np.int32)
        self.values: I64 = np.zeros(0, np.int64)
        self.used = self.live = 0

    @property
    def arrays(self) -> tuple[I64, I64, I32, I64]:
        """What kernels read: start, size, numbers, values."""
        return self.start, self.size, self.numbers, self.values

    def insert(self, lists: Ints, numbers: Ints, values: I64) -> None:
        more = numbers.astype(np.int32, copy=False)
        if len(lists) * DEAR > self.live + len(self.start):
            self._pack(lists, more, values)
            return
        self.numbers, self.values, self.used = append(
            *self._all(), self.used, lists, more, values, self.valued, self.ordered
        )
        self.live += len(lists)
        self._tidy()

    def delete(self, lists: Ints, numbers: Ints) -> None:
        remove(*self._all(), lists, numbers.astype(np.int32, copy=False), self.valued, self.ordered)
        self.live -= len(lists)
        self._tidy()

    def purge(self, lists: Ints, numbers: Ints) -> None:
        """`delete` for numbers that leave every list they are in: one pass over all where that reads less."""
        if self.size[lists].sum() <= 2 * self.live:
            self.delete(lists, numbers)
            return
        gone = np.zeros((int(numbers.max()) >> 6) + 1, np.uint64)
        set_bits(gone, numbers)
        sift(*self.arrays, gone, self.valued)
        self.live -= len(lists)
        self._tidy()

    def extend(self, count: int) -> None:
        """Make room for `count` lists altogether."""
        extra = max(count, len(self.start) * 3 // 2) - len(self.start)
        if count > len(self.start):
            grow = np.zeros(extra, np.int64)
            self.start, self.size, self.room = (np.concatenate([a, grow]) for a in (self.start, self.size, self.room))

    def nbytes(self) -> int:
        return sum(a.nbytes for a in self._all())

    def _all(self) -> tuple[I64, I64, I64, I32, I64]:
        return self.start, self.size, self.room, self.numbers, self.values

    def _tidy(self) -> None:
        if self.used > 2 * self.live + 8 * len(self.start):
            self._pack(np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.int64))

    def _pack(self, lists: Ints, numbers: I32, values: I64) -> None:
        """A new arena that holds what was there, and `numbers` (with their `values`) at the end of `lists`."""
        begin, total, room = lay_out(self.size, lists)
        used = int(begin[-1] + room[-1]) if len(begin) else 0
        arena = np.empty(used, np.int32), np.empty(used if self.valued else 0, np.int64)
        pack(*self.arrays, lists, numbers, values, begin, total, *arena, self.valued, self.ordered)
        self.start, self.size, self.room = begin, total, room
        self.numbers, self.values = arena
        self.used, self.live = used, int(total.sum())


@njit(cache=True, nogil=True)
def lay_out(size: I64, lists: Ints) -> tuple[I64, I64, I64]:
    """Start, size and room of each list in a new arena, when `lists` have got one entry more for each mention."""
    total = size.copy()
    for number in lists:
        total[number] += 1
    room = total + total // 8
    begin = np.empty_like(size)
    used = 0
    for number in range(len(size)):
        begin[number] = used
        used += room[number]
    return begin, total, room


@njit(cache=True, nogil=True)
def pack(
    start: I64, size: I64, numbers: I32, values: I64, lists: Ints, more: I32, their: I64,
    begin: I64, total: I64, numbers_new: I32, values_new: I64, valued: bool, ordered: bool,
) -> None:  # fmt: skip
    end = begin + size
    for number in np.flatnonzero(size):
        numbers_new[begin[number] : end[number]] = numbers[start[number] : start[number] + size[number]]
        if valued:
            values_new[begin[number] : end[number]] = values[start[number] : start[number] + size[number]]
    for i in range(len(lists)):
        soon, place = end[lists[min(i + AHEAD, len(lists) - 1)]], end[lists[i]]
        prefetch(numbers_new, soon)
        numbers_new[place] = more[i]
        if valued:
            prefetch(values_new, soon)
            values_new[place] = their[i]
        end[lists[i]] += 1
    if ordered:
        for number in np.flatnonzero(total > size):
            sort_by_value(numbers_new[begin[number] : end[number]], values_new[begin[number] : end[number]])


@njit(cache=True, nogil=True)
def sort_by_value(numbers: I32, values: I64) -> None:
    """By counting where values lie close together, as they do in a list of a few out of a domain's many.

    Of a short list only the upper bits are counted, and neighbours change places in the end.
    """
    low, high = values[0], values[0]
    for value in values:
        low, high = min(low, value), max(high, value)
    span, short, shift = np.uint64(high) - np.uint64(low), len(values) <= SHORT, np.uint64(0)
    while short and span >> shift > np.uint64(2 * len(values)):
        shift += np.uint64(1)
    if span >> shift > np.uint64(1024 + 8 * len(values)):
        order = np.argsort(values)
        numbers[:], values[:] = numbers[order], values[order]
        return
    end = np.zeros(np.int64(span >> shift) + 1, np.int32)
    for value in values:
        end[(np.uint64(value) - np.uint64(low)) >> shift] += 1
    before = np.int32(0)
    for i in range(len(end)):
        count = end[i]
        end[i] = before
        before += count
    old, their = numbers.copy(), values.copy()
    for i in range(len(old)):
        slot = (np.uint64(their[i]) - np.uint64(low)) >> shift
        numbers[end[slot]], values[end[slot]] = old[i], their[i]
        end[slot] += 1
    if shift:
        for i in range(1, len(values)):
            number, value, place = numbers[i], values[i], i
            while place and values[place - 1] > value:
                numbers[place], values[place] = numbers[place - 1], values[place - 1]
                place -= 1
            numbers[place], values[place] = number, value


@njit(cache=True, nogil=True)
def append(
    start: I64, size: I64, room: I64, numbers: I32, values: I64, used: int,
    lists: Ints, more: I32, their: I64, valued: bool, ordered: bool,
) -> tuple[I32, I64, int]:  # fmt: skip
    """Add one by one; a full list moves to the end of the arena. The (possibly moved) arena and its new end."""
    for i in range(len(lists)):
        into = lists[i]
        if size[into] == room[into]:
            room[into] = max(4, room[into] * 3 // 2)
            numbers = grown(numbers, used + room[into])
            numbers[used : used + size[into]] = numbers[start[into] : start[into] + size[into]]
            if valued:
                values = grown(values, len(numbers))
                values[used : used + size[into]] = values[start[into] : start[into] + size[into]]
            start[into] = used
            used += room[into]
        place = start[into] + size[into]
        while ordered and place > start[into] and values[place - 1] > their[i]:
            numbers[place], values[place] = numbers[place - 1], values[place - 1]
            place -= 1
        numbers[place] = more[i]
        if valued:
            values[place] = their[i]
        size[into] += 1
    return numbers, values, used


@njit(cache=True, nogil=True)
def remove(
    start: I64, size: I64, room: I64, numbers: I32, values: I64, lists: Ints, gone: I32, valued: bool, ordered: bool
) -> None:
    """Take `gone[i]` out of `lists[i]`: the last one fills its place, or all behind it move up where order counts."""
    for i in range(len(lists)):
        out_of = lists[i]
        place, last = start[out_of], start[out_of] + size[out_of] - 1
        while numbers[place] != gone[i]:
            place += 1
        if ordered:
            slide(numbers, place + 1, last + 1, -1)
            slide(values, place + 1, last + 1, -1)
        else:
            numbers[place] = numbers[last]
            if valued:
                values[place] = values[last]
        size[out_of] -= 1


@njit(cache=True, nogil=True)
def sift(start: I64, size: I64, numbers: I32, values: I64, gone: U64, valued: bool) -> None:
    """Take the numbers whose bit is set out of every list; what stays keeps its order."""
    top = len(gone) * 64
    for at in range(len(size)):
        kept = start[at]
        for i in range(start[at], start[at] + size[at]):
            number = numbers[i]
            if number >= top or (gone[number >> 6] >> np.uint64(number & 63)) & np.uint64(1) == 0:
                numbers[kept] = number
                if valued:
                    values[kept] = values[i]
                kept += 1
        size[at] = kept - start[at]
