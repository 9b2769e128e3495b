"""Symmetric publish/subscribe: both sides state criteria and information, both are conjunctions of intervals.

The paper gives its parameters (Table 1) but not how it fixes the selectivity: half equalities against half points
on a 16-bit domain would never meet by chance. Its intermediate results tell: for 100 matches its two indexes return 205
rows together at 16 attributes, 2,789 at 8. So subscriptions and events meet because they are about the same thing.
Here rows gather around 1 / selectivity centres; row i belongs to centre i mod centres and each of its intervals
holds the centre's value:

    criteria of a subscription, of an event    used or not; equality [c, c], or a range that holds c
    information of either side                 point [c, c], or a range that holds c

An event thus meets the n * selectivity subscriptions of its centre, plus few by chance. `width` is ours: at 0.3 the two
halves return 200 rows together at 16 attributes and about 1,280 at 8, at 0.38 about 203 and 2,960 (500 events against
100k subscriptions, scaled to a million), which is nearer to the paper. With `swapped` the events are the base and
the subscriptions arrive.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hitbox.encoding.arrays import HIGHEST, I64, LEVELS, MISSING, Boxes, Points, Space
from hitbox.workloads.base import CENTRES, EVENT_KINDS, EVENT_WIDTHS, EVENTS, KINDS, VALUES, WIDTHS, Workload, ragged
from hitbox.workloads.draws import units

LOW, HIGH = -(2**15), 2**15 - 1
"""The paper's attributes are short integers."""


@dataclass(frozen=True, kw_only=True)
class Symmetric(Workload):
    """Two-sided subscriptions and events over short integers.

    Attributes
    ----------
    m, information: attributes in all; how many of them (the last) subscriptions declare about themselves
    selectivity: share of the subscriptions that an event meets
    used: share of the criteria attributes that a criterion is stated on
    equalities: share of the criteria that are `=`; points_share: of the information that is a point
    width: ranges have widths up to this share of the domain
    swapped: events are stored and subscriptions arrive
    """

    m: int = 16
    information: int = 8
    selectivity: float = 0.0001
    used: float = 1.0
    equalities: float = 0.5
    points_share: float = 0.5
    width: float = 0.3
    levels: int = 1
    swapped: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.m >= 1, "m", "must be at least 1")
        self.require(0 <= self.information <= self.m, "information", f"must be between 0 and m={self.m}")
        self.require(0 < self.selectivity <= 1, "selectivity", "must be above 0 and at most 1")
        self.require_share("used", "equalities", "points_share", "width")
        self.require(1 <= self.levels <= LEVELS, "levels", f"must be between 1 and {LEVELS}")

    @property
    def centres(self) -> int:
        return round(1 / self.selectivity)

    @property
    def space(self) -> Space:
        low, high = np.full(self.m, LOW, np.int64), np.full(self.m, HIGH, np.int64)
        information = np.flatnonzero(self._states_information(self.swapped))
        return Space(low, high, tuple(information.tolist()))

    def _boxes(self, rows: I64) -> Boxes:
        low, high, used = self._intervals(rows, event=self.swapped)
        attribute = np.broadcast_to(np.arange(self.m), low.shape)
        return ragged(attribute, low, high, used, self.priorities(rows, self.levels))

    def _points(self, rows: I64) -> Points:
        low, high, used = self._intervals(rows, event=not self.swapped)
        return Points(np.where(used, low, MISSING), np.where(used, high, HIGHEST))

    def _states_information(self, event: bool) -> NDArray[np.bool_]:
        """On which attributes this side gives information; on the others it states criteria."""
        last = np.arange(self.m) >= self.m - self.information
        return ~last if event else last

    def _intervals(self, rows: I64, event: bool) -> tuple[I64, I64, NDArray[np.bool_]]:
        values, widths, kinds = (EVENTS, EVENT_WIDTHS, EVENT_KINDS) if event else (VALUES, WIDTHS, KINDS)
        domain = HIGH - LOW + 1
        centre = (units(self.seed, CENTRES, rows % self.centres, self.m) * domain).astype(np.int64)
        width = (units(self.seed, widths, rows, self.m) * self.width * domain).astype(np.int64)
        drawn = units(self.seed, kinds, rows, 2 * self.m)
        informs = self._states_information(event)
        width[drawn[:, : self.m] < np.where(informs, self.points_share, self.equalities)] = 0
        first = np.maximum(centre - width, 0)
        last = np.minimum(centre, domain - 1 - width)
        low = first + (units(self.seed, values, rows, self.m) * (last - first + 1)).astype(np.int64)
        used = informs | (drawn[:, self.m :] < self.used)
        return low + LOW, low + width + LOW, used
