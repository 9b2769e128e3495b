"""Deliveries as Server-Sent Events, over a real socket."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from hitbox.broker.broker import Broker
from hitbox.broker.http import connections, event_stream
from hitbox.client import Client
from support.broker_kit import item, serving, sub, until

ANN = "/v1/subscribers/ann"


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 120))


class Stream:
    """Reads an event stream as a browser does."""

    def __init__(self, response: httpx.Response):
        self.response = response
        self._lines = response.aiter_lines()
        self.last = ""
        self.comments = 0

    async def event(self) -> tuple[str, Any]:
        """(type, data) of the next event."""
        kind, data = "message", ""
        async for line in self._lines:
            name, _, value = line.partition(": ")
            match name:
                case "" if not line and data:
                    return kind, json.loads(data)
                case "id":
                    self.last = value
                case "event":
                    kind = value
                case "data":
                    data += value
                case _ if line.startswith(":"):
                    self.comments += 1
        return "end", None

    async def seqs(self, count: int) -> list[int]:
        return [(await self.event())[1]["seq"] for _ in range(count)]


@asynccontextmanager
async def stream(url: str, last: str = "", path: str = ANN, token: str = "", **query: Any) -> AsyncIterator[Stream]:
    headers = {"last-event-id": last} if last else {}
    headers |= {"authorization": f"Bearer {token}"} if token else {}
    async with (
        httpx.AsyncClient(base_url=url, timeout=60) as http,
        http.stream("GET", path + "/deliveries", params=query, headers=headers) as response,
    ):
        assert response.status_code == 200, await response.aread()
        yield Stream(response)


def life(broker: Broker) -> str:
    return broker.store.incarnation


async def publish(broker: Broker, count: int) -> int:
    return await broker.publish([item(qty=1)] * count)


@asynccontextmanager
async def client_that_does_not_read(broker: Broker, url: str) -> AsyncIterator[None]:
    """Opens a stream of ann's deliveries, and reads nothing of it."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        address = httpx.URL(url)
        await asyncio.get_running_loop().sock_connect(client, (address.host, address.port))
        text = f"GET {ANN}/deliveries HTTP/1.1\r\nhost: {address.host}:{address.port}\r\n\r\n"
        await asyncio.get_running_loop().sock_sendall(client, text.encode())
        await until(lambda: not is_free(broker))
        yield


def is_free(broker: Broker) -> bool:
    return broker.mailbox("ann").connected is None


def test_deliveries_are_those_of_a_websocket(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url):
            await broker.subscribe("ann", [sub("s", "qty > 0", 7)])
            await broker.subscribe("bob", [sub("s", "qty > 0", 7)])
            async with stream(url) as found, connect("ws" + url[4:] + "/v1/connect") as other:
                assert found.response.headers["content-type"] == "text/event-stream"
                assert found.response.headers["cache-control"] == "no-store"
                await other.send('{"type":"hello","subscriber":"bob"}')
                await other.recv()
                await broker.publish([item(qty=2, city="a\nid: 9\n\ndata: x")])
                kind, delivery = await found.event()
                assert (kind, found.last) == ("message", f"{life(broker)}-1")
                assert delivery == json.loads(await other.recv())["deliveries"][0]
                assert delivery["event"] == {"qty": 2, "city": "a\nid: 9\n\ndata: x"}

    run(scenario())


def test_acknowledged_when_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "CONFIRM_SECONDS", 0.05)

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url):
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            await publish(broker, 3)  # they wait on disk
            async with stream(url) as found:
                assert await found.seqs(3) == [1, 2, 3]
                await until(lambda: broker.mailbox("ann").pending == 0)
                await publish(broker, 2)
                assert await found.seqs(2) == [4, 5]
                await until(lambda: broker.mailbox("ann").pending == 0)
            await until(lambda: is_free(broker))

    run(scenario())


def test_a_broken_stream_goes_on_after_last_event_id(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url):
            await broker.subscribe("ann", [sub("low", "qty > 0", 1), sub("high", "price > 0", 9)])
            async with stream(url) as found:
                await broker.publish([item(qty=1), item(qty=1), item(price=1.0), item(qty=1)])
                assert await found.seqs(4) == [3, 1, 2, 4]  # the urgent one first
            await until(lambda: is_free(broker))
            assert broker.mailbox("ann").pending == 4
            async with stream(url, last=f"{life(broker)}-1") as found:  # 3 and 1 were received, in this order
                again = [(await found.event())[1] for _ in range(2)]
                assert [(d["seq"], d["redelivered"]) for d in again] == [(2, True), (4, True)]
                await until(lambda: broker.mailbox("ann").pending == 2)
                async with stream(url, last=f"{life(broker)}-4") as newer:  # while the old one still stands
                    assert (await found.event())[1]["code"] == 4409
                    assert await found.event() == ("end", None)
                    await until(lambda: broker.mailbox("ann").pending == 0)
                    await publish(broker, 1)
                    assert await newer.seqs(1) == [5]

    run(scenario())


def test_without_last_event_id_what_was_not_confirmed_comes_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url):
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            async with stream(url) as found:
                await publish(broker, 2)
                assert await found.seqs(2) == [1, 2]
            await until(lambda: is_free(broker))
            async with stream(url) as found:
                assert await found.seqs(2) == [1, 2]
        async with (
            serving(tmp_path) as (broker, url),
            stream(url, last=f"{life(broker)}-1") as found,
        ):  # after a restart
            assert await found.seqs(1) == [2]
            await until(lambda: broker.mailbox("ann").pending == 1)

    run(scenario())


def test_a_long_stream_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "CONFIRM_SECONDS", 0.2)
    monkeypatch.setattr(event_stream, "MOST", 700)

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url):
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            await publish(broker, 3000)
            async with stream(url) as found:
                assert await found.seqs(3000) == list(range(1, 3001))
                await until(lambda: broker.mailbox("ann").pending == 0)

    run(scenario())


def test_acknowledged_by_the_client(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), httpx.AsyncClient(base_url=url) as http:
            await http.put(ANN, json={"backoff_seconds": 0.01, "max_tries": 2, "visibility_seconds": 3600})
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            await publish(broker, 4)
            async with stream(url, ack="client", window=2) as found:
                assert await found.seqs(2) == [1, 2]
                mailbox = broker.mailbox("ann")
                assert mailbox.window_left(mailbox.connected) == 0
                assert (await http.post(ANN + "/ack", json={"seqs": [1, 1, 99, 0]})).status_code == 204
                assert await found.seqs(1) == [3]
                assert (await http.post(ANN + "/extend", json={"seqs": [2, 3]})).status_code == 204
                assert (await http.post(ANN + "/nack", json={"seqs": [2]})).status_code == 204
                _, again = await found.event()
                if again["seq"] == 4:  # the pause of 2 left a place
                    await http.post(ANN + "/ack", json={"seqs": [4]})
                    _, again = await found.event()
                assert (again["seq"], again["attempt"]) == (2, 2)
                await http.post(ANN + "/nack", json={"seqs": [2]})
                await until(lambda: broker.mailbox("ann").dead == 1)
            await until(lambda: is_free(broker))
            async with stream(url, last=f"{life(broker)}-3", ack="client") as found:  # received, but not acknowledged
                assert (await found.seqs(1))[0] == 3
            await http.post(ANN + "/ack", json={"seqs": [3, 4]})  # also without a stream
            await until(lambda: broker.mailbox("ann").pending == 0)

    run(scenario())


def test_heartbeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "HEARTBEAT_SECONDS", 0.01)

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url):
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            async with stream(url) as found:
                reading = asyncio.ensure_future(found.event())
                await until(lambda: found.comments > 3)
                await publish(broker, 1)
                assert (await reading)[1]["seq"] == 1

    run(scenario())


def test_a_websocket_takes_over_and_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), Client(url) as client:
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            async with stream(url) as found, client.subscriber("ann"):
                assert (await found.event()) == (
                    "closed",
                    {"code": 4409, "reason": "another connection of this subscriber took over"},
                )
            await broker.remove_subscriber("ann")
            assert "ann" not in broker.registry.by_name

    run(scenario())


def test_bad_requests(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), httpx.AsyncClient(base_url=url) as http:
            missing = await http.get(ANN + "/deliveries")
            assert missing.status_code == 404
            assert "no subscriber 'ann'" in missing.text
            assert "ann" not in broker.registry.by_name
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            mine = life(broker)
            for last in ("x", "-1", "1e3", "7", f"{mine}-", f"{mine}-{'9' * 17}", f"{mine}-1-1", f"{mine}-1x"):
                bad = await http.get(ANN + "/deliveries", headers={"last-event-id": last.encode()})
                assert (bad.status_code, "Last-Event-ID" in bad.text) == (400, True), last
            for query in ({"ack": "never"}, {"window": "0"}, {"window": "10001"}, {"other": "1"}):
                assert (await http.get(ANN + "/deliveries", params=query)).status_code == 400, query
            for body in ({}, {"seqs": ["1"]}, {"seqs": [-1]}, {"seqs": list(range(10_001))}, {"seqs": [1], "x": 1}):
                for act in ("ack", "nack", "extend"):
                    assert (await http.post(f"{ANN}/{act}", json=body)).status_code == 400, (act, body)
            assert (await http.post("/v1/subscribers/bob/ack", json={"seqs": [1]})).status_code == 404
            head = await http.head(ANN + "/deliveries")
            assert (head.status_code, head.headers["content-type"]) == (200, "text/event-stream")
            assert is_free(broker)
            async with stream(url, last=f"{life(broker)}-7") as found:  # an event that was never sent
                await publish(broker, 1)
                assert await found.seqs(1) == [1]
            async with stream(url, last=f"{'0' * 16}-1") as found:  # of another history
                assert await found.seqs(1) == [1]
            live = await http.get("/v1/subscribers/live/deliveries")
            assert live.status_code == 404

    run(scenario())


def test_an_ephemeral_subscriber_keeps_its_connection(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            serving(tmp_path) as (broker, url),
            httpx.AsyncClient(base_url=url) as http,
            Client(url) as client,
            client.subscriber("eve", ephemeral=True, policy="drop_oldest") as eve,
        ):
            refused = await http.get("/v1/subscribers/eve/deliveries")
            assert (refused.status_code, "ephemeral" in refused.text) == (409, True)
            assert broker.mailbox("eve").connected is not None
            await eve.subscribe("s", "qty > 0")

    run(scenario())


def test_limits_and_shutdown(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, max_connections=1) as (broker, url), httpx.AsyncClient(base_url=url) as http:
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            await broker.subscribe("bob", [sub("s", "qty > 0")])
            async with stream(url):
                refused = await http.get("/v1/subscribers/bob/deliveries")
                assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            await until(lambda: is_free(broker))
            async with stream(url) as found:
                closing = asyncio.ensure_future(found.event())
                await until(lambda: not is_free(broker))
                broker.close_connections()  # as a signal does
                assert (await closing)[1] == {"code": 1012, "reason": "the broker is shutting down"}

    run(scenario())


def test_the_broker_stops_while_a_stream_stands(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with httpx.AsyncClient(timeout=60) as http:
            async with serving(tmp_path) as (broker, url):
                await broker.subscribe("ann", [sub("s", "qty > 0")])
                request = http.build_request("GET", url + ANN + "/deliveries")
                found = Stream(await http.send(request, stream=True))
                reading = asyncio.ensure_future(found.event())
                await until(lambda: not is_free(broker))
            assert (await reading)[1]["code"] == 1012
            await found.response.aclose()

    run(scenario())


def test_what_a_client_has_not_read_is_not_confirmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if nothing comes after it: then no later write shows that the client does not read."""
    monkeypatch.setattr(event_stream, "CONFIRM_SECONDS", 0.2)
    full: list[bool] = []
    pause = connections.HttpProtocol.pause_writing

    def pause_writing(self: connections.HttpProtocol) -> None:
        full.append(True)
        pause(self)

    monkeypatch.setattr(connections.HttpProtocol, "pause_writing", pause_writing)

    async def scenario() -> None:
        async with serving(tmp_path, stall_seconds=2) as (broker, url):
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            async with client_that_does_not_read(broker, url):
                while not full:
                    last = await broker.publish([item(qty=1, city="x" * 3000)] * 60) + 59
                    await until(lambda last=last: full or broker.statistics.counts["delivered"] == last)  # type: ignore[misc]
                await until(lambda: is_free(broker))
            assert broker.statistics.closed["stalled"] == 1
            assert broker.mailbox("ann").pending >= 60

    run(scenario())


def test_a_client_that_does_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is closed, and what it did not read comes again: nothing is acknowledged while it does not read."""
    monkeypatch.setattr(event_stream, "CONFIRM_SECONDS", 100.0)

    async def scenario() -> None:
        async with serving(tmp_path, stall_seconds=0.5) as (broker, url):
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            count = 2000
            async with client_that_does_not_read(broker, url):
                for _ in range(20):
                    await broker.publish([item(qty=1, city="x" * 3000)] * (count // 20))
                await until(lambda: is_free(broker))
            assert broker.statistics.closed["stalled"] == 1
            async with stream(url) as found:
                assert await found.seqs(count) == list(range(1, count + 1))

    run(scenario())
