"""Bad input through the library's door: a clear error each, and nothing that was accepted before is lost."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hitbox import Attribute, Exchange, Index, Limits, Schema
from hitbox.errors import (
    HitboxError,
    LimitExceeded,
    MatcherError,
    NeverMatches,
    SchemaError,
    SnapshotError,
    SyntaxProblem,
    TableError,
    TypeProblem,
    UnknownAttribute,
    UnknownSubscription,
    ValueProblem,
)

SCHEMA = Schema(
    {
        "price": "float",
        "qty": "int",
        "city": "string",
        "grid": Attribute("float", domain=(0, 1), precision="0.01"),
        "age": Attribute("int", role="information"),
    }
)
EVENT = {"price": 12.5, "qty": 3, "city": "Paris"}


@pytest.fixture
def index() -> Index:
    made = Index(SCHEMA)
    made.subscribe("keep", "price > 10", about={"age": 30})
    return made


PREDICATES: list[tuple[str, type[HitboxError], str]] = [
    ("", SyntaxProblem, "empty"),
    ("   ", SyntaxProblem, "empty"),
    ("prise > 3", UnknownAttribute, "did you mean 'price'"),
    ("city = 'Par", SyntaxProblem, "closing quote"),
    ("price > 'x'", TypeProblem, "price"),
    ("city > 3", TypeProblem, "city"),
    ("qty = 9223372036854775808", HitboxError, "64"),
    ("price > 1e999", HitboxError, "does not fit"),
    ("price > nan", HitboxError, "(?i)nan"),
    ("price = NULL", HitboxError, "IS NULL"),
    ("price >", SyntaxProblem, "."),
    ("price > 3 AND", SyntaxProblem, "."),
    ("(price > 3", SyntaxProblem, "."),
    ("price > 3)", SyntaxProblem, "."),
    ("price > 3 -- x", HitboxError, "."),
    ("price < city", HitboxError, "type"),
    ("price > 3\x00", HitboxError, "."),
    ("city = '\ud800'", HitboxError, "."),
    ("grid > 0.125", TypeProblem, "precision"),
    ("grid > 7", TypeProblem, "domain"),
    ("age > 3", HitboxError, "information"),
    ("(" * 10_000 + "price > 1" + ")" * 10_000, LimitExceeded, "(?i)deep|depth|nest"),
    ("NOT " * 10_000 + "price > 1", LimitExceeded, "(?i)deep|depth|nest"),
    ("qty IN (" + ", ".join(map(str, range(20_001))) + ")", LimitExceeded, "."),
    ("price > 1 OR " * 100_000 + "price > 2", LimitExceeded, "."),
]


@pytest.mark.parametrize(("where", "error", "says"), PREDICATES, ids=[p[0][:30] for p in PREDICATES])
def test_predicates(index: Index, where: str, error: type[HitboxError], says: str) -> None:
    for id in ("new", "keep"):
        with pytest.raises(error, match=says) as caught:
            index.subscribe(id, where)
        assert len(str(caught.value)) < 1500
    assert index.match(EVENT) == ["keep"]
    assert list(index) == ["keep"]


def test_an_error_points_at_its_place(index: Index) -> None:
    with pytest.raises(UnknownAttribute) as caught:
        index.subscribe("new", "price > 3 AND prise < 4")
    assert caught.value.position == 14
    assert str(caught.value).splitlines()[1:] == ["  price > 3 AND prise < 4", "  " + " " * 14 + "^"]


CALLS: list[tuple[str, Callable[[Index], Any], type[HitboxError], str]] = [
    ("unknown id", lambda i: i.unsubscribe("nope"), UnknownSubscription, "nope"),
    ("unknown id explained", lambda i: i.explain(EVENT, "nope"), UnknownSubscription, "nope"),
    ("id of another type", lambda i: i.subscribe(3, "price > 1"), ValueProblem, "int"),
    ("id of no type", lambda i: i.subscribe(3.5, "price > 1"), ValueProblem, "int or a string"),  # type: ignore[arg-type]
    ("bool id", lambda i: i.subscribe(True, "price > 1"), ValueProblem, "int or a string"),
    ("huge id", lambda i: i.subscribe(2**64, "price > 1"), ValueProblem, "64"),
    ("priority", lambda i: i.subscribe("a", "price > 1", priority=10), ValueProblem, "0 to 9"),
    ("priority kind", lambda i: i.subscribe("a", "price > 1", priority="high"), ValueProblem, "0 to 9"),  # type: ignore[arg-type]
    ("about role", lambda i: i.subscribe("a", "price > 1", about={"price": 3}), ValueProblem, "criteria"),
    ("about name", lambda i: i.subscribe("a", "price > 1", about={"agee": 3}), UnknownAttribute, "age"),
    ("about swapped", lambda i: i.subscribe("a", "price > 1", about={"age": (30, 20)}), ValueProblem, "swapped"),
    ("about type", lambda i: i.subscribe("a", "price > 1", about={"age": "old"}), ValueProblem, "age"),
    ("event name", lambda i: i.match({"prise": 1}), UnknownAttribute, "did you mean 'price'"),
    ("event type", lambda i: i.match({"price": "1"}), ValueProblem, "price"),
    ("event role", lambda i: i.match({"age": 1}), ValueProblem, "information"),
    ("event swapped", lambda i: i.match({"price": (3, 1)}), ValueProblem, "swapped"),
    ("event triple", lambda i: i.match({"price": (1, 2, 3)}), ValueProblem, "low, high"),
    ("event kind", lambda i: i.match([1]), ValueProblem, "mapping"),  # type: ignore[arg-type]
    ("event where role", lambda i: i.match(EVENT, where="price > 3"), HitboxError, "criteria"),
    ("limit", lambda i: i.match(EVENT, limit=-1), ValueProblem, "limit"),
    ("batch kind", lambda i: i.match_batch("abc"), TableError, "pyarrow"),  # type: ignore[arg-type]
    ("batch event", lambda i: i.match_batch([EVENT, {"qty": "x"}]), TableError, "event 1"),
    ("batch column", lambda i: i.match_batch(pa.table({"price": ["x"]})), TableError, "price"),
    ("batch misspelt", lambda i: i.match_batch(pa.table({"qty": [1], "prise": [2.0]})), TableError, "price"),
    ("batch nothing", lambda i: i.match_batch(pa.table({"zzz": [1]})), TableError, "none of the attributes"),
    ("batch one end", lambda i: i.match_batch(pa.table({"price_low": [1.0]})), TableError, "both"),
    (
        "batch swapped",
        lambda i: i.match_batch(pa.table({"price_low": [2.0], "price_high": [1.0]})),
        TableError,
        "row 0",
    ),
    ("batch wheres", lambda i: i.match_batch([EVENT], where=["age > 1", "age > 2"]), TableError, "2 texts"),
    ("threads", lambda i: i.match_batch([EVENT], threads=0), ValueProblem, "threads"),
    ("load kind", lambda i: i.load(1), TableError, "pyarrow"),
    ("load row", lambda i: i.load([1]), TableError, "row 0"),
    ("load no id", lambda i: i.load(pa.table({"where": ["TRUE"]})), TableError, "'id'"),
    ("load id type", lambda i: i.load(pa.table({"id": [1.5], "where": ["TRUE"]})), TableError, "id"),
    ("load where type", lambda i: i.load(pa.table({"id": ["a"], "where": [1]})), TableError, "where"),
    (
        "load priority",
        lambda i: i.load(pa.table({"id": ["a"], "where": ["TRUE"], "priority": [11]})),
        TableError,
        "row 0",
    ),
    ("load null id", lambda i: i.load(pa.table({"id": ["a", None], "where": ["TRUE"] * 2})), TableError, "row 1"),
    ("load nothing", lambda i: i.load(pa.table({"id": ["a"]})), TableError, "where"),
    ("load strange", lambda i: i.load(pa.table({"id": ["a"], "prise_low": [1.0]})), TableError, "price_low"),
    ("load one end", lambda i: i.load(pa.table({"id": ["a"], "price_low": [1.0]})), TableError, "price_high"),
    (
        "load where and bounds",
        lambda i: i.load(pa.table({"id": ["a"], "where": ["TRUE"], "price_low": [1.0], "price_high": [2.0]})),
        TableError,
        "'price_low'",
    ),
    (
        "load about one end",
        lambda i: i.load(pa.table({"id": ["a"], "where": ["TRUE"], "age_low": [1]})),
        TableError,
        "both age_low and age_high",
    ),
    (
        "load about twice",
        lambda i: i.load(pa.table({"id": ["a"], "where": ["TRUE"], "age": [1], "age_low": [1], "age_high": [2]})),
        TableError,
        "drop one",
    ),
    (
        "load misspelt priority",
        lambda i: i.load(pa.table({"id": ["a"], "where": ["TRUE"], "priorty": [1]})),
        TableError,
        "did you mean 'priority'",
    ),
    (
        "load numbers as texts",
        lambda i: i.load(pa.table({"id": ["a"], "city_low": [1], "city_high": pa.nulls(1)})),
        TableError,
        "'city_low' is a column of int64",
    ),
    ("threads bool", lambda i: i.match_batch([EVENT], threads=True), ValueProblem, "threads"),
    ("load mode", lambda i: i.load(pa.table({"id": ["a"], "where": ["TRUE"]}), on_error="x"), ValueProblem, "on_error"),
    ("unwritable", lambda i: i.save("/proc/nowhere/x"), SnapshotError, "cannot write"),
]


@pytest.mark.parametrize(("call", "error", "says"), [c[1:] for c in CALLS], ids=[c[0] for c in CALLS])
def test_calls(index: Index, call: Callable[[Index], Any], error: type[HitboxError], says: str) -> None:
    with pytest.raises(error, match=says):
        call(index)
    assert index.match(EVENT) == ["keep"]
    assert index.about("keep") == {"age": 30}


def test_bad_rows_are_named_and_nothing_or_the_good_is_loaded(index: Index) -> None:
    table = pa.table({"id": ["a", "b", "c", "keep"], "where": ["price > 1", "prise > 1", "price >", "price < 0"]})
    with pytest.raises(TableError, match=r"row 1.*prise") as caught:
        index.load(table)
    assert [row for row, _ in caught.value.rows] == [1, 2]
    assert index.match(EVENT) == ["keep"]
    report = index.load(table, on_error="return")
    assert report.loaded == 2
    assert [row for row, _ in report.errors] == [1, 2]
    assert index.match(EVENT) == ["a"]
    wide = pa.table(
        {
            "id": ["w0", "w1", "w2", "w3"],
            "price_low": [1.0, math.nan, 1.0, 1.0],
            "price_high": [20.0, 2.0, math.inf, None],
            "grid_low": [None, None, None, 0.125],
            "grid_high": [None, None, None, 0.5],
        }
    )
    with pytest.raises(TableError, match="row 1"):
        index.load(wide)
    report = index.load(wide, on_error="return")
    assert (report.loaded, [row for row, _ in report.errors]) == (1, [1, 2, 3])
    assert set(index.match(EVENT)) == {"a", "w0"}


def test_never_matching_predicates_warn_and_stay_visible(index: Index) -> None:
    with pytest.warns(NeverMatches, match="never"):
        index.subscribe("never", "price > 5 AND price < 3")
    assert "never" in index
    assert index.match(EVENT) == ["keep"]
    assert not index.explain(EVENT, "never").matched  # type: ignore[union-attr]
    with pytest.warns(NeverMatches):
        index.load(pa.table({"id": ["n2"], "qty_low": [5], "qty_high": [3]}))
    assert index.where("n2") == "FALSE"
    index.unsubscribe("never")
    assert len(index) == 2


def test_unknown_matchers_and_options() -> None:
    with pytest.raises(MatcherError, match="did you mean 'brute'"):
        Index(SCHEMA, "brutte")
    with pytest.raises(MatcherError, match="no option"):
        Index(SCHEMA, "brute", buckets=3)


OPTIONS: list[tuple[str, str, Any]] = [
    *[("hitbox", "tail", wrong) for wrong in ("x", -1, 0, 1.5, True, None, 2**40)],
    *[("hitbox", "block", wrong) for wrong in ("x", 0, 513, None)],
    *[("hitbox", "lines", wrong) for wrong in ("x", -1, 2.0)],
    *[("hitbox", "band", wrong) for wrong in ("x", 0, None)],
    *[("hitbox", "kind", wrong) for wrong in ("bitmaps", 3, [])],
    *[("hitbox", "seed", wrong) for wrong in (3, "ab", (1,), (1, -1), (1, 2**64), (1, "x"))],
    ("be-tree", "capacity", "x"),
    ("be-tree", "capacity", 2**80),
    ("dexin", "plan", 3),
    ("dexin", "plan", "near"),
    ("dexin", "slots", 1.5),
    ("h-tree", "cells", "6"),
    ("h-tree", "limit", None),
    ("mlgf", "fanout", None),
    ("r-tree", "bulk", 3),
    ("r-tree", "fanout", 5.5),
    ("rein", "scan", 1),
    ("rein", "sorted_buckets", 1),
    ("pri-rein", "buckets", 0),
    ("tama", "levels", 21),
    ("tama", "exact", "no"),
    ("ub-tree", "fanout", 2**70),
]


@pytest.mark.parametrize(("matcher", "option", "value"), OPTIONS, ids=lambda value: str(value)[:20])
def test_options_are_checked(matcher: str, option: str, value: Any) -> None:
    with pytest.raises(MatcherError, match=option):
        Index(SCHEMA, matcher, **{option: value})


def test_other_arguments_are_checked(index: Index, tmp_path: Path) -> None:
    for matcher in (None, [], 3, ""):
        with pytest.raises(MatcherError, match="unknown matcher"):
            Index(SCHEMA, matcher)  # type: ignore[arg-type]
    with pytest.raises(MatcherError, match="instruction set ''"):
        Index(SCHEMA, simd="")
    with pytest.raises(ValueProblem, match="Limits"):
        Index(SCHEMA, limits=3)  # type: ignore[arg-type]
    with pytest.raises(ValueProblem, match="clock"):
        Exchange(SCHEMA, clock=3)  # type: ignore[arg-type]
    index.save(tmp_path)
    for version in ("1", 1.0, True, []):
        with pytest.raises(SnapshotError, match="whole number"):
            Index.open(tmp_path, version)  # type: ignore[arg-type]
    assert len(Index.open(tmp_path, np.int64(1))) == len(index)  # type: ignore[arg-type]
    assert index.match_batch([EVENT], threads=10_000)[0] == ["keep"]


def test_what_never_matches_says_so() -> None:
    exchange = Exchange({"salary": "int", "age": Attribute("int", role="information")})
    with pytest.warns(NeverMatches, match="about itself is not kept"):
        exchange.subscribe("never", "salary > 3 AND salary < 2", about={"age": 25})
    with pytest.warns(NeverMatches, match="event 'E' can never match"):
        exchange.publish("E", {"salary": 7}, where="age > 30 AND age < 20")
    exchange.subscribe("some", "salary > 3", about={"age": 25})
    exchange.publish("F", {"salary": 7}, where="age > 3")
    for event, subscription in (("E", "some"), ("F", "never"), ("E", "never")):
        told = str(exchange.explain(event, subscription))
        assert "can never match" in told
        assert "missing" not in told
        assert not exchange.explain(event, subscription).matched
    assert exchange.explain("F", "some").matched
    base = exchange._subscriptions
    assert [base.can_match(id) for id in ("never", "some")] == [False, True]
    with pytest.raises(UnknownSubscription):
        base.can_match("nobody")


@pytest.mark.parametrize("others", [["a_low"], ["a_high"], ["a_low", "a_high"]])
def test_attributes_that_are_called_like_the_ends_of_another(others: list[str]) -> None:
    """A column is first the attribute that is called so; tables and mappings give the same answers."""
    index = Index(dict.fromkeys(["a", *others], "int"))
    for name in ["a", *others]:
        index.subscribe(name, f"{name} = 5")
    for event in ({"a": 5}, {others[0]: 5}, {others[-1]: 5, "a": 4}, dict.fromkeys(others, 5)):
        table = pa.table({name: [value] for name, value in event.items()})
        assert sorted(index.match_batch(table)[0]) == sorted(index.match(event))
    told = Index({"x": "int"} | {name: Attribute("int", role="information") for name in ["a", *others]})
    told.load(pa.table({"id": [1], "where": ["x > 0"]} | {name: [5] for name in others}))
    assert told.about(1) == dict.fromkeys(others, 5)


SCHEMAS: list[tuple[Any, str]] = [
    ({}, "at least one"),
    ({"a": "flot"}, "did you mean 'float'"),
    ({"a": {}}, "no fields"),
    ({"": "int"}, "1 to 200"),
    ({"a\n": "int"}, "control"),
    ({"a": {"type": "int", "role": "boss"}}, "unknown role"),
    ({"a": {"type": "string", "domain": (0, 1)}}, "int and float"),
    ({"a": {"type": "float", "domain": (0, 1)}}, "precision"),
    ({"a": {"type": "float", "precision": 1}}, "domain"),
    ({"a": {"type": "float", "domain": (1, 0), "precision": 1}}, "empty"),
    ({"a": {"type": "float", "domain": (0, 1), "precision": 0.3}}, "multiples"),
    ({"a": {"type": "int", "domain": (0, 1), "precision": 0.5}}, "whole number"),
    ({"a": {"type": "float", "domain": (0, 1e12), "precision": 1e-9}}, "steps"),
    ({"a": {"type": "float", "domain": (0, math.inf), "precision": 1}}, "numbers"),
    ({f"a{i}": "int" for i in range(1001)}, "1000"),
    ([("a", "int")], "mapping"),
    ({"a": 10**5000}, "unknown type"),
    ({"a": {"type": "int", "domain": (0, 10**5000)}}, "steps"),
    ({"a": {"type": "float", "domain": (0, Decimal("inf")), "precision": 1}}, "numbers"),
    ({"a": {"type": "float", "domain": (0, 1), "precision": np.timedelta64(1, "s")}}, "numbers"),
]


@pytest.mark.parametrize(("of", "says"), SCHEMAS, ids=[s[1] for s in SCHEMAS])
def test_schemas(of: Any, says: str) -> None:
    with pytest.raises(SchemaError, match=says):
        Schema(of)


def test_numbers_of_numpy_make_the_same_schema() -> None:
    made = Attribute("int", domain=(np.int8(0), np.uint64(100)), precision=np.int16(5))
    assert made == Attribute("int", domain=(0, 100), precision=5)


def test_numbers_too_long_to_be_written_are_named_errors(index: Index) -> None:
    with pytest.raises(UnknownAttribute, match="an int of"):
        index.match({10**5000: 1})  # type: ignore[dict-item]
    for age in (10**5000, 0, -1, math.nan, True, Decimal(3), "3"):
        with pytest.raises(ValueProblem, match="max_age"):
            Exchange(SCHEMA, max_age=age)  # type: ignore[arg-type]
    assert len(Exchange(SCHEMA, max_age=math.inf).events) == 0
    with pytest.raises(ValueProblem, match="where"):
        index.match(EVENT, where=np.array(3))  # type: ignore[arg-type]


def test_limits_are_settings() -> None:
    index = Index(SCHEMA, limits=Limits(values=3))
    with pytest.raises(LimitExceeded, match="3"):
        index.subscribe("a", "qty IN (1, 3, 5, 7)")
    Index(SCHEMA, limits=Limits(values=4)).subscribe("a", "qty IN (1, 3, 5, 7)")
    with pytest.raises(HitboxError):
        Limits(boxes=0)


def test_a_file_in_the_way(index: Index, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(SnapshotError, match="cannot write"):
        index.save(tmp_path / "file")
    with pytest.raises(SnapshotError, match="there is none"):
        Index.open(tmp_path / "nothing")


def test_limits_that_are_set_later_hold_from_then_on() -> None:
    index = Index({"n": "int"})
    index.limits = Limits(text=20)
    index.subscribe("short", "n > 3")
    with pytest.raises(LimitExceeded, match="the limit is 20"):
        index.subscribe("long", "n > 3 AND n < 5 AND n <> 4")
    with pytest.raises(ValueProblem, match="limits are"):
        index.limits = 20  # type: ignore[assignment]
    assert list(index) == ["short"]


def test_other_limits_are_for_new_subscriptions_only(tmp_path: Path) -> None:
    """What was accepted stays as it is, whatever the limits are with which a snapshot is opened."""
    text = "NOT (NOT (qty * 1 IN (1, 2, 3) AND city LIKE '%a%r%i%')) AND city REGEXP 'P.r'"
    index = Index(SCHEMA)
    index.subscribe("kept", text)
    index.save(tmp_path)
    for limits in (Limits(text=20), Limits(depth=1), Limits(values=2), Limits(pattern=2)):
        again = Index.open(tmp_path, limits=limits)
        assert again.match(EVENT) == ["kept"]
        assert again.explain(EVENT, "kept").matched  # type: ignore[union-attr]
        assert again.check([EVENT]) == []
        with pytest.raises(LimitExceeded):
            again.subscribe("new", text)
