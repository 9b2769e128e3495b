"""Publishing once: events with an id are stored once, however often they are published."""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

import hitbox
from hitbox.broker.access.principals import Principal, TokenSettings
from hitbox.broker.broker import Broker
from hitbox.broker.events.message_ids import MessageIds
from hitbox.broker.events.published_event import PublishedEvent
from hitbox.client import BadRequest, Client, Conflict, NoAnswer, NotAllowed, StoreFailed, StoreFull
from support.broker_kit import held_up, running, serving, until

ORDER = {"specversion": "1.0", "id": "7", "source": "/shop", "type": "order", "data": {"qty": 1}}


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 120))


def event(id: str | None, qty: int = 1) -> PublishedEvent:
    return PublishedEvent({"qty": qty}, id=id)


def stored(broker: Broker) -> list[Any]:
    return [row[0] for row in broker.store.events.from_number(1, 1000)]


def test_an_event_is_stored_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), Client(url) as client, client.subscriber("ann") as ann:
            await ann.subscribe("s", "qty > 0")
            assert [await client.publish({"qty": 1}, id="a") for _ in range(3)] == [1, 1, 1]
            assert await client.publish({"qty": 1}) == 2  # without an id it is another event
            assert await client.publish_many([{"qty": 1}, {"qty": 2}, {"qty": 2}], ids=["a", "b", "b"]) == 1
            assert await client.publish_many([{"qty": 3}, {"qty": 2}], ids=["c", "b"]) == 4
            assert [(await ann.next()).id for _ in range(4)] == ["a", None, "b", "c"]
            with pytest.raises(Conflict, match="event 0 has the id 'a' of event 1, which has other content"):
                await client.publish({"qty": 7}, id="a")
            with pytest.raises(Conflict, match="event 1 has the id 'd' of another event"):
                await client.publish_many([{"qty": 1}, {"qty": 2}], ids=["d", "d"])
            for bad in ("", "a b", "ü", "x" * 201, "a\n"):
                with pytest.raises(BadRequest, match="the id of an event is"):
                    await client.publish({"qty": 1}, id=bad)
            assert stored(broker) == [1, 2, 3, 4]
            assert (await client.stats())["repeated"] == 5

    run(scenario())


def test_cloudevents_are_known_by_source_and_id(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), Client(url) as client, httpx.AsyncClient(base_url=url) as http:
            assert await client.publish_cloudevents(ORDER) == 1
            headers = {"content-type": "application/cloudevents+json"}
            again = await http.post("/v1/events", json=ORDER, headers=headers)
            assert (again.status_code, again.json()["first"]) == (201, 1)
            assert await client.publish_cloudevents({**ORDER, "source": "/other"}) == 2
            changed = await http.post("/v1/events", json={**ORDER, "data": {"qty": 2}}, headers=headers)
            assert changed.status_code == 409
            assert stored(broker) == [1, 2]

    run(scenario())


def test_long_names_of_cloudevents_are_known_and_take_little_memory() -> None:
    long = [PublishedEvent({}, cloudevent={**ORDER, "source": "/" + "x" * 60_000, "id": id}) for id in "12"]
    keys = [one.key() or "" for one in long]
    assert len(set(keys)) == 2
    assert max(map(len, keys)) < 100
    assert PublishedEvent({}, cloudevent=ORDER).key() == "/shop\n7"
    assert PublishedEvent({}, cloudevent=ORDER, id="a").key() == "a"
    assert PublishedEvent({}).key() is None


def test_repetitions_that_come_at_the_same_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            batches = [[event("a")], [event("a"), event("b", 2)], [event("b", 2)], [event(None), event("a")]] * 5
            found = await asyncio.gather(*(broker.publish(batch) for batch in batches))
            assert found[:3] == [1, 1, 2]
            assert (found[4::4], found[5::4], found[6::4]) == ([1] * 4, [1] * 4, [2] * 4)
            assert stored(broker) == list(range(1, 8))

    run(scenario())


def test_what_could_not_be_stored_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            right = broker.store.events.append

            def full(*_: Any) -> int:
                raise StoreFull("the disk is full")

            monkeypatch.setattr(broker.store.events, "append", full)
            both = await asyncio.gather(
                broker.publish([event("a")]), broker.publish([event("a")]), return_exceptions=True
            )
            assert [type(one) for one in both] == [StoreFull, StoreFull]
            monkeypatch.setattr(broker.store.events, "append", right)
            assert await broker.publish([event("a")]) == 1
            assert await broker.publish([event("a", 1)]) == 1

    run(scenario())


def test_ids_are_known_after_a_restart_and_for_a_while(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, message_ids=3) as broker:
            assert [await broker.publish([event(id)]) for id in "abcd"] == [1, 2, 3, 4]
            assert await broker.publish([event("b")]) == 2
            assert await broker.publish([event("a")]) == 5  # four events later
        async with running(tmp_path, message_ids=3) as broker:
            assert [await broker.publish([event(id)]) for id in "cda"] == [3, 4, 5]
            assert await broker.publish([event("b")]) == 6
        async with running(tmp_path, message_ids=0) as broker:
            assert await broker.publish([event("b")]) == 7

    run(scenario())


def test_forgetting_does_not_walk_over_what_is_forgotten() -> None:
    async def scenario() -> None:
        ids = MessageIds(3)
        for number in range(1, 101):
            stored = asyncio.get_running_loop().create_future()
            ids.add([("", str(number))], [b"{}"], stored, False)
            stored.set_result(number)
            await asyncio.sleep(0)
        assert list(ids._known[""]) == ["98", "99", "100"]
        assert isinstance(
            ids._known[""], OrderedDict
        )  # a dict keeps the places of its first entries, and walks over them

    run(scenario())


def test_an_id_belongs_to_the_principal_that_published_it(tmp_path: Path) -> None:
    """Nobody can take an id from somebody else, or learn that somebody else has used it; also after a restart, for
    CloudEvents, and for events that are delayed."""

    def changed(cloudevent: dict[str, Any], qty: int) -> dict[str, Any]:
        return {**cloudevent, "data": {"qty": qty}}

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url):
            async with Client(url) as local:
                root = (await local.create_token("root"))["token"]
            tokens = []
            async with Client(url, root) as client:
                for name in ("ann", "bob"):
                    await client.put_principal(name, ["publish"])
                    tokens.append((await client.create_token(name))["token"])
            async with Client(url, tokens[0]) as ann, Client(url, tokens[1]) as bob:
                assert await ann.publish({"qty": 1}, id="order-2") == 1
                assert await ann.publish_cloudevents(changed(ORDER, 1)) == 2
                assert await ann.publish({"qty": 1}, id="later", delay_seconds=3600) == 1
                assert await ann.publish({"qty": 1}, id="soon", delay_seconds=0.01) == 2
                await until(lambda: stored(broker) == [1, 2, 3])
                assert await bob.publish({"qty": 2}, id="order-2") == 4
                assert await bob.publish_cloudevents(changed(ORDER, 2)) == 5
                assert await bob.publish({"qty": 2}, id="later", delay_seconds=3600) == 3
                assert await bob.publish({"qty": 2}, id="soon") == 6
        async with serving(tmp_path) as (_, url), Client(url, tokens[0]) as ann, Client(url, tokens[1]) as bob:
            for client, qty, numbers in ((ann, 1, [1, 2, 1]), (bob, 2, [4, 5, 3])):
                assert await client.publish({"qty": qty}, id="order-2") == numbers[0]
                assert await client.publish_cloudevents(changed(ORDER, qty)) == numbers[1]
                assert await client.publish({"qty": qty}, id="later", delay_seconds=3600) == numbers[2]
            assert await ann.publish({"qty": 1}, id="soon", delay_seconds=0.01) == 0
            assert await bob.publish({"qty": 2}, id="soon") == 6
            with pytest.raises(Conflict, match="'order-2' of event 4"):
                await bob.publish({"qty": 1}, id="order-2")
            assert await bob.cancel_delayed([1, 3]) == 1
            assert await bob.publish({"qty": 3}, id="later") == 7
            assert await ann.publish({"qty": 1}, id="later", delay_seconds=3600) == 1

    run(scenario())


def test_a_principal_that_is_made_again_inherits_nothing(tmp_path: Path) -> None:
    """No ids, neither at once nor after a restart, and no rate; and nobody else loses some."""

    async def publish(manager: Client, url: str) -> list[int]:
        token = (await manager.create_token("ann"))["token"]
        async with Client(url, token) as ann:
            later = await ann.publish({"qty": 1}, id="later", delay_seconds=3600)
            return [later, await ann.publish_many([{"qty": 1}] * 9, ids=list("abcdefghi"))]

    async def scenario() -> None:
        async with serving(tmp_path, publish_rate=5) as (_, url):
            async with Client(url) as client:
                root = (await client.create_token("root"))["token"]
            async with Client(url, root) as manager:
                assert await manager.publish({"qty": 2}, id="a") == 1
                for numbers in ([1, 2], [2, 11]):
                    await manager.put_principal("ann", ["publish"])
                    assert await publish(manager, url) == numbers
                    assert [one["principal"] for one in await manager.delayed()] == ["ann"]
                    with pytest.raises(Conflict, match="'ann' has 1 delayed event: wait until"):
                        await manager.remove_principal("ann")
                    assert await manager.cancel_delayed(numbers[:1]) == 1
                    await manager.remove_principal("ann")
                    assert await manager.publish({"qty": 2}, id="a") == 1
        async with serving(tmp_path) as (_, url), Client(url, root) as manager:
            await manager.put_principal("ann", ["publish"])
            assert await publish(manager, url) == [3, 20]
            assert await manager.publish({"qty": 2}, id="a") == 1
        async with serving(tmp_path) as (_, url), Client(url, root) as manager:
            assert await publish(manager, url) == [3, 20]

    run(scenario())


def test_what_waits_when_its_principal_is_removed_is_refused(tmp_path: Path) -> None:
    """It would be stored later, and its quota and its ids would be those of the next principal of this name."""

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            for name in ("root", "ann"):
                if name == "ann":
                    await broker.directory.put_principal(broker.writer, name, Principal(["publish"], max_day_bytes=99))
                _, token = await broker.directory.create_token(broker.writer, name, TokenSettings())
            ann = broker.directory.caller(token)
            async with held_up(broker):
                change = asyncio.create_task(broker.directory.put_principal(broker.writer, "bob", Principal()))
                await until(broker.directory._changing.locked)
                removal = asyncio.create_task(broker.remove_principal("ann"))
                await until(lambda: not broker.change_barrier.is_open())
                waiting = await broker.accept([event("a")], ann, 0)
            with pytest.raises(NotAllowed):
                await waiting
            await asyncio.gather(change, removal)
            assert (stored(broker), broker.waiting.events) == ([], 0)
            assert broker.store.meta.get("usage/ann") is None

    run(scenario())


@asynccontextmanager
async def relay(url: str, losing: int) -> AsyncIterator[str]:
    """A way to the broker that loses its first answers to publishes, and the connection with each."""
    port = urlsplit(url).port
    left = losing
    pumps: set[asyncio.Task[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: bool) -> None:
        nonlocal left
        while data := await reader.read(65536):
            if answers and left and b'"first":' in data:
                left -= 1
                break
            writer.write(data)
            await writer.drain()

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        both = [asyncio.create_task(pump(reader, back, False)), asyncio.create_task(pump(there, writer, True))]
        pumps.update(both)
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for one in (writer, back):
            one.transport.abort()

    server = await asyncio.start_server(meet, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for one in pumps:
            one.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


def test_a_lost_answer_is_asked_for_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url):
            async with relay(url, 2) as way, Client(way) as client:
                assert await client.publish({"qty": 1}, id="a") == 1
            assert stored(broker) == [1]
            async with relay(url, 1) as way, Client(way) as client:
                with pytest.raises(NoAnswer, match="may have been accepted"):
                    await client.publish({"qty": 1})
            await until(lambda: stored(broker) == [1, 2])
            async with relay(url, 2) as way, Client(way) as client:
                assert await client.publish_cloudevents(ORDER) == 3
            assert stored(broker) == [1, 2, 3]
            async with relay(url, 1000) as way, Client(way, timeout=0.5) as client:
                with pytest.raises(StoreFailed):
                    await client.publish({"qty": 2}, id="b")

    run(scenario())


def test_the_example_of_the_documentation(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "broker.md").read_text()
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "publish_order" in block]
    names: dict[str, Any] = {"hitbox": hitbox}
    exec(code, names)

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), Client(url) as client:
            order = {"number": "2026-17", "price": 12.5}
            assert [await names["publish_order"](client, order) for _ in range(2)] == [1, 1]
            assert stored(broker) == [1]

    run(scenario())


def test_ids_of_delayed_events_are_forgotten_like_others() -> None:
    async def scenario() -> None:
        ids = MessageIds(10)
        for number in range(1, 101):
            stored: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            item = PublishedEvent({"qty": 1}, id=str(number), delay_seconds=1.0)
            ids.add([("ann", str(number))], [item.content(b"{}")], stored, True)
            stored.set_result(number)
            await asyncio.sleep(0)
            ids.move(item, "ann", number)
        assert list(ids._known["ann"]) == [str(number) for number in range(91, 101)]

    asyncio.run(scenario())


def test_the_ids_of_one_push_out_nobody_elses() -> None:
    async def scenario() -> None:
        ids = MessageIds(6)
        names = ["bob", *["ann"] * 9, "bob", "cid", *["ann"] * 9]
        for number, name in enumerate(names, 1):
            stored: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            ids.add([(name, str(number))], [b""], stored, False)
            stored.set_result(number)
            await asyncio.sleep(0)
        assert {name: list(mine) for name, mine in ids._known.items()} == {
            "bob": ["1", "11"],
            "ann": ["19", "20", "21"],
            "cid": ["12"],
        }

    asyncio.run(scenario())
