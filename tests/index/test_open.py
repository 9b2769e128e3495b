"""Open indexes: no schema, attributes come from the predicates."""

from __future__ import annotations

import copy
import datetime as dt
import decimal
import json
import math
import pickle
import random
import warnings
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import hitbox
from hitbox import Index, Limits, language
from hitbox.errors import HitboxError, TypeProblem, UnknownAttribute, ValueProblem
from support.random_documents import SCHEMA, Writer, nested, random_image


def derived(index: Index) -> list[str]:
    return [one.text for one in index._state.keys.derived]


@pytest.mark.parametrize(("matcher", "seed"), [("hitbox", 0), ("hitbox", 1), ("brute", 2), ("counting", 3)])
def test_an_open_index_answers_as_a_declared_one(matcher: str, seed: int, tmp_path: Path) -> None:
    """Where events have the declared types, the two cannot differ. Left out is what a schema decides: which names of an
    EXISTS are those of the event, and that a difference of two attributes is one of times."""
    rng = random.Random(200 + seed)
    index, declared = Index(matcher=matcher), Index(SCHEMA)
    texts: dict[int, str] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hitbox.HitboxWarning)
        while len(texts) < 100:
            id, text = len(texts), Writer(rng).predicate(rng.randint(0, 2))
            if any(part in text for part in ("EXISTS", "until - at", "at - until")):
                continue
            texts[id] = text
            declared.subscribe(id, texts[id])
            index.subscribe(id, texts[id], priority=rng.randint(0, 9))
    images = [(random_image(rng), random_image(rng) if rng.random() < 0.5 else None) for _ in range(25)]
    events = [
        nested(rng, new) if old is None else {"new": nested(rng, new), "old": nested(rng, old)} for new, old in images
    ]
    index.save(tmp_path)
    others = [Index.open(tmp_path), pickle.loads(pickle.dumps(index)), copy.copy(index)]
    batch = index.match_batch(events)
    for number, event in enumerate(events):
        wanted = sorted(declared.match(event))
        found = sorted(index.match(event))
        assert found == wanted, [(texts[id], event) for id in set(found) ^ set(wanted)]
        assert sorted(batch[number]) == wanted
        for other in others:
            assert sorted(other.match(event)) == wanted
        some = rng.choice(list(texts))
        assert index.explain(event, some).matched == (some in wanted), texts[some]
    for id in list(texts)[::2]:
        index.unsubscribe(id)
    for event in events:
        assert sorted(index.match(event)) == [id for id in sorted(declared.match(event)) if id % 2]


def test_one_name_has_an_attribute_per_type() -> None:
    index = Index()
    index.subscribe("number", "x = 1")
    index.subscribe("half", "x < 1.5")
    index.subscribe("string", "x = '1'")
    index.subscribe("bool", "x")
    index.subscribe("moment", "x > TIMESTAMP '2026-01-01'")
    index.subscribe("there", "x IS NOT NULL")
    index.subscribe("null", "x IS NULL")
    assert len(derived(index)) == 5
    cases: list[tuple[Any, list[str]]] = [
        (1, ["half", "number", "there"]),
        (1.0, ["half", "number", "there"]),
        (np.int8(1), ["half", "number", "there"]),
        (decimal.Decimal("1.0"), ["half", "number", "there"]),
        (1.25, ["half", "there"]),
        ("1", ["string", "there"]),
        (True, ["bool", "there"]),
        (False, ["there"]),
        (dt.datetime(2026, 5, 1), ["moment", "there"]),
        ("2026-05-01T10:00:00Z", ["moment", "there"]),
        ([1], ["there"]),
        ({"y": 1}, ["there"]),
        (float("nan"), ["null"]),
        (None, ["null"]),
    ]
    for value, wanted in cases:
        assert sorted(index.match({"x": value, "more": object()})) == wanted, value
    assert index.match({}) == ["null"]
    assert index.match(OrderedDict(x="1")) == ["string", "there"]


def test_whole_numbers_are_exact() -> None:
    index = Index()
    big = 2**53
    for number in range(big - 3, big + 4):
        index.subscribe(f"= {number}", f"n = {number}")
        index.subscribe(f"< {number}", f"n < {number}")
        index.subscribe(f">= {number}", f"n >= {number}")
        index.subscribe(f"<> {number}", f"n <> {number}")
        index.subscribe(f"in {number}", f"n IN (7, {number})")
        index.subscribe(f"between {number}", f"n BETWEEN 5 AND {number}")
        index.subscribe(f"outside {number}", f"n NOT BETWEEN 5 AND {number}")
    for value in [*range(big - 4, big + 5), float(big), float(big + 2), 7, -big - 1, 10**30]:
        wanted = {f"= {n}" for n in range(big - 3, big + 4) if value == n}
        wanted |= {f"< {n}" for n in range(big - 3, big + 4) if value < n}
        wanted |= {f">= {n}" for n in range(big - 3, big + 4) if value >= n}
        wanted |= {f"<> {n}" for n in range(big - 3, big + 4) if value != n}
        wanted |= {f"in {n}" for n in range(big - 3, big + 4) if value in (7, n)}
        wanted |= {f"between {n}" for n in range(big - 3, big + 4) if 5 <= value <= n}
        wanted |= {f"outside {n}" for n in range(big - 3, big + 4) if not 5 <= value <= n}
        assert set(index.match({"n": value})) == wanted, value


def test_two_attributes_compare_where_they_are_of_one_type() -> None:
    index = Index()
    index.subscribe("equal", "a = b")
    index.subscribe("other", "a <> b")
    index.subscribe("less", "a < b")
    index.subscribe("minus", "a - b > 1")
    for a, b, wanted in [
        (1, 1.0, ["equal"]),
        ("x", "x", ["equal"]),
        (1, 3, ["less", "other"]),
        (3, 1, ["minus", "other"]),
        ("1", 1, []),
        (True, 1, []),
        (None, 1, []),
        ([1], [1], []),
        (dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 2), ["less", "other"]),
    ]:
        assert sorted(index.match({"a": a, "b": b})) == wanted, (a, b)


def test_paths_lists_and_objects() -> None:
    index = Index()
    index.subscribe("city", "order.city = 'Paris'")
    index.subscribe("tag", "ANY(order.tags) = 'x'")
    index.subscribe("all", "ALL(scores) >= 3")
    index.subscribe("sku", "ANY(items.sku) = 'A'")
    index.subscribe("item", "EXISTS(items WHERE sku = 'A' AND price < 10 AND NEW.limit > price)")
    index.subscribe("many", "LENGTH(order.tags) > 1")
    index.subscribe("near", "DISTANCE(at.lat, at.lon, 48.85, 2.35) < 5000")
    event = {
        "order": {"city": "Paris", "tags": ["x", 3]},
        "scores": [3, 4.5],
        "items": [{"sku": "A", "price": 12}, {"sku": "B"}],
        "limit": 50,
        "at": {"lat": 48.86, "lon": 2.35},
    }
    assert sorted(index.match(event)) == ["all", "city", "many", "near", "sku", "tag"]
    event["items"] = [{"sku": "A", "price": 9}]
    assert "item" in index.match(event)
    assert sorted(index.match({"order.city": "Paris", "order.tags": ["x"], "scores": ["3"]})) == ["city", "tag"]
    assert index.match({"scores": []}) == ["all"]


@pytest.mark.parametrize("matcher", ["hitbox", "brute"])
def test_lists_inside_lists_are_one_list(matcher: str) -> None:
    texts = [
        "ANY(tags) = 'b'",
        "LENGTH(tags) = 3",
        "ALL(tags) >= 'a'",
        "ANY(items.sku) = 'B'",
        "EXISTS(items WHERE sku = 'B' AND q < 3)",
        "EXISTS(items WHERE ANY(parts) > 6)",
        "LENGTH(items) = 2",
        "ANY(items.parts) = 7",
        "NOT EXISTS(items WHERE sku = 'C')",
    ]
    index = Index(matcher=matcher)
    for number, text in enumerate(texts):
        index.subscribe(number, text)
    flat = {"tags": ["a", "b", "c"], "items": [{"sku": "A", "parts": [7, 8]}, {"sku": "B", "q": 2, "parts": []}]}
    nested = {
        "tags": [["a", ["b"]], [[["c"]]]],
        "items": [[flat["items"][0] | {"parts": [[7], [8]]}, *flat["items"][1:]]],
    }
    for event in (flat, nested):
        assert sorted(index.match(event)) == list(range(len(texts)))
        assert all(index.explain(event, number).matched for number in range(len(texts)))
    assert [sorted(ids) for ids in index.match_batch([nested, {"tags": [[]]}]).to_lists()] == [[*range(9)], [2]]
    table = pa.table({"tags": pa.array([[["a", "b"], ["c"]]]), "items": pa.array([[flat["items"]]])})
    assert sorted(index.match_batch(table).to_lists()[0]) == list(range(len(texts)))


def test_places_are_boxes() -> None:
    index = Index()
    index.subscribe(1, "DISTANCE(lat, lon, 48.85, 2.35) < 5000")
    index.subscribe(2, "INSIDE(lat, lon, 'POLYGON ((2 48, 3 48, 3 49, 2 49, 2 48))')")
    assert sorted(derived(index)) == ["NUMBER(lat)", "NUMBER(lon)"]
    assert [len(index._state.matcher.boxes(np.array([n]))[0]) for n in index._state.matcher.numbers()] == [2, 2]
    for lat, lon, wanted in [(48.86, 2.35, [1, 2]), (48, 2, [2]), (47, 2, []), ("48.86", 2.35, []), (None, 2.35, [])]:
        assert sorted(index.match({"lat": lat, "lon": lon})) == wanted
    assert index.match({"lat": 48.86}) == []


def test_tables_and_loads() -> None:
    index = Index()
    table = pa.table(
        {"id": [1, 2, 3], "where": ["price > 10", "order.city ILIKE 'paris'", "s LIKE '%x' AND price < 99"]}
    )
    assert index.load(table).loaded == 3
    rows = [
        {"price": 12, "order": {"city": "PARIS"}, "s": "ax", "more": [1]},
        {"price": None, "order": None, "s": "x", "more": None},
        {"price": 5, "order": {"city": None}, "s": "x", "more": []},
    ]
    wanted = [[1, 2, 3], [], [3]]
    assert [sorted(ids) for ids in index.match_batch(pa.Table.from_pylist(rows)).to_lists()] == wanted
    assert [sorted(ids) for ids in index.match_batch(rows).to_lists()] == wanted
    images = pa.Table.from_pylist([{"old": {"price": 1}, "new": {"price": 11}}])
    index.subscribe(4, "OLD.price < price")
    assert sorted(index.match_batch(images).to_lists()[0]) == [1, 4]
    bad = index.load(pa.table({"id": [5, 6], "where": ["a >", "a = 1"]}), on_error="return")
    assert (bad.loaded, [row for row, _ in bad.errors]) == (1, [0])
    with pytest.raises(HitboxError):
        index.load(pa.table({"id": [7], "price_low": [3], "price_high": [4]}))


def test_a_snapshot_that_is_older_than_anchors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its subscriptions have boxes only; those that come later have anchors."""
    texts = {
        1: "ANY(tags) = 'x'",
        2: "EXISTS(items WHERE sku = 'A' AND q < 3)",
        3: "s LIKE '%abc%' AND n > 3",
        4: "n > 5",
    }
    compiled = language.compile
    with monkeypatch.context() as older:
        older.setattr(language, "compile", lambda one, keys, limits, anchored: compiled(one, keys, limits))
        index = Index()
        for id, text in texts.items():
            index.subscribe(id, text)
        assert not len(index._state.anchors)
        index.save(tmp_path)
    index = Index.open(tmp_path)
    event = {"tags": ["y", "x"], "items": [{"sku": "A", "q": 1}], "s": "xabcx", "n": 4}
    assert sorted(index.match(event)) == [1, 2, 3]
    for id, text in texts.items():
        index.subscribe(id + 10, text)
    assert len(index._state.anchors) == 3
    index.unsubscribe(1)
    index.save(tmp_path)
    for one in (index, Index.open(tmp_path)):
        assert sorted(one.match(event)) == [2, 3, 11, 12, 13]
        assert one.match({"tags": ["z"], "n": 4}) == []


@pytest.mark.parametrize("seed", range(2))
def test_loads_of_random_documents(seed: int, tmp_path: Path) -> None:
    """The whole language through load, beside a declared index: names whose values have the declared types."""
    rng = random.Random(900 + seed)
    texts: dict[int, str] = {}
    while len(texts) < 150:
        text = Writer(rng).predicate(rng.randint(0, 2))
        if not any(part in text for part in ("EXISTS", "until - at", "at - until")):
            texts[len(texts)] = text
    table = pa.table({"id": list(texts), "where": list(texts.values())})
    index, declared, single = Index(), Index(SCHEMA), Index()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hitbox.HitboxWarning)
        assert index.load(table).loaded == declared.load(table).loaded == len(texts)
        for id in texts:
            single.subscribe(id, texts[id])
    index.save(tmp_path)
    events = [nested(rng, random_image(rng)) for _ in range(30)]
    wanted = [sorted(ids) for ids in declared.match_batch(events).to_lists()]
    for one in (index, single, Index.open(tmp_path)):
        assert [sorted(ids) for ids in one.match_batch(events).to_lists()] == wanted
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hitbox.HitboxWarning)
        index.load(pa.table({"id": list(texts)[:50], "where": list(texts.values())[50:100]}))
    index.unsubscribe_many(range(50, 150))
    for event, ids in zip(events, wanted, strict=True):
        assert sorted(index.match(event)) == [id - 50 for id in ids if 50 <= id < 100]


def test_changes_of_documents() -> None:
    index = Index()
    index.subscribe(1, "price < 10")
    index.subscribe(2, "OLD.price > price")
    found = index.match_change({"price": 12}, {"price": 9})
    assert (found.enter, found.leave, found.stay) == ([1, 2], [], [])


def test_errors() -> None:
    index = Index()
    for text, error in [
        ("a = INTERVAL '5 minutes'", TypeProblem),
        ("a IN (1, 'x')", TypeProblem),
        ("a BETWEEN 1 AND 'x'", TypeProblem),
        ("a = NaN", HitboxError),
        ("a", None),
        ("(a > 1) + 2 > 3", TypeProblem),
    ]:
        if error is None:
            index.subscribe(1, text)
        else:
            with pytest.raises(error):
                index.subscribe(2, text)
    with pytest.raises(ValueProblem, match="no information attributes"):
        index.subscribe(3, "a", about={"x": 1})
    with pytest.raises(UnknownAttribute, match="say nothing about themselves"):
        index.match({}, where="x > 1")
    index.subscribe(4, "b > 3 OR s = 'x'")
    for bad in ({"b": (1, 2)}, {"s": "a\0"}):
        with pytest.raises(ValueProblem):
            index.match(bad)
        with pytest.raises(HitboxError, match="event 1"):
            index.match_batch([{}, bad])
    with pytest.raises(ValueProblem, match="mapping"):
        index.match([1])  # type: ignore[arg-type]


def test_functions_are_limited_and_attributes_are_not() -> None:
    index = Index(limits=Limits(derived=2))
    for number in range(50):
        index.subscribe(number, f"a{number} > 3 AND LENGTH(s{number}) > 2")
    assert sum(one.is_attribute for one in index._state.keys.derived) == 50
    assert sum(not one.is_attribute for one in index._state.keys.derived) == 2
    assert index.match({"a7": 4, "s7": "abc", "a8": 4, "s8": "a"}) == [7]


def test_what_no_event_has() -> None:
    index = Index()
    assert index.check() == []
    index.subscribe("good", "price > 3 AND order.city = 'Paris'")
    index.subscribe("typo", "prise > 3")
    index.subscribe("other", "prise > 4 OR LOWER(ordr.city) = 'x'")
    index.subscribe("list", "ANY(tgas) = 'x' AND price > 1")
    events = [{"price": 1, "order": {"city": "Rome"}, "tags": ["x"]}]
    unseen = index.check(events)
    assert [(one.attribute, one.subscriptions, sorted(map(str, one.ids))) for one in unseen] == [
        ("prise", 2, ["other", "typo"]),
        ("ordr.city", 1, ["other"]),
        ("tgas", 1, ["list"]),
    ]
    assert index.check(pa.Table.from_pylist(events)) == unseen
    assert index.check() == []
    index.match(events[0])
    assert index.check() == unseen
    for _ in range(3000):
        index._matching.recent.note({"prise": 1})
    assert "price" in {one.attribute for one in index.check()}
    declared = Index({"a": "int", "b": "int", "c": hitbox.Attribute("int", role="information")})
    declared.subscribe(1, "a > 3", about={"c": 1})
    declared.subscribe(2, "b > a")
    assert [one.attribute for one in declared.check([{"a": 1}])] == ["b"]


@dataclass
class Part:
    sku: str


@dataclass
class Parcel:
    first: Part
    parts: list[Part]


def test_what_no_event_has_of_objects_lists_and_texts() -> None:
    """Objects may be of any kind, and what finds a subscription may be an element of a list or a part of a text."""
    declared = Index({"first": {"sku": "string"}, "parts": [{"sku": "string"}], "tags": "string[]", "s": "string"})
    for index in (declared, Index()):
        index.subscribe(1, "first.sku = 'x'")
        index.subscribe(2, "EXISTS(parts WHERE sku = 'x')")
        index.subscribe(3, "ANY(tags) = 'x'")
        index.subscribe(4, "s LIKE '%abc%'")
        event = Parcel(Part("x"), [Part("x")])
        assert sorted(index.match(event)) == [1, 2]
        for found in (index.check(), index.check([event]), index.check((event,))):
            assert sorted((one.attribute, tuple(one.ids)) for one in found) == [("s", (4,)), ("tags", (3,))]


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        pytest.param(10**400, ["above", "equal"], id="large"),
        pytest.param(-(10**400), ["below", "equal"], id="small"),
        (2**200, ["above", "equal", "sum"]),
        (decimal.Decimal("1e400"), ["above", "equal"]),
        (decimal.Decimal("Infinity"), ["above", "equal"]),
        (decimal.Decimal("-Infinity"), ["below", "equal"]),
        (decimal.Decimal("NaN"), ["null"]),
        (math.inf, ["above", "equal"]),
        (np.longdouble("7.5"), ["above", "equal", "sum"]),
    ],
)
def test_numbers_beyond_64_bits_are_numbers(value: Any, wanted: list[str]) -> None:
    """Whatever type they have: one that is too large for a double is infinite, not NULL."""
    index = Index()
    tests = {"above": "x > 5", "below": "x < 5", "equal": "x = x", "sum": "x + 1 > 5", "null": "x IS NULL"}
    for id, where in tests.items():
        index.subscribe(id, where)
    index.subscribe("list", "ANY(l) > 5 OR ANY(l) < 5 OR ANY(l) IS NULL")
    assert sorted(index.match({"x": value, "l": []})) == wanted
    assert index.match_batch([{"x": value, "l": []}]).counts.tolist() == [len(wanted)]
    assert index.match({"x": "text", "l": [value]}) == ["equal", "list"]


def test_every_null_in_place_of_a_list_is_a_null_list() -> None:
    """NaN, NaT and pandas.NA are null, as None is: pandas writes them where a list is missing."""
    index = Index()
    for where in (
        "ANY(x) IS NULL",
        "ALL(x) IS NULL",
        "(ANY(x) IS NULL) IS NULL",
        "EXISTS(x WHERE TRUE)",
        "(EXISTS(x WHERE k IS NULL)) IS NULL",
        "(ANY(o.x) IS NULL) IS NULL",
    ):
        index.subscribe(where, where)
    wanted = ["(ANY(o.x) IS NULL) IS NULL", "(ANY(x) IS NULL) IS NULL", "(EXISTS(x WHERE k IS NULL)) IS NULL"]
    nulls: list[Any] = [None, math.nan, np.float32("nan"), np.datetime64("NaT"), decimal.Decimal("NaN")]
    for null in nulls:
        event = {"x": null, "o": {"x": null}}
        assert sorted(index.match(event)) == wanted, null
        assert sorted(index.match_batch([event, event]).to_lists()[1]) == wanted, null
        for where in index:
            assert index.explain(event, where).matched == (where in wanted), (null, where)  # type: ignore[union-attr]
    for type_ in (pa.timestamp("us"), pa.date32(), pa.float64(), pa.string(), pa.list_(pa.string())):
        column = pa.nulls(1, type_)
        found = index.match_batch(pa.table({"x": column, "o": pa.StructArray.from_arrays([column], ["x"])}))
        assert sorted(found.to_lists()[0]) == wanted, type_


@pytest.mark.parametrize("schema", [None, {"y": "int"}])
def test_every_null_in_place_of_an_image_is_no_image(schema: Any) -> None:
    """Rows of a pandas table have NaN where a column of objects has a null."""
    index = Index(schema)
    index.subscribe("came", "y = 1 AND OLD.y IS MISSING")
    index.subscribe("went", "y IS MISSING AND OLD.y = 1")
    nulls: list[Any] = [None, math.nan, np.float32("nan"), np.datetime64("NaT")]
    for null in nulls:
        came, went = {"old": null, "new": {"y": 1}}, {"old": {"y": 1}, "new": null}
        assert index.match(came) == ["came"], null
        assert index.match(went) == ["went"], null
        assert index.match_batch([came, went]).to_lists() == [["came"], ["went"]], null


def test_a_field_called_old_that_is_ignored_may_be_nan() -> None:
    index = Index(hitbox.Schema({"y": "int"}, extra="ignore"))
    index.subscribe(1, "y = 1")
    assert index.match({"y": 1, "old": math.nan}) == index.match({"y": 1, "old": 3.5}) == [1]


@pytest.mark.parametrize("factor", [math.inf, -math.inf, 10**400, 1e300])
def test_a_length_of_time_times_an_infinite_number_is_null(factor: float) -> None:
    """JSON can say 1e999."""
    index = Index()
    index.subscribe("long", "INTERVAL '1 hour' * n > INTERVAL '2 hours'")
    index.subscribe("none", "(INTERVAL '1 hour' * n) IS NULL")
    assert index.match({"n": 3}) == ["long"]
    assert index.match({"n": factor}) == index.match_batch([{"n": factor}])[0] == ["none"]
    assert index.explain({"n": factor}, "long").truth is None  # type: ignore[union-attr]


@pytest.mark.parametrize("strange", [(), (3,), (3, 3), (3, 4), (1, 2, 3)])
def test_a_tuple_is_no_interval(strange: tuple[int, ...]) -> None:
    """It is an error where a condition looks at it, and nothing where none does."""
    index = Index()
    index.subscribe("text", "s REGEXP 'b' AND s LIKE '%c'")
    index.subscribe("objects", "EXISTS(items WHERE n * 1 = 3)")
    for event in ({"s": "abc", "other": strange}, {"s": "abc", "items": strange}, {"s": "abc", "items": [strange]}):
        assert index.match(event) == index.match_batch([event])[0] == ["text"], event
        for id in ("text", "objects"):
            found = index.explain(event, id)
            assert isinstance(found, language.Explanation)
            assert found.matched == (id == "text")
            assert str(found)
            json.dumps(found.to_dict())
    index.subscribe("element", "ANY(list) = 3")
    with pytest.raises(ValueProblem, match="an interval is for a declared attribute"):
        index.match({"list": strange})
    with pytest.raises(ValueProblem, match="an interval is for a declared attribute"):
        index.explain({"list": strange}, "element")


def test_a_time_that_utc_does_not_have_is_explained() -> None:
    index = Index()
    index.subscribe(1, "at > TIMESTAMP '2026-01-01' OR s = 'x'")
    event = {"at": dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=14)))}
    assert index.match(event) == []
    assert "0001-01-01" in str(index.explain(event, 1))
