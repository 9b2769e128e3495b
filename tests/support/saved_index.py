"""A small index to save, and what writers leave behind beside it."""

from __future__ import annotations

from pathlib import Path

from hitbox import Index, Schema


def index(mark: int = 0) -> Index:
    made = Index(Schema({"a": "int", "s": "string"}))
    for i in range(20):
        made.subscribe(i, f"a = {i} OR s = 'x{mark}'")
    return made


def leftovers(root: Path) -> list[str]:
    found = [*root.glob(".*"), *(root / "versions").glob(".*")]
    return sorted(str(one.relative_to(root)) for one in found)
