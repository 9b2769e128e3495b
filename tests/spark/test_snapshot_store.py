"""Snapshots on an object store: one writer at a time, a draft of its own for each, versions found or named.

No Spark here: what `build` and `apply_changes` do on the driver, against an S3 of our own.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from hitbox import Index
from hitbox import spark as hs
from hitbox.errors import SnapshotError, WriterConflict
from hitbox.spark import small_objects, snapshot_files, writer_lease
from hitbox.spark.versions import chosen
from hitbox.storage import retention, snapshot, writer_lock
from hitbox.storage.addresses import join, resolve
from support.object_store import ObjectStore

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture(params=[True, False], ids=["conditional", "plain"])
def s3(request: pytest.FixtureRequest) -> Iterator[ObjectStore]:
    """A store with conditional puts, and one that ignores the conditions."""
    with ObjectStore(request.param) as store:
        yield store


@pytest.fixture
def address(s3: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HITBOX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(writer_lease, "SETTLE_SECONDS", 0.0)
    return resolve(s3.address("bucket/my ads", "s3a"))


def fill(place: str, mark: int = 0) -> tuple[dict[str, Any], snapshot.Files]:
    index = Index({"a": "int", "s": "string"})
    for id in range(5):
        index.subscribe(id, f"a = {id} OR s = 'x{mark}'")
    stock = index.compacted()
    with snapshot_files.filling(place) as folder:
        return stock.facts(), snapshot.add(folder, stock.arrays() | index._state.keys.arrays())


def publish(address: str, mark: int = 0, base: int | None = None, keep: Any = None) -> int:
    with snapshot_files.draft(address) as place:
        return snapshot_files.publish(address, place, *fill(place, mark), base, operation="build", keep=keep)


def opened(address: str, version: int | None = None) -> Index:
    facts = snapshot_files.facts(address, version)
    return Index.open(snapshot_files.local(address, facts["version"], snapshot_files.identity(facts)), facts["version"])


def lease_of(s3: ObjectStore) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(s3.objects["bucket/my ads/writer.json"])
    return found


def test_versions_come_and_go(s3: ObjectStore, address: str) -> None:
    with pytest.raises(SnapshotError, match="there is no CURRENT"):
        snapshot_files.facts(address)
    assert [publish(address, mark) for mark in (1, 2, 3)] == [1, 2, 3]
    assert snapshot_files._numbers(address) == [2, 3]
    assert opened(address).match({"s": "x3"}) == [0, 1, 2, 3, 4]
    assert opened(address, 2).match({"s": "x2"}) == [0, 1, 2, 3, 4]
    gone = (
        r"version 1 of the snapshot at s3://key:\.\.\.@bucket/my%20ads.*: it is gone; versions there: 2, 3 \(current\)"
    )
    for ask in (lambda: snapshot_files.facts(address, 1), lambda: snapshot_files.local(address, 1, 0)):
        with pytest.raises(SnapshotError, match=gone):
            ask()
    kept = {name.split("/")[2] for name in s3.names()}
    assert kept == {"CURRENT", "versions"}, "neither drafts nor leases are left"
    del s3.objects["bucket/my ads/CURRENT"]
    with pytest.raises(SnapshotError, match=r"no CURRENT, though there are versions 2, 3"):
        snapshot_files.facts(address)


def test_two_drafts_do_not_meet(s3: ObjectStore, address: str) -> None:
    with snapshot_files.draft(address) as one, snapshot_files.draft(address) as two:
        assert one != two
        facts, other = fill(one, 1), fill(two, 2)
        assert snapshot_files.publish(address, two, *other, operation="build") == 1
        assert snapshot_files.publish(address, one, *facts, operation="build") == 2
    assert opened(address, 1).match({"s": "x2"})
    assert opened(address, 2).match({"s": "x1"})
    assert not [name for name in s3.names() if ".draft" in name]


def test_a_second_writer_waits_and_then_hears_who_writes(s3: ObjectStore, address: str) -> None:
    entered, go = threading.Event(), threading.Event()

    def hold() -> None:
        with snapshot_files.writing(address):
            entered.set()
            assert go.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    assert entered.wait(20)
    me = writer_lock.owner("")
    says = rf"process {me['pid']} on {me['host']}, since .* holds s3://.*writer\.json.*not ended in 0\.05 seconds"
    with pytest.raises(WriterConflict, match=says), snapshot_files.writing(address, wait=0.05):
        pass
    go.set()
    thread.join(20)
    assert publish(address) == 1


def test_leases_of_the_dead(s3: ObjectStore, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "bucket/my ads/writer.json"
    elsewhere = {"token": "x", "pid": 1, "host": "elsewhere", "since": "today"}
    for void in (
        elsewhere | {"expires": time.time() - 1},
        elsewhere,
        writer_lock.owner("test") | {"started": "0", "expires": time.time() + 50},  # of this host, and it ended
    ):
        s3.objects[name] = json.dumps(void).encode()
        with snapshot_files.writing(address, wait=0):
            assert lease_of(s3)["pid"] == writer_lock.owner("")["pid"]
        assert name not in s3.objects
    s3.objects[name] = b"?"
    publish(address)
    s3.objects[name] = json.dumps(elsewhere | {"expires": time.time() + 50}).encode()
    with pytest.raises(WriterConflict, match="on elsewhere"), snapshot_files.writing(address, wait=0):
        pass
    assert lease_of(s3)["token"] == "x"


def test_a_lease_is_renewed_while_its_holder_works(
    s3: ObjectStore, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_lease, "LEASE_SECONDS", 3.0)
    with snapshot_files.writing(address) as lease:
        assert lease is not None
        first = lease_of(s3)["expires"]
        deadline = time.monotonic() + 20
        while lease_of(s3)["expires"] < first + 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert lease_of(s3)["expires"] >= first + 1


@pytest.mark.parametrize("moment", ["_move", "manifest_text"])
def test_a_writer_that_lost_its_lease_publishes_nothing(
    s3: ObjectStore, address: str, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    publish(address)
    module: Any = snapshot_files if moment == "_move" else snapshot
    original = getattr(module, moment)

    def overtaken(*args: Any) -> Any:
        done = original(*args)
        taken = {"token": "y", "pid": 1, "host": "elsewhere", "since": "today", "expires": time.time() + 50}
        s3.objects["bucket/my ads/writer.json"] = json.dumps(taken).encode()
        return done

    monkeypatch.setattr(module, moment, overtaken)
    with pytest.raises(WriterConflict, match=r"lost its lease.*elsewhere.*nothing was published"):
        publish(address)
    assert lease_of(s3)["token"] == "y"
    monkeypatch.undo()
    assert snapshot_files._current_if_any(address) == 1
    assert opened(address).match({"a": 1}) == [1]


class Rival:
    """A writer that publishes a version although another one holds the lease, as after a long suspension."""

    def __init__(self, s3: ObjectStore, address: str):
        self.s3, self.address, self.done = s3, address, 0

    def __call__(self) -> None:
        if not self.done:
            self.done = -1
            self.s3.objects.pop("bucket/my ads/writer.json")
            thread = threading.Thread(target=self._publish)
            thread.start()
            thread.join(30)

    def _publish(self) -> None:
        self.done = publish(self.address, 7)


def test_a_writer_that_is_suspended_before_it_replaces_current_undoes_nothing(
    s3: ObjectStore, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not s3.conditional:
        pytest.skip("it does on a store without conditional puts")
    publish(address)
    rival = Rival(s3, address)
    original, checks = writer_lease.Lease.check, []

    def suspended(lease: writer_lease.Lease) -> None:
        original(lease)
        checks.append(lease)
        if len(checks) == 2:  # the last thing before CURRENT is replaced
            rival()

    monkeypatch.setattr(writer_lease.Lease, "check", suspended)
    with pytest.raises(WriterConflict, match=r"made to version 1, and version 3 is now current; nothing was published"):
        publish(address)
    assert rival.done == 3
    assert snapshot_files.current(address) == 3
    assert opened(address).match({"s": "x7"})
    assert [one.version for one in hs.versions(address)] == [1, 3]


def test_two_writers_never_fill_one_folder(s3: ObjectStore, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that was suspended before it copied its files would have overwritten those of the other version."""
    if not s3.conditional:
        pytest.skip("they may on a store without conditional puts")
    publish(address)
    rival = Rival(s3, address)
    original = snapshot_files._move

    def suspended(*args: Any) -> None:
        rival()
        original(*args)

    monkeypatch.setattr(snapshot_files, "_move", suspended)
    with pytest.raises(WriterConflict, match="lost its lease"):
        publish(address)
    assert rival.done == 3
    assert opened(address).match({"s": "x7"})


def test_how_small_objects_are_written(s3: ObjectStore, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = small_objects.of(address)
    assert objects.conditional == s3.conditional
    assert s3.names() == [], "finding that out leaves nothing behind"
    file = join(address, "x.json")
    assert objects.read(file) == (None, small_objects.ABSENT)
    tag = objects.write(file, "1", small_objects.ABSENT)
    assert objects.read(file) == ("1", tag)
    assert objects.write(file, "2", tag) != tag or not s3.conditional
    for old in (tag, small_objects.ABSENT) if s3.conditional else ():
        with pytest.raises(
            small_objects.Overtaken, match=r"another writer wrote s3://key:\.\.\.@bucket/my%20ads/x\.json"
        ):
            objects.write(file, "3", old)
    assert objects.read(file)[0] == "2"
    monkeypatch.setitem(sys.modules, "boto3", None)
    monkeypatch.setattr(small_objects, "_known", {})
    assert not small_objects.of(address).conditional, "without boto3"
    assert not small_objects.of("hdfs://host/x").conditional


def test_writers_at_once(s3: ObjectStore, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_lease, "SETTLE_SECONDS", 0.05)
    seen: list[int] = []
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            seen.append(snapshot_files._current_if_any(address) or 0)
            if seen[-1]:
                snapshot_files.facts(address)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with ThreadPoolExecutor(3) as pool:
            numbers = list(pool.map(lambda mark: publish(address, mark), range(6)))
    finally:
        done.set()
        watcher.join(20)
    assert sorted(numbers) == list(range(1, 7))
    assert seen == sorted(seen)
    assert snapshot_files.current(address) == 6
    assert opened(address).match({"s": f"x{numbers.index(6)}"})


def test_a_change_to_a_version_that_is_not_current_any_more(address: str) -> None:
    publish(address)
    publish(address, base=1)
    with pytest.raises(WriterConflict, match="made to version 1, and version 2 is now current"):
        publish(address, base=1)
    assert snapshot_files.current(address) == 2


def test_drafts_of_the_dead(s3: ObjectStore, address: str) -> None:
    dead = writer_lock.owner("write") | {"started": "0", "expires": time.time() + 50}
    s3.objects["bucket/my ads/.draft-1.owner"] = json.dumps(dead).encode()
    s3.objects["bucket/my ads/.draft-1/dictionary.npy"] = b"?"
    s3.objects["bucket/my ads/.draft-2/dictionary.npy"] = b"of an executor whose driver is gone"
    with snapshot_files.draft(address) as alive:
        fill(alive)
        publish(address)
        left = {name.split("/")[2].removesuffix(".owner") for name in s3.names() if ".draft" in name}
        assert left == {alive.partition("?")[0].rpartition("/")[2]}
    assert not [name for name in s3.names() if ".draft" in name]


def test_pinned_versions_stay(s3: ObjectStore, address: str) -> None:
    publish(address)
    snapshot_files.pin(address, "stream", 1, batch=7)
    assert snapshot_files.pinned(address, "stream") == {"version": 1, "batch": 7}
    assert snapshot_files.pinned(address, "other") is None
    for _ in range(3):
        publish(address)
    assert snapshot_files._numbers(address) == [1, 3, 4]
    with pytest.raises(SnapshotError, match="versions there: 1, 3, 4"):
        snapshot_files.pin(address, "stream", 2, batch=8)
    s3.objects["bucket/my ads/pins/stream.json"] = b"{"
    publish(address)
    assert snapshot_files._numbers(address) == [1, 3, 4, 5], "nobody knows which version a damaged pin keeps"


def test_versions_stay_as_long_as_asked(s3: ObjectStore, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hours = 0.0
    monkeypatch.setattr(retention, "now", lambda: NOON + timedelta(hours=hours))
    for hours in (0, 1, 2, 10):
        publish(address, keep="5 hours" if not hours else None)
    found = hs.versions(address)
    assert [(one.version, one.time, one.rows, one.operation, one.current) for one in found] == [
        (3, NOON + timedelta(hours=2), 5, "build", False),
        (4, NOON + timedelta(hours=10), 5, "build", True),
    ]
    assert chosen(address, None, "2026-01-31 21:00") == 3
    with pytest.raises(SnapshotError, match=r"snapshot at s3://key:\.\.\.@bucket.* was current at 2026-01-31 13:00"):
        chosen(address, None, "2026-01-31 13:00")
    assert hs.vacuum(address) == ([], 0, 0)
    hours = 16.0
    assert hs.vacuum(address).versions == [3]
    publish(address, keep=1)
    assert snapshot_files._numbers(address) == [5]


def test_vacuum(s3: ObjectStore, address: str) -> None:
    with pytest.raises(SnapshotError, match="there is no CURRENT"):
        hs.vacuum(address)
    for _ in range(4):
        publish(address, keep=9)
    snapshot_files.pin(address, "stream/00000007", 2, batch=7)
    s3.objects["bucket/my ads/.draft-2/x.npy"] = bytes(1000)
    s3.objects["bucket/my ads/versions/00000005/rows.npy"] = b"of a writer that was killed"
    before = len(s3.names())
    done = hs.vacuum(address, keep=1)
    assert done.versions == [1, 3, 5]
    assert done.files == before - len(s3.names())
    assert done.bytes > 1000
    assert snapshot_files._folders(address) == [2, 4]
    assert opened(address, 2).match({"a": 1}) == [1]


def test_a_version_without_a_manifest_is_none(s3: ObjectStore, address: str) -> None:
    publish(address)
    s3.objects["bucket/my ads/versions/00000002/rows.npy"] = b"of a writer that was killed"
    assert snapshot_files._numbers(address) == [1]
    assert publish(address) == 3
    assert snapshot_files._folders(address) == [1, 3]


def test_a_store_that_does_not_answer_is_an_error() -> None:
    with pytest.raises(SnapshotError, match=r"cannot (open|read) s3://key:\.\.\.@bucket"):
        snapshot_files.current("s3://key:secret@bucket/x?endpoint_override=127.0.0.1:1&scheme=http&region=us-east-1")
