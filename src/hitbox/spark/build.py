"""build: a table of subscriptions, in either layout, to the next version of a snapshot, in parallel.

    executors   look at some predicates: which functions of attributes are worth keys of their own
    executors   read the subscriptions, encode them as boxes       ──> draft/boxes/5e3a.boxes, 5e3a.strings
    driver      one ordered dictionary per attribute               ──> draft
    executors   each part: its boxes, catalog and matcher          ──> draft/part-00003-5e3a
    driver      manifest, rename, CURRENT                          ──> versions/00000008

Spark passes the rows of a DataFrame to the first step; the files of a Parquet table are read by the tasks themselves.
Between the two steps are files (box_files.py), not rows of Spark: it would sort and convert them one by one. The driver
never loads subscriptions, only distinct strings and one line per file and part. A build that fails or is killed leaves
the old version current; its draft is removed, by the next writer if need be. A task that runs twice writes files with
other names; the version consists of those of the attempt that Spark reports.

Rows with one id fall on one part. Where `latest_by` names a column, the row with its largest value counts, and of equal
values the largest row. Otherwise an id with two rows is an error, because rows of a DataFrame have no order.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Row, SparkSession

from hitbox.encoding.arrays import Space
from hitbox.encoding.fitting import check_on_error
from hitbox.encoding.keys import Keys
from hitbox.encoding.schema import MAX_ATTRIBUTES, OpenSchema, Schema
from hitbox.errors import TableError, ValueProblem, counted
from hitbox.index.load import bulk_load
from hitbox.index.sharded import index_of, part_name, write_part
from hitbox.language import DEFAULT_LIMITS, parse
from hitbox.language.boxes.derived import derived_from_json
from hitbox.matchers import make, resolve_name
from hitbox.spark import box_files, parquet_table, snapshot_files
from hitbox.spark.column_names import numbered_columns, report_ignored, subscription_columns, without_columns
from hitbox.spark.columns import (
    check_subscriptions,
    empty_table,
    field_of,
    require_frame,
    require_whole,
    schema_of_bounds,
    without,
)
from hitbox.spark.parquet_table import ParquetTable
from hitbox.spark.session import session
from hitbox.spark.task_errors import raised_again
from hitbox.spark.task_progress import job_description, show_progress
from hitbox.spark.worker_check import require_hitbox
from hitbox.storage import snapshot
from hitbox.storage.addresses import join, resolve, without_passwords
from hitbox.storage.retention import Keep, check_keep

LARGEST_PART = 1_400_000
"""Subscriptions per part where the caller does not say how many parts; parts are halved, so they hold 0.7 to 1.4M."""
BUCKETS = 64
"""Into how many buckets ids are cut while the number of parts is not known: it is 1, 2, 4, ... or BUCKETS."""
CHUNK_ROWS, CHUNK_BYTES = 200_000, 2**27
"""Subscriptions that a task encodes at a time."""
SAMPLED = 1_000
"""Predicates of each partition that decide which derived attributes the snapshot has."""
DRAINED = 50
"""Batches of rows that cost less to read than a new worker costs to start."""
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
    subscriptions: DataFrame | str,
    path: str,
    schema: Schema | Mapping[str, Any] | None = None,
    *,
    matcher: str = "auto",
    compact: bool = False,
    parts: int | None = None,
    latest_by: str | None = None,
    on_error: str = "raise",
    report: str | None = None,
    sequence: int | None = None,
    keep: Keep | None = None,
    id_column: str | None = None,
    where_column: str | None = None,
) -> BuildReport:
    """Write the subscriptions as the next version of the snapshot at `path`, and make it the current one.

    The columns are id, where (or bounds like price_low and price_high), and optionally priority: 0 to 9, where 9 is the
    most urgent and 4 the default. Other columns beside `where` are ignored, with a warning.

    Parameters
    ----------
    subscriptions: a DataFrame, or the path of a Parquet table, which tasks read without Spark: several times faster
    schema: without it types follow from the columns of the wide layout, or from predicates; with it, many times quicker
    compact: smaller parts, which may take longer to match (see docs/performance.md); later changes keep it
    parts: how many parts are built in parallel (default: a power of two, with at most 1.4 million subscriptions each)
    latest_by: the column that decides which of several rows with one id counts
    on_error: "raise" names the first bad rows; "return" writes them to a Parquet table at `report` and continues
    sequence: the last entry of the change log that these subscriptions include (see apply_changes)
    keep: which versions stay, like 5 or "7 days" (or a timedelta); remembered, and the last two if never given
    id_column, where_column: the columns that hold ids and predicates, if they have other names
    """
    path = resolve(path)
    check_keep(keep)
    require_whole(sequence, "sequence", -1)
    options = {"compact": compact} if compact is not False else {}
    make(matcher, Space.of(1), **options)  # refuses what it does not have before anything is read
    report = resolve(report) if report else report
    if isinstance(subscriptions, str | os.PathLike):
        table = ParquetTable.open(os.fspath(subscriptions))
    else:
        require_frame(subscriptions, "subscriptions", " or the path of a Parquet table")
        table = subscriptions
        if table.isStreaming:
            raise TableError("subscriptions are a table, not a stream; apply_changes takes a stream of changes")
    spark = table.sparkSession if isinstance(table, DataFrame) else session()
    table = subscription_columns(table, id_column, where_column)
    wanted, kind = _checked(table, path, schema, parts, latest_by, on_error, report)
    ignored = report_ignored(table, wanted, [latest_by])
    table = without_columns(table, ignored)
    require_hitbox(spark)
    if report:
        parquet_table.remove_files(report)
    with (
        show_progress("building", spark),
        snapshot_files.draft(path) as place,
        job_description(spark, f"hitbox: build {without_passwords(path)}"),
    ):
        task = Task(place, wanted, kind, resolve_name(matcher), parts or BUCKETS, _type_of(table, latest_by))
        task = replace(task, latest_by=latest_by, report=report, options=options)
        task = replace(task, derived=_derived(spark, table, task))
        snapshot_files.make_folder(task.boxes)
        chunks = _encoded(spark, table, task)
        parts = parts or _parts(sum(rows for _, rows in chunks))
        names = [name for name, _ in chunks]
        dictionaries = box_files.label(task.boxes, names, task.keys()).arrays()
        with snapshot_files.filling(place) as folder:
            files = snapshot.add(folder, dictionaries)
        done = _written(spark, replace(task, parts=parts, names=tuple(names)))
        _refuse(done, on_error)
        for one in done:
            files |= one["files"]
        snapshot_files.remove(task.boxes)
        facts = task.facts(done) | ({} if sequence is None else {"sequence": sequence})
        version = snapshot_files.publish(path, place, facts, files, operation="build", keep=keep)
    subscribed, never, rejected = (sum(d[name] for d in done) for name in ("subscriptions", "never", "rejected"))
    return BuildReport(version, subscribed, parts, never, rejected, report if rejected else None, tuple(ignored))


def _checked(
    table: DataFrame | ParquetTable,
    path: str,
    schema: Schema | Mapping[str, Any] | None,
    parts: int | None,
    latest_by: str | None,
    on_error: str,
    report: str | None,
) -> tuple[Schema, str]:
    """The schema and the kind of the ids; everything that can be wrong is found here, before work starts."""
    check_on_error(on_error)
    if (on_error == "return") != (report is not None):
        raise ValueProblem("on_error='return' and report=, the path of the table for bad rows, go together")
    require_whole(parts, "parts", 1)
    if latest_by and pa.types.is_nested(_type_of(table, latest_by)):
        raise TableError(f"latest_by: the values of column {latest_by!r} have no order; give a number or a time")
    if schema is None:
        schema = OpenSchema() if "where" in table.columns else schema_of_bounds(without(table.schema, latest_by))
    schema = schema if isinstance(schema, Schema) else Schema(schema)
    kind = check_subscriptions(without(table.schema, _spare(latest_by, table.columns, schema)), schema)
    snapshot_files.require_writable(path, "a snapshot")
    if report:
        snapshot_files.require_writable(report, "a report")
    return schema, kind


def _type_of(table: DataFrame | ParquetTable, latest_by: str | None) -> pa.DataType | None:
    """The type of the column that decides which row counts."""
    return empty_table([field_of(table, latest_by, "latest_by")]).schema[0].type if latest_by else None


def _spare(latest_by: str | None, columns: Sequence[str], schema: Schema) -> str | None:
    """The column that decides which row counts, if it says nothing else."""
    read = {"id", "where", "priority"}
    for name, attribute in schema.items():
        if "where" not in columns:
            read |= {f"{name}_low", f"{name}_high"}
        elif attribute.role == "information":
            read |= {name, *schema.end_columns(name)}
    return None if latest_by in read else latest_by


def _parts(subscriptions: int) -> int:
    """As few parts as the size allows, of which each holds whole buckets."""
    parts = 1
    while parts < BUCKETS and subscriptions > parts * LARGEST_PART:
        parts *= 2
    return parts


def _derived(spark: SparkSession, table: DataFrame | ParquetTable, task: Task) -> tuple[str, ...]:
    """The derived attributes that some predicates of each partition need, as JSON, those of most partitions first. What
    the sample does not show is checked on candidates: the result is the same."""
    if "where" not in table.columns:
        return ()
    uses = Counter(row.derived for row in _each(spark, table, task.look, "derived string"))
    wanted = [one for one, _ in uses.most_common()]
    if not task.schema.is_open:
        return tuple(wanted[: DEFAULT_LIMITS.derived])
    found = zip(wanted, derived_from_json(map(json.loads, wanted), task.schema, parse), strict=True)
    plain = {text for text, one in found if one.is_attribute}  # as many as in any schema, and then the functions
    functions = [text for text in wanted if text not in plain][: DEFAULT_LIMITS.derived]
    return tuple([text for text in wanted if text in plain] + functions)[:MAX_ATTRIBUTES]


def _encoded(spark: SparkSession, table: DataFrame | ParquetTable, task: Task) -> list[tuple[str, int]]:
    """(name, rows) of each file of boxes."""
    return [(row.name, row.rows) for row in _each(spark, table, task.encode, "name string, rows long")]


def _each(
    spark: SparkSession,
    table: DataFrame | ParquetTable,
    work: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    result: str,
) -> list[Row]:
    """What `work` makes of each partition of the subscriptions."""
    names = list(table.columns)

    def named(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return work(batch.rename_columns(names) for batch in batches)

    if isinstance(table, DataFrame):
        done = numbered_columns(table, names).mapInArrow(named, result)
    else:
        done = table.each(spark, named, result)
    with raised_again():
        return list(done.collect())


def _written(spark: SparkSession, task: Task) -> list[dict[str, Any]]:
    """What was written of each part."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return task.write(batches)

    with raised_again():
        rows = spark.range(0, task.parts, numPartitions=task.parts).mapInArrow(write, "done string").collect()
    return sorted((json.loads(row.done) for row in rows), key=lambda done: int(done["part"]))


@dataclass(frozen=True)
class Task:
    """The part of a build that runs on executors; pickled to them."""

    place: str
    schema: Schema
    kind: str
    matcher: str
    buckets: int
    latest_type: pa.DataType | None
    latest_by: str | None = None
    report: str | None = None
    parts: int = 0
    names: tuple[str, ...] = ()
    """The files of boxes."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Of the matcher."""
    derived: tuple[str, ...] = ()
    """The derived attributes, as JSON."""

    def keys(self) -> Keys:
        """Without a string yet."""
        return Keys(self.schema, derived=derived_from_json(map(json.loads, self.derived), self.schema, parse))

    @property
    def boxes(self) -> str:
        return join(self.place, "boxes")

    def facts(self, done: list[dict[str, Any]]) -> dict[str, Any]:
        """The facts for the manifest."""
        return {
            "schema": self.schema.to_json(),
            "subscriptions": sum(d["subscriptions"] for d in done),
            "id_type": self.kind,
            "matcher": self.matcher,
            "parts": [d["name"] for d in done],
            **({"derived": [json.loads(one) for one in self.derived]} if self.derived else {}),
        }

    def look(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The first subscriptions of a partition -> the derived attributes that they need."""
        first = next(batches, None)
        if first is None:
            return
        for _ in islice(batches, DRAINED):  # Spark ends a worker whose input is not read to its end
            pass
        table = pa.Table.from_batches([first.slice(0, SAMPLED)])
        spare = _spare(self.latest_by, table.column_names, self.schema)
        table = table.drop_columns([spare]) if spare else table
        found = bulk_load.read(table, self.schema, DEFAULT_LIMITS).derived().values()
        texts = [json.dumps(one.to_json()) for one in found]
        yield pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], names=["derived"])

    def encode(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Subscriptions -> files of boxes; a row that does not fit carries its error instead."""
        for table in _chunks(batches):
            latest = table[self.latest_by].cast(self.latest_type).combine_chunks() if self.latest_by else None
            spare = _spare(self.latest_by, table.column_names, self.schema)
            table = table.drop_columns([spare]) if spare else table
            draft = bulk_load.read(table, self.schema, DEFAULT_LIMITS)
            keys = self.keys()
            keys.admit(draft.strings(keys))
            encoded = draft.encode(keys, DEFAULT_LIMITS)
            name = box_files.write(self.boxes, draft, encoded, keys, self.buckets, latest)
            yield pa.RecordBatch.from_pydict({"name": [name], "rows": [table.num_rows]})

    def write(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Numbers of parts -> the parts of the snapshot; a line of JSON each."""
        for batch in batches:
            for part in batch.column(0).to_pylist():
                yield pa.RecordBatch.from_pydict({"done": [json.dumps(self._write_part(part))]})

    def _write_part(self, part: int) -> dict[str, Any]:
        like = box_files.schema(self.kind, self.latest_type)
        chosen = range(part, self.buckets, self.parts)
        keys = self.keys()
        good, bad = box_files.settle(box_files.read(self.boxes, self.names, chosen, like, bool(keys.dictionaries)))
        facts: dict[str, Any] = {"part": part, "rejected": bad.num_rows}
        if bad.num_rows and self.report is None:
            return facts | {"errors": bad.slice(0, MAX_NAMED).to_pylist()}
        if bad.num_rows and self.report:
            snapshot_files.make_folder(self.report)
            with snapshot_files.new_file(join(self.report, f"part-{part:05d}.parquet")) as file:
                pq.write_table(bad, file)
        encoded = box_files.unpack(good)
        name = part_name(part)
        with snapshot_files.filling(self.place) as folder:
            files = write_part(folder, index_of(keys, encoded, self.matcher, **self.options), name)
        never = int((encoded.count == 0).sum())
        return facts | {"name": name, "files": files, "subscriptions": len(encoded.ids), "never": never}


def _chunks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Tables of many rows: what is learnt about predicates and strings is learnt once per table."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= CHUNK_ROWS or size >= CHUNK_BYTES:
            yield pa.Table.from_batches(held)
            held, rows, size = [], 0, 0
    if rows:
        yield pa.Table.from_batches(held)


def _refuse(done: list[dict[str, Any]], on_error: str) -> None:
    """The first few bad rows by their ids; nothing was published yet."""
    count = sum(d["rejected"] for d in done)
    if count and on_error == "raise":
        named = [error for d in done for error in d.get("errors", [])][:MAX_NAMED]
        lines = "\n".join(f"id {error['id']}: {error['error']}" for error in named)
        more = f"\n... and {count - len(named)} more" if count > len(named) else ""
        raise TableError(
            f"{counted(count, 'subscription does', 'subscriptions do')} not fit; nothing was built "
            f"(on_error='return' with report=PATH writes bad rows to a table and continues):\n{lines}{more}"
        )
