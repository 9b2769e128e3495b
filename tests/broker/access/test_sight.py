"""What a principal may see and publish is found out once, and never for long on the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from hitbox.broker import broker as broker_module
from hitbox.broker.access.directory import Directory, Predicates
from hitbox.broker.broker import Broker
from hitbox.broker.delivery import dispatcher
from hitbox.broker.delivery.mailbox import Delivery
from hitbox.broker.http.auth import RateLimiter
from hitbox.client import Client
from support.broker_kit import serving, token_of, until

SHOWN, HIDDEN = {"price": 1.0, "city": "Paris"}, {"price": 2.0, "city": "Rome"}


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 180))


class Asked:
    """The threads in which principals were asked one by one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, which: str):
        self.threads: list[int] = []
        real = getattr(Directory, which)

        def ask(*args: Any) -> bool:
            found: bool = real(*args)
            self.threads.append(threading.get_ident())
            return found

        monkeypatch.setattr(Directory, which, ask)


async def limited(broker: Broker, root: Client, **rights: Any) -> str:
    await root.put_principal("ann", ["publish", "subscribe", "manage", "observe"], names="ann*", **rights)
    token: str = (await root.create_token("ann"))["token"]
    return token


def test_what_was_matched_with_these_rights_is_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch, "may_see")

    async def scenario() -> None:
        async with serving(tmp_path, principals=["root"]) as (broker, url), Client(url, token_of("root")) as root:
            token = await limited(broker, root, see="city = 'Paris'")
            async with Client(url, token) as ann:
                async with ann.subscriber("ann") as mine, ann.subscriber("ann.live", ephemeral=True) as live:
                    for one in (mine, live):
                        await one.subscribe("all", "price > 0")
                    await root.put_principal("bob", [], see="city = 'Rome'")  # is nothing to ann
                    await root.publish_many([HIDDEN, SHOWN, SHOWN])
                    for one in (mine, live):
                        got = [await one.next() for _ in range(2)]
                        assert [d.event for d in got] == [SHOWN, SHOWN]
                        if one is mine:
                            await mine.ack(*got)
                    assert asked.threads == []
                    await until(lambda: not broker.mailbox("ann").pending)
                await root.publish_many([SHOWN] * 3)  # these wait on disk
                async with ann.subscriber("ann") as mine:
                    assert [(await mine.next()).event for _ in range(3)] == [SHOWN] * 3
                assert len(asked.threads) == 3
                assert threading.get_ident() not in asked.threads

    run(scenario())


def test_what_waits_is_asked_again_after_a_change_of_rights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch, "may_see")

    async def scenario() -> None:
        async with serving(tmp_path, principals=["root"]) as (broker, url), Client(url, token_of("root")) as root:
            token = await limited(broker, root, see="price > 0")
            async with Client(url, token) as ann, ann.subscriber("ann", window=1) as mine:
                await mine.subscribe("all", "price > 0")
                await root.publish_many([SHOWN, HIDDEN, SHOWN])
                first = await mine.next()
                await until(lambda: broker.mailbox("ann").ready == 2)
                await root.put_principal("ann", ["subscribe"], names="ann*", see="city = 'Paris'")
                await mine.ack(first)
                assert (await mine.next()).seq == 3
                assert len(asked.threads) == 2
                assert threading.get_ident() not in asked.threads
                assert broker.statistics.counts["hidden"] == 1

    run(scenario())


@pytest.mark.parametrize("ephemeral", [False, True])
def test_what_is_not_asked_yet_waits_for_its_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ephemeral: bool
) -> None:
    """Its rights changed between matching and sending."""
    asked = Asked(monkeypatch, "may_see")
    monkeypatch.setattr(dispatcher, "Delivery", lambda *args, sight, **named: Delivery(*args, **named))

    async def scenario() -> None:
        async with serving(tmp_path, principals=["root"]) as (broker, url), Client(url, token_of("root")) as root:
            token = await limited(broker, root, see="city = 'Paris'")
            async with Client(url, token) as ann, ann.subscriber("ann", ephemeral=ephemeral) as mine:
                await mine.subscribe("all", "price > 0")
                for price in range(1, 4):
                    await root.publish_many([SHOWN, {**SHOWN, "price": price / 8}])
                got = [await mine.next() for _ in range(6)]
                assert [d.seq for d in got] == list(range(1, 7))
                assert len(asked.threads) == 6
                assert threading.get_ident() not in asked.threads
                assert broker.mailbox("ann").pending == (0 if ephemeral else 6)  # the client acknowledges later

    run(scenario())


def test_a_right_to_publish_that_takes_long_is_found_out_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(monkeypatch, "may_publish")  # completely
    monkeypatch.setattr(broker_module, "LOOP_STEPS", 5)
    long = {"price": 1.0, "city": "ab" * 500 + "axb"}
    taken: list[int] = []
    take, give_back = RateLimiter.take, RateLimiter.give_back
    monkeypatch.setattr(RateLimiter, "take", lambda *args: (taken.append(args[2]), take(*args)))
    monkeypatch.setattr(RateLimiter, "give_back", lambda *args: (taken.append(-args[2]), give_back(*args)))

    async def scenario() -> None:
        async with serving(tmp_path, principals=["root"]) as (broker, url), Client(url, token_of("root")) as root:
            token = await limited(broker, root, publish="city LIKE '%a_b%'", publish_rate=1_000_000)
            async with Client(url, token) as ann:
                for n in range(1, 4):
                    assert await ann.publish(long) == n
                assert await asyncio.gather(*[ann.publish(long) for _ in range(3)]) == [4, 5, 6]
            assert sum(taken) == 6
            assert len(asked.threads) == 6
            assert threading.get_ident() not in asked.threads

    run(scenario())


def test_a_replay_asks_the_owner_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    real = Predicates.names

    def names(self: Predicates, index: Any, event: Any, only: str = "", costs: Any = None) -> frozenset[str]:
        asked.append(only)
        return real(self, index, event, only, costs)

    async def scenario() -> None:
        async with serving(tmp_path, principals=["root"]) as (broker, url), Client(url, token_of("root")) as root:
            token = await limited(broker, root, see="city = 'Paris'")
            async with Client(url, token) as ann, ann.subscriber("ann") as mine:
                await mine.subscribe("all", "price > 0")
                await root.publish_many([HIDDEN, SHOWN])
                await mine.ack(await mine.next())
                await until(lambda: not broker.mailbox("ann").pending)
                monkeypatch.setattr(Predicates, "names", names)
                assert await ann.replay("ann", 1) == 1
                why = await root.explain(HIDDEN, "ann/all")
                assert not why["matched"]
                assert set(asked) == {"ann"}

    run(scenario())
