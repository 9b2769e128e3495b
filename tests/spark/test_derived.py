"""Snapshots with derived attributes, and open ones, through Spark: they match and change as an index does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hitbox import Index
from hitbox import spark as hs
from support.tiers import only

TEXTS = {
    1: "LOWER(s) = 'ab'",
    2: "s LIKE '%b'",
    3: "a > b",
    4: "ip IN NETWORK '10.0.0.0/8'",
    5: "a - b BETWEEN -3 AND 3 AND s ILIKE 'a%'",
}
ROWS = [(0, "AB", 3, 1, "10.1.1.1"), (1, "xb", 1, 3, "11.0.0.1"), (2, None, 5, None, None), (3, "aB", 2, 9, "10.0.0.9")]


def found(frame: Any) -> dict[int, list[int]]:
    return {row.event_id: sorted(row.subscriptions) for row in frame.collect()}


def matched(index: Index) -> dict[int, list[int]]:
    names = ("s", "a", "b", "ip")
    return {row[0]: sorted(map(int, index.match(dict(zip(names, row[1:], strict=True))))) for row in ROWS}


def test_match_and_apply_changes(spark: Any, tmp_path: Path) -> None:
    index = Index({"s": "string", "a": "int", "b": "int", "ip": "string"})
    for number, text in TEXTS.items():
        index.subscribe(number, text)
    path = str(tmp_path)
    index.save(path)
    events = spark.createDataFrame(ROWS, "event_id long, s string, a long, b long, ip string")
    assert found(hs.match(events, path)) == matched(index)
    log = [
        (1, "subscribe", 6, "LOWER(s) = 'xb' OR b > a"),
        (2, "unsubscribe", 4, None),
        (3, "subscribe", 2, "s = 'xb'"),
    ]
    hs.apply_changes(spark.createDataFrame(log, "sequence long, op string, id long, where string"), path)
    index.subscribe(6, log[0][3] or "")
    index.unsubscribe(4)
    index.subscribe(2, "s = 'xb'")
    assert found(hs.match(events, path)) == matched(index) == matched(Index.open(path))
    again = Index.open(path)
    assert [again._state.keys.derived[at - 4].text for at in again._state.use.used] == [
        "LOWER(s)",
        "COMPARE(a, b)",
        "a - b",
    ]


@pytest.mark.parametrize("from_files", only([False], [False, True]))
def test_build(spark: Any, tmp_path: Path, from_files: bool) -> None:
    """A build has the derived attributes that its predicates need, and then it matches as an index does."""
    schema = {"s": "string", "a": "int", "b": "int", "ip": "string"}
    index = Index(schema)
    for number, text in TEXTS.items():
        index.subscribe(number, text)
    path = str(tmp_path / "built")
    if from_files:
        table = str(tmp_path / "subscriptions.parquet")
        pq.write_table(pa.table({"id": list(TEXTS), "where": list(TEXTS.values())}), table)
        report = hs.build(table, path, schema, parts=2)
    else:
        frame = spark.createDataFrame(list(TEXTS.items()), "id long, where string").repartition(3)
        report = hs.build(frame, path, schema, parts=2)
    assert report.subscriptions == len(TEXTS)
    events = spark.createDataFrame(ROWS, "event_id long, s string, a long, b long, ip string")
    assert found(hs.match(events, path)) == matched(index) == matched(Index.open(path))
    built = Index.open(path)
    derived = {built._state.keys.derived[at - 4].text for at in built._state.use.used}
    assert derived == {"LOWER(s)", "REVERSE(s)", "COMPARE(a, b)", "ADDRESS(ip)", "a - b"}
    log = spark.createDataFrame(
        [(1, "subscribe", 6, "LENGTH(s) = 2")], "sequence long, op string, id long, where string"
    )
    hs.apply_changes(log, path)
    index.subscribe(6, "LENGTH(s) = 2")
    assert found(hs.match(events, path)) == matched(index)


def test_an_open_snapshot(spark: Any, tmp_path: Path) -> None:
    index = Index()
    for number, text in TEXTS.items():
        index.subscribe(number, text)
    index.save(str(tmp_path))
    events = spark.createDataFrame(ROWS, "event_id long, s string, a long, b long, ip string")
    assert found(hs.match(events, str(tmp_path))) == matched(index)
    subscriptions = spark.createDataFrame(list(TEXTS.items()), "id long, where string")
    hs.build(subscriptions, str(tmp_path / "built"))
    assert found(hs.match(events, str(tmp_path / "built"))) == matched(index)
