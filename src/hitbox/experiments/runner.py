"""Runs the points of the chosen experiments, one after the other, and keeps each in a file as soon as it is done.

    OUT/points/small/rein/widths/0.1.json       found again by the next run, if it was made from the same declaration

So a stopped run continues where it was, and the work can be shared: several machines run some figures each into
directories of their own, and the point files are put together.

Points that fell on a busy minute of the machine, by their yardstick, are measured once more at the end.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hitbox.encoding.arrays import Boxes, Points
from hitbox.errors import BenchError
from hitbox.experiments.curves import Curves, at_one_pace
from hitbox.experiments.experiment import SETTINGS, Experiment, Paper, Value
from hitbox.experiments.machine import cpu_model
from hitbox.experiments.measure_point import measure_point

FORMAT = 3
"""Of the files of points: 3 since their times are those of the quickest yardstick beside them."""
BUSY_ABOVE = 1.05
"""A point whose yardstick took this many times as long as at the quickest point was measured on a busy machine. A
matcher that is bound by memory then takes a tenth longer; the yardstick, which fits the caches, does not."""
REMEASURE_SHARE = 0.2
"""At most this share of the time that all points took is spent on measuring some of them again."""
LAST_START = {"small": 3_500.0}
"""Seconds after which no point is measured again: the small scale should end within an hour."""


class Source(Protocol):
    """What makes the workloads, if not this process."""

    def boxes(self, workload: str, parameters: dict[str, Any]) -> Boxes: ...

    def points(self, workload: str, parameters: dict[str, Any], count: int) -> Points: ...


@dataclass(frozen=True)
class Task:
    paper: str
    experiment: Experiment
    scale: str
    x: Value
    seed: int = 1

    @property
    def parameters(self) -> dict[str, Any]:
        return {**self.experiment.parameters(self.scale, self.x), "seed": self.seed}

    @property
    def weight(self) -> float:
        """An estimate of its time, relative to others."""
        n = float(self.parameters["n"])
        return (n + 3_000) * len(self.experiment.labels)

    @property
    def file(self) -> Path:
        name = str(self.x).replace(" ", "-")
        return Path("points", self.scale, self.paper, self.experiment.name, f"{name}.json")

    @property
    def fingerprint(self) -> dict[str, Any]:
        """What a stored point must have been made from to be used again."""
        return {
            "format": FORMAT,
            "parameters": self.parameters,
            "events": self.experiment.events(self.x),
            "beside": dict(self.experiment.beside),
            "lanes": self.experiment.lanes(self.x),
            "measures": list(self.experiment.measures),
            "settings": vars(SETTINGS[self.scale]),
            "cpu": cpu_model(),
        }

    def __str__(self) -> str:
        return f"{self.paper} {self.experiment.name} at {self.x}"


def tasks(paper: Paper, scale: str, seed: int = 1) -> Iterator[Task]:
    for experiment in paper.experiments:
        for x in experiment.values[scale]:
            yield Task(paper.name, experiment, scale, x, seed)


def run(
    todo: list[Task],
    out: Path,
    progress: Callable[[Task, bool], None] = lambda task, done: None,
    source: Source | None = None,
) -> None:
    """Measure what is not yet stored under `out`; `progress` is called before and after each task.

    Points that were measured while the machine was busy are then measured again; the attempt with the quicker yardstick
    counts. For these, `progress` is called before each only, because they were counted already.
    """
    for task in todo:
        progress(task, False)
        if stored(task, out) is None:
            _write(out / task.file, _measured(task, source))
        progress(task, True)
    for task, first in busy(todo, out):
        progress(task, False)
        again = _measured(task, source)
        both = {key: first[key] + again[key] for key in ("seconds", "cpu_seconds")}
        _write(out / task.file, {**min(first, again, key=lambda point: point["yard"]), **both, "tries": 2})


def busy(todo: list[Task], out: Path) -> list[tuple[Task, dict[str, Any]]]:
    """The points that were measured only once, and while the machine was slow: the slowest, as many as time allows."""
    points = [(task, point) for task in todo if (point := stored(task, out))]
    quickest = min((point["yard"] for _, point in points), default=0.0)
    left = sum((REMEASURE_SHARE - ("tries" in point)) * one_try(point) for _, point in points)
    for scale in {task.scale for task in todo} & LAST_START.keys():
        left = min(left, LAST_START[scale] - sum(point["seconds"] for _, point in points))
    slow = [one for one in points if "tries" not in one[1] and one[1]["yard"] > BUSY_ABOVE * quickest]
    chosen = []
    for task, point in sorted(slow, key=lambda one: -float(one[1]["yard"])):
        left -= one_try(point)
        if left < 0:
            break
        chosen.append((task, point))
    return chosen


def one_try(point: dict[str, Any]) -> float:
    """The seconds that measuring a point once took."""
    return float(point["seconds"]) / int(point.get("tries", 1))


def _measured(task: Task, source: Source | None) -> dict[str, Any]:
    made = _made(source, task) if source else None
    point = measure_point(task.experiment, task.scale, task.x, task.parameters, made)
    return {"fingerprint": task.fingerprint, **point}


def _made(source: Source, task: Task) -> tuple[Boxes, Points]:
    workload, parameters = task.experiment.workload, task.parameters
    asked = parameters | task.experiment.events(task.x)
    return source.boxes(workload, parameters), source.points(workload, asked, SETTINGS[task.scale].events)


def stored(task: Task, out: Path) -> dict[str, Any] | None:
    """The point of an earlier run, or None where it was never finished or the declaration has changed."""
    try:
        found: dict[str, Any] = json.loads((out / task.file).read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as problem:
        raise BenchError(f"cannot read {out / task.file}: {problem}; delete it to measure that point again") from None
    same = json.loads(json.dumps(task.fingerprint))
    return found if found.get("fingerprint") == same else None


def curves(todo: list[Task], out: Path) -> dict[tuple[str, str], Curves]:
    """(paper, experiment) -> what was measured, at the pace of the fastest point."""
    found: dict[tuple[str, str], Curves] = {}
    points = [(task, point) for task in todo if (point := stored(task, out))]
    fastest = min((point["quickest"] for _, point in points), default=0.0)
    for task, point in points:
        key = (task.paper, task.experiment.name)
        here = found.setdefault(key, Curves([], [], [], []))
        here.xs.append(task.x)
        here.points.append(at_one_pace(point["lanes"], fastest / point["quickest"]))
        here.skipped.append(point["skipped"])
        here.n.append(point["n"])
    return found


def _write(path: Path, record: dict[str, Any]) -> None:
    """Whole or not at all: a run may be stopped at any moment."""
    part = path.with_suffix(".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(record))
        os.replace(part, path)
    except OSError as problem:
        raise BenchError(f"cannot write {path}: {problem.strerror or problem}; the points before it are kept") from None
