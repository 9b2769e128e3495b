"""Bodies of requests: one JSON value, JSON lines, or an Arrow stream; each within the limits."""

from __future__ import annotations

import io
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
from starlette.requests import ClientDisconnect, Request

from hitbox.broker.broker import Item
from hitbox.broker.errors import BadRequest, TooLarge
from hitbox.broker.subscriptions import Subscription
from hitbox.encoding.values import for_json

LINES = ("application/x-ndjson", "application/jsonl", "application/x-jsonlines")
ARROW = "application/vnd.apache.arrow.stream"
T = TypeVar("T")


async def read(request: Request, most: int) -> bytes:
    """The whole body, given up as soon as it is too large."""
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > most:
                raise TooLarge(f"a body has at most {most} bytes")
            parts.append(part)
    except ClientDisconnect:
        raise BadRequest("the connection ended before the body did") from None  # nobody is there to read it
    return b"".join(parts)


def kind_of(request: Request) -> str:
    return request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()


def decode(data: bytes | str, type: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=type)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise BadRequest(f"the body is not what this takes: {problem}") from None


def many(data: bytes, kind: str, type: type[T], most: int) -> list[T]:
    """Several values: a JSON value or a list of them, or a value a line."""
    if kind in LINES:
        lines = [line for line in data.split(b"\n") if line.strip()]
        if len(lines) > most:
            raise TooLarge(f"a batch has at most {most} lines")
        return [decode(line, type) for line in lines]
    if kind != "application/json":
        raise BadRequest(f"content type {kind!r:.80}: application/json, {LINES[0]} or {ARROW}")
    if data.lstrip()[:1] == b"[":
        found = decode(data, list[type])  # type: ignore[valid-type]
        if len(found) > most:
            raise TooLarge(f"a batch has at most {most} values")
        return found
    return [decode(data, type)]


def table(data: bytes, most: int) -> list[dict[str, Any]]:
    """The rows of an Arrow stream; nulls are left out."""
    try:
        with pa.ipc.open_stream(io.BytesIO(data)) as reader:
            rows: list[dict[str, Any]] = []
            for batch in reader:
                if len(rows) + batch.num_rows > most:
                    raise TooLarge(f"a batch has at most {most} rows")
                batch.validate(full=True)
                rows += batch.to_pylist()
    except (pa.ArrowException, OSError, ValueError, OverflowError, UnicodeDecodeError) as problem:
        raise BadRequest(f"the body is not an Arrow stream: {problem}") from None
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def items(data: bytes, kind: str, most: int, attributes: list[str]) -> list[Item]:
    """Events; in a table a column an attribute, or its two ends, and `where`."""
    if kind != ARROW:
        return many(data, kind, Item, most)
    found = []
    for row in table(data, most):
        where = None if "where" in attributes else row.pop("where", None)
        for name in attributes:
            ends = f"{name}_low", f"{name}_high"
            if name not in row and all(end in row and end not in attributes for end in ends):
                row[name] = row.pop(ends[0]), row.pop(ends[1])
        found.append(Item(for_json(row), where))
    return found


def subscriptions(data: bytes, kind: str, most: int) -> list[Subscription]:
    """Subscriptions; in a table the columns id (or name), where, priority; other columns are `about`."""
    if kind != ARROW:
        return many(data, kind, Subscription, most)
    found = []
    for row in table(data, most):
        name, where = row.pop("name", row.pop("id", None)), row.pop("where", None)
        if where is None or name is None:
            raise BadRequest("a table of subscriptions has the columns id (or name) and where")
        found.append(Subscription(str(name), str(where), int(row.pop("priority", 4)), for_json(row)))
    return found
