"""One point of one experiment: all matchers built on the same boxes, checked, timed in turn.

    rehearse   on a sample: compiled, compared with `brute`; does it fit into memory, is it built in time?
    build      all boxes, timed: once, and again in turn where it is quick
    check      some events against `brute` over all boxes
    time       repetition by repetition, in turn: single events, the fine-grained times, inserts and deletes;
               beside them a fixed piece of work, the yardstick, which shows how fast the machine was (curves.py)

An experiment may have a second workload beside the first; all matchers are then built and timed on both.

A matcher that does not fit is left out with the reason, and the others continue. A wrong answer ends the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field as filled
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hitbox import workloads
from hitbox.encoding.arrays import I64, Boxes, Points
from hitbox.errors import MatcherError
from hitbox.experiments.contestants import enter
from hitbox.experiments.curves import BESIDE
from hitbox.experiments.experiment import ENGINE, SETTINGS, Experiment, Scale, Value
from hitbox.experiments.machine import commit, free_memory
from hitbox.experiments.measure import Lane, oracle, parts_of, quiet_memory, require_equal, yardstick
from hitbox.matchers.metrics import METRICS, Times, measure
from hitbox.workloads import Workload

SAMPLE = 1_000
INSERTED_BOXES = 50
"""Boxes that are inserted and deleted one by one, and in one call (`each`), where the call itself no longer counts."""
MAX_REPEAT_FACTOR = 10
"""Quick measurements are repeated up to this many times as often as asked for."""
PART_SECONDS = 0.02
"""Seconds that a part of the events should take; a single event may take longer."""
QUICK_WITHIN = 1.2
"""The machine counts as fast while the yardstick takes at most this many times its quickest time (else 1.5 times)."""
FIRST_YARDSTICKS = 100
"""Runs of the yardstick before a point, to find its quickest time."""
COUNTED_PAIRS = 400_000_000
"""Of events and subscriptions in which matches are counted, as in REIN's tables: some match one pair in ten million."""
WAIT_FACTOR = 3
"""Waiting for a quick moment may take this many times the time planned for timing."""
F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Data:
    workload: Workload
    boxes: Boxes
    points: Points
    settings: Scale

    @cached_property
    def fresh(self) -> Boxes:
        return self.workload.boxes(len(self.boxes), INSERTED_BOXES)

    @cached_property
    def expected(self) -> list[I64]:
        """What the first events must meet."""
        return oracle(self.workload.space, parts_of(self.boxes), self.points[: self.settings.checked])


Field = list[tuple[Lane, Data]]
"""The matchers of a point, and their data."""


def measure_point(
    experiment: Experiment,
    scale: str,
    x: Value,
    parameters: dict[str, Any],
    made: tuple[Boxes, Points] | None = None,
) -> dict[str, Any]:
    """The figures of every contestant at `x`; `made` where the workload was made elsewhere (the same rows)."""
    began, settings = (time.perf_counter(), time.process_time()), SETTINGS[scale]
    workload = workloads.get(experiment.workload, **parameters)
    asked = workloads.get(experiment.workload, **parameters | experiment.events(x))
    boxes, points = made or (workload.boxes(0, workload.n), asked.points(0, settings.events))
    data = Data(workload, boxes, points, settings)
    specs = experiment.lanes(x)
    with quiet_memory():
        for _ in range(FIRST_YARDSTICKS):
            yardstick()
        field, skipped = _admit(specs, data)
        if experiment.beside:
            other = workloads.get(experiment.workload, **parameters | dict(experiment.beside))
            second = Data(other, other.boxes(0, other.n), other.points(0, settings.events), settings)
            again = {label + BESIDE: spec for label, spec in specs.items()}
            more, left_out = _admit(again, second)
            field, skipped, specs = field + more, skipped | left_out, specs | again
        _build_again(field, specs)
        _check(field)
        figures, scatter, yard = _measure(field, experiment.measures)
        if ENGINE in figures:
            figures[ENGINE] |= _many_hits(next(lane for lane, _ in field if lane.name == ENGINE), asked, settings)
        if "halves" in experiment.measures and "compound" in figures:
            figures["compound"]["intermediate"] = _halves(data)
    return {
        "x": x,
        "n": workload.n,
        "workload": experiment.workload,
        "parameters": workload.parameters,
        "lanes": figures,
        "skipped": skipped,
        "scatter": scatter,
        "yard": yard * 1e6,
        "quickest": yardstick.quickest * 1e6,
        "commit": commit(),
        "seconds": round(time.perf_counter() - began[0], 2),
        "cpu_seconds": round(time.process_time() - began[1], 2),
    }


def _measure(
    field: Field, measures: tuple[str, ...]
) -> tuple[dict[str, dict[str, float]], dict[str, list[list[float]]], float]:
    """The figures of each lane, matches and time of each event, and how long the yardstick took."""
    figures: dict[str, dict[str, float]] = {lane.name: {} for lane, _ in field}
    scatter: dict[str, list[list[float]]] = {}
    yards = []
    if "times" in measures:
        fine, yard = _fine(field)
        yards.append(yard)
        for (lane, data), times in zip(field, fine, strict=True):
            figures[lane.name] |= _fine_figures(times, data.boxes.priority)
    if "match" in measures:
        singles, yard = _singles(field)
        yards.append(yard)
        for (lane, _), (hits, taken) in zip(field, singles, strict=True):
            figures[lane.name] |= _match_figures(hits, taken)
            scatter[lane.name] = np.column_stack([hits, taken]).round(2).tolist()
    for lane, data in field:
        figures[lane.name] |= _size(
            lane, data
        )  # before inserts and deletes: arrays that grow take up to 1.5 times the memory
        if "plan" in measures and hasattr(lane.matcher, "plan"):
            figures[lane.name] |= _plan(lane, data)
    if "upkeep" in measures:
        factors, yard = _update(field)
        yards.append(yard)
        for (lane, _), factor in zip(field, factors, strict=True):
            figures[lane.name] |= _upkeep_figures(lane, factor)
    return figures, scatter, float(np.mean(yards))


def _admit(specs: dict[str, str], data: Data) -> tuple[Field, dict[str, str]]:
    field: Field = []
    skipped: dict[str, str] = {}
    for label, spec in specs.items():
        try:
            why = _obstacle(label, spec, data)
            if not why:
                lane = Lane(label, enter(spec, data.workload.space))
                lane.build = _insert_all(lane, data)
        except (MatcherError, MemoryError) as problem:
            why = f"does not fit: {problem}"
        if why:
            skipped[label] = why
        else:
            field.append((lane, data))
    return field, skipped


def _obstacle(label: str, spec: str, data: Data) -> str:
    """Compile and check on a sample; why the whole should not be tried, or nothing."""
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
        expected = oracle(space, parts_of(sample), data.points[:4])
        require_equal(label, lane.match(data.points[:4]), expected, "on a sample", exact=lane.matcher.exact)
    need = 1.5 * n * (lane.matcher.nbytes() - small) / (count - half)
    free = 0.8 * free_memory()
    if need > free:
        return f"does not fit: it needs about {need / 1e9:.1f} GB and {free / 1e9:.1f} GB are free"
    seconds = n * taken / (count - half)
    if seconds > data.settings.build_budget:
        return f"building would take about {seconds:,.0f} s"
    return ""


def _insert_all(lane: Lane, data: Data) -> float:
    numbers = np.arange(len(data.boxes), dtype=np.int64)
    begin = lane.clock()
    lane.matcher.insert(numbers, data.boxes)
    return lane.clock() - begin


def _build_again(field: Field, specs: dict[str, str]) -> None:
    """In turn, while that is quick; the quickest counts.

    Twice at least where it is not slow: the first time also pays for memory that is touched for the first time. That
    would show at the end of an axis, where a build is measured once, and not at its beginning.
    """
    spent = [lane.build for lane, _ in field]
    for attempt in range(1, MAX_REPEAT_FACTOR * _repeats(field)):
        for i, (lane, data) in enumerate(field):
            if spent[i] < data.settings.budget * (2 if attempt == 1 else 1):
                begin = time.perf_counter()
                lane.matcher = enter(specs[lane.name], data.workload.space)  # the old one is gone before this fills
                lane.build = min(lane.build, _insert_all(lane, data))
                spent[i] += time.perf_counter() - begin


def _check(field: Field) -> None:
    for lane, data in field:
        expected, when = data.expected, f"on {len(data.boxes):,} boxes"
        begin = time.process_time()
        for i, want in enumerate(expected):
            require_equal(lane.name, lane.match(data.points[i : i + 1]), [want], when, i, lane.matcher.exact)
        lane.estimate = (time.process_time() - begin) / max(1, len(expected))


def _events(lane: Lane, data: Data) -> int:
    settings = data.settings
    return max(settings.fewest, lane.affordable(len(data.points), settings.budget / settings.repeats))


@dataclass
class Part:
    """Some events of a lane, few enough that the machine keeps its pace, and what came of each time they were run."""

    events: slice
    runs: list[Any] = filled(default_factory=list)
    yards: list[tuple[float, float]] = filled(default_factory=list)
    """Before and after each run."""

    @property
    def pace(self) -> float:
        """The slower yardstick of the quickest run."""
        return min(map(max, self.yards))

    @property
    def factor(self) -> float:
        """What its times are to be multiplied by: how much slower the machine was even then than at its quickest."""
        return yardstick.quickest / float(np.mean(min(self.yards, key=lambda yards: (max(yards), min(yards)))))


def _parts(lane: Lane, data: Data) -> list[Part]:
    count = _events(lane, data)
    size = max(1, int(PART_SECONDS / max(lane.estimate, 1e-9)))
    return [Part(slice(start, min(start + size, count))) for start in range(0, count, size)]


def _rounds(
    field: Field, least: int, split: Callable[[Lane, Data], list[Part]], run: Callable[[Lane, Data, slice], Any]
) -> tuple[list[list[Part]], float]:
    """`run(lane, data, events)` for each part, `least` times in turn, more often where that is quick; and the pace.

    A neighbour on the same core takes a third of our speed, for fractions of a second at a time. So parts are short,
    there is a yardstick before and after each, and one that had no quick moment yet is run again, with patience.
    """
    parts = [split(lane, data) for lane, data in field]
    spent = [0.0] * len(field)
    for turn in range(MAX_REPEAT_FACTOR * _repeats(field)):
        for i, (lane, data) in enumerate(field):
            if turn < least or spent[i] < data.settings.budget:
                due = parts[i]
            elif spent[i] < WAIT_FACTOR * data.settings.budget:
                due = [part for part in parts[i] if part.pace > QUICK_WITHIN * yardstick.quickest]
            else:
                due = []
            for part in due:
                before, begin = yardstick(), time.perf_counter()
                part.runs.append(run(lane, data, part.events))
                spent[i] += time.perf_counter() - begin
                part.yards.append((before, yardstick()))
    paces = [float(np.mean([part.pace for part in some])) for some in parts]
    return parts, float(np.mean(paces)) if paces else 0.0


def _singles(field: Field) -> tuple[list[tuple[F64, F64]], float]:
    """Matches and microseconds of each event: the quickest of the repetitions, which the contestants take in turn.

    Not the median: what a busy machine adds to a repetition is never negative, and curves take minutes to measure.
    """
    least = _repeats(field)
    parts, pace = _rounds(field, least, _parts, lambda lane, data, some: lane.time_single(data.points[some]))
    found = []
    for (lane, data), own in zip(field, parts, strict=True):
        taken = np.concatenate([np.min(np.array(part.runs), axis=0) * part.factor for part in own]) * 1e6
        hits = np.diff(lane.match(data.points[: len(taken)]).offsets).astype(float)
        found.append((hits, taken))
    return found, pace


def _repeats(field: Field) -> int:
    return max((data.settings.repeats for _, data in field), default=0)


def _match_figures(hits: F64, taken: F64) -> dict[str, float]:
    return {
        "match": float(taken.mean()),
        "match_std": float(taken.std()),
        "match_max": float(taken.max()),
        "match_min": float(taken.min()),
        "match_range": float(taken.max() / max(taken.min(), 1e-9)),
        "hits": float(hits.mean()),
        "time_vs_hits": rank_correlation(hits, taken),
        "events": float(len(taken)),
    }


def _fine(field: Field) -> tuple[list[list[Times]], float]:
    """Of each event the quickest repetition: stamps are wall-clock time, and interruptions only add to it."""

    def run(lane: Lane, data: Data, events: slice) -> list[Times]:
        lane.warm_up(data.points[events])
        return measure(lane.matcher, data.points[events])

    parts, pace = _rounds(field, 2 * _repeats(field), _parts, run)
    return [
        [
            min(event, key=lambda one: one.matching) * part.factor
            for part in own
            for event in zip(*part.runs, strict=True)
        ]
        for own in parts
    ], pace


def _fine_figures(times: list[Times], priority: Any) -> dict[str, float]:
    figures: dict[str, float] = {}
    for metric in METRICS:
        values = np.array([v for one in times if (v := getattr(one, metric)) is not None], float) / 1e6
        if len(values):
            figures |= {metric: float(values.mean()), f"{metric}_std": float(values.std())}
    some = [one for one in times if len(one.determining)]
    if not some:
        return figures
    determining = np.concatenate([one.determining for one in some]) / 1e6
    level = np.concatenate([priority[one.numbers] for one in some])
    figures["hits"] = float(np.mean([len(one.numbers) for one in times]))
    figures["waiting"] = float(np.mean([one.determining.mean() - one.determining[0] for one in some])) / 1e6
    figures["last"] = float(np.mean([one.determining[-1] for one in some])) / 1e6
    figures["determining"], figures["determining_std"] = float(determining.mean()), float(determining.std())
    spread = []
    for number in np.unique(level).tolist():
        here = determining[level == number]
        figures[f"level_{number}"] = float(here.mean())
        spread.append(float(here.std()))
    figures["level_std"] = float(np.mean(spread))
    means = np.array([figures[f"level_{number}"] for number in np.unique(level).tolist()])
    figures["level_vs_determining"] = rank_correlation(9 - np.unique(level).astype(float), means)
    each = [rank_correlation(9 - priority[one.numbers].astype(float), one.determining.astype(float)) for one in some]
    figures["urgency_vs_determining"] = float(np.mean(each))
    return figures


def _size(lane: Lane, data: Data) -> dict[str, float]:
    n = max(1, len(data.boxes))
    return {"build": lane.build * 1e6 / n, "build_total": lane.build, "memory": lane.matcher.nbytes() / n}


def _update(field: Field) -> tuple[list[float], float]:
    """Insert and delete boxes, in calls of one and of many; each lane's factor, and how long the yardstick took."""
    for lane, data in field:
        lane.time_one(data.fresh, len(data.boxes), data.settings.budget)
    parts, pace = _rounds(
        field,
        _repeats(field),
        lambda lane, data: [Part(slice(0, 1))],
        lambda lane, data, _: lane.time_bulk(data.fresh, len(data.boxes), data.settings.budget),
    )
    return [own[0].factor for own in parts], pace


def _upkeep_figures(lane: Lane, factor: float) -> dict[str, float]:
    return {
        "insert_one": float(np.median(lane.insert_one)) * 1e6,
        "delete_one": float(np.median(lane.delete_one)) * 1e6,
        "insert_each": min(lane.insert_bulk.repeats) * factor * 1e6,
        "delete_each": min(lane.delete_bulk.repeats) * factor * 1e6,
    }


def _plan(lane: Lane, data: Data) -> dict[str, float]:
    """What the pipelines cost by the paper's model, and how long it takes to find one."""
    count = min(len(data.points), _events(lane, data))
    matcher: Any = lane.matcher
    matcher.plan(data.points[:1])
    taken, costs = [], []
    for i in range(count):
        begin = time.process_time()
        costs.append(matcher.plan(data.points[i : i + 1]).cost)
        taken.append(time.process_time() - begin)
    return {"plan_cost": float(np.mean(costs)), "plan_time": float(np.median(taken)) * 1e6}


def _many_hits(lane: Lane, asked: Workload, settings: Scale) -> dict[str, float]:
    """Matches per event over many more events than are timed: a few events have most matches."""
    events = max(20, min(COUNTED_PAIRS // max(1, len(lane.matcher)) // settings.events, 100)) * settings.events
    found = [len(lane.match(asked.points(start, 50)).numbers) for start in range(0, events, 50)]
    return {"hits": sum(found) / (50 * len(found)), "asked": 50.0 * len(found)}


def _halves(data: Data) -> float:
    """Boxes that an event meets on the criteria alone, plus those that it meets on the information alone."""
    space = data.workload.space
    stated = np.isin(np.arange(space.attributes), space.information)
    low, high = data.boxes.dense(space.attributes)
    found = []
    for event in range(data.settings.checked):
        meets = (low <= data.points.high[event]) & (high >= data.points.low[event])
        found.append(meets[:, stated].all(axis=1).sum() + meets[:, ~stated].all(axis=1).sum())
    return float(np.mean(found))


def rank_correlation(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Spearman's; 0 where one of the two does not vary.

    >>> rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([10.0, 40.0, 90.0]))
    1.0
    """
    if len(a) < 2 or a.min() == a.max() or b.min() == b.max():
        return 0.0
    return round(float(np.corrcoef(_ranks(a), _ranks(b))[0, 1]), 12)


def _ranks(values: NDArray[Any]) -> I64:
    """Ranks, equal values sharing the mean of theirs."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(count)
    return ((ends - (count - 1) / 2)[place]).astype(np.float64)
