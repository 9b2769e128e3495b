"""Does an installed hitbox work? Checks the library, and the command where the extra `cli` is installed, the published
matchers where `papers` is.

tools/check_wheel and cibuildwheel run it in an empty environment.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from importlib.util import find_spec

import hitbox
from hitbox.engine import _kernels


def run(*words: str, stdin: str = "") -> str:
    """What `hitbox WORDS` prints."""
    command = [sys.executable, "-m", "hitbox", *words]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=True).stdout


def check_command() -> None:
    assert run("--version") == f"hitbox {hitbox.__version__}\n"
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
        file.write("id,where\n1,price < 10\n")
        file.flush()
        found = run("match", "-", "-s", file.name, "--json", stdin='{"price": 5.5}\n')
    assert json.loads(found) == {"event": 0, "subscriptions": [1]}


def main() -> None:
    index = hitbox.Index({"price": "float", "city": "string"})
    oracle = hitbox.Index({"price": "float", "city": "string"}, matcher="brute")
    for number in range(3_000):
        where = f"price BETWEEN {number % 97} AND {number % 97 + number % 13} AND city = 'c{number % 7}'"
        for one in (index, oracle):
            one.subscribe(number, where, priority=number % 10)
    for event in ({"price": value / 3, "city": f"c{value % 7}"} for value in range(300)):
        assert sorted(index.match(event)) == sorted(oracle.match(event)), event
    with tempfile.TemporaryDirectory() as folder:
        index.save(folder)
        opened = hitbox.Index.open(folder)
        assert len(opened) == 3_000
        assert sorted(opened.match({"price": 50, "city": "c1"})) == sorted(oracle.match({"price": 50, "city": "c1"}))
    if find_spec("numba") is not None:
        rein = hitbox.Index({"price": "float"}, matcher="rein")
        rein.subscribe(1, "price > 2")
        assert rein.match({"price": 3}) == [1]
    if find_spec("typer") is not None:
        check_command()
    print(f"hitbox {hitbox.__version__} works here; kernels: {', '.join(_kernels.simd_levels())}")


if __name__ == "__main__":
    main()
