"""Compare the broker with the model. These promises are checked all the time:

- An accepted event is delivered to every durable subscriber with a matching subscription, until it is acknowledged.
- A refused event is delivered to nobody, and no subscriber gets an event that does not match.
- An event without matches is delivered to the subscribers with the option `unmatched`.
- A delivery names exactly the subscriptions that match, at the highest of their priorities.
- A repeated delivery is marked as redelivered, and none is sent after its acknowledgement is in the store.
- First deliveries are in order per subscriber and priority; of waiting deliveries the most urgent are sent first.
- Attempts are counted across connections and starts; a failed delivery is sent again after its pause, max_tries in all.
- A client never has more deliveries than its window.
- A delivery is with one connection at a time: another gets it only after its time-out, or when the first has ended.
- Nothing is sent to a paused subscriber, and nothing of it is lost.
- Event numbers are unique, and after every crash the store opens with exactly the changes that were confirmed.
- An event is not delivered after its time to live has passed.
- A delayed event becomes an event once, when it is due and not before, unless it was cancelled; then never.
- Events are kept as long as configured, and no longer; the commit marker is written after every commit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import msgspec

from hitbox.broker.delivery.mailbox import Delivery
from hitbox.broker.store.commit_marker import FILE_NAME, CommitMarker
from simulator.environment import ROOMY, Environment
from simulator.model import (
    BrokenPromise,
    Model,
    ModelConnection,
    ModelDelivery,
    ModelEvent,
    ModelSubscriber,
    ModelSubscription,
    Version,
)

TICK = 0.001
FAILED = ("refused by the subscriber", "not acknowledged in time")
Key = tuple[int, int]
"""(-level, number): the order of waiting deliveries."""
Waiting = tuple[Key, int]
"""A delivery that waits when a connection begins, and how often it had come before."""


class Checks:
    """Raises BrokenPromise if the broker does something that the model does not allow."""

    def __init__(self, environment: Environment, model: Model):
        self.environment, self.model = environment, model

    # ---- deliveries

    def arrived(
        self,
        subscriber: ModelSubscriber,
        client: ModelConnection,
        found: Sequence[Delivery],
        waiting: dict[int, Waiting],
    ) -> None:
        """Check a frame. `waiting`: for the first frame of a connection, the deliveries that must be waiting."""
        if subscriber.paused == {True}:
            raise BrokenPromise(f"{subscriber.name} is paused, and got {[one.seq for one in found]}")
        frame = [msgspec.json.decode(delivery.encode()) for delivery in found]
        keys = [(-one["level"], one["seq"]) for one in frame]
        if [level for level, _ in keys] != sorted(level for level, _ in keys):
            raise BrokenPromise(f"{subscriber.name} got a frame that is not in the order of levels: {keys}")
        got = {seq for _, seq in keys}
        gone = {seq for seq, (_, before) in waiting.items() if self._is_taken(subscriber, self.model.of(seq), before)}
        if ahead := [key for seq, (key, _) in waiting.items() if seq not in got | gone and key < max(keys)]:
            raise BrokenPromise(f"{subscriber.name} got {max(keys)} while {min(ahead)} was waiting")
        for one in frame:
            self._arrived(subscriber, client, one)
        if not subscriber.ephemeral:
            now = self.environment.clock.now
            held = sum(now < delivery.earliest and not delivery.refused for delivery in client.in_flight.values())
            if held > client.window:
                raise BrokenPromise(f"{subscriber.name} has {held} deliveries, its window is {client.window}")

    def _is_taken(self, subscriber: ModelSubscriber, event: ModelEvent, before: int) -> bool:
        """Whether a delivery that was waiting need not wait any more: it has expired, or another connection got it. If
        that one has ended since, this frame may have been made before."""
        delivery = subscriber.delivery(event)
        taken = delivery.arrivals != before or delivery.connection is not None or delivery.acked or delivery.refused
        return taken or self.model.may_be_expired(event)

    def _arrived(self, subscriber: ModelSubscriber, client: ModelConnection, message: dict[str, Any]) -> None:
        event = self.model.events.get(message["event"].get("n"))
        who, seq, level = subscriber.name, message["seq"], message["level"]
        self.environment.note("got", who, seq, message["redelivered"], message["attempt"])
        self.environment.counts["deliveries"] += 1
        if event is None or event.state == "refused":
            raise BrokenPromise(f"{who} got event {message['event']}, which was never accepted")
        if event.due is not None:
            self.model.became_event(event, seq, message["time"] / 1e6 or math.inf)  # 0: the event was trimmed
        if message["event"]["a"] != event.value:
            raise BrokenPromise(f"{who} got event {message['event']}, not {event.value}")
        wall = self.environment.clock.time()
        if event.ttl is not None and message["time"] and wall > message["time"] / 1e6 + event.ttl + TICK:
            raise BrokenPromise(
                f"{who} got event {seq} {wall - message['time'] / 1e6:.3f} s old, with {event.ttl} to live"
            )
        self.model.numbered(event, seq)
        delivery = subscriber.delivery(event)
        outcome = (level, tuple(sorted(message["subscriptions"])))
        allowed = self.model.outcomes(event, subscriber) | delivery.replayed
        if outcome not in allowed and not (delivery.maybe_pending and outcome in self._wanted_later(event, subscriber)):
            raise BrokenPromise(f"{who} got {outcome} of event {seq}, wanted {sorted(map(str, allowed))}")
        self.environment.counts["unmatched"] += not message["subscriptions"]
        if delivery.arrivals:
            self.environment.counts["redeliveries"] += 1
            if not message["redelivered"]:
                raise BrokenPromise(f"{who} got event {seq} twice, and it is not marked")
        elif not delivery.maybe_pending and not delivery.replayed:
            # one that had expired may come after a crash, if the clock has been set back
            if seq < subscriber.last.get(level, 0) and not self.model.may_be_expired(event):
                raise BrokenPromise(f"{who} got event {seq} after {subscriber.last[level]} at level {level}")
            subscriber.last[level] = max(seq, subscriber.last.get(level, 0))
        if not subscriber.ephemeral:
            self._attempted(subscriber, client, delivery, message["attempt"])
        elif delivery.arrivals or message["redelivered"] or message["attempt"] != 1:
            raise BrokenPromise(f"{who} is ephemeral, and got event {seq} again: {message}")
        delivery.arrivals += 1
        delivery.must_come = False

    def _wanted_later(self, event: ModelEvent, subscriber: ModelSubscriber) -> set[Any]:
        return {v.outcome(event.value) or (0, ()) for v in subscriber.versions}

    def _attempted(
        self, subscriber: ModelSubscriber, client: ModelConnection, delivery: ModelDelivery, attempt: int
    ) -> None:
        """Check that the delivery may be sent now, with this number of attempt; it is with the client from now on."""
        who, seq, now = subscriber.name, delivery.seq, self.environment.clock.now
        if delivery.acked and not delivery.maybe_pending:
            raise BrokenPromise(f"{who} got event {seq} after its acknowledgement")
        if delivery.connection is not None:
            if not delivery.refused:
                self.model.failed(delivery, surely=not delivery.maybe_pending)
            if now + TICK < delivery.earliest and not delivery.maybe_pending:
                raise BrokenPromise(f"{who} got event {seq} again {delivery.earliest - now:.3f} s too early")
        if not delivery.low < attempt <= delivery.high + 1:
            raise BrokenPromise(
                f"attempt {attempt} of event {seq} for {who}, not {delivery.low + 1} to {delivery.high + 1}"
            )
        if attempt > subscriber.tries()[1] or (delivery.dead and not delivery.maybe_pending):
            raise BrokenPromise(f"attempt {attempt} of event {seq} for {who}, which is more than its max_tries")
        delivery.high = attempt - 1
        delivery.low = 0 if delivery.maybe_pending else delivery.high
        delivery.acked = delivery.refused = False
        delivery.release()
        client.in_flight[seq], delivery.connection = delivery, client
        self.extended(subscriber, delivery)

    def extended(self, subscriber: ModelSubscriber, delivery: ModelDelivery) -> None:
        seconds = [options.visibility_seconds for options in subscriber.options()]
        now = self.environment.clock.now
        delivery.earliest, delivery.latest = now + min(seconds), now + max(seconds)

    def refused(self, subscriber: ModelSubscriber, delivery: ModelDelivery) -> None:
        """The subscriber refused the delivery: it is sent again after a pause."""
        self.model.failed(delivery)
        delivery.refused = True
        delivery.dead = delivery.low >= max(options.max_tries for options in subscriber.options())
        pause = min(
            min(o.backoff_seconds * 2.0 ** (delivery.low - 1), o.max_backoff_seconds) for o in subscriber.options()
        )
        delivery.earliest = self.environment.clock.now + pause

    def disconnected(self, client: ModelConnection) -> None:
        """A connection ended: its deliveries may have timed out; if long ago, the broker must have noticed, unless its
        store has failed."""
        now, slack = self.environment.clock.now, 1 + 10 * self.environment.slow
        if self.environment.broker.writer.broken is not None:
            slack = math.inf
        for delivery in list(client.in_flight.values()):
            if delivery.late(now):
                self.model.failed(delivery, surely=now > delivery.latest + slack)
            delivery.release()

    def waiting(self, subscriber: ModelSubscriber) -> dict[int, Waiting]:
        """The deliveries that are certainly in the store for a subscriber that connects now."""
        found = {}
        for event in self.model.all_owed(subscriber):
            delivery = subscriber.delivery(event)
            outcomes = self.model.outcomes(event, subscriber)
            sure = not delivery.maybe_pending and not delivery.replayed and delivery.high < subscriber.tries()[0]
            if sure and len(outcomes) == 1 and event.seq <= self.environment.broker.tracker.recorded:
                found[event.seq] = (-next(o[0] for o in outcomes if o), event.seq), delivery.arrivals
        return found

    # ---- the store

    def written(self) -> None:
        """Called when all submitted operations are in the store."""
        store = self.environment.broker.store
        if self.environment.disk.dead:
            return
        self.model.written(self.environment.broker.tracker.recorded)
        self._moved()
        commits = store.ledger.entry("commits").rows
        if (
            not store.space.maintenance_errors
            and (marker := CommitMarker(store.folder / FILE_NAME, self.environment.disk).read()) != commits
        ):
            raise BrokenPromise(f"there were {commits} commits, the commit marker says {marker}")
        self._trimmed()

    def _moved(self) -> None:
        """Look for delayed events that have become events."""
        rows = self.environment.broker.store.events.table.scan("seq >= ?", (self.model.looked_at,))
        for seq, when, _, body, _ in rows:
            event = self.model.events[json.loads(body)["event"]["n"]]
            if event.due is not None:
                self.model.became_event(event, seq, when / 1e6)
            self.model.looked_at = seq + 1

    def _delayed(self) -> None:
        """After a start: every delayed event that was accepted waits in the store, or has become an event."""
        rows = self.environment.broker.store.delayed.table.scan()
        waiting = {json.loads(row[3])["event"]["n"] for row in rows}
        for event in self.model.events.values():
            if event.due is None or event.seq:
                continue
            if event.number in waiting:
                if event.state == "refused":
                    raise BrokenPromise(f"event {event.number} was refused or cancelled, and waits in the store")
                event.state = "waiting"
            elif event.state == "waiting":
                raise BrokenPromise(f"event {event.number} was delayed, and is lost")
            else:
                event.state = "refused"  # no answer came, and it was not stored

    def _trimmed(self) -> None:
        """Check that no event was removed too early."""
        first, keep = self.environment.broker.store.events.table.first(), self.environment.settings.keep_seconds
        clock = self.environment.clock
        for seq in range(self.model.trimmed, first):
            event = self.model.events.get(self.model.by_seq.get(seq, 0))
            if self.environment.capacity != ROOMY:
                pass  # it makes room on a full disk
            elif event is not None and event.due is None and event.wall + keep > clock.latest() + TICK:
                if clock.now - event.asked >= keep - TICK:
                    continue  # by a clock that went back, it came from the future: what counts is the time that passed
                raise BrokenPromise(f"event {seq} is gone after {clock.latest() - event.wall:.1f} s, not {keep}")
            self.environment.counts["trimmed"] += 1
        self.model.trimmed = max(self.model.trimmed, first)

    def started(self) -> None:
        """Check the store after a start, and take from it what the model could not know."""
        broker, store = self.environment.broker, self.environment.broker.store
        if problems := [*store.problems, *broker.registry.problems, *store.events.failed()]:
            raise BrokenPromise(f"the store contradicts itself: {problems}")
        if broker.registry.schema not in self.model.schemas:
            raise BrokenPromise(f"the schema is {broker.registry.schema}, not one of {self.model.schemas}")
        self.model.schemas = [broker.registry.schema]
        numbers = {name: number for number, name, *_ in store.subscribers.table.scan()}
        for subscriber in list(self.model.subscribers.values()):
            self._started(subscriber, numbers.get(subscriber.name))
        rows = store.subscribers.subscriptions.scan()
        stored = {f"{broker.registry.by_number[number].name}/{name}": (*row[:2],) for number, name, *row in rows}
        index = broker.registry.index
        indexed = {id: (index.where(id), index.priority(id)) for id in index}
        if stored != indexed:
            raise BrokenPromise(f"the index and the store differ: {stored.items() ^ indexed.items()}")
        for seq, *_, body, _ in store.events.table.scan():
            event = self.model.events[json.loads(body)["event"]["n"]]
            if event.state == "refused":
                raise BrokenPromise(f"event {event.number} was refused, and is in the store")
            self.model.numbered(event, seq)
        self._moved()
        self._delayed()
        for event in self.model.events.values():
            if event.due is not None:
                continue
            if event.state in ("asked", "unknown"):
                event.state = "accepted" if event.seq else "unknown"
            if event.seq or event.state == "unknown":
                self.model.close(event)
        self._trimmed()
        for subscriber in self.model.subscribers.values():
            self.pending(subscriber, settle=True)

    def _started(self, subscriber: ModelSubscriber, number: int | None) -> None:
        """Check that confirmed changes are stored; an interrupted one may be stored or not."""
        if number is None:
            if subscriber.state == "made":
                raise BrokenPromise(f"subscriber {subscriber.name} is lost")
            self.model.removed(subscriber.name)
            return
        paused = self.environment.broker.registry.by_number[number].paused
        if paused not in subscriber.paused:
            raise BrokenPromise(f"{subscriber.name} is {'' if paused else 'not '}paused after a start")
        subscriber.paused = {paused}
        rows = self.environment.broker.store.subscribers.subscriptions.scan("subscriber = ?", (number,))
        wants = {name: ModelSubscription(*_bounds(where), priority) for _, name, where, priority, *_ in rows}
        found = Version(wants, self.environment.broker.registry.by_number[number].options)
        allowed = subscriber.versions[1 if subscriber.state == "making" else subscriber.settled :]
        if found not in allowed:
            raise BrokenPromise(f"{subscriber.name} is {found} after a start, not one of {allowed}")
        subscriber.versions.append(found)
        subscriber.settle()

    def pending(self, subscriber: ModelSubscriber, settle: bool = False) -> None:
        """Check that all unacknowledged deliveries are pending or dead letters, with the right number of tries.

        With `settle`, right after a start: the model takes over what the store says.
        """
        store, number = self.environment.broker.store, self.environment.broker.subscriber(subscriber.name).number
        tries = {row[2]: row[5] for row in store.deliveries.of(number)}
        letters = {row[3] for row in store.letters.table.scan("subscriber = ?", (number,))}
        for row in store.letters.table.scan("subscriber = ?", (number,)):
            self.letter(subscriber, row[3], row[5], row[6])
        for event, delivery in subscriber.deliveries.items():
            seq = event.seq
            if seq not in tries:
                delivery.done = delivery.done or (settle and delivery.acked)
                if delivery.must_come and not self.model.may_be_expired(event):
                    raise BrokenPromise(f"event {seq} was replayed for {subscriber.name}, and is not in the store")
                continue
            if delivery.done and not delivery.maybe_pending:
                raise BrokenPromise(f"event {seq} is acknowledged by {subscriber.name}, and pending")
            if not delivery.sure <= tries[seq] <= delivery.high:
                raise BrokenPromise(f"{tries[seq]} tries of event {seq} for {subscriber.name}: {delivery}")
            if settle:
                delivery.low = delivery.high = delivery.sure = tries[seq]
                delivery.acked = delivery.dead = False
        if new := [seq for seq, tried in tries.items() if tried and self.model.of(seq) not in subscriber.deliveries]:
            raise BrokenPromise(f"events {new} never came to {subscriber.name}, and count as tried")
        for event in self.model.all_owed(subscriber):
            if event.seq not in tries and event.seq not in letters:
                raise BrokenPromise(f"event {event.seq} is owed to {subscriber.name}, and is not in the store")

    def letter(self, subscriber: ModelSubscriber, seq: int, tries: int, reason: str) -> None:
        """Check the reason and the tries of a dead letter."""
        least, most = subscriber.tries()
        delivery = subscriber.delivery(self.model.of(seq))
        failures = delivery.failures + delivery.late(self.environment.clock.now)
        if reason not in FAILED or not least <= tries <= min(most, failures):
            raise BrokenPromise(f"event {seq} is a dead letter of {subscriber.name} after {tries} tries: {reason}")
        self.environment.counts["dead letters"] += 1

    # ---- the last life

    def drained(self) -> None:
        """Check that all subscribers have received and acknowledged everything."""
        broker = self.environment.broker
        pending = {name: broker.mailbox(name).pending for name in self.model.subscribers}
        if any(pending.values()):
            raise BrokenPromise(f"nothing is pending in the store, but the broker says {pending}")
        for subscriber in self.model.subscribers.values():
            for event in self.model.events.values():
                delivery = subscriber.deliveries.get(event)
                if self.model.owed(event, subscriber) and (delivery is None or not delivery.arrivals):
                    raise BrokenPromise(f"{subscriber.name} never got event {event.seq}")
            self.pending(subscriber)

    def let_go(self) -> None:
        """Check that old events are removed once nothing needs them."""
        now, keep = self.environment.clock.time(), self.environment.settings.keep_seconds
        for seq, when, *_ in self.environment.broker.store.events.table.scan("TRUE ORDER BY seq LIMIT 1"):
            if when / 1e6 + keep < now - 10 - 10 * self.environment.slow:
                raise BrokenPromise(f"event {seq} is {now - when / 1e6:.0f} s old and still kept, not for {keep}")


def _bounds(where: str) -> tuple[int, int]:
    words = where.split()
    return int(words[2]), int(words[4])
