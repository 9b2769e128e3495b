"""Lists of stored events: bounded in bytes, made beside the event loop, and not kept for clients that do not read."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from hitbox.broker import admin
from hitbox.broker.admin import ANSWER_BYTES
from hitbox.broker.broker import Broker
from hitbox.broker.events.published_event import PublishedEvent
from hitbox.broker.http import listings
from hitbox.broker.settings import Options
from support.broker_kit import serving, sub, token_of, until

TEXT = 60_000
PAYLOAD = msgspec.Raw(b'"%b"' % (b"x" * TEXT))
COUNT = 100
FIT = -(-ANSWER_BYTES // TEXT)
"""So many of these events are about ANSWER_BYTES."""


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 120))


@asynccontextmanager
async def filled(tmp_path: Path, **more: Any) -> AsyncIterator[tuple[Broker, str]]:
    """Large events: stored, delayed, and dead letters of ann."""
    async with serving(tmp_path, **more) as (broker, url):
        await broker.put_subscriber("ann", Options(limit=1))
        await broker.subscribe("ann", [sub("all", "qty >= 0")])
        for start in range(0, COUNT, 20):
            items = [PublishedEvent({"qty": n}, payload=PAYLOAD) for n in range(start, start + 20)]
            await broker.publish(items)
            await broker.publish([msgspec.structs.replace(one, delay_seconds=9_000) for one in items])
        await until(lambda: broker.mailbox("ann").dead == COUNT - 1)  # after the commit, unlike the count of rows
        yield broker, url


def test_an_answer_ends_after_some_bytes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with filled(tmp_path) as (_, url), httpx.AsyncClient(base_url=url) as http:
            first, seqs = 1, list[int]()
            while True:
                answer = await http.get("/v1/events", params={"first": first, "limit": 1_000})
                assert len(answer.content) < ANSWER_BYTES + 2 * TEXT
                if not answer.json()["events"]:
                    break
                first = answer.json()["next"]
                seqs += [one["seq"] for one in answer.json()["events"]]
                assert answer.json()["events"][0]["payload"] == "x" * TEXT
            assert seqs == list(range(1, COUNT + 1))
            for path, name, count in (("dead", "letters", COUNT - 1), ("delayed", "events", COUNT)):
                answer = await http.get(f"/v1/{path}", params={"limit": 1_000})
                assert len(answer.content) < ANSWER_BYTES + 2 * TEXT
                found = answer.json()
                assert (found["count"], len(found[name])) == (count, FIT)
                assert found[name][0]["event"] == {"qty": 0 if path == "delayed" else COUNT - 2}
                assert len((await http.get(f"/v1/{path}", params={"limit": 3})).json()[name]) == 3

    run(scenario())


def test_what_a_limited_caller_may_see_is_counted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with filled(tmp_path) as (broker, _):
            caller = broker.directory.caller("")
            everything = broker.directory.rights("local", None)
            limited = msgspec.structs.replace(everything, see="qty < 10")
            broker.directory.rights = lambda *_: limited  # type: ignore[method-assign]
            broker.directory.may_see = lambda _, event: event["qty"] < 10  # type: ignore[method-assign]
            assert [len(found) for found in admin.events(broker, caller, 1, 1_000)[:1]] == [10]
            assert admin.events(broker, caller, 1, 1_000)[1] == COUNT + 1
            for count, found in (
                admin.delayed_events(broker, caller, 3),
                admin.dead_letters(broker, caller, None, "", 3),
            ):
                assert (count, len(found)) == (10, 3)

    run(scenario())


def test_stored_events_are_read_beside_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with filled(tmp_path) as (broker, url), httpx.AsyncClient(base_url=url) as http:
            beside: list[bool] = []
            rows: list[int] = []
            read = broker.store.reader.read

            def watched(query: str, values: Any = ()) -> Any:
                found = read(query, values)
                if "body" in query:
                    beside.append(threading.current_thread() is not threading.main_thread())
                    rows.append(len(found))
                return found

            monkeypatch.setattr(broker.store.reader, "read", watched)
            for path in ("events", "dead", "delayed", "unseen"):
                assert (await http.get(f"/v1/{path}")).status_code == 200
            numbers = {"numbers": list(range(1, COUNT + 1))}
            for path in ("dead/drop", "delayed/cancel"):
                assert (await http.post(f"/v1/{path}", json=numbers)).json()["count"] >= COUNT - 1
            assert all(beside)
            assert 0 < max(rows) <= admin.ROWS

    run(scenario())


def test_attributes_are_looked_for_in_the_latest_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "LOOKED_BYTES", 10 * TEXT)

    async def scenario() -> None:
        async with filled(tmp_path) as (broker, url), httpx.AsyncClient(base_url=url) as http:
            await broker.subscribe("bob", [sub("s", "price > 1")])
            found = (await http.get("/v1/unseen", params={"events": 1_000})).json()
            assert found["events"] == admin.ROWS  # and not COUNT
            assert [one["attribute"] for one in found["attributes"]] == ["price"]
            assert (await http.get("/v1/unseen", params={"events": 3})).json()["events"] == 3

    run(scenario())


def test_a_principal_has_few_lists_that_it_does_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listings, "AT_ONCE", 3)

    async def scenario() -> None:
        async with filled(tmp_path, principals=["slow", "quick"]) as (_, url), httpx.AsyncClient(base_url=url) as http:
            lines = []
            for _ in range(3):
                reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]), limit=1_000)
                head = b"GET /v1/events?limit=1000 HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer %b\r\n\r\n"
                writer.write(head % token_of("slow").encode())
                assert b" 200 " in await reader.readline()
                lines.append(writer)
            slow, quick = ({"authorization": f"Bearer {token_of(name)}"} for name in ("slow", "quick"))
            for path in ("/v1/events", "/v1/dead", "/v1/delayed"):
                refused = await http.get(path, headers=slow)
                assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
                assert (await http.get(path, headers=quick)).status_code == 200
            for writer in lines:
                writer.transport.abort()
            async with asyncio.timeout(30):
                while (await http.get("/v1/events", headers=slow)).status_code != 200:
                    await asyncio.sleep(0.01)

    run(scenario())
