"""The log: text and JSON, repeated messages, and the access log, which has no secrets."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from hitbox.broker import logs
from hitbox.broker.clock import time
from hitbox.client import Client
from support.broker_kit import serving, token_of, until

log = logging.getLogger("hitbox.broker")


@contextmanager
def captured(level: logs.LogLevel, format: logs.LogFormat) -> Iterator[io.StringIO]:
    """The log of what runs inside; afterwards logging is as before."""
    root, ours = logging.getLogger(), logging.getLogger("hitbox")
    before = root.handlers[:], root.level, ours.level
    stream = io.StringIO()
    logs.configure(level, format, stream)
    try:
        yield stream
    finally:
        root.handlers[:] = before[0]
        root.setLevel(before[1])
        ours.setLevel(before[2])


def test_text_is_one_line_per_message() -> None:
    with captured("info", "text") as stream:
        log.debug("not this")
        log.info("a %s", "b\nWARNING forged \x1b[31m")
        logging.getLogger("other").info("nor this")
        try:
            raise ValueError("reason")
        except ValueError:
            log.exception("it failed")
    first, second, *traceback = stream.getvalue().splitlines()
    assert first.endswith("Z INFO hitbox.broker: a b\\nWARNING forged \\x1b[31m")
    assert second.endswith("ERROR hitbox.broker: it failed")
    assert traceback[-1] == "ValueError: reason"


def test_json_is_one_object_per_message() -> None:
    with captured("warning", "json") as stream:
        log.info("not this")
        try:
            raise ValueError("reason")
        except ValueError:
            log.exception("it\nfailed \ud800")
    (line,) = stream.getvalue().splitlines()
    found = json.loads(line)
    assert (found["level"], found["logger"], found["message"]) == ("error", "hitbox.broker", "it\nfailed \ud800")
    assert found["traceback"].endswith("ValueError: reason")
    assert found["time"].endswith("Z")


def test_repeated_messages_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with captured("warning", "text") as stream:
        for n in range(20):
            log.warning("again %d", n)
            log.critical("stop %d", n)
        log.warning("another")
        now += logs.WINDOW_SECONDS
        log.warning("again %d", 20)
        log.warning("again %d", 21)
    lines = [line.partition("hitbox.broker: ")[2] for line in stream.getvalue().splitlines()]
    assert [line for line in lines if line.startswith("stop")] == [f"stop {n}" for n in range(20)]
    assert [line for line in lines if not line.startswith("stop")] == [
        *(f"again {n}" for n in range(logs.BURST)),
        "another",
        f"again 20 ({20 - logs.BURST} more like this were left out)",
        "again 21",
    ]


def test_the_limit_of_repeated_messages_has_a_limit_itself() -> None:
    limit = logs.RepeatLimit()
    for n in range(2 * logs.MOST_KINDS):
        assert limit.filter(logging.LogRecord("a", logging.WARNING, "", 0, f"kind {n}", (), None))
    assert len(limit._kinds) == logs.MOST_KINDS


def access_lines(stream: io.StringIO) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in stream.getvalue().splitlines()]
    return [one for one in found if one["logger"] == logs.ACCESS]


def test_access_log(tmp_path: Path) -> None:
    token = token_of("ops")

    async def scenario(stream: io.StringIO) -> None:
        async with serving(tmp_path, principals=["ops"]) as (_, url):
            headers = {"authorization": f"Bearer {token}"}
            async with httpx.AsyncClient(base_url=url, headers=headers) as http:
                assert (await http.get("/v1/schema")).status_code == 200
                assert (await http.get("/v1/subscriptions?q=secret-search")).status_code == 200
                assert (await http.post("/v1/events", json={"event": {"city": "secret-city"}})).status_code == 201
                assert (await http.post("/v1/events", json={"event": {"city": 7}})).status_code == 400
                assert (await http.get("/nothing%0Ahere%C3%A9")).status_code == 404
                assert (
                    await http.get("/v1/stats", headers={"authorization": "Bearer secret-guess"})
                ).status_code == 401
            async with Client(url, token) as client, client.subscriber("ann"):
                pass
            await until(lambda: access_lines(stream)[-1]["method"] == "WEBSOCKET")

    with captured("info", "json") as stream:
        asyncio.run(scenario(stream))
        lines = access_lines(stream)
    first = lines[0]
    assert {key: first[key] for key in ("method", "path", "status", "principal")} == {
        "method": "GET",
        "path": "/v1/schema",
        "status": 200,
        "principal": "ops",
    }
    assert first["bytes"] > 50
    assert first["ms"] > 0
    assert first["client"].startswith("127.0.0.1:")
    assert [(one["path"], one["status"], one["principal"]) for one in lines[1:-1]] == [
        ("/v1/subscriptions", 200, "ops"),
        ("/v1/events", 201, "ops"),
        ("/v1/events", 400, "ops"),
        ("/nothing%0Ahere%C3%A9", 404, ""),  # no route, so nobody was asked for
        ("/v1/stats", 401, ""),
    ]
    assert (lines[-1]["path"], lines[-1]["principal"]) == ("/v1/connect", "ops")
    assert lines[-1]["status"] in (1000, 1011)  # the client is stopped while it waits, which it reports as 1011
    assert "secret" not in stream.getvalue()
    assert token not in stream.getvalue()


def test_an_error_does_not_quote_an_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise KeyError("secret")

    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), httpx.AsyncClient(base_url=url) as http:
            for way in ("match", "levels"):
                monkeypatch.setattr(broker.registry, way, fail)
            assert (await http.post("/v1/events", json={"event": {"city": "secret"}})).status_code == 201
            await until(broker.caught_up)
            monkeypatch.setattr(broker, "check", fail)
            assert (await http.post("/v1/events", json={"event": {"city": "secret"}})).status_code == 500

    with captured("info", "text") as stream:
        asyncio.run(scenario())
    assert "event 1 could not be matched" in stream.getvalue()
    assert "unexpected error in a request" in stream.getvalue()
    assert stream.getvalue().count("MessageWithheld: KeyError") >= 2
    assert "secret" not in stream.getvalue().replace('raise KeyError("secret")', "")


def test_no_access_log_below_info(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (_, url), httpx.AsyncClient(base_url=url) as http:
            assert (await http.get("/v1/schema")).status_code == 200

    with captured("warning", "json") as stream:
        asyncio.run(scenario())
    assert not stream.getvalue()
