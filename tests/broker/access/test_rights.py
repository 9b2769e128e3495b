"""The table of rights: every route and every frame, for each role, for names of others, for events outside `see`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from starlette.routing import WebSocketRoute
from typer.testing import CliRunner
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

import hitbox
from hitbox import Schema
from hitbox.broker import metrics
from hitbox.broker.access import directory
from hitbox.broker.access.principals import EVERYTHING, ROLES, Principal, check_principal
from hitbox.broker.access.rights import Need
from hitbox.broker.broker import Broker
from hitbox.broker.commands import cli
from hitbox.broker.delivery.dispatcher import AcceptedEvent
from hitbox.broker.http import routes, websocket
from hitbox.broker.http.app import application
from hitbox.broker.http.auth import AccessControl
from hitbox.broker.http.gate import Gate
from hitbox.broker.http.openapi import describe
from hitbox.broker.subscribers.subscriptions import SubscriptionRegistry
from hitbox.broker.subscribers.webhook import WebhookSettings
from hitbox.client import Client, Refused
from hitbox.protocol.errors import BadRequest, NotAllowed, StoreDamaged
from support.broker_kit import SCHEMA, serving, token_of, until

PARIS, ROME = {"price": 1.0, "city": "Paris"}, {"price": 2.0, "city": "Rome"}
SEE = "city = 'Paris'"
NAMES = "a.*"


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 180))


@dataclass
class Scene:
    broker: Broker
    url: str
    tokens: dict[str, str]
    http: httpx.AsyncClient

    def client(self, who: str) -> Client:
        return Client(self.url, self.tokens[who])

    async def ask(self, who: str, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        given = {"authorization": f"Bearer {self.tokens[who]}"} if who in self.tokens else {}
        return await self.http.request(method, path, json=body, headers={**given, **headers})


@asynccontextmanager
async def scene(path: Path, **settings: Any) -> AsyncIterator[Scene]:
    """A broker with a root, a principal per role with names a.*, one that may see Paris only, and another team."""
    async with serving(path, **settings) as (broker, url):
        async with Client(url) as local:
            root = (await local.create_token("root"))["token"]
        tokens = {"root": root}
        async with Client(url, root) as client:
            for role in ROLES:
                await client.put_principal(role, [role], names=NAMES)
            await client.put_principal("nothing", [])
            await client.put_principal("paris", ROLES, names=NAMES, see=SEE, publish=SEE)
            await client.put_principal("other", ["subscribe", "publish"], names="b.*")
            for one in (*ROLES, "nothing", "paris", "other"):
                tokens[one] = (await client.create_token(one))["token"]
        async with httpx.AsyncClient(base_url=url, verify=False) as http:
            yield Scene(broker, url, tokens, http)


# ---- the table: what each role may do with its own names; 403 otherwise

BODIES: dict[tuple[str, str], Any] = {
    ("PUT", "/v1/schema"): {"attributes": SCHEMA.to_json()},
    ("POST", "/v1/events"): {"event": PARIS},
    ("PUT", routes.OWNER): {},
    ("PUT", routes.OWNER + "/subscriptions/{name}"): {"where": "price > 0"},
    ("POST", routes.OWNER + "/subscriptions"): [{"name": "s", "where": "price > 0"}],
    ("POST", routes.OWNER + "/replay"): {"first": 1},
    ("POST", routes.OWNER + "/ack"): {"seqs": [1]},
    ("POST", routes.OWNER + "/nack"): {"seqs": [1]},
    ("POST", routes.OWNER + "/extend"): {"seqs": [1]},
    ("PUT", routes.OWNER + "/webhook"): {"url": "https://192.0.2.1.example/"},
    ("POST", "/v1/check"): {"where": "price > 0"},
    ("POST", "/v1/try"): {"event": PARIS},
    ("POST", "/v1/explain"): {"event": PARIS, "id": "a.own/s"},
    ("POST", "/v1/delayed/cancel"): {"numbers": [1]},
    ("POST", "/v1/dead/replay"): {"numbers": [1]},
    ("POST", "/v1/dead/drop"): {"numbers": [1]},
    ("PUT", routes.PRINCIPAL): {"roles": []},
    ("POST", "/v1/tokens"): {"principal": "publish"},
    ("PUT", routes.TOKEN): {"roles": []},
}
STREAM = routes.OWNER + "/deliveries"
ALLOWED: dict[tuple[str, str], set[str]] = {
    ("GET", "/v1/schema"): set(ROLES),
    ("PUT", "/v1/schema"): set(),
    ("GET", "/v1/stats"): {"observe", "manage"},
    ("GET", "/v1/trace"): {"observe", "manage"},
    ("POST", "/v1/events"): {"publish"},
    ("GET", "/v1/events"): {"observe", "manage"},
    ("GET", "/v1/delayed"): {"observe", "manage"},
    ("POST", "/v1/delayed/cancel"): {"publish", "manage"},
    ("GET", "/v1/subscribers"): {"subscribe", "observe", "manage"},
    ("GET", routes.OWNER): {"observe", "manage", "subscribe"},
    ("PUT", routes.OWNER): {"subscribe", "manage"},
    ("DELETE", routes.OWNER): {"subscribe", "manage"},
    ("GET", "/v1/subscriptions"): {"subscribe", "observe", "manage"},
    ("PUT", routes.OWNER + "/subscriptions/{name}"): {"subscribe", "manage"},
    ("DELETE", routes.OWNER + "/subscriptions/{name}"): {"subscribe", "manage"},
    ("POST", routes.OWNER + "/subscriptions"): {"subscribe", "manage"},
    ("POST", routes.OWNER + "/subscriptions/{name}/resume"): {"subscribe", "manage"},
    ("POST", routes.OWNER + "/replay"): {"subscribe", "manage"},
    ("POST", routes.OWNER + "/ack"): {"subscribe"},
    ("POST", routes.OWNER + "/nack"): {"subscribe"},
    ("POST", routes.OWNER + "/extend"): {"subscribe"},
    ("GET", STREAM): {"subscribe"},
    ("POST", routes.OWNER + "/pause"): {"subscribe", "manage"},
    ("POST", routes.OWNER + "/resume"): {"subscribe", "manage"},
    ("GET", routes.OWNER + "/webhook"): {"observe", "manage", "subscribe"},
    ("PUT", routes.OWNER + "/webhook"): {"subscribe"},
    ("DELETE", routes.OWNER + "/webhook"): {"subscribe", "manage"},
    ("POST", "/v1/check"): set(ROLES),
    ("POST", "/v1/try"): {"subscribe", "observe", "manage"},
    ("POST", "/v1/explain"): {"subscribe", "observe", "manage"},
    ("GET", "/v1/unseen"): set(),
    ("GET", "/v1/dead"): {"subscribe", "observe", "manage"},
    ("POST", "/v1/dead/replay"): {"subscribe", "manage"},
    ("POST", "/v1/dead/drop"): {"subscribe", "manage"},
    ("POST", "/v1/backup"): set(),
    ("POST", "/v1/snapshot"): set(),
    ("POST", "/v1/clock/accept"): set(),
    ("GET", "/v1/whoami"): set(ROLES),
    ("GET", "/v1/principals"): set(),
    ("PUT", routes.PRINCIPAL): set(),
    ("DELETE", routes.PRINCIPAL): set(),
    ("GET", "/v1/tokens"): set(),
    ("POST", "/v1/tokens"): set(),
    ("PUT", routes.TOKEN): set(),
    ("DELETE", routes.TOKEN): set(),
    ("GET", "/v1/live"): {"observe", "manage"},
    ("GET", "/metrics"): {"observe", "manage"},
    ("GET", "/openapi.json"): set(ROLES),
}
ENDLESS = {"/v1/live", STREAM}
OPEN = {"/livez", "/readyz", "/", "/page/app.js"}
SOCKETS = {"/v1/connect": {"subscribe"}, "/v1/publish": {"publish"}}


def test_the_table_has_every_route() -> None:
    declared = {(route.method, route.path) for route in routes.ROUTES}
    others = {("GET", "/v1/live"), ("GET", "/metrics"), ("GET", "/openapi.json"), ("POST", "/v1/backup")}
    others.add(("GET", STREAM))
    assert declared | others == set(ALLOWED)


def test_the_description_has_every_route() -> None:
    described = {(method.upper(), path) for path, methods in describe("1")["paths"].items() for method in methods}
    public = {("GET", path) for path in OPEN if not path.startswith(("/page", "/v1")) and path != "/"}
    assert described == set(ALLOWED) - {("GET", "/openapi.json")} | public


def test_the_table_has_every_socket(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, _):
            found = application(broker, AccessControl(True)).routes
            assert {route.path for route in found if isinstance(route, WebSocketRoute)} == set(SOCKETS)

    run(scenario())


@pytest.mark.parametrize("path", SOCKETS)
def test_each_role_may_open_the_sockets_that_the_table_says(tmp_path: Path, path: str) -> None:
    async def scenario() -> None:
        async with scene(tmp_path) as s:
            for who in (*ROLES, "nothing", "", "root"):
                if who == "root" or who in SOCKETS[path]:
                    async with _socket(s, who, path):
                        pass
                else:
                    with pytest.raises(InvalidStatus) as refused:
                        await _socket(s, who, path)
                    assert refused.value.response.status_code == (403 if who else 401), who

    run(scenario())


def test_a_route_without_a_need_cannot_be_registered() -> None:
    with pytest.raises(TypeError, match="does not declare"):
        routes.Route("GET", "/v1/new", None, routes.stats, "new")  # type: ignore[arg-type]
    gate = Gate(None, None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="does not declare"):
        gate.http("/v1/new", {"GET": (None, None)})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="does not declare"):
        gate.socket("/v1/new", None, None)  # type: ignore[arg-type]
    assert not gate.routes


def test_every_frame_has_a_need() -> None:
    assert set(websocket.FRAMES) == set(websocket.Message.__args__)
    assert all(isinstance(need, Need) for need in websocket.FRAMES.values())


async def _prepared(s: Scene) -> None:
    """Subscribers that belong to nobody yet, so that each role can try its rights on a.own."""
    s.broker.directory.protected = False  # as if they were made before the first principal
    local = s.broker.directory.caller("")
    s.broker.directory.protected = True
    assert local.token is None
    await s.broker.subscribe("a.own", [msgspec.convert({"name": "s", "where": "price > 0"}, websocket.Subscription)])
    await s.broker.put_webhook("a.own", WebhookSettings("https://webhooks.invalid/"))


def _path(path: str, name: str) -> str:
    return path.format(subscriber=name, name="s", principal="nothing", token="0" * 16)


@pytest.mark.parametrize("role", [*ROLES, "nothing", ""])
def test_each_role_may_do_what_the_table_says(tmp_path: Path, role: str) -> None:
    async def scenario() -> None:
        async with scene(tmp_path) as s:
            for (method, path), roles in ALLOWED.items():
                if path in ENDLESS and role in roles:
                    continue
                if "{subscriber}" in path and role in roles:
                    await _prepared(s)
                found = await s.ask(role, method, _path(path, "a.own"), BODIES.get((method, path)))
                if not role:
                    assert found.status_code == 401, (method, path)
                elif role in roles:
                    assert found.status_code < 300, (method, path, found.text)
                else:
                    assert found.status_code == 403, (method, path, found.text)
            for path in OPEN:
                assert (await s.ask(role, "GET", path)).status_code == 200

    run(scenario())


def test_root_may_do_everything(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene(tmp_path) as s:
            for method, path in ALLOWED:
                if path in ENDLESS or (method, path) in (("PUT", routes.TOKEN), ("DELETE", routes.TOKEN)):
                    continue
                if "{subscriber}" in path or "explain" in path:
                    await _prepared(s)
                found = await s.ask("root", method, _path(path, "a.own"), BODIES.get((method, path)))
                assert found.status_code < 300, (method, path, found.text)

    run(scenario())


def test_names_of_another_principal(tmp_path: Path) -> None:
    """Every route that names a subscriber, for one that exists and for one that does not: the answers are the same."""

    async def scenario() -> None:
        async with scene(tmp_path) as s:
            assert (await s.ask("other", "PUT", "/v1/subscribers/b.x", {})).status_code == 200
            assert (await s.ask("paris", "PUT", "/v1/subscribers/a.paris", {})).status_code == 200
            for who, names in (("subscribe", ("b.x", "b.none", "a.paris")), ("manage", ("b.x",)), ("paris", ("b.x",))):
                for (method, path), roles in ALLOWED.items():
                    if "{subscriber}" in path and ({"subscribe", "manage"} & roles):
                        for name in names:
                            body = BODIES.get((method, path))
                            found = await s.ask(who, method, _path(path, name), body)
                            assert found.status_code == 403, (who, method, path, name, found.text)
            body = {"event": PARIS, "id": "b.x/s"}
            assert (await s.ask("observe", "POST", "/v1/explain", body)).status_code == 403
            for name in (
                "%D0%B0.own",
                "a%2F..%2Fb.x",
                "..",
                "A.own",
                "a",
                "a.",
                "%61.own",
            ):  # the first letter is Cyrillic
                found = await s.ask("other", "PUT", f"/v1/subscribers/{name}", {})
                assert found.status_code in (403, 404, 405), (name, found.status_code)
            shown = (await s.ask("subscribe", "GET", "/v1/subscribers")).json()
            assert shown == {"count": 0, "subscribers": []}
            shown = (await s.ask("observe", "GET", "/v1/subscribers")).json()
            assert [one["name"] for one in shown["subscribers"]] == ["a.paris"]
            assert "b.x" not in (await s.ask("observe", "GET", "/metrics")).text
            assert "b.x" in (await s.ask("root", "GET", "/metrics")).text
            # a handed over subscriber belongs to the new owner
            given = await s.ask("root", "PUT", "/v1/subscribers/a.paris?owner=subscribe", {})
            assert given.status_code == 200
            assert (await s.ask("subscribe", "GET", "/v1/subscribers/a.paris")).status_code == 200
            assert (await s.ask("manage", "PUT", "/v1/subscribers/a.paris?owner=manage", {})).status_code == 403

    run(scenario())


FRAME_BODIES: dict[str, dict[str, Any]] = {
    "subscribe": {"put": [{"name": "x", "where": "price > 0"}], "request": 1},
    "publish": {"items": [{"event": PARIS}], "request": 2},
    "ack": {"seqs": [1]},
    "nack": {"seqs": [1]},
    "extend": {"seqs": [1]},
    "window": {"size": 5},
}


def _socket(s: Scene, who: str, path: str) -> connect:
    given = {"authorization": f"Bearer {s.tokens[who]}"} if who else {}
    return connect("ws" + s.url[4:] + path, additional_headers=given)


async def _rest(socket: Any) -> AsyncIterator[Any]:
    with contextlib.suppress(ConnectionClosed):
        while True:
            yield await socket.recv()


async def _hello(s: Scene, who: str, name: str) -> dict[str, Any]:
    async with _socket(s, who, "/v1/connect") as socket:
        await socket.send(msgspec.json.encode({"type": "hello", "subscriber": name}).decode())
        return dict(msgspec.json.decode(await socket.recv()))


def test_frames_for_each_role(tmp_path: Path) -> None:
    """A connection needs subscribe; each frame is asked for again, here after the principal has lost the role."""

    async def scenario() -> None:
        async with scene(tmp_path) as s, s.client("root") as root:
            for who in (*ROLES, "nothing", "other"):
                if who in ("subscribe",):
                    assert (await _hello(s, who, "a.own"))["type"] == "welcome"
                elif who == "other":
                    found = await _hello(s, who, "a.own")
                    assert (found["type"], found["error"]["type"]) == ("error", "Forbidden")
                else:
                    with pytest.raises(Exception, match="403"):
                        await _hello(s, who, "a.own")
            url, given = "ws" + s.url[4:] + "/v1/connect", {"authorization": f"Bearer {s.tokens['subscribe']}"}
            for kind, body in FRAME_BODIES.items():
                async with connect(url, additional_headers=given) as socket:
                    await socket.send('{"type":"hello","subscriber":"a.own"}')
                    assert "welcome" in str(await socket.recv())
                    if kind == "publish":
                        await socket.send(msgspec.json.encode({"type": kind, **body}).decode())
                        assert "Forbidden" in str(await socket.recv())  # it lacks that role; the connection stays
                        continue
                    await root.put_principal("subscribe", ["publish"], names=NAMES)
                    with contextlib.suppress(ConnectionClosed):
                        await socket.send(msgspec.json.encode({"type": kind, **body}).decode())
                    assert '"done"' not in "".join([str(one) async for one in _rest(socket)])
                    assert socket.close_code == 1008
                    await root.put_principal("subscribe", ["subscribe"], names=NAMES)

    run(scenario())


# ---- events outside `see`


def test_events_outside_see_are_not_delivered_or_shown(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene(tmp_path) as s, s.client("root") as root, s.client("paris") as paris:
            options = {"max_tries": 1, "visibility_seconds": 30}
            async with paris.subscriber("a.p", auto=False, unmatched=True, **options) as mine:
                await mine.subscribe("all", "price > 0")
                await root.publish_many([ROME, PARIS, {"city": "Rome"}, {"city": "Paris"}])
                first, second = await mine.next(), await mine.next()
                assert [first.event, second.event] == [PARIS, {"city": "Paris"}]
                assert second.subscriptions == []
                assert (await root.request("GET", "/v1/subscribers/a.p"))["pending"] == 2
                await mine.nack(first)
                await until(lambda: s.broker.store.letters.table.rows() == 1)
                await mine.ack(second)
            await root.request("POST", "/v1/subscribers/a.p/replay", {"first": 1})
            assert (await root.request("GET", "/v1/subscribers/a.p"))["pending"] == 2  # both of Paris again
            events = await paris.request("GET", "/v1/events")
            assert [one["seq"] for one in events["events"]] == [2, 4]
            assert events["next"] == 5
            assert len((await paris.request("GET", "/v1/dead"))["letters"]) == 1
            for path, body in (
                ("/v1/try", {"event": ROME}),
                ("/v1/explain", {"event": ROME, "id": "a.p/all"}),
            ):
                with pytest.raises(NotAllowed, match="may see only"):
                    await paris.request("POST", path, body)
            why = await root.request("POST", "/v1/explain", {"event": ROME, "id": "a.p/all"})
            assert not why["matched"]
            assert "may not see" in why["text"]
            assert (await root.request("POST", "/v1/try", {"event": ROME}))["count"] == 0
            assert (await root.request("POST", "/v1/try", {"event": PARIS}))["count"] == 1
            async with httpx.AsyncClient(base_url=s.url) as http:
                given = {"authorization": f"Bearer {s.tokens['paris']}"}
                async with http.stream("GET", "/v1/live", headers=given) as live:
                    line = await anext(live.aiter_lines())
                assert "Paris" in line
                assert "Rome" not in line
            # what it may see changes: dead letters, replays and what waits follow at once
            await root.put_principal("paris", ROLES, names=NAMES, see="city = 'Oslo'")
            assert await paris.request("GET", "/v1/dead") == {"count": 0, "letters": []}
            assert (await paris.request("POST", "/v1/dead/replay", {"numbers": [1]}))["count"] == 0
            assert (await root.request("POST", "/v1/dead/replay", {"numbers": [1]}))["count"] == 0  # pending already
            assert (await paris.request("GET", "/v1/events"))["events"] == []
            async with paris.subscriber("a.p") as mine:
                await until(lambda: s.broker.statistics.counts["hidden"] == 2)
                oslo = {"price": 3.0, "city": "Oslo"}
                await root.publish_many([PARIS, oslo])
                assert (await mine.next()).event == oslo
            assert (await root.request("POST", "/v1/subscribers/a.p/replay", {"first": 1}))["count"] == 0

    run(scenario())


def test_nobody_learns_whether_an_event_matches_what_is_hidden(tmp_path: Path) -> None:
    """Not by the rank of a probe among the nearest misses, not as one who gets what is unmatched, not by figures."""

    async def live(s: Scene, who: str) -> dict[str, Any]:
        given = {"authorization": f"Bearer {s.tokens[who]}"}
        async with s.http.stream("GET", "/v1/live", headers=given) as found:
            return dict(json.loads((await anext(found.aiter_lines())).removeprefix("data: ")))

    async def scenario() -> None:
        async with scene(tmp_path) as s, s.client("root") as root:
            await root.put_principal("ann", ["subscribe"])
            await root.put_principal("watcher", ["observe"])
            for who in ("ann", "watcher"):
                s.tokens[who] = (await root.create_token(who))["token"]
            near = [{"name": f"n{n}", "where": f"price > {n} AND qty > 1"} for n in range(20, 60)]
            await s.ask("other", "POST", "/v1/subscribers/b.x/subscriptions", near)
            far = {"where": "price > 900 AND qty = 7 AND city = 'Paris'"}
            await s.ask("ann", "PUT", "/v1/subscribers/ann/subscriptions/probe", far)
            for value in (10, 30, 70):
                body = {"event": {"price": value, "qty": 2}, "misses": 1}
                found = (await s.ask("ann", "POST", "/v1/try", body)).json()
                assert [one["id"] for one in found["misses"]] == ["ann/probe"]
                assert found["count"] == 0
            found = (await s.ask("root", "POST", "/v1/try", {**body, "event": {"price": 10, "qty": 2}})).json()
            assert found["misses"][0]["id"].startswith("b.x/")

            for who, name in (
                ("ann", "ann"),
                ("subscribe", "a.s"),
                ("observe", "a.o"),
                ("root", "r"),
                ("other", "b.y"),
            ):
                given = await s.ask("root", "PUT", f"/v1/subscribers/{name}?owner={who}", {"unmatched": True})
                assert given.status_code == 200
            assert await root.publish({"price": 25.0, "qty": 2}) == 1  # six of b.x match
            assert await root.publish({"price": 1.0}) == 2
            assert await root.publish({"price": 901.0, "qty": 7, "city": "Paris"}) == 3
            await until(s.broker.caught_up)
            got = {name: s.broker.mailbox(name).pending for name in ("ann", "a.s", "a.o", "r", "b.y", "b.x")}
            assert got == {"ann": 3, "a.s": 3, "a.o": 3, "r": 1, "b.y": 1, "b.x": 2}
            for name in got:
                await root.request("POST", f"/v1/subscribers/{name}/ack", {"seqs": [1, 2, 3]})
            await until(lambda: not s.broker.store.deliveries.unacknowledged())
            for name, count in got.items():
                found = await root.request("POST", f"/v1/subscribers/{name}/replay", {"first": 1})
                assert (name, found["count"]) == (name, count)

            counts = {
                who: [e["matches"] for e in (await live(s, who))["events"]] for who in ("root", "watcher", "observe")
            }
            assert counts == {"root": [5, 0, 41], "watcher": [5, 0, 41], "observe": [0, 0, 0]}
            s.broker.statistics.tick()
            for who, knows in (("root", True), ("watcher", True), ("observe", False)):
                figures = (await s.ask(who, "GET", "/v1/stats")).json()
                text = (await s.ask(who, "GET", "/metrics")).text
                streamed, history = (await live(s, who))["stats"], figures["history"]
                for name in ("delivered_per_second", "acked_per_second", "store_bytes", "disk_free"):
                    assert {name in line for line in [*history, streamed]} == {knows}
                for name in (
                    *("unmatched", "delivered", "pending", "oldest_pending_seconds", "kept"),
                    *("waiting_delayed", "problems"),
                ):
                    assert (name in figures) == (name in streamed) == knows
                    assert (re.search(rf"^hitbox_{name}(_total)? ", text, re.MULTILINE) is not None) == knows
                assert ("hitbox_commit_to_sent_seconds_count" in text) == knows
                assert ("hitbox_store_log_bytes" in text) == ("hitbox_disk_free_bytes" in text) == knows

    run(scenario())


def test_publish_outside_its_predicate_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene(tmp_path) as s, s.client("paris") as paris:
            assert await paris.publish(PARIS) == 1
            with pytest.raises(NotAllowed, match="may publish only events with city = 'Paris'"):
                await paris.publish(ROME)
            with pytest.raises(NotAllowed, match="event 1 of 2"):
                await paris.publish_many([PARIS, ROME])
            with pytest.raises(NotAllowed, match="event 300 of 301"):
                await paris.publish_many([PARIS] * 300 + [ROME])
            async with paris.subscriber("a.p") as mine:
                with pytest.raises(Refused, match="may publish only"):
                    await mine._request({"type": "publish", "items": [{"event": ROME}]})
            assert s.broker.store.events.table.next() == 2

    run(scenario())


async def _publish(socket: Any, request: int, *events: dict[str, Any]) -> dict[str, Any]:
    items = [{"event": event} for event in events]
    await socket.send(msgspec.json.encode({"type": "publish", "request": request, "items": items}).decode())
    return dict(msgspec.json.decode(await socket.recv()))


def test_rights_on_a_publish_socket(tmp_path: Path) -> None:
    """Each message is asked for, with the rights of that moment; who loses the role or the token is disconnected."""

    async def scenario() -> None:
        async with scene(tmp_path) as s, s.client("root") as root:
            made = await root.create_token("paris")
            s.tokens["mine"] = made["token"]
            async with _socket(s, "mine", "/v1/publish") as socket:
                assert (await _publish(socket, 1, PARIS))["first"] == 1
                for request, events in enumerate(([ROME], [PARIS, ROME], [PARIS] * 300 + [ROME]), 2):
                    found = await _publish(socket, request, *events)
                    assert (found["request"], found["status"]) == (request, 403)
                    assert "may publish only events with city = 'Paris'" in found["error"]["message"]
                await root.put_principal("paris", ROLES, names=NAMES, publish="city = 'Rome'")
                assert (await _publish(socket, 5, PARIS))["status"] == 403
                assert (await _publish(socket, 6, ROME))["first"] == 2
                await root.revoke_token(made["id"])
                with contextlib.suppress(ConnectionClosed):
                    await socket.send('{"type":"publish","items":[{"event":{"city":"Rome"}}]}')
                assert '"done"' not in "".join([str(one) async for one in _rest(socket)])
                assert (socket.close_code, socket.close_reason) == (1008, "the token was revoked")
            async with _socket(s, "paris", "/v1/publish") as socket:
                await root.put_principal("paris", ["subscribe"], names=NAMES)
                assert [one async for one in _rest(socket)] == []
                assert socket.close_code == 1008
            short = await root.create_token("publish", expires=time.time() + 1)
            s.tokens["short"] = short["token"]
            async with _socket(s, "short", "/v1/publish") as socket:
                assert [one async for one in _rest(socket)] == []
                assert (socket.close_code, socket.close_reason) == (1008, "the token has expired")
            assert s.broker.store.events.table.next() == 3

    run(scenario())


def test_a_client_whose_rights_change_uses_the_socket_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene(tmp_path) as s, s.client("root") as root, s.client("nothing") as client:
            with pytest.raises(NotAllowed, match="lacks the role"):
                await client.publish(PARIS)
            await root.put_principal("nothing", ["publish"])
            assert await client.publish(PARIS) == 1
            assert client._publishing._socket is not None

    run(scenario())


# ---- matching in groups


def test_see_in_a_group_of_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Durable and ephemeral subscribers and several priorities, all matched in one call."""
    groups: list[int] = []
    match = SubscriptionRegistry.match

    def counted(registry: SubscriptionRegistry, events: Any, *rest: Any) -> Any:
        groups.append(len(events))
        return match(registry, events, *rest)

    monkeypatch.setattr(SubscriptionRegistry, "match", counted)
    events = [{"price": n + 0.5, "city": ("Paris", "Rome")[n % 2]} for n in range(10)]
    nobodys = [{"price": -1.0, "city": "Rome"}, {"price": -2.0, "city": "Paris"}]
    of_paris = [event for event in events if event["city"] == "Paris"]

    async def scenario() -> None:
        async with (
            scene(tmp_path) as s,
            s.client("root") as root,
            s.client("paris") as paris,
            paris.subscriber("a.p", unmatched=True) as mine,
            paris.subscriber("a.live", ephemeral=True) as live,
            root.subscriber("z") as everything,
        ):
            for one in (mine, live, everything):
                await one.subscribe("high", "price > 5", priority=9)
                await one.subscribe("low", "price > 0", priority=1)
            await root.publish_many([*events, *nobodys])
            for one, wanted in ((mine, [*of_paris, nobodys[1]]), (live, of_paris), (everything, events)):
                got = [await one.next() for _ in wanted]
                assert sorted((d.event for d in got), key=str) == sorted(wanted, key=str)
                for d in got:
                    expected = ["high"] * (d.event["price"] > 5) + ["low"] * (d.event["price"] > 0)
                    assert d.subscriptions == expected
            assert groups == [12]
            await root.publish_many([PARIS, {"price": 9.0, "city": "Rome"}, PARIS])  # and nothing else waits
            assert [(await mine.next()).event, (await live.next()).event] == [PARIS, PARIS]

    run(scenario())


def test_an_event_that_see_cannot_decide_is_not_delivered(tmp_path: Path) -> None:
    """It fails alone, also if there is no subscription that could fail before: the broker goes on."""

    async def scenario() -> None:
        async with scene(tmp_path) as s, s.client("paris") as paris, paris.subscriber("a.p", unmatched=True):
            events = [{"city": "Paris"}, {"city": 5}, {"city": "Rome"}]  # the second is older than the schema
            batch = [
                AcceptedEvent(7 + n, event, None, b'{"event":{"city":"Paris"}}', 0, 0) for n, event in enumerate(events)
            ]
            rows, _ = await s.broker.dispatcher.run(batch)
            assert [row[2] for row in rows] == [7]
            assert s.broker.dispatcher.failed == [8]

    run(scenario())


def test_a_predicate_of_rights_that_takes_too_long_allows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The events of others are matched and delivered as always."""

    async def scenario() -> None:
        async with scene(tmp_path) as s, s.client("root") as root:
            monkeypatch.setattr(directory, "STEPS", 5)
            await root.put_principal(
                "slow", EVERYTHING.roles, see="city NOT LIKE '%a_c%d%'", publish="city LIKE '%a_b%'"
            )
            token = (await root.create_token("slow"))["token"]
            async with (
                Client(s.url, token=token) as client,
                client.subscriber("slow.s") as slow,
                root.subscriber("z") as everything,
            ):
                for one in (slow, everything):
                    await one.subscribe("s", "price > 0")
                long, short = {"price": 1.0, "city": "ab" * 10_000}, {"price": 2.0, "city": "axb"}
                await root.publish_many([long, short])
                assert [(await everything.next()).event, (await slow.next()).event] == [long, short]
                await client.publish(short)
                with pytest.raises(Refused, match="publish"):
                    await client.publish(long)

    run(scenario())


def test_the_live_filter_under_see(tmp_path: Path) -> None:
    """The filter chooses among what the caller may see; what it may not see takes no place among the latest."""

    async def first_line(s: Scene, **query: str) -> list[Any]:
        given = {"authorization": f"Bearer {s.tokens['paris']}"}
        async with (
            httpx.AsyncClient(base_url=s.url, headers=given) as http,
            http.stream("GET", "/v1/live", params=query) as live,
        ):
            line = await anext(live.aiter_lines())
        return [one["event"] for one in json.loads(line.removeprefix("data: "))["events"]]

    async def scenario() -> None:
        async with scene(tmp_path) as s, s.client("root") as root:
            await root.publish_many([PARIS, {"price": 5.0, "city": "Paris"}, *[ROME] * 50])
            await until(lambda: s.broker.statistics.event_count == 52)
            assert await first_line(s) == [PARIS, {"price": 5.0, "city": "Paris"}]
            assert await first_line(s, where="price < 3") == [PARIS]
            assert await first_line(s, where="city = 'Rome'") == []

    run(scenario())


def test_both_images_must_be_seen(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene(tmp_path) as s, s.client("root") as root, s.client("paris") as paris:
            mine = paris.subscriber("a.p", unmatched=True)
            async with mine:
                await mine.subscribe("all", "price > 0 OR OLD.price > 0")
                shown = [{"old": PARIS, "new": PARIS}, {"old": None, "new": PARIS}, {"old": PARIS, "new": None}]
                hidden = [{"old": ROME, "new": PARIS}, {"old": PARIS, "new": ROME}, {"old": ROME, "new": None}]
                await root.publish_many([*hidden, *shown])
                assert [(await mine.next()).event for _ in shown] == shown
                with pytest.raises(NotAllowed):
                    await paris.publish(hidden[0])

    run(scenario())


def test_see_and_the_schema(tmp_path: Path) -> None:
    """A schema that a predicate contradicts is refused; one that is set aside at start hides everything."""

    async def scenario() -> None:
        async with scene(tmp_path) as s, s.client("root") as root:
            less = {"attributes": Schema({"price": "float", "qty": "int"}).to_json()}
            with pytest.raises(Refused, match="principals contradict"):
                await root.request("PUT", "/v1/schema", less)
            with pytest.raises(Refused, match="in the predicate see"):
                await root.put_principal("x", [], see="colour = 'red'")
            with pytest.raises(Refused, match="in the predicate publish"):
                await root.put_principal("x", [], publish="price >")
            assert (await root.request("GET", "/v1/schema"))["attributes"] == SCHEMA.to_json()
        broker = s.broker
        assert broker.closing

    run(scenario())

    async def damaged() -> None:
        from hitbox.broker.store.store import Store

        store = Store(tmp_path)
        with store.transaction():
            store.principals.put([("paris", msgspec.json.encode(Principal(list(ROLES), NAMES, "", "colour = 'red'")))])
            store.principals.put([("observe", b"{}}")])
        store.close()
        async with serving(tmp_path) as (broker, _):
            assert len(broker.directory.problems) == 2
            assert not broker.directory.may_see("paris", PARIS)
            assert "paris" in broker.directory.hidden_from(PARIS)
            with pytest.raises(NotAllowed):
                broker.directory.rights("observe", "x")

    run(damaged())


@pytest.mark.parametrize("may", [True, False])
def test_a_publish_that_waits_for_a_new_schema_is_asked_for_its_right_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, may: bool
) -> None:
    """What its principal may publish has changed meanwhile, or stayed as it was."""
    started, release = threading.Event(), threading.Event()
    real = SubscriptionRegistry.with_schema

    def slow(registry: SubscriptionRegistry, schema: Schema) -> Any:
        started.set()
        assert release.wait(60)
        return real(registry, schema)

    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as stack:
            broker, url = await stack.enter_async_context(serving(tmp_path, principals=["root"]))
            root = await stack.enter_async_context(Client(url, token_of("root")))
            await root.put_principal("ann", ["publish"], publish="price < 100")
            token = (await root.create_token("ann"))["token"]
            monkeypatch.setattr(SubscriptionRegistry, "with_schema", slow)
            schema = {"attributes": Schema({"price": "float"}).to_json()}
            changed = asyncio.create_task(root.request("PUT", "/v1/schema", schema))
            await asyncio.to_thread(started.wait, 60)
            ann = await stack.enter_async_context(Client(url, token))
            published = asyncio.create_task(ann.publish({"price": 15.0}))
            await until(lambda: broker.waiting.events == 1)
            await root.put_principal("ann", ["publish"], publish=f"price < {20 if may else 10}")
            release.set()
            await changed
            if may:
                assert await published == 1
            else:
                with pytest.raises(Refused, match="may publish only events with"):
                    await published
            assert broker.store.events.table.rows() == may

    run(scenario())


# ---- tokens


def test_tokens_while_the_broker_runs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with scene(tmp_path) as s, s.client("root") as root:
            made = await root.create_token("paris", note="for the test")
            text = made["token"]
            async with Client(s.url, text) as client, client.subscriber("a.p") as mine:
                assert (await client.whoami())["see"] == SEE
                await root.revoke_token(made["id"])
                with pytest.raises(Refused, match="revoked"):
                    await mine.next()
                with pytest.raises(NotAllowed, match="valid token"):
                    await client.whoami()
            with pytest.raises(BadRequest, match="would have expired already"):
                await root.create_token("paris", expires=time.time() - 1)
            soon = await root.create_token("paris", expires=time.time() + 1)
            async with Client(s.url, soon["token"]) as client, client.subscriber("a.p") as mine:
                with pytest.raises(Refused, match="expired"):
                    await mine.next()
                with pytest.raises(NotAllowed, match="expired"):
                    await client.whoami()
            few = await root.create_token("paris", roles=["observe"])
            async with Client(s.url, few["token"]) as client:
                assert (await client.whoami())["roles"] == ["observe"]
                with pytest.raises(NotAllowed):
                    await client.publish(PARIS)
                await root.limit_token(few["id"], roles=["publish"])  # a limit is never lifted
                with pytest.raises(NotAllowed):
                    await client.whoami()
            listed = await root.tokens()
            everything = str(listed) + str(await root.principals()) + caplog.text
            for secret in (*s.tokens.values(), text, soon["token"], few["token"]):
                assert secret[20:] not in everything
            with pytest.raises(Refused, match="last unlimited manager"):
                await root.revoke_token((await root.whoami())["token"])
            with pytest.raises(Refused, match="last unlimited manager"):
                await root.put_principal("root", ["observe"])
            with pytest.raises(Refused, match="last unlimited manager"):
                await root.remove_principal("root")
            with pytest.raises(Refused, match="owns 1 subscribers"):
                await root.remove_principal("paris")
            await root.remove_principal("other")
            assert (await s.ask("other", "GET", "/v1/whoami")).status_code == 401
        stored = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
        for secret in s.tokens.values():
            assert secret[20:].encode() not in stored
        async with serving(tmp_path) as (_, url):  # all of it survives a restart
            async with Client(url, s.tokens["paris"]) as client:
                assert (await client.whoami())["see"] == SEE
            async with Client(url, text) as client:
                with pytest.raises(NotAllowed):
                    await client.whoami()
            async with Client(url) as client:
                with pytest.raises(NotAllowed):
                    await client.whoami()

    run(scenario())


def test_the_first_principal(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), Client(url) as local:
            assert (await local.whoami())["name"] == "local"
            with pytest.raises(Refused, match="comes with its token"):
                await local.put_principal("ann", ["publish"])
            with pytest.raises(Refused, match="does not expire"):
                await local.create_token("ann", expires=time.time() + 9)
            with pytest.raises(Refused, match="choose another name"):
                await local.create_token("local")
            async with local.subscriber("old") as old:
                await local.create_token("ann")
                with pytest.raises(Refused, match="token is needed"):
                    await old.next()
            with pytest.raises(NotAllowed):
                await local.whoami()
            broker.directory.tokens.clear()
            with pytest.raises(NotAllowed):  # nothing opens the door again
                await local.whoami()

    run(scenario())


def test_two_tokens_and_tokens_in_addresses(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene(tmp_path) as s:
            token = s.tokens["root"]
            for query in (f"token={token}", f"Access_Token={token}", f"%74oken={token}"):
                found = await s.ask("", "GET", f"/v1/whoami?{query}")
                assert found.status_code == 400
                assert token not in found.text
            async with httpx.AsyncClient(base_url=s.url) as http:
                twice = [("Authorization", f"Bearer {token}"), ("AUTHORIZATION", "Bearer x")]
                assert (await http.get("/v1/whoami", headers=twice)).status_code == 400
                for name in ("AUTHORIZATION", "authorization"):
                    assert (await http.get("/v1/whoami", headers={name: f"bearer {token}"})).status_code == 200
                for bad in (
                    token[:-1],
                    token + "x",
                    token.upper(),
                    "hb__",
                    "é",
                    "x" * 5000,
                    token.replace("_", "-"),
                ):
                    sent = {"authorization": f"Bearer {bad}".encode()}
                    assert (await http.get("/v1/whoami", headers=sent)).status_code == 401  # type: ignore[arg-type]
            url = "ws" + s.url[4:] + "/v1/connect"
            given = {"authorization": f"Bearer {token}"}
            with pytest.raises(Exception, match="400"):
                await connect(url, additional_headers=given, subprotocols=["hitbox.v1", f"bearer.{token}"])  # type: ignore[list-item]
            with pytest.raises(Exception, match="400"):
                await connect(url, subprotocols=["bearer.x", f"bearer.{token}"])  # type: ignore[list-item]

    run(scenario())


def test_a_token_revoked_during_a_long_request(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene(tmp_path) as s, s.client("root") as root:
            made = await root.create_token("publish")
            sent = asyncio.Event()

            async def body() -> AsyncIterator[bytes]:
                yield b'[{"event": {"price": 1.0}}'
                sent.set()
                while made["id"] in s.broker.directory.tokens:
                    await asyncio.sleep(0.01)
                yield b"]"

            headers = {"authorization": f"Bearer {made['token']}", "content-type": "application/json"}
            async with httpx.AsyncClient(base_url=s.url) as http:
                task = asyncio.create_task(http.post("/v1/events", content=body(), headers=headers))
                await sent.wait()
                await root.revoke_token(made["id"])
                assert (await task).status_code == 401
            assert s.broker.store.events.table.next() == 1

    run(scenario())


def test_a_connection_whose_token_expires_looks_at_no_other(tmp_path: Path) -> None:
    looks = 0

    class Counting(dict[str, Any]):
        def get(self, *args: Any) -> Any:
            nonlocal looks
            looks += 1
            return super().get(*args)

    async def scenario() -> None:
        async with scene(tmp_path) as s, s.client("root") as root, contextlib.AsyncExitStack() as stack:
            s.tokens["late"] = (await root.create_token("publish", expires=time.time() + 1000))["token"]
            s.broker.directory.tokens = Counting(s.broker.directory.tokens)
            costs = []
            for _ in range(30):
                before = looks
                await stack.enter_async_context(_socket(s, "late", "/v1/publish"))
                costs.append(looks - before)
            assert max(costs) <= costs[0]
            s.tokens["soon"] = (await root.create_token("publish", expires=time.time() + 1))["token"]
            async with _socket(s, "soon", "/v1/publish") as soon:
                await soon.wait_closed()
                assert (soon.close_code, soon.close_reason) == (1008, "the token has expired")
            assert len(s.broker.directory._watched) == 30

    run(scenario())


WAYS = ("http", "delayed", "cloudevents", "/v1/publish", "/v1/connect")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("change", ["token", "role", "predicate", "other"])
def test_rights_that_change_during_the_check_of_a_publish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, change: str
) -> None:
    """Many events are checked in a thread. A change that was answered meanwhile holds for them."""
    started, release = threading.Event(), threading.Event()
    real = Broker.check

    def slow(broker: Broker, items: Any) -> list[bytes]:
        started.set()
        assert release.wait(60)
        return real(broker, items)

    events: list[dict[str, Any]] = [{"event": PARIS}] * 300
    kind, items = "application/json", events
    if way == "delayed":
        items = [{**one, "delay_seconds": 60} for one in events]
    if way == "cloudevents":
        kind = "application/cloudevents-batch+json"
        items = [{"specversion": "1.0", "id": f"{n}", "source": "/x", "type": "t", "data": PARIS} for n in range(300)]

    async def send(s: Scene, socket: Any) -> int:
        """The status; 0: the connection was closed."""
        if not way.startswith("/"):
            answer = await s.ask("ann", "POST", "/v1/events", items, **{"content-type": kind})
            return answer.status_code
        try:
            found = await _publish(socket, 1, *[PARIS] * 300)
        except ConnectionClosed:
            return 0
        return 201 if found["type"] == "done" else 403

    async def scenario() -> None:
        async with scene(tmp_path) as s, s.client("root") as root, contextlib.AsyncExitStack() as stack:
            await root.put_principal("ann", ["publish", "subscribe"], publish="price > 0")
            made = await root.create_token("ann")
            s.tokens["ann"] = made["token"]
            socket = None
            if way.startswith("/"):
                socket = await stack.enter_async_context(_socket(s, "ann", way))
            if way == "/v1/connect":
                await socket.send('{"type": "hello", "subscriber": "ann"}')
                await socket.recv()
            monkeypatch.setattr(Broker, "check", slow)
            task = asyncio.create_task(send(s, socket))
            await asyncio.to_thread(started.wait, 60)
            if change == "token":
                await root.revoke_token(made["id"])
            elif change == "role":
                await root.put_principal("ann", ["observe"])
            elif change == "predicate":
                await root.put_principal("ann", ["publish", "subscribe"], publish="price > 100")
            else:
                await root.put_principal("bob", ["publish"], publish="price > 100")
            release.set()
            status = await task
            if change == "other":
                assert status == 201
            else:
                assert status in (0, 401, 403)
            await s.broker.writer.submit(lambda: None)  # what was accepted by mistake would be stored before
            count = s.broker.store.events.table.rows() + s.broker.store.delayed.table.rows()
            assert count == (300 if change == "other" else 0)

    run(scenario())


@pytest.mark.parametrize(
    "names", ["", "a*b", "**", "/", "a/b", "a/**", "../*", "é*", "a" * 102 + "*", "*" * 50, "a\n", "\u0430*"]
)
def test_bad_patterns(names: str) -> None:
    with pytest.raises(BadRequest, match="the names of a principal"):
        check_principal(Principal([], names))


@pytest.mark.parametrize(
    ("names", "covered", "not_covered"),
    [
        ("*", ["a", "b.c"], []),
        ("team-a/*", ["team-a"], ["team-a.x", "team-ab", "team", "Team-a"]),
        ("team-a.*", ["team-a.", "team-a.x"], ["team-a", "team-b.x", "xteam-a.x"]),
        ("ann", ["ann"], ["anna", "an", "Ann"]),
    ],
)
def test_patterns(names: str, covered: list[str], not_covered: list[str]) -> None:
    principal = check_principal(Principal([], names))
    assert all(principal.covers(name) for name in covered)
    assert not any(principal.covers(name) for name in not_covered)


@pytest.mark.parametrize(
    "text", ["wrong", "x" * 10_000, "hb_", "hb_{id}_short", "hb_{other}_{secret}", "hb_{id}_{wrong}"]
)
def test_a_wrong_token_is_refused_without_looking_at_the_others(tmp_path: Path, text: str) -> None:
    """However many there are: each costs one comparison, which takes as long as any other."""

    class Counted(dict[str, Any]):
        asked = 0

        def get(self, *key: Any) -> Any:
            self.asked += 1
            return super().get(*key)

        def __iter__(self) -> Any:
            raise AssertionError("the tokens are walked through")

        values = items = keys = __iter__

    async def scenario() -> None:
        async with serving(tmp_path, principals=["ann", "bob"]) as (broker, _):
            directory = broker.directory
            good = token_of("ann")
            id, secret, before = good[3:19], good[20:], directory.tokens
            directory.tokens = known = Counted(before)
            assert directory.caller(good).name == "ann"
            assert known.asked
            known.asked = 0
            with pytest.raises(NotAllowed, match="a valid token is needed"):
                directory.caller(text.format(id=id, other="0" * 16, secret=secret, wrong="y" * 43))
            assert known.asked <= 1
            directory.tokens = before

    run(scenario())


CLAIMS: dict[str, tuple[str, str, str, Any]] = {
    "new": ("ann", "PUT", "/v1/subscribers/fresh", {}),
    "unowned": ("ann", "PUT", "/v1/subscribers/old", {}),
    "one": ("ann", "PUT", "/v1/subscribers/fresh/subscriptions/s", {"where": "price > 0"}),
    "many": ("ann", "POST", "/v1/subscribers/old/subscriptions", [{"name": "s", "where": "price > 0"}]),
    "webhook": ("ann", "PUT", "/v1/subscribers/old/webhook", {"url": "https://192.0.2.1.example/"}),
    "hand-over": ("root", "PUT", "/v1/subscribers/old?owner=ann", {}),
    "hello": ("ann", "hello", "fresh", []),
    "hello-put": ("ann", "hello", "fresh", [{"name": "s", "where": "price > 0"}]),
}


@pytest.mark.parametrize("first", ["claim", "removal"])
@pytest.mark.parametrize("claim", CLAIMS)
def test_no_subscriber_belongs_to_a_principal_that_was_removed(tmp_path: Path, claim: str, first: str) -> None:
    """Both wait behind another change, and take place in their order."""
    who, method, path, body = CLAIMS[claim]

    async def ask(s: Scene) -> bool:
        if method != "hello":
            return (await s.ask(who, method, path, body)).is_success
        async with _socket(s, "ann", "/v1/connect") as socket:
            await socket.send(json.dumps({"type": "hello", "subscriber": path, "put": body}))
            return bool(json.loads(await socket.recv())["type"] == "welcome")

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), httpx.AsyncClient(base_url=url) as http:
            s = Scene(broker, url, {}, http)
            await s.ask("", "PUT", "/v1/subscribers/old", {})
            s.tokens["root"] = (await s.ask("", "POST", "/v1/tokens", {"principal": "root"})).json()["token"]
            await s.ask("root", "PUT", "/v1/principals/ann", {"roles": ["subscribe"]})
            s.tokens["ann"] = (await s.ask("root", "POST", "/v1/tokens", {"principal": "ann"})).json()["token"]
            steps = [ask(s), s.ask("root", "DELETE", "/v1/principals/ann")]
            tasks: list[asyncio.Task[Any]] = []
            async with broker.change_barrier.exclusive():
                for step in steps if first == "claim" else reversed(steps):
                    tasks.append(asyncio.create_task(step))
                    await until(lambda: len(broker._changes) == len(tasks) or tasks[-1].done())
            found = await asyncio.gather(*tasks)
            claimed, removed = found if first == "claim" else reversed(found)
            assert (claimed, removed.status_code) == ((True, 409) if first == "claim" else (False, 204))
            owners = {"ann"} if claimed else set()
            assert {one.owner for one in broker.registry.by_name.values()} - {""} == owners
            assert {owner for _, owner, _ in broker.store.subscribers.owners.scan()} == owners

    run(scenario())


def test_an_unowned_subscriber_belongs_to_the_first_who_uses_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url):
            async with Client(url) as local:
                async with local.subscriber("a.p", auto=False) as old:
                    await old.subscribe("all", "price > 0")
                await local.publish_many([ROME, PARIS])
                root = (await local.create_token("root"))["token"]
            async with Client(url, root) as manager:
                await manager.put_principal("paris", ["subscribe"], see=SEE)
                await manager.put_principal("late", ["subscribe"])
                token = (await manager.create_token("paris"))["token"]
                late = (await manager.create_token("late"))["token"]
            async with Client(url, token) as paris, paris.subscriber("a.p") as mine:
                assert (await mine.next()).event == PARIS
            async with Client(url, late) as second:
                with pytest.raises(Refused, match="belongs to another"):
                    async with second.subscriber("a.p"):
                        pass
            assert broker.subscriber("a.p").owner == "paris"
        async with serving(tmp_path) as (broker, _):
            assert broker.subscriber("a.p").owner == "paris"
            assert "a.p" in metrics.exposition(broker, lambda one: True, True).decode()

    run(scenario())


def test_the_example_of_the_documentation(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "broker.md").read_text()
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "give_rights" in block]
    names: dict[str, Any] = {"hitbox": hitbox, "time": time}
    exec(code, names)

    async def scenario() -> None:
        async with scene(tmp_path) as s, s.client("root") as root, await names["give_rights"](root) as sensors:
            assert await sensors.publish(PARIS) == 1
            with pytest.raises(NotAllowed, match="may publish only"):
                await sensors.publish(ROME)
            assert (await sensors.whoami())["roles"] == ["publish"]

    run(scenario())


def test_the_commands(tmp_path: Path) -> None:
    """`hitbox admin principals` and `tokens` on a running broker."""
    runner = CliRunner()

    def hitbox_admin(*args: str, token: str = "") -> list[Any]:
        found = runner.invoke(cli.app, ["admin", *args], env={"HITBOX_URL": url, "HITBOX_TOKEN": token})
        assert found.exit_code == 0, found.output
        return found.output.splitlines()

    async def scenario() -> None:
        nonlocal url
        async with serving(tmp_path) as (broker, url):
            await asyncio.to_thread(steps)
            assert not [one for one in broker.directory.tokens.values() if one.principal == "ann"]

    def steps() -> None:
        (root,) = hitbox_admin("tokens", "create", "ops")
        rights = ("--role", "subscribe", "--role", "publish", "--names", "ann.*", "--see", "price > 1")
        hitbox_admin("principals", "put", "ann", *rights, token=root)
        (ann,) = hitbox_admin("tokens", "create", "ann", "--days", "1", "--role", "publish", token=root)
        listed = json.loads("".join(hitbox_admin("tokens", "list", "--json", token=root)))["tokens"]
        (mine,) = [one for one in listed if one["principal"] == "ann"]
        assert mine["roles"] == ["publish"]
        assert ann not in str(listed)
        head, row, _, total = hitbox_admin("tokens", "list", token=root)
        assert head.split() == ["id", "principal", "roles", "expires", "note"]
        assert row.split()[:3] == [mine["id"], "ann", "publish"]
        assert total == "2 tokens"

        def rights_of_ann() -> Any:
            listed = json.loads("".join(hitbox_admin("principals", "list", "--json", token=root)))["principals"]
            return next(one for one in listed if one["name"] == "ann")

        before = rights_of_ann()
        assert (before["names"], before["see"], before["tokens"]) == ("ann.*", "price > 1", 1)
        said = hitbox_admin("principals", "put", "ann", "--publish-rate", "100", token=root)
        assert [line.split(maxsplit=1) for line in said if line.startswith(("names", "see", "publish_rate"))] == [
            ["names", "ann.*"], ["see", "price > 1"], ["publish_rate", "100.0"]
        ]  # fmt: skip
        assert rights_of_ann() == {**before, "publish_rate": 100}
        hitbox_admin("principals", "put", "ann", "--role", "", "--see", "", token=root)
        assert rights_of_ann() == {**before, "publish_rate": 100, "roles": [], "see": ""}
        assert hitbox_admin("principals", "list", token=root)[-1] == "2 principals"
        limited = "".join(hitbox_admin("tokens", "limit", mine["id"], "--days", "0.5", "--json", token=root))
        assert json.loads(limited)["expires"] < mine["expires"]
        (said,) = hitbox_admin("tokens", "revoke", mine["id"], token=root)
        assert said == f"revoked the token {mine['id']}; nobody gets in with it any more"
        assert hitbox_admin("principals", "delete", "ann", token=root) == ["removed ann and its tokens"]
        refused = runner.invoke(cli.app, ["admin", "stats"], env={"HITBOX_URL": url, "HITBOX_TOKEN": ann})
        assert refused.exit_code == 2
        assert ann not in refused.output

    url = ""
    run(scenario())


def test_repair_keeps_the_door_closed(tmp_path: Path) -> None:
    """Principals and tokens survive a repair; if they are lost, the broker still asks for a token."""
    from hitbox.broker.store.store import Store
    from hitbox.broker.upkeep import repair

    async def make() -> None:
        async with scene(tmp_path) as s:
            tokens.update(s.tokens)
            assert (await s.ask("paris", "PUT", "/v1/subscribers/a.p", {})).status_code == 200

    tokens: dict[str, str] = {}
    run(make())
    assert repair.check(tmp_path) == []
    kept = repair.repair(tmp_path).kept
    assert (kept["principals"], kept["tokens"], kept["owners"]) == (8, 8, 1)

    async def look() -> None:
        async with serving(tmp_path) as (broker, url), Client(url, tokens["paris"]) as client:
            assert (await client.whoami())["see"] == SEE
            assert broker.subscriber("a.p").owner == "paris"

    run(look())
    store = Store(tmp_path)
    for table in ("principals", "tokens"):
        store.db.execute(f"UPDATE {table} SET settings = x'00'")
    store.close()
    with pytest.raises(StoreDamaged):
        Broker(tmp_path)
    done = repair.repair(tmp_path)
    assert any("check the rights" in note for note in done.notes)

    async def closed() -> None:
        async with serving(tmp_path) as (_, url), Client(url) as client:
            with pytest.raises(NotAllowed):
                await client.whoami()

    run(closed())


def test_an_export_has_no_principals(tmp_path: Path) -> None:
    """A snapshot holds subscriptions only; imported ones belong to nobody until somebody uses them."""
    from hitbox.broker.upkeep import import_export

    async def make() -> None:
        async with scene(tmp_path / "one") as s:
            assert (
                await s.ask("paris", "PUT", "/v1/subscribers/a.p/subscriptions/s", {"where": "price > 0"})
            ).is_success

    run(make())
    import_export.export(tmp_path / "one", tmp_path / "snapshot")
    stored = b"".join(path.read_bytes() for path in (tmp_path / "snapshot").rglob("*") if path.is_file())
    assert SEE.encode() not in stored
    import_export.load(tmp_path / "two", tmp_path / "snapshot")

    async def look() -> None:
        async with serving(tmp_path / "two") as (broker, _):
            assert not broker.directory.protected
            assert broker.subscriber("a.p").owner == ""

    run(look())


@pytest.mark.exhaustive  # `make test` has crashes of the simulator
def test_what_was_confirmed_survives_a_kill(tmp_path: Path) -> None:
    """A token that was created works after `kill -9`, and one that was revoked does not."""
    tokens: list[str] = []
    for turn in range(2):
        command = ["serve", "--data", str(tmp_path), "--port", "0", *(["--schema", "price:float"] if not turn else [])]
        process = subprocess.Popen([sys.executable, "-m", "hitbox", *command], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found
        try:
            if not turn:
                with Client.sync(found[0]) as first:
                    tokens.append(first.create_token("root")["token"])
            with Client.sync(found[0], tokens[0]) as root:
                for old in tokens[1:]:
                    with Client.sync(found[0], old) as client, pytest.raises(NotAllowed):
                        client.whoami()
                root.put_principal("ann", ["publish"], publish=f"price > {turn}")
                made = root.create_token("ann")
                with Client.sync(found[0], made["token"]) as client:
                    assert client.whoami()["publish"] == f"price > {turn}"
                root.revoke_token(made["id"])
                tokens.append(made["token"])
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def test_an_event_stream_shows_what_its_caller_may_see(tmp_path: Path) -> None:
    """Also what was matched before the rights changed; a revoked token ends the stream."""

    async def scenario() -> None:
        async with scene(tmp_path) as s, s.client("root") as root:
            put = [msgspec.convert({"name": "s", "where": "price > 0"}, websocket.Subscription)]
            await s.broker.subscribe("a.own", put, owner="subscribe")
            await root.publish_many([PARIS, ROME, PARIS])
            await until(lambda: s.broker.mailbox("a.own").pending == 3)
            await root.put_principal("subscribe", ["subscribe"], names=NAMES, see=SEE)
            path, given = "/v1/subscribers/a.own/deliveries", {"authorization": f"Bearer {s.tokens['subscribe']}"}
            async with s.http.stream("GET", path, headers=given) as found:
                lines = found.aiter_lines()
                ids = [line async for line in _first(lines, "id: ", 2)]
                assert [id.rpartition("-")[2] for id in ids] == ["1", "3"]
                await until(lambda: s.broker.statistics.counts["hidden"] == 1)
                await root.revoke_token(s.tokens["subscribe"].split("_")[1])
                assert [line async for line in lines if line.startswith("data")][-1] == (
                    'data: {"code":1008,"reason":"the token was revoked"}'
                )
            assert (await s.ask("manage", "GET", path)).status_code == 403
            assert (await s.ask("other", "POST", "/v1/subscribers/a.own/ack", {"seqs": [1]})).status_code == 403

    run(scenario())


async def _first(lines: AsyncIterator[str], start: str, count: int) -> AsyncIterator[str]:
    async for line in lines:
        if line.startswith(start):
            yield line
            count -= 1
            if not count:
                return
