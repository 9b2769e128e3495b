"""Progress of a long step: one line on stderr with the rate and the time left, as long as the step lasts.

    with progress("loading", total=len(rows), unit="subscriptions") as step:
        for row in rows:
            ...
            step.advance()

The line is drawn on a terminal, and in a notebook if ipywidgets is installed, so that logs and pipes stay clean.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib.util import find_spec

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.text import Text


class Step:
    """One long step; the work reports its progress here."""

    def __init__(self, bar: Progress, doing: str, total: float | None):
        self.visible = not bar.disable
        self._bar, self._task = bar, bar.add_task(doing, total=total)

    def advance(self, amount: float = 1, doing: str | None = None) -> None:
        """Report `amount` more units as done; `doing` describes what comes next."""
        self._bar.update(self._task, advance=amount, description=doing)

    def reach(self, done: float, total: float | None = None, doing: str | None = None) -> None:
        """Report `done` units of `total` as done so far."""
        self._bar.update(self._task, completed=done, total=total, description=doing)


class Figures(ProgressColumn):
    """`12/40 steps, 3.1 per second, 0:00:04, 0:00:09 left`: as much of it as is known."""

    def __init__(self, unit: str):
        self.unit = unit
        super().__init__()

    def render(self, task: Task) -> Text:
        parts = [str(timedelta(seconds=int(task.elapsed or 0)))]
        if self.unit:
            of = f"/{task.total:,.0f}" if task.total else ""
            parts = [f"{task.completed:,.0f}{of} {self.unit}", *parts]
        elif task.total:
            parts = [f"{task.percentage:.0f}%", *parts]
        speed = task.finished_speed or task.speed
        if speed and self.unit:
            rate = f"{speed:,.0f} per second" if speed >= 10 else f"{speed * 60:,.3g} per minute"
            parts.insert(1, rate)
        if speed and task.total and not task.finished:
            parts.append(f"{timedelta(seconds=int(task.time_remaining or 0))} left")
        return Text(", ".join(parts))


@contextmanager
def progress(
    doing: str, total: float | None = None, unit: str = "steps", console: Console | None = None
) -> Iterator[Step]:
    """Show how far the body has come. Without a unit the share that is done is shown, not a count."""
    console = console or Console(stderr=True)
    columns = (SpinnerColumn(), BarColumn(), Figures(unit), TextColumn("{task.description}"))
    bar = Progress(
        *columns,
        console=console,
        transient=True,
        disable=not (console.is_terminal or (console.is_jupyter and find_spec("ipywidgets"))),
        speed_estimate_period=600,
    )
    with bar:
        yield Step(bar, doing, total)
