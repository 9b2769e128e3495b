"""Webhooks: deliveries by POST, to a real server on a socket."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import logging
import re
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from email.utils import formatdate
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpcore
import httpx
import pytest
from httpcore._backends.anyio import AnyIOStream

from hitbox.broker import metrics
from hitbox.broker.access.principals import EVERYTHING
from hitbox.broker.broker import Broker
from hitbox.broker.delivery import target_address, webhooks
from hitbox.broker.delivery.target_address import is_public
from hitbox.broker.events.published_event import PublishedEvent
from hitbox.broker.settings import Options
from hitbox.broker.subscribers.webhook import Secret, Webhook, WebhookSettings, signed_headers
from hitbox.client import Client
from support.broker_kit import Listener, item, serving, sub, until
from support.certificates import Authority
from support.webhook_target import OK, answer, target

PAGE = (Path(__file__).parents[3] / "docs" / "broker.md").read_text()
ANN = "/v1/subscribers/ann"
HOOK = ANN + "/webhook"
SECRET = "whsec_" + base64.b64encode(b"a" * 24).decode()
OTHER = "whsec_" + base64.b64encode(b"b" * 64).decode()
QUICK = Options(backoff_seconds=0.01, max_backoff_seconds=0.02, max_tries=3)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 120))


def is_genuine(headers: dict[str, str], body: bytes, secret: str) -> bool:
    """The function of docs/broker.md."""
    (code,) = re.findall(r"```python\n(def is_genuine.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {"base64": base64, "hmac": hmac, "time": time}
    exec(code, names)
    return bool(names["is_genuine"](headers, body, secret))


def private(path: Path, **settings: Any) -> Any:
    return serving(path, allow_private_webhooks=True, **settings)


async def prepare(broker: Broker, options: Options = QUICK) -> None:
    await broker.put_subscriber("ann", options)
    await broker.subscribe("ann", [sub("s", "qty > 0", 7)])


async def publish(broker: Broker, count: int = 1) -> int:
    return await broker.publish([item(qty=1)] * count)


def pending(broker: Broker) -> int:
    return broker.mailbox("ann").pending


def shown(broker: Broker) -> dict[str, Any]:
    found = broker.mailbox("ann").describe()["webhook"]
    assert isinstance(found, dict)
    return found


def states(broker: Broker) -> dict[str, int]:
    """How many webhooks are in each state, in /metrics."""
    text = metrics.exposition(broker, lambda _: True, True).decode()
    return {state: int(float(n)) for state, n in re.findall(r'^hitbox_webhooks\{state="(\w+)"\} (\S+)$', text, re.M)}


def test_deliveries_are_posted_signed_and_acknowledged(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with private(tmp_path) as (broker, url), target() as there, httpx.AsyncClient(base_url=url) as http:
            await prepare(broker)
            await publish(broker, 5)  # they wait on disk
            made = await http.put(HOOK, json={"url": there.url(), "batch": 3})
            assert made.status_code == 200
            secret = made.json()["secret"]
            await until(lambda: pending(broker) == 0)
            await publish(broker)
            await until(lambda: there.seqs() == [1, 2, 3, 4, 5, 6] and pending(broker) == 0)
            assert [len(one.deliveries) for one in there.got] == [3, 2, 1]
            first = there.got[0]
            assert first.line == "POST /hook?x=1 HTTP/1.1"
            assert first.headers["content-type"] == "application/json"
            assert all(is_genuine(one.headers, one.body, secret) for one in there.got)
            assert not is_genuine(first.headers, first.body + b" ", secret)
            assert all(one.is_signed_with(secret) and not one.is_signed_with(OTHER) for one in there.got)
            assert len({one.headers["webhook-id"] for one in there.got}) == 3
            delivery = first.deliveries[0]
            assert (delivery["event"], delivery["level"], delivery["attempt"]) == ({"qty": 1}, 7, 1)
            assert there.connections == 1
            text = metrics.exposition(broker, lambda _: True, True).decode()
            assert 'hitbox_webhook_requests_total{outcome="ok"} 3.0' in text
            assert "hitbox_webhook_time_seconds_count 3.0" in text

    run(scenario())


def test_secrets_are_shown_once_and_rotate(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def scenario() -> None:
        async with target() as there:
            async with private(tmp_path) as (broker, url), httpx.AsyncClient(base_url=url) as http:
                await prepare(broker)
                there.answers = [answer(500)]
                made = await http.put(HOOK, json={"url": there.url(), "secret": SECRET})
                assert "secret" not in made.json()
                await publish(broker)
                await until(lambda: len(there.got) == 2)
                assert there.got[0].headers["webhook-id"] == there.got[1].headers["webhook-id"]
                again = await http.put(HOOK, json={"url": there.url(), "secret": OTHER, "overlap_seconds": 1000})
                assert again.json()["secrets"] == 2
                await publish(broker)
                await until(lambda: len(there.got) == 3)
                assert there.got[2].is_signed_with(SECRET)
                assert there.got[2].is_signed_with(OTHER)
                kept = await http.put(HOOK, json={"url": there.url(), "batch": 7})  # the secrets stay
                assert (kept.json()["secrets"], kept.json()["batch"]) == (2, 7)
                for found in (await http.get(HOOK), await http.get(ANN), await http.get("/v1/subscribers"), kept):
                    assert "whsec_" not in found.text
            async with private(tmp_path) as (broker, url), httpx.AsyncClient(base_url=url) as http:  # after a restart
                await publish(broker)
                await until(lambda: len(there.got) == 4)
                assert there.got[3].is_signed_with(SECRET)
                assert there.got[3].is_signed_with(OTHER)
                new = (await http.put(HOOK, json={"url": there.url(), "secret": "new", "overlap_seconds": 0})).json()
                assert new["secrets"] == 1
                await publish(broker)
                await until(lambda: len(there.got) == 5)
                assert there.got[4].is_signed_with(new["secret"])
                assert not there.got[4].is_signed_with(OTHER)
                assert "whsec_" not in repr(broker.subscriber("ann"))
        assert "whsec_" not in caplog.text

    run(scenario())


def test_the_signature_is_that_of_the_standards_own_library() -> None:
    """What standardwebhooks 1.1.0 from the package index signs for the same id, time, body and secret."""
    webhook = Webhook("https://example.com", [Secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")])
    headers = signed_headers(webhook, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330.9, b'{"test": 2432232314}')
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_a_secret_ends_with_its_overlap() -> None:
    hook, _ = WebhookSettings("https://example.com", SECRET).changed(None, 100.0)
    hook, _ = WebhookSettings("https://example.com", OTHER, overlap_seconds=10).changed(hook, 100.0)
    assert [one.text for one in hook.valid_secrets(109.0)] == [OTHER, SECRET]
    assert [one.text for one in hook.valid_secrets(110.0)] == [OTHER]
    again, made = WebhookSettings("https://example.com", OTHER).changed(hook, 105.0)  # the same one: nothing rotates
    assert (again.secrets, made) == ([Secret(OTHER), Secret(SECRET, 110.0)], "")


@pytest.mark.parametrize("status", [300, 302, 404, 500])
def test_other_answers_are_tried_again_and_become_dead_letters(tmp_path: Path, status: int) -> None:
    async def scenario() -> None:
        async with private(tmp_path) as (broker, url), target() as there, Client(url) as client:
            await prepare(broker)
            bad = answer(status, location=there.url() + "&followed")
            there.answers = [bad, bad, bad]
            await broker.put_webhook("ann", WebhookSettings(there.url()))
            assert shown(broker)["requests"] == 0
            await publish(broker)
            await until(lambda: broker.statistics.counts["dead"] == 1)
            assert [one.deliveries[0]["attempt"] for one in there.got] == [1, 2, 3]
            assert shown(broker)["requests"] == 3
            assert not any("followed" in one.line for one in there.got)
            (letter,) = (await client.request("GET", "/v1/dead"))["letters"]
            assert f"webhook: the target answered {status}" in letter["reason"]
            assert str(status) in shown(broker)["problem"]
            assert states(broker) == {"ok": 0, "failing": 1, "disabled": 0}
            await client.request("POST", "/v1/dead/replay", {"numbers": [letter["number"]]})
            await until(lambda: pending(broker) == 0 and len(there.got) == 4)
            assert shown(broker)["problem"] == ""
            assert states(broker) == {"ok": 1, "failing": 0, "disabled": 0}

    run(scenario())


def test_no_answer_a_broken_one_and_none_listening(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with private(tmp_path) as (broker, _), target() as there:
            await prepare(broker, Options(visibility_seconds=0.2, backoff_seconds=0.01, max_tries=100))
            there.answers = [None, b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab", OK]
            await broker.put_webhook("ann", WebhookSettings(there.url()))
            await publish(broker)
            counts = broker.statistics.webhook_requests
            await until(lambda: counts["late"] >= 2)  # no answer; an empty one leaves the connection open
            there.default = OK
            await until(lambda: pending(broker) == 0)
            with socket.socket() as unused:
                unused.bind(("127.0.0.1", 0))
                nobody = f"http://127.0.0.1:{unused.getsockname()[1]}/"
                await broker.put_webhook("ann", WebhookSettings(nobody))
                await publish(broker)
                await until(lambda: counts["unreachable"] >= 2)
            assert "no connection" in shown(broker)["problem"]
            await broker.put_webhook("ann", WebhookSettings(there.url()))
            await until(lambda: pending(broker) == 0)

    run(scenario())


def test_a_target_does_not_choose_how_long_the_reason_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An error may repeat what the target sent. It is kept with each dead letter."""

    async def scenario() -> None:
        async with private(tmp_path) as (broker, _), target() as there:
            await prepare(broker, Options(max_tries=1))
            there.answers = [b"HTTP/" + b"x" * 50_000 + b"\r\n\r\n"]
            await broker.put_webhook("ann", WebhookSettings(there.url()))
            await publish(broker, 3)
            await until(lambda: broker.statistics.counts["dead"] == 3)
            reasons = [reason for (reason,) in broker.store.reader.read("SELECT reason FROM dead")]
            assert len(reasons) == 3
            assert all(one.startswith("webhook: no valid answer: illegal status line") for one in reasons)
            assert max(len(text) for text in (*reasons, shown(broker)["problem"], caplog.text)) < 500
            assert webhooks.shortened(httpcore.ReadError(OSError())) == "ReadError"  # it has no text

    run(scenario())


def test_an_endless_answer_is_not_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with private(tmp_path) as (broker, _), target() as there:
            await prepare(broker)
            size = 50 * 2**20
            there.answers = [b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + b"x" * size]
            await broker.put_webhook("ann", WebhookSettings(there.url()))
            await publish(broker)
            await until(lambda: pending(broker) == 0)
            assert broker.statistics.webhook_requests["ok"] == 1
            await publish(broker)
            await until(lambda: pending(broker) == 0)
            assert there.connections == 2

    run(scenario())


def test_answers_before_the_answer_hold_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target sends `100 Continue` as long as it is read: others get a turn after every few, and the request fails."""
    turns, reads = 0, list[tuple[int, int]]()
    read = AnyIOStream.read

    async def watched(self: Any, max_bytes: int, timeout: float | None = None) -> bytes:
        data = await read(self, max_bytes, timeout)
        reads.append((len(data), turns))
        return data

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(AnyIOStream, "read", watched)

    async def scenario() -> None:
        async with private(tmp_path) as (broker, _), target() as there:
            await prepare(broker)
            there.answers = [b"HTTP/1.1 100 Continue\r\n\r\n" * 20_000]
            await broker.put_webhook("ann", WebhookSettings(there.url()))
            others = asyncio.create_task(take_turns())
            await publish(broker)
            await until(lambda: broker.statistics.webhook_requests["unreachable"] == 1)
            others.cancel()
            sizes = [size for size, _ in reads[:-1]]
            assert max(sizes) <= 8 * 1024
            assert sum(sizes) <= target_address.ANSWER_BYTES
            assert all(later > before for (_, before), (_, later) in pairwise(reads))
            await until(lambda: pending(broker) == 0)  # tried again

    run(scenario())


def test_a_body_that_does_not_end_does_not_matter(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with private(tmp_path) as (broker, _), target() as there:
            await prepare(broker)
            there.answers = [b"HTTP/1.1 204 No Content\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab"]
            await broker.put_webhook("ann", WebhookSettings(there.url(), batch=1))
            await publish(broker, 3)
            await until(lambda: pending(broker) == 0)
            assert dict(broker.statistics.webhook_requests) == {"ok": 3}
            assert (there.seqs(), there.connections) == ([1, 2, 3], 2)
            # also if the time for a request ends while the body is read
            await broker.put_subscriber("ann", Options(visibility_seconds=0.3, max_tries=1))
            there.answers = [b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab"]
            await publish(broker)
            await until(lambda: sum(broker.statistics.webhook_requests.values()) == 4)
            assert dict(broker.statistics.webhook_requests) == {"ok": 4}
            await until(lambda: pending(broker) == 0)
            assert broker.mailbox("ann").dead == 0

    run(scenario())


def test_a_principal_that_claims_a_subscriber_changes_nothing_else(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with private(tmp_path) as (broker, _):
            await prepare(broker, Options(shared=True))
            broker.directory.principals["root"] = EVERYTHING
            await broker.put_webhook("ann", WebhookSettings("https://webhooks.invalid/", SECRET))
            await broker.pause("ann", True)
            await broker.subscribe("ann", [sub("t", "qty > 1")], owner="root")
            assert broker.subscriber("ann").owner == "root"
        async with private(tmp_path) as (broker, _):
            ann = broker.subscriber("ann")
            assert (ann.owner, ann.paused, ann.options) == ("root", True, Options(shared=True))
            assert ann.webhook is not None
            assert ann.webhook.secrets == [Secret(SECRET)]

    run(scenario())


def test_gone_disables_and_keeps_the_deliveries(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with target() as there:
            async with private(tmp_path) as (broker, _):
                await prepare(broker)
                there.answers = [answer(410)]
                await broker.put_webhook("ann", WebhookSettings(there.url(), SECRET))
                await publish(broker)
                await until(lambda: shown(broker)["disabled"])
                await publish(broker)
                await until(lambda: pending(broker) == 2 and broker.mailbox("ann").connected is None)
                assert "410" in shown(broker)["problem"]
                assert states(broker) == {"ok": 0, "failing": 0, "disabled": 1}
            async with private(tmp_path) as (broker, _):
                assert (len(there.got), pending(broker)) == (1, 2)
                assert broker.mailbox("ann").connected is None
                await broker.put_webhook("ann", WebhookSettings(there.url()))  # enables it again
                await until(lambda: pending(broker) == 0)
                assert there.seqs() == [1, 1, 2]
                assert there.got[1].deliveries[0]["attempt"] == 1
                assert there.got[1].is_signed_with(SECRET)

    run(scenario())


def test_retry_after_is_respected_within_bounds(tmp_path: Path) -> None:
    for text, low, high in (
        ("7", 7, 7),
        ("999999999999999999999", 3600, 3600),
        ("-5", 0, 0),
        ("soon", 0, 0),
        ("", 0, 0),
        (formatdate(0, usegmt=True), 0, 0),
        (formatdate(4e9, usegmt=True), 3600, 3600),
        ("Wed, 99 Foo 2026 99:99:99 GMT", 0, 0),
        ("\xb2", 0, 0),
    ):
        seconds = webhooks.retry_after([(b"Retry-After", text.encode("latin-1"))])
        assert low <= seconds <= high, text

    async def scenario() -> None:
        async with private(tmp_path) as (broker, _), target() as there:
            await prepare(broker)
            there.answers = [answer(503, retry_after="3000")]
            await broker.put_webhook("ann", WebhookSettings(there.url(), batch=1))
            await publish(broker, 3)
            await until(lambda: shown(broker)["problem"])
            await until(lambda: broker.mailbox("ann").resent == 1)  # its own pause is over
            await asyncio.sleep(0.1)
            assert len(there.got) == 1
            await broker.put_webhook("ann", WebhookSettings(there.url(), batch=2))  # new settings are tried at once
            await until(lambda: pending(broker) == 0)

    run(scenario())


def test_a_target_with_several_requests_at_a_time_is_left_alone_too(tmp_path: Path) -> None:
    """Also by what comes after the failure, for which a request is free."""

    async def scenario() -> None:
        async with private(tmp_path) as (broker, _), target() as there:
            await prepare(broker, Options(backoff_seconds=0.5, max_backoff_seconds=0.5))
            there.answers = [answer(503, retry_after="3000")]
            await broker.put_webhook("ann", WebhookSettings(there.url(), batch=1, max_requests=4))
            await publish(broker)
            await until(lambda: shown(broker)["problem"])
            last = await publish(broker, 3)
            await until(lambda: broker.tracker.recorded >= last + 2 and broker.mailbox("ann").resent == 1)
            await asyncio.sleep(0.1)
            assert (there.seqs(), pending(broker)) == ([1], 4)
            await broker.put_webhook("ann", WebhookSettings(there.url(), batch=2))  # new settings are tried at once
            there.answers = [answer(503)]
            await until(lambda: pending(broker) == 0)  # without Retry-After it is left alone for a short time only
            assert set(there.seqs()) == {1, 2, 3, 4}

    run(scenario())


def test_requests_at_a_time_per_target_and_in_all(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with private(tmp_path, max_webhook_requests=3) as (broker, _), target() as one, target() as two:
            one.hold, two.hold = asyncio.Event(), asyncio.Event()
            for name, there in (("ann", one), ("bob", two)):
                await broker.subscribe(name, [sub("s", "qty > 0")])
                await broker.put_webhook(name, WebhookSettings(there.url(), batch=1, max_requests=2))
            await publish(broker, 10)
            await until(lambda: one.at_once + two.at_once == 3)
            await asyncio.sleep(0.1)
            assert one.at_once + two.at_once == 3
            one.hold.set()
            two.hold.set()
            await until(lambda: broker.describe()["pending"] == 0)
            assert sorted(one.seqs()) == sorted(two.seqs()) == list(range(1, 11))
            assert max(one.most_at_once, two.most_at_once) <= 2

    run(scenario())


def test_slow_targets_of_one_principal_leave_room_for_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with private(tmp_path, max_webhook_requests=4) as (broker, url), target() as slow, target() as quick:
            slow.hold = asyncio.Event()
            async with Client(url) as local:
                root = Client(url, (await local.create_token("root"))["token"])
            for name, there in (("ann", slow), ("bob", quick)):
                await root.put_principal(name, ["subscribe"], names=f"{name}*")
                async with Client(url, (await root.create_token(name))["token"]) as own:
                    for number in range(3):
                        await own.put_subscription(f"{name}{number}", "s", "qty > 0")
                        await own.put_webhook(f"{name}{number}", there.url(), batch=1, max_requests=2)
            await root.publish_many([{"qty": 1}] * 5)
            await until(lambda: len(quick.got) == 15)
            assert slow.most_at_once == 2
            slow.hold.set()
            await until(lambda: broker.describe()["pending"] == 0)
            assert (len(slow.got), slow.most_at_once) == (15, 2)
            await root.close()

    run(scenario())


def test_names_that_resolve_slowly_delay_no_other_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = threading.Event()

    def resolve(self: object, host: str, port: int) -> list[str]:
        if host.startswith("slow"):
            stuck.wait(60)
        return ["127.0.0.1"]

    monkeypatch.setattr(target_address.CheckedNetwork, "resolve", resolve)

    async def scenario() -> None:
        async with private(tmp_path) as (broker, _), target() as there:
            try:
                for name in (*(f"slow{n}" for n in range(20)), "quick"):
                    await broker.subscribe(name, [sub("s", "qty > 0")])
                    await broker.put_webhook(name, WebhookSettings(there.url().replace("127.0.0.1", f"{name}.test")))
                await publish(broker)
                await until(lambda: there.got and broker.mailbox("quick").pending == 0)
                assert [one.headers["host"].partition(".")[0] for one in there.got] == ["quick"]
            finally:
                stuck.set()
            await until(lambda: broker.describe()["pending"] == 0)

    run(scenario())


def test_what_expires_while_it_waits_for_its_turn_is_not_sent(tmp_path: Path, later: Callable[[float], None]) -> None:
    async def scenario() -> None:
        async with private(tmp_path, max_webhook_requests=1) as (broker, _), target() as there:
            there.hold = asyncio.Event()
            await prepare(broker)
            await broker.put_webhook("ann", WebhookSettings(there.url(), batch=2, max_requests=4))
            await publish(broker)
            await until(lambda: there.at_once)
            await broker.publish([PublishedEvent({"qty": n}, ttl_seconds=60) for n in (1, 2)])
            await until(lambda: len(broker.mailbox("ann").in_flight) == 3)
            await broker.publish([PublishedEvent({"qty": 1}, ttl_seconds=60), item(qty=1)])
            await until(lambda: len(broker.mailbox("ann").in_flight) == 5)
            later(100)
            there.hold.set()
            await until(lambda: pending(broker) == 0)
            assert there.seqs() == [1, 5]
            assert broker.mailbox("ann").expired == 3

    run(scenario())


def test_what_waits_for_its_turn_while_its_subscriber_is_paused_is_not_sent(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with private(tmp_path, max_webhook_requests=1) as (broker, _), target() as there:
            there.hold = asyncio.Event()
            await prepare(broker)
            await broker.put_webhook("ann", WebhookSettings(there.url(), batch=2, max_requests=3))
            await publish(broker)
            await until(lambda: there.at_once)
            await publish(broker, 3)
            await until(lambda: len(broker.mailbox("ann").in_flight) == 4)
            await broker.pause("ann", True)
            there.hold.set()
            await until(lambda: pending(broker) == 3 and not broker.mailbox("ann").in_flight)
            await asyncio.sleep(0.05)
            assert there.seqs() == [1]
            await broker.pause("ann", False)
            await until(lambda: pending(broker) == 0)
            assert there.seqs() == [1, 2, 3, 4]
            assert [d["attempt"] for one in there.got for d in one.deliveries] == [1] * 4
            assert not any(d["redelivered"] for one in there.got for d in one.deliveries)

    run(scenario())


@pytest.mark.parametrize("change", [{"see": "city = 'Paris'"}, {"names": "other.*"}, {"roles": ["publish"]}])
def test_what_waits_for_its_turn_while_the_owner_loses_rights_is_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    monkeypatch.setattr(webhooks, "AGAIN_SECONDS", 0.05)
    all_rights: dict[str, Any] = {"roles": ["subscribe"]}

    async def scenario() -> None:
        async with private(tmp_path, max_webhook_requests=1) as (broker, url), target() as there:
            there.hold = asyncio.Event()
            async with Client(url) as local:
                root_token = (await local.create_token("root"))["token"]
            async with Client(url, root_token) as root:
                await root.put_principal("ann", **all_rights)
                async with Client(url, (await root.create_token("ann"))["token"]) as ann:
                    await ann.put_subscription("ann", "s", "qty > 0")
                    await ann.put_webhook("ann", there.url(), batch=3, max_requests=2)
                await root.publish({"qty": 1, "city": "Rome"})
                await until(lambda: there.at_once)
                await root.publish_many([{"qty": 1, "city": "Rome"}, {"qty": 1, "city": "Paris"}])
                await until(lambda: len(broker.mailbox("ann").in_flight) == 3)
                await root.put_principal("ann", **all_rights | change)
                there.hold.set()
                if "see" in change:
                    await until(lambda: pending(broker) == 0)
                    assert there.seqs() == [1, 3]
                else:
                    await until(lambda: shown(broker)["problem"])
                    assert there.seqs() == [1]
                    await root.put_principal("ann", **all_rights)
                    await until(lambda: pending(broker) == 0)
                    assert sorted(set(there.seqs())) == [1, 2, 3]

    run(scenario())


def test_private_addresses_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with (
            serving(tmp_path) as (broker, url),
            target() as there,
            httpx.AsyncClient(base_url=url) as http,
        ):
            await prepare(broker, Options(backoff_seconds=0.01, max_tries=1000))
            for host in (
                "localhost",
                "LOCALHOST.",
                "broker.localhost",
                "127.0.0.1",
                "[::1]",
                "10.0.0.1",
                "169.254.169.254",
                "[::ffff:10.0.0.1]",
                "[fe80::1]",
                "0.0.0.0",
            ):
                refused = await http.put(HOOK, json={"url": f"https://{host}:{there.port}/"})
                assert (refused.status_code, "allow_private_webhooks" in refused.text) == (400, True), host
            assert (await http.put(HOOK, json={"url": there.url()})).status_code == 400  # plain http
            monkeypatch.setattr(target_address.CheckedNetwork, "resolve", lambda *_: ["127.0.0.1"])
            assert (await http.put(HOOK, json={"url": f"https://inside.example:{there.port}/"})).status_code == 200
            await publish(broker)
            await until(lambda: broker.statistics.webhook_requests["blocked"] >= 2)
            assert "no public address" in shown(broker)["problem"]
            assert (there.connections, pending(broker)) == (0, 1)

    run(scenario())


def test_plain_http_that_was_allowed_once_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with target() as there:
            async with private(tmp_path) as (broker, _):
                await prepare(broker, Options(backoff_seconds=0.01, max_tries=1000))
                await broker.put_webhook("ann", WebhookSettings(there.url("public.example")))
            monkeypatch.setattr(target_address, "is_public", lambda _: True)
            monkeypatch.setattr(target_address.CheckedNetwork, "resolve", lambda *_: ["127.0.0.1"])
            async with serving(tmp_path) as (broker, _):  # the setting is off now
                await publish(broker)
                await until(lambda: broker.statistics.webhook_requests)
                assert (list(broker.statistics.webhook_requests), there.got) == (["blocked"], [])
                assert "must be https" in shown(broker)["problem"]

    run(scenario())


def test_the_address_that_was_checked_is_the_one_that_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is public when it is checked and private a moment later, and one that has both."""
    connected: list[str] = []

    async def connect(self: Any, host: str, port: int, *rest: Any, **named: Any) -> Any:
        connected.append(host)
        raise httpcore.ConnectError("not in a test")

    monkeypatch.setattr(httpcore.AnyIOBackend, "connect_tcp", connect)

    async def scenario() -> None:
        network = target_address.CheckedNetwork(allow_private=False, most=2)
        answers = [["93.184.216.34"], ["127.0.0.1"], ["10.0.0.1", "93.184.216.34", "::ffff:127.0.0.1"]]
        monkeypatch.setattr(network, "resolve", lambda host, port: answers.pop(0))
        with pytest.raises(httpcore.ConnectError):
            await network.connect_tcp("rebinding.example", 443)
        assert connected == ["93.184.216.34"]
        with pytest.raises(target_address.AddressNotAllowed):
            await network.connect_tcp("rebinding.example", 443)
        with pytest.raises(httpcore.ConnectError):
            await network.connect_tcp("rebinding.example", 443)
        assert connected == ["93.184.216.34", "93.184.216.34"]
        network.close()

    run(scenario())


@pytest.mark.skipif(
    sys.platform != "linux", reason="needs the address 127.0.0.2, and a queue of connections that fills"
)
def test_an_address_that_does_not_answer_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two addresses of a host is down: its packets are lost, nothing refuses the connection."""
    monkeypatch.setattr(target_address, "CONNECT_SECONDS", 0.2)
    monkeypatch.setattr(target_address.CheckedNetwork, "resolve", lambda *_: ["127.0.0.2", "127.0.0.1"])

    async def scenario() -> None:
        async with private(tmp_path) as (broker, _), target() as there:
            await prepare(broker, Options(visibility_seconds=20))
            with contextlib.ExitStack() as stack:
                silent = stack.enter_context(socket.create_server(("127.0.0.2", there.port), backlog=0))
                for _ in range(4):  # its queue is full: what comes now gets no answer
                    one = stack.enter_context(socket.socket())
                    one.setblocking(False)
                    one.connect_ex(silent.getsockname())
                await broker.put_webhook("ann", WebhookSettings(there.url("two.example")))
                await publish(broker)
                await until(lambda: broker.statistics.webhook_requests)
                assert (dict(broker.statistics.webhook_requests), there.seqs()) == ({"ok": 1}, [1])

    run(scenario())


def test_addresses() -> None:
    public = ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "::ffff:1.1.1.1"]
    others = [
        "0.0.0.0", "10.0.0.1", "100.64.0.1", "127.0.0.1", "127.255.255.254", "169.254.169.254", "172.16.0.1",
        "192.0.0.1", "192.168.1.1", "198.18.0.1", "203.0.113.5", "224.0.0.1", "239.1.1.1", "240.0.0.1",
        "255.255.255.255", "::", "::1", "::127.0.0.1", "::ffff:0.0.0.0", "::ffff:127.0.0.1", "::ffff:169.254.169.254",
        "64:ff9b::7f00:1", "100::1", "2001:db8::1", "2002:7f00:1::", "2001:0:1::1", "fc00::1", "fd12::1", "fe80::1",
        "fe80::1%lo", "fec0::1", "ff02::1", "ff0e::1", "192.0.0.8", "192.88.99.1", "3fff::1", "::ffff:192.0.0.8",
    ]  # fmt: skip
    assert [text for text in public if not is_public(text)] == []
    assert [text for text in others if is_public(text)] == []


def test_tls_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path / "ca", "authority")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("target"))

    async def scenario() -> None:
        async with target(context) as there:
            async with private(tmp_path / "a") as (broker, _):
                await prepare(broker, Options(backoff_seconds=0.01, max_tries=1000))
                await broker.put_webhook("ann", WebhookSettings(there.url(scheme="https")))
                await publish(broker)
                await until(lambda: broker.statistics.webhook_requests["unreachable"] >= 1)
                assert (there.got, pending(broker)) == ([], 1)
            monkeypatch.setenv("SSL_CERT_FILE", str(authority.cert))
            async with private(tmp_path / "a") as (broker, _):
                await until(lambda: pending(broker) == 0)
                assert there.seqs() == [1]

    run(scenario())


def test_tls_that_breaks_after_the_status_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path / "ca", "authority")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.cert))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("target"))

    async def answer_and_break(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"]}}")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n")
        await writer.drain()
        raw = writer.transport._ssl_protocol._transport  # type: ignore[attr-defined]
        raw.write(b"no record of TLS" * 10)
        await reader.read()
        writer.close()

    async def scenario() -> None:
        server = await asyncio.start_server(answer_and_break, "127.0.0.1", 0, ssl=context)
        async with private(tmp_path / "a") as (broker, _):
            await prepare(broker)
            port = server.sockets[0].getsockname()[1]
            await broker.put_webhook("ann", WebhookSettings(f"https://127.0.0.1:{port}/"))
            await publish(broker)
            await until(lambda: broker.statistics.webhook_requests)
            assert dict(broker.statistics.webhook_requests) == {"ok": 1}
            await until(lambda: pending(broker) == 0)
        server.close()

    run(scenario())


def test_another_connection_takes_over_and_gives_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with private(tmp_path) as (broker, url), target() as there, Client(url) as client:
            await prepare(broker)
            await broker.put_webhook("ann", WebhookSettings(there.url()))
            await publish(broker)
            await until(lambda: there.seqs() == [1] and pending(broker) == 0)
            async with client.subscriber("ann") as ann:
                await publish(broker)
                async for delivery in ann:
                    assert delivery.seq == 2
                    break
                await ann.ack(delivery)
                await until(lambda: pending(broker) == 0)
            await publish(broker)
            await until(lambda: there.seqs() == [1, 3] and pending(broker) == 0)
            await client.request("PUT", ANN, {"limit": 5})  # options do not touch it
            await publish(broker)
            await until(lambda: there.seqs() == [1, 3, 4])
            await client.request("DELETE", HOOK)
            await until(lambda: broker.mailbox("ann").connected is None)
            await publish(broker)
            await until(lambda: pending(broker) == 1)
            await broker.remove_subscriber("ann")

    run(scenario())


def test_rights_are_those_of_the_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "AGAIN_SECONDS", 0.05)

    async def scenario() -> None:
        async with private(tmp_path) as (broker, url), target() as there:
            async with Client(url) as local:
                root_token = (await local.create_token("root"))["token"]
            async with Client(url, root_token) as root:
                await root.put_principal("ann", ["subscribe"], names="ann", see="city = 'Paris'")
                await root.put_principal("spy", ["manage", "subscribe"], see="city = 'Rome'")
                mine = (await root.create_token("ann"))["token"]
                spying = (await root.create_token("spy"))["token"]
                async with Client(url, mine) as ann, Client(url, spying) as spy:
                    await ann.request("PUT", ANN + "/subscriptions/s", {"where": "qty > 0"})
                    await ann.request("PUT", HOOK, {"url": there.url()})
                    with pytest.raises(Exception, match="belongs to another principal, who may see other events"):
                        await spy.request("PUT", HOOK, {"url": there.url()})
                await root.publish_many([{"qty": 1, "city": "Paris"}, {"qty": 1, "city": "Rome"}])
                await until(lambda: there.seqs() == [1] and pending(broker) == 0)
                await root.put_principal("ann", ["publish"], names="ann", see="city = 'Paris'")
                await root.publish({"qty": 1, "city": "Paris"})
                await until(lambda: "lacks the role" in str(shown(broker)["problem"]))
                assert (there.seqs(), pending(broker)) == ([1], 1)
                await root.put_principal("ann", ["subscribe"], names="ann")
                await until(lambda: there.seqs() == [1, 3] and pending(broker) == 0)
                await root.request("PUT", ANN, {}, owner="root")  # the new owner's rights
                await root.request("DELETE", "/v1/principals/ann")
                await root.publish({"qty": 1})
                await until(lambda: there.seqs() == [1, 3, 4])

    run(scenario())


def test_whoever_sets_it_gets_no_more_than_it_may_see(tmp_path: Path) -> None:
    """Subscribers from before the first principal belong to nobody: the first one that uses them owns them."""

    async def scenario() -> None:
        async with private(tmp_path) as (broker, url), target() as there:
            await prepare(broker)
            await broker.subscribe("bob", [sub("s", "qty > 0")])
            await broker.put_webhook("bob", WebhookSettings(there.url()))
            await broker.pause("bob", True)
            async with Client(url) as local:
                root_token = (await local.create_token("root"))["token"]
            async with Client(url, root_token) as root:
                await root.put_principal("eve", ["subscribe"], names="*", see="city = 'Paris'")
                await root.put_principal("dan", ["subscribe"], names="*")
                await root.publish_many([{"qty": 1, "city": "Rome"}, {"qty": 1, "city": "Paris"}])
                await until(lambda: pending(broker) == 2)
                tokens = [(await root.create_token(name))["token"] for name in ("eve", "dan")]
            async with Client(url, tokens[0]) as eve, Client(url, tokens[1]) as dan:
                await eve.put_webhook("ann", there.url())
                with pytest.raises(Exception, match="belongs to another principal"):
                    await dan.put_webhook("ann", there.url())
                await until(lambda: pending(broker) == 0)
                assert there.seqs() == [2]
                await eve.request(
                    "PUT", "/v1/subscribers/bob/subscriptions/t", {"where": "qty > 1"}
                )  # it is set already
                await eve.request("POST", "/v1/subscribers/bob/resume")
                await until(lambda: broker.mailbox("bob").pending == 0)
                assert there.seqs() == [2, 2]
            assert (broker.subscriber("ann").owner, broker.subscriber("bob").owner) == ("eve", "eve")
        async with private(tmp_path) as (broker, _):
            assert broker.subscriber("ann").owner == "eve"

    run(scenario())


def test_the_url_is_requested_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = {"": "/", "?a=1;b": "/?a=1;b", "/hook;v=1": "/hook;v=1", "/A//b/../c;d?e=%20": "/A//b/../c;d?e=%20"}

    async def scenario() -> None:
        async with private(tmp_path) as (broker, _), target() as there:
            await prepare(broker)
            for at, path in enumerate(paths):
                await broker.put_webhook("ann", WebhookSettings(f"http://127.0.0.1:{there.port}{path}"))
                await publish(broker)
                await until(lambda at=at: len(there.got) == at + 1 and pending(broker) == 0)  # type: ignore[misc]
            assert [one.line for one in there.got] == [f"POST {path} HTTP/1.1" for path in paths.values()]
            assert {one.headers["host"] for one in there.got} == {f"127.0.0.1:{there.port}"}
            monkeypatch.setattr(target_address.CheckedNetwork, "resolve", lambda *_: ["127.0.0.1"])  # IPv6 may be off
            await broker.put_webhook("ann", WebhookSettings(f"http://[2606:4700::1]:{there.port}/hook"))
            await publish(broker)
            await until(lambda: len(there.got) == len(paths) + 1)
            assert there.got[-1].headers["host"] == f"[2606:4700::1]:{there.port}"

    run(scenario())


def test_nothing_new_is_sent_to_a_webhook_that_was_removed(tmp_path: Path) -> None:
    """While its last requests are being answered, neither what comes then is sent to it, nor what waits for a turn."""

    async def scenario() -> None:
        async with private(tmp_path, max_webhook_requests=2) as (broker, _), target() as there, target() as other:
            await prepare(broker)
            there.hold = asyncio.Event()
            await broker.put_webhook("ann", WebhookSettings(there.url(), batch=1, max_requests=4))
            await publish(broker, 3)
            await until(lambda: there.at_once == 2 and len(broker.mailbox("ann").in_flight) == 3)  # one waits
            await broker.remove_webhook("ann")
            last = await publish(broker)
            await until(lambda: broker.tracker.recorded >= last)
            await asyncio.sleep(0.05)
            there.hold.set()
            await until(lambda: broker.mailbox("ann").connected is None and pending(broker) == 2)
            assert sorted(there.seqs()) == [1, 2]
            await broker.put_webhook("ann", WebhookSettings(other.url()))
            await until(lambda: pending(broker) == 0)
            assert other.seqs() == [3, 4]

    run(scenario())


def test_bad_settings(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with private(tmp_path) as (broker, url), httpx.AsyncClient(base_url=url) as http:
            good = {"url": "https://example.com/hook"}
            assert (await http.put(HOOK, json=good)).status_code == 404  # no such subscriber
            await prepare(broker)
            for bad in (
                {}, {"url": ""}, {"url": "example.com"}, {"url": "ftp://example.com/"}, {"url": "https://"},
                {"url": "https://user:hush@example.com/"}, {"url": "https://example.com/#part"}, {"url": "https://exämple.com"},
                {"url": "https://example.com/a b"}, {"url": "https://example.com/\r\nhost: x"}, {"url": "https://[::1"},
                {"url": "https://example.com:99999/"}, {"url": "https://example.com:0/"},
                {"url": "https://" + "x" * 3000},
                {**good, "secret": "hush"}, {**good, "secret": "whsec_!!"}, {**good, "secret": "whsec_YWJj"},
                {**good, "secret": "whsec_" + base64.b64encode(b"x" * 65).decode()}, {**good, "batch": 0},
                {**good, "batch": 501}, {**good, "max_requests": 17}, {**good, "overlap_seconds": -1}, {**good, "x": 1},
                {**good, "disabled": ""},
            ):  # fmt: skip
                refused = await http.put(HOOK, json=bad)
                assert refused.status_code == 400, bad
                assert "hush" not in refused.text
                assert "YWJj" not in refused.text
            assert (await http.get(HOOK)).status_code == 404
            assert (await http.delete(HOOK)).status_code == 204
            eve = await Listener(broker).attach_ephemeral("eve", Options("drop_oldest", 10))
            assert (await http.put("/v1/subscribers/eve/webhook", json=good)).status_code == 409
            await eve.leave()

    run(scenario())


def test_a_stop_waits_for_the_request_in_flight(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with target() as there:
            there.hold = asyncio.Event()
            async with private(tmp_path) as (broker, _):
                await prepare(broker)
                await broker.put_webhook("ann", WebhookSettings(there.url()))
                await publish(broker)
                await until(lambda: there.at_once == 1)
                asyncio.get_running_loop().call_later(0.3, there.hold.set)
            async with private(tmp_path) as (broker, _):
                assert pending(broker) == 0

    run(scenario())
