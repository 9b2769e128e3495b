"""The Python client: errors, management, states of a connection, values; the same with and without an event loop."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
import pickle
import re
import sys
import threading
from asyncio.subprocess import PIPE
from collections.abc import Coroutine
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import numpy as np
import pandas as pd
import pytest
from starlette.routing import Match, Mount, Route, WebSocketRoute
from websockets.asyncio.server import ServerConnection, serve

import hitbox
from hitbox import HitboxError, Schema
from hitbox import client as client_package
from hitbox.broker.http.app import application
from hitbox.broker.http.auth import AccessControl
from hitbox.client import (
    BadEvent,
    BadPredicate,
    BadRequest,
    BrokerError,
    Client,
    Conflict,
    Delivery,
    Forbidden,
    NoAnswer,
    NotAllowed,
    Overloaded,
    StoreFailed,
    StoreFull,
    Subscriber,
    SyncClient,
    SyncSubscriber,
    TooLarge,
    Unknown,
)
from hitbox.client.errors import error_of, is_temporary
from hitbox.protocol.errors import BrokerError as Base
from support.broker_kit import SCHEMA, running, serving, until

LOOP = "hitbox.client"


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 120))


# ---- errors


ANSWERS: list[tuple[Any, int | None, type[BrokerError], str]] = [
    ({"type": "BadRequest"}, 400, BadRequest, "BadRequest"),
    ({"type": "NotAllowed"}, 401, NotAllowed, "NotAllowed"),
    ({"type": "Forbidden"}, 403, Forbidden, "Forbidden"),
    ({"type": "Unknown"}, 404, Unknown, "Unknown"),
    ({"type": "UnknownSubscription"}, 404, Unknown, "UnknownSubscription"),
    ({"type": "Conflict"}, 409, Conflict, "Conflict"),
    ({"type": "TooLarge"}, 413, TooLarge, "TooLarge"),
    ({"type": "Overloaded", "retry_after": 3}, 429, Overloaded, "Overloaded"),
    ({"type": "StoreFailed"}, 503, StoreFailed, "StoreFailed"),
    ({"type": "StoreFull"}, 507, StoreFull, "StoreFull"),
    ({"type": "ValueProblem"}, 400, BadEvent, "ValueProblem"),
    ({"type": "UnknownAttribute", "text": "", "position": None}, 400, BadEvent, "UnknownAttribute"),
    ({"type": "SyntaxProblem", "text": "a >", "position": 3}, 400, BadPredicate, "SyntaxProblem"),
    ({"type": "HTTPError"}, 404, Unknown, "HTTPError"),
    ({"type": "InternalError"}, 500, BrokerError, "InternalError"),
    ({"type": "Conflict"}, None, Conflict, "Conflict"),
    ({"type": "something new"}, None, BadRequest, "something new"),
]


@pytest.mark.parametrize(("error", "status", "kind", "name"), ANSWERS)
def test_each_answer_has_its_class(error: dict[str, Any], status: int | None, kind: type, name: str) -> None:
    problem = error_of({"error": {"message": "because", **error}}, status)
    assert type(problem) is kind
    assert (str(problem), problem.kind, problem.position) == ("because", name, error.get("position"))
    assert problem.status == (status or kind.status)  # type: ignore[attr-defined]
    again = pickle.loads(pickle.dumps(problem))
    assert (type(again), str(again), again.__dict__) == (kind, "because", problem.__dict__)


@pytest.mark.parametrize("found", [None, [], {"error": 7}, {"error": {"type": [], "message": {}, "retry_after": "x"}}])
def test_answers_that_no_broker_gives(found: Any) -> None:
    assert type(error_of(found, 429)) is Overloaded
    assert type(error_of(found, 503)) is StoreFailed


def test_all_errors_have_one_base() -> None:
    names = [getattr(client_package, name) for name in client_package.__all__]
    errors = [one for one in names if inspect.isclass(one) and issubclass(one, Exception)]
    assert all(issubclass(one, Base) and issubclass(one, HitboxError) for one in errors)
    assert {one for one in errors if is_temporary(one("x"))} == {
        Overloaded, Conflict, StoreFailed, StoreFull, NoAnswer,
    }  # fmt: skip


def test_a_broker_raises_them_through_its_client(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, max_batch=10) as (_, url), Client(url) as client:
            with pytest.raises(BadEvent, match="price"):
                await client.publish({"price": "dear"})
            with pytest.raises(BadEvent, match=r"none of the attributes .* which has colour"):
                await client.publish({"colour": "red"})
            with pytest.raises(BadPredicate) as caught:
                await client.check("price > > 3")
            assert caught.value.position == 8
            with pytest.raises(TooLarge):
                await client.publish_many([{"qty": 1}] * 11)
            with pytest.raises(Unknown):
                await client.get_subscriber("nobody")
            async with client.subscriber("ann") as ann:
                with pytest.raises(BadPredicate):
                    await ann.subscribe("bad", "price >")
                with pytest.raises(Unknown):
                    await ann.unsubscribe("nothing")
                async with client.subscriber("ann"):
                    with pytest.raises(Conflict, match="took over"):
                        await ann.next()
            async with client.subscriber("bob") as bob:
                await client.remove_subscriber("bob")
                with pytest.raises(Unknown, match="removed"):
                    await bob.next()
            await client.create_token("root")
            with pytest.raises(NotAllowed) as refused:
                await client.stats()
            assert refused.value.status == 401
            with pytest.raises(NotAllowed, match="token"):
                async with client.subscriber("ann"):
                    pass

    run(scenario())


# ---- management


def calls(client: Any, folder: Path) -> list[tuple[str, Any]]:
    """Every method that asks the broker something, called with arguments that it accepts, in this order."""
    return [
        ("put_subscriber", lambda: client.put_subscriber("ann", limit=1000)),
        ("get_subscriber", lambda: client.get_subscriber("ann")),
        ("subscribers", lambda: client.subscribers("a", limit=5)),
        ("put_subscription", lambda: client.put_subscription("ann", "cheap", "price < 20", priority=7)),
        ("put_subscriptions", lambda: client.put_subscriptions("ann", [{"name": "b", "where": "qty > 0"}])),
        ("subscriptions", lambda: client.subscriptions("price", "ann")),
        ("remove_subscription", lambda: client.remove_subscription("ann", "b")),
        (
            "publish_many",
            lambda: client.publish_many([{"price": 1, "city": "x" * 60_000}] * 20),
        ),  # too many for a socket
        ("events", lambda: client.events(limit=2)),
        ("check", lambda: client.check("price<20")),
        ("try_event", lambda: client.try_event({"price": 1}, misses=1)),
        ("explain", lambda: client.explain({"price": 1}, "ann/cheap")),
        ("unseen", lambda: client.unseen()),
        ("replay", lambda: client.replay("ann", 1)),
        ("dead_letters", lambda: client.dead_letters("ann")),
        ("replay_dead_letters", lambda: client.replay_dead_letters([1])),
        ("drop_dead_letters", lambda: client.drop_dead_letters([1])),
        ("delayed", lambda: client.delayed()),
        ("cancel_delayed", lambda: client.cancel_delayed([1])),
        ("schema", lambda: client.schema()),
        ("put_schema", lambda: client.put_schema({**SCHEMA, "weight": "float"})),
        ("stats", lambda: client.stats()),
        ("trace", lambda: client.trace(limit=3)),
        ("snapshot", lambda: client.snapshot()),
        ("accept_clock", lambda: client.accept_clock()),
        ("openapi", lambda: client.openapi()),
        ("metrics", lambda: client.metrics()),
        ("health", lambda: client.health()),
        ("alive", lambda: client.alive()),
        ("backup", lambda: client.backup(folder)),
        ("pause", lambda: client.pause("ann")),
        ("resume", lambda: client.resume("ann")),
        ("resume_subscription", lambda: client.resume_subscription("ann", "cheap")),
        ("put_webhook", lambda: client.put_webhook("ann", "https://example.com/hook", batch=7)),
        ("webhook", lambda: client.webhook("ann")),
        ("remove_webhook", lambda: client.remove_webhook("ann")),
        ("ack", lambda: client.ack("ann", [1])),
        ("nack", lambda: client.nack("ann", [2])),
        ("extend", lambda: client.extend("ann", [3])),
        ("remove_subscriber", lambda: client.remove_subscriber("ann")),
        ("whoami", lambda: client.whoami()),
        ("principals", lambda: client.principals()),
        ("tokens", lambda: client.tokens()),
    ]


RIGHTS = {"put_principal", "remove_principal", "create_token", "limit_token", "revoke_token"}
ANSWERED = {
    "subscribers": lambda found: [one["name"] for one in found] == ["ann"],
    "get_subscriber": lambda found: found["options"]["limit"] == 1000,
    "subscriptions": lambda found: [one["name"] for one in found] == ["cheap"],
    "events": lambda found: [one["seq"] for one in found["events"]] == [1, 2] and found["next"] == 3,
    "check": lambda found: found == "price < 20",
    "try_event": lambda found: found["count"] == 1,
    "explain": lambda found: found["matched"] is True,
    "replay": lambda found: found in range(21),
    "put_webhook": lambda found: found["secret"].startswith("whsec_"),
    "webhook": lambda found: found["batch"] == 7 and "secret" not in found,
    "schema": lambda found: found == SCHEMA,
    "put_schema": lambda found: isinstance(found, Schema) and "weight" in found,
    "stats": lambda found: found["published"] == 20,
    "metrics": lambda found: "hitbox_" in found,
    "health": lambda found: found["status"] == "ok",
    "alive": lambda found: found is True,
    "backup": lambda found: found == [],
    "whoami": lambda found: found["name"] == "local",
}


NO_METHOD = ("/", "/v1/subscribers/{subscriber}/deliveries")


def test_there_is_a_method_for_every_route(tmp_path: Path) -> None:
    """Each method is called through a socket. What it asked for is looked up among the routes of the application."""

    async def scenario() -> None:
        async with serving(tmp_path / "broker") as (broker, url), Client(url) as client:
            asked: set[tuple[str, str]] = set()

            async def note(request: httpx.Request) -> None:
                asked.add((request.method, request.url.path))

            client._http.event_hooks["request"].append(note)
            done = set()
            for name, call in calls(client, tmp_path / "copy"):
                found = await call()
                assert ANSWERED.get(name, lambda _: True)(found), (name, found)
                done.add(name)
            async for one in client.live("qty > 5"):
                assert one["stats"]["last"] == 20
                break
            root = (await client.create_token("root"))["token"]
            async with Client(url, root) as manager:
                manager._http.event_hooks["request"].append(note)
                await manager.put_principal("eve", ["publish"])
                token = await manager.create_token("eve")
                await manager.limit_token(token["id"], ["publish"])
                await manager.revoke_token(token["id"])
                await manager.remove_principal("eve")
            wanted, found = set(), set()
            for route in application(broker, AccessControl(True)).routes:
                if isinstance(route, (Mount, WebSocketRoute)) or route.path in NO_METHOD:  # type: ignore[attr-defined]
                    continue  # the page, what subscriber() and publish() use, and event streams for browsers
                assert isinstance(route, Route)
                for method in (route.methods or set()) - {"HEAD"}:
                    wanted.add((method, route.path))
                    found |= {
                        (method, route.path)
                        for asked_method, path in asked
                        if method == asked_method
                        and route.matches({"type": "http", "method": method, "path": path})[0] is Match.FULL
                    }
            assert wanted - found == set(), "the client has no method for these routes"
            public = {name for name in vars(Client.__mro__[1]) if not name.startswith("_")} - {"request"}
            assert public - done - RIGHTS == set(), "this test does not call these methods"

    run(scenario())


def test_the_same_without_an_event_loop(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path / "broker") as (_, url):

            def work() -> None:
                with Client.sync(url) as client:
                    for name, call in calls(client, tmp_path / "copy"):
                        found = call()
                        assert ANSWERED.get(name, lambda _: True)(found), (name, found)
                    assert [one["arrived"] for one in itertools.islice(client.live(), 1)] == [20]
                    with pytest.raises(BadPredicate):
                        next(client.live("qty >"))

            await asyncio.to_thread(work)

    run(scenario())


@pytest.mark.parametrize(("one", "other"), [(Client, SyncClient), (Subscriber, SyncSubscriber)])
def test_both_clients_have_the_same_methods(one: type, other: type) -> None:
    only_here = {"sync", "open_socket", "finish", "log_failure"}
    only_there = {"do", "asynchronous", "listen", "connections", "name", "warnings", "auto"}
    ours = {name for name in dir(one) if not name.startswith("_")} - only_here
    theirs = {name for name in dir(other) if not name.startswith("_")}
    assert ours - theirs == set()
    assert theirs - ours <= only_there
    for name in ours & theirs - {"run"}:
        mine, there = (inspect.signature(getattr(kind, name)) for kind in (one, other))
        assert list(mine.parameters.values()) == list(there.parameters.values()), name


# ---- values


class Level(Enum):
    HIGH = 3


VALUES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"n": np.int64(3), "x": np.float32(0.5), "b": np.bool_(True)}, {"n": 3, "x": 0.5, "b": True}),
    ({"n": Decimal(3), "x": Decimal("0.25")}, {"n": 3, "x": 0.25}),
    ({"n": Level.HIGH}, {"n": 3}),
    ({"s": UUID(int=7)}, {"s": str(UUID(int=7))}),
    ({"t": datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)}, {"t": "2026-01-02T03:04:05.000006Z"}),
    ({"t": datetime(2026, 1, 2, 3, tzinfo=timezone(timedelta(hours=1)))}, {"t": "2026-01-02T03:00:00+01:00"}),
    ({"t": date(2026, 1, 2)}, {"t": "2026-01-02"}),
    ({"t": np.datetime64("2026-01-02")}, {"t": "2026-01-02T00:00:00Z"}),
    ({"t": pd.Timestamp("2026-01-02T03:04:05Z")}, {"t": "2026-01-02T03:04:05Z"}),
    ({"x": float("nan"), "n": None, "t": pd.NaT}, {"x": None, "n": None, "t": None}),
    ({"x": (1, 2)}, {"x": {"low": 1, "high": 2}}),
]


def test_values_of_other_types_are_plain_in_a_delivery(tmp_path: Path) -> None:
    schema = Schema({"n": "int", "x": "float", "b": "bool", "s": "string", "t": "timestamp"})

    async def scenario() -> None:
        async with serving(tmp_path, schema) as (_, url), Client(url) as client:
            async with client.subscriber("ann", unmatched=True) as ann:
                for value, expected in VALUES:
                    await client.publish(value)
                    delivery = await ann.next()
                    assert delivery.event == expected
                    await ann.ack(delivery)
            with pytest.raises(HitboxError, match="infinity"):
                await client.publish({"x": np.float64("inf")})

    run(scenario())


# ---- connections


def test_states_of_a_connection(tmp_path: Path) -> None:
    async def scenario() -> None:
        states: list[str] = []
        async with serving(tmp_path) as (broker, url), Client(url) as client:

            def on_state(state: str, reason: str) -> None:
                states.append(state)
                assert bool(reason) == (state != "connected")
                raise ValueError("a callback that fails ends nothing")

            async with client.subscriber("ann", on_state=on_state) as ann:
                await until(lambda: states == ["connected"])
                connection = broker.mailbox("ann").connected
                assert connection is not None
                connection.close(1011, "a test")
                await until(lambda: ann.connections == 2)
                assert states == ["connected", "lost", "reconnecting", "connected"]
            assert states[4:] == ["closed"]
            async with client.subscriber("bob", on_state=lambda state, reason: states.append(f"{state} {reason}")):
                await client.remove_subscriber("bob")
                await until(lambda: states[-1].startswith("closed the subscriber was removed"))

    run(scenario())


def test_nobody_answers(tmp_path: Path) -> None:
    async def scenario() -> None:
        states: list[str] = []
        async with Client("http://127.0.0.1:9", connect_seconds=0.5) as client:
            with pytest.raises(StoreFailed, match=r"no broker answers at http://127.0.0.1:9 .* tried for 0.5 s"):
                async with client.subscriber("ann", on_state=lambda state, reason: states.append(state)):
                    pass
            with pytest.raises(StoreFailed, match="no answer from the broker"):
                await client.stats()
        assert set(states) == {"reconnecting", "closed"}

    run(scenario())


def test_a_subscriber_that_was_removed_while_it_was_away_has_its_subscriptions_again(tmp_path: Path) -> None:
    """It expired, for example. Without this it would be connected, and get nothing."""

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), Client(url) as client:
            first = [{"name": "first", "where": "qty > 0"}, {"name": "gone", "where": "qty > 0"}]
            async with client.subscriber("ann", subscriptions=first, expires_seconds=60) as ann:
                await ann.subscribe("second", "qty > 1", priority=7)
                await ann.unsubscribe("gone")

                async def reconnect(removed: bool) -> set[Any]:
                    before, mailbox = ann.connections, broker.mailbox("ann")
                    assert ann._channel.socket is not None
                    ann._channel.socket.transport.abort()
                    await until(lambda: not mailbox.connections())
                    if removed:
                        await broker.remove_subscriber("ann")
                    await until(lambda: ann.connections > before)
                    await until(lambda: not removed or broker.subscriber("ann").subscriptions)
                    return set(broker.registry.index)

                assert await reconnect(True) == {"ann/first", "ann/second"}
                await client.publish({"qty": 2})
                assert (await ann.next()).subscriptions == ["second", "first"]
                await client.remove_subscription("ann", "first")
                assert await reconnect(False) == {"ann/second"}  # what others changed stays
                await client.remove_subscription("ann", "second")
                assert await reconnect(False) == set()

    run(scenario())


def test_a_program_may_refuse_within_the_loop(tmp_path: Path) -> None:
    """What a program refused itself is not acknowledged when its loop goes on."""

    async def scenario() -> None:
        async with serving(tmp_path) as (_, url), Client(url) as client:
            await client.put_subscription("ann", "s", "qty > 0")
            await client.publish_many([{"qty": 1}, {"qty": 2}])
            seen = []
            async with client.subscriber("ann", backoff_seconds=0.05) as ann:
                async for delivery in ann:
                    seen.append((delivery.seq, delivery.attempt))
                    if delivery.attempt == 1 and delivery.seq == 1:
                        await ann.nack(delivery)
                    if len(seen) == 3:
                        break
            assert seen == [(1, 1), (2, 1), (1, 2)]

    run(scenario())


# ---- without an event loop


def test_everything_of_a_subscriber_without_an_event_loop(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url):
            states: list[str] = []
            seen: list[tuple[int, int]] = []

            def work() -> None:
                with Client.sync(url) as client:
                    options = {"backoff_seconds": 0.05, "visibility_seconds": 5.0}
                    with client.subscriber("ann", on_state=lambda s, _: states.append(s), **options) as ann:
                        assert (ann.connections, ann.name, ann.auto) == (1, "ann", True)
                        assert ann.subscribe("cheap", "price < 20") == []
                        ann.subscribe("gone", "price < 20")
                        ann.unsubscribe("gone")
                        client.publish_many([{"price": n} for n in range(4)])
                        first = ann.next(timeout=60)
                        ann.extend(first)
                        ann.ack(first)

                        def handle(delivery: Delivery) -> None:
                            seen.append((delivery.seq, delivery.attempt))
                            if delivery.seq == 2 and delivery.attempt == 1:
                                raise ValueError("cannot")
                            if len(seen) == 4:
                                closing.start()

                        closing = threading.Thread(target=ann.close)
                        ann.run(handle)  # returns when another thread closes it
                        closing.join()
                    with pytest.raises(StoreFailed, match="the subscriber is closed"):
                        ann.next()
                    with (
                        client.subscriber("idle") as idle,
                        pytest.raises(TimeoutError, match=r"no delivery came within 0.01 s"),
                    ):
                        idle.next(timeout=0.01)

            with caplog.at_level(logging.ERROR, LOOP):
                await asyncio.to_thread(work)
            assert sorted(seen) == [(2, 1), (2, 2), (3, 1), (4, 1)]
            assert states == ["connected", "closed"]
            (record,) = [one for one in caplog.records if one.name == LOOP]
            assert "event 2 (attempt 1)" in record.getMessage()
            await until(lambda: broker.mailbox("ann").connected is None)

    run(scenario())


def test_callbacks_of_every_kind(tmp_path: Path) -> None:
    """What a callback returns does not matter. An asynchronous one cannot run without an event loop, so what it got
    must not be acknowledged."""

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), Client(url) as client:
            await client.put_subscription("ann", "s", "qty > 0")
            await client.put_subscriber("ann", backoff_seconds=0.01)
            seen: list[int] = []

            def keeps(delivery: Delivery) -> bool:
                seen.append(delivery.seq)
                return True

            async def waits(delivery: Delivery) -> int:
                await asyncio.sleep(0)
                seen.append(delivery.seq)
                return delivery.seq

            for number, callback in enumerate((keeps, waits, lambda one: waits(one)), 1):
                async with client.subscriber("ann") as ann:
                    task = asyncio.create_task(ann.run(callback))
                    await client.publish({"qty": number})
                    await until(lambda: not broker.mailbox("ann").pending and broker.caught_up())
                    task.cancel()
                assert seen == list(range(1, number + 1))

            def work() -> None:
                with Client.sync(url) as without, without.subscriber("ann") as ann:
                    ann.run(waits)

            await client.publish({"qty": 4})
            with pytest.raises(BadRequest, match="the callback is asynchronous"):
                await asyncio.to_thread(work)
            assert seen == [1, 2, 3]
            async with client.subscriber("ann") as ann:
                assert ((again := await ann.next()).seq, again.redelivered) == (4, True)

    run(scenario())


def test_a_callback_that_uses_its_client_is_told_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (_, url):
            caught: list[BaseException] = []

            def work() -> None:
                with Client.sync(url) as client:

                    def on_state(state: str, reason: str) -> None:
                        try:
                            client.stats()
                        except BadRequest as problem:
                            caught.append(problem)

                    with client.subscriber("ann", on_state=on_state):
                        pass

            await asyncio.to_thread(work)
            assert "use another thread" in str(caught[0])

    run(scenario())


def test_no_message_holds_the_token(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (_, url), Client(url) as open_client:
            token = (await open_client.create_token("root"))["token"]
            client = Client(url, token)
            texts = [repr(client), repr(client.subscriber("ann"))]
            async with client.subscriber("ann", subscriptions=[{"name": "s", "where": "qty > 0"}], max_tries=1) as ann:
                await client.publish({"qty": 1})

                async def fail(delivery: Delivery) -> None:
                    raise ValueError("cannot")

                running = asyncio.create_task(ann.run(fail))
                await until(lambda: any("event 1" in one.getMessage() for one in caplog.records))
                running.cancel()
            wrong = Client(url, token + "x")
            for work in (wrong.stats(), wrong.publish({"qty": 1}), wrong.subscriber("ann").__aenter__()):
                with pytest.raises(NotAllowed) as caught:
                    await work
                texts.append(str(caught.value))
            await client.close()
            await wrong.close()
            assert not [text for text in (*texts, caplog.text) if token in text]

    with caplog.at_level(logging.DEBUG, LOOP):
        run(scenario())


def test_the_backup_of_a_client_is_a_broker(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path / "one") as (_, url), Client(url) as client:
            await client.publish({"qty": 1}, payload="kept")
            steps: list[tuple[int, int]] = []
            assert await client.backup(tmp_path / "copy", lambda done, total: steps.append((done, total))) == []
            assert steps[-1][0] == steps[-1][1] > 0
            with pytest.raises(HitboxError):
                await client.backup(tmp_path / "copy")
        async with running(tmp_path / "copy", None) as broker:
            assert broker.store.events.number_of_latest(1) == 1

    run(scenario())


def test_the_example_of_the_documentation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "broker.md").read_text()
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "print_cheap_events" in block]
    names: dict[str, Any] = {"hitbox": hitbox}
    exec(code, names)

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), Client(url) as client:
            working = asyncio.ensure_future(asyncio.to_thread(names["print_cheap_events"], url))
            await until(lambda: broker.describe()["subscriptions"] == 1)
            await client.publish({"price": 12.5})
            await until(lambda: broker.describe()["acked"] == 1)
            await client.remove_subscriber("ann")
            with pytest.raises(Unknown, match="removed"):
                await working
            assert "12.5" in capsys.readouterr().out

    run(scenario())


def test_the_page_lists_the_exceptions() -> None:
    page = (Path(__file__).parents[2] / "docs" / "broker.md").read_text()
    errors = [one for one in map(client_package.__dict__.get, client_package.__all__) if inspect.isclass(one)]
    names = [one.__name__ for one in errors if issubclass(one, BrokerError) and one is not BrokerError]
    assert [name for name in names if f"`{name}`" not in page] == []


@pytest.mark.parametrize(
    "waiting", ["ann.run(print)", "next(client.live('qty > 1000000')); list(client.live())", "ann.next()"]
)
def test_an_interrupt_leaves_nothing_behind(tmp_path: Path, waiting: str) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url):
            program = f"""
import signal, sys
from hitbox import Client
signal.signal(signal.SIGALRM, signal.default_int_handler)
with Client.sync(sys.argv[1]) as client:
    try:
        with client.subscriber("ann") as ann:
            signal.setitimer(signal.ITIMER_REAL, 1.5)
            {waiting}
    except KeyboardInterrupt:
        print("interrupted")
    client.publish({{"qty": 1}})
"""
            process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, url, stdout=PIPE, stderr=PIPE)
            out, trouble = await process.communicate()
            assert (out.split(), trouble, process.returncode) == ([b"interrupted"], b"", 0)
            await until(lambda: broker.mailbox("ann").connected is None)
            assert broker.describe()["last"] == 1

    run(scenario())


# ---- closing


def test_a_closed_client_sends_nothing_more(tmp_path: Path) -> None:
    """A publish with an id is tried again without an answer, but not by a client that was closed meanwhile."""

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url):
            client = Client(url)
            async with broker.change_barrier.exclusive():  # nothing is stored
                publishing = asyncio.create_task(client.publish({"qty": 1}, id="a"))
                await until(lambda: broker.waiting.events)
                await client.close()
                with pytest.raises(NoAnswer, match="may have been accepted"):
                    await publishing
                opening = Client(url)
                early = asyncio.create_task(opening.publish({"qty": 2}, id="b"))
                await asyncio.sleep(0)  # it connects
                await opening.close()
                with pytest.raises(NoAnswer):
                    await early
            calls = [client.publish({"qty": 1}), client.publish_cloudevents(), client.stats(), client.metrics()]
            for call in calls:
                with pytest.raises(StoreFailed, match="the client is closed"):
                    await call
            with pytest.raises(StoreFailed, match="the client is closed"):
                await anext(client.live())
            await client.close()
            await until(lambda: broker.store.events.table.next() == 2)

    run(scenario())


def test_an_answer_of_brackets_only_ends_the_connection() -> None:
    async def brackets(socket: ServerConnection) -> None:
        await socket.recv()
        await socket.send("[" * 100_000)

    async def scenario() -> None:
        async with serve(brackets, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with Client(url) as client:
                with pytest.raises(NoAnswer, match="recursion"):
                    await client.publish({"qty": 1})

    asyncio.run(scenario())


def test_nothing_is_sent_after_the_end(tmp_path: Path) -> None:
    """The timer of acknowledgements does not come when the loop is closed."""

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), Client(url) as client:
            async with client.subscriber("ann", subscriptions=[{"name": "s", "where": "qty > 0"}]) as ann:
                await client.publish({"qty": 1})
                await ann.ack(await ann.next())
                assert (timer := ann._flush) is not None
            assert timer.cancelled()
            await until(lambda: not broker.mailbox("ann").pending)

    asyncio.run(scenario())


def test_who_waits_for_a_delivery_is_told_that_the_subscriber_is_closed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (_, url), Client(url) as client:
            ann = client.subscriber("ann", subscriptions=[{"name": "s", "where": "qty > 0"}])
            with pytest.raises(StoreFailed, match="use it inside of `async with`"):
                await ann.next()

            async def loop() -> None:
                async for _ in ann:
                    pass

            async with ann:
                waiting = [asyncio.create_task(one) for one in (ann.next(), loop(), ann.run(print))]
                await asyncio.sleep(0.05)
            for one in waiting:
                with pytest.raises(StoreFailed, match="not connected"):
                    await one
            async with ann:  # it may be used again
                await client.publish({"qty": 1})
                assert (await ann.next()).event == {"qty": 1}

    run(scenario())


def test_a_delivery_that_comes_after_the_time_limit_is_not_lost(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), Client(url) as client:
            ann = await client.subscriber("ann").__aenter__()
            await ann.subscribe("cheap", "price < 20")
            with pytest.raises(TimeoutError, match="no delivery came within 0 s"):
                await ann.next(timeout=0)
            await client.publish({"price": 1})
            assert (await ann.next(timeout=60)).seq == 1
            await ann.close()
            await until(lambda: broker.mailbox("ann").connected is None)
            with pytest.raises(StoreFailed, match="not connected"):
                await ann.next(timeout=60)

    run(scenario())


def test_an_address_with_a_path_is_no_broker(tmp_path: Path) -> None:
    """What answers there is an error, and no state of a broker."""

    async def scenario() -> None:
        async with serving(tmp_path) as (_, url), Client(f"{url}/v1") as client:
            for asked in (client.health, client.alive):
                with pytest.raises(
                    StoreFailed, match=r"there is no broker at http://\S+/v1: GET /\w+ was answered with status 404"
                ):
                    await asked()

    run(scenario())
