"""What native code computes of events as documents (src/engine/bindings/document_plan.hpp).

A plan says which fields are wanted, and what becomes of each: a key of the point, a member of a set that anchors ask
for, or a list or text for a second look. What no description fits is for Python: an event with all of its fields is
matched as encoding/derived.py says. Where there is a schema, a plan says what each field must be, too; an event that
does not fit is Python's, which says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from hitbox.encoding.documents import misspelt
from hitbox.encoding.keys import Keys
from hitbox.encoding.schema import Schema
from hitbox.encoding.values import EPOCH
from hitbox.engine import _kernels

MOST_STEPS = 8
"""Of a path: there are as many ways to write one as its steps can be joined by dots."""
TYPES = ("number", "int", "float", "string", "bool", "timestamp", "any")
ELEMENTS = "[]"
"""Behind the name of a list: the elements of it."""
NOTHING = ("nothing",)
"""What is null in every event that native code reads."""
Described = tuple[Any, ...]
Fold = Callable[[str, bool], str]


class WantedSet(NamedTuple):
    """A set that events bring, as language/boxes/anchors.py describes it: through some lists to a field."""

    name: bytes
    kind: str
    lists: tuple[str, ...]
    field: str
    """Of the event, if there is no list; "" means the elements themselves."""
    type: str


class Documents(NamedTuple):
    """Events that native code has read: those from number `first` on."""

    batch: _kernels.DocumentBatch
    first: int


class DocumentPlans:
    """The plan for the events of one state of an index, made again when other attributes or sets are in use.

    `fold(text, upper)` changes the case of letters.
    """

    def __init__(self, keys: Keys, fold: Fold):
        self._keys, self._fold = keys, fold
        self._version: tuple[int, Sequence[WantedSet]] | None = None
        self._plan: _kernels.DocumentPlan | None = None

    def get(self, used: Sequence[int], changes: int, sets: Sequence[WantedSet]) -> _kernels.DocumentPlan | None:
        """The plan for the attributes in use, which changed so many times, and for some sets; None if native code can
        read no event."""
        known = self._version
        if known is None or known[0] != changes or known[1] is not sets:
            self._plan = document_plan(self._keys, used, sets, self._fold)
            self._version = changes, sets
        return self._plan


def document_plan(
    keys: Keys, used: Iterable[int], sets: Sequence[WantedSet], fold: Fold
) -> _kernels.DocumentPlan | None:
    schema = keys.schema
    points: list[Described] = []
    details: list[Described] = []
    others: list[list[str]] = []
    for number in used:
        attribute = keys.derived[number - len(schema)]
        described = attribute.native
        if described == NOTHING and not attribute.is_detail:
            continue
        if described is not None and all(map(_is_plain, _names(described))):
            (details if attribute.is_detail else points).append((number, *described))
        elif not attribute.is_detail and attribute.attributes and all(map(_is_plain, attribute.attributes)):
            others.append(list(attribute.attributes))
        elif not attribute.is_detail:
            return None
    declared = None
    if not schema.is_open:
        declared = list(_declared(schema, ""))
        points += [
            (schema.number(name), "field", (name, attribute.type, ""))
            for name, attribute in schema.items()
            if attribute.role == "criteria" and not attribute.is_list
        ]
    names = [name for wanted in sets for name in (*wanted.lists, wanted.field) if name] + list(_all_names(schema))
    if not all(map(_is_plain, names)) or not all(wanted.type in TYPES for wanted in sets):
        return None
    columns, free = [codec.native() for codec in keys.codecs], list(keys.space.information)
    allows = None if schema.is_open or schema.extra == "ignore" else partial(_allows, schema)
    epochs = EPOCH, EPOCH.replace(tzinfo=None)
    given = [tuple(wanted) for wanted in sets]
    try:
        return _kernels.DocumentPlan(
            columns, free, points, details, given, others, declared, fold, allows, *epochs
        )  # fmt: skip
    except ValueError:  # there are too many ways through lists in lists
        return None


def _declared(schema: Schema, above: str) -> Iterator[Described]:
    """(name of the place, what it is, type, number of the attribute) of all fields of an event that native code must
    check, or of an element of the list `above`."""
    start = above and f"{above}."
    for name in schema.objects:
        yield f"{start}{name}", "object", None, None
    for name, attribute in schema.items():
        place, number = f"{start}{name}", None if above else schema.number(name)
        if attribute.role != "criteria":
            yield place, "refused", None, None
        elif attribute.fields is not None:
            yield place, "objects", None, number
            yield from _declared(attribute.fields, place + ELEMENTS)
        elif attribute.is_list:
            yield place, "list", attribute.element, number
        elif above:
            yield place, "value", attribute.type, None


def _allows(schema: Schema, place: str, name: str) -> bool:
    """Whether a field that no attribute stands for may be at a place, whatever else the event has."""
    *lists, above = place.split(ELEMENTS)
    for step in lists:
        name_of_list = step.removeprefix(".")
        fields = schema[name_of_list].fields if name_of_list in schema else None
        if fields is None:
            return False
        schema = fields
    above = above.removeprefix(".")
    whole = f"{above}.{name}" if above else name
    if schema.extra == "error":
        return False
    wanted = tuple(schema.with_role("criteria"))
    is_end = any(whole in schema.end_columns(known) for known in wanted)
    return schema.extra == "ignore" or not (is_end or misspelt(schema, whole, wanted))


def _names(described: Described) -> Iterator[str]:
    """The names of fields and lists in a description."""
    kind, *parts = described
    if kind == "each":
        yield from parts[0]
        if parts[1]:
            yield parts[1]
    elif kind == "absent":
        yield parts[0]
    else:
        yield from (part[0] for part in parts if isinstance(part, tuple))


def _all_names(schema: Schema) -> Iterator[str]:
    yield from schema.objects
    for name, attribute in schema.items():
        yield name
        if attribute.fields is not None:
            yield from _all_names(attribute.fields)


def _is_plain(name: str) -> bool:
    """Whether native code takes a path: few steps, none of which is empty."""
    steps = name.split(".")
    return all(steps) and len(steps) <= MOST_STEPS and ELEMENTS not in name
