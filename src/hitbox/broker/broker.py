"""The broker: accepts events and subscriptions, stores them, and delivers each event to the subscribers that want it.

    publish --> store (group commit) --> acknowledged to the publisher
                   |
                   +--> dispatcher: match in groups, split by level --> mailboxes --> connections --> acknowledged
                          |
                          +--> store: pending deliveries

Everything runs on one event loop, except the store's writer, which is a thread. Once it has started, the loop never
waits for the store: what is read is read in threads. Nothing here depends on HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from hitbox.broker.access.directory import Directory, publishers
from hitbox.broker.access.rights import PUBLISH, Caller
from hitbox.broker.access.usage import Charge, store_charges
from hitbox.broker.clock import clock, time
from hitbox.broker.delivery.backlog import Backlog
from hitbox.broker.delivery.change_barrier import ChangeBarrier
from hitbox.broker.delivery.delayed import DelayedEvents
from hitbox.broker.delivery.delivery import DeliveryTracker
from hitbox.broker.delivery.dispatcher import BATCH, LOOP_STEPS, AcceptedEvent, Dispatcher, Row
from hitbox.broker.delivery.expiry import ExpirySearch
from hitbox.broker.delivery.mailbox import Connection, Mailbox
from hitbox.broker.delivery.target_address import check_literal
from hitbox.broker.delivery.waiting import Waiting
from hitbox.broker.delivery.webhooks import Webhooks
from hitbox.broker.events.cloudevents import check_context
from hitbox.broker.events.json_text import LARGE, check_size
from hitbox.broker.events.message_ids import Key, MessageIds, key_of
from hitbox.broker.events.published_event import PublishedEvent, expires_at
from hitbox.broker.fair_threads import FairThreads
from hitbox.broker.settings import Options, Settings, check_name, check_options, check_schema, check_settings
from hitbox.broker.stats import Statistics
from hitbox.broker.store.disk import Disk
from hitbox.broker.store.group_commit import Writer
from hitbox.broker.store.retention import Trimmed
from hitbox.broker.store.store import Store
from hitbox.broker.store.tables import NEVER
from hitbox.broker.subscribers.subscriber_record import USE_SECONDS, record_of, with_use
from hitbox.broker.subscribers.subscription_changes import SubscriptionChanges
from hitbox.broker.subscribers.subscriptions import Subscriber, Subscription, SubscriptionRegistry
from hitbox.broker.subscribers.webhook import Webhook, WebhookSettings, check_url
from hitbox.broker.turns import in_turns
from hitbox.encoding.fitting import fitted, misfit
from hitbox.encoding.schema import Schema
from hitbox.errors import HitboxError
from hitbox.index.match_budget import UsedUp
from hitbox.protocol.errors import (
    BadRequest,
    Conflict,
    Forbidden,
    Overloaded,
    StoreFailed,
    StoreFull,
    TooLarge,
    Unknown,
)
from hitbox.version import __version__

if TYPE_CHECKING:
    from hitbox.broker.telemetry import Telemetry  # an extra

TICK_SECONDS = 0.1
RETENTION_SECONDS = 5.0
TRIM_ROWS = 10_000
"""Events that retention removes at once: the store needs about 40 ms for them."""
RECORDS_AHEAD = 8
"""Matched batches whose deliveries may be waiting for the store; at this number matching waits for the store too."""
ROWS_AHEAD = 500_000
"""Deliveries that may be waiting for the store while the disk is full."""
Publish = tuple[Sequence[PublishedEvent], list[bytes], asyncio.Future[int], Caller, Charge | None]
"""Events, their texts, the number of the first, once it is known, who publishes them, and the quota that they used."""
Group = list[Publish]
"""Publishes that are stored together."""
T = TypeVar("T")
LOADED_ROWS = 5_000
"""Events that are read from the store at once."""
PUT_TRIES = 10
"""To store the settings of a subscriber; on a full disk the store needs up to three, and then pauses."""
SAVE_TRIES = 3
SAVE_SECONDS = 60.0
"""For the store to answer what changed while the index was saved."""
EXPIRE_AT_ONCE = 10
"""Unused subscribers that are removed per second."""
EXPIRED = "subscriber %r was not used for %g seconds: it is removed with its %d subscriptions and pending deliveries"
SCHEMA_NEEDED = "a new broker needs a schema, e.g. --schema 'price:float,city:string'"
MANY = 200
"""A batch of more events than this is checked in a thread, so that it does not delay the event loop."""
log = logging.getLogger("hitbox.broker")


class Broker:
    """A running broker. `disk` and `writer` are replaced by the simulator."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        schema: Schema | None = None,
        settings: Settings | None = None,
        disk: Disk | None = None,
        writer: type[Writer] = Writer,
        telemetry: Telemetry | None = None,
    ) -> None:
        self.telemetry = telemetry
        self.settings = check_settings(settings or Settings())
        schema = schema if schema is None else check_schema(schema)
        self.store = Store(folder, self.settings.max_store_bytes, disk)
        try:
            self.store.begin_history()
            self._mark = self.store.clock_mark()
            s = self.settings
            clock.start(self.store.events.newest_time(), self._mark, s.clock_jump_seconds, s.clock_hold_seconds)
        except BaseException:
            self.store.close()
            raise
        self._make_writer = writer
        try:
            self.registry = SubscriptionRegistry(self.store, self._schema(schema), self.settings)
            self.directory = Directory(self.store, self.registry)
        except BaseException:
            self.store.close()
            raise
        self.statistics = Statistics()
        self.message_ids = MessageIds(self.settings.message_ids)
        self._subscription_changes = SubscriptionChanges(self)
        self.webhooks = Webhooks(self)
        self.mailboxes: dict[int, Mailbox] = {}
        self._busy: dict[int, Mailbox] = {}  # those with pending deliveries, or over their limit
        self.dispatcher = Dispatcher(self.registry, self.mailboxes, self.settings.way)
        self.waiting = Waiting(self.settings)
        self._accepted: deque[AcceptedEvent] = deque()
        self._arrived: Group = []
        self._append_task: asyncio.Task[None] | None = None
        self._work = asyncio.Event()
        self._ahead: dict[asyncio.Future[None], int] = {}  # deliveries that wait for the store: number of rows
        self._changes: set[asyncio.Task[Any]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._saving = asyncio.Lock()
        self.replays = FairThreads("hitbox-replay", 2)
        self.replaying = Counter[str]()  # how many replays of each principal are under way
        self._failed_events: list[int] = []  # that could not be matched; the store knows them
        self.started = self.closing = False
        self.failed: BaseException | None = None

    def _schema(self, given: Schema | None) -> Schema:
        stored = self.store.meta.get("schema")
        if stored is None:
            if given is None:
                raise BadRequest(SCHEMA_NEEDED)
            with self.store.transaction():
                self.store.meta.put("schema", given.to_json())
            return given
        kept = Schema.from_json(stored)
        if given is not None and given != kept:
            raise Conflict(
                "the broker has another schema already: leave --schema out, start it, and change the schema with "
                "`hitbox admin schema change`"
            )
        return kept

    # ---- start and stop

    async def start(self) -> None:
        """Start. Events that a crash left unmatched are matched first. Waits for no write: the disk may be full."""
        self.change_barrier = ChangeBarrier()
        pending, losses = self.store.deliveries.pending(), self.store.subscribers.losses()
        for number, subscriber in self.registry.by_number.items():
            self.mailboxes[number] = mailbox = Mailbox(subscriber, pending.get(number, 0), self._busy)
            mailbox.dropped, mailbox.expired, mailbox.dead = losses.get(number, (0, 0, 0))
        self.writer = self._make_writer(self.store, asyncio.get_running_loop(), self._retain)
        self.delayed = DelayedEvents(
            self.store, self.writer, self.settings, self.directory, self.message_ids, self.change_barrier, self.waiting,
            self.queue_stored,
        )  # fmt: skip
        self.tracker = DeliveryTracker(self.store, self.writer, self.statistics, self.settings, self.telemetry)
        self.expiry = ExpirySearch(self.tracker, self.mailboxes)
        self.backlog = Backlog(self.tracker, self._busy)
        self._failed_events = self.store.events.failed()
        if self._failed_events:
            await self._match_again()
        last = self.store.events.number_of_latest(1)
        self.message_ids.load(self._latest(self.settings.message_ids))
        self.delayed.start()
        query = "SELECT count(*), sum(length(body)), principal FROM events WHERE seq > ? GROUP BY principal"
        for waiting in self.store.reader.read(query, (self.tracker.recorded,)):
            self.waiting.add(*waiting)
        if self.waiting.events:
            await self.change_barrier.enter(self.waiting.events)
        work = (self._dispatch(last), self._housekeeping(), self._retention())
        self._tasks = [asyncio.create_task(one) for one in work]
        for task in self._tasks:
            task.add_done_callback(self._ended)
        self.started = True
        for mailbox in list(self.mailboxes.values()):
            if mailbox.subscriber.webhook is not None:
                self.webhooks.update(mailbox)

    async def _match_again(self) -> None:
        """Match events that an earlier run could not match completely. The store knows which of their deliveries are
        pending already, so the mailboxes hear of the others from it."""
        dispatcher = Dispatcher(self.registry, {}, self.settings.way)
        batch = [self._accepted_before(seq, when, "", body) for seq, when, body in self.store.events.failed_events()]
        rows: list[Row] = []
        failed: list[int] = []
        while batch:
            more, matched = await dispatcher.run(batch)
            rows += more
            failed += dispatcher.failed
            self._subscription_changes.note_failures(dispatcher.expensive)
            batch = batch[len(matched) :]
        self._failed_events = failed
        recorded = self.writer.submit(lambda: self.store.deliveries.record_failed(rows, failed), mandatory=True)
        recorded.add_done_callback(self._added)
        self._track_record(recorded, len(rows))

    def _added(self, recorded: asyncio.Future[dict[int, int]]) -> None:
        if not recorded.cancelled() and recorded.exception() is None:
            for number, count in recorded.result().items():
                if (mailbox := self.mailboxes.get(number)) is not None:
                    mailbox.rows_added(count)

    def _latest(self, count: int) -> Iterator[tuple[int, str, bytes]]:
        """Number, principal and text of the latest stored events, those that principals of now have published."""
        at, first = self.store.events.number_of_latest(count), publishers(self.store)
        while at and (rows := self.store.events.from_number(at, LOADED_ROWS)):
            yield from ((seq, name, body) for seq, _, name, body in rows if first.get(name, NEVER) <= seq)
            at = rows[-1][0] + 1

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A task failed: accept nothing more. Accepted events are in the store and are matched after a restart."""
        problem = None if task.cancelled() else task.exception()
        if problem is not None:
            self._fail(problem)

    def _fail(self, problem: BaseException) -> None:
        self.failed = problem
        log.critical("the broker failed and accepts no more events; restart it", exc_info=problem)

    def _unmatched(self) -> list[AcceptedEvent]:
        """The next events that were stored but not matched before a crash; some may have been delivered."""
        rows = self.store.events.from_number(self.tracker.recorded + 1, BATCH)
        return [self._accepted_before(*row) for row in rows]

    def _accepted_before(self, seq: int, when: int, principal: str, body: bytes) -> AcceptedEvent:
        """An event that an earlier run stored."""
        item, expires = msgspec.json.decode(body, type=PublishedEvent), expires_at(when, body)
        return AcceptedEvent(seq, item.event, item.where, body, when, 0, True, 0, expires, principal)

    async def stop(self) -> None:
        """Accept nothing more, finish what was accepted, save the index and close."""
        self.closing = True
        if self.failed is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(30):
                    await self.delayed.stop()
                    async with self.change_barrier.exclusive():
                        pass
                    while unfinished := {*self._changes, *self._subscription_changes.storing}:
                        await asyncio.wait(unfinished)
        for task in self._tasks:
            task.cancel()
        self.close_connections()
        await self.webhooks.stop()
        if self.store.subscribers.changes.rows() and not self.writer.full:
            with contextlib.suppress(HitboxError, OSError):
                await self.snapshot()
        with contextlib.suppress(HitboxError):
            await self.writer.submit(partial(self.store.deliveries.settle, self.store.recent.count))
            await self._keep_mark()
        await self.writer.close()
        self.registry.end_thread()
        self.replays.end()
        self.tracker.looks.end()
        self.store.close()
        clock.stop()

    def close_connections(self) -> None:
        for mailbox in self.mailboxes.values():
            for connection in mailbox.connections():
                connection.close(1012, "the broker is shutting down")

    async def snapshot(self) -> dict[str, int]:
        """Save the index and drop the recorded changes that it contains. Who asks for it meanwhile waits, and takes no
        thread from others."""
        async with self._saving:
            saved = await self._save_index()

            def remember() -> None:
                self.store.meta.put("snapshot", saved)
                self.store.subscribers.changes.delete_through(saved["change"])

            await self.writer.submit(remember)
            self.registry.remembered(saved)
            self.statistics.counts["snapshots"] += 1
            return saved

    async def _save_index(self) -> dict[str, int]:
        """Save the index when it contains nothing that the store refuses: a start could not tell."""
        changes = self._subscription_changes
        for _ in range(SAVE_TRIES):
            undone = changes.undone
            saved = await asyncio.to_thread(self.registry.save)
            left: set[Any] = set()
            if changes.unconfirmed:
                _, left = await asyncio.wait(changes.unconfirmed, timeout=SAVE_SECONDS)
            if not left and changes.undone == undone:
                return saved
        raise Overloaded("the store refuses changes of subscriptions while the index is saved; try again later", 60)

    # ---- publishing

    def check(self, items: Sequence[PublishedEvent]) -> list[bytes]:
        """The JSON texts to store. Raises the error of the first event that is invalid."""
        bodies = []
        for at, item in enumerate(items):
            try:
                body = self._checked(item)
            except (HitboxError, UnicodeEncodeError) as problem:
                if not isinstance(problem, HitboxError):
                    raise BadRequest(f"event {at} holds a lone surrogate") from None
                if len(items) > 1:
                    problem.add_note(f"event {at} of {len(items)}; none was accepted")
                raise
            bodies.append(body)
        if len({item.delay_seconds is None for item in items}) > 1:
            raise BadRequest("some of the events have delay_seconds and some do not: publish them in two requests")
        return bodies

    def _checked(self, item: PublishedEvent) -> bytes:
        """The JSON text of an event. The size comes first: what else is checked may cost more than reading it."""
        if item.payload or item.content_type is not None:
            check_size(item.payload, self.settings.sent_event_bytes(), "the payload")
            item = item.with_checked_payload()
        self.registry.event_checker.match(item.event, item.where)
        item.check_id()
        item.check_traceparent()
        item.check_times()
        if item.cloudevent is not None:
            check_context(item.cloudevent)
        body = msgspec.json.encode(item)
        if len(body) > self.settings.max_event_bytes:
            with_payload = " with its payload" if item.payload else ""
            raise TooLarge(
                f"the event has {len(body)} bytes{with_payload}; the most is {self.settings.max_event_bytes} "
                "(max_event_bytes)"
            )
        return body

    def fitting(self, items: Sequence[PublishedEvent], on_error: str) -> tuple[list[PublishedEvent], dict[int, str]]:
        """Those that can be published, and by number what is wrong (encoding/fitting.py). With "null", values that do
        not fit are null, and only what cannot be published even then is left out."""
        kept: list[PublishedEvent] = []
        errors: dict[int, str] = {}
        for number, item in enumerate(items):
            problem = misfit(self.registry.event_checker.match, item.event)
            if problem:
                errors[number] = problem
                if on_error == "return":
                    continue
                item = msgspec.structs.replace(item, event=fitted(self.registry.event_checker.match, item.event))
            problem = misfit(self._check_alone, item)
            if problem:
                errors.setdefault(number, problem)
            else:
                kept.append(item)
        return kept, errors

    def _check_alone(self, item: PublishedEvent) -> None:
        self.check([item])

    async def publish(self, items: Sequence[PublishedEvent], caller: Caller | None = None, size: int = 0) -> int:
        """Accept events; returns the number of the first one, once all are durable. `caller`: who publishes them; None:
        the program itself. `size`: how many bytes they were. Delayed events have no numbers yet: it is the number of
        the first among the delayed ones, or 0 if that is an event already, because the publish is a repetition."""
        return await asyncio.shield(await self.accept(items, caller or self.acting_for(""), size))

    async def accept(self, items: Sequence[PublishedEvent], caller: Caller, size: int) -> asyncio.Future[int]:
        """Check events, and that the caller may publish them, and add them to the group that is stored next. The future
        has the number of the first one, once all are durable; they are stored even if nobody waits for it."""
        if not items:
            nothing: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            nothing.set_result(self.store.events.table.next() - 1)
            return nothing
        if size <= LARGE and are_few(items):
            with contextlib.suppress(UsedUp):
                return self.accept_now(items, caller)
        try:
            while True:
                predicates = self.directory.predicates
                bodies = await asyncio.to_thread(self._permitted, items, caller)
                caller.check(PUBLISH)
                if self.directory.predicates is predicates:  # otherwise rights or the schema changed during the check
                    return self._accept_checked(items, bodies, caller)
        except HitboxError:
            self.statistics.counts["refused"] += len(items)
            raise

    def accept_now(self, items: Sequence[PublishedEvent], caller: Caller) -> asyncio.Future[int]:
        """Accept a few events (`are_few`) that are not LARGE, without a turn of the event loop. Raises UsedUp if it
        takes too long to find out whether they are allowed."""
        try:
            return self._accept_checked(items, self._permitted(items, caller, LOOP_STEPS), caller)
        except HitboxError:
            self.statistics.counts["refused"] += len(items)
            raise

    def _permitted(self, items: Sequence[PublishedEvent], caller: Caller, most: int | None = None) -> list[bytes]:
        """The JSON texts to store, of events that the caller may publish. `most`: see `check_publish`."""
        caller.check(PUBLISH)
        caller.check_publish(items, most)
        return self.check(items)

    def _accept_checked(
        self, items: Sequence[PublishedEvent], bodies: list[bytes], caller: Caller
    ) -> asyncio.Future[int]:
        keys = [key_of(item, caller.name) for item in items] if self.settings.message_ids else []
        if any(keys):
            return self._accept_once(items, bodies, keys, caller)
        return self._accept(items, bodies, caller)

    def _accept_once(
        self, items: Sequence[PublishedEvent], bodies: list[bytes], keys: Sequence[Key | None], caller: Caller
    ) -> asyncio.Future[int]:
        """Accept events with ids. Those that are stored, or about to be, are not stored again."""
        contents = [item.content(body) for item, body in zip(items, bodies, strict=True)]
        found = self.message_ids.sort(items, keys, contents)
        stored = None
        if found.fresh:
            stored = self._accept([items[at] for at in found.fresh], [bodies[at] for at in found.fresh], caller)
            fresh = [keys[at] for at in found.fresh], [contents[at] for at in found.fresh]
            self.message_ids.add(*fresh, stored, items[0].delay_seconds is not None)
        self.statistics.counts["repeated"] += len(items) - len(found.fresh)
        if stored is not None and not found.known:
            return stored

        async def answer() -> int:
            """The number of the first event, once all are durable."""
            for one in [known.stored for known in found.known] + [stored]:
                if one is not None:
                    await asyncio.shield(one)
            if found.first is None:
                return stored.result()  # type: ignore[union-attr]
            return 0 if found.first.moved else found.first.number

        answered = asyncio.create_task(answer())
        answered.add_done_callback(lambda done: done.cancelled() or done.exception())  # the publisher may have gone
        return answered

    def _accept(self, items: Sequence[PublishedEvent], bodies: list[bytes], caller: Caller) -> asyncio.Future[int]:
        accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        size, principal = sum(map(len, bodies)), caller.name
        delayed = items[0].delay_seconds is not None
        if delayed:
            self.delayed.check_accepts(len(items), principal)
        charge = self._admit(len(items), size, principal)
        self.waiting.add(len(items), size, principal)
        if delayed:
            stored = self.delayed.accept(items, bodies, principal, charge)
            stored.add_done_callback(partial(self._delayed_stored, bodies, principal, time.perf_counter_ns(), charge))
            return stored
        if not self._arrived:  # the others of this turn of the event loop join the group
            asyncio.get_running_loop().call_soon(self._append_soon)
        self._arrived.append((items, bodies, accepted, caller, charge))
        return accepted

    def _admit(self, count: int, size: int, principal: str) -> Charge | None:
        """Raise if there is no room for more events, or the principal's quota is used up; returns what it used."""
        if self.closing or self.failed:
            raise StoreFailed(f"the broker failed: {self.failed!r}" if self.failed else "the broker is shutting down")
        if self.waiting.too_many(count, size):
            rate = self.statistics.history[-1]["published_per_second"] if self.statistics.history else 0.0
            hint = min(max(self.waiting.events / max(rate, 1000.0), 0.05), 5.0)
            raise Overloaded(f"{self.waiting.events} events wait already; try again in {hint:.2f} s", hint)
        shared = principal in self.directory.principals and len(self.directory.principals) > 1
        if shared and self.waiting.more_than_half(principal, count, size):
            mine = self.waiting.events_of[principal]
            raise Overloaded(f"{mine} events of {principal!r} wait already: half of what may wait is for others", 0.1)
        most = self.directory.quotas(principal).max_day_bytes
        return self.directory.usage.take(principal, size, most) if most else None

    def _append_soon(self) -> None:
        """Hand the events that have arrived to the store, in their order, when no change is under way."""
        if self.change_barrier.is_open():
            self._append()
        else:
            self._append_task = asyncio.create_task(self._append_later())

    async def _append_later(self) -> None:
        await self.change_barrier.opened()
        self._append()

    async def check_arrived(self) -> None:
        """The schema has changed: what the publishers of events that wait for the end of the change may publish was
        checked with the one before, and so were the events. The caller holds the change barrier exclusively."""

        def check(group: Group) -> Iterator[HitboxError | None]:
            for items, _, _, caller, _ in group:
                try:
                    self._permitted(items, caller)
                    yield None
                except HitboxError as problem:
                    yield problem

        group = list(self._arrived)
        problems = await self.registry.in_thread(lambda: list(check(group)))
        found = list(zip(group, problems, strict=True))
        self._arrived = [one for one, problem in found if problem is None] + self._arrived[len(group) :]
        for publish, problem in found:
            if problem is not None:
                self._refuse_arrived(publish, problem)

    def _refuse_arrived(self, publish: Publish, problem: BaseException) -> None:
        """A publish that was accepted is not stored."""
        items, bodies, accepted, caller, charge = publish
        self.statistics.counts["refused"] += len(items)
        if charge is not None:
            self.directory.usage.give_back(charge)
        self.waiting.remove(len(items), sum(map(len, bodies)), caller.name)
        if not accepted.done():
            accepted.set_exception(problem)
            accepted.exception()  # the publisher may have gone

    def _append(self) -> None:
        group, self._arrived = self._arrived, []
        if not group:  # none of them fits a new schema
            return
        bodies = [body for _, some, *_ in group for body in some]
        principals = [caller.name for items, _, _, caller, _ in group for _ in items]
        self.change_barrier.enter_now(len(bodies))
        now = clock.now()
        charges = [charge for *_, charge in group if charge is not None]
        stored = self.writer.submit(partial(_append, self.store, bodies, now, principals, charges))
        stored.add_done_callback(partial(self._stored, group, now, time.perf_counter_ns()))

    def _stored(self, group: Group, now: int, started: int, stored: asyncio.Future[int]) -> None:
        """A group of events is durable, or cannot be stored. Queue them for matching, and tell the publishers."""
        problem = StoreFailed("the broker was stopped") if stored.cancelled() else stored.exception()
        if problem is not None:
            for publish in group:
                self.change_barrier.leave(len(publish[0]))
                self._refuse_arrived(publish, problem)
            return
        first, committed = stored.result(), time.perf_counter_ns()
        self.statistics.publish_to_commit.observe((committed - started) / 1e9, sum(len(items) for items, *_ in group))
        for items, bodies, accepted, caller, _ in group:
            for seq, (item, body) in enumerate(zip(items, bodies, strict=True), first):
                one = AcceptedEvent(seq, item.event, item.where, body, now, started, False, committed)
                one.principal = caller.name
                self._queue(one, item)
            if self.telemetry is not None:
                self.telemetry.add("hitbox.publish", started, committed, bodies, first=first, events=len(items))
            if not accepted.done():
                accepted.set_result(first)
            self.statistics.counts["published"] += len(items)
            first += len(items)
        self._work.set()

    def _queue(self, accepted: AcceptedEvent, item: PublishedEvent) -> None:
        """Queue an event for matching."""
        if item.ttl_seconds is not None:
            accepted.expires = expires_at(accepted.time, accepted.body)
        self._accepted.append(accepted)

    def queue_stored(self, first: int, events: Sequence[tuple[str, bytes]], now: int, started: int) -> None:
        """Queue events (principal, body) for matching that were delayed and have just been stored as events."""
        committed = time.perf_counter_ns()
        for seq, (principal, body) in enumerate(events, first):
            item = msgspec.json.decode(body, type=PublishedEvent)
            self.message_ids.move(item, principal, seq)
            event = AcceptedEvent(seq, item.event, item.where, body, now, started, False, committed, 0, principal)
            self._queue(event, item)
        self.statistics.counts["published"] += len(events)
        self._work.set()

    def _delayed_stored(
        self, bodies: list[bytes], principal: str, started: int, charge: Charge | None, stored: asyncio.Future[int]
    ) -> None:
        """Delayed events are durable, or cannot be stored."""
        self.waiting.remove(len(bodies), sum(map(len, bodies)), principal)
        if stored.cancelled() or stored.exception() is not None:
            self.statistics.counts["refused"] += len(bodies)
            if charge is not None:
                self.directory.usage.give_back(charge)
            return
        committed = time.perf_counter_ns()
        self.statistics.publish_to_commit.observe((committed - started) / 1e9, len(bodies))
        self.statistics.counts["delayed"] += len(bodies)
        if self.telemetry is not None:
            about = {"first_delayed": stored.result(), "events": len(bodies)}
            self.telemetry.add("hitbox.publish", started, committed, bodies, **about)

    async def _dispatch(self, left: int) -> None:
        """Match accepted events, beginning with those up to `left`, which an earlier run accepted."""
        while self.tracker.recorded < left:
            unmatched = await self.registry.in_thread(self._unmatched)
            await self._match([a for a in unmatched if a.seq <= left])
        while True:
            while not self._accepted:
                self._work.clear()
                await self._work.wait()
            await self._match([self._accepted.popleft() for _ in range(min(len(self._accepted), BATCH))])
            if self._accepted:
                await asyncio.sleep(0)  # others get a turn

    async def _match(self, batch: list[AcceptedEvent]) -> None:
        """Match a batch, as many of its events at once as the dispatcher takes."""
        while batch:
            count = 0
            try:
                count = await self._match_first(batch)
            finally:
                done, batch = (batch[:count], batch[count:]) if count else (batch, [])
                self.change_barrier.leave(len(done))
                for a in done:
                    self.waiting.remove(1, len(a.body), a.principal)

    async def _match_first(self, batch: list[AcceptedEvent]) -> int:
        """Match and record the first events of a batch; returns how many."""
        started = time.perf_counter_ns()
        rows, matched = await self.dispatcher.run(batch)
        batch = batch[: len(matched)]
        if self.telemetry is not None:
            bodies, ended = [a.body for a in batch], time.perf_counter_ns()
            matches = sum(one.total() for one in matched.values())
            about = {"first": batch[0].seq, "events": len(batch), "matches": matches}
            self.telemetry.add("hitbox.match", started, ended, bodies, **about)
        self.statistics.match_time.observe(self.dispatcher.match_seconds / len(batch), len(batch))
        self.statistics.counts["errors"] += len(self.dispatcher.failed)
        failed = self.dispatcher.failed
        self._failed_events += failed
        self._subscription_changes.note_failures(self.dispatcher.expensive)
        await self._wait_for_store()
        self._track_record(self.tracker.record(rows, batch[-1].seq, failed), len(rows))
        for a in batch:
            if a.expires:
                self.expiry.expect(a.expires)  # not earlier: a search that came before the record would miss it
            self.statistics.counts["matched" if matched[a.seq].total() else "unmatched"] += 1
        self.statistics.add_events(
            {"seq": a.seq, "matches": matched[a.seq], "event": a.event, "where": a.where, "body": a.body} for a in batch
        )
        return len(batch)

    async def _wait_for_store(self) -> None:
        """Wait while too many deliveries in memory are not stored yet. While the disk is full more are allowed: a
        change that frees space has to wait until the events accepted before it are matched."""
        while len(self._ahead) >= RECORDS_AHEAD:
            if self.writer.full and sum(self._ahead.values()) < ROWS_AHEAD:
                return
            await asyncio.wait(self._ahead, timeout=TICK_SECONDS, return_when=asyncio.FIRST_COMPLETED)

    def caught_up(self) -> bool:
        """Whether all accepted events are matched and their deliveries are stored."""
        return not self.waiting.events and not self._ahead

    def _track_record(self, done: asyncio.Future[None], rows: int) -> None:
        self._ahead[done] = rows
        done.add_done_callback(self._recorded)

    def _recorded(self, done: asyncio.Future[None]) -> None:
        del self._ahead[done]
        problem = None if done.cancelled() else done.exception()
        if problem is not None and self.failed is None and not self.closing:
            self._fail(problem)  # accepted events would miss their deliveries

    # ---- subscribers and subscriptions

    def subscriber(self, name: str) -> Subscriber:
        found = self.registry.by_name.get(name)
        if found is None:
            raise Unknown(f"there is no subscriber {name!r:.100}")
        return found

    def mailbox(self, name: str) -> Mailbox:
        return self.mailboxes[self.subscriber(name).number]

    async def _change(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a change of subscribers to its end, even if the request that asked for it is cancelled."""
        return await asyncio.shield(self.start_change(work))

    def start_change(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        return task

    async def put_subscriber(
        self, name: str, options: Options | None = None, owner: str = "", hand_over: bool = False
    ) -> Subscriber:
        """Create a durable subscriber, or change its options. `owner`: the principal that it belongs to from now on. If
        it belongs to another one already, only `hand_over` changes that."""
        known = self.registry.by_name.get(name)
        if known is not None and options in (None, known.options) and owner in ("", known.owner):
            known.used = time.monotonic()
            return known
        return await self._change(self._put_subscriber(name, options, owner, hand_over))

    async def _put_subscriber(self, name: str, options: Options | None, owner: str, hand_over: bool) -> Subscriber:
        async with self.change_barrier.exclusive():
            subscriber, _ = self.known_or_new(name, owner, hand_over=hand_over)
            if subscriber.ephemeral:
                raise Conflict(f"{name!r} is an ephemeral subscriber")
            wanted = check_options(options or subscriber.options, False)
            record = record_of(wanted, subscriber.webhook, subscriber.paused, clock.seconds())
            row = (subscriber.number, name, record, owner)
            drops = wanted.policy == "drop_oldest" and wanted != subscriber.options and name in self.registry.by_name
            await self._store_subscriber(row, drops)
            subscriber.options, subscriber.owner = wanted, owner or subscriber.owner
            subscriber.used = subscriber.stored_use = time.monotonic()
            self.add_subscriber(subscriber)
        mailbox = self.mailboxes[subscriber.number]
        if not wanted.shared:
            _replace(mailbox, mailbox.connections()[:-1])  # it was shared until now
        self.webhooks.update(mailbox)
        return subscriber

    async def put_webhook(self, name: str, given: WebhookSettings, owner: str = "") -> str:
        """Set the webhook of a subscriber; returns its secret if one was made, to be shown once. Its deliveries are
        sent with the rights of its owner, so one that belongs to nobody belongs to `owner` from now on."""
        check_url(given.url, self.settings.allow_private_webhooks)
        if not self.settings.allow_private_webhooks:
            check_literal(urlsplit(given.url).hostname or "")
        made = ""

        def change(subscriber: Subscriber) -> Webhook:
            nonlocal made
            new, made = given.changed(subscriber.webhook, time.time())
            return new

        await self._change(self._set_apart(self.subscriber(name), webhook=change, owner=owner))
        return made

    async def remove_webhook(self, name: str) -> None:
        await self._change(self._set_apart(self.subscriber(name), webhook=lambda _: None))

    async def disable_webhook(self, name: str, used: Webhook, reason: str) -> None:
        """Use a webhook no more, unless it was changed in the meantime."""

        def change(subscriber: Subscriber) -> Webhook | None:
            old = subscriber.webhook
            return msgspec.structs.replace(used, disabled=reason) if old == used else old

        await self._change(self._set_apart(self.subscriber(name), webhook=change))

    async def pause(self, name: str, paused: bool) -> None:
        """Send nothing to a subscriber, or go on. Its deliveries are kept, under its limits."""
        subscriber = self.subscriber(name)
        if subscriber.paused != paused or subscriber.ephemeral:
            await self._change(self._set_apart(subscriber, paused=paused))

    async def _set_apart(
        self,
        subscriber: Subscriber,
        webhook: Callable[[Subscriber], Webhook | None] | None = None,
        paused: bool | None = None,
        owner: str = "",
    ) -> None:
        """Change what is set apart from the options; None: as it is. One that belongs to nobody belongs to `owner`."""
        async with self.change_barrier.exclusive():
            if self.registry.by_number.get(subscriber.number) is not subscriber:
                raise Unknown(f"there is no subscriber {subscriber.name!r}")  # removed while we waited
            if subscriber.ephemeral:
                raise Conflict(f"{subscriber.name!r} is an ephemeral subscriber: this needs a durable one")
            self.known_or_new(subscriber.name, owner)  # another principal may have claimed it while we waited
            hook = subscriber.webhook if webhook is None else webhook(subscriber)
            wanted = subscriber.paused if paused is None else paused
            record = record_of(subscriber.options, hook, wanted, clock.seconds())
            row = (subscriber.number, subscriber.name, record, owner)
            enabled = hook is not None and not hook.disabled and subscriber.webhook != hook
            await self._store_subscriber(row, paused is False or enabled)  # what is sent is acknowledged
            subscriber.webhook, subscriber.paused, subscriber.owner = hook, wanted, owner or subscriber.owner
            subscriber.used = subscriber.stored_use = time.monotonic()
        mailbox = self.mailboxes[subscriber.number]
        if webhook is not None:
            mailbox.webhook_problem, mailbox.webhook_requests = "", 0
        mailbox.wake.set()
        self.webhooks.update(mailbox)

    async def _store_subscriber(self, row: tuple[int, str, bytes, str], leads_to_deletes: bool) -> None:
        """Store what is set of a subscriber: on a full disk, too, if that leads to deletes. But not for long, because
        events and other changes wait for it."""
        tries = itertools.count()

        def put() -> None:
            if next(tries) == PUT_TRIES:
                raise StoreFull(f"{self.writer.reason}; nothing was changed, make room and try again")
            self.store.subscribers.put(*row)

        await self.writer.submit(put, frees_space=leads_to_deletes)

    def known_or_new(self, name: str, owner: str, more: int = 0, hand_over: bool = False) -> tuple[Subscriber, bool]:
        """The subscriber, and whether it is new. Raises if it cannot belong to `owner` from now on. `more`: others are
        about to be added. The caller holds the change barrier exclusively."""
        known = self.registry.by_name.get(name)
        if owner and (known is None or known.owner != owner):
            self._check_claim(known, owner, hand_over)
        if known is not None:
            return known, False
        self._check_room(owner, more)
        return self.registry.new_subscriber(name, Options()), True

    def _check_room(self, owner: str, more: int = 0) -> None:
        """Raise if there may not be another subscriber, or not another one of this principal."""
        count = len(self.registry.by_name) + more
        if count >= self.settings.max_subscribers:
            raise Overloaded(f"{self.settings.max_subscribers} subscribers are the most (max_subscribers)", 60)
        most = self.settings.max_principal_subscribers
        if owner and count >= most:  # otherwise nobody has so many
            owned = sum(one.owner == owner for one in self.registry.by_name.values()) + more
            if owned >= most:
                raise Overloaded(
                    f"{owner!r} has {owned} subscribers, and {most} are the most of one principal "
                    "(max_principal_subscribers)",
                    60,
                )

    def _check_claim(self, known: Subscriber | None, owner: str, hand_over: bool) -> None:
        """Raise unless a subscriber, or a new one, can become the principal's. Both may have changed while the change
        waited for its turn."""
        if owner not in self.directory.principals:
            raise Unknown(f"there is no principal {owner!r:.100}")
        if known is None:
            return
        if known.owner and not hand_over:
            raise Forbidden(f"the subscriber {known.name!r} belongs to another principal")
        self.directory.check_quota(owner, known.subscriptions, refusal=Conflict if hand_over else Forbidden)

    def add_subscriber(self, subscriber: Subscriber) -> None:
        self.registry.add(subscriber)
        if subscriber.number not in self.mailboxes:
            self.mailboxes[subscriber.number] = Mailbox(subscriber, busy=self._busy)

    def forget_subscriber(self, subscriber: Subscriber, reason: str) -> None:
        mailbox = self.mailboxes.pop(subscriber.number, None)
        for connection in [] if mailbox is None else mailbox.connections():
            connection.close(4404, reason)
        self.registry.forget(subscriber)

    async def remove_subscriber(self, name: str) -> None:
        """Remove a subscriber with its subscriptions, pending deliveries and dead letters."""
        await self._change(self._remove_subscriber(self.subscriber(name)))

    async def _remove_subscriber(self, subscriber: Subscriber, only_unused: bool = False) -> None:
        async with self.change_barrier.exclusive():
            if self.registry.by_number.get(subscriber.number) is not subscriber:
                raise Unknown(f"there is no subscriber {subscriber.name!r}")  # removed while we waited
            await self.wait_for_stored_changes()
            if only_unused:
                if not self._is_unused(subscriber):
                    return  # it came back while we waited
                self.statistics.counts["expired_subscribers"] += 1
                log.info(EXPIRED, subscriber.name, subscriber.options.expires_seconds, subscriber.subscriptions)
            # First: a client that comes now makes a new one.
            self.forget_subscriber(subscriber, "the subscriber was removed")
            await self.registry.in_thread(self.registry.clear, subscriber)
            if subscriber.ephemeral:
                return
            remove = partial(self.store.remove_subscriber, subscriber.number, subscriber.name)
            stored = self.writer.submit(remove, mandatory=True, frees_space=True)
        await stored

    def _is_unused(self, subscriber: Subscriber) -> bool:
        """Whether it is time to remove a subscriber that nobody uses."""
        mailbox, most = self.mailboxes.get(subscriber.number), subscriber.options.expires_seconds
        return mailbox is not None and 0 < most < mailbox.unused_seconds()

    async def _expire_subscribers(self) -> None:
        """Remove subscribers that were not used for as long as their options say, and store when others were used."""
        unused: list[Subscriber] = []
        fresh: list[Subscriber] = []
        async for one in in_turns(self.registry.expiring.values()):
            if self._is_unused(one):
                unused.append(one)
            if one.used - one.stored_use >= USE_SECONDS and len(fresh) < LOADED_ROWS:
                fresh.append(one)
        if fresh and not self.writer.full:
            uses = {one.number: one.last_use() for one in fresh}
            now = [(one, one.used) for one in fresh]
            await self.writer.submit(partial(_store_uses, self.store, uses))
            for one, used in now:
                one.stored_use = used
        for one in unused[:EXPIRE_AT_ONCE]:
            await self._change(self._remove_subscriber(one, only_unused=True))

    async def wait_for_stored_changes(self) -> None:
        """Wait until every change of the index is in the store. The caller holds the change barrier exclusively."""
        if self._subscription_changes.storing:
            await asyncio.wait(self._subscription_changes.storing)

    async def subscribe(
        self, name: str, put: Sequence[Subscription], remove: Sequence[str] = (), strict: bool = False, owner: str = ""
    ) -> list[str]:
        """Add or replace and remove subscriptions of a subscriber, all or none; returns warnings. A subscriber that
        belongs to nobody belongs to the principal `owner` from now on."""
        check_name(name, "subscriber")
        for one in put:
            check_name(one.name, "subscription")
        puts = {one.name: one for one in put}
        removes = list(dict.fromkeys(remove))
        if both := [one for one in removes if one in puts]:
            raise BadRequest(f"a change adds and removes the subscription {both[0]!r:.100}: leave out one of the two")
        return await self._subscription_changes.ask(name, list(puts.values()), removes, strict, owner)

    async def resume_subscription(self, subscriber: str, name: str) -> None:
        """Match a subscription again that was suspended because it was too expensive."""
        await self._change(self._subscription_changes.resume(self.subscriber(subscriber), name))

    async def remove_principal(self, name: str) -> None:
        """Remove a principal that owns no subscriber and has no delayed events, and its tokens. What was asked before
        comes first: it may be about to make the principal the owner of one. A later one of this name inherits nothing.
        """
        await self._change(self._remove_principal(name))

    async def _remove_principal(self, name: str) -> None:
        async with self.change_barrier.exclusive():
            await self.directory.remove_principal(self.writer, name, self.delayed.count_of)
            await self.check_arrived()
            self.message_ids.forget_principal(name)

    # ---- connections

    async def attach(
        self, name: str, connection: Connection, window: int, options: Options | None, owner: str = ""
    ) -> Mailbox:
        """Connect a durable subscriber. If it has a connection already, that one is closed."""
        mailbox = self.mailboxes.get((await self.put_subscriber(name, options, owner)).number)
        if mailbox is None:
            raise Conflict(f"subscriber {name!r} was removed while it connected; connect again")
        if mailbox.subscriber.ephemeral:
            raise Conflict(f"{name!r} is an ephemeral subscriber")
        if self.closing:
            raise StoreFailed("the broker is shutting down")
        self.connect(mailbox, connection, window)
        return mailbox

    def connect(self, mailbox: Mailbox, connection: Connection, window: int) -> None:
        """If the subscriber is not shared and has a connection already, that one is closed."""
        if not mailbox.subscriber.options.shared:
            _replace(mailbox, mailbox.connections())
        mailbox.connect(connection, window)

    def attach_ephemeral(self, name: str, connection: Connection, options: Options, owner: str = "") -> Mailbox:
        if name in self.registry.by_name:
            raise Conflict(f"there is a subscriber {name!r} already; ephemeral ones need a name of their own")
        self._check_room(owner)
        subscriber = self.registry.new_subscriber(name, check_options(options, True), ephemeral=True, owner=owner)
        self.add_subscriber(subscriber)
        mailbox = self.mailboxes[subscriber.number]
        mailbox.connect(connection, 0)
        return mailbox

    async def detach(self, mailbox: Mailbox, connection: Connection) -> None:
        mailbox.disconnect(connection)
        subscriber = mailbox.subscriber
        if subscriber.ephemeral and self.registry.by_name.get(subscriber.name) is subscriber:
            await self.remove_subscriber(subscriber.name)
        self.webhooks.update(mailbox)  # it waited for this connection to end

    def acting_for(self, owner: str) -> Caller:
        return self.directory.acting_for(owner)

    # ---- housekeeping

    async def _housekeeping(self) -> None:
        turn = 0
        self._settling: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._settling.set_result(0)
        while self.writer.broken is None:
            await asyncio.sleep(TICK_SECONDS)
            turn += 1
            async for number, mailbox in in_turns(self._busy.items()):
                if (not mailbox.pending and mailbox.within_limit) or self.mailboxes.get(number) is not mailbox:
                    del self._busy[number]
                    continue
                try:
                    self.tracker.enforce_limits(mailbox)
                except HitboxError as problem:
                    log.warning("housekeeping of subscriber %r: %s", mailbox.subscriber.name, problem)
                except Exception:
                    self.statistics.counts["errors"] += 1
                    log.exception("housekeeping of subscriber %r failed", mailbox.subscriber.name)
            clock.step()
            if not self.closing:
                self.delayed.step()
            self.expiry.step()
            if self.store.recent.overdue() and not self.writer.full and self._settling.done():
                self._settling = self.writer.submit(self.store.deliveries.settle_overdue)
                self._settling.add_done_callback(lambda done: done.cancelled() or done.exception())  # tried again
            if turn % 10 == 0:
                self.backlog.step()
                sizes = self.store.space.sizes()
                stored = sizes["store_database"] + sizes["store_log"]
                self.statistics.tick(self._pending(), stored, sizes["disk_free"])
                await self._run_housekeeping(self._expire_subscribers())
                await self._run_housekeeping(self._keep_mark())

    async def _keep_mark(self) -> None:
        """Store what the clock tells, if it is not what the store's mark leads to."""
        mark = clock.mark()
        if not self.writer.full and (self._mark is None or not self._mark.is_near(mark)):
            await self.writer.submit(partial(self.store.meta.put, "clock", mark))
            self._mark = mark

    def accept_clock(self) -> dict[str, float]:
        """The system's clock is right: follow it."""
        return {"moved_seconds": round(clock.accept(), 3)}

    async def _retention(self) -> None:
        """Remove old events now and then, and save the index if it changed much."""
        while self.writer.broken is None:
            await asyncio.sleep(RETENTION_SECONDS)
            await self._run_housekeeping(self._trim())

    def _retain(self) -> Trimmed:
        """Remove old events; if the store's size is limited, early enough to stay below the limit. Dead letters that
        take more than their half of it go first: they are in the way of everybody's events."""
        s = self.settings
        most = NEVER if s.max_store_bytes is None else s.max_store_bytes * 3 // 4
        self.store.recent.compact()
        if self.store.space.used_bytes() > most and self.store.letters.trim(most // 2):
            return Trimmed(0, True)
        before = 0 if clock.in_doubt() else clock.now() - int(s.keep_seconds * 1e6)
        return self.store.retention.trim(before, s.keep_bytes, most, TRIM_ROWS)

    async def _trim(self) -> None:
        while (await self.writer.submit(self._retain)).more:
            await asyncio.sleep(TICK_SECONDS)  # there are more: soon, but others come in between
        if self.store.subscribers.changes.rows() >= self.settings.snapshot_changes:
            await self.snapshot()

    async def _run_housekeeping(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work that may fail and is tried again later."""
        try:
            await work
        except (HitboxError, OSError) as problem:
            log.warning("housekeeping: %s", problem)
        except Exception:
            self.statistics.counts["errors"] += 1
            log.exception("housekeeping failed")

    def problems(self) -> Iterator[str]:
        """Everything that is wrong: parts set aside at start, events that could not be matched, failed maintenance."""
        yield from itertools.chain(self.store.problems, self.registry.problems, self.directory.problems)
        yield from (f"event {seq} could not be matched; tried again at the next start" for seq in self._failed_events)
        for name, text in self.store.space.maintenance_errors.items():
            yield f"the {name} could not be written: {text}"
        yield from filter(None, [clock.problem()])
        yield from self.backlog.problems()

    def fault(self) -> str:
        """Why only a restart helps; empty: the broker works."""
        if self.writer.broken is not None:
            return self.writer.problem()
        return "" if self.failed is None else f"the broker failed: {self.failed!r}"

    def health(self) -> tuple[dict[str, Any], int]:
        """For /readyz: the state of the broker, and the HTTP status for it.

        It needs no token, so it names and counts nothing of a subscriber: the log and /v1/stats do.
        """
        status, code, reason = "ok", 200, ""
        if fault := self.fault():
            status, code, reason = "failed", 503, fault
        elif self.closing:
            status, code, reason = "closing", 503, "the broker is shutting down"
        elif self.writer.full:
            status, code, reason = "full", 507, self.writer.problem()
        elif any(self.problems()):
            status = "degraded"
            reason = "something needs attention; the log and /v1/stats have the details"
        return {"ok": code == 200, "status": status, "reason": reason, "store_full": self.writer.full}, code

    def _pending(self) -> int:
        return sum(one.pending for number, one in self._busy.items() if self.mailboxes.get(number) is one)

    def describe(self) -> Mapping[str, Any]:
        """Numbers for the page, the metrics and `hitbox admin stats`."""
        problems = list(self.problems())
        return {
            "subscriptions": len(self.registry.index) + len(self.registry.ephemeral_index),
            "suspended": len(self.registry.suspensions), "subscribers": len(self.registry.by_name),
            "connections": sum(map(Mailbox.connection_count, self.mailboxes.values())), "pending": self._pending(),
            "oldest_pending_seconds": round(self.backlog.oldest_seconds(), 1), "kept": self.store.events.kept.rows(),
            "waiting": self.waiting.events, "waiting_delayed": self.store.delayed.table.rows(),
            "last": self.store.events.table.next() - 1, "first": self.store.events.table.first(),
            "dead_letters": self.store.letters.table.rows(), "store_full": self.writer.full,
            "clock_ahead_seconds": round(clock.ahead(), 3), "problems": len(problems), "set_aside": problems[:100],
            "way": self.dispatcher.way, "matcher": self.registry.index.matcher,
            "restored": self.registry.restored_from, "restore_seconds": self.registry.restore_seconds,
            "uptime_seconds": round(time.monotonic() - self.statistics.started, 1), "version": __version__,
            **{name: self.statistics.counts[name] for name in COUNTERS}, "trimmed": self.store.events.total("trimmed"),
        }  # fmt: skip


def are_few(items: Sequence[PublishedEvent]) -> bool:
    """Whether events can be checked on the event loop, if they are not LARGE: more of them, or a `where`, may take
    long."""
    return len(items) <= MANY and all(item.where is None for item in items)


def _append(
    store: Store, bodies: Sequence[bytes], now: int, principals: Sequence[str], charges: Sequence[Charge]
) -> int:
    """Store events, and what they use of the quotas of their publishers; returns the number of the first one."""
    first = store.events.append(bodies, now, principals)
    store_charges(store, charges)
    return first


def _store_uses(store: Store, uses: Mapping[int, float]) -> None:
    """Store when subscribers were last used; the rest of their records stays as it is."""
    for number, used in uses.items():
        for _, name, settings, _ in list(store.subscribers.table.scan("number = ?", (number,))):
            store.subscribers.put(number, name, with_use(settings, used))


def _replace(mailbox: Mailbox, connections: Iterable[Connection]) -> None:
    """Close connections. What they hold is free for the others at once."""
    for one in connections:
        one.close(4409, "another connection of this subscriber took over")
        mailbox.disconnect(one)


OF_MATCHES = frozenset({
    "matched", "unmatched", "delivered", "acked", "dropped", "dead", "hidden", "expired", "pending", "dead_letters",
    "oldest_pending_seconds", "kept",
    "suspended", "too_expensive", "p50", "p99", "delivered_per_second", "acked_per_second",
    "waiting_delayed", "store_bytes", "disk_free", "problems",
})  # fmt: skip
"""Figures that tell whether events match, or what others keep: only for those who may know of all subscribers."""
COUNTERS = (
    "published", "matched", "unmatched", "delivered", "acked", "refused", "dropped", "dead", "trimmed", "snapshots",
    "errors", "hidden", "repeated", "expired", "expired_subscribers", "delayed",
    "too_expensive",
)  # fmt: skip
