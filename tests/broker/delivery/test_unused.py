"""Subscribers that expire when nobody uses them."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from hitbox.broker.broker import Broker
from hitbox.broker.clock import time
from hitbox.broker.metrics import exposition
from hitbox.broker.settings import Options
from hitbox.broker.subscribers.subscriber_record import USE_SECONDS, read_record
from hitbox.broker.subscribers.subscriptions import Subscriber
from hitbox.broker.subscribers.webhook import WebhookSettings
from hitbox.client import BadRequest, Client
from support.broker_kit import Listener, item, running, serving, sub, until

Move = Callable[[float], None]
WEEK = 7 * 86_400.0


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Move:
    """Move the broker's clocks to so many seconds from now."""
    monotonic, wall, exact, elapsed = time.monotonic, time.time, time.time_ns, time.elapsed_ns

    def move(seconds: float) -> None:
        monkeypatch.setattr(time, "monotonic", lambda: monotonic() + seconds)
        monkeypatch.setattr(time, "time", lambda: wall() + seconds)
        monkeypatch.setattr(time, "time_ns", lambda: exact() + int(seconds * 1e9))
        monkeypatch.setattr(time, "elapsed_ns", lambda: elapsed() + int(seconds * 1e9))

    return move


def names(broker: Broker) -> set[str]:
    return set(broker.registry.by_name)


def stored_use(broker: Broker, name: str) -> float:
    ((settings,),) = broker.store.reader.read("SELECT settings FROM subscribers WHERE name = ?", (name,))
    return read_record(settings).used


def test_what_nobody_uses_is_removed(tmp_path: Path, later: Move, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        async with running(tmp_path, allow_private_webhooks=True) as broker:
            for name in ("gone", "changed", "connected", "hooked"):
                await broker.put_subscriber(name, Options(expires_seconds=WEEK))
            await broker.put_subscriber("kept")
            await broker.subscribe("gone", [sub("s", "qty > 0")])
            await broker.publish([item(qty=1)])
            await until(lambda: broker.caught_up() and broker.mailbox("gone").pending == 1)
            await broker.put_webhook("hooked", WebhookSettings("http://127.0.0.1:9/"))
            listener = await Listener(broker).attach("connected")
            later(WEEK - 60)
            await broker.subscribe("changed", [sub("s", "qty > 1")])
            later(WEEK + 60)
            await until(lambda: "gone" not in names(broker))
            assert names(broker) == {"changed", "connected", "hooked", "kept"}
            assert broker.describe()["expired_subscribers"] == 1
            assert b"hitbox_expired_subscribers_total 1.0" in exposition(broker, lambda _: True, True)
            await until(lambda: broker.store.deliveries.unacknowledged() == 0)  # the store follows
            assert "gone/s" not in broker.registry.index
            await listener.leave()
            later(2 * WEEK + 30)
            await until(lambda: "changed" not in names(broker))
            assert names(broker) == {"connected", "hooked", "kept"}  # it left less than a week ago
        assert "subscriber 'gone' was not used for 604800 seconds: it is removed with its 1 sub" in caplog.text

    asyncio.run(scenario())


def test_over_restarts(tmp_path: Path, later: Move) -> None:
    """The latest use is stored once per hour. After a start there is an hour to come back, and not more."""

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            for name in ("ann", "bob"):
                await broker.put_subscriber(name, Options(expires_seconds=WEEK))
            first = stored_use(broker, "ann")
            assert abs(first - time.time()) < 60
            ann = await Listener(broker).attach("ann")
            later(2 * USE_SECONDS)
            await until(lambda: stored_use(broker, "ann") > first + USE_SECONDS)
            assert stored_use(broker, "bob") < first + 60
            await ann.leave()
        later(2 * WEEK)
        async with running(tmp_path, None) as broker:
            assert names(broker) == {"ann", "bob"}
            later(2 * WEEK + USE_SECONDS - 60)
            ann = await Listener(broker).attach("ann")
            await ann.leave()
            later(2 * WEEK + USE_SECONDS + 60)
            await until(lambda: names(broker) == {"ann"})
        later(3 * WEEK)  # it was used less than a week ago
        async with running(tmp_path, None) as broker:
            left = WEEK - broker.mailbox("ann").unused_seconds()
            assert USE_SECONDS - 60 < left <= 2 * USE_SECONDS + 120

    asyncio.run(scenario())


def test_one_that_comes_back_while_it_is_being_removed_stays(tmp_path: Path, later: Move) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.put_subscriber("ann", Options(expires_seconds=60))
            async with broker.change_barrier.exclusive():
                later(100)
                removing = asyncio.create_task(broker._remove_subscriber(broker.subscriber("ann"), only_unused=True))
                await asyncio.sleep(0)
                ann = await Listener(broker).attach("ann")
            await removing
            assert names(broker) == {"ann"}
            assert ann.closed is None
            await ann.leave()

    asyncio.run(scenario())


def test_a_client_that_comes_during_the_removal_gets_a_new_subscriber(
    tmp_path: Path, later: Move, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is connected afterwards: not to the one that goes, which would end its connection for good."""

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.put_subscriber("ann", Options(expires_seconds=60))
            old, clear, begun, go_on = (
                broker.subscriber("ann"),
                broker.registry.clear,
                asyncio.Event(),
                threading.Event(),
            )
            loop = asyncio.get_running_loop()

            def slow(subscriber: Subscriber) -> None:
                loop.call_soon_threadsafe(begun.set)
                go_on.wait(20)
                clear(subscriber)

            monkeypatch.setattr(broker.registry, "clear", slow)
            later(100)
            removing = asyncio.create_task(broker._remove_subscriber(old, only_unused=True))
            await begun.wait()
            coming = asyncio.create_task(Listener(broker).attach("ann"))
            await asyncio.sleep(0.01)
            go_on.set()
            await removing
            ann = await coming
            assert broker.subscriber("ann") is ann.mailbox.subscriber is not old
            assert ann.closed is None
            await ann.leave()

    asyncio.run(scenario())


def test_the_time_begins_when_the_connection_ends(tmp_path: Path, later: Move) -> None:
    """Not when somebody looked the last time, which may be long ago if the broker was busy."""

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            ann = await Listener(broker).attach("ann", options=Options(expires_seconds=60))
            later(1000)
            ann.mailbox.disconnect(ann)
            assert ann.mailbox.unused_seconds() < 60
            await ann.leave()

    asyncio.run(scenario())


def test_over_http_and_sockets(tmp_path: Path, later: Move) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), Client(url) as client:
            for bad in (59, -1, 1e12):
                with pytest.raises(BadRequest, match="expires_seconds must be 60 to"):
                    await client.put_subscriber("ann", expires_seconds=bad)
            with pytest.raises(BadRequest, match="an ephemeral subscriber ends with its connection"):
                async with client.subscriber(ephemeral=True, policy="drop_oldest", expires_seconds=100):
                    pass
            async with client.subscriber("ann", expires_seconds=100):
                later(1000)
                found = await client.get_subscriber("ann")
                assert (found["unused_seconds"], found["options"]["expires_seconds"]) == (0, 100)
            await client.put_subscriber("bob")
            assert (await client.get_subscriber("bob"))["unused_seconds"] is None
            later(2000)
            await until(lambda: names(broker) == {"bob"})
            assert (await client.stats())["expired_subscribers"] == 1

    asyncio.run(scenario())
