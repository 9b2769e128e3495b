"""Time-outs, windows and acknowledgements through real sockets: who gets what twice, and who does not."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from hitbox.broker import admin
from hitbox.broker.delivery import dispatcher, mailbox, receiver
from hitbox.broker.delivery.mailbox import MEMORY_ROWS, Mailbox
from hitbox.broker.delivery.mailbox import Delivery as MailboxDelivery
from hitbox.broker.http import websocket
from hitbox.broker.http.websocket import DeliveryNumbers
from hitbox.broker.settings import Options
from hitbox.broker.subscribers.subscriptions import Subscriber
from hitbox.client import Client, Delivery
from hitbox.client.prefetch import FIRST_WINDOW, PrefetchWindow
from hitbox.protocol.errors import BadRequest
from support.broker_kit import Listener, held_up, item, running, serving, sub, until


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 180))


def address(url: str) -> str:
    return "ws" + url.removeprefix("http") + "/v1/connect"


async def hello(socket: ClientConnection, **more: Any) -> Any:
    await socket.send(json.dumps({"type": "hello", "subscriber": "ann", **more}))
    return json.loads(await socket.recv())


async def until_closed(socket: ClientConnection) -> list[Any]:
    found = []
    with contextlib.suppress(ConnectionClosed):
        while True:
            found.append(json.loads(await socket.recv()))
    return found


# ---- a slow handler is no failure


@pytest.mark.parametrize("way", ["run", "iterate"])
def test_a_slow_handler_gets_everything_once(tmp_path: Path, way: str) -> None:
    """All of it takes several time-outs, one event alone takes three."""

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), Client(url) as client:
            seen: list[int] = []

            async def handle(delivery: Delivery) -> None:
                seen.append(delivery.seq)
                await asyncio.sleep(1.2 if delivery.seq == 50 else 0.01)

            async with client.subscriber("ann", visibility_seconds=0.4, backoff_seconds=0.01) as ann:
                await ann.subscribe("s", "qty >= 0")
                await client.publish_many([{"qty": n} for n in range(100)])

                async def iterate() -> None:
                    async for delivery in ann:
                        await handle(delivery)

                task = asyncio.create_task(ann.run(handle) if way == "run" else iterate())
                await until(lambda: len(seen) == 100, 30)
                if way == "run":  # iterating acknowledges the last one when the next is asked for
                    await until(lambda: broker.describe()["pending"] == 0)
                task.cancel()
            assert seen == list(range(1, 101))
            assert broker.statistics.counts["dead"] == 0

    run(scenario())


def test_a_slow_handler_of_the_sync_client_gets_everything_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url):

            def work() -> list[int]:
                found = []
                with Client.sync(url) as client:
                    subs = [{"name": "s", "where": "qty >= 0"}]
                    client.request("PUT", "/v1/subscribers/ann/subscriptions/s", {"where": "qty >= 0"})
                    client.publish_many([{"qty": n} for n in range(60)])
                    for delivery in client.listen("ann", subs, 60, visibility_seconds=0.4, backoff_seconds=0.01):
                        found.append(delivery.seq)
                        time.sleep(1.2 if delivery.seq == 30 else 0.01)
                return found

            assert await asyncio.to_thread(work) == list(range(1, 61))
            await until(lambda: broker.describe()["pending"] == 0)

    run(scenario())


def test_a_blocked_event_loop_loses_its_deliveries_to_another(tmp_path: Path) -> None:
    release, stuck, seen = threading.Event(), threading.Event(), []

    def block(delivery: Delivery) -> None:
        seen.append(delivery.seq)
        stuck.set()
        release.wait(30)  # nothing else runs in this client

    async def client_of_its_own(url: str) -> None:
        options = {"visibility_seconds": 0.2, "backoff_seconds": 0.01, "max_tries": 1000}
        async with Client(url) as client, client.subscriber("ann", **options) as ann:
            await ann.subscribe("s", "qty > 0")
            await client.publish({"qty": 1})
            await ann.run(block)

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url):
            first = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(client_of_its_own(url))))
            try:
                await until(stuck.is_set)
                await until(lambda: broker.mailbox("ann").resent >= 2)  # again and again, as nobody says anything
                async with Client(url) as client, client.subscriber("ann") as other:
                    async for delivery in other:
                        assert (delivery.seq, delivery.redelivered) == (1, True)
                        assert delivery.attempt > 1
                        break
                    await other.ack(1)
                    await until(lambda: broker.describe()["pending"] == 0)
            finally:
                release.set()
                await asyncio.gather(first, return_exceptions=True)
            assert seen == [1]

    run(scenario())


def test_a_stuck_handler_of_the_sync_client_loses_its_delivery(tmp_path: Path) -> None:
    """Its event loop runs, so `handler_seconds` says when a handler counts as stuck; what waits behind it is kept."""
    release = threading.Event()

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url):

            def work() -> None:
                with Client.sync(url) as client:
                    options = {"visibility_seconds": 0.2, "backoff_seconds": 0.01, "max_tries": 3}
                    subs = [{"name": "s", "where": "qty > 0"}]
                    with client.listen("ann", subs, handler_seconds=0.1, **options) as deliveries:
                        client.publish_many([{"qty": 1}, {"qty": 2}])
                        next(deliveries)
                        release.wait(30)

            with Client.sync(url) as client:
                await asyncio.to_thread(
                    client.request, "PUT", "/v1/subscribers/ann/subscriptions/s", {"where": "qty > 0"}
                )
            first = asyncio.create_task(asyncio.to_thread(work))
            try:
                await until(lambda: broker.statistics.counts["dead"] == 1)  # after three tries
                assert broker.mailbox("ann").pending == 1
                letters = broker.store.reader.read("SELECT seq, tries, reason FROM dead")
                assert letters == [(1, 3, "not acknowledged in time")]
            finally:
                release.set()
                await first

    run(scenario())


def test_who_only_acknowledges_has_the_time_out_from_sending(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), connect(address(url), proxy=None) as socket:
            options = {"visibility_seconds": 1, "backoff_seconds": 0.01}
            await hello(socket, options=options, put=[{"name": "s", "where": "qty > 0"}])
            await broker.publish([item(qty=1), item(qty=2)])
            got = json.loads(await socket.recv())["deliveries"]
            while len(got) < 2:
                got += json.loads(await socket.recv())["deliveries"]
            for _ in range(15):  # longer than the time-out
                await asyncio.sleep(0.1)
                await socket.send(json.dumps({"type": "extend", "seqs": [2, 77]}))
            again = json.loads(await socket.recv())["deliveries"]
            assert [(d["seq"], d["attempt"], d["redelivered"]) for d in again] == [(1, 2, True)]
            assert set(broker.mailbox("ann").in_flight) == {1, 2}
            await until(lambda: broker.mailbox("ann").resent >= 3)  # without more of it the second is late, too

    run(scenario())


def test_the_time_out_begins_when_a_delivery_is_written(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            blocked = asyncio.Event()
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            options = Options(visibility_seconds=0.05, backoff_seconds=0.01)
            ann = await Listener(broker, slow=blocked).attach("ann", options=options)
            await broker.publish([item(qty=1)])
            await until(lambda: ann.mailbox.in_flight)
            await asyncio.sleep(0.3)  # the connection does not take it
            assert ann.mailbox.in_flight[1].tries == 0
            blocked.set()
            await until(lambda: broker.describe()["pending"] == 0)

    run(scenario())


# ---- windows


def test_the_window_follows_the_handler() -> None:
    fast, slow, now = PrefetchWindow(256), PrefetchWindow(256), 0.0
    for _ in range(2000):
        for pace, seconds in ((fast, 0.001), (slow, 0.25)):
            pace.handler_ready(now)
            pace.handed_out(now)
            now += seconds
            pace.handler_ready(now)
            now += 100  # waiting for the next event says nothing of the handler
    assert fast.size == 256
    assert FIRST_WINDOW <= slow.size <= 8
    assert slow.grant(1) == slow.size
    assert slow.grant(300) == 256


def test_many_may_be_in_hand(tmp_path: Path) -> None:
    """With auto=False a handler may collect as many as the window allows before it acknowledges."""

    async def scenario() -> None:
        async with (
            serving(tmp_path) as (broker, url),
            Client(url) as client,
            client.subscriber("ann", auto=False, window=40) as ann,
        ):
            await ann.subscribe("s", "qty >= 0")
            await client.publish_many([{"qty": n} for n in range(60)])
            deliveries = ann.__aiter__()
            found = [await anext(deliveries) for _ in range(40)]
            assert [d.seq for d in found] == list(range(1, 41))
            assert window_left(broker.mailbox("ann")) == 0
            await ann.nack(found[0])
            await ann.ack(*found[1:])
            rest = [await anext(deliveries) for _ in range(21)]
            assert sorted(d.seq for d in rest) == [1, *range(41, 61)]
            await ann.ack(*rest)
            await until(lambda: broker.describe()["pending"] == 0)

    run(scenario())


def window_left(mailbox: Mailbox) -> int:
    assert mailbox.connected is not None
    return mailbox.window_left(mailbox.connected)


def test_failures_that_wait_for_their_next_try_take_no_place_in_the_window(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            ann = await Listener(broker, auto=False).attach("ann", 2, Options(backoff_seconds=600))
            await broker.publish([item(qty=n) for n in range(1, 7)])
            for seen in (2, 4, 6):
                await until(lambda seen=seen: len(ann.got) == seen)
                broker.tracker.refuse(ann.mailbox, ann.seqs()[-2:])
            assert (ann.mailbox.paused, window_left(ann.mailbox)) == (6, 2)
            broker.tracker.acknowledge(ann.mailbox, ann.seqs())
            assert (ann.mailbox.paused, window_left(ann.mailbox)) == (0, 2)

    run(scenario())


def test_a_shorter_time_out_acts_while_longer_ones_run(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            ann = await Listener(broker, auto=False).attach("ann")
            for seconds in (1000.0, 0.5):
                await broker.put_subscriber("ann", Options(visibility_seconds=seconds))
                await broker.publish([item(qty=1)])
                await until(lambda count=int(seconds < 1) + 1: len(ann.got) == count)
            assert [d.seq for d in ann.mailbox.timed_out(time.monotonic() + 500)] == [2]

    run(scenario())


def test_a_replayed_delivery_keeps_its_own_pause(tmp_path: Path) -> None:
    """The pause of a delivery that was acknowledged meanwhile does not end the pause of its replay."""

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            await broker.put_subscriber("ann", Options(backoff_seconds=30.0))
            ann = await Listener(broker, auto=False).attach("ann")
            await broker.publish([item(qty=1)])
            await until(lambda: len(ann.got) == 1 and broker.store.deliveries.unacknowledged() == 1)
            broker.tracker.refuse(ann.mailbox, [1])
            broker.tracker.acknowledge(ann.mailbox, [1])
            await until(lambda: broker.store.deliveries.unacknowledged() == 0)
            await broker.put_subscriber("ann", Options(backoff_seconds=60.0, max_backoff_seconds=60.0))
            await admin.replay(broker, "ann", 1)
            await until(lambda: len(ann.got) == 2)
            broker.tracker.refuse(ann.mailbox, [1])
            ann.mailbox.timed_out(time.monotonic() + 45)
            assert (ann.mailbox.paused, ann.mailbox.ready) == (1, 0)
            ann.mailbox.timed_out(time.monotonic() + 90)
            assert (ann.mailbox.paused, ann.mailbox.ready) == (0, 1)

    run(scenario())


def test_an_acknowledgement_waits_for_no_other(tmp_path: Path) -> None:
    """Of two that are acknowledged together one is not in the store yet: the other one is deleted all the same."""

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            ann = await Listener(broker, auto=False).attach("ann")
            await broker.publish([item(qty=1), item(qty=1)])
            await until(lambda: len(ann.got) == 2 and broker.store.deliveries.unacknowledged() == 2)
            broker.tracker.recorded = 1
            broker.tracker.acknowledge(ann.mailbox, [2, 1])
            await until(lambda: [row[2] for row in broker.store.recent.all()] == [2])
            broker.tracker.record([], 2)
            await until(lambda: broker.store.deliveries.unacknowledged() == 0 and ann.mailbox.pending == 0)

    run(scenario())


def test_an_ephemeral_subscriber_gets_a_level_in_order(tmp_path: Path) -> None:
    """Though some of the events also go to a durable one."""

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.subscribe("ann", [sub("s", "qty = 1")])
            live = await Listener(broker).attach_ephemeral("live", Options("drop_oldest", 100))
            await broker.subscribe("live", [sub("s", "qty > 0")])
            await broker.publish([item(qty=n % 3 + 1) for n in range(30)])
            await until(lambda: len(live.got) == 30)
            assert live.seqs() == list(range(1, 31))

    run(scenario())


def test_a_delivery_may_fail_any_number_of_times() -> None:
    async def scenario() -> None:
        mailbox = Mailbox(Subscriber(1, "ann", Options(max_tries=5000)))
        mailbox.connect(object(), 1)  # type: ignore[arg-type]

        delivery = MailboxDelivery(1, 4, ["s"], 0, b"{}")
        for attempt in range(1, 3000):
            mailbox.in_flight[1], delivery.deadline = delivery, 1.0
            assert mailbox.try_failed(delivery, 0.0)
            assert mailbox._retry_heap.pop()[0] == min(2.0 ** min(attempt - 1, 10), 60)

    run(scenario())


# ---- acknowledgements


def test_unknown_numbers_cost_nobody_else_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), connect(address(url), proxy=None) as socket:
            await hello(socket, window=1, put=[{"name": "s", "where": "qty > 0"}])
            for _ in range(3):
                await broker.publish([item(qty=1)] * 1000)  # one held, some ready, the others on the disk
            await until(lambda: broker.mailbox("ann").in_flight and broker.tracker.stored == 3000)
            assert broker.mailbox("ann").ready > 0
            deleted: list[int] = []
            delete = broker.store.deliveries.acknowledge

            def count(keys: Any) -> dict[int, int]:
                keys = list(keys)
                deleted.append(len(keys))
                return delete(keys)

            monkeypatch.setattr(broker.store.deliveries, "acknowledge", count)
            numbers = [*range(10**6, 10**6 + 9_990), 0, -5, 2**70, 3, 3, 2500, 1]
            before = MEMORY_ROWS * len(numbers)
            looked = Counting(broker.mailbox("ann"))
            await socket.send(json.dumps({"type": "ack", "seqs": numbers}))
            await until(lambda: broker.mailbox("ann").pending == 2997)
            assert deleted == [1, 2]  # held; in memory and on the disk: what is pending, and no more
            assert looked.count * 100 < before
            assert broker.statistics.counts["acked"] == 3
            await socket.send(json.dumps({"type": "ack", "seqs": [*range(1, 10_002)]}))
            frames = await until_closed(socket)
            assert "10000" in frames[-1]["error"]["message"]
            assert socket.close_code == 1008

    class Counting:
        """How often deliveries that wait are looked at."""

        def __init__(self, mailbox: Mailbox):
            self.count = 0
            outer = self

            class Row(type(mailbox._ready[4])):  # type: ignore[misc]
                def __iter__(self) -> Any:
                    for one in super().__iter__():
                        outer.count += 1
                        yield one

            mailbox._ready[4] = Row(mailbox._ready[4])

    run(scenario())


def test_the_sync_client_acknowledges_and_refuses(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url):

            def work() -> list[tuple[int, int]]:
                found = []
                with Client.sync(url) as client:
                    subs = [{"name": "s", "where": "qty > 0"}]
                    with client.listen("ann", subs, 4, auto=False, backoff_seconds=0.01) as deliveries:
                        for at, delivery in enumerate(deliveries):
                            found.append((delivery.seq, delivery.attempt))
                            deliveries.extend(delivery)
                            if at == 1:
                                deliveries.nack(delivery)
                            elif at < 3:
                                deliveries.ack(delivery)
                return found

            await broker.subscribe("ann", [sub("s", "qty > 0")])
            await broker.publish([item(qty=n) for n in (1, 2, 3)])
            assert await asyncio.to_thread(work) == [(1, 1), (2, 1), (3, 1), (2, 2)]
            await until(lambda: broker.describe()["pending"] == 1)  # the last one was left alone, and stays
            number = broker.subscriber("ann").number
            found = await broker.writer.submit(lambda: list(broker.store.deliveries.of(number)))
            assert [(row[2], row[5]) for row in found] == [(2, 1)]

    run(scenario())


def test_a_dead_letter_whose_event_is_pending_anyway_does_not_come_twice(tmp_path: Path) -> None:
    """The replay made it pending, at another level: two rows of one event would be acknowledged as one."""

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.subscribe("ann", [sub("x", "qty > 0", 4)])
            ann = await Listener(broker, auto=False).attach("ann", options=Options(max_tries=1))
            await broker.publish([item(qty=1)] * 3)
            await until(lambda: len(ann.got) == 3)
            broker.tracker.refuse(ann.mailbox, [1, 2, 3])
            await until(lambda: broker.store.letters.table.rows() == 3)
            await ann.leave()
            await broker.subscribe("ann", [sub("x", "qty > 0", 7)])
            assert await admin.replay(broker, "ann", 2) == 2
            assert await admin.replay_dead_letters(broker, [1, 2, 3]) == 1
            assert (broker.mailbox("ann").pending, broker.store.deliveries.unacknowledged()) == (3, 3)
            assert broker.store.letters.table.rows() == 2, "those that are pending anyway stay letters"
            again = await Listener(broker).attach("ann")
            await until(lambda: broker.store.deliveries.unacknowledged() == 0)
            await until(lambda: broker.mailbox("ann").pending == 0)
            assert sorted(again.seqs()) == [1, 2, 3]
            await again.leave()

    run(scenario())


def test_a_fetch_does_not_bring_back_what_was_acknowledged_meanwhile(tmp_path: Path) -> None:
    """The numbers are known from an earlier connection."""

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            await broker.publish([item(qty=1)] * 5)
            await until(broker.caught_up)
            ann = Listener(broker, auto=False)
            async with held_up(broker):
                ann.mailbox = broker.mailbox("ann")
                broker.connect(ann.mailbox, ann, 100)
                ann.task = asyncio.create_task(ann.run())
                await until(lambda: ann.mailbox.gone is not None)  # it waits for what is fetched
                answered = broker.tracker.acknowledge(ann.mailbox, [1, 2, 4])
            assert answered is not None
            await answered
            await until(lambda: 5 in ann.seqs())
            assert ann.seqs() == [3, 5]
            assert ann.mailbox.pending == 2
            await ann.leave()

    run(scenario())


def test_a_replay_of_what_was_acknowledged_comes_and_comes_again(tmp_path: Path) -> None:
    """What was acknowledged is left out where it was sent again meanwhile, but not where it was asked for."""

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), Client(url) as client:
            seen: list[int] = []

            def handle(delivery: Delivery) -> None:
                seen.append(delivery.attempt)
                if len(seen) == 2:
                    raise ValueError("once")

            async with client.subscriber("ann", backoff_seconds=0.01) as ann:
                await ann.subscribe("s", "qty > 0")
                task = asyncio.create_task(ann.run(handle))
                await client.publish({"qty": 1})
                await until(lambda: broker.statistics.counts["acked"] == 1)
                ann._receive_delivery(Delivery(1, 4, 0, ["s"], {"qty": 1}, attempt=2, redelivered=True))
                await client.request("POST", "/v1/subscribers/ann/replay", {"first": 1})
                await until(lambda: broker.statistics.counts["acked"] == 2)
                assert seen == [1, 1, 2]
                task.cancel()

    run(scenario())


# ---- what clients say


def test_a_handler_that_fails_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), Client(url) as client:

            def handle(delivery: Delivery) -> None:
                raise ValueError("the handler's own trouble")

            async with client.subscriber("ann", max_tries=1) as ann:
                await ann.subscribe("s", "qty > 0")
                task = asyncio.create_task(ann.run(handle))
                await client.publish({"qty": 1})
                await until(lambda: broker.statistics.counts["dead"] == 1)
                task.cancel()

    with caplog.at_level(logging.ERROR, "hitbox.client"):
        run(scenario())
    (record,) = [one for one in caplog.records if one.name == "hitbox.client"]
    assert "event 1" in record.getMessage()
    assert record.exc_info
    assert "the handler's own trouble" in str(record.exc_info[1])


# ---- many deliveries per message, acknowledged in ranges


def test_ranges_of_numbers() -> None:
    numbers = DeliveryNumbers()
    sent = [numbers.add(seqs, set) for seqs in ([70, 71, 90], [], [71, 95])]
    assert sent == [1, 4, 4]
    assert numbers.take([]) == []
    assert numbers.take([(0, 0), (6, 2**53)]) == []  # what was never sent
    assert numbers.take([(2, 2), (2, 2)]) == [71]
    assert numbers.take([(2, 3), (1, 2), (3, 3)]) == [70, 90]  # overlapping, one of them acknowledged already
    assert numbers.take([(0, 2**53), (4, 5)]) == [95]  # 71, too, was acknowledged: under the number that it had before
    assert numbers.take([(1, 2**53)]) == []
    with pytest.raises(BadRequest, match=r"\[3, 2\] ends before"):
        numbers.take([(3, 2)])
    assert numbers.add([1, 2], set) == 6


def test_a_delivery_that_is_sent_again_keeps_the_number_before() -> None:
    numbers = DeliveryNumbers()
    for _ in range(3):
        numbers.add([70, 71], set)
    assert numbers.take([(1, 2)]) == []
    assert numbers.take([(3, 3), (5, 5)]) == [70]
    assert numbers.take([(1, 6)]) == [71]
    assert numbers._seqs == numbers._latest == numbers._former == {}


def test_what_is_outstanding_keeps_its_number() -> None:
    """However much was refused, acknowledged, or became a dead letter since; and nothing else is kept for long."""
    numbers, held = DeliveryNumbers(), {1}
    numbers.add([1], lambda: held)
    for first in range(2, 150_000, 500):
        some = range(first, first + 500)
        held.update(some)
        numbers.add(some, lambda: held)
        held.difference_update(some)
        if first % 1000:
            numbers.forget(some)
    assert len(numbers._seqs) <= 20_000
    assert numbers.take([(1, 1)]) == [1]
    held.update(range(200_000, 260_000))
    for first in range(200_000, 260_000, 500):
        numbers.add(range(first, first + 500), lambda: held)
    assert set(numbers.take([(1, 2**53)])) >= set(range(200_000, 260_000))
    assert numbers._seqs == {}


def test_wide_ranges_cost_no_more_than_narrow_ones() -> None:
    numbers = DeliveryNumbers()
    numbers.add(range(20_000), set)
    wide = [(2**40 + n, 2**52) for n in range(10_000)]
    assert numbers.take(wide) == []
    assert numbers.take([*wide, (5, 2**53)]) == list(range(4, 20_000))
    for _ in range(5):  # sent again and again, never acknowledged
        numbers.add(range(10_000), lambda: set(range(10_000)))
    assert numbers.take([(1, 2**53)]) == list(range(10_000))


def test_acknowledgements_of_many_are_one_operation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes before the store gets to it joins; what comes afterwards is another group; nothing is forgotten."""

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            names = [f"n{n}" for n in range(20)]
            for name in names:
                await broker.subscribe(name, [sub("s", "qty > 0")])
            all_of_them = [await Listener(broker, auto=False).attach(name) for name in names]
            groups: list[int] = []
            delete = broker.store.deliveries.acknowledge

            def count(keys: Any) -> dict[int, int]:
                groups.append(len(keys))
                return delete(keys)

            monkeypatch.setattr(broker.store.deliveries, "acknowledge", count)
            for turn in range(1, 4):
                await broker.publish([item(qty=1)] * 2)
                await until(lambda turn=turn: all(len(one.got) == 2 * turn for one in all_of_them))  # type: ignore[misc]
                await until(broker.caught_up)
                for one in all_of_them:
                    broker.tracker.acknowledge(one.mailbox, one.seqs()[-2:])
                await until(lambda: all(one.mailbox.pending == 0 for one in all_of_them))
                assert broker.store.deliveries.unacknowledged() == 0
                assert broker.statistics.counts["acked"] == turn * 40
            assert sum(groups) == 120
            assert len(groups) < 60

    asyncio.run(asyncio.wait_for(scenario(), 120))


def test_a_delivery_that_is_held_is_acknowledged_by_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after many others were refused. A range that contains numbers of refused ones does not acknowledge them."""
    monkeypatch.setattr(websocket, "MOST", 500)

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), connect(f"ws{url[4:]}/v1/connect") as socket:

            async def say(**message: Any) -> None:
                await socket.send(json.dumps(message))

            put = [{"name": "s", "where": "qty > 0"}]
            options = {"max_tries": 2, "backoff_seconds": 0.01, "visibility_seconds": 60}
            await say(type="hello", subscriber="ann", window=1000, put=put, options=options)
            await socket.recv()
            for _ in range(6):
                await broker.publish([item(qty=1)] * 200)
            refused = 0
            while refused < 2 * 1199:
                seqs = [d["seq"] for d in json.loads(await socket.recv())["deliveries"] if d["seq"] > 1]
                refused += len(seqs)
                await say(type="nack", seqs=seqs)
                await say(type="extend", seqs=[1])
            ann = broker.mailbox("ann")
            await until(lambda: ann.dead == 1199)
            await say(type="ack", ranges=[[1, 1]])
            await until(lambda: not ann.pending)
            assert not ann.in_flight
            assert broker.statistics.counts["acked"] == 1
            await say(type="ack", ranges=[[1, 2**53]])
            await say(type="window", size=1)
            await broker.publish([item(qty=1)] * 2)
            again = json.loads(await socket.recv())
            await say(type="nack", seqs=[again["deliveries"][0]["seq"]])
            await say(type="ack", ranges=[[1, again["first"]]])
            third = json.loads(await socket.recv())["deliveries"][0]
            assert third["seq"] in (1201, 1202)
            assert ann.pending == 2

    asyncio.run(asyncio.wait_for(scenario(), 120))


def test_acknowledging_by_range(tmp_path: Path) -> None:
    """Over a real socket: out of order, twice, what was never sent; only what was sent and named is gone."""

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url):
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            async with connect(f"ws{url[4:]}/v1/connect", subprotocols=["hitbox.json.2"]) as socket:  # type: ignore[list-item]
                assert socket.subprotocol == "hitbox.json.2"

                async def say(**message: Any) -> None:
                    await socket.send(json.dumps(message))

                await say(type="hello", subscriber="ann", window=6)
                assert json.loads(await socket.recv())["type"] == "welcome"
                await broker.publish([item(qty=n % 2) for n in range(20)])  # the even numbers match
                got: list[tuple[int, int]] = []
                while len(got) < 6:
                    frame = json.loads(await socket.recv())
                    got += [(frame["first"] + at, d["seq"]) for at, d in enumerate(frame["deliveries"])]
                assert got == [(n, 2 * n) for n in range(1, 7)]
                await say(type="ack", ranges=[[5, 6], [2, 2]])
                await say(type="ack", ranges=[[2, 3], [2, 2], [6, 6]], seqs=[8])
                await until(lambda: broker.mailbox("ann").pending == 5)
                while len(got) < 10:
                    frame = json.loads(await socket.recv())
                    got += [(frame["first"] + at, d["seq"]) for at, d in enumerate(frame["deliveries"])]
                assert got[6:] == [(n, 2 * n) for n in range(7, 11)]
                await say(type="ack", ranges=[[11, 2**53]])  # never sent
                await say(type="ack", ranges=[[8, 8], [0, 0]])
                await until(lambda: broker.mailbox("ann").pending == 4)
                assert list(broker.mailbox("ann").in_flight) == [2, 14, 18, 20]
                await say(type="ack", ranges=[[1, 10]])
                await until(lambda: broker.mailbox("ann").pending == 0)
                await say(type="ack", ranges=[[2, 1]])
                assert "ends before it begins" in await socket.recv()
                with pytest.raises(ConnectionClosed):
                    await socket.recv()
            assert broker.store.deliveries.unacknowledged() == 0
            assert broker.statistics.counts["acked"] == 10

    asyncio.run(asyncio.wait_for(scenario(), 120))


@pytest.mark.parametrize("meanwhile", ["slow", "paused", "away"])
def test_an_urgent_delivery_overtakes_a_backlog_on_disk(tmp_path: Path, meanwhile: str) -> None:
    """More wait than fit in memory, and a thousand of them have been read from disk already."""

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.subscribe(
                "ann", [sub("low", "qty = 0", 0), sub("mid", "qty = 5", 5), sub("high", "qty = 9", 9)]
            )
            ann = await Listener(broker, auto=False).attach("ann", window=10)
            await broker.publish([item(qty=0)] * (2 * MEMORY_ROWS))
            await broker.publish([item(qty=5)] * 2)
            await until(lambda: len(ann.got) == 10 and broker.caught_up())
            if meanwhile == "away":
                await ann.leave()
                ann = await Listener(broker, auto=False).attach("ann", window=10)
                await until(lambda: len(ann.got) == 10)
            elif meanwhile == "paused":
                await broker.pause("ann", True)
            await broker.publish([item(qty=9), item(qty=5), item(qty=0), item(qty=9)])
            await until(broker.caught_up)
            await broker.pause("ann", False)
            while len(ann.got) < 30:
                held = set(ann.mailbox.in_flight)
                broker.tracker.acknowledge(ann.mailbox, ann.seqs())
                await until(lambda held=held: ann.mailbox.in_flight and held.isdisjoint(ann.mailbox.in_flight))
            levels = [one["level"] for one in ann.got]
            numbers = [one["seq"] - 2 * MEMORY_ROWS for one in ann.got if one["level"]]
            if meanwhile == "away":  # the first two of level 5 were among the first ten
                assert levels[:15] == [5, 5, *[0] * 8, 9, 9, 5, 0, 0]
                assert numbers == [1, 2, 3, 6, 4]
            else:
                assert levels[:16] == [*[0] * 10, 9, 9, 5, 5, 5, 0]
                assert numbers == [3, 6, 1, 2, 4]
            low = [one["seq"] for one in ann.got if not one["level"]]
            assert low == list(range(1, len(low) + 1))
            await ann.leave()

    asyncio.run(scenario())


@pytest.mark.parametrize("free", [0, 1, 5])
def test_an_urgent_delivery_overtakes_a_full_memory(tmp_path: Path, free: int) -> None:
    """Nothing is on disk only, and there is room in memory for so many."""

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.subscribe("ann", [sub("low", "qty = 0", 0), sub("high", "qty = 9", 9)])
            ann = await Listener(broker, auto=False).attach("ann", window=10)
            for _ in range(10):
                await broker.publish([item(qty=0)])
            await until(lambda: len(ann.got) == 10)
            await broker.publish([item(qty=0)] * (MEMORY_ROWS - free))
            for _ in range(3):
                await broker.publish([item(qty=9)])
            await until(broker.caught_up)
            broker.tracker.acknowledge(ann.mailbox, ann.seqs())
            await until(lambda: len(ann.got) == 20)
            assert [one["level"] for one in ann.got[10:]] == [9, 9, 9, *[0] * 7]
            await ann.leave()

    asyncio.run(scenario())


@pytest.mark.parametrize("change", ["", " enter"])
def test_a_delivery_of_very_many_subscriptions_is_encoded_in_parts(
    monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """And its text is the same."""
    names = [f"s{n}{change if n % 2 else ''}" for n in range(25)]
    whole = MailboxDelivery(7, 4, names, 1, b'{"event":{}}').encode()
    assert len(msgspec.json.decode(whole)["subscriptions"]) == 25
    sizes: list[int] = []

    def encode(found: Any) -> bytes:
        sizes.append(len(found))
        return msgspec.json.encode(found)

    monkeypatch.setattr(mailbox, "_encode", encode)
    monkeypatch.setattr(mailbox, "MANY_NAMES", 4)
    assert MailboxDelivery(7, 4, names, 1, b'{"event":{}}').encode() == whole
    assert max(sizes) == 4


def test_very_many_subscriptions_are_encoded_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    encode = MailboxDelivery.encode

    def watched(self: MailboxDelivery, body: bytes | None = None) -> bytes:
        threads.append(threading.get_ident())
        return encode(self, body)

    monkeypatch.setattr(MailboxDelivery, "encode", watched)
    monkeypatch.setattr(receiver, "MANY_NAMES", 50)
    monkeypatch.setattr(dispatcher, "COLLECTED", 7)

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), Client(url) as client, client.subscriber("ann") as ann:
            names = [f"s{n}" for n in range(60)]
            await broker.subscribe("ann", [sub(name, "qty > 0") for name in names])
            await broker.subscribe("ann", [sub("few", "qty < 0")])
            for qty, wanted in ((1, names), (-1, ["few"]), (2, names)):
                await client.publish({"qty": qty})
                assert sorted((await ann.next()).subscriptions) == sorted(wanted)
            assert [one == threading.get_ident() for one in threads] == [False, True, False]
            rows = broker.store.deliveries.of(broker.subscriber("ann").number)
            assert {len(row[3].splitlines()) for row in rows} <= {60, 1}

    run(scenario())
