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


@dataclass(frozen=True)
class Version:
    """What a subscriber wants, and its options."""

    wants: dict[str, Want] = field(default_factory=dict)
    options: Options = field(default_factory=Options)

    def outcome(self, value: int) -> Outcome | None:
        mine = {name: want for name, want in self.wants.items() if want.low <= value <= want.high}
        return (max(w.priority for w in mine.values()), tuple(sorted(mine))) if mine else None


@dataclass(eq=False)
class Client:
    """A connection of a subscriber."""

    window: int = 0
    closed: bool = False
    hand: dict[int, Parcel] = field(default_factory=dict)

    def close(self, code: int, reason: str) -> None:
        self.closed = True


@dataclass(eq=False)
class Parcel:
    """An event on its way to one subscriber: between `low` and `high` tries have failed, and a crash leaves at least
    `sure` of them. `hand` is the connection that has it, until between `earliest` and `latest`."""

    event: Published
    arrivals: int = 0
    low: int = 0
    high: int = 0
    sure: int = 0
    failures: int = 0
    hand: Client | None = None
    earliest: float = 0.0
    latest: float = 0.0
    refused: bool = False
    dead: bool = False
    """It was refused for the last time."""
    acked: bool = False
    done: bool = False
    """The acknowledgement is in the store."""
    loose: bool = False
    """A replay may have made it pending again, or not yet: it may begin to count from zero at any moment."""
    replayed: set[Outcome] = field(default_factory=set)
    """What replays have made of it."""
    must: bool = False
    """It was replayed and must come."""

    @property
    def seq(self) -> int:
        return self.event.seq

    def late(self, now: float) -> bool:
        """Whether its time may be up."""
        return self.hand is not None and not self.refused and now >= self.earliest

    def fail(self, surely: bool) -> None:
        self.low += surely and not self.loose
        self.high += 1
        self.failures += 1

    def reset(self, surely: bool) -> None:
        """It is pending again as if it were new."""
        self.low = self.sure = 0
        self.high = 0 if surely else self.high
        self.refused = self.dead = self.acked = self.done = False
        self.let_go()

    def let_go(self) -> None:
        if self.hand is not None:
            self.hand.hand.pop(self.seq, None)
            self.hand = None


@dataclass(eq=False)
class Person:
    """A subscriber, from its making to its removal. The versions from `settled` on may be in force at the moment; the
    first one stands for the time before it was made."""

    name: str
    ephemeral: bool = False
    versions: list[Version] = field(default_factory=lambda: [Version()])
    settled: int = 0
    state: str = "making"
    parcels: dict[Published, Parcel] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)

    @property
    def now(self) -> Version:
        return self.versions[-1]

    def parcel(self, event: Published) -> Parcel:
        return self.parcels.setdefault(event, Parcel(event))

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
class Published:
    """An event. `state`: asked, accepted, refused, unknown. `wall` is the earliest time that it can have."""

    number: int
    value: int
    wall: float
    removals: int
    state: str = "asked"
    seq: int = 0
    since: dict[str, tuple[Person, int]] = field(default_factory=dict)
    until: dict[str, int] | None = None
    unwanted: bool | None = None
    """Whether nobody wanted it; None where that is not known."""
    known: dict[Person, set[Outcome | None]] = field(default_factory=dict)
    """Its outcomes, where they cannot change any more."""


class Model:
    def __init__(self, schema: Schema) -> None:
        self.events: dict[int, Published] = {}
        self.by_seq: dict[int, int] = {}
        self.people: dict[str, Person] = {}
        self.schemas = [schema]  # the last ones may be in force
        self.trimmed = 1  # events before this number are gone
        self.removals = 0  # one more when a removal begins, and one more when it ends
        self._unsure: list[tuple[Parcel, bool]] = []  # failed, or (True) acknowledged

    # ---- events

    def event(self, value: int, wall: float) -> Published:
        """One that somebody is about to publish."""
        number = len(self.events) + 1
        event = self.events[number] = Published(number, value, wall, self.removals)
        event.since = {name: (person, person.settled) for name, person in self.people.items()}
        return event

    def numbered(self, event: Published, seq: int) -> None:
        if event.seq not in (0, seq) or self.by_seq.setdefault(seq, event.number) != event.number:
            raise Broken(
                f"event {event.number} has the numbers {event.seq} and {seq}, which is {self.by_seq.get(seq)}'s"
            )
        event.seq = seq

    def of(self, seq: int) -> Published:
        """The event with a number that the broker gave."""
        return self.events[self.by_seq[seq]]

    def close(self, event: Published) -> None:
        """No version that comes later can matter to this event."""
        if event.until is None:
            event.unwanted = self._unwanted(event)
            for name, person in self.people.items():
                event.since.setdefault(name, (person, 0))
            event.until = {name: len(person.versions) - 1 for name, (person, _) in event.since.items()}

    def _unwanted(self, event: Published) -> bool | None:
        known: bool | None = True if event.removals == self.removals else None
        everybody = {name: (person, 0) for name, person in self.people.items()} | event.since
        for person, since in everybody.values():
            wanted = {version.outcome(event.value) is not None for version in person.versions[since:]}
            if wanted == {True} and person.state == "made" and not person.ephemeral:
                return False  # an ephemeral one may be gone when a crash has the event matched again
            known = None if True in wanted else known
        return known

    def outcomes(self, event: Published, person: Person) -> set[Outcome | None]:
        """What a subscriber may get of an event; None stands for nothing."""
        if person in event.known:
            return event.known[person]
        known, since = event.since.get(person.name, (person, 0))
        until = (event.until or {}).get(person.name)
        if known is not person:  # it was removed and made again meanwhile
            since, until = 0, None
        unwanted = event.unwanted if event.until is not None else self._unwanted(event)
        found: set[Outcome | None] = set()
        for version in person.versions[since : None if until is None else until + 1]:
            mine = version.outcome(event.value)
            if mine is None and version.options.unmatched and unwanted is not False:
                found.add(NOBODYS)
            if mine is not None or not version.options.unmatched or unwanted is not True:
                found.add(mine)
        if until is not None:
            event.known[person] = found
        return found

    def owed(self, event: Published, person: Person) -> bool:
        """Whether a subscriber must get an event, whatever was in force when it was matched."""
        known, _ = event.since.get(person.name, (None, 0))
        return event.state == "accepted" and known is person and None not in self.outcomes(event, person)

    def all_owed(self, person: Person) -> Iterator[Published]:
        """The events that a subscriber must get and has not acknowledged."""
        for event in self.events.values():
            parcel = person.parcels.get(event)
            if (parcel is None or not parcel.acked) and self.owed(event, person):
                yield event

    # ---- what is in the store

    def failed(self, parcel: Parcel, surely: bool = True) -> None:
        """A try failed: refused, or too late."""
        parcel.fail(surely)
        self._unsure.append((parcel, False))

    def acknowledged(self, parcels: Iterable[Parcel], now: float) -> None:
        for parcel in parcels:
            if parcel.late(now):  # then it may be a dead letter
                parcel.fail(surely=False)
            parcel.let_go()
            parcel.acked = True
            self._unsure.append((parcel, True))

    def written(self, recorded: int) -> None:
        """All that was asked of the store so far is durable; of deliveries, those of events up to `recorded`."""
        for parcel, acked in self._unsure:
            if parcel.seq <= recorded:
                parcel.sure = parcel.low
                parcel.done = parcel.done or (acked and parcel.acked)
        self._unsure = [one for one in self._unsure if one[0].seq > recorded]

    def crashed(self, now: float) -> None:
        """The broker ended: what was not durable may be lost, who was connected is not."""
        self._unsure.clear()
        for name, person in list(self.people.items()):
            for parcel in person.parcels.values():
                if parcel.late(now):
                    parcel.fail(surely=False)
                parcel.low = parcel.sure
                parcel.let_go()
            if person.ephemeral:
                self.removed(name)

    def removed(self, name: str) -> None:
        self.removals += 1
        self.people.pop(name).state = "gone"
