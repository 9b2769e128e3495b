"""Many threads match while one changes: every answer is one that some moment of the index could give."""

from __future__ import annotations

import threading
import time

import pytest

from hitbox import Index, Schema
from hitbox.locks import ReadWriteLock

SCHEMA = Schema({"a": "int", "s": "string"})


@pytest.mark.parametrize("matcher", ["brute", "auto"])
def test_an_upsert_is_seen_whole(matcher: str) -> None:
    """One subscription flips between two predicates that both match: it must never be absent, nor come twice."""
    index = Index(SCHEMA, matcher)
    for i in range(300):
        index.subscribe(f"still{i}", f"a >= {i}")
    index.subscribe("flip", "a < 1000 OR s LIKE '%x%'", priority=9)
    stop, problems = threading.Event(), []

    def ask() -> None:
        while not stop.is_set():
            found = index.match({"a": 150, "s": "zz"})
            if found.count("flip") != 1 or len(found) != 152:
                problems.append(found)
            both = index.match_batch([{"a": 150}, {"a": 0}])
            if both[0].count("flip") != 1 or len(both[1]) != 2:
                problems.append(both[0])

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 2
    turn = 0
    while time.monotonic() < end:
        turn += 1
        where = "a < 1000 OR s LIKE '%x%'" if turn % 2 else f"s = 'new{turn}' OR a BETWEEN 0 AND 500"
        index.subscribe("flip", where, priority=turn % 10)
        index.subscribe("come and go", "a > 1000000")
        index.unsubscribe("come and go")
    stop.set()
    for thread in threads:
        thread.join()
    assert not problems
    assert turn > 10


def test_readers_share_and_a_writer_is_alone() -> None:
    lock = ReadWriteLock()
    inside, most, wrong = 0, 0, []
    counter = threading.Lock()

    def read() -> None:
        nonlocal inside, most
        for _ in range(50):
            with lock.read():
                with counter:
                    inside += 1
                    most = max(most, inside)
                time.sleep(0.0005)
                with counter:
                    inside -= 1

    def write() -> None:
        for _ in range(50):
            with lock.write():
                if inside:
                    wrong.append(inside)
                time.sleep(0.0002)

    threads = [threading.Thread(target=target) for target in (read, read, read, write)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not wrong
    assert most > 1


@pytest.mark.parametrize("matcher", ["brute", "auto", "pri-rein"])
def test_changing_while_levels_are_read(matcher: str) -> None:
    """The same thread changes between levels: it must not lock itself out, and the levels left tell the new truth."""
    index = Index(SCHEMA, matcher)
    for level in range(10):
        index.subscribe(f"p{level}", "a > 0", priority=level)
    seen = []
    for level, ids in index.match_levels({"a": 1}):
        index.subscribe(f"miss{level}", "a < 0")
        if level == 8:
            index.subscribe("p9", "a > 0", priority=2)  # was handed out already: not again
            index.unsubscribe("p5")
            index.subscribe("new", "a > 0", priority=1)
            index.subscribe("too late", "a > 0", priority=9)
        seen.append((level, sorted(ids)))
    rest = {7: ["p7"], 6: ["p6"], 4: ["p4"], 3: ["p3"], 2: ["p2"], 1: ["new", "p1"], 0: ["p0"]}
    assert seen == [(9, ["p9"]), (8, ["p8"]), *rest.items()]
