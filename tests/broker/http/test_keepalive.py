"""Clients that are gone are noticed, and looking for them costs little however many there are."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from websockets.asyncio.client import connect

from hitbox.broker.http import keepalive
from hitbox.broker.http.keepalive import Keepalive
from support.broker_kit import serving, until
from support.raw_websocket import frame, read_frame, upgraded

PING, PONG = 9, 10


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keepalive, "PING_SECONDS", 0.2)
    monkeypatch.setattr(keepalive, "TICK_SECONDS", 0.02)


def test_a_client_that_answers_no_ping_is_closed(tmp_path: Path, often: None) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url):
            reader, writer = await upgraded(url)
            writer.write(frame(b'{"type": "hello", "subscriber": "gone"}'))
            assert b"welcome" in (await read_frame(reader))[1]
            async with connect(f"ws{url[4:]}/v1/connect", ping_interval=None, proxy=None) as there:
                await there.send('{"type": "hello", "subscriber": "there"}')
                await there.recv()
                assert (await read_frame(reader))[0] == PING
                with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                    await read_frame(reader)
                writer.close()
                await until(lambda: broker.mailbox("gone").connected is None)
                assert broker.statistics.closed["silent"] == 1
                await asyncio.sleep(1)  # five pings, which the library answers
                assert broker.mailbox("there").connected is not None
                await there.send('{"type": "window", "size": 5}')
            assert broker.statistics.closed["silent"] == 1

    asyncio.run(scenario())


def test_who_says_something_is_not_asked(tmp_path: Path, often: None) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url):
            reader, writer = await upgraded(url)
            writer.write(frame(b'{"type": "hello", "subscriber": "ann"}'))
            assert b"welcome" in (await read_frame(reader))[1]
            for size in range(1, 21):
                writer.write(frame(b'{"type": "window", "size": %d}' % size))
                await asyncio.sleep(0.05)
            asked = asyncio.ensure_future(read_frame(reader))
            await asyncio.sleep(0)
            assert not asked.done()
            assert await asyncio.wait_for(asked, 10) == (PING, b"")
            writer.write(frame(b"", 0x80 | PONG))
            assert await asyncio.wait_for(read_frame(reader), 10) == (PING, b"")
            assert broker.mailbox("ann").connected is not None
            writer.close()

    asyncio.run(scenario())


class Peer:
    """A connection; `asked`: how often it was looked at."""

    def __init__(self) -> None:
        self.asked = 0

    def has_client(self) -> bool:
        self.asked += 1
        return True

    def close_silent(self) -> None:
        raise AssertionError


def test_many_connections_are_looked_at_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        now = [0.0]
        ticks: list[object] = []
        monkeypatch.setattr(loop, "time", lambda: now[0])
        monkeypatch.setattr(loop, "call_later", lambda delay, tick: ticks.append(tick))
        few, many = Keepalive(), Keepalive()
        of_few, of_many = [Peer() for _ in range(10)], [Peer() for _ in range(20_000)]
        for watching, peers in ((few, of_few), (many, of_many)):
            for peer in peers:
                watching.watch(peer)
        many.forget(of_many[0])
        while now[0] < 1_000:
            now[0] += keepalive.TICK_SECONDS
            few._tick()
            many._tick()
        assert {peer.asked for peer in of_few} <= {47, 48, 49, 50}  # every 20 seconds
        per_second = sum(peer.asked for peer in of_many) / 1_000
        assert 0.8 * keepalive.PINGS_PER_SECOND <= per_second <= 1.1 * keepalive.PINGS_PER_SECOND
        assert of_many[0].asked == 0
        assert min(peer.asked for peer in of_many[1:]) >= 4

    asyncio.run(scenario())
