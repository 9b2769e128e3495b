"""The native path from an event to ids: it says the same as the Python codecs, and neither leaks nor crashes."""

from __future__ import annotations

import enum
import gc
import math
import sys
import threading
import weakref
from collections import ChainMap, OrderedDict, UserDict
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from random import Random
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from hitbox import Attribute, Index, Schema
from hitbox.encoding import codecs, events
from hitbox.encoding.arrays import HIGHEST, MISSING
from hitbox.encoding.keys import Keys
from hitbox.engine.event_encoder import PIECE, EventEncoder
from hitbox.errors import HitboxError, NeverMatches, TableError, UnknownAttribute, ValueProblem
from hitbox.index import catalog, matching

SCHEMA = Schema(
    {
        "i": "int",
        "f": "float",
        "b": "bool",
        "t": "timestamp",
        "s": "string",
        "g": Attribute("float", domain=(-5, 5), precision="0.1"),
        "third": Attribute("float", domain=(0, 100), precision="1/3"),
        "h": Attribute("int", domain=(-30, 30), precision=3),
        "wide": Attribute("float", domain=(0, 0), precision=2**60),
        "age": Attribute("int", role="information"),
    }
)
NAMES = SCHEMA.with_role("criteria")


class Whole(int):
    pass


class Real(float):
    pass


class Text(str):
    pass


class Odd(str):
    """A name that is equal to "i" without looking like it."""

    def __hash__(self) -> int:
        return hash("i")

    def __eq__(self, other: object) -> bool:
        return other == "i"


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


NUMBERS: list[Any] = [0, 1, -1, 3, 7, -7, 30, 31, 33, -31, 2**53, 2**53 + 1, -(2**53) - 1, 2**62, 2**63 - 1, 2**63]
NUMBERS += [-(2**63), -(2**63) + 1, 2**64, 10**400, 0.0, -0.0, 0.1, 0.3, 0.1 + 0.2, -0.1, 4.999999, 5.0, 5.05, 1e300]
NUMBERS += [-1e300, 5e-324, math.inf, -math.inf, math.nan, 1 / 3, 2 / 3, 33.333333333333336, 1e15, 2.0**53, 1e-9]
OTHERS: list[Any] = [None, True, False, "", "red", "green", "a\0b", "\ud800", "é", "😀", Text("red"), Colour.RED]
OTHERS += [Whole(3), Real(0.5), Real(math.nan), Level.HIGH, Decimal("0.1"), Decimal("NaN"), Decimal(3), Fraction(1, 2)]
OTHERS += [np.float64(0.5), np.float32(0.1), np.int8(3), np.uint64(2**64 - 1), np.bool_(True), np.str_("red")]
OTHERS += [np.datetime64("2026-01-31"), np.datetime64("NaT"), pd.Timestamp("2026-01-31"), pd.NaT, pd.NA, b"red", 1j]
OTHERS += [datetime(2026, 1, 31), datetime(2026, 1, 31, 1, 2, 3, 4, UTC), datetime.min, datetime.max, date(2026, 1, 31)]
OTHERS += [datetime(1969, 12, 31, 23, 59, 59, 999999), datetime(2026, 1, 31, tzinfo=timezone(timedelta(hours=2)))]
OTHERS += [datetime(2026, 1, 31, tzinfo=timezone.utc), datetime(2026, 1, 31, fold=1), "2026-01-31T12:00:00Z"]  # noqa: UP017
OTHERS += [
    (1, 2),
    (2, 1),
    (1, 1),
    ("a", "z"),
    (None, 1),
    {"low": 1, "high": 2},
    {"low": 1},
    (1, 2, 3),
    [1],
    {1},
    (),
    {},
]
OTHERS += [np.array([1, 2]), object(), Broken(), int, (0.1, math.nan), (True, True), {"low": "a", "high": "a"}]
VALUES = NUMBERS + OTHERS


def keys_with_words() -> Keys:
    keys = Keys(SCHEMA)
    keys.admit({SCHEMA.number("s"): ["red", "blue", "é"]})
    return keys


def by_codecs(keys: Keys, event: Any) -> tuple[list[int], list[int]]:
    """The keys that the Python codecs give an event."""
    low = [MISSING] * len(SCHEMA)
    high = list(low)
    for number, (first, last) in events.event_keys(keys, event).items():
        low[number], high[number] = first, last
    high[SCHEMA.number("age")] = HIGHEST
    return low, high


def outcome(call: Any, *args: Any) -> Any:
    try:
        return call(*args)
    except Exception as problem:
        return type(problem), str(problem)


def check(event: Any) -> None:
    """One event natively, alone and in a list, and by the codecs: the same keys or the same error."""
    keys = keys_with_words()
    encoder = EventEncoder(keys)
    expected = outcome(by_codecs, keys_with_words(), event)
    for _ in range(2):  # the second time strings are known
        found = outcome(encoder.one, event)
        if not isinstance(found, tuple):
            found = found.low[0].tolist(), found.high[0].tolist()
        assert found == expected
    found = outcome(encoder.many, [{}, event, {"f": 1.0}], 7)
    if isinstance(expected[0], type):
        wrapped = issubclass(expected[0], (ValueProblem, UnknownAttribute))
        assert found == ((TableError, f"event 8: {expected[1]}") if wrapped else expected)
    else:
        assert (found.low[1].tolist(), found.high[1].tolist()) == expected
        assert found.low[2][SCHEMA.number("f")] == found.high[2][SCHEMA.number("f")] != MISSING


@pytest.mark.parametrize("name", NAMES)
def test_every_kind_of_value(name: str) -> None:
    for value in VALUES:
        check({name: value})


def test_grids_by_the_thousand() -> None:
    """Values on a grid, beside it, and outside its domain."""
    keys, random = keys_with_words(), Random(1)
    encoder = EventEncoder(keys)
    for name in ("g", "third", "h"):
        codec = keys.codecs[SCHEMA.number(name)]
        step = float(codec.step)  # type: ignore[attr-defined]
        for _ in range(3000):
            value: Any = random.choice([random.randint(-120, 120) * step, random.uniform(-120, 120)])
            value = random.choice([value, math.nextafter(value, math.inf), math.nextafter(value, -math.inf)])
            value = int(value) if name == "h" else value
            assert encoder.one({name: value}).low[0][SCHEMA.number(name)] == codec.key(value), (name, value)


def test_whole_events() -> None:
    random = Random(2)
    good = {
        "i": [1, None, 2**62, Whole(3)],
        "f": [0.5, None, 3, np.float64(2)],
        "b": [True, False, None, np.bool_(True)],
        "t": [datetime(2026, 1, 31), None, "2026-01-31"],
        "s": ["red", "other", None, Text("red"), ("a", "b")],
        "g": [0.1, 0.15, None, (0.1, 0.2)],
        "h": [3, 4, None],
        "third": [1, 0.5],
        "wide": [0, 1.0],
    }
    for _ in range(300):
        names = random.sample(NAMES, random.randint(0, len(NAMES)))
        check({name: random.choice(good[name]) for name in names})


class Faulty(Mapping[str, Any]):
    """A mapping that fails somewhere."""

    def __init__(self, where: str):
        self.where = where

    def __getitem__(self, name: str) -> Any:
        if self.where == "getitem":
            raise LookupError("no value")
        return 1

    def __iter__(self) -> Iterator[str]:
        if self.where == "iter":
            raise RuntimeError("no names")
        yield "i"
        if self.where == "late":
            raise OSError("lost")

    def __len__(self) -> int:
        return 1


class Loud(dict[str, Any]):
    """A dict that shows other items than it holds."""

    def items(self) -> Any:
        return {"i": 5}.items()


def test_other_mappings_and_names() -> None:
    plain = {"i": 3, "f": 0.5, "s": "red"}
    for event in [MappingProxyType(plain), UserDict(plain), ChainMap({"i": 4}, plain), OrderedDict(plain), Loud(f=1.0)]:
        check(event)
    for where in ("getitem", "iter", "late", ""):
        check(Faulty(where))
    for event in [
        {Text("i"): 3},
        {Odd("x"): 3},
        {"I": 3},
        {"age": 3},
        {1: 2},
        {None: 1},
        {("i",): 1},
        {"i": 1, "j": 2},
    ]:
        check(event)
    for event in [None, 1, "i", [("i", 1)], (), object(), pa.table({"i": [1]})]:
        check(event)
    check({"i": "x", "nope": 1})
    check({"nope": 1, "i": "x"})


class Meddler(float):
    """A value that changes its own event when it is looked at."""

    event: dict[str, Any]
    change: Any

    def __ne__(self, other: object) -> bool:
        self.change(self.event)
        return False

    __hash__ = float.__hash__


def test_an_event_that_changes_while_it_is_read() -> None:
    def grow(event: dict[str, Any]) -> None:
        event.update({f"x{n}": n for n in range(100)})

    def swap(event: dict[str, Any]) -> None:
        event.pop("i", None)
        event["b"] = True

    index = Index(SCHEMA)
    index.subscribe(1, "f = 0.5")
    for change, error in ((grow, RuntimeError), (dict.clear, RuntimeError), (swap, None)):
        value = Meddler(0.5)
        value.event, value.change = {"i": 1, "f": value, "s": "red"}, change
        for call in (index.match, index.match_array, lambda event: index.match_batch([event])):
            value.event.clear()
            value.event.update({"i": 1, "f": value, "s": "red"})
            if error:
                with pytest.raises(error, match="changed size"):
                    call(value.event)
            else:
                call(value.event)


@pytest.mark.parametrize("frozen", [0, 1, 200])
@pytest.mark.parametrize("late", [0, 1, 30])
def test_strings_with_and_without_labels(frozen: int, late: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A string has the same key natively: with a label in the base or in the overlay, or in a gap of either."""
    monkeypatch.setattr(codecs, "MAX_MEMO", 50)
    random = Random(frozen + late)

    def words(count: int) -> list[str]:
        return ["".join(random.choices("abé\uffff😀", k=random.randint(0, 4))) for _ in range(count)]

    keys = Keys(Schema({"s": "string"}))
    dictionary = keys.dictionaries[0]
    keys.admit({0: words(frozen)})
    dictionary.retaining(dictionary.column(pa.array(words(frozen) or [None], pa.large_string())))()
    for word in words(late):
        keys.admit({0: [word]})
    encoder = EventEncoder(keys)
    for word in words(400):
        found = int(encoder.one({"s": word}).low[0, 0])
        again = int(encoder.one({"s": word}).low[0, 0])
        dictionary.memo.clear()
        assert found == again == dictionary.key(word), word
        dictionary.memo.pop(word)
    for word in words(400):
        encoder.one({"s": word})
        assert len(dictionary.memo) <= 50


def test_lists_longer_than_a_piece() -> None:
    keys = keys_with_words()
    encoder = EventEncoder(Keys(Schema({"i": "int", "s": "string"})))
    rows = [{"i": n, "s": f"w{n % 50}"} for n in range(PIECE + 100)]
    points = encoder.many(rows, 10)
    assert points.high is points.low
    assert points.low[:, 0].tolist() == list(range(len(rows)))
    mixed = encoder.many([*rows, {"i": (1, 5)}], 10)
    assert mixed.intervals
    assert mixed.high[-1, 0] == 5
    assert np.array_equal(mixed.low[:-1], mixed.high[:-1])
    with pytest.raises(TableError, match=f"event {10 + len(rows)}: attribute 'i'"):
        encoder.many([*rows, {"i": "x"}], 10)
    assert EventEncoder(keys).many([], 0).low.shape == (0, len(SCHEMA))


# ---- ids


@pytest.fixture(autouse=True)
def _frozen_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small loads freeze their ids, as large ones do."""
    monkeypatch.setattr(catalog, "MIN_ARROW_ROWS", 10)


def filled(kind: type, matcher: str = "auto", frozen: int = 300, late: int = 40) -> tuple[Index, dict[Any, Any]]:
    """An index with subscriptions that are one box, several, none, and residuals; frozen ids and late ones."""
    index = Index({"a": "int", "s": "string"}, matcher)
    random, texts = Random(3), {}
    for n in range(frozen + late):
        low = random.randint(0, 40)
        texts[kind(n) if kind is int else f"é-{n}" if n % 7 else f"id{n}"] = (
            random.choice(
                [
                    f"a BETWEEN {low} AND {low + 30}",
                    f"a < {low} OR a > {low + 20} OR a = {low + 3}",
                    f"a IN ({low}, {low + 1}, {low + 2}) OR s LIKE '%x'",
                    "s LIKE '%x%'",
                    f"a >= {low} AND s LIKE '%y' OR a = 7",
                ]
            ),
            random.randint(0, 9),
        )
    items = list(texts.items())
    columns = {"id": [i for i, _ in items[:frozen]], "where": [w for _, (w, _) in items[:frozen]]}
    index.load(pa.table(columns | {"priority": pa.array([p for _, (_, p) in items[:frozen]], pa.uint8())}))
    for id, (where, priority) in items[frozen:]:
        index.subscribe(id, where, priority=priority)
    return index, texts


@pytest.mark.parametrize("kind", [int, str])
@pytest.mark.parametrize("matcher", ["auto", "brute"])
def test_lists_arrays_and_limits_agree(kind: type, matcher: str) -> None:
    index, texts = filled(kind, matcher)
    oracle, _ = filled(kind, "brute")
    gone = list(texts)[::5]
    for one in (index, oracle):
        one.unsubscribe_many(gone)
        for id in gone[::3]:
            one.subscribe(id, *texts[id][:1], priority=texts[id][1])  # a new slot for an old number
    for a in range(0, 70, 9):
        for s in ("yx", "zy", None):
            event = {"a": a, "s": s}
            all_ = oracle.match(event)
            found = index.match(event)
            levels = [texts[id][1] for id in found]
            assert len(found) == len(set(found))
            assert set(found) == set(all_)
            assert levels == sorted(levels, reverse=True)
            array = index.match_array(event)
            assert array.type == (pa.int64() if kind is int else pa.large_string())
            array.validate(full=True)
            assert array.to_pylist() == found
            assert index.match_batch([{}, event])[1] == found
            for limit in (0, 1, 3, 10, len(found), 10**30):
                some = index.match(event, limit=limit)
                assert len(some) == min(limit, len(found)) == len(set(some))
                assert set(some) <= set(found)
                assert [texts[id][1] for id in some] == levels[:limit]
                assert len(index.match_array(event, limit=limit)) == len(some)
    with pytest.raises(ValueProblem, match="limit is a whole number"):
        index.match_array({}, limit=-1)


def test_ids_without_matches_and_without_text() -> None:
    index = Index({"a": "int"})
    assert index.match({"a": 1}) == []
    assert index.match_array({"a": 1}).type == pa.int64()
    index.subscribe("", "a = 1")
    assert index.match({"a": 1}) == [""]
    assert index.match_array({"a": 1}).to_pylist() == [""]
    assert index.match_array({"a": 2}).type == pa.large_string()
    index = Index({"a": "int"})
    index.load(pa.table({"id": ["", "b"] * 600 + ["c"], "where": ["a = 1"] * 1201}))
    assert sorted(index.match_array({"a": 1}).to_pylist()) == ["", "b", "c"]


@pytest.mark.parametrize("ordered", [True, False])
def test_frozen_ids_are_found(ordered: bool) -> None:
    """Among sorted and unsorted ids, texts by code point, dead slots with the same id in between."""
    texts = ["", "a", "ab", "b", "z", "é", "éa", "\uffff", "\U0001f600", *(f"n{n}" for n in range(40))]
    numbers = [-(2**63), -5, 0, 3, 2**62, *range(100, 140)]
    for ids, others in ((texts, ["aa", "\ud800", "n", "\U0001f601", Text("c")]), (numbers, [1, 2**63 - 1, -6, 99])):
        ids = sorted(ids) if ordered else Random(1).sample(ids, len(ids))
        index = Index({"a": "int"})
        for _ in range(2):  # the second time all of them are replaced
            index.load(pa.table({"id": ids, "where": ["a = 1"] * len(ids)}))
        assert all(id in index for id in ids)
        assert not any(id in index for id in others)
        assert index.priority(Text(ids[0]) if isinstance(ids[0], str) else np.int64(ids[0])) == 4
        for id in ids[::2]:
            index.unsubscribe(id)
        assert [id in index for id in ids] == [n % 2 == 1 for n in range(len(ids))]
        assert sorted(index.match({"a": 1})) == sorted(ids[1::2])


def test_ids_that_are_row_numbers() -> None:
    """They are not read, but computed: until one comes that breaks the row."""
    index = Index({"a": "int"})
    index.load(pa.table({"id": np.arange(1000, 1100), "where": [f"a <= {n}" for n in range(100)]}))
    assert sorted(index.match_array({"a": 90}).to_pylist()) == list(range(1090, 1100))
    index.subscribe(5, "a = 90")
    index.unsubscribe(1095)
    expected = [5, *range(1090, 1095), *range(1096, 1100)]
    for _ in range(2):
        assert sorted(index.match_array({"a": 90}).to_pylist()) == sorted(index.match({"a": 90})) == expected
        index._held.commit(index._state.catalog.compact())


def test_two_sided_events_as_arrays() -> None:
    index = Index({"a": "int", "age": Attribute("int", role="information")})
    index.subscribe("young", "a > 1", about={"age": 20})
    index.subscribe("old", "a > 1", about={"age": 70})
    assert index.match_array({"a": 2}, "age > 30").to_pylist() == ["old"]
    assert sorted(index.match_array({"a": 2}).to_pylist()) == ["old", "young"]


def test_one_complicated_subscription_leaves_no_trace(tmp_path: Any) -> None:
    """When the last subscription that is not one exact box has gone, the short way is open again."""
    index = Index({"a": "int", "s": "string"})
    for n in range(20):
        index.subscribe(n, f"a > {n}")
    for where in ("a = 1 OR s = 'x'", "s LIKE '%x%y%'", "s LIKE '%x' OR a IN (1, 5)"):
        index.subscribe(99, where)
        assert not index._state.catalog.plain
        index.subscribe(99, "a = 1")
        assert index._state.catalog.plain
        index.subscribe(98, where)
        index.save(tmp_path / "snapshot")
        again = Index.open(tmp_path / "snapshot")
        for one in (index, again):
            assert not one._state.catalog.plain
            one.unsubscribe(98)
            assert one._state.catalog.plain
            assert sorted(one.match({"a": 1})) == [0, 99]
    index.load(pa.table({"id": [200, 201, 202], "where": ["a = 1", "a = 1 OR a = 9", "s LIKE '%x%y%'"]}))
    index.unsubscribe_many([200, 201])
    assert not index._state.catalog.plain
    with pytest.warns(NeverMatches):
        index.subscribe(202, "a < 1 AND a > 1")  # no box at all
    assert index._state.catalog.plain
    assert sorted(index.match({"a": 1})) == [0, 99]


def test_a_batch_is_encoded_once_unless_the_index_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    index = Index({"s": "string"})
    for n in range(8):
        index.subscribe(n, f"s = 'w{n}'")
    rows = [{"s": f"w{n % 8}"} for n in range(40)]
    calls, many = [], index._state.encoder.many
    monkeypatch.setattr(index._state.encoder, "many", lambda *args: calls.append(args) or many(*args))
    encoded = matching._Encoded(index._held, rows)
    parts = [encoded.points(0, 10), encoded.points(10, 10)]
    assert len(calls) == 1
    index.unsubscribe(3)
    index._changing.forget_words()  # now the string has no label: other keys
    parts += [encoded.points(20, 10), encoded.points(30, 10)]
    assert len(calls) == 2
    fresh = many(rows)
    assert np.array_equal(np.concatenate([part.low for part in parts[2:]]), fresh.low[20:])
    assert not np.array_equal(parts[0].low, fresh.low[:10])
    assert len(index.match_batch(rows)) == 40
    assert index.match_batch(rows)[3] == []
    assert index.match_batch(rows)[2] == [2]


# ---- memory and threads


def test_no_reference_is_lost_or_kept() -> None:
    index, _ = filled(str, frozen=60)
    text, number, when, name = "a string of its own", 10**15, datetime(2026, 1, 31), "".join(["a"])
    good = {name: number, "s": text}
    bad = [
        {"a": text},
        {"nope": number},
        {text: when},
        {"s": when},
        {"a": (number, number)},
        {"s": Text(text)},
    ]
    held = [text, number, when, name, None, True]

    def run() -> None:
        for event in [good, *bad]:
            for call in (index.match, index.match_array, lambda e: index.match_batch([e, good])):
                outcome(call, event)

    run()
    gc.collect()
    before = [sys.getrefcount(one) for one in held]
    for _ in range(50):
        run()
    gc.collect()
    after = [sys.getrefcount(one) for one in held]
    assert all(abs(one - two) < 40 for one, two in zip(before, after, strict=True)), (before, after)
    assert before[:4] == after[:4]


def test_an_index_is_freed() -> None:
    index, _ = filled(str, frozen=300)
    for n in range(100):
        index.match({"a": n})
    late = index.match({"a": 7})[-1]
    kept = [weakref.ref(one) for one in (index._state.keys, index._state.catalog, index._state.encoder)]
    count = sys.getrefcount(late)
    del index
    gc.collect()
    assert [one() for one in kept] == [None] * len(kept)
    assert sys.getrefcount(late) < count


def test_strings_are_kept_once_many_were_asked_for() -> None:
    index, _ = filled(str, frozen=300, late=3)
    size = index.nbytes()["catalog"]
    first = index.match({"a": 30, "s": "x"})
    for _ in range(3):
        assert index.match({"a": 30, "s": "x"}) == first
    assert index.nbytes()["catalog"] > size
    assert all(one is two for one, two in zip(index.match({"a": 30}), index.match({"a": 30}), strict=True))


def test_threads_match_while_another_changes() -> None:
    """Every answer is one that the index gave at some moment; events are changed by other threads meanwhile."""
    index = Index({"a": "int", "s": "string"})
    index.load(pa.table({"id": [f"base{n}" for n in range(1100)], "where": ["a = 1"] * 1100}))
    base = {f"base{n}" for n in range(1100)}
    shared: dict[str, Any] = {"a": 1, "s": "w1"}
    problems: list[BaseException] = []
    done = threading.Event()

    def match() -> None:
        try:
            while not done.is_set():
                found = index.match({"a": 1, "s": "w3"})
                assert set(found) >= base
                assert len(found) == len(set(found))
                assert base <= set(index.match_array({"a": 1}).to_pylist())
                assert len(index.match({"a": 1}, limit=5)) == 5
                assert base <= set(index.match_batch([{"s": "w5"}, {"a": 1}])[1])
                outcome(index.match, shared)
                outcome(index.match_batch, [shared] * 5)
        except BaseException as problem:
            problems.append(problem)

    def meddle() -> None:
        random = Random(5)
        while not done.is_set():
            shared.clear()
            shared.update({random.choice("as"): random.choice([1, "w1", np.float64(1), (1, 2), Decimal(1)])})

    threads = [threading.Thread(target=one) for one in (match, match, meddle)]
    for thread in threads:
        thread.start()
    try:
        for n in range(150):
            index.subscribe(f"new{n % 50}", f"a = 1 AND s = 'w{n}' OR s LIKE '%{n}'", priority=n % 10)
            if n % 3 == 0:
                index.unsubscribe(f"new{n % 50}")
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not problems, problems


def test_errors_are_of_hitbox() -> None:
    index = Index({"a": "int", "s": "string"})
    for event in [{"a": 2**70}, {"a": True}, {"s": "\ud800"}, {"s": "a\0"}, {"b": 1}, None, {"a": [1]}]:
        for call in (index.match, index.match_array, lambda e: index.match_batch([e])):
            with pytest.raises(HitboxError):
                call(event)


# ---- documents

NESTED = {
    "order": {"sku": "string", "customer": {"city": "string", "age": "int"}},
    "tags": "string[]",
    "scores": "float[]",
    "counts": "int[]",
    "flags": "bool[]",
    "items": [{"sku": "string"}],
    "price": "float",
    "about": Attribute("int", role="information"),
}


def random_document(rng: Random) -> dict[str, Any]:
    """Fields of an order, in objects or by dotted names; some are wrong, unknown or given twice."""
    strange = [
        MappingProxyType({"city": "x"}),
        OrderedDict(city="y"),
        {"city": 5},
        {"unknown": 1},
        {"a.b": 1},
        3,
        {1: 2},
    ]
    customer = rng.choice([{"city": "Paris"}, {"age": 3, "city": "Rome"}, {}, None, rng.choice(strange)])
    order = rng.choice(
        [{"sku": "a", "customer": customer}, {"customer": customer}, {"customer.city": "Oslo"}, None, {}]
    )
    lists = [
        [],
        ["a", None],
        ["a", "b\0"],
        [1, 2],
        [1.5, math.nan],
        [True],
        ("a",),
        None,
        "text",
        [Text("t")],
        [2**70],
        {"a"},
    ]
    fields: dict[str, Any] = {
        "order": order,
        "order.sku": rng.choice(["z", None, 5]),
        "order.customer": customer,
        "order.customer.city": rng.choice(["Bern", None]),
        "tags": rng.choice(lists),
        "scores": rng.choice(lists),
        "counts": rng.choice(lists),
        "flags": rng.choice(lists),
        "items": rng.choice([[], [{"sku": "a"}, None], [{"sku": 4}], None]),
        "price": rng.choice([1, 2.5, None, (1, 2)]),
        "about": 1,
        "unknown": 1,
        "new": rng.choice([{"price": 3}, 7]),
    }
    weights = [6, 1, 1, 1, 4, 2, 2, 2, 2, 5, 0.2, 1, 0.2]
    return {name: fields[name] for name in dict.fromkeys(rng.choices(list(fields), weights, k=rng.randint(1, 5)))}


@pytest.mark.parametrize("extra", ["ignore", "error", None])
def test_documents_have_the_keys_that_the_codecs_say(extra: Any) -> None:
    rng = Random(4)
    keys = Keys(Schema(NESTED, extra=extra))
    encoder = EventEncoder(keys)
    keys.admit({keys.schema.number("order.sku"): {"a", "z"}, keys.schema.number("order.customer.city"): {"Paris"}})
    good = 0
    for _ in range(4000):
        event = random_document(rng)
        try:
            expected: Any = events.event_keys(keys, event)
        except HitboxError:  # of two that are wrong, either may be named
            with pytest.raises(HitboxError):
                encoder.one(event)
            continue
        good += 1
        low = encoder.one(event).low[0]
        assert {n: low[n] for n in range(len(keys.schema))} == {
            n: expected.get(n, (MISSING,))[0] for n in range(len(keys.schema))
        }, event
    assert good > 500


def test_plain_documents_are_encoded_without_python(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = Keys(Schema(NESTED, extra="ignore"))
    monkeypatch.setattr(events, "event_keys", None)
    monkeypatch.setattr(events, "value_keys", None)
    encoder = EventEncoder(keys)
    event = {"order": {"sku": "a", "customer": {"age": 4, "other": 1}}, "tags": ["a", "b", None], "counts": [], "x": {}}
    low = encoder.many([event, event]).low
    found = {name: int(low[1, keys.schema.number(name)]) for name in keys.schema.names}
    assert (found["order.customer.age"], found["tags"], found["counts"]) == (4, 3, 0)
    assert found["order.customer.city"] == MISSING != found["order.sku"]
