"""Measures the points of the chosen experiments, and keeps each as soon as it is done.

    OUT/points/paper/rein.parquet        (measurements.py)

The unit of work is a contestant on one seed at a point. A unit is valid while the code that it measured and its
declaration are the same, and an experiment is measured on one kind of machine; only what is missing or no longer valid
is measured. So a stopped run continues where it was, and a run can be spread over several invocations, each with a time
budget.

Points that use the same boxes are measured together: a contestant is built once for all of them.

When every point has its first seeds, the claims are judged. Points of claims whose interval straddles a threshold get
one more seed with more events, again and again, until everything is decided, the paper's number of events is reached,
or the time is over.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from hitbox import workloads
from hitbox.encoding.arrays import Boxes, Points
from research import measurements
from research.code_hash import code_hash
from research.curves import BESIDE, Curves
from research.experiment import ENGINE, SETTINGS, Experiment, Paper, Value
from research.figures import curves_of
from research.judging import verdicts
from research.machine import commit, cpu_model, free_memory
from research.measure_unit import USABLE_SHARE, Data, Effort, Request, Result, measure_unit
from research.measurements import Place, Point, Unit
from research.rules import CURRENT, Rules

MORE_EVENTS = 4
"""Seeds that are added to decide a claim have this many times the events of the first ones."""


class Source(Protocol):
    """What makes the workloads."""

    def boxes(self, workload: str, parameters: dict[str, Any]) -> Boxes: ...

    def points(self, workload: str, parameters: dict[str, Any], count: int) -> Points: ...


@runtime_checkable
class OracleSource(Source, Protocol):
    """One that can also say what events must meet, without the timing process."""

    def expected(self, workload: str, parameters: dict[str, Any], points: Points) -> list[dict[str, int]]: ...


class LocalSource:
    """The workloads made in this process."""

    def boxes(self, workload: str, parameters: dict[str, Any]) -> Boxes:
        made = workloads.get(workload, **parameters)
        return made.boxes(0, made.n)

    def points(self, workload: str, parameters: dict[str, Any], count: int) -> Points:
        return workloads.get(workload, **parameters).points(0, count)


@dataclass(frozen=True)
class Task:
    """A point of an experiment."""

    paper: str
    experiment: Experiment
    scale: str
    x: Value
    series: str = ""
    most_events: int = 1_000
    """The paper's number of events."""

    def parameters(self, seed: int) -> dict[str, Any]:
        return {**self.experiment.parameters(self.scale, self.x, self.series), "seed": seed}

    def beside(self, seed: int) -> dict[str, Any]:
        return self.parameters(seed) | dict(self.experiment.beside) if self.experiment.beside else {}

    @property
    def n(self) -> int:
        return int(self.parameters(1)["n"])

    @property
    def file(self) -> Path:
        return Path("points", self.scale, f"{self.paper}.parquet")

    @property
    def place(self) -> Place:
        return self.experiment.name, str(self.x), self.series

    @cached_property
    def lanes(self) -> dict[str, str]:
        return self.experiment.lanes(self.x)

    def code(self, label: str) -> str:
        """What a stored unit must have been made from to be used: code and declaration."""
        declared = {
            "format": measurements.FORMAT,
            "parameters": self.parameters(0),
            "events": self.experiment.events(self.x),
            "beside": dict(self.experiment.beside),
            "contestant": self.lanes[label],
            "measures": list(self.experiment.measures),
        }
        name = self.lanes[label].partition(":")[0]
        text = code_hash(name, self.experiment.workload) + json.dumps(declared, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __str__(self) -> str:
        series = f", {self.series}" if self.series else ""
        return f"{self.paper} {self.experiment.name} at {self.x}{series}"


@dataclass(frozen=True)
class Wanted:
    """A unit that is to be measured."""

    task: Task
    label: str
    seed: int
    events: int

    @property
    def spec(self) -> str:
        return self.task.lanes[self.label]

    @property
    def site(self) -> str:
        """Units with the same site are measured on the same boxes."""
        task = self.task
        return json.dumps(
            [task.experiment.workload, task.parameters(self.seed), task.beside(self.seed)], sort_keys=True
        )

    @property
    def rows_of(self) -> str:
        """Units with the same value use the first n of the same rows: a workload's rows do not depend on n."""
        task = self.task
        made = [task.parameters(self.seed) | {"n": 0}, task.beside(self.seed) | {"n": 0}]
        return json.dumps([task.experiment.workload, *made], sort_keys=True)


def tasks(paper: Paper, scale: str) -> Iterator[Task]:
    for experiment in paper.experiments:
        for x, series in experiment.places(scale):
            yield Task(paper.name, experiment, scale, x, series, experiment.most_events or paper.events)


class Store:
    """The points under a directory; each file is read once. One process at a time may add to a paper's points."""

    def __init__(self, out: Path):
        self.out = out
        self._files: dict[Path, dict[Place, Point]] = {}

    def point(self, task: Task) -> Point:
        if task.file not in self._files:
            self._files[task.file] = measurements.read(self.out / task.file)
        return self._files[task.file].setdefault(task.place, Point())

    def valid(self, task: Task) -> list[Unit]:
        """What was measured with the code and the declaration of now."""
        return [u for u in self.point(task).units if u.contestant in task.lanes and u.code == task.code(u.contestant)]

    def oracle(self, task: Task) -> list[Unit]:
        """The units that say what events must meet."""
        found = [u for u in self.point(task).units if u.contestant == measurements.ORACLE]
        return [unit for unit in found if unit.code == oracle_code(task)]

    def rows(self, task: Task) -> pa.Table:
        """The rows of the valid units."""
        point = self.point(task)
        keep = {(u.contestant + beside, u.seed) for u in self.valid(task) for beside in ("", BESIDE)}
        pairs = zip(point.rows["contestant"].to_pylist(), point.rows["seed"].to_pylist(), strict=True)
        return point.rows.filter(pa.array([pair in keep for pair in pairs], pa.bool_()))

    def put(self, task: Task, unit: Unit, rows: pa.Table) -> None:
        self.point(task).put(unit, rows)
        measurements.write(self.out / task.file, self._files[task.file])


def missing(todo: Iterable[Task], store: Store) -> list[Wanted]:
    """What this machine has to measure: the first seeds of every contestant that are not there, not valid, or that
    would fit now. An experiment that was measured completely on another kind of machine is complete; one that was not
    is measured here from its beginning: a curve is never a mixture."""
    found: list[Wanted] = []
    for wanted, cpus in _first_seeds(todo, store, free_gb=USABLE_SHARE * free_memory() / 1e9):
        if len(cpus) < len(wanted) or len(set(cpus.values())) > 1:
            found += [one for one in wanted if cpus.get(one) != cpu_model()]
    return found


def absent(todo: Iterable[Task], store: Store) -> list[Wanted]:
    """What the experiments lack, each on the kind of machine that most of it was measured on. A contestant that did not
    fit into memory is not lacking."""
    found: list[Wanted] = []
    for wanted, cpus in _first_seeds(todo, store, free_gb=0.0):
        most = max(Counter(cpus.values()).items(), key=lambda one: one[1], default=("", 0))[0]
        found += [one for one in wanted if cpus.get(one) != most]
    return found


def _first_seeds(
    todo: Iterable[Task], store: Store, free_gb: float
) -> Iterator[tuple[list[Wanted], dict[Wanted, str]]]:
    """Of each experiment: the first seeds of every contestant, and where those that are there were measured. One that
    was left out for lack of memory is there if it needs more than `free_gb`."""
    for here in by_experiment(todo).values():
        cpus: dict[Wanted, str] = {}
        wanted: list[Wanted] = []
        for task in here:
            settings = SETTINGS[task.scale]
            units = {(unit.contestant, unit.seed): unit for unit in store.valid(task)}
            room = free_gb / 2 if task.experiment.beside else free_gb  # on a second workload it is built, too
            for seed in range(1, settings.seeds + 1):
                for label in task.lanes:
                    wanted.append(one := Wanted(task, label, seed, settings.events))
                    unit = units.get((label, seed))
                    if unit is not None and (not unit.needs_gb or unit.needs_gb > room):
                        cpus[one] = unit.cpu
        yield wanted, cpus


def undecided(todo: Iterable[Task], store: Store, rules: Rules = CURRENT) -> list[Wanted]:
    """One more seed for every point whose measurements leave a claim undecided that more of them may decide. None for
    an experiment that was measured on another kind of machine."""
    found: list[Wanted] = []
    todo = list(todo)
    for (_, experiment), curves in curves_from(todo, store, rules).items():
        here = [task for task in todo if task.experiment is experiment]
        if any(unit.cpu != cpu_model() for task in here for unit in store.valid(task)):
            continue
        rows = verdicts(here[0].paper, experiment, curves, rules)
        unsettled = {tuple(pair) for row in rows if not row["settled"] for pair in row["used"]}
        for task in here:
            there = store.valid(task)
            for label in task.lanes:
                curve = f"{label} {task.series}" if task.series else label
                own = [unit for unit in there if unit.contestant == label and not unit.skipped]
                used = (curve, str(task.x)) in unsettled or (curve + BESIDE, str(task.x)) in unsettled
                left = task.most_events - sum(unit.events for unit in own)
                if own and used and left > 0:
                    events = min(left, MORE_EVENTS * SETTINGS[task.scale].events)
                    found.append(Wanted(task, label, max(unit.seed for unit in own) + 1, events))
    return found


def run(
    todo: list[Task],
    store: Store,
    source: Source | None = None,
    *,
    seconds: float = float("inf"),
    progress: Callable[[str, int], None] = lambda doing, units: None,
    decide: bool = True,
    rules: Rules = CURRENT,
) -> list[Wanted]:
    """Measure what is missing, then what may decide a claim, for at most `seconds`; returns the first units left
    over. If `seconds` are not given, all that was ever measured for these points together has the hours of its
    scale."""
    until = time.monotonic() + seconds
    source = source or LocalSource()
    left = measure_all(missing(todo, store), store, source, until, progress)
    if decide and not left and seconds == float("inf"):
        until = time.monotonic() + 3600 * _hours(todo) - seconds_of(todo, store)
    while decide and not left and time.monotonic() < until:
        more = undecided(todo, store, rules)
        if not more or measure_all(more, store, source, until, progress):
            break
    return left


def _hours(todo: list[Task]) -> float:
    return max((SETTINGS[task.scale].hours for task in todo), default=0.0)


def seconds_of(todo: Iterable[Task], store: Store) -> float:
    """What all that is stored and valid took: measuring, the workloads, and asking the oracle."""
    units = [unit for task in todo for unit in (*store.valid(task), *store.oracle(task))]
    return sum(unit.seconds + unit.making for unit in units)


def measure_all(
    wanted: list[Wanted],
    store: Store,
    source: Source,
    until: float,
    progress: Callable[[str, int], None],
) -> list[Wanted]:
    """Site by site, contestant by contestant; what time did not allow is returned."""
    left: list[Wanted] = []
    for units in in_order(wanted):
        specs: dict[tuple[str, str], list[Wanted]] = {}
        for one in units:
            specs.setdefault((one.label, one.spec), []).append(one)
        if time.monotonic() > until:
            left += units
            continue
        begin = time.monotonic()
        data, beside = _data(units[0], source)
        making = time.monotonic() - begin
        _ask_oracle(units, store, source)
        for same in specs.values():
            if time.monotonic() > until:
                left += same
                continue
            progress(f"{same[0].task}: {same[0].label}, seed {same[0].seed}", 0)
            _measure(same, data, beside, store, source, making)
            making = 0.0
            progress("", len(same))
    return left


def in_order(wanted: list[Wanted]) -> Iterator[list[Wanted]]:
    """The units of one site after another; sites that use the same rows stand together, the largest first."""
    rows: dict[str, dict[str, list[Wanted]]] = {}
    for one in wanted:
        rows.setdefault(one.rows_of, {}).setdefault(one.site, []).append(one)
    for sites in rows.values():
        yield from sorted(sites.values(), key=lambda units: -units[0].task.n)


def _data(unit: Wanted, source: Source) -> tuple[Data, Data | None]:
    name, task = unit.task.experiment.workload, unit.task
    first, second = task.parameters(unit.seed), task.beside(unit.seed)
    made = Data(workloads.get(name, **first), source.boxes(name, first))
    return made, Data(workloads.get(name, **second), source.boxes(name, second)) if second else None


def _ask_oracle(units: list[Wanted], store: Store, source: Source) -> None:
    """What every event of the first seed must meet, where Spark can say: stored beside the measurements, and compared
    with them when they are judged."""
    if not isinstance(source, OracleSource):
        return
    for task in {one.task: None for one in units if one.seed == 1}:
        name, code = task.experiment.workload, oracle_code(task)
        if store.oracle(task):
            continue
        begin, count = time.monotonic(), SETTINGS[task.scale].events
        asked = task.parameters(1) | task.experiment.events(task.x)
        found = source.expected(name, task.parameters(1), source.points(name, asked, count))
        rows = [row | {"kind": "event", "sample": i} for i, row in enumerate(found)]
        unit = Unit(measurements.ORACLE, 1, code, count, round(time.monotonic() - begin, 3))
        result = Result(rows)
        store.put(task, unit, _table(Wanted(task, measurements.ORACLE, 1, count), result))


def oracle_code(task: Task) -> str:
    text = code_hash("brute", task.experiment.workload)
    return (
        text + hashlib.sha256(json.dumps([task.parameters(1), task.experiment.events(task.x)]).encode()).hexdigest()[:8]
    )


def _measure(same: list[Wanted], data: Data, beside: Data | None, store: Store, source: Source, making: float) -> None:
    """One contestant at every point that uses these boxes."""
    first = same[0]
    settings = SETTINGS[first.task.scale]
    effort = Effort(settings.repeats, settings.budget, settings.build_budget, settings.checked, settings.deleted)
    found = measure_unit(first.spec, data, [_request(one, source) for one in same], effort, beside, first.label)
    for one in same:
        result = found[one]
        unit = Unit(
            one.label,
            one.seed,
            one.task.code(one.label),
            one.events,
            round(result.seconds, 3),
            result.skipped,
            commit() or "installed",
            datetime.now(UTC).isoformat(timespec="seconds"),
            cpu_model(),
            round(result.needs_gb, 6),
            round(making if one is first else 0.0, 3),
        )
        store.put(one.task, unit, _table(one, result))


def _request(one: Wanted, source: Source) -> Request:
    task, name = one.task, one.task.experiment.workload
    asked = task.parameters(one.seed) | task.experiment.events(task.x)
    second = task.beside(one.seed)
    return Request(
        one,
        workloads.get(name, **asked),
        source.points(name, asked, one.events),
        task.experiment.measures,
        counted=one.label == ENGINE,
        beside=source.points(name, second, one.events) if second else None,
    )


def _table(one: Wanted, result: Result) -> pa.Table:
    task = one.task
    shared = {
        "paper": task.paper,
        "experiment": task.experiment.name,
        "x": str(task.x),
        "series": task.series,
        "n": task.n,
        "seed": one.seed,
    }
    rows = [{**shared, **row, "contestant": one.label + (BESIDE if row.get("beside") else "")} for row in result.rows]
    return measurements.table_of(rows)


def curves_from(todo: Iterable[Task], store: Store, rules: Rules = CURRENT) -> dict[tuple[str, Experiment], Curves]:
    """(paper, experiment) -> what was measured, of the experiments that have any point."""
    found = {}
    for (paper, experiment), here in by_experiment(todo).items():
        rows = pa.concat_tables([store.rows(task) for task in here])
        skipped = {
            (str(task.x), task.series, unit.contestant): unit.skipped
            for task in here
            for unit in store.valid(task)
            if unit.skipped
        }
        if rows.num_rows or skipped:
            found[paper, experiment] = curves_of(experiment, here[0].scale, rows, skipped, rules)
    return found


def by_experiment(todo: Iterable[Task]) -> dict[tuple[str, Experiment], list[Task]]:
    found: dict[tuple[str, Experiment], list[Task]] = {}
    for task in todo:
        found.setdefault((task.paper, task.experiment), []).append(task)
    return found
