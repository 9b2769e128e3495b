"""The examples of the documents and docstrings run, and what they print is what they show."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import hitbox
from hitbox import client

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SKIPPED = ("hitbox.spark", "hitbox.broker", "hitbox.cli", "hitbox.__main__", "hitbox.engine._")
MODULES = [m.name for m in pkgutil.walk_packages(hitbox.__path__, "hitbox.") if not m.name.startswith(SKIPPED)]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_pages(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    failures, _ = doctest.testfile(str(page), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failures == 0


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name: str) -> None:
    failures, _ = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failures == 0


def test_the_readme_has_examples() -> None:
    assert (ROOT / "README.md").read_text().count(">>>") > 10


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_the_files_that_a_page_names_exist(page: str) -> None:
    named = re.findall(r"`([\w/]+/\w+\.(?:py|hpp|cpp|md))`", (ROOT / page).read_text())
    assert len(named) > 5
    missing = [name for name in named if not (ROOT / name).exists() and not (ROOT / "src" / "hitbox" / name).exists()]
    assert not missing, missing


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_the_functions_that_a_page_names_are_there(page: str) -> None:
    """`Class.name` or `name` before (`file.py`) is defined in that file."""
    text = (ROOT / page).read_text()
    for name, file in re.findall(r"`([\w.]+)`\s+\(`(\w+/\w+\.py)`\)", text):
        source = (ROOT / "src" / "hitbox" / file).read_text()
        for part in name.split("."):
            assert re.search(rf"\b(def|class) {part}\b", source), f"{page}: no {name} in {file}"


def test_the_reference_shows_no_internals() -> None:
    """What takes or returns a type that no page describes is not for programs."""
    page = (ROOT / "docs" / "reference" / "python.md").read_text()
    internal = re.compile(r"\b(IndexState|Encoded|Relabel|ClientConnection|connect)\b")
    classes = {"Index": hitbox.Index, "Client": client.Client, "Subscriber": client.Subscriber}
    for name, shown in classes.items():
        options = re.search(rf"autoclass:: {name}\n(   :exclude-members: (.+)\n)?", page)
        assert options is not None, name
        hidden = set((options[2] or "").split(", "))
        assert hidden <= set(dir(shown)) | {""}
        for member in set(dir(shown)) - hidden:
            method = getattr(shown, member)
            if member.startswith("_") or not callable(method):
                continue
            assert method.__doc__, f"{name}.{member}"
            assert not internal.search(str(inspect.signature(method))), f"{name}.{member}"
