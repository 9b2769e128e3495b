"""The command line: serve, publish, subscribe, admin, import and export."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import hitbox
from hitbox.broker import admin
from hitbox.broker.broker import Broker
from hitbox.broker.commands import configuration, start_check
from hitbox.broker.commands.cli import app
from hitbox.broker.upkeep import import_export
from hitbox.client import Client
from hitbox.protocol.errors import BadRequest, Conflict
from support.broker_kit import item, running
from support.served import served


def run(*arguments: str, status: int = 0, text: str = "") -> str:
    done = CliRunner().invoke(app, arguments, input=text)
    assert done.exit_code == status, done.output
    return done.stdout if status == 0 else done.stderr


def test_serve_publish_subscribe(tmp_path: Path) -> None:
    with served(tmp_path / "data", "--schema", "price:float,city:string") as url:
        client = Client.sync(url)
        client.request("PUT", "/v1/subscribers/ann/subscriptions/s", {"where": "price < 20", "priority": 8})
        assert run("publish", '{"price": 12.5}', "--url", url) == "1\n"
        assert run("publish", "-", "--url", url, text='{"price": 1}\n{"price": 99}\n') == "2\n"
        lines = run("subscribe", "--name", "ann", "--count", "2", "--url", url).splitlines()
        assert [(json.loads(line)["seq"], json.loads(line)["level"]) for line in lines] == [(1, 8), (2, 8)]
        assert json.loads(run("admin", "stats", "--url", url))["published"] == 3
        assert run("admin", "replay", "ann", "2", "--url", url) == "1\n"
        assert json.loads(run("admin", "snapshot", "--url", url))["version"] == 1
        assert run("publish", '{"price": 99}', "--id", "once", "--url", url) == "4\n"
        assert run("publish", '{"price": 99}', "--id", "once", "--url", url) == "4\n"
        said = run("publish", "-", "--url", url, text='{"price": 1}\n\n{"price": 1}\n{"prise": 1}\n', status=2)
        assert "event 2 of 3; none was accepted" in said
        assert "in the lines 1 to 4" in said
        assert "line 3: not JSON" in run("publish", "-", "--url", url, text='{"price": 1}\n\n{\n', status=2)
        assert "did you mean 'price'" in run("publish", '{"prise": 1}', "--url", url, status=2)
        assert "not JSON" in run("publish", "{", "--url", url, status=2)
        assert "not JSON" in run("publish", "", "--url", url, status=2)
        assert "prise" in run("publish", "-", "--where", "prise > 1", "--url", url, text='{"price": 1}\n', status=2)
        assert "no subscriber" in run("admin", "replay", "bob", "1", "--url", url, status=2)
        assert "the name of a subscriber" in run("admin", "replay", "a?b", "1", "--url", url, status=2)
        assert "the name of a subscriber" in run("admin", "replay", "\udcff", "1", "--url", url, status=2)
        assert "lone surrogate" in run("publish", '{"price": 1}', "--where", "\udcff", "--url", url, status=2)
        assert "not JSON" in run("publish", '{"price":' * 3000, "--url", url, status=2)
        assert "did you mean 'price'" in run("subscribe", "prise < 1", "--name", "new", "--url", url, status=2)
        assert [one["name"] for one in client.request("GET", "/v1/subscribers")["subscribers"]] == ["ann"]
        client.close()
    with served(tmp_path / "data") as url:  # after a graceful end: from the snapshot
        assert json.loads(run("admin", "stats", "--url", url))["restored"] == "snapshot 1 and 0 changes"


def test_another_address_needs_a_token(tmp_path: Path) -> None:
    data = ["--data", str(tmp_path)]
    schema = ["--schema", "price:float"]
    assert "needs a token" in run("serve", *data, *schema, "--host", "0.0.0.0", "--port", "0", status=2)
    token = run("admin", "tokens", "create", "ops", *data).strip()
    assert len(token) >= 43
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
    assert token.encode() not in stored
    assert "--allow-plain-text" in run("serve", *data, *schema, "--host", "0.0.0.0", "--port", "0", status=2)
    with served(tmp_path, "--host", "0.0.0.0", "--allow-plain-text") as url:
        url = url.replace("0.0.0.0", "127.0.0.1")
        said = run("admin", "stats", "--url", url, status=2)
        assert "token is needed" in said
        assert "--token or HITBOX_TOKEN" in said
        assert json.loads(run("admin", "stats", "--url", url, "--token", token))["published"] == 0
    (one,) = json.loads(run("admin", "tokens", "list", "--json", *data))["tokens"]
    run("admin", "tokens", "revoke", one["id"], *data)
    assert run("admin", "tokens", "list", *data).splitlines()[-1] == "0 tokens"


def test_a_bad_start_is_reported(tmp_path: Path) -> None:
    assert "needs a schema" in run("serve", "--data", str(tmp_path), status=2)
    assert "unknown type" in run("serve", "--data", str(tmp_path), "--schema", "a:money", status=2)
    assert "--data DIR" in run("serve", "--schema", "a:int", status=2)


def test_trouble_at_start_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        data = ["--data", str(tmp_path / "data"), "--schema", "a:int"]
        (tmp_path / "file").touch()
        for arguments, message in (
            ([*data, "--port", port], f"port {port} of 127.0.0.1 is in use"),
            ([*data, "--port", "0", "--host", "no such host"], "needs a token"),
            ([*data, "--port", "70000"], "0 to 65535"),
            (["--data", str(tmp_path / "file"), "--schema", "a:int"], "cannot use the folder"),
            (["--data", str(tmp_path / "file" / "x"), "--schema", "a:int"], "Not a directory"),
            (["--data", str(tmp_path / "x\udcff"), "--schema", "a:int"], "its name is not UTF-8"),
            ([*data, "--max-batch", "none"], "max_batch cannot be 'none'"),
            ([*data, "--way", "fast"], "way cannot be 'fast'"),
            ([*data, "--allow-origin", "friend.example"], "an origin must be like http://name"),
            ([*data, "--allow-origin", "http://friend.example/page"], "an origin must be like http://name"),
        ):
            said = run("serve", *arguments, status=2)
            assert message in said
            assert said.count("\n") == 1, said
    monkeypatch.setattr(os, "open", denied)
    assert "Permission denied" in run("serve", *data, status=2)


def denied(path: object, *_: object, **__: object) -> int:
    raise PermissionError(errno.EACCES, "Permission denied", str(path))


def test_commands_without_a_broker_end_with_a_reason() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    said = run("subscribe", "a > 1", "--url", url, "--wait", "0.2", status=2)
    assert f"no broker answers at {url}" in said
    assert "--wait, sets how long to try" in said
    assert f"no answer from the broker at {url}" in run("publish", '{"a": 1}', "--url", url, status=2)
    assert f"no answer from the broker at {url}" in run("admin", "stats", "--url", url, status=2)
    for command in (["admin", "stats"], ["publish", "{}"], ["subscribe", "a > 1"]):
        assert "is not the address of a broker" in run(*command, "--url", "http://127.0.0.1:abc", status=2)
        assert "printable ASCII" in run(*command, "--url", url, "--token", "é", status=2)


def test_export_makes_no_store_where_there_is_none(tmp_path: Path) -> None:
    for folder in (tmp_path / "missing", tmp_path):
        data = ["--data", str(folder)]
        assert "holds no broker" in run("admin", "export", str(tmp_path / "out"), *data, status=2)
    assert not list(tmp_path.iterdir())


def snapshot(path: Path, ids: list[object]) -> None:
    index = hitbox.Index({"price": "float", "city": "string"})
    where = [f"price > {n}" if n % 2 else f"city = 'c{n}'" for n in range(len(ids))]
    index.load(pa.table({"id": ids, "where": where, "priority": [n % 10 for n in range(len(ids))]}))
    index.save(path)


def test_import_and_export(tmp_path: Path) -> None:
    snapshot(tmp_path / "spark", [f"s{n % 7}/n{n}" for n in range(500)])
    with served(tmp_path / "data", "--import", str(tmp_path / "spark")) as url:
        stats = json.loads(run("admin", "stats", "--url", url))
        assert (stats["subscriptions"], stats["subscribers"]) == (500, 7)
        assert stats["restored"] == "snapshot 1 and 0 changes"
        client = Client.sync(url)
        tried = client.request("POST", "/v1/try", {"event": {"price": 3.5, "city": "c4"}})
        assert {m["name"] for m in tried["matches"]} == {"n1", "n3", "n4"}
        client.request("PUT", "/v1/subscribers/ann/subscriptions/s", {"where": "price < 20"})
        client.close()
    assert run("admin", "export", str(tmp_path / "out"), "--data", str(tmp_path / "data")) == "1\n"
    index = hitbox.Index.open(tmp_path / "out")
    assert len(index) == 501
    assert set(index.match({"price": 3.5})) == {"s1/n1", "s3/n3", "ann/s"}
    with pytest.raises(Conflict):
        import_export.load(tmp_path / "data", tmp_path / "spark")


def test_import_of_bare_ids_asks_whose_they_are(tmp_path: Path) -> None:
    snapshot(tmp_path / "spark", list(range(20)))
    with pytest.raises(BadRequest, match="--as"):
        import_export.load(tmp_path / "data", tmp_path / "spark")
    with served(tmp_path / "data", "--import", str(tmp_path / "spark"), "--as", "ann") as url:
        stats = json.loads(run("admin", "stats", "--url", url))
        assert (stats["subscriptions"], stats["restored"]) == (20, "snapshot 1 and 0 changes")
        with Client.sync(url) as client:
            client.publish({"price": 3.5, "city": "c4"})
            (delivery,) = client.listen("ann", [], 1)
            assert set(delivery.subscriptions) == {"1", "3", "4"}


def test_import_of_ids_with_and_without_a_subscriber(tmp_path: Path) -> None:
    snapshot(tmp_path / "mixed", ["bob/a", "b", "c"])
    import_export.load(tmp_path / "data", tmp_path / "mixed", "ann")
    with served(tmp_path / "data") as url, Client.sync(url) as client:
        tried = client.request("POST", "/v1/try", {"event": {"price": 3.5, "city": "c2"}})
        assert {(m["subscriber"], m["name"]) for m in tried["matches"]} == {("ann", "b"), ("ann", "c")}
        explained = client.request("POST", "/v1/explain", {"event": {"city": "c0"}, "id": "bob/a"})
        assert explained["matched"]
    snapshot(tmp_path / "twice", ["ann/b", "b"])
    with pytest.raises(BadRequest, match="two subscriptions are called 'ann/b'"):
        import_export.load(tmp_path / "other", tmp_path / "twice", "ann")


def test_import_keeps_what_subscriptions_say_about_themselves(tmp_path: Path) -> None:
    index = hitbox.Index({"price": "float", "age": hitbox.Attribute("int", role="information")})
    for n in range(3):
        index.subscribe(n, "price > 1 OR price < -1", about={"age": 10 * n})
    index.save(tmp_path / "spark")
    import_export.load(tmp_path / "data", tmp_path / "spark", "ann")
    with served(tmp_path / "data") as url, Client.sync(url) as client:
        tried = client.request("POST", "/v1/try", {"event": {"price": 2}, "where": "age >= 10"})
        assert {m["name"] for m in tried["matches"]} == {"1", "2"}
        found = client.request("GET", "/v1/subscriptions")["subscriptions"]
        assert {one["name"]: one["about"] for one in found}["2"] == {"age": 20}


UNFIT: dict[str, tuple[hitbox.Schema | None, str]] = {
    "open": (None, "a broker needs a schema that declares its attributes, and this one is open"),
    "ignore": (
        hitbox.Schema({"price": "float"}, extra="ignore"),
        "cannot have a schema with extra='ignore': leave `extra` out",
    ),
    "error": (
        hitbox.Schema({"price": "float"}, extra="error"),
        "cannot have a schema with extra='error': leave `extra` out",
    ),
}


@pytest.mark.parametrize("which", UNFIT)
def test_a_schema_that_a_broker_cannot_have_is_refused_before_anything_is_written(tmp_path: Path, which: str) -> None:
    schema, message = UNFIT[which]
    index = hitbox.Index(schema)
    index.subscribe("ann/s", "price > 1")
    index.save(tmp_path / "snapshot")
    data = tmp_path / "data"
    with pytest.raises(BadRequest, match=re.escape(message)):
        import_export.load(data, tmp_path / "snapshot")
    with pytest.raises(BadRequest, match=re.escape(message)):
        Broker(data, index.schema)
    assert not data.exists()
    (tmp_path / "schema.json").write_text(json.dumps(index.schema.to_json()))
    assert start_check.problems(configuration.Serving(data=str(data), schema=str(tmp_path / "schema.json")))
    with served(data, "--schema", "price:float") as url, Client.sync(url) as client:  # the folder can be used
        client.publish({"price": 2})

    async def change() -> None:
        async with running(data, None) as broker:
            with pytest.raises(BadRequest, match=re.escape(message)):
                await admin.put_schema(broker, index.schema)
            assert await broker.publish([item(price=2)]) == 2

    asyncio.run(change())


def test_a_serving_broker_still_frees_cycles() -> None:
    """Garbage is collected rarely, not never: of many abandoned cycles only some exist at a time."""
    program = """
import gc, weakref
from hitbox.broker.commands import cli

class Node:
    pass

cli._collect_rarely()
assert gc.get_freeze_count() > 1000
alive = weakref.WeakSet()
most = 0
for _ in range(4 * cli.COLLECT_AFTER):
    node = Node()
    node.own = node
    alive.add(node)
    most = max(most, len(alive))
assert cli.COLLECT_AFTER // 10 < most < 2 * cli.COLLECT_AFTER, most
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_refused_start_leaves_nothing(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for arguments, message in (
            (["--schema", "a:int", "--port", port], "is in use"),
            (["--schema", "a:int", "--host", "0.0.0.0", "--port", "0"], "needs a token"),
            (["--port", "0"], "needs a schema"),
        ):
            assert message in run("serve", "--data", str(data), *arguments, status=2)
            assert not data.exists()


def test_a_folder_of_another_program_is_refused(tmp_path: Path) -> None:
    """Its files are not touched, and a broker's own remains are no reason to refuse."""
    document = tmp_path / "document"
    document.mkdir()
    (document / "notes.txt").write_text("mine")
    start = ["--schema", "a:int", "--port", "0"]
    assert "it holds no broker, but other files (notes.txt)" in run("serve", "--data", str(document), *start, status=2)
    create = ["admin", "tokens", "create", "ops"]
    assert "it holds no broker, but other files" in run(*create, "--data", str(document), status=2)
    assert [path.name for path in document.iterdir()] == ["notes.txt"]
    assert "it is a file" in run("serve", "--data", str(document / "notes.txt"), *start, status=2)
    other = tmp_path / "other"
    other.mkdir()
    with sqlite3.connect(other / "hitbox.db") as db:
        db.execute("CREATE TABLE meta(key TEXT, value TEXT, crc TEXT)")
        db.execute("PRAGMA journal_mode=WAL")
    db.close()
    before = (other / "hitbox.db").read_bytes()
    for command in (["serve", *start], ["admin", "tokens", "list"], create, ["serve", *start, "--check"]):
        assert "database of another program" in run(*command, "--data", str(other), status=2)
    assert (other / "hitbox.db").read_bytes() == before
    left = tmp_path / "left"
    left.mkdir(0o755)
    for name in ("lock", "lost+found", ".profile", "damaged-2026.json"):
        (left / name).touch()
    with served(left, "--schema", "a:int"):
        pass


def test_tokens_of_a_folder_without_a_broker(tmp_path: Path) -> None:
    """`list` and `revoke` make no store; `create` does, before a first start, and says so."""
    data = tmp_path / "data"
    for command in (["list"], ["revoke", "x"]):
        assert "holds no broker" in run("admin", "tokens", *command, "--data", str(data), status=2)
        assert not data.exists()
    done = CliRunner().invoke(app, ["admin", "tokens", "create", "ops", "--data", str(data)])
    assert done.exit_code == 0
    assert done.stdout.startswith("hb_")
    assert "this made a new store" in done.stderr
    assert data.stat().st_mode & 0o777 == 0o700
    assert not CliRunner().invoke(app, ["admin", "tokens", "create", "ops", "--data", str(data)]).stderr


def test_a_folder_in_use_is_named(tmp_path: Path) -> None:
    with served(tmp_path / "data", "--schema", "a:int"):
        for command in (["serve", "--port", "0"], ["admin", "tokens", "create", "ops"]):
            said = run(*command, "--data", str(tmp_path / "data"), status=2)
            assert f"the folder {tmp_path / 'data'} is in use by a running broker" in said
            assert "if --data is left out" in said


def test_another_schema_at_start(tmp_path: Path) -> None:
    Broker(tmp_path, hitbox.Schema({"a": "int"})).store.close()
    said = run("serve", "--data", str(tmp_path), "--schema", "a:float", "--port", "0", status=2)
    assert "hitbox admin schema change" in said


HANGUPS = """
import os, signal, sys
from hitbox.broker import broker
from hitbox.broker.commands.cli import app
start = broker.Broker.start

async def hang_up(self):
    os.kill(os.getpid(), signal.SIGHUP)     # while it starts
    await start(self)

broker.Broker.start = hang_up
make = broker.Broker.__init__

def hang_up_before(*args, **named):
    os.kill(os.getpid(), signal.SIGHUP)     # before it listens
    make(*args, **named)

broker.Broker.__init__ = hang_up_before
app(sys.argv[1:])
"""


def test_hangups_do_not_end_a_broker(tmp_path: Path) -> None:
    """Without TLS, and during the start: the signal that a closed terminal or `systemctl reload` sends."""
    command = [sys.executable, "-c", HANGUPS, "serve", "--data", str(tmp_path / "data"), "--schema", "a:int"]
    log = ["--port", "0", "--log-level", "info"]
    process = subprocess.Popen([*command, *log], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert "hitbox broker on" in process.stdout.readline()
    process.send_signal(signal.SIGHUP)
    process.terminate()
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 0, said
    assert "SIGHUP: the broker has no certificate, so there is nothing to read again" in said
    assert f"with the new folder {tmp_path / 'data'}" in said
    assert f"stopped; everything is in the folder {tmp_path / 'data'}" in said


def test_the_help_cuts_no_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = run("serve", "--help")
    for setting in configuration.SETTINGS.values():
        assert setting.flag in said
    assert "--no-allow-private-webhooks" in said


def test_shared_on_the_command_line(tmp_path: Path) -> None:
    with served(tmp_path / "data", "--schema", "a:int") as url, Client.sync(url) as client:
        client.put_subscription("ann", "s", "a > 0")
        client.publish({"a": 1})
        run("subscribe", "--name", "ann", "--shared", "--count", "1", "--url", url)
        assert client.get_subscriber("ann")["options"]["shared"] is True
