"""Events as documents: nested mappings and lists -> plain values by attribute.

    {"order": {"city": "Paris"}, "tags": ["a", None]}     ->     {"order.city": "Paris", "tags": ["a", None]}

An attribute below an object has a dotted name, and an event may say `order.city` as well. A list of objects becomes a
list of such mappings. None is null; what the event does not have is missing, and is not there.

An event may carry two images, {"old": {...}, "new": {...}}: then `new` is the event, and `old` is what it was before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from hitbox.encoding.inputs import as_mapping
from hitbox.encoding.open_values import LISTS, elements
from hitbox.encoding.schema import Attribute, Schema
from hitbox.encoding.values import NORMAL, brief, is_missing
from hitbox.errors import UnknownAttribute, ValueProblem, closest

ABSENT: Any = object()
"""What `lookup` returns if a document has no such field."""
SOMETHING: Any = object()
"""Stands for a value in an interval: it is not null, and nobody knows which one it is."""
Event = Mapping[str, Any]
MOST_COMPARED, MOST_LETTERS = 10_000, 200
"""Pairs of names, and letters of one, that are looked at to find a misspelt attribute of an event."""
MOST_TRIED, MOST_NOTED, LONGEST = 32, 50_000, 400
"""Objects that `lookup` goes through for one name before it notes all ways, how many, and letters of one."""
Ways = dict[int, dict[str, Any] | None]
Visited = Callable[[int], None] | None


class Document(dict[str, Any]):
    """The plain values of an event by attribute; what is missing is not there. `old` is its old image. `ways` are, for
    an event of an open schema, the values by their dotted names of each object that many ways lead through."""

    __slots__ = ("old", "ways")
    old: Document | None

    def __init__(self, values: Mapping[str, Any] | None = None, old: Document | None = None, is_open: bool = False):
        super().__init__(values or {})
        self.old = old
        self.ways: Ways | None = {} if is_open else None


Check = Callable[[Schema, set[str], Sequence[Any]], None]
"""Called with the attributes that were seen, and with the names that no attribute has."""


def flat(schema: Schema, event: Event, check: Check) -> Iterator[tuple[str, Any]]:
    """(attribute, value) of an event, as they were given. No attribute may come twice; `check` is for other names."""
    seen: set[str] = set()
    strange: list[Any] = []
    yield from _flat(schema, event, "", seen, strange)
    if strange:
        check(schema, seen, strange)


def refuse(schema: Schema, seen: set[str], strange: Sequence[Any]) -> None:
    schema.number(strange[0])  # raises, with the nearest name


def check_event(schema: Schema, seen: set[str], strange: Sequence[Any]) -> None:
    """An event may have more fields than there are attributes, but not only such: see `check_part`."""
    check_part(schema, seen, strange)
    wanted = schema.with_role("criteria")
    if schema.extra is None and wanted and seen.isdisjoint(wanted):
        raise UnknownAttribute(
            f"none of the attributes {', '.join(wanted[:8])} is in the event, which has {', '.join(strange[:8])}"
        )


def check_part(schema: Schema, seen: set[str], strange: Sequence[Any]) -> None:
    """Names that no attribute has are the caller's, unless one looks like an attribute that is absent. It is the same
    with the columns of a table (events.check_columns)."""
    if schema.extra == "ignore":
        return
    for name in strange:
        if not isinstance(name, str):
            raise UnknownAttribute(f"the name of a field is a text, not {brief(name)}")
    if schema.extra == "error":
        refuse(schema, seen, strange)
    absent = tuple(name for name in schema.with_role("criteria") if name not in seen)
    ends = {end: name for name in absent for end in schema.end_columns(name)}
    for name in strange:
        if name in ends:
            whole = ends[name]
            raise UnknownAttribute(f"{name!r} is no attribute: write an interval as {whole!r}: (low, high)")
    for name in strange[: 1 + MOST_COMPARED // (1 + len(absent))]:
        meant = misspelt(schema, name, absent)
        if meant is not None:
            raise UnknownAttribute(f"unknown attribute {brief(name)}; did you mean {meant!r}? (rename or drop it)")


def misspelt(schema: Schema, name: str, absent: tuple[str, ...]) -> str | None:
    """The absent attribute that a name may mean; if it is that of a field in a known object, a field beside it."""
    above = name.rpartition(".")[0]
    if above not in schema.objects:
        return _closest(name[:MOST_LETTERS], absent)
    start = f"{above}."
    beside = tuple(one.removeprefix(start) for one in absent if one.startswith(start))
    found = _closest(name.removeprefix(start)[:MOST_LETTERS], beside)
    return None if found is None else start + found


_closest = lru_cache(1000)(closest)


def _flat(schema: Schema, event: Event, above: str, seen: set[str], strange: list[Any]) -> Iterator[tuple[str, Any]]:
    for name, value in event.items():
        whole = above + "." + name if above and isinstance(name, str) else name
        if whole in schema:
            if whole in seen:
                raise ValueProblem(f"attribute {whole!r} is given twice: once in an object, once by its dotted name")
            seen.add(whole)
            yield whole, value
        elif whole in schema.objects:
            inner = as_mapping(value)
            if inner is not None:
                yield from _flat(schema, inner, whole, seen, strange)
            elif not is_missing(value):
                raise ValueProblem(f"{whole!r} is an object: it takes a mapping, not {brief(value)}")
        elif schema.extra != "ignore":
            strange.append(whole)


def images(schema: Schema, event: Event) -> tuple[Event, Event | None]:
    """The event itself and its old image, if it carries one."""
    if "old" not in event and "new" not in event:
        return event, None
    if any(name in schema or name in schema.objects for name in ("old", "new") if name in event):
        return event, None
    given = [event.get(name) for name in ("new", "old")]
    two = [as_mapping(one) for one in given]
    no_image = is_missing if any(image is not None for image in two) else _is_none  # NaN alone may be a field's
    if not all(image is not None or no_image(one) for one, image in zip(given, two, strict=True)):
        return event, None
    for name in event:
        declared = name in schema or name in schema.objects
        if name not in ("old", "new") and (declared or schema.extra == "error"):
            if not declared:
                schema.number(name)  # raises, with the nearest name
            raise ValueProblem(f"attribute {name!r} stands beside the images old and new: it belongs into one of them")
    new, old = two
    return new or {}, old


def _is_none(value: Any) -> bool:
    return value is None


def document(schema: Schema, event: Event) -> Document:
    """The plain values of an event without intervals."""
    new, old = images(schema, event)
    found = Document({name: named_plain(schema[name], name, value) for name, value in flat(schema, new, check_part)})
    if old is not None:
        found.old = document(schema, {"new": old})
    return found


def named_plain(attribute: Attribute, name: str, value: Any) -> Any:
    try:
        return plain(attribute, value)
    except (ValueProblem, UnknownAttribute) as problem:
        raise type(problem)(f"attribute {name!r}: {problem}") from None


def plain(attribute: Attribute, value: Any) -> Any:
    """The plain value of an attribute: a list for a list, None for null."""
    if not attribute.is_list:
        return NORMAL[attribute.type](value)
    if not isinstance(value, LISTS):
        if not isinstance(value, (tuple, Mapping)) and is_missing(value):
            return None
        raise ValueProblem(f"{brief(value)} is a {type(value).__name__}; a {attribute.type} attribute takes lists")
    if isinstance(value, np.ndarray):
        if value.ndim != 1:
            raise ValueProblem(f"an array of {value.ndim} dimensions is no list")
        value = list(value)
    if attribute.fields is None:
        normal = NORMAL[attribute.element]
        return [normal(one) for one in value]
    return [_object(attribute.fields, one) for one in value]


def _object(fields: Schema, value: Any) -> dict[str, Any] | None:
    mapping = as_mapping(value)
    if mapping is not None:
        return {name: named_plain(fields[name], name, one) for name, one in flat(fields, mapping, check_part)}
    if is_missing(value):
        return None
    raise ValueProblem(f"{brief(value)} is a {type(value).__name__}; a list of objects takes mappings")


def open_document(event: Event) -> Document:
    """An event of an open schema, as it was given. It has images if they are all that it has."""
    if event.keys() <= {"old", "new"} and all(isinstance(one, Mapping) or is_missing(one) for one in event.values()):
        new, old = (one if isinstance(one := event.get(name), Mapping) else None for name in ("new", "old"))
        return Document(new, None if old is None else Document(old, is_open=True), True)
    return Document(event, is_open=True)


def open_elements(origin: Any, steps: Sequence[str], visited: Visited = None) -> list[Any] | None:
    """The values that a path leads to, through objects and lists: one value is a list of itself, and what is in a list
    inside a list is an element of the outer one. None of no value. The list may be that of the event, so nobody changes
    it. `visited` is told of the elements that it goes through on its way."""
    ways = origin.ways if isinstance(origin, Document) else None
    found, is_list = _walk(origin, ".".join(steps).split("."), visited, ways)
    return None if not is_list and is_missing(found[0]) else found


def _walk(origin: Any, steps: Sequence[str], visited: Visited, ways: Ways | None) -> tuple[list[Any], bool]:
    """The values, and whether they come from a list."""
    if isinstance(origin, Mapping):
        whole = lookup(origin, ".".join(steps), ways)
        if whole is not ABSENT:
            return (elements(whole, visited), True) if isinstance(whole, LISTS) else ([whole], False)
        for end in range(len(steps) - 1, 0, -1):
            inner = lookup(origin, ".".join(steps[:end]), ways)
            if isinstance(inner, LISTS):
                if visited is not None:
                    visited(2 * len(inner))
                return [
                    value for one in elements(inner, visited) for value in _walk(one, steps[end:], visited, ways)[0]
                ], True
    return [None], False


def lookup(event: Event, name: str, ways: Ways | None = None) -> Any:
    """The field of a document by its dotted name; ABSENT if it has none. `ways`: those of the document that the event
    is an object of."""
    found = event.get(name, ABSENT)
    if found is not ABSENT or "." not in name:
        return found
    ways = event.ways if isinstance(event, Document) else ways
    if ways is None or len(name) > LONGEST:
        return _deeper(event, name, [math.inf])
    if id(event) not in ways:
        left = [MOST_TRIED]
        found = _deeper(event, name, left)
        if left[0] >= 0:
            return found
        noted: dict[str, Any] = {}
        _note(event, "", noted)
        ways[id(event)] = noted if len(noted) <= MOST_NOTED else None
    known = ways[id(event)]
    return _deeper(event, name, [math.inf]) if known is None else known.get(name, ABSENT)


def _deeper(event: Event, name: str, left: list[Any]) -> Any:
    """What the objects of an event have by a dotted name. After so many of them as are `left` the search ends."""
    at = name.find(".")
    while at > 0:
        inner = as_mapping(event.get(name[:at], ABSENT))
        if inner is not None:
            left[0] -= 1
            if left[0] < 0:
                return ABSENT
            rest = name[at + 1 :]
            found = inner.get(rest, ABSENT)
            if found is ABSENT and "." in rest:
                found = _deeper(inner, rest, left)
            if found is not ABSENT:
                return found
        at = name.find(".", at + 1)
    return ABSENT


def _note(event: Event, above: str, found: dict[str, Any]) -> None:
    """Add all fields by their dotted names; of two with one name the one that `_deeper` finds first. It ends when they
    are too many: an object that lies in several others has as many names as ways lead to it."""
    names = [name for name in event if isinstance(name, str) and len(above) + len(name) <= LONGEST]
    for name in names:
        found.setdefault(above + name, event[name])
    for name in sorted(names, key=len):
        inner = as_mapping(event[name]) if name and name[0] != "." else None
        if inner is not None and len(found) <= MOST_NOTED:
            _note(inner, f"{above}{name}.", found)
