"""Clients that mean harm, servers that are no broker, and a broker that is busy or leaving when a client comes."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
import struct
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from hitbox.broker.http import connections
from hitbox.client import Client, Delivery
from hitbox.protocol.errors import BadRequest, BrokerError, StoreFailed, StoreFull
from support.broker_kit import item, serving, until

ARROW = {"content-type": "application/vnd.apache.arrow.stream"}


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 180))


# ---- tables


def stream(compression: str | None = None, **columns: pa.Array) -> bytes:
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    out = io.BytesIO()
    with pa.ipc.new_stream(out, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(batch)
    return out.getvalue()


ROWS = 2_000
LONG = pa.array(["x" * 100_000])
FIRST = pa.array([0] * ROWS, pa.int32())
VIEW = struct.pack("<i4sii", 100_000, b"xxxx", 0, 0)
VIEWS = [None, pa.py_buffer(VIEW * ROWS), pa.py_buffer(b"x" * 100_000)]


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (stream("zstd", city=pa.array(["x" * 30_000_000])), 400, "compressed"),
        (stream("lz4", city=pa.DictionaryArray.from_arrays(FIRST, LONG)), 400, "compressed"),
        (stream(city=pa.DictionaryArray.from_arrays(FIRST, LONG)), 413, "a text counts once per row"),
        (stream(city=pa.DictionaryArray.from_arrays(FIRST, LONG.cast(pa.large_string()))), 413, "a text counts once"),
        (stream(city=pa.Array.from_buffers(pa.string_view(), ROWS, VIEWS)), 413, "a text counts once per row"),
        (stream(city=pa.RunEndEncodedArray.from_arrays(pa.array([ROWS], pa.int32()), LONG)), 400, "no attribute has"),
        (stream(city=pa.ListViewArray.from_arrays(FIRST, FIRST, pa.array([1]))), 400, "no attribute has"),
        (stream(**{f"c{n}": pa.nulls(ROWS) for n in range(1_100)}), 413, "a text counts once per row"),
    ],
    ids=["zstd", "lz4", "dictionary", "large-dictionary", "views", "runs", "lists", "nulls"],
)
def test_small_tables_that_stand_for_large_ones_are_refused(
    tmp_path: Path, body: bytes, status: int, says: str
) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (_, url), httpx.AsyncClient(base_url=url, headers=ARROW) as http:
            for path in ("/v1/events", "/v1/subscribers/ann/subscriptions"):
                answer = await http.post(path, content=body)
                assert answer.status_code == status, answer.text
                assert says in answer.json()["error"]["message"]

    run(scenario())


def test_tables_of_all_plain_types_are_taken(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (_, url), httpx.AsyncClient(base_url=url, headers=ARROW) as http:
            texts = pa.array(["Rome", None, "Oslo"])
            for column in (
                texts,
                texts.cast(pa.large_string()),
                texts.cast(pa.string_view()),
                texts.dictionary_encode(),
            ):
                answer = await http.post("/v1/events", content=stream(city=column, qty=pa.array([1, 2, None])))
                assert answer.json()["count"] == 3, answer.text
            price = pa.StructArray.from_arrays([pa.array([1.0]), pa.array([2.0])], ["low", "high"])
            assert (await http.post("/v1/events", content=stream(price=price))).status_code == 201
            events = (await http.get("/v1/events")).json()["events"]
            assert [one["event"] for one in events[:3]] == [{"city": "Rome", "qty": 1}, {"qty": 2}, {"city": "Oslo"}]
            assert events[-1]["event"] == {"price": {"low": 1.0, "high": 2.0}}

    run(scenario())


@pytest.mark.parametrize("priority", ["x", 4.7, float("nan"), float("inf")])
def test_a_table_with_a_bad_priority_is_refused(tmp_path: Path, priority: object) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (_, url), httpx.AsyncClient(base_url=url, headers=ARROW) as http:
            body = stream(id=pa.array(["a"]), where=pa.array(["qty > 1"]), priority=pa.array([priority]))
            answer = await http.post("/v1/subscribers/ann/subscriptions", content=body)
            assert answer.status_code == 400
            assert "the priority of 'a' must be a whole number" in answer.json()["error"]["message"]
            good = stream(id=pa.array(["a"]), where=pa.array(["qty > 1"]), priority=pa.array([7.0]))
            assert (await http.post("/v1/subscribers/ann/subscriptions", content=good)).status_code == 200

    run(scenario())


@pytest.mark.parametrize("name", [[], {}, [1], None, 5])
def test_a_schema_with_a_name_that_is_no_text_is_refused(tmp_path: Path, name: object) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (_, url), httpx.AsyncClient(base_url=url) as http:
            answer = await http.put("/v1/schema", json={"attributes": [{"name": name, "type": "int"}]})
            assert (answer.status_code, answer.json()["error"]["type"]) == (400, "SchemaError")

    run(scenario())


# ---- connections that are refused, and come back


def test_a_websocket_is_refused_with_the_status_that_says_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def refused(url: str, **named: Any) -> tuple[int, str]:
        with pytest.raises(InvalidStatus) as caught:
            await connect(f"ws{url[4:]}/v1/connect", proxy=None, **named).__aenter__()
        response = caught.value.response
        return response.status_code, json.loads(response.body or b"{}")["error"]["type"]

    async def scenario() -> None:
        async with serving(tmp_path, max_connections=1) as (broker, url):
            assert await refused(url, origin="http://evil.example") == (403, "Forbidden")
            async with connect(f"ws{url[4:]}/v1/connect", proxy=None):
                assert await refused(url) == (429, "Overloaded")
            broker.closing = True
            assert await refused(url) == (503, "StoreFailed")
            broker.closing = False
        async with serving(tmp_path, principals=["ann"]) as (_, url):
            assert await refused(url) == (401, "NotAllowed")

    run(scenario())
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_client_waits_for_a_broker_that_is_leaving_or_has_no_place(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, max_connections=1) as (broker, url), Client(url, connect_seconds=20) as client:
            async with connect(f"ws{url[4:]}/v1/connect", proxy=None):
                waiting = asyncio.ensure_future(client.subscriber("ann").__aenter__())
                await asyncio.sleep(0.3)
                assert not waiting.done()
            ann = await waiting
            broker.closing = True
            broker.mailbox("ann").connected.close(1012, "leaving")  # type: ignore[union-attr]
            await asyncio.sleep(0.3)
            broker.closing = False
            await until(lambda: ann.connections == 2)
            await ann.subscribe("s", "qty > 0")
            await ann.__aexit__()

    run(scenario())


def test_a_subscriber_outlives_trouble_of_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full while it receives, and again when it comes back: neither ends the client."""

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), Client(url) as client:
            ann = await client.subscriber("ann", subscriptions=[{"name": "s", "where": "qty > 0"}]).__aenter__()
            acknowledge, attach = broker.tracker.acknowledge, broker.attach
            failures = iter([StoreFull("no room"), StoreFailed("no store")])

            async def attach_later(*args: Any) -> Any:
                for problem in failures:
                    raise problem
                return await attach(*args)

            def acknowledge_later(*args: Any) -> Any:
                monkeypatch.setattr(broker.tracker, "acknowledge", acknowledge)
                raise StoreFull("no room")

            monkeypatch.setattr(broker, "attach", attach_later)
            monkeypatch.setattr(broker.tracker, "acknowledge", acknowledge_later)
            await broker.publish([item(qty=1)])
            seen: list[Delivery] = []
            running = asyncio.ensure_future(ann.run(seen.append))
            await until(lambda: ann.connections == 2)
            await broker.publish([item(qty=2)])
            await until(lambda: {one.event["qty"] for one in seen} == {1, 2} or running.done())
            await until(lambda: broker.mailbox("ann").pending == 0)
            running.cancel()
            await ann.__aexit__()

    run(scenario())


def test_an_unexpected_failure_of_a_connection_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url):
            monkeypatch.setattr(broker.tracker, "refuse", lambda *_: [][0])
            async with connect(f"ws{url[4:]}/v1/connect", proxy=None) as socket:
                await socket.send('{"type": "hello", "subscriber": "ann"}')
                await socket.recv()
                await socket.send('{"type": "nack", "seqs": [1]}')
                with pytest.raises(ConnectionClosed):
                    await socket.recv()
                assert socket.close_code == 1011

    run(scenario())
    assert "a connection of subscriber 'ann' failed" in caplog.text


def test_pings_of_someone_who_takes_no_pongs_do_not_pile_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url):
            host, port = url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
            key = base64.b64encode(b"0" * 16).decode()
            head = f"host: {host}\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n"
            writer.write(f"GET /v1/connect HTTP/1.1\r\n{head}sec-websocket-key: {key}\r\n\r\n".encode())
            await reader.readuntil(b"\r\n\r\n")
            hello = b'{"type":"hello","subscriber":"ann"}'
            writer.write(bytes([0x81, 0x80 | len(hello)]) + bytes(4) + hello)
            await until(lambda: "ann" in broker.registry.by_name and broker.mailbox("ann").connected is not None)
            transport = next(one for one in _transports() if one.get_extra_info("sockname")[1] == int(port))
            ping = (bytes([0x89, 0x80 | 125]) + bytes(4) + b"p" * 125) * 1000
            for _ in range(200):  # 26 MB, far more than the sockets take
                writer.write(ping)
                await writer.drain()
            assert transport.get_write_buffer_size() < 2**20
            writer.transport.abort()

    run(scenario())


def _transports() -> list[Any]:
    import gc

    return [one.transport for one in gc.get_objects() if type(one).__name__ == "WebSocketProtocol"]


def test_a_body_of_tiny_chunks_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One byte per chunk takes the parser long: the others have their turn meanwhile."""
    received: list[int] = []
    data_received = connections.HttpProtocol.data_received

    def count(self: Any, data: bytes) -> None:
        received.append(len(data))
        data_received(self, data)

    monkeypatch.setattr(connections.HttpProtocol, "data_received", count)

    async def scenario() -> None:
        async with serving(tmp_path) as (_, url):
            host, port = url.removeprefix("http://").split(":")
            head = b"POST /v1/events HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
            body = b" " * 20_000 + b'{"event": {"qty": 1}}'
            chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(head + b"transfer-encoding: chunked\r\n\r\n" + chunks)
            assert b"201 Created" in await reader.read()
            writer.close()

    run(scenario())
    assert max(received) <= connections.READ_BYTES


# ---- what is no broker


@pytest.mark.parametrize(
    "url",
    ["nonsense", "", "http://", "http://[", "ftp://127.0.0.1", "http://127.0.0.1:99999", "http://127.0.0.1:abc",
     "http://127.0.0.1:0", "http://\udcff", "http://127.0.0.1?x=1"],
)  # fmt: skip
def test_an_address_that_is_none_is_refused_at_once(url: str) -> None:
    with pytest.raises(BadRequest, match="is not the address of a broker, such as http"):
        Client(url)
    with pytest.raises(BadRequest, match="is not the address of a broker, such as http"):
        Client.sync(url)


@pytest.mark.parametrize("token", ["é", "a\nb", "\udcff"])
def test_a_token_that_no_header_takes_is_refused_at_once(token: str) -> None:
    with pytest.raises(BadRequest, match="printable ASCII"):
        Client("http://127.0.0.1:1", token)


@pytest.mark.parametrize("body", [b"<html>", b"\xff", b"[1]", b'{"error": "no"}', b"null", b'{"first": "x"}'])
@pytest.mark.parametrize("status", [200, 404, 502])
def test_a_server_that_is_no_broker_is_named(body: bytes, status: int) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (status, len(body), body))
        writer.close()

    async def scenario() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with Client(url, connect_seconds=0.2) as client:
                with pytest.raises(BrokerError, match=r"not a broker|no broker|status \d+"):
                    await client.publish({"qty": 1})
                with pytest.raises(StoreFailed, match=f"no broker answers at {re.escape(url)}"):
                    await client.subscriber("ann").__aenter__()

    run(scenario())


@pytest.mark.parametrize("event", [{"city": "\ud800"}, {"qty": object()}, {"city": "a", "qty": {1: {2: 3j}}}])
def test_what_cannot_be_sent_is_reported(event: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with Client("http://127.0.0.1:1") as client:
            with pytest.raises(BadRequest, match="cannot be sent"):
                await client.publish(event)

    run(scenario())


def test_a_subscription_that_cannot_be_sent_is_reported_and_the_connection_stays(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (_, url), Client(url) as client, client.subscriber("ann") as ann:
            with pytest.raises(BadRequest, match="lone surrogate"):
                await ann.subscribe("s", "city = '\ud800'")
            await ann.subscribe("s", "qty > 0")
            with pytest.raises(BadRequest, match="lone surrogate"):
                await client.subscriber("bob", subscriptions=[{"name": "\ud800", "where": "qty > 0"}]).__aenter__()

    run(scenario())
