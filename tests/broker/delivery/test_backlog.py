"""Subscribers that leave deliveries pending for long: they are in nobody's way, and everybody can see who it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hitbox.broker.broker import Broker
from hitbox.broker.delivery.delivery import OVER_BYTES, TOO_OLD
from hitbox.broker.metrics import exposition
from hitbox.broker.settings import Options
from hitbox.broker.store.store import Store
from support.broker_kit import Listener, item, running, sub, until


def test_one_forgotten_delivery_does_not_pin_the_log(tmp_path: Path) -> None:
    """The space of all other events is free, and the delivery arrives, also after a restart."""

    async def scenario() -> None:
        async with running(tmp_path, keep_bytes=1_000_000) as broker:
            await broker.subscribe("bob", [sub("s", "qty = 0")])
            await broker.subscribe("cid", [sub("s", "qty < 2")])
            for qty in range(400):
                await broker.publish([item(qty=qty, city="x" * 10_000)])
            await until(broker.caught_up)
            await broker._trim()
            assert broker.store.space.used_bytes() < 1_100_000
            assert [row[0] for row in broker.store.events.kept.scan()] == [1, 2]
            cid = broker.subscriber("cid").number
            assert 20_000 < broker.store.deliveries.bytes.committed[cid] < 20_200
            await broker.put_subscriber("cid", Options("drop_oldest", limit=1))
            await until(lambda: broker.mailbox("cid").pending == 1)
            await broker.remove_subscriber("cid")
            assert [row[0] for row in broker.store.events.kept.scan()] == [1]  # bob's delivery is still there
        async with running(tmp_path, None, keep_bytes=1_000_000) as broker:
            bob = await Listener(broker).attach("bob")
            await until(lambda: bob.seqs() == [1] and not broker.store.events.kept.rows())
            assert bob.got[0]["time"] > 0

    asyncio.run(scenario())


def test_what_else_is_stored_takes_nothing_of_the_log(tmp_path: Path) -> None:
    """Dead letters and delayed events of one may be larger than `keep_bytes`, and the events of all others stay."""

    async def scenario() -> None:
        async with running(tmp_path, keep_bytes=100_000) as broker:
            await broker.put_subscriber("ann", Options(limit=1))
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            large = "x" * 30_000
            for _ in range(8):
                await broker.publish([item(qty=1, city=large)])
                await until(broker.caught_up)
            await until(lambda: broker.store.letters.table.rows() == 7)
            await broker.publish([msgspec.structs.replace(item(qty=0, city=large), delay_seconds=3600.0)] * 8)
            first = await broker.publish([item(qty=0)] * 20)
            await until(broker.caught_up)
            await broker._trim()
            assert broker.store.space.used_bytes() > 400_000
            assert broker.store.events.total("events") < 100_000
            assert 1 < broker.store.events.table.first() < first
        store = Store(tmp_path)
        counted = store.events.total("events")
        with store.transaction():
            store.retention.trim(2**62, 0)
        assert (store.events.total("events"), counted > 0) == (0, True)
        store.close()

    asyncio.run(scenario())


def test_who_pins_is_named(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, keep_seconds=0) as broker:
            await broker.subscribe("bob", [sub("s", "qty = 0")])
            await broker.publish([item(qty=0), item(qty=1)])
            await until(broker.caught_up)
            assert broker.health()[0]["status"] == "ok"
            await broker._trim()
            await until(lambda: broker.health()[0]["status"] == "degraded")
            (said,) = broker.describe()["set_aside"]
            assert "subscriber 'bob' holds events that retention would remove: 1 delivery is pending" in said
            text = exposition(broker, lambda _: True, True).decode()
            assert 'hitbox_subscriber_pending_bytes{subscriber="bob"} 0.0' not in text
            assert "hitbox_kept 1.0" in text
            assert (
                broker.describe()["oldest_pending_seconds"]
                == broker.mailbox("bob").describe()["oldest_pending_seconds"]
            )
            bob = await Listener(broker).attach("bob")
            await until(lambda: broker.health()[0]["status"] == "ok")
            await bob.leave()

    asyncio.run(scenario())


def reasons(broker: Broker) -> set[str]:
    return {row[6] for row in broker.store.letters.table.scan()}


@pytest.mark.parametrize(("policy", "dead"), [("spool", 12), ("disconnect", 12), ("drop_oldest", 0)])
def test_beyond_the_largest_size_the_oldest_go(tmp_path: Path, policy: Any, dead: int) -> None:
    async def scenario() -> None:
        async with running(tmp_path, max_pending_bytes=8_900) as broker:
            await broker.put_subscriber("bob", Options(policy))
            await broker.subscribe("bob", [sub("s", "qty > 0")])
            await broker.subscribe("cid", [sub("s", "qty > 15")])
            await broker.publish([item(qty=qty, city="x" * 1000) for qty in range(1, 21)])
            bob = broker.mailbox("bob")
            await until(lambda: bob.pending == 8 and not bob.is_shrinking)
            assert [row[2] for row in sorted(broker.store.deliveries.of(bob.subscriber.number))] == list(range(13, 21))
            assert (bob.dead, bob.dropped) == (dead, 12 - dead)
            assert reasons(broker) == ({OVER_BYTES} if dead else set())
            assert broker.mailbox("cid").pending == 5

    asyncio.run(scenario())


def test_beyond_the_largest_age_the_oldest_go(tmp_path: Path, later: Callable[[float], None]) -> None:
    async def scenario() -> None:
        async with running(tmp_path, max_pending_seconds=3600) as broker:
            await broker.subscribe("bob", [sub("s", "qty > 0")])
            await broker.publish([item(qty=1)] * 3)
            await until(broker.caught_up)
            later(1800)
            await broker.publish([item(qty=1)] * 2)
            bob = broker.mailbox("bob")
            assert bob.pending == 5
            later(3700)
            await until(lambda: bob.pending == 2 and not bob.is_shrinking)
            assert reasons(broker) == {TOO_OLD}
            assert broker.store.letters.table.rows() == 3

    asyncio.run(scenario())
