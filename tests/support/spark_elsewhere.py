"""What test_elsewhere.py runs in a process of its own: the pipeline on Spark Connect, on a cluster that loses an
executor, on workers that have no hitbox, and on a cluster that gets it shipped.

python spark_elsewhere.py connect|lost|bare|shipped FOLDER
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest

import hitbox
from hitbox import Index
from hitbox import spark as hs
from hitbox.engine import _kernels
from hitbox.errors import HitboxError

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM that lives a minute."""


def connect(folder: str) -> None:
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.remote("local[2]").config("spark.driver.extraJavaOptions", QUICK)
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    assert "connect" in type(spark).__module__
    whole(spark, folder)


def session(**more: Any) -> Any:
    flags = {"spark_driver_extraJavaOptions": QUICK, "spark_executor_extraJavaOptions": QUICK}
    quick = {"spark_sql_shuffle_partitions": 2, "spark_ui_enabled": "false"}
    settings = {"spark_driver_memory": "1g", **quick, **flags, **more}
    spark = hs.session("local-cluster[2,1,1024]", **settings)
    work = Path(pyspark.__file__).parent / "work" / spark.sparkContext.applicationId
    atexit.register(shutil.rmtree, work, ignore_errors=True)
    return spark


def bare(folder: str) -> None:
    """Workers without hitbox: what to do is said before any work."""
    python = environment(Path(folder, "env")) / "bin" / "python"
    spark = hs.session("local[1]", spark_driver_memory="1g", spark_pyspark_python=str(python))
    says = r"cannot run hitbox .* \(No module named 'hitbox'\): install the same version on every worker, or ship"
    with pytest.raises(HitboxError, match=says):
        hs.generate("w1", 10, 10, spark=spark)
    spark.stop()


def shipped(folder: str) -> None:
    """A cluster whose executors get hitbox as docs/spark.md says: an environment as an archive, unpacked there."""
    env = environment(Path(folder, "env"))
    home = next(env.glob("lib/python*/site-packages"))
    shutil.copytree(Path(hitbox.__file__).parent, home / "hitbox")
    shutil.copy(_kernels.__file__, home / "hitbox" / "engine")
    with tarfile.open(f"{folder}/env.tar.gz", "w:gz", compresslevel=1) as archive:
        archive.add(env, ".")
    shutil.rmtree(env)
    spark = session(spark_archives=f"{folder}/env.tar.gz#env", spark_pyspark_python="./env/bin/python")

    def where(batches: Any) -> Any:
        import hitbox

        for batch in batches:
            yield pa.RecordBatch.from_arrays([pa.array([hitbox.__file__] * batch.num_rows)], ["file"])

    for row in spark.range(4).mapInArrow(where, "file string").collect():
        assert "/env/lib/" in row.file, row.file
    whole(spark, folder)


def environment(place: Path) -> Path:
    """A virtual environment with everything that this one has, except hitbox."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    home = next(place.glob("lib/python*/site-packages"))
    for one in Path(pa.__file__).parent.parent.iterdir():
        if "hitbox" not in one.name and one.suffix != ".pth":
            (home / one.name).symlink_to(one)
    return place


def whole(spark: Any, folder: str) -> None:
    """Everything once: generate, build, match, changes, a stream."""
    path = f"{folder}/snapshot"
    made = hs.generate("w1", 2000, 300, path=f"{folder}/made", spark=spark, width=0.7, levels=3)
    assert hs.build(f"{folder}/made/subscriptions", f"{folder}/other", parts=3).subscriptions == 2000
    assert hs.build(made.subscriptions, path, parts=2).subscriptions == 2000
    check(made, path)
    check(made, f"{folder}/other", by_part=True)
    log = spark.createDataFrame(
        [(1, "unsubscribe", 5, None), (2, "subscribe", 9999, "a0 >= 0")],
        "sequence bigint, op string, id bigint, where string",
    )
    assert hs.apply_changes(log, path).version == 2
    check(made, path)
    few = spark.createDataFrame([(1, 3.5)], "event_id bigint, price double")
    assert hs.match(few, spark.createDataFrame([("a", "price > 3")], "id string, where string")).collect()[0][1] == [
        "a"
    ]
    made.events.write.parquet(f"{folder}/events")
    stream = spark.readStream.schema(made.events.schema).parquet(f"{folder}/events")
    query = hs.match_stream(stream, path, f"{folder}/out", f"{folder}/checkpoint", trigger={"availableNow": True})
    query.awaitTermination(200)
    assert query.exception() is None, query.exception()
    done = hs.progress(f"{folder}/checkpoint")
    assert sum(d["events"] for d in done) == 300
    assert {d["version"] for d in done} == {2}
    rows = spark.read.parquet(f"{folder}/out").collect()
    assert sorted(row.event_id for row in rows) == list(range(300))
    assert sum(len(row.subscriptions) for row in rows) == sum(d["matches"] for d in done)
    plain_stream(stream, path, folder, sorted((row.event_id, sorted(row.subscriptions)) for row in rows))
    spark.stop()


def plain_stream(stream: Any, path: str, folder: str, expected: list[Any]) -> None:
    """`match` on a stream with a sink of Spark's gives the same; its figures are in Spark's progress."""
    writer = hs.match(stream, path).writeStream.format("parquet").trigger(availableNow=True)
    query = writer.option("checkpointLocation", f"{folder}/plain").start(f"{folder}/plain-out")
    query.awaitTermination(200)
    assert query.exception() is None, query.exception()
    done = hs.progress(query)
    assert sum(d["events"] for d in done) == len(expected)
    assert sum(d["matches"] for d in done) == sum(len(ids) for _, ids in expected)
    rows = stream.sparkSession.read.parquet(f"{folder}/plain-out").collect()
    assert {row.snapshot_version for row in rows} == {2} == {d["version"] for d in done}
    assert sorted((row.event_id, sorted(row.subscriptions)) for row in rows) == expected


def check(made: Any, path: str, by_part: bool = False) -> None:
    events = made.events.toArrow()
    matches = Index.open(path).match_batch(events)
    rows = hs.match(made.events, path, by_part=by_part).collect()
    ours = {row.event_id: sorted(row.subscriptions) for row in rows}
    assert ours == {event: sorted(matches[row]) for row, event in enumerate(events["event_id"].to_pylist())}


def lost(folder: str) -> None:
    """An executor dies in the middle of a match; the job ends right all the same."""
    spark = session()
    path = f"{folder}/snapshot"
    made = hs.generate("w1", 20_000, 60_000, spark=spark, partitions=30)
    hs.build(made.subscriptions, path)
    killed: list[int] = []

    def shoot() -> None:
        time.sleep(1.5)
        victim = executors()[0]
        os.kill(victim, signal.SIGKILL)
        killed.append(victim)

    shooter = threading.Thread(target=shoot)
    shooter.start()
    rows = hs.match(made.events, path, form="counts").collect()
    ended = not shooter.is_alive()
    shooter.join()
    assert killed
    assert ended, "the job was over before the executor died: more events"
    events = made.events.toArrow()
    counts = Index.open(path).match_batch(events).counts.tolist()
    assert {row.event_id: row.matches for row in rows} == dict(zip(events["event_id"].to_pylist(), counts, strict=True))
    spark.stop()


def executors() -> list[int]:
    """The executors that this process started, by way of its JVM."""
    parents, found = {}, []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat, command = (folder / "stat").read_text(), (folder / "cmdline").read_bytes()
        except OSError:
            continue
        parents[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])
        if b"CoarseGrainedExecutorBackend" in command:
            found.append(int(folder.name))
    return [pid for pid in found if os.getpid() in ancestors(pid, parents)]


def ancestors(pid: int, parents: dict[int, int]) -> set[int]:
    seen: set[int] = set()
    while pid in parents and pid not in seen:
        seen.add(pid)
        pid = parents[pid]
    return seen


if __name__ == "__main__":
    {f.__name__: f for f in (connect, lost, bare, shipped)}[sys.argv[1]](sys.argv[2])
    print("right")
