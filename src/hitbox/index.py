"""Index: subscriptions by id on top of a matcher; what users hold.

    subscribe   text -> language -> boxes -> matcher.insert           catalog: id, priority, text, box numbers
    match       event -> keys -> matcher.match -> box numbers -> slots -> ids
                              each slot once, residual predicates checked, most urgent first

Threads: any number may match while one changes. A change parses and compiles first, outside of every lock, and holds
the write lock only for the moment in which boxes are exchanged, so an upsert is seen whole or not at all; a matcher
tidies up (`prepare`) while matching goes on.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

import numpy as np
import pyarrow as pa

from hitbox import events, language, snapshot, stored, tables
from hitbox.boxes import DEFAULT_PRIORITY, I64, LEVELS, Boxes, Points
from hitbox.catalog import Id, kind_of
from hitbox.errors import HitboxError, NeverMatches, TableError, UnknownSubscription, ValueProblem
from hitbox.events import Event
from hitbox.explained import BothSides, Explained, describe_box, nearest_misses
from hitbox.keys import Keys
from hitbox.language import DEFAULT_LIMITS, Explanation, Limits, Predicate
from hitbox.locks import ReadWriteLock
from hitbox.matches import Matches
from hitbox.resolve import Filters, Resolver
from hitbox.schema import Schema
from hitbox.stored import Stock

CHUNK = 16_384
FEW = 64
MANY_WORDS = 50_000
"""Strings that a dictionary takes before it is worth looking for those that nobody uses any more."""


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
    """

    noun = "subscription"
    """What the messages call an entry."""

    def __init__(
        self,
        schema: Schema | Mapping[str, Any],
        matcher: str = "auto",
        *,
        limits: Limits = DEFAULT_LIMITS,
        **options: object,
    ):
        keys = Keys(schema if isinstance(schema, Schema) else Schema(schema))
        self._hold(Stock.empty(keys, matcher, options), limits)

    @classmethod
    def of(cls, stock: Stock, limits: Limits = DEFAULT_LIMITS) -> Self:
        """An index on what is there already."""
        index = cls.__new__(cls)
        index._hold(stock, limits)
        return index

    def _hold(self, stock: Stock, limits: Limits) -> None:
        self.schema, self.matcher, self.limits = stock.keys.schema, stock.name, limits
        self._stock = stock
        self._keys, self._catalog, self._matcher = stock.keys, stock.catalog, stock.matcher
        self._many_words: dict[str, int] = {}
        self._parsed = lru_cache(maxsize=10_000)(self.parse)
        self._changes = 0
        self._lock = ReadWriteLock()
        self._writer = threading.RLock()

    # ---- changing

    def subscribe(
        self, id: Id, where: str, *, priority: int = DEFAULT_PRIORITY, about: Mapping[str, Any] | None = None
    ) -> None:
        """Add a subscription, or replace the one that has this id."""
        id = int(id) if kind_of(id) == "int" else str(id)
        _check_priority(priority)
        predicate = self.parse(where)
        if about is not None and not isinstance(about, Mapping):
            raise ValueProblem(f"about is a mapping of attribute to value, not {type(about).__name__}")
        told = dict(about or {})
        with self._writer:
            events.event_keys(self._keys, told, role="information")  # checks names and values before anything changes
            self._catalog.check_kind(kind_of(id))
            strings = language.strings(predicate)
            tables.merge_strings(strings, tables.about_strings(self.schema, told))
            self._admit(strings)
            boxes, exact = tables.subscription_boxes(self._keys, predicate, told, self.limits)
            if not boxes:
                _warn_never(f"{self.noun} {id!r} can never match: {where[:200]}")
            with self._changing():
                old = self._catalog.slot(id)
                if old is not None:
                    self._matcher.delete(self._catalog.remove(np.array([old])))
                numbers = self._catalog.add(id, where, priority, exact)
                self._matcher.insert(numbers, Boxes.of(boxes, [priority] * len(boxes)))
            self._tidy()

    def unsubscribe(self, id: Id) -> None:
        """Remove a subscription; an id that is not there is an error."""
        with self._writer:
            slot = self._slot(id)
            with self._changing():
                self._matcher.delete(self._catalog.remove(np.array([slot])))
            self._tidy()

    def unsubscribe_many(self, ids: Sequence[Id] | pa.Array) -> int:
        """Remove those of `ids` that are there, in one go; how many they were."""
        with self._writer:
            slots = np.unique(self._catalog.slots_of(_id_array(ids)))
            slots = slots[slots >= 0]
            with self._changing():
                self._matcher.delete(self._catalog.remove(slots))
            self._tidy()
        return len(slots)

    def load(self, table: pa.Table, *, on_error: str = "raise") -> LoadReport:
        """Add or replace many subscriptions, in either table layout; of rows with one id the last counts.

        A row that does not fit is an error that names it, and nothing is loaded; with `on_error="return"` the good
        rows are loaded and the bad ones come back.
        """
        if on_error not in ("raise", "return"):
            raise ValueProblem(f"on_error is 'raise' or 'return', not {on_error!r}")
        draft = tables.read(table, self.schema, self.limits)
        _refuse(draft.errors, on_error)
        with self._writer:
            self._admit(draft.strings(self.schema))
            encoded = tables.last_of_each(draft.encode(self._keys, self.limits))
            _refuse(draft.errors, on_error)
            kind = "int" if pa.types.is_integer(encoded.ids.type) else "string"
            self._catalog.check_kind(kind)
            never = int((encoded.count == 0).sum())
            if never:
                _warn_never(f"{never} of the subscriptions loaded can never match")
            old = self._catalog.slots_of(encoded.ids)
            with self._changing():
                self._matcher.delete(self._catalog.remove(old[old >= 0]))
                numbers = self._catalog.add_many(
                    encoded.ids, encoded.where, encoded.priority, encoded.count, encoded.exact
                )
                self._matcher.insert(numbers, encoded.boxes)
            self._tidy()
        return LoadReport(len(encoded.ids), sorted(draft.errors.items()))

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Nobody matches meanwhile; whoever reads level by level will notice."""
        with self._lock.write():
            self._changes += 1
            yield

    def _admit(self, strings: Mapping[int, set[str]]) -> None:
        """Give labels to strings; where labels moved, move the boxes."""
        if sum(map(len, strings.values())) <= FEW and self._keys.knows(strings):
            return
        with self._changing():
            relabels = self._keys.admit(strings)
            if relabels:
                self._stock.relabel(relabels)

    def _tidy(self) -> None:
        switch = self._matcher.prepare()
        if switch is not None:
            with self._changing():
                switch()
        if self._catalog.worth_compacting():
            with self._changing():
                self._catalog.compact()
        for name, words in self._keys.dictionaries.items():
            most = self._many_words.setdefault(name, max(MANY_WORDS, 2 * len(words)))
            if len(words) > most and not self._keys.shared:
                self._forget_words()

    def _forget_words(self) -> None:
        """Take strings that no box speaks of any more out of the dictionaries; no label moves."""
        for name, used in self._stock.labels_in_use().items():
            words = self._keys.dictionaries[name]
            with self._changing():
                words.retain(used)
            self._many_words[name] = max(MANY_WORDS, 2 * len(words))

    # ---- asking

    def match(self, event: Event, where: str | None = None, *, limit: int | None = None) -> list[Id]:
        """The ids of the subscriptions that want this event, most urgent first; with `limit` only the first ones."""
        if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
            raise ValueProblem(f"limit is a whole number of at least 0, not {limit!r}")
        filters = self._filters(where, 1)
        with self._lock.read():
            points = events.from_mapping(self._keys, event)
            slots = self._resolver().one(points, event, filters, limit)
            return self._catalog.id_list(slots)

    def match_levels(self, event: Event, where: str | None = None) -> Iterator[tuple[int, list[Id]]]:
        """(priority, ids) level by level, most urgent first, each determined when it is asked for.

        Where the index changes between two levels, the levels that are left are asked of the changed index; no id is
        handed out twice.
        """
        filters = self._filters(where, 1)
        given: list[list[Id]] = []
        last, seen_changes = LEVELS, -1
        while True:
            with self._lock.read():
                if seen_changes != self._changes:
                    seen_changes = self._changes
                    points = events.from_mapping(self._keys, event)
                    levels = self._resolver().levels(points, event, filters)
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
        events_: pa.Table | pa.RecordBatch | Sequence[Event],
        where: str | Sequence[str | None] | None = None,
        *,
        threads: int = 1,
    ) -> Matches:
        """The matches of many events: a pyarrow.Table with a column an attribute, or a list of mappings."""
        if isinstance(events_, pa.RecordBatch):
            events_ = pa.Table.from_batches([events_])
        if not isinstance(events_, (pa.Table, list, tuple)):
            raise TableError(f"match_batch takes a pyarrow.Table or a list of mappings, not {type(events_).__name__}")
        if not isinstance(threads, int) or threads < 1:
            raise ValueProblem(f"threads is a whole number of at least 1, not {threads!r}")
        parts = [
            (offsets, self._catalog.ids.take(slots)) for offsets, slots in self._match_slots(events_, where, threads)
        ]
        ends = np.cumsum([0] + [int(offsets[-1]) for offsets, _ in parts])
        shifted = [offsets[1:] + end for (offsets, _), end in zip(parts, ends[:-1], strict=True)]
        ids = pa.concat_arrays([ids for _, ids in parts])
        return Matches(np.concatenate([np.zeros(1, np.int64), *shifted]), ids)

    def _match_slots(
        self, events_: Any, where: str | Sequence[str | None] | None, threads: int
    ) -> Iterator[tuple[I64, I64]]:
        """(offsets, slots) chunk by chunk; each is handed out under the read lock."""
        filters = self._filters(where, len(events_))
        for start in range(0, max(len(events_), 1), CHUNK):
            if isinstance(events_, pa.Table):
                chunk: Any = events_.slice(start, CHUNK)
            else:
                chunk = events_[start : start + CHUNK]
            with self._lock.read():
                points = self._points(chunk)
                part = filters and filters[start : start + CHUNK]
                yield self._resolver().many(points, chunk, part, threads)

    def _points(self, chunk: Any) -> Points:
        if isinstance(chunk, pa.Table):
            return events.from_table(self._keys, chunk)
        return events.from_mappings(self._keys, chunk)

    def _filters(self, where: str | Sequence[str | None] | None, count: int) -> Filters:
        """What each event asks of the subscriptions."""
        if where is None:
            return None
        texts = [where] * count if isinstance(where, str) else list(where)
        if len(texts) != count:
            raise TableError(f"{len(texts)} texts in `where` for {count} events")
        made = {text: self._asked(text) for text in set(texts) if text is not None}
        return [None if text is None else made[text] for text in texts]

    def _asked(self, where: str) -> Predicate:
        return language.parse(where, self.schema, role="information", limits=self.limits)

    def _resolver(self) -> Resolver:
        return Resolver(self._keys, self._matcher, self._catalog, self._predicate, self.limits)

    # ---- explaining

    def explain(
        self, event: Event, id: Id | None = None, where: str | None = None, *, misses: int = 0
    ) -> Explanation | BothSides | Explained:
        """Why a subscription matched or did not; without an id the matches and, if asked, the nearest misses."""
        if id is not None:
            with self._lock.read():
                return self._explain(event, self._slot(id), where)
        matched = self.match(event, where)
        with self._lock.read():
            points = events.from_mapping(self._keys, event)
            hit = self._catalog.slots_of(_id_array(matched)) if matched else np.zeros(0, np.int64)
            near = nearest_misses(self._matcher, self._catalog, points, hit, misses) if misses > 0 else []
            missed = {self._catalog.ids[slot]: self._explain(event, slot, where) for slot in near}
        return Explained(matched, missed)

    def _explain(self, event: Event, slot: int, where: str | None) -> Explanation | BothSides:
        values = events.normal(self._keys, event)
        events.from_mapping(self._keys, event)  # checks names, roles and types
        verdict = language.explain(self._predicate(slot), values)
        if where is None:
            return verdict
        return BothSides(verdict, language.explain(self._asked(where), self._resolver().about(slot)))

    def where(self, id: Id) -> str:
        """The predicate of a subscription; for one loaded from bounds, the text that says the same."""
        with self._lock.read():
            return self._where(self._slot(id))

    def about(self, id: Id) -> dict[str, Any]:
        """What a subscription says about itself."""
        with self._lock.read():
            return self._resolver().about(self._slot(id))

    def priority(self, id: Id) -> int:
        with self._lock.read():
            return int(self._catalog.priority[self._slot(id)])

    def parse(self, where: str) -> Predicate:
        """Check a predicate without subscribing."""
        return language.parse(where, self.schema, role="criteria", limits=self.limits)

    def _where(self, slot: int) -> str:
        text: str | None = self._catalog.where[slot]
        if text is None:
            numbers = self._catalog.boxes_of(np.array([slot]))
            text = describe_box(self._keys, self._matcher.boxes(numbers)[0]) if len(numbers) else "FALSE"
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
        with self._lock.read():
            return self._catalog.slot(id) is not None  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Id]:
        with self._lock.read():
            return iter(self._catalog)

    def __repr__(self) -> str:
        return f"<Index of {len(self)} subscriptions on {len(self.schema)} attributes, {type(self._matcher).__name__}>"

    @property
    def takes_intervals(self) -> bool:
        """Whether events may carry intervals, which depends on the matcher."""
        return self._matcher.intervals

    def nbytes(self) -> dict[str, int]:
        """Bytes held, by part."""
        words = sum(d.nbytes() for d in self._keys.dictionaries.values())
        return {"matcher": self._matcher.nbytes(), "catalog": self._catalog.nbytes(), "dictionaries": words}

    def _slot(self, id: Id) -> int:
        kind_of(id)
        slot = self._catalog.slot(id)
        if slot is None:
            raise UnknownSubscription(f"no {self.noun} has the id {id!r:.100}")
        return slot

    # ---- on disk

    def save(self, path: str | os.PathLike[str]) -> int:
        """Write a snapshot version under `path` and make it the current one; its number."""
        with self._writer:
            stock = self.compacted()
            return snapshot.write(path, stock.facts(), stock.arrays() | self._keys.arrays())

    def compacted(self) -> Stock:
        """What the index holds, ready to be written; nobody may change the index meanwhile."""
        with self._changing():
            self._catalog.compact()
        return self._stock

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        version: int | None = None,
        *,
        matcher: str | None = None,
        limits: Limits = DEFAULT_LIMITS,
        verify: bool = True,
        **options: object,
    ) -> Self:
        """A snapshot, memory-mapped; it takes changes, which stay in memory until saved.

        verify: read every byte and check it (about 0.1 s per GB); False checks sizes, and that the content can be used
        """
        return cls.of(stored.read(path, version, matcher, verify, options), limits)


def _check_priority(priority: object) -> None:
    if isinstance(priority, bool) or not isinstance(priority, (int, np.integer)) or not 0 <= priority < LEVELS:
        raise ValueProblem(f"a priority is a whole number 0 to 9 (9 is the most urgent), not {priority!r}")


def _refuse(errors: Mapping[int, str], on_error: str) -> None:
    if errors and on_error == "raise":
        rows = sorted(errors.items())
        more = f" ({len(rows)} bad rows)" if len(rows) > 1 else ""
        raise TableError(f"nothing was loaded{more}: row {rows[0][0]}: {rows[0][1]}", rows)


def _warn_never(message: str) -> None:
    warnings.warn(NeverMatches(message), stacklevel=3)


def _id_array(ids: Sequence[Id] | pa.Array) -> pa.Array:
    if isinstance(ids, (pa.Array, pa.ChunkedArray)):
        whole = ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids
        return whole.cast(pa.int64() if pa.types.is_integer(whole.type) else pa.large_string())
    kinds = {kind_of(id) for id in ids}
    if len(kinds) > 1:
        raise ValueProblem("ids of both types, int and string, in one call")
    return pa.array(list(ids), pa.int64() if kinds == {"int"} else pa.large_string())
