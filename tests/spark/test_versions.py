"""The versions of a snapshot through Spark: listed, matched against, compared, removed."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hitbox import Index
from hitbox import spark as hs
from hitbox.errors import SnapshotError, TableError
from hitbox.spark import cli
from hitbox.storage import retention

SCHEMA = {"a": "int", "s": "string"}
EVENTS = [(1, 1, "x"), (2, 5, "y"), (3, 9, "z")]


@pytest.fixture(scope="module")
def path(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Four versions: built, changed, built again with more parts, saved by the library."""
    place = str(tmp_path_factory.mktemp("versions") / "ads")
    rows = [(id, f"a > {id % 7}", id % 3) for id in range(40)]
    frame = spark.createDataFrame(rows, "id long, where string, priority int")
    hs.build(frame, place, SCHEMA, parts=2, keep="7 days")
    log = [
        (1, "unsubscribe", 3, None, None),
        (2, "subscribe", 5, "s = 'z'", 4),
        (3, "subscribe", 6, "a > 6", 0),  # as it was
        (4, "subscribe", 100, "s = 'x'", 9),
    ]
    hs.apply_changes(spark.createDataFrame(log, "sequence long, op string, id long, where string, priority int"), place)
    index = Index.open(place)
    changed = [(id, index.where(id), index.priority(id)) for id in index if id != 7]
    hs.build(spark.createDataFrame(changed, "id long, where string, priority int"), place, SCHEMA, parts=3)
    index.save(place)
    return place


def events(spark: Any) -> Any:
    return spark.createDataFrame(EVENTS, "event_id long, a long, s string")


def test_versions(spark: Any, path: str) -> None:
    found = hs.versions(path)
    assert [one.version for one in found] == [1, 2, 3, 4]
    assert [one.operation for one in found] == ["build", "apply_changes", "build", "save"]
    assert [one.rows for one in found] == [40, 40, 39, 40]
    assert [one.current for one in found] == [False, False, False, True]
    times = [one.time for one in found]
    assert times == sorted(times)
    assert spark.createDataFrame(found).columns == ["version", "time", "rows", "operation", "current"]


def answers(frame: Any) -> tuple[set[int], dict[int, list[int]]]:
    rows = frame.collect()
    return {row.snapshot_version for row in rows}, {row.event_id: sorted(row.subscriptions) for row in rows}


def test_a_match_travels_in_time(spark: Any, path: str) -> None:
    for one in hs.versions(path):
        index = Index.open(path, one.version)
        expected = {id: sorted(index.match({"a": a, "s": s})) for id, a, s in EVENTS}
        assert answers(hs.match(events(spark), path, version=one.version)) == ({one.version}, expected)
        assert answers(hs.match(events(spark), path, as_of=one.time)) == ({one.version}, expected)
    assert answers(hs.match(events(spark), path))[0] == {4}
    assert answers(hs.match(events(spark), path, by_part=True, version=3))[0] == {3}
    with pytest.raises(SnapshotError, match="cannot say which version"):
        hs.match(events(spark), path, as_of=datetime.now(UTC) - timedelta(days=1))
    with pytest.raises(SnapshotError, match="not both"):
        hs.match(events(spark), path, version=1, as_of=datetime.now(UTC))
    with pytest.raises(TableError, match="'snapshot_version', which is the name of a result: rename it"):
        hs.match(events(spark).withColumnRenamed("event_id", "snapshot_version"), path, "snapshot_version")


def test_diff(spark: Any, path: str) -> None:
    rows = hs.diff(path, 1, 2).collect()
    found = {row.id: (row.change, row.before and row.before["where"], row.after and row.after["where"]) for row in rows}
    assert found == {
        3: ("removed", "a > 3", None),
        5: ("changed", "a > 5", "s = 'z'"),
        100: ("added", None, "s = 'x'"),
    }
    changed = next(row for row in rows if row.id == 5)
    assert (changed.before["priority"], changed.after["priority"], changed.after["about"]) == (2, 4, None)
    backwards = {(row.id, row.change) for row in hs.diff(path, 2, 1).collect()}
    assert backwards == {(3, "added"), (5, "changed"), (100, "removed")}
    assert [(row.id, row.change) for row in hs.diff(path, 2, 3).collect()] == [(7, "removed")], "two parts to three"
    assert {(row.id, row.change) for row in hs.diff(path, 3).collect()} == {(7, "added")}, "three parts to one"
    assert hs.diff(path, 2, 2).count() == 0
    with pytest.raises(SnapshotError, match=r"version 9 .* versions there: 1, 2, 3, 4 \(current\)"):
        hs.diff(path, 9)


def test_parts_that_did_not_change_are_not_opened(path: str) -> None:
    from hitbox.spark import snapshot_files
    from hitbox.spark.versions import Comparison, Side

    one = Side.of(snapshot_files.facts(path, 1))
    assert Comparison(path, one, one).parts() == []
    first = Side(2, 0, (("other",), one.files[1]), one.keys)
    assert Comparison(path, one, first).parts() == [0]
    assert Comparison(path, one, Side(2, 0, one.files, "other dictionaries")).parts() == [0, 1]


def test_the_command_line(spark: Any, path: str, tmp_path: Path) -> None:
    def run(*words: str) -> str:
        done = CliRunner().invoke(cli.app, list(words))
        assert done.exit_code == 0, done.output
        return done.stdout

    rows = json.loads(run("versions", path, "--json"))
    assert [row["operation"] for row in rows] == ["build", "apply_changes", "build", "save"]
    assert "apply_changes" in run("versions", path)
    facts = json.loads(run("diff", path, "1", "2", "--out", str(tmp_path / "diff"), "--json"))
    assert (facts["added"], facts["removed"], facts["changed"]) == (1, 1, 1)
    assert {row["id"] for row in facts["subscriptions"]} == {3, 5, 100}
    assert spark.read.parquet(str(tmp_path / "diff")).count() == 3
    shown = run("diff", path, "1", "2")
    assert "s = 'z' 4" in shown
    assert json.loads(run("vacuum", path, "--json")) == {"versions_removed": [], "files_removed": 0, "bytes_freed": 0}


def test_vacuum(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = str(tmp_path / "ads")
    index = Index(SCHEMA)
    for mark in range(4):
        index.subscribe(mark, "a > 0")
        index.save(place, keep="1 hour")
    assert hs.vacuum(place).versions == []
    late = datetime.now(UTC) + timedelta(hours=2)
    monkeypatch.setattr(retention, "now", lambda: late)
    assert hs.vacuum(place).versions == [1, 2, 3]
    with pytest.raises(SnapshotError, match="keep is a number of versions"):
        hs.vacuum(place, keep="soon")
