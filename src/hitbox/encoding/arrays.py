"""Boxes, Points, Hits: the arrays that the layers exchange.

A key is an int64 (see keys.py). A **box** is a conjunction of closed key intervals, at most one per attribute; an
attribute that a box does not mention is unconstrained. A **point** is one key per attribute, or one key interval if
events carry ranges. A box and a point meet if every constraint of the box meets the point's interval:

    point.low[a] <= box.high[a]  and  point.high[a] >= box.low[a]

MISSING is the smallest int64, below every bound, so a constraint on a missing attribute fails by itself. `IS NULL` is
[MISSING, MISSING], `IS NOT NULL` is [LOWEST, HIGHEST], and an event that accepts any value is [MISSING, HIGHEST].

    Boxes      offsets   0     2  3        n+1
               attribute 0  4  1           sorted within a box
               low       .  .  .           low <= high, always
               high      .  .  .
               priority  4     9           n, 0..9
               anchors   -     -           None, or n: what an event must bring, too; see index/anchors.py
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
U8 = NDArray[np.uint8]

MISSING = -(2**63)
LOWEST = MISSING + 1
HIGHEST = 2**63 - 1
LEVELS = 10
DEFAULT_PRIORITY = 4


@dataclass(frozen=True, slots=True)
class Space:
    """The attribute space as a matcher sees it: how many attributes, and the range of keys on each.

    `low` and `high` are the declared domain in keys, or [LOWEST, HIGHEST] where nothing was declared; keys outside a
    declared domain are legal and must still match exactly. `information` numbers the attributes that subscriptions
    declare about themselves (symmetric matching).
    """

    low: I64
    high: I64
    information: tuple[int, ...] = ()

    @classmethod
    def of(cls, attributes: int, low: int = LOWEST, high: int = HIGHEST) -> Space:
        return cls(np.full(attributes, low, np.int64), np.full(attributes, high, np.int64))

    @property
    def attributes(self) -> int:
        return len(self.low)


@dataclass(frozen=True, slots=True)
class Boxes:
    offsets: I64
    attribute: I32
    low: I64
    high: I64
    priority: U8
    anchors: pa.Array | None = None
    """None, or a large_binary array without nulls; empty where a box has no anchor."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @classmethod
    def of(
        cls,
        boxes: Iterable[dict[int, tuple[int, int]]],
        priority: Sequence[int] | None = None,
        anchors: Sequence[bytes] = (),
    ) -> Boxes:
        """From one `{attribute: (low, high)}` per box: for tests and for single subscriptions."""
        offsets, attribute, low, high = [0], [], [], []
        for box in boxes:
            for number, (first, last) in sorted(box.items()):
                attribute.append(number)
                low.append(first)
                high.append(last)
            offsets.append(len(attribute))
        levels = [DEFAULT_PRIORITY] * (len(offsets) - 1) if priority is None else priority
        return cls(
            np.array(offsets, np.int64),
            np.array(attribute, np.int32),
            np.array(low, np.int64),
            np.array(high, np.int64),
            np.array(levels, np.uint8),
            pa.array(anchors, pa.large_binary()) if anchors else None,
        )

    @classmethod
    def of_dense(cls, low: NDArray[np.int64], high: NDArray[np.int64], priority: U8 | None = None) -> Boxes:
        """From two (boxes, attributes) arrays; [MISSING, HIGHEST] means unconstrained."""
        used = (low != MISSING) | (high != HIGHEST)
        offsets = np.zeros(len(low) + 1, np.int64)
        np.cumsum(used.sum(axis=1), out=offsets[1:])
        attribute = np.nonzero(used)[1].astype(np.int32)
        if priority is None:
            priority = np.full(len(low), DEFAULT_PRIORITY, np.uint8)
        return cls(offsets, attribute, low[used], high[used], priority)

    def dense(self, attributes: int) -> tuple[I64, I64]:
        """(boxes, attributes) arrays of low and high; unconstrained is [MISSING, HIGHEST]."""
        low = np.full((len(self), attributes), MISSING, np.int64)
        high = np.full((len(self), attributes), HIGHEST, np.int64)
        row = np.repeat(np.arange(len(self)), np.diff(self.offsets))
        low[row, self.attribute] = self.low
        high[row, self.attribute] = self.high
        return low, high

    def take(self, rows: NDArray[Any]) -> Boxes:
        """The boxes at `rows`, in that order."""
        rows = np.asarray(rows)
        sizes = self.offsets[rows + 1] - self.offsets[rows]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(sizes, out=offsets[1:])
        flat = np.arange(offsets[-1]) + np.repeat(self.offsets[rows] - offsets[:-1], sizes)
        anchors = None if self.anchors is None else self.anchors.take(pa.array(rows))
        return Boxes(offsets, self.attribute[flat], self.low[flat], self.high[flat], self.priority[rows], anchors)

    @staticmethod
    def concat(parts: Sequence[Boxes]) -> Boxes:
        if not parts:
            return Boxes.of([])
        ends = np.cumsum([0] + [int(p.offsets[-1]) for p in parts])
        shifted = [p.offsets[1:] + end for p, end in zip(parts, ends[:-1], strict=True)]
        return Boxes(
            np.concatenate([np.zeros(1, np.int64), *shifted]),
            np.concatenate([p.attribute for p in parts]),
            np.concatenate([p.low for p in parts]),
            np.concatenate([p.high for p in parts]),
            np.concatenate([p.priority for p in parts]),
            None if all(p.anchors is None for p in parts) else pa.concat_arrays([p._all_anchors() for p in parts]),
        )

    def _all_anchors(self) -> pa.Array:
        return no_anchors(len(self)) if self.anchors is None else self.anchors

    def __getitem__(self, number: int) -> dict[int, tuple[int, int]]:
        """One box as `{attribute: (low, high)}`."""
        part = slice(int(self.offsets[number]), int(self.offsets[number + 1]))
        bounds = zip(self.low[part].tolist(), self.high[part].tolist(), strict=True)
        return dict(zip(self.attribute[part].tolist(), bounds, strict=True))


def no_anchors(count: int) -> pa.Array:
    """The anchors of boxes that have none."""
    ends = pa.py_buffer(np.zeros(count + 1, np.int64))
    return pa.Array.from_buffers(pa.large_binary(), count, [None, ends, pa.py_buffer(b"")])


@dataclass(frozen=True, slots=True)
class Points:
    """Events as keys: `low` and `high` are (events, attributes), C-ordered; `high is low` where all are points."""

    low: I64
    high: I64

    @classmethod
    def of(cls, keys: Any) -> Points:
        """Plain points from (events, attributes) keys."""
        low = np.ascontiguousarray(keys, np.int64)
        return cls(low, low)

    @property
    def intervals(self) -> bool:
        return self.high is not self.low

    def __len__(self) -> int:
        return len(self.low)

    def __getitem__(self, part: slice) -> Points:
        low = self.low[part]
        return Points(low, self.high[part] if self.intervals else low)


@dataclass(frozen=True, slots=True)
class Hits:
    """Matching box numbers of each point: `numbers[offsets[i]:offsets[i + 1]]` belong to point i."""

    offsets: I64
    numbers: I32

    @classmethod
    def of(cls, rows: Sequence[Any]) -> Hits:
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        parts = [np.asarray(row, np.int32) for row in rows]
        return cls(offsets, np.concatenate(parts) if parts else np.zeros(0, np.int32))

    def beside(self, more: Hits) -> Hits:
        """The numbers of both, point by point."""
        if not len(more.numbers):
            return self
        numbers = np.empty(len(self.numbers) + len(more.numbers), np.int32)
        numbers[np.arange(len(self.numbers)) + np.repeat(more.offsets[:-1], np.diff(self.offsets))] = self.numbers
        numbers[np.arange(len(more.numbers)) + np.repeat(self.offsets[1:], np.diff(more.offsets))] = more.numbers
        return Hits(self.offsets + more.offsets, numbers)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, event: int) -> I32:
        return self.numbers[self.offsets[event] : self.offsets[event + 1]]
