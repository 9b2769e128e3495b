"""The rooms of ARCHITECTURE.md: imports run downwards only, no modules import each other in a circle, heavy packages
are imported in their rooms only."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import hitbox

SOURCE = Path(__file__).parent.parent / "src" / "hitbox"

# From the ground up. A room may import from its own line and from the lines above it.
LAYERS = [
    {"errors"},
    {"concurrency"},
    {"encoding"},
    {"language", "matchers", "workloads"},
    {"engine", "dialects"},
    {"storage"},
    {"index"},
    {"console"},
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
    "boto3": {"spark"},
    "starlette": {"broker"},
    "uvicorn": {"broker"},
    "apsw": {"broker", "simulator"},
    "opentelemetry": {"broker"},
    "duckdb": {"experiments"},
    "matplotlib": {"experiments"},
    "typer": {"cli", "console", "experiments", "spark", "broker", "simulator"},
}
NEVER = [("matchers", "language"), ("broker", "spark"), ("spark", "broker"), ("engine", "language")]


def imports() -> list[tuple[str, str, str]]:
    """(module, room that imports, what it imports)."""
    found = []
    for file in sorted(SOURCE.rglob("*.py")):
        place = file.relative_to(SOURCE)
        room = place.parts[0] if len(place.parts) > 1 else place.stem
        module = ".".join(place.with_suffix("").parts)
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found += [(module, room, alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                found += [(module, room, _module(node.module, alias.name)) for alias in node.names]
    return found


def _module(package: str, name: str) -> str:
    """What `from package import name` reads: the module of that name, or the package itself."""
    place = SOURCE.parent / Path(*package.split("."), name)
    is_module = place.is_dir() or any(place.with_suffix(end).exists() for end in (".py", ".pyi"))
    return f"{package}.{name}" if is_module else package


def test_imports_run_downwards() -> None:
    for module, room, name in imports():
        assert room in LEVEL, f"{module}: {room} is not in LAYERS"
        if name.split(".")[0] != "hitbox":
            continue
        target = name.split(".")[1] if "." in name else "__init__"
        if room == "__init__" and target == "broker":  # hitbox.Client, imported on demand
            continue
        assert LEVEL[target] <= LEVEL[room], f"{module}: {room} imports {target}, which stands above it"
        assert (room, target) not in NEVER, f"{module}: {room} must not import {target}"


def test_no_circles() -> None:
    graph: dict[str, set[str]] = {}
    for module, room, name in imports():
        if name.startswith("hitbox.") and room != "__init__":
            target = name.removeprefix("hitbox.")
            package = (SOURCE / Path(*target.split("."))).is_dir()
            graph.setdefault(module, set()).add(f"{target}.__init__" if package else target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as problem:
        pytest.fail(f"modules import each other in a circle: {' -> '.join(problem.args[1])}")


def test_heavy_packages_stay_in_their_rooms() -> None:
    for module, room, name in imports():
        top = name.split(".")[0]
        assert room in ONLY_IN.get(top, {room}), f"{module} imports {top}"


PRIVATE_ALLOWED = {
    ("index.exchange", "_put"): "a change of the exchange's events and its queue must be one commit of their index",
    ("index.exchange", "_remove"): "the same",
    ("index.exchange", "_remove_many"): "the same",
    ("experiments.goal_cases", "_matcher"): "the engine is measured beside the index that holds it, on the same boxes",
    ("broker.http.routes", "_asdict"): "a documented method of named tuples",
    ("spark.task_progress", "_jsparkSession"): "PySpark has no public way to ask which queries run",
}
"""(module, name) that may be used although another module defines it as private, with the reason."""


def test_private_names_stay_in_their_module() -> None:
    """`other._field` is allowed only in the module that defines `_field`."""
    wrong = []
    used = set()
    for file in sorted(SOURCE.rglob("*.py")):
        module = ".".join(file.relative_to(SOURCE).with_suffix("").parts)
        tree = ast.parse(file.read_text())
        own = _defined_names(tree)
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute) or not node.attr.startswith("_") or node.attr.startswith("__"):
                continue
            if ast.unparse(node.value) in ("self", "cls", "super()") or node.attr in own:
                continue
            if (module, node.attr) in PRIVATE_ALLOWED:
                used.add((module, node.attr))
            else:
                wrong.append(f"{module}, line {node.lineno}: {ast.unparse(node)}")
    assert not wrong
    assert used == set(PRIVATE_ALLOWED), "exceptions that nothing needs any more"


def _defined_names(tree: ast.Module) -> set[str]:
    """Names of functions, classes, variables and fields of `self` that a module defines."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found.add(node.name)
            case ast.Name(ctx=ast.Store()):
                found.add(node.id)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), ctx=ast.Store()):
                found.add(node.attr)
    return found


LATER = {
    "apsw",
    "asyncio",
    "concurrent.futures",
    "difflib",
    "duckdb",
    "httpx",
    "importlib.metadata",
    "logging",
    "matplotlib",
    "msgspec",
    "multiprocessing",
    "numba",
    "pandas",
    "pyarrow.compute",
    "pyarrow.csv",
    "pyarrow.dataset",
    "pyarrow.fs",
    "pyarrow.json",
    "pyarrow.parquet",
    "pyspark",
    "rich",
    "rtree",
    "secrets",
    "shutil",
    "starlette",
    "typer",
    "uvicorn",
    "websockets",
}
"""What `import hitbox` must not load: it takes long, and many programs never need it."""


def test_importing_hitbox_is_light() -> None:
    code = "import sys, numpy, pyarrow; known = set(sys.modules); import hitbox; hitbox.Index; hitbox.Exchange\n"
    code += "print(*set(sys.modules) - known)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not LATER & set(done.stdout.split())


def test_the_public_names() -> None:
    assert set(hitbox.__all__) <= set(dir(hitbox))
    for name in hitbox.__all__:
        assert getattr(hitbox, name).__name__ == name
    assert callable(hitbox.matchers)
    with pytest.raises(AttributeError, match="no attribute 'Indx'"):
        _ = hitbox.Indx


def test_tests_import_helpers_only_from_support() -> None:
    """A test file can be read, moved or deleted without looking at the others."""
    tests = Path(__file__).parent
    rooms = {folder.name for folder in tests.iterdir() if folder.is_dir()} - {"support"} | {"tests", "benchmarks"}
    wrong = []
    for file in sorted(tests.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            wrong += [(file.name, name) for name in names if name.split(".")[0] in rooms or "test_" in name]
    assert not wrong
