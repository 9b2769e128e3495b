"""What a task of a stream does: choose the version of its batch, match, say which version it was, and count.

    matches ──> + snapshot_version, + a null ──> Spark counts the last rows (observe), then removes them
    one more row at the end of each task: nulls, and the figures of the task in the last column

The figures appear in `StreamingQueryProgress.observedMetrics`. They travel as a row because that is the only way from a
Python task to Spark's metrics that works on Connect, too.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from hitbox.encoding.schema import Schema
from hitbox.errors import SnapshotError, TableError
from hitbox.index.matches import ERROR, RESULTS
from hitbox.spark import snapshot_files
from hitbox.spark.batch_version import Version, chosen, held
from hitbox.spark.columns import event_columns_read, no_column, objects_of
from hitbox.spark.match_task import Counted, Job
from hitbox.storage.addresses import without_passwords

VERSION = "snapshot_version"
FIGURES = "_hitbox_figures"
"""The column of the row with the figures of a task; null in all other rows."""

_FIGURES_TYPE = pa.list_(pa.float64())

EXTRA_FIELDS = [T.StructField(VERSION, T.LongType()), T.StructField(FIGURES, T.ArrayType(T.DoubleType()))]


def figures() -> Sequence[Column]:
    """What Spark observes of a batch; in the order in which `StreamTask` gives the figures."""
    figure = F.col(FIGURES)
    return [
        F.sum(figure[0]).cast("long").alias("events"),
        F.sum(figure[1]).cast("long").alias("matches"),
        F.sum(figure[2]).cast("long").alias("bad_events"),
        F.max(figure[3]).cast("long").alias("version"),
        F.sum(figure[4]).alias("seconds_matching"),
        F.max(figure[5]).alias("snapshot_age_seconds"),
    ]


@dataclass(frozen=True)
class StreamTask:
    """A job whose version is chosen again for each batch; pickled to the workers."""

    job: Job
    id_type: str
    columns: tuple[str, ...]
    """Columns of the events that the tasks get: those that the job reads, and any version that a batch is pinned to."""
    others: tuple[str, ...]
    """Columns of the events that the tasks do not get."""
    follow: bool
    """Whether to take up new versions; otherwise all batches use that of the job."""
    allow_missing: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first = next(batches, None)
        if first is None:
            return
        version, job = self.prepared()
        count = Counted()
        found = job.matched(itertools.chain([first], batches), count)
        yield from self.labelled(found, first.schema, version, count)

    def prepared(self) -> tuple[Version, Job]:
        """The version of the batch that the running task belongs to, and the job for it."""
        if not self.follow:
            return held(self.job.path, self.job.version), self.job
        version = chosen(self.job.path)
        return version, replace(self.job, **self._fitted(version))

    def labelled(
        self, found: Iterator[pa.RecordBatch], events: pa.Schema, version: Version, count: Counted
    ) -> Iterator[pa.RecordBatch]:
        """The matches with their version, then the row with what was counted meanwhile."""
        schema = self._schema(events)
        for batch in found:
            numbers = pa.repeat(pa.scalar(version.number, pa.int64()), batch.num_rows)
            none = pa.nulls(batch.num_rows, _FIGURES_TYPE)
            yield pa.RecordBatch.from_arrays([*batch.columns, numbers, none], schema=schema)
        age = max(0.0, time.time() - version.published)
        counted = float(count.events), float(count.matches), float(count.bad_events)
        figures = [*counted, float(version.number), count.seconds, age]
        nulls = [pa.nulls(1, field.type) for field in schema][:-1]
        yield pa.RecordBatch.from_arrays([*nulls, pa.array([figures], _FIGURES_TYPE)], schema=schema)

    def _schema(self, events: pa.Schema) -> pa.Schema:
        """Of the result: one and the same for all batches of a task, or Spark refuses the second."""
        ids = pa.int64() if self.id_type == "int" else pa.string()
        kind = {"arrays": pa.list_(ids), "pairs": ids, "counts": pa.int64()}[self.job.form]
        kept = [pa.field(name, events.field(name).type) for name in self.job.kept]
        error = [(ERROR, pa.string())] if self.job.on_error == "return" else []
        last = [(RESULTS[self.job.form], kind), *error, (VERSION, pa.int64()), (FIGURES, _FIGURES_TYPE)]
        return pa.schema([*kept, *[pa.field(*one) for one in last]])

    def _fitted(self, version: Version) -> dict[str, Any]:
        """The job's settings for this version; an error if the query must be planned again for it."""
        columns = (*self.columns, *self.others)
        read, absent = event_columns_read(Schema.from_json(version.facts["schema"]), columns)
        added = [name for name in read if name in self.others]
        which = f"version {version.number} of the snapshot at {without_passwords(self.job.path)}"
        again = "start the query again with the same checkpoint, and it continues with this batch"
        hint = ""
        if version.number < self.job.version:  # the current one is planned for again, and is not that of the batch
            begun = f"start the query with version={version.number} until the batch is done"
            again, hint = f"this batch began with it: {begun}", f"this batch began with {which}: {begun}"
        if added:
            raise SnapshotError(
                f"{which} has the attribute {added[0]!r}, which is new since the query started: {again}"
            )
        if absent and not self.allow_missing:
            raise TableError("; ".join([f"{which}: {no_column(absent, self.others)}", *([again] if hint else [])]))
        if version.facts["id_type"] != self.id_type:
            kinds = f"ids of type {version.facts['id_type']}, not {self.id_type} as when the query started"
            raise SnapshotError(f"{which} has {kinds}: {again}")
        return {
            "version": version.number,
            "identity": snapshot_files.identity(version.facts),
            "attributes": tuple(read),
            "objects": tuple(objects_of(read, columns)),
            "hint": hint,
        }
