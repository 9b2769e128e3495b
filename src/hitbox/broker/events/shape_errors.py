"""What is wrong with a decoded value, in the words of the interface instead of those of the decoder."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec

from hitbox.errors import nearest

FIELD = re.compile(r"Object contains unknown field `([^`]*)`(?: - at `(.*)`)?")
CHOICE = re.compile(r"Invalid enum value (.+?)(?: - at `(.*)`)?")
EXPECTED = re.compile(r"Expected `([a-z |]+)`, got `([a-z]+)`(?: - at `(.*)`)?")
KINDS = {
    "int": "a whole number", "float": "a number", "str": "a text", "bool": "true or false",
    "object": "an object", "array": "a list", "null": "null",
}  # fmt: skip
GIVEN = {"float": "a decimal number"}
STEP = re.compile(r"\.([^.\[\]]+)|\[(?:\d+|\.\.\.)\]")


def explain(problem: msgspec.ValidationError, shape: Any) -> str:
    """The message of a value that does not have the shape: with the names that are valid, or the nearest one."""
    text = str(problem)
    if found := FIELD.fullmatch(text):
        fields = [field.encode_name for one in _at(shape, found[2]) for field in getattr(one, "fields", ())]
        known = nearest(found[1], fields) or (f"; valid: {', '.join(fields)}" if fields else "")
        return f"there is no field {found[1]!r}{_place(found[2])}{known}"
    if found := CHOICE.fullmatch(text):
        values = [str(value) for one in _at(shape, found[2]) for value in getattr(one, "values", ())]
        given = found[1].strip("'")
        return f"{given!r} is not valid{_place(found[2])}; valid: {', '.join(values)}{nearest(given, values)}"
    if found := EXPECTED.fullmatch(text):
        wanted = " or ".join(KINDS.get(kind, kind) for kind in found[1].split(" | "))
        return f"expected {wanted}, not {GIVEN.get(found[2]) or KINDS.get(found[2], found[2])}{_place(found[3])}"
    return text


def _place(path: str | None) -> str:
    return f" at `{path}`" if path else ""


def _at(shape: Any, path: str | None) -> list[Any]:
    """The types that a value may have at a path such as `$.roles[0]`."""
    types = list(_alternatives(_described(shape)))
    for step in STEP.finditer((path or "$")[1:]):
        inner = []
        for one in types:
            if step[1] is None:
                inner += [one.item_type] if hasattr(one, "item_type") else []
            else:
                inner += [field.type for field in getattr(one, "fields", ()) if field.encode_name == step[1]]
        types = [part for one in inner for part in _alternatives(one)]
    return types


@cache
def _described(shape: Any) -> msgspec.inspect.Type:
    """Kept, because it takes a millisecond or two, and whoever sends mistakes sends many."""
    return msgspec.inspect.type_info(shape)


def _alternatives(one: Any) -> Iterator[Any]:
    if isinstance(one, msgspec.inspect.UnionType):
        for part in one.types:
            yield from _alternatives(part)
    elif isinstance(one, msgspec.inspect.Metadata):
        yield from _alternatives(one.type)
    else:
        yield one
