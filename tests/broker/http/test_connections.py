"""Sockets that keep the broker waiting, addresses that cannot be had, and requests that look long."""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import socket
import threading
import time
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from hitbox.broker import admin
from hitbox.broker.access.principals import LOCAL
from hitbox.broker.broker import Broker
from hitbox.broker.fair_threads import FairThreads
from hitbox.broker.http import connections
from hitbox.broker.http.app import serve
from hitbox.broker.http.auth import AccessControl
from hitbox.broker.http.publish_socket import PublishSession
from hitbox.broker.settings import Settings
from hitbox.client import Client, Refused
from hitbox.protocol.errors import CannotListen, Forbidden, Overloaded, StoreFailed
from support.broker_kit import SCHEMA, Listener, item, serving, sub, until
from support.raw_websocket import frame, read_frame, upgraded

DOORMAN = connections.Doorman(Settings(), Counter())
SHORT: dict[str, Any] = {"request_seconds": 0.3, "body_seconds": 0.4, "hello_seconds": 0.3, "stall_seconds": 0.5}


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 180))


async def opened(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


async def drip(url: str, start: bytes, drop: bytes) -> bytes:
    """Send a little again and again; what comes back until the broker closes.

    A plain socket: after a reset, asyncio's streams drop what has arrived before it.
    """
    host, port = url.removeprefix("http://").split(":")
    loop = asyncio.get_running_loop()
    with socket.create_connection((host, int(port))) as connection:
        connection.setblocking(False)
        answer = asyncio.ensure_future(until_closed(connection))
        await loop.sock_sendall(connection, start)
        while not answer.done():
            with suppress(ConnectionError):
                await loop.sock_sendall(connection, drop)
            await asyncio.wait([answer], timeout=0.05)
        return await answer


async def until_closed(connection: socket.socket) -> bytes:
    parts = bytearray()
    with suppress(ConnectionError):
        while part := await asyncio.get_running_loop().sock_recv(connection, 4096):
            parts += part
    return bytes(parts)


HEAD = b"POST /v1/events HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n"
GET = b"GET /readyz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"


@pytest.mark.parametrize(
    ("start", "drop", "status"),
    [
        (b"", b"", b""),  # never a byte
        (b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n", b"", b"408"),  # half a head
        (b"GET / HTTP/1.1\r\n", b"x: y\r\n", b"408"),  # a head without end
        (HEAD, b"", b"408"),  # no body
        (HEAD, b" ", b"408"),  # a slow one
        (HEAD.replace(b"127.0.0.1", b"evil.example"), b" ", b"403"),  # refused, and still sending
        (GET + b"GET / HTTP/1.1\r\n", b"x: y\r\n", b"200"),  # a good request, then a slow one
        (GET, b"\r\n", b"200"),  # a good request, then line breaks only
        (b"", b"\r\n", b"400"),
    ],
    ids=["nothing", "half", "endless", "no-body", "slow-body", "refused", "second", "breaks", "only-breaks"],
)
def test_who_does_not_send_is_closed(tmp_path: Path, start: bytes, drop: bytes, status: bytes) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, **SHORT) as (broker, url):
            answer = await asyncio.wait_for(drip(url, start, drop), 20)
            assert answer.partition(b"\r\n")[0].split(b" ")[1:2] == ([status] if status else [])
            if start.startswith(GET + b"GET"):
                assert answer.count(b"HTTP/1.1 408") == 1
            assert broker.store.events.table.rows() == 0
            async with httpx.AsyncClient(base_url=url) as http:  # an honest one is served, also slowly
                assert (await http.get("/readyz")).status_code == 200
                await asyncio.sleep(0.5)
                assert (await http.post("/v1/events", json={"event": {"qty": 1}})).status_code == 201

    run(scenario())


def test_a_websocket_without_a_hello_is_closed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, **SHORT) as (_, url):
            async with connect("ws" + url.removeprefix("http") + "/v1/connect", proxy=None) as silent:
                assert "no hello arrived within 0.3 seconds" in json.loads(await silent.recv())["error"]["message"]
                await silent.wait_closed()
                assert silent.close_code == 1008
            async with Client(url) as client, client.subscriber("ann") as ann:  # once it has said hello it may be quiet
                await asyncio.sleep(1)
                assert ann.connections == 1
                await ann.subscribe("s", "qty > 0")

    run(scenario())


UPGRADE = (
    b"GET /v1/publish HTTP/1.1\r\nhost: 127.0.0.1\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\nsec-websocket-version: 13\r\n"
)


@pytest.mark.parametrize(
    "rest",
    [
        b"content-length: 5\r\n\r\n",
        b"content-length: 5\r\n\r\nhello",
        b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"x: " + b"y" * 9000 + b"\r\n\r\n",
        b"x: y\r\n" * 300 + b"\r\n",
    ],
    ids=["body-awaited", "body", "chunks", "long-line", "headers"],
)
def test_an_upgrade_that_is_not_taken_is_answered(tmp_path: Path, rest: bytes) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, max_sockets=1) as (_, url):
            for _ in range(3):  # none of them keeps its place
                answer = await asyncio.wait_for(drip(url, UPGRADE + rest, b""), 20)
                assert answer.startswith(b"HTTP/1.1 400 ")
            async with httpx.AsyncClient(base_url=url) as http:
                assert (await http.get("/livez")).status_code == 200

    run(scenario())


def test_an_upgrade_that_nobody_answers_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def stuck(self: PublishSession) -> None:
        await asyncio.Event().wait()

    async def scenario() -> None:
        async with serving(tmp_path, **SHORT) as (broker, url):
            with monkeypatch.context() as patched:
                patched.setattr(PublishSession, "run", stuck)
                assert await asyncio.wait_for(drip(url, UPGRADE + b"\r\n", b""), 20) == b""
            assert broker.statistics.closed["head"] == 1
            async with Client(url) as client:  # one that is answered stays
                await client.publish({"qty": 1})
                await asyncio.sleep(0.5)
                await client.publish({"qty": 2})
            assert broker.statistics.closed["head"] == 1

    run(scenario())


def test_who_takes_nothing_is_cut_and_gets_it_later(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, **SHORT) as (broker, url):
            await broker.subscribe("ann", [sub("s", "qty >= 0")])
            reader, writer = await opened(url)
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            writer.write(
                b"GET /v1/connect HTTP/1.1\r\nhost: 127.0.0.1\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
                b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
            )
            await reader.readuntil(b"\r\n\r\n")
            hello = json.dumps({"type": "hello", "subscriber": "ann", "window": 1000}).encode()
            writer.write(bytes([0x81, 0x80 | len(hello), 0, 0, 0, 0]) + hello)
            await until(lambda: broker.mailbox("ann").connected)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            for _ in range(10):
                await broker.publish([item(qty=1, city="x" * 50_000)] * 20)
            await until(lambda: broker.mailbox("ann").connected is None, 20)
            writer.close()
            ann = await Listener(broker).attach("ann", 1000)
            await until(lambda: len(ann.got) == 200)
            assert not any(d["attempt"] > 1 for d in ann.got)  # a broken connection is no failure

    run(scenario())


def test_connections_are_limited(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, max_sockets=3, request_seconds=0.5) as (_, url):
            idle = [await opened(url) for _ in range(3)]
            reader, writer = await opened(url)
            assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
            writer.close()
            for reader, writer in idle:  # after a while there is room again
                assert await reader.read() == b""
                writer.close()
            async with httpx.AsyncClient(base_url=url) as http:
                assert (await http.get("/readyz")).status_code == 200

    run(scenario())


def test_open_files_bound_the_connections(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: raised.append(limits))

    def most(soft: int, hard: int) -> int:
        raised.clear()
        monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
        return connections.most_sockets(Settings(max_sockets=5000))

    assert (most(10_000, 10_000), raised) == (5000, [])
    assert (most(1024, 10_000), raised) == (5000, [(5100, 10_000)])
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        assert (most(1024, 2000), raised) == (1900, [(2000, 2000)])
    assert "may open 2000 files" in caplog.text
    with pytest.raises(CannotListen, match="ulimit"):
        most(50, 50)


# ---- limits


def test_headers_and_connections_of_an_address_are_limited(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, max_header_bytes=4096, max_address_sockets=3) as (broker, url):
            closed = broker.statistics.closed
            large = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nx: " + b"y" * 9000
            assert (await drip(url, large, b"y")).startswith(b"HTTP/1.1 400")
            complete = large[:4100] + b"\r\n\r\n"
            assert (await drip(url, complete, b"")).startswith(b"HTTP/1.1 400")
            assert closed["header_bytes"] == 2
            held = [await opened(url) for _ in range(3)]
            reader, _ = await opened(url)
            with suppress(ConnectionError):
                assert await reader.read() == b""
            assert closed["address"] == 1
            for _, writer in held:
                writer.close()
                await writer.wait_closed()
            async with httpx.AsyncClient(base_url=url) as http:
                await until(lambda: not connections_of(broker))
                shown = (await http.get("/metrics")).text
            assert 'hitbox_connections_refused_total{reason="address"} 1.0' in shown
            assert 'hitbox_connections_refused_total{reason="header_bytes"} 2.0' in shown

        async with serving(tmp_path / "rate", address_rate=5) as (broker, url):
            for _ in range(12):
                reader, writer = await opened(url)
                writer.close()
            await until(lambda: broker.statistics.closed["rate"] > 0)

    def connections_of(broker: Broker) -> int:
        return sum(broker.statistics.closed.values()) < 3

    run(scenario())


@pytest.mark.parametrize("welcome", [0, 1, 1000])
def test_a_flood_of_connections_is_taken_in_turns(welcome: int) -> None:
    """The event loop asks the socket until it says that nobody waits."""
    most = connections.ACCEPTED_AT_ONCE
    doorman = connections.Doorman(Settings(max_address_sockets=max(welcome, 1)), Counter())
    doorman.open["127.0.0.1"] += not welcome
    (listening,) = connections.listen("127.0.0.1", 0, doorman)
    listening.setblocking(False)
    clients = [socket.create_connection(listening.getsockname()) for _ in range(2 * most + 3)]
    taken: list[socket.socket] = []
    turns = []
    while sum(turns) < len(clients):
        before = len(taken) + doorman.closed["address"]
        with suppress(BlockingIOError):
            while True:
                taken.append(listening.accept()[0])
        turns.append(len(taken) + doorman.closed["address"] - before)
    assert turns == [most, most, 3]
    assert len(taken) == min(welcome, len(clients))
    for one in [*clients, *taken, listening]:
        one.close()


@pytest.mark.parametrize("order", [1, -1])
def test_a_body_of_two_lengths_is_refused(tmp_path: Path, order: int) -> None:
    """A proxy may believe the other one, and take what follows for a part of the body."""

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url):
            body = b'{"event": {"qty": 1}}'
            chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
            lengths = [b"content-length: %d\r\n" % (len(chunked) + len(GET)), b"transfer-encoding: chunked\r\n"]
            start = b"POST /v1/events HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            answer = await drip(url, start + b"".join(lengths[::order]) + b"\r\n" + chunked + GET, b"")
            assert answer.startswith(b"HTTP/1.1 400")
            assert answer.count(b"HTTP/1.1") == 1
            assert broker.store.events.table.rows() == 0

    run(scenario())


def test_ephemeral_subscribers_are_limited_as_the_others_are(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, max_subscribers=2) as (broker, url), httpx.AsyncClient(base_url=url) as http:

            async def hello(socket: Any) -> dict[str, Any]:
                await socket.send('{"type": "hello", "ephemeral": true}')
                return dict(json.loads(await socket.recv()))

            address = "ws" + url.removeprefix("http") + "/v1/connect"
            assert (await http.put("/v1/subscribers/bob", json={})).status_code == 200
            async with connect(address, proxy=None) as one, connect(address, proxy=None) as two:
                assert (await hello(one))["type"] == "welcome"
                assert "2 subscribers are the most" in (await hello(two))["error"]["message"]
                await two.wait_closed()
                assert two.close_code == 1013
                assert (await http.put("/v1/subscribers/ann", json={})).status_code == 429
            await until(lambda: len(broker.registry.by_name) == 1)
            async with connect(address, proxy=None) as three:
                assert (await hello(three))["type"] == "welcome"

    run(scenario())


# ---- addresses


def test_an_address_that_cannot_be_had(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(CannotListen, match=f"port {port} of 127.0.0.1 is in use.*--port"):
            connections.listen("127.0.0.1", port, DOORMAN)
        broker = Broker(tmp_path, SCHEMA)
        with pytest.raises(CannotListen):
            run(serve(broker, AccessControl(True), "127.0.0.1", port, lambda _: None, asyncio.Event()))
    Broker(tmp_path).store.close()  # it was closed
    with pytest.raises(CannotListen, match="cannot be resolved"):
        connections.listen("no such host", 0, DOORMAN)
    with pytest.raises(CannotListen, match="not an address of this machine"):
        connections.listen("192.0.2.1", 0, DOORMAN)
    with pytest.raises(CannotListen, match="0 to 65535"):
        connections.listen("127.0.0.1", 70_000, DOORMAN)
    assert "above 1023" in connections._why(PermissionError(13, "Permission denied"), "127.0.0.1", 80)


@pytest.mark.parametrize(
    "host",
    ["evil@127.0.0.1", "127.0.0.1@evil.example", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:99999", "127.0.0.1:8400@x",
     "127.0.0.1 ", "::1", "[::1", "[127.0.0.1]", "[::1]x", "127.0.0.1/x", "127.0.0.1#x", "127.0.0.1:8400:1", "",
     "127.0.0.1,evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "evil.example", "%31", "127.evil"],
)  # fmt: skip
def test_a_host_that_is_not_this_machine_is_refused(host: str) -> None:
    with pytest.raises(Forbidden):
        AccessControl(True).check_page({"host": host})
    with pytest.raises(Forbidden):
        AccessControl(True).check_page({"host": "127.0.0.1", "origin": f"http://{host}"})


def test_hosts_and_origins_that_are_good() -> None:
    access = AccessControl(True, frozenset(["https://friend.example"]))
    for host in ("127.0.0.1", "127.0.0.1:8400", "localhost:1", "LOCALHOST", "[::1]:8400", "[0:0::1]", "127.0.0.2"):
        access.check_page({"host": host})
        access.check_page({"host": host, "origin": f"http://{host}"})
    access.check_page({"host": "localhost", "origin": "https://friend.example"})
    access.check_page({"host": "localhost:443", "origin": "https://localhost"})  # behind a proxy
    for origin in ("null", "", "http://", "file://localhost", "http://localhost:1", "http://x@localhost", "localhost"):
        with pytest.raises(Forbidden):
            access.check_page({"host": "localhost:8400", "origin": origin})
    AccessControl(False).check_page({"host": "any.example:8400"})
    AccessControl(False).check_page({})
    with pytest.raises(Forbidden):
        AccessControl(False).check_page({"host": "evil@any.example"})


def test_strict_hosts_through_a_socket(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (_, url):
            for extra, status in (
                (b"host: evil@127.0.0.1\r\n", b"403"),
                (b"host: 127.0.0.1\r\norigin: http://evil\r\norigin: http://127.0.0.1\r\n", b"400"),
                (b"host: 127.0.0.1\r\n", b"200"),
            ):
                reader, writer = await opened(url)
                writer.write(b"GET /v1/stats HTTP/1.1\r\n" + extra + b"connection: close\r\n\r\n")
                assert (await reader.read()).split(b" ")[1] == status
                writer.close()

    run(scenario())


# ---- clients without a broker, and bad predicates


def test_no_broker_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{free.getsockname()[1]}"
        async with Client(url, connect_seconds=0.3) as client:
            with pytest.raises(StoreFailed, match=rf"no broker answers at {url} .*tried for 0\.3 s.*hitbox serve"):
                await client.subscriber("ann").__aenter__()

    run(scenario())
    assert "no connection to the broker" in caplog.text


def test_a_server_that_says_nothing_is_reported() -> None:
    async def scenario() -> None:
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            async with Client(f"http://127.0.0.1:{silent.getsockname()[1]}", connect_seconds=0.3) as client:
                with pytest.raises(StoreFailed, match="no broker answers"):
                    await client.subscriber("ann").__aenter__()

    run(scenario())


def test_a_broker_that_went_away_is_reported(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Client("http://127.0.0.1:1", timeout=0.5) as client:
            async with serving(tmp_path) as (_, url):
                client.url = url
                ann = await client.subscriber("ann").__aenter__()
            with pytest.raises(StoreFailed, match=r"no answer from the broker .* within 0\.5 s"):
                await ann.subscribe("s", "qty > 0")
            await ann.__aexit__()

    run(scenario())


def test_a_bad_predicate_makes_no_subscriber(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            serving(tmp_path) as (broker, url),
            Client(url) as client,
            httpx.AsyncClient(base_url=url) as http,
        ):
            path = "/v1/subscribers/ann/subscriptions"
            assert (await http.put(f"{path}/s", json={"where": "qty > > 1"})).status_code == 400
            assert (await http.put(f"{path}/s", json={"where": "qty > 1", "about": {"x": 1}})).status_code == 400
            many = [{"name": "a", "where": "qty > 1"}, {"name": "b", "where": "prise > 1"}]
            assert (await http.post(path, json=many)).status_code == 400
            assert (await http.delete(f"{path}/s")).status_code == 404
            for bad in ({"name": "s", "where": "qty > > 1"}, {"name": "a/b", "where": "qty > 1"}):
                for ephemeral in (False, True):
                    with pytest.raises(Refused):
                        await client.subscriber("ann", ephemeral=ephemeral, subscriptions=[bad]).__aenter__()
            good = [{"name": "s", "where": "qty > 1"}]
            with pytest.raises(Refused, match="visibility"):
                await client.subscriber("ann", subscriptions=good, visibility_seconds=0.0).__aenter__()
            assert (await http.get("/v1/subscribers")).json()["count"] == 0
            assert (
                broker.store.subscribers.table.rows()
                == len(broker.registry.index)
                == len(broker.registry.ephemeral_index)
                == 0
            )
            async with client.subscriber("ann", subscriptions=good, limit=7) as ann:
                assert broker.subscriber("ann").options.limit == 7
                assert broker.registry.index.where("ann/s") == "qty > 1"
                await client.publish({"qty": 2})
                assert (await anext(ann.__aiter__())).subscriptions == ["s"]

    run(scenario())


# ---- looks


def test_long_looks_leave_the_loop_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While two explanations are stuck, events flow, a third one waits, and too many are refused."""
    release, begun = threading.Event(), []

    def stuck(*args: Any) -> dict[str, Any]:
        begun.append(threading.current_thread() is threading.main_thread())
        release.wait(30)
        return {}

    async def scenario() -> None:
        async with serving(tmp_path, max_lookups=3) as (broker, url), httpx.AsyncClient(base_url=url) as http:
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            ann = await Listener(broker).attach("ann")
            monkeypatch.setattr(admin, "explain", stuck)
            monkeypatch.setattr(admin, "try_event", stuck)
            why = {"event": {"qty": 1}, "id": "ann/s"}
            looks = [
                asyncio.create_task(http.post("/v1/explain", json=why)),
                asyncio.create_task(http.post("/v1/try", json={"event": {"qty": 1}})),
                asyncio.create_task(http.post("/v1/explain", json=why)),
            ]
            await until(lambda: len(begun) == 2)
            assert (await http.post("/v1/events", json={"event": {"qty": 1}})).status_code == 201
            await until(lambda: ann.seqs() == [1])
            refused = await until_refused(http)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert begun == [False, False]
            release.set()
            assert [(await one).status_code for one in looks] == [200, 200, 200]

    async def until_refused(http: httpx.AsyncClient) -> httpx.Response:
        return await asyncio.wait_for(http.post("/v1/check", json={"where": "qty > 1"}), 20)

    try:
        run(scenario())
    finally:
        release.set()


def test_a_look_whose_requester_left_keeps_its_turn_until_it_ends() -> None:
    async def scenario() -> None:
        lookups, release, running = FairThreads("lookup", 2, 5), threading.Event(), []

        def look() -> None:
            running.append(1)
            release.wait(30)
            running.pop()

        left = [asyncio.create_task(lookups.run(LOCAL, look)) for _ in range(2)]
        await until(lambda: len(running) == 2)
        for one in left:
            one.cancel()
        third = asyncio.create_task(lookups.run(LOCAL, lambda: len(running)))
        await asyncio.sleep(0.05)
        assert not third.done()
        release.set()
        assert await third <= 1
        await until(lambda: lookups.waiting == 0)
        lookups.most = 0
        with pytest.raises(Overloaded):
            await lookups.run(LOCAL, look)

    run(scenario())


def test_nobody_waits_for_all_the_looks_of_another() -> None:
    """However many one principal asks for, another one's has a thread and is not refused."""

    async def scenario() -> None:
        lookups, release = FairThreads("lookup", 2, 5), threading.Event()
        looks = [asyncio.create_task(lookups.run("ann", release.wait, 30)) for _ in range(5)]
        await until(lambda: lookups.waiting == 5)
        with pytest.raises(Overloaded):
            await lookups.run("ann", release.wait, 30)
        assert [await lookups.run("bob", lambda n=n: n) for n in range(3)] == [0, 1, 2]  # type: ignore[misc]
        assert not any(one.done() for one in looks)
        release.set()
        await asyncio.gather(*looks)
        assert lookups.waiting == 0

    run(scenario())


def test_large_events_are_matched_beside_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the match of a large event is stuck, others are answered; a small one that took long sets the measure."""
    release, threads = threading.Event(), []

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), httpx.AsyncClient(base_url=url) as http:
            await broker.subscribe("ann", [sub("s", "city LIKE '%x_y%'"), sub("t", "qty > 0")])
            ann = await Listener(broker).attach("ann")
            match = broker.registry.match

            def stuck(events: Any, *rest: Any) -> Any:
                threads.append(threading.current_thread() is not threading.main_thread())
                if len(events[0].get("city", "")) > 4000:
                    release.wait(30)
                if events[0]["qty"] == 2:
                    time.sleep(0.02)  # more than a turn of the loop
                return match(events, *rest)

            monkeypatch.setattr(broker.registry, "match", stuck)
            await broker.publish([item(qty=1, city="x" * 5000)])
            await until(lambda: threads == [True])
            assert (await http.get("/readyz")).status_code == 200
            release.set()
            await until(lambda: ann.seqs() == [1])
            for quantity in (2, 2, 3):
                await broker.publish([item(qty=quantity)])
                await until(lambda: broker.waiting.events == 0)
            assert threads == [True, False, True, True]

    try:
        run(scenario())
    finally:
        release.set()


# ---- frames


def window(broker: Broker) -> int:
    """What is left of the window of ann's connection."""
    mailbox = broker.mailbox("ann")
    assert mailbox.connected is not None
    return mailbox.window_left(mailbox.connected)


def test_frames_however_they_are_cut(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, max_body_bytes=100_000) as (broker, url):
            hello = b'{"type": "hello", "subscriber": "ann"}'
            long = b'{"type": "subscribe", "request": 1, "put": [{"name": "s", "where": "qty IN (%b)"}]}'
            long %= b", ".join(b"%d" % n for n in range(300))
            reader, writer = await upgraded(url)
            parts = [frame(hello[:9], 0x01), frame(b"are you there?", 0x89), frame(hello[9:20], 0x00)]
            parts += [frame(hello[20:], 0x80), frame(long), frame(b'{"type": "window", "size": 5}') * 40]
            parts += [frame(b'{"type": "window", "size": 7}', 0x82)]
            for byte in b"".join(parts):
                writer.write(bytes([byte]))
                await asyncio.sleep(0)
            assert await read_frame(reader) == (10, b"are you there?")
            assert b"welcome" in (await read_frame(reader))[1]
            assert b"done" in (await read_frame(reader))[1]
            await until(lambda: window(broker) == 7)
            writer.write(frame(b'{"type": "window", "size": 3}') * 1000 + frame(b'{"type": "window", "size": 9}')[:-1])
            await until(lambda: window(broker) == 3)
            writer.close()  # in the middle of a frame
            assert window(broker) == 3
            await until(lambda: broker.mailbox("ann").connected is None)

    run(scenario())


def test_a_flood_of_frames_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes the event loop for as long as it has frames, and a ping has six bytes."""
    reads: list[int] = []
    real = connections.WebSocketProtocol.data_received

    def data_received(self: Any, data: bytes) -> None:
        reads.append(len(data))
        real(self, data)

    async def scenario() -> None:
        async with serving(tmp_path) as (_, url):
            reader, writer = await upgraded(url)
            monkeypatch.setattr(connections.WebSocketProtocol, "data_received", data_received)
            writer.write(frame(b"", 0x89) * 50_000 + frame(b"the last", 0x89))
            while await read_frame(reader) != (10, b"the last"):
                pass
            assert sum(reads) == 6 * 50_001 + len(b"the last")
            assert max(reads) <= 32 * 1024
            writer.close()

    run(scenario())


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (b"\x81\xff" + (2**40).to_bytes(8, "big"), 1009),  # larger than a message may be
        (b"\x81\xff" + (100_001).to_bytes(8, "big") + bytes(50_000), 1009),
        (frame(b'{"type": ', 0x01) + frame(b"", 0x00) * 10_000, 1009),  # which have no size
        (b"\x81\x02{}", 1002),  # not masked
        (frame(b"{}", 0x83), 1002),  # an opcode that does not exist
        (frame(b"{}", 0xC1), 1002),  # compressed, which was not agreed
        (frame(b"{}", 0x80), 1002),  # the continuation of nothing
        (frame(b'{"type": "\xff"}'), 1008),
        (frame(b"{}"), 1008),
    ],
)
def test_bad_frames_end_their_connection_only(tmp_path: Path, bad: bytes, code: int) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, max_body_bytes=100_000) as (broker, url):
            other_reader, other = await upgraded(url)
            other.write(frame(b'{"type": "hello", "subscriber": "bob"}'))
            assert b"welcome" in (await read_frame(other_reader))[1]
            reader, writer = await upgraded(url)
            writer.write(frame(b'{"type": "hello", "subscriber": "ann"}'))
            assert b"welcome" in (await read_frame(reader))[1]
            writer.write(bad)
            kind, body = await read_frame(reader)
            while kind != 8:
                kind, body = await read_frame(reader)
            assert int.from_bytes(body[:2], "big") == code
            writer.close()
            await until(lambda: broker.mailbox("ann").connected is None)
            other.write(frame(b'{"type": "subscribe", "request": 1, "put": [{"name": "s", "where": "qty > 1"}]}'))
            assert b"done" in (await read_frame(other_reader))[1]
            other.close()

    run(scenario())
