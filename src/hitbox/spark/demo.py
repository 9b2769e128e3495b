"""The main job end to end, in under two minutes on two cores: generate, build, match, check, compare, stream.

Every figure printed was measured in this run, after a warm-up (a small run of the same steps, in which the JVM compiles
its code and the workers start), and after the matches of a sample were compared with the oracle and those of a slice
with Spark's own join.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

from hitbox.console.progress import Step
from hitbox.console.progress import progress as step_progress
from hitbox.errors import HitboxError
from hitbox.index.index import Index
from hitbox.spark.build import build
from hitbox.spark.changes import apply_changes
from hitbox.spark.event_source import register
from hitbox.spark.generate import generate
from hitbox.spark.match import match
from hitbox.spark.session import active, session
from hitbox.spark.stream import match_stream, progress, stop

WORKLOAD: dict[str, Any] = {"width": 0.4, "levels": 10}
SAMPLE = 50
SMALL = (10_000, 2_000)
"""Subscriptions and events of the warm-up."""
SLICE = (200, 20_000)
BATCHES, PER_BATCH, CHANGES = 4, 10_000, 1000
STEPS = 8


def demo(subscriptions: int = 1_000_000, events: int = 100_000, console: Console | None = None) -> dict[str, Any]:
    """Run the job in a temporary folder, print what happened, clean up; returns the figures."""
    console = console or Console()
    folder = tempfile.mkdtemp(prefix="hitbox-demo-")
    try:
        with step_progress("", STEPS) as step:
            job = Demo(folder, subscriptions, events, step)
            job.run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    console.print(job.table())
    console.print(job.summary())
    return job.facts


class Demo:
    """The steps; each adds a line to the table and figures to `facts`."""

    def __init__(self, folder: str, subscriptions: int, events: int, progress: Step):
        self.folder, self.subscriptions, self.events = folder, subscriptions, events
        self.progress = progress
        self.facts: dict[str, Any] = {"subscriptions": subscriptions, "events": events}
        self.lines: list[tuple[str, float, str, str]] = []
        self.began = time.perf_counter()

    def run(self) -> None:
        self.spark: SparkSession = self.step("start Spark", self.start)
        self.step("warm up", self.warm_up)
        self.step("generate", self.generate)
        self.data: dict[str, DataFrame] = {
            name: self.spark.read.parquet(f"{self.folder}/{name}") for name in ("subscriptions", "events")
        }
        self.step("build", self.build)
        self.step("match", self.match)
        self.step("check a sample", self.check)
        self.step("Spark's own join", self.compare)
        self.step("stream and change", self.stream)
        self.facts["seconds"] = round(time.perf_counter() - self.began, 1)

    def step(self, name: str, work: Any) -> Any:
        self.progress.advance(0, doing=name)
        began = time.perf_counter()
        result, what, rate = work()
        seconds = time.perf_counter() - began
        self.facts[name] = round(seconds, 2)
        self.lines.append((name, seconds, what, rate(seconds) if rate else ""))
        self.progress.advance()
        return result

    def start(self) -> Any:
        spark = active() or session(spark_sql_shuffle_partitions=4)
        register(spark)
        return spark, f"Spark {spark.version}", None

    def warm_up(self) -> Any:
        sizes = min(self.subscriptions, SMALL[0]), min(self.events, SMALL[1])
        folder = f"{self.folder}/small"
        made = generate("w1", *sizes, path=folder, spark=self.spark, partitions=2, **WORKLOAD)
        build(f"{folder}/subscriptions", f"{folder}/snapshot", made.schema)
        events = self.spark.read.parquet(f"{folder}/events")
        match(events, f"{folder}/snapshot").write.parquet(f"{folder}/matches")
        return None, f"the same steps, {sizes[0]:,} subscriptions", None

    def generate(self) -> Any:
        made = generate(
            "w1", self.subscriptions, self.events, path=self.folder, spark=self.spark, partitions=4, **WORKLOAD
        )
        self.schema = made.schema
        rows = self.subscriptions + self.events
        what = f"{self.subscriptions:,} subscriptions, {self.events:,} events, to Parquet"
        return None, what, lambda seconds: f"{rows / seconds:,.0f} rows/s"

    def build(self) -> Any:
        report = build(f"{self.folder}/subscriptions", f"{self.folder}/snapshot", self.schema)
        what = f"a snapshot of {report.subscriptions:,} subscriptions"
        return None, what, lambda seconds: f"{report.subscriptions / seconds:,.0f} subscriptions/s"

    def match(self) -> Any:
        began = time.perf_counter()
        match(self.data["events"], f"{self.folder}/snapshot").write.parquet(f"{self.folder}/matches")
        self.rate = self.events * self.subscriptions / (time.perf_counter() - began)
        found = self.spark.read.parquet(f"{self.folder}/matches").agg(F.sum(F.size("subscriptions"))).collect()[0][0]
        self.facts["matches"] = found
        what = f"{found:,} matches, to Parquet"
        return None, what, lambda seconds: f"{self.events / seconds:,.0f} events/s"

    def check(self) -> Any:
        step = max(1, self.events // SAMPLE)
        sample = self.data["events"].where(F.col("event_id") % step == 0).toArrow()
        oracle = Index.open(f"{self.folder}/snapshot", matcher="brute").match_batch(sample)
        rows = self.spark.read.parquet(f"{self.folder}/matches").where(F.col("event_id") % step == 0).collect()
        found = {row.event_id: sorted(row.subscriptions) for row in rows}
        for row, event in enumerate(sample["event_id"].to_pylist()):
            if found.get(event) != sorted(oracle[row]):
                raise HitboxError(f"event {event}: the pipeline and the oracle do not agree")
        return None, f"{len(found)} events: equal", None

    def compare(self) -> Any:
        events = self.data["events"].where(F.col("event_id") < SLICE[0])
        subscriptions = self.data["subscriptions"].where(F.col("id") < SLICE[1])
        began = time.perf_counter()
        rows = join(events, subscriptions, list(self.schema)).groupBy("event_id").count().collect()
        seconds = time.perf_counter() - began
        theirs = {row.event_id: row["count"] for row in rows}
        ours = self.spark.read.parquet(f"{self.folder}/matches").where(F.col("event_id") < SLICE[0])
        ours = ours.select("event_id", F.size(F.expr(f"filter(subscriptions, s -> s < {SLICE[1]})")).alias("count"))
        if theirs != {row.event_id: row["count"] for row in ours.collect() if row["count"]}:
            raise HitboxError("the pipeline and Spark's own join do not agree")
        pairs = min(SLICE[0], self.events) * min(SLICE[1], self.subscriptions)
        self.facts["ratio"] = round(self.rate / (pairs / seconds))
        whole = self.events * self.subscriptions / (pairs / seconds)
        what = f"{SLICE[0]} x {SLICE[1]:,}: equal; all: {duration(whole)}"
        return None, what, lambda _: f"hitbox {self.facts['ratio']:,} times faster"

    def stream(self) -> Any:
        reader = self.spark.readStream.format("hitbox").option("workload", "w1").option("rows", BATCHES * PER_BATCH)
        for name, value in WORKLOAD.items():
            reader = reader.option(name, str(value))
        events = reader.option("rows_per_batch", PER_BATCH).load()
        paths = f"{self.folder}/snapshot", f"{self.folder}/stream", f"{self.folder}/checkpoint"
        pace = {"processingTime": "4 seconds"}  # so that changes come between batches
        query = match_stream(events, paths[0], paths[1], paths[2], trigger=pace)
        versions = 0
        while query.isActive and len(done := progress(paths[2])) < BATCHES:
            if len(done) > versions:
                versions += 1
                apply_changes(self.changes(versions), paths[0])
            time.sleep(0.1)
        stop(query)
        done = progress(paths[2])
        self.facts["batches"] = done
        events_, seconds = sum(d["events"] for d in done), sum(d["seconds"] for d in done)
        seen = sorted({d["version"] for d in done})
        what = f"{events_:,} events, versions {seen[0]}-{seen[-1]}, {versions * CHANGES:,} changes"
        return None, what, lambda _: f"{events_ / seconds:,.0f} events/s"

    def changes(self, number: int) -> DataFrame:
        """Half of the entries end subscriptions, the other half add new ones."""
        half = CHANGES // 2
        first = number * half
        more = generate("w1", half, 0, spark=self.spark, first_subscription=self.subscriptions + first, **WORKLOAD)
        come = more.subscriptions.withColumns({"op": F.lit("subscribe"), "sequence": F.col("id") + number * CHANGES})
        gone = self.spark.range(first, first + half).withColumns(
            {"op": F.lit("unsubscribe"), "sequence": F.col("id") + number * CHANGES}
        )
        return come.unionByName(gone, allowMissingColumns=True)

    def table(self) -> Table:
        table = Table("step", "seconds", "what", "rate", box=None, padding=(0, 2, 0, 0))
        for name, seconds, what, rate in self.lines:
            table.add_row(name, f"{seconds:.1f}", what, rate)
        return table

    def summary(self) -> str:
        return f"\ndone in {self.facts['seconds']:.0f} s; the temporary folder is removed"


def join(events: DataFrame, subscriptions: DataFrame, attributes: list[str]) -> DataFrame:
    """Spark's own join on the wide layout: the alternative without hitbox."""
    return events.join(F.broadcast(subscriptions), wanted(attributes))


def wanted(attributes: list[str]) -> Any:
    """Whether an event lies within all bounds of a subscription."""
    tests = []
    for name in attributes:
        low, high = F.col(f"{name}_low"), F.col(f"{name}_high")
        tests.append(
            (low.isNull() & high.isNull()) | (_true(F.col(name) >= low, low) & _true(F.col(name) <= high, high))
        )
    return reduce(lambda one, two: one & two, tests)


def _true(test: Any, bound: Any) -> Any:
    return bound.isNull() | test


def duration(seconds: float) -> str:
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.0f} seconds"
