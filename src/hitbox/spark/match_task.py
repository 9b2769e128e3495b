"""The one function that matches a partition of events, in batch and in streams: Arrow batches in, Arrow batches out.

    10,000 events ──> slices of a few events ──> matches ──> Arrow batches of at most MAX_BATCH_IDS ids ──> Spark
                      │ as many as MAX_BATCH_IDS ids allow, estimated from the slices before
                      └ memory-mapped snapshot, opened once per worker process and version

Of a large slice a sample of events is matched first, and the slice is shortened if they match more than was estimated:
events that suddenly match a hundred thousand subscriptions each do not produce gigabytes. Lists keep 32-bit
offsets, which Spark needs, because a batch never holds more than 2^31 ids. As pairs, the columns that are kept of an
event are copied once per match, so there a batch also has at most MAX_BATCH_BYTES of them.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hitbox.encoding.arrays import I64
from hitbox.encoding.codecs import unsound
from hitbox.errors import SnapshotError, TableError, TooExpensive
from hitbox.index.bad_events import Found
from hitbox.index.matches import ERROR, RESULTS, Matches
from hitbox.index.sharded import Shards
from hitbox.spark import snapshot_files
from hitbox.spark.columns import documents
from hitbox.storage.addresses import is_remote, join

MAX_BATCH_IDS, MAX_BATCH_BYTES = 4_000_000, 2**27
FIRST_SLICE, LARGEST_SLICE = 32, 4096
MIN_PROBED_SLICE, PROBED_EVENTS = 512, 64
MAX_OPEN = 2

FORMS = tuple(RESULTS)


@lru_cache(maxsize=MAX_OPEN)
def opened(path: str, version: int, identity: int, part: int = -1) -> Shards:
    """A version (or one part of it), opened once in this process; the last ones stay open."""
    home = snapshot_files.local(path, version, identity, None if part < 0 else [part])
    found = Shards.open(home, version, None if part < 0 else [part], verify=False)
    if snapshot_files.identity(found.facts) != identity:
        raise SnapshotError(f"version {version} of the snapshot at {path} was replaced during the job: start it again")
    return found


@dataclass
class Counted:
    """What passed through a task."""

    events: int = 0
    matches: int = 0
    seconds: float = 0.0
    """Inside the engine."""
    bad_events: int = 0

    def add(self, events: int, matches: int, seconds: float, bad_events: int) -> None:
        self.events, self.matches, self.seconds = self.events + events, self.matches + matches, self.seconds + seconds
        self.bad_events += bad_events

    def leave(self, place: str) -> None:
        """Write a file named after the task, so that another attempt replaces the file of the first."""
        from pyspark import TaskContext  # a Connect client need not have it

        task = TaskContext.get()
        stage, partition = (task.stageId(), task.partitionId()) if task else (0, 0)
        text = json.dumps({"stage": stage, **asdict(self)})
        with contextlib.suppress(SnapshotError, OSError):  # a missing figure must not fail the batch
            if is_remote(place):
                snapshot_files.write_text(join(place, f"{stage}-{partition}.json"), text)
            else:
                Path(place, f"{stage}-{partition}.json").write_text(text)


def passed(place: str) -> Counted:
    """Totals of the tasks of a batch. A batch that is read twice runs twice, so the run with most events counts."""
    runs: dict[int, Counted] = {}
    for text in snapshot_files.texts(place):
        with contextlib.suppress(ValueError):  # half written by an abandoned attempt
            found = json.loads(text)
            runs.setdefault(found.pop("stage"), Counted()).add(**found)
    return max(runs.values(), key=lambda run: run.events, default=Counted())


@dataclass(frozen=True)
class Job:
    """What to match and what to return; pickled to the workers."""

    path: str
    version: int
    identity: int
    attributes: tuple[str, ...]
    kept: tuple[str, ...]
    form: str = "arrays"
    limit: int | None = None
    where: str | None = None
    counts: str | None = None
    """Where each task leaves a small file with what passed through it (see `passed`)."""
    objects: tuple[str, ...] = ()
    """The columns that say where the objects around attributes are there."""
    on_error: str = "raise"
    """What happens to events that do not fit (hitbox/encoding/fitting.py)."""
    match_steps: int | None = None
    """What a subscription may take on an event; None: the default of hitbox.Limits."""
    hint: str = ""
    """What to do if the columns of the events do not fit."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        count = Counted()
        try:
            yield from self.matched(batches, count)
        finally:
            if self.counts is not None and count.events:
                count.leave(self.counts)

    def matched(self, batches: Iterator[pa.RecordBatch], count: Counted) -> Iterator[pa.RecordBatch]:
        """The matches of a partition; what passed is added to `count` as it passes."""
        slicer = Slicer(self, MAX_BATCH_IDS)
        for batch in batches:
            index = opened(self.path, self.version, self.identity)
            for piece, matches, priority in slicer(index, pa.Table.from_batches([batch]), count):
                yield from self.output(piece, matches, priority)

    def match(self, index: Shards, piece: pa.Table) -> Found:
        try:
            where = None if self.where is None else _texts(piece[self.where], self.on_error)
            events = documents(piece, self.attributes, self.objects)
            found = index.match_batch(events, where, on_error=self.on_error, match_steps=self.match_steps)
        except TableError as problem:
            named = f" ({self._named(piece, problem.rows[0][0])})" if problem.rows and self.kept else ""
            hint = f"; {self.hint}" if self.hint and not problem.rows else ""
            raise TableError(f"{problem}{named}{hint}") from None
        except TooExpensive as problem:
            known = self.kept and isinstance(problem.event, int)
            event = f"the event with {self._named(piece, problem.event)}" if known else None
            raise TooExpensive(problem.id, event, problem.steps) from None
        return found if self.limit is None else first_of_each(*found, self.limit)

    def _named(self, piece: pa.Table, row: Any) -> str:
        name = self.kept[0]
        return f"{name} = {piece[name][row].as_py()!r}"

    def output(self, piece: pa.Table, matches: Matches, priority: NDArray[np.uint8]) -> Iterator[pa.RecordBatch]:
        """The rows of some events and what they match. If bad events come back, their rows have an error instead."""
        kept = piece.select(list(self.kept))
        if self.on_error != "return":
            yield from self._matched_rows(kept, matches)
            return
        bad = np.zeros(len(matches), bool)
        reasons = np.full(len(matches), None, object)
        for event, reason in matches.errors:
            bad[event], reasons[event] = True, reason
        start = 0
        for batch in self._matched_rows(kept, matches):
            table = pa.Table.from_batches([batch])
            if self.form == "pairs":  # bad events match nothing, so they have no row yet
                yield from batches_of(table.append_column(ERROR, pa.nulls(table.num_rows, pa.string())))
                continue
            some = slice(start, start + table.num_rows)
            if bad[some].any():
                found = table.column(RESULTS[self.form])
                found = pc.if_else(pa.array(bad[some]), pa.nulls(table.num_rows, found.type), found)
                table = table.set_column(table.num_columns - 1, RESULTS[self.form], found)
            yield from batches_of(table.append_column(ERROR, pa.array(reasons[some], pa.string())))
            start = some.stop
        if self.form == "pairs" and bad.any():
            table = kept.filter(pa.array(bad))
            table = table.append_column(RESULTS["pairs"], pa.nulls(table.num_rows, _spark_ids(matches.ids).type))
            yield from batches_of(table.append_column(ERROR, pa.array(reasons[bad], pa.string())))

    def _matched_rows(self, kept: pa.Table, matches: Matches) -> Iterator[pa.RecordBatch]:
        if self.form == "counts":
            yield from batches_of(kept.append_column("matches", pa.array(matches.counts)))
        elif self.form == "pairs":
            widths = _widths(kept)
            for start in range(0, len(matches.ids), MAX_BATCH_IDS):
                stop = min(start + MAX_BATCH_IDS, len(matches.ids))
                events = np.searchsorted(matches.offsets, np.arange(start, stop), side="right") - 1
                for some in _cut(widths, events):
                    rows = pa.array(events[some])
                    columns = {name: kept[name].take(rows) for name in kept.column_names}  # there may be none
                    ids = _spark_ids(matches.ids[start + some.start : start + some.stop])
                    yield from batches_of(pa.table({**columns, "subscription": ids}))
        else:
            for first, last in _runs(matches.offsets):
                ends = matches.offsets[first : last + 1]
                ids = _spark_ids(matches.ids[int(ends[0]) : int(ends[-1])])
                offsets = pa.array((ends - ends[0]).astype(np.int32))
                table = kept.slice(first, last - first)
                table = table.append_column("subscriptions", pa.ListArray.from_arrays(offsets, ids))
                yield from batches_of(table)


class Slicer:
    """Matches tables of events in slices that find at most `most` ids, as far as those before them tell."""

    def __init__(self, job: Job, most: int):
        self.job, self.most, self.size = job, most, FIRST_SLICE

    def __call__(
        self, index: Shards, table: pa.Table, count: Counted
    ) -> Iterator[tuple[pa.Table, Matches, NDArray[np.uint8]]]:
        """The slices of a table, what their events match, and the priorities."""
        start = 0
        while start < table.num_rows:
            began = time.perf_counter()
            piece = self._fitting(index, table.slice(start, self.size))
            matches, priority = self.job.match(index, piece)
            seconds = time.perf_counter() - began
            count.add(piece.num_rows, len(matches.ids), seconds, len(matches.errors))
            start += piece.num_rows
            each = max(1.0, len(matches.ids) / piece.num_rows)
            self.size = int(min(max(self.most / each, 1), LARGEST_SLICE, self.size * 8))
            yield piece, matches, priority

    def _fitting(self, index: Shards, piece: pa.Table) -> pa.Table:
        """The slice, or as much of it as should fit, judged by a sample of its events."""
        rows = piece.num_rows
        if rows < MIN_PROBED_SLICE or rows * len(index) <= self.most:
            return piece
        sample = piece.take(pa.array(np.arange(0, rows, rows // PROBED_EVENTS)))
        matches, _ = self.job.match(index, sample)
        each = max(1.0, len(matches.ids) / sample.num_rows)
        return piece if rows * each <= 2 * self.most else piece.slice(0, max(1, int(self.most / each)))


def _runs(offsets: I64) -> Iterator[tuple[int, int]]:
    """Runs of events with at most MAX_BATCH_IDS matches together, or one event with more."""
    first, count = 0, len(offsets) - 1
    while first < count:
        last = int(np.searchsorted(offsets, offsets[first] + MAX_BATCH_IDS, side="right")) - 1
        last = max(first + 1, min(last, count))
        yield first, last
        first = last


def _texts(predicates: pa.ChunkedArray, on_error: str) -> list[str | None]:
    bad = unsound(predicates)
    if bad is None or not bad.any():
        return list(predicates.to_pylist())
    if on_error == "raise":
        row = int(bad.argmax())
        problem = "the predicate of an event holds the character NUL, or is not UTF-8"
        raise TableError(problem, [(row, problem)])
    return [chr(0) if wrong else text.as_py() for wrong, text in zip(bad, predicates, strict=True)]


def _widths(kept: pa.Table) -> NDArray[np.float64]:
    """About how many bytes each row has."""
    widths = np.zeros(kept.num_rows)
    for column in kept.columns:
        if column.type in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary()):
            widths += pc.fill_null(pc.binary_length(column), 0).to_numpy()
        widths += column.nbytes / max(1, kept.num_rows) if pa.types.is_nested(column.type) else 8
    return widths


def _cut(widths: NDArray[np.float64], events: I64) -> Iterator[slice]:
    """Runs of rows, of which each has so many bytes, that fit a batch together, or one row with more."""
    if widths.max(initial=0.0) * len(events) <= MAX_BATCH_BYTES:
        yield slice(0, len(events))
        return
    ends = np.cumsum(widths[events])
    first = 0
    while first < len(events):
        before = ends[first - 1] if first else 0.0
        last = max(first + 1, int(np.searchsorted(ends, before + MAX_BATCH_BYTES, side="right")))
        yield slice(first, last)
        first = last


def first_of_each(matches: Matches, priority: NDArray[np.uint8], limit: int) -> Found:
    """The most urgent `limit` matches of each event."""
    counts = np.minimum(matches.counts, limit)
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    at = np.arange(offsets[-1]) + np.repeat(matches.offsets[:-1] - offsets[:-1], counts)
    return Matches(offsets, matches.ids.take(pa.array(at)), matches.errors), priority[at]


def _spark_ids(ids: pa.Array) -> pa.Array:
    return ids.cast(pa.string()) if pa.types.is_large_string(ids.type) else ids


def batches_of(table: pa.Table) -> Sequence[pa.RecordBatch]:
    batches: Sequence[pa.RecordBatch] = table.combine_chunks().to_batches()
    return batches
