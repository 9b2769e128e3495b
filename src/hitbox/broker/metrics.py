"""/metrics for Prometheus, computed from the broker at each request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from heapq import nlargest

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
        closed = CounterMetricFamily(
            "hitbox_connections_refused", "Connections refused or closed because of a limit", labels=["reason"]
        )
        for reason in REASONS:
            closed.add_metric([reason], watch.closed[reason])
        yield closed
        requests = CounterMetricFamily("hitbox_webhook_requests", "Requests to webhooks", labels=["outcome"])
        for outcome in OUTCOMES if not self.left_out else ():
            requests.add_metric([outcome], watch.webhook_requests[outcome])
        yield requests
        webhooks = GaugeMetricFamily("hitbox_webhooks", "Webhooks of subscribers", labels=["state"])
        found_webhooks = Counter(mailbox.webhook_state() for mailbox in self.broker.mailboxes.values())
        for state in WEBHOOK_STATES:
            webhooks.add_metric([state], found_webhooks[state])
        yield webhooks
        for name, says in [one for one in HISTOGRAMS.items() if one[0] not in self.left_out]:
            one = getattr(watch, name)
            family = HistogramMetricFamily(f"hitbox_{name}_seconds", says)
            family.add_metric([], buckets=one.buckets(), sum_value=one.sum)
            yield family
        for name, size in self.broker.store.sizes().items():
            yield GaugeMetricFamily(f"hitbox_{name}_bytes", STORE_SIZES[name], size)
        refusals = CounterMetricFamily(
            "hitbox_refused_requests", "Requests and messages that were refused", labels=["reason"]
        )
        for reason, count in watch.refusals.items():
            refusals.add_metric([reason], count)
        yield refusals
        latency = GaugeMetricFamily(
            "hitbox_latency_ms",
            "Milliseconds from accepted to sent, over the latest live deliveries",
            labels=["quantile"],
        )
        for quantile in (0.5, 0.99) if not self.left_out else ():
            latency.add_metric([str(quantile)], watch.percentile(quantile))
        yield latency
        lag = GaugeMetricFamily("hitbox_subscriber_pending", "Deliveries not acknowledged yet", labels=["subscriber"])
        shown = [mailbox for mailbox in self.broker.mailboxes.values() if self.shows(mailbox.subscriber)]
        busiest = nlargest(MOST_SUBSCRIBERS, shown, key=lambda mailbox: mailbox.pending)
        large = GaugeMetricFamily("hitbox_subscriber_pending_bytes", "Bytes of their events", labels=["subscriber"])
        age = GaugeMetricFamily(
            "hitbox_subscriber_oldest_pending_seconds", "Age of the oldest of their events", labels=["subscriber"]
        )
        for mailbox in busiest:
            name = mailbox.subscriber.name
            lag.add_metric([name], mailbox.pending)
            large.add_metric([name], mailbox.pending_bytes if mailbox.pending else 0)
            age.add_metric([name], mailbox.oldest_seconds())
        yield from (lag, large, age)


def exposition(broker: Broker, shows: Callable[[Subscriber], bool], shows_all: bool) -> bytes:
    """The metrics, with the names of those subscribers that `shows` allows; unless these are all, without what tells
    whether events match."""
    registry = CollectorRegistry()
    registry.register(_BrokerCollector(broker, shows, shows_all))
    return generate_latest(registry)
