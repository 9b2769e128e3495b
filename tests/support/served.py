"""`hitbox serve` in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def served(folder: Path, *more: str) -> Iterator[str]:
    """A broker on a port of its own; its address."""
    command = [sys.executable, "-m", "hitbox", "serve", "--data", str(folder), "--port", "0", *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"https?://\S+", line)
    assert found, line
    try:
        yield found[0]
    finally:
        process.terminate()
        assert process.wait(20) == 0
