"""Spark's types against hitbox's: schemas inferred from DataFrames, and what is checked before a job starts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from inspect import signature
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from hitbox.encoding.events import from_table
from hitbox.encoding.keys import Keys
from hitbox.encoding.schema import Schema
from hitbox.errors import HitboxError, SchemaError, TableError, ValueProblem, nearest
from hitbox.index.load import bulk_load
from hitbox.language import DEFAULT_LIMITS
from hitbox.spark.parquet_table import ParquetTable

# older versions of Spark have no such argument and always mean UTC
UTC = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
PRESENT = "_hitbox_present."
"""Before the path of an object: the column that says in which rows it is there."""
IMAGES = ("new", "old")
KINDS: dict[Any, str] = {
    T.BooleanType: "bool",
    T.IntegralType: "int",
    T.FractionalType: "float",
    T.StringType: "string",
    (T.TimestampType, T.TimestampNTZType, T.DateType): "timestamp",
}
ID_TYPES: dict[str, T.DataType] = {"int": T.LongType(), "string": T.StringType()}


def schema_of_bounds(columns: T.StructType) -> Schema:
    """The schema that follows from the columns of the wide layout."""
    fields = {field.name: field.dataType for field in columns.fields}
    lows = [name for name in fields if name.endswith("_low")]
    found = {low[:-4]: _type_of(low, fields[low], fields.get(f"{low[:-4]}_high")) for low in lows}
    if not found:
        raise TableError("the subscriptions have no bounds like 'price_low' and 'price_high'")
    return Schema(found)


def schema_of_events(events: DataFrame, others: Iterable[str]) -> Schema:
    """The schema that follows from the columns of an event table; `others` are not attributes."""
    skipped = set(others)
    found: dict[str, str] = {}
    for field in events.schema.fields:
        name, other = field.name, None
        if name in skipped or name.startswith(PRESENT):
            continue
        ends = (f"{name[:-4]}_low", f"{name[:-4]}_high")
        if name == ends[0] and ends[1] in events.columns:
            name, other = name[:-4], events.schema[ends[1]].dataType
        elif name.endswith("_high") and f"{name[:-5]}_low" in events.columns:
            continue
        found[name] = _type_of(name, field.dataType, other)
    return Schema(found)


def _type_of(column: str, kind: T.DataType, other: T.DataType | None = None) -> str:
    """The type of an attribute; `other` is that of the high ends, where a column has the low ones."""
    if isinstance(kind, T.StructType) and sorted(kind.names) == ["high", "low"]:  # an interval
        return _type_of(column, kind["low"].dataType, kind["high"].dataType)
    if other is not None:
        types = {_type_of(column, one) for one in (kind, other) if not isinstance(one, T.NullType)}
        if types == {"int", "float"}:
            return "float"
        if len(types) != 1:
            two = f"{kind.simpleString()} and {other.simpleString()}"
            raise SchemaError(f"the ends of the intervals in {column!r} are of types {two}: give a schema")
        return types.pop()
    for kinds, type_ in KINDS.items():
        if isinstance(kind, kinds):
            return type_
    raise SchemaError(
        f"column {column!r} of type {kind.simpleString()} cannot be an attribute: drop it or give a schema"
    )


def empty_table(fields: Sequence[T.StructField]) -> pa.Table:
    """A table of Arrow without rows. Types that Arrow does not have, such as intervals of months, are binary there."""
    columns = []
    for field in fields:
        kind = field.dataType
        if isinstance(kind, T.ArrayType) and isinstance(kind.elementType, T.NullType):  # of `array()`: nothing is null
            field = T.StructField(field.name, T.ArrayType(T.NullType()))
        try:
            columns.append(to_arrow_schema(T.StructType([field]), **UTC).empty_table().column(0))
        except (PySparkException, pa.ArrowException, ValueError):
            columns.append(pa.chunked_array([], pa.binary()))
    return pa.table(columns, names=[field.name for field in fields])


def check_subscriptions(columns: T.StructType, schema: Schema) -> str:
    """Raise what `bulk_load.read` would raise for these columns; otherwise returns the kind of the ids."""
    empty = empty_table(columns.fields)
    draft = bulk_load.read(empty, schema, DEFAULT_LIMITS)
    try:
        draft.encode(Keys(schema), DEFAULT_LIMITS)
        if draft.where is None:
            draft.encode_piece(Keys(schema), 0)
    except HitboxError as problem:
        raise TableError(f"subscriptions: {problem}") from None
    return "int" if pa.types.is_integer(empty["id"].type) else "string"


def columns_read(schema: Schema, columns: Sequence[str]) -> tuple[list[str], list[str]]:
    """Which of these columns of events a match reads, and the attributes that have none. Without a declared schema any
    column may be meant."""
    if schema.is_open:
        return [name for name in columns if not name.startswith(PRESENT)], []
    wanted: list[str] = []
    absent = []
    for name in schema.with_role("criteria"):
        ends = [end for end in schema.end_columns(name) if end in columns]
        if name in columns:
            wanted.append(name)
        elif ends:
            wanted += ends
        else:
            absent.append(name)
    return wanted, absent


def event_columns_read(schema: Schema, columns: Sequence[str]) -> tuple[list[str], list[str]]:
    """What a match reads of events, whose attributes may all be fields of the two images `new` and `old`."""
    wanted, absent = columns_read(schema, columns)
    if wanted or any(image in schema or image in schema.objects for image in IMAGES):
        return wanted, absent
    fields = {image: [name[4:] for name in columns if name.startswith(f"{image}.")] for image in IMAGES}
    read = {image: columns_read(schema, names) for image, names in fields.items()}
    return [f"{image}.{name}" for image in IMAGES for name in read[image][0]], read["new"][1]


def objects_of(attributes: Iterable[str], columns: Sequence[str]) -> list[str]:
    """The columns that say where the objects around these attributes are there."""
    names = list(attributes)
    objects = [name for name in columns if name.startswith(PRESENT)]
    return [one for one in objects if any(name.startswith(f"{one.removeprefix(PRESENT)}.") for name in names)]


def documents(table: pa.Table, attributes: Sequence[str], objects: Sequence[str]) -> pa.Table:
    """These columns, with the fields of an object in a struct: without the object they are missing, not null."""
    columns = {name: _whole(table[name]) for name in attributes}
    for name in sorted(objects, key=len, reverse=True):  # those inside others first
        path = name.removeprefix(PRESENT)
        fields = [field for field in columns if field.startswith(f"{path}.")]
        if fields:
            arrays = [columns.pop(field) for field in fields]
            names = [field[len(path) + 1 :] for field in fields]
            columns[path] = pa.StructArray.from_arrays(arrays, names, mask=pc.invert(_whole(table[name])))
    return pa.table(columns) if columns else table.select([])  # which keeps the number of rows


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def event_columns(events: DataFrame, schema: Schema, allow_missing: bool) -> list[str]:
    """The columns of an event table that a match reads; an error where they do not fit the snapshot."""
    wanted, absent = event_columns_read(schema, events.columns)
    if absent and not allow_missing:
        others = [name for name in events.columns if name not in wanted and not name.startswith(PRESENT)]
        raise no_column(absent, others)
    objects = objects_of(wanted, events.columns)
    fields = [field for field in events.schema.fields if field.name in {*wanted, *objects}]
    for name in schema.objects.intersection(events.columns):
        if not isinstance(kind := events.schema[name].dataType, T.StructType):
            raise TableError(f"events: column {name!r} is an object: it takes a struct, not {kind.simpleString()}")
    try:
        from_table(Keys(schema), documents(empty_table(fields), wanted, objects))
    except HitboxError as problem:
        raise TableError(f"events: {problem}") from None
    return wanted


def no_column(absent: Sequence[str], others: Sequence[str]) -> TableError:
    """The error for attributes that the events have no column for."""
    names = ", ".join(map(repr, absent[:5])) + (" ..." if len(absent) > 5 else "")
    return TableError(
        f"the events have no column{'' if len(absent) == 1 else 's'} {names}, which the snapshot's schema "
        f"has{nearest(absent[0], others)} (allow_missing=True treats an absent column as null)"
    )


def without(columns: T.StructType, *names: str | None) -> T.StructType:
    """The other columns."""
    return T.StructType([field for field in columns.fields if field.name not in names])


def event_id_field(events: DataFrame, name: str) -> Any:
    """The field that identifies an event; an error that says how to name it otherwise."""
    found = [field for field in events.schema.fields if field.name == name]
    if not found:
        likely = [column for column in events.columns if column.lower().endswith(("id", "key"))] or events.columns
        hint = (
            nearest(name, events.columns) or f": name the one that identifies an event, such as event_id={likely[0]!r}"
        )
        raise TableError(f"the events have no column {name!r}{hint}; columns: {', '.join(events.columns[:10])}")
    return found[0]


def require_frame(table: Any, what: str, otherwise: str = "") -> None:
    """Raise an error for what is no DataFrame of Spark, such as one of pandas."""
    if not isinstance(table, DataFrame):
        kind = f"{type(table).__module__}.{type(table).__name__}".removeprefix("builtins.")
        raise TableError(
            f"{what} are a DataFrame of Spark{otherwise}, not {kind}: spark.createDataFrame(...) makes one of pandas, "
            "Arrow and lists"
        )


def require_names(names: Any, option: str) -> None:
    """Raise an error for what is no list of columns. The letters of a text would be taken for columns."""
    if isinstance(names, str):
        raise TableError(f"{option} is a list of columns: {option}=[{names!r}]")
    if not isinstance(names, Iterable):
        raise TableError(f"{option} is a list of columns, such as {option}=['user'], not {names!r}")


def require_name(name: Any, option: str) -> None:
    """Raise an error for what is neither the name of a column nor None."""
    if name is not None and not isinstance(name, str):
        raise TableError(f"{option} is the name of a column, not {name!r}")


def require_whole(number: Any, what: str, least: int, most: int = 2**63 - 1) -> None:
    """Raise an error for what is no whole number of this range; None stands for the default."""
    if number is None:
        return
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
        above = f" and at most {most}" if isinstance(number, int) and number > most else ""
        raise ValueProblem(f"{what} is a whole number of at least {least}{above}, not {number!r}")


def field_of(table: DataFrame | ParquetTable, name: str, what: str) -> Any:
    """The field called `name`; an error that names the nearest column otherwise."""
    found = [field for field in table.schema.fields if field.name == name]
    if not found:
        raise TableError(
            f"{what} {name!r} is not a column{nearest(name, table.columns)}; columns: {', '.join(table.columns[:10])}"
        )
    return found[0]
