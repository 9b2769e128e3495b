"""match_stream: versions picked up between batches, replays on the pinned one, old versions kept while they may be."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hitbox import Index
from hitbox import spark as hs
from hitbox.errors import SnapshotError, TableError, ValueProblem
from hitbox.spark.stream import Asked, Batch, Output, stream_name
from hitbox.storage import retention, snapshot
from support.tiers import only


@pytest.fixture
def snapshot_path(spark: Any, tmp_path: Path) -> str:
    hs.register(spark)
    made = hs.generate("w1", 500, 0, spark=spark, width=0.8)
    hs.build(made.subscriptions, str(tmp_path / "snapshot"), parts=2)
    return str(tmp_path / "snapshot")


def events(spark: Any, rows: int, per_batch: int) -> Any:
    reader = spark.readStream.format("hitbox").option("workload", "w1").option("width", "0.8")
    return reader.option("rows", rows).option("rows_per_batch", per_batch).load()


def change(spark: Any, path: str, sequence: int) -> None:
    log = spark.createDataFrame(
        [(sequence, "unsubscribe", sequence, None), (sequence + 1, "subscribe", 10_000 + sequence, "a0 >= 0")],
        "sequence bigint, op string, id bigint, where string",
    )
    hs.apply_changes(log, path)


def wait(query: Any, checkpoint: str, batches: int) -> list[dict[str, Any]]:
    until = time.time() + 240
    while query.isActive and len(hs.progress(checkpoint)) < batches and time.time() < until:
        time.sleep(0.1)
    assert query.exception() is None
    return hs.progress(checkpoint)


def check(spark: Any, path: str, out: str, rows: int) -> dict[int, int]:
    """Every event once, against the version that its batch says; versions by batch."""
    found = spark.read.parquet(out).collect()
    assert sorted(row.event_id for row in found) == list(range(rows))
    versions = {row.batch_id: row.snapshot_version for row in found}
    table = spark.read.format("hitbox").option("workload", "w1").option("width", "0.8").option("rows", rows).load()
    points = table.toArrow().sort_by("event_id")
    for version in set(versions.values()):
        matches = Index.open(path, version).match_batch(points)
        for row in found:
            assert row.snapshot_version == versions[row.batch_id]
            if row.snapshot_version == version:
                assert sorted(row.subscriptions) == sorted(matches[row.event_id])
    return versions


@pytest.mark.oldest
def test_new_versions_are_picked_up(spark: Any, snapshot_path: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(retention, "KEPT_VERSIONS", 50)
    out, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")
    query = hs.match_stream(events(spark, 600, 100), snapshot_path, out, checkpoint)
    wait(query, checkpoint, 1)
    change(spark, snapshot_path, 1)
    done = wait(query, checkpoint, 6)
    query.stop()
    assert [d["batch"] for d in done] == list(range(6))
    assert sum(d["events"] for d in done) == 600
    assert done[-1]["version"] == 2
    assert all(d["seconds"] >= d["seconds_matching"] / 2 > 0 for d in done)
    versions = check(spark, snapshot_path, out, 600)
    assert versions == {d["batch"]: d["version"] for d in done}
    total = spark.read.parquet(out).selectExpr("sum(size(subscriptions))").collect()[0][0]
    assert sum(d["matches"] for d in done) == total


def test_a_batch_that_comes_again_meets_the_same_subscriptions(spark: Any, snapshot_path: str, tmp_path: Path) -> None:
    checkpoint, out = str(tmp_path / "checkpoint"), str(tmp_path / "out")
    table = spark.read.format("hitbox").option("workload", "w1").option("width", "0.8").option("rows", 50).load()
    asked = Asked(snapshot_path, "event_id", "arrays", None, (), None, False)
    batch = Batch(asked, Output(checkpoint, out, None))
    batch(table, 0)
    first = sorted((r.event_id, sorted(r.subscriptions)) for r in spark.read.parquet(out).collect())
    for sequence in range(1, 9, 2):
        change(spark, snapshot_path, sequence)
    assert snapshot.versions(snapshot_path) == [1, 4, 5]  # 1 is pinned
    batch(table, 0)
    assert sorted((r.event_id, sorted(r.subscriptions)) for r in spark.read.parquet(out).collect()) == first
    batch(table, 1)
    assert [d["version"] for d in hs.progress(checkpoint)] == [1, 5]
    change(spark, snapshot_path, 11)
    assert snapshot.versions(snapshot_path) == [5, 6]


def test_a_checkpoint_that_was_moved(spark: Any, snapshot_path: str, tmp_path: Path) -> None:
    """The batch that comes again meets the same subscriptions; of a copy, as long as they are there."""
    table = spark.range(5).selectExpr("id AS event_id", *[f"id AS a{n}" for n in range(20)])
    asked = Asked(snapshot_path, "event_id", "counts", None, (), None, True)
    first, moved, copied = (Output(str(tmp_path / name), str(tmp_path / "out"), None) for name in ("1", "2", "3"))
    assert first.unfinished(snapshot_path) is None
    (tmp_path / "1" / "offsets").mkdir(parents=True)
    (tmp_path / "1" / "offsets" / "0").touch()
    assert first.unfinished(snapshot_path) is None, "it was not pinned yet"
    Batch(asked, first)(table, 0)
    shutil.copytree(first.checkpoint, moved.checkpoint)
    shutil.copytree(first.checkpoint, copied.checkpoint)
    for sequence in range(1, 7, 2):
        change(spark, snapshot_path, sequence)
    for output in (first, moved):
        pin = output.unfinished(snapshot_path)
        assert pin is not None
        assert (pin["batch"], pin["version"]) == (0, 1)
        assert output.unfinished(f"{snapshot_path}-of-others") is None
        Batch(asked, output)(table, 0)
        assert [done["version"] for done in hs.progress(output.checkpoint)] == [1]
        (Path(output.checkpoint) / "commits").mkdir()
        (Path(output.checkpoint) / "commits" / "0").touch()
        assert output.unfinished(snapshot_path) is None
        Batch(asked, output)(table, 1)
        assert [done["version"] for done in hs.progress(output.checkpoint)] == [1, 4]
    change(spark, snapshot_path, 7)
    assert 1 not in snapshot.versions(snapshot_path), "nothing says that a copy needs it"
    for stuck in (lambda: copied.unfinished(snapshot_path), lambda: Batch(asked, copied)(table, 0)):
        with pytest.raises(
            SnapshotError, match=r"1.*batch 0 began with it, before the checkpoint .* remove the folder"
        ):
            stuck()
    shutil.rmtree(copied.notes)
    assert copied.unfinished(snapshot_path) is None
    Batch(asked, copied)(table, 0)
    assert [done["version"] for done in hs.progress(copied.checkpoint)] == [5]


def test_a_new_checkpoint_at_an_old_place(spark: Any, tmp_path: Path) -> None:
    """Its first batch has the number of the one that was pinned, but it is no repetition."""
    path, folder, checkpoint, out = (str(tmp_path / name) for name in ("snapshot", "events", "checkpoint", "out"))
    spark.range(5).selectExpr("id AS event_id", "id AS a").write.parquet(folder)
    index = Index({"a": "int"})
    for version in (1, 2):
        index.subscribe(version, "a >= 0")
        index.save(path)
        events = spark.readStream.schema("event_id long, a long").parquet(folder)
        query = hs.match_stream(events, path, out, checkpoint, trigger={"availableNow": True})
        query.awaitTermination(120)
        assert query.exception() is None
        assert {row.snapshot_version for row in spark.read.parquet(out).collect()} == {version}
        shutil.rmtree(checkpoint)


def nothing(matches: Any, batch_id: int) -> None:
    pass


def each_partition(matches: Any, batch_id: int) -> None:
    matches.foreachPartition(lambda rows: [None for _ in rows])  # by way of an RDD: Spark tracks no query


def noop(matches: Any, batch_id: int) -> None:
    matches.write.format("noop").mode("overwrite").save()


def twice(matches: Any, batch_id: int) -> None:
    assert matches.count() == len(matches.collect())


def some(matches: Any, batch_id: int) -> None:
    matches.limit(1).collect()


SINKS = [(nothing, {0}), (each_partition, {45}), (noop, {45}), (twice, {45}), (some, set(range(46)))]


@pytest.mark.parametrize(
    ("sink", "events_a_batch"), only(SINKS[1:2], SINKS), ids=lambda one: getattr(one, "__name__", "")
)
def test_no_sink_makes_a_stream_wait(
    spark: Any, snapshot_path: str, tmp_path: Path, sink: Any, events_a_batch: set[int]
) -> None:
    checkpoint = str(tmp_path / "checkpoint")
    query = hs.match_stream(events(spark, 90, 45), snapshot_path, checkpoint=checkpoint, sink=sink)
    done = wait(query, checkpoint, 2)
    query.stop()
    assert [d["batch"] for d in done] == [0, 1]
    assert {d["events"] for d in done} <= events_a_batch
    assert all((d["matches"] > 0) == (d["events"] > 0) for d in done) or sink is some
    assert not (tmp_path / "checkpoint" / "hitbox" / "counts").exists()


def test_what_a_sink_raises_ends_the_query_and_the_batch_comes_again(
    spark: Any, snapshot_path: str, tmp_path: Path
) -> None:
    checkpoint, target = str(tmp_path / "checkpoint"), str(tmp_path / "target")

    def broken(matches: Any, batch_id: int) -> None:
        matches.collect()
        raise RuntimeError("the sink is broken")

    def working(matches: Any, batch_id: int) -> None:
        matches.write.mode("overwrite").parquet(f"{target}/{batch_id}")

    query = hs.match_stream(events(spark, 90, 45), snapshot_path, checkpoint=checkpoint, sink=broken)
    with pytest.raises(Exception, match="the sink is broken"):
        query.awaitTermination(120)
    assert not query.isActive
    assert hs.progress(checkpoint) == []
    assert not list((tmp_path / "checkpoint").glob("commits/[0-9]*"))
    query = hs.match_stream(events(spark, 90, 45), snapshot_path, checkpoint=checkpoint, sink=working)
    done = wait(query, checkpoint, 2)
    query.stop()
    assert [d["events"] for d in done] == [45, 45]
    rows = [row for batch in range(2) for row in spark.read.parquet(f"{target}/{batch}").collect()]
    assert sorted(row.event_id for row in rows) == list(range(90))


def test_a_batch_that_failed_before_an_attribute_changed_its_type(spark: Any, tmp_path: Path) -> None:
    """It is checked against the version that it began with, and only then the next one against the current version."""
    path, checkpoint = str(tmp_path / "snapshot"), str(tmp_path / "checkpoint")
    seen: dict[int, set[Any]] = {}

    def publish(kind: str, condition: str) -> None:
        index = Index({"value": kind})
        index.subscribe(kind, condition)
        index.save(path)

    def broken(matches: Any, batch_id: int) -> None:
        raise RuntimeError("the sink is broken")

    def working(matches: Any, batch_id: int) -> None:
        seen[batch_id] = {(row.snapshot_version, *row.subscriptions) for row in matches.collect()}

    def run(value: str, sink: Any = working) -> Any:
        stream = files.load(str(tmp_path / "events")).selectExpr("event_id", f"{value} AS value")
        query = hs.match_stream(stream, path, checkpoint=checkpoint, sink=sink)
        until = time.time() + 240
        while query.isActive and len(seen) < 2 and time.time() < until:
            time.sleep(0.1)
        query.stop()
        return query.exception()

    (tmp_path / "events").mkdir()
    for number in range(2):
        pq.write_table(pa.table({"event_id": [number], "a0": [0.5]}), tmp_path / "events" / f"{number}.parquet")
    files = spark.readStream.format("parquet").schema("event_id long, a0 double").option("maxFilesPerTrigger", 1)
    publish("float", "value >= 0")
    assert "the sink is broken" in str(run("a0", broken))
    publish("string", "value LIKE '%'")
    with pytest.raises(TableError, match=r"batch 0 began with version 1 of the snapshot and is repeated with it"):
        run("string(a0)")
    assert "a string attribute takes texts" in str(run("a0"))  # of batch 1
    assert seen == {0: {(1, "float")}}
    assert run("string(a0)") is None
    assert seen == {0: {(1, "float")}, 1: {(2, "string")}}


def test_places_are_written_in_many_ways(
    spark: Any, snapshot_path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    out, checkpoint = f"file:{tmp_path}/out", f"file://{tmp_path}/my%20checkpoint"
    stream = events(spark, 20, 20)
    for wrong in ("foo://x", "s3:/x", "C:\\x"):
        for places in ((wrong, out, checkpoint), (snapshot_path, wrong, checkpoint), (snapshot_path, out, wrong)):
            with pytest.raises(SnapshotError, match=r"support the scheme|names no bucket|Windows path"):
                hs.match_stream(stream, *places)
        with pytest.raises(SnapshotError, match=r"support the scheme|names no bucket|Windows path"):
            hs.build(spark.range(3).selectExpr("id", "'TRUE' as where"), wrong, {"a": "int"})
    assert sorted(one.name for one in tmp_path.iterdir()) == ["here", "snapshot"], "nothing was written"
    query = hs.match_stream(stream, f"file:{snapshot_path}", out, checkpoint)
    wait(query, f"{tmp_path}/my checkpoint", 1)
    query.stop()
    assert list((tmp_path / "my checkpoint").glob("offsets/0")), "Spark and hitbox mean the same folder"
    assert stream_name(f"file:{tmp_path}/checkpoint") == stream_name(f"{tmp_path}/checkpoint/")
    assert spark.read.parquet(f"{tmp_path}/out").count() == 20
    assert hs.build(spark.range(3).selectExpr("id", "'TRUE' as where"), f"file:{tmp_path}/s", {"a": "int"}).version == 1
    assert len(Index.open(tmp_path / "s")) == 3
    assert not list((tmp_path / "here").iterdir())


@pytest.mark.parametrize("form", only(["pairs"], ["pairs", "counts"]))
def test_a_sink_of_the_users(spark: Any, snapshot_path: str, tmp_path: Path, form: str) -> None:
    target, checkpoint = str(tmp_path / "target"), str(tmp_path / "checkpoint")

    def sink(matches: Any, batch_id: int) -> None:
        matches.write.mode("overwrite").parquet(f"{target}/{batch_id}")

    query = hs.match_stream(
        events(spark, 90, 45), snapshot_path, checkpoint=checkpoint, sink=sink, form=form, keep=["a0"], limit=4
    )
    done = wait(query, checkpoint, 2)
    query.stop()
    rows = spark.read.parquet(f"{target}/0", f"{target}/1").collect()
    total = len(rows) if form == "pairs" else sum(row.matches for row in rows)
    assert sum(d["matches"] for d in done) == total > 0
    assert "a0" in rows[0]


def test_what_is_wrong_is_said_before_the_stream_starts(spark: Any, snapshot_path: str, tmp_path: Path) -> None:
    stream = events(spark, 10, 10)
    with pytest.raises(TableError, match="for a table use match"):
        hs.match_stream(spark.range(3), snapshot_path, "out", "checkpoint")
    with pytest.raises(ValueProblem, match="either out="):
        hs.match_stream(stream, snapshot_path, checkpoint="c")
    with pytest.raises(ValueProblem, match="checkpoint="):
        hs.match_stream(stream, snapshot_path, "out")
    with pytest.raises(SnapshotError, match="there is none"):
        hs.match_stream(stream, str(tmp_path / "nowhere"), "out", "checkpoint")
    with pytest.raises(TableError, match="no column 'a5'"):
        hs.match_stream(stream.drop("a5"), snapshot_path, "out", "checkpoint")


def test_a_pinned_version_that_is_gone(spark: Any, snapshot_path: str, tmp_path: Path) -> None:
    snapshot.pin(snapshot_path, "somebody", 1, batch=0)
    with pytest.raises(SnapshotError, match="version 9"):
        snapshot.pin(snapshot_path, "somebody", 9, batch=1)
    shutil.rmtree(Path(snapshot_path) / "pins")
    assert snapshot.pins(snapshot_path) == set()
