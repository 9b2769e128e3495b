"""Without an extra: the error names the extra to install, and everything else works."""

from __future__ import annotations

import subprocess
import sys

import pytest


def run(code: str, *without: str) -> subprocess.CompletedProcess[str]:
    """Run the code in a process in which the packages `without` cannot be imported."""
    block = f"import sys; sys.modules.update(dict.fromkeys({list(without)!r}))\n"
    return subprocess.run([sys.executable, "-c", block + code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("code", "without", "extra"),
    [
        ("from hitbox import Client", "websockets", "client"),
        ("import hitbox; hitbox.Client", "httpx", "client"),
        ("import hitbox.broker.broker", "apsw", "broker"),
        ("import hitbox.spark", "pyspark", "spark"),
        ("from hitbox import spark", "pyspark", "spark"),
    ],
)
def test_the_error_names_the_extra(code: str, without: str, extra: str) -> None:
    caught = f"""
from hitbox.errors import HitboxError
try:
    {code}
except ImportError as problem:
    assert isinstance(problem, HitboxError)
    print(problem)
"""
    done = run(caught, without)
    assert done.stdout.strip() == f"hitbox.{extra} needs {without}: pip install 'hitbox[{extra}]'", done.stderr


@pytest.mark.parametrize(
    ("command", "without", "extra"),
    [("serve", "uvicorn", "broker"), ("demo", "pyspark", "spark")],
)
def test_commands_name_the_extra(command: str, without: str, extra: str) -> None:
    done = run(f"sys.argv = ['hitbox', {command!r}]\nfrom hitbox.cli import main\nmain()", without)
    assert done.returncode != 0
    assert done.stderr == f"hitbox: hitbox.{extra} needs {without}: pip install 'hitbox[{extra}]'\n"


def test_the_library_needs_no_extra() -> None:
    everything = ("apsw", "httpx", "msgspec", "numba", "pyspark", "rich", "starlette", "typer", "uvicorn", "websockets")
    done = run("import hitbox; print(hitbox.Index({'a': 'int'}).match({'a': 1}))", *everything)
    assert done.stdout == "[]\n", done.stderr
