"""match: the same answers as Spark's own SQL and as the in-process index, in every form."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import types as T

from hitbox import Attribute, Index, workloads
from hitbox import spark as hs
from hitbox.errors import HitboxError, SchemaError, SnapshotError, TableError, ValueProblem
from hitbox.index import sharded
from hitbox.spark import match_task, part_match, snapshot_files, writer_lease
from hitbox.spark.columns import empty_table
from hitbox.spark.demo import join
from hitbox.spark.generate import Tables
from hitbox.storage import snapshot
from support.object_store import ObjectStore
from support.predicates import SCHEMA, random_event, random_predicate
from support.range_join import range_join
from support.tiers import only

SQL = {"int": "bigint", "float": "double", "string": "string", "bool": "boolean", "timestamp": "timestamp"}


def found(frame: Any) -> dict[int, list[Any]]:
    return {row.event_id: row.subscriptions for row in frame.collect()}


@pytest.fixture(scope="module")
def w1(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str, Index]:
    """(generated, snapshot in two parts, the same as one index)."""
    made = hs.generate("w1", 5000, 400, spark=spark, levels=10, width=0.7)
    path = str(tmp_path_factory.mktemp("w1"))
    hs.build(made.subscriptions, path, parts=2)
    return made, path, Index.open(path)


@pytest.mark.oldest
@pytest.mark.parametrize("seed", only([1], [1, 2]))
def test_predicates_select_what_spark_sql_selects(spark: Any, tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    names = list(SCHEMA)
    events = [(n, *random_event(rng, names).values()) for n in range(60)]
    columns = ", ".join(f"`{name}` {SQL[a.type]}" for name, a in SCHEMA.items())
    frame = spark.createDataFrame(events, f"event_id bigint, {columns}")
    texts = [random_predicate(rng, names, depth=2) for _ in range(120)]
    # Spark calls an escape before a plain letter an error, and compares whole numbers with 1e6 as doubles, inexactly.
    texts = [text for text in texts if "!a" not in text and not re.search(r"\d[eE]", text)]
    if spark.version.startswith("4.0."):  # there 'it''s' is its
        texts = [text for text in texts if "''" not in text]
    subscriptions = spark.createDataFrame(list(enumerate(texts)), "id bigint, where string")
    report = hs.build(subscriptions, str(tmp_path), SCHEMA, parts=2)
    assert report.subscriptions == len(texts)
    ours = found(hs.match(frame, str(tmp_path)))
    asked = [f"coalesce(({text}), false) as p{n}" for n, text in enumerate(texts)]
    for row in frame.selectExpr("event_id", *asked).collect():
        theirs = [n for n in range(len(texts)) if row[f"p{n}"]]
        assert sorted(ours[row.event_id]) == theirs


def random_bounds(rng: Random, values: list[Any]) -> tuple[Any, Any]:
    low, high = sorted(rng.choices(values, k=2))
    kind = rng.random()
    if kind < 0.4:
        return None, None
    return (None, high) if kind < 0.5 else (low, None) if kind < 0.6 else (low, high)


def test_bounds_of_every_type_equal_sparks_join(spark: Any) -> None:
    rng = Random(3)
    start = datetime(2026, 1, 1, tzinfo=UTC)
    values: dict[str, list[Any]] = {
        "i": list(range(-5, 6)),
        "x": [-1.5, -0.0, 0.0, 0.25, 3.0, 1e300],
        "s": ["", "a", "ab", "b", "é", "zz"],
        "b": [False, True],
        "t": [start + timedelta(seconds=n) for n in range(5)],
    }
    kinds = dict(zip(values, ["bigint", "double", "string", "boolean", "timestamp"], strict=True))
    wide = ", ".join(f"{name}_low {kind}, {name}_high {kind}" for name, kind in kinds.items())
    rows = [(n, *[end for pool in values.values() for end in random_bounds(rng, pool)]) for n in range(300)]
    subscriptions = spark.createDataFrame(rows, f"id bigint, {wide}")
    columns = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
    points = [(n, *[None if rng.random() < 0.2 else rng.choice(pool) for pool in values.values()]) for n in range(80)]
    events = spark.createDataFrame(points, f"event_id bigint, {columns}")
    ours = hs.match(events, subscriptions, form="pairs").collect()
    theirs = join(events, subscriptions, list(values)).select("event_id", "id").collect()
    assert sorted(map(tuple, ours)) == sorted(map(tuple, theirs))
    assert len(ours) > 100
    binned = range_join(events, subscriptions, list(values), "i", 4).select("event_id", "id").collect()
    assert sorted(map(tuple, binned)) == sorted(map(tuple, theirs))


@pytest.mark.parametrize("ends", [("bigint", "double"), ("double", "int"), ("decimal(4,2)", "int"), ("void", "double")])
def test_ends_of_two_types(spark: Any, tmp_path: Path, ends: tuple[str, str]) -> None:
    """A type is inferred that holds both: nothing is rounded."""
    low, high = ("NULL" if kind == "void" else "3.5" if "d" in kind else "3" for kind in ends)
    wide = spark.sql(f"SELECT 1 AS id, CAST({low} AS {ends[0]}) AS x_low, CAST({high} AS {ends[1]}) AS x_high")
    path = str(tmp_path / "snapshot")
    hs.build(wide if ends[1] == "double" else wide.selectExpr("id", "x_high AS x_low", "x_low AS x_high"), path)
    index = Index.open(path)
    assert index.schema["x"].type == "float"
    values = [3, 3.25, 3.5, 3.5000000000000004]
    assert [index.match({"x": value}) for value in values] == [[1], [1], [1], []]
    if ends[0] == "bigint":
        events = wide.selectExpr("id AS event_id", "struct(x_low AS low, x_high AS high) AS x", "x_low + 1 AS y_low")
        events = events.withColumn("y_high", events.y_low + 0.5)
        where = "x >= 3.4 AND x < 3.5001 AND y >= 4.25 AND y < 4.75"
        subscriptions = spark.createDataFrame([("a", where), ("b", "x > 3.5 OR y > 4.5")], "id string, where string")
        assert found(hs.match(events, subscriptions)) == {1: ["a"]}


def test_ends_of_types_that_no_attribute_holds(spark: Any, tmp_path: Path) -> None:
    for kinds in ("x_low int, x_high string", "x_low boolean, x_high double", "x_low void, x_high void"):
        with pytest.raises(SchemaError, match=r"the ends of the intervals in 'x_low' .*give a schema"):
            hs.build(spark.createDataFrame([], f"id int, {kinds}"), str(tmp_path))


def test_large_equals_the_index_in_this_process(w1: Any) -> None:
    made, path, index = w1
    events = made.events.toArrow()
    matches = index.match_batch(events)
    ours = found(hs.match(made.events, path))
    for row, event in enumerate(events["event_id"].to_pylist()):
        assert sorted(ours[event]) == sorted(matches[row])
        urgency = [index.priority(id) for id in ours[event]]
        assert urgency == sorted(urgency, reverse=True)


def test_forms_agree(w1: Any) -> None:
    made, path, index = w1
    events = made.events.limit(100)
    arrays = found(hs.match(events, path))
    pairs = hs.match(events, path, form="pairs", keep=["a1"])
    assert pairs.columns == ["event_id", "a1", "subscription", "snapshot_version"]
    rows = pairs.collect()
    assert sorted((r.event_id, r.subscription) for r in rows) == sorted(
        (e, s) for e, ids in arrays.items() for s in ids
    )
    counts = hs.match(events, path, form="counts").collect()
    assert {r.event_id: r.matches for r in counts} == {event: len(ids) for event, ids in arrays.items()}
    top = found(hs.match(events, path, limit=3))
    for event, ids in top.items():
        best = sorted((index.priority(id) for id in arrays[event]), reverse=True)[:3]
        assert [index.priority(id) for id in ids] == best


@pytest.mark.parametrize(
    ("form", "limit"), only([("arrays", 5)], [("arrays", None), ("arrays", 5), ("pairs", None), ("counts", None)])
)
def test_part_by_part_gives_the_same(w1: Any, form: str, limit: int | None) -> None:
    made, path, index = w1
    events = made.events.limit(50)
    plain = hs.match(events, path, form=form, limit=limit).collect()
    spread = hs.match(events, path, form=form, limit=limit, by_part=True).collect()
    if form == "arrays":
        assert {r.event_id: [index.priority(i) for i in r.subscriptions] for r in plain} == {
            r.event_id: [index.priority(i) for i in r.subscriptions] for r in spread
        }
        plain = [(r.event_id, len(r.subscriptions)) if limit else (r.event_id, sorted(r.subscriptions)) for r in plain]
        spread = [
            (r.event_id, len(r.subscriptions)) if limit else (r.event_id, sorted(r.subscriptions)) for r in spread
        ]
    assert sorted(map(tuple, plain)) == sorted(map(tuple, spread))


@pytest.mark.parametrize("ids", ["int", "long", "string"])
@pytest.mark.parametrize(
    ("form", "limit"), [("arrays", None), ("arrays", 5), ("pairs", 5), ("counts", None), ("counts", 5)]
)
def test_the_steps_of_a_match_by_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, limit: int | None, ids: str
) -> None:
    """Without Spark: blocks, pieces of different sizes in each part, and the merge, event by event."""
    monkeypatch.setattr(match_task, "MAX_BATCH_IDS", 600)
    monkeypatch.setattr(part_match, "MIN_PIECE_IDS", 1)
    tables = Tables(workloads.get("w1", n=400, width=0.9, levels=5))
    table = tables.subscriptions(0, 400)
    kind = "string" if ids == "string" else "int"
    if ids == "string":
        table = table.set_column(0, "id", table["id"].cast(pa.string()))
    if ids == "long":  # about half of them need more than four bytes
        table = table.set_column(0, "id", pc.multiply(table["id"], pa.scalar(10**7)))
    parts = 3
    with snapshot.draft(tmp_path) as draft:
        files = snapshot.add(draft, {})
        names = [sharded.part_name(n) for n in range(parts)]
        for number, name in enumerate(names):
            index = Index(tables.schema)
            belongs = sharded.part_of(table["id"].combine_chunks(), 2) == number  # none to the last part
            index.load(table.filter(pa.array(belongs)))
            files |= sharded.write_part(draft, index, name)
        facts = {"schema": tables.schema.to_json(), "subscriptions": 400, "id_type": kind, "matcher": "hitbox"}
        snapshot.publish(tmp_path, draft, facts | {"parts": names}, files)
    identity = snapshot_files.identity(snapshot_files.facts(str(tmp_path)))
    job = match_task.Job(str(tmp_path), 1, identity, tuple(tables.schema), ("event_id",), form, limit)
    work = part_match.PartMatch(job, parts, kind)
    events = tables.events(0, 90).to_batches(max_chunksize=40)
    blocks = list(work.blocks(iter([*events, events[0].slice(0, 0)])))
    assert [block.num_rows for block in blocks] == [1, 1, 1]
    pieces: list[dict[str, Any]] = []
    for part in range(parts):
        asked = [b.append_column("part", pa.array([part], pa.int32())) for b in blocks]
        pieces += [row for batch in work.match(iter(asked)) for row in batch.to_pylist()]
    assert len({(row["block"], row["first"]) for row in pieces}) > len(blocks)
    random.Random(1).shuffle(pieces)
    sent = [pa.RecordBatch.from_pylist(pieces[start : start + 7]) for start in range(0, len(pieces), 7)]
    ours = pa.Table.from_batches(list(work.merge(iter(sent))))
    plain = pa.Table.from_batches(list(job(iter(tables.events(0, 90).to_batches()))))
    levels = dict(zip(table["id"].to_pylist(), table["priority"].to_pylist(), strict=True))
    assert told(ours, form, limit, levels) == told(plain, form, limit, levels)
    with pytest.raises(HitboxError, match="did not see the same events"):
        list(work.merge(iter([pa.RecordBatch.from_pylist(pieces[:-1])])))


def told(table: pa.Table, form: str, limit: int | None, levels: dict[Any, int]) -> Any:
    """What must be equal: of a limited number of matches the priorities, otherwise the ids."""
    rows = table.to_pylist()
    if form == "counts":
        return rows
    if form == "pairs":
        return [(row["event_id"], levels[row["subscription"]]) for row in rows]
    ranks = [(row["event_id"], [levels[id] for id in row["subscriptions"]]) for row in rows]
    return ranks if limit else (ranks, [sorted(row["subscriptions"]) for row in rows])


@pytest.mark.parametrize("layout", ["wide", "where"])
def test_symmetric_events(spark: Any, tmp_path: Path, layout: str) -> None:
    parameters: dict[str, Any] = {"selectivity": 0.02, "m": 6, "information": 3, "width": 0.8}
    made = hs.generate("symmetric", 500, 60, spark=spark, layout=layout, **parameters)
    hs.build(made.subscriptions, str(tmp_path), made.schema)
    ours = found(hs.match(made.events, str(tmp_path), where="where"))
    tables = Tables(workloads.get("symmetric", n=500, **parameters))
    index = Index(tables.schema)
    index.load(tables.subscriptions(0, 500))
    events = tables.events(0, 60)
    matches = index.match_batch(events.drop_columns(["where"]), events["where"].to_pylist())
    assert {n: sorted(matches[n]) for n in range(60)} == {n: sorted(ids) for n, ids in ours.items()}
    assert len(matches.ids)


def test_subscriptions_as_a_frame_of_predicates(spark: Any) -> None:
    events = spark.createDataFrame([(1, 5.0, "Paris"), (2, 50.0, None)], "event_id int, price double, city string")
    subscriptions = spark.createDataFrame(
        [("cheap", "price < 10"), ("paris", "city = 'Paris'"), ("none", "city IS NULL")], "id string, where string"
    )
    assert {e: sorted(ids) for e, ids in found(hs.match(events, subscriptions)).items()} == {
        1: ["cheap", "paris"],
        2: ["none"],
    }


def test_nothing_to_match(spark: Any, w1: Any, tmp_path: Path) -> None:
    made, path, _ = w1
    assert hs.match(made.events.where("event_id < 0"), path).collect() == []
    report = hs.build(made.subscriptions.where("id < 0"), str(tmp_path))
    assert report.subscriptions == 0
    assert len(Index.open(tmp_path)) == 0
    assert set(map(len, found(hs.match(made.events.limit(5), str(tmp_path))).values())) == {0}


@pytest.mark.parametrize("remote", [False, True])
def test_a_snapshot_that_was_deleted_and_built_again(
    spark: Any, s3: ObjectStore, tmp_path: Path, remote: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins at version 1 again, which workers and caches knew as another one."""
    monkeypatch.setattr(writer_lease, "SETTLE_SECONDS", 0.0)
    path = s3.address("bucket/s", "s3a") if remote else str(tmp_path / "s")
    events = spark.createDataFrame([(1, 5)], "event_id int, a int")
    for low, ids in ((0, [7]), (6, []), (5, [7])):
        shutil.rmtree(tmp_path / "s", ignore_errors=True)
        s3.objects.clear()
        assert hs.build(spark.createDataFrame([(7, low, 9)], "id int, a_low int, a_high int"), path).version == 1
        assert found(hs.match(events, path)) == {1: ids}


def test_what_does_not_fit_is_said_before_work_starts(w1: Any, tmp_path: Path) -> None:
    made, path, _ = w1
    with pytest.raises(TableError, match=r"no column 'a3'.*allow_missing"):
        hs.match(made.events.drop("a3"), path)
    assert hs.match(made.events.drop("a3").limit(3), path, allow_missing=True).count() == 3
    with pytest.raises(TableError, match=r"'a3'.*string"):
        hs.match(made.events.withColumn("a3", made.events.a3.cast("string")), path)
    with pytest.raises(SnapshotError, match="there is none"):
        hs.match(made.events, str(tmp_path / "nowhere"))
    with pytest.raises(TableError, match="no column 'evnt_id'; did you mean 'event_id'"):
        hs.match(made.events, path, "evnt_id")
    with pytest.raises(ValueProblem, match="did you mean 'arrays'"):
        hs.match(made.events, path, form="array")
    with pytest.raises(SnapshotError, match=r"version 99.*it is gone; versions there: 1 \(current\)"):
        hs.match(made.events, path, version=99)


def test_output_is_cut_into_bounded_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Spark: events that match everything, and the batches that the partition function hands out."""
    index = Index({"a": "int"})
    index.load(pa.table({"id": np.arange(20_000), "a_low": np.zeros(20_000, np.int64), "a_high": np.full(20_000, 9)}))
    index.save(tmp_path)
    monkeypatch.setattr(match_task, "MAX_BATCH_IDS", 100_000)
    events = pa.RecordBatch.from_pydict({"event_id": np.arange(300), "a": np.arange(300) % 12})
    for form in ("arrays", "pairs"):
        job = match_task.Job(
            str(tmp_path), 1, snapshot_files.identity(snapshot_files.facts(str(tmp_path))), ("a",), ("event_id",), form
        )
        batches = list(job(iter([events])))
        if form == "arrays":
            sizes = [len(batch.column("subscriptions").flatten()) for batch in batches]
            assert sum(batch.num_rows for batch in batches) == 300
        else:
            sizes = [batch.num_rows for batch in batches]
        assert sum(sizes) == 250 * 20_000
        assert max(sizes) <= 100_000


@pytest.mark.parametrize("lengths", [[1000] * 300, [100_000] + [1] * 299])
def test_pairs_copy_kept_columns_in_bounded_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lengths: list[int]
) -> None:
    """Without Spark: a long text of an event is there once per match."""
    index = Index({"a": "int"})
    for id in range(50):
        index.subscribe(id, "a >= 0")
    index.save(tmp_path)
    monkeypatch.setattr(match_task, "MAX_BATCH_BYTES", 500_000)
    texts = ["x" * length for length in lengths]
    events = pa.RecordBatch.from_pydict({"text": texts, "a": np.arange(300), "tags": [["t"]] * 300})
    identity = snapshot_files.identity(snapshot_files.facts(str(tmp_path)))
    job = match_task.Job(str(tmp_path), 1, identity, ("a",), ("a", "text", "tags"), "pairs")
    batches = list(job(iter([events])))
    assert max(batch.get_total_buffer_size() for batch in batches) < 1_500_000
    found = pa.Table.from_batches(batches)
    assert found["text"].to_pylist() == [text for text in texts for _ in range(50)]
    assert sorted(zip(*found.select(["a", "subscription"]).to_pydict().values(), strict=True)) == [
        (event, id) for event in range(300) for id in range(50)
    ]


MEMORY = """
import resource, sys
import numpy as np, pyarrow as pa
from hitbox import Index
from hitbox.spark import match_task, snapshot_files

count, events = 100_000, int(sys.argv[2])
index = Index({"a": "int"})
index.load(pa.table({"id": np.arange(count), "a_low": np.zeros(count, np.int64), "a_high": np.full(count, 9)}))
index.save(sys.argv[1])
del index
few = np.where(np.arange(events) < events // 2, 99, 5)  # half of them match nothing, then all match everything
batch = pa.RecordBatch.from_pydict({"event_id": np.arange(events), "a": few})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
total = 0
job = match_task.Job(sys.argv[1], 1, snapshot_files.identity(snapshot_files.facts(sys.argv[1])), ("a",), ("event_id",))
for out in job(iter([batch])):
    total += len(out.column("subscriptions").flatten())
assert total == (events - events // 2) * count, total
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_memory_stays_bounded_when_events_match_a_hundred_thousand(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MEMORY, str(tmp_path), "10000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) < 1500  # MB; the ids of the batch are 4,000 MB


def test_a_bad_event_is_named(spark: Any, tmp_path: Path) -> None:
    hs.build(spark.createDataFrame([(1, 0, 9)], "id int, a_low int, a_high int"), str(tmp_path))
    events = spark.createDataFrame([(7, 1, 2), (8, 5, 3)], "event_id int, a_low int, a_high int")
    with pytest.raises(Exception, match=r"interval on 'a' has its ends swapped.*event_id = 8"):
        hs.match(events, str(tmp_path)).collect()


def test_predicates_of_events_are_texts_and_kept_columns_a_list(spark: Any, tmp_path: Path) -> None:
    index = Index({"a": "int", "age": Attribute("int", role="information")})
    index.subscribe(1, "a > 0", about={"age": 3})
    index.save(tmp_path)
    events = spark.createDataFrame([(1, 5, 3)], "event_id int, a int, user int")
    with pytest.raises(TableError, match="the predicates of the events, 'user', are texts, not int"):
        hs.match(events, str(tmp_path), where="user")
    with pytest.raises(TableError, match=r"keep is a list of columns: keep=\['user'\]"):
        hs.match(events, str(tmp_path), keep="user")
    with pytest.raises(TableError, match=r"has 'a': .* rename the column \(withColumnRenamed\('A_low', 'a_low'\)\)"):
        hs.match(events.selectExpr("event_id", "a AS A_low", "a AS A_high"), str(tmp_path), allow_missing=True)
    broken = events.selectExpr("event_id", "a", "cast(X'41FF' AS string) AS asks")
    with pytest.raises(Exception, match=r"predicate of an event holds .* not UTF-8 \(event_id = 1\)"):
        hs.match(broken, str(tmp_path), where="asks").collect()


def test_events_that_come_in_another_order_when_a_task_is_repeated(spark: Any, tmp_path: Path) -> None:
    """Spark lost the blocks of a task after one part was matched; the second time they are read in another order."""
    path = str(tmp_path)
    rows = spark.range(20).selectExpr("id", "concat('a <= ', id) AS where")
    hs.build(rows, path, {"a": "int"}, parts=2)
    facts = snapshot_files.facts(path)
    job = match_task.Job(path, 1, snapshot_files.identity(facts), ("a",), ("a",))
    work = part_match.PartMatch(job, 2, "int")

    def pieces(values: list[int | None], part: int) -> list[pa.RecordBatch]:
        (block,) = work.blocks(iter([pa.RecordBatch.from_pydict({"a": pa.array(values, pa.int64())})]))
        copy = block.append_column("part", pa.array([part], pa.int32()))
        return list(work.match(iter([copy])))

    first, second = pieces([3, None, 5], 0), pieces([3, None, 5], 1)
    found = pa.Table.from_batches(work.merge(iter([*first, *second]))).to_pylist()
    assert {row["a"]: sorted(row["subscriptions"]) for row in found} == {
        3: list(range(3, 20)),
        None: [],
        5: list(range(5, 20)),
    }
    for other in ([5, None, 3], [3, 5, None]):
        with pytest.raises(HitboxError, match="came in another order when Spark repeated a task"):
            list(work.merge(iter([*first, *pieces(other, 1)])))


@pytest.mark.parametrize("by_part", only([True], [False, True]))
def test_events_without_ids(spark: Any, tmp_path: Path, by_part: bool) -> None:
    hs.build(spark.range(30).selectExpr("id", "concat('a <= ', id) AS where"), str(tmp_path), {"a": "int"}, parts=2)
    events = spark.range(10).selectExpr("id AS a")
    counted = {"arrays": "sum(size(subscriptions))", "pairs": "count(subscription)", "counts": "sum(matches)"}
    for form, count in counted.items():
        found = hs.match(events, str(tmp_path), None, form=form, by_part=by_part)
        assert found.selectExpr(count).first()[0] == sum(30 - n for n in range(10))


def test_kept_columns_may_have_any_other_name(spark: Any, tmp_path: Path) -> None:
    """Also those that a result has between two tasks."""
    hs.build(spark.range(9).selectExpr("id", "concat('a <= ', id) AS where"), str(tmp_path), {"a": "int"}, parts=2)
    names = ["_counts", "_ids", "_levels", "result", "found", "c0"]
    events = spark.range(4).selectExpr("id AS a", *[f"-id AS {name}" for name in names])
    for form in ("arrays", "counts"):
        rows = hs.match(events, str(tmp_path), "a", form=form, keep=names, by_part=True).collect()
        assert {row.a: {row[name] for name in names} for row in rows} == {n: {-n} for n in range(4)}


def test_types_that_arrow_does_not_have() -> None:
    """An empty list of SQL, `array()`, holds values of no type, none of which may be null: Arrow refuses that."""
    inside = T.StructType([T.StructField("x", T.NullType(), False)])
    kinds = [T.ArrayType(T.NullType(), False), T.ArrayType(T.ArrayType(T.NullType(), False)), inside]
    table = empty_table([T.StructField(f"c{number}", kind, False) for number, kind in enumerate(kinds)])
    assert table.schema.types == [pa.list_(pa.null()), pa.binary(), pa.binary()]
