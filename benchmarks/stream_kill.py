"""Kill -9 at random moments: a stream with changing subscriptions, builds, change logs. What was promised must hold.

    python benchmarks/stream_kill.py stream --kills 20      every event once, against the version of its batch
    python benchmarks/stream_kill.py build --kills 5        old or new version, never a mix
    python benchmarks/stream_kill.py changes --kills 5      the same, for apply_changes

A child process does the work in a loop; this one kills it with its JVM, starts it again, and at the end lets it
finish and checks everything that lies on disk. Exit status 1 and the first difference where something is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from hitbox import Index, snapshot, workloads
from hitbox.spark.generate import Tables

SUBSCRIPTIONS, PER_BATCH, CHANGES = 2000, 200, 20
WIDTH = 0.7


# ---- the child


def session() -> Any:
    from hitbox import spark as hs

    flags = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    return hs.session(
        "local[2]",
        spark_driver_memory="1g",
        spark_sql_shuffle_partitions=2,
        spark_driver_extraJavaOptions=flags,
    )


def child_stream(folder: Path, rows: int) -> None:
    from hitbox import spark as hs

    snapshot.KEEP = 10**9  # the check at the end opens every version
    spark = session()
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
    while len(list((folder / "checkpoint" / "commits").glob("[0-9]*"))) < batches:
        if not query.isActive:
            raise SystemExit(f"the stream failed: {query.exception()}")
        change(spark, path, sequence_of(path))
        time.sleep(0.2)
    query.stop()
    spark.stop()
    (folder / "done").touch()


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


def child_build(folder: Path, rows: int) -> None:
    """Versions whose every subscription carries the same number."""
    from hitbox import spark as hs

    spark = session()
    path = str(folder / "snapshot")
    (folder / "ready").touch()
    for generation in range(1, 1000):
        where = f"concat('x = ', {generation})"
        hs.build(spark.range(rows).selectExpr("id", f"{where} as where"), path, {"x": "int"}, parts=2)


def child_changes(folder: Path, rows: int) -> None:
    """Each log replaces every subscription by one that carries the next number."""
    from hitbox import spark as hs

    spark = session()
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


CHILDREN = {"stream": child_stream, "build": child_build, "changes": child_changes}


# ---- the killer


def start(what: str, folder: Path, rows: int) -> subprocess.Popen[bytes]:
    (folder / "ready").unlink(missing_ok=True)
    log = open(folder / "child.log", "ab")  # noqa: SIM115
    command = [sys.executable, __file__, what, "--child", str(folder), "--rows", str(rows)]
    return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def kill(child: subprocess.Popen[bytes]) -> None:
    """The driver and its JVM, at once."""
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def soak(what: str, kills: int, rows: int, seed: int, root: Path, say: Any = print) -> dict[str, Any]:
    """Kill so often; a stream that comes to its end before is checked, and another one started."""
    rng = random.Random(seed)
    done, checked, folder = 0, [], root / "0"
    folder.mkdir()
    while done < kills:
        child = start(what, folder, rows)
        try:
            await_file(child, folder / "ready", folder)
            linger(rng, child, folder)
        finally:
            kill(child)
        done += 1
        say(f"kill {done}: {state(folder)}")
        if (folder / "done").exists():
            checked.append(check_stream(folder, rows))
            folder = root / str(done)
            folder.mkdir()
        elif what != "stream" and (folder / "snapshot" / "CURRENT").exists():
            check_whole(folder, rows)
    if what == "stream":
        child = start(what, folder, rows)
        try:
            await_file(child, folder / "done", folder)
        finally:
            kill(child)
        checked.append(check_stream(folder, rows))
        return {"kills": done} | {name: sum(facts[name] for facts in checked) for name in checked[0]}
    return {"kills": done, "version": snapshot.current(folder / "snapshot")}


def await_file(child: subprocess.Popen[bytes], file: Path, folder: Path, seconds: float = 900) -> None:
    until = time.time() + seconds
    while not file.exists():
        if child.poll() is not None or time.time() > until:
            tail = (folder / "child.log").read_text()[-3000:]
            raise SystemExit(f"the child ended or hung before {file.name}:\n{tail}")
        time.sleep(0.05)


def linger(rng: random.Random, child: subprocess.Popen[bytes], folder: Path) -> None:
    """Until some batches or versions later, and then a random part of what the next one takes."""
    began, before = time.time(), steps(folder)
    target = before + rng.choice([0, 1, 1, 2, 3])
    while steps(folder) < target and child.poll() is None:
        time.sleep(0.02)
    each = (time.time() - began) / (target - before) if target > before else 4.0
    time.sleep(rng.uniform(0.0, 1.2 * each))


def steps(folder: Path) -> int:
    """Batches that a stream committed, or versions that were published."""
    if (folder / "checkpoint").exists():
        return len(list((folder / "checkpoint" / "commits").glob("[0-9]*")))
    current = folder / "snapshot" / "CURRENT"
    return snapshot.current(folder / "snapshot") if current.exists() else 0


def state(folder: Path) -> str:
    commits = len(list((folder / "checkpoint" / "commits").glob("[0-9]*")))
    current = folder / "snapshot" / "CURRENT"
    return f"{commits} batches committed, version {current.read_text().strip() if current.exists() else 'none'}"


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
    made = Tables(workloads.get("w1", width=WIDTH))
    for batch in sorted((folder / "out").glob("batch_id=*")):
        number = int(batch.name.partition("=")[2])
        table = pq.read_table(batch, partitioning=None)
        found = set(table["snapshot_version"].to_pylist())
        if len(found) != 1:
            raise SystemExit(f"batch {number} was matched against versions {found}")
        versions[number] = found.pop()
        index = Index.open(folder / "snapshot", versions[number])
        for event, ids in zip(table["event_id"].to_pylist(), table["subscriptions"].to_pylist(), strict=True):
            seen.append(event)
            if sorted(ids) != sorted(index.match_batch(made.events(event, 1))[0]):
                raise SystemExit(f"event {event} of batch {number} does not match as version {versions[number]} says")
    if sorted(seen) != list(range(rows)):
        raise SystemExit(f"{len(seen)} events came out, {len(set(seen))} of them different; {rows} went in")
    return {"events": rows, "batches": len(versions), "versions": len(set(versions.values()))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=CHILDREN)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--rows", type=int, default=0, help="events of the stream, or subscriptions of a version")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    rows = given.rows or {"stream": 400 * PER_BATCH}.get(given.what, 2000)
    if given.child:
        CHILDREN[given.what](given.child, rows)
        return
    folder = Path(tempfile.mkdtemp(prefix="hitbox-kill-"))
    try:
        facts = soak(given.what, given.kills, rows, given.seed, folder, lambda text: print(text, file=sys.stderr))
        print(json.dumps({"what": given.what, **facts}))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
