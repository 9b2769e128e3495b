"""Who does what while the broker is up: publish, change, connect and go, and everything at bad moments."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Any

from hitbox.broker import admin
from hitbox.broker.delivery.mailbox import Mailbox
from hitbox.broker.errors import BrokerError, Conflict, StoreFailed, StoreFull, Unknown
from hitbox.broker.item import Item
from hitbox.broker.settings import Options
from hitbox.broker.subscriptions import Subscription
from hitbox.encoding.schema import Schema
from hitbox.errors import HitboxError
from hitbox.simulator.checks import Checks
from hitbox.simulator.model import NOBODYS, Broken, Client, Model, Outcome, Parcel, Person, Published, Version, Want
from hitbox.simulator.stage import ROOMY, Stage

DOMAIN = 20
NAMES = ("ann", "bob", "cid", "dot")
HABITS = ("calm", "calm", "calm", "refusing", "idle")
"""What a client does with its deliveries: acknowledge most, refuse most, or nothing at all."""


class Actors:
    def __init__(self, stage: Stage, model: Model, checks: Checks):
        self.stage, self.model, self.checks = stage, model, checks
        self.random = stage.random

    def all(self) -> list[Any]:
        clients = [self._subscriber(name) for name in NAMES]
        return [self._publisher(), self._publisher(), self._changer(), self._racer(), self._weather(), *clients,
                self._ephemeral()]  # fmt: skip

    # ---- events

    async def _publisher(self) -> None:
        while self.stage.up():
            await self.stage.pause(2.0)
            count = self.random.choice([1, 1, 2, 5, 40])
            events = [self.model.event(self.random.randrange(DOMAIN), self.stage.world.time()) for _ in range(count)]
            pad = "x" * self.random.choice([0, 500, 2000]) if self.stage.capacity != ROOMY else ""
            items = [Item({"n": e.number, "a": e.value, "pad": pad}) for e in events]
            try:
                first = await self.stage.broker.publish(items)
            except StoreFull:
                self._published(events, "refused")
            except StoreFailed:
                self._published(events, "unknown")
            except BrokerError:
                self._published(events, "refused")
            else:
                if self.stage.disk.dead:
                    return
                for at, event in enumerate(events):
                    self.model.numbered(event, first + at)
                self._published(events, "accepted")

    def _published(self, events: list[Published], state: str) -> None:
        self.stage.note(state, len(events))
        self.stage.counts[f"events {state}"] += len(events)
        for event in events:
            event.state = state
            if state == "accepted":
                self.model.close(event)

    async def _weather(self) -> None:
        """The wall clock jumps, disks are filled and emptied by others."""
        stage = self.stage
        while stage.up():
            await stage.pause(10.0)
            if stage.chance(0.5):
                stage.world.jump(self.random.choice([-86_400.0, -1.0, 5.0, 3600.0, 30 * 86_400.0]))
                stage.faults.counts["clock jump"] += 1
                for event in self.model.events.values():
                    if event.state == "asked":
                        event.wall = min(event.wall, stage.world.time())
            elif stage.capacity != ROOMY:
                stage.disk.capacity = ROOMY if stage.disk.capacity != ROOMY else max(stage.disk.used(), stage.capacity)

    # ---- changes

    async def _changer(self) -> None:
        """Subscribers come, change and go, one change at a time; dead letters and old events are sent again."""
        while self.stage.up() and not self.stage.disk.dead:
            await self.stage.pause(3.0)
            name = self.random.choice(NAMES)
            person = self.model.people.get(name)
            drawn = self.random.random()
            if person is None or drawn < 0.45:
                await self._change(name, person)
            elif drawn < 0.6:
                await self._set_options(person)
            elif drawn < 0.7:
                await self._remove(person)
            elif drawn < 0.82:
                await self._replay(person)
            elif drawn < 0.92:
                await self._revive(person)
            elif drawn < 0.96:
                await self._widen_schema()
            else:
                with contextlib.suppress(HitboxError, OSError):
                    await self.stage.broker.snapshot()

    async def _change(self, name: str, person: Person | None) -> None:
        person = person or self.model.people.setdefault(name, Person(name))
        after = dict(person.now.wants)
        put: list[str] = []
        remove: list[str] = []
        for _ in range(self.random.choice([1, 1, 3])):
            one = f"w{self.random.randrange(4)}"
            if one in put or one in remove:
                continue
            if one in person.now.wants and self.stage.chance(0.3):
                del after[one]
                remove.append(one)
            else:
                low = self.random.randrange(DOMAIN)
                after[one] = Want(low, low + self.random.randrange(8), self.random.choice([0, 4, 4, 9]))
                put.append(one)
        wanted = [Subscription(one, after[one].where, after[one].priority) for one in put]
        await self._try(person, Version(after, person.now.options), self.stage.broker.subscribe(name, wanted, remove))

    async def _set_options(self, person: Person) -> None:
        old = person.now.options
        options = Options(
            limit=self.random.choice([100_000, 1_000_000]),
            visibility_seconds=self.random.choice([0.5, 2.0, 30.0]),
            backoff_seconds=self.random.choice([0.1, 1.0]),
            max_tries=self.random.choice([2, 3, 1000]) if old.max_tries == Options().max_tries else old.max_tries,
            unmatched=self.stage.chance(0.3),
        )
        after = Version(person.now.wants, options)
        await self._try(person, after, self.stage.broker.put_subscriber(person.name, options))

    async def _try(self, person: Person, after: Version, change: Awaitable[Any]) -> None:
        """Ask for a change: afterwards it is in force, refused, or unknown until the next start."""
        before = person.now
        person.versions.append(after)
        try:
            await change
        except StoreFull:
            result = "refused"
        except StoreFailed:
            return
        except HitboxError as problem:
            if self.stage.disk.dead:
                return
            raise Broken(f"a change of {person.name} failed: {problem!r}") from problem
        else:
            result = "accepted"
        if self.stage.disk.dead:
            return
        self.stage.note("change", person.name, result)
        self.stage.counts[f"changes {result}"] += 1
        if result == "refused":
            person.versions.append(before)
            if person.state == "making":
                self.model.removed(person.name)
                return
        person.settle()

    async def _remove(self, person: Person) -> None:
        person.state = "going"
        self.model.removals += 1
        try:
            await self.stage.broker.remove_subscriber(person.name)
        except StoreFailed:
            return
        if self.stage.disk.dead:
            return
        self.stage.note("removed", person.name)
        self.stage.counts["removals"] += 1
        self.model.removed(person.name)

    async def _widen_schema(self) -> None:
        """One more attribute; nobody uses it, so that no subscription and no old event contradicts."""
        wider = Schema({**self.model.schemas[-1], f"more{len(self.model.schemas[-1])}": "int"})
        self.model.schemas.append(wider)
        try:
            await admin.put_schema(self.stage.broker, wider)
        except (StoreFull, Conflict):
            self.model.schemas.pop()
        except StoreFailed:
            return
        else:
            if not self.stage.disk.dead:
                self.model.schemas = [wider]
                self.stage.counts["schema changes"] += 1

    async def _replay(self, person: Person) -> None:
        """Old events again: those that are wanted now and not pending must come, and no others."""
        store = self.stage.broker.store
        first = max(store.events.first(), store.events.next() - self.random.choice([5, 50, 50, 500]))
        must: dict[Parcel, Outcome] = {}
        may = 0
        for event in [e for e in self.model.events.values() if e.seq >= first or e.state in ("asked", "unknown")]:
            parcel = person.parcels.get(event) or Parcel(event)
            now = self._wanted_now(event, person)
            may += now != {None}
            came = parcel.arrivals or parcel.replayed
            gone = parcel.done if came else self.model.outcomes(event, person) == {None}
            sure = event.state == "accepted" and gone and not parcel.loose and event.seq <= self._recorded()
            if sure and len(now) == 1 and (outcome := next(iter(now))) is not None:
                must[parcel] = outcome
            if now != {None}:
                person.parcels[event] = parcel
                parcel.loose = True
                parcel.low = parcel.sure = 0
        try:
            count = await admin.replay(self.stage.broker, person.name, first)
        except (StoreFull, StoreFailed, Unknown):
            return  # Unknown: the first ones were let go meanwhile
        if self.stage.disk.dead:
            return
        left = {parcel: outcome for parcel, outcome in must.items() if parcel.seq >= store.events.first()}
        self.stage.note("replayed", person.name, count)
        self.stage.counts["replayed"] += count
        if not len(left) <= count <= may:
            raise Broken(f"{count} events from {first} on were replayed for {person.name}, not {len(left)} to {may}")
        for parcel, outcome in left.items():
            if parcel.loose and not parcel.hand:  # or it has come meanwhile
                parcel.reset(surely=True)
                parcel.loose, parcel.must = False, True
                parcel.replayed.add(outcome)

    def _recorded(self) -> int:
        return self.stage.broker.post.recorded

    def _wanted_now(self, event: Published, person: Person) -> set[Outcome | None]:
        mine = person.now.outcome(event.value)
        if mine is not None or not person.now.options.unmatched:
            return {mine}
        everybody = self.model.people.values()
        if any(one.now.outcome(event.value) for one in everybody if one.state == "made" and not one.ephemeral):
            return {None}
        return {NOBODYS, None}

    async def _revive(self, person: Person) -> None:
        broker = self.stage.broker
        letters = await admin.dead_letters(broker, person.name, 5)
        for letter in letters:
            self.checks.letter(person, letter["seq"], letter["tries"], letter["reason"])
            parcel = person.parcel(self.model.of(letter["seq"]))
            if parcel.late(self.stage.world.now):
                parcel.fail(surely=False)
                parcel.let_go()
            if parcel.hand is None or parcel.refused:  # or it is with the client, after a replay
                parcel.reset(surely=False)
        try:
            count = await admin.revive(broker, [letter["number"] for letter in letters])
        except (StoreFull, StoreFailed):
            return
        if self.stage.disk.dead:
            return
        self.stage.note("revived", person.name, count)
        self.stage.counts["revived"] += count
        for letter in letters if count == len(letters) else ():
            parcel = person.parcel(self.model.of(letter["seq"]))
            if not parcel.loose and parcel.hand is None:  # or it has come meanwhile
                parcel.reset(surely=True)

    async def _racer(self) -> None:
        """Changes of one subscriber all at once: whatever comes of it, it must fit together."""
        name, broker = "race", self.stage.broker
        while self.stage.up():
            await self.stage.pause(4.0)
            acts: list[Any] = [
                broker.subscribe(name, [Subscription("x", "a > 100")]),
                broker.remove_subscriber(name) if name in broker.registry.by_name else asyncio.sleep(0),
                broker.put_subscriber(name, Options(limit=self.random.randrange(1, 1000))),
                broker.subscribe(name, [Subscription("y", "a > 100")], ["x"]),
            ]
            self.random.shuffle(acts)
            for found in await asyncio.gather(*acts, return_exceptions=True):
                if isinstance(found, Exception) and not isinstance(found, HitboxError) and not self.stage.disk.dead:
                    raise Broken(f"a race gave {found!r}") from found
            self.stage.counts["races"] += 1

    # ---- clients

    async def _subscriber(self, name: str) -> None:
        """Connects, gets, acknowledges (late, in any order, twice), refuses, and goes."""
        broker = self.stage.broker
        while self.stage.up():
            await self.stage.pause(3.0)
            person = self.model.people.get(name)
            if person is None or person.state != "made" or name not in broker.registry.by_name:
                continue
            client = Client(self.random.choice([1, 5, 100]))
            try:
                mailbox = await broker.attach(name, client, client.window, None)
            except HitboxError:
                continue
            if self.model.people.get(name) is not person:
                await broker.detach(mailbox, client)
                continue
            self.stage.counts["connections"] += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.random.uniform(0, 8)):
                    await self._listen(person, mailbox, client, self.random.choice(HABITS))
            self.checks.disconnected(client)
            await broker.detach(mailbox, client)

    async def _listen(self, person: Person, mailbox: Mailbox, client: Client, habit: str) -> None:
        post = self.stage.broker.post
        waiting = self.checks.waiting(person)
        late: list[int] = []
        while not client.closed and (found := await post.next(mailbox, client)):
            if self.stage.disk.dead:
                return
            post.sent(mailbox, found)
            self.checks.arrived(person, client, found, waiting)
            waiting = {}
            seqs = [d.seq for d in found]
            if self.stage.chance(0.1):
                return  # the subscriber dies: nothing is acknowledged
            if self.stage.chance(0.1) or habit == "refusing":
                seqs = self._refuse(person, mailbox, client, seqs, 0.5)
            if self.stage.chance(0.1):
                self._extend(person, mailbox, client)
            if self.stage.chance(0.1):
                mailbox.window = client.window = self.random.choice([1, 3, 100])
                mailbox.wake.set()
            late += seqs
            if habit == "idle" or not self.stage.chance(0.7):
                continue
            self.random.shuffle(late)
            self.stage.faults.counts["acks late and reordered"] += 1
            if self.stage.chance(0.1):
                late += late[:3]
                self.stage.faults.counts["acks doubled"] += 1
            await self.stage.pause(1.0)
            if self.stage.disk.dead or mailbox.connected is not client:
                return
            self._acknowledge(person, mailbox, late)
            late = []

    def _acknowledge(self, person: Person, mailbox: Mailbox, seqs: list[int]) -> None:
        self.stage.broker.post.acknowledge(mailbox, seqs)
        self.model.acknowledged((person.parcel(self.model.of(seq)) for seq in seqs), self.stage.world.now)

    def _refuse(self, person: Person, mailbox: Mailbox, client: Client, seqs: list[int], share: float) -> list[int]:
        """Refuse some; the others."""
        refused = [seq for seq in seqs if self.stage.chance(share)]
        self.stage.counts["nacks"] += len(refused)
        self.stage.broker.post.refuse(mailbox, refused + refused[:1])
        for seq in refused:
            self.checks.refused(person, client.hand[seq])
        return [seq for seq in seqs if seq not in refused]

    def _extend(self, person: Person, mailbox: Mailbox, client: Client) -> None:
        """Ask for more time, for what is not too late for sure."""
        now = self.stage.world.now
        parcels = [p for p in client.hand.values() if not p.refused and now < p.earliest]
        mailbox.extend([parcel.seq for parcel in parcels])
        for parcel in parcels:
            self.checks.extended(person, parcel)

    async def _ephemeral(self) -> None:
        """A subscriber that lives as long as its connection, and misses nothing meanwhile."""
        broker, turn = self.stage.broker, 0
        while self.stage.up():
            await self.stage.pause(6.0)
            turn += 1
            person = self.model.people[f"live{turn}"] = Person(f"live{turn}", ephemeral=True)
            client, low = Client(), self.random.randrange(DOMAIN)
            options = Options("drop_oldest", 10_000, unmatched=self.stage.chance(0.3))
            want = Want(low, low + self.random.randrange(8), self.random.choice([0, 4, 9]))
            person.versions.append(Version({}, options))
            mailbox = broker.attach_ephemeral(person.name, client, options)
            person.versions.append(Version({"w": want}, options))
            await broker.subscribe(person.name, [Subscription("w", want.where, want.priority)])
            person.settle()
            self.stage.counts["ephemeral connections"] += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.random.uniform(0, 8)):
                    while found := await broker.post.next(mailbox, client):
                        self.checks.arrived(person, client, found, {})
            if self.stage.disk.dead or not self.stage.up():
                return
            if not broker.waiting and not mailbox.ready and (missed := list(self.model.all_owed(person))):
                lost = [event.seq for event in missed if event not in person.parcels]
                if lost:
                    raise Broken(f"{person.name} was connected and did not get {lost}")
            person.state = "going"
            self.model.removals += 1
            await broker.detach(mailbox, client)
            self.model.removed(person.name)

    # ---- the end

    async def patient(self, person: Person, mailbox: Mailbox, client: Client) -> None:
        """Takes all that is left. A few are refused or left lying at first: they come again, or are dead letters."""
        post = self.stage.broker.post
        waiting = self.checks.waiting(person)
        while found := await post.next(mailbox, client):
            post.sent(mailbox, found)
            self.checks.arrived(person, client, found, waiting)
            waiting = {}
            again = [d.seq for d in found if d.tries]
            seqs = [d.seq for d in found if not d.tries]
            seqs = self._refuse(person, mailbox, client, seqs, 0.05)
            self._acknowledge(person, mailbox, again + [seq for seq in seqs if self.stage.chance(0.97)])
