"""A disk that is full: nothing is lost, deletes work, the broker says so, and it passes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest

from hitbox.broker.broker import RECORDS_AHEAD, Broker
from hitbox.broker.delivery.dispatcher import BATCH
from hitbox.broker.events.published_event import PublishedEvent
from hitbox.broker.settings import Options
from hitbox.broker.store.deliveries import StoredDeliveries
from hitbox.broker.store.group_commit import Job, Writer
from hitbox.broker.store.store import Store
from hitbox.broker.store.subscribers import StoredSubscribers
from hitbox.protocol.errors import StoreFull
from simulator.disk import Faults, SimulatedDisk
from support.broker_kit import Listener, item, publish_until_full, running, sub, until


@pytest.fixture
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A filesystem of 12 MB, or of the size that a test names."""
    place = tmp_path / "disk"
    place.mkdir()
    size = f"size={getattr(request, 'param', '12m')}"
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", size, "hitbox-test", str(place)], capture_output=True)
    if made.returncode:
        pytest.skip(f"NOT TESTED: a full filesystem needs the right to mount one: {made.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(path: Path) -> None:
    """Use up what is left of a filesystem."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)


async def publish_until_refused(broker: Broker, batch: list[PublishedEvent]) -> int:
    """Publish batches, each when the one before is matched; the last event that was accepted."""
    last = 0
    with contextlib.suppress(StoreFull):
        while True:
            await until(lambda: broker.waiting.events == 0, 60)
            last = await broker.publish(batch) + len(batch) - 1
    return last


def test_a_full_filesystem(small_disk: Path) -> None:
    data = small_disk / "data"

    async def scenario() -> None:
        async with running(data, keep_bytes=2**40) as broker:
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            await broker.subscribe("bob", [sub("s", "qty > 0"), sub("t", "qty > 1")])
            last = await publish_until_full(broker)
            assert last > 100
            found, status = broker.health()
            assert (found["status"], status) == ("full", 507)
            assert "full" in found["reason"]
            # what frees space works: acknowledgements, unsubscribing, deleting a subscriber
            ann = await Listener(broker).attach("ann", 1000)
            await until(lambda: ann.mailbox.pending == 0, 30)
            assert ann.seqs() == list(range(1, last + 1))
            await broker.subscribe("bob", [], ["t"], strict=True)
            assert not broker.registry.problems
            await broker.remove_subscriber("bob")
            assert broker.store.deliveries.unacknowledged() == 0
            subprocess.run(["mount", "-o", "remount,size=24m", str(small_disk)], check=True)
            await until(lambda: not broker.writer.full)
            assert await broker.publish([item(qty=1)]) == last + 1
            await until(lambda: ann.seqs()[-1] == last + 1)
            assert broker.health()[0]["status"] == "ok"
        async with running(data) as broker:  # every check of the store passes
            assert broker.store.events.table.next() == last + 2

    asyncio.run(scenario())


def test_retention_makes_room_on_a_full_filesystem(small_disk: Path) -> None:
    """Nobody enlarges the disk: letting go of old events must be enough."""

    async def scenario() -> None:
        async with running(small_disk / "data", keep_bytes=4_000_000) as broker:
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            last = await publish_until_full(broker)
            ann = await Listener(broker).attach("ann", 1000)
            await until(lambda: ann.mailbox.pending == 0, 30)
            await until(lambda: not broker.writer.full, 30)
            assert await broker.publish([item(qty=1)]) == last + 1
        Store(small_disk / "data").close()

    asyncio.run(scenario())


@pytest.mark.parametrize("way", ["at once", "after a restart"])
def test_a_full_filesystem_accepts_again_when_everything_is_acknowledged(small_disk: Path, way: str) -> None:
    """Nothing is too old and the log is not too large: the disk says how much may be kept."""

    async def scenario() -> None:
        async with running(small_disk / "data", keep_bytes=2**40) as broker:
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            last = await publish_until_full(broker)
            if way == "at once":
                await again(broker, last)
        if way == "after a restart":
            async with running(small_disk / "data", None, keep_bytes=2**40) as broker:
                assert broker.writer.full
                await again(broker, last)
        Store(small_disk / "data").close()

    async def again(broker: Broker, last: int) -> None:
        ann = await Listener(broker).attach("ann", 1000)
        await until(lambda: ann.mailbox.pending == 0, 30)
        assert ann.seqs() == list(range(1, last + 1))
        for n in range(1, 11):
            await until(lambda: not broker.writer.full, 30)
            assert await broker.publish([item(qty=1)]) == last + n
        assert broker.store.events.total("trimmed") > 0

    asyncio.run(scenario())


@pytest.mark.parametrize("small_disk", ["48m"], indirect=True)
def test_a_commit_that_could_not_be_copied_into_the_database_is_refused(small_disk: Path) -> None:
    """The log of one large commit fits on the disk, but not beside what it adds to the database."""

    async def scenario() -> None:
        async with running(small_disk / "data", keep_seconds=0) as broker:
            await broker.subscribe("ann", [sub("s", "qty = 1")])
            batch = [item(qty=1, city="x" * 500)] * 5_000
            last = await publish_until_refused(broker, batch)
            assert last > 10_000
            ann = await Listener(broker).attach("ann", window=1_000)
            await until(lambda: ann.mailbox.pending == 0, 60)
            assert ann.seqs() == list(range(1, last + 1))
            await until(lambda: not broker.writer.full, 60)
            assert await broker.publish(batch[:10]) == last + 1
            assert broker.store.space.maintenance_errors == {}
        Store(small_disk / "data").close()

    asyncio.run(scenario())


def test_acknowledgements_make_room_for_deliveries_that_find_none(tmp_path: Path) -> None:
    """The deliveries of 256 events to 20 subscribers who are away wait for room. What ann acknowledges goes ahead of
    them, and so does what she gets meanwhile."""

    async def scenario() -> None:
        async with running(tmp_path, keep_seconds=1e6) as broker:
            for n in range(20):
                await broker.subscribe(f"away{n}", [sub("s" * 90, "qty = 2")])
            await broker.subscribe("ann", [sub("s" * 100, "qty = 1"), sub("t" * 100, "qty > 0 AND qty < 2")])
            for _ in range(20):
                await broker.publish([item(qty=1)] * 200)
            await until(lambda: broker.store.deliveries.table.rows() == 4_000)
            ann = await Listener(broker, auto=False).attach("ann", window=1_000)
            await until(lambda: len(ann.got) == 1_000)
            used = await broker.writer.submit(broker.store.space.used_bytes)
            await broker.writer.submit(lambda: broker.store.space.set_max_bytes(used + 100_000))
            await broker.publish([item(qty=2)] * 256)
            await until(lambda: broker.writer.full)
            await asyncio.sleep(0.5)
            assert broker.tracker.stored == 4_000 < broker.tracker.recorded
            unstored = [4_001, 4_256]  # of somebody else, or not there: nobody waits until there is room for them
            looked_up = broker.tracker.acknowledge(ann.mailbox, [*unstored, 4_000])
            assert looked_up is not None
            await asyncio.wait_for(looked_up, 20)
            assert broker.tracker.stored == 4_000
            ann.auto = True
            broker.tracker.acknowledge(ann.mailbox, ann.seqs())
            await until(lambda: broker.tracker.stored == 4_256)
            await until(lambda: ann.mailbox.pending == 0)
            assert ann.seqs() == list(range(1, 4_000))
            assert {broker.mailbox(f"away{n}").pending for n in range(20)} == {256}

    asyncio.run(scenario())


def test_failed_tries_that_find_no_room_still_count(tmp_path: Path) -> None:
    """Deliveries are read from a full store, whereas failed tries and dead letters wait for room."""

    async def scenario() -> None:
        async with running(tmp_path, keep_seconds=1e6) as broker:
            for n in range(20):
                await broker.subscribe(f"away{n}", [sub("s" * 90, "qty = 2")])
            await broker.subscribe("ann", [sub("s", "qty = 1")])
            options = Options(max_tries=2, backoff_seconds=0.01)
            await broker.put_subscriber("ann", options)
            await broker.publish([item(qty=1)] * 2)
            ann = await Listener(broker, auto=False).attach("ann")
            await until(lambda: len(ann.got) == 2)
            broker.tracker.refuse(ann.mailbox, [1])
            await until(lambda: len(ann.got) == 3)
            used = await broker.writer.submit(broker.store.space.used_bytes)
            await broker.writer.submit(lambda: broker.store.space.set_max_bytes(used + 100_000))
            await broker.publish([item(qty=2)] * 256)
            await until(lambda: broker.writer.full)
            broker.tracker.refuse(ann.mailbox, [1, 2])  # a dead letter, and a second try: neither finds room
            await ann.leave()
            again = await Listener(broker, auto=False).attach("ann")
            await until(lambda: again.got)
            await asyncio.sleep(0.3)
            assert [(d["seq"], d["attempt"]) for d in again.got] == [(2, 2)]
            assert broker.writer.full
            broker.tracker.acknowledge(again.mailbox, [2])
            await broker.writer.submit(lambda: broker.store.space.set_max_bytes(None), mandatory=True, frees_space=True)
            await until(lambda: broker.store.letters.table.rows() == 1)
            await until(lambda: again.mailbox.pending == 0)
            assert (again.mailbox.unstored_tries, again.mailbox.unstored_dead) == ({}, set())

    asyncio.run(scenario())


def test_a_start_on_a_full_filesystem(small_disk: Path) -> None:
    async def scenario() -> None:
        async with running(small_disk / "data", keep_bytes=2**40) as broker:
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            last = await publish_until_full(broker)
        (small_disk / "data" / "reserve").unlink()
        fill(small_disk / "rest")
        with contextlib.suppress(StoreFull):  # not even the log's index may fit
            async with running(small_disk / "data", keep_bytes=2**40) as broker:
                assert broker.health()[1] == 507
                with pytest.raises(StoreFull):
                    await broker.publish([item(qty=1)])
        (small_disk / "rest").unlink()
        async with running(small_disk / "data", keep_bytes=2**40) as broker:
            ann = await Listener(broker).attach("ann", 1000)
            await until(lambda: len(ann.got) == last, 30)

    asyncio.run(scenario())


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from support.broker_kit import publish_until_full, running, sub

async def scenario():
    place = Path(sys.argv[1])
    async with running(place / "data", keep_bytes=2**40) as broker:
        for n in range(40):
            await broker.subscribe(f"s{n}", [sub("a" * 90, "qty > 0")])
        print(await publish_until_full(broker), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(scenario())
"""


@pytest.mark.parametrize("small_disk", ["4m"], indirect=True)
def test_a_kill_on_a_full_filesystem(small_disk: Path) -> None:
    """The deliveries of what was accepted do not fit: the broker runs all the same, and frees space where it may."""
    call = [sys.executable, "-c", KILLED, str(small_disk), str(Path(__file__).parents[2])]
    done = subprocess.run(call, capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    last = int(done.stdout)

    async def scenario() -> None:
        async with asyncio.timeout(60), running(small_disk / "data", None, keep_bytes=2**40) as broker:
            await until(lambda: broker.health()[1] == 507)
            for n in range(1, 40):
                await broker.remove_subscriber(f"s{n}")
            listener = await Listener(broker).attach("s0", 1000)
            await until(lambda: not broker.writer.full, 30)
            await until(lambda: listener.mailbox.pending == 0, 30)
            assert sorted(set(listener.seqs())) == list(range(1, last + 1))
        Store(small_disk / "data").close()

    asyncio.run(scenario())


class NoRoom(Writer):
    """Has room only for what frees space."""

    room = False

    def _commit(self, group: list[Job]) -> None:
        if not self.room and not all(job.frees_space for job in group if job.error is None):
            raise apsw.FullError("no room")
        super()._commit(group)

    def _recover(self, waiting: bool) -> None:
        if self.room:
            super()._recover(waiting)


def test_a_start_waits_for_no_room(tmp_path: Path) -> None:
    """Events that a crash left unmatched: more of them than may wait for the store otherwise."""
    count = BATCH * (RECORDS_AHEAD + 3)

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            for name in ("ann", "bob"):
                await broker.subscribe(name, [sub("s", "qty > 0")])
        with contextlib.closing(Store(tmp_path)) as store, store.transaction():
            store.events.append([b'{"event":{"qty":1}}'] * count, 0)
            store.events.append([b'{"event":{"unknown":1}}'], 0)
        broker = Broker(tmp_path, writer=NoRoom)
        await asyncio.wait_for(broker.start(), 30)
        await until(lambda: broker.health()[1] == 507)
        await asyncio.wait_for(broker.remove_subscriber("bob"), 30)
        with pytest.raises(StoreFull):
            await broker.subscribe("ann", [sub("late", "qty > 0")])
        ann = await Listener(broker).attach("ann", 10_000)
        assert isinstance(broker.writer, NoRoom)
        broker.writer.room = True
        await until(lambda: ann.mailbox.pending == 0)
        assert (sorted(ann.seqs()), ann.got[0]["subscriptions"]) == (list(range(1, count + 1)), ["s"])
        assert await broker.publish([item(qty=1)]) == count + 2
        await until(lambda: ann.seqs()[-1] == count + 2)
        assert broker.store.events.failed() == [count + 1]
        assert broker.describe()["waiting"] == 0
        await broker.stop()
        Store(tmp_path).close()

    asyncio.run(scenario())


LIMITED = """
import asyncio, resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from support.broker_kit import item, publish_until_full, running, sub

async def scenario():
    async with running(Path(sys.argv[1])) as broker:
        await broker.subscribe("ann", [sub("s", "qty > 0")])
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, resource.RLIM_INFINITY))
        last = await publish_until_full(broker)
        print(last, broker.health())
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        while broker.writer.full:
            await asyncio.sleep(0.05)
        assert await broker.publish([item(qty=1)]) == last + 1

asyncio.run(asyncio.wait_for(scenario(), 180))
"""


def test_a_limit_of_the_file_size(tmp_path: Path) -> None:
    call = [sys.executable, "-c", LIMITED, str(tmp_path / "data"), str(Path(__file__).parents[2])]
    done = subprocess.run(call, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    last = int(done.stdout.split()[0])
    assert "'status': 'full'" in done.stdout
    store = Store(tmp_path / "data")
    assert store.events.table.rows() == last + 1
    store.close()


class Failing:
    """A file of the store that cannot be written."""

    def __init__(self, file: Any):
        self._file, self.fails = file, True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, data: bytes, at: int) -> None:
        if self.fails:
            raise OSError(5, os.strerror(5))
        self._file.write(data, at)


def test_a_commit_marker_that_cannot_be_written_fails_nothing(tmp_path: Path) -> None:
    """The commit before it is durable: whoever is told that it failed would be told a lie."""

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            assert broker.store.commit_marker is not None
            broker.store.commit_marker._file = failing = Failing(broker.store.commit_marker._file)
            assert await broker.publish([item(qty=1)]) == 1
            found, status = broker.health()
            assert (found["status"], status) == ("degraded", 200)
            assert "commit marker" in broker.describe()["set_aside"][0]
            failing.fails = False
            assert await broker.publish([item(qty=1)]) == 2
            assert broker.health()[0]["status"] == "ok"
        Store(tmp_path).close()

    asyncio.run(scenario())


class OneFault(Faults):
    """The step with this number fails."""

    def __init__(self, kind: str, at: int):
        super().__init__(random.Random(at))
        self.kind, self.at = kind, at

    def next(self) -> str | None:
        self.at -= 1
        return self.kind if self.at == 0 else None


@pytest.mark.parametrize("kind", ["eio", "short", "crash"])
def test_a_fault_at_every_step_of_a_commit(kind: str, tmp_path: Path) -> None:
    """Write by write and sync by sync: a transaction is there or is not, and the next one and the next start work."""
    failed = 0
    for at in range(1, 200):
        faults = OneFault(kind, 0)
        disk = SimulatedDisk(faults, 2**22, lambda: None)
        store = Store(tmp_path, disk=disk)
        store.space.next_checkpoint = 30_000  # so that some of the steps are those of a checkpoint
        committed: list[int] = []
        met = True
        for turn in range(4):
            faults.at = at if turn == 2 else 0
            try:
                store.begin()
                first = store.events.append([b'{"event":{}}' + b" " * 1500] * 8, turn)
                store.meta.put("matched", first)
                store.commit()
            except (apsw.Error, OSError):
                failed += 1
                with contextlib.suppress(apsw.Error):
                    store.rollback()
            else:
                committed += range(first, first + 8)
            met = met and faults.at <= 0
            if disk.dead:
                break
        after = disk.reboot(lambda: None, power_cut=bool(disk.dead and at % 2))
        again = Store(tmp_path, disk=after)
        found = [row[0] for row in again.events.table.scan()]
        # what was confirmed is there; of the one that a crash cut short, the whole or nothing
        whole = [*committed, *range(len(committed) + 1, len(committed) + 9)]
        assert found in ([committed, whole] if disk.dead else [committed])
        assert again.meta.get("matched") == found[-1] - 7
        for one in (again, store):
            one.close()
        after.close()
        disk.close()
        if not met:
            break
    assert at > 20
    assert failed > 5


def test_a_subscriber_that_filled_the_store_can_be_resumed(tmp_path: Path) -> None:
    """What it acknowledges then makes room."""

    async def scenario() -> None:
        async with running(tmp_path, max_store_bytes=3_000_000) as broker:
            await broker.subscribe("ann", [sub("s", "qty >= 0")])
            await broker.pause("ann", True)
            ann = await Listener(broker, auto=False).attach("ann")
            last = await publish_until_full(broker)
            with pytest.raises(StoreFull):
                await broker.put_subscriber("bob")
            await broker.pause("ann", False)
            await until(lambda: len(ann.got) == 100)
            await broker.put_subscriber("ann", Options("drop_oldest", limit=10))
            await until(lambda: not broker.writer.full and ann.mailbox.pending <= 10)
            assert ann.mailbox.dropped >= last - 10 - len(ann.got)
            assert await broker.publish([item(qty=1)]) == last + 1
            await ann.leave()

    asyncio.run(scenario())


def test_resuming_is_refused_if_not_even_the_reserve_suffices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not wait for room: all events and changes would wait for it."""
    monkeypatch.setattr("hitbox.broker.store.group_commit.RETRY_SECONDS", 0.05)

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.subscribe("ann", [sub("s", "qty >= 0")])
            await broker.pause("ann", True)
            put = StoredSubscribers.put

            def no_room(*_: Any) -> None:
                raise apsw.FullError("no room")

            monkeypatch.setattr(StoredSubscribers, "put", no_room)
            with pytest.raises(StoreFull, match="nothing was changed"):
                await broker.pause("ann", False)
            assert broker.subscriber("ann").paused
            monkeypatch.setattr(StoredSubscribers, "put", put)
            await until(lambda: not broker.writer.full)
            await broker.publish([item(qty=1)])
            await broker.pause("ann", False)
            assert not broker.subscriber("ann").paused

    asyncio.run(scenario())


def test_what_is_acknowledged_does_not_come_again_while_that_finds_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading the next deliveries goes ahead of acknowledgements that do not fit on the disk."""
    monkeypatch.setattr("hitbox.broker.delivery.delivery.FETCH_ROWS", 10)
    acknowledge, fits = StoredDeliveries.acknowledge, True

    def acknowledge_if_it_fits(self: StoredDeliveries, keys: Any) -> Any:
        if not fits:
            raise apsw.FullError("no room")
        return acknowledge(self, keys)

    monkeypatch.setattr(StoredDeliveries, "acknowledge", acknowledge_if_it_fits)

    async def scenario() -> None:
        nonlocal fits
        async with running(tmp_path) as broker:
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            await broker.publish([item(qty=1)] * 30)
            await until(broker.caught_up)
            ann = await Listener(broker, auto=False).attach("ann", window=10)
            await until(lambda: len(ann.got) == 10)
            fits = False
            broker.tracker.acknowledge(ann.mailbox, [*ann.seqs(), 15])
            await until(lambda: len(ann.got) == 20)
            fits = True
            broker.tracker.acknowledge(ann.mailbox, ann.seqs())
            await until(lambda: len(ann.got) == 29)
            broker.tracker.acknowledge(ann.mailbox, ann.seqs())
            await until(lambda: not ann.mailbox.pending and not broker.writer.full)
            assert ann.seqs() == [seq for seq in range(1, 31) if seq != 15]
            await ann.leave()

    asyncio.run(scenario())


class IdleWriter(Writer):
    """Without a thread."""

    def _begin(self) -> None: ...


def try_commit(store: Store, work: Callable[[], object]) -> bool:
    """Do something in a transaction; returns whether there was room."""
    try:
        store.begin()
        work()
        store.commit()
    except (apsw.FullError, OSError):
        store.rollback()
        return False
    return True


@pytest.mark.parametrize("changed", [40, 400])
def test_what_is_committed_can_be_copied_into_the_database(tmp_path: Path, changed: int) -> None:
    """The log takes what is free of the disk: all the pages that were changed, not only those that are new."""
    refused = 0
    for free in range(40_000, 1_200_000, 20_000):
        disk = SimulatedDisk(Faults(random.Random(0)), 2**22, lambda: None)
        store = Store(tmp_path, disk=disk)
        with store.transaction():
            store.events.append([b"x" * 1500] * 500, 1)
        store.space._shrink()
        store.space.release(all=True)
        disk.capacity = disk.used() + free

        def change(store: Store = store) -> None:
            store.db.execute("UPDATE events SET time = 2 WHERE seq <= ?", (changed,))
            store.events.append([b"x" * 1500] * 40, 1)

        refused += not try_commit(store, change)
        store.space.release(all=True)
        assert store.space.maintenance_errors == {}, free
        store.close()
        disk.close()
    assert 0 < refused < 58


def test_a_full_disk_has_room_again_however_little_was_left(tmp_path: Path) -> None:
    """All events may go. What removes them and returns the pages to the disk needs room itself, so it is done little by
    little."""
    for free in range(40_000, 240_000, 8_000):
        disk = SimulatedDisk(Faults(random.Random(0)), 2**22, lambda: None)
        store = Store(tmp_path, disk=disk)
        with store.transaction():
            first = store.events.append([b"x" * 6_000] * 200, 1)
            store.meta.put("matched", first + 199)
        with store.transaction():
            store.retention.trim(0, 0, batch=100)  # what is free in the database is not free on the disk
        store.space.release(all=True)
        disk.capacity = disk.used() + free
        writer = IdleWriter(store, asyncio.new_event_loop(), partial(store.retention.trim, 2, 2**40))
        writer.full = True
        for _ in range(200):
            writer._recover(waiting=False)
            if not (writer.full or store.events.table.rows()):
                break
            writer.full = True
        else:
            events = store.events.table.rows()
            pytest.fail(f"with {free} bytes free it stays full: {store.space.sizes()}, {events} events")
        store.close()
        disk.close()


class CrowdedDisk(SimulatedDisk):
    """A large disk with little room: that of `capacity`."""

    def space(self, folder: Path) -> tuple[int, int]:
        return 2**30, super().space(folder)[1]


def test_a_new_store_needs_room_for_itself_only(tmp_path: Path) -> None:
    """Not for its reserve. It is full then, until there is more room."""
    full = refused = 0
    for free in range(20_000, 8_000_000, 97_000):
        disk = CrowdedDisk(Faults(random.Random(0)), free, lambda: None)
        try:
            store = Store(tmp_path, disk=disk)
        except StoreFull:
            refused += 1
            assert free < 300_000
        else:
            full += not store.has_room
            assert store.has_room == (disk.size(store.folder / "reserve") == store.space.reserve.bytes)  # type: ignore[union-attr]
            store.close()
        disk.capacity = 2**26
        store = Store(tmp_path, disk=disk)
        assert store.has_room
        with store.transaction():
            store.events.append([b'{"event":{}}'] * 1000, 1)
        store.close()
        disk.close()
    assert 0 < refused < 4
    assert full > 30
