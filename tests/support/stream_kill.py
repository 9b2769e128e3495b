"""Kill -9 at random moments: a stream with changing subscriptions, builds, change logs. What was promised must hold.

    python tests/support/stream_kill.py stream --kills 100     every event once, against the version of its batch
    python tests/support/stream_kill.py kafka --kills 10       Kafka to Kafka: nothing lost, nothing twice, one version
    python tests/support/stream_kill.py build --kills 5        old or new version, never a mix
    python tests/support/stream_kill.py changes --kills 5      the same, for apply_changes

A child process does the work in a loop; this one kills it with its JVM and lets the next one go on, which has started
its Spark meanwhile. At the end the last one finishes, and everything that lies on disk is checked. A table, then a line
of JSON; exit status 1 where an event is lost, doubled or matched wrongly, or where a child ends by itself.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from hitbox import Index, workloads
from hitbox.spark import kafka_server
from hitbox.spark.generate import Tables
from hitbox.storage import retention, snapshot

SUBSCRIPTIONS, PER_BATCH, CHANGES = 2000, 200, 20
WIDTH = 0.7
LONGEST = 4.0
"""Seconds that a child may work beyond the step that the killer waited for."""


# ---- the child


def session() -> Any:
    from hitbox import spark as hs

    flags = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    jars = {"spark_jars": kafka_server.connector()} if kafka_server.available() else {}
    return hs.session(
        "local[2]",
        spark_driver_memory="1g",
        spark_sql_shuffle_partitions=2,
        spark_ui_enabled="false",
        spark_driver_extraJavaOptions=flags,
        **jars,
    )


def child_main(what: str, go: Path, rows: int) -> None:
    """Start Spark, wait to be let go, then work in the folder that the file says."""
    parent, spark = os.getppid(), session()
    while not go.exists():
        if os.getppid() != parent:
            raise SystemExit("nobody is left who would let this process go")
        time.sleep(0.02)
    CHILDREN[what](spark, Path(go.read_text()), rows)


def child_stream(spark: Any, folder: Path, rows: int) -> None:
    from hitbox import spark as hs

    retention.KEPT_VERSIONS = 10**9  # the check at the end opens every version
    hs.register(spark)
    path, checkpoint = str(folder / "snapshot"), str(folder / "checkpoint")
    if not (folder / "snapshot" / "CURRENT").exists():
        made = hs.generate("w1", SUBSCRIPTIONS, 0, spark=spark, width=WIDTH)
        hs.build(made.subscriptions, path, parts=2)
    reader = spark.readStream.format("hitbox").option("workload", "w1").option("rows", rows)
    events = reader.option("rows_per_batch", PER_BATCH).option("width", str(WIDTH)).load()
    query = hs.match_stream(events, path, str(folder / "out"), checkpoint)
    (folder / "ready").touch()
    batches = -(-rows // PER_BATCH)
    while batches_in(folder, "commits") < batches:
        if not query.isActive:
            raise SystemExit(f"the stream failed: {query.exception()}")
        change(spark, path, sequence_of(path))
        time.sleep(0.3)
    query.stop()
    spark.stop()
    (folder / "done").touch()


def child_kafka(spark: Any, folder: Path, rows: int) -> None:
    """Events from one topic, hits to another, while versions are published. At the end both topics become files."""
    from pyspark.sql import functions as F

    from hitbox import spark as hs

    path, kafka = str(folder / "snapshot"), {"kafka.bootstrap.servers": (folder.parent / "kafka").read_text()}
    topics = f"events-{folder.name}", f"hits-{folder.name}"
    if not (folder / "sent").exists():
        Growing(folder).publish()
        sent = spark.range(rows).select(F.to_json(F.struct(F.col("id").alias("value"))).alias("value"))
        sent.withColumn("topic", F.lit(topics[0])).write.format("kafka").options(**kafka).save()
        (folder / "sent").touch()
    reader = spark.readStream.format("kafka").options(**kafka).option("subscribe", topics[0])
    stream = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", PER_BATCH).load()
    event = F.from_json(F.col("value").cast("string"), "value long").alias("event")
    events = stream.select("topic", "partition", "offset", event).select("topic", "partition", "offset", "event.*")
    hits = hs.match(events, path, None, form="pairs", keep=["topic", "partition", "offset", "value"])
    writer = hits.select(F.to_json(F.struct("*")).alias("value"), F.lit(topics[1]).alias("topic")).writeStream
    writer = writer.format("kafka").options(**kafka).option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    (folder / "ready").touch()
    growing = Growing(folder)
    while query.isActive:
        growing.publish()
        time.sleep(0.2)
    if query.exception() is not None:
        raise SystemExit(f"the stream failed: {query.exception()}")
    for topic, name in zip(topics, ("events", "hits"), strict=True):
        table = spark.read.format("kafka").options(**kafka).option("subscribe", topic).load()
        table.write.mode("overwrite").parquet(str(folder / name))
    spark.stop()
    (folder / "done").touch()


class Growing:
    """A snapshot with one subscription more in each version; number k wants the events of which k + 1 is a divisor.

    `sizes` notes how many each version has. A writer that is killed may leave a gap in the numbers of the versions.
    """

    def __init__(self, folder: Path):
        self.path, self.sizes = folder / "snapshot", folder / "sizes"
        exists = (self.path / "CURRENT").exists()
        self.index = Index.open(self.path) if exists else Index({"value": "int"})
        if exists:
            self.note()

    def publish(self) -> None:
        number = len(self.index)
        wanted = ", ".join(str(value) for value in range(0, 10_000, number + 1))
        self.index.subscribe(number, f"value IN ({wanted})" if number else "value >= 0")
        self.index.save(self.path)
        self.note()

    def note(self) -> None:
        with open(self.sizes, "a") as out:
            out.write(f"{snapshot.current(self.path)} {len(self.index)}\n")


def sequence_of(path: str) -> int:
    return int(snapshot.facts_of(path).get("changes", {}).get("last", 0))


def change(spark: Any, path: str, last: int) -> None:
    from hitbox import spark as hs

    rows: list[tuple[Any, ...]] = []
    for sequence in range(last + 1, last + 1 + CHANGES):
        if sequence % 2:
            rows.append((sequence, "unsubscribe", sequence % SUBSCRIPTIONS, None))
        else:
            rows.append(
                (sequence, "subscribe", SUBSCRIPTIONS + sequence, f"a{sequence % 20} > {sequence * 97 % 10**6}")
            )
    hs.apply_changes(spark.createDataFrame(rows, "sequence bigint, op string, id bigint, where string"), path)


def child_build(spark: Any, folder: Path, rows: int) -> None:
    """Versions whose every subscription carries the same number."""
    from hitbox import spark as hs

    path = str(folder / "snapshot")
    (folder / "ready").touch()
    for generation in range(1, 1000):
        where = f"concat('x = ', {generation})"
        hs.build(spark.range(rows).selectExpr("id", f"{where} as where"), path, {"x": "int"}, parts=2)


def child_changes(spark: Any, folder: Path, rows: int) -> None:
    """Each log replaces every subscription by one that carries the next number."""
    from hitbox import spark as hs

    path = str(folder / "snapshot")
    if not (folder / "snapshot" / "CURRENT").exists():
        hs.build(spark.range(rows).selectExpr("id", "'x = 0' as where"), path, {"x": "int"}, parts=2)
    (folder / "ready").touch()
    while True:
        generation = sequence_of(path) // rows + 1
        log = spark.range(rows).selectExpr(
            f"id + {generation * rows} as sequence", "'subscribe' as op", "id", f"'x = {generation}' as where"
        )
        hs.apply_changes(log, path)


CHILDREN = {"stream": child_stream, "kafka": child_kafka, "build": child_build, "changes": child_changes}


# ---- the killer


class Child:
    """A process that has started its Spark, or is about to, and waits to be let go."""

    def __init__(self, what: str, root: Path, rows: int):
        name = uuid.uuid4().hex[:8]
        self.go, self.log = root / f"go-{name}", root / f"log-{name}"
        command = [sys.executable, __file__, what, "--child", str(self.go), "--rows", str(rows)]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def release(self, folder: Path) -> None:
        (folder / "ready").unlink(missing_ok=True)
        snapshot.replace(self.go, str(folder))

    def running(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> bool:
        """End it and its JVM at once; False where it had ended before, which only a child that is done may do."""
        running = self.running()
        with contextlib.suppress(ProcessLookupError):  # the group is gone once all of it has ended
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        return running

    def await_file(self, file: Path, seconds: float = 900) -> None:
        until = time.time() + seconds
        while not file.exists():
            running = self.running()
            if file.exists():  # it may have written the file and ended since the question before
                return
            if not running or time.time() > until:
                raise SystemExit(f"the child {self.fate()} before it wrote {file.name}")
            time.sleep(0.02)

    def fate(self) -> str:
        """How it ended, and the last that it said."""
        status = self.process.poll()
        said = self.log.read_text(errors="replace")[-3000:]
        return f"{'hung' if status is None else f'ended with status {status}'} (it said: {said or 'nothing'})"


def soak(what: str, kills: int, rows: int, seed: int, root: Path, say: Any = print) -> dict[str, Any]:
    """Kill so often; a stream that comes to its end before is checked, and another one started."""
    rng = random.Random(seed)
    facts = {"kills": 0, "replays": 0}
    checked: list[dict[str, Any]] = []
    folder = fresh(root)
    children = [Child(what, root, rows)]
    try:
        while facts["kills"] < kills:
            child = children[-1]
            child.release(folder)
            children.append(Child(what, root, rows))  # starts its Spark while the other one works
            child.await_file(folder / "ready")
            linger(rng, child, folder)
            if child.kill():
                facts["kills"] += 1
            elif not (folder / "done").exists():
                raise SystemExit(f"the child {child.fate()} before it was killed")
            facts["replays"] += unfinished(folder)
            say(f"kill {facts['kills']}: {state(folder)}")
            if (folder / "done").exists():
                checked.append(CHECKS[what](folder, rows))
                folder = fresh(root)
            elif what not in CHECKS and (folder / "snapshot" / "CURRENT").exists():
                check_whole(folder, rows)
        if what not in CHECKS:
            current = folder / "snapshot" / "CURRENT"
            return facts | {"version": snapshot.current(folder / "snapshot") if current.exists() else 0}
        children[-1].release(folder)
        children[-1].await_file(folder / "done")
    finally:
        for child in children:
            child.kill()
    checked.append(CHECKS[what](folder, rows))
    return facts | {name: sum(one[name] for one in checked) for name in checked[0]}


def fresh(root: Path) -> Path:
    folder = root / uuid.uuid4().hex[:8]
    folder.mkdir()
    return folder


def unfinished(folder: Path) -> int:
    """1 where a batch was begun and not committed: it comes again."""
    return int(batches_in(folder, "offsets") > batches_in(folder, "commits"))


def batches_in(folder: Path, log: str) -> int:
    """How many batches a log of the checkpoint has seen. Spark deletes old entries, so the last one is what counts."""
    return max((int(file.name) + 1 for file in (folder / "checkpoint" / log).glob("[0-9]*")), default=0)


def linger(rng: random.Random, child: Child, folder: Path) -> None:
    """Until some batches or versions later, and then a random part of what the next one takes."""
    began, before = time.time(), steps(folder)
    target = before + rng.choice([0, 1, 1, 2, 3])
    while steps(folder) < target and child.running():
        time.sleep(0.02)
    each = (time.time() - began) / (target - before) if target > before else 3.0
    time.sleep(rng.uniform(0.0, min(1.2 * each, LONGEST)))


def steps(folder: Path) -> int:
    """Batches that a stream committed, or versions that were published."""
    if (folder / "checkpoint").exists():
        return batches_in(folder, "commits")
    current = folder / "snapshot" / "CURRENT"
    return snapshot.current(folder / "snapshot") if current.exists() else 0


def state(folder: Path) -> str:
    current = folder / "snapshot" / "CURRENT"
    version = current.read_text().strip() if current.exists() else "none"
    return f"{batches_in(folder, 'commits')} batches committed, version {version}"


# ---- the checks


def check_whole(folder: Path, rows: int) -> None:
    index = Index.open(folder / "snapshot", verify=True)
    texts = {index.where(id) for id in index}
    if len(index) != rows or len(texts) != 1:
        raise SystemExit(f"a mix: {len(index)} subscriptions, {sorted(texts)[:5]}")


def check_stream(folder: Path, rows: int) -> dict[str, Any]:
    """Every event once; each batch matched against one version, and exactly as that version says."""
    seen: list[int] = []
    versions: dict[int, int] = {}
    wrong = 0
    made = Tables(workloads.get("w1", width=WIDTH))
    for batch in sorted((folder / "out").glob("batch_id=*")):
        number = int(batch.name.partition("=")[2])
        table = pq.read_table(batch, partitioning=None).sort_by("event_id")
        found = set(table["snapshot_version"].to_pylist())
        if len(found) != 1:
            raise SystemExit(f"batch {number} was matched against versions {found}")
        versions[number] = found.pop()
        ids = table["event_id"].to_pylist()
        seen += ids
        first = min(ids)
        matches = Index.open(folder / "snapshot", versions[number]).match_batch(
            made.events(first, max(ids) + 1 - first)
        )
        for event, hits in zip(ids, table["subscriptions"].to_pylist(), strict=True):
            wrong += sorted(hits) != sorted(matches[event - first])
    different = len(set(seen))
    return {
        "batches": len(versions),
        "rows": len(seen),
        "lost": rows - different,
        "doubled": len(seen) - different,
        "wrong": wrong,
        "versions": len(set(versions.values())),
    }


def check_kafka(folder: Path, rows: int) -> dict[str, Any]:
    """Every event has exactly the hits of one version, whichever attempts at its batch wrote them."""
    events = pq.read_table(folder / "events")
    hits: dict[tuple[Any, ...], set[tuple[int, int]]] = {}
    copies = 0
    for text in pq.read_table(folder / "hits")["value"].to_pylist():
        hit = json.loads(text)
        found = hits.setdefault((hit["topic"], hit["partition"], hit["offset"]), set())
        copies += (hit["subscription"], hit["snapshot_version"]) in found
        found.add((hit["subscription"], hit["snapshot_version"]))
    sizes = dict(map(int, line.split()) for line in (folder / "sizes").read_text().splitlines())
    lost = doubled = wrong = 0
    total, versions = sum(map(len, hits.values())), set()
    for row in events.select(["topic", "partition", "offset", "value"]).to_pylist():
        found = hits.pop((row["topic"], row["partition"], row["offset"]), set())
        lost += not found
        seen = {version for _, version in found}
        doubled += len(seen) > 1
        if len(seen) == 1:
            value, version = json.loads(row["value"])["value"], seen.pop()
            versions.add(version)
            expected = {k for k in range(sizes[version]) if value % (k + 1) == 0}
            wrong += {subscription for subscription, _ in found} != expected
    return {
        "events": events.num_rows,
        "hits": total,
        "copies": copies,
        "lost": lost + max(0, rows - events.num_rows),
        "doubled": doubled,
        "wrong": wrong + len(hits),
        "versions": len(versions),
    }


CHECKS = {"stream": check_stream, "kafka": check_kafka}


def show(facts: dict[str, Any]) -> str:
    """The figures as a table of Markdown."""
    cells = [f"{value:,}" if isinstance(value, (int, float)) else str(value) for value in facts.values()]
    widths = [max(len(name), len(cell)) for name, cell in zip(facts, cells, strict=True)]
    rows = [list(facts), ["-" * (width - 1) + ":" for width in widths], cells]
    return "\n".join(
        "| " + " | ".join(c.rjust(width) for c, width in zip(row, widths, strict=True)) + " |" for row in rows
    )


@contextlib.contextmanager
def kafka(root: Path) -> Iterator[None]:
    """A Kafka for the children, which find its address in a file."""
    with kafka_server.KafkaServer(root / "server") as server:
        (root / "kafka").write_text(server.address)
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=CHILDREN)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--rows", type=int, default=0, help="events of the stream, or subscriptions of a version")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    rows = given.rows or dict.fromkeys(CHECKS, (3 * given.kills + 10) * PER_BATCH).get(given.what, 2000)
    if given.child:
        child_main(given.what, given.child, rows)
        return
    began = time.time()
    folder = Path(tempfile.mkdtemp(prefix="hitbox-kill-"))
    try:
        with kafka(folder) if given.what == "kafka" else contextlib.nullcontext():
            facts = soak(given.what, given.kills, rows, given.seed, folder, lambda text: print(text, file=sys.stderr))
        facts = {"what": given.what, **facts, "seconds": round(time.time() - began)}
        print(show(facts))
        print(json.dumps(facts))
        if any(facts.get(name) for name in ("lost", "doubled", "wrong")):
            raise SystemExit(1)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
