"""What one principal and one subscriber may use: nobody else is refused, or loses something."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from hitbox.broker.access.principals import EVERYTHING, Principal
from hitbox.broker.broker import Broker
from hitbox.broker.events.published_event import PublishedEvent
from hitbox.broker.settings import Options
from hitbox.broker.store.dead_letters import LETTER_BYTES
from hitbox.broker.store.store import Store
from hitbox.protocol.errors import Overloaded
from support.broker_kit import SCHEMA, held_up, item, running, sub, until

LATER = PublishedEvent({"qty": 1}, delay_seconds=3600)


def with_principals(broker: Broker) -> None:
    for name in ("ann", "bob"):
        broker.directory.principals[name] = Principal(["publish", "subscribe"])


def letters(store: Store) -> dict[int, list[int]]:
    """The events of the dead letters of each subscriber."""
    found: dict[int, list[int]] = {}
    for row in store.letters.table.scan():
        found.setdefault(row[1], []).append(row[3])
    return found


def test_the_dead_letters_of_one_push_out_nobody_elses(tmp_path: Path) -> None:
    """1 and 2 belong to ann, 3 to bob, 4 to nobody."""
    store = Store(tmp_path)
    with store.transaction():
        for number in range(1, 5):
            store.subscribers.put(number, f"s{number}", b"{}", {1: "ann", 2: "ann", 3: "bob"}.get(number, ""))
        store.events.append([b'{"event":{"a":1}}'] * 40, 0)
        store.deliveries.record([(number, 4, seq, "s", 0) for number in range(1, 5) for seq in range(1, 41)], 40)
    for number, seqs in ((3, range(1, 4)), (4, range(1, 4)), (2, range(1, 5)), (1, range(1, 41))):
        for seq in seqs:
            with store.transaction():
                store.deliveries.bury(number, [(4, seq)], 1, "why", 8, 10)
    assert letters(store) == {3: [1, 2, 3], 4: [1, 2, 3], 2: [1, 2, 3, 4], 1: list(range(35, 41))}
    assert sum(map(len, letters(store).values())) == store.letters.table.rows() == 16
    with store.transaction():
        assert store.letters.drop([1, 2]) == 2
        store.remove_subscriber(1, "s1")
    counts = {number: len(seqs) for number, seqs in letters(store).items()}
    kept = (store.letters.counts.committed, store.letters.bytes.committed)
    assert kept == (counts, {number: count * (18 + LETTER_BYTES) for number, count in counts.items()})
    store.close()
    again = Store(tmp_path)
    assert (again.letters.counts.committed, again.letters.bytes.committed) == kept
    again.close()


def test_in_a_full_store_dead_letters_take_nothing_of_the_log(tmp_path: Path) -> None:
    """Mallory's letters could fill the store. They may take half of it, and ann's few stay."""

    async def scenario() -> None:
        async with running(tmp_path, max_store_bytes=2_000_000) as broker:
            with_principals(broker)
            large = "x" * 10_000
            for name, owner in (("a", "ann"), ("b0", "bob"), ("b1", "bob")):
                await broker.put_subscriber(name, Options(limit=1), owner=owner)
                await broker.subscribe(name, [sub("s", f"qty = {'01'['b' in name]}")], owner=owner)
            await broker.publish([item(qty=0, city=large)] * 4)
            await until(lambda: broker.mailbox("a").dead == 3)
            for count in range(60):
                await broker.publish([item(qty=1, city=large)])
                await until(lambda n=count: broker.mailbox("b0").dead == broker.mailbox("b1").dead == n)
                await broker._trim()
            first = await broker.publish([item(qty=9, city=large)] * 40)
            await until(broker.caught_up)
            await broker._trim()
            assert broker.store.space.used_bytes() <= 1_500_000
            assert sum(broker.store.letters.bytes.committed.values()) <= 750_000
            assert broker.store.events.table.first() <= first, "the events of others are still there"
            numbers = [broker.subscriber(name).number for name in ("a", "b0", "b1")]
            kept = [broker.store.letters.counts.committed[number] for number in numbers]
            assert kept[0] == 3
            assert abs(kept[1] - kept[2]) <= 1
            assert {row[3] for row in broker.store.letters.table.scan("subscriber = ?", (numbers[1],))} == set(
                range(64 - kept[1], 64)
            ), "the newest are kept"

    asyncio.run(scenario())


def test_the_delayed_events_of_one_are_in_nobodys_way(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, max_principal_delayed=3) as broker:
            with_principals(broker)

            def publish(name: str, count: int) -> asyncio.Future[int]:
                items = [LATER] * count
                return broker._accept(items, broker.check(items), broker.acting_for(name))

            await publish("ann", 2)
            with pytest.raises(Overloaded, match=r"2 delayed events of 'ann' .*max_principal_delayed"):
                publish("ann", 2)
            waiting = publish("ann", 1)
            with pytest.raises(Overloaded, match="3 delayed events"):
                publish("ann", 1)  # the one before is not stored yet
            await waiting
            await publish("bob", 3)
            assert await broker.delayed.cancel([1]) == 1
            await publish("ann", 1)
            assert broker.store.delayed.counts.committed == {"ann": 3, "bob": 3}
        async with running(tmp_path, None) as broker:
            assert broker.store.delayed.counts.committed == {"ann": 3, "bob": 3}

    asyncio.run(scenario())


def test_half_of_what_may_wait_is_for_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, max_waiting=20) as broker:
            with_principals(broker)

            def publish(name: str, count: int) -> asyncio.Future[int]:
                items = [item(qty=1)] * count
                return broker._accept(items, broker.check(items), broker.acting_for(name))

            async with held_up(broker):
                waiting = [publish("ann", 6), publish("ann", 4)]
                with pytest.raises(Overloaded, match=r"10 events of 'ann' wait already: half .* is for others"):
                    publish("ann", 1)
                waiting += [publish("bob", 9), publish("", 1)]
                with pytest.raises(Overloaded, match="20 events wait already"):
                    publish("bob", 1)
            await asyncio.gather(*waiting)
            await until(broker.caught_up)
            assert (broker.waiting.events_of.total(), broker.waiting.bytes_of.total()) == (0, 0)
            await publish("ann", 15)  # a batch that waits alone may be larger
            await until(broker.caught_up)
            broker.directory.principals = {"ann": EVERYTHING}
            async with held_up(broker):
                waiting = [publish("ann", 10), publish("ann", 10)]  # there are no others
            await asyncio.gather(*waiting)

    asyncio.run(scenario())


def test_delayed_events_that_are_due_leave_others_their_half(tmp_path: Path, later: Callable[[float], None]) -> None:
    """Ann's 20 are due first. They are moved up to her half, of the number and of the bytes, and bob's come by."""

    async def scenario() -> None:
        async with running(tmp_path, max_waiting=20, max_waiting_bytes=10_000) as broker:
            with_principals(broker)

            def publish(name: str, items: list[PublishedEvent]) -> asyncio.Future[int]:
                return broker._accept(items, broker.check(items), broker.acting_for(name))

            large = PublishedEvent({"city": "x" * 900}, delay_seconds=50)
            for _ in range(2):
                await publish("ann", [large] * 10)
            await publish("bob", [LATER] * 5)
            assert broker.waiting.events == 0, "they wait for their time"
            async with held_up(broker):
                later(3601)
                await until(lambda: set(broker.waiting.events_of) == {"ann", "bob"})
                assert broker.waiting.events_of == {"ann": 5, "bob": 5}
                assert broker.waiting.bytes_of["ann"] <= 5_000
                mine = publish("bob", [item(qty=1)] * 2)
            await mine
            await until(lambda: broker.store.delayed.table.rows() == 0)
            await until(broker.caught_up)
            assert (broker.waiting.events, broker.waiting.bytes, broker.waiting.events_of) == (0, 0, {})

    asyncio.run(scenario())


def test_events_of_an_earlier_run_wait_for_who_published_them(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.transaction():
        store.meta.put("schema", SCHEMA.to_json())
        store.events.append([b'{"event":{"qty":1}}'] * 3, 0, ["ann", "bob", "ann"])
    store.close()

    async def scenario() -> None:
        async with running(tmp_path, None) as broker:
            assert broker.waiting.events_of == {"ann": 2, "bob": 1}
            await until(broker.caught_up)
            assert (broker.waiting.events, broker.waiting.bytes_of) == (0, {})

    asyncio.run(scenario())


def test_the_subscribers_of_one_are_in_nobodys_way(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, max_principal_subscribers=3) as broker:
            with_principals(broker)
            for n in range(3):
                await broker.subscribe(f"a{n}", [sub("s", "qty > 0")], owner="ann")
            with pytest.raises(Overloaded, match=r"'ann' has 3 subscribers, .*max_principal_subscribers"):
                await broker.subscribe("a3", [sub("s", "qty > 0")], owner="ann")
            with pytest.raises(Overloaded, match="max_principal_subscribers"):
                await broker.put_subscriber("a3", owner="ann")
            await broker.subscribe("b0", [sub("s", "qty > 0")], owner="bob")
            await broker.subscribe("n0", [sub("s", "qty > 0")])

    asyncio.run(scenario())


def test_the_bytes_pending_of_one_cost_nobody_else(tmp_path: Path) -> None:
    """Who has the most of them loses."""

    async def scenario() -> None:
        async with running(tmp_path, max_principal_pending_bytes=15_000) as broker:
            with_principals(broker)
            for name, owner, least in (("a0", "ann", 0), ("a1", "ann", 15), ("b0", "bob", 8)):
                await broker.subscribe(name, [sub("s", f"qty > {least}")], owner=owner)
            await broker.publish([item(qty=qty, city="x" * 1000) for qty in range(1, 21)])
            a0, a1, b0 = (broker.mailbox(name) for name in ("a0", "a1", "b0"))
            await until(lambda: a0.pending < 20 and not a0.is_shrinking)
            sizes = broker.store.deliveries.bytes.committed
            await until(lambda: sum(sizes[one.subscriber.number] for one in (a0, a1)) <= 15_000)
            assert (a1.pending, b0.pending) == (5, 12)
            assert 8 <= a0.pending <= 9

    asyncio.run(scenario())


def test_what_one_leaves_pending_fills_no_store(tmp_path: Path) -> None:
    """Retention keeps it beside the log, where it may take a quarter of the store. Ann has little there, and keeps it;
    what retention has not passed counts for nobody."""

    async def scenario() -> None:
        async with running(tmp_path, max_store_bytes=4_000_000, keep_bytes=400_000) as broker:
            with_principals(broker)
            for name, owner, which in (("a", "ann", "= 0"), ("a2", "ann", "= 2"), ("b", "bob", "= 1")):
                await broker.subscribe(name, [sub("s", f"qty {which}")], owner=owner)
            for qty in [0] * 5 + [1] * 180 + [2] * 20:
                await broker.publish([item(qty=qty, city="x" * 10_000)])
            await until(broker.caught_up)
            ann, other, bob = (broker.mailbox(name) for name in ("a", "a2", "b"))
            await until(lambda: bob.pending < 110)
            await broker._trim()
            assert broker.store.events.total("kept") < 1_100_000
            assert (ann.pending, other.pending, bob.pending > 80) == (5, 20, True)
            assert await broker.publish([item(qty=9)])

    asyncio.run(scenario())
