"""A replay matches stored events with the subscriptions of one subscriber, however many others there are."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from hitbox.broker import admin
from hitbox.broker.broker import Broker
from hitbox.broker.settings import Options
from hitbox.broker.subscribers import subscriptions
from hitbox.protocol.errors import Overloaded
from support.broker_kit import item, running, sub, until


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 120))


async def published(broker: Broker, count: int) -> None:
    await broker.publish([item(qty=n) for n in range(1, count + 1)])
    await until(broker.caught_up)


def pending(broker: Broker, name: str) -> list[tuple[int, int, list[str]]]:
    """(event, level, subscriptions) of what is pending."""
    rows = broker.store.deliveries.of(broker.subscriber(name).number)
    return sorted((row[2], 9 - row[1], row[3].splitlines()) for row in rows)


@pytest.mark.parametrize("most", [100, 0])
def test_only_the_subscribers_own_are_matched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(subscriptions, "MOST_OWN", most)

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await published(broker, 4)
            await broker.subscribe("ann", [sub("low", "qty < 3", 2), sub("even", "qty = 2 OR qty = 4", 7)])
            for n in range(20):
                await broker.subscribe(f"other{n}", [sub("s", "qty > 0", 9)])
            with monkeypatch.context() as only:
                if most:
                    only.setattr(broker.registry, "match", lambda *_: 1 / 0)
                    only.setattr(broker.registry.index, "match_with_priorities", lambda *_: 1 / 0)
                assert await admin.replay(broker, "ann", 1) == 3
            assert pending(broker, "ann") == [(1, 2, ["low"]), (2, 7, ["even", "low"]), (4, 7, ["even"])]
            assert pending(broker, "other0") == []

    run(scenario())


def test_a_replay_uses_the_subscriptions_of_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It indexes them once, and again when they change or the schema does."""
    monkeypatch.setattr(admin, "CHUNK", 2)

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await published(broker, 12)
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            await broker.subscribe("eve", [sub("s", "qty > 0")])
            built = []
            make, match = broker.registry.own_index, admin._wanted
            loop = asyncio.get_running_loop()

            def made(subscriber: Any) -> Any:
                built.append(make(subscriber))
                return built[-1]

            def wanted(broker: Broker, subscriber: Any, own: Any, rows: Any) -> Any:
                change = {
                    5: lambda: broker.subscribe("ann", [sub("t", "qty > 6")], ["s"]),
                    7: lambda: broker.subscribe("eve", [sub("t", "qty > 6")]),
                    9: lambda: admin.put_schema(broker, type(broker.registry.schema)({"qty": "int", "new": "int"})),
                }.get(rows[0][0])
                if change is not None:
                    asyncio.run_coroutine_threadsafe(change(), loop).result(60)
                return match(broker, subscriber, own, rows)

            monkeypatch.setattr(broker.registry, "own_index", made)
            monkeypatch.setattr(admin, "_wanted", wanted)
            assert await admin.replay(broker, "ann", 1) == 12
            assert [ids for _, _, ids in pending(broker, "ann")] == [["s"]] * 6 + [["t"]] * 6
            assert len(built) == 3

    run(scenario())


def test_subscriptions_from_before_a_change_of_the_schema_are_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were read for a replay; it reads them again when it notices the change."""

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.subscribe("ann", [sub("s", "qty > 0"), sub("t", "qty > 1")])
            rows = [("s", "gone = 1", 4, "{}"), ("t", "qty > 1", 4, "{}")]
            with monkeypatch.context() as patch:
                patch.setattr(broker.store.reader, "read", lambda *_: rows)
                own = await asyncio.to_thread(broker.registry.own_index, broker.subscriber("ann"))
            assert list(own) == ["ann/t"]
            assert not list(broker.problems())

    run(scenario())


def test_the_unmatched_are_those_that_nobody_wants(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await published(broker, 4)
            await broker.subscribe("ann", [sub("s", "qty = 1", 8)])
            await broker.subscribe("eve", [sub("s", "qty = 2", 9)])
            await broker.put_subscriber("ann", Options(unmatched=True))
            assert await admin.replay(broker, "ann", 1) == 3
            assert pending(broker, "ann") == [(1, 8, ["s"]), (3, 0, []), (4, 0, [])]

    run(scenario())


def test_long_replays_leave_the_threads_of_others_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A predicate that takes long on each event holds up large publishes and delayed events of nobody; after a moment
    the next replay has its turn, and too many at a time are refused."""
    release, begun, right = threading.Event(), list[str](), admin._wants

    def stuck(broker: Broker, subscriber: Any, *more: Any) -> Any:
        begun.append(subscriber.name)
        release.wait(30)
        return right(broker, subscriber, *more)

    monkeypatch.setattr(admin, "_wants", stuck)
    monkeypatch.setattr(admin, "REPLAY_SECONDS", 0)

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await published(broker, 3)
            names = [f"ann{n}" for n in range(admin.MOST_REPLAYS)]
            for name in names:
                await broker.subscribe(name, [sub("s", "qty > 0")])
            replays = [asyncio.create_task(admin.replay(broker, name, 1)) for name in names]
            await until(lambda: len(begun) == 2)
            with pytest.raises(Overloaded):
                await admin.replay(broker, "ann0", 1)
            assert await asyncio.wait_for(asyncio.to_thread(lambda: 7), 20) == 7
            release.set()
            assert await asyncio.gather(*replays) == [3] * len(names)
            assert len(set(begun[:4])) == 4  # one event each, then another one's turn
            assert not broker.replaying

    try:
        run(scenario())
    finally:
        release.set()
