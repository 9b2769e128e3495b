"""Several writers and readers of one snapshot: no version lost, none half seen, no reader turned away."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hitbox import Index
from hitbox.errors import SnapshotError, WriterConflict
from hitbox.storage import snapshot, writer_lock
from support.saved_index import index, leftovers

SPAWN = multiprocessing.get_context("spawn")


# ---- processes


def save_often(path: str, times: int, out: Any) -> None:
    made = index(os.getpid())
    out.put(("saved", [made.save(path) for _ in range(times)]))


def open_often(path: str, stop: Any, out: Any) -> None:
    versions, failures, opened = [], [], 0
    while not stop.is_set() or opened < 150:
        try:
            found = Index.open(path)
            assert len(found) == 20
            versions.append(snapshot.facts_of(path)["version"])
        except Exception as problem:
            failures.append(repr(problem))
        opened += 1
    out.put(("opened", (opened, failures, versions == sorted(versions))))


def test_writers_and_readers_at_once(tmp_path: Path) -> None:
    index().save(tmp_path)
    out, stop = SPAWN.Queue(), SPAWN.Event()
    savers = [SPAWN.Process(target=save_often, args=(str(tmp_path), 30, out)) for _ in range(3)]
    readers = [SPAWN.Process(target=open_often, args=(str(tmp_path), stop, out)) for _ in range(2)]
    for process in [*savers, *readers]:
        process.start()
    for process in savers:
        process.join(120)
    stop.set()
    heard = [out.get(timeout=120) for _ in range(5)]
    for process in [*savers, *readers]:
        process.join(60)
        assert process.exitcode == 0
    saved = [number for kind, numbers in heard if kind == "saved" for number in numbers]
    assert sorted(saved) == list(range(2, 92)), "each save got a number of its own"
    for opened, failures, upwards in [facts for kind, facts in heard if kind == "opened"]:
        assert opened >= 150
        assert failures == []
        assert upwards, "CURRENT went backwards"
    assert snapshot.current(tmp_path) == 91
    assert snapshot.versions(tmp_path) == [90, 91]
    assert leftovers(tmp_path) == []


KILLED = """
import os, random, signal, sys, time
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from support.saved_index import index, leftovers
from hitbox import Index
from hitbox.storage import snapshot
root, rng, last = Path(sys.argv[1]), random.Random(5), 1
made = index()
made.save(root)
for cycle in range(25):
    children = []
    for _ in range(2):
        pid = os.fork()
        if not pid:
            while True:
                made.save(root)
        children.append(pid)
    while cycle % 5 == 0 and snapshot.current(root) == last:  # however busy the machine is, some children save
        time.sleep(0.001)
    time.sleep(rng.uniform(0.0, 0.06))
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    now = snapshot.current(root)
    assert now >= last, (now, last)
    assert len(Index.open(root, verify=True)) == 20
    for version in snapshot.versions(root):
        if version <= now:
            assert len(Index.open(root, version, verify=True)) == 20
    last = made.save(root)
    assert last > now
    assert snapshot.versions(root)[-1] == last and len(snapshot.versions(root)) == 2, snapshot.versions(root)
    assert leftovers(root) == [], leftovers(root)
print("right", last)
"""


@pytest.mark.exhaustive  # `make test` has writers and readers at once, without kills
def test_writers_that_are_killed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "s"), str(Path(__file__).parents[1])],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "right" in done.stdout, done.stdout + done.stderr
    assert int(done.stdout.split()[1]) > 26, "no child ever saved"


# ---- one step at a time


class Pause:
    """Stops one thread where it calls a function, until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, when: Callable[..., bool] = lambda *_: True):
        self.reached, self.go = threading.Event(), threading.Event()
        self.thread: int | None = None
        original = getattr(snapshot, name)

        def paused(*args: Any, **more: Any) -> Any:
            if threading.get_ident() == self.thread and when(*args):
                self.reached.set()
                assert self.go.wait(20)
            return original(*args, **more)

        monkeypatch.setattr(snapshot, name, paused)

    def run(self, work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
        heard: list[Any] = []

        def body() -> None:
            self.thread = threading.get_ident()
            try:
                heard.append(work())
            except Exception as problem:
                heard.append(problem)

        thread = threading.Thread(target=body)
        thread.start()
        return thread, heard


def is_current(file: Path, *_: object) -> bool:
    return file.name == "CURRENT"


def test_a_second_writer_waits_for_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index().save(tmp_path)
    pause = Pause(monkeypatch, "replace", is_current)
    first, heard = pause.run(lambda: index().save(tmp_path))
    assert pause.reached.wait(20)
    numbers: list[int] = []
    second = threading.Thread(target=lambda: numbers.append(index().save(tmp_path)))
    second.start()
    assert snapshot.versions(tmp_path) == [1, 2]
    assert snapshot.current(tmp_path) == 1
    assert len(Index.open(tmp_path)) == 20
    says = rf"process {os.getpid()} on .*, since \d{{4}}-.*is writing there.*0\.05 seconds"
    with pytest.raises(WriterConflict, match=says), snapshot.writing(tmp_path, wait=0.05):
        pass
    pause.go.set()
    first.join(20)
    second.join(20)
    assert (heard, numbers) == ([2], [3])
    assert snapshot.current(tmp_path) == 3
    assert snapshot.versions(tmp_path) == [2, 3]


def test_a_reader_that_is_overtaken_opens_the_next_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index(1).save(tmp_path)
    pause = Pause(monkeypatch, "facts_of", lambda _, version=None: version == 1)
    reader, heard = pause.run(lambda: Index.open(tmp_path))
    assert pause.reached.wait(20)
    for mark in (2, 3, 4):
        index(mark).save(tmp_path)
    assert snapshot.versions(tmp_path) == [3, 4]
    pause.go.set()
    reader.join(20)
    assert heard[0].match({"s": "x4"}) == list(range(20))
    with pytest.raises(SnapshotError, match=r"version 1 .*it is gone; versions there: 3, 4 \(current\)"):
        Index.open(tmp_path, 1)


def test_files_that_vanish_while_a_version_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index(1).save(tmp_path)
    original, seen = snapshot.facts_of, []

    def overtaken(path: Any, version: int | None = None) -> dict[str, Any]:
        facts = original(path, version)
        if version is not None and len(seen) < 3:  # three times in a row, after the manifest was read
            seen.append(version)
            for _ in range(2):
                index(9).save(tmp_path)
        return facts

    monkeypatch.setattr(snapshot, "facts_of", overtaken)
    assert Index.open(tmp_path).match({"s": "x9"}) == list(range(20))
    assert seen == [1, 3, 5]


def test_damage_is_not_tried_again(tmp_path: Path) -> None:
    index().save(tmp_path)
    (tmp_path / "versions" / "00000001" / "manifest.json").write_text("?")
    with pytest.raises(SnapshotError, match="damaged"):
        Index.open(tmp_path)


def test_a_change_to_a_version_that_is_not_current_any_more(tmp_path: Path) -> None:
    made = index()
    made.save(tmp_path)
    stock = made.compacted()
    with snapshot.draft(tmp_path) as folder:
        files = snapshot.add(folder, stock.arrays() | made._state.keys.arrays())
        index(2).save(tmp_path)
        with pytest.raises(WriterConflict, match=r"made to version 1, and version 2 is now current"):
            snapshot.publish(tmp_path, folder, stock.facts(), files, base=1)
    assert snapshot.current(tmp_path) == 2
    assert snapshot.versions(tmp_path) == [1, 2]
    assert leftovers(tmp_path) == []


def test_a_pin_and_the_removal_of_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        index().save(tmp_path)
    pause = Pause(monkeypatch, "replace", lambda file, _: file.name == "stream.json")
    pinner, heard = pause.run(lambda: snapshot.pin(tmp_path, "stream", 1))
    assert pause.reached.wait(20)  # it has seen that version 1 is there, and has not written the pin
    saver = threading.Thread(target=lambda: index().save(tmp_path))
    saver.start()
    deadline = time.monotonic() + 20
    while snapshot.current(tmp_path) != 3 and time.monotonic() < deadline:
        time.sleep(0.005)
    assert 1 in snapshot.versions(tmp_path)
    pause.go.set()
    pinner.join(20)
    saver.join(20)
    assert heard == [None]
    assert snapshot.versions(tmp_path) == [1, 2, 3]
    with pytest.raises(SnapshotError, match=r"version 9.*versions there: 1, 2, 3"):
        snapshot.pin(tmp_path, "stream", 9)
    (tmp_path / "pins" / "stream.json").write_text("{")
    index().save(tmp_path)
    assert snapshot.versions(tmp_path) == [1, 2, 3, 4], "nobody knows which version a damaged pin keeps"
    with pytest.raises(SnapshotError, match=r"stream\.json is damaged"):
        snapshot.pinned(tmp_path, "stream")


def test_a_version_that_never_became_current(tmp_path: Path) -> None:
    for _ in range(2):
        index().save(tmp_path)
    shutil.copytree(tmp_path / "versions" / "00000002", tmp_path / "versions" / "00000003")  # killed before CURRENT
    assert index().save(tmp_path) == 4
    assert snapshot.versions(tmp_path) == [2, 4], "the last two that were current stay"


def test_a_full_disk_when_current_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index().save(tmp_path)
    original = snapshot._write_text

    def full(file: Path, text: str) -> None:
        if file.name.startswith(".CURRENT"):
            raise OSError(28, "No space left on device")
        original(file, text)

    monkeypatch.setattr(snapshot, "_write_text", full)
    with pytest.raises(SnapshotError, match="No space"):
        index().save(tmp_path)
    assert snapshot.versions(tmp_path) == [1]
    assert leftovers(tmp_path) == [], "the disk is full: what failed must not take up space"
    assert len(Index.open(tmp_path)) == 20
    monkeypatch.undo()
    assert index().save(tmp_path) == 2
    assert leftovers(tmp_path) == []


def test_what_fails_behind_current_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version is current: whoever heard of an error would save it again."""
    for _ in range(2):
        index().save(tmp_path)

    def full(file: Path, what: str, wait: float) -> Any:
        if file.parent.name == "pins":
            raise OSError(28, "No space left on device")
        return original(file, what, wait)

    original = writer_lock.exclusive
    monkeypatch.setattr(writer_lock, "exclusive", full)
    assert index().save(tmp_path) == 3
    assert snapshot.versions(tmp_path) == [1, 2, 3]
    monkeypatch.undo()
    assert index().save(tmp_path) == 4
    assert snapshot.versions(tmp_path) == [3, 4]


def test_a_draft_that_is_swept_before_it_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another writer may find the file of an owner between its creation and its lock."""
    index().save(tmp_path)
    original, swept = fcntl.flock, []

    def flock(file: Any, how: int) -> None:
        if not swept and str(file.name).isdigit() and list(tmp_path.glob("*.owner")):
            swept.append(file)
            snapshot._sweep(tmp_path)
        original(file, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    assert index().save(tmp_path) == 2
    assert swept
    assert leftovers(tmp_path) == []


def test_folders_that_are_no_versions(tmp_path: Path) -> None:
    index().save(tmp_path)
    for name in ("\N{SUPERSCRIPT TWO}", "\N{ARABIC-INDIC DIGIT THREE}", "7", "9" * 30):
        (tmp_path / "versions" / name).mkdir()
    assert snapshot.versions(tmp_path) == [1]
    assert index().save(tmp_path) == 2
    assert len(Index.open(tmp_path)) == 20


DRAFT = """
import sys, time
from hitbox.storage import snapshot
with snapshot.draft(sys.argv[1]) as folder:
    (folder / "part").mkdir()
    print(folder.name, flush=True)
    time.sleep(600)
"""


def test_drafts_of_the_dead_go_and_those_of_the_living_stay(tmp_path: Path) -> None:
    index().save(tmp_path)
    command = [sys.executable, "-c", DRAFT, str(tmp_path)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        name = child.stdout.readline().strip()
        with snapshot.draft(tmp_path) as mine:
            index().save(tmp_path)
            assert leftovers(tmp_path) == sorted([name, f"{name}.owner", mine.name, f"{mine.name}.owner"])
        assert json.loads((tmp_path / f"{name}.owner").read_text())["pid"] == child.pid
    finally:
        child.kill()
        child.wait()
    (tmp_path / ".draft-of-an-older-hitbox").mkdir()
    index().save(tmp_path)
    assert leftovers(tmp_path) == []


def test_a_lost_current_says_how_to_repair_it(tmp_path: Path) -> None:
    for _ in range(2):
        index().save(tmp_path)
    (tmp_path / "CURRENT").unlink()
    with pytest.raises(SnapshotError, match=r"CURRENT is missing.*versions 1, 2; .*make_current"):
        Index.open(tmp_path)
    assert len(Index.open(tmp_path, 2)) == 20
    victim = next((tmp_path / "versions" / "00000002").glob("catalog.*.npy"))
    victim.write_bytes(b"?")
    assert snapshot.make_current(tmp_path) == 1
    assert len(Index.open(tmp_path)) == 20
    with pytest.raises(SnapshotError):
        snapshot.make_current(tmp_path, 2)
    shutil.rmtree(tmp_path / "versions" / "00000001")
    with pytest.raises(SnapshotError, match=r"version 1 .*gone; versions there: 2; repair it with.*make_current"):
        Index.open(tmp_path)
    assert index().save(tmp_path) == 3
    assert len(Index.open(tmp_path)) == 20


def test_locks_end_with_their_holder(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    heard, says = os.pipe()
    with writer_lock.alone(file, "test"), writer_lock.alone(file, "test"):  # the holder may come again
        child = os.fork()
        if not child:  # a forked child neither has the lock nor keeps it
            try:
                with writer_lock.alone(file, "test", wait=0):
                    os.write(says, b"has it")
            except WriterConflict:
                os.write(says, b"refused")
            time.sleep(60)
            os._exit(0)
        assert os.read(heard, 10) == b"refused"
    try:
        with writer_lock.alone(file, "test", wait=0):
            file.unlink()  # whoever removes the folder takes the lock with it
            with writer_lock.exclusive(file, "test", wait=0):
                pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_process_that_ended_is_known() -> None:
    me = writer_lock.owner("test")
    assert not writer_lock.ended(me)
    assert writer_lock.ended(me | {"started": "0"}) == (sys.platform == "linux")
    assert not writer_lock.ended(me | {"host": "elsewhere", "pid": 2**22 + random.randrange(9)})
    assert "process" in writer_lock.describe_writer(me)


def test_a_full_disk_can_be_vacuumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even the name of the holder of a lock can be written, and what dead writers left has to go all the same."""
    for _ in range(3):
        index().save(tmp_path, keep=3)
    dead = tmp_path / ".draft-dead"
    dead.mkdir()
    (dead / "large.npy").write_bytes(b"x" * 10_000)
    dead.with_suffix(".owner").touch()

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    found = snapshot.vacuum(tmp_path, keep=1)
    assert found.versions == [1, 2]
    assert found.bytes > 10_000
    assert leftovers(tmp_path) == []
    assert snapshot.vacuum(tmp_path, keep=1) == ([], 0, 0)
