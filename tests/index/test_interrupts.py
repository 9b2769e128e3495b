"""An interrupt leaves an index as it was before a change or as it is after it, with no lock held."""

from __future__ import annotations

import random
import signal
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hitbox import Attribute, Exchange, Index, Schema, language
from hitbox.encoding import string_dictionary
from hitbox.errors import NeverMatches
from hitbox.index import catalog
from hitbox.index.read_write_lock import ReadWriteLock
from hitbox.matchers.brute import Brute
from support.interrupts import Interrupted, every_place, interrupt_after, interrupt_at
from support.tiers import only

SCHEMA = Schema({"a": "int", "s": "string"})
EVENTS = [{"a": a, "s": s} for a in (-5, 1, 4, 70) for s in ("b", "bm", "x", "zz")]
PARSED: dict[str, Any] = {}
Model = dict[int, tuple[str, int]]

START: Model = {
    1: ("a > 3", 4),
    2: ("s = 'b' OR s = 'x'", 9),
    3: ("s LIKE '%m'", 1),
    4: ("a BETWEEN 0 AND 5 AND s > 'a'", 4),
    5: ("a = 4 OR a = 5 OR a = 6", 0),
}


def holds(where: str, event: dict[str, Any]) -> bool:
    if where not in PARSED:
        PARSED[where] = language.parse(where, SCHEMA)
    return language.evaluate(PARSED[where], event) is True


def says(index: Index, model: Model) -> bool:
    """Does the index hold exactly this? Then it must match by it, too."""
    ids: list[Any] = sorted(index)  # type: ignore[type-var]
    if {id: (index.where(id), index.priority(id)) for id in ids} != model:
        return False
    assert len(index) == len(model)
    assert all(id in index for id in model)
    batch = index.match_batch(EVENTS)
    for number, event in enumerate(EVENTS):
        want = sorted(id for id, (where, _) in model.items() if holds(where, event))
        assert sorted(index.match(event)) == want  # type: ignore[type-var]
        assert sorted(batch[number]) == want
    return True


def check(index: Index, before: Model, after: Model, elsewhere: ThreadPoolExecutor) -> None:
    if not says(index, before):
        assert says(index, after), f"neither before nor after: {sorted(index)}"  # type: ignore[type-var]

    def use() -> None:
        index.subscribe(99, "a = 1 AND s = 'probe'")
        assert 99 in index.match({"a": 1, "s": "probe"})
        index.unsubscribe(99)

    elsewhere.submit(use).result(20)  # no lock is held
    use()


def table(model: Model) -> pa.Table:
    ids = pa.array(list(model), pa.int64())
    return pa.table({"id": ids, "where": [w for w, _ in model.values()], "priority": [p for _, p in model.values()]})


MORE: Model = {id: (f"a > {id % 7} AND s < 'c{id}'", id % 10) for id in (2, 4, 20, 21, 22, 23)}

CHANGES: dict[str, tuple[Callable[[Index], Any], Callable[[Model], Model]]] = {
    "subscribe": (lambda i: i.subscribe(6, "a < 2"), lambda m: m | {6: ("a < 2", 4)}),
    "replace": (
        lambda i: i.subscribe(2, "s = 'bm' OR a > 60 OR a < 0", priority=3),
        lambda m: m | {2: ("s = 'bm' OR a > 60 OR a < 0", 3)},
    ),
    "unsubscribe": (lambda i: i.unsubscribe(2), lambda m: {id: m[id] for id in m if id != 2}),
    "unsubscribe many": (
        lambda i: i.unsubscribe_many([1, 2, 5, 77]),
        lambda m: {id: m[id] for id in m if id not in (1, 2, 5)},
    ),
    "load": (lambda i: i.load(table(MORE)), lambda m: m | MORE),
    "save": (lambda i: i.save("nowhere"), lambda m: m),
}


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gaps run out, the tail is sealed, rows are frozen and slots squeezed out after a few steps."""
    monkeypatch.setattr(string_dictionary, "LABEL_STRIDE", 4)
    monkeypatch.setattr(string_dictionary, "RUN_STEP", 2)
    monkeypatch.setattr(string_dictionary, "MAX_OVERLAY", 2)
    monkeypatch.setattr(catalog, "MIN_ARROW_ROWS", 4)
    monkeypatch.setattr(catalog, "MANY_DEAD", 2)
    monkeypatch.setattr("hitbox.index.load.columns.MAX_LATE", 3)
    monkeypatch.setattr("hitbox.index.index.snapshot.write", lambda *_: 1)  # files have tests of their own


def start(matcher: str) -> Index:
    index = Index(SCHEMA, matcher, **({"tail": 4} if matcher == "hitbox" else {}))
    for id, (where, priority) in START.items():
        index.subscribe(id, where, priority=priority)
    return index


STEPS = [("hitbox", 5), ("hitbox", 29), ("brute", 17), ("rein", 41), ("h-tree", 41)]
"""`make test` tries every 29th place with the engine, `make test-all` every fifth; below, loads are interrupted at any
time."""


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("matcher", "step"), only([("hitbox", 29), ("brute", 17), ("rein", 41)], STEPS))
def test_a_change_is_all_or_nothing(matcher: str, step: int, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted at every place (some of them, for other matchers than the engine)."""
    small(monkeypatch)
    make, result = CHANGES[change]
    interrupted = 0
    with ThreadPoolExecutor(1) as elsewhere:
        for place in every_place(step, first=random.Random(change).randint(1, step)):
            index = start(matcher)
            if not interrupt_at(place, partial(make, index)):
                assert says(index, result(START))
                break
            interrupted += 1
            check(index, START, result(START), elsewhere)
    assert interrupted > 30 / step


def test_loads_interrupted_at_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Larger loads, with every kind of work that they bring along, interrupted by the clock."""
    monkeypatch.setattr(catalog, "MANY_DEAD", 500)
    monkeypatch.setattr(string_dictionary, "LABEL_STRIDE", 64)
    rng = random.Random(5)
    index = Index(SCHEMA, tail=64)
    held: dict[int, int] = {}
    interrupted = 0
    with ThreadPoolExecutor(1) as elsewhere:
        for turn in range(120):
            ids = rng.sample(range(4000), rng.choice([3, 900, 2000]))
            texts = [f"a = {turn} AND s >= 'w{rng.randrange(10**6)}'" for _ in ids]
            rows = pa.table({"id": pa.array(ids, pa.int64()), "where": texts})
            late = interrupt_after(rng.uniform(0.0005, 0.12), partial(index.load, rows))
            interrupted += late
            found = sorted(index.match({"a": turn, "s": "x"}))  # type: ignore[type-var]
            if found:
                held |= dict.fromkeys(ids, turn)
            else:
                assert late
            assert found == sorted(id for id, last in held.items() if last == turn)
            assert len(index) == len(held)
            for other in {*rng.sample(range(turn + 1), min(turn, 3))}:
                want = sorted(id for id, last in held.items() if last == other)
                found = elsewhere.submit(index.match, {"a": other, "s": "x"}).result(20)
                assert sorted(found) == want  # type: ignore[type-var]
    assert interrupted > 10


def test_an_exchange_keeps_both_sides_together() -> None:
    """Events and the queue in which they wait to expire are changed together."""

    def exchange() -> Exchange:
        both = Exchange({"price": "int", "age": Attribute("int", role="information")}, max_events=2)
        both.publish("e1", {"price": 1}, where="age > 10")
        both.publish("e2", {"price": 2}, where="age > 20")
        return both

    changes: list[Callable[[Exchange], Any]] = [
        lambda both: both.publish("e3", {"price": 3}),
        lambda both: both.publish("e1", {"price": 4}),
        lambda both: both.withdraw("e2"),
    ]
    allowed = [{("e1", "e2"), ("e1", "e2", "e3"), ("e2", "e3")}, {("e1", "e2")}, {("e1", "e2"), ("e1",)}]
    for change, states in zip(changes, allowed, strict=True):
        for place in every_place(5):
            both = exchange()
            if not interrupt_at(place, partial(change, both), ("symmetric", "index", "catalog")):
                break
            assert tuple(sorted(both._events)) == tuple(sorted(both._queue))
            assert tuple(sorted(both._events)) in states
            both.subscribe("s", "price > 0", about={"age": 30})
            assert len(both.events) <= 2


class NoMemory(Brute):
    """A matcher that runs out of memory in the middle of a change."""

    fails = False

    def insert(self, numbers: Any, boxes: Any) -> None:
        if self.fails:
            type(self).fails = False
            raise MemoryError
        super().insert(numbers, boxes)


@pytest.mark.parametrize("change", [c for c in CHANGES if c in ("subscribe", "replace", "load")])
def test_no_memory_leaves_what_was_there(change: str) -> None:
    index = start("brute")
    index._state.matcher.__class__ = NoMemory
    NoMemory.fails = True
    with pytest.raises(MemoryError):
        CHANGES[change][0](index)
    with ThreadPoolExecutor(1) as elsewhere:
        check(index, START, START, elsewhere)


@pytest.mark.parametrize("section", ["read", "prepare", "commit"])
def test_waiting_can_be_interrupted(section: str) -> None:
    """Another thread does not leave the lock; who waits for it is interrupted, and nothing has changed."""
    index = start("brute")
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with getattr(index._held.lock, section):
            inside.set()
            leave.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert inside.wait(20)
    waits: dict[str, Callable[[], Any]] = {"read": lambda: index.subscribe(1, "a > 9")}
    waits |= {"prepare": lambda: index.unsubscribe(1), "commit": lambda: index.match({"a": 1})}
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    try:
        for _ in range(3):
            assert interrupt_after(0.02, waits[section])
    finally:
        leave.set()
        holder.join(20)
    assert [signal.getsignal(number) for number in signal.valid_signals()] == handlers
    with ThreadPoolExecutor(1) as elsewhere:
        check(index, START, START, elsewhere)


def test_a_handler_reads_while_its_thread_waits_to_write() -> None:
    """Readers give way to a writer that waits, but not to one that is stopped because its handler reads."""
    index = start("brute")
    inside, leave, found = threading.Event(), threading.Event(), []

    def hold() -> None:
        with index._held.lock.read:
            inside.set()
            leave.wait(60)

    def handler(number: int, frame: object) -> None:
        leave.set()
        holder.join(20)
        found.append(index.match({"a": 4}))

    def give_up(number: int, frame: object) -> None:
        raise Interrupted

    holder = threading.Thread(target=hold)
    main = threading.main_thread().ident or 0
    timers = [
        threading.Timer(after, signal.pthread_kill, (main, number))
        for after, number in ((0.2, signal.SIGUSR1), (10, signal.SIGUSR2))
    ]
    old = {
        signal.SIGUSR1: signal.signal(signal.SIGUSR1, handler),
        signal.SIGUSR2: signal.signal(signal.SIGUSR2, give_up),
    }
    try:
        holder.start()
        assert inside.wait(20)
        for timer in timers:
            timer.start()
        index.subscribe(1, "a > 9")
    finally:
        leave.set()
        for timer in timers:
            timer.cancel()
            timer.join(20)
        for number, former in old.items():
            signal.signal(number, former)
    assert [sorted(ids) for ids in found] == [[1, 5]]  # 4 asks for an `s`
    assert sorted(index.match({"a": 4})) == [5]


def test_signals_in_a_commit_are_handled_after_it() -> None:
    """All of them, once each, by the handlers that were there; what several raise is chained."""
    lock, seen = ReadWriteLock(), []

    def note(number: int, frame: object) -> None:
        seen.append(number)
        if number == signal.SIGUSR1:
            raise Interrupted
        if number == signal.SIGUSR2:
            raise KeyError

    def commit() -> None:
        with lock.commit:
            for number in [*numbers, *numbers]:
                signal.raise_signal(number)
            sum(range(1000))
            assert not seen

    numbers = [signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM]
    old = {number: signal.signal(number, note) for number in numbers}
    try:
        with pytest.raises(KeyError) as caught:
            commit()
        assert seen == numbers
        assert isinstance(caught.value.__context__, Interrupted)
        assert [signal.getsignal(number) for number in numbers] == [note] * 3
        with lock.commit:  # it was given back
            pass
        with pytest.raises(ZeroDivisionError), lock.commit:
            raise ZeroDivisionError
        with lock.read:
            pass
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def test_a_predicate_that_never_holds_with_warnings_as_errors() -> None:
    index = start("brute")
    with warnings.catch_warnings():
        warnings.simplefilter("error", NeverMatches)
        with pytest.raises(NeverMatches):
            index.subscribe(1, "a > 3 AND a < 2")
    assert says(index, START)
    assert np.array_equal(
        index._state.matcher.numbers(), np.sort(index._state.catalog.boxes_of(index._state.catalog.living_slots()))
    )
