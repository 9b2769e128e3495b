"""Changes of subscriptions: those that arrive together are applied as one group.

    ask --> waiting --> group: admitted within the limits --> index --> store --> answered
                                                                          |
                                                        refused: undone in the index

Events are not matched while a group is applied. What is invalid or over a limit fails alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any, Protocol, TypeVar

from hitbox.broker.access.directory import Directory
from hitbox.broker.delivery.change_barrier import ChangeBarrier
from hitbox.broker.delivery.mailbox import Mailbox
from hitbox.broker.delivery.webhooks import Webhooks
from hitbox.broker.settings import Settings
from hitbox.broker.stats import Statistics
from hitbox.broker.store.group_commit import Writer
from hitbox.broker.store.store import Store
from hitbox.broker.store.tables import StoredChange
from hitbox.broker.subscribers.subscriptions import Change, Subscriber, Subscription, SubscriptionRegistry
from hitbox.broker.subscribers.suspensions import Failure
from hitbox.errors import HitboxError, UnknownSubscription
from hitbox.protocol.errors import Overloaded, StoreFailed, Unknown

T = TypeVar("T")
log = logging.getLogger("hitbox.broker")

INLINE_BYTES = 8_000
"""A group with more text than this is applied in a thread."""
NAMED = 3
"""Subscriptions that a line of the log names."""
GROUP = 5_000
"""Subscriptions in a group; a request with more is a group of its own."""


@dataclass(slots=True, eq=False)
class WantedChange:
    """What a request asks for. `change`, `fresh`, `claimed` and `warnings` are known when its turn comes."""

    name: str
    put: list[Subscription]
    remove: list[str]
    strict: bool
    owner: str
    done: asyncio.Future[list[str]]
    change: Change = field(init=False)
    fresh: bool = False
    """Its subscriber is new."""
    claimed: str = ""
    """The principal that its subscriber belongs to from now on."""
    warnings: list[str] = field(default_factory=list)

    def count(self) -> int:
        return len(self.put) + len(self.remove)

    def size(self) -> int:
        """Of its texts, in characters."""
        return sum(len(one.where) + 100 for one in self.put) + 100 * len(self.remove)

    def ids(self) -> set[str]:
        return {f"{self.name}/{one.name}" for one in self.put} | {f"{self.name}/{name}" for name in self.remove}

    def stored(self) -> StoredChange:
        """For the store."""
        subscriber = self.change.subscriber
        options = subscriber.record() if self.fresh or self.claimed else None
        rows = [one.row() for one in self.put]
        return StoredChange(subscriber.number, subscriber.name, rows, self.remove, options, self.claimed)

    def succeed(self) -> None:
        if not self.done.done():
            self.done.set_result(self.warnings)

    def fail(self, problem: BaseException) -> None:
        if not self.done.done():
            self.done.set_exception(problem)
            self.done.exception()  # the client may have gone


def next_group(waiting: deque[WantedChange], known: Mapping[str, Subscriber]) -> list[WantedChange]:
    """Take the changes that can be applied together: no two of one subscription, and only one of a subscriber that is
    new or gets an owner."""

    def is_settled(one: WantedChange) -> bool:
        return one.name in known and one.owner in ("", known[one.name].owner)

    group = [waiting.popleft()]
    count, ids, names = group[0].count(), group[0].ids(), {group[0].name}
    while waiting and count + waiting[0].count() <= GROUP:
        one = waiting[0]
        if (one.name in names and not is_settled(one)) or not ids.isdisjoint(one.ids()):
            break
        group.append(waiting.popleft())
        count += one.count()
        ids |= one.ids()
        names.add(one.name)
    return group


class Host(Protocol):
    """The part of the broker that changes of subscriptions need."""

    registry: SubscriptionRegistry
    settings: Settings
    directory: Directory
    statistics: Statistics
    store: Store
    writer: Writer
    change_barrier: ChangeBarrier
    webhooks: Webhooks
    mailboxes: dict[int, Mailbox]

    def known_or_new(self, name: str, owner: str, more: int = 0) -> tuple[Subscriber, bool]: ...

    def add_subscriber(self, subscriber: Subscriber) -> None: ...

    def forget_subscriber(self, subscriber: Subscriber, reason: str) -> None: ...

    def start_change(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]: ...

    async def wait_for_stored_changes(self) -> None: ...


class SubscriptionChanges:
    def __init__(self, broker: Host):
        self._broker, self._registry, self._store = broker, broker.registry, broker.store
        self._waiting: deque[WantedChange] = deque()
        self._running: asyncio.Task[None] | None = None
        self.storing: set[asyncio.Future[Any]] = set()
        """What the store has not answered yet."""
        self.unconfirmed: set[asyncio.Future[list[str]]] = set()
        """Changes that may be in the index, and are neither in the store nor undone yet."""
        self.undone = 0
        """How many changes were in the index and were undone, because the store refused them."""

    async def ask(self, name: str, put: list[Subscription], remove: list[str], strict: bool, owner: str) -> list[str]:
        """Apply a change with the next group; returns warnings."""
        wanted = WantedChange(name, put, remove, strict, owner, asyncio.get_running_loop().create_future())
        self._waiting.append(wanted)
        if self._running is None:  # the others of this turn of the event loop join the group
            self._running = self._broker.start_change(self._run())
        return await asyncio.shield(wanted.done)

    async def _run(self) -> None:
        """Apply all changes of subscriptions that wait, each group with one pause of the events and one commit."""
        try:
            while self._waiting:
                async with self._broker.change_barrier.exclusive():
                    group = next_group(self._waiting, self._registry.by_name)
                    try:
                        await self._apply(group)
                    except Exception as problem:
                        self._broker.statistics.counts["errors"] += 1
                        log.exception("changes of subscriptions failed unexpectedly")
                        for wanted in group:
                            wanted.fail(problem)
        finally:
            self._running = None

    async def _apply(self, group: list[WantedChange]) -> None:
        """Change the index, and hand the changes to the store. The caller holds the change barrier exclusively. What a
        limit refuses because of others of its group is looked at again after them: an invalid one takes no room."""
        owned: dict[str, int] = {}
        for wanted in await self._apply_together(group, owned):
            await self._apply_together([wanted], owned)

    async def _apply_together(self, group: list[WantedChange], owned: dict[str, int]) -> list[WantedChange]:
        """Returns the changes that are to be looked at again. `owned`: how many subscriptions principals with a quota
        have."""
        admitted, again = self._admitted(group, owned)
        for wanted in admitted:
            self.unconfirmed.add(wanted.done)
            wanted.done.add_done_callback(self.unconfirmed.discard)
        small = sum(map(WantedChange.size, admitted)) <= INLINE_BYTES
        changes = [wanted.change for wanted in admitted]
        apply = self._registry.apply
        found = apply(changes) if small else await self._registry.in_thread(apply, changes)
        freeing: list[WantedChange] = []
        others: list[WantedChange] = []
        for wanted, result in zip(admitted, found, strict=True):
            subscriber = wanted.change.subscriber
            if wanted.remove or isinstance(result, Exception):
                owned.pop(subscriber.owner or wanted.owner, None)  # it may be fewer: to be counted again
            if isinstance(result, Exception):
                wanted.fail(result)
                continue
            wanted.warnings = result
            if subscriber.ephemeral:
                wanted.succeed()
                continue
            wanted.claimed = wanted.owner if not subscriber.owner else ""
            subscriber.owner = subscriber.owner or wanted.claimed
            if wanted.fresh:
                self._broker.add_subscriber(subscriber)
            elif wanted.claimed:  # its webhook goes on with the rights of the owner
                self._broker.webhooks.update(self._broker.mailboxes[subscriber.number])
            (others if wanted.put or wanted.fresh else freeing).append(wanted)
        for some in (freeing, others):
            if some:
                self._store_group(some, frees_space=some is freeing)
        return again

    def _admitted(
        self, group: list[WantedChange], owned: dict[str, int]
    ) -> tuple[list[WantedChange], list[WantedChange]]:
        """Those within the limits, and those that are beyond one only because of others of the group."""
        most = self._broker.settings.max_subscriptions
        room, new = most - len(self._registry.index) - len(self._registry.ephemeral_index), 0
        admitted: list[WantedChange] = []
        again: list[WantedChange] = []
        for wanted in group:
            problem = self._admit(wanted, room, new, owned)
            if problem is None:
                admitted.append(wanted)
                room, new = room - len(wanted.put), new + wanted.fresh
            elif admitted:
                again.append(wanted)
            else:
                wanted.fail(problem)
        return admitted, again

    # ---- subscriptions that are too expensive

    def note_failures(self, failures: Sequence[Failure]) -> None:
        """Subscriptions ran out of steps: count that, and suspend those to which it happened too often."""
        rows: list[tuple[int, str, int, str]] = []
        for seq, some in groupby(failures, key=lambda one: one.seq):
            ids = [one.id for one in some]
            text = "subscriptions that took too many steps do not get event %d: %s"
            log.warning(text, seq, ", ".join(ids[:NAMED]) + (f" and {len(ids) - NAMED} more" if ids[NAMED:] else ""))
        self._broker.statistics.counts["too_expensive"] += len(failures)
        for one in failures:
            made = self._registry.suspensions.blame(one.id) if one.blamed else None
            owner, _, name = one.id.partition("/")
            subscriber = self._registry.by_name.get(owner)
            if made is None or subscriber is None:
                continue
            log.warning("the subscription %s is %s: change it, or resume it", one.id, made.text())
            if not subscriber.ephemeral:
                rows.append((subscriber.number, name, *made))
        if rows:
            self._in_store(self._broker.writer.submit(partial(self._store.subscribers.suspend, rows), mandatory=True))

    def _in_store(self, stored: asyncio.Future[Any]) -> None:
        self.storing.add(stored)
        stored.add_done_callback(self.storing.discard)

    async def resume(self, subscriber: Subscriber, name: str) -> None:
        """Use a subscription again that was suspended."""
        self._check_known(subscriber, [name])
        if not subscriber.ephemeral:
            resume = partial(self._store.subscribers.resume, subscriber.number, name)
            resumed = self._broker.writer.submit(resume, mandatory=True)
            self._in_store(resumed)
            await resumed
        self._registry.suspensions.forget([f"{subscriber.name}/{name}"])

    # ---- the store

    def _store_group(self, group: list[WantedChange], frees_space: bool) -> None:
        rows = [wanted.stored() for wanted in group]
        stored = self._broker.writer.submit(partial(self._store.subscribers.change, rows), frees_space=frees_space)
        self._in_store(stored)
        stored.add_done_callback(partial(self._stored, group))

    def _admit(self, wanted: WantedChange, room: int, new: int, owned: dict[str, int]) -> HitboxError | None:
        """Find or make its subscriber; returns why the change is refused. `room`: for how many subscriptions. `new`:
        subscribers that the changes before this one make. `owned`: with the subscriptions that they make."""
        try:
            subscriber, wanted.fresh = self._broker.known_or_new(wanted.name, wanted.owner, new)
            if wanted.strict:
                self._check_known(subscriber, wanted.remove)
            if wanted.put and len(wanted.put) > room:
                raise Overloaded(f"{self._broker.settings.max_subscriptions} subscriptions are the most", 60)
            self._check_quota(subscriber, wanted, owned)
        except HitboxError as problem:
            return problem
        wanted.change = Change(subscriber, wanted.put, wanted.remove)
        return None

    def _check_quota(self, subscriber: Subscriber, wanted: WantedChange, owned: dict[str, int]) -> None:
        """Raise if the owner of the subscriber would have more subscriptions than it may have. If it becomes the owner
        with this change, the subscriptions that are there count, too."""
        owner = subscriber.owner or wanted.owner
        directory = self._broker.directory
        if not directory.quotas(owner).max_subscriptions:
            return
        if owner not in owned:
            owned[owner] = directory.owned_subscriptions(owner)
        index = self._registry.ephemeral_index if subscriber.ephemeral else self._registry.index
        fresh = sum(f"{subscriber.name}/{one.name}" not in index for one in wanted.put)
        gone = sum(f"{subscriber.name}/{name}" in index for name in wanted.remove)
        claimed = subscriber.subscriptions if not subscriber.owner else 0
        more = claimed + fresh - gone
        directory.check_quota(owner, more, owned[owner])
        owned[owner] += max(more, 0)

    def _stored(self, group: list[WantedChange], stored: asyncio.Future[set[int]]) -> None:
        """The store has a group of changes, or refused them."""
        problem = StoreFailed("the broker was stopped") if stored.cancelled() else stored.exception()
        for wanted in group:
            missing = problem is None and wanted.change.subscriber.number in stored.result()
            if problem is None and not missing:
                wanted.succeed()
            else:
                gone = Unknown(f"there is no subscriber {wanted.name!r}: it was removed in the meantime")
                self._broker.start_change(self._undo_and_fail(wanted, problem or gone))

    async def _undo_and_fail(self, wanted: WantedChange, problem: BaseException) -> None:
        try:
            await self._undo(wanted.change.subscriber, [one.name for one in wanted.put] + wanted.remove)
        finally:
            self.undone += 1
            wanted.fail(problem)

    def _check_known(self, subscriber: Subscriber, names: Iterable[str]) -> None:
        index = self._registry.ephemeral_index if subscriber.ephemeral else self._registry.index
        for name in names:
            if f"{subscriber.name}/{name}" not in index:
                raise UnknownSubscription(f"subscriber {subscriber.name!r} has no subscription {name!r:.100}")

    async def _undo(self, subscriber: Subscriber, names: list[str]) -> None:
        """The store refused a change: make the index agree with the store again."""
        async with self._broker.change_barrier.exclusive():
            await self._broker.wait_for_stored_changes()
            known, subscriber.owner, subscriber.subscriptions = await self._registry.in_thread(
                self._copy_from_store, subscriber, names
            )
            if not known and self._registry.by_number.get(subscriber.number) is subscriber:
                self._broker.forget_subscriber(subscriber, "the subscriber could not be stored")

    def _copy_from_store(self, subscriber: Subscriber, names: list[str]) -> tuple[bool, str, int]:
        """Copy subscriptions to the index. Returns whether the store has the subscriber, its owner, and how many
        subscriptions it has. In a thread."""
        stored = self._store.subscribers.subscriptions_of(subscriber.number, names)
        self._registry.copy_from_store(subscriber, {name: stored.get(name) for name in names})
        query = """SELECT EXISTS (SELECT 1 FROM subscribers WHERE number = :number),
                   ifnull((SELECT principal FROM owners WHERE subscriber = :number), ''),
                   (SELECT count(*) FROM subscriptions WHERE subscriber = :number)"""
        ((known, owner, count),) = self._store.reader.read(query, {"number": subscriber.number})
        return bool(known), owner, count
