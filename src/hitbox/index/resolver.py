"""Box numbers -> subscriptions: each once, residuals checked, most urgent first. Done here once, around every matcher.

A hit on an exact box is a match. A hit on a box that is only a superset is a match if the whole predicate is true of
the event. Native code runs the subscription's program to find out (Owners.settle). What that leaves open gets a second
look, with the event's lists and texts and the time (language/programs/second_look.py). What is still open, such as a
REGEXP, is evaluated here. An event with a `where` of its own is one point for each of its boxes; where those are
supersets too, the event's predicate is checked on what the subscription says about itself.

What a subscription takes on an event beyond the first, native run of its program is bounded by a budget of steps
(match_budget.py). A subscription that needs more does not match that event; no other one notices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hitbox import language
from hitbox.encoding import events
from hitbox.encoding.arrays import HIGHEST, I32, I64, LOWEST, MISSING, U8, Boxes, Hits, Points
from hitbox.encoding.derived import details
from hitbox.encoding.documents import Document
from hitbox.encoding.keys import Keys
from hitbox.encoding.values import EPOCH
from hitbox.engine.document_plan import Documents
from hitbox.index.anchors import Anchors
from hitbox.index.catalog import Catalog
from hitbox.index.match_budget import WHERE_SHARE, WHERE_STEPS, Allowance, MatchBudget, shared, unshared
from hitbox.language import Compiled, Limits, Predicate
from hitbox.language.conditions.durations import MICROSECOND
from hitbox.language.programs.programs import FALSE, OUT_OF_STEPS, TRUE, UNKNOWN
from hitbox.language.steps import OutOfSteps, Steps
from hitbox.matchers import Matcher

MAX_THREADS = 1024

Filters = Sequence[Predicate | None] | None
Look = Callable[[I32, Allowance], tuple[U8, I64]]


@dataclass(frozen=True, slots=True)
class Resolver:
    """Matches events against an index. Used under its read lock."""

    keys: Keys
    matcher: Matcher
    catalog: Catalog
    predicate: Callable[[int], Predicate]
    limits: Limits
    now: datetime
    """What NOW() is."""
    anchors: Anchors
    boxes: Callable[[I64], Boxes]
    """The boxes under some numbers."""
    derived: Sequence[int]
    """The derived attributes in use."""
    budget: MatchBudget
    """What each subscription may spend on each event."""
    first: int | None = None
    """The number of the first event; None if there is only one, which has none."""

    def one(self, points: Points, event: Any, filters: Filters, limit: int | None) -> I32:
        """The slots that one event matches; with `limit` the most urgent ones."""
        if limit is not None and filters is None:
            found: list[I32] = []
            for _, slots in self.levels(points, event, None) if limit else ():
                found.append(slots)
                if sum(map(len, found)) >= limit:
                    break
            return np.concatenate([np.zeros(0, np.int32), *found])[:limit]
        _, slots = self.many(points, [event], filters, 1)
        return slots if limit is None else slots[:limit]

    def levels(self, points: Points, event: Any, filters: Filters) -> Iterator[tuple[int, I32]]:
        """(priority, slots) of one event, level by level."""
        if filters is not None:  # several points per event: no level is complete before all points are matched
            _, slots = self.many(points, [event], filters, 1)
            priority = self.catalog.priority[slots]
            for level in np.unique(priority)[::-1].tolist():
                yield level, slots[priority == level]
            return
        for level, numbers in self._match_levels(points, event):
            _, slots = self._settle(Hits(np.array([0, len(numbers)]), numbers), points, [event])
            if len(slots):
                yield level, slots

    def many(
        self, points: Points, chunk: Any, filters: Filters, threads: int, documents: Documents | None = None
    ) -> tuple[I64, I32]:
        """(offsets, slots) of many events. `documents` are these events, if native code has read them."""
        if filters is None:
            hits = self._match(points, np.arange(len(points) + 1), chunk, threads, documents)
            return self._in_order(*self._settle(hits, points, chunk, documents=documents))
        expanded, event_of, sure = self._expand(points, filters)
        starts = np.searchsorted(event_of, np.arange(len(points) + 1))  # an event's points are neighbours
        hits = self._match(expanded, starts, chunk, threads, documents)
        first = hits.offsets[starts]
        certain = np.repeat(sure, np.diff(hits.offsets)).view(np.uint8)
        return self._sorted(*self._settle(Hits(first, hits.numbers), points, chunk, filters, certain))

    def holding(self, points: Points, event: Any, slots: Sequence[int]) -> list[bool]:
        """Whether the predicates of some slots are true of one event."""
        held = self._holding(points.low[0], self._values([event], 0), np.array(slots, np.int32), None, self.first)
        return [bool(one) for one in held]

    def _match(self, points: Points, starts: I64, chunk: Any, threads: int, documents: Documents | None) -> Hits:
        """The boxes that each point meets; those of event i are the points from `starts[i]` to `starts[i + 1]`."""
        threads = min(threads, MAX_THREADS)
        if threads > 1 and self.matcher.threaded:
            hits = self.matcher.match(points, threads=threads)  # type: ignore[call-arg]
        else:
            hits = self.matcher.match(points)
        if not len(self.anchors):
            return hits
        return hits.beside(self.anchors.match(points, starts, chunk, self.keys, threads, documents))

    def _match_levels(self, points: Points, event: Any) -> Iterator[tuple[int, I32]]:
        """(priority, box numbers) of one event, level by level."""
        if not len(self.anchors):
            yield from self.matcher.match_levels(points)
            return
        more = self.anchors.match(points, np.array([0, 1]), [event], self.keys).numbers
        levels = self.catalog.priority[self.catalog.owner[more]]
        waiting = {level: more[levels == level] for level in np.unique(levels).tolist()}
        for level, numbers in self.matcher.match_levels(points):
            for above in sorted((one for one in waiting if one > level), reverse=True):
                yield above, waiting.pop(above)
            yield level, np.concatenate([numbers, waiting.pop(level)]) if level in waiting else numbers
        for level in sorted(waiting, reverse=True):
            yield level, waiting[level]

    def _expand(self, points: Points, filters: Sequence[Predicate | None]) -> tuple[Points, I64, NDArray[np.bool_]]:
        """A point for each box of each event's own predicate."""
        compiled = {id(p): self._compile(p) for p in filters if p is not None}
        event_of: list[int] = []
        lows, highs, sure = [], [], []
        for event, predicate in enumerate(filters):
            made = compiled.get(id(predicate))
            boxes = made.boxes if made else [{}]
            exact = made.exact if made else [True]
            for box, is_exact in zip(boxes, exact, strict=True) if predicate is None or made else ():
                low, high = points.low[event].copy(), points.high[event].copy()
                for number, (first, last) in box.items():
                    low[number], high[number] = first, last
                event_of.append(event)
                lows.append(low)
                highs.append(high)
                sure.append(is_exact)
        shape = (len(lows), points.low.shape[1])
        expanded = Points(np.array(lows, np.int64).reshape(shape), np.array(highs, np.int64).reshape(shape))
        return expanded, np.array(event_of, np.int64), np.array(sure, bool)

    def _compile(self, asked: Predicate) -> Compiled:
        """The boxes of what an event asks. Strings without labels share the key of their gap, so that `s > 'b' AND
        s < 'c'` would seem empty; such a predicate is compiled with labels of its own, and its bounds are moved here.
        """
        strings = language.strings(asked)
        if self.keys.knows(strings):
            return language.compile(asked, self.keys, self.limits)
        own = Keys(self.keys.schema)
        own.admit(strings)
        compiled = language.compile(asked, own, self.limits)

        def moved(number: int, bound: int, side: int) -> int:
            """`bound` is a label, or next to one on the inner side (1: above, for a low bound; -1: below)."""
            if number not in strings or bound in (MISSING, LOWEST, HIGHEST):
                return bound
            beside = bound % 2 * side
            key = self.keys.codecs[number].key(own.codecs[number].value(bound - beside))
            return key + beside if key % 2 == 0 else key

        boxes = [{n: (moved(n, low, 1), moved(n, high, -1)) for n, (low, high) in b.items()} for b in compiled.boxes]
        return Compiled(boxes, compiled.exact)

    def _settle(
        self,
        hits: Hits,
        points: Points,
        chunk: Any,
        filters: Filters = None,
        sure: NDArray[np.uint8] | None = None,
        documents: Documents | None = None,
    ) -> tuple[I64, I32]:
        """Each slot once per event, checked where a box left doubt. `sure` says of each hit whether the event's own
        box is enough."""
        numbers = np.ascontiguousarray(hits.numbers, np.int32)
        if self.catalog.plain and filters is None:
            return hits.offsets, self.catalog.owners.slots(numbers)
        ends, free = (points.low, points.high), self.keys.space.information
        read = documents if filters is None else None
        offsets, slots, doubtful = self.catalog.owners.settle(
            hits.offsets, numbers, sure, *ends, free, read is not None
        )
        if len(doubtful) and read is not None:
            offsets, slots, doubtful = self._look_natively(offsets, slots, doubtful, points, read)
        if not len(doubtful):
            return offsets, slots
        if isinstance(chunk, pa.Table):
            chunk = events.Columns(self.keys, chunk)
        kept = np.ones(len(slots), bool)
        events_of = np.searchsorted(offsets, doubtful, side="right") - 1
        some, starts = np.unique(events_of, return_index=True)
        for event, places in zip(some.tolist(), np.split(doubtful, starts[1:]), strict=True):
            asked = filters[event] if filters is not None else None
            number = None if self.first is None else self.first + event
            kept[places] = self._holding(points.low[event], self._values(chunk, event), slots[places], asked, number)
        left = np.append(0, np.cumsum(kept))
        return left[offsets], slots[kept]

    def _look_natively(
        self, offsets: I64, slots: I32, doubtful: I64, points: Points, documents: Documents
    ) -> tuple[I64, I32, I64]:
        """What is left when native code has looked at what is in doubt, in the events that it has read."""
        budget, now = self.budget, (self.now - EPOCH) // MICROSECOND
        in_all = -1 if budget.in_all is None else budget.left_in_all(budget.in_all)
        *left, taken = self.catalog.owners.look(
            offsets, slots, doubtful, points.low, points.high, *documents, *budget.of_documents(), in_all, now
        )
        if budget.counts or budget.in_all is not None:
            budget.spend(taken)
        return tuple(left)  # type: ignore[return-value]

    def _holding(
        self, low: I64, values: Document, slots: I32, asked: Predicate | None, event: int | None
    ) -> NDArray[np.bool_]:
        """Whether the predicates of some slots are true of an event, and what the event asks is true of them."""
        if not self.budget.excluded:
            return self._looked_at(low, values, slots, asked, event)
        holds = np.array([id not in self.budget.excluded for id in self.catalog.id_list(slots)], bool)
        if holds.any():
            holds[holds] = self._looked_at(low, values, slots[holds], asked, event)
        return holds

    def _looked_at(
        self, low: I64, values: Document, slots: I32, asked: Predicate | None, event: int | None
    ) -> NDArray[np.bool_]:
        budget, look = self.budget, self._second_look(low, values)
        quick = asked is None and budget.together > 0 and not budget.over
        if quick or budget.in_all is not None:
            truths, few = self._look_together(look, slots)
            holds: NDArray[np.bool_] = truths == TRUE
            if quick and few and not np.any(truths[~holds] & (TRUE | OUT_OF_STEPS)):  # all is decided
                return holds
        allowance = self._allowance(slots, event)
        truths, taken = look(slots, allowance)
        self._spend(taken)
        allowed = allowance.each + taken
        holds = truths == TRUE
        open_, out = (truths & TRUE) > holds, truths == OUT_OF_STEPS
        asking, unasked = Steps(WHERE_STEPS * budget.steps), False
        for place in np.flatnonzero(open_ if asked is None else open_ | holds).tolist():
            if asked is not None and asking.left <= 0:
                holds[place], unasked = False, True
                continue
            steps = Steps(budget.left_in_all(allowance.of(place)))
            try:
                holds[place] = self._holds(int(slots[place]), values, asked, steps, asking, bool(open_[place]))
            except OutOfSteps:
                holds[place], out[place] = False, True
            budget.spend(steps.taken)  # if it ran out of these, this raises
            allowance.take(place, steps.taken)
            taken[place] += steps.taken
        self._report(slots, event, allowed, taken, out)
        if unasked:
            budget.run_out(None, event, asking.most)
        return holds

    def _look_together(self, look: Look, slots: I32) -> tuple[U8, bool]:
        """Look at all with one account; whether that took no more than `together`."""
        budget = self.budget
        most = budget.together if budget.in_all is None else budget.left_in_all(budget.in_all)
        each = np.full(len(slots), budget.steps, np.int64)
        truths, taken = look(slots, Allowance(each, *shared(len(slots), most)))
        self._spend(taken)
        return truths, budget.in_all is None or int(taken.sum()) < budget.together

    def _spend(self, taken: I64) -> None:
        if self.budget.counts or self.budget.in_all is not None:
            self.budget.spend(int(taken.sum()))

    def _holds(
        self, slot: int, values: Document, asked: Predicate | None, steps: Steps, asking: Steps, is_open: bool
    ) -> bool:
        """Whether a subscription's predicate is true, if that is open, and what the event asks is true of it. The look
        pays for both, and `asking` for the second."""
        if is_open and language.evaluate(self.predicate(slot), values, self.now, steps) is not True:
            return False
        if asked is None:
            return True
        before = steps.taken
        try:
            return language.evaluate(asked, self.about(slot), self.now, steps) is True
        finally:
            asking.left -= min(steps.taken - before, asking.most // WHERE_SHARE)

    def _allowance(self, slots: I32, event: int | None) -> Allowance:
        """The steps that each look may take."""
        budget, count = self.budget, len(slots)
        if not budget.counts and not budget.over:
            return Allowance(np.full(count, budget.steps, np.int64), *unshared(count))
        ids = self.catalog.id_list(slots)
        each = np.array([0 if (id, event) in budget.over else budget.allowed(id, event) for id in ids], np.int64)
        return Allowance(each, *(budget.accounts(ids, event) if budget.counts else unshared(count)))

    def _report(self, slots: I32, event: int | None, allowed: I64, taken: I64, out: NDArray[np.bool_]) -> None:
        """Tell the budget what looks have taken, and which ran out."""
        budget, ids = self.budget, self.catalog.ids
        if budget.counts:
            for place in np.flatnonzero(taken).tolist():
                budget.took(ids[int(slots[place])], event, int(taken[place]))
        for place in np.flatnonzero(out).tolist():
            budget.run_out(ids[int(slots[place])], event, int(allowed[place]))

    def _second_look(self, low: I64, values: Document) -> Look:
        """Looks at some slots with one event, whose lists and texts are made once: the truths that each predicate may
        have, as sets of bits, and the steps that it took to find out."""
        programs = self.catalog.programs.native
        if programs is None or any(type(value) is tuple for value in values.values()):
            return _everything_open
        now = (self.now - EPOCH) // MICROSECOND
        lists, texts = details(self.keys, self.derived, values)

        def look(slots: I32, allowance: Allowance) -> tuple[U8, I64]:
            truths, taken = programs.decide(slots, low, lists, texts, now, *allowance)
            allowance.each[:] -= taken
            return truths, taken

        return look

    def about(self, slot: int) -> dict[str, Any]:
        """What a subscription says about itself, read back from its box."""
        numbers = self.catalog.boxes_of(np.array([slot]))[:1]
        return events.about_values(self.keys, self.boxes(numbers)[0]) if len(numbers) else {}

    def _values(self, chunk: Any, event: int) -> Document:
        """One event of a chunk as the predicate language takes it."""
        if isinstance(chunk, events.Columns):
            return events.normal_row(self.keys, chunk, event)
        return events.normal(self.keys, chunk[event])

    def _in_order(self, offsets: I64, slots: I32) -> tuple[I64, I32]:
        """Most urgent first within each event: nothing to do if the matcher returns this order."""
        return (offsets, slots) if self.matcher.ordered and not len(self.anchors) else self._sorted(offsets, slots)

    def _sorted(self, offsets: I64, slots: I32) -> tuple[I64, I32]:
        if not len(slots):
            return offsets, slots
        urgency = np.uint8(9) - self.catalog.priority[slots]
        if len(offsets) == 2:
            return offsets, slots[np.argsort(urgency, kind="stable")]  # a radix sort, for bytes
        event = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        return offsets, slots[np.argsort(event * 10 + urgency, kind="stable")]


def _everything_open(slots: I32, allowance: Allowance) -> tuple[U8, I64]:
    return np.full(len(slots), TRUE | FALSE | UNKNOWN, np.uint8), np.zeros(len(slots), np.int64)
