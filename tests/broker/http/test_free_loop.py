"""The event loop waits for nobody: SQLite is called in threads only, and a long search holds up nothing else."""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import httpx
import pytest

from hitbox.broker.delivery.dispatcher import LARGE
from hitbox.broker.http.openapi import describe
from hitbox.broker.store import search
from hitbox.broker.store.store import Store
from hitbox.broker.subscribers.subscription_changes import INLINE_BYTES
from hitbox.client import BadRequest, Client, Overloaded, StoreFull
from support.broker_kit import SCHEMA, Listener, item, running, serving, sub, until

OWNER = "/v1/subscribers/{subscriber}"


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 180))


class Calls:
    """The calls of SQLite: how many there were in other threads, and where the calls of this thread came from."""

    def __init__(self) -> None:
        self.here: list[str] = []
        self.elsewhere = 0
        self.thread: int | None = None

    @contextmanager
    def watched(self) -> Iterator[None]:
        self.thread = threading.get_ident()
        try:
            yield
        finally:
            self.thread = None

    def note(self, name: str) -> None:
        if self.thread is not None and threading.get_ident() == self.thread:
            self.here.append(f"{name}\n{''.join(traceback.format_stack(limit=8)[:-2])}")
        elif self.thread is not None:
            self.elsewhere += 1


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    found = Calls()

    class Connection(apsw.Connection):
        def __init__(self, *args: Any, **named: Any):
            found.note("open")
            super().__init__(*args, **named)

        def __getattribute__(self, name: str) -> Any:
            found.note(name)
            return super().__getattribute__(name)

    monkeypatch.setattr(apsw, "Connection", Connection)
    return found


class Tour:
    """Requests to every route; `seen`: to which."""

    def __init__(self, http: httpx.AsyncClient):
        self.http = http
        self.seen: set[tuple[str, str]] = set()

    async def __call__(self, method: str, path: str, body: Any = None, expect: int = 200, **query: Any) -> Any:
        self.seen.add((method, path))
        place = path.format(subscriber="ann", name="s", principal="bob", token=query.pop("token", ""))
        answer = await self.http.request(method, place, json=body, params=query)
        assert answer.status_code == expect, (method, path, answer.text)
        return answer.json() if answer.headers.get("content-type") == "application/json" else answer.content

    async def first_of(self, path: str) -> None:
        """The beginning of an answer without end."""
        self.seen.add(("GET", path))
        async with self.http.stream("GET", path.format(subscriber="ann")) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data:"):
                    return


async def _events(go: Tour) -> None:
    await go("GET", "/v1/schema")
    await go("PUT", "/v1/schema", {"attributes": [*SCHEMA.to_json(), {"name": "new", "type": "int"}]})
    await go("PUT", OWNER, {"max_tries": 1})
    await go("PUT", OWNER + "/subscriptions/{name}", {"where": "qty > 0"})
    await go("POST", OWNER + "/subscriptions", [{"name": f"s{n}", "where": "qty > 1"} for n in range(200)])
    for text in ("", "qty >", "nothing of this"):
        await go("GET", "/v1/subscriptions", q=text, offset=3)
    await go("POST", "/v1/events", {"event": {"qty": 1}}, expect=201)
    await go("POST", "/v1/events", [{"event": {"qty": 1}}] * 300, expect=201)
    delayed = await go("POST", "/v1/events", {"event": {"qty": 1}, "delay_seconds": 1000}, expect=201)
    assert delayed["delayed"] == 1
    await go("GET", "/v1/events", first=1)
    await go("GET", "/v1/delayed")
    await go("POST", "/v1/delayed/cancel", {"numbers": [1]})


async def _deliveries(go: Tour) -> None:
    await go.first_of(OWNER + "/deliveries")
    await go.first_of("/v1/live")
    for what in ("nack", "extend", "ack"):
        await go("POST", OWNER + f"/{what}", {"seqs": [1, 2, 3, 250]}, expect=204)
    await go("POST", OWNER + "/replay", {"first": 1})
    for what in ("pause", "resume"):
        await go("POST", OWNER + f"/{what}", expect=204)
    await go("POST", OWNER + "/subscriptions/{name}/resume", expect=204)
    await go("PUT", OWNER + "/webhook", {"url": "https://webhooks.invalid/"})
    await go("GET", OWNER + "/webhook")
    await go("DELETE", OWNER + "/webhook", expect=204)
    await go("GET", "/v1/subscribers")
    await go("GET", OWNER)


async def _looks(go: Tour) -> None:
    await go("POST", "/v1/check", {"where": "qty > 0"})
    await go("POST", "/v1/try", {"event": {"qty": 1}, "misses": 3})
    await go("POST", "/v1/explain", {"event": {"qty": 1}, "id": "ann/s"})
    for path in ("/v1/stats", "/v1/trace", "/v1/unseen", "/v1/dead", "/v1/whoami", "/v1/principals", "/v1/tokens"):
        await go("GET", path)
    for path in ("/metrics", "/openapi.json", "/livez", "/readyz", "/"):
        await go("GET", path)
    for path in ("/v1/dead/replay", "/v1/dead/drop"):
        await go("POST", path, {"numbers": [1]})
    await go("POST", "/v1/snapshot")
    await go("POST", "/v1/clock/accept")
    await go("POST", "/v1/backup")


async def _changes(go: Tour) -> None:
    await go("DELETE", OWNER + "/subscriptions/{name}", expect=204)
    await go("DELETE", OWNER, expect=204)
    first = await go("POST", "/v1/tokens", {"principal": "root"}, expect=201)
    go.http.headers["authorization"] = f"Bearer {first['token']}"
    await go("PUT", "/v1/principals/{principal}", {"roles": ["publish"], "max_day_bytes": 1000})
    made = await go("POST", "/v1/tokens", {"principal": "bob"}, expect=201)
    await go("PUT", "/v1/tokens/{token}", {"roles": ["publish"]}, token=made["id"])
    own = {"authorization": f"Bearer {made['token']}"}
    assert (await go.http.post("/v1/events", json={"event": {"qty": 1}}, headers=own)).status_code == 201
    await go("DELETE", "/v1/tokens/{token}", expect=204, token=made["id"])
    await go("DELETE", "/v1/principals/{principal}", expect=204)


async def _sockets(url: str) -> None:
    async with Client(url) as client:
        async with client.subscriber("eve", max_tries=1, backoff_seconds=0) as eve:
            await eve.subscribe("s", "qty >= 0")
            await client.publish_many([{"qty": n} for n in range(20)])
            await eve.ack(await eve.next())
            await eve.nack(await eve.next())
            with pytest.raises(BadRequest):
                await eve.subscribe("bad", "qty >")
        async with client.subscriber(ephemeral=True) as live:
            await live.subscribe("s", "qty >= 0")
            await client.publish({"qty": 1})
            assert (await live.next()).event == {"qty": 1}


def test_no_request_calls_sqlite_on_the_loop(tmp_path: Path, calls: Calls) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), httpx.AsyncClient(base_url=url) as http:
            with calls.watched():
                go = Tour(http)
                await _events(go)
                await _deliveries(go)
                await _sockets(url)
                await _looks(go)
                await until(lambda: broker.statistics.history)  # housekeeping
                await broker._trim()
                await broker._expire_subscribers()
                await _changes(go)
            described = {(how.upper(), path) for path, each in describe("1")["paths"].items() for how in each}
            assert described <= go.seen
            assert calls.elsewhere > 100
            assert not calls.here, calls.here[0]
            with calls.watched():
                assert broker.store.reader.read("SELECT 1") == [(1,)]
            assert calls.here  # it would have been noticed

    run(scenario())


def test_neither_do_a_start_after_a_crash_and_a_change_that_fails(
    tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.subscribe("ann", [sub("s", "qty > 0")])
        store = Store(tmp_path)
        with store.transaction():
            store.events.append([b'{"event":{"qty":1}}'] * 300, 1)
        store.close()
        async with running(tmp_path, keep_seconds=1e9) as broker:
            with calls.watched():
                ann = await Listener(broker).attach("ann")
                await until(lambda: len(ann.got) == 300)
                assert await broker.publish([item(qty=1)]) == 301

                def full(*_: Any) -> Any:
                    raise StoreFull("the disk is full")

                monkeypatch.setattr(broker.store.subscribers, "change", full)
                for name in ("ann", "eve"):
                    with pytest.raises(StoreFull):
                        await broker.subscribe(name, [sub("other", "qty > 5")])
                assert broker.subscriber("ann").subscriptions == len(broker.registry.index) == 1
                assert "eve" not in broker.registry.by_name
                await ann.leave()
            assert not calls.here, calls.here[0]

    run(scenario())


def test_events_that_could_not_be_matched_are_known_without_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            with monkeypatch.context() as broken:
                for name in ("match", "levels"):
                    broken.setattr(broker.registry, name, lambda *_: 1 / 0)
                await broker.publish([item(qty=1)])
                await until(lambda: broker.store.events.failed() == [1])
            with monkeypatch.context() as away:
                away.setattr(broker.store.reader, "read", lambda *_: 1 / 0)
                assert list(broker.problems()) == ["event 1 could not be matched; tried again at the next start"]
                assert broker.health()[0]["status"] == "degraded"
        async with running(tmp_path) as broker:
            await until(broker.caught_up)
            assert not list(broker.problems())
            assert not broker.store.events.failed()

    run(scenario())


def test_matching_does_not_wait_for_other_threads(tmp_path: Path) -> None:
    """Nor do changes of the index: the events wait for them."""

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            ann = await Listener(broker).attach("ann")
            loop, gate, reached = asyncio.get_running_loop(), threading.Event(), threading.Event()
            others = [loop.run_in_executor(None, lambda: (reached.set(), gate.wait(60))) for _ in range(100)]
            try:
                await loop.run_in_executor(ThreadPoolExecutor(1), reached.wait, 60)
                many = [sub(f"s{n}", f"qty > {n} AND city <> 'nowhere'") for n in range(1000)]
                assert sum(len(one.where) for one in many) > INLINE_BYTES
                await broker.subscribe("ann", many)
                await broker.subscribe("bob", many)
                await broker.remove_subscriber("bob")
                await broker.publish([item(qty=1, city="x" * 2 * LARGE)])
                await until(lambda: ann.seqs() == [1])
                assert not any(one.done() for one in others)
            finally:
                gate.set()
            await asyncio.gather(*others)
            await ann.leave()

    run(scenario())


def test_saves_of_the_index_come_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            save, running_now, most = broker.registry.save, [], []

            def watched() -> dict[str, int]:
                running_now.append(1)
                most.append(len(running_now))
                saved = save()
                running_now.pop()
                return saved

            monkeypatch.setattr(broker.registry, "save", watched)
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            saved = await asyncio.gather(*(broker.snapshot() for _ in range(5)))
            assert most == [1] * 5
            assert [one["version"] for one in saved] == [1, 2, 3, 4, 5]

    run(scenario())


def test_nobody_waits_for_a_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reached, go_on = threading.Event(), threading.Event()

    def stuck(*texts: object) -> str:
        reached.set()
        go_on.wait(60)
        return ""

    monkeypatch.setattr(search, "_casefold", stuck)

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), httpx.AsyncClient(base_url=url) as http, Client(url) as client:
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            try:
                searching = asyncio.create_task(http.get("/v1/subscriptions", params={"q": "qty"}))
                await asyncio.to_thread(reached.wait, 60)
                for path in ("/livez", "/readyz", "/v1/stats", "/metrics", "/v1/subscribers", "/v1/events"):
                    assert (await http.get(path)).status_code == 200
                await broker.subscribe("ann", [sub("t", "qty > 1")])
                await client.publish({"qty": 1})
                assert broker.store.reader.read("SELECT 1") == [(1,)]
                assert not searching.done()
            finally:
                go_on.set()
            assert (await searching).json()["subscriptions"] == []

    run(scenario())


def test_a_search_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), Client(url) as client:
            await broker.subscribe("ann", [sub(f"s{n}", "qty > 0") for n in range(1000)])
            assert (await client.request("GET", "/v1/subscriptions", q="S999"))["count"] == 1000
            monkeypatch.setattr(search, "SEARCH_SECONDS", 0.0)
            with pytest.raises(Overloaded, match="the search was ended after 0 seconds: name a subscriber"):
                await client.request("GET", "/v1/subscriptions", q="nothing like this")
            assert broker.store.reader.read("SELECT 1") == [(1,)]

    run(scenario())
