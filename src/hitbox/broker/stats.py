"""Statistics: counters, one line per second for the plots, and the trace of deliveries.

The times in a trace row are in nanoseconds of one clock: `accepted` when the event went to the store, `determined` when
the matches of its level were known, `sent` when the delivery was handed to the connection. `live` is false for a
delivery that was sent again or came from the spool. Live deliveries of one event are sent in descending order of level.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat, starmap
from typing import Any, NamedTuple, Protocol

from hitbox.broker.clock import time

SECONDS = 300
LATENCIES = 4096
RECENT = 200


class TraceRow(NamedTuple):
    seq: int
    level: int
    subscriber: str
    accepted: int
    determined: int
    sent: int
    live: bool


class Matches(NamedTuple):
    """Whom an event matched: numbers of subscribers, and how many subscriptions of each."""

    subscribers: array[int]
    counts: array[int]

    def total(self) -> int:
        return sum(self.counts)


class Sent(Protocol):
    """What the statistics need of a delivery. Those of events that were stored together have the same `accepted` and
    `committed`; 0: before a restart."""

    seq: int
    level: int
    accepted: int
    determined: int
    committed: int
    live: bool


class Histogram:
    """How often a time in seconds was up to each of BOUNDS. Times of a group are observed together."""

    BOUNDS = tuple(float(f"{digit}e{power}") for power in range(-5, 3) for digit in (1, 2.5, 5))

    def __init__(self) -> None:
        self.counts = [0] * (len(self.BOUNDS) + 1)
        self.sum = 0.0

    def observe(self, seconds: float, count: int = 1) -> None:
        self.counts[bisect_left(self.BOUNDS, seconds)] += count
        self.sum += seconds * count

    def buckets(self) -> list[tuple[str, int]]:
        """(bound, how many were up to it), the last bound is infinite."""
        total, found = 0, []
        for bound, count in zip([*map(str, self.BOUNDS), "+Inf"], self.counts, strict=True):
            total += count
            found.append((bound, total))
        return found


RATES = {f"{name}_per_second": name for name in ("published", "delivered", "acked")}
"""The rates in a line for the plots, and what each counts."""
REFUSALS = {
    400: "invalid", 401: "token", 403: "forbidden", 408: "late", 409: "conflict", 413: "size",
    429: "busy", 503: "unavailable", 507: "full",
}  # fmt: skip


class Statistics:
    def __init__(self, trace: int = 10_000) -> None:
        self.counts: Counter[str] = Counter()
        self.closed: Counter[str] = Counter()
        """Connections that were refused or closed because of a limit, by reason."""
        self._trace: deque[tuple[int, int, str, int, int, int, bool]] = deque(maxlen=trace)
        self._latencies: deque[float] = deque(maxlen=LATENCIES)
        self.history: deque[dict[str, float]] = deque(maxlen=SECONDS)
        self.recent: deque[dict[str, Any]] = deque(maxlen=RECENT)
        self.event_count = 0
        self.publish_to_commit, self.commit_to_sent = Histogram(), Histogram()
        self.sent_to_acked, self.match_time = Histogram(), Histogram()
        self.webhook_requests: Counter[str] = Counter()
        self.webhook_time = Histogram()
        self.refusals = dict.fromkeys(REFUSALS.values(), 0)
        self._before: Counter[str] = Counter()
        self._last = time.monotonic()
        self.started = time.monotonic()

    def count_refusal(self, status: int) -> None:
        """A request or a message was answered with this status."""
        if status in REFUSALS:
            self.refusals[REFUSALS[status]] += 1

    def add_sent(self, subscriber: str, deliveries: Sequence[Sent], now: int) -> None:
        """Deliveries were written to a connection of a subscriber."""
        self.counts["delivered"] += len(deliveries)
        self._trace.extend([(d.seq, d.level, subscriber, d.accepted, d.determined, now, d.live) for d in deliveries])
        live: dict[tuple[int, int], int] = {}
        for d in deliveries:
            if d.live:
                times = (d.accepted, d.committed)
                live[times] = live.get(times, 0) + 1
        for (accepted, committed), count in live.items():
            if committed:
                self.commit_to_sent.observe((now - committed) / 1e9, count)
            if accepted:
                self._latencies.extend(repeat((now - accepted) / 1e6, count))

    def trace(self) -> Iterator[TraceRow]:
        """The latest deliveries that were sent, the oldest first."""
        return starmap(TraceRow, self._trace)

    def add_events(self, events: Iterable[dict[str, Any]]) -> None:
        """Add events to the page's list of the latest events; `event_count` counts them."""
        for one in events:
            self.event_count += 1
            self.recent.append(one)

    def events_after(self, number: int, most: int) -> list[dict[str, Any]]:
        """The latest events after the first `number` ones, at most `most`."""
        fresh = min(self.event_count - number, len(self.recent), most)
        return list(self.recent)[-fresh:] if fresh > 0 else []

    def percentile(self, share: float) -> float:
        """Milliseconds from accepted to sent, over the latest live deliveries."""
        found = sorted(self._latencies)
        return found[min(int(share * len(found)), len(found) - 1)] if found else 0.0

    def tick(self, pending: int = 0, store_bytes: int = 0, disk_free: int = 0) -> dict[str, float]:
        """Add a line for the plots: rates since the last line. Their names are not those of the totals, which the page
        gets in the same message."""
        now = time.monotonic()
        span = max(now - self._last, 1e-6)
        rates = {rate: (self.counts[name] - self._before[name]) / span for rate, name in RATES.items()}
        self._before, self._last = self.counts.copy(), now
        line = {"time": time.time(), **rates, "p50": self.percentile(0.5), "p99": self.percentile(0.99)}
        line |= {"pending": pending, "store_bytes": store_bytes, "disk_free": disk_free}
        if not rates["delivered_per_second"]:
            self._latencies.clear()
        self.history.append(line)
        return line
