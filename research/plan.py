"""What a run will take: points, hours and memory, before anything is measured.

Costs come from what was measured: of the same contestant at the same point in an earlier seed, else from costs.csv,
which holds the build time, the time per event and the memory of every contestant from a run on 2 cores, at sizes near
those wanted. All three are taken to grow with the number of subscriptions.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from hitbox import workloads
from research.experiment import SETTINGS, Scale
from research.measure_unit import MAX_REPEAT_FACTOR, MEMORY_FACTOR
from research.runner import Store, Task, Wanted, by_experiment, missing

START_SECONDS = 0.3
"""Of a contestant: compiled kernels are read, a sample is built and checked."""
MAKE_SECONDS, READ_SECONDS = 10e-6, 2e-6
"""Per subscription of 20 attributes or fewer: made and written as Parquet by Spark on 2 cores; read."""
EVENTS_SECONDS, ORACLE_SECONDS = 0.5, 5e-6
"""Of the Spark jobs that make the events of a point and seed, and, per subscription, that find what those of the first
seed must meet."""
FIXED_GB = 1.5
"""Python, the compiled kernels and Spark's driver."""
DELETE_SECONDS = 4.0
"""Of deleting a thousand subscriptions one by one, on the mean over contestants and sizes."""


@dataclass(frozen=True)
class Cost:
    build_us: float
    event_us: float
    bytes: float


@dataclass(frozen=True)
class Line:
    """The plan of one experiment."""

    paper: str
    experiment: str
    points: int
    units: int
    n: int
    hours: float
    memory_gb: float
    """Of the contestant that takes most, with its workload."""


def plan(todo: list[Task], store: Store) -> list[Line]:
    """A line per experiment for what is still to be measured at first; deciding claims comes on top of it."""
    wanted = missing(todo, store)
    made: dict[str, int] = {}
    read: set[str] = set()
    built: set[tuple[str, str]] = set()
    lines = []
    for (paper, experiment), here in by_experiment(todo).items():
        own = [one for one in wanted if one.task.experiment is experiment]
        seconds = sum(unit_seconds(one, store, built) for one in own)
        for one in own:
            more = max(0, one.task.n - made.get(one.rows_of, 0))
            made[one.rows_of] = made.get(one.rows_of, 0) + more
            rows = MAKE_SECONDS * more + (READ_SECONDS * one.task.n if one.site not in read else 0)
            read.add(one.site)
            seconds += rows * max(1.0, _attributes(one.task) / 20) * (2 if one.task.experiment.beside else 1)
        memory = max((memory_gb(one) for one in own), default=0.0)
        places = {(str(one.task.x), one.task.series, one.seed) for one in own}
        seconds += EVENTS_SECONDS * len(places)
        seconds += ORACLE_SECONDS * sum(task.n for task in {one.task for one in own if one.seed == 1})
        points = len({place[:2] for place in places})
        lines.append(Line(paper, experiment.name, points, len(own), max(t.n for t in here), seconds / 3600, memory))
    return lines


def unit_seconds(one: Wanted, store: Store, built: set[tuple[str, str]] | None = None) -> float:
    """Of a contestant on a seed; a build is counted once for all points that use it."""
    known = [u.seconds for u in store.point(one.task).units if u.contestant == one.label and not u.skipped]
    if known:
        return float(max(known))
    settings, cost, n = SETTINGS[one.task.scale], cost_of(one), one.task.n
    twice = 2 if one.task.experiment.beside else 1
    seconds = START_SECONDS + twice * timing_seconds(cost.event_us / 1e6, one.events, settings)
    key = (one.site, one.spec)
    if built is None or key not in built:
        seconds += twice * build_seconds(cost.build_us * n / 1e6, settings)
        if built is not None:
            built.add(key)
    measures = one.task.experiment.measures
    if "upkeep" in measures:
        seconds += settings.budget + DELETE_SECONDS * settings.deleted / 1_000 * ("deletions" in measures)
    return seconds


def build_seconds(once: float, settings: Scale) -> float:
    return once * max(1, min(settings.repeats, int(settings.budget / max(once, 1e-9))))


def timing_seconds(event: float, events: int, settings: Scale) -> float:
    """One round at least, then as many as the budget allows, and half as much again for checks and waiting."""
    once = event * events
    rounds = max(1, min(MAX_REPEAT_FACTOR * settings.repeats, int(settings.budget / max(once, 1e-9))))
    return 1.5 * (once * rounds + (settings.checked + events) * event)


def memory_gb(one: Wanted) -> float:
    """The contestant while it grows, its subscriptions, and what is always there."""
    twice = 2 if one.task.experiment.beside else 1
    boxes = 24 * _attributes(one.task) * one.task.n
    return FIXED_GB + twice * (MEMORY_FACTOR * cost_of(one).bytes * one.task.n + boxes) / 1e9


def _attributes(task: Task) -> int:
    return workloads.get(task.experiment.workload, **task.parameters(1)).space.attributes


def cost_of(one: Wanted) -> Cost:
    return _cost(one.task, one.label)


@cache
def _cost(task: Task, label: str) -> Cost:
    """Of the nearest point in the table: of the experiment, else of the paper, else any; else the slowest."""
    here = [row for row in table() if (row["paper"], row["experiment"]) == (task.paper, task.experiment.name)]
    own = [row for row in table() if row["contestant"] == label]
    known = [
        [row for row in here if row["contestant"] == label],
        [row for row in own if row["paper"] == task.paper],
        own,
        [max(here or table(), key=lambda row: row["event_us"] / max(1, row["n"]))],
    ]
    row = min(next(rows for rows in known if rows), key=lambda row: _distance(row, task))
    return Cost(row["build_us"], row["event_us"] * task.n / max(1, row["n"]), row["bytes"])


def _distance(row: dict[str, Any], task: Task) -> float:
    size = abs(math.log(task.n / max(1, row["n"])))
    if row["experiment"] != task.experiment.name:
        return size
    try:
        return 10 * abs(math.log((float(task.x) + 1e-9) / (float(row["x"]) + 1e-9))) + size
    except ValueError:
        return size + (0 if row["x"] == str(task.x) else 10)


@cache
def table() -> list[dict[str, Any]]:
    text = resources.files("research").joinpath("costs.csv").read_text("utf-8")
    rows: list[dict[str, Any]] = list(csv.DictReader(text.splitlines()))
    numbers = ("n", "build_us", "event_us", "bytes")
    return [row | {name: float(row[name]) for name in numbers} for row in rows]


def total_hours(lines: Iterable[Line]) -> float:
    return sum(line.hours for line in lines)
