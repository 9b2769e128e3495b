"""Segments are merged in the background while others match and change: no answer is ever wrong, and nobody waits."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from hitbox.encoding.arrays import Boxes, Space
from hitbox.engine import Engine
from hitbox.engine import merge as merge_module
from hitbox.engine.content import Content
from hitbox.engine.merge import Merge, Merges
from hitbox.index.read_write_lock import ReadWriteLock
from hitbox.matchers import make
from support.matcher_data import assert_equal
from support.merges import held, settle
from support.random_boxes import random_boxes, random_points
from support.tiers import only

NONE = np.zeros(0, np.int64)
SMALL: dict[str, Any] = {"tail": 8, "block": 32, "lines": 4}


class Pair:
    """An engine and the oracle, which change together."""

    def __init__(self, seed: int, **options: Any):
        self.rng = np.random.default_rng(seed)
        self.engine, self.oracle = Engine(Space.of(3), **SMALL | options), make("brute", Space.of(3))
        self.alive = NONE

    def change(self, most: int = 30) -> None:
        """Boxes go, come, and come again under numbers that were in use."""
        rng = self.rng
        gone = rng.permutation(self.alive)[: rng.choice([0, 1, 1, most // 2])]
        free = np.setdiff1d(np.arange(len(self.alive) + 50), np.setdiff1d(self.alive, gone))
        new = rng.permutation(free)[: rng.choice([0, 1, 1, most])]
        boxes = random_boxes(rng, len(new), 3)
        for one in (self.engine, self.oracle):
            one.change(gone, new, boxes)()
        self.alive = np.union1d(np.setdiff1d(self.alive, gone), new)

    def change_and_merge(self, lock: ReadWriteLock) -> None:
        with lock.prepare:
            self.change()
            self.engine.merge_behind(lock.prepare)

    def check(self) -> None:
        assert len(self.engine) == len(self.alive)
        np.testing.assert_array_equal(self.engine.numbers(), self.alive)
        assert_equal(self.engine, self.oracle, random_points(self.rng, 4, 3))
        np.testing.assert_array_equal(self.engine.boxes(self.alive).low, self.oracle.boxes(self.alive).low)
        opened = Engine.from_arrays(Space.of(3), self.engine.arrays(), **SMALL)
        np.testing.assert_array_equal(opened.numbers(), self.alive)


@pytest.mark.parametrize("seed", only(range(4), range(12)))
def test_changes_between_the_steps_of_a_merge(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two merges at most are under way at once, at any steps; changes come between any two steps."""
    monkeypatch.setattr(Merge, "under_way", True)
    monkeypatch.setattr(merge_module, "SMALLER", 2)
    pair = Pair(seed)
    engine = pair.engine
    steps: list[tuple[Merge, int]] = []
    finished = 0
    for _ in range(250):
        pair.change(int(pair.rng.choice([4, 30])))
        if len(steps) < 2 and (merge := engine.merges.begin()):
            steps.append((merge, 0))
        if steps and pair.rng.random() < 0.6:
            merge, step = steps.pop(int(pair.rng.integers(len(steps))))
            if step == 0:
                merge.build(engine._builder)
            elif step == 1:
                assert engine.merges.place(merge)
            elif step == 2:
                merge.locate(engine.content.sealed.where)
            else:
                engine.merges.finish(merge)
                finished += 1
            if step < 3:
                steps.append((merge, step + 1))
        pair.check()
    assert finished > 10


def test_everything_goes_while_it_is_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Merge, "under_way", True)
    pair = Pair(1)
    for _ in range(40):
        pair.change()
    merge = pair.engine.merges.begin()
    assert merge is not None
    merge.build(pair.engine._builder)
    gone = pair.alive
    for one in (pair.engine, pair.oracle):
        one.change(gone, NONE, Boxes.of([]))()
    pair.alive = NONE
    pair.change(60)
    assert pair.engine.merges.place(merge)
    merge.locate(pair.engine.content.sealed.where)
    pair.engine.merges.finish(merge)
    pair.check()
    assert not any(segment in pair.engine.content.sealed.segments for segment, _, _ in merge.added)


@pytest.mark.parametrize("step", ["build", "locate"])
def test_a_writer_goes_on_while_a_merge_is_stuck(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It merges by itself where too many segments pile up."""
    monkeypatch.setattr(merge_module, "MOST_IDLE", 10)
    pair, lock = Pair(3), ReadWriteLock()
    most = 0
    with held(monkeypatch, step) as inside:
        for _ in range(300):
            pair.change_and_merge(lock)
            most = max(most, len(pair.engine.merges.idle()))
        assert inside.wait(20)
        pair.check()
    settle(pair.engine)
    with lock.prepare:
        pair.check()
    assert most <= 11
    assert len(pair.engine.content.sealed.segments) < 20


def test_a_merge_behind_leaves_what_prepare_leaves() -> None:
    """As few segments, and nothing more to do."""
    pair, lock = Pair(5), ReadWriteLock()
    for _ in range(150):
        pair.change_and_merge(lock)
    settle(pair.engine)
    pair.check()
    assert pair.engine.prepare() is None


@pytest.mark.parametrize("error", [MemoryError, RuntimeError])
def test_a_merge_that_fails_changes_nothing_and_is_tried_again(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, lock = Pair(4), ReadWriteLock()
    failed: list[int] = []

    def fail(merge: Merge, *_: Any) -> None:
        failed.append(merge.size)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Merge, "locate", fail)
        patch.setattr(sys, "unraisablehook", lambda _: None)  # an error that nobody expects is reported there
        for _ in range(30):
            pair.change_and_merge(lock)
            settle(pair.engine)
            pair.check()
    assert failed
    assert len(failed) < 15  # not at every change
    for _ in range(60):
        pair.change_and_merge(lock)
        settle(pair.engine)
    pair.check()
    assert len(pair.engine.content.sealed.segments) < 12


class Switching(Content):
    """A merge switches over as soon as somebody has looked at the segments."""

    switch: Callable[[], None] | None = None

    @property  # type: ignore[override]
    def sealed(self) -> Any:
        before, commit = vars(self)["before"], self.switch
        if commit is not None:
            self.switch = None
            commit()
        return before

    @sealed.setter
    def sealed(self, sealed: Any) -> None:
        vars(self)["before"] = sealed


def test_what_is_written_while_a_merge_switches_over(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(8)
    with monkeypatch.context() as patch:
        patch.setattr("hitbox.engine.engine.Content", Switching)
        engine = Engine(Space.of(3), **SMALL)
    for start in range(0, 90, 30):
        engine.insert(np.arange(start, start + 30), random_boxes(rng, 30, 3))
    commit = engine.prepare()
    assert commit is not None
    engine.content.switch = commit  # type: ignore[attr-defined]
    opened = Engine.from_arrays(Space.of(3), engine.arrays(), **SMALL)
    np.testing.assert_array_equal(opened.numbers(), np.arange(90))


@pytest.mark.parametrize("fails", [False, True])
def test_merges_come_and_go_only_where_nobody_changes_the_engine(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise one that another thread adds at that moment could be lost, and with it what changes meanwhile."""
    pair, lock = Pair(6), ReadWriteLock()
    dropped: list[bool] = []
    whole = Merges.drop

    class Alone:
        """The section, which knows the thread that is in it."""

        owner = 0

        def __enter__(self) -> None:
            lock.prepare.__enter__()
            self.owner = threading.get_ident()

        def __exit__(self, *_: object) -> None:
            self.owner = 0
            lock.prepare.__exit__(None, None, None)

    alone = Alone()

    def drop(merges: Merges, merge: Merge, failed: bool = False) -> None:
        dropped.append(alone.owner == threading.get_ident())
        whole(merges, merge, failed)

    def fail(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(Merges, "drop", drop)
    if fails:
        monkeypatch.setattr(Merge, "locate", fail)
    for _ in range(40):
        with alone:
            pair.change()
            pair.engine.merge_behind(alone)
    settle(pair.engine)
    pair.check()
    assert dropped
    assert all(dropped)


def test_no_thread_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(merge_module, "MOST_IDLE", 10)
    monkeypatch.setattr("hitbox.engine.background._kernels.start_in_background", none)
    pair = Pair(6)
    for _ in range(150):
        pair.change()
        pair.engine.merge_behind(nullcontext())
        assert len(pair.engine.merges.idle()) <= 11
    pair.check()


EXIT = """
import sys, threading, time
import numpy as np
from hitbox.encoding.arrays import Boxes, Space
from hitbox.engine import Engine
from hitbox.index.read_write_lock import ReadWriteLock

engine, lock = Engine(Space.of(8), tail=2), ReadWriteLock()
low = np.random.default_rng(1).integers(0, 10**6, (400_000, 8))
boxes = Boxes.of_dense(low, low + 10**5)
with lock.prepare:
    for part in np.split(np.arange(400_000), 2):
        engine.insert(part, boxes.take(part))
    engine.merge_behind(lock.prepare)
assert engine.merges.under_way[0].under_way
{wait}
print("leaves")
"""


@pytest.mark.parametrize("wait", ["", "time.sleep(0.3)"])
def test_the_end_of_the_process_ends_a_merge(wait: str) -> None:
    program = [sys.executable, "-c", EXIT.format(wait=wait)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "leaves", "")


def test_a_thread_gets_in_beside_one_that_never_pauses() -> None:
    """So a merge can end while a writer changes without a pause."""
    lock, stop = ReadWriteLock(), threading.Event()
    done: list[int] = []

    def never_pauses() -> None:
        while not stop.is_set():
            with lock.prepare:
                sum(range(2000))

    def now_and_then() -> None:
        for _ in range(10):
            with lock.prepare:
                done.append(1)

    threads: list[Callable[[], None]] = [never_pauses, now_and_then]
    busy, other = (threading.Thread(target=target) for target in threads)
    busy.start()
    other.start()
    other.join(60)
    stop.set()
    busy.join(20)
    assert len(done) == 10
