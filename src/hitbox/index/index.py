"""Index: subscriptions by id on top of a matcher; what users hold.

    changing.py      subscribe   text -> language -> boxes -> matcher.change
    matching.py      match       event -> keys -> matcher.match -> box numbers -> slots -> ids
    explaining.py    explain     why, and what came nearest
    state.py         save, open  keys, catalog and matcher, to the files of a snapshot and back

They share one guarded_state.py: the state, and the lock under which it changes.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar

import numpy as np
import pyarrow as pa

from hitbox import language
from hitbox.encoding import inputs
from hitbox.encoding.arrays import DEFAULT_PRIORITY
from hitbox.encoding.documents import Event
from hitbox.encoding.json_events import JsonEvents
from hitbox.encoding.keys import Keys
from hitbox.encoding.schema import OpenSchema, Schema
from hitbox.encoding.string_dictionary import Relabel
from hitbox.errors import HitboxError
from hitbox.index import state
from hitbox.index.bad_events import Found, Where
from hitbox.index.catalog import Id, kind_of
from hitbox.index.changing import Changing, LoadReport
from hitbox.index.explain import BothSides, Explained
from hitbox.index.explaining import Explaining
from hitbox.index.guarded_state import GuardedState, check_limits
from hitbox.index.load import bulk_load
from hitbox.index.match_budget import MatchBudget, Report
from hitbox.index.matches import Matches, Transition
from hitbox.index.matching import CHUNK, MOST, Matching
from hitbox.index.state import IndexState
from hitbox.index.unseen import RecentFields, Unseen, unseen
from hitbox.language import DEFAULT_LIMITS, Explanation, Limits, Predicate
from hitbox.storage import snapshot
from hitbox.storage.retention import Keep, Moment

T = TypeVar("T")
OWN = ("schema", "matcher", "_held", "_changing", "_matching", "_explaining")
"""Attributes that an index makes for itself."""


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
        self.schema, self.matcher = contents.keys.schema, contents.name
        self._held = held = GuardedState(contents, limits, options, self.noun)
        self._changing, self._matching = Changing(held), Matching(held)
        self._explaining = Explaining(held, self._matching)

    @property
    def _state(self) -> IndexState:
        return self._held.state

    @property
    def limits(self) -> Limits:
        """What predicates and matches may take. New limits hold from the next call on."""
        return self._held.limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        self._held.limits = check_limits(limits)
        self._changing = Changing(self._held)

    # ---- changing

    def subscribe(
        self, id: Id, where: str, *, priority: int = DEFAULT_PRIORITY, about: Mapping[str, Any] | None = None
    ) -> None:
        """Add a subscription, or replace the one that has this id."""
        self._changing.put(id, where, priority, about)

    def unsubscribe(self, id: Id) -> None:
        """Remove a subscription; an id that is not there is an error."""
        self._changing.remove(id)

    def unsubscribe_many(self, ids: Sequence[Id] | pa.Array) -> int:
        """Remove those of `ids` that are there, all at once. The result says how many these were."""
        return self._changing.remove_many(ids)

    def load(self, table: Any, *, on_error: str = "raise") -> LoadReport:
        """Add or replace many subscriptions, in either table layout; of rows with one id the last counts.

        The table is a pyarrow.Table, a pandas or polars DataFrame, a structured NumPy array, any object with
        `__arrow_c_stream__`, or a list of mappings.

        A row that does not fit is an error that names it, and nothing is loaded; with `on_error="return"` the good
        rows are loaded and the bad ones come back.
        """
        return self._changing.load(table, on_error)

    def put(self, encoded: bulk_load.Encoded) -> None:
        """Add or replace subscriptions that are already encoded with the keys of this index; each id occurs once."""
        self._changing.put_encoded(encoded)

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
        matching = self._matching
        found: list[Id] = matching.one(event, where, limit, True, matching.budget(on_expensive, budget))
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
        matching = self._matching
        return matching.one(event, where, limit, False, matching.budget(on_expensive, budget))

    def match_json(
        self,
        text: str | bytes | bytearray | memoryview,
        where: str | None = None,
        *,
        limit: int | None = None,
        on_expensive: Report | None = None,
        budget: MatchBudget | None = None,
    ) -> list[Id]:
        """What `match` says of an event that comes as a JSON text, which is what it says of `json.loads(text)`.

        Where nothing is declared it is several times faster: only the fields that subscriptions ask for are read.

        >>> index = Index()
        >>> index.subscribe("s1", "city = 'Paris' AND ANY(tags) = 'new'")
        >>> index.match_json(b'{"city": "Paris", "tags": ["new", "blue"]}')
        ['s1']
        """
        matching = self._matching
        found: list[Id] = matching.one(text, where, limit, True, matching.budget(on_expensive, budget), as_json=True)
        return found

    def match_change(self, old: Event | None, new: Event | None, *, budget: MatchBudget | None = None) -> Transition:
        """What a change of a document means for each subscription: those that match `new` and not `old` enter, those
        that match `old` and not `new` leave, and those that match both stay. None stands for no document.

        `OLD.` in a predicate is the image before the one that is matched: for `new` it is `old`, for `old` there is
        none. A subscription that is too expensive on one of the two is an error; if the budget takes reports, it is in
        none of the three.
        """
        return self._matching.change(old, new, budget)

    def match_levels(
        self, event: Event, where: str | None = None, *, budget: MatchBudget | None = None
    ) -> Iterator[tuple[int, list[Id]]]:
        """(priority, ids) level by level, most urgent first, each determined when it is asked for.

        Where the index changes between two levels, the levels that are left are asked of the changed index; no id is
        handed out twice.
        """
        return self._matching.levels(event, where, budget)

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
        return self._matching.batch(events_, where, threads, on_error, on_expensive, budget)

    def match_json_batch(
        self,
        texts: Any,
        where: Where = None,
        *,
        threads: int = 1,
        on_error: str = "raise",
        on_expensive: Report | None = None,
        budget: MatchBudget | None = None,
    ) -> Matches:
        """What `match_batch` says of events that come as JSON: a list of texts or bytes, an Arrow column of strings or
        binary values, or bytes with one event per line.

        on_error: also of a text that is no JSON object; with "null" it matches nothing
        """
        events_ = JsonEvents.of(texts)
        return self._matching.batch(events_, where, threads, on_error, on_expensive, budget)

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
        return self._matching.with_priorities(events_, where, threads, on_error, budget, match_steps)

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
        return self._explaining.explain(event, id, where, misses, among)

    def check(self, events_: pa.Table | Sequence[Event] | None = None) -> list[Unseen]:
        """The attributes that subscriptions speak of and that none of these events has, which may be misspelt; those of
        most subscriptions first. Without events: that none of the events had that were matched lately, of which a
        sample is looked at."""
        recent = self._matching.recent
        if events_ is not None:
            recent = RecentFields(generation=MOST)
            recent.note_batch(inputs.events(events_), every=1)
        with self._held.lock.read:
            return unseen(self._state, recent, self._held.predicate) if recent else []

    def where(self, id: Id) -> str:
        """The predicate of a subscription; for one loaded from bounds, the text that says the same."""
        with self._held.lock.read:
            return self._held.where(self._held.slot(id))

    def about(self, id: Id) -> dict[str, Any]:
        """What a subscription says about itself; nothing of one that can never match, of which it is not kept."""
        with self._held.lock.read:
            return self._held.resolver().about(self._held.slot(id))

    def can_match(self, id: Id) -> bool:
        """Whether any event can match a subscription; False of one like `a > 3 AND a < 2`."""
        with self._held.lock.read:
            return self._held.can_match(self._held.slot(id))

    def priority(self, id: Id) -> int:
        """How urgent a subscription is: 0 to 9, the most urgent."""
        with self._held.lock.read:
            return int(self._state.catalog.priority[self._held.slot(id)])

    def parse(self, where: str) -> Predicate:
        """Check a predicate without subscribing."""
        return language.parse(where, self.schema, role="criteria", limits=self.limits)

    # ---- as a container

    def __len__(self) -> int:
        return self._state.catalog.living

    def __contains__(self, id: object) -> bool:
        try:
            kind_of(id)
        except HitboxError:
            return False
        with self._held.lock.read:
            return self._state.catalog.slot(id) is not None  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Id]:
        with self._held.lock.read:
            ids = self._state.catalog.living_ids()
        return (id for start in range(0, len(ids), CHUNK) for id in ids[start : start + CHUNK].to_pylist())

    def __repr__(self) -> str:
        matcher = type(self._state.matcher).__name__
        return f"<Index of {len(self)} subscriptions on {len(self.schema)} attributes, {matcher}>"

    @property
    def takes_intervals(self) -> bool:
        """Whether events may carry intervals, which depends on the matcher."""
        return self._state.matcher.intervals

    def nbytes(self) -> dict[str, int]:
        """Bytes held, by part."""
        words = sum(d.nbytes() for d in self._state.keys.dictionaries.values())
        boxes = self._state.matcher.nbytes() + self._state.anchors.nbytes()
        return {"matcher": boxes, "catalog": self._state.catalog.nbytes(), "dictionaries": words}

    # ---- on disk

    def save(self, path: str | os.PathLike[str], *, keep: Keep | None = None) -> int:
        """Write a snapshot version under `path` and make it the current one; its number.

        keep: which versions stay: the last 5, or those that were current in the last "7 days" (or a timedelta). It is
            remembered; if it was never given, the last two stay.
        """
        with self._held.lock.prepare:
            contents = self._held.compact()
            return snapshot.write(path, contents.facts(), contents.arrays() | contents.keys.arrays(), keep)

    def compacted(self) -> IndexState:
        """What the index holds, ready to be written; nobody may change the index meanwhile."""
        with self._held.lock.prepare:
            return self._held.compact()

    def relabelling(self, relabels: Mapping[int, Relabel]) -> Callable[[], None]:
        """Prepare boxes and programs for new keys of strings; calling the result makes the change."""
        return self._state.relabelling(relabels)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), *self._written()), _added(self)

    def __copy__(self) -> Self:
        """An index of its own, as `copy.deepcopy` makes it: half of one cannot be shared. What a subclass added is."""
        found = _restored(type(self), *self._written())
        vars(found).update(_added(self))
        return found

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        found = memo[id(self)] = _restored(type(self), *self._written())
        vars(found).update(copy.deepcopy(_added(self), memo))
        return found

    def _written(self) -> tuple[dict[str, Any], dict[str, Any], Limits, dict[str, object]]:
        """What a snapshot would hold, as arrays that nobody else changes; the limits; the matcher's options."""
        with self._held.lock.prepare:
            contents = self._held.compact()
            arrays = contents.arrays() | contents.keys.arrays()
            own = {name: np.array(array) for name, array in arrays.items()}
            return contents.facts(), own, self.limits, self._held.options

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


def _added(index: Index) -> dict[str, Any]:
    """The attributes that a subclass gave to an index."""
    return {name: value for name, value in vars(index).items() if name not in OWN}


def _restored(
    cls: type[T], facts: Mapping[str, Any], arrays: Mapping[str, Any], limits: Limits, options: Mapping[str, object]
) -> T:
    """The index that was pickled or copied."""
    keys = state.keys_of(facts, arrays, state.IN_MEMORY)
    contents = state.part(facts, keys, arrays, "", None, options)
    return cls.of(contents, limits, options)  # type: ignore[attr-defined,no-any-return]
