"""`hitbox admin subscribers`, `webhooks`, `dead` and `schema`, as tables and as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hitbox.broker.commands import admin_cli
from hitbox.broker.commands.cli import app
from hitbox.client import Client
from hitbox.console.table_files import read_schema
from hitbox.encoding.schema import Schema
from support.served import served

SCHEMA = "price:float,city:string"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(Path(tmp_path_factory.mktemp("broker")), "--schema", SCHEMA) as address:
        yield address


def run(url: str, *arguments: str, status: int = 0, text: str = "") -> str:
    done = CliRunner().invoke(app, ["admin", *arguments], input=text, env={"HITBOX_URL": url})
    assert done.exit_code == status, done.output
    return done.stdout if status == 0 else done.stderr


def answer(url: str, *arguments: str) -> Any:
    return json.loads(run(url, *arguments, "--json"))


def fill(url: str, name: str, events: int, dead: int) -> None:
    """A subscriber with `events` events, `dead` of which are beyond its limit, so they become dead letters."""
    with Client.sync(url) as client:
        path = f"/v1/subscribers/{name}"
        client.request("PUT", path, {"limit": events - dead})
        client.request("PUT", f"{path}/subscriptions/s", {"where": f"city = '{name}'", "priority": 7})
        client.publish_many([{"price": n, "city": name} for n in range(events)])
        until = time.monotonic() + 30
        while client.request("GET", path)["dead"] < dead and time.monotonic() < until:
            time.sleep(0.05)
        client.request("PUT", path, {"limit": 1_000_000})


def test_subscribers(url: str) -> None:
    fill(url, "ann", 3, 0)
    fill(url, "bob", 1, 0)
    head, first, second, total = run(url, "subscribers", "list").splitlines()
    assert head.split() == ["name", "connected", "paused", "subscriptions", "pending", "dead", "dropped", "expired"]
    assert first.split() == ["ann", "false", "false", "1", "3", "0", "0", "0"]
    assert second.split()[:1] == ["bob"]
    assert total == "2 shown; the broker has 2 subscribers"
    assert [one["name"] for one in answer(url, "subscribers", "list", "o")["subscribers"]] == ["bob"]
    assert [one["name"] for one in answer(url, "subscribers", "list", "--limit", "1")["subscribers"]] == ["ann"]
    shown = run(url, "subscribers", "show", "ann")
    assert "1 subscription; 1 shown:" in shown
    assert shown.splitlines()[-1].split(maxsplit=2) == ["s", "7", "city = 'ann'"]
    found = answer(url, "subscribers", "show", "ann")
    assert (found["pending"], found["subscriptions"][0]["where"]) == (3, "city = 'ann'")
    assert "Aborted" in run(url, "subscribers", "remove", "ann", text="n\n", status=1)
    assert run(url, "subscribers", "remove", "ann", text="y\n").endswith("1 subscriptions and 3 pending deliveries\n")
    assert answer(url, "subscribers", "remove", "bob", "--yes") == {"removed": "bob"}
    assert answer(url, "subscribers", "list")["count"] == 0
    for command in ("show", "remove"):
        assert "no subscriber 'ann'" in run(url, "subscribers", command, "ann", status=2)
        assert "the name of a subscriber" in run(url, "subscribers", command, "a/b", status=2)


def test_dead_letters(url: str) -> None:
    fill(url, "cid", 6, 4)
    fill(url, "dan", 3, 2)
    head, newest, *_, total = run(url, "dead", "list").splitlines()
    assert head.split() == ["number", "subscriber", "seq", "level", "tries", "time", "reason", "event"]
    assert newest.split()[1] == "dan"
    assert "more pending than the subscriber's limit" in newest
    assert total == "6 shown; the broker has 6 dead letters"
    letters = answer(url, "dead", "list", "--subscriber", "cid")["letters"]
    assert [one["event"]["price"] for one in letters] == [3, 2, 1, 0]
    numbers = [str(one["number"]) for one in letters]
    assert run(url, "dead", "retry", numbers[0]) == "1 dead letter is delivered again\n"
    assert f"no dead letter {numbers[0]} is there" in run(url, "dead", "retry", numbers[0], status=2)
    assert "Aborted" in run(url, "dead", "drop", numbers[1], text="n\n", status=1)
    assert run(url, "dead", "drop", numbers[1], numbers[1], "--yes") == "1 dead letter was deleted\n"
    assert "or 999999 is there" in run(url, "dead", "drop", numbers[1], "999999", "--yes", status=2)
    assert answer(url, "dead", "retry", "--all", "--subscriber", "cid") == {"count": 2}
    assert answer(url, "dead", "drop", "--all", "--yes") == {"count": 2}
    assert answer(url, "dead", "list") == {"count": 0, "letters": []}
    assert answer(url, "subscribers", "show", "cid")["pending"] == 5
    for command in (["retry"], ["drop", "--yes"]):
        assert "name the numbers" in run(url, "dead", *command, status=2)
        assert "name the numbers" in run(url, "dead", *command, "1", "--all", status=2)
        assert "--subscriber is for --all" in run(url, "dead", *command, "1", "--subscriber", "x", status=2)


def test_letters_that_stay_hide_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest ones have expired, and fill the first pages."""
    monkeypatch.setattr(admin_cli, "MOST", 2)
    with served(tmp_path, "--schema", SCHEMA) as url, Client.sync(url) as client:
        client.put_subscriber("ann", limit=1)
        client.put_subscription("ann", "s", "price >= 0")
        client.publish_many([{"price": n} for n in range(4)])
        client.publish_many([{"price": n} for n in range(5)], ttl_seconds=2)
        until = time.monotonic() + 30
        while client.request("GET", "/v1/subscribers/ann")["dead"] < 7 and time.monotonic() < until:
            time.sleep(0.05)
        client.put_subscriber("ann", limit=100)
        time.sleep(2)
        assert answer(url, "dead", "list")["count"] == 8
        assert answer(url, "dead", "retry", "--all") == {"count": 4}
        assert answer(url, "dead", "drop", "--all", "--yes") == {"count": 4}


def test_letters_that_others_remove_hide_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = admin_cli.ask
    with served(tmp_path, "--schema", SCHEMA) as url, Client.sync(url) as client:
        fill(url, "ann", 7, 6)

        def ask_beside_another(*arguments: Any, **options: Any) -> Any:
            found = ask(*arguments, **options)
            if "/v1/dead" in arguments:
                client.drop_dead_letters([one["number"] for one in found["letters"][:2]])
            return found

        monkeypatch.setattr(admin_cli, "MOST", 4)
        monkeypatch.setattr(admin_cli, "ask", ask_beside_another)
        run(url, "dead", "drop", "--all", "--yes")
        monkeypatch.setattr(admin_cli, "ask", ask)
        assert answer(url, "dead", "list")["count"] == 0


def test_schema(url: str, tmp_path: Path) -> None:
    fill(url, "eve", 1, 0)
    head, *rows = run(url, "schema", "show").splitlines()
    assert head.split()[:2] == ["name", "type"]
    assert [row.split()[:2] for row in rows] == [["price", "float"], ["city", "string"]]
    assert "eve/s" in run(url, "schema", "change", "price:float", status=2)
    assert "unknown type" in run(url, "schema", "change", "price:money", status=2)
    assert run(url, "schema", "change", f"{SCHEMA},qty:int") == "the schema has 3 attributes now\n"
    path = tmp_path / "schema.json"
    path.write_text(json.dumps({"price": "float", "city": "string"}))
    assert len(answer(url, "schema", "change", str(path))["attributes"]) == 2
    assert answer(url, "schema", "show") == answer(url, "schema", "change", SCHEMA)
    path.write_text(run(url, "schema", "show", "--json"))
    assert answer(url, "schema", "change", str(path)) == answer(url, "schema", "show")
    assert read_schema(str(path)) == Schema({"price": "float", "city": "string"})
    path.write_text(json.dumps({"attributes": ["string"]}))
    assert read_schema(str(path)) == Schema({"attributes": ["string"]})


def test_what_a_terminal_would_interpret_is_escaped(url: str) -> None:
    with Client.sync(url) as client:
        where = "city = 'a\x1b[31m\nb'"
        client.request("PUT", "/v1/subscribers/zoe/subscriptions/s", {"where": where})
    assert "city = 'a\\x1b[31m\\nb'" in run(url, "subscribers", "show", "zoe")
    assert answer(url, "subscribers", "show", "zoe")["subscriptions"][0]["where"] == where


def test_pause_and_resume(url: str) -> None:
    with Client.sync(url) as client:
        client.request("PUT", "/v1/subscribers/resting", {})
    assert run(url, "subscribers", "pause", "resting") == "resting is paused; its deliveries are kept\n"
    assert answer(url, "subscribers", "show", "resting")["paused"] is True
    assert answer(url, "subscribers", "resume", "resting") == {"resumed": "resting"}
    assert answer(url, "subscribers", "show", "resting")["paused"] is False
    assert "no subscriber 'nobody'" in run(url, "subscribers", "pause", "nobody", status=2)


def test_webhooks(url: str) -> None:
    with Client.sync(url) as client:
        client.request("PUT", "/v1/subscribers/hooked", {})
    said = run(url, "webhooks", "set", "hooked", "https://webhooks.invalid/a", "--batch", "7")
    assert "deliveries of hooked are sent to https://webhooks.invalid/a" in said
    assert "not shown again: whsec_" in said
    assert "whsec_" not in run(url, "webhooks", "set", "hooked", "https://webhooks.invalid/b")
    found = answer(url, "webhooks", "show", "hooked")
    assert (found["url"], found["batch"], found["secrets"]) == ("https://webhooks.invalid/b", 100, 1)
    assert answer(url, "webhooks", "set", "hooked", "https://webhooks.invalid/b", "--secret", "new")["secrets"] == 2
    assert "https://webhooks.invalid/b" in run(url, "webhooks", "show", "hooked")
    assert "must be https" in run(url, "webhooks", "set", "hooked", "http://127.0.0.1/", status=2)
    assert run(url, "webhooks", "remove", "hooked") == "removed the webhook of hooked\n"
    for command in ("show", "remove"):
        assert "has no webhook" in run(url, "webhooks", command, "hooked", status=2)


def test_options_of_a_subscriber(url: str) -> None:
    """What is not named stays as it is."""
    with Client.sync(url) as client:
        client.put_subscriber("tuned", policy="drop_oldest", max_tries=9)
    said = run(url, "subscribers", "change", "tuned", "limit=1000", "shared=true")
    assert [line.split() for line in said.splitlines() if line.startswith(("limit", "shared", "policy"))] == [
        ["policy", "drop_oldest"], ["limit", "1000"], ["shared", "true"]
    ]  # fmt: skip
    found = answer(url, "subscribers", "show", "tuned")["options"]
    assert (found["policy"], found["max_tries"], found["limit"], found["shared"]) == ("drop_oldest", 9, 1000, True)
    assert "did you mean 'limit'?" in run(url, "subscribers", "change", "tuned", "limt=1", status=2)
    assert "valid: disconnect, drop_oldest, spool" in run(
        url, "subscribers", "change", "tuned", "policy=spol", status=2
    )
    assert "expected a whole number, not a decimal number at `$.limit`" in run(
        url, "subscribers", "change", "tuned", "limit=1.5", status=2
    )
    assert "no subscriber 'nobody'" in run(url, "subscribers", "change", "nobody", "limit=1", status=2)


def test_subscriptions(url: str) -> None:
    with Client.sync(url) as client:
        client.put_subscription("sue", "needle", "price = 4711", priority=3)
    head, row, total = run(url, "subscriptions", "list", "4711").splitlines()
    assert head.split() == ["subscriber", "name", "priority", "where"]
    assert row.split(maxsplit=3) == ["sue", "needle", "3", "price = 4711"]
    assert total.startswith("1 shown; the broker has ")
    assert run(url, "subscriptions", "remove", "sue", "needle") == "removed sue/needle\n"
    assert answer(url, "subscriptions", "list", "--subscriber", "sue")["subscriptions"] == []
    assert "needle" in run(url, "subscriptions", "remove", "sue", "needle", status=2)


def test_delayed_events_that_are_not_there(url: str) -> None:
    assert "no delayed event 7 is there" in run(url, "delayed", "cancel", "7", status=2)
    with Client.sync(url) as client:
        number = client.publish({"price": 1}, delay_seconds=1000)
    assert run(url, "delayed", "cancel", str(number), "999") == "1 of 2 delayed events were cancelled\n"


@pytest.mark.parametrize(
    "command",
    ["clock accept", "stats", "snapshot", "replay sam 1", "tokens list", "principals list", "delayed list", "unseen"],
)
def test_json_of_every_command(url: str, command: str) -> None:
    with Client.sync(url) as client:
        client.put_subscriber("sam")
    assert isinstance(answer(url, *command.split()), dict)
