"""Documents in tables: types of columns that say the same as lists, objects and texts do."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from hitbox import Index, Schema
from hitbox.errors import TableError, UnknownAttribute, ValueProblem

ID = UUID(int=7)
SCHEMA = {
    "a": "int",
    "s": "string",
    "o": {"q": "int"},
    "tags": "string[]",
    "items": [{"sku": "string", "size": {"w": "int"}}],
}


def indexes(*wheres: str, **options: Any) -> list[Index]:
    """A declared and an open index with these subscriptions, numbered from 0."""
    found = [Index(Schema(SCHEMA, **options)), Index()]
    for index in found:
        for number, where in enumerate(wheres):
            index.subscribe(number, where)
    return found


def matched(index: Index, table: Any) -> list[list[Any]]:
    return [sorted(ids) for ids in index.match_batch(table).to_lists()]


@pytest.mark.parametrize("kind", [pa.list_, pa.large_list, pa.list_view, pa.large_list_view])
def test_lists(kind: Any) -> None:
    rows = [["a", None], None, [], ["b"]]
    table = pa.table({"tags": pa.array(rows, kind(pa.string()))})
    for index in indexes("ANY(tags) = 'b'", "LENGTH(tags) = 2", "tags IS NULL", "ALL(tags) = 'b'"):
        assert matched(index, table) == [[1], [2], [3], [0, 3]]
        assert matched(index, table.slice(2)) == [[3], [0, 3]]


def test_lists_of_fixed_size_with_null() -> None:
    lists = pa.FixedSizeListArray.from_arrays(pa.array(["b", "a", "b", "b"]), 2, mask=pa.array([False, True]))
    for index in indexes("ANY(tags) = 'b'", "tags IS NULL"):
        assert matched(index, pa.table({"tags": lists})) == [[0], [1]]


def test_uuids_are_texts_wherever_they_are() -> None:
    ids = pa.array([ID.bytes], pa.uuid())
    objects = pa.StructArray.from_arrays([ids], ["sku"])
    table = pa.table(
        {
            "s": ids,
            "tags": pa.ListArray.from_arrays([0, 1], ids),
            "items": pa.ListArray.from_arrays([0, 1], objects),
        }
    )
    for index in indexes(f"s = '{ID}'", f"ANY(tags) = '{ID}'", f"EXISTS(items WHERE sku = '{ID}')", "s LIKE '%07'"):
        assert matched(index, table) == matched(index, table.to_reader()) == [[0, 1, 2, 3]]


def test_the_column_of_an_object_is_a_struct() -> None:
    declared, _ = indexes("o.q IS MISSING")
    for column in ([3], [[{"q": 2}]], pa.array([[("q", 2)]], pa.map_(pa.string(), pa.int64()))):
        with pytest.raises(TableError, match="'o' is an object: it takes a struct"):
            declared.match_batch(pa.table({"o": column, "a": [1]}))
    assert matched(declared, pa.table({"o": pa.nulls(1), "a": [1]})) == [[0]]


def test_a_map_is_an_object_of_an_open_index() -> None:
    index = Index()
    index.subscribe(1, "o.q = 2")
    index.subscribe(2, "o.q IS MISSING")
    column = pa.array([[("q", 2)], [("r", 2)], None], pa.map_(pa.string(), pa.int64()))
    assert matched(index, pa.table({"o": column})) == [[1], [2], [2]]


def test_maps_in_a_list_of_objects() -> None:
    """Every field of the objects has to take the values of the map; which fields come is known later."""
    text, number = pa.string(), pa.int64()
    fits: list[tuple[Any, pa.DataType, list[Any]]] = [
        ({"sku": "string", "to": "string"}, text, [("sku", "a")]),
        ({"sku": "string"}, pa.large_string(), [("sku", "a")]),
        ({"size": {"w": "float"}, "more": {"w": "int"}}, pa.map_(text, number), [("size", [("w", 1)])]),
        ({"size": {"w": "int"}}, pa.struct([("w", number)]), [("size", {"w": 1})]),
        ({"at": "timestamp"}, pa.timestamp("ns"), [("at", 1_000)]),
        ({"lines": [{"w": "int"}]}, pa.list_(pa.map_(text, number)), [("lines", [[("w", 1)]])]),
    ]
    wheres = ["sku = 'a'", "size.w = 1", "at > TIMESTAMP '1970-01-01 00:00:00'", "EXISTS(lines WHERE w = 1)"]
    for fields, kind, value in fits:
        table = pa.table({"items": pa.array([None, [[], None, value], []], pa.list_(pa.map_(text, kind)))})
        index = Index({"items": [fields]})
        index.subscribe(1, next(f"EXISTS(items WHERE {where})" for where in wheres if next(iter(fields)) in where))
        assert matched(index, table) == [[], [1], []]
        assert matched(index, table.slice(1)) == [[1], []]
    for key, kind in (number, text), (pa.binary(), text), (text, number), (text, pa.map_(text, number)):
        column = pa.array([], pa.list_(pa.map_(key, kind)))
        index = Index({"items": [{"sku": "string", "to": "string"}]})
        hint = "the keys of a map<.* are no texts" if key != text else "field 'sku': .* make a struct of it"
        with pytest.raises(TableError, match=f"column 'items': {hint}"):
            index.match_batch(pa.table({"items": column}))


def test_names_in_maps_of_a_table() -> None:
    """They are data, so what they are is a matter of `on_error`."""
    index = Index({"items": [{"sku": "string"}]})
    index.subscribe("a", "EXISTS(items WHERE sku = 'x')")
    maps = pa.list_(pa.map_(pa.string(), pa.string()))
    table = pa.table({"items": pa.array([[[("sku", "x")]], [[("skuu", "x")]], None], maps)})
    with pytest.raises(TableError, match=r"row 1: .*did you mean 'sku'"):
        index.match_batch(table)
    for on_error in ("null", "return"):
        found = index.match_batch(table, on_error=on_error)
        assert found.to_lists() == [["a"], [], []]
        assert [number for number, _ in found.errors] == [1]


def test_a_table_may_have_old_images_only() -> None:
    table = pa.table({"old": [{"a": 3}]})
    other = pa.table({"old": [{"else": 3}], "new": [{"a": 1}]})
    for index in indexes("OLD.a = 3", "a = 1", "a IS MISSING"):
        assert matched(index, table) == matched(index, table.to_pylist()) == [[0, 2]]
        assert matched(index, other) == [[1]]


def test_fields_in_lists_that_are_not_declared() -> None:
    """A table with such a field is refused only if that looks misspelt, as with columns."""
    where = "EXISTS(items WHERE sku = 'a' AND size.w = 1)"
    good = pa.table({"items": [[{"sku": "a", "else": 1, "size": {"w": 1, "more": 2}}], []]})
    misspelt = pa.table({"items": [[{"skuu": "a"}]]})
    inner = pa.table({"items": [[{"sku": "a", "size": {"ww": 2}}]]})
    neither, opened = indexes(where)
    ignoring, refusing = indexes(where, extra="ignore")[0], indexes(where, extra="error")[0]
    for index in (neither, ignoring, opened):
        assert matched(index, good) == [[0], []]
    with pytest.raises(TableError, match="'items': 'else' is no field of its objects"):
        refusing.match_batch(good)
    for index in (neither, refusing):
        with pytest.raises(TableError, match="did you mean 'sku'"):
            index.match_batch(misspelt)
        with pytest.raises(TableError, match=r"did you mean 'size\.w'"):
            index.match_batch(inner)
        with pytest.raises(TableError, match="event 1: attribute 'items': unknown attribute 'skuu'"):
            index.match_batch([{}, *misspelt.to_pylist()])
        with pytest.raises(UnknownAttribute, match="attribute 'items': unknown attribute 'skuu'"):
            index.match(misspelt.to_pylist()[0])
    assert matched(ignoring, misspelt) == [[]]


def test_documents_that_are_too_deep() -> None:
    index = Index()
    index.subscribe(1, "a = 1")
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"x": [deep]}
    circle: dict[str, Any] = {"a": 1}
    circle["two"] = [circle, circle]
    for event in ({"a": 1, "x": deep}, circle):
        with pytest.raises(ValueProblem, match="nested more than 200 deep"):
            index.match(event)
        with pytest.raises(TableError, match=r"event 0: .* nested more than 200 deep"):
            index.match_batch([event])
    assert index.match({"a": 1}) == [1]


def test_an_array_without_dimensions_is_its_value() -> None:
    index = Index()
    index.subscribe(1, "a = 1 AND ANY(b.c) = 'x'")
    assert index.match({"a": np.array(1), "b": {"c": np.array("x")}}) == [1]


def test_what_stands_beside_images() -> None:
    """A declared attribute there is an error, whatever happens to other fields: it would be lost."""
    event = {"new": {"a": 1}, "old": {"a": 2}}
    for extra in ("ignore", None):
        index = Index(Schema(SCHEMA, extra=extra))
        index.subscribe(1, "a = 1 AND OLD.a = 2")
        for beside in ({"a": 3}, {"o": {"q": 1}}):
            with pytest.raises(ValueProblem, match="stands beside the images"):
                index.match(event | beside)
            with pytest.raises(TableError, match="stands beside the images"):
                index.match_batch(pa.Table.from_pylist([event | beside]))
    ignoring = Index(Schema(SCHEMA, extra="ignore"))
    ignoring.subscribe(1, "a = 1 AND OLD.a = 2")
    assert ignoring.match(event | {"op": "u"}) == [1]
    assert matched(ignoring, pa.Table.from_pylist([event | {"op": "u"}])) == [[1]]


def test_the_fields_of_a_null_image_are_missing() -> None:
    index = Index({"price": "float"})
    index.subscribe("missing", "OLD.price IS MISSING")
    index.subscribe("null", "OLD.price IS NULL")
    image = pa.struct([("price", pa.float64())])
    old = pa.array([None, {"price": None}, {"price": 2.0}], image)
    table = pa.table({"old": old, "new": pa.array([{"price": 1.0}] * 3, image)})
    found = matched(index, table)
    assert found == [["missing", "null"], ["null"], []]
    assert found == [sorted(map(str, index.match(row))) for row in table.to_pylist()]
