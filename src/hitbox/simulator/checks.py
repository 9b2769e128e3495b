"""The broker held against the model. Promised, and checked all the time:

an event that was accepted reaches every durable subscriber that wanted it, at least until it is acknowledged
an event that was refused reaches nobody, and nobody gets what he did not want
an event that nobody wanted reaches those who asked for such
a delivery names exactly the subscriptions that match, at the highest of their priorities
what comes twice is marked as redelivered, and nothing comes after its acknowledgement is in the store
first arrivals are in order for each subscriber and priority; the most urgent of what waits come first
attempts are counted, across connections and starts; what failed comes again after its pause, max_tries in all
never more than the window is with a client
numbers are given once, and the store opens after every crash with exactly the changes that were confirmed
events are kept as long as asked for, and no longer; the commit marker follows every commit
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from hitbox.broker.delivery.mailbox import Delivery
from hitbox.broker.store.commit_marker import Beacon
from hitbox.simulator.model import Broken, Client, Model, Parcel, Person, Published, Version, Want
from hitbox.simulator.stage import Stage

TICK = 0.001
FAILED = ("refused by the subscriber", "not acknowledged in time")
Key = tuple[int, int]
"""(-level, number): the order of what waits."""


class Checks:
    def __init__(self, stage: Stage, model: Model):
        self.stage, self.model = stage, model

    # ---- deliveries

    def arrived(self, person: Person, client: Client, found: Sequence[Delivery], waiting: dict[int, Key]) -> None:
        """A frame; `waiting` is what must wait for this subscriber, if it is the first frame of its connection."""
        told = [msgspec.json.decode(delivery.encode()) for delivery in found]
        keys = [(-one["level"], one["seq"]) for one in told]
        if [level for level, _ in keys] != sorted(level for level, _ in keys):
            raise Broken(f"{person.name} got a frame that is not in the order of levels: {keys}")
        got = {seq for _, seq in keys}
        if ahead := [key for seq, key in waiting.items() if seq not in got and key < max(keys)]:
            raise Broken(f"{person.name} got {max(keys)} while {min(ahead)} was waiting")
        for one in told:
            self._arrived(person, client, one)
        if not person.ephemeral:
            now = self.stage.world.now
            held = sum(now < parcel.earliest and not parcel.refused for parcel in client.hand.values())
            if held > client.window:
                raise Broken(f"{person.name} has {held} deliveries, its window is {client.window}")

    def _arrived(self, person: Person, client: Client, told: dict[str, Any]) -> None:
        event = self.model.events.get(told["event"].get("n"))
        who, seq, level = person.name, told["seq"], told["level"]
        self.stage.note("got", who, seq, told["redelivered"], told["attempt"])
        self.stage.counts["deliveries"] += 1
        if event is None or event.state == "refused":
            raise Broken(f"{who} got event {told['event']}, which was never accepted")
        if told["event"]["a"] != event.value:
            raise Broken(f"{who} got event {told['event']}, not {event.value}")
        self.model.numbered(event, seq)
        parcel = person.parcel(event)
        outcome = (level, tuple(sorted(told["subscriptions"])))
        allowed = self.model.outcomes(event, person) | parcel.replayed
        if outcome not in allowed and not (parcel.loose and outcome in self._wanted_later(event, person)):
            raise Broken(f"{who} got {outcome} of event {seq}, wanted {sorted(map(str, allowed))}")
        self.stage.counts["unmatched"] += not told["subscriptions"]
        if parcel.arrivals:
            self.stage.counts["redeliveries"] += 1
            if not told["redelivered"]:
                raise Broken(f"{who} got event {seq} twice, and it is not marked")
        elif not parcel.loose and not parcel.replayed:
            if seq < person.last.get(level, 0):
                raise Broken(f"{who} got event {seq} after {person.last[level]} at level {level}")
            person.last[level] = seq
        if not person.ephemeral:
            self._attempted(person, client, parcel, told["attempt"])
        elif parcel.arrivals or told["redelivered"] or told["attempt"] != 1:
            raise Broken(f"{who} is ephemeral, and got event {seq} again: {told}")
        parcel.arrivals += 1
        parcel.must = False

    def _wanted_later(self, event: Published, person: Person) -> set[Any]:
        return {v.outcome(event.value) or (0, ()) for v in person.versions}

    def _attempted(self, person: Person, client: Client, parcel: Parcel, attempt: int) -> None:
        """Whether it may come, with this number; it is with the client now."""
        who, seq, now = person.name, parcel.seq, self.stage.world.now
        if parcel.acked and not parcel.loose:
            raise Broken(f"{who} got event {seq} after its acknowledgement")
        if parcel.hand is client:
            if not parcel.refused:
                self.model.failed(parcel, surely=not parcel.loose)
            if now + TICK < parcel.earliest and not parcel.loose:
                raise Broken(f"{who} got event {seq} again {parcel.earliest - now:.3f} s too early")
        if not parcel.low < attempt <= parcel.high + 1:
            raise Broken(f"attempt {attempt} of event {seq} for {who}, not {parcel.low + 1} to {parcel.high + 1}")
        if attempt > person.tries()[1] or (parcel.dead and not parcel.loose):
            raise Broken(f"attempt {attempt} of event {seq} for {who}, which is more than its max_tries")
        parcel.high = attempt - 1
        parcel.low = 0 if parcel.loose else parcel.high
        parcel.acked = parcel.refused = False
        parcel.let_go()
        client.hand[seq], parcel.hand = parcel, client
        self.extended(person, parcel)

    def extended(self, person: Person, parcel: Parcel) -> None:
        seconds = [options.visibility_seconds for options in person.options()]
        now = self.stage.world.now
        parcel.earliest, parcel.latest = now + min(seconds), now + max(seconds)

    def refused(self, person: Person, parcel: Parcel) -> None:
        """The subscriber could not handle it: it comes again after a pause."""
        self.model.failed(parcel)
        parcel.refused = True
        parcel.dead = parcel.low >= max(options.max_tries for options in person.options())
        pause = min(min(o.backoff_seconds * 2.0 ** (parcel.low - 1), o.max_backoff_seconds) for o in person.options())
        parcel.earliest = self.stage.world.now + pause

    def disconnected(self, client: Client) -> None:
        """What was with the client may have been too late; if by far, the broker has noticed."""
        now, slack = self.stage.world.now, 1 + 10 * self.stage.slow
        for parcel in list(client.hand.values()):
            if parcel.late(now):
                self.model.failed(parcel, surely=now > parcel.latest + slack)
            parcel.let_go()

    def waiting(self, person: Person) -> dict[int, Key]:
        """What is in the store for a subscriber that connects now, beyond doubt."""
        found = {}
        for event in self.model.all_owed(person):
            parcel = person.parcel(event)
            outcomes = self.model.outcomes(event, person)
            sure = not parcel.loose and not parcel.replayed and parcel.high < person.tries()[0]
            if sure and len(outcomes) == 1 and event.seq <= self.stage.broker.post.recorded:
                found[event.seq] = (-next(o[0] for o in outcomes if o), event.seq)
        return found

    # ---- the store

    def written(self) -> None:
        """Everything that was asked of the store is in it."""
        store = self.stage.broker.store
        if self.stage.disk.dead:
            return
        self.model.written(self.stage.broker.post.recorded)
        commits = store.ledger.look("commits").rows
        if not store.troubles and (marker := Beacon(store.folder / "beacon", self.stage.disk).read()) != commits:
            raise Broken(f"there were {commits} commits, the commit marker says {marker}")
        self._trimmed()

    def _trimmed(self) -> None:
        """No event was let go too early."""
        first, keep = self.stage.broker.store.events.first(), self.stage.settings.keep_seconds
        for seq in range(self.model.trimmed, first):
            event = self.model.events.get(self.model.by_seq.get(seq, 0))
            if event is not None and event.wall + keep > self.stage.world.latest() + TICK:
                raise Broken(f"event {seq} is gone after {self.stage.world.latest() - event.wall:.1f} s, not {keep}")
            self.stage.counts["trimmed"] += 1
        self.model.trimmed = max(self.model.trimmed, first)

    def started(self) -> None:
        """After a start: adopt what was not known."""
        broker, store = self.stage.broker, self.stage.broker.store
        if problems := [*store.problems, *broker.registry.problems, *store.failed()]:
            raise Broken(f"the store contradicts itself: {problems}")
        if broker.registry.schema not in self.model.schemas:
            raise Broken(f"the schema is {broker.registry.schema}, not one of {self.model.schemas}")
        self.model.schemas = [broker.registry.schema]
        numbers = {name: number for number, name, *_ in store.subscribers.scan()}
        for person in list(self.model.people.values()):
            self._started(person, numbers.get(person.name))
        stored = {f"{broker.registry.by_number[row[0]].name}/{row[1]}" for row in store.subscriptions.scan()}
        if stored != set(broker.registry.index):
            raise Broken(f"the index and the store differ: {stored ^ set(broker.registry.index)}")
        for seq, _, body, _ in store.events.scan():
            event = self.model.events[json.loads(body)["event"]["n"]]
            if event.state == "refused":
                raise Broken(f"event {event.number} was refused, and is in the store")
            self.model.numbered(event, seq)
        for event in self.model.events.values():
            if event.state in ("asked", "unknown"):
                event.state = "accepted" if event.seq else "unknown"
                self.model.close(event)
        self._trimmed()
        for person in self.model.people.values():
            self.pending(person, settle=True)

    def _started(self, person: Person, number: int | None) -> None:
        """Confirmed changes are there; one that was cut short is there or is not."""
        if number is None:
            if person.state == "made":
                raise Broken(f"subscriber {person.name} is lost")
            self.model.removed(person.name)
            return
        rows = self.stage.broker.store.subscriptions.scan("subscriber = ?", (number,))
        wants = {name: Want(*_bounds(where), priority) for _, name, where, priority, *_ in rows}
        found = Version(wants, self.stage.broker.registry.by_number[number].options)
        allowed = person.versions[1 if person.state == "making" else person.settled :]
        if found not in allowed:
            raise Broken(f"{person.name} is {found} after a start, not one of {allowed}")
        person.versions.append(found)
        person.settle()

    def pending(self, person: Person, settle: bool = False) -> None:
        """Of what was accepted and not acknowledged everything is pending, or a dead letter; with the right tries.

        With `settle`, right after a start: what the store says is what counts from now on.
        """
        store, number = self.stage.broker.store, self.stage.broker.subscriber(person.name).number
        tries = {row[2]: row[5] for row in store.deliveries.scan("subscriber = ?", (number,))}
        letters = {row[3] for row in store.dead.scan("subscriber = ?", (number,))}
        for row in store.dead.scan("subscriber = ?", (number,)):
            self.letter(person, row[3], row[5], row[6])
        for event, parcel in person.parcels.items():
            seq = event.seq
            if seq not in tries:
                parcel.done = parcel.done or (settle and parcel.acked)
                if parcel.must:
                    raise Broken(f"event {seq} was replayed for {person.name}, and is not in the store")
                continue
            if parcel.done and not parcel.loose:
                raise Broken(f"event {seq} is acknowledged by {person.name}, and pending")
            if not parcel.sure <= tries[seq] <= parcel.high:
                raise Broken(f"{tries[seq]} tries of event {seq} for {person.name}: {parcel}")
            if settle:
                parcel.low = parcel.high = parcel.sure = tries[seq]
                parcel.acked = parcel.dead = False
        if new := [seq for seq, tried in tries.items() if tried and self.model.of(seq) not in person.parcels]:
            raise Broken(f"events {new} never came to {person.name}, and count as tried")
        for event in self.model.all_owed(person):
            if event.seq not in tries and event.seq not in letters:
                raise Broken(f"event {event.seq} is owed to {person.name}, and is not in the store")

    def letter(self, person: Person, seq: int, tries: int, reason: str) -> None:
        """A dead letter is one for a reason."""
        least, most = person.tries()
        parcel = person.parcel(self.model.of(seq))
        failures = parcel.failures + parcel.late(self.stage.world.now)
        if reason not in FAILED or not least <= tries <= min(most, failures):
            raise Broken(f"event {seq} is a dead letter of {person.name} after {tries} tries: {reason}")
        self.stage.counts["dead letters"] += 1

    # ---- the end

    def drained(self) -> None:
        """Everybody has got and acknowledged everything."""
        broker = self.stage.broker
        pending = {name: broker.mailbox(name).pending for name in self.model.people}
        if any(pending.values()):
            raise Broken(f"nothing is pending in the store, but the broker says {pending}")
        for person in self.model.people.values():
            for event in self.model.events.values():
                parcel = person.parcels.get(event)
                if self.model.owed(event, person) and (parcel is None or not parcel.arrivals):
                    raise Broken(f"{person.name} never got event {event.seq}")
            self.pending(person)

    def let_go(self) -> None:
        """Nobody needs the events any more: what is too old is gone."""
        now, keep = self.stage.world.time(), self.stage.settings.keep_seconds
        for seq, when, *_ in self.stage.broker.store.events.scan("TRUE ORDER BY seq LIMIT 1"):
            if when / 1e6 + keep < now - 10 - 10 * self.stage.slow:
                raise Broken(f"event {seq} is {now - when / 1e6:.0f} s old and still kept, not for {keep}")


def _bounds(where: str) -> tuple[int, int]:
    words = where.split()
    return int(words[2]), int(words[4])
