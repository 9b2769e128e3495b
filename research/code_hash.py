"""A hash of the code that a measurement depends on: it changes when that code changes, and with nothing else.

The code of a contestant on a workload: the modules of both and of the harness, and every module of hitbox and research
that those import. The engine's C++ sources for boxes belong to it where it takes part. Comments, docstrings, layout
and the names of local variables do not count in Python.
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
    """The source without what does not run: comments, docstrings, layout, names of local variables."""
    tree = _Numbered().visit(ast.parse(_source(name)))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [one for one in body if not _is_text(one)] or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.unparse(tree)


Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef | Comprehension


class _Numbered(ast.NodeTransformer):
    """Local variables become numbers, in the order in which they are set. Parameters of functions keep their names,
    because callers may use them; those of lambdas do not."""

    def __init__(self) -> None:
        self.scopes: list[dict[str, str]] = []

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self._new(node.id)
        return node

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        node.name = node.name and self._new(node.name)
        return self.generic_visit(node)

    def visit_MatchAs(self, node: ast.MatchAs) -> ast.AST:
        node.name = node.name and self._new(node.name)
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        node.decorator_list = [self.visit(part) for part in node.decorator_list]
        node.args.defaults = [self.visit(part) for part in node.args.defaults]
        names = {argument.arg: argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)}
        fixed = {name for part in ast.walk(node) if isinstance(part, ast.Global | ast.Nonlocal) for name in part.names}
        self._enter(names, [name for part in node.body for name in _set_in(part) if name not in fixed])
        node.body = [self.visit(part) for part in node.body]
        self.scopes.pop()
        return node

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        names = {name: name for part in node.body for name in _set_in(part)}
        self._enter(names, [])
        self.generic_visit(node)
        self.scopes.pop()
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        node.args.defaults = [self.visit(part) for part in node.args.defaults]
        arguments = [argument for argument in ast.walk(node.args) if isinstance(argument, ast.arg)]
        self._enter({}, [argument.arg for argument in arguments])
        for argument in arguments:
            argument.arg = self._new(argument.arg)
        node.body = self.visit(node.body)
        self.scopes.pop()
        return node

    def visit_ListComp(self, node: Comprehension) -> ast.AST:
        first = node.generators[0]
        first.iter = self.visit(first.iter)
        self._enter({}, [name for part in node.generators for name in _set_in(part.target)])
        for part in node.generators:
            part.target, part.ifs = self.visit(part.target), [self.visit(test) for test in part.ifs]
            part.iter = part.iter if part is first else self.visit(part.iter)
        for field in ("elt", "key", "value"):
            if hasattr(node, field):
                setattr(node, field, self.visit(getattr(node, field)))
        self.scopes.pop()
        return node

    visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_ListComp

    def _enter(self, kept: dict[str, str], numbered: list[str]) -> None:
        depth = len(self.scopes)
        new = [name for name in dict.fromkeys(numbered) if name not in kept]
        self.scopes.append({name: f"v{depth}_{at}" for at, name in enumerate(new)} | kept)

    def _new(self, name: str) -> str:
        return next((scope[name] for scope in reversed(self.scopes) if name in scope), name)


def _set_in(node: ast.AST) -> list[str]:
    """The variables that are set here, but not those of functions and comprehensions inside."""
    if isinstance(node, Scope):
        return []
    own = [node.id] if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del) else []
    if isinstance(node, ast.ExceptHandler | ast.MatchAs) and node.name:
        own = [node.name]
    return own + [name for part in ast.iter_child_nodes(node) for name in _set_in(part)]


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
