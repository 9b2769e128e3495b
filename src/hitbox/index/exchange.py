"""Exchange: both sides filter, both sides are kept (symmetric publish/subscribe, after Wang and Kitsuregawa).

A job seeker wants `salary > 500` and is 25; a company offers 400 to 600 and wants `age > 30`. A newcomer is matched
against all that are stored on the other side, and is then stored to wait for later ones:

    subscribe(where, about)  ->  subscription base   where over criteria attributes, about: information attributes
                                                     kept here, matched there
    publish(values, where)   ->  event base          where over information attributes, values: criteria attributes

Both bases are an Index over the same attributes; the event base has the roles swapped, so an event is stored there as
a subscription is here, and a subscription arrives there as an event does here. Two sides meet where their intervals
intersect on every attribute.

One lock is held over match and store, so every pair is reported exactly once, to the later of the two. Expiry takes
events from the front of a queue: the oldest go first, at O(1) each. Cost: one match and one insert per call.
"""

from __future__ import annotations

import copy
import math
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from numbers import Real
from typing import Any, Self

from hitbox.encoding.arrays import DEFAULT_PRIORITY
from hitbox.encoding.documents import Event
from hitbox.encoding.schema import Schema
from hitbox.encoding.values import brief
from hitbox.errors import HitboxError, MatcherError, TooExpensive, UnknownEvent, ValueProblem
from hitbox.index.catalog import Id
from hitbox.index.explain import BothSides, explain_without_values
from hitbox.index.index import Index
from hitbox.index.read_write_lock import ReadWriteLock
from hitbox.language import DEFAULT_LIMITS, Limits

MATCHES_ALL = "TRUE"


class Exchange:
    """Publishers choose subscribers as subscribers choose publishers.

    >>> from hitbox import Attribute
    >>> exchange = Exchange({"salary": "int", "city": "string", "age": Attribute("int", role="information")})
    >>> exchange.subscribe("S1", "salary > 500 AND city = 'Paris'", about={"age": 25})
    []
    >>> exchange.publish("E1", {"salary": (400, 600), "city": "Paris"}, where="age > 30")
    []
    >>> exchange.publish("E2", {"salary": (400, 600), "city": "Paris"}, where="age > 18")
    ['S1']
    >>> exchange.subscribe("S2", "salary > 550", about={"age": 31})
    ['E1', 'E2']
    """

    def __init__(
        self,
        schema: Schema | Mapping[str, Any],
        matcher: str = "auto",
        *,
        max_events: int | None = None,
        max_age: float | timedelta | None = None,
        clock: Callable[[], float] = time.monotonic,
        limits: Limits = DEFAULT_LIMITS,
        **options: object,
    ):
        """`max_events`: how many events are kept, the oldest go first; `max_age`: how long (seconds, by `clock`)."""
        self.schema = schema if isinstance(schema, Schema) else Schema(schema)
        self._subscriptions = Index(self.schema, matcher, limits=limits, **options)
        if not self._subscriptions.takes_intervals:
            raise MatcherError(
                f"matcher {matcher!r} matches points only, and an exchange needs intervals; use matcher='hitbox'"
            )
        self._events = _EventBase(self.schema.swapped(), matcher, limits=limits, **options)
        self._max_events = _checked_count(max_events)
        self._max_age = _checked_age(max_age)
        if not callable(clock):
            raise ValueProblem(f"clock is a function that returns seconds, not {brief(clock)}")
        self._clock = clock
        self._queue: OrderedDict[Id, tuple[float, int]] = OrderedDict()  # oldest first: time, and publishing number
        self._turn = 0
        self._lock = ReadWriteLock()
        self.subscriptions: Collection[Id] = Side(self, "_subscriptions")
        self.events: Collection[Id] = Side(self, "_events")

    def subscribe(
        self,
        id: Id,
        where: str | None = None,
        *,
        about: Mapping[str, Any] | None = None,
        priority: int = DEFAULT_PRIORITY,
    ) -> list[Id]:
        """Add a subscription, or replace the one that has this id; the ids of the events that suit it, oldest first.

        Without `where` it accepts every event that accepts it.
        """
        with self._lock.prepare:
            self._expire()
            found = self._suiting(about or {}, where)  # first, because it may be too expensive
            self._subscriptions.subscribe(id, MATCHES_ALL if where is None else where, about=about, priority=priority)
            return sorted(found, key=lambda event: self._queue[event][1])

    def _suiting(self, about: Mapping[str, Any], where: str | None) -> list[Id]:
        """The events that suit a subscriber; none if it is bad input, which `Index.subscribe` says in its own words."""
        try:
            return self._events.match(about, where)
        except TooExpensive:
            raise
        except HitboxError:
            return []

    def publish(self, id: Id, values: Event, where: str | None = None) -> list[Id]:
        """Add an event, or replace the one that has this id; the ids of the subscriptions that suit it, most urgent
        first.

        Without `where` it accepts every subscriber that accepts it. The event stays until it is withdrawn or expires.
        """
        with self._lock.prepare:
            self._expire()
            found = self._subscriptions.match(values, where)
            now = self._time()

            def queue() -> None:
                self._turn += 1
                self._queue[id] = now, self._turn
                self._queue.move_to_end(id)

            text = MATCHES_ALL if where is None else where
            self._events._changing.put(id, text, DEFAULT_PRIORITY, values, also=queue)
            self._expire()
            return found

    def unsubscribe(self, id: Id) -> None:
        """Remove a subscription; an unknown id is an error."""
        with self._lock.prepare:
            self._subscriptions.unsubscribe(id)

    def withdraw(self, id: Id) -> None:
        """Remove an event; the id of no stored event, or of an expired one, is an error."""
        with self._lock.prepare:
            self._expire()
            self._known(id)
            self._events._changing.remove(id, also=lambda: self._leave([id]))

    def explain(self, event: Id, subscription: Id) -> BothSides:
        """Why a stored event and a subscription suit each other or do not, both sides in one tree."""
        with self._lock.prepare:
            self._expire()
            self._known(event)
            reasons = self._subscriptions.explain(
                self._events.about(event), subscription, where=self._events.where(event)
            )
            assert isinstance(reasons, BothSides)
            if self._events.can_match(event):
                return reasons
            wanted = self._subscriptions.parse(self._subscriptions.where(subscription))
            return replace(reasons, subscription=explain_without_values(wanted))

    def nbytes(self) -> dict[str, dict[str, int]]:
        """Bytes held, by side and part."""
        with self._lock.prepare:
            return {"subscriptions": self._subscriptions.nbytes(), "events": self._events.nbytes()}

    def __repr__(self) -> str:
        return f"<Exchange of {len(self.subscriptions)} subscriptions and {len(self.events)} events>"

    def _known(self, id: Id) -> None:
        if id not in self._events:
            raise UnknownEvent(f"no event has the id {id!r:.100}; it may have expired")

    def _expire(self) -> None:
        """Forget the events that are too old or too many."""
        gone: list[Id] = []
        excess = 0 if self._max_events is None else len(self._queue) - self._max_events
        horizon = None if self._max_age is None else self._time() - self._max_age
        for id, (born, _) in self._queue.items():
            if len(gone) >= excess and (horizon is None or born > horizon):
                break
            gone.append(id)
        if len(gone) == 1:  # the usual case, by the shorter way
            self._events._changing.remove(gone[0], also=lambda: self._leave(gone))
        elif gone:
            self._events._changing.remove_many(gone, also=lambda: self._leave(gone))

    def _time(self) -> float:
        now: Any = self._clock()
        if type(now) is not bool and isinstance(now, Real) and math.isfinite(now):
            return float(now)
        raise ValueProblem(f"the clock of an exchange returns seconds as a number, not {brief(now)}")

    def _leave(self, gone: Collection[Id]) -> None:
        for id in gone:
            del self._queue[id]

    # ---- copies

    def __getstate__(self) -> dict[str, Any]:
        with self._lock.prepare:
            state = dict(vars(self))
            now = self._time()
            state["_queue"] = [
                (id, now - born, turn) for id, (born, turn) in self._queue.items()
            ]  # ages: clocks differ
            for name in ("_subscriptions", "_events"):
                state[name] = copy.copy(state[name])
            for name in ("_lock", "subscriptions", "events"):
                del state[name]
            return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        now = self._time()
        self._queue = OrderedDict((id, (now - age, turn)) for id, age, turn in state["_queue"])
        self._lock = ReadWriteLock()
        self.subscriptions, self.events = Side(self, "_subscriptions"), Side(self, "_events")

    def __deepcopy__(self, memo: object) -> Self:
        return copy.copy(self)  # a copy shares nothing that changes


class Side(Collection[Id]):
    """The ids on one side of an exchange, as a read-only collection."""

    def __init__(self, exchange: Exchange, side: str):
        self._exchange, self._side = exchange, side

    @property
    def _base(self) -> Index:  # a copy has that of the copied exchange
        found: Index = getattr(self._exchange, self._side)
        return found

    def __len__(self) -> int:
        with self._exchange._lock.prepare:
            self._exchange._expire()
            return len(self._base)

    def __contains__(self, id: object) -> bool:
        with self._exchange._lock.prepare:
            self._exchange._expire()
            return id in self._base

    def __iter__(self) -> Iterator[Id]:
        with self._exchange._lock.prepare:
            self._exchange._expire()
            return iter(list(self._base))


class _EventBase(Index):
    noun = "event"


def _checked_count(max_events: int | None) -> int | None:
    if max_events is not None and (not isinstance(max_events, int) or isinstance(max_events, bool) or max_events < 1):
        raise ValueProblem(f"max_events is a whole number of at least 1, or None for no limit, not {brief(max_events)}")
    return max_events


def _checked_age(max_age: float | timedelta | None) -> float | None:
    if max_age is None:
        return None
    seconds = max_age.total_seconds() if isinstance(max_age, timedelta) else max_age
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if number and seconds == math.inf:
        return None
    if not number or not 0 < seconds <= sys.float_info.max:
        raise ValueProblem(f"max_age is seconds above 0 or a timedelta, or None for no limit, not {brief(max_age)}")
    return float(seconds)
