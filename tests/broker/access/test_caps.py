"""What one principal and one subscriber may use: nobody else is refused, or loses something."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hitbox.broker.access.principals import Principal
from hitbox.broker.broker import Broker
from hitbox.broker.events.published_event import PublishedEvent
from hitbox.broker.store.store import Store
from hitbox.protocol.errors import Overloaded
from support.broker_kit import item, running, sub, until

LATER = PublishedEvent({"qty": 1}, delay_seconds=3600)


def with_principals(broker: Broker) -> None:
    for name in ("ann", "bob"):
        broker.directory.principals[name] = Principal(["publish", "subscribe"])


def letters(store: Store) -> dict[int, list[int]]:
    """The events of the dead letters of each subscriber."""
    found: dict[int, list[int]] = {}
    for row in store.dead.scan():
        found.setdefault(row[1], []).append(row[3])
    return found


def test_the_dead_letters_of_one_push_out_nobody_elses(tmp_path: Path) -> None:
    """1 and 2 belong to ann, 3 to bob, 4 to nobody."""
    store = Store(tmp_path)
    with store.transaction():
        for number in range(1, 5):
            store.put_subscriber(number, f"s{number}", b"{}", {1: "ann", 2: "ann", 3: "bob"}.get(number, ""))
        store.append([b'{"event":{"a":1}}'] * 40, 0)
        store.record([(number, 4, seq, "s", 0) for number in range(1, 5) for seq in range(1, 41)], 40)
    for number, seqs in ((3, range(1, 4)), (4, range(1, 4)), (2, range(1, 5)), (1, range(1, 41))):
        for seq in seqs:
            with store.transaction():
                store.add_dead_letters(number, [(4, seq)], 1, "why", 8, 10)
    assert letters(store) == {3: [1, 2, 3], 4: [1, 2, 3], 2: [1, 2, 3, 4], 1: list(range(35, 41))}
    assert sum(map(len, letters(store).values())) == store.dead.rows() == 16
    with store.transaction():
        assert store.drop_dead_letters([1, 2]) == 2
        store.remove_subscriber(1, "s1")
    counts = {number: len(seqs) for number, seqs in letters(store).items()}
    assert store._dead_of.committed == counts
    store.close()
    again = Store(tmp_path)
    assert again._dead_of.committed == counts
    again.close()


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
            assert broker.store.delayed_of == {"ann": 3, "bob": 3}
        async with running(tmp_path, None) as broker:
            assert broker.store.delayed_of == {"ann": 3, "bob": 3}

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
            await until(lambda: sum(broker.store.pending_bytes[one.subscriber.number] for one in (a0, a1)) <= 15_000)
            assert (a1.pending, b0.pending) == (5, 12)
            assert 8 <= a0.pending <= 9

    asyncio.run(scenario())
