"""Payloads: delivered with an event as they were published, and not matched."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import numpy as np
import pytest
from msgspec import Raw
from typer.testing import CliRunner
from websockets.asyncio.client import connect

import hitbox
from hitbox.broker.commands import cli
from hitbox.broker.events.json_text import decode
from hitbox.broker.events.published_event import PublishedEvent
from hitbox.client import Client, Delivery
from hitbox.protocol.errors import BadRequest, BrokerError
from support.broker_kit import running, serving, until

ID = UUID("12345678-1234-5678-1234-567812345678")
DEEP = 5_000


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 120))


async def take(subscriber: Any, count: int) -> list[Delivery]:
    found: list[Delivery] = []
    async for delivery in subscriber:
        found.append(delivery)
        await subscriber.ack(delivery)
        if len(found) == count:
            break
    return found


class Colour(Enum):
    RED = "red"


@dataclass
class Part:
    name: str
    weight: Decimal


PAYLOADS: list[tuple[Any, Any]] = [
    ({"a": [1, 2.5, None, True, "ü"], "b": {}}, {"a": [1, 2.5, None, True, "ü"], "b": {}}),
    ("a text", "a text"),
    ('\0 \x1f \u2028 \\ " </script>', '\0 \x1f \u2028 \\ " </script>'),
    (0, 0),
    (False, False),
    ([], []),
    ("", ""),
    (2**70, 2**70),
    ((1, 2), [1, 2]),
    (Part("bolt", Decimal("0.5")), {"name": "bolt", "weight": 0.5}),
    (
        {"id": ID, "colour": Colour.RED, "n": np.int32(7), "x": np.float64(0.5), "d": Decimal(3), "s": {9}},
        {"id": str(ID), "colour": "red", "n": 7, "x": 0.5, "d": 3, "s": [9]},
    ),
    (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
    ([datetime(2026, 1, 2, tzinfo=UTC), date(2026, 1, 2)], ["2026-01-02T00:00:00+00:00", "2026-01-02"]),
    (np.datetime64("2026-01-02T03:04"), "2026-01-02T03:04:00+00:00"),
    (b"\x00\xff binary", b"\x00\xff binary"),
    (bytearray(b""), b""),
]


def test_a_payload_comes_back_as_it_was(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (_, url), Client(url) as client, client.subscriber("ann") as ann:
            await ann.subscribe("all", "qty >= 0")
            for payload, _ in PAYLOADS:
                await client.publish({"qty": 1}, payload=payload)
            await client.publish({"qty": 1}, payload=b"<p>", content_type="text/html; charset=utf-8")
            await client.publish({"qty": 2})
            got = await take(ann, len(PAYLOADS) + 2)
            assert [d.payload for d in got[:-2]] == [expected for _, expected in PAYLOADS]
            assert {d.content_type for d in got[: len(PAYLOADS)]} == {None, "application/octet-stream"}
            assert (got[-2].payload, got[-2].content_type) == (b"<p>", "text/html; charset=utf-8")
            assert (got[-1].payload, got[-1].content_type) == (None, None)

    run(scenario())


def test_many_payloads_in_one_publish(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (_, url), Client(url) as client, client.subscriber("ann") as ann:
            await ann.subscribe("all", "qty >= 0")
            await client.publish_many(
                [{"qty": 1}, {"qty": 2}, {"qty": 3}],
                payloads=["one", b"two", None],
                content_types=[None, "image/png", None],
            )
            got = [(d.event["qty"], d.payload, d.content_type) for d in await take(ann, 3)]
            assert got == [(1, "one", None), (2, b"two", "image/png"), (3, None, None)]
            with pytest.raises(BadRequest, match="payloads has 1 entries for 2 events"):
                await client.publish_many([{"qty": 1}] * 2, payloads=["one"])

    run(scenario())


def test_payloads_survive_a_restart_replay_and_dead_letters(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (_, url), Client(url) as client:
            options = {"max_tries": 1, "auto": False}
            async with client.subscriber("ann", **options) as ann:
                await ann.subscribe("all", "qty >= 0")
                await client.publish({"qty": 1}, payload=b"bytes", content_type="image/png")
                async for delivery in ann:
                    await ann.nack(delivery)
                    break
            body: dict[str, Any] = {"letters": []}
            while not body["letters"]:
                body = await client.request("GET", "/v1/dead")
            (letter,) = body["letters"]
            assert (base64.b64decode(letter["payload"]), letter["content_type"]) == (b"bytes", "image/png")
        async with serving(tmp_path) as (broker, url), Client(url) as client:
            await client.request("POST", "/v1/dead/replay", {"numbers": [letter["number"]]})
            async with client.subscriber("ann") as ann:
                assert [d.payload for d in await take(ann, 1)] == [b"bytes"]
                await until(lambda: broker.describe()["pending"] == 0)
                await client.request("POST", "/v1/subscribers/ann/replay", {"first": 1})
                assert [d.payload for d in await take(ann, 1)] == [b"bytes"]
            (stored,) = (await client.request("GET", "/v1/events"))["events"]
            assert stored["content_type"] == "image/png"

    run(scenario())


def test_http_and_sockets_carry_payloads(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            serving(tmp_path) as (_, url),
            httpx.AsyncClient(base_url=url) as http,
            connect(url.replace("http", "ws") + "/v1/connect", subprotocols=["hitbox.json.2"]) as socket,  # type: ignore[list-item]
        ):
            put = [{"name": "all", "where": "qty > 0"}]
            await socket.send(json.dumps({"type": "hello", "subscriber": "ann", "put": put}))
            assert json.loads(await socket.recv())["type"] == "welcome"
            item = {"event": {"qty": 1}, "payload": {"deep": [1]}}
            line = json.dumps(item) + "\n" + json.dumps({**item, "payload": "aGk=", "content_type": "text/plain"})
            sent = await http.post("/v1/events", content=line, headers={"content-type": "application/x-ndjson"})
            assert sent.status_code == 201
            await socket.send(json.dumps({"type": "publish", "request": 5, "items": [item]}))
            got: list[Any] = []
            while len(got) < 3:
                got += json.loads(await socket.recv()).get("deliveries", [])
            assert [d["payload"] for d in got] == [{"deep": [1]}, "aGk=", {"deep": [1]}]
            assert [d.get("content_type") for d in got] == [None, "text/plain", None]

    run(scenario())


def test_the_live_list_shows_the_beginning(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), Client(url) as client:
            await client.publish({"qty": 1}, payload="x" * 1000)
            await client.publish({"qty": 2}, payload=b"12345", content_type="image/png")
            await client.publish({"qty": 3})
            await until(broker.caught_up)
            async with httpx.AsyncClient(base_url=url) as http, http.stream("GET", "/v1/live") as live:
                async for line in live.aiter_lines():
                    if line.startswith("data: "):
                        break
            events = json.loads(line.removeprefix("data: "))["events"]
            assert [len(one.get("payload", "")) for one in events] == [200, 20, 0]
            assert events[1]["payload"] == "5 bytes of image/png"
            assert all("body" not in one for one in events)

    run(scenario())


BAD_ITEMS = [
    (b'{"event":{},"payload":NaN}', "JSON has no NaN"),
    (b'{"event":{},"payload":[1,-Infinity]}', "JSON has no -Infinity"),
    (b'{"event":{},"payload":1e999}', "out of range"),
    (b'{"event":{},"payload":"\\ud800"}', "lone surrogate"),
    (b'{"event":{},"payload":"\\udc00 x"}', "lone surrogate"),
    (b'{"event":{},"payload":"\xff"}', "utf-8"),
    (b'{"event":{},"payload":' + b"[" * DEEP + b"]" * DEEP + b"}", "nested too deep"),
    (b'{"event":{},"payload":' + b"[" * 300 + b"]" * 300 + b"}", "nested more than 200 deep"),
    (b'{"event":{},"payload":"aGk","content_type":"text/plain"}', "not base64"),
    (b'{"event":{},"payload":"aG\xc3\xbc=","content_type":"text/plain"}', "not base64"),
    (b'{"event":{},"payload":{"a":1},"content_type":"text/plain"}', "is bytes, as a text in base64"),
    (b'{"event":{},"content_type":"text/plain"}', "is bytes, as a text in base64"),
    (b'{"event":{},"payload":"aGk=","content_type":"text"}', "no content type"),
    (b'{"event":{},"payload":"aGk=","content_type":"a/b\\r\\nx: y"}', "no content type"),
    (
        b'{"event":{},"payload":"aGk=","content_type":7}',
        "expected a text or null, not a whole number",
    ),
    (b'{"event":{},"payload":"' + b"x" * 70_000 + b'"}', "bytes with its payload; the most is 65536"),
]


def test_bad_payloads_are_refused_and_nothing_is_stored(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), httpx.AsyncClient(base_url=url) as http:
            for body, message in BAD_ITEMS:
                found = await http.post("/v1/events", content=body, headers={"content-type": "application/json"})
                assert found.status_code in (400, 413), body[:80]
                assert message in found.json()["error"]["message"], (body[:80], found.text)
            assert broker.store.events.table.next() == 1

    run(scenario())


class Unprintable:
    """No JSON."""


LOOP: list[Any] = []
LOOP.append(LOOP)
BAD_PAYLOADS: list[tuple[Any, str | None, str]] = [
    (float("nan"), None, "payload is nan, which JSON does not have"),
    ({"a": [1, float("inf")]}, None, r"payload.a\[1\] is inf"),
    ({"a": np.float32("nan")}, None, "payload.a is nan"),
    (Decimal("NaN"), None, "payload is NaN"),
    (Decimal("1e400"), None, "too large"),
    ("\ud800", None, "lone surrogate"),
    ({"a": b"x"}, None, "payload.a is bytes"),
    ({1: 2}, None, "has the key 1"),
    (LOOP, None, "contains itself"),
    ({"a": Unprintable()}, None, "a Unprintable, which JSON cannot hold"),
    ("text", "text/plain", "belongs to a payload of bytes"),
    (None, "text/plain", "belongs to a payload of bytes"),
    (b"x", "no type", "no content type"),
]


def test_the_client_names_what_cannot_be_sent(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), Client(url) as client:
            for payload, kind, message in BAD_PAYLOADS:
                with pytest.raises(BadRequest, match=message):
                    await client.publish({"qty": 1}, payload=payload, content_type=kind)
            with pytest.raises(BrokerError, match="with its payload"):
                await client.publish({"qty": 1}, payload=b"x" * 60_000)
            assert broker.store.events.table.next() == 1

    run(scenario())


def test_a_broker_in_the_same_process_checks_numbers_too(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            with pytest.raises(BadRequest, match="the payload is invalid: JSON has no NaN"):
                await broker.publish([PublishedEvent({"qty": 1}, payload=Raw(b'{"x": NaN}'))])

    run(scenario())


def test_a_surrogate_pair_is_no_lone_surrogate() -> None:
    with pytest.raises(BadRequest) as caught:
        decode(b'{"event": {}, "payload": "\\ud83d\\ude00", }', PublishedEvent)
    assert "surrogate" not in str(caught.value)
    assert decode(b'{"event": {}, "payload": "\\ud83d\\ude00"}', PublishedEvent).shown_payload() == '"\\ud83d\\ude00"'


def test_the_example_of_the_documentation(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "broker.md").read_text()
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "publish_a_picture" in block]
    names: dict[str, Any] = {"hitbox": hitbox}
    exec(code, names)

    async def scenario() -> None:
        async with serving(tmp_path) as (_, url), Client(url) as client, client.subscriber("ann") as ann:
            await ann.subscribe("cheap", "price < 20")
            await names["publish_a_picture"](client, b"a picture")
            got = await take(ann, 2)
            assert [d.payload for d in got] == [{"seller": "ann", "tags": ["new"]}, b"a picture"]
            assert got[1].content_type == "image/png"

    run(scenario())


def test_the_command(tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    picture.write_bytes(b"\x00picture")
    runner = CliRunner()

    def publish(*more: str) -> Any:
        return runner.invoke(cli.app, ["publish", '{"qty": 1}', *more], env={"HITBOX_URL": url})

    def steps() -> None:
        assert publish("--payload", '{"a": [1]}').exit_code == 0
        assert publish("--payload-file", str(picture), "--content-type", "image/png").exit_code == 0
        for wrong, message in (
            (("--payload", "{"), "not JSON"),
            (("--payload", "1", "--payload-file", str(picture)), "there is one payload"),
            (("--payload-file", str(tmp_path / "none")), "No such file"),
            (("--payload", "1", "--content-type", "a/b"), "belongs to a payload of bytes"),
        ):
            found = publish(*wrong)
            assert found.exit_code != 0
            assert message in " ".join(found.output.replace("│", " ").split())

    async def scenario() -> None:
        nonlocal url
        async with serving(tmp_path / "broker") as (_, url), Client(url) as client:
            await asyncio.to_thread(steps)
            found = [(one["payload"], one.get("content_type")) for one in (await client.events())["events"]]
            assert found == [({"a": [1]}, None), ("AHBpY3R1cmU=", "image/png")]

    url = ""
    run(scenario())
