"""Values of every make mean the same through every door: one event, a list, a table; engine, residual and explain."""

from __future__ import annotations

import enum
import math
import warnings
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hitbox import Attribute, Exchange, Index, Schema, language
from hitbox.encoding.codecs import BoolCodec, Codec, FloatCodec, IntCodec, StringCodec, TimestampCodec
from hitbox.encoding.values import ends_of, for_json, forbidden, is_missing
from hitbox.errors import HitboxError, TableError, UnknownSubscription, ValueProblem

pytestmark = pytest.mark.filterwarnings("ignore::hitbox.errors.NeverMatches")
D = Decimal
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
MIDNIGHT = datetime(2026, 1, 31, tzinfo=UTC)
SCHEMA = Schema(
    {
        "i": "int",
        "f": "float",
        "b": "bool",
        "t": "timestamp",
        "s": "string",
        "g": Attribute("float", domain=(0, 5), precision="0.1"),
        "tail": "string",
    }
)
LITERALS = {
    "i": ["3", "3.0", "2.5", "9007199254740993", "9007199254740993.0", "9223372036854775807", "-1"],
    "f": ["0.1", "0", "3", "0.5", "9007199254740993", "9007199254740993.0", "9007199254740992", "1e-300"],
    "t": ["TIMESTAMP '2026-01-31'", "TIMESTAMP '2026-01-31 12:00:00'", "TIMESTAMP '9999-12-31 23:59:59.999999'"],
    "s": ["'a'", "'m'", "'é'"],
    "g": ["0.1", "0.3", "2"],
}
PREDICATES = [f"{n} {op} {v}" for n, many in LITERALS.items() for op in ("=", "<>", "<", "<=", ">", ">=") for v in many]
PREDICATES += [
    f"{n} {op} ({', '.join(many[:k])})" for n, many in LITERALS.items() for op in ("IN", "NOT IN") for k in (2, 6)
]
PREDICATES += [f"{n} NOT BETWEEN {many[0]} AND {many[1]}" for n, many in LITERALS.items()]
PREDICATES += ["b", "NOT b", *(f"{n} IS NULL" for n in "ifbtsg")]


class Whole(enum.IntEnum):
    THREE = 3


class Word(str, enum.Enum):  # noqa: UP042 - the form whose str() is not its text
    LETTER = "m"


# (a value of some make, the plain value that it means; None is missing)
NOTHING: list[tuple[Any, Any]] = [(math.nan, None), (np.float32("nan"), None), (D("NaN"), None), (D("sNaN"), None)]
NOTHING += [(pd.NA, None), (pd.NaT, None), (np.datetime64("NaT"), None), (np.datetime64("NaT", "ns"), None)]
MAKES: dict[str, list[tuple[Any, Any]]] = {
    "i": [
        (np.int8(3), 3),
        (np.uint64(2**63 - 1), 2**63 - 1),
        (3.0, 3),
        (np.float16(3), 3),
        (D("3.0"), 3),
        (Whole.THREE, 3),
    ],
    "f": [
        (D("0.1"), 0.1),
        (D("9007199254740993"), 2.0**53),
        (D("1e-400"), 0.0),
        (D("-0.0"), 0.0),
        (D("Infinity"), math.inf),
        (np.float32(0.1), float(np.float32(0.1))),
        (np.float16(0.5), 0.5),
        (3, 3.0),
        (2**60, 2.0**60),
        (np.int64(3), 3.0),
        (np.uint8(3), 3.0),
        (Whole.THREE, 3.0),
    ],
    "g": [
        (D("0.1"), 0.1),
        (D("0.3"), 0.3),
        (np.float32(0.3), float(np.float32(0.3))),
        (2, 2.0),
        (D("0.25"), 0.25),
        (99, 99.0),
    ],
    "b": [(np.True_, True), (np.False_, False)],
    "t": [
        (NOON.replace(tzinfo=None), NOON),
        (NOON.astimezone(ZoneInfo("Asia/Tokyo")), NOON),
        ("2026-01-31T14:00+02:00", NOON),
        ("2026-01-31 12:00:00.000000000", NOON),
        (date(2026, 1, 31), MIDNIGHT),
        (np.datetime64("2026-01-31T12:00"), NOON),
        (np.datetime64("2026-01-31"), MIDNIGHT),
        (np.datetime64("2026-01-31T12:00:00.000000000"), NOON),
        (pd.Timestamp("2026-01-31 12:00"), NOON),
        (pd.Timestamp("2026-01-31 13:00", tz="Europe/Paris"), NOON),
        (datetime.max, datetime.max.replace(tzinfo=UTC)),
    ],
    "s": [(np.str_("m"), "m"), (Word.LETTER, "m"), (np.str_("é"), "é")],
}
US, NS = pa.timestamp("us"), pa.timestamp("ns", "Europe/Paris")
COLUMNS: list[tuple[str, pa.Array, list[Any]]] = [
    ("i", pa.array([3, None, 200], pa.uint8()), [3, None, 200]),
    ("i", pa.array([2**63 - 1, None], pa.uint64()), [2**63 - 1, None]),
    ("i", pa.array([3.0, math.nan, None], pa.float32()), [3, None, None]),
    ("i", pa.array([np.float16(3), None], pa.float16()), [3, None]),
    ("i", pa.array([D("3.00"), None, D("9007199254740993.00")], pa.decimal128(20, 2)), [3, None, 2**53 + 1]),
    ("i", pa.array([3, None, 3]).dictionary_encode(), [3, None, 3]),
    ("f", pa.array([D("0.1"), None, D("3")], pa.decimal128(5, 1)), [0.1, None, 3.0]),
    ("f", pa.array([D("0.1"), None, D("9007199254740993")], pa.decimal128(38, 10)), [0.1, None, 2.0**53]),
    ("f", pa.array([D("0.1"), None], pa.decimal256(60, 20)), [0.1, None]),
    ("f", pa.array([D("0.1"), None, D("0.1")], pa.decimal128(5, 1)).dictionary_encode(), [0.1, None, 0.1]),
    ("f", pa.array([D("0.1"), None], pa.decimal32(5, 1)), [0.1, None]),
    ("i", pa.array([D("3"), None], pa.decimal64(15, 1)), [3, None]),
    ("i", pc.run_end_encode(pa.array([3, 3, None])), [3, 3, None]),
    ("s", pc.run_end_encode(pa.array(["m", "m", None])), ["m", "m", None]),
    ("f", pa.array([0.1, None], pa.float32()), [float(np.float32(0.1)), None]),
    ("f", pa.array([np.float16(0.5), None], pa.float16()), [0.5, None]),
    ("f", pa.array([3, None, 2**60]), [3.0, None, 2.0**60]),
    ("f", pa.array([3, None, 2**63], pa.uint64()), [3.0, None, 2.0**63]),
    ("f", pa.nulls(2), [None, None]),
    ("g", pa.array([D("0.1"), D("0.3"), None], pa.decimal128(3, 1)), [0.1, 0.3, None]),
    ("g", pa.array([0.3, 99.0, None], pa.float32()), [float(np.float32(0.3)), 99.0, None]),
    ("g", pa.array([2, None]), [2.0, None]),
    ("b", pa.array([True, None, True]).dictionary_encode(), [True, None, True]),
    ("b", pa.nulls(1), [None]),
    ("t", pa.array([NOON.replace(tzinfo=None), None], pa.timestamp("s")), [NOON, None]),
    ("t", pa.array([NOON, None], pa.timestamp("ms", "Asia/Tokyo")), [NOON, None]),
    ("t", pa.array([NOON, None], NS), [NOON, None]),
    ("t", pa.array([date(2026, 1, 31), None], pa.date32()), [MIDNIGHT, None]),
    ("t", pa.array([date(2026, 1, 31), None], pa.date64()), [MIDNIGHT, None]),
    ("t", pa.array(["2026-01-31T14:00+02:00", None, "2026-01-31"]), [NOON, None, MIDNIGHT]),
    ("t", pa.array([NOON, None, NOON], NS).dictionary_encode(), [NOON, None, NOON]),
    ("s", pa.array(["m", None, "é"], pa.string_view()), ["m", None, "é"]),
    ("s", pa.array(["m", None, "é", "m"]).dictionary_encode(), ["m", None, "é", "m"]),
    ("s", pa.array(["m", None], pa.large_string()), ["m", None]),
]


def filled(matcher: str) -> Index:
    """Each predicate twice: by its boxes alone, and with a LIKE that has to be checked on the event's values."""
    index = Index(SCHEMA, matcher)
    for number, where in enumerate(PREDICATES):
        index.subscribe(f"{number}", where)
        index.subscribe(f"{number} checked", f"({where}) AND tail LIKE '%z'")
    return index


@pytest.fixture(scope="module")
def indexes() -> list[Index]:
    return [filled("auto"), filled("brute")]


def wanted(index: Index, event: dict[str, Any]) -> set[str]:
    """What matches the plain event: the predicates that the language finds true, in both forms."""
    found = {n for n, where in enumerate(PREDICATES) if language.evaluate(index.parse(where), event) is True}
    return {f"{n}{more}" for n in found for more in ("", " checked")}


@pytest.mark.parametrize("name", list(MAKES))
def test_single_values(indexes: list[Index], name: str) -> None:
    for value, plain in MAKES[name] + NOTHING:
        event, same = {name: value, "tail": "xyz"}, {name: plain, "tail": "xyz"}
        want = wanted(indexes[0], same)
        assert want, name
        for index in indexes:
            assert set(index.match(event)) == want, value
            assert {id for _, ids in index.match_levels(event) for id in ids} == want, value
            assert set(index.match_batch([same, event])[1]) == want, value
        for id in Random(1).sample(sorted(indexes[0]), 20):
            assert indexes[0].explain(event, id).matched == (id in want), (value, id)  # type: ignore[union-attr]


@pytest.mark.parametrize("at", range(len(COLUMNS)), ids=[f"{name} {array.type}" for name, array, _ in COLUMNS])
def test_columns(indexes: list[Index], at: int) -> None:
    name, array, plain = COLUMNS[at]
    for column in (array, pa.chunked_array([array.slice(0, 1), array.slice(1)])):
        table = pa.table({name: column, "tail": ["xyz"] * len(array)})
        want = [wanted(indexes[0], {name: value, "tail": "xyz"}) for value in plain]
        for index in indexes:
            found = index.match_batch(table)
            assert [set(found[row]) for row in range(len(array))] == want


def test_the_reported_decimal() -> None:
    index = Index({"f": "float", "s": "string"})
    index.subscribe("plain", "f >= 0.1")
    index.subscribe("checked", "f >= 0.1 AND s LIKE '%z'")
    event = {"f": D("0.1"), "s": "z"}
    assert set(index.match(event)) == {"plain", "checked"}
    assert set(index.match_batch(pa.table({"f": [D("0.1")], "s": ["z"]}))[0]) == {"plain", "checked"}
    reasons = index.explain(event, "checked")
    assert reasons.matched  # type: ignore[union-attr]
    assert "f is 0.1" in str(reasons)


def test_what_subscribers_say_of_themselves() -> None:
    """`about` and `where` see the same plain values, with and without a check of the predicate."""
    schema = {"x": "int", "a": Attribute("float", role="information"), "c": Attribute("string", role="information")}
    for about in ({"a": D("0.1"), "c": "z"}, {"a": np.float64(0.1), "c": np.str_("z")}, {"a": 0.1, "c": Word("m")}):
        index = Index(schema)
        index.subscribe(1, "x > 0", about=about)
        assert index.about(1) == {"a": 0.1, "c": "m" if about["c"] is Word.LETTER else "z"}
        for where in ("a >= 0.1", "a >= 0.1 AND c LIKE '%'", "a = 0.1 AND (c LIKE '%z' OR c LIKE '%m')"):
            assert index.match({"x": 1}, where) == [1]
            assert index.explain({"x": np.int8(1)}, 1, where).matched  # type: ignore[union-attr]
    exchange = Exchange(schema)
    exchange.subscribe("s", "x > 3", about={"a": {"low": D("0.5"), "high": 2}})
    assert exchange.publish("e", {"x": {"low": np.int8(1), "high": 9}}, where="a < 0.6") == ["s"]
    assert exchange.explain("e", "s").matched
    wide = pa.table({"id": [7], "a_low": [D("0.1")], "a_high": pa.nulls(1, pa.float64()), "x_low": [0], "x_high": [9]})
    index = Index(schema)
    index.load(wide)
    assert index.about(7) == {"a": (0.1, math.inf)}
    assert index.match({"x": 1}, "a = 0.1 AND c IS NULL") == [7]


CODECS: list[tuple[Codec, pa.DataType, st.SearchStrategy[Any]]] = [
    (FloatCodec(), pa.decimal128(15, 4), st.decimals(-(10**10), 10**10, places=4)),
    (FloatCodec(), pa.decimal128(38, 20), st.decimals(-(10**17), 10**17, places=20)),
    (FloatCodec(), pa.decimal128(38, 0), st.decimals(-(10**37), 10**37, places=0)),
    (IntCodec(), pa.decimal128(24, 3), st.integers(-(2**64), 2**64).map(lambda n: D(n) + n % 2 * D("0.001"))),
    (IntCodec(), pa.uint64(), st.integers(0, 2**64 - 1)),
    (IntCodec(), pa.float64(), st.one_of(st.floats(), st.integers(-(2**63), 2**63).map(float))),
    (IntCodec(), pa.float32(), st.floats(width=32)),
    (FloatCodec(), pa.int64(), st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**54), 2**54))),
    (FloatCodec(), pa.uint64(), st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 2**10 - 1).map(lambda n: n << 54))),
    (FloatCodec(), pa.float16(), st.floats(width=16).map(np.float16)),
    (TimestampCodec(), pa.timestamp("ns"), st.integers(-(2**63) + 1, 2**63 - 1)),
    (TimestampCodec(), pa.timestamp("ns"), st.integers(-(10**15), 10**15).map(lambda n: n * 1000)),
    (TimestampCodec(), pa.timestamp("us"), st.integers(-(2**63) + 1, 2**63 - 1)),
    (TimestampCodec(), pa.timestamp("s"), st.integers(-(10**11), 3 * 10**11)),
]


@pytest.mark.parametrize(("codec", "kind", "values"), CODECS, ids=[f"{c.type} {kind}" for c, kind, _ in CODECS])
def test_a_column_and_its_values_have_the_same_keys(codec: Codec, kind: pa.DataType, values: Any) -> None:
    """And what a single value is refused for, the column is refused for, at that row."""

    @settings(max_examples=settings.default.max_examples * 6 // 10)
    @given(st.lists(st.one_of(st.none(), values), min_size=1, max_size=6))
    def check(found: list[Any]) -> None:
        array = pa.array(found, pa.int64()).cast(kind) if pa.types.is_timestamp(kind) else pa.array(found, kind)
        alone = found
        if pa.types.is_timestamp(kind):
            alone = [None if v is None else np.datetime64(v, kind.unit) for v in found]
        keys, bad = [], []
        for value in alone:
            try:
                keys.append(codec.key(value))
                bad.append(False)
            except ValueProblem:
                keys.append(0)
                bad.append(True)
        got, wrong = codec.attempt(array)
        assert (wrong if wrong is not None else np.zeros(len(found), bool)).tolist() == bad
        assert [k for k, no in zip(got.tolist(), bad, strict=True) if not no] == [
            k for k, no in zip(keys, bad, strict=True) if not no
        ]
        if any(bad):
            with pytest.raises(ValueProblem, match=f"row {bad.index(True)}"):
                codec.column(array)

    check()


# ---- literals that are equal and differ


def test_an_in_list_keeps_literals_apart_that_compare_differently() -> None:
    """Against a float attribute an integer is exact, a decimal is its nearest double: 2^53 + 1 is not 2^53 + 1.0."""
    big = 2**53
    pool = [f"{n}{point}" for n in (big, big + 1, big + 2, -big - 1, 1) for point in ("", ".0")]
    values = [float(big), float(big + 2), -float(big), 1.0, 2.0]
    rng = Random(3)
    schema = {"f": "float", "s": "string"}
    for _ in range(150):
        chosen = [rng.choice(pool) for _ in range(rng.randint(2, 4))]
        texts = [f"f {op} ({', '.join(chosen)})" for op in ("IN", "NOT IN")]
        texts += [" OR ".join(f"f = {one}" for one in chosen), " AND ".join(f"f <> {one}" for one in chosen)]
        exact = {float(one) if "." in one else int(one) for one in chosen}
        for matcher in ("auto", "brute"):
            index = Index(schema, matcher)
            for number, text in enumerate(texts):
                index.subscribe(number, text)
                index.subscribe(number + 10, f"({text}) AND s LIKE '%z'")
            for value in values:
                inside = any(value == one for one in exact)
                want = {0, 2, 10, 12} if inside else {1, 3, 11, 13}
                assert set(index.match({"f": value, "s": "z"})) == want, (chosen, value)


def test_equal_numbers_of_different_kinds_make_different_predicates() -> None:
    schema = Schema({"f": "float"})
    for one, other in [("f = 1", "f = 1.0"), ("f IN (1, 2.0)", "f IN (1.0, 2)")]:
        assert language.parse(one, schema) != language.parse(other, schema)
        assert language.parse(one, schema) == language.parse(one, schema)


# ---- timestamps

FINE: list[Any] = [
    pd.Timestamp("2026-01-31T00:00:00.000000001"),
    np.datetime64("2026-01-31T00:00:00.000000001"),
    np.datetime64("1970-01-31T00:00:00.000000000001"),
    "2026-01-31T00:00:00.0000001",
    "2026-01-31T00:00:00,000000001Z",
    pa.array([1769817600 * 10**9 + 1], pa.timestamp("ns")),
    pa.array([1769817600 * 10**9 + 1], NS),
]
FAR: list[Any] = [
    np.datetime64("20000-01-01"),
    np.datetime64("0000-12-31T23:59:59"),
    np.datetime64(2**62, "D"),
    pd.Timestamp(np.datetime64("20000-01-01", "s")),
    datetime(9999, 12, 31, 23, 30, tzinfo=timezone(-timedelta(hours=1))),
    pa.array([2**62], US),
    pa.array([2**62], pa.timestamp("s")),
    pa.array([-(2**62)], pa.timestamp("ms", "UTC")),
    pa.array([2**31 - 1], pa.int32()).cast(pa.date32()),
]


@pytest.mark.parametrize("where", ["t >= TIMESTAMP '2026-01-31'", "t >= TIMESTAMP '2026-01-31' AND s LIKE '%z'"])
def test_timestamps_are_never_rounded_and_never_break(where: str) -> None:
    index = Index({"t": "timestamp", "s": "string"})
    index.subscribe(1, where)
    for says, many in {"finer than a microsecond.*floor": FINE, "years 1 to 9999": FAR}.items():
        for value in many:
            if isinstance(value, pa.Array):
                table = pa.table({"t": pa.chunked_array([pa.nulls(1, value.type), value]), "s": ["z", "z"]})
                with pytest.raises(TableError, match=f"'t', row 1: .*{says}"):
                    index.match_batch(table)
                continue
            event = {"t": value, "s": "z"}
            calls: list[Callable[[], Any]] = [
                lambda event=event: index.match(event),  # type: ignore[misc]
                lambda event=event: index.explain(event, 1),  # type: ignore[misc]
                lambda event=event: list(index.match_levels(event)),  # type: ignore[misc]
                lambda event=event: index.match_batch([event]),  # type: ignore[misc]
            ]
            for call in calls:
                with pytest.raises(HitboxError, match=f"'t'.*{says}"):
                    call()


def test_the_ends_of_time_are_explained() -> None:
    found = Index({"t": "timestamp"})
    found.subscribe(1, "t > TIMESTAMP '9999-12-31 23:59:59.999999' OR t < TIMESTAMP '0001-01-01'")
    reason = found.explain({"t": NOON}, 1)
    assert not reason.matched  # type: ignore[union-attr]
    assert not reason.changes  # type: ignore[union-attr]
    assert "none is known that leads to a match" in str(reason)


def test_rows_are_counted_over_the_whole_batch() -> None:
    index = Index({"i": "int"})
    with pytest.raises(TableError, match=r"row 20000: 2\.5") as caught:
        index.match_batch(pa.table({"i": [1.0] * 20_000 + [2.5]}))
    assert caught.value.rows[0][0] == 20_000
    with pytest.raises(TableError, match="event 20000"):
        index.match_batch([{"i": 1}] * 20_000 + [{"i": "x"}])


BOUNDS: list[tuple[str, pa.Array, pa.Array, str]] = [
    ("i", pa.array([D("2.5")]), pa.array([D("3.5")]), "i BETWEEN 2.5 AND 3.5"),
    ("i", pa.array([2.5], pa.float32()), pa.array([3], pa.uint64()), "i BETWEEN 2.5 AND 3"),
    ("i", pa.array([np.float16(2.5)], pa.float16()), pa.array([7]).dictionary_encode(), "i BETWEEN 2.5 AND 7"),
    ("f", pa.array([D("0.1")]), pa.array([D("3.0")]), "f BETWEEN 0.1 AND 3.0"),
    ("f", pa.array([D("0.1")], pa.decimal256(50, 10)), pa.array([3]), "f BETWEEN 0.1 AND 3"),
    ("f", pa.array([None], pa.float64()), pa.array([0.5], pa.float32()), "f <= 0.5"),
    ("t", pa.array([NOON], NS), pa.nulls(1, NS), "t >= TIMESTAMP '2026-01-31 12:00:00'"),
    (
        "t",
        pa.array([date(2026, 1, 31)]),
        pa.array(["2026-01-31T14:00+02:00"]),
        "t BETWEEN TIMESTAMP '2026-01-31' AND TIMESTAMP '2026-01-31 12:00'",
    ),
    ("s", pa.array(["a"], pa.string_view()), pa.array(["m"]).dictionary_encode(), "s BETWEEN 'a' AND 'm'"),
    ("b", pa.array([True]), pa.nulls(1, pa.bool_()), "b"),
    ("g", pa.array([D("0.1")]), pa.array([0.3]), "g BETWEEN 0.1 AND 0.3"),
]


@pytest.mark.parametrize(("name", "low", "high", "where"), BOUNDS, ids=[b[3] for b in BOUNDS])
def test_bounds_of_every_make(name: str, low: pa.Array, high: pa.Array, where: str) -> None:
    """A table of bounds says what the predicate says, also where it is read back as a text."""
    index = Index(SCHEMA)
    index.load(pa.table({"id": ["wide"], f"{name}_low": low, f"{name}_high": high}))
    index.subscribe("text", where)
    for value, _ in [*MAKES[name], *[(plain, plain) for _, plain in MAKES[name]], (None, None)]:
        found = set(index.match({name: value}))
        assert found in ({"wide", "text"}, set()), value
        assert index.explain({name: value}, "wide").matched == bool(found)  # type: ignore[union-attr]


def test_bounds_that_do_not_fit_are_errors_of_their_rows() -> None:
    index = Index(SCHEMA)
    cases = {
        "i": pa.array([1, 2**63], pa.uint64()),
        "f": pa.array([1, 2**53 + 1]),
        "t": pa.array([0, 1], pa.timestamp("ns")),
        "s": pa.array(["a", "b\0"]),
        "g": pa.array([0.1, 0.15]),
    }
    for name, column in cases.items():
        table = pa.table({"id": [1, 2], f"{name}_low": column, f"{name}_high": pa.nulls(2, column.type)})
        with pytest.raises(TableError, match=f"row 1: {name}_low"):
            index.load(table)
        report = index.load(table, on_error="return")
        assert (report.loaded, [row for row, _ in report.errors]) == (1, [1])


def test_empty_tables() -> None:
    index = filled("auto")
    kinds = {
        "i": pa.uint8(),
        "f": pa.decimal128(9, 2),
        "b": pa.bool_(),
        "t": NS,
        "s": pa.string_view(),
        "g": pa.float16(),
    }
    kinds["tail"] = pa.dictionary(pa.int32(), pa.string())
    for table in (
        pa.schema(list(kinds.items())).empty_table(),
        pa.schema([(n, pa.struct({"low": k, "high": k})) for n, k in kinds.items()]).empty_table(),
        pa.schema([(f"{n}_{end}", k) for n, k in kinds.items() for end in ("low", "high")]).empty_table(),
    ):
        assert len(index.match_batch(table)) == 0
    bounds = [(f"{n}_{end}", k) for n, k in kinds.items() for end in ("low", "high")]
    assert index.load(pa.schema([("id", pa.string()), *bounds]).empty_table()).loaded == 0


def test_two_columns_of_one_name_are_refused() -> None:
    index = Index({"i": "int"})
    with pytest.raises(TableError, match="two columns are called 'i'"):
        index.match_batch(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["i", "i"]))


# ---- intervals


def test_a_list_is_no_interval() -> None:
    index = Index({"tags": "string", "x": "int", "a": Attribute("int", role="information")})
    index.subscribe("m", "tags = 'm'")
    for pair in (("a", "z"), {"low": "a", "high": "z"}, {"high": "z", "low": "a"}):
        assert index.match({"tags": pair}) == ["m"]
        assert index.match_batch([{"tags": pair}])[0] == ["m"]
        assert index.explain({"tags": pair}, "m").matched  # type: ignore[union-attr]
    for value in (["a", "z"], ["m"], [], {"a", "z"}, frozenset("az"), np.array(["a", "z"])):
        for call in (index.match, lambda event: index.match_batch([event]), lambda event: index.explain(event, "m")):
            with pytest.raises(HitboxError, match=r"attribute 'tags': .* is a .*tuple \(low, high\)"):
                call({"tags": value})  # type: ignore[operator]
    for value in (
        {"low": "a"},
        {"low": "a", "high": "z", "mid": "m"},
        {},
        {"from": 1, "to": 2},
        (),
        ("a",),
        ("a", "m", "z"),
    ):
        with pytest.raises(ValueProblem, match="an interval is a tuple"):
            index.match({"tags": value})
    for value in ((None, "z"), {"low": "a", "high": None}, (math.nan, "z"), (pd.NaT, "z"), (pd.NA, "z")):
        with pytest.raises(ValueProblem, match="both ends"):
            index.match({"tags": value})
    with pytest.raises(ValueProblem, match="tuple"):
        index.subscribe("n", "x > 1", about={"a": [1, 2]})
    index.subscribe("n", "x > 1", about={"a": {"low": 1, "high": 2}})
    assert index.about("n") == {"a": (1, 2)}
    assert index.explain({"x": (0, 1)}, "n").to_dict()["tree"]["value"] == {"low": 0, "high": 1}  # type: ignore[union-attr]


def test_intervals_in_tables() -> None:
    index = Index({"x": "float", "s": "string"})
    index.subscribe(1, "x > 3 AND s = 'm'")
    rows: list[Any] = [{"low": 1, "high": 4}, {"low": 1, "high": 3}, None]
    texts: list[Any] = [{"high": "z", "low": "a"}] * 3
    table = pa.table({"x": pa.array(rows), "s": pa.array(texts)})
    assert index.match_batch(table).counts.tolist() == [1, 0, 0]
    two = pa.table({"x_low": [1, 1, None], "x_high": [4, 3, None], "s_low": ["a"] * 3, "s_high": ["z"] * 3})
    assert index.match_batch(two).counts.tolist() == [1, 0, 0]
    assert [len(index.match({"x": x, "s": s})) for x, s in zip(rows, texts, strict=True)] == [1, 0, 0]
    index.subscribe(2, "x > 3 AND s LIKE '%m%'")
    assert index.match_batch(table).counts.tolist() == index.match_batch(two).counts.tolist() == [2, 0, 0]
    for column in (pa.array([[1, 2]]), pa.array([[1, 2]], pa.list_(pa.int64(), 2)), pa.array([{"low": 1}])):
        with pytest.raises(TableError, match="struct<low, high>"):
            index.match_batch(pa.table({"x": column}))
    with pytest.raises(TableError, match="row 1: the interval on 'x' lacks"):
        index.match_batch(pa.table({"x": [{"low": 1, "high": 2}, {"low": 1, "high": None}]}))


SWAPPED: list[tuple[str, Any, Any]] = [
    ("i", 3, 2),
    ("f", 0.2, 0.1),
    ("f", D("0.2"), D("0.1")),
    ("t", NOON, MIDNIGHT),
    ("b", True, False),
    ("s", "m", "a"),
    ("s", "unknown z", "unknown y"),
    ("s", "é", "z"),
    ("g", 99.0, 98.0),
    ("g", 0.14, 0.13),
]


@pytest.mark.parametrize(("name", "low", "high"), SWAPPED, ids=str)
def test_swapped_ends_are_refused(indexes: list[Index], name: str, low: Any, high: Any) -> None:
    index = indexes[0]
    for value in ((low, high), {"low": low, "high": high}):
        with pytest.raises(ValueProblem, match="swapped"):
            index.match({name: value})
        with pytest.raises(TableError, match=r"event 1.*swapped"):
            index.match_batch([{}, {name: value}])
        with pytest.raises(ValueProblem, match="swapped"):
            index.explain({name: value}, "0")
    good = {"low": min(low, high), "high": max(low, high)}
    bad = {"low": low, "high": high}
    tables = [
        pa.table({name: [good, good, bad]}),
        pa.table({f"{name}_{end}": [good[end], good[end], bad[end]] for end in ("low", "high")}),
    ]
    if name == "s":
        tables.append(pa.table({c: tables[1][c].combine_chunks().dictionary_encode() for c in tables[1].column_names}))
        tables.append(tables[1].cast(pa.schema([(c, pa.string_view()) for c in tables[1].column_names])))
    for table in tables:
        index.match_batch(table.slice(0, 2))
        with pytest.raises(TableError, match=r"row 2: the interval on .* swapped"):
            index.match_batch(table)


def test_swapped_ends_of_what_subscribers_say_of_themselves() -> None:
    index = Index({"x": "int", "a": Attribute("int", role="information")})
    columns = {"id": [1, 2], "a_low": [1, 5], "a_high": [3, 4]}
    for table in (
        pa.table(columns | {"x_low": [1, 1], "x_high": [2, 2]}),
        pa.table(columns | {"where": ["x > 1"] * 2}),
        pa.table({"id": [1, 2], "a": [{"low": 1, "high": 3}, {"low": 5, "high": 4}], "where": ["x > 1"] * 2}),
    ):
        with pytest.raises(TableError, match=r"row 1.*swapped"):
            index.load(table)
        assert index.load(table, on_error="return").loaded == 1
        assert index.about(1) == {"a": (1, 3)}


def test_what_subscribers_say_of_themselves_is_checked_by_row() -> None:
    index = Index({"x": "int", "c": Attribute("string", role="information")})
    for column in (pa.array([None, 3]), pa.array([None, ["a", "z"]]), pa.array([None, {"low": "z", "high": "a"}])):
        table = pa.table({"id": [1, 2], "where": ["x > 1"] * 2, "c": column})
        with pytest.raises(TableError, match="row 1: attribute 'c'"):
            index.load(table)
        assert index.load(table, on_error="return").loaded == 1
    fine = pa.array([None, 1], pa.timestamp("ns"))
    index = Index({"x": "int", "t": Attribute("timestamp", role="information")})
    with pytest.raises(TableError, match=r"row 1: attribute 't': .*finer"):
        index.load(pa.table({"id": [1, 2], "where": ["x > 1"] * 2, "t": fine}))


# ---- texts

UNSOUND = ["\ud800", "a\udfffb", "\0", "a\0b", "é\0", "é\ud800"]
NOT_UTF8 = pa.Array.from_buffers(
    pa.string(), 2, [None, pa.py_buffer(np.array([0, 1, 4], np.int32)), pa.py_buffer(b"z\xed\xa0\x80")]
)


@pytest.mark.parametrize("text", UNSOUND, ids=ascii)
def test_unsound_texts_are_refused_at_every_entrance(text: str) -> None:
    index = Index({"s": "string", "c": Attribute("string", role="information")})
    index.subscribe("keep", "s = 'a'")
    says = "NUL|surrogate"
    calls: list[Callable[[], Any]] = [
        lambda: index.subscribe(text, "s = 'a'"),
        lambda: index.subscribe(f"keep{text}", "s = 'a'"),
        lambda: index.subscribe("new", f"s = '{text}'"),
        lambda: index.subscribe("new", "s = 'a'", about={"c": text}),
        lambda: index.subscribe("new", "s = 'a'", about={"c": (text, "z")}),
        lambda: index.match({"s": text}),
        lambda: index.match({"s": ("a", text)}),
        lambda: index.match({"s": np.str_(text)}),
        lambda: list(index.match_levels({"s": text})),
        lambda: index.match_batch([{"s": text}]),
        lambda: index.match({"s": "a"}, f"c = '{text}'"),
        lambda: index.explain({"s": text}, "keep"),
        lambda: Schema({text: "int"}),
    ]
    if "\0" in text:
        calls += [
            lambda: index.match_batch(pa.table({"s": ["a", text]})),
            lambda: index.match_batch(pa.table({"s": pa.array(["a", text]).dictionary_encode()})),
            lambda: index.load(pa.table({"id": ["b", text], "where": ["TRUE"] * 2})),
            lambda: index.load(pa.table({"id": ["b", "c"], "where": ["TRUE", f"s = '{text}'"]})),
            lambda: index.load(pa.table({"id": ["b", "c"], "s_low": ["a", text], "s_high": ["b", "c"]})),
            lambda: index.load(pa.table({"id": ["b", "c"], "c": ["a", text], "where": ["TRUE"] * 2})),
        ]
    for call in calls:
        with pytest.raises(HitboxError, match=says) as caught:
            call()
        str(caught.value).encode()
    assert text not in index
    with pytest.raises(UnknownSubscription):
        index.unsubscribe(text)
    with pytest.raises(UnknownSubscription):
        index.explain({"s": "a"}, text)
    assert index.unsubscribe_many([text, "nobody"]) == 0
    assert list(index) == index.match({"s": "a"}) == ["keep"]


def test_columns_that_are_not_utf8_are_refused() -> None:
    index = Index({"s": "string", "c": Attribute("string", role="information")})
    index.subscribe("keep", "s > ''")
    for column in (NOT_UTF8, pa.DictionaryArray.from_arrays(pa.array([0, 1]), NOT_UTF8)):
        with pytest.raises(TableError, match=r"'s', row 1.*not UTF-8"):
            index.match_batch(pa.table({"s": column}))
    plain = {"id": ["a", "b"], "where": ["TRUE", "TRUE"]}
    for table in (
        pa.table(plain | {"id": NOT_UTF8}),
        pa.table(plain | {"where": NOT_UTF8}),
        pa.table(plain | {"c": NOT_UTF8}),
        pa.table({"id": ["a", "b"], "s_low": NOT_UTF8, "s_high": ["zz", "zz"]}),
    ):
        with pytest.raises(TableError, match=r"row 1|row 0"):
            index.load(table)
        assert 1 in dict(index.load(table, on_error="return").errors)
    assert index.unsubscribe_many(NOT_UTF8) == 1  # the "z" of above; the other text can be nobody's


def test_many_ids_come_in_any_container() -> None:
    """None of them is looked at twice, and what is no container of ids is an error: nothing stays by mistake."""
    ids = pa.array([1, 2, 2])
    for some in (
        (one for one in (1, 2)),
        {1: "a", 2: "b"}.keys(),
        np.array([1, 2]),
        pa.chunked_array([[1], [2]]),
        ids.dictionary_encode(),
        pc.run_end_encode(ids),
        pa.array([1, None, 2, 2**64 - 1], pa.uint64()),
    ):
        index = Index({"x": "int"})
        index.load(pa.table({"id": [1, 2, 3], "where": ["TRUE"] * 3}))
        assert index.unsubscribe_many(some) == 2  # type: ignore[arg-type]
        assert list(index) == [3]
    assert index.unsubscribe_many(pa.nulls(2)) == 0
    bad: list[Any] = ["3", b"3", 3, None, pa.array([3.0]), pa.array([[3]]), pa.array([b"3"])]
    for wrong in bad:
        with pytest.raises(ValueProblem):
            index.unsubscribe_many(wrong)
    assert list(index) == [3]


def test_arguments_of_a_wrong_type_are_errors_of_the_library() -> None:
    index = Index({"s": "string"})
    index.subscribe(1, "s = 'a'")
    calls: list[Callable[[], Any]] = [
        lambda: index.match({"s": "a"}, 5),  # type: ignore[arg-type]
        lambda: index.match_batch([{"s": "a"}], [["TRUE"]]),  # type: ignore[list-item]
        lambda: index.explain({"s": "a"}, misses="3"),  # type: ignore[arg-type]
        lambda: index.subscribe(2, "TRUE", priority=10**5000),
        lambda: index.load(pa.table({"id": [2], "where": ["TRUE"], "priority": pa.array([2**63 + 5], pa.uint64())})),
    ]
    for call in calls:
        with pytest.raises(HitboxError):
            call()
    runs = pc.run_end_encode(pa.array(["a", "a"]))
    index.load(pa.table({"id": [2, 3], "s_low": runs, "s_high": runs}))
    assert sorted(index.match({"s": "a"})) == [1, 2, 3]


def test_ids_are_plain(tmp_path: Any) -> None:
    index = Index({"x": "int"})
    index.subscribe(Word.LETTER, "x > 1")
    index.subscribe(np.str_("n"), "x > 1")
    assert sorted(index) == ["m", "n"]
    assert "m" in index
    assert Word.LETTER in index
    index.save(tmp_path)
    assert sorted(Index.open(tmp_path).match({"x": 2})) == ["m", "n"]
    for id in (10**5000, -(2**63) - 1):
        with pytest.raises(ValueProblem, match="64 bits"):
            index.subscribe(id, "x > 1")


def test_values_that_fit_no_attribute() -> None:
    index = Index({"i": "int", "f": "float", "s": "string", "b": "bool", "t": "timestamp"})
    for name, value in [
        ("i", 10**5000),
        ("f", 10**5000),
        ("i", D("1e999999999")),
        ("i", D("1e30")),
        ("f", D("1e400")),
        ("i", D("0.5")),
        ("i", math.inf),
        ("f", True),
        ("f", "1"),
        ("b", 1),
        ("s", b"text"),
        ("s", 10**5000),
        ("i", enum.Enum("Plain", {"A": "x"})["A"]),
        ("i", np.timedelta64(3, "s")),
        ("i", np.timedelta64(3, "ns")),
        ("f", np.timedelta64(3, "ns")),
        ("f", 1j),
        ("f", object()),
    ]:
        with pytest.raises(ValueProblem, match=f"attribute '{name}'"):
            index.match({name: value})
    for name, column in [
        ("b", pa.array([1, 0])),
        ("b", pa.array(["true"])),
        ("s", pa.array([b"a"])),
        ("i", pa.array([True])),
        ("s", pa.array([3], pa.duration("s"))),
        ("t", pa.array([3], pa.duration("s"))),
    ]:
        with pytest.raises(TableError, match=f"column '{name}'"):
            index.match_batch(pa.table({name: column}))


@given(st.text(st.characters(codec=None)))
def test_forbidden_finds_the_first_place(text: str) -> None:
    places = [at for at, c in enumerate(text) if c == "\0" or "\ud800" <= c <= "\udfff"]
    assert forbidden(text) == (places[0] if places else None)


def test_an_event_is_a_mapping() -> None:
    index = filled("auto")
    calls: list[Callable[[Any], Any]] = [index.match, lambda e: index.explain(e, "0"), lambda e: index.match_batch([e])]
    for event in ([1], "text", None, 3):
        for call in calls:
            with pytest.raises(HitboxError, match="mapping"):
                call(event)


def test_small_parts() -> None:
    assert ends_of(3) is ends_of("ab") is ends_of(None) is ends_of(D(1)) is None
    assert not any(map(is_missing, (0, "", D("Infinity"), False)))
    given_ = {"a": (1, D("0.5")), "b": np.int8(3), "c": pd.NA, "d": D("7"), "e": "x", "f": np.datetime64("2026-01-31")}
    assert for_json(given_) == {"a": {"low": 1, "high": 0.5}, "b": 3, "c": None, "d": 7, "e": "x", "f": MIDNIGHT}
    with pytest.raises(ValueProblem, match="infinity"):
        for_json({"a": math.inf})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert BoolCodec().column(pa.array([True, None])).tolist()[0] == 1
        assert StringCodec().column(pa.nulls(1)).tolist() == [-(2**63)]
