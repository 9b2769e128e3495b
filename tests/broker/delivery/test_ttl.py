"""Events with a time to live: when it has passed, they are not delivered any more."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hitbox
from hitbox.broker import admin
from hitbox.broker.clock import time
from hitbox.broker.delivery.dispatcher import Dispatcher
from hitbox.broker.delivery.mailbox import FRAME_COUNT, Delivery
from hitbox.broker.events.published_event import MAX_SECONDS, PublishedEvent, expires_at
from hitbox.broker.metrics import exposition
from hitbox.broker.settings import Options
from hitbox.broker.subscribers.subscriptions import Subscription
from hitbox.client import BadRequest, Client
from support.broker_kit import Listener, running, serving, until

EVERYTHING = [Subscription("all", "price >= 0", 4)]


def event(price: float, ttl: float | None = None) -> PublishedEvent:
    return PublishedEvent({"price": price}, ttl_seconds=ttl)


@pytest.mark.parametrize(
    ("body", "expires"),
    [
        (b'{"event":{"a":1}}', 0),
        (b'{"event":{"ttl_seconds":5}}', 0),
        (b'{"event":{},"payload":5}', 0),
        (b'{"event":{},"payload":"\\"ttl_seconds\\":5}"}', 0),
        (b'{"event":{},"payload":{"ttl_seconds":5}}', 0),
        (b'{"event":{},"ttl_seconds":5}', 5_000_100),
        (b'{"event":{},"ttl_seconds":1e-6}', 101),
        (b"", 0),
        (b"}", 0),
    ],
)
def test_the_end_of_a_text_says_when_it_expires(body: bytes, expires: int) -> None:
    assert expires_at(100, body) == expires


def test_bad_times_are_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            for bad in (0, -1, MAX_SECONDS + 1, float("nan"), float("inf")):
                with pytest.raises(hitbox.HitboxError, match="ttl_seconds must be more than 0 and at most 31622400"):
                    await broker.publish([event(1, bad)])
            assert broker.store.events.table.next() == 1

    asyncio.run(scenario())


def test_an_offline_subscriber_does_not_get_what_has_expired(tmp_path: Path, later) -> None:  # type: ignore[no-untyped-def]
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.subscribe("ann", EVERYTHING)
            await broker.publish([event(1, 60), event(2), event(3, 600)])
            await until(broker.caught_up)
        later(100)
        async with running(tmp_path, None) as broker:  # also after a restart
            ann = await Listener(broker).attach("ann")
            await until(lambda: len(ann.got) == 2 and not ann.mailbox.pending)
            assert ann.seqs() == [2, 3]
            assert broker.describe()["expired"] == ann.mailbox.expired == 1
            assert b"hitbox_expired_total 1.0" in exposition(broker, lambda _: True, True)
            await ann.leave()

    asyncio.run(scenario())


def test_deliveries_that_nobody_asks_for_are_removed(tmp_path: Path, later, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    """Several steps, with rows in the table and in the log; what has not expired stays."""
    monkeypatch.setattr("hitbox.broker.delivery.expiry.ROWS", 7)
    monkeypatch.setattr("hitbox.broker.delivery.expiry.PAUSE_SECONDS", 0.05)

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.subscribe("ann", EVERYTHING)
            await broker.subscribe("bob", EVERYTHING)
            await broker.publish([event(n, 60 if n % 2 else None) for n in range(40)])
            await until(broker.caught_up)
            await broker.writer.submit(lambda: broker.store.deliveries.settle(80))
            await broker.publish([event(n, 60 if n % 2 else 600) for n in range(10)])
            await until(broker.caught_up)
            mailboxes = [broker.mailbox(name) for name in ("ann", "bob")]
            assert [m.pending for m in mailboxes] == [50, 50]
            later(100)
            await until(lambda: [m.pending for m in mailboxes] == [25, 25])
            assert [m.expired for m in mailboxes] == [25, 25]
            assert broker.store.deliveries.unacknowledged() == 50
            later(1000)
            await until(lambda: [m.pending for m in mailboxes] == [20, 20])
            await broker.publish([event(1, 60)])  # after a time without any
            later(2000)
            await until(lambda: [m.expired for m in mailboxes] == [31, 31])
            assert [m.pending for m in mailboxes] == [20, 20]
            assert broker.store.deliveries.unacknowledged() == 40

    asyncio.run(scenario())


def test_what_is_recorded_late_or_replayed_expires_too(tmp_path: Path, later, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    """A search that ends between the moment when an event is accepted and the moment when its deliveries are recorded
    finds nothing of it. Neither does one before a replay."""
    monkeypatch.setattr("hitbox.broker.delivery.expiry.PAUSE_SECONDS", 0.05)

    async def scenario() -> None:
        async with running(tmp_path) as broker:

            async def search() -> None:
                broker.expiry.expect(0)
                broker.expiry._not_before = 0.0
                await until(lambda: broker.expiry._not_before and broker.expiry._step is None)

            await broker.subscribe("ann", EVERYTHING)
            ann, gate, right = broker.mailbox("ann"), asyncio.Event(), broker.dispatcher.run
            await broker.publish([event(0)])
            await until(broker.caught_up)

            async def slow(batch: Any) -> Any:
                await gate.wait()
                return await right(batch)

            with monkeypatch.context() as patched:
                patched.setattr(Dispatcher, "run", lambda _, batch: slow(batch))
                await broker.publish([event(1, 60)])
                await search()
                gate.set()
                await until(broker.caught_up)
            later(100)
            await until(lambda: ann.expired == 1)
            await broker.publish([event(1, 60)])
            await until(broker.caught_up)
            await broker.subscribe("bob", EVERYTHING)
            await broker.writer.submit(lambda: broker.store.deliveries.acknowledge([(ann.subscriber.number, 4, 3)]))
            await search()
            assert await admin.replay(broker, "bob", 3) == 1
            later(300)
            await until(lambda: broker.mailbox("bob").expired == 1)
            assert broker.store.deliveries.unacknowledged() == 1

    asyncio.run(scenario())


def test_what_a_client_has_is_its_own_until_it_fails(tmp_path: Path, later) -> None:  # type: ignore[no-untyped-def]
    """A delivery in flight may be acknowledged late. If it is refused instead, it is not tried again."""

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.subscribe("ann", EVERYTHING)
            ann = await Listener(broker, auto=False).attach("ann", options=Options(max_tries=3, backoff_seconds=0))
            await broker.publish([event(1, 60), event(2, 60), event(3)])
            await until(lambda: len(ann.got) == 3 and broker.caught_up())
            later(100)
            broker.expiry.expect(0)
            await until(lambda: broker.expiry._not_before and broker.expiry._step is None)
            broker.tracker.acknowledge(ann.mailbox, [1])
            broker.tracker.refuse(ann.mailbox, [2, 3])
            await until(lambda: len(ann.got) == 4)
            assert ann.seqs() == [1, 2, 3, 3]
            broker.tracker.acknowledge(ann.mailbox, [3])
            await until(lambda: not ann.mailbox.pending)
            counts = broker.describe()
            assert (counts["acked"], counts["expired"], counts["dead"]) == (2, 1, 0)
            await ann.leave()

    asyncio.run(scenario())


def test_replays_leave_out_what_has_expired(tmp_path: Path, later) -> None:  # type: ignore[no-untyped-def]
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.subscribe("ann", EVERYTHING)
            ann = await Listener(broker, auto=False).attach("ann", options=Options(max_tries=1))
            await broker.publish([event(1, 60), event(2)])
            await until(lambda: len(ann.got) == 2 and broker.caught_up())
            broker.tracker.refuse(ann.mailbox, [1, 2])
            await until(lambda: broker.store.letters.table.rows() == 2)
            later(100)
            assert await admin.replay_dead_letters(broker, [1, 2]) == 1  # the other one stays a dead letter
            assert broker.store.letters.table.rows() == 1
            await until(lambda: len(ann.got) == 3)
            broker.tracker.acknowledge(ann.mailbox, [2])
            await until(lambda: not ann.mailbox.pending)
            assert await admin.replay(broker, "ann", 1) == 1
            await until(lambda: len(ann.got) == 4)
            assert ann.seqs() == [1, 2, 2, 2]
            await ann.leave()

    asyncio.run(scenario())


def test_a_revived_dead_letter_keeps_its_event(tmp_path: Path) -> None:
    """Without its event nobody knows when it was accepted, and it would count as expired."""

    async def scenario() -> None:
        async with running(tmp_path, keep_seconds=0) as broker:
            await broker.subscribe("ann", EVERYTHING)
            ann = await Listener(broker, auto=False).attach("ann", options=Options(max_tries=1))
            await broker.publish([event(1, 600), event(2)])
            await until(lambda: len(ann.got) == 2 and broker.caught_up())
            broker.tracker.refuse(ann.mailbox, [1, 2])
            await until(lambda: broker.store.letters.table.rows() == 2)
            await ann.leave()
            assert await admin.replay_dead_letters(broker, [1, 2]) == 2
            await broker.writer.submit(broker._retain)
            assert (broker.store.events.table.first(), broker.store.events.kept.rows()) == (3, 2)
            late, _, _ = broker.store.deliveries.expired((-1, 0, 0), 100, time.time_ns() // 1000)
            assert late == []
            ann = await Listener(broker).attach("ann")
            await until(lambda: len(ann.got) == 2 and not ann.mailbox.pending)
            assert [(d["seq"], d["time"] > 0) for d in ann.got] == [(1, True), (2, True)]
            await ann.leave()
            assert broker.store.events.kept.rows() == 0

    asyncio.run(scenario())


@pytest.mark.parametrize(("policy", "counter"), [("spool", "dead"), ("drop_oldest", "dropped")])
def test_what_has_expired_is_neither_a_dead_letter_nor_dropped(
    tmp_path: Path, later, policy: Any, counter: str
) -> None:  # type: ignore[no-untyped-def]
    """The limit comes before the search: what has expired is removed as such."""

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.put_subscriber("ann", Options(policy, limit=10))
            await broker.subscribe("ann", EVERYTHING)
            ann = broker.mailbox("ann")
            await broker.publish([event(1), *[event(n, 60) for n in range(6)], event(2)])
            await until(broker.caught_up)
            broker.expiry.step = lambda: None  # type: ignore[method-assign]
            later(100)
            await broker.publish([event(n) for n in range(5)])  # 13 pending, 7 without those that have expired
            await until(lambda: broker.caught_up() and ann.pending == 7)
            assert (ann.expired, getattr(ann, counter), broker.store.letters.table.rows()) == (6, 0, 0)
            await broker.publish([event(n) for n in range(5)])
            await until(lambda: broker.caught_up() and ann.pending == 10)
            assert (ann.expired, getattr(ann, counter)) == (6, 2)
            assert broker.describe()["expired"] == 6

    asyncio.run(scenario())


def test_ephemeral_subscribers_get_no_expired_events(tmp_path: Path, later) -> None:  # type: ignore[no-untyped-def]
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            gate = asyncio.Event()
            live = await Listener(broker, slow=gate).attach_ephemeral("live", Options(policy="drop_oldest"))
            await broker.subscribe("live", EVERYTHING)
            await broker.publish([event(1, 60)])
            await until(lambda: broker.caught_up() and not live.mailbox.ready)  # it is being sent
            await broker.publish([event(2, 60), event(3)])
            await until(lambda: live.mailbox.ready == 2)
            later(100)
            gate.set()
            await until(lambda: len(live.got) == 2)
            assert live.seqs() == [1, 3]
            assert live.mailbox.expired == 1
            assert not live.mailbox.pending
            await live.leave()

    asyncio.run(scenario())


def test_others_have_turns_while_much_has_expired(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            away = Listener(broker)
            mailbox = broker.attach_ephemeral("live", away, Options(policy="drop_oldest"))
            frames = 4
            mailbox.offer([Delivery(n, 4, ["s"], 1, b"{}", expires=1) for n in range(1, frames * FRAME_COUNT + 1)])
            left = []
            sending = asyncio.ensure_future(broker.tracker.next(mailbox, away))
            while mailbox.ready:
                await asyncio.sleep(0)
                left.append(mailbox.ready)
            assert left == [FRAME_COUNT * (frames - n - 1) for n in range(frames)]
            assert mailbox.expired == frames * FRAME_COUNT
            mailbox.offer([Delivery(9000, 4, ["s"], 1, b"{}")])
            assert [d.seq for d in await sending] == [9000]
            await broker.detach(mailbox, away)

    asyncio.run(scenario())


def test_through_sockets(tmp_path: Path, later) -> None:  # type: ignore[no-untyped-def]
    """Published by HTTP, over the publish socket and on the command line; received over a WebSocket."""

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), Client(url) as client:
            await client.put_subscription("ann", "all", "price >= 0")
            with pytest.raises(BadRequest, match="ttl_seconds must be more than 0"):
                await client.publish({"price": 1}, ttl_seconds=0)
            await client.publish({"price": 1}, ttl_seconds=60)
            await client.request("POST", "/v1/events", {"event": {"price": 2}, "ttl_seconds": 60})
            command = [sys.executable, "-m", "hitbox", "publish", '{"price": 3}', "--ttl", "60", "--url", url]
            assert await asyncio.to_thread(subprocess.check_output, command, text=True) == "3\n"
            await client.publish({"price": 4}, ttl_seconds=6000)
            later(100)
            async with client.subscriber("ann") as ann:
                found = await anext(aiter(ann))
                assert (found.event, found.ttl_seconds) == ({"price": 4}, 6000)
            await until(lambda: broker.describe()["expired"] == 3)
            assert (await client.get_subscriber("ann"))["expired"] == 3

    asyncio.run(scenario())
