"""Writes `sync_management.py`, the client's methods without an event loop, from `management.py`: a class for
each class between the first, which they share, and the last, which joins them.

python tools/sync_client.py            write it
python tools/sync_client.py --check    status 1 if it differs
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "src/hitbox/client"
HEAD = '''"""The methods of `Management` without an event loop. Written by tools/sync_client.py: do not edit."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from hitbox.client.management import Management
from hitbox.encoding.schema import Schema

T = TypeVar("T")


class SyncRequests:
    """What the methods share; `asynchronous` does the work."""

    asynchronous: Any

    @property
    def _management(self) -> Management:
        management: Management = self.asynchronous
        return management

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError
'''
TAIL = '''

class SyncManagement({bases}):
    """The methods of `SyncClient` that manage a broker."""
'''


def topic(node: ast.ClassDef, lines: list[str]) -> str:
    """A class of methods for each class of asynchronous ones."""
    text = ast.get_docstring(node)
    methods = [method(part, lines) for part in node.body if isinstance(part, ast.AsyncFunctionDef)]
    return "\n".join([f'\n\nclass Sync{node.name}(SyncRequests):\n    """{text}"""\n', *methods])


def method(node: ast.AsyncFunctionDef, lines: list[str]) -> str:
    """Its signature and docstring as they are written, and a body that calls it."""
    text = node.body[0]
    assert isinstance(text, ast.Expr), f"{node.name} needs a docstring"
    assert text.end_lineno is not None
    head = "\n".join(lines[node.lineno - 1 : text.end_lineno]).replace("async def", "def", 1)
    given = [argument.arg for argument in node.args.args[1:]]
    given += [f"{argument.arg}={argument.arg}" for argument in node.args.kwonlyargs]
    given += [f"**{node.args.kwarg.arg}"] if node.args.kwarg else []
    call = f"self.do(self._management.{node.name}({', '.join(given)}))"
    returns = "" if ast.unparse(node.returns or ast.Constant(None)) == "None" else "return "
    return f"{head}\n        {returns}{call}\n"


def generated() -> str:
    source = (FOLDER / "management.py").read_text()
    lines = source.splitlines()
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)][1:-1]
    tail = TAIL.format(bases=", ".join(f"Sync{node.name}" for node in classes))
    text = "\n".join([HEAD, *(topic(node, lines) for node in classes), tail])
    ruff = [sys.executable, "-m", "ruff", "format", "--stdin-filename", "sync_management.py", "-"]
    return subprocess.run(ruff, input=text, capture_output=True, text=True, check=True).stdout


def main() -> None:
    target, text = FOLDER / "sync_management.py", generated()
    if "--check" not in sys.argv:
        target.write_text(text)
    elif target.read_text() != text:
        sys.exit(f"{target} is not what tools/sync_client.py writes: run it")


if __name__ == "__main__":
    main()
