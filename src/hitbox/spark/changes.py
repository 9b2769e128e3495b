"""apply_changes: a log of subscribe and unsubscribe entries to the next version of a snapshot, incrementally.

    sequence  op           id   where              priority       (or the wide layout's bounds instead of `where`)
    1001      subscribe    17   "price > 3"           7
    1002      unsubscribe  18   null                  null

For each id the entry with the largest sequence counts, in whatever order entries arrive. The snapshot remembers the
sequence of the last change of each id. So an entry that is repeated, or that is older than the last one for its id,
changes nothing, and a late entry for another id is applied. Ids whose last change is more than `remember` entries old
are forgotten: an entry from before that is counted as too late and not applied.

The change feeds of Delta and Iceberg tables are read as such logs (change_feeds.py).

    driver      entries that count, new strings, boxes          ──> draft/changes
    executors   each part that changes: open, change, write      ──> draft/part-00003-91bc
    driver      links the other parts, manifest, CURRENT         ──> versions/00000009

So a change costs what the parts cost that it falls on. Only if the labels of strings have to be spread again, which is
rare, all parts are written.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import and_
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.streaming import StreamingQuery

from hitbox.encoding import array_checks
from hitbox.encoding.arrays import I64
from hitbox.encoding.fitting import check_on_error
from hitbox.encoding.keys import Keys
from hitbox.encoding.schema import Schema
from hitbox.encoding.string_dictionary import Relabel
from hitbox.errors import TableError, ValueProblem, counted, nearest
from hitbox.index import state
from hitbox.index.catalog import ID_TYPES, text_arrays
from hitbox.index.load import bulk_load
from hitbox.index.sharded import Shards, change_part, part_name, part_of, write_part
from hitbox.language import DEFAULT_LIMITS
from hitbox.spark import box_files, change_feeds, snapshot_files
from hitbox.spark.column_names import quoted, report_ignored, subscription_columns
from hitbox.spark.columns import check_subscriptions, require_frame, require_whole, without
from hitbox.spark.store_settings import spark_address
from hitbox.spark.task_errors import raised_again
from hitbox.spark.task_progress import job_description
from hitbox.storage import snapshot
from hitbox.storage.addresses import join, resolve, without_passwords
from hitbox.storage.retention import Keep, check_keep

OPS = ("subscribe", "unsubscribe")
COUNT, DOUBTFUL = "_hitbox_count", "_hitbox_doubtful"
"""Columns beside those of the changes, which may have any other names."""
MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class ChangeReport:
    """What a call did: the current version, the largest sequence applied so far, and counts of entries."""

    version: int
    sequence: int
    subscribed: int = 0
    unsubscribed: int = 0
    ignored: int = 0
    """Entries without effect because a newer one was applied already: duplicates, replays, late ones."""
    too_late: int = 0
    errors: list[tuple[int, str]] = field(default_factory=list)
    """(sequence, message) of entries that do not fit."""


def apply_changes(
    changes: DataFrame,
    path: str,
    *,
    on_error: str = "raise",
    remember: int = 1_000_000,
    checkpoint: str | None = None,
    trigger: dict[str, Any] | None = None,
    keep: Keep | None = None,
    id_column: str | None = None,
    where_column: str | None = None,
    commits: DataFrame | None = None,
) -> ChangeReport | StreamingQuery:
    """Apply a log, a table or a stream, to the snapshot at `path`.

    A log has the columns sequence, op ("subscribe" or "unsubscribe") and those of subscriptions. The change feed of a
    Delta table (`readChangeFeed`) or an Iceberg table (`create_changelog_view`) is taken as it is: the sequence is
    Delta's version, or the milliseconds since 1970 at which Iceberg committed.

    A table: a report comes back. A stream: a started query, which makes a version of each micro-batch that changes
    anything; `checkpoint` is where it notes how far it read.

    on_error: "raise" names the first entries that do not fit and changes nothing; "return" leaves them out
    remember: for how many sequence numbers the last change of an id is remembered
    keep, id_column, where_column: as in `build`
    commits: with the change feed of an Iceberg table, its metadata table `snapshots`, which has the order of commits
    """
    path = resolve(path)
    check_keep(keep)
    check_on_error(on_error)
    require_frame(changes, "changes")
    require_whole(remember, "remember", 0)
    feed = change_feeds.is_feed(changes)
    changes = change_feeds.as_log(subscription_columns(changes, id_column, where_column, "the changes"), commits)
    changes = changes.drop(*_check(changes, snapshot_files.facts(path)))
    snapshot_files.require_writable(path, "a snapshot")
    if not changes.isStreaming:
        return _apply(changes, feed, path, on_error, remember, keep)
    if not checkpoint:
        raise ValueProblem("give checkpoint=, a path where the stream notes how far it read")

    def each(frame: DataFrame, batch_id: int) -> None:
        _apply(frame, feed, path, on_error, remember, keep)

    place = spark_address(changes.sparkSession, checkpoint)
    writer = changes.writeStream.foreachBatch(each).option("checkpointLocation", place)
    return writer.trigger(**trigger).start() if trigger else writer.start()


def _check(changes: DataFrame, facts: Mapping[str, Any]) -> list[str]:
    """Raise an error if the columns do not fit; returns those that say nothing to hitbox."""
    if "sequence" not in changes.columns and "op" not in changes.columns:
        raise TableError(
            "the changes have neither the columns of a log, 'sequence' and 'op', nor those of a change feed, such as "
            f"{change_feeds.TYPE!r}; columns: {', '.join(changes.columns[:10])}"
        )
    for name in ("sequence", "op"):
        if name not in changes.columns:
            hint = nearest(name, changes.columns)
            raise TableError(f"the changes have no column {name!r}{hint}; columns: {', '.join(changes.columns[:10])}")
    kind = changes.schema["sequence"].dataType
    if not isinstance(kind, T.IntegralType):
        raise TableError(f"column 'sequence' is a column of {kind.simpleString()}, not of whole numbers")
    schema = Schema.from_json(facts["schema"])
    ids = check_subscriptions(without(changes.schema, "sequence", "op"), schema)
    if ids != facts["id_type"]:
        raise TableError(f"the snapshot has ids of type {facts['id_type']}, the changes have {ids}")
    return report_ignored(changes, schema, ["sequence", "op"], "the changes")


def _apply(changes: DataFrame, feed: bool, path: str, on_error: str, remember: int, keep: Keep | None) -> ChangeReport:
    spark = changes.sparkSession
    with job_description(spark, f"hitbox: read the changes for {without_passwords(path)}"):
        newest = _newest(changes)
    with snapshot_files.writing(path):  # from reading to publishing: no change of another writer is lost
        facts = snapshot_files.facts(path)
        memory = Memory.read(path, facts)
        entries, ignored, too_late = memory.fresh(newest)
        change, bad = _judged(entries, feed, path, facts)
        if bad:
            _refuse(bad, on_error)
            with job_description(spark, f"hitbox: leave out bad changes for {without_passwords(path)}"):
                good, bad = _without(changes, bad, feed, memory, Schema.from_json(facts["schema"]))
                entries, ignored, too_late = memory.fresh(_newest(good))
            change, _ = _judged(entries, feed, path, facts)
        errors = [(entry.sequence, entry.problem) for entry in bad]
        if change is None:
            return ChangeReport(facts["version"], memory.last, 0, 0, ignored, too_late, errors)
        memory.add(ids_of(entries), entries["sequence"].cast(pa.int64()).to_numpy(), remember)
        version, removed = change.publish(spark, memory, keep)
    return ChangeReport(version, memory.last, len(change.encoded.ids), removed, ignored, too_late, errors)


class Change:
    """What comes to a snapshot and what leaves it, encoded with its dictionaries. The caller holds the lock.

    Rows that do not fit are in the errors of the draft afterwards.
    """

    def __init__(self, path: str, facts: Mapping[str, Any], draft: bulk_load.Draft, gone: pa.Array):
        self.path, self.facts, self.draft, self.gone = path, facts, draft, gone
        self.keys = _keys(path, facts)
        self.relabels = self.keys.admit(draft.strings(self.keys))
        self.encoded = draft.encode(self.keys, DEFAULT_LIMITS)

    def publish(self, spark: SparkSession, memory: Memory, keep: Keep | None) -> tuple[int, int]:
        """The number of the new version, and how many subscriptions were removed."""
        path, facts, gone = self.path, self.facts, self.gone
        parts = facts.get("parts", [""])
        with snapshot_files.draft(path) as place:
            task = Task(path, facts["version"], snapshot_files.identity(facts), len(parts), place, bool(self.relabels))
            task = task.prepared(self.draft, self.encoded, self.keys, gone, self.relabels)
            both = [part_of(ids, len(parts)) for ids in (gone, self.encoded.ids)]
            touched = np.unique(np.concatenate(both)).tolist()
            if self.relabels or parts == [""]:
                touched = list(range(len(parts)))
            with job_description(spark, f"hitbox: change {without_passwords(path)}"):
                done = _changed(spark, task, touched)
            with snapshot_files.filling(place) as folder:
                files = snapshot.add(folder, self.keys.arrays() | memory.arrays())
            names = [done[n]["name"] if n in done else name for n, name in enumerate(parts)]
            kept = {file: said for file, said in facts["files"].items() if file.partition("/")[0] in names}
            snapshot_files.take_over(path, facts["version"], place, kept)
            for one in done.values():
                files |= one["files"]
            snapshot_files.remove(task.changes)
            meta: dict[str, Any] = {
                name: facts[name] for name in ("schema", "derived", "id_type", "matcher") if name in facts
            }
            meta["parts"] = names
            meta["subscriptions"] = facts["subscriptions"] + sum(one["more"] for one in done.values())
            meta |= memory.facts()
            version = snapshot_files.publish(
                path, place, meta, files | kept, base=facts["version"], operation="apply_changes", keep=keep
            )
        return version, sum(one["removed"] for one in done.values())


def _keys(path: str, facts: Mapping[str, Any]) -> Keys:
    """The dictionaries of a version, without its parts."""
    home = snapshot_files.local(path, facts["version"], snapshot_files.identity(facts), parts=())
    _, arrays = snapshot.read(home, facts["version"], verify=False, parts=())
    return state.keys_of(facts, arrays, snapshot.folder_of(home, facts["version"]))


def _changed(spark: SparkSession, task: Task, parts: list[int]) -> dict[int, dict[str, Any]]:
    """What was written of each part that changes, by its number."""

    def change(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for at in batch.column(0).to_pylist():
                yield pa.RecordBatch.from_pydict({"done": [json.dumps({"part": parts[at], **task(parts[at])})]})

    with raised_again():
        rows = spark.range(0, len(parts), numPartitions=len(parts)).mapInArrow(change, "done string").collect()
    return {done["part"]: done for done in (json.loads(row.done) for row in rows)}


@dataclass(frozen=True)
class Task:
    """What executors do with the parts that change; pickled to them."""

    path: str
    version: int
    identity: int
    parts: int
    place: str
    relabelled: bool
    """The labels of strings were spread again."""
    boxes: str = ""
    """The file of the subscriptions that come."""

    @property
    def changes(self) -> str:
        return join(self.place, "changes")

    def prepared(
        self,
        draft: bulk_load.Draft,
        encoded: bulk_load.Encoded,
        keys: Keys,
        gone: pa.Array,
        relabels: Mapping[int, Relabel],
    ) -> Task:
        """Leave what executors need beside the draft of the version."""
        snapshot_files.make_folder(self.changes)
        if relabels:
            box_files.write_labels(self.changes, relabels)
        leaving = part_of(gone, self.parts)
        like = pa.schema([("id", gone.type)])
        with snapshot_files.new_file(join(self.changes, "gone")) as file, pa.ipc.new_file(file, like) as out:
            for part in range(self.parts):
                ids = gone.filter(pa.array(leaving == part))
                out.write_batch(pa.RecordBatch.from_arrays([ids], schema=like))
        return replace(self, boxes=box_files.write(self.changes, draft, encoded, Keys(keys.schema), self.parts, None))

    def __call__(self, part: int) -> dict[str, Any]:
        home = snapshot_files.local(self.path, self.version, self.identity, [part])
        (index,) = Shards.open(home, self.version, [part], verify=False).parts
        gone = pa.ipc.open_file(snapshot_files.open_file(join(self.changes, "gone"))).get_batch(part).column(0)
        kind = "int" if pa.types.is_integer(gone.type) else "string"
        rows = box_files.read(self.changes, [self.boxes], [part], box_files.schema(kind, None), labelled=False)
        come = box_files.unpack(rows.filter(rows["error"].is_null()))
        relabels = box_files.read_labels(self.changes) if self.relabelled else {}
        before, name = len(index), part_name(part)
        removed = change_part(index, relabels, gone, come)
        with snapshot_files.filling(self.place) as folder:
            files = write_part(folder, index, name)
        return {"name": name, "files": files, "removed": removed, "more": len(index) - before}


def _newest(changes: DataFrame) -> pa.Table:
    """The entry with the largest sequence of each id; of equal sequences an unknown op, then a subscribe, then the
    largest row, so that all agree. DOUBTFUL: there is another row to subscribe with the same sequence."""
    names = [name for name in changes.columns if name not in ("sequence", "op")]
    op, sequence = F.col("op"), F.col("sequence")
    rank = F.when(op == "unsubscribe", 0).when(op == "subscribe", 1).otherwise(2)
    row = F.struct(*[quoted(name) for name in names]).alias("row")
    first = F.struct(sequence.isNull().alias("null"), "sequence", rank.alias("rank"), "op", row)
    last = F.struct(sequence.isNotNull(), F.bitwise_not(sequence), -rank, op, row)  # the same order, but for the row
    table = changes.groupBy("id").agg(
        F.max(first).alias("entry"), F.min(last).alias("other"), F.count(F.lit(1)).alias(COUNT)
    )
    doubtful = (F.col("entry.op") == "subscribe") & ~F.col("entry.row").eqNullSafe(F.col("other.row"))
    return table.select(COUNT, doubtful.alias(DOUBTFUL), "entry.sequence", "entry.op", "entry.row.*").toArrow()


class Bad(NamedTuple):
    """An entry that does not fit."""

    id: Any
    sequence: int
    problem: str


def _judged(entries: pa.Table, feed: bool, path: str, facts: Mapping[str, Any]) -> tuple[Change | None, list[Bad]]:
    """What the entries do to a snapshot, None if there are none; and those of them that do not fit."""
    entries, bad = _sound(entries, feed)
    if not entries.num_rows:
        return None, bad
    come = entries.filter(pc.equal(entries["op"], "subscribe"))
    gone = ids_of(entries.filter(pc.equal(entries["op"], "unsubscribe")))
    draft = bulk_load.read(come.drop_columns(["sequence", "op"]), Schema.from_json(facts["schema"]), DEFAULT_LIMITS)
    change = Change(path, facts, draft, gone)
    return change, bad + _misfits(come, draft)


def _misfits(come: pa.Table, draft: bulk_load.Draft) -> list[Bad]:
    rows = sorted(draft.errors)
    said = come.select(["id", "sequence"]).take(pa.array(rows, pa.int64())).to_pylist()
    return [Bad(**one, problem=draft.errors[row]) for one, row in zip(said, rows, strict=True)]


def _sound(entries: pa.Table, feed: bool) -> tuple[pa.Table, list[Bad]]:
    """The entries without those that have no id or an unknown op, or for which a commit has two rows; and those."""
    known = pc.fill_null(pc.is_in(entries["op"], pa.array(OPS)), False)
    good = pc.and_(known, entries["id"].is_valid())
    if feed:
        good = pc.and_(good, pc.invert(pc.fill_null(entries[DOUBTFUL], False)))
    what, values = ("_change_type", change_feeds.NEW_ROWS + change_feeds.OLD_ROWS) if feed else ("op", OPS)
    bad = []
    for row in entries.filter(pc.invert(good)).select(["id", "sequence", "op"]).to_pylist():
        if row["id"] is None:
            problem = "id is null"
        elif row["op"] in OPS:
            problem = f"id {row['id']!r} has two different rows: ids must be unique in the table"
        else:
            problem = f"{what} {row['op']!r} is none of {', '.join(values)}"
        bad.append(Bad(row["id"], row["sequence"], problem))
    return entries.filter(good).drop_columns([DOUBTFUL]), bad


def _without(
    changes: DataFrame, bad: list[Bad], feed: bool, memory: Memory, schema: Schema
) -> tuple[DataFrame, list[Bad]]:
    """The changes without those that do not fit, and whatever else their sequence says of the same id; and the former.

    Then an older entry of the same id counts, so all entries of these ids are judged. So what is left does not depend
    on how a log is cut into batches.
    """
    ids = changes.join(*_same(changes, {(entry.id,) for entry in bad}, ["id"]), "left_semi")
    table = ids.distinct().toArrow()
    table = table.filter(pa.array(memory.counts(table)))
    keyed = [tuple(row.values()) for row in table.select(["id", "sequence", "op"]).to_pylist()]
    rows = Counter(keyed)
    table = table.append_column(DOUBTFUL, pa.array([rows[key] > 1 and key[2] == "subscribe" for key in keyed]))
    entries, bad = _sound(table, feed)
    come = entries.filter(pc.equal(entries["op"], "subscribe"))
    draft = bulk_load.read(come.drop_columns(["sequence", "op"]), schema, DEFAULT_LIMITS)
    keys = Keys(schema)
    keys.admit(draft.strings(keys))
    draft.encode(keys, DEFAULT_LIMITS)
    bad = list(dict.fromkeys(bad + _misfits(come, draft)))
    return changes.join(*_same(changes, {entry[:2] for entry in bad}, ["id", "sequence"]), "left_anti"), bad


def _same(changes: DataFrame, keys: set[Any], names: list[str]) -> tuple[DataFrame, Any]:
    """A small table of keys, and the condition that a change has one of them; nulls are equal."""
    fields = [T.StructField(f"_hitbox_{name}", changes.schema[name].dataType) for name in names]
    table = changes.sparkSession.createDataFrame(list(keys), T.StructType(fields))
    return F.broadcast(table), reduce(and_, [F.col(name).eqNullSafe(F.col(f"_hitbox_{name}")) for name in names])


def _refuse(bad: list[Bad], on_error: str) -> None:
    if on_error == "raise":
        first = sorted((entry.sequence, entry.problem) for entry in bad)[:MAX_NAMED]
        lines = "\n".join(f"sequence {sequence}: {problem}" for sequence, problem in first)
        more = f"\n... and {len(bad) - MAX_NAMED} more" if len(bad) > MAX_NAMED else ""
        count = counted(len(bad), "change does", "changes do")
        raise TableError(
            f"{count} not fit; nothing was changed (on_error='return' leaves bad entries out):\n{lines}{more}"
        )


def ids_of(table: pa.Table) -> pa.Array:
    """The column `id`, as snapshots store it."""
    kind = ID_TYPES["int" if pa.types.is_integer(table["id"].type) else "string"]
    return pa.concat_arrays([pa.array([], kind), *table["id"].cast(kind).chunks])


class Memory:
    """The sequence of the last change of each id."""

    def __init__(self, kind: str, built: int, last: int, faded: int, ids: pa.Array, sequences: I64):
        self.kind, self.built, self.last, self.faded = kind, built, last, faded
        self.ids, self.sequences = ids, sequences

    @classmethod
    def read(cls, path: str, facts: Mapping[str, Any]) -> Memory:
        kind, built = facts["id_type"], int(facts.get("sequence", -1))
        if "changes" not in facts:
            return cls(kind, built, built, built, pa.array([], ID_TYPES[kind]), np.zeros(0, np.int64))
        home = snapshot_files.local(path, facts["version"], snapshot_files.identity(facts), parts=())
        _, arrays = snapshot.read(home, facts["version"], verify=False, parts=())
        found = snapshot.part(arrays, "changes")
        with snapshot.naming(snapshot.folder_of(home, facts["version"]), "changes."):
            ids = (
                pa.array(array_checks.column(found, "ids", np.int64))
                if kind == "int"
                else array_checks.texts(found, "ids")
            )
            sequence = array_checks.column(found, "sequence", np.int64, len(ids))
        said = facts["changes"]
        return cls(kind, built, said["last"], said["faded"], ids, np.array(sequence))

    def facts(self) -> dict[str, Any]:
        return {"sequence": self.built, "changes": {"last": self.last, "faded": self.faded}}

    def arrays(self) -> dict[str, NDArray[Any]]:
        ids = {"ids": self.ids.to_numpy()} if self.kind == "int" else text_arrays("ids", self.ids)
        return {f"changes.{name}": array for name, array in {**ids, "sequence": self.sequences}.items()}

    def fresh(self, newest: pa.Table) -> tuple[pa.Table, int, int]:
        """The entries to apply; how many are overridden, and how many are too late to be judged."""
        if newest["sequence"].null_count:
            count = counted(newest["sequence"].null_count, "change has", "changes have")
            raise TableError(
                f"{count} no sequence; nothing was changed (in Iceberg's feed: commits= does not have their snapshot)"
            )
        new, late = self._states(newest)
        entries = int(pc.sum(newest[COUNT]).as_py() or 0)
        take = new & ~late
        chosen = newest.filter(pa.array(take)).drop_columns([COUNT])
        return chosen, entries - int(take.sum()) - int(late.sum()), int(late.sum())

    def counts(self, entries: pa.Table) -> NDArray[np.bool_]:
        """Which entries are neither overridden nor too late."""
        new, late = self._states(entries)
        return new & ~late

    def _states(self, entries: pa.Table) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which entries are newer than what was applied, and which of them are too late to be judged."""
        sequence = entries["sequence"].cast(pa.int64()).to_numpy()
        at = pc.index_in(ids_of(entries), value_set=self.ids)
        known = at.is_valid().to_numpy(zero_copy_only=False)
        stands = np.full(len(sequence), self.built, np.int64)
        stands[known] = self.sequences[at.drop_null().to_numpy(zero_copy_only=False)]
        new = sequence > stands
        return new, new & ~known & (sequence <= self.faded)

    def add(self, ids: pa.Array, sequence: I64, remember: int) -> None:
        old = pc.invert(pc.is_in(self.ids, value_set=ids)).to_numpy(zero_copy_only=False)
        self.ids = pa.concat_arrays([self.ids.filter(pa.array(old)), ids])
        self.sequences = np.concatenate([self.sequences[old], sequence])
        self.last = max(self.last, int(sequence.max()))
        faded = self.last - remember
        if faded > self.faded:
            kept = self.sequences > faded
            self.ids, self.sequences = self.ids.filter(pa.array(kept)), self.sequences[kept]
            self.faded = faded
