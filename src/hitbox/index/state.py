"""The content of an index, to the files of a snapshot and back: whole, or in parts that share their dictionaries.

IndexState is the plain data behind an index: keys, catalog and matcher, without locks. See sharded.py for parts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import InitVar, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hitbox import language
from hitbox.encoding import array_checks, events
from hitbox.encoding import arrow_compute as pc
from hitbox.encoding.arrays import I64, Boxes
from hitbox.encoding.keys import Derived, Keys
from hitbox.encoding.schema import MAX_ATTRIBUTES as MAX_OPEN
from hitbox.encoding.schema import Schema
from hitbox.encoding.string_dictionary import Relabel
from hitbox.engine import Engine, _kernels
from hitbox.engine._kernels import MAX_ATTRIBUTES
from hitbox.engine.document_plan import DocumentPlans
from hitbox.engine.event_encoder import EventEncoder
from hitbox.errors import HitboxError, MatcherError
from hitbox.index.anchors import Anchors
from hitbox.index.catalog import ID_TYPES, MIN_ARROW_ROWS, Catalog, Id, Row, Rows
from hitbox.index.derived_use import DerivedUse
from hitbox.index.explain import describe_box
from hitbox.index.load.bulk_load import Encoded
from hitbox.index.program_columns import tested
from hitbox.index.slot_boxes import NO_SLOTS
from hitbox.language import Programs
from hitbox.language.boxes.derived import derived_from_json
from hitbox.language.conditions.letters import folded
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
    anchors: Anchors
    """The boxes that have anchors; all others are the matcher's."""
    use: DerivedUse
    """Which derived attributes the boxes constrain and the programs test."""
    engine: Engine | None = field(init=False)
    """The matcher, if it is the engine."""
    encoder: EventEncoder = field(init=False)
    """Left out of a part of a snapshot that is only joined with others."""
    _plans: DocumentPlans = field(init=False)

    matches: InitVar[bool] = True

    def __post_init__(self, matches: bool) -> None:
        object.__setattr__(self, "engine", self.matcher if isinstance(self.matcher, Engine) else None)
        if matches:
            object.__setattr__(self, "encoder", EventEncoder(self.keys, self.use.used))
        object.__setattr__(self, "_plans", DocumentPlans(self.keys, folded))

    @property
    def computes(self) -> bool:
        """Whether more is made of an event than the keys of its own values."""
        return self.keys.schema.is_open or self.anchors.size > 0 or bool(self.use.used)

    def document_plan(self) -> _kernels.DocumentPlan | None:
        """How native code reads events as documents; None if it cannot."""
        return self._plans.get(self.use.used, self.use.changes, self.anchors.sets)

    @classmethod
    def empty(cls, keys: Keys, matcher: str, options: Mapping[str, object]) -> IndexState:
        name = resolve_name(matcher)
        return cls(
            keys, Catalog(), make(name, keys.space, **options), name, Anchors(keys.schema), DerivedUse.none(keys)
        )

    def deriving(
        self, wanted: Mapping[str, Derived], most: int, options: Mapping[str, object]
    ) -> tuple[IndexState, Callable[[], None]] | None:
        """Prepare keys for derived attributes, `most` in all: the state that takes the place of this one, and the
        commit, which must be alone. None if there is nothing to do, or no room. `options` are those of the matcher."""
        known = {one.text: self.keys.number_of(one) for one in wanted.values()}
        new = [one for one in wanted.values() if known[one.text] is None]
        if not new:
            return None
        if self.keys.schema.is_open:  # what is no function is an attribute: there may be as many as in any schema
            room = max(0, most - sum(not one.is_attribute for one in self.keys.derived))
            new = [one for one in new if one.is_attribute] + [one for one in new if not one.is_attribute][:room]
            most = MAX_OPEN
        places = self.use.places(new, min(most, MAX_ATTRIBUTES - len(self.keys.schema)), set(known.values()))
        if not places or self.keys.shared:
            return None
        keys = self.keys.with_derived(places)
        try:
            matcher, commit = self.matcher.widened(keys.space, options)
        except MatcherError:  # it has no room for more attributes
            return None
        return replace(self, keys=keys, matcher=matcher, use=self.use.grown(len(keys.derived))), commit

    def add(self, encoded: Encoded) -> None:
        """Add subscriptions that are already encoded as boxes and whose ids are new."""
        rows = encoded.rows()
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
        anchored = boxes.anchors is not None or len(self.anchors)
        first = None if anchored else self._first_number(gone, come)
        arranged = None if first is None else self.matcher.arrange(boxes)  # type: ignore[attr-defined]
        if arranged is None:
            change = self.catalog.change(gone, come)
            switch = self._changing_boxes(change.gone, change.come, boxes)
            return self._counted(switch, gone, change.gone, come.programs, boxes), change.commit
        change = self.catalog.change(gone, come.arranged(arranged.order), first)
        switch = self.matcher.change(change.gone, change.come, boxes, arranged)  # type: ignore[call-arg]
        return self._counted(switch, gone, change.gone, come.programs, boxes), change.commit

    def changing_one(self, gone: int | None, come: Row | None = None, boxes: Boxes = NO_BOXES) -> Commits:
        """Prepare a change of one subscription at most on either side."""
        change = self.catalog.change_one(gone, come)
        programs = {} if come is None or come.program is None else {0: come.program}
        switch = self._changing_boxes(change.gone, change.come, boxes)
        slots = NO_SLOTS if gone is None else np.array([gone], np.int64)
        return self._counted(switch, slots, change.gone, programs, boxes), change.commit

    def _counted(
        self, switch: Callable[[], None], slots: I64, gone: I64, programs: Programs, come: Boxes
    ) -> Callable[[], None]:
        """A commit of boxes, and then that of who uses what is derived. `slots` and their boxes `gone` go; boxes and
        `programs` come."""
        if not self.keys.derived:
            return switch
        left = (
            np.concatenate([self.boxes(gone).attribute, self.catalog.programs.tested(slots)])
            if len(slots)
            else NO_SLOTS
        )
        new = np.concatenate([come.attribute, tested(programs)])
        count = self.use.changing(left, new)

        def commit() -> None:
            switch()
            count()

        return commit

    def _changing_boxes(self, gone: I64, come: I64, boxes: Boxes) -> Callable[[], None]:
        """Prepare that some boxes go and others come, each where it belongs. The commit fails before it changes
        anything, or not at all."""
        if boxes.anchors is None and not len(self.anchors):
            return self.matcher.change(gone, come, boxes)
        held = self.anchors.holds(gone)
        anchored = np.zeros(len(boxes), bool)
        if boxes.anchors is not None:
            anchored = pc.binary_length(boxes.anchors).to_numpy() > 0
        if not held.any() and not anchored.any():
            return self.matcher.change(gone, come, replace(boxes, anchors=None))
        if held.all() and anchored.all():
            return self.anchors.change(gone, come, boxes)
        others = replace(boxes.take(np.flatnonzero(~anchored)), anchors=None)
        switch = self.matcher.change(gone[~held], come[~anchored], others)
        put = self.anchors.change(gone[held], come[anchored], boxes.take(np.flatnonzero(anchored)))

        def commit() -> None:
            switch()
            put()

        return commit

    def boxes(self, numbers: I64) -> Boxes:
        """The boxes under `numbers`, wherever they are."""
        if not len(self.anchors):
            return self.matcher.boxes(numbers)
        held = self.anchors.holds(numbers)
        place = np.empty(len(numbers), np.int64)
        place[~held], place[held] = np.arange((~held).sum()), np.arange((~held).sum(), len(numbers))
        return Boxes.concat([self.matcher.boxes(numbers[~held]), self.anchors.boxes(numbers[held])]).take(place)

    def _first_number(self, gone: I64, come: Rows) -> int | None:
        """Where the engine may choose the order of the new boxes' numbers, the first of them. Not of a subscription of
        several boxes, whose numbers are consecutive; nor if ids are the numbers of rows, which need no look-up."""
        many = isinstance(self.matcher, Engine) and isinstance(come.ids, pa.Array) and len(come) > MIN_ARROW_ROWS
        if not many or int(come.count.max()) > 1 or _are_consecutive(come.ids):
            return None
        return self.catalog.first_of(gone, int(come.count.sum()))

    def relabelling(self, relabels: Mapping[int, Relabel]) -> Callable[[], None]:
        """Prepare to move boxes and programs to new labels of strings; the commit must run alone."""
        numbers = self.catalog.boxes_of(self.catalog.living_slots())
        boxes = self.boxes(numbers)
        low, high = boxes.low.copy(), boxes.high.copy()
        for attribute, relabel in relabels.items():
            at = boxes.attribute == attribute
            low[at], high[at] = relabel.lows(low[at]), relabel.highs(high[at])
        moved = replace(boxes, low=low, high=high)
        switch, commit = self._changing_boxes(numbers, numbers, moved), self.catalog.relabelling(relabels)

        def both() -> None:
            switch()
            commit()

        return both

    def labels_in_use(self) -> dict[int, I64]:
        """The labels that boxes and programs use, by the number of the string attribute."""
        boxes = self.boxes(self.catalog.boxes_of(self.catalog.living_slots()))
        found = {}
        for number in self.keys.dictionaries:
            at = boxes.attribute == number
            low, high = boxes.low[at], boxes.high[at]  # odd: just above, or just below, a label
            labels = self.catalog.programs.labels(number, self.catalog.living_slots())
            found[number] = np.unique(np.concatenate([low - (low & 1), high + (high & 1), labels]))
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
            self.boxes(numbers),
            catalog.programs.by_row(slots),
        )

    def renamed(self, ids: pa.Array) -> IndexState:
        """These subscriptions in their order, with other ids; each id occurs once."""
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
            boxes = self.boxes(numbers)
            first = np.cumsum(self.catalog.counts[slots]) - self.catalog.counts[slots]
            for at, (box, count) in enumerate(zip(first.tolist(), self.catalog.counts[slots].tolist(), strict=True)):
                if texts[at] is None:
                    texts[at] = describe_box(self.keys, boxes[box]) if count else "FALSE"
                if count:
                    about[at] = events.about_values(self.keys, boxes[box])
        return texts, about

    def facts(self) -> dict[str, Any]:
        """The facts for the manifest."""
        derived = [one.to_json() for one in self.keys.derived]
        return {
            "schema": self.keys.schema.to_json(),
            **({"derived": derived} if derived else {}),
            "subscriptions": self.catalog.living,
            "id_type": self.catalog.kind,
            "matcher": self.name,
        }

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything but the dictionaries; the catalog must have been compacted."""
        found = {f"catalog.{name}": array for name, array in self.catalog.arrays().items()}
        found |= {f"anchors.{name}": array for name, array in self.anchors.arrays().items()}
        if self.keys.derived:
            found["derived.uses"] = self.use.counts
        return found | {f"matcher.{name}": array for name, array in self.matcher.arrays().items()}


def _are_consecutive(ids: pa.Array) -> bool:
    return pa.types.is_integer(ids.type) and bool((np.diff(ids.to_numpy()) == 1).all())


def read(
    path: str | os.PathLike[str],
    version: int | None = None,
    matcher: str | None = None,
    verify: bool = True,
    options: Mapping[str, object] | None = None,
    mapped: bool = True,
) -> IndexState:
    """A snapshot as one state: memory-mapped, or copied, if it has one part; joined in memory if it has several."""
    if version is None:
        return snapshot.latest(path, lambda number: read(path, number, matcher, verify, options, mapped))
    meta, found = snapshot.read(path, version, verify, mapped=mapped)
    folder = snapshot.folder_of(path, meta["version"])
    keys = keys_of(meta, found, folder)
    names = meta.get("parts", [""])
    parts = [part(meta, keys, found, name, matcher, options, folder, len(names) == 1) for name in names]
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
        derived = derived_from_json(meta.get("derived", []), schema, language.parse)
    except (HitboxError, KeyError, TypeError, ValueError, AttributeError) as problem:
        raise damaged(folder / "manifest.json", f"its schema cannot be used: {problem}") from None
    with snapshot.naming(folder):
        return Keys.from_arrays(schema, found, derived)


def part(
    meta: Mapping[str, Any],
    keys: Keys,
    found: Mapping[str, NDArray[Any]],
    name: str,
    matcher: str | None = None,
    options: Mapping[str, object] | None = None,
    folder: Path = IN_MEMORY,
    matches: bool = True,
) -> IndexState:
    """One part of a snapshot (the whole, where it has no parts), which lies in `folder`. `matches`: whether it is to
    match events; otherwise it is only joined with others."""
    folder = folder / name
    prefix = f"{name}/" if name else ""
    if meta["id_type"] not in ID_TYPES or meta["matcher"] not in REGISTRY:
        raise damaged(folder / "manifest.json", "it names a type of ids or a matcher that does not exist")
    wanted = resolve_name(matcher or meta["matcher"])
    boxes = snapshot.part(found, f"{prefix}matcher")
    with snapshot.naming(folder, "catalog."):
        catalog = Catalog.from_arrays(meta["id_type"], snapshot.part(found, f"{prefix}catalog"), len(keys.codecs))
        owned = np.flatnonzero(catalog.owner >= 0)
    with snapshot.naming(folder, "anchors."):
        anchors = Anchors.from_arrays(keys, snapshot.part(found, f"{prefix}anchors"))
    with snapshot.naming(folder, "catalog."):
        if len(anchors):
            inside = np.isin(anchors.numbers(), owned)
            array_checks.require(inside.all(), "owner", BOXES_DIFFER)
            owned = np.setdiff1d(owned, anchors.numbers(), assume_unique=True)
        if "numbers" in boxes:  # a matcher may need memory in proportion to the largest number
            array_checks.require(np.array_equal(boxes["numbers"], owned), "owner", BOXES_DIFFER)
    with snapshot.naming(folder, "matcher."):
        restored = restore(meta["matcher"], boxes, wanted, keys.space, options or {})
    with snapshot.naming(folder, "catalog."):
        array_checks.require(np.array_equal(restored.numbers(), owned), "owner", BOXES_DIFFER)
    use = _use(keys, snapshot.part(found, f"{prefix}derived"), folder)
    return IndexState(keys, catalog, restored, wanted, anchors, use, matches)


def _use(keys: Keys, arrays: Mapping[str, NDArray[Any]], folder: Path) -> DerivedUse:
    if not keys.derived:
        return DerivedUse.none(keys)
    with snapshot.naming(folder, "derived."):
        counts = array_checks.column(arrays, "uses", np.int64)
        array_checks.require(len(counts) == len(keys.derived), "uses", "its length is wrong")
        array_checks.bounds(counts, "uses", 0, 2**62)
        return DerivedUse(len(keys.schema), np.array(counts))
