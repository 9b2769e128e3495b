"""/metrics for Prometheus, computed from the broker at each request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from heapq import nlargest
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from hitbox.broker.broker import COUNTERS, OF_MATCHES, Broker
from hitbox.broker.subscribers.subscriptions import Subscriber

GAUGES = {
    "subscriptions": "Subscriptions in the index",
    "suspended": "Subscriptions that match nothing, because they were too expensive too often",
    "subscribers": "Subscribers, connected or not",
    "connections": "Connections of subscribers: WebSockets, event streams and webhooks",
    "pending": "Deliveries not acknowledged yet",
    "oldest_pending_seconds": "Age of the oldest event that a subscriber has not acknowledged",
    "kept": "Events that retention has passed and that are still pending for a subscriber",
    "waiting": "Events accepted but not matched yet",
    "waiting_delayed": "Events that wait for their delay to pass",
    "dead_letters": "Dead letters stored",
    "store_full": "1 while the store has no space left",
    "clock_ahead_seconds": "By how much the system's clock is ahead of the broker's; far from 0: it has jumped",
    "problems": "Problems found at start or later; the log and /v1/stats list them",
}
HISTOGRAMS = {
    "publish_to_commit": "Seconds from accepting an event until it was on disk",
    "commit_to_sent": "Seconds from there until a live delivery was written to its connection",
    "sent_to_acked": "Seconds from there until it was acknowledged",
    "webhook_time": "Seconds from sending a request to a webhook until its answer was read, or it failed",
    "match_time": "Seconds to match one event, the mean of the events that were matched together",
}
TIMES_OF_MATCHES = frozenset({"commit_to_sent", "sent_to_acked", "webhook_time"})
STORE_SIZES = {
    "store_database": "Size of the database file",
    "store_log": "Size of the write-ahead log",
    "store_reserve": "Disk space reserved for deletes",
    "disk_free": "Free space of the disk that holds the store",
}
MOST_SUBSCRIBERS = 1_000
"""Series of the subscribers with the most pending deliveries; the others have none."""
REASONS = ("sockets", "address", "rate", "head", "body", "header_bytes", "stalled", "silent")
"""Why a connection is refused or closed (http/connections.py)."""
OUTCOMES = ("ok", "status", "gone", "late", "unreachable", "blocked")
"""How a request to a webhook ends (delivery/webhooks.py)."""
WEBHOOK_STATES = ("ok", "failing", "disabled")


class _BrokerCollector(Collector):
    def __init__(self, broker: Broker, shows: Callable[[Subscriber], bool], shows_all: bool):
        self.broker, self.shows = broker, shows
        self.left_out = frozenset() if shows_all else OF_MATCHES | TIMES_OF_MATCHES

    def collect(self) -> Iterator[Metric]:
        found = self.broker.describe()
        for name in [name for name in COUNTERS if name not in self.left_out]:
            yield CounterMetricFamily(f"hitbox_{name}", f"Total {name} since start", found[name])
        for name, says in [one for one in GAUGES.items() if one[0] not in self.left_out]:
            yield GaugeMetricFamily(f"hitbox_{name}", says, float(found[name]))
        watch = self.broker.statistics
        refused = {reason: watch.closed[reason] for reason in REASONS}
        yield _counter("connections_refused", "Connections refused or closed because of a limit", "reason", refused)
        requests = {} if self.left_out else {outcome: watch.webhook_requests[outcome] for outcome in OUTCOMES}
        yield _counter("webhook_requests", "Requests to webhooks", "outcome", requests)
        states = Counter(mailbox.webhook_state() for mailbox in self.broker.mailboxes.values())
        webhooks = {} if self.left_out else {state: states[state] for state in WEBHOOK_STATES}
        yield _gauge("webhooks", "Webhooks of subscribers", "state", webhooks)
        for name, says in [one for one in HISTOGRAMS.items() if one[0] not in self.left_out]:
            one = getattr(watch, name)
            family = HistogramMetricFamily(f"hitbox_{name}_seconds", says)
            family.add_metric([], buckets=one.buckets(), sum_value=one.sum)
            yield family
        for name, size in () if self.left_out else self.broker.store.space.sizes().items():
            yield GaugeMetricFamily(f"hitbox_{name}_bytes", STORE_SIZES[name], size)
        yield _counter("refused_requests", "Requests and messages that were refused", "reason", watch.refusals)
        latencies = {} if self.left_out else {str(share): watch.percentile(share) for share in (0.5, 0.99)}
        yield _gauge(
            "latency_ms", "Milliseconds from accepted to sent, over the latest live deliveries", "quantile", latencies
        )
        shown = [mailbox for mailbox in self.broker.mailboxes.values() if self.shows(mailbox.subscriber)]
        busiest = {m.subscriber.name: m for m in nlargest(MOST_SUBSCRIBERS, shown, key=lambda mailbox: mailbox.pending)}
        pending = {name: mailbox.pending for name, mailbox in busiest.items()}
        sizes = {name: mailbox.pending_bytes if mailbox.pending else 0 for name, mailbox in busiest.items()}
        ages = {name: mailbox.oldest_seconds() for name, mailbox in busiest.items()}
        yield _gauge("subscriber_pending", "Deliveries not acknowledged yet", "subscriber", pending)
        yield _gauge("subscriber_pending_bytes", "Bytes of their events", "subscriber", sizes)
        yield _gauge("subscriber_oldest_pending_seconds", "Age of the oldest of their events", "subscriber", ages)


def _labelled(kind: type[Any], name: str, says: str, label: str, values: Mapping[str, float]) -> Metric:
    family: Metric = kind(f"hitbox_{name}", says, labels=[label])
    for value, number in values.items():
        family.add_metric([value], number)  # type: ignore[attr-defined]
    return family


_counter, _gauge = partial(_labelled, CounterMetricFamily), partial(_labelled, GaugeMetricFamily)


def exposition(broker: Broker, shows: Callable[[Subscriber], bool], shows_all: bool) -> bytes:
    """The metrics, with the names of those subscribers that `shows` allows; unless these are all, without what tells
    whether events match."""
    registry = CollectorRegistry()
    registry.register(_BrokerCollector(broker, shows, shows_all))
    return generate_latest(registry)
