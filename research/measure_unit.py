"""One contestant on the boxes of one seed: built, checked, timed on the events of every point that uses these boxes.

    rehearse   on a sample: compiled, compared with `brute`; does it fit into memory, is it built in time?
    build      all boxes, timed: once, and again where it is quick
    check      some events against `brute` over all boxes
    time       event by event, repeated where that is quick; beside them a fixed piece of work, the yardstick, which
               shows how fast the machine was; last of all inserts and deletes, which change the structure
    send       instead of that, where an experiment is about sending: matches go to receivers in another process

Contestants are built one after another, so that a point needs the memory of one. An experiment may have a second
workload beside the first; a contestant is then built on both, and timed on them in turn.

A contestant that does not fit is left out with the reason. A wrong answer ends the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hitbox.encoding.arrays import I64, Boxes, Points
from hitbox.errors import MatcherError
from hitbox.matchers.metrics import Times, measure
from hitbox.matchers.sending import WAYS, Delivery, MatchAndSend
from hitbox.workloads import Workload
from research.contestants import enter
from research.errors import BenchError
from research.machine import free_memory
from research.measure import Lane, oracle, parts_of, quiet_memory, require_equal, yardstick
from research.measurements import COUNTED_EVENTS
from research.ranks import rank_correlation
from research.receivers import Receivers

SAMPLE = 1_000
INSERTED_BOXES = 50
"""Boxes that are inserted and deleted one by one, and in one call (`many`), where the call itself no longer counts."""
MAX_REPEAT_FACTOR = 10
"""Quick measurements are repeated up to this many times as often as asked for."""
PART_SECONDS = 0.02
"""Seconds that a part of the events should take; a single event may take longer."""
QUICK_WITHIN = 1.2
"""The machine counts as fast while the yardstick takes at most this many times its quickest time (else 1.5 times)."""
FIRST_YARDSTICKS = 100
"""Runs of the yardstick before the first measurement of a process, to find its quickest time."""
COUNTED_PAIRS = 400_000_000
"""Of events and subscriptions in which matches are counted, as in REIN's tables: some match one pair in ten million."""
WAIT_FACTOR = 3
"""Waiting for a quick moment may take this many times the time planned for timing."""
DELETING_FACTOR = 60
"""Deleting subscriptions one by one may take this many times the time planned for timing."""
CONNECTIONS = 16
"""Receivers that matches are sent to; a subscription belongs to one of them."""
USABLE_SHARE = 0.9
"""Of the free memory that a contestant may take."""
MEMORY_FACTOR = 1.5
"""A structure takes up to this many times its size while it grows."""
F64 = NDArray[np.float64]
Row = dict[str, Any]


@dataclass(frozen=True)
class Effort:
    """How much is done: see experiment.Scale."""

    repeats: int
    budget: float
    build_budget: float
    checked: int
    deleted: int


@dataclass(frozen=True)
class Data:
    """The boxes that a contestant is built on."""

    workload: Workload
    boxes: Boxes

    _expected: dict[bytes, list[I64]] = field(default_factory=dict)

    @cached_property
    def fresh(self) -> Boxes:
        return self.workload.boxes(len(self.boxes), INSERTED_BOXES)

    def expected(self, points: Points) -> list[I64]:
        """What the points must meet, found once for all contestants."""
        key = points.low.tobytes() + points.high.tobytes()
        if key not in self._expected:
            self._expected[key] = oracle(self.workload.space, parts_of(self.boxes), points)
        return self._expected[key]


@dataclass(frozen=True)
class Request:
    """The events of one point, and what to measure with them."""

    key: Any
    asked: Workload
    """The workload that the events are of."""
    points: Points
    measures: tuple[str, ...]
    counted: bool = False
    """Whether to count the matches of many more events."""
    beside: Points | None = None
    """Events of the second workload."""


@dataclass
class Result:
    rows: list[Row] = field(default_factory=list)
    skipped: str = ""
    needs_gb: float = 0.0
    """Free memory that it would have needed, where it was left out for lack of it."""
    seconds: float = 0.0


class LeftOut(MatcherError):
    """A contestant that should not be tried, and how much free memory it would need."""

    def __init__(self, why: str, needs_gb: float = 0.0):
        super().__init__(why)
        self.needs_gb = needs_gb


def measure_unit(
    spec: str, data: Data, requests: list[Request], effort: Effort, beside: Data | None = None, label: str = ""
) -> dict[Any, Result]:
    """The rows of a contestant for each request; those of the workload beside have `beside` set."""
    began = time.perf_counter()
    label = label or spec
    with quiet_memory():
        if yardstick.quickest == float("inf"):
            for _ in range(FIRST_YARDSTICKS):
                yardstick()
        try:
            lanes = _build(label, spec, data, beside, requests, effort)
        except LeftOut as problem:
            return {request.key: Result(skipped=str(problem), needs_gb=problem.needs_gb) for request in requests}
        except (MatcherError, MemoryError) as problem:
            return {request.key: Result(skipped=f"does not fit: {problem}") for request in requests}
        shared = (time.perf_counter() - began) / len(requests)
        found = {}
        for request in requests:
            begin = time.perf_counter()
            rows = _measure(lanes, request, effort)
            found[request.key] = Result(rows, seconds=shared + time.perf_counter() - begin)
        last = [request for request in requests if "upkeep" in request.measures]
        if last:
            begin = time.perf_counter()
            upkeep = _upkeep(lanes[0], effort)
            if any("deletions" in request.measures for request in last):
                upkeep += _deletions(lanes[0], effort)
            for request in last:
                found[request.key].rows.extend(upkeep)
                found[request.key].seconds += (time.perf_counter() - begin) / len(last)
    return found


@dataclass
class Built:
    lane: Lane
    data: Data
    builds: list[Row]
    beside: bool = False


def _build(
    label: str, spec: str, data: Data, beside: Data | None, requests: list[Request], effort: Effort
) -> list[Built]:
    built = []
    for one, second in ((data, False), (beside, True)):
        if one is None:
            continue
        points = requests[0].beside if second else requests[0].points
        assert points is not None
        _rehearse(label, spec, one, points, effort)
        built.append(Built(Lane(label, enter(spec, one.workload.space)), one, [], second))
        _insert_all(built[-1])
    spent = [row["ns"] / 1e9 for one in built for row in one.builds]
    for attempt in range(1, effort.repeats):
        for i, lane in enumerate(built):
            if spent[i] * (attempt + 1) / attempt < effort.budget:
                lane.lane.matcher = enter(spec, lane.data.workload.space)  # the old one is gone before this fills
                spent[i] += _insert_all(lane)
    return built


def _rehearse(label: str, spec: str, data: Data, points: Points, effort: Effort) -> None:
    """Compile and check on a sample; LeftOut where the whole should not be tried."""
    n, space = len(data.boxes), data.workload.space
    for count in (min(20, n), min(SAMPLE, n)):
        sample = data.boxes.take(np.arange(count))
        lane = Lane(label, enter(spec, space))
        half = count // 2
        numbers = np.arange(count, dtype=np.int64)
        lane.matcher.insert(numbers[:half], sample.take(numbers[:half]))
        small, begin = lane.matcher.nbytes(), time.process_time()
        lane.matcher.insert(numbers[half:], sample.take(numbers[half:]))
        taken = time.process_time() - begin
        expected = oracle(space, parts_of(sample), points[:4])
        require_equal(label, lane.match(points[:4]), expected, "on a sample", exact=lane.matcher.exact)
    need = MEMORY_FACTOR * n * (lane.matcher.nbytes() - small) / max(1, count - half)
    free = USABLE_SHARE * free_memory()
    if need > free:
        why = f"does not fit: it needs about {need / 1e9:.1f} GB and {free / 1e9:.1f} GB are free"
        raise LeftOut(why, need / 1e9)
    seconds = n * taken / max(1, count - half)
    if seconds > effort.build_budget:
        raise LeftOut(f"building would take about {seconds:,.0f} s")


def _insert_all(built: Built) -> float:
    numbers = np.arange(len(built.data.boxes), dtype=np.int64)
    lane = built.lane
    before, begin = yardstick(), lane.clock()
    lane.matcher.insert(numbers, built.data.boxes)
    taken = lane.clock() - begin
    pace = yardstick.quickest / float(np.mean([before, yardstick()])) if taken < 1 else 1.0
    row = {"kind": "build", "sample": len(built.builds), "ns": taken * pace * 1e9, "bytes": lane.matcher.nbytes()}
    built.builds.append(row)
    return taken


def _measure(lanes: list[Built], request: Request, effort: Effort) -> list[Row]:
    rows: list[Row] = []
    turn = [(one, request.beside if one.beside else request.points) for one in lanes]
    field = [(one, points) for one, points in turn if points is not None]
    for one, points in field:
        _check(one, points, effort)
    fine, sending = "times" in request.measures, "sending" in request.measures
    plans = [_plans(one, points) if "plan" in request.measures else [] for one, points in field]
    found = [_sent(one, points, effort) for one, points in field] if sending else _timed(field, fine, effort)
    for (one, points), timed, planned in zip(field, found, plans, strict=True):
        if sending:
            own = _sent_rows(timed)
        else:
            own = _fine_rows(timed, one.data.boxes.priority) if fine else [{"ns": ns} for ns in timed]
        events = [row for row in own if row.get("kind") is None]
        hits = one.lane.match(points)
        for event, row in enumerate(events):
            row |= {"kind": "event", "sample": event, "matches": len(hits[event]), "digest": digest(hits[event])}
        for row, plan in zip(events, planned, strict=False):
            row |= plan
        if "halves" in request.measures and one.lane.name == "compound":
            _halves(one.data, points, events)
        own += one.builds
        if request.counted and not one.beside:
            own += _counts(one, request)
        rows += [row | {"beside": one.beside, "pace": yardstick.quickest * 1e6} for row in own]
    return rows


def _check(one: Built, points: Points, effort: Effort) -> None:
    some = points[: effort.checked]
    expected = one.data.expected(some)
    begin = time.process_time()
    for i, want in enumerate(expected):
        when = f"on {len(one.data.boxes):,} boxes"
        require_equal(one.lane.name, one.lane.match(some[i : i + 1]), [want], when, i, one.lane.matcher.exact)
    one.lane.estimate = (time.process_time() - begin) / max(1, len(expected))


@dataclass
class Part:
    """Some events of a lane, few enough that the machine keeps its pace, and what came of each time they were run."""

    events: slice
    runs: list[Any] = field(default_factory=list)
    yards: list[tuple[float, float]] = field(default_factory=list)
    """Before and after each run."""

    @property
    def pace(self) -> float:
        """The slower yardstick of the quickest run."""
        return min(map(max, self.yards))

    @property
    def factor(self) -> float:
        """What its times are to be multiplied by: how much slower the machine was even then than at its quickest."""
        return yardstick.quickest / float(np.mean(min(self.yards, key=lambda yards: (max(yards), min(yards)))))


def _timed(field: list[tuple[Built, Points]], fine: bool, effort: Effort) -> list[Any]:
    """Nanoseconds of each event, or its fine-grained times: the quickest of the repetitions.

    Not the median: what a busy machine adds to a repetition is never negative, and curves take minutes to measure.
    """

    def run(built: Built, points: Points) -> Any:
        if not fine:
            return built.lane.time_single(points)
        built.lane.warm_up(points)
        return measure(built.lane.matcher, points)

    found: list[Any] = []
    for parts in _rounds(field, run, effort):
        if fine:
            found.append(
                [
                    min(event, key=lambda one: one.matching) * part.factor
                    for part in parts
                    for event in zip(*part.runs, strict=True)
                ]
            )
        else:
            quickest = [np.min(np.array(part.runs), axis=0) * part.factor for part in parts]
            found.append((np.concatenate(quickest) * 1e9).tolist())
    return found


def _rounds(field: list[tuple[Built, Points]], run: Callable[[Built, Points], Any], effort: Effort) -> list[list[Part]]:
    """`run` for each part in turn, once at least, and again while that is quick.

    A neighbour on the same core takes a third of our speed, for fractions of a second at a time. So parts are short,
    there is a yardstick before and after each, and one that had no quick moment yet is run again, with patience.
    """
    parts = []
    for built, points in field:
        size = max(1, int(PART_SECONDS / max(built.lane.estimate, 1e-9)))
        parts.append([Part(slice(start, min(start + size, len(points)))) for start in range(0, len(points), size)])
    spent = [0.0] * len(field)
    for turn in range(MAX_REPEAT_FACTOR * effort.repeats):
        for i, (built, points) in enumerate(field):
            if turn == 0 or spent[i] * (turn + 1) / turn <= effort.budget:
                due = parts[i]
            elif spent[i] < WAIT_FACTOR * effort.budget:
                due = [part for part in parts[i] if part.pace > QUICK_WITHIN * yardstick.quickest]
            else:
                due = []
            for part in due:
                before, begin = yardstick(), time.perf_counter()
                part.runs.append(run(built, points[part.events]))
                spent[i] += time.perf_counter() - begin
                part.yards.append((before, yardstick()))
    return parts


def _fine_rows(times: list[Times], priority: Any) -> list[Row]:
    """A row for each event, and one for each of its priorities with the sum of the determining times."""
    rows: list[Row] = []
    for event, one in enumerate(times):
        row: Row = {"ns": float(one.matching)}
        for metric in ("preparing", "gap", "interval", "ending"):
            value = getattr(one, metric)
            row[metric] = None if value is None else float(value)
        rows.append(row)
        if len(one.determining):
            level, taken = priority[one.numbers].astype(np.int64), one.determining.astype(float)
            row["urgency"] = rank_correlation(9 - level.astype(float), taken)
            number, total, square = (np.bincount(level, weights) for weights in (None, taken, taken**2))
            rows += [
                {"kind": "level", "sample": event, "level": at, "matches": int(number[at])}
                | {"ns": float(total[at]), "square": float(square[at])}
                for at in np.flatnonzero(number).tolist()
            ]
    return rows


def _sent(one: Built, points: Points, effort: Effort) -> list[list[Delivery]]:
    """Each event matched and sent in the way that the contestant is called; of its repetitions the quickest."""
    way: Any = one.lane.name
    if way not in WAYS:
        raise BenchError(f"contestant {way!r} of an experiment about sending must be called {', '.join(WAYS)}")
    found, spent = [], 0.0
    payload = bytes(8 * (1 + one.data.workload.space.attributes))
    with (
        Receivers(CONNECTIONS, payload) as receivers,
        MatchAndSend(one.lane.matcher, receivers.send, way=way) as broker,
    ):
        broker.publish(points[:1])
        for i in range(len(points)):
            runs: list[list[Delivery]] = []
            while not runs or (len(runs) < effort.repeats and spent < effort.budget):
                begin = time.perf_counter()
                runs.append(broker.publish(points[i : i + 1]))
                spent += time.perf_counter() - begin
            found.append(min(runs, key=lambda run: max((level.sent for level in run), default=0)))
    return found


def _sent_rows(events: list[list[Delivery]]) -> list[Row]:
    """A row for each event, and two for each of its priorities: when its matches were determined, and sent."""
    rows: list[Row] = []
    for event, deliveries in enumerate(events):
        determined = [float(one.determined) for one in deliveries]
        row: Row = {"ns": max(determined, default=0.0)}
        if determined:
            row |= {"preparing": determined[0], "gap": determined[-1] - determined[0]}
        rows.append(row)
        for one in deliveries:
            for kind, moment in (("level", float(one.determined)), ("sent", float(one.sent))):
                count = len(one.numbers)
                sums = {"matches": count, "ns": count * moment, "square": count * moment**2}
                rows.append({"kind": kind, "sample": event, "level": one.priority} | sums)
    return rows


def _plans(one: Built, points: Points) -> list[Row]:
    """What the pipelines cost by the paper's model, and how long it takes to find one.

    Before the events are timed: a contestant that keeps its plans is then timed without planning.
    """
    matcher: Any = one.lane.matcher
    matcher.plan(points[:1])
    rows: list[Row] = []
    for i in range(len(points)):
        before, begin = yardstick(), time.process_time()
        cost = float(matcher.plan(points[i : i + 1]).cost)
        taken = time.process_time() - begin
        pace = yardstick.quickest / max(before, yardstick.quickest)
        rows.append({"plan_cost": cost, "plan_ns": taken * pace * 1e9})
    return rows


def _halves(data: Data, points: Points, events: list[Row]) -> None:
    """Boxes that an event meets on the criteria alone, plus those that it meets on the information alone."""
    space = data.workload.space
    stated = np.isin(np.arange(space.attributes), space.information)
    low, high = data.boxes.dense(space.attributes)
    for event, row in enumerate(events[:10]):
        meets = (low <= points.high[event]) & (high >= points.low[event])
        row["intermediate"] = float(meets[:, stated].all(axis=1).sum() + meets[:, ~stated].all(axis=1).sum())


def _counts(one: Built, request: Request) -> list[Row]:
    """Matches over many more events than are timed: a few events have most matches."""
    events = max(20 * len(request.points), min(COUNTED_PAIRS // max(1, len(one.lane.matcher)), 10_000))
    return [
        {
            "kind": "count",
            "sample": i,
            "matches": len(one.lane.match(request.asked.points(start, COUNTED_EVENTS)).numbers),
        }
        for i, start in enumerate(range(0, events, COUNTED_EVENTS))
    ]


def _upkeep(built: Built, effort: Effort) -> list[Row]:
    """Insert and delete fresh boxes, in calls of one and of many."""
    lane, data = built.lane, built.data
    n = len(data.boxes)
    lane.time_one(data.fresh, n, effort.budget)
    kinds: dict[str, list[float]] = {"insert one": lane.insert_one, "insert many": [], "delete many": []}
    for _ in range(max(3, effort.repeats)):
        before = yardstick()
        lane.time_bulk(data.fresh, n, effort.budget)
        pace = yardstick.quickest / float(np.mean([before, yardstick()]))
        kinds["insert many"].append(lane.insert_bulk.repeats[-1] * pace)
        kinds["delete many"].append(lane.delete_bulk.repeats[-1] * pace)
    return [row for kind, taken in kinds.items() for row in _rows_of(kind, taken)]


def _deletions(built: Built, effort: Effort) -> list[Row]:
    """Subscriptions drawn at random are deleted, one call each; fewer where that takes long."""
    n = len(built.data.boxes)
    numbers = np.random.default_rng(n).permutation(n)[: min(effort.deleted, n // 2)].astype(np.int64)
    lane, began = built.lane, time.perf_counter()
    taken: list[float] = []
    for i in range(len(numbers)):
        begin = lane.clock()
        lane.matcher.delete(numbers[i : i + 1])
        taken.append(lane.clock() - begin)
        if time.perf_counter() - began > DELETING_FACTOR * effort.budget and i >= 20:
            break
    return _rows_of("delete one", taken)


def _rows_of(kind: str, taken: list[float]) -> list[Row]:
    pace = yardstick.quickest * 1e6
    return [
        {"kind": kind, "sample": i, "ns": seconds * 1e9, "beside": False, "pace": pace}
        for i, seconds in enumerate(taken)
    ]


def digest(numbers: NDArray[Any]) -> int:
    """Of a set of numbers, whatever their order; sets on disjoint parts of the boxes add up (modulo 2^62)."""
    mixed = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return int(((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(2)).sum() & np.uint64((1 << 62) - 1))
