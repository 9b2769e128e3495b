"""The pipeline at scale: events against a million subscriptions on Spark, in this process, and as Spark's own join.

    python benchmarks/spark_match.py --subscriptions 1M --events 1M

One run measures, after comparing the answers: building the snapshot; matching on Spark (counts, so that the figure is
matching and not Parquet; `--form arrays` writes the ids); the same batch in this process on as many threads as Spark
has cores; time inside the engine, summed over the workers; by_part, if there are several parts; and Spark's own joins
on a slice, whose rates in pairs give the time that they would need for everything: the plain join, and the one that
people write (cut one attribute into bins, join on the bin, test the rest). Wall-clock and CPU seconds (all processes of
this run), because other work on the machine moves the first but hardly the second.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import functions as F

from hitbox import Index, workloads
from hitbox import spark as hs
from hitbox.spark.demo import join
from hitbox.spark.generate import Tables
from hitbox.spark.match import prepare, run
from hitbox.spark.match_task import passed
from spark_clock import Clock, settings

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.range_join import range_join

COLLECT = {"arrays": "sum(size(subscriptions))", "counts": "sum(matches)"}


def cost(clock: Clock, name: str) -> dict[str, float]:
    return {f"{name}_seconds": round(clock.wall, 2), f"{name}_cpu_seconds": round(clock.jvm + clock.python, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subscriptions", default="1M")
    parser.add_argument("--events", default="1M")
    parser.add_argument("--width", type=float, default=0.5)
    parser.add_argument("--form", choices=COLLECT, default="counts")
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--slice", default="300,50k", help="events,subscriptions of the join")
    parser.add_argument("--bins", type=int, nargs="*", default=[4, 16], help="of the range join")
    parser.add_argument("--changes", type=int, default=1000)
    given = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="hitbox-spark-match-")
    try:
        print(json.dumps(measure(given, folder), indent=1))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(given: argparse.Namespace, folder: str) -> dict[str, Any]:
    sizes = workloads.count(given.subscriptions), workloads.count(given.events)
    options = {"spark_driver_memory": "3g", "spark_sql_shuffle_partitions": given.cores, **settings()}
    spark = hs.session(f"local[{given.cores}]", **options)
    path = f"{folder}/snapshot"
    facts: dict[str, Any] = {"subscriptions": sizes[0], "events": sizes[1], "width": given.width, "form": given.form}
    made = hs.generate("w1", *sizes, path=folder, spark=spark, partitions=4 * given.cores, width=given.width)
    with Clock() as clock:
        hs.build(f"{folder}/subscriptions", path, parts=given.parts)
    facts |= cost(clock, "build")
    facts["driver_peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    events = spark.read.parquet(f"{folder}/events")
    facts |= on_spark(events, path, given.form)
    if given.parts > 1:
        facts |= by_part(events, path, given.form, facts["matches"])
    facts |= in_process(path, sizes[1], given)
    facts["spark_adds_percent"] = round(100 * (facts["spark_seconds"] / facts["process_seconds"] - 1), 1)
    facts["spark_adds_cpu_percent"] = round(100 * (facts["spark_cpu_seconds"] / facts["process_cpu_seconds"] - 1), 1)
    if facts["matches"] != facts.pop("process_matches"):
        raise SystemExit("Spark and this process do not agree")
    facts |= own_joins(made, path, given, sizes, facts["spark_seconds"])
    facts |= changing(spark, path, sizes[0], given)
    return facts


def on_spark(events: Any, path: str, form: str) -> dict[str, Any]:
    """A warm-up on some events (workers start, the snapshot is opened), then all of them."""
    plain = {"limit": None, "keep": (), "where": None, "version": None, "allow_missing": False, "on_error": "raise"}
    job, schema = prepare(events, path, event_id="event_id", form=form, **plain)
    run(events.where("event_id < 2000"), job, schema).agg(F.expr(COLLECT[form])).collect()
    with tempfile.TemporaryDirectory(prefix="hitbox-counts-") as counts:
        with Clock() as clock:
            row = run(events, replace(job, counts=counts), schema).agg(F.expr(COLLECT[form])).collect()[0]
        engine = passed(counts).seconds
    return {"matches": row[0], **cost(clock, "spark"), "engine_seconds": round(engine, 2)}


def by_part(events: Any, path: str, form: str, matches: int) -> dict[str, Any]:
    """The same with one part per task."""
    hs.match(events.where("event_id < 2000"), path, form=form, by_part=True).agg(F.expr(COLLECT[form])).collect()
    with Clock() as clock:
        found = hs.match(events, path, form=form, by_part=True).agg(F.expr(COLLECT[form])).collect()[0][0]
    if found != matches:
        raise SystemExit(f"by_part finds {found} matches, the plain match {matches}")
    return cost(clock, "by_part")


def in_process(path: str, count: int, given: argparse.Namespace) -> dict[str, Any]:
    """The same events as Arrow tables of 10,000, as many threads as Spark has cores; reading them is not counted."""
    index = Index.open(path)
    tables = Tables(workloads.get("w1", n=1, width=given.width))
    wall = cpu = 0.0
    total = 0
    index.match_batch(tables.events(0, 2000))
    for start in range(0, count, 10_000):
        table = tables.events(start, min(10_000, count - start))
        began, spent = time.perf_counter(), time.process_time()  # idle Spark workers that end are none of this
        total += len(index.match_batch(table, threads=given.cores).ids)
        wall, cpu = wall + time.perf_counter() - began, cpu + time.process_time() - spent
    return {"process_matches": total, "process_seconds": round(wall, 2), "process_cpu_seconds": round(cpu, 2)}


def own_joins(made: Any, path: str, given: argparse.Namespace, sizes: tuple[int, int], ours: float) -> dict[str, Any]:
    """Spark's own joins on a slice, the plain one and the one on bins of an attribute, which must agree with hitbox."""
    rows, columns = (workloads.count(text) for text in given.slice.split(","))
    events, subscriptions = made.events.where(f"event_id < {rows}"), made.subscriptions.where(f"id < {columns}")
    events, subscriptions = events.cache(), subscriptions.cache()
    pairs = rows * columns * (events.count() > 0) * (subscriptions.count() > 0)
    matches = hs.match(events, path, form="pairs").where(f"subscription < {columns}").count()
    names = list(made.schema)
    facts: dict[str, Any] = {}
    for name, bins in (("join", 0), *((f"range_join_{bins}_bins", bins) for bins in given.bins)):
        with Clock() as clock:
            frame = (
                range_join(events, subscriptions, names, names[0], bins) if bins else join(events, subscriptions, names)
            )
            found = frame.count()
        if found != matches:
            raise SystemExit(f"{name} finds {found} pairs, hitbox {matches}")
        whole = sizes[0] * sizes[1] / (pairs / clock.wall)
        facts[name] = {
            "pairs_per_second": round(pairs / clock.wall),
            "would_take_hours": round(whole / 3600, 1),
            "hitbox_is_times_faster": round(whole / ours),
        }
    return facts


def changing(spark: Any, path: str, size: int, given: argparse.Namespace) -> dict[str, Any]:
    half = given.changes // 2
    more = hs.generate("w1", half, 0, spark=spark, first_subscription=size, width=given.width).subscriptions
    log = more.selectExpr("id as sequence", "'subscribe' as op", "*").unionByName(
        spark.range(half).selectExpr(f"id + {2 * size} as sequence", "'unsubscribe' as op", "id"),
        allowMissingColumns=True,
    )
    with Clock() as clock:
        hs.apply_changes(log, path)
    return {"changes": given.changes, **cost(clock, "changes")}


if __name__ == "__main__":
    main()
