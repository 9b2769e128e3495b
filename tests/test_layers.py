"""The house plan: imports run downwards only, and heavy packages stay in their own rooms."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "hitbox"

# From the ground up; a module may import from its own line and from lines above.
LAYERS = [
    {"errors", "waiting"},
    {"boxes", "values", "schema", "columns", "plain", "pieces", "addresses", "writers"},
    {"checks"},
    {"dictionary", "matches"},
    {"codecs"},
    {"keys"},
    {"events", "snapshot", "mapped", "language", "matchers", "engine", "workloads", "locks"},
    {"catalog", "tables", "resolve", "explained", "files"},
    {"index", "shards", "stored"},
    {"symmetric"},
    {"__init__"},
    {"spark", "broker", "experiments"},
    {"simulator"},
    {"cli"},
    {"__main__"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
ONLY_IN = {
    "numba": {"matchers"},
    "rtree": {"matchers"},
    "pyspark": {"spark"},
    "starlette": {"broker"},
    "uvicorn": {"broker"},
    "apsw": {"broker", "simulator"},
    "duckdb": {"experiments"},
    "matplotlib": {"experiments"},
    "typer": {"cli", "experiments", "spark", "broker", "simulator"},
}
NEVER = [("matchers", "language"), ("broker", "spark"), ("spark", "broker"), ("engine", "language")]


def imports() -> list[tuple[str, str, str]]:
    """(file, room that imports, what it imports)."""
    found = []
    for file in sorted(SOURCE.rglob("*.py")):
        place = file.relative_to(SOURCE)
        room = place.parts[0] if len(place.parts) > 1 else place.stem
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found += [(str(place), room, alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [alias.name for alias in node.names]
                if node.module == "hitbox":
                    found += [(str(place), room, f"hitbox.{name}") for name in names]
                else:
                    found.append((str(place), room, node.module))
    return found


def test_imports_run_downwards() -> None:
    for file, room, name in imports():
        assert room in LEVEL, f"{file}: {room} has no place in the house plan"
        if name.split(".")[0] != "hitbox":
            continue
        target = name.split(".")[1] if "." in name else "__init__"
        if room == "__init__" and target == "broker":  # hitbox.Client, imported on demand
            continue
        if target not in LEVEL:  # a name that the package itself exports
            target = "__init__"
        assert LEVEL[target] <= LEVEL[room], f"{file}: {room} imports {target}, which stands above it"
        assert (room, target) not in NEVER, f"{file}: {room} must not import {target}"


def test_heavy_packages_stay_in_their_rooms() -> None:
    for file, room, name in imports():
        top = name.split(".")[0]
        assert room in ONLY_IN.get(top, {room}), f"{file} imports {top}"


@pytest.mark.parametrize("heavy", ["numba", "pyspark", "starlette", "typer", "duckdb"])
def test_importing_hitbox_is_light(heavy: str) -> None:
    code = f"import sys, hitbox; hitbox.Index(hitbox.Schema({{'a': 'int'}})); print({heavy!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
