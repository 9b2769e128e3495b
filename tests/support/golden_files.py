"""Golden files: readable text in which every `> input` is followed by what hitbox makes of it.

A file is checked by answering each of its inputs again and comparing the whole. To add a case, write its `> ` line; to
accept what comes out, run the tests with HITBOX_UPDATE_GOLDEN=1 and read the diff.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "golden"
ESCAPES = {"n": "\n", "t": "\t", "0": "\0", "\\": "\\"}


def check(name: str, answer: Callable[[str], str]) -> None:
    path = FOLDER / name
    text = path.read_text(encoding="utf-8")
    found: list[str] = []
    for line in text.splitlines():
        if line.startswith("#"):
            found.append(line)
        elif line.startswith(">"):
            found += ["", line, *(f"    {part}".rstrip() for part in answer(unescape(line[2:])).splitlines())]
    new = "\n".join(found).strip("\n") + "\n"
    if os.environ.get("HITBOX_UPDATE_GOLDEN"):
        path.write_text(new, encoding="utf-8")
    assert new == text, f"{path.name} differs; run with HITBOX_UPDATE_GOLDEN=1 and read the diff"


def unescape(line: str) -> str:
    """`\\n`, `\\t`, `\\0`, `\\\\` and `\\u0000` stand for characters that a line of text cannot hold."""
    return re.sub(
        r"\\(u[0-9a-f]{4}|[nt0\\])", lambda m: ESCAPES.get(m[1]) or chr(int(m[1][1:], 16)), line, flags=re.ASCII
    )
