"""What a WebSocket sends and takes without a turn of the event loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError

from hitbox.broker.delivery.mailbox import Mailbox
from hitbox.broker.http import websocket
from support.broker_kit import serving, sub, until


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 120))


async def subscriber(url: str, name: str, window: int = 100) -> Any:
    socket = await connect(f"ws{url[4:]}/v1/connect", ping_interval=None)
    await socket.send(json.dumps({"type": "hello", "subscriber": name, "window": window}))
    assert json.loads(await socket.recv())["type"] == "welcome"
    return socket


async def seqs(socket: Any) -> list[int]:
    return [one["seq"] for one in json.loads(await socket.recv())["deliveries"]]


def fails(*_: object) -> Any:
    raise ValueError("broken")


@pytest.mark.parametrize("at", ["send", "acknowledge", "publish"])
def test_an_error_ends_its_own_connection_only(tmp_path: Path, at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = websocket.Session._frame

    def frame(self: Any, mailbox: Mailbox, deliveries: Any) -> bytes:
        return fails() if mailbox.subscriber.name == "ann" else real(self, mailbox, deliveries)

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url):
            for name in ("ann", "bob"):
                await broker.subscribe(name, [sub("s", "qty > 0")])
            ann, bob = await subscriber(url, "ann"), await subscriber(url, "bob")
            publisher = await connect(f"ws{url[4:]}/v1/publish", ping_interval=None)
            event = json.dumps({"type": "publish", "request": 1, "items": [{"event": {"qty": 1}}]})
            with monkeypatch.context() as broken:
                if at == "send":
                    broken.setattr(websocket.Session, "_frame", frame)
                await publisher.send(event)
                assert json.loads(await publisher.recv())["first"] == 1
                assert await seqs(bob) == [1]
                closed = ann
                if at == "acknowledge":
                    assert await seqs(ann) == [1]
                    broken.setattr(broker.tracker, "acknowledge", fails)
                    await ann.send('{"type":"ack","ranges":[[1,1]]}')
                elif at == "publish":
                    broken.setattr(broker, "accept_now", fails)
                    await publisher.send(event)
                    closed = publisher
                with pytest.raises(ConnectionClosedError) as ended:
                    await closed.recv()
                assert ended.value.rcvd is not None
                assert ended.value.rcvd.code == 1011
            await bob.send('{"type":"ack","ranges":[[1,1]]}')
            await until(lambda: broker.mailbox("bob").pending == 0)
            assert broker.failed is None
            if at != "publish":
                again = await subscriber(url, "ann")
                assert await seqs(again) == [1]

    run(scenario())


def test_a_full_window_and_what_follows_it(tmp_path: Path) -> None:
    """Everything comes once and in order, whoever sends it: the dispatcher, or the task of the connection."""

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url):
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            ann = await subscriber(url, "ann", window=3)
            publisher = await connect(f"ws{url[4:]}/v1/publish", ping_interval=None)
            for n in range(40):
                items = [{"event": {"qty": 1}}] * (1 + n % 3)
                await publisher.send(json.dumps({"type": "publish", "request": n, "items": items}))
            firsts = [json.loads(await publisher.recv())["first"] for _ in range(40)]
            assert firsts == sorted(firsts)
            got: list[int] = []
            while len(got) < 79:
                frame = json.loads(await ann.recv())
                new = [one["seq"] for one in frame["deliveries"]]
                assert 1 <= len(new) <= 3
                got += new
                if len(got) % 2:  # as the client writes it, and in another order of its fields
                    await ann.send(json.dumps({"ranges": [[1, len(got)]], "type": "ack"}))
                else:
                    await ann.send(f'{{"type":"ack","ranges":[[1,{len(got)}]]}}')
            assert got == list(range(1, 80))
            await until(lambda: broker.mailbox("ann").pending == 0)

    run(scenario())


def test_an_acknowledgement_of_an_earlier_connection_is_looked_up_first(tmp_path: Path) -> None:
    """The next message waits until it was found in the store, so that what follows is not sent again."""

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url):
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            first = await subscriber(url, "ann")
            async with connect(f"ws{url[4:]}/v1/publish", ping_interval=None) as publisher:
                items = [{"event": {"qty": 1}}] * 5
                await publisher.send(json.dumps({"type": "publish", "request": 1, "items": items}))
                assert await seqs(first) == [1, 2, 3, 4, 5]
            second = await subscriber(url, "ann", window=1)
            assert await seqs(second) == [1]
            for n in (3, 5, 4, 2):
                await second.send(f'{{"type":"ack","seqs":[{n}]}}')
            await until(lambda: broker.mailbox("ann").pending == 1)
            await second.send('{"type":"ack","ranges":[[1,1]]}')
            await until(lambda: broker.mailbox("ann").pending == 0)
            await second.close()
            third = await subscriber(url, "ann")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(third.recv(), 0.3)

    run(scenario())
