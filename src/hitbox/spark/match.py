"""match: an events DataFrame against a snapshot, or against a DataFrame of subscriptions built on the fly.

The job runs where the events are: every task memory-maps the snapshot and matches its partition (match_task.py).
If the snapshot is larger than a host's memory, `by_part=True` gives each task one part of it (part_match.py).
"""

from __future__ import annotations

import atexit
import tempfile
import uuid
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from hitbox.encoding.schema import Schema
from hitbox.errors import HitboxError, TableError, ValueProblem, nearest
from hitbox.spark import snapshot_files
from hitbox.spark.build import build
from hitbox.spark.columns import ID_TYPES, event_columns, field_of, schema_of_bounds, schema_of_events
from hitbox.spark.match_task import FORMS, Job
from hitbox.spark.part_match import match_by_part
from hitbox.spark.worker_check import require_hitbox
from hitbox.storage.addresses import join, resolve

RESULTS = {"arrays": "subscriptions", "pairs": "subscription", "counts": "matches"}


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
    allow_missing: bool = False,
    by_part: bool = False,
    scratch: str | None = None,
) -> DataFrame:
    """Which subscriptions want each event: `event_id`, the columns in `keep`, and the matches, most urgent first.

    Parameters
    ----------
    subscriptions: path of a snapshot, or a DataFrame of subscriptions in either layout
    form: "arrays" (one array of ids per event), "pairs" (one row per match) or "counts" (matches per event)
    limit: at most this many matches per event, the most urgent ones
    where: the column with each event's own predicate over what subscriptions say about themselves
    version: of the snapshot (default: the current one)
    allow_missing: treat an attribute that the events have no column for as null
    by_part: each task opens one part of the snapshot and gets all events, and what the parts found is merged; for
        snapshots larger than a host's memory
    scratch: where to put the snapshot of a DataFrame; every worker must be able to read it
    """
    if isinstance(subscriptions, DataFrame):
        others = [name for name in (event_id, *keep, where) if name]
        subscriptions = _built(events, subscriptions, others, scratch)
    path = resolve(subscriptions)
    job, schema = prepare(events, path, event_id, form, limit, keep, where, version, allow_missing)
    require_hitbox(events.sparkSession)
    if by_part:
        facts = snapshot_files.facts(path, job.version)
        return match_by_part(events, _read(job), job, schema, len(facts.get("parts", [""])), facts["id_type"])
    return run(events, job, schema)


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
) -> tuple[Job, T.StructType]:
    """The job and the schema of its result; everything that can be wrong is found here, before work starts."""
    if form not in FORMS:
        raise ValueProblem(f"form is one of {', '.join(FORMS)}, not {form!r}{nearest(str(form), FORMS)}")
    if limit is not None and (not isinstance(limit, int) or limit < 0):
        raise ValueProblem(f"limit is a whole number of at least 0, not {limit!r}")
    facts = snapshot_files.facts(path, version)
    kept = tuple(dict.fromkeys([event_id, *keep] if event_id else keep))
    fields = [field_of(events, name, "event_id" if name == event_id else "keep") for name in kept]
    result = RESULTS[form]
    if result in kept:
        raise TableError(f"the events have a column {result!r}, which is the name of the result: rename it")
    if where is not None:
        field_of(events, where, "where")
    attributes = event_columns(events, Schema.from_json(facts["schema"]), allow_missing)
    job = Job(path, facts["version"], snapshot_files.identity(facts), tuple(attributes), kept, form, limit, where)
    ids = ID_TYPES[facts["id_type"]]
    kind = {"arrays": T.ArrayType(ids), "pairs": ids, "counts": T.LongType()}[form]
    return job, T.StructType([*fields, T.StructField(result, kind)])


def run(events: DataFrame, job: Job, schema: T.StructType) -> DataFrame:
    """Pass only the columns that the job reads to the job."""

    def partition(batches: Any) -> Any:
        return job(batches)

    return events.select(*_read(job)).mapInArrow(partition, schema)


def _read(job: Job) -> list[Any]:
    """The columns of the events that a job reads."""
    names = dict.fromkeys([*job.kept, *job.attributes, *([job.where] if job.where else [])])
    return [F.col("`" + name.replace("`", "``") + "`") for name in names]


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
