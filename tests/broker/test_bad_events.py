"""Many events at once, of which some do not fit: refused, published with nulls, or left out with the reason."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from hitbox import Schema
from hitbox.broker.commands.cli import app
from hitbox.client import Client
from hitbox.protocol.errors import BadRequest, Forbidden, TooLarge
from support.broker_kit import serving, token_of
from support.served import served

SCHEMA = Schema({"qty": "int", "city": "string", "age": {"type": "int", "role": "information"}})
EVENTS: list[Any] = [
    {"qty": 3, "city": "Rome"},
    {"qty": 3.5, "city": "Rome"},
    {"city": "a\0", "qty": 4},
    {"citty": "Rome", "qty": 5},
    {"qty": float("inf"), "city": "Rome"},
    {"qty": 7},
]


async def stored(client: Client) -> list[Any]:
    return [one["event"] for one in (await client.request("GET", "/v1/events"))["events"]]


@pytest.mark.parametrize(
    ("on_error", "expected"),
    [
        ("return", [EVENTS[0], EVENTS[5]]),
        (
            "null",
            [
                EVENTS[0],
                {"qty": None, "city": "Rome"},
                {"city": None, "qty": 4},
                {"qty": 5},
                EVENTS[4] | {"qty": None},
                EVENTS[5],
            ],
        ),
    ],
)
def test_publish_many(tmp_path: Path, on_error: str, expected: list[Any]) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, SCHEMA) as (broker, url), Client(url) as client:
            with pytest.raises(BadRequest, match="event 1 of 3; none was accepted"):
                await client.publish_many(EVENTS[:3])
            refused = broker.statistics.counts["refused"]
            errors: dict[int, str] = {}
            assert await client.publish_many(EVENTS, on_error=on_error, report=errors.__setitem__) == 1
            assert await stored(client) == expected
            assert sorted(errors) == [1, 2, 3, 4]
            assert errors[1].startswith("attribute 'qty': 3.5 is a float; an int attribute takes")
            assert errors[4] == "attribute 'qty': JSON has no infinity"
            assert broker.statistics.counts["refused"] - refused == (3 if on_error == "return" else 0)
            table = pa.table({"qty": [1, 2.5], "city": ["x", "y"]})
            assert await client.publish_many(table, on_error=on_error, report=errors.__setitem__) == len(expected) + 1

    asyncio.run(scenario())


def test_what_cannot_be_published_is_left_out(tmp_path: Path) -> None:
    """A predicate, an id or a size is not made null."""

    async def scenario() -> None:
        async with serving(tmp_path, SCHEMA, max_event_bytes=300) as (_, url), Client(url) as client:
            events = [{"qty": 1}, {"qty": 2}, {"qty": 3.5, "city": "x" * 400}, {"qty": 4}]
            given: dict[str, Any] = {"where": ["age > 3", "years > 3", None, None], "ids": ["a", "b", "c", " "]}
            errors: dict[int, str] = {}
            await client.publish_many(events, **given, on_error="null", report=errors.__setitem__)
            assert await stored(client) == [{"qty": 1}]
            assert "unknown attribute 'years'" in errors[1]
            assert errors[2].startswith("attribute 'qty': 3.5")
            assert "visible ASCII" in errors[3]
            found = await client.request("POST", "/v1/events", [{"event": {"qty": "x"}}], on_error="return")
            assert (found["count"], [one["event"] for one in found["errors"]]) == (0, [0])
            with pytest.raises(BadRequest, match="on_error is 'raise', 'null' or 'return', not 'ignore'"):
                await client.request("POST", "/v1/events", [], on_error="ignore")
            with pytest.raises(BadRequest, match="on_error='return' needs report="):
                await client.publish_many(events, on_error="return")

    asyncio.run(scenario())


def test_a_publisher_may_not_publish_more_than_before(tmp_path: Path) -> None:
    """Rights are asked of the event as it is stored, and are no matter of on_error."""

    async def scenario() -> None:
        async with (
            serving(tmp_path, SCHEMA, ["root", "ann"], max_batch=2) as (_, url),
            Client(url, token_of("root")) as root,
            Client(url, token_of("ann")) as ann,
        ):
            await root.put_principal("ann", ["publish"], publish="city = 'Rome'")
            assert await ann.publish_many([{"city": "Rome", "qty": 3.5}], on_error="null") == 1
            for on_error in ("null", "return"):
                with pytest.raises(Forbidden):
                    await ann.publish_many([{"city": "Paris"}, {"qty": "x"}], on_error=on_error, report=print)
            with pytest.raises(Forbidden):
                await ann.publish_many([{"city": 5}], on_error="null")
            with pytest.raises(TooLarge):
                await ann.publish_many(EVENTS[:2] * 2, on_error="null")
            assert await stored(root) == [{"city": "Rome", "qty": None}]

    asyncio.run(scenario())


def test_the_command(tmp_path: Path) -> None:
    lines = '{"qty": 3}\n\n{"qty": 3.5, "city": "Rome"}\nno JSON\n5\n{"qty": 4}\n'

    def run(*words: str) -> Any:
        return CliRunner().invoke(app, ["publish", "-", "--url", url, *words], input=lines)

    with served(tmp_path / "data", "--schema", "qty:int,city:string") as url:
        client = Client.sync(url)
        assert run().exit_code == 2
        done = run("--on-error", "return")
        assert (done.exit_code, done.stdout) == (0, "1\n"), done.output
        said = done.stderr.splitlines()
        assert sorted(line.partition(":")[0] for line in said[:3]) == ["line 3", "line 4", "line 5"]
        assert said[3] == "3 events do not fit"
        assert run("--on-error", "null").stdout == "3\n"
        assert "on_error is 'raise', 'null' or 'return'" in run("--on-error", "ignore").stderr
        found = client.request("GET", "/v1/events")["events"]
        assert [one["event"] for one in found[2:]] == [{"qty": 3}, {"qty": None, "city": "Rome"}, {"qty": 4}]
        assert json.dumps(found[:2][1]["event"]) == '{"qty": 4}'
        client.close()
