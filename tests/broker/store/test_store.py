"""The store: what was committed is there after a restart, or the broker says that it is not."""

from __future__ import annotations

import asyncio
import random
import shutil
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import apsw
import pyarrow as pa
import pytest

from hitbox import Index, Schema
from hitbox.broker.clock import clock
from hitbox.broker.store import checked_table, recent
from hitbox.broker.store.checked_table import crc_of
from hitbox.broker.store.group_commit import Writer
from hitbox.broker.store.store import Store
from hitbox.broker.store.tables import TABLES, StoredChange
from hitbox.broker.upkeep import import_export
from hitbox.protocol.errors import StoreDamaged, StoreFailed, StoreFull


def fill(store: Store, events: int = 200) -> None:
    store.begin()
    store.subscribers.put(1, "ann", b"{}")
    put = [(f"s{n}", f"price > {n}", n % 10, "{}") for n in range(50)]
    store.subscribers.change([StoredChange(1, "ann", put, ["s7"])])
    store.commit()
    for n in range(events):
        store.begin()
        seq = store.events.append([b'{"event":{"price":%d}}' % n], n)
        store.deliveries.record([(1, n % 10, seq, "s1\ns2", 0)], seq)
        store.commit()


def content(store: Store) -> list[list[tuple[object, ...]]]:
    return [list(table.scan()) for table in store.tables.values()]


def test_a_store_comes_back_as_it_was(tmp_path: Path) -> None:
    store = Store(tmp_path)
    fill(store)
    before = content(store)
    store.close()
    again = Store(tmp_path)
    assert content(again) == before
    assert again.events.table.next() == 201
    assert len(again.subscribers.subscriptions_of(1, ["s1", "s7", "s8"])) == 2
    again.close()


ODD = (
    None,
    -1,
    0,
    10,
    2**63 - 1,
    1.0,
    "",
    "ann",
    "ann\nbob",
    "ann\n",
    "a b",
    "x" * 101,
    b"{}",
    b'{"event":{}}',
    b"\xff",
    b"[" * 3000,
)
VALID = {
    "subscriptions": (1, "cheap", "price > 1", 5, "{}"),
    "events": (1, 2, "ann", b'{"event":{}}'),
    "deliveries": (1, 2, 3, "a\nb", 1, 0, 0),
    "tokens": ("id", "ann", "hash", b"{}"),
}  # fmt: skip


@pytest.mark.parametrize("name", VALID)
def test_rows_checked_together_have_the_faults_that_each_has(name: str) -> None:
    """Every column with every odd value, each with a CRC that fits, with a wrong one and with one of another type."""
    columns, valid = TABLES[name], VALID[name]
    good = (*valid, crc_of(valid))
    assert columns.all_sound([good] * 3)
    faults = 0
    for at in range(len(valid)):
        for odd in ODD:
            row = (*valid[:at], odd, *valid[at + 1 :])
            for crc in (crc_of(row), crc_of(row) + 1, float(crc_of(row)), None, "1"):
                fault = columns.fault(list(row), crc)
                assert columns.all_sound([good, (*row, crc), good]) == (not fault), (row, crc, fault)
                faults += bool(fault)
    assert len(valid) * len(ODD) * 4 < faults < len(valid) * len(ODD) * 5


def test_every_damaged_row_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked_table, "CHECKED_TOGETHER", 7)
    store = Store(tmp_path)
    fill(store)
    damage = ("s3", "price > 0"), ("s11", "price > 1"), ("s30", "price > 2")
    for name, where in damage:
        store.db.execute("UPDATE subscriptions SET wanted = ? WHERE name = ?", (where, name))
    store.db.execute("UPDATE subscriptions SET crc = NULL WHERE name = 's40'")
    found = [text for text in store.subscribers.subscriptions.check(()) if "CRC" in text]
    assert sorted(text.partition(" is")[0] for text in found) == [
        f"table subscriptions: the row [1, '{name}']" for name in ("s11", "s3", "s30", "s40")
    ]
    store.close()


def test_a_replay_skips_events_that_were_let_go_meanwhile(tmp_path: Path) -> None:
    store = Store(tmp_path)
    fill(store, 30)
    store.begin()
    store.deliveries.acknowledge((1, n % 10, n + 1) for n in range(30))
    assert store.retention.trim(before=10, most_bytes=2**40).events == 10
    assert store.deliveries.add_replayed(1, [(4, 10, "s1"), (4, 11, "s1")]) == 1
    store.commit()
    assert [one.body for one in store.deliveries.fetch(1, set(), 10)[0]] == [b'{"event":{"price":10}}']
    store.close()


def test_a_replay_does_not_read_all_that_is_pending(tmp_path: Path) -> None:
    """Nothing else is stored meanwhile, and a subscriber may have a million pending deliveries."""
    store = Store(tmp_path)
    with store.transaction():
        store.subscribers.put(1, "ann", b"{}")
        store.events.append([b'{"event":{}}'] * 20_000, 1)
        store.deliveries.record([(1, n % 10, n + 1, "s", 0) for n in range(19_990)], 20_000)
    with store.transaction():
        store.deliveries.settle(20_000)
    steps = []
    store.db.set_progress_handler(lambda: bool(steps.append(1)), 100)
    with store.transaction():
        assert store.deliveries.add_replayed(1, [(4, seq, "s1") for seq in range(19_981, 20_001)]) == 10
    assert len(steps) < 200  # 20,000 steps of SQLite; to read them all takes more than ten per delivery
    assert len(pending(store)) == 20_000
    store.close()


def pending(store: Store, subscriber: int = 1) -> list[tuple[object, ...]]:
    return sorted(store.deliveries.of(subscriber))


def test_recent_deliveries_come_back_after_a_kill_and_become_rows_later(tmp_path: Path) -> None:
    store = Store(tmp_path / "a")
    fill(store, 30)
    with store.transaction():
        assert store.deliveries.acknowledge((1, n % 10, n + 1) for n in range(0, 30, 2)) == {1: 15}
        store.deliveries.retry(1, 3, 4, 2)
        assert store.deliveries.bury(1, [(5, 6)], 5, "too many tries", 100) == 1
        assert [d.seq for d in store.deliveries.fetch(1, set(), 2)[0]] == [10, 20]
    before = pending(store)
    assert [row[2] for row in before if row[4]] == [10, 20, 4]
    assert (store.deliveries.table.rows(), store.deliveries.unacknowledged()) == (1, 14)
    shutil.copytree(tmp_path / "a", tmp_path / "killed")
    again = Store(tmp_path / "killed")
    assert pending(again) == before
    with again.transaction():
        assert again.deliveries.settle(5) == 5
    assert (again.log.rows(), again.deliveries.table.rows(), pending(again)) == (17, 6, before)
    with again.transaction():
        assert again.deliveries.settle(100) == 8
        again.recent.compact()
    assert (again.log.rows(), again.recent.count, pending(again)) == (0, 0, before)
    assert again.deliveries.pending() == {1: 14}
    again.close()
    store.close()


def test_a_rollback_takes_recent_deliveries_back_too(tmp_path: Path) -> None:
    store = Store(tmp_path)
    fill(store, 30)
    before = pending(store)
    store.begin()
    store.deliveries.acknowledge([(1, 0, 1), (1, 1, 2)])
    store.deliveries.settle(10)
    store.deliveries.acknowledge([(1, 2, 3)])
    store.deliveries.fetch(1, set(), 30)
    store.deliveries.retry(1, 9, 20, 3)
    seq = store.events.append([b'{"event":{}}'], 0)
    store.deliveries.record([(1, 4, seq, "s", 0)], seq)
    store.remove_subscriber(1, "ann")
    assert store.deliveries.unacknowledged() == 0
    store.rollback()
    assert (pending(store), store.deliveries.unacknowledged()) == (before, 30)
    with store.transaction():
        store.deliveries.acknowledge([(1, 0, 1)])
    store.close()
    again = Store(tmp_path)
    assert pending(again) == [row for row in before if row[2] != 1]
    again.close()


def test_the_number_of_a_removed_subscriber_can_be_used_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    fill(store, 5)
    with store.transaction():
        store.remove_subscriber(1, "ann")
        store.subscribers.put(1, "bob", b"{}")
        seq = store.events.append([b'{"event":{}}'], 0)
        store.deliveries.record([(1, 4, seq, "s", 0), (7, 4, seq, "s", 0)], seq)
    store.close()
    again = Store(tmp_path)
    assert [row[2] for row in again.deliveries.of(1)] == [6]
    assert not again.problems
    again.close()


def test_many_recent_deliveries_become_rows_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "MOST_RECENT", 20)
    store = Store(tmp_path)
    fill(store, 100)
    assert store.recent.count <= 21
    assert [row[2] for row in pending(store)] == [n + 1 for level in range(9, -1, -1) for n in range(level, 100, 10)]
    store.close()


def test_a_large_commit_becomes_several_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "RECORD_BYTES", 200)
    store = Store(tmp_path)
    fill(store, 0)
    with store.transaction():
        last = store.events.append([b'{"event":{}}'] * 100, 0) + 99
        store.deliveries.record([(1, seq % 10, seq, "s" * (seq % 50), 0) for seq in range(1, last + 1)], last)
        store.deliveries.acknowledge((1, seq % 10, seq) for seq in range(1, 51))
    before = pending(store)
    assert len(before) == 50
    assert store.log.rows() > 10
    store.close()
    again = Store(tmp_path)
    assert pending(again) == before
    with again.transaction():
        assert again.deliveries.settle(100) == 50
    assert (again.log.rows(), pending(again)) == (0, before)
    again.close()


def test_large_deliveries_are_written_in_several_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each names so many subscriptions that SQLite does not take all of them as one value."""
    monkeypatch.setattr(recent, "RECORD_BYTES", 50_000)
    monkeypatch.setattr(checked_table, "BULK_BYTES", 50_000)
    store = Store(tmp_path)
    store.db.limit(apsw.SQLITE_LIMIT_LENGTH, 100_000)
    fill(store, 0)
    ids = "\n".join(f"{'s' * 90}{n}" for n in range(200))
    with store.transaction():
        last = store.events.append([b'{"event":{}}'] * 60, 0) + 59
        store.deliveries.record([(1, 4, seq, ids, 0) for seq in range(1, last + 1)], last)
    before = pending(store)
    with store.transaction():
        assert store.deliveries.settle() == 60
    assert (store.deliveries.table.rows(), pending(store)) == (60, before)
    with store.transaction():
        found, more = store.deliveries.fetch(1, set(), 60)
    assert ([one.seq for one in found], more) == (list(range(1, 61)), False)
    assert {"\n".join(one.ids) for one in found} == {ids}
    assert store.recent.count == 60
    store.close()
    again = Store(tmp_path)
    assert [row[:4] for row in pending(again)] == [row[:4] for row in before]
    again.close()


def test_one_broker_a_folder(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(StoreFailed, match="in use"):
        Store(tmp_path)
    store.close()


def test_deliveries_come_most_urgent_first_and_are_marked_when_fetched(tmp_path: Path) -> None:
    store = Store(tmp_path)
    fill(store, 30)
    store.begin()
    found, more = store.deliveries.fetch(1, {10, 20}, 5)
    assert [(d.level, d.seq) for d in found] == [(9, 30), (8, 9), (8, 19), (8, 29), (7, 8)]
    assert more
    assert not any(d.sent for d in found)
    again, _ = store.deliveries.fetch(1, set(), 2)
    assert [(d.seq, d.sent) for d in again] == [(10, False), (20, False)]
    assert store.deliveries.fetch(1, {10, 20}, 5)[0][0].sent
    assert store.deliveries.acknowledge([(1, 9, 30), (1, 9, 30), (1, 8, 9), (2, 9, 30)]) == {1: 2}
    store.commit()
    store.close()
    Store(tmp_path).close()


def test_dead_letters_keep_their_event_and_can_be_revived(tmp_path: Path) -> None:
    store = Store(tmp_path)
    fill(store, 20)
    store.begin()
    assert store.deliveries.bury(1, [(n % 10, n + 1) for n in range(20)], 5, "too many tries", most=15) == 20
    assert (store.letters.table.rows(), store.letters.table.next()) == (15, 16)  # more were never written
    assert store.retention.trim(10**18, 0).events == 20
    (number, *_), *_ = list(store.letters.table.scan())
    assert store.deliveries.revive([number, 999]) == [(number, 1, 6)]
    assert store.deliveries.fetch(1, set(), 9)[0][0].body == b'{"event":{"price":5}}'
    store.commit()
    store.close()
    Store(tmp_path).close()


def test_retention_keeps_what_is_pending(tmp_path: Path) -> None:
    """It is not in the way of the others, and is there until it is acknowledged; also after a restart."""
    store = Store(tmp_path)
    fill(store, 100)
    store.begin()
    store.deliveries.acknowledge([(1, n % 10, n + 1) for n in range(60) if n != 3])
    assert store.retention.trim(before=50, most_bytes=2**40) == (50, False)
    assert store.retention.trim(before=0, most_bytes=0) == (50, False)
    assert (store.events.table.first(), store.events.table.rows(), store.events.kept.rows()) == (101, 0, 41)
    store.commit()
    pinned = store.deliveries.bytes.committed
    store.close()
    store = Store(tmp_path)
    assert store.problems == []
    assert (store.deliveries.pending(), store.deliveries.bytes.committed) == ({1: 41}, pinned)
    with store.transaction():
        found, more = store.deliveries.fetch(1, set(), 100)
    assert (sorted(one.seq for one in found), more) == ([4, *range(61, 101)], False)
    assert {one.seq: (one.time, one.body) for one in found}[4] == (3, b'{"event":{"price":3}}')
    with store.transaction():
        store.deliveries.retry(1, 3, 4, 2)
        assert store.deliveries.acknowledge([(1, n % 10, n + 1) for n in range(60, 100)]) == {1: 40}
    assert (store.events.kept.rows(), store.events.total("kept")) == (1, len(b'{"event":{"price":3}}'))
    with store.transaction():
        assert store.deliveries.bury(1, [(3, 4)], 3, "why", 10) == 1
    assert (store.events.kept.rows(), store.events.total("kept"), store.deliveries.bytes.committed) == (0, 0, {})
    with store.transaction():
        assert len(store.deliveries.revive([1])) == 1
    assert store.deliveries.bytes.committed.keys() == {1}
    store.close()
    store = Store(tmp_path)
    assert store.problems == []
    with store.transaction():
        (again,), _ = store.deliveries.fetch(1, set(), 9)
        assert (again.seq, again.body) == (4, b'{"event":{"price":3}}')
        store.remove_subscriber(1, "ann")
    assert (store.events.kept.rows(), store.events.total("kept"), store.deliveries.bytes.committed) == (0, 0, {})
    store.close()


def test_events_from_the_future_do_not_stop_retention(tmp_path: Path, later: Callable[[float], None]) -> None:
    """The clock was a year ahead for three events. They go as if they had been accepted when retention sees them."""
    year, store = 365 * 86_400, Store(tmp_path)

    def trim() -> int:
        with store.transaction():
            return store.retention.trim(clock.now() - 10 * 10**6, 2**40).events

    def append(count: int, ahead: int = 0) -> None:
        with store.transaction():
            seq = store.events.append([b'{"event":{}}'] * count, clock.now() + ahead * 10**6)
            store.deliveries.record([(1, 5, seq, "s", 0)], seq + count - 1)

    with store.transaction():
        store.subscribers.put(1, "ann", b"{}")
    append(3, ahead=year)
    append(2)
    assert trim() == 0
    later(6)
    append(4)
    assert trim() == 0
    store.close()
    store = Store(tmp_path)
    with store.transaction():
        seq, when = store.retention.oldest_pending([1])[1]
    assert seq == 1
    assert 6 <= (clock.now() - when) / 1e6 < 60, "its age counts from then, too"
    later(12)
    assert trim() == 5
    later(24)
    assert trim() == 4
    store.close()


def test_a_clock_that_goes_back_for_a_while_ages_nothing(tmp_path: Path, later: Callable[[float], None]) -> None:
    """What was accepted before has its own time again when the clock is right, and does not go with the rest."""
    store, year, week = Store(tmp_path), 365 * 86_400, 7 * 86_400 * 10**6
    with store.transaction():
        store.subscribers.put(1, "ann", b"{}")
        store.events.append([b'{"event":{}}'] * 3, clock.now())
        for back in (year, year // 2, year, 9 * 86_400):  # in the end, it comes back step by step
            later(-back)
            assert store.retention.trim(clock.now() - week, 2**40).events == 0
        store.events.append([b'{"event":{}}'] * 2, clock.now())
        store.deliveries.record([(1, 5, seq, "s", 0) for seq in range(1, 6)], 5)
        later(1)
        assert store.retention.trim(clock.now() - week, 2**40).events == 0
        assert store.retention.count_older(1, clock.now() - week, 10) == 0
        assert store.retention.count_older(1, clock.now() + week, 10) == 5
    store.close()


def test_an_event_is_kept_once_and_as_long_as_somebody_needs_it(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.transaction():
        for number in range(1, 8):
            store.subscribers.put(number, f"s{number}", b"{}")
        store.events.append([b'{"event":{"a":1}}'] * 3, 0)
        store.deliveries.record([(number, 4, seq, "s", 0) for number in range(1, 8) for seq in (1, 3)], 3)
        store.deliveries.settle(7)
    with store.transaction():
        assert store.retention.trim(1, 2**40).events == 3
    assert [row[0] for row in store.events.kept.scan()] == [1, 3]
    for number in range(1, 8):
        assert store.events.kept.rows() == 2
        with store.transaction():
            store.remove_subscriber(number, f"s{number}") if number % 2 else store.deliveries.acknowledge(
                (number, 4, seq) for seq in (1, 3)
            )
    assert store.events.kept.rows() == 0
    store.close()


def test_what_a_step_of_retention_moves_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hitbox.broker.store.retention.KEPT_ROWS", 10)
    store = Store(tmp_path)
    with store.transaction():
        for number in range(1, 5):
            store.subscribers.put(number, f"s{number}", b"{}")
        store.events.append([b'{"event":{"a":1}}'] * 40, 0)
        store.deliveries.record([(number, 4, seq, "s", 0) for number in range(1, 5) for seq in range(1, 41)], 40)
        store.deliveries.settle(1000)
    steps = []
    while not steps or steps[-1].more:
        with store.transaction():
            before = store.events.kept.rows()
            steps.append(store.retention.trim(1, 2**40))
            assert store.events.kept.rows() - before == steps[-1].events <= 2
    assert sum(step.events for step in steps) == store.events.kept.rows() == store.events.total("trimmed") == 40
    assert store.deliveries.unacknowledged() == 160
    store.close()


def test_what_was_rolled_back_is_not_counted(tmp_path: Path) -> None:
    store = Store(tmp_path)
    fill(store, 20)
    before = dict(store.deliveries.bytes.committed)
    for _ in range(2):
        store.begin()
        assert store.retention.trim(10**18, 0).events == 20
        store.deliveries.acknowledge([(1, 0, 1)])
        store.rollback()
        assert store.events.totals.committed.keys() == {"events"}
        assert store.deliveries.bytes.committed == before
    with store.transaction():
        store.retention.trim(10**18, 0)
    assert (store.events.total("trimmed"), store.events.kept.rows()) == (20, 20)
    assert store.deliveries.bytes.committed == before
    store.close()


def test_an_event_that_could_not_be_matched_is_kept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.transaction():
        store.subscribers.put(1, "ann", b"{}")
        store.events.append([b'{"event":{"a":1}}'] * 3, 0)
        store.deliveries.record([], 3, failed=[2])
        assert store.retention.trim(1, 2**40) == (3, False)
    assert store.events.failed_events() == [(2, 0, b'{"event":{"a":1}}')]
    with store.transaction():
        assert store.deliveries.record_failed([(1, 4, 2, "s", 0)], []) == {1: 1}
        assert [one.seq for one in store.deliveries.fetch(1, set(), 9)[0]] == [2]
        store.deliveries.acknowledge([(1, 4, 2)])
    assert (store.events.kept.rows(), store.inconsistencies()) == (0, [])
    store.close()


@pytest.mark.parametrize(
    "lost",
    [
        "delete from events where seq = 50",
        "update deliveries set tries = 3 where seq = 9",
        "delete from log where seq = 150",
    ],
)
def test_rows_changed_behind_its_back(tmp_path: Path, lost: str) -> None:
    store = Store(tmp_path)
    fill(store)
    with store.transaction():
        store.deliveries.settle(100)
    store.close()
    with sqlite3.connect(tmp_path / "hitbox.db") as other:
        other.execute(lost)
    other.close()
    with pytest.raises(StoreDamaged, match="damaged"):
        Store(tmp_path)


def test_a_lost_end_is_noticed(tmp_path: Path) -> None:
    store = Store(tmp_path / "a")
    fill(store)
    shutil.copytree(tmp_path / "a", tmp_path / "b")  # as a kill leaves it: with the write-ahead log
    store.close()
    log = tmp_path / "b" / "hitbox.db-wal"
    assert log.stat().st_size > 100_000
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size * 2 // 3)
    with pytest.raises(StoreDamaged, match="the last ones are lost"):
        Store(tmp_path / "b")
    (tmp_path / "a" / "beacon").unlink()
    with pytest.raises(StoreDamaged, match=r"commit marker .* is missing"):
        Store(tmp_path / "a")


@pytest.mark.parametrize("state", ["killed", "closed"])
def test_flipped_bytes_are_found_or_harmless(tmp_path: Path, state: str) -> None:
    store = Store(tmp_path / "good")
    fill(store, 60)
    whole = content(store)
    if state == "closed":
        store.close()
    rng = random.Random(7)
    found = 0
    for trial in range(120):
        folder = tmp_path / f"bad{trial}"
        shutil.copytree(tmp_path / "good", folder, ignore=shutil.ignore_patterns("reserve"))
        file = rng.choice([p for p in folder.iterdir() if p.name not in ("lock", "hitbox.db-shm") and p.stat().st_size])
        data = bytearray(file.read_bytes())
        at = rng.randrange(len(data))
        if rng.random() < 0.3:
            del data[at:]  # torn
        else:
            data[at] ^= 1 << rng.randrange(8)
        file.write_bytes(data)
        try:
            again = Store(folder)
        except StoreDamaged:
            found += 1
        else:
            assert content(again) == whole
            again.close()
        shutil.rmtree(folder)
    assert found > 20
    if state == "killed":
        store.close()


def test_group_commit_and_a_full_disk(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = Store(tmp_path, max_bytes=400_000)
        writer = Writer(store, asyncio.get_running_loop())
        big = b'{"event":{"city":"' + b"x" * 1000 + b'"}}'
        before = writer.commits
        firsts = await asyncio.gather(*(writer.submit(lambda: store.events.append([big], 0)) for _ in range(100)))
        assert firsts == list(range(1, 101))
        assert writer.commits - before < 50  # groups, not single commits
        with pytest.raises(StoreFull, match="nothing was accepted"):
            await writer.submit(lambda: store.events.append([big] * 1000, 0))
        must = writer.submit(lambda: store.events.append([big] * 300, 0), mandatory=True)
        await asyncio.sleep(0.1)
        assert writer.full
        assert not must.done()
        store.space.set_max_bytes(100_000_000)
        assert await must == 101
        assert not writer.full
        with pytest.raises(ZeroDivisionError):
            await writer.submit(lambda: 1 // 0)
        assert await writer.submit(lambda: store.events.append([big], 0)) == 401
        await writer.close()
        store.close()
        again = Store(tmp_path)
        assert again.events.table.rows() == 401
        again.close()

    asyncio.run(scenario())


def steps_of_a_trim(folder: Path, idle: int) -> int:
    """How many steps SQLite takes for a trim that lets go of events, in hundreds."""
    store = Store(folder)
    store.begin()
    store.subscribers.table.insert((number, f"s{number}", b"{}") for number in range(1, idle + 1))
    store.events.append([b'{"event":{}}'] * 100, 0)
    store.deliveries.record([(1, 4, 50, "s", 0), (1, 9, 70, "s", 0), (idle, 2, 60, "s", 0)], 100)
    store.commit()
    steps = 0

    def count() -> bool:
        nonlocal steps
        steps += 1
        return False

    store.begin()
    store.db.set_progress_handler(count, 100)
    assert store.retention.trim(before=1, most_bytes=2**40).events == 100
    store.db.set_progress_handler(None)
    store.commit()
    store.close()
    return steps


def test_retention_does_not_ask_idle_subscribers(tmp_path: Path) -> None:
    assert steps_of_a_trim(tmp_path / "many", 5_000) <= 2 * steps_of_a_trim(tmp_path / "few", 10)


def test_an_import_takes_time_in_proportion(tmp_path: Path) -> None:
    """Many subscribers: the number of a new one is not looked for among all the others."""

    def seconds(count: int) -> float:
        index = Index(Schema({"qty": "int"}))
        index.load(pa.table({"id": [f"s{n}/a" for n in range(count)], "where": ["qty > 3"] * count}))
        index.save(tmp_path / f"snapshot{count}")
        began = time.process_time()
        import_export.load(tmp_path / f"data{count}", tmp_path / f"snapshot{count}")
        return time.process_time() - began

    seconds(10)
    few = min(seconds(2_000), seconds(2_001))
    assert seconds(20_000) < 30 * few  # ten times as many; with a search among all of them more than 60 times
    store = Store(tmp_path / "data20000")
    assert [row[0] for row in store.subscribers.table.scan()] == list(range(1, 20_001))
    store.close()


def test_other_jobs_outlive_one_that_fails_and_a_broken_store_fails_them_all(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = Store(tmp_path)
        writer = Writer(store, asyncio.get_running_loop())
        jobs = [lambda: 1, lambda: 1 // 0, lambda: store.events.append([b'{"event":{}}'], 0)]
        found = await asyncio.gather(*(writer.submit(job) for job in jobs), return_exceptions=True)
        assert (found[0], type(found[1]), found[2]) == (1, ZeroDivisionError, 1)
        assert writer.unexpected_errors == 1

        def fails() -> None:
            raise apsw.CorruptError

        jobs = [fails, lambda: 1]
        found = await asyncio.gather(*(writer.submit(job) for job in jobs), return_exceptions=True)
        assert all(isinstance(one, StoreFailed) for one in found)
        with pytest.raises(StoreFailed, match="closed"):
            await writer.submit(lambda: 1)
        await writer.close()
        store.close()
        again = Store(tmp_path)
        assert again.events.table.rows() == 1
        again.close()

    asyncio.run(scenario())


def test_a_rollback_that_fails_too_does_not_hide_the_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "data")

    def unreadable() -> None:
        raise apsw.IOError("cannot read")

    with monkeypatch.context() as broken:
        broken.setattr(store.ledger, "reload", unreadable)
        with pytest.raises(StoreFailed, match="cannot write"), store.transaction():
            raise apsw.IOError("cannot write")
    with store.transaction():
        store.meta.put("note", 1)
    assert store.meta.get("note") == 1
    store.close()
