"""The commands of docs/operations.md: those in its blocks run, and all others exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hitbox.broker.commands.cli import app
from support.served import served

PAGE = (Path(__file__).parent.parent.parent / "docs" / "operations.md").read_text()
LINES = [line for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
INLINE = sorted(set(re.findall(r"`(hitbox (?:admin|serve)[^`]*)`", PAGE)))


def run(line: str) -> str:
    done = CliRunner().invoke(app, shlex.split(line, comments=True)[1:])
    assert done.exit_code == 0, f"{line}: {done.output}"
    return done.stdout


def test_the_broker_of_the_page_would_start(tmp_path: Path) -> None:
    (serve,) = [line for line in LINES if line.startswith("hitbox serve")]
    said = run(serve.replace("/var/lib/hitbox", str(tmp_path / "data")).replace("8400", "0") + " --check")
    assert 'schema = "price:float,city:string"  # --schema' in re.sub(" +#", "  #", said)


def test_the_backup_of_the_page(tmp_path: Path) -> None:
    remote, local, restore = (line for line in LINES if "backups/monday" in line)
    with served(tmp_path / "hitbox", "--schema", "a:int") as url:
        for number, line in enumerate((remote, local)):
            line = line.replace("http://127.0.0.1:8400", url).replace("/var/lib", str(tmp_path))
            run(line.replace("backups/monday", str(tmp_path / f"backup{number}")))
    run(restore.replace("/var/lib", str(tmp_path)).replace("backups/monday", str(tmp_path / "backup1")))
    with served(tmp_path / "hitbox-new") as url:
        assert url


@pytest.mark.parametrize("line", INLINE)
def test_the_other_commands_exist(line: str) -> None:
    words = re.sub(r"\[.*|NAME.*|NUMBER.*|price:.*", "", line).split()
    assert "Usage" in run(" ".join([*words, "--help"]))


def test_the_page_has_commands() -> None:
    assert len(LINES) >= 4
    assert len(INLINE) >= 12
