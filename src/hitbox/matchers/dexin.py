"""dexin: plan a pipeline for each event; first exclude by sweeping ends, then look at the few that are left.

W. Fan, Y. Liu, B. Tang: "DEXIN: A fast content-based multi-attribute event matching algorithm using dynamic exclusive
and inclusive methods", Future Generation Computer Systems, 2017. The attributes shrink the partial
result in turn, each by one of two methods:

    exclusive   sweep the slots of ends that fail, as REIN does; slots are kept in order, so no end is compared
                cost: the share of boxes in the slots swept, delta = 1 - rho (rho: the event's matching rate, read off
                the slot counts)
    inclusive   look at each box that is left          cost: the share that is left, the product of the rho before it

    slots       REIN's bucket lists, contents rising       partial result   bit set (exclusive part), then a dense
    bounds      [attribute][number] -> low, high                            list that is filtered in place (inclusive)

Plans: `near-optimal` is the paper's Low-Matching-Rate-First-Fit: attributes by rising rho, exclusive while the
accumulated rho exceeds the next delta, inclusive from there on. `exclusive` and `inclusive` use one method throughout;
`optimal` tries every choice of exclusive attributes that the paper's observations 1-3 allow (2^m of them, so at most 22
attributes).

Choices: a slot is a sorted run of an array in place of a red-black tree (the search in it costs the same, insertion
moves the run's tail). `style="lists"` is the paper's other form of a slot (Figures 13 and 14), a linked list without
order: cheaper to insert, and all of the event's own slot is compared. `keep_plans` keeps the plan of each event until
boxes change, so that matching it again is the paper's "without planning" (Figure 16). Open bounds are closed ones of
the neighbouring key; a missing bound (one-sided constraints) is not stored, as in the paper; `<>` is two boxes. The
partial result is a bit set and then a list in place of a hash map with a linked list; the first attribute that includes
looks at the boxes as it reads them off the bit set. Bounds take four bytes where all keys fit, else eight. Both methods
count 1 for each box that they traverse, as in the paper, although on today's machines looking at a box costs several
times more than sweeping past it: at high matching rates `exclusive` can be faster.

Cost: match O(cheapest plan); insert and delete O(k n / slots); memory 24 bytes per constraint and 8 or 16 bytes per box
and attribute (the paper's subscriptions constrain every attribute).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from hitbox.encoding.arrays import HIGHEST, I32, I64, LOWEST, MISSING, Boxes, Hits, Points, Space
from hitbox.errors import MatcherError
from hitbox.matchers.base import check_choice, check_count, check_flag
from hitbox.matchers.kernels import U64, Ints, grown_for_unmarked, now, prefetch, trailing_zeros, unmarked
from hitbox.matchers.linked_lists import STYLES, arrays_of
from hitbox.matchers.rein import HIGH, LOW, Rein, cell, mark_side

F64 = NDArray[np.float64]

NEAR_OPTIMAL, EXCLUSIVE, INCLUSIVE, OPTIMAL = range(4)
PLANS = {"near-optimal": NEAR_OPTIMAL, "exclusive": EXCLUSIVE, "inclusive": INCLUSIVE, "optimal": OPTIMAL}
MOST_FOR_OPTIMAL = 22
NARROWEST = int(np.iinfo(np.int32).min)
AHEAD = 64
"""How far ahead the inclusive method asks for bounds: a candidate's are never in the cache."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The pipeline of one event: the first `exclusive` attributes of `sequence` exclude, the others include."""

    sequence: I64
    exclusive: int
    rates: F64
    cost: float


NO_PLANS: tuple[I64, I64] = (np.zeros((0, 0), np.int64), np.zeros(0, np.int64))


class Dexin(Rein):
    def __init__(
        self,
        space: Space,
        *,
        slots: int = 1500,
        plan: str = "near-optimal",
        style: str = "runs",
        keep_plans: bool = False,
    ):
        check_choice("plan", plan, PLANS)
        check_choice("style", style, STYLES)
        check_flag("keep_plans", keep_plans)
        if plan == "optimal" and space.attributes > MOST_FOR_OPTIMAL:
            raise MatcherError(
                f"plan='optimal' tries 2^attributes plans per event: at most {MOST_FOR_OPTIMAL} attributes, "
                f"not {space.attributes}; use plan='near-optimal'"
            )
        check_count("slots", slots, 1)
        super().__init__(space, buckets=slots, sorted_buckets=style == "runs", style=style)
        self.planner = PLANS[plan]
        self.keep_plans = keep_plans
        self.plans: dict[bytes, Plan] = {}
        self.bounds: Ints = np.zeros((space.attributes, 0), np.int32)
        self.counts: I64 | None = None

    def insert(self, numbers: I64, boxes: Boxes) -> None:
        super().insert(numbers, boxes)
        self._forget()
        held = self.bounds.shape[1]
        if self.bounds.dtype == np.int32 and not fits(boxes.low, boxes.high):
            self.bounds = np.zeros((self.space.attributes, 2 * self.store.capacity), np.int64)
            numbers = self.store.living()
            boxes = self.store.boxes(numbers)
        elif 2 * self.store.capacity > held:
            bounds = np.zeros((self.space.attributes, 2 * self.store.capacity), self.bounds.dtype)
            bounds[:, :held] = self.bounds
            self.bounds = bounds
        fill_bounds(self.bounds, numbers, boxes.offsets, boxes.attribute, boxes.low, boxes.high)

    def delete(self, numbers: I64) -> None:
        super().delete(numbers)
        self._forget()

    def _forget(self) -> None:
        self.counts = None
        self.plans = {}

    def _counts(self) -> I64:
        """Boxes in the slots before each one, so that a matching rate is read in O(1); made at the first match."""
        counts = self.counts
        if counts is None:
            counts = np.zeros((2 * self.space.attributes, self.grid.cells + 1), np.int64)
            np.cumsum(self.lists.size.reshape(len(counts), -1), axis=1, out=counts[:, 1:])
            self.counts = counts  # a thread that gets here at the same time computes the same
        return counts

    def match_timed(self, points: Points, stamps: I64) -> Hits:
        index = (self.grid.cells, self.grid.arrays, arrays_of(self.lists), self._counts())
        state = (self.living.dead, self.store.count, self.bounds, self.planner)
        kept = self._kept(points) if self.keep_plans else NO_PLANS
        return Hits(*match_planned(points.low, points.high, *index, *state, *kept, stamps))

    def _kept(self, points: Points) -> tuple[I64, I64]:
        """The sequence and the number of exclusive attributes of each event."""
        plans = [self.plan(points[event : event + 1]) for event in range(len(points))]
        sequences = np.array([plan.sequence for plan in plans], np.int64).reshape(len(plans), self.space.attributes)
        return sequences, np.array([plan.exclusive for plan in plans], np.int64)

    def plan(self, points: Points) -> Plan:
        """The plan of the first event, its matching rates and what the paper's model says that it costs."""
        if not self.keep_plans:
            return self._new_plan(points)
        event = points.low[0].tobytes() + points.high[0].tobytes()
        if event not in self.plans:
            self.plans[event] = self._new_plan(points)
        return self.plans[event]

    def _new_plan(self, points: Points) -> Plan:
        index = (self.grid.arrays, self._counts(), self.store.count)
        rates = matching_rates(0, points.low, points.high, *index)
        sequence, exclusive = make_plan(rates, self.planner)
        return Plan(sequence, exclusive, rates, plan_cost(rates, sequence, exclusive))

    def nbytes(self) -> int:
        return super().nbytes() + self.bounds.nbytes


def fits(low: I64, high: I64) -> bool:
    """Whether `narrow` keeps every comparison of these bounds with any event."""
    least, most = NARROWEST + 2, -NARROWEST - 2
    lows = (low <= LOWEST) | ((low >= least) & (low <= most))
    highs = (high == MISSING) | (high == HIGHEST) | ((high >= least) & (high <= most))
    return bool(lows.all() and highs.all())


@njit(cache=True, nogil=True)
def narrow(key: int, bounds: Ints) -> int:
    """`key` in as many bytes as `bounds` have: one that is missing lies below all others, one that is too large at the
    end, where no bound is but the missing one."""
    least, most = (MISSING, HIGHEST) if bounds.itemsize == 8 else (NARROWEST, -NARROWEST - 1)
    return least if key == MISSING else min(max(key, least + 1), most)


@njit(cache=True, nogil=True)
def fill_bounds(bounds: Ints, numbers: I64, offsets: I64, attribute: Any, low: I64, high: I64) -> None:
    least, most = narrow(MISSING, bounds), narrow(HIGHEST, bounds)
    for i in range(len(numbers)):
        for a in range(len(bounds)):
            bounds[a, 2 * numbers[i]], bounds[a, 2 * numbers[i] + 1] = least, most
        for row in range(offsets[i], offsets[i + 1]):
            bounds[attribute[row], 2 * numbers[i]] = narrow(low[row], bounds)
            bounds[attribute[row], 2 * numbers[i] + 1] = narrow(high[row], bounds)


@njit(cache=True, nogil=True)
def matching_rates(event: int, lows: I64, highs: I64, grid: Any, counts: I64, count: int) -> F64:
    """Formula (3): one minus the share of boxes in the slots that the exclusive method would sweep."""
    low, high, width = grid
    rates = np.ones(lows.shape[1])
    for a in range(lows.shape[1]):
        first = cell(highs[event, a], low[a], high[a], width[a])
        last = cell(lows[event, a], low[a], high[a], width[a])
        swept = counts[2 * a, -1] - counts[2 * a, first] + counts[2 * a + 1, last + 1]
        if count:
            rates[a] = max(0.0, 1 - swept / count)
    return rates


@njit(cache=True, nogil=True)
def make_plan(rates: F64, planner: int) -> tuple[I64, int]:
    """The sequence of attributes, and how many of them from the front use the exclusive method."""
    sequence = np.arange(len(rates))
    for i in range(1, len(rates)):  # insertion sort by rising rate: attributes are few
        attribute, k = sequence[i], i
        while k and rates[sequence[k - 1]] > rates[attribute]:
            sequence[k] = sequence[k - 1]
            k -= 1
        sequence[k] = attribute
    if planner == EXCLUSIVE:
        return sequence, len(rates)
    if planner == INCLUSIVE:
        return sequence, 0
    if planner == OPTIMAL:
        sequence, exclusive = best_plan(rates, sequence)
        return sequence, exclusive
    left, exclusive = 1.0, min(1, len(rates))
    while exclusive and exclusive < len(rates):
        left *= rates[sequence[exclusive - 1]]
        if left <= 1 - rates[sequence[exclusive]]:
            break
        exclusive += 1
    return sequence, exclusive


@njit(cache=True, nogil=True)
def best_plan(rates: F64, rising: I64) -> tuple[I64, int]:
    """The cheapest of all plans that exclude first (at least one attribute) and include by rising rate."""
    attributes = len(rates)
    best, chosen = np.inf, 0
    for choice in range(1, 1 << attributes):
        cost, left = 0.0, 1.0
        for k in range(attributes):
            if choice >> k & 1:
                cost += 1 - rates[rising[k]]
                left *= rates[rising[k]]
        for k in range(attributes):
            if not choice >> k & 1:
                cost += left
                left *= rates[rising[k]]
        if cost < best:
            best, chosen = cost, choice
    sequence = np.empty(attributes, np.int64)
    exclusive = 0
    for k in range(attributes):
        if chosen >> k & 1:
            sequence[exclusive] = rising[k]
            exclusive += 1
    place = exclusive
    for k in range(attributes):
        if not chosen >> k & 1:
            sequence[place] = rising[k]
            place += 1
    return sequence, exclusive


@njit(cache=True, nogil=True)
def plan_cost(rates: F64, sequence: I64, exclusive: int) -> float:
    """Formula (6): what the pipeline traverses, as a multiple of the number of boxes."""
    cost, left = 0.0, 1.0
    for k in range(len(sequence)):
        cost += 1 - rates[sequence[k]] if k < exclusive else left
        left *= rates[sequence[k]]
    return cost


@njit(cache=True, nogil=True)
def include(found: I32, begin: int, end: int, bounds: Ints, low: int, high: int, stamps: I64) -> int:
    """Keep those of `found[begin:end]` whose bounds meet [low, high]; the new end."""
    low, high, kept = narrow(low, bounds), narrow(high, bounds), begin
    for i in range(begin, end):
        prefetch(bounds, 2 * np.int64(found[min(i + AHEAD, end - 1)]))
        place = np.uint64(2 * np.int64(found[i]))
        meets = (bounds[place] <= high) & (bounds[place + np.uint64(1)] >= low)
        found[kept] = found[i]  # stays only if `kept` moves on: no branch to mispredict
        if len(stamps) and meets:
            stamps[kept] = now()
        kept += meets
    return kept


@njit(cache=True, nogil=True)
def include_unmarked(
    marks: U64, found: I32, used: int, bounds: Ints, low: int, high: int, stamps: I64
) -> tuple[I32, int]:
    """The numbers without a mark (`unmarked`) that pass `include`."""
    low, high = narrow(low, bounds), narrow(high, bounds)
    found = grown_for_unmarked(marks, found, used)
    for word in range(len(marks)):
        rest = ~marks[word]
        while rest != 0:
            number = np.uint64(64 * word) + np.uint64(trailing_zeros(rest))
            meets = (bounds[2 * number] <= high) & (bounds[2 * number + np.uint64(1)] >= low)
            found[used] = number
            if len(stamps) and meets:
                stamps[used] = now()
            used += meets
            rest &= rest - np.uint64(1)
    return found, used


@njit(cache=True, nogil=True)
def match_planned(
    lows: I64, highs: I64, cells: int, grid: Any, lists: Any, counts: I64,
    dead: U64, count: int, bounds: Ints, planner: int, sequences: I64, exclusives: I64, stamps: I64,
) -> tuple[I64, I32]:  # fmt: skip
    """`sequences` and `exclusives`: the plans of the events, or empty where they are to be made here."""
    offsets = np.zeros(len(lows) + 1, np.int64)
    matched = np.empty(64, np.int32)
    used = 0
    attributes = lows.shape[1]
    for event in range(len(lows)):
        if len(exclusives):
            sequence, exclusive = sequences[event], exclusives[event]
        else:
            rates = matching_rates(event, lows, highs, grid, counts, count)
            sequence, exclusive = make_plan(rates, planner)
        marks = dead.copy()
        for k in range(exclusive):
            a = sequence[k]
            mark_side(marks, a, HIGH, lows[event, a], cells, grid, lists, True)
            mark_side(marks, a, LOW, highs[event, a], cells, grid, lists, True)
        begin = used
        if exclusive == attributes:
            matched, used = unmarked(marks, matched, used, stamps)
        for k in range(exclusive, attributes):
            a = sequence[k]
            low, high = lows[event, a], highs[event, a]
            last = stamps if k == attributes - 1 else stamps[:0]  # only the last one determines a match
            if k == exclusive:
                matched, used = include_unmarked(marks, matched, used, bounds[a], low, high, last)
            else:
                used = include(matched, begin, used, bounds[a], low, high, last)
        offsets[event + 1] = used
    return offsets, matched[:used].copy()
