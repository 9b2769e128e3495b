"""The Spark pipeline of two checkouts of hitbox, step by step: CPU seconds of the JVM and of Python, and wall-clock.

    python benchmarks/spark_speed.py before=/path/one after=/path/two --subscriptions 200k

Each checkout has its own `.venv` (made by `make setup`). Every step runs in a process of its own with a new Spark
session, which runs one small job first: so the figures are those of a user's first job, Spark's code generation
included. The steps:

    generate     subscriptions of W1 as Parquet
    bounds       build from a Parquet table, the wide layout; bounds_frame: from a DataFrame that reads it
    text         build from a Parquet table, predicates as text; text_frame: from a DataFrame that reads it
    strings      the same with a string attribute
    change       1,000 changes that fall on one part of ten
    match        a match of arrays, ten parts, all parts in every task
    by_part      the same with by_part=True
    batch        a micro-batch of 1,000 events, the median of those after the first three
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from spark_clock import Clock, settings

STEPS = ("generate", "bounds", "bounds_frame", "text", "text_frame", "strings", "change", "match", "by_part", "batch")
PARTS, BATCHES, PER_BATCH = 10, 12, 1000
NUMBERS = {f"a{n}": "int" for n in range(20)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="+", metavar="name=path")
    parser.add_argument("--subscriptions", default="200k")
    parser.add_argument("--events", default="50k", help="of the steps match and by_part")
    parser.add_argument("--steps", default=",".join(STEPS))
    parser.add_argument("--child", default="")
    parser.add_argument("--folder", default="")
    given = parser.parse_args()
    if given.child:
        print(json.dumps(child(given.child, given)))
        return
    folder = tempfile.mkdtemp(prefix="hitbox-spark-speed-")
    checkouts = dict(text.split("=", 1) for text in given.checkouts)
    try:
        started(given, next(iter(checkouts.values())), "prepare", f"{folder}/data")
        print(f"{'step':10} {'checkout':10} {'JVM s':>8} {'Python s':>9} {'CPU s':>8} {'wall s':>8} {'CPU ratio':>10}")
        for step in given.steps.split(","):
            first = None
            for name, path in checkouts.items():
                found = started(given, path, step, f"{folder}/{name}")
                total = found["jvm"] + found["python"]
                first = first or total
                print(
                    f"{step:10} {name:10} {found['jvm']:8.1f} {found['python']:9.1f} {total:8.1f} "
                    f"{found['wall']:8.1f} {first / total:9.1f}x  {found.get('note', '')}",
                    flush=True,
                )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def started(given: argparse.Namespace, checkout: str, step: str, folder: str) -> dict[str, Any]:
    python = str(Path(checkout, ".venv", "bin", "python"))
    sizes = ["--subscriptions", given.subscriptions, "--events", given.events]
    command = [python, __file__, f"x={checkout}", *sizes, "--child", step, "--folder", folder]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    done = subprocess.run(command, capture_output=True, text=True, env=clean, cwd=checkout)
    if done.returncode:
        raise SystemExit(f"{step} of {checkout} failed:\n{done.stdout[-1000:]}{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def child(step: str, given: argparse.Namespace) -> dict[str, Any]:
    from hitbox import spark as hs
    from hitbox import workloads

    own, data = Path(given.folder), Path(given.folder).parent / "data"
    own.mkdir(exist_ok=True)
    sizes = workloads.count(given.subscriptions), workloads.count(given.events)
    options = {"spark_driver_memory": "2g", "spark_sql_shuffle_partitions": 4, **settings()}
    spark = hs.session(f"local[{os.cpu_count()}]", **options)
    hs.generate("w1", 10, 1, spark=spark).events.collect()
    if step == "prepare":
        return prepare(spark, hs, data, sizes)
    clock = Clock()
    note = globals()[f"run_{step}"](spark, hs, own, data, sizes, clock)
    return clock.facts() | {"note": note or ""}


def prepare(spark: Any, hs: Any, data: Path, sizes: tuple[int, int]) -> dict[str, Any]:
    from pyspark.sql import functions as F

    wide = hs.generate("w1", *sizes, spark=spark, partitions=4)
    wide.subscriptions.write.parquet(f"{data}/wide")
    wide.events.write.parquet(f"{data}/events")
    text = hs.generate("w1", *sizes, spark=spark, partitions=4, layout="where").subscriptions
    text.write.parquet(f"{data}/text")
    city = F.concat(F.lit(" AND city = 'town "), (F.col("id") % 50_000).cast("string"), F.lit("'"))
    spark.read.parquet(f"{data}/text").withColumn("where", F.concat("where", city)).write.parquet(f"{data}/strings")
    few = spark.read.parquet(f"{data}/events").limit(BATCHES * PER_BATCH)
    few.repartition(BATCHES).write.parquet(f"{data}/stream")
    hs.build(spark.read.parquet(f"{data}/wide"), f"{data}/snapshot", parts=PARTS)
    return {}


def run_generate(spark: Any, hs: Any, own: Path, data: Path, sizes: tuple[int, int], clock: Clock) -> None:
    options = {"spark": spark, "partitions": 4}
    with clock:
        if "path" in inspect.signature(hs.generate).parameters:
            hs.generate("w1", sizes[0], 0, path=f"{own}/generated", **options)
        else:
            hs.generate("w1", sizes[0], 0, **options).subscriptions.write.parquet(f"{own}/generated")


def run_bounds(spark: Any, hs: Any, own: Path, data: Path, sizes: tuple[int, int], clock: Clock) -> None:
    built(hs, table(spark, hs, f"{data}/wide"), own, None, clock)


def run_bounds_frame(spark: Any, hs: Any, own: Path, data: Path, sizes: tuple[int, int], clock: Clock) -> None:
    built(hs, spark.read.parquet(f"{data}/wide"), own, None, clock)


def run_text(spark: Any, hs: Any, own: Path, data: Path, sizes: tuple[int, int], clock: Clock) -> None:
    built(hs, table(spark, hs, f"{data}/text"), own, NUMBERS, clock)


def run_text_frame(spark: Any, hs: Any, own: Path, data: Path, sizes: tuple[int, int], clock: Clock) -> None:
    built(hs, spark.read.parquet(f"{data}/text"), own, NUMBERS, clock)


def run_strings(spark: Any, hs: Any, own: Path, data: Path, sizes: tuple[int, int], clock: Clock) -> None:
    built(hs, table(spark, hs, f"{data}/strings"), own, {"city": "string", **NUMBERS}, clock)


def table(spark: Any, hs: Any, path: str) -> Any:
    """The quickest way to build from Parquet: by its path, where that is possible."""
    return path if "path" in inspect.signature(hs.generate).parameters else spark.read.parquet(path)


def built(hs: Any, subscriptions: Any, own: Path, schema: Any, clock: Clock) -> None:
    with clock:
        hs.build(subscriptions, str(own / "built"), schema)


def run_change(spark: Any, hs: Any, own: Path, data: Path, sizes: tuple[int, int], clock: Clock) -> None:
    import pyarrow as pa

    from hitbox.index.sharded import part_of

    shutil.copytree(data / "snapshot", own / "changed")
    numbers = pa.array(range(sizes[0]))
    chosen = numbers.filter(pa.array(part_of(numbers, PARTS) == 3))[:PER_BATCH].to_pylist()
    rows = [(n, "unsubscribe", id) for n, id in enumerate(chosen, 1)]
    log = spark.createDataFrame(rows, "sequence bigint, op string, id bigint")
    log = log.withColumn("where", log.op.substr(0, 0))
    with clock:
        assert hs.apply_changes(log, f"{own}/changed").unsubscribed == len(chosen)


def run_match(spark: Any, hs: Any, own: Path, data: Path, sizes: tuple[int, int], clock: Clock) -> str:
    return matched(spark, hs, data, clock, by_part=False)


def run_by_part(spark: Any, hs: Any, own: Path, data: Path, sizes: tuple[int, int], clock: Clock) -> str:
    return matched(spark, hs, data, clock, by_part=True)


def matched(spark: Any, hs: Any, data: Path, clock: Clock, by_part: bool) -> str:
    events = spark.read.parquet(f"{data}/events")
    hs.match(events.limit(100), f"{data}/snapshot", by_part=by_part).collect()
    with clock:
        found = hs.match(events, f"{data}/snapshot", by_part=by_part)
        total = found.selectExpr("sum(size(subscriptions))").collect()[0][0]
    return f"{total:,} matches"


def run_batch(spark: Any, hs: Any, own: Path, data: Path, sizes: tuple[int, int], clock: Clock) -> str:
    # files, not our own source: Spark starts processes for that one whose CPU time nobody can count
    events = spark.read.parquet(f"{data}/stream")
    stream = spark.readStream.schema(events.schema).option("maxFilesPerTrigger", 1).parquet(f"{data}/stream")
    with clock:
        query = hs.match_stream(stream, f"{data}/snapshot", f"{own}/out", f"{own}/checkpoint")
        while query.isActive and len(hs.progress(f"{own}/checkpoint")) < BATCHES:
            time.sleep(0.1)
        query.stop()
    done = hs.progress(f"{own}/checkpoint")[3:]
    whole, engine = (statistics.median(d[name] for d in done) for name in ("seconds", "seconds_matching"))
    return f"{BATCHES} batches; each {whole:.2f} s, of which {engine:.2f} s of matching"


if __name__ == "__main__":
    main()
