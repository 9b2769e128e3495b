"""Settings of `hitbox serve`: file, environment and flags; what is wrong with them; --check."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hitbox import Schema
from hitbox.broker.broker import Broker
from hitbox.broker.commands import configuration
from hitbox.broker.commands.cli import app
from hitbox.broker.settings import Settings, check_settings
from hitbox.broker.store.store import Store
from hitbox.protocol.errors import BadRequest
from support.served import served

ROOT = Path(__file__).parent.parent.parent


def file(folder: Path, text: str | bytes) -> Path:
    path = folder / "hitbox.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_flags_beat_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    path = file(tmp_path, 'max_batch = 1\nmax_lookups = 1\nport = 1\nallow_origin = ["http://a", "http://b"]\n')
    environment = {"HITBOX_SERVE_MAX_LOOKUPS": "2", "HITBOX_SERVE_PORT": "2", "HITBOX_URL": "x"}
    found = configuration.read(path, environment, {"port": "3", "host": None})
    assert not found.problems
    assert (found.settings.max_batch, found.settings.max_lookups, found.serving.port) == (1, 2, 3)
    assert found.serving.allow_origin == ["http://a", "http://b"]
    assert found.serving.host == "127.0.0.1"
    lines = dict(line.split(" = ", 1) for line in found.describe().splitlines())
    assert lines["max_batch"].endswith(f"# {path}, line 1")
    assert lines["max_lookups"].endswith("# environment HITBOX_SERVE_MAX_LOOKUPS")
    assert lines["port"].endswith("# --port")
    assert lines["host"].endswith("# default")


def test_the_description_of_the_settings_is_a_file_of_settings(tmp_path: Path) -> None:
    found = configuration.read(None, {"HITBOX_SERVE_KEEP_SECONDS": "0.5"}, {"allow_origin": ["http://a"]})
    again = configuration.read(file(tmp_path, found.describe()), {}, {})
    assert not again.problems
    assert again.values == found.values


def test_every_setting_has_a_flag_a_variable_a_key_and_a_line_in_the_docs() -> None:
    helped = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200"}).stdout
    for one in configuration.SETTINGS.values():
        assert one.flag in helped
        assert one.help
        text = ",".join(one.default) if one.is_list else "none" if one.default is None else str(one.default)
        found = configuration.read(None, {one.variable: text}, {})
        assert not found.problems
        assert found.values[one.name] == one.default
    assert configuration.table() in (ROOT / "docs" / "operations.md").read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# a\nmax_bach = 3", "line 2: there is no setting 'max_bach'; did you mean 'max_batch'?"),
        ("[limits]\nmax_batch = 3", "line 1: there is no table 'limits'"),
        ("limits.max_batch = 3", "line 1: there is no table 'limits'"),
        ('max_batch = "3"', "line 1: max_batch cannot be '3'; valid: integer from 1"),
        ("max_batch = 1.5", "max_batch cannot be 1.5"),
        ("max_batch = true", "max_batch cannot be True"),
        ("max_batch = 0", "max_batch cannot be 0; valid: integer from 1"),
        ("publish_rate = nan", "publish_rate cannot be nan"),
        ("body_seconds = inf", "body_seconds cannot be inf"),
        ("keep_seconds = -1", "keep_seconds cannot be -1; valid: number from 0"),
        ("port = 65536", "port cannot be 65536; valid: integer from 0 to 65535"),
        ("way = 'fast'", "way cannot be 'fast'; valid: alternate, concurrent, serial"),
        ("allow_origin = 'http://a'", "allow_origin cannot be 'http://a'"),
        ("max_batch = 1\nport 8400\n", "hitbox.toml, line 2: not TOML"),
        ("max_batch = ", "not TOML: Invalid value (at end of document)"),
        ("max_batch = 1\nmax_batch = 2", "not TOML: Cannot overwrite a value (at end of document)"),
        (b"host = '\xff'", "not TOML: 'utf-8' codec can't decode"),
        ("a = " + "[" * 100_000, "not TOML"),
        ("#" * 2**20 + "\n", "more than 1048576 bytes"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path: Path, text: str | bytes, message: str) -> None:
    path = file(tmp_path, text)
    (problem,) = configuration.read(path, {}, {}).problems
    assert problem.startswith(str(path))
    assert message in problem


def test_all_that_is_wrong_is_named_at_once(tmp_path: Path) -> None:
    environment = {"HITBOX_SERVE_MAX_BACH": "1", "HITBOX_SERVE_PORT": "x", "HITBOX_SERVE_port": "1"}
    found = configuration.read(tmp_path / "missing.toml", environment, {"max_batch": "-1"})
    missing, unknown, port, lower, flag = found.problems
    assert "missing.toml: cannot be read: No such file" in missing
    assert "no setting HITBOX_SERVE_MAX_BACH; did you mean 'HITBOX_SERVE_MAX_BATCH'?" in unknown
    assert port.startswith("environment HITBOX_SERVE_PORT: port cannot be 'x'")
    assert "did you mean 'HITBOX_SERVE_PORT'?" in lower
    assert flag.startswith("--max-batch: max_batch cannot be '-1'")
    with pytest.raises(BadRequest, match=r"(?s)missing.toml.*MAX_BACH.*PORT.*--max-batch"):
        found.raise_problems()


def test_settings_given_by_a_program_are_checked() -> None:
    assert check_settings(Settings(max_batch=7, max_store_bytes=None)).max_batch == 7
    for bad in (Settings(max_batch=0), Settings(publish_rate=float("nan")), Settings(way="fast")):  # type: ignore[arg-type]
        with pytest.raises(BadRequest, match=r"the setting (max_batch|publish_rate|way) is invalid"):
            check_settings(bad)


# ---- --check


def check(*arguments: str, **environment: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["serve", "--check", "--port", "0", *arguments], env=environment)
    return done.exit_code, done.stdout, done.stderr


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {one.name: (one.stat().st_mtime_ns, one.read_bytes()) for one in folder.iterdir() if one.is_file()}


def test_check_of_a_new_folder_makes_nothing(tmp_path: Path) -> None:
    data = str(tmp_path / "a" / "data")
    status, said, problems = check("--data", data, "--schema", "a:int", HITBOX_SERVE_MAX_BATCH="5")
    assert (status, problems) == (0, "")
    assert "max_batch = 5" in said
    assert not list(tmp_path.iterdir())
    status, _, problems = check("--data", data)
    assert (status, problems.count("\n")) == (2, 1)
    assert "schema: a new broker needs one" in problems
    assert check("--data", data, "--import", str(tmp_path))[0] == 0
    assert "name the folder" in check("--schema", "a:int")[2]


def test_check_reports_everything_that_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        data = ["--data", str(tmp_path / "file" / "x")]
        status, said, problems = check(
            *data, "--schema", "a:money", "--port", port, "--allow-origin", "x", "--max-batch", "x"
        )
    assert status == 2
    assert "max_batch = 10000" in said
    for part in (
        "max_batch cannot",
        "is not a folder",
        "unknown type",
        f"port {port} of 127.0.0.1 is in use",
        "origin",
    ):
        assert part in problems
    assert problems.count("\n") == 5
    assert "needs a token" in check("--data", str(tmp_path / "new"), "--schema", "a:int", "--host", "0.0.0.0")[2]


@pytest.mark.skipif(os.geteuid() == 0, reason="everything is allowed to root")
def test_check_reports_missing_rights(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(0o500)
    assert "no right to write" in check("--data", str(tmp_path / "closed" / "x"), "--schema", "a:int")[2]
    assert "cannot be read and written" in check("--data", str(tmp_path / "closed"), "--schema", "a:int")[2]


def test_check_of_a_store_changes_nothing(tmp_path: Path) -> None:
    Broker(tmp_path, Schema({"a": "int"})).store.close()
    before = contents(tmp_path)
    assert check("--data", str(tmp_path))[0] == 0
    assert check("--data", str(tmp_path), "--schema", "a:int")[0] == 0
    assert "has another one already" in check("--data", str(tmp_path), "--schema", "a:float")[2]
    assert contents(tmp_path) == before
    with served(tmp_path):
        before = contents(tmp_path)
        assert check("--data", str(tmp_path)) == (0, check("--data", str(tmp_path))[1], "")
        assert contents(tmp_path) == before
    store = Store(tmp_path)
    with store.transaction():
        store.meta.put("format", 99)
    store.close()
    assert "has format 99" in check("--data", str(tmp_path))[2]
    (tmp_path / "hitbox.db").write_bytes(b"no database at all" * 1000)
    assert "data: " in check("--data", str(tmp_path))[2]


def test_serve_reads_a_file(tmp_path: Path) -> None:
    path = file(tmp_path, 'schema = "a:int"\nmax_batch = 7\n')
    with served(tmp_path / "data", "--config", str(path)) as url:
        assert url.startswith("http://127.0.0.1:")
    path.write_text("max_bach = 7")
    done = CliRunner().invoke(app, ["serve", "--data", str(tmp_path / "data"), "--config", str(path)])
    assert done.exit_code == 2
    assert "hitbox.toml, line 1: there is no setting 'max_bach'; did you mean 'max_batch'?" in done.stderr
