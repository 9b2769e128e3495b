"""`hitbox admin check` reports what is wrong with a store; `hitbox admin repair` builds a new one from readable rows.

A repair first copies the store to DIR/backup-TIME. It then reads all readable rows and leaves out those with a wrong
CRC, those with a value of the wrong type, and those that belong to no subscriber or event. It writes the rest to a new
store, which replaces the old one. Rows that were left out are written to DIR/damaged-TIME.json. The index is built
again at the next start.

Events must be numbered without a gap. If one is missing, the events before it are removed from their table, and those
of pending deliveries are kept apart, unless their time to live has passed.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw
import msgspec

from hitbox.broker.clock import time
from hitbox.broker.events.published_event import expires_at
from hitbox.broker.store import commit_marker
from hitbox.broker.store.checked_table import LEDGER, Columns, Row, crc_of
from hitbox.broker.store.commit_marker import CommitMarker
from hitbox.broker.store.disk import Disk
from hitbox.broker.store.recent import PendingDeliveries, read, row_of
from hitbox.broker.store.store import Store, check_format, sync_folder
from hitbox.broker.store.tables import TABLES, Jumps, Level, meta_fault
from hitbox.broker.subscribers.subscriber_record import SubscriberRecord, read_record
from hitbox.broker.subscribers.subscriptions import SubscriptionRegistry
from hitbox.encoding.schema import Schema
from hitbox.errors import HitboxError, counted
from hitbox.protocol.errors import BadRequest, BrokerError, StoreDamaged, StoreFailed, Unknown

FILES = ("hitbox.db", "hitbox.db-wal", commit_marker.FILE_NAME)
ASK_FOR = {
    "schema": "the schema cannot be read: give it at the next start with --schema",
    "protected": "the broker requires tokens: create one with `hitbox admin tokens create NAME --data DIR`",
}
CONTENT = Columns({"wanted": str, "priority": Level, "about": str})
"""The columns that a subscription must have to be usable."""


@dataclass
class Repair:
    """What a repair did."""

    backup: Path
    damaged: Path | None
    kept: dict[str, int] = field(default_factory=dict)
    left_out: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check(folder: Path) -> list[str]:
    """What is wrong with the store of a stopped broker. Works on a copy, so nothing changes."""
    unlock = _lock(folder)
    copy = folder / f"check-{os.getpid()}"
    try:
        _copy(folder, copy)
        return list(_problems(copy, folder))
    finally:
        shutil.rmtree(copy, ignore_errors=True)
        unlock()


def _problems(copy: Path, folder: Path) -> Iterator[str]:
    with contextlib.closing(apsw.Connection(str(copy / "hitbox.db"))) as db:
        check_format(db, folder)
    try:
        store = Store(copy)
    except StoreDamaged as problem:
        yield str(problem.__cause__ or problem)
        return
    with contextlib.closing(store):
        yield from store_problems(store)


def store_problems(store: Store) -> Iterator[str]:
    """What is wrong with a store that could be opened."""
    try:
        yield from store.problems
        schema = store.meta.get("schema")
        if schema is None:
            yield "there is no schema: start the broker with --schema"
        else:
            yield from SubscriptionRegistry(store, Schema.from_json(schema)).problems
        yield from (f"event {seq} could not be matched" for seq in store.events.failed())
    except HitboxError as problem:
        yield str(problem)


def repair(folder: Path) -> Repair:
    """Replace a damaged store by a new one with all rows that can be used."""
    unlock = _lock(folder)
    draft = folder / f"repair-{os.getpid()}"
    try:
        now = time.time_ns() // 1_000_000
        done = Repair(folder / f"backup-{now}", None)
        _copy(folder, done.backup)
        try:
            rows = _read(done.backup, done)
            _note_lost_commits(done.backup, rows, done)
        except StoreFailed:  # another format
            shutil.rmtree(done.backup)
            raise
        _fill(draft, rows, done)
        if done.left_out:
            done.damaged = folder / f"damaged-{now}.json"
            _write(done.damaged, json.dumps(done.left_out, indent=1, default=_text))
        _replace(draft, folder)
        return done
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        unlock()


def _replace(draft: Path, folder: Path) -> None:
    """The new store takes the place of the old one. Without a commit marker no broker starts, so there is none while
    the folder holds parts of both: a repair that is interrupted here is done again."""
    for name in (commit_marker.FILE_NAME, "hitbox.db-wal", "hitbox.db-shm"):
        (folder / name).unlink(missing_ok=True)
        sync_folder(folder)
    for name in ("hitbox.db", commit_marker.FILE_NAME):
        os.replace(draft / name, folder / name)
        sync_folder(folder)


def _lock(folder: Path) -> Any:
    if not (folder / "hitbox.db").exists():
        raise Unknown(f"{folder} holds no broker: there is no hitbox.db")
    return Disk().lock(folder)


def _copy(folder: Path, to: Path) -> None:
    to.mkdir()
    for name in FILES:
        if (folder / name).exists():
            shutil.copy2(folder / name, to / name)
            with (to / name).open("rb") as file:
                os.fsync(file.fileno())
    sync_folder(to)


def _write(path: Path, text: str) -> None:
    with path.open("w") as file:
        os.chmod(path, 0o600)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        with contextlib.suppress(UnicodeDecodeError):
            return value.decode()
        return "base64:" + base64.b64encode(value).decode()
    return str(value)


# ---- reading the damaged store


def _note_lost_commits(folder: Path, rows: dict[str, list[Row]], done: Repair) -> None:
    path, known = folder / commit_marker.FILE_NAME, [row[1] for row in rows["ledger"] if row[0] == "commits"]
    if not path.exists():
        return
    marker = CommitMarker(path, Disk())
    try:
        promised = marker.read() or 0
    except StoreDamaged:
        promised = 0
    finally:
        marker.close()
    if known and promised > known[0]:
        lost = counted(promised - known[0], "commit is", "commits are")
        done.notes.append(f"the last {lost} lost, with events, acknowledgements and changes that were confirmed")


def _read(folder: Path, done: Repair) -> dict[str, list[Row]]:
    """The undamaged rows of every table, without their CRC."""
    scratch = folder.with_name(f"{folder.name}-read")
    shutil.copytree(folder, scratch)  # a copy, because reading copies the log into the database
    try:
        db = apsw.Connection(str(scratch / "hitbox.db"))
        try:
            check_format(db, folder.parent)
            found: dict[str, list[Row]] = {name: [] for name in TABLES}
            for name in TABLES:
                found[name] = list(_rows(db, name, done))
            found["ledger"] = list(_rows(db, "ledger", done))
            found["deliveries"] += _recent(found, done)
            return found
        finally:
            db.close()
    except apsw.NotADBError:
        raise StoreDamaged(f"{folder.parent / 'hitbox.db'} cannot be read at all: restore it from a backup") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _recent(rows: dict[str, list[Row]], done: Repair) -> list[Row]:
    """The pending deliveries of the log, as rows of table `deliveries`."""
    pending = PendingDeliveries()
    expected = None
    for number, data in sorted(rows["log"]):
        if expected not in (None, number):
            done.notes.append(
                f"table log: records {expected} to {number - 1} are missing, with deliveries that they held"
            )
        expected = number + 1
        try:
            for step in read(number, data):
                pending.apply(step)
        except StoreDamaged as problem:
            done.left_out.append({"table": "log", "why": str(problem), "row": (number, data)})
    settled = {(row[0], row[2]) for row in rows["deliveries"]}
    return [row for row in map(row_of, pending.all()) if (row[0], row[2]) not in settled]


def _rows(db: apsw.Connection, name: str, done: Repair) -> Iterator[Row]:
    """Read forwards, then backwards, so that one unreadable page does not hide the rows behind it."""
    seen: set[Any] = set()
    columns = TABLES.get(name, LEDGER)
    for way in ("", " DESC"):
        try:
            for *row, crc in _raw(db, name, columns, way):
                key = tuple(row[: columns.keys])
                if key in seen:
                    continue
                seen.add(key)
                if fault := columns.fault(row, crc):
                    done.left_out.append({"table": name, "why": fault, "row": row})
                else:
                    yield tuple(row)
            return
        except (apsw.Error, UnicodeDecodeError) as problem:
            done.notes.append(f"table {name}: not all of it can be read ({problem})")


def _raw(db: apsw.Connection, name: str, columns: Columns, way: str) -> Iterator[Row]:
    """Rows with their CRC, in order. A damaged text that is not UTF-8 is returned as bytes."""
    names = [f"c{n}" for n in range(len(columns.names) + 1)]
    is_text = ", ".join(f"typeof({c}) = 'text'" for c in names)
    plain = ", ".join(f"iif(typeof({c}) = 'text', CAST({c} AS BLOB), {c})" for c in names)
    order = ", ".join(c + way for c in names[: columns.keys])
    query = f"WITH t({', '.join(names)}) AS (SELECT * FROM {name}) SELECT {is_text}, {plain} FROM t ORDER BY {order}"
    for row in db.execute(query):
        both = zip(row[: len(names)], row[len(names) :], strict=True)
        yield tuple(_decoded(value) if text else value for text, value in both)


def _decoded(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


# ---- writing the new store


def _kept_meta(rows: dict[str, list[Row]], done: Repair) -> dict[str, bytes]:
    """The facts of the store that can be read. What was lost of rights protects the new store."""
    meta = {}
    for key, value in rows["meta"]:
        if fault := meta_fault(key, value):
            done.left_out.append({"table": "meta", "why": f"it cannot be read: {fault}", "row": (key, value)})
        elif key not in ("snapshot", "format"):  # the index is built again; the new store has its own format
            meta[key] = value
    lost_facts = {one["row"][0] for one in done.left_out if one["table"] == "meta"}
    done.notes += [note for key, note in ASK_FOR.items() if key in lost_facts]
    tables = {one["table"] for one in done.left_out} & {"principals", "tokens", "owners"}
    if rows["principals"] or rows["tokens"] or tables or "protected" in lost_facts:
        meta["protected"] = b"true"  # a lost token must not open the door
    if tables:
        done.notes.append(f"check the rights of all principals: something of {', '.join(sorted(tables))} is lost")
    return meta


def _kept_subscribers(rows: dict[str, list[Row]], done: Repair) -> list[Row]:
    """The subscribers, each name once."""
    names: set[str] = set()
    subscribers: list[Row] = []
    for number, name, settings in sorted(rows["subscribers"]):
        if name in names:
            done.left_out.append(
                {"table": "subscribers", "why": "two subscribers have this name", "row": (number, name, settings)}
            )
            continue
        names.add(name)
        subscribers.append((number, name, _settings(name, settings, done)))
    return subscribers


def _fill(folder: Path, rows: dict[str, list[Row]], done: Repair) -> None:
    """Write a new store of what can be read."""
    meta, subscribers = _kept_meta(rows, done), _kept_subscribers(rows, done)
    known = {row[0] for row in subscribers}
    last = _last(rows)
    events = {row[0]: row for row in rows["events"]}
    jumps = msgspec.json.decode(meta["jumps"], type=Jumps) if "jumps" in meta else []
    run = _last_run(events, last, jumps)
    start = next(iter(run), last + 1)
    meta["copied"] = b"true"  # what is lost may have had numbers that would be given again
    passed = [(seq, when, body) for seq, when, _, body in events.values()]
    kept = {row[0]: row for row in [*passed, *rows["kept"]] if row[0] not in run}
    deliveries = list(_deliverable(_owned(rows, "deliveries", 0, known, done), kept, run, last, done))
    matched = _matched(meta, deliveries, start, last)
    for seq in sorted(events):
        if seq > matched and seq not in run:
            why = "accepted but not matched, and a later event is lost: publish it again"
            done.left_out.append({"table": "events", "why": why, "row": events[seq]})
    if gone := len(events) - len(run):
        done.notes.append(f"{gone} events before {start} can no longer be replayed: a later one is missing")
    store = Store(folder)
    try:
        store.begin()
        store.meta.table.put(list({**meta, "matched": msgspec.json.encode(matched)}.items()))
        store.subscribers.table.insert(subscribers)
        subscriptions = _usable(_owned(rows, "subscriptions", 0, known, done), done)
        store.subscribers.subscriptions.insert(subscriptions)
        entry = store.ledger.changed_entry("events")
        entry.first, entry.last = start, start - 1
        store.events.table.insert([events[seq] for seq in run])
        store.ledger.changed_entry("events").last = last
        store.deliveries.table.insert(deliveries)
        needed = {row[2] for row in deliveries}.union(msgspec.json.decode(meta.get("failed", b"[]")))
        store.events.kept.insert([kept[seq] for seq in sorted(needed & kept.keys())])
        store.principals.insert(rows["principals"])
        store.tokens.insert(rows["tokens"])
        store.subscribers.owners.insert(_owned(rows, "owners", 0, known, done))
        store.tables["losses"].insert(_owned(rows, "losses", 0, known, done))
        usable = {row[:2] for row in subscriptions}
        store.subscribers.suspended.insert([row for row in rows["suspended"] if row[:2] in usable])
        dead = _owned(rows, "dead", 1, known, done)
        store.letters.table.insert(dead)
        store.ledger.changed_entry("dead").last = max([row[0] for row in dead], default=0)
        store.delayed.table.insert(rows["delayed"])
        known_numbers = [row[4] for row in rows["ledger"] if row[0] == "delayed"]
        store.ledger.changed_entry("delayed").last = max(
            [*known_numbers, *(row[0] for row in rows["delayed"])], default=0
        )
        store.commit()
        done.kept = {name: table.rows() for name, table in store.tables.items() if name not in ("changes", "log")}
        problems = store.inconsistencies()
    finally:
        store.rollback()
        store.close()
    Store(folder).close()  # opening it runs every check
    if problems:
        raise BrokerError(f"the repaired store is inconsistent: {problems[0]}")


def _settings(name: str, stored: Any, done: Repair) -> bytes:
    try:
        record = read_record(stored)
    except BadRequest:
        done.left_out.append({"table": "subscribers", "why": f"options of {name!r}: the defaults now", "row": stored})
        record = SubscriberRecord()
    return msgspec.json.encode(record)


def _owned(rows: dict[str, list[Row]], name: str, at: int, known: set[int], done: Repair) -> list[Row]:
    """The rows of existing subscribers; the others are left out."""
    kept = [row for row in rows[name] if row[at] in known]
    for row in rows[name]:
        if row[at] not in known:
            done.left_out.append({"table": name, "why": "its subscriber does not exist", "row": row})
    return kept


def _usable(subscriptions: list[Row], done: Repair) -> list[Row]:
    """The subscriptions whose columns have valid types. An invalid predicate is kept, for its owner to correct."""
    kept = []
    for row in subscriptions:
        if fault := CONTENT.fault(row[2:], crc_of(row[2:])):
            done.left_out.append({"table": "subscriptions", "why": fault, "row": row})
        else:
            kept.append(row)
    return kept


def _last(rows: dict[str, list[Row]]) -> int:
    """The highest number of any event so far, because numbers are never reused. Without the ledger it is estimated from
    the other tables."""
    known = [row[4] for row in rows["ledger"] if row[0] == "events"]
    seen = [row[0] for row in rows["events"]]
    if not known:
        seen += [*(row[2] for row in rows["deliveries"]), *(row[3] for row in rows["dead"])]
    return max([*known, *seen], default=0)


def _last_run(events: dict[int, Row], last: int, jumps: Jumps) -> Mapping[int, None]:
    """The numbers of the newest events up to the last one, in their order, without a gap other than the jumps."""
    before = {following - 1: number for number, following in jumps}
    at, found = last, list[int]()
    while at in before or at in events:
        if at in before:
            at = before[at]
        else:
            found.append(at)
            at -= 1
    return dict.fromkeys(reversed(found))


def _deliverable(
    deliveries: list[Row], kept: dict[int, Row], run: Container[int], last: int, done: Repair
) -> Iterator[Row]:
    """Those with an event: it is among the newest ones, or is kept, unless it has expired."""
    now = time.time_ns() // 1000
    for row in deliveries:
        if row[2] > last or (row[2] not in run and row[2] not in kept):
            done.left_out.append({"table": "deliveries", "why": "its event is lost", "row": row})
        elif row[2] in kept and 0 < expires_at(*kept[row[2]][1:]) <= now:
            done.left_out.append({"table": "deliveries", "why": "its event has expired", "row": row})
        else:
            yield (*row[:6], int(row[2] in kept))


def _matched(meta: dict[str, bytes], deliveries: list[Row], start: int, last: int) -> int:
    """The number of the last matched event: the stored value if it is plausible, and at least the highest number of any
    delivery."""
    known = msgspec.json.decode(meta["matched"], type=int) if "matched" in meta else last + 1
    return max(known if known <= last else start - 1, max((int(row[2]) for row in deliveries), default=0))
