"""Read and decode request bodies within the limits: one JSON value, JSON lines, or an Arrow stream."""

from __future__ import annotations

import io
import struct
from collections import Counter
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from starlette.requests import ClientDisconnect, Request

from hitbox.broker.events.json_text import check_size, decode, decode_each, decode_list
from hitbox.broker.events.published_event import PublishedEvent
from hitbox.broker.http.body_memory import Account
from hitbox.broker.settings import Settings
from hitbox.broker.subscribers.subscriptions import Subscription
from hitbox.encoding.arrays import DEFAULT_PRIORITY
from hitbox.encoding.values import for_json
from hitbox.protocol.errors import BadRequest, TooLarge

LINES = ("application/x-ndjson", "application/jsonl", "application/x-jsonlines")
ARROW = "application/vnd.apache.arrow.stream"
PLAIN = (
    pa.types.is_null, pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal,
    pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_timestamp, pa.types.is_date,
)  # fmt: skip
MOST_DEPTH = 8
"""Objects and lists inside of each other, in a table."""
LEAST_BYTES = 8
"""Every value of a table counts as at least this many bytes, about what it takes in JSON."""
T = TypeVar("T")


async def read(request: Request, most: int, account: Account) -> bytes:
    """The whole body. Raises TooLarge as soon as it exceeds `most` bytes."""
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > most:
                raise TooLarge(f"a body may have at most {most} bytes")
            account.hold(size)
            parts.append(part)
    except ClientDisconnect:
        raise BadRequest("the connection ended before the body did") from None  # the client will not see it
    return b"".join(parts)


def kind_of(request: Request) -> str:
    return request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()


def many(data: bytes, kind: str, type: type[T], most: int, most_bytes: int) -> list[T]:
    """Several values, each of at most `most_bytes`: one JSON value, a list of values, or one value per line."""
    if kind in LINES:
        lines = ((f"line {n}", line) for n, line in enumerate(io.BytesIO(data), 1) if not line.isspace())
        return decode_each(lines, type, most, most_bytes)
    if kind != "application/json":
        raise BadRequest(f"content type {kind!r:.80}: it must be application/json, {LINES[0]} or {ARROW}")
    if data.lstrip()[:1] == b"[":
        return decode_list(data, type, most, most_bytes)
    check_size(data, most_bytes, "the value")
    return [decode(data, type)]


def table(data: bytes, limits: Settings) -> list[dict[str, Any]]:
    """The rows of an Arrow stream; nulls are left out.

    A few bytes of Arrow can expand to gigabytes of values. So the size is computed before anything is unpacked:
    compressed streams are refused, and a text counts once per row that refers to it.
    """
    rows: list[dict[str, Any]] = []
    size = 0
    try:
        if any(map(_compressed, pa.ipc.MessageReader.open_stream(pa.BufferReader(data)))):
            raise BadRequest("the Arrow stream is compressed: write it with compression=None")
        with pa.ipc.open_stream(io.BytesIO(data)) as reader:
            _check_columns(reader.schema)
            for batch in reader:
                if len(rows) + batch.num_rows > limits.max_batch:
                    raise TooLarge(f"a batch may have at most {limits.max_batch} rows")
                batch.validate(full=True)
                size += sum(map(_unpacked_bytes, batch.columns))
                if size > limits.max_body_bytes:
                    raise TooLarge(
                        f"the rows have more than {limits.max_body_bytes} bytes (a text counts once per row)"
                    )
                rows += batch.to_pylist()
    except (pa.ArrowException, OSError, ValueError, OverflowError, UnicodeDecodeError, struct.error) as problem:
        raise BadRequest(f"the body is not an Arrow stream: {problem}") from None
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def _check_columns(schema: pa.Schema) -> None:
    for column in schema:
        if not _is_taken(column.type):
            raise BadRequest(f"the column {column.name!r:.80} is of type {column.type}, which no attribute has")
    name, count = max(Counter(schema.names).items(), key=lambda found: found[1], default=("", 0))
    if count > 1:
        raise BadRequest(f"the column {name!r:.80} appears twice")


def _is_taken(kind: pa.DataType, depth: int = 0) -> bool:
    """Plain values; objects and lists of what is taken."""
    if depth < MOST_DEPTH and pa.types.is_struct(kind):
        return all(_is_taken(field.type, depth + 1) for field in kind)
    if depth < MOST_DEPTH and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return _is_taken(kind.value_type, depth + 1)
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return any(test(kind) for test in PLAIN)


def _unpacked_bytes(column: pa.Array) -> int:
    """A lower bound of the size of the values outside of Arrow."""
    if pa.types.is_struct(column.type):
        return sum(_unpacked_bytes(column.field(n)) for n in range(column.type.num_fields))
    size = LEAST_BYTES * len(column)
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):  # lists do not overlap
        return size + _unpacked_bytes(column.flatten())
    texts = column.dictionary if pa.types.is_dictionary(column.type) else column
    if pa.types.is_string_view(texts.type):  # 16 bytes each, beginning with the length
        views = np.frombuffer(texts.buffers()[1] or b"", np.int32)
        lengths = pa.array(views[::4][texts.offset : texts.offset + len(texts)])
    elif pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type):
        lengths = pc.binary_length(texts)
    else:
        return size
    if texts is not column:
        lengths = lengths.take(column.indices)
    return size + (pc.sum(lengths.cast(pa.int64())).as_py() or 0)


def _compressed(message: pa.ipc.Message) -> bool:
    """Whether the values of this message are compressed. pyarrow does not tell, so its FlatBuffers header is read."""
    data = message.metadata.to_pybytes()

    def field(table: int, number: int) -> int:
        """The position of a field of a FlatBuffers table; 0 if it is absent."""
        layout = table - struct.unpack_from("<i", data, table)[0]
        place = 4 + 2 * number
        if layout < 0 or place >= struct.unpack_from("<H", data, layout)[0]:
            return 0
        offset: int = struct.unpack_from("<H", data, layout + place)[0]
        return table + offset if offset else 0

    def follow(place: int) -> int:
        found: int = place + struct.unpack_from("<I", data, place)[0]
        return found

    batch = follow(field(follow(0), 2))
    if message.type == "dictionary":
        batch = follow(field(batch, 1))
    return message.type in ("dictionary", "record batch") and field(batch, 3) != 0


def items(data: bytes, kind: str, limits: Settings, attributes: list[str]) -> list[PublishedEvent]:
    """Events. A table has one column per attribute (or two, NAME_low and NAME_high) and optionally `where`."""
    if kind != ARROW:
        return many(data, kind, PublishedEvent, limits.max_batch, limits.sent_event_bytes())
    found = []
    for row in table(data, limits):
        where = None if "where" in attributes else row.pop("where", None)
        for name in attributes:
            ends = f"{name}_low", f"{name}_high"
            if name not in row and all(end in row and end not in attributes for end in ends):
                row[name] = row.pop(ends[0]), row.pop(ends[1])
        found.append(PublishedEvent(for_json(row), where))
    return found


def subscriptions(data: bytes, kind: str, limits: Settings) -> list[Subscription]:
    """Subscriptions. A table has the columns id (or name), where and priority; other columns are `about`."""
    if kind != ARROW:
        return many(data, kind, Subscription, limits.max_batch, limits.single_bytes())
    found = []
    for row in table(data, limits):
        name, where = row.pop("name", row.pop("id", None)), row.pop("where", None)
        if where is None or name is None:
            raise BadRequest("a table of subscriptions needs the columns id (or name) and where")
        priority = row.pop("priority", DEFAULT_PRIORITY)
        # A column with nulls may have become floats.
        if not isinstance(priority, (int, float)) or priority != priority // 1:
            raise BadRequest(f"the priority of {str(name)!r:.80} must be a whole number, not {priority!r:.80}")
        found.append(Subscription(str(name), str(where), int(priority), for_json(row)))
    return found
