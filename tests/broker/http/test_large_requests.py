"""Large requests: refused by their size before they are decoded, and decoded and checked beside the event loop."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect

from hitbox.broker.events import json_text
from hitbox.broker.events.json_text import decode, decode_list
from hitbox.broker.events.published_event import PublishedEvent
from hitbox.client import Client
from hitbox.protocol.errors import BadRequest, TooLarge
from support.broker_kit import serving

JSON = {"content-type": "application/json"}
LISTS = b"[]," * 500_000
"""As JSON 1.5 MB, in memory 40 MB."""


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 120))


def socket(url: str, path: str) -> connect:
    return connect(url.replace("http", "ws") + path, max_size=None)


async def asked(socket: ClientConnection, message: bytes) -> Any:
    await socket.send(message, text=True)
    return json.loads(await socket.recv())


async def hello(socket: ClientConnection) -> None:
    assert (await asked(socket, b'{"type":"hello","subscriber":"ann"}'))["type"] == "welcome"


def test_an_event_that_is_too_large_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    """What follows the limit is no JSON, and nobody notices."""
    event = b'{"event":{"qty":1},"payload":[' + LISTS + b"?"
    binary = {f"ce-{name}": name for name in ("id", "source", "type")} | {"ce-specversion": "1.0", **JSON}
    refused = [
        (event, JSON),
        (b"[" + event + b"]", JSON),
        (event + b"\n", {"content-type": "application/x-ndjson"}),
        (event, {"content-type": "application/cloudevents+json"}),
        (b"[" + event + b"]", {"content-type": "application/cloudevents-batch+json"}),
        (event, binary),
    ]

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), httpx.AsyncClient(base_url=url) as http:
            for body, headers in refused:
                found = await http.post("/v1/events", content=body, headers=headers)
                assert found.status_code == 413, (headers, found.text)
                assert "the most is 262144" in found.json()["error"]["message"]
            assert broker.store.events.table.next() == 1

    run(scenario())


def test_a_payload_that_is_too_large_is_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a WebSocket too, whose connection stays open."""
    decoded: list[int] = []
    normalized = json_text.normalized
    monkeypatch.setattr(
        "hitbox.broker.events.published_event.normalized",
        lambda text, what: decoded.append(len(text)) or normalized(text, what),  # type: ignore[func-returns-value]
    )

    async def scenario() -> None:
        async with serving(tmp_path) as (_, url):
            for path in ("/v1/connect", "/v1/publish"):
                async with socket(url, path) as line:
                    if path == "/v1/connect":
                        await hello(line)
                    for lists in (LISTS[:900_000], LISTS):
                        message = b'{"type":"publish","request":7,"items":[{"event":{},"payload":[%b[]]}]}' % lists
                        answer = await asked(line, message)
                        assert (answer["type"], answer["request"]) == ("error", 7)
                        assert answer["error"]["type"] == "TooLarge"
                    answer = await asked(line, b'{"type":"publish","items":[{"event":{"qty":1},"payload":[[],[]]}]}')
                    assert answer["type"] == "done"
            assert decoded == [7, 7]

    run(scenario())


def test_events_of_many_bytes_are_checked_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), httpx.AsyncClient(base_url=url) as http:
            beside: list[bool] = []
            check = broker.check

            def watched(items: Any) -> Any:
                beside.append(threading.current_thread() is not threading.main_thread())
                return check(items)

            monkeypatch.setattr(broker, "check", watched)
            for count in (1, 20):
                items = b",".join([b'{"event":{"qty":1},"payload":"%b"}' % (b"x" * 20_000)] * count)
                assert (await http.post("/v1/events", content=b"[" + items + b"]", headers=JSON)).status_code == 201
                for path in ("/v1/connect", "/v1/publish"):
                    async with socket(url, path) as line:
                        if path == "/v1/connect":
                            await hello(line)
                        assert (await asked(line, b'{"type":"publish","items":[' + items + b"]}"))["count"] == count
            assert beside == [False] * 3 + [True] * 3

    run(scenario())


def test_a_payload_is_delivered_in_one_line_and_without_needless_escapes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            serving(tmp_path) as (broker, url),
            httpx.AsyncClient(base_url=url) as http,
            Client(url) as client,
            client.subscriber("ann") as ann,
        ):
            await ann.subscribe("all", "qty >= 0")
            body = b'{"event": {"qty": 1}, "payload": {\n  "a": "\\u0061",\r\n  "b": [ 1 ]\n}}'
            assert (await http.post("/v1/events", content=body, headers=JSON)).status_code == 201
            empty = b'{"event": {"qty": 2}, "payload": null}'
            assert (await http.post("/v1/events", content=empty, headers=JSON)).status_code == 201
            assert (await anext(aiter(ann))).payload == {"a": "a", "b": [1]}
            stored = [body for *_, body in broker.store.events.from_number(1, 9)]
            assert stored == [b'{"event":{"qty":1},"payload":{"a":"a","b":[1]}}', b'{"event":{"qty":2}}']

    run(scenario())


# ---- lists that are decoded value by value


def made(random: random.Random, depth: int = 0) -> Any:
    match random.randrange(7 if depth < 4 else 4):
        case 0:
            return random.choice([0, -1.5e9, True, None])
        case 1 | 2 | 3:
            return "".join(random.choices('a,[]{}"\\: ü', k=random.randrange(6)))
        case 4:
            return {key: made(random, depth + 1) for key in random.sample(['"', ",", "]"], 2)}
        case _:
            return [made(random, depth + 1) for _ in range(random.randrange(4))]


def outcome(text: bytes, most_bytes: int) -> Any:
    try:
        return decode_list(text, object, 1_000, most_bytes)
    except BadRequest:
        return "invalid"


def test_a_list_is_the_same_value_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_text, "check_size", lambda *_: None)
    draw = random.Random(7)
    for _ in range(3_000):
        monkeypatch.setattr(json_text, "PART_BYTES", draw.choice([1, 2, 7, 10_000]))
        text = json.dumps([made(draw) for _ in range(draw.randrange(5))], ensure_ascii=draw.random() < 0.5).encode()
        assert outcome(text, 0) == json.loads(text)
        for _ in range(3):  # a mistake is one in both ways
            at = draw.randrange(len(text))
            wrong = text[:at] + draw.choice([b"", b",", b"]", b"[", b'"', b"\\", b"}"]) + text[at + 1 :]
            assert outcome(wrong, 0) == outcome(wrong, 10_000), wrong


def test_the_first_values_say_that_there_are_too_many() -> None:
    with pytest.raises(TooLarge, match="at most 3 values"):
        decode_list(b"[1,2,3,4," + b"?" * 100 + b"]", int, 3, 50)


# ---- bodies that carry no batch


def test_a_body_without_a_batch_may_have_a_megabyte(tmp_path: Path) -> None:
    routes = [
        ("POST", "/v1/check", b'{"where":"'),
        ("POST", "/v1/try", b'{"event":{"qty":"'),
        ("POST", "/v1/dead/drop", b'{"numbers":["'),
        ("PUT", "/v1/subscribers/ann/subscriptions/x", b'{"where":"qty>0","about":{"a":"'),
    ]

    async def scenario() -> None:
        async with serving(tmp_path) as (_, url), httpx.AsyncClient(base_url=url) as http:
            for method, path, start in routes:
                found = await http.request(method, path, content=start + b"a" * 2**20, headers=JSON)
                assert found.status_code == 413, (path, found.text)
                assert "at most 1048576 bytes" in found.json()["error"]["message"]

    run(scenario())


def test_large_bodies_are_decoded_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside: list[bool] = []

    def watched(data: Any, *rest: Any) -> Any:
        beside.append(threading.current_thread() is not threading.main_thread())
        return decode(data, *rest)

    for module in ("routes", "websocket"):
        monkeypatch.setattr(f"hitbox.broker.http.{module}.decode", watched)

    async def scenario() -> None:
        async with serving(tmp_path) as (_, url), httpx.AsyncClient(base_url=url) as http:
            for size in (10, 70_000):
                text = {"where": f"city = '{'x' * size}'"}
                assert (await http.post("/v1/check", json=text)).status_code == 200
            async with socket(url, "/v1/connect") as line:
                await hello(line)
                for count in (1, 3_000):
                    put = [{"name": "s", "where": "qty > 1"}] * count
                    answer = await asked(line, json.dumps({"type": "subscribe", "put": put}).encode())
                    assert answer["type"] == "done"
            assert beside == [False, True, False, False, True]

    run(scenario())


def test_large_messages_of_a_subscriber(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), socket(url, "/v1/connect") as line:
            where = f"city = '{'x' * 1_000}'"
            many: list[Any] = [{"name": f"s{n}", "where": where} for n in range(1_100)]
            answer = await asked(line, json.dumps({"type": "hello", "subscriber": "ann", "put": many}).encode())
            assert answer["type"] == "welcome", answer
            assert broker.describe()["subscriptions"] == 1_100
            change = {"type": "subscribe", "request": 1, "put": many, "remove": []}
            assert (await asked(line, json.dumps(change).encode()))["type"] == "done"
            names = [f"s{n}" for n in range(1_100)]
            change = {"type": "subscribe", "request": 2, "put": [{**many[0], "name": "t"}] * 1_100, "remove": names}
            assert (await asked(line, json.dumps(change).encode()))["type"] == "done"
            assert broker.describe()["subscriptions"] == 1

    run(scenario())


def test_a_batch_of_too_many_leaves_the_connection_open(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (_, url), socket(url, "/v1/connect") as line:
            await hello(line)
            put = b",".join([b'{"name":"x","where":"qty > 1"}'] * 50_000)
            answer = await asked(line, b'{"type":"subscribe","request":3,"put":[' + put + b"]}")
            assert (answer["request"], answer["error"]["type"]) == (3, "TooLarge")
            assert (await asked(line, b'{"type":"subscribe","request":4}'))["type"] == "done"
            await line.send(b'{"type":"nack","seqs":[' + b"1," * 2**20 + b"1]}", text=True)
            assert json.loads(await line.recv())["type"] == "error"

    run(scenario())


def test_a_mistake_is_named_where_it_is() -> None:
    """Far from it something looks like a lone surrogate, which it is not: its backslash is escaped."""
    with pytest.raises(BadRequest, match="trailing comma"):
        decode(b'["\\\\ud800' + b"x" * 100 + b'",]', list)
    with pytest.raises(BadRequest, match="lone surrogate"):
        decode(b'["' + b"x" * 100 + b'\\ud83d\\ude00\\udc00"]', PublishedEvent | list)  # type: ignore[arg-type]


def test_a_message_in_fragments_is_as_long_as_its_bytes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (_, url), socket(url, "/v1/connect") as line:
            await line.send(['{"type":"hello","subscriber":"', "é" * 300_000, "é" * 300_000, '"}'])
            assert json.loads(await line.recv())["error"]["type"] == "TooLarge"
        async with serving(tmp_path) as (_, url), socket(url, "/v1/connect") as line:
            await line.send(['{"type":"hello",', '"subscriber":"ann"}'])
            assert json.loads(await line.recv())["type"] == "welcome"

    run(scenario())
