"""Encoded subscriptions between the two steps of a build: Arrow files, which tasks write and read themselves.

    5e3a...boxes      one record batch per bucket of ids, so that the writer of a part reads only its own
        id  where  priority  sizes    exact   attribute  low    high   anchors  shape  literals  [latest]  error
        17  null      4      [2]      [T]     [0, 4]     [..]   [..]   []       null   null                null
        18  "..."     9      [1, 1]   [T, F]  [0, 0]     [..]   [..]   []       ...    ...                 null
        19  "pric"    4      []       []      []         []     []     []       null   null                "unknown ..."

    17 is one box with two constraints; 18 is an OR, and one of its boxes needs its program (shape and literals).

    5e3a...strings    attribute, text, label: the strings of its boxes; each file has labels of its own
    labels            one record batch per file of boxes: what its labels are in the dictionary of the snapshot

So each predicate is read once: a task labels the strings that it finds, and the labels are replaced when all
strings are known.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hitbox.encoding.arrays import I64, Boxes
from hitbox.encoding.keys import Keys
from hitbox.encoding.string_dictionary import Relabel
from hitbox.index.catalog import ID_TYPES
from hitbox.index.load.bulk_load import Draft, Encoded
from hitbox.index.program_columns import ProgramColumns
from hitbox.index.sharded import part_of
from hitbox.language import Program, Programs
from hitbox.spark import snapshot_files
from hitbox.storage.addresses import join

NUMBERS = {"sizes": pa.int32(), "exact": pa.bool_(), "attribute": pa.int32(), "low": pa.int64(), "high": pa.int64()}
LISTS = NUMBERS | {"anchors": pa.large_binary()}  # of each box, or none if no row of the file has any
STRINGS = pa.schema([("attribute", pa.int32()), ("text", pa.large_string()), ("label", pa.int64())])
LABELS = pa.schema([("attribute", pa.int32()), ("old", pa.int64()), ("new", pa.int64())])
TWICE = "this id occurs more than once; latest_by=COLUMN decides which row counts"


def schema(kind: str, latest: pa.DataType | None) -> pa.Schema:
    fields = [("id", ID_TYPES[kind]), ("where", pa.large_string()), ("priority", pa.uint8())]
    fields += [(name, pa.list_(values)) for name, values in LISTS.items()]
    fields += [("shape", pa.large_binary()), ("literals", pa.large_binary())]
    fields += [] if latest is None else [("latest", latest)]
    return pa.schema([*fields, ("error", pa.string())])


def write(place: str, draft: Draft, encoded: Encoded, keys: Keys, buckets: int, latest: pa.Array | None) -> str:
    """Write subscriptions to a new file, in `buckets` by their ids; its name."""
    name = uuid.uuid4().hex
    rows, table = _rows(draft, encoded, latest)
    bucket = part_of(rows, buckets)
    order = np.argsort(bucket, kind="stable")
    ends = np.searchsorted(bucket, np.arange(buckets + 1), sorter=order)
    whole = _batch(table if buckets == 1 else table.take(pa.array(order)))
    with snapshot_files.new_file(join(place, f"{name}.boxes")) as file, pa.ipc.new_file(file, table.schema) as out:
        for start, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            out.write_batch(whole.slice(start, end - start))
    if keys.dictionaries:
        with snapshot_files.new_file(join(place, f"{name}.strings")) as file, pa.ipc.new_file(file, STRINGS) as out:
            out.write_table(_strings(keys))
    return name


def label(place: str, names: Sequence[str], keys: Keys) -> Keys:
    """The keys, with dictionaries of all strings of all files; what the labels of each file are in them is left at
    `place`."""
    if not keys.dictionaries:
        return keys
    tables = [_open(place, f"{name}.strings").read_all() for name in names]
    whole = pa.concat_tables([STRINGS.empty_table(), *tables]).combine_chunks()
    attribute, new = whole["attribute"].to_numpy(), np.zeros(len(whole), np.int64)
    for number in np.unique(attribute).tolist():
        at = attribute == number
        texts = _whole(whole["text"].filter(pa.array(at))).dictionary_encode()
        keys.admit({number: texts.dictionary})
        new[at] = keys.codecs[number].column(texts.dictionary)[texts.indices.to_numpy()]
    labels = pa.table([whole["attribute"], whole["label"], pa.array(new)], schema=LABELS)
    with snapshot_files.new_file(join(place, "labels")) as file, pa.ipc.new_file(file, LABELS) as out:
        first = 0
        for table in tables:
            out.write_batch(_batch(labels.slice(first, len(table))))
            first += len(table)
    return keys


def write_labels(place: str, relabels: Mapping[int, Relabel]) -> None:
    """Leave what the labels of a dictionary became, as `label` does."""
    number = np.repeat(np.array(list(relabels), np.int32), [len(relabel.old) for relabel in relabels.values()])
    old, new = (np.concatenate([getattr(r, end) for r in relabels.values()]) for end in ("old", "new"))
    columns = [pa.array(number), pa.array(old), pa.array(new)]
    with snapshot_files.new_file(join(place, "labels")) as file, pa.ipc.new_file(file, LABELS) as out:
        out.write_batch(pa.RecordBatch.from_arrays(columns, schema=LABELS))


def read_labels(place: str, number: int = 0) -> dict[int, Relabel]:
    """What the labels of one file of boxes became."""
    return _relabels(_open(place, "labels").get_batch(number))


def read(place: str, names: Sequence[str], buckets: Iterable[int], like: pa.Schema, labelled: bool) -> pa.Table:
    """The subscriptions of some buckets of all files, with the labels of the snapshot's dictionary."""
    chosen, found = list(buckets), []
    for number, name in enumerate(names):
        file = _open(place, f"{name}.boxes")
        batches = [file.get_batch(bucket) for bucket in chosen]
        if labelled:
            relabels = read_labels(place, number)
            batches = [_relabelled(batch, relabels) for batch in batches]
        found += batches
    return pa.Table.from_batches(found, like)


def settle(table: pa.Table) -> tuple[pa.Table, pa.Table]:
    """(rows to load, sorted by id; rejected rows as id, where, error). Of the rows with one id the one with the largest
    `latest` counts, and of those with equal ones the largest row; without that column they are all rejected."""
    sound = table["error"].is_null()
    good, bad = table.filter(sound), table.filter(pc.invert(sound))
    latest = "latest" in table.column_names
    good, bad = _sorted(good), _sorted(bad)
    last, twice = _repeats(good["id"])
    error = bad["error"]
    if latest:
        good = good if last.all() else good.filter(pa.array(last))
    elif twice.any():
        again = good.filter(pa.array(twice))
        bad = pa.concat_tables([bad, again])
        error = pa.chunked_array([*error.chunks, pa.array([TWICE] * again.num_rows, pa.string())])
        good = good.filter(pa.array(~twice))
    texts = {"id": bad["id"].cast(pa.string()), "where": bad["where"].cast(pa.string()), "error": error}
    return good, pa.table(texts)


def unpack(table: pa.Table) -> Encoded:
    """Rows as boxes."""
    count, sizes = _flat(table["sizes"])
    _, exact = _flat(table["exact"])
    _, attribute = _flat(table["attribute"])
    _, low = _flat(table["low"])
    _, high = _flat(table["high"])
    priority = table["priority"].to_numpy()
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    boxes = Boxes(offsets, attribute, low, high, np.repeat(priority, count), _all_anchors(table["anchors"], count))
    where = None if table["where"].null_count == len(table) else _whole(table["where"])
    return Encoded(_whole(table["id"]), where, priority, count, exact, boxes, _programs(table))


def _rows(draft: Draft, encoded: Encoded, latest: pa.Array | None) -> tuple[pa.Array, pa.Table]:
    """The ids and all columns: of the good rows with their boxes, then of the bad ones with their errors."""
    wrong = sorted(draft.errors)
    good = np.ones(len(draft.ids), bool)
    good[wrong] = False
    order = pa.array(np.concatenate([np.flatnonzero(good), np.array(wrong, np.int64)]))
    boxes = encoded.boxes
    widths = np.diff(boxes.offsets[np.concatenate([[0], np.cumsum(encoded.count)])])
    texts = draft.where if draft.where is not None else pa.nulls(len(draft.ids), pa.large_string())
    ids = draft.ids.take(order)
    columns: dict[str, Any] = {
        "id": ids,
        "where": _whole(texts).cast(pa.large_string()).take(order),
        "priority": pa.array(draft.priority).take(order),
        "sizes": _lists(encoded.count, np.diff(boxes.offsets).astype(np.int32), len(wrong)),
        "exact": _lists(encoded.count, encoded.exact, len(wrong)),
        "attribute": _lists(widths, boxes.attribute, len(wrong)),
        "low": _lists(widths, boxes.low, len(wrong)),
        "high": _lists(widths, boxes.high, len(wrong)),
        "anchors": _anchors(encoded, len(wrong)),
        **_program_columns(encoded.programs, len(ids)),
    }
    if latest is not None:
        columns["latest"] = latest.take(order)
    errors = [draft.errors[row] for row in wrong]
    columns["error"] = pa.concat_arrays([pa.nulls(len(ids) - len(wrong), pa.string()), pa.array(errors, pa.string())])
    return ids, pa.table(columns)


def _strings(keys: Keys) -> pa.Table:
    """The strings of all dictionaries with their labels, which ascend."""
    tables = [STRINGS.empty_table()]
    for attribute, words in keys.dictionaries.items():
        arrays = words.arrays()
        buffers = [None, pa.py_buffer(arrays["offsets"]), pa.py_buffer(arrays["data"])]
        texts = pa.Array.from_buffers(pa.large_string(), len(words), buffers)
        number = pa.array(np.full(len(words), attribute, np.int32))
        tables.append(pa.table([number, texts, pa.array(arrays["labels"])], schema=STRINGS))
    return pa.concat_tables(tables)


def _relabels(labels: pa.RecordBatch) -> dict[int, Relabel]:
    attribute, old, new = (labels.column(name).to_numpy() for name in LABELS.names)
    return {n: Relabel(old[attribute == n], new[attribute == n]) for n in np.unique(attribute).tolist()}


def _relabelled(batch: pa.RecordBatch, relabels: Mapping[int, Relabel]) -> pa.RecordBatch:
    attribute, low, high = (np.array(batch.column(name).flatten()) for name in ("attribute", "low", "high"))
    for number, relabel in relabels.items():
        at = attribute == number
        low[at], high[at] = relabel.lows(low[at]), relabel.highs(high[at])
    lengths = pc.list_value_length(batch.column("low")).to_numpy()
    columns = {"low": _lists(lengths, low, 0), "high": _lists(lengths, high, 0)}
    programs = _programs(batch)
    if programs:
        rows = np.arange(batch.num_rows)
        moved = ProgramColumns.of(programs).relabelled(relabels, rows).by_row(rows)
        columns |= _program_columns(moved, batch.num_rows)
    for name, values in columns.items():
        batch = batch.set_column(batch.schema.get_field_index(name), name, values)
    return batch


def _programs(table: pa.Table | pa.RecordBatch) -> Programs:
    """The programs by row."""
    rows = np.flatnonzero(table["shape"].is_valid().to_numpy(zero_copy_only=False))
    some = [table[name].take(pa.array(rows)).to_pylist() for name in ("shape", "literals")]
    return {row: Program(*one) for row, one in zip(rows.tolist(), zip(*some, strict=True), strict=True)}


def _program_columns(programs: Programs, rows: int) -> dict[str, pa.Array]:
    columns: list[list[bytes | None]] = [[None] * rows, [None] * rows]
    for row, program in programs.items():
        columns[0][row], columns[1][row] = program
    shape, literals = (pa.array(column, pa.large_binary()) for column in columns)
    return {"shape": shape, "literals": literals}


def _sorted(table: pa.Table) -> pa.Table:
    """By id, then by `latest` as Spark orders it: null is the smallest value, NaN the largest."""
    keys = table.select(["id"])
    if "latest" in table.column_names:
        latest = table["latest"]
        keys = keys.append_column("known", pc.is_valid(latest))
        if pa.types.is_floating(latest.type):
            keys = keys.append_column("nan", pc.is_nan(latest))
        keys = keys.append_column("latest", latest)
        for name in ("where", "priority"):  # then by the whole row: each build decides in the same way
            keys = keys.append_column(name, table[name])
        for name in NUMBERS:
            keys = keys.append_column(name, _as_bytes(table[name]))
    return table.take(pc.sort_indices(keys, [(name, "ascending") for name in keys.column_names]))


def _as_bytes(lists: pa.ChunkedArray) -> pa.Array:
    """Lists of numbers as bytes, which have an order."""
    lengths, values = _flat(lists)
    data = np.ascontiguousarray(values)
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths * data.itemsize, out=offsets[1:])
    return pa.Array.from_buffers(pa.large_binary(), len(lengths), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _repeats(ids: pa.ChunkedArray) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which of the sorted ids are the last row of their id, and which ids have several rows."""
    if not len(ids):
        return np.zeros(0, bool), np.zeros(0, bool)
    whole = _whole(ids)
    same = pc.equal(whole[:-1], whole[1:]).to_numpy(zero_copy_only=False)
    before, after = np.append(False, same), np.append(same, False)
    return ~after, before | after


def _lists(lengths: I64, values: NDArray[Any], empties: int) -> pa.Array:
    offsets = np.zeros(len(lengths) + empties + 1, np.int32)
    np.cumsum(lengths, out=offsets[1 : len(lengths) + 1])
    offsets[len(lengths) + 1 :] = offsets[len(lengths)]
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))


def _anchors(encoded: Encoded, empties: int) -> pa.Array:
    """The anchors of each row's boxes; nothing if no row has any."""
    anchors = encoded.boxes.anchors
    if anchors is None:
        return pa.array([[]] * (len(encoded.count) + empties), pa.list_(pa.large_binary()))
    return _lists(encoded.count, anchors, empties)


def _all_anchors(column: pa.ChunkedArray, count: I64) -> pa.Array | None:
    """The anchors of all boxes, of which a row has `count`; None if there are none."""
    given = pa.concat_arrays([pa.array([b""], pa.large_binary()), *(chunk.flatten() for chunk in column.chunks)])
    if len(given) == 1:
        return None
    known = np.concatenate([pc.list_value_length(chunk).to_numpy() for chunk in column.chunks]) > 0
    place = np.repeat(known, count).astype(np.int64)
    return given.take(pa.array(np.cumsum(place) * place))


def _flat(column: pa.ChunkedArray) -> tuple[I64, NDArray[Any]]:
    """Lengths and values of a column of lists."""
    kind = column.type.value_type.to_pandas_dtype()
    lengths = [pc.list_value_length(chunk).to_numpy(zero_copy_only=False) for chunk in column.chunks]
    values = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in column.chunks]
    return (
        np.concatenate([np.zeros(0, np.int64), *lengths]).astype(np.int64),
        values[0] if len(values) == 1 else np.concatenate([np.zeros(0, kind), *values]),
    )


def _whole(column: Any) -> pa.Array:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays([pa.array([], column.type), *column.chunks])


def _batch(table: pa.Table) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([_whole(column) for column in table.columns], schema=table.schema)


def _open(place: str, name: str) -> pa.ipc.RecordBatchFileReader:
    return pa.ipc.open_file(snapshot_files.open_file(join(place, name)))
