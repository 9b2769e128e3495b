"""One schedule: a broker lives through publishes, changes, connections and faults, and a model holds it to its word.

Promised, and checked all the time:

    an event that was accepted reaches every durable subscriber that wanted it, at least until it is acknowledged
    an event that was refused reaches nobody, and nobody gets what he did not want
    a delivery names exactly the subscriptions that match, at the highest of their priorities
    what comes twice is marked as redelivered, and nothing comes after its acknowledgement is in the store
    first arrivals are in order for each subscriber and priority
    numbers are given once, and the store opens after every crash with exactly the changes that were confirmed

Of a change that was cut short nothing is known but that it is done or not done: the model asks the store at the next
start, and goes on from there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import shutil
import sys
import tempfile
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from hitbox.broker.broker import Broker
from hitbox.broker.delivery.mailbox import Delivery, Mailbox
from hitbox.broker.errors import BrokerError, StoreDamaged, StoreFailed, StoreFull
from hitbox.broker.item import Item
from hitbox.broker.settings import Options, Settings
from hitbox.broker.subscriptions import Subscription
from hitbox.encoding.schema import Schema
from hitbox.errors import HitboxError
from hitbox.simulator.disk import KILLED, POWER_CUT, Faults, SimulatedDisk
from hitbox.simulator.world import Loop, World, writer_of

SCHEMA = Schema({"n": "int", "a": "int", "pad": "string"})
DOMAIN = 20
NAMES = ("ann", "bob", "cid", "dot")
LIFE_SECONDS = 30.0
DRAIN_SECONDS = 600.0
ROOMY = 8 * 2**20


class Broken(Exception):
    """A promise that was not kept."""


@dataclass(frozen=True)
class Want:
    """A subscription, as Python."""

    low: int
    high: int
    priority: int

    @property
    def where(self) -> str:
        return f"a BETWEEN {self.low} AND {self.high}"


Wants = dict[str, Want]
Outcome = tuple[int, tuple[str, ...]]


@dataclass(eq=False)
class Published:
    """An event. `state`: asked, accepted, refused, unknown."""

    number: int
    value: int
    state: str = "asked"
    seq: int = 0
    since: dict[str, tuple[Person, int]] = field(default_factory=dict)
    until: dict[str, int] = field(default_factory=dict)


@dataclass(eq=False)
class Person:
    """A durable subscriber, from its making to its removal, with all the versions of what it wants.

    The versions from `settled` on are those that may be in force at the moment.
    """

    name: str
    versions: list[Wants] = field(default_factory=lambda: [{}])
    settled: int = 0
    state: str = "making"
    got: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)
    acked: set[int] = field(default_factory=set)
    done: set[int] = field(default_factory=set)

    def outcomes(self, value: int, since: int, until: int) -> set[Outcome | None]:
        return {outcome(wants, value) for wants in self.versions[since : until + 1]}


def outcome(wants: Wants, value: int) -> Outcome | None:
    """What a subscriber with these subscriptions gets of an event."""
    mine = {name: want for name, want in wants.items() if want.low <= value <= want.high}
    return (max(w.priority for w in mine.values()), tuple(sorted(mine))) if mine else None


class Client:
    """A connection of a subscriber."""

    def __init__(self) -> None:
        self.closed = False

    def close(self, code: int, reason: str) -> None:
        self.closed = True


class Schedule:
    def __init__(self, seed: int):
        self.seed = seed
        self.random = rng = random.Random(seed)
        self.world = World(rng)
        self.faults = Faults(rng)
        self.slow = rng.choice([0.0005, 0.02, 0.02, 3.0])
        self.rates = {
            "crash": rng.choice([0.0, 0.002, 0.01, 0.03]),
            "eio": rng.choice([0.0, 0.0, 0.002]),
            "short": rng.choice([0.0, 0.0, 0.005]),
        }
        self.writer = writer_of(self.world, self.slow, self.faults.counts)
        self.capacity = rng.choice([ROOMY, ROOMY, 300_000, 600_000])
        self.settings = Settings(
            way=rng.choice(["serial", "alternate", "concurrent"]),
            snapshot_changes=rng.choice([5, 100_000, 100_000]),
            keep_seconds=rng.choice([1.0, 7 * 86_400.0]),
            max_waiting=rng.choice([20, 20_000]),
        )
        self.options = Options(
            visibility_seconds=rng.choice([0.5, 30.0]),
            backoff_seconds=rng.choice([0.1, 1.0]),
            max_tries=rng.choice([2, 1000, 1000]),
        )
        self.events: dict[int, Published] = {}
        self.by_seq: dict[int, int] = {}
        self.people: dict[str, Person] = {}
        self.counts: Counter[str] = Counter()
        self.trace = 0
        self.dead_letters: set[tuple[str, int]] = set()
        self._number = 0

    # ---- lives

    def run(self) -> None:
        """Raise `Broken` where a promise was not kept."""
        log = logging.getLogger("hitbox.broker")
        before = log.disabled
        log.disabled = True
        hook, sys.unraisablehook = sys.unraisablehook, lambda problem: None  # SQLite cleaning up after a crash
        # snapshots of the index are real files; in memory, where there is such a place
        self.folder = Path(tempfile.mkdtemp(prefix="hitbox-torture-", dir="/dev/shm" if _in_memory() else None))
        self.disk = SimulatedDisk(self.faults, self.capacity, self._crashed)
        try:
            with self.world.clock():
                lives = self.random.randint(2, 5)
                for life in range(lives):
                    self._live(last=life == lives - 1)
        finally:
            log.disabled, sys.unraisablehook = before, hook
            self.disk.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def note(self, *what: object) -> None:
        """Remember what happened, as a number: two runs of one seed must give the same."""
        self.trace = zlib.crc32(repr((round(self.world.now, 6), *what)).encode(), self.trace)

    def _crashed(self) -> None:
        self.over.set()

    def _live(self, last: bool) -> None:
        """From a start of the broker to its end."""
        loop = Loop(self.world)
        asyncio.set_event_loop(loop)
        self.over = asyncio.Event()
        broker = None
        try:
            self._arm(not last)
            if last:
                self.disk.capacity = ROOMY
            broker = self._open()
            if broker is None and last:
                raise Broken("the store does not open on a healthy disk")
            if broker is not None:
                loop.run_until_complete(self._life(broker, last))
        finally:
            self._arm(False)
            for task in asyncio.all_tasks(loop):
                task.cancel()
            self.disk.dead = True
            with contextlib.suppress(RuntimeError):
                loop.run_until_complete(asyncio.sleep(0))
            asyncio.set_event_loop(None)
            loop.close()
            dead = self.disk
            self._reboot()
            if broker is not None:
                broker.store.close()
            dead.close()

    def _arm(self, on: bool) -> None:
        for name, rate in self.rates.items():
            setattr(self.faults, name, rate if on else 0.0)

    def _reboot(self) -> None:
        power = self.random.random() < 0.5 if self.disk.ended is None else self.disk.ended == POWER_CUT
        self.disk = self.disk.reboot(self._crashed, power)
        if self.random.random() < 0.3:
            shutil.rmtree(self.folder / "snapshots", ignore_errors=True)  # it is derived: nobody may miss it
        self.note("reboot", power)

    def _open(self) -> Broker | None:
        """Open the store; where a fault hinders it, there is another start."""
        try:
            return Broker(self.folder, SCHEMA, self.settings, self.disk, self.writer)
        except StoreDamaged as problem:
            if self.disk.dead:
                return None
            raise Broken(f"the store does not open: {problem}") from problem
        except StoreFull:
            self.disk.capacity = ROOMY
            self.counts["starts on a full disk"] += 1
            return None
        except StoreFailed:
            return None

    async def _life(self, broker: Broker, last: bool) -> None:
        self.broker = broker
        starting = asyncio.create_task(self._start(broker))
        await self._until_over(starting, 60 if last else 20)
        if not starting.done() or self.disk.dead or broker.writer.broken is not None:
            if last:
                raise Broken(f"the broker does not start on a healthy disk: {broker.health()}")
            return
        starting.result()
        self._compare()
        self.counts["lives"] += 1
        self.note("life", last)
        if last:
            await self._drain()
            return
        actors = [self._publisher(), self._publisher(), self._changer(), self._racer(), self._weather()]
        actors += [self._listener(name) for name in NAMES]
        errors = self.faults.counts["I/O error"]
        tasks = [asyncio.create_task(actor) for actor in actors]
        await self._until_over(asyncio.gather(*tasks), self.random.uniform(1, LIFE_SECONDS))
        self._judge(tasks, errors)
        if not self.disk.dead and self.random.random() < 0.3:
            self.counts["clean stops"] += 1
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._arm(False)
            await broker.stop()
        elif not self.disk.dead:
            self.disk.crash(self.random.choice([KILLED, POWER_CUT]))

    async def _start(self, broker: Broker) -> None:
        """Until the store has all deliveries of what an earlier life accepted."""
        await broker.start()
        while not broker.caught_up():
            await asyncio.sleep(0.01)

    def _judge(self, tasks: list[asyncio.Task[None]], errors: int) -> None:
        """Nobody may fail, unless the disk did."""
        broken = self.broker.writer.broken
        if self.disk.dead:
            return
        if broken is not None and self.faults.counts["I/O error"] == errors:
            raise Broken(f"the store failed for no reason: {broken!r}") from broken
        if broken is None and self.broker.failed is not None:
            raise Broken(f"the broker failed: {self.broker.failed!r}") from self.broker.failed
        for task in tasks:
            problem = task.exception() if task.done() and not task.cancelled() else None
            if problem is not None and not (broken is not None and isinstance(problem, HitboxError)):
                raise problem

    async def _until_over(self, work: asyncio.Future[Any], seconds: float) -> None:
        ends = asyncio.create_task(self.over.wait())
        await asyncio.wait([work, ends], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        ends.cancel()

    def _up(self) -> bool:
        return self.broker.writer.broken is None

    async def _pause(self, longest: float) -> None:
        await asyncio.sleep(self.random.choice([0.0, 0.001, self.random.uniform(0, longest)]))

    # ---- who does what

    async def _publisher(self) -> None:
        while self._up():
            await self._pause(2.0)
            events = [self._event() for _ in range(self.random.choice([1, 1, 2, 5, 40]))]
            pad = "x" * self.random.choice([0, 500, 2000]) if self.capacity != ROOMY else ""
            items = [Item({"n": e.number, "a": e.value, "pad": pad}) for e in events]
            try:
                first = await self.broker.publish(items)
            except StoreFull:
                self._published(events, "refused")
            except StoreFailed:
                self._published(events, "unknown")
            except BrokerError:
                self._published(events, "refused")
            else:
                if self.disk.dead:
                    return
                for at, event in enumerate(events):
                    self._numbered(event, first + at)
                self._published(events, "accepted")

    def _event(self) -> Published:
        self._number += 1
        event = self.events[self._number] = Published(self._number, self.random.randrange(DOMAIN))
        event.since = {name: (person, person.settled) for name, person in self.people.items()}
        return event

    def _published(self, events: list[Published], state: str) -> None:
        self.note(state, len(events))
        self.counts[f"events {state}"] += len(events)
        for event in events:
            event.state = state
            if state == "accepted":
                self._close(event)

    def _close(self, event: Published) -> None:
        """No version that comes later can matter to this event."""
        for name, person in self.people.items():
            event.since.setdefault(name, (person, 0))
        event.until = {name: len(person.versions) - 1 for name, (person, _) in event.since.items()}

    def _numbered(self, event: Published, seq: int) -> None:
        if event.seq not in (0, seq) or self.by_seq.setdefault(seq, event.number) != event.number:
            raise Broken(
                f"event {event.number} has the numbers {event.seq} and {seq}, which is {self.by_seq.get(seq)}'s"
            )
        event.seq = seq

    async def _changer(self) -> None:
        """Subscribers come, change and go, one change at a time."""
        while self._up():
            await self._pause(3.0)
            name = self.random.choice(NAMES)
            person = self.people.get(name)
            drawn = self.random.random()
            if person is None or drawn < 0.75:
                await self._change(name, person)
            elif drawn < 0.9:
                await self._remove(person)
            else:
                with contextlib.suppress(HitboxError, OSError):
                    await self.broker.snapshot()

    async def _change(self, name: str, person: Person | None) -> None:
        person = person or self.people.setdefault(name, Person(name))
        before = person.versions[-1]
        after = dict(before)
        put, remove = [], []
        for _ in range(self.random.choice([1, 1, 3])):
            one = f"w{self.random.randrange(4)}"
            if one in put or one in remove:
                continue
            if one in before and self.random.random() < 0.3:
                del after[one]
                remove.append(one)
            else:
                low = self.random.randrange(DOMAIN)
                after[one] = Want(low, low + self.random.randrange(8), self.random.choice([0, 4, 4, 9]))
                put.append(one)
        person.versions.append(after)
        wanted = [Subscription(one, after[one].where, after[one].priority) for one in put]
        try:
            await self.broker.subscribe(name, wanted, remove)
        except StoreFull:
            result = "refused"
        except StoreFailed:
            return
        except HitboxError as problem:
            if self.disk.dead:
                return
            raise Broken(f"subscribe of {name} failed: {problem!r}") from problem
        else:
            result = "accepted"
        if self.disk.dead:
            return
        self.note("change", name, result)
        self.counts[f"changes {result}"] += 1
        if result == "refused":
            person.versions.append(before)
            if person.state == "making":
                self.people.pop(name)
                return
        person.settled = len(person.versions) - 1
        person.state = "made"

    async def _remove(self, person: Person) -> None:
        person.state = "going"
        try:
            await self.broker.remove_subscriber(person.name)
        except StoreFailed:
            return
        if self.disk.dead:
            return
        self.note("removed", person.name)
        self.counts["removals"] += 1
        person.state = "gone"
        self.people.pop(person.name)

    async def _racer(self) -> None:
        """Changes of one subscriber all at once: whatever comes of it, it must fit together."""
        name = "race"
        while self._up():
            await self._pause(4.0)
            acts: list[Any] = [
                self.broker.subscribe(name, [Subscription("x", "a > 100")]),
                self.broker.remove_subscriber(name) if name in self.broker.registry.by_name else asyncio.sleep(0),
                self.broker.put_subscriber(name, Options(limit=self.random.randrange(1, 1000))),
                self.broker.subscribe(name, [Subscription("y", "a > 100")], ["x"]),
            ]
            self.random.shuffle(acts)
            for found in await asyncio.gather(*acts, return_exceptions=True):
                if isinstance(found, Exception) and not isinstance(found, HitboxError) and not self.disk.dead:
                    raise Broken(f"a race gave {found!r}") from found
            self.counts["races"] += 1

    async def _weather(self) -> None:
        """The wall clock jumps, disks are filled and emptied by others."""
        while self._up():
            await self._pause(10.0)
            drawn = self.random.random()
            if drawn < 0.5:
                self.world.wall += self.random.choice([-86_400.0, -1.0, 5.0, 3600.0, 30 * 86_400.0])
                self.faults.counts["clock jump"] += 1
            elif self.capacity != ROOMY:
                self.disk.capacity = ROOMY if self.disk.capacity != ROOMY else max(self.disk.used(), self.capacity)

    async def _listener(self, name: str) -> None:
        """Connects, gets, acknowledges (late, in any order, twice), refuses, and goes."""
        while self._up():
            await self._pause(3.0)
            person = self.people.get(name)
            if person is None or person.state != "made" or name not in self.broker.registry.by_name:
                continue
            client = Client()
            try:
                mailbox = await self.broker.attach(name, client, self.random.choice([1, 5, 100]), self.options)
            except HitboxError:
                continue
            if self.people.get(name) is not person:
                await self.broker.detach(mailbox, client)
                continue
            self.counts["connections"] += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.random.uniform(0, 8)):
                    await self._listen(person, mailbox, client, patient=False)
            await self.broker.detach(mailbox, client)

    async def _listen(self, person: Person, mailbox: Mailbox, client: Client, patient: bool) -> None:
        post = self.broker.post
        late: list[int] = []
        while not client.closed and (found := await post.next(mailbox, client)):
            if self.disk.dead:
                return
            post.sent(mailbox, found)
            for delivery in found:
                self._got(person, delivery)
            seqs = [d.seq for d in found]
            if not patient and self.random.random() < 0.1:
                return  # the subscriber dies: nothing is acknowledged
            if not patient and self.random.random() < 0.1:
                refused = [seq for seq in seqs if self.random.random() < 0.5]
                self.counts["nacks"] += len(refused)
                post.refuse(mailbox, refused)
                seqs = [seq for seq in seqs if seq not in refused]
            late += seqs
            if patient or self.random.random() < 0.7:
                if not patient:
                    self.random.shuffle(late)
                    self.faults.counts["acks late and reordered"] += 1
                    if self.random.random() < 0.1:
                        late += late[:3]
                        self.faults.counts["acks doubled"] += 1
                    await self._pause(1.0)
                    if self.disk.dead or mailbox.connected is not client:
                        return
                post.acknowledge(mailbox, late)
                person.acked.update(late)
                late = []

    # ---- what must be

    def _got(self, person: Person, delivery: Delivery) -> None:
        told = msgspec.json.decode(delivery.encode())
        event = self.events.get(told["event"]["n"])
        who = person.name
        seq, level = told["seq"], told["level"]
        self.note("got", who, seq, told["redelivered"])
        self.counts["deliveries"] += 1
        if event is None or event.state == "refused":
            raise Broken(f"{who} got event {told['event']}, which was never accepted")
        if told["event"]["a"] != event.value:
            raise Broken(f"{who} got event {told['event']}, not {event.value}")
        self._numbered(event, seq)
        known, since = event.since.get(who, (person, 0))
        if known is not person:
            since = 0  # it was removed and made again meanwhile
        until = event.until.get(who, len(person.versions) - 1) if known is person else len(person.versions) - 1
        allowed = person.outcomes(event.value, since, until)
        found = (level, tuple(sorted(told["subscriptions"])))
        if found not in allowed:
            raise Broken(f"{who} got {found} of event {seq}, wanted {sorted(map(str, allowed))}")
        if seq in person.done:
            raise Broken(f"{who} got event {seq} after its acknowledgement was stored")
        if seq in person.got:
            self.counts["redeliveries"] += 1
            if not told["redelivered"]:
                raise Broken(f"{who} got event {seq} twice, and it is not marked")
        elif seq < person.last.get(level, 0):
            raise Broken(f"{who} got event {seq} after {person.last[level]} at level {level}")
        else:
            person.last[level] = seq
        person.got[seq] = level

    def _compare(self) -> None:
        """After a start: hold the store against the model, and adopt what was not known."""
        store = self.broker.store
        if problems := [*store.problems, *self.broker.registry.problems, *store.failed()]:
            raise Broken(f"the store contradicts itself: {problems}")
        numbers = {name: number for number, name, *_ in store.subscribers.scan()}
        for person in list(self.people.values()):
            self._compare_person(person, numbers.get(person.name))
        index = self.broker.registry.index
        stored = {f"{self.broker.registry.by_number[row[0]].name}/{row[1]}" for row in store.subscriptions.scan()}
        if stored != set(index):
            raise Broken(f"the index and the store differ: {stored ^ set(index)}")
        for seq, _, body, _ in store.events.scan():
            event = self.events[json.loads(body)["event"]["n"]]
            if event.state == "refused":
                raise Broken(f"event {event.number} was refused, and is in the store")
            self._numbered(event, seq)
        for event in self.events.values():
            if event.state in ("asked", "unknown"):
                event.state = "accepted" if event.seq else "unknown"
                self._close(event)
        self._compare_deliveries(numbers)

    def _compare_person(self, person: Person, number: int | None) -> None:
        """Confirmed changes are there; one that was cut short is there or is not."""
        store = self.broker.store
        if number is None:
            if person.state == "made":
                raise Broken(f"subscriber {person.name} is lost")
            person.state = "gone"
            self.people.pop(person.name)
            return
        found = {
            name: Want(*_bounds(where), priority)
            for _, name, where, priority, *_ in store.subscriptions.scan("subscriber = ?", (number,))
        }
        allowed = person.versions[person.settled :]
        if found not in allowed:
            raise Broken(f"{person.name} has the subscriptions {found}, not one of {allowed}")
        if person.state == "making" and not found and {} not in person.versions[1:]:
            raise Broken(f"{person.name} was made without its subscriptions")
        person.versions.append(found)
        person.settled = len(person.versions) - 1
        person.state = "made"

    def _compare_deliveries(self, numbers: dict[str, int]) -> None:
        """Of what was accepted and not acknowledged everything is pending, or dead letters."""
        store = self.broker.store
        rows = {(row[0], row[2]) for row in store.deliveries.scan()}
        dead = {(row[1], row[3]) for row in store.dead.scan()}
        for event in self.events.values():
            if event.state != "accepted":
                continue
            for name, person in self.people.items():
                key = (numbers[name], event.seq)
                if event.seq in person.acked:
                    if key not in rows:
                        person.done.add(event.seq)
                elif self._owed(event, person) and key not in rows and key not in dead:
                    raise Broken(f"event {event.seq} is owed to {name}, and is not in the store")

    def _owed(self, event: Published, person: Person) -> bool:
        """Whether a subscriber must get an event, whatever was in force when it was matched."""
        known, since = event.since.get(person.name, (None, 0))
        if known is not person:
            return False
        return None not in person.outcomes(event.value, since, event.until[person.name])

    async def _drain(self) -> None:
        """All is well again: everybody gets all that is left, and then there is nothing left."""
        tasks = []
        for name, person in self.people.items():
            client = Client()
            mailbox = await self.broker.attach(name, client, 100, self.options)
            tasks.append(asyncio.create_task(self._listen(person, mailbox, client, patient=True)))
        until = self.world.now + DRAIN_SECONDS
        while self.broker.store.deliveries.rows() or self.broker.waiting or self.broker.writer.full:
            await asyncio.sleep(0.5)
            for task in tasks:
                if task.done():
                    task.result()
            if self.world.now > until:
                rows = list(self.broker.store.deliveries.scan())[:5]
                raise Broken(f"something stays pending: {rows}, {self.broker.health()}")
        await asyncio.sleep(10 * self.slow)
        pending = {name: self.broker.mailbox(name).pending for name in self.people}
        if any(pending.values()):
            raise Broken(f"nothing is pending in the store, but the broker says {pending}")
        dead = {(row[1], row[3]) for row in self.broker.store.dead.scan()}
        for event in self.events.values():
            for name, person in self.people.items():
                number = self.broker.subscriber(name).number
                owed = event.state == "accepted" and self._owed(event, person)
                if owed and event.seq not in person.got and (number, event.seq) not in dead:
                    raise Broken(f"{name} never got event {event.seq}")
        await self.broker.stop()
        for task in tasks:
            task.cancel()


def _in_memory() -> bool:
    return os.access("/dev/shm", os.W_OK)


def _bounds(where: str) -> tuple[int, int]:
    words = where.split()
    return int(words[2]), int(words[4])
