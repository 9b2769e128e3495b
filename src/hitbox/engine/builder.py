"""Segments from boxes, and from other segments. The native builder chooses their kind by the data."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hitbox.encoding.arrays import I64, Boxes, Space
from hitbox.engine import _kernels
from hitbox.engine.segment import U32, Arrays, Segment
from hitbox.errors import MatcherError

BITMAP_SHARE = 0.5
"""Share of the attributes that boxes constrain from which two-sided boxes go to bitmaps."""
DENSE_FIRST_NUMBER = 8
"""Where the sizes of a dense segment have its first number."""

Built = tuple[str, Arrays, I64, U32]
"""A segment: its kind, its arrays, the numbers of its boxes and their positions."""


@dataclass(slots=True)
class SegmentBuilder:
    """The options say how (engine.py)."""

    space: Space
    block: int
    lines: int
    band: int
    kind: str
    compact: bool
    seed: tuple[int, int] | None

    def build(self, numbers: I64 | None, boxes: Boxes) -> list[Built]:
        """The segments that these boxes become; without numbers as `Arranged` has them."""
        if not len(boxes):
            return []
        low, high = boxes.low, boxes.high
        with _too_much():
            return _kernels.build(
                numbers, boxes.offsets, boxes.attribute, low, high, boxes.priority, *self._arguments()
            )

    def merge(self, segments: list[Segment], alive: list[NDArray[np.uint64]]) -> list[Built]:
        """The segments that the boxes of some segments become; `alive` has a bit for each box that stays."""
        with _too_much():
            return _kernels.merge([segment.kernel for segment in segments], alive, *self._arguments())

    def _arguments(self) -> tuple[int, int, int, int, str, bool, float, int, int]:
        # An event of intervals would read most of the postings. Bitmaps read few lines for it, if most boxes constrain
        # the attribute.
        bitmap_share = BITMAP_SHARE if self.kind == "auto" and self.space.information else 2.0
        seed = self.seed or (int.from_bytes(os.urandom(8)), int.from_bytes(os.urandom(8)))
        sizes = self.block, self.lines, self.band
        return self.space.attributes, *sizes, self.kind, self.compact, bitmap_share, *seed


@dataclass(frozen=True, slots=True)
class Arranged:
    """Segments of many boxes, built before the boxes have numbers. If these ascend by one in the order of the segments,
    the segments need not store them, and what belongs to neighbours in a segment lies together everywhere."""

    order: I64
    """The boxes, as places in the input, in the order of the segments."""
    parts: list[Built]
    """The segments; their boxes are numbered from 0 in each."""

    def numbered(self, first: int) -> list[Built]:
        """The segments, with numbers from `first` on."""
        segments: list[Built] = []
        for kind, arrays, order, positions in self.parts:
            if kind == "dense":
                numbers = arrays["sizes"][DENSE_FIRST_NUMBER:]
            elif kind == "bitmap":  # bytes: the first number of each block, then padding
                numbers = arrays["numbers"][: 4 * int(arrays["sizes"][0])].view(np.uint32)
            else:
                numbers = arrays["numbers"]
            numbers += np.uint32(first)
            segments.append((kind, arrays, np.arange(first, first + len(order)), positions))
            first += len(order)
        return segments


@contextmanager
def _too_much() -> Iterator[None]:
    """The kernels refuse too much of something with a ValueError: it becomes an error of the matcher."""
    try:
        yield
    except ValueError as error:
        raise MatcherError(str(error)) from None
