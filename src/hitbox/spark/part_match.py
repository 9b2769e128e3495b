"""match with by_part=True: each task opens one part of the snapshot, for snapshots larger than a host's memory.

    events   blocks of events as Arrow bytes, one copy per part     ──> shuffled to the tasks of that part
    match    the events of a block against one part                 ──> pieces: some events of a block, what they match
    merge    the pieces of all parts side by side, event by event   ──> rows, as match_task.py makes them

Spark shuffles a few rows of bytes, not a row per event and part. A part has as few tasks as keep all cores busy, so
few hosts need it, and a host fetches the parts of its own tasks only. A block is identified by the partition that it
comes from and its number there, so a task that runs again makes the same rows.

The merge holds a piece per part, and a piece has at most MAX_BATCH_IDS / parts ids, so its memory is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from hitbox.errors import HitboxError
from hitbox.index.catalog import ID_TYPES
from hitbox.index.matches import Matches
from hitbox.index.sharded import merged
from hitbox.spark import match_task
from hitbox.spark.column_names import numbered_columns
from hitbox.spark.match_task import Counted, Job, Slicer, first_of_each, opened
from hitbox.spark.task_progress import TABLE_MATCH

BLOCKS = "block long, events binary"
PIECES = "block long, first long, part int, found binary"
SHIFT = 2**32
MIN_PIECE_IDS = 50_000

Found = tuple[Matches, NDArray[np.uint8]]


def match_by_part(
    events: DataFrame, read: Sequence[str], job: Job, schema: T.StructType, parts: int, id_type: str
) -> DataFrame:
    """The same result as of the plain match; `read` are the columns that the job reads."""
    work = PartMatch(job, parts, id_type)
    cores = _cores(events.sparkSession)
    each = -(-cores // parts)

    def blocks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return work.blocks(batch.rename_columns(list(read)) for batch in batches)

    def match(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return work.match(batches)

    match.__name__ = TABLE_MATCH

    def merge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return work.merge(batches)

    part = F.explode(F.sequence(F.lit(0), F.lit(parts - 1)))
    copies = numbered_columns(events, read).mapInArrow(blocks, BLOCKS).withColumn("part", part)
    copies = copies.withColumn("task", (F.col("part") * each + F.pmod("block", F.lit(each))).cast("int"))
    if hasattr(copies, "repartitionById"):
        copies = copies.repartitionById(parts * each, "task")
    else:  # before Spark 4.1: some tasks may get two parts, others none
        copies = copies.repartition(parts * each, "task")
    if not work.merges:
        return copies.mapInArrow(match, schema)
    pieces = copies.mapInArrow(match, PIECES).repartition(cores, "block")
    return pieces.sortWithinPartitions("block", "first", "part").mapInArrow(merge, schema)


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

    @property
    def merges(self) -> bool:
        """Pairs need no order, so they leave the tasks of the parts as they are found."""
        return self.job.form != "pairs" or self.job.limit is not None

    def blocks(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext  # a Connect client need not have it

        task = TaskContext.get()
        first = (task.partitionId() if task else 0) * SHIFT
        for number, batch in enumerate(batches):
            if batch.num_rows:
                yield pa.RecordBatch.from_pydict({"block": [first + number], "events": [_bytes(batch)]})

    def match(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        slicer = Slicer(self.job, max(MIN_PIECE_IDS, match_task.MAX_BATCH_IDS // self.parts))
        for batch in batches:
            for row in range(batch.num_rows):
                block, part = batch.column("block")[row].as_py(), batch.column("part")[row].as_py()
                index = opened(self.job.path, self.job.version, self.job.identity, part)
                first = 0
                for piece, matches, priority in slicer(index, _table(batch.column("events")[row]), Counted()):
                    if self.merges:
                        found = _bytes(self._piece(piece, matches, priority, part))
                        yield pa.RecordBatch.from_arrays(
                            [pa.array([block]), pa.array([first]), pa.array([part], pa.int32()), pa.array([found])],
                            ["block", "first", "part", "found"],
                        )
                        first += piece.num_rows
                    else:
                        yield from self.job.output(piece, matches, priority)

    def _piece(self, piece: pa.Table, matches: Matches, priority: NDArray[np.uint8], part: int) -> pa.RecordBatch:
        """What some events match in one part; the first part also carries their columns."""
        columns = {name: piece[name].combine_chunks() for name in self.job.kept} if part == 0 else {}
        if self.job.form == "counts":
            columns["_counts"] = pa.array(matches.counts)
        else:
            offsets = pa.array(matches.offsets.astype(np.int32))
            columns["_ids"] = pa.ListArray.from_arrays(offsets, matches.ids)
            columns["_levels"] = pa.ListArray.from_arrays(offsets, pa.array(priority))
        return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))

    def merge(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pieces sorted by block and first event -> rows, as soon as all parts have said what an event matches."""
        held: list[pa.Table | None] = [None] * self.parts
        current, done, ends = -1, 0, [0] * self.parts
        for batch in batches:
            for row in range(batch.num_rows):
                block, part = batch.column("block")[row].as_py(), batch.column("part")[row].as_py()
                if block != current:
                    self._check(current, done, ends)
                    current, done, ends = block, 0, [0] * self.parts
                    held = [None] * self.parts
                table, before = _table(batch.column("found")[row]), held[part]
                held[part] = table if before is None else pa.concat_tables([before, table])
                ends[part] += table.num_rows
                ready = min(ends) - done
                if ready:
                    whole = [table for table in held if table is not None]
                    yield from self._merged([table.slice(0, ready) for table in whole])
                    held = [table.slice(ready) for table in whole]
                    done += ready
        self._check(current, done, ends)

    def _check(self, block: int, done: int, ends: list[int]) -> None:
        if done != max(ends):
            raise HitboxError(f"block {block}: the parts did not see the same events, {min(ends)} to {max(ends)}")

    def _merged(self, tables: list[pa.Table]) -> Iterator[pa.RecordBatch]:
        events = tables[0].select(list(self.job.kept))
        if self.job.form == "counts":
            total = sum(table["_counts"].to_numpy() for table in tables)
            counts = total if self.job.limit is None else np.minimum(total, self.job.limit)
            yield from match_task.batches_of(events.append_column("matches", pa.array(counts)))
            return
        matches, priority = merged([_found(table) for table in tables], ID_TYPES[self.id_type])
        if self.job.limit is not None:
            matches, priority = first_of_each(matches, priority, self.job.limit)
        yield from self.job.output(events, matches, priority)


def _found(table: pa.Table) -> Found:
    """The matches of a piece."""
    lengths = np.concatenate([pc.list_value_length(chunk).to_numpy() for chunk in table["_ids"].chunks])
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    ids, levels = (pa.concat_arrays([chunk.flatten() for chunk in table[name].chunks]) for name in ("_ids", "_levels"))
    return Matches(offsets, ids), levels.to_numpy()


def _bytes(batch: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as out:
        out.write_batch(batch)
    return sink.getvalue().to_pybytes()


def _table(value: pa.Scalar) -> pa.Table:
    return pa.ipc.open_stream(value.as_buffer()).read_all()
