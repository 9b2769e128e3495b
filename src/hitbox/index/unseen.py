"""Predicates on attributes that no recent event had: most likely they are misspelt.

Every SAMPLED-th call is looked at, and every long batch: the names of the fields of an event, or of a few, are noted.
Two generations of names are kept, so "recent" is between GENERATION and twice as many of these events.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from hitbox.encoding.codecs import is_list_type
from hitbox.encoding.inputs import as_mapping
from hitbox.encoding.open_values import LISTS
from hitbox.index.catalog import Id
from hitbox.index.state import IndexState
from hitbox.language.boxes.anchors import set_of
from hitbox.language.syntax.tree import Predicate, names

SAMPLED = 64
"""Of this many single events one is looked at: a power of two."""
GENERATION = 1000
MOST_NAMES = 10_000
FEW = 8
"""Events of a batch that are looked at."""
MOST_ELEMENTS, MOST_DEPTH = 8, 8
"""Elements of a list and levels of an object that are looked at."""
MOST_IDS = 20
IMAGES = ("old", "new")


@dataclass(frozen=True, slots=True)
class Unseen:
    """An attribute that no recent event had: how many subscriptions speak of it, and the ids of some of them."""

    attribute: str
    subscriptions: int
    ids: list[Id]


class RecentFields:
    """The names of the fields of recent events. Any number of threads may note events."""

    def __init__(self, generation: int = GENERATION) -> None:
        self._generation = generation
        self._names: set[str] = set()
        self._before: set[str] = set()
        self._noted = 0

    def __bool__(self) -> bool:
        """Whether any event was noted."""
        return self._noted > 0

    def __contains__(self, name: str) -> bool:
        return name in self._names or name in self._before

    def note(self, event: Any) -> None:
        self._add(_fields(event, "", 0))

    def note_batch(self, some: Any, every: int = 0) -> None:
        """Many events: the columns of a table that are not null throughout; of a list of mappings `every`-th one, or a
        few."""
        if isinstance(some, pa.Table):
            filled = [n for n in range(some.num_columns) if some.column(n).null_count < some.num_rows]
            self._add(name for n in filled for name in _columns(some.field(n).type, some.field(n).name))
            return
        for event in some[:: every or max(1, len(some) // FEW)]:
            self.note(event)

    def _add(self, found: Iterator[str]) -> None:
        names = self._names
        if self._noted % self._generation == self._generation - 1:
            names, self._before = set(), names
        names.update(islice(found, max(0, MOST_NAMES - len(names))))
        self._names = names
        self._noted += 1


def _columns(kind: pa.DataType, name: str) -> Iterator[str]:
    """The dotted names of a column and of the fields of its structs. A column may be an end of an interval."""
    yield name
    yield name.removesuffix("_low").removesuffix("_high")
    while is_list_type(kind):
        kind = kind.value_type
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _columns(field.type, f"{name}.{field.name}")
            if name in IMAGES:
                yield from _columns(field.type, field.name)


def _fields(value: Any, above: str, depth: int) -> Iterator[str]:
    """The dotted names of all fields of a document, those of objects and lists included."""
    if depth > MOST_DEPTH:
        return
    if isinstance(value, LISTS):
        for one in islice(np.atleast_1d(value) if isinstance(value, np.ndarray) else value, MOST_ELEMENTS):
            yield from _fields(one, above, depth + 1)
        return
    mapping = as_mapping(value)
    for name, inner in () if mapping is None else mapping.items():
        whole = f"{above}.{name}" if above else str(name)
        yield whole
        if not above and name in IMAGES:
            yield from _fields(inner, "", depth + 1)  # it may be an image
        if not isinstance(inner, (str, int, float)):
            yield from _fields(inner, whole, depth + 1)


def unseen(state: IndexState, fields: RecentFields, predicate: Any) -> list[Unseen]:
    """The attributes of predicates that no noted event had, those of most subscriptions first. `predicate(slot)` is the
    parsed predicate of a slot."""
    keys, catalog = state.keys, state.catalog
    slots = catalog.living_slots()
    numbers = catalog.boxes_of(slots)
    boxes = state.boxes(numbers)
    owners = np.asarray(catalog.owner)[numbers]
    of_constraint = np.repeat(owners, np.diff(boxes.offsets))
    found: dict[str, set[int]] = {}
    for number in np.unique(boxes.attribute).tolist():
        declared = number < len(keys.schema)
        known = [keys.schema.names[number]] if declared else list(keys.derived[number - len(keys.schema)].attributes)
        for name in known:
            if name not in fields and not _is_said(state, name):
                found.setdefault(name, set()).update(of_constraint[boxes.attribute == number].tolist())
    anchors = [] if boxes.anchors is None else boxes.anchors.to_pylist()
    for owner, anchor in zip(owners.tolist(), anchors, strict=False):
        name = set_of(anchor)[1][0] if anchor else ""
        if anchor and name not in fields:
            found.setdefault(name, set()).add(owner)
    for slot in set(owners[~np.asarray(catalog.exact[numbers], bool)].tolist()):
        one: Predicate = predicate(slot)
        for name in set(names(one.root)):
            if name not in fields and not _is_said(state, name):
                found.setdefault(name, set()).add(slot)
    most = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    return [Unseen(name, len(some), catalog.id_list(np.array(sorted(some)[:MOST_IDS]))) for name, some in most]


def _is_said(state: IndexState, name: str) -> bool:
    """Whether subscriptions say it about themselves, so that no event has it."""
    schema = state.keys.schema
    return name in schema and schema[name].role == "information"
