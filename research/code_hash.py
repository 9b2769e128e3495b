"""A hash of the code that a measurement depends on: it changes when that code changes, and with nothing else.

The code of a contestant on a workload: the modules of both and of the harness, and every module of hitbox and research
that those import. The engine's C++ sources for boxes belong to it where it takes part. Comments, docstrings and layout
do not count in Python.
"""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import hitbox
from hitbox.matchers import REGISTRY
from hitbox.workloads import PRESETS
from research.errors import BenchError

PACKAGES = {"hitbox": Path(hitbox.__file__).parent, "research": Path(__file__).parent}
NATIVE = PACKAGES["hitbox"].parent / "engine"
BOXES = ("base", "build", "format", "match")
"""The C++ that builds and matches boxes; the experiments of the papers use no other."""
HARNESS = ("research.measure", "research.measure_unit")
NOT_FOLLOWED = {
    "hitbox",
    "hitbox.errors",
    "hitbox.encoding.values",
    "hitbox.matchers",
    "hitbox.workloads",
    "hitbox.workloads.tables",
    "research.contestants",
    "research.errors",
    "research.experiment",
    "research.machine",
    "research.measurements",
}
"""Registries, declarations and texts: what they say reaches a measurement by other ways, or not at all. A point's
declaration is hashed with it (runner.py)."""


@cache
def code_hash(matcher: str, workload: str) -> str:
    """Of a matcher's name (without options) on a workload's name."""
    if matcher not in REGISTRY:
        raise BenchError(f"matcher {matcher!r} has no code that could be hashed")
    module = REGISTRY[matcher].partition(":")[0]
    digest = hashlib.sha256()
    for name in sorted(closure((module, PRESETS[workload].kind.__module__, *HARNESS))):
        digest.update(f"{name}\n{meaning(name)}\n".encode())
    if module.startswith("hitbox.engine"):
        digest.update(native_sources())
    return digest.hexdigest()[:16]


def closure(roots: tuple[str, ...]) -> set[str]:
    """The modules of hitbox and research that are imported from the roots, those included."""
    found: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [other for other in imported(name) if other not in NOT_FOLLOWED]
    return found


@cache
def imported(name: str) -> frozenset[str]:
    names = set()
    for node in ast.walk(ast.parse(_source(name))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {_module(node.module, alias.name) for alias in node.names}
    return frozenset(one for one in names if _path(one) is not None)


@cache
def meaning(name: str) -> str:
    """The source without what does not run: comments, docstrings, layout."""
    tree = ast.parse(_source(name))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [one for one in body if not _is_text(one)] or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.unparse(tree)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


@cache
def native_sources() -> bytes:
    """The engine's C++ sources for boxes, or the compiled module where hitbox was installed without them."""
    digest = hashlib.sha256()
    files = sorted(file for folder in BOXES for file in (NATIVE / folder).glob("*.[ch]pp"))
    if not files:
        spec = find_spec("hitbox.engine._kernels")
        files = [Path(spec.origin)] if spec and spec.origin else []
    for file in files:
        digest.update(file.name.encode() + b"\n" + file.read_bytes())
    return digest.digest()


def _source(name: str) -> str:
    path = _path(name)
    assert path is not None, name
    return path.read_text(encoding="utf-8")


def _path(name: str) -> Path | None:
    top, *rest = name.split(".")
    if top not in PACKAGES:
        return None
    place = PACKAGES[top].joinpath(*rest)
    for path in (place / "__init__.py", place.with_suffix(".py")):
        if path.is_file():
            return path
    return None


def _module(package: str, name: str) -> str:
    """What `from package import name` reads: the module of that name, or the package itself."""
    return f"{package}.{name}" if _path(f"{package}.{name}") else package
