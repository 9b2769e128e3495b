"""Advertising-like subscriptions: many attributes, few constraints, most of them equalities on skewed categories.

The first `equalities` of the attributes are categories; category attribute a has the a-th of a handful of
cardinalities between 10 and 10,000, and its values are Zipf-distributed, for subscriptions and events alike. The
other attributes are numbers 0..1,000,000, constrained by ranges. An event carries some of the attributes only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hitbox.encoding.arrays import I64, LEVELS, MISSING, Boxes, Points, Space
from hitbox.workloads.base import ATTRIBUTES, EVENT_ATTRIBUTES, EVENTS, PRECISION, SIZES, VALUES, Workload, ragged
from hitbox.workloads.draws import F64, choose, units, zipf_ranks

CARDINALITIES = (10, 30, 100, 300, 1_000, 3_000, 10_000)


@dataclass(frozen=True, kw_only=True)
class Advertising(Workload):
    """Equalities on Zipf-distributed categories, some ranges, wide sparse events.

    Attributes
    ----------
    m, carried: attributes in all; attributes that an event carries
    k, k_max: a subscription has between k and k_max constraints
    equalities: share of the attributes (and so of the constraints) that are categories
    skew: Zipf exponent of the categories
    width: of the ranges on the other attributes
    intervals: width of an event's value on those (0: points)
    """

    m: int = 200
    carried: int = 60
    k: int = 3
    k_max: int = 8
    equalities: float = 0.7
    skew: float = 1.0
    width: float = 0.5
    levels: int = 1
    intervals: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.m >= 1, "m", "must be at least 1")
        self.require(0 <= self.carried <= self.m, "carried", f"must be between 0 and m={self.m}")
        self.require(0 <= self.k <= self.k_max, "k", f"must be between 0 and k_max={self.k_max}")
        self.require(self.k_max <= self.m, "k_max", f"must not exceed m={self.m}")
        self.require_share("equalities", "width", "intervals")
        self.require(1 <= self.levels <= LEVELS, "levels", f"must be between 1 and {LEVELS}")

    @property
    def categories(self) -> int:
        """How many of the attributes are categories; they come first."""
        return round(self.m * self.equalities)

    @property
    def space(self) -> Space:
        high = np.full(self.m, PRECISION, np.int64)
        high[: self.categories] = np.resize(CARDINALITIES, self.categories) - 1
        return Space(np.zeros(self.m, np.int64), high)

    def _boxes(self, rows: I64) -> Boxes:
        sizes = self.k + (units(self.seed, SIZES, rows, 1)[:, 0] * (self.k_max - self.k + 1)).astype(np.int64)
        attribute = choose(self.seed, ATTRIBUTES, rows, self.m, sizes)
        low, high = self._values(attribute, units(self.seed, VALUES, rows, attribute.shape[1]), self.width)
        return ragged(attribute, low, high, attribute < self.m, self.priorities(rows, self.levels))

    def _points(self, rows: I64) -> Points:
        attribute = choose(self.seed, EVENT_ATTRIBUTES, rows, self.m, self.carried)
        values = self._values(attribute, units(self.seed, EVENTS, rows, self.carried), self.intervals)
        low = np.full((len(rows), self.m), MISSING, np.int64)
        np.put_along_axis(low, attribute, values[0], axis=1)
        if not self.intervals:
            return Points.of(low)
        high = np.full((len(rows), self.m), MISSING, np.int64)
        np.put_along_axis(high, attribute, values[1], axis=1)
        return Points(low, high)

    def _values(self, attribute: I64, draws: F64, width: float) -> tuple[I64, I64]:
        """Low and high on each attribute: a category twice, or a range of `width`."""
        steps = round(width * PRECISION)
        low = (draws * (PRECISION + 1 - steps)).astype(np.int64)
        high = low + steps
        for place, cardinality in enumerate(CARDINALITIES):
            here = (attribute < self.categories) & (attribute % len(CARDINALITIES) == place)
            low[here] = high[here] = zipf_ranks(draws[here], cardinality, self.skew)
        return low, high
