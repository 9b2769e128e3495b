"""Progress of long steps: nothing outside a terminal; on one the count, the rate and the time left."""

from __future__ import annotations

import io
import threading
from types import SimpleNamespace
from typing import Any

import IPython.display
import pytest
from rich.console import Console
from rich.progress import Progress

from hitbox.console import progress as module
from hitbox.console.progress import Figures, progress
from hitbox.spark.task_progress import tasks_of


def test_nothing_outside_a_terminal() -> None:
    out = io.StringIO()
    with progress("loading", 10, console=Console(file=out)) as step:
        assert not step.visible
        step.advance(5, doing="still loading")
    assert out.getvalue() == ""


def test_a_line_on_a_terminal() -> None:
    out = io.StringIO()
    with progress("loading", 10, "rows", Console(file=out, force_terminal=True, width=120)) as step:
        step.reach(4, doing="still loading")
    assert "4/10 rows" in out.getvalue()
    assert "still loading" in out.getvalue()


@pytest.mark.parametrize(
    ("unit", "total", "step", "says"),
    [
        ("rows", 100, 20, "40/100 rows, 20 per second, 0:00:02, 0:00:03 left"),
        ("rows", None, 20, "40 rows, 20 per second, 0:00:02"),
        ("steps", 10, 1, "2/10 steps, 60 per minute, 0:00:02, 0:00:08 left"),
        ("", 100, 20, "40%, 0:00:02, 0:00:03 left"),
        ("steps", 10, 0, "0/10 steps, 0:00:02"),
    ],
)
def test_figures(unit: str, total: int | None, step: int, says: str) -> None:
    now = 0.0
    bar = Progress(get_time=lambda: now, auto_refresh=False, console=Console(file=io.StringIO()))
    task = bar.add_task("", total=total)
    for _ in range(2):
        now += 1
        bar.update(task, advance=step)
    assert str(Figures(unit).render(bar.tasks[0])) == says


def terminal(out: io.StringIO) -> Console:
    return Console(file=out, force_terminal=True, width=120)


def test_one_line_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.01)
    out = io.StringIO()
    beside: list[bool] = []

    def other() -> None:
        with progress("beside", console=terminal(out)) as step:
            beside.append(step.visible)

    with progress("outer", console=terminal(out)) as outer:
        with progress("within", console=terminal(out)) as within:
            assert (outer.visible, within.visible) == (True, False)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    other()
    assert beside == [False, True], "the second time nobody else draws"
    assert "within" not in out.getvalue()


def test_a_step_waits_for_a_line_that_is_about_to_end() -> None:
    begun = threading.Event()

    def other() -> None:
        with progress("other", console=terminal(io.StringIO())):
            begun.set()

    thread = threading.Thread(target=other)
    thread.start()
    begun.wait()
    with progress("next", console=terminal(io.StringIO())) as step:
        assert step.visible
    thread.join()


def test_a_line_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, str]] = []

    def display(data: dict[str, str], raw: bool, display_id: bool = False) -> Any:
        assert raw
        shown.append(data)
        return SimpleNamespace(update=display)

    monkeypatch.setattr(IPython.display, "display", display)
    monkeypatch.setattr(module, "REFRESH_SECONDS", 0.001)
    out = io.StringIO()
    with progress("<loading>", 10, "rows", Console(file=out, force_jupyter=True)) as step:
        step.reach(4)
        before = len(shown)
        while len(shown) < before + 2:  # one may have begun before
            threading.Event().wait(0.001)
    assert shown[0]["text/html"].startswith('<progress value="0" max="10"></progress> 0/10 rows')
    assert any('value="4" max="10"' in data["text/html"] and "4/10 rows" in data["text/plain"] for data in shown)
    assert "&lt;loading&gt;" in shown[0]["text/html"]
    assert shown[-1] == {"text/plain": "", "text/html": ""}, "the line goes when the step ends"
    assert out.getvalue() == ""


def test_tasks_of_spark() -> None:
    stages = {1: SimpleNamespace(numCompletedTasks=3, numTasks=8), 2: SimpleNamespace(numCompletedTasks=0, numTasks=4)}
    tracker = SimpleNamespace(getActiveStageIds=lambda: [1, 2, 3], getStageInfo=stages.get)
    assert tasks_of(tracker, {1, 2, 3}) == (3, 12)
    assert tasks_of(tracker, {2}) == (0, 4)
