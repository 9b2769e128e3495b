"""Tables in files: CSV, JSON lines and Parquet, by the ending of the name; and schemas in short or JSON form.

The name `-` is standard input; the content then shows the format.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from hitbox.encoding.codecs import is_list_type, is_text, plain_type
from hitbox.encoding.schema import Schema
from hitbox.errors import SchemaError, TableError

STDIN = "-"
PIECE = 1000
"""Rows that are Python objects at a time."""
FORMATS = (".csv", ".jsonl", ".ndjson", ".json", ".parquet")


def read_table(path: str | os.PathLike[str]) -> pa.Table:
    """The table in a file, or in standard input for `-`."""
    name, source, ending = str(path), str(path), Path(path).suffix.lower()
    if name == STDIN:
        content = read_stdin()
        name, source, ending = "standard input", pa.BufferReader(content), _format_of(content)
    try:
        if ending == ".csv":
            return pyarrow.csv.read_csv(source)
        if ending in (".jsonl", ".ndjson", ".json"):
            return pyarrow.json.read_json(source)
        if ending == ".parquet":
            return pyarrow.parquet.read_table(source)
    except FileNotFoundError:
        raise TableError(f"no file {name}") from None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as problem:
        raise TableError(f"cannot read {name}: {problem}") from None
    raise TableError(f"{name} has an ending that hitbox cannot read (known: {', '.join(FORMATS)})")


def read_stdin() -> bytes:
    """All of standard input."""
    return sys.stdin.buffer.read()


def read_text(path: str) -> str:
    """The text in a file, or in standard input for `-`."""
    try:
        return (read_stdin() if path == STDIN else Path(path).read_bytes()).decode()
    except FileNotFoundError:
        raise TableError(f"no file {path}") from None
    except (OSError, UnicodeDecodeError) as problem:
        raise TableError(f"cannot read {path}: {problem}") from None


def _format_of(content: bytes) -> str:
    """The ending that a file with this content would have."""
    if content.startswith(b"PAR1"):
        return ".parquet"
    return ".jsonl" if content.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{") else ".csv"


def write_table(path: str | os.PathLike[str], table: pa.Table) -> None:
    """Write a file of the kind that its ending says; a CSV file holds no lists."""
    file = Path(path)
    ending = file.suffix.lower()
    try:
        if ending == ".csv":
            nested = next((column.name for column in table.schema if pa.types.is_nested(column.type)), None)
            if nested is not None:
                raise TableError(f"{file}: a CSV file has no lists and objects, and {nested!r} is a column of them")
            pyarrow.csv.write_csv(table, file)
        elif ending in (".jsonl", ".ndjson", ".json"):
            with open(file, "w", encoding="utf-8") as out:
                out.writelines(line + "\n" for line in json_lines(table))
        elif ending == ".parquet":
            pyarrow.parquet.write_table(table, file)
        else:
            raise TableError(f"{file} has an ending that hitbox cannot write (known: {', '.join(FORMATS)})")
    except pa.ArrowInvalid as problem:
        raise TableError(f"cannot write {file}: {problem}") from None
    except OSError as problem:
        raise TableError(f"cannot write {file}: {problem.strerror or problem}") from None


def json_lines(table: pa.Table) -> Iterator[str]:
    for batch in table.to_batches(PIECE):
        for row in batch.to_pylist():
            yield json.dumps(row, ensure_ascii=False, default=str)


def read_schema(text: str) -> Schema:
    """A schema from `price:float,city:string`, or from a JSON file (`-`: standard input) that maps names to types, or
    that is what `hitbox admin schema show --json` prints.

    >>> read_schema("price:float, city:string")
    Schema({'price': 'float', 'city': 'string'})
    """
    if text == STDIN or text.lower().endswith(".json"):
        try:
            content: Any = json.loads(read_stdin() if text == STDIN else Path(text).read_bytes())
        except (OSError, ValueError, RecursionError) as problem:
            raise SchemaError(f"cannot read the schema {text}: {problem}") from None
        return Schema.from_json(content) if isinstance(content, list) or _is_shown(content) else Schema(content)
    attributes = {}
    for part in text.split(","):
        name, colon, kind = part.strip().rpartition(":")
        if not colon or not name.strip():
            raise SchemaError(f"{part.strip()!r} is not name:type; write a schema as price:float,city:string")
        if name.strip() in attributes:
            raise SchemaError(f"attribute {name.strip()!r} is given twice")
        attributes[name.strip()] = kind.strip()
    return Schema(attributes)


def _is_shown(content: Any) -> bool:
    """Whether this is a list of attributes in an object, and no object of names and types."""
    rows = content.get("attributes") if isinstance(content, dict) and len(content) == 1 else None
    return isinstance(rows, list) and all(isinstance(row, dict) and {"name", "type"} <= row.keys() for row in rows)


def infer_schema(events: pa.Table) -> Schema:
    """A schema with the types of the columns of an event table."""
    types = {}
    for field in events.schema:
        kind = _type_of(field.type)
        if kind:
            types[field.name] = kind
    if not types:
        raise SchemaError(
            "no column of the events has a type that hitbox supports; give --schema, such as price:float,city:string"
        )
    return Schema(types)


def _type_of(kind: pa.DataType) -> Any:
    """As Schema takes it: a mapping for objects, a list for lists; None for types that are not supported."""
    kind = plain_type(kind)
    if pa.types.is_struct(kind) and sorted(field.name for field in kind) == ["high", "low"]:
        kind = kind.field("low").type
    if pa.types.is_struct(kind):
        fields = {field.name: _type_of(field.type) for field in kind}
        return {name: of_field for name, of_field in fields.items() if of_field}
    if is_list_type(kind):
        inner = _type_of(kind.value_type)
        return None if not inner or isinstance(inner, list) else [inner]
    if pa.types.is_boolean(kind):
        return "bool"
    if pa.types.is_integer(kind):
        return "int"
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "float"
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return "timestamp"
    if is_text(kind):
        return "string"
    return None
