"""The programs and the notebooks in examples/ run, stay short, and print what they promise."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from playwright.sync_api import sync_playwright

EXAMPLES = Path(__file__).parent.parent / "examples"
PROGRAMS = sorted(EXAMPLES.glob("*.py"))


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


@pytest.mark.exhaustive  # `make test` runs the programs
@pytest.mark.parametrize(("name", "says"), [("tour", "people are warned"), ("dashboard", "alerts of")])
def test_notebook(name: str, says: str, tmp_path: Path) -> None:
    notebook = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "clear the outputs"
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert any(says in str(cell.get("outputs")) for cell in notebook.cells)
    assert not any("stderr" in str(output.get("name")) for cell in notebook.cells for output in cell.get("outputs", []))
    if name == "dashboard":
        look_at(tmp_path / "dashboard.html")


def test_all_notebooks_are_tested() -> None:
    assert {file.stem for file in EXAMPLES.glob("*.ipynb")} == {"tour", "dashboard"}


def look_at(page: Path) -> None:
    """The dashboard in a real browser: a bar per hour, and the rule that was added at noon of the second day."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("chromium is not installed (apt-get install chromium)")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 1100, "height": 850})
        asked: list[str] = []
        opened.on("request", lambda request: asked.append(request.url))
        opened.goto(page.as_uri())
        assert asked == [page.as_uri()], "the page needs nothing else"
        bars = opened.locator("svg rect")
        assert bars.count() == 48
        assert all(bars.nth(hour).bounding_box()["height"] > 0 for hour in (0, 20, 47))  # type: ignore[index]
        cells = opened.locator("tr", has_text="fraud team").locator("td[title]")
        counts = [int(str(cells.nth(hour).get_attribute("title")).split()[-1]) for hour in range(48)]
        assert sum(counts[:36]) == 0 < sum(counts[36:]), "it is matched from the next batch on"
        browser.close()
