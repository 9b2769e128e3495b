"""What the engine does where there is no memory, no thread, or an interrupt: the call fails, nothing else does."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from hitbox.concurrency import pieces
from hitbox.encoding.arrays import Boxes, Points, Space
from hitbox.engine import Engine, _kernels

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of Linux")

SCARCE = """
import resource, sys, threading
import numpy as np
from hitbox.encoding.arrays import Boxes, Points, Space
from hitbox.engine import Engine

engine = Engine(Space.of(2))
engine.insert(np.arange(20_000), Boxes.of([{{0: (0, 9)}}] * 20_000))
inside, outside = Points.of([[5, 0]] * {events}), Points.of([[10, 0]] * {events})
engine.match(outside)

def used():
    return 1024 * int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmSize")))

resource.setrlimit(resource.RLIMIT_AS, (used() + {spare}, -1))
"""

NO_THREADS = (
    SCARCE.format(events=400, spare="(3 << 20)")
    + """
try:
    threading.Thread(target=print).start()
    print("a thread was to be had")
except RuntimeError:
    pass
assert len(engine.match(outside, threads=4).numbers) == 0
print("matched")
"""
)

NO_MEMORY = (
    SCARCE.format(events=4000, spare="(100 << 20)")
    + """
failed = 0
for threads in (1, 2) * 5:
    try:
        engine.match(inside, threads=threads)
    except MemoryError:
        failed += 1
assert failed == 10, failed
before = used()
for threads in (1, 2) * 5:
    try:
        engine.match(inside, threads=threads)
    except MemoryError:
        pass
assert used() - before < 20 << 20, used() - before
try:
    engine.insert(np.arange(20_000, 2_000_000), Boxes.of_dense(*[np.zeros((1_980_000, 2), np.int64)] * 2))
except MemoryError:
    pass
assert len(engine) == 20_000
assert engine.match(inside[:1]).numbers.size == 20_000
print("matched")
"""
)


@pytest.mark.parametrize("program", [NO_THREADS, NO_MEMORY], ids=["threads", "memory"])
def test_a_process_outlives_that_there_is_no(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "matched"), done.stderr[-2000:]


FORK = """
import os, sys, threading
import numpy as np
from hitbox.encoding.arrays import Boxes, Points, Space
from hitbox.engine import Engine

engine = Engine(Space.of(1))
engine.insert(np.arange(20_000), Boxes.of([{0: (0, 9)}] * 20_000))
points = Points.of([[5]] * 64)  # their matches are memory that is kept for the next call
stop = threading.Event()

def match():
    while not stop.is_set():
        engine.match(points)

threads = [threading.Thread(target=match) for _ in range(2)]
for thread in threads:
    thread.start()
for _ in range(15):
    child = os.fork()
    if not child:
        for _ in range(3):
            found = len(engine.match(points).numbers)
        os._exit(0 if found == 64 * 20_000 else 1)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
print("matched")
"""


def test_a_child_that_is_forked_while_others_match_can_match() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "matched"), done.stderr[-2000:]


class Interrupted(Exception):
    pass


@pytest.fixture
def interrupt() -> Iterator[Callable[[float], None]]:
    """Makes a signal's handler raise `Interrupted` after some seconds."""

    def handler(*_: Any) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, handler)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds) and None
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def wide(count: int, attributes: int = 4) -> Boxes:
    low = np.random.default_rng(1).integers(0, 1000, (count, attributes))
    return Boxes.of_dense(low, low + 700)


def equalities(count: int) -> Boxes:
    keys = np.random.default_rng(2).integers(0, count, (count, 4))
    return Boxes.of_dense(keys, keys)


def calls() -> dict[str, Callable[[], Any]]:
    engine = Engine(Space.of(4))
    boxes, numbers = wide(30_000), np.arange(30_000)
    engine.insert(numbers, boxes)
    rng = np.random.default_rng(3)
    heavy = Points.of(rng.integers(600, 900, (160_000, 4)))
    ranges = Points(heavy.low, heavy.low + 5)
    new, many, keyed = np.arange(10**6, 10**6 + 600_000), wide(600_000), equalities(600_000)
    return {
        "match": lambda: engine.count(heavy),
        "match with threads": lambda: engine.count(heavy, threads=2),
        "match ranges": lambda: engine.count(ranges),
        "build bitmaps": lambda: engine.change(numbers[:5], new, many),
        "build postings": lambda: engine.change(numbers[:5], new, keyed),
        "decode": lambda: engine.boxes(np.tile(numbers, 60)),
    }


def interrupted_after(seconds: float, call: Callable[[], Any], interrupt: Callable[[float], None]) -> None:
    interrupt(seconds)
    while True:
        call()


def cpu(call: Callable[[], Any]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


@pytest.mark.exhaustive  # `make test` interrupts changes at every place, in tests/index/test_interrupts.py
def test_an_interrupt_stops_long_calls(interrupt: Callable[[float], None]) -> None:
    """A call that has just begun does not go on to its end."""
    for name, call in calls().items():
        whole = cpu(call)
        start = time.process_time()
        with pytest.raises(Interrupted):
            interrupted_after(0.02, call, interrupt)
        took = time.process_time() - start
        assert took < 0.5 * whole, f"{name} went on for {took:.2f} of {whole:.2f} s"


def test_what_was_interrupted_leaves_what_was_there(interrupt: Callable[[float], None]) -> None:
    engine = Engine(Space.of(4), tail=64)
    engine.insert(np.arange(5000), wide(5000))
    before = {name: array.tolist() for name, array in engine.arrays().items()}
    new, numbers = wide(200_000), np.arange(200_000)
    for delay in (0.005, 0.02, 0.06):
        with pytest.raises(Interrupted):
            interrupted_after(delay, lambda: engine.change(np.arange(5000), numbers, new), interrupt)
        assert {name: array.tolist() for name, array in engine.arrays().items()} == before


def test_handlers_that_return_do_not_stop_a_call() -> None:
    ticks: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda *_: ticks.append(len(ticks)))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        engine = Engine(Space.of(4))
        engine.insert(np.arange(100_000), wide(100_000))
        points = Points.of(np.full((500, 4), 800))
        whole = engine.count(points)
        for _ in range(200):
            if len(ticks) > 3:
                break
            np.testing.assert_array_equal(engine.count(points, threads=2), whole)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(ticks) > 3


def test_calls_of_other_threads_are_not_interrupted(interrupt: Callable[[float], None]) -> None:
    engine = Engine(Space.of(4))
    engine.insert(np.arange(100_000), wide(100_000))
    points = Points.of(np.random.default_rng(3).integers(600, 900, (2000, 4)))
    want = engine.count(points)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(engine.count(points)))
    thread.start()
    with pytest.raises(Interrupted):
        interrupted_after(0.02, lambda: time.sleep(0.01), interrupt)
    thread.join()
    np.testing.assert_array_equal(found[0], want)


def test_too_much_for_the_tail_is_refused() -> None:
    with pytest.raises(ValueError, match="`tail` smaller"):
        _kernels.Tail().with_room(1, 2**32)


SHORT_OF_MEMORY = """
import _thread
import hitbox.concurrency.interruptible as long
from hitbox.concurrency import pieces

def died(*_):  # as a thread does that finds no memory for its first frame
    return 1

_thread.start_new_thread = died
long.START_TIMEOUT = 0.01
print(long.interruptible(10**9, sum, [1, 2]), pieces.run([lambda n=n: n for n in range(9)]))

def failed(*_):
    raise RuntimeError("can't start new thread")

_thread.start_new_thread = failed
print(long.interruptible(10**9, sum, [1, 2]), pieces.run([lambda n=n: n for n in range(9)]))
"""


def test_threads_that_end_before_they_begin_are_not_waited_for() -> None:
    program = [sys.executable, "-c", SHORT_OF_MEMORY]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout == "3 [0, 1, 2, 3, 4, 5, 6, 7, 8]\n" * 2, ended.stderr


def test_pieces_come_in_order_and_the_first_error_ends_the_others() -> None:
    assert pieces.run([partial(pow, n, 2) for n in range(1000)]) == [n * n for n in range(1000)]
    done: list[int] = []

    def fail() -> None:
        raise KeyError("third")

    tasks: list[Callable[[], Any]] = [partial(done.append, n) for n in range(100_000)]
    tasks[3] = fail
    with pytest.raises(KeyError, match="third"):
        pieces.run(tasks)
    assert len(done) < 99_999
