"""The broker over the network, with the client."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from asyncio.subprocess import PIPE
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from hitbox.client import Client, Delivery, Refused
from hitbox.protocol.errors import NotAllowed, Overloaded, StoreFailed
from support.broker_kit import SCHEMA, serving, token_of, until


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 180))


async def take(subscriber: Any, count: int) -> list[Delivery]:
    found: list[Delivery] = []
    async for delivery in subscriber:
        found.append(delivery)
        if len(found) == count:
            break
    await subscriber.ack(*found[-1:])
    return found


def test_subscribe_publish_receive(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), Client(url) as client, client.subscriber("ann") as ann:
            assert await ann.subscribe("cheap", "price < 20", priority=7) == []
            assert "can never match" in (await ann.subscribe("never", "price < 1 AND price > 2"))[0]
            assert await client.publish({"price": 12.5, "city": "Zürich 'x' </script>"}) == 1
            assert await client.publish_many([{"price": n} for n in range(15, 25)]) == 2
            got = await take(ann, 6)
            assert [d.seq for d in got] == [1, 2, 3, 4, 5, 6]
            assert got[0].event == {"price": 12.5, "city": "Zürich 'x' </script>"}
            assert (got[0].subscriptions, got[0].level, got[0].redelivered) == (["cheap"], 7, False)
            await until(lambda: broker.describe()["pending"] == 0)
            await ann.unsubscribe("cheap")
            with pytest.raises(Refused, match="has no subscription") as caught:
                await ann.unsubscribe("cheap")
            assert caught.value.kind == "UnknownSubscription"
            with pytest.raises(Refused) as caught:
                await ann.subscribe("bad", "price > > 3")
            assert caught.value.position == 8
            assert "^" in str(caught.value)

    run(scenario())


def test_callbacks_that_fail_get_it_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), Client(url) as client:
            seen: list[tuple[int, int]] = []

            def handle(delivery: Delivery) -> None:
                seen.append((delivery.seq, delivery.attempt))
                if delivery.seq == 1:
                    raise ValueError("cannot")

            async with client.subscriber("ann", max_tries=2, backoff_seconds=0.05) as ann:
                await ann.subscribe("s", "qty > 0")
                task = asyncio.create_task(ann.run(handle))
                await client.publish_many([{"qty": 1}, {"qty": 2}])
                await until(lambda: broker.statistics.counts["dead"] == 1)
                assert seen == [(1, 1), (2, 1), (1, 2)]
                found = await client.request("GET", "/v1/dead")
                letter = found["letters"][0]
                assert (letter["seq"], letter["event"], letter["reason"]) == (
                    1,
                    {"qty": 1},
                    "refused by the subscriber",
                )
                revived = await client.request("POST", "/v1/dead/replay", {"numbers": [letter["number"]]})
                assert revived == {"count": 1}
                await until(lambda: seen[-1] == (1, 1))
                task.cancel()

    run(scenario())


def test_reconnect_resumes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            serving(tmp_path) as (broker, url),
            Client(url) as client,
            client.subscriber("ann") as ann,
            client.subscriber(ephemeral=True, policy="drop_oldest", limit=100) as eve,
        ):
            await ann.subscribe("s", "qty > 0")
            await eve.subscribe("s", "qty > 0")
            await client.publish({"qty": 1})
            assert [d.seq for d in await take(ann, 1)] == [1]
            assert [d.seq for d in await take(eve, 1)] == [1]
            await until(lambda: broker.describe()["pending"] == 0)
            for subscriber in (ann, eve):
                assert subscriber._channel.socket is not None
                await subscriber._channel.socket.close()
            await client.publish({"qty": 2})
            assert [d.seq for d in await take(ann, 1)] == [2]
            await until(lambda: eve.connections == 2 and len(broker.registry.ephemeral_index) == 1)
            await client.publish({"qty": 3})
            while (await take(eve, 1))[0].seq != 3:
                pass

    run(scenario())


def test_bodies_of_every_kind(tmp_path: Path) -> None:
    table = pa.table({"price": [1.0, None], "qty_low": [1, 2], "qty_high": [3, 4]})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)

    async def scenario() -> None:
        async with serving(tmp_path) as (_, url), httpx.AsyncClient(base_url=url) as http:
            one = await http.post("/v1/events", json={"event": {"qty": 1}})
            assert (one.status_code, one.json()) == (201, {"first": 1, "count": 1})
            lines = b'{"event":{"qty":2}}\n\n{"event":{"qty":3}}\n'
            many = await http.post("/v1/events", content=lines, headers={"content-type": "application/x-ndjson"})
            assert many.json() == {"first": 2, "count": 2}
            kind = {"content-type": "application/vnd.apache.arrow.stream"}
            assert (await http.post("/v1/events", content=sink.getvalue(), headers=kind)).json()["first"] == 4
            stored = (await http.get("/v1/events", params={"first": 4})).json()["events"]
            assert [e["event"] for e in stored] == [
                {"price": 1.0, "qty": {"low": 1, "high": 3}},
                {"qty": {"low": 2, "high": 4}},
            ]
            subs = [{"name": f"n{n}", "where": f"qty > {n}", "priority": n % 10} for n in range(20)]
            assert (await http.post("/v1/subscribers/ann/subscriptions", json=subs)).json()["count"] == 20
            subs[7]["where"] = "qty >"
            bad = await http.post("/v1/subscribers/ann/subscriptions", json=subs)
            assert bad.status_code == 400
            assert bad.json()["error"]["rows"][0]["row"] == 7
            found = (await http.get("/v1/subscriptions", params={"q": "qty > 1"})).json()
            assert (found["count"], len(found["subscriptions"])) == (20, 11)
            assert (await http.delete("/v1/subscribers/ann/subscriptions/n3")).status_code == 204
            assert (await http.delete("/v1/subscribers/ann/subscriptions/n3")).status_code == 404
            assert (await http.post("/v1/events", content=b"\xff\xfe")).status_code == 400
            assert (
                await http.post("/v1/events", content=b"x", headers={"content-type": "text/plain"})
            ).status_code == 400

    run(scenario())


def test_try_explain_check_replay_schema(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), Client(url) as client:
            ask = client.request
            path = "/v1/subscribers/ann/subscriptions/"
            await ask("PUT", path + "a", {"where": "price > 10", "priority": 3})
            await ask("PUT", path + "b", {"where": "city = 'Paris'", "priority": 9})
            tried = await ask("POST", "/v1/try", {"event": {"price": 11, "city": "Paris"}, "misses": 1})
            assert [m["name"] for m in tried["matches"]] == ["b", "a"]
            tried = await ask("POST", "/v1/try", {"event": {"price": 9}, "misses": 2})
            assert tried["count"] == 0
            assert {m["id"] for m in tried["misses"]} == {"ann/a", "ann/b"}
            why = await ask("POST", "/v1/explain", {"event": {"price": 9}, "id": "ann/a"})
            seen = {"attribute": "price", "value": 9, "note": "price is 9.0"}
            assert why["tree"] == {"text": "price > 10", "truth": "false", **seen}
            with pytest.raises(Refused) as caught:
                await ask("POST", "/v1/check", {"where": "prise > 10"})
            assert (caught.value.position, caught.value.kind) == (0, "UnknownAttribute")
            await client.publish_many([{"price": 11}, {"price": 5}, {"price": 12, "city": "Paris"}])
            async with client.subscriber("ann") as ann:
                assert [d.seq for d in await take(ann, 2)] == [3, 1]
                await until(lambda: broker.describe()["pending"] == 0)
                assert await ask("POST", "/v1/subscribers/ann/replay", {"first": 2}) == {"count": 1}
                again = (await take(ann, 1))[0]
                assert (again.seq, again.subscriptions, again.redelivered) == (3, ["b", "a"], True)
            await ask("PUT", "/v1/schema", {"attributes": [*SCHEMA.to_json(), {"name": "new", "type": "bool"}]})
            assert await client.publish({"new": True}) == 4
            with pytest.raises(Refused, match="contradict"):
                await ask("PUT", "/v1/schema", {"attributes": [{"name": "price", "type": "float"}]})
            assert len((await ask("GET", "/v1/schema"))["attributes"]) == 4
            await ask("DELETE", "/v1/subscribers/ann")
            assert len(broker.registry.index) == 0

    run(scenario())


def test_limits_are_reported(tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = {"max_body_bytes": 2000, "max_batch": 5, "publish_rate": 0.1, "max_waiting": 8}
        async with serving(tmp_path, **settings) as (_, url), httpx.AsyncClient(base_url=url) as http:
            assert (await http.post("/v1/events", content=b"x" * 3000)).status_code == 413
            assert (await http.post("/v1/events", json=[{"event": {}}] * 6)).status_code == 413
            answers = [await http.post("/v1/events", json=[{"event": {"qty": 1}}] * 5) for _ in range(4)]
            assert {a.status_code for a in answers} == {201, 429}
            refused = next(a for a in answers if a.status_code == 429)
            assert int(refused.headers["retry-after"]) >= 1
            client = Client(url)
            with pytest.raises(Overloaded):
                await client.request("POST", "/v1/events", [{"event": {"qty": 1}}] * 5)
            await client.close()

    run(scenario())


def test_tokens_hosts_and_origins(tmp_path: Path) -> None:
    token = token_of("ops")

    async def scenario() -> None:
        async with serving(tmp_path, principals=["ops"]) as (_, url), httpx.AsyncClient(base_url=url) as http:
            assert (await http.get("/readyz")).json()["status"] == "ok"
            assert (await http.get("/")).status_code == 200
            for path in ("/v1/stats", "/metrics", "/openapi.json", "/v1/live"):
                assert (await http.get(path)).status_code == 401
            good = {"authorization": f"Bearer {token}"}
            assert "hitbox_published_total" in (await http.get("/metrics", headers=good)).text
            assert (await http.get("/v1/stats", headers={**good, "host": "evil.example"})).status_code == 403
            assert (await http.get("/v1/stats", headers={**good, "origin": "http://evil.example"})).status_code == 403
            assert (await http.get("/v1/stats", headers={**good, "origin": url})).status_code == 200
            socket = "ws" + url.removeprefix("http") + "/v1/connect"
            with pytest.raises(InvalidStatus):
                await connect(socket)
            with pytest.raises(InvalidStatus):
                await connect(socket, additional_headers=good, origin="http://evil.example")  # type: ignore[arg-type]
            async with connect(socket, subprotocols=["hitbox.json.2", f"bearer.{token}"]) as opened:  # type: ignore[list-item]
                assert opened.subprotocol == "hitbox.json.2"
            for known in (["hitbox.msgpack", "hitbox.json.2"], None):
                async with connect(socket, additional_headers=good, subprotocols=known) as opened:  # type: ignore[arg-type]
                    assert opened.subprotocol == (known and known[1])
            for unknown in (["hitbox.msgpack"], ["mqtt", f"bearer.{token}"]):
                with pytest.raises(InvalidStatus) as refused:
                    await connect(socket, subprotocols=unknown)  # type: ignore[arg-type]
                assert b"is not known here: use hitbox.json.2" in (refused.value.response.body or b"")
            with pytest.raises(NotAllowed):
                async with Client(url, "wrong") as client, client.subscriber("ann"):
                    pass
            async with Client(url, token) as client, client.subscriber("ann") as ann:
                await ann.subscribe("s", "qty > 0")

    run(scenario())


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"type":"nope"}', '{"type":"ack","seqs":[1]}', '{"type":"hello","window":0}', "\x00" * 50]
)
def test_bad_frames_end_with_a_reason(tmp_path: Path, text: str) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (_, url):
            socket = "ws" + url.removeprefix("http") + "/v1/connect"
            async with connect(socket) as opened:
                await opened.send(text)
                assert '"error"' in str(await opened.recv())
                with pytest.raises(ConnectionClosed):
                    await opened.recv()
            async with connect(socket) as opened:
                await opened.send('{"type":"hello","subscriber":"ann"}')
                await opened.recv()
                await opened.send(text)
                if "ack" not in text:
                    assert '"error"' in str(await opened.recv())

    run(scenario())


def test_live_stream_for_the_page(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (_, url), httpx.AsyncClient(base_url=url) as http:
            await http.post("/v1/events", json=[{"event": {"qty": n}} for n in range(50)])
            async with http.stream("GET", "/v1/live") as response:
                assert response.headers["content-type"].startswith("text/event-stream")
                async for line in response.aiter_lines():
                    found = json.loads(line.removeprefix("data: "))
                    assert found["stats"]["last"] == found["arrived"] == 50
                    assert [one["event"]["qty"] for one in found["events"]] == list(range(30, 50))
                    break

    run(scenario())


def test_the_sync_client(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (_, url):

            def work() -> list[int]:
                with Client.sync(url) as client:
                    client.request("PUT", "/v1/subscribers/ann/subscriptions/s", {"where": "qty > 0"})
                    client.publish({"qty": 1})
                    client.publish_many([{"qty": 2}, {"qty": 3}])
                    found = []
                    for delivery in client.listen("ann"):
                        found.append(delivery.seq)
                        if len(found) == 3:
                            return found
                return []

            assert await asyncio.to_thread(work) == [1, 2, 3]

    run(scenario())


def test_a_sync_client_is_closed_while_another_thread_listens(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url):
            client = Client.sync(url)
            got: list[int] = []

            def listen() -> str:
                got.extend(one.seq for one in client.listen("ann", [{"name": "s", "where": "qty > 0"}]))
                return "ended"

            listening = asyncio.ensure_future(asyncio.to_thread(listen))
            await until(lambda: "ann" in broker.registry.by_name and broker.mailbox("ann").connected is not None)
            await asyncio.to_thread(client.publish, {"qty": 1})
            await until(lambda: got == [1])
            await asyncio.to_thread(client.close)
            assert await listening == "ended"
            await until(lambda: broker.mailbox("ann").connected is None)
            await asyncio.to_thread(client.close)  # again: nothing
            with pytest.raises(StoreFailed, match="the client is closed"):
                client.publish({"qty": 2})

    run(scenario())


def test_an_interrupted_sync_client_leaves_nothing_behind(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url):
            program = """
import signal, sys
from hitbox import Client
signal.signal(signal.SIGALRM, signal.default_int_handler)
with Client.sync(sys.argv[1]) as client:
    listening = client.listen("ann", [{"name": "s", "where": "qty > 0"}])
    signal.setitimer(signal.ITIMER_REAL, 1.0)
    try:
        next(listening)
    except KeyboardInterrupt:
        print("interrupted")
    print(list(listening))
"""
            command = (sys.executable, "-c", program, url)
            process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
            out, trouble = await process.communicate()
            assert (out.split(), trouble, process.returncode) == ([b"interrupted", b"[]"], b"", 0)
            await until(lambda: broker.mailbox("ann").connected is None)

    run(scenario())
