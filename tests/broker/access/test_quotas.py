"""Quotas of principals: subscriptions, events per second, bytes per day."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hitbox.broker.access.principals import Principal, check_principal
from hitbox.broker.broker import Broker
from hitbox.broker.clock import clock
from hitbox.broker.http.auth import RateLimiter
from hitbox.client import BadRequest, Client, Conflict, Forbidden, Overloaded
from hitbox.protocol.errors import StoreFull
from support.broker_kit import item, running, serving, sub

DAY = 86_400


@asynccontextmanager
async def with_ann(path: Path, **quotas: Any) -> AsyncIterator[tuple[Broker, Client, Client]]:
    """A broker, a client that may do everything, and one of the principal ann with these quotas."""
    async with serving(path) as (broker, url):
        async with Client(url) as first:
            text = (await first.create_token("root"))["token"]
        async with Client(url, text) as root:
            await root.put_principal("ann", ["publish", "subscribe"], **quotas)
            token = (await root.create_token("ann"))["token"]
            async with Client(url, token) as ann:
                yield broker, root, ann


def size(broker: Broker) -> int:
    """Bytes of all stored events."""
    ((found,),) = broker.store.reader.read("SELECT ifnull(sum(length(body)), 0) FROM events")
    return int(found)


async def shown(root: Client) -> dict[str, Any]:
    return next(one for one in await root.principals() if one["name"] == "ann")


def test_subscriptions(tmp_path: Path) -> None:
    """Over HTTP and a WebSocket, over all subscribers of the principal, whoever adds them."""

    async def scenario() -> None:
        async with with_ann(tmp_path, max_subscriptions=3) as (broker, root, ann):
            await ann.put_subscription("one", "a", "price > 1")
            await ann.put_subscriptions("two", [{"name": "a", "where": "price > 1"}, {"name": "b", "where": "qty > 1"}])
            told = r"'ann' has 3 subscriptions and may have 3 \(max_subscriptions\): 1 more are too many"
            for client in (ann, root):
                with pytest.raises(Forbidden, match=told):
                    await client.put_subscription("one", "b", "price > 2")
            with pytest.raises(Forbidden, match=told):
                await ann.put_subscription("three", "a", "price > 2")
            assert "three" not in broker.registry.by_name
            await ann.put_subscription("one", "a", "price > 3")  # replaces
            async with ann.subscriber("two") as two:
                with pytest.raises(Forbidden, match=told):
                    await two.subscribe("c", "price > 2")
                await two.unsubscribe("a")
                await two.subscribe("c", "price > 2")  # the connection is open
            async with ann.subscriber(ephemeral=True, policy="drop_oldest") as live:
                with pytest.raises(Forbidden, match=told):
                    await live.subscribe("c", "price > 2")
            found = await shown(root)
            assert (found["subscriptions"], found["max_subscriptions"]) == (3, 3)
            await root.put_principal("ann", ["publish", "subscribe"], max_subscriptions=1)  # it has too many now
            with pytest.raises(Forbidden, match="has 3 subscriptions and may have 1"):
                await ann.put_subscription("one", "b", "price > 2")
            await ann.remove_subscription("one", "a")
            await ann.put_subscription("two", "b", "price > 5")
            await root.put_subscription("of-root", "a", "price > 1")  # others have no quota

    asyncio.run(scenario())


def test_claims_and_hand_overs(tmp_path: Path) -> None:
    """What a subscriber has already counts when it gets an owner."""

    def texts(count: int, first: int = 0) -> list[dict[str, Any]]:
        return [{"name": f"s{n}", "where": f"qty > {n}"} for n in range(first, first + count)]

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url):
            async with Client(url) as first:
                for name, count in (("many", 4), ("few", 2), ("none", 0)):
                    await first.put_subscriber(name)
                    await first.put_subscriptions(name, texts(count))
                text = (await first.create_token("root"))["token"]
            async with Client(url, text) as root:
                await root.put_principal("ann", ["subscribe"], max_subscriptions=3)
                token = (await root.create_token("ann"))["token"]
                await root.put_principal("bob", ["subscribe"])
                bobs = (await root.create_token("bob"))["token"]
                async with Client(url, token) as ann, Client(url, bobs) as bob:
                    told = r"'ann' has 0 subscriptions and may have 3 \(max_subscriptions\): 4 more are too many"
                    with pytest.raises(Forbidden, match=told):
                        await ann.put_subscriber("many")
                    with pytest.raises(Forbidden, match=told):
                        await ann.put_subscription("many", "s1", "qty > 5")  # replaces
                    with pytest.raises(Forbidden, match=told):
                        await ann.put_webhook("many", "https://192.0.2.1.example/")
                    for given in ([], texts(1), texts(1, 9)):
                        with pytest.raises(Forbidden, match="and may have 3"):
                            await ann.subscriber("many", subscriptions=given).__aenter__()
                    with pytest.raises(Conflict, match=told):
                        await root.request("PUT", "/v1/subscribers/many", {}, owner="ann")
                    assert broker.subscriber("many").owner == ""
                    both = ann.put_subscription("few", "s0", "qty > 5"), ann.put_subscriptions("mine", texts(2))
                    found = await asyncio.gather(*both, return_exceptions=True)
                    assert sum(isinstance(one, Forbidden) for one in found) == 1
                    await ann.put_subscriber("none")
                    await bob.put_subscriptions("bobs", texts(2))
                    with pytest.raises(Conflict, match=r"'ann' has 2 subscriptions and may have 3 .*: 2 more"):
                        await root.request("PUT", "/v1/subscribers/bobs", {}, owner="ann")
                    assert broker.subscriber("bobs").owner == "bob"
                    await root.put_principal("ann", ["subscribe"], max_subscriptions=4)
                    await root.request("PUT", "/v1/subscribers/bobs", {}, owner="ann")
                    assert (await shown(root))["subscriptions"] == 4

    asyncio.run(scenario())


def test_only_one_principal_claims_a_subscriber(tmp_path: Path) -> None:
    """Also of two whose changes come together."""

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.subscribe("old", [sub("kept", "qty > 1")])
            for name in ("ann", "bob"):
                broker.directory.principals[name] = Principal(["subscribe"])
            changes = [broker.subscribe("old", [sub(name, "qty > 1")], owner=name) for name in ("ann", "bob")]
            found = await asyncio.gather(*changes, return_exceptions=True)
            assert found[0] == []
            assert "belongs to another principal" in str(found[1])
            assert set(broker.registry.index) == {"old/kept", "old/ann"}

    asyncio.run(scenario())


def test_changes_of_one_group_count_together(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            broker.directory.principals["ann"] = Principal(["subscribe"], max_subscriptions=5)
            changes = [broker.subscribe(f"s{n}", [sub("a", "qty > 1")], owner="ann") for n in range(20)]
            found = await asyncio.gather(*changes, return_exceptions=True)
            assert sum(isinstance(one, Exception) for one in found) == 15
            assert broker.directory.owned_subscriptions("ann") == len(broker.registry.index) == 5

    asyncio.run(scenario())


def test_an_invalid_change_neither_takes_nor_gives_room_to_its_group(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            broker.directory.principals["ann"] = Principal(["subscribe"], max_subscriptions=5)

            async def together(*changes: tuple[str, list[str], list[str]]) -> list[bool]:
                """(subscriber, new names, names to remove); a name that begins with a dash is invalid."""
                calls = [
                    broker.subscribe(
                        name, [sub(one.strip("-"), "no > 1" if one[0] == "-" else "qty > 1") for one in put], gone,
                        owner="ann",
                    )
                    for name, put, gone in changes
                ]  # fmt: skip
                return [one == [] for one in await asyncio.gather(*calls, return_exceptions=True)]

            found = await together(("x", ["-a", "b", "c"], []), ("y", ["a", "b", "c", "d", "e"], []))
            assert found == [False, True]  # the invalid one takes no room
            assert await together(("y", ["-z"], list("abcde")), ("x", ["f", "g", "h", "i"], [])) == [False, False]
            assert broker.directory.owned_subscriptions("ann") == 5  # nothing was removed, so there is no room
            found = await together(("y", [], ["a", "b"]), ("x", ["f", "g"], []), ("v", ["h"], []), ("y", ["c"], []))
            assert found == [True, True, False, True]  # what is removed first makes room
            assert broker.directory.owned_subscriptions("ann") == len(broker.registry.index) == 5

    asyncio.run(scenario())


def test_bytes_per_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By HTTP, over the publish socket and on a subscriber's WebSocket; over a restart; until the next day."""
    now = [20_000 * DAY + 100.0]
    monkeypatch.setattr(clock, "seconds", lambda: now[0])

    async def scenario() -> None:
        one, most = {"event": {"price": 1.5}}, len(b'{"event":{"price":1.5}}') * 4
        async with with_ann(tmp_path, max_day_bytes=most) as (broker, root, ann):
            await ann.request("POST", "/v1/events", one)
            await ann.publish(one["event"])
            with pytest.raises(
                Forbidden, match=f"has published {most // 2} bytes today and may publish {most} per day"
            ):
                await ann.publish_many([one["event"]] * 3)  # all or none
            assert size(broker) == most // 2 == (await shown(root))["day_bytes"]
            await root.publish_many([one["event"]] * 10)
        async with serving(tmp_path) as (broker, _):
            broker.directory.tokens.clear()
            broker.directory.protected = False
            assert broker.directory.usage.today("ann") == most // 2
            await broker.publish([item(price=1.5)] * 2, broker.acting_for("ann"))
            before = size(broker)
            with pytest.raises(Exception, match="max_day_bytes"):
                await broker.publish([item(price=1.5)], broker.acting_for("ann"))
            assert size(broker) == before
            now[0] += DAY
            await broker.publish([item(price=1.5)], broker.acting_for("ann"))
            assert broker.directory.usage.today("ann") == most // 4
        async with running(tmp_path, None) as broker:
            assert broker.directory.usage.today("ann") == most // 4

    asyncio.run(scenario())


def test_a_day_that_begins_during_a_publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was used on the day before does not count on the new one, in memory as in the store."""

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            usage = broker.directory.usage
            monkeypatch.setattr(clock, "seconds", lambda: 20_000 * DAY + 1.0)
            assert usage.take("ann", 100, 150).day == 20_000
            for before in range(3):  # midnight is after so many looks at the clock
                usage._of["ann"] = (20_000, 100)
                looks = iter([20_001 * DAY - 1.0] * before)
                with monkeypatch.context() as patched:
                    patched.setattr(clock, "seconds", lambda looks=looks: next(looks, 20_001 * DAY + 1.0))
                    charge = usage.take("ann", 10, 150)
                assert usage._of["ann"] == (charge.day, 10 if charge.day == 20_001 else 110)

    asyncio.run(scenario())


def test_what_is_not_stored_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            broker.directory.principals["ann"] = Principal(["publish"], max_day_bytes=10_000)
            await broker.publish([item(price=1.5)], broker.acting_for("ann"))
            used = broker.directory.usage.today("ann")

            def full(*_: object) -> int:
                raise StoreFull("the disk is full")

            with monkeypatch.context() as broken:
                broken.setattr(broker.store.events, "append", full)
                with pytest.raises(StoreFull):
                    await broker.publish([item(price=1.5)], broker.acting_for("ann"))
            assert broker.directory.usage.today("ann") == used > 0
        async with running(tmp_path, None) as broker:
            assert broker.directory.usage.today("ann") == used

    asyncio.run(scenario())


def test_events_per_second(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with with_ann(tmp_path, publish_rate=0.01) as (_, root, ann):
            ann.timeout = 1
            await ann.request("POST", "/v1/events", {"event": {"price": 1}})
            with pytest.raises(Overloaded, match=r"ann publishes more than 0.01 events per second") as found:
                await ann.request("POST", "/v1/events", {"event": {"price": 1}})
            assert 90 < found.value.retry_after < 110
            with pytest.raises(Overloaded):  # longer than the client waits for an answer: the program is told
                await ann.publish({"price": 1})
            await root.publish_many([{"price": 1}] * 10)  # others are not limited

    asyncio.run(scenario())


def test_an_own_rate_comes_before_that_of_the_broker() -> None:
    limiter = RateLimiter(1.0)
    limiter.take("ann", 5, own_rate=100.0)
    limiter.take("ann", 5, own_rate=100.0)
    limiter.take("bob", 5)
    with pytest.raises(Exception, match="bob publishes more than 1 events per second"):
        limiter.take("bob", 1)


def test_a_rate_of_nearly_nothing() -> None:
    limiter = RateLimiter(0.0)
    limiter.take("ann", 10_000, own_rate=1e-320)
    with pytest.raises(Overloaded) as found:
        limiter.take("ann", 1, own_rate=1e-320)
    assert found.value.retry_after == DAY


@pytest.mark.parametrize("bad", [{"max_subscriptions": -1}, {"publish_rate": float("nan")}, {"max_day_bytes": 2**60}])
def test_bad_quotas_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(Exception, match=r"must be 0 \(no limit\) to"):
        check_principal(Principal([], **bad))


def test_on_the_command_line(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with with_ann(tmp_path) as (_, root, _ann):
            base = [sys.executable, "-m", "hitbox", "admin", "principals"]
            where = ["--url", root.url, "--token", (await root.create_token("root"))["token"]]
            given = ["--max-subscriptions", "7", "--publish-rate", "2.5", "--max-day-bytes", "1000"]
            put = [*base, "put", "bob", "--role", "publish", *given, *where]
            await asyncio.to_thread(subprocess.run, put, check=True)
            lines = await asyncio.to_thread(subprocess.check_output, [*base, "list", "--json", *where], text=True)
            bob = next(one for one in json.loads(lines)["principals"] if one["name"] == "bob")
            assert [bob[name] for name in ("max_subscriptions", "publish_rate", "max_day_bytes")] == [7, 2.5, 1000]
            assert (bob["subscriptions"], bob["day_bytes"]) == (0, 0)
            with pytest.raises(BadRequest, match="max_subscriptions must be 0"):
                await root.put_principal("bob", [], max_subscriptions=-1)

    asyncio.run(scenario())
