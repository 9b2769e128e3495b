"""Many threads match while one changes: every answer is one that some moment of the index could give."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hitbox import Index, Schema
from hitbox.encoding.string_dictionary import Dictionary
from hitbox.errors import HitboxError
from hitbox.index import catalog, explain, explaining
from hitbox.index.explain import Explained, NearMisses
from hitbox.index.read_write_lock import ReadWriteLock

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
    assert turn > 2


def test_readers_share_and_a_writer_is_alone() -> None:
    lock = ReadWriteLock()
    inside, most, wrong = 0, 0, []
    counter = threading.Lock()

    def read() -> None:
        nonlocal inside, most
        for _ in range(50):
            with lock.read:
                with counter:
                    inside += 1
                    most = max(most, inside)
                time.sleep(0.0005)
                with counter:
                    inside -= 1

    def write() -> None:
        for _ in range(50):
            with lock.commit:
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


class Held:
    """A section that another thread is in, until it is let go."""

    def __init__(self, section: Any):
        self._section = section
        self._inside, self._leave = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with self._section:
            self._inside.set()
            self._leave.wait(60)

    def __enter__(self) -> None:
        self._thread.start()
        assert self._inside.wait(20)

    def __exit__(self, *_: object) -> None:
        self._leave.set()
        self._thread.join(20)


def test_readers_pass_a_writer_that_waits_for_a_slow_reader() -> None:
    lock = ReadWriteLock()
    passed = threading.Event()

    def write() -> None:
        with lock.commit:
            pass

    def read() -> None:
        with lock.read:
            passed.set()

    for _ in range(5):  # a writer that has waited for a second goes first; a busy machine may take that long
        threads = [threading.Thread(target=write), threading.Thread(target=read)]
        with Held(lock.read):
            for thread in threads:
                thread.start()
            quick = passed.wait(5)
        for thread in threads:
            thread.join(20)
        if quick:
            break
    assert quick


def test_a_writer_gets_in_between_readers_that_never_stop() -> None:
    lock, stop = ReadWriteLock(), threading.Event()

    def read() -> None:
        while not stop.is_set():
            with lock.read:
                sum(range(2000))

    readers = [threading.Thread(target=read) for _ in range(4)]
    for thread in readers:
        thread.start()
    done = []

    def write() -> None:
        for _ in range(10):
            with lock.commit:
                done.append(1)

    writer = threading.Thread(target=write)
    writer.start()
    writer.join(60)
    stop.set()
    for thread in readers:
        thread.join(20)
    assert len(done) == 10


def test_a_thread_that_would_wait_for_itself_is_told() -> None:
    lock = ReadWriteLock()
    with lock.read, lock.read, pytest.raises(HitboxError, match="reading"), lock.commit:  # reading twice is no harm
        pass
    with lock.prepare, pytest.raises(HitboxError, match="already"), lock.prepare:
        pass
    with lock.commit, pytest.raises(HitboxError, match="changing"), lock.read:
        pass
    with lock.prepare, lock.commit:
        pass


def in_child(call: Callable[[], Any]) -> str:
    """What a call says in a forked process: "done" or its error."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            call()
            answer = "done"
        except BaseException as problem:
            answer = f"{type(problem).__name__}: {problem}"
        os.write(writer, answer.encode())
        os._exit(0)
    os.close(writer)
    try:
        os.set_blocking(reader, False)
        end, answer = time.monotonic() + 30, b""
        while not answer and time.monotonic() < end:
            time.sleep(0.01)
            try:
                answer = os.read(reader, 10_000)
            except BlockingIOError:
                continue
        return answer.decode() or "it hangs"
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(reader)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("section", ["read", "prepare", "commit"])
def test_a_fork_while_another_thread_is_inside(section: str) -> None:
    index = Index(SCHEMA)
    index.subscribe("one", "a > 3")

    def use() -> None:
        index.subscribe("two", "a > 4")
        assert sorted(index.match({"a": 5})) == ["one", "two"]
        index.unsubscribe("two")

    waiting = threading.Thread(target=use)
    with Held(getattr(index._held.lock, section)):
        waiting.start()
        time.sleep(0.05)  # so that it waits, or is done
        said = in_child(use)
    waiting.join(20)
    use()
    if section == "commit":
        assert said.startswith("HitboxError: this index was being changed by another thread when the process forked")
    else:
        assert said == "done"


def test_a_key_looked_up_while_the_index_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that is in the middle of the dictionary when it is written finds the right key, now and later."""
    index = Index(SCHEMA)
    for text in "acde":
        index.subscribe(text, f"s = '{text}'")
    index.save(tmp_path)
    index = Index.open(tmp_path)
    for text in ("b1", "b2", "x"):
        index.subscribe(text, f"s = '{text}'")
    index._state.keys.dictionaries[index.schema.number("s")].memo.clear()  # it has forgotten keys that it looked up
    writing, looking, written = threading.Event(), threading.Event(), threading.Event()
    found: list[Any] = []
    arrays, text_at = Dictionary.arrays, Dictionary._text

    def slow_arrays(words: Dictionary) -> Any:
        writing.set()
        looking.wait(20)
        result = arrays(words)
        written.set()
        return result

    def slow_text(words: Dictionary, at: int) -> memoryview:
        if threading.current_thread() is reader and not looking.is_set():
            looking.set()
            written.wait(20)
        return text_at(words, at)

    def read() -> None:
        writing.wait(20)
        words.key("x")  # remembers what it finds
        found.append(index.match({"s": "x"}))

    words = index._state.keys.dictionaries[index.schema.number("s")]
    reader = threading.Thread(target=read)
    monkeypatch.setattr(Dictionary, "arrays", slow_arrays)
    monkeypatch.setattr(Dictionary, "_text", slow_text)
    reader.start()
    index.save(tmp_path)
    reader.join(20)
    assert found == [["x"]]
    assert index.match({"s": "x"}) == ["x"]


def test_strings_match_while_the_index_is_saved(tmp_path: Path) -> None:
    index = Index(SCHEMA)
    stop, problems = threading.Event(), []
    for i in range(50):
        index.subscribe(f"w{i}", f"s = 'w{i}'")

    def ask() -> None:
        while not stop.is_set():
            problems.extend(i for i in range(50) if index.match({"s": f"w{i}"}) != [f"w{i}"])

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for turn in range(10):
        index.subscribe("more", f"s = 'x{turn}'")  # something for the dictionary to fold in
        index.save(tmp_path)
    stop.set()
    for thread in threads:
        thread.join(20)
    assert not problems
    assert all(index.match({"s": f"w{i}"}) == [f"w{i}"] for i in range(50))


def test_near_misses_give_the_lock_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change gets in while they are looked for, even one that moves every slot, and the answer is that of the end."""
    monkeypatch.setattr(explain, "PIECE_SLOTS", 10)
    monkeypatch.setattr(explaining, "SLICE_SECONDS", 0)
    monkeypatch.setattr(catalog, "MANY_DEAD", 20)
    index = Index(SCHEMA)
    for i in range(200):
        index.subscribe(i, f"a = {i} AND s = 'no'")
    look, changed = NearMisses.look, []

    def change() -> None:
        index.unsubscribe_many(list(range(150)))
        index.subscribe(500, "a > 0 AND s = 'no'", priority=9)
        index.subscribe(160, "a > 0")
        changed.append(1)

    writer = threading.Thread(target=change)

    def look_and_change(near: NearMisses, *args: Any) -> bool:
        more = look(near, *args)
        if not writer.ident:
            writer.start()
        elif not changed:
            time.sleep(0.001)
        return (more and not changed) or look(near, *args)

    monkeypatch.setattr(NearMisses, "look", look_and_change)
    for _ in range(3):
        told = index.explain({"a": 170, "s": "yes"}, misses=2)
    writer.join(20)
    assert changed == [1]
    told = index.explain({"a": 170, "s": "yes"}, misses=2)
    assert isinstance(told, Explained)
    assert told.matches == [160]
    assert set(told.misses) == {500, 170}


AT_EXIT = """
import threading, time
import hitbox

index = hitbox.Index({"a": "int"})
for n in range(2000):
    index.subscribe(n, f"a > {n}")

def for_ever():
    while True:
        index.match({"a": 1999})

for _ in range(8):
    threading.Thread(target=for_ever, daemon=True).start()
time.sleep(0.2)
print("ends")
"""


def test_a_process_ends_while_daemon_threads_match() -> None:
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stdout.strip()) == (0, "ends"), done.stderr
