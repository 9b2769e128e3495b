"""apply_changes with the change feeds of tables, in the shape in which Delta and Iceberg give them.

What the formats really give is in test_delta_and_iceberg.py.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from random import Random
from typing import Any

import pytest

from hitbox import Index
from hitbox import spark as hs
from hitbox.errors import HitboxWarning, TableError
from hitbox.spark.change_feeds import commit_order
from hitbox.storage import snapshot
from support.tiers import only

SCHEMA = {"price": "int"}
DELTA = "id string, where string, priority int, _change_type string, _commit_version long, _commit_timestamp timestamp"
ICEBERG = "id string, where string, _change_type string, _change_ordinal int, _commit_snapshot_id long"
COMMITS = "committed_at timestamp, snapshot_id long, parent_id long"
NOON = dt.datetime(2026, 1, 31, 12)


def delta(spark: Any, *rows: tuple[Any, ...]) -> Any:
    """Rows of (version, type, id, where)."""
    return spark.createDataFrame([(id, where, 4, kind, version, NOON) for version, kind, id, where in rows], DELTA)


def iceberg(spark: Any, *rows: tuple[Any, ...]) -> Any:
    """Rows of (ordinal, snapshot, type, id, where)."""
    return spark.createDataFrame([(id, where, kind, at, name) for at, name, kind, id, where in rows], ICEBERG)


def commits(spark: Any, *rows: tuple[int, int, int | None]) -> Any:
    """Rows of (seconds after noon, snapshot, parent)."""
    return spark.createDataFrame([(NOON + dt.timedelta(seconds=s), id, parent) for s, id, parent in rows], COMMITS)


def subscriptions(path: str) -> dict[Any, str]:
    index = Index.open(path)
    return {id: index.where(id) for id in index}


@pytest.fixture
def path(spark: Any, tmp_path: Path) -> str:
    base = spark.createDataFrame([(f"s{n}", f"price = {n}") for n in range(4)], "id string, where string")
    hs.build(base, str(tmp_path / "snapshot"), SCHEMA, parts=2)
    return str(tmp_path / "snapshot")


def test_a_feed_of_delta(spark: Any, path: str) -> None:
    feed = delta(
        spark,
        (2, "update_postimage", "s1", "price = 22"),  # rows come in no order
        (1, "insert", "new", "price = 11"),
        (2, "update_preimage", "s1", "price = 1"),
        (2, "delete", "s2", "price = 2"),
        (3, "update_preimage", "s3", "price = 3"),  # an update that changes the id
        (3, "update_postimage", "moved", "price = 3"),
        (3, "update_postimage", "new", "price = 33"),  # no preimage
    )
    report = hs.apply_changes(feed, path)
    assert (report.version, report.sequence, report.subscribed, report.unsubscribed) == (2, 3, 3, 2)
    expected = {"s0": "price = 0", "s1": "price = 22", "moved": "price = 3", "new": "price = 33"}
    assert subscriptions(path) == expected
    again = hs.apply_changes(feed, path)
    assert (again.version, again.subscribed, again.ignored) == (2, 0, 7)
    assert subscriptions(path) == expected


def test_a_feed_may_start_with_version_0(spark: Any, path: str, tmp_path: Path) -> None:
    """The first commit of a table has version 0; a snapshot that was built up to it says so."""
    feed = delta(spark, (0, "insert", "first", "price = 9"))
    assert hs.apply_changes(feed, path).subscribed == 1
    base = spark.createDataFrame([("first", "price = 8")], "id string, where string")
    hs.build(base, str(tmp_path / "other"), SCHEMA, sequence=0)
    assert hs.apply_changes(feed, str(tmp_path / "other")).ignored == 1


def test_old_and_new_rows_of_one_commit(spark: Any, path: str) -> None:
    """An overwrite deletes and inserts every row in one commit; what was inserted is in the table."""
    feed = delta(
        spark,
        (5, "insert", "s1", "price = 51"),
        (5, "delete", "s1", "price = 1"),
        (5, "delete", "s2", "price = 2"),
        (5, "delete", "zz", "price = 3"),
        (5, "insert", "zz", "price = 3"),
        (6, "insert", "s0", "price = 60"),
        (7, "delete", "s0", "price = 60"),
    )
    hs.apply_changes(feed, path)
    assert subscriptions(path) == {"s1": "price = 51", "s3": "price = 3", "zz": "price = 3"}


@pytest.mark.parametrize("seed", only([1], [1, 2]))
def test_any_split_and_order_of_commits_ends_the_same(spark: Any, path: str, seed: int) -> None:
    rng = Random(seed)
    state = {f"s{n}": f"price = {n}" for n in range(4)}
    by_commit: list[list[tuple[Any, ...]]] = []
    for version in range(1, 13):
        rows: list[tuple[Any, ...]] = []
        for id in rng.sample([f"s{n}" for n in range(9)], 4):
            old, new = state.pop(id, None), f"price = {rng.randrange(1000)}"
            if old is None:
                rows.append((version, "insert", id, new))
            elif rng.random() < 0.4:
                rows.append((version, "delete", id, old))
                continue
            elif rng.random() < 0.5:
                rows += [(version, "delete", id, old), (version, "insert", id, new)]
            else:
                rows += [(version, "update_preimage", id, old), (version, "update_postimage", id, new)]
            state[id] = new
        by_commit.append(rng.sample(rows, len(rows)))
    feeds = [by_commit[at : at + 4] for at in (0, 2, 4, 8, 7, 8, 0)]  # they overlap, and late ones come last
    for feed in feeds:
        hs.apply_changes(delta(spark, *[row for commit in feed for row in commit]), path)
    assert subscriptions(path) == state


def test_a_feed_of_iceberg(spark: Any, path: str) -> None:
    """Each view counts its ordinals from 0, and the ids of snapshots are random."""
    first = iceberg(
        spark,
        (0, 900, "INSERT", "new", "price = 9"),
        (1, 100, "DELETE", "s1", "price = 1"),
        (1, 100, "INSERT", "s1", "price = 10"),
        (1, 100, "UPDATE_BEFORE", "s2", "price = 2"),
        (1, 100, "UPDATE_AFTER", "s2", "price = 20"),
    )
    second = iceberg(spark, (0, 500, "DELETE", "new", "price = 9"), (0, 500, "INSERT", "s1", "price = 50"))
    times = commits(spark, (0, 900, None), (60, 100, 900), (90, 500, 100))
    hs.apply_changes(first, path, commits=times)
    assert subscriptions(path) == {
        "s0": "price = 0",
        "s1": "price = 10",
        "s2": "price = 20",
        "s3": "price = 3",
        "new": "price = 9",
    }
    hs.apply_changes(second, path, commits=times)
    expected = {"s0": "price = 0", "s1": "price = 50", "s2": "price = 20", "s3": "price = 3"}
    assert subscriptions(path) == expected
    for feed in (first, second, first):
        assert hs.apply_changes(feed, path, commits=times).version == 3
    assert subscriptions(path) == expected


def test_the_order_of_commits_follows_their_parents() -> None:
    """The second writer's clock is behind; a snapshot whose parent has expired keeps its time."""
    assert commit_order([(30, 20, 7), (20, 10, 5), (10, 1, 9), (40, 30, 50)]) == {10: 9, 20: 10, 30: 11, 40: 50}
    assert commit_order([]) == {}


def test_what_a_feed_says_of_other_columns(spark: Any, path: str) -> None:
    """Columns that no subscription has are ignored, whatever their type; ids and predicates may have other names."""
    feed = delta(spark, (1, "insert", "a", "price = 5"), (1, "insert", "a", "price = 5"))
    feed = feed.withColumnsRenamed({"id": "alert", "where": "rule"}).selectExpr("*", "map('k', rand()) AS tags")
    with pytest.warns(HitboxWarning, match="'tags' of the changes is ignored"):
        report = hs.apply_changes(feed, path, id_column="alert", where_column="rule")
    assert (report.subscribed, report.ignored) == (1, 1)


def test_feeds_of_bounds(spark: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "wide")
    base = spark.createDataFrame([(1, 5, 9)], "id long, price_low long, price_high long")
    hs.build(base, path)
    feed = spark.createDataFrame(
        [(1, 5, 9, "delete", 1), (2, 0, 3, "insert", 1)],
        "id long, price_low long, price_high long, _change_type string, _commit_version long",
    )
    hs.apply_changes(feed, path)
    assert Index.open(path).match({"price": 2}) == [2]
    assert list(Index.open(path)) == [2]


MISFITS: list[tuple[list[Any], str]] = [
    ([(1, "upsert", "a", "price = 1")], "sequence 1: _change_type 'upsert' is none of insert, update_postimage"),
    ([(1, None, "a", "price = 1")], "_change_type None is none of"),
    ([(1, None, "a", "price = 1"), (1, "insert", "a", "price = 1")], "_change_type None is none of"),
    ([(1, "insert", None, "price = 1")], "sequence 1: id is null"),
    ([(1, "insert", "a", None)], "sequence 1: the predicate is empty"),
    ([(1, "insert", "a", "prise = 1")], "sequence 1: .*prise"),
    ([(None, "insert", "a", "price = 1"), (2, "insert", "a", "price = 1")], "1 change has no sequence"),
    (
        [(1, "insert", "a", "price = 1"), (1, "insert", "a", "price = 2")],
        "sequence 1: id 'a' has two different rows: ids must be unique in the table",
    ),
]


@pytest.mark.parametrize(("rows", "says"), only(MISFITS[:1], MISFITS))
def test_rows_that_do_not_fit(spark: Any, path: str, rows: list[Any], says: str) -> None:
    feed = delta(spark, *rows, (1, "insert", "good", "price = 7"))
    with pytest.raises(TableError, match=says):
        hs.apply_changes(feed, path)
    assert snapshot.current(path) == 1
    if rows[0][0] is not None:
        report = hs.apply_changes(feed, path, on_error="return")
        assert (len(report.errors), report.subscribed) == (1, 1)
        assert "a" not in subscriptions(path)


def test_old_rows_need_not_fit(spark: Any, path: str) -> None:
    """Two old rows with one id are gone both, and a predicate that is not subscribed is not read."""
    feed = delta(spark, (1, "delete", "s1", "no predicate"), (1, "delete", "s1", None))
    assert hs.apply_changes(feed, path).unsubscribed == 1


def test_feeds_that_cannot_be_understood(spark: Any, path: str) -> None:
    feed = delta(spark, (1, "insert", "a", "price = 1"))
    view = iceberg(spark, (0, 1, "INSERT", "a", "price = 1"))
    for changes, more, says in [
        (
            feed.drop("_commit_version"),
            {},
            "'_commit_version' \\(Delta\\) or '_commit_snapshot_id' \\(Iceberg\\): keep",
        ),
        (
            feed.drop("_change_type"),
            {},
            "neither the columns of a log, 'sequence' and 'op', nor those of a change feed",
        ),
        (feed.selectExpr("*", "1 AS op"), {}, "'op', a column of a log, and '_change_type'.*: drop either"),
        (
            feed.withColumn("_change_type", feed._commit_version),
            {},
            "'_change_type' is a column of bigint, not of text",
        ),
        (
            feed.withColumn("_commit_version", feed._change_type),
            {},
            "'_commit_version' is a column of string, not of whole numbers",
        ),
        (feed, {"commits": commits(spark)}, "commits= belongs to the change feed of an Iceberg table"),
        (view, {}, r"give commits=spark.table\('CATALOG.DATABASE.TABLE.snapshots'\)"),
        (view, {"commits": feed}, "commits= has no column 'snapshot_id'"),
        (view, {"commits": commits(spark, (1, 77, None))}, "commits= does not have their snapshot"),
        (feed.withColumn("id", feed._commit_version), {}, "ids of type string, the changes have int"),
    ]:
        with pytest.raises(TableError, match=says):
            hs.apply_changes(changes, path, **more)
    assert snapshot.current(path) == 1


def test_a_stream_of_a_feed(spark: Any, path: str, tmp_path: Path) -> None:
    folder = tmp_path / "feed"
    feed = delta(
        spark, (1, "insert", "a", "price = 1"), (2, "delete", "a", "price = 1"), (2, "insert", "a", "price = 9")
    )
    feed.write.parquet(str(folder / "1"))
    stream = spark.readStream.schema(feed.schema).parquet(f"{folder}/*")
    query = hs.apply_changes(stream, path, checkpoint=str(tmp_path / "noted"), trigger={"availableNow": True})
    assert query.awaitTermination(120)
    assert query.exception() is None
    assert subscriptions(path)["a"] == "price = 9"


@pytest.mark.parametrize(
    ("folders", "says"), [(["_delta_log"], "is a Delta"), (["metadata", "data"], "like an Iceberg")]
)
def test_the_files_of_a_table_are_not_read_as_they_are(tmp_path: Path, folders: list[str], says: str) -> None:
    """They hold deleted rows, too."""
    for name in folders:
        (tmp_path / "alerts" / name).mkdir(parents=True)
    with pytest.raises(TableError, match=f"{says} table: give a DataFrame"):
        hs.build(str(tmp_path / "alerts"), str(tmp_path / "snapshot"), SCHEMA)
