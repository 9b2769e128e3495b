"""The versions of a snapshot: which there are, which was current when, what changed between two, and cleaning up.

    hs.versions(path)                       version, time, rows, operation, current
    hs.diff(path, 3, 5)                     a DataFrame: id, change, before, after
    hs.match(events, path, version=3)       or as_of="2026-01-31 12:00:00"
    hs.vacuum(path, keep="7 days")          remove what nobody can need

An id is in the same part of both versions as long as the number of parts is the same. Then `diff` compares part with
part, one task each, and leaves out the parts whose files are the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from hitbox.errors import SnapshotError
from hitbox.index.comparison import Content, Difference, differences
from hitbox.index.sharded import Shards
from hitbox.index.state import IndexState
from hitbox.spark import snapshot_files
from hitbox.spark.columns import ID_TYPES
from hitbox.spark.session import session
from hitbox.spark.task_errors import plainly
from hitbox.spark.worker_check import require_hitbox
from hitbox.storage import retention
from hitbox.storage.addresses import resolve, without_passwords
from hitbox.storage.retention import Keep, Moment
from hitbox.storage.snapshot import Vacuumed

ROWS_PER_BATCH = 10_000


class Version(NamedTuple):
    """A version of a snapshot. What an older hitbox did not record is None."""

    version: int
    time: datetime | None
    rows: int | None
    operation: str | None
    current: bool


def versions(path: str) -> list[Version]:
    """The versions that are there, oldest first. `spark.createDataFrame(hs.versions(path))` makes a table of them."""
    found = snapshot_files.history(resolve(path))
    return [
        Version(
            facts["version"],
            retention.time_of(facts),
            facts.get("subscriptions"),
            facts.get("operation"),
            facts is found[-1],
        )
        for facts in found
    ]


def chosen(path: str, version: int | None, as_of: Moment | None) -> int | None:
    """The version to match against; None for the current one."""
    if as_of is None:
        return version
    retention.check_choice(version, as_of)
    return retention.current_at(without_passwords(path), as_of, snapshot_files.history(path))


def vacuum(path: str, keep: Keep | None = None) -> Vacuumed:
    """Remove what nobody can need: old versions, drafts of writers that died, versions that were never finished.

    The current version stays, the versions that a stream has pinned, and those that `keep` covers.

    keep: which versions stay: the last 5, or those that were current in the last "7 days" (default: what was given
        when the current version was written). It holds for this call only.
    """
    retention.check_keep(keep)
    return snapshot_files.vacuum(resolve(path), keep)


def diff(path: str, a: int, b: int | None = None, *, spark: SparkSession | None = None) -> DataFrame:
    """The subscriptions that differ between versions `a` and `b` (default: the current one).

    Columns: id, change ("added", "removed" or "changed"), and before and after: where, priority and about (as JSON).
    """
    path = resolve(path)
    old, new = snapshot_files.facts(path, a), snapshot_files.facts(path, b)
    if old["id_type"] != new["id_type"]:
        raise SnapshotError(
            f"versions {a} and {new['version']} of the snapshot at {without_passwords(path)} cannot be compared: "
            f"their ids are of type {old['id_type']} and {new['id_type']}"
        )
    spark = spark or session()
    require_hitbox(spark)
    task = Comparison(path, Side.of(old), Side.of(new))
    numbers = spark.createDataFrame([(part,) for part in task.parts()], "part int")
    schema = T.StructType(
        [
            T.StructField("id", ID_TYPES[old["id_type"]]),
            T.StructField("change", T.StringType()),
            T.StructField("before", CONTENT),
            T.StructField("after", CONTENT),
        ]
    )

    def compare(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return task(batches)

    return numbers.repartition(max(1, len(task.parts()))).mapInArrow(plainly(compare), schema)


CONTENT = T.StructType(
    [
        T.StructField("where", T.StringType()),
        T.StructField("priority", T.IntegerType()),
        T.StructField("about", T.StringType()),
    ]
)
_ARROW_CONTENT = pa.struct([("where", pa.string()), ("priority", pa.int32()), ("about", pa.string())])


@dataclass(frozen=True)
class Side:
    """One of the two versions."""

    version: int
    identity: int
    files: tuple[tuple[str, ...], ...]
    """Of each part, the names and checksums of its files."""
    keys: str
    """The schema and the checksums of the dictionaries: where they are equal, keys mean the same."""

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Side:
        marks = {name: f"{facts['bytes']}/{facts['crc32c']}" for name, facts in facts["files"].items()}
        parts = facts.get("parts", [""])
        files = [sorted(_of_part(marks, part)) for part in parts]
        words = {name: mark for name, mark in marks.items() if name.startswith("dictionary")}
        keys = json.dumps([facts["schema"], facts.get("derived"), words], sort_keys=True)
        return cls(facts["version"], snapshot_files.identity(facts), tuple(map(tuple, files)), keys)


def _of_part(marks: Mapping[str, str], part: str) -> Iterator[str]:
    for name, mark in marks.items():
        folder, _, file = name.rpartition("/")
        if folder == part and file.startswith(("anchors.", "catalog.", "matcher.")):
            yield f"{file}:{mark}"


@dataclass(frozen=True)
class Comparison:
    """The part of `diff` that runs on executors; pickled to them."""

    path: str
    before: Side
    after: Side

    def parts(self) -> list[int]:
        """The numbers of the tasks: parts that may differ."""
        if not self._aligned():
            return list(range(max(len(self.before.files), len(self.after.files))))
        pairs = enumerate(zip(self.before.files, self.after.files, strict=True))
        same_keys = self.before.keys == self.after.keys
        return [number for number, (one, two) in pairs if one != two or not same_keys]

    def _aligned(self) -> bool:
        return len(self.before.files) == len(self.after.files)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for part in batch["part"].to_pylist():
                found = self._differences(part)
                while rows := list(islice(found, ROWS_PER_BATCH)):
                    yield _batch(rows)

    def _differences(self, part: int) -> Iterator[Difference]:
        same_keys = self.before.keys == self.after.keys
        aligned = self._aligned()
        before, after = (self._open(side, part if aligned else None) for side in (self.before, self.after))
        yield from differences(before, after, same_keys, None if aligned else part)

    def _open(self, side: Side, part: int | None) -> list[IndexState]:
        parts = None if part is None else [part]
        home = snapshot_files.local(self.path, side.version, side.identity, parts)
        shards = Shards.open(home, side.version, parts, verify=False)
        return [index.compacted() for index in shards.parts]


def _batch(rows: list[Difference]) -> pa.RecordBatch:
    ids = pa.array([row.id for row in rows])
    columns = [
        ids,
        pa.array([row.change for row in rows]),
        pa.array([_struct(row.before) for row in rows], _ARROW_CONTENT),
        pa.array([_struct(row.after) for row in rows], _ARROW_CONTENT),
    ]
    return pa.RecordBatch.from_arrays(columns, ["id", "change", "before", "after"])


def _struct(content: Content | None) -> dict[str, Any] | None:
    if content is None:
        return None
    about = json.dumps(content.about, default=str) if content.about else None
    return {"where": content.where, "priority": content.priority, "about": about}
