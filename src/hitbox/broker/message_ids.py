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

from hitbox.broker.errors import Conflict
from hitbox.broker.published_event import PublishedEvent

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
    """The ids of the latest `most` events, and of those that are delayed."""

    def __init__(self, most: int):
        self._most = most
        # in the order of their numbers; a plain dict would walk over all it has lost to find its first entry
        self._known: OrderedDict[Key, KnownEvent] = OrderedDict()
        self._delayed: dict[Key, KnownEvent] = {}

    def load(self, rows: Iterable[tuple[int, str, bytes]]) -> None:
        """Remember stored events, (number, principal, text)."""
        for number, principal, body in rows:
            for key, item in _with_key(principal, body):
                moved = item.delay_seconds is not None
                self._known[key] = KnownEvent(hash(item.content(body)), number, moved=moved)

    def load_delayed(self, rows: Iterable[tuple[int, str, bytes]]) -> None:
        """The same for delayed events. Does nothing if no ids are kept."""
        for number, principal, body in rows if self._most else ():
            for key, item in _with_key(principal, body):
                self._delayed[key] = KnownEvent(hash(item.content(body)), number)

    def move(self, item: PublishedEvent, principal: str, number: int) -> None:
        """A delayed event has become an event."""
        key = key_of(item, principal)
        known = self._delayed.pop(key, None) if key is not None else None
        if key is not None and known is not None:
            known.number, known.moved = number, True
            self._known[key] = known

    def cancel(self, item: PublishedEvent, principal: str) -> None:
        """A delayed event was deleted: its id may be used again."""
        if (key := key_of(item, principal)) is not None:
            self._delayed.pop(key, None)

    def sort(self, items: Sequence[PublishedEvent], keys: Sequence[Key | None], contents: Sequence[bytes]) -> Sorted:
        """What is fresh, and what is known. Raises Conflict if an id is known with other content."""
        found = Sorted([], [], None)
        here: dict[Key, int] = {}
        for at, (key, text) in enumerate(zip(keys, contents, strict=True)):
            known = self._known.get(key) or self._delayed.get(key) if key is not None else None
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
        kept = self._delayed if delayed else self._known
        added = []
        for place, (key, text) in enumerate(zip(keys, contents, strict=True)):
            if key is not None:
                kept[key] = KnownEvent(hash(text), 0, stored, place)
                added.append(key)

        def settle(stored: asyncio.Future[int]) -> None:
            failed = stored.cancelled() or stored.exception() is not None
            for key in added:
                known = kept[key]
                if failed:
                    del kept[key]
                else:
                    known.number, known.stored = stored.result() + known.place, None
            if not failed and not delayed:
                self._forget()

        stored.add_done_callback(settle)

    def _forget(self) -> None:
        """Forget the ids of the oldest events; those that are not stored yet are not among them."""
        while len(self._known) > self._most and next(iter(self._known.values())).number:
            self._known.popitem(last=False)


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
