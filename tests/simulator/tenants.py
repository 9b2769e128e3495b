"""Schedules of two tenants: mallory does everything that is allowed, and alice must not notice but by fair sharing.

These promises are checked, under the same faults as in the other schedules:

- What alice publishes is refused only where the store is full or too many events wait, never because of what mallory
  has: subscribers, subscriptions, delayed events, ids of messages, or too much of anything.
- Every accepted event reaches alice's subscribers and her webhook: in order per priority, marked if it comes again, and
  not after its acknowledgement is in the store.
- What she cannot handle becomes a dead letter, and stays one.
- Nobody gets an event that its `see` hides, and nobody can use what belongs to the other.
- After every start the store is consistent. Once things settle, what mallory left is within every limit of the broker,
  retention has removed what is old, and the store has room again although the disk is small.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from hitbox.broker import admin
from hitbox.broker.access.principals import Principal
from hitbox.broker.broker import Broker
from hitbox.broker.delivery.mailbox import Delivery, Mailbox
from hitbox.broker.delivery.receiver import Receiver
from hitbox.broker.delivery.webhooks import Outcome, Requests
from hitbox.broker.events.published_event import PublishedEvent
from hitbox.broker.settings import Options, Policy, Settings
from hitbox.broker.store.store import Store
from hitbox.broker.subscribers.subscriptions import Subscription
from hitbox.broker.subscribers.webhook import WebhookSettings
from hitbox.encoding.schema import Schema
from hitbox.errors import HitboxError
from hitbox.protocol.errors import Forbidden, Overloaded, StoreFailed, StoreFull
from simulator.environment import ROOMY, Environment
from simulator.model import BrokenPromise
from simulator.schedule import DRAIN_SECONDS, TRIM_SECONDS, Schedule

SCHEMA = Schema({"n": "int", "a": "int", "who": "string", "pad": "string", "b": [{"x": "int"}], "c": [{"y": "int"}]})
ALICE, MALLORY = "alice", "mallory"
DOMAIN = 20
POISON = 13
"""Alice's subscriber `a.levels` refuses events with this value."""
MOST_POISON, MOST_OPEN = 15, 20
"""Events with it, and deliveries that alice lets wait: then she publishes nothing more."""
SUBSCRIBERS = {
    "a.all": ([Subscription("all", "a >= 0", 4)], Options()),
    "a.levels": ([Subscription("low", "a < 10", 2), Subscription("high", "a >= 10", 8)],
                 Options(max_tries=2, backoff_seconds=0.1)),
    "a.hook": ([Subscription("few", "a < 6", 4)], Options()),
}  # fmt: skip
"""Those of alice. Mallory's events match them, too."""
HIDDEN = 15
"""Mallory may not see events of alice from this value on."""
HERS = tuple(f"m.{number}" for number in range(8))
EXPENSIVE = Subscription("expensive", "EXISTS(b WHERE EXISTS(c WHERE y * x = 7919))")
WANTS = (Subscription("all", "a >= 0"), Subscription("own", "who = 'mallory'", 9), EXPENSIVE, EXPENSIVE)
FORGOTTEN_SECONDS = 60.0
LONG = 365 * 86_400.0


def wanted(name: str, value: int) -> tuple[int, list[str]] | None:
    """The level and the names with which one of alice's subscribers gets an event; None: it does not."""
    low = value < 10
    if name == "a.all":
        return 4, ["all"]
    if name == "a.levels":
        return (2, ["low"]) if low else (8, ["high"])
    return (4, ["few"]) if value < 6 else None


@dataclass(eq=False)
class Event:
    """An event of alice. `state`: asked, accepted (also: it is delayed), refused, or unknown: no answer came."""

    number: int
    item: PublishedEvent
    wanted: list[str]
    """Her subscribers that certainly existed when it was published."""
    state: str = "asked"
    seq: int = 0

    @property
    def value(self) -> int:
        return int(self.item.event["a"])


@dataclass(eq=False)
class Inbox:
    """What one of alice's subscribers got: numbers of events. `fresh`: acknowledged in this life of the broker. `sure`:
    the acknowledgement is in the store."""

    arrived: set[int] = field(default_factory=set)
    acked: set[int] = field(default_factory=set)
    fresh: set[int] = field(default_factory=set)
    sure: set[int] = field(default_factory=set)
    letters: set[int] = field(default_factory=set)
    last: dict[int, int] = field(default_factory=dict)

    def acknowledged(self, numbers: Iterable[int]) -> None:
        self.fresh.update(numbers)
        self.acked |= self.fresh


class Targets(Requests):
    """The targets of all webhooks. That of alice takes everything; that of mallory is slow, fails, or is gone."""

    tenants: Tenants

    async def post(self, url: str, headers: dict[str, str], body: bytes, seconds: float) -> Outcome:
        random, found = self.tenants.random, msgspec.json.decode(body)["data"]["deliveries"]
        kind = "ok" if MALLORY not in url else random.choice(["ok", "late", "late", "status", "unreachable", "gone"])
        await asyncio.sleep(seconds if kind == "late" else random.uniform(0, 1))
        try:
            self._got(MALLORY in url, found)
        except BrokenPromise as problem:  # the broker would go on
            self.tenants.problem = self.tenants.problem or problem
        return Outcome(kind, kind)

    def _got(self, mallory: bool, found: Sequence[dict[str, Any]]) -> None:
        if mallory:
            self.tenants.see(found)
        elif not self.tenants.environment.disk.dead:
            self.tenants.arrived("a.hook", found)
            self.tenants.inboxes["a.hook"].acknowledged(one["event"]["n"] for one in found)


class Tenants:
    """Both tenants, what alice knows, and the checks."""

    def __init__(self, environment: Environment):
        self.environment, self.random = environment, environment.random
        self.events: dict[int, Event] = {}
        self.inboxes = {name: Inbox() for name in SUBSCRIBERS}
        self.made: set[str] = set()
        """Her subscribers that certainly exist."""
        self.problem: BrokenPromise | None = None
        self.rights = {
            ALICE: Principal(["publish", "subscribe"], "a.*", "who = 'alice'", "who = 'alice'"),
            MALLORY: Principal(["publish", "subscribe"], "m.*", "who = 'mallory'", f"a < {HIDDEN} OR who = 'mallory'",
                               max_subscriptions=30, max_day_bytes=self.random.choice([0, 0, 400_000])),
        }  # fmt: skip

    @property
    def broker(self) -> Broker:
        return self.environment.broker

    def prepare(self, store: Store) -> None:
        """Both may use a new store."""
        with store.transaction():
            store.principals.put([(name, msgspec.json.encode(one)) for name, one in self.rights.items()])
            store.meta.put("protected", True)

    def all(self) -> list[Any]:
        clients = [self._alice_receives(name) for name in ("a.all", "a.levels")]
        return [self._alice_publishes(), *clients, self._mallory(), self._mallory(), self._mallory_receives(),
                self._mallory_receives(), self._disturb()]  # fmt: skip

    async def _disturb(self) -> None:
        """The system's clock jumps; other programs take what is free of the disk, and give it back."""
        environment = self.environment
        while environment.up():
            await environment.pause(10.0)
            if environment.chance(0.5):
                environment.clock.jump(self.random.choice([-3600.0, -1.0, 5.0, 3600.0]), environment.chance(0.5))
                environment.faults.counts["clock jump"] += 1
            elif environment.capacity != ROOMY:
                taken = environment.disk.capacity != environment.capacity
                environment.disk.capacity = environment.capacity if taken else environment.disk.used()

    # ---- alice

    async def _alice_publishes(self) -> None:
        while self.environment.up():
            await self._make_subscribers()
            await self.environment.pause(1.0)
            if self._open() < MOST_OPEN:
                await self.publish(self.random.choice([1, 1, 3]), self.environment.chance(0.1))

    def _open(self) -> int:
        """How many deliveries of accepted events alice has not handled."""
        return sum(len(self._missing(one)) for one in self.events.values() if one.state == "accepted")

    def _missing(self, event: Event) -> list[str]:
        boxes = self.inboxes
        return [s for s in event.wanted if event.number not in boxes[s].acked and event.number not in boxes[s].letters]

    async def _make_subscribers(self) -> None:
        """Make those that do not exist yet. One more comes and goes."""
        for name, (subscriptions, options) in SUBSCRIBERS.items():
            if name not in self.made:
                await self._must(self._make(name, subscriptions, options))
        if self.environment.chance(0.1):
            await self._must(self.broker.subscribe("a.more", [Subscription("x", "a > 100")], owner=ALICE))
            if "a.more" in self.broker.registry.by_name:
                await self._must(self.broker.remove_subscriber("a.more"))

    async def _make(self, name: str, subscriptions: Sequence[Subscription], options: Options) -> None:
        await self.broker.put_subscriber(name, options, ALICE)
        await self.broker.subscribe(name, subscriptions, owner=ALICE)
        if name == "a.hook":
            await self.broker.put_webhook(name, WebhookSettings("https://alice.example/"), ALICE)
        if not self.environment.disk.dead:
            self.made.add(name)

    async def _must(self, work: Awaitable[Any]) -> None:
        """What alice does is refused only if the store is full or fails."""
        try:
            await work
        except StoreFull as problem:
            self._must_be_full(problem)
        except StoreFailed:
            return
        except HitboxError as problem:
            if not self.environment.disk.dead:
                raise BrokenPromise(f"alice was refused: {problem!r}") from problem

    def _must_be_full(self, problem: StoreFull) -> None:
        tight = self.environment.capacity != ROOMY or self.environment.faults.counts["short write"]
        if not tight and not self.environment.disk.dead:
            raise BrokenPromise(f"alice was refused, and the disk has room: {problem}") from problem

    async def publish(self, count: int, delayed: bool = False, pads: Sequence[int] = (0, 1_500)) -> None:
        """Publish some events of alice, or an earlier one again."""
        first = self.broker.store.events.table.first()
        known = [one for one in self.events.values() if one.seq >= first and one.item.delay_seconds is None][-3:]
        if known and self.environment.chance(0.1):
            events = [self.random.choice(known)]
        else:
            events = [self._new(3.0 if delayed else None, self.random.choice(pads)) for _ in range(count)]
        accepted = False

        async def publish() -> None:
            nonlocal accepted
            try:
                first = await self.broker.publish([one.item for one in events], self.broker.acting_for(ALICE))
            except Overloaded:
                waiting, hers = self.broker.waiting.events + count, 2 * (self.broker.waiting.events_of[ALICE] + count)
                if max(waiting, hers) <= self.broker.settings.max_waiting:
                    raise
                return
            accepted = not self.environment.disk.dead
            for at, one in enumerate(events if accepted else ()):
                one.state = "accepted"
                if one.item.delay_seconds is None:
                    self._numbered(one, first + at)

        await self._must(publish())
        self.environment.note("alice", len(self.events), accepted)
        if not self.environment.disk.dead and self.broker.writer.broken is None:
            for one in events:
                one.state = "refused" if one.state == "asked" else one.state
            self.environment.counts[f"alice's events {'accepted' if accepted else 'refused'}"] += len(events)

    def _new(self, delay: float | None, pad: int) -> Event:
        number, value = len(self.events) + 1, self.random.randrange(DOMAIN)
        poison = sum(one.value == POISON for one in self.events.values())
        value = 0 if value == POISON and poison >= MOST_POISON else value
        fields = {"n": number, "a": value, "who": ALICE, "pad": "x" * pad}
        item = PublishedEvent(fields, id=f"order-{number}", delay_seconds=delay)
        names = [name for name in sorted(self.made) if wanted(name, value)]
        event = self.events[number] = Event(number, item, names)
        return event

    def _numbered(self, event: Event, seq: int) -> None:
        if event.seq not in (0, seq):
            raise BrokenPromise(f"alice's event {event.number} has the numbers {event.seq} and {seq}")
        event.seq = seq

    async def _alice_receives(self, name: str) -> None:
        while self.environment.up():
            await self.environment.pause(2.0)
            if name in self.made:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.random.uniform(0, 8)):
                        await self.receive(name)

    async def receive(self, name: str, dies: float = 0.1) -> None:
        """Connect one of alice's subscribers, and handle what comes. `dies`: how likely it ends before."""
        broker = self.broker
        client = Receiver(broker.tracker, broker.acting_for(ALICE))
        mailbox = await broker.attach(name, client, self.random.choice([1, 5, 100]), None, ALICE)
        inbox = self.inboxes[name]
        try:
            while (found := await client.next(mailbox)) and not self.environment.disk.dead:
                broker.tracker.sent(mailbox, found)
                self.arrived(name, _decoded(found))
                if self.environment.chance(dies):
                    return
                await self.environment.pause(0.5)
                if self.environment.disk.dead or not mailbox.is_connected(client):
                    return
                bad = {d.seq for d in found if name == "a.levels" and self._of(d).value == POISON}
                broker.tracker.refuse(mailbox, sorted(bad))
                broker.tracker.acknowledge(mailbox, [d.seq for d in found if d.seq not in bad])
                inbox.acknowledged(self._of(d).number for d in found if d.seq not in bad)
        finally:
            if not self.environment.disk.dead:
                await broker.detach(mailbox, client)

    def _of(self, delivery: Delivery) -> Event:
        return self.events[msgspec.json.decode(delivery.body)["event"]["n"]]

    def arrived(self, name: str, found: Sequence[dict[str, Any]]) -> None:
        """Check what one of alice's subscribers got."""
        inbox = self.inboxes[name]
        for one in found:
            values, seq, level = one["event"], one["seq"], one["level"]
            self.environment.note("got", name, seq, one["redelivered"])
            self.environment.counts["alice's deliveries"] += 1
            event = self.events.get(values["n"]) if values["who"] == ALICE else None
            if event is None or event.state == "refused":
                raise BrokenPromise(f"{name} got {values}, which alice may not see or never published")
            self._numbered(event, seq)
            if (level, sorted(one["subscriptions"])) != wanted(name, event.value):
                raise BrokenPromise(f"{name} got {one} for {event}")
            if event.number in inbox.sure or event.number in inbox.letters:
                raise BrokenPromise(f"{name} got event {seq} after its acknowledgement, or after it was a dead letter")
            if event.number in inbox.arrived:
                if not one["redelivered"]:
                    raise BrokenPromise(f"{name} got event {seq} twice, and it is not marked")
            elif seq < inbox.last.get(level, 0):
                raise BrokenPromise(f"{name} got event {seq} after {inbox.last[level]} at level {level}")
            inbox.arrived.add(event.number)
            inbox.last[level] = max(seq, inbox.last.get(level, 0))

    # ---- mallory

    async def _mallory(self) -> None:
        acts: list[Callable[[str], Awaitable[Any]]] = [
            self._flood, self._flood, self._flood, self._occupy, self._occupy, self._subscribe, self._subscribe,
            self._pause, self._remove, self._replay, self._revive, self._hook, self._intrude, self._come_and_go,
        ]  # fmt: skip
        while self.environment.up():
            await self.environment.pause(1.0)
            act, name = self.random.choice(acts), self._one_of_hers()
            try:
                await act(name)
            except HitboxError:
                self.environment.counts["mallory was refused"] += 1

    def _one_of_hers(self) -> str:
        """A name of mallory: mostly of a subscriber that exists."""
        there = [name for name in HERS if name in self.broker.registry.by_name]
        return self.random.choice(there if there and self.environment.chance(0.7) else HERS)

    async def _flood(self, _: str) -> None:
        """Publish many events, with alice's next ids, that live shortly or come later; some cost much to match."""
        after = len(self.events) - self.random.randrange(5)
        same_ids = self.environment.chance(0.2)
        pad = "x" * self.random.choice([0, 1000, 4000])
        delay = self.random.choice([None, None, None, 0.5, 30.0])
        ttl = self.random.choice([None, None, 0.5, 10.0])
        lists: dict[str, Any] = {}
        if self.environment.chance(0.3):
            lists = {"b": [{"x": x} for x in range(16)], "c": [{"y": y} for y in range(16)]}
        items = [
            PublishedEvent({"n": -1, "a": self.random.randrange(DOMAIN), "who": MALLORY, "pad": pad, **lists},
                           id=f"order-{after + at}" if same_ids else None, delay_seconds=delay, ttl_seconds=ttl)
            for at in range(self.random.choice([1, 10, 40]))
        ]  # fmt: skip
        await self.broker.publish(items, self.broker.acting_for(MALLORY))
        self.environment.counts["mallory's events accepted"] += len(items)

    async def _occupy(self, name: str) -> None:
        """Make a subscriber with limits of all kinds, and mostly forget it."""
        policy: Policy = self.random.choice(["spool", "drop_oldest", "disconnect"])
        limit = self.random.choice([2, 20, 10_000])
        options = Options(policy, limit, self.random.choice([0.5, 30.0]), self.random.choice([1, 2]), 0.1,
                          unmatched=self.environment.chance(0.3),
                          expires_seconds=self.random.choice([0.0, FORGOTTEN_SECONDS]))  # fmt: skip
        await self.broker.put_subscriber(name, options, MALLORY)
        await self._subscribe(name)

    async def _subscribe(self, name: str) -> None:
        some = self.random.sample(WANTS, 2)
        more = [Subscription(f"w{self.random.randrange(9)}", "a >= 0", self.random.randrange(10)) for _ in range(2)]
        await self.broker.subscribe(name, [*some, *more], [f"w{self.random.randrange(9)}"], owner=MALLORY)

    async def _pause(self, name: str) -> None:
        await self.broker.pause(name, self.environment.chance(0.5))

    async def _remove(self, name: str) -> None:
        await self.broker.remove_subscriber(name)

    async def _replay(self, name: str) -> None:
        events = self.broker.store.events.table
        await admin.replay(self.broker, name, max(events.first(), events.next() - 30))

    async def _revive(self, _: str) -> None:
        """Deliver dead letters again, or drop them; cancel delayed events. Of all, those that she may."""
        store, caller = self.broker.store, self.broker.acting_for(MALLORY)
        numbers = [number for (number,) in store.reader.read("SELECT number FROM dead ORDER BY number")]
        if self.environment.chance(0.3):
            delayed = [number for number, *_ in store.delayed.from_number(0, 100)]
            await self.broker.delayed.cancel(admin.cancellable(self.broker, caller, delayed))
        letters = admin.usable_letters(self.broker, caller, numbers)[:10]
        change = admin.replay_dead_letters if self.environment.chance(0.7) else admin.drop_dead_letters
        self.environment.counts["mallory's letters revived or dropped"] += await change(self.broker, letters)

    async def _hook(self, name: str) -> None:
        await self.broker.put_webhook(name, WebhookSettings("https://mallory.example/", max_requests=4), MALLORY)
        self.environment.counts["mallory's webhooks"] += 1

    async def _intrude(self, _: str) -> None:
        """Use what belongs to alice, in several ways."""
        broker, caller = self.broker, self.broker.acting_for(MALLORY)
        name = self.random.choice(sorted(SUBSCRIBERS))
        forged = PublishedEvent({"n": -1, "a": 1, "who": ALICE, "pad": ""})
        allowed = list[str]()
        if name in self.made:
            for what, work in (
                ("changed", partial(broker.put_subscriber, name, Options(limit=1), MALLORY)),
                ("subscribed", partial(broker.subscribe, name, [Subscription("m", "a >= 0")], owner=MALLORY)),
                ("published", partial(broker.publish, [forged], caller)),
            ):
                try:
                    await work()
                except (Forbidden, StoreFailed):  # StoreFull too
                    continue
                allowed.append(what)
            allowed += ["owns"] if caller.uses(name) else []
        if allowed and not self.environment.disk.dead:
            raise BrokenPromise(f"mallory {allowed} something of alice, with {name}")

    async def _come_and_go(self, name: str) -> None:
        """An ephemeral subscriber that reads little."""
        broker = self.broker
        client = Receiver(broker.tracker, broker.acting_for(MALLORY))
        options = Options(self.random.choice(["drop_oldest", "disconnect"]), self.random.choice([1, 10]))
        mailbox = broker.attach_ephemeral(f"{name}.live", client, options, MALLORY)
        try:
            await broker.subscribe(mailbox.subscriber.name, [self.random.choice(WANTS)], owner=MALLORY)
            await self._read(mailbox, client)
        finally:
            if not self.environment.disk.dead:
                await broker.detach(mailbox, client)

    async def _mallory_receives(self) -> None:
        """Connects now and then; refuses or ignores most of what comes."""
        while self.environment.up():
            await self.environment.pause(3.0)
            broker, name = self.broker, self._one_of_hers()
            if name in broker.registry.by_name:
                client = Receiver(broker.tracker, broker.acting_for(MALLORY))
                with contextlib.suppress(HitboxError):
                    mailbox = await broker.attach(name, client, self.random.choice([1, 100]), None, MALLORY)
                    await self._read(mailbox, client)
                    await broker.detach(mailbox, client)

    async def _read(self, mailbox: Mailbox, client: Receiver) -> None:
        tracker, habit = self.broker.tracker, self.random.choice(["refuse", "refuse", "ignore", "acknowledge"])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.random.uniform(0, 5)):
                while found := await client.next(mailbox):
                    tracker.sent(mailbox, found)
                    self.see(_decoded(found))
                    await self.environment.pause(0.5)
                    if habit == "refuse":
                        tracker.refuse(mailbox, [d.seq for d in found])
                    elif habit == "acknowledge":
                        tracker.acknowledge(mailbox, [d.seq for d in found] + [1, 2, 10**9])

    def see(self, found: Sequence[dict[str, Any]]) -> None:
        """Mallory got these."""
        self.environment.counts["mallory's deliveries"] += len(found)
        for one in found:
            if one["event"]["who"] != MALLORY and one["event"]["a"] >= HIDDEN:
                raise BrokenPromise(f"mallory got {one['event']}, which she may not see")

    # ---- checks

    def written(self) -> None:
        """Everything that was submitted is in the store."""
        if self.environment.disk.dead:
            return
        if self.problem is not None:
            raise self.problem
        recorded = self.broker.tracker.recorded
        for name, inbox in self.inboxes.items():
            if (subscriber := self.broker.registry.by_name.get(name)) is not None:
                self._letters_stay(name, subscriber.number)
            inbox.sure |= {n for n in inbox.fresh - inbox.sure if self.events[n].seq <= recorded}

    def _letters_stay(self, name: str, number: int) -> None:
        inbox, query = self.inboxes[name], "SELECT body, reason FROM dead WHERE subscriber = ?"
        rows = self.broker.store.reader.read(query, (number,))
        found = {msgspec.json.decode(body)["event"]["n"]: why for body, why in rows}
        if lost := inbox.letters - found.keys():
            raise BrokenPromise(f"dead letters of {name} are gone: of the events {sorted(lost)}")
        for n, why in found.items():
            if name != "a.levels" or self.events[n].value != POISON or why != "refused by the subscriber":
                raise BrokenPromise(f"event {n} is a dead letter of {name}: {why}")
        self.environment.counts["alice's dead letters"] += len(found.keys() - inbox.letters)
        inbox.letters |= found.keys()

    def crashed(self) -> None:
        """What was not durable may be lost."""
        for one in self.events.values():
            one.state = "unknown" if one.state == "asked" else one.state
        for inbox in self.inboxes.values():
            inbox.fresh.clear()

    def started(self) -> None:
        """Check the store after a start, and take from it what alice could not know."""
        broker, store = self.broker, self.broker.store
        problems = [*store.problems, *broker.registry.problems, *broker.directory.problems, *store.events.failed()]
        problems += store.inconsistencies()
        if problems:
            raise BrokenPromise(f"the store contradicts itself: {problems}")
        self._limits_hold()
        self._sums_agree()
        for seq, body in store.reader.read("SELECT seq, body FROM events UNION ALL SELECT event, body FROM kept"):
            event = self._alices(body)
            if event is None:
                continue
            if event.state == "refused":
                raise BrokenPromise(f"alice's event {event.number} was refused, and is in the store")
            self._numbered(event, seq)
            event.state = "accepted"
        waiting = [self._alices(body) for *_, body in store.delayed.from_number(0, 1_000)]
        delayed = {one.number for one in waiting if one is not None}
        for name in sorted(self.made):
            self._owed(name, delayed)

    def _alices(self, body: bytes) -> Event | None:
        return self.events.get(msgspec.json.decode(body)["event"]["n"])

    def _owed(self, name: str, delayed: set[int]) -> None:
        """Check that what one of alice's subscribers has not acknowledged is pending, or a dead letter."""
        if name not in self.broker.registry.by_name:
            raise BrokenPromise(f"alice's subscriber {name} is lost")
        inbox, store, number = self.inboxes[name], self.broker.store, self.broker.subscriber(name).number
        seqs = {row[2] for row in store.deliveries.of(number)}
        pending = {n for n, one in self.events.items() if one.seq in seqs}
        self._letters_stay(name, number)
        if again := pending & (inbox.sure | inbox.letters):
            raise BrokenPromise(f"{name} has acknowledged the events {sorted(again)}, and they are pending")
        inbox.acked -= pending
        for event in self.events.values():
            n, wants = event.number, name in event.wanted and event.state == "accepted"
            if wants and n not in pending | inbox.acked | inbox.letters | delayed:
                raise BrokenPromise(f"event {n} is owed to {name}, and is not in the store")

    def _limits_hold(self) -> None:
        """What is never exceeded: how much of everything mallory may have."""
        broker, s = self.broker, self.broker.settings
        owners = {one.number: one.owner for one in broker.registry.by_number.values()}
        letters = Counter[str]()
        for number, count in broker.store.reader.read("SELECT subscriber, count(*) FROM dead GROUP BY subscriber"):
            letters[owners[number]] += count
            self._at_most(f"dead letters of subscriber {number}", count, s.max_dead_letters)
        self._at_most("her dead letters", letters[MALLORY], s.max_principal_dead_letters)
        self._at_most("her subscribers", list(owners.values()).count(MALLORY), s.max_principal_subscribers)
        delayed = broker.store.delayed.counts.committed.get(MALLORY, 0)
        self._at_most("her delayed events", delayed, s.max_principal_delayed)
        rights = self.rights[MALLORY]
        self._at_most("her subscriptions", broker.directory.owned_subscriptions(MALLORY), rights.max_subscriptions)
        if rights.max_day_bytes:
            self._at_most("bytes of her day", broker.directory.usage.today(MALLORY), rights.max_day_bytes)
        if wrong := [id for id in broker.registry.suspensions.ids() if id.startswith("a.")]:
            raise BrokenPromise(f"alice's subscriptions are suspended: {wrong}")
        self.environment.counts["suspended"] += len(broker.registry.suspensions)

    def _at_most(self, what: str, count: float, most: float) -> None:
        if count > most:
            raise BrokenPromise(f"there are {count} {what}, and {most} are the most")

    def _sums_agree(self) -> None:
        """What is counted or indexed in memory is what the store holds."""
        store, registry = self.broker.store, self.broker.registry
        stored = {f"{registry.by_number[n].name}/{name}" for n, name, *_ in store.subscribers.subscriptions.scan()}
        if wrong := stored ^ set(map(str, registry.index)):
            raise BrokenPromise(f"subscriptions are in the index or in the store only: {sorted(wrong)}")
        bodies: dict[int, int] = dict(
            store.reader.read("SELECT seq, length(body) FROM events UNION ALL SELECT event, length(body) FROM kept")
        )
        for number in registry.by_number:
            held = sum(len(row[3]) + bodies[row[2]] for row in store.deliveries.of(number))
            if held != (counted := store.deliveries.bytes.committed.get(number, 0)):
                raise BrokenPromise(f"{held} bytes of {number} are pending, not {counted}")
        ((kept,),) = store.reader.read("SELECT ifnull(sum(length(body)), 0) FROM kept")
        if kept != (counted := store.events.total("kept")):
            raise BrokenPromise(f"{kept} bytes are kept, not {counted}")

    # ---- the last life

    async def settle(self) -> None:
        """Without faults, and without mallory: alice gets everything, and what mallory left is bounded."""
        broker, clock, slow = self.broker, self.environment.clock, self.environment.slow
        due = max((row[1] / 1e6 for row in broker.store.delayed.table.scan()), default=0.0)
        clock.jump(max(0.0, due + 1 - clock.system()), accepted=True)  # so that all delayed events are due
        tasks = [asyncio.create_task(self._receive_all(name)) for name in ("a.all", "a.levels")]
        await self._until(tasks, self._is_calm, "alice's deliveries stay pending, or the store stays full")
        for _ in range(100):
            if self.made == SUBSCRIBERS.keys():
                break
            await self._make_subscribers()
            await asyncio.sleep(1)
        else:
            raise BrokenPromise(f"alice has only {self.made}, and makes no more: {broker.health()}")
        tight = self.environment.capacity != ROOMY
        for _ in range(80 if tight else 5):  # more than the disk has room for; refused is what makes it full
            await self.publish(3, pads=[15_000])
            await self._until(tasks, self._is_calm, "alice's last deliveries stay pending, or the store stays full")
        await asyncio.sleep(FORGOTTEN_SECONDS + TRIM_SECONDS + 20 * slow)
        self._settled()
        later = clock.time() + broker.settings.max_pending_seconds + 86_400.0  # it may have been ahead before
        clock.jump(later - clock.system(), accepted=True)
        await self._until(tasks, lambda: not broker.store.deliveries.unacknowledged(), "too old, and still pending")
        await asyncio.sleep(TRIM_SECONDS + 10 * slow)
        self._limits_hold()
        self._sums_agree()
        self._at_most("bytes kept for nobody", broker.store.events.total("kept"), 0)
        for task in tasks:
            task.cancel()

    async def _receive_all(self, name: str) -> None:
        while True:
            if name in self.broker.registry.by_name:
                await self.receive(name, dies=0.0)
            await asyncio.sleep(0.5)

    def _is_calm(self) -> bool:
        return not (self._open() or self.broker.writer.full) and self.broker.caught_up()

    async def _until(self, tasks: Sequence[asyncio.Task[None]], done: Callable[[], bool], problem: str) -> None:
        until = self.environment.clock.now + DRAIN_SECONDS
        while not done():
            await asyncio.sleep(0.5)
            for task in tasks:
                if task.done():
                    task.result()
            if self.environment.clock.now > until:
                left = {one.number: self._missing(one) for one in self.events.values() if one.state == "accepted"}
                left = {n: names for n, names in left.items() if names}
                raise BrokenPromise(f"{problem}: {left}, {self.broker.health()}, {self.broker.store.space.sizes()}")

    def _settled(self) -> None:
        broker, store, s = self.broker, self.broker.store, self.broker.settings
        total, slack = 0, 10 + 10 * self.environment.slow
        self._limits_hold()
        self._sums_agree()
        for one in broker.registry.by_number.values():
            size, mailbox = store.deliveries.bytes.committed.get(one.number, 0), broker.mailboxes[one.number]
            total += size
            self._at_most(f"bytes pending for {one.name}", size, s.max_pending_bytes)
            if one.options.policy != "disconnect":
                self._at_most(f"deliveries pending for {one.name}", mailbox.pending, one.options.limit)
            used = mailbox.unused_seconds() if one.options.expires_seconds else 0.0
            self._at_most(f"seconds that {one.name} was not used", used, FORGOTTEN_SECONDS + slack)
        self._at_most("bytes pending", total, s.max_principal_pending_bytes)
        self._at_most("bytes kept", store.events.total("kept"), s.max_principal_pending_bytes)
        now = self.environment.clock.time()
        for _, when, *_ in store.events.table.scan("TRUE ORDER BY seq LIMIT 1"):
            self._at_most("seconds that the oldest event is kept", now - when / 1e6, s.keep_seconds + slack)
            self._at_most("bytes of the events", store.events.total("events"), s.keep_bytes)


def _decoded(found: Sequence[Delivery]) -> list[dict[str, Any]]:
    return [msgspec.json.decode(one.encode()) for one in found]


class TenantSchedule(Schedule):
    """A schedule of two tenants."""

    schema = SCHEMA

    def _set_up(self) -> None:
        environment, rng = self.environment, self.random
        environment.capacity = rng.choice([ROOMY, 4_000_000])
        self.rates["crash"] = rng.choice([0.0, 0.001, 0.005])
        kept = [(1.0, 2**30), (20.0, 500_000), (7 * 86_400.0, 200_000)]
        small = environment.capacity != ROOMY  # then only the disk tells retention, mostly
        keep_seconds, keep_bytes = rng.choice([(LONG, 2**30), (LONG, 2**30), kept[1]] if small else kept)
        environment.settings = Settings(
            way=environment.settings.way,
            snapshot_changes=environment.settings.snapshot_changes,
            keep_seconds=keep_seconds,
            keep_bytes=keep_bytes,
            max_waiting=rng.choice([60, 20_000]),
            max_pending_bytes=100_000,
            max_principal_pending_bytes=200_000,
            max_pending_seconds=30 * 86_400.0,
            max_dead_letters=25,
            max_principal_dead_letters=40,
            max_delayed=200,
            max_principal_delayed=60,
            max_subscribers=30,
            max_principal_subscribers=6,
            max_webhook_requests=4,
            match_steps=100,
            principal_steps=300,
        )
        self.tenants = Tenants(environment)
        self.last_capacity = environment.capacity

    def _prepare(self) -> None:
        disk = self.environment.disk
        disk.capacity = ROOMY
        store = Store(self.folder, disk=disk)
        self.tenants.prepare(store)
        store.close()
        disk.capacity = self.environment.capacity

    def _opened(self, broker: Broker) -> None:
        broker.webhooks.requests = targets = Targets(broker.settings)
        targets.tenants = self.tenants

    def _check_started(self) -> None:
        self.tenants.started()

    def _actors(self) -> list[Any]:
        return self.tenants.all()

    def _check_written(self) -> None:
        self.tenants.written()

    def _crashed_with_it(self) -> None:
        self.tenants.crashed()

    async def _drain(self) -> None:
        await self.tenants.settle()
        await self.environment.broker.stop()
