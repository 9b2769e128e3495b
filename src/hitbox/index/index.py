"""Index: subscriptions by id on top of a matcher; what users hold.

    subscribe   text -> language -> boxes -> matcher.change           catalog: id, priority, text, box numbers
    match       event -> keys -> matcher.match -> box numbers -> slots -> ids
                              each slot once, residual predicates checked, most urgent first

Threads: any number may match while one changes. A change has two parts (read_write_lock.py). What takes long or may
fail comes first, while matching goes on: parsing, compiling, new segments, new columns. Then all of it is committed in
one short section that is alone and that no signal handler can interrupt. So a change is seen whole or not at all, and
an interrupt or a lack of memory leaves the index as it was or as it was to be.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Self, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hitbox import language
from hitbox.encoding import arrow_compute as pc
from hitbox.encoding import events, inputs
from hitbox.encoding.arrays import DEFAULT_PRIORITY, I32, I64, LEVELS, Boxes, Points
from hitbox.encoding.codecs import decoded, is_text, unsound
from hitbox.encoding.documents import Event
from hitbox.encoding.fitting import FOR_EVENTS, check_on_error
from hitbox.encoding.inputs import as_mapping
from hitbox.encoding.keys import Derived, Keys
from hitbox.encoding.schema import OpenSchema, Schema
from hitbox.encoding.string_dictionary import Relabel, Texts
from hitbox.encoding.values import brief, forbidden
from hitbox.engine import Anchored, Engine
from hitbox.engine.event_encoder import EventEncoder
from hitbox.errors import HitboxError, NeverMatches, TableError, TooExpensive, UnknownSubscription, ValueProblem
from hitbox.index import state
from hitbox.index.bad_events import Found, Sorter, Where, in_order, left_out
from hitbox.index.catalog import ID_TYPES, NO_ROWS, Id, Row, Rows, kind_of, new_id
from hitbox.index.explain import BothSides, Explained, NearMisses, describe_box, explain_without_values
from hitbox.index.load import bulk_load
from hitbox.index.load.predicate_cache import PredicateCache
from hitbox.index.load.predicate_text import PredicateTexts
from hitbox.index.match_budget import MatchBudget, Report
from hitbox.index.matches import Matches, Transition
from hitbox.index.read_write_lock import ReadWriteLock
from hitbox.index.resolver import Filters, Resolver
from hitbox.index.state import IndexState
from hitbox.index.unseen import SAMPLED, RecentFields, Unseen, unseen
from hitbox.language import DEFAULT_LIMITS, Explanation, Limits, Predicate
from hitbox.storage import snapshot
from hitbox.storage.retention import Keep, Moment

CHUNK = 16_384
"""Events that are matched under one lock at most,"""
FIRST_CHUNK = 4096
"""and before it is known how long that takes."""
SLICE_SECONDS = 0.25
"""Seconds for which a long reader holds the lock at a time, so that a change need not wait for all of it."""
MIN_SLICE = 64
"""Events of the smallest slice; and strings up to which a change asks first whether they are known."""
MOST = 2**62
"""More than any limit on the number of matches."""
MANY_WORDS = 50_000
"""Strings that a dictionary takes before it is worth looking for unused ones."""
MOST_THREADS = 10_000
NO_BOXES = Boxes.of([])

Also = Callable[[], None] | None
"""What the owner of an index changes together with it, in the same commit."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a bulk load did: how many rows went in, and (row number, message) of those that did not."""

    loaded: int
    errors: list[tuple[int, str]]


class Index:
    """Standing subscriptions that can be asked which of them want an event.

    >>> index = Index(Schema({"price": "float", "city": "string"}))
    >>> index.subscribe("s1", "price BETWEEN 10 AND 20 AND city = 'Paris'", priority=7)
    >>> index.subscribe("s2", "price > 5")
    >>> index.match({"price": 12.5, "city": "Paris"})
    ['s1', 's2']

    Any number of threads may use it. A change is all or nothing, also where a signal handler raises (Ctrl-C) or memory
    runs out. A forked child may use it, unless another thread was committing a change at that moment: then every use is
    a HitboxError that says so. A copy, shallow or deep, is an index of its own; `pickle` writes what a snapshot holds.
    """

    noun = "subscription"
    """What the messages call an entry."""

    def __init__(
        self,
        schema: Schema | Mapping[str, Any] | None = None,
        matcher: str = "auto",
        *,
        limits: Limits = DEFAULT_LIMITS,
        **options: object,
    ):
        """Without a schema it is open: attributes come from the predicates, and events may have any fields."""
        keys = Keys(OpenSchema() if schema is None else schema if isinstance(schema, Schema) else Schema(schema))
        self._set_state(IndexState.empty(keys, matcher, options), limits, options)

    @classmethod
    def of(
        cls, contents: IndexState, limits: Limits = DEFAULT_LIMITS, options: Mapping[str, object] | None = None
    ) -> Self:
        """An index on what is there already; `options` are those that its matcher was made with."""
        index = cls.__new__(cls)
        index._set_state(contents, limits, options or {})
        return index

    def _set_state(self, contents: IndexState, limits: Limits, options: Mapping[str, object]) -> None:
        if not isinstance(limits, Limits):
            raise ValueProblem(f"limits are hitbox.Limits, not {brief(limits)}")
        self.schema, self.matcher, self.limits = contents.keys.schema, contents.name, limits
        self._options = dict(options)
        self._state = contents
        self._keys, self._catalog, self._matcher = contents.keys, contents.catalog, contents.matcher
        self._engine = contents.matcher if isinstance(contents.matcher, Engine) else None
        self._encoder = EventEncoder(contents.keys, contents.use.used)
        self._many_words: dict[int, int] = {}
        self._texts = PredicateTexts(self.schema, limits)
        self._parsed = PredicateCache(self._parse_stored)
        self._recent, self._calls = RecentFields(), -1
        self._changes = 0
        self._lock = ReadWriteLock()

    # ---- changing

    def subscribe(
        self, id: Id, where: str, *, priority: int = DEFAULT_PRIORITY, about: Mapping[str, Any] | None = None
    ) -> None:
        """Add a subscription, or replace the one that has this id."""
        self._put(id, where, priority, about)

    def _put(self, id: Id, where: str, priority: int, about: Mapping[str, Any] | None, also: Also = None) -> None:
        kind = kind_of(id)
        id = new_id(id)
        _check_priority(priority)
        predicate = self._texts.read(where)
        said = {} if about is None else as_mapping(about)
        if said is None:
            raise ValueProblem(f"about is a mapping of attribute to value, not {type(about).__name__}")
        values = dict(said)
        if values and self.schema.is_open:
            raise ValueProblem("an open index has no information attributes: make it with a schema to say `about`")
        with self._lock.prepare:
            if values:
                events.event_keys(self._keys, values, role="information")  # checks names and values before any change
            self._catalog.check_kind(kind)
            self._derive(predicate.derived())
            strings = predicate.strings(self._keys)
            if values:
                bulk_load.merge_strings(strings, bulk_load.about_strings(self.schema, values))
            if strings:
                self._admit(strings)
            boxes, exact, program = predicate.boxes(self._keys, bulk_load.about_box(self._keys, values), priority)
            if not len(boxes):
                lost = ", and what it says about itself is not kept" if values else ""
                _warn_never(f"{self.noun} {id!r} can never match{lost}: {where[:200]}")
            self._settle(kind)
            row = Row(id, where, int(priority), exact, program)
            self._apply(*self._state.changing_one(self._catalog.slot(id), row, boxes), also)

    def unsubscribe(self, id: Id) -> None:
        """Remove a subscription; an id that is not there is an error."""
        self._remove(id)

    def _remove(self, id: Id, also: Also = None) -> None:
        with self._lock.prepare:
            self._apply(*self._state.changing_one(self._slot(id)), also)

    def unsubscribe_many(self, ids: Sequence[Id] | pa.Array) -> int:
        """Remove those of `ids` that are there, in one go; how many they were."""
        return self._remove_many(ids)

    def _remove_many(self, ids: Sequence[Id] | pa.Array, also: Also = None) -> int:
        with self._lock.prepare:
            slots = np.unique(self._catalog.slots_of(_id_array(ids)))
            slots = slots[slots >= 0]
            self._change(slots, also=also)
        return len(slots)

    def load(self, table: Any, *, on_error: str = "raise") -> LoadReport:
        """Add or replace many subscriptions, in either table layout; of rows with one id the last counts.

        The table is a pyarrow.Table, a pandas or polars DataFrame, a structured NumPy array, any object with
        `__arrow_c_stream__`, or a list of mappings.

        A row that does not fit is an error that names it, and nothing is loaded; with `on_error="return"` the good
        rows are loaded and the bad ones come back.
        """
        check_on_error(on_error)
        draft = bulk_load.read(inputs.subscriptions(table), self.schema, self.limits)
        _refuse(draft.errors, on_error)
        with self._lock.prepare:
            self._derive(draft.derived())
            self._admit(draft.strings(self._keys))
            encoded = bulk_load.last_of_each(draft.encode(self._keys, self.limits))
            _refuse(draft.errors, on_error)
            self._catalog.check_kind("int" if pa.types.is_integer(encoded.ids.type) else "string")
            never = int((encoded.count == 0).sum())
            if never:
                _warn_never(f"{never} of the subscriptions loaded can never match", stacklevel=3)
            self._put_all(encoded)
        return LoadReport(len(encoded.ids), sorted(draft.errors.items()))

    def put(self, encoded: bulk_load.Encoded) -> None:
        """Add or replace subscriptions that are already encoded with the keys of this index; each id occurs once."""
        with self._lock.prepare:
            self._put_all(encoded)

    def _put_all(self, encoded: bulk_load.Encoded) -> None:
        old = self._catalog.slots_of(encoded.ids)
        self._settle("int" if pa.types.is_integer(encoded.ids.type) else "string")
        self._change(old[old >= 0], encoded.rows(), encoded.boxes)

    def _change(self, gone: I64, come: Rows = NO_ROWS, boxes: Boxes = NO_BOXES, also: Also = None) -> None:
        """Some slots go, some rows come: all at once, or not at all. The caller prepares (read_write_lock.py)."""
        self._apply(*self._state.changing(gone, come, boxes), also)

    def _apply(self, switch: Callable[[], None], commit: Callable[[], None], also: Also = None) -> None:
        """Commit a change of the matcher and one of the catalog, then tidy up."""
        self._commit(switch, commit, also)
        if self._engine is not None:
            self._engine.merge_behind(self._lock.prepare)
        else:
            self._commit(self._matcher.prepare())
        if (tidy := self._catalog.prepare()) is not None:
            self._commit(tidy)
        for number, words in self._keys.dictionaries.items():
            most = self._many_words.setdefault(number, max(MANY_WORDS, 2 * len(words)))
            if len(words) > most and not self._keys.shared:
                self._forget_words()

    def _commit(self, *steps: Also) -> None:
        """Take prepared steps while nobody matches and no signal handler runs. Each is short."""
        if any(steps):
            with self._lock.commit:
                self._changes += 1  # readers that work in several slices notice it
                for step in steps:
                    if step is not None:
                        step()

    def _settle(self, kind: str) -> None:
        if kind != self._catalog.kind:
            self._commit(self._catalog.settled(kind))

    def _derive(self, wanted: Mapping[str, Derived]) -> None:
        """Give keys to functions of attributes, as far as there is room. No answer changes by it."""
        if not wanted:
            return
        prepared = self._state.deriving(wanted, self.limits.derived, self._options)
        if prepared is None:
            return
        contents, widen = prepared
        encoder = EventEncoder(contents.keys, contents.use.used)

        def switch() -> None:
            self._state, self._keys, self._matcher, self._encoder = contents, contents.keys, contents.matcher, encoder

        self._commit(widen, switch)

    def _admit(self, strings: Mapping[int, Texts]) -> None:
        """Give labels to strings; where labels move, move boxes and programs. No answer changes by it."""
        if sum(map(len, strings.values())) <= MIN_SLICE and self._keys.knows(strings):
            return
        relabels, admit = self._keys.admitting(strings)
        self._commit(self._state.relabelling(relabels) if relabels else None, admit)

    def _forget_words(self) -> None:
        """Take strings that no box and no program speaks of any more out of the dictionaries; no label moves."""
        for number, used in self._state.labels_in_use().items():
            words = self._keys.dictionaries[number]
            self._commit(words.retaining(used))
            self._many_words[number] = max(MANY_WORDS, 2 * len(words))

    # ---- asking

    def match(
        self,
        event: Event,
        where: str | None = None,
        *,
        limit: int | None = None,
        on_expensive: Report | None = None,
        budget: MatchBudget | None = None,
    ) -> list[Id]:
        """The ids of the subscriptions that want this event, most urgent first; with `limit` only the first ones.

        A subscription that takes more than `Limits.match_steps` on the event is an error, TooExpensive. With
        `on_expensive`, a function of that error, it is a report: this subscription does not match, and the function is
        told. `budget` says what each subscription may take; it is for programs that keep accounts.
        """
        found: list[Id] = self._match_one(event, where, limit, True, self._given(on_expensive, budget))
        return found

    def match_array(
        self,
        event: Event,
        where: str | None = None,
        *,
        limit: int | None = None,
        on_expensive: Report | None = None,
        budget: MatchBudget | None = None,
    ) -> pa.Array:
        """The ids that match as an Arrow array, int64 or large_string: several times faster where there are many."""
        return self._match_one(event, where, limit, False, self._given(on_expensive, budget))

    def _given(self, report: Report | None, budget: MatchBudget | None) -> MatchBudget | None:
        """What the caller says that a match may spend; None if it says nothing."""
        if report is None:
            return budget
        if budget is not None:
            raise ValueProblem("a budget does its own reporting: give `budget` or `on_expensive`, not both")
        if not callable(report):
            raise ValueProblem(f"on_expensive is a function of the problem, not {brief(report)}")
        return MatchBudget(self.limits.match_steps, report)

    def _match_one(
        self, event: Event, where: str | None, limit: int | None, as_list: bool, budget: MatchBudget | None
    ) -> Any:
        if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
            raise ValueProblem(f"limit is a whole number of at least 0, not {limit!r}")
        filters = None if where is None else self._filters(where, 1)
        with self._lock.read:
            catalog = self._catalog
            ids = catalog.ids
            if filters is None and self._engine is not None:
                most = -1 if limit is None else min(limit, MOST)
                holding = self._holding
                if not catalog.plain:
                    holding = partial(self._holding, now=datetime.now(UTC), budget=budget)
                anchored = self._anchored(event) if self._state.anchors.size else None
                found = self._engine.match_event(
                    self._encoder.plan, catalog.owners, ids.native, event, most, holding, as_list, anchored
                )
                answer = found if as_list else ids.array(*found)
            else:
                slots = self._resolver(budget=budget).one(self._encoder.one(event), event, filters, limit)
                answer = ids.list(slots) if as_list else ids.take(slots)
        self._calls = calls = self._calls + 1
        if not calls & (SAMPLED - 1):
            self._recent.note(event)
        return answer

    def _anchored(self, event: Event) -> Anchored:
        try:
            return self._state.anchors.of(event, self._keys)
        except Exception:
            self._encoder.one(event)  # says what is wrong with the event
            raise

    def _holding(
        self, event: Event, slots: list[int], now: datetime | None = None, budget: MatchBudget | None = None
    ) -> list[bool]:
        return self._resolver(now, budget).holding(self._encoder.one(event), event, slots)

    def match_change(self, old: Event | None, new: Event | None, *, budget: MatchBudget | None = None) -> Transition:
        """What a change of a document means for each subscription: those that match `new` and not `old` enter, those
        that match `old` and not `new` leave, and those that match both stay. None stands for no document.

        `OLD.` in a predicate is the image before the one that is matched: for `new` it is `old`, for `old` there is
        none. A subscription that is too expensive on one of the two is an error; if the budget takes reports, it is in
        none of the three.
        """
        for image in (old, new):
            if image is not None and as_mapping(image) is None:
                raise ValueProblem(f"an image is a mapping of attribute to value, or None, not {brief(image)}")
        both: Event = {"old": old, "new": new}
        named = any(name in self.schema or name in self.schema.objects for name in both)
        budget = budget or MatchBudget(self.limits.match_steps)
        with self._lock.read:
            resolver, ids = self._resolver(budget=budget), self._catalog.id_list
            before = [] if old is None else ids(resolver.one(self._encoder.one(old), old, None, None))
            asked = new if named else both
            after = (
                [] if asked is None or new is None else ids(resolver.one(self._encoder.one(asked), asked, None, None))
            )
        old_ids, new_ids = set(before), set(after)
        unknown = {id for id, _ in budget.over}
        return Transition(
            [id for id in after if id not in old_ids and id not in unknown],
            [id for id in before if id not in new_ids and id not in unknown],
            [id for id in after if id in old_ids],
        )

    def match_levels(
        self, event: Event, where: str | None = None, *, budget: MatchBudget | None = None
    ) -> Iterator[tuple[int, list[Id]]]:
        """(priority, ids) level by level, most urgent first, each determined when it is asked for.

        Where the index changes between two levels, the levels that are left are asked of the changed index; no id is
        handed out twice.
        """
        filters, now = self._filters(where, 1), datetime.now(UTC)
        budget = budget or MatchBudget(self.limits.match_steps)
        given: list[list[Id]] = []
        last, seen_changes = LEVELS, -1
        while True:
            with self._lock.read:
                if seen_changes != self._changes:
                    seen_changes = self._changes
                    points = self._encoder.one(event)
                    levels = self._resolver(now, budget).levels(points, event, filters)
                    known = {id for ids in given for id in ids}
                level, slots = next(levels, (-1, None))
                if slots is None:
                    return
                ids = self._catalog.id_list(slots)
            if level < last:
                fresh = [id for id in ids if id not in known] if known else ids
                last = level
                given.append(fresh)
                if fresh:
                    yield level, fresh

    def match_batch(
        self,
        events_: Any,
        where: Where = None,
        *,
        threads: int = 1,
        on_error: str = "raise",
        on_expensive: Report | None = None,
        budget: MatchBudget | None = None,
    ) -> Matches:
        """The matches of many events: a table with a column per attribute, or a list of events.

        A table is a pyarrow.Table, a pandas or polars DataFrame, a structured NumPy array, or any object with
        `__arrow_c_stream__`.

        on_error: what happens if a value, or the event's own `where`, does not fit, or if a subscription takes too many
            steps on an event. "raise": an error that names the first such event. "null": a value that does not fit is
            null, and what is unknown then does not match. "return": such an event matches nothing. With these two the
            `errors` of the result list the events, with the reasons.
        on_expensive: only for subscriptions that take too many steps, as for `match`; the problem's `event` is the
            number of the event
        """
        check_on_error(on_error, FOR_EVENTS)
        if on_error != "raise" and not (on_expensive is None and budget is None):
            other = "budget" if on_expensive is None else "on_expensive"
            raise ValueProblem(f"with on_error={on_error!r} the result says what was too expensive: omit `{other}`")
        budget = self._given(on_expensive, budget)
        events_ = inputs.events(events_)
        if not isinstance(threads, int) or isinstance(threads, bool) or not 1 <= threads <= MOST_THREADS:
            raise ValueProblem(f"threads is a whole number from 1 to {MOST_THREADS}, not {brief(threads)}")
        if on_error != "raise":
            return self._match_sorted(events_, where, threads, on_error)[0]
        parts = list(
            self._match_slots(events_, where, threads, lambda slots, ends: self._catalog.ids.take(slots, ends), budget)
        )
        if len(parts) == 1:
            return Matches(*parts[0])
        ends = np.cumsum([0] + [int(offsets[-1]) for offsets, _ in parts])
        shifted = [offsets[1:] + end for (offsets, _), end in zip(parts, ends[:-1], strict=True)]
        ids = pa.concat_arrays([ids for _, ids in parts])
        return Matches(np.concatenate([np.zeros(1, np.int64), *shifted]), ids)

    def match_with_priorities(
        self,
        events_: pa.Table | Sequence[Event],
        where: Where,
        threads: int,
        *,
        on_error: str = "raise",
        budget: MatchBudget | None = None,
        match_steps: int | None = None,
    ) -> Found:
        """The matches of many events, and the priority of each match. A budget is for on_error="raise"; `match_steps`
        stand in for those of the limits."""
        if on_error != "raise":
            return self._match_sorted(events_, where, threads, on_error, match_steps)
        budget = budget or MatchBudget(match_steps or self.limits.match_steps)
        offsets, ids, priority = [np.zeros(1, np.int64)], [], []

        def of(slots: I32, ends: I64) -> tuple[pa.Array, NDArray[np.uint8]]:
            return self._catalog.ids.take(slots, ends), self._catalog.priority[slots]

        for ends, (some, levels) in self._match_slots(events_, where, threads, of, budget):
            offsets.append(ends[1:] + offsets[-1][-1])
            ids.append(some)
            priority.append(levels)
        whole = ids[0] if len(ids) == 1 else pa.concat_arrays(ids)
        return Matches(np.concatenate(offsets), whole), np.concatenate(priority)

    def _match_sorted(
        self, events_: Any, where: Where, threads: int, on_error: str, match_steps: int | None = None
    ) -> Found:
        """The matches of those that fit, in slices; on_error is "null" or "return"."""
        if isinstance(where, str):
            self._asked(where)  # of no event in particular
        elif where is not None:
            where = self._texts_of(where, len(events_))
        errors: dict[int, str] = {}
        found: list[Found] = []
        numbers = [np.zeros(0, np.int64)]
        for start in range(0, max(1, len(events_)), CHUNK):
            some = _part(events_, start, start + CHUNK)
            asked = where if where is None or isinstance(where, str) else where[start : start + CHUNK]
            with self._lock.read:
                sort = Sorter(self._keys, self._encoder.one, self._asked, on_error)
                parts, bad = sort(some, asked, start)
            errors |= bad
            for part in parts:
                budget = MatchBudget(match_steps or self.limits.match_steps, partial(_note, errors, part.numbers))
                found.append(self.match_with_priorities(part.events, part.where, threads, budget=budget))
                numbers.append(part.numbers)
        kind = ID_TYPES[self._catalog.kind]
        merged = in_order(found, np.concatenate(numbers), len(events_), kind, errors)
        return left_out(merged, sorted(errors)) if on_error == "return" else merged

    def _match_slots(
        self,
        events_: Any,
        where: Where,
        threads: int,
        of: Callable[[I32, I64], T],
        budget: MatchBudget | None,
    ) -> Iterator[tuple[I64, T]]:
        """(offsets, what `of` says of the slots) slice by slice; each is made under the read lock."""
        if not isinstance(events_, pa.Table):
            events_ = list(events_)  # nobody else changes it
        filters, now = self._filters(where, len(events_)), datetime.now(UTC)
        encoded = _Encoded(self, events_)
        start, size = 0, FIRST_CHUNK
        while start == 0 or start < len(events_):
            with self._lock.read:
                begun = time.perf_counter()
                points = encoded.points(start, size)
                end = start + len(points)
                chunk = _part(events_, start, end)
                resolver = self._resolver(now, budget, start)
                offsets, slots = resolver.many(points, chunk, filters and filters[start:end], threads)
                found = offsets, of(slots, offsets)
                taken = time.perf_counter() - begun
            yield found
            start = end if len(points) else start + size
            size = min(CHUNK, max(MIN_SLICE, int(len(points) * min(SLICE_SECONDS / taken, 8))))
        self._calls = calls = self._calls + 1
        if not calls & (SAMPLED - 1) or len(events_) >= FIRST_CHUNK:
            self._recent.note_batch(events_)

    def _filters(self, where: Where, count: int) -> Filters:
        """What each event asks of the subscriptions."""
        if where is None:
            return None
        texts = self._texts_of(where, count)
        for text in texts:
            if text is not None and not isinstance(text, str):
                raise ValueProblem(f"`where` of an event is a text or None, not {brief(text)}")
        made = {text: self._asked(text) for text in set(texts) if text is not None}
        return [None if text is None else made[text] for text in texts]

    def _texts_of(self, where: str | Sequence[str | None], count: int) -> list[Any]:
        """One text per event."""
        if not isinstance(where, Iterable) or getattr(where, "ndim", 1) != 1:  # an array of NumPy may have no length
            raise ValueProblem(f"`where` is a text, or a list with a text per event, not {brief(where)}")
        texts = [where] * count if isinstance(where, str) else list(where)
        if len(texts) != count:
            raise TableError(f"{len(texts)} texts in `where` for {count} events")
        return texts

    def _asked(self, where: str) -> Predicate:
        return language.parse(where, self.schema, role="information", limits=self.limits)

    def _resolver(
        self, now: datetime | None = None, budget: MatchBudget | None = None, first: int | None = None
    ) -> Resolver:
        """`now` is what NOW() is: one value per call, however many parts it has. `first` is the number of the first
        event, of many."""
        return Resolver(
            self._keys,
            self._matcher,
            self._catalog,
            self._predicate,
            self.limits,
            now or datetime.now(UTC),
            self._state.anchors,
            self._state.boxes,
            self._state.use.used,
            budget or MatchBudget(self.limits.match_steps),
            first,
        )

    # ---- explaining

    def explain(
        self,
        event: Event,
        id: Id | None = None,
        where: str | None = None,
        *,
        misses: int = 0,
        among: Callable[[Id], bool] | None = None,
    ) -> Explanation | BothSides | Explained:
        """Why a subscription matched or did not; without an id the matches and, if asked, the nearest misses. `among`:
        the misses are those nearest of the ids for which it is true; the others have no influence on them."""
        if id is not None:
            with self._lock.read:
                explained = self._explaining(event, self._slot(id), where)
            return explained()
        if not isinstance(misses, int):
            raise ValueProblem(f"misses is a whole number, not {brief(misses)}")
        if misses <= 0:
            return Explained(self.match(event, where), {})
        return self._with_misses(event, where, misses, among)

    def _with_misses(
        self, event: Event, where: str | None, misses: int, among: Callable[[Id], bool] | None
    ) -> Explained:
        """It looks at every subscription, so it gives the lock back between slices; the index may change meanwhile."""
        filters = self._filters(where, 1)
        near: NearMisses | None = None
        while True:
            with self._lock.read:
                points = self._encoder.one(event)  # in every slice: labels may have moved
                if near is None or near.compactions != self._catalog.compactions:  # slots have moved: begin again
                    slots = self._resolver().one(points, event, filters, None)
                    matched = self._catalog.id_list(slots)
                    near = NearMisses(misses, slots, self._catalog.compactions, among)
                until = time.perf_counter() + SLICE_SECONDS / 25
                look = partial(near.look, self._state.boxes, self._catalog, points, self._keys)
                while look() and time.perf_counter() < until:
                    pass
                if near.done(self._catalog):
                    found = [
                        (self._catalog.ids[slot], self._explaining(event, slot, where))
                        for slot in near.best(self._catalog)
                    ]
                    break
        known = set(matched)
        explained = [(id, explain()) for id, explain in found if id not in known]
        missed = [(id, why) for id, why in explained if not why.matched]
        missed.sort(key=lambda one: one[1].distance)
        return Explained(matched, dict(missed[:misses]))

    def _explaining(self, event: Event, slot: int, where: str | None) -> Callable[[], Explanation | BothSides]:
        """Takes all that an explanation needs while the lock is held; calling the result makes it, without the lock."""
        values = events.normal(self._keys, event)
        self._encoder.one(event)  # checks names, roles and types
        about = self._resolver().about(slot) if where is not None and self._can_match(slot) else None
        return partial(self._explained, self._where(slot), values, where, about)

    def _explained(
        self, text: str, values: Mapping[str, Any], where: str | None, about: dict[str, Any] | None
    ) -> Explanation | BothSides:
        steps = self.limits.match_steps
        verdict = language.explain(self._parsed(text), values, steps=steps)
        if where is None:
            return verdict
        asked = self._asked(where)
        other = explain_without_values(asked) if about is None else language.explain(asked, about, steps=steps)
        return BothSides(verdict, other)

    def check(self, events_: pa.Table | Sequence[Event] | None = None) -> list[Unseen]:
        """The attributes that subscriptions speak of and that none of these events has, which may be misspelt; those of
        most subscriptions first. Without events: that none of the events had that were matched lately, of which a
        sample is looked at."""
        recent = self._recent
        if events_ is not None:
            recent = RecentFields(generation=MOST)
            recent.note_batch(inputs.events(events_), every=1)
        with self._lock.read:
            return unseen(self._state, recent, self._predicate) if recent else []

    def where(self, id: Id) -> str:
        """The predicate of a subscription; for one loaded from bounds, the text that says the same."""
        with self._lock.read:
            return self._where(self._slot(id))

    def about(self, id: Id) -> dict[str, Any]:
        """What a subscription says about itself; nothing of one that can never match, of which it is not kept."""
        with self._lock.read:
            return self._resolver().about(self._slot(id))

    def can_match(self, id: Id) -> bool:
        """Whether any event can match a subscription; False of one like `a > 3 AND a < 2`."""
        with self._lock.read:
            return self._can_match(self._slot(id))

    def _can_match(self, slot: int) -> bool:
        return bool(self._catalog.counts[slot])

    def priority(self, id: Id) -> int:
        with self._lock.read:
            return int(self._catalog.priority[self._slot(id)])

    def parse(self, where: str) -> Predicate:
        """Check a predicate without subscribing."""
        return language.parse(where, self.schema, role="criteria", limits=self.limits)

    def _parse_stored(self, where: str) -> Predicate:
        """The tree of a subscription, which was within the limits of the index that it was made in."""
        return language.parse(where, self.schema, role="criteria", limits=self.limits.for_stored())

    def _where(self, slot: int) -> str:
        text: str | None = self._catalog.where[slot]
        if text is None:
            numbers = self._catalog.boxes_of(np.array([slot]))
            text = describe_box(self._keys, self._state.boxes(numbers)[0]) if len(numbers) else "FALSE"
        return text

    def _predicate(self, slot: int) -> Predicate:
        return self._parsed(self._where(slot))

    # ---- as a container

    def __len__(self) -> int:
        return self._catalog.living

    def __contains__(self, id: object) -> bool:
        try:
            kind_of(id)
        except HitboxError:
            return False
        with self._lock.read:
            return self._catalog.slot(id) is not None  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Id]:
        with self._lock.read:
            ids = self._catalog.living_ids()
        return (id for start in range(0, len(ids), CHUNK) for id in ids[start : start + CHUNK].to_pylist())

    def __repr__(self) -> str:
        return f"<Index of {len(self)} subscriptions on {len(self.schema)} attributes, {type(self._matcher).__name__}>"

    @property
    def takes_intervals(self) -> bool:
        """Whether events may carry intervals, which depends on the matcher."""
        return self._matcher.intervals

    def nbytes(self) -> dict[str, int]:
        """Bytes held, by part."""
        words = sum(d.nbytes() for d in self._keys.dictionaries.values())
        boxes = self._matcher.nbytes() + self._state.anchors.nbytes()
        return {"matcher": boxes, "catalog": self._catalog.nbytes(), "dictionaries": words}

    def _slot(self, id: Id) -> int:
        kind_of(id)
        slot = self._catalog.slot(id)
        if slot is None:
            raise UnknownSubscription(f"no {self.noun} has the id {id!r:.100}")
        return slot

    # ---- on disk

    def save(self, path: str | os.PathLike[str], *, keep: Keep | None = None) -> int:
        """Write a snapshot version under `path` and make it the current one; its number.

        keep: which versions stay: the last 5, or those that were current in the last "7 days" (or a timedelta). It is
            remembered; if it was never given, the last two stay.
        """
        with self._lock.prepare:
            self._commit(self._catalog.compact())
            contents = self._state
            return snapshot.write(path, contents.facts(), contents.arrays() | self._keys.arrays(), keep)

    def compacted(self) -> IndexState:
        """What the index holds, ready to be written; nobody may change the index meanwhile."""
        with self._lock.prepare:
            self._commit(self._catalog.compact())
        return self._state

    def relabelling(self, relabels: Mapping[int, Relabel]) -> Callable[[], None]:
        """Prepare boxes and programs for new keys of strings; calling the result makes the change."""
        return self._state.relabelling(relabels)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), *self._written())

    def __copy__(self) -> Self:
        """An index of its own, as `copy.deepcopy` makes it: half of one cannot be shared."""
        return _restored(type(self), *self._written())

    def __deepcopy__(self, memo: object) -> Self:
        return self.__copy__()

    def _written(self) -> tuple[dict[str, Any], dict[str, Any], Limits, dict[str, object]]:
        """What a snapshot would hold, as arrays that nobody else changes; the limits; the matcher's options."""
        with self._lock.prepare:
            self._commit(self._catalog.compact())
            arrays = self._state.arrays() | self._keys.arrays()
            own = {name: np.array(array) for name, array in arrays.items()}
            return self._state.facts(), own, self.limits, self._options

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        version: int | None = None,
        *,
        as_of: Moment | None = None,
        matcher: str | None = None,
        limits: Limits = DEFAULT_LIMITS,
        verify: bool = True,
        mapped: bool = True,
        **options: object,
    ) -> Self:
        """A snapshot, memory-mapped; it takes changes, which stay in memory until saved.

        version: its number (default: the current one)
        as_of: the version that was current at this time, such as "2026-01-31 12:00:00" (UTC) or a datetime
        verify: read every byte and check it (about 0.1 s per GB); False checks sizes, and that the content can be used
        mapped: False copies the files into memory, where nothing that happens to them later matters
        """
        version = snapshot.chosen(path, version, as_of)
        return cls.of(state.read(path, version, matcher, verify, options, mapped), limits, options)


class _Encoded:
    """The points of many events, made in a few large parts, and again where the index has changed in between: labels
    of strings may have moved."""

    def __init__(self, index: Index, events_: Any):
        self._index, self._events = index, events_
        self._start, self._changes = 0, -1
        self._points: Points | None = None
        self._size = FIRST_CHUNK

    def points(self, start: int, size: int) -> Points:
        """At most `size` events from `start` on. The caller reads the index."""
        known, changes = self._points, self._index._changes
        if known is None or changes != self._changes or start >= self._start + len(known):
            begun = time.perf_counter()
            known = self._points = self._encode(start)
            taken = time.perf_counter() - begun
            self._start, self._changes = start, changes
            self._size = min(CHUNK, max(MIN_SLICE, int(self._size * min(SLICE_SECONDS / 4 / max(taken, 1e-9), 8))))
        at = start - self._start
        return known if not at and len(known) <= size else known[at : at + size]

    def _encode(self, start: int) -> Points:
        part = _part(self._events, start, start + self._size)
        if isinstance(part, pa.Table):
            return self._index._encoder.table(part, start)
        return self._index._encoder.many(part, start)


def _part(events_: Any, start: int, end: int) -> Any:
    """Some of the events; all of them are not copied."""
    if start == 0 and end >= len(events_):
        return events_
    return events_.slice(start, end - start) if isinstance(events_, pa.Table) else events_[start:end]


def _note(errors: dict[int, str], numbers: I64, problem: TooExpensive) -> None:
    """A subscription is too expensive on an event of some of a batch, which have these numbers there."""
    assert isinstance(problem.event, int)
    errors.setdefault(int(numbers[problem.event]), str(TooExpensive(problem.id, None, problem.steps)))


def _restored(
    cls: type[T], facts: Mapping[str, Any], arrays: Mapping[str, Any], limits: Limits, options: Mapping[str, object]
) -> T:
    """The index that was pickled or copied."""
    keys = state.keys_of(facts, arrays, state.IN_MEMORY)
    contents = state.part(facts, keys, arrays, "", None, options)
    return cls.of(contents, limits, options)  # type: ignore[attr-defined,no-any-return]


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
