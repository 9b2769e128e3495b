"""Values on their way through the broker: intervals by name, nothing that JSON would change silently."""

from __future__ import annotations

import asyncio
import io
import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from datetime import time as clock_time
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pyarrow as pa
import pytest

from hitbox import Attribute, Client, Schema
from hitbox.client import Refused
from hitbox.errors import HitboxError, ValueProblem
from support.broker_kit import running, serving, sub

SCHEMA = Schema(
    {
        "price": "float",
        "qty": "int",
        "city": "string",
        "at": "timestamp",
        "age": Attribute("int", role="information"),
    }
)
ARROW = {"content-type": "application/vnd.apache.arrow.stream"}


def stream(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


async def events(http: httpx.AsyncClient) -> list[Any]:
    return [e["event"] for e in (await http.get("/v1/events", params={"first": 1})).json()["events"]]


def test_an_interval_has_names_in_json(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, SCHEMA) as (_, url), httpx.AsyncClient(base_url=url) as http:
            for event in ({"qty": [1, 3]}, {"city": ["a", "z"]}, {"qty": {"low": 1}}, {"qty": {"low": 3, "high": 1}}):
                answer = await http.post("/v1/events", json={"event": event})
                assert answer.status_code == 400, event
                assert "low" in answer.json()["error"]["message"]
            path = "/v1/subscribers/ann/subscriptions/cheap"
            listed = {"where": "qty > 2", "about": {"age": [1, 3]}}
            assert (await http.put(path, json=listed)).status_code == 400
            named = {"where": "qty > 2", "about": {"age": {"low": 1, "high": 3}}}
            assert (await http.put(path, json=named)).status_code < 300
            event = {"qty": {"low": 1, "high": 3}}
            assert (await http.post("/v1/events", json={"event": event, "where": "age = 2"})).status_code == 201
            tried = (
                await http.post("/v1/explain", json={"id": "ann/cheap", "event": event, "where": "age = 9"})
            ).json()
            assert tried["event"]["tree"]["value"] == {"low": 1, "high": 3}
            assert await events(http) == [event]
            async with Client(url) as client:
                await client.publish({"qty": (2, 3), "price": Decimal("0.1"), "at": np.datetime64("2026-01-31")})
                with pytest.raises(Refused, match="tuple"):
                    await client.publish({"qty": [2, 3]})
                with pytest.raises(ValueProblem, match="infinity"):
                    await client.publish({"price": math.inf})
            last = (await events(http))[-1]
            assert last == {"qty": {"low": 2, "high": 3}, "price": 0.1, "at": "2026-01-31T00:00:00Z"}

    asyncio.run(scenario())


def test_a_table_is_stored_as_what_was_matched(tmp_path: Path) -> None:
    """Decimals would become texts in JSON, which match nothing when they are read back."""
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    table = pa.table(
        {
            "price": [Decimal("0.1"), Decimal("3.0")],
            "qty": [{"low": 1, "high": 2}, None],
            "at": pa.array([noon, None], pa.timestamp("ns", "Europe/Paris")),
        }
    )

    async def scenario() -> None:
        async with serving(tmp_path, SCHEMA) as (broker, url), httpx.AsyncClient(base_url=url) as http:
            assert (await http.post("/v1/events", content=stream(table), headers=ARROW)).status_code == 201
            first, second = await events(http)
            assert datetime.fromisoformat(first.pop("at")) == noon
            assert (first, second) == ({"price": 0.1, "qty": {"low": 1, "high": 2}}, {"price": 3})
            fine = pa.table({"at": pa.array([1], pa.timestamp("ns"))})
            far = pa.table({"at": pa.array([2**62], pa.timestamp("us"))})
            for bad in (fine, far, pa.table({"qty": [[1, 2]]}), pa.table({"price": [math.inf]})):
                assert (await http.post("/v1/events", content=stream(bad), headers=ARROW)).status_code == 400
        async with running(tmp_path, SCHEMA) as broker:
            for event in await asyncio.to_thread(broker.store.reader.read, "SELECT body FROM events", ()):
                broker.registry.event_checker.match(msgspec.json.decode(event[0])["event"])

    asyncio.run(scenario())


def test_unsound_texts_and_names(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, SCHEMA) as (broker, url), httpx.AsyncClient(base_url=url) as http:
            json_type = {"content-type": "application/json"}
            for raw in (rb'{"event": {"city": "a\u0000"}}', rb'{"event": {"city": "\ud800"}}'):
                assert (await http.post("/v1/events", content=raw, headers=json_type)).status_code == 400
            for name in ("a\0", "a\ud800"):
                with pytest.raises(HitboxError):
                    await broker.subscribe(name, [sub("s", "qty > 1")])
                with pytest.raises(HitboxError):
                    await broker.subscribe("ann", [sub(name, "qty > 1")])
            assert "ann" not in broker.registry.by_name
            assert await events(http) == []

    asyncio.run(scenario())


@dataclass
class Sale:
    city: Enum
    qty: Decimal


def test_a_client_publishes_objects_and_tables(tmp_path: Path) -> None:
    colour = Enum("City", {"ROME": "Rome"})

    async def scenario() -> None:
        async with serving(tmp_path, SCHEMA) as (_, url), httpx.AsyncClient(base_url=url) as http:
            async with Client(url) as client:
                await client.publish(Sale(colour["ROME"], Decimal(3)))
                await client.publish_many(pa.table({"city": ["Oslo", None], "qty": [1, 2]}))
                await client.publish_many([Sale(colour["ROME"], Decimal(4)), {"qty": np.int8(5)}])
            rows = [(event.get("city"), event.get("qty")) for event in await events(http)]
            assert rows == [("Rome", 3), ("Oslo", 1), (None, 2), ("Rome", 4), (None, 5)]

    asyncio.run(scenario())


def test_a_client_sends_no_value_as_another_one(tmp_path: Path) -> None:
    """Bytes became base64, and times became texts; subscriptions then compared with these."""
    loop: list[Any] = []
    loop.append(loop)
    cases = [
        ({"city": one}, "which JSON cannot hold")
        for one in (b"Rome", bytearray(b"x"), memoryview(b"x"), timedelta(1), clock_time(1, 2), np.timedelta64(1, "s"))
    ]

    async def scenario() -> None:
        async with serving(tmp_path, SCHEMA) as (broker, url), Client(url) as client:
            for event, told in [*cases, ({"city": loop}, "nested more than 200 deep"), ({"city": [b"x"]}, "a bytes")]:
                with pytest.raises(ValueProblem, match=told):
                    await client.publish(event)
            await client.publish({"qty": np.array(3), "price": np.longdouble(1.5)})
            assert [row[-1] for row in broker.store.events.from_number(1, 10)] == [b'{"event":{"qty":3,"price":1.5}}']

    asyncio.run(scenario())
