"""What every way of receiving has in common: a WebSocket, an event stream and a webhook are receivers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hitbox.broker.access.rights import SUBSCRIBE, Caller
from hitbox.broker.clock import time
from hitbox.broker.delivery.delivery import DeliveryTracker
from hitbox.broker.delivery.mailbox import FRAME_COUNT, MANY_NAMES, Delivery, Mailbox

LOOK_SECONDS = 0.5
"""That one connection takes at once of the threads that find out what may be seen."""


class Receiver:
    """A connection that receives the deliveries of a subscriber, with the rights of `caller`."""

    need = SUBSCRIBE

    def __init__(self, tracker: DeliveryTracker, caller: Caller):
        self.tracker, self.caller = tracker, caller
        self.close_with: tuple[int, str] | None = None
        self.ended = asyncio.Event()

    def close(self, code: int, reason: str) -> None:
        """Ask for the connection to be closed, without waiting. The codes are those of WebSockets."""
        self.close_with = self.close_with or (code, reason)
        self.ended.set()

    def discard_unsent(self) -> None:
        """End at once if something that was written could not be sent yet: the caller may not have it any more."""

    async def next(self, mailbox: Mailbox, most: int = FRAME_COUNT) -> list[Delivery]:
        """Wait for the deliveries to send next; an empty list if the connection was closed or replaced."""
        while deliveries := await self.tracker.next(mailbox, self, most):
            if (seen := await self.seen(mailbox, deliveries)) and mailbox.is_served(self):
                return seen
        return []

    def send_now(self, mailbox: Mailbox) -> bool:
        return False

    def check_rights(self, mailbox: Mailbox) -> None:
        """Raise if the caller may not receive deliveries now."""
        self.caller.check(self.need)
        self.caller.receiver(mailbox.subscriber.name)

    async def seen(self, mailbox: Mailbox, deliveries: list[Delivery]) -> list[Delivery]:
        """Those that the caller may see now; the others are removed. Most were left out when they were matched, but
        what waited on disk, was replayed or revived may be older than the caller's rights."""
        self.check_rights(mailbox)
        hidden: set[int] = set()
        while unsure := [d for d in self.unsure(deliveries) if d.seq not in hidden]:
            sight = self.caller.sight()
            found = await self.tracker.looks.run(self.caller.name, _look, self.caller, unsure)
            self.check_rights(mailbox)
            for d, is_seen in zip(unsure, found, strict=False) if self.caller.sight() == sight else ():
                if is_seen:
                    d.sight = sight
                else:
                    hidden.add(d.seq)
        if hidden:
            self.tracker.acknowledge(mailbox, list(hidden))
            self.tracker.statistics.counts["hidden"] += len(hidden)
        return [d for d in deliveries if d.seq not in hidden] if hidden else deliveries

    async def encoded(self, deliveries: list[Delivery], encode: Callable[[Delivery], bytes]) -> list[bytes]:
        """Each as text. Those that name very many subscriptions are encoded in a thread."""
        if _are_long(deliveries):
            return await self.tracker.looks.run(self.caller.name, lambda: list(map(encode, deliveries)))
        return list(map(encode, deliveries))

    def can_send_now(self, deliveries: list[Delivery]) -> bool:
        """Whether nothing has to be done in a thread before they are sent."""
        return not self.unsure(deliveries) and not _are_long(deliveries)

    def unsure(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Those of which it is not known yet whether the caller may see them."""
        sight = self.caller.sight()
        return [] if sight is None else [d for d in deliveries if d.sight != sight]


def _are_long(deliveries: list[Delivery]) -> bool:
    return sum(len(d.ids) for d in deliveries) > MANY_NAMES


def _look(caller: Caller, deliveries: list[Delivery]) -> list[bool]:
    """Whether the caller may see each of these, or the first of them: after LOOK_SECONDS others have their turn. In a
    thread: each may take long."""
    found, ends = list[bool](), time.monotonic() + LOOK_SECONDS
    while len(found) < len(deliveries) and (not found or time.monotonic() < ends):
        found.append(caller.sees_body(deliveries[len(found)].body))
    return found
