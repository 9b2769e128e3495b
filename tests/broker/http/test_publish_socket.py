"""Publishing over a WebSocket: pipelined, answered in order, grouped; and the client that uses it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve as serve_socket
from websockets.exceptions import ConnectionClosed, ConnectionClosedError
from websockets.http11 import Request, Response

from hitbox.broker.broker import Broker
from hitbox.broker.http.publish_socket import MOST_UNANSWERED
from hitbox.client import Client, Refused
from hitbox.protocol.errors import BadRequest, NotAllowed, Overloaded, StoreFailed, TooLarge
from support.broker_kit import Listener, item, serving, sub, token_of, until


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 180))


def publishing(url: str) -> Any:
    return connect(f"ws{url[4:]}/v1/publish", subprotocols=["hitbox.json.2"], ping_interval=None)  # type: ignore[list-item]


def publish(request: int, *events: dict[str, Any]) -> str:
    return json.dumps({"type": "publish", "request": request, "items": [{"event": event} for event in events]})


def commits(broker: Broker) -> int:
    return broker.store.ledger.entry("commits").rows


def test_many_in_flight_are_answered_in_order(tmp_path: Path) -> None:
    """One bad event refuses its own request only; the others are numbered in the order in which they were sent."""

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), publishing(url) as socket:
            assert socket.subprotocol == "hitbox.json.2"
            await broker.subscribe("ann", [sub("s", "qty >= 0")])
            ann, before = await Listener(broker).attach("ann", 10_000), commits(broker)
            for n in range(2_000):
                event = {"qty": "bad"} if n == 500 else {"qty": n}
                await socket.send(publish(n, event, event) if n % 10 == 0 else publish(n, event))
            answers = [json.loads(await socket.recv()) for _ in range(2_000)]
            assert [answer["request"] for answer in answers] == list(range(2_000))
            bad = answers.pop(500)
            assert (bad["type"], bad["status"], bad["error"]["type"]) == ("error", 400, "ValueProblem")
            assert {answer["type"] for answer in answers} == {"done"}
            expected = 1
            for answer in answers:
                assert answer["first"] == expected
                expected += answer["count"]
            await until(lambda: len(ann.got) == 2_198)
            assert [d["event"]["qty"] for d in ann.got if d["seq"] in {a["first"] for a in answers}] == [
                n for n in range(2_000) if n != 500
            ]
            assert commits(broker) - before < 2_000  # stored in groups

    run(scenario())


def test_items_of_the_wrong_kind_refuse_their_own_request_only(tmp_path: Path) -> None:
    """Callers share the connection: the mistake of one must not leave the others without an answer."""

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url):
            async with publishing(url) as socket:
                bad = [{"event": 5}, {"event": {"qty": 1}, "id": 5}, {"event": {}, "colour": "red"}, "x", None]
                for n, one in enumerate(bad):
                    await socket.send(json.dumps({"type": "publish", "request": n, "items": [one]}))
                await socket.send(publish(7, {"qty": 1}))
                answers = [json.loads(await socket.recv()) for _ in range(6)]
                assert [a["request"] for a in answers] == [0, 1, 2, 3, 4, 7]
                assert [a["type"] for a in answers] == ["error"] * 5 + ["done"]
                assert {a["status"] for a in answers[:5]} == {400}
                assert "items[0].id" in answers[1]["error"]["message"]
            async with Client(url) as client:
                mistakes = [client.publish({"qty": 1}, id=5), client.publish({"qty": 1}, ttl_seconds="x")]  # type: ignore[arg-type]
                calls = [*mistakes, *(client.publish({"qty": n}) for n in range(20))]
                found = await asyncio.gather(*calls, return_exceptions=True)
                assert [type(one) for one in found[:2]] == [BadRequest] * 2
                assert sorted(found[2:]) == list(range(2, 22))  # type: ignore[type-var]
            assert broker.store.events.table.next() == 22

    run(scenario())


def test_order_is_kept_while_subscriptions_change(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), publishing(url) as socket:
            changes = [asyncio.create_task(broker.subscribe("ann", [sub(f"s{n}", "qty < 0")])) for n in range(30)]
            for n in range(300):
                await socket.send(publish(n, {"qty": n}))
                await asyncio.sleep(0)
            answers = [json.loads(await socket.recv()) for _ in range(300)]
            assert [(a["request"], a["first"]) for a in answers] == [(n, n + 1) for n in range(300)]
            await asyncio.gather(*changes)

    run(scenario())


def test_a_publisher_that_leaves(tmp_path: Path) -> None:
    """It sends 100,000 events, reads no answer and goes: what was read is stored and delivered, in order, once."""

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url):
            await broker.subscribe("ann", [sub("s", "qty >= 0")])
            ann = await Listener(broker).attach("ann", 10_000)
            async with publishing(url) as socket:

                async def flood() -> None:
                    for n in range(100_000):
                        await socket.send(publish(n, {"qty": n}))

                task = asyncio.create_task(flood())
                await until(lambda: broker.statistics.counts["published"] > 2 * MOST_UNANSWERED)
                task.cancel()
                socket.transport.abort()
            await until(lambda: broker.waiting.events == 0 and ann.mailbox.pending == 0)
            await asyncio.sleep(0.2)
            assert broker.waiting.events == 0
            count = broker.store.events.table.next() - 1
            assert count == broker.statistics.counts["published"] < 100_000
            assert ann.seqs() == list(range(1, count + 1))
            assert [d["event"]["qty"] for d in ann.got] == list(range(count))
            assert await broker.publish([item(qty=1)]) == count + 1

    run(scenario())


def test_overload_refuses_some_and_nothing_hangs(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, max_waiting=50) as (broker, url), publishing(url) as socket:
            for n in range(500):
                await socket.send(publish(n, {"qty": n}))
            answers = [json.loads(await socket.recv()) for _ in range(500)]
            assert [a["request"] for a in answers] == list(range(500))
            refused = [a for a in answers if a["type"] == "error"]
            assert all(a["status"] == 429 and a["error"]["retry_after"] > 0 for a in refused)
            done = [a["first"] for a in answers if a["type"] == "done"]
            assert done == list(range(1, len(done) + 1))
            assert broker.store.events.table.next() - 1 == len(done)

    run(scenario())


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        ("{", 1008),
        ('{"type": "hello", "subscriber": "ann"}', 1008),
        ('{"type": "publish", "request": "x", "items": []}', 1008),
        (publish(1, {"city": "x" * 200_000}), 1009),
    ],
)
def test_bad_messages_end_the_connection(tmp_path: Path, bad: str, code: int) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, max_body_bytes=150_000) as (broker, url), publishing(url) as socket:
            await socket.send(publish(1, {"qty": 1}))
            assert json.loads(await socket.recv())["first"] == 1
            await socket.send(bad)
            with pytest.raises(ConnectionClosedError) as ended:
                await socket.recv()
            assert ended.value.rcvd is not None
            assert ended.value.rcvd.code == code
            assert await broker.publish([item(qty=2)]) == 2

    run(scenario())


def test_limits_of_a_request(tmp_path: Path) -> None:
    async def scenario() -> None:
        limits = {"max_batch": 3, "max_event_bytes": 100_000}
        async with serving(tmp_path, **limits) as (_, url), publishing(url) as socket:
            await socket.send(publish(1, *[{"qty": 1}] * 4))
            assert json.loads(await socket.recv())["status"] == 413
            await socket.send(publish(2, {"city": "x" * 100_001}))  # decoded in a thread
            assert json.loads(await socket.recv())["status"] == 413
            await socket.send(publish(3))
            assert json.loads(await socket.recv())["count"] == 0
            await socket.send(publish(4, *[{"qty": 1}] * 3))
            assert json.loads(await socket.recv()) == {"type": "done", "request": 4, "first": 1, "count": 3}

    run(scenario())


# ---- the client


def test_the_client_knows_how_much_the_socket_takes(tmp_path: Path) -> None:
    """A publish that is too large is refused by itself; what others publish over the same connection is not lost."""

    async def scenario() -> None:
        async with serving(tmp_path, max_body_bytes=50_000) as (_, url), Client(url) as client:
            large = {"qty": 1, "city": "x" * 49_930}  # as large as a body may be, but for the text around it
            await client.publish({"qty": 1}, id="small")
            socket = client._publishing._socket
            done = await asyncio.gather(
                client.publish({"qty": 2}),
                client.publish({"city": "x" * 60_000}),
                client.publish(large),
                client.publish({"qty": 3}),
                return_exceptions=True,
            )
            assert isinstance(done[1], TooLarge)
            assert sorted(n for n in done if isinstance(n, int)) == [2, 3, 4]
            assert client._publishing._socket is socket

    run(scenario())


def test_the_client_shares_one_connection_and_opens_it_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (_, url), Client(url) as client:
            firsts = await asyncio.gather(*(client.publish({"qty": n}) for n in range(200)))
            assert sorted(firsts) == list(range(1, 201))
            socket = client._publishing._socket
            assert socket is not None
            with pytest.raises(Refused) as refused:
                await client.publish_many([{"qty": 1}, {"qty": "x"}])
            assert (refused.value.kind, refused.value.status) == ("ValueProblem", 400)
            assert client._publishing._socket is socket
            socket.transport.abort()
            await until(lambda: client._publishing._reader is not None and client._publishing._reader.done())
            assert await client.publish({"qty": 1}) == 201
            assert client._publishing._socket is not socket
            assert await client.publish_many([{"city": "x" * 60_000}] * 30) == 202  # too large for the socket
            assert not client._publish_by_http
        with pytest.raises(StoreFailed, match="no answer"):
            async with Client(url) as client:
                await client.publish({"qty": 1})

    run(scenario())


def test_a_lost_answer_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows whether the event was accepted, so the client does not send it again."""

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), Client(url, timeout=20) as client:
            assert await client.publish({"qty": 1}) == 1
            gate = asyncio.Event()
            monkeypatch.setattr(broker.change_barrier, "is_open", gate.is_set)
            monkeypatch.setattr(broker.change_barrier, "opened", gate.wait)
            calls = [asyncio.create_task(client.publish({"qty": n})) for n in (2, 3)]
            await until(lambda: broker.waiting.events == 2)
            assert client._publishing._socket is not None
            client._publishing._socket.transport.abort()
            for result in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(result, StoreFailed)
                assert "may have been accepted" in str(result)
            gate.set()
            await until(lambda: broker.waiting.events == 0)
            assert await client.publish({"qty": 4}) == 4

    run(scenario())


def test_tokens_and_overload_reach_the_client(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, principals=["ops"], publish_rate=1) as (_, url):
            async with Client(url) as client:
                with pytest.raises(NotAllowed):
                    await client.publish({"qty": 1})
            async with Client(url, token=token_of("ops")) as client:
                assert await client.publish_many([{"qty": 1}] * 50) == 1
                with pytest.raises(Overloaded):
                    await asyncio.wait_for(client._publish([{"event": {"qty": 1}}]), 20)

    run(scenario())


def test_a_broker_without_publish_sockets(tmp_path: Path) -> None:
    """An older broker refuses the handshake: the client publishes by HTTP."""

    async def scenario() -> None:
        async with serving(tmp_path) as (_, url), Client(url) as client:
            tried = []

            async def refuse(connection: Any, request: Request) -> Response:
                tried.append(request.path)
                return connection.respond(403, "")  # type: ignore[no-any-return]

            async with serve_socket(lambda _: asyncio.sleep(0), "127.0.0.1", 0, process_request=refuse) as other:
                port = other.sockets[0].getsockname()[1]
                open_socket = client.open_socket
                client.open_socket = lambda path, seconds: connect(f"ws://127.0.0.1:{port}{path}")  # type: ignore[method-assign]
                assert [await client.publish({"qty": n}) for n in range(3)] == [1, 2, 3]
                client.open_socket = open_socket  # type: ignore[method-assign]
            assert tried == ["/v1/publish"]

    run(scenario())


def test_connections_count_and_end_with_the_broker(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, max_connections=1) as (broker, url), httpx.AsyncClient(base_url=url) as http:
            async with publishing(url) as socket:
                with pytest.raises(Exception, match="429"):
                    await publishing(url)
                broker.closing = True
                await socket.send(publish(1, {"qty": 1}))
                assert json.loads(await socket.recv())["status"] == 503
                broker.closing = False
            assert (await http.get("/livez")).status_code == 200
            last = await publishing(url)
        with pytest.raises(ConnectionClosed):
            await last.recv()

    run(scenario())
