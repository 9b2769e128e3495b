"""Documents through an index: nested events and tables, images, changes, fields that are not declared."""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import hitbox
from hitbox import Index, Schema
from hitbox.errors import HitboxError, SchemaError, TableError, UnknownAttribute, ValueProblem

SHOP = {
    "price": "float",
    "order": {"city": "string", "at": "timestamp"},
    "tags": "string[]",
    "items": [{"sku": "string", "price": "float"}],
}


def shop(**options: Any) -> Index:
    index = Index(Schema(SHOP, **options))
    index.subscribe("city", "order.city = 'Paris'")
    index.subscribe("tag", "ANY(tags) = 'x'")
    index.subscribe("item", "EXISTS(items WHERE sku = 'A' AND price < 10)")
    index.subscribe("dearer", "OLD.price < NEW.price")
    index.subscribe("cheap", "price < 10")
    return index


def test_nested_flat_and_mixed_events_mean_the_same() -> None:
    index = shop()
    events: list[dict[str, Any]] = [
        {"order": {"city": "Paris"}, "tags": ["y", "x"]},
        {"order.city": "Paris", "tags": {"x"}},
        {"order": {"city": "Paris", "at": None}, "tags": np.array(["x", "z"])},
    ]
    for event in events:
        assert index.match(event) == ["city", "tag"]
    assert [sorted(ids) for ids in index.match_batch(events).to_lists()] == [["city", "tag"]] * 3
    assert index.match({"order": None, "items": [None, {"sku": "A", "price": 9}]}) == ["item"]


@pytest.mark.parametrize(
    ("event", "says"),
    [
        ({"order": {"city": "a"}, "order.city": "b"}, "given twice"),
        ({"order": 3}, "is an object"),
        ({"order": {"ctiy": "a"}}, "did you mean 'order.city'"),
        ({"order": {"city": 3}}, "order.city"),
        ({"tags": "x"}, "takes lists"),
        ({"tags": ("a", "b")}, "takes lists"),
        ({"tags": ["a", 3]}, "tags"),
        ({"tags": np.zeros((2, 2))}, "dimensions"),
        ({"items": [{"sku": "A", "prise": 3}]}, "prise"),
        ({"items": [{"price": "x"}]}, "price"),
        ({"items": ["A"]}, "takes mappings"),
        ({"price": ["x"]}, "list"),
        ({"new": {"price": 1}, "price": 3}, "beside the images"),
        ({"new": {"price": 1}, "old": {"prise": 3}}, "did you mean 'price'"),
        ({"new": {"price": 1}, "old": {"tags": 3}}, "takes lists"),
    ],
)
def test_bad_events(event: dict[str, Any], says: str) -> None:
    index = shop()
    for call in (index.match, lambda e: index.match_batch([e]), lambda e: index.explain(e, "city")):
        with pytest.raises(HitboxError, match=says):
            call(event)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"a": {}}, "no fields"),
        ({"a": []}, "unknown type|give type"),
        ({"a": ["int", "int"]}, "unknown type|give type"),
        ({"a": "int[][]"}, "unknown type"),
        ({"a": "object[]"}, "has fields"),
        ({"a": {"type": "int[]", "role": "information"}}, "role criteria"),
        ({"a": {"b": "int"}, "a.b": "int"}, "given twice"),
        ({"a": "list"}, "unknown type"),
    ],
)
def test_bad_schemas(schema: dict[str, Any], says: str) -> None:
    with pytest.raises(SchemaError, match=says):
        Schema(schema)


def test_schemas_travel(tmp_path: Path) -> None:
    for extra in (None, "ignore", "error"):
        schema = Schema(SHOP, extra=extra)
        assert Schema.from_json(schema.to_json()) == schema == pickle.loads(pickle.dumps(schema))
        index = shop(extra=extra)
        index.save(tmp_path / str(extra))
        again = Index.open(tmp_path / str(extra))
        assert again.schema == index.schema
        assert again.match({"tags": ["x"]}) == ["tag"]
    with pytest.raises(SchemaError, match="extra is"):
        Schema({"a": "int"}, extra="allow")


def test_tables() -> None:
    index = shop()
    rows = [
        {"order": {"city": "Paris", "at": dt.datetime(2026, 1, 1)}, "tags": ["x"], "items": []},
        {"order": None, "tags": None, "items": [{"sku": "A", "price": 3.0}]},
        {"order": {"city": None, "at": None}, "tags": [], "items": [None]},
    ]
    table = pa.Table.from_pylist(rows)
    assert index.match_batch(table).to_lists() == [["city", "tag"], ["item"], []]
    assert index.match_batch(table.slice(1)).to_lists() == [["item"], []]
    assert index.match_batch(pa.table({"order.city": ["Paris"]})).to_lists() == [["city"]]
    index.subscribe("missing", "order.city IS MISSING")
    index.subscribe("null", "order.city IS NULL AND order.city IS NOT MISSING")
    found = index.match_batch(table).to_lists()
    assert [sorted(ids) for ids in found] == [["city", "tag"], ["item", "missing"], ["null"]]
    for bad in (pa.table({"tags": [[1]]}), pa.table({"tags": ["x"]})):
        with pytest.raises(TableError, match="tags"):
            index.match_batch(bad)
    both = pa.table({"order.city": ["a"], "order": pa.array([{"city": "b"}])})
    with pytest.raises(TableError, match="twice"):
        index.match_batch(both)


def test_images_and_changes() -> None:
    index = shop()
    assert index.match({"old": {"price": 20}, "new": {"price": 30}}) == ["dearer"]
    assert index.match({"old": {"price": 3}, "new": {"price": 4}}) == ["dearer", "cheap"]
    assert index.match({"new": {"price": 4}}) == ["cheap"]
    assert index.match({"old": {"price": 4}}) == []
    assert index.match({"old": {"price": 4}, "new": None}) == []
    table = pa.table({"old": pa.array([{"price": 3}, None]), "new": pa.array([{"price": 4}, {"price": 5}])})
    assert index.match_batch(table).to_lists() == [["dearer", "cheap"], ["cheap"]]
    change = index.match_change({"price": 4, "tags": ["x"]}, {"price": 40, "tags": ["x"]})
    assert (change.enter, change.leave, change.stay) == (["dearer"], ["cheap"], ["tag"])
    assert index.match_change(None, {"price": 4}).enter == ["cheap"]
    assert index.match_change({"price": 4}, None).leave == ["cheap"]
    assert index.match_change(None, None) == hitbox.Transition([], [], [])
    with pytest.raises(ValueProblem, match="image"):
        index.match_change(3, None)  # type: ignore[arg-type]


def test_a_schema_with_its_own_old_and_new() -> None:
    index = Index({"old": {"price": "int"}, "new": "bool"})
    index.subscribe(1, "old.price > 3 AND new")
    assert index.match({"old": {"price": 4}, "new": True}) == [1]
    assert index.match_change({"old": {"price": 4}, "new": False}, {"old.price": 4, "new": True}).enter == [1]


def test_fields_that_are_not_declared() -> None:
    event = {
        "price": 3,
        "prise": 3,
        "order": {"city": "Paris", "zip": 75000},
        "items": [{"sku": "A", "price": 1, "q": 1}],
    }
    table = pa.Table.from_pylist([event])
    ignoring, refusing, neither = shop(extra="ignore"), shop(extra="error"), shop()
    assert sorted(ignoring.match(event)) == sorted(ignoring.match_batch(table)[0]) == ["cheap", "city", "item"]
    assert ignoring.match({"else": 1}) == []
    assert ignoring.match_batch(pa.table({"else": [1]}))[0] == []
    assert ignoring.match_batch([{"price": 3, "else": 1}])[0] == ["cheap"]
    for one in ({"price": 3, "else": 1}, {"order": {"zip": 1}}):
        with pytest.raises(UnknownAttribute):
            refusing.match(one)
        with pytest.raises(TableError, match="not an attribute"):
            refusing.match_batch(pa.Table.from_pylist([one]))
    assert neither.match({"price": 3, "else": 1}) == ["cheap"]


@pytest.mark.parametrize(
    ("event", "says"),
    [
        ({"price": 3, "else": 1}, None),
        ({"price": 3, "prise": 1}, None),
        ({"price": None, "else": 1}, None),
        ({"order": {"city": "Paris", "zip": 1}, "else": {"price": 3}}, None),
        ({"items": [{"sku": "A", "price": 1, "q": 1}], "else": [1]}, None),
        ({"new": {"price": 3, "else": 1}, "old": {"else": 1}}, None),
        ({"new": {"price": 3}, "old": {"price": 4}, "else": 1}, None),
        ({"old": 5, "price": 3}, None),
        ({"else": 1}, "none of the attributes"),
        ({"new": {"else": 1}}, "none of the attributes"),
        ({"prise": 3, "order": {"city": "Paris"}}, "prise.*did you mean 'price'"),
        ({"price": 3, "order": {"ctiy": "Paris"}}, "order.ctiy.*did you mean 'order.city'"),
        ({"items": [{"skuu": "A", "price": 1}]}, "skuu.*did you mean 'sku'"),
        ({"new": {"price": 3}, "old": {"prise": 4}}, "prise.*did you mean 'price'"),
        ({"price": 3, "about_me": 1}, "has the role information"),
    ],
)
def test_a_row_means_what_its_table_means(event: dict[str, Any], says: str | None) -> None:
    index = Index({**SHOP, "about_me": {"type": "int", "role": "information"}})
    for id in shop():
        index.subscribe(id, shop().where(id))
    table = pa.Table.from_pylist([event])
    looks: list[Callable[[], Any]] = [
        lambda: index.match_batch(table)[0],
        lambda: index.match_batch([event])[0],
        lambda: index.match(event),
        lambda: index.explain(event).matches,  # type: ignore[union-attr]
    ]
    if says is None:
        first, *others = [sorted(look()) for look in looks]
        assert all(found == first for found in others)
        return
    for look in looks:
        with pytest.raises(HitboxError, match=says):
            look()


def test_the_ends_of_an_interval_are_no_attributes() -> None:
    with pytest.raises(
        UnknownAttribute, match=r"'price_low' is no attribute: write an interval as 'price': \(low, high\)"
    ):
        shop().match({"price_low": 1, "price_high": 3})


def test_few_of_many_strange_names_are_compared() -> None:
    strange = {f"{n} else": n for n in range(100_000)}
    assert shop().match({"price": 3, **strange}) == ["cheap"]


def test_now_is_one_value_per_batch() -> None:
    index = Index({"at": "timestamp"})
    index.subscribe("late", "at > NOW() - INTERVAL '1 hour'")
    index.subscribe("never", "NOW() < NOW()")
    now = dt.datetime.now(dt.UTC)
    events = [{"at": now}, {"at": now - dt.timedelta(hours=2)}] * 300
    assert index.match_batch(events).to_lists() == [["late"], []] * 300


def test_lists_in_events_do_not_hide_boxes() -> None:
    """The length of a list is its key: the engine and every other matcher decide it without a check."""
    index = Index({"tags": "string[]", "n": "int"}, "brute")
    index.subscribe("two", "LENGTH(tags) = 2")
    index.subscribe("none", "LENGTH(tags) = 0 OR tags IS NULL")
    assert index._state.catalog.exact.all()
    assert index.match({"tags": ["a", None]}) == ["two"]
    assert index.match({"tags": []}) == index.match({}) == index.match({"tags": None}) == ["none"]


def test_what_was_refused_for_its_boxes_is_accepted() -> None:
    names = [f"x{n}" for n in range(20)] + [f"y{n}" for n in range(20)]
    index = Index(dict.fromkeys(names, "int"))
    index.subscribe("unequal", " AND ".join(f"x{n} <> {n}" for n in range(14)))
    index.subscribe("either", " AND ".join(f"(x{n} = 1 OR y{n} = 1)" for n in range(20)))
    table = pa.table({"id": [f"row {n}" for n in range(20)], "where": [index.where("unequal")] * 20})
    index.load(table)
    ones = dict.fromkeys(names[:20], 1)
    assert index.match(ones) == ["either"]
    assert set(index.match(ones | {"x1": 0, "y1": 1})) == set(index)
    assert set(index.match(ones | {"x1": 0})) == set(index) - {"either"}
    assert set(index.match_batch(pa.Table.from_pylist([ones | {"x1": 0}]))[0]) == set(index) - {"either"}


def test_comparisons_of_literals_are_not_taken_for_their_shape() -> None:
    """The native reader asks for the meaning of `0 = 0` once; the truth of `1 = 2` must not be that of `1 = 1`."""
    index = Index({"a": "int"})
    texts = ["1 = 1", "1 IN (1, 2)", "'a' = 'a'", "TRUE = TRUE", "TRUE IN (TRUE)", "2 > 1"]
    others = ["1 = 2", "3 IN (1, 2)", "'a' = 'b'", "TRUE = FALSE", "TRUE IN (FALSE)", "1 > 2"]
    for text in texts:
        index.subscribe(text, text)
        index.subscribe(f"{text} and more", f"{text} AND a = 1")
    for text in others:
        with pytest.warns(hitbox.HitboxWarning):
            index.subscribe(text, f"{text} AND a = 1")
    assert sorted(index.match({"a": 1})) == sorted([*texts, *(f"{text} and more" for text in texts)])
    with pytest.warns(hitbox.HitboxWarning):
        index.load(pa.table({"id": (texts + others) * 2, "where": (texts + others) * 2}))
    assert sorted(index.match({"a": 2})) == sorted(texts)
