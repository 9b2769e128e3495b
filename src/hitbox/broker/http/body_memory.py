"""The memory of what has begun to come: bodies until their request is answered, messages of WebSockets until they are
complete. All together may take a part of it, and one principal half of that: it is in nobody's way."""

from __future__ import annotations

from collections import Counter

from hitbox.broker.access.principals import LOCAL
from hitbox.broker.settings import Settings
from hitbox.protocol.errors import Overloaded

LEAST_BYTES = 512 * 2**20


class BodyMemory:
    """`of`: the bytes of each principal."""

    def __init__(self, settings: Settings):
        self.most = max(LEAST_BYTES, 4 * settings.max_body_bytes)
        self.of = Counter[str]()
        self._all = 0

    def add(self, principal: str, size: int) -> None:
        """So many bytes more, or less. Raises Overloaded if they are too many."""
        share = self.most if principal == LOCAL else self.most // 2
        if size > 0 and (self.of[principal] + size > share or self._all + size > self.most):
            raise Overloaded(f"what {principal!r} has begun to send takes {self.of[principal]} bytes of memory", 1)
        self._all += size
        self.of[principal] += size
        if not self.of[principal]:
            del self.of[principal]


class Account:
    """What one request or connection of a principal holds."""

    def __init__(self, memory: BodyMemory, principal: str):
        self._memory, self._principal, self.size = memory, principal, 0

    def hold(self, size: int) -> None:
        """It holds so many bytes from now on. Raises Overloaded if they are too many."""
        self._memory.add(self._principal, size - self.size)
        self.size = size

    def __enter__(self) -> Account:
        return self

    def __exit__(self, *_: object) -> None:
        self.hold(0)
