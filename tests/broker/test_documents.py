"""Documents on the broker, through a real socket: nested events, the whole language, explanations, typos."""

from __future__ import annotations

import asyncio
import io
import json
import math
import random
import time
import warnings
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from hitbox import Client, Index, Schema
from hitbox.broker.commands.cli import app
from hitbox.client import Refused
from hitbox.errors import HitboxWarning
from support.broker_kit import serving
from support.random_documents import SCHEMA as DOCUMENTS
from support.random_documents import TYPES, Writer, meaning, nested, random_image
from support.second_evaluator import Unsure, World, parse, truth
from support.served import served

SHOP: dict[str, Any] = {
    "order": {"city": "string", "price": "float"},
    "name": "string",
    "tags": "string[]",
    "items": [{"sku": "string", "price": "float"}],
    "ip": "string",
    "lat": "float",
    "lon": "float",
    "at": "timestamp",
}
WANTED = {
    "city": "order.city = 'Paris' AND ANY(tags) = 'new'",
    "cheap": "EXISTS(items WHERE sku = 'A' AND price < 10)",
    "text": "name ILIKE '%smith%' AND name NOT LIKE 'x%y'",
    "expression": "name REGEXP '^[A-Z]o' AND LENGTH(tags) > 1",
    "network": "ip IN NETWORK '10.0.0.0/8'",
    "circle": "DISTANCE(lat, lon, 48.85, 2.35) <= 5000",
    "area": "INSIDE(lat, lon, 'POLYGON ((2 48, 3 48, 3 49, 2 49, 2 48))')",
    "hour": "HOUR(at, 'Europe/Paris') = 13 AND at < NOW()",
    "fall": "OLD.order.price > NEW.order.price",
    "absent": "lat IS MISSING XOR order.price > 20",
}
EVENTS: list[dict[str, Any]] = [
    {"order": {"city": "Paris", "price": 12.5}, "tags": ["new", "red"], "name": "Bob Smith"},
    {"items": [{"sku": "A", "price": 12}, {"sku": "A", "price": 9}], "ip": "10.1.2.3", "lat": 48.86, "lon": 2.34},
    {"old": {"order": {"price": 30}}, "new": {"order": {"price": 20}, "at": "2026-01-31T12:00:00Z"}},
    {"order": None, "tags": [], "items": [None], "name": "xy"},
]


def test_nested_events_over_a_socket(tmp_path: Path) -> None:
    index = Index(SHOP)
    for name, where in WANTED.items():
        index.subscribe(name, where)
    right = [sorted(map(str, index.match(event))) for event in EVENTS]
    assert all(right[:3])

    async def scenario() -> None:
        async with serving(tmp_path, Schema(SHOP)) as (_, url), Client(url) as client:
            subscriptions = [{"name": name, "where": where} for name, where in WANTED.items()]
            await client.request("POST", "/v1/subscribers/ann/subscriptions", subscriptions)
            assert await client.publish_many(EVENTS) == 1
            async with client.subscriber("ann") as ann:
                got: dict[int, list[str]] = {}
                async with asyncio.timeout(20):
                    async for delivery in ann:
                        got[delivery.seq] = sorted(delivery.subscriptions)
                        await ann.ack(delivery)
                        if len(got) == sum(map(bool, right)):
                            break
            assert got == {seq: ids for seq, ids in enumerate(right, 1) if ids}
            for event, ids in zip(EVENTS, right, strict=True):
                tried = await client.request("POST", "/v1/try", {"event": event, "misses": 3})
                assert sorted(one["name"] for one in tried["matches"]) == ids
                assert len(tried["misses"]) == min(3, len(WANTED) - len(ids))
                for name in WANTED:
                    why = await client.request("POST", "/v1/explain", {"event": event, "id": f"ann/{name}"})
                    assert why["matched"] == (name in ids)
                    assert name == "hour" or why["text"] == str(index.explain(event, name))  # NOW() goes on
            why = await client.request("POST", "/v1/explain", {"event": EVENTS[0], "id": "ann/cheap"})
            assert "items is missing" in why["text"]

    asyncio.run(scenario())


def test_a_table_of_documents(tmp_path: Path) -> None:
    """Objects and lists in an Arrow stream; what is nested too deeply is refused."""
    rows = [
        {"order": {"city": "Rome", "price": 1.5}, "tags": ["a", None], "items": [{"sku": "A", "price": 2.0}]},
        {"order": None, "tags": None, "items": []},
    ]
    deep: Any = 1
    for _ in range(20):
        deep = [deep]

    def stream(table: pa.Table) -> bytes:
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return sink.getvalue()

    async def scenario() -> None:
        async with serving(tmp_path, Schema(SHOP)) as (_, url), httpx.AsyncClient(base_url=url) as http:
            headers = {"content-type": "application/vnd.apache.arrow.stream"}
            table = pa.Table.from_pylist(rows)
            assert (await http.post("/v1/events", content=stream(table), headers=headers)).status_code == 201
            stored = (await http.get("/v1/events")).json()["events"]
            assert [one["event"] for one in stored] == [rows[0], {"items": []}]
            bad = await http.post("/v1/events", content=stream(pa.table({"tags": [deep]})), headers=headers)
            assert bad.status_code == 400

    asyncio.run(scenario())


def test_attributes_that_no_recent_event_had(tmp_path: Path) -> None:
    schema = json.dumps({**SHOP, "colour": "string", "labels": "string[]"})
    (tmp_path / "schema.json").write_text(schema)
    run = CliRunner().invoke
    with served(tmp_path / "data", "--schema", str(tmp_path / "schema.json")) as url, Client.sync(url) as client:
        none = run(app, ["admin", "unseen", "--url", url])
        assert none.stdout == "all attributes of the subscriptions were in the latest 0 events\n"
        wanted = {"a": "colour = 'red'", "b": "ANY(labels) = 'x'", "c": "LOWER(colour) = 'x' OR name LIKE '%a_b%'"}
        for name, where in {**WANTED, **wanted}.items():
            client.request("PUT", f"/v1/subscribers/ann/subscriptions/{name}", {"where": where})
        client.publish_many(EVENTS)
        found = client.request("GET", "/v1/unseen")
        assert found["events"] == len(EVENTS)
        assert found["attributes"] == [
            {"attribute": "colour", "subscriptions": 2, "ids": ["ann/a", "ann/c"]},
            {"attribute": "labels", "subscriptions": 1, "ids": ["ann/b"]},
        ]
        text = run(app, ["admin", "unseen", "--url", url]).stdout
        assert "colour: 2 subscriptions (ann/a, ann/c)" in text
        client.publish({"colour": "red", "labels": []})
        assert client.request("GET", "/v1/unseen")["attributes"] == []
        assert len(client.request("GET", "/v1/unseen", events=1)["attributes"]) > 3
        assert "the latest 1 event\n" in run(app, ["admin", "unseen", "--url", url, "--events", "1"]).stdout
        with pytest.raises(Exception, match="events"):
            client.request("GET", "/v1/unseen", events=0)


def without_infinities(value: Any) -> Any:
    """JSON has none."""
    if isinstance(value, dict):
        return {name: without_infinities(one) for name, one in value.items()}
    if isinstance(value, list):
        return [without_infinities(one) for one in value]
    return None if value in (math.inf, -math.inf) else value


async def deliveries(client: Client, events: int, first: int) -> dict[int, set[str]]:
    """What the subscriber gets of these events; one more subscription wants every event, so none is missed."""
    got: dict[int, set[str]] = {}
    async with client.subscriber("ann") as ann, asyncio.timeout(60):
        async for delivery in ann:
            got[delivery.seq - first] = set(delivery.subscriptions) - {"all"}
            await ann.ack(delivery)
            if len(got) == events:
                break
    return got


def test_random_documents_through_changes_and_a_restart(tmp_path: Path) -> None:
    """Subscribe, publish, replace and remove, publish, restart, publish: as the second evaluator says."""
    rng = random.Random(11)
    writer = Writer(rng)
    texts: dict[str, str] = {}
    checked = 0

    async def subscribe(client: Client, names: list[str]) -> None:
        for name in names:
            for _ in range(20):
                where = writer.predicate(rng.randint(0, 2))
                try:
                    await client.request(
                        "POST",
                        "/v1/subscribers/ann/subscriptions",
                        [{"name": name, "where": where, "priority": rng.randint(0, 9)}],
                    )
                except Refused:
                    continue
                texts[name] = where
                break

    async def publish(client: Client) -> None:
        nonlocal checked
        images = []
        for _ in range(20):
            old = random_image(rng) if rng.random() < 0.4 else None
            images.append((without_infinities(random_image(rng)), without_infinities(old)))
        events = []
        for new, old in images:
            event = nested(rng, new)
            events.append(event if old is None else {"new": event, "old": nested(rng, old)})
        first = await client.publish_many(events)
        got = await deliveries(client, len(events), first)
        for number, (new, old) in enumerate(images):
            world = World(meaning(new) or {}, meaning(old), time.time_ns() // 1000)
            for name, where in texts.items():
                try:
                    wanted = truth(parse(where, TYPES), TYPES, world) is True
                except Unsure:
                    continue
                assert (name in got[number]) == wanted, f"{where!r} of {new!r}, old {old!r}"
                checked += 1

    async def scenario() -> None:
        async with serving(tmp_path, Schema(DOCUMENTS)) as (_, url), Client(url) as client:
            await client.request("POST", "/v1/subscribers/ann/subscriptions", [{"name": "all", "where": "TRUE"}])
            await subscribe(client, [f"s{n}" for n in range(80)])
            await publish(client)
            await subscribe(client, rng.sample(sorted(texts), 30))
            for name in rng.sample(sorted(texts), 20):
                await client.request("DELETE", f"/v1/subscribers/ann/subscriptions/{name}")
                del texts[name]
            await publish(client)
        async with serving(tmp_path, None) as (_, url), Client(url) as client:
            await publish(client)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HitboxWarning)
        asyncio.run(scenario())
    assert checked > 3000


def test_a_list_of_two_is_no_interval(tmp_path: Path) -> None:
    """Older stores hold an interval as a list of two; a list of two that is read again is still a list."""

    async def scenario() -> None:
        async with serving(tmp_path, Schema({"tags": "string[]", "qty": "int"})) as (_, url), Client(url) as client:
            await client.publish({"tags": ["x", "y"], "qty": {"low": 1, "high": 3}})
            await client.request("PUT", "/v1/subscribers/ann/subscriptions/s", {"where": "ANY(tags) = 'y' AND qty > 2"})
            assert await client.request("POST", "/v1/subscribers/ann/replay", {"first": 1}) == {"count": 1}

    asyncio.run(scenario())
