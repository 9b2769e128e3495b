"""match with by_part=True: each task opens one part of the snapshot, for snapshots larger than a host's memory.

    events   blocks of events as Arrow bytes, one copy per part     ──> shuffled to the tasks of that part
    match    the events of a block against one part                 ──> pieces: some events of a block, what they match
    merge    the pieces of all parts side by side, event by event   ──> rows, as match_task.py makes them

Spark shuffles a few rows of bytes, not a row per event and part. A part has as few tasks as keep all cores busy, so
few hosts need it, and a host fetches the parts of its own tasks only. A block is identified by the partition that it
comes from and its number there, so a task that runs again makes the same rows. If the events reach it in another order
then, as they may after a shuffle, and some parts were matched already, the checksums of the block differ: an error.

The merge keeps pieces in a temporary file until all are there. Then it holds a piece per part, and a piece has at most
MAX_BATCH_IDS / parts ids, so its memory is bounded.

On a stream, the tasks of all three steps ask for the version of their batch, and get the same (batch_version.py).
"""

from __future__ import annotations

import itertools
import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from hitbox.encoding.codecs import is_text
from hitbox.errors import HitboxError
from hitbox.index.catalog import ID_TYPES
from hitbox.index.matches import Matches
from hitbox.index.sharded import merged
from hitbox.spark import match_task
from hitbox.spark.batch_version import Version
from hitbox.spark.column_names import numbered_columns
from hitbox.spark.match_task import Counted, Job, Slicer, first_of_each, opened
from hitbox.spark.stream_task import StreamTask
from hitbox.spark.task_errors import plainly
from hitbox.spark.task_progress import STREAM_MATCH, TABLE_MATCH

BLOCKS = "block long, checksum long, parts int, events binary"
PIECES = "block long, checksum long, first long, part int, seconds double, found binary"
COUNTS, IDS, LEVELS, RUNS = "_hitbox_counts", "_hitbox_ids", "_hitbox_levels", "_hitbox_runs"
ERRORS = "_hitbox_errors"
"""Columns of a piece beside those that are kept of the events: how many matches, or their ids (in four bytes each where
that is enough) and their priorities, as runs of one priority; and why events do not fit, if any does not. All of it
passes through Spark's shuffle."""
PIECE_COLUMNS = ["block", "checksum", "first", "part", "seconds", "found"]
SHIFT = 2**32
MIN_PIECE_IDS = 50_000
SPOOLED_BYTES = 2**26
"""Pieces that a merge holds in memory; more go to a file."""

Found = tuple[Matches, NDArray[np.uint8]]


def match_by_part(
    events: DataFrame,
    read: Sequence[str],
    job: Job,
    schema: T.StructType,
    parts: int,
    id_type: str,
    stream: StreamTask | None = None,
) -> DataFrame:
    """What the plain match finds, a part per task; `read` are the columns that the job reads.

    On a stream each batch has the parts of its own version. `parts`, those of the current one, then only says how many
    tasks there are: if a later version has more, a task opens several, one after the other.
    """
    work = PartMatch(job, parts, id_type, stream)
    cores = _cores(events.sparkSession)
    each = -(-cores // parts)

    def blocks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return work.blocks(batch.rename_columns(list(read)) for batch in batches)

    def match(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return work.match(batches)

    match.__name__ = STREAM_MATCH if stream else TABLE_MATCH

    def merge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return work.merge(batches)

    part = F.explode(F.sequence(F.lit(0), F.col("parts") - 1))
    copies = numbered_columns(events, read).mapInArrow(plainly(blocks), BLOCKS).withColumn("part", part)
    task = F.col("part") * each + F.pmod("block", F.lit(each))
    copies = copies.withColumn("task", F.pmod(task, F.lit(parts * each)).cast("int"))
    if hasattr(copies, "repartitionById"):
        copies = copies.repartitionById(parts * each, "task")
    else:  # before Spark 4.1: some tasks may get two parts, others none
        copies = copies.repartition(parts * each, "task")
    if not work.merges:
        return copies.mapInArrow(plainly(match), schema)
    pieces = copies.mapInArrow(plainly(match), PIECES)
    return pieces.repartition(cores, "block").mapInArrow(plainly(merge), schema)


def _cores(spark: SparkSession) -> int:
    """How many tasks run at once, as far as Spark says: its default number of partitions."""
    context = getattr(spark, "sparkContext", None)
    if context is not None:
        return int(context.defaultParallelism)
    numbers = spark.range(0, 10_000).select(F.spark_partition_id().alias("number"))  # Spark Connect has no context
    return int(numbers.agg(F.max("number")).collect()[0][0]) + 1


@dataclass(frozen=True)
class PartMatch:
    """What the tasks do; pickled to them."""

    job: Job
    parts: int
    id_type: str
    stream: StreamTask | None = None

    @property
    def merges(self) -> bool:
        """Pairs need no order, so they leave the tasks of the parts as they are found. But an event that does not fit
        in one part does not fit."""
        return self.job.form != "pairs" or self.job.limit is not None or self.job.on_error != "raise"

    def blocks(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext  # a Connect client need not have it

        task = TaskContext.get()
        first = (task.partitionId() if task else 0) * SHIFT
        for number, batch in enumerate(batches):
            if batch.num_rows:
                parts = self._now().parts
                columns = [
                    pa.array([first + number]),
                    pa.array([_checksum(batch)]),
                    pa.array([parts], pa.int32()),
                    pa.array([_bytes(batch)]),
                ]
                yield pa.RecordBatch.from_arrays(columns, ["block", "checksum", "parts", "events"])

    def match(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = ((batch, row) for batch in batches for row in range(batch.num_rows))
        first = next(rows, None)
        if first is None:
            return
        now, count = self._now(), Counted()
        found = self._matched(itertools.chain([first], rows), now, count)
        if self.merges:
            yield from found
        else:
            yield from now.labelled(found, _table(first[0].column("events")[first[1]]).schema, count)

    def _matched(
        self, rows: Iterable[tuple[pa.RecordBatch, int]], now: Now, count: Counted
    ) -> Iterator[pa.RecordBatch]:
        slicer = Slicer(now.job, max(MIN_PIECE_IDS, match_task.MAX_BATCH_IDS // now.parts))
        for batch, row in rows:
            block, part = batch.column("block")[row].as_py(), batch.column("part")[row].as_py()
            index = opened(now.job.path, now.job.version, now.job.identity, part)
            first = 0
            passed = Counted()
            for piece, matches, priority in slicer(index, _table(batch.column("events")[row]), passed):
                if self.merges:
                    columns = [
                        pa.array([block]),
                        batch.column("checksum").slice(row, 1),
                        pa.array([first]),
                        pa.array([part], pa.int32()),
                        pa.array([passed.seconds]),
                        pa.array([_bytes(self._piece(piece, matches, priority, part))]),
                    ]
                    yield pa.RecordBatch.from_arrays(columns, PIECE_COLUMNS)
                    passed.seconds = 0.0
                    first += piece.num_rows
                else:
                    yield from now.job.output(piece, matches, priority)
            count.add(passed.events if part == 0 else 0, passed.matches, passed.seconds, 0)

    def _piece(self, piece: pa.Table, matches: Matches, priority: NDArray[np.uint8], part: int) -> pa.RecordBatch:
        """What some events match in one part; the first part also carries their columns."""
        columns = {name: piece[name].combine_chunks() for name in self.job.kept} if part == 0 else {}
        if self.job.form == "counts":
            columns[COUNTS] = pa.array(matches.counts)
        else:
            offsets = pa.array(matches.offsets.astype(np.int32))
            columns[IDS] = pa.ListArray.from_arrays(offsets, _narrow(matches.ids))
            columns[LEVELS], columns[RUNS] = _runs(priority, matches.offsets)
        if self.job.on_error != "raise":
            reasons = dict(matches.errors)
            columns[ERRORS] = pa.array([reasons.get(event) for event in range(len(matches))], pa.string())
        return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))

    def merge(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pieces in any order -> rows."""
        count = Counted()
        folder = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
        with tempfile.SpooledTemporaryFile(SPOOLED_BYTES, dir=folder or None) as file:
            pieces = Pieces(file, ID_TYPES[self.id_type])
            for batch in batches:
                for row in range(batch.num_rows):
                    pieces.add(batch, row)
                    count.seconds += batch.column("seconds")[row].as_py()
            if not pieces:
                return
            now = self._now()
            yield from now.labelled(self._merged(pieces, now, count), pieces.events, count)

    def _merged(self, pieces: Pieces, now: Now, count: Counted) -> Iterator[pa.RecordBatch]:
        """Block by block, as soon as all parts have said what an event matches."""
        held: list[pa.Table | None] = []
        current, done, ends = -1, 0, [0]
        for block, part, table in pieces:
            if block != current:
                _check(current, done, ends)
                current, done, ends = block, 0, [0] * now.parts
                held = [None] * now.parts
            before = held[part]
            held[part] = table if before is None else pa.concat_tables([before, table])
            ends[part] += table.num_rows
            ready = min(ends) - done
            if ready:
                whole = [table for table in held if table is not None]
                yield from self._rows([table.slice(0, ready) for table in whole], count)
                held = [table.slice(ready) for table in whole]
                done += ready
        _check(current, done, ends)

    def _rows(self, tables: list[pa.Table], count: Counted) -> Iterator[pa.RecordBatch]:
        events = tables[0].select(list(self.job.kept))
        if self.job.form == "counts":
            matches, priority = self._sum(tables), np.zeros(0, np.uint8)
        else:
            found = [_found(table) for table in tables]
            matches, priority = merged(found, ID_TYPES[self.id_type], self.job.on_error)
            if self.job.limit is not None:
                matches, priority = first_of_each(matches, priority, self.job.limit)
        count.add(tables[0].num_rows, int(matches.offsets[-1]), 0.0, len(matches.errors))
        yield from self.job.output(events, matches, priority)

    def _sum(self, tables: Sequence[pa.Table]) -> Matches:
        """Matches without ids."""
        counts = sum(table[COUNTS].to_numpy() for table in tables)
        errors = {event: reason for table in reversed(tables) for event, reason in _errors(table)}
        if self.job.limit is not None:
            counts = np.minimum(counts, self.job.limit)
        if self.job.on_error == "return":
            counts[list(errors)] = 0
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        return Matches(offsets, pa.array([], ID_TYPES[self.id_type]), sorted(errors.items()))

    def _now(self) -> Now:
        if self.stream is None:
            return Now(self.job, self.parts)
        version, job = self.stream.prepared()
        return Now(job, len(version.facts.get("parts", [""])), self.stream, version)


@dataclass(frozen=True)
class Now:
    """What the running task is to do: on a stream it depends on the batch."""

    job: Job
    parts: int
    stream: StreamTask | None = None
    version: Version | None = None

    def labelled(self, found: Iterator[pa.RecordBatch], events: pa.Schema, count: Counted) -> Iterator[pa.RecordBatch]:
        """The rows as they leave the last task."""
        if self.stream is None or self.version is None:
            return found
        return self.stream.labelled(found, events, self.version, count)


class Pieces:
    """Pieces as they come from the shuffle, kept in a file; iterating gives them by block and first event.

    Spark could sort them, but not on a stream.
    """

    def __init__(self, file: IO[bytes], kind: pa.DataType) -> None:
        self._file, self._kind = file, kind
        self._places: dict[tuple[int, int, int], tuple[int, int]] = {}
        self._checksums: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._places)

    def add(self, batch: pa.RecordBatch, row: int) -> None:
        key = tuple(batch.column(name)[row].as_py() for name in ("block", "first", "part"))
        checksum = batch.column("checksum")[row].as_py()
        if self._checksums.setdefault(key[0], checksum) != checksum:
            raise HitboxError(
                "the events came in another order when Spark repeated a task, after some parts were matched: match "
                "them again; if it happens often, write the events to a table first and match that"
            )
        found = batch.column("found")[row].as_buffer()
        self._places[key] = self._file.tell(), found.size
        self._file.write(found)

    def __iter__(self) -> Iterator[tuple[int, int, pa.Table]]:
        for key in sorted(self._places):
            yield key[0], key[2], self._read(key)

    @property
    def events(self) -> pa.Schema:
        """The columns that are kept of the events, and others."""
        return self._read(min(key for key in self._places if key[2] == 0)).schema

    def _read(self, key: tuple[int, int, int]) -> pa.Table:
        start, size = self._places[key]
        self._file.seek(start)
        table = pa.ipc.open_stream(self._file.read(size)).read_all()
        at = table.schema.get_field_index(IDS)  # some pieces of a part may be narrow, and others not
        return table if at < 0 else table.set_column(at, IDS, table[IDS].cast(pa.list_(self._kind)))


def _check(block: int, done: int, ends: list[int]) -> None:
    if done != max(ends):
        raise HitboxError(f"block {block}: the parts did not see the same events, {min(ends)} to {max(ends)}")


def _found(table: pa.Table) -> Found:
    """The matches of a piece."""
    lengths = np.concatenate([pc.list_value_length(chunk).to_numpy() for chunk in table[IDS].chunks])
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    ids, levels, runs = (_flat(table[name]) for name in (IDS, LEVELS, RUNS))
    return Matches(offsets, ids, _errors(table)), np.repeat(levels.to_numpy(), runs.to_numpy())


def _errors(table: pa.Table) -> list[tuple[int, str]]:
    reasons = table[ERRORS].to_pylist() if ERRORS in table.column_names else []
    return [(event, reason) for event, reason in enumerate(reasons) if reason is not None]


def _flat(lists: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays([chunk.flatten() for chunk in lists.chunks])


def _narrow(ids: pa.Array) -> pa.Array:
    if not pa.types.is_int64(ids.type) or not len(ids):
        return ids
    ends = pc.min_max(ids)
    fits = ends["min"].as_py() >= -(2**31) and ends["max"].as_py() < 2**31
    return ids.cast(pa.int32()) if fits else ids


def _runs(priority: NDArray[np.uint8], offsets: NDArray[np.int64]) -> tuple[pa.Array, pa.Array]:
    """The priorities of the runs of each event, and how long the runs are."""
    first = np.ones(len(priority), bool)
    first[1:] = priority[1:] != priority[:-1]
    first[offsets[:-1][np.diff(offsets) > 0]] = True
    starts = np.flatnonzero(first)
    ends = pa.array(np.searchsorted(starts, offsets).astype(np.int32))
    lengths = np.diff(starts, append=len(priority)).astype(np.int32)
    return pa.ListArray.from_arrays(ends, pa.array(priority[starts])), pa.ListArray.from_arrays(ends, pa.array(lengths))


def _checksum(batch: pa.RecordBatch) -> int:
    """Of all plain values. Not of the bytes, for what lies under a null may be anything."""
    found = 0
    for column in batch.columns:
        if pa.types.is_nested(column.type):
            continue
        found = zlib.crc32(np.packbits(column.is_null().to_numpy(zero_copy_only=False)).tobytes(), found)
        column = column.drop_null()
        if is_text(column.type):
            column = column.cast(pa.large_binary())
        values = column.to_numpy(zero_copy_only=False)
        found = zlib.crc32(repr(values.tolist()).encode() if values.dtype == object else values.tobytes(), found)
    return found


def _bytes(batch: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as out:
        out.write_batch(batch)
    return sink.getvalue().to_pybytes()


def _table(value: pa.Scalar) -> pa.Table:
    return pa.ipc.open_stream(value.as_buffer()).read_all()
