"""A store with a part that is wrong: it starts without that part, or names the command that repairs it."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
from typer.testing import CliRunner

from hitbox.broker import admin as admin_commands
from hitbox.broker.commands.cli import app
from hitbox.broker.events.published_event import PublishedEvent
from hitbox.broker.store.store import Store
from hitbox.broker.store.tables import FORMAT
from hitbox.broker.upkeep import repair as repair_module
from hitbox.broker.upkeep.repair import repair
from hitbox.protocol.errors import StoreDamaged, StoreFailed
from support.broker_kit import SCHEMA, Listener, item, running, sub, until


def fill(folder: Path, events: int = 40) -> None:
    """ann has acknowledged the first half of the events, bob none."""

    async def scenario() -> None:
        async with running(folder) as broker:
            await broker.subscribe("ann", [sub("s", "qty > 0"), sub("t", "price > 5")])
            await broker.subscribe("bob", [sub("s", "qty > 0")])
            await broker.publish([item(qty=n + 1) for n in range(events)])
            ann = await Listener(broker, auto=False).attach("ann", 5000)
            await until(lambda: len(ann.got) == events)
            broker.tracker.acknowledge(ann.mailbox, range(1, events // 2 + 1))
            await until(lambda: ann.mailbox.pending == events - events // 2)

    asyncio.run(scenario())


def change(folder: Path, *queries: str) -> None:
    db = sqlite3.connect(folder / "hitbox.db")
    for query in queries:
        db.execute(query)
    db.commit()
    db.close()


def inside(folder: Path, op: Callable[[Store], Any]) -> None:
    """A change that counts and sums are right after: only its meaning is wrong."""
    store = Store(folder)
    store.begin()
    op(store)
    store.commit()
    store.close()


def admin(*words: str) -> Any:
    return CliRunner().invoke(app, ["admin", *words])


async def arrivals(folder: Path, name: str, count: int) -> list[int]:
    async with running(folder, None) as broker:
        listener = await Listener(broker).attach(name, 1000)
        await until(lambda: len(listener.got) >= count)
        await until(lambda: listener.mailbox.pending == 0)
        return sorted(listener.seqs())


def test_a_whole_store_is_whole(tmp_path: Path) -> None:
    fill(tmp_path / "a")
    before = {p.name: p.read_bytes() for p in (tmp_path / "a").iterdir() if p.is_file()}
    done = admin("check", str(tmp_path / "a"))
    assert (done.exit_code, done.output.strip()) == (0, "no problems found")
    assert {p.name: p.read_bytes() for p in (tmp_path / "a").iterdir() if p.is_file()} == before
    assert admin("check", str(tmp_path / "nothing")).exit_code == 2


def test_nobody_repairs_under_a_running_broker(tmp_path: Path) -> None:
    fill(tmp_path)
    store = Store(tmp_path)
    for command in ("check", "repair"):
        assert admin(command, str(tmp_path)).exit_code == 2
    store.close()
    assert not list(tmp_path.glob("backup-*"))


def next_dead(store: Store) -> int:
    entry = store.ledger.changed_entry("dead")
    entry.last += 1
    return entry.last


ORPHANS: dict[str, Callable[[Store], Any]] = {
    "subscription": lambda store: store.subscribers.subscriptions.insert([(99, "x", "qty > 0", 4, "{}")]),
    "delivery": lambda store: store.deliveries.table.insert([(99, 5, 7, "x", 0, 0, 0)]),
    "dead letter": lambda store: store.letters.table.insert([(next_dead(store), 99, 4, 7, "x", 1, "why", 0, None)]),
    "options": lambda store: store.subscribers.put(1, "ann", b"no json"),
    "predicate": lambda store: store.subscribers.subscriptions.put([(1, "t", "price >> 5", 4, "{}")]),
    "about": lambda store: store.subscribers.subscriptions.put([(1, "t", "price > 5", 4, "no json")]),
    "name": lambda store: store.subscribers.put(77, "ann", b"{}"),
    "event": lambda store: store.events.append([b'{"event":{"unknown":1}}'], 0),
    "options that are none": lambda store: store.subscribers.put(1, "ann", None),  # type: ignore[arg-type]
    "options out of bounds": lambda store: store.subscribers.put(1, "ann", b'{"limit":-1}'),
    "an event that is gone": lambda store: store.events.table.delete_through(1),
    "a predicate that is a number": lambda store: store.subscribers.subscriptions.put([(1, "t", 5, 4, "{}")]),
    "a priority that is none": lambda store: store.subscribers.subscriptions.put([(1, "t", "price > 5", None, "{}")]),
    "a priority out of bounds": lambda store: store.subscribers.subscriptions.put([(1, "t", "price > 5", 10, "{}")]),
    "a priority that is a text": lambda store: store.subscribers.subscriptions.put([(1, "t", "price > 5", "x", "{}")]),
    "about is none": lambda store: store.subscribers.subscriptions.put([(1, "t", "price > 5", 4, None)]),
    "about is a list": lambda store: store.subscribers.subscriptions.put([(1, "t", "price > 5", 4, "[1]")]),
    "about is deep": lambda store: store.subscribers.subscriptions.put([(1, "t", "price > 5", 4, "[" * 100_000)]),
}
KEPT = ("predicate", "about", "event", "about is a list", "about is deep")
"""Only who wrote these knows what they should be."""


@pytest.mark.parametrize("part", ORPHANS)
def test_one_part_that_is_wrong_is_set_aside(tmp_path: Path, part: str) -> None:
    fill(tmp_path)
    inside(tmp_path, ORPHANS[part])
    inside(tmp_path, lambda store: store.meta.put("snapshot", None))

    async def scenario() -> None:
        async with running(tmp_path, None) as broker:
            await until(lambda: broker.health()[0]["status"] == "degraded")
            found, status = broker.health()
            assert status == 200
            assert broker.describe()["problems"] == len(broker.describe()["set_aside"]) == 1
            assert "problems" not in found, "anybody may ask"
            bob = await Listener(broker).attach("bob", 1000)
            ann = await Listener(broker).attach("ann", 1000)
            await broker.publish([item(qty=1, price=9)])
            lost = int(part == "an event that is gone")
            await until(lambda: len(bob.got) >= 41 - lost and len(ann.got) >= 21)
            caller = broker.directory.caller("")
            admin_commands.subscriptions(broker, caller, None, "", "", 100)
            listed = [*admin_commands.events(broker, caller, 1, 100)[0]]
            listed += admin_commands.dead_letters(broker, caller, None, "", 100)[1]
            assert all(isinstance(msgspec.json.decode(one), dict) for one in listed)
            await until(lambda: bob.mailbox.pending == ann.mailbox.pending == 0)

    asyncio.run(scenario())
    assert admin("check", str(tmp_path)).exit_code == 1
    if part in KEPT:
        return
    done = admin("repair", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert "1 rows were left out" in done.output
    assert len(json.loads(next(tmp_path.glob("damaged-*.json")).read_text())) == 1
    assert admin("check", str(tmp_path)).exit_code == 0, admin("check", str(tmp_path)).output


DAMAGE = {
    "a row's CRC": (
        ["update deliveries set tries = 3 where subscriber = 2 and seq = 9"],
        [n for n in range(1, 41) if n != 9],
    ),
    "a gap": (["delete from events where seq = 10"], [n for n in range(1, 41) if n != 10]),
    "a ledger": (["update ledger set rows = 7 where name = 'deliveries'"], list(range(1, 41))),
    "a missing row": (["delete from deliveries where subscriber = 2 and seq = 3"], [n for n in range(1, 41) if n != 3]),
    "texts that are none": (
        ["update deliveries set ids = cast(x'73ff' as text) where subscriber = 2 and seq in (5, 30)"],
        [n for n in range(1, 41) if n not in (5, 30)],
    ),
    "a name in the ledger": (
        ["update ledger set name = cast(x'ff' as text) where name = 'events'"],
        list(range(1, 41)),
    ),
    "a key in meta": (["update meta set key = cast(x'6dff' as text) where key = 'matched'"], list(range(1, 41))),
    "matched": (["update meta set value = '7' where key = 'matched'"], list(range(1, 41))),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_loss_stops_the_start_and_names_the_repair(tmp_path: Path, what: str) -> None:
    queries, left = DAMAGE[what]
    fill(tmp_path)
    change(tmp_path, *queries)
    with pytest.raises(StoreDamaged, match="hitbox admin repair"):
        Store(tmp_path)
    assert admin("check", str(tmp_path)).exit_code == 1
    done = admin("repair", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert admin("check", str(tmp_path)).exit_code == 0
    assert asyncio.run(arrivals(tmp_path, "bob", len(left))) == left
    (backup,) = tmp_path.glob("backup-*")
    with pytest.raises(StoreDamaged):
        Store(backup)


def meta(store: Store, key: str, value: bytes) -> None:
    store.meta.table.put([(key, value)])


FORGED: dict[str, Callable[[Any], Any]] = {
    "matched too low": lambda store: store.meta.put("matched", 3),
    "matched too high": lambda store: store.meta.put("matched", 41),
    "matched is a text": lambda store: store.meta.put("matched", "x"),
    "matched is no JSON": lambda store: meta(store, "matched", b"{"),
    "failed holds a text": lambda store: store.meta.put("failed", ["x"]),
    "failed is a number": lambda store: store.meta.put("failed", 5),
    "protected is a list": lambda store: store.meta.put("protected", ["x"]),
    "the snapshot's number": lambda store: store.meta.put("snapshot", {"version": "x"}),
    "the format is a text": lambda store: store.meta.put("format", "x"),
    "an event that is no JSON": lambda store: store.events.append([b"no json"], 0),
    "an event that is a list": lambda store: store.events.append([b'{"event":[]}'], 0),
    "a subscriber's name": lambda store: store.subscribers.put(3, None, b"{}"),
    "a subscriber's number": lambda store: store.subscribers.put("x", "cid", b"{}"),
    "a subscription's owner": lambda store: store.subscribers.subscriptions.insert([("x", "y", "qty > 0", 4, "{}")]),
    "a delivery in the future": lambda store: store.deliveries.table.insert([(1, 5, 99, "s", 0, 0, 0)]),
    "a dead letter's number": lambda store: store.letters.table.insert([(5, 1, 4, 7, "x", 1, "why", 0, None)]),
    "urgency 99": lambda store: forge_delivery(store, "urgency", 99),
    "urgency -1": lambda store: forge_delivery(store, "urgency", -1),
    "urgency text": lambda store: forge_delivery(store, "urgency", "x"),
    "ids NULL": lambda store: forge_delivery(store, "ids", None),
    "tries text": lambda store: forge_delivery(store, "tries", "x"),
    "sent 7": lambda store: forge_delivery(store, "sent", 7),
    "kept 2": lambda store: forge_delivery(store, "kept", 2),
    "a kept event that is no JSON": lambda store: store.events.kept.insert([(7, 0, b"no json")]),
    "a log that is none": lambda store: store.log.insert([(store.log.next(), b"no steps")]),
    "a delivery of the log in the future": lambda store: store.recent.record([(1, 4, 99, "s", 0)]),
    "a delivery of the log that is a row": lambda store: store.recent.record([(2, 7, 1, "s", 0)]),
}
NOTHING_LEFT_OUT = (
    "matched too low", "matched too high", "a dead letter's number", "a delivery of the log that is a row",
)  # fmt: skip


def forge_delivery(store: Store, column: str, value: Any) -> None:
    """Change a column of bob's delivery of the first event; CRC, counts and sums are right."""
    ((*row, _),) = store.deliveries.table.scan("subscriber = 2 AND seq = 1")
    store.deliveries.table.delete([tuple(row[:3])])
    row[store.deliveries.table.columns.names.index(column)] = value
    store.deliveries.table.insert([tuple(row)])


@pytest.mark.parametrize("what", FORGED)
def test_what_nobody_could_have_written_stops_the_start_and_names_the_repair(tmp_path: Path, what: str) -> None:
    """CRCs, counts and sums are right: whoever changed the store knew how."""
    fill(tmp_path)
    inside(tmp_path, FORGED[what])
    with pytest.raises(StoreDamaged, match="hitbox admin repair"):
        Store(tmp_path)
    assert admin("check", str(tmp_path)).exit_code == 1
    done = admin("repair", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert ("nothing was left out" in done.output) == (what in NOTHING_LEFT_OUT)
    assert admin("check", str(tmp_path)).exit_code == 0, admin("check", str(tmp_path)).output
    left = list(range(2 if what.startswith(("urgency", "ids", "tries", "sent", "kept 2")) else 1, 41))
    assert asyncio.run(arrivals(tmp_path, "bob", len(left))) == left


def test_a_lost_schema_and_lost_tokens_are_asked_for(tmp_path: Path) -> None:
    fill(tmp_path)
    inside(tmp_path, lambda store: (store.meta.put("schema", [{"name": 5}]), store.meta.put("protected", 5)))
    done = admin("repair", str(tmp_path))
    assert "--schema" in done.output
    assert "hitbox admin token" in done.output
    asked = admin("check", str(tmp_path))
    assert (asked.exit_code, "--schema" in asked.output) == (1, True)

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            bob = await Listener(broker).attach("bob", 1000)
            await until(lambda: len(bob.got) == 40)

    asyncio.run(scenario())


def test_a_repair_keeps_the_deliveries_of_the_log(tmp_path: Path) -> None:
    """As a kill leaves them: nothing is settled. One record is damaged, and only its deliveries are lost."""
    store = Store(tmp_path)
    store.begin()
    store.meta.put("schema", SCHEMA.to_json())
    for number, name in ((1, "ann"), (2, "bob")):
        store.subscribers.put(number, name, b"{}")
    store.commit()
    for seq in range(1, 31):
        store.begin()
        store.events.append([b'{"event":{"qty":1}}'], 0)
        store.deliveries.record([(number, 4, seq, "s", 0) for number in (1, 2)], seq)
        store.commit()
    store.begin()
    store.deliveries.acknowledge((1, 4, seq) for seq in range(1, 21))
    store.deliveries.retry(2, 4, 9, 3)
    store.commit()
    assert store.deliveries.table.rows() == 1
    store.close()
    change(tmp_path, "update log set steps = x'00' where seq = 5")
    with pytest.raises(StoreDamaged, match="hitbox admin repair"):
        Store(tmp_path)
    done = admin("repair", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert "1 rows were left out" in done.output
    store = Store(tmp_path)
    assert [(row[2], row[5]) for row in sorted(store.deliveries.of(2))] == [
        (seq, 3 if seq == 9 else 0) for seq in range(1, 31) if seq != 5
    ]
    assert sorted(row[2] for row in store.deliveries.of(1)) == list(range(21, 31))
    store.close()


def test_a_repair_keeps_the_moment_when_a_delivery_expires(tmp_path: Path, later: Callable[[float], None]) -> None:
    """An event is lost, so the older ones are copied into their deliveries. One of them has expired by then."""

    async def before() -> None:
        async with running(tmp_path) as broker:
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            ttls = (600.0, 60.0, None, None)
            await broker.publish([PublishedEvent({"qty": 1}, ttl_seconds=ttl) for ttl in ttls])
            await until(broker.caught_up)

    asyncio.run(before())
    change(tmp_path, "delete from events where seq = 4")
    later(100)
    done = repair(tmp_path)
    assert done.kept["deliveries"] == 2
    assert [(one["row"][2], one["why"]) for one in done.left_out] == [
        (2, "its event has expired"),
        (4, "its event is lost"),
    ]

    async def after() -> None:
        async with running(tmp_path, None) as broker:
            ann = broker.mailbox("ann")
            for seconds, pending, expired in ((598, 2, 0), (601, 1, 1)):
                later(seconds)
                broker.expiry.expect(0)
                broker.expiry._not_before = 0.0
                await until(lambda: broker.expiry._not_before and broker.expiry._step is None)
                await broker.writer.submit(lambda: None)
                assert (ann.pending, ann.expired) == (pending, expired)
            assert await Listener(broker).attach("ann")
            await until(lambda: not ann.pending)

    asyncio.run(after())


@pytest.mark.parametrize("format", [FORMAT - 1, FORMAT + 1])
@pytest.mark.parametrize("command", ["open", "check", "repair"])
def test_a_store_of_another_format_is_left_as_it_is(tmp_path: Path, command: str, format: int) -> None:
    """Also where it looks damaged to this version: another format has other tables."""
    fill(tmp_path)
    inside(tmp_path, lambda store: store.meta.put("format", format))
    change(tmp_path, "update deliveries set tries = 7", "alter table events add column place")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    if command == "open":
        with pytest.raises(StoreFailed, match=rf"has format {format}.* use the version that wrote it"):
            Store(tmp_path)
    else:
        done = admin(command, str(tmp_path))
        assert done.exit_code == 2
        assert f"has format {format}" in done.output
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    assert not list(tmp_path.glob("backup-*"))


def test_a_missing_commit_marker_stops_every_start_until_it_is_repaired(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "beacon").unlink()
    for _ in range(2):
        with pytest.raises(StoreDamaged, match=r"commit marker .* is missing"):
            Store(tmp_path)
    assert admin("repair", str(tmp_path)).exit_code == 0
    assert asyncio.run(arrivals(tmp_path, "bob", 40)) == list(range(1, 41))


def test_a_page_that_cannot_be_read(tmp_path: Path) -> None:
    """What the other pages hold comes back, and numbers go on where they were."""
    fill(tmp_path, 2000)
    path = tmp_path / "hitbox.db"
    db = apsw.Connection(str(path))
    pages = [row[0] for row in db.execute("SELECT pageno FROM dbstat WHERE name = 'deliveries' AND pagetype = 'leaf'")]
    db.close()
    with path.open("r+b") as file:
        file.seek((pages[len(pages) // 2] - 1) * 4096)
        file.write(b"\xff" * 4096)
    with pytest.raises(StoreDamaged, match="hitbox admin repair"):
        Store(tmp_path)
    done = admin("repair", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert "not all of it can be read" in done.output
    store = Store(tmp_path)
    assert store.events.table.next() == 2001
    assert 2500 < store.deliveries.table.rows() < 3000
    store.close()


def test_numbers_of_lost_events_are_not_given_again(tmp_path: Path) -> None:
    """The disk lost the last commits of the database, but not those of the marker."""
    folder, old = tmp_path / "data", tmp_path / "old.db"

    async def publish(schema: Any) -> tuple[str, int]:
        async with running(folder, schema) as broker:
            return broker.store.incarnation, await broker.publish([item(qty=1)])

    fill(folder)
    shutil.copy(folder / "hitbox.db", old)
    lost = [asyncio.run(publish(SCHEMA)) for _ in range(2)]
    shutil.copy(old, folder / "hitbox.db")
    with pytest.raises(StoreDamaged, match="the last ones are lost"):
        Store(folder)
    done = repair(folder)
    assert any(re.search(r"the last \d+ commits are lost", note) for note in done.notes)
    new, number = asyncio.run(publish(None))
    assert new not in {incarnation for incarnation, _ in lost}
    assert number > lost[-1][1]


@pytest.mark.parametrize("step", range(8))
def test_a_repair_that_is_interrupted_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Wherever it stops while the new store takes the place of the old one: no start goes on with parts of both."""
    folder, left = tmp_path / "data", [step]
    fill(folder)
    (folder / "beacon").unlink()
    synced = repair_module.sync_folder

    def interrupt(*_: Any) -> None:
        left[0] -= 1
        if left[0] == -1:
            raise KeyboardInterrupt

    def sync(path: Path) -> None:
        if path == folder:
            interrupt()
        synced(path)
        if path == folder:
            interrupt()

    monkeypatch.setattr(repair_module, "sync_folder", sync)
    with pytest.raises(KeyboardInterrupt):
        repair(folder)
    monkeypatch.undo()
    with pytest.raises(StoreDamaged, match="marker"):
        Store(folder)
    repair(folder)
    assert asyncio.run(arrivals(folder, "bob", 40)) == list(range(1, 41))
