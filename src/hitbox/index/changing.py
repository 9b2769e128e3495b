"""Changing an index: subscriptions come and go, one or many at a time, all at once or not at all.

    put        text -> language -> boxes -> matcher.change           catalog: id, priority, text, box numbers
    load       table -> load/bulk_load.py -> boxes of many -> matcher.change

Before boxes are made, what they need gets keys: functions of attributes, and strings. See guarded_state.py for commits.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from hitbox.encoding import arrow_compute as pc
from hitbox.encoding import events, inputs
from hitbox.encoding.arrays import I64, LEVELS, Boxes
from hitbox.encoding.codecs import decoded, is_text, unsound
from hitbox.encoding.fitting import check_on_error
from hitbox.encoding.inputs import as_mapping
from hitbox.encoding.keys import Derived
from hitbox.encoding.string_dictionary import Texts
from hitbox.encoding.values import brief, forbidden
from hitbox.errors import NeverMatches, TableError, ValueProblem
from hitbox.index.catalog import NO_ROWS, Id, Row, Rows, kind_of, new_id
from hitbox.index.guarded_state import Also, GuardedState
from hitbox.index.load import bulk_load
from hitbox.index.load.predicate_text import PredicateTexts

FEW_STRINGS = 64
"""Strings up to which a change asks first whether they are known."""
MANY_WORDS = 50_000
"""Strings that a dictionary takes before it is worth looking for unused ones."""
NO_BOXES = Boxes.of([])


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a bulk load did: how many rows went in, and (row number, message) of those that did not."""

    loaded: int
    errors: list[tuple[int, str]]


class Changing:
    def __init__(self, held: GuardedState):
        self._held = held
        self._texts = PredicateTexts(held.state.keys.schema, held.limits)
        self._many_words: dict[int, int] = {}

    def put(self, id: Id, where: str, priority: int, about: Mapping[str, Any] | None, also: Also = None) -> None:
        kind = kind_of(id)
        id = new_id(id)
        _check_priority(priority)
        predicate = self._texts.read(where)
        said = {} if about is None else as_mapping(about)
        if said is None:
            raise ValueProblem(f"about is a mapping of attribute to value, not {type(about).__name__}")
        values = dict(said)
        if values and self._held.schema.is_open:
            raise ValueProblem("an open index has no information attributes: make it with a schema to say `about`")
        with self._held.lock.prepare:
            if values:
                events.event_keys(self._held.keys, values, role="information")  # checks them before any change
            self._held.catalog.check_kind(kind)
            self._derive(predicate.derived())
            strings = predicate.strings(self._held.keys)
            if values:
                bulk_load.merge_strings(strings, bulk_load.about_strings(self._held.schema, values))
            if strings:
                self._admit(strings)
            boxes, exact, program = predicate.boxes(
                self._held.keys, bulk_load.about_box(self._held.keys, values), priority
            )
            if not len(boxes):
                lost = ", and what it says about itself is not kept" if values else ""
                _warn_never(f"{self._held.noun} {id!r} can never match{lost}: {where[:200]}")
            self._settle(kind)
            row = Row(id, where, int(priority), exact, program)
            self._apply(*self._held.state.changing_one(self._held.catalog.slot(id), row, boxes), also)

    def remove(self, id: Id, also: Also = None) -> None:
        with self._held.lock.prepare:
            self._apply(*self._held.state.changing_one(self._held.slot(id)), also)

    def remove_many(self, ids: Sequence[Id] | pa.Array, also: Also = None) -> int:
        with self._held.lock.prepare:
            slots = np.unique(self._held.catalog.slots_of(_id_array(ids)))
            slots = slots[slots >= 0]
            self._change(slots, also=also)
        return len(slots)

    def load(self, table: Any, on_error: str) -> LoadReport:
        check_on_error(on_error)
        draft = bulk_load.read(inputs.subscriptions(table), self._held.schema, self._held.limits)
        _refuse(draft.errors, on_error)
        with self._held.lock.prepare:
            self._derive(draft.derived())
            self._admit(draft.strings(self._held.keys))
            encoded = bulk_load.last_of_each(draft.encode(self._held.keys, self._held.limits))
            _refuse(draft.errors, on_error)
            self._held.catalog.check_kind("int" if pa.types.is_integer(encoded.ids.type) else "string")
            never = int((encoded.count == 0).sum())
            if never:
                _warn_never(f"{never} of the subscriptions loaded can never match")
            self._put_all(encoded)
        return LoadReport(len(encoded.ids), sorted(draft.errors.items()))

    def put_encoded(self, encoded: bulk_load.Encoded) -> None:
        """Add or replace subscriptions that are already encoded with the keys of this index; each id occurs once."""
        with self._held.lock.prepare:
            self._put_all(encoded)

    def _put_all(self, encoded: bulk_load.Encoded) -> None:
        old = self._held.catalog.slots_of(encoded.ids)
        self._settle("int" if pa.types.is_integer(encoded.ids.type) else "string")
        self._change(old[old >= 0], encoded.rows(), encoded.boxes)

    def _change(self, gone: I64, come: Rows = NO_ROWS, boxes: Boxes = NO_BOXES, also: Also = None) -> None:
        """Some slots go, some rows come: all at once, or not at all. The caller prepares (read_write_lock.py)."""
        self._apply(*self._held.state.changing(gone, come, boxes), also)

    def _apply(self, switch: Callable[[], None], commit: Callable[[], None], also: Also = None) -> None:
        """Commit a change of the matcher and one of the catalog, then tidy up."""
        self._held.commit(switch, commit, also)
        if self._held.state.engine is not None:
            self._held.state.engine.merge_behind(self._held.lock.prepare)
        else:
            self._held.commit(self._held.state.matcher.prepare())
        if (tidy := self._held.catalog.prepare()) is not None:
            self._held.commit(tidy)
        for number, words in self._held.keys.dictionaries.items():
            most = self._many_words.setdefault(number, max(MANY_WORDS, 2 * len(words)))
            if len(words) > most and not self._held.keys.shared:
                self.forget_words()

    def _settle(self, kind: str) -> None:
        if kind != self._held.catalog.kind:
            self._held.commit(self._held.catalog.settled(kind))

    def _derive(self, wanted: Mapping[str, Derived]) -> None:
        """Give keys to functions of attributes, as far as there is room. No answer changes by it."""
        if not wanted:
            return
        prepared = self._held.state.deriving(wanted, self._held.limits.derived, self._held.options)
        if prepared is None:
            return
        state, widen = prepared

        def switch() -> None:
            self._held.state = state

        self._held.commit(widen, switch)

    def _admit(self, strings: Mapping[int, Texts]) -> None:
        """Give labels to strings; where labels move, move boxes and programs. No answer changes by it."""
        if sum(map(len, strings.values())) <= FEW_STRINGS and self._held.keys.knows(strings):
            return
        relabels, admit = self._held.keys.admitting(strings)
        self._held.commit(self._held.state.relabelling(relabels) if relabels else None, admit)

    def forget_words(self) -> None:
        """Take strings that no box and no program speaks of any more out of the dictionaries; no label moves."""
        for number, used in self._held.state.labels_in_use().items():
            words = self._held.keys.dictionaries[number]
            self._held.commit(words.retaining(used))
            self._many_words[number] = max(MANY_WORDS, 2 * len(words))


def _check_priority(priority: object) -> None:
    if isinstance(priority, bool) or not isinstance(priority, (int, np.integer)) or not 0 <= priority < LEVELS:
        raise ValueProblem(f"a priority is a whole number 0 to 9 (9 is the most urgent), not {brief(priority)}")


def _refuse(errors: Mapping[int, str], on_error: str) -> None:
    if errors and on_error == "raise":
        rows = sorted(errors.items())
        more = f" ({len(rows)} bad rows)" if len(rows) > 1 else ""
        raise TableError(f"nothing was loaded{more}: row {rows[0][0]}: {rows[0][1]}", rows)


def _warn_never(message: str, stacklevel: int = 4) -> None:
    warnings.warn(NeverMatches(message), stacklevel=stacklevel)


def _id_array(ids: Sequence[Id] | pa.Array) -> pa.Array:
    """Ids to look up; nulls, and what no id can be, are left out."""
    if isinstance(ids, (pa.Array, pa.ChunkedArray)):
        return _id_column(decoded(ids))
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable):
        raise ValueProblem(f"ids come as a list or as an Arrow array, not as {type(ids).__name__}")
    ids = list(ids)  # once: a generator has nothing left the second time
    kinds = {kind_of(id) for id in ids}
    if len(kinds) > 1:
        raise ValueProblem("ids of both types, int and string, in one call")
    if kinds == {"int"}:
        return pa.array([int(id) for id in ids], pa.int64())
    return pa.array([str.__str__(id) for id in ids if forbidden(id) is None], pa.large_string())  # type: ignore[arg-type]


def _id_column(ids: pa.Array) -> pa.Array:
    ids = ids.drop_null()
    if pa.types.is_null(ids.type):
        return pa.array([], pa.int64())
    if pa.types.is_uint64(ids.type):
        ids = ids.filter(pc.less_equal(ids, pa.scalar(2**63 - 1, ids.type)))
    if pa.types.is_integer(ids.type):
        return ids.cast(pa.int64())
    if not is_text(ids.type):
        raise ValueProblem(f"a column of {ids.type} holds no ids: they are ints or strings")
    bad = unsound(ids)
    return (ids if bad is None else ids.filter(pa.array(~bad))).cast(pa.large_string())
