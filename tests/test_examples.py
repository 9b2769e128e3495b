"""The programs and the notebook in examples/ run, stay short, and print what they promise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parent.parent / "examples"
PROGRAMS = sorted(EXAMPLES.glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_program(program: Path, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(program)], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") >= 2
    assert not done.stderr


def test_there_are_five_short_programs() -> None:
    assert len(PROGRAMS) >= 5
    for program in PROGRAMS:
        assert len(program.read_text().splitlines()) <= 80, program.name


@pytest.mark.slow
def test_notebook(tmp_path: Path) -> None:
    for file in EXAMPLES.glob("*.ipynb"):
        notebook = nbformat.read(file, as_version=4)
        assert not any(cell.get("outputs") for cell in notebook.cells), f"{file.name}: clear the outputs"
        NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
        assert any("warned" in str(cell.get("outputs")) for cell in notebook.cells)
