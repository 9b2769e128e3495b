"""The names of columns: chosen by the user, ignored with a warning, told apart by case, paths of nested fields."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from hitbox.encoding.schema import Schema
from hitbox.errors import HitboxWarning, TableError
from hitbox.spark.columns import field_of
from hitbox.spark.parquet_table import ParquetTable

MAX_LISTED = 10


def quoted(name: str) -> Any:
    """The column of this name, whatever characters are in it."""
    return F.col("`" + name.replace("`", "``") + "`")


def numbered_columns(frame: DataFrame, names: Sequence[str]) -> DataFrame:
    """These columns, named c0, c1, ...: for mapInArrow, which takes a name like `order.city` for a path."""
    return frame.select(*[quoted(name).alias(f"c{number}") for number, name in enumerate(names)])


def subscription_columns(table: DataFrame | ParquetTable, id_column: str | None, where_column: str | None) -> Any:
    """The table with its columns `id` and `where` under these names; an error suggests the options if they lack."""
    if isinstance(table, DataFrame):  # tasks that read a table themselves tell all names apart
        check_case(table, "the subscriptions")
    names = {name: name for name in table.columns}
    for wanted, given in (("id", id_column), ("where", where_column)):
        if given is not None and given != wanted:
            field_of(table, given, f"{wanted}_column")
            names.pop(wanted, None)
            names[given] = wanted
    _require(table, set(names.values()))
    if list(names.values()) == table.columns:
        return table
    if isinstance(table, ParquetTable):
        return table.renamed(names)
    return table.select(*[quoted(name).alias(new) for name, new in names.items()])


def _require(frame: DataFrame | ParquetTable, names: Collection[str]) -> None:
    listed = ", ".join(frame.columns[:MAX_LISTED])
    if "id" not in names:
        likely = [name for name in frame.columns if name.lower().endswith(("id", "key"))] or frame.columns
        raise TableError(
            f"the subscriptions have no column 'id': name the one that holds the ids, such as "
            f"id_column={likely[0]!r}; columns: {listed}"
        )
    if "where" not in names and not any(name.endswith(("_low", "_high")) for name in names):
        texts = [f.name for f in frame.schema.fields if isinstance(f.dataType, T.StringType) and f.name != "id"]
        raise TableError(
            "the subscriptions have neither a column 'where' nor bounds like 'price_low' and 'price_high': name the "
            f"column that holds the predicates, such as where_column={(texts or ['condition'])[0]!r}; columns: {listed}"
        )


def report_ignored(frame: DataFrame | ParquetTable, schema: Schema, others: Iterable[str | None] = ()) -> list[str]:
    """The columns of subscriptions that say nothing to hitbox, after a warning that lists them."""
    known = {"id", "where", "priority", *others}
    for name in schema:
        known |= {name, *schema.end_columns(name)} if schema[name].role == "information" else set()
    if "where" not in frame.columns:  # the wide layout: each column must be known
        return []
    ignored = [name for name in frame.columns if name not in known]
    if ignored:
        shown = ", ".join(map(repr, ignored[:MAX_LISTED])) + (" ..." if len(ignored) > MAX_LISTED else "")
        one = len(ignored) == 1
        warnings.warn(
            HitboxWarning(
                f"the column{'' if one else 's'} {shown} of the subscriptions {'is' if one else 'are'} ignored: "
                f"drop {'it' if one else 'them'} to silence this"
            ),
            stacklevel=3,
        )
    return ignored


def check_case(frame: DataFrame, what: str) -> None:
    """Raise an error for names that Spark does not tell apart."""
    seen: dict[str, str] = {}
    for name in frame.columns:
        other = seen.setdefault(name.lower(), name)
        if other != name and frame.sparkSession.conf.get("spark.sql.caseSensitive", "false") != "true":
            raise TableError(
                f"{what} have the columns {other!r} and {name!r}, which differ only in case: Spark does not tell them "
                "apart (spark.sql.caseSensitive); rename or drop one"
            )


def check_events(events: DataFrame, schema: Schema) -> None:
    """Raise an error for a column that is an attribute but for its case: it would not be read."""
    check_case(events, "the events")
    lower = {name.lower(): name for name in events.columns}
    for name in schema.with_role("criteria"):
        found = lower.get(name.lower())
        if found is not None and found != name and found not in schema:
            raise TableError(
                f"the events have a column {found!r}, and the snapshot's schema has {name!r}: names differ if their "
                f"case does; rename the column (withColumnRenamed({found!r}, {name!r}))"
            )


def with_nested_fields(events: DataFrame, kept: Collection[str | None]) -> DataFrame:
    """The events with the fields of nested columns as columns of their own, named by their path: `order.city`.

    A nested column itself stays only if it is among `kept`. An interval ({low, high}) is a value, not nested.
    """
    if not any(_nested(field.dataType) for field in events.schema.fields):
        return events
    columns = []
    for field in events.schema.fields:
        if not _nested(field.dataType) or field.name in kept:
            columns.append(quoted(field.name))
        if _nested(field.dataType):
            columns += [_at(path).alias(".".join(path)) for path in _leaves((field.name,), field.dataType)]
    return events.select(*columns)


def _nested(kind: T.DataType) -> bool:
    return isinstance(kind, T.StructType) and sorted(kind.names) != ["high", "low"]


def _leaves(path: tuple[str, ...], kind: Any) -> Iterator[tuple[str, ...]]:
    for field in kind.fields:
        if _nested(field.dataType):
            yield from _leaves((*path, field.name), field.dataType)
        else:
            yield (*path, field.name)


def _at(path: Sequence[str]) -> Any:
    return F.col(".".join("`" + name.replace("`", "``") + "`" for name in path))
