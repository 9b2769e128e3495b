"""build and generate: parts, dictionaries, duplicates, bad rows, places."""

from __future__ import annotations

import importlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hitbox import Attribute, Index, Schema, workloads
from hitbox import spark as hs
from hitbox.errors import HitboxError, HitboxWarning, SnapshotError, TableError
from hitbox.index.sharded import part_name, write_part
from hitbox.spark import parquet_table, snapshot_files, writer_lease
from hitbox.storage import snapshot
from hitbox.storage.addresses import join, resolve
from support.object_store import ObjectStore
from support.tiers import only

SCHEMA = Schema({"price": "float", "city": "string"})


def predicates(spark: Any, *rows: tuple[Any, ...]) -> Any:
    return spark.createDataFrame(list(rows), "id string, where string, priority int")


def test_parts_share_one_dictionary(spark: Any, tmp_path: Path) -> None:
    rows = [(f"s{n}", f"city = 'town {n % 40}' AND price > {n % 7}", n % 10) for n in range(400)]
    report = hs.build(predicates(spark, *rows).repartition(4), str(tmp_path), SCHEMA, parts=3)
    assert (report.version, report.subscriptions, report.parts, report.rejected) == (1, 400, 3, 0)
    index = Index.open(tmp_path)
    plain = Index(SCHEMA)
    for id, where, priority in rows:
        plain.subscribe(id, where, priority=priority)
    for town in range(42):
        event = {"price": 3.5, "city": f"town {town}"}
        assert sorted(index.match(event)) == sorted(plain.match(event))
    assert index.where("s7") == rows[7][1]
    index.unsubscribe("s7")
    assert len(index) == 399


def test_one_part_opens_memory_mapped(spark: Any, tmp_path: Path) -> None:
    made = hs.generate("w2", 300, 5, spark=spark)
    hs.build(made.subscriptions, str(tmp_path))
    index = Index.open(tmp_path, verify=True)
    assert len(index) == 300
    assert sorted(index) == list(range(300))


def test_compact_parts_stay_compact(spark: Any, tmp_path: Path) -> None:
    made = hs.generate("w1", 3000, 5, spark=spark)
    with pytest.raises(HitboxError, match="has no option 'compact'"):
        hs.build(made.subscriptions, str(tmp_path), matcher="brute", compact=True)
    hs.build(made.subscriptions, str(tmp_path), compact=True, parts=2)
    index = Index.open(tmp_path)
    assert len(index) == 3000
    segments = index._state.matcher.describe()["segments"]  # type: ignore[attr-defined]
    assert [(one["kind"], one["compact"]) for one in segments] == [("bitmap", True)]


def test_an_id_that_comes_twice(spark: Any, tmp_path: Path) -> None:
    rows = [("a", "price > 1", 1), ("b", "price > 2", 1), ("a", "price > 3", 1)]
    frame = predicates(spark, *rows).repartition(3)
    with pytest.raises(TableError, match=r"id a: this id occurs more than once; latest_by"):
        hs.build(frame, str(tmp_path), SCHEMA, parts=2)
    assert not snapshot.versions(tmp_path)
    stamped = spark.createDataFrame(
        [(*row, n) for n, row in enumerate(rows)], "id string, where string, priority int, at int"
    )
    hs.build(stamped.repartition(3), str(tmp_path), SCHEMA, parts=2, latest_by="at")
    assert Index.open(tmp_path).where("a") == "price > 3"
    assert len(Index.open(tmp_path)) == 2


def test_bad_rows(spark: Any, tmp_path: Path) -> None:
    frame = predicates(
        spark,
        ("good", "price > 1", 4),
        ("typo", "prise > 1", 4),
        ("loud", "price > 1", 11),
        ("empty", "", 4),
        (None, "price > 1", 4),
        ("never", "price > 2 AND price < 1", 4),
    )
    path, report = str(tmp_path / "snapshot"), str(tmp_path / "bad")
    with pytest.raises(TableError, match=r"4 subscriptions do not fit") as told:
        hs.build(frame, path, SCHEMA, parts=2)
    for part in ("id typo: unknown attribute 'prise'", "did you mean 'price'", "id loud: priority 11", "id is null"):
        assert part in str(told.value)
    made = hs.build(frame, path, SCHEMA, on_error="return", report=report)
    assert (made.subscriptions, made.rejected, made.never) == (2, 4, 1)
    bad = {row.id: row for row in spark.read.parquet(report).collect()}
    assert set(bad) == {"typo", "loud", "empty", None}
    assert bad["typo"]["where"] == "prise > 1"
    assert sorted(Index.open(path)) == ["good", "never"]


def test_a_build_that_fails_leaves_the_old_version(spark: Any, tmp_path: Path) -> None:
    hs.build(predicates(spark, ("a", "price > 1", 4)), str(tmp_path), SCHEMA)
    with pytest.raises(TableError):
        hs.build(predicates(spark, ("b", "price >", 4)), str(tmp_path), SCHEMA)
    assert list(Index.open(tmp_path)) == ["a"]
    assert not list(tmp_path.glob(".draft-*"))
    assert hs.build(predicates(spark, ("b", "price > 1", 4)), str(tmp_path), SCHEMA).version == 2


def test_what_does_not_fit_is_said_before_work_starts(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(TableError, match="no column 'id'"):
        hs.build(spark.createDataFrame([(1, 2)], "a_low int, a_high int"), str(tmp_path))
    with pytest.raises(TableError, match=r"'b_low'.*neither"):
        hs.build(spark.createDataFrame([(1, 2, 3)], "id int, b_low int, b_high int"), str(tmp_path), {"a": "int"})
    with pytest.raises(TableError, match="a_low"):
        hs.build(
            spark.createDataFrame([(1, "x", "y")], "id int, a_low string, a_high string"), str(tmp_path), {"a": "int"}
        )


def test_no_permission(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o500)
    if os.getuid() == 0:  # root may write everywhere
        monkeypatch.setattr(os, "access", lambda place, mode: Path(place) != tmp_path)
    with pytest.raises(SnapshotError, match="no permission"):
        hs.build(predicates(spark, ("a", "price > 1", 4)), str(tmp_path / "s"), SCHEMA)
    assert not (tmp_path / "s").exists()


def test_a_file_in_the_way(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SnapshotError, match=r"no permission|cannot write"):
        hs.build(predicates(spark, ("a", "price > 1", 4)), str(tmp_path / "file" / "s"), SCHEMA)


def test_an_address_is_copied_once_and_checked(
    spark: Any, s3: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HITBOX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(writer_lease, "SETTLE_SECONDS", 0.0)
    address = resolve(s3.address("bucket/home"))
    made = hs.generate("w1", 500, 20, spark=spark, width=0.8)
    for version in (1, 2, 3):
        assert hs.build(made.subscriptions, address, parts=2).version == version
    assert snapshot_files._numbers(address) == [2, 3]
    assert not [name for name in s3.names() if "draft" in name or "writer" in name]
    expected = snapshot_files.identity(snapshot_files.facts(address, 3))
    root = snapshot_files.local(address, 3, expected)
    assert root.startswith(str(tmp_path / "cache"))
    assert len(Index.open(root, 3)) == 500
    before = (Path(root) / "versions" / "00000003" / "manifest.json").stat().st_mtime_ns
    assert snapshot_files.local(address, 3, expected) == root
    assert (Path(root) / "versions" / "00000003" / "manifest.json").stat().st_mtime_ns == before
    counts = hs.match(made.events, address, form="counts").collect()
    assert sum(row.matches for row in counts) > 0
    victim = next(name for name in s3.names("bucket/home/versions/00000002/part-") if "catalog.ids" in name)
    s3.objects[victim] = s3.objects[victim][:-1] + b"?"
    with pytest.raises(SnapshotError, match="damaged"):
        snapshot_files.local(address, 2, snapshot_files.identity(snapshot_files.facts(address, 2)))
    with pytest.raises(SnapshotError, match="there is no CURRENT"):
        snapshot_files.current(s3.address("bucket/nowhere"))
    with pytest.raises(SnapshotError, match=r"version 1 .*it is gone; versions there: 2, 3 \(current\)"):
        hs.match(made.events, address, version=1)


def test_all_workers_of_a_host_fetch_one_copy(s3: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HITBOX_CACHE", str(tmp_path / "cache"))
    index = Index(SCHEMA)
    index.subscribe("a", "price > 1")
    index.save(tmp_path / "home")
    s3.take(tmp_path / "home", "bucket/home")
    address = s3.address("bucket/home")
    expected, fetch, fetched = snapshot_files.identity(snapshot_files.facts(address)), snapshot_files._fetch, []

    def slowly(*where: Any) -> None:
        fetched.append(where)
        time.sleep(0.2)
        fetch(*where)

    monkeypatch.setattr(snapshot_files, "_fetch", slowly)
    with ThreadPoolExecutor(8) as pool:
        roots = list(pool.map(lambda _: snapshot_files.local(address, 1, expected), range(8)))
    assert len(fetched) == len(set(roots)) == 1
    assert list(Index.open(roots[0], 1)) == ["a"]


def test_a_host_verifies_a_version_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HITBOX_CACHE", str(tmp_path / "cache"))
    home = str(tmp_path / "home")
    index = Index(SCHEMA)
    index.subscribe("a", "price > 1")
    index.save(home)
    expected, read, whole = snapshot_files.identity(snapshot_files.facts(home)), snapshot.read, []

    def noted(path: Any, version: Any = None, verify: bool = True, parts: Any = None) -> Any:
        whole.append(verify)
        return read(path, version, verify, parts)

    monkeypatch.setattr(snapshot, "read", noted)
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: snapshot_files.local(home, 1, expected), range(8))) == {home}
    assert whole == [True]
    victim = snapshot.folder_of(home, 1) / "matcher.where.npy"
    victim.write_bytes(victim.read_bytes()[:-1] + b"?")
    for _ in range(2):
        with pytest.raises(SnapshotError, match="checksum"):
            snapshot_files.local(home, 1, expected)
    monkeypatch.setenv("HITBOX_CACHE", "/proc/nowhere")  # cannot be written: verified in each worker
    with pytest.raises(SnapshotError, match="checksum"):
        snapshot_files.local(home, 1, expected)


NAMES = [n for n in workloads.names() if n not in ("classbench", "rein", "dexin", "pri-rein")]


@pytest.mark.parametrize("name", only(["symmetric", "w1"], NAMES))  # tests/workloads draws parts of all
def test_generated_rows_do_not_depend_on_the_partitioning(spark: Any, name: str) -> None:
    one = hs.generate(name, 50, 30, spark=spark, partitions=1)
    many = hs.generate(name, 50, 30, spark=spark, partitions=7)
    assert one.subscriptions.toArrow().sort_by("id").equals(many.subscriptions.toArrow().sort_by("id"))
    assert one.events.toArrow().sort_by("event_id").equals(many.events.toArrow().sort_by("event_id"))


def test_layouts_say_the_same(spark: Any, tmp_path: Path) -> None:
    parameters: dict[str, Any] = {"m": 5, "k": 2, "equalities": 0.2, "one_sided": 0.3, "levels": 3}
    wide = hs.generate("w1", 200, 50, spark=spark, **parameters)
    texts = hs.generate("w1", 200, 50, spark=spark, layout="where", **parameters)
    hs.build(wide.subscriptions, str(tmp_path / "wide"), wide.schema)
    hs.build(texts.subscriptions, str(tmp_path / "texts"), wide.schema)
    events = wide.events.toArrow()
    one, two = (Index.open(tmp_path / name).match_batch(events) for name in ("wide", "texts"))
    assert [sorted(one[n]) for n in range(50)] == [sorted(two[n]) for n in range(50)]
    assert len(one.ids)


@pytest.mark.parametrize("remote", only([True], [False, True]))  # local: most other builds here
def test_tables_that_tasks_write_and_read_themselves(
    spark: Any, s3: ObjectStore, tmp_path: Path, remote: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HITBOX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(writer_lease, "SETTLE_SECONDS", 0.0)
    home = s3.address("bucket/made") if remote else str(tmp_path / "made")
    frames = hs.generate("w1", 300, 40, spark=spark, levels=3)
    for files in (5, 2):  # the second replaces all files of the first
        made = hs.generate("w1", 300, 40, path=home, partitions=files, spark=spark, levels=3)
        names = snapshot_files.names(join(resolve(home), "subscriptions"))
        assert sorted(names) == [f"part-{n:05d}.parquet" for n in range(files)]
    snapshot_path = join(resolve(home), "snapshot")
    report = hs.build(join(resolve(home), "subscriptions"), snapshot_path, made.schema, parts=2)
    assert (report.subscriptions, report.parts) == (300, 2)
    counts = {row.event_id: row.matches for row in hs.match(frames.events, snapshot_path, form="counts").collect()}
    plain = Index(made.schema)
    plain.load(frames.subscriptions.toArrow())
    events = frames.events.toArrow()
    assert counts == dict(zip(events["event_id"].to_pylist(), plain.match_batch(events).counts.tolist(), strict=True))
    if not remote:
        for name in ("subscriptions", "events"):
            written, expected = spark.read.parquet(f"{home}/{name}").toArrow(), getattr(frames, name).toArrow()
            assert written.sort_by(written.column_names[0]).equals(expected.sort_by(expected.column_names[0]))
        with pytest.raises(TableError, match="there is no Parquet table at"):
            hs.build(str(tmp_path / "nowhere"), str(tmp_path / "s"))


def test_a_table_without_files_and_files_that_differ(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(TableError, match=r"no Parquet table at .*/empty: the folder has no files"):
        parquet_table.ParquetTable.open(str(tmp_path / "empty"))
    (tmp_path / "mixed").mkdir()
    for name, ids in (("a", [1, 2]), ("b", ["x", "y"])):
        pq.write_table(pa.table({"id": ids, "where": ["TRUE"] * 2}), tmp_path / "mixed" / f"{name}.parquet")
    table = parquet_table.ParquetTable.open(str(tmp_path / "mixed"))
    assert sum(batch.num_rows for batch in table._batches(table.pieces[0])) == 2
    with pytest.raises(TableError, match=r"cannot read the file .*/mixed/b\.parquet of the Parquet table: .*'[xy]'"):
        list(table._batches(table.pieces[1]))


def test_a_file_is_read_in_several_tasks_and_a_folder_may_name_a_column(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_table, "TASK_ROWS", 100)
    (tmp_path / "t" / "priority=7").mkdir(parents=True)
    table = pa.table({"id": np.arange(250), "a_low": np.arange(250), "a_high": np.arange(250)})
    pq.write_table(table, tmp_path / "t" / "priority=7" / "x.parquet", row_group_size=50)
    assert len(parquet_table.ParquetTable.open(str(tmp_path / "t")).pieces) == 3
    assert hs.build(str(tmp_path / "t"), str(tmp_path / "s"), {"a": "int"}).subscriptions == 250
    index = Index.open(tmp_path / "s")
    assert index.match({"a": 249}) == [249]
    assert index.priority(249) == 7


def test_strings_of_many_tasks_get_one_dictionary(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every task labels its own strings; bounds on and between strings mean the same when the labels are replaced."""
    rng = Random(7)
    tests = [
        "city = '{}'",
        "city > '{}'",
        "city <= '{}'",
        "city LIKE '{}%'",
        "city <> '{}'",
        "city BETWEEN '{}' AND 'zzz'",
    ]
    rows = [
        (f"s{n}", rng.choice(tests).format("".join(rng.choices("almz", k=rng.randint(1, 3)))), 4) for n in range(300)
    ]
    assert hs.build(predicates(spark, *rows).repartition(7), str(tmp_path), SCHEMA, parts=3).subscriptions == 300
    index, plain = Index.open(tmp_path), Index(SCHEMA)
    for id, where, _ in rows:
        plain.subscribe(id, where)
    for city in ("", "a", "al", "am", "b", "lz", "m", "mm", "n", "zzz", "zzzz"):
        assert sorted(index.match({"city": city})) == sorted(plain.match({"city": city})), city


def test_parts_follow_from_the_number_of_subscriptions(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = importlib.import_module("hitbox.spark.build")
    monkeypatch.setattr(build, "LARGEST_PART", 100)
    made = hs.generate("w1", 350, 1, spark=spark)
    assert hs.build(made.subscriptions, str(tmp_path)).parts == 4
    facts = snapshot.facts_of(tmp_path)
    assert len(facts["parts"]) == 4
    assert sorted(Index.open(tmp_path)) == list(range(350))
    hs.apply_changes(
        spark.createDataFrame([(1, "unsubscribe", 17, None)], "sequence int, op string, id long, where string"),
        str(tmp_path),
    )
    assert 17 not in Index.open(tmp_path), "changes find the part of an id"
    assert [build._parts(n) for n in (0, 100, 101, 200, 10**9)] == [1, 1, 2, 2, build.BUCKETS]


@pytest.mark.parametrize("kind", ["double", "timestamp"])
def test_latest_by_orders_as_spark_does(spark: Any, tmp_path: Path, kind: str) -> None:
    """Null is the smallest value, NaN the largest."""
    values = [None, "1", "NaN", "2"] if kind == "double" else [None, "2026-01-01", "2026-01-03", "2026-01-02"]
    rows = [("a", f"price > {n}", value) for n, value in enumerate(values)]
    frame = spark.createDataFrame(rows, "id string, where string, at string")
    frame = frame.withColumn("at", frame.at.cast(kind)).repartition(3)
    hs.build(frame, str(tmp_path), SCHEMA, latest_by="at")
    assert Index.open(tmp_path).where("a") == "price > 2"
    with pytest.raises(TableError, match="'at' have no order"):
        hs.build(frame.selectExpr("id", "where", "array(at) as at"), str(tmp_path), SCHEMA, latest_by="at")


@pytest.mark.parametrize("layout", ["where", "wide"])
def test_rows_that_are_equally_late(spark: Any, tmp_path: Path, layout: str) -> None:
    """The largest row counts, in whatever order they come."""
    texts = "id", "concat('price = ', n) AS where"
    columns = texts if layout == "where" else ("id", "n AS price_low", "n + 1 AS price_high")
    rows = [("a", float(n), 7) for n in range(8)]
    found = set()
    for seed in range(3):
        Random(seed).shuffle(rows)
        frame = spark.createDataFrame(rows, "id string, n double, at int").coalesce(2).selectExpr(*columns, "at")
        hs.build(frame, str(tmp_path), {"price": "float"}, latest_by="at")
        index = Index.open(tmp_path)
        found.add(tuple(n for n in range(9) if index.match({"price": n})))
    assert len(found) == 1, found


def test_latest_by_a_column_that_says_more(spark: Any, tmp_path: Path) -> None:
    schema = {"price": "int", "edition": Attribute("int", role="information")}
    rows = [(1, "price > 0", 3, 9), (1, "price > 1", 2, 1), (2, "price > 0", 1, 1)]
    frame = spark.createDataFrame(rows, "id int, where string, edition int, priority int")
    for column in ("edition", "priority"):
        hs.build(frame, str(tmp_path), schema, latest_by=column)
        index = Index.open(tmp_path)
        assert (index.where(1), index.about(1)) == ("price > 0", {"edition": 3})
        assert index.match({"price": 5}) == [1, 2], "the priorities count, too"


def test_a_stream_of_subscriptions_is_refused(spark: Any, tmp_path: Path) -> None:
    stream = spark.readStream.format("rate").load().selectExpr("value AS id", "'price > 0' AS where")
    with pytest.raises(TableError, match="a table, not a stream; apply_changes takes a stream"):
        hs.build(stream, str(tmp_path), SCHEMA)


def test_a_single_file_with_types_that_spark_does_not_have(spark: Any, tmp_path: Path) -> None:
    file = str(tmp_path / "subscriptions.parquet")
    kinds = [pa.uint64(), pa.float16(), pa.time32("ms"), pa.decimal256(50, 2), pa.map_(pa.string(), pa.int8())]
    strange = {f"column{number}": pa.nulls(2, kind) for number, kind in enumerate(kinds)}
    ids, levels = pa.array([1, 2], pa.uint32()), pa.array([4, 9], pa.uint8())
    pq.write_table(pa.table({"id": ids, "where": ["price > 1", "price > 2"], "priority": levels} | strange), file)
    with pytest.warns(HitboxWarning, match="'column0', .* are ignored"):
        report = hs.build(file, str(tmp_path / "snapshot"), SCHEMA)
    assert report.ignored_columns == tuple(strange)
    assert Index.open(tmp_path / "snapshot").match({"price": 3}) == [2, 1]
    table = spark.sql("SELECT 1 AS id, 'price > 1' AS where, make_interval(1) AS every")
    with pytest.warns(HitboxWarning, match="'every' of the subscriptions is ignored"):
        hs.build(table, str(tmp_path / "snapshot"), SCHEMA)
    with pytest.raises(TableError, match="column 'where' is a column of binary, not of texts"):
        hs.build(table.selectExpr("id", "every AS where"), str(tmp_path / "snapshot"), SCHEMA)


def test_ids_are_told_apart_whatever_their_collation(spark: Any, tmp_path: Path) -> None:
    rows = [(1, "subscribe", "A", "price > 1"), (2, "subscribe", "a", "price > 2")]
    frame = spark.createDataFrame(rows, "sequence int, op string, id string, where string")
    frame = frame.selectExpr(
        "sequence", "op", "collate(id, 'UTF8_LCASE') AS id", "collate(where, 'UTF8_LCASE') AS where"
    )
    hs.build(frame.drop("sequence", "op"), str(tmp_path), SCHEMA)
    assert sorted(Index.open(tmp_path)) == ["A", "a"]
    hs.build(frame.drop("sequence", "op").where("FALSE"), str(tmp_path), SCHEMA)
    hs.apply_changes(frame, str(tmp_path))
    assert sorted(Index.open(tmp_path)) == ["A", "a"]


def test_a_draft_holds_no_boxes_when_it_is_published(spark: Any, tmp_path: Path) -> None:
    hs.build(predicates(spark, ("a", "price > 1", 4)), str(tmp_path), SCHEMA)
    names = {file.name.partition("-")[0] for file in (tmp_path / "versions" / "00000001").iterdir()}
    assert "boxes" not in names, names
    assert "part" in names


def test_unknown_parameters_are_named(spark: Any) -> None:
    with pytest.raises(HitboxError, match="did you mean 'width'"):
        hs.generate("w1", 5, 5, spark=spark, widht=0.1)


def test_what_failed_tasks_left_is_not_published(tmp_path: Path) -> None:
    """A part that two tasks wrote is in the draft twice, and one of the two counts."""
    index = Index({"a": "int"})
    index.subscribe(1, "a > 0")
    with snapshot_files.draft(str(tmp_path)) as place:
        with snapshot_files.filling(place) as folder:
            write_part(folder, index, part_name(0))
            files = write_part(folder, index, name := part_name(0))
        meta = {"schema": index.schema.to_json(), "subscriptions": 1, "id_type": "int", "matcher": "hitbox"}
        snapshot_files.publish(str(tmp_path), place, meta | {"parts": [name]}, files, operation="build")
    assert [file.name for file in snapshot.folder_of(tmp_path, 1).iterdir() if file.is_dir()] == [name]
    assert list(Index.open(tmp_path)) == [1]


def test_a_build_leaves_its_workers_for_the_next_job(spark: Any, tmp_path: Path) -> None:
    """A new worker takes seconds to import what it needs."""

    def workers() -> set[int]:
        def me(batches: Any) -> Any:
            for batch in batches:
                yield pa.RecordBatch.from_pydict({"pid": [os.getpid()] * batch.num_rows})

        return {row.pid for row in spark.range(0, 8, numPartitions=2).mapInArrow(me, "pid long").collect()}

    rows = spark.range(40).selectExpr("id", "concat('value >= ', id) AS where").repartition(2)
    hs.build(rows, str(tmp_path / "snapshot"), schema={"value": "int"})
    before = workers()
    hs.build(rows, str(tmp_path / "snapshot"), schema={"value": "int"})
    assert before & workers()
