"""A paused subscriber gets nothing; its deliveries are kept under its limits."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest

from hitbox.broker.broker import Broker
from hitbox.broker.settings import Options
from hitbox.broker.subscribers.webhook import WebhookSettings
from hitbox.client import Client
from hitbox.protocol.errors import Conflict, Unknown
from support.broker_kit import Listener, item, running, serving, sub, until
from support.webhook_target import target


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 120))


async def publish(broker: Broker, count: int) -> None:
    """Publish, and wait until all of it is matched."""
    last = await broker.publish([item(qty=1)] * count) + count - 1
    await until(lambda: broker.tracker.recorded >= last)


def test_over_http_and_a_restart(tmp_path: Path) -> None:
    path = "/v1/subscribers/ann"

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), httpx.AsyncClient(base_url=url) as http, Client(url) as client:
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            await broker.subscribe("bob", [sub("s", "qty > 0")])
            async with client.subscriber("ann", auto=False) as ann, client.subscriber("bob") as bob:
                await publish(broker, 1)
                first = await anext(ann.__aiter__())
                for _ in range(2):  # twice is as good as once
                    assert (await http.post(path + "/pause")).status_code == 204
                assert (await http.get(path)).json()["paused"] is True
                await publish(broker, 2)
                got = bob.__aiter__()
                assert [(await anext(got)).seq for _ in range(3)] == [1, 2, 3]  # others are not touched
                await ann.ack(first)  # what it has it may acknowledge
                await until(lambda: broker.mailbox("ann").pending == 2)
                assert not broker.mailbox("ann").in_flight
                assert (await http.put(path, json={"limit": 50})).json()["paused"] is True  # no option changes it
        async with serving(tmp_path) as (broker, url), httpx.AsyncClient(base_url=url) as http:
            ann_again = await Listener(broker).attach("ann")
            await publish(broker, 1)
            assert (ann_again.got, broker.mailbox("ann").pending) == ([], 3)
            assert (await http.post(path + "/resume")).status_code == 204
            await until(lambda: ann_again.seqs() == [2, 3, 4])
            await publish(broker, 1)
            await until(lambda: ann_again.seqs() == [2, 3, 4, 5])
            assert (await http.post("/v1/subscribers/nobody/pause")).status_code == 404
            await ann_again.leave()

    run(scenario())


@pytest.mark.parametrize("policy", ["spool", "drop_oldest", "disconnect"])
def test_the_limit_holds_while_it_is_paused(tmp_path: Path, policy: Any) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            ann = await Listener(broker).attach("ann", options=Options(policy, 10))
            await broker.pause("ann", True)
            await publish(broker, 2000)  # more than fits in memory
            mailbox = broker.mailbox("ann")
            if policy == "disconnect":
                await asyncio.sleep(0.3)
                assert (mailbox.pending, ann.closed) == (2000, None)
            else:
                await until(lambda: mailbox.pending == 10)
                assert (mailbox.dead, mailbox.dropped) == ((1990, 0) if policy == "spool" else (0, 1990))
            assert ann.got == []
            await broker.pause("ann", False)
            if policy != "disconnect":
                await until(lambda: mailbox.pending == 0)
                assert ann.seqs() == list(range(1991, 2001))

    run(scenario())


def test_a_delivery_that_failed_waits_and_so_does_a_webhook(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, allow_private_webhooks=True) as (broker, _), target() as there:
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            await broker.subscribe("hook", [sub("s", "qty > 0")])
            await broker.put_webhook("hook", WebhookSettings(there.url()))
            ann = await Listener(broker, auto=False).attach("ann", options=Options(backoff_seconds=0.01))
            await publish(broker, 1)
            await until(lambda: ann.seqs() == [1] and broker.mailbox("hook").pending == 0)
            await broker.pause("ann", True)
            await broker.pause("hook", True)
            broker.tracker.refuse(ann.mailbox, [1])
            await until(lambda: ann.mailbox.ready == 1)  # its pause is over
            await publish(broker, 1)
            assert (ann.seqs(), there.seqs(), broker.mailbox("hook").pending) == ([1], [1], 1)
            await broker.pause("ann", False)
            await broker.pause("hook", False)
            await until(lambda: ann.seqs() == [1, 1, 2] and there.seqs() == [1, 2])
            await ann.leave()

    run(scenario())


def test_who_cannot_be_paused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            eve = await Listener(broker).attach_ephemeral("eve", Options("drop_oldest", 10))
            with pytest.raises(Conflict, match="ephemeral"):
                await broker.pause("eve", True)
            await eve.leave()
            with pytest.raises(Unknown, match="no subscriber 'ann'"):
                await broker.pause("ann", True)

    run(scenario())
