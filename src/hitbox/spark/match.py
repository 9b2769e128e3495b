"""match: an events DataFrame against a snapshot, or against a DataFrame of subscriptions built on the fly.

The job runs where the events are: every task memory-maps the snapshot and matches its partition (match_task.py).
If the snapshot is larger than a host's memory, `by_part=True` sends each event to every part instead, so that a task
opens one part at a time, and merges what the parts found.
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
from hitbox.spark.column_names import check_events, numbered_columns, quoted, with_nested_fields
from hitbox.spark.columns import ID_TYPES, event_columns, field_of, schema_of_bounds, schema_of_events
from hitbox.spark.match_task import FORMS, Job
from hitbox.spark.versions import chosen
from hitbox.spark.worker_check import require_hitbox
from hitbox.storage.addresses import join, resolve
from hitbox.storage.retention import Moment

RESULTS = {"arrays": "subscriptions", "pairs": "subscription", "counts": "matches"}
VERSION = "snapshot_version"


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
    scratch: str | None = None,
) -> DataFrame:
    """Which subscriptions want each event: `event_id`, the columns in `keep`, and the matches, most urgent first.

    The column `snapshot_version` says which version of the snapshot was used; without a snapshot there is none.

    Parameters
    ----------
    subscriptions: path of a snapshot, or a DataFrame of subscriptions in either layout
    form: "arrays" (one array of ids per event), "pairs" (one row per match) or "counts" (matches per event)
    limit: at most this many matches per event, the most urgent ones
    where: the column with each event's own predicate over what subscriptions say about themselves
    version: of the snapshot (default: the current one)
    as_of: the version that was current at this time, such as "2026-01-31 12:00:00" (UTC) or a datetime
    allow_missing: treat an attribute that the events have no column for as null
    by_part: send events to the parts of the snapshot instead of opening all parts in each task
    scratch: where to put the snapshot of a DataFrame; every worker must be able to read it
    """
    events = with_nested_fields(events, [event_id, *keep, where])
    on_the_fly = isinstance(subscriptions, DataFrame)
    if on_the_fly:
        others = [name for name in (event_id, *keep, where) if name]
        subscriptions = _built(events, subscriptions, others, scratch)
    path = resolve(subscriptions)
    version = chosen(path, version, as_of)
    job, schema = prepare(events, path, event_id, form, limit, keep, where, version, allow_missing)
    require_hitbox(events.sparkSession)
    if by_part:
        found = _by_part(events, job, schema, len(snapshot_files.facts(path, job.version).get("parts", [""])))
    else:
        found = run(events, job, schema)
    return found if on_the_fly else with_version(found, job.version)


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
    for name in (result, VERSION):
        if name in kept:
            raise TableError(f"the events have a column {name!r}, which is the name of a result: rename it")
    if where is not None:
        field_of(events, where, "where")
    schema = Schema.from_json(facts["schema"])
    check_events(events, schema)
    attributes = event_columns(events, schema, allow_missing)
    job = Job(path, facts["version"], snapshot_files.identity(facts), tuple(attributes), kept, form, limit, where)
    ids = ID_TYPES[facts["id_type"]]
    kind = {"arrays": T.ArrayType(ids), "pairs": ids, "counts": T.LongType()}[form]
    return job, T.StructType([*fields, T.StructField(result, kind)])


def run(events: DataFrame, job: Job, schema: T.StructType) -> DataFrame:
    """Pass only the columns that the job reads to the job."""
    read = list(dict.fromkeys([*job.kept, *job.attributes, *[name for name in (job.where, job.part) if name]]))

    def partition(batches: Any) -> Any:
        return job(batch.rename_columns(read) for batch in batches)

    return numbered_columns(events, read).mapInArrow(partition, schema)


def _by_part(events: DataFrame, job: Job, schema: T.StructType, parts: int) -> DataFrame:
    """Each event goes to each part; what the parts found is merged by the event's row."""
    row, part = "_hitbox_row", "_hitbox_part"
    numbers = F.explode(F.sequence(F.lit(0), F.lit(parts - 1)))
    spread = events.withColumn(row, F.monotonically_increasing_id()).withColumn(part, numbers).repartition(part)
    kept = tuple(field.name for field in schema.fields[:-1])
    fields = [*schema.fields[:-1], T.StructField(row, T.LongType()), schema.fields[-1]]
    values = {**job.__dict__, "kept": (*kept, row), "part": part}
    if job.form == "counts" or (job.form == "pairs" and job.limit is None):
        found = run(spread, Job(**values), T.StructType(fields))
        if job.form == "pairs":
            return found.drop(row)
        return _grouped(found, row, kept, F.sum("matches").alias("matches"))
    fields[-1] = T.StructField("subscriptions", T.ArrayType(_id_type(schema)))
    fields.append(T.StructField("priorities", T.ArrayType(T.IntegerType())))
    found = run(spread, Job(**{**values, "form": "arrays", "priorities": True}), T.StructType(fields))
    zipped = found.withColumn("found", F.arrays_zip("priorities", "subscriptions")).drop("priorities", "subscriptions")
    urgent = F.sort_array(F.flatten(F.collect_list("found")), asc=False)
    urgent = F.slice(urgent, 1, job.limit) if job.limit is not None else urgent
    merged = _grouped(zipped, row, kept, urgent["subscriptions"].alias("subscriptions"))
    if job.form == "arrays":
        return merged
    return merged.withColumn("subscription", F.explode("subscriptions")).drop("subscriptions")


def _grouped(found: DataFrame, row: str, kept: Sequence[str], result: Any) -> DataFrame:
    firsts = [F.first(quoted(name)).alias(name) for name in kept]
    return found.groupBy(row).agg(*firsts, result).drop(row)


def _id_type(schema: T.StructType) -> T.DataType:
    kind = schema.fields[-1].dataType
    return kind.elementType if isinstance(kind, T.ArrayType) else kind


def _built(events: DataFrame, subscriptions: DataFrame, others: Sequence[str], scratch: str | None) -> str:
    """A snapshot of a DataFrame, which lives as long as this process."""
    if "where" in subscriptions.columns:
        try:
            schema = schema_of_events(events, others)
        except HitboxError as problem:
            raise TableError(f"cannot infer the schema from the events: {problem}") from None
    else:
        schema = schema_of_bounds(subscriptions)
    path = join(resolve(scratch or tempfile.gettempdir()), f"hitbox-match-{uuid.uuid4().hex}")
    atexit.register(snapshot_files.remove, path)
    build(subscriptions, path, schema=schema)
    return path
