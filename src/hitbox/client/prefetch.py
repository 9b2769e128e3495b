"""How many deliveries a client fetches in advance: enough to keep its handler busy, but few enough that an urgent
delivery does not wait long."""

from __future__ import annotations

PREFETCH_SECONDS = 1.0
FIRST_WINDOW, LEAST_WINDOW = 4, 2


class PrefetchWindow:
    """The number of deliveries to fetch: what the handler processes within `horizon` seconds, up to `most`.

    `size` is doubled or halved after each `size` deliveries. Only time spent in the handler counts.
    """

    def __init__(self, most: int):
        self.most = most
        self.size = min(FIRST_WINDOW, most)
        self.horizon = PREFETCH_SECONDS
        self.granted = 0
        self._since: float | None = None
        self._busy, self._count = 0.0, 0

    def handler_ready(self, now: float) -> None:
        """The handler asks for the next delivery: it has finished the last one."""
        if self._since is not None:
            self._busy += now - self._since
            self._since = None

    def handed_out(self, now: float) -> bool:
        """The handler gets a delivery; returns whether the size has changed."""
        self._since = now
        self._count += 1
        if self._count <= self.size:
            return False
        before = self.size
        if self._busy < self.horizon / 2:
            self.size = min(self.size * 2, self.most)
        elif self._busy > self.horizon * 2:
            self.size = max(self.size // 2, min(LEAST_WINDOW, self.most))
        self._busy, self._count = 0.0, 0
        return self.size != before

    def grant(self, working: int) -> int:
        """The window to tell the broker while the handler works on `working` deliveries."""
        self.granted = min(self.most, self.size + max(working - 1, 0))
        return self.granted
