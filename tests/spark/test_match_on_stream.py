"""Plain `match` on a stream: one version per micro-batch, the same if it is repeated; figures in Spark's progress."""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row

from hitbox import Index
from hitbox import spark as hs
from hitbox.errors import SnapshotError, TableError
from hitbox.spark import batch_version, match_task, snapshot_files
from hitbox.spark.stream_task import StreamTask
from hitbox.storage import snapshot
from support.object_store import ObjectStore
from support.tiers import only

PER_BATCH = 10
ENOUGH = "these were enough batches"


class Growing:
    """A snapshot whose version n has the subscriptions 0 to n - 1, each of which wants every event."""

    def __init__(self, path: Path):
        self.path, self.index = str(path), Index({"value": "int"})
        self.publish()

    def publish(self) -> int:
        self.index.subscribe(len(self.index), "value >= 0")
        self.index.save(self.path)
        return len(self.index)


@pytest.fixture
def growing(tmp_path: Path) -> Growing:
    return Growing(tmp_path / "snapshot")


def events(spark: Any) -> Any:
    """Batches of ten events in two partitions; the same ones where a batch is repeated."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", PER_BATCH)
    return source.option("numPartitions", 2).load().withColumnRenamed("timestamp", "at")


def run(matches: Any, checkpoint: Path, batches: int, then: Callable[[int], Any] = id) -> dict[int, list[Any]]:
    """The rows of the next batches, by batch; `then` is called after each with its number.

    The batch after them fails before it reads anything. So all of them are committed, and the next query begins there.
    """
    found: dict[int, list[Any]] = {}

    def collect(frame: Any, batch: int) -> None:
        if len(found) == batches:
            raise ValueError(ENOUGH)
        found[batch] = frame.collect()
        then(batch)

    query = matches.writeStream.foreachBatch(collect).option("checkpointLocation", str(checkpoint)).start()
    try:
        query.awaitTermination(120)
    except StreamingQueryException as problem:
        if ENOUGH not in str(problem):
            raise
    query.stop()
    return found


def crash_before_commit(checkpoint: Path, snapshot_path: str, batch: int) -> None:
    """What a driver leaves that is killed after the output of a batch and before its commit."""
    for log, last in (("commits", batch - 1), ("offsets", batch)):
        for file in (checkpoint / log).iterdir():
            if int(file.name.strip(".").split(".")[0]) > last:
                file.unlink()
    for pin in Path(snapshot_path, "pins").glob("query-*.json"):
        if int(pin.stem.rpartition("-")[2]) > batch:
            pin.unlink()


def test_each_batch_has_one_version_and_keeps_it_when_repeated(spark: Any, growing: Growing, tmp_path: Path) -> None:
    checkpoint, path = tmp_path / "checkpoint", growing.path
    matches = hs.match(events(spark), path, "value", keep=["at"])
    assert matches.columns == ["value", "at", "subscriptions", "snapshot_version"]

    found = run(matches, checkpoint, 3, lambda _: growing.publish())
    for batch, rows in found.items():
        assert [row.snapshot_version for row in rows] == [batch + 1] * PER_BATCH
        assert all(sorted(row.subscriptions) == list(range(batch + 1)) for row in rows)
    values = sorted(row.value for rows in found.values() for row in rows)
    assert values == list(range(3 * PER_BATCH))

    crash_before_commit(checkpoint, path, 2)
    for _ in range(4):
        growing.publish()
    assert {2, 3} <= set(snapshot.versions(path)), "the last two batches hold their versions"
    again = run(hs.match(events(spark), path, "value", keep=["at"]), checkpoint, 2)
    assert sorted(again[2]) == sorted(found[2])
    assert {row.snapshot_version for row in again[3]} == {8}, "the next batch takes the current version"


def pinned(path: str) -> dict[int, int]:
    """The versions that queries have pinned, by batch."""
    found = [json.loads(file.read_text()) for file in Path(path, "pins").glob("query-*.json")]
    assert all(pin["expires"] > time.time() + 86_400 for pin in found)
    return {pin["batch"]: pin["version"] for pin in found}


def test_a_pin_is_written_read_by_the_other_tasks_and_removed(spark: Any, growing: Growing, tmp_path: Path) -> None:
    """The second task of the first batch asks for its version after the first pinned one and a newer one appeared."""
    path, go, seen = growing.path, tmp_path / "go", {}

    def hold_up(batches: Any) -> Any:
        for batch in batches:
            while PER_BATCH - 1 in batch["value"].to_pylist() and not go.exists():
                time.sleep(0.01)
            yield batch

    def publish() -> None:
        until = time.time() + 100
        while not pinned(path) and time.time() < until:
            time.sleep(0.01)
        seen["first"] = pinned(path)
        growing.publish()
        go.touch()

    stream = events(spark).select("value")
    stream = stream.mapInArrow(hold_up, stream.schema)
    publisher = threading.Thread(target=publish)
    publisher.start()
    during: dict[int, dict[int, int]] = {}

    def after(batch: int) -> None:
        during[batch] = pinned(path)
        growing.publish()

    found = run(hs.match(stream, path, "value"), tmp_path / "checkpoint", 4, after)
    publisher.join()
    assert seen["first"] == {0: 1}, "the first task wrote the pin"
    assert [row.snapshot_version for row in found[0]] == [1] * PER_BATCH, "the second task read it"
    assert all(row.subscriptions == [0] for row in found[0])
    assert {batch: {row.snapshot_version for row in rows} for batch, rows in found.items()} == {
        0: {1},
        1: {3},
        2: {4},
        3: {5},
    }
    assert during == {0: {0: 1}, 1: {0: 1, 1: 3}, 2: {1: 3, 2: 4}, 3: {2: 4, 3: 5}}, "each batch removes older pins"


def test_part_by_part_with_one_version_per_batch(spark: Any, tmp_path: Path) -> None:
    """Version n has the subscriptions 0 to 10n - 1, of which each wants the events up to its number; its number of
    parts is another one than when the query started."""
    path, checkpoint, parts = str(tmp_path / "snapshot"), tmp_path / "checkpoint", [2, 5, 1, 3]

    def publish(version: int) -> None:
        rows = spark.range(10 * version).selectExpr("id", "concat('value <= ', id) AS where", "id % 3 AS priority")
        hs.build(rows, path, schema={"value": "int"}, parts=parts[version - 1])

    def wanted(version: int, value: int) -> list[int]:
        return sorted(range(value, 10 * version), key=lambda id: (-(id % 3), id))

    def check(found: dict[int, list[Any]], versions: dict[int, int]) -> None:
        for batch, rows in found.items():
            version = versions[batch]
            assert {row.snapshot_version for row in rows} == {version}
            values = [row.value for row in rows]
            assert sorted(values) == list(range(PER_BATCH * batch, PER_BATCH * (batch + 1)))
            for row in rows:
                assert [id % 3 for id in row.subscriptions] == [id % 3 for id in wanted(version, row.value)]
                assert sorted(row.subscriptions) == sorted(wanted(version, row.value))
                assert row.at is not None

    publish(1)
    matches = hs.match(events(spark), path, "value", keep=["at"], by_part=True)
    assert matches.columns == ["value", "at", "subscriptions", "snapshot_version"]
    found = run(matches, checkpoint, 3, lambda batch: batch < 2 and publish(batch + 2))
    check(found, {0: 1, 1: 2, 2: 3})

    crash_before_commit(checkpoint, path, 2)
    publish(4)
    again = run(hs.match(events(spark), path, "value", keep=["at"], by_part=True), checkpoint, 2)
    check(again, {2: 3, 3: 4})
    assert sorted(again[2]) == sorted(found[2])


@pytest.mark.parametrize(
    ("form", "limit"), only([("arrays", 2)], [("arrays", 2), ("pairs", None), ("pairs", 2), ("counts", None)])
)
def test_part_by_part_into_a_table_with_figures(spark: Any, tmp_path: Path, form: str, limit: int | None) -> None:
    rows = spark.range(5).selectExpr("id", "concat('value >= ', id) AS where")
    hs.build(rows, str(tmp_path / "snapshot"), schema={"value": "int"}, parts=3)
    matches = hs.match(events(spark), str(tmp_path / "snapshot"), "value", form=form, limit=limit, by_part=True)
    writer = matches.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    until = time.time() + 120
    while query.isActive and len(hs.progress(query)) < 2 and time.time() < until:
        time.sleep(0.02)
    query.stop()
    assert query.exception() is None
    counts = {value: min(limit or 5, value + 1, 5) for value in range(PER_BATCH)}
    figures = hs.progress(query)[0]
    assert figures["seconds_matching"] > 0
    named = {name: figures[name] for name in ("batch", "events", "matches", "version")}
    assert named == {"batch": 0, "events": PER_BATCH, "matches": sum(counts.values()), "version": 1}
    found = spark.read.parquet(str(tmp_path / "out")).where(f"value < {PER_BATCH}").collect()
    if form == "counts":
        assert {row.value: row.matches for row in found} == counts
    elif form == "arrays":
        assert {row.value: len(set(row.subscriptions)) for row in found} == counts
    else:
        pairs = [(row.value, row.subscription) for row in found]
        assert len(set(pairs)) == len(pairs) == sum(counts.values())
        assert all(subscription <= value for value, subscription in pairs)


def test_nested_columns_of_a_stream(spark: Any, tmp_path: Path) -> None:
    index = Index({"order.number": "int"})
    index.subscribe(1, '"order.number" < 5')
    path = str(tmp_path / "snapshot")
    index.save(path)
    nested = events(spark).selectExpr("value", "struct(value AS number, at) AS order", "-value AS result")
    matches = hs.match(nested, path, "value", keep=["order", "result"])
    assert matches.columns == ["value", "order", "result", "subscriptions", "snapshot_version"]
    found = run(matches, tmp_path / "checkpoint", 1)[0]
    assert {row.value: row.subscriptions for row in found} == {n: [1] if n < 5 else [] for n in range(PER_BATCH)}
    assert all(row.order.number == row.value == -row.result for row in found)


def test_a_stream_against_a_table_of_subscriptions(spark: Any, tmp_path: Path) -> None:
    table = spark.createDataFrame([(1, "value >= 0")], "id long, where string")
    matches = hs.match(events(spark).selectExpr("value", "value AS number"), table, "number")
    assert matches.columns == ["number", "subscriptions"], "without a snapshot there is no version"
    found = run(matches, tmp_path / "checkpoint", 1)[0]
    assert sorted(tuple(row) for row in found) == [(n, [1]) for n in range(PER_BATCH)]


def test_the_version_of_a_moment_for_all_batches(spark: Any, growing: Growing, tmp_path: Path) -> None:
    then = datetime.now(UTC)
    growing.publish()
    matches = hs.match(events(spark), growing.path, "value", as_of=then)
    found = run(matches, tmp_path / "checkpoint", 2)
    assert {row.snapshot_version for rows in found.values() for row in rows} == {1}


@pytest.mark.parametrize("form", ["arrays", "pairs", "counts"])
def test_sparks_progress_has_the_figures(spark: Any, growing: Growing, tmp_path: Path, form: str) -> None:
    growing.publish()
    growing.index.subscribe(2, "value < 0")
    growing.index.save(growing.path)
    matches = hs.match(events(spark), growing.path, "value", form=form, metrics="wanted")
    writer = matches.writeStream.format("memory").queryName(f"found_{form}")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    until = time.time() + 120
    while query.isActive and len(query.recentProgress) < 2 and time.time() < until:
        time.sleep(0.02)
    query.stop()
    assert query.exception() is None
    assert query.recentProgress[0].observedMetrics["wanted"].events == PER_BATCH
    assert hs.progress(query) == []
    figures = hs.progress(query, "wanted")[0]
    assert figures.pop("seconds") >= figures.pop("seconds_matching") / 2 > 0
    assert figures.pop("snapshot_age_seconds") >= 0
    assert figures == {"batch": 0, "events": PER_BATCH, "matches": 2 * PER_BATCH, "bad_events": 0, "version": 3}
    rows = spark.table(f"found_{form}").where(f"value < {PER_BATCH}").collect()
    assert len(rows) == (2 * PER_BATCH if form == "pairs" else PER_BATCH)
    assert {row.snapshot_version for row in rows} == {3}


def test_a_stream_that_matches_nothing_still_counts(spark: Any, tmp_path: Path) -> None:
    index = Index({"value": "int"})
    index.subscribe("a", "value < 0")
    index.save(tmp_path / "snapshot")
    matches = hs.match(events(spark), str(tmp_path / "snapshot"), "value", form="pairs")
    query = matches.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    while query.isActive and not query.recentProgress:
        time.sleep(0.02)
    query.stop()
    first = hs.progress(query)[0]
    assert (first["events"], first["matches"]) == (PER_BATCH, 0)


def test_progress_reads_what_spark_connect_gives() -> None:
    schema = {"fields": [{"name": "events"}, {"name": "version"}]}
    rows = [Row(events=5, version=1), Row(values=[6, 2], schema=schema), Row(events=None, version=None)]
    seen = [
        SimpleNamespace(batchId=batch, observedMetrics={"hitbox": row}, durationMs={"triggerExecution": 250})
        for batch, row in enumerate(rows)
    ]
    done: Any = hs.progress(SimpleNamespace(recentProgress=seen))  # type: ignore[arg-type]
    assert done == [
        {"batch": 0, "events": 5, "version": 1, "seconds": 0.25},
        {"batch": 1, "events": 6, "version": 2, "seconds": 0.25},
    ]


def test_a_given_version_stays(spark: Any, growing: Growing, tmp_path: Path) -> None:
    """However many are published meanwhile: the last two batches hold it."""
    for batches in (3, 2):
        matches = hs.match(events(spark), growing.path, "value", version=1)
        found = run(matches, tmp_path / "checkpoint", batches, lambda _: growing.publish() and growing.publish())
        assert {row.snapshot_version for rows in found.values() for row in rows} == {1}
        pins = pinned(growing.path)  # those of the run before stay for a while
        assert set(pins.values()) == {1}
        assert set(pins) >= set(sorted(found)[-2:])
    assert 1 in snapshot.versions(growing.path)


def test_a_version_with_other_columns_asks_for_a_restart(spark: Any, growing: Growing, tmp_path: Path) -> None:
    stream, checkpoint = events(spark).selectExpr("value", "value % 2 as odd"), tmp_path / "checkpoint"

    def add_attribute(batch: int) -> None:
        index = Index({"value": "int", "odd": "int"})
        index.subscribe(7, "odd = 1")
        index.save(growing.path)

    with pytest.raises(Exception, match=r"version 2 of the snapshot at .* has the attribute 'odd', which is new"):
        run(hs.match(stream, growing.path, "value"), checkpoint, 2, add_attribute)
    found = run(hs.match(stream, growing.path, "value"), checkpoint, 1)
    assert {tuple(row.subscriptions) for row in found[1] if row.value % 2} == {(7,)}
    with pytest.raises(Exception, match="no column 'odd'"):
        run(hs.match(stream.drop("odd"), growing.path, "value"), checkpoint, 1)
    names = Index({"value": "int"})
    names.subscribe("x", "value >= 0")
    names.save(growing.path)
    with pytest.raises(Exception, match="no column"):
        hs.match(stream.select("odd"), growing.path, None)


@pytest.mark.parametrize("by_part", only([True], [False, True]))
def test_a_batch_that_failed_continues_with_a_version_that_had_more_attributes(
    spark: Any, growing: Growing, tmp_path: Path, by_part: bool
) -> None:
    """The query is planned again when the current version does not read `odd` and `order.number` any more."""
    path, checkpoint = str(tmp_path / "two"), tmp_path / "checkpoint"
    stream = events(spark).selectExpr("value", "value % 2 AS odd", "struct(value AS number) AS order")

    def publish(id: int, text: str, **attributes: str) -> None:
        hs.build(spark.createDataFrame([(id, text)], "id long, where string"), path, {"value": "int", **attributes})

    def matches() -> Any:
        return hs.match(stream, path, "value", by_part=by_part)

    def fail(batch: int) -> None:
        raise ValueError("the sink is broken")

    publish(1, 'odd = 1 AND "order.number" IS NOT NULL', odd="int", **{"order.number": "int"})
    with pytest.raises(Exception, match="the sink is broken"):
        run(matches(), checkpoint, 2, fail)
    publish(2, "value >= 0")
    found = run(matches(), checkpoint, 2)
    assert {row.value: (row.snapshot_version, row.subscriptions) for row in found[0]} == {
        value: (1, [1] if value % 2 else []) for value in range(PER_BATCH)
    }
    assert {(row.snapshot_version, *row.subscriptions) for row in found[1]} == {(2, 2)}


def test_a_version_without_a_schema_reads_every_column(spark: Any, growing: Growing, tmp_path: Path) -> None:
    stream, checkpoint = events(spark).selectExpr("value", "value % 2 AS odd"), tmp_path / "checkpoint"

    def without_schema(batch: int) -> None:
        index = Index()
        index.subscribe(7, "odd = 1")
        index.save(growing.path)

    with pytest.raises(Exception, match="has the attribute 'odd', which is new since the query started"):
        run(hs.match(stream, growing.path, "value"), checkpoint, 2, without_schema)
    found = run(hs.match(stream, growing.path, "value"), checkpoint, 1)
    assert {row.value: row.subscriptions for row in found[1]} == {
        value: [7] if value % 2 else [] for value in range(PER_BATCH, 2 * PER_BATCH)
    }


def test_a_batch_that_failed_before_the_ids_changed_names_its_version(
    spark: Any, growing: Growing, tmp_path: Path
) -> None:
    def fail(batch: int) -> None:
        raise ValueError("the sink is broken")

    with pytest.raises(Exception, match="the sink is broken"):
        run(hs.match(events(spark), growing.path, "value"), tmp_path / "checkpoint", 2, fail)
    index = Index({"value": "int"})
    index.subscribe("x", "value >= 0")
    index.save(growing.path)
    with pytest.raises(Exception, match="this batch began with it: start the query with version=1"):
        run(hs.match(events(spark), growing.path, "value"), tmp_path / "checkpoint", 1)
    found = run(hs.match(events(spark), growing.path, "value", version=1), tmp_path / "checkpoint", 1)
    assert {tuple(row.subscriptions) for row in found[0]} == {(0,)}
    found = run(hs.match(events(spark), growing.path, "value"), tmp_path / "checkpoint", 1)
    assert {tuple(row.subscriptions) for row in found[1]} == {("x",)}


def test_a_batch_that_began_before_an_attribute_changed_names_its_version(tmp_path: Path) -> None:
    """What its tasks say: its version reads columns that are absent by now, or of another type."""
    path = str(tmp_path / "snapshot")
    for schema in ({"value": "int"}, {"value": "string"}, {"amount": "int"}):
        index = Index(schema)
        index.subscribe("all", "TRUE")
        index.save(path, keep=3)
    begun = batch_version.described(path, 1)

    def job(version: int, column: str) -> match_task.Job:
        found = batch_version.described(path, version)
        job = match_task.Job(path, version, snapshot_files.identity(found.facts), (column,), ())
        return replace(job, **StreamTask(job, "string", (column,), (), True, False)._fitted(begun))

    with pytest.raises(
        TableError, match=r"no column 'value'.*; this batch began with it: start the query with version=1"
    ):
        job(3, "amount")
    texts = pa.table({"value": ["x"]})
    with pytest.raises(
        TableError, match=r"takes whole numbers.*; this batch began with version 1 .* with version=1 until"
    ):
        list(job(2, "value").matched(iter(texts.to_batches()), match_task.Counted()))
    with pytest.raises(TableError) as plain:
        list(job(1, "value").matched(iter(texts.to_batches()), match_task.Counted()))
    assert "began" not in str(plain.value)
    with pytest.raises(TableError) as plain:  # of an event
        list(job(2, "value").matched(iter(pa.table({"value": [1.5]}).to_batches()), match_task.Counted()))
    assert "began" not in str(plain.value)


def test_the_events_of_a_query_fit_an_older_version(spark: Any, growing: Growing) -> None:
    stream = events(spark).selectExpr("value", "string(value) AS text")
    batch_version.choose(growing.path, "query", 0)
    index = Index({"value": "int", "more": "int"})
    index.save(growing.path)
    with pytest.raises(
        TableError, match=r"no column 'more'.*; if the query has to finish .* start it with version=1 until"
    ):
        hs.match(stream, growing.path, "value")
    hs.match(stream, growing.path, "value", version=1)
    with pytest.raises(TableError, match=r"treats an absent column as null\)$"):
        hs.match(stream, growing.path, "value", version=2)


def test_ids_of_another_type_ask_for_a_restart(spark: Any, growing: Growing, tmp_path: Path) -> None:
    def names(batch: int) -> None:
        index = Index({"value": "int"})
        index.subscribe("x", "value >= 0")
        index.save(growing.path)

    with pytest.raises(Exception, match="ids of type string, not int as when the query started"):
        run(hs.match(events(spark), growing.path, "value"), tmp_path / "checkpoint", 2, names)


def test_what_is_wrong_is_said_before_the_stream_starts(spark: Any, growing: Growing, tmp_path: Path) -> None:
    stream = events(spark)
    renamed = stream.withColumn("snapshot_version", stream.value)
    with pytest.raises(TableError, match="'snapshot_version', which is the name of a result"):
        hs.match(renamed, growing.path, "value", keep=["snapshot_version"])
    with pytest.raises(SnapshotError, match="there is none"):
        hs.match(stream, str(tmp_path / "nowhere"), "value")


def test_all_who_ask_for_a_batch_get_the_same_version(growing: Growing) -> None:
    ended = threading.Event()

    def publish() -> None:
        while not ended.is_set():
            growing.publish()

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        with ThreadPoolExecutor(8) as pool:
            for batch in range(30):
                asked = [pool.submit(batch_version.choose, growing.path, "q", batch) for _ in range(8)]
                versions = {one.result() for one in asked}
                assert len(versions) == 1
                snapshot.facts_of(growing.path, versions.pop())  # it is still there
    finally:
        ended.set()
        publisher.join()
    assert len(list(Path(growing.path, "pins").glob("query-q-*.json"))) <= batch_version.KEPT_BATCHES


def test_on_an_object_store_too(growing: Growing, s3: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_files, "SETTLE_SECONDS", 0.1)
    s3.take(Path(growing.path), "bucket/ads")
    address = s3.address("bucket/ads")
    with ThreadPoolExecutor(4) as pool:
        assert {one.result() for one in [pool.submit(batch_version.choose, address, "q", 0) for _ in range(4)]} == {1}
    growing.publish()
    s3.take(Path(growing.path), "bucket/ads")
    assert batch_version.choose(address, "q", 0) == 1
    assert [batch_version.choose(address, "q", batch) for batch in (1, 2)] == [2, 2]
    assert s3.names("bucket/ads/pins/query") == [f"bucket/ads/pins/query-q-{batch}.json" for batch in (1, 2)]
    assert batch_version.described(address, 2).published > 0


def test_pins_of_queries_that_never_come_back_expire(growing: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    path, pins = growing.path, Path(growing.path, "pins")
    assert batch_version.choose(path, "gone", 5) == 1
    for _ in range(3):
        growing.publish()
    assert 1 in snapshot.versions(path)
    later = time.time() + (batch_version.PIN_DAYS + 1) * 86_400
    monkeypatch.setattr(time, "time", lambda: later)
    growing.publish()
    assert 1 not in snapshot.versions(path)
    damaged = [pins / "query-damaged-1.json", pins / "query-other-x.json"]
    for file in damaged:
        file.write_text("{")
    assert batch_version.choose(path, "other", 0) == 5
    assert set(pins.glob("query-*.json")) == {pins / "query-other-0.json", *damaged}, "those may hold any version"
    assert json.loads((pins / "query-other-0.json").read_text())["batch"] == 0


def test_a_batch_that_comes_back_too_late_takes_the_current_version(
    growing: Growing, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert batch_version.choose(growing.path, "q", 5) == 1
    for _ in range(3):
        growing.publish()
    later = time.time() + (batch_version.PIN_DAYS + 1) * 86_400
    monkeypatch.setattr(time, "time", lambda: later)
    assert batch_version.choose(growing.path, "q", 5) == 4


def test_two_tasks_that_come_back_too_late_agree(growing: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    """One has read the expired pin when the other pins again; then the current version changes."""
    path, right, others = growing.path, snapshot_files.pin_once, list[int]()
    assert batch_version.choose(path, "q", 5) == 1
    later = time.time() + (batch_version.PIN_DAYS + 1) * 86_400
    monkeypatch.setattr(time, "time", lambda: later)

    def pin_once(path: str, name: str, **facts: Any) -> dict[str, Any]:
        found = right(path, name, **facts)
        if snapshot.expired(found) and not others:
            others.append(0)
            others.append(batch_version.choose(path, "q", 5))
            growing.publish()
        return found

    monkeypatch.setattr(snapshot_files, "pin_once", pin_once)
    assert batch_version.choose(path, "q", 5) == others[-1] == batch_version.choose(path, "q", 5)
    assert batch_version.choose(path, "q", 7) == 2
    names = {file.name for file in Path(path, "pins").glob("query-q-*")}
    assert names <= {"query-q-7.json", "query-q-again-5.json"}, "the other is removed later"


def test_copies_of_a_checkpoint_do_not_share_pins(growing: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are runs of one query. The one ahead leaves alone what the tasks of the other still read."""
    path, pins = growing.path, Path(growing.path, "pins")
    asked = functools.partial(batch_version.choose, path, "q")
    assert asked(5, run="first") == asked(5, run="copy") == 1, "the copy repeats the last batch"
    growing.publish()
    assert asked(6, run="copy") == 2
    for batch in range(6, 10):
        growing.publish()
        asked(batch, run="first")
    assert asked(6, run="copy") == 2, "the other tasks of the batch agree"
    assert asked(7, run="copy") == 6, "this batch of the first one is over"
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + batch_version.OTHER_RUN + 60)
    asked(10, run="first")
    left = sorted(json.loads(file.read_text())["batch"] for file in pins.glob("query-*.json"))
    assert left == [9, 10], "a run that is gone keeps no version for long"


def test_a_checkpoint_that_was_set_back(growing: Growing) -> None:
    """Its batches have pins of another run. They count for the one that is repeated, not for those after it."""
    asked = functools.partial(batch_version.choose, growing.path, "q")
    for batch in (5, 6, 7):
        assert asked(batch, run="first") == batch - 4
        growing.publish()
    assert asked(6, run="second") == 2
    assert asked(7, run="second") == 4


def test_jobs_have_readable_descriptions(spark: Any) -> None:
    from hitbox.spark.task_progress import job_description

    context = spark.sparkContext
    context.setJobDescription("mine")
    with job_description(spark, "hitbox: build /ads"):
        assert context.getLocalProperty("spark.job.description") == "hitbox: build /ads"
    assert context.getLocalProperty("spark.job.description") == "mine"
    context.setLocalProperty("spark.job.description", None)
    with job_description(object(), "a Connect session has no such setting"):
        pass
