"""`hitbox admin backup` while events arrive, and `restore` with its checks; damage, full disks and interrupts."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import apsw
import httpx
import pytest
from typer.testing import CliRunner

from hitbox import Schema
from hitbox.broker.commands.cli import app
from hitbox.broker.events.published_event import PublishedEvent
from hitbox.broker.store.store import Store
from hitbox.broker.subscribers.webhook import message_id
from hitbox.broker.upkeep import backup, repair
from hitbox.client import Client, Delivery
from hitbox.protocol.errors import Conflict, StoreDamaged, StoreFailed, StoreFull, Unknown
from support.broker_kit import SCHEMA, Listener, item, running, serving, sub, until


def run(*arguments: str, status: int = 0) -> str:
    done = CliRunner().invoke(app, ["admin", *arguments])
    assert done.exit_code == status, done.output
    return done.stdout if status == 0 else done.stderr


def filled(folder: Path, events: int = 50) -> Path:
    async def scenario() -> None:
        async with running(folder) as broker:
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            await broker.publish([item(qty=n, city="x" * 500) for n in range(events)])
            await until(broker.caught_up)

    asyncio.run(scenario())
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def check_contents(folder: Path) -> int:
    """A broker works on the folder, and ann gets what was pending; returns the number of its events."""
    assert repair.check(folder) == []

    async def scenario() -> int:
        async with running(folder, None) as broker:
            last: int = broker.store.events.number_of_latest(1)
            ann = await Listener(broker).attach("ann", 1000)
            wanted = [seq for seq, *_, body in broker.store.events.from_number(1, 100_000) if b'"qty":0,' not in body]
            await until(lambda: len(ann.got) == len(wanted))
            assert ann.seqs() == wanted
            return last

    return asyncio.run(scenario())


def test_numbers_of_delayed_events_begin_anew_in_a_copy(tmp_path: Path) -> None:
    """Who cancels one by a number of the original cancels no other."""

    async def delayed(folder: Path, schema: Schema | None) -> tuple[int, int]:
        async with running(folder, schema) as broker:
            number = await broker.publish([PublishedEvent({"qty": 1}, delay_seconds=3600)])
            return number, await broker.delayed.cancel([2])

    data, copy = tmp_path / "data", tmp_path / "copy"
    assert asyncio.run(delayed(data, SCHEMA)) == (1, 0)
    assert backup.backup(data, copy) == []
    assert asyncio.run(delayed(data, None)) == (2, 1)
    restored = tmp_path / "restored"
    assert backup.restore(copy, restored) == []
    number, cancelled = asyncio.run(delayed(restored, None))
    assert number > 10**9
    assert cancelled == 0


def test_a_copy_begins_another_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its new events have numbers and ids that neither the original nor another copy of it has given to others. What it
    has from the original keeps its number, and stays deliverable, after a restart, a repair and retention, too."""

    async def story(folder: Path, qty: int, schema: Schema | None = None) -> tuple[list[int], set[str], set[str]]:
        """What ann gets of three new events: their numbers, the keys and the ids of requests to a webhook."""
        async with serving(folder, schema) as (broker, url), Client(url) as client:
            async with client.subscriber("ann") as ann:
                await ann.subscribe("s", "qty > 0")
                first = await client.publish_many([{"qty": qty}] * 3, ids=[f"{qty}-{n}" for n in range(3)])
                assert await client.publish_many([{"qty": qty}] * 3, ids=[f"{qty}-{n}" for n in range(3)]) == first
                found: list[Delivery] = []
                while not found or found[-1].seq < first + 2:
                    found.append(await ann.next())
                    await ann.ack(found[-1])
            await until(lambda: not broker.mailbox("ann").pending)
            new = [one for one in found if one.event["qty"] == qty]
            requests = {message_id(broker.store.incarnation, "ann", [one.seq]) for one in new}
            return [one.seq for one in new], {one.key for one in new}, requests

    async def replayed(folder: Path, **settings: Any) -> list[int]:
        async with serving(folder, None, **settings) as (broker, url), Client(url) as client:
            assert await client.publish({"qty": 1}, id="1-2") == 3  # known from the original
            await client.replay("ann", broker.store.events.table.first())
            async with client.subscriber("ann") as ann:
                count = broker.mailbox("ann").pending
                return [(await ann.next()).seq for _ in range(count)]

    async def arrivals(folder: Path) -> list[int]:
        async with running(folder, None) as broker:
            ann = await Listener(broker).attach("ann")
            await until(lambda: len(ann.got) == 9)
            return ann.seqs()

    data, kept = tmp_path / "data", tmp_path / "kept"
    before = asyncio.run(story(data, 1, SCHEMA))
    assert before[0] == [1, 2, 3]
    assert backup.backup(data, kept) == []
    copies = [tmp_path / "one", tmp_path / "two"]
    for copy in copies:
        assert backup.restore(kept, copy) == []
    after = [asyncio.run(story(folder, qty)) for qty, folder in enumerate((data, *copies, kept), 2)]
    assert after[0][0] == [4, 5, 6]
    for which in range(3):  # numbers, keys and ids of requests
        given = [one for found in (before, *after) for one in found[which]]
        assert len(set(given)) == len(given) == 15
    first, again = after[1][0], asyncio.run(story(copies[0], 9))[0]
    assert again == [first[0] + 3, first[0] + 4, first[0] + 5]  # it jumps once
    assert asyncio.run(replayed(copies[0])) == [1, 2, 3, *first, *again]
    assert repair.check(copies[0]) == []
    repaired = repair.repair(copies[0])
    assert (repaired.left_out, repaired.notes) == ([], [])
    assert asyncio.run(replayed(copies[0])) == [1, 2, 3, *first, *again]
    for before_removal in (9, 7, 6, 5, 4, 1):
        store = Store(copies[0])
        assert store.events.table.rows() == before_removal
        with store.transaction():
            batch = 2 if before_removal > 8 else 1 if before_removal > 4 else 3
            assert store.retention.trim(2**62, 0, batch=batch).events
        store.close()
        assert repair.check(copies[0]) == []
    assert asyncio.run(arrivals(copies[0])) == [1, 2, 3, *first, *again]
    assert len(asyncio.run(replayed(copies[1]))) == 6
    monkeypatch.setattr("hitbox.broker.store.retention.KEPT_ROWS", 1)  # retention goes in halves, over the gap, too
    left = 6
    while left:
        store = Store(copies[1])
        with store.transaction():
            left -= store.retention.trim(2**62, 0).events
        assert store.events.table.rows() == left
        store.close()
        assert repair.check(copies[1]) == []


def test_of_a_stopped_broker(tmp_path: Path) -> None:
    data, kept = filled(tmp_path / "data"), tmp_path / "deep" / "kept"
    assert f"backup in {kept}" in run("backup", str(data), str(kept))
    assert names(kept) == ["beacon", "hitbox.db"]
    assert names(tmp_path / "deep") == ["kept"]
    assert {path.stat().st_mode & 0o777 for path in (kept, *kept.iterdir())} == {0o600, 0o700}
    assert "restored to" in run("restore", str(kept), str(tmp_path / "new"))
    assert check_contents(tmp_path / "new") == 50
    assert check_contents(data) == 50
    assert "exists already" in run("backup", str(data), str(kept), status=2)
    assert "exists already" in run("restore", str(kept), str(data), status=2)
    (tmp_path / "empty").mkdir()
    run("restore", str(kept), str(tmp_path / "empty"))


@pytest.mark.parametrize("way", ["folder", "address"])
def test_of_a_running_broker(tmp_path: Path, way: str) -> None:
    """Events arrive all the time; the backup is a prefix of them, complete and consistent."""
    data, kept, new = tmp_path / "data", tmp_path / "kept", tmp_path / "new"

    async def scenario() -> tuple[int, int]:
        async with serving(data) as (broker, url):
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            first, done = 0, asyncio.Event()

            async def publish() -> None:
                nonlocal first
                while not done.is_set():
                    first = await broker.publish([item(qty=n, city="x" * 500) for n in range(20)])

            load = asyncio.create_task(publish())
            await until(lambda: first > 500)
            before = first
            command = ["admin", "backup", str(data) if way == "folder" else url, str(kept)]
            process = await asyncio.create_subprocess_exec(sys.executable, "-m", "hitbox", *command)
            assert await process.wait() == 0
            done.set()
            await load
            assert not [name for name in names(data) if "partial" in name and not name.endswith(".lock")]
            return before + 19, first + 19

    accepted, last = asyncio.run(scenario())
    run("restore", str(kept), str(new))
    assert accepted <= check_contents(new) <= last
    assert check_contents(data) == last


def test_an_address_sends_one_backup_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with serving(tmp_path / "data") as (broker, url), httpx.AsyncClient(base_url=url) as http:
            sender = await asyncio.to_thread(backup.Sender, broker.store.folder)
            assert (await http.post("/v1/backup")).status_code == 409
            del sender
            assert (await http.post("/v1/backup")).content.startswith(b"SQLite format 3")
            assert not [name for name in names(broker.store.folder) if name.startswith(backup.SCRATCH)]
            monkeypatch.setattr(backup.Disk, "space", lambda *_: (1, 1))
            assert (await http.post("/v1/backup")).status_code == 507
            assert (await http.get("/v1/backup")).status_code == 405
        async with serving(tmp_path / "other", principals=["ops"]) as (_, url), httpx.AsyncClient(base_url=url) as http:
            assert (await http.post("/v1/backup")).status_code == 401

    asyncio.run(scenario())


def test_remains_of_a_killed_broker_are_removed_at_start(tmp_path: Path) -> None:
    (tmp_path / backup.SCRATCH).write_bytes(b"half of a copy")

    async def scenario() -> None:
        async with serving(tmp_path):
            assert backup.SCRATCH not in names(tmp_path)

    asyncio.run(scenario())


def test_a_transfer_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    whole = (filled(tmp_path / "data") / "hitbox.db").read_bytes()

    def half(file: Any) -> None:
        file.write(whole[: len(whole) // 2])

    with pytest.raises(StoreDamaged, match="nothing was kept"):
        backup.receive(half, tmp_path / "kept")
    with pytest.raises(StoreDamaged, match="is no store"):
        backup.receive(lambda file: file.write(b"<html>"), tmp_path / "kept")
    with pytest.raises(StoreDamaged, match="is no store"):
        backup.receive(lambda file: None, tmp_path / "kept")
    assert names(tmp_path) == ["data"]


def test_what_is_no_broker_and_no_backup(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(Unknown, match="holds no broker"):
        backup.backup(tmp_path / "empty", tmp_path / "kept")
    with pytest.raises(Unknown, match="is no backup"):
        backup.restore(tmp_path / "missing", tmp_path / "new")
    filled(tmp_path / "data")
    (tmp_path / "file").touch()
    for target in (tmp_path / "file", tmp_path / "file" / "x"):
        with pytest.raises((Conflict, StoreFailed)):
            backup.backup(tmp_path / "data", target)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(Conflict, match="exists already"):
        backup.backup(tmp_path / "data", tmp_path / "link")
    assert names(tmp_path) == ["data", "empty", "file", "link"]


@pytest.mark.parametrize("part", ["flipped", "cut", "lost commits", "no marker", "another format"])
def test_damage_is_found_and_nothing_is_restored(tmp_path: Path, part: str) -> None:
    kept = tmp_path / "kept"
    backup.backup(filled(tmp_path / "data"), kept)
    path = kept / "hitbox.db"
    raw = bytearray(path.read_bytes())
    if part == "flipped":
        raw[raw.rindex(b"x" * 100)] ^= 1  # inside an event
        path.write_bytes(raw)
    elif part == "cut":
        path.write_bytes(raw[: len(raw) // 2])
    elif part == "lost commits":
        filled(tmp_path / "longer")
        filled(tmp_path / "longer")
        shutil.copy(tmp_path / "longer" / "beacon", kept / "beacon")
    elif part == "no marker":
        (kept / "beacon").write_bytes(b"")
    else:
        store = Store(kept)
        with store.transaction():
            store.meta.put("format", 99)
        store.close()
    with pytest.raises((StoreDamaged, StoreFailed), match=r"nothing was (restored|kept)"):
        backup.restore(kept, tmp_path / "new")
    assert "new" not in names(tmp_path)
    assert "new.partial" not in names(tmp_path)


def test_a_damaged_store_makes_no_backup(tmp_path: Path) -> None:
    path = filled(tmp_path / "data") / "hitbox.db"
    raw = bytearray(path.read_bytes())
    raw[raw.rindex(b"x" * 100)] ^= 1
    path.write_bytes(raw)
    with pytest.raises(StoreDamaged, match="no backup was kept"):
        backup.backup(tmp_path / "data", tmp_path / "kept")
    assert names(tmp_path) == ["data"]


def test_what_is_set_aside_is_copied_and_reported(tmp_path: Path) -> None:
    store = Store(filled(tmp_path / "data"))
    with store.transaction():
        store.subscribers.subscriptions.insert([(99, "s", "qty > 0", 4, "{}")])
    store.close()
    (problem,) = backup.backup(tmp_path / "data", tmp_path / "kept")
    assert "subscribers that do not exist" in problem
    assert backup.restore(tmp_path / "kept", tmp_path / "new") == [problem]


@pytest.mark.parametrize(
    ("problem", "raised"),
    [
        (OSError(errno.ENOSPC, "no space"), StoreFull),
        (apsw.FullError("full"), StoreFull),
        (OSError(errno.EIO, "broken"), StoreFailed),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_a_full_disk_or_an_interrupt_leaves_nothing(
    tmp_path: Path, problem: BaseException, raised: type[BaseException]
) -> None:
    filled(tmp_path / "data")

    def fail(done: int, total: int) -> None:
        raise problem

    with pytest.raises(raised):
        backup.backup(tmp_path / "data", tmp_path / "kept", fail)
    assert names(tmp_path) == ["data"]
    backup.backup(tmp_path / "data", tmp_path / "kept")
    with pytest.raises(raised):
        backup.restore(tmp_path / "kept", tmp_path / "new", fail)
    assert names(tmp_path) == ["data", "kept"]


def test_after_a_kill_the_next_run_starts_anew(tmp_path: Path) -> None:
    filled(tmp_path / "data")
    program = f"""
import os, signal
from pathlib import Path
from hitbox.broker.upkeep import backup
backup.backup(Path({str(tmp_path / "data")!r}), Path({str(tmp_path / "kept")!r}), lambda *_: os.kill(os.getpid(), 9))
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -signal.SIGKILL
    assert names(tmp_path) == ["data", "kept.partial"]
    backup.backup(tmp_path / "data", tmp_path / "kept")
    assert names(tmp_path) == ["data", "kept"]
    backup.restore(tmp_path / "kept", tmp_path / "new")
    assert check_contents(tmp_path / "new") == 50


def test_two_backups_to_one_target(tmp_path: Path) -> None:
    filled(tmp_path / "data")

    def second(done: int, total: int) -> None:
        with pytest.raises(Conflict, match="another backup"):
            backup.backup(tmp_path / "data", tmp_path / "kept")

    assert backup.backup(tmp_path / "data", tmp_path / "kept", second) == []
    assert not os.path.exists(tmp_path / "kept.partial")
