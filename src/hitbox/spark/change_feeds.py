"""Change feeds of Delta and Iceberg tables, as a log for apply_changes.

              Delta (readChangeFeed)                Iceberg (create_changelog_view)            the log
    new row   _change_type insert, update_postimage  INSERT, UPDATE_AFTER                      op subscribe
    old row   _change_type delete, update_preimage   DELETE, UPDATE_BEFORE                     op unsubscribe
    order     _commit_version                        _commit_snapshot_id, a random number      sequence

A commit replaces old rows of a table by new ones, all at once. So if it has both for an id, the new one counts. An old
row alone means that the id is gone, also if it comes from an update that changed the id.

Iceberg's `_change_ordinal` counts from 0 in each view, so it orders nothing beyond that view. What lasts is the time
of a commit, which the metadata table `snapshots` knows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from hitbox.errors import TableError
from hitbox.spark.columns import field_of

TYPE, VERSION, SNAPSHOT = "_change_type", "_commit_version", "_commit_snapshot_id"
OTHERS = ("_commit_timestamp", "_change_ordinal")
NEW_ROWS = ("insert", "update_postimage", "update_after")
OLD_ROWS = ("delete", "update_preimage", "update_before")
COMMITS = ("snapshot_id", "parent_id", "committed_at")


def is_feed(changes: DataFrame) -> bool:
    """Whether these changes are the feed of a table, not a log."""
    return TYPE in changes.columns


def as_log(changes: DataFrame, commits: DataFrame | None) -> DataFrame:
    """The changes with `sequence` and `op` in place of the columns of a feed; a log is returned as it is.

    An `op` that is neither subscribe nor unsubscribe stays what it was.
    """
    feed = is_feed(changes)
    iceberg = feed and VERSION not in changes.columns
    if commits is not None and not iceberg:
        raise TableError("commits= belongs to the change feed of an Iceberg table; leave it out")
    if not feed:
        return changes
    both = [name for name in ("sequence", "op") if name in changes.columns]
    if both:
        raise TableError(
            f"the changes have {both[0]!r}, a column of a log, and {TYPE!r}, a column of a change feed: drop either"
        )
    _require(changes, TYPE, T.StringType, "text")
    if iceberg:
        changes = _ordered(changes, commits)
    else:
        _require(changes, VERSION, T.IntegralType, "whole numbers")
        changes = changes.withColumnRenamed(VERSION, "sequence")
    kind = F.lower(F.col(TYPE))
    op = F.when(kind.isin(*NEW_ROWS), "subscribe").when(kind.isin(*OLD_ROWS), "unsubscribe").otherwise(F.col(TYPE))
    return changes.withColumn("op", op).drop(TYPE, SNAPSHOT, *OTHERS)


def _ordered(feed: DataFrame, commits: DataFrame | None) -> DataFrame:
    if SNAPSHOT not in feed.columns:
        raise TableError(
            f"a change feed says in which order rows changed, with {VERSION!r} (Delta) or {SNAPSHOT!r} (Iceberg): keep "
            f"that column; columns: {', '.join(feed.columns[:10])}"
        )
    _require(feed, SNAPSHOT, T.IntegralType, "whole numbers")
    if commits is None:
        raise TableError(
            "the ids of Iceberg's snapshots have no order: give commits=spark.table('CATALOG.DATABASE.TABLE.snapshots')"
        )
    absent = [name for name in COMMITS if name not in commits.columns]
    if absent:
        raise TableError(
            f"commits= has no column {absent[0]!r}: give spark.table('CATALOG.DATABASE.TABLE.snapshots'); "
            f"columns: {', '.join(commits.columns[:10])}"
        )
    known = commits.select("snapshot_id", "parent_id", F.unix_millis("committed_at")).collect()
    rows = list(commit_order(known).items())
    order = feed.sparkSession.createDataFrame(rows, f"`{SNAPSHOT}` long, sequence long")
    return feed.join(F.broadcast(order), SNAPSHOT, "left")


def commit_order(commits: Iterable[Any]) -> dict[int, int]:
    """A number per snapshot from (id, parent, milliseconds): its time, or more if its parent's is not smaller.

    The clocks of two writers may differ, so the time alone would not do.
    """
    found = {id: (parent, time) for id, parent, time in commits}
    order: dict[int, int] = {}
    for id in found:
        line = []
        at: int | None = id
        while at is not None and at in found and at not in order:
            line.append(at)
            at = found[at][0]
        for one in reversed(line):
            parent, time = found[one]
            order[one] = max(time, order[parent] + 1) if parent in order else time
    return order


def _require(changes: DataFrame, name: str, kind: Any, said: str) -> None:
    found = field_of(changes, name, "the column").dataType
    if not isinstance(found, kind):
        raise TableError(f"column {name!r} is a column of {found.simpleString()}, not of {said}")
