"""The broker without the network: who gets what, in which order, and what happens when someone does not."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from hitbox import Attribute, Schema
from hitbox.broker import admin
from hitbox.broker.broker import RECORDS_AHEAD, Broker
from hitbox.broker.delivery.mailbox import Mailbox
from hitbox.broker.events.published_event import PublishedEvent
from hitbox.broker.settings import Options, Settings, check_options
from hitbox.broker.store.retention import Trimmed
from hitbox.broker.store.tables import StoredChange
from hitbox.broker.subscribers.subscriptions import Subscriber
from hitbox.errors import PredicateError, UnknownAttribute, UnknownSubscription
from hitbox.protocol.errors import BadRequest, Conflict, Overloaded, StoreFailed, StoreFull, TooLarge, Unknown
from support.broker_kit import SCHEMA, Listener, held_up, item, running, sub, until


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 180))


def test_one_delivery_names_all_subscriptions_that_matched(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.subscribe("ann", [sub("low", "price > 1", 2), sub("high", "city = 'Paris'", 9)])
            await broker.subscribe("bob", [sub("mid", "qty >= 3", 5)])
            ann, bob = await Listener(broker).attach("ann"), await Listener(broker).attach("bob")
            assert await broker.publish([item(price=2, city="Paris", qty=3)]) == 1
            assert await broker.publish([item(price=0, qty=9), item(price=0, qty=1)]) == 2
            await until(lambda: ann.got and len(bob.got) == 2)
            assert ann.got[0]["subscriptions"] == ["high", "low"]
            assert ann.got[0]["level"] == 9
            assert ann.got[0]["event"] == {"price": 2, "city": "Paris", "qty": 3}
            assert bob.seqs() == [1, 2]
            await until(lambda: broker.describe()["pending"] == 0)
            assert broker.statistics.counts["unmatched"] == 1
            sent = [(row.seq, row.level) for row in broker.statistics.trace()]
            assert sent[:2] == [(1, 9), (1, 5)]  # ann's two levels are known before bob is served

    run(scenario())


@pytest.mark.parametrize("way", ["serial", "alternate", "concurrent"])
def test_levels_go_out_in_order(tmp_path: Path, way: Any) -> None:
    async def scenario() -> None:
        async with running(tmp_path, way=way) as broker:
            listeners = []
            for n in range(30):
                await broker.subscribe(f"s{n}", [sub("a", f"qty >= {n % 3}", n % 10)])
                listeners.append(await Listener(broker).attach(f"s{n}"))
            await asyncio.gather(*(broker.publish([item(qty=q % 5)] * 3) for q in range(40)))
            await until(lambda: broker.waiting.events == 0 and broker.describe()["pending"] == 0)
            levels: dict[int, list[int]] = {}
            for row in broker.statistics.trace():
                assert row.live
                assert row.determined <= row.sent
                levels.setdefault(row.seq, []).append(row.level)
            assert len(levels) == 120
            assert all(found == sorted(found, reverse=True) for found in levels.values())
            for n, listener in enumerate(listeners):
                wanted = [seq for seq in range(1, 121) if broker_quantity(broker, seq) >= n % 3]
                assert listener.seqs() == wanted

    def broker_quantity(broker: Any, seq: int) -> int:
        return int(json.loads(broker.store.events.from_number(seq, 1)[0][-1])["event"]["qty"])

    run(scenario())


def test_durable_subscribers_get_what_they_missed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.subscribe("ann", [sub("s", "qty > 0", 3), sub("u", "qty > 50", 8)])
            await broker.publish([item(qty=n) for n in range(1, 101)])
        async with running(tmp_path, None) as broker:
            assert broker.registry.restored_from.startswith("snapshot")
            ann = await Listener(broker, auto=False).attach("ann", window=10)
            await until(lambda: len(ann.got) == 10)
            assert ann.seqs() == list(range(51, 61))  # most urgent first
            assert not any(d["redelivered"] for d in ann.got)
            broker.tracker.acknowledge(ann.mailbox, ann.seqs()[:4])
            await until(lambda: len(ann.got) == 14)
            await ann.leave()
            again = await Listener(broker).attach("ann", window=1000)
            await until(lambda: len(again.got) == 96)
            assert sorted(again.seqs()) == sorted(set(range(1, 101)) - {51, 52, 53, 54})
            marked = {d["seq"] for d in again.got if d["redelivered"]}
            assert marked >= set(range(55, 65))
            await until(lambda: broker.describe()["pending"] == 0)

    run(scenario())


def test_a_late_acknowledgement_counts(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            await broker.publish([item(qty=n) for n in range(1, 6)])
            ann = await Listener(broker, auto=False).attach("ann", 2)
            await until(lambda: len(ann.got) == 2)
            await ann.leave()
            ann = await Listener(broker, auto=False).attach("ann", 1)
            broker.tracker.acknowledge(ann.mailbox, [1, 2, 3, 4, 77])
            await until(lambda: ann.mailbox.pending == 1)
            broker.tracker.acknowledge(ann.mailbox, ann.seqs())
            await until(lambda: 5 in ann.seqs())

    run(scenario())


def test_redelivery_backs_off_and_ends_as_a_dead_letter(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            options = Options(visibility_seconds=0.1, max_tries=3, backoff_seconds=0.05)
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            ann = await Listener(broker, auto=False).attach("ann", options=options)
            await broker.publish([item(qty=1), item(qty=2)])
            await until(lambda: len(ann.got) >= 2)
            broker.tracker.acknowledge(ann.mailbox, [2])
            await until(lambda: broker.statistics.counts["dead"] == 1)
            tries = [(d["attempt"], d["redelivered"]) for d in ann.got if d["seq"] == 1]
            assert tries == [(1, False), (2, True), (3, True)]
            assert ann.mailbox.pending == 0
            await broker.publish([item(qty=3)])
            await until(lambda: 3 in ann.seqs())
            broker.tracker.refuse(ann.mailbox, [3])
            await until(lambda: ann.seqs().count(3) == 2)

    run(scenario())


def test_ephemeral_subscribers_are_live_only(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            eve = await Listener(broker).attach_ephemeral("eve", Options(policy="drop_oldest", limit=5))
            await broker.subscribe("eve", [sub("s", "qty > 0", 7)])
            await broker.publish([item(qty=1)])
            await until(lambda: eve.seqs() == [1])
            with pytest.raises(Conflict):
                broker.attach_ephemeral("eve", Listener(broker), Options(policy="drop_oldest"))
            with pytest.raises(BadRequest):
                broker.attach_ephemeral("eva", Listener(broker), Options())
            await eve.leave()
            assert len(broker.registry.ephemeral_index) == 0
            await broker.publish([item(qty=2)])
            assert broker.store.deliveries.unacknowledged() == 0
        async with running(tmp_path) as broker:
            with pytest.raises(Unknown):
                broker.subscriber("eve")

    run(scenario())


def test_a_slow_subscriber_delays_nobody_and_its_policy_shows(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            stuck = asyncio.Event()
            for name in ("spool", "drop", "cut", "fast"):
                await broker.subscribe(name, [sub("s", "qty > 0")])
            spool = await Listener(broker, slow=stuck).attach("spool", 10)
            drop = await Listener(broker, slow=stuck).attach("drop", 10, Options(policy="drop_oldest", limit=50))
            cut = await Listener(broker, slow=stuck).attach("cut", 10, Options(policy="disconnect", limit=50))
            live = await Listener(broker, slow=stuck).attach_ephemeral("live", Options(policy="drop_oldest", limit=20))
            await broker.subscribe("live", [sub("s", "qty > 0")])
            fast = await Listener(broker).attach("fast")
            for n in range(30):
                await broker.publish([item(qty=n + 1)] * 100)
            await until(lambda: len(fast.got) == 3000)
            await until(lambda: drop.mailbox.pending == 50)
            assert (spool.mailbox.pending, drop.mailbox.dropped) == (3000, 2950)
            assert live.mailbox.dropped > 2900
            assert spool.mailbox.ready <= 1000
            stuck.set()
            await until(lambda: len(spool.got) >= 3000 and cut.closed)
            assert spool.seqs() == list(range(1, 3001))
            assert cut.closed
            assert cut.closed[0] == 1013
            await cut.leave()
            cut = await Listener(broker).attach("cut", 10)  # what was spooled can be had
            await until(lambda: len(cut.got) >= 2990)

    run(scenario())


def test_bad_input_changes_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, max_event_bytes=200) as broker:
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            with pytest.raises(PredicateError) as caught:
                await broker.subscribe("ann", [sub("s", "qty > > 3")])
            assert caught.value.position == 6
            with pytest.raises(BadRequest):
                await broker.subscribe("ann", [sub("a/b", "qty > 3")])
            with pytest.raises(UnknownSubscription):
                await broker.subscribe("ann", [], ["nope"], strict=True)
            with pytest.raises(UnknownAttribute, match="did you mean 'qty'"):
                await broker.publish([item(qty=1), item(qtty=1)])
            with pytest.raises(TooLarge):
                await broker.publish([item(city="x" * 300)])
            assert broker.registry.index.where("ann/s") == "qty > 0"
            assert broker.store.events.table.rows() == 0
            assert (await broker.subscribe("ann", [sub("never", "qty > 3 AND qty < 2")]))[0].startswith("subscription")

    run(scenario())


def test_overload_and_a_full_disk_are_refused_and_pass(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, max_waiting=50, max_store_bytes=600_000) as broker:
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            many = await asyncio.gather(*(broker.publish([item(qty=1)] * 20) for _ in range(5)), return_exceptions=True)
            assert sum(isinstance(found, Overloaded) for found in many) == 3
            assert broker.statistics.counts["refused"] == 60
            with pytest.raises(StoreFull):
                await publish_until_full(broker)
            assert broker.statistics.counts["refused"] == 80
            with pytest.raises(StoreFull):
                await broker.publish([PublishedEvent({"qty": 1}, delay_seconds=60.0)])
            assert broker.statistics.counts["refused"] == 81
            accepted = broker.store.events.table.next() - 1
            with pytest.raises(StoreFull):
                await broker.subscribe("ann", [sub(f"x{n}", "city = '" + "y" * 900 + "'") for n in range(900)])
            assert len(broker.registry.index) == 1
            assert broker.health()[1] == 507
            await broker.writer.submit(lambda: broker.store.space.set_max_bytes(None), frees_space=True)
            await until(lambda: not broker.writer.full)
            await broker.publish([item(qty=5)])
            ann = await Listener(broker).attach("ann")
            await until(lambda: len(ann.got) == accepted + 1)
            assert ann.seqs() == list(range(1, accepted + 2))

    run(scenario())


def test_a_full_store_is_not_called_a_full_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The message names the setting, also after a restart."""
    said = r"max_store_bytes \(600000\), though the disk has room: raise it"

    async def scenario() -> None:
        async with running(tmp_path, max_store_bytes=600_000) as broker:
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            with pytest.raises(StoreFull, match=said):
                await publish_until_full(broker)
            assert re.search(said, broker.health()[0]["reason"])
        caplog.clear()
        async with running(tmp_path, None, max_store_bytes=600_000) as broker:
            assert re.search(said, broker.health()[0]["reason"])
            assert re.search(said + ".*publishing is refused", caplog.text)
            with pytest.raises(StoreFull, match=said):
                await broker.publish([item(qty=1)])

    run(scenario())


async def publish_until_full(broker: Broker, events: Sequence[PublishedEvent] = ()) -> None:
    for _ in range(500):
        await until(lambda: broker.waiting.events == 0)  # a publish may return before its events are matched
        await broker.publish(events or [item(qty=1, city="x" * 500)] * 20)


def test_retention_goes_on_until_nothing_is_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few events at a time, and others come in between."""
    monkeypatch.setattr("hitbox.broker.broker.TRIM_ROWS", 10)
    monkeypatch.setattr("hitbox.broker.broker.TICK_SECONDS", 0.01)

    async def scenario() -> None:
        async with running(tmp_path, keep_seconds=0) as broker:
            await broker.publish([item(qty=1)] * 95)
            await until(broker.caught_up)
            batches: list[int] = []
            trim = broker.store.retention.trim

            def counted(*what: int) -> Trimmed:
                done = trim(*what)
                batches.append(done.events)
                return done

            monkeypatch.setattr(broker.store.retention, "trim", counted)
            await broker._trim()
            assert batches == [10] * 9 + [5]
            assert broker.store.events.table.rows() == 0
            assert broker.store.events.total("trimmed") == 95

    run(scenario())


def test_retention_makes_room(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, max_store_bytes=600_000) as broker:
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            with pytest.raises(StoreFull):
                await publish_until_full(broker)
            ann = await Listener(broker).attach("ann")
            await until(lambda: broker.store.events.total("trimmed") > 0 and not broker.writer.full, 30)
            assert await broker.publish([item(qty=1)])
            assert ann.seqs()[0] == 1

    run(scenario())


def test_acknowledgements_make_room_beside_a_subscriber_who_is_away(tmp_path: Path) -> None:
    """Everything was recorded a moment ago: acknowledged deliveries leave the log, though older ones are pending."""

    async def scenario() -> None:
        async with running(tmp_path, max_store_bytes=600_000) as broker:
            await broker.subscribe("ann", [sub("s" * 100, "qty > 0"), sub("t" * 100, "qty > 0")])
            await broker.subscribe("bob", [sub("s", "qty = 2")])
            with pytest.raises(StoreFull):
                await publish_until_full(broker, [item(qty=2), *[item(qty=1)] * 19])
            sent = broker.store.events.table.next() - 1
            ann = await Listener(broker).attach("ann")
            await until(lambda: len(ann.got) == sent and not ann.mailbox.pending, 30)
            await until(lambda: not broker.writer.full, 30)
            assert await broker.publish([item(qty=2)])
            bob = await Listener(broker).attach("bob")
            await until(lambda: len(bob.got) == sent // 20 + 1)

    run(scenario())


def test_a_failure_inside_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One event of a group cannot be matched: the others get all, and it gets what is above the failure."""

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            await broker.subscribe("bob", [sub("s", "qty > 0", 9)])
            levels, match = broker.registry.levels, broker.registry.match

            def bad_match(events: Any, *rest: Any) -> Any:
                return 1 // 0 if any(event["qty"] == 3 for event in events) else match(events, *rest)

            def bad_levels(event: Any, *rest: Any) -> Any:
                found = levels(event, *rest)
                yield next(found)
                raise ZeroDivisionError

            with monkeypatch.context() as patch:
                patch.setattr(broker.registry, "match", bad_match)
                patch.setattr(broker.registry, "levels", bad_levels)
                assert await broker.publish([item(qty=quantity) for quantity in range(1, 8)]) == 1
                await until(lambda: broker.statistics.counts["errors"])
            ann, bob = await Listener(broker).attach("ann"), await Listener(broker).attach("bob")
            await until(lambda: ann.seqs() == [1, 2, 4, 5, 6, 7] and bob.seqs() == list(range(1, 8)))
            await until(lambda: broker.store.events.failed() == [3])
            assert broker.health()[0]["status"] == "degraded"
        async with running(tmp_path) as broker:
            ann = await Listener(broker).attach("ann")
            await until(lambda: ann.seqs() == [3])
            assert broker.health()[0]["status"] == "ok"

    run(scenario())


def test_an_event_that_is_matched_again_is_pending_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One subscriber had its delivery before the failure and has not acknowledged it; the other gets it now."""

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.subscribe("high", [sub("s", "qty > 0", 9)])
            await broker.subscribe("low", [sub("s", "qty > 0", 1)])
            levels = broker.registry.levels

            def only_the_first(event: Any, *rest: Any) -> Any:
                yield next(levels(event, *rest))
                raise ZeroDivisionError

            monkeypatch.setattr(broker.registry, "match", lambda *_: 1 // 0)
            monkeypatch.setattr(broker.registry, "levels", only_the_first)
            await broker.publish([item(qty=1)])
            await until(broker.caught_up)
            assert (broker.mailbox("high").pending, broker.mailbox("low").pending) == (1, 0)
        async with running(tmp_path) as broker:
            await until(broker.caught_up)
            assert (broker.mailbox("high").pending, broker.mailbox("low").pending) == (1, 1)
            for name in ("high", "low"):
                listener = await Listener(broker).attach(name)
                await until(lambda one=listener: one.seqs() == [1] and not one.mailbox.pending)  # type: ignore[misc]

    run(scenario())


def test_what_waits_is_matched_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every way: the same deliveries, by level over the whole group; a slow group makes the next ones smaller."""

    async def scenario(way: str) -> None:
        groups: list[int] = []
        async with running(tmp_path / way, way=way) as broker:
            await broker.subscribe("low", [sub("s", "qty > 2", 1)])
            await broker.subscribe("high", [sub("s", "qty < 9", 8), sub("t", "qty < 4 AND city = 'x'", 3)])
            low, high = await Listener(broker).attach("low"), await Listener(broker).attach("high")
            match = broker.registry.match

            def counted(events: Any, *rest: Any) -> Any:
                groups.append(len(events))
                if len(groups) == 1:
                    time.sleep(0.02)  # more than a turn of the event loop
                return match(events, *rest)

            monkeypatch.setattr(broker.registry, "match", counted)
            await broker.publish([item(qty=quantity, city="x") for quantity in range(1, 12)])
            await until(lambda: len(low.got) == 9 and len(high.got) == 8)
            assert (low.seqs(), high.seqs()) == (list(range(3, 12)), list(range(1, 9)))
            assert [d["subscriptions"] for d in high.got] == [["s", "t"]] * 3 + [["s"]] * 5
            sent: dict[int, list[int]] = {}
            for row in broker.statistics.trace():
                sent.setdefault(row.seq, []).append(row.level)
            assert all(levels == sorted(levels, reverse=True) for levels in sent.values())
            await broker.publish([item(qty=0), item(qty=20), item(qty=21)])
            await until(lambda: len(low.got) == 11)
            assert groups == [11, 3]
            assert broker.dispatcher.together == 5
            await broker.publish([item(qty=20)] * 7)
            await until(lambda: len(low.got) == 18)
            assert groups == [11, 3, 5, 2]

    for way in ("serial", "alternate", "concurrent"):
        run(scenario(way))


def test_a_store_that_fails_takes_nothing_more_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            with monkeypatch.context() as patch:
                patch.setattr(broker.store.deliveries, "record", lambda *_: 1 // 0)
                assert await broker.publish([item(qty=1)]) == 1
                await until(lambda: broker.failed)
            with pytest.raises(StoreFailed, match="the broker failed"):
                await broker.publish([item(qty=2)])
            assert broker.health()[1] == 503
        async with running(tmp_path) as broker:
            ann = await Listener(broker).attach("ann")
            await until(lambda: ann.seqs() == [1])

    run(scenario())


def test_an_acknowledgement_may_overtake_the_record(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            for n in range(10):
                await broker.subscribe(f"s{n}", [sub("s", "qty > 0", n)])
            listeners = [await Listener(broker).attach(f"s{n}") for n in range(10)]
            for n in range(20):  # the most urgent acknowledge before the least urgent is determined
                await broker.publish([item(qty=n + 1)])
            await until(lambda: all(len(listener.got) == 20 for listener in listeners))
            await until(lambda: broker.describe()["pending"] == 0)
            assert broker.store.deliveries.unacknowledged() == 0

    run(scenario())


def test_an_acknowledgement_may_overtake_the_record_also_of_an_older_event(tmp_path: Path) -> None:
    """Levels of a batch go out one after the other, so a newer event's delivery may come before an older one's."""

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.subscribe("ann", [sub("urgent", "qty = 2", 9), sub("rest", "qty = 1", 1)])
            ann = await Listener(broker, auto=False).attach("ann")
            blocks = [asyncio.get_running_loop().create_future() for _ in range(RECORDS_AHEAD)]
            for block in blocks:
                broker._track_record(block, 0)  # nothing can be recorded
            await broker.publish([item(qty=1), item(qty=2)])
            await until(lambda: len(ann.got) == 2)
            assert [(got["level"], got["event"]["qty"]) for got in ann.got] == [(9, 2), (1, 1)]
            for got in ann.got:
                broker.tracker.acknowledge(ann.mailbox, [got["seq"]])
            for block in blocks:
                block.set_result(None)
            await until(lambda: ann.mailbox.pending == 0)
            assert broker.store.deliveries.unacknowledged() == 0

    run(scenario())


def test_symmetric_events(tmp_path: Path) -> None:
    schema = Schema({"salary": "int", "age": Attribute("int", role="information")})

    async def scenario() -> None:
        async with running(tmp_path, schema) as broker:
            await broker.subscribe("ann", [sub("s", "salary > 10", 4, age=30)])
            await broker.subscribe("bob", [sub("s", "salary > 10", 4, age=50)])
            ann, bob = await Listener(broker).attach("ann"), await Listener(broker).attach("bob")
            await broker.publish(
                [item("age > 40", salary=20), item(salary={"low": 5, "high": 11}), item("age < 40", salary=5)]
            )
            await until(lambda: len(bob.got) == 2 and ann.got)
            assert (ann.seqs(), bob.seqs()) == ([2], [1, 2])
            assert bob.got[0]["where"] == "age > 40"
        async with running(tmp_path, schema) as broker:
            assert broker.registry.index.about("ann/s") == {"age": 30}

    run(scenario())


def test_another_schema_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path):
            pass
        with pytest.raises(Conflict):
            async with running(tmp_path, Schema({"other": "int"})):
                pass
        async with running(tmp_path, SCHEMA):
            pass

    run(scenario())


def test_removing_a_subscriber_while_it_subscribes_leaves_no_orphans(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            for turn in range(30):
                await broker.subscribe("ann", [sub("s", "qty > 0")])
                acts = [
                    broker.subscribe("ann", [sub(f"t{turn}", "qty > 0")]),
                    broker.remove_subscriber("ann"),
                    broker.put_subscriber("ann", Options(limit=turn + 1)),
                    broker.subscribe("ann", [sub("u", "qty > 0")], ["s"]),
                    broker.remove_subscriber("ann"),
                    broker.subscribe("ann", [sub("v", "qty > 0")]),
                    broker.attach("ann", Listener(broker), 1, Options(limit=turn + 2)),
                    broker.remove_subscriber("ann"),
                    broker.subscribe("ann", [sub("w", "qty > 0")]),
                ]
                for found in await asyncio.gather(*acts[turn % 3 :], *acts[: turn % 3], return_exceptions=True):
                    assert found is None or isinstance(found, Unknown | Conflict | list | Subscriber | Mailbox), found
            assert broker.store.inconsistencies() == []
            known = {f"ann/{row[1]}" for row in broker.store.subscribers.subscriptions.scan()}
            assert known == set(broker.registry.index)
            assert broker.subscriber("ann").subscriptions == len(known)
            assert broker.store.subscribers.table.rows() == 1
        async with running(tmp_path) as broker:
            assert broker.health()[0]["status"] == "ok"
            assert known == set(broker.registry.index)

    run(scenario())


def test_the_store_itself_refuses_a_subscription_of_nobody(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            change = StoredChange(7, "ann", [("s", "qty > 0", 4, "{}")], [])
            assert await broker.writer.submit(lambda: broker.store.subscribers.change([change])) == {7}
            assert broker.store.subscribers.subscriptions.rows() == 0
            await broker.writer.submit(lambda: broker.store.deliveries.record([(7, 4, 1, "s", 0)], 0))
            assert broker.store.deliveries.unacknowledged() == 0

    run(scenario())


def test_a_change_goes_on_when_who_asked_has_gone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            for n in range(20):
                asking = asyncio.create_task(broker.subscribe("ann", [sub(f"s{n}", "qty > 0")]))
                for _ in range(n):
                    await asyncio.sleep(0)
                asking.cancel()
            await asyncio.gather(*broker._changes)
            await broker.wait_for_stored_changes()
            stored = broker.store.subscribers.subscriptions.scan()
            assert {f"ann/{row[1]}" for row in stored} == set(broker.registry.index)
            assert len(broker.registry.index) >= 19  # the first was gone before it began

    run(scenario())


def test_a_rejected_predicate_makes_no_subscriber(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            with pytest.raises(PredicateError):
                await broker.subscribe("ann", [sub("s", "qty >")])
            with pytest.raises(Unknown):
                broker.subscriber("ann")
            assert broker.store.subscribers.table.rows() == 0

    run(scenario())


def test_many_tries(tmp_path: Path) -> None:
    """The pause doubles with every try: not for ever."""

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            options = Options(max_tries=10_000, backoff_seconds=0.01, max_backoff_seconds=0.01, visibility_seconds=0.02)
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            await broker.publish([item(qty=1)])
            await until(lambda: broker.store.deliveries.unacknowledged() == 1)
            await broker.writer.submit(lambda: broker.store.deliveries.retry(1, 4, 1, 1_500))
            ann = await Listener(broker, auto=False).attach("ann", options=options)
            await until(lambda: len(ann.got) >= 3)
            assert [d["attempt"] for d in ann.got[:3]] == [1501, 1502, 1503]
            assert broker.failed is None

    run(scenario())


def test_housekeeping_that_fails_for_one_goes_on_for_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            for name in ("ann", "bob"):
                await broker.subscribe(name, [sub("s", "qty > 0")])
            options = Options(visibility_seconds=0.05, backoff_seconds=0.01)
            ann = await Listener(broker, auto=False).attach("ann", options=options)
            bob = await Listener(broker, auto=False).attach("bob", options=options)
            monkeypatch.setattr(ann.mailbox, "timed_out", lambda now: 1 // 0)
            await broker.publish([item(qty=1)])
            await until(lambda: len(bob.got) >= 3)
            assert broker.statistics.counts["errors"] > 0
            assert broker.health()[1] == 200

    run(scenario())


@pytest.mark.parametrize("wrong", [{"keep_seconds": float("inf")}, {"max_waiting": -1}, {"keep_bytes": 2**70}])
def test_settings_that_make_no_sense(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="the setting"):
        Broker(tmp_path, SCHEMA, Settings(**wrong))
    for options in (Options(max_backoff_seconds=-1), Options(max_tries=2**70), Options(limit=2**70)):
        with pytest.raises(BadRequest):
            check_options(options, False)


def test_housekeeping_looks_at_busy_subscribers_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            for n in range(20):
                await broker.put_subscriber(f"idle{n}")
            looked: list[str] = []
            enforce = broker.tracker.enforce_limits

            def counted(mailbox: Mailbox) -> None:
                looked.append(mailbox.subscriber.name)
                enforce(mailbox)

            monkeypatch.setattr(broker.tracker, "enforce_limits", counted)
            await broker.publish([item(qty=1)])
            await until(lambda: len(looked) > 2)
            ann = await Listener(broker).attach("ann")
            await until(lambda: ann.mailbox.pending == 0 and not broker._busy)
            assert set(looked) == {"ann"}
        async with running(tmp_path) as broker:
            assert not broker._busy
            await broker.publish([item(qty=1)])
            await until(broker.caught_up)
        async with running(tmp_path) as broker:  # a new start knows who has pending deliveries
            assert [mailbox.subscriber.name for mailbox in broker._busy.values()] == ["ann"]
            await broker.remove_subscriber("ann")
            await until(lambda: not broker._busy)

    run(scenario())


def test_a_change_of_the_schema_goes_on_when_who_asked_has_gone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            narrow = Schema({"price": "float"})
            async with held_up(broker):
                asking = asyncio.create_task(admin.put_schema(broker, narrow))
                await until(lambda: broker.writer.waiting())
                asking.cancel()
                await asyncio.wait([asking])
            with pytest.raises(UnknownAttribute, match="qty"):
                await broker.publish([item(qty=5)])
            assert broker.registry.schema == narrow == Schema.from_json(broker.store.meta.get("schema"))

    asyncio.run(scenario())


def test_what_comes_during_a_change_of_the_schema_fits_the_new_one(tmp_path: Path) -> None:
    """It was checked with the one before, and waits."""

    async def scenario() -> None:
        async with running(tmp_path, message_ids=10) as broker:
            await broker.subscribe("ann", [sub("s", "price > 0")])
            ann = await Listener(broker).attach("ann")
            narrow = Schema({"price": "float", "city": "string"})
            async with held_up(broker):
                change = asyncio.create_task(admin.put_schema(broker, narrow))
                await until(lambda: not broker.change_barrier.is_open())
                both, unknown = PublishedEvent({"price": 1.0}), PublishedEvent({"qty": 5}, id="x")
                publishing = [asyncio.create_task(broker.publish([one])) for one in (both, unknown, both)]
                await until(lambda: broker.waiting.events == 3)
            await change
            with pytest.raises(UnknownAttribute, match="qty"):
                await publishing[1]
            assert (await publishing[0], await publishing[2]) == (1, 2)
            await until(lambda: broker.caught_up() and len(ann.got) == 2)
            assert broker.waiting.events == broker.waiting.bytes == 0
            with pytest.raises(UnknownAttribute, match="qty"):  # its id is free
                await broker.publish([unknown])

            async with held_up(broker):  # nothing of what came fits
                change = asyncio.create_task(admin.put_schema(broker, Schema({"price": "float"})))
                await until(lambda: not broker.change_barrier.is_open())
                refused = asyncio.create_task(broker.publish([item(city="Paris")]))
                await until(lambda: broker.waiting.events == 1)
            await change
            with pytest.raises(UnknownAttribute, match="city"):
                await refused
            assert await broker.publish([item(price=3.0)]) == 3
            await until(lambda: broker.caught_up() and len(ann.got) == 3)
            await broker.subscribe("ann", [sub("t", "price > 1")])  # the barrier lets changes through
            await ann.leave()

    asyncio.run(scenario())
