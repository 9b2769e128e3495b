"""The papers, reproduced: run their experiments, judge their claims, write one report.

OUT/points/           the raw measurements, one Parquet file per point: a stopped run continues from here
OUT/report.html       verdicts and curves, one file
OUT/results.json      the same for machines: rules, headline, verdicts, what has changed, how it was measured
OUT/results.parquet   a row for each value: paper, experiment, x, matcher, metric, value, low, high
OUT/plots/            each picture as SVG and PNG
"""

from __future__ import annotations

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

from hitbox.errors import BenchError, nearest
from hitbox.experiments import judging, plots, report, rules, runner
from hitbox.experiments.curves import Curves
from hitbox.experiments.experiment import SCALES, SETTINGS, Experiment, Paper
from hitbox.experiments.machine import machine
from hitbox.experiments.papers import PAPERS
from hitbox.experiments.rules import Rules
from hitbox.experiments.runner import Store, Task

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
    plots.pyplot()  # without matplotlib there is no report: say so before hours of work
    source = cluster(store.out) if spark else None
    runner.run(todo, store, source, seconds=seconds, progress=progress, rules=judged_by)
    return write(chosen, todo, store, scale, judged_by, source)


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
    chosen: list[Paper], todo: list[Task], store: Store, scale: str, judged_by: Rules, source: Any = None
) -> dict[str, Any]:
    """Everything but the points, from the points. With a source on Spark, the judging runs there."""
    found = runner.curves_from(todo, store, judged_by)
    units = [(task, unit) for task in todo for unit in store.valid(task)]
    judged = source.judge(todo, store, judged_by) if source else judge_here(found, judged_by)
    record = {
        "scale": scale,
        "rules": {"version": judged_by.version, "about": judged_by.about, "thresholds": rules.table(judged_by)},
        "machine": machine(),
        "spark": source is not None,
        "code": code_of(todo),
        "commits": dict(Counter(unit.commit for _, unit in units)),
        "seeds": sorted({unit.seed for _, unit in units}),
        "events": _span([_events(task, store) for task in todo]),
        "hours": round(sum(unit.seconds for _, unit in units) / 3600, 2),
        "settings": vars(SETTINGS[scale]),
        "headline": judging.headline(judged["verdicts"]),
        "shuffled": judged["shuffled"],
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
    pq.write_table(values(found, judged_by), store.out / "results.parquet")
    (store.out / "results.json").write_text(json.dumps(record) + "\n")
    pictures = draw(chosen, found, todo, store)
    (store.out / "report.html").write_text(report.page(record, chosen, found, pictures))
    return record


def judge_here(found: Found, judged_by: Rules) -> dict[str, Any]:
    """Verdicts and baseline in this process."""
    rows = [
        row for (paper, experiment), c in found.items() for row in judging.verdicts(paper, experiment, c, judged_by)
    ]
    every = [(paper, experiment, curves) for (paper, experiment), curves in found.items()]
    return {"verdicts": rows, "shuffled": judging.shuffled(every, judged_by)}


def code_of(todo: list[Task]) -> str:
    """One hash of the code and the declarations of all that was measured."""
    import hashlib

    text = "\n".join(f"{task} {label} {task.code(label)}" for task in todo for label in task.lanes)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _events(task: Task, store: Store) -> int:
    label = next(iter(task.lanes))
    return sum(unit.events for unit in store.valid(task) if unit.contestant == label)


def _span(numbers: list[int]) -> list[int]:
    there = [number for number in numbers if number]
    return [min(there), max(there)] if there else []


def values(found: Found, judged_by: Rules) -> pa.Table:
    """A row for each value, with its interval."""
    rows = []
    for (paper, experiment), curves in found.items():
        for x, point, n in zip(curves.xs, curves.points, curves.n, strict=True):
            for matcher, metrics in point.items():
                for metric, samples in metrics.items():
                    low, high = judged_by.interval(samples)
                    rows.append((paper, experiment.name, str(x), n, matcher, metric, float(samples[0]), low, high))
    names = ["paper", "experiment", "x", "n", "matcher", "metric", "value", "low", "high"]
    kinds = [pa.string()] * 3 + [pa.int64()] + [pa.string()] * 2 + [pa.float64()] * 3
    columns = list(zip(*rows, strict=True)) or [()] * len(names)
    return pa.table([pa.array(c, k) for c, k in zip(columns, kinds, strict=True)], names=names)


def draw(chosen: list[Paper], found: Found, todo: list[Task], store: Store) -> dict[str, Path]:
    folder = store.out / "plots"
    pictures: dict[str, Path] = {}
    panels = []
    scale = todo[0].scale if todo else "small"
    for paper in chosen:
        for experiment in paper.experiments:
            curves = found.get((paper.name, experiment))
            if curves is None:
                continue
            for plot in experiment.plots:
                if plot.table:
                    continue
                name = report.picture_name(paper, experiment, plot)
                scatter = _scatter(todo, store, experiment) if plot.metric == "scatter" else {}
                plots.draw(experiment, plot, curves, scatter, folder / name, experiment.labels(scale))
                pictures[name] = folder / f"{name}.svg"
            if experiment is paper.experiments[0]:
                panels.append((f"{paper.title}, {experiment.plots[0].figure}", experiment, experiment.plots[0], curves))
    if panels:
        plots.overview(panels, folder / "overview", scale)
        pictures["overview"] = folder / "overview.svg"
    return pictures


def _scatter(todo: list[Task], store: Store, experiment: Experiment) -> dict[str, list[tuple[float, float]]]:
    """Matches and microseconds of each event at the last point that was measured."""
    found: dict[str, list[tuple[float, float]]] = {}
    tables = [table for task in todo if task.experiment is experiment and (table := store.rows(task)).num_rows]
    for row in tables[-1].to_pylist() if tables else []:
        if row["kind"] == "event":
            found.setdefault(row["contestant"], []).append((row["matches"], row["ns"] / 1e3))
    return found


def cluster(out: Path) -> Any:
    """Spark makes the workloads and judges: imported only where it is wanted, for it takes seconds to start."""
    try:
        return import_module("hitbox.experiments.on_spark").SparkSource(out)
    except ModuleNotFoundError as missing:
        raise BenchError(
            f"the workloads are made by Spark, which needs the package {missing.name!r}: pip install "
            f"'hitbox[spark]', or "
            "give --local to make them in this process (the same rows)"
        ) from None
