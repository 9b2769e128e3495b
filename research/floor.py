"""`floor`: the least that any matcher with one precomputed bitmap per attribute must do on this data.

For each event it ANDs one cold bitmap of n bits per attribute that the event carries and subscriptions constrain, and
writes the numbers of the set bits (native/floor.cpp). It is a yardstick, not a matcher: it is given the
answers. Its last bitmap has exactly the bits of the event's matches, so that writing them costs what it costs a
matcher; the others are all ones. A matcher that reads less than whole bitmaps can be quicker than the floor.

Cold: each event reads other bitmaps, out of `CELLS` per attribute, at most `MOST_BYTES` in all. That is far more than
the caches of one core hold; on a processor whose last cache is larger than all bitmaps, some come from there.
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from hitbox.encoding.arrays import I64, MISSING, Boxes, Hits, Points, Space
from hitbox.engine import Engine
from hitbox.matchers import Matcher
from research import _floor
from research.errors import BenchError

NAME = "floor"
CELLS = 256
MOST_BYTES = 1 << 30
MOST_EVENTS = 512
"""Events whose answers are kept, at n bits each. Larger batches are shortened: events share nothing."""


def nbytes(n: int, attributes: int) -> int:
    """About how many bytes a floor takes."""
    return _words(n) * 8 * (_cells(n, attributes) * attributes + MOST_EVENTS)


class Floor(Matcher):
    """`match` and `count` answer the events of `points`, whose matches are `hits`; `used` are the attributes that any
    of the n boxes constrains."""

    intervals = True

    def __init__(self, space: Space, n: int, used: NDArray[np.int32], points: Points, hits: Hits):
        self.space, self.n = space, n
        self.simd = Engine(space).simd
        cells, words = _cells(n, max(1, len(used))), _words(n)
        first_answer = cells * max(1, len(used))
        self.bitmaps = _aligned(first_answer + len(points), words)
        self.bitmaps[:first_answer] = ~np.uint64(0)
        self.bitmaps[first_answer:] = 0
        draw = np.random.default_rng(1)
        self.rows: dict[bytes, NDArray[np.uint32]] = {}
        for event in range(len(points)):
            answer = self.bitmaps[first_answer + event]
            numbers = hits[event].astype(np.int64)
            np.bitwise_or.at(answer, numbers // 64, np.uint64(1) << (numbers % 64).astype(np.uint64))
            carried = np.flatnonzero(points.high[event, used] != MISSING)[:-1]  # the last one is the answer
            chosen = [*(carried * cells + draw.integers(0, cells, len(carried))), first_answer + event]
            self.rows[_key(points, event)] = np.array(chosen, np.uint32)

    def match(self, points: Points) -> Hits:
        return Hits(*self._run(points, False))

    def count(self, points: Points) -> I64:
        return np.diff(self._run(points, True)[0])

    def _run(self, points: Points, counting: bool) -> tuple[I64, NDArray[np.int32]]:
        rows = [self.rows[_key(points, event)] for event in range(len(points))]
        offsets = np.zeros(len(rows) + 1, np.uint32)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        chosen = rows[0] if len(rows) == 1 else np.concatenate(rows)
        return _floor.floor(self.bitmaps, offsets, chosen, self.simd, counting)

    def __len__(self) -> int:
        return self.n

    def nbytes(self) -> int:
        return self.bitmaps.nbytes

    def insert(self, numbers: I64, boxes: Boxes) -> NoReturn:
        raise BenchError("the floor is a yardstick: it holds no boxes")

    def delete(self, numbers: I64) -> NoReturn:
        raise BenchError("the floor is a yardstick: it holds no boxes")

    def boxes(self, numbers: I64) -> NoReturn:
        raise BenchError("the floor is a yardstick: it holds no boxes")

    def numbers(self) -> I64:
        return np.arange(self.n)


def _key(points: Points, event: int) -> bytes:
    low: bytes = points.low[event].tobytes()
    return low + points.high[event].tobytes() if points.intervals else low


def _aligned(rows: int, words: int) -> NDArray[np.uint64]:
    """Rows that begin at cache lines."""
    room = np.empty(rows * words + 8, np.uint64)
    start = -room.ctypes.data % 64 // 8
    return room[start : start + rows * words].reshape(rows, words)


def _words(n: int) -> int:
    return -(-n // 512) * 8


def _cells(n: int, attributes: int) -> int:
    return max(2, min(CELLS, MOST_BYTES // (_words(n) * 8 * attributes)))
