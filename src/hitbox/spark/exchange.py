"""exchange: both sides filter, both sides are kept, and newcomers of both sides arrive in batches.

    path/subscriptions    a snapshot: what subscriptions ask of events, and say about themselves
    path/events           a snapshot with the roles swapped: what events ask of subscriptions, and say about themselves

    a batch     new events, new subscriptions           both sides are read and encoded before anything is stored
    store       both sides become the next versions     under one lock, so the two versions belong together
    note        checkpoint/hitbox/exchange.json         the two versions, before any pair is written (streams only)
    match       new events          x all subscriptions
                new subscriptions   x the other events

So a batch gives the pairs of which at least one side is new in it, each once, as both sides are after the batch.
A batch that is repeated, as a whole or from the middle, stores the same rows again, which changes nothing, and gives
the same pairs.

`on_error` says what happens to rows of either side that do not fit. They are sorted out before anything is stored.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming import StreamingQuery

from hitbox.encoding.events import from_table
from hitbox.encoding.fitting import FOR_EVENTS, check_on_error
from hitbox.encoding.keys import Keys
from hitbox.encoding.schema import Schema
from hitbox.errors import HitboxError, SchemaError, TableError, ValueProblem, counted, nearest
from hitbox.index.exchange import MATCHES_ALL
from hitbox.index.load import bulk_load
from hitbox.index.matches import ERROR
from hitbox.language import DEFAULT_LIMITS
from hitbox.spark import snapshot_files
from hitbox.spark.build import build
from hitbox.spark.changes import Change, Memory, ids_of
from hitbox.spark.column_names import check_events, quoted, report_ignored, with_nested_fields, without_collations
from hitbox.spark.columns import (
    ID_TYPES,
    check_subscriptions,
    columns_read,
    empty_table,
    field_of,
    require_whole,
    without,
)
from hitbox.spark.match import prepare, run
from hitbox.spark.match_task import passed
from hitbox.spark.stream import Output, Sink, start
from hitbox.spark.task_progress import show_matches
from hitbox.spark.worker_check import require_hitbox
from hitbox.storage import snapshot
from hitbox.storage.addresses import join, resolve, without_passwords
from hitbox.storage.retention import Keep, check_keep

RESERVED = ("id", "where", "priority", "op", "sequence")
MAX_NAMED = 5
LATEST, CLASH = "_hitbox_latest", "_hitbox_clash"
"""Columns beside those of the rows, which may have any other names."""
TWICE = "this id occurs more than once in one batch, with different values; latest_by=COLUMN decides which row counts"


def exchange(
    events: DataFrame | None,
    subscriptions: DataFrame | None,
    path: str,
    schema: Schema | Mapping[str, Any] | None = None,
    out: str | None = None,
    checkpoint: str = "",
    event_id: str = "event_id",
    *,
    where: str | None = "where",
    latest_by: str | None = None,
    allow_missing: bool = False,
    on_error: str = "raise",
    match_steps: int | None = None,
    keep: Keep | None = None,
    sink: Sink | None = None,
    trigger: dict[str, Any] | None = None,
) -> DataFrame | StreamingQuery:
    """Store new events and new subscriptions at `path`; the pairs that suit each other and of which one is new.

    Tables: a DataFrame with the columns `event_id` and `subscription` comes back. Streams: a started query, which does
    the same with each micro-batch, and writes the pairs to Parquet at `out`, one folder per batch (`batch_id=7`), or
    gives them to `sink(pairs, batch_id)`, which must replace what it wrote before if a batch id is repeated.

    An id that is stored already is replaced, and its pairs are reported again. A side may be None.

    A row of either side that does not fit is an error that names it, and nothing of its batch is stored. With
    `on_error="null"` a value that does not fit is null, and what does not fit even then, such as a predicate that is
    wrong, is left out. With "return" all of the row is left out, and comes back as a row with the reason in the column
    `error`, its own id, and null instead of the other side.

    Parameters
    ----------
    events: `event_id`, what the event says (a column per criteria attribute), and what it asks
    subscriptions: id, where, optionally priority, and what it says about itself (a column per information attribute)
    schema: of the exchange, as in `hitbox.Exchange`; only the first call needs it
    where: the column with each event's own predicate; None if events accept everybody. A null accepts everybody
    latest_by: the column, in both tables, that decides which of several rows with one id in one batch counts
    allow_missing: treat an attribute that a table has no column for as null
    on_error: what happens to a row that does not fit: "raise", "null" or "return"
    match_steps: what one stored row may take on one that is new, as in `match`
    keep: which versions stay, as in `build`
    checkpoint, trigger: of the stream, as in `match_stream`

    A column `op` says what a row does: "publish" or "withdraw" an event, "subscribe" or "unsubscribe". Without it, all
    rows are newcomers.
    """
    given = [frame for frame in (events, subscriptions) if frame is not None]
    if not given:
        raise ValueProblem("give events, subscriptions or both")
    if len({frame.isStreaming for frame in given}) > 1:
        raise TableError("one side is a stream and the other a table: call exchange for the table first, then start it")
    path = resolve(path)
    check_keep(keep)
    check_on_error(on_error, FOR_EVENTS)
    require_whole(match_steps, "match_steps", 1)
    if on_error == "return" and event_id == ERROR:
        raise TableError(f"the events have ids in a column {ERROR!r}, which is the name of a result: rename it")
    agreed = _schema(path, schema)
    snapshot_files.require_writable(path, "an exchange")
    spark = given[0].sparkSession
    sides: dict[str, tuple[Side, DataFrame]] = {}
    if events is not None:
        sides["events"] = _events_side(events, agreed, event_id, where, latest_by, allow_missing)
    if subscriptions is not None:
        sides["subscriptions"] = _subscriptions_side(subscriptions, agreed, latest_by, allow_missing)
    work = Exchange(path, agreed, event_id, allow_missing, on_error, match_steps, keep)
    if given[0].isStreaming:
        output = Output.checked(spark, out, sink, checkpoint)
        require_hitbox(spark)
        batch = Batch(work, {name: side for name, (side, _) in sides.items()}, output)
        return start(_together(list(sides.values())), batch, checkpoint, trigger)
    if out is not None or sink is not None or checkpoint:
        raise ValueProblem("out, sink and checkpoint are for streams; of tables the pairs come back as a DataFrame")
    require_hitbox(spark)
    newcomers = Newcomers.of({name: side.collected(rows) for name, (side, rows) in sides.items()}, on_error)
    return work.pairs(spark, newcomers, work.store(spark, newcomers))


@dataclass(frozen=True)
class Versions:
    """What both sides are after a batch; None for a side that nobody has come to yet."""

    events: int | None
    subscriptions: int | None


@dataclass(frozen=True)
class Side:
    """One of the two tables, in the form in which it is stored."""

    noun: str
    come: str
    go: str
    schema: Schema
    """As this side is stored: what it says about itself is information."""
    columns: tuple[str, ...]
    latest: bool

    def collected(self, rows: DataFrame) -> Rows:
        """The rows of a batch, one per id."""
        names = [name for name in self.columns if name != "id"]
        whole = F.struct(*[quoted(name) for name in names])
        grouped = rows.groupBy("id").agg(F.max(whole).alias("last"), F.min(whole).alias("first"))
        clash = F.lit(False) if self.latest else ~F.col("last").eqNullSafe(F.col("first"))
        fields = [F.col("last").getField(name).alias(name) for name in names if name != LATEST]
        table = grouped.select("id", *fields, clash.alias(CLASH)).toArrow()
        errors = dict.fromkeys(pc.indices_nonzero(table[CLASH]).to_pylist(), TWICE)
        known = pc.fill_null(pc.is_in(table["op"], pa.array([self.come, self.go])), False)
        for row in pc.indices_nonzero(pc.invert(known)).to_pylist():
            errors[row] = f"op {table['op'][row].as_py()!r} is neither {self.come} nor {self.go}"
        errors |= dict.fromkeys(pc.indices_nonzero(table["id"].is_null()).to_pylist(), "id is null")
        return Rows(self, table.drop_columns([CLASH]), errors)


@dataclass(frozen=True)
class Rows:
    """The rows of one side in a batch, one per id: op, id, where and what they say."""

    side: Side
    table: pa.Table
    errors: dict[int, str]
    bad: tuple[tuple[Any, str], ...] = ()
    """(id, reason) of those that do not fit, if they were sorted out."""

    @property
    def id_type(self) -> str:
        return "int" if pa.types.is_integer(self.table["id"].type) else "string"

    def arrived(self) -> pa.Table:
        """Those that came, not those that left."""
        return self.table.filter(self._came()).drop_columns(["op"])

    def gone(self) -> pa.Array:
        """The ids of those that left."""
        return ids_of(self.table.filter(pc.equal(self.table["op"], self.side.go)))

    def sorted_out(self, on_error: str) -> Rows:
        """Those that can be stored; the others are in `bad`, and so are those whose values are null now."""
        rows, errors = self, self._problems()
        bad = tuple((self.table["id"][row].as_py(), errors[row]) for row in sorted(errors))
        if errors and on_error == "null":
            rows = replace(self, table=self._nulled())
            errors = rows._problems()
        kept = np.ones(self.table.num_rows, bool)
        kept[list(errors)] = False
        return Rows(self.side, rows.table.filter(pa.array(kept)), {}, bad)

    def _problems(self) -> dict[int, str]:
        """Why rows cannot be stored."""
        schema = self.side.schema
        keys, draft = Keys(schema), bulk_load.read(self.arrived(), schema, DEFAULT_LIMITS)
        keys.admit(draft.strings(keys))
        draft.encode(keys, DEFAULT_LIMITS)
        return self._with_numbers(draft)

    def _with_numbers(self, draft: bulk_load.Draft) -> dict[int, str]:
        """What is wrong with the rows that came, and with the others."""
        numbers = pc.indices_nonzero(self._came()).to_pylist()
        return {numbers[row]: message for row, message in draft.errors.items()} | self.errors

    def _nulled(self) -> pa.Table:
        """The rows, with null in place of the values that do not fit."""
        table, schema = self.table, self.side.schema.swapped()
        for name in schema.with_role("criteria"):
            columns = [one for one in (name, *schema.end_columns(name)) if one in table.column_names]
            bad = np.zeros(table.num_rows, bool)
            if columns:
                from_table(Keys(schema), table.select(columns), bad=bad)
            for column in columns if bad.any() else ():
                none = pa.nulls(table.num_rows, table[column].type)
                found = pc.if_else(pa.array(bad), none, table[column])
                table = table.set_column(table.column_names.index(column), column, found)
        return table

    def refuse(self, draft: bulk_load.Draft) -> None:
        """Raise an error that names the rows that do not fit; `draft`: those that came, after they were encoded."""
        errors = self._with_numbers(draft)
        if not errors:
            return
        noun, ids = self.side.noun, self.table["id"]
        lines = "\n".join(f"{noun} {ids[row].as_py()!r}: {errors[row]}" for row in sorted(errors)[:MAX_NAMED])
        more = f"\n... and {len(errors) - MAX_NAMED} more" if len(errors) > MAX_NAMED else ""
        count = counted(len(errors), f"{noun} does", f"{noun}s do")
        raise TableError(f"{count} not fit; nothing was stored (on_error='return' leaves bad rows out):\n{lines}{more}")

    def _came(self) -> pa.Array:
        return pc.fill_null(pc.equal(self.table["op"], self.side.come), False)


@dataclass(frozen=True)
class Newcomers:
    """The rows of a batch."""

    events: Rows | None = None
    subscriptions: Rows | None = None

    @classmethod
    def of(cls, sides: Mapping[str, Rows], on_error: str) -> Newcomers:
        """Those that can be stored. With "raise", storing them says what is wrong."""
        if on_error == "raise":
            return cls(**sides)
        return cls(**{name: rows.sorted_out(on_error) for name, rows in sides.items()})


def _events_side(
    frame: DataFrame, schema: Schema, event_id: str, where: str | None, latest_by: str | None, allow_missing: bool
) -> tuple[Side, DataFrame]:
    if event_id == "subscription":
        raise TableError("the events have ids in a column 'subscription', which is the name of a result: rename it")
    if where == "where" and where not in frame.columns:
        raise TableError(
            "the events have no column 'where': name the one that holds their predicates, such as where='asks', or "
            "give where=None if they accept everybody"
        )
    frame = without_collations(with_nested_fields(frame, [event_id, where, latest_by]))
    check_events(frame, schema)
    words = "event", "publish", "withdraw"
    return _side(words, frame, schema.swapped(), event_id, where, latest_by, allow_missing)


def _subscriptions_side(
    frame: DataFrame, schema: Schema, latest_by: str | None, allow_missing: bool
) -> tuple[Side, DataFrame]:
    frame = without_collations(with_nested_fields(frame, ["id", "where", latest_by]))
    report_ignored(frame, schema, ["op", latest_by])
    words = "subscription", "subscribe", "unsubscribe"
    return _side(words, frame, schema, "id", "where", latest_by, allow_missing)


def _side(
    words: tuple[str, str, str],
    frame: DataFrame,
    schema: Schema,
    id: str,
    where: str | None,
    latest_by: str | None,
    allow_missing: bool,
) -> tuple[Side, DataFrame]:
    """A side and its rows in the form in which they are stored."""
    noun = words[0]
    kind = field_of(frame, id, f"the ids of the {noun}s:").dataType
    if not isinstance(kind, (T.IntegralType, T.StringType)):
        raise TableError(f"the ids of the {noun}s, {id!r}, are whole numbers or strings, not {kind.simpleString()}")
    asks = F.lit(None) if where is None else quoted(field_of(frame, where, f"the predicates of the {noun}s:").name)
    said, absent = columns_read(schema.swapped(), frame.columns)
    if absent and not (allow_missing and said):
        names = ", ".join(map(repr, absent[:MAX_NAMED]))
        raise TableError(
            f"the {noun}s have no column {names}, which the schema has{nearest(absent[0], frame.columns)} "
            "(allow_missing=True treats an absent column as null)"
        )
    columns: list[Column] = []
    if latest_by is not None:
        columns.append(quoted(field_of(frame, latest_by, "latest_by").name).alias(LATEST))
    columns += [
        (quoted("op") if "op" in frame.columns else F.lit(words[1])).alias("op"),
        quoted(id).cast("long" if isinstance(kind, T.IntegralType) else "string").alias("id"),
        F.coalesce(asks.cast("string"), F.lit(MATCHES_ALL)).alias("where"),
        *([quoted("priority")] if noun == "subscription" and "priority" in frame.columns else []),
        *[quoted(name) for name in said],
    ]
    rows = frame.select(*columns)
    try:  # what storing and matching would find wrong, after the other side is stored
        check_subscriptions(without(rows.schema, "op", LATEST), schema)
        from_table(Keys(schema.swapped()), empty_table([rows.schema[name] for name in said]))
    except HitboxError as problem:
        raise TableError(f"the {noun}s: {str(problem).removeprefix('subscriptions: ')}") from None
    return Side(*words, schema, tuple(rows.columns), latest_by is not None), rows


@dataclass(frozen=True)
class Exchange:
    """What is done with each batch."""

    path: str
    schema: Schema
    event_id: str
    allow_missing: bool
    on_error: str
    match_steps: int | None
    keep: Keep | None

    @property
    def events(self) -> str:
        return join(self.path, "events")

    @property
    def subscriptions(self) -> str:
        return join(self.path, "subscriptions")

    def store(
        self, spark: SparkSession, newcomers: Newcomers, pin: Callable[[str, int], None] | None = None
    ) -> Versions:
        """Make both sides the next versions; what these are. `pin` is called with the place and version of each."""
        with contextlib.ExitStack() as locks:
            locks.enter_context(snapshot_files.writing(self.path))  # the two versions belong together
            sides = ((newcomers.events, self.events), (newcomers.subscriptions, self.subscriptions))
            steps = [self._prepared(spark, rows, place, locks) for rows, place in sides]
            versions = Versions(*[step() for step in steps])
            for version, (_, place) in zip((versions.events, versions.subscriptions), sides, strict=True):
                if pin is not None and version is not None:  # now: the next newcomers may make others
                    pin(place, version)
            return versions

    def _prepared(
        self, spark: SparkSession, rows: Rows | None, place: str, locks: contextlib.ExitStack
    ) -> Callable[[], int | None]:
        """A function that stores the rows and returns the version that has them; what is wrong is found before."""
        there = exists(place)
        if rows is None or not rows.table.num_rows:
            return lambda: snapshot_files.current(place) if there else None
        arrived, schema = rows.arrived(), rows.side.schema
        draft = bulk_load.read(arrived, schema, DEFAULT_LIMITS)
        if not there:
            keys = Keys(schema)
            keys.admit(draft.strings(keys))
            draft.encode(keys, DEFAULT_LIMITS)
            rows.refuse(draft)
            frame = _frame(spark, arrived)
            return lambda: build(frame, place, schema, keep=self.keep).version if arrived.num_rows else None
        locks.enter_context(snapshot_files.writing(place))
        facts = snapshot_files.facts(place)
        if facts["id_type"] != rows.id_type:
            raise TableError(
                f"the exchange has {rows.side.noun}s with ids of type {facts['id_type']}, these have {rows.id_type}; "
                "nothing was stored"
            )
        change = Change(place, facts, draft, rows.gone())
        rows.refuse(draft)
        # the numbers only grow here, so nothing needs to be remembered of the batches before
        memory = Memory.read(place, facts)
        numbers = np.full(rows.table.num_rows, max(memory.last, 0) + 1, np.int64)
        memory.add(ids_of(rows.table), numbers, remember=1)
        return lambda: change.publish(spark, memory, self.keep)[0]

    def pairs(
        self,
        spark: SparkSession,
        newcomers: Newcomers,
        versions: Versions,
        counts: tuple[str | None, str | None] = (None, None),
    ) -> DataFrame:
        """The pairs that suit each other, of which at least one is a newcomer; with on_error="return" also the rows
        that do not fit. `counts`: where the tasks of the two matches leave their figures."""
        found: list[DataFrame] = []
        error = [ERROR] if self.on_error == "return" else []
        events = _arrived(newcomers.events)
        if events is not None and versions.subscriptions is not None:
            hits = self._match(spark, events, self.subscriptions, versions.subscriptions, counts[0])
            found.append(hits.select(F.col("id").alias(self.event_id), "subscription", *error))
        subscriptions = _arrived(newcomers.subscriptions)
        if subscriptions is not None and versions.events is not None:
            hits = self._match(spark, subscriptions, self.events, versions.events, counts[1])
            hits = hits.select(F.col("subscription").alias(self.event_id), F.col("id").alias("subscription"), *error)
            if events is not None:  # their pairs are found already
                new = _frame(spark, events.select(["id"])).withColumnRenamed("id", self.event_id)
                hits = hits.join(F.broadcast(new), self.event_id, "left_anti")
            found.append(hits)
        bad = self._bad(newcomers) if error else []
        if bad or not found:
            kinds = [
                (self.event_id, self._id_type(newcomers.events, self.events)),
                ("subscription", self._id_type(newcomers.subscriptions, self.subscriptions)),
                *((name, T.StringType()) for name in error),
            ]
            fields = T.StructType([T.StructField(name, kind) for name, kind in kinds])
            found.append(spark.createDataFrame(bad, fields))
        return reduce(DataFrame.unionByName, found)

    @staticmethod
    def _bad(newcomers: Newcomers) -> list[tuple[Any, Any, str]]:
        """The rows that were left out, as they come back."""
        events = [] if newcomers.events is None else newcomers.events.bad
        subscriptions = [] if newcomers.subscriptions is None else newcomers.subscriptions.bad
        return [(id, None, reason) for id, reason in events] + [(None, id, reason) for id, reason in subscriptions]

    def _match(self, spark: SparkSession, rows: pa.Table, place: str, version: int, counts: str | None) -> DataFrame:
        asked = "id", "pairs", None, (), "where", version, self.allow_missing, self.on_error, self.match_steps
        frame = _frame(spark, rows)
        job, schema = prepare(frame, place, *asked)
        show_matches(spark)
        return run(frame, replace(job, counts=counts), schema)

    def _id_type(self, rows: Rows | None, place: str) -> T.DataType:
        if rows is not None:
            return ID_TYPES[rows.id_type]
        return ID_TYPES[snapshot_files.facts(place)["id_type"] if exists(place) else "int"]


@dataclass(frozen=True)
class Batch:
    """Handles each micro-batch; pickled to the server if the session is a Connect one."""

    work: Exchange
    sides: dict[str, Side]
    output: Output

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        began, spark = time.perf_counter(), frame.sparkSession
        collected = {name: side.collected(_of_side(frame, side)) for name, side in self.sides.items()}
        newcomers = Newcomers.of(collected, self.work.on_error)
        versions = self._versions(spark, newcomers, batch_id)
        doing = f"hitbox: batch {batch_id} of the exchange {without_passwords(self.work.path)}"
        with self.output.counting(2) as (first, second):
            self.output.write(self.work.pairs(spark, newcomers, versions, (first, second)), batch_id, doing)
            expensive = [passed(place).bad_events for place in (first, second)]
        bad = [0 if rows is None else len(rows.bad) for rows in (newcomers.events, newcomers.subscriptions)]
        self.output.note(
            batch=batch_id,
            events=collected["events"].table.num_rows if "events" in collected else 0,
            subscriptions=collected["subscriptions"].table.num_rows if "subscriptions" in collected else 0,
            bad_events=bad[0] + expensive[0],
            bad_subscriptions=bad[1] + expensive[1],
            events_version=versions.events,
            subscriptions_version=versions.subscriptions,
            seconds=round(time.perf_counter() - began, 4),
        )

    def _versions(self, spark: SparkSession, newcomers: Newcomers, batch_id: int) -> Versions:
        """What both sides are after this batch: noted before the first pair is written, so that a repetition of the
        batch finds the same pairs even if others came in between."""
        folder = join(self.output.checkpoint, "hitbox", "exchange")
        for text in snapshot_files.texts(folder):
            if (noted := json.loads(text))["batch"] == batch_id:
                return Versions(noted["events"], noted["subscriptions"])

        def pin(place: str, version: int) -> None:  # so that it is not removed
            snapshot_files.pin(place, self.output.name, version, batch_id)

        versions = self.work.store(spark, newcomers, pin)
        noted = {"batch": batch_id, "events": versions.events, "subscriptions": versions.subscriptions}
        snapshot_files.write_text(join(folder, "versions.json"), json.dumps(noted))
        return versions


def exists(place: str) -> bool:
    """Whether a snapshot, intact or not, is there."""
    return "CURRENT" in snapshot_files.names(place) or bool(
        snapshot.numbered(snapshot_files.names(join(place, "versions")))
    )


def _schema(path: str, given: Schema | Mapping[str, Any] | None) -> Schema:
    """The schema of the exchange: of what is stored, or else the given one."""
    wanted = given if given is None or isinstance(given, Schema) else Schema(given)
    for side in ("subscriptions", "events"):
        place = join(path, side)
        if exists(place):
            found = Schema.from_json(snapshot_files.facts(place)["schema"])
            found = found if side == "subscriptions" else found.swapped()
            if wanted is not None and wanted != found:
                raise SchemaError(f"the exchange at {without_passwords(path)} has another schema: {found!r}")
            return found
    if wanted is None:
        raise SchemaError(
            f"there is no exchange at {without_passwords(path)} yet: give its schema, "
            "such as schema={'salary': 'int', 'age': hitbox.Attribute('int', role='information')}"
        )
    taken = [name for name in RESERVED if name in wanted]
    if taken:
        raise SchemaError(f"an attribute of an exchange cannot be called {taken[0]!r}, like a column: rename it")
    return wanted


def _together(sides: list[tuple[Side, DataFrame]]) -> DataFrame:
    """One stream of both: a row has an event or a subscription."""
    parts = []
    for side, rows in sides:
        whole = F.struct(*[quoted(name) for name in side.columns])
        columns = [(whole if of is side else F.lit(None)).cast(like.schema).alias(of.noun) for of, like in sides]
        parts.append(rows.select(*columns))
    return parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])


def _of_side(frame: DataFrame, side: Side) -> DataFrame:
    """The rows of one side in a batch of both."""
    fields = [F.col(side.noun).getField(name).alias(name) for name in side.columns]
    return frame.where(F.col(side.noun).isNotNull()).select(*fields)


def _arrived(rows: Rows | None) -> pa.Table | None:
    """Those that came, not those that left; None if there are none."""
    arrived = None if rows is None else rows.arrived()
    return arrived if arrived is not None and arrived.num_rows else None


def _frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """The table as Spark gave it: a time without a zone must not become one in the zone of the session."""
    return spark.createDataFrame(table, from_arrow_schema(table.schema, prefer_timestamp_ntz=True))
