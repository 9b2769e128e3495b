"""Subscribers that leave deliveries pending for long: they are in nobody's way, and everybody can see who it is."""

from __future__ import annotations

import asyncio
from pathlib import Path

from hitbox.broker.settings import Options
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
            assert broker.store.used_bytes() < 1_100_000
            assert [row[0] for row in broker.store.kept.scan()] == [1, 2]
            cid = broker.subscriber("cid").number
            assert 20_000 < broker.store.pending_bytes[cid] < 20_200
            await broker.put_subscriber("cid", Options("drop_oldest", limit=1))
            await until(lambda: broker.mailbox("cid").pending == 1)
            await broker.remove_subscriber("cid")
            assert [row[0] for row in broker.store.kept.scan()] == [1]  # bob's delivery is still there
        async with running(tmp_path, None, keep_bytes=1_000_000) as broker:
            bob = await Listener(broker).attach("bob")
            await until(lambda: bob.seqs() == [1] and not broker.store.kept.rows())
            assert bob.got[0]["time"] > 0

    asyncio.run(scenario())
