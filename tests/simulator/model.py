"""The model of the broker as plain data: subscriptions, published events, and the state of each delivery.

A change that a crash interrupts may be stored or not. So a subscriber has a list of versions, of which the last ones
may be in force, and a count of tries has a lowest and a highest value. The next start reads from the store which holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from hitbox.broker.delivery.mailbox import Mailbox
from hitbox.broker.settings import Options
from hitbox.encoding.schema import Schema

Outcome = tuple[int, tuple[str, ...]]
"""The result of matching an event for one subscriber: the level, and the names of the subscriptions."""
NOBODYS: Outcome = (0, ())


class BrokenPromise(Exception):
    """The broker did not keep a promise."""


@dataclass(frozen=True)
class ModelSubscription:
    """A subscription: a range of the attribute `a`."""

    low: int
    high: int
    priority: int

    @property
    def where(self) -> str:
        return f"a BETWEEN {self.low} AND {self.high}"


@dataclass(frozen=True)
class Version:
    """The subscriptions of a subscriber, and its options."""

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
    receive: Callable[[Mailbox], bool] | None = field(default=None, repr=False)
    """Takes what is sent at once; None: nothing is."""
    on_close: Callable[[ModelConnection], None] | None = field(default=None, repr=False)

    def close(self, code: int, reason: str) -> None:
        self.closed = True
        if self.on_close is not None:
            self.on_close(self)

    def send_now(self, mailbox: Mailbox) -> bool:
        return self.receive is not None and self.receive(mailbox)


@dataclass(eq=False)
class ModelDelivery:
    """An event for one subscriber. Between `low` and `high` tries have failed; at least `sure` of them are durable.
    `connection` has the delivery; its time-out is between `earliest` and `latest`."""

    event: ModelEvent
    arrivals: int = 0
    low: int = 0
    high: int = 0
    sure: int = 0
    failures: int = 0
    connection: ModelConnection | None = field(default=None, repr=False)
    earliest: float = 0.0
    latest: float = 0.0
    refused: bool = False
    dead: bool = False
    """It was refused as often as allowed."""
    acked: bool = False
    done: bool = False
    """The acknowledgement is in the store."""
    maybe_pending: bool = False
    """A replay may have made it pending again, or not yet: it may begin to count from zero at any moment."""
    replayed: set[Outcome] = field(default_factory=set)
    """Outcomes that replays may have given it."""
    must_come: bool = False
    """It was replayed and must be delivered."""

    @property
    def seq(self) -> int:
        return self.event.seq

    def late(self, now: float) -> bool:
        """Whether it may have timed out."""
        return self.connection is not None and not self.refused and now >= self.earliest

    def fail(self, surely: bool) -> None:
        self.low += surely and not self.maybe_pending
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
    """A subscriber, from its creation to its removal. The versions from `settled` on may be in force; the first one
    stands for the time before its creation."""

    name: str
    ephemeral: bool = False
    versions: list[Version] = field(default_factory=lambda: [Version()])
    settled: int = 0
    state: str = "making"
    paused: set[bool] = field(default_factory=lambda: {False})
    """Whether it is paused: what may be in force."""
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
        """The options that may be in force."""
        return [version.options for version in self.versions[self.settled :]]

    def tries(self) -> tuple[int, int]:
        """The lowest and the highest `max_tries` that it has had."""
        known = [version.options.max_tries for version in self.versions[1:]]
        return min(known), max(known)


@dataclass(eq=False)
class ModelEvent:
    """An event. `state`: asked, accepted, refused or unknown. `wall`: the earliest time that it can have."""

    number: int
    value: int
    wall: float
    removals: int
    state: str = "asked"
    """asked: no answer yet; accepted, refused; unknown: the answer was lost; waiting: stored, and not due yet."""
    ttl: float | None = None
    """Its time to live in seconds."""
    due: float | None = None
    """Of a delayed event: when it is due, by the wall clock; at the earliest."""
    seq: int = 0
    asked: float = 0.0
    """When it was asked, by the monotonic clock."""
    since: dict[str, tuple[ModelSubscriber, int]] = field(default_factory=dict, repr=False)
    until: dict[str, int] | None = None
    unwanted: bool | None = None
    """Whether it matched no subscription; None if that is not known."""
    known: dict[ModelSubscriber, set[Outcome | None]] = field(default_factory=dict, repr=False)
    """Its outcomes that can no longer change."""


class Model:
    def __init__(self, schema: Schema, latest: Callable[[], float]) -> None:
        self._latest = latest  # the latest time that the broker's clock has told
        self.events: dict[int, ModelEvent] = {}
        self.by_seq: dict[int, int] = {}
        self.subscribers: dict[str, ModelSubscriber] = {}
        self.schemas = [schema]  # the last ones may be in force
        self.trimmed = 1  # events before this number are gone
        self.looked_at = 1  # among events before this number, delayed ones have been looked for
        self.removals = 0  # counts the beginnings and the ends of removals
        self._unsure: list[
            tuple[ModelDelivery, bool]
        ] = []  # failed, or acknowledged (True), and not known to be stored

    # ---- events

    def event(self, value: int, wall: float, now: float) -> ModelEvent:
        """A new event that is about to be published."""
        number = len(self.events) + 1
        event = self.events[number] = ModelEvent(number, value, wall, self.removals, asked=now)
        event.since = {name: (subscriber, subscriber.settled) for name, subscriber in self.subscribers.items()}
        return event

    def numbered(self, event: ModelEvent, seq: int) -> None:
        if event.seq not in (0, seq) or self.by_seq.setdefault(seq, event.number) != event.number:
            raise BrokenPromise(
                f"event {event.number} has the numbers {event.seq} and {seq}, which is {self.by_seq.get(seq)}'s"
            )
        event.seq = seq

    def became_event(self, event: ModelEvent, seq: int, wall: float) -> None:
        """A delayed event was found among the events, where it was stored at this time."""
        if event.due is None or wall < event.due or event.state == "refused":
            raise BrokenPromise(f"event {event.number}, {event.state}, was due at {event.due}, and came at {wall}")
        self.numbered(event, seq)
        event.state = "accepted"

    def of(self, seq: int) -> ModelEvent:
        """The event with this number of the broker."""
        return self.events[self.by_seq[seq]]

    def close(self, event: ModelEvent) -> None:
        """The event is matched: later versions of subscribers do not affect it."""
        if event.until is None:
            event.unwanted = self._unwanted(event)
            for name, subscriber in self.subscribers.items():
                event.since.setdefault(name, (subscriber, 0))
            event.until = {name: len(subscriber.versions) - 1 for name, (subscriber, _) in event.since.items()}

    def reopen(self, matched: int) -> None:
        """A start matches the events after `matched` again, with the subscriptions of now. While the disk is full, a
        removal of subscriptions goes ahead of the deliveries of earlier events, so these may be fewer than before."""
        for event in self.events.values():
            if event.seq > matched:
                event.until = None
                event.known.clear()

    def _unwanted(self, event: ModelEvent) -> bool | None:
        known: bool | None = True if event.removals == self.removals else None
        everybody = {name: (subscriber, 0) for name, subscriber in self.subscribers.items()} | event.since
        for subscriber, since in everybody.values():
            wanted = {version.outcome(event.value) is not None for version in subscriber.versions[since:]}
            if wanted == {True} and subscriber.state == "made" and not subscriber.ephemeral:
                return False  # an ephemeral one is gone if a crash makes the broker match the event again
            known = None if True in wanted else known
        return known

    def outcomes(self, event: ModelEvent, subscriber: ModelSubscriber) -> set[Outcome | None]:
        """What a subscriber may get for an event; None: no delivery."""
        if subscriber in event.known:
            return event.known[subscriber]
        known, since = event.since.get(subscriber.name, (subscriber, 0))
        until = (event.until or {}).get(subscriber.name)
        if known is not subscriber:  # it was removed and created again
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

    def may_be_expired(self, event: ModelEvent) -> bool:
        """Whether its time to live may have passed at some moment so far."""
        return event.ttl is not None and self._latest() >= event.wall + event.ttl

    def owed(self, event: ModelEvent, subscriber: ModelSubscriber) -> bool:
        """Whether a subscriber must get an event, whichever version was in force."""
        known, _ = event.since.get(subscriber.name, (None, 0))
        if event.state != "accepted" or known is not subscriber or self.may_be_expired(event):
            return False
        return None not in self.outcomes(event, subscriber)

    def all_owed(self, subscriber: ModelSubscriber) -> Iterator[ModelEvent]:
        """The events that a subscriber must get and has not acknowledged."""
        for event in self.events.values():
            delivery = subscriber.deliveries.get(event)
            if (delivery is None or not delivery.acked) and self.owed(event, subscriber):
                yield event

    # ---- what the store must contain

    def failed(self, delivery: ModelDelivery, surely: bool = True) -> None:
        """A try failed: refused or timed out. The broker does not count one that failed after the time to live."""
        delivery.fail(surely and not self.may_be_expired(delivery.event))
        self._unsure.append((delivery, False))

    def acknowledged(self, deliveries: Iterable[ModelDelivery], now: float) -> None:
        for delivery in deliveries:
            if delivery.late(now):  # then it may be a dead letter
                delivery.fail(surely=False)
            delivery.release()
            delivery.acked = True
            delivery.must_come = False  # a late acknowledgement counts for what was replayed, too
            self._unsure.append((delivery, True))

    def written(self, recorded: int) -> None:
        """All submitted operations are durable; deliveries are stored for the events up to `recorded`."""
        for delivery, acked in self._unsure:
            if delivery.seq <= recorded:
                delivery.sure = delivery.low
                delivery.done = delivery.done or (acked and delivery.acked)
        self._unsure = [one for one in self._unsure if one[0].seq > recorded]

    def crashed(self, now: float) -> None:
        """The broker ended: what was not durable may be lost, and all connections are closed."""
        self._unsure.clear()
        for name, subscriber in list(self.subscribers.items()):
            subscriber.last.pop(
                0, None
            )  # what only an ephemeral subscriber wanted may be unmatched when it is repeated
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
