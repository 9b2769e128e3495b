"""match_stream: Structured Streaming against a snapshot that changes between batches, every event exactly once.

    batch 7 starts    pinned to a version already?  yes: a replay, the same version again
                                                    no:  the current version; write the pin (synced) before any work,
                                                         and a note of it into the checkpoint
    match             the same partition function as in batch
    output            overwrite out/batch_id=7
    progress          checkpoint/hitbox/batches/00000007.json: events, matches, version, seconds

Spark replays at most the last batch, with the same events; the pin gives it the same subscriptions, and the overwrite
makes the second output replace the first. The pin also keeps the version from being removed (snapshot.py). It has the
name of the checkpoint's place, so a checkpoint that was moved or copied has no pin. There the note says the version.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from hitbox.errors import HitboxError, SnapshotError, TableError, ValueProblem
from hitbox.spark import snapshot_files
from hitbox.spark.column_names import with_nested_fields
from hitbox.spark.columns import require_frame, require_name, require_names
from hitbox.spark.match import prepare, run, with_version
from hitbox.spark.match_task import passed
from hitbox.spark.store_settings import spark_address
from hitbox.spark.task_errors import error_in, raised_again
from hitbox.spark.task_progress import STREAM_MATCH, job_description
from hitbox.spark.worker_check import require_hitbox
from hitbox.storage.addresses import is_remote, join, resolve, scheme_of, without_passwords

KEPT_BATCHES = 10_000
"""Batches whose progress is kept."""

Sink = Callable[[DataFrame, int], None]


def match_stream(
    events: DataFrame,
    path: str,
    out: str | None = None,
    checkpoint: str = "",
    event_id: str | None = "event_id",
    *,
    sink: Sink | None = None,
    trigger: dict[str, Any] | None = None,
    form: str = "arrays",
    limit: int | None = None,
    keep: Sequence[str] = (),
    where: str | None = None,
    allow_missing: bool = False,
    on_error: str = "raise",
    match_steps: int | None = None,
) -> StreamingQuery:
    """Match a stream of events; returns a started query.

    The result goes to Parquet at `out`, one folder per batch (`batch_id=7`), with the column `snapshot_version`; or to
    `sink(matches, batch_id)`, which must replace what it wrote before if a batch id is repeated. A sink may do
    anything with the rows, even nothing. An error in it ends the query, and the batch is repeated. `progress`
    counts the events that passed through the matcher because the sink asked for them.

    Parameters
    ----------
    checkpoint: where Spark and hitbox note what was done; a query started again with it goes on where it stopped
    trigger: of Spark, such as {"processingTime": "5 seconds"} or {"availableNow": True}
    form, limit, keep, where, allow_missing, on_error, match_steps: as in `match`
    """
    require_frame(events, "events")
    require_names(keep, "keep")
    require_name(event_id, "event_id")
    require_name(where, "where")
    if not events.isStreaming:
        raise TableError("match_stream takes a streaming DataFrame (spark.readStream); for a table use match")
    path = resolve(path)
    events = with_nested_fields(events, [event_id, *keep, where], objects=True)
    output = Output.checked(events.sparkSession, out, sink, checkpoint)
    asked = Asked(path, event_id, form, limit, tuple(keep), where, allow_missing, on_error, match_steps)
    pin = output.unfinished(path)
    try:
        asked.prepare(events, None if pin is None else pin["version"])
    except TableError as problem:
        if pin is None or pin["version"] == snapshot_files.current(path):
            raise
        raise TableError(
            f"{problem}; batch {pin['batch']} began with version {pin['version']} of the snapshot and is repeated with "
            "it: start the stream with events that fit this version, until the batch is done"
        ) from None
    snapshot_files.require_writable(join(path, "pins"), "pins of the stream")
    require_hitbox(events.sparkSession)
    if "offsets" not in snapshot_files.names(output.checkpoint):  # a new stream, though its pin may be of an old one
        snapshot_files.remove(join(path, "pins", f"{output.name}.json"))
        snapshot_files.remove(output.notes)
    return start(events, Batch(asked, output), checkpoint, trigger)


def start(
    frame: DataFrame, batch: Callable[[DataFrame, int], None], checkpoint: str, trigger: dict[str, Any] | None
) -> StreamingQuery:
    """A started query that calls `batch` with the rows and the number of each micro-batch."""

    def each(rows: DataFrame, batch_id: int) -> None:
        batch(rows, batch_id)

    place = spark_address(frame.sparkSession, checkpoint)
    writer = frame.writeStream.foreachBatch(each).option("checkpointLocation", place)
    return writer.trigger(**trigger).start() if trigger else writer.start()


def progress(stream: str | StreamingQuery, metrics: str = "hitbox") -> list[dict[str, Any]]:
    """What the batches of a stream did, oldest first: batch, version, events, matches, bad_events, seconds and
    seconds_matching. `bad_events` are those that did not fit, if `on_error` lets them pass.

    For a query there is also `snapshot_age_seconds`: how long ago the version was published.

    Parameters
    ----------
    stream: the checkpoint of a `match_stream`, or a query with a `match` in it (Spark keeps its last 100 batches)
    metrics: as given to `match`
    """
    if isinstance(stream, str | os.PathLike):
        return [json.loads(text) for text in snapshot_files.texts(join(resolve(stream), "hitbox", "batches"))]
    if not hasattr(stream, "recentProgress"):
        raise ValueProblem(f"progress takes the checkpoint of a match_stream, or a query, not {stream!r:.80}")
    figures = [_figures(one, metrics) for one in stream.recentProgress if metrics in one.observedMetrics]
    return [one for one in figures if one["events"] is not None]  # a batch without events has none


def _figures(one: Any, metrics: str) -> dict[str, Any]:
    found = one.observedMetrics[metrics].asDict()
    if "schema" in found:  # as Spark Connect gives it
        found = dict(zip([field["name"] for field in found["schema"]["fields"]], found["values"], strict=True))
    return {"batch": one.batchId, **found, "seconds": one.durationMs["triggerExecution"] / 1000}


def stop(query: StreamingQuery) -> None:
    """Stop a query; raise a HitboxError if it had failed."""
    problem = query.exception()
    query.stop()
    if problem is not None:
        raise HitboxError(f"the stream failed: {error_in(str(problem)) or problem}")


def stream_name(checkpoint: str) -> str:
    """The name under which the stream with this checkpoint pins versions."""
    return f"stream-{hashlib.sha256(resolve(checkpoint).encode()).hexdigest()[:16]}"


@dataclass(frozen=True)
class Asked:
    """What the user asked for, apart from the version."""

    path: str
    event_id: str | None
    form: str
    limit: int | None
    keep: tuple[str, ...]
    where: str | None
    allow_missing: bool
    on_error: str = "raise"
    match_steps: int | None = None

    def prepare(self, events: DataFrame, version: int | None) -> Any:
        return prepare(events, version=version, **vars(self))


@dataclass(frozen=True)
class Output:
    """Where the results of batches go, each exactly once, and where it is noted what a batch did."""

    checkpoint: str
    out: str | None
    sink: Sink | None

    @classmethod
    def checked(cls, spark: SparkSession, out: str | None, sink: Sink | None, checkpoint: str) -> Output:
        """What is wrong with these places is found here, before work starts."""
        if sink is not None and not callable(sink):
            raise ValueProblem(f"sink is a function of (matches, batch_id), not {sink!r:.80}")
        if (out is None) == (sink is None):
            raise ValueProblem("give either out=, a path for Parquet, or sink=, a function of (matches, batch_id)")
        if not checkpoint:
            raise ValueProblem("give checkpoint=, a path where the stream notes what was done")
        table = None if out is None else spark_address(spark, out)
        snapshot_files.require_writable(resolve(checkpoint), "a checkpoint")
        if table is not None and scheme_of(table) in (None, "file", "dbfs"):
            snapshot_files.require_writable(resolve(table), "matches")
        return cls(resolve(checkpoint), table, sink)

    @property
    def name(self) -> str:
        return stream_name(self.checkpoint)

    @property
    def notes(self) -> str:
        """Where the checkpoint notes the version of its last batch."""
        return join(self.checkpoint, "hitbox", "pin")

    def unfinished(self, path: str) -> dict[str, Any] | None:
        """The pin of the batch that the stream repeats when it starts, because Spark has not committed it."""
        begun, done = (snapshot_files.names(join(self.checkpoint, log)) for log in ("offsets", "commits"))
        last = max((int(name) for name in begun if name.isdigit()), default=None)
        return None if last is None or str(last) in done else self.pinned(path, last)

    def pinned(self, path: str, batch_id: int) -> dict[str, Any] | None:
        """What a batch is pinned to, by the pin or, where there is none of this batch, by the note."""
        pin = snapshot_files.pinned(path, self.name)
        if pin is not None and pin["batch"] == batch_id:
            return pin
        notes: list[dict[str, Any]] = [json.loads(text) for text in snapshot_files.texts(self.notes)]
        found = [note for note in notes if (note["path"], note["batch"]) == (without_passwords(path), batch_id)]
        try:
            for note in found:
                snapshot_files.facts(path, note["version"])
        except SnapshotError as problem:
            raise SnapshotError(
                f"{problem}; batch {batch_id} began with it, before the checkpoint was moved or copied: remove the "
                f"folder {without_passwords(self.notes)} to repeat the batch with the current version"
            ) from None
        return next(iter(found), None)

    def pin(self, path: str, version: int, batch_id: int) -> None:
        """Keep a version for a batch; a version that is gone already is an error."""
        snapshot_files.pin(path, self.name, version, batch_id)
        note = {"path": without_passwords(path), "batch": batch_id, "version": version}
        snapshot_files.write_text(join(self.notes, "last.json"), json.dumps(note))

    def write(self, result: DataFrame, batch_id: int, doing: str) -> None:
        """Replaces what was written before for this batch."""
        with job_description(result.sparkSession, doing):
            if self.sink is not None:
                self.sink(result, batch_id)
            else:
                result.write.mode("overwrite").parquet(f"{self.out}/batch_id={batch_id}")

    @contextlib.contextmanager
    def counting(self, matches: int = 1) -> Iterator[list[str]]:
        """A new folder per match for the totals of its tasks in this attempt at a batch; errors with them are
        ignored."""
        counts = join(self.checkpoint, "hitbox", "counts")
        snapshot_files.remove(counts)  # of an attempt that was killed
        places = [join(counts, uuid.uuid4().hex) for _ in range(matches)]
        for place in places:
            if not is_remote(place):
                Path(place).mkdir(parents=True)
        try:
            yield places
        finally:
            with contextlib.suppress(SnapshotError):  # an error here would hide the one of the sink
                snapshot_files.remove(counts)

    def note(self, **facts: Any) -> None:
        folder, number = join(self.checkpoint, "hitbox", "batches"), facts["batch"]
        snapshot_files.write_text(join(folder, f"{number:08d}.json"), json.dumps(facts))
        snapshot_files.remove(join(folder, f"{number - KEPT_BATCHES:08d}.json"))


@dataclass(frozen=True)
class Batch:
    """Handles each micro-batch; pickled to the server if the session is a Connect one."""

    asked: Asked
    output: Output

    def __call__(self, events: DataFrame, batch_id: int) -> None:
        began = time.perf_counter()
        version = self._pin(batch_id)
        job, schema = self.asked.prepare(events, version)
        with self.output.counting() as (counts,), raised_again():
            matches = with_version(run(events, replace(job, counts=counts), schema, STREAM_MATCH), version)
            doing = f"hitbox: batch {batch_id} against version {version} of {without_passwords(self.asked.path)}"
            self.output.write(matches, batch_id, doing)
            count = passed(counts)
        self.output.note(
            batch=batch_id,
            version=version,
            events=count.events,
            matches=count.matches,
            bad_events=count.bad_events,
            seconds_matching=round(count.seconds, 4),
            seconds=round(time.perf_counter() - began, 4),
        )

    def _pin(self, batch_id: int) -> int:
        """The version of this batch, fixed before any work is done with it."""
        path = self.asked.path
        pin = self.output.pinned(path, batch_id)
        for attempt in range(5):
            version = snapshot_files.current(path) if pin is None else int(pin["version"])
            try:
                self.output.pin(path, version, batch_id)
            except SnapshotError:  # removed between the two lines: there is a newer one
                if attempt == 4:
                    raise
                continue
            break
        return version
