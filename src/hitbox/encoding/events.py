"""Events -> keys: the values of mappings one by one, or whole Arrow tables as Points.

A value is a point or an interval, (low, high) or {"low": .., "high": ..}; tables carry intervals as struct<low, high>,
or as `{attribute}_low` and `{attribute}_high`. What an event does not mention is missing. Attributes that subscriptions
declare about themselves are not the event's to carry: there an event that does not filter is [MISSING, HIGHEST], which
meets everything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from hitbox.encoding import arrow_compute as pc
from hitbox.encoding.arrays import HIGHEST, I64, LOWEST, MISSING, Points
from hitbox.encoding.codecs import BadRow, Codec, python_values
from hitbox.encoding.keys import Keys
from hitbox.encoding.values import brief, ends_of
from hitbox.errors import TableError, ValueProblem, nearest

Event = Mapping[str, Any]
AS_THEY_ARE = frozenset([pa.int64(), pa.float64(), pa.bool_(), pa.string(), pa.large_string()])
"""Arrow types whose Python values are plain already."""
EXTREMES: dict[str, tuple[Any, Any]] = {
    "int": (LOWEST, HIGHEST),
    "float": (-math.inf, math.inf),
    "bool": (False, True),
    "timestamp": (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)),
    "string": ("", None),  # no text is the greatest
}


def event_keys(keys: Keys, event: Event, role: str = "criteria") -> dict[int, tuple[int, int]]:
    """{attribute: (low, high)} of what a mapping says; checks names, roles, types and that low <= high."""
    _check_mapping(event)
    schema, found = keys.schema, {}
    for name, value in event.items():
        number = schema.number(name)
        if schema[name].role != role:
            raise ValueProblem(wrong_side(name, schema[name].role))
        found[number] = value_keys(keys.codecs[number], name, value)
    return found


def _check_mapping(event: Event) -> None:
    if not isinstance(event, Mapping):
        raise ValueProblem(f"an event is a mapping of attribute to value, not {type(event).__name__}")


def wrong_side(name: str, role: str) -> str:
    uses = {
        "information": "subscriptions declare it in `about`, an event filters on it in `where`",
        "criteria": "events carry it, subscriptions filter on it in `where`",
    }
    return f"attribute {name!r} has the role {role}: {uses[role]}"


def value_keys(codec: Codec, name: str, value: Any) -> tuple[int, int]:
    """The keys of the two ends of a value; those of a single value are equal."""
    try:
        ends = ends_of(value)
        if ends is None:
            key = codec.key(value)
            return key, key
        low, high = _interval(codec, *ends)
        return codec.place(low), codec.place(high)
    except ValueProblem as problem:
        raise ValueProblem(f"attribute {name!r}: {problem}") from None


def _interval(codec: Codec, low: Any, high: Any) -> tuple[Any, Any]:
    """The plain ends of an interval, checked."""
    first, last = codec.normal(low), codec.normal(high)
    if first is None or last is None:
        raise ValueProblem(
            f"the interval {brief((low, high))} needs both ends; leave the attribute out if it is missing"
        )
    if first > last:
        raise ValueProblem(f"the ends of the interval {brief((low, high))} are swapped: low comes first")
    return first, last


def from_table(keys: Keys, table: pa.Table, first_row: int = 0) -> Points:
    """One column per attribute; other columns are left alone. Errors count rows from `first_row`."""
    check_columns(keys, table.column_names)
    columns = dict(zip(table.column_names, table.columns, strict=True))
    low = _blank(keys, table.num_rows)
    high = low
    for number, (name, attribute) in enumerate(keys.schema.items()):
        if attribute.role != "criteria":
            continue
        codec, ends = keys.codecs[number], _end_columns(keys, columns, name)
        if ends is not None:
            first = column_keys(codec, f"{name}_low", ends[0], first_row)
            last = column_keys(codec, f"{name}_high", ends[1], first_row)
            _check_intervals(name, codec, ends, first, last, first_row)
            high = high.copy() if high is low else high
            low[:, number], high[:, number] = first, last
        elif name in columns:
            low[:, number] = column_keys(codec, name, columns[name], first_row)
            if high is not low:
                high[:, number] = low[:, number]
    return _with_information(keys, low, high)


def _end_columns(keys: Keys, columns: Mapping[str, Any], name: str) -> tuple[Any, Any] | None:
    """The two ends of an attribute that comes as intervals: a struct of low and high, or two columns."""
    if name not in columns:
        low, high = keys.schema.end_columns(name) or ("", "")
        return (columns[low], columns[high]) if low in columns else None
    kind = columns[name].type
    if kind in AS_THEY_ARE:
        return None
    if pa.types.is_struct(kind):
        if sorted(field.name for field in kind) != ["high", "low"]:
            raise TableError(f"column {name!r} is a column of {kind}; an interval is struct<low, high>")
        return pc.struct_field(columns[name], "low"), pc.struct_field(columns[name], "high")
    if pa.types.is_nested(kind) and not pa.types.is_run_end_encoded(kind):
        raise TableError(
            f"column {name!r} is a column of {kind}, and lists of values are not supported; an interval is "
            f"struct<low, high>, or two columns {name}_low and {name}_high"
        )
    return None


def column_keys(codec: Codec, name: str, column: Any, first_row: int = 0) -> I64:
    try:
        return codec.column(column)
    except BadRow as problem:
        row = first_row + problem.row
        raise TableError(f"column {name!r}, row {row}: {problem.message}", [(row, problem.message)]) from None
    except ValueProblem as problem:
        raise TableError(f"column {name!r}: {problem}") from None


def attempt_keys(codec: Codec, name: str, column: Any) -> tuple[I64, Any]:
    """The keys of a column, and which rows do not fit."""
    try:
        return codec.attempt(column)
    except ValueProblem as problem:
        raise TableError(f"column {name!r}: {problem}") from None


def check_columns(keys: Keys, columns: Sequence[str]) -> None:
    """At least one attribute is there, none twice; intervals have both ends; no column looks like a misspelt one."""
    schema = keys.schema
    wanted = schema.with_role("criteria")
    if len(set(columns)) != len(columns):
        twice = [name for name in columns if columns.count(name) > 1]
        raise TableError(f"two columns are called {twice[0]!r} (rename or drop one)")
    for name in wanted:
        ends = [end for end in schema.end_columns(name) if end in columns]
        if len(ends) == 1 and name not in columns:
            raise TableError(f"column {ends[0]!r} is only one end of an interval: both {name}_low and {name}_high")
    absent = [n for n in wanted if not {n, *schema.end_columns(n)} & set(columns)]
    known = {*schema, *(f"{n}_{end}" for n in schema for end in ("low", "high"))}
    for column in columns:
        hint = "" if column in known else nearest(column, absent)
        if hint:
            raise TableError(f"column {column!r} is not an attribute{hint} (rename or drop the column)")
    if wanted and len(absent) == len(wanted):
        raise TableError(
            f"none of the attributes {', '.join(wanted[:8])} is a column; columns: {', '.join(columns[:8])}"
        )


def normal(keys: Keys, event: Event) -> dict[str, Any]:
    """The event with the plain values that keys are made of: None for missing, a tuple for an interval."""
    _check_mapping(event)
    found = {}
    for name, value in event.items():
        codec = keys.codecs[keys.schema.number(name)]
        try:
            ends = ends_of(value)
            found[name] = codec.normal(value) if ends is None else _interval(codec, *ends)
        except ValueProblem as problem:
            raise ValueProblem(f"attribute {name!r}: {problem}") from None
    return found


def normal_row(keys: Keys, table: pa.Table, row: int) -> dict[str, Any]:
    """One row of an event table, as `normal` gives a mapping."""
    found: dict[str, Any] = {}
    columns = dict(zip(table.column_names, table.columns, strict=True))
    for number, (name, attribute) in enumerate(keys.schema.items()):
        if attribute.role != "criteria":
            continue
        codec, ends = keys.codecs[number], _end_columns(keys, columns, name)
        if ends is not None:
            low, high = (_cell(codec, column, row) for column in ends)
            found[name] = None if low is None else (low, high)
        elif name in columns:
            found[name] = _cell(codec, columns[name], row)
    return found


def _cell(codec: Codec, column: Any, row: int) -> Any:
    """The plain value in a row of a column: that of its key, where a key says all."""
    kind = column.type
    if kind in AS_THEY_ARE:
        return codec.normal(column[row].as_py())
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        micros = column[row].value
        return None if micros is None else codec.value(micros)
    one = column.slice(row, 1)
    if codec.type == "string":
        return codec.normal(python_values(one)[0])
    key = int(codec.column(one)[0])
    return None if key == MISSING else codec.value(key)


def about_values(keys: Keys, box: Mapping[int, tuple[int, int]]) -> dict[str, Any]:
    """What a subscription says about itself, read back from its box; an open end is the extreme value of the type."""
    found: dict[str, Any] = {}
    for number in keys.space.information:
        low, high = box.get(number, (MISSING, MISSING))
        codec = keys.codecs[number]
        if low == high != MISSING:
            found[keys.schema.names[number]] = codec.value(low)
        elif high != MISSING:
            least, most = EXTREMES[codec.type]
            ends = least if low == LOWEST else codec.value(low), most if high == HIGHEST else codec.value(high)
            found[keys.schema.names[number]] = ends
    return found


def _blank(keys: Keys, rows: int) -> I64:
    return np.full((rows, len(keys.schema)), MISSING, np.int64)


def _with_information(keys: Keys, low: I64, high: I64) -> Points:
    information = list(keys.space.information)
    if information:
        high = high.copy() if high is low else high
        high[:, information] = HIGHEST
    return Points(low, high)


def _check_intervals(name: str, codec: Codec, ends: tuple[Any, Any], first: I64, last: I64, first_row: int) -> None:
    lacking = (first == MISSING) != (last == MISSING)
    bad = lacking | codec.swapped(*ends, first, last)
    if bad.any():
        at = int(np.argmax(bad))
        what = "lacks one of its ends" if lacking[at] else "has its ends swapped: low comes first"
        row = first_row + at
        raise TableError(f"row {row}: the interval on {name!r} {what}", [(row, name)])
