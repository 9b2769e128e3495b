"""Subscriptions on their way through a shuffle: one row each, its boxes as lists of numbers.

part  id  where  priority  sizes    exact   attribute  low      high     [latest]  error
  3   17  null      4      [2]      [T]     [0, 4]     [..]     [..]               null      one box, two constraints
  3   18  "..."     9      [1, 1]   [T, F]  [0, 0]     [..]     [..]               null      an OR
  0   19  "pric"    4      []       []      []         []       []                 "unknown attribute 'pric' ..."
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from hitbox.encoding.arrays import I64, Boxes
from hitbox.index.bulk_load import Draft, Encoded

LISTS = {"sizes": T.IntegerType(), "exact": T.BooleanType(), "attribute": T.IntegerType()}
LISTS |= {"low": T.LongType(), "high": T.LongType()}


def schema(id_type: T.DataType, latest: T.DataType | None) -> T.StructType:
    found = T.StructType().add("part", T.IntegerType()).add("id", id_type).add("where", T.StringType())
    found = found.add("priority", T.IntegerType())
    for name, kind in LISTS.items():
        found = found.add(name, T.ArrayType(kind, containsNull=False))
    if latest is not None:
        found = found.add("latest", latest)
    return found.add("error", T.StringType())


def empty(id_type: T.DataType, latest: T.DataType | None) -> pa.Table:
    return to_arrow_schema(schema(id_type, latest), timezone="UTC").empty_table()


def pack(draft: Draft, encoded: Encoded, part: NDArray[np.int32], latest: pa.ChunkedArray | None) -> pa.RecordBatch:
    """The good rows with their boxes, then the bad ones with their errors."""
    good = np.ones(len(draft.ids), bool)
    good[list(draft.errors)] = False
    order = np.concatenate([np.flatnonzero(good), np.array(sorted(draft.errors), np.int64)])
    bad = len(draft.errors)
    boxes = encoded.boxes
    first = np.concatenate([[0], np.cumsum(encoded.count)])
    widths = np.diff(boxes.offsets[first])
    texts = draft.where if draft.where is not None else pa.nulls(len(draft.ids), pa.string())
    ids = draft.ids.take(pa.array(order))
    columns: dict[str, Any] = {
        "part": pa.array(part[order]),
        "id": ids.cast(pa.string()) if pa.types.is_large_string(ids.type) else ids,
        "where": _whole(texts).cast(pa.string()).take(pa.array(order)),
        "priority": pa.array(draft.priority[order].astype(np.int32)),
        "sizes": _lists(encoded.count, np.diff(boxes.offsets).astype(np.int32), bad),
        "exact": _lists(encoded.count, encoded.exact, bad),
        "attribute": _lists(widths, boxes.attribute, bad),
        "low": _lists(widths, boxes.low, bad),
        "high": _lists(widths, boxes.high, bad),
    }
    if latest is not None:
        columns["latest"] = _whole(latest).take(pa.array(order))
    columns["error"] = pa.array(
        [None] * int(good.sum()) + [draft.errors[row] for row in sorted(draft.errors)], pa.string()
    )
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def by_part(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.Table]]:
    """Rows sorted by part, part by part."""
    held: list[pa.RecordBatch] = []
    current = -1
    for batch in batches:
        parts = batch.column("part").to_numpy()
        ends = [0, *(np.flatnonzero(np.diff(parts)) + 1).tolist(), len(parts)]
        for start, end in itertools.pairwise(ends):
            if start == end:
                continue
            if held and parts[start] != current:
                yield current, pa.Table.from_batches(held)
                held = []
            current = int(parts[start])
            held.append(batch.slice(start, end - start))
    if held:
        yield current, pa.Table.from_batches(held)


def settle(table: pa.Table, latest: bool) -> tuple[pa.Table, pa.Table]:
    """(rows to load, rejected rows as id, where, error) of one part, sorted by id and, if given, by `latest`."""
    sound = table["error"].is_null()
    good, bad = table.filter(sound), table.filter(pc.invert(sound))
    last, twice = _repeats(good["id"])
    error = bad["error"]
    if latest:
        good = good.filter(pa.array(last))
    elif twice.any():
        again = good.filter(pa.array(twice))
        message = "this id occurs more than once; latest_by=COLUMN decides which row counts"
        bad = pa.concat_tables([bad, again])
        error = pa.chunked_array([*error.chunks, pa.array([message] * again.num_rows, pa.string())])
        good = good.filter(pa.array(~twice))
    return good, pa.table({"id": bad["id"].cast(pa.string()), "where": bad["where"], "error": error})


def _repeats(ids: pa.ChunkedArray) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which of the sorted ids are the last row of their id, and which ids have several rows."""
    same = np.zeros(max(len(ids) - 1, 0), bool)
    if len(ids) > 1:
        whole = _whole(ids)
        same = pc.equal(whole[:-1], whole[1:]).to_numpy(zero_copy_only=False)
    before, after = np.append(False, same), np.append(same, False)
    if not len(ids):
        return np.zeros(0, bool), np.zeros(0, bool)
    return ~after, before | after


def unpack(table: pa.Table) -> Encoded:
    """The rows of one part as boxes."""
    count, sizes = _flat(table["sizes"])
    _, exact = _flat(table["exact"])
    _, attribute = _flat(table["attribute"])
    _, low = _flat(table["low"])
    _, high = _flat(table["high"])
    priority = table["priority"].to_numpy().astype(np.uint8)
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    boxes = Boxes(offsets, attribute.astype(np.int32), low, high, np.repeat(priority, count))
    ids = table["id"] if pa.types.is_integer(table["id"].type) else table["id"].cast(pa.large_string())
    where = None if table["where"].null_count == len(table) else _whole(table["where"].cast(pa.large_string()))
    return Encoded(_whole(ids), where, priority, count, exact.astype(bool), boxes)


def _lists(lengths: I64, values: NDArray[Any], empties: int) -> pa.Array:
    offsets = np.zeros(len(lengths) + empties + 1, np.int32)
    np.cumsum(lengths, out=offsets[1 : len(lengths) + 1])
    offsets[len(lengths) + 1 :] = offsets[len(lengths)]
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))


def _flat(column: pa.ChunkedArray) -> tuple[I64, NDArray[Any]]:
    """Lengths and values of a column of lists."""
    kind = column.type.value_type.to_pandas_dtype()
    lengths = [pc.list_value_length(chunk).to_numpy(zero_copy_only=False) for chunk in column.chunks]
    values = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in column.chunks]
    return (
        np.concatenate([np.zeros(0, np.int64), *lengths]).astype(np.int64),
        np.concatenate([np.zeros(0, kind), *values]),
    )


def _whole(column: Any) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        return pa.concat_arrays([pa.array([], column.type), *column.chunks])
    return column
