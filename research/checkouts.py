"""Several checkouts of hitbox, measured in turn. Each runs goal_cases.py in its own process, with its own Python."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from research import goal_cases
from research.errors import BenchError

Figures = dict[str, list[float]]
"""One number per round."""


class Checkout:
    """A running goal_cases.py. `folder` is a checkout with a `.venv` (made by `make setup`); None: this one."""

    def __init__(self, name: str, folder: Path | None = None):
        self.name = name
        python = Path(sys.executable) if folder is None else folder.resolve() / ".venv" / "bin" / "python"
        if not python.exists():
            raise BenchError(f"{python} is missing: {folder} must be a checkout of hitbox after `make setup`")
        command = [str(python), "-P", str(Path(goal_cases.__file__).resolve())]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder)

    def ask(self, **request: Any) -> dict[str, Any]:
        """The answer to one request; {} asks for the machine and the version."""
        self.send(**request)
        return self.answer()

    def send(self, **request: Any) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # `answer` says so

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise BenchError(f"the measurement of {self.name} ended early; its message is above")
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def running(folders: Mapping[str, Path | None]) -> Iterator[list[Checkout]]:
    with ExitStack() as stack:
        checkouts = []
        for name, folder in folders.items():
            checkouts.append(Checkout(name, folder))
            stack.callback(checkouts[-1].close)
        yield checkouts


def measure(
    checkouts: Sequence[Checkout], case: str, measures: Sequence[str], rounds: int, scales: Mapping[str, float]
) -> dict[str, Figures]:
    """Build `case` in each checkout, then each measurement in each of them, in turn, round by round. The first round
    warms up and is not kept. What a checkout cannot measure is missing."""
    found: dict[str, Figures] = {}
    for one in checkouts:
        found[one.name] = {name: [value] for name, value in one.ask(build=case, scale=scales[one.name]).items()}
    for turn in range(-1, rounds):
        for measure in measures:
            first = turn % len(checkouts)
            for one in [*checkouts[first:], *checkouts[:first]]:
                answer = one.ask(measure=measure)
                for name, value in answer.items() if turn >= 0 else ():
                    found[one.name].setdefault(name, []).append(value)
    return found
