"""What a WebSocket sends and takes without a turn of the event loop."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError

from hitbox.broker.clock import time
from hitbox.broker.delivery import mailbox as mailboxes
from hitbox.broker.delivery.mailbox import Delivery, Mailbox
from hitbox.broker.http import publish_socket, websocket
from hitbox.broker.http.connections import WebSocketProtocol
from hitbox.broker.settings import Options
from hitbox.broker.subscribers.subscriptions import Subscriber
from hitbox.errors import HitboxError
from support.broker_kit import item, serving, sub, until


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 120))


async def subscriber(url: str, name: str, window: int = 100) -> Any:
    socket = await connect(f"ws{url[4:]}/v1/connect", ping_interval=None)
    await socket.send(json.dumps({"type": "hello", "subscriber": name, "window": window}))
    assert json.loads(await socket.recv())["type"] == "welcome"
    return socket


async def seqs(socket: Any) -> list[int]:
    return [one["seq"] for one in json.loads(await socket.recv())["deliveries"]]


def fails(*_: object) -> Any:
    raise ValueError("broken")


class SlowWork:
    """Functions that take 0.1 s of the broker's clock, and the turns of the event loop in which they ran."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.turns: list[int] = []
        self._patch, self._passed, self._turn, self._real = monkeypatch, 0.0, 0, time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: self._real() + self._passed)

    def slow(self, owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def work(*args: Any) -> Any:
            self._passed += 0.1
            self.turns.append(self._turn)
            return real(*args)

        self._patch.setattr(owner, name, work)

    def count_turns(self) -> None:
        self._turn += 1
        self._counting = asyncio.get_running_loop().call_soon(self.count_turns)

    def stop(self) -> None:
        self._counting.cancel()

    def had_a_turn_each(self) -> bool:
        return len(self.turns) > 1 and len(set(self.turns)) == len(self.turns)


@pytest.mark.parametrize("at", ["send", "acknowledge", "publish"])
def test_an_error_ends_its_own_connection_only(
    tmp_path: Path, at: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = websocket.Session._frame

    def frame(self: Any, mailbox: Mailbox, *texts: Any) -> bytes:
        return fails() if mailbox.subscriber.name == "ann" else real(self, mailbox, *texts)

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url):
            for name in ("ann", "bob"):
                await broker.subscribe(name, [sub("s", "qty > 0")])
            ann, bob = await subscriber(url, "ann"), await subscriber(url, "bob")
            publisher = await connect(f"ws{url[4:]}/v1/publish", ping_interval=None)
            event = json.dumps({"type": "publish", "request": 1, "items": [{"event": {"qty": 1}}]})
            with monkeypatch.context() as broken:
                if at == "send":
                    broken.setattr(websocket.Session, "_frame", frame)
                await publisher.send(event)
                assert json.loads(await publisher.recv())["first"] == 1
                assert await seqs(bob) == [1]
                closed = ann
                if at == "acknowledge":
                    assert await seqs(ann) == [1]
                    broken.setattr(broker.tracker, "acknowledge", fails)
                    await ann.send('{"type":"ack","ranges":[[1,1]]}')
                elif at == "publish":
                    broken.setattr(broker, "accept_now", fails)
                    await publisher.send(event)
                    closed = publisher
                with pytest.raises(ConnectionClosedError) as ended:
                    await closed.recv()
                assert ended.value.rcvd is not None
                assert ended.value.rcvd.code == 1011
            await until(lambda: "failed" in caplog.text)
            assert "ValueError: broken" not in caplog.text  # the message might hold content
            await bob.send('{"type":"ack","ranges":[[1,1]]}')
            await until(lambda: broker.mailbox("bob").pending == 0)
            assert broker.failed is None
            if at != "publish":
                again = await subscriber(url, "ann")
                assert await seqs(again) == [1]

    run(scenario())


def test_a_full_window_and_what_follows_it(tmp_path: Path) -> None:
    """Everything comes once and in order, whoever sends it: the dispatcher, or the task of the connection."""

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url):
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            ann = await subscriber(url, "ann", window=3)
            publisher = await connect(f"ws{url[4:]}/v1/publish", ping_interval=None)
            for n in range(40):
                items = [{"event": {"qty": 1}}] * (1 + n % 3)
                await publisher.send(json.dumps({"type": "publish", "request": n, "items": items}))
            firsts = [json.loads(await publisher.recv())["first"] for _ in range(40)]
            assert firsts == sorted(firsts)
            got: list[int] = []
            while len(got) < 79:
                frame = json.loads(await ann.recv())
                new = [one["seq"] for one in frame["deliveries"]]
                assert 1 <= len(new) <= 3
                got += new
                if len(got) % 2:  # as the client writes it, and in another order of its fields
                    await ann.send(json.dumps({"ranges": [[1, len(got)]], "type": "ack"}))
                else:
                    await ann.send(f'{{"type":"ack","ranges":[[1,{len(got)}]]}}')
            assert got == list(range(1, 80))
            await until(lambda: broker.mailbox("ann").pending == 0)

    run(scenario())


def test_an_acknowledgement_of_an_earlier_connection_is_looked_up_first(tmp_path: Path) -> None:
    """The next message waits until it was found in the store, so that what follows is not sent again."""

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url):
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            first = await subscriber(url, "ann")
            async with connect(f"ws{url[4:]}/v1/publish", ping_interval=None) as publisher:
                items = [{"event": {"qty": 1}}] * 5
                await publisher.send(json.dumps({"type": "publish", "request": 1, "items": items}))
                assert await seqs(first) == [1, 2, 3, 4, 5]
            second = await subscriber(url, "ann", window=1)
            assert await seqs(second) == [1]
            for n in (3, 5, 4, 2):
                await second.send(f'{{"type":"ack","seqs":[{n}]}}')
            await until(lambda: broker.mailbox("ann").pending == 1)
            await second.send('{"type":"ack","ranges":[[1,1]]}')
            await until(lambda: broker.mailbox("ann").pending == 0)
            await second.close()
            third = await subscriber(url, "ann")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(third.recv(), 0.3)

    run(scenario())


def test_nothing_overtakes_a_delivery_that_could_not_be_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The less urgent delivery of the same batch is not sent while the connection ends."""
    real = websocket.Session._encoded

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url):
            await broker.subscribe("ann", [sub("high", "qty > 0", 9), sub("low", "qty < 0", 4)])
            ann = await subscriber(url, "ann")
            with monkeypatch.context() as broken:
                broken.setattr(websocket.Session, "_encoded", lambda s, d: fails() if d.level == 9 else real(s, d))
                await broker.publish([item(qty=1), item(qty=-1)])
                with pytest.raises(ConnectionClosedError):
                    await ann.recv()
            again, got = await subscriber(url, "ann"), []
            while len(got) < 2:
                got += await seqs(again)
            assert got == [1, 2]

    run(scenario())


def test_a_connection_rests_when_everything_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it takes several frames: `alternate` waits for this before it goes on with the next level."""
    left: list[int] = []
    real = Mailbox.rest

    def rest(self: Mailbox, connection: Any) -> None:
        left.append(self.ready)
        real(self, connection)

    async def scenario() -> None:
        async with serving(tmp_path, way="alternate") as (broker, url):
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            ann = await subscriber(url, "ann")
            await until(lambda: broker.mailbox("ann").idle.is_set())
            monkeypatch.setattr(mailboxes, "FRAME_BYTES", 1)
            monkeypatch.setattr(Mailbox, "rest", rest)
            await broker.publish([item(qty=1)] * 5)
            assert [await seqs(ann) for _ in range(5)] == [[1], [2], [3], [4], [5]]
            await until(lambda: left)
            assert set(left) == {0}

    run(scenario())


def test_a_mailbox_that_spills_wakes_its_task() -> None:
    """What is on disk is fetched by the task, also if everything in memory was sent at once."""

    class Greedy:
        def __init__(self) -> None:
            self.got: list[Delivery] = []

        def close(self, code: int, reason: str) -> None: ...

        def send_now(self, mailbox: Mailbox) -> bool:
            while found := mailbox.take(self):
                self.got += found
            return True

    async def scenario() -> None:
        mailbox, connection = Mailbox(Subscriber(1, "ann", Options())), Greedy()
        mailbox.connect(connection, 10_000)
        mailbox.rest(connection)
        mailbox.wake.clear()
        count = mailboxes.MEMORY_ROWS + 1
        taken = mailbox.offer([Delivery(seq, 4, ["s"], 1, b"{}") for seq in range(1, count + 1)])
        assert taken == len(connection.got) == count - 1
        assert mailbox.needs_refill(connection)
        assert mailbox.wake.is_set()

    run(scenario())


def test_nothing_is_sent_to_a_connection_that_broke_a_moment_ago(tmp_path: Path) -> None:
    """The broker hears of it in the next turn of the event loop. What was written until then would count as sent."""

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url):
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            ann, mailbox = await subscriber(url, "ann"), broker.mailbox("ann")
            await until(mailbox.idle.is_set)
            session = mailbox.connected
            assert isinstance(session, websocket.Session)
            session._line.transport.abort()  # as after a failed write
            mailbox.offer([Delivery(1, 4, ["s"], 1, b'{"event":{}}')])
            assert mailbox.ready == 1
            await until(lambda: mailbox.connected is None)
            assert broker.statistics.counts["delivered"] == 0
            with pytest.raises(ConnectionClosedError):
                await ann.recv()

    run(scenario())


# ---- turns


@pytest.mark.parametrize("what", ["publishes", "acknowledgements"])
def test_many_messages_in_one_read_leave_turns_to_others(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are handled in order, and a connection that has had its time lets everybody else run before the next."""
    work = SlowWork(monkeypatch)

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url):
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            ann = await subscriber(url, "ann")
            publisher = await connect(f"ws{url[4:]}/v1/publish", ping_interval=None)
            if what == "publishes":
                work.slow(broker, "_accept_checked")
            else:
                await broker.publish([item(qty=1)] * 30)
                assert await seqs(ann) == list(range(1, 31))
                work.slow(broker.tracker, "acknowledge")
            work.count_turns()
            for n in range(30):  # nothing runs in between, so they are read together
                if what == "publishes":
                    message = {"type": "publish", "request": n, "items": [{"event": {"qty": 1}}]}
                    await publisher.send(json.dumps(message))
                else:
                    await ann.send(f'{{"type":"ack","seqs":[{n + 1}]}}')
            await until(lambda: len(work.turns) == 30)
            work.stop()
            assert work.had_a_turn_each()
            if what == "publishes":
                answers = [json.loads(await publisher.recv()) for _ in range(30)]
                assert [(one["request"], one["first"]) for one in answers] == [(n, n + 1) for n in range(30)]
            else:
                await until(lambda: broker.mailbox("ann").pending == 0)

    run(scenario())


def test_many_subscribers_of_an_event_leave_turns_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = SlowWork(monkeypatch)

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, _):
            for n in range(10):
                await broker.subscribe(f"ann{n}", [sub("s", "qty > 0")])
            work.slow(Mailbox, "offer")
            work.count_turns()
            await broker.publish([item(qty=1)])
            await until(lambda: len(work.turns) == 10)
            work.stop()
            assert work.had_a_turn_each()

    run(scenario())


# ---- publishers that do not read


def test_requests_without_an_answer_hold_no_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be a thousand of them per connection, and events may be large."""
    reads = asyncio.Event()
    real = publish_socket.send_texts

    async def send_texts(*args: Any) -> None:
        await reads.wait()
        await real(*args)

    def alive(kind: type) -> int:
        gc.collect()
        return sum(isinstance(one, kind) for one in gc.get_objects())

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url):
            publisher = await connect(f"ws{url[4:]}/v1/publish", ping_interval=None)
            monkeypatch.setattr(publish_socket, "send_texts", send_texts)
            monkeypatch.setattr(WebSocketProtocol, "can_send", lambda _: reads.is_set())
            for n in range(40):
                event = {"qty": n if n % 2 else "x", "city": "x" * 1000}
                await publisher.send(json.dumps({"type": "publish", "request": n, "items": [{"event": event}]}))
            await until(lambda: broker.statistics.counts["published"] == 20 and broker.waiting.events == 0)
            await until(lambda: alive(websocket.Publish) == 0 and alive(HitboxError) == 0)
            reads.set()
            answers = [json.loads(await publisher.recv()) for _ in range(40)]
            assert [one["request"] for one in answers] == list(range(40))
            assert [one["type"] for one in answers] == ["error", "done"] * 20

    run(scenario())


def test_errors_of_publishes_are_counted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, max_event_bytes=100) as (broker, url):
            publisher = await connect(f"ws{url[4:]}/v1/publish", ping_interval=None)
            for city in ("x" * 100, "y", "z" * 100):
                items = [{"event": {"qty": 1, "city": city}}]
                await publisher.send(json.dumps({"type": "publish", "request": 1, "items": items}))
            assert [json.loads(await publisher.recv()).get("status") for _ in range(3)] == [413, None, 413]
            assert broker.statistics.refusals["size"] == 2

    run(scenario())
