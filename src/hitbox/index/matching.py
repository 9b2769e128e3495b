"""Matching: which subscriptions want an event, or each of many.

    event -> keys -> matcher.match -> box numbers -> slots -> ids
                     each slot once, residual predicates checked, most urgent first

A single event takes these steps in one native call, where the engine is the matcher. Many events are matched in slices,
so that a change need not wait for all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hitbox.encoding import inputs
from hitbox.encoding.arrays import I32, I64, LEVELS, Points
from hitbox.encoding.documents import Event
from hitbox.encoding.events import with_information
from hitbox.encoding.fitting import FOR_EVENTS, check_on_error
from hitbox.encoding.inputs import as_mapping
from hitbox.encoding.json_events import JsonEvents, read_event
from hitbox.encoding.values import EPOCH, brief
from hitbox.engine import _kernels
from hitbox.engine.document_plan import Documents
from hitbox.errors import TableError, TooExpensive, ValueProblem
from hitbox.index.bad_events import Found, Sorter, Where, in_order, left_out
from hitbox.index.catalog import ID_TYPES, Id
from hitbox.index.guarded_state import GuardedState
from hitbox.index.match_budget import MatchBudget, Report
from hitbox.index.matches import Matches, Transition
from hitbox.index.resolver import Filters
from hitbox.index.unseen import SAMPLED, RecentFields

CHUNK = 16_384
"""Events that are matched under one lock at most,"""
FIRST_CHUNK = 4096
"""and before it is known how long that takes."""
SLICE_SECONDS = 0.25
"""Seconds for which a long reader holds the lock at a time, so that a change need not wait for all of it."""
MIN_SLICE = 64
"""Events of the smallest slice."""
MOST = 2**62
"""More than any limit on the number of matches."""
MOST_THREADS = 10_000
T = TypeVar("T")


class Matching:
    """`recent`: the fields of the events that were matched lately, of which a sample is looked at."""

    def __init__(self, held: GuardedState):
        self._held = held
        self.recent, self._calls = RecentFields(), -1
        self._made: Any = None, -1, None
        """A native matcher of single events, and the change and the segments that it was made at."""

    def budget(self, report: Report | None, budget: MatchBudget | None) -> MatchBudget | None:
        """What the caller says that a match may spend; None if it says nothing."""
        if report is None:
            return budget
        if budget is not None:
            raise ValueProblem("a budget does its own reporting: give `budget` or `on_expensive`, not both")
        if not callable(report):
            raise ValueProblem(f"on_expensive is a function of the problem, not {brief(report)}")
        return MatchBudget(self._held.limits.match_steps, report)

    def one(
        self,
        event: Any,
        where: str | None,
        limit: int | None,
        as_list: bool,
        budget: MatchBudget | None,
        as_json: bool = False,
    ) -> Any:
        """The ids for an event; `as_json`: for the text of one."""
        if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
            raise ValueProblem(f"limit is a whole number of at least 0, not {limit!r}")
        filters = None if where is None else self.filters(where, 1)
        most = -1 if limit is None else min(limit, MOST)
        with self._held.lock.read:
            native = self._native() if filters is None else None
            answer = None
            if native is not None and (as_json or self._held.state.computes):
                answer = self._document(native, event, as_json, most, as_list, budget)
            if answer is None:
                mapping = read_event(event) if as_json else event
                if native is None:
                    slots = self._held.resolver(budget=budget).one(
                        self._held.encoder.one(mapping), mapping, filters, limit
                    )
                    answer = self._held.catalog.ids.list(slots) if as_list else self._held.catalog.ids.take(slots)
                else:
                    sets = self._sets(mapping) if self._held.state.anchors.size else None
                    answer = native.mapping(mapping, most, as_list, self._holding, sets, budget)
            if not as_list and native is not None:
                answer = self._held.catalog.ids.array(*answer)
        self._calls = calls = self._calls + 1
        if not calls & (SAMPLED - 1):
            self.recent.note(read_event(event) if as_json else event)
        return answer

    def _native(self) -> _kernels.EventMatcher | None:
        """Matches single events where the engine is the matcher; made again after a change and after a merge."""
        held = self._held
        state = held.state
        engine = state.engine
        if engine is None:
            return None
        made: _kernels.EventMatcher
        made, changes, sealed = self._made
        if changes != held.changes or sealed is not engine.content.sealed:
            sealed, catalog = engine.content.sealed, state.catalog
            owners, ids, anchors = catalog.owners, catalog.ids.native, state.anchors.segments
            made = engine.event_matcher(owners, ids, anchors, state.encoder.plan, state.document_plan())
            self._made = made, held.changes, sealed
        return made

    def _document(
        self,
        native: _kernels.EventMatcher,
        event: Any,
        as_json: bool,
        limit: int,
        as_list: bool,
        budget: MatchBudget | None,
    ) -> Any:
        """The ids for an event that native code reads as a document; None if it cannot."""
        if budget is None:
            return native.document(event, as_json, limit, as_list, self._holding, self._held.limits.match_steps)
        (each, together), spent = budget.of_documents(), np.zeros(1, np.int64)
        answer = native.document(event, as_json, limit, as_list, self._holding, each, together, budget, spent)
        if budget.counts or budget.in_all is not None:
            budget.spend(int(spent[0]))
        return answer

    def _sets(self, event: Event) -> Any:
        try:
            return self._held.state.anchors.of(event, self._held.keys)
        except Exception:
            self._held.encoder.one(event)  # says what is wrong with the event
            raise

    def _holding(self, event: Any, slots: list[int], as_json: bool, now: int, budget: MatchBudget | None) -> list[bool]:
        """Whether the predicates of some slots are true of an event. `now` is in microseconds since 1970, -1 if nobody
        looked yet."""
        event = read_event(event) if as_json else event
        moment = None if now < 0 else EPOCH + timedelta(microseconds=now)
        return self._held.resolver(moment, budget).holding(self._held.encoder.one(event), event, slots)

    def change(self, old: Event | None, new: Event | None, budget: MatchBudget | None) -> Transition:
        for image in (old, new):
            if image is not None and as_mapping(image) is None:
                raise ValueProblem(f"an image is a mapping of attribute to value, or None, not {brief(image)}")
        both: Event = {"old": old, "new": new}
        named = any(name in self._held.schema or name in self._held.schema.objects for name in both)
        budget = budget or MatchBudget(self._held.limits.match_steps)
        with self._held.lock.read:
            state, resolver = self._held.state, self._held.resolver(budget=budget)

            def matches(image: Event) -> list[Id]:
                return state.catalog.id_list(resolver.one(state.encoder.one(image), image, None, None))

            before = [] if old is None else matches(old)
            after = [] if new is None else matches(new if named else both)
        old_ids, new_ids = set(before), set(after)
        unknown = {id for id, _ in budget.over}
        return Transition(
            [id for id in after if id not in old_ids and id not in unknown],
            [id for id in before if id not in new_ids and id not in unknown],
            [id for id in after if id in old_ids],
        )

    def levels(self, event: Event, where: str | None, budget: MatchBudget | None) -> Iterator[tuple[int, list[Id]]]:
        filters, now = self.filters(where, 1), datetime.now(UTC)
        budget = budget or MatchBudget(self._held.limits.match_steps)
        given: list[list[Id]] = []
        last, seen_changes = LEVELS, -1
        while True:
            with self._held.lock.read:
                if seen_changes != self._held.changes:
                    seen_changes = self._held.changes
                    points = self._held.encoder.one(event)
                    levels = self._held.resolver(now, budget).levels(points, event, filters)
                    known = {id for ids in given for id in ids}
                level, slots = next(levels, (-1, None))
                if slots is None:
                    return
                ids = self._held.catalog.id_list(slots)
            if level < last:
                fresh = [id for id in ids if id not in known] if known else ids
                last = level
                given.append(fresh)
                if fresh:
                    yield level, fresh

    def batch(
        self,
        events_: Any,
        where: Where,
        threads: int,
        on_error: str,
        on_expensive: Report | None,
        budget: MatchBudget | None,
    ) -> Matches:
        check_on_error(on_error, FOR_EVENTS)
        if on_error != "raise" and not (on_expensive is None and budget is None):
            other = "budget" if on_expensive is None else "on_expensive"
            raise ValueProblem(f"with on_error={on_error!r} the result says what was too expensive: omit `{other}`")
        budget = self.budget(on_expensive, budget)
        events_ = events_ if isinstance(events_, JsonEvents) else inputs.events(events_)
        if not isinstance(threads, int) or isinstance(threads, bool) or not 1 <= threads <= MOST_THREADS:
            raise ValueProblem(f"threads is a whole number from 1 to {MOST_THREADS}, not {brief(threads)}")
        if on_error != "raise":
            return self._sorted_out(events_, where, threads, on_error)[0]

        def ids_of(slots: I32, ends: I64) -> pa.Array:
            return self._held.catalog.ids.take(slots, ends)

        parts = list(self._slots(events_, where, threads, ids_of, budget))
        if len(parts) == 1:
            return Matches(*parts[0])
        ends = np.cumsum([0] + [int(offsets[-1]) for offsets, _ in parts])
        shifted = [offsets[1:] + end for (offsets, _), end in zip(parts, ends[:-1], strict=True)]
        ids = _joined([ids for _, ids in parts])
        return Matches(np.concatenate([np.zeros(1, np.int64), *shifted]), ids)

    def with_priorities(
        self,
        events_: pa.Table | Sequence[Event],
        where: Where,
        threads: int,
        on_error: str = "raise",
        budget: MatchBudget | None = None,
        match_steps: int | None = None,
        now: datetime | None = None,
    ) -> Found:
        if on_error != "raise":
            return self._sorted_out(events_, where, threads, on_error, match_steps)
        budget = budget or MatchBudget(match_steps or self._held.limits.match_steps)
        offsets, ids, priority = [np.zeros(1, np.int64)], [], []

        def of(slots: I32, ends: I64) -> tuple[pa.Array, NDArray[np.uint8]]:
            return self._held.catalog.ids.take(slots, ends), self._held.catalog.priority[slots]

        for ends, (some, levels) in self._slots(events_, where, threads, of, budget, now):
            offsets.append(ends[1:] + offsets[-1][-1])
            ids.append(some)
            priority.append(levels)
        return Matches(np.concatenate(offsets), _joined(ids)), np.concatenate(priority)

    def _sorted_out(
        self, events_: Any, where: Where, threads: int, on_error: str, match_steps: int | None = None
    ) -> Found:
        """The matches of those that fit, in slices; on_error is "null" or "return". A slice is sorted and matched under
        one lock: a new subscription may ask for a value that nobody asked for, and that does not fit."""
        if isinstance(where, str):
            self._held.asked(where)  # of no event in particular
        elif where is not None:
            where = self._texts_of(where, len(events_))
        errors: dict[int, str] = {}
        found: list[Found] = []
        numbers = [np.zeros(0, np.int64)]
        start, size, now = 0, FIRST_CHUNK, datetime.now(UTC)
        while start == 0 or start < len(events_):
            some = _part(events_, start, start + size)
            asked = where if where is None or isinstance(where, str) else where[start : start + size]
            with self._held.lock.read:
                begun = time.perf_counter()
                sort = Sorter(self._held.keys, self._held.encoder.one, self._held.asked, on_error)
                parts, bad = sort(some, asked, start)
                errors |= bad
                for part in parts:
                    note = partial(_note, errors, part.numbers)
                    budget = MatchBudget(match_steps or self._held.limits.match_steps, note)
                    found.append(self.with_priorities(part.events, part.where, threads, budget=budget, now=now))
                    numbers.append(part.numbers)
                start, size = start + size, _next_size(size, time.perf_counter() - begun)
        kind = ID_TYPES[self._held.catalog.kind]
        merged = in_order(found, np.concatenate(numbers), len(events_), kind, errors)
        return left_out(merged, sorted(errors)) if on_error == "return" else merged

    def _slots(
        self,
        events_: Any,
        where: Where,
        threads: int,
        of: Callable[[I32, I64], T],
        budget: MatchBudget | None,
        now: datetime | None = None,
    ) -> Iterator[tuple[I64, T]]:
        """(offsets, what `of` says of the slots) slice by slice; each is made under the read lock."""
        if not isinstance(events_, (pa.Table, JsonEvents)):
            events_ = list(events_)  # nobody else changes it
        filters, now = self.filters(where, len(events_)), now or datetime.now(UTC)
        encoded = _Encoded(self._held, events_)
        start, size = 0, FIRST_CHUNK
        while start == 0 or start < len(events_):
            with self._held.lock.read:
                begun = time.perf_counter()
                points = encoded.points(start, size)
                end = start + len(points)
                chunk = _part(events_, start, end)
                resolver = self._held.resolver(now, budget, start)
                documents = encoded.documents(start)
                offsets, slots = resolver.many(points, chunk, filters and filters[start:end], threads, documents)
                found = offsets, of(slots, offsets)
                taken = time.perf_counter() - begun
            yield found
            start = end if len(points) else start + size
            size = _next_size(len(points), taken)
        self._calls = calls = self._calls + 1
        if not calls & (SAMPLED - 1) or len(events_) >= FIRST_CHUNK:
            self.recent.note_batch(events_)

    def filters(self, where: Where, count: int) -> Filters:
        """What each event asks of the subscriptions."""
        if where is None:
            return None
        texts = self._texts_of(where, count)
        for text in texts:
            if text is not None and not isinstance(text, str):
                raise ValueProblem(f"`where` of an event is a text or None, not {brief(text)}")
        made = {text: self._held.asked(text) for text in set(texts) if text is not None}
        return [None if text is None else made[text] for text in texts]

    def _texts_of(self, where: str | Sequence[str | None], count: int) -> list[Any]:
        """One text per event."""
        if not isinstance(where, Iterable) or getattr(where, "ndim", 1) != 1:  # an array of NumPy may have no length
            raise ValueProblem(f"`where` is a text, or a list with a text per event, not {brief(where)}")
        texts = [where] * count if isinstance(where, str) else list(where)
        if len(texts) != count:
            raise TableError(f"{len(texts)} texts in `where` for {count} events")
        return texts


class _Encoded:
    """The points of many events, made in a few large parts, and again where the index has changed in between: labels
    of strings may have moved."""

    def __init__(self, held: GuardedState, events_: Any):
        self._held, self._events = held, events_
        self._start, self._changes = 0, -1
        self._points: Points | None = None
        self._batch: _kernels.DocumentBatch | None = None
        self._size = FIRST_CHUNK

    def points(self, start: int, size: int) -> Points:
        """At most `size` events from `start` on. The caller reads the index."""
        known, changes = self._points, self._held.changes
        if known is None or changes != self._changes or start >= self._start + len(known):
            begun = time.perf_counter()
            known = self._points = self._encode(start)
            taken = time.perf_counter() - begun
            self._start, self._changes = start, changes
            self._size = _next_size(self._size, 4 * taken)
        at = start - self._start
        return known if not at and len(known) <= size else known[at : at + size]

    def documents(self, start: int) -> Documents | None:
        """The events from `start` on, whose points were asked for, as native code has read them."""
        return None if self._batch is None else Documents(self._batch, start - self._start)

    def _encode(self, start: int) -> Points:
        part, held = _part(self._events, start, start + self._size), self._held
        self._batch = None
        if isinstance(part, pa.Table):
            return held.encoder.table(part, start)
        as_json = isinstance(part, JsonEvents)
        plan = held.state.document_plan() if as_json or held.state.computes else None
        if plan is None:
            return held.encoder.many([_event(part, row, start) for row in range(len(part))] if as_json else part, start)
        if not isinstance(part, JsonEvents):
            batch = _kernels.DocumentBatch(plan, part, False)
        elif part.starts is None:
            batch = _kernels.DocumentBatch(plan, part.texts, True)
        else:
            batch = _kernels.DocumentBatch(plan, part.data, part.starts)
        self._batch, points = batch, with_information(held.keys, batch.low)
        for row in batch.left.tolist():
            own = held.encoder.many([_event(part, row, start)], start + row)
            if own.intervals and points.high is points.low:
                points = Points(points.low, points.low.copy())
            points.low[row], points.high[row] = own.low[0], own.high[0]
        return points


def _event(events_: Sequence[Event], row: int, start: int) -> Event:
    try:
        return events_[row]
    except ValueProblem as problem:  # it is no JSON
        raise TableError(f"event {start + row}: {problem}", [(start + row, str(problem))]) from None


def _part(events_: Any, start: int, end: int) -> Any:
    """Some of the events; all of them are not copied."""
    if start == 0 and end >= len(events_):
        return events_
    return events_.slice(start, end - start) if isinstance(events_, pa.Table) else events_[start:end]


def _next_size(size: int, taken: float) -> int:
    """How many events are the next slice, if this one took so many seconds."""
    return min(CHUNK, max(MIN_SLICE, int(size * min(SLICE_SECONDS / max(taken, 1e-9), 8))))


def _joined(ids: list[pa.Array]) -> pa.Array:
    """The ids of all slices. An index without subscriptions may get ids of another type between two of them."""
    if len({part.type for part in ids}) > 1:
        ids = [part for part in ids if len(part)] or ids[-1:]
        if len({part.type for part in ids}) > 1:
            raise ValueProblem("the index got ids of another type while it was asked: ask again")
    return ids[0] if len(ids) == 1 else pa.concat_arrays(ids)


def _note(errors: dict[int, str], numbers: I64, problem: TooExpensive) -> None:
    """A subscription is too expensive on an event of some of a batch, which have these numbers there."""
    assert isinstance(problem.event, int)
    errors.setdefault(int(numbers[problem.event]), str(TooExpensive(problem.id, None, problem.steps)))
