"""What has begun to come, and does not end, takes at most half of the memory for it per principal, and not for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from hitbox.broker.access.principals import LOCAL
from hitbox.broker.http import app, body_memory, connections
from hitbox.broker.http.body_memory import Account, BodyMemory
from hitbox.broker.settings import Settings
from hitbox.client import Client
from hitbox.protocol.errors import Overloaded
from support.broker_kit import serving, token_of, until
from support.raw_websocket import frame, read_frame

HELLO = b'{"type": "hello", "subscriber": "ann"}'


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 120))


@pytest.fixture
def memories(monkeypatch: pytest.MonkeyPatch) -> list[BodyMemory]:
    """Of the brokers of a test, each with 4,000 bytes."""
    made: list[BodyMemory] = []

    def make(settings: Settings) -> BodyMemory:
        made.append(BodyMemory(settings))
        return made[-1]

    monkeypatch.setattr(body_memory, "LEAST_BYTES", 4000)
    monkeypatch.setattr(app, "BodyMemory", make)
    monkeypatch.setattr(connections, "READ_BYTES_UPGRADED", 100)
    return made


async def connected(url: str, head: list[str], who: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    lines = [*head, f"Host: {host}:{port}", f"Authorization: Bearer {token_of(who)}", "", ""]
    writer.write("\r\n".join(lines).encode())
    return reader, writer


async def websocket(url: str, who: str, early: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    head = ["GET /v1/connect HTTP/1.1", "Upgrade: websocket", "Connection: Upgrade",
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "Sec-WebSocket-Version: 13"]  # fmt: skip
    reader, writer = await connected(url, head, who)
    assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
    return reader, writer


def test_one_principal_has_half() -> None:
    memory = BodyMemory(Settings(max_body_bytes=2**30))
    assert memory.most == 4 * 2**30
    with Account(memory, "ann") as ann, Account(memory, "bob") as bob, Account(memory, LOCAL) as local:
        ann.hold(2 * 2**30)
        with pytest.raises(Overloaded, match="'ann'"):
            ann.hold(2 * 2**30 + 1)
        bob.hold(2**30)
        local.hold(2**30)
        with pytest.raises(Overloaded):
            bob.hold(2**30 + 1)
        ann.hold(5)
        local.hold(3 * 2**30 - 5)
    assert memory.of == {}
    assert memory._all == 0


def test_bodies_without_an_end(tmp_path: Path, memories: list[BodyMemory]) -> None:
    head = ["POST /v1/events HTTP/1.1", "Content-Type: application/json", "Content-Length: 900"]

    async def scenario() -> None:
        async with serving(tmp_path, principals=["ann", "bob"], max_body_bytes=1000) as (_, url):
            began = []
            for n in range(1, 3):
                began.append(await connected(url, head, "ann"))
                began[-1][1].write(b"x" * 800)
                await until(lambda n=n: memories[0].of["ann"] == 800 * n)
            reader, writer = await connected(url, head, "ann")
            writer.write(b"x" * 800)
            assert b" 429 " in await reader.readuntil(b"\r\n")
            async with Client(url, token_of("bob")) as bob:
                assert await bob.publish_many([{"qty": 1, "city": "x" * 500}]) == 1
            for _, one in [*began, (reader, writer)]:
                one.close()
            await until(lambda: not memories[0].of)

    run(scenario())


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("fragments", [False, True])
def test_messages_without_an_end(
    tmp_path: Path, memories: list[BodyMemory], monkeypatch: pytest.MonkeyPatch, early: bool, fragments: bool
) -> None:
    """In one frame that does not end, or in fragments; also where some came before the handshake was answered."""
    if early:
        monkeypatch.setattr(
            connections.WebSocketProtocol, "_early", property(lambda _: True, lambda *_: None), raising=False
        )
    part = frame(b"x" * 800, 0x01) if fragments else frame(b"x" * 900)[:-100]

    async def scenario() -> None:
        async with serving(tmp_path, principals=["ann"], max_body_bytes=1000) as (_, url):
            began = []
            for n in range(1, 3):
                hello = frame(HELLO.replace(b"ann", b"ann%d" % n))
                began.append(await websocket(url, "ann"))
                began[-1][1].write(hello)
                assert b"welcome" in (await read_frame(began[-1][0]))[1]
                began[-1][1].write(part)
                await until(lambda n=n: memories[0].of["ann"] // 800 == n)
            reader, writer = await websocket(url, "ann")
            writer.write(frame(HELLO))
            assert b"welcome" in (await read_frame(reader))[1]
            writer.write(part)
            kind, reason = await read_frame(reader)
            assert (kind, int.from_bytes(reason[:2], "big")) == (8, 1013)
            began[0][1].write(frame(b"x", 0x80) if fragments else b"x" * 100)  # it ends, and is nonsense
            assert b"error" in (await read_frame(began[0][0]))[1]
            for _, one in [*began, (reader, writer)]:
                one.close()
            await until(lambda: not memories[0].of)

    run(scenario())


def test_a_message_has_as_much_time_as_a_body(tmp_path: Path, memories: list[BodyMemory]) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, principals=["ann"], max_body_bytes=1000, body_seconds=0.2) as (broker, url):
            reader, writer = await websocket(url, "ann")
            writer.write(frame(HELLO))
            assert b"welcome" in (await read_frame(reader))[1]
            writer.write(frame(b'{"type": "window", "size": 7}' + b" " * 300) * 3 + frame(b"x" * 900)[:-1])
            kind, reason = await read_frame(reader)
            assert (kind, int.from_bytes(reason[:2], "big")) == (8, 1008)
            assert broker.statistics.closed["body"] == 1
            writer.close()
            await until(lambda: not memories[0].of)

    run(scenario())
