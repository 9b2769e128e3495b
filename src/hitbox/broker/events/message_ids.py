"""Publishing once: a publish that is repeated, with the ids of its events, is not stored again.

An id belongs to the principal that published its event: the same id of another one is another id, so nobody can take
an id from somebody else, or learn from an answer that somebody else has published it. As long as there are no
principals, everybody is the same one. An id is stored with its event. The ids of the latest events are in memory, and
at start they are read from the store, so a repetition is also recognised after a crash between the store and the
answer. The id of a CloudEvent is its source and its id. An id that comes again with other content is a mistake of the
publisher, and an error. The id of a delayed event is known as long as it waits, and then as that of any other event.
"""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from hitbox.broker.events.published_event import PublishedEvent
from hitbox.protocol.errors import Conflict

Key = tuple[str, str]
"""The principal and the key of an event."""


@dataclass(slots=True)
class KnownEvent:
    """An event with an id. `number` is 0 until it is stored; `stored` has the number of the first of its request. A
    delayed event has its number among the delayed ones; when it becomes an event, it is `moved`."""

    content: int
    number: int = 0
    stored: asyncio.Future[int] | None = None
    place: int = 0
    moved: bool = False


@dataclass(slots=True)
class Sorted:
    """The events of a request: which of them are to be stored, and which are known already."""

    fresh: list[int]
    known: list[KnownEvent]
    first: KnownEvent | None
    """The first event of the request, if it is known."""


class MessageIds:
    """The ids of the latest `most` events, and of those that are delayed. Beyond, a principal with more than its share
    loses its oldest, so that nobody's many events push out the ids of others."""

    def __init__(self, most: int):
        self._most = most
        # by principal, in the order of their numbers; a plain dict would walk over all it has lost to find its first
        self._known: dict[str, OrderedDict[str, KnownEvent]] = {}
        self._count = 0
        self._delayed: dict[Key, KnownEvent] = {}

    def load(self, rows: Iterable[tuple[int, str, bytes]]) -> None:
        """Remember stored events, (number, principal, text)."""
        for number, principal, body in rows:
            for key, item in _with_key(principal, body):
                moved = item.delay_seconds is not None
                self._remember(key, KnownEvent(hash(item.content(body)), number, moved=moved))

    def load_delayed(self, rows: Iterable[tuple[int, str, bytes]]) -> None:
        """Remember delayed events, (number, principal, text). Does nothing if no ids are kept."""
        for number, principal, body in rows if self._most else ():
            for key, item in _with_key(principal, body):
                self._delayed[key] = KnownEvent(hash(item.content(body)), number)

    def move(self, item: PublishedEvent, principal: str, number: int) -> None:
        """A delayed event has become an event."""
        key = key_of(item, principal)
        known = self._delayed.pop(key, None) if key is not None else None
        if key is not None and known is not None:
            known.number, known.moved = number, True
            self._remember(key, known)
            self._forget(key[0])

    def cancel(self, item: PublishedEvent, principal: str) -> None:
        """A delayed event was deleted: its id may be used again."""
        if (key := key_of(item, principal)) is not None:
            self._delayed.pop(key, None)

    def forget_principal(self, name: str) -> None:
        """It was removed; it has no delayed events."""
        self._count -= len(self._known.pop(name, ()))

    def sort(self, items: Sequence[PublishedEvent], keys: Sequence[Key | None], contents: Sequence[bytes]) -> Sorted:
        """What is fresh, and what is known. Raises Conflict if an id is known with other content."""
        found = Sorted([], [], None)
        here: dict[Key, int] = {}
        for at, (key, text) in enumerate(zip(keys, contents, strict=True)):
            known = self._find(key) if key is not None else None
            content = hash(text)
            if key is not None and (here.get(key, content) != content or (known and known.content != content)):
                which = f"event {known.number}" if known and known.number else "another event"
                name = items[at].id or (items[at].cloudevent or {}).get("id", "")
                raise Conflict(
                    f"event {at} has the id {name!r:.100} of {which}, which has other content: "
                    "an id belongs to one event; nothing was accepted"
                )
            if known is not None:
                found.known.append(known)
                found.first = known if at == 0 else found.first
            elif key is None or key not in here:
                found.fresh.append(at)
            if key is not None:
                here[key] = content
        return found

    def add(
        self, keys: Sequence[Key | None], contents: Sequence[bytes], stored: asyncio.Future[int], delayed: bool
    ) -> None:
        """Remember events that are about to be stored together; `stored` gets the number of the first."""
        added: dict[Key, KnownEvent] = {}
        for place, (key, text) in enumerate(zip(keys, contents, strict=True)):
            if key is not None:
                known = KnownEvent(hash(text), 0, stored, place)
                if delayed:
                    self._delayed[key] = known
                else:
                    self._remember(key, known)
                added[key] = known

        def settle(stored: asyncio.Future[int]) -> None:
            failed = stored.cancelled() or stored.exception() is not None
            for key, known in added.items():
                if self._find(key) is not known:
                    continue  # forgotten with its principal
                if not failed:
                    known.number, known.stored = stored.result() + known.place, None
                elif delayed:
                    del self._delayed[key]
                else:
                    self._drop(key)
            if added and not failed and not delayed:
                self._forget(next(iter(added))[0])

        stored.add_done_callback(settle)

    def _find(self, key: Key) -> KnownEvent | None:
        principal, id = key
        mine = self._known.get(principal)
        return (None if mine is None else mine.get(id)) or self._delayed.get(key)

    def _remember(self, key: Key, known: KnownEvent) -> None:
        mine = self._known.setdefault(key[0], OrderedDict())
        self._count += key[1] not in mine
        mine[key[1]] = known

    def _drop(self, key: Key) -> None:
        mine = self._known[key[0]]
        del mine[key[1]]
        self._count -= 1
        if not mine:
            del self._known[key[0]]

    def _forget(self, principal: str) -> None:
        """Forget the oldest ids of this principal, or of the one with the most if it has no more than its share; those
        of events that are not stored yet are not among them."""
        while self._count > self._most:
            if len(self._known.get(principal, ())) * len(self._known) < self._count:
                principal = max(self._known, key=lambda name: len(self._known[name]))
            id, oldest = next(iter(self._known[principal].items()))
            if not oldest.number:
                return
            self._drop((principal, id))


def key_of(item: PublishedEvent, principal: str) -> Key | None:
    """What identifies the event if the principal publishes it again; None: nothing does."""
    key = item.key()
    return None if key is None else (principal, key)


def _with_key(principal: str, body: bytes) -> Iterator[tuple[Key, PublishedEvent]]:
    """The event of a stored text, if it has an id."""
    if b'"id":' in body:  # also that of a CloudEvent; what merely contains it is decoded in vain
        item = msgspec.json.decode(body, type=PublishedEvent)
        if (key := key_of(item, sys.intern(principal))) is not None:
            yield key, item
