"""Requests whose cost must not be the number of subscribers times something else."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest

from hitbox.broker import turns
from hitbox.broker.access.principals import EVERYTHING, Principal
from hitbox.broker.broker import Broker
from hitbox.broker.http import live
from hitbox.broker.settings import Options
from support.broker_kit import running, serving, sub

COUNT = 40


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 120))


async def made(broker: Broker) -> None:
    broker.directory.principals.update({f"p{n}": EVERYTHING for n in range(5)})
    for n in range(COUNT):
        await broker.put_subscriber(f"s{n}", Options(), owner=f"p{n % 4}")


def test_rights_are_asked_for_once_per_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), httpx.AsyncClient(base_url=url) as http:
            await made(broker)
            asked: list[str] = []
            rights = Principal(roles=["observe"], names="s1*")

            def answered(name: str, id: str | None) -> Principal:
                asked.append(name)
                return rights

            monkeypatch.setattr(broker.directory, "rights", answered)
            shown = {f"s{n}" for n in range(COUNT) if str(n).startswith("1")}
            found = (await http.get("/v1/subscribers")).json()
            assert ({one["name"] for one in found["subscribers"]}, found["count"]) == (shown, len(shown))
            text = (await http.get("/metrics")).text
            assert all((f'subscriber="s{n}"' in text) == (f"s{n}" in shown) for n in range(COUNT))
            for path in ("/v1/subscriptions", "/v1/dead"):
                assert (await http.get(path)).json()["count"] == 0
            assert len(asked) < COUNT  # a few for each of four requests

    run(scenario())


def test_others_have_turns_while_all_subscribers_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While they are listed, and in housekeeping: whatever changes meanwhile."""

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await made(broker)
            monkeypatch.setattr(turns, "AT_ONCE", 10)
            seen: list[Any] = []
            async for one in turns.in_turns(broker.mailboxes.values()):
                if not seen:
                    asyncio.get_running_loop().call_soon(broker.mailboxes.clear)
                seen.append((one.subscriber.name, len(broker.mailboxes)))
            assert [name for name, _ in seen] == [f"s{n}" for n in range(COUNT)]
            assert [left for _, left in seen] == [COUNT] * 10 + [0] * (COUNT - 10)

    run(scenario())


def test_the_subscribers_are_counted_once_for_all_principals(tmp_path: Path) -> None:
    class Counted(dict[str, Any]):
        walks = 0

        def values(self) -> Any:
            Counted.walks += 1
            return super().values()

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await made(broker)
            await broker.subscribe("s0", [sub("a", "qty > 1"), sub("b", "qty > 2")])
            await broker.subscribe("s4", [sub("a", "qty > 1")])
            broker.registry.by_name = Counted(broker.registry.by_name)
            found = {one["name"]: one for one in broker.directory.describe_principals()}
            assert [found[f"p{n}"]["subscribers"] for n in range(5)] == [10, 10, 10, 10, 0]
            assert [found[f"p{n}"]["subscriptions"] for n in range(5)] == [3, 0, 0, 0, 0]
            assert Counted.walks == 1

    run(scenario())


def test_live_streams_share_their_figures_and_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    async def scenario() -> None:
        async with serving(tmp_path, max_connections=5) as (broker, url), httpx.AsyncClient(base_url=url) as http:
            counted: list[int] = []
            describe = broker.describe

            def watched() -> Any:
                counted.append(1)
                return describe()

            monkeypatch.setattr(broker, "describe", watched)
            monkeypatch.setattr(live, "LIVE_SECONDS", 3_000.0)
            async with contextlib.AsyncExitStack() as streams:
                lines = []
                for _ in range(5):
                    stream = await streams.enter_async_context(http.stream("GET", "/v1/live"))
                    lines.append(stream.aiter_lines())
                    line = await anext(lines[-1])
                    assert json.loads(line.removeprefix("data: "))["stats"]["subscribers"] == 0
                assert len(counted) == 1
                assert (await http.get("/v1/live")).status_code == 429

    run(scenario())
