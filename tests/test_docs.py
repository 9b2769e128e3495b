"""The examples of the documents and docstrings run, and what they print is what they show."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import hitbox

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SKIPPED = ("hitbox.spark", "hitbox.broker", "hitbox.cli", "hitbox.__main__", "hitbox.experiments", "hitbox.engine._")
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
