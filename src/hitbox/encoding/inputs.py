"""Events and subscriptions as callers have them -> mappings and Arrow tables.

    one event     a mapping; a dataclass, a pydantic model, a row of a structured NumPy array, a pandas.Series, a struct
                  of Arrow
    many of them  a pyarrow.Table or RecordBatch, a RecordBatchReader, a pandas or polars DataFrame, any object with
                  `__arrow_c_stream__` or `__arrow_c_array__`, a structured NumPy array, a list of what one event may be

pandas, polars and pydantic are not imported: an object can come from them only if its owner has imported them. What is
a mapping or a pyarrow.Table already is passed on untouched.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from hitbox.errors import TableError, ValueProblem

MANY = (
    "a pyarrow.Table, a pandas or polars DataFrame, an object with __arrow_c_stream__, a structured NumPy array or a "
    "list of mappings"
)
PROBLEMS = (pa.ArrowException, OverflowError, TypeError, ValueError, RecursionError, ValueProblem)
"""What is raised if Arrow cannot convert something."""
MAX_DEPTH = 200
"""Of an event: no path that a predicate names is longer."""
_UNITS = ("D", "s", "ms", "us", "ns")


def as_mapping(value: Any) -> Mapping[str, Any] | None:
    """An object with fields as a mapping of their names; None if it is no such object. Its values stay as they are."""
    if type(value) is dict or isinstance(value, Mapping):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, np.void):
        return None if value.dtype.names is None else {name: value[name] for name in value.dtype.names}
    if isinstance(value, pa.StructScalar):
        found: Mapping[str, Any] | None = value.as_py()
        return found
    if _comes_from(value, "pydantic", "BaseModel"):
        return dict(value)
    if _comes_from(value, "pandas", "Series"):
        return dict(value.items())
    return None


def events(given: Any) -> pa.Table | Sequence[Any]:
    """Many events: a table, or a list of single ones."""
    if isinstance(given, (pa.Table, list)):
        return given
    if isinstance(given, tuple):
        return list(given)
    return _converted(given, "match_batch")


def rows(given: Any) -> list[Any]:
    """Many events one by one."""
    found = events(given)
    return found.to_pylist() if isinstance(found, pa.Table) else list(found)


def subscriptions(given: Any) -> pa.Table:
    """Many subscriptions: a table."""
    if isinstance(given, pa.Table):
        return given
    if isinstance(given, (list, tuple)):
        return _of_rows(given)
    table = _converted(given, "load")
    for name in ("id", "priority"):  # pandas makes floats of whole numbers if one is missing
        at = table.column_names.index(name) if name in table.column_names else -1
        if at >= 0 and pa.types.is_floating(table.column(at).type):
            numbers = table.column(at)
            values = numbers.drop_null().to_numpy()
            if np.all(values == np.trunc(values)) and np.all(np.abs(values) < 2**53):
                table = table.set_column(at, name, numbers.cast(pa.int64()))
    return table


def unwrapped(value: Any) -> Any:
    """The value of an Enum, and the text of a UUID; other values stay as they are."""
    if isinstance(value, Enum):
        return unwrapped(value.value)
    return str(value) if isinstance(value, UUID) else value


def tree(value: Any, depth: int = 0, known: dict[int, Any] | None = None) -> Any:
    """A value with objects as mappings, and Enums and UUIDs unwrapped, all the way down. What lies in several places is
    `known` after the first one: there may be very many ways to it."""
    if isinstance(value, (str, int, float)):
        return unwrapped(value)
    if depth > MAX_DEPTH:
        raise ValueProblem(f"objects and lists are nested more than {MAX_DEPTH} deep, or one contains itself")
    if isinstance(value, np.ndarray) and (not value.ndim or _is_masked(value)):
        return tree(value.tolist(), depth, known)
    mapping = None if isinstance(value, (list, set, frozenset)) else as_mapping(value)
    if mapping is None and not isinstance(value, (list, set, frozenset)):
        return unwrapped(value)
    known = {} if known is None else known
    if id(value) not in known:
        if mapping is None:
            found: Any = [tree(one, depth + 1, known) for one in value]
        else:
            found = {key: tree(one, depth + 1, known) for key, one in mapping.items()}
        known[id(value)] = found, value  # which is kept, so that no other object has its id
    return known[id(value)][0]


def _is_masked(array: np.ndarray[Any, Any]) -> bool:
    return _comes_from(array, "numpy.ma", "MaskedArray")


def _comes_from(value: Any, package: str, name: str) -> bool:
    """Whether a value is of a class of a package, without importing it."""
    kind = getattr(sys.modules.get(package), name, None)
    return kind is not None and isinstance(value, kind)


def _converted(given: Any, caller: str) -> pa.Table:
    try:
        found = _table(given)
    except TableError:
        raise
    except PROBLEMS as problem:
        raise TableError(f"{caller} cannot read this {type(given).__name__} as a table: {problem}") from None
    if found is None:
        hint = "; call .collect() first" if hasattr(given, "collect") else ""
        raise TableError(f"{caller} takes {MANY}, not {type(given).__name__}{hint}")
    return found


def _table(given: Any) -> pa.Table | None:
    if isinstance(given, pa.RecordBatch):
        return pa.Table.from_batches([given])
    if isinstance(given, pa.RecordBatchReader):
        return given.read_all()
    if _comes_from(given, "pandas", "DataFrame"):
        return _of_pandas(given)
    if isinstance(given, np.ndarray):
        return _of_numpy(given)
    if isinstance(given, type):
        return None
    if hasattr(given, "__arrow_c_stream__"):
        return _with_texts(pa.RecordBatchReader.from_stream(given).read_all())
    if hasattr(given, "__arrow_c_array__"):
        return _with_texts(pa.Table.from_batches([pa.record_batch(given)]))
    return None


def _of_rows(rows: Sequence[Any]) -> pa.Table:
    """A table with a column per name that any row has; what a row does not have is null."""
    found: list[Mapping[str, Any]] = []
    for number, row in enumerate(rows):
        mapping = as_mapping(row)
        if mapping is None:
            raise TableError(f"row {number} is a {type(row).__name__}, and not a mapping", [(number, "not a mapping")])
        found.append(mapping)
    names = list(dict.fromkeys(name for row in found for name in row))
    if not all(isinstance(name, str) for name in names):
        raise TableError("the name of a column is a text")
    return pa.table({name: _column(name, [row.get(name) for row in found]) for name in names})


def _of_pandas(frame: Any) -> pa.Table:
    names = list(frame.columns)
    if not all(isinstance(name, str) for name in names):
        raise TableError("a column of the DataFrame has a name that is no text: rename it, as in df.columns.map(str)")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise TableError(f"two columns are called {twice!r} (rename or drop one)")
    columns = {}
    for name in names:
        series = frame[name]
        if series.dtype == object:
            columns[name] = _column(name, series.tolist())
        else:
            columns[name] = pa.array(series, from_pandas=True)
    return _with_texts(pa.table(columns))


def _of_numpy(array: np.ndarray[Any, Any]) -> pa.Table:
    if array.dtype.names is None or array.ndim != 1:
        raise TableError(
            f"an array of {array.dtype} with {array.ndim} dimensions is no table: it has to be structured, with the "
            "attributes as its fields, and one-dimensional"
        )
    return pa.table({name: _of_field(name, array[name]) for name in array.dtype.names})


def _of_field(name: str, array: np.ndarray[Any, Any]) -> pa.Array:
    kind = array.dtype
    if kind.names is not None:
        return pa.StructArray.from_arrays(
            [_of_field(f"{name}.{one}", array[one]) for one in kind.names], list(kind.names)
        )
    if kind.hasobject or array.ndim > 1:
        return _column(name, array.tolist() if _is_masked(array) else list(array))
    if kind.kind == "M" and np.datetime_data(kind)[0] not in _UNITS:
        array = array.astype("datetime64[s]")
    if not kind.isnative:
        array = array.astype(kind.newbyteorder("="))
    masked = np.ascontiguousarray(np.ma.getmaskarray(array)) if _is_masked(array) else None
    return pa.array(np.ascontiguousarray(array), mask=masked, from_pandas=True)


def _column(name: str, values: list[Any]) -> pa.Array:
    """A column of Python values; NaN, NaT and pandas.NA are null, and a tuple is an interval."""
    try:
        return pa.array([_cell(value) for value in values], from_pandas=True)
    except PROBLEMS as problem:
        raise TableError(f"column {name!r}: {problem}") from None


def _cell(value: Any) -> Any:
    if isinstance(value, tuple) and len(value) == 2:
        return {"low": tree(value[0]), "high": tree(value[1])}
    return tree(value)


def _with_texts(table: pa.Table) -> pa.Table:
    """The table with UUIDs as texts, as they are everywhere else."""
    for at, field in enumerate(table.schema):
        if isinstance(field.type, pa.BaseExtensionType) and field.type.extension_name == "arrow.uuid":
            texts = [None if one is None else str(one) for one in table.column(at).to_pylist()]
            table = table.set_column(at, field.name, pa.array(texts, pa.string()))
    return table
