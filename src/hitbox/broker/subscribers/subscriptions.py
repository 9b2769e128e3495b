"""The index of the subscriptions, derived from the store, and the subscribers by name.

In the index the id of a subscription is "subscriber/name", so that a match tells the subscriber. Subscriptions of
ephemeral subscribers are in a second index, `ephemeral_index`, which is never saved.

    at start:  snapshot at change n, plus the subscriptions that changed after n (table `changes`)
               without a usable snapshot: everything from the store
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar, get_args

import msgspec
import pyarrow as pa

from hitbox.broker.clock import clock, time
from hitbox.broker.events.changes import Change as Transition
from hitbox.broker.events.changes import images, transitions
from hitbox.broker.settings import Options, Settings, check_name
from hitbox.broker.store.store import Store
from hitbox.broker.store.tables import READABLE
from hitbox.broker.subscribers.subscriber_record import USE_SECONDS, SubscriberRecord, read_record, record_of
from hitbox.broker.subscribers.suspensions import MatchCosts, Suspension, Suspensions
from hitbox.broker.subscribers.webhook import Webhook
from hitbox.encoding.arrays import DEFAULT_PRIORITY, LEVELS
from hitbox.encoding.schema import Schema
from hitbox.encoding.values import for_json
from hitbox.errors import HitboxError, NeverMatches, SnapshotError
from hitbox.index.index import Index
from hitbox.protocol.errors import BadRequest, Conflict
from hitbox.storage import snapshot

LOAD_ROWS = 200_000
FEW = 8
"""Fewer subscriptions than this are added one by one, which is quicker."""
MOST_OWN = 100_000
"""Subscriptions of a subscriber that are indexed once more for it."""
MATCHES_OF_STEP = 3
"""To list so many matches takes as long as a step."""
AT_ONCE = 5_000
"""Matches that are listed while no other thread can run."""
P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger("hitbox.broker")
Levels = Iterator[tuple[int, list[str]]]
"""(priority, ids) of an event."""
Sight = tuple[Schema, str]
"""What decides which events a principal may see: the schema and its predicate `see`."""


class Subscription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A subscription as clients send it."""

    name: str
    where: str
    priority: int = DEFAULT_PRIORITY
    about: dict[str, Any] = {}

    def row(self) -> tuple[str, str, int, str]:
        return self.name, self.where, self.priority, json.dumps(for_json(self.about), sort_keys=True, default=str)


@dataclass(slots=True, eq=False)
class Subscriber:
    """`lowest`: the lowest priority that any of its subscriptions has had since the start. `owner`: the principal that
    it belongs to; empty if it belongs to none."""

    number: int
    name: str
    options: Options
    ephemeral: bool = False
    lowest: int = LEVELS
    subscriptions: int = 0
    ephemeral_names: set[str] = field(default_factory=set)
    owner: str = ""
    webhook: Webhook | None = None
    paused: bool = False
    """Nothing is sent to it."""
    used: float = field(default_factory=lambda: time.monotonic())
    """When it was last used: see `Mailbox.unused_seconds`."""
    stored_use: float = field(default_factory=lambda: time.monotonic())
    """When it was last used, as the store knows it."""
    revision: int = 0
    """How often its subscriptions were changed since the start."""

    def record(self) -> bytes:
        """As it is stored."""
        return record_of(self.options, self.webhook, self.paused, self.last_use())

    def last_use(self) -> float:
        """In seconds since 1970."""
        return clock.seconds() - (time.monotonic() - self.used)

    def restore_use(self, stored: float) -> None:
        """After a start: it was used at most USE_SECONDS after what is stored. However long the broker was down, it has
        so much time to come back, or `expires_seconds` if that is less."""
        now, most = time.monotonic(), self.options.expires_seconds
        ago = max(clock.seconds() - stored, 0.0) if stored else 0.0
        self.used = now - max(min(ago - USE_SECONDS, most - min(most, USE_SECONDS)), 0.0)
        self.stored_use = now - ago


class Change(NamedTuple):
    """Subscriptions to add or replace, and names of those to remove; of one subscriber."""

    subscriber: Subscriber
    put: Sequence[Subscription]
    remove: Sequence[str] = ()


class Visibility(Protocol):
    """Says which principals may not see an event. `sights`: of those that may not see everything; another object after
    every change of rights."""

    @property
    def sights(self) -> Mapping[str, Sight]: ...

    def hidden_from(self, event: Mapping[str, Any], costs: MatchCosts | None = None) -> frozenset[str]: ...

    def unaware(self, owners: Iterable[str], of: Collection[Subscriber]) -> set[str]:
        """Those of the owners that may not know of any of these subscribers."""
        ...


class _EverythingVisible:
    sights: Mapping[str, Sight] = {}

    def hidden_from(self, event: Mapping[str, Any], costs: MatchCosts | None = None) -> frozenset[str]:
        return frozenset()

    def unaware(self, owners: Iterable[str], of: Collection[Subscriber]) -> set[str]:
        return set() if of else set(owners)


class SubscriptionRegistry:
    """`problems`: stored subscribers and subscriptions that cannot be used. All others work."""

    def __init__(self, store: Store, schema: Schema, settings: Settings | None = None):
        self.store, self.schema, self._settings = store, schema, settings or Settings()
        self.suspensions = Suspensions(self._settings.suspend_after)
        self.visibility: Visibility = _EverythingVisible()
        self.problems: list[str] = []
        self.by_name: dict[str, Subscriber] = {}
        self.by_number: dict[int, Subscriber] = {}
        self.takes_unmatched: dict[int, Subscriber] = {}
        self.takes_changes: set[int] = set()
        self.expiring: dict[int, Subscriber] = {}
        self._next = 1
        self._thread = ThreadPoolExecutor(1, "hitbox-match")
        owners = {number: owner for number, owner, _ in store.subscribers.owners.scan()}
        for number, name, options, _ in store.subscribers.table.scan():
            self._next = max(self._next, number + 1)
            if name in self.by_name:
                self._set_aside(f"subscriber {number} has the name {name!r} of subscriber {self.by_name[name].number}")
            else:
                record, owner = self._record(name, options), owners.get(number, "")
                one = Subscriber(number, name, record.options, owner=owner)
                one.webhook, one.paused = record.webhook, record.paused
                one.restore_use(record.used)
                self.add(one)
        self.suspensions.load(
            {
                f"{self.by_number[number].name}/{name}": Suspension(when, reason)
                for number, name, when, reason, _ in store.subscribers.suspended.scan()
                if number in self.by_number
            }
        )
        query = f"""SELECT subscriber, ifnull(min(iif(priority BETWEEN 0 AND {LEVELS - 1}, priority, NULL)), {LEVELS}),
                    count(*) FROM subscriptions GROUP BY subscriber"""
        for number, lowest, count in store.db.execute(query):
            self._next = max(self._next, number + 1)
            if number in self.by_number:  # the store reports the others
                self.by_number[number].lowest, self.by_number[number].subscriptions = lowest, count
        self.restored_from = "empty"
        started = time.monotonic()
        self.index = self._restore()
        self.restore_seconds = time.monotonic() - started
        self.adopt(schema, self.index)

    # ---- start

    def _set_aside(self, problem: str) -> None:
        self.problems.append(problem)
        log.warning("%s: %s", self.store.path, problem)

    def _record(self, name: str, stored: Any) -> SubscriberRecord:
        try:
            return read_record(stored)
        except BadRequest as problem:
            self._set_aside(f"the options of subscriber {name!r} cannot be read ({problem}): the defaults are used")
            return SubscriberRecord()

    @property
    def path(self) -> Path:
        return self.store.folder / "snapshots"

    def _restore(self) -> Index:
        saved = self.store.meta.get("snapshot")
        self._remembered: int | None = None  # the version that the next start opens
        if saved and not self.store.problems:  # the snapshot may contain what is set aside
            try:
                index = Index.open(self.path, saved["version"], verify=True)
                if index.schema == self.schema:
                    tail = list(self.store.subscribers.changes.scan("seq > ?", (saved["change"],)))
                    self.restored_from = f"snapshot {saved['version']} and {len(tail)} changes"
                    self._replay(index, [(owner, name) for _, owner, name, _ in tail])
                    if len(index) == sum(s.subscriptions for s in self.by_number.values()):
                        self._remembered = saved["version"]
                        return index
            except (SnapshotError, KeyError, TypeError):
                pass  # the index is derived data: build it from the store
        index = Index(self.schema)
        self.restored_from = "the store"
        query = f"SELECT subscriber, name, wanted, priority, about FROM subscriptions WHERE {READABLE}"
        rows = self.store.db.execute(query)
        while chunk := list(islice(rows, LOAD_ROWS)):
            known = [row for row in chunk if row[0] in self.by_number]
            self._load(index, [(f"{self.by_number[n].name}/{name}", *rest) for n, name, *rest in known])
        return index

    def _load(self, index: Index, rows: Sequence[tuple[str, str, int, str]], lasting: bool = True) -> None:
        """Add rows (id, where, priority, about) to an index; those that do not fit are set aside. Not `lasting`: nobody
        is told."""
        if all(row[3] == "{}" for row in rows):
            try:
                columns = {
                    "id": pa.array([row[0] for row in rows], pa.large_string()),
                    "where": pa.array([row[1] for row in rows], pa.large_string()),
                    "priority": pa.array([row[2] for row in rows], pa.int64()),
                }
                _without_warnings(index.load, pa.table(columns))
            except (HitboxError, pa.ArrowException):
                pass  # the rows one by one, to find which do not fit
            else:
                return
        for id, where, priority, about in rows:
            try:
                _without_warnings(index.subscribe, id, where, priority=priority, about=stored_about(about))
            except (HitboxError, ValueError, TypeError) as problem:
                if lasting:
                    self._set_aside(f"the subscription {id!r} does not fit and matches nothing: {problem}")

    def _replay(self, index: Index, changed: Iterable[tuple[str, str]]) -> None:
        """Update an older index: copy every (subscriber, name) that changed from the store."""
        for owner, names in _grouped(changed).items():
            subscriber = self.by_name.get(owner)
            stored = self.store.subscribers.subscriptions_of(subscriber.number, names) if subscriber else {}
            self._copy_from_store(index, owner, {name: stored.get(name) for name in names})

    def _copy_from_store(self, index: Index, owner: str, stored: Mapping[str, tuple[str, int, str] | None]) -> None:
        """Make the index agree with the store for these subscriptions; None: the store does not have it."""
        if len(index):
            index.unsubscribe_many([f"{owner}/{name}" for name, row in stored.items() if row is None])
        rows = [(f"{owner}/{name}", *row) for name, row in stored.items() if row is not None]
        if rows:
            self._load(index, rows)

    def copy_from_store(self, subscriber: Subscriber, stored: Mapping[str, tuple[str, int, str] | None]) -> None:
        subscriber.revision += 1
        self._copy_from_store(self.index, subscriber.name, stored)
        suspended = self.store.subscribers.suspended_of(subscriber.number, stored)
        self.suspensions.forget(f"{subscriber.name}/{name}" for name in stored)
        self.suspensions.load({f"{subscriber.name}/{name}": Suspension(*row) for name, row in suspended.items()})

    # ---- subscribers

    def new_subscriber(self, name: str, options: Options, ephemeral: bool = False, owner: str = "") -> Subscriber:
        """A new subscriber with the next free number; `add` makes it known."""
        check_name(name, "subscriber")
        self._next += 1
        return Subscriber(self._next - 1, name, options, ephemeral, owner=owner)

    def add(self, subscriber: Subscriber) -> None:
        """Add a subscriber, or apply its new options."""
        self.by_name[subscriber.name] = self.by_number[subscriber.number] = subscriber
        self.takes_unmatched.pop(subscriber.number, None)
        self.takes_changes.discard(subscriber.number)
        self.expiring.pop(subscriber.number, None)
        if subscriber.options.expires_seconds:
            self.expiring[subscriber.number] = subscriber
        if subscriber.options.unmatched:
            self.takes_unmatched[subscriber.number] = subscriber
        if subscriber.options.changes:
            self.takes_changes.add(subscriber.number)

    def forget(self, subscriber: Subscriber) -> None:
        self.by_name.pop(subscriber.name, None)
        self.by_number.pop(subscriber.number, None)
        self.expiring.pop(subscriber.number, None)
        self.takes_unmatched.pop(subscriber.number, None)
        self.takes_changes.discard(subscriber.number)
        self.suspensions.forget_subscriber(subscriber.name)

    async def in_thread(self, work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Run what events wait for, their matching and changes of the index. It has a thread of its own, so that it
        never waits for other work that takes long."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(work, *args, **named))

    def end_thread(self) -> None:
        self._thread.shutdown(wait=False)

    # ---- changes, in a worker thread while no event is being matched

    def apply(self, changes: Sequence[Change]) -> list[list[str] | Exception]:
        """Change the index; no two changes are of the same subscription. Returns the warnings of each change, or why it
        is invalid: such a change changes nothing, and the others are applied."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", NeverMatches)
            return self._apply_together(changes, caught) or [self._apply(one, caught) for one in changes]

    def _apply_together(self, changes: Sequence[Change], caught: list[Any]) -> list[list[str] | Exception] | None:
        """Add all subscriptions in one step, if that is possible."""
        rows = [(f"{one.subscriber.name}/{s.name}", s) for one in changes for s in one.put]
        simple = all(not one.remove and not one.subscriber.ephemeral for one in changes)
        if not simple or len(changes) == 1 or len(rows) < FEW or any(s.about for _, s in rows):
            return None
        fresh = [sum(f"{one.subscriber.name}/{s.name}" not in self.index for s in one.put) for one in changes]
        try:
            self._load_all(self.index, rows)
        except (HitboxError, ValueError, TypeError):
            return None
        for one, count in zip(changes, fresh, strict=True):
            self._count(one, count)
        told = any(issubclass(w.category, NeverMatches) for w in caught)
        return [self._warnings(one, caught) if told else [] for one in changes]

    def _warnings(self, change: Change, caught: list[Any]) -> list[str]:
        """What is to be said about valid subscriptions."""
        caught.clear()
        self._put(Index(self.schema, matcher="brute"), change.subscriber, change.put)
        return [str(w.message) for w in caught if issubclass(w.category, NeverMatches)]

    def _apply(self, change: Change, caught: list[Any]) -> list[str] | Exception:
        subscriber, put, remove = change
        index = self.ephemeral_index if subscriber.ephemeral else self.index
        known = [id for name in remove if (id := f"{subscriber.name}/{name}") in index]
        fresh = sum(f"{subscriber.name}/{s.name}" not in index for s in put)
        caught.clear()
        try:
            self._put(index, subscriber, put)
        except Exception as problem:
            return problem
        if known:
            index.unsubscribe_many(known)
        self._count(change, fresh - len(known))
        return [str(w.message) for w in caught if issubclass(w.category, NeverMatches)]

    def _count(self, change: Change, more: int) -> None:
        """Keep the numbers of a subscriber: it has so many subscriptions more."""
        subscriber, put, remove = change
        subscriber.used = time.monotonic()
        subscriber.revision += 1
        subscriber.subscriptions += more
        subscriber.lowest = min([subscriber.lowest, *(s.priority for s in put)])
        self.suspensions.forget(f"{subscriber.name}/{name}" for name in (*(s.name for s in put), *remove))
        if subscriber.ephemeral:
            subscriber.ephemeral_names.update(s.name for s in put)
            subscriber.ephemeral_names.difference_update(remove)

    def clear(self, subscriber: Subscriber) -> None:
        """Remove all subscriptions of a subscriber from the index."""
        index = self.ephemeral_index if subscriber.ephemeral else self.index
        query = "SELECT name FROM subscriptions WHERE subscriber = ?"
        names = subscriber.ephemeral_names or [name for (name,) in self.store.reader.read(query, (subscriber.number,))]
        if names:
            index.unsubscribe_many([f"{subscriber.name}/{name}" for name in names])

    def _put(self, index: Index, subscriber: Subscriber, put: Sequence[Subscription]) -> None:
        if len(put) > 1 and not any(s.about for s in put):
            self._load_all(index, [(f"{subscriber.name}/{s.name}", s) for s in put])
            return
        for at, s in enumerate(put):  # several with `about`: all are checked before the first is added
            if at == 0 and len(put) > 1:
                trial = Index(self.schema, matcher="brute")
                for one in put:
                    trial.subscribe(one.name, one.where, priority=one.priority, about=one.about)
            index.subscribe(f"{subscriber.name}/{s.name}", s.where, priority=s.priority, about=s.about)

    def _load_all(self, index: Index, rows: Sequence[tuple[str, Subscription]]) -> None:
        columns = [[id for id, _ in rows], [s.where for _, s in rows], [s.priority for _, s in rows]]
        try:
            index.load(pa.table(dict(zip(("id", "where", "priority"), columns, strict=True))))
        except (pa.ArrowInvalid, OverflowError) as problem:
            raise BadRequest(f"the subscriptions do not make a table: {problem}") from None

    # ---- matching

    def count(self) -> int:
        """The number of subscriptions."""
        return len(self.index) + len(self.ephemeral_index)

    def costs(self, in_all: int | None = None) -> MatchCosts:
        """What one match call may cost. Nobody pays for the subscriptions of somebody else. `in_all`: the most steps of
        the whole call; beyond, it raises UsedUp."""
        s = self._settings
        return MatchCosts(s.match_steps, s.principal_steps, self._payer, self.suspensions.ids(), in_all)

    def _payer(self, id: str) -> str:
        """The principal that a subscription belongs to; its subscriber if that belongs to none."""
        name = id.partition("/")[0]
        subscriber = self.by_name.get(name)
        return f"/{name}" if subscriber is None or not subscriber.owner else subscriber.owner

    def match(
        self, events: Sequence[Mapping[str, Any]], where: Sequence[str | None], costs: MatchCosts | None = None
    ) -> list[dict[int, list[str]]]:
        """{priority: ids} of the matches of each event in both indexes, without those whose owner may not see it. For
        subscribers with the option `changes` an id is followed by what a change means to it (see changes.py)."""
        costs = costs or self.costs()
        found = self._match(events, where, costs)
        if self.takes_changes:
            self._name_changes(events, where, found, costs)
        for number, event in enumerate(events):
            if hidden := self.visibility.hidden_from(event, costs):
                found[number] = dict(self._visible(iter(found[number].items()), hidden))
        return found

    def own_index(self, subscriber: Subscriber) -> Index:
        """An index of the stored subscriptions of a subscriber alone, to match many events with: of those that are in
        the index of all. In a thread. One that has many has a good part of all, and gets that index."""
        if subscriber.subscriptions > MOST_OWN:
            return self.index
        query = f"SELECT name, wanted, priority, about FROM subscriptions WHERE subscriber = ? AND {READABLE}"
        stored, index = self.store.reader.read(query, (subscriber.number,)), Index(self.schema)
        rows = [(f"{subscriber.name}/{name}", *rest) for name, *rest in stored]
        if known := [row for row in rows if row[0] in self.index]:
            self._load(index, known, lasting=False)  # while the schema changes, they may not fit the one before
        return index

    def match_in(self, index: Index, event: Mapping[str, Any], where: str | None) -> dict[int, list[str]]:
        """{priority: ids} of one event in another index, whoever may see the event."""
        costs = self.costs()
        found = self._match([event], [where], costs, [index])
        if self.takes_changes:
            self._name_changes([event], [where], found, costs, [index])
        return found[0]

    def _match(
        self,
        events: Sequence[Mapping[str, Any]],
        where: Sequence[str | None],
        costs: MatchCosts,
        indexes: Sequence[Index] = (),
    ) -> list[dict[int, list[str]]]:
        found: list[dict[int, list[str]]] = [{} for _ in events]
        asked = where if any(text is not None for text in where) else None
        for index in indexes or (self.index, self.ephemeral_index):
            if not len(index):
                continue
            matches, priorities = index.match_with_priorities(events, asked, 1, budget=costs)
            costs.spend(len(matches.ids) // MATCHES_OF_STEP)
            parts = (matches.ids[at : at + AT_ONCE].to_pylist() for at in range(0, len(matches.ids), AT_ONCE))
            ids, levels = list(chain.from_iterable(parts)), priorities.tolist()
            ends = matches.offsets.tolist()
            for by_level, start, end in zip(found, ends[:-1], ends[1:], strict=True):
                for at in range(start, end):
                    by_level.setdefault(levels[at], []).append(ids[at])
        return [dict(self._in_use(iter(one.items()))) for one in found] if len(self.suspensions) else found

    def _in_use(self, levels: Levels) -> Levels:
        """Without those that are suspended."""
        return _chosen(levels, partial(_is_not_in, self.suspensions.ids()))

    def _name_changes(
        self,
        events: Sequence[Mapping[str, Any]],
        where: Sequence[str | None],
        found: list[dict[int, list[str]]],
        costs: MatchCosts,
        indexes: Sequence[Index] = (),
    ) -> None:
        """Match the old images of changes, and put into `found` what each change means. Where a subscription is too
        expensive for one image, it is told nothing."""
        changed = [(at, *both) for at, event in enumerate(events) if (both := images(self.schema, event)) is not None]
        earlier = [(at, old) for at, old, _ in changed if old is not None]
        asked = [where[at] for at, _ in earlier]
        old_costs = self.costs(None if costs.in_all is None else costs.left_in_all(costs.in_all))
        before = self._match([old for _, old in earlier], asked, old_costs, indexes) if earlier else []
        costs.add(old_costs, [at for at, _ in earlier])
        by_event = dict(zip([at for at, _ in earlier], before, strict=True))
        for at, _, new in changed:
            after = found[at]
            if new is None:  # there is no document any more, which is not one with nothing in it
                after = {level: [id for id in ids if not self._takes_changes(id)] for level, ids in after.items()}
            found[at] = transitions(by_event.get(at, {}), after, self._takes_changes)
        for at, _, _ in changed if costs.ran_out else ():
            out = {id for id, event in costs.ran_out if event == at}
            unsure = {f"{id} {change}" for id in out for change in get_args(Transition)}
            found[at] = dict(_chosen(iter(found[at].items()), partial(_is_not_in, unsure)))

    def _takes_changes(self, id: str) -> bool:
        subscriber = self.by_name.get(id.partition("/")[0])
        return subscriber is not None and subscriber.options.changes

    def levels(
        self, event: Mapping[str, Any], where: str | None, costs: MatchCosts | None = None
    ) -> Iterator[tuple[int, list[str]]]:
        """(priority, ids) of the matches in both indexes, most urgent first, each priority once. Subscriptions whose
        owner may not see the event do not match."""
        hidden = self.visibility.hidden_from(event, costs := costs or self.costs())
        found: Iterator[Any] = self.index.match_levels(event, where, budget=costs) if len(self.index) else iter(())
        if len(self.ephemeral_index):
            found = _merge_levels(found, self.ephemeral_index.match_levels(event, where, budget=costs))
        found = self._in_use(found) if len(self.suspensions) else found
        return self._visible(found, hidden) if hidden else found

    def _visible(self, levels: Levels, hidden: frozenset[str]) -> Levels:
        return _chosen(levels, lambda id: not self._belongs_to(id, hidden))

    def _belongs_to(self, id: str, owners: frozenset[str]) -> bool:
        subscriber = self.by_name.get(id.partition("/")[0])
        return subscriber is not None and subscriber.owner in owners

    def takers_of_unmatched(
        self, event: Mapping[str, Any], matched: Collection[Subscriber], costs: MatchCosts | None = None
    ) -> list[Subscriber]:
        """The subscribers that get an event although it does not match them: those that ask for it, unless their owner
        may know of one of those that it matched. So nobody learns from it whether others match."""
        hidden = self.visibility.hidden_from(event, costs)
        takers = [one for one in list(self.takes_unmatched.values()) if one.owner not in hidden and one not in matched]
        unaware = self.visibility.unaware({one.owner for one in takers}, matched)
        return [one for one in takers if one.owner in unaware]

    # ---- snapshots and schema

    def save(self) -> dict[str, int]:
        """Save the index; returns the value of `snapshot` in table meta. A change that comes during the save is applied
        again at start, which is harmless. However many are saved, the one that the store knows stays."""
        if self._remembered is not None:
            with contextlib.suppress(SnapshotError):  # it is gone
                snapshot.pin(self.path, "broker", self._remembered)
        change = self.store.subscribers.changes.next() - 1
        return {"version": self.index.save(self.path), "change": change}

    def remembered(self, saved: Mapping[str, int]) -> None:
        """The store has this value of `snapshot`: the next start opens it."""
        self._remembered = saved["version"]

    def adopt(self, schema: Schema, index: Index) -> None:
        self.schema, self.index = schema, index
        self.ephemeral_index = Index(schema, matcher=index.matcher)
        self.event_checker = Index(schema)  # stays empty: it only validates events

    def with_schema(self, schema: Schema) -> Index:
        """Build the index with another schema. Raises Conflict if a subscription does not fit the schema."""
        index = Index(schema)
        bad: list[str] = []
        query = f"SELECT subscriber, name, wanted, priority, about FROM subscriptions WHERE {READABLE}"
        rows = self.store.reader.read(query)
        for number, name, where, priority, about in rows:
            if number not in self.by_number:
                continue
            id = f"{self.by_number[number].name}/{name}"
            try:
                _without_warnings(index.subscribe, id, where, priority=priority, about=stored_about(about))
            except HitboxError as problem:
                bad.append(f"{id}: {problem}")
        if bad:
            raise contradiction(bad, "subscription")
        return index


def contradiction(bad: Sequence[str], what: str) -> Conflict:
    """The error for what contradicts a new schema."""
    more = f"\n(and {len(bad) - 5} more)" if len(bad) > 5 else ""
    many = f"{len(bad)} {what}s contradict" if len(bad) > 1 else f"1 {what} contradicts"
    return Conflict(f"{many} the new schema:\n" + "\n".join(bad[:5]) + more)


def stored_about(stored: str) -> dict[str, Any]:
    """Decode the stored `about` of a subscription."""
    try:
        found = json.loads(stored)
    except (ValueError, RecursionError) as problem:
        raise BadRequest(f"its `about` cannot be read: {problem}") from None
    if not isinstance(found, dict):
        raise BadRequest(f"its `about` is a JSON object, not {stored:.100}")
    return found


def _is_not_in(some: Collection[str], id: str) -> bool:
    return id not in some


def _chosen(levels: Levels, wanted: Callable[[str], bool]) -> Levels:
    for level, ids in levels:
        if chosen := list(filter(wanted, ids)):
            yield level, chosen


def _merge_levels(*sources: Iterator[Any]) -> Levels:
    """Merge streams of (priority, ids), each in descending order. Each priority comes once: if it came twice, its
    second part would be delivered after later events."""
    heads = [(found, source) for source in sources if (found := next(source, None)) is not None]
    while heads:
        top = max(priority for (priority, _), _ in heads)
        yield top, [id for (priority, ids), _ in heads if priority == top for id in ids]
        ahead = [(next(source, None) if found[0] == top else found, source) for found, source in heads]
        heads = [(found, source) for found, source in ahead if found is not None]


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for first, second in dict.fromkeys(pairs):
        found.setdefault(first, []).append(second)
    return found


def _without_warnings(call: Any, *args: Any, **named: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NeverMatches)
        call(*args, **named)
