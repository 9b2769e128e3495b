"""Who leaves deliveries pending: how old and how large they are, and what exceeds the limits of the broker.

Every second the store is asked for the oldest pending event of some subscribers, SURVEYED at a time. Whoever has more
bytes pending than `max_pending_bytes`, or something older than `max_pending_seconds`, loses the oldest (delivery.py).
The same holds for all subscribers of one principal together: then the one with the most bytes pending loses.

Under `max_store_bytes`, what retention had to keep because it is pending may take a quarter of the store. Beyond that,
the principal with the most pending, of those for whom something is kept, loses what is too much; not if all
subscribers belong to nobody: then there is nobody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import islice

from hitbox.broker.delivery.delivery import DeliveryTracker
from hitbox.broker.delivery.mailbox import Mailbox
from hitbox.broker.store.retention import ROW_BYTES
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
        self._pinning: list[Mailbox] = []  # NAMED of those that hold what retention has passed

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
            self._step = self._tracker.writer.submit(lambda: store.retention.oldest_pending(some), mandatory=True)
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
            mailbox.pending_bytes = store.deliveries.bytes.committed.get(number, 0)
            mailbox.most_bytes = s.max_pending_bytes
            of_owner.setdefault(mailbox.subscriber.owner, []).append(mailbox)
        for owner, mailboxes in of_owner.items():
            if owner:
                _reduce(mailboxes, _bytes_of(mailboxes) - s.max_principal_pending_bytes)
        busy = self._busy.values() if store.events.kept.rows() else ()
        self._pinning = list(islice(filter(self._pins, busy), NAMED))
        kept = store.events.total("kept") + store.deliveries.table.rows() * ROW_BYTES
        if s.max_store_bytes is not None and kept > s.max_store_bytes // 4 and of_owner.keys() != {""}:
            pinning = [[one for one in mailboxes if self._pins(one)] for mailboxes in of_owner.values()]
            _reduce(max(pinning, key=_bytes_of), kept - s.max_store_bytes // 4)

    def _pins(self, one: Mailbox) -> bool:
        """Whether something is pending that retention has passed."""
        return one.pending > 0 and one.oldest is not None and one.oldest[0] < self._tracker.store.events.table.first()

    def oldest_seconds(self) -> float:
        """The age of the oldest pending event."""
        return max((one.oldest_seconds() for one in self._busy.values()), default=0.0)

    def problems(self) -> list[str]:
        """Who holds events that retention has passed."""
        return [
            f"subscriber {one.subscriber.name!r} holds events that retention would remove: "
            f"{counted(one.pending, 'delivery is', 'deliveries are')} pending, {one.pending_bytes:,} bytes, the oldest "
            f"for {one.oldest_seconds():,.0f} seconds. Acknowledge them, lower its limit or remove it"
            for one in self._pinning
        ]


def _bytes_of(mailboxes: list[Mailbox]) -> int:
    return sum(one.pending_bytes for one in mailboxes)


def _reduce(mailboxes: list[Mailbox], over: int) -> None:
    """The one with the most bytes pending loses so many of them."""
    if mailboxes and over > 0:
        largest = max(mailboxes, key=lambda one: one.pending_bytes)
        largest.most_bytes = min(largest.most_bytes, max(largest.pending_bytes - over, 0))
