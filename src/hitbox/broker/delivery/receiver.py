"""What every way of receiving has in common: a WebSocket, an event stream and a webhook are receivers."""

from __future__ import annotations

import asyncio

from hitbox.broker.access.rights import SUBSCRIBE, Caller
from hitbox.broker.delivery.delivery import DeliveryTracker
from hitbox.broker.delivery.mailbox import FRAME_COUNT, Delivery, Mailbox


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
            self.check_rights(mailbox)
            if seen := self.seen(mailbox, deliveries):
                return seen
        return []

    def send_now(self, mailbox: Mailbox) -> bool:
        return False

    def check_rights(self, mailbox: Mailbox) -> None:
        """Raise if the caller may not receive deliveries now."""
        self.caller.check(self.need)
        self.caller.receiver(mailbox.subscriber.name)

    def seen(self, mailbox: Mailbox, deliveries: list[Delivery]) -> list[Delivery]:
        """Those that the caller may see now; the others are removed. Most were left out when they were matched, but
        what waited on disk, was replayed or revived may be older than the caller's rights."""
        if self.caller.sees_all():
            return deliveries
        seen = [d for d in deliveries if self.caller.sees_body(d.body)]
        if len(seen) < len(deliveries):
            kept = {d.seq for d in seen}
            self.tracker.acknowledge(mailbox, [d.seq for d in deliveries if d.seq not in kept])
            self.tracker.statistics.counts["hidden"] += len(deliveries) - len(seen)
        return seen
