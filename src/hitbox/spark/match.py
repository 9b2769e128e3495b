"""match: an events DataFrame against a snapshot, or against a DataFrame of subscriptions built on the fly.

The job runs where the events are: every task memory-maps the snapshot and matches its partition (match_task.py).
If the snapshot is larger than a host's memory, `by_part=True` gives each task one part of it (part_match.py).

A stream takes the same path; there, each micro-batch finds out its version inside its tasks (stream_task.py).
"""

from __future__ import annotations

import atexit
import contextlib
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from hitbox.encoding.fitting import FOR_EVENTS, check_on_error
from hitbox.encoding.schema import Schema
from hitbox.errors import HitboxError, SnapshotError, TableError, ValueProblem, nearest
from hitbox.index.matches import ERROR, RESULTS
from hitbox.spark import snapshot_files
from hitbox.spark.build import build
from hitbox.spark.column_names import check_events, numbered_columns, subscription_columns, with_nested_fields
from hitbox.spark.columns import (
    ID_TYPES,
    event_columns,
    event_columns_read,
    event_id_field,
    field_of,
    objects_of,
    require_frame,
    require_name,
    require_names,
    require_whole,
    schema_of_bounds,
    schema_of_events,
)
from hitbox.spark.match_task import FORMS, Job
from hitbox.spark.part_match import match_by_part
from hitbox.spark.stream_task import EXTRA_FIELDS, FIGURES, VERSION, StreamTask, figures
from hitbox.spark.task_errors import plainly
from hitbox.spark.task_progress import STREAM_MATCH, TABLE_MATCH, show_matches
from hitbox.spark.versions import chosen
from hitbox.spark.worker_check import require_hitbox
from hitbox.storage.addresses import join, resolve
from hitbox.storage.retention import Moment


def match(
    events: DataFrame,
    subscriptions: Any,
    event_id: str | None = "event_id",
    *,
    form: str = "arrays",
    limit: int | None = None,
    keep: Sequence[str] = (),
    where: str | None = None,
    version: int | None = None,
    as_of: Moment | None = None,
    allow_missing: bool = False,
    by_part: bool = False,
    on_error: str = "raise",
    match_steps: int | None = None,
    scratch: str | None = None,
    metrics: str = "hitbox",
    id_column: str | None = None,
    where_column: str | None = None,
) -> DataFrame:
    """Which subscriptions want each event: `event_id`, the columns in `keep`, and the matches, most urgent first.

    The column `snapshot_version` says which version of the snapshot was used; without a snapshot there is none.

    On a stream, every micro-batch is matched against one version: the one that is current when the batch starts. It
    is the same for all tasks, and again if Spark repeats the batch.

    An event does not fit with a value, or a `where`, that is wrong, or on which a subscription is too expensive. With
    `on_error="null"` what does not fit is null, and what is unknown then does not match. With "return" the row of the
    event has the reason in the column `error`, and null instead of matches.

    Parameters
    ----------
    subscriptions: path of a snapshot, or a DataFrame of subscriptions in either layout
    form: "arrays" (one array of ids per event), "pairs" (one row per match) or "counts" (matches per event)
    limit: at most this many matches per event, the most urgent ones
    where: the column with each event's own predicate over what subscriptions say about themselves
    version: of the snapshot (default: the current one; on a stream, the current one of each batch)
    as_of: the version that was current at this time, such as "2026-01-31 12:00:00" (UTC) or a datetime
    allow_missing: treat an attribute that the events have no column for as null
    by_part: each task opens one part and gets all events; for snapshots larger than a host's memory
    on_error: what happens to an event that does not fit: "raise", "null" or "return"
    match_steps: what one subscription may take on one event, as in `hitbox.Limits` (default: 5,000,000)
    scratch: where to put the snapshot of a DataFrame; every worker must be able to read it
    metrics: the name of a stream's figures in `StreamingQueryProgress.observedMetrics`, unique within the query
    id_column, where_column: of a DataFrame of subscriptions, as in `build`
    """
    require_frame(events, "events")
    require_names(keep, "keep")
    require_name(event_id, "event_id")
    require_name(where, "where")
    _require_columns(events)
    events = with_nested_fields(events, [event_id, *keep, where], objects=True)
    on_the_fly = isinstance(subscriptions, DataFrame)
    if on_the_fly:
        others = [name for name in (event_id, *keep, where) if name]
        subscriptions = subscription_columns(subscriptions, id_column, where_column)
        subscriptions = _built(events, subscriptions, others, scratch)
    path = resolve(subscriptions)
    version = chosen(path, version, as_of)
    try:
        job, schema = prepare(
            events, path, event_id, form, limit, keep, where, version, allow_missing, on_error, match_steps
        )
    except TableError as problem:
        older = _older_versions(path) if events.isStreaming and version is None else []
        if not older:
            raise
        names = " or ".join(f"version={number}" for number in older)
        raise TableError(
            f"{problem}; if the query has to finish a batch that began with an older version, start it with {names} "
            "until the batch is done"
        ) from None
    if events.isStreaming:
        found = _on_stream(events, job, schema, version, allow_missing, by_part, metrics)
        return found.drop(VERSION) if on_the_fly else found
    require_hitbox(events.sparkSession)
    show_matches(events.sparkSession)
    if by_part:
        found = match_by_part(events, _read(job), job, schema, *_parts_and_ids(job))
    else:
        found = run(events, job, schema)
    return found if on_the_fly else with_version(found, job.version)


def _require_columns(events: DataFrame) -> None:
    """Raise an error that says what to do where Spark does not tell the columns: in functions of a pipeline."""
    try:
        _ = events.schema
    except Exception as problem:  # classic sessions and Connect have no error in common
        if "ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION" not in str(problem):
            raise
        raise TableError(
            "match needs the columns of the events, which Spark does not tell inside the query function of a "
            "declarative pipeline: call match before the function, and return its result from the function "
            "(docs/how-to/declarative-pipelines.md)"
        ) from None


def with_version(matches: DataFrame, version: int) -> DataFrame:
    """The matches, with the version of the snapshot that they are of."""
    return matches.withColumn(VERSION, F.lit(version).cast("long"))


def prepare(
    events: DataFrame,
    path: str,
    event_id: str | None,
    form: str,
    limit: int | None,
    keep: Sequence[str],
    where: str | None,
    version: int | None,
    allow_missing: bool,
    on_error: str,
    match_steps: int | None,
) -> tuple[Job, T.StructType]:
    """The job and the schema of its result; everything that can be wrong is found here, before work starts."""
    if form not in FORMS:
        raise ValueProblem(f"form is one of {', '.join(FORMS)}, not {form!r}{nearest(str(form), FORMS)}")
    require_whole(limit, "limit", 0)
    require_whole(match_steps, "match_steps", 1)
    check_on_error(on_error, FOR_EVENTS)
    facts = snapshot_files.facts(path, version)
    kept = tuple(dict.fromkeys([event_id, *keep] if event_id else keep))
    fields = [event_id_field(events, name) if name == event_id else field_of(events, name, "keep") for name in kept]
    result = RESULTS[form]
    error = [T.StructField(ERROR, T.StringType())] if on_error == "return" else []
    for name in (result, VERSION, *(field.name for field in error)):
        if name in kept:
            raise TableError(f"the events have a column {name!r}, which is the name of a result: rename it")
    if where is not None and not isinstance(kind := field_of(events, where, "where").dataType, T.StringType):
        raise TableError(f"the predicates of the events, {where!r}, are texts, not {kind.simpleString()}")
    schema = Schema.from_json(facts["schema"])
    check_events(events, schema)
    attributes = event_columns(events, schema, allow_missing)
    job = Job(path, facts["version"], snapshot_files.identity(facts), tuple(attributes), kept, form, limit, where)
    objects = tuple(objects_of(attributes, events.columns))
    job = replace(job, objects=objects, on_error=on_error, match_steps=match_steps)
    ids = ID_TYPES[facts["id_type"]]
    kind = {"arrays": T.ArrayType(ids), "pairs": ids, "counts": T.LongType()}[form]
    return job, T.StructType([*fields, T.StructField(result, kind), *error])


def run(events: DataFrame, job: Job, schema: T.StructType, name: str = TABLE_MATCH) -> DataFrame:
    """Pass only the columns that the job reads to the job. Spark shows the name in its plans."""
    read = _read(job)

    def match_partition(batches: Any) -> Any:
        return job(batch.rename_columns(read) for batch in batches)

    match_partition.__name__ = name
    return numbered_columns(events, read).mapInArrow(plainly(match_partition), schema)


def _read(job: Job) -> list[str]:
    """The columns of the events that a job reads."""
    return list(dict.fromkeys([*job.kept, *job.attributes, *job.objects, *([job.where] if job.where else [])]))


def _parts_and_ids(job: Job) -> tuple[int, str]:
    """How many parts the snapshot has, and the type of its ids."""
    facts = snapshot_files.facts(job.path, job.version)
    return len(facts.get("parts", [""])), facts["id_type"]


def _on_stream(
    events: DataFrame,
    job: Job,
    schema: T.StructType,
    version: int | None,
    allow_missing: bool,
    by_part: bool,
    metrics: str,
) -> DataFrame:
    """The matches of each micro-batch, the version that they were found in, and figures for Spark's progress."""
    if FIGURES in job.kept:
        raise TableError(f"the events have a column {FIGURES!r}, which is the name of a result: rename it")
    if version is None:
        snapshot_files.require_writable(join(job.path, "pins"), "pins of the stream")
    require_hitbox(events.sparkSession)
    follow = version is None
    read = list(dict.fromkeys([*_read(job), *(_read_by_pinned(events, job.path) if follow else [])]))
    others = tuple(name for name in events.columns if name not in read)
    parts, id_type = _parts_and_ids(job)
    task = StreamTask(job, id_type, tuple(read), others, follow, allow_missing)

    def match_partition(batches: Any) -> Any:
        return task(batch.rename_columns(read) for batch in batches)

    match_partition.__name__ = STREAM_MATCH
    # all can be null, in the rows with figures; the metadata of an event-time column says what its watermark is
    fields = [T.StructField(field.name, field.dataType, True, field.metadata) for field in schema.fields]
    result = T.StructType([*fields, *EXTRA_FIELDS])
    if by_part:
        found = match_by_part(events, read, job, result, parts, id_type, task)
    else:
        found = numbered_columns(events, read).mapInArrow(plainly(match_partition), result)
    return found.observe(metrics, *figures()).where(F.col(FIGURES).isNull()).drop(FIGURES)


def _read_by_pinned(events: DataFrame, path: str) -> list[str]:
    """The columns that the versions read to which batches are pinned. Which query this one continues is known only in
    its tasks, and then it repeats its last batch with the version of that batch, not with the current one."""
    found = []
    for number in snapshot_files.pinned_versions(path):
        with contextlib.suppress(SnapshotError):  # of a query that is gone; the tasks say it of their own
            schema = Schema.from_json(snapshot_files.facts(path, number)["schema"])
            read, _ = event_columns_read(schema, events.columns)
            found += [*read, *objects_of(read, events.columns)]
    return found


def _older_versions(path: str) -> list[int]:
    """The versions that batches are pinned to, without the current one."""
    return sorted(snapshot_files.pinned_versions(path) - {snapshot_files.current(path)})


def _built(events: DataFrame, subscriptions: DataFrame, others: Sequence[str], scratch: str | None) -> str:
    """A snapshot of a DataFrame, which lives as long as this process."""
    if "where" in subscriptions.columns:
        try:
            schema = schema_of_events(events, others)
        except HitboxError as problem:
            raise TableError(f"cannot infer the schema from the events: {problem}") from None
    else:
        schema = schema_of_bounds(subscriptions.schema)
    path = join(resolve(scratch or tempfile.gettempdir()), f"hitbox-match-{uuid.uuid4().hex}")
    atexit.register(snapshot_files.remove, path)
    build(subscriptions, path, schema=schema)
    return path
