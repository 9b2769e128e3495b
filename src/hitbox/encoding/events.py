"""Events -> keys: the values of mappings one by one, or whole Arrow tables as Points.

A value is a point or an interval, (low, high) or {"low": .., "high": ..}; tables carry intervals as struct<low, high>,
or as `{attribute}_low` and `{attribute}_high`. Objects are mappings, in tables structs; the key of a list is its length
(documents.py). What an event does not mention is missing. Attributes that subscriptions
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
from hitbox.encoding.codecs import NOT_UTF8, Codec, Mask, is_list_type, python_values
from hitbox.encoding.documents import (
    Check,
    Document,
    Event,
    check_event,
    check_part,
    document,
    flat,
    images,
    misspelt,
    open_document,
    refuse,
)
from hitbox.encoding.inputs import as_mapping, tree
from hitbox.encoding.keys import Keys
from hitbox.encoding.schema import Schema
from hitbox.encoding.values import brief, ends_of, is_missing
from hitbox.errors import TableError, UnknownAttribute, ValueProblem

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
    event = _mapping(event)
    schema, found = keys.schema, {}
    check: Check = refuse
    if role == "criteria":
        event, check, _ = _image(schema, event)
    for name, value in flat(schema, event, check):
        number = schema.number(name)
        if schema[name].role != role:
            raise ValueProblem(wrong_side(name, schema[name].role))
        found[number] = value_keys(keys.codecs[number], name, value)
    return found


def _mapping(event: Any) -> Event:
    found = as_mapping(event)
    if found is None:
        raise ValueProblem(f"an event is a mapping of attribute to value, not {type(event).__name__}")
    return found


def _image(schema: Schema, event: Event) -> tuple[Event, Check, Document | None]:
    """The event itself; how its names are checked; and its old image."""
    new, old = images(schema, event)
    return (new, check_event, None) if old is None else (new, check_part, document(schema, {"new": old}))


def wrong_side(name: str, role: str) -> str:
    uses = {
        "information": "subscriptions declare it in `about`, an event filters on it in `where`",
        "criteria": "events carry it, subscriptions filter on it in `where`",
    }
    return f"attribute {name!r} has the role {role}: {uses[role]}"


def value_keys(codec: Codec, name: str, value: Any) -> tuple[int, int]:
    """The keys of the two ends of a value; those of a single value are equal."""
    try:
        ends = None if codec.is_list else ends_of(value)
        if ends is None:
            key = codec.key(value)
            return key, key
        low, high = _interval(codec, *ends)
        return codec.place(low), codec.place(high)
    except (ValueProblem, UnknownAttribute) as problem:
        raise type(problem)(f"attribute {name!r}: {problem}") from None


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


class Columns(dict[str, Any]):
    """The columns of an event table by attribute: the fields of structs by their dotted names. `parents` are the
    structs around a column: if one of them is null, its fields are missing. `old` are those of the old image.

    image: the struct that the table is made of, where it is one of two images"""

    def __init__(self, keys: Keys, table: pa.Table, image: Any = None):
        super().__init__()
        self.parents: dict[str, list[Any]] = {}
        self.old: Columns | None = None
        schema, names = keys.schema, table.column_names
        if len(set(names)) != len(names):
            twice = [name for name in names if names.count(name) > 1]
            raise TableError(f"two columns are called {twice[0]!r} (rename or drop one)")
        given = dict(zip(names, table.columns, strict=True))
        two = [name for name in ("new", "old") if name in given and pa.types.is_struct(given[name].type)]
        beside = schema.is_open and len(two) < len(given)
        if two and not beside and not any(name in schema or name in schema.objects for name in two):
            if "old" in two:
                self.old = Columns(keys, _struct_table(given["old"]), given["old"])
            for name in given:
                declared = name in schema or name in schema.objects
                if name not in two and (declared or schema.extra == "error"):
                    raise TableError(f"column {name!r} stands beside the images old and new: move it into one of them")
            if "new" in two:
                self._add(schema, _fields(given["new"]), "", [given["new"]])
        else:
            self._add(schema, given, "", [] if image is None else [image])
        check_columns(keys, list(self), image is not None or self.old is not None)

    def _add(self, schema: Schema, columns: Mapping[str, Any], above: str, parents: list[Any]) -> None:
        for name, column in columns.items():
            whole = f"{above}.{name}" if above else name
            if whole in self:
                raise TableError(f"column {whole!r} is there twice: as a field of a struct and by its dotted name")
            if whole not in schema and whole in schema.objects and not pa.types.is_null(column.type):
                if not pa.types.is_struct(column.type):
                    raise TableError(f"column {whole!r} is an object: it takes a struct, not a column of {column.type}")
                self._add(schema, _fields(column), whole, [*parents, column])
            else:
                if whole in schema:
                    _check_elements(schema, whole, column.type)
                self[whole] = column
                self.parents[whole] = parents


def _check_elements(schema: Schema, name: str, kind: pa.DataType, above: str = "") -> None:
    """The fields of a list's objects, as `check_columns` does it with columns."""
    fields = schema[name].fields
    while is_list_type(kind):
        kind = kind.value_type
    if fields is None or not pa.types.is_struct(kind):
        return
    given = {f"{above}{field.name}": field.type for field in kind}
    inside = tuple(f"{one}." for one in given)
    absent = tuple(one for one in fields if one.startswith(above) and one not in given and not one.startswith(inside))
    for one, type_ in given.items():
        if one in fields.objects:
            _check_elements(schema, name, type_, f"{one}.")
        elif one in fields:
            _check_elements(fields, one, type_)
        elif schema.extra != "ignore":
            meant = misspelt(fields, one, absent)
            if meant is not None or schema.extra == "error":
                hint = "" if meant is None else f"; did you mean {meant!r}?"
                raise TableError(f"column {name!r}: {one!r} is no field of its objects{hint} (rename or drop it)")


def _fields(column: Any) -> dict[str, Any]:
    """The columns of a struct's fields; null where the struct is null."""
    return {column.type.field(n).name: pc.struct_field(column, [n]) for n in range(column.type.num_fields)}


def _struct_table(column: Any) -> pa.Table:
    fields = _fields(column)
    return pa.table(list(fields.values()), names=list(fields))


def from_table(keys: Keys, table: pa.Table, first_row: int = 0, bad: Mask | None = None) -> Points:
    """One column per attribute; other columns are left alone. A value that does not fit is an error, which counts rows
    from `first_row`; or, with `bad`, its row is marked there, and its keys mean nothing."""
    columns = Columns(keys, table)
    low = _blank(keys, table.num_rows)
    high = low
    for number, (name, attribute) in enumerate(keys.schema.items()):
        if attribute.role != "criteria":
            continue
        codec, ends = keys.codecs[number], _end_columns(keys, columns, name)
        if ends is not None:
            first = column_keys(codec, f"{name}_low", ends[0], first_row, bad)
            last = column_keys(codec, f"{name}_high", ends[1], first_row, bad)
            _check_intervals(name, codec, ends, first, last, first_row, bad)
            high = high.copy() if high is low else high
            low[:, number], high[:, number] = first, last
        elif name in columns:
            low[:, number] = column_keys(codec, name, columns[name], first_row, bad)
            if high is not low:
                high[:, number] = low[:, number]
    for name, column in columns.old.items() if columns.old is not None else ():
        if name in keys.schema:  # checks its values
            column_keys(keys.codecs[keys.schema.number(name)], f"old.{name}", column, first_row, bad)
    return with_information(keys, low, high)


def _end_columns(keys: Keys, columns: Mapping[str, Any], name: str) -> tuple[Any, Any] | None:
    """The two ends of an attribute that comes as intervals: a struct of low and high, or two columns."""
    if name not in columns:
        low, high = keys.schema.end_columns(name) or ("", "")
        return (columns[low], columns[high]) if low in columns else None
    kind = columns[name].type
    if kind in AS_THEY_ARE or keys.schema[name].is_list:
        return None
    if pa.types.is_struct(kind):
        if sorted(field.name for field in kind) != ["high", "low"]:
            raise TableError(f"column {name!r} is a column of {kind}; an interval is struct<low, high>")
        return pc.struct_field(columns[name], "low"), pc.struct_field(columns[name], "high")
    if pa.types.is_nested(kind) and not pa.types.is_run_end_encoded(kind):
        raise TableError(
            f"column {name!r} is a column of {kind}, and the attribute is no list (declare it as "
            f"'{keys.schema[name].type}[]'); an interval is struct<low, high>, or two columns {name}_low and "
            f"{name}_high"
        )
    return None


def column_keys(codec: Codec, name: str, column: Any, first_row: int = 0, bad: Mask | None = None) -> I64:
    """The keys of a column; `bad` as in `from_table`."""
    found, wrong = attempt_keys(codec, name, column)
    if wrong is not None and wrong.any():
        if bad is None:
            at = int(np.argmax(wrong))
            row, problem = first_row + at, codec.problem(column, at)
            raise TableError(f"column {name!r}, row {row}: {problem}", [(row, problem)])
        bad |= wrong
    return found


def attempt_keys(codec: Codec, name: str, column: Any) -> tuple[I64, Mask | None]:
    """The keys of a column, and which rows do not fit."""
    try:
        return codec.attempt(column)
    except ValueProblem as problem:
        raise TableError(f"column {name!r}: {problem}") from None


def check_columns(keys: Keys, columns: Sequence[str], may_be_empty: bool = False) -> None:
    """At least one attribute is there, and none that events do not carry; intervals have both ends; no column looks
    misspelt. It is the same with the names in a mapping (documents.check_part)."""
    schema = keys.schema
    for name in schema.with_role("information"):
        if name in columns:
            raise TableError(f"column {name!r}: {wrong_side(name, 'information')}")
    wanted = schema.with_role("criteria")
    for name in wanted:
        ends = [end for end in schema.end_columns(name) if end in columns]
        if len(ends) == 1 and name not in columns:
            raise TableError(f"column {ends[0]!r} is only one end of an interval: both {name}_low and {name}_high")
    absent = tuple(n for n in wanted if not {n, *schema.end_columns(n)} & set(columns))
    known = {*schema, *(f"{n}_{end}" for n in schema for end in ("low", "high"))}
    if schema.extra == "ignore":
        return
    for column in columns:
        meant = None if column in known else misspelt(schema, column, absent)
        if meant is not None or (schema.extra == "error" and column not in known):
            hint = "" if meant is None else f"; did you mean {meant!r}?"
            raise TableError(f"column {column!r} is not an attribute{hint} (rename or drop the column)")
    if schema.extra == "error" or may_be_empty:
        return
    if wanted and len(absent) == len(wanted):
        raise TableError(
            f"none of the attributes {', '.join(wanted[:8])} is a column; columns: {', '.join(columns[:8])}"
        )


def normal(keys: Keys, event: Event) -> Document:
    """The event with the plain values that keys are made of: None for null, a tuple for an interval."""
    event = _mapping(event)
    schema = keys.schema
    if schema.is_open:
        return open_document(tree(event))
    event, check, old = _image(schema, event)
    found = Document(old=old)
    for name, value in flat(schema, event, check):
        codec = keys.codecs[schema.number(name)]
        try:
            ends = None if codec.is_list else ends_of(value)
            found[name] = codec.normal(value) if ends is None else _interval(codec, *ends)
        except (ValueProblem, UnknownAttribute) as problem:
            raise type(problem)(f"attribute {name!r}: {problem}") from None
    return found


def normal_row(keys: Keys, table: pa.Table | Columns, row: int, only: frozenset[str] | None = None) -> Document:
    """One row of an event table, as `normal` gives a mapping. A null is null; without its column it is missing. `only`:
    the attributes that are wanted of the event itself."""
    columns = table if isinstance(table, Columns) else Columns(keys, table)
    if keys.schema.is_open:
        return _open_row(columns, row, only)
    found = Document()
    if columns.old is not None:
        found.old = normal_row(keys, columns.old, row)
    for number, (name, attribute) in enumerate(keys.schema.items()):
        if attribute.role != "criteria" or (only is not None and name not in only):
            continue
        codec, ends = keys.codecs[number], _end_columns(keys, columns, name)
        if ends is not None:
            low, high = (_cell(codec, column, row) for column in ends)
            found[name] = None if low is None else (low, high)
        elif name in columns:
            value = _cell(codec, columns[name], row)
            if value is not None or all(parent[row].is_valid for parent in columns.parents[name]):
                found[name] = value
    return found


def row_event(columns: Columns, keys: Keys, row: int) -> tuple[dict[str, Any], str]:
    """One row of an event table as an event, with the values as they are, whether they fit or not; and what cannot be
    read of it, which is null there."""
    new, problem = _row_values(columns, keys, row)
    if columns.old is None:
        return new, problem
    old, other = _row_values(columns.old, keys, row)
    return {"new": new, "old": old}, problem or other


def _row_values(columns: Columns, keys: Keys, row: int) -> tuple[dict[str, Any], str]:
    found: dict[str, Any] = {}
    problem, schema = "", keys.schema
    for name in columns if schema.is_open else schema.with_role("criteria"):
        ends = None if schema.is_open else _end_columns(keys, columns, name)
        if ends is None and name not in columns:
            continue
        try:
            if ends is None:
                value = python_values(columns[name].slice(row, 1), None if schema.is_open else schema[name].fields)[0]
            else:
                low, high = (python_values(end.slice(row, 1))[0] for end in ends)
                value = None if is_missing(low) and is_missing(high) else (low, high)
        except UnicodeDecodeError:
            value, problem = None, problem or f"attribute {name!r}: {NOT_UTF8}"
        if value is not None or all(parent[row].is_valid for parent in columns.parents.get(name, ())):
            found[name] = value
    return found, problem


def column_values(keys: Keys, columns: Columns, name: str) -> list[Any]:
    """The values of an attribute in all rows, as Python has them: a tuple for an interval, None for null or missing."""
    ends = _end_columns(keys, columns, name)
    if ends is not None:
        pairs = zip(*map(python_values, ends), strict=True)
        return [None if low is None else (low, high) for low, high in pairs]
    return python_values(columns[name], keys.schema[name].fields) if name in columns else []


def open_rows(keys: Keys, table: pa.Table, only: frozenset[str]) -> list[Document]:
    """All rows of an event table without a schema, with the paths that are wanted, and without their old images."""
    columns = Columns(keys, table)
    names = [name for name in columns if _is_wanted(name, only)]
    if not names:
        return [Document() for _ in range(table.num_rows)]
    rows = zip(*(python_values(columns[name]) for name in names), strict=True)
    return [Document(dict(zip(names, row, strict=True)), is_open=True) for row in rows]


def _open_row(columns: Columns, row: int, only: frozenset[str] | None) -> Document:
    """One row without a schema. `only`: the paths that are wanted."""
    names = (name for name in columns if only is None or _is_wanted(name, only))
    found = {name: python_values(columns[name].slice(row, 1))[0] for name in names}
    old = None if columns.old is None else _open_row(columns.old, row, None)
    return Document(found, old, True)


def _is_wanted(column: str, only: frozenset[str]) -> bool:
    """Whether one of the wanted paths leads to or through a column."""
    return any(path == column or path.startswith(f"{column}.") for path in only)


def _cell(codec: Codec, column: Any, row: int) -> Any:
    """The plain value in a row of a column: that of its key, where a key says all."""
    kind = column.type
    if kind in AS_THEY_ARE:
        return codec.normal(column[row].as_py())
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        micros = column[row].value
        return None if micros is None else codec.value(micros)
    one = column.slice(row, 1)
    if codec.type == "string" or codec.is_list:
        return codec.normal(python_values(one, codec.fields)[0])
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
    return np.full((rows, len(keys.codecs)), MISSING, np.int64)


def with_information(keys: Keys, low: I64, high: I64 | None = None) -> Points:
    """The points of events; what they do not carry meets everything."""
    high = low if high is None else high
    information = list(keys.space.information)
    if information:
        high = high.copy() if high is low else high
        high[:, information] = HIGHEST
    return Points(low, high)


def _check_intervals(
    name: str, codec: Codec, ends: tuple[Any, Any], first: I64, last: I64, first_row: int, bad: Mask | None
) -> None:
    lacking = (first == MISSING) != (last == MISSING)
    wrong = lacking | codec.swapped(*ends, first, last)
    if not wrong.any():
        return
    if bad is not None:
        bad |= wrong
        return
    at = int(np.argmax(wrong))
    what = "lacks one of its ends" if lacking[at] else "has its ends swapped: low comes first"
    row = first_row + at
    raise TableError(f"row {row}: the interval on {name!r} {what}", [(row, name)])
