"""Batches with events that do not fit: an error, null values, or rows that come back; the same for lists and tables."""

from __future__ import annotations

import random
from contextlib import suppress
from enum import Enum
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import hitbox
from hitbox import Index, Limits, Schema
from hitbox.encoding.fitting import fitted
from hitbox.errors import HitboxError, TableError, TooExpensive, UnknownAttribute, ValueProblem
from hitbox.index import matching
from hitbox.index.guarded_state import GuardedState
from hitbox.index.sharded import Shards

SCHEMA: dict[str, Any] = {
    "qty": "int",
    "price": "float",
    "name": "string",
    "at": "timestamp",
    "order": {"city": "string", "lines": [{"n": "int"}]},
    "tags": "string[]",
}
TEXTS = {
    "all": "TRUE",
    "some": "qty > 2",
    "none": "qty IS NULL",
    "gone": "order.city IS NULL",
    "missing": "order.city IS MISSING",
    "name": "LOWER(name) = 'x' OR price BETWEEN 1 AND 2",
    "list": "ANY(tags) = 'a'",
    "lines": "EXISTS(order.lines WHERE n = 1)",
    "late": "at > TIMESTAMP '2026-01-01 00:00:00'",
    "two": "qty > 2 AND name = 'x'",
}


def made(texts: dict[str, str] = TEXTS, schema: Any = SCHEMA, **options: Any) -> Index:
    index = Index(schema, **options)
    for id, text in texts.items():
        index.subscribe(id, text, priority=len(id))
    return index


def alone(index: Index, event: Any, where: str | None = None) -> list[Any] | str:
    """What `match` says of one event: its subscriptions, or what is wrong."""
    try:
        return sorted(index.match(event, where))
    except HitboxError as problem:
        return str(problem)


def as_lists(matches: Any) -> list[list[Any]]:
    return [sorted(matches[event]) for event in range(len(matches))]


BAD: list[Any] = [
    {"qty": 3.5, "name": "x"},
    {"qty": 2**70, "order": {"city": "Paris"}},
    {"price": 2**53 + 1, "qty": 5},
    {"name": "a\0", "qty": 5},
    {"name": b"x"},
    {"at": "yesterday", "tags": ["a"]},
    {"tags": ["a", 3], "name": "x"},
    {"tags": "a"},
    {"order": 5, "qty": 3},
    {"order": {"city": 5, "lines": [{"n": 1}]}},
    {"order": {"lines": [{"n": "x"}], "city": "Rome"}},
    {"order": {"ctiy": "Rome"}, "qty": 3},
    {"pryce": 3, "qty": 4},
    {"quantity": 3},
    {"price": (2, 1)},
    {"price": {"low": 1}, "name": "X"},
    {"price": [1.5]},
    {"new": {"qty": 3.5, "name": "x"}, "old": {"qty": 1}},
    {"new": {"qty": 3}, "old": {"qty": 3.5}},
]
"""None of them fits."""
GOOD: list[Any] = [{}, {"qty": 3}, {"qty": None, "name": "X"}, {"order": {"city": None}}, {"price": (1.5, 3)}]


@pytest.mark.parametrize("matcher", ["hitbox", "brute"])
def test_bad_events_come_back_and_the_others_match_as_ever(matcher: str) -> None:
    index = made(matcher=matcher)
    events = [event for pair in zip(BAD, GOOD * 4, strict=False) for event in pair]
    with pytest.raises(TableError, match=r"event 0: attribute 'qty': 3\.5 is a float; an int attribute takes whole"):
        index.match_batch(events)
    found = index.match_batch(events, on_error="return")
    verdicts = [alone(index, event) for event in events]
    assert found.errors == [(number, says) for number, says in enumerate(verdicts) if isinstance(says, str)]
    assert [number for number, _ in found.errors] == list(range(0, len(events), 2))
    assert as_lists(found) == [[] if isinstance(says, str) else says for says in verdicts]
    assert found[1] == index.match(events[1]), "most urgent first"
    assert index.match_batch(GOOD).errors == index.match_batch(GOOD, on_error="return").errors == []


@pytest.mark.parametrize(
    ("event", "left"),
    [
        ({"qty": 3.5, "name": "x"}, {"qty": None, "name": "x"}),
        ({"order": 5, "qty": 3}, {"order": None, "qty": 3}),
        ({"order": {"city": 5, "lines": [{"n": 1}]}}, {"order": {"city": None, "lines": [{"n": 1}]}}),
        ({"order": {"lines": [{"n": "x"}], "city": "Rome"}}, {"order": {"lines": None, "city": "Rome"}}),
        ({"order": {"ctiy": "Rome"}, "qty": 3}, {"order": {}, "qty": 3}),
        ({"pryce": 3, "qty": 4}, {"qty": 4}),
        ({"quantity": 3}, {}),
        ({"quantity": 3, "qty": 4.5}, {"quantity": 3, "qty": None}),
        ({"note": {"a": 1}, "qty": 4.5, "pryce": 2, "x": 1}, {"note": {"a": 1}, "qty": None, "x": 1}),
        ({"order": {"town": "Rome", "city": 5}}, {"order": {"town": "Rome", "city": None}}),
        ({"price": (2, 1)}, {"price": None}),
        ({"price": {"low": 1}, "name": "X"}, {"price": None, "name": "X"}),
        ({"tags": ["a", 3]}, {"tags": None}),
        ({1: 2, "qty": 3}, {"qty": 3}),
        (
            {"new": {"qty": 3.5, "name": "x"}, "old": {"qty": 1}},
            {"new": {"qty": None, "name": "x"}, "old": {"qty": 1}},
        ),
        ({"new": {"qty": 3}, "old": {"qty": 3.5}}, {"new": {"qty": 3}, "old": {"qty": None}}),
        ({"order": {"city": "Rome"}, "order.city": "Paris"}, {}),
        (5, {}),
    ],
)
def test_what_does_not_fit_is_null(event: Any, left: dict[str, Any]) -> None:
    index = made()
    assert fitted(index.match, event) == left
    found = index.match_batch([event, {"qty": 3}], on_error="null")
    assert as_lists(found) == [sorted(index.match(left)), sorted(index.match({"qty": 3}))]
    assert found.errors == [(0, alone(index, event))]


def test_an_event_that_is_too_deep_or_wide_is_null_soon() -> None:
    deep: dict[str, Any] = {}
    inner = deep
    for _ in range(5_000):
        inner["a"] = inner = {}
    wide = {f"a{number}": number for number in range(20_000)} | {"qty": 3}
    wrong = {f"a{number}": number for number in range(20_000)} | {"qty": 3.5, "order": {"city": 5}}
    found = made().match_batch([deep, wide, wrong], on_error="null")
    assert as_lists(found) == as_lists(made().match_batch([{}, {"qty": 3}, {}]))
    open_index = made({"a": "qty = 3"}, None)
    found = open_index.match_batch([deep | {"qty": 3}, {"qty": 3}], on_error="null")
    assert as_lists(found) == [["a"], ["a"]]
    assert [number for number, _ in found.errors] == [0]


TABLE = {
    "qty": pa.array([3.5, 3.0, None, 2.0**70, float("nan"), 4.0]),
    "price": pa.array([2**53 + 1, 1, None, 1, 2**53 + 1, 3]),
    "name": pa.array(["x", "a\0", None, "X", "x", "x"]),
    "at": pa.array(["2026-02-01", "soon", None, "2026-02-01", "2025-01-01", "2026-02-01"]),
    "order": pa.array([None, {"city": None}, {"city": "a\0"}, {"city": "Rome"}, None, {"city": "Rome"}]),
    "tags": pa.array([["a"], ["b", "a\0"], [], None, ["a"], ["a"]]),
    "other": pa.array([1, 2, 3, 4, 5, 6]),
}


def as_event(table: pa.Table, row: int) -> dict[str, Any]:
    found = table.slice(row, 1).to_pylist()[0]
    del found["other"]
    if found["order"] is None:
        del found["order"]
    return found


@pytest.mark.parametrize("chunked", [False, True])
def test_a_row_of_a_table_is_treated_as_the_same_event_in_a_list(chunked: bool) -> None:
    index, table = made(), pa.table(TABLE)
    if chunked:
        table = pa.concat_tables([table.slice(0, 2), table.slice(2)])
    with pytest.raises(TableError, match=r"column 'qty', row 0: 3\.5 is a float"):
        index.match_batch(table)
    rows = [as_event(table, row) for row in range(6)]
    for on_error in ("null", "return"):
        found, expected = (index.match_batch(events, on_error=on_error) for events in (table, rows))
        assert as_lists(found) == as_lists(expected)
        assert found.errors == expected.errors
        assert [number for number, _ in found.errors] == [0, 1, 2, 3, 4]
    open_index = made({"n": "name = 'x'", "q": "qty > 3", "i": "other > 0"}, None)
    found = open_index.match_batch(table, on_error="null")
    assert as_lists(found) == [["i", "n", "q"], ["i"], ["i"], ["i", "q"], ["i", "n"], ["i", "n", "q"]]
    assert [number for number, _ in found.errors] == [1]
    assert as_lists(open_index.match_batch(table, on_error="return"))[1] == []


def test_intervals_and_images_in_tables() -> None:
    index = made({"in": "price BETWEEN 1 AND 2", "none": "price IS NULL"})
    ends = pa.table({"price_low": [1.5, 3.0, None, 1.0, None], "price_high": [1.6, 1.0, None, None, 2.0]})
    struct = pa.table({"price": pa.array([{"low": 1.5, "high": 1.6}, {"low": 3.0, "high": 1.0}, None])})
    found = index.match_batch(ends, on_error="null")
    assert as_lists(found) == [["in"], ["none"], ["none"], ["none"], ["none"]]
    assert [number for number, _ in found.errors] == [1, 3, 4]
    found = index.match_batch(struct, on_error="return")
    assert as_lists(found) == [["in"], [], ["none"]]
    assert found.errors == [(1, "attribute 'price': the ends of the interval (3.0, 1.0) are swapped: low comes first")]
    images = pa.table({"new": [{"price": 2}, {"price": 2}], "old": [{"price": 1}, {"price": 2**53 + 1}]})
    index.subscribe("grew", "NEW.price > OLD.price")
    assert as_lists(index.match_batch(images, on_error="null")) == [["grew", "in"], ["in"]]
    assert as_lists(index.match_batch(images, on_error="return")) == [["grew", "in"], []]


def test_text_that_is_not_utf8() -> None:
    def texts(kind: Any, *raw: bytes) -> pa.Array:
        ends = np.cumsum([0, *map(len, raw)]).astype(np.int32)
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(raw))]
        return pa.Array.from_buffers(pa.string(), len(raw), buffers).cast(kind, safe=False)

    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), texts(pa.string(), b"\xff", b"a"))
    for schema in (SCHEMA, None):
        index = made(
            {"name": "name = 'x'", "list": "ANY(tags) = 'a'", "at": "at > TIMESTAMP '2026-01-01 00:00:00'"}, schema
        )
        for column, event in ((texts(pa.string(), b"\xff", b"x"), ["name"]), (texts(pa.string(), b"x", b"\xff"), [])):
            table = pa.table({"name": column})
            with pytest.raises(TableError, match=r"row [01]: the text is not UTF-8"):
                index.match_batch(table)
            found = index.match_batch(table, on_error="null")
            assert as_lists(found)[1] == event
            assert [says for _, says in found.errors] == ["attribute 'name': the text is not UTF-8"]
        found = index.match_batch(pa.table({"tags": lists}), on_error="return")
        assert as_lists(found) == [[], ["list"]]
        assert len(found.errors) == 1
    moments = pa.table({"at": texts(pa.string(), b"\xff", b"2026-02-01")})
    found = made().match_batch(moments, on_error="return")
    assert [number for number, _ in found.errors] == [0]


SYMMETRIC = {"price": "float", "age": {"type": "int", "role": "information"}}


def test_the_predicate_of_an_event() -> None:
    index = Index(SYMMETRIC)
    index.subscribe("old", "price > 1", about={"age": 50})
    index.subscribe("young", "price > 1", about={"age": 20})
    where = ["age > 30", "age >", None, "years > 3", "age < 30", 7, "age > 30"]
    events = [{"price": price} for price in (2, 2, 2, 2, 2, 2, "x")]
    for on_error in ("null", "return"):
        for batch in (events, pa.table({"price": [2, 2, 2, 2, 2, 2, 2**53 + 1]})):
            found = index.match_batch(batch, where, on_error=on_error)
            assert as_lists(found) == [["old"], [], ["old", "young"], [], ["young"], [], []], "unknown is not true"
            assert [number for number, _ in found.errors] == [1, 3, 5, 6]
            assert found.errors[0][1].startswith("its predicate: ")
            assert found.errors[2][1] == "`where` of an event is a text or None, not a int"
    with pytest.raises(HitboxError, match="unknown attribute 'years'"):
        index.match_batch(events, "years > 3", on_error="null")
    with pytest.raises(TableError, match="1 texts in `where` for 7 events"):
        index.match_batch(events, ["age > 3"], on_error="null")


LISTS: dict[str, Any] = {"a": [{"x": "int"}], "b": [{"y": "int"}], "n": "int"}
PAIRS = "EXISTS(a WHERE EXISTS(b WHERE y * x = -5))"
LONG = {"a": [{"x": number} for number in range(500)], "b": [{"y": number} for number in range(500)], "n": 1}


@pytest.mark.parametrize("table", [False, True])
def test_a_subscription_that_is_too_expensive(table: bool) -> None:
    index = made({"pairs": PAIRS, "one": "n = 1"}, LISTS, limits=Limits(match_steps=5_000))
    events: Any = [{"a": None, "b": None, "n": 1}, LONG, {"a": [{"x": -5}], "b": [{"y": 1}], "n": 2}, LONG]
    if table:
        events = pa.Table.from_pylist(events)
    found = index.match_batch(events, on_error="null")
    assert as_lists(found) == [["one"], ["one"], ["pairs"], ["one"]], "it does not match, the others do"
    assert found.errors == [(1, str(TooExpensive("pairs", None, 5_000))), (3, str(TooExpensive("pairs", None, 5_000)))]
    found = index.match_batch(events, on_error="return")
    assert as_lists(found) == [["one"], [], ["pairs"], []], "the event comes back as a whole"
    assert [number for number, _ in found.errors] == [1, 3]
    with pytest.raises(ValueProblem, match="the result says what was too expensive: omit `on_expensive`"):
        index.match_batch(events, on_error="null", on_expensive=print)


def test_events_keep_their_numbers_when_a_batch_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hitbox.index.matching, "CHUNK", 3)
    monkeypatch.setattr(hitbox.index.matching, "FIRST_CHUNK", 2)
    index = made({"a": "qty > 4", "b": "qty < 6"})
    values: list[Any] = [2.5 if number % 4 == 2 else number for number in range(11)]
    expected = [[id for id, holds in (("a", v > 4), ("b", v < 6)) if holds] if v != 2.5 else [] for v in values]
    for events in ([{"qty": value} for value in values], pa.table({"qty": pa.array(values, pa.float64())})):
        for on_error in ("null", "return"):
            found = index.match_batch(events, on_error=on_error)
            assert as_lists(found) == expected
            assert [number for number, _ in found.errors] == [2, 6, 10]


def test_bad_options_and_columns_stay_errors() -> None:
    index = made()
    with pytest.raises(ValueProblem, match="on_error is 'raise', 'null' or 'return', not 'ignore'"):
        index.match_batch([], on_error="ignore")
    for rows in (0, 2):
        with pytest.raises(TableError, match=r"column 'qty'.*is not a column of numbers"):
            index.match_batch(pa.table({"qty": pa.array(["x"] * rows, pa.string())}), on_error="null")
    assert len(index.match_batch([], on_error="return")) == 0


def test_parts_of_a_snapshot_agree_on_what_does_not_fit(tmp_path: Any) -> None:
    index = made({"pairs": PAIRS, "one": "n = 1"}, LISTS)
    index.save(tmp_path)
    shards = Shards.open(tmp_path)
    shards.parts.append(shards.parts[0])
    table = pa.table({"n": pa.array([1, 3.5, 1.0])})
    found, priority = shards.match_batch(table, on_error="return")
    assert as_lists(found) == [["one", "one"], [], ["one", "one"]]
    assert [number for number, _ in found.errors] == [1]
    assert len(priority) == len(found.ids)


def test_random_events() -> None:
    rng = random.Random(5)
    index = made()
    choices: dict[str, list[Any]] = {
        "qty": [3, 3.0, 3.5, None, "x", 2**64],
        "price": [1.5, 2**53 + 1, None, (1, 2), (2, 1), "x"],
        "name": ["x", "a\0", None, 5],
        "tags": [["a"], None, "a", ["b", 1]],
        "order": [None, {"city": "Rome"}, {"city": 5}, 5, {"lines": [{"n": 1}]}, {"lines": [{"m": 1}], "city": "x"}],
        "else": [1],
    }
    events = []
    for _ in range(300):
        names = rng.sample(list(choices), rng.randint(0, 4))
        events.append({name: rng.choice(choices[name]) for name in names})
    returned, nulled = (index.match_batch(events, on_error=on_error) for on_error in ("return", "null"))
    assert returned.errors == nulled.errors
    bad = dict(returned.errors)
    assert 50 < len(bad) < 250
    for number, event in enumerate(events):
        says = alone(index, event)
        assert bad.get(number, "") == (says if isinstance(says, str) else "")
        assert sorted(returned[number]) == ([] if isinstance(says, str) else says)
        assert sorted(nulled[number]) == alone(index, fitted(index.match, event))


@pytest.mark.parametrize("name", [None, 1, True, b"n", 1.5, ("n",)])
@pytest.mark.parametrize("matcher", ["hitbox", "brute"])
def test_names_that_are_no_texts(name: Any, matcher: str) -> None:
    """In an event, an object, objects of a list, and both images. Where `extra` says so they are other fields."""
    texts = {"a": "qty > 2", "b": "EXISTS(order.lines WHERE n = 1)", "c": "OLD.qty = 3"}
    events: list[Any] = [
        {"qty": 3, name: 1},
        {"qty": 3, "order": {name: "Paris"}},
        {"qty": 3, "order": {"city": "Paris", name: 1}},
        {"qty": 3, "order": {"lines": [{name: 1}]}},
        {"new": {"qty": 3, name: 1}, "old": {"qty": 3}},
        {"new": {"qty": 3}, "old": {"order": {"lines": [{"n": 1, name: 1}]}, "qty": 3}},
    ]
    for extra in (None, "error"):
        index = made(texts, Schema(SCHEMA, extra), matcher=matcher)
        for event in events:
            with pytest.raises(UnknownAttribute, match="the name of a field is a text, not "):
                index.match(event)
        returned, nulled = (index.match_batch(events, on_error=how) for how in ("return", "null"))
        assert as_lists(returned) == [[]] * len(events)
        assert as_lists(nulled) == [["a"]] * 4 + [["a", "c"]] * 2
        assert [number for number, _ in returned.errors] == [number for number, _ in nulled.errors] == list(range(6))
    for index in (made(texts, Schema(SCHEMA, "ignore"), matcher=matcher), made(texts, None, matcher=matcher)):
        assert as_lists(index.match_batch(events)) == [["a"]] * 4 + [["a", "c"]] * 2


def test_a_name_that_is_no_text_is_no_attribute() -> None:
    index = made({"a": '"order.None" IS NOT MISSING OR "order.1" = 1'}, {"order": {"None": "int", "1": "int"}})
    assert index.match({"order": {"None": None, "1": 2}}) == ["a"]
    for name in (None, 1):
        assert "the name of a field is a text" in alone(index, {"order": {name: 1}})


def test_a_name_may_be_an_enum_of_texts() -> None:
    class Field(str, Enum):  # noqa: UP042 - format() of its members is not their text
        ORDER = "order"
        CITY = "city"

    index = made({"a": "order.city = 'Paris'"}, {"order": {"city": "string"}})
    assert index.match({Field.ORDER: {Field.CITY: "Paris"}}) == ["a"]


@pytest.mark.parametrize("table", [False, True])
def test_a_bad_value_of_many_is_null_alone(table: bool) -> None:
    names = [f"a{number}" for number in range(900)]
    index = Index(dict.fromkeys(names, "int"))
    index.subscribe("other", "a3 = 3 AND a899 = 899")
    index.subscribe("bad", "a7 IS NULL AND a450 IS NULL")
    index.subscribe("nothing", "a3 IS NULL OR a899 IS NULL")
    event: dict[str, Any] = dict(zip(names, range(900), strict=True)) | {"a7": 3.5, "a450": 2.5}
    found = index.match_batch(pa.Table.from_pylist([event]) if table else [event], on_error="null")
    assert as_lists(found) == [["bad", "other"]]
    assert [number for number, _ in found.errors] == [0]


def test_the_first_ids_may_come_while_a_batch_is_matched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The index has no type of ids before."""
    monkeypatch.setattr(matching, "FIRST_CHUNK", 2)
    monkeypatch.setattr(matching, "CHUNK", 2)
    index, right = Index({"a": "int"}), matching.Matching._slots

    def slots(self: Any, *arguments: Any) -> Any:
        for number, found in enumerate(right(self, *arguments)):
            yield found
            if number == 1:
                index.subscribe("x", "a > 5")

    monkeypatch.setattr(matching.Matching, "_slots", slots)
    events = [{"a": number} for number in range(8)]
    assert as_lists(index.match_batch(events)) == [[]] * 6 + [["x"]] * 2
    other = Index({"a": "int"})
    index = other
    matches, priorities = other.match_with_priorities(events, None, 1)
    assert (as_lists(matches), priorities.tolist()) == ([[]] * 6 + [["x"]] * 2, [4, 4])


@pytest.mark.parametrize("on_error", ["null", "return"])
def test_what_a_new_subscription_asks_for_may_not_fit(on_error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interval that nobody asks for is no error in an open index. A subscription asks for it after the events are
    sorted, or is refused, because this thread reads the index still."""
    index, right = Index(), matching.Sorter.__call__
    index.subscribe("y", "y > 1")

    def sort(self: Any, *arguments: Any) -> Any:
        found = right(self, *arguments)
        with suppress(HitboxError):
            index.subscribe("x", "x > 3")
        return found

    monkeypatch.setattr(matching.Sorter, "__call__", sort)
    for events in ([{"x": (1, 2), "y": 2}, {"y": 3}], pa.table({"x": [{"low": 1, "high": 2}, None], "y": [2, 3]})):
        assert as_lists(index.match_batch(events, on_error=on_error)) == [["y"], ["y"]]
        assert as_lists(index.match_with_priorities(events, None, 1, on_error=on_error)[0]) == [["y"], ["y"]]


def test_now_is_one_time_for_all_events_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where they are matched in parts: those of a table that fit, and the others."""
    times: set[Any] = set()
    monkeypatch.setattr(matching, "FIRST_CHUNK", 2)
    monkeypatch.setattr(matching, "CHUNK", 2)
    right = GuardedState.resolver
    monkeypatch.setattr(GuardedState, "resolver", lambda self, now, *more: times.add(now) or right(self, now, *more))
    index = made({"late": "at < NOW()"})
    for events in (
        [{"qty": 2.5 + number % 2 / 2} for number in range(6)],
        pa.table({"qty": [2.5, 3.0, 4.0, 1.5, 2.0]}),
    ):
        times.clear()
        index.match_batch(events, on_error="null")
        assert len(times) == 1


def test_on_error_is_a_text() -> None:
    for wrong in (np.array([1, 2]), ["null"], None):
        with pytest.raises(ValueProblem, match="on_error is 'raise', 'null' or 'return', not"):
            Index({"a": "int"}).match_batch([{"a": 1}], on_error=wrong)  # type: ignore[arg-type]
