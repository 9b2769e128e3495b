"""build: a DataFrame of subscriptions, in either layout, to the next version of a snapshot, in parallel.

    executors   parse the predicates, gather their strings                       only if the schema has strings
    driver      one ordered dictionary per attribute              ──> draft
    executors   encode: rows -> boxes, shuffled by the part of the id
    executors   each part: catalog and matcher                     ──> draft/part-00003-5e3a
    driver      manifest, rename, CURRENT                          ──> versions/00000008

The driver never loads subscriptions, only distinct strings and one line per part. A build that fails or is killed
leaves the old version current; its draft is removed, by the next writer if need be.

Rows with one id fall on one part. Where `latest_by` names a column, the row with its largest value counts; otherwise
an id with two rows is an error, because rows of a DataFrame have no order that could decide.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from hitbox.encoding.keys import Keys
from hitbox.encoding.schema import Schema
from hitbox.errors import TableError, ValueProblem, counted
from hitbox.index import bulk_load
from hitbox.index.sharded import index_of, part_name, part_of, write_part
from hitbox.language import DEFAULT_LIMITS
from hitbox.matchers import resolve_name
from hitbox.spark import box_rows, snapshot_files
from hitbox.spark.column_names import report_ignored, subscription_columns
from hitbox.spark.columns import ID_TYPES, check_subscriptions, field_of, schema_of_bounds
from hitbox.spark.task_progress import show_progress
from hitbox.spark.worker_check import require_hitbox
from hitbox.storage import snapshot
from hitbox.storage.addresses import join, resolve
from hitbox.storage.retention import Keep, check_keep

SUBSCRIPTIONS_PER_PART = 1_000_000
MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class BuildReport:
    """What a build did. `rejected` rows are in the table at `report`; `never` counts those that can never match."""

    version: int
    subscriptions: int
    parts: int
    never: int
    rejected: int
    report: str | None
    ignored_columns: tuple[str, ...] = ()


def build(
    subscriptions: DataFrame,
    path: str,
    schema: Schema | Mapping[str, Any] | None = None,
    *,
    matcher: str = "auto",
    parts: int | None = None,
    latest_by: str | None = None,
    on_error: str = "raise",
    report: str | None = None,
    sequence: int = 0,
    keep: Keep | None = None,
    id_column: str | None = None,
    where_column: str | None = None,
) -> BuildReport:
    """Write the subscriptions as the next version of the snapshot at `path`, and make it the current one.

    The columns are id, where (or bounds like price_low and price_high), and optionally priority: 0 to 9, where 9 is the
    most urgent and 4 the default. Other columns beside `where` are ignored, with a warning.

    Parameters
    ----------
    schema: optional in the wide layout, where it follows from the columns
    parts: how many parts are built in parallel (default: one per million subscriptions)
    latest_by: the column that decides which of several rows with one id counts
    on_error: "raise" names the first bad rows; "return" writes them to a Parquet table at `report` and continues
    sequence: the last entry of the change log that these subscriptions include (see apply_changes)
    keep: which versions stay: the last 5, or those that were current in the last "7 days" (or a timedelta). It is
        remembered; if it was never given, the last two stay
    id_column, where_column: the columns that hold ids and predicates, if they have other names
    """
    path = resolve(path)
    check_keep(keep)
    report = resolve(report) if report else report
    subscriptions = subscription_columns(subscriptions, id_column, where_column)
    wanted, kind = _checked(subscriptions, path, schema, parts, latest_by, on_error, report)
    ignored = report_ignored(subscriptions, wanted, [latest_by])
    require_hitbox(subscriptions.sparkSession)
    if report:
        _clear(report)
    if parts is None:
        parts = max(1, -(-subscriptions.count() // SUBSCRIPTIONS_PER_PART))
    with show_progress("building", subscriptions.sparkSession), snapshot_files.draft(path) as place:
        keys = Keys(wanted)
        keys.admit(_strings(subscriptions.drop(latest_by) if latest_by else subscriptions, wanted))
        dictionaries = keys.arrays()
        with snapshot_files.filling(place) as folder:
            files = snapshot.add(folder, dictionaries)
        task = Task(place, wanted, tuple(dictionaries), kind, resolve_name(matcher), parts, latest_by, report)
        done = _run(subscriptions, task, kind)
        _refuse(done, on_error)
        done += [task.empty_part(number) for number in range(parts) if number not in {d["part"] for d in done}]
        done.sort(key=lambda d: int(d["part"]))
        for one in done:
            files |= one["files"]
        facts = task.facts(done) | {"sequence": sequence}
        version = snapshot_files.publish(path, place, facts, files, operation="build", keep=keep)
    subscribed, never, rejected = (sum(d[name] for d in done) for name in ("subscriptions", "never", "rejected"))
    return BuildReport(version, subscribed, parts, never, rejected, report if rejected else None, tuple(ignored))


def _checked(
    subscriptions: DataFrame,
    path: str,
    schema: Schema | Mapping[str, Any] | None,
    parts: int | None,
    latest_by: str | None,
    on_error: str,
    report: str | None,
) -> tuple[Schema, str]:
    """The schema and the kind of the ids; everything that can be wrong is found here, before work starts."""
    if on_error not in ("raise", "return"):
        raise ValueProblem(f"on_error is 'raise' or 'return', not {on_error!r}")
    if (on_error == "return") != (report is not None):
        raise ValueProblem("on_error='return' and report=, the path of the table for bad rows, go together")
    if parts is not None and (not isinstance(parts, int) or parts < 1):
        raise ValueProblem(f"parts is a whole number of at least 1, not {parts!r}")
    if latest_by:
        field_of(subscriptions, latest_by, "latest_by")
        subscriptions = subscriptions.drop(latest_by)
    if schema is None:
        schema = schema_of_bounds(subscriptions)
    schema = schema if isinstance(schema, Schema) else Schema(schema)
    kind = check_subscriptions(subscriptions, schema)
    snapshot_files.require_writable(path, "a snapshot")
    if report:
        snapshot_files.require_writable(report, "a report")
    return schema, kind


def _clear(report: str) -> None:
    """Remove the bad rows of an earlier build, and nothing that a build did not write."""
    for name in snapshot_files.names(report):
        if name.startswith("part-") and name.endswith(".parquet"):
            snapshot_files.remove(join(report, name))


def _strings(subscriptions: DataFrame, schema: Schema) -> dict[int, list[str]]:
    """The strings that need labels, by attribute: distinct over all partitions."""
    if not any(attribute.type == "string" for attribute in schema.values()):
        return {}

    def gather(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            draft = bulk_load.read(pa.Table.from_batches([batch]), schema, DEFAULT_LIMITS)
            found = draft.strings(schema)
            numbers = np.repeat(np.array(list(found), np.int32), [len(texts) for texts in found.values()])
            texts = pa.concat_arrays([pa.array([], pa.large_string()), *found.values()])
            columns = [pa.array(numbers), texts.cast(pa.string())]
            yield pa.RecordBatch.from_arrays(columns, ["attribute", "text"])

    found = subscriptions.mapInArrow(gather, "attribute int, text string").distinct().toArrow()
    numbers = found["attribute"].to_numpy()
    return {n: found["text"].filter(pa.array(numbers == n)).to_pylist() for n in np.unique(numbers).tolist()}


def _run(subscriptions: DataFrame, task: Task, kind: str) -> list[dict[str, Any]]:
    latest = task.latest_by and subscriptions.schema[task.latest_by].dataType

    def encode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return task.encode(batches)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return task.write(batches)

    order = ["part", "id", *(["latest"] if latest else [])]
    encoded = subscriptions.mapInArrow(encode, box_rows.schema(ID_TYPES[kind], latest))
    sorted_ = encoded.repartition(task.parts, "part").sortWithinPartitions(*[F.col(name) for name in order])
    done = sorted_.mapInArrow(write, T.StructType([T.StructField("done", T.StringType())]))
    return [json.loads(row.done) for row in done.collect()]


@dataclass(frozen=True)
class Task:
    """The part of a build that runs on executors; pickled to them."""

    place: str
    schema: Schema
    dictionaries: tuple[str, ...]
    kind: str
    matcher: str
    parts: int
    latest_by: str | None
    report: str | None

    def facts(self, done: list[dict[str, Any]]) -> dict[str, Any]:
        """The facts for the manifest."""
        return {
            "schema": self.schema.to_json(),
            "subscriptions": sum(d["subscriptions"] for d in done),
            "id_type": self.kind,
            "matcher": self.matcher,
            "parts": [d["name"] for d in done],
        }

    def encode(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Subscriptions -> rows of boxes; a row that does not fit carries its error instead."""
        keys = self._keys()
        for batch in batches:
            table = pa.Table.from_batches([batch])
            latest = table[self.latest_by] if self.latest_by else None
            draft = bulk_load.read(
                table.drop_columns([self.latest_by]) if self.latest_by else table, self.schema, DEFAULT_LIMITS
            )
            encoded = draft.encode(keys, DEFAULT_LIMITS)
            yield box_rows.pack(draft, encoded, part_of(draft.ids, self.parts), latest)

    def write(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rows sorted by part -> one part of the snapshot after the other; a line of JSON each."""
        for part, table in box_rows.by_part(batches):
            done = json.dumps(self._write_part(part, table))
            yield pa.RecordBatch.from_arrays([pa.array([done])], ["done"])

    def empty_part(self, part: int) -> dict[str, Any]:
        latest = T.LongType() if self.latest_by else None
        return self._write_part(part, box_rows.empty(ID_TYPES[self.kind], latest))

    def _write_part(self, part: int, table: pa.Table) -> dict[str, Any]:
        good, bad = box_rows.settle(table, self.latest_by is not None)
        facts: dict[str, Any] = {"part": part, "rejected": bad.num_rows}
        if bad.num_rows and self.report is None:
            return facts | {"errors": bad.slice(0, MAX_NAMED).to_pylist()}
        if bad.num_rows and self.report:
            with snapshot_files.filling(self.report) as folder:
                folder.mkdir(parents=True, exist_ok=True)
                pq.write_table(bad, folder / f"part-{part:05d}.parquet")
        encoded = box_rows.unpack(good)
        name = part_name(part)
        with snapshot_files.filling(self.place) as folder:
            files = write_part(folder, index_of(self._keys(), encoded, self.matcher), name)
        never = int((encoded.count == 0).sum())
        return facts | {"name": name, "files": files, "subscriptions": len(encoded.ids), "never": never}

    def _keys(self) -> Keys:
        files = [f"{name}.npy" for name in self.dictionaries]
        with snapshot_files.reading(self.place, files) as folder:
            arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in self.dictionaries}
            return Keys.from_arrays(self.schema, arrays)


def _refuse(done: list[dict[str, Any]], on_error: str) -> None:
    """The first few bad rows by their ids; nothing was published yet."""
    count = sum(d["rejected"] for d in done)
    if count and on_error == "raise":
        named = [error for d in done for error in d.get("errors", [])][:MAX_NAMED]
        lines = "\n".join(f"id {error['id']}: {error['error']}" for error in named)
        more = f"\n... and {count - len(named)} more" if count > len(named) else ""
        raise TableError(
            f"{counted(count, 'subscription does', 'subscriptions do')} not fit; nothing was built "
            f"(on_error='return' with report=PATH writes them to a table and continues):\n{lines}{more}"
        )
