"""The rooms of ARCHITECTURE.md: imports run downwards only, no modules import each other in a circle, heavy packages
are imported in their rooms only."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import hitbox
from support import durations

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "hitbox"
PACKAGES = {"hitbox": SOURCE, "research": ROOT / "research"}

# From the ground up. A room may import from its own line and from the lines above it.
LAYERS = [
    {"errors", "version"},
    {"concurrency"},
    {"encoding"},
    {"language", "matchers", "workloads"},
    {"engine", "dialects"},
    {"storage"},
    {"index"},
    {"console", "protocol"},
    {"client"},
    {"__init__"},
    {"spark", "broker"},
    {"cli"},
    {"__main__"},
    {"research"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
ONLY_IN = {
    "numba": {"matchers"},
    "rtree": {"matchers"},
    "pyspark": {"spark"},
    "boto3": {"spark"},
    "starlette": {"broker"},
    "uvicorn": {"broker"},
    "apsw": {"broker"},
    "opentelemetry": {"broker"},
    "duckdb": {"research"},
    "matplotlib": {"research"},
    "typer": {"cli", "console", "spark", "broker", "research"},
}
NEVER = [("matchers", "language"), ("broker", "spark"), ("spark", "broker"), ("engine", "language")]


@cache
def modules() -> list[tuple[ast.Module, str]]:
    """(tree, name): of hitbox without the name of the package, of research with it."""
    found = []
    for package, folder in PACKAGES.items():
        for file in sorted(folder.rglob("*.py")):
            name = ".".join(file.relative_to(folder).with_suffix("").parts)
            found.append((ast.parse(file.read_text()), name if package == "hitbox" else f"{package}.{name}"))
    return found


@cache
def imports() -> list[tuple[str, str, str]]:
    """(module, room that imports, what it imports)."""
    found = []
    for tree, module in modules():
        room = module.split(".")[0]
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                found += [(module, room, alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                found += [(module, room, _module(node.module, alias.name)) for alias in node.names]
    return found


def _module(package: str, name: str) -> str:
    """What `from package import name` reads: the module of that name, or the package itself."""
    top, *rest = package.split(".")
    if top not in PACKAGES:
        return package
    place = PACKAGES[top].joinpath(*rest, name)
    is_module = place.is_dir() or any(place.with_suffix(end).exists() for end in (".py", ".pyi"))
    return f"{package}.{name}" if is_module else package


def test_imports_run_downwards() -> None:
    for module, room, name in imports():
        assert room in LEVEL, f"{module}: {room} is not in LAYERS"
        top, *rest = name.split(".")
        if top not in PACKAGES:
            continue
        target = top if top == "research" else rest[0] if rest else "__init__"
        if (module, name) == ("client.client", "hitbox.broker.upkeep.backup"):  # only a broker can check its store
            continue
        assert LEVEL[target] <= LEVEL[room], f"{module}: {room} imports {target}, which stands above it"
        assert (room, target) not in NEVER, f"{module}: {room} must not import {target}"


def test_no_circles() -> None:
    graph: dict[str, set[str]] = {}
    for module, room, name in imports():
        top, *rest = name.split(".")
        if top in PACKAGES and rest and room != "__init__":
            target = name.removeprefix("hitbox.")
            package = PACKAGES[top].joinpath(*rest).is_dir()
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
    ("research.goal_cases", "_state"): "the engine is measured beside the index that holds it, on the same boxes",
    (
        "index.exchange",
        "_changing",
    ): "a change of the exchange's events and its queue must be one commit of their index",
    ("broker.http.routes", "_asdict"): "a documented method of named tuples",
    ("spark.task_progress", "_jsparkSession"): "PySpark has no public way to ask which queries run",
}
"""(module, name) that may be used although another module defines it as private, with the reason."""


def test_private_names_stay_in_their_module() -> None:
    """`other._field` is allowed only in the module that defines `_field`."""
    wrong = []
    used = set()
    for tree, module in modules():
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
    for name in set(hitbox.__all__) - {"__version__"}:
        assert getattr(hitbox, name).__name__ == name
    assert callable(hitbox.matchers)
    with pytest.raises(AttributeError, match="no attribute 'Indx'"):
        _ = hitbox.Indx


def test_tests_import_helpers_only_from_support() -> None:
    """A test file can be read, moved or deleted without looking at the others."""
    tests = Path(__file__).parent
    folders = {folder.name for folder in tests.iterdir() if folder.is_dir()}
    rooms = folders - {"support", "research", "simulator"} | {"tests", "benchmarks"}
    wrong = []
    for file in sorted(tests.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            wrong += [(file.name, name) for name in names if name.split(".")[0] in rooms or "test_" in name]
    assert not wrong


# ---- budgets: what breaks one makes room first

MOST_LINES = 56_350
"""Python lines of src/hitbox. A feature may raise it only in a commit of its own that says what was deleted."""
MOST_METHODS = 30
MOST_FUNCTION_LINES = 70
LARGE_CLASSES = {
    "broker.broker.Broker": 86,
    "index.index.Index": 40,
    "broker.delivery.mailbox.Mailbox": 41,
    "broker.subscribers.subscriptions.SubscriptionRegistry": 40,
}
"""Classes that are still too large: they may shrink, and leave this list, but not grow."""


@cache
def definitions() -> list[tuple[str, ast.AST]]:
    """(module and name, definition) of all classes and functions of the product."""
    found: list[tuple[str, ast.AST]] = []
    for tree, module in modules():
        if not module.startswith("research."):
            nodes = ast.walk(tree)
            kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
            found += [(f"{module}.{node.name}", node) for node in nodes if isinstance(node, kinds)]
    return found


def test_the_product_keeps_its_budget_of_lines() -> None:
    lines = sum(file.read_text().count("\n") for file in SOURCE.rglob("*.py"))
    assert lines <= MOST_LINES, "delete or merge something first"


def test_classes_have_few_methods() -> None:
    counts = {
        name: sum(isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) for part in node.body)
        for name, node in definitions()
        if isinstance(node, ast.ClassDef)
    }
    large = {name: count for name, count in counts.items() if count > MOST_METHODS}
    assert {name for name, count in large.items() if count > LARGE_CLASSES.get(name, 0)} == set()
    assert set(LARGE_CLASSES) <= set(large), "exceptions that nothing needs any more"


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Without the docstring."""
    first = function.body[0]
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    text = (first.end_lineno or 0) - first.lineno + 1 if is_text else 0
    return (function.end_lineno or 0) - function.lineno + 1 - text


def test_functions_are_short() -> None:
    sizes = {
        name: lines_of(node) for name, node in definitions() if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: size for name, size in sizes.items() if size > MOST_FUNCTION_LINES} == {}


def test_a_docstring_can_be_read_alone() -> None:
    """One that begins "The same" cannot: it says nothing to somebody who searched for the function."""
    found = [
        f"{module}: {text.splitlines()[0]}"
        for tree, module in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(text := node.value.value, str)
        and text.startswith("The same")
    ]
    assert found == []


CHECK_SECONDS, TEST_SECONDS = 90, 3_700
"""Of all tests in `make check`, and in `make test`, on all workers together (tests/durations.txt)."""


def test_the_checks_keep_their_budgets() -> None:
    quick, slow = (durations.tiers()[name].seconds for name in ("quick", "slow"))
    assert quick <= CHECK_SECONDS
    assert quick + slow <= TEST_SECONDS, "move what is proven twice to `make test-all`"
