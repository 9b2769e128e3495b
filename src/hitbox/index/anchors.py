"""Covers that events find by what they bring, beside the boxes that a matcher finds by keys.

    name LIKE '%abc%' AND price > 3        anchor: the fragment 'abc' of name       box: price in [4, ...]

The anchor of a cover is a member of a set that an event brings: the elements of a list, or the fragments that a text
contains (language/boxes/anchors.py). Native segments hold the covers, sorted by anchor (src/engine/sets). An event's
texts go once through the automaton of all fragments, its elements through a hash table; the covers that this finds
are compared with the event by their boxes. Numbers of covers are numbers of boxes, so the catalog need not know which
is which.

Segments are merged so that their sizes at least double from the last to the first: a subscription is written again
once or twice whenever their number doubles, and an event meets a handful of automata. A change makes its new segment
while others match; its commit replaces the list of segments and marks what has gone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hitbox.encoding import array_checks, events
from hitbox.encoding.arrays import I64, MISSING, Boxes, Hits, Points
from hitbox.encoding.documents import ABSENT, Document, images, lookup, open_elements, plain
from hitbox.encoding.inputs import as_mapping
from hitbox.encoding.keys import Keys
from hitbox.encoding.open_values import CONVERT
from hitbox.encoding.schema import Attribute, Schema
from hitbox.encoding.values import ends_of
from hitbox.engine import _kernels
from hitbox.engine.document_plan import Documents, WantedSet
from hitbox.errors import DamagedArray
from hitbox.language.boxes.anchors import ELEMENT, OpenPath, Path, kind_and_path, open_path, set_texts

NONE = np.uint32(2**32 - 1)
NO_NUMBERS: I64 = np.zeros(0, np.int64)
GROWTH = 2
"""How much larger than the segments after it a segment is at least."""
U32 = NDArray[np.uint32]
PATTERN = "like"
"""In the text of every condition on a scalar that may have an anchor, in capitals or not."""


def may_have_anchors(boxes: Boxes, keys: Keys) -> NDArray[np.bool_]:
    """Which boxes ask for no single value, so that an anchor may tell more."""
    telling = np.array([codec.type != "bool" and not codec.is_list for codec in keys.codecs])
    telling[list(keys.space.information)] = False
    points = (boxes.low == boxes.high) & (boxes.low != MISSING) & telling[boxes.attribute]
    box = np.repeat(np.arange(len(boxes)), np.diff(boxes.offsets))
    found: NDArray[np.bool_] = np.bincount(box[points], minlength=len(boxes)) == 0
    return found


class SetName(NamedTuple):
    """A set that events bring, as `kind_and_path` describes it."""

    name: bytes
    kind: str
    type: str
    """The type of its values."""


class Anchors:
    """Covers by number. Like a matcher, but it takes events with what they bring."""

    def __init__(self, schema: Schema):
        self._schema = schema
        self._segments: list[_kernels.AnchorSegment] = []
        self._paths: dict[Path, list[SetName]] = {}
        """The sets in use, by path."""
        self.sets: tuple[WantedSet, ...] = ()
        """All sets; another tuple when they change."""
        self.size = 0
        """How many covers there are."""

    def __len__(self) -> int:
        return self.size

    def nbytes(self) -> int:
        return sum(segment.nbytes for segment in self._segments)

    # ---- changing

    def change(self, delete: I64, numbers: I64, boxes: Boxes) -> Callable[[], None]:
        """Prepare to delete some covers and insert others, under numbers that are not in use or are deleted here; the
        returned commit is short, cannot fail, and must be alone."""
        segments = list(self._segments)
        merged: list[_kernels.AnchorSegment] = []
        size = len(numbers)
        while segments and (size or merged) and segments[-1].live < GROWTH * (size + sum(s.live for s in merged)):
            merged.append(segments.pop())
        kept = []
        for segment in segments if len(delete) else ():
            rows = segment.rows(delete)
            kept.append((segment, rows[rows != NONE]))
        for segment, rows in kept:
            if 2 * (segment.live - len(rows)) < len(segment):  # most of it has gone
                merged.append(segment)
        segments = [segment for segment in segments if segment not in merged]
        if size or merged:
            segments.append(_segment(numbers, boxes, merged, delete))
        segments = sorted((segment for segment in segments if segment.live), key=lambda segment: -segment.live)
        paths = _paths(segments, self._schema)
        sets = tuple(_wanted_sets(self._schema, paths))
        total = self.size - len(delete) + size

        def commit() -> None:
            for segment, rows in kept:
                segment.kill(rows)
            self._segments, self._paths, self.size = segments, paths, total
            if sets != self.sets:
                self.sets = sets

        return commit

    def holds(self, numbers: I64) -> NDArray[np.bool_]:
        """Which numbers are those of covers here."""
        found = np.zeros(len(numbers), bool)
        for segment in self._segments:
            found |= segment.rows(numbers) != NONE
        return found

    def numbers(self) -> I64:
        """The numbers in use, which ascend."""
        numbers = [segment.decode(segment.living())[0] for segment in self._segments]
        return np.sort(np.concatenate([NO_NUMBERS, *numbers]))

    def boxes(self, numbers: I64) -> Boxes:
        """The boxes under `numbers`, with their anchors."""
        place = np.zeros(len(numbers), np.int64)
        parts, count = [], 0
        for segment in self._segments:
            rows = segment.rows(numbers)
            here = np.flatnonzero(rows != NONE)
            place[here] = count + np.arange(len(here))
            parts.append(_decoded(segment, rows[here])[1])
            count += len(here)
        return Boxes.concat(parts).take(place)

    # ---- asking

    @property
    def segments(self) -> list[_kernels.AnchorSegment]:
        return self._segments

    def of(self, event: Any, keys: Keys) -> list[tuple[bytes, list[Any]]]:
        """What native code needs to know of one event to find its covers among the `segments`."""
        return self._brought([event], keys)

    def match(
        self, points: Points, first: I64, chunk: Any, keys: Keys, threads: int = 1, documents: Documents | None = None
    ) -> Hits:
        """The covers that each point meets; those of event i of `chunk` are [first[i], first[i + 1]). `documents`:
        these events, if native code has read them."""
        if documents is not None:
            return self._match_documents(points, first, chunk, keys, threads, documents)
        brought = self._brought(chunk, keys)
        if not brought:
            return Hits(np.zeros(len(points) + 1, np.int64), np.zeros(0, np.int32))
        return Hits(*_kernels.find_anchored(self._segments, brought, points.low, points.high, first, threads))

    def _match_documents(
        self, points: Points, first: I64, chunk: Any, keys: Keys, threads: int, documents: Documents
    ) -> Hits:
        others: dict[int, list[tuple[bytes, list[Any]]]] = {}
        while True:
            found = _kernels.find_anchored(self._segments, *documents, others, points.low, points.high, first, threads)
            if isinstance(found, tuple):
                return Hits(*found)
            for number in found:
                others[number] = self._brought([chunk[number - documents.first]], keys)

    def _brought(self, chunk: Any, keys: Keys) -> list[tuple[bytes, list[Any]]]:
        """(name of a set, what each event brings to it)."""
        found: list[tuple[bytes, list[Any]]] = []
        for sets, values in (self._open_values if keys.schema.is_open else self._values)(chunk, keys):
            if any(values):
                for name, kind, type_ in sets:
                    found.append((name, [one if one is True else set_texts(kind, type_, one) for one in values]))
        return found

    def _values(self, chunk: Any, keys: Keys) -> Iterator[tuple[list[SetName], list[Any]]]:
        """(the sets of a path, the values that it leads to in each event)."""
        if isinstance(chunk, pa.Table):
            columns = events.Columns(keys, chunk)
        else:
            documents = [images(keys.schema, as_mapping(event) or {})[0] for event in chunk]
        for path, sets in self._paths.items():
            if isinstance(chunk, pa.Table):
                given = events.column_values(keys, columns, path[0])
            else:
                given = [lookup(document, path[0]) for document in documents]
            of = keys.schema[path[0]]
            yield sets, [_values(of, path, one) for one in given]

    def _open_values(self, chunk: Any, keys: Keys) -> Iterator[tuple[list[SetName], list[Any]]]:
        """The sets and what each event brings of them, where nothing is declared."""
        if isinstance(chunk, pa.Table):
            documents = events.open_rows(keys, chunk, frozenset(path[0] for path in self._paths))
        else:
            documents = [events.normal(keys, event) for event in chunk]
        for path, sets in self._paths.items():
            of = open_path(path)
            yield sets, [_open_values(of, document) for document in documents]

    # ---- as flat arrays

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All covers; nothing if there are none."""
        if not self.size:
            return {}
        parts = [_decoded(segment, segment.living()) for segment in self._segments]
        boxes = Boxes.concat([boxes for _, boxes in parts])
        starts, data = _bytes(boxes.anchors)
        return {
            "numbers": np.concatenate([numbers for numbers, _ in parts]),
            "offsets": boxes.offsets,
            "attribute": boxes.attribute,
            "low": boxes.low,
            "high": boxes.high,
            "priority": boxes.priority,
            "anchor_offsets": starts,
            "anchor_data": data,
        }

    @classmethod
    def from_arrays(cls, keys: Keys, arrays: Mapping[str, NDArray[Any]]) -> Anchors:
        """What `arrays` returned, which is checked first."""
        anchors = cls(keys.schema)
        if not arrays:
            return anchors
        numbers, boxes = array_checks.boxes(arrays, "", keys.space.attributes)
        array_checks.require(len(np.unique(numbers)) == len(numbers), "numbers", "a number comes twice")
        data = array_checks.column(arrays, "anchor_data", np.uint8)
        starts = array_checks.offsets(arrays, "anchor_offsets", len(data), len(numbers))
        try:
            anchors.change(NO_NUMBERS, numbers, replace(boxes, anchors=_binary(starts, data)))()
        except (ValueError, KeyError) as problem:
            raise DamagedArray("anchor_data", f"an anchor cannot be used: {problem}") from None
        return anchors


def _values(of: Attribute, path: Path, value: Any) -> Any:
    """The plain values that a path leads to; True if they may be any, because an event carries an interval."""
    if type(value) is str:
        return [value]
    if value is None or value is ABSENT:
        return []
    if not of.is_list:
        ends = ends_of(value)
        if ends is None:
            single = plain(of, value)
            return [] if single is None else [single]
        low, high = (plain(of, end) for end in ends)
        return [low] if low == high else True
    if of.element == "string" and type(value) is list and all(type(one) is str for one in value):
        return value  # the encoder of events checks what is in them
    found = plain(of, value) or []
    for step in path[1:]:
        inner = [None if one is None else one.get(step) for one in found]
        found = [one for some in inner for one in (some if isinstance(some, list) else (some,))]
    return found


def _open_values(of: OpenPath, document: Document) -> list[Any]:
    """The plain values of the set's type that a path leads to."""
    found: list[Any] = [document]
    for name in of.lists:
        found = [value for one in found for value in open_elements(one, (name,)) or ()]
    if of.field:
        found = [lookup(one, of.field) for one in found if isinstance(one, Mapping)]
    convert = CONVERT[of.type]
    plain_values = [convert(one) for one in found if one is not ABSENT]
    return [one for one in plain_values if one is not None]


def _paths(segments: Sequence[_kernels.AnchorSegment], schema: Schema) -> dict[Path, list[SetName]]:
    """The sets of some segments, by path. A KeyError or ValueError where the schema has no such set."""
    found: dict[Path, list[SetName]] = {}
    for name in sorted({name for segment in segments for name in segment.sets()}):
        kind, path = kind_and_path(name)
        if schema.is_open:
            type_ = open_path(path).type
            if kind != ELEMENT and type_ != "string":
                raise ValueError(f"fragments of a {type_} in {'.'.join(path)!r}")
            found.setdefault(path, []).append(SetName(name, kind, type_))
            continue
        of = schema[path[0]]
        for step in path[1:]:
            if of.fields is None:
                raise KeyError(step)
            of = of.fields[step]
        if (of.element == "object") or (kind != ELEMENT and of.element != "string"):
            raise ValueError(f"a set of {of.type} in {'.'.join(path)!r}")
        found.setdefault(path, []).append(SetName(name, kind, of.element))
    return found


def _wanted_sets(schema: Schema, paths: Mapping[Path, Sequence[SetName]]) -> Iterator[WantedSet]:
    for path, names in paths.items():
        if schema.is_open:
            lists, field, _ = open_path(path)
        else:
            scalar = not schema[path[0]].is_list
            lists, field = ((), path[0]) if scalar else (path[:-1], path[-1]) if len(path) > 1 else (path, "")
        for name in names:
            yield WantedSet(name.name, name.kind, lists, field, name.type)


def _segment(numbers: I64, boxes: Boxes, older: list[_kernels.AnchorSegment], gone: I64) -> _kernels.AnchorSegment:
    """A segment of new covers and of what lives in older ones, without the numbers `gone`."""
    starts, data = _bytes(boxes.anchors)
    return _kernels.AnchorSegment(
        numbers,
        boxes.offsets,
        boxes.attribute,
        boxes.low,
        boxes.high,
        boxes.priority,
        starts,
        data,
        older,
        np.sort(gone),
        int.from_bytes(os.urandom(8), "little"),
        int.from_bytes(os.urandom(8), "little"),
    )


def _decoded(segment: _kernels.AnchorSegment, rows: U32) -> tuple[I64, Boxes]:
    numbers, offsets, attribute, low, high, priority, starts, data = segment.decode(rows)
    return numbers, Boxes(offsets, attribute, low, high, priority, _binary(starts, data))


def _binary(starts: I64, data: NDArray[np.uint8]) -> pa.Array:
    return pa.Array.from_buffers(pa.large_binary(), len(starts) - 1, [None, pa.py_buffer(starts), pa.py_buffer(data)])


def _bytes(anchors: pa.Array | None) -> tuple[I64, NDArray[np.uint8]]:
    """Where each anchor begins, and all bytes."""
    if anchors is None or not len(anchors):
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    _, ends, data = anchors.buffers()
    starts = np.frombuffer(ends, np.int64)[anchors.offset : anchors.offset + len(anchors) + 1]
    return starts - starts[0], np.frombuffer(data, np.uint8)[starts[0] : starts[-1]]
