"""What the gridded matchers share: keys to small codes, boxes by number behind them, exact checks of candidates.

A grid maps the keys of an attribute to 0..top, never against their order: 0 is "missing", 1..top cut the attribute's
range into equal parts, and keys outside the range are clamped to its ends.

    key   MISSING   ..low |    |    |    | high..
    code     0        1     2    3    4     top        equal codes: ask the exact bounds

The range is the declared domain. Where none is declared it is taken from the boxes at hand (their middle 98 %, widened
by a twentieth on both sides), and taken again, with a rebuild, whenever the number of boxes has grown fourfold, until
100 000 boxes have been seen: a matcher filled one by one ends up with the same grid as one filled at once.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from hitbox.encoding.arrays import HIGHEST, I32, I64, LOWEST, MISSING, Boxes, Space
from hitbox.matchers.box_store import BoxStore, TimedMatcher
from hitbox.matchers.kernels import grown, now

F64 = NDArray[np.float64]
U16 = NDArray[np.uint16]
Rulers = NDArray[Any]
RULER = np.dtype([("low", np.int64), ("high", np.int64), ("scale", np.float64), ("top", np.int64)])
"""What codes of an attribute are made by. One record, so that a kernel passes it on as it is: each array of a tuple
would be counted as in use and as free again at every key, which takes twenty times as long as its code."""
SEEN_ENOUGH = 100_000


@dataclass(frozen=True, slots=True)
class Grid:
    rulers: Rulers
    """A RULER of each attribute."""
    fitted: int = 0

    @classmethod
    def fit(cls, space: Space, boxes: Boxes, top: int) -> Grid:
        low, high = space.low.copy(), space.high.copy()
        for a in np.flatnonzero((low == LOWEST) & (high == HIGHEST)):
            rows = boxes.attribute == a
            ends = np.concatenate([boxes.low[rows], boxes.high[rows]])
            ends = ends[(ends > LOWEST) & (ends < HIGHEST)]
            if len(ends):
                first, last = (int(end) for end in np.quantile(ends, [0.01, 0.99], method="nearest"))
                margin = (last - first) // 20
                low[a], high[a] = max(LOWEST, first - margin), min(HIGHEST, last + margin)
        span = (high.view(np.uint64) - low.view(np.uint64)).astype(np.float64) + 1.0
        rulers = np.zeros(space.attributes, RULER)
        rulers["low"], rulers["high"], rulers["scale"], rulers["top"] = low, high, top / span, top
        return cls(rulers, len(boxes))

    def outgrown(self, boxes: int) -> bool:
        return self.fitted < SEEN_ENOUGH and boxes >= 4 * self.fitted

    def codes(self, attribute: I32, keys: I64) -> I64:
        codes: I64 = codes_of(attribute, keys, self.rulers)
        return codes


class Gridded(TimedMatcher):
    """A matcher over a grid of `top` codes per attribute; subclasses say how boxes are placed, removed and found."""

    top: int

    def __init__(self, space: Space):
        super().__init__(space)
        self.grid = Grid.fit(space, Boxes.of([]), self.top)

    def insert(self, numbers: I64, boxes: Boxes) -> None:
        if not len(numbers):
            return
        if not self.grid.outgrown(self.store.count + len(numbers)):
            self._admit(self.grid, boxes, False)
        else:
            if self.store.count:
                old = self.store.living()
                boxes = Boxes.concat([self.store.boxes(old), boxes])
                numbers = np.concatenate([old, numbers])
            grid = Grid.fit(self.space, boxes, self.top)
            self._admit(grid, boxes, True)
            self.grid, self.store = grid, BoxStore()
            self._restart(boxes)
        self.store.insert(numbers, boxes)
        self._place(numbers, boxes)

    def delete(self, numbers: I64) -> None:
        if len(numbers):
            self._remove(numbers)
            self.store.delete(numbers)

    @property
    def bounds(self) -> tuple[I64, I32, I32, I64, I64]:
        """The exact bounds, as `meets` reads them."""
        store = self.store
        return store.start, store.length, store.attribute, store.low, store.high

    def nbytes(self) -> int:
        """The exact bounds, which every candidate is checked by; subclasses add their own."""
        return sum(array.nbytes for array in self.bounds)

    def _admit(self, grid: Grid, boxes: Boxes, restart: bool) -> None:
        """Raise where these boxes cannot be taken, before anything has changed."""

    @abstractmethod
    def _restart(self, boxes: Boxes) -> None:
        """Forget all places; `boxes` are those that will be placed next, for choices that look at the data."""

    @abstractmethod
    def _place(self, numbers: I64, boxes: Boxes) -> None: ...

    @abstractmethod
    def _remove(self, numbers: I64) -> None: ...


def widened(array: Any, capacity: int) -> Any:
    """`array` with zeros at its end, so that it has `capacity` places."""
    if capacity <= len(array):
        return array
    bigger = np.zeros((capacity, *array.shape[1:]), array.dtype)
    bigger[: len(array)] = array
    return bigger


@njit(cache=True, nogil=True)
def code(attribute: int, key: int, grid: Rulers) -> int:
    ruler = grid[attribute]
    top: int = ruler.top
    if key == MISSING:
        return 0
    if key <= ruler.low:
        return 1
    if key >= ruler.high:
        return top
    offset = np.uint64(key) - np.uint64(ruler.low)  # a difference of int64 may need all 64 bits
    return min(top, 1 + int(np.float64(offset) * ruler.scale))


@njit(cache=True, nogil=True)
def codes_of(attribute: I32, keys: I64, grid: Rulers) -> I64:
    codes = np.empty(len(keys), np.int64)
    for row in range(len(keys)):
        codes[row] = code(attribute[row], keys[row], grid)
    return codes


@njit(cache=True, nogil=True)
def meets(number: int, lows: I64, highs: I64, start: I64, length: I32, attribute: I32, low: I64, high: I64) -> bool:
    """Whether box `number` meets the point [lows, highs], by the exact bounds."""
    for row in range(start[number], start[number] + length[number]):
        if lows[attribute[row]] > high[row] or highs[attribute[row]] < low[row]:
            return False
    return True


@njit(cache=True, nogil=True)
def confirm(
    candidates: I32, used: int, lows: I64, highs: I64,
    start: I64, length: I32, attribute: I32, low: I64, high: I64,
) -> int:  # fmt: skip
    """Keep, at the front, those of `candidates[:used]` that meet the point; how many they are."""
    kept = 0
    for i in range(used):
        number = candidates[i]
        if meets(number, lows, highs, start, length, attribute, low, high):
            candidates[kept] = number
            kept += 1
    return kept


@njit(cache=True, nogil=True)
def report(numbers: I32, count: int, found: I32, used: int, stamps: I64) -> tuple[I32, int]:
    """Append `numbers[:count]` to `found[:used]`; the (possibly moved) array and its new end."""
    found = grown(found, used + count)
    for i in range(count):
        found[used] = numbers[i]
        if len(stamps):
            stamps[used] = now()
        used += 1
    return found, used


@njit(cache=True, nogil=True)
def count_off(numbers: I32, begin: int, end: int, counter: U16, reached: I32) -> int:
    """Count `numbers[begin:end]` down by one each; those that come to zero go to `reached`."""
    used = 0
    for place in range(begin, end):
        number = numbers[place]
        counter[number] -= np.uint16(1)
        if counter[number] == 0:
            reached[used] = number
            used += 1
    return used
