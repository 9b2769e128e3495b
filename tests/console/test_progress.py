"""Progress of long steps: nothing outside a terminal; on one the count, the rate and the time left."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.progress import Progress

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


def test_tasks_of_spark() -> None:
    stages = {1: SimpleNamespace(numCompletedTasks=3, numTasks=8), 2: SimpleNamespace(numCompletedTasks=0, numTasks=4)}
    tracker = SimpleNamespace(getActiveStageIds=lambda: [1, 2, 3], getStageInfo=stages.get)
    assert tasks_of(tracker) == (3, 12)
