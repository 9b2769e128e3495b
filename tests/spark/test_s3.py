"""S3, as moto imitates it: writers that exclude each other by conditional puts, and Spark on the same address."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hitbox import Index
from hitbox import spark as hs
from hitbox.errors import SnapshotError
from hitbox.spark import small_objects, snapshot_files, writer_lease
from hitbox.spark.store_settings import s3a_settings
from hitbox.storage import snapshot
from hitbox.storage.addresses import join, resolve
from support.object_store import ObjectStore
from support.s3_server import S3Server

SUPPORT = Path(__file__).parents[1] / "support"


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    pytest.importorskip("moto.server")
    with S3Server("ads") as found:
        yield found


def publish(address: str, mark: int) -> int:
    index = Index({"a": "int"})
    index.subscribe(mark, "a > 0")
    stock = index.compacted()
    with snapshot_files.draft(address) as place:
        with snapshot_files.filling(place) as folder:
            files = snapshot.add(folder, stock.arrays())
        return snapshot_files.publish(address, place, stock.facts(), files, operation="build", keep=20)


def test_writers_at_once(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any time to settle: the store itself decides who has the lease, and who replaces CURRENT."""
    monkeypatch.setenv("HITBOX_CACHE", str(tmp_path))
    monkeypatch.setattr(writer_lease, "SETTLE_SECONDS", 0.0)
    address = resolve(server.address("ads/my place", "s3a"))
    assert small_objects.of(address).conditional
    inside = threading.Lock()
    original = snapshot_files._move

    def alone(*args: object) -> None:
        assert inside.acquire(blocking=False), "two writers at once"
        original(*args)  # type: ignore[arg-type]
        inside.release()

    monkeypatch.setattr(snapshot_files, "_move", alone)
    with ThreadPoolExecutor(3) as pool:
        numbers = list(pool.map(lambda mark: publish(address, mark), range(5)))
    assert sorted(numbers) == list(range(1, 6))
    assert [one.version for one in hs.versions(address)] == list(range(1, 6))
    for mark, number in enumerate(numbers):
        facts = snapshot_files.facts(address, number)
        home = snapshot_files.local(address, number, snapshot_files.identity(facts))
        assert Index.open(home, number).match({"a": 1}) == [mark]
    assert hs.vacuum(address, keep=1).versions == list(range(1, 5))
    left = {name.split("/")[1] for name in server.names("ads") if name.startswith("my place/")}
    assert left - {""} == {"CURRENT", "versions"}, (
        "neither drafts nor leases, and no trace of the first look at the store"
    )


def test_the_first_pin_of_a_batch_wins(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store decides, so nobody waits."""
    monkeypatch.setenv("HITBOX_CACHE", str(tmp_path))
    address = resolve(server.address("ads/pinned"))
    publish(address, 1)
    meanwhile: list[int] = []
    original = snapshot_files.current

    def late(path: str) -> int:
        """Another task pins version 1 while this one still looks; then version 2 is published."""
        number = original(path)
        if not meanwhile:
            meanwhile.append(number)
            assert snapshot_files.pin_once(path, "query-q-0", batch=0)["version"] == 1
            publish(path, 2)
            return original(path)
        return number

    monkeypatch.setattr(snapshot_files, "current", late)
    monkeypatch.setattr(snapshot_files, "SETTLE_SECONDS", 1e9)
    assert snapshot_files.pin_once(address, "query-q-0", batch=0)["version"] == 1
    assert snapshot_files.pin_once(address, "query-q-1", batch=1)["version"] == 2
    assert snapshot_files.pinned_versions(address) == {1, 2}
    snapshot_files.pin_once(address, "query-gone-0", batch=0, expires=1)
    for batch in (0, 1):
        snapshot_files.remove(join(address, "pins", f"query-q-{batch}.json"))
    assert snapshot_files.pinned_versions(address) == set(), "the last one has expired"


@pytest.mark.parametrize("lost", ["CURRENT", "writer.json", "claim.json"])
def test_an_answer_that_is_lost(s3: ObjectStore, lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store has written the object, and the client repeats the put: then the object is not the one that it was to
    replace, but what the client wrote itself."""
    pytest.importorskip("boto3")
    monkeypatch.setenv("HITBOX_CACHE", str(tmp_path))
    address = resolve(s3.address("ads/x"))
    assert publish(address, 1) == 1
    assert small_objects.of(address).conditional
    s3.unanswered.append(lost)
    assert publish(address, 2) == 2
    assert s3.unanswered == []
    assert matched(address) == {1: [1], 2: [2]}
    assert snapshot_files.current(address) == 2
    assert {name.split("/")[2] for name in s3.names("ads/x/")} == {"CURRENT", "versions"}


def test_current_that_cannot_be_written(s3: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not published is no version, not even by its number."""
    monkeypatch.setenv("HITBOX_CACHE", str(tmp_path))
    address = resolve(s3.address("ads/x"))
    publish(address, 1)
    s3.refused.append("CURRENT")
    with pytest.raises(SnapshotError, match=r"cannot write .*CURRENT"):
        publish(address, 2)
    with pytest.raises(SnapshotError, match="it is gone"):
        snapshot_files.facts(address, 2)
    s3.refused.clear()
    number = publish(address, 3)
    assert matched(address) == {1: [1], number: [3]}


def matched(address: str) -> dict[int, list[object]]:
    """What each version matches."""
    found = {}
    for one in hs.versions(address):
        identity = snapshot_files.identity(snapshot_files.facts(address, one.version))
        index = Index.open(snapshot_files.local(address, one.version, identity), one.version)
        found[one.version] = list(index.match({"a": 1}))
    return found


def test_settings_of_spark() -> None:
    assert s3a_settings("/data/x") == {}
    assert s3a_settings("s3://bucket/x") == {}
    assert s3a_settings("s3://k%2F:s%2B@my.bucket/x?endpoint_override=host:9000&scheme=http&region=eu") == {
        "fs.s3a.bucket.my.bucket.endpoint.region": "eu",
        "fs.s3a.bucket.my.bucket.endpoint": "http://host:9000",
        "fs.s3a.bucket.my.bucket.path.style.access": "true",
        "fs.s3a.bucket.my.bucket.connection.ssl.enabled": "false",
        "fs.s3a.bucket.my.bucket.access.key": "k/",
        "fs.s3a.bucket.my.bucket.secret.key": "s+",
        "fs.s3a.bucket.my.bucket.aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    }


@pytest.mark.exhaustive  # `make test` writes to S3 from this process
def test_one_address_for_snapshot_and_checkpoint() -> None:
    pytest.importorskip("moto.server")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    command = [sys.executable, str(SUPPORT / "spark_s3.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=570, env=clean)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    if "skipped" in done.stdout:
        pytest.skip(done.stdout.strip())
    assert "right" in done.stdout
