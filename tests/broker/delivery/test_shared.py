"""Several connections share the deliveries of one subscriber."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from websockets.asyncio.client import ClientConnection, connect

import hitbox
from hitbox.broker.broker import Broker
from hitbox.broker.delivery.mailbox import Mailbox
from hitbox.broker.delivery.webhooks import WebhookSession
from hitbox.broker.settings import Options
from hitbox.broker.subscribers.webhook import WebhookSettings
from support.broker_kit import Listener, item, running, serving, sub, until
from support.webhook_target import target

PAGE = (Path(__file__).parents[3] / "docs" / "broker.md").read_text()
SHARED = Options(shared=True, backoff_seconds=0.01, visibility_seconds=600)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 120))


async def prepare(broker: Broker, options: Options = SHARED) -> None:
    await broker.put_subscriber("ann", options)
    await broker.subscribe("ann", [sub("low", "qty > 0", 2), sub("high", "price > 0", 8)])


class Socket:
    """A WebSocket of ann, with the protocol by hand."""

    def __init__(self, socket: ClientConnection):
        self.socket = socket
        self.got: list[dict[str, Any]] = []

    async def say(self, **message: Any) -> None:
        await self.socket.send(msgspec.json.encode(message).decode())

    async def receive(self, count: int) -> list[int]:
        """Wait until `count` deliveries have come in all; their numbers."""
        while len(self.got) < count:
            self.got += msgspec.json.decode(await self.socket.recv()).get("deliveries", [])
        return [d["seq"] for d in self.got]


async def hello(socket: ClientConnection, window: int) -> Socket:
    found = Socket(socket)
    await found.say(type="hello", subscriber="ann", window=window)
    assert b"welcome" in (await socket.recv(decode=False))
    return found


def test_each_delivery_goes_to_one_and_windows_are_per_connection(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url):
            await prepare(broker)
            address = "ws" + url[4:] + "/v1/connect"
            async with connect(address) as a, connect(address) as b:
                one, two = await hello(a, 2), await hello(b, 3)
                await broker.publish([item(qty=1)] * 10)
                got = sorted(await one.receive(2) + await two.receive(3))
                assert got == [1, 2, 3, 4, 5]
                assert broker.mailbox("ann").describe()["connections"] == 2
                await one.say(type="ack", seqs=[d["seq"] for d in one.got])
                assert len(await one.receive(4)) == 4
                await two.say(type="window", size=6)
                assert sorted(await one.receive(4) + await two.receive(6)) == list(range(1, 11))
                # what is with the other connection cannot be refused or kept; an acknowledgement counts
                await one.say(type="nack", seqs=[d["seq"] for d in two.got])
                await one.say(type="ack", seqs=list(range(1, 11)))
                await until(lambda: broker.mailbox("ann").pending == 0)
                assert broker.mailbox("ann").resent == 0

    run(scenario())


def test_what_a_dead_connection_held_moves_to_another(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url):
            await prepare(broker)
            address = "ws" + url[4:] + "/v1/connect"
            async with connect(address) as b:
                async with connect(address) as a:
                    one = await hello(a, 5)
                    await broker.publish([item(qty=1), item(qty=1), item(price=1.0), item(qty=1), item(qty=1)])
                    assert await one.receive(5) == [3, 1, 2, 4, 5]  # the urgent one first
                    two = await hello(b, 100)
                    await broker.publish([item(qty=1), item(price=1.0)])
                    assert await two.receive(2) == [7, 6]
                    await one.say(type="ack", seqs=[2])
                    await until(lambda: broker.mailbox("ann").pending == 6)
                    a.transport.abort()
                await until(lambda: len(broker.mailbox("ann").connections()) == 1)
                seqs = await two.receive(6)
                assert seqs == [7, 6, 3, 1, 4, 5]
                assert [d["redelivered"] for d in two.got] == [False, False, True, True, True, True]
                assert {d["attempt"] for d in two.got} == {1}
                await two.say(type="ack", seqs=seqs)
                await until(lambda: broker.mailbox("ann").pending == 0)

    run(scenario())


def test_from_disk_each_comes_once(tmp_path: Path) -> None:
    """Many wait on disk and are fetched by whoever needs them, while connections come and go."""

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await prepare(broker)
            count = 6000
            for _ in range(count // 500):
                await broker.publish([item(qty=1)] * 500)
            chance = random.Random(3)
            everybody = [await Listener(broker).attach("ann", 50) for _ in range(5)]
            here = list(everybody)
            for _ in range(40):
                if len(here) > 1 and chance.random() < 0.5:
                    await here.pop(chance.randrange(len(here))).leave()
                else:
                    here.append(await Listener(broker).attach("ann", 50))
                    everybody.append(here[-1])
                await broker.publish([item(qty=1)] * 10)
                await asyncio.sleep(0.005)
            await until(lambda: broker.mailbox("ann").pending == 0)
            seen = Counter(seq for one in everybody for seq in one.seqs())
            assert set(seen) == set(range(1, count + 401))
            assert set(seen.values()) == {1}  # each was acknowledged by the one that got it
            for one in everybody:
                assert one.seqs() == sorted(one.seqs())
            assert sum(bool(one.got) for one in everybody) > 1

    run(scenario())


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost_whatever_the_connections_do(tmp_path: Path, seed: int) -> None:
    """Connections that acknowledge, refuse, let time run out, stall and leave, also all of them; and a pause."""
    chance = random.Random(seed)
    options = Options(
        shared=True, backoff_seconds=0.01, max_backoff_seconds=0.02, visibility_seconds=0.2, max_tries=10**6
    )

    class Worker(Listener):
        async def run(self) -> None:
            while found := await self.broker.tracker.next(self.mailbox, self):
                if chance.random() < 0.1:
                    await asyncio.sleep(0.02)
                self.broker.tracker.sent(self.mailbox, found)
                for delivery in found:
                    self.got.append({"seq": delivery.seq, "redelivered": delivery.sent})
                    dice = chance.random()
                    if dice < 0.7:
                        handled.add(delivery.seq)
                        self.broker.tracker.acknowledge(self.mailbox, [delivery.seq])
                    elif dice < 0.85:
                        self.broker.tracker.refuse(self.mailbox, [delivery.seq], self)

    handled: set[int] = set()

    def check(mailbox: Mailbox) -> None:
        """What each connection holds, counted by hand."""
        flying = list(mailbox.in_flight.values())
        assert mailbox.paused == sum(d.holder is None for d in flying)
        for one in mailbox.connections():
            held = sum(mailbox.holds(one, d) for d in flying)
            assert mailbox.window_left(one) == 7 - held - max(mailbox.paused - 1000, 0)
            assert held <= 7
        assert mailbox.ready == sum(map(len, mailbox._ready))

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await prepare(broker, options)
            mailbox = broker.mailbox("ann")
            here: list[Listener] = []
            total = 0
            for _ in range(120):
                dice = chance.random()
                if dice < 0.3 and len(here) < 5:
                    here.append(await Worker(broker).attach("ann", 7))
                elif dice < 0.5 and here:
                    await here.pop(chance.randrange(len(here))).leave()
                elif dice < 0.55:
                    await broker.pause("ann", not broker.subscriber("ann").paused)
                elif dice < 0.9:
                    total += (count := chance.choice([1, 5, 300]))
                    await broker.publish([item(qty=1) if chance.random() < 0.7 else item(price=1.0)] * count)
                check(mailbox)
                await asyncio.sleep(chance.choice([0, 0.001, 0.02]))
            await broker.pause("ann", False)
            here.append(await Listener(broker).attach("ann", 7))
            while mailbox.pending:
                check(mailbox)
                handled.update(here[-1].seqs())
                await asyncio.sleep(0.01)
            handled.update(here[-1].seqs())
            assert handled == set(range(1, total + 1))
            check(mailbox)

    run(scenario())


def test_workers_of_the_docs(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(async def worker.*?)```", PAGE, re.DOTALL)
    handled: list[int] = []
    names: dict[str, Any] = {"hitbox": hitbox, "handle": lambda delivery: handled.append(delivery.seq)}
    exec(code, names)

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), hitbox.Client(url) as one, hitbox.Client(url) as two:
            workers = [asyncio.create_task(names["worker"](client)) for client in (one, two)]
            await until(lambda: broker.describe()["connections"] == 2)
            await broker.subscribe("orders", [sub("s", "qty > 0")])
            await broker.publish([item(qty=1)] * 200)
            await until(lambda: sorted(handled) == list(range(1, 201)))
            workers[0].cancel()
            await until(lambda: broker.describe()["connections"] == 1)
            await broker.publish([item(qty=1)])
            await until(lambda: 201 in handled and broker.describe()["pending"] == 0)
            workers[1].cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    run(scenario())


def test_exclusive_again_keeps_the_newest(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await prepare(broker)
            one, two = [await Listener(broker).attach("ann") for _ in range(2)]
            assert one.closed is None
            await broker.put_subscriber("ann", Options())
            assert (one.closed or (0,))[0] == 4409
            assert two.closed is None
            await one.leave()
            three = await Listener(broker).attach("ann")
            assert (two.closed or (0,))[0] == 4409
            await broker.publish([item(qty=1)])
            await until(lambda: three.seqs() == [1])
            await asyncio.wait_for(two.task, 5)  # replaced: it gets nothing more

    run(scenario())


def test_a_failed_delivery_goes_to_anybody_and_all_leave(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await prepare(broker)
            one, two = [await Listener(broker, auto=False).attach("ann", 1) for _ in range(2)]
            await broker.publish([item(qty=1)] * 3)
            await until(lambda: len(one.got) == len(two.got) == 1)
            broker.tracker.refuse(one.mailbox, one.seqs(), two)  # not with this one: ignored
            assert one.mailbox.paused == 0
            broker.tracker.refuse(one.mailbox, one.seqs(), one)
            assert one.mailbox.paused == 1
            await until(lambda: len(one.got) == 2)  # the place in its window is free
            await one.leave()
            await two.leave()
            mailbox = one.mailbox
            assert (mailbox.connected, mailbox.ready, len(mailbox.in_flight), mailbox.paused) == (None, 0, 0, 0)
            last = await Listener(broker).attach("ann")
            await until(lambda: mailbox.pending == 0)
            assert sorted(last.seqs()) == [1, 2, 3]

    run(scenario())


def test_a_webhook_an_event_stream_and_a_websocket_together(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            serving(tmp_path, allow_private_webhooks=True) as (broker, url),
            target() as there,
            httpx.AsyncClient(base_url=url, timeout=60) as http,
            connect("ws" + url[4:] + "/v1/connect") as a,
        ):
            await prepare(broker)
            there.hold = asyncio.Event()
            await broker.put_webhook("ann", WebhookSettings(there.url(), batch=1))
            query = {"ack": "client", "window": "1"}
            async with http.stream("GET", "/v1/subscribers/ann/deliveries", params=query) as stream:
                assert stream.status_code == 200
                one = await hello(a, 1)
                kinds = [type(c) for c in broker.mailbox("ann").connections()]
                assert (len(kinds), WebhookSession in kinds) == (3, True)
                await broker.publish([item(qty=1)] * 3)
                await until(lambda: len(broker.mailbox("ann").in_flight) == 3 and len(there.got) == 1)
                got = {(await one.receive(1))[0], there.seqs()[0]}
                assert len(got) == 2
                there.hold.set()
                await until(lambda: broker.mailbox("ann").pending == 2)
            await until(lambda: broker.mailbox("ann").pending == 1)  # the webhook got what the stream held
            assert set(there.seqs()) | set(await one.receive(1)) == {1, 2, 3}

    run(scenario())


def test_a_stuck_connection_over_the_limit_stops_no_other(tmp_path: Path) -> None:
    """All connections are closed once. Those that come back are served, also while one that is stuck has not left."""

    async def scenario() -> None:
        async with serving(tmp_path, allow_private_webhooks=True) as (broker, _), target() as there:
            await prepare(broker, Options("disconnect", 5, shared=True, visibility_seconds=600))
            stuck = await Listener(broker, slow=asyncio.Event()).attach("ann", 1)
            await broker.publish([item(qty=1)])
            await until(lambda: len(broker.mailbox("ann").in_flight) == 1)
            there.hold = asyncio.Event()
            await broker.put_webhook("ann", WebhookSettings(there.url(), batch=1))
            await broker.publish([item(qty=1)] * 20)
            await until(lambda: stuck.closed)
            assert (stuck.closed or (0,))[0] == 1013
            there.hold.set()
            await until(lambda: broker.mailbox("ann").pending == 1)
            assert set(there.seqs()) == set(range(2, 22))
            assert stuck in broker.mailbox("ann").connections()
            stuck.task.cancel()

    run(scenario())
