"""Delayed events: they are stored at once, and matched and delivered when they are due."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import apsw
import msgspec
import pytest
from msgspec import Raw

import hitbox
from hitbox.broker import admin
from hitbox.broker.access.principals import Principal, TokenSettings
from hitbox.broker.events.published_event import MAX_SECONDS, PublishedEvent
from hitbox.broker.settings import Options
from hitbox.broker.store.store import Store
from hitbox.broker.subscribers.subscriptions import Subscription
from hitbox.broker.upkeep.repair import check, repair
from hitbox.client import BadRequest, Client, Conflict, Overloaded
from hitbox.protocol import errors
from support.broker_kit import Listener, held_up, publish_until_full, running, serving, until

EVERYTHING = [Subscription("all", "price >= 0", 4)]
Later = Callable[[float], None]


def event(price: float, delay: float | None = 60, ttl: float | None = None, id: str | None = None) -> PublishedEvent:
    return PublishedEvent({"price": price}, delay_seconds=delay, ttl_seconds=ttl, id=id)


def test_bad_delays_are_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            for bad in (0, -1, MAX_SECONDS + 1, float("nan"), float("inf")):
                with pytest.raises(hitbox.HitboxError, match="delay_seconds must be more than 0 and at most 31622400"):
                    await broker.publish([event(1, bad)])
            with pytest.raises(hitbox.HitboxError, match="publish them in two requests"):
                await broker.publish([event(1), event(2, None)])
            assert (broker.store.events.table.next(), broker.store.delayed.table.rows()) == (1, 0)

    asyncio.run(scenario())


def test_it_meets_the_subscriptions_of_the_moment_when_it_is_due(tmp_path: Path, later: Later) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            early = await Listener(broker).attach("early")
            await broker.subscribe("early", EVERYTHING)
            assert await broker.publish([event(1), event(2)]) == 1
            assert await broker.publish([event(3, None)]) == 1  # it has the first number of an event
            await until(lambda: early.seqs() == [1])
            await broker.subscribe("early", [], ["all"])
            late = await Listener(broker).attach("late")
            await broker.subscribe("late", EVERYTHING)
            assert broker.describe()["waiting_delayed"] == 2
            later(59)
            await asyncio.sleep(0.3)
            assert not late.seqs()
            later(61)
            await until(lambda: late.seqs() == [2, 3])
            assert early.seqs() == [1]
            assert broker.describe()["waiting_delayed"] == broker.describe()["waiting"] == 0
            assert (broker.describe()["delayed"], broker.describe()["published"]) == (2, 3)
            await early.leave()
            await late.leave()

    asyncio.run(scenario())


def test_they_are_delivered_in_the_order_in_which_they_are_due(tmp_path: Path, later: Later) -> None:
    async def scenario() -> None:
        async with running(tmp_path, max_waiting=4) as broker:
            ann = await Listener(broker).attach("ann")
            await broker.subscribe("ann", EVERYTHING)
            for delay in (50, 10, 30, 20, 40, 60, 70, 80, 90, 15):
                await broker.publish([event(delay, delay)])
            later(100)
            await until(lambda: len(ann.seqs()) == 10)
            events = [one["event"]["price"] for one in await stored(broker)]
            assert events == [10, 15, 20, 30, 40, 50, 60, 70, 80, 90]
            await ann.leave()

    asyncio.run(scenario())


async def stored(broker):  # type: ignore[no-untyped-def]
    from hitbox.broker import admin

    found, _ = admin.events(broker, broker.directory.caller(""), 1, 100)
    return [msgspec.json.decode(one) for one in found]


def test_the_time_to_live_begins_when_it_is_due(tmp_path: Path, later: Later) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.put_subscriber("ann", Options())
            await broker.subscribe("ann", EVERYTHING)
            await broker.publish([event(1, 60, 30), event(2, 60, 300)])
            later(65)
            await until(lambda: broker.mailbox("ann").pending == 2)
            later(120)
            ann = await Listener(broker).attach("ann")
            await until(lambda: ann.seqs() == [2])
            await ann.leave()

    asyncio.run(scenario())


def test_a_restart_keeps_them(tmp_path: Path, later: Later) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.subscribe("ann", EVERYTHING)
            await broker.publish([event(n, 60 if n < 5 else 6000) for n in range(10)])
        later(61)
        async with running(tmp_path) as broker:
            await until(lambda: broker.mailbox("ann").pending == 5)
        later(6001)
        async with running(tmp_path) as broker:
            await until(lambda: broker.mailbox("ann").pending == 10)
            assert [one["event"]["price"] for one in await stored(broker)] == list(range(10))
            assert await broker.publish([event(1)]) == 11  # numbers are not used again
        assert check(tmp_path) == []

    asyncio.run(scenario())


def test_cancelling(tmp_path: Path, later: Later) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            ann = await Listener(broker).attach("ann")
            await broker.subscribe("ann", EVERYTHING)
            await broker.publish([event(1), event(2), event(3)])
            assert await broker.delayed.cancel([2, 2, 7]) == 1
            later(61)
            await until(lambda: ann.seqs() == [1, 2])
            assert [one["event"]["price"] for one in await stored(broker)] == [1, 3]
            assert await broker.delayed.cancel([1, 2, 3]) == 0
            await ann.leave()

    asyncio.run(scenario())


def test_one_that_is_cancelled_while_it_is_moved(tmp_path: Path, later: Later) -> None:
    """The store has the last word: what was cancelled before is not delivered, and nothing waits for it."""

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.subscribe("ann", EVERYTHING)
            await broker.publish([event(1), event(2)])
            later(61)
            read, cancelled = broker.store.delayed.due, []

            def due(*args):  # type: ignore[no-untyped-def]
                found = read(*args)
                cancelled.append(asyncio.run_coroutine_threadsafe(broker.delayed.cancel([1]), loop).result(30))
                return found

            loop, broker.store.delayed.due = asyncio.get_running_loop(), due  # type: ignore[method-assign]
            await until(lambda: broker.mailbox("ann").pending == 1)
            assert cancelled == [1]
            assert [one["event"]["price"] for one in await stored(broker)] == [2]
            assert (broker.waiting.events, broker.waiting.bytes, broker.change_barrier.events_inside) == (0, 0, 0)

    asyncio.run(scenario())


def test_ids_of_delayed_events(tmp_path: Path, later: Later) -> None:
    """A repetition is not stored again: while it waits, after it was delivered, and after restarts."""

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.subscribe("ann", EVERYTHING)
            assert await broker.publish([event(1, id="a"), event(2, id="b")]) == 1
            assert await broker.publish([event(2, id="b")]) == 2
            with pytest.raises(hitbox.HitboxError, match="has other content"):
                await broker.publish([event(2, None, id="b")])
            both = await asyncio.gather(broker.publish([event(3, id="c")]), broker.publish([event(3, id="c")]))
            assert both == [3, 3]
            assert await broker.delayed.cancel([3]) == 1
            assert await broker.publish([event(4, None, id="c")]) == 1  # a cancelled id may be used again
        async with running(tmp_path) as broker:
            assert await broker.publish([event(1, id="a")]) == 1
            later(61)
            await until(lambda: broker.mailbox("ann").pending == 3)
            assert await broker.publish([event(1, id="a")]) == 0  # it is an event now
            with pytest.raises(hitbox.HitboxError, match="of event 2, which has other content"):
                await broker.publish([event(9, id="a")])
        async with running(tmp_path) as broker:
            assert await broker.publish([event(1, id="a")]) == 0
            assert broker.store.delayed.table.rows() == 0
            assert broker.store.events.table.next() == 4

    asyncio.run(scenario())


def test_there_are_limits(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, max_delayed=3) as broker:
            await broker.publish([event(1), event(2)])
            with pytest.raises(hitbox.HitboxError, match="2 delayed events wait already, and 3 are the most"):
                await broker.publish([event(3), event(4)])
            await broker.publish([event(3)])
            assert await broker.delayed.cancel([1]) == 1
            await broker.publish([event(4)])
            assert broker.store.delayed.table.rows() == 3

    asyncio.run(scenario())


def test_a_full_store(tmp_path: Path, later: Later) -> None:
    """New ones are refused. Those that are due wait until there is room, and cancelling works."""

    async def scenario() -> None:
        async with running(tmp_path, max_store_bytes=600_000) as broker:
            await broker.subscribe("ann", [Subscription("all", "qty >= 0", 4)])
            await broker.publish(
                [PublishedEvent({"qty": 1}, payload=Raw(b'"%b"' % (b"x" * 20_000)), delay_seconds=6000)] * 3
            )
            await publish_until_full(broker)
            with pytest.raises(hitbox.HitboxError, match="full"):
                await broker.publish([event(2)] * 1_000)
            assert await broker.delayed.cancel([1]) == 1
            later(6001)
            await asyncio.sleep(0.5)
            await broker.remove_subscriber("ann")
            await until(lambda: broker.store.delayed.table.rows() == 0)
            await until(lambda: broker.waiting.events == 0)
            assert broker.change_barrier.events_inside == 0
        assert check(tmp_path) == []

    asyncio.run(scenario())


def test_a_read_that_fails_stops_nothing(tmp_path: Path, later: Later, monkeypatch: pytest.MonkeyPatch) -> None:
    """One event is moved, then it cannot be read when the next one is due."""
    monkeypatch.setattr("hitbox.broker.delivery.delayed.PAUSE_SECONDS", 0.0)

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            ann = await Listener(broker).attach("ann")
            await broker.subscribe("ann", EVERYTHING)
            await broker.publish([event(1, 60)])
            await broker.publish([event(2, 600)])
            failures: list[apsw.Error] = []
            first_due = broker.store.delayed.first_due

            def fail_once() -> int | None:
                if not failures:
                    failures.append(apsw.BusyError("locked"))
                    raise failures[0]
                return first_due()

            monkeypatch.setattr(broker.store.delayed, "first_due", fail_once)
            later(61)
            await until(lambda: ann.seqs() == [1] and failures)
            later(601)
            await until(lambda: ann.seqs() == [1, 2])
            await ann.leave()

    asyncio.run(scenario())


def test_damage_is_found_and_repaired(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.publish([event(n) for n in range(5)])
            await broker.delayed.cancel([5])

    asyncio.run(scenario())
    with apsw.Connection(str(tmp_path / "hitbox.db")) as db:
        db.execute("UPDATE delayed SET due = due + 1 WHERE number = 2")
    assert "table delayed: the row [2] is damaged" in check(tmp_path)[0]
    found = repair(tmp_path)
    assert found.kept["delayed"] == 3
    assert found.left_out[0]["row"][0] == 2
    assert check(tmp_path) == []
    store = Store(tmp_path)
    assert store.delayed.table.next() == 6  # its number is not used again
    with store.transaction():
        store.delayed.table.insert([(9, 1, "", b'{"event":{}}')])
    store.close()
    assert check(tmp_path) == ["table delayed contains number 9, but the ledger says that 5 is the last"]


def test_through_sockets(tmp_path: Path, later: Later) -> None:
    """Published by HTTP, over both sockets and on the command line; received over a WebSocket."""

    async def scenario() -> None:
        async with serving(tmp_path, max_delayed=10) as (_, url), Client(url) as client:
            await client.put_subscription("ann", "all", "price >= 0")
            with pytest.raises(BadRequest, match="delay_seconds must be more than 0"):
                await client.publish({"price": 1}, delay_seconds=0)
            assert await client.publish({"price": 1}, delay_seconds=60) == 1
            answer = await client.request("POST", "/v1/events", {"event": {"price": 2}, "delay_seconds": 60})
            assert answer == {"delayed": 2, "count": 1}
            assert await run("publish", '{"price": 3}', "--delay", "60", "--url", url) == "3\n"
            assert await client.publish_many([{"price": 4}, {"price": 5}], delay_seconds=60, ids=["x", "y"]) == 4
            with pytest.raises(Conflict):
                await client.publish({"price": 4}, delay_seconds=61, id="x")
            with pytest.raises(Overloaded, match="max_delayed"):
                await client.request("POST", "/v1/events", [{"event": {"price": 2}, "delay_seconds": 60}] * 6)
            listed = await client.delayed()
            assert [(one["number"], one["event"]["price"]) for one in listed] == [(n, n) for n in range(1, 6)]
            assert await client.delayed(limit=2) == listed[:2]
            shown = await run("admin", "delayed", "list", "--url", url)
            assert shown.splitlines()[0].split() == ["number", "due", "event"]
            assert shown.endswith("5 shown; the broker has 5 delayed events\n")
            assert await client.cancel_delayed([1]) == 1
            said = await run("admin", "delayed", "cancel", "2", "77", "--url", url)
            assert said == "1 of 2 delayed events were cancelled\n"
            later(61)
            async with client.subscriber("ann") as ann:
                deliveries = aiter(ann)
                found = [await anext(deliveries) for _ in range(3)]
                assert [(one.seq, one.event["price"], one.delay_seconds) for one in found] == [
                    (1, 3, 60), (2, 4, 60), (3, 5, 60),
                ]  # fmt: skip
            assert "hitbox_waiting_delayed 0.0" in await client.metrics()

    asyncio.run(scenario())


async def run(*arguments: str) -> str:
    command = [sys.executable, "-m", "hitbox", *arguments]
    return await asyncio.to_thread(subprocess.check_output, command, text=True)


def test_who_may_see_and_cancel_them(tmp_path: Path) -> None:
    """A publisher cancels what it has published; others need the role manage, and must be allowed to see the event."""

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url):
            tokens = {}
            principals = {
                "root": Principal(["publish", "subscribe", "observe", "manage"]),
                "ann": Principal(["publish"]),
                "bob": Principal(["publish"]),
                "cid": Principal(["manage"], see="price > 5"),
            }
            for name, principal in principals.items():
                if name == "root":
                    _, tokens[name] = await broker.directory.create_token(broker.writer, "root", TokenSettings())
                    continue
                await broker.directory.put_principal(broker.writer, name, principal)
                _, tokens[name] = await broker.directory.create_token(broker.writer, name, TokenSettings())
            clients = {name: Client(url, token) for name, token in tokens.items()}
            assert await clients["ann"].publish({"price": 1}, delay_seconds=60) == 1
            assert await clients["ann"].publish({"price": 9}, delay_seconds=60) == 2
            assert await clients["ann"].publish({"price": 2}, delay_seconds=60) == 3
            assert await clients["bob"].cancel_delayed([1, 2, 3]) == 0
            assert [one["number"] for one in await clients["cid"].delayed()] == [2]
            assert (await clients["cid"].request("GET", "/v1/delayed"))["count"] == 1
            assert await clients["cid"].cancel_delayed([1, 2, 3]) == 1
            assert await clients["ann"].cancel_delayed([1]) == 1
            assert await clients["root"].cancel_delayed([1, 2, 3]) == 1
            for client in clients.values():
                await client.close()

    asyncio.run(scenario())


def test_a_schema_that_they_contradict_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            later = PublishedEvent({"qty": 5}, delay_seconds=60.0)
            await broker.publish([later, PublishedEvent({"price": 1.0}, delay_seconds=60.0)])
            narrow = hitbox.Schema({"price": "float", "city": "string"})
            with pytest.raises(errors.Conflict, match=r"1 delayed event contradicts(.|\n)*delayed event 1: .*has qty"):
                await admin.put_schema(broker, narrow)
            assert await broker.delayed.cancel([1]) == 1
            async with held_up(broker):
                change = asyncio.create_task(admin.put_schema(broker, narrow))
                await until(lambda: not broker.change_barrier.is_open())
                await asyncio.sleep(0.05)
                with pytest.raises(errors.Overloaded, match="the schema is being changed"):
                    await broker.publish([later])
            await change
            assert await broker.publish([PublishedEvent({"city": "Paris"}, delay_seconds=60.0)]) == 3

    asyncio.run(scenario())
