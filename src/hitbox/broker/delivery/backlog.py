"""Who leaves deliveries pending: how old and how large they are, and what exceeds the limits of the broker.

Every second the store is asked for the oldest pending event of some subscribers, SURVEYED at a time. Whoever has more
bytes pending than `max_pending_bytes`, or something older than `max_pending_seconds`, loses the oldest (delivery.py).
The same holds for all subscribers of one principal together: then the one with the most bytes pending loses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import islice

from hitbox.broker.delivery.delivery import DeliveryTracker
from hitbox.broker.delivery.mailbox import Mailbox
from hitbox.errors import counted

SURVEYED = 500
NAMED = 100
"""Subscribers that the problems name."""


class Backlog:
    """`busy`: the mailboxes with pending deliveries, by the number of their subscriber."""

    def __init__(self, tracker: DeliveryTracker, busy: Mapping[int, Mailbox]):
        self._tracker, self._busy = tracker, busy
        self._step: asyncio.Future[dict[int, tuple[int, int]]] | None = None
        self._left: list[int] = []

    def step(self) -> None:
        """Look at some more subscribers; called every second."""
        self._share_bytes()
        if self._step is not None:
            return
        if not self._left:
            self._left = [number for number, one in self._busy.items() if not one.subscriber.ephemeral]
        some, self._left = self._left[:SURVEYED], self._left[SURVEYED:]
        if some:
            store = self._tracker.store
            self._step = self._tracker.writer.submit(lambda: store.oldest_pending(some), mandatory=True)
            self._step.add_done_callback(lambda done: self._found(some, done))

    def _found(self, asked: list[int], done: asyncio.Future[dict[int, tuple[int, int]]]) -> None:
        self._step = None
        if done.cancelled() or done.exception() is not None:
            return  # asked again
        for number in asked:
            if (mailbox := self._busy.get(number)) is not None:
                mailbox.oldest = done.result().get(number)

    def _share_bytes(self) -> None:
        """Tell each mailbox how many bytes are pending, and how many may be."""
        s, store = self._tracker.settings, self._tracker.store
        of_owner: dict[str, list[Mailbox]] = {}
        for number, mailbox in self._busy.items():
            mailbox.pending_bytes = store.pending_bytes.get(number, 0)
            mailbox.most_bytes = s.max_pending_bytes
            if mailbox.subscriber.owner:
                of_owner.setdefault(mailbox.subscriber.owner, []).append(mailbox)
        for mailboxes in of_owner.values():
            over = sum(one.pending_bytes for one in mailboxes) - s.max_principal_pending_bytes
            if over > 0:
                largest = max(mailboxes, key=lambda one: one.pending_bytes)
                largest.most_bytes = min(largest.most_bytes, max(largest.pending_bytes - over, 0))

    def oldest_seconds(self) -> float:
        """The age of the oldest pending event."""
        return max((one.oldest_seconds() for one in self._busy.values()), default=0.0)

    def problems(self) -> list[str]:
        """Who holds events that retention has passed."""
        first = self._tracker.store.events.first()
        pinning = (
            one for one in self._busy.values() if one.pending and one.oldest is not None and one.oldest[0] < first
        )
        return [
            f"subscriber {one.subscriber.name!r} holds events that retention would remove: "
            f"{counted(one.pending, 'delivery is', 'deliveries are')} pending, {one.pending_bytes:,} bytes, the oldest "
            f"for {one.oldest_seconds():,.0f} seconds. Acknowledge them, lower its limit or remove it"
            for one in islice(pinning, NAMED)
        ]
