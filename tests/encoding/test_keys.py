"""Keys keep order and come back, for every type, one by one and by whole columns."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hitbox.encoding.arrays import HIGHEST, LOWEST, MISSING
from hitbox.encoding.codecs import BoolCodec, Codec, FloatCodec, GridCodec, IntCodec, StringCodec, TimestampCodec
from hitbox.encoding.events import from_table
from hitbox.encoding.keys import Keys
from hitbox.encoding.schema import Attribute, Schema
from hitbox.errors import TableError, ValueProblem

INTS = st.one_of(st.integers(LOWEST, HIGHEST), st.integers(-3, 3), st.sampled_from([LOWEST, HIGHEST, 2**53, 2**53 + 1]))
FLOATS = st.one_of(
    st.floats(allow_nan=False),
    st.sampled_from([0.0, -0.0, 5e-324, -5e-324, 2.2250738585072014e-308, math.inf, -math.inf, 1.7976931348623157e308]),
)
TIMES = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC))
CASES = [
    (IntCodec(), INTS, pa.int64()),
    (FloatCodec(), FLOATS, pa.float64()),
    (BoolCodec(), st.booleans(), pa.bool_()),
    (TimestampCodec(), TIMES, pa.timestamp("us", "UTC")),
]


@pytest.mark.parametrize(("codec", "values", "kind"), CASES, ids=["int", "float", "bool", "timestamp"])
def test_order_round_trip_and_columns(codec: Codec, values: st.SearchStrategy, kind: pa.DataType) -> None:
    @given(st.lists(st.one_of(st.none(), values), max_size=20))
    def check(found: list) -> None:
        keys = [codec.key(v) for v in found]
        assert codec.column(pa.array(found, kind)).tolist() == keys
        assert codec.column(pa.chunked_array([pa.array(found, kind), pa.array(found[:1], kind)])).tolist()[
            : len(keys)
        ] == (keys)
        present = [(v, k) for v, k in zip(found, keys, strict=True) if v is not None]
        for v, k in present:
            assert LOWEST <= k <= HIGHEST
            assert codec.value(k) == v
            for w, j in present:
                assert (v < w) == (k < j)
                assert (v == w) == (k == j)
        assert all(k == MISSING for v, k in zip(found, keys, strict=True) if v is None)

    check()


@pytest.mark.parametrize(("codec", "values", "kind"), CASES, ids=["int", "float", "bool", "timestamp"])
def test_a_cut_parts_the_values(codec: Codec, values: st.SearchStrategy, kind: pa.DataType) -> None:
    @given(values, values)
    def check(literal: object, value: object) -> None:
        if isinstance(literal, float) and math.isinf(literal):
            return
        last, first = codec.cut(literal)
        key = codec.key(value)
        assert (value < literal) == (key <= last)  # type: ignore[operator]
        assert (value > literal) == (key >= first)  # type: ignore[operator]
        assert (value == literal) == (last < key < first)

    check()


@given(st.integers(LOWEST, HIGHEST), FLOATS)
def test_float_attribute_against_whole_number_is_exact(literal: int, value: float) -> None:
    last, first = FloatCodec().cut(literal)
    key = FloatCodec().key(value)
    assert ((value < literal), (value > literal)) == ((key <= last), (key >= first))


@given(st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**20), max_value=10**20), INTS)
def test_int_attribute_against_decimal_rounds_the_right_way(literal: Decimal, value: int) -> None:
    last, first = IntCodec().cut(literal)
    assert ((value < literal), (value > literal)) == ((value <= last), (value >= first))


def test_missing_nan_and_wrong_values() -> None:
    assert FloatCodec().key(math.nan) == FloatCodec().key(None) == MISSING
    assert FloatCodec().column(pa.array([math.nan, None, 1.0])).tolist()[:2] == [MISSING, MISSING]
    assert IntCodec().column(pa.array([math.nan, 2.0])).tolist() == [MISSING, 2]
    assert IntCodec().key(np.int32(5)) == IntCodec().key(5.0) == 5
    assert FloatCodec().key(-0.0) == FloatCodec().key(0.0)
    for codec, wrong in [
        (IntCodec(), "3"),
        (IntCodec(), 3.5),
        (IntCodec(), True),
        (IntCodec(), 2**63),
        (IntCodec(), -(2**63)),
        (FloatCodec(), "x"),
        (FloatCodec(), True),
        (FloatCodec(), 2**53 + 1),
        (FloatCodec(), 10**400),
        (BoolCodec(), 1),
        (StringCodec(), 3),
        (StringCodec(), "\ud800"),
        (TimestampCodec(), 3),
        (TimestampCodec(), "yesterday"),
    ]:
        with pytest.raises(ValueProblem):
            codec.key(wrong)
    for codec, column in [
        (IntCodec(), pa.array(["3"])),
        (IntCodec(), pa.array([3.5])),
        (IntCodec(), pa.array([2**63], pa.uint64())),
        (IntCodec(), pa.array([-(2**63)])),
        (FloatCodec(), pa.array([True])),
        (FloatCodec(), pa.array([2**53 + 1])),
        (BoolCodec(), pa.array(["maybe"])),
        (StringCodec(), pa.array([1])),
        (TimestampCodec(), pa.array([1])),
    ]:
        with pytest.raises(ValueProblem):
            codec.column(column)


def test_timestamps_of_every_form() -> None:
    codec, moment = TimestampCodec(), datetime(2026, 1, 31, 12, tzinfo=UTC)
    keys = {
        codec.key(v)
        for v in (
            moment,
            moment.replace(tzinfo=None),
            "2026-01-31 12:00:00",
            "2026-01-31T13:00:00+01:00",
            np.datetime64("2026-01-31T12:00"),
        )
    }
    assert keys == {(moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)}
    for kind in (pa.timestamp("s"), pa.timestamp("ns", "UTC"), pa.timestamp("ms", "Europe/Paris")):
        assert set(codec.column(pa.array([moment], pa.timestamp("us", "UTC")).cast(kind)).tolist()) == keys
    assert set(codec.column(pa.array(["2026-01-31 12:00:00"])).tolist()) == keys


GRIDS = [
    Attribute("float", domain=(0, 1), precision=1e-6),
    Attribute("float", domain=("-2.5", 10), precision="0.25"),
    Attribute("int", domain=(-100, 100), precision=5),
    Attribute("int", domain=(0, 10)),
]


@pytest.mark.parametrize("attribute", GRIDS, ids=str)
def test_a_grid_keeps_the_order_of_every_value(attribute: Attribute) -> None:
    codec = GridCodec(attribute)
    low, high = codec.first, codec.last
    number = float if attribute.type == "float" else int
    steps = st.integers(low, high).map(lambda i: number(i * codec.step))
    stray = st.floats(-1e9, 1e9) if attribute.type == "float" else st.integers(-(2**62), 2**62)

    @given(st.lists(st.one_of(steps, stray), min_size=1, max_size=20), steps)
    def check(values: list, literal: float) -> None:
        keys = [codec.key(v) for v in values]
        assert codec.column(pa.array(values)).tolist() == keys
        last, first = codec.cut(Decimal(repr(literal)) if isinstance(literal, float) else literal)
        for value, key in zip(values, keys, strict=True):
            assert ((value < literal), (value > literal)) == ((key <= last), (key >= first)), (value, literal)
        assert codec.value(codec.key(literal)) == literal

    check()


def test_a_grid_refuses_what_does_not_fit_in_predicates() -> None:
    codec = GridCodec(GRIDS[0])
    with pytest.raises(ValueProblem, match="domain"):
        codec.cut(Decimal("1.5"))
    with pytest.raises(ValueProblem, match="precision"):
        codec.cut(Decimal("0.1234567"))
    assert codec.key(math.inf) > codec.key(1.0) > codec.key(0.0) > codec.key(-math.inf)
    assert codec.domain() == (0, 2_000_000)


LISTS = Keys(
    Schema({"tags": "string[]", "ns": "int[]", "items": [{"sku": "string", "size": {"w": "float"}, "of": "int[]"}]})
)


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        (
            "tags",
            pa.list_(pa.int32()),
            "column 'tags': the elements of its lists: a column of int32 is not a column of te",
        ),
        ("tags", pa.list_(pa.list_(pa.string())), "is not a column of texts"),
        ("ns", pa.large_list(pa.string()), "a column of string is not a column of numbers"),
        ("items", pa.list_(pa.string()), "a column of string is not a column of structs; these are objects"),
        ("items", pa.list_(pa.struct({"sku": pa.bool_()})), "field 'sku': a column of bool is not a column of texts"),
        (
            "items",
            pa.list_(pa.struct({"size": pa.struct({"w": pa.string()})})),
            "field 'size': field 'w': a column of str",
        ),
        (
            "items",
            pa.list_(pa.struct({"size": pa.int8()})),
            "field 'size': a column of int8 is not a column of structs",
        ),
        ("items", pa.list_(pa.struct({"of": pa.int8()})), "field 'of': a column of int8 is not a column of lists"),
        (
            "items",
            pa.list_(pa.struct({"of": pa.list_(pa.bool_())})),
            "field 'of': the elements of its lists: a column of b",
        ),
    ],
)
def test_the_elements_of_a_column_of_lists_have_its_type_in_any_row_or_none(
    name: str, kind: pa.DataType, message: str
) -> None:
    for rows in (0, 2):
        with pytest.raises(TableError, match=re.escape(message)):
            from_table(LISTS, pa.table({name: pa.nulls(rows, kind)}))


@pytest.mark.parametrize(
    "kind",
    [
        pa.null(),
        pa.list_(pa.null()),
        pa.list_(pa.dictionary(pa.int8(), pa.string())),
        pa.large_list(pa.large_string()),
    ],
)
def test_columns_of_lists_that_fit(kind: pa.DataType) -> None:
    assert len(from_table(LISTS, pa.table({"tags": pa.nulls(0, kind)})).low) == 0
    objects = pa.list_(
        pa.struct({"sku": pa.null(), "size": pa.null(), "of": pa.list_(pa.uint8()), "other": pa.binary()})
    )
    assert len(from_table(LISTS, pa.table({"items": pa.nulls(2, objects)})).low) == 2
