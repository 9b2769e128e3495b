"""What must be true of the broker, as plain data: who wants what, what was published, how far each delivery is.

Of a change that was cut short nothing is known but that it is done or not done. So a subscriber has a list of versions,
of which the last ones may be in force, and a count of tries has a lowest and a highest value. What the store says at
the next start settles both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from hitbox.broker.settings import Options
from hitbox.encoding.schema import Schema

Outcome = tuple[int, tuple[str, ...]]
"""Of an event for one subscriber: the level, and the names of the subscriptions."""
NOBODYS: Outcome = (0, ())


class BrokenPromise(Exception):
    """A promise that was not kept."""


@dataclass(frozen=True)
class ModelSubscription:
    """A subscription, as Python."""

    low: int
    high: int
    priority: int

    @property
    def where(self) -> str:
        return f"a BETWEEN {self.low} AND {self.high}"


@dataclass(frozen=True)
class Version:
    """What a subscriber wants, and its options."""

    wants: dict[str, ModelSubscription] = field(default_factory=dict)
    options: Options = field(default_factory=Options)

    def outcome(self, value: int) -> Outcome | None:
        mine = {name: want for name, want in self.wants.items() if want.low <= value <= want.high}
        return (max(w.priority for w in mine.values()), tuple(sorted(mine))) if mine else None


@dataclass(eq=False)
class ModelConnection:
    """A connection of a subscriber."""

    window: int = 0
    closed: bool = False
    in_flight: dict[int, ModelDelivery] = field(default_factory=dict)

    def close(self, code: int, reason: str) -> None:
        self.closed = True


@dataclass(eq=False)
class ModelDelivery:
    """An event on its way to one subscriber: between `low` and `high` tries have failed, and a crash leaves at least
    `sure` of them. `connection` is the connection that has it, until between `earliest` and `latest`."""

    event: ModelEvent
    arrivals: int = 0
    low: int = 0
    high: int = 0
    sure: int = 0
    failures: int = 0
    connection: ModelConnection | None = None
    earliest: float = 0.0
    latest: float = 0.0
    refused: bool = False
    dead: bool = False
    """It was refused for the last time."""
    acked: bool = False
    done: bool = False
    """The acknowledgement is in the store."""
    maybe_pending: bool = False
    """A replay may have made it pending again, or not."""
    replayed: set[Outcome] = field(default_factory=set)
    """What replays have made of it."""
    must_come: bool = False
    """It was replayed and must come."""

    @property
    def seq(self) -> int:
        return self.event.seq

    def late(self, now: float) -> bool:
        """Whether its time may be up."""
        return self.connection is not None and not self.refused and now >= self.earliest

    def fail(self, surely: bool) -> None:
        self.low += surely
        self.high += 1
        self.failures += 1

    def reset(self, surely: bool) -> None:
        """It is pending again as if it were new."""
        self.low = self.sure = 0
        self.high = 0 if surely else self.high
        self.refused = self.dead = self.acked = self.done = False
        self.release()

    def release(self) -> None:
        if self.connection is not None:
            self.connection.in_flight.pop(self.seq, None)
            self.connection = None


@dataclass(eq=False)
class ModelSubscriber:
    """A subscriber, from its making to its removal. The versions from `settled` on may be in force at the moment; the
    first one stands for the time before it was made."""

    name: str
    ephemeral: bool = False
    versions: list[Version] = field(default_factory=lambda: [Version()])
    settled: int = 0
    state: str = "making"
    deliveries: dict[ModelEvent, ModelDelivery] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)

    @property
    def now(self) -> Version:
        return self.versions[-1]

    def delivery(self, event: ModelEvent) -> ModelDelivery:
        return self.deliveries.setdefault(event, ModelDelivery(event))

    def settle(self) -> None:
        self.settled, self.state = len(self.versions) - 1, "made"

    def options(self) -> list[Options]:
        """Those that may be in force."""
        return [version.options for version in self.versions[self.settled :]]

    def tries(self) -> tuple[int, int]:
        """The lowest and the highest `max_tries` that it ever had."""
        known = [version.options.max_tries for version in self.versions[1:]]
        return min(known), max(known)


@dataclass(eq=False)
class ModelEvent:
    """An event. `state`: asked, accepted, refused, unknown. `wall` is the earliest time that it can have."""

    number: int
    value: int
    wall: float
    removals: int
    state: str = "asked"
    seq: int = 0
    since: dict[str, tuple[ModelSubscriber, int]] = field(default_factory=dict)
    until: dict[str, int] | None = None
    unwanted: bool | None = None
    """Whether nobody wanted it; None where that is not known."""
    known: dict[ModelSubscriber, set[Outcome | None]] = field(default_factory=dict)
    """Its outcomes, where they cannot change any more."""


class Model:
    def __init__(self, schema: Schema) -> None:
        self.events: dict[int, ModelEvent] = {}
        self.by_seq: dict[int, int] = {}
        self.subscribers: dict[str, ModelSubscriber] = {}
        self.schemas = [schema]  # the last ones may be in force
        self.trimmed = 1  # events before this number are gone
        self.removals = 0  # one more when a removal begins, and one more when it ends
        self._unsure: list[tuple[ModelDelivery, bool]] = []  # failed, or (True) acknowledged

    # ---- events

    def event(self, value: int, wall: float) -> ModelEvent:
        """One that somebody is about to publish."""
        number = len(self.events) + 1
        event = self.events[number] = ModelEvent(number, value, wall, self.removals)
        event.since = {name: (subscriber, subscriber.settled) for name, subscriber in self.subscribers.items()}
        return event

    def numbered(self, event: ModelEvent, seq: int) -> None:
        if event.seq not in (0, seq) or self.by_seq.setdefault(seq, event.number) != event.number:
            raise BrokenPromise(
                f"event {event.number} has the numbers {event.seq} and {seq}, which is {self.by_seq.get(seq)}'s"
            )
        event.seq = seq

    def of(self, seq: int) -> ModelEvent:
        """The event with a number that the broker gave."""
        return self.events[self.by_seq[seq]]

    def close(self, event: ModelEvent) -> None:
        """No version that comes later can matter to this event."""
        if event.until is None:
            event.unwanted = self._unwanted(event)
            for name, subscriber in self.subscribers.items():
                event.since.setdefault(name, (subscriber, 0))
            event.until = {name: len(subscriber.versions) - 1 for name, (subscriber, _) in event.since.items()}

    def _unwanted(self, event: ModelEvent) -> bool | None:
        known: bool | None = True if event.removals == self.removals else None
        everybody = {name: (subscriber, 0) for name, subscriber in self.subscribers.items()} | event.since
        for subscriber, since in everybody.values():
            wanted = {version.outcome(event.value) is not None for version in subscriber.versions[since:]}
            if wanted == {True} and subscriber.state == "made" and not subscriber.ephemeral:
                return False  # an ephemeral one may be gone when a crash has the event matched again
            known = None if True in wanted else known
        return known

    def outcomes(self, event: ModelEvent, subscriber: ModelSubscriber) -> set[Outcome | None]:
        """What a subscriber may get of an event; None stands for nothing."""
        if subscriber in event.known:
            return event.known[subscriber]
        known, since = event.since.get(subscriber.name, (subscriber, 0))
        until = (event.until or {}).get(subscriber.name)
        if known is not subscriber:  # it was removed and made again meanwhile
            since, until = 0, None
        unwanted = event.unwanted if event.until is not None else self._unwanted(event)
        found: set[Outcome | None] = set()
        for version in subscriber.versions[since : None if until is None else until + 1]:
            mine = version.outcome(event.value)
            if mine is None and version.options.unmatched and unwanted is not False:
                found.add(NOBODYS)
            if mine is not None or not version.options.unmatched or unwanted is not True:
                found.add(mine)
        if until is not None:
            event.known[subscriber] = found
        return found

    def owed(self, event: ModelEvent, subscriber: ModelSubscriber) -> bool:
        """Whether a subscriber must get an event, whatever was in force when it was matched."""
        known, _ = event.since.get(subscriber.name, (None, 0))
        return event.state == "accepted" and known is subscriber and None not in self.outcomes(event, subscriber)

    def all_owed(self, subscriber: ModelSubscriber) -> Iterator[ModelEvent]:
        """The events that a subscriber must get and has not acknowledged."""
        for event in self.events.values():
            delivery = subscriber.deliveries.get(event)
            if (delivery is None or not delivery.acked) and self.owed(event, subscriber):
                yield event

    # ---- what is in the store

    def failed(self, delivery: ModelDelivery, surely: bool = True) -> None:
        """A try failed: refused, or too late."""
        delivery.fail(surely)
        self._unsure.append((delivery, False))

    def acknowledged(self, deliveries: Iterable[ModelDelivery], now: float) -> None:
        for delivery in deliveries:
            if delivery.late(now):  # then it may be a dead letter
                delivery.fail(surely=False)
            delivery.release()
            delivery.acked = True
            self._unsure.append((delivery, True))

    def written(self, recorded: int) -> None:
        """All that was asked of the store so far is durable; of deliveries, those of events up to `recorded`."""
        for delivery, acked in self._unsure:
            if delivery.seq <= recorded:
                delivery.sure = delivery.low
                delivery.done = delivery.done or (acked and delivery.acked)
        self._unsure = [one for one in self._unsure if one[0].seq > recorded]

    def crashed(self, now: float) -> None:
        """The broker ended: what was not durable may be lost, who was connected is not."""
        self._unsure.clear()
        for name, subscriber in list(self.subscribers.items()):
            for delivery in subscriber.deliveries.values():
                if delivery.late(now):
                    delivery.fail(surely=False)
                delivery.low = delivery.sure
                delivery.release()
            if subscriber.ephemeral:
                self.removed(name)

    def removed(self, name: str) -> None:
        self.removals += 1
        self.subscribers.pop(name).state = "gone"
