"""Changes of subscriptions that arrive together are applied and stored as one group, and each has its own answer."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from hitbox.broker.broker import Broker
from hitbox.errors import HitboxError, UnknownSubscription
from hitbox.protocol.errors import BadRequest, Overloaded, StoreFull, Unknown
from support.broker_kit import held_up, item, running, sub, until


def run(scenario: Any) -> None:
    asyncio.run(asyncio.wait_for(scenario, 180))


def ids(broker: Broker) -> set[str]:
    return set(broker.registry.index)


def agrees_with_its_store(broker: Broker) -> bool:
    names = {one.number: one.name for one in broker.registry.by_name.values()}
    stored = [(names[number], name) for number, name, *_ in broker.store.subscribers.subscriptions.scan()]
    counts = {one.name: one.subscriptions for one in broker.registry.by_name.values()}
    return ids(broker) == {f"{a}/{b}" for a, b in stored} and all(
        counts[name] == sum(a == name for a, _ in stored) for name in counts
    )


def test_what_arrives_together_is_one_commit(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            before = broker.writer.commits
            await asyncio.gather(*(broker.subscribe(f"s{n % 7}", [sub(f"n{n}", f"qty > {n}")]) for n in range(7)))
            assert broker.writer.commits - before <= 2  # one, and perhaps one of the housekeeping
            before = broker.writer.commits
            await asyncio.gather(*(broker.subscribe(f"s{n % 7}", [sub(f"m{n}", f"qty > {n}")]) for n in range(500)))
            assert broker.writer.commits - before <= 2
            assert agrees_with_its_store(broker)
            assert len(ids(broker)) == 507
        async with running(tmp_path) as broker:
            assert agrees_with_its_store(broker)
            assert len(ids(broker)) == 507

    run(scenario())


def test_one_bad_change_of_a_group_fails_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.subscribe("ann", [sub("kept", "qty > 0")])
            wanted = [broker.subscribe(f"s{n}", [sub("a", f"qty > {n}"), sub("b", "price < 3")]) for n in range(20)]
            wanted[7] = _replace(wanted[7], broker.subscribe("s7", [sub("a", "qty > 1"), sub("b", "colour = 3")]))
            wanted.append(broker.subscribe("ann", [], ["nothing"], strict=True))
            wanted.append(broker.subscribe("ann", [sub("never", "qty > 3 AND qty < 2")]))
            found = await asyncio.gather(*wanted, return_exceptions=True)
            assert isinstance(found[7], HitboxError)
            assert "colour" in str(found[7])
            assert isinstance(found[20], UnknownSubscription)
            assert isinstance(found[21], list)
            assert "'ann/never' can never match" in found[21][0]
            assert all(one == [] for at, one in enumerate(found) if at not in (7, 20, 21))
            assert "s7" not in broker.registry.by_name
            assert len(ids(broker)) == 2 + 19 * 2
            assert agrees_with_its_store(broker)

    run(scenario())


def _replace(old: Any, new: Any) -> Any:
    old.close()
    return new


def test_what_a_change_adds_and_removes_is_refused(tmp_path: Path) -> None:
    """It would be in the index and not in the store, also when its subscriber is gone."""

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            for _ in range(2):
                with pytest.raises(BadRequest, match="a change adds and removes the subscription 'b': leave out"):
                    await broker.subscribe("ann", [sub("a", "qty > 0"), sub("b", "qty > 1")], ["c", "b"])
                assert agrees_with_its_store(broker)
                await broker.subscribe("ann", [sub("b", "qty > 1")], ["c"])
            await broker.remove_subscriber("ann")
            assert ids(broker) == set()

    run(scenario())


def test_new_subscribers_of_a_group_count_together(tmp_path: Path) -> None:
    """Also those that are not valid do not count: they are never made."""

    async def scenario() -> None:
        async with running(tmp_path, max_subscribers=3) as broker:
            await broker.subscribe("ann", [sub("a", "qty > 0")])
            wheres = ["colour > 0", "qty > 0", "colour > 0", "qty > 1", "qty > 2", "qty > 3"]
            wanted = [broker.subscribe(f"s{n}", [sub("a", where)]) for n, where in enumerate(wheres)]
            found = await asyncio.gather(
                *wanted, broker.subscribe("ann", [sub("b", "qty > 0")]), return_exceptions=True
            )
            assert [type(one) for one in found[4:]] == [Overloaded, Overloaded, list]
            assert set(broker.registry.by_name) == {"ann", "s1", "s3"}
            assert agrees_with_its_store(broker)

    run(scenario())


def test_the_last_change_of_a_subscription_counts(tmp_path: Path) -> None:
    """Changes of the same subscription in one turn are applied in their order."""

    async def scenario() -> None:
        rng = random.Random(5)
        async with running(tmp_path) as broker:
            expected: dict[str, str] = {}
            wanted = []
            for turn in range(400):
                owner, name = f"s{rng.randrange(3)}", f"n{rng.randrange(6)}"
                if rng.random() < 0.3:
                    expected.pop(f"{owner}/{name}", None)
                    wanted.append(broker.subscribe(owner, [], [name]))
                else:
                    expected[f"{owner}/{name}"] = f"qty = {turn}"
                    wanted.append(broker.subscribe(owner, [sub(name, f"qty = {turn}")]))
            assert await asyncio.gather(*wanted) == [[]] * len(wanted)
            assert ids(broker) == set(expected)
            for id, where in expected.items():
                assert broker.registry.index.match({"qty": int(where[6:])}) == [id]
            assert agrees_with_its_store(broker)
            assert await broker.publish([item(qty=-1)]) == 1
        async with running(tmp_path) as broker:
            assert ids(broker) == set(expected)

    run(scenario())


def test_the_limit_of_subscriptions_counts_the_whole_group(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, max_subscriptions=10) as broker:
            await broker.put_subscriber("ann")
            wanted = [broker.subscribe("ann", [sub(f"n{n}", "qty > 0")]) for n in range(30)]
            found = await asyncio.gather(*wanted, return_exceptions=True)
            assert [isinstance(one, Overloaded) for one in found] == [False] * 10 + [True] * 20
            assert len(ids(broker)) == 10
            assert agrees_with_its_store(broker)

    run(scenario())


def test_a_group_that_the_store_refuses_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.subscribe("ann", [sub("a", "qty > 0"), sub("b", "qty > 0")])
            real = broker.store.subscribers.change

            def refuses(changes: Any) -> set[int]:
                raise StoreFull("no room")

            monkeypatch.setattr(broker.store.subscribers, "change", refuses)
            wanted = [broker.subscribe(f"s{n}", [sub("a", "qty > 5")]) for n in range(12)]
            wanted += [broker.subscribe("ann", [sub("a", "qty = 77")]), broker.subscribe("ann", [], ["b"])]
            found = await asyncio.gather(*wanted, return_exceptions=True)
            assert all(isinstance(one, StoreFull) for one in found)
            monkeypatch.setattr(broker.store.subscribers, "change", real)
            assert set(broker.registry.by_name) == {"ann"}
            assert ids(broker) == {"ann/a", "ann/b"}
            assert sorted(broker.registry.index.match({"qty": 1})) == ["ann/a", "ann/b"]
            assert agrees_with_its_store(broker)
            await broker.subscribe("s3", [sub("a", "qty > 5")])
            assert agrees_with_its_store(broker)

    run(scenario())


def test_a_snapshot_contains_nothing_that_the_store_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.subscribe("ann", [sub("s", "qty > 5")])
            await broker.snapshot()
            kept = broker.store.meta.get("snapshot")
            save = broker.registry.save
            saves: list[str] = []

            def counted() -> dict[str, int]:
                saves.append(broker.registry.index.where("ann/s"))
                return save()

            monkeypatch.setattr(broker.registry, "save", counted)
            change = broker.store.subscribers.change
            monkeypatch.setattr(broker.store.subscribers, "change", no_room)
            async with held_up(broker):
                refused = asyncio.create_task(broker.subscribe("ann", [sub("s", "qty < 5")]))
                await until(lambda: broker.registry.index.where("ann/s") == "qty < 5")
                saved = asyncio.create_task(broker.snapshot())
                await until(lambda: len(saves) == 1)
                await asyncio.sleep(0.2)
                assert not saved.done()
            with pytest.raises(StoreFull):
                await refused
            await saved
            assert saves == ["qty < 5", "qty > 5"]
            assert broker.store.meta.get("snapshot") != kept

            async def refused_again() -> None:
                with pytest.raises(StoreFull):
                    await broker.subscribe("ann", [sub("s", "qty < 5")])

            def overtaken() -> dict[str, int]:
                asyncio.run_coroutine_threadsafe(refused_again(), loop).result(20)
                return save()

            loop = asyncio.get_running_loop()
            monkeypatch.setattr(broker.registry, "save", overtaken)
            kept = broker.store.meta.get("snapshot")
            with pytest.raises(Overloaded, match="while the index is saved"):
                await broker.snapshot()
            assert broker.store.meta.get("snapshot") == kept
            monkeypatch.setattr(broker.registry, "save", save)
            monkeypatch.setattr(broker.store.subscribers, "change", change)
        async with running(tmp_path, None) as broker:
            assert broker.registry.restored_from.startswith("snapshot")
            assert broker.registry.index.match({"qty": 9}) == ["ann/s"]
            assert broker.registry.index.match({"qty": 3}) == []

    def no_room(rows: Any) -> Any:
        raise StoreFull("no room")

    run(scenario())


def test_a_subscriber_that_is_gone_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store has the last word: it knows a removal that overtook the change."""

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            for name in ("ann", "bob"):
                await broker.put_subscriber(name)
            monkeypatch.setattr(
                broker.store.subscribers,
                "existing",
                lambda numbers: set(numbers) - {broker.registry.by_name["ann"].number},
            )
            wanted = [broker.subscribe(name, [sub("a", "qty > 0")]) for name in ("ann", "bob")]
            ann, bob = await asyncio.gather(*wanted, return_exceptions=True)
            assert isinstance(ann, Unknown)
            assert "'ann'" in str(ann)
            assert bob == []
            monkeypatch.undo()
            assert ids(broker) == {"bob/a"}
            assert agrees_with_its_store(broker)

    run(scenario())


def test_who_asked_may_go(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            tasks = [asyncio.create_task(broker.subscribe("ann", [sub(f"n{n}", "qty > 0")])) for n in range(20)]
            await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        async with running(tmp_path) as broker:
            assert len(ids(broker)) == 20
            assert agrees_with_its_store(broker)

    run(scenario())
