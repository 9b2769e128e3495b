"""Linked lists of numbers: what a program ends up with that allocates a node for each entry, one box after the other.

    heads   [ 7 | -1 | 3 | ... ]                  the first node of each list
    nodes   7: (next 4, number 12, value 900)     16 bytes, in the order in which boxes arrived

`Lists` (kernels.py) keeps the same entries as runs of one array, which are read a hundred times as fast: here each node
is a cache miss. Whether the papers' programs had the one or the other is not known, so matchers with the option
`style="lists"` have both.

Cost: insert O(1), delete O(list) or one pass over all for many at once, memory 16 bytes per entry and 12 per list.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from hitbox.encoding.arrays import I32, I64
from hitbox.matchers.kernels import U64, Ints, Lists, set_bits

NONE = -1
NODE = np.dtype([("next", np.int32), ("number", np.int32), ("value", np.int64)])
Nodes = NDArray[Any]
STYLES = ("runs", "lists")


class LinkedLists:
    """`count` linked lists of (number, value), with the methods of `Lists`."""

    ordered = False

    def __init__(self, count: int):
        self.heads: I32 = np.full(count, NONE, np.int32)
        self.size: I64 = np.zeros(count, np.int64)
        self.nodes: Nodes = np.empty(0, NODE)
        self.free = NONE
        self.used = self.live = 0

    def insert(self, lists: Ints, numbers: Ints, values: I64) -> None:
        room = max(self.used, self.live + len(lists))
        if room > len(self.nodes):
            nodes = np.empty(max(room, len(self.nodes) * 3 // 2), NODE)
            nodes[: self.used] = self.nodes[: self.used]
            self.nodes = nodes
        self.free, self.used = link(
            self.heads, self.size, self.nodes, self.free, self.used, lists, numbers.astype(np.int32, copy=False), values
        )
        self.live += len(lists)

    def delete(self, lists: Ints, numbers: Ints) -> None:
        self.free = unlink(self.heads, self.size, self.nodes, self.free, lists, numbers.astype(np.int32, copy=False))
        self.live -= len(lists)

    def purge(self, lists: Ints, numbers: Ints) -> None:
        """`delete` for numbers that leave every list they are in: one pass over all where that reads less."""
        if self.size[lists].sum() <= 2 * self.live:
            self.delete(lists, numbers)
            return
        gone = np.zeros((int(numbers.max()) >> 6) + 1, np.uint64)
        set_bits(gone, numbers)
        self.free = sift(self.heads, self.size, self.nodes, self.free, gone)
        self.live -= len(lists)

    def nbytes(self) -> int:
        return self.heads.nbytes + self.size.nbytes + self.nodes.nbytes


NO_RUNS = Lists(0).arrays
NO_CHAINS: tuple[I32, Nodes] = (np.zeros(0, np.int32), np.empty(0, NODE))


def arrays_of(lists: Lists | LinkedLists) -> tuple[Any, ...]:
    """What kernels read that take either: start, size, numbers, values (of runs), heads, nodes (of linked lists)."""
    if isinstance(lists, LinkedLists):
        return *NO_RUNS, lists.heads, lists.nodes
    return *lists.arrays, *NO_CHAINS


@njit(cache=True, nogil=True)
def link(
    heads: I32, size: I64, nodes: Nodes, free: int, used: int, lists: Ints, numbers: I32, values: I64
) -> tuple[int, int]:
    """Put entries in front of their lists; the first free node and the end of the used ones."""
    for i in range(len(lists)):
        node = free
        if node == NONE:
            node = used
            used += 1
        else:
            free = int(nodes[node].next)
        nodes[node].next = heads[lists[i]]
        nodes[node].number = numbers[i]
        nodes[node].value = values[i] if len(values) else 0
        heads[lists[i]] = node
        size[lists[i]] += 1
    return free, used


@njit(cache=True, nogil=True)
def unlink(heads: I32, size: I64, nodes: Nodes, free: int, lists: Ints, numbers: I32) -> int:
    """Take `numbers[i]` out of `lists[i]`; the first free node."""
    for i in range(len(lists)):
        before, node = NONE, int(heads[lists[i]])
        while nodes[node].number != numbers[i]:
            before, node = node, int(nodes[node].next)
        if before == NONE:
            heads[lists[i]] = nodes[node].next
        else:
            nodes[before].next = nodes[node].next
        nodes[node].next = free
        free = node
        size[lists[i]] -= 1
    return free


@njit(cache=True, nogil=True)
def sift(heads: I32, size: I64, nodes: Nodes, free: int, gone: U64) -> int:
    """Take the numbers whose bit is set out of every list; the first free node."""
    top = len(gone) * 64
    for at in range(len(heads)):
        before, node = NONE, int(heads[at])
        while node != NONE:
            number, after = nodes[node].number, int(nodes[node].next)
            if number < top and (gone[number >> 6] >> np.uint64(number & 63)) & np.uint64(1):
                if before == NONE:
                    heads[at] = after
                else:
                    nodes[before].next = after
                nodes[node].next = free
                free = node
                size[at] -= 1
            else:
                before = node
            node = after
    return free


@njit(cache=True, nogil=True)
def mark_chain(marks: U64, node: int, nodes: Nodes) -> None:
    """Mark every number of a list."""
    while node != NONE:
        number = nodes[node].number
        marks[number >> 6] |= np.uint64(1) << np.uint64(number & 63)
        node = int(nodes[node].next)
