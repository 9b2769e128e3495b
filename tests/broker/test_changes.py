"""Changes of documents: subscribers that ask for it are told which subscriptions they enter, leave or stay in."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

import hitbox
from hitbox import Index
from hitbox.broker.events.changes import images, parted, transitions
from hitbox.client import Client, Delivery
from support.broker_kit import SCHEMA, serving, until

PREDICATES = {
    "cheap": "price < 20",
    "paris": "city = 'Paris'",
    "falls": "OLD.price > NEW.price",
    "unpriced": "price IS NULL",
    "new": "OLD.price IS NULL",
    "both": "price < 20 AND city = 'Paris'",
}


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 120))


def image(rng: random.Random) -> dict[str, Any] | None:
    if rng.random() < 0.2:
        return None
    found: dict[str, Any] = {"price": rng.choice([10, 19, 20, 30])} if rng.random() < 0.8 else {}
    return found | {"city": rng.choice(["Paris", "Rome"])}


async def take(subscriber: Any, count: int) -> list[Delivery]:
    found: list[Delivery] = []
    while len(found) < count:
        found.append(await subscriber.next())
        await subscriber.ack(found[-1])
    return found


def test_the_same_as_the_index_says(tmp_path: Path) -> None:
    """Random changes, published one by one and in batches, against Index.match_change."""
    rng = random.Random(5)
    index = Index(SCHEMA)
    for number, (name, where) in enumerate(PREDICATES.items()):
        index.subscribe(name, where, priority=number)
    pairs = [(image(rng), image(rng)) for _ in range(60)]
    wanted = []
    for old, new in pairs:
        found = index.match_change(old, new)
        named = [("enter", found.enter), ("leave", found.leave), ("stay", found.stay)]
        wanted.append({id: change for change, ids in named for id in ids})

    async def scenario() -> None:
        async with serving(tmp_path) as (_, url), Client(url) as client:
            rows = [{"name": n, "where": w, "priority": p} for p, (n, w) in enumerate(PREDICATES.items())]
            mine = client.subscriber("ann", changes=True, subscriptions=rows)
            live = {"ephemeral": True, "policy": "drop_oldest", "limit": 1000}
            async with mine as ann, client.subscriber("", changes=True, subscriptions=rows, **live) as bob:
                events = [{"old": old, "new": new} for old, new in pairs]
                for event in events[:20]:
                    await client.publish(event)
                await client.publish_many(events[20:])
                expected = [(seq, changes) for seq, changes in enumerate(wanted, 1) if changes]
                for one in (ann, bob):
                    got = await take(one, len(expected))
                    assert sorted((d.seq, d.changes) for d in got) == expected
                    assert all(set(d.subscriptions) == set(d.changes) for d in got)
                    assert all(d.level == max(list(PREDICATES).index(n) for n in d.subscriptions) for d in got)

    run(scenario())


def test_others_get_what_matches_the_new_image(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), Client(url) as client:
            for name in ("ann", "bob"):
                await client.put_subscription(name, "cheap", "price < 20")
            await client.put_subscriber("ann", changes=True)
            await client.publish({"old": {"price": 10}, "new": {"price": 30}})  # leaves
            await client.publish({"old": {"price": 10}, "new": {"price": 11}})
            await client.publish({"price": 12})  # no change: a plain event
            await client.publish({"new": {"price": 13}})
            await until(broker.caught_up)
            async with client.subscriber("ann", changes=True) as ann, client.subscriber("bob") as bob:
                got = [(d.seq, d.subscriptions, d.changes) for d in await take(ann, 4)]
                assert got == [
                    (1, ["cheap"], {"cheap": "leave"}), (2, ["cheap"], {"cheap": "stay"}), (3, ["cheap"], {}),
                    (4, ["cheap"], {"cheap": "enter"}),
                ]  # fmt: skip
                others = [(d.seq, d.subscriptions, d.changes) for d in await take(bob, 3)]
                assert others == [(2, ["cheap"], {}), (3, ["cheap"], {}), (4, ["cheap"], {})]

    run(scenario())


def test_changes_survive_a_restart_dead_letters_and_a_replay(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (_, url), Client(url) as client:
            await client.put_subscriber("ann", changes=True, max_tries=1)
            await client.put_subscription("ann", "cheap", "price < 20")
            await client.publish({"old": {"price": 10}, "new": None})
        async with (
            serving(tmp_path) as (broker, url),
            Client(url) as client,
            client.subscriber("ann", changes=True, max_tries=1) as ann,
        ):
            delivery = await ann.next()
            assert delivery.changes == {"cheap": "leave"}
            await ann.nack(delivery)
            await until(lambda: broker.describe()["dead_letters"] == 1)
            (letter,) = await client.dead_letters()
            assert (letter["subscriptions"], letter["changes"]) == (["cheap"], {"cheap": "leave"})
            await client.replay_dead_letters([letter["number"]])
            assert [d.changes for d in await take(ann, 1)] == [{"cheap": "leave"}]
            await until(lambda: broker.describe()["pending"] == 0)
            assert await client.replay("ann") == 1
            assert [d.changes for d in await take(ann, 1)] == [{"cheap": "leave"}]

    run(scenario())


def test_who_may_not_see_an_image_is_told_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), Client(url) as first:
            root = (await first.create_token("root"))["token"]
            async with Client(url, root) as manager:
                await manager.put_principal("ann", ["subscribe"], see="city = 'Paris'")
                token = (await manager.create_token("ann"))["token"]
                async with Client(url, token) as client, client.subscriber("ann", changes=True) as ann:
                    await ann.subscribe("cheap", "price < 20")
                    paris, rome = {"price": 10, "city": "Paris"}, {"price": 10, "city": "Rome"}
                    await manager.publish({"old": rome, "new": {**rome, "price": 30}})
                    await manager.publish({"old": rome, "new": paris})
                    await manager.publish({"old": paris, "new": rome})
                    await manager.publish({"old": paris, "new": {**paris, "price": 30}})
                    await manager.publish({"old": paris, "new": None})
                    assert [(d.seq, d.changes) for d in await take(ann, 2)] == [
                        (4, {"cheap": "leave"}), (5, {"cheap": "leave"}),
                    ]  # fmt: skip
                    await until(broker.caught_up)

    run(scenario())


def test_a_wrong_image_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), Client(url) as client:
            await client.put_subscriber("ann", changes=True)
            for event in (
                {"old": {"price": "x"}, "new": {}},
                {"old": {"prce": 1}, "new": {}},
                {"old": 3, "new": {}},
            ):
                with pytest.raises(hitbox.HitboxError):
                    await client.publish(event)
            assert broker.store.events.table.next() == 1

    run(scenario())


def test_what_is_a_change() -> None:
    assert images(SCHEMA, {"old": {}, "new": None}) == ({}, None)
    assert images(SCHEMA, {"new": {}}) == (None, {})
    assert images(SCHEMA, {"price": 1}) is None
    assert images(SCHEMA, {"old": 3}) is None
    assert images(hitbox.Schema({"old": "int"}), {"old": {}}) is None


def test_transitions_keep_levels_and_order() -> None:
    before, after = {9: ["a/x"], 4: ["a/y", "b/z"]}, {9: ["a/x", "b/w"], 1: ["a/v"]}
    found = transitions(before, after, lambda id: id.startswith("a/"))
    assert list(found.items()) == [(9, ["a/x stay", "b/w"]), (4, ["a/y leave"]), (1, ["a/v enter"])]
    assert parted(["x stay", "w"]) == (["x", "w"], {"x": "stay"})


def test_the_example_of_the_documentation(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "broker.md").read_text()
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "follow_prices" in block]
    names: dict[str, Any] = {"hitbox": hitbox}
    exec(code, names)

    async def scenario() -> None:
        async with serving(tmp_path) as (_, url), Client(url) as client:
            assert await names["follow_prices"](client) == {"cheap": "leave"}

    run(scenario())
