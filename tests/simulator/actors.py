"""The simulated publishers, subscribers and operators that use the broker while it runs, at random moments."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Any

import msgspec

from hitbox.broker import admin
from hitbox.broker.delivery.mailbox import Mailbox
from hitbox.broker.events.published_event import PublishedEvent
from hitbox.broker.settings import Options
from hitbox.broker.subscribers.subscriptions import Subscription
from hitbox.encoding.schema import Schema
from hitbox.errors import HitboxError
from hitbox.protocol.errors import BrokerError, Conflict, StoreFailed, StoreFull, Unknown
from simulator.checks import TICK, Checks
from simulator.environment import ROOMY, Environment
from simulator.model import (
    NOBODYS,
    BrokenPromise,
    Model,
    ModelConnection,
    ModelDelivery,
    ModelEvent,
    ModelSubscriber,
    ModelSubscription,
    Outcome,
    Version,
)

DOMAIN = 20
NAMES = ("ann", "bob", "cid", "dot")
SHARERS = ("cid", "dot", "dot")
"""Subscribers with more clients: they share the deliveries, or take over from each other, by the option `shared`."""
UNCERTAIN = ("asked", "unknown", "waiting")
"""States of events that may or may not be in the store's table of events."""
HABITS = ("calm", "calm", "calm", "refusing", "idle")
"""What a client does with its deliveries: acknowledge most, refuse most, or neither."""


class Actors:
    """Tasks that use the broker, update the model, and have the results checked."""

    def __init__(self, environment: Environment, model: Model, checks: Checks):
        self.environment, self.model, self.checks = environment, model, checks
        self.random = environment.random

    def all(self) -> list[Any]:
        clients = [self._subscriber(name) for name in (*NAMES, *SHARERS)]
        return [self._publisher(), self._publisher(), self._changer(), self._racer(), self._disturb(), *clients,
                self._ephemeral()]  # fmt: skip

    # ---- events

    async def _publisher(self) -> None:
        while self.environment.up():
            await self.environment.pause(2.0)
            count = self.random.choice([1, 1, 2, 5, 40])
            clock = self.environment.clock
            events = [self.model.event(self.random.randrange(DOMAIN), clock.time(), clock.now) for _ in range(count)]
            pad = "x" * self.random.choice([0, 500, 2000]) if self.environment.capacity != ROOMY else ""
            delay = self.random.uniform(0.1, 30.0) if self.environment.chance(0.15) else None
            for event in events if delay is None and self.environment.chance(0.2) else ():
                event.ttl = self.random.choice([0.5, 5.0, 30.0, 3000.0])
            items = [PublishedEvent({"n": e.number, "a": e.value, "pad": pad}, None, delay_seconds=delay,
                                    ttl_seconds=e.ttl) for e in events]  # fmt: skip
            if delay is not None:
                await self._publish_delayed(events, items, delay)
                continue
            try:
                first = await self.environment.broker.publish(items)
            except StoreFull:
                self._published(events, "refused")
            except StoreFailed:
                self._published(events, "unknown")
            except BrokerError:
                self._published(events, "refused")
            else:
                if self.environment.disk.dead:
                    return
                for at, event in enumerate(events):
                    self.model.numbered(event, first + at)
                self._published(events, "accepted")

    async def _publish_delayed(self, events: list[ModelEvent], items: list[PublishedEvent], delay: float) -> None:
        """Publish events that are due later, and sometimes cancel one of them."""
        broker = self.environment.broker
        for event in events:
            event.due = event.wall + delay - TICK
        try:
            first = await broker.publish(items)
        except StoreFull:
            self._published(events, "refused")
            return
        except StoreFailed:
            return  # whether they are stored, the next start shows
        except BrokerError:
            self._published(events, "refused")
            return
        if self.environment.disk.dead:
            return
        for event in events:
            event.state = "waiting" if event.state == "asked" else event.state  # it may be due already
        self.environment.note("delayed", first)
        self.environment.counts["events delayed"] += len(events)
        if self.environment.chance(0.2):
            await self.environment.pause(delay)
            at = self.random.randrange(len(events))
            await self._cancel(events[at], first + at)

    async def _cancel(self, event: ModelEvent, number: int) -> None:
        """Cancel a delayed event, which may be due already. It may be deleted although no answer comes."""
        event.state = "asked" if event.state == "waiting" else event.state
        with contextlib.suppress(StoreFailed, StoreFull):
            count = await self.environment.broker.delayed.cancel([number])
            if self.environment.disk.dead:
                return
            if count:
                self._published([event], "refused")
                self.environment.counts["events cancelled"] += 1
            elif event.state == "asked":
                event.state = "waiting"

    def _published(self, events: list[ModelEvent], state: str) -> None:
        self.environment.note(state, len(events))
        self.environment.counts[f"events {state}"] += len(events)
        for event in events:
            event.state = state
            if state == "accepted":
                self.model.close(event)

    async def _disturb(self) -> None:
        """The system's clock jumps; other programs fill the disk and free it again."""
        environment = self.environment
        while environment.up():
            await environment.pause(10.0)
            if environment.chance(0.5):
                far = self.random.choice([-86_400.0, -1.0, 5.0, 3600.0, 30 * 86_400.0])
                environment.clock.jump(far, accepted=environment.chance(0.5))
                environment.faults.counts["clock jump"] += 1
                for event in self.model.events.values():
                    if event.state == "asked":
                        moved = min(0.0, environment.clock.time() - event.wall)
                        event.wall += moved
                        event.due = None if event.due is None else event.due + moved
            elif environment.capacity != ROOMY:
                environment.disk.capacity = (
                    ROOMY if environment.disk.capacity != ROOMY else max(environment.disk.used(), environment.capacity)
                )

    # ---- changes

    async def _changer(self) -> None:
        """Creates, changes and removes subscribers, one change at a time; replays dead letters and old events."""
        while self.environment.up() and not self.environment.disk.dead:
            await self.environment.pause(3.0)
            name = self.random.choice(NAMES)
            subscriber = self.model.subscribers.get(name)
            drawn = self.random.random()
            if subscriber is None or drawn < 0.45:
                await self._change(name, subscriber)
            elif drawn < 0.55:
                await self._set_options(subscriber)
            elif drawn < 0.64:
                await self._pause(subscriber)
            elif drawn < 0.72:
                await self._remove(subscriber)
            elif drawn < 0.82:
                await self._replay(subscriber)
            elif drawn < 0.92:
                await self._revive(subscriber)
            elif drawn < 0.96:
                await self._widen_schema()
            else:
                with contextlib.suppress(HitboxError, OSError):
                    await self.environment.broker.snapshot()

    async def _change(self, name: str, subscriber: ModelSubscriber | None) -> None:
        subscriber = subscriber or self.model.subscribers.setdefault(name, ModelSubscriber(name))
        after = dict(subscriber.now.wants)
        put: list[str] = []
        remove: list[str] = []
        for _ in range(self.random.choice([1, 1, 3])):
            one = f"w{self.random.randrange(4)}"
            if one in put or one in remove:
                continue
            if one in subscriber.now.wants and self.environment.chance(0.3):
                del after[one]
                remove.append(one)
            else:
                low = self.random.randrange(DOMAIN)
                after[one] = ModelSubscription(low, low + self.random.randrange(8), self.random.choice([0, 4, 4, 9]))
                put.append(one)
        wanted = [Subscription(one, after[one].where, after[one].priority) for one in put]
        await self._try(
            subscriber, Version(after, subscriber.now.options), self.environment.broker.subscribe(name, wanted, remove)
        )

    async def _set_options(self, subscriber: ModelSubscriber) -> None:
        old = subscriber.now.options
        options = Options(
            limit=self.random.choice([100_000, 1_000_000]),
            visibility_seconds=self.random.choice([0.5, 2.0, 30.0]),
            backoff_seconds=self.random.choice([0.1, 1.0]),
            max_tries=self.random.choice([2, 3, 1000]) if old.max_tries == Options().max_tries else old.max_tries,
            unmatched=self.environment.chance(0.3),
            shared=self.environment.chance(0.6),
        )
        after = Version(subscriber.now.wants, options)
        await self._try(subscriber, after, self.environment.broker.put_subscriber(subscriber.name, options))

    async def _pause(self, subscriber: ModelSubscriber) -> None:
        """Pause a subscriber, or send to it again."""
        before, wanted = subscriber.paused, not all(subscriber.paused)
        subscriber.paused = before | {wanted}
        try:
            await self.environment.broker.pause(subscriber.name, wanted)
        except StoreFull:
            subscriber.paused = before
        except StoreFailed:
            return
        else:
            if not self.environment.disk.dead:
                subscriber.paused = {wanted}
                self.environment.note("pause", subscriber.name, wanted)
                self.environment.counts["pauses"] += wanted

    async def _try(self, subscriber: ModelSubscriber, after: Version, change: Awaitable[Any]) -> None:
        """Make a change: afterwards it is in force, refused, or unknown until the next start."""
        before = subscriber.now
        subscriber.versions.append(after)
        try:
            await change
        except StoreFull:
            result = "refused"
        except StoreFailed:
            return
        except HitboxError as problem:
            if self.environment.disk.dead:
                return
            raise BrokenPromise(f"a change of {subscriber.name} failed: {problem!r}") from problem
        else:
            result = "accepted"
        if self.environment.disk.dead:
            return
        self.environment.note("change", subscriber.name, result)
        self.environment.counts[f"changes {result}"] += 1
        if result == "refused":
            subscriber.versions.append(before)
            if subscriber.state == "making":
                self.model.removed(subscriber.name)
                return
        subscriber.settle()

    async def _remove(self, subscriber: ModelSubscriber) -> None:
        subscriber.state = "going"
        self.model.removals += 1
        try:
            await self.environment.broker.remove_subscriber(subscriber.name)
        except StoreFailed:
            return
        if self.environment.disk.dead:
            return
        self.environment.note("removed", subscriber.name)
        self.environment.counts["removals"] += 1
        self.model.removed(subscriber.name)

    async def _widen_schema(self) -> None:
        """Add an attribute that nothing uses, so that no subscription and no old event contradicts the schema."""
        wider = Schema({**self.model.schemas[-1], f"more{len(self.model.schemas[-1])}": "int"})
        self.model.schemas.append(wider)
        try:
            await admin.put_schema(self.environment.broker, wider)
        except (StoreFull, Conflict):
            self.model.schemas.pop()
        except StoreFailed:
            return
        else:
            if not self.environment.disk.dead:
                self.model.schemas = [wider]
                self.environment.counts["schema changes"] += 1

    async def _replay(self, subscriber: ModelSubscriber) -> None:
        """Replay old events: those that match now and are not pending must be delivered, and no others."""
        store = self.environment.broker.store
        first = max(store.events.table.first(), store.events.table.next() - self.random.choice([5, 50, 50, 500]))
        must: dict[ModelDelivery, Outcome] = {}
        may = 0
        for event in [e for e in self.model.events.values() if e.seq >= first or e.state in UNCERTAIN]:
            delivery = subscriber.deliveries.get(event) or ModelDelivery(event)
            now = self._wanted_now(event, subscriber)
            may += now != {None}
            came = delivery.arrivals or delivery.replayed
            gone = delivery.done if came else self.model.outcomes(event, subscriber) == {None}
            sure = event.state == "accepted" and gone and not delivery.maybe_pending and event.seq <= self._recorded()
            sure = sure and not self.model.may_be_expired(event)
            if sure and len(now) == 1 and (outcome := next(iter(now))) is not None:
                must[delivery] = outcome
            if now != {None}:
                subscriber.deliveries[event] = delivery
                delivery.maybe_pending = True
                delivery.low = delivery.sure = 0
        try:
            count = await admin.replay(self.environment.broker, subscriber.name, first)
        except (StoreFull, StoreFailed, Unknown):
            return  # Unknown: the first events have been removed in the meantime
        if self.environment.disk.dead:
            return
        left = {
            delivery: outcome
            for delivery, outcome in must.items()
            if delivery.seq >= store.events.table.first() and not self.model.may_be_expired(delivery.event)
        }
        self.environment.note("replayed", subscriber.name, count)
        self.environment.counts["replayed"] += count
        if not len(left) <= count <= may:
            raise BrokenPromise(
                f"{count} events from {first} on were replayed for {subscriber.name}, not {len(left)} to {may}"
            )
        for delivery, outcome in left.items():
            if delivery.maybe_pending and not delivery.connection:  # otherwise it has been delivered in the meantime
                delivery.reset(surely=True)
                delivery.maybe_pending, delivery.must_come = False, True
                delivery.replayed.add(outcome)

    def _recorded(self) -> int:
        return self.environment.broker.tracker.recorded

    def _wanted_now(self, event: ModelEvent, subscriber: ModelSubscriber) -> set[Outcome | None]:
        mine = subscriber.now.outcome(event.value)
        if mine is not None or not subscriber.now.options.unmatched:
            return {mine}
        everybody = self.model.subscribers.values()
        if any(one.now.outcome(event.value) for one in everybody if one.state == "made" and not one.ephemeral):
            return {None}
        return {NOBODYS, None}

    async def _revive(self, subscriber: ModelSubscriber) -> None:
        broker = self.environment.broker
        _, found = admin.dead_letters(broker, broker.directory.caller(""), None, subscriber.name, 5)
        letters: list[dict[str, Any]] = [msgspec.json.decode(one) for one in found]
        for letter in letters:
            self.checks.letter(subscriber, letter["seq"], letter["tries"], letter["reason"])
            delivery = subscriber.delivery(self.model.of(letter["seq"]))
            if delivery.late(self.environment.clock.now):
                delivery.fail(surely=False)
                delivery.release()
            if delivery.connection is None or delivery.refused:  # otherwise it is with the client, after a replay
                delivery.reset(surely=False)
        try:
            count = await admin.replay_dead_letters(broker, [letter["number"] for letter in letters])
        except (StoreFull, StoreFailed):
            return
        if self.environment.disk.dead:
            return
        self.environment.note("revived", subscriber.name, count)
        self.environment.counts["revived"] += count
        for letter in letters if count == len(letters) else ():
            delivery = subscriber.delivery(self.model.of(letter["seq"]))
            if not delivery.maybe_pending and delivery.connection is None and not delivery.acked:
                # otherwise it has been delivered in the meantime, or a late acknowledgement has come
                delivery.reset(surely=True)

    async def _racer(self) -> None:
        """Concurrent changes of one subscriber: whatever the result is, it must be consistent."""
        name, broker = "race", self.environment.broker
        while self.environment.up():
            await self.environment.pause(4.0)
            acts: list[Any] = [
                broker.subscribe(name, [Subscription("x", "a > 100")]),
                broker.remove_subscriber(name) if name in broker.registry.by_name else asyncio.sleep(0),
                broker.put_subscriber(name, Options(limit=self.random.randrange(1, 1000))),
                broker.subscribe(name, [Subscription("y", "a > 100")], ["x"]),
            ]
            self.random.shuffle(acts)
            for found in await asyncio.gather(*acts, return_exceptions=True):
                if (
                    isinstance(found, Exception)
                    and not isinstance(found, HitboxError)
                    and not self.environment.disk.dead
                ):
                    raise BrokenPromise(f"a race gave {found!r}") from found
            self.environment.counts["races"] += 1

    # ---- clients

    async def _subscriber(self, name: str) -> None:
        """Connects, receives, acknowledges (late, in any order, twice), refuses, and disconnects."""
        broker = self.environment.broker
        while self.environment.up():
            await self.environment.pause(3.0)
            subscriber = self.model.subscribers.get(name)
            if subscriber is None or subscriber.state != "made" or name not in broker.registry.by_name:
                continue
            client = ModelConnection(self.random.choice([1, 5, 100]), on_close=self.checks.disconnected)
            try:
                mailbox = await broker.attach(name, client, client.window, None)
            except HitboxError:
                continue
            if self.model.subscribers.get(name) is not subscriber:
                await broker.detach(mailbox, client)
                continue
            self.environment.counts["connections"] += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.random.uniform(0, 8)):
                    await self._listen(subscriber, mailbox, client, self.random.choice(HABITS))
            self.checks.disconnected(client)
            await broker.detach(mailbox, client)

    async def _listen(self, subscriber: ModelSubscriber, mailbox: Mailbox, client: ModelConnection, habit: str) -> None:
        post = self.environment.broker.tracker
        alone = mailbox.connection_count() == 1  # otherwise others have fetched deliveries already
        waiting = self.checks.waiting(subscriber) if alone else {}
        late: list[int] = []

        def receive(mailbox: Mailbox) -> bool:
            """Take what is ready at once, as a WebSocket does; sometimes it is acknowledged at once, too."""
            if self.environment.disk.dead or client.closed or not self.environment.chance(0.6):
                return False
            if found := post.ready(mailbox, client):
                post.sent(mailbox, found)
                self.checks.arrived(subscriber, client, found, waiting)
                waiting.clear()
                self.environment.counts["sent at once"] += len(found)
                late.extend(d.seq for d in found)
                if habit != "idle" and self.environment.chance(0.5):
                    self._acknowledge(subscriber, mailbox, late)
                    late.clear()
            mailbox.rest(client)
            return not mailbox.ready

        client.receive = receive
        while not client.closed and (found := await post.next(mailbox, client)):
            if self.environment.disk.dead:
                return
            post.sent(mailbox, found)
            self.checks.arrived(subscriber, client, found, waiting)
            waiting.clear()
            seqs = [d.seq for d in found]
            if self.environment.chance(0.1):
                return  # the subscriber dies: nothing is acknowledged
            if self.environment.chance(0.1) or habit == "refusing":
                seqs = self._refuse(subscriber, mailbox, client, seqs, 0.5)
            if self.environment.chance(0.1):
                self._extend(subscriber, mailbox, client)
            if self.environment.chance(0.1):
                client.window = self.random.choice([1, 3, 100])
                mailbox.set_window(client, client.window)
            late += seqs
            if habit == "idle" or not self.environment.chance(0.7):
                continue
            self.random.shuffle(late)
            self.environment.faults.counts["acks late and reordered"] += 1
            if self.environment.chance(0.1):
                late += late[:3]
                self.environment.faults.counts["acks doubled"] += 1
            await self.environment.pause(1.0)
            if self.environment.disk.dead or not mailbox.is_connected(client):
                return
            self._acknowledge(subscriber, mailbox, late)
            late.clear()

    def _acknowledge(self, subscriber: ModelSubscriber, mailbox: Mailbox, seqs: list[int]) -> None:
        self.environment.broker.tracker.acknowledge(mailbox, seqs)
        self.model.acknowledged((subscriber.delivery(self.model.of(seq)) for seq in seqs), self.environment.clock.now)

    def _refuse(
        self, subscriber: ModelSubscriber, mailbox: Mailbox, client: ModelConnection, seqs: list[int], share: float
    ) -> list[int]:
        """Refuse some deliveries; returns the others."""
        refused = [seq for seq in seqs if self.environment.chance(share)]
        self.environment.counts["nacks"] += len(refused)
        self.environment.broker.tracker.refuse(mailbox, refused + refused[:1])
        for seq in refused:
            self.checks.refused(subscriber, client.in_flight[seq])
        return [seq for seq in seqs if seq not in refused]

    def _extend(self, subscriber: ModelSubscriber, mailbox: Mailbox, client: ModelConnection) -> None:
        """Ask for more time for the deliveries that are certainly not late yet."""
        now = self.environment.clock.now
        deliveries = [p for p in client.in_flight.values() if not p.refused and now < p.earliest]
        mailbox.extend([delivery.seq for delivery in deliveries])
        for delivery in deliveries:
            self.checks.extended(subscriber, delivery)

    async def _ephemeral(self) -> None:
        """A subscriber that exists as long as its connection, and must miss nothing during that time."""
        broker, turn = self.environment.broker, 0
        while self.environment.up():
            await self.environment.pause(6.0)
            turn += 1
            subscriber = self.model.subscribers[f"live{turn}"] = ModelSubscriber(f"live{turn}", ephemeral=True)
            client, low = ModelConnection(), self.random.randrange(DOMAIN)
            options = Options("drop_oldest", 10_000, unmatched=self.environment.chance(0.3))
            want = ModelSubscription(low, low + self.random.randrange(8), self.random.choice([0, 4, 9]))
            subscriber.versions.append(Version({}, options))
            mailbox = broker.attach_ephemeral(subscriber.name, client, options)
            subscriber.versions.append(Version({"w": want}, options))
            await broker.subscribe(subscriber.name, [Subscription("w", want.where, want.priority)])
            subscriber.settle()
            self.environment.counts["ephemeral connections"] += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.random.uniform(0, 8)):
                    while found := await broker.tracker.next(mailbox, client):
                        self.checks.arrived(subscriber, client, found, {})
            if self.environment.disk.dead or not self.environment.up():
                return
            if not broker.waiting.events and not mailbox.ready and (missed := list(self.model.all_owed(subscriber))):
                lost = [event.seq for event in missed if event not in subscriber.deliveries]
                if lost:
                    raise BrokenPromise(f"{subscriber.name} was connected and did not get {lost}")
            subscriber.state = "going"
            self.model.removals += 1
            await broker.detach(mailbox, client)
            self.model.removed(subscriber.name)

    # ---- the last life

    async def drain(self, subscriber: ModelSubscriber, mailbox: Mailbox, client: ModelConnection) -> None:
        """Receive everything that is left. A few are refused or ignored at first."""
        post = self.environment.broker.tracker
        waiting = self.checks.waiting(subscriber)
        while found := await post.next(mailbox, client):
            post.sent(mailbox, found)
            self.checks.arrived(subscriber, client, found, waiting)
            waiting = {}
            again = [d.seq for d in found if d.tries]
            seqs = [d.seq for d in found if not d.tries]
            seqs = self._refuse(subscriber, mailbox, client, seqs, 0.05)
            self._acknowledge(subscriber, mailbox, again + [seq for seq in seqs if self.environment.chance(0.97)])
