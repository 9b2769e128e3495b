"""/metrics for Prometheus, computed from the broker at each request."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from hitbox.broker.broker import COUNTERS, Broker
from hitbox.broker.subscriptions import Subscriber

GAUGES = {
    "subscriptions": "Subscriptions in the index",
    "subscribers": "Subscribers, connected or not",
    "connections": "Subscribers with a connection",
    "pending": "Deliveries not acknowledged yet",
    "waiting": "Events accepted but not matched yet",
    "dead_letters": "Dead letters stored",
    "store_full": "1 while the store has no space left",
    "problems": "Problems found at start or later; the log and /v1/stats list them",
}
MOST_SUBSCRIBERS = 1_000
REASONS = ("sockets", "address", "rate", "head", "body", "header_bytes", "stalled", "silent")
"""Why a connection is refused or closed (http/connections.py)."""


class _BrokerCollector(Collector):
    def __init__(self, broker: Broker, shows: Callable[[Subscriber], bool]):
        self.broker, self.shows = broker, shows

    def collect(self) -> Iterator[Metric]:
        found = self.broker.describe()
        for name in COUNTERS:
            yield CounterMetricFamily(f"hitbox_{name}", f"Total {name} since start", found[name])
        for name, says in GAUGES.items():
            yield GaugeMetricFamily(f"hitbox_{name}", says, float(found[name]))
        watch = self.broker.statistics
        closed = CounterMetricFamily(
            "hitbox_connections_refused", "Connections refused or closed because of a limit", labels=["reason"]
        )
        for reason in REASONS:
            closed.add_metric([reason], watch.closed[reason])
        yield closed
        latency = GaugeMetricFamily(
            "hitbox_latency_ms",
            "Milliseconds from accepted to sent, over the latest live deliveries",
            labels=["quantile"],
        )
        for quantile in (0.5, 0.99):
            latency.add_metric([str(quantile)], watch.percentile(quantile))
        yield latency
        lag = GaugeMetricFamily("hitbox_subscriber_pending", "Deliveries not acknowledged yet", labels=["subscriber"])
        shown = [mailbox for mailbox in self.broker.mailboxes.values() if self.shows(mailbox.subscriber)]
        busiest = sorted(shown, key=lambda mailbox: -mailbox.pending)[:MOST_SUBSCRIBERS]
        for mailbox in busiest:
            lag.add_metric([mailbox.subscriber.name], mailbox.pending)
        yield lag


def exposition(broker: Broker, shows: Callable[[Subscriber], bool]) -> bytes:
    """The metrics, with the names of those subscribers that `shows` allows."""
    registry = CollectorRegistry()
    registry.register(_BrokerCollector(broker, shows))
    return generate_latest(registry)
