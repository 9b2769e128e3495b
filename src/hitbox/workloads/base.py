"""What a workload is: a frozen set of parameters that says what row i of the boxes and of the points is.

Rows are functions of (seed, row number) alone, so `boxes(0, 100)` equals `boxes(0, 60)` followed by `boxes(60, 40)`,
and a cluster generates the same data as one core. `n` is how many boxes an experiment loads; rows after
them exist too, and serve as subscriptions that arrive later.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hitbox.encoding.arrays import DEFAULT_PRIORITY, I64, U8, Boxes, Points, Space
from hitbox.errors import WorkloadError
from hitbox.workloads.draws import units

CHUNK = 1 << 14
"""Rows generated at a time: the temporaries stay in cache."""

PRECISION = 1_000_000
"""The papers' domain [0, 1] with precision 1e-6, as integers."""

# One stream of random words for each thing that is drawn.
ATTRIBUTES, VALUES, WIDTHS, KINDS, PRIORITIES, SIZES = range(6)
EVENTS, EVENT_ATTRIBUTES, EVENT_WIDTHS, EVENT_KINDS, CENTRES = range(16, 21)
SKEWS = 22  # 21 was used once; a seed should keep producing the same rows


@dataclass(frozen=True, kw_only=True)
class Workload(ABC):
    n: int = 1_000_000
    seed: int = 1

    def __post_init__(self) -> None:
        self.require(self.n >= 0, "n", "must not be negative")

    @property
    @abstractmethod
    def space(self) -> Space:
        """The attributes and their declared domain, in keys."""

    @abstractmethod
    def _boxes(self, rows: I64) -> Boxes: ...

    @abstractmethod
    def _points(self, rows: I64) -> Points: ...

    @property
    def attributes(self) -> tuple[str, ...]:
        """Names of the attributes, for tables and schemas."""
        return tuple(f"a{number}" for number in range(self.space.attributes))

    @property
    def share(self) -> float | None:
        """The expected share of the boxes that a point meets, where it has a closed form."""
        return None

    @property
    def parameters(self) -> dict[str, Any]:
        return asdict(self)

    def boxes(self, start: int, count: int) -> Boxes:
        return Boxes.concat([self._boxes(rows) for rows in _chunks(start, count)])

    def points(self, start: int, count: int) -> Points:
        parts = [self._points(rows) for rows in _chunks(start, count)] or [self._points(np.zeros(0, np.int64))]
        low = np.concatenate([part.low for part in parts])
        return Points(low, np.concatenate([part.high for part in parts])) if parts[0].intervals else Points(low, low)

    def require(self, holds: bool, parameter: str, rule: str) -> None:
        if not holds:
            raise WorkloadError(f"workload parameter {parameter}={getattr(self, parameter)!r} {rule}")

    def require_share(self, *parameters: str) -> None:
        for parameter in parameters:
            self.require(0 <= getattr(self, parameter) <= 1, parameter, "must be between 0 and 1")

    def priorities(self, rows: I64, levels: int) -> U8:
        """Uniform over 0 .. levels - 1; one level means that all have the default."""
        if levels == 1:
            return np.full(len(rows), DEFAULT_PRIORITY, np.uint8)
        return (units(self.seed, PRIORITIES, rows, 1)[:, 0] * levels).astype(np.uint8)


def ragged(attribute: I64, low: I64, high: I64, used: Any, priority: U8) -> Boxes:
    """Boxes of the entries of (rows, width) arrays where `used`."""
    offsets = np.zeros(len(low) + 1, np.int64)
    np.cumsum(used.sum(axis=1), out=offsets[1:])
    return Boxes(offsets, attribute[used].astype(np.int32), low[used], high[used], priority)


def rectangular(attribute: I64, low: I64, high: I64, priority: U8) -> Boxes:
    """Boxes of (rows, width) arrays, every entry used."""
    offsets = np.arange(len(low) + 1, dtype=np.int64) * low.shape[1]
    return Boxes(offsets, attribute.ravel().astype(np.int32), low.ravel(), high.ravel(), priority)


def _chunks(start: int, count: int) -> Iterator[I64]:
    if start < 0 or count < 0:
        raise WorkloadError(f"rows {start} to {start + count}: start and count must not be negative")
    for first in range(start, start + count, CHUNK):
        yield np.arange(first, min(first + CHUNK, start + count), dtype=np.int64)
