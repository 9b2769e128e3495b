"""Range subscriptions over attributes of one domain: the workloads of REIN, Pri-REIN, DEXIN and Index-Count.

A value is a place on a grid of `cardinality` steps over 0..1,000,000. A constraint of width w covers round(w * steps)
steps and starts anywhere on [0, 1 - w]; a uniform point meets it with probability w, so k constraints of width w are
met with probability w ** k: that closed form turns a wanted `selectivity` into a width.

With `match_rate` x subscriptions are built around events instead (DEXIN, 4.1.7): 1/x events with uniform values, no two
alike on an attribute. A subscription covers its event on all attributes, and on one of them no other event, so that
every event meets exactly n * x subscriptions.

    values    |   e2  e0       e1  |      attribute of subscription s (of e0) that is exclusive: half way to others
                    [ s  ]
              [    s    ]                 any other attribute: covers e0, wherever it starts
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hitbox.encoding.arrays import HIGHEST, I64, LEVELS, LOWEST, Boxes, Points, Space
from hitbox.workloads.base import (
    ATTRIBUTES,
    CENTRES,
    EVENTS,
    KINDS,
    PRECISION,
    SKEWS,
    VALUES,
    WIDTHS,
    Workload,
    rectangular,
)
from hitbox.workloads.draws import DISTRIBUTIONS, choose, shaped, units


@dataclass(frozen=True, kw_only=True)
class Ranges(Workload):
    """Ranges and equalities on k of m attributes.

    Attributes
    ----------
    m, k: attributes per event; constraints per subscription (0: one on every attribute)
    width, width_max: width of a range; with `width_max` each is uniform between the two
    free_ends: both ends of a range are drawn instead, so that selectivities differ (Pri-REIN-S)
    selectivity: where above 0, sets the width so that a uniform event meets this share
    equalities, one_sided: shares of the constraints that are `=` and that are `<=` or `>=`
    cardinality: number of distinct values; distribution, event_distribution: of their values and of event values;
        with "mixed" each attribute is uniform or Zipf, by lot
    match_rate: where above 0, every event meets exactly this share of the subscriptions
    levels: priorities are uniform over 0..levels-1 (1: all have the default)
    intervals: width of interval events (0: points)
    """

    m: int = 20
    k: int = 10
    width: float = 0.5
    width_max: float = 0.0
    free_ends: bool = False
    selectivity: float = 0.0
    equalities: float = 0.0
    one_sided: float = 0.0
    cardinality: int = PRECISION + 1
    distribution: str = "uniform"
    event_distribution: str = "uniform"
    skew: float = 1.0
    match_rate: float = 0.0
    levels: int = 1
    intervals: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.m >= 1, "m", "must be at least 1")
        self.require(0 <= self.k <= self.m, "k", f"must be between 0 and m={self.m}")
        self.require_share("width", "width_max", "selectivity", "equalities", "one_sided", "match_rate", "intervals")
        self.require(self.equalities + self.one_sided <= 1, "one_sided", "and equalities must not exceed 1 together")
        self.require(2 <= self.cardinality <= PRECISION + 1, "cardinality", f"must be between 2 and {PRECISION + 1}")
        self.require(1 <= self.levels <= LEVELS, "levels", f"must be between 1 and {LEVELS}")
        known = ", ".join(DISTRIBUTIONS)
        self.require(self.distribution in DISTRIBUTIONS, "distribution", f"is unknown (have: {known})")
        self.require(self.event_distribution in DISTRIBUTIONS, "event_distribution", f"is unknown (have: {known})")
        whole = self.distribution != "mixed" or self.constraints == self.m
        self.require(whole, "distribution", "needs a constraint on every attribute: set k=0")
        self.require(not self.width_max or self.width_max >= self.width, "width_max", f"is below width={self.width}")
        if self.match_rate:
            self.require(self.seeds <= self.cardinality, "match_rate", "needs more distinct values: raise cardinality")
            plain = not (self.one_sided or self.free_ends or self.selectivity or self.intervals)
            self.require(plain, "match_rate", "excludes one_sided, free_ends, selectivity and intervals")

    @property
    def space(self) -> Space:
        return Space.of(self.m, 0, PRECISION)

    @property
    def constraints(self) -> int:
        return self.k or self.m

    @property
    def seeds(self) -> int:
        """How many events the subscriptions are built around."""
        return round(1 / self.match_rate)

    @property
    def share(self) -> float | None:
        if self.match_rate:
            return 1 / self.seeds
        if self.intervals or self.event_distribution != "uniform":
            return None
        if self.distribution != "uniform" and (self.one_sided or self.free_ends):
            return None
        wide = 1 / 3 if self.free_ends else (self._narrowest + self._widest) / 2
        covered = wide * (self.cardinality - 1) + 1
        ranges = 1 - self.equalities - self.one_sided
        expected = self.equalities + ranges * covered + self.one_sided * (self.cardinality + 1) / 2
        return float((expected / self.cardinality) ** self.constraints)

    @property
    def _narrowest(self) -> float:
        return float(self.selectivity ** (1 / self.constraints)) if self.selectivity else self.width

    @property
    def _widest(self) -> float:
        return self._narrowest if self.selectivity else max(self.width, self.width_max)

    def _boxes(self, rows: I64) -> Boxes:
        attribute = choose(self.seed, ATTRIBUTES, rows, self.m, self.constraints)
        low, high = self._around(rows, attribute) if self.match_rate else self._anywhere(rows)
        low, high = self._keys(low), self._keys(high)
        if self.one_sided:
            kind = units(self.seed, KINDS, rows, self.constraints) - self.equalities
            half = self.one_sided / 2
            high = np.where((kind >= 0) & (kind < half), HIGHEST, high)
            low = np.where((kind >= half) & (kind < 2 * half), LOWEST, low)
        return rectangular(attribute, low, high, self.priorities(rows, self.levels))

    def _widths(self, rows: I64) -> I64:
        """Steps from the low end to the high end; 0 for an equality, and for one side, whose other end is moved."""
        width: I64 = np.full((len(rows), self.constraints), self._steps(self._narrowest), np.int64)
        if self._widest > self._narrowest:
            spread = self._narrowest + (self._widest - self._narrowest) * units(
                self.seed, WIDTHS, rows, self.constraints
            )
            width = np.rint(spread * (self.cardinality - 1)).astype(np.int64)
        if self.equalities or self.one_sided:
            narrow = units(self.seed, KINDS, rows, self.constraints) < self.equalities + self.one_sided
            width[narrow] = 0
        return width

    def _anywhere(self, rows: I64) -> tuple[I64, I64]:
        values = self._shaped(self.distribution, VALUES, rows, self.constraints)
        if not self.free_ends:
            width = self._widths(rows)
            low = (values * (self.cardinality - width)).astype(np.int64)
            return low, low + width
        places = (values * self.cardinality).astype(np.int64)
        two = (self._shaped(self.distribution, WIDTHS, rows, self.constraints) * self.cardinality).astype(np.int64)
        if self.equalities or self.one_sided:
            narrow = units(self.seed, KINDS, rows, self.constraints) < self.equalities + self.one_sided
            two = np.where(narrow, places, two)
        return np.minimum(places, two), np.maximum(places, two)

    def _around(self, rows: I64, attribute: I64) -> tuple[I64, I64]:
        """Constraints that cover the values of the row's event; the one in the exclusive column no other event's."""
        event = rows % self.seeds
        value = np.take_along_axis(self._seeds[0][event], attribute, axis=1)
        width = self._widths(rows)
        first = np.maximum(value - width, 0)
        last = np.minimum(value, self.cardinality - 1 - width)
        low = first + (self._shaped(self.distribution, VALUES, rows, self.constraints) * (last - first + 1)).astype(
            np.int64
        )
        column = (units(self.seed, CENTRES, rows, 1)[:, 0] * self.constraints).astype(np.int64)
        here = np.arange(len(rows)), column
        nearest_from, nearest_to = (bound[event, attribute[here]] for bound in self._seeds[1:])
        high = low + width
        low[here] = np.maximum(low[here], nearest_from)
        high[here] = np.minimum(high[here], nearest_to)
        return low, high

    @property
    def _seeds(self) -> tuple[I64, I64, I64]:
        return _seeds(self.seed, self.seeds, self.m, self.cardinality)

    def _points(self, rows: I64) -> Points:
        if self.match_rate:
            return Points.of(self._keys(self._seeds[0][rows % self.seeds]))
        width = self._steps(self.intervals)
        values = self._shaped(self.event_distribution, EVENTS, rows, self.m)
        low = (values * (self.cardinality - width)).astype(np.int64)
        if not self.intervals:
            return Points.of(self._keys(low))
        return Points(self._keys(low), self._keys(low + width))

    def _shaped(self, distribution: str, stream: int, rows: I64, columns: int) -> np.ndarray:
        if distribution == "mixed":
            skewed = units(self.seed, SKEWS, np.zeros(1, np.int64), columns) < 0.5
            zipf, uniform = (self._shaped(shape, stream, rows, columns) for shape in ("zipf", "uniform"))
            return np.where(skewed, zipf, uniform)
        return shaped(distribution, self.seed, stream, rows, columns, self.cardinality, self.skew)

    def _steps(self, width: float) -> int:
        return round(width * (self.cardinality - 1))

    def _keys(self, steps: I64) -> I64:
        return steps if self.cardinality == PRECISION + 1 else steps * PRECISION // (self.cardinality - 1)


@lru_cache(maxsize=4)
def _seeds(seed: int, seeds: int, attributes: int, cardinality: int) -> tuple[I64, I64, I64]:
    """(seeds, attributes) steps: the values of the events that subscriptions are built around, and from where to where
    each is nearer than any other on the attribute."""
    draws = units(seed, EVENTS, np.arange(seeds, dtype=np.int64), attributes)
    order = np.argsort(draws, axis=0, kind="stable")
    # Uniform values of fewer steps, each moved up by its rank: no two are alike.
    rising = (np.take_along_axis(draws, order, axis=0) * (cardinality - seeds + 1)).astype(np.int64)
    rising += np.arange(seeds)[:, None]
    middle = (rising[1:] + rising[:-1]) // 2
    edge = np.zeros((1, attributes), np.int64)
    first, last = np.vstack([edge, middle + 1]), np.vstack([middle, edge + cardinality - 1])
    rank = np.argsort(order, axis=0, kind="stable")
    value, first, last = (np.take_along_axis(values, rank, axis=0) for values in (rising, first, last))
    return value, first, last
