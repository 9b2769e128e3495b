"""The papers, reproduced: run their experiments, judge their claims, write the report.

OUT/points/               the raw measurements, one Parquet file per paper: a stopped run continues from here
OUT/report.html           the overview; OUT/rein.html and so on: a page per paper, each one file
OUT/results.json          the same for machines: rules, headline, verdicts, what has changed, how it was measured
OUT/results.parquet       a row for each value: paper, experiment, x, matcher, metric, value, low, high
OUT/measurements.parquet  all raw rows that the report rests on, in one file: an asset of the release
OUT/plots/                each picture as SVG
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hitbox.errors import nearest
from research import judging, report, rules, runner
from research.curves import BESIDE, Curves
from research.errors import BenchError
from research.experiment import SCALES, SETTINGS, Experiment, Paper
from research.machine import machine
from research.measurements import UNITS
from research.papers import PAPERS
from research.report_cards import Run
from research.rules import Rules
from research.runner import Store, Task

Progress = Callable[[str, int], None]
Found = dict[tuple[str, Experiment], Curves]


def reproduce(
    paper: str,
    scale: str = "small",
    out: str | os.PathLike[str] = "reproduction",
    *,
    figure: str = "",
    seconds: float = float("inf"),
    spark: bool = True,
    rules_version: int = rules.CURRENT.version,
    progress: Progress = lambda doing, units: None,
) -> dict[str, Any]:
    """Run `paper` (or `all`) at `scale` for at most `seconds`, and write the report into `out`; returns the record."""
    chosen, todo = choose(paper, scale, figure)
    judged_by = rules.version(rules_version)
    store = Store(writable(Path(out)))
    source = cluster(store.out) if spark else None
    runner.run(todo, store, source, seconds=seconds, progress=progress, rules=judged_by)
    words = ["python -m research reproduce", paper, "--scale", scale, *(["--figure", repr(figure)] if figure else [])]
    return write(chosen, todo, store, " ".join(words if spark else [*words, "--local"]), judged_by, source)


def choose(paper: str, scale: str, figure: str = "") -> tuple[list[Paper], list[Task]]:
    """The papers and points that the words name; unknown words are refused."""
    names = [*PAPERS, "all"]
    if paper not in names:
        raise BenchError(f"unknown paper {paper!r}{nearest(paper, names)} (have: {', '.join(names)})")
    if scale not in SCALES:
        raise BenchError(f"unknown scale {scale!r}{nearest(scale, SCALES)} (have: {', '.join(SCALES)})")
    chosen = list(PAPERS.values()) if paper == "all" else [PAPERS[paper]]
    known = figures(chosen)
    if figure and figure not in known:
        have = ", ".join(dict.fromkeys(known))
        raise BenchError(f"{paper} has no figure {figure!r}{nearest(figure, known)} (have: {have})")
    wanted = known.get(figure, [])
    todo = [task for one in chosen for task in runner.tasks(one, scale)]
    return chosen, [task for task in todo if not figure or (task.paper, task.experiment.name) in wanted]


def figures(papers: list[Paper]) -> dict[str, list[tuple[str, str]]]:
    """What `--figure` takes, experiments by name and figures as the paper numbers them -> (paper, experiment)."""
    found: dict[str, list[tuple[str, str]]] = {}
    for paper in papers:
        for experiment in paper.experiments:
            words = [
                experiment.name,
                *(word.strip() for p in experiment.plots for word in p.figure.split(":")[0].split(",")),
            ]
            for word in dict.fromkeys(words):
                found.setdefault(word, []).append((paper.name, experiment.name))
    return found


def writable(out: Path) -> Path:
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as problem:
        raise BenchError(f"cannot write to {out}: {problem.strerror or problem}; give another --out") from None
    return out


def write(
    chosen: list[Paper], todo: list[Task], store: Store, command: str, judged_by: Rules, source: Any = None
) -> dict[str, Any]:
    """Everything but the points, from the points. With a source on Spark, the judging runs there."""
    scale = todo[0].scale
    found = runner.curves_from(todo, store, judged_by)
    units = [(task, unit) for task in todo for unit in store.valid(task)]
    judged = judge_on(source, todo, store, scale, judged_by) if source else judge_here(found, judged_by)
    record = {
        "command": command,
        "scale": scale,
        "rules": {"version": judged_by.version, "about": judged_by.about, "thresholds": rules.table(judged_by)},
        "machine": machine(),
        "spark": source is not None,
        "code": code_of(todo),
        "commits": dict(Counter(unit.commit for _, unit in units)),
        "measured": {
            paper.name: _measured([task for task in todo if task.paper == paper.name], store) for paper in chosen
        },
        "asked": {
            paper.name: list(dict.fromkeys(task.experiment.name for task in todo if task.paper == paper.name))
            for paper in chosen
        },
        "missing": [
            {"paper": one.task.paper, "experiment": one.task.experiment.name, "x": one.task.x}
            | {"series": one.task.series, "contestant": one.label, "seed": one.seed}
            for one in runner.absent(todo, store)
        ],
        "settings": vars(SETTINGS[scale]),
        "headline": judging.headline(judged["verdicts"]),
        "shuffled": judging.add_up(judged["shuffled"].values()),
        "shuffled_by_paper": judged["shuffled"],
        "verdicts": judged["verdicts"],
        "changed": judging.changed(judged["verdicts"]),
        "oracle": judged.get("oracle"),
        "skipped": [
            {"paper": task.paper, "experiment": task.experiment.name, "x": task.x, "contestant": unit.contestant}
            | {"reason": unit.skipped}
            for task, unit in units
            if unit.skipped and unit.seed == 1
        ],
    }
    pq.write_table(judged["values"], store.out / "results.parquet")
    pq.write_table(raw(todo, store), store.out / "measurements.parquet", compression="zstd")
    (store.out / "results.json").write_text(json.dumps(record) + "\n")
    made = Run(record, chosen, found, scatter(todo, store), judged_by)
    for name, page in report.pages(made).items():
        (store.out / name).write_text(page, "utf-8")
    (store.out / "plots").mkdir(exist_ok=True)
    for name, picture in report.pictures(made).items():
        (store.out / "plots" / f"{name}.svg").write_text(picture, "utf-8")
    return record


def raw(todo: list[Task], store: Store) -> pa.Table:
    """The raw rows that the report rests on, without the oracle's."""
    return pa.concat_tables([store.rows(task) for task in todo])


def judge_here(found: Found, judged_by: Rules) -> dict[str, Any]:
    """Verdicts, baseline and values in this process."""
    every = [(paper, experiment, curves) for (paper, experiment), curves in found.items()]
    return {
        "verdicts": [row for one in every for row in judging.verdicts(*one, judged_by)],
        "shuffled": judging.shuffled(every, judged_by),
        "values": judging.values_table([row for one in every for row in judging.values(*one, judged_by)]),
    }


def judge_on(source: Any, todo: list[Task], store: Store, scale: str, judged_by: Rules) -> dict[str, Any]:
    """Judge by Spark jobs over the raw rows, and every answer of the first seed compared with the oracle's."""
    valid = [(task, unit) for task in todo for unit in store.valid(task)]
    skipped = [
        (task.paper, task.experiment.name, str(task.x), task.series, unit.contestant, unit.skipped)
        for task, unit in valid
        if unit.skipped
    ]
    units = pa.Table.from_pylist(
        [
            {"paper": task.paper, "experiment": task.experiment.name, "x": str(task.x), "series": task.series}
            | {"contestant": name, "seed": unit.seed}
            for task, unit in [*valid, *((task, unit) for task in todo for unit in store.oracle(task))]
            for name in (unit.contestant, unit.contestant + BESIDE)
        ],
        schema=UNITS,
    )
    files = [file for file in sorted({(store.out / task.file).absolute() for task in todo}) if file.exists()]
    judged: dict[str, Any] = source.judge(files, units, skipped, scale, judged_by)
    inexact = {label for task in todo for label, spec in task.lanes.items() if "exact=false" in spec}
    judged["oracle"] = source.wrong_answers(files, units, inexact)
    if judged["oracle"]["wrong"]:
        raise BenchError(
            f"{judged['oracle']['wrong']} events have other matches than the oracle's: nothing is reported"
        )
    return judged


def code_of(todo: list[Task]) -> str:
    """One hash of the code and the declarations of all that was measured."""
    text = "\n".join(f"{task} {label} {task.code(label)}" for task in todo for label in task.lanes)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _measured(todo: list[Task], store: Store) -> dict[str, Any]:
    """How much was measured for some points, and where; seeds and events per point, the least and the most."""
    units = [(task, unit) for task in todo for unit in store.valid(task)]
    seeds: dict[Task, set[int]] = {}
    for task, unit in units:
        seeds.setdefault(task, set()).add(unit.seed)
    first = SETTINGS[todo[0].scale].seeds if todo else 0
    return {
        "cpus": sorted({unit.cpu for _, unit in units if unit.cpu}),
        "seeds": _span([len(own) for own in seeds.values()]),
        "events": _span([_events(task, store) for task in todo]),
        "points": len(seeds),
        "with_more_seeds": sum(len(own) > first for own in seeds.values()),
        "hours": round(runner.seconds_of(todo, store) / 3600, 2),
    }


def _events(task: Task, store: Store) -> int:
    """Of the contestant that got the most."""
    events = Counter[str]()
    for unit in store.valid(task):
        events[unit.contestant] += unit.events
    return max(events.values(), default=0)


def _span(numbers: list[int]) -> list[int]:
    there = [number for number in numbers if number]
    return [min(there), max(there)] if there else []


def scatter(todo: list[Task], store: Store) -> dict[tuple[str, Experiment], dict[str, list[tuple[float, float]]]]:
    """Of experiments with such a figure: matches and microseconds of each event at the last point that was measured."""
    found: dict[tuple[str, Experiment], dict[str, list[tuple[float, float]]]] = {}
    for (paper, experiment), here in runner.by_experiment(todo).items():
        if not any(plot.metric == "scatter" for plot in experiment.plots):
            continue
        tables = [table for task in here if (table := store.rows(task)).num_rows]
        clouds = found.setdefault((paper, experiment), {})
        for row in tables[-1].to_pylist() if tables else []:
            if row["kind"] == "event":
                clouds.setdefault(row["contestant"], []).append((row["matches"], row["ns"] / 1e3))
    return found


def cluster(out: Path) -> Any:
    """Spark makes the workloads and judges: imported only where it is wanted, for it takes seconds to start."""
    try:
        return import_module("research.on_spark").SparkSource(out)
    except ModuleNotFoundError as missing:
        raise BenchError(
            f"the workloads are made by Spark, which needs the package {missing.name!r}: pip install "
            f"'hitbox[spark]', or "
            "give --local to make them in this process (the same rows)"
        ) from None
