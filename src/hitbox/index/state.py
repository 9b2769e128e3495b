"""The content of an index, to the files of a snapshot and back: whole, or in parts that share their dictionaries.

IndexState is the plain data behind an index: keys, catalog and matcher, without locks. See sharded.py for parts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hitbox.encoding import array_checks, events
from hitbox.encoding.arrays import I64, Boxes
from hitbox.encoding.keys import Keys
from hitbox.encoding.schema import Schema
from hitbox.encoding.string_dictionary import Relabel
from hitbox.engine import Engine
from hitbox.errors import SchemaError
from hitbox.index.bulk_load import Encoded
from hitbox.index.catalog import ID_TYPES, MIN_ARROW_ROWS, NO_SLOTS, Catalog, Id, Row, Rows
from hitbox.index.explain import describe_box
from hitbox.matchers import REGISTRY, Matcher, make, resolve_name, restore
from hitbox.storage import snapshot
from hitbox.storage.array_files import damaged

CHUNK = 50_000
IN_MEMORY = Path()
NO_BOXES = Boxes.of([])
Commits = tuple[Callable[[], None], Callable[[], None]]
BOXES_DIFFER = "the boxes of the catalog are not those of the matcher"


@dataclass(frozen=True, slots=True)
class IndexState:
    keys: Keys
    catalog: Catalog
    matcher: Matcher
    name: str
    """The matcher's name in the registry."""

    @classmethod
    def empty(cls, keys: Keys, matcher: str, options: Mapping[str, object]) -> IndexState:
        name = resolve_name(matcher)
        return cls(keys, Catalog(), make(name, keys.space, **options), name)

    def add(self, encoded: Encoded) -> None:
        """Add subscriptions that are already encoded as boxes and whose ids are new."""
        rows = Rows(encoded.ids, encoded.where, encoded.priority, encoded.count, encoded.exact)
        settle = self.catalog.settled("int" if pa.types.is_integer(encoded.ids.type) else "string")
        if settle is not None:
            settle()
        for commit in self.changing(NO_SLOTS, rows, encoded.boxes):
            commit()
        switch = self.matcher.prepare()
        if switch is not None:
            switch()

    def changing(self, gone: I64, come: Rows, boxes: Boxes) -> Commits:
        """Prepare that some slots go and some rows come, with their boxes. The commits, the matcher's first: where
        memory runs out in it, nothing else has changed."""
        first = self._first_number(gone, come)
        arranged = None if first is None else self.matcher.arrange(boxes)  # type: ignore[attr-defined]
        if arranged is None:
            change = self.catalog.change(gone, come)
            return self.matcher.change(change.gone, change.come, boxes), change.commit
        change = self.catalog.change(gone, come.arranged(arranged.order), first)
        return self.matcher.change(change.gone, change.come, boxes, arranged), change.commit  # type: ignore[call-arg]

    def changing_one(self, gone: int | None, come: Row | None = None, boxes: Boxes = NO_BOXES) -> Commits:
        """The same for one subscription at most on either side."""
        change = self.catalog.change_one(gone, come)
        return self.matcher.change(change.gone, change.come, boxes), change.commit

    def _first_number(self, gone: I64, come: Rows) -> int | None:
        """Where the engine may choose the order of the new boxes' numbers, the first of them. Not of a subscription of
        several boxes, whose numbers are consecutive; nor if ids are the numbers of rows, which need no look-up."""
        many = isinstance(self.matcher, Engine) and isinstance(come.ids, pa.Array) and len(come) > MIN_ARROW_ROWS
        if not many or int(come.count.max()) > 1 or _are_consecutive(come.ids):
            return None
        return self.catalog.first_of(gone, int(come.count.sum()))

    def relabelling(self, relabels: Mapping[int, Relabel]) -> Callable[[], None]:
        """Prepare to move the boxes to new labels of strings; the commit must run alone."""
        numbers = self.catalog.boxes_of(self.catalog.living_slots())
        boxes = self.matcher.boxes(numbers)
        low, high = boxes.low.copy(), boxes.high.copy()
        for attribute, relabel in relabels.items():
            at = boxes.attribute == attribute
            low[at], high[at] = relabel.lows(low[at]), relabel.highs(high[at])
        moved = Boxes(boxes.offsets, boxes.attribute, low, high, boxes.priority)
        return self.matcher.change(numbers, numbers, moved)

    def labels_in_use(self) -> dict[str, I64]:
        """The labels that boxes use, by string attribute."""
        boxes = self.matcher.boxes(self.catalog.boxes_of(self.catalog.living_slots()))
        found = {}
        for name in self.keys.dictionaries:
            at = boxes.attribute == self.keys.schema.number(name)
            low, high = boxes.low[at], boxes.high[at]  # odd: just above, or just below, a label
            found[name] = np.unique(np.concatenate([low - (low & 1), high + (high & 1)]))
        return found

    def everything(self) -> Encoded:
        """All living subscriptions."""
        catalog = self.catalog
        slots = catalog.living_slots()
        numbers = catalog.boxes_of(slots)
        return Encoded(
            catalog.ids.take(slots),
            catalog.where.take(slots),
            catalog.priority[slots],
            catalog.counts[slots],
            catalog.exact[numbers],
            self.matcher.boxes(numbers),
        )

    def renamed(self, ids: pa.Array) -> IndexState:
        """The same subscriptions, in the same order, with other ids; each id occurs once."""
        state = IndexState.empty(self.keys, self.name, self.matcher.kept_options())
        state.add(replace(self.everything(), ids=ids))
        return state

    def rows(self) -> Iterator[tuple[Id, str, int, dict[str, Any]]]:
        """(id, where, priority, about) of all living subscriptions: much faster than asking for them one by one."""
        slots = self.catalog.living_slots()
        for start in range(0, len(slots), CHUNK):
            part = slots[start : start + CHUNK]
            texts, about = self.texts_and_about(part)
            yield from zip(self.catalog.id_list(part), texts, self.catalog.priority[part].tolist(), about, strict=True)

    def texts_and_about(self, slots: I64) -> tuple[list[str], list[dict[str, Any]]]:
        """The predicates (written out if only bounds were given), and what the subscriptions say about themselves."""
        texts: list[Any] = self.catalog.where.take(slots).to_pylist()
        about: list[dict[str, Any]] = [{} for _ in texts]
        if None in texts or self.keys.space.information:
            numbers = self.catalog.boxes_of(slots)
            boxes = self.matcher.boxes(numbers)
            first = np.cumsum(self.catalog.counts[slots]) - self.catalog.counts[slots]
            for at, (box, count) in enumerate(zip(first.tolist(), self.catalog.counts[slots].tolist(), strict=True)):
                if texts[at] is None:
                    texts[at] = describe_box(self.keys, boxes[box]) if count else "FALSE"
                if count:
                    about[at] = events.about_values(self.keys, boxes[box])
        return texts, about

    def facts(self) -> dict[str, Any]:
        """The facts for the manifest."""
        return {
            "schema": self.keys.schema.to_json(),
            "subscriptions": self.catalog.living,
            "id_type": self.catalog.kind,
            "matcher": self.name,
        }

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything but the dictionaries; the catalog must have been compacted."""
        found = {f"catalog.{name}": array for name, array in self.catalog.arrays().items()}
        return found | {f"matcher.{name}": array for name, array in self.matcher.arrays().items()}


def _are_consecutive(ids: pa.Array) -> bool:
    return pa.types.is_integer(ids.type) and bool((np.diff(ids.to_numpy()) == 1).all())


def read(
    path: str | os.PathLike[str],
    version: int | None = None,
    matcher: str | None = None,
    verify: bool = True,
    options: Mapping[str, object] | None = None,
) -> IndexState:
    """A snapshot as one state: memory-mapped where it has one part, joined in memory where it has several."""
    if version is None:
        return snapshot.latest(path, lambda number: read(path, number, matcher, verify, options))
    meta, found = snapshot.read(path, version, verify)
    folder = snapshot.folder_of(path, meta["version"])
    keys = keys_of(meta, found, folder)
    parts = [part(meta, keys, found, name, matcher, options, folder) for name in meta.get("parts", [""])]
    if len(parts) == 1:
        return parts[0]
    whole = IndexState.empty(keys, parts[0].name, parts[0].matcher.kept_options() | dict(options or {}))
    for one in parts:
        whole.add(one.everything())
    return whole


def keys_of(meta: Mapping[str, Any], found: Mapping[str, NDArray[Any]], folder: Path) -> Keys:
    """The schema and the dictionaries of a snapshot, which lies in `folder`."""
    try:
        schema = Schema.from_json(meta["schema"])
    except (SchemaError, KeyError, TypeError, ValueError, AttributeError) as problem:
        raise damaged(folder / "manifest.json", f"its schema cannot be used: {problem}") from None
    with snapshot.naming(folder):
        return Keys.from_arrays(schema, found)


def part(
    meta: Mapping[str, Any],
    keys: Keys,
    found: Mapping[str, NDArray[Any]],
    name: str,
    matcher: str | None = None,
    options: Mapping[str, object] | None = None,
    folder: Path = IN_MEMORY,
) -> IndexState:
    """One part of a snapshot (the whole, where it has no parts), which lies in `folder`."""
    folder = folder / name
    prefix = f"{name}/" if name else ""
    if meta["id_type"] not in ID_TYPES or meta["matcher"] not in REGISTRY:
        raise damaged(folder / "manifest.json", "it names a type of ids or a matcher that does not exist")
    wanted = resolve_name(matcher or meta["matcher"])
    boxes = snapshot.part(found, f"{prefix}matcher")
    with snapshot.naming(folder, "catalog."):
        catalog = Catalog.from_arrays(meta["id_type"], snapshot.part(found, f"{prefix}catalog"))
        owned = np.flatnonzero(catalog.owner >= 0)
        if "numbers" in boxes:  # a matcher may need memory in proportion to the largest number
            array_checks.require(np.array_equal(boxes["numbers"], owned), "owner", BOXES_DIFFER)
    with snapshot.naming(folder, "matcher."):
        restored = restore(meta["matcher"], boxes, wanted, keys.space, options or {})
    with snapshot.naming(folder, "catalog."):
        array_checks.require(np.array_equal(restored.numbers(), owned), "owner", BOXES_DIFFER)
    return IndexState(keys, catalog, restored, wanted)
