"""A subscriber with more pending deliveries than its limit: what its policy removes, and what it leaves alone."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from hitbox.broker.broker import Broker
from hitbox.broker.delivery.delivery import OLDEST_ROWS, OVER_LIMIT
from hitbox.broker.delivery.dispatcher import AcceptedEvent, Dispatcher
from hitbox.broker.events.published_event import PublishedEvent
from hitbox.broker.settings import Options
from hitbox.broker.store.store import Store
from hitbox.broker.subscribers.subscriptions import SubscriptionRegistry
from support.broker_kit import Listener, held_up, item, publish_until_full, running, sub, until


async def done_with_all(broker: Broker) -> None:
    """The store has done what it was asked for, and what that led to."""
    for _ in range(4):
        await broker.writer.submit(lambda: None)


def stored(broker: Broker, name: str) -> list[int]:
    """Numbers of the pending events."""
    return sorted(row[2] for row in broker.store.deliveries.of(broker.subscriber(name).number))


@pytest.mark.parametrize("policy", ["spool", "drop_oldest"])
def test_acknowledgements_that_wait_for_the_store_count(tmp_path: Path, policy: Any) -> None:
    """Too many are pending in the store, until it gets to the acknowledgements: nothing is to be removed."""

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            ann = await Listener(broker, auto=False).attach("ann")
            await broker.publish([item(qty=1)] * 30)
            await until(lambda: len(ann.got) == 30 and broker.caught_up())
            async with held_up(broker):
                broker.tracker.acknowledge(ann.mailbox, ann.seqs()[:25])
                ann.mailbox.subscriber.options = Options(policy, limit=20)
                await until(lambda: ann.mailbox.is_shrinking)
            await done_with_all(broker)
            assert stored(broker, "ann") == [26, 27, 28, 29, 30]
            assert (ann.mailbox.pending, ann.mailbox.dropped, ann.mailbox.dead) == (5, 0, 0)
            assert broker.store.letters.table.rows() == 0
            await ann.leave()

    asyncio.run(scenario())


def test_nothing_is_sent_that_is_about_to_be_removed(tmp_path: Path) -> None:
    """All of it is in memory, and there is room in the window."""

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            ann = await Listener(broker, auto=False).attach("ann", window=5)
            await broker.publish([item(qty=1)] * 20)
            await until(lambda: len(ann.got) == 5 and broker.caught_up())
            async with held_up(broker):
                ann.mailbox.subscriber.options = Options(limit=8)
                await until(lambda: ann.mailbox.is_shrinking)
                ann.mailbox.set_window(ann, 100)
                await asyncio.sleep(0.05)
            await until(lambda: ann.mailbox.pending == 8 and 20 in ann.seqs())
            assert ann.seqs() == [*range(1, 6), *range(13, 21)]
            assert {row[3] for row in broker.store.letters.table.scan()} == set(range(1, 13))
            await ann.leave()

    asyncio.run(scenario())


@pytest.mark.parametrize("policy", ["spool", "drop_oldest"])
def test_what_is_removed_twice_is_counted_once(tmp_path: Path, policy: Any) -> None:
    """The subscriber refuses deliveries that its policy is about to remove."""

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            ann = await Listener(broker, auto=False).attach("ann")
            await broker.publish([item(qty=1)] * 20)
            await until(lambda: len(ann.got) == 20 and broker.caught_up())
            async with held_up(broker):
                ann.mailbox.subscriber.options = Options(policy, limit=12, max_tries=1)
                await until(lambda: ann.mailbox.is_shrinking)
                broker.tracker.refuse(ann.mailbox, [7, 8, 9])
            await done_with_all(broker)
            letters = broker.store.letters.table.rows()
            assert letters == (9 if policy == "spool" else 1)
            assert ann.mailbox.dead == broker.statistics.counts["dead"] == letters
            dropped = 0 if policy == "spool" else 8
            assert ann.mailbox.dropped == broker.statistics.counts["dropped"] == dropped
            assert ann.mailbox.pending == len(stored(broker, "ann")) == 11
            await ann.leave()

    asyncio.run(scenario())


@pytest.mark.parametrize(("policy", "how"), [("spool", "bury"), ("drop_oldest", "acknowledge")])
def test_a_much_lower_limit_takes_effect_little_by_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: Any, how: str
) -> None:
    """Some deliveries are rows, and others are in the log; a publish comes in between."""
    monkeypatch.setattr("hitbox.broker.delivery.delivery.OLDEST_ROWS", 10)

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.subscribe("ann", [sub("s", "qty > 0", 4), sub("urgent", "qty > 5", 8)])
            await broker.publish([item(qty=n % 9 + 1) for n in range(60)])
            await until(broker.caught_up)
            await broker.writer.submit(broker.store.deliveries.settle)
            await broker.publish([item(qty=n % 9 + 1) for n in range(40)])
            await until(broker.caught_up)
            assert (broker.store.deliveries.table.rows(), broker.store.recent.count) == (60, 40)
            together: list[int] = []
            real = getattr(broker.store.deliveries, how)

            def counted(*what: Any) -> Any:
                before = len(stored(broker, "ann"))
                done = real(*what)
                together.append(before - len(stored(broker, "ann")))
                return done

            monkeypatch.setattr(broker.store.deliveries, how, counted)
            await broker.put_subscriber("ann", Options(policy, limit=25))
            ann = broker.mailbox("ann")
            await until(lambda: together)
            await broker.publish([item(qty=0)])
            await until(lambda: ann.pending == 25)
            assert together == [10] * 7 + [5]
            assert stored(broker, "ann") == list(range(76, 101))
            removed = (75, 0) if policy == "spool" else (0, 75)
            assert (ann.dead, ann.dropped) == removed
            assert broker.store.letters.table.rows() == removed[0]
        async with running(tmp_path, None) as broker:
            ann = await Listener(broker).attach("ann")
            await until(lambda: len(ann.got) == 25)
            await ann.leave()

    asyncio.run(scenario())


def test_dropping_the_oldest_makes_room_in_a_full_store(tmp_path: Path) -> None:
    """Everything is pending, so retention may remove nothing until the policy has acted."""

    async def scenario() -> None:
        async with running(tmp_path, max_store_bytes=2_000_000, keep_seconds=0) as broker:
            await broker.put_subscriber("ann", Options("drop_oldest", limit=100))
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            ann = broker.mailbox("ann")
            ann.is_shrinking = True  # it does not act before the store is full
            last = await publish_until_full(broker)
            assert ann.pending > 150
            ann.is_shrinking = False
            await until(lambda: not broker.writer.full)
            assert stored(broker, "ann") == list(range(last - 99, last + 1))
            assert await broker.publish([item(qty=1)]) == last + 1

    asyncio.run(scenario())


@pytest.mark.parametrize("policy", ["spool", "drop_oldest"])
@pytest.mark.parametrize(
    ("limit", "removed_at_once", "size", "seconds", "before", "after"),
    [(100, OLDEST_ROWS, 1, 0.002, 230, 500), (50, 20, 30, 0.005, 20, 100)],
    ids=["one by one", "more than are removed at once"],
)
def test_who_is_above_the_limit_gets_something_while_the_load_lasts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    policy: Any,
    limit: int,
    removed_at_once: int,
    size: int,
    seconds: float,
    before: int,
    after: int,
) -> None:
    """Something is to be removed after each commit. `before`, `after`: publishes of `size` events, before and after the
    subscriber connects."""
    monkeypatch.setattr("hitbox.broker.delivery.delivery.OLDEST_ROWS", removed_at_once)
    commit = Store.commit

    def slowly(self: Store) -> None:
        time.sleep(0.01)
        commit(self)

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            await broker.put_subscriber("ann", Options(policy, limit=limit))
            monkeypatch.setattr(Store, "commit", slowly)
            publishing: list[Any] = []

            async def publish(times: int) -> None:
                for _ in range(times):
                    publishing.append(asyncio.create_task(broker.publish([item(qty=1)] * size)))
                    await asyncio.sleep(seconds)

            await publish(before)
            ann = await Listener(broker).attach("ann")
            await publish(after)
            got = len(ann.got)
            await asyncio.gather(*publishing)
            assert got > 100
            await until(lambda: broker.caught_up() and not ann.mailbox.pending)
            gone = ann.mailbox.dead if policy == "spool" else ann.mailbox.dropped
            assert len(ann.got) + gone == (before + after) * size
            await ann.leave()

    asyncio.run(scenario())


def test_expired_deliveries_and_the_excess_are_removed_together(tmp_path: Path) -> None:
    """Otherwise a few that expire between two looks would keep the others from being removed."""

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            short = PublishedEvent({"qty": 1}, ttl_seconds=0.01)
            await broker.publish([item(qty=1), short, item(qty=1), item(qty=1)] * 10)
            await until(broker.caught_up)
            await asyncio.sleep(0.02)
            removal = broker.tracker._removal_of_oldest(
                broker.mailbox("ann"), Options("drop_oldest", limit=15), OVER_LIMIT
            )
            late, dropped = await broker.writer.submit(removal)
            assert [seq for _, seq in late] == list(range(2, 41, 4))
            assert [seq for _, seq in dropped] == [seq for seq in range(1, 21) if seq % 4 != 2]
            assert stored(broker, "ann") == [seq for seq in range(21, 41) if seq % 4 != 2]

    asyncio.run(scenario())


def test_dead_letters_that_do_not_fit_together_are_made_little_by_little(tmp_path: Path) -> None:
    """Each try that fails makes the store full for everybody, so the next one is smaller."""

    async def scenario() -> None:
        async with running(tmp_path, max_store_bytes=3_000_000, keep_seconds=1e6) as broker:
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            for _ in range(15):
                await broker.publish([item(qty=1, city="x" * 10_000)] * 10)
            await until(broker.caught_up)
            await broker.put_subscriber("ann", Options(limit=1))
            await until(lambda: broker.mailbox("ann").pending == 1 and not broker.writer.full, 60)
            assert broker.mailbox("ann").dead == 149
            assert await broker.publish([item(qty=0)]) == 151

    asyncio.run(scenario())


def test_events_with_very_many_matches_are_not_matched_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One who subscribes to everything many times holds up nobody: what is found is sent before more is looked for."""
    monkeypatch.setattr("hitbox.broker.delivery.dispatcher.MOST_MATCHES", 100)
    monkeypatch.setattr("hitbox.broker.delivery.dispatcher.MOST_IN_CALL", 100)
    monkeypatch.setattr("hitbox.broker.delivery.dispatcher.MOST_IN_THREAD", 100)
    monkeypatch.setattr("hitbox.broker.delivery.dispatcher.SURE_TOGETHER", 2)

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            runs, right = list[int](), Dispatcher.run

            async def run(dispatcher: Dispatcher, batch: list[AcceptedEvent]) -> Any:
                rows, matches = await right(dispatcher, batch)
                runs.append(sum(one.total() for one in matches.values()))
                return rows, matches

            monkeypatch.setattr(Dispatcher, "run", run)
            await broker.subscribe("ann", [sub(f"s{n}", "qty >= 0") for n in range(40)])
            ann = await Listener(broker).attach("ann")
            await broker.publish([item(qty=n) for n in range(30)])
            await until(lambda: ann.seqs() == [*range(1, 31)])
            assert all(len(one["subscriptions"]) == 40 for one in ann.got)
            await until(broker.caught_up)
            assert sum(runs) == 30 * 40
            assert max(runs) < 100 + 2 * 40
            assert (broker.statistics.counts["matched"], broker.change_barrier.events_inside) == (30, 0)

    asyncio.run(scenario())


def test_what_has_very_many_matches_is_matched_and_named_a_little_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the event loop few are found and named at once; the rest is found in the thread."""
    monkeypatch.setattr("hitbox.broker.delivery.dispatcher.LOOP_STEPS", 10)
    monkeypatch.setattr("hitbox.broker.delivery.dispatcher.COLLECTED", 20)
    found: dict[bool, list[int]] = {True: [], False: []}
    named = list[int]()
    match, collect = SubscriptionRegistry.match, Dispatcher._collect

    def matching(*of: Any) -> Any:
        matches = match(*of)
        here = threading.current_thread() is threading.main_thread()
        found[here].append(sum(len(ids) for levels in matches for ids in levels.values()))
        return matches

    def collecting(dispatcher: Dispatcher, a: AcceptedEvent, ids: list[str], *rest: Any) -> None:
        named.append(len(ids))
        collect(dispatcher, a, ids, *rest)

    monkeypatch.setattr(SubscriptionRegistry, "match", matching)
    monkeypatch.setattr(Dispatcher, "_collect", collecting)

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.subscribe("ann", [sub(f"s{n}", "qty > 0") for n in range(90)])
            await broker.subscribe("bob", [sub("s", "qty = 0")])
            ann = await Listener(broker).attach("ann")
            for one in (item(qty=1, city="large"), item(qty=0)):
                await broker.publish([one])
                await until(broker.caught_up)
            large = broker.dispatcher.large
            assert found == {True: [1], False: [90]}
            assert sorted(named) == [1, 10, 20, 20, 20, 20]
            monkeypatch.setattr("hitbox.broker.delivery.dispatcher.MOST_IN_CALL", 90)
            await broker.publish([item(qty=0)])  # all subscriptions of the broker might match it
            await until(broker.caught_up)
            assert found == {True: [1], False: [90, 1]}
            monkeypatch.setattr("hitbox.broker.delivery.dispatcher.MOST_IN_CALL", 91)
            await broker.publish([item(qty=0)])
            await broker.publish([item(qty=0)] * 2)
            await until(broker.caught_up)
            assert (found[True][1:], sum(found[False][2:])) == ([1], 2)
            assert broker.dispatcher.large == large, "these events are small, and were quick"
            assert len(ann.got[0]["subscriptions"]) == 90
            await ann.leave()

    asyncio.run(scenario())
