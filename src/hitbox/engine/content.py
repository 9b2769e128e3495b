"""What an engine holds: sealed segments, a tail of new boxes, and where each box is.

where[number] -> location     segment: base + position; tail: TAIL + position; NOWHERE where not in use
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hitbox.encoding.arrays import I64, Boxes
from hitbox.engine import _kernels
from hitbox.engine.segment import NOWHERE, U32, Segment
from hitbox.errors import MatcherError

TAIL = 1 << 31
KINDS = ("bitmap", "postings", "dense")
MAX_SCALAR_BOXES = 32
"""Boxes that are looked at one by one."""


class Sealed:
    """The segments, by location, and where each box is. Replaced as a whole, so that readers see what fits together;
    only the entries of `where` change in place."""

    __slots__ = ("_bases", "kernels", "segments", "where")

    def __init__(self, segments: list[Segment], where: U32):
        self.segments = sorted(segments, key=lambda segment: segment.base)
        self.where = where
        self.kernels = [segment.kernel for segment in self.segments]
        self._bases = [segment.base for segment in self.segments]

    def at(self, location: int) -> Segment:
        """The segment that a living box is in."""
        return self.segments[bisect_right(self._bases, location) - 1]


class Content:
    """Readers take `sealed` and `tail`; a commit replaces them. The methods that look boxes up take an older `sealed`,
    too: a reader that has begun with it goes on with it."""

    __slots__ = ("sealed", "tail")

    def __init__(self) -> None:
        self.sealed = Sealed([], np.zeros(0, np.uint32))
        self.tail = _kernels.Tail()

    def locate(self, numbers: I64, sealed: Sealed | None = None) -> U32:
        """Where the boxes are, all of which must be here."""
        known = (sealed or self.sealed).where
        numbers = np.asarray(numbers, np.int64)
        least, most = ends(numbers)
        where: U32 = known[numbers] if least >= 0 and most < len(known) else np.full(1, NOWHERE, np.uint32)
        if ends(where)[1] == NOWHERE:
            raise MatcherError("a box number is not in use")
        return where

    def by_segment(self, where: U32, sealed: Sealed | None = None) -> Iterator[tuple[Segment, NDArray[np.intp], U32]]:
        """Which rows of `where` lie in which segment, and their positions in it; the rest lies in the tail."""
        least, most = ends(where)
        for segment in (sealed or self.sealed).segments if len(where) else ():
            base, end = segment.base, segment.end
            if most < base or least >= end:
                continue
            if base <= least and most < end:
                yield segment, np.arange(len(where)), where - np.uint32(base)
                return
            rows = np.flatnonzero((where >= base) & (where < end))
            if len(rows):
                yield segment, rows, where[rows] - np.uint32(base)

    def any_used(self, numbers: I64, freed: I64) -> bool:
        """Whether some of the numbers are in use and not freed."""
        where = self.sealed.where
        if len(numbers) <= MAX_SCALAR_BOXES:
            end = len(where)
            taken = {number for number in numbers.tolist() if number < end and where[number] != NOWHERE}
            return bool(taken) and not taken.issubset(freed.tolist())
        known = numbers[numbers < len(where)]
        used = known[where[known] != NOWHERE]
        return len(used) > 0 and not np.isin(used, freed).all()

    def make_room(self, capacity: int) -> None:
        """Makes `where` private and long enough."""
        where = self.sealed.where
        length = len(where)
        if capacity > length:
            grown = np.full(max(capacity, length * 5 // 4 if length else 0), NOWHERE, np.uint32)
            grown[:length] = where
            self.sealed = Sealed(self.sealed.segments, grown)
        elif not where.flags.writeable:
            self.sealed = Sealed(self.sealed.segments, where.copy())

    def boxes(self, numbers: I64) -> Boxes:
        sealed = self.sealed
        where = self.locate(numbers, sealed)
        parts: list[Boxes] = []
        rows: list[NDArray[np.intp]] = [np.flatnonzero(where >= TAIL)]
        if len(rows[0]):
            parts.append(Boxes(*self.tail.decode(where[rows[0]] - np.uint32(TAIL))))
        for segment, own, positions in self.by_segment(where, sealed):
            rows.append(own)
            parts.append(segment.boxes(positions))
        return Boxes.concat(parts).take(np.argsort(np.concatenate(rows)))

    def __len__(self) -> int:
        return self.tail.live + sum(segment.live for segment in self.sealed.segments)

    def nbytes(self) -> int:
        sealed = self.sealed
        return sealed.where.nbytes + self.tail.nbytes + sum(segment.nbytes for segment in sealed.segments)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All of it as named flat arrays (opening.py)."""
        positions = self.tail.living()
        numbers = self.tail.numbers(positions)
        sealed = self.sealed  # once: a merge may replace it
        segments, where = sealed.segments, sealed.where
        if len(numbers):
            where = where.copy()
            where[numbers] = np.arange(TAIL, TAIL + len(numbers), dtype=np.uint32)
        fields = ("tail.offsets", "tail.attribute", "tail.low", "tail.high", "tail.priority")
        table = [[KINDS.index(segment.kind), segment.base, segment.live] for segment in segments]
        arrays: dict[str, NDArray[Any]] = {"where": where, "tail.numbers": numbers}
        arrays.update(zip(fields, self.tail.decode(positions), strict=True))
        arrays["segments"] = np.array(table, np.int64).reshape(-1, 3)
        for i, segment in enumerate(segments):
            arrays.update({f"segment{i}.{name}": array for name, array in segment.arrays.items()})
        return arrays


def ends(values: NDArray[Any]) -> tuple[int, int]:
    """The least and the greatest; (0, -1) of none. NumPy takes longer for a few than Python does."""
    if not len(values):
        return 0, -1
    if len(values) <= MAX_SCALAR_BOXES:
        listed = values.tolist()
        return min(listed), max(listed)
    return int(values.min()), int(values.max())
