"""The command line: serve, publish, subscribe, admin, import and export."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import hitbox
from hitbox.broker import transfer
from hitbox.broker.cli import app
from hitbox.broker.client import Client
from hitbox.broker.errors import BadRequest, Conflict

BASE = [sys.executable, "-m", "hitbox.broker.cli"]


def run(*arguments: str, status: int = 0, text: str = "") -> str:
    done = CliRunner().invoke(app, arguments, input=text)
    assert done.exit_code == status, done.output
    return done.stdout if status == 0 else done.stderr


@contextmanager
def served(folder: Path, *more: str) -> Iterator[str]:
    command = [*BASE, "serve", "--data", str(folder), "--port", "0", *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"http://\S+", line)
    assert found, line
    try:
        yield found[0]
    finally:
        process.terminate()
        assert process.wait(20) == 0


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
        assert "did you mean 'price'" in run("publish", '{"prise": 1}', "--url", url, status=2)
        assert "not JSON" in run("publish", "{", "--url", url, status=2)
        client.close()
    with served(tmp_path / "data") as url:  # after a graceful end: from the snapshot
        assert json.loads(run("admin", "stats", "--url", url))["restored"] == "snapshot 1 and 0 changes"


def test_another_address_needs_a_token(tmp_path: Path) -> None:
    data = ["--data", str(tmp_path)]
    schema = ["--schema", "price:float"]
    assert "needs a token" in run("serve", *data, *schema, "--host", "0.0.0.0", "--port", "0", status=2)
    token = run("admin", "token", "ops", *data).strip()
    assert len(token) >= 43
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
    assert token.encode() not in stored
    assert "has a token already" in run("admin", "token", "ops", *data, status=2)
    with served(tmp_path, "--host", "0.0.0.0") as url:
        url = url.replace("0.0.0.0", "127.0.0.1")
        assert "token is needed" in run("admin", "stats", "--url", url, status=2)
        assert json.loads(run("admin", "stats", "--url", url, "--token", token))["published"] == 0
    run("admin", "token", "ops", "--remove", *data)


def test_a_bad_start_is_told(tmp_path: Path) -> None:
    assert "needs a schema" in run("serve", "--data", str(tmp_path), status=2)
    assert "unknown type" in run("serve", "--data", str(tmp_path), "--schema", "a:money", status=2)
    assert "max_wating" in run("serve", "--data", str(tmp_path), "--schema", "a:int", "--set", "max_wating=1", status=2)


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
        transfer.load(tmp_path / "data", tmp_path / "spark")


def test_import_of_bare_ids_asks_whose_they_are(tmp_path: Path) -> None:
    snapshot(tmp_path / "spark", list(range(20)))
    with pytest.raises(BadRequest, match="--as"):
        transfer.load(tmp_path / "data", tmp_path / "spark")
    transfer.load(tmp_path / "data", tmp_path / "spark", "ann")
    with served(tmp_path / "data") as url:
        stats = json.loads(run("admin", "stats", "--url", url))
        assert (stats["subscriptions"], stats["restored"]) == (20, "the store")
