"""/metrics: histograms, sizes, refusals, and a bounded number of series."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from hitbox.broker import metrics
from hitbox.broker.broker import Broker
from hitbox.broker.stats import Histogram
from support.broker_kit import Listener, item, running, serving, sub, until


def samples(text: str) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in one.labels.items())
            found[f"{one.name}{{{labels}}}" if labels else one.name] = one.value
    return found


def exposed(broker: Broker) -> dict[str, float]:
    return samples(metrics.exposition(broker, lambda one: True, True).decode())


def test_histogram() -> None:
    histogram = Histogram()
    histogram.observe(0.001, 3)
    histogram.observe(0.0011)
    histogram.observe(0.0)
    histogram.observe(1e9, 2)
    found = dict(histogram.buckets())
    assert (found["1e-05"], found["0.0005"], found["0.001"], found["0.0025"], found["500.0"]) == (1, 1, 4, 5, 5)
    assert found["+Inf"] == 7
    assert histogram.sum == pytest.approx(0.0041 + 2e9)


def test_the_way_of_a_delivery_is_observed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            await broker.subscribe("bob", [sub("s", "qty > 2")])
            ann = await Listener(broker).attach("ann")
            await broker.publish([item(qty=n) for n in range(5)])
            await broker.publish([item(qty=9)])
            await until(lambda: len(ann.got) == 5 and not ann.mailbox.pending)
            await until(broker.caught_up)
            found = exposed(broker)
            for name, count in (
                ("publish_to_commit", 6),
                ("match_time", 6),
                ("commit_to_sent", 5),
                ("sent_to_acked", 5),
            ):
                assert found[f"hitbox_{name}_seconds_count"] == count
                assert found[f"hitbox_{name}_seconds_bucket{{le=+Inf}}"] == count
                assert 0 < found[f"hitbox_{name}_seconds_sum"] < 60 * count
            assert found["hitbox_subscriber_pending{subscriber=bob}"] == 3
            bob = await Listener(broker).attach("bob")  # from the spool: not live, but acknowledged
            await until(lambda: len(bob.got) == 3 and not bob.mailbox.pending)
            found = exposed(broker)
            assert found["hitbox_commit_to_sent_seconds_count"] == 5
            assert found["hitbox_sent_to_acked_seconds_count"] == 8

    asyncio.run(scenario())


def test_rates_and_totals_have_names_of_their_own(tmp_path: Path) -> None:
    """The page gets both in one message."""

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), httpx.AsyncClient(base_url=url) as http:
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            ann = await Listener(broker).attach("ann")
            await broker.publish([item(qty=1)] * 3)
            await until(lambda: broker.statistics.counts["acked"] == 3)
            rates = broker.statistics.tick()
            assert rates.keys() & broker.describe().keys() == {"pending"}  # which is one figure
            assert min(rates[f"{name}_per_second"] for name in ("published", "delivered", "acked")) >= 0
            broker.statistics.tick()
            async with http.stream("GET", "/v1/live") as answer:
                lines = answer.aiter_lines()
                live = json.loads((await anext(lines)).removeprefix("data: "))["stats"]
            stats = (await http.get("/v1/stats")).json()
            for name in ("published", "delivered", "acked"):
                assert live[name] == stats[name] == 3
                assert live[f"{name}_per_second"] == stats["history"][-1][f"{name}_per_second"] == 0
            await ann.leave()

    asyncio.run(scenario())


def test_sizes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.publish([item(city="x" * 1000)] * 100)
            found = exposed(broker)
            assert found["hitbox_store_database_bytes"] == (tmp_path / "hitbox.db").stat().st_size > 0
            assert found["hitbox_store_log_bytes"] > 100_000
            assert found["hitbox_store_reserve_bytes"] == (tmp_path / "reserve").stat().st_size
            assert found["hitbox_disk_free_bytes"] > 0

    asyncio.run(scenario())


def test_only_the_subscribers_that_lag_most_have_a_series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MOST_SUBSCRIBERS", 2)

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            for n in range(4):
                await broker.subscribe(f"s{n}", [sub("s", f"qty > {n}")])
            await broker.publish([item(qty=n) for n in range(5)])
            await until(broker.caught_up)
            found = {name: value for name, value in exposed(broker).items() if "subscriber=" in name}
            assert len(found) == 6
            found = {name: value for name, value in found.items() if "_pending{" in name}
            assert found == {
                "hitbox_subscriber_pending{subscriber=s0}": 4,
                "hitbox_subscriber_pending{subscriber=s1}": 3,
            }

    asyncio.run(scenario())


def test_refusals_are_counted_by_reason(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, max_event_bytes=100, request_seconds=0.2) as (broker, url):
            async with httpx.AsyncClient(base_url=url) as http:
                await http.get("/v1/stats", headers={"host": "evil.example"})
                await http.post("/v1/events", json={"event": {"city": "x" * 200}})
                await http.post("/v1/events", json={"event": {"nothing": 1}})  # invalid, not refused
                broker.closing = True
                await http.post("/v1/events", json={"event": {"qty": 1}})
                broker.closing = False
            reader, writer = await asyncio.open_connection(*url.removeprefix("http://").split(":"))
            writer.write(b"GET / HT")
            assert b"408" in await reader.read()
            writer.close()
            found = exposed(broker)
            name = "hitbox_refused_requests_total{{reason={}}}"
            counts = {reason: found[name.format(reason)] for reason in broker.statistics.refusals}
            assert counts == {
                "invalid": 1, "conflict": 0, "token": 0, "forbidden": 1, "late": 1, "size": 1, "busy": 0,
                "unavailable": 1, "full": 0,
            }  # fmt: skip

    asyncio.run(scenario())
