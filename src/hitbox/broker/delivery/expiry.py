"""Find the deliveries whose time to live has passed, though nobody asks for them: those of subscribers without a
connection. What is sent is checked when it is taken (delivery.py).

The search goes through all pending deliveries, a few at a time, and removes what has expired. It begins again when the
next one expires, but not at once. As long as no event has a time to live, that is once after a start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from hitbox.broker.clock import clock, time
from hitbox.broker.delivery.delivery import DeliveryTracker
from hitbox.broker.delivery.mailbox import Mailbox
from hitbox.broker.store.tables import NEVER

ROWS = 1_000
"""Deliveries that one step looks at."""
PAUSE_SECONDS = 1.0
"""From the end of a search to the next one, at least."""
BEGIN = (-1, 0, 0)
Found = tuple[list[tuple[int, int, int]], int, tuple[int, int, int] | None]


class ExpirySearch:
    def __init__(self, tracker: DeliveryTracker, mailboxes: Mapping[int, Mailbox]):
        self._tracker, self._mailboxes = tracker, mailboxes
        self._next = 0  # when the first delivery expires that is known of; microseconds since 1970
        self._not_before = 0.0
        self._after: tuple[int, int, int] | None = None  # where the search goes on; None: it is over
        self._step: asyncio.Future[Found] | None = None

    def expect(self, expires: int) -> None:
        """Deliveries were recorded that expire at this time; 0: it is unknown, look at them."""
        self._next = min(self._next, expires)

    def step(self) -> None:
        """Look at some more deliveries, if it is time; called ten times per second."""
        if self._step is not None or clock.in_doubt():
            return
        now = clock.now()
        if self._after is None:
            nothing = not self._tracker.store.deliveries.unacknowledged()
            if nothing or now < self._next or time.monotonic() < self._not_before:
                return
            self._after, self._next = BEGIN, NEVER
        after, store = self._after, self._tracker.store
        self._step = self._tracker.writer.submit(lambda: store.deliveries.expired(after, ROWS, now), mandatory=True)
        self._step.add_done_callback(self._found)

    def _found(self, done: asyncio.Future[Found]) -> None:
        self._step = None
        if done.cancelled() or done.exception() is not None:
            self._after, self._next = None, 0  # begin again
            self._not_before = time.monotonic() + PAUSE_SECONDS
            return
        late, soonest, self._after = done.result()
        if soonest:
            self.expect(soonest)
        for number, keys in _by_subscriber(late).items():
            mailbox = self._mailboxes.get(number)
            if mailbox is None:
                continue
            waiting = [key for key in keys if not mailbox.is_with_client(key[1])]
            if len(waiting) < len(keys):
                self.expect(0)  # a client has some of them: look again, it may not acknowledge them
            if waiting:
                self._tracker.expire(mailbox, waiting)
        if self._after is None:
            self._not_before = time.monotonic() + PAUSE_SECONDS


def _by_subscriber(keys: list[tuple[int, int, int]]) -> dict[int, list[tuple[int, int]]]:
    found: dict[int, list[tuple[int, int]]] = {}
    for number, level, seq in keys:
        found.setdefault(number, []).append((level, seq))
    return found
