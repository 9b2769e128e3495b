"""Events -> Points: mappings one by one, or whole Arrow tables.

A value is a point or an interval (low, high); tables carry intervals as `{attribute}_low` and `{attribute}_high`. What
an event does not mention is missing. Attributes that subscriptions declare about themselves are not the event's to
carry: there an event that does not filter is [MISSING, HIGHEST], which meets everything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from hitbox.boxes import HIGHEST, I64, MISSING, Points
from hitbox.codecs import Codec
from hitbox.errors import TableError, UnknownAttribute, ValueProblem, nearest
from hitbox.keys import Keys

Event = Mapping[str, Any]


def event_keys(keys: Keys, event: Event, role: str = "criteria") -> dict[int, tuple[int, int]]:
    """{attribute: (low, high)} of what a mapping says; checks names, roles, types and that low <= high."""
    if not isinstance(event, Mapping):
        raise ValueProblem(f"an event is a mapping of attribute to value, not {type(event).__name__}")
    schema, found = keys.schema, {}
    for name, value in event.items():
        number = schema.number(name)
        if schema[name].role != role:
            raise ValueProblem(wrong_side(name, schema[name].role))
        found[number] = value_keys(keys.codecs[number], name, value)
    return found


def wrong_side(name: str, role: str) -> str:
    uses = {
        "information": "subscriptions declare it in `about`, an event filters on it in `where`",
        "criteria": "events carry it, subscriptions filter on it in `where`",
    }
    return f"attribute {name!r} has the role {role}: {uses[role]}"


def value_keys(codec: Codec, name: str, value: Any) -> tuple[int, int]:
    try:
        if isinstance(value, (tuple, list)):
            if len(value) != 2:
                raise ValueProblem(f"an interval is (low, high), not {len(value)} values")
            low, high = codec.key(value[0]), codec.key(value[1])
            if MISSING in (low, high):
                raise ValueProblem("an interval needs both ends")
            if low > high:
                raise ValueProblem(f"the ends of the interval {value!r:.80} are swapped: low comes first")
            return low, high
        key = codec.key(value)
    except ValueProblem as problem:
        raise ValueProblem(f"attribute {name!r}: {problem}") from None
    return key, key


def from_mapping(keys: Keys, event: Event) -> Points:
    """One event."""
    row = _blank(keys, 1)
    low, high = row, row
    for number, (first, last) in event_keys(keys, event).items():
        low[0, number] = first
        if first != last:
            high = high.copy() if high is low else high
        high[0, number] = last
    return _with_information(keys, low, high)


def from_mappings(keys: Keys, events: Sequence[Event]) -> Points:
    """A list of events; an error names the event's number."""
    low = _blank(keys, len(events))
    high = low.copy()
    for row, event in enumerate(events):
        try:
            for number, (first, last) in event_keys(keys, event).items():
                low[row, number], high[row, number] = first, last
        except (ValueProblem, UnknownAttribute) as problem:
            raise TableError(f"event {row}: {problem}", [(row, str(problem))]) from None
    return _with_information(keys, low, low if np.array_equal(low, high) else high)


def from_table(keys: Keys, table: pa.Table) -> Points:
    """A column an attribute; columns that are no attributes are left alone."""
    check_columns(keys, table.column_names)
    low = _blank(keys, table.num_rows)
    high = low
    for number, (name, attribute) in enumerate(keys.schema.items()):
        if attribute.role != "criteria":
            continue
        if name in table.column_names:
            low[:, number] = column_keys(keys.codecs[number], name, table[name])
            if high is not low:
                high[:, number] = low[:, number]
        elif f"{name}_low" in table.column_names:
            first = column_keys(keys.codecs[number], f"{name}_low", table[f"{name}_low"])
            last = column_keys(keys.codecs[number], f"{name}_high", table[f"{name}_high"])
            _check_intervals(name, first, last)
            high = high.copy() if high is low else high
            low[:, number], high[:, number] = first, last
    return _with_information(keys, low, high)


def column_keys(codec: Codec, name: str, column: Any) -> I64:
    try:
        return codec.column(column)
    except ValueProblem as problem:
        raise TableError(f"column {name!r}: {problem}") from None


def check_columns(keys: Keys, columns: Sequence[str]) -> None:
    """At least one attribute is there, intervals have both ends, and no column looks like a misspelt attribute."""
    schema = keys.schema
    wanted = schema.with_role("criteria")
    for name in wanted:
        ends = [end for end in (f"{name}_low", f"{name}_high") if end in columns]
        if len(ends) == 1 and name not in columns:
            raise TableError(f"column {ends[0]!r} is only one end of an interval: both {name}_low and {name}_high")
    absent = [n for n in wanted if n not in columns and f"{n}_low" not in columns]
    known = {*schema, *(f"{n}_{end}" for n in schema for end in ("low", "high"))}
    for column in columns:
        hint = "" if column in known else nearest(column, absent)
        if hint:
            raise TableError(f"column {column!r} is not an attribute{hint} (rename or drop the column)")
    if len(absent) == len(wanted):
        raise TableError(
            f"none of the attributes {', '.join(wanted[:8])} is a column; columns: {', '.join(columns[:8])}"
        )


def normal(keys: Keys, event: Event) -> dict[str, Any]:
    """The event with values as the predicate language takes them (None for missing, aware datetimes, plain numbers)."""
    found = {}
    for name, value in event.items():
        codec = keys.codecs[keys.schema.number(name)]
        pair = isinstance(value, (tuple, list))
        found[name] = tuple(codec.normal(v) for v in value) if pair else codec.normal(value)
    return found


def row_of(keys: Keys, table: pa.Table, row: int) -> dict[str, Any]:
    """One row of an event table as a mapping."""
    found = {}
    for name in keys.schema.with_role("criteria"):
        if name in table.column_names:
            found[name] = table[name][row].as_py()
        elif f"{name}_low" in table.column_names:
            low, high = (table[f"{name}_{end}"][row].as_py() for end in ("low", "high"))
            found[name] = None if low is None else (low, high)
    return found


def told(keys: Keys, box: Mapping[int, tuple[int, int]]) -> dict[str, Any]:
    """What a subscription says about itself, read back from its box."""
    found: dict[str, Any] = {}
    for number in keys.space.information:
        low, high = box.get(number, (MISSING, MISSING))
        value = keys.codecs[number].value
        if high != MISSING:
            found[keys.schema.names[number]] = value(low) if low == high else (value(low), value(high))
    return found


def _blank(keys: Keys, rows: int) -> I64:
    return np.full((rows, len(keys.schema)), MISSING, np.int64)


def _with_information(keys: Keys, low: I64, high: I64) -> Points:
    information = list(keys.space.information)
    if information:
        high = high.copy() if high is low else high
        high[:, information] = HIGHEST
    return Points(low, high)


def _check_intervals(name: str, first: I64, last: I64) -> None:
    bad = (first > last) | ((first == MISSING) != (last == MISSING))
    if bad.any():
        row = int(np.argmax(bad))
        raise TableError(f"row {row}: the interval on {name!r} has its ends swapped or lacks one", [(row, name)])
