"""On Spark: workloads as Parquet, the oracle over them, and verdicts and tables from the raw measurements.

    generate ──> OUT/workloads/*.parquet ──> boxes and points of the timing process
                          └──> oracle: what every event of the first seed must meet ──> rows of `brute`
    OUT/points/*/*.parquet ──> wrong answers        a join of the contestants' rows with those of `brute`
                          ──> verdicts, baseline, values, one group per experiment

The rows of a workload are those of the generator in one process, whatever the partitioning. Timing stays in one
process: a figure measured on a busy executor would mean nothing.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hitbox import workloads
from hitbox.encoding.arrays import HIGHEST, LOWEST, MISSING, Boxes, Points
from hitbox.encoding.keys import Keys
from hitbox.language import compile, parse
from hitbox.spark import generate
from hitbox.spark.session import session
from research import judging, rules
from research.curves import BESIDE
from research.errors import BenchError
from research.experiment import Experiment
from research.figures import curves_of
from research.measure import oracle
from research.measure_unit import digest
from research.measurements import ORACLE, SCHEMA, UNITS
from research.papers import PAPERS
from research.rules import Rules

KEPT = 2
"""Workloads kept on disk: that of a point, and the one beside it."""
EVENT_KEY = ("paper", "experiment", "x", "series", "seed", "sample")


class SparkSource:
    """Makes workloads, checks answers and judges, each as a Spark job over Parquet files under a directory."""

    def __init__(self, out: Path):
        self.folder = (out / "workloads").absolute()
        self._points: dict[str, Points] = {}

    # workloads

    def boxes(self, workload: str, parameters: dict[str, Any]) -> Boxes:
        """The first n subscriptions of a workload."""
        n = int(parameters["n"])
        table = pq.read_table(self.made(workload, parameters), filters=[("id", "<", n)])
        return boxes_of(table.sort_by("id"), workloads.get(workload, **parameters).space.attributes)

    def made(self, workload: str, parameters: dict[str, Any]) -> Path:
        """The Parquet files of a workload's subscriptions; made where they are not there, or too few."""
        n, rest = int(parameters["n"]), _without_n(parameters)
        name = hashlib.sha256(json.dumps([workload, rest], sort_keys=True).encode()).hexdigest()[:16]
        there = sorted(self.folder.glob(f"{name}-*"))
        for path in there:
            if int(path.name.split("-")[1]) >= n and (path / "_SUCCESS").exists():
                return path
        path = self.folder / f"{name}-{n}"
        others = sorted(set(self.folder.glob("*")) - {path}, key=lambda one: one.stat().st_mtime)
        for old in {*there, *others[: max(0, len(others) - KEPT + 1)]}:
            shutil.rmtree(old, ignore_errors=True)
        generate(workload, n, 1, **rest).subscriptions.write.mode("overwrite").parquet(str(path))
        return path

    def points(self, workload: str, parameters: dict[str, Any], count: int) -> Points:
        """The first `count` events of a workload. The last ones made stay in memory: every contestant asks for them."""
        key = json.dumps([workload, parameters, count], sort_keys=True)
        if key not in self._points:
            made = generate(workload, 1, count, partitions=1, **_without_n(parameters))
            while len(self._points) > 100:
                self._points.pop(next(iter(self._points)))
            self._points[key] = points_of(made.events.toArrow().sort_by("event_id"), made.schema)
        return self._points[key]

    # the oracle

    def expected(self, workload: str, parameters: dict[str, Any], points: Points) -> list[dict[str, int]]:
        """How many subscriptions each event meets, and the digest of them: `brute` on every partition, summed."""
        space = workloads.get(workload, **parameters).space
        n = int(parameters["n"])

        def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                table = pa.Table.from_batches([batch])
                numbers = np.asarray(table["id"])
                found = oracle(space, iter([boxes_of(table, space.attributes)]), points)
                yield pa.RecordBatch.from_pylist(
                    [
                        {"sample": i, "matches": len(hits), "digest": digest(numbers[hits])}
                        for i, hits in enumerate(found)
                    ],
                    pa.schema([("sample", pa.int64()), ("matches", pa.int64()), ("digest", pa.int64())]),
                )

        subscriptions = session().read.parquet(str(self.made(workload, parameters))).where(f"id < {n}")
        parts = subscriptions.mapInArrow(count, "sample long, matches long, digest long")
        summed = parts.groupBy("sample").agg({"matches": "sum", "digest": "collect_list"}).toArrow().sort_by("sample")
        digests = [sum(each) & ((1 << 62) - 1) for each in summed["collect_list(digest)"].to_pylist()]
        return [
            {"matches": matches, "digest": one}
            for matches, one in zip(summed["sum(matches)"].to_pylist(), digests, strict=True)
        ]

    def wrong_answers(self, files: list[Path], units: pa.Table, inexact: set[str]) -> dict[str, int]:
        """Events whose matches differ from those of `brute`; who matches approximately must lose none."""
        if not files:
            return {"checked": 0, "wrong": 0}
        raw(files, units).where(f"kind = 'event' AND NOT endswith(contestant, '{BESIDE}')").createOrReplaceTempView(
            "hitbox_events"
        )
        key = ", ".join(EVENT_KEY)
        names = ", ".join(f"'{name}'" for name in sorted(inexact)) or "''"
        found = session().sql(
            f"WITH told AS (SELECT {key}, matches AS want, digest AS mark FROM hitbox_events "
            f"WHERE contestant = '{ORACLE}') "
            f"SELECT count(*) AS checked, count_if(CASE WHEN contestant IN ({names}) THEN matches < want "
            f"ELSE matches <> want OR digest <> mark END) AS wrong "
            f"FROM hitbox_events JOIN told USING ({key}) WHERE contestant <> '{ORACLE}'"
        )
        row = found.collect()[0]
        return {"checked": int(row["checked"]), "wrong": int(row["wrong"] or 0)}

    # verdicts

    def judge(
        self, files: list[Path], units: pa.Table, skipped: list[tuple[str, ...]], scale: str, judged_by: Rules
    ) -> dict[str, Any]:
        """Verdicts, baseline and values of the raw rows, experiment by experiment."""
        if not files:
            return {"verdicts": [], "shuffled": {}, "values": judging.values_table([])}
        left_out = json.dumps(skipped)
        version = judged_by.version

        def one_experiment(table: pa.Table) -> pa.Table:
            names = table["paper"][0].as_py(), table["experiment"][0].as_py()
            return pa.table({"found": [json.dumps(judge_rows(table, *names, json.loads(left_out), scale, version))]})

        done = (
            raw(files, units)
            .where(f"contestant <> '{ORACLE}'")
            .groupBy("paper", "experiment")
            .applyInArrow(one_experiment, "found string")
        )
        found = [json.loads(text) for text in done.toArrow()["found"].to_pylist()]
        order = [(p.name, e.name) for p in PAPERS.values() for e in p.experiments]
        found.sort(key=lambda one: order.index((one["paper"], one["experiment"])))
        return {
            "verdicts": [row for one in found for row in one["verdicts"]],
            "shuffled": judging.by_paper((one["paper"], one["shuffled"]) for one in found),
            "values": judging.values_table([row for one in found for row in one["values"]]),
        }


def raw(files: list[Path], units: pa.Table) -> Any:
    """The raw rows of some units (UNITS), as a DataFrame."""
    rows = session().read.parquet(*map(str, files))
    return rows.join(session().createDataFrame(units), UNITS.names, "left_semi")


def judge_rows(
    rows: pa.Table, paper: str, name: str, skipped: list[list[str]], scale: str, version: int
) -> dict[str, Any]:
    """Runs on a worker: everything that is said about one experiment."""
    experiment = experiment_of(paper, name)
    judged_by = rules.version(version)
    left_out = {(x, series, who): why for p, e, x, series, who, why in skipped if (p, e) == (paper, name)}
    curves = curves_of(experiment, scale, rows.select(SCHEMA.names).cast(SCHEMA), left_out, judged_by)
    return {
        "paper": paper,
        "experiment": name,
        "verdicts": judging.verdicts(paper, experiment, curves, judged_by),
        "shuffled": judging.shuffled_one(paper, experiment, curves, judged_by),
        "values": judging.values(paper, experiment, curves, judged_by),
    }


def experiment_of(paper: str, name: str) -> Experiment:
    for experiment in PAPERS[paper].experiments:
        if experiment.name == name:
            return experiment
    raise BenchError(f"{paper} has no experiment {name!r}")


def _without_n(parameters: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in parameters.items() if key != "n"}


def boxes_of(table: pa.Table, attributes: int) -> Boxes:
    """Boxes from the wide layout of `generate`."""
    low = np.full((table.num_rows, attributes), MISSING, np.int64)
    high = np.full((table.num_rows, attributes), HIGHEST, np.int64)
    for a in range(attributes):
        ends = [table.column(f"a{a}_{end}") for end in ("low", "high")]
        stated = np.asarray(ends[0].is_valid()) | np.asarray(ends[1].is_valid())
        low[stated, a] = np.asarray(ends[0].fill_null(LOWEST), np.int64)[stated]
        high[stated, a] = np.asarray(ends[1].fill_null(HIGHEST), np.int64)[stated]
    return Boxes.of_dense(low, high, np.asarray(table.column("priority"), np.uint8))


def points_of(table: pa.Table, schema: Any) -> Points:
    """Points from the events of `generate`."""
    names, keys, count = list(schema), Keys(schema), table.num_rows
    if names[0] in table.column_names and "where" not in table.column_names:
        return Points.of(np.stack([np.asarray(table.column(name).fill_null(MISSING)) for name in names], axis=1))
    low = np.full((count, len(names)), MISSING, np.int64)
    high = np.full((count, len(names)), HIGHEST, np.int64)
    for a, name in enumerate(names):
        for bounds, end in ((low, "low"), (high, "high")):
            one = next((c for c in (f"{name}_{end}", name) if c in table.column_names), None)
            if one:
                bounds[:, a] = np.asarray(table.column(one).fill_null(MISSING))
    for event, text in enumerate(table.column("where").to_pylist() if "where" in table.column_names else []):
        (box,) = compile(parse(text, schema), keys).boxes
        for a, ends in box.items():
            low[event, a], high[event, a] = ends
    return Points(low, high)
