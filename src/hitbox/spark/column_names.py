"""The names of columns: chosen by the user, ignored with a warning, told apart by case, paths of nested fields."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from hitbox.encoding.schema import Schema
from hitbox.errors import TableError, warn
from hitbox.spark.columns import PRESENT, field_of
from hitbox.spark.parquet_table import ParquetTable, leaves, nested

MAX_LISTED = 10
PLAIN = T.StringType()


def quoted(name: str) -> Any:
    """The column of this name, whatever characters are in it."""
    return F.col("`" + name.replace("`", "``") + "`")


def numbered_columns(frame: DataFrame, names: Sequence[str]) -> DataFrame:
    """These columns, named c0, c1, ...: for mapInArrow, which takes a name like `order.city` for a path."""
    return frame.select(*[quoted(name).alias(f"c{number}") for number, name in enumerate(names)])


def subscription_columns(
    table: DataFrame | ParquetTable, id_column: str | None, where_column: str | None, what: str = "the subscriptions"
) -> Any:
    """The table with its columns `id` and `where` under these names; an error suggests the options if they lack."""
    if isinstance(table, DataFrame):  # tasks that read a table themselves tell all names apart
        check_case(table, what)
        table = without_collations(with_nested_fields(table, ()))
    names = {name: name for name in table.columns}
    for wanted, given in (("id", id_column), ("where", where_column)):
        if given is not None and given != wanted:
            field_of(table, given, f"{wanted}_column")
            names.pop(wanted, None)
            names[given] = wanted
    _require(table, set(names.values()), what)
    if list(names.values()) == table.columns:
        return table
    if isinstance(table, ParquetTable):
        return table.renamed(names)
    return table.select(*[quoted(name).alias(new) for name, new in names.items()])


def without_columns(table: DataFrame | ParquetTable, names: Collection[str]) -> Any:
    """The other columns."""
    others = [name for name in table.columns if name not in names]
    if isinstance(table, ParquetTable):
        return table.renamed({name: name for name in others})
    return table.select(*map(quoted, others)) if names else table


def _require(frame: DataFrame | ParquetTable, names: Collection[str], what: str) -> None:
    listed = ", ".join(frame.columns[:MAX_LISTED])
    if "id" not in names:
        likely = [name for name in frame.columns if name.lower().endswith(("id", "key"))] or frame.columns
        raise TableError(
            f"{what} have no column 'id': name the one that holds the ids, such as "
            f"id_column={likely[0]!r}; columns: {listed}"
        )
    if "where" not in names and not any(name.endswith(("_low", "_high")) for name in names):
        texts = [f.name for f in frame.schema.fields if isinstance(f.dataType, T.StringType) and f.name != "id"]
        raise TableError(
            f"{what} have neither a column 'where' nor bounds like 'price_low' and 'price_high': name the column "
            f"that holds the predicates, such as where_column={(texts or ['condition'])[0]!r}; columns: {listed}"
        )


def without_collations(table: DataFrame) -> DataFrame:
    """The table with plain texts: hitbox tells `a` from `A`, whatever the collation of a column says."""
    collated = [f.name for f in table.schema.fields if isinstance(f.dataType, T.StringType) and f.dataType != PLAIN]
    return table.withColumns({name: quoted(name).cast(PLAIN) for name in collated}) if collated else table


def report_ignored(
    frame: DataFrame | ParquetTable, schema: Schema, others: Iterable[str | None] = (), what: str = "the subscriptions"
) -> list[str]:
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
        warn(
            f"the column{'' if one else 's'} {shown} of {what} {'is' if one else 'are'} ignored: "
            f"drop {'it' if one else 'them'} to silence this"
        )
    return ignored


def check_case(frame: DataFrame, what: str) -> None:
    """Raise an error for names that Spark does not tell apart."""
    seen: dict[str, str] = {}
    for name in frame.columns:
        if frame.columns.count(name) > 1:
            raise TableError(f"{what} have two columns {name!r}: rename or drop one")
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
        for column in (name,) if name in events.columns else (name, *schema.end_columns(name)):
            found = lower.get(column.lower())
            if found is not None and found != column and found not in schema:
                raise TableError(
                    f"the events have a column {found!r}, and the snapshot's schema has {name!r}: names differ if "
                    f"their case does; rename the column (withColumnRenamed({found!r}, {column!r}))"
                )


def with_nested_fields(table: DataFrame, kept: Collection[str | None], objects: bool = False) -> DataFrame:
    """The table with the fields of nested columns as columns of their own, named by their path: `order.city`.

    A nested column itself stays only if it is among `kept`. An interval ({low, high}) is a value, not nested.
    objects: also say in which rows each object is there, in columns that begin with PRESENT
    """
    if not any(nested(field.dataType) for field in table.schema.fields):
        return table
    columns = []
    for field in table.schema.fields:
        if not nested(field.dataType) or field.name in kept:
            columns.append(quoted(field.name))
        if nested(field.dataType):
            columns += [_at(path).alias(".".join(path)) for path, _ in leaves(T.StructType([field]))]
            if objects:
                columns += [_at(path).isNotNull().alias(PRESENT + ".".join(path)) for path in _objects(field)]
    return table.select(*columns)


def _objects(field: T.StructField, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of a nested column and of those inside it."""
    if nested(field.dataType):
        path = (*above, field.name)
        yield path
        for inner in field.dataType.fields:
            yield from _objects(inner, path)


def _at(path: Sequence[str]) -> Any:
    return F.col(".".join("`" + name.replace("`", "``") + "`" for name in path))
