"""Rows and pages that come and go inside a kernel: what the matchers that are trees keep their nodes in.

    table    row 0   [ first free row | last row ever used | ... ]     every other row belongs to its user
             row 7   [ next free row  | ...              ]             while it is free

    chain    head -> [ next | used | number number ... ] -> [ next | 30 | ... ] -> 0
             only the first page may have room; numbers are in no order

A table is one int32 array that a kernel grows and hands back, so nothing has to be reserved beforehand.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from hitbox.encoding.arrays import I32, I64
from hitbox.matchers.grid import meets

NEXT, USED, FIRST = 0, 1, 2
PAGE = 32


def table(width: int) -> I32:
    return np.zeros((16, width), np.int32)


@njit(cache=True, nogil=True)
def doubled(rows: Any) -> Any:
    """A copy with room for twice as many rows; the new ones hold anything."""
    bigger = np.empty((2 * len(rows), *rows.shape[1:]), rows.dtype)
    bigger[: len(rows)] = rows
    return bigger


@njit(cache=True, nogil=True)
def take_row(rows: I32) -> tuple[I32, int]:
    """A row of zeros, and the (possibly moved) table."""
    row = rows[0, 0]
    if row:
        rows[0, 0] = rows[row, 0]
    else:
        rows[0, 1] += 1
        row = rows[0, 1]
        if row == len(rows):
            rows = doubled(rows)
    rows[row] = 0
    return rows, row


@njit(cache=True, nogil=True)
def give_row(rows: I32, row: int) -> None:
    rows[row, 0] = rows[0, 0]
    rows[0, 0] = row


@njit(cache=True, nogil=True)
def push(pages: I32, head: int, number: int) -> tuple[I32, int]:
    """Add a number to a chain; the (possibly moved) pages and the chain's head."""
    if head == 0 or pages[head, USED] == PAGE - FIRST:
        pages, page = take_row(pages)
        pages[page, NEXT] = head
        head = page
    pages[head, FIRST + pages[head, USED]] = number
    pages[head, USED] += 1
    return pages, head


@njit(cache=True, nogil=True)
def drop(pages: I32, head: int, number: int) -> int:
    """Take a number out of its chain, the last of the first page filling its place; the chain's head."""
    page, place = head, FIRST
    while pages[page, place] != number:
        place += 1
        if place == FIRST + pages[page, USED]:
            page, place = pages[page, NEXT], FIRST
    pages[head, USED] -= 1
    pages[page, place] = pages[head, FIRST + pages[head, USED]]
    if pages[head, USED] == 0:
        page = head
        head = pages[head, NEXT]
        give_row(pages, page)
    return head


@njit(cache=True, nogil=True)
def empty(pages: I32, head: int, size: int) -> I32:
    """The `size` numbers of a chain, whose pages become free."""
    numbers, used = np.empty(size, np.int32), 0
    while head:
        count = pages[head, USED]
        numbers[used : used + count] = pages[head, FIRST : FIRST + count]
        used += count
        page = head
        head = pages[head, NEXT]
        give_row(pages, page)
    return numbers


@njit(cache=True, nogil=True)
def search(
    pages: I32, head: int, lows: I64, highs: I64, reached: I32,
    start: I64, length: I32, attribute: I32, low: I64, high: I64,
) -> int:  # fmt: skip
    """The boxes of a chain that meet the point, into `reached`; how many they are."""
    used = 0
    while head:
        for place in range(FIRST, FIRST + pages[head, USED]):
            number = pages[head, place]
            if meets(number, lows, highs, start, length, attribute, low, high):
                reached[used] = number
                used += 1
        head = pages[head, NEXT]
    return used


def chain(pages: I32, head: int) -> list[int]:
    """The numbers of a chain, for looking at a tree from Python."""
    numbers: list[Any] = []
    while head:
        numbers += pages[head, FIRST : FIRST + pages[head, USED]].tolist()
        head = int(pages[head, NEXT])
    return numbers
