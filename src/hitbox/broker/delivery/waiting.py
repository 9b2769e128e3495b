"""What waits: events that are being stored, and stored ones that are not matched yet.

There is a limit for all together, and of it one principal has half, so that it is in nobody's way. Delayed events count
while they are being stored, and again from when they are due.
"""

from __future__ import annotations

from collections import Counter

from hitbox.broker.settings import Settings


class Waiting:
    """`events` and `bytes` that wait, and those of each principal."""

    def __init__(self, settings: Settings):
        self._most, self._most_bytes = settings.max_waiting, settings.max_waiting_bytes
        self.events = self.bytes = 0
        self.events_of, self.bytes_of = Counter[str](), Counter[str]()

    def add(self, count: int, size: int, principal: str) -> None:
        self.events += count
        self.bytes += size
        self.events_of[principal] += count
        self.bytes_of[principal] += size
        if not self.events_of[principal]:
            del self.events_of[principal], self.bytes_of[principal]

    def remove(self, count: int, size: int, principal: str) -> None:
        self.add(-count, -size, principal)

    def too_many(self, count: int, size: int) -> bool:
        """Whether so many more events, or bytes, are too many."""
        return self.events + count > self._most or self.bytes + size > self._most_bytes

    def more_than_half(self, principal: str, count: int, size: int) -> bool:
        """Whether so many more would be more than half of what may wait. What waits alone may be larger."""
        mine = self.events_of[principal]
        return mine > 0 and (
            2 * (mine + count) > self._most or 2 * (self.bytes_of[principal] + size) > self._most_bytes
        )

    def with_half(self) -> list[str]:
        """The principals that have their half."""
        return [name for name in self.events_of if self.more_than_half(name, 1, 0)]
