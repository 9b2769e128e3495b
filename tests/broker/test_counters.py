"""What the broker says of itself: losses, refusals, connections and rights are shown as they are."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from typer.testing import CliRunner

from hitbox.broker.commands import access_cli
from hitbox.broker.commands.cli import app
from hitbox.broker.settings import Options
from hitbox.broker.subscribers.webhook import WebhookSettings
from hitbox.broker.upkeep.repair import repair
from hitbox.client import Client
from support.broker_kit import Listener, item, running, serving, sub, until
from support.webhook_target import target


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 120))


def losses(broker: Any, name: str) -> list[Any]:
    return [broker.mailbox(name).describe()[one] for one in ("dropped", "expired", "dead")]


def test_losses_of_a_subscriber_outlive_a_restart(tmp_path: Path, later: Callable[[float], None]) -> None:
    """Those of a removed one do not pass on to the next with its name, and a repair keeps them."""
    late = msgspec.structs.replace(item(qty=1), ttl_seconds=100)

    async def lose() -> None:
        async with running(tmp_path) as broker:
            for name, options in (("ann", Options("drop_oldest", 3)), ("bob", Options("spool", 3)), ("eve", Options())):
                await broker.put_subscriber(name, options)
                await broker.subscribe(name, [sub("s", "qty > 0")])
            await broker.publish([item(qty=1)] * 10)
            await until(lambda: losses(broker, "ann") == [7, 0, 0] and losses(broker, "bob") == [0, 0, 7])
            await broker.publish([late] * 2)
            await until(lambda: losses(broker, "ann") == [9, 0, 0] and losses(broker, "bob") == [0, 0, 9])
            later(200)
            broker.expiry.expect(0)
            await until(lambda: losses(broker, "eve") == [0, 2, 0])
            assert losses(broker, "ann") == [9, 2, 0]
            assert losses(broker, "bob") == [0, 2, 9]

    async def look() -> None:
        async with running(tmp_path) as broker:
            assert [losses(broker, name) for name in ("ann", "bob", "eve")] == [[9, 2, 0], [0, 2, 9], [0, 2, 0]]

    async def remove() -> None:
        async with running(tmp_path) as broker:
            await broker.remove_subscriber("ann")
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            assert losses(broker, "ann") == [0, 0, 0]
            known = broker.registry.by_name
            assert set(broker.store.subscribers.losses()) == {known["bob"].number, known["eve"].number}

    run(lose())
    run(look())
    repair(tmp_path)
    run(look())
    run(remove())


REFUSED: dict[str, tuple[Any, int, str, int]] = {  # body, status, reason, events
    "a value of another type": ([{"event": {"qty": 1}}, {"event": {"qty": "x"}}], 400, "invalid", 2),
    "no attribute": ({"event": {"qyt": 1}}, 400, "invalid", 1),
    "no event": ({"evnt": {}}, 400, "invalid", 1),
    "another event has this id": ({"event": {"qty": 2}, "id": "known"}, 409, "conflict", 1),
    "too large": ({"event": {"city": "x" * 70_000}}, 413, "size", 1),
    "too many": ([{"event": {"qty": 1}}] * 11, 413, "size", 11),
}


@pytest.mark.parametrize("door", ["http", "socket", "publisher"])
@pytest.mark.parametrize("case", REFUSED)
def test_refused_events_are_counted(tmp_path: Path, door: str, case: str) -> None:
    body, status, reason, count = REFUSED[case]

    async def scenario() -> None:
        async with serving(tmp_path, max_batch=10) as (broker, url), Client(url) as client:
            await client.publish({"qty": 1}, id="known")
            counts, refusals = broker.statistics.counts, broker.statistics.refusals
            before = counts["refused"], refusals[reason]
            if door == "http":
                async with httpx.AsyncClient(base_url=url) as http:
                    answer = await http.post("/v1/events", json=body)
                    assert answer.status_code == status, answer.text
            else:
                await by_socket(url, door, body if isinstance(body, list) else [body])
            await until(lambda: refusals[reason] > before[1])
            unread = case == "no event" and door == "publisher"  # such a message might be anything
            assert counts["refused"] - before[0] == (
                0 if unread else 1 if (case, door) == ("too many", "http") else count
            )
            assert refusals[reason] == before[1] + 1
            async with httpx.AsyncClient(base_url=url) as http:
                text = (await http.get("/metrics")).text
            assert f'hitbox_refused_requests_total{{reason="{reason}"}} {refusals[reason]:.1f}' in text

    run(scenario())


async def by_socket(url: str, door: str, items: list[Any]) -> None:
    from websockets.asyncio.client import connect

    path = "/v1/publish" if door == "socket" else "/v1/connect"
    async with connect(url.replace("http", "ws") + path, max_size=None) as socket:
        if door == "publisher":
            await socket.send(json.dumps({"type": "hello", "subscriber": "ann"}))
            await socket.recv()
        await socket.send(json.dumps({"type": "publish", "request": 1, "items": items}))
        assert json.loads(await socket.recv())["type"] == "error"


def test_a_webhook_that_cannot_be_reached_is_not_connected(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, allow_private_webhooks=True) as broker, target() as there:
            await broker.put_subscriber("ann", Options(backoff_seconds=0.05, max_backoff_seconds=0.05, max_tries=1000))
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            url = f"http://127.0.0.1:{there.port}/"
            await broker.put_webhook("ann", WebhookSettings("http://127.0.0.1:1/"))
            await broker.publish([item(qty=1)])
            mailbox = broker.mailbox("ann")
            await until(lambda: mailbox.webhook_problem)
            assert mailbox.describe()["connected"] is False
            await broker.put_webhook("ann", WebhookSettings(url))
            await until(lambda: mailbox.pending == 0)
            assert mailbox.describe()["connected"] is True
            ann = await Listener(broker).attach("ann")
            mailbox.webhook_problem = "of an earlier request"
            assert mailbox.describe()["connected"] is True  # the client is there
            await ann.leave()

    run(scenario())


def test_a_token_shows_what_it_may_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not "all" for one without limits of its own, whose principal may do little."""
    monkeypatch.setenv("COLUMNS", "200")

    async def scenario() -> None:
        async with serving(tmp_path) as (_, url):
            async with Client(url) as local:
                root = (await local.create_token("root"))["token"]
            async with Client(url, root) as client:
                await client.put_principal("ann", ["subscribe"])
                await client.create_token("ann")
                await client.put_principal("bob", ["subscribe", "publish"])
                await client.create_token("bob", roles=["publish", "manage"])
                shown = {one["principal"]: (one["roles"], one["allowed"]) for one in await client.tokens()}
            assert shown["ann"] == (None, ["subscribe"])
            assert shown["bob"] == (["publish", "manage"], ["publish"])
            assert shown["root"] == (None, ["publish", "subscribe", "observe", "manage"])
            listed = await asyncio.to_thread(admin, "tokens", "list", "--url", url, "--token", root)
            check(listed)

    def check(listed: str) -> None:
        rows = {line.split("  ")[1].strip(): line for line in listed.splitlines() if line.count("  ") > 2}
        assert "subscribe  " in rows["ann"]
        assert "publish" not in rows["ann"]
        assert "publish, subscribe, observe, manage" in rows["root"]

    run(scenario())
    check(admin("tokens", "list", "--data", str(tmp_path)))


def admin(*words: str, **options: Any) -> str:
    found = CliRunner().invoke(app, ["admin", *words], **options)
    assert found.exit_code == 0, found.output
    return found.output


def test_the_first_token_says_whom_it_disconnects(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), Client(url) as client:
            async with client.subscriber("ann"):
                await until(lambda: broker.mailbox("ann").connected)

                class Terminal:
                    def isatty(self) -> bool:
                        return True

                monkeypatch.setattr(access_cli.sys, "stdin", Terminal())
                asked: list[str] = []

                def refuse(question: str, **_: Any) -> None:
                    asked.append(question)
                    raise SystemExit(1)

                monkeypatch.setattr(access_cli.typer, "confirm", refuse)
                with pytest.raises(SystemExit):
                    await asyncio.to_thread(access_cli.create_token, "ops", url=url)
                assert "1 connection of a subscriber is closed" in asked[0]
                assert not broker.directory.protected
                made = await client.create_token("ops")
                (warning,) = made["warnings"]
                assert "every request needs a token" in warning
                assert "1 connection without one is closed" in warning
                assert warning in caplog.text
            async with Client(url, made["token"]) as ops:
                assert (await ops.create_token("ops"))["warnings"] == []

    run(scenario())
