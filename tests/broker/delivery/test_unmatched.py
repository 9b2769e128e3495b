"""The stream of events that nobody wanted, for subscribers that ask for it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from hitbox.broker import admin
from hitbox.broker.commands.cli import app
from hitbox.broker.settings import Options
from hitbox.client import Client
from support.broker_kit import Listener, item, running, sub, until
from support.served import served


@pytest.mark.parametrize("way", ["serial", "alternate", "concurrent"])
def test_what_nobody_wants_goes_to_who_asked_for_it(tmp_path: Path, way: str) -> None:
    async def scenario() -> None:
        async with running(tmp_path, way=way) as broker:
            await broker.subscribe("ann", [sub("s", "qty >= 5", 7)])
            await broker.subscribe("lost", [sub("zero", "qty = 3", 0)])
            await broker.put_subscriber("lost", Options(unmatched=True))
            lost, ann = await Listener(broker).attach("lost"), await Listener(broker).attach("ann")
            live = await Listener(broker).attach_ephemeral("live", Options("drop_oldest", 10, unmatched=True))
            await broker.publish([item(qty=n % 7) for n in range(70)])
            await until(lambda: len(ann.got) == 20 and len(lost.got) == 50)
            assert lost.seqs() == [n + 1 for n in range(70) if n % 7 < 5]  # in order, matched or not
            for delivery in lost.got:
                three = delivery["event"]["qty"] == 3
                assert (delivery["level"], delivery["subscriptions"]) == (0, ["zero"] if three else [])
            assert {d["event"]["qty"] for d in live.got} == {0, 1, 2, 4}
            await until(lambda: broker.statistics.counts["unmatched"] == 40)  # counted after they are sent
            await broker.put_subscriber("lost", Options())
            await broker.publish([item(qty=1), item(qty=3)])
            await until(lambda: len(lost.got) == 51)
            assert lost.seqs()[-1] == 72

    asyncio.run(asyncio.wait_for(scenario(), 180))


def test_the_unmatched_wait_on_the_disk_fail_and_are_replayed(tmp_path: Path) -> None:
    async def scenario() -> None:
        options = Options(unmatched=True, max_tries=1)
        async with running(tmp_path) as broker:
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            await broker.put_subscriber("lost", options)
            await broker.publish([item(qty=n) for n in (0, 1, -1)])
            await until(lambda: broker.waiting.events == 0)
        async with running(tmp_path, None) as broker:
            lost = await Listener(broker, auto=False).attach("lost")
            await until(lambda: len(lost.got) == 2)
            assert [(d["seq"], d["subscriptions"]) for d in lost.got] == [(1, []), (3, [])]
            broker.tracker.refuse(lost.mailbox, [3])
            broker.tracker.acknowledge(lost.mailbox, [1])
            await until(lambda: broker.store.letters.table.rows() == 1 and lost.mailbox.pending == 0)
            _, (raw,) = admin.dead_letters(broker, broker.directory.caller(""), None, "lost", 10)
            letter = msgspec.json.decode(raw)
            assert (letter["seq"], letter["subscriptions"]) == (3, [])
            assert await admin.replay(broker, "lost", 1) == 2
            assert await admin.replay(broker, "ann", 1) == 0  # its delivery is pending anyway
            await until(lambda: lost.seqs() == [1, 3, 1, 3])

    asyncio.run(asyncio.wait_for(scenario(), 180))


def test_on_the_command_line(tmp_path: Path) -> None:
    with served(tmp_path, "--schema", "price:float") as url, Client.sync(url) as client:
        client.request("PUT", "/v1/subscribers/lost", {"unmatched": True})
        client.publish({"price": 1})
        done = CliRunner().invoke(app, ["subscribe", "--name", "lost", "--unmatched", "--count", "1", "--url", url])
        assert json.loads(done.stdout)["subscriptions"] == []
