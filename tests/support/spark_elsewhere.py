"""What test_elsewhere.py runs in a process of its own: the pipeline on Spark Connect, on a standalone cluster that
loses a worker, on workers that have no hitbox, and on a cluster that gets it shipped.

python spark_elsewhere.py connect|standalone|bare|shipped FOLDER
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
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
from research.machine import own_processes

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


def session(master: str = "local-cluster[2,1,1024]", **more: Any) -> Any:
    flags = {"spark_driver_extraJavaOptions": QUICK, "spark_executor_extraJavaOptions": QUICK}
    quick = {"spark_sql_shuffle_partitions": 2, "spark_ui_enabled": "false"}
    settings = {"spark_driver_memory": "1g", **quick, **flags, **more}
    spark = hs.session(master, **settings)
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


def standalone(folder: str) -> None:
    """A standalone cluster: a master and two workers. One worker is killed while both run tasks of a match, and the
    answers are those of a full scan all the same."""
    with cluster(Path(folder)) as (master, workers):
        spark = session(master, spark_executor_memory="512m", spark_executor_cores=1)
        path, notes = f"{folder}/snapshot", Path(folder, "notes")
        notes.mkdir()
        made = hs.generate("w1", 4000, 3000, path=f"{folder}/made", spark=spark, partitions=8, width=0.7, levels=3)
        hs.build(f"{folder}/made/subscriptions", path, parts=2)
        killer = threading.Thread(target=kill_a_busy_worker, args=(workers, notes))
        killer.start()
        rows = hs.match(held_up(made.events, notes), path).collect()
        killer.join()
        assert workers[0].poll() == -signal.SIGKILL
        first, other = ({int(note.stem.split("-")[2]) for note in notes.glob(f"worker-{n}-*")} for n in (0, 1))
        assert first, "the worker that was killed had begun a task"
        assert first <= other, "its tasks ran again on the other worker"
        events = made.events.toArrow()
        matches = Index.open(path, matcher="brute").match_batch(events)
        assert len(matches.ids) > 10_000
        found = {row.event_id: sorted(row.subscriptions) for row in rows}
        assert found == {event: sorted(matches[row]) for row, event in enumerate(events["event_id"].to_pylist())}
        spark.stop()


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """The address of a master, and its two workers; each is a process and works in a folder of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"spark://127.0.0.1:{port}"
    master = ["master.Master", "--port", str(port)]
    worker = ["worker.Worker", address, "--cores", "1", "--memory", "512m", "--work-dir"]
    env = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": QUICK, "SPARK_LOCAL_IP": "127.0.0.1"}
    launcher = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    started = []
    try:
        for kind, *options in (master, [*worker, str(folder / "worker-0")], [*worker, str(folder / "worker-1")]):
            command = [launcher, f"org.apache.spark.deploy.{kind}", "--host", "127.0.0.1", "--webui-port", "0"]
            with open(folder / f"{kind}-{len(started)}.log", "wb") as log:
                started.append(
                    subprocess.Popen([*command, *options], env=os.environ | env, stdout=log, stderr=subprocess.STDOUT)
                )
            while len(started) == 1 and not listens(port):  # a worker that comes too early tries again much later
                assert started[0].poll() is None, "the master ended"
                time.sleep(0.05)
        yield address, started[1:]
    finally:
        for process in started:
            process.kill()
            process.wait()


def listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def held_up(events: Any, notes: Path) -> Any:
    """The same events. Each task notes on which worker it runs, and waits until a worker was killed."""

    def wait(batches: Any) -> Any:
        from pyspark import TaskContext

        worker = next(part for part in Path.cwd().parts if part.startswith("worker-"))
        (notes / f"{worker}-{TaskContext.get().partitionId()}").touch()
        while not (notes / "killed").exists():
            time.sleep(0.01)
        yield from batches

    return events.mapInArrow(wait, events.schema)


def kill_a_busy_worker(workers: list[subprocess.Popen[bytes]], notes: Path) -> None:
    """Wait until both workers run a task, then kill the first one with its executor."""
    until = time.monotonic() + 120
    while time.monotonic() < until and not all(any(notes.glob(f"worker-{n}-*")) for n in (0, 1)):
        time.sleep(0.02)
    executors = own_processes(workers[0].pid)
    for pid in [workers[0].pid, *(executors - {workers[0].pid})]:  # the worker first: it would start another executor
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    workers[0].wait()
    (notes / "killed").touch()


if __name__ == "__main__":
    {f.__name__: f for f in (connect, standalone, bare, shipped)}[sys.argv[1]](sys.argv[2])
    print("right")
