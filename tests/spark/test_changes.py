"""apply_changes: whatever order entries arrive in and however often, each id ends at its newest entry."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from hitbox import Attribute, Index
from hitbox import spark as hs
from hitbox.encoding import string_dictionary
from hitbox.errors import SnapshotError, TableError, WriterConflict
from hitbox.index.sharded import Shards, part_of
from hitbox.spark import snapshot_files, writer_lease
from hitbox.storage import snapshot, writer_lock
from hitbox.storage.addresses import resolve
from support.object_store import ObjectStore
from support.tiers import only

SCHEMA = {"price": "int", "city": "string"}
LOG = "sequence bigint, op string, id string, where string, priority int"


def log(spark: Any, *entries: tuple[Any, ...]) -> Any:
    rows = [(sequence, op, id, *(more or (None, None))) for sequence, op, id, *more in entries]
    return spark.createDataFrame(rows, LOG)


@pytest.fixture
def path(spark: Any, tmp_path: Path) -> str:
    base = spark.createDataFrame(
        [(f"s{n}", f"price = {n} OR city = 'c{n}'", 4) for n in range(20)], "id string, where string, priority int"
    )
    hs.build(base, str(tmp_path / "snapshot"), SCHEMA, parts=3)
    return str(tmp_path / "snapshot")


@pytest.mark.oldest
def test_subscribe_and_unsubscribe(spark: Any, path: str) -> None:
    report = hs.apply_changes(
        log(
            spark,
            (1, "unsubscribe", "s3"),
            (2, "subscribe", "s4", "city = 'a new string'", 9),
            (3, "subscribe", "new", "price > 100", 7),
            (4, "unsubscribe", "unknown"),
        ),
        path,
    )
    assert (report.version, report.sequence, report.subscribed, report.unsubscribed) == (2, 4, 2, 1)
    index = Index.open(path)
    assert len(index) == 20
    assert index.match({"price": 3}) == []
    assert index.match({"price": 4, "city": "a new string"}) == ["s4"]
    assert index.match({"price": 101, "city": "c5"}) == ["new", "s5"]
    assert list(Index.open(path, 1).match({"price": 3})) == ["s3"]


def test_replays_duplicates_and_late_entries(spark: Any, path: str) -> None:
    first = log(
        spark,
        (5, "subscribe", "a", "price = 5", 4),
        (5, "subscribe", "a", "price = 5", 4),
        (7, "unsubscribe", "s1"),
        (6, "subscribe", "s1", "price = 6", 4),
    )
    assert hs.apply_changes(first, path).ignored == 2
    again = hs.apply_changes(first, path)
    assert (again.version, again.ignored, again.subscribed) == (2, 4, 0)
    late = hs.apply_changes(log(spark, (3, "unsubscribe", "a"), (4, "subscribe", "late", "price = 4", 4)), path)
    assert (late.ignored, late.subscribed, late.sequence) == (1, 1, 7)
    index = Index.open(path)
    assert index.where("a") == "price = 5"
    assert "late" in index
    assert "s1" not in index


def test_entries_older_than_the_memory_are_refused(spark: Any, path: str) -> None:
    hs.apply_changes(log(spark, (1000, "unsubscribe", "s1")), path, remember=100)
    report = hs.apply_changes(log(spark, (900, "unsubscribe", "s2"), (901, "unsubscribe", "s3")), path, remember=100)
    assert (report.too_late, report.unsubscribed) == (1, 1)
    assert "s2" in Index.open(path)


def test_the_build_may_include_a_part_of_the_log(spark: Any, tmp_path: Path) -> None:
    base = spark.createDataFrame([(1, "price = 1")], "id bigint, where string")
    hs.build(base, str(tmp_path), SCHEMA, sequence=10)
    entries = spark.createDataFrame(
        [(10, "unsubscribe", 1, None), (11, "subscribe", 2, "price = 2")],
        "sequence int, op string, id bigint, where string",
    )
    report = hs.apply_changes(entries, str(tmp_path))
    assert (report.ignored, report.subscribed) == (1, 1)
    assert sorted(Index.open(tmp_path)) == [1, 2]


def test_entries_that_do_not_fit(spark: Any, path: str) -> None:
    bad = log(
        spark,
        (1, "subscribe", "ok", "price = 1", 4),
        (2, "subscribe", "typo", "prise = 1", 4),
        (3, "delete", "s1"),
    )
    with pytest.raises(TableError, match=r"sequence 3: op 'delete' is none of subscribe, unsubscribe"):
        hs.apply_changes(bad, path)
    assert snapshot.current(path) == 1
    report = hs.apply_changes(bad, path, on_error="return")
    assert [sequence for sequence, _ in sorted(report.errors)] == [2, 3]
    assert "ok" in Index.open(path)
    assert "s1" in Index.open(path)
    with pytest.raises(TableError, match="the changes have no column 'sequence'"):
        hs.apply_changes(bad.drop("sequence"), path)
    with pytest.raises(TableError, match="ids of type string, the changes have int"):
        hs.apply_changes(bad.withColumn("id", bad.sequence), path)
    with pytest.raises(SnapshotError, match="there is none"):
        hs.apply_changes(bad, path + "/nowhere")


@pytest.mark.parametrize("together", only([False], [True, False]))
def test_entries_that_are_left_out_hide_no_others(spark: Any, path: str, together: bool) -> None:
    """The result does not depend on how a log is cut into batches."""
    entries: list[tuple[Any, ...]] = [
        (1, "subscribe", "a", "price = 1", 4),
        (2, "subscribe", "a", "prise = 2", 4),
        (3, "subscribe", "a", "price >", 4),
        (4, "delete", "a"),
        (5, "subscribe", "s1", "price = 5", 4),
        (6, "delete", "s1"),
        (7, "subscribe", None, "price = 7", 4),
        (7, "unsubscribe", "s2"),
        (8, "unsubscribe", None),
    ]
    batches = [entries] if together else [entries[:1], entries[1:3], entries[3:5], entries[5:]]
    reports = [hs.apply_changes(log(spark, *batch), path, on_error="return") for batch in batches]
    assert sorted(sequence for report in reports for sequence, _ in report.errors) == [2, 3, 4, 6, 7, 8]
    index = Index.open(path)
    assert (index.where("a"), index.where("s1"), "s2" in index) == ("price = 1", "price = 5", False)
    assert reports[-1].sequence == 7
    again = hs.apply_changes(log(spark, *entries), path, on_error="return")
    assert (again.version, again.subscribed, again.unsubscribed) == (reports[-1].version, 0, 0)


def test_columns_may_have_any_other_name(spark: Any, tmp_path: Path) -> None:
    """What hitbox counts beside the entries has its own names, and columns that are ignored need no order."""
    path, schema = str(tmp_path), {"price": "int", "count": Attribute("int", role="information")}
    hs.build(spark.createDataFrame([(1, "price > 1", 3)], "id long, where string, count int"), path, schema)
    entries = spark.sql(
        "SELECT 1 sequence, 'subscribe' op, 2L id, 'price > 1' where, 4 count, struct(map(1, 2) m, 3 `b.c`) meta, "
        "map(1, 2) `odd.name`, map(1, 2) `we``ird`, map(1, 2) `sp ace 'q'`"
    )
    with pytest.warns(UserWarning, match="are ignored"):
        assert hs.apply_changes(entries, path).subscribed == 1
    assert Index.open(path).about(2) == {"count": 4}


def test_only_the_parts_that_change_are_read_and_written(spark: Any, tmp_path: Path) -> None:
    """Files of the other parts are links; if one of them is damaged, the change does not even notice."""
    path = tmp_path / "s"
    hs.build(
        spark.createDataFrame([(n, n, n) for n in range(40)], "id long, a_low long, a_high long"), str(path), parts=4
    )
    (part,) = part_of(pa.array([7]), 4).tolist()
    other = next(n for n in range(4) if n != part)
    first = snapshot.facts_of(path, 1)
    damaged = path / "versions" / "00000001" / first["parts"][other] / "catalog.ids.npy"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    entries = spark.createDataFrame([(1, "unsubscribe", 7)], "sequence int, op string, id long")
    entries = entries.selectExpr("*", "id as a_low", "id as a_high")
    report = hs.apply_changes(entries, str(path))
    assert (report.version, report.unsubscribed) == (2, 1)
    second = snapshot.facts_of(path, 2)
    assert [one == two for one, two in zip(first["parts"], second["parts"], strict=True)] == [
        n != part for n in range(4)
    ]
    assert second["subscriptions"] == 39
    linked = path / "versions" / "00000002" / second["parts"][other] / "catalog.ids.npy"
    assert linked.stat().st_ino == damaged.stat().st_ino
    assert not (path / "versions" / "00000002" / "changes").exists()
    (index,) = Shards.open(path, 2, [part]).parts
    assert 7 not in index


def test_changes_on_a_store_fetch_only_what_they_change(
    spark: Any, s3: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HITBOX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(writer_lease, "SETTLE_SECONDS", 0.0)
    address = resolve(s3.address("bucket/s"))
    base = spark.createDataFrame([(f"s{n}", f"city = 'c{n}'") for n in range(30)], "id string, where string")
    hs.build(base, address, SCHEMA, parts=3)
    (part,) = part_of(pa.array(["new"]), 3).tolist()
    hs.apply_changes(log(spark, (1, "subscribe", "new", "city = 'b'", 4)), address)
    facts = snapshot_files.facts(address, 2)
    assert facts["subscriptions"] == 31
    whole = snapshot_files.local(address, 2, snapshot_files.identity(facts), [part])
    there = {file.name for file in snapshot.folder_of(whole, 2).iterdir() if file.is_dir()}
    assert there == {facts["parts"][part]}
    events = spark.createDataFrame([(1, 0, "b"), (2, 0, "c7")], "event_id int, price int, city string")
    found = {row.event_id: row.subscriptions for row in hs.match(events, address).collect()}
    assert found == {1: ["new"], 2: ["s7"]}


def test_labels_that_are_spread_again_move_all_parts(spark: Any, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(string_dictionary, "_fill", lambda labels, fresh: None)
    monkeypatch.setattr(string_dictionary, "MAX_GAP_SEARCHES", 0)
    names = snapshot.facts_of(path)["parts"]
    hs.apply_changes(log(spark, (1, "subscribe", "new", "city = 'bb' OR city > 'c9'", 4)), path)
    assert not set(names) & set(snapshot.facts_of(path)["parts"])
    index = Index.open(path)
    assert index.match({"city": "bb"}) == ["new"]
    assert sorted(index.match({"city": "c5"})) == ["s5"]
    assert sorted(index.match({"city": "d"})) == ["new"]


@pytest.mark.parametrize("seed", only([1], [1, 2]))
def test_any_split_of_a_log_ends_the_same(spark: Any, path: str, seed: int) -> None:
    rng = Random(seed)
    entries: list[tuple[Any, ...]] = []
    for sequence in range(1, 80):
        id = f"s{rng.randrange(30)}"
        if rng.random() < 0.4:
            entries.append((sequence, "unsubscribe", id))
        else:
            entries.append(
                (sequence, "subscribe", id, f"price = {sequence} OR city = 'w{sequence}'", rng.randrange(10))
            )
    state = {f"s{n}": f"price = {n} OR city = 'c{n}'" for n in range(20)}
    for _, op, id, *more in entries:
        if op == "subscribe":
            state[id] = more[0]
        else:
            state.pop(id, None)
    arrived = entries + rng.sample(entries, 20)
    rng.shuffle(arrived)
    for start in range(0, len(arrived), 33):
        hs.apply_changes(log(spark, *arrived[start : start + 33]), path)
    index = Index.open(path)
    assert {id: index.where(id) for id in index} == state
    assert index.match({"city": "w79"}) == [id for id, where in state.items() if "'w79'" in where]


def test_changes_at_once_are_all_applied(spark: Any, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reads the version that the one before it published, whoever comes first."""
    logs = [log(spark, (n, "subscribe", f"new{n}", f"price = {100 + n}", 4)) for n in range(1, 7)]
    with ThreadPoolExecutor(6) as pool:
        reports = list(pool.map(lambda entries: hs.apply_changes(entries, path, remember=1000), logs))
    versions = sorted(report.version for report in reports)
    assert versions == [2, 3, 4, 5, 6, 7]
    index = Index.open(path)
    assert len(index) == 26
    assert [index.match({"price": 100 + n}) for n in range(1, 7)] == [[f"new{n}"] for n in range(1, 7)]
    monkeypatch.setattr(writer_lock, "WAIT_SECONDS", 0.05)
    entered, go = threading.Event(), threading.Event()

    def hold() -> None:
        with snapshot.writing(path):
            entered.set()
            go.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert entered.wait(20)
    with pytest.raises(WriterConflict, match=r"process \d+ on .* is writing there"):
        hs.apply_changes(log(spark, (9, "unsubscribe", "s1")), path)
    go.set()
    holder.join(20)
    assert hs.apply_changes(log(spark, (9, "unsubscribe", "s1")), path).version == 8


def test_a_stream_of_changes(spark: Any, path: str, tmp_path: Path) -> None:
    folder, checkpoint = tmp_path / "log", str(tmp_path / "checkpoint")
    log(spark, (1, "unsubscribe", "s1"), (2, "subscribe", "n", "price = 7", 9)).write.parquet(str(folder / "1"))
    stream = spark.readStream.schema(log(spark).schema).parquet(f"{folder}/*")
    for _ in range(2):
        query = hs.apply_changes(stream, path, checkpoint=checkpoint, trigger={"availableNow": True})
        query.awaitTermination(120)
        assert query.exception() is None
    assert Index.open(path).match({"price": 7}) == ["n", "s7"]
    assert snapshot.current(path) == 2


def test_an_error_of_a_task_is_an_error_of_hitbox(spark: Any, path: str) -> None:
    """Not Spark's with a stack trace of the worker: the message says by itself what is wrong."""
    parts = sorted(Path(path, "versions", "00000001").glob("part-*"))
    for part in parts:
        file = part / "catalog.priority.npy"
        file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(SnapshotError, match=r"^(?s:.*)catalog\.priority\.npy(?s:.*)$") as caught:
        hs.apply_changes(log(spark, (1, "unsubscribe", "s1")), path)
    assert "Traceback" not in str(caught.value)
    assert snapshot.current(path) == 1
    mine = spark.range(3).selectExpr("id", "if(id = 2, raise_error('mine'), 'price > 1') AS where")
    with pytest.raises(Exception, match="mine") as other:
        hs.build(mine, path, SCHEMA)
    assert not isinstance(other.value, SnapshotError), "errors of the user's own query stay as they are"
