"""Events and subscriptions as other libraries have them, and values of all their types, mean what plain ones mean."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from hitbox import Exchange, Index, Matches
from hitbox.encoding.values import for_json
from hitbox.errors import HitboxError, MissingExtra, TableError, ValueProblem
from support.open_index import open_index

SCHEMA = {"price": "float", "qty": "int", "city": "string", "ok": "bool", "at": "timestamp"}
ROWS: list[dict[str, Any]] = [
    {"price": 12.5, "qty": 3, "city": "Paris", "ok": True, "at": datetime(2026, 1, 31, tzinfo=UTC)},
    {"price": 30.0, "qty": 1, "city": "Rome", "ok": False, "at": datetime(2026, 2, 1, tzinfo=UTC)},
    {"price": None, "qty": None, "city": None, "ok": None, "at": None},
]
WHERE = {
    "cheap": "price < 20",
    "rome": "city = 'Rome'",
    "some": "qty > 2 AND ok",
    "january": "at < TIMESTAMP '2026-02-01'",
    "none": "price IS NULL AND city IS NULL",
}
WANTED = [["cheap", "some", "january"], ["rome"], ["none"]]


@pytest.fixture
def index() -> Index:
    index = Index(SCHEMA)
    for id, where in WHERE.items():
        index.subscribe(id, where)
    return index


@dataclass
class Sale:
    price: Any
    qty: Any
    city: Any
    ok: Any
    at: Any


class Stream:
    """What any library offers: nothing but Arrow's stream."""

    def __init__(self, table: pa.Table):
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


class OneBatch:
    def __init__(self, table: pa.Table):
        self._batch = table.combine_chunks().to_batches()[0]

    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        return self._batch.__arrow_c_array__(requested_schema)


def table() -> pa.Table:
    return pa.Table.from_pylist(ROWS)


def frame() -> Any:
    return pytest.importorskip("pandas", reason="NOT TESTED: pandas is not installed").DataFrame(ROWS)


def nullable_frame() -> Any:
    return frame().convert_dtypes()


def odd_frame() -> Any:
    """A DataFrame with an index of its own."""
    return frame().set_index([[7, 7, 9]])


def polars_frame() -> Any:
    return pytest.importorskip("polars", reason="NOT TESTED: polars is not installed").DataFrame(ROWS)


def structured() -> Any:
    kinds = [("price", "f8"), ("qty", "f4"), ("city", object), ("ok", object), ("at", "M8[h]")]
    rows = [tuple(None if v is None else np.datetime64(v.replace(tzinfo=None), "h") if isinstance(v, datetime) else v
                  for v in row.values()) for row in ROWS]  # fmt: skip
    return np.array(rows, kinds)


def models() -> Any:
    pydantic = pytest.importorskip("pydantic", reason="NOT TESTED: pydantic is not installed")
    model = pydantic.create_model("Sale", **dict.fromkeys(SCHEMA, (Any, None)))
    return [model(**row) for row in ROWS]


MANY: list[Callable[[], Any]] = [
    lambda: ROWS,
    lambda: tuple(ROWS),
    table,
    lambda: table().to_batches()[0],
    lambda: table().to_reader(),
    lambda: Stream(table()),
    lambda: OneBatch(table()),
    frame,
    nullable_frame,
    odd_frame,
    polars_frame,
    structured,
    models,
    lambda: [Sale(**row) for row in ROWS],
]
NAMES = ["list", "tuple", "table", "batch", "reader", "stream", "array", "pandas", "nullable", "index", "polars"]
NAMES += ["numpy", "pydantic", "dataclass"]


@pytest.mark.parametrize("make", MANY, ids=NAMES)
def test_many_events(index: Index, make: Callable[[], Any]) -> None:
    found = index.match_batch(make())
    assert [found[number] for number in range(3)] == WANTED


@pytest.mark.parametrize("make", [structured, models, lambda: [Sale(**row) for row in ROWS], lambda: frame().iloc],
                         ids=["numpy", "pydantic", "dataclass", "series"])  # fmt: skip
def test_one_event(index: Index, make: Callable[[], Any]) -> None:
    given = make()
    for number, wanted in enumerate(WANTED):
        assert index.match(given[number]) == wanted
        assert index.match_array(given[number]).to_pylist() == wanted
        assert index.explain(given[number]).matches == wanted  # type: ignore[union-attr]
        assert dict(index.match_levels(given[number])) == {4: wanted}
    change = index.match_change(given[0], given[1])
    assert (change.enter, change.leave, change.stay) == (["rome"], WANTED[0], [])


def test_other_matchers_and_residuals() -> None:
    for matcher in ("brute", "auto"):
        index = Index({"a": "int", "s": "string"}, matcher)
        index.subscribe(1, "s LIKE '%x' AND a + 1 > 2")
        sale = dataclass(type("Pair", (), {"__annotations__": {"a": int, "s": str}}))
        assert index.match(sale(2, "ax")) == [1]
        assert index.match_batch([sale(2, "ax"), {"a": 2, "s": "ay"}]).counts.tolist() == [1, 0]


SUBSCRIPTIONS = [{"id": 1, "where": "price < 20", "priority": 7}, {"id": 2, "where": "city = 'Rome'"}]


@dataclass
class Subscription:
    id: int
    where: str
    priority: int | None = None


@pytest.mark.parametrize(
    "make",
    [
        lambda: SUBSCRIPTIONS,
        lambda: tuple(SUBSCRIPTIONS),
        lambda: [Subscription(**row) for row in SUBSCRIPTIONS],  # type: ignore[arg-type]
        lambda: pa.Table.from_pylist(SUBSCRIPTIONS).to_reader(),
        lambda: Stream(pa.Table.from_pylist(SUBSCRIPTIONS)),
        lambda: pytest.importorskip("pandas").DataFrame(SUBSCRIPTIONS),
        lambda: pytest.importorskip("polars", reason="NOT TESTED: polars is not installed").DataFrame(SUBSCRIPTIONS),
        lambda: np.array([(1, "price < 20", 7), (2, "city = 'Rome'", 4)], "i4, U20, i1").view(
            np.dtype({"names": ["id", "where", "priority"], "formats": ["i4", "U20", "i1"]})
        ),
    ],
    ids=["list", "tuple", "dataclass", "reader", "stream", "pandas", "polars", "numpy"],
)  # fmt: skip
def test_load(make: Callable[[], Any]) -> None:
    index = Index(SCHEMA)
    assert index.load(make()).loaded == 2
    assert index.match({"price": 1, "city": "Rome"}) == [1, 2]
    assert [index.priority(id) for id in (1, 2)] == [7, 4]


def test_load_says_which_row_does_not_fit() -> None:
    index = Index(SCHEMA)
    with pytest.raises(TableError, match="row 1 is a int"):
        index.load([{"id": 1, "where": "qty = 1"}, 5])
    with pytest.raises(TableError, match="column 'id'"):
        index.load([{"id": 1, "where": "qty = 1"}, {"id": "x", "where": "qty = 1"}])
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(TableError, match="column 'more'"):
        index.load([{"id": 1, "where": "qty = 1", "more": deep}])
    report = index.load([{"id": 1, "where": "qty = "}, {"id": 2, "where": "qty = 1"}], on_error="return")
    assert report.loaded == 1
    assert report.errors[0][0] == 0


class Colour(Enum):
    RED = "red"
    NONE = None


class Level(IntEnum):
    HIGH = 3


class Number(Enum):
    THREE = 3
    HALF = Decimal("0.5")
    YES = True
    DAY = date(2026, 1, 31)


ID = UUID("12345678-1234-5678-1234-567812345678")
VALUES: list[tuple[str, Any, str]] = [
    ("float", Decimal("0.1"), "a = 0.1"),
    ("float", Decimal("NaN"), "a IS NULL"),
    ("float", np.float32(0.5), "a = 0.5"),
    ("float", np.int64(3), "a = 3"),
    ("float", Number.HALF, "a = 0.5"),
    ("float", Level.HIGH, "a = 3"),
    ("int", Decimal("3"), "a = 3"),
    ("int", Decimal("3.00"), "a = 3"),
    ("int", np.uint8(3), "a = 3"),
    ("int", np.float64(3.0), "a = 3"),
    ("int", Level.HIGH, "a = 3"),
    ("int", Number.THREE, "a = 3"),
    ("int", 3.0, "a = 3"),
    ("int", float("nan"), "a IS NULL"),
    ("string", ID, "a = '12345678-1234-5678-1234-567812345678'"),
    ("string", Colour.RED, "a = 'red'"),
    ("string", Colour.NONE, "a IS NULL"),
    ("string", np.str_("red"), "a = 'red'"),
    ("bool", np.bool_(True), "a"),
    ("bool", Number.YES, "a"),
    ("timestamp", date(2026, 1, 31), "a = TIMESTAMP '2026-01-31'"),
    ("timestamp", Number.DAY, "a = TIMESTAMP '2026-01-31'"),
    ("timestamp", np.datetime64("2026-01-31"), "a = TIMESTAMP '2026-01-31'"),
    ("timestamp", np.datetime64("NaT"), "a IS NULL"),
    ("string[]", [ID, Colour.RED], "ANY(a) = 'red' AND ANY(a) LIKE '1234%'"),
    ("int[]", np.array([1, 3]), "ANY(a) = 3"),
]


@pytest.mark.parametrize(("type_", "value", "where"), VALUES, ids=lambda one: str(one)[:30])
def test_values(type_: str, value: Any, where: str) -> None:
    index = Index({"a": type_, "b": {"c": type_}})
    index.subscribe(1, where)
    index.subscribe(2, where.replace("a)", "b.c)") if "(a)" in where else "b.c" + where[1:])
    event = {"a": value, "b": {"c": value}}
    assert index.match(event) == [1, 2]
    assert index.match_batch([event])[0] == [1, 2]
    json_event = for_json(event)
    assert index.match(json_event) == [1, 2]


def test_pandas_scalars() -> None:
    pandas = pytest.importorskip("pandas", reason="NOT TESTED: pandas is not installed")
    index = Index({"a": "timestamp", "n": "int"})
    index.subscribe(1, "a = TIMESTAMP '2026-01-31 10:00:00' AND n IS NULL")
    assert index.match({"a": pandas.Timestamp("2026-01-31 12:00", tz="Europe/Athens"), "n": pandas.NA}) == [1]
    index.subscribe(2, "a IS NULL AND n = 3")
    assert index.match({"a": pandas.NaT, "n": pandas.array([3], "Int64")[0]}) == [2]


def test_numbers_are_never_rounded_silently() -> None:
    index = Index({"i": "int", "f": "float"})
    for event in (
        {"i": Decimal("3.5")},
        {"i": Decimal("1e40")},
        {"i": np.float64(0.5)},
        {"f": 2**53 + 1},
        {"f": Decimal("1e400")},
    ):
        with pytest.raises(ValueProblem):
            index.match(event)
    for value in (Colour.RED, ID):
        with pytest.raises(ValueProblem):
            index.match({"i": value})


def test_what_is_masked_is_null() -> None:
    """In a structured array and the objects in it, in a value and in a list."""
    kinds = [("i", ">i8"), ("f", "f8"), ("o", object), ("at", "M8[s]"), ("l", "i4", 2), ("x", [("y", "i2")])]
    row = (3, 0.5, "red", np.datetime64("2026-01-31"), [1, 2], (4,))
    masks = [(False,) * 6, (True, True, True, True, [True, False], (True,))]
    array = np.ma.array([row, row], kinds, mask=[(*mask[:5], mask[5]) for mask in masks])
    index = Index({"i": "int", "f": "float", "o": "string", "at": "timestamp", "l": "int[]", "x": {"y": "int"}})
    index.subscribe(1, "i = 3 AND f = 0.5 AND o = 'red' AND at > TIMESTAMP '2026-01-30' AND ANY(l) = 1 AND x.y = 4")
    index.subscribe(2, "i IS NULL AND f IS NULL AND o IS NULL AND at IS NULL AND ANY(l) IS NULL AND x.y IS NULL")
    index.subscribe(3, "ANY(l) = 2")
    found = index.match_batch(array)
    assert [sorted(found[number]) for number in range(2)] == [[1, 3], [2, 3]]
    rows = [{"i": one["i"], "l": one["l"]} for one in array]
    assert [sorted(index.match(one)) for one in rows] == [[3], [2, 3]]
    for any_index in (index, Index()):
        any_index.subscribe(4, "i IS NULL AND ANY(l) = 2")
        assert [4 in any_index.match(one) for one in rows] == [False, True]
        assert [4 in any_index.match_batch(rows)[number] for number in range(2)] == [False, True]


def test_columns_of_objects() -> None:
    """In tables, too: Decimal, UUID, Enum, date, NaN and NA."""
    pandas = pytest.importorskip("pandas", reason="NOT TESTED: pandas is not installed")
    index = Index({"i": "int", "f": "float", "s": "string", "at": "timestamp", "l": "string[]"})
    index.subscribe(1, "i = 3 AND f = 0.5 AND s = 'red' AND at = TIMESTAMP '2026-01-31' AND ANY(l) = 'x'")
    index.subscribe(2, "i IS NULL AND f IS NULL AND at IS NULL AND s LIKE '1234%' AND LENGTH(l) = 0")
    columns = {
        "i": [Decimal(3), pandas.NA],
        "f": [Decimal("0.5"), float("nan")],
        "s": [Colour.RED, ID],
        "at": [date(2026, 1, 31), pandas.NaT],
        "l": [["x", "y"], []],
    }
    given = pandas.DataFrame({name: pandas.Series(values, dtype=object) for name, values in columns.items()})
    assert [index.match_batch(given)[row] for row in (0, 1)] == [[1], [2]]
    events = [{name: values[row] for name, values in columns.items()} for row in (0, 1)]
    assert [index.match_batch(events)[row] for row in (0, 1)] == [[1], [2]]


def test_categories_and_texts_of_pandas() -> None:
    pandas = pytest.importorskip("pandas", reason="NOT TESTED: pandas is not installed")
    index = Index({"s": "string"})
    index.subscribe(1, "s = 'a'")
    for dtype in ("category", "string", "str", object):
        given = pandas.DataFrame({"s": pandas.Series(["a", "b", None], dtype=dtype)})
        assert index.match_batch(given).counts.tolist() == [1, 0, 0]


@pytest.mark.parametrize("kind", ["Categorical", "Enum"])
def test_categories_of_polars(kind: str) -> None:
    polars = pytest.importorskip("polars", reason="NOT TESTED: polars is not installed")
    dtype = polars.Categorical if kind == "Categorical" else polars.Enum(["a", "b", "t = 'a'"])

    def frame(**columns: Any) -> Any:
        return polars.DataFrame({name: polars.Series(values, dtype=dtype) for name, values in columns.items()})

    for index in (Index({"t": "string"}), open_index()):
        assert index.load(frame(id=["a", "b"], where=["t = 'a'"] * 2)).loaded == 2
        assert sorted(index.unsubscribe_many(frame(id=["b", None])["id"].to_arrow()) for _ in "ab") == [0, 1]
        assert index.match_batch(frame(t=["a", "b", None])).to_lists() == [["a"], [], []]
        assert not index.check(frame(t=["a"]))
    wide = Index({"t": "string"})
    wide.load(frame(id=["a"], t_low=["a"], t_high=["b"]))
    assert wide.match({"t": "b"}) == ["a"]
    nested = Index({"l": "string[]", "o": {"t": "string"}})
    nested.subscribe(1, "ANY(l) = 'a' AND o.t = 'b'")
    columns = {
        "l": polars.Series([["a", "b"], None], dtype=polars.List(dtype)),
        "o": polars.Series([{"t": "b"}] * 2, dtype=polars.Struct({"t": dtype})),
    }
    assert nested.match_batch(polars.DataFrame(columns)).to_lists() == [[1], []]


def encodings(plain: pa.Array) -> list[Any]:
    """The same column in all ways in which Arrow may write it."""
    views = [plain.cast(pa.string_view())] if pa.types.is_string(plain.type) else []
    rows = pa.array(range(len(plain)), pa.uint8())
    codes = [pa.DictionaryArray.from_arrays(rows, one) for one in (plain, *views)]
    ends = pa.array(range(1, len(plain) + 1), pa.int32())
    runs = [pa.RunEndEncodedArray.from_arrays(ends, one) for one in (plain, *views, *codes)]
    found = [plain, *views, *codes, *runs]
    assert all(one.to_pylist() == plain.to_pylist() for one in found)
    return [*found, *(pa.chunked_array([one.slice(0, 1), one.slice(1)]) for one in found)]


@pytest.mark.parametrize("name", SCHEMA)
def test_a_column_means_the_same_in_all_encodings(index: Index, name: str) -> None:
    rest = table().drop_columns([name])
    for column in encodings(table()[name].combine_chunks()):
        given = rest.append_column(name, column)
        assert [sorted(ids) for ids in index.match_batch(given).to_lists()] == [sorted(ids) for ids in WANTED]
        one_by_one = open_index()
        for id, where in WHERE.items():
            one_by_one.subscribe(id, where)
        assert [sorted(ids) for ids in one_by_one.match_batch(given).to_lists()] == [sorted(ids) for ids in WANTED]


def test_subscriptions_in_all_encodings() -> None:
    wheres, ids = (encodings(pa.array(texts)) for texts in (["s = 'x'", "s > 'y'"], ["a", "b"]))
    for id, where in zip(ids, wheres, strict=True):
        index = Index({"s": "string"})
        assert index.load(pa.table({"id": id, "where": where})).loaded == 2
        assert [index.match({"s": text}) for text in "xz"] == [["a"], ["b"]]
        assert index.unsubscribe_many(id) == 2


def test_a_column_of_bytes_is_refused(index: Index) -> None:
    views = pa.array([b"Paris"], pa.binary_view())
    for column in (views, pa.DictionaryArray.from_arrays(pa.array([0]), views)):
        for name in SCHEMA:
            with pytest.raises(TableError, match=rf"column '{name}': a column of \S*binary\S* is not a column of"):
                index.match_batch(pa.table({name: column}))


@dataclass
class Item:
    sku: str
    price: Decimal


@dataclass
class Customer:
    city: str | None


@dataclass
class Order:
    customer: Customer | None
    tags: list[str] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)


def test_nested_objects() -> None:
    index = Index({"customer": {"city": "string"}, "tags": "string[]", "items": [{"sku": "string", "price": "float"}]})
    index.subscribe(1, "customer.city = 'Paris'")
    index.subscribe(2, "EXISTS(items WHERE sku = 'A' AND price < 10)")
    index.subscribe(3, "customer.city LIKE '%rome%'")
    order = Order(Customer("Paris"), ["x"], [Item("B", Decimal(1)), Item("A", Decimal("9.5"))])
    assert index.match(order) == [1, 2]
    assert index.match_batch([order, Order(None)]).counts.tolist() == [2, 0]
    assert index.match({"customer": Customer("a rome b")}) == [3]
    assert for_json(order) == {
        "customer": {"city": "Paris"},
        "tags": ["x"],
        "items": [{"sku": "B", "price": 1}, {"sku": "A", "price": 9.5}],
    }
    pydantic = pytest.importorskip("pydantic", reason="NOT TESTED: pydantic is not installed")
    inner = pydantic.create_model("Customer", city=(str, ...))
    outer = pydantic.create_model("Order", customer=(inner, ...))
    assert index.match(outer(customer={"city": "Paris"})) == [1]
    rows = np.array([(("Paris",),)], [("customer", [("city", "U10")])])
    assert index.match(rows[0]) == [1]
    assert index.match_batch(rows)[0] == [1]
    changed = index.match_change(Order(Customer("Rome")), Order(Customer("Paris")))
    assert changed.enter == [1]


def test_images_may_be_objects() -> None:
    index = Index({"city": "string"})
    index.subscribe(1, "OLD.city = 'Rome' AND city = 'Paris'")
    assert index.match({"old": Customer("Rome"), "new": Customer("Paris")}) == [1]
    assert index.match_change(Customer("Rome"), Customer("Paris")).enter == [1]


def test_an_exchange_takes_objects() -> None:
    exchange = Exchange({"city": "string"})
    exchange.subscribe("s", "city = 'Paris'")
    assert exchange.publish("e", Customer("Paris")) == ["s"]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        5,
        "x",
        None,
        {"price": 1},
        np.array([1, 2]),
        np.zeros((2, 2), [("price", "f8")]),
        iter(ROWS),
        Sale,
        Index,
        object(),
    ],
    ids=lambda one: type(one).__name__,
)
def test_what_is_no_batch(index: Index, wrong: Any) -> None:
    with pytest.raises(HitboxError, match=r"takes a pyarrow\.Table|is no table|of attribute to value"):
        index.match_batch(wrong)


@pytest.mark.parametrize("wrong", [5, "x", None, [1], Sale, object()], ids=lambda one: type(one).__name__)
def test_what_is_no_event(index: Index, wrong: Any) -> None:
    with pytest.raises(ValueProblem, match="an event is a mapping"):
        index.match(wrong)


def test_a_lazy_frame_is_to_be_collected(index: Index) -> None:
    class Lazy:
        def collect(self) -> None: ...

    with pytest.raises(TableError, match=r"\.collect\(\)"):
        index.match_batch(Lazy())


def test_frames_with_strange_columns(index: Index) -> None:
    pandas = pytest.importorskip("pandas", reason="NOT TESTED: pandas is not installed")
    with pytest.raises(TableError, match="no text"):
        index.match_batch(pandas.DataFrame({5: [1]}))
    with pytest.raises(TableError, match="two columns"):
        index.match_batch(pandas.DataFrame([[1, 2]], columns=["price", "price"]))
    with pytest.raises(TableError, match="column 'city'"):
        index.match_batch(pandas.DataFrame({"city": pandas.Series(["x", 5, object()], dtype=object)}))


def test_a_stream_that_is_no_table(index: Index) -> None:
    class Numbers:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return pa.chunked_array([[1, 2]]).__arrow_c_stream__(requested_schema)

    with pytest.raises(TableError, match="cannot read this Numbers as a table"):
        index.match_batch(Numbers())


def test_matches_go_out_as_arrow(index: Index) -> None:
    found = index.match_batch(ROWS)
    wanted = [{"event": n, "subscription": id} for n, ids in enumerate(WANTED) for id in ids]
    assert pa.table(found).to_pylist() == wanted
    assert pa.RecordBatchReader.from_stream(found).read_all().to_pylist() == wanted
    assert found.to_lists() == WANTED
    assert found.to_list_array().to_pylist() == WANTED
    empty = index.match_batch([])
    assert isinstance(empty, Matches)
    assert pa.table(empty).num_rows == 0
    assert empty.to_lists() == empty.to_list_array().to_pylist() == []


def test_matches_as_pandas(index: Index) -> None:
    pytest.importorskip("pandas", reason="NOT TESTED: pandas is not installed")
    given = index.match_batch(ROWS).to_pandas()
    assert given["subscription"].tolist() == [id for ids in WANTED for id in ids]
    assert given["event"].tolist() == [0, 0, 0, 1, 2]


def test_matches_as_polars(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("polars", reason="NOT TESTED: polars is not installed")
    given = index.match_batch(ROWS).to_polars()
    assert given["subscription"].to_list() == [id for ids in WANTED for id in ids]


def test_matches_without_the_package(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hitbox.index.matches.find_spec", lambda name: None)
    for method in ("to_pandas", "to_polars"):
        with pytest.raises(MissingExtra, match=f"Matches.{method} needs"):
            getattr(index.match_batch(ROWS), method)()


def test_nothing_is_imported_for_it() -> None:
    code = (
        "import sys, hitbox; index = hitbox.Index({'a': 'int'}); index.load([{'id': 1, 'where': 'a = 1'}]);"
        "index.match_batch([{'a': 1}]); print(*{'polars', 'pydantic'} & set(sys.modules))"
    )  # pyarrow imports pandas itself, to make an array
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not done.stdout.split()


def test_an_open_index_takes_objects() -> None:
    index = open_index()
    index.subscribe(1, "customer.city = 'Paris'")
    index.subscribe(2, "EXISTS(items WHERE sku = 'A' AND price < 10)")
    index.subscribe(3, "id = '12345678-1234-5678-1234-567812345678' AND colour = 'red'")
    order = Order(Customer("Paris"), [], [Item("A", Decimal("9.5"))])
    for event, wanted in (
        (order, [1, 2]),
        ({"customer": Customer("Paris")}, [1]),
        ({"id": ID, "colour": Colour.RED}, [3]),
    ):
        assert index.match(event) == wanted
        assert index.match_batch([event])[0] == wanted
    pandas = pytest.importorskip("pandas", reason="NOT TESTED: pandas is not installed")
    assert index.match_batch(pandas.DataFrame({"id": [ID], "colour": [Colour.RED]}))[0] == [3]
