"""The papers, reproduced: run their experiments, judge their claims, write one report.

OUT/report.html       verdicts and curves, one file
OUT/results.json      the same for machines: machine, settings, verdicts, points
OUT/results.parquet   a row for each value: paper, experiment, x, matcher, metric, value
OUT/summary.parquet   a row for each curve: places, smallest, mean, largest
OUT/plots/            each picture as SVG and PNG
OUT/points/           what was measured, one file per point: a stopped run continues from here
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
from hitbox.experiments import plots, report, runner
from hitbox.experiments.claims import judge
from hitbox.experiments.curves import Curves
from hitbox.experiments.experiment import SCALES, SETTINGS, Experiment, Paper
from hitbox.experiments.machine import free_memory, machine
from hitbox.experiments.papers import PAPERS
from hitbox.experiments.runner import Task

Progress = Callable[[Task, bool], None]
Found = dict[tuple[str, str], Curves]


def reproduce(
    paper: str,
    scale: str = "small",
    out: str | os.PathLike[str] = "reproduction",
    *,
    figure: str = "",
    seed: int = 1,
    spark: bool = False,
    progress: Progress = lambda task, done: None,
) -> dict[str, Any]:
    """Run `paper` (or `all`) at `scale` and write the report into `out`; returns the record."""
    chosen, todo = plan(paper, scale, figure, seed)
    target = writable(Path(out))
    require_memory(scale)
    plots.pyplot()  # without matplotlib there is no report: say so before hours of work
    source = _cluster() if spark else None
    runner.run(todo, target, progress, source)
    return write(chosen, todo, target, scale, seed, spark)


def plan(paper: str, scale: str, figure: str = "", seed: int = 1) -> tuple[list[Paper], list[Task]]:
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
    todo = [task for one in chosen for task in runner.tasks(one, scale, seed)]
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


def require_memory(scale: str) -> None:
    need, free = SETTINGS[scale].memory_gb, free_memory() / 1e9
    if free < need:
        smaller = SCALES[max(0, SCALES.index(scale) - 1)]
        raise BenchError(
            f"scale {scale!r} needs about {need:.0f} GB of free memory, and {free:.1f} GB are free; "
            f"free some, use a larger machine, or take --scale {smaller}"
        )


def write(chosen: list[Paper], todo: list[Task], out: Path, scale: str, seed: int, spark: bool) -> dict[str, Any]:
    """Everything but the points, from the points."""
    found = runner.curves(todo, out)
    points = [{"paper": t.paper, "experiment": t.experiment.name, **p} for t in todo if (p := runner.stored(t, out))]
    record = {
        "scale": scale,
        "seed": seed,
        "machine": machine(),
        "commits": dict(Counter(point["commit"] or "installed" for point in points)),
        "settings": vars(SETTINGS[scale]),
        "seconds": sum(point["seconds"] for point in points),
        "cpu_seconds": sum(point["cpu_seconds"] for point in points),
        "verdicts": verdicts(chosen, found),
        "points": [{key: value for key, value in point.items() if key != "fingerprint"} for point in points],
    }
    table = values(points)
    pq.write_table(table, out / "results.parquet")
    pq.write_table(_cluster().summary(table) if spark else summary(table), out / "summary.parquet")
    (out / "results.json").write_text(json.dumps(record) + "\n")
    pictures = draw(chosen, found, points, out / "plots")
    (out / "report.html").write_text(report.page(record, chosen, pictures))
    return record


def verdicts(chosen: list[Paper], found: Found) -> list[dict[str, Any]]:
    """One for each claim of the experiments that were run."""
    rows = []
    for paper in chosen:
        for experiment in paper.experiments:
            curves = found.get((paper.name, experiment.name))
            for claim in experiment.claims if curves else ():
                assert curves is not None
                outcome = judge(claim.check, curves)
                verdict = report.verdict_of(outcome.holds, outcome.close)
                rows.append(
                    {
                        "paper": paper.name,
                        "experiment": experiment.name,
                        "claim": claim.text,
                        "said": claim.said,
                        "ours": outcome.ours,
                        "verdict": verdict,
                        "reason": outcome.note or (claim.finding if verdict in report.DIFFERENT else ""),
                    }
                )
    return rows


def values(points: list[dict[str, Any]]) -> pa.Table:
    rows = [
        (p["paper"], p["experiment"], str(p["x"]), p["n"], matcher, metric, float(value))
        for p in points
        for matcher, metrics in p["lanes"].items()
        for metric, value in metrics.items()
    ]
    names = ["paper", "experiment", "x", "n", "matcher", "metric", "value"]
    kinds = [pa.string(), pa.string(), pa.string(), pa.int64(), pa.string(), pa.string(), pa.float64()]
    columns = list(zip(*rows, strict=True)) or [()] * len(names)
    return pa.table([pa.array(c, k) for c, k in zip(columns, kinds, strict=True)], names=names)


def summary(table: pa.Table) -> pa.Table:
    """A row for each curve: how many places, and the smallest, mean and largest value."""
    keys = ["paper", "experiment", "matcher", "metric"]
    found = table.group_by(keys).aggregate([("value", kind) for kind in ("count", "min", "mean", "max")])
    return found.rename_columns([*keys, "places", "smallest", "mean", "largest"]).sort_by(
        [(k, "ascending") for k in keys]
    )


def draw(chosen: list[Paper], found: Found, points: list[dict[str, Any]], folder: Path) -> dict[str, Path]:
    pictures: dict[str, Path] = {}
    panels = []
    for paper in chosen:
        for experiment in paper.experiments:
            curves = found.get((paper.name, experiment.name))
            if curves is None:
                continue
            scatter = _last(points, paper, experiment)["scatter"]
            for plot in experiment.plots:
                name = report.picture_name(paper, experiment, plot)
                plots.draw(experiment, plot, curves, scatter, folder / name)
                pictures[name] = folder / f"{name}.svg"
            if experiment is paper.experiments[0]:
                panels.append((f"{paper.title}, {experiment.plots[0].figure}", experiment, experiment.plots[0], curves))
    if panels:
        plots.overview(panels, folder / "overview")
        pictures["overview"] = folder / "overview.svg"
    return pictures


def _last(points: list[dict[str, Any]], paper: Paper, experiment: Experiment) -> dict[str, Any]:
    return [p for p in points if (p["paper"], p["experiment"]) == (paper.name, experiment.name)][-1]


def _cluster() -> Any:
    """Spark makes the boxes and sums up: only where it is asked for, for it takes seconds to start."""
    try:
        return import_module("hitbox.experiments.spark_workloads")
    except ModuleNotFoundError as missing:
        raise BenchError(f"--spark needs the package {missing.name!r}: pip install 'hitbox[spark]'") from None
