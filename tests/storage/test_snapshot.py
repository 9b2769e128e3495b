"""Snapshots: the same answers after opening; damage, truncation and newer formats are errors, never wrong answers."""

from __future__ import annotations

import errno
import json
import mmap
import multiprocessing
import os
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from hitbox import Attribute, Index, Schema, matchers
from hitbox.errors import SnapshotError
from hitbox.index.sharded import Shards
from hitbox.storage import array_files, snapshot
from support.tiers import only

SCHEMA = Schema({"price": "float", "city": "string", "age": Attribute("int", role="information")})
EVENT = {"price": 12.5, "city": "Paris"}


def make(matcher: str = "auto", ids: type = str) -> Index:
    index = Index(SCHEMA, matcher)
    for i in range(60):
        where = f"price > {i} AND city = 'Paris'" if i % 3 else f"city LIKE '%{i % 7}%' OR price IN ({i}, 12.5)"
        index.subscribe(ids(i), where, priority=i % 10, about={"age": i})
    for i in range(0, 60, 7):
        index.unsubscribe(ids(i))
    return index


@pytest.mark.parametrize("matcher", matchers())
@pytest.mark.parametrize("ids", only([str], [str, int]))  # the engine opens indexes with both in many tests
def test_the_same_answers(tmp_path: Path, matcher: str, ids: type) -> None:
    try:
        index = make(matcher, ids)
        want = index.match(EVENT)
    except Exception as problem:
        if "interval" in str(problem):  # a schema with roles asks for interval points
            pytest.skip("points only")
        raise
    assert index.save(tmp_path / "s") == 1
    for again in (Index.open(tmp_path / "s"), Index.open(tmp_path / "s", matcher="brute", verify=True)):
        assert again.schema == SCHEMA
        assert sorted(again.match(EVENT), key=str) == sorted(want, key=str)
        assert list(again) == list(index)
        assert [again.where(i) for i in again] == [index.where(i) for i in index]
        assert [again.about(i) for i in again] == [index.about(i) for i in index]
        again.subscribe(ids(99), "price > 1", priority=9)
        again.unsubscribe(want[0])
        expected = {ids(99), *want[1:]}
        assert set(again.match(EVENT)) == expected
        again.save(tmp_path / "t")
        assert set(Index.open(tmp_path / "t").match(EVENT)) == expected
    assert set(index.match(EVENT)) == set(want)


def test_versions_are_kept_side_by_side(tmp_path: Path) -> None:
    index = make()
    assert [index.save(tmp_path) for _ in range(3)] == [1, 2, 3]
    assert snapshot.versions(tmp_path) == [2, 3]
    assert snapshot.current(tmp_path) == 3
    index.subscribe("late", "TRUE", priority=9)
    index.save(tmp_path)
    assert "late" in Index.open(tmp_path).match(EVENT)
    assert "late" not in Index.open(tmp_path, version=3)
    with pytest.raises(SnapshotError, match="cannot open"):
        Index.open(tmp_path, version=1)


def test_empty_and_large_snapshots(tmp_path: Path) -> None:
    Index(SCHEMA).save(tmp_path / "empty")
    empty = Index.open(tmp_path / "empty")
    assert (len(empty), empty.match(EVENT)) == (0, [])
    empty.subscribe(7, "TRUE")
    assert empty.match(EVENT) == [7]
    n = 30_000
    wide = Index(Schema({"a": "int", "s": "string"}))
    low = np.arange(n)
    names = [f"x{i % 500:03d}" for i in range(n)]
    wide.load(pa.table({"id": low, "a_low": low, "a_high": low + 5, "s_low": names, "s_high": names}))
    wide.save(tmp_path / "wide")
    again = Index.open(tmp_path / "wide")
    assert sorted(again.match({"a": 100, "s": "x098"})) == [98]
    assert again.where(98) == "a BETWEEN 98 AND 103 AND s = 'x098'"


def test_every_damaged_byte_is_noticed(tmp_path: Path) -> None:
    make().save(tmp_path)
    folder = tmp_path / "versions" / "00000001"
    files = sorted(folder.iterdir())
    assert len(files) > 5
    rng = np.random.default_rng(1)
    for file in files:
        whole = file.read_bytes()
        for at in {0, len(whole) // 2, len(whole) - 1, *rng.integers(0, len(whole), 5).tolist()}:
            broken = bytearray(whole)
            broken[at] ^= 1 << int(rng.integers(0, 8))
            file.write_bytes(bytes(broken))
            with pytest.raises(SnapshotError):
                Index.open(tmp_path)
        for size in (0, 1, len(whole) // 2, len(whole) - 1):
            file.write_bytes(whole[:size])
            with pytest.raises(SnapshotError):
                Index.open(tmp_path)
        file.unlink()
        with pytest.raises(SnapshotError):
            Index.open(tmp_path)
        file.write_bytes(whole)
    Index.open(tmp_path)


def test_every_flipped_bit_of_current_is_noticed(tmp_path: Path) -> None:
    make().save(tmp_path)
    make().save(tmp_path)
    file = tmp_path / "CURRENT"
    whole = file.read_bytes()
    for bit in range(8 * len(whole)):
        broken = bytearray(whole)
        broken[bit // 8] ^= 1 << bit % 8
        file.write_bytes(bytes(broken))
        with pytest.raises(SnapshotError, match="CURRENT"):
            Index.open(tmp_path)
    for rubbish in (b"", b"x", b"99", b"../1", b"\xff\xfe", whole[:-1], whole * 2, b"9" * 5000):
        file.write_bytes(rubbish)
        with pytest.raises(SnapshotError, match="CURRENT"):
            Index.open(tmp_path)
    file.write_text("00000001\n")
    with pytest.raises(SnapshotError, match=r"older hitbox.*build it again"):
        Index.open(tmp_path)
    assert len(Index.open(tmp_path, version=1)) == len(make())


def test_a_newer_format_says_so(tmp_path: Path) -> None:
    make().save(tmp_path)
    file = tmp_path / "versions" / "00000001" / "manifest.json"
    facts = json.loads(file.read_text().partition("\n")[2])
    body = json.dumps(facts | {"format": 99})
    file.write_text(json.dumps({"crc32": zlib.crc32(body.encode())}) + "\n" + body + "\n")
    with pytest.raises(SnapshotError, match=r"format 99.*upgrade"):
        Index.open(tmp_path)


def test_a_failed_write_leaves_the_old_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = make()
    index.save(tmp_path)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SnapshotError, match="No space"):
        index.save(tmp_path)
    monkeypatch.undo()
    assert snapshot.current(tmp_path) == 1
    assert not list(tmp_path.glob(".draft*"))
    assert len(Index.open(tmp_path, verify=True)) == len(index)


def _ask(path: str) -> list[object]:
    return list(Index.open(path).match(EVENT))


def test_many_processes_open_one_snapshot(tmp_path: Path) -> None:
    index = make()
    index.save(tmp_path)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        answers = pool.map(_ask, [str(tmp_path)] * 4)
    assert all(set(answer) == set(index.match(EVENT)) for answer in answers)


def test_a_lack_of_memory_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make().save(tmp_path)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr("hitbox.storage.array_files.mmap.mmap", full)
    with pytest.raises(SnapshotError, match="cannot read the snapshot file") as caught:
        Index.open(tmp_path)
    assert "damaged" not in str(caught.value)


def files_of(folder: Path) -> list[Path]:
    return sorted((folder / "versions").rglob("*.npy"))


@pytest.mark.parametrize("matcher", ["hitbox", "brute", "rein"])
def test_a_copy_in_memory_does_not_need_its_files(tmp_path: Path, matcher: str) -> None:
    made = make(matcher)
    made.save(tmp_path)
    found = Index.open(tmp_path, mapped=False)
    for file in files_of(tmp_path):
        os.truncate(file, 0)
    assert sorted(found.match(EVENT, "age < 40")) == sorted(made.match(EVENT, "age < 40"))
    found.subscribe("new", "price > 12")
    assert "new" in found.match(EVENT)
    found.save(tmp_path / "again")
    assert sorted(Index.open(tmp_path / "again").match(EVENT)) == sorted(found.match(EVENT))
    with pytest.raises(SnapshotError, match="0 bytes instead of"):
        Index.open(tmp_path, mapped=False)


def test_a_copy_of_parts_in_memory_does_not_need_its_files(tmp_path: Path) -> None:
    made = make()
    made.save(tmp_path)
    table = pa.table({"price": [12.5, 1.0], "city": ["Paris", None]})
    want = made.match_batch(table)
    for version, parts in ((None, None), (None, iter([0])), (1, [0])):
        found = Shards.open(tmp_path, version, parts, mapped=False)
        for file in files_of(tmp_path):
            file.rename(file.with_suffix(".whole"))
            file.touch()
        matches, _ = found.match_batch(table)
        assert [sorted(matches[event]) for event in range(2)] == [sorted(want[event]) for event in range(2)]
        with pytest.raises(SnapshotError, match="0 bytes instead of"):
            Shards.open(tmp_path, version, mapped=False)
        for file in files_of(tmp_path):
            file.with_suffix(".whole").rename(file)


@pytest.mark.parametrize("version", [None, 1])
def test_parts_are_verified_only_if_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int | None
) -> None:
    make().save(tmp_path)
    verified = []
    read = array_files.read
    monkeypatch.setattr(array_files, "read", lambda *given: verified.append(given[2]) or read(*given))
    for verify in (True, False):
        Shards.open(tmp_path, version, verify=verify)
    assert verified == [True, False]


def test_a_file_that_becomes_shorter_while_it_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make().save(tmp_path)
    allocate = mmap.mmap

    def shorten(*of: int, **options: int) -> mmap.mmap:
        for file in files_of(tmp_path):
            os.truncate(file, 10)
        return allocate(*of, **options)

    monkeypatch.setattr("hitbox.storage.array_files.mmap.mmap", shorten)
    with pytest.raises(SnapshotError, match="damaged: it became shorter while it was read"):
        Index.open(tmp_path, mapped=False)
