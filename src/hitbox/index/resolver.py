"""Box numbers -> subscriptions: each once, residuals checked, most urgent first. Done here once, around every matcher.

A hit on an exact box is a match. A hit on a box that is only a superset (a LIKE with a leading %) is a match if the
whole predicate is true of the event. An event with a `where` of its own is one point for each of its boxes; where those
are supersets too, the event's predicate is checked on what the subscription says about itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hitbox import language
from hitbox.encoding import events
from hitbox.encoding.arrays import HIGHEST, I64, LOWEST, MISSING, Hits, Points
from hitbox.encoding.keys import Keys
from hitbox.index.catalog import Catalog
from hitbox.language import Compiled, Limits, Predicate
from hitbox.matchers import Matcher

MAX_THREADS = 1024

Filters = Sequence[Predicate | None] | None


@dataclass(frozen=True, slots=True)
class Resolver:
    """Matches events against an index. Used under its read lock."""

    keys: Keys
    matcher: Matcher
    catalog: Catalog
    predicate: Callable[[int], Predicate]
    limits: Limits

    def one(self, points: Points, event: Any, filters: Filters, limit: int | None) -> I64:
        """The slots that one event matches; with `limit` the most urgent ones."""
        if limit is not None and filters is None and self.catalog.plain:
            found: list[I64] = []
            for _, numbers in self.matcher.match_levels(points) if limit else ():
                found.append(self.catalog.owner[numbers])
                if sum(map(len, found)) >= limit:
                    break
            return np.concatenate([np.zeros(0, np.int64), *found])[:limit]
        _, slots = self.many(points, [event], filters, 1)
        return slots if limit is None else slots[:limit]

    def levels(self, points: Points, event: Any, filters: Filters) -> Iterator[tuple[int, I64]]:
        """(priority, slots) of one event, level by level."""
        if filters is not None:  # several points per event: no level is complete before all points are matched
            _, slots = self.many(points, [event], filters, 1)
            priority = self.catalog.priority[slots]
            for level in np.unique(priority)[::-1].tolist():
                yield level, slots[priority == level]
            return
        for level, numbers in self.matcher.match_levels(points):
            if self.catalog.plain:
                slots = self.catalog.owner[numbers]
            else:
                hits = Hits(np.array([0, len(numbers)]), numbers)
                _, slots = self._settle(hits, np.zeros(1, np.int64), 1, [event], None, None)
            if len(slots):
                yield level, slots

    def many(self, points: Points, chunk: Any, filters: Filters, threads: int) -> tuple[I64, I64]:
        """(offsets, slots) of many events."""
        count = len(points)
        event_of, sure = np.arange(count), None
        if filters is not None:
            points, event_of, sure = self._expand(points, filters)
        hits = self._match(points, threads)
        if self.catalog.plain and filters is None:
            return self._in_order(hits.offsets, self.catalog.owner[hits.numbers])
        return self._settle(hits, event_of, count, chunk, filters, sure)

    def _match(self, points: Points, threads: int) -> Hits:
        if threads > 1 and self.matcher.threaded:
            return self.matcher.match(points, threads=min(threads, MAX_THREADS))  # type: ignore[call-arg]
        return self.matcher.match(points)

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
        event_of: I64,
        count: int,
        chunk: Any,
        filters: Filters,
        sure: NDArray[np.bool_] | None,
    ) -> tuple[I64, I64]:
        """Each (event, slot) once; if no exact box was hit, the predicate is checked."""
        slots = self.catalog.owner[hits.numbers]
        point = np.repeat(np.arange(len(hits)), np.diff(hits.offsets))
        event = event_of[point]
        mine = self.catalog.exact[hits.numbers]  # is the subscription's box exact?
        theirs = np.ones(len(slots), bool) if sure is None else sure[point]  # is the event's?
        pairs, first = np.unique(event * np.int64(len(self.catalog.priority) + 1) + slots, return_index=True)
        settled = np.zeros(len(pairs), bool)
        settled[np.searchsorted(pairs, (event * np.int64(len(self.catalog.priority) + 1) + slots)[mine & theirs])] = (
            True
        )
        keep = first[settled]
        doubtful = first[~settled]
        values: dict[int, dict[str, Any]] = {}
        held = [at for at in doubtful.tolist() if self._holds(int(event[at]), int(slots[at]), chunk, filters, values)]
        chosen = np.sort(np.concatenate([keep, np.array(held, np.int64)]))
        if filters is not None:  # the points of one event came one after the other
            chosen = chosen[np.argsort(-self.catalog.priority[slots[chosen]].astype(np.int8), kind="stable")]
            chosen = chosen[np.argsort(event[chosen], kind="stable")]
        offsets = np.zeros(count + 1, np.int64)
        np.cumsum(np.bincount(event[chosen], minlength=count), out=offsets[1:])
        return self._in_order(offsets, slots[chosen])

    def _holds(self, event: int, slot: int, chunk: Any, filters: Filters, values: dict[int, dict[str, Any]]) -> bool:
        if event not in values:
            values[event] = self._values(chunk, event)
        if language.evaluate(self.predicate(slot), values[event]) is not True:
            return False
        asked = filters[event] if filters is not None else None
        return asked is None or language.evaluate(asked, self.about(slot)) is True

    def about(self, slot: int) -> dict[str, Any]:
        """What a subscription says about itself, read back from its box."""
        numbers = self.catalog.boxes_of(np.array([slot]))[:1]
        return events.told(self.keys, self.matcher.boxes(numbers)[0]) if len(numbers) else {}

    def _values(self, chunk: Any, event: int) -> dict[str, Any]:
        """One event of a chunk as the predicate language takes it."""
        if isinstance(chunk, pa.Table):
            return events.normal_row(self.keys, chunk, event)
        return events.normal(self.keys, chunk[event])

    def _in_order(self, offsets: I64, slots: I64) -> tuple[I64, I64]:
        """Most urgent first within each event: nothing to do if the matcher returns this order."""
        if self.matcher.ordered or not len(slots):
            return offsets, slots
        urgency = np.uint8(9) - self.catalog.priority[slots]
        if len(offsets) == 2:
            return offsets, slots[np.argsort(urgency, kind="stable")]  # a radix sort, for bytes
        event = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        return offsets, slots[np.argsort(event * 10 + urgency, kind="stable")]
